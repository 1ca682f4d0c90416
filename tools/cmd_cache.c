/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_cache.c - larder cache info DIR | clear DIR | warm DATASET: what lies in directories on local disks, and filling them ahead of a
 * job.
 *
 * warm reads the dataset once through a cache, in the order of its ordinals; the DRAM part lives only as long as another
 * process holds it. clear removes the files that larder made in a directory that no process uses, and nothing else.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/tools.h"

enum { DRAM, NVME, CACHE_NAME, NO_PIN, JSON, QUIET };
enum { DATASETS_MAX = 1024 };

const struct option_spec cache_options[] = {
    [DRAM] = {"dram", 0, "SIZE|auto", NULL, "warm: fill memory too"},
    [NVME] = {"nvme", 0, "DIR:SIZE", NULL, "warm: fill this directory; may be given again"},
    [CACHE_NAME] = {"cache-name", 0, "NAME", "default", "of the memory that processes share"},
    [NO_PIN] = OPTION_NO_PIN,
    [JSON] = OPTION_JSON,
    [QUIET] = OPTION_QUIET,
    OPTION_END,
};

static void id_text(const uint8_t id[16], char out[37])
{
    int n = 0;

    for (int i = 0; i < 16; i++)
        n += snprintf(out + n, (size_t)(37 - n), "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
}

static void time_text(uint64_t seconds, char out[32])
{
    time_t when = (time_t)seconds;
    struct tm tm;

    if (!gmtime_r(&when, &tm) || strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        snprintf(out, 32, "?");
}

/* ---- info ---- */

static void info_json(const char *dir, const struct larder_cache_dir_info *in, const struct larder_cache_dataset *d, size_t n)
{
    char id[37], when[32];
    struct jsonl j;

    jsonl_begin(&j, stdout);
    jsonl_text(&j, "event", "cache");
    jsonl_text(&j, "dir", dir);
    jsonl_u64(&j, "used_bytes", in->used_bytes);
    jsonl_u64(&j, "segments", in->segments);
    jsonl_u64(&j, "segment_bytes", in->segment_bytes);
    jsonl_u64(&j, "entries", in->entries);
    jsonl_u64(&j, "holder", in->holder);
    jsonl_array(&j, "datasets");
    for (size_t i = 0; i < n; i++) {
        jsonl_object(&j, NULL);
        id_text(d[i].uuid, id);
        jsonl_text(&j, "uuid", id);
        id_text(d[i].lineage, id);
        jsonl_text(&j, "lineage", id);
        jsonl_u64(&j, "entries", d[i].entries);
        jsonl_u64(&j, "bytes", d[i].bytes);
        time_text(d[i].last_used_s, when);
        jsonl_text(&j, "last_used", when);
        jsonl_close(&j, '}');
    }
    jsonl_close(&j, ']');
    jsonl_end(&j);
}

static void info_text(const char *dir, const struct larder_cache_dir_info *in, const struct larder_cache_dataset *d, size_t n)
{
    char a[TEXT_MAX], b[TEXT_MAX], c[TEXT_MAX], id[37], when[32];

    text_line(stdout, dir);
    printf(": %s in %s, %s on disk", text_plural(in->entries, "record", a), text_plural(in->segments, "segment", b),
           text_size(in->used_bytes, c));
    if (in->holder > 1)
        printf(", in use by process %" PRIu64, in->holder);
    else if (in->holder)
        printf(", in use");
    putchar('\n');
    for (size_t i = 0; i < n; i++) {
        id_text(d[i].uuid, id);
        time_text(d[i].last_used_s, when);
        printf("  dataset %s: %s, %s, last used %s\n", id, text_plural(d[i].entries, "record", a), text_size(d[i].bytes, b), when);
    }
}

static int info(struct tool *t, const char *dir)
{
    struct larder_cache_dir_info in = {.struct_size = sizeof in};
    struct larder_cache_dataset *d = calloc(DATASETS_MAX, sizeof *d);
    struct larder_error err = {0};
    size_t n;

    if (!d)
        return tool_nomem(t);
    if (larder_cache_dir_info(dir, &in, d, DATASETS_MAX, &err)) {
        free(d);
        return tool_error(t, &err);
    }
    n = in.datasets < DATASETS_MAX ? in.datasets : DATASETS_MAX;
    if (t->json)
        info_json(dir, &in, d, n);
    else
        info_text(dir, &in, d, n);
    free(d);
    return EXIT_DONE;
}

/* ---- clear ---- */

static int clear(struct tool *t, const char *dir)
{
    struct larder_error err = {0};
    char a[TEXT_MAX];
    struct jsonl j;
    uint64_t freed;

    if (larder_cache_dir_clear(dir, &freed, &err))
        return tool_error(t, &err);
    if (t->json) {
        jsonl_begin(&j, stdout);
        jsonl_text(&j, "event", "cleared");
        jsonl_text(&j, "dir", dir);
        jsonl_u64(&j, "bytes", freed);
        jsonl_end(&j);
    } else if (!t->quiet) {
        text_line(stdout, dir);
        printf(": cleared, %s freed\n", text_size(freed, a));
    }
    return EXIT_DONE;
}

/* ---- warm ---- */

static int read_once(struct tool *t, struct larder_dataset *ds)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_progress p = {.phase = "warm"};
    struct larder_dataset_info in = {.struct_size = sizeof in};
    const struct larder_batch *b;
    struct larder_error err = {0};
    struct larder_loader *ld;
    int rc;

    o.shuffle = LARDER_SHUFFLE_NONE;
    o.epochs = 1;
    if (larder_dataset_info(ds, &in, &err) || larder_loader_open(ds, &o, &ld, &err))
        return tool_error(t, &err);
    p.total = in.samples;
    tool_begin(t);
    while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK) {
        p.done += b->n;
        for (size_t i = 0; i < (size_t)b->n * b->n_fields; i++)
            p.bytes += b->values[i].len;
        larder_batch_release(b);
        if (tool_progress(t, &p)) {
            err = (struct larder_error){.code = rc = LARDER_ECANCELED, .message = "interrupted"};
            break;
        }
    }
    progress_end(&t->progress);
    larder_loader_close(ld);
    return rc == LARDER_END ? EXIT_DONE : tool_run_error(t, &err, NULL);
}

