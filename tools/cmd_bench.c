/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_bench.c - larder bench DATASET: runs the real loader and reports each epoch.
 *
 * What was delivered is hashed (digest.c). --compute-ms stands for the accelerator: each batch is held until an absolute deadline so many
 * milliseconds after it came, and the hashing is done within that time. With --state a run that is told to stop, or that has had its
 * --batches, leaves a file with which the next one goes on; else whoever stops a bench wants it to end at once.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/tools.h"

#define BAD_SHOWN 5

enum { EPOCHS, BATCHES, BATCH_SIZE, SEED, SHUFFLE, BLOCK, WINDOW, EPOCH_SIZE, SPLIT, SPLIT_SEED, MIX, MIX_WEIGHT, MIX_STOP, FILTER, WEIGHTS, ORDER, WORLD, RANK, LAST,
       IMAGE, FLIP, VIEWS, RESAMPLE, EXACT, EXIF, DTYPE, LAYOUT, NORMALIZE, THREADS, BAD, MAX_BAD, DECODED, DECODED_SIDE, DECODED_COMPRESS,
       FETCH_SIZE, THRESHOLD, QUEUE_DEPTH, STAGING, DIRECT, COMPUTE_MS, DRAM, NVME, CACHE_NAME, REPLACEMENT, NO_PIN, CUDA, STATE, TRACE,
       METRICS, JSON };

const struct option_spec bench_options[] = {
    [EPOCHS] = {"epochs", 0, "E", "1", "how many"},
    [BATCHES] = {"batches", 0, "N", NULL, "stop after so many batches"},
    [BATCH_SIZE] = {"batch-size", 0, "B", "256", "samples a batch"},
    [SEED] = {"seed", 0, "S", "0", "of the order"},
    [SHUFFLE] = {"shuffle", 0, "full|block|none", "full", "a new permutation each epoch, one of blocks, or ordinals in turn"},
    [BLOCK] = {"block", 0, "N", "1024", "samples a block of --shuffle block"},
    [WINDOW] = {"window", 0, "N", "16", "blocks that are shuffled together"},
    [EPOCH_SIZE] = {"epoch-size", 0, "N", NULL, "samples an epoch; epochs then walk on through the permutations"},
    [SPLIT] = {"split", 0, "BEGIN:END", NULL, "only samples whose hashed keys fall into this part of 0:1, such as 0:0.9"},
    [SPLIT_SEED] = {"split-seed", 0, "S", "0", "of those hashes"},
    [MIX] = {"mix", 0, "DATASET[:W]", NULL, "mix this one in, by weight or by size; may be given again"},
    [MIX_WEIGHT] = {"mix-weight", 0, "W", NULL, "weight of the first DATASET"},
    [MIX_STOP] = {"mix-stop", 0, NULL, NULL, "an epoch ends with the first of them that is exhausted, not the last"},
    [FILTER] = {"filter", 0, "FILE", NULL, "only samples named there, a KEY or @ORDINAL a line"},
    [WEIGHTS] = {"weights", 0, "FILE", NULL, "draw samples by weight, a number a line for each"},
    [ORDER] = {"order", 0, "FILE", NULL, "samples as they are named there, before the shuffle"},
    [WORLD] = {"world", 0, "W", "1", "ranks that share each epoch; --batch-size is of one"},
    [RANK] = {"rank", 0, "R", "0", "which of them this is"},
    [LAST] = {"last", 0, "auto|short|drop|pad", "auto", "what becomes of the samples behind the last whole batch"},
    [IMAGE] = {"image", 0, "WAY", "raw", "raw: as stored; rrc:224, center:224, full:224x160: decoded, cropped, scaled"},
    [FLIP] = {"flip", 0, "P", "0", "probability that left and right change places"},
    [VIEWS] = {"views", 0, "N", "1", "arrays of one decode, each with its own crop"},
    [RESAMPLE] = {"resample", 0, "FILTER", "bilinear", "how images are scaled: bilinear, bicubic or nearest"},
    [EXACT] = {"exact", 0, NULL, NULL, "no scaling in the JPEG decoder: nearer to PIL, slower"},
    [EXIF] = {"exif", 0, NULL, NULL, "turn images as their EXIF orientation says"},
    [DTYPE] = {"dtype", 0, "TYPE", "uint8", "of the arrays of images: uint8, float16, bfloat16 or float32"},
    [LAYOUT] = {"layout", 0, "nhwc|nchw", "nhwc", "where the channels are"},
    [NORMALIZE] = {"normalize", 0, "M,S", NULL, "mean, standard deviation of value / 255, or imagenet; not for uint8"},
    [THREADS] = {"threads", 0, "N", NULL, "that decode; else one a CPU"},
    [BAD] = {"on-bad-sample", 0, "fail|replace", "fail", "what becomes of a sample that cannot be decoded"},
    [MAX_BAD] = {"max-bad", 0, "SHARE", "0.001", "of samples replaced, else the run fails"},
    [DECODED] = {"decoded-cache", 0, "SIZE", NULL, "keep images decoded and scaled, in memory of the node"},
    [DECODED_SIDE] = {"decoded-side", 0, "N", NULL, "their shorter side; else 8/7 of the array's"},
    [DECODED_COMPRESS] = {"decoded-compress", 0, NULL, NULL, "keep them compressed, losslessly"},
    [FETCH_SIZE] = {"fetch-size", 0, "N|SIZE", NULL, "samples (or bytes of them) requested together"},
    [THRESHOLD] = {"threshold", 0, "N|SIZE", NULL, "requested again when so many are left"},
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
    [CUDA] = {"cuda", 0, "N|off", "0", "register --dram with CUDA, through device N if there is one"},
    [STATE] = {"state", 0, "FILE", NULL, "go on where it says, and leave it there at the end or when stopped"},
    [TRACE] = {"trace", 0, "FILE", NULL, "what each batch went through, for chrome://tracing"},
    [METRICS] = {"metrics", 0, "FILE", NULL, "write Prometheus text after each epoch"},
    [JSON] = OPTION_JSON,
    OPTION_END,
};

