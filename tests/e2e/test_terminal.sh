#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# On a terminal: the bar on stderr, drawn over by \r, results on stdout alone; binary fields are not printed to it.
. "$(dirname "$0")/common.sh"
make_tree src
ok larder ingest src d --fields data:bytes --quiet

# pty.py OUT COMMAND...: stderr (and stdout when OUT is -) on a terminal of 80 columns; prints what came there
cat >"$tmp/pty.py" <<'PY'
import os, pty, sys, struct, fcntl, termios, subprocess
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
tty_() { "$PYTHON" "$tmp/pty.py" "$@"; }

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

# An archive that arrives slowly: the bar appears after a second.
mkfifo slow.tar
"$PYTHON" - <<'PY' &
import io, tarfile, time
with open("slow.tar", "wb") as f:
    t = tarfile.open(fileobj=f, mode="w|")
    for i in range(24):
        info = tarfile.TarInfo(f"{i:04}.bin")
        info.size = 20000
        t.addfile(info, io.BytesIO(b"x" * 20000))
        f.flush()
        time.sleep(0.1)
    t.close()
PY
run tty_ "$tmp/stdout" "$LARDER" ingest slow.tar slow --fields bin:bytes
wait
if [ $rc -ne 0 ]; then # a source that is no regular file may be refused
    has out '^larder ingest: .*slow.tar'
else
    has stdout '^ingested 24 samples'
    tr '\r' '\n' <"$tmp/out" >"$tmp/bars"
    has bars '^ingest .*[0-9]'
fi
echo "test_terminal: ok"
