/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_bucket_random.c - epochs in full shuffle out of a bucket, without a cache.
 *
 * 2500: 20,000 records of 2.5 kB, N/16 of them requested together (a batch). 110000: 2,000 records of 110 kB, N/4 of them
 * together, 20 to 50 ms before every answer. Baseline: one GET a sample over kept connections by 16 threads, as DELI does it, with libcurl, of random
 * samples; `boto3`: the same by python3-boto3. Samples a second. `gets`: by larder in an epoch; `fetched`: bytes
 * received over those delivered.
 */
#include <stdatomic.h>

#include "tests/bench/bucket_bench.h"

enum { THREADS = 16, ROUNDS = 5 };

static const struct kind {
    const char *name, *faults;
    uint64_t samples, window, baseline; /* baseline: samples of a round of one GET each */
    size_t value;
} kinds[] = {
    {"bucket_random/2500", "", 20000, 20000 / 16, 4000, 2500},
    {"bucket_random/110000", "latmin=20\nlatmax=50", 2000, 2000 / 4, 1000, 110000},
};

struct random_ctx {
    struct bucket bucket;
    const struct kind *kind;
    const char *endpoint;
    char uri[64];
    struct larder_dataset *ds;
    uint64_t epoch, gets, fetched, delivered;
    char **urls, **ranges; /* of samples, [kind->baseline] */
    atomic_size_t next;
};

static double run_larder(void *arg)
{
    struct random_ctx *c = arg;
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_remote_stats before = LARDER_REMOTE_STATS_INIT, after = LARDER_REMOTE_STATS_INIT;
    struct larder_error err;
    double t;

    o.batch_size = (uint32_t)c->kind->window;
    o.epoch = c->epoch++;
    bench_ok(larder_dataset_remote_stats(c->ds, &before, &err), &err);
    t = bucket_epoch(c->ds, &o, &c->delivered);
    bench_ok(larder_dataset_remote_stats(c->ds, &after, &err), &err);
    c->gets = after.gets - before.gets;
    c->fetched = after.bytes_fetched - before.bytes_fetched;
    return (double)c->kind->samples / t;
}

/* ---- one GET a sample ---- */

static void locate(struct random_ctx *c)
{
    struct larder_location loc;
    struct larder_error err;
    uint64_t state = 7;

    c->urls = calloc(c->kind->baseline, sizeof *c->urls);
    c->ranges = calloc(c->kind->baseline, sizeof *c->ranges);
    for (uint64_t i = 0; i < c->kind->baseline; i++) {
        bench_ok(larder_dataset_locate(c->ds, bench_rng(&state) % c->kind->samples, &loc, &err), &err);
        if (asprintf(&c->urls[i], "%s/%s/shards/%s", c->endpoint, c->uri + strlen("s3://"), loc.shard) < 0 ||
            asprintf(&c->ranges[i], "%" PRIu64 "-%" PRIu64, loc.offset, loc.offset + loc.stored_len - 1) < 0)
            bench_die("no memory");
    }
}

static void *get_some(void *arg)
{
    struct random_ctx *c = arg;
    struct curl_slist *headers;
    CURL *e = bucket_easy(&headers);
    size_t i;

    while ((i = atomic_fetch_add(&c->next, 1)) < c->kind->baseline) {
        curl_easy_setopt(e, CURLOPT_URL, c->urls[i]);
        curl_easy_setopt(e, CURLOPT_RANGE, c->ranges[i]);
        bucket_check(e, curl_easy_perform(e), c->urls[i]);
    }
    curl_easy_cleanup(e);
    curl_slist_free_all(headers);
    return NULL;
}

static double run_threads(void *arg)
{
    struct random_ctx *c = arg;
    pthread_t threads[THREADS];
    double t = bench_now();

    atomic_store(&c->next, 0);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, get_some, c))
            bench_die("no thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return (double)c->kind->baseline / (bench_now() - t);
}

/* boto3's samples a second over a quarter of the list, or 0. */
static double run_boto3(struct random_ctx *c)
{
    char path[200], command[500];
    double rate = 0;
    FILE *f;

    snprintf(path, sizeof path, "%s/list", c->bucket.scratch);
    f = fopen(path, "w");
    for (uint64_t i = 0; f && i < c->kind->baseline / 4; i++)
        fprintf(f, "%s %s\n", c->urls[i] + strlen(c->endpoint) + strlen("/" BUCKET "/"), c->ranges[i]);
    if (f)
        fclose(f);
    snprintf(command, sizeof command, "/usr/bin/python3 tests/bench/one_get_a_sample.py %s %s %d %s", c->endpoint, BUCKET, THREADS, path);
    f = popen(command, "r");
    if (f && fscanf(f, "%lf", &rate) != 1)
        rate = 0;
    if (f)
        pclose(f);
    return rate;
}

static void bench(const struct kind *kind)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_remote_options remote = LARDER_REMOTE_OPTIONS_INIT;
    struct random_ctx c = {.kind = kind};
    struct bench_side a, b;
    struct larder_error err;
    char more[300];

    if (!bucket_start(&c.bucket, kind->name))
        return;
    c.endpoint = *kind->faults ? c.bucket.proxy : c.bucket.direct;
    snprintf(c.uri, sizeof c.uri, "s3://" BUCKET "/%zu", kind->value);
    bucket_dataset(&c.bucket, c.uri + strlen("s3://" BUCKET "/"), kind->samples, kind->value);
    remote.endpoint = c.endpoint;
    o.remote = &remote;
    bench_ok(larder_dataset_open(c.uri, &o, &c.ds, &err), &err);
    locate(&c);
    bucket_faults(&c.bucket, kind->faults);
    for (int i = -1; i < ROUNDS; i++) {
        double x = 0, y = 0;

        if (i & 1)
            y = run_threads(&c);
        x = run_larder(&c);
        if (!(i & 1))
            y = run_threads(&c);
        if (i >= 0)
            a.v[i] = x, b.v[i] = y;
    }
    bench_side_sum(&a, ROUNDS);
    bench_side_sum(&b, ROUNDS);
    snprintf(more, sizeof more, "\"baseline_min\": %.6g, \"baseline_max\": %.6g, \"boto3\": %.6g, \"window\": %" PRIu64 ", \"gets\": %" PRIu64
             ", \"fetched\": %.2f",
             b.min, b.max, run_boto3(&c), kind->window, c.gets, (double)c.fetched / (double)c.delivered);
    bench_line(kind->name, &a, b.median, "libcurl, one GET a sample, 16 threads", a.median / b.median, "1/s", ROUNDS, more);
    larder_dataset_close(c.ds);
    bucket_stop(&c.bucket);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (bench_wanted(argc, argv, kinds[i].name))
            bench(&kinds[i]);
    return 0;
}
