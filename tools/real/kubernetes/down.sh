#!/bin/bash
# down.sh: ends the processes that up.sh started from this state folder, and nothing else. Data, keys and ports stay.
# How:   down.sh STATE_FOLDER [etcd|apiserver|controllers|scheduler …]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
[ $# -ge 1 ] || usage
state=$1
shift
[ $# -gt 0 ] || set -- scheduler controllers apiserver etcd
for name in "$@"; do
  # an API server with an open watch takes a minute to leave by itself; nothing here is worth that
  [ ! -d "$state/$name" ] || stop "$state/$name" 0 2>/dev/null
done
