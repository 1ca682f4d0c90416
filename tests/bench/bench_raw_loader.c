/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_raw_loader.c - epochs of a loader over records that lie in DRAM, against a bare loop that copies the same records.
 *
 * One consumer, batches of 256 in a full shuffle, every cache line of every value touched: larder by larder_loader_next and release, the
 * other side by memcpy of records drawn at random out of one array, back to back (as in bench_dram_read). Larder's time is that of the last
 * epochs of a loader that runs on, so that it finds batches ready as in a long training.
 */
#include "tests/bench/dram_bench.h"

struct ctx { struct data d; uint64_t sum; };

enum { WARM = 4 };

/* The next n batches of endless epochs. */
static uint64_t take(struct larder_loader *ld, uint64_t n, uint64_t *sum)
{
    const struct larder_batch *b;
    struct larder_error err;
    uint64_t samples = 0;

    while (n > 0) {
        int rc = larder_loader_next(ld, &b, &err);
        if (rc == LARDER_END)
            continue;
        bench_ok(rc, &err);
        for (uint32_t i = 0; i < b->n; i++)
            *sum += touch(b->values[i].data, b->values[i].len);
        samples += b->n;
        larder_batch_release(b);
        n--;
    }
    return samples;
}

static double run_loader(void *arg)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader *ld;
    struct larder_error err;
    struct ctx *c = arg;
    double t0, t;
    uint64_t n;

    o.batch_size = BATCH;
    o.seed = 3;
    bench_ok(larder_loader_open(c->d.ds, &o, &ld, &err), &err);
    take(ld, WARM, &c->sum);
    t0 = bench_now();
    n = take(ld, c->d.c->batches * 3, &c->sum);
    t = bench_now() - t0;
    larder_loader_close(ld);
    return (double)n / t;
}

static double run_bare(void *arg)
{
    struct ctx *c = arg;

    return copy_random(&c->d, 42, c->d.c->batches * 3, &c->sum);
}

int main(int argc, char **argv)
{
    for (size_t i = 1; i < sizeof cases / sizeof *cases; i++) {
        struct ctx c = {.sum = 0};
        char name[64], more[100];

        snprintf(name, sizeof name, "raw_loader/%s", cases[i].name);
        if (!bench_wanted(argc, argv, name))
            continue;
        data_open(&c.d, &cases[i], NULL);
        data_array(&c.d);
        snprintf(more, sizeof more, "\"value_bytes\": %u, \"batch\": %d", cases[i].bytes, BATCH);
        bench_pair(name, run_loader, run_bare, "memcpy of random records", "1/s", 7, &c, more);
        data_close(&c.d);
    }
    return 0;
}