static int report(struct tool *t, const struct larder_cache *cache)
{
    struct larder_cache_stats s = {.struct_size = sizeof s};
    struct larder_error err = {0};
    char a[TEXT_MAX], b[TEXT_MAX], c[TEXT_MAX], d[TEXT_MAX];
    struct jsonl j;

    if (larder_cache_stats(cache, &s, &err))
        return tool_error(t, &err);
    if (t->json) {
        jsonl_begin(&j, stdout);
        jsonl_text(&j, "event", "warm");
        jsonl_u64(&j, "dram_entries", s.dram.entries);
        jsonl_u64(&j, "dram_bytes", s.dram.used_bytes);
        jsonl_u64(&j, "nvme_entries", s.nvme.entries);
        jsonl_u64(&j, "nvme_bytes", s.nvme.used_bytes);
        jsonl_end(&j);
    } else if (!t->quiet) {
        printf("dram %s in %s, nvme %s in %s\n", text_plural(s.dram.entries, "record", a), text_size(s.dram.used_bytes, b),
               text_plural(s.nvme.entries, "record", c), text_size(s.nvme.used_bytes, d));
    }
    return EXIT_DONE;
}

static int warm(struct tool *t, const char *uri, struct cache_args *a)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset *ds;

    if (!a->wanted)
        return tool_usage(t, "warm needs --nvme DIR:SIZE or --dram SIZE");
    if (cache_args_open(t, a, &o.cache) != EXIT_DONE)
        return t->status;
    if (tool_open(t, uri, &o, &ds) == 0) {
        t->status = read_once(t, ds);
        larder_dataset_close(ds);
        cache_args_warn(t, a, o.cache);
        if (t->status == EXIT_DONE)
            t->status = report(t, o.cache);
    }
    larder_cache_close(o.cache);
    return t->status;
}

int cmd_cache(struct tool *t)
{
    struct cache_args a;
    int row;

    cache_args_init(&a);
    while ((row = options_next(t, 2, 2)) >= 0)
        switch (row) {
        case DRAM: option_dram(t, &a); break;
        case NVME: option_nvme(t, &a); break;
        case CACHE_NAME: a.o.name = t->value; break;
        case NO_PIN: a.o.no_pin = 1; break;
        case JSON: t->json = 1; break;
        case QUIET: t->quiet = 1; break;
        }
    if (row != OPTIONS_STOP) {
        if (strcmp(t->argv[0], "warm") != 0 && a.wanted)
            tool_usage(t, "--nvme and --dram go with 'warm'");
        else if (strcmp(t->argv[0], "info") == 0)
            t->status = info(t, t->argv[1]);
        else if (strcmp(t->argv[0], "clear") == 0)
            t->status = clear(t, t->argv[1]);
        else if (strcmp(t->argv[0], "warm") == 0)
            t->status = warm(t, t->argv[1], &a);
        else
            tool_usage(t, "'%s' is not info, warm or clear", t->argv[0]);
    }
    cache_args_release(&a);
    return t->status;
}
