#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bench with caches: misses fall to exactly F - C from the second epoch, a second run starts warm, two runs at once read each
# record once between them, and the data are the same as without; cache info, warm and clear.
. "$(dirname "$0")/common.sh"
"$PYTHON" - <<'PY'
import os, random
random.seed(1)
os.makedirs("src")
for i in range(1200):
    with open(f"src/{i:04}.bin", "wb") as f:
        f.write(random.randbytes(20000))
PY
ok larder ingest src d --fields data:bytes --shard-size 4MB --quiet
ok larder bench d --json
data=$(json_of "$tmp/out" 'o[0]["data_hash"]')
name="e2e-$$"
tier() { json_of "$tmp/out" "[l['tiers']['$1']['$2'] for l in o]"; }
same_data() { is "data of $*" "$(json_of "$tmp/out" '{l["data_hash"] for l in o}')" "{'$data'}"; }

# room for a part: what came in stays, the rest is missed
ok larder bench d --epochs 4 --json --dram 10MiB --cache-name "$name-a" --metrics "$tmp/metrics"
same_data
is tiers "$(json_of "$tmp/out" 'list(o[0]["tiers"])')" "['dram', 'origin']"
held=$(sed -n 's/^larder_cache_entries{cache=".*",tier="dram"} //p' "$tmp/metrics")
[ "$held" -gt 400 ] && [ "$held" -lt 600 ] || fail "$held records in 10 MiB"
is hits "$(tier dram hits)" "[0, $held, $held, $held]"
is misses "$(tier dram misses)" "[1200, $((1200 - held)), $((1200 - held)), $((1200 - held))]"
is origin "$(tier origin hits)" "[1200, $((1200 - held)), $((1200 - held)), $((1200 - held))]"

# with NVMe for the rest: nothing is missed, and the next run starts warm
ok larder bench d --epochs 3 --json --dram 10MiB --nvme nv:64MB --cache-name "$name-b"
same_data
is origin "$(tier origin hits)" "[1200, 0, 0]"
is tiers "$(json_of "$tmp/out" 'list(o[0]["tiers"])')" "['dram', 'nvme', 'origin']"
ok larder bench d --epochs 1 --json --nvme nv:64MB --cache-name "$name-b"
same_data
is warm "$(tier origin hits) $(tier nvme hits)" "[0] [1200]"

# neither holds all: together they hold what both have room for
ok larder bench d --epochs 3 --json --dram 8MiB --nvme small:8MB --cache-name "$name-c" --metrics "$tmp/metrics"
same_data
dram=$(sed -n 's/^larder_cache_entries{cache=".*",tier="dram"} //p' "$tmp/metrics")
nvme=$(sed -n 's/^larder_cache_entries{cache=".*",tier="nvme"} //p' "$tmp/metrics")
[ "$dram" -gt 200 ] && [ "$nvme" -gt 200 ] || fail "$dram and $nvme records"
is origin "$(tier origin hits)" "[1200, $((1200 - dram - nvme)), $((1200 - dram - nvme))]"

ok larder bench d --epochs 3 --json --dram 8MiB --replacement fifo --cache-name "$name-d"
same_data

# pinning: refused it is a warning, off it is none
(
    ulimit -l 64
    may_not_lock=
    [ "$(id -u)" != 0 ] || may_not_lock='setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock'
    run $may_not_lock "$LARDER" bench d --json --dram 64MiB --cache-name "$name-p"
    rc_is 0
    grep -q __sanitizer "$LARDER" || has err '^larder bench: warning: RLIMIT_MEMLOCK' # sanitizers make mlock do nothing
    ok $may_not_lock "$LARDER" bench d --json --dram 64MiB --no-pin --cache-name "$name-p"
    same_data
    ok $may_not_lock "$LARDER" cache warm d --dram 64MiB --no-pin --quiet --cache-name "$name-p"
)

# two at once with room for all
"$LARDER" bench d --epochs 3 --json --dram 64MiB --cache-name "$name-e" --compute-ms 20 >"$tmp/one" 2>"$tmp/one.err" &
pid=$!
ok larder bench d --epochs 3 --json --dram 64MiB --cache-name "$name-e" --compute-ms 20
wait "$pid"
is stderr "$(cat "$tmp/one.err")" ""
is once "$(cat "$tmp/out" "$tmp/one" >"$tmp/both"; json_of "$tmp/both" 'sum(l["tiers"]["origin"]["hits"] for l in o)')" 1200
same_data

# two at once, memory for a part and a directory for all: each record is read once, and the next run is warm
"$LARDER" bench d --epochs 3 --json --dram 8MiB --nvme two:64MB --cache-name "$name-f" --compute-ms 20 >"$tmp/one" 2>"$tmp/one.err" &
pid=$!
ok larder bench d --epochs 3 --json --dram 8MiB --nvme two:64MB --cache-name "$name-f" --compute-ms 20
wait "$pid"
is stderr "$(cat "$tmp/one.err")" ""
is once "$(cat "$tmp/out" "$tmp/one" >"$tmp/both"; json_of "$tmp/both" 'sum(l["tiers"]["origin"]["hits"] for l in o)')" 1200
same_data
ok larder bench d --epochs 1 --json --nvme two:64MB --cache-name "$name-f"
is warm "$(tier origin hits) $(tier nvme hits)" "[0] [1200]"

# two at once with a directory alone
"$LARDER" bench d --epochs 2 --json --nvme sole:64MB --cache-name "$name-g" >"$tmp/one" 2>"$tmp/one.err" &
pid=$!
ok larder bench d --epochs 2 --json --nvme sole:64MB --cache-name "$name-g"
same_data
wait "$pid"
is stderr "$(cat "$tmp/one.err")" ""

# the verb
ok larder cache info nv
has out '^nv: 1,200 records in [0-9]+ segments, [0-9.]+ MB on disk$'
ok larder cache warm d --nvme w:64MB --quiet
ok larder bench d --json --nvme w:64MB
is warm "$(tier origin hits)" "[0]"
echo mine >w/note
ok larder cache clear w --json
is cleared "$(json_of "$tmp/out" 'o[0]["event"]')" cleared
is left "$(ls w | tr '\n' ' ')" "lock note "
ok larder bench d --json --nvme w:64MB
is cold "$(tier origin hits)" "[1200]"
run larder cache info src
rc_is 1
err_is "larder cache: src: no cache of larder is here (it has no file 'lock')"
run larder cache warm d
rc_is 2
run larder bench d --dram 1
rc_is 1
has err 'too small'
run larder bench d --nvme nv
rc_is 2
run larder bench d --dram 900TB
rc_is 1
has err 'more than 80%'
echo "test_cache: ok"
