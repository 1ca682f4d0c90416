#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processes made by fork (with threads running), spawn and forkserver share one cache through liblarder.so.

The parent keeps the cache open and reads epochs in a thread while the children come, join, read every byte right and go. All of
them together read each record from the dataset once. What a forked child inherits is refused there, and harms nobody.
"""
import ctypes as c
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import zlib

LARDER = os.path.abspath(os.environ["LARDER"])
SO = os.path.join(os.path.dirname(LARDER), "liblarder.so")
SAMPLES, WORKERS, EPOCHS = 800, 3, 2
END, EFORK = 1, -12
ROOM = c.c_uint8 * 1024  # options and results may have more members than these tests know


class Error(c.Structure):
    _fields_ = [("code", c.c_int), ("sys_errno", c.c_int), ("http_status", c.c_int), ("message", c.c_char * 244)]


class CacheOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("name", c.c_char_p), ("dram_bytes", c.c_uint64), ("room", ROOM)]


class DatasetOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("generation", c.c_uint64), ("table_bytes", c.c_size_t), ("index_bytes", c.c_size_t),
                ("files_max", c.c_uint), ("queue_depth", c.c_uint), ("direct", c.c_int), ("cache", c.c_void_p), ("room", ROOM)]


class LoaderOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("batch_size", c.c_uint32), ("seed", c.c_uint64), ("epoch", c.c_uint64),
                ("epochs", c.c_uint64), ("shuffle", c.c_int), ("queue_depth", c.c_uint32), ("staging_bytes", c.c_size_t),
                ("room", ROOM)]


class Value(c.Structure):
    _fields_ = [("data", c.c_void_p), ("len", c.c_size_t)]


class Batch(c.Structure):
    _fields_ = [("epoch", c.c_uint64), ("number", c.c_uint64), ("position", c.c_uint64), ("n", c.c_uint32),
                ("n_fields", c.c_uint32), ("ordinals", c.POINTER(c.c_uint64)), ("values", c.POINTER(Value))]


class Tier(c.Structure):
    _fields_ = [(name, c.c_uint64) for name in ("hits", "misses", "bytes", "requests")]


class LoaderStats(c.Structure):
    _fields_ = [("struct_size", c.c_size_t)] + [(name, c.c_uint64) for name in (
        "epoch", "samples", "batches", "bytes", "seconds_ns", "fetch_stall_ns", "prep_stall_ns")] + [
        ("origin", Tier), ("dram", Tier), ("nvme", Tier), ("room", ROOM)]


def library():
    lib = c.CDLL(SO)
    for name in ("larder_cache_close", "larder_dataset_close", "larder_loader_close", "larder_batch_release"):
        getattr(lib, name).restype = None
        getattr(lib, name).argtypes = [c.c_void_p]
    lib.larder_loader_next.argtypes = [c.c_void_p, c.POINTER(c.POINTER(Batch)), c.POINTER(Error)]
    return lib


class Reader:
    """A cache, a dataset and a loader of one process."""

    def __init__(self, cache_name, dataset, epochs, seed):
        self.lib, self.err = library(), Error()
        self.cache, self.ds, self.ld = c.c_void_p(), c.c_void_p(), c.c_void_p()
        self.open("cache", CacheOptions(c.sizeof(CacheOptions), cache_name.encode(), 64 << 20), self.cache)
        self.open("dataset", DatasetOptions(c.sizeof(DatasetOptions), cache=self.cache), self.ds, dataset.encode())
        self.open("loader", LoaderOptions(c.sizeof(LoaderOptions), 16, seed, 0, epochs, 0, 0, 1 << 20), self.ld, self.ds)
        self.epochs = epochs

    def open(self, what, options, handle, *args):
        rc = getattr(self.lib, f"larder_{what}_open")(*args, c.byref(options), c.byref(handle), c.byref(self.err))
        if rc:
            raise RuntimeError(f"opening the {what}: {self.err.message.decode()}")

    def next(self):
        batch = c.POINTER(Batch)()
        return self.lib.larder_loader_next(self.ld, c.byref(batch), c.byref(self.err)), batch

    def read(self):
        """All epochs: ordinal -> CRC of its bytes, and what the origin and DRAM gave."""
        sums, origin, dram = {}, 0, 0
        for _ in range(self.epochs):
            n = 0
            while True:
                rc, batch = self.next()
                if rc:
                    break
                b = batch.contents
                for i in range(b.n):
                    crc = zlib.crc32(c.string_at(b.values[i].data, b.values[i].len))
                    if sums.setdefault(b.ordinals[i], crc) != crc:
                        raise RuntimeError(f"sample {b.ordinals[i]} changed")
                n += b.n
                self.lib.larder_batch_release(batch)
            if rc != END or n != SAMPLES:
                raise RuntimeError(f"{n} samples, then {rc}: {self.err.message.decode()}")
            s = LoaderStats(c.sizeof(LoaderStats))
            self.lib.larder_loader_stats(self.ld, c.byref(s), c.byref(self.err))
            origin, dram = origin + s.origin.hits, dram + s.dram.hits
        return sums, origin, dram

    def close(self):
        self.lib.larder_loader_close(self.ld)
        self.lib.larder_dataset_close(self.ds)
        self.lib.larder_cache_close(self.cache)


inherited = None  # by forked children: the parent's reader


def work(cache_name, dataset, seed, results):
    try:
        if inherited:
            rc, _ = inherited.next()
            if rc != EFORK:
                raise RuntimeError(f"an inherited loader says {rc}")
            inherited.close()
        r = Reader(cache_name, dataset, EPOCHS, seed)
        out = r.read()
        r.close()
        results.put(out)
    except Exception as e:  # the parent reports it
        results.put(repr(e))


def fail(text):
    print(f"test_processes: {text}")
    sys.exit(1)


def check(method, dataset, want):
    global inherited
    context = multiprocessing.get_context(method)
    name = f"processes-{method}-{os.getpid()}"
    parent = Reader(name, dataset, 4, 1)
    if method == "fork":
        inherited = parent
    mine = []
    thread = threading.Thread(target=lambda: mine.append(parent.read()))
    results = context.Queue()
    workers = [context.Process(target=work, args=(name, dataset, 10 + i, results)) for i in range(WORKERS)]
    thread.start()
    for w in workers:
        w.start()
    out = [results.get(timeout=120) for _ in workers]
    for w in workers:
        w.join()
        if w.exitcode != 0:
            fail(f"{method}: a process ended with {w.exitcode}")
    thread.join()
    inherited = None
    out += mine
    for o in out:
        if isinstance(o, str):
            fail(f"{method}: {o}")
        if o[0] != want:
            fail(f"{method}: wrong bytes")
    if len(out) != WORKERS + 1:
        fail(f"{method}: the parent did not read")
    if sum(o[1] for o in out) != SAMPLES:
        fail(f"{method}: the origin gave {[o[1] for o in out]}, not {SAMPLES} in all")
    if sum(o[2] for o in out) != SAMPLES * (WORKERS * EPOCHS + 4 - 1):
        fail(f"{method}: DRAM gave {[o[2] for o in out]}")
    parent.close()


def main():
    with open(SO, "rb") as f:
        if b"__sanitizer_" in f.read():
            print("a sanitized library cannot be loaded by python")
            sys.exit(77)
    top = tempfile.mkdtemp()
    try:
        rng = random.Random(3)
        os.mkdir(f"{top}/src")
        for i in range(SAMPLES):
            with open(f"{top}/src/{i:04}.bin", "wb") as f:
                f.write(rng.randbytes(8000 + i))
        subprocess.run([LARDER, "ingest", f"{top}/src", f"{top}/d", "--fields", "data:bytes", "--quiet"], check=True)
        keys = subprocess.run([LARDER, "ls", f"{top}/d"], check=True, capture_output=True, text=True).stdout.split()
        want = {}
        for ordinal, key in enumerate(keys):
            with open(f"{top}/src/{key}.bin", "rb") as f:
                want[ordinal] = zlib.crc32(f.read())
        for method in ("fork", "spawn", "forkserver"):
            check(method, f"{top}/d", want)
    finally:
        shutil.rmtree(top)
    print("test_processes: ok")


if __name__ == "__main__":
    main()
