/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -lm */
/*
 * bench_stall.c - how much of its time an accelerator works that is fed by a loader from storage past the page cache.
 *
 * Shapes of MLPerf Storage: resnet50 as it is, 400 records of 114,660 bytes a batch; unet3d with a sixteenth of its bytes, 7 records of
 * 9.2 MB (sd 4.3 MB). R is what the loader delivers to a consumer that does not compute (bench_cold_random compares that with a bare
 * loop), measured in each round anew; then the consumer computes for as long after each batch as makes its demand 0.9 R, and 1.5 R:
 *
 *     stall/SHAPE/0.9: accelerator utilisation, compute time / wall time; ideal 1 (wanted: 0.95)
 *     stall/SHAPE/1.5: the same as a share of the ideal R / demand (wanted: 0.97)
 *
 * A run begins with the first batch, when nothing has been read ahead of it.
 */
#include "tests/bench/stall_bench.h"

enum { ROUNDS = 5 };

struct run { double bytes, wall, computed; };

/* n batches, each followed by some computing. */
static struct run feed(struct larder_dataset *ds, const struct shape *s, uint64_t n, double seconds)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    const struct larder_batch *b;
    struct run r = {0, 0, 0};
    struct larder_loader *ld;
    struct larder_error err;
    double begin = 0;

    o.batch_size = s->batch;
    o.last = LARDER_LAST_DROP;
    bench_ok(larder_loader_open(ds, &o, &ld, &err), &err);
    for (uint64_t i = 0; i <= n;) {
        int rc = larder_loader_next(ld, &b, &err);
        if (rc == LARDER_END)
            continue;
        bench_ok(rc, &err);
        if (i == 0)
            begin = bench_now();
        else
            for (uint32_t k = 0; k < b->n; k++)
                r.bytes += (double)b->values[k].len;
        r.wall = bench_now() - begin;
        larder_batch_release(b);
        if (i++ < n) {
            double t = bench_now();
            compute(seconds);
            r.computed += bench_now() - t;
        }
    }
    larder_loader_close(ld);
    return r;
}

static void bench_shape(const struct shape *s, const char *name, double demand)
{
    struct larder_dataset *ds = shape_open(s);
    uint64_t n = s->samples / s->batch;
    double rate[ROUNDS];
    struct bench_side share;
    char more[200];

    for (int i = -1; i < ROUNDS; i++) {
        struct run before = feed(ds, s, n, 0), fed, after;
        double each = before.bytes / (double)n / (before.bytes / before.wall * demand);

        fed = feed(ds, s, n, each);
        after = feed(ds, s, n, 0); /* a disk's rate drifts: R is that of both sides */
        if (i < 0)
            continue;
        rate[i] = (before.bytes + after.bytes) / (before.wall + after.wall);
        share.v[i] = fed.computed / fed.wall * (demand > 1 ? fed.bytes / fed.computed / rate[i] : 1);
    }
    bench_side_sum(&share, ROUNDS);
    snprintf(more, sizeof more, "\"storage_rate\": %.4g, \"demand\": %.1f, \"batch\": %u, \"value_bytes\": %u", bench_median(rate, ROUNDS),
             demand, s->batch, s->bytes);
    bench_line(name, &share, 1, "an accelerator that never waits, or R / demand", share.median, "of ideal", ROUNDS, more);
    larder_dataset_close(ds);
}

int main(int argc, char **argv)
{
    static const struct shape shapes[] = {{"resnet50", 114660, 0, 12000, 400}, {"unet3d", 146600628 / 16, 68341808 / 16, 140, 7}};

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int k = 0; k < 2; k++) {
            char name[64];

            snprintf(name, sizeof name, "stall/%s/%s", shapes[i].name, k ? "1.5" : "0.9");
            if (bench_wanted(argc, argv, name))
                bench_shape(&shapes[i], name, k ? 1.5 : 0.9);
        }
    return 0;
}
