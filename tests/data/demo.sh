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
    if [ ! -e "$folder/.images-complete" ]; then
        echo "== making 2,000 JPEG images in 10 class folders"
        rm -rf "$images"
        "$BUILD/tests/data/mkjpegs" "$images" 2000
        touch "$folder/.images-complete"
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
"$LARDER" bench "$folder/dataset" --epochs 3 --image raw --shuffle full
echo "Three orders (order_hash), each delivering the same bytes of the same samples (data_hash)."
