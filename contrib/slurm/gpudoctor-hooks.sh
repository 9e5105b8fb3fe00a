# shellcheck shell=bash
# What prolog, epilog and health check share; it is sourced. What they do is `gpudoctor slurm`: these lines see to it
# that nothing of the job's environment comes there, that it ends in time, and that a run without an answer is seen.

unset "${!GPUDOCTOR@}" "${!PYTHON@}" "${!LD_@}" XDG_CONFIG_HOME XDG_CACHE_HOME BASH_ENV ENV CUDA_VISIBLE_DEVICES
# Where gpudoctor is; without a file there, the one in PATH
GPUDOCTOR=/opt/gpudoctor/bin/gpudoctor
# slurmd gives its hooks no PATH, and the health check no SLURM_CONF either (set it in the file if yours is elsewhere)
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

# To stderr, which slurmd drops, to syslog, and to GPUDOCTOR_LOG; without either of them, to the state folder
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

# run_hook prolog|epilog|health SECONDS: fails if Slurm must not go on. The word of the answer must agree with its exit
# code: a Python that cannot start exits with 1, too.
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
  # one line, and not the end of the pipe: a child that hangs in the driver may keep that open
  read -r -t "$((limit + 5))" answer < <(exec timeout -k 2 "$limit" "$gpudoctor" slurm "$hook" </dev/null) || code=$?
  # above 128: nothing came in time, not even an end. What the kernel does not let go is not waited for
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

# Nothing is known of the node: seen in the logs and in the metric, and GPUDOCTOR_ON_ERROR decides about the job;
# GPUDOCTOR_ACTION=log stops none
no_verdict() {
  local folder=${GPUDOCTOR_TEXTFILE:-${GPUDOCTOR_STATE:-/run/gpudoctor}} file mark
  # one slurm.conf serves nodes without GPUs, too
  if [ -z "${SLURM_JOB_GPUS:-}${GPUDOCTOR_TRIAL:-}" ] && ! compgen -G '/dev/nvidia[0-9]*' >/dev/null &&
    ! grep -qsx 0x10de /sys/bus/pci/devices/*/vendor; then return 0; fi
  file=$folder/gpudoctor_slurm_$1.prom
  say "$1, job ${SLURM_JOB_ID:-none}: no verdict: $2"
  # nor may a prolog trust an earlier verdict, nor an undrain count this as one of its healthy checks
  rm -f -- "${GPUDOCTOR_STATE:-/run/gpudoctor}"/{verdict,undrain}.json
  mark="hook=\"$1\"${GPUDOCTOR_TRIAL:+,simulated=\"true\"}"
  # HELP and TYPE as `gpudoctor slurm` writes them: node_exporter drops one of two files that differ in them
  mkdir -p "$folder" && cat >"$file.$$" <<EOF && mv -f "$file.$$" "$file"
# HELP gpudoctor_slurm_verdict What a Slurm hook found last: pass, warn, fail or unknown, which is 1.
# TYPE gpudoctor_slurm_verdict gauge
gpudoctor_slurm_verdict{$mark,verdict="unknown"} 1
# HELP gpudoctor_slurm_timestamp_seconds When that Slurm hook ran last, Unix time.
# TYPE gpudoctor_slurm_timestamp_seconds gauge
gpudoctor_slurm_timestamp_seconds{$mark} $(date +%s)
EOF
  rm -f -- "$file.$$" # a full disk has left a part
  [ "${GPUDOCTOR_ON_ERROR:-run}" != hold ] || [ "${GPUDOCTOR_ACTION:-drain}" = log ]
}
