#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bench registers its cache with CUDA where there is a driver and a device (here a stand-in, tests/unit/cuda_stand_in.c), says how much, and
# takes all of it back; --cuda off and --no-pin do not ask for a driver, and without one or without a device nothing is said.
. "$(dirname "$0")/common.sh"
"$PYTHON" - <<'PY'
import os
os.makedirs("src/a")
for i in range(300):
    with open(f"src/a/{i}.bin", "wb") as f:
        f.write(os.urandom(20000))
PY
ok larder ingest src d --fields data:bytes --quiet
export STAND_IN_LOG=$tmp/calls

bench() { # OPTION...: with the stand-in; the calls lie in $tmp/calls
    rm -f "$tmp/calls"
    run env LD_LIBRARY_PATH="$BUILD/tests/unit/stand_in" "$LARDER" bench d --json --dram 64MB --cache-name "cuda-$$" --batch-size 50 "$@"
    rc_is 0
}
calls() { grep -c "^$1 .* $2\$" "$tmp/calls" || true; } # NAME RESULT
registered() { json_of "$tmp/out" 'o[-1]["cache"]["registered_bytes"]'; }

# a thread of its own does it: as many epochs as that takes
epochs=5
until bench --epochs $epochs --compute-ms 2 --metrics "$tmp/metrics"; [ "$(registered)" -gt 0 ]; do
    epochs=$((epochs * 4))
    [ $epochs -lt 10000 ] || fail "nothing is registered: $(cat "$tmp/calls")"
done
is "bytes registered" "$(json_of "$tmp/out" '6000000 < o[-1]["cache"]["registered_bytes"] <= o[-1]["cache"]["dram"]["used_bytes"] + (2 << 20)')" True
has metrics '^larder_cache_registered_bytes\{.*tier="dram"\} [1-9][0-9]*$'
is "taken back" "$(calls cuMemHostUnregister 0)" "$(calls cuMemHostRegister_v2 0)"
is "contexts" "$(calls cuDevicePrimaryCtxRelease_v2 0)" "$(calls cuDevicePrimaryCtxRetain 0)"
is "errors" "$(awk '$NF != 0' "$tmp/calls" | wc -l)" 0

for off in '--cuda off' '--no-pin'; do
    bench --epochs 3 $off
    is "registered with $off" "$(registered)" 0
    [ ! -e "$tmp/calls" ] || fail "$off asks the driver"
done
for none in STAND_IN_DEVICES=0 STAND_IN_INIT=100; do
    export "${none?}"
    bench --epochs 3
    unset "${none%%=*}"
    is "registered with $none" "$(registered)" 0
    grep -q CUDA "$tmp/err" && fail "says something: $(cat "$tmp/err")"
done
export STAND_IN_RETAIN=2
epochs=5
until bench --epochs $epochs --compute-ms 2; grep -q CUDA "$tmp/err"; do
    epochs=$((epochs * 4))
    [ $epochs -lt 10000 ] || fail "an error is not told"
done
has err 'warning: CUDA: cuDevicePrimaryCtxRetain says CUDA_ERROR_OUT_OF_MEMORY \(2\): memory is not registered'
echo "test_cuda: ok"
