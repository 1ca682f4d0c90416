#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_device.sh - real errors and slowness of a disk below the NVMe tier and below the origin, while a training runs.
#
# A disk is an ext4 on a loop device on a file that nbdfuse shows and nbdkit serves from memory; nbdkit's filters let reads
# or writes fail from the moment that a file appears, or come late, or slowly from then on. All of it lives in a mount namespace of its own, so that nothing is
# left however this ends. In all cases but errors of the origin itself the training goes on, and delivers the right bytes.
PATH=$PATH:/usr/sbin:/sbin
skip() { echo "$1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "disks that fail need root"
for c in nbdkit nbdfuse losetup mkfs.ext4 unshare setpriv; do
    command -v $c >/dev/null || skip "no $c here (apt-get install nbdkit libnbd-bin e2fsprogs util-linux)"
done
[ -c /dev/fuse ] || skip "no /dev/fuse here"
[ -c /dev/loop-control ] || skip "no loop devices here"
if [ -z "${LARDER_DEVICE_NS:-}" ]; then
    unshare --mount --propagation private true 2>/dev/null || skip "no mount namespace may be made here"
    LARDER_DEVICE_NS=1 exec unshare --mount --propagation private bash "$0"
fi

. "$(dirname "$0")/../e2e/common.sh"
cleanup() {
    local m p
    set +e
    trap - ERR
    for p in $(jobs -p); do kill -9 "$p" 2>/dev/null; done
    for m in "$tmp"/disk-*; do drop_disk "${m##*/disk-}"; done
    cd /
    rm -rf --one-file-system "$tmp"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP

# disk NAME SIZE [NBDKIT-ARGUMENT...]: $tmp/disk-NAME/mnt; touch its fail-reads or fail-writes and such calls fail;
# bits a second in its rate make it slow.
disk() {
    local d=$tmp/disk-$1 size=$2 i loop
    shift 2
    mkdir -p "$d/fuse" "$d/mnt"
    setpriv --pdeathsig KILL nbdkit -f -U "$d/socket" --filter=error --filter=delay --filter=rate memory "$size" error=EIO \
        error-pread-rate=100% error-pread-file="$d/fail-reads" error-pwrite-rate=100% error-pwrite-file="$d/fail-writes" rate-file="$d/rate" "$@" \
        >"$d/nbdkit.log" 2>&1 &
    echo $! >"$d/nbdkit.pid"
    disown
    for ((i = 0; i < 100; i++)); do [ -S "$d/socket" ] && break; sleep 0.1; done
    setpriv --pdeathsig KILL nbdfuse "$d/fuse/disk" --unix "$d/socket" >"$d/nbdfuse.log" 2>&1 &
    echo $! >"$d/nbdfuse.pid"
    disown
    for ((i = 0; i < 100; i++)); do [ -f "$d/fuse/disk" ] && break; sleep 0.1; done
    [ -f "$d/fuse/disk" ] || skip "nbdfuse shows no disk: $(tail -n 1 "$d/nbdfuse.log")"
    loop=$(losetup -f --show --direct-io=on "$d/fuse/disk" 2>"$d/losetup.log") || skip "no loop device: $(cat "$d/losetup.log")"
    # Without a journal a failed write is the file's own affair.
    mkfs.ext4 -q -O ^has_journal "$loop" >"$d/mkfs.log" 2>&1 && mount -o errors=remount-ro "$loop" "$d/mnt" 2>"$d/mount.log" || {
        losetup -d "$loop"
        skip "a file system on $loop cannot be used: $(cat "$d/mkfs.log" "$d/mount.log")"
    }
    losetup -d "$loop" # when it is unmounted
    echo "$loop" >"$d/loop"
}
drop_disk() { # and whatever it is doing
    umount -l "$tmp/disk-$1/mnt" 2>/dev/null || true
    kill -9 "$(cat "$tmp/disk-$1/nbdkit.pid")" 2>/dev/null || true
    umount -l "$tmp/disk-$1/fuse" 2>/dev/null || true
    kill -9 "$(cat "$tmp/disk-$1/nbdfuse.pid")" 2>/dev/null || true
}

# ---- a dataset, and a training of it that takes some seconds and fetches little ahead

"$PYTHON" - <<'PY'
import os, random
random.seed(2)
os.makedirs("src")
for i in range(1000):
    with open(f"src/{i:04}.bin", "wb") as f:
        f.write(random.randbytes(20000 + i % 7 * 500))
PY
ok larder ingest src d --fields data:bytes --shard-size 4MB --quiet
ok larder bench d --json
data=$(json_of "$tmp/out" 'o[0]["data_hash"]')
slow_training=(--json --staging 2MB --batch-size 25 --compute-ms 5)
limit=120 # seconds for what should take a few

train() { # DATASET ARGUMENT...: in the background
    : >"$tmp/train.out"
    timeout "$limit" "$LARDER" bench "$@" "${slow_training[@]}" >"$tmp/train.out" 2>"$tmp/train.err" </dev/null &
    trainer=$!
}
epochs_done() { # N: at least
    local i
    for ((i = 0; i < limit * 20; i++)); do
        [ "$(wc -l <"$tmp/train.out")" -ge "$1" ] && return
        [ -d "/proc/$trainer" ] || break
        sleep 0.05
    done
    [ "$(wc -l <"$tmp/train.out")" -lt "$1" ] || return 0 # it has just ended
    cat "$tmp/train.out" "$tmp/train.err"
    fail "$what: the training ended, or did not come to epoch $1"
}
trained() { # STATUS: it has ended so, and what it delivered was right
    local rc=0
    wait "$trainer" || rc=$?
    if grep -qE 'ERROR: (Address|Leak|Thread)Sanitizer|runtime error:' "$tmp/train.err"; then cat "$tmp/train.err"; fail "$what: a sanitizer complains"; fi
    [ "$rc" = "$1" ] || { cat "$tmp/train.out" "$tmp/train.err"; fail "$what: exit status $rc, not $1"; }
    is "$what: data" "$(json_of "$tmp/train.out" '{l["data_hash"] for l in o} - {"'"$data"'"}')" "set()"
    is "$what: samples" "$(json_of "$tmp/train.out" '{l["samples"] for l in o} - {1000}')" "set()"
}
warned() { grep -qE -- "^larder bench: warning: $1" "$tmp/train.err" || { cat "$tmp/train.err"; fail "$what: no warning /$1/"; }; }
nothing_else() { # than warnings, and lines of progress when it takes long
    ! grep -vE '^(larder bench: warning: |bench [0-9,]+/1,000 )' "$tmp/train.err" || fail "$what: more than warnings"
}
hits() { json_of "$tmp/train.out" "[l['tiers']['$1']['hits'] for l in o]"; }

what="read errors under NVMe"
disk a 96M
nv=$tmp/disk-a/mnt/cache
ok larder bench d --nvme "$nv:48MB" --json
train d --nvme "$nv:48MB" --epochs 20
epochs_done 2
touch "$tmp/disk-a/fail-reads"
epochs_done 5
rm "$tmp/disk-a/fail-reads"
trained 0
is "$what: hits" "$(json_of "$tmp/train.out" "o[0]['tiers']['nvme']['hits'], o[-1]['tiers']['origin']['hits']")" "(1000, 1000)"
warned "$nv: [0-9]+ reads failed one after the other: the cache is passed by"
nothing_else
ok larder bench d --nvme "$nv:48MB" --json --epochs 2 # it is well again, and filled as it was or anew
is "$what: data" "$(json_of "$tmp/out" 'o[1]["data_hash"], o[1]["tiers"]["nvme"]["hits"] > 900')" "('$data', True)"

what="some read errors under NVMe"
disk b 96M error-pread-rate=2%
nv=$tmp/disk-b/mnt/cache
ok larder bench d --nvme "$nv:48MB" --json
train d --nvme "$nv:48MB" --epochs 6 --metrics "$tmp/metrics"
epochs_done 1
touch "$tmp/disk-b/fail-reads"
trained 0
nothing_else
healed=$(sed -n 's/^larder_cache_healed_total{cache=".*",tier="nvme"} //p' "$tmp/metrics")
origin=$(json_of "$tmp/train.out" "sum(l['tiers']['origin']['hits'] for l in o)")
[ "$healed" -gt 0 ] && [ "$healed" -le "$origin" ] && [ "$origin" -lt 1000 ] || fail "$what: $healed healed, $origin from the origin"
drop_disk b

what="write errors under NVMe"
disk c 96M
nv=$tmp/disk-c/mnt/cache
train d --nvme "$nv:48MB" --epochs 4
for ((i = 0; i < 400; i++)); do compgen -G "$nv/seg-*" >/dev/null && break; sleep 0.02; done
touch "$tmp/disk-c/fail-writes"
trained 0
warned "$nv"
nothing_else
is "$what: the origin goes on" "$(json_of "$tmp/train.out" "o[-1]['tiers']['origin']['hits'] > 0")" True
rm "$tmp/disk-c/fail-writes"
run larder bench d --nvme "$nv:48MB" --json --epochs 2
rc_is 0
is "$what: data" "$(json_of "$tmp/out" 'o[1]["data_hash"]')" "$data"
drop_disk c

what="a disk under NVMe that can only be read"
mount -o remount,ro "$tmp/disk-a/mnt"
train d --nvme "$tmp/disk-a/mnt/cache:48MB" --epochs 1
trained 0
warned "$tmp/disk-a/mnt/cache"
train d --nvme "$tmp/disk-a/mnt/new:48MB" --epochs 1
trained 0
warned "$tmp/disk-a/mnt/new"
nothing_else
drop_disk a

what="a disk under NVMe that becomes read-only"
disk e 96M
nv=$tmp/disk-e/mnt/cache
trigger=/sys/fs/ext4/$(basename "$(cat "$tmp/disk-e/loop")")/trigger_fs_error
if [ -w "$trigger" ]; then
    train d --nvme "$nv:48MB" --epochs 4
    for ((i = 0; i < 400; i++)); do compgen -G "$nv/seg-*" >/dev/null && break; sleep 0.02; done
    echo larder-test >"$trigger"
    trained 0
    nothing_else
    ! touch "$tmp/disk-e/mnt/x" 2>/dev/null || fail "$what: it did not"
fi
drop_disk e

what="a disk under NVMe that is unmounted"
disk f 96M
nv=$tmp/disk-f/mnt/cache
train d --nvme "$nv:48MB" --epochs 20
epochs_done 1
umount -l "$tmp/disk-f/mnt" # what is open stays
epochs_done 3
kill -9 "$(cat "$tmp/disk-f/nbdkit.pid")" # and now it is gone
trained 0
warned "$nv"
nothing_else
drop_disk f

what="a disk under NVMe that vanishes while it is filled"
disk g 96M
nv=$tmp/disk-g/mnt/cache
train d --nvme "$nv:48MB" --epochs 4
for ((i = 0; i < 400; i++)); do compgen -G "$nv/seg-*" >/dev/null && break; sleep 0.02; done
kill -9 "$(cat "$tmp/disk-g/nbdkit.pid")"
trained 0
warned "$nv"
nothing_else
drop_disk g

what="a full disk under NVMe"
disk h 16M
train d --nvme "$tmp/disk-h/mnt/cache:48MB" --epochs 3
trained 0
is "$what: some fit" "$(json_of "$tmp/train.out" "0 < o[-1]['tiers']['nvme']['hits'] < 1000")" True
nothing_else
drop_disk h

what="a slow disk under NVMe"
disk i 96M delay-read=10ms delay-write=10ms
start=$SECONDS
train d --nvme "$tmp/disk-i/mnt/cache:48MB" --epochs 2
trained 0
nothing_else
[ $((SECONDS - start)) -lt 90 ] || fail "$what: $((SECONDS - start)) s"
drop_disk i

what="a disk under NVMe whose writes take 150 ms"
disk j 96M delay-write=150ms
start=$SECONDS
train d --nvme "$tmp/disk-j/mnt/cache:48MB" --epochs 2
trained 0
nothing_else
[ $((SECONDS - start)) -lt 90 ] || fail "$what: $((SECONDS - start)) s"
drop_disk j

what="a disk under NVMe that becomes very slow"
disk k 96M
train d --nvme "$tmp/disk-k/mnt/cache:48MB" --epochs 40
epochs_done 2
echo 4M >"$tmp/disk-k/rate" # 20 records a second
start=$SECONDS
trained 0
warned "$tmp/disk-k/mnt/cache: its disk answers later than the dataset itself: it was passed by for a while"
nothing_else
is "$what: the origin steps in" "$(json_of "$tmp/train.out" "sum(l['tiers']['origin']['hits'] for l in o) > 10000 and sorted(l['seconds'] for l in o)[20] < 3")" True
[ $((SECONDS - start)) -lt 90 ] || fail "$what: $((SECONDS - start)) s"
drop_disk k

what="read errors of the origin"
disk o 96M
mkdir "$tmp/disk-o/mnt/x"
cp -r d "$tmp/disk-o/mnt/x/d"
sync -f "$tmp/disk-o/mnt/x"
d=$tmp/disk-o/mnt/x/d
train "$d" --direct on --epochs 100
epochs_done 2
touch "$tmp/disk-o/fail-reads"
start=$SECONDS
trained 1
[ $((SECONDS - start)) -lt 60 ] || fail "$what: $((SECONDS - start)) s"
grep -qE '^larder bench: reading [0-9]+ bytes of shard [0-9a-f]{16}-[0-9]{6} at offset [0-9]+; .*: Input/output error' "$tmp/train.err" || {
    cat "$tmp/train.err"
    fail "$what: the message"
}
is "$what: one line" "$(wc -l <"$tmp/train.err")" 1
rm "$tmp/disk-o/fail-reads"
train "$d" --direct on --epochs 20 --dram 64MB --cache-name "device-$$" # what memory holds needs no disk
epochs_done 2
touch "$tmp/disk-o/fail-reads"
trained 0
nothing_else
is "$what: all from memory" "$(json_of "$tmp/train.out" "o[0]['tiers']['origin']['hits'], sum(l['tiers']['dram']['hits'] for l in o)")" "(1000, 19000)"
rm "$tmp/disk-o/fail-reads"
ok larder verify "$d" --quiet
drop_disk o

what="a slow origin"
disk p 96M delay-read=10ms
mkdir "$tmp/disk-p/mnt/x"
cp -r d "$tmp/disk-p/mnt/x/d"
sync -f "$tmp/disk-p/mnt/x"
train "$tmp/disk-p/mnt/x/d" --direct on --epochs 2 --dram 64MB --cache-name "device-$$-p"
trained 0
nothing_else
is "$what: hits" "$(hits dram)" "[0, 1000]"
drop_disk p
echo "test_device: ok"
