#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A flipped byte in a record: verify names it, reads refuse it, repair drops it and keeps the rest, gc clears away.
. "$(dirname "$0")/common.sh"
make_tree src
ok larder ingest src d --fields data:bytes --order source --shard-size 3k --quiet
shards=$(ls d/shards | wc -l)
flip() { # FILE OFFSET
    "$PYTHON" - "$1" "$2" <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(int(sys.argv[2]))
    b = f.read(1)[0]
    f.seek(int(sys.argv[2]))
    f.write(bytes([b ^ 0x10]))
PY
}

# nothing wrong: nothing is written
before=$(sums d)
ok larder repair d
out_is "nothing to repair"
ok larder repair d --dry-run --json
is repair "$(json_of "$tmp/out" '[o[0][k] for k in ("event", "generation", "samples", "dropped", "lineage_changed")]')" "['done', 0, 12, 0, False]"
is "files" "$(sums d)" "$before"
for n in 1 2 3; do ok larder verify d --subset $n/3; done

larder ls d --long --first 6 --count 1 >"$tmp/place"
read -r _ shard slot offset bytes key <"$tmp/place"
is "sample 6" "$key" bee/2
flip "d/shards/$shard" $((offset + bytes / 2))
damaged=$(sums d)

run larder verify d
rc_is 3
[ "$(wc -l <"$tmp/err")" -eq 1 ] || fail "more than one line on stderr"
has err '^larder verify: '
has out "^damaged shards/$shard slot $slot ordinal 6 key bee/2: "
has out '1 damaged place$'
run larder verify d --json
rc_is 3
lines_are_json "$tmp/out"
is damage "$(json_of "$tmp/out" '[[l.get(k) for k in ("event", "file", "slot", "ordinal", "key")] for l in o[:-1]]')" \
    "[['damage', 'shards/$shard', $slot, 6, 'bee/2']]"
is done "$(json_of "$tmp/out" 'o[-1]["event"], o[-1]["damaged"]')" "('done', 1)"
run larder verify d --quiet
rc_is 3
is "lines" "$(wc -l <"$tmp/out")" 1

# reads refuse it and name the place; others are read
run larder get d bee/2 --field data
rc_is 3
out_is ''
has err "^larder get: .*$shard"
ok larder get d bee/1 --field label
out_is 1
run larder bench d
rc_is 3
has err "^larder bench: sample 'bee/2' \\(ordinal 6, shard 1 slot $slot\\), .* fail their CRC32C .*; larder get .*/d @6 shows it\$"
run larder export d x.tar
rc_is 3
[ ! -e x.tar ] || fail "a failed export left its file"

run larder repair d --dry-run
rc_is 3
err_is ''
has out "^damaged shards/$shard slot $slot ordinal 6 key bee/2: "
has out "^dry run: 1 shard of $shards to rewrite"
is "files after a dry run" "$(sums d)" "$damaged"

run larder repair d
rc_is 0
err_is ''
has out "^damaged shards/$shard slot $slot ordinal 6 key bee/2: "
has out "^repaired as generation 2: 11 samples in $shards shards; 1 sample dropped, 1 shard rewritten, 0 shards lost; a new lineage, ordinals moved$"
sums d >"$tmp/after"
is "files of before that are changed or gone" "$(grep -v larder.json <<<"$damaged" | grep -vxFf "$tmp/after" || true)" ''
ok larder verify d
is keys "$(larder ls d | tr '\n' ' ')" "ant/0 ant/1 ant/2 ant/3 bee/0 bee/1 bee/3 cat/0 cat/1 cat/2 cat/3 "
for key in $(larder ls d); do
    larder get d "$key" --field data | cmp - "src/$key.bin" || fail "bytes of $key after the repair"
done
run larder get d bee/2
rc_is 1
ok larder repair d
out_is "nothing to repair"

# gc: the old generation is young; then it goes, with the damaged shard
run larder gc d
rc_is 0
has out '^removed 0 generations, 0 files, 0 B; 1 generation kept as too young, --older-than decides$'
[ -e "d/shards/$shard" ] || fail "gc removed a young shard"
ok larder gc d --older-than 0 --dry-run
has out "^would remove shards/$shard: "
has out '^would remove 1 generation, '
[ -e "d/shards/$shard" ] || fail "--dry-run removed a shard"
ok larder gc d --older-than 0 --json
lines_are_json "$tmp/out"
is gc "$(json_of "$tmp/out" 'o[-1]["event"], o[-1]["generations"], o[-1]["young"], sum(l["event"] == "removed" for l in o) == o[-1]["files"]')" \
    "('done', 1, 0, True)"
[ ! -e "d/shards/$shard" ] || fail "gc left the damaged shard"
ok larder verify d
is samples "$(larder ls d | wc -l)" 11
ok larder gc d --older-than 0
out_is "removed 0 generations, 0 files, 0 B"

# a lost manifest and a lost index: everything comes back from the shards
uuid=$(larder info d --json | "$PYTHON" -c 'import json,sys; print(json.load(sys.stdin)["uuid"])')
larder ls d >"$tmp/keys"
rm -rf d/manifests/*.json d/larder.json
run larder info d
[ $rc -eq 1 ] || [ $rc -eq 3 ] || fail "status $rc without a manifest"
run larder repair d
rc_is 0
ok larder verify d
is uuid "$(larder info d --json | "$PYTHON" -c 'import json,sys; print(json.load(sys.stdin)["uuid"])')" "$uuid"
larder ls d | sort | cmp - <(sort "$tmp/keys") || fail "keys after the repair from shards"
# the folder of the lost generation's index is still there: damage the one that the manifest names
part=$("$PYTHON" -c 'import glob, json; print(json.load(open(glob.glob("d/manifests/*.json")[0]))["index"][0]["dir"])')
flip "$(echo d/index/"$part"/*.sst)" 40
run larder verify d
rc_is 3
has out '^damaged index/'
run larder repair d
rc_is 0
has out 'lineage and ordinals kept$'
ok larder verify d
larder get d cat/3 --field data | cmp - src/cat/3.bin || fail "a key after the index was rebuilt"
echo "test_damage: ok"
