# shellcheck shell=bash
# Sourced by prolog, epilog and health check. The work is done by `gpudoctor slurm`; these lines make sure that nothing
# from the job's environment reaches it, that it ends in time, and that a run without an answer is noticed.

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
export "${!GPUDOCTOR@}" SLURMD_NODENAME
if [ -n "${SLURM_CONF:-}" ]; then export SLURM_CONF; fi

# Log to stderr (which slurmd drops), to syslog, and to GPUDOCTOR_LOG; without the last two, to the state folder
say() {
  local file=${GPUDOCTOR_LOG:-}
  printf 'gpudoctor: %s: %s\n' "$node" "$1" >&2
  if [ -S /dev/log ]; then
    logger -p daemon.warning -t gpudoctor -- "$node: $1" || true
  else
    file=${file:-${GPUDOCTOR_STATE:-/run/gpudoctor}/log}
  fi
  if [ -n "$file" ] && mkdir -p "${file%/*}"; then
    printf '[%(%Y-%m-%dT%H:%M:%S)T] gpudoctor: %s: %s\n' -1 "$node" "$1" >>"$file"
  fi
}

# run_hook prolog|epilog|health SECONDS: fails if Slurm must not go on. The answer's first words must agree with the
# exit code, since a Python that cannot start also exits with 1.
run_hook() {
  local hook=$1 limit=$2 gpudoctor=$GPUDOCTOR answer='' code=0
  if [ -n "$settings_error" ]; then
    no_verdict "$hook" "$settings_error"
    return
  fi
  if [ ! -x "$gpudoctor" ] && ! gpudoctor=$(command -v gpudoctor); then
    no_verdict "$hook" "no gpudoctor at $GPUDOCTOR nor in PATH: set GPUDOCTOR in /etc/default/gpudoctor"
    return
  fi
  # read one line, not until the end of the pipe: a child that hangs in the driver may keep it open
  read -r -t "$((limit + 5))" answer < <(exec timeout -k 2 "$limit" "$gpudoctor" slurm "$hook" </dev/null) || code=$?
  # above 128: read timed out. Do not wait for a process that may be stuck in the kernel
  if [ "$code" -le 128 ]; then
    wait "$!"
    code=$?
  fi
  case "$code $answer" in
    "0 go on: "*) return 0 ;;
    "1 refuse: "*) return 1 ;;
    124* | 137* | 14[23]*) no_verdict "$hook" "no answer in $limit s" ;;
    *) no_verdict "$hook" "gpudoctor slurm $hook ended with exit code $code${answer:+: $answer}" ;;
  esac
}

# There is no verdict on the node: show it in the logs and the metric. GPUDOCTOR_ON_ERROR decides about the job;
# GPUDOCTOR_ACTION=log lets every job start
no_verdict() {
  local folder=${GPUDOCTOR_TEXTFILE:-${GPUDOCTOR_STATE:-/run/gpudoctor}} file mark
  # a slurm.conf is shared with nodes that have no GPU
  if [ -z "${SLURM_JOB_GPUS:-}${GPUDOCTOR_TRIAL:-}" ] && ! compgen -G '/dev/nvidia[0-9]*' >/dev/null &&
    ! grep -qsx 0x10de /sys/bus/pci/devices/*/vendor; then return 0; fi
  file=$folder/gpudoctor_slurm_$1.prom
  say "$1, job ${SLURM_JOB_ID:-none}: no verdict: $2"
  # no prolog may trust an earlier verdict, and the count of healthy checks starts again
  rm -f -- "${GPUDOCTOR_STATE:-/run/gpudoctor}"/{verdict,undrain}.json
  mark="hook=\"$1\"${GPUDOCTOR_TRIAL:+,simulated=\"true\"}"
  # same HELP and TYPE as `gpudoctor slurm` writes: node_exporter drops one of two files that differ in them
  mkdir -p "$folder" && cat >"$file.$$" <<EOF && mv -f "$file.$$" "$file"
# HELP gpudoctor_slurm_verdict What a Slurm hook found last: pass, warn, fail or unknown, which is 1.
# TYPE gpudoctor_slurm_verdict gauge
gpudoctor_slurm_verdict{$mark,verdict="unknown"} 1
# HELP gpudoctor_slurm_timestamp_seconds When that Slurm hook ran last, Unix time.
# TYPE gpudoctor_slurm_timestamp_seconds gauge
gpudoctor_slurm_timestamp_seconds{$mark} $(date +%s)
EOF
  rm -f -- "$file.$$" # a full disk may have left a partial file
  [ "${GPUDOCTOR_ON_ERROR:-run}" != hold ] || [ "${GPUDOCTOR_ACTION:-drain}" = log ]
}
