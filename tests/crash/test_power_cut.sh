#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_power_cut.sh - the power goes at random moments during ingest, append, repair and gc, on ext4 and on xfs.
#
# A loop-mounted file system is shut down as xfs_io's shutdown does it: what was not on the device is gone. After mounting
# it again every generation that was there before the cut, or whose command had ended, opens and verifies; nothing half-written
# can be seen; and the same command, run again, ends with the samples of a run that nobody disturbed.
# POWER_SEED repeats the moments, POWER_SECONDS (16) is the time for all of it. Skipped where it cannot run.
set -u
PATH=$PATH:/usr/sbin:/sbin
larder=${LARDER:?path of the larder program}
seed=${POWER_SEED:-$((($(date +%s) % 32768)))}
seconds=${POWER_SECONDS:-16}
RANDOM=$seed

skip() { echo "$1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "cutting the power of a file system needs root"
for c in losetup mkfs.ext4 xfs_io mount; do
    command -v $c >/dev/null || skip "no $c here (apt-get install xfsprogs e2fsprogs util-linux)"
done

top=$(mktemp -d "${TMPDIR:-/tmp}/larder-power-XXXXXX")
mnt=$top/mnt
mkdir "$mnt"
cleanup() {
    local p
    p=$(jobs -p) && [ -n "$p" ] && kill -9 $p 2>/dev/null && wait 2>/dev/null
    umount "$mnt" 2>/dev/null || umount -l "$mnt" 2>/dev/null
    rm -rf --one-file-system "$top"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP

die() {
    echo "test_power_cut: POWER_SEED=$seed, $fs: $*"
    [ ! -s "$top/out" ] || { echo "the command said:"; tail -n 5 "$top/out"; }
    ls -lR "$mnt/d" 2>/dev/null | tail -n 30
    exit 1
}
fs=none
quiet() { "$larder" "$@" >"$top/quiet" 2>&1 || { cat "$top/quiet"; die "larder $* failed"; }; }

# Keys in order and the bytes of all samples.
digest() {
    "$larder" ls "$1" | sha256sum | cut -c1-16
    "$larder" bench "$1" --shuffle none --json | sed 's/.*"samples": *\([0-9]*\).*"data_hash": *\("[^"]*"\|[0-9]*\).*/\1 \2/'
}

# ---- what an undisturbed run gives, made beside the file systems that will be cut

args=(--shard-size 64k --fields data:bytes --workers 2 --quiet)
make_files() { # folder, first, last
    local i
    for ((i = $2; i <= $3; i++)); do
        mkdir -p "$1/$((i % 3))"
        seq "$i" $((i + 500 + i * 37 % 900)) >"$1/$((i % 3))/$i.bin"
    done
}
make_files "$top/src" 1 160
make_files "$top/more" 1001 1080
quiet ingest "$top/src" "$top/first" "${args[@]}"
cp -a "$top/first" "$top/both"
quiet ingest "$top/more" "$top/both" --append "${args[@]}"
cp -a "$top/both" "$top/hurt"
read -r _ shard _ offset _ < <("$larder" ls "$top/hurt" --long | sed -n 7p)
printf 'x' | dd of="$top/hurt/shards/$shard" bs=1 seek=$((offset + 40)) conv=notrunc status=none
cp -a "$top/hurt" "$top/mended"
quiet repair "$top/mended"
cp -a "$top/both" "$top/clean"
quiet gc "$top/clean" --older-than 0
echo stray >"$top/both/shards/0123456789abcdef-000000"
want_first=$(digest "$top/first") want_both=$(digest "$top/both") want_mended=$(digest "$top/mended")
[ "$want_first" != "$want_both" ] && [ "$want_both" != "$want_mended" ] || die "the digests do not tell datasets apart"

# ---- cutting

attach() { mount -o loop "$top/$fs.img" "$mnt"; }

make_fs() {
    rm -f "$top/$fs.img"
    truncate -s 320M "$top/$fs.img"
    case $fs in
    ext4) mkfs.ext4 -q -F "$top/ext4.img" ;;
    xfs) mkfs.xfs -q -f "$top/xfs.img" ;;
    esac >"$top/mkfs" 2>&1 && attach 2>>"$top/mkfs"
}

