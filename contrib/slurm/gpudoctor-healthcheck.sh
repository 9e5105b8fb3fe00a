#!/bin/bash -p
# Slurm HealthCheckProgram: drains a node with a GPU failure, and takes back its own drains when the failure is gone.
# It always exits with 0: some versions of slurmd do not register before the health check has.
# slurm.conf: HealthCheckProgram=/opt/gpudoctor/slurm/gpudoctor-healthcheck.sh  HealthCheckInterval=300
# -p: no functions and no BASH_ENV from the environment
# shellcheck source-path=SCRIPTDIR source=gpudoctor-hooks.sh
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/gpudoctor-hooks.sh"
unset SLURM_JOB_GPUS SLURM_STEP_GPUS

if ! mkdir -p "$GPUDOCTOR_STATE" || ! exec 9>"$GPUDOCTOR_STATE/lock"; then
  say "no lock could be made in $GPUDOCTOR_STATE: not checked"
  exit 0
fi
# one that still runs will give the answer
flock -n 9 || exit 0

if ! read_node; then
  say "slurmctld does not tell the state of $node: not checked"
  exit 0
fi
# a node that should have GPUs and shows none is a failure; a node without GPUs is none of ours
if [[ $gres != *gpu* ]] && ! has_gpus; then exit 0; fi

# slurmd kills it after 60 s
examine 40
printf '%s %s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$verdict" "$why" >"$GPUDOCTOR_STATE/healthcheck"
if [ "$verdict" = unknown ]; then
  say "no verdict: $why"
  if [ "$GPUDOCTOR_DRAIN_ON_UNKNOWN" = yes ]; then verdict=fail; fi
fi
# the check took its time: somebody may have drained the node meanwhile
if ! read_node; then
  say "slurmctld does not answer: state of $node not changed ($verdict)"
  exit 0
fi
case $verdict in
  fail) drain || say "scontrol could not drain $node" ;;
  ok)
    if [[ $state == *DRAIN* && $old_reason == gpudoctor:* ]]; then
      say "no failure any more, back in service (was: $old_reason)"
      timeout 5 scontrol update nodename="$node" state=undrain || say "scontrol could not undrain $node"
    fi
    ;;
esac
exit 0
