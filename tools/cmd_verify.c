/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_verify.c - larder verify DATASET: checks everything, lists what is damaged as it is found, exits 3 if
 * anything is.
 */
#include <inttypes.h>

#include "tools/tools.h"

enum { SUBSET, GENERATION, WORKERS, JSON, QUIET };

const struct option_spec verify_options[] = {
    [SUBSET] = {"subset", 0, "n/t", "1/1", "check part n of t of the shards and index files"},
    [GENERATION] = {"generation", 0, "G", "newest", "check this one"},
    [WORKERS] = {"workers", 'j', "N", "one a CPU", "threads that read and check"},
    [JSON] = OPTION_JSON,
    [QUIET] = {"quiet", 'q', NULL, NULL, "no progress and no summary, only what is damaged"},
    OPTION_END,
};

static int on_progress(void *user, const struct larder_progress *p)
{
    return tool_progress(user, p);
}

static void on_damage(void *user, const struct larder_damage *d)
{
    damage_print(user, ((struct tool *)user)->json ? "damage" : "damaged", d);
}

static void print_report(struct tool *t, const struct larder_verify_report *r)
{
    char a[TEXT_MAX], b[TEXT_MAX], c[TEXT_MAX], d[TEXT_MAX];
    struct jsonl j;

    if (t->json) {
        jsonl_begin(&j, stdout);
        jsonl_text(&j, "event", "done");
        jsonl_text(&j, "dataset", t->argv[0]);
        jsonl_u64(&j, "generation", r->generation);
        jsonl_u64(&j, "shards", r->shards);
        jsonl_u64(&j, "samples", r->samples);
        jsonl_u64(&j, "bytes", r->bytes);
        jsonl_u64(&j, "damaged", r->damaged);
        jsonl_end(&j);
    } else if (!t->quiet) {
        printf("verified generation %" PRIu64 ": %s, %s, %s; %s\n", r->generation,
               text_plural(r->shards, "shard", a), text_plural(r->samples, "sample", b),
               text_size(r->bytes, c),
               r->damaged ? text_plural(r->damaged, "damaged place", d) : "all is well");
    }
}

int cmd_verify(struct tool *t)
{
    struct larder_verify_options o = LARDER_VERIFY_OPTIONS_INIT;
    struct larder_verify_report r = {.struct_size = sizeof r};
    struct larder_error err = {0};
    int row, rc;

    while ((row = options_next(t, 1, 1)) >= 0)
        switch (row) {
        case SUBSET: option_subset(t, &o.subset_n, &o.subset_t); break;
        case GENERATION: option_u64(t, 1, UINT64_MAX, &o.generation); break;
        case WORKERS: option_unsigned(t, 1, 1024, &o.workers); break;
        case JSON: t->json = 1; break;
        case QUIET: t->quiet = 1; break;
        }
    if (row == OPTIONS_STOP)
        return t->status;
    o.progress = on_progress;
    o.damage = on_damage;
    o.user = t;
    o.remote = &t->remote;
    tool_begin(t);
    rc = larder_verify_run(t->argv[0], &o, &r, &err);
    progress_end(&t->progress);
    if (rc == LARDER_OK || (rc == LARDER_ECORRUPT && r.damaged > 0))
        print_report(t, &r);
    return rc == LARDER_OK ? EXIT_DONE : tool_run_error(t, &err, "run the same command again");
}
