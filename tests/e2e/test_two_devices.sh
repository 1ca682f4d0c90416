#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two directories on two devices: both are filled, together they hold what both have room for, each starts warm by itself, and
# one that is lost costs what it held.
. "$(dirname "$0")/common.sh"
second=$(mktemp -d /dev/shm/larder-XXXXXX 2>/dev/null) || { echo "no second device: /dev/shm cannot be written"; exit 77; }
trap 'rm -rf "$tmp" "$second"' EXIT
[ "$(stat -c %d .)" != "$(stat -c %d "$second")" ] || { echo "no second device: /dev/shm is on the first"; exit 77; }
"$PYTHON" - <<'PY'
import os, random
random.seed(8)
os.mkdir("src")
for i in range(900):
    with open("src/%04d.bin" % i, "wb") as f:
        f.write(random.randbytes(random.randint(10000, 30000)))
PY
ok larder ingest src d --fields data:bytes --shard-size 4MiB --quiet
ok larder bench d --json
data=$(json_of "$tmp/out" 'o[0]["data_hash"]')
name=two-$$
tier() { json_of "$tmp/out" "[l['tiers']['$1']['$2'] for l in o]"; }
held() { larder cache info "$1" --json | "$PYTHON" -c 'import json, sys; print(sum(json.loads(l).get("entries", 0) for l in sys.stdin if "segments" in l))'; }
same_data() { is data "$(json_of "$tmp/out" '{l["data_hash"] for l in o}')" "{'$data'}"; }

# room for all, over both
ok larder bench d --epochs 3 --json --nvme a:16MB --nvme "$second/b:16MB" --cache-name "$name"
same_data
is origin "$(tier origin hits)" "[900, 0, 0]"
a=$(held a) b=$(held "$second/b")
is "records of both" "$((a + b))" 900
[ "$a" -gt 200 ] && [ "$b" -gt 200 ] || fail "$a records on one device, $b on the other"

# both start warm; one alone has its part
ok larder bench d --json --nvme a:16MB --nvme "$second/b:16MB" --cache-name "$name"
is warm "$(tier origin hits)" "[0]"
same_data
ok larder bench d --json --nvme "$second/b:16MB" --cache-name "$name"
is "warm from one" "$(tier nvme hits)" "[$b]"
same_data

# one is lost: the other goes on, and what was lost is fetched again
rm -rf "$second/b"
ok larder bench d --epochs 2 --json --nvme a:16MB --nvme "$second/b:16MB" --cache-name "$name-2"
is "one lost" "$(tier origin hits)" "[$((900 - a)), 0]"
same_data

# room for a part: exactly the rest is missed from the second epoch on
ok larder bench d --epochs 3 --json --nvme c:5MB --nvme "$second/e:5MB" --cache-name "$name-3"
same_data
rest=$((900 - $(held c) - $(held "$second/e")))
[ "$rest" -gt 100 ] && [ "$rest" -lt 800 ] || fail "$rest of 900 records are missed"
is misses "$(tier origin hits)" "[900, $rest, $rest]"
echo "test_two_devices: ok"
