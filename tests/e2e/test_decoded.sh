#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The decoded cache: the same pixels cold, warm, with room for some, compressed, with any threads, ranks and tiers; its numbers. Bad samples: the
# same substitutes whoever looks for them. Traces.
. "$(dirname "$0")/common.sh"
name=decoded-$$

"$BUILD/tests/data/mkjpegs" src 120 >/dev/null
ok larder ingest src d --quiet
prep=(--image rrc:120 --flip 0.5 --seed 3 --epochs 3 --decoded-side 130)

decoded() { # OPTIONS...: three epochs with the decoded cache
    ok larder bench d "${prep[@]}" --cache-name "$name-$RANDOM" --json "$@"
    lines_are_json "$tmp/out"
}
decoded --decoded-cache 64MB --threads 2 --metrics "$tmp/metrics"
data=$(json_of "$tmp/out" '[l["data_hash"] for l in o]')
is "pixels of three epochs" "$(json_of "$tmp/out" 'len({l["data_hash"] for l in o})')" 3
is "all went through it" "$(json_of "$tmp/out" '{l["decoded"]["hits"] + l["decoded"]["misses"] for l in o}')" '{120}'
is "what is there stays" "$(json_of "$tmp/out" 'o[0]["decoded"]["misses"] >= 100 and sum(l["decoded"]["misses"] for l in o) <= 130')" True
is "numbers" "$(json_of "$tmp/out" 'o[2]["decoded"]["entries"], o[2]["decoded"]["budget_bytes"], 120 * 130 * 130 * 3 < o[2]["decoded"]["used_bytes"] < 64e6, o[0]["decoded"]["decode_s"] > 0, o[2]["decoded"]["saved_s"] > 0')" "(120, $((64000000 / 4096 * 4096)), True, True, True)"
is "metrics" "$(sed -n 's/^larder_loader_decoded_entries{rank="0"} //p' "$tmp/metrics")" 120
used=$(json_of "$tmp/out" 'o[2]["decoded"]["used_bytes"]')

again() { # the same pixels with other options
    decoded "$@"
    is "data with $*" "$(json_of "$tmp/out" '[l["data_hash"] for l in o]')" "$data"
}
again --decoded-cache 64MB --threads 1 --batch-size 7
again --decoded-cache 64MB --decoded-compress
is "compressed takes less" "$(json_of "$tmp/out" "o[2]['decoded']['used_bytes'] < $used * 0.95")" True
again --decoded-cache 4MiB --threads 2 # not all fits
is "some fit" "$(json_of "$tmp/out" '0 < o[2]["decoded"]["hits"] < 120 and o[2]["decoded"]["used_bytes"] <= 4 << 20')" True
again --decoded-cache 64MB --dram 64MB --nvme "$tmp/nvme:64MB"
for rank in 0 1; do
    ok larder bench d "${prep[@]}" --world 2 --rank $rank --last short --decoded-cache 64MB --cache-name "$name-$rank" --json
    cat "$tmp/out"
done >"$tmp/ranks"
is "data of two ranks" "$(json_of "$tmp/ranks" '[format(sum(int(l["data_hash"], 16) for l in o if l["epoch"] == e) % 2**64, "016x") for e in range(3)]')" "$data"
ok larder bench d "${prep[@]}" --decoded-cache 64MB --cache-name "$name"
has out '^      decoded: 120 found, 0 decoded in 0.000 s; saved '

# bad samples: a record is damaged, a file is no image
cp -r src bad
first=$(find bad -type f -name '*.jpg' | LC_ALL=C sort | head -1)
head -c 300 "$first" >"$first.part" && mv "$first.part" "$first"
ok larder ingest bad b --quiet
"$PYTHON" - <<'PY'
import glob
path = sorted(glob.glob("b/shards/*"))[0]
with open(path, "r+b") as f:
    f.seek(100000)
    old = f.read(8)
    f.seek(100000)
    f.write(bytes(x ^ 0xff for x in old))
PY
run larder bench b --epochs 1 --threads 2 --image rrc:32
rc_is 3
has err "^larder bench: sample '.*' \(ordinal [0-9]+, shard 0 slot [0-9]+\), .*; on_bad_sample=replace goes on; larder get .*/b @[0-9]+ shows it"
replace=(--image rrc:32 --epochs 2 --seed 5 --on-bad-sample replace --max-bad 1 --json)
run larder bench b "${replace[@]}" --threads 1
rc_is 0
cp "$tmp/out" "$tmp/one"
data=$(json_of "$tmp/one" '[l["data_hash"] for l in o]')
is "two are bad in each epoch, and more where they were drawn" "$(json_of "$tmp/one" '[l["bad"] >= 2 for l in o]')" '[True, True]'
has err 'another takes its place'
for more in "--threads 8" "--threads 2 --batch-size 9" "--threads 2 --dram 64MB --cache-name $name-b"; do
    # shellcheck disable=SC2086 # several words
    run larder bench b "${replace[@]}" $more
    rc_is 0
    is "data with $more" "$(json_of "$tmp/out" '[l["data_hash"] for l in o]')" "$data"
    is "bad ones with $more" "$(json_of "$tmp/out" '[l["bad"] for l in o]')" "$(json_of "$tmp/one" '[l["bad"] for l in o]')"
done
for rank in 0 1 2; do
    run larder bench b "${replace[@]}" --world 3 --rank $rank --last short --batch-size 8
    rc_is 0
    cat "$tmp/out"
done >"$tmp/ranks"
is "data of three ranks" "$(json_of "$tmp/ranks" '[format(sum(int(l["data_hash"], 16) for l in o if l["epoch"] == e) % 2**64, "016x") for e in (0, 1)]')" "$data"
for cache in "--threads 2" "--threads 1 --decoded-compress"; do
    # shellcheck disable=SC2086
    run larder bench b "${replace[@]}" --decoded-cache 64MB --cache-name "$name-bad" $cache
    rc_is 0
    json_of "$tmp/out" '[l["data_hash"] for l in o]'
done >"$tmp/decoded"
is "decoded, bad ones among them" "$(sort -u "$tmp/decoded" | wc -l)" 1

# a trace, of a run that ends and of one that is stopped
ok larder bench d --epochs 1 --image rrc:32 --threads 2 --batch-size 16 --trace "$tmp/trace.json"
is "trace" "$("$PYTHON" -c '
import json, sys
e = json.load(open(sys.argv[1]))
print(sorted({x["name"] for x in e if x["ph"] in "Xb"} & {"plan", "fetch", "decode", "ready", "held"}), sum(x["args"]["samples"] for x in e if x["name"] == "decode"))
' "$tmp/trace.json")" "['decode', 'fetch', 'held', 'plan', 'ready'] 120"
"$LARDER" bench d --epochs 100000 --image rrc:32 --trace "$tmp/stopped.json" --compute-ms 1 >/dev/null 2>&1 &
pid=$!
for _ in $(seq 300); do # until a part of it is written
    [ "$(stat -c %s "$tmp/stopped.json" 2>/dev/null || echo 0)" -gt 1000 ] && break
    sleep 0.1
done
kill -TERM $pid
wait $pid || true
is "trace of a killed run, which lacks its bracket" "$("$PYTHON" -c 'import json, sys; print(len(json.loads(open(sys.argv[1]).read() + "]")) > 10)' \
    "$tmp/stopped.json")" True
echo "test_decoded: ok"
