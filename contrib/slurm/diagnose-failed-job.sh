#!/bin/bash -p
# EpilogSlurmctld: when a job failed, diagnose its output. The answer goes into a file beside the output (slurm-7.out.diagnosis.txt),
# the cause into the log and, if there is slurmdbd, into the job's admin comment (sacct -o admincomment).
# It runs on the controller as SlurmUser, and the job's output must be readable there: by SlurmUser, or, if that is root, by
# the job's user, as whom it is then read and the file written. Nothing it does changes the job's result.
#   slurm.conf: EpilogSlurmctld=/opt/gpudoctor/slurm/diagnose-failed-job.sh
# -p: import no functions and no BASH_ENV from the environment
# shellcheck source-path=SCRIPTDIR source=gpudoctor-hooks.sh
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/gpudoctor-hooks.sh"

# SLURM_JOB_EXIT_CODE is the wait status: 0 if the job succeeded
if [ "${SLURM_JOB_EXIT_CODE:-0}" = 0 ] || [ -z "${SLURM_JOB_ID:-}" ]; then exit 0; fi
if ! gpudoctor=$(path_of_gpudoctor); then
  say "job $SLURM_JOB_ID: not diagnosed: no gpudoctor at $GPUDOCTOR nor in PATH"
  exit 0
fi
as_user=()
if [ "$EUID" = 0 ]; then as_user=(setpriv "--reuid=$SLURM_JOB_UID" "--regid=$SLURM_JOB_GID" --init-groups); fi
# stdout is the cause; of what stderr holds the last line is the reason if there is none
if ! cause=$(cd / && "${as_user[@]}" timeout -k 5 150 nice "$gpudoctor" slurm failed-job </dev/null 2>&1); then
  say "job $SLURM_JOB_ID: not diagnosed: ${cause##*$'\n'}"
elif cause=${cause##*$'\n'} && [ -n "$cause" ]; then
  say "job $SLURM_JOB_ID: $cause"
  # slurmctld accepts no comment for a job that has ended; slurmdbd does
  if timeout 10 scontrol show config | grep -q 'AccountingStorageType.*slurmdbd'; then
    timeout 20 sacctmgr -i modify job where jobid="$SLURM_JOB_ID" set admincomment="gpudoctor: ${cause//[\"\']/}" >/dev/null ||
      say "job $SLURM_JOB_ID: sacctmgr did not take the comment"
  fi
fi
exit 0
