#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random moments during ingest, append, repair and gc.

After each kill every committed generation must open and verify, and the same command, run again (and killed again a few
times), must end with the same samples in the same order as a run that nobody disturbed. KILL_SEED repeats a run,
KILL_SECONDS sets how long it takes (20).
"""
import filecmp
import glob
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LARDER = os.path.abspath(os.environ["LARDER"])
SEED = int(os.environ.get("KILL_SEED", time.time_ns() % 1000000))
SECONDS = float(os.environ.get("KILL_SECONDS", "20"))
rng = random.Random(SEED)
kills = {"ingest": [0, 0], "append": [0, 0], "repair": [0, 0], "gc": [0, 0]}  # started, met while running


def die(text):
    print(f"test_kill: KILL_SEED={SEED}: {text}")
    sys.exit(1)


def larder(*args, status=0):
    p = subprocess.run([LARDER, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if status is not None and p.returncode != status:
        die(f"{' '.join(args)}: status {p.returncode}, not {status}\n{p.stdout}{p.stderr}")
    return p


def killed(what, after, *args):
    """Runs a command and kills it after so many seconds. True when it was still running."""
    p = subprocess.Popen([LARDER, *args], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                         start_new_session=True)
    time.sleep(after)
    p.send_signal(signal.SIGKILL)
    met = p.wait() == -signal.SIGKILL
    kills[what][0] += 1
    kills[what][1] += met
    return met


def seconds_of(*args):
    start = time.monotonic()
    larder(*args)
    return time.monotonic() - start


def generations(d):
    return sorted(int(os.path.basename(p)[:-5]) for p in glob.glob(f"{d}/manifests/*.json"))


def check_committed(d):
    """Every generation that is there opens and verifies; a reader finds the newest."""
    found = generations(d)
    for g in found:
        larder("verify", d, "--generation", str(g), "--quiet")
    info = larder("info", d, "--json", status=0 if found else 1)
    if found and json.loads(info.stdout)["generation"] != found[-1]:
        die(f"{d}: info shows another generation than the newest, {found[-1]}: {info.stdout}")
    return found


def digest(d):
    """Keys in order, and the bytes of all samples."""
    keys = larder("ls", d).stdout
    hashes = json.loads(larder("bench", d, "--shuffle", "none", "--json").stdout)
    return hashlib.sha256(keys.encode()).hexdigest(), hashes["samples"], hashes["data_hash"]


def make(folder, first, count):
    for i in range(first, first + count):
        os.makedirs(f"{folder}/{i % 7}", exist_ok=True)
        with open(f"{folder}/{i % 7}/{i}.bin", "wb") as f:
            f.write(hashlib.sha256(b"%d" % i).digest() * (20 + i % 100))


def flip(path, offset):
    with open(path, "r+b") as f:
        f.seek(offset)
        b = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([b ^ 1]))


def fresh(d, copy_of=None):
    shutil.rmtree(d, ignore_errors=True)
    if copy_of:
        shutil.copytree(copy_of, d)


def loop(what, budget, one):
    """For so many seconds, and on a busy machine longer: until a kill met the command while it ran."""
    start = time.monotonic()
    while time.monotonic() < start + budget or (not kills[what][1] and time.monotonic() < start + 60):
        one()


def test_ingest(budget):
    args = ["--shard-size", "48k", "--fields", "data:bytes", "--workers", "2", "--quiet"]
    took = seconds_of("ingest", "src", "whole", *args)
    want = digest("whole")

    def one():
        fresh("d")
        for _ in range(rng.randint(1, 3)):
            killed("ingest", rng.uniform(0, took * 1.1), "ingest", "src", "d", *args)
            if check_committed("d"):
                break
        if not generations("d"):
            larder("ingest", "src", "d", *args)
        larder("verify", "d", "--quiet")
        if digest("d") != want:
            die("ingest: a resumed dataset differs from an undisturbed one")

    loop("ingest", budget, one)


def test_append(budget):
    args = ["--append", "--shard-size", "48k", "--fields", "data:bytes", "--workers", "2", "--quiet"]
    fresh("both", "whole")
    took = seconds_of("ingest", "more", "both", *args)
    want, before = digest("both"), digest("whole")

    def one():
        fresh("d", "whole")
        for _ in range(rng.randint(1, 3)):
            killed("append", rng.uniform(0, took * 1.1), "ingest", "more", "d", *args)
            found = check_committed("d")
            if found not in ([1], [1, 2]):
                die(f"append: generations {found}")
            if found == [1, 2]:
                break
            if digest("d") != before:
                die("append: the first generation changed")
        if generations("d") == [1]:
            larder("ingest", "more", "d", *args)
        larder("verify", "d", "--quiet")
        if digest("d") != want:
            die("append: a resumed dataset differs from an undisturbed one")

    loop("append", budget, one)


def test_repair(budget):
    fresh("hurt", "both")
    lost = set()
    for line in larder("ls", "hurt", "--long").stdout.splitlines():
        _, shard, _, offset, size, key = line.split(maxsplit=5)
        if rng.random() < 0.01 or not lost:
            flip(f"hurt/shards/{shard}", int(offset) + rng.randrange(int(size)))
            lost.add(key)
    larder("verify", "hurt", "--quiet", status=3)
    fresh("mended", "hurt")
    took = seconds_of("repair", "mended", "--quiet")
    want = digest("mended")
    left = [k for k in larder("ls", "both").stdout.splitlines() if k not in lost]
    if larder("ls", "mended").stdout.splitlines() != left:
        die("repair: other samples than the damaged ones are gone")

    def one():
        fresh("d", "hurt")
        for _ in range(rng.randint(1, 3)):
            killed("repair", rng.uniform(0, took * 1.1), "repair", "d", "--quiet")
            if generations("d")[-1] == 3:
                larder("verify", "d", "--quiet")
            for shard in os.listdir("hurt/shards"):
                if not filecmp.cmp(f"hurt/shards/{shard}", f"d/shards/{shard}", shallow=False):
                    die(f"repair: {shard} was touched")
        larder("repair", "d", "--quiet")
        larder("verify", "d", "--quiet")
        if digest("d") != want:
            die("repair: a repair run again gives another dataset")

    loop("repair", budget, one)


def test_gc(budget):
    fresh("many", "both")
    for n in range(3):
        make(f"src{n}", 100000 + 200 * n, 200)
        larder("ingest", f"src{n}", "many", "--append", "--shard-size", "48k", "--fields", "data:bytes", "--quiet")
    with open("many/shards/0123456789abcdef-000000", "wb") as f:
        f.write(b"a stray file")
    fresh("clean", "many")
    took = seconds_of("gc", "clean", "--older-than", "0", "--quiet")
    want = digest("clean")
    files = sorted(os.path.relpath(p, "clean") for p in glob.glob("clean/**", recursive=True) if os.path.isfile(p))

    def one():
        fresh("d", "many")
        for _ in range(rng.randint(1, 2)):
            killed("gc", rng.uniform(0, took * 1.1), "gc", "d", "--older-than", "0", "--quiet")
            if not check_committed("d"):
                die("gc: no generation is left")
        larder("gc", "d", "--older-than", "0", "--quiet")
        larder("verify", "d", "--quiet")
        have = sorted(os.path.relpath(p, "d") for p in glob.glob("d/**", recursive=True) if os.path.isfile(p))
        if have != files:
            die(f"gc: files differ: {sorted(set(have) ^ set(files))}")
        if digest("d") != want:
            die("gc: the newest generation changed")

    loop("gc", budget, one)


def folder():
    """Memory where there is room: a kill, unlike a power cut, asks nothing of the disk, and more rounds fit in the time."""
    try:
        s = os.statvfs("/dev/shm")
        if s.f_bavail * s.f_frsize > 512 << 20 and os.access("/dev/shm", os.W_OK):
            return "/dev/shm"
    except OSError:
        pass
    return None


def main():
    print(f"test_kill: KILL_SEED={SEED}")
    top = tempfile.mkdtemp(prefix="larder-kill-", dir=folder())
    try:
        os.chdir(top)
        make("src", 0, 700)
        make("more", 10000, 400)
        test_ingest(SECONDS * 0.3)
        test_append(SECONDS * 0.25)
        test_repair(SECONDS * 0.2)
        test_gc(SECONDS * 0.15)
    finally:
        os.chdir("/")
        shutil.rmtree(top, ignore_errors=True)
    for what, (started, met) in kills.items():
        if met == 0:
            die(f"{what}: none of {started} kills met it while it ran")
    print("test_kill: ok; kills that met their run: " + ", ".join(f"{w} {m}/{s}" for w, (s, m) in kills.items()))


main()
