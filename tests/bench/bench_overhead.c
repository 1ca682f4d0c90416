/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_overhead.c - bytes of bookkeeping a cached sample.
 *
 * A dataset of small records fills a DRAM cache that has room for a part of it; all that the budget spent which is no record's bytes (heads, table, headers) is
 * divided by the records held. The baseline is the limit of 32 bytes.
 */
#include "tests/bench/dram_bench.h"

int main(int argc, char **argv)
{
    struct larder_cache_stats s = {.struct_size = sizeof s};
    struct larder_error err;
    struct bench_side side;
    struct data d = {0};
    char more[200];

    if (!bench_wanted(argc, argv, "overhead"))
        return 0;
    data_fill(&d, &cases[0], NULL, 200000000);
    bench_ok(larder_cache_stats(d.cache, &s, &err), &err);
    side.median = side.min = side.max = (double)s.dram.bookkeeping_bytes / (double)s.dram.entries;
    snprintf(more, sizeof more, "\"entries\": %llu, \"bookkeeping_bytes\": %llu, \"used_bytes\": %llu",
             (unsigned long long)s.dram.entries, (unsigned long long)s.dram.bookkeeping_bytes, (unsigned long long)s.dram.used_bytes);
    bench_line("overhead", &side, 32, "limit", 32 / side.median, "B", 1, more);
    data_close(&d);
    return 0;
}
