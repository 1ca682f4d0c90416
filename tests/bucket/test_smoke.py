# SPDX-License-Identifier: Apache-2.0
# The servers themselves, by boto3: radosgw keeps what it is given, and each fault of the proxy is what its name says.
import hashlib
import http.client
import os
import random
import sys
import urllib.error
import urllib.request

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import ClientError
except ImportError:
    print("no python3-boto3: make deps-check")
    sys.exit(77)

proxy, bucket = os.environ["S3_PROXY"], "smoke-%d" % os.getpid()
data = random.Random(1).randbytes(300000)


def client(endpoint, **more):
    return boto3.client("s3", endpoint_url=endpoint, config=Config(signature_version="s3v4", s3={"addressing_style": "path"},
                        retries={"max_attempts": 1}, connect_timeout=5, read_timeout=3), **more)


def faults(**settings):
    body = "\n".join("%s=%s" % s for s in settings.items()).encode()
    urllib.request.urlopen(urllib.request.Request(proxy + "/__larder/faults", data=body, method="PUT")).read()


def get(url, range_=None):
    """Status, headers and body of a GET, or the name of what went wrong."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Range": range_} if range_ else {}), timeout=2) as r:
            return r.status, r.headers, r.read()
    except urllib.error.HTTPError as e:
        return e.code, e.headers, e.read()
    except (http.client.HTTPException, OSError, urllib.error.URLError) as e:
        return type(e).__name__, {}, getattr(e, "partial", b"")


def differing_bits(a, b):
    return sum(bin(x ^ y).count("1") for x, y in zip(a, b))


s3 = client(os.environ["S3_ENDPOINT"])
s3.create_bucket(Bucket=bucket)
etag = s3.put_object(Bucket=bucket, Key="a b/ü+&", Body=data)["ETag"].strip('"')
assert etag == hashlib.md5(data).hexdigest()
assert s3.get_object(Bucket=bucket, Key="a b/ü+&", Range="bytes=5-9", IfMatch=etag)["Body"].read() == data[5:10]
for endpoint, more in ((proxy, {}), (os.environ["S3_PROXY_TLS"], {"verify": os.environ["S3_CA"]})):
    assert client(endpoint, **more).get_object(Bucket=bucket, Key="a b/ü+&")["Body"].read() == data

# Anybody may read the next one, so that plain GETs show what the proxy does.
s3.put_object(Bucket=bucket, Key="open", Body=data, ACL="public-read")
url, part, range_ = "%s/%s/open" % (proxy, bucket), data[1000:200000], "bytes=1000-199999"
for fault, status in (("slowdown", 503), ("bare503", 503), ("toomany", 429), ("err500", 500), ("err502", 502), ("skew", 403)):
    faults(**{fault: 1})
    code, headers, _ = get(url)
    assert code == status and ("Retry-After" in headers) == (fault in ("slowdown", "toomany")), (fault, code)
for fault in ("close", "hang", "trunc", "reset", "stall"):
    faults(**{fault: 1})
    code, _, body = get(url, range_)
    assert isinstance(code, str) and len(body) < len(part) and part.startswith(body), (fault, code, len(body))
faults(flip=1)
code, _, body = get(url, range_)
assert code == 206 and differing_bits(body, part) == 1
faults(full200=1)
assert get(url, range_)[::2] == (200, part)
faults(norange=1)
assert get(url, range_)[::2] == (200, data)
faults(wrongrange=1)
code, headers, body = get(url, range_)
assert code == 206 and body == data[999:199999] and headers["Content-Range"] == "bytes 999-199998/300000"
faults(err500=1, match="GET.*open", skip=1, limit=1)
assert [get(url)[0] for _ in range(4)] == [200, 500, 200, 200]
faults(err500=1, match="bytes=0-")
assert [get(url)[0], get(url, "bytes=0-9")[0]] == [200, 500]
stats = get(proxy + "/__larder/stats")[2]
assert b'"err500": 1' in stats and b'"requests": 2' in stats, stats
log = get(proxy + "/__larder/log")[2].decode().splitlines()
assert [line.split()[2:] for line in log] == [
    ["200", "300000", "-", "GET", "/%s/open" % bucket, "-"],
    ["500", log[1].split()[3], "err500", "GET", "/%s/open" % bucket, "bytes=0-9"]], log

faults(region="eu-west-1")
assert client(proxy).get_object(Bucket=bucket, Key="open")["Body"].read() == data # boto3 asks again, for the right region
assert b'"region": 1' in get(proxy + "/__larder/stats")[2]
faults(expired=os.environ["AWS_ACCESS_KEY_ID"])
try:
    client(proxy).get_object(Bucket=bucket, Key="open")
    raise AssertionError("expired credentials were taken")
except ClientError as e:
    assert e.response["Error"]["Code"] == "ExpiredToken", e
faults()

with open(os.path.join(os.environ["WEB_ROOT"], "smoke"), "wb") as f:
    f.write(data)
assert get(os.environ["WEB"] + "/smoke", range_)[::2] == (206, part)
faults(flip=1)
assert differing_bits(get(os.environ["WEB_PROXY"] + "/smoke", range_)[2], part) == 1
faults()
print("ok")
