#!/bin/bash -p
# Slurm Prolog: keeps a job off a node whose GPUs have a failure. It drains the node and fails; Slurm then requeues the
# job, and starts it on another node if SchedulerParameters contains nohold_on_prolog_fail.
# slurm.conf: Prolog=/opt/gpudoctor/slurm/prolog.sh
# -p: import no functions and no BASH_ENV from the environment
# shellcheck source-path=SCRIPTDIR source=gpudoctor-hooks.sh
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/gpudoctor-hooks.sh"

run_hook prolog 40
