/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -lm */
/*
 * bench_epoch_boundary.c - what a consumer waits between two epochs, against what it waits between two batches.
 *
 * Epochs of 30 batches of 100 records of 114,660 bytes, past the page cache, by a consumer that asks for more than storage gives, so that it
 * waits for every batch. At a boundary it waits for LARDER_END and for the first batch of the next epoch. Medians; wanted: a ratio of 1,
 * which is no more at the boundary.
 */
#include "tests/bench/stall_bench.h"

enum { EPOCHS = 25, BATCHES = 30 };

int main(int argc, char **argv)
{
    static const struct shape shape = {"boundary", 114660, 0, 100 * BATCHES, 100};
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    static double between[EPOCHS * BATCHES];
    struct bench_side boundary;
    struct larder_dataset *ds;
    const struct larder_batch *b;
    struct larder_loader *ld;
    struct larder_error err;
    int n_between = 0, n = 0;
    char more[100];
    double median;

    if (!bench_wanted(argc, argv, "epoch_boundary"))
        return 0;
    ds = shape_open(&shape);
    o.batch_size = shape.batch;
    o.epochs = EPOCHS;
    bench_ok(larder_loader_open(ds, &o, &ld, &err), &err);
    for (int e = 0; e < EPOCHS; e++)
        for (int i = 0; i < BATCHES; i++) {
            double t = bench_now();

            if (i == 0 && e > 0 && larder_loader_next(ld, &b, &err) != LARDER_END)
                bench_die("no end of epoch %d", e - 1);
            bench_ok(larder_loader_next(ld, &b, &err), &err);
            t = bench_now() - t;
            larder_batch_release(b);
            if (i)
                between[n_between++] = t;
            else if (e)
                boundary.v[n++] = t;
        }
    larder_loader_close(ld);
    larder_dataset_close(ds);
    bench_side_sum(&boundary, n);
    median = bench_median(between, n_between);
    snprintf(more, sizeof more, "\"epochs\": %d, \"batches\": %d", EPOCHS, BATCHES);
    bench_line("epoch_boundary", &boundary, median, "stall between two batches", median / boundary.median, "s", n, more);
    return 0;
}
