#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# On a terminal: the bar on stderr, drawn over by \r, results on stdout alone; binary fields are not printed to it.
. "$(dirname "$0")/common.sh"
make_tree src
ok larder ingest src d --fields data:bytes --quiet

# on_pty.py OUT COMMAND...: stderr (and stdout when OUT is -) on a terminal of 80 columns; prints what came there
cat >"$tmp/on_pty.py" <<'PY'
import fcntl, os, pty, struct, subprocess, sys, termios
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 80, 0, 0))
out = slave if sys.argv[1] == "-" else open(sys.argv[1], "wb")
p = subprocess.Popen(sys.argv[2:], stdout=out, stderr=slave, stdin=slave, close_fds=True)
os.close(slave)
text = b""
while True:
    try:
        b = os.read(master, 65536)
    except OSError:
        break
    if not b:
        break
    text += b
sys.stdout.buffer.write(text)
sys.exit(p.wait())
PY
tty_() { "$PYTHON" "$tmp/on_pty.py" "$@"; }

run tty_ - "$LARDER" get d ant/0 --field data
rc_is 2
has out "field 'data' is 500 bytes of bytes, not for a terminal: use -o FILE or a pipe"
run tty_ - "$LARDER" get d ant/0 --field label
rc_is 0
is label "$(tr -d '\r' <"$tmp/out")" 0
run tty_ "$tmp/stdout" "$LARDER" verify d
rc_is 0
out_is '' # over in less than a second: no bar
has stdout 'all is well$'

# Twelve batches of 150 ms each take longer than the second after which the bar appears.
run tty_ "$tmp/stdout" "$LARDER" bench d --batch-size 1 --compute-ms 150
rc_is 0
tr '\r' '\n' <"$tmp/out" | sed 's/ *$//' | sed '/^$/d' >"$tmp/bars"
has bars '^bench \[#+\.+\] [0-9]+/12  '
awk 'length >= 80 {exit 1}' "$tmp/bars" || fail "the bar is wider than the terminal"
! grep -q '\[' "$tmp/stdout" || fail "the bar is on stdout"

# not on a terminal: no bar
run "$LARDER" ingest src plain --fields data:bytes
rc_is 0
err_is ''
echo "test_terminal: ok"
