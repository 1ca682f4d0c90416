#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The examples of tests/examples over a small dataset.
set -eu # yes ends by SIGPIPE
fail() { echo "test_examples: $*"; exit 1; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
ex=$BUILD/tests/examples

mkdir -p "$tmp/src/cat" "$tmp/src/dog"
for i in 1 2 3 4 5; do
    yes "cat $i" | head -c $((i * 1000)) >"$tmp/src/cat/$i.bin"
    yes "dog $i" | head -c $((i * 500)) >"$tmp/src/dog/$i.bin"
done
"$LARDER" ingest "$tmp/src" "$tmp/ds" >/dev/null 2>"$tmp/err" || fail "ingest: $(cat "$tmp/err")"

"$ex/train_loop" "$tmp/ds" 3 >"$tmp/out" || fail "train_loop failed"
[ "$(grep -c ': 10 samples, 22580 bytes$' "$tmp/out")" = 3 ] || fail "train_loop: $(cat "$tmp/out")" # labels: 8 bytes each
! "$ex/train_loop" "$tmp/none" 3 2>"$tmp/out" || fail "train_loop reads what is not there"
grep -q 'no dataset here' "$tmp/out" || fail "train_loop: $(cat "$tmp/out")"

"$ex/kv_reader" "$tmp/ds" cat/3 dog/9 dog/5 >"$tmp/out" || fail "kv_reader failed"
sed -i 's/@[0-9]*/@N/' "$tmp/out"
printf '%s\n' 'dog/9: not there' '@N: 3000 bytes in the first field' '@N: 2500 bytes in the first field' | diff - "$tmp/out" ||
    fail "kv_reader prints other things"
# images and labels, in one go, and in pieces: the sums of the pieces are those of the whole
"$BUILD/tests/data/mkjpegs" "$tmp/photos" 100 >/dev/null
"$LARDER" ingest "$tmp/photos" "$tmp/images" >/dev/null 2>"$tmp/err" || fail "ingest: $(cat "$tmp/err")"
[ "$(wc -l <"$(dirname "$0")/../examples/train_images.c")" -le 40 ] || fail "train_images.c has more than 40 lines"
"$ex/train_images" "$tmp/images" 3 "$tmp/state" >"$tmp/whole" || fail "train_images failed"
[ "$(grep -c '^epoch [012]: loss -\?[0-9.]*$' "$tmp/whole")" = 3 ] || fail "train_images: $(cat "$tmp/whole")"
[ "$(sort -u -k4 "$tmp/whole" | wc -l)" = 3 ] || fail "three epochs have the same crops: $(cat "$tmp/whole")"
"$ex/train_images" "$tmp/images" 3 "$tmp/state" >"$tmp/out" || fail "train_images does not end at the end"
[ ! -s "$tmp/out" ] || fail "train_images goes on behind the end"
for steps in 2 3 5 100; do
    "$ex/train_images" "$tmp/images" 3 "$tmp/pieces.state" $steps >>"$tmp/pieces" || fail "train_images failed after $steps steps"
done
sums() { awk '{sum[$2] += $4} END {for (e = 0; e < 3; e++) printf "%.2f\n", sum[e ":"]}' "$1"; }
sums "$tmp/whole" | diff - <(sums "$tmp/pieces") || fail "a run in pieces sees other pixels"
! "$ex/train_images" "$tmp/ds" 1 "$tmp/other" 2>"$tmp/out" || fail "train_images finds images where there are none"
grep -q "no field 'image'\|field image\|'image'" "$tmp/out" || fail "train_images: $(cat "$tmp/out")"
echo "test_examples: ok"
