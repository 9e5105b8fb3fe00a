#!/bin/bash
# EpilogSlurmctld: when a job failed, diagnose its output and write the cause into the job's comment (squeue -o %k, sacct -o comment),
# or, if the user gave it one, into its admin comment (scontrol show job, sacct -o admincomment).
# It runs on the controller, as SlurmUser; the job's output must be readable there. Nothing it does changes the job's result.
#
#   slurm.conf:  EpilogSlurmctld=/opt/gpudoctor/slurm/diagnose-failed-job.sh
#                AccountingStoreFlags=job_comment
set -u
unset "${!GPUDOCTOR@}" "${!PYTHON@}" "${!LD_@}" BASH_ENV ENV
GPUDOCTOR=/opt/gpudoctor/bin/gpudoctor
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin:/opt/slurm/bin
export LC_ALL=C
# shellcheck source=/dev/null
if [ -r /etc/default/gpudoctor ]; then . /etc/default/gpudoctor; fi

job=${SLURM_JOB_ID:-}
# SLURM_JOB_EXIT_CODE is the wait status: 0 if the job succeeded
if [ -z "$job" ] || [ "${SLURM_JOB_EXIT_CODE:-0}" = 0 ]; then exit 0; fi

shown=$(timeout 10 scontrol show job -o "$job") || exit 0
output=$(sed -n 's/.* StdOut=\([^ ]*\).*/\1/p' <<<"$shown")
if [ -z "$output" ] || [ ! -r "$output" ]; then exit 0; fi

answer=$(timeout 120 nice "$GPUDOCTOR" diagnose --json -- "$output" 2>/dev/null)
code=$?
# 1: a cause was found; 3: something is wrong but the cause is unknown
if [ "$code" != 1 ] && [ "$code" != 3 ]; then exit 0; fi

cause=$(python3 -c '
import json, sys
cause = json.load(sys.stdin)["cause"]
place = "".join(f" {name} {cause[name]}" for name in ("rank", "host", "gpu") if cause[name] is not None)
print(f"gpudoctor: {cause['"'what'"']} ({cause['"'confidence'"']}){place}"[:250])
' <<<"$answer") || exit 0
# keep a comment that the user set; replace one of ours from before a requeue
field=comment
if [[ $shown == *" Comment="* && $shown != *" Comment=(null)"* && $shown != *" Comment=gpudoctor: "* ]]; then
  field=admincomment
fi
timeout 10 scontrol update job="$job" "$field=$cause" || true
exit 0
