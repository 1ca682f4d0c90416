#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# demo.sh FOLDER [IMAGES] - the demonstration: makes 2,000 JPEG images (or takes the folder IMAGES), ingests them into
# FOLDER/dataset, reads three epochs of it in three different orders and prints a table.
set -euo pipefail
folder=$1
images=${2:-}
: "${LARDER:?}" "${BUILD:?}"
mkdir -p "$folder"

if [ -n "$images" ]; then
    [ -d "$images" ] || { echo "demo: $images: not a folder" >&2; exit 1; }
else
    images=$folder/images
    if [ ! -e "$images/.complete" ]; then
        echo "== making 2,000 JPEG images in 10 class folders"
        rm -rf "$images"
        "$BUILD/tests/data/mkjpegs" "$images" 2000
        touch "$images/.complete"
    fi
fi

echo "== larder ingest $images $folder/dataset"
rm -rf "$folder/dataset"
"$LARDER" ingest "$images" "$folder/dataset"
echo "== larder info $folder/dataset"
"$LARDER" info "$folder/dataset"
echo "== larder verify $folder/dataset"
"$LARDER" verify "$folder/dataset"
echo "== larder bench $folder/dataset --epochs 3 --image raw --shuffle full"
"$LARDER" bench "$folder/dataset" --epochs 3 --image raw --shuffle full --json >"$folder/epochs.json"
awk '
function get(key,    v) { # the value of a member of the flat part of the line
    if (!match($0, "\"" key "\": *(\"[^\"]*\"|[-+.0-9eE]+)"))
        return "-"
    v = substr($0, RSTART, RLENGTH)
    sub(/^"[^"]*": */, "", v)
    gsub(/"/, "", v)
    return v
}
BEGIN {
    printf "\n%5s %9s %9s %9s %11s  %-18s  %-18s\n", "epoch", "samples", "seconds", "MB/s", "samples/s", "order_hash", "data_hash"
}
/"order_hash"/ {
    s = get("seconds")
    printf "%5s %9s %9.3f %9.0f %11.0f  %-18s  %-18s\n", get("epoch"), get("samples"), s,
        s > 0 ? get("bytes") / s / 1e6 : 0, s > 0 ? get("samples") / s : 0, get("order_hash"), get("data_hash")
    n++
    if (!(get("order_hash") in orders)) { orders[get("order_hash")]; n_orders++ }
    if (!(get("data_hash") in datas)) { datas[get("data_hash")]; n_datas++ }
}
END {
    printf "\n%d epochs in %d different orders (order_hash), each delivering the same bytes of the same samples: %s.\n",
        n, n_orders, n_datas == 1 ? "one data_hash" : n_datas " data_hash values, WHICH IS WRONG"
    exit !(n == 3 && n_datas == 1)
}' "$folder/epochs.json"
