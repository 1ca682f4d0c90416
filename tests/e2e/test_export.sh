#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tar in, tar and folder out: the same bytes; keys that are no safe paths stay inside the destination.
. "$(dirname "$0")/common.sh"
make_tree src

# folder -> dataset -> folder
ok larder ingest src d --quiet
ok larder export d out
has out '^exported 12 samples as '
"$PYTHON" - <<'PY'
import os
have = {}
for base, _, names in os.walk("out"):
    for n in names:
        have.setdefault(open(os.path.join(base, n), "rb").read(), []).append(os.path.join(base, n))
for base, _, names in os.walk("src"):
    for n in names:
        p = os.path.join(base, n)
        k = [x for x in have[open(p, "rb").read()] if x.startswith("out" + p[3:-4] + ".")]
        assert len(k) == 1, (p, k)
PY
run larder export d out
rc_is 1
has err '^larder export: .*out'

# folder -> dataset -> tar -> dataset -> tar: the archives are the same
for ext in tar tar.gz tar.zst tar.xz; do
    ok larder export d x.$ext
    ok larder ingest x.$ext y-$ext --quiet
    ok larder export y-$ext y.$ext
    cmp <("$PYTHON" -c 'import sys; sys.stdout.write("")') /dev/null
    is "keys through $ext" "$(larder ls y-$ext)" "$(larder ls d)"
    for key in ant/0 bee/3 cat/1; do
        field=$(larder info y-$ext --json | "$PYTHON" -c 'import json,sys; print([f["name"] for f in json.load(sys.stdin)["schema"] if f["name"] != "label"][0])')
        larder get y-$ext $key --field "$field" | cmp - src/$key.bin || fail "$key through $ext"
    done
done
cmp x.tar y.tar || fail "a tar of a tar differs"
tar tf x.tar >/dev/null || fail "tar cannot list the archive"

# a part
ok larder export d part.tar --first 3 --count 2
has out '^exported 2 samples as 4 files|^exported 2 samples as 2 files'
ok larder export d part.json.tar --count 1 --json
lines_are_json "$tmp/out"
is json "$(json_of "$tmp/out" '[o[0][k] for k in ("event", "samples", "renamed")]')" "['done', 1, 0]"
run larder export d part2.tar --first 12
rc_is 1
[ ! -e part2.tar ] || fail "a failed export left its file"

# WebDataset naming: one sample a stem, several fields, a brace range, sample bytes against tarfile
"$PYTHON" - <<'PY'
import tarfile, io, json
def put(t, name, data):
    i = tarfile.TarInfo(name)
    i.size = len(data)
    t.addfile(i, io.BytesIO(data))
for s in range(3):
    with tarfile.open(f"w-{s:03}.tar", "w") as t:
        for n in range(4):
            k = f"{s}/{n:04}"
            put(t, k + ".jpg", b"\xff\xd8\xff\xe0" + bytes([s, n]) * 300 + b"\xff\xd9")
            put(t, k + ".cls", str(s * 10 + n).encode())
            put(t, k + ".json", json.dumps({"s": s, "n": n}).encode())
PY
ok larder ingest 'w-{000..002}.tar' w --quiet
is samples "$(larder ls w | wc -l)" 12
is order "$(larder ls w --first 4 --count 1)" "1/0000"
ok larder get w 2/0003 --field cls
out_is 23
larder get w 2/0003 --field json >"$tmp/got"
is json "$(cat "$tmp/got")" '{"s": 2, "n": 3}'
larder export w wx.tar >/dev/null
larder ingest wx.tar w2 --quiet
for key in $(larder ls w); do
    larder get w "$key" --field jpg | cmp - <(larder get w2 "$key" --field jpg) || fail "$key's image"
done
run larder ingest 'w-{000..009}.tar' w3
rc_is 1
has err 'w-003.tar'

# keys that try to leave the destination
"$PYTHON" - <<'PY'
import tarfile, io
with tarfile.open("evil.tar", "w", format=tarfile.PAX_FORMAT) as t:
    for i, name in enumerate(["../../escape", "/abs/olute", "a/../b", "..", ".", "c//d", "tab\tnew\nline", "ok/plain", "x/../../y", "\u00e9/\u4e2d", "./dot"]):
        data = b"payload %d" % i
        info = tarfile.TarInfo(name + ".bin")
        info.size = len(data)
        t.addfile(info, io.BytesIO(data))
PY
run larder ingest evil.tar evil --fields bin:bytes --on-error skip --json
rc_is 0
n=$(json_of "$tmp/out" 'o[-1]["added"]')
[ "$n" -ge 7 ] || fail "only $n of the odd keys were ingested"
mkdir -p deep/er
before=$(find . -path ./deep -prune -o -print | sort)
ok larder export evil deep/er/out
cp "$tmp/out" "$tmp/evil.out"
is "outside of the folder" "$(find . -path ./deep -prune -o -print | sort)" "$before"
is "beside the folder" "$(ls deep deep/er)" "deep:
er

deep/er:
out"
[ ! -e /abs ] || fail "/abs was written"
is "files" "$(find deep/er/out -type f | wc -l)" "$n"
has evil.out 'not safe as'
ok larder export evil evil-out.tar
"$PYTHON" - "$n" <<'PY'
import tarfile, sys
names = tarfile.open("evil-out.tar").getnames()
assert len(names) == int(sys.argv[1]), names
for n in names:
    assert not n.startswith("/") and ".." not in n.split("/") and "\n" not in n, n
PY
# listings keep to one line a key
is "lines" "$(larder ls evil | wc -l)" "$n"
ok larder ls evil --json
lines_are_json "$tmp/out"

# keys that are not UTF-8, and keys that look like ordinals
"$PYTHON" - <<'PY'
import tarfile, io
with tarfile.open("odd.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as t:
    for name in ("\xff\xfe", "@5", "back\\slash", "sp ace"):
        info = tarfile.TarInfo(name + ".bin")
        info.size = 3
        t.addfile(info, io.BytesIO(b"odd"))
PY
ok larder ingest odd.tar odd --quiet
ok larder ls odd
out_is '\xff\xfe
@5
back\\slash
sp ace'
ok larder ls odd --json
lines_are_json "$tmp/out"
is keys "$(json_of "$tmp/out" '[l.get("key", l.get("key_hex")) for l in o]')" "['fffe', '@5', 'back\\\\slash', 'sp ace']"
is hex "$(json_of "$tmp/out" '"key_hex" in o[0] and "key" not in o[0]')" True
for key in $'\xff\xfe' '@@5' 'back\slash' 'sp ace'; do
    is "field of $key" "$(larder get odd "$key" --field bin)" odd
done
ok larder export odd odd.d
is files "$(find odd.d -type f | wc -l)" 4
ok larder export odd odd2.tar
ok larder ingest odd2.tar odd2 --quiet
is keys "$(larder ls odd2)" "$(larder ls odd)"
# a tar that is not to be had becomes no folder of that name
run larder export odd odd3.tar.bz2
rc_is 1
has err 'is written as .tar, .tar.gz'
[ ! -e odd3.tar.bz2 ] || fail "it did"
echo "test_export: ok"
