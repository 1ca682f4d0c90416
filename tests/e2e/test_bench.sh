#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ingest, verify, three shuffled epochs: N samples an epoch, three orders, one data_hash, whatever reads and batches.
. "$(dirname "$0")/common.sh"
"$PYTHON" - <<'PY'
import os, hashlib
for i in range(500):
    os.makedirs(f"src/{i % 5}", exist_ok=True)
    with open(f"src/{i % 5}/{i}.bin", "wb") as f:
        f.write((hashlib.sha256(b"%d" % i).digest() * 200)[: 37 * (i % 150)])
PY
ok larder ingest src d --fields data:bytes --shard-size 200k --quiet
ok larder verify d
sed -i -E 's/[0-9.]+ [kM]B/SIZE/; s/[0-9]+ shards/SHARDS/' "$tmp/out"
out_is "verified generation 1: SHARDS, 500 samples, SIZE; all is well"

ok larder bench d --epochs 3 --shuffle full --image raw --json --batch-size 64
lines_are_json "$tmp/out"
cp "$tmp/out" "$tmp/epochs"
is epochs "$(json_of "$tmp/epochs" '[(l["epoch"], l["samples"], l["batches"]) for l in o]')" "[(0, 500, 8), (1, 500, 8), (2, 500, 8)]"
is orders "$(json_of "$tmp/epochs" 'len({l["order_hash"] for l in o})')" 3
is data "$(json_of "$tmp/epochs" 'len({l["data_hash"] for l in o})')" 1
is hashes "$(json_of "$tmp/epochs" 'all(len(l[k]) == 16 for l in o for k in ("order_hash", "data_hash"))')" True
is members "$(json_of "$tmp/epochs" 'list(o[0])')" \
    "['epoch', 'samples', 'batches', 'seconds', 'samples_per_s', 'bytes', 'fetch_stall_s', 'prep_stall_s', 'bad', 'order_hash', 'data_hash', 'tiers']"
is tiers "$(json_of "$tmp/epochs" 'o[0]["tiers"]["origin"]["hits"], o[0]["tiers"]["origin"]["misses"], list(o[0]["tiers"]["origin"])')" \
    "(500, 0, ['hits', 'misses', 'bytes', 'requests'])"
want=$(("$(find src -type f -printf '%s+')" 500 * 8))
is bytes "$(json_of "$tmp/epochs" '{l["bytes"] for l in o}')" "{$want}"
data=$(json_of "$tmp/epochs" 'o[0]["data_hash"]')
orders=$(json_of "$tmp/epochs" '[l["order_hash"] for l in o]')

again() { # the same orders and data with other options
    run "$@"
    rc_is 0
    is "orders of $*" "$(json_of "$tmp/out" '[l["order_hash"] for l in o]')" "$orders"
    is "data of $*" "$(json_of "$tmp/out" '{l["data_hash"] for l in o}')" "{'$data'}"
}
again env LARDER_NO_URING=1 "$LARDER" bench d --epochs 3 --json
again larder bench d --epochs 3 --json --batch-size 7 --queue-depth 1
again larder bench d --epochs 3 --json --direct on
again larder bench d --epochs 3 --json --direct off --staging 1MiB --batch-size 16
ok larder bench d --shuffle none --json
is data "$(json_of "$tmp/out" 'o[0]["data_hash"]')" "$data"
ok larder bench d --seed 5 --json
is data "$(json_of "$tmp/out" 'o[0]["data_hash"]')" "$data"
[ "$(json_of "$tmp/out" 'o[0]["order_hash"]')" != "$(json_of "$tmp/epochs" 'o[0]["order_hash"]')" ] || fail "seed 5 has the order of seed 0"

# ranks: together each sample once an epoch, and the data of all is the data of one
ok larder bench d --shuffle block --block 10 --window 3 --json
is data "$(json_of "$tmp/out" 'o[0]["data_hash"]')" "$data"
run larder bench d --shuffle block --block 1 --window 2 --json
rc_is 0
is data "$(json_of "$tmp/out" 'o[0]["data_hash"]')" "$data"
has err '^larder bench: warning: .* classes'
for rank in 0 1 2; do
    ok larder bench d --world 3 --rank $rank --batch-size 7 --last short --epochs 2 --json
    cat "$tmp/out"
done >"$tmp/ranks"
is "data of three ranks" "$(json_of "$tmp/ranks" '[format(sum(int(l["data_hash"], 16) for l in o if l["epoch"] == e) % 2**64, "016x") for e in (0, 1)]')" \
    "['$data', '$data']"
is "batches of three ranks" "$(json_of "$tmp/ranks" 'len({l["batches"] for l in o})')" 1
ok larder bench d --epoch-size 100 --epochs 5 --json
is "samples of short epochs" "$(json_of "$tmp/out" '{l["samples"] for l in o}')" '{100}'
run larder bench d --world 2 --rank 2
rc_is 1
has err 'rank 2 of 2'

