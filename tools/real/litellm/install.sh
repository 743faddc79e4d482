#!/bin/bash
# install.sh: the LiteLLM proxy in a cache folder, a Python gateway to measure against.
#
# What:  a virtual environment with exactly the pinned versions (prometheus-client is not among its own requirements but
#        its metrics need it). Prints the folder.
# Needs: bash, Python 3.10 or newer with venv, a Python package index on the first run only; 450 MB of disk.
# How:   install.sh          PYTHON=python3 chooses the interpreter
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
[ $# -eq 0 ] || usage
folder=$(cache litellm-1.80.17)
build() {
  venv "$1" "$here/requirements.txt"
  "$1/venv/bin/litellm" --version
}
install_once "$folder" "$(stamp "$here/requirements.txt")" build
echo "$folder"
