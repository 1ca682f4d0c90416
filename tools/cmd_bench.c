/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_bench.c - larder bench DATASET: runs the real loader and reports each epoch.
 *
 * order_hash chains the ordinals in the order of delivery, so it does not depend on the batch size; data_hash
 * adds up, mod 2^64, a hash of (ordinal, delivered bytes) of each sample, so it does not depend on the order
 * and finds a sample that is wrong, lost or delivered twice. --compute-ms stands for the accelerator: each
 * batch is held until an absolute deadline so many milliseconds after it came, and the hashing is done within
 * that time.
 */
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/tools.h"

enum { EPOCHS, BATCH_SIZE, SEED, SHUFFLE, BLOCK, WINDOW, EPOCH_SIZE, WORLD, RANK, LAST, IMAGE, QUEUE_DEPTH, STAGING, DIRECT, COMPUTE_MS, DRAM, NVME, CACHE_NAME,
       REPLACEMENT, NO_PIN, CUDA, METRICS, JSON };

const struct option_spec bench_options[] = {
    [EPOCHS] = {"epochs", 0, "E", "1", "how many"},
    [BATCH_SIZE] = {"batch-size", 0, "B", "256", "samples a batch"},
    [SEED] = {"seed", 0, "S", "0", "of the order"},
    [SHUFFLE] = {"shuffle", 0, "full|block|none", "full", "a new permutation each epoch, one of blocks, or ordinals in turn"},
    [BLOCK] = {"block", 0, "N", "1024", "samples a block of --shuffle block"},
    [WINDOW] = {"window", 0, "N", "16", "blocks that are shuffled together"},
    [EPOCH_SIZE] = {"epoch-size", 0, "N", NULL, "samples an epoch; epochs then walk on through the permutations"},
    [WORLD] = {"world", 0, "W", "1", "ranks that share each epoch; --batch-size is of one"},
    [RANK] = {"rank", 0, "R", "0", "which of them this is"},
    [LAST] = {"last", 0, "auto|short|drop|pad", "auto", "what becomes of the samples behind the last whole batch"},
    [IMAGE] = {"image", 0, "raw", "raw", "deliver images as stored; this version has no other way"},
    [QUEUE_DEPTH] = {"queue-depth", 0, "D", "64", "reads in flight"},
    [STAGING] = {"staging", 0, "SIZE", "256MiB", "budget of the batches being filled, at most 1/4 of memory"},
    [DIRECT] = {"direct", 0, "auto|on|off", "auto",
                "read past the page cache; auto: when the dataset is large"},
    [COMPUTE_MS] = {"compute-ms", 0, "X", "0", "hold each batch so long, as a training step would"},
    [DRAM] = {"dram", 0, "SIZE|auto", NULL, "keep records in memory, shared by the node; auto: 1/4 of memory"},
    [NVME] = {"nvme", 0, "DIR:SIZE", NULL, "keep records in a local directory; may be given again"},
    [CACHE_NAME] = {"cache-name", 0, "NAME", "default", "processes that give the same name share memory"},
    [REPLACEMENT] = {"replacement", 0, "none|fifo", "none", "what came in stays, or makes room for what comes"},
    [NO_PIN] = OPTION_NO_PIN,
    [CUDA] = {"cuda", 0, "N|off", "0", "register --dram with CUDA through device N, if there is one, as a training process has it"},
    [METRICS] = {"metrics", 0, "FILE", NULL, "write Prometheus text after each epoch"},
    [JSON] = OPTION_JSON,
    OPTION_END,
};

struct epoch {
    uint64_t order_hash, data_hash;
    struct larder_progress progress;
    struct larder_loader_stats stats;
    struct larder_loader_estimate estimate; /* of a remote dataset */
    struct larder_remote_stats remote;
};

/* Chains the fields; a field that the sample lacks is told from an empty one. */
static uint64_t sample_hash(uint64_t ordinal, const struct larder_value *values, uint32_t n)
{
    uint64_t h = ordinal;

    for (uint32_t i = 0; i < n; i++)
        h = values[i].data ? larder_hash64(h, values[i].data, values[i].len) : larder_hash64(~h, "", 0);
    return h;
}

static void add_batch(struct epoch *e, const struct larder_batch *b)
{
    for (uint32_t i = 0; i < b->valid; i++) {
        const struct larder_value *values = b->values + (size_t)i * b->n_fields;
        uint64_t ordinal = htole64(b->ordinals[i]);

        e->order_hash = larder_hash64(e->order_hash, &ordinal, sizeof ordinal);
        e->data_hash += sample_hash(b->ordinals[i], values, b->n_fields);
        for (uint32_t k = 0; k < b->n_fields; k++)
            e->progress.bytes += values[k].data ? values[k].len : 0;
    }
    e->progress.done += b->valid;
}

