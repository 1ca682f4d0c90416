#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Append keeps ordinals, readers keep their generation, and of two writers one wins.
. "$(dirname "$0")/common.sh"
make_tree src
mkdir -p more/bee more/dog more/ant
for i in 7 8 9; do
    echo "more bee $i" >more/bee/m$i.bin
    echo "dog $i" >more/dog/$i.bin
done
echo ant >more/ant/m.bin
mkdir more/cat
echo cat >more/cat/m.bin

ok larder ingest src d --fields data:bytes --quiet
larder ls d >"$tmp/first"
ok larder info d --json
cp "$tmp/out" "$tmp/info1"
run larder ingest more d --fields data:bytes --append
rc_is 0
has out '^ingested 8 samples in 1 shard, '
has out '^generation 2: 20 samples$'
larder ls d >"$tmp/second"
cmp <(head -n 12 "$tmp/second") "$tmp/first" || fail "ordinals moved"
ok larder info d --json
is "identity" "$(json_of "$tmp/out" 'o[0]["uuid"], o[0]["lineage"], o[0]["generation"], o[0]["classes"]')" \
    "$(json_of "$tmp/info1" 'o[0]["uuid"], o[0]["lineage"], 2, 4')"
ok larder get d dog/7 bee/m7 ant/m --field label
out_is "3
1
0"
ok larder get d dog/7
has out 'label: i64 3 \(dog\)'
ok larder verify d
ok larder verify d --generation 1
has out '^verified generation 1: 1 shard, 12 samples'
ok larder info d --generation 1
has out '^samples +12$'
run larder info d --generation 9
rc_is 1

# the same keys again: refused, nothing changed
run larder ingest more d --fields data:bytes --append
rc_is 1
out_is ''
has err '^larder ingest: .*(ant/m|bee/m|dog/|cat/m)'
ok larder info d --json
is generation "$(json_of "$tmp/out" 'o[0]["generation"], o[0]["samples"]')" "(2, 20)"
run larder ingest more nowhere --append
rc_is 1
has err '^larder ingest: '
mkdir other
echo '{}' >other/a.json
run larder ingest other d --append --fields caption:json
rc_is 1
has err '^larder ingest: '

# two writers at once: at least one wins, a loser is told, no sample twice
for i in $(seq 300); do
    mkdir -p "w1/x" "w2/y"
    echo "one $i" >"w1/x/$i.bin"
    echo "two $i" >"w2/y/$i.bin"
done
ok larder ingest src two --fields data:bytes --quiet
"$LARDER" ingest w1 two --append --fields data:bytes --quiet 2>"$tmp/e1" & p1=$!
"$LARDER" ingest w2 two --append --fields data:bytes --quiet 2>"$tmp/e2" & p2=$!
r1=0 r2=0
wait $p1 || r1=$?
wait $p2 || r2=$?
case $r1$r2 in
00) want=612 ;;
01 | 10) want=312 ;;
*) cat "$tmp/e1" "$tmp/e2"; fail "status $r1 and $r2" ;;
esac
[ $r1 -eq 0 ] || grep -q '^larder ingest: ' "$tmp/e1" || fail "the loser says nothing"
[ $r2 -eq 0 ] || grep -q '^larder ingest: ' "$tmp/e2" || fail "the loser says nothing"
ok larder verify two
is samples "$(larder ls two | sort -u | wc -l)" $want
[ $r1 -eq 0 ] || ok larder ingest w1 two --append --fields data:bytes --quiet
[ $r2 -eq 0 ] || ok larder ingest w2 two --append --fields data:bytes --quiet
is samples "$(larder ls two | sort -u | wc -l)" 612
ok larder verify two
echo "test_append: ok"
