#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh PROGRAM... - tests/run.sh with the servers of server.sh running, which all the programs share: each makes buckets of its own,
# and a proxy of its own (server.sh proxy) when it wants faults. Without the servers' packages every program is skipped.
set -u
here=$(dirname "${BASH_SOURCE[0]}")
if ! reason=$("$here/server.sh" have ceph && "$here/server.sh" have nginx && "$here/server.sh" have boto3); then
    for prog; do echo "$(basename "$prog"): skipped: $reason"; done
    echo "bucket: 0 passed, 0 failed, $# skipped"
    [ -z "${TEST_TOTALS:-}" ] || echo "bucket 0 0 $#" >>"$TEST_TOTALS"
    exit 0
fi
dir=$(mktemp -d "${TMPDIR:-/tmp}/larder-bucket.XXXXXX")
trap '"$here/server.sh" stop "$dir/s"; rm -rf --one-file-system "$dir"' EXIT
trap 'exit 1' INT TERM
lines=$("$here/server.sh" start "$dir/s" $$) || {
    echo "bucket: 0 passed, 1 failed, 0 skipped"
    [ -z "${TEST_TOTALS:-}" ] || echo "bucket 0 1 0" >>"$TEST_TOTALS"
    exit 1
}
eval "$lines"
unset AWS_PROFILE AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3 AWS_CA_BUNDLE AWS_SESSION_TOKEN
export AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null
"$here/../run.sh" bucket "$@"
