#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# server.sh - the servers of the bucket tests, on loopback and on free ports.
#
#   server.sh start DIR [PID]   Ceph radosgw, and what "proxy" starts, with their state in the new folder DIR
#   server.sh proxy DIR [PID]   nginx alone: the fault proxy in front of $S3_ENDPOINT, and a web server
#   server.sh swift DIR [PID]   OpenStack Swift with its s3api: $SWIFT_ENDPOINT, $SWIFT_KEY and $SWIFT_SECRET are the credentials
#   server.sh stop DIR          ends what was started with DIR and removes DIR
#   server.sh have ceph|nginx|boto3|swift   status 0: installed; else says which Debian packages are missing
#
# start, proxy and swift print lines for eval and return when the servers answer:
#
#   eval "$(tests/bucket/server.sh start /tmp/x $$)"
#
#   S3_ENDPOINT           radosgw. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION go with it
#   S3_PROXY, S3_PROXY_TLS   the same through the fault proxy (proxy.lua tells its faults), in clear and with TLS
#   S3_CA                 certificate of S3_PROXY_TLS
#   WEB, WEB_PROXY        plain nginx serving the folder $WEB_ROOT, directly and through the fault proxy
#   S3_PROXY_DIR          DIR of the proxy
#
# The daemons are children of a keeper, which ends them all and removes DIR when the process PID has ended (default: never), when
# SERVER_SECONDS (7200) are over, or at stop. Should the keeper be killed, the kernel kills the daemons (PR_SET_PDEATHSIG), so
# nothing outlives a suite, however it ends. SERVER_STORE=bluestore keeps objects in a sparse file instead of memory.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHON=${PYTHON:-/usr/bin/python3}
lua_modules=/usr/lib/nginx/modules
export PATH=$PATH:/usr/sbin:/sbin

fail() { echo "server.sh: $*" >&2; exit 1; }

have() {
    case $1 in
    ceph) command -v radosgw ceph-mon ceph-osd ceph-authtool monmaptool ceph >/dev/null ||
        { echo "no radosgw, ceph-mon or ceph-osd: make deps-check"; return 1; } ;;
    nginx) [ -e $lua_modules/ngx_http_lua_module.so ] && command -v nginx >/dev/null ||
        { echo "no nginx-light or libnginx-mod-http-lua: make deps-check"; return 1; } ;;
    boto3) "$PYTHON" -c 'import boto3' 2>/dev/null || { echo "no python3-boto3: make deps-check"; return 1; } ;;
    swift) "$PYTHON" -c 'import swift' 2>/dev/null || { echo "no python3-swift: make deps-check"; return 1; } ;;
    *) fail "have $1: ceph, nginx, boto3 or swift" ;;
    esac
}

# Below the range of outgoing connections, so that none of those takes a port between here and the server's bind().
free_ports() {
    "$PYTHON" - "$1" <<'PY'
import random, socket, sys
held = []
while len(held) < int(sys.argv[1]):
    s = socket.socket()
    try:
        s.bind(("127.0.0.1", random.randrange(10000, 32000)))
        held.append(s)
    except OSError:
        pass
print(*[s.getsockname()[1] for s in held])
PY
}

# A daemon: dies with the keeper; its output goes to a log.
daemon() {
    local name=$1
    shift
    setpriv --pdeathsig KILL "$@" >"$dir/log/$name.out" 2>&1 </dev/null &
    pids+=($!)
    echo $! >"$dir/$name.pid"
}

# wait_for SECONDS COMMAND... with the daemon that was started last alive
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        kill -0 "${pids[-1]}" 2>/dev/null || fail "a server ended: $(tail -n 3 "$dir"/log/*.out | tr '\n' ' ')"
        [ $SECONDS -lt $end ] || fail "'$*' did not succeed in time; logs: $dir/log"
        sleep 0.05
    done
}

# ---------------------------------------------------------------------------------------------- Ceph

