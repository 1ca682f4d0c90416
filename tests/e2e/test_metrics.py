#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--metrics: Prometheus text by the letter of its format, the numbers of bench --json, and never half a file.

The parser refuses what the format (version 0.0.4) does not allow: names, HELP and TYPE once and first, the lines of a metric
together, no series twice, a newline at the end; and what its conventions ask for: counters end in _total, base units.
"""
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

LARDER = os.path.abspath(os.environ["LARDER"])
SAMPLES = 600
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
SAMPLE = re.compile(r'(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)\Z')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|\Z)')


def fail(text):
    print(f"test_metrics: {text}")
    sys.exit(1)


def labels_of(text):
    out, at = {}, 0
    while at < len(text):
        m = LABEL.match(text, at)
        if not m or m[1] in out or m[1].startswith("__"):
            fail(f"bad labels {text!r}")
        out[m[1]], at = m[2], m.end()
    return out


def parse(text):
    """{name: (type, {labels: value})}"""
    metrics, current, helped = {}, None, set()
    if not text.endswith("\n") or "\r" in text:
        fail("the text does not end with a newline, or has carriage returns")
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            _, _, name, words = line.split(" ", 3)
            if not NAME.match(name) or name in helped or not words.endswith(".") or words != words.strip():
                fail(f"bad HELP: {line!r}")
            helped.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            if name in metrics or name not in helped or kind not in ("counter", "gauge", "summary", "histogram", "untyped"):
                fail(f"bad TYPE: {line!r}")
            if (kind == "counter") != name.endswith("_total") or not name.startswith(("larder_cache_", "larder_loader_")):
                fail(f"{name} is a {kind}")
            if kind != "counter" and not re.search(r"_(bytes|seconds|entries|samples|batches|number)\Z", name):
                fail(f"{name} has no unit")
            current = name
            metrics[name] = (kind, {})
        else:
            m = SAMPLE.match(line)
            if not m or m["name"] != current:
                fail(f"not a line of {current}: {line!r}")
            kind, series = metrics[current]
            labels = labels_of(m["labels"] or "")
            key = tuple(sorted(labels.items()))
            value = float(m["value"])
            if key in series or math.isnan(value) or value < 0:
                fail(f"twice, or no number: {line!r}")
            if (kind == "summary") != ("quantile" in labels) or not 0 <= float(labels.get("quantile", 0)) <= 1:
                fail(f"a quantile: {line!r}")
            if kind == "counter" and not value.is_integer():
                fail(f"a counter counts: {line!r}")
            series[key] = value
    for name in helped:
        if name not in metrics or not metrics[name][1]:
            fail(f"{name} has no lines")
    return metrics


def look(metrics, name, cache, tier, **more):
    key = tuple(sorted({"cache": cache, "tier": tier, **more}.items()))
    return metrics[f"larder_cache_{name}"][1][key]


def bench(*args):
    p = subprocess.run([LARDER, "bench", *args, "--json"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if p.returncode or p.stderr:
        fail(f"bench {args}: {p.returncode}: {p.stderr}")
    return [json.loads(line) for line in p.stdout.splitlines()]


def compare(metrics, lines, cache, tiers):
    last = lines[-1]["cache"]
    for name, member in (("epoch_number", "epoch"), ("epoch_samples", "samples"), ("epoch_batches", "batches"), ("epoch_bytes", "bytes"),
                         ("epoch_seconds", "seconds"), ("epoch_fetch_stall_seconds", "fetch_stall_s"), ("epoch_bad_samples", "bad")):
        if abs(metrics[f"larder_loader_{name}"][1][(("rank", "0"),)] - lines[-1][member]) > 1e-6:
            fail(f"{name} is not {lines[-1][member]}")
    have = {dict(key)["tier"] for name, (_, series) in metrics.items() if name.startswith("larder_cache_") for key in series}
    if have != set(tiers) or list(lines[0]["tiers"]) != tiers:
        fail(f"tiers {have}, {list(lines[0]['tiers'])}, not {tiers}")
    for tier in tiers:
        for member in ("hits", "misses", "bytes", "requests"):
            want = sum(line["tiers"][tier][member] for line in lines)
            if look(metrics, f"{member}_total", cache, tier) != want:
                fail(f"{tier} {member}: {look(metrics, member + '_total', cache, tier)}, and {want} by the lines")
        for member in ("budget_bytes", "used_bytes", "bookkeeping_bytes", "entries"):
            if look(metrics, member, cache, tier) != last[tier].get(member, 0):
                fail(f"{tier} {member}")
        for member in ("admissions", "refusals", "evictions", "healed"):
            if look(metrics, f"{member}_total", cache, tier) != last[tier].get(member, 0):
                fail(f"{tier} {member}")
        before = 0
        for quantile, member in (("0.5", "p50"), ("0.9", "p90"), ("0.99", "p99"), ("1", "max")):
            value = look(metrics, "latency_seconds", cache, tier, quantile=quantile)
            if abs(value - last[tier][f"latency_ns_{member}"] / 1e9) > 1e-9 or value < before or value == 0:
                fail(f"{tier} latency {quantile}: {value}")
            before = value
    if "dram" in tiers and look(metrics, "locked_bytes", cache, "dram") != last["locked_bytes"]:
        fail("locked bytes")
    if "dram" in tiers and look(metrics, "registered_bytes", cache, "dram") < last["registered_bytes"]:
        fail("registered bytes")
    misses = sum(line["tiers"]["origin"]["hits"] for line in lines)
    if misses != sum(line["tiers"][tiers[0]]["misses"] for line in lines) - sum(
            line["tiers"][t]["hits"] for line in lines for t in tiers[1:-1]):
        fail("a sample is a hit in one tier and a miss in each nearer one")


def read_while_written(dataset, path):
    """Reads the file all the time while many epochs replace it: it is always there, and whole."""
    p = subprocess.Popen([LARDER, "bench", dataset, "--dram", "16MiB", "--cache-name", f"m-{os.getpid()}", "--metrics", path, "--epochs", "150",
                          "--json"], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        watch(p, path)
    finally:
        p.kill()
        p.wait()


def watch(p, path):
    inodes, last, seen = set(), 0, 0
    while p.poll() is None:
        try:
            with open(path) as f:
                inodes.add(os.fstat(f.fileno()).st_ino)
                metrics = parse(f.read())
        except FileNotFoundError:
            if seen:
                fail("the file was away")
            continue
        hits = sum(metrics["larder_cache_hits_total"][1].values())
        if hits < last or hits < SAMPLES: # with what is fetched ahead
            fail(f"{hits} hits after {last}")
        last, seen = hits, seen + 1
    if p.returncode or last == 0 or len(inodes) < 2:
        fail(f"status {p.returncode}, {len(inodes)} files seen")
    if os.listdir(os.path.dirname(path)) != ["metrics"]:
        fail(f"left: {os.listdir(os.path.dirname(path))}")


def main():
    top = tempfile.mkdtemp()
    try:
        rng = random.Random(4)
        os.makedirs(f"{top}/src")
        os.mkdir(f"{top}/m")
        for i in range(SAMPLES):
            with open(f"{top}/src/{i:04}.bin", "wb") as f:
                f.write(rng.randbytes(16000))
        d, path = f"{top}/d", f"{top}/m/metrics"
        subprocess.run([LARDER, "ingest", f"{top}/src", d, "--fields", "data:bytes", "--quiet"], check=True)
        for k, (args, tiers) in enumerate((
                (["--dram", "4MiB", "--no-pin"], ["dram", "origin"]),
                (["--dram", "4MiB", "--replacement", "fifo", "--no-pin"], ["dram", "origin"]),
                (["--nvme", f"{top}/n1:4MiB"], ["nvme", "origin"]),
                (["--nvme", f"{top}/n2:4MiB", "--replacement", "fifo"], ["nvme", "origin"]),
                (["--dram", "4MiB", "--nvme", f"{top}/n3:4MiB", "--no-pin"], ["dram", "nvme", "origin"]),
                (["--dram", "4MiB", "--nvme", f"{top}/n4:64MiB", "--no-pin"], ["dram", "nvme", "origin"]))):
            name = f"metrics-{os.getpid()}-{k}"
            lines = bench(d, "--epochs", "3", "--cache-name", name, "--metrics", path, *args)
            with open(path) as f:
                compare(parse(f.read()), lines, name, tiers)
            if tiers[0] == "dram" and (lines[0]["cache"]["joined"] or not lines[0]["cache"]["shared"] or lines[-1]["cache"]["locked_bytes"]):
                fail("joined, private or locked")
        if "cache" in bench(d)[0]:
            fail("a cache without a cache")
        os.unlink(path)
        read_while_written(d, path)
        p = subprocess.run([LARDER, "bench", d, "--dram", "4MiB", "--no-pin", "--metrics", f"{top}/nowhere/m"], capture_output=True, text=True)
        if p.returncode != 1 or "cannot write metrics: No such file or directory" not in p.stderr:
            fail(f"no folder: {p.returncode} {p.stderr}")
    finally:
        shutil.rmtree(top)
    print("test_metrics: ok")


if __name__ == "__main__":
    main()
