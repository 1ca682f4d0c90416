# SPDX-License-Identifier: Apache-2.0
# common.sh - what the shell tests of buckets share, over that of tests/e2e. Servers and credentials come by the environment, from run.sh.
#
#     new_bucket NAME            makes a bucket of this test's own: $bucket
#     new_proxy                  a fault proxy of this test's own: S3_PROXY, WEB_PROXY and so on name it
#     faults a=1 b=2 ...         replaces what the proxy does to requests; none: it only forwards
#     proxied NAME               the proxy's count of requests, bytes, GET, flip, ... since faults
#     bounded SECONDS COMMAND    fails the test when the command takes longer
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/common.sh"
: "${S3_ENDPOINT:?run by tests/bucket/run.sh, or after eval of server.sh start}"
server=$root/tests/bucket/server.sh
export AWS_ENDPOINT_URL=$S3_ENDPOINT

# s3_curl METHOD PATH [CURL OPTION...]
s3_curl() {
    local method=$1 path=$2
    shift 2
    curl -sS --fail-with-body -X "$method" -H "x-amz-content-sha256: UNSIGNED-PAYLOAD" --aws-sigv4 "aws:amz:us-east-1:s3" --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" "$@" \
        "$S3_ENDPOINT/$path"
}
new_bucket() {
    bucket=$1-$$
    "$PYTHON" "$root/tests/bucket/files.py" create "$bucket"
}
new_proxy() {
    local lines
    lines=$("$server" proxy "$tmp-proxy" $$)
    eval "$lines"
}
faults() { printf '%s\n' "$@" | curl -sS -X PUT --data-binary @- "$S3_PROXY/__larder/faults"; }
proxied() {
    curl -sS "$S3_PROXY/__larder/stats" | "$PYTHON" -c 'import json, sys; print(json.load(sys.stdin).get(sys.argv[1], 0))' "$1"
}
bounded() {
    local limit=$1 start=$SECONDS status=0
    shift
    "$@" || status=$?
    [ $((SECONDS - start)) -le "$limit" ] || fail "$* took $((SECONDS - start)) s, more than $limit"
    return $status
}
