#!/bin/bash
# install.sh: sglang-router in a cache folder, a Rust router to measure against.
#
# What:  a virtual environment with exactly the pinned versions. Prints the folder.
# Needs: bash, Python 3.10 or newer with venv, a Python package index on the first run only; 110 MB of disk.
# How:   install.sh          PYTHON=python3 chooses the interpreter
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
[ $# -eq 0 ] || usage
folder=$(cache sglang-router-0.3.2)
build() {
  venv "$1" "$here/requirements.txt"
  "$1/venv/bin/python" -c 'import sglang_router'
}
install_once "$folder" "$(stamp "$here/requirements.txt")" build
echo "$folder"
