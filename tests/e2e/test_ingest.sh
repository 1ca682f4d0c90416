#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A folder of 3 classes with 12 files: ingest, info, ls, get, in text and JSON.
. "$(dirname "$0")/common.sh"
make_tree src
touch src/.hidden
mkfifo src/pipe

run larder ingest src d --fields data:bytes --order source
rc_is 0
err_is ''
cp "$tmp/out" "$tmp/ingest.out"
sed -i -E 's/[0-9.]+ kB in/SIZE in/' "$tmp/out"
out_is "ingested 12 samples in 1 shard, SIZE in SECONDS (RATE); skipped 0, ignored 2
ignored 2:
  .hidden: hidden
  pipe: not a regular file
generation 1: 12 samples"

# the same as JSON: every ignored thing an object of its own
ok larder ingest src dj --fields data:bytes --order source --json
lines_are_json "$tmp/out"
is ignored "$(json_of "$tmp/out" 'sorted(l["what"] for l in o if l["event"] == "ignored")')" "['.hidden', 'pipe']"
is final "$(json_of "$tmp/out" '[o[-1][k] for k in "event generation samples added resumed skipped ignored shards source_bytes".split()]')" \
    "['done', 1, 12, 12, 0, 0, 2, 1, 7800]"
rm -rf dj

# quiet says nothing
ok larder ingest src dq --quiet
out_is ''

ok larder info d
sed -i -E 's/^(size|records|raw) .*/\1 SIZE/' "$tmp/out"
out_is "uuid         UUID
lineage      UUID
generation   1
created      TIME
samples      12
shards       1
size SIZE
records SIZE
raw SIZE
ratio        1.00
compression  none
classes      3
schema
  data: bytes
  label: i64"
ok larder info d --json
lines_are_json "$tmp/out"
is info "$(json_of "$tmp/out" '[o[0][k] for k in "generation samples shards classes schema compression".split()]')" \
    "[1, 12, 1, 3, [{'name': 'data', 'type': 'bytes'}, {'name': 'label', 'type': 'i64'}], 'none']"
is shard_bytes "$(json_of "$tmp/out" 'o[0]["shard_bytes"]')" "$(cat d/shards/* | wc -c)"

ok larder ls d
out_is "ant/0
ant/1
ant/2
ant/3
bee/0
bee/1
bee/2
bee/3
cat/0
cat/1
cat/2
cat/3"
ok larder ls d --first 3 -n 2
out_is "ant/3
bee/0"
ok larder ls d --first 11 --count 99
out_is "cat/3"
ok larder ls d --first 5 --count 1 --json --long
lines_are_json "$tmp/out"
is ls "$(json_of "$tmp/out" '[o[0]["ordinal"], o[0]["key"], o[0]["slot"]]')" "[5, 'bee/1', 5]"
ok larder ls d --long --first 5 --count 1
read -r ordinal shard slot offset bytes key <"$tmp/out"
is long "$ordinal $slot $key" "5 5 bee/1"
[ -f "d/shards/$shard" ] || fail "no shard $shard"
# the bytes lie where the listing says
tail -c +$((offset + 1)) "d/shards/$shard" | head -c "$bytes" >"$tmp/record" || true
"$PYTHON" -c 'import sys; sys.exit(open(sys.argv[2], "rb").read() not in open(sys.argv[1], "rb").read())' \
    "$tmp/record" src/bee/1.bin || fail "record of bee/1 is not at its offset"
run larder ls d --first 12
rc_is 1
err_is "larder ls: ordinal 12 is beyond the 12 samples of d; give a smaller --first"

# get: every sample's bytes, by key and by ordinal, and its label
i=0
for key in $(larder ls d); do
    larder get d "$key" --field data | cmp - "src/$key.bin" || fail "bytes of $key"
    larder get d "@$i" -f data -o "$tmp/got"
    cmp "$tmp/got" "src/$key.bin" || fail "bytes of @$i"
    i=$((i + 1))
done
ok larder get d ant/0 bee/0 @11 --field label
out_is "0
1
2"
larder get d bee/2 cat/0 --field data | cmp - <(cat src/bee/2.bin src/cat/0.bin) || fail "two samples in turn"
ok larder get d bee/2
sed -i -E 's/offset [0-9]+, [0-9]+ B stored, [0-9]+ B raw/PLACE/' "$tmp/out"
out_is "key bee/2
  ordinal 6, shard SHARD, slot 6, PLACE
  data: bytes, 700 B (700 bytes)
  label: i64 1 (bee)"
