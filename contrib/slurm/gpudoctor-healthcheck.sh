#!/bin/bash -p
# Slurm HealthCheckProgram: drains a node with a GPU failure, and undoes its own drains once the failure is fixed.
# It always exits with 0: some versions of slurmd do not register after it fails. slurmd kills it after 60 s.
# slurm.conf: HealthCheckProgram=/opt/gpudoctor/slurm/gpudoctor-healthcheck.sh  HealthCheckInterval=300
# -p: import no functions and no BASH_ENV from the environment
# shellcheck source-path=SCRIPTDIR source=gpudoctor-hooks.sh
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/gpudoctor-hooks.sh"
unset SLURM_JOB_ID SLURM_JOB_GPUS SLURM_STEP_GPUS

run_hook health 45
exit 0