ceph_conf() {
    cat >"$dir/ceph.conf" <<CONF
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon_host = [v2:127.0.0.1:$mon_port]
ms_bind_msgr1 = false
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
ms_cluster_mode = crc
ms_service_mode = crc
ms_client_mode = crc
auth_allow_insecure_global_id_reclaim = false
keyring = $dir/keyring
run_dir = $dir/run
admin_socket =
log_file = $dir/log/\$name.log
crash_dir = $dir/log
log_to_stderr = false
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
mon_data_avail_crit = 1
mon_data_avail_warn = 2
mon_max_pg_per_osd = 1000
mon_cluster_log_file =
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
debug_rgw = 0/0
debug_osd = 0/0
debug_mon = 0/0
debug_ms = 0/0
debug_bluestore = 0/0
debug_rocksdb = 0/0
debug_paxos = 0/0
log_max_recent = 100
paxos_propose_interval = 0.05
mon_osd_min_up_ratio = 0
[mon.a]
mon_data = $dir/mon
[osd.0]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
osd_data = $dir/osd
osd_objectstore = ${SERVER_STORE:-memstore}
memstore_device_bytes = 8G
bluestore_block_size = $((20 << 30))
osd_memory_target = 1073741824
crush_location = root=default host=localhost
osd_op_num_shards = 2
[client.rgw]
rgw_frontends = beast endpoint=127.0.0.1:$rgw_port tcp_nodelay=1
rgw_data = $dir/rgw
rgw_enable_usage_log = false
rgw_enable_ops_log = false
rgw_thread_pool_size = 64
rgw_dynamic_resharding = false
rgw_gc_obj_min_wait = 60
CONF
}

start_ceph() {
    local mon_port rgw_port c="-c $dir/ceph.conf"
    have ceph >&2
    read -r mon_port rgw_port < <(free_ports 2)
    mkdir -p "$dir"/{mon,osd,rgw,run}
    ceph_conf
    ceph-authtool -C "$dir/keyring" --gen-key -n mon. --cap mon 'allow *' >/dev/null
    for who in client.admin osd.0 client.rgw; do
        ceph-authtool "$dir/keyring" --gen-key -n $who --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *' >/dev/null
    done
    monmaptool --create --fsid "$(sed -n 's/^fsid = //p' "$dir/ceph.conf")" --addv a "[v2:127.0.0.1:$mon_port]" \
        "$dir/monmap" >/dev/null
    ceph-mon $c --mkfs -i a --monmap "$dir/monmap" --keyring "$dir/keyring"
    daemon mon ceph-mon $c -i a -f
    wait_for 60 timeout 5 ceph $c --connect-timeout 2 quorum_status
    uuid=$(cat /proc/sys/kernel/random/uuid)
    ceph $c osd new "$uuid" >/dev/null
    ceph-osd $c -i 0 --mkfs --osd-uuid "$uuid" >"$dir/log/mkfs.out" 2>&1
    daemon osd ceph-osd $c -i 0 -f
    daemon rgw radosgw $c -n client.rgw -f
    wait_for 120 curl -s -o /dev/null "http://127.0.0.1:$rgw_port/"
    radosgw-admin $c -n client.rgw user create --uid=test --display-name=test --access-key=AKIATESTACCESSKEY001 \
        --secret-key=testsecretkeytestsecretkeytestsecretkey0 >"$dir/log/user.out" 2>&1
    S3_ENDPOINT=http://127.0.0.1:$rgw_port
    cat >"$dir/env" <<ENV
export S3_ENDPOINT=$S3_ENDPOINT AWS_ACCESS_KEY_ID=AKIATESTACCESSKEY001
export AWS_SECRET_ACCESS_KEY=testsecretkeytestsecretkeytestsecretkey0
export AWS_REGION=us-east-1 AWS_DEFAULT_REGION=us-east-1 AWS_EC2_METADATA_DISABLED=true
ENV
}

# --------------------------------------------------------------------------------------------- nginx

start_nginx() {
    local proxy tls web web_proxy
    have nginx >&2
    read -r proxy tls web web_proxy < <(free_ports 4)
    mkdir -p "$dir"/{tmp,www}
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=localhost \
        -addext 'subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:*.localhost' -keyout "$dir/key.pem" -out "$dir/ca.pem" 2>"$dir/log/tls.out"
    cp "$here/proxy.lua" "$dir/proxy.lua"
    sed -e "s|@S3@|${S3_ENDPOINT#http://}|; s|@PROXY@|$proxy|; s|@TLS@|$tls|; s|@WEB@|$web|; s|@WEB_PROXY@|$web_proxy|" \
        -e "s|@USER@|$(id -un)|" "$here/nginx.conf" >"$dir/nginx.conf"
    daemon nginx nginx -p "$dir" -c nginx.conf -e "$dir/log/nginx.log"
    wait_for 30 curl -s -o /dev/null "http://127.0.0.1:$web/"
    cat >>"$dir/env" <<ENV
export S3_PROXY=http://127.0.0.1:$proxy S3_PROXY_TLS=https://127.0.0.1:$tls S3_CA=$dir/ca.pem S3_PROXY_DIR=$dir
export WEB=http://127.0.0.1:$web WEB_PROXY=http://127.0.0.1:$web_proxy WEB_ROOT=$dir/www
ENV
}

