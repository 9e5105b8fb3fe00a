# shellcheck shell=bash
# Sourced by all hooks. The work is done by `gpudoctor slurm`; these lines make sure that nothing
# from the job's environment reaches it, that it ends in time, and that a run without an answer is noticed.

ignored=${!GPUDOCTOR@}
unset "${!GPUDOCTOR@}" "${!PYTHON@}" "${!LD_@}" XDG_CONFIG_HOME XDG_CACHE_HOME BASH_ENV ENV CUDA_VISIBLE_DEVICES
# Path of gpudoctor; if there is no such file, the one in PATH is used
GPUDOCTOR=/opt/gpudoctor/bin/gpudoctor
# slurmd sets no PATH for its hooks, and no SLURM_CONF for the health check (set it in the file if yours is elsewhere)
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin:/opt/slurm/bin
export LC_ALL=C
SLURMD_NODENAME=${SLURMD_NODENAME:-$(hostname -s)}
node=$SLURMD_NODENAME
settings_error=''
if [ -r /etc/default/gpudoctor ]; then
  # shellcheck source=/dev/null
  . /etc/default/gpudoctor || settings_error=$(bash -n /etc/default/gpudoctor 2>&1 | head -n1)
fi
state=${GPUDOCTOR_STATE:-/run/gpudoctor}
export "${!GPUDOCTOR@}" SLURMD_NODENAME
if [ -n "${SLURM_CONF:-}" ]; then export SLURM_CONF; fi

if [ -n "$ignored" ]; then
  printf 'gpudoctor: a hook takes no setting from its environment, only from /etc/default/gpudoctor: not read: %s\n' "$ignored" >&2
fi

# Log to stderr (which slurmd drops), to syslog, and to GPUDOCTOR_LOG; without the last two, and if GPUDOCTOR_LOG
# cannot be written, to the state folder
say() {
  local file=${GPUDOCTOR_LOG:-}
  printf 'gpudoctor: %s: %s\n' "$node" "$1" >&2
  if [ -S /dev/log ]; then
    logger -p daemon.warning -t gpudoctor -- "$node: $1" || true
  else
    file=${file:-$state/log}
  fi
  [ -z "$file" ] || append "$file" "$1" || append "$state/log" "$1" || true
}

append() {
  [ ! -L "$1" ] && mkdir -p "${1%/*}" && printf '[%(%Y-%m-%dT%H:%M:%S)T] gpudoctor: %s: %s\n' -1 "$node" "$2" >>"$1"
}

path_of_gpudoctor() { if [ -x "$GPUDOCTOR" ]; then echo "$GPUDOCTOR"; else command -v gpudoctor; fi; }

# run_hook prolog|epilog|health SECONDS: fails if Slurm must not go on. The answer's first words must agree with the
# exit code, since a Python that cannot start also exits with 1.
run_hook() {
  local hook=$1 limit=$2 gpudoctor='' answer='' code=0 errors=/dev/null
  if [ -n "$settings_error" ]; then
    # whatever else the file says: a typo in it drains nothing
    GPUDOCTOR_ACTION=log
    no_verdict "$hook" "$settings_error"
    return
  fi
  if ! gpudoctor=$(path_of_gpudoctor); then
    no_verdict "$hook" "no gpudoctor at $GPUDOCTOR nor in PATH: set GPUDOCTOR in /etc/default/gpudoctor"
    return
  fi
  # slurmd drops stderr: without a verdict, its last line is the reason, and the file keeps all of it
  if mkdir -p "$state" && rm -f -- "$state/$hook.stderr" && (set -C; : >"$state/$hook.stderr"); then
    errors=$state/$hook.stderr
  fi 2>/dev/null
  # read one line, not until the end of the pipe: a child that hangs in the driver may keep it open
  read -r -t "$((limit + 5))" answer < <(exec timeout -k 2 "$limit" "$gpudoctor" slurm "$hook" </dev/null 2>>"$errors") || code=$?
  # above 128: read timed out. Do not wait for a process that may be stuck in the kernel
  if [ "$code" -le 128 ]; then
    wait "$!"
    code=$?
  fi
  cat -- "$errors" >&2
  case "$code $answer" in
    "0 go on: "* | "1 refuse: "*)
      rm -f -- "$state/$hook.stderr"
      return "$code"
      ;;
    124* | 137* | 14[23]*) no_verdict "$hook" "no answer in $limit s" ;;
    *) no_verdict "$hook" "gpudoctor slurm $hook ended with exit code $code: ${answer:-$(tail -n 1 -- "$errors")}" ;;
  esac
}

# There is no verdict on the node: show it in the logs and the metric. GPUDOCTOR_ON_ERROR decides about the job;
# GPUDOCTOR_ACTION=log lets every job start
no_verdict() {
  local mark
  # a slurm.conf is shared with nodes that have no GPU
  if [ -z "${SLURM_JOB_GPUS:-}${GPUDOCTOR_TRIAL:-}" ] && ! compgen -G '/dev/nvidia[0-9]*' >/dev/null &&
    ! grep -qsx 0x10de /sys/bus/pci/devices/*/vendor; then return 0; fi
  say "$1, job ${SLURM_JOB_ID:-none}: no verdict: $2"
  # no prolog may trust an earlier verdict, and the count of healthy checks starts again
  rm -f -- "$state"/{verdict,undrain}.json
  mark="hook=\"$1\"${GPUDOCTOR_TRIAL:+,simulated=\"true\"}"
  put_metric "${GPUDOCTOR_TEXTFILE:-$state}" "$1" "$mark" || put_metric "$state" "$1" "$mark" || true
  [ "${GPUDOCTOR_ON_ERROR:-run}" != hold ] || [ "${GPUDOCTOR_ACTION:-drain}" = log ]
}

# put_metric FOLDER HOOK LABELS: fails if the file cannot be written
put_metric() {
  local folder=$1 hook=$2 mark=$3 file='' done=1
  # same HELP and TYPE as `gpudoctor slurm` writes: node_exporter drops one of two files that differ in them
  # a new file of an unknown name: nobody can have put a link there
  mkdir -p "$folder" && file=$(mktemp "$folder/gpudoctor_slurm.XXXXXXXX") && chmod 644 "$file" && cat >"$file" <<EOF && mv -fT "$file" "$folder/gpudoctor_slurm_$hook.prom" && done=0
# HELP gpudoctor_slurm_verdict What a Slurm hook found last: pass, warn, fail or unknown, which is 1.
# TYPE gpudoctor_slurm_verdict gauge
gpudoctor_slurm_verdict{$mark,verdict="unknown"} 1
# HELP gpudoctor_slurm_timestamp_seconds When that Slurm hook ran last, Unix time.
# TYPE gpudoctor_slurm_timestamp_seconds gauge
gpudoctor_slurm_timestamp_seconds{$mark} $(date +%s)
EOF
  [ -z "$file" ] || rm -f -- "$file" # a full disk may have left a partial file
  return "$done"
}
