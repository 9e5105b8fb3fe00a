#!/bin/bash -p
# Slurm Epilog: looks at the job's GPUs after it has ended, and drains the node on a failure.
# slurm.conf: Epilog=/opt/gpudoctor/slurm/epilog.sh
# -p: no functions and no BASH_ENV from the environment
# shellcheck source-path=SCRIPTDIR source=gpudoctor-hooks.sh
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/gpudoctor-hooks.sh"

judge_for_job && exit 0
printf '%s\n' "$(reason)" >&2
# by failing, the node is drained even where scontrol did not answer, with Slurm's own words as reason
[ "$drained" = yes ]