ok larder get d bee/2 @0 --json
lines_are_json "$tmp/out"
is get "$(json_of "$tmp/out" '[(l["ordinal"], l["key"], l["fields"]) for l in o]')" \
    "[(6, 'bee/2', {'data': {'type': 'bytes', 'bytes': 700}, 'label': {'type': 'i64', 'bytes': 8, 'value': 1, 'class': 'bee'}}), (0, 'ant/0', {'data': {'type': 'bytes', 'bytes': 500}, 'label': {'type': 'i64', 'bytes': 8, 'value': 0, 'class': 'ant'}})]"

run larder get d ant/0 nothere
rc_is 1
out_is ''
err_is "larder get: no key 'nothere' in d; 'larder ls' lists the keys"
run larder get d ant/0 --field colour
rc_is 1
err_is "larder get: no field 'colour' in the schema of d; 'larder info' shows the fields"
for beyond in 12 18446744073709551615; do
    run larder get d @0 @$beyond
    rc_is 1
    out_is ''
    err_is "larder get: ordinal $beyond is beyond the 12 samples of d"
done
run larder get d @x
rc_is 2
err_is "larder get: '@x' is not @ORDINAL; a key that begins with '@' is given as '@@x'; see 'larder get --help'"
run larder get d ant/0 --field data -o /nowhere/f
rc_is 1
err_is "larder get: cannot open /nowhere/f: No such file or directory"
run larder get d ant/0 --field data -o /dev/full
rc_is 1
err_is "larder get: cannot write /dev/full: No space left on device"
run bash -c '"$LARDER" get d ant/0 --field data >/dev/full'
rc_is 1
err_is "larder get: cannot write to standard output: No space left on device"
run bash -c '"$LARDER" ls d | head -n 1'
rc_is 0
out_is ant/0
err_is ''

# a dataset is there already; other things are there; nothing is there; nothing in it
run larder ingest src d
rc_is 1
out_is ''
[ "$(wc -l <"$tmp/err")" -eq 1 ] || fail "more than one line"
has err '^larder ingest: .*d'
ok larder ls d --count 1
mkdir other empty
echo mine >other/file
run larder ingest src other
rc_is 1
is "what was there" "$(ls other; cat other/file)" "file
mine"
run larder ingest nothere d2
rc_is 1
has err '^larder ingest: .*nothere'
run larder ingest empty d2
rc_is 1
has err '^larder ingest: .*empty'
run larder ls d2
rc_is 1

# shuffled by default: the same order with any number of workers, another with another seed, no class in one block
ok larder ingest src s1 --workers 1 --quiet
ok larder ingest src s2 --workers 3 --quiet
ok larder ingest src s3 --seed 7 --quiet
larder ls s1 >"$tmp/s1"
larder ls s2 | cmp - "$tmp/s1" || fail "the order depends on the workers"
! larder ls s3 | cmp -s - "$tmp/s1" || fail "seed 7 gives the order of seed 0"
is "the keys" "$(sort "$tmp/s1")" "$(larder ls d)"
! larder ls d | cmp -s - "$tmp/s1" || fail "not shuffled"

# unreadable and damaged sources: fail, or skip with a list
cp -r src bad
cp src/ant/0.bin bad/ant/0.txt # the key ant/0 twice
run larder ingest bad b1 --fields data:bytes
rc_is 1
has err "^larder ingest: .*ant/0"
run larder ingest bad b2 --fields data:bytes --on-error skip --json
rc_is 0
lines_are_json "$tmp/out"
is skipped "$(json_of "$tmp/out" '[o[-1]["added"], o[-1]["skipped"], len([l for l in o if l["event"] == "skipped"])]')" "[12, 1, 1]"

# shards of a size, compression: the same bytes
ok larder ingest src z --fields data:bytes --order source --shard-size 4k --compress zstd:9 --quiet
[ "$(ls z/shards | wc -l)" -gt 1 ] || fail "--shard-size 4k made one shard"
ok larder info z --json
is compression "$(json_of "$tmp/out" 'o[0]["compression"], o[0]["ratio"] > 2')" "('zstd', True)"
for key in $(larder ls z); do
    larder get z "$key" --field data | cmp - "src/$key.bin" || fail "compressed bytes of $key"
done
ok larder ingest src zd --fields data:bytes --compress zstd-dict --quiet
for key in $(larder ls zd); do
    larder get zd "$key" --field data | cmp - "src/$key.bin" || fail "bytes of $key compressed with a dictionary"
done
ok larder verify zd
echo "test_ingest: ok"
