#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SIGINT and SIGTERM during an ingest: a line, death by that signal, and the same command goes on. The bar on a terminal.
. "$(dirname "$0")/common.sh"

"$PYTHON" - <<'PY'
import os, io, tarfile, hashlib
for d in range(400):
    os.makedirs(f"src/{d % 10}", exist_ok=True)
    with open(f"src/{d % 10}/{d}.bin", "wb") as f:
        f.write(hashlib.sha256(b"%d" % d).digest() * 1000)
PY

# interrupt SIGNAL DELAY: ingests until the signal, in a session of its own, with signals as a terminal would have them
cat >"$tmp/interrupt.py" <<'PY'
import os, signal, subprocess, sys, time
sig, delay, cmd = getattr(signal, sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
p = subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                     preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
time.sleep(delay)
p.send_signal(sig)
out, err = p.communicate(timeout=60)
sys.stderr.write(err.decode())
print(-p.returncode if p.returncode < 0 else "exit %d" % p.returncode)
PY
for try in SIGINT:0.03:2 SIGTERM:0.06:15; do
    IFS=: read -r sig delay number <<<"$try"
    stopped=
    for n in 1 2 3 4 5 6 7 8; do
        rm -rf d
        "$PYTHON" "$tmp/interrupt.py" $sig "$delay" "$LARDER" ingest src d --fields data:bytes --workers 1 --shard-size 256k \
            >"$tmp/how" 2>"$tmp/err"
        how=$(cat "$tmp/how")
        if [ "$how" = "$number" ] && [ -s "$tmp/err" ]; then
            stopped=1
            break
        fi
        # over too soon, or not begun: try another moment
        [ "$how" = "exit 0" ] && delay=$("$PYTHON" -c "print($delay / 1.7)") || delay=$("$PYTHON" -c "print($delay * 1.3)")
    done
    [ -n "$stopped" ] || fail "$sig never met the ingest: $how $(cat "$tmp/err")"
    err_is "larder ingest: interrupted; run the same command again to go on"
    run larder info d
    rc_is 1 # nothing is visible
    run larder ingest src d --fields data:bytes --workers 1 --shard-size 256k --json
    rc_is 0
    is "after $sig" "$(json_of "$tmp/out" 'o[-1]["samples"], o[-1]["added"]')" "(400, 400)"
    is keys "$(larder ls d | sort -u | wc -l)" 400
    ok larder verify d
done
larder get d 7/237 --field data | cmp - src/7/237.bin || fail "bytes after resuming"
ok larder bench d --json
resumed=$(json_of "$tmp/out" 'o[0]["order_hash"], o[0]["data_hash"]')
ok larder ingest src whole --fields data:bytes --workers 2 --shard-size 256k --quiet
ok larder bench whole --json
is "resumed and whole" "$(json_of "$tmp/out" 'o[0]["order_hash"], o[0]["data_hash"]')" "$resumed"
is "order" "$(larder ls whole | sha256sum)" "$(larder ls d | sha256sum)"

# other arguments, or another source, than the unfinished ingest's: refused until --restart
unfinished() {
    local n delay=0.05
    for n in 1 2 3 4 5 6 7 8; do
        rm -rf d
        how=$("$PYTHON" "$tmp/interrupt.py" SIGTERM $delay "$LARDER" ingest src d --fields data:bytes --workers 1 \
            --shard-size 256k 2>"$tmp/err")
        [ "$how" = 15 ] && [ -s "$tmp/err" ] && [ -n "$(ls d/shards 2>/dev/null)" ] && return
        [ "$how" = "exit 0" ] && delay=$("$PYTHON" -c "print($delay / 1.7)") || delay=$("$PYTHON" -c "print($delay * 1.3)")
    done
    fail "SIGTERM never met the ingest: $how"
}
unfinished
run larder ingest src d --fields data:bytes --shard-size 300k
rc_is 1
out_is ''
has err '^larder ingest: .*--?restart'
echo changed >src/3/3.bin
run larder ingest src d --fields data:bytes --workers 1 --shard-size 256k
rc_is 1
has err '^larder ingest: .*changed'
ok larder ingest src d --fields data:bytes --shard-size 300k --restart --quiet
ok larder verify d
is keys "$(larder ls d | sort -u | wc -l)" 400
is "the changed file" "$(larder get d 3/3 --field data)" changed

# a closed pipe ends the program quietly
run bash -c 'set +o pipefail; "$LARDER" ls d --long | head -n 1 >/dev/null'
rc_is 0
err_is ''
echo "test_interrupt: ok"
