#!/bin/bash
# install.sh: nginx as Debian ships it, unpacked into a cache folder.
#
# What:  fetches Debian's package of the program and unpacks it, so that nothing is installed into the system and no
#        service is started. Prints the program.
# Needs: bash, apt-get and dpkg-deb, Debian's package lists (fetched when they are missing, which needs root); the
#        libraries libpcre2, libssl 3 and zlib, which every Debian system has. x86-64 or 64-bit ARM.
# How:   install.sh
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
[ $# -eq 0 ] || usage
folder=$(cache nginx-debian)

build() {
  cd "$1"
  # a list that is a few days old may name a version that the mirror no longer has
  if ! apt-get download -qq nginx; then
    apt-get update -qq
    apt-get download -qq nginx
  fi
  dpkg-deb --extract nginx_*.deb root
  rm nginx_*.deb
  ln -s root/usr/sbin/nginx nginx
  ./nginx -v
}
install_once "$folder" "$(uname -m)" build
echo "$folder/nginx"
