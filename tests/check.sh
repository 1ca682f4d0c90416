#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check.sh SUITE... - builds, then runs each suite (a make target), goes on after failures, and ends with the line
# "N passed, N failed, N skipped".
set -u
export TEST_TOTALS=$PWD/build/check.totals TEST_QUIET=1
mkdir -p build
: >"$TEST_TOTALS"
failed_suites=
start=$SECONDS
for suite in all "$@"; do
    t=$SECONDS
    before=$(wc -l <"$TEST_TOTALS")
    if ! ${MAKE:-make} --no-print-directory -s -j"${JOBS:-2}" MODE="$MODE" BUILD="$BUILD" "$suite"; then
        failed_suites="$failed_suites $suite"
        # it did not get as far as counting: it does not build
        [ "$(wc -l <"$TEST_TOTALS")" -gt "$before" ] || echo "$suite 0 1 0" >>"$TEST_TOTALS"
    fi
    [ "$suite" = all ] || echo "   ($suite took $((SECONDS - t)) s)"
done
echo "check took $((SECONDS - start)) s${failed_suites:+; failed:$failed_suites}"
awk '{p += $2; f += $3; s += $4} END {printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0}' "$TEST_TOTALS"