struct epoch {
    struct digest digest;
    struct larder_progress progress;
    struct larder_loader_stats stats;
    struct larder_loader_estimate estimate; /* of a remote dataset */
    struct larder_remote_stats remote;
};

static void compute_until(uint64_t deadline_ns)
{
    struct timespec ts = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
        ;
}

struct bench {
    struct tool *t;
    struct cache_args cache;
    struct larder_dataset_options dataset;
    struct loader_args loader;
    struct mix_args mix;
    uint64_t compute_ns;
    uint64_t batches; /* that are left; UINT64_MAX: all */
    struct larder_dataset *ds;
    struct epoch epoch; /* that runs */
    uint64_t samples;   /* of an epoch, of this rank */
    uint64_t bad;       /* told of */
    int remote;         /* it is in a bucket or on a web server */
    int stopped;        /* by a signal, or after --batches */
};

/* Says what the next epoch will ask of the bucket, and begins to count. */
static int before_epoch(struct larder_loader *ld, struct bench *b, uint64_t epoch, struct larder_error *err)
{
    struct epoch *e = &b->epoch;

    *e = (struct epoch){.progress = {.phase = "bench", .total = b->samples},
                        .stats.struct_size = sizeof e->stats,
                        .estimate.struct_size = sizeof e->estimate,
                        .remote.struct_size = sizeof e->remote};
    if (!b->remote)
        return LARDER_OK;
    if (larder_loader_estimate(ld, &e->estimate, err) || larder_dataset_remote_stats(b->ds, &e->remote, err))
        return err->code;
    progress_hide(&b->t->progress);
    remote_estimate_print(stderr, epoch, &e->estimate);
    progress_show(&b->t->progress);
    return LARDER_OK;
}

static int after_epoch(struct larder_loader *ld, struct bench *b, struct larder_error *err)
{
    struct epoch *e = &b->epoch;
    struct larder_remote_stats before = e->remote;

    if (larder_loader_stats(ld, &e->stats, err) || larder_dataset_remote_stats(b->ds, &e->remote, err))
        return err->code;
    remote_stats_since(&e->remote, &before);
    return LARDER_OK;
}

