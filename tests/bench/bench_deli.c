/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_deli.c - what windows remove of the time that a training loop waits for samples in a bucket (DELI V).
 *
 * 12,288 samples as large as MNIST's (784 bytes) and CIFAR's (3,073), behind 20 to 50 ms before every answer. The other side reads each sample
 * from the bucket in turn, a GET each on one connection: the first 100 of them, of which the rest is reckoned. larder: an epoch with
 * windows of 1,024 samples and a threshold of 1,024, which a cache of 2,048 samples holds, from open to close, without any computing to
 * hide behind. `larder` is the share of the time that is gone; DELI's best is 0.935, wanted is 0.99. `disk` is the same for an epoch of
 * the same dataset on a local disk: the floor.
 *
 * `table` is DELI's of fetch sizes and thresholds (figures 6 to 9): seconds waited in an epoch whose loop computes for 100 us a sample, as
 * [fetch size, threshold, seconds, GETs].
 */
#include "tests/bench/bucket_bench.h"

enum { SAMPLES = 12288, IN_TURN = 100, ROUNDS = 5, BATCH = 64 };

static struct larder_dataset *open_ds(const char *uri, const char *endpoint)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_remote_options remote = LARDER_REMOTE_OPTIONS_INIT;
    struct larder_dataset *ds;
    struct larder_error err;

    remote.endpoint = endpoint;
    o.remote = endpoint ? &remote : NULL;
    bench_ok(larder_dataset_open(uri, &o, &ds, &err), &err);
    return ds;
}

static struct larder_loader_options options(uint64_t fetch_size, uint64_t threshold)
{
    static uint64_t seed;
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;

    o.batch_size = BATCH;
    o.seed = ++seed;
    o.epochs = 1;
    o.fetch_size = fetch_size;
    o.threshold = threshold;
    return o;
}

static double epoch(struct larder_dataset *ds, size_t value)
{
    struct larder_loader_options o = options(1024, 1024);
    uint64_t bytes;
    double t = bucket_epoch(ds, &o, &bytes);

    if (bytes != SAMPLES * value)
        bench_die("deli: %" PRIu64 " bytes were delivered", bytes);
    return t;
}

/* Seconds that a loop which computes waits in an epoch. */
static double waited(struct larder_dataset *ds, uint64_t fetch_size, uint64_t threshold, uint64_t *gets)
{
    struct larder_loader_options o = options(fetch_size, threshold);
    struct larder_remote_stats before = LARDER_REMOTE_STATS_INIT, after = LARDER_REMOTE_STATS_INIT;
    struct timespec compute = {0, BATCH * 100000};
    const struct larder_batch *b;
    struct larder_loader *ld;
    struct larder_error err;
    double sum = 0, t = bench_now();
    int rc;

    bench_ok(larder_dataset_remote_stats(ds, &before, &err), &err);
    bench_ok(larder_loader_open(ds, &o, &ld, &err), &err);
    while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK) {
        sum += bench_now() - t;
        nanosleep(&compute, NULL);
        larder_batch_release(b);
        t = bench_now();
    }
    if (rc != LARDER_END)
        bench_ok(rc, &err);
    larder_loader_close(ld);
    bench_ok(larder_dataset_remote_stats(ds, &after, &err), &err);
    *gets = after.gets - before.gets;
    return sum;
}

static void table(struct larder_dataset *ds, char *out, size_t cap)
{
    static const uint64_t rows[][2] = {{256, 0}, {512, 0}, {1024, 0}, {2048, 0}, {1024, 512}, {1024, 1024}, {512, 1536}, {1536, 512}};
    size_t len = (size_t)snprintf(out, cap, "\"table\": [");

    for (size_t i = 0; i < sizeof rows / sizeof *rows && len < cap; i++) {
        uint64_t gets;
        double seconds = waited(ds, rows[i][0], rows[i][1], &gets);
        len += (size_t)snprintf(out + len, cap - len, "%s[%" PRIu64 ", %" PRIu64 ", %.3f, %" PRIu64 "]", i ? ", " : "", rows[i][0], rows[i][1], seconds,
                                gets);
    }
    snprintf(out + len, cap - len, "]");
}

static void bench_case(struct bucket *bucket, const char *name, const char *prefix, size_t value)
{
    struct larder_dataset *near, *far;
    struct bucket_object shards[64];
    char uri[100], local[100], more[1000], rows[700];
    double disk[ROUNDS], turn[ROUNDS];
    struct bench_side removed;

    bucket_dataset(bucket, prefix, SAMPLES, value);
    bucket_shards(bucket, bucket->proxy, prefix, shards, 64);
    shards[0].size = IN_TURN * value;
    snprintf(uri, sizeof uri, "s3://" BUCKET "/%s", prefix);
    snprintf(local, sizeof local, "bucket-%d" "x%zu", SAMPLES, value);
    near = open_ds(bench_path(local), NULL);
    far = open_ds(uri, bucket->proxy);
    for (int i = -1; i < ROUNDS; i++) {
        double in_turn = bucket_bare(shards, 1, value, 1) / IN_TURN * SAMPLES, windows = epoch(far, value), floor = epoch(near, value);
        if (i < 0)
            continue;
        removed.v[i] = 1 - windows / in_turn;
        disk[i] = 1 - floor / in_turn;
        turn[i] = in_turn;
    }
    bench_side_sum(&removed, ROUNDS);
    table(far, rows, sizeof rows);
    snprintf(more, sizeof more, "\"disk\": %.5f, \"in_turn_seconds\": %.1f, \"value_bytes\": %zu, %s", bench_median(disk, ROUNDS),
             bench_median(turn, ROUNDS), value, rows);
    bench_line(name, &removed, 0.935, "DELI's best", removed.median / 0.935, "of load time", ROUNDS, more);
    larder_dataset_close(near);
    larder_dataset_close(far);
}

int main(int argc, char **argv)
{
    struct bucket bucket;

    if (!bench_wanted(argc, argv, "deli/mnist") && !bench_wanted(argc, argv, "deli/cifar"))
        return 0;
    if (!bucket_start(&bucket, "deli"))
        return 0;
    bucket_faults(&bucket, "latmin=20\nlatmax=50");
    if (bench_wanted(argc, argv, "deli/mnist"))
        bench_case(&bucket, "deli/mnist", "mnist", 784);
    if (bench_wanted(argc, argv, "deli/cifar"))
        bench_case(&bucket, "deli/cifar", "cifar", 3073);
    bucket_stop(&bucket);
    return 0;
}