static void compute_until(uint64_t deadline_ns)
{
    struct timespec ts = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
        ;
}

struct bench {
    struct cache_args cache;
    struct larder_dataset_options dataset;
    struct larder_loader_options loader;
    uint64_t compute_ns;
    struct larder_dataset *ds;
    uint64_t samples; /* of the dataset */
    int remote;       /* it is in a bucket or on a web server */
};

/* Says what the next epoch will ask of the bucket, and begins to count. */
static int before_epoch(struct tool *t, struct larder_loader *ld, const struct bench *b, uint64_t epoch, struct epoch *e,
                        struct larder_error *err)
{
    *e = (struct epoch){.progress = {.phase = "bench", .total = b->samples},
                        .stats.struct_size = sizeof e->stats,
                        .estimate.struct_size = sizeof e->estimate,
                        .remote.struct_size = sizeof e->remote};
    if (!b->remote)
        return LARDER_OK;
    if (larder_loader_estimate(ld, &e->estimate, err) || larder_dataset_remote_stats(b->ds, &e->remote, err))
        return err->code;
    progress_hide(&t->progress);
    remote_estimate_print(stderr, epoch, &e->estimate);
    progress_show(&t->progress);
    return LARDER_OK;
}

static int after_epoch(struct larder_loader *ld, const struct bench *b, struct epoch *e, struct larder_error *err)
{
    struct larder_remote_stats before = e->remote;

    if (larder_loader_stats(ld, &e->stats, err) || larder_dataset_remote_stats(b->ds, &e->remote, err))
        return err->code;
    remote_stats_since(&e->remote, &before);
    return LARDER_OK;
}

static int run_epoch(struct tool *t, struct larder_loader *ld, const struct bench *bench, uint64_t epoch, struct epoch *e,
                     struct larder_error *err)
{
    const struct larder_batch *b;
    int rc = before_epoch(t, ld, bench, epoch, e, err);

    if (rc != LARDER_OK)
        return rc;
    while ((rc = larder_loader_next(ld, &b, err)) == LARDER_OK) {
        uint64_t came_ns = clock_now_ns();

        add_batch(e, b);
        progress_update(&t->progress, &e->progress, came_ns);
        if (bench->compute_ns)
            compute_until(came_ns + bench->compute_ns);
        larder_batch_release(b);
    }
    return rc == LARDER_END ? after_epoch(ld, bench, e, err) : rc;
}

static void print_tier(struct jsonl *j, const char *name, const struct larder_tier_stats *s)
{
    jsonl_object(j, name);
    jsonl_u64(j, "hits", s->hits);
    jsonl_u64(j, "misses", s->misses);
    jsonl_u64(j, "bytes", s->bytes);
    jsonl_u64(j, "requests", s->requests);
    jsonl_close(j, '}');
}

static void print_cache_tier(struct jsonl *j, const char *name, const struct larder_cache_tier *c, int held)
{
    jsonl_object(j, name);
    if (held) {
        jsonl_u64(j, "budget_bytes", c->budget_bytes);
        jsonl_u64(j, "used_bytes", c->used_bytes);
        jsonl_u64(j, "bookkeeping_bytes", c->bookkeeping_bytes);
        jsonl_u64(j, "entries", c->entries);
        jsonl_u64(j, "admissions", c->admissions);
        jsonl_u64(j, "refusals", c->refusals);
        jsonl_u64(j, "evictions", c->evictions);
        jsonl_u64(j, "healed", c->healed);
    }
    jsonl_u64(j, "latency_ns_p50", c->latency_ns_p50);
    jsonl_u64(j, "latency_ns_p90", c->latency_ns_p90);
    jsonl_u64(j, "latency_ns_p99", c->latency_ns_p99);
    jsonl_u64(j, "latency_ns_max", c->latency_ns_max);
    jsonl_close(j, '}');
}

