/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_ingest.c - larder ingest SOURCE... DATASET: options, the progress bar, the lists of what was left out,
 * the summary.
 *
 * Skipped and ignored things are told one by one with --json, as they are met; otherwise the first few are
 * kept, so that a million of them cost no memory. The library calls the notices from one thread at a time.
 */
#include <string.h>

#include "tools/tools.h"

enum { FORMAT, SHARD_SIZE, COMPRESS, WORKERS, FIELDS, ORDER, SEED, ON_ERROR, APPEND, RESTART, JSON, QUIET };

const struct option_spec ingest_options[] = {
    [FORMAT] = {"format", 0, "dir|tar", "by the look of SOURCE", "what the sources are"},
    [SHARD_SIZE] = {"shard-size", 0, "SIZE", "64MiB", "bytes of records in a shard"},
    [COMPRESS] = {"compress", 0, "HOW", "none", "none, zstd, zstd:LEVEL, zstd-dict, zstd-dict:LEVEL"},
    [WORKERS] = {"workers", 'j', "N", "one a CPU", "threads that read and pack"},
    [FIELDS] = {"fields", 0, "SPEC", "inferred", "dir: NAME[:TYPE]; tar: NAME[:TYPE][=EXT[|EXT]],..."},
    [ORDER] = {"order", 0, "ORDER", "shuffled", "shuffled or source; a tar keeps its own"},
    [SEED] = {"seed", 0, "N", "0", "of the shuffle"},
    [ON_ERROR] = {"on-error", 0, "fail|skip", "fail", "skip leaves out what cannot be read and lists it"},
    [APPEND] = {"append", 0, NULL, NULL, "add to a dataset that exists"},
    [RESTART] = {"restart", 0, NULL, NULL, "discard an unfinished ingest made with other arguments"},
    [JSON] = OPTION_JSON,
    [QUIET] = OPTION_QUIET,
    OPTION_END,
};

struct run {
    struct tool *t;
    struct notices skipped, ignored;
};

static const char *const formats[] = {"dir", "tar", NULL};
static const char *const orders[] = {"shuffled", "source", NULL};
static const char *const on_errors[] = {"fail", "skip", NULL};

static int parse(struct tool *t, struct larder_ingest_options *o)
{
    int row, format = -1;

    while ((row = options_next(t, 2, 0)) >= 0)
        switch (row) {
        case FORMAT: option_choice(t, formats, &format); break;
        case SHARD_SIZE: option_size(t, 1, 4ull << 30, &o->shard_size); break;
        case COMPRESS: option_compress(t, &o->compression, &o->level); break;
        case WORKERS: option_unsigned(t, 1, 1024, &o->workers); break;
        case FIELDS: o->fields = t->value; break;
        case ORDER: option_choice(t, orders, &o->order); break;
        case SEED: option_u64(t, 0, UINT64_MAX, &o->seed); break;
        case ON_ERROR: option_choice(t, on_errors, &o->on_error); break;
        case APPEND: o->append = 1; break;
        case RESTART: o->restart = 1; break;
        case JSON: t->json = 1; break;
        case QUIET: t->quiet = 1; break;
        }
    o->format = format >= 0 ? formats[format] : NULL;
    return row;
}

static int on_progress(void *user, const struct larder_progress *p)
{
    return tool_progress(((struct run *)user)->t, p);
}

static void on_skipped(void *user, const char *what, const char *why)
{
    notices_add(&((struct run *)user)->skipped, what, why);
}

static void on_ignored(void *user, const char *what, const char *why)
{
    notices_add(&((struct run *)user)->ignored, what, why);
}

static void print_json(const struct larder_ingest_report *r, const char *uri, double seconds)
{
    struct jsonl j;

    jsonl_begin(&j, stdout);
    jsonl_text(&j, "event", "done");
    jsonl_text(&j, "dataset", uri);
    jsonl_u64(&j, "generation", r->generation);
    jsonl_u64(&j, "samples", r->samples);
    jsonl_u64(&j, "added", r->added);
    jsonl_u64(&j, "resumed", r->resumed);
    jsonl_u64(&j, "skipped", r->skipped);
    jsonl_u64(&j, "ignored", r->ignored);
    jsonl_u64(&j, "shards", r->shards);
    jsonl_u64(&j, "source_bytes", r->source_bytes);
    jsonl_u64(&j, "stored_bytes", r->stored_bytes);
    jsonl_fixed(&j, "seconds", seconds, 6);
    jsonl_fixed(&j, "bytes_per_s", seconds > 0 ? (double)r->source_bytes / seconds : 0, 0);
    jsonl_end(&j);
}

static void print_text(const struct run *run, const struct larder_ingest_report *r, double seconds)
{
    char a[TEXT_MAX], b[TEXT_MAX], c[TEXT_MAX], d[TEXT_MAX];

    printf("ingested %s in %s, %s in %.1f s (%s)", text_plural(r->added, "sample", a),
           text_plural(r->shards, "shard", b), text_size(r->stored_bytes, c), seconds,
           text_rate(seconds > 0 ? (double)r->source_bytes / seconds : 0, d));
    if (r->resumed > 0)
        printf(", %s of them by an earlier run", text_count(r->resumed, a));
    printf("; skipped %s, ignored %s\n", text_count(r->skipped, a), text_count(r->ignored, b));
    notices_print(&run->skipped, "skipped");
    notices_print(&run->ignored, "ignored");
    printf("generation %llu: %s\n", (unsigned long long)r->generation, text_plural(r->samples, "sample", a));
}

int cmd_ingest(struct tool *t)
{
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    struct larder_ingest_report r = {.struct_size = sizeof r};
    struct run run = {t, {.t = t, .event = "skipped"}, {.t = t, .event = "ignored"}};
    struct larder_error err = {0};
    uint64_t start = clock_now_ns();
    double seconds;
    int rc;

    if (parse(t, &o) == OPTIONS_STOP)
        return t->status;
    o.progress = on_progress;
    o.skipped = on_skipped;
    o.ignored = on_ignored;
    o.user = &run;
    o.remote = &t->remote;
    tool_begin(t);
    rc = larder_ingest_run((const char *const *)t->argv, (size_t)t->argc - 1, t->argv[t->argc - 1], &o, &r,
                           &err);
    seconds = (double)(clock_now_ns() - start) / 1e9;
    progress_end(&t->progress);
    if (rc != LARDER_OK)
        tool_run_error(t, &err, "run the same command again to go on");
    else if (t->json)
        print_json(&r, t->argv[t->argc - 1], seconds);
    else if (!t->quiet)
        print_text(&run, &r, seconds);
    notices_release(&run.skipped);
    notices_release(&run.ignored);
    return t->status;
}
