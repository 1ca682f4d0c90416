/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_gc.c - larder gc DATASET: removes generations beyond the newest few and files that no generation names.
 */
#include <inttypes.h>

#include "tools/tools.h"

enum { KEEP, OLDER_THAN, DRY_RUN, JSON, QUIET };

const struct option_spec gc_options[] = {
    [KEEP] = {"keep", 0, "N", "1", "newest generations that stay in any case"},
    [OLDER_THAN] = {"older-than", 0, "TIME", "24h", "remove only what was superseded or written longer ago"},
    [DRY_RUN] = {"dry-run", 0, NULL, NULL, "report only, remove nothing"},
    [JSON] = OPTION_JSON,
    [QUIET] = {"quiet", 'q', NULL, NULL, "no output, only errors"},
    OPTION_END,
};

struct run {
    struct tool *t;
    int dry_run;
};

static void on_removed(void *user, const char *what, const char *why)
{
    const struct run *run = user;
    struct jsonl j;

    if (run->t->json) {
        jsonl_begin(&j, stdout);
        jsonl_text(&j, "event", "removed");
        jsonl_text(&j, "what", what);
        jsonl_text(&j, "why", why);
        jsonl_end(&j);
    } else if (!run->t->quiet) {
        fputs(run->dry_run ? "would remove " : "removed ", stdout);
        text_line(stdout, what);
        fputs(": ", stdout);
        text_line(stdout, why ? why : "");
        putchar('\n');
    }
}

static void print_report(struct tool *t, const struct larder_gc_report *r, int dry_run)
{
    char a[TEXT_MAX], b[TEXT_MAX], c[TEXT_MAX], d[TEXT_MAX];
    struct jsonl j;

    if (t->json) {
        jsonl_begin(&j, stdout);
        jsonl_text(&j, "event", "done");
        jsonl_text(&j, "dataset", t->argv[0]);
        jsonl_bool(&j, "dry_run", dry_run);
        jsonl_u64(&j, "generations", r->generations);
        jsonl_u64(&j, "files", r->files);
        jsonl_u64(&j, "bytes", r->bytes);
        jsonl_u64(&j, "young", r->young);
        jsonl_end(&j);
    } else if (!t->quiet) {
        printf("%s %s, %s, %s", dry_run ? "would remove" : "removed",
               text_plural(r->generations, "generation", a), text_plural(r->files, "file", b),
               text_size(r->bytes, c));
        if (r->young > 0)
            printf("; %s kept as too young, --older-than decides", text_plural(r->young, "generation", d));
        putchar('\n');
    }
}

int cmd_gc(struct tool *t)
{
    struct larder_gc_options o = LARDER_GC_OPTIONS_INIT;
    struct larder_gc_report r = {.struct_size = sizeof r};
    struct run run = {t, 0};
    struct larder_error err = {0};
    int row;

    while ((row = options_next(t, 1, 1)) >= 0)
        switch (row) {
        case KEEP: option_u64(t, 1, UINT64_MAX, &o.keep); break;
        case OLDER_THAN: option_duration(t, &o.min_age_s); break;
        case DRY_RUN: o.dry_run = 1; break;
        case JSON: t->json = 1; break;
        case QUIET: t->quiet = 1; break;
        }
    if (row == OPTIONS_STOP)
        return t->status;
    run.dry_run = o.dry_run;
    o.removed = on_removed;
    o.user = &run;
    o.remote = &t->remote;
    if (larder_gc_run(t->argv[0], &o, &r, &err))
        return tool_error(t, &err);
    print_report(t, &r, o.dry_run);
    return EXIT_DONE;
}
