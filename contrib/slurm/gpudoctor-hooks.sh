# shellcheck shell=bash disable=SC2034
# What prolog, epilog and health check share. It is sourced; its settings can be changed in /etc/default/gpudoctor.

# Whatever of the job's environment came here: it must not choose what runs as root, nor what is read
unset "${!GPUDOCTOR@}" "${!PYTHON@}" "${!LD_@}" XDG_CONFIG_HOME XDG_CACHE_HOME BASH_ENV ENV
# Where gpudoctor is; without a file there, the one in PATH
GPUDOCTOR=/opt/gpudoctor/bin/gpudoctor
# Checks that would judge slurmd's own limits and CPUs instead of the node's
GPUDOCTOR_SKIP="env host.cpu-per-gpu host.ram-per-gpu host.limits topology.numa"
# yes: a check that got no answer (gpudoctor's exit codes 2 and 3, a timeout) drains as well
GPUDOCTOR_DRAIN_ON_UNKNOWN=no
# node: prolog and epilog judge the whole node instead of the job's GPUs. For a gres.conf whose n-th GPU is not
# /dev/nvidia<n>: Slurm names a job's GPUs by that number alone
GPUDOCTOR_SCOPE=job
# The health check's lock and its last line
GPUDOCTOR_STATE=/run/gpudoctor

# slurmd gives its hooks no PATH, and the health check no SLURM_CONF either (set it in the file where yours is elsewhere)
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin:/opt/slurm/bin
export LC_ALL=C
node=${SLURMD_NODENAME:-$(hostname -s)}
# shellcheck source=/dev/null
if [ -r /etc/default/gpudoctor ]; then . /etc/default/gpudoctor; fi
if [ -n "${SLURM_CONF:-}" ]; then export SLURM_CONF; fi
# it belongs to the job; what is judged is named by --gpu
unset CUDA_VISIBLE_DEVICES

say() {
  printf 'gpudoctor: %s: %s\n' "$node" "$1" >&2
  if [ -S /dev/log ]; then logger -t gpudoctor -- "$1" || true; fi
}

# examine SECONDS [OPTION...]: sets `verdict` to ok, fail or unknown, and `why` to one line.
# The word at the start of gpudoctor's line must agree with its exit code: a Python that cannot start also exits with 1.
examine() {
  local limit=$1 gpudoctor=$GPUDOCTOR output code line id skips=()
  shift
  verdict=unknown
  if [ ! -x "$gpudoctor" ] && ! gpudoctor=$(command -v gpudoctor); then
    why="no gpudoctor at $GPUDOCTOR nor in PATH: set GPUDOCTOR in /etc/default/gpudoctor"
    return
  fi
  for id in $GPUDOCTOR_SKIP; do skips+=(--skip "$id"); done
  if ! output=$(mktemp); then
    why="no temporary file could be made"
    return
  fi
  # into a file: a pipe would wait for a child that hangs in the driver. Nor may such a child keep the lock (9)
  timeout -k 2 "$limit" "$gpudoctor" check --level quick --format nagios --deadline "$((limit - 5))" "${skips[@]}" "$@" \
    >"$output" 2>&1 </dev/null 9>&-
  code=$?
  line=$(grep -a -m1 '^GPUDOCTOR ' "$output" || tail -n1 "$output")
  rm -f "$output"
  case "$code $line" in
    "0 GPUDOCTOR OK - "* | "1 GPUDOCTOR WARNING - "*) verdict=ok ;;
    "2 GPUDOCTOR CRITICAL - "*) verdict=fail ;;
  esac
  why=${line#GPUDOCTOR * - }
  why=${why%% | *}
  if [ "$code" = 124 ] || [ "$code" = 137 ]; then why="no answer in $limit s"; fi
  why=${why:-exit code $code and no word}
  # a simulated node or a fake driver says nothing of this one
  if [[ $why == "SIMULATED "* ]]; then verdict=unknown; fi
}

# The drain reason for `why`: one line of at most 100 plain characters, without quotes
reason() {
  local text
  text=$(printf 'gpudoctor: %s' "$why" | tr -cd '\40-\176' | tr -d "\"'\`\\\\")
  printf '%s' "${text:0:100}"
}

