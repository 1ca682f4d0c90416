#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sounds against soundfile and numpy: crops of generated files of every kind, and of real ones where LARDER_DATA (or ../shared/data) has them.

At the stored rate every sample is the same; at another, what differs from an ideal filter (by FFT) below nine tenths of the band is at most
a thousandth.
"""
import glob
import os
import random
import struct
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import soundfile
except (ImportError, OSError):
    print("no soundfile for this python (Debian: python3-soundfile)")
    sys.exit(77)

random.seed(12)
program = subprocess.Popen([os.path.join(os.environ.get("BUILD", "build/release"), "tests/data/sounds")],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def render(path, start, frames, rate, channels):
    """(rate, channels, frames) of the file, and [channels, length] of the result."""
    program.stdin.write(("%s %d %d %d %d\n" % (path, start, frames, rate, channels)).encode())
    program.stdin.flush()
    rc, = struct.unpack("<i", program.stdout.read(4))
    if rc:
        raise SystemExit("%s from %d: code %d" % (path, start, rc))
    head = struct.unpack("<5I", program.stdout.read(20))
    have = np.frombuffer(program.stdout.read(4 * channels * frames), "<f4").reshape(channels, frames)
    if np.any(have[:, head[3]:]):
        raise SystemExit("%s from %d: no zeros behind %d" % (path, start, head[3]))
    return head[:3], have[:, :head[3]]


def as_stored(path, tolerance):
    want, rate = soundfile.read(path, dtype="float32", always_2d=True)
    channels = want.shape[1]
    for _ in range(6):
        start, frames = random.randrange(len(want)), random.randrange(1, len(want) + 100)
        for n in {1, channels}:
            head, have = render(path, start, frames, 0, n)
            part = want[start:start + frames].T
            if n == 1:
                part = part.mean(0, keepdims=True)
            if head != (rate, channels, len(want)) or have.shape != part.shape or np.abs(have - part).max() > tolerance:
                raise SystemExit("%s: %d frames from %d, %d channels: %s" % (path, frames, start, n, head))


def low(x, rate, top):
    """What lies below `top` Hz."""
    f = np.fft.rfft(x)
    f[np.fft.rfftfreq(len(x), 1 / rate) > top] = 0
    return np.fft.irfft(f, len(x))


def resampled(path, to):
    want, rate = soundfile.read(path, dtype="float64", always_2d=True)
    want = want.mean(1)
    n = len(want) // rate * rate or len(want)
    _, have = render(path, 0, len(want) * to // rate + 10, to, 1)
    if have.shape[1] != len(want) * to // rate:
        raise SystemExit("%s at %d Hz: %d frames of %d" % (path, to, have.shape[1], len(want)))
    # ideal: zeros around it, the spectrum cut or widened; a length that is whole at both rates
    g = np.gcd(rate, to)
    step, out_step = rate // g, to // g
    pad = 2000 // step + 1
    n = (len(want) // step + 1 + 2 * pad) * step
    x = np.zeros(n)
    x[pad * step:pad * step + len(want)] = want
    f, m = np.fft.rfft(x), n // step * out_step
    whole = np.zeros(m // 2 + 1, complex)
    keep = min(len(f), len(whole))
    whole[:keep] = f[:keep]
    ideal = np.fft.irfft(whole, m) * m / n
    y = np.zeros(m)
    y[pad * out_step:pad * out_step + have.shape[1]] = have[0]
    ideal[pad * out_step + have.shape[1]:] = y[pad * out_step + have.shape[1]:] # what rings on behind the end is cut off
    ideal[:pad * out_step] = 0
    top = 0.9 * min(rate, to) / 2
    error = np.abs(low(y, to, top) - low(ideal, to, top))[pad * out_step + 200:pad * out_step + have.shape[1] - 200]
    if len(error) and error.max() > 1e-3 * max(np.abs(want).max(), 1e-3):
        raise SystemExit("%s at %d Hz: differs by %g of %g" % (path, to, error.max(), np.abs(want).max()))


def generate(folder):
    t = np.arange(30000)
    sound = 0.3 * np.sin(t * t / 60000.) + 0.1 * np.sin(t / 3.) + np.random.default_rng(3).normal(size=len(t)) * 0.05
    both = np.stack([sound, np.roll(sound, 777)], 1)
    for name, sub, data, rate in (("a.wav", "PCM_16", sound, 16000), ("b.wav", "PCM_24", both, 44100), ("c.wav", "FLOAT", both, 48000), ("d.wav", "ULAW", sound, 8000),
                                  ("e.wav", "PCM_U8", sound, 11025), ("f.wav", "IMA_ADPCM", sound, 22050), ("g.flac", "PCM_16", both, 44100), ("h.flac", "PCM_24", sound, 96000),
                                  ("i.ogg", "VORBIS", both, 44100), ("j.ogg", "VORBIS", sound, 16000), ("k.ogg", "OPUS", sound, 48000), ("l.mp3", "MPEG_LAYER_III", sound, 44100),
                                  ("m.aiff", "PCM_16", sound, 8000), ("n.caf", "ALAC_16", both, 44100)):
        path = os.path.join(folder, name)
        try:
            soundfile.write(path, data, rate, subtype=sub)
        except (RuntimeError, ValueError): # a libsndfile without this codec
            continue
        yield path


done = 0
with tempfile.TemporaryDirectory() as folder:
    for path in generate(folder):
        as_stored(path, 2e-6 if path.endswith((".ogg", ".mp3")) else 1e-7)
        for to in (16000, 22050, 48000):
            if soundfile.info(path).samplerate != to:
                resampled(path, to)
        done += 1
data = os.environ.get("LARDER_DATA", os.path.join(os.getcwd(), "..", "shared", "data"))
for path in sorted(glob.glob(os.path.join(data, "fsdd", "*.wav")))[::7]:
    as_stored(path, 1e-7)
    resampled(path, random.choice((16000, 11025, 4000)))
    done += 1
program.stdin.close()
if program.wait():
    raise SystemExit("sounds: exit status %d" % program.returncode)
print("test_sounds: %d files as soundfile has them" % done)
