# SPDX-License-Identifier: Apache-2.0
# common.sh - sourced by tests of the larder command: a fresh folder to work in, and exact comparison of what a command
# prints and returns.
#
#     run larder ls d            stdout, stderr and status into out, err and $rc
#     rc_is 0; out_is 'text'; err_is ''     compare them, whole, after normalise
#     is WHAT HAVE WANT          compare two strings
#
# normalise puts TMP, UUID, SHARD, TIME, SECONDS and RATE where runs differ.
set -Eeuo pipefail
: "${LARDER:?the path of the larder program}"
PYTHON=${PYTHON:-/usr/bin/python3}
test_name=$(basename "$0" .sh)
root=$PWD
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
mkdir -p work
cd work

trap 'rc=$?; echo "$test_name: line ${BASH_LINENO[${#BASH_LINENO[@]} - 2]:-$LINENO}: status $rc of: $BASH_COMMAND"' ERR
fail() {
    echo "$test_name: line ${BASH_LINENO[${#BASH_LINENO[@]} - 2]}: $*"
    exit 1
}
larder() { "$LARDER" "$@"; }

rc=0
run() {
    rc=0
    "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || rc=$?
    if grep -qE 'ERROR: (Address|Leak|Thread)Sanitizer|runtime error:' "$tmp/err"; then
        cat "$tmp/err"
        fail "$*: a sanitizer complains"
    fi
}
normalise() {
    sed -E -e "s|$tmp/work/||g; s|$tmp|TMP|g" \
        -e 's/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/UUID/g' \
        -e 's/[0-9a-f]{16}-[0-9]{6}/SHARD/g' \
        -e 's/20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z/TIME/g' \
        -e 's/in [0-9]+\.[0-9] s \([0-9.]+ [kMGT]?B\/s\)/in SECONDS (RATE)/' \
        -e 's/"seconds": [0-9.]+/"seconds": SECONDS/; s/"bytes_per_s": [0-9.]+/"bytes_per_s": RATE/'
}
same() { # WHAT FILE WANT
    local have
    have=$(normalise <"$2"; echo x)
    [ "${have%x}" = "$3" ] && return
    printf '%s' "$3" | diff -u --label expected --label "$1" - <(printf '%s' "${have%x}") || true
    fail "$1 differs"
}
out_is() { if [ -z "${1-}" ]; then same stdout "$tmp/out" ''; else same stdout "$tmp/out" "$1"$'\n'; fi; }
err_is() { if [ -z "${1-}" ]; then same stderr "$tmp/err" ''; else same stderr "$tmp/err" "$1"$'\n'; fi; }
rc_is() {
    [ "$rc" -eq "$1" ] && return
    cat "$tmp/out" "$tmp/err"
    fail "exit status $rc, not $1"
}
ok() { # a command that must succeed and keep stderr clean
    run "$@"
    rc_is 0
    err_is ''
}
is() { [ "$2" = "$3" ] || fail "$1: have '$2', want '$3'"; }
has() { grep -qE -- "$2" "$tmp/$1" || { cat "$tmp/$1"; fail "no /$2/ in $1"; }; }
lines_are_json() { # each line of FILE is one JSON object
    "$PYTHON" -c '
import json, sys
for line in open(sys.argv[1]):
    if not isinstance(json.loads(line), dict): sys.exit("not an object: " + line)
' "$1" || fail "not JSON lines"
    head -n 1 "$1" | "$PYTHON" -m json.tool >/dev/null || fail "json.tool refuses the first line"
}
json_of() { # FILE EXPRESSION over `o` (list of objects)
    "$PYTHON" -c '
import json, sys
o = [json.loads(l) for l in open(sys.argv[1])]
print(eval(sys.argv[2]))' "$1" "$2"
}
# A folder of 3 classes with 12 small files, the same bytes every time.
make_tree() {
    "$PYTHON" - "$1" <<'PY'
import os, sys, hashlib
for c in ("ant", "bee", "cat"):
    os.makedirs(f"{sys.argv[1]}/{c}", exist_ok=True)
    for i in range(4):
        n = hashlib.sha256(f"{c}{i}".encode()).digest()
        with open(f"{sys.argv[1]}/{c}/{i}.bin", "wb") as f:
            f.write((n * 40)[: 500 + 100 * i])
PY
}
sums() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum); }
