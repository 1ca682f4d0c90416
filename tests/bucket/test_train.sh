#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ingest straight into a bucket, verify, epochs with a cache; directly, with TLS, and through latency and faults: always the bytes that a
# directory gives. Images of LARDER_DATA (../shared/data) where they are, else made ones.
data=${LARDER_DATA:-$PWD/../shared/data}/imagenet
. "$(dirname "$0")/common.sh"
if [ ! -d "$data" ]; then
    data=$tmp/images
    "$BUILD/tests/data/mkjpegs" "$data" 300 1
fi
n=$(find "$data" -type f -not -name '.*' | wc -l)
new_bucket train
new_proxy

larder ingest "$data" disk --quiet
larder bench disk --json >"$tmp/disk"
hash=$(json_of "$tmp/disk" 'o[0]["data_hash"]')
order=$(json_of "$tmp/disk" 'o[0]["order_hash"]')

ok larder ingest "$data" "s3://$bucket/in" --json
is samples "$(json_of "$tmp/out" 'o[-1]["samples"]')" "$n"
ok larder verify "s3://$bucket/in"
has out 'all is well$'

epochs() { # NAME OPTION...: two epochs through a fresh cache, as the directory delivers them
    local name=$1
    shift
    run larder bench "s3://$bucket/in" --nvme "$tmp/$name:1GB" --epochs 2 --json "$@"
    rc_is 0
    is "data, $name" "$(json_of "$tmp/out" '{l["data_hash"] for l in o}')" "{'$hash'}"
    is "order, $name" "$(json_of "$tmp/out" 'o[0]["order_hash"]')" "$order"
    is "samples, $name" "$(json_of "$tmp/out" '[l["samples"] for l in o]')" "[$n, $n]"
    # every byte is fetched about once, and the second epoch is the cache's
    is "tiers, $name" "$(json_of "$tmp/out" 'o[1]["tiers"]["nvme"]["hits"], o[1]["remote"]["bytes_fetched"]')" "($n, 0)"
    has err '^epoch 0: about [0-9,]+ GETs, [0-9.]+ MB$'
    has err "^epoch 1: about 0 GETs, 0 B; $n of $n samples are cached\$"
}
bounded 60 epochs direct
# smaller than the staging buffer: batches that are being filled ask for what the stream would bring, too
is once "$(json_of "$tmp/out" 'o[0]["remote"]["bytes_fetched"] <= 2 * o[0]["bytes"], o[0]["remote"]["retries"]["all"]')" "(True, 0)"
bounded 60 epochs tls --endpoint "$S3_PROXY_TLS" --ca-bundle "$S3_CA"

faults latmin=20 latmax=50 slowdown=0.05 trunc=0.02 flip=0.02 close=0.02
bounded 100 epochs faulty --endpoint "$S3_PROXY"
AWS_ENDPOINT_URL=$S3_PROXY bounded 100 larder verify "s3://$bucket/in" --quiet
AWS_ENDPOINT_URL=$S3_PROXY bounded 100 larder ingest "$data" "s3://$bucket/again" --quiet
faults
ok larder verify "s3://$bucket/again" --quiet
run larder bench "s3://$bucket/again" --json --dram 256MB --cache-name "train-$$"
rc_is 0
is again "$(json_of "$tmp/out" 'o[0]["data_hash"]')" "$hash"

# in both directions, by both programs: what larder wrote is read from files, and the other way round
"$PYTHON" "$root/tests/bucket/files.py" get "$bucket" in fetched
ok larder verify fetched --quiet
ok larder bench fetched --json
is fetched "$(json_of "$tmp/out" 'o[0]["data_hash"]')" "$hash"
"$PYTHON" "$root/tests/bucket/files.py" put "$bucket" put disk
ok larder verify "s3://$bucket/put" --quiet
is listed "$(larder ls "s3://$bucket/put" | sha256sum)" "$(larder ls disk | sha256sum)"

# images as arrays: the pixels that the directory gives, through faults, two threads or four, and in pieces
images=(--image rrc:48 --flip 0.5 --epochs 2 --batch-size 32 --json)
ok larder bench disk "${images[@]}" --threads 2
pixels=$(json_of "$tmp/out" '[l["data_hash"] for l in o]')
run larder bench "s3://$bucket/in" "${images[@]}" --threads 4 --dram 512MB --cache-name "images-$$"
rc_is 0
is pixels "$(json_of "$tmp/out" '[l["data_hash"] for l in o]')" "$pixels"
faults latmin=20 latmax=50 slowdown=0.05 trunc=0.02 flip=0.02
run bounded 100 larder bench "s3://$bucket/in" "${images[@]}" --fetch-size 64 --threshold 64 --endpoint "$S3_PROXY"
rc_is 0
is "pixels through faults" "$(json_of "$tmp/out" '[l["data_hash"] for l in o]')" "$pixels"
faults
"$BUILD/tests/data/mkjpegs" "$tmp/classes" 120 2 # in a folder a class: samples have labels
larder ingest "$tmp/classes" classes --quiet
larder copy classes "s3://$bucket/classes" --quiet
"$BUILD/tests/examples/train_images" classes 2 "$tmp/whole.state" >"$tmp/whole"
for steps in 3 100; do "$BUILD/tests/examples/train_images" "s3://$bucket/classes" 2 "$tmp/state" $steps; done >"$tmp/pieces"
is "losses" "$(awk '{s[$2] += $4} END {printf "%.1f %.1f", s["0:"], s["1:"]}' "$tmp/pieces")" \
    "$(awk '{s[$2] += $4} END {printf "%.1f %.1f", s["0:"], s["1:"]}' "$tmp/whole")"
echo "test_train: $n images ok"