# Runs larder with the arguments and cuts the power after $1 ms; sets ended: it had ended well before that.
cut_during() {
    local ms=$1 pid
    shift
    "$larder" "$@" >"$top/out" 2>&1 &
    pid=$!
    sleep "$((ms / 1000)).$(printf %03d $((ms % 1000)))"
    xfs_io -x -c shutdown "$mnt" >"$top/xfs_io" 2>&1 || die "shutdown: $(cat "$top/xfs_io")"
    wait $pid
    ended=$?
    umount "$mnt" || { sleep 0.5 && umount "$mnt"; } || die "umount"
    attach || die "mount after the cut"
    cuts=$((cuts + 1))
    [ $ended = 0 ] || met=$((met + 1))
}

# Every generation that can be seen, from $whole on, is whole, and generation $1 and those before it (0: none) are there.
check() {
    local m g newest=0
    for m in "$mnt"/d/manifests/*.json; do
        [ -e "$m" ] || continue
        g=$(basename "$m" .json)
        [ "$g" -gt "$newest" ] && newest=$g
        [ "$g" -lt "$whole" ] || quiet verify "$mnt/d" --generation "$g"
    done
    [ "$newest" -ge "$1" ] || die "generation $1 was committed and is gone (newest: $newest)"
    [ "$newest" = 0 ] || quiet info "$mnt/d"
    echo "$newest" >"$top/newest"
}

start() { # copy of; "" for nothing
    rm -rf "$mnt/d"
    [ -z "$1" ] || cp -a "$1" "$mnt/d"
    sync -f "$mnt"
}

# $1 operation, $2 what the dataset is before it, $3 its newest generation, $4 after it, $5 digest wanted in the end; then the command
power() {
    local what=$1 from=$2 before=$3 after=$4 want=$5 whole=1 took i
    shift 5
    [ "$what" != repair ] || whole=$after # those before it are what it repairs
    start "$from"
    took=$(date +%s%N)
    quiet "$@"
    took=$((($(date +%s%N) - took) / 1000000))
    start "$from"
    for ((i = 0; i < 3; i++)); do
        cut_during $((RANDOM % (took + took / 4 + 2))) "$@"
        check $((ended == 0 ? after : before))
        [ "$(cat "$top/newest")" -lt "$after" ] || [ "$what" = gc ] || break
        [ "$before" = 0 ] || [ "$(cat "$top/newest")" != "$before" ] || [ "$what" != append ] ||
            [ "$(digest "$mnt/d")" = "$want_first" ] || die "append: the generation before it changed"
    done
    if [ "$(cat "$top/newest")" -lt "$after" ] || [ "$what" = gc ]; then
        quiet "$@"
    fi
    check "$after"
    quiet verify "$mnt/d"
    [ "$(digest "$mnt/d")" = "$want" ] || die "$what: run again it gives another dataset"
    if [ "$what" = gc ]; then
        diff <(cd "$mnt/d" && find . -type f | sort) <(cd "$top/clean" && find . -type f | sort) >"$top/out" || die "gc: files differ"
    fi
}

done_fs=
for fs in ext4 xfs; do
    cuts=0 met=0 rounds=0
    command -v mkfs.$fs >/dev/null && make_fs || { echo "$fs: $(tail -n 1 "$top/mkfs" 2>/dev/null)"; continue; }
    if ! xfs_io -x -c shutdown "$mnt" >"$top/xfs_io" 2>&1; then
        echo "$fs cannot be shut down here: $(cat "$top/xfs_io")"
        umount "$mnt"
        continue
    fi
    umount "$mnt" && attach || die "mount"
    end=$((SECONDS + seconds / 2))
    while [ $SECONDS -lt $end ]; do
        power ingest "" 0 1 "$want_first" ingest "$top/src" "$mnt/d" "${args[@]}"
        power append "$top/first" 1 2 "$want_both" ingest "$top/more" "$mnt/d" --append "${args[@]}"
        power repair "$top/hurt" 2 3 "$want_mended" repair "$mnt/d"
        power gc "$top/both" 2 2 "$want_both" gc "$mnt/d" --older-than 0
        rounds=$((rounds + 1))
    done
    umount "$mnt" || die "umount"
    echo "$fs: $cuts cuts, $met of them while the command ran"
    done_fs+=" $fs"
done
[ -n "$done_fs" ] || skip "no file system could be mounted and cut here"
echo "test_power_cut:$done_fs ok (POWER_SEED=$seed)"
