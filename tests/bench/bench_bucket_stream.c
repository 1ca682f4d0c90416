/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_bucket_stream.c - a cold epoch in full shuffle out of a bucket, with room for all of it on NVMe.
 *
 * 6,000 records of 110 kB in Ceph radosgw on loopback. larder: an empty cache directory each round, one epoch. Baseline: a bare libcurl
 * multi loop that reads the shards once in ranges of 8 MiB, the same number of requests in flight, and keeps nothing. Bytes of shards a
 * second. `fetched`: bytes received over the dataset's; `demand_gets`, `stream_gets`: those that the consumer waited for, and those ahead.
 */
#include "tests/bench/bucket_stream.h"

int main(int argc, char **argv)
{
    if (bench_wanted(argc, argv, "bucket_stream"))
        stream_bench("bucket_stream", "");
    return 0;
}
