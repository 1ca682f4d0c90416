#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What is refused is refused at once, in one line that says what to check; what has expired or is off is renewed; secrets are never told.
. "$(dirname "$0")/common.sh"
new_bucket errors
new_proxy
make_tree src
larder ingest src d --quiet
ok larder copy d "s3://$bucket/d" --quiet

# refused WORDS COMMAND...: one line with all the words (extended regular expressions), soon, and no secret
refused() {
    local words=$1 start=$SECONDS word
    shift
    run "$@"
    rc_is 1
    out_is ''
    is "lines on stderr" "$(wc -l <"$tmp/err")" 1
    for word in $words; do has err "$word"; done
    [ $((SECONDS - start)) -le 30 ] || fail "$*: took $((SECONDS - start)) s"
    ! grep -qF -e "$AWS_SECRET_ACCESS_KEY" -e "othersecret" "$tmp/err" || fail "a secret is told: $(cat "$tmp/err")"
}
refused "s3://$bucket/nothing no.*dataset" larder info "s3://$bucket/nothing"
refused "no-such-bucket-$$ 404|bucket" larder info "s3://no-such-bucket-$$/d"
refused "s3://$bucket/d 403 environment" env AWS_SECRET_ACCESS_KEY=othersecret "$LARDER" info "s3://$bucket/d"
refused "s3://$bucket/d 403" env AWS_ACCESS_KEY_ID=AKIANOBODY "$LARDER" info "s3://$bucket/d"
refused "s3://$bucket/d 403" larder info "s3://$bucket/d" --anonymous
refused "credentials" env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY "$LARDER" info "s3://$bucket/d"
refused "nowhere.invalid" larder info "s3://$bucket/d" --endpoint http://nowhere.invalid:9 --timeout 3s
refused "s3://$bucket/d 127.0.0.1 connect" larder info "s3://$bucket/d" --endpoint http://127.0.0.1:9 --timeout 3s
refused "certificate|TLS|SSL" larder info "s3://$bucket/d" --endpoint "$S3_PROXY_TLS"
ok larder info "s3://$bucket/d" --endpoint "$S3_PROXY_TLS" --ca-bundle "$S3_CA"
ok larder info "s3://$bucket/d" --endpoint "$S3_PROXY_TLS" --insecure
ok env AWS_CA_BUNDLE="$S3_CA" "$LARDER" info "s3://$bucket/d" --endpoint "$S3_PROXY_TLS"

# every verb
for verb in info ls verify gc repair bench; do
    refused "no-such-bucket-$$" larder $verb "s3://no-such-bucket-$$/d"
    refused "403" env AWS_SECRET_ACCESS_KEY=othersecret "$LARDER" $verb "s3://$bucket/d"
done
refused "403" env AWS_SECRET_ACCESS_KEY=othersecret "$LARDER" ingest src "s3://$bucket/new"
refused "403" env AWS_SECRET_ACCESS_KEY=othersecret "$LARDER" copy d "s3://$bucket/new"
refused "no-such-bucket-$$" larder copy d "s3://no-such-bucket-$$/new"

# the wrong region: told where the bucket is
faults region=eu-west-1
refused "s3://$bucket/d us-east-1 eu-west-1" larder info "s3://$bucket/d" --endpoint "$S3_PROXY"
ok larder info "s3://$bucket/d" --endpoint "$S3_PROXY" --region eu-west-1
faults

# a server that never answers: the deadline is kept
faults hang=1
refused "s3://$bucket/d" larder info "s3://$bucket/d" --endpoint "$S3_PROXY" --stall-timeout 500ms --timeout 3s
faults slowdown=1
refused "s3://$bucket/d 503" larder info "s3://$bucket/d" --endpoint "$S3_PROXY" --timeout 4s
faults

# Credentials that a container's endpoint hands out, expired ones first: they are asked for again.
mkdir -p "$WEB_ROOT"
date=$(date -u -d '+1 hour' +%Y-%m-%dT%H:%M:%SZ)
creds() { # KEY SECRET
    printf '{"AccessKeyId": "%s", "SecretAccessKey": "%s", "Token": "", "Expiration": "%s"}' "$1" "$2" "$date" >"$WEB_ROOT/creds.new"
    mv "$WEB_ROOT/creds.new" "$WEB_ROOT/creds"
}
key=$AWS_ACCESS_KEY_ID secret=$AWS_SECRET_ACCESS_KEY
creds "$key" "$secret"
container=(env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY AWS_CONTAINER_CREDENTIALS_FULL_URI="$WEB/creds")
ok "${container[@]}" "$LARDER" info "s3://$bucket/d"
faults expired=AKIAEXPIRED
creds AKIAEXPIRED othersecret
(sleep 1; creds "$key" "$secret") &
run bounded 40 "${container[@]}" "$LARDER" info "s3://$bucket/d" --endpoint "$S3_PROXY" --timeout 15s
wait $!
if [ "$rc" -ne 0 ]; then has err 'expired'; fi # it may have asked too soon; then it says what to do
is expired "$([ "$(proxied expired)" -ge 1 ] && echo yes)" yes
creds AKIAEXPIRED othersecret
refused "expired" "${container[@]}" "$LARDER" info "s3://$bucket/d" --endpoint "$S3_PROXY" --timeout 10s
faults

# Profiles and files
mkdir home home/.aws
printf '[default]\naws_access_key_id = AKIANOBODY\naws_secret_access_key = othersecret\n[ml]\naws_access_key_id = %s\naws_secret_access_key = %s\n' \
    "$key" "$secret" >home/.aws/credentials
printf '[profile ml]\nregion = us-east-1\nendpoint_url = %s\n' "$S3_ENDPOINT" >home/.aws/config
files=(env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY -u AWS_CONFIG_FILE -u AWS_SHARED_CREDENTIALS_FILE)
home=HOME=$PWD/home
ok "${files[@]}" -u AWS_ENDPOINT_URL "$home" "$LARDER" info "s3://$bucket/d" --profile ml
ok "${files[@]}" -u AWS_ENDPOINT_URL "$home" AWS_PROFILE=ml "$LARDER" info "s3://$bucket/d"
refused "403 default|credentials" "${files[@]}" "$home" "$LARDER" info "s3://$bucket/d"
refused "nobody" "${files[@]}" "$home" "$LARDER" info "s3://$bucket/d" --profile nobody

# A clock that is two hours off: the server's is taken.
cc -shared -fPIC -O1 -o "$tmp/skew.so" "$root/tests/bucket/skew.c"
larder bench d --json >"$tmp/disk"
for off in 7200 -7200; do
    run bounded 60 env LD_PRELOAD="$tmp/skew.so" SKEW_SECONDS=$off "$LARDER" bench "s3://$bucket/d" --json
    rc_is 0
    is "data, clock $off" "$(json_of "$tmp/out" 'o[0]["data_hash"], o[0]["remote"]["retries"]["all"]')" \
        "('$(json_of "$tmp/disk" 'o[0]["data_hash"]')', 0)"
done
echo "test_errors: ok"
