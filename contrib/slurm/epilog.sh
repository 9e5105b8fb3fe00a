#!/bin/bash -p
# Slurm Epilog: checks the job's GPUs after the job has ended, and drains the node on a failure. It fails only if
# slurmctld did not accept the drain: Slurm then drains the node itself, with a reason of its own.
# slurm.conf: Epilog=/opt/gpudoctor/slurm/epilog.sh
# -p: import no functions and no BASH_ENV from the environment
# shellcheck source-path=SCRIPTDIR source=gpudoctor-hooks.sh
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/gpudoctor-hooks.sh"

run_hook epilog 40
