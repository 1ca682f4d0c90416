/* SPDX-License-Identifier: Apache-2.0 */
/* bucket_stream.h - what bench_bucket_stream.c and bench_bucket_latency.c measure; the first says how. */
#ifndef BUCKET_STREAM_H
#define BUCKET_STREAM_H

#include "tests/bench/bucket_bench.h"

enum { STREAM_SAMPLES = 6000, STREAM_VALUE = 110000, STREAM_IN_FLIGHT = 16, STREAM_ROUNDS = 5, STREAM_SHARDS = 64 };

struct stream {
    struct bucket bucket;
    const char *endpoint, *nvme;
    struct bucket_object shards[STREAM_SHARDS];
    size_t n_shards;
    uint64_t bytes, epoch;
    struct larder_remote_stats remote; /* of the last round */
};

static double stream_larder(void *arg)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_loader_options l = LARDER_LOADER_OPTIONS_INIT;
    struct larder_remote_options remote = LARDER_REMOTE_OPTIONS_INIT;
    struct larder_cache_options c = LARDER_CACHE_OPTIONS_INIT;
    struct stream *s = arg;
    struct larder_cache_nvme nvme = {s->nvme, 2 * s->bytes};
    struct larder_error err;
    uint64_t delivered;
    double t;

    bench_rm(s->nvme);
    c.name = NULL;
    c.dram_bytes = LARDER_DRAM_OFF;
    c.nvme = &nvme;
    c.n_nvme = 1;
    remote.endpoint = s->endpoint;
    remote.requests_max = STREAM_IN_FLIGHT;
    o.remote = &remote;
    l.epoch = s->epoch++;
    bench_ok(larder_cache_open(&c, &o.cache, &err), &err);
    struct larder_dataset *ds;
    bench_ok(larder_dataset_open("s3://" BUCKET "/stream", &o, &ds, &err), &err);
    t = bucket_epoch(ds, &l, &delivered);
    if (delivered != (uint64_t)STREAM_SAMPLES * STREAM_VALUE)
        bench_die("%" PRIu64 " bytes were delivered", delivered);
    s->remote.struct_size = sizeof s->remote;
    bench_ok(larder_dataset_remote_stats(ds, &s->remote, &err), &err);
    larder_dataset_close(ds);
    larder_cache_close(o.cache);
    return (double)s->bytes / t;
}

static double stream_bare(void *arg)
{
    struct stream *s = arg;

    return (double)s->bytes / bucket_bare(s->shards, s->n_shards, 8 << 20, STREAM_IN_FLIGHT);
}

static void stream_bench(const char *name, const char *faults)
{
    struct stream s = {.nvme = bench_path("bucket-nvme")};
    struct bench_side a, b;
    char more[600];

    if (!bucket_start(&s.bucket, name))
        return;
    s.endpoint = *faults ? s.bucket.proxy : s.bucket.direct;
    bucket_dataset(&s.bucket, "stream", STREAM_SAMPLES, STREAM_VALUE);
    s.n_shards = bucket_shards(&s.bucket, s.endpoint, "stream", s.shards, STREAM_SHARDS);
    for (size_t i = 0; i < s.n_shards; i++)
        s.bytes += s.shards[i].size;
    bucket_faults(&s.bucket, faults);
    for (int i = -1; i < STREAM_ROUNDS; i++) {
        double x = 0, y = 0;

        if (i & 1)
            y = stream_bare(&s);
        x = stream_larder(&s);
        if (!(i & 1))
            y = stream_bare(&s);
        if (i >= 0)
            a.v[i] = x, b.v[i] = y;
    }
    bench_side_sum(&a, STREAM_ROUNDS);
    bench_side_sum(&b, STREAM_ROUNDS);
    snprintf(more, sizeof more,
             "\"baseline_min\": %.6g, \"baseline_max\": %.6g, \"in_flight\": %d, \"fetched\": %.3f, \"demand_gets\": %" PRIu64
             ", \"stream_gets\": %" PRIu64 ", \"other_gets\": %" PRIu64 ", \"retries\": %" PRIu64,
             b.min, b.max, STREAM_IN_FLIGHT, (double)s.remote.bytes_fetched / (double)s.bytes, s.remote.demand_gets, s.remote.stream_gets,
             s.remote.gets - s.remote.demand_gets - s.remote.stream_gets, s.remote.retries);
    bench_line(name, &a, b.median, "libcurl multi, ranges of 8 MiB", a.median / b.median, "B/s", STREAM_ROUNDS, more);
    bench_rm(s.nvme);
    bucket_stop(&s.bucket);
}

#endif
