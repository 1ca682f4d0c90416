/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_first_batch.c - from the start of a process to its first batch of 32 out of a bucket, cold, with 30 ms before every answer.
 *
 * 2,000 records of 110 kB. This program starts itself for it: open, loader, one batch, end. Baseline: six GETs of 4 kB one after another
 * by libcurl, in this process. Milliseconds; the ratio is baseline / larder. `round_trips`: the longest chain of requests of which each
 * began after the one before had ended, by the log of the proxy; `requests`: all until the batch was there.
 */
#include <signal.h>

#include "tests/bench/bucket_bench.h"

enum { SAMPLES = 2000, VALUE = 110000, ROUNDS = 7, LATENCY_MS = 30 };
#define URI "s3://" BUCKET "/first"

/* In a process of its own. */
static int first_batch(void)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    const struct larder_batch *b;
    struct larder_dataset *ds;
    struct larder_loader *ld;
    struct larder_error err;

    o.batch_size = 32;
    o.epochs = 1;
    bench_ok(larder_dataset_open(URI, NULL, &ds, &err), &err);
    bench_ok(larder_loader_open(ds, &o, &ld, &err), &err);
    if (larder_loader_next(ld, &b, &err) != LARDER_OK || b->n != 32)
        bench_die("%s", err.message);
    return putchar('.') == '.' && fflush(stdout) == 0 ? 0 : 1; /* and the process ends as it is */
}

static double run_process(void)
{
    double t = bench_now();
    int out[2], status;
    pid_t pid;
    char c;

    if (pipe(out) != 0 || (pid = fork()) < 0)
        bench_die("no process: %s", strerror(errno));
    if (pid == 0) {
        dup2(out[1], 1);
        close(out[0]);
        execl("/proc/self/exe", "bench_first_batch", "--child", NULL);
        _exit(127);
    }
    close(out[1]);
    if (read(out[0], &c, 1) != 1)
        bench_die("the first batch did not come");
    t = bench_now() - t;
    close(out[0]);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return t * 1e3;
}

static double run_six(const char *url)
{
    struct curl_slist *headers;
    CURL *e = bucket_easy(&headers);
    double t = bench_now();

    curl_easy_setopt(e, CURLOPT_URL, url);
    curl_easy_setopt(e, CURLOPT_RANGE, "0-4095");
    for (int i = 0; i < 6; i++)
        bucket_check(e, curl_easy_perform(e), url);
    t = bench_now() - t;
    curl_easy_cleanup(e);
    curl_slist_free_all(headers);
    return t * 1e3;
}

struct span {
    double start, end;
};

static int by_end(const void *a, const void *b)
{
    return bench_cmp(&((const struct span *)a)->end, &((const struct span *)b)->end);
}

/* The longest chain is found greedily: always the request that ends first. */
static unsigned round_trips(const struct bucket *b, unsigned *requests)
{
    struct span *s = NULL;
    char url[200], *log;
    unsigned chain = 0;
    double free_at = -1;
    size_t n = 0;

    snprintf(url, sizeof url, "%s/__larder/log", b->proxy);
    log = bucket_request(url, NULL);
    for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n")) {
        s = realloc(s, (n + 1) * sizeof *s);
        if (!s || sscanf(line, "%lf %lf", &s[n].start, &s[n].end) != 2)
            bench_die("cannot read the proxy's log");
        n++;
    }
    free(log);
    qsort(s, n, sizeof *s, by_end);
    for (size_t i = 0; i < n; i++)
        if (s[i].start >= free_at) {
            free_at = s[i].end;
            chain++;
        }
    free(s);
    *requests = (unsigned)n;
    return chain;
}

int main(int argc, char **argv)
{
    struct bucket bucket;
    struct bucket_object shard;
    struct bench_side a, b, hops, all;
    char faults[60], more[300];
    unsigned requests;

    if (argc > 1 && !strcmp(argv[1], "--child"))
        return first_batch();
    if (!bench_wanted(argc, argv, "first_batch") || !bucket_start(&bucket, "first_batch"))
        return 0;
    bucket_dataset(&bucket, "first", SAMPLES, VALUE);
    bucket_shards(&bucket, bucket.proxy, "first", &shard, 1);
    setenv("AWS_ENDPOINT_URL", bucket.proxy, 1);
    snprintf(faults, sizeof faults, "latmin=%d\nlatmax=%d", LATENCY_MS, LATENCY_MS);
    for (int i = -1; i < ROUNDS; i++) {
        bucket_faults(&bucket, faults);
        double x = run_process(), h = round_trips(&bucket, &requests), y = run_six(shard.url);

        if (i >= 0)
            a.v[i] = x, b.v[i] = y, hops.v[i] = h, all.v[i] = requests;
    }
    bench_side_sum(&a, ROUNDS);
    bench_side_sum(&b, ROUNDS);
    bench_side_sum(&hops, ROUNDS);
    bench_side_sum(&all, ROUNDS);
    snprintf(more, sizeof more, "\"baseline_min\": %.6g, \"baseline_max\": %.6g, \"round_trips\": %g, \"round_trips_max\": %g, \"requests\": %g",
             b.min, b.max, hops.median, hops.max, all.median);
    bench_line("first_batch", &a, b.median, "six GETs of 4 kB, libcurl", b.median / a.median, "ms", ROUNDS, more);
    bucket_stop(&bucket);
    return 0;
}
