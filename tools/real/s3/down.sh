#!/bin/bash
# down.sh: ends the process that up.sh started from this state folder, and nothing else.
# How:   down.sh STATE_FOLDER
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
[ $# -eq 1 ] || usage
# seaweedfs takes longer than is worth waiting to leave by itself
stop "$1" 3
