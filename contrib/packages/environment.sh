#!/bin/sh
# environment.sh FOLDER PIP-ARGUMENTS...: installs into the virtual environment FOLDER, and makes it if it is not there.
# What hinders it is said in one line, with the way out; pip's own output is shown only if the cause is none of these.
# TORCH_INDEX, if set, is one more index of packages. PYTHON makes the environment.
set -u
folder=$1
shift
python=${PYTHON:-python3}
fail() {
  echo "gpudoctor: $1" >&2
  exit 1
}

hindered() {
  case $(cat "$log") in
    *"No space left"*) fail "the disk of $PWD is full ($(df -Pk . | { read -r _; read -r _ _ _ left _; echo $((left / 1024)); }) MB free): free some, or make clean" ;;
    *ensurepip* | *"No module named venv"* | *"No module named pip"*) fail "$python has no venv or pip: apt-get install python3-venv (dnf install python3-pip), and again" ;;
    *"NewConnectionError"* | *"name resolution"* | *"Connection refused"* | *"Network is unreachable"* | *"ConnectTimeout"* | *"ProxyError"*)
      fail "no package index answers: connect this machine, or set PIP_INDEX_URL or PIP_FIND_LINKS to a copy (docs/install.md)" ;;
  esac
  cat "$log" >&2
  fail "$1 did not work: see above"
}

command -v "$python" >/dev/null || fail "no $python here: apt-get install python3-venv, or make PYTHON=/path/to/python3.12"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  fail "Python 3.10 or newer is needed, $python is $("$python" -c 'import sys; print(sys.version.split()[0])'): make PYTHON=python3.12"
log=$(mktemp) || fail "the disk of ${TMPDIR:-/tmp} is full: free some, or set TMPDIR"
trap 'rm -f "$log"' EXIT
if ! [ -x "$folder/bin/pip" ]; then
  shared=
  if "$python" -c 'import sys, importlib.util as u; sys.exit(u.find_spec("torch") is None)'; then
    echo "gpudoctor: the PyTorch of $python is used, none is fetched" # that of a GPU node's image, for example
    shared=--system-site-packages
  fi
  # shellcheck disable=SC2086  # no word or one
  "$python" -m venv $shared "$folder" >"$log" 2>&1 || hindered "$python -m venv $folder"
fi
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$@" \
  >"$log" 2>&1 || hindered "pip install"
