#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Help, version and wrong usage: nothing here touches a dataset.
. "$(dirname "$0")/common.sh"

version=$(sed -n 's/^#define LARDER_VERSION "\(.*\)"/\1/p' "$root/loader/larder.h")
ok larder --version
out_is "larder $version"

ok larder --help
out_is "usage: larder VERB [OPTION...] ARGUMENT...
A store of training samples: packed, indexed, checked, read ahead in epochs.

  ingest   Convert a folder or tar files into a dataset.
  info     Describe a dataset: size, schema, generation.
  ls       List keys in the order of their ordinals.
  get      Show samples, or write the bytes of a field.
  export   Write samples as files into a folder or a tar.
  verify   Check every byte: manifest, index, shards.
  repair   Rebuild index and manifest, drop what is damaged.
  gc       Remove old generations and stray files.
  copy     Copy a dataset between directories and buckets.
  bench    Run the loader and report each epoch.
  cache    Look at, fill or empty caches on local disks.

A DATASET is a path, s3://BUCKET/PREFIX, or http(s)://HOST/PREFIX to read; 'larder help remote' tells more.
'larder VERB --help' tells a verb's options. Sizes: 64MiB = 64M, 8GB = 8 * 10^9.
Times: 24h, 7d, 30m, 90s.
Exit status: 0 done, 1 failed, 2 wrong usage, 3 corrupt data found."

ok larder gc --help
out_is "usage: larder gc [OPTION...] DATASET
Remove old generations and stray files.

Generations superseded only lately stay, whatever --keep says: a training job may be
reading one.

Options:
      --keep N                  newest generations that stay in any case [1]
      --older-than TIME         remove only what was superseded or written longer ago [24h]
      --dry-run                 report only, remove nothing
      --json                    one JSON object a line on stdout, nothing else there
  -q, --quiet                   no output, only errors
  -h, --help                    this text

And those of buckets, which 'larder help remote' explains.

Example:
  larder gc /data/photos --keep 2 --older-than 7d"
ok larder help gc
has out '^usage: larder gc'
sed 's/\\-/-/g' "$root/tools/larder.1" >"$tmp/man"
ok larder help remote
has out '^Buckets and web servers'
[ "$(grep -cE '^      --' "$tmp/out")" -eq 23 ] || fail "not the 23 options of buckets"
cp "$tmp/out" "$tmp/remote"
for verb in ingest info ls get export verify repair gc copy bench cache remote; do
    if [ $verb = remote ]; then ok larder help remote; else
        ok larder $verb --help
        has out "^usage: larder $verb "
    fi
    has out '^Example'
    # every option of --help is in the man page too
    for option in $(grep -oE -- '--[a-z][a-z-]+' "$tmp/out" | sort -u); do
        grep -qF -- "$option" "$tmp/man" || fail "larder.1 lacks $option of $verb"
    done
done

wrong() { # MESSAGE ARGUMENTS...
    local want=$1
    shift
    run larder "$@"
    rc_is 2
    out_is ''
    err_is "$want"
}
run larder
rc_is 2
has err '^usage: larder VERB'
wrong "larder: unknown verb 'verfy'; did you mean 'verify'? see 'larder --help'" verfy d
wrong "larder: unknown verb 'xyzzy'; see 'larder --help'" xyzzy
wrong "larder: unknown option '--json'; the verb comes first; see 'larder --help'" --json ls
wrong "larder: unknown verb 'g\x1b'; did you mean 'gc'? see 'larder --help'" $'g\x1b'
wrong "larder ingest: SOURCE is missing; see 'larder ingest --help'" ingest
wrong "larder ingest: DATASET is missing; see 'larder ingest --help'" ingest a
wrong "larder info: DATASET is missing; see 'larder info --help'" info
wrong "larder info: 'b' is one argument too many; see 'larder info --help'" info a b
wrong "larder get: KEY is missing; see 'larder get --help'" get d
wrong "larder ingest: unknown option '--shardsize'; did you mean '--shard-size'? see 'larder ingest --help'" \
    ingest a b --shardsize 1
wrong "larder ls: unknown option '-z'; see 'larder ls --help'" ls d -z
wrong "larder ls: --count needs a value; see 'larder ls --help'" ls d --count
wrong "larder ls: -n needs a value; see 'larder ls --help'" ls d -n
wrong "larder ls: --json takes no value; see 'larder ls --help'" ls d --json=1
wrong "larder ls: --count: 'x' is not a whole number; see 'larder ls --help'" ls d --count x
wrong "larder ls: --first: '-1' is not a whole number; see 'larder ls --help'" ls d --first -1
wrong "larder ingest: --shard-size: '64X' is not a size such as 64MiB, 8GB or 4096; see 'larder ingest --help'" \
    ingest a b --shard-size 64X
wrong "larder ingest: --shard-size: 5GiB is out of range, 1 to 4294967296 bytes are allowed; see 'larder ingest --help'" \
    ingest a b --shard-size 5GiB
wrong "larder ingest: --order: 'random' is not shuffled or source; see 'larder ingest --help'" ingest a b --order random
wrong "larder ingest: --compress: 'zstd:99' is not none, zstd, zstd:LEVEL, zstd-dict or zstd-dict:LEVEL with a level of 1 to 19; see 'larder ingest --help'" \
    ingest a b --compress zstd:99
wrong "larder ingest: --workers: 0 is out of range, 1 to 1024 are allowed; see 'larder ingest --help'" ingest a b -j0
wrong "larder verify: --subset: '3/2' is not a part n/t with 1 <= n <= t, such as 1/10; see 'larder verify --help'" \
    verify d --subset 3/2
