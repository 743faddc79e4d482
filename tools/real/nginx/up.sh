#!/bin/bash
# up.sh: nginx as a plain reverse proxy on loopback, in front of one upstream.
#
# What:  proxy_pass with upstream keep-alive and without buffering, access log off: the least that a proxy can do, and so
#        the measure of cost. WORKERS (2) workers.
# Needs: bash, curl, what install.sh makes.
# How:   up.sh STATE_FOLDER PORT UPSTREAM_HOST:PORT
# Makes: STATE/pid, STATE/url, STATE/nginx.conf, STATE/log; prints the url
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
[ $# -eq 3 ] || usage
mkdir -p "$1/tmp"
state=$(cd "$1" && pwd)
url=http://127.0.0.1:$2
ready() { curl -s -m 2 -o /dev/null "$url"; }
if running "$state" && ready; then cat "$state/url"; exit 0; fi
if ready; then echo "up.sh: port $2 is already served by another process" >&2; exit 1; fi
cat >"$state/nginx.conf" <<CONF
daemon off;
pid $state/nginx.pid;
error_log stderr;
worker_processes ${WORKERS:-2};
worker_rlimit_nofile $(ulimit -n);
events { worker_connections 16384; }
http {
  access_log off;
  client_body_temp_path $state/tmp/body;
  proxy_temp_path $state/tmp/proxy;
  fastcgi_temp_path $state/tmp/fastcgi;
  uwsgi_temp_path $state/tmp/uwsgi;
  scgi_temp_path $state/tmp/scgi;
  keepalive_requests 1000000000;
  keepalive_timeout 600s;
  tcp_nodelay on;
  upstream engine {
    server $3;
    keepalive 1024;
    keepalive_requests 1000000000;
  }
  server {
    listen 127.0.0.1:$2 backlog=4096;
    client_max_body_size 32m;
    location / {
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }
  }
}
CONF
"$("$here/install.sh")" -p "$state" -c "$state/nginx.conf" </dev/null >"$state/log" 2>&1 &
remember "$state" $!
echo "$url" >"$state/url"
wait_until 10 "$state" ready
echo "$url"
