#!/bin/bash
# up.sh: the LiteLLM proxy on loopback in front of one upstream, one worker, with a master key and no database.
#
# What:  each of MODELS is answered by the upstream under its own name; telemetry is off; the key is sk-bench-master.
# Needs: bash, curl, what install.sh makes.
# How:   up.sh STATE_FOLDER PORT UPSTREAM_HOST:PORT        MODELS ("mock mock-paced")
# Makes: STATE/pid, STATE/url, STATE/config.yaml, STATE/log; prints the url
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
[ $# -eq 3 ] || usage
mkdir -p "$1"
state=$(cd "$1" && pwd)
url=http://127.0.0.1:$2
ready() { answers "$url/health/liveliness"; }
if running "$state" && ready; then cat "$state/url"; exit 0; fi
if curl -s -m 2 -o /dev/null "$url"; then echo "up.sh: port $2 is already served by another process" >&2; exit 1; fi
folder=$("$here/install.sh")
{
  echo "model_list:"
  for model in ${MODELS:-mock mock-paced}; do
    echo "  - model_name: $model"
    echo "    litellm_params: {model: openai/$model, api_base: \"http://$3/v1\", api_key: none}"
  done
  echo "litellm_settings: {telemetry: false, num_retries: 0}"
  echo "general_settings: {master_key: sk-bench-master}"
} >"$state/config.yaml"
cd "$state"
LITELLM_LOG=ERROR LITELLM_LOCAL_MODEL_COST_MAP=True "$folder/venv/bin/litellm" --config "$state/config.yaml" \
  --host 127.0.0.1 --port "$2" --num_workers 1 --telemetry False </dev/null >"$state/log" 2>&1 &
remember "$state" $!
echo "$url" >"$state/url"
wait_until 90 "$state" ready
echo "$url"
