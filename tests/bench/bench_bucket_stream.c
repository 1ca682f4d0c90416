/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_bucket_stream.c - a cold epoch in full shuffle out of a bucket, with room for all of it on NVMe.
 *
 * 6,000 records of 110 kB in Ceph radosgw on loopback. larder: an empty cache directory each round, one epoch. Baseline: a bare libcurl
 * multi loop that reads the shards once in ranges of 8 MiB, the same number of requests in flight, and keeps nothing. Bytes of shards a
 * second. `fetched`: bytes received over the dataset's; `demand_gets`, `stream_gets`: those that the consumer waited for, and those ahead.
 *
 *     bucket_stream/dram+nvme   a cache as users have it: DRAM as by default, which holds all of it here, and NVMe
 *     bucket_stream/nvme        no DRAM: most of it has to be read back from the disk
 *
 * `kept` is what the case is bound by: the same bare loop, but that it keeps the bytes where the case does, in fresh memory, or in a file
 * that it then reads back in random pieces of a record. `cpu_s`: of this process, of each side; the server has the same CPUs.
 */
#include "tests/bench/bucket_stream.h"

int main(int argc, char **argv)
{
    stream_bench(argc, argv, "bucket_stream", "");
    return 0;
}
