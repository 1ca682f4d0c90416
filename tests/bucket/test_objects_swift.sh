#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_objects once more, on OpenStack Swift with its s3api: another server's idea of S3, which ignores If-None-Match.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
reason=$("$server" have swift) || { echo "$reason"; exit 77; }
lines=$("$server" swift "$tmp-swift" $$)
eval "$lines"
unset AWS_ENDPOINT_URL
cd "$root"
S3_ENDPOINT=$SWIFT_ENDPOINT AWS_ACCESS_KEY_ID=$SWIFT_KEY AWS_SECRET_ACCESS_KEY=$SWIFT_SECRET S3_NO_CONDITIONS=1 \
    "$BUILD/tests/bucket/test_objects" what_larder_writes what_others_wrote uploads_that_nobody_finished
