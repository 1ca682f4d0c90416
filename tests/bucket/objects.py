# SPDX-License-Identifier: Apache-2.0
# The other side of test_objects.c: makes, fills and looks at buckets with boto3, so that larder's own requests are judged by somebody else.
#
#   objects.py make BUCKET                   faults [NAME=VALUE ...]   of the proxy
#   objects.py check BUCKET PREFIX FILE      FILE: "hexname size sha256 etag|-" a line; nothing else may be below PREFIX, nor any upload
#   objects.py fill BUCKET PREFIX FILE N     N objects with odd names, noted in FILE
#   objects.py begin BUCKET KEY ...          uploads that nobody finishes
#   objects.py uploads BUCKET                prints their keys
import hashlib
import os
import random
import sys
import urllib.request

import boto3
from botocore.config import Config

verb, args = sys.argv[1], sys.argv[2:]
s3 = boto3.client("s3", endpoint_url=os.environ["S3_ENDPOINT"], config=Config(signature_version="s3v4", s3={"addressing_style": "path"}))


def keys(bucket, prefix):
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return {o["Key"]: o["ETag"].strip('"') for p in pages for o in p.get("Contents", [])}


if verb == "make":
    s3.create_bucket(Bucket=args[0])
elif verb == "faults":
    urllib.request.urlopen(urllib.request.Request(os.environ["S3_PROXY"] + "/__larder/faults", data="\n".join(args).encode(), method="PUT"))
elif verb == "check":
    bucket, prefix, path = args
    there, wanted = keys(bucket, prefix), set()
    for line in open(path):
        name, size, sha, etag = line.split()
        key = prefix + bytes.fromhex(name).decode()
        wanted.add(key)
        o = s3.get_object(Bucket=bucket, Key=key)
        body = o["Body"].read()
        assert len(body) == int(size) and hashlib.sha256(body).hexdigest() == sha, (key, size, len(body))
        assert etag == "-" or there[key] == etag, (key, there[key], etag)
        if len(body) <= 8 << 20:
            assert there[key] == hashlib.md5(body).hexdigest(), key
    assert set(there) == wanted, set(there) ^ wanted
    assert not s3.list_multipart_uploads(Bucket=bucket).get("Uploads"), "an upload is left"
elif verb == "fill":
    bucket, prefix, path, n = args
    rng = random.Random(7)
    odd = list(" +'()*~%&<>\"#?;:@=,!$^`{}|[]\\-_.aZ0é日😀") + ["%20", "%2F", "&amp;", "\x7f"]
    with open(path, "w") as f:
        for i in range(int(n)):
            name = "d%d/%d-%s%s" % (i % 7, i, "".join(rng.choices(odd, k=rng.randrange(12))), "/x" if i % 3 == 0 else "e")
            if "/./" in name or "/../" in name:
                continue
            data = rng.randbytes(i % 50)
            s3.put_object(Bucket=bucket, Key=prefix + name, Body=data)
            f.write("%s %d %s -\n" % (name.encode().hex(), len(data), hashlib.sha256(data).hexdigest()))
elif verb == "begin":
    for key in args[1:]:
        upload = s3.create_multipart_upload(Bucket=args[0], Key=key)["UploadId"]
        s3.upload_part(Bucket=args[0], Key=key, UploadId=upload, PartNumber=1, Body=b"x")
elif verb == "uploads":
    print(*sorted(u["Key"] for u in s3.list_multipart_uploads(Bucket=args[0]).get("Uploads", [])))
else:
    sys.exit("what is %s?" % verb)
