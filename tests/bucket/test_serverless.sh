#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A worker like AWS Lambda's: 512 MB of address space beyond the program's own, no io_uring, nothing locked, a home that cannot be written,
# credentials with a session token in the environment, and 512 MB of scratch space that stays within its limit.
. "$(dirname "$0")/common.sh"
new_bucket lambda
"$BUILD/tests/data/mkjpegs" images 400 1
larder ingest images d --quiet
hash=$(larder bench d --json | json_of /dev/stdin 'o[0]["data_hash"]')
mkdir home tasks scratch
chmod 555 home tasks

worker() { # COMMAND...
    (
        cd tasks
        [[ $LARDER == */asan/* || $LARDER == */tsan/* ]] || ulimit -v $((1024 * 1024)) # threads' stacks and arenas are reserved, not used
        ulimit -l 0
        exec env -i PATH=/usr/bin:/bin HOME="$tmp/work/home" TMPDIR="$tmp/work/scratch" LARDER_SCRATCH="$tmp/work/scratch/larder" LARDER_NO_URING=1 \
            AWS_ACCESS_KEY_ID="$AWS_ACCESS_KEY_ID" AWS_SECRET_ACCESS_KEY="$AWS_SECRET_ACCESS_KEY" AWS_REGION=us-east-1 \
            AWS_DEFAULT_REGION=us-east-1 AWS_ENDPOINT_URL="$AWS_ENDPOINT_URL" AWS_LAMBDA_FUNCTION_NAME=train AWS_LAMBDA_FUNCTION_MEMORY_SIZE=512 \
            AWS_EXECUTION_ENV=AWS_Lambda_provided.al2 LAMBDA_TASK_ROOT="$PWD" LAMBDA_RUNTIME_DIR=/nonexistent _HANDLER=train "$@"
    )
}
as_ordinary_user=()
if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then # root writes everywhere
    chmod 711 "$tmp" "$tmp/work"
    chmod 777 scratch
    as_ordinary_user=(setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --)
    cp "$LARDER" "$tmp/work/larder-copy"
    LARDER=$tmp/work/larder-copy
fi
run worker "${as_ordinary_user[@]}" "$LARDER" copy "$tmp/work/d" "s3://$bucket/d" --quiet
[ "$rc" -eq 0 ] || run larder copy d "s3://$bucket/d" --quiet # the ordinary user may not read it
rc_is 0
run worker "${as_ordinary_user[@]}" "$LARDER" bench "s3://$bucket/d" --json --staging 64MiB
rc_is 0
is data "$(json_of "$tmp/out" 'o[0]["data_hash"]')" "$hash"
run worker "${as_ordinary_user[@]}" "$LARDER" bench "s3://$bucket/d" --json --staging 64MiB --dram 128MB --cache-name "lambda-$$" --nvme "$tmp/work/scratch/cache:128MB" --epochs 2
rc_is 0
is data "$(json_of "$tmp/out" '{l["data_hash"] for l in o}')" "{'$hash'}"
run worker "${as_ordinary_user[@]}" "$LARDER" get "s3://$bucket/d" "$(larder ls d -n 1)"
rc_is 0
run worker "${as_ordinary_user[@]}" "$LARDER" verify "s3://$bucket/d" --quiet
rc_is 0
run worker "${as_ordinary_user[@]}" "$LARDER" ls "s3://$bucket/d" -n 3
rc_is 0
used=$(du -sk scratch | cut -f1)
[ "$used" -le $((512 * 1024)) ] || fail "$used kB of scratch space are in use"
is "left in the home" "$(find home tasks -mindepth 1 | wc -l)" 0

# ingest within the same limits: memory and scratch do not grow with the dataset
chmod -R a+rX images
run worker "${as_ordinary_user[@]}" "$LARDER" ingest "$tmp/work/images" "s3://$bucket/in" --quiet --workers 2 --shard-size 8MiB
rc_is 0
ok larder verify "s3://$bucket/in" --quiet
is data "$(larder bench "s3://$bucket/in" --json 2>/dev/null | json_of /dev/stdin 'o[0]["data_hash"]')" "$hash"
chmod 755 home tasks
echo "test_serverless: ok"
