# SPDX-License-Identifier: Apache-2.0
# files.py get|put BUCKET PREFIX FOLDER - copies all objects below a prefix into a folder, or back, by boto3. list BUCKET PREFIX prints keys
# and sizes; uploads BUCKET prints unfinished multipart uploads; create BUCKET makes one.
import os
import sys

import boto3
from botocore.config import Config

what, bucket, prefix, folder = (sys.argv[1:] + ["", ""])[:4]
s3 = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], config=Config(s3={"addressing_style": "path"}))


def objects():
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix + "/" if prefix else ""):
        yield from page.get("Contents", [])


if what == "get":
    for o in objects():
        path = os.path.join(folder, o["Key"][len(prefix) + 1:])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        s3.download_file(bucket, o["Key"], path)
elif what == "put":
    for at, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(at, name)
            s3.upload_file(path, bucket, "%s/%s" % (prefix, os.path.relpath(path, folder)))
elif what == "list":
    for o in objects():
        print(o["Key"], o["Size"])
elif what == "create":
    s3.create_bucket(Bucket=bucket)
elif what == "uploads":
    for u in s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
        print(u["Key"])