# which samples: names in files, weights, splits; the parts make up the whole
ok larder ls d --json
json_of "$tmp/out" '"\n".join(l["key"] for l in o)' >"$tmp/keys"
(sed -n 1,200p "$tmp/keys"; echo) >"$tmp/some"
(seq -f '@%.0f' 200 350; sed -n '352,$p' "$tmp/keys") >"$tmp/others"
sum_of() { json_of "$1" 'format(sum(int(l["data_hash"], 16) for l in o) % 2**64, "016x")'; }
for part in some others; do
    ok larder bench d --filter "$tmp/$part" --json
    cat "$tmp/out"
done >"$tmp/parts"
is "samples of both filters" "$(json_of "$tmp/parts" '[l["samples"] for l in o]')" "[200, 300]"
is "data of both filters" "$(sum_of "$tmp/parts")" "$data"
ok larder bench d --order "$tmp/others" --shuffle none --json --batch-size 9
is "samples of an order" "$(json_of "$tmp/out" '[l["samples"] for l in o]')" "[300]"
is "data of an order" "$(json_of "$tmp/out" 'o[0]["data_hash"]')" "$(json_of "$tmp/parts" 'o[1]["data_hash"]')"
for part in 0:0.3 0.3:0.8 0.8:1; do
    ok larder bench d --split $part --split-seed 7 --json
    cat "$tmp/out"
done >"$tmp/parts"
is "samples of the splits" "$(json_of "$tmp/parts" 'sum(l["samples"] for l in o), all(0.7 < l["samples"] / (500 * s) < 1.3 for l, s in zip(o, (0.3, 0.5, 0.2)))')" "(500, True)"
is "data of the splits" "$(sum_of "$tmp/parts")" "$data"
("$PYTHON" -c 'for i in range(500): print(1 if i == 17 else 0)') >"$tmp/weights"
ok larder bench d --weights "$tmp/weights" --json
cp "$tmp/out" "$tmp/weighted"
echo @17 >"$tmp/one"
ok larder bench d --filter "$tmp/one" --json
is "data of one weight" "$(json_of "$tmp/weighted" 'o[0]["data_hash"]')" \
    "$(json_of "$tmp/out" 'format(int(o[0]["data_hash"], 16) * 500 % 2**64, "016x")')"
names() { # WHAT LINES...: what a wrong file is answered
    local want=$1
    shift
    printf '%s\n' "$@" >"$tmp/names"
    run larder bench d --filter "$tmp/names"
    rc_is 1
    err_is "larder bench: TMP/names: $want"
}
names "line 3: 'no key' is no key of the dataset; 'larder ls' lists the keys" @1 @2 'no key'
names "line 1: '@500' is beyond the samples of the dataset" @500
names "line 2: '@x' is not @ORDINAL; a key that begins with '@' is written with one more" @1 @x
names "line 1: '@@x' is no key of the dataset; 'larder ls' lists the keys" @@@x
head -499 "$tmp/weights" >"$tmp/short"
run larder bench d --weights "$tmp/short"
rc_is 1
err_is "larder bench: TMP/short: 499 lines, not 500: one for each sample is needed"
run larder bench d --weights "$tmp/some"
rc_is 1
has err "line 1: .* is no weight"
run larder bench d --order "$tmp/nowhere"
rc_is 1
err_is "larder bench: TMP/nowhere: No such file or directory"

# mixes: by size all of both, whatever the ranks; by weight their shares; a state goes on
"$PYTHON" - <<'PY'
import os
for i in range(60):
    os.makedirs(f"src2/{i % 3}", exist_ok=True)
    with open(f"src2/{i % 3}/more{i}.bin", "wb") as f:
        f.write(b"%d" % i * 50)
PY
ok larder ingest src2 d2 --fields data:bytes --quiet
ok larder bench d --mix d2 --json --epochs 2
cp "$tmp/out" "$tmp/mixed"
is "samples of a mix" "$(json_of "$tmp/mixed" '[l["samples"] for l in o]')" "[560, 560]"
is "data of a mix" "$(json_of "$tmp/mixed" 'len({l["data_hash"] for l in o})')" 1
for rank in 0 1 2; do
    ok larder bench d --mix d2 --world 3 --rank $rank --batch-size 7 --last short --json
    cat "$tmp/out"