/* To its end, or until the bench is stopped: then it is reported as far as it went. */
static int run_epoch(struct larder_loader *ld, struct bench *b, uint64_t epoch, struct larder_error *err)
{
    struct epoch *e = &b->epoch;
    const struct larder_batch *batch;
    int rc = before_epoch(ld, b, epoch, err);

    if (rc != LARDER_OK)
        return rc;
    while (!b->stopped && (rc = larder_loader_next(ld, &batch, err)) == LARDER_OK) {
        uint64_t came_ns = clock_now_ns();

        digest_add(&e->digest, batch);
        e->progress.done = e->digest.samples;
        e->progress.bytes = e->digest.bytes;
        b->stopped = tool_progress(b->t, &e->progress) || --b->batches == 0;
        if (b->compute_ns)
            compute_until(came_ns + b->compute_ns);
        larder_batch_release(batch);
    }
    return rc >= LARDER_OK ? after_epoch(ld, b, err) : rc;
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

static void print_decoded(struct jsonl *j, const struct larder_decoded_stats *s)
{
    jsonl_object(j, "decoded");
    jsonl_u64(j, "hits", s->hits);
    jsonl_u64(j, "misses", s->misses);
    jsonl_fixed(j, "decode_s", (double)s->decode_ns / 1e9, 6);
    jsonl_fixed(j, "saved_s", (double)s->saved_ns / 1e9, 6);
    jsonl_u64(j, "entries", s->entries);
    jsonl_u64(j, "used_bytes", s->used_bytes);
    jsonl_u64(j, "budget_bytes", s->budget_bytes);
    jsonl_close(j, '}');
}

static void print_json(const struct bench *b)
{
    const struct epoch *e = &b->epoch;
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
    jsonl_u64(&j, "bad", s->bad);
    jsonl_hash(&j, "order_hash", e->digest.order);
    jsonl_hash(&j, "data_hash", e->digest.data);
    jsonl_object(&j, "tiers");
    if (a->wanted && a->o.dram_bytes != LARDER_DRAM_OFF)
        print_tier(&j, "dram", &s->dram);
    if (a->o.n_nvme)
        print_tier(&j, "nvme", &s->nvme);
    print_tier(&j, "origin", &s->origin);
    jsonl_close(&j, '}');
    if (b->loader.o.decoded_bytes)
        print_decoded(&j, &s->decoded);
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
           (double)s->fetch_stall_ns / 1e9, (double)s->prep_stall_ns / 1e9, e->digest.order, e->digest.data);
}

/* What the decoded cache costs and saves. */
static void print_decoded_row(const struct larder_decoded_stats *d)
{
    char a[TEXT_MAX], b[TEXT_MAX], c[TEXT_MAX], e[TEXT_MAX], f[TEXT_MAX];

    printf("      decoded: %s found, %s decoded in %.3f s; saved %.3f s; %s samples take %s of %s, %s each\n", text_count(d->hits, a),
           text_count(d->misses, b), (double)d->decode_ns / 1e9, (double)d->saved_ns / 1e9, text_count(d->entries, c),
           text_size(d->used_bytes, e), text_size(d->budget_bytes, f),
           text_size(d->entries ? d->used_bytes / d->entries : 0, (char[TEXT_MAX]){0}));
}

/* What a run says on stderr beside the bar. */
static void say(struct tool *t, const char *what, const char *why)
{
    progress_hide(&t->progress);
    fputs("larder bench: ", stderr);
    text_line(stderr, what);
    if (why) {
        fputs(": ", stderr);
        text_line(stderr, why);
    }
    fputc('\n', stderr);
    progress_show(&t->progress);
}

static void on_waiting(void *user, const char *what, const char *why)
{
    const struct bench *b = user;

    say(b->t, what, why ? why : "");
}

/* The first few are named, all are counted. */
static void on_bad(void *user, const struct larder_bad_sample *bad)
{
    struct bench *b = user;

    if (++b->bad <= BAD_SHOWN)
        say(b->t, bad->message, bad->substitute == LARDER_NO_ORDINAL ? NULL : "another takes its place");
    if (b->bad == BAD_SHOWN)
        say(b->t, "more bad samples are counted only", NULL);
}

static void report(struct bench *b, int first)
{
    struct tool *t = b->t;

    progress_hide(&t->progress);
    if (t->json)
        print_json(b);
    else
        print_row(&b->epoch, first);
    if (b->loader.o.decoded_bytes && !t->json)
        print_decoded_row(&b->epoch.stats.decoded);
    if (b->remote && !t->json)
        remote_stats_print(stdout, &b->epoch.remote);
    fflush(stdout);
    cache_args_warn(t, &b->cache, b->dataset.cache);
    progress_show(&t->progress);
}

