#!/bin/bash -p
# Slurm Prolog: keeps a job off a node whose GPUs have a failure. Drains the node; Slurm requeues the job.
# slurm.conf: Prolog=/opt/gpudoctor/slurm/prolog.sh
# -p: no functions and no BASH_ENV from the environment
# shellcheck source-path=SCRIPTDIR source=gpudoctor-hooks.sh
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/gpudoctor-hooks.sh"

judge_for_job && exit 0
printf '%s\n' "$(reason)" >&2
exit 1
