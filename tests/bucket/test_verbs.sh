#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every verb on s3://, with prefixes and keys of odd characters: the output is what the same verb gives for a directory.
. "$(dirname "$0")/common.sh"
new_bucket verbs
mkdir -p src/a "src/b c"
for i in 1 2 3 4 5 6; do printf 'text %s\n' $i >"src/a/$i.txt"; printf 'more %s\n' $i >"src/b c/ü+&=%$i?#'\"~.txt"; done
larder ingest src d --fields text:utf8 --shard-size 64 --quiet

same_as_directory() { # URI
    local uri=$1 verb
    for verb in 'ls --long' 'ls --json' 'ls --first 3 -n 2'; do
        larder ${verb%% *} d ${verb#* } >"$tmp/want"
        ok larder ${verb%% *} "$uri" ${verb#* }
        cmp "$tmp/out" "$tmp/want" || fail "$verb of $uri"
    done
    larder ls d | while read -r key; do
        [ "$(larder get "$uri" "$key" --field text)" = "$(larder get d "$key" --field text)" ] || fail "get $key of $uri"
    done
    ok larder get "$uri" @0 @11
    run larder get "$uri" nobody
    rc_is 1
    err_is "larder get: no key 'nobody' in $uri; 'larder ls' lists the keys"
    ok larder verify "$uri"
    has out 'all is well$'
    is data "$(larder bench "$uri" --json 2>/dev/null | json_of /dev/stdin 'o[0]["data_hash"]')" \
        "$(larder bench d --json | json_of /dev/stdin 'o[0]["data_hash"]')"
}

# names that have to be encoded, an empty prefix, and a trailing slash
for prefix in 'plain' 'a b/ü+&=c' "it's (1)*!~@:,;\$" '%41' 'deep/er/and/deeper/'; do
    ok larder copy d "s3://$bucket/$prefix"
    has out '^copied generation 1: 12 samples in '
    same_as_directory "s3://$bucket/$prefix"
done
"$PYTHON" "$root/tests/bucket/files.py" create "$bucket-root"
ok larder copy d "s3://$bucket-root" --quiet
same_as_directory "s3://$bucket-root"

uri="s3://$bucket/plain"
ok larder info "$uri" --json
is info "$(json_of "$tmp/out" '{k: v for k, v in o[0].items() if k != "dataset"}')" \
    "$(larder info d --json | json_of /dev/stdin '{k: v for k, v in o[0].items() if k != "dataset"}')"
ok larder export "$uri" out
is export "$(sums out)" "$(larder export d out2 --quiet; sums out2)"

# copy: again is nothing to do, back is the same dataset, from bucket to bucket too
ok larder copy d "$uri" --json
is again "$(json_of "$tmp/out" 'o[-1]["files"], o[-1]["bytes"]')" "(0, 0)"
ok larder copy d "$uri" --checksum --json
is again "$(json_of "$tmp/out" 'o[-1]["files"], o[-1]["files_there"] > 0')" "(0, True)"
ok larder copy "$uri" back
ok larder verify back --quiet
is back "$(cd back && sums shards)" "$(cd d && sums shards)"
ok larder copy "$uri" "s3://$bucket/second" --workers 2
ok larder verify "s3://$bucket/second" --quiet

# what is there is not overwritten by another dataset
larder ingest src other --fields text:utf8 --seed 9 --quiet
run larder copy other "$uri"
rc_is 1
has err '^larder copy: '
run larder ingest src "$uri" --fields text:utf8
rc_is 1
has err "^larder ingest: .*$bucket/plain"
same_as_directory "$uri"

# append, a second generation; gc leaves one; the copy follows
mkdir -p extra/a
printf 'new\n' >extra/a/new.txt
ok larder ingest extra "$uri" --append --fields text:utf8 --quiet
ok larder copy "$uri" d --json
is "what was new" "$(json_of "$tmp/out" 'o[-1]["files_there"] > 0, o[-1]["generation"]')" "(True, 2)"
ok larder info "$uri" --json
is appended "$(json_of "$tmp/out" 'o[0]["generation"], o[0]["samples"]')" "(2, 13)"
same_as_directory "$uri"
ok larder ls "$uri" --json
ok larder info "$uri" --generation 1 --json
is first "$(json_of "$tmp/out" 'o[0]["samples"]')" 12
ok larder gc "$uri" --older-than 0s --json
ok larder verify "$uri" --quiet
run larder info "$uri" --generation 1
rc_is 1
"$PYTHON" "$root/tests/bucket/files.py" list "$bucket" plain >"$tmp/list"
is manifests "$(grep -c manifests/ "$tmp/list")" 1

# repair: a shard is lost
"$PYTHON" "$root/tests/bucket/files.py" list "$bucket" second >"$tmp/list"
sed -n 's/ [0-9]*$//; /shards\//{p;q}' "$tmp/list" >"$tmp/victim"
s3_curl DELETE "$bucket/$(cat "$tmp/victim")"
run larder verify "s3://$bucket/second"
rc_is 3
run larder repair "s3://$bucket/second" --dry-run
rc_is 3
run larder repair "s3://$bucket/second"
rc_is 0
ok larder verify "s3://$bucket/second"
is "unfinished uploads" "$("$PYTHON" "$root/tests/bucket/files.py" uploads "$bucket")" ''
echo "test_verbs: ok"
