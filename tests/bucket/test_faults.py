# SPDX-License-Identifier: Apache-2.0
# Every fault of proxy.lua at 1%, at 10% and for one request, with 1, 16 and 64 requests in flight: two epochs through an empty cache
# deliver the right bytes, the second out of the cache, in bounded time and with bounded retries. Then each fault for all requests of
# one shard: the run gives up in bounded time, names the object in one line, and what it left in the cache is right.
#
# FAULTS=flip,stall names some; the rest is skipped.
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

larder, root = os.environ["LARDER"], os.getcwd()
server = os.path.join(root, "tests/bucket/server.sh")
tmp = tempfile.mkdtemp()
bucket = "faults-%d" % os.getpid()
os.environ["AWS_ENDPOINT_URL"] = os.environ["S3_ENDPOINT"]
os.environ["LARDER_SCRATCH"] = os.path.join(tmp, "scratch")
failures = []

# What a fault counts as; None: libcurl or larder may take it for several things, or for none.
CAUSE = {"slowdown": "throttled", "bare503": "throttled", "toomany": "throttled", "err500": "server", "err502": "server",
         "hang": "stalled", "stall": "stalled", "close": None, "reset": None, "trunc": None, "flip": None, "full200": None,
         "norange": None, "wrongrange": None}
# What the line says when all requests for a shard have it.
GIVES_UP = {"slowdown": "503", "bare503": "503", "toomany": "429", "err500": "500", "err502": "502"}
SECONDS = 40  # of any run


def proxy(number):
    """Starts a proxy of our own; returns its address."""
    lines = subprocess.run([server, "proxy", os.path.join(tmp, "proxy%d" % number), str(os.getpid())], check=True,
                           capture_output=True, text=True).stdout
    return re.search(r"S3_PROXY=(\S+)", lines).group(1)


def put(address, **settings):
    body = "\n".join("%s=%s" % s for s in settings.items()).encode()
    urllib.request.urlopen(urllib.request.Request(address + "/__larder/faults", data=body, method="PUT")).read()


def counted(address):
    return json.loads(urllib.request.urlopen(address + "/__larder/stats").read())


def bench(address, cache, *options):
    """Status, epochs, stderr, seconds."""
    start = time.monotonic()
    r = subprocess.run([larder, "bench", "s3://%s/d" % bucket, "--json", "--batch-size", "16", "--endpoint", address, "--nvme", cache + ":64MB",
                        "--stall-timeout", "400ms", *options], capture_output=True, text=True, timeout=120)
    return r.returncode, [json.loads(line) for line in r.stdout.splitlines()], r.stderr, time.monotonic() - start


def expect(what, condition, *details):
    if not condition:
        failures.append("%s: %s" % (what, " ".join(map(str, details))))