/* The cache as it is now, while `tiers` is of the epoch. */
static void print_cache(struct jsonl *j, const struct cache_args *a, const struct larder_cache *cache)
{
    struct larder_cache_stats s = {.struct_size = sizeof s};

    if (!cache || larder_cache_stats(cache, &s, NULL))
        return;
    jsonl_object(j, "cache");
    jsonl_bool(j, "shared", s.shared);
    jsonl_bool(j, "joined", s.joined);
    jsonl_u64(j, "locked_bytes", s.locked_bytes);
    jsonl_u64(j, "registered_bytes", s.registered_bytes);
    if (a->o.dram_bytes != LARDER_DRAM_OFF)
        print_cache_tier(j, "dram", &s.dram, 1);
    if (a->o.n_nvme)
        print_cache_tier(j, "nvme", &s.nvme, 1);
    print_cache_tier(j, "origin", &s.origin, 0);
    jsonl_close(j, '}');
}

static void print_json(const struct epoch *e, const struct bench *b)
{
    const struct cache_args *a = &b->cache;
    const struct larder_loader_stats *s = &e->stats;
    double seconds = (double)s->seconds_ns / 1e9;
    struct jsonl j;

    jsonl_begin(&j, stdout);
    jsonl_u64(&j, "epoch", s->epoch);
    jsonl_u64(&j, "samples", s->samples);
    jsonl_u64(&j, "batches", s->batches);
    jsonl_fixed(&j, "seconds", seconds, 6);
    jsonl_fixed(&j, "samples_per_s", seconds > 0 ? (double)s->samples / seconds : 0, 1);
    jsonl_u64(&j, "bytes", s->bytes);
    jsonl_fixed(&j, "fetch_stall_s", (double)s->fetch_stall_ns / 1e9, 6);
    jsonl_fixed(&j, "prep_stall_s", (double)s->prep_stall_ns / 1e9, 6);
    jsonl_hash(&j, "order_hash", e->order_hash);
    jsonl_hash(&j, "data_hash", e->data_hash);
    jsonl_object(&j, "tiers");
    if (a->wanted && a->o.dram_bytes != LARDER_DRAM_OFF)
        print_tier(&j, "dram", &s->dram);
    if (a->o.n_nvme)
        print_tier(&j, "nvme", &s->nvme);
    print_tier(&j, "origin", &s->origin);
    jsonl_close(&j, '}');
    if (b->remote)
        remote_stats_json(&j, &e->remote, &e->estimate);
    print_cache(&j, a, b->dataset.cache);
    jsonl_end(&j);
}

static void print_row(const struct epoch *e, int with_header)
{
    const struct larder_loader_stats *s = &e->stats;
    double seconds = (double)s->seconds_ns / 1e9;
    char a[TEXT_MAX], b[TEXT_MAX], c[TEXT_MAX], d[TEXT_MAX];

    if (with_header)
        printf("%5s %13s %9s %9s %11s %8s %9s %11s %10s  %-16s  %s\n", "epoch", "samples", "batches",
               "seconds", "samples/s", "bytes", "rate", "fetch stall", "prep stall", "order_hash",
               "data_hash");
    printf("%5" PRIu64 " %13s %9s %9.3f %11s %8s %9s %9.3f s %8.3f s  %016" PRIx64 "  %016" PRIx64 "\n",
           s->epoch, text_count(s->samples, a), text_count(s->batches, b), seconds,
           text_count(seconds > 0 ? (uint64_t)((double)s->samples / seconds) : 0, c), text_size(s->bytes, d),
           text_rate(seconds > 0 ? (double)s->bytes / seconds : 0, (char[TEXT_MAX]){0}),
           (double)s->fetch_stall_ns / 1e9, (double)s->prep_stall_ns / 1e9, e->order_hash, e->data_hash);
}

static void on_waiting(void *user, const char *what, const char *why)
{
    struct tool *t = user;

    progress_hide(&t->progress);
    fputs("larder bench: ", stderr);
    text_line(stderr, what);
    fputs(": ", stderr);
    text_line(stderr, why ? why : "");
    fputc('\n', stderr);
    progress_show(&t->progress);
}

static int run(struct tool *t, struct larder_dataset *ds, struct bench *b)
{
    struct larder_dataset_info in = {.struct_size = sizeof in};
    struct larder_loader *ld = NULL;
    struct larder_error err = {0};
    struct epoch e;

    b->ds = ds;
    b->remote = remote_is(t->argv[0]);
    b->loader.timeout_ms = t->remote.timeout_ms;
    b->loader.waiting = on_waiting;
    b->loader.user = t;
    if (larder_dataset_info(ds, &in, &err) || larder_loader_open(ds, &b->loader, &ld, &err))
        return tool_error(t, &err);
    b->samples = (b->loader.epoch_size ? b->loader.epoch_size : in.samples) / b->loader.world;
    progress_init(&t->progress, stderr, 0); /* no signals: who stops a bench wants it to end at once */
    for (uint64_t i = 0; i < b->loader.epochs && !tool_output_failed(); i++) {
        if (run_epoch(t, ld, b, i, &e, &err)) {
            tool_error(t, &err);
            break;
        }
        progress_hide(&t->progress);
        if (t->json)
            print_json(&e, b);
        else
            print_row(&e, i == 0);
        if (b->remote && !t->json)
            remote_stats_print(stdout, &e.remote);
        fflush(stdout);
        cache_args_warn(t, &b->cache, b->dataset.cache);
        progress_show(&t->progress);
        if (cache_args_metrics(t, &b->cache, b->dataset.cache))
            break;
    }
    larder_loader_close(ld);
    return t->status;
}

