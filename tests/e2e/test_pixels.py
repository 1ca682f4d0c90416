#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pixels against PIL: crops of generated images of every kind, and of real ones where LARDER_DATA (or ../shared/data) has them.

exact: mean absolute difference at most 0.3 and at most 2 anywhere; with DCT scaling at most 2.0 on average.
"""
import glob
import os
import random
import struct
import subprocess
import sys
import tempfile

try:
    from PIL import Image
except ImportError:
    print("no PIL for this python (Debian: python3-pil)")
    sys.exit(77)

FILTERS = (Image.BILINEAR, Image.BICUBIC, Image.NEAREST)
random.seed(11)
program = subprocess.Popen([os.path.join(os.environ.get("BUILD", "build/release"), "tests/data/pixels")],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def render(path, box, size, which, flip, exact):
    words = [path, *box, *size, which, int(flip), int(exact)]
    program.stdin.write((" ".join(map(str, words)) + "\n").encode())
    program.stdin.flush()
    rc, = struct.unpack("<i", program.stdout.read(4))
    if rc:
        raise SystemExit("%s: code %d" % (words, rc))
    return program.stdout.read(size[0] * size[1] * 3)


def compare(path, image, box, size, which, flip, exact):
    x, y, w, h = box
    want = image.crop((x, y, x + w, y + h)).resize(size, FILTERS[which])
    if flip:
        want = want.transpose(Image.FLIP_LEFT_RIGHT)
    have = render(path, box, size, which, flip, exact)
    differences = [abs(a - b) for a, b in zip(have, want.tobytes())]
    mean, most = sum(differences) / len(differences), max(differences)
    if mean > (0.3 if exact else 2.0) or (exact and most > 2):
        raise SystemExit("%s box %s to %s filter %d exact %d: mean %.3f, most %d" % (path, box, size, which, exact, mean, most))
    return most


def crops(path, times, sides):
    image = Image.open(path).convert("RGB")
    width, height = image.size
    for i in range(times):
        w, h = random.randint(1, width), random.randint(1, height)
        box = (random.randint(0, width - w), random.randint(0, height - h), w, h)
        size = (random.randint(1, sides), random.randint(1, sides)) if i else (w, h)
        compare(path, image, box, size, random.randrange(3), random.random() < .5, random.random() < .7)


def generate(folder):
    image = Image.new("RGB", (161, 117))
    image.putdata([((x * 3 + random.randrange(40)) % 256, (y * 2 + random.randrange(40)) % 256, (x * y // 9) % 256)
                   for y in range(117) for x in range(161)])
    alpha = image.convert("RGBA")
    alpha.putalpha(image.convert("L"))
    deep = Image.new("I", image.size)
    deep.putdata([random.randrange(600) for _ in range(161 * 117)])
    jobs = [("grey.jpg", image.convert("L"), {}), ("cmyk.jpg", image.convert("CMYK"), {}),
            ("rgb.png", image, {}), ("grey.png", image.convert("L"), {}), ("bit.png", image.convert("1"), {}),
            ("la.png", alpha.convert("LA"), {}), ("rgba.png", alpha, {}), ("deep.png", deep, {}),
            ("p8.png", image.quantize(200), {}), ("p4.png", image.quantize(16), {"bits": 4}),
            ("p2.png", image.quantize(4), {"bits": 2}), ("pt.png", image.quantize(99), {"transparency": 3}),
            ("lossy.webp", image, {"quality": 60}), ("lossless.webp", image, {"lossless": True}),
            ("alpha.webp", alpha, {"lossless": True, "exact": True})]
    jobs += [("s%d%d.jpg" % (s, p), image, {"quality": 90, "subsampling": s, "progressive": bool(p)})
             for s in (0, 1, 2) for p in (0, 1)]
    for name, picture, options in jobs:
        path = os.path.join(folder, name)
        picture.save(path, **options)
        yield path


with tempfile.TemporaryDirectory() as tmp:
    made = list(generate(tmp))
    for f in made:
        crops(f, 8, 100)
data = os.environ.get("LARDER_DATA", os.path.join(os.getcwd(), "..", "shared", "data"))
real = sorted(glob.glob(os.path.join(data, "imagenet", "*.JPEG")))
for f in random.sample(real, min(25, len(real))):
    crops(f, 2, 224)
program.stdin.close()
if program.wait():
    raise SystemExit("pixels: exit status %d" % program.returncode)
print("test_pixels: %d generated and %d real images ok" % (len(made), min(25, len(real))))
