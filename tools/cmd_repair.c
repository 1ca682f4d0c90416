/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_repair.c - larder repair DATASET: mends what can be mended, lists what is dropped.
 */
#include <inttypes.h>

#include "tools/tools.h"

enum { DRY_RUN, JSON, QUIET };

const struct option_spec repair_options[] = {
    [DRY_RUN] = {"dry-run", 0, NULL, NULL, "report only, change nothing"},
    [JSON] = OPTION_JSON,
    [QUIET] = {"quiet", 'q', NULL, NULL, "no progress and no summary, only what is dropped"},
    OPTION_END,
};

struct run {
    struct tool *t;
    uint64_t found; /* damaged places */
};

static int on_progress(void *user, const struct larder_progress *p)
{
    return tool_progress(((struct run *)user)->t, p);
}

static void on_damage(void *user, const struct larder_damage *d)
{
    struct run *run = user;

    run->found++;
    damage_print(run->t, run->t->json ? "damage" : "damaged", d);
}

static void print_json(struct tool *t, const struct larder_repair_report *r, int dry_run)
{
    struct jsonl j;

    jsonl_begin(&j, stdout);
    jsonl_text(&j, "event", "done");
    jsonl_text(&j, "dataset", t->argv[0]);
    jsonl_bool(&j, "dry_run", dry_run);
    jsonl_u64(&j, "generation", r->generation);
    jsonl_u64(&j, "samples", r->samples);
    jsonl_u64(&j, "dropped", r->dropped);
    jsonl_u64(&j, "shards", r->shards);
    jsonl_u64(&j, "shards_rewritten", r->shards_rewritten);
    jsonl_u64(&j, "shards_dropped", r->shards_dropped);
    jsonl_bool(&j, "lineage_changed", r->lineage_changed);
    jsonl_end(&j);
}

static void print_text(const struct larder_repair_report *r, int dry_run)
{
    char a[TEXT_MAX], b[TEXT_MAX];

    if (dry_run) {
        printf("dry run: %s of %s to rewrite, index and manifest to rebuild; nothing was changed\n",
               text_plural(r->shards_rewritten + r->shards_dropped, "shard", a), text_count(r->shards, b));
        return;
    }
    if (r->generation == 0) {
        puts("mended in place; the newest generation stays as it is");
        return;
    }
    printf("repaired as generation %" PRIu64 ": %s in %s", r->generation,
           text_plural(r->samples, "sample", a), text_plural(r->shards, "shard", b));
    printf("; %s dropped", text_plural(r->dropped, "sample", a));
    printf(", %s rewritten", text_plural(r->shards_rewritten, "shard", a));
    printf(", %s lost", text_plural(r->shards_dropped, "shard", a));
    puts(r->lineage_changed ? "; a new lineage, ordinals moved" : "; lineage and ordinals kept");
}

int cmd_repair(struct tool *t)
{
    struct larder_repair_options o = LARDER_REPAIR_OPTIONS_INIT;
    struct larder_repair_report r = {.struct_size = sizeof r};
    struct run run = {t, 0};
    struct larder_error err = {0};
    int row, wrong;

    while ((row = options_next(t, 1, 1)) >= 0)
        switch (row) {
        case DRY_RUN: o.dry_run = 1; break;
        case JSON: t->json = 1; break;
        case QUIET: t->quiet = 1; break;
        }
    if (row == OPTIONS_STOP)
        return t->status;
    o.progress = on_progress;
    o.damage = on_damage;
    o.user = &run;
    o.remote = &t->remote;
    tool_begin(t);
    row = larder_repair_run(t->argv[0], &o, &r, &err);
    progress_end(&t->progress);
    if (row != LARDER_OK)
        return tool_run_error(t, &err, "run the same command again");
    wrong = r.generation > 0 || r.dropped > 0 || r.shards_rewritten > 0 || r.shards_dropped > 0 ||
            run.found > 0;
    if (t->json)
        print_json(t, &r, o.dry_run);
    else if (!wrong && !t->quiet)
        puts("nothing to repair");
    else if (!t->quiet)
        print_text(&r, o.dry_run);
    return o.dry_run && wrong ? EXIT_CORRUPT : EXIT_DONE;
}
