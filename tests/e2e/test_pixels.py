#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pixels against PIL: crops of generated images of every kind, and of all real ones where LARDER_DATA (or ../shared/data) has them.

exact: mean absolute difference at most 0.3 and at most 2 anywhere; with DCT scaling at most 2.0 on average; whole JPEGs bit by bit
as djpeg has them. Centre crops are PIL's resize of the whole image, cut; orientation is ImageOps.exif_transpose's.
"""
import glob
import io
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

try:
    from PIL import Image, ImageChops, ImageOps, ImageStat
except ImportError:
    print("no PIL for this python (Debian: python3-pil)")
    sys.exit(77)

FILTERS = (Image.BILINEAR, Image.BICUBIC, Image.NEAREST)
random.seed(11)
program = subprocess.Popen([os.path.join(os.environ.get("BUILD", "build/release"), "tests/data/pixels")],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def render(path, box, size, which=0, flip=False, exact=True, turn=False, beyond=False, mask=0):
    words = [path, *map(repr, box), *size, which, int(flip), int(exact), int(turn), int(beyond), mask]
    program.stdin.write((" ".join(map(str, words)) + "\n").encode())
    program.stdin.flush()
    rc, = struct.unpack("<i", program.stdout.read(4))
    if rc:
        raise SystemExit("%s: code %d" % (words, rc))
    return program.stdout.read(size[0] * size[1] * (mask or 3))


def compare(what, want, have, exact=True):
    difference = ImageChops.difference(want, Image.frombytes("RGB", want.size, have))
    mean, most = sum(ImageStat.Stat(difference).mean) / 3, max(high for low, high in difference.getextrema())
    if mean > (0.3 if exact else 2.0) or (exact and most > 2):
        raise SystemExit("%s: exact %d: mean %.3f, most %d" % (what, exact, mean, most))


def crop(path, image, box, size, which, flip, exact, turn=False):
    x, y, w, h = box
    want = image.crop((x, y, x + w, y + h)).resize(size, FILTERS[which])
    if flip:
        want = want.transpose(Image.FLIP_LEFT_RIGHT)
    compare((path, box, size, which, flip), want, render(path, box, size, which, flip, exact, turn), exact)


def crops(path, times, sides, turn=False):
    image = Image.open(path)
    image = (ImageOps.exif_transpose(image) if turn else image).convert("RGB")
    width, height = image.size
    for i in range(times):
        w, h = random.randint(1, width), random.randint(1, height)
        box = (random.randint(0, width - w), random.randint(0, height - h), w, h)
        size = (random.randint(1, sides), random.randint(1, sides)) if i else (w, h)
        crop(path, image, box, size, random.randrange(3), random.random() < .5, random.random() < .7, turn)


def centre(path, side, resize, which, turn=False):
    """torchvision's Resize(resize) and CenterCrop(side)."""
    image = Image.open(path)
    image = (ImageOps.exif_transpose(image) if turn else image).convert("RGB")
    w, h = image.size
    scaled = (resize, int(resize * h / w)) if w <= h else (int(resize * w / h), resize)
    left, top = int(round((scaled[0] - side) / 2.0)), int(round((scaled[1] - side) / 2.0))
    want = image.resize(scaled, FILTERS[which]).crop((left, top, left + side, top + side))
    sx, sy = w / scaled[0], h / scaled[1]
    have = render(path, (left * sx, top * sy, side * sx, side * sy), (side, side), which, turn=turn, beyond=True)
    compare((path, "centre", side, resize, which), want, have)


