#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# http:// and https://, read only: a plain nginx, the same through faults, and a bucket that anybody may read.
. "$(dirname "$0")/common.sh"
unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_REGION AWS_DEFAULT_REGION AWS_ENDPOINT_URL
new_proxy
"$BUILD/tests/data/mkjpegs" images 120 1
larder ingest images d --quiet --shard-size 2MiB
mkdir -p "$WEB_ROOT/sets/a b"
cp -r d "$WEB_ROOT/sets/a b/d"
hash=$(larder bench d --json | json_of /dev/stdin 'o[0]["data_hash"]')

for uri in "$WEB/sets/a%20b/d" "$WEB/sets/a%20b/d/" "$WEB_PROXY/sets/a%20b/d"; do
    ok larder ls "$uri" --long
    is ls "$(sha256sum <"$tmp/out")" "$(larder ls d --long | sha256sum)"
    ok larder verify "$uri"
    has out 'all is well$'
    key=$(larder ls d -n 1)
    larder get "$uri" "$key" --field image | cmp - <(larder get d "$key" --field image) || fail "get from $uri"
    run larder bench "$uri" --json --epochs 2 --nvme "$tmp/cache:100MB"
    rc_is 0
    is data "$(json_of "$tmp/out" '{l["data_hash"] for l in o}')" "{'$hash'}"
    rm -r "$tmp/cache"
done
ok larder copy "$WEB/sets/a%20b/d" copied
ok larder verify copied --quiet
ok larder export "$WEB/sets/a%20b/d" out --count 3

faults latmin=1 latmax=5 slowdown=0.05 trunc=0.05 flip=0.05 close=0.05 full200=0.05 norange=0.05
run bounded 60 larder bench "$WEB_PROXY/sets/a%20b/d" --json
rc_is 0
is faulty "$(json_of "$tmp/out" 'o[0]["data_hash"]')" "$hash"
faults

read_only() { # no verb writes to a web server, and says so
    run larder "$@"
    rc_is 1
    has err "^larder $1: .*$WEB/sets"
    has err 'read.only|only read'
}
read_only ingest images "$WEB/sets/new"
read_only copy d "$WEB/sets/new"
read_only gc "$WEB/sets/a%20b/d"
read_only repair "$WEB/sets/a%20b/d"
run larder info "$WEB/sets/nothing"
rc_is 1
is lines "$(wc -l <"$tmp/err")" 1
has err "^larder info: .*$WEB/sets/nothing"
echo "test_web: ok"
