#!/bin/bash
# up.sh: one real S3 server on loopback, with its data in the state folder; waits until it answers.
#
# What:  SERVER=versitygw (the default; its objects are plain files under STATE/data/BUCKET) or seaweedfs (takes PORT to
#        PORT+7). TLS=1 serves https with a certificate for 127.0.0.1, localhost, *.localhost and *.s3.localhost
#        (strict clients want three labels for a wildcard) from a test CA of the state folder's own. For versitygw only:
#        LIMIT=N answers 503 SlowDown to all above N requests at once, VIRTUAL_HOST=DOMAIN also takes BUCKET.DOMAIN as
#        the host, ACCESS_LOG=1 writes STATE/access.log. The bucket BUCKET is made. The keys are for tests and no secret.
# Needs: bash, curl, with TLS openssl, what install.sh makes.
# How:   up.sh STATE_FOLDER PORT
#        with SERVER, TLS, LIMIT, VIRTUAL_HOST, ACCESS_LOG, BUCKET (models), WAIT (60 seconds until it must answer)
# Makes: STATE/pid, STATE/url, STATE/env (what clients need, as shell assignments), STATE/data, STATE/tls/ca.pem,
#        STATE/log; prints the url
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
[ $# -eq 2 ] || usage
server=${SERVER:-versitygw} port=$2
case $server in versitygw | seaweedfs) ;; *) usage ;; esac
umask 077
mkdir -p "$1/data"
state=$(cd "$1" && pwd)
access=tidegate-test secret=tidegate-test-secret
scheme=http ca=
if [ "${TLS:-}" = 1 ]; then scheme=https ca=$state/tls/ca.pem; fi
url=$scheme://127.0.0.1:$port

# a root is answered only where the keys are known, so both say "refused" once they serve
ready() { [ "$(curl -s -o /dev/null -m 2 ${ca:+--cacert "$ca"} -w '%{http_code}' "$url/")" = 403 ]; }

make_bucket() {
  local status empty
  empty=$(sha256sum </dev/null | cut -d' ' -f1)
  status=$(curl -s -o /dev/null -m 20 ${ca:+--cacert "$ca"} -w '%{http_code}' --aws-sigv4 aws:amz:us-east-1:s3 \
    --user "$access:$secret" --header "x-amz-content-sha256: $empty" -X PUT "$url/${BUCKET:-models}")
  # 409: it is there, and ours
  case $status in 200 | 409) ;; *) echo "up.sh: the bucket cannot be made: status $status" >&2; return 1 ;; esac
}

make_certificates() {
  local tls=$state/tls
  if [ -s "$tls/done" ] && openssl x509 -checkend 3600 -noout -in "$tls/server.pem" >/dev/null; then return; fi
  mkdir -p "$tls"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$tls/ca.key" -out "$tls/ca.pem" -days 7 \
    -subj "/CN=test CA, trust it in tests only" -addext keyUsage=critical,keyCertSign,cRLSign 2>/dev/null
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$tls/server.key" -out "$tls/server.csr" \
    -subj /CN=localhost 2>/dev/null
  printf '%s\n' "subjectAltName=DNS:localhost,DNS:*.localhost,DNS:s3.localhost,DNS:*.s3.localhost,IP:127.0.0.1" basicConstraints=critical,CA:FALSE \
    keyUsage=critical,digitalSignature extendedKeyUsage=serverAuth >"$tls/extensions"
  openssl x509 -req -in "$tls/server.csr" -CA "$tls/ca.pem" -CAkey "$tls/ca.key" -CAcreateserial -days 7 \
    -extfile "$tls/extensions" -out "$tls/server.pem" 2>/dev/null
  echo yes >"$tls/done"
}

if running "$state"; then
  if [ "$(cat "$state/url")" = "$url" ] && ready; then echo "$url"; exit 0; fi
  echo "up.sh: another server runs on $state: down.sh $state first" >&2
  exit 1
fi
if curl -sk -m 2 -o /dev/null "$url"; then echo "up.sh: port $port is already served by another process" >&2; exit 1; fi
[ -z "$ca" ] || make_certificates

program=$("$here/install.sh" "$server")
environment=(HOME="$state" PATH="$PATH" LANG=C.UTF-8)
case $server in
  versitygw)
    mkdir -p "$state/iam" "$state/versions"
    environment+=(ROOT_ACCESS_KEY="$access" ROOT_SECRET_KEY="$secret")
    # --iam-dir: an unknown access key is answered 403 as elsewhere, not 404
    command=("$program" --port "127.0.0.1:$port" --keep-alive --quiet --iam-dir "$state/iam")
    [ -z "$ca" ] || command+=(--cert "$state/tls/server.pem" --key "$state/tls/server.key")
    [ -z "${LIMIT:-}" ] || command+=(--max-requests "$LIMIT")
    [ -z "${VIRTUAL_HOST:-}" ] || command+=(--virtual-domain "$VIRTUAL_HOST")
    [ "${ACCESS_LOG:-}" != 1 ] || command+=(--access-log "$state/access.log")
    command+=(posix --versioning-dir "$state/versions" "$state/data")
    ;;
  seaweedfs)
    printf '{"identities":[{"name":"test","credentials":[{"accessKey":"%s","secretKey":"%s"}],"actions":["Admin"]}]}' \
      "$access" "$secret" >"$state/identities.json"
    # telemetry is on by default; seven more ports, because one program is master, volume server, filer and gate
    command=("$program" -logtostderr=true server -dir="$state/data" -ip=127.0.0.1 -ip.bind=127.0.0.1
      -master.telemetry=false -master.volumeSizeLimitMB=512 -volume.max=0 -volume.preStopSeconds=0
      -master.port=$((port + 1)) -master.port.grpc=$((port + 2)) -volume.port=$((port + 3))
      -volume.port.grpc=$((port + 4)) -filer -filer.port=$((port + 5)) -filer.port.grpc=$((port + 6))
      -filer.localSocket="$state/filer.sock" -s3 -s3.port.grpc=$((port + 7)) -s3.config="$state/identities.json"
      -s3.localSocket="$state/s3.sock" -s3.port.iceberg=0 -s3.port.lance=0 -s3.port="$port")
    [ -z "$ca" ] || command+=(-s3.cert.file="$state/tls/server.pem" -s3.key.file="$state/tls/server.key")
    ;;
esac
cd "$state"
# exec: the pid is the server's own
(exec env -i "${environment[@]}" "${command[@]}") </dev/null >"$state/log" 2>&1 &
remember "$state" $!
echo "$url" >"$state/url"
printf '%s=%q\n' S3_ENDPOINT "$url" S3_CA "$ca" AWS_ACCESS_KEY_ID "$access" AWS_SECRET_ACCESS_KEY "$secret" \
  AWS_REGION us-east-1 >"$state/env"
if ! { wait_until "${WAIT:-60}" "$state" ready && make_bucket; }; then
  stop "$state" 3
  exit 1
fi
echo "$url"
