#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Images as arrays: the same pixels with any number of threads, batch sizes, ranks, tiers, engines and windows, cold and warm; other ones with
# another seed or epoch. What is asked of them shows in their bytes. Bad samples fail or are replaced.
. "$(dirname "$0")/common.sh"
name=prep-$$

"$BUILD/tests/data/mkjpegs" src 120 >/dev/null
ok larder ingest src d --quiet
prep=(--image rrc:40x32 --flip 0.5 --seed 3 --epochs 2)
run larder bench d "${prep[@]}" --threads 1 --json
rc_is 0
lines_are_json "$tmp/out"
data=$(json_of "$tmp/out" '[l["data_hash"] for l in o]')
is "bytes of arrays and labels" "$(json_of "$tmp/out" '{l["bytes"] for l in o}')" "{$((120 * (40 * 32 * 3 + 8)))}"
is "pixels of two epochs" "$(json_of "$tmp/out" 'len({l["data_hash"] for l in o})')" 2

again() { # the same pixels with other options; what comes before -- goes before the command
    local before=()
    while [ "$1" != -- ]; do before+=("$1"); shift; done
    shift
    run env "${before[@]}" "$LARDER" bench d "${prep[@]}" --json "$@"
    rc_is 0
    is "data with $*" "$(json_of "$tmp/out" '[l["data_hash"] for l in o]')" "$data"
    is "samples with $*" "$(json_of "$tmp/out" '{l["samples"] for l in o}')" '{120}'
}
again -- --threads 8
again -- --threads 3 --batch-size 7
again LARDER_NO_URING=1 -- --threads 2 --queue-depth 1
again -- --threads 2 --direct on --staging 8MiB --batch-size 16
again -- --threads 2 --fetch-size 20 --threshold 10 --batch-size 5
again -- --threads 2 --dram 64MB --cache-name "$name"
is "hits of DRAM" "$(json_of "$tmp/out" 'o[1]["tiers"]["dram"]["hits"]')" 120
again -- --threads 2 --nvme "$tmp/nvme:64MB" --cache-name "$name"
again -- --threads 2 --nvme "$tmp/nvme:64MB" --cache-name "$name" # warm
is "hits of NVMe" "$(json_of "$tmp/out" 'o[0]["tiers"]["nvme"]["hits"]')" 120
again -- --threads 2 --dram 8MB --cache-name "$name-small" # not all fits
again -- --threads 2 --dram 6MB --replacement fifo --cache-name "$name-fifo"

sum_of() { json_of "$1" '[format(sum(int(l["data_hash"], 16) for l in o if l["epoch"] == e) % 2**64, "016x") for e in (0, 1)]'; }
for rank in 0 1 2; do
    ok larder bench d "${prep[@]}" --world 3 --rank $rank --batch-size 4 --last short --threads 2 --json
    cat "$tmp/out"
done >"$tmp/ranks"
is "samples of three ranks" "$(json_of "$tmp/ranks" 'sum(l["samples"] for l in o)')" 240
is "data of three ranks" "$(sum_of "$tmp/ranks")" "$data"
for batches in 5 20 100; do # in pieces
    ok larder bench d "${prep[@]}" --batch-size 8 --batches $batches --state "$tmp/state" --json
    cat "$tmp/out"
done >"$tmp/pieces"
is "data of pieces" "$(sum_of "$tmp/pieces")" "$data"