def raw_png(path, rows, width, depth, colour, interlaced, palette=b""):
    """rows: lists of tuples of samples. Adam7 as the standard has it."""
    passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    data = b""
    for x0, y0, dx, dy in passes if interlaced else ((0, 0, 1, 1),):
        for row in rows[y0::dy]:
            samples = [s for pixel in row[x0::dx] for s in pixel]
            if samples:
                data += b"\0" + (struct.pack(">%dH" % len(samples), *samples) if depth == 16 else bytes(samples))

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, len(rows), depth, colour, 0, 0, int(interlaced))) +
                (chunk(b"PLTE", palette) if palette else b"") + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b""))
    return path


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
    pixels = list(image.getdata())
    rows = [pixels[y * 161:(y + 1) * 161] for y in range(117)]
    yield raw_png(os.path.join(folder, "adam7.png"), rows, 161, 8, 2, True)
    yield raw_png(os.path.join(folder, "rgb16.png"), [[tuple(s * 257 ^ 90 for s in p) for p in r] for r in rows], 161, 16, 2, False)
    yield raw_png(os.path.join(folder, "palette7.png"), [[(p[0],) for p in r] for r in rows], 161, 8, 3, True,
                  bytes(random.randrange(256) for _ in range(768)))


def turned(folder, path):
    """The image in each kind of file with each orientation."""
    image = Image.open(path).convert("RGB").crop((0, 0, 90, 61))
    for o in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = o
        for ext in ("jpg", "png", "webp"):
            file = os.path.join(folder, "turned%d.%s" % (o, ext))
            image.save(file, exif=exif, **({"lossless": True} if ext == "webp" else {}))
            yield file


def masks(folder):
    """Indexes and grey samples: NEAREST of PIL's own."""
    index = Image.new("P", (80, 50))
    index.putdata([random.randrange(21) for _ in range(80 * 50)])
    index.putpalette([i % 256 for i in range(768)])
    grey = Image.new("L", (80, 50))
    grey.putdata([random.randrange(256) for _ in range(80 * 50)])
    for name, image in (("index.png", index), ("grey.png", grey)):
        path = os.path.join(folder, name)
        image.save(path)
        for _ in range(8):
            w, h, size = random.randint(1, 80), random.randint(1, 50), (random.randint(1, 99), random.randint(1, 99))
            x, y = random.randint(0, 80 - w), random.randint(0, 50 - h)
            want = image.crop((x, y, x + w, y + h)).resize(size, Image.NEAREST).tobytes()
            if render(path, (x, y, w, h), size, mask=1) != want:
                raise SystemExit("%s %s %s: another mask than PIL's" % (name, (x, y, w, h), size))
            wide = render(path, (x, y, w, h), size, mask=2)
            if wide[::2] != want or any(wide[1::2]):
                raise SystemExit("%s: another mask in 16 bits" % name)


def whole(path):
    """Bit by bit as djpeg; grey by its own grey."""
    ppm = Image.open(io.BytesIO(subprocess.run(["djpeg", "-pnm", path], stdout=subprocess.PIPE, check=True).stdout)).convert("RGB")
    if render(path, (0, 0, *ppm.size), ppm.size) != ppm.tobytes():
        raise SystemExit("%s: not as djpeg has it" % path)


with tempfile.TemporaryDirectory() as tmp:
    made = list(generate(tmp))
    for f in made:
        crops(f, 8, 100)
        centre(f, 64, 73, random.randrange(3))
    for f in turned(tmp, made[2]):
        crops(f, 3, 80, turn=True)
        centre(f, 40, 52, random.randrange(3), turn=True)
    masks(tmp)
    if shutil.which("djpeg"):
        for f in made:
            if f.endswith(".jpg") and "cmyk" not in f:
                whole(f)
data = os.environ.get("LARDER_DATA", os.path.join(os.getcwd(), "..", "shared", "data"))
real = sorted(glob.glob(os.path.join(data, "imagenet", "*.JPEG")))
for i, f in enumerate(real):
    crops(f, 2, 224)
    if i % 4 == 0:
        centre(f, 224, 256, i // 4 % 3)
    if i % 8 == 0 and shutil.which("djpeg"):
        whole(f)
program.stdin.close()
if program.wait():
    raise SystemExit("pixels: exit status %d" % program.returncode)
print("test_pixels: %d generated and %d real images ok%s" % (len(made), len(real), "" if shutil.which("djpeg") else ", without djpeg"))
