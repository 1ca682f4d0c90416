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
echo "test_examples: ok"