# Sets `state` (IDLE, MIXED+DRAIN, ...), `old_reason` and `gres` of this node; fails where slurmctld does not answer
read_node() {
  local record
  record=$(timeout 5 scontrol -o show node "$node" 2>/dev/null) || return 1
  [[ $record =~ [[:space:]]State=([^[:space:]]+) ]] || return 1
  state=${BASH_REMATCH[1]}
  gres='' old_reason=''
  if [[ $record =~ [[:space:]]Gres=([^[:space:]]+) ]]; then gres=${BASH_REMATCH[1]}; fi
  if [[ $record =~ [[:space:]]Reason=(.*) ]]; then old_reason=${BASH_REMATCH[1]}; fi
  old_reason=${old_reason%% \[*@*}
}

# Drains this node for `why`, unless it is out of service for somebody else's reason. Needs read_node first
drain() {
  local new
  new=$(reason)
  case $state in
    *DRAIN* | *DOWN* | *FAIL*)
      case $old_reason in
        "$new") return 0 ;;
        gpudoctor:*) ;;
        *)
          say "$new (node is $state already: ${old_reason:-no reason given}; left alone)"
          return 0
          ;;
      esac
      ;;
  esac
  say "drain: $new"
  timeout 5 scontrol update nodename="$node" state=drain reason="$new"
}

# The GPUs in SLURM_JOB_GPUS as bus ids for --gpu: Slurm counts device files, which need not be the driver's order.
# Prints nothing where they cannot be told (MIG): the whole node is judged then.
job_gpus() {
  local tree=${GPUDOCTOR_DRIVER_TREE:-/proc/driver/nvidia/gpus} file minor bus wanted list=''
  local -A bus_of=()
  if [ "$GPUDOCTOR_SCOPE" = node ] || ! [[ ${SLURM_JOB_GPUS:-} =~ ^[0-9]+(,[0-9]+)*$ ]]; then return 0; fi
  if [ ! -d "$tree" ]; then
    printf '%s' "$SLURM_JOB_GPUS"
    return 0
  fi
  for file in "$tree"/*/information; do
    minor=$(sed -n 's/^Device Minor:[[:space:]]*//p' "$file" 2>/dev/null)
    bus=$(sed -n 's/^Bus Location:[[:space:]]*//p' "$file" 2>/dev/null)
    if [ -n "$minor" ] && [ -n "$bus" ]; then bus_of[$minor]=$bus; fi
  done
  for wanted in ${SLURM_JOB_GPUS//,/ }; do
    [ -n "${bus_of[$wanted]:-}" ] || return 0
    list+=${list:+,}${bus_of[$wanted]}
  done
  printf '%s' "$list"
}

# One slurm.conf serves nodes without GPUs, too
has_gpus() {
  local vendor device
  for device in /dev/nvidia[0-9]*; do if [ -e "$device" ]; then return 0; fi; done
  for vendor in /sys/bus/pci/devices/*/vendor; do
    if [ "$(cat "$vendor" 2>/dev/null)" = 0x10de ] && [[ $(cat "${vendor%vendor}class" 2>/dev/null) == 0x03* ]]; then return 0; fi
  done
  return 1
}

# Judges the job's GPUs, or the node where the job has none of its own. Drains on a failure, and then fails itself
judge_for_job() {
  local gpus
  verdict=ok
  if [ -z "${SLURM_JOB_GPUS:-}" ] && ! has_gpus; then return 0; fi
  gpus=$(job_gpus)
  # gpudoctor would narrow its view by them on its own
  unset SLURM_JOB_GPUS SLURM_STEP_GPUS
  examine 35 ${gpus:+--gpu "$gpus"}
  if [ "$verdict" = unknown ]; then
    say "job ${SLURM_JOB_ID:-?}: no verdict: $why"
    if [ "$GPUDOCTOR_DRAIN_ON_UNKNOWN" = yes ]; then verdict=fail; fi
  fi
  if [ "$verdict" != fail ]; then return 0; fi
  # the one call to Slurm, and only on a bad node: without it the drain reason would be just "Prolog error"
  drained=no
  if read_node && drain; then drained=yes; fi
  return 1
}