/* Milliseconds with a fraction; an hour at most. */
static void option_ms(struct tool *t, uint64_t *ns)
{
    char *end;
    double ms = strtod(t->value, &end);

    if (*end || end == t->value || !(ms >= 0 && ms <= 3600e3))
        option_bad(t, "a number of milliseconds such as 5 or 0.5");
    else
        *ns = (uint64_t)(ms * 1e6);
}

static int parse(struct tool *t, struct bench *b)
{
    static const char *const shuffles[] = {"full", "none", "block", NULL};
    static const char *const lasts[] = {"auto", "short", "drop", "pad", NULL};
    static const char *const directs[] = {"auto", "on", "off", NULL};
    uint64_t staging = 0;
    int row;

    while ((row = options_next(t, 1, 1)) >= 0)
        switch (row) {
        case EPOCHS: option_u64(t, 1, UINT64_MAX, &b->loader.epochs); break;
        case BATCH_SIZE: option_unsigned(t, 1, 1u << 24, &b->loader.batch_size); break;
        case SEED: option_u64(t, 0, UINT64_MAX, &b->loader.seed); break;
        case SHUFFLE: option_choice(t, shuffles, &b->loader.shuffle); break;
        case BLOCK: option_u64(t, 1, UINT64_MAX, &b->loader.block_samples); break;
        case WINDOW: option_u64(t, 1, UINT64_MAX, &b->loader.window_blocks); break;
        case EPOCH_SIZE: option_u64(t, 1, UINT64_MAX, &b->loader.epoch_size); break;
        case WORLD: option_unsigned(t, 1, 1u << 20, &b->loader.world); break;
        case RANK: option_unsigned(t, 0, 1u << 20, &b->loader.rank); break;
        case LAST: option_choice(t, lasts, &b->loader.last); break;
        case IMAGE:
            if (strcmp(t->value, "raw") != 0)
                option_bad(t, "raw; this version delivers images as they are stored and decodes none");
            break;
        case QUEUE_DEPTH: option_unsigned(t, 1, 4096, &b->loader.queue_depth); break;
        case STAGING: option_size(t, 4096, SIZE_MAX / 2, &staging); break;
        case DIRECT: option_choice(t, directs, &b->dataset.direct); break;
        case COMPUTE_MS: option_ms(t, &b->compute_ns); break;
        case DRAM: option_dram(t, &b->cache); break;
        case NVME: option_nvme(t, &b->cache); break;
        case CACHE_NAME: b->cache.o.name = t->value; break;
        case REPLACEMENT: option_replacement(t, &b->cache); break;
        case NO_PIN: b->cache.o.no_pin = 1; break;
        case CUDA: option_cuda(t, &b->cache); break;
        case METRICS: b->cache.metrics = t->value; break;
        case JSON: t->json = 1; break;
        }
    b->loader.staging_bytes = (size_t)staging;
    b->dataset.queue_depth = b->loader.queue_depth;
    return row;
}

static int run_cached(struct tool *t, struct bench *b)
{
    struct larder_dataset *ds;

    if (cache_args_open(t, &b->cache, &b->dataset.cache) == EXIT_DONE && tool_open(t, t->argv[0], &b->dataset, &ds) == 0) {
        t->status = run(t, ds, b);
        larder_dataset_close(ds);
    }
    larder_cache_close(b->dataset.cache);
    return t->status;
}

int cmd_bench(struct tool *t)
{
    struct bench b = {.dataset = LARDER_DATASET_OPTIONS_INIT, .loader = LARDER_LOADER_OPTIONS_INIT};

    cache_args_init(&b.cache);
    b.cache.o.cuda_device = LARDER_CUDA_DEVICE(0);
    b.loader.epochs = b.loader.world = 1;
    if (parse(t, &b) != OPTIONS_STOP)
        t->status = run_cached(t, &b);
    cache_args_release(&b.cache);
    return t->status;
}