static int run_epochs(struct larder_loader *ld, struct bench *b)
{
    struct larder_loader_stats s = {.struct_size = sizeof s};
    struct larder_error err = {0};
    struct tool *t = b->t;
    uint64_t first;

    if (larder_loader_stats(ld, &s, &err))
        return tool_error(t, &err);
    first = s.epoch; /* after those that a state has behind it */
    for (uint64_t i = first; i < b->loader.o.epochs && !b->stopped && !tool_output_failed(); i++) {
        if (run_epoch(ld, b, i, &err)) {
            tool_error(t, &err);
            break;
        }
        if (b->epoch.digest.samples || i > first || !b->loader.o.state) /* a state may stand at an epoch's end */
            report(b, i == first);
        if (cache_args_metrics(t, &b->cache, ld) || loader_args_save(t, &b->loader, ld))
            break;
    }
    return t->status;
}

static int open_loader(struct bench *b, struct larder_loader **ld, struct larder_error *err)
{
    const struct larder_loader_options *o = &b->loader.o;
    struct larder_loader_estimate e = {.struct_size = sizeof e};
    struct larder_dataset_info in = {.struct_size = sizeof in};
    const struct mix_args *m = &b->mix;
    int rc;

    if (m->n > 1) {
        rc = larder_loader_open_mix(m->source, m->n, m->stop ? LARDER_EXHAUSTED_STOP : LARDER_EXHAUSTED_REPEAT, o, ld, err);
        if (rc == LARDER_OK && larder_loader_estimate(*ld, &e, NULL) == LARDER_OK)
            b->samples = e.samples;
        return rc;
    }
    rc = larder_dataset_info(b->ds, &in, err);
    b->samples = (o->epoch_size ? o->epoch_size : in.samples) / o->world;
    return rc ? rc : larder_loader_open(b->ds, o, ld, err);
}