done >"$tmp/ranks"
is "data of a mix's ranks" "$(sum_of "$tmp/ranks")" "$(json_of "$tmp/mixed" 'o[0]["data_hash"]')"
ok larder bench d --mix-weight 3 --mix d2:1 --mix-stop --json
is "samples until the first is exhausted" "$(json_of "$tmp/out" '239 <= o[0]["samples"] <= 241')" True
ok larder bench d --mix-weight 3 --mix d2:1 --epoch-size 400 --json
cp "$tmp/out" "$tmp/mixed"
ok larder bench d --mix-weight 3 --mix d2:1 --epoch-size 400 --batch-size 30 --batches 5 --state "$tmp/mix-state" --json
cp "$tmp/out" "$tmp/pieces"
ok larder bench d --mix-weight 3 --mix d2:1 --epoch-size 400 --batch-size 17 --state "$tmp/mix-state" --json
cat "$tmp/out" >>"$tmp/pieces"
is "data of a mix in pieces" "$(sum_of "$tmp/pieces")" "$(json_of "$tmp/mixed" 'o[0]["data_hash"]')"
run larder bench d --mix-weight 2 --mix d2:1 --epoch-size 400 --state "$tmp/mix-state"
rc_is 1
has err 'weight of source 0: 3 then, 2 now'
run larder bench d --mix d2:1
rc_is 2
has err 'either all datasets have a weight'
run larder bench d --mix-stop
rc_is 2
ok larder ingest src sorted --fields data:bytes --order source --quiet
run larder bench sorted --shuffle block --block 10 --window 2 # 5 classes, 20 samples a window
rc_is 0
has err 'warning: .*holds about [12] of 5 classes'

# a run in pieces is the run: at other batch sizes, too, and after a signal
for batches in 3 4 2 9; do
    ok larder bench d --epochs 2 --batch-size 50 --batches $batches --state "$tmp/state" --json
    cat "$tmp/out"
done >"$tmp/pieces"
is "samples of pieces" "$(json_of "$tmp/pieces" '[sum(l["samples"] for l in o if l["epoch"] == e) for e in (0, 1)]')" "[500, 400]"
ok larder bench d --epochs 2 --batch-size 20 --state "$tmp/state" --json
cat "$tmp/out" >>"$tmp/pieces"
is "data of pieces" "$(json_of "$tmp/pieces" '[format(sum(int(l["data_hash"], 16) for l in o if l["epoch"] == e) % 2**64, "016x") for e in (0, 1)]')" \
    "['$data', '$data']"
ok larder bench d --epochs 2 --state "$tmp/state" --json
out_is ''
run larder bench d --epochs 2 --seed 1 --state "$tmp/state"
rc_is 1
has err 'seed'
echo '{' >"$tmp/no-state"
run larder bench d --state "$tmp/no-state"
rc_is 1
"$LARDER" bench d --batch-size 10 --compute-ms 100 --state "$tmp/stopped" --json >"$tmp/first" 2>"$tmp/err" &
bench=$!
until grep -qE '^SigCgt:.*[4567cdef]...$' "/proc/$bench/status"; do sleep 0.05; done # to SIGTERM
kill $bench
rc=0
wait $bench || rc=$?
is "status after a signal" $rc 143
has err 'interrupted; run the same command again to go on'
ok larder bench d --batch-size 10 --state "$tmp/stopped" --json
cat "$tmp/first" "$tmp/out" >"$tmp/pieces"
is "samples around a signal" "$(json_of "$tmp/pieces" 'len(o), sum(l["samples"] for l in o)')" "(2, 500)"
is "data around a signal" "$(sum_of "$tmp/pieces")" "$data"

# windows and traces
again larder bench d --epochs 3 --json --fetch-size 40 --threshold 20 --batch-size 8
again larder bench d --epochs 3 --json --fetch-size 100kB --batch-size 8 --trace "$tmp/trace"
"$PYTHON" -c 'import json, sys; assert len(json.load(open(sys.argv[1]))) > 100' "$tmp/trace" || fail "the trace is no JSON"

# 8 batches of 20 ms are at least 160 ms, and the fetch hides behind them
ok larder bench d --json --batch-size 64 --compute-ms 20
is compute "$(json_of "$tmp/out" '0.16 <= o[0]["seconds"] < 2')" True

# compressed: other stored bytes, the same delivered ones
ok larder ingest src z --fields data:bytes --compress zstd --quiet
again larder bench z --epochs 3 --json

ok larder bench d --epochs 2
is rows "$(wc -l <"$tmp/out")" 3
has out '^epoch .* order_hash +data_hash$'
has out "  $data\$"
[ "$(sed 's/data_hash$/&       /' "$tmp/out" | awk '{print length}' | sort -u | wc -l)" -eq 1 ] || fail "columns do not line up"

# what a cache meets while it runs is said, once; a limit on files is an error, not a signal
(ulimit -f 500; "$LARDER" bench d --nvme "$tmp/limited:8MB" --epochs 3 --json >"$tmp/out" 2>"$tmp/err") || fail "a limit on files ends the run"
is warnings "$(grep -c '^larder bench: warning: ' "$tmp/err")" 1
has err 'ulimit -f'
rc=0
(ulimit -f 500; "$LARDER" bench d --dram 8MB --cache-name "bench-$$" --json >"$tmp/out" 2>"$tmp/err") || rc=$?
is status "$rc" 1
has err 'ulimit -f'

run larder bench d --staging 1
rc_is 2
run larder bench d --staging 4096 # a size, but no batch fits
rc_is 1
has err '^larder bench: '
echo "test_bench: ok"
