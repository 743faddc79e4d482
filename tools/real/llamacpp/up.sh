#!/bin/bash
# up.sh: starts llama.cpp's server on loopback with the small model and waits until it has loaded it.
#
# What:  one thread, because two on a busy two-core machine decode a hundred times slower than one. With EMBEDDINGS=1 it
#        serves /v1/embeddings (chat then answers badly: give embeddings a server of their own).
# Needs: bash, curl, what install.sh makes.
# How:   up.sh STATE_FOLDER PORT        CTX (8192, shared out over the slots), PARALLEL (4), ALIAS (smollm2-135m)
# Makes: STATE/pid, STATE/url, STATE/log; prints the url
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
[ $# -eq 2 ] || usage
mkdir -p "$1"
state=$(cd "$1" && pwd)
port=$2
url=http://127.0.0.1:$port
ready() { answers "$url/health"; }
if running "$state" && ready; then cat "$state/url"; exit 0; fi
if curl -s -m 2 -o /dev/null "$url"; then echo "up.sh: port $port is already served by another process" >&2; exit 1; fi
folder=$("$here/install.sh")
"$folder/venv/bin/python" "$here/../../llama_server.py" --model "$folder/model.gguf" --host 127.0.0.1 --port "$port" \
  --alias "${ALIAS:-smollm2-135m}" --ctx-size "${CTX:-8192}" --parallel "${PARALLEL:-4}" --threads 1 \
  ${EMBEDDINGS:+--embeddings} </dev/null >"$state/log" 2>&1 9>&- &
remember "$state" $!
echo "$url" >"$state/url"
wait_until 60 "$state" ready
echo "$url"
