/* SPDX-License-Identifier: Apache-2.0 */
/* bucket_stream.h - what bench_bucket_stream.c and bench_bucket_latency.c measure; the first says how. */
#ifndef BUCKET_STREAM_H
#define BUCKET_STREAM_H

#include <sys/resource.h>

#include "tests/bench/bucket_bench.h"

enum { STREAM_SAMPLES = 6000, STREAM_VALUE = 110000, STREAM_IN_FLIGHT = 16, STREAM_ROUNDS = 5, STREAM_SHARDS = 64 };

struct stream {
    struct bucket bucket;
    const char *endpoint, *nvme;
    char kept[300];                    /* file of the bare loop that keeps what it reads on the disk */
    struct bucket_object shards[STREAM_SHARDS];
    size_t n_shards;
    uint64_t bytes, epoch;
    bool dram;
    struct larder_remote_stats remote; /* of the last round */
};

static double stream_larder(struct stream *s)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_loader_options l = LARDER_LOADER_OPTIONS_INIT;
    struct larder_remote_options remote = LARDER_REMOTE_OPTIONS_INIT;
    struct larder_cache_options c = LARDER_CACHE_OPTIONS_INIT;
    struct larder_cache_nvme nvme = {s->nvme, 2 * s->bytes};
    struct larder_error err;
    uint64_t delivered;
    double t;

    bench_rm(s->nvme);
    c.name = NULL;
    c.dram_bytes = s->dram ? LARDER_DRAM_DEFAULT : LARDER_DRAM_OFF;
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

static double stream_bare(struct stream *s, bool kept)
{
    struct bucket_keep keep = {.path = s->dram ? NULL : s->kept, .piece = STREAM_VALUE};

    return (double)s->bytes / bucket_bare(s->shards, s->n_shards, 8 << 20, STREAM_IN_FLIGHT, kept ? &keep : NULL);
}

static double stream_cpu(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* One line. The three sides take turns, each round beginning with another one. */
static void stream_case(struct stream *s, const char *name, bool dram)
{
    enum { LARDER, BARE, KEPT, SIDES };
    struct bench_side side[SIDES], cpu[SIDES];
    char more[900];

    s->dram = dram;
    for (int i = -1; i < STREAM_ROUNDS; i++)
        for (int k = 0; k < SIDES; k++) {
            int which = (k + i + SIDES) % SIDES;
            double begin = stream_cpu(), v = which == LARDER ? stream_larder(s) : stream_bare(s, which == KEPT);

            if (i >= 0)
                side[which].v[i] = v, cpu[which].v[i] = stream_cpu() - begin;
        }
    for (int k = 0; k < SIDES; k++) {
        bench_side_sum(&side[k], STREAM_ROUNDS);
        bench_side_sum(&cpu[k], STREAM_ROUNDS);
    }
    snprintf(more, sizeof more,
             "\"baseline_min\": %.6g, \"baseline_max\": %.6g, \"kept\": %.6g, \"kept_name\": \"the same, %s\", \"kept_ratio\": %.3f, "
             "\"cpu_s\": %.2f, \"baseline_cpu_s\": %.2f, \"kept_cpu_s\": %.2f, \"in_flight\": %d, \"fetched\": %.3f, \"demand_gets\": %" PRIu64
             ", \"stream_gets\": %" PRIu64 ", \"other_gets\": %" PRIu64 ", \"retries\": %" PRIu64,
             side[BARE].min, side[BARE].max, side[KEPT].median,
             dram ? "kept in memory" : "written to the disk and read back in pieces of 110 kB", side[LARDER].median / side[KEPT].median,
             cpu[LARDER].median, cpu[BARE].median, cpu[KEPT].median, STREAM_IN_FLIGHT,
             (double)s->remote.bytes_fetched / (double)s->bytes, s->remote.demand_gets, s->remote.stream_gets,
             s->remote.gets - s->remote.demand_gets - s->remote.stream_gets, s->remote.retries);
    bench_line(name, &side[LARDER], side[BARE].median, "libcurl multi, ranges of 8 MiB", side[LARDER].median / side[BARE].median, "B/s",
               STREAM_ROUNDS, more);
}

static void stream_bench(int argc, char **argv, const char *name, const char *faults)
{
    struct stream s = {.nvme = bench_path("bucket-nvme")};
    char both[60], nvme[60];

    snprintf(both, sizeof both, "%s/dram+nvme", name);
    snprintf(nvme, sizeof nvme, "%s/nvme", name);
    if (!bench_wanted(argc, argv, both) && !bench_wanted(argc, argv, nvme))
        return;
    if (!bucket_start(&s.bucket, name))
        return;
    s.endpoint = *faults ? s.bucket.proxy : s.bucket.direct;
    bucket_dataset(&s.bucket, "stream", STREAM_SAMPLES, STREAM_VALUE);
    s.n_shards = bucket_shards(&s.bucket, s.endpoint, "stream", s.shards, STREAM_SHARDS);
    snprintf(s.kept, sizeof s.kept, "%s.kept", s.nvme);
    for (size_t i = 0; i < s.n_shards; i++)
        s.bytes += s.shards[i].size;
    bucket_faults(&s.bucket, faults);
    if (bench_wanted(argc, argv, both))
        stream_case(&s, both, true);
    if (bench_wanted(argc, argv, nvme))
        stream_case(&s, nvme, false);
    bench_rm(s.nvme);
    bucket_stop(&s.bucket);
}

#endif
