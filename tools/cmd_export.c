/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_export.c - larder export DATASET DEST: samples as files in a folder or a tar.
 */
#include <inttypes.h>

#include "tools/tools.h"

enum { FORMAT, FIRST, COUNT, JSON, QUIET };

const struct option_spec export_options[] = {
    [FORMAT] = {"format", 0, "dir|tar", "by the look of DEST", "what to write"},
    [FIRST] = {"first", 0, "N", "0", "begin at this ordinal"},
    [COUNT] = {"count", 'n', "N", "to the end", "export so many"},
    [JSON] = OPTION_JSON,
    [QUIET] = OPTION_QUIET,
    OPTION_END,
};

static int on_progress(void *user, const struct larder_progress *p)
{
    return tool_progress(user, p);
}

static void print_report(struct tool *t, const struct larder_export_report *r)
{
    char a[TEXT_MAX], b[TEXT_MAX], c[TEXT_MAX];
    struct jsonl j;

    if (t->json) {
        jsonl_begin(&j, stdout);
        jsonl_text(&j, "event", "done");
        jsonl_text(&j, "destination", t->argv[1]);
        jsonl_u64(&j, "samples", r->samples);
        jsonl_u64(&j, "files", r->files);
        jsonl_u64(&j, "bytes", r->bytes);
        jsonl_u64(&j, "renamed", r->renamed);
        jsonl_end(&j);
    } else if (!t->quiet) {
        printf("exported %s as %s, %s", text_plural(r->samples, "sample", a),
               text_plural(r->files, "file", b), text_size(r->bytes, c));
        if (r->renamed > 0)
            printf("; %s not safe as a path, percent-encoded", text_plural(r->renamed, "key", a));
        putchar('\n');
    }
}

static int run(struct tool *t, struct larder_dataset *ds, const struct larder_export_options *o)
{
    struct larder_export_report r = {.struct_size = sizeof r};
    struct larder_error err = {0};
    int rc;

    tool_begin(t);
    rc = larder_export_run(ds, t->argv[1], o, &r, &err);
    progress_end(&t->progress);
    if (rc != LARDER_OK)
        return tool_run_error(t, &err, "run the same command again");
    print_report(t, &r);
    return EXIT_DONE;
}

int cmd_export(struct tool *t)
{
    static const char *const formats[] = {"dir", "tar", NULL};
    struct larder_export_options o = LARDER_EXPORT_OPTIONS_INIT;
    struct larder_dataset *ds;
    int row, format = -1;

    while ((row = options_next(t, 2, 2)) >= 0)
        switch (row) {
        case FORMAT: option_choice(t, formats, &format); break;
        case FIRST: option_u64(t, 0, UINT64_MAX - 1, &o.first); break;
        case COUNT: option_u64(t, 1, UINT64_MAX, &o.count); break;
        case JSON: t->json = 1; break;
        case QUIET: t->quiet = 1; break;
        }
    if (row == OPTIONS_STOP || tool_open(t, t->argv[0], NULL, &ds))
        return t->status;
    o.format = format >= 0 ? formats[format] : NULL;
    o.progress = on_progress;
    o.user = t;
    t->status = run(t, ds, &o);
    larder_dataset_close(ds);
    return t->status;
}