# what is asked for is what comes: bytes, and other pixels
differs() { # BYTES OF AN ARRAY, OPTIONS...
    local bytes=$1
    shift
    ok larder bench d --epochs 1 --threads 2 --json "$@"
    is "bytes of $*" "$(json_of "$tmp/out" 'o[0]["bytes"]')" $((120 * (bytes + 8)))
    json_of "$tmp/out" 'o[0]["data_hash"]' >>"$tmp/hashes"
}
differs $((32 * 32 * 3)) --image rrc:32
differs $((32 * 32 * 3)) --image rrc:32 --seed 1
differs $((32 * 32 * 3)) --image rrc:32 --flip 1
differs $((32 * 32 * 3)) --image rrc:32 --resample nearest
differs $((32 * 32 * 3)) --image rrc:32 --resample bicubic
differs $((32 * 32 * 3)) --image rrc:32 --layout nchw
differs $((32 * 32 * 3)) --image center:32
differs $((32 * 32 * 3)) --image center:32 --exact
differs $((32 * 32 * 3)) --image full:32
differs $((2 * 32 * 32 * 3)) --image rrc:32 --views 2
differs $((32 * 32 * 3 * 4)) --image rrc:32 --dtype float32
differs $((32 * 32 * 3 * 4)) --image rrc:32 --dtype float32 --normalize imagenet
differs $((32 * 32 * 3 * 4)) --image rrc:32 --dtype float32 --normalize 0.5,0.25
differs $((32 * 32 * 3 * 2)) --image rrc:32 --dtype float16
differs $((32 * 32 * 3 * 2)) --image rrc:32 --dtype bfloat16 --normalize 0.5,0.5,0.5,0.25,0.25,0.25
is "different pixels" "$(sort -u "$tmp/hashes" | wc -l)" 15
ok larder bench d --epochs 1 --image center:32 --seed 9 --shuffle none --json
is "a centre crop depends on nothing" "$(json_of "$tmp/out" 'o[0]["data_hash"]')" "$(sed -n 7p "$tmp/hashes")"

# the decoded cache: other pixels than without, the same ones whether they were kept or not, by any process
decoded=(--decoded-cache 32MB --cache-name "$name-d")
run larder bench d "${prep[@]}" "${decoded[@]}" --batch-size 20 --threads 2 --json
rc_is 0
kept=$(json_of "$tmp/out" '[l["data_hash"] for l in o]')
[ "$kept" != "$data" ] || fail "the stored form makes no difference"
is "samples through the decoded cache" "$(json_of "$tmp/out" '[l["decoded"]["hits"] + l["decoded"]["misses"] for l in o]')" "[120, 120]"
is "what it holds" "$(json_of "$tmp/out" 'o[1]["decoded"]["entries"], 0 < o[1]["decoded"]["used_bytes"] <= o[1]["decoded"]["budget_bytes"] <= 32000000')" "(120, True)"
run larder bench d --image center:24 --epochs 40 "${decoded[@]}" --batch-size 60 --json # more than is planned ahead
rc_is 0
is "hits of the decoded cache" "$(json_of "$tmp/out" 'o[39]["decoded"]["hits"], o[39]["decoded"]["saved_s"] > 0, o[39]["tiers"]["origin"]["hits"], len({l["data_hash"] for l in o})')" "(120, True, 0, 1)"
for other in '--threads 1 --batch-size 7' '--decoded-compress' '--dram 64MB' '--world 1 --last short --threads 5'; do
    run larder bench d "${prep[@]}" "${decoded[@]}" $other --json
    rc_is 0
    is "kept pixels with $other" "$(json_of "$tmp/out" '[l["data_hash"] for l in o]')" "$kept"
done
run larder bench d "${prep[@]}" --decoded-cache 4MiB --cache-name "$name-e" --json # not all fits
rc_is 0
is "pixels of a small decoded cache" "$(json_of "$tmp/out" '[l["data_hash"] for l in o]')" "$kept"

# bad samples
mkdir -p bad
cp -r src/* bad/
for f in $(find bad -name '*.jpg' -o -name '*.JPEG' -o -name '*.jpeg' | sort | sed -n '5p;50p'); do
    truncate -s 100 "$f"
done
ok larder ingest bad b --quiet
run larder bench b --image rrc:32 --json
rc_is 3
has err '^larder bench: .*, field image: '
is "lines on stderr" "$(wc -l <"$tmp/err")" 1
run larder bench b --image rrc:32 --on-bad-sample replace --epochs 2 --json --threads 2
rc_is 0
is "bad samples" "$(json_of "$tmp/out" '[(l["samples"], l["bad"]) for l in o]')" "[(120, 2), (120, 2)]"
bad=$(json_of "$tmp/out" '[l["data_hash"] for l in o]')
is "bad samples named" "$(grep -c '^larder bench: sample .*: another takes its place$' "$tmp/err")" 4
run larder bench b --image rrc:32 --on-bad-sample replace --epochs 2 --json --threads 1 --batch-size 9
rc_is 0
is "data with substitutes" "$(json_of "$tmp/out" '[l["data_hash"] for l in o]')" "$bad"

ok larder ingest "$root/tests/e2e" t --fields data:bytes --quiet
run larder bench t --image rrc:32
rc_is 1
err_is "larder bench: t has no image field: leave --image out, or give it as raw"
echo "test_prep: ok"
