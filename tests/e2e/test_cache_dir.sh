#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# larder cache: a directory is warmed, described, found warm by a second run, kept from a second user, and cleared.
. "$(dirname "$0")/common.sh"

make_tree src
ok larder ingest -q src d

run larder cache info nowhere
rc_is 1
err_is 'larder cache: nowhere: cannot be opened: No such file or directory'
mkdir empty
run larder cache clear empty
rc_is 1
err_is "larder cache: empty: no cache of larder is here (it has no file 'lock')"
run larder cache warm d
rc_is 2
err_is "larder cache: warm needs --nvme DIR:SIZE or --dram SIZE; see 'larder cache --help'"
run larder cache drop d
rc_is 2
err_is "larder cache: 'drop' is not info, warm or clear; see 'larder cache --help'"
run larder cache info d --nvme c:8MB
rc_is 2
err_is "larder cache: --nvme and --dram go with 'warm'; see 'larder cache --help'"

ok larder cache warm d --nvme c:8MB
has out '^dram 0 records in 0 B, nvme 12 records in '
ok larder cache warm d --nvme c:8MB --json
is found "$(json_of "$tmp/out" 'o[0]["nvme_entries"]')" 12

ok larder cache info c
has out '^c: 12 records in 1 segment, '
has out '^  dataset [0-9a-f-]{36}: 12 records, .*, last used 20'
ok larder cache info c --json
lines_are_json "$tmp/out"
is entries "$(json_of "$tmp/out" 'o[0]["datasets"][0]["entries"]')" 12
is holder "$(json_of "$tmp/out" 'o[0]["holder"]')" 0
uuid=$(json_of "$tmp/out" 'o[0]["datasets"][0]["uuid"]')
ok larder info d --json
is uuid "$(json_of "$tmp/out" 'o[0]["uuid"]')" "$uuid"

# the loader starts warm
ok larder bench d --nvme c:8MB --epochs 1 --json
is hits "$(json_of "$tmp/out" 'o[0]["tiers"]["nvme"]["hits"]')" 12
is misses "$(json_of "$tmp/out" 'o[0]["tiers"]["origin"]["hits"]')" 0

# while one process uses it, others of its group do too, a stranger passes it by, and it is not cleared
"$LARDER" bench d --nvme c:8MB --epochs 1000 --compute-ms 100 >/dev/null 2>&1 &
pid=$!
for _ in $(seq 100); do
    larder cache info c --json >"$tmp/holder"
    [ "$(json_of "$tmp/holder" 'o[0]["holder"]')" = "$pid" ] && break
    sleep 0.05
done
run larder cache clear c
rc_is 1
err_is "larder cache: c: the cache is in use by process $pid"
ok larder bench d --nvme c:8MB --epochs 1 --json
is hits "$(json_of "$tmp/out" 'o[0]["tiers"]["nvme"]["hits"]')" 12
run larder bench d --nvme c:9MB --epochs 1 --json
rc_is 0
has err 'warning: c: has a limit of 8000000 bytes, not the 9000000 asked for: who opens it first sets it'
run larder bench d --nvme c:8MB --cache-name other --epochs 1 --json
rc_is 0
has err "warning: c: the cache is in use by process $pid"
is misses "$(json_of "$tmp/out" 'o[0]["tiers"]["origin"]["hits"]')" 12
kill -9 $pid
wait $pid 2>/dev/null || true
ok larder bench d --nvme c:8MB --epochs 1 --json
is hits "$(json_of "$tmp/out" 'o[0]["tiers"]["nvme"]["hits"]')" 12

echo mine >c/notes
ok larder cache clear c
has out '^c: cleared, .* freed$'
is left "$(ls c | tr '\n' ' ')" 'lock notes '
ok larder cache info c
has out '^c: 0 records in 0 segments'
echo "test_cache_dir: ok"