# --------------------------------------------------------------------------------------------- Swift

start_swift() {
    local proxy account container object
    have swift >&2
    read -r proxy account container object < <(free_ports 4)
    export PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1
    "$PYTHON" "$here/openstack.py" setup "$dir" "$proxy" "$account" "$container" "$object"
    for kind in account container object proxy; do daemon $kind "$PYTHON" "$here/openstack.py" serve "$dir" $kind; done
    wait_for 120 curl -sf -o /dev/null "http://127.0.0.1:$proxy/info"
    for port in $account $container $object; do wait_for 60 curl -s -o /dev/null "http://127.0.0.1:$port/"; done
    echo "export SWIFT_ENDPOINT=http://127.0.0.1:$proxy SWIFT_KEY=test:tester SWIFT_SECRET=testsecret" >"$dir/env"
}

# -------------------------------------------------------------------------------------------- keeper

# keep WHAT OWNER: runs in a session of its own until it is told to stop or the owner has gone.
keep() {
    local what=$1 owner=$2 end
    pids=() # not local: the trap reads it
    trap 'exit 0' TERM INT HUP
    trap 'for p in "${pids[@]}"; do kill -KILL "$p" 2>/dev/null; done; wait
        rm -rf --one-file-system "$dir" || rm -rf --one-file-system "$dir"' EXIT
    case $what in
    start)
        start_ceph
        start_nginx
        echo "export S3_SERVER=$dir" >>"$dir/env"
        ;;
    proxy) start_nginx ;;
    swift) start_swift ;;
    esac
    mv "$dir/env" "$dir/ready"
    end=$((SECONDS + ${SERVER_SECONDS:-7200}))
    # A sleep that a signal ends; the owner is looked at once a second.
    while [ $SECONDS -lt $end ] && { [ "$owner" -eq 0 ] || alive "$owner"; } && [ -d "$dir" ]; do
        sleep 1 &
        wait $!
    done
}

# Zombies are no longer alive.
alive() { [ -e "/proc/$1/status" ] && ! grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null; }

start() {
    local keeper end=$((SECONDS + 240))
    mkdir "$dir" || fail "$dir is there already, or cannot be made"
    mkdir "$dir/log"
    : >"$dir/log/keeper.out"
    setsid "$BASH" "$here/server.sh" keep "$dir" "$1" "$2" >"$dir/log/keeper.out" 2>&1 </dev/null &
    keeper=$!
    echo $keeper >"$dir/keeper.pid"
    exec 3<"$dir/log/keeper.out" # the folder goes away with the keeper
    while [ ! -e "$dir/ready" ]; do
        alive $keeper || fail "the servers did not start: $(tail -n 3 <&3 | tr '\n' ' ')"
        [ $SECONDS -lt $end ] || { kill $keeper; fail "the servers did not start in 240 s"; }
        sleep 0.05
    done
    cat "$dir/ready"
}

stop() {
    local keeper
    keeper=$(cat "$dir/keeper.pid" 2>/dev/null) || return 0
    grep -qs server.sh "/proc/$keeper/cmdline" && kill "$keeper" 2>/dev/null
    for _ in $(seq 1200); do # who waits for a busy disk dies late
        [ -d "$dir" ] || return 0
        sleep 0.05
    done
    fail "$dir is still there"
}

[ $# -ge 2 ] || fail "usage: server.sh start|proxy|swift DIR [PID] | stop DIR | have WHAT"
[ "$1" != have ] || { have "$2"; exit; }
case $2 in /*) dir=$2 ;; *) dir=$PWD/$2 ;; esac
case $1 in
start | proxy | swift) start "$1" "${3:-0}" ;;
keep) keep "$3" "$4" ;;
stop) stop ;;
*) fail "unknown command $1" ;;
esac
