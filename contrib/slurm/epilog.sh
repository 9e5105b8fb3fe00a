#!/bin/bash -p
# Slurm Epilog: looks at the job's GPUs after it has ended, and drains the node on a failure. It fails only if slurmctld
# did not take the drain: Slurm drains the node then, in its own words.
# slurm.conf: Epilog=/opt/gpudoctor/slurm/epilog.sh
# -p: no functions and no BASH_ENV from the environment
# shellcheck source-path=SCRIPTDIR source=gpudoctor-hooks.sh
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/gpudoctor-hooks.sh"

run_hook epilog 40
