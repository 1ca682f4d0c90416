# SPDX-License-Identifier: Apache-2.0
# one_get_a_sample.py ENDPOINT BUCKET THREADS LIST - prints the samples a second that boto3 gets, one ranged GET each, for the lines
# "KEY FIRST-LAST" of LIST. A client for all threads, a pool of as many connections.
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import boto3
from botocore.config import Config

endpoint, bucket, threads, path = sys.argv[1:]
client = boto3.client("s3", endpoint_url=endpoint, config=Config(max_pool_connections=int(threads), s3={"addressing_style": "path"}))
wanted = [line.split() for line in open(path)]


def get(item):
    return len(client.get_object(Bucket=bucket, Key=item[0], Range="bytes=" + item[1])["Body"].read())


with ThreadPoolExecutor(int(threads)) as pool:
    list(pool.map(get, wanted[:int(threads)]))  # connects
    start = time.monotonic()
    total = sum(pool.map(get, wanted))
    print(len(wanted) / (time.monotonic() - start))
