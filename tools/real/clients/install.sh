#!/bin/bash
# install.sh: the OpenAI and Anthropic Python libraries in a cache folder.
#
# What:  a virtual environment with exactly the pinned versions. Prints its Python.
# Needs: bash, Python 3.10 or newer with venv, a Python package index on the first run only; 60 MB of disk.
# How:   install.sh          PYTHON=python3 chooses the interpreter
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
[ $# -eq 0 ] || usage
folder=$(cache clients-openai3.57.0-anthropic2.14.0)
build() {
  venv "$1" "$here/requirements.txt"
  "$1/venv/bin/python" -c 'import openai, anthropic'
}
install_once "$folder" "$(stamp "$here/requirements.txt")" build
echo "$folder/venv/bin/python"
