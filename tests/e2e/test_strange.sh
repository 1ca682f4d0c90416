#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Strange things: other files in a dataset's folder, things that are no files where files belong, odd names, odd places.
. "$(dirname "$0")/common.sh"
make_tree src
ok larder ingest src d --fields data:bytes --shard-size 2k --quiet

# what a user keeps beside a dataset hinders nobody; before there is one it does
echo notes >d/README.txt
mkdir more more/dog
echo woof >more/dog/1.bin
ok larder ingest more d --append --quiet
ok larder verify d
mkdir busy
echo notes >busy/README.txt
run larder ingest src busy
rc_is 1
err_is "larder ingest: busy: holds 'README.txt', so it is no dataset: give a new or empty folder"

# a manifest of a number beyond all numbers is none
cp d/manifests/1.json d/manifests/18446744073709551615.json
ok larder verify d
ok larder repair d
out_is "nothing to repair"
rm d/manifests/18446744073709551615.json

# a folder or a FIFO in a shard's place is damage of that shard alone
cp -r d d2
shard=$(ls d/shards | head -n 1)
rm "d/shards/$shard" "d2/shards/$shard"
mkdir "d/shards/$shard"
mkfifo "d2/shards/$shard"
for x in d d2; do
    run larder verify $x
    rc_is 3
    sed -i -E 's/^verified .*/VERIFIED/' "$tmp/out"
    out_is "damaged shards/SHARD: $x/shards/SHARD: not a regular file
VERIFIED"
    err_is "larder verify: 1 damaged place; larder repair drops what cannot be read and rebuilds the rest"
    run larder repair $x
    rc_is 0
    has out '1 shard lost'
    ok larder verify $x
done
# places where no dataset can be made say why
echo text >file
run larder ingest src file
rc_is 1
err_is "larder ingest: file: not a folder, name the folder of a dataset: Not a directory"
run larder ingest src /proc/nowhere
rc_is 1
err_is "larder ingest: /proc/nowhere: cannot make the folder: No such file or directory"
run larder info d --generation 9
rc_is 1
err_is "larder info: d: no generation 9 here"
if [ "$(id -u)" -eq 0 ] && setpriv --reuid=65534 --clear-groups test -x "$LARDER" 2>/dev/null; then
    chmod 755 "$tmp" "$tmp/work"
    run setpriv --reuid=65534 --clear-groups "$LARDER" ingest src "$tmp/work/denied"
    rc_is 1
    err_is "larder ingest: denied: cannot make the folder (give this user the right to it): Permission denied"
fi

# a limit on file sizes is an error, not a signal
run bash -c 'ulimit -f 1; "$LARDER" ingest src limited --quiet'
rc_is 1
has err '^larder ingest: .*File too large'
# few descriptors are enough, however many shards there are
mkdir wide wide/x
for i in {1..60}; do echo "$i" >wide/x/$i.txt; done
for verb in "ingest wide few --shard-size 1 --workers 2" "verify few" "bench few" "get few x/7" "export few out" "repair few"; do
    run bash -c "ulimit -n 40; exec \"\$LARDER\" $verb"
    rc_is 0
done
echo "test_strange: ok"
