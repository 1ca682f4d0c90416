#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Real images, where LARDER_DATA (or ../shared/data beside the repository) has them: the bytes that come back are those of the
# files, by get and by export, and three epochs deliver them all.
data=${LARDER_DATA:-$PWD/../shared/data}
if [ ! -d "$data/imagenet" ]; then
    echo "no folder $data/imagenet; LARDER_DATA names the folder that holds it"
    exit 77
fi
data=$(cd "$data" && pwd)
. "$(dirname "$0")/common.sh"
n=$(find "$data/imagenet" -type f -not -name '.*' | wc -l)

ok larder ingest "$data/imagenet" d --json
is samples "$(json_of "$tmp/out" 'o[-1]["samples"], o[-1]["skipped"]')" "($n, 0)"
ok larder verify d
has out 'all is well$'
ok larder bench d --epochs 3 --image raw --shuffle full --json
is epochs "$(json_of "$tmp/out" '[l["samples"] for l in o], len({l["order_hash"] for l in o}), len({l["data_hash"] for l in o})')" \
    "([$n, $n, $n], 3, 1)"

# by get, a few; by export, all
larder ls d --count 20 | while read -r key; do
    file=$(ls "$data/imagenet/$key".*)
    larder get d "$key" --field image | cmp - "$file" || fail "bytes of $key"
done
larder export d out >/dev/null
is sha256sum "$(find out -type f -exec sha256sum {} + | cut -d' ' -f1 | sort | sha256sum)" \
    "$(find "$data/imagenet" -type f -not -name '.*' -exec sha256sum {} + | cut -d' ' -f1 | sort | sha256sum)"
echo "test_real_data: $n images ok"
