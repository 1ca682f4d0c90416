#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Writers of one prefix: two at once, one that is killed and goes on, and a reader whose dataset is replaced. What is committed is whole.
. "$(dirname "$0")/common.sh"
new_bucket writers
new_proxy
"$BUILD/tests/data/mkjpegs" images 150 1
"$BUILD/tests/data/mkjpegs" others 150 2
larder ingest images d --quiet --shard-size 1MiB
hash=$(larder bench d --json | json_of /dev/stdin 'o[0]["data_hash"]')
data_of() { larder bench "$1" --json 2>/dev/null | json_of /dev/stdin 'o[0]["data_hash"]'; }
export LARDER_SCRATCH=$tmp/scratch

# two that make the same dataset: one wins, the other is told so
for round in 1 2 3; do
    uri=s3://$bucket/race$round
    rcs=()
    for i in 1 2; do
        (LARDER_SCRATCH=$tmp/scratch$i exec "$LARDER" ingest images "$uri" --quiet --shard-size 1MiB) >"$tmp/race$i" 2>&1 &
        pid[i]=$!
    done
    for i in 1 2; do rc=0; wait "${pid[i]}" || rc=$?; rcs+=("$rc"); done
    case ${rcs[*]} in
    '0 1' | '1 0') ;;
    *) cat "$tmp"/race?; fail "the writers ended with ${rcs[*]}" ;;
    esac
    is "lines of the loser" "$(cat "$tmp"/race? | wc -l)" 1
    ok larder verify "$uri" --quiet
    is data "$(data_of "$uri")" "$hash"
done
# two that append other things: both, one after the other, or one and a refusal
uri=s3://$bucket/race1
for i in 1 2; do
    mkdir -p "more$i/x"
    printf 'new %s' "$i" >"more$i/x/new$i.jpg"
    (LARDER_SCRATCH=$tmp/scratch$i exec "$LARDER" ingest "more$i" "$uri" --append --quiet) >"$tmp/race$i" 2>&1 &
    pid[i]=$!
done
won=0
for i in 1 2; do if wait "${pid[i]}"; then won=$((won + 1)); fi; done
[ "$won" -ge 1 ] || { cat "$tmp"/race?; fail "no writer won"; }
ok larder verify "$uri" --quiet
is samples "$(larder info "$uri" --json | json_of /dev/stdin 'o[0]["samples"], o[0]["generation"]')" "($((150 + won)), $((1 + won)))"

# killed at any moment, the same command goes on; nothing is visible before the end
uri=s3://$bucket/killed
faults latmin=10 latmax=30
for after in 0.05 0.2 0.35 0.5; do
    AWS_ENDPOINT_URL=$S3_PROXY "$LARDER" ingest images "$uri" --quiet --shard-size 1MiB >/dev/null 2>&1 &
    pid=$!
    sleep "$after"
    kill -KILL $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
    run larder info "$uri"
    if [ "$rc" -eq 0 ]; then break; fi
done
faults
if [ "$rc" -ne 0 ]; then ok larder ingest images "$uri" --quiet --shard-size 1MiB; fi
ok larder verify "$uri" --quiet
is data "$(data_of "$uri")" "$hash"
ok larder gc "$uri" --older-than 0s --quiet
is "unfinished uploads below it" "$("$PYTHON" "$root/tests/bucket/files.py" uploads "$bucket" | grep -c '^killed/' || true)" 0
ok larder verify "$uri" --quiet

# a copy that is killed goes on, too
faults latmin=5 latmax=10
for after in 0.1 0.3; do
    AWS_ENDPOINT_URL=$S3_PROXY "$LARDER" copy d "s3://$bucket/copied" --quiet --workers 1 >/dev/null 2>&1 &
    pid=$!
    sleep "$after"
    kill -KILL $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
done
faults
ok larder copy d "s3://$bucket/copied" --quiet
ok larder verify "s3://$bucket/copied" --quiet
is data "$(data_of "s3://$bucket/copied")" "$hash"

# replaced while it is read: an error that says so, or all of one of the two
larder ingest others d2 --quiet --shard-size 1MiB
other=$(larder bench d2 --json | json_of /dev/stdin 'o[0]["data_hash"]')
uri=s3://$bucket/replaced
ok larder copy d "$uri" --quiet
"$LARDER" bench "$uri" --json --epochs 6 --compute-ms 150 --batch-size 16 --staging 2MiB >"$tmp/bench.out" 2>"$tmp/bench" &
pid=$!
sleep 0.7
"$PYTHON" "$root/tests/bucket/files.py" list "$bucket" replaced | sed 's/ [0-9]*$//' | while read -r key; do s3_curl DELETE "$bucket/$key"; done
ok larder copy d2 "$uri" --quiet
rc=0
wait $pid || rc=$?
is "hashes seen" "$(json_of "$tmp/bench.out" "{l['data_hash'] for l in o} <= {'$hash', '$other'}")" True
if [ "$rc" -ne 0 ]; then has bench "^larder bench: s3://$bucket/replaced/.*(replaced|404)"; fi
is data "$(data_of "$uri")" "$other"

# the same names, other bytes: If-Match tells
ok larder copy d "s3://$bucket/rewritten" --quiet
"$PYTHON" "$root/tests/bucket/files.py" list "$bucket" rewritten | sed -n 's/ [0-9]*$//; /shards\//p' >"$tmp/shards"
"$LARDER" bench "s3://$bucket/rewritten" --json --epochs 6 --compute-ms 100 --batch-size 16 --staging 2MiB >"$tmp/bench.out" 2>"$tmp/bench" &
pid=$!
sleep 0.6
mkdir junk
while read -r key; do head -c 1200000 /dev/urandom >"junk/$(basename "$key")"; done <"$tmp/shards"
"$PYTHON" "$root/tests/bucket/files.py" put "$bucket" rewritten/shards junk
rc=0
wait $pid || rc=$?
[ "$rc" -ne 0 ] || fail "the rewritten dataset was read to its end"
is "hashes seen" "$(json_of "$tmp/bench.out" "{l['data_hash'] for l in o} <= {'$hash'}")" True
has bench "^larder bench: .*s3://$bucket/rewritten/shards/"
echo "test_writers: ok"
