#!/bin/bash
# install.sh: the AWS command line in a cache folder, the downloader that most people have.
#
# What:  a virtual environment with exactly the pinned versions. Prints the program.
# Needs: bash, Python 3.10 or newer with venv, a Python package index on the first run only; 180 MB of disk.
# How:   install.sh          PYTHON=python3 chooses the interpreter
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
[ $# -eq 0 ] || usage
folder=$(cache awscli-1.46.3)
build() {
  venv "$1" "$here/requirements.txt"
  "$1/venv/bin/aws" --version
}
install_once "$folder" "$(stamp "$here/requirements.txt")" build
echo "$folder/venv/bin/aws"
