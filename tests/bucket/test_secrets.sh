#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# No secret in anything that larder prints: results, statistics, errors of every kind, from environment and profile, with a session token.
. "$(dirname "$0")/common.sh"
new_bucket secrets
new_proxy
"$BUILD/tests/data/mkjpegs" images 60 1
uri=s3://$bucket/in
id=AKIASECRETTESTID0001 secret=Zz9secret/Zz9secret+Zz9secret0000000000 token=Yy8token/Yy8token+Yy8token==
all=$tmp/all

# Everything that is printed goes to $all; the status does not matter.
say() {
    "$@" >>"$all" 2>&1 </dev/null || true
}
silent() {
    if grep -nE 'Zz9|Yy8|Signature=|AWS4-HMAC' "$all" || grep -n -- "$AWS_SECRET_ACCESS_KEY" "$all"; then
        fail "a secret was printed"
    fi
}

# what goes well, with the server's own secret
say larder ingest images "$uri" --json
for verb in 'info' 'ls' 'verify' 'gc' 'bench'; do
    say larder $verb "$uri" --json
done
grep -q 'data_hash' "$all"
silent

# what does not
wrong() {
    for verb in info verify bench; do
        say env "$@" "$LARDER" $verb "$uri" --json --tries 2 --timeout 5s
        say env "$@" "$LARDER" $verb "$uri" --tries 2 --timeout 5s
    done
    say env "$@" "$LARDER" ingest images "s3://$bucket/other" --tries 2 --timeout 5s
}
wrong AWS_SECRET_ACCESS_KEY="$secret"
wrong AWS_ACCESS_KEY_ID="$id" AWS_SECRET_ACCESS_KEY="$secret" AWS_SESSION_TOKEN="$token"
wrong AWS_SECRET_ACCESS_KEY="$secret" AWS_ENDPOINT_URL=http://127.0.0.1:1
wrong AWS_SECRET_ACCESS_KEY="$secret" AWS_ENDPOINT_URL="http://user:Zz9password@127.0.0.1:1"
wrong AWS_SECRET_ACCESS_KEY="$secret" AWS_ENDPOINT_URL="$S3_PROXY_TLS"
wrong AWS_SECRET_ACCESS_KEY="$secret with blanks"
say larder info "s3://$id:Zz9password@$bucket/in"
say larder info "http://user:Zz9password@127.0.0.1:1/in" --tries 1
say larder info "$S3_ENDPOINT/$bucket/in" # not signed
printf '[ml]\naws_access_key_id = %s\naws_secret_access_key = %s\naws_session_token = %s\n' "$id" "$secret" "$token" >"$tmp/credentials"
wrong -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY AWS_PROFILE=ml AWS_SHARED_CREDENTIALS_FILE="$tmp/credentials"
for fault in err500 slowdown close skew; do
    faults "$fault=1"
    wrong AWS_SECRET_ACCESS_KEY="$secret" AWS_ENDPOINT_URL="$S3_PROXY"
done
grep -q 'profile ml' "$all"
grep -q '403' "$all"
silent
