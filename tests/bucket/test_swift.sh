#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A second implementation of S3: OpenStack Swift's. It refuses conditional PUTs (501), so that what it lacks is known, and reads,
# ranges, ETags, multipart and listings are those of another server than radosgw.
if ! reason=$("$PWD/tests/bucket/server.sh" have swift); then
    echo "$reason"
    exit 77
fi
. "$(dirname "$0")/common.sh"
lines=$("$server" swift "$tmp-swift" $$)
eval "$lines"
export S3_ENDPOINT=$SWIFT_ENDPOINT AWS_ENDPOINT_URL=$SWIFT_ENDPOINT AWS_ACCESS_KEY_ID=$SWIFT_KEY AWS_SECRET_ACCESS_KEY=$SWIFT_SECRET
new_bucket swift
"$BUILD/tests/data/mkjpegs" images 100 1
larder ingest images d --quiet --shard-size 2MiB
hash=$(larder bench d --json | json_of /dev/stdin 'o[0]["data_hash"]')

"$PYTHON" "$root/tests/bucket/files.py" put "$bucket" 'a b/ü+&' d
uri="s3://$bucket/a b/ü+&"
ok larder ls "$uri" --long
is ls "$(sha256sum <"$tmp/out")" "$(larder ls d --long | sha256sum)"
ok larder verify "$uri"
has out 'all is well$'
key=$(larder ls d -n 1)
larder get "$uri" "$key" --field image | cmp - <(larder get d "$key" --field image) || fail "get $key"
run larder bench "$uri" --json --epochs 2 --nvme "$tmp/cache:100MB"
rc_is 0
is data "$(json_of "$tmp/out" '{l["data_hash"] for l in o}')" "{'$hash'}"
ok larder copy "$uri" back --quiet
ok larder verify back --quiet
run env AWS_SECRET_ACCESS_KEY=othersecret "$LARDER" info "$uri"
rc_is 1
has err '403'
run larder info "s3://$bucket/nothing"
rc_is 1
has err "s3://$bucket/nothing"

# writing: committed or refused in one line, never half
run larder ingest images "s3://$bucket/in" --quiet --shard-size 2MiB
if [ "$rc" -eq 0 ]; then
    ok larder verify "s3://$bucket/in" --quiet
else
    rc_is 1
    is lines "$(wc -l <"$tmp/err")" 1
    has err "s3://$bucket/in"
    run larder info "s3://$bucket/in"
    rc_is 1
fi
echo "test_swift: ok"
