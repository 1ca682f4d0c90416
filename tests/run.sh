#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh NAME PROGRAM... - runs test programs in parallel, each with a time limit (TEST_TIMEOUT, 300 s).
#
# A program's output is kept below $BUILD/test-logs and shown when it fails. Exit status 77 is a skip, its last line
# the reason. A program that appends "passed failed skipped" lines to $TEST_COUNTS counts as that many tests, another
# as one. Prints "NAME: N passed, N failed, N skipped" and appends it to $TEST_TOTALS when that is set.
set -u
name=$1
shift
limit=${TEST_TIMEOUT:-300}
logs=${BUILD:-build}/test-logs/$name
rm -rf "$logs"
mkdir -p "$logs"

one() {
    local prog=$1 id log rc start=$SECONDS
    id=$(basename "$prog")
    log=$logs/$id
    case $prog in
    *.py) set -- "${PYTHON:-/usr/bin/python3}" "$prog" ;;
    *.sh) set -- bash "$prog" ;;
    */fuzz_*) # libFuzzer: new inputs to the build folder, beginning from the committed corpus
        mkdir -p "$BUILD/corpus/$id" "tests/fuzz/corpus/${id#fuzz_}"
        set -- "$prog" -max_total_time="$FUZZ_SECONDS" -timeout=25 -rss_limit_mb=4096 -verbosity=0 -print_final_stats=1 \
            -artifact_prefix="$BUILD/$id-" "$BUILD/corpus/$id" "tests/fuzz/corpus/${id#fuzz_}"
        ;;
    esac
    TEST_COUNTS=$log.counts timeout -k 10 "$limit" "$@" >"$log.out" 2>&1 </dev/null
    rc=$?
    echo "$rc" >"$log.rc"
    case $rc in
    0) [ -n "${TEST_QUIET:-}" ] || tail -n 1 "$log.out" | cut -c1-160 ;;
    77) echo "$id: skipped: $(tail -n 1 "$log.out" | cut -c1-160)" ;;
    *)
        [ $rc -eq 124 ] || [ $rc -eq 137 ] && echo "time limit of $limit s reached" >>"$log.out"
        [ $rc -gt 128 ] && [ $rc -ne 137 ] && echo "ended by signal $((rc - 128))" >>"$log.out"
        (
            flock 9
            echo "---- $id FAILED (exit $rc after $((SECONDS - start)) s); the end of $log.out:"
            tail -n 60 "$log.out"
            echo "----"
        ) 9>"$logs/.lock"
        ;;
    esac
}
export -f one
export logs limit
[ $# -eq 0 ] || printf '%s\0' "$@" | xargs -0 -P "${JOBS:-$(nproc)}" -I{} bash -c 'one "$1"' one {}

passed=0 failed=0 skipped=0
for prog; do
    log=$logs/$(basename "$prog")
    rc=$(cat "$log.rc" 2>/dev/null || echo 1)
    p=0 f=0 s=0
    if [ -s "$log.counts" ]; then
        read -r p f s < <(awk '{p += $1; f += $2; s += $3} END {print p, f, s}' "$log.counts")
    fi
    case $rc in
    0) [ $((p + f + s)) -gt 0 ] || p=1 ;;
    77) [ "$s" -gt 0 ] || s=1 ;;
    *) [ "$f" -gt 0 ] || f=1 ;;
    esac
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
echo "$name: $passed passed, $failed failed, $skipped skipped"
[ -z "${TEST_TOTALS:-}" ] || echo "$name $passed $failed $skipped" >>"$TEST_TOTALS"
[ "$failed" -eq 0 ]