static int run(struct bench *b)
{
    struct larder_error err = {.code = LARDER_ECANCELED};
    struct larder_loader *ld = NULL;
    struct tool *t = b->t;
    struct larder_loader_options *o = &b->loader.o;
    const char *warning;

    b->remote = remote_is(t->argv[0]);
    o->timeout_ms = t->remote.timeout_ms;
    o->waiting = on_waiting;
    o->bad = on_bad;
    o->user = b;
    if (loader_args_take(t, &b->loader, b->ds))
        return t->status;
    if (open_loader(b, &ld, &err))
        return tool_error(t, &err);
    for (size_t i = 0; (warning = larder_loader_warning(ld, i)); i++)
        say(t, "warning", warning);
    if (b->loader.state_file)
        tool_begin(t);
    else
        progress_init(&t->progress, stderr, 0);
    run_epochs(ld, b);
    larder_loader_close(ld);
    if (b->stopped && b->batches > 0 && t->status == EXIT_DONE)
        return tool_run_error(t, &err, "run the same command again to go on");
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

/* Those of what is delivered. */
static void parse_prep(struct tool *t, struct loader_args *a, int row)
{
    static const char *const bads[] = {"fail", "replace", NULL};

    switch (row) {
    case IMAGE: option_image(t, a); break;
    case FLIP: option_flip(t, a); break;
    case VIEWS: option_unsigned(t, 1, 256, &a->prep.views); break;
    case RESAMPLE: option_resample(t, a); break;
    case EXACT: a->prep.exact = 1; break;
    case EXIF: a->prep.exif = 1; break;
    case DTYPE: option_dtype(t, a); break;
    case LAYOUT: option_layout(t, a); break;
    case NORMALIZE: option_normalize(t, a); break;
    case THREADS: option_unsigned(t, 1, 1024, &a->o.threads); break;
    case BAD: option_choice(t, bads, &a->o.on_bad_sample); break;
    case MAX_BAD: option_max_bad(t, a); break;
    case DECODED: option_size(t, 4u << 20, UINT64_MAX / 16, &a->o.decoded_bytes); break;
    case DECODED_SIDE: option_unsigned(t, 1, 65535, &a->o.decoded_side); break;
    case DECODED_COMPRESS: a->o.decoded_compress = 1; break;
    }
    if ((row > IMAGE && row < THREADS) || (row >= DECODED && row <= DECODED_COMPRESS))
        a->image_only = bench_options[row].name;
}

/* Those of which samples there are, in which order. */
static void parse_order(struct tool *t, struct loader_args *a, int row)
{
    static const char *const shuffles[] = {"full", "none", "block", NULL};
    static const char *const lasts[] = {"auto", "short", "drop", "pad", NULL};

    switch (row) {
    case SEED: option_u64(t, 0, UINT64_MAX, &a->o.seed); break;
    case SHUFFLE: option_choice(t, shuffles, &a->o.shuffle); break;
    case BLOCK: option_u64(t, 1, UINT64_MAX, &a->o.block_samples); break;
    case WINDOW: option_u64(t, 1, UINT64_MAX, &a->o.window_blocks); break;
    case EPOCH_SIZE: option_u64(t, 1, UINT64_MAX, &a->o.epoch_size); break;
    case SPLIT: option_split(t, a); break;
    case SPLIT_SEED: option_u64(t, 0, UINT64_MAX, &a->o.split_seed); break;
    case FILTER: a->filter_file = t->value; break;
    case WEIGHTS: a->weights_file = t->value; break;
    case ORDER: a->order_file = t->value; break;
    case WORLD: option_unsigned(t, 1, 1u << 20, &a->o.world); break;
    case RANK: option_unsigned(t, 0, 1u << 20, &a->o.rank); break;
    case LAST: option_choice(t, lasts, &a->o.last); break;
    }
}

static int parse(struct tool *t, struct bench *b)
{
    static const char *const directs[] = {"auto", "on", "off", NULL};
    struct larder_loader_options *o = &b->loader.o;
    uint64_t staging = 0;
    int row;

    while ((row = options_next(t, 1, 1)) >= 0)
        switch (row) {
        case EPOCHS: option_u64(t, 1, UINT64_MAX, &o->epochs); break;
        case BATCHES: option_u64(t, 1, UINT64_MAX, &b->batches); break;
        case BATCH_SIZE: option_unsigned(t, 1, 1u << 24, &o->batch_size); break;
        case FETCH_SIZE: option_window(t, &b->loader.fetch); break;
        case THRESHOLD: option_window(t, &b->loader.threshold); break;
        case QUEUE_DEPTH: option_unsigned(t, 1, 4096, &o->queue_depth); break;
        case STAGING: option_size(t, 4096, SIZE_MAX / 2, &staging); break;
        case DIRECT: option_choice(t, directs, &b->dataset.direct); break;
        case COMPUTE_MS: option_ms(t, &b->compute_ns); break;
        case DRAM: option_dram(t, &b->cache); break;
        case NVME: option_nvme(t, &b->cache); break;
        case CACHE_NAME: b->cache.o.name = t->value; break;
        case REPLACEMENT: option_replacement(t, &b->cache); break;
        case NO_PIN: b->cache.o.no_pin = 1; break;
        case CUDA: option_cuda(t, &b->cache); break;
        case MIX: option_mix(t, &b->mix); break;
        case MIX_WEIGHT: option_mix_weight(t, &b->mix); break;
        case MIX_STOP: b->mix.stop = 1; break;
        case STATE: b->loader.state_file = t->value; break;
        case TRACE: o->trace = t->value; break;
        case METRICS: b->cache.metrics = t->value; break;
        case JSON: t->json = 1; break;
        default:
            parse_order(t, &b->loader, row);
            parse_prep(t, &b->loader, row);
        }
    o->staging_bytes = (size_t)staging;
    b->dataset.queue_depth = o->queue_depth;
    return row;
}

static int run_cached(struct bench *b)
{
    struct tool *t = b->t;

    if (cache_args_open(t, &b->cache, &b->dataset.cache) == EXIT_DONE && tool_open(t, t->argv[0], &b->dataset, &b->ds) == 0) {
        if (mix_args_open(t, &b->mix, &b->dataset, b->ds) == EXIT_DONE)
            t->status = run(b);
        mix_args_close(&b->mix);
        larder_dataset_close(b->ds);
    }
    larder_cache_close(b->dataset.cache);
    return t->status;
}

int cmd_bench(struct tool *t)
{
    struct bench b = {.t = t, .dataset = LARDER_DATASET_OPTIONS_INIT, .batches = UINT64_MAX};

    cache_args_init(&b.cache);
    b.cache.o.cuda_device = LARDER_CUDA_DEVICE(0);
    loader_args_init(&b.loader);
    mix_args_init(&b.mix);
    b.loader.o.epochs = b.loader.o.world = 1;
    if (parse(t, &b) != OPTIONS_STOP && loader_args_check(t, &b.loader) == EXIT_DONE && mix_args_check(t, &b.mix) == EXIT_DONE)
        t->status = run_cached(&b);
    loader_args_release(&b.loader);
    mix_args_close(&b.mix);
    cache_args_release(&b.cache);
    return t->status;
}
