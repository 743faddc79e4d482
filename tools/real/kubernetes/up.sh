#!/bin/bash
# up.sh: a real Kubernetes control plane on loopback, with its data in the state folder; waits until it answers.
#
# What:  etcd and kube-apiserver with RBAC, and where asked for kube-controller-manager and kube-scheduler. There is no
#        kubelet: a test plays it. Takes PORT for the API server and the two after it for etcd. Called again it starts
#        what does not run, with the same data, keys and ports. The keys are for tests and no secret.
# Needs: bash, curl, openssl, what install.sh makes; 60 + 280 MB of memory, 120 MB more for the controllers and 90 MB for
#        the scheduler. Ready in 5 s, with controllers in 10 s.
# How:   up.sh STATE_FOLDER PORT
#        with CONTROLLERS=1, SCHEDULER=1, WAIT (120 seconds until each must answer), APISERVER_FLAGS (split at blanks),
#        WITH_PID (a process: when it is gone, all is ended and the state folder removed)
# Makes: STATE/kubeconfig (an administrator's), STATE/url, and for each program a folder with its pid file and log;
#        prints the url
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
[ $# -eq 2 ] || usage
port=$2
# a name of its own: functions of lib.sh have a `state`, and what they call sees it
umask 077
mkdir -p "$1/tls"
home=$(cd "$1" && pwd)
url=https://127.0.0.1:$port etcd=http://127.0.0.1:$((port + 1)) peer=http://127.0.0.1:$((port + 2))
programs=$("$here/install.sh")

# launch NAME READY COMMAND…: unless it runs; waits until READY.
launch() {
  local name=$1 ready=$2
  shift 2
  if running "$home/$name"; then return 0; fi
  mkdir -p "$home/$name"
  (cd "$home/$name" && exec "$@") </dev/null >"$home/$name/log" 2>&1 &
  remember "$home/$name" $!
  wait_until "${WAIT:-120}" "$home/$name" "$ready" || fail
}

# Nothing of this call stays behind when one of them fails.
fail() {
  "$here/down.sh" "$home"
  exit 1
}

token() { awk -F, -v user="$1" '$2 == user { print $1 }' "$home/tokens.csv"; }

ask() { curl -sf -m 5 -o /dev/null --cacert "$home/tls/apiserver.crt" -H "Authorization: Bearer $(token admin)" "$url$1"; }

kubeconfig() { # USER
  cat <<KUBECONFIG
apiVersion: v1
kind: Config
current-context: test
clusters:
- name: test
  cluster:
    server: $url
    certificate-authority-data: $(base64 -w0 "$home/tls/apiserver.crt")
contexts:
- name: test
  context: {cluster: test, user: $1}
users:
- name: $1
  user: {token: $(token "$1")}
KUBECONFIG
}

etcd_ready() { answers "$etcd/health"; }
# the namespace follows /readyz by a moment
apiserver_ready() { ask /readyz && ask /api/v1/namespaces/default; }
controllers_ready() { ask /api/v1/namespaces/default/serviceaccounts/default; }
scheduler_ready() { true; }

if [ -s "$home/url" ] && [ "$(cat "$home/url")" != "$url" ]; then
  echo "up.sh: $home was made for $(cat "$home/url")" >&2
  exit 1
fi
for taken in "$port" $((port + 1)) $((port + 2)); do
  if ! running "$home/etcd" && ! running "$home/apiserver" && (: <>"/dev/tcp/127.0.0.1/$taken") 2>/dev/null; then
    echo "up.sh: port $taken is already served by another process" >&2
    exit 1
  fi
done
if [ ! -s "$home/tokens.csv" ]; then
  for user in 'admin,admin,"system:masters"' system:kube-controller-manager,controllers system:kube-scheduler,scheduler; do
    echo "$(openssl rand -hex 16),$user"
  done >"$home/tokens.csv"
  openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out "$home/service-account.key" 2>/dev/null
  openssl pkey -in "$home/service-account.key" -pubout -out "$home/service-account.pub"
fi
echo "$url" >"$home/url"

launch etcd etcd_ready "$programs/etcd" --name=main --data-dir="$home/etcd/data" --unsafe-no-fsync --log-level=warn \
  --listen-client-urls="$etcd" --advertise-client-urls="$etcd" --listen-peer-urls="$peer" \
  --initial-advertise-peer-urls="$peer" --initial-cluster="main=$peer"
# nobody makes the ServiceAccount "default" without the controllers, and the admission refuses Pods without one
admission=(--disable-admission-plugins=ServiceAccount)
[ "${CONTROLLERS:-}" != 1 ] || admission=()
# shellcheck disable=SC2086
launch apiserver apiserver_ready "$programs/localkube" kube-apiserver --etcd-servers="$etcd" --bind-address=127.0.0.1 \
  --advertise-address=127.0.0.1 --secure-port="$port" --cert-dir="$home/tls" --token-auth-file="$home/tokens.csv" \
  --authorization-mode=RBAC --allow-privileged=true --service-account-issuer=https://kubernetes.default.svc \
  --service-account-key-file="$home/service-account.pub" --service-account-signing-key-file="$home/service-account.key" \
  --service-cluster-ip-range=10.0.0.0/24 --endpoint-reconciler-type=none "${admission[@]}" ${APISERVER_FLAGS:-}
kubeconfig admin >"$home/kubeconfig"
if [ "${CONTROLLERS:-}" = 1 ]; then
  kubeconfig system:kube-controller-manager >"$home/controllers.kubeconfig"
  launch controllers controllers_ready "$programs/localkube" kube-controller-manager \
    --kubeconfig="$home/controllers.kubeconfig" --leader-elect=false --secure-port=0 \
    --use-service-account-credentials=true --service-account-private-key-file="$home/service-account.key" \
    --root-ca-file="$home/tls/apiserver.crt" ${CONTROLLERS_FLAGS:-}
fi
if [ "${SCHEDULER:-}" = 1 ]; then
  kubeconfig system:kube-scheduler >"$home/scheduler.kubeconfig"
  launch scheduler scheduler_ready "$programs/localkube" kube-scheduler --kubeconfig="$home/scheduler.kubeconfig" \
    --leader-elect=false --secure-port=0
fi
if [ -n "${WITH_PID:-}" ]; then
  setsid bash -c 'tail --pid="$1" -f /dev/null; "$2/down.sh" "$3"; rm -rf "$3"' _ "$WITH_PID" "$here" "$home" \
    </dev/null >/dev/null 2>&1 &
fi
echo "$url"
