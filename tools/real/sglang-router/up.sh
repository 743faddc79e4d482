#!/bin/bash
# up.sh: sglang-router on loopback in front of one upstream.
#
# What:  round robin over one worker, health checks, retries and breaker off: nothing that a single upstream could use.
# Needs: bash, curl, what install.sh makes; the upstream answers 200 on /health.
# How:   up.sh STATE_FOLDER PORT UPSTREAM_HOST:PORT        its metrics take PORT+1
# Makes: STATE/pid, STATE/url, STATE/log; prints the url
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
[ $# -eq 3 ] || usage
mkdir -p "$1"
state=$(cd "$1" && pwd)
url=http://127.0.0.1:$2
ready() { answers "$url/health"; }
if running "$state" && ready; then cat "$state/url"; exit 0; fi
if curl -s -m 2 -o /dev/null "$url"; then echo "up.sh: port $2 is already served by another process" >&2; exit 1; fi
folder=$("$here/install.sh")
"$folder/venv/bin/python" -m sglang_router.launch_router --host 127.0.0.1 --port "$2" --worker-urls "http://$3" \
  --policy round_robin --prometheus-host 127.0.0.1 --prometheus-port $(($2 + 1)) --log-level warn \
  --disable-health-check --disable-retries --disable-circuit-breaker --max-concurrent-requests 20000 \
  </dev/null >"$state/log" 2>&1 &
remember "$state" $!
echo "$url" >"$state/url"
wait_until 60 "$state" ready
echo "$url"