def repeated(address, cache, fault, settings, in_flight, clean, data):
    """The run goes through."""
    what = "%s %s, %d in flight" % (fault, settings, in_flight)
    put(address, **{fault: 1}, **settings) if "limit" in settings else put(address, **settings)
    rc, epochs, err, seconds = bench(address, cache, "--epochs", "2", "--requests", str(in_flight), "--get-size", "64KiB", "--gap", "4KiB")
    had = counted(address).get(fault, 0)
    put(address)
    expect(what, rc == 0 and len(epochs) == 2, rc, err)
    if rc != 0 or len(epochs) != 2:
        return
    expect(what, {e["data_hash"] for e in epochs} == {data}, "wrong bytes")
    # what the stream had not brought yet when the first epoch ended may come a little later
    expect(what, epochs[1]["remote"]["requests"] <= clean // 10 + 10, "the second epoch asked the bucket", epochs[1]["remote"])
    expect(what, seconds < SECONDS, "took", seconds)
    r = epochs[0]["remote"]
    expect(what, r["retries"]["all"] <= 3 * had + 2, had, "faults,", r["retries"])
    expect(what, r["requests"] <= 2 * clean + 3 * had + 20, had, "faults,", r["requests"], "requests instead of", clean)
    if CAUSE[fault] and had > 5:  # those that opening met are not counted here
        expect(what, r["retries"][CAUSE[fault]] >= 1, had, "faults,", r["retries"])
    if "AWS_SECRET" in err or os.environ["AWS_SECRET_ACCESS_KEY"] in err:
        expect(what, False, "the secret is in", err)


def refused(address, cache, fault, shard, data):
    """All requests for one shard have the fault: the run ends, and says where."""
    what = "%s for all of a shard" % fault
    put(address, match="GET.*" + shard.replace("-", "%-"), retryafter=0, **{fault: 1})
    rc, epochs, err, seconds = bench(address, cache, "--requests", "16", "--tries", "3", "--timeout", "20s")
    had = counted(address).get(fault, 0)
    put(address)
    if fault in ("full200", "norange") and rc == 0:
        expect(what, epochs[0]["data_hash"] == data, "wrong bytes")  # the bytes can be told from a 200 as well
        return
    lines = [line for line in err.splitlines() if not line.startswith("epoch ") and "waiting" not in line]
    expect(what, rc == (3 if fault == "flip" else 1) and not epochs, rc, err)
    expect(what, len(lines) == 1 and lines[0].startswith("larder bench: ") and shard in err, err)
    expect(what, GIVES_UP.get(fault, "") in err, err)
    expect(what, seconds < SECONDS and had < 200, seconds, "s,", had, "faults")
    rc, epochs, err, _ = bench(address, cache)
    expect(what, rc == 0 and epochs and epochs[0]["data_hash"] == data, "afterwards:", rc, err)


def main():
    rng = random.Random(7)
    source = os.path.join(tmp, "source")
    for i in range(240):
        os.makedirs(os.path.join(source, "c%d" % (i % 4)), exist_ok=True)
        with open(os.path.join(source, "c%d" % (i % 4), "%03d.bin" % i), "wb") as f:
            f.write(rng.randbytes(rng.randrange(4000, 30000)))
    local = os.path.join(tmp, "d")
    subprocess.run([larder, "ingest", source, local, "--quiet", "--shard-size", "512KiB"], check=True)
    data = json.loads(subprocess.run([larder, "bench", local, "--json"], check=True, capture_output=True).stdout)["data_hash"]
    shards = sorted(os.listdir(os.path.join(local, "shards")))
    subprocess.run(["curl", "-sSf", "-X", "PUT", "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user",
                    os.environ["AWS_ACCESS_KEY_ID"] + ":" + os.environ["AWS_SECRET_ACCESS_KEY"], os.environ["S3_ENDPOINT"] + "/" + bucket],
                   check=True)
    subprocess.run([larder, "copy", local, "s3://%s/d" % bucket, "--quiet"], check=True)

    address = proxy(0)
    put(address)
    rc, epochs, err, seconds = bench(address, os.path.join(tmp, "clean"), "--get-size", "64KiB", "--gap", "4KiB")
    assert rc == 0 and epochs[0]["data_hash"] == data, err
    clean = epochs[0]["remote"]["requests"]
    jobs = queue.Queue()
    for n, fault in enumerate(f for f in CAUSE if f in os.environ.get("FAULTS", f).split(",")):
        for in_flight in (1, 16, 64):
            jobs.put((repeated, fault, {fault: 0.01, "seed": n}, in_flight, clean, data))
            jobs.put((repeated, fault, {fault: 0.1, "seed": n, "retryafter": 0}, in_flight, clean, data))
            jobs.put((repeated, fault, {"limit": 1, "skip": 3 + n}, in_flight, clean, data))
        jobs.put((refused, fault, shards[n % len(shards)], data))
    runs = jobs.qsize()

    def work(number, address):
        while True:
            try:
                job = jobs.get_nowait()
            except queue.Empty:
                return
            cache = os.path.join(tmp, "cache%d" % number)
            try:
                job[0](address, cache, *job[1:])
            except Exception as e:
                failures.append("%s: %r" % (job[1:3], e))
            shutil.rmtree(cache, ignore_errors=True)

    threads = [threading.Thread(target=work, args=(i, proxy(i) if i else address)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    print("\n".join(failures))
    print("test_faults: %d runs, %d complaints; %d requests an epoch" % (runs, len(failures), clean))
    return 1 if failures else 0


try:
    status = main()
finally:
    shutil.rmtree(tmp, ignore_errors=True)
sys.exit(status)
