/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_bucket_latency.c - bucket_stream with 20 to 50 ms before every answer, by the proxy of tests/bucket, which all sides go through.
 */
#include "tests/bench/bucket_stream.h"

int main(int argc, char **argv)
{
    stream_bench(argc, argv, "bucket_latency", "latmin=20\nlatmax=50");
    return 0;
}
