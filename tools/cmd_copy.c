/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_copy.c - larder copy SRC DST: one generation from directory or bucket to directory or bucket, resumable.
 */
#include <inttypes.h>

#include "tools/tools.h"

enum { GENERATION, WORKERS, CHECKSUM, JSON, QUIET };

const struct option_spec copy_options[] = {
    [GENERATION] = {"generation", 0, "G", "newest", "copy this one"},
    [WORKERS] = {"workers", 'j', "N", "8", "files under way at once"},
    [CHECKSUM] = {"checksum", 0, NULL, NULL, "read again what an earlier run brought over"},
    [JSON] = OPTION_JSON,
    [QUIET] = OPTION_QUIET,
    OPTION_END,
};

static int on_progress(void *user, const struct larder_progress *p)
{
    return tool_progress(user, p);
}

static void print_json(struct tool *t, const struct larder_copy_report *r, double seconds)
{
    struct jsonl j;

    jsonl_begin(&j, stdout);
    jsonl_text(&j, "event", "done");
    jsonl_text(&j, "source", t->argv[0]);
    jsonl_text(&j, "dataset", t->argv[1]);
    jsonl_u64(&j, "generation", r->generation);
    jsonl_u64(&j, "samples", r->samples);
    jsonl_u64(&j, "shards", r->shards);
    jsonl_u64(&j, "files", r->files);
    jsonl_u64(&j, "files_there", r->files_there);
    jsonl_u64(&j, "bytes", r->bytes);
    jsonl_fixed(&j, "seconds", seconds, 6);
    jsonl_fixed(&j, "bytes_per_s", seconds > 0 ? (double)r->bytes / seconds : 0, 0);
    jsonl_end(&j);
}

static void print_text(const struct larder_copy_report *r, double seconds)
{
    char a[TEXT_MAX], b[TEXT_MAX], c[TEXT_MAX];

    printf("copied generation %" PRIu64 ": %s in %s; ", r->generation, text_plural(r->samples, "sample", a),
           text_plural(r->shards, "shard", b));
    printf("%s, %s in %.1f s (%s)", text_plural(r->files, "file", a), text_size(r->bytes, b), seconds,
           text_rate(seconds > 0 ? (double)r->bytes / seconds : 0, c));
    if (r->files_there > 0)
        printf(", %s there already", text_count(r->files_there, a));
    putchar('\n');
}

int cmd_copy(struct tool *t)
{
    struct larder_copy_options o = LARDER_COPY_OPTIONS_INIT;
    struct larder_copy_report r = {.struct_size = sizeof r};
    struct larder_error err = {0};
    uint64_t start = clock_now_ns();
    double seconds;
    int row, rc;

    while ((row = options_next(t, 2, 2)) >= 0)
        switch (row) {
        case GENERATION: option_u64(t, 1, UINT64_MAX, &o.generation); break;
        case WORKERS: option_unsigned(t, 1, 1024, &o.workers); break;
        case CHECKSUM: o.checksum = 1; break;
        case JSON: t->json = 1; break;
        case QUIET: t->quiet = 1; break;
        }
    if (row == OPTIONS_STOP)
        return t->status;
    o.progress = on_progress;
    o.user = t;
    o.remote = &t->remote;
    tool_begin(t);
    rc = larder_copy_run(t->argv[0], t->argv[1], &o, &r, &err);
    seconds = (double)(clock_now_ns() - start) / 1e9;
    progress_end(&t->progress);
    if (rc != LARDER_OK)
        return tool_run_error(t, &err, "run the same command again to go on");
    if (t->json)
        print_json(t, &r, seconds);
    else if (!t->quiet)
        print_text(&r, seconds);
    return EXIT_DONE;
}