wrong "larder gc: --older-than: '3y' is not a time such as 24h, 7d, 30m or 90s; see 'larder gc --help'" gc d --older-than 3y
for image in rrc rrc: rrc:0 rrc:224x center:1x2x3 full:70000 crop:5; do
    wrong "larder bench: --image: '$image' is not raw, rrc:SIDE, center:SIDE or full:SIDE, with a SIDE such as 224 or 224x160 (width x height); see 'larder bench --help'" \
        bench d --image $image
done
wrong "larder bench: --flip needs --image rrc:SIDE, center:SIDE or full:SIDE; see 'larder bench --help'" bench d --flip 0.5
wrong "larder bench: --flip: '1.5' is not a number from 0 to 1 such as 0.5; see 'larder bench --help'" bench d --image rrc:8 --flip 1.5
wrong "larder bench: --decoded-cache needs --image rrc:SIDE, center:SIDE or full:SIDE; see 'larder bench --help'" bench d --decoded-cache 4MiB
for normalize in x 1 1, 1,2,3 1,2,3,4,5,6,7 nan,1; do
    wrong "larder bench: --normalize: '$normalize' is not imagenet, MEAN,STD such as 0.5,0.25, or three means and three standard deviations; see 'larder bench --help'" \
        bench d --image rrc:8 --normalize $normalize
done
wrong "larder bench: --normalize: '0.5,0' is not a normalization: a standard deviation has to be above 0; see 'larder bench --help'" \
    bench d --image rrc:8 --normalize 0.5,0
wrong "larder bench: --dtype: 'int8' is not uint8, float16, bfloat16 or float32; see 'larder bench --help'" bench d --image rrc:8 --dtype int8
wrong "larder bench: --layout: 'chw' is not nhwc or nchw; see 'larder bench --help'" bench d --image rrc:8 --layout chw
wrong "larder bench: --split: '0.5' is not BEGIN:END, a part of 0:1 such as 0:0.9; see 'larder bench --help'" bench d --split 0.5
wrong "larder bench: --split: '0.5:0.5' is not BEGIN:END, a part of 0:1 such as 0:0.9; see 'larder bench --help'" bench d --split 0.5:0.5
wrong "larder bench: --fetch-size: '0' is not a number of samples such as 1024, or a size such as 64MiB; see 'larder bench --help'" bench d --fetch-size 0
wrong "larder bench: --max-bad: '0' is not a share above 0, 1 at most, such as 0.001; see 'larder bench --help'" bench d --max-bad 0
wrong "larder bench: --max-bad needs --on-bad-sample replace; see 'larder bench --help'" bench d --max-bad 0.1
wrong "larder bench: --filter and --order exclude each other: leave out of the order what is not wanted; see 'larder bench --help'" \
    bench d --filter a --order b
wrong "larder bench: --cuda: 'on' is not a whole number; see 'larder bench --help'" bench d --cuda on
wrong "larder bench: --shuffle: 'some' is not full, none or block; see 'larder bench --help'" bench d --shuffle some
# the options of buckets go with every verb
for verb in ingest info ls get export verify repair gc copy bench; do
    wrong "larder $verb: --requests: '64k' is not a whole number; see 'larder $verb --help'" $verb a b --requests 64k
    wrong "larder $verb: unknown option '--endpont'; did you mean '--endpoint'? see 'larder $verb --help'" $verb a b --endpont=x
done
wrong "larder ls: --endpoint needs a value; see 'larder ls --help'" ls d --endpoint
wrong "larder ls: --insecure takes no value; see 'larder ls --help'" ls d --insecure=1
wrong "larder ls: --addressing: 'host' is not auto, path or virtual; see 'larder ls --help'" ls d --addressing host
wrong "larder ls: --timeout: '0' is not a time such as 20s, 500ms or 2m; see 'larder ls --help'" ls d --timeout 0
wrong "larder ls: --stall-timeout: '5us' is not a time such as 20s, 500ms or 2m; see 'larder ls --help'" ls d --stall-timeout 5us
wrong "larder ls: --hedge: 21 is out of range, 0 to 20 are allowed; see 'larder ls --help'" ls d --hedge 21
wrong "larder ls: --gap: 'none' is not a size such as 64MiB, 8GB or 4096; see 'larder ls --help'" ls d --gap none
wrong "larder ls: --get-size: 1 is out of range, 4096 to 1073741824 bytes are allowed; see 'larder ls --help'" ls d --get-size 1
wrong "larder ls: --price-get: '-1' is not a price in dollars such as 0.0004; see 'larder ls --help'" ls d --price-get -1
wrong "larder copy: DST is missing; see 'larder copy --help'" copy a
wrong "larder get: --output needs --field; see 'larder get --help'" get d k -o f
wrong "larder get: --json and --field exclude each other: one describes, the other writes bytes; see 'larder get --help'" \
    get d k --json --field image

# what is not there
for verb in info ls verify repair gc bench; do
    run larder $verb nowhere
    rc_is 1
    out_is ''
    [ "$(wc -l <"$tmp/err")" -eq 1 ] || fail "$verb: more than one line on stderr"
    has err "^larder $verb: .*nowhere"
done
run larder get nowhere k
rc_is 1
has err '^larder get: .*nowhere'
[ ! -e nowhere ] || fail "a verb that only reads made a dataset"

# stdout that cannot be written
run bash -c '"$LARDER" --help >/dev/full'
rc_is 1
err_is 'larder: cannot write to standard output: No space left on device'
run bash -c '"$LARDER" --help >&-'
rc_is 1
err_is 'larder: cannot write to standard output: Bad file descriptor'
echo "test_usage: ok"
