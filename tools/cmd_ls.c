/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_ls.c - larder ls DATASET: keys in the order of their ordinals, with --long also where each sample lies.
 *
 * Reads footers only, page after page, so a listing of any length needs no memory of its own.
 */
#include <inttypes.h>

#include "tools/tools.h"

enum { FIRST, COUNT, LONG, JSON };

const struct option_spec ls_options[] = {
    [FIRST] = {"first", 0, "N", "0", "begin at this ordinal"},
    [COUNT] = {"count", 'n', "N", "to the end", "list so many"},
    [LONG] = {"long", 'l', NULL, NULL, "ordinal, shard, slot, offset, stored bytes, key"},
    [JSON] = OPTION_JSON,
    OPTION_END,
};

struct listing {
    uint64_t first, count;
    int detailed;
};

static void print_json(uint64_t ordinal, const char *key, size_t len, const struct larder_location *loc)
{
    struct jsonl j;

    jsonl_begin(&j, stdout);
    jsonl_u64(&j, "ordinal", ordinal);
    jsonl_bytes(&j, "key", key, len);
    if (loc) {
        jsonl_text(&j, "shard", loc->shard);
        jsonl_u64(&j, "slot", loc->slot);
        jsonl_u64(&j, "offset", loc->offset);
        jsonl_u64(&j, "stored_bytes", loc->stored_len);
        jsonl_u64(&j, "raw_bytes", loc->raw_len);
    }
    jsonl_end(&j);
}

static void print_text(uint64_t ordinal, const char *key, size_t len, const struct larder_location *loc)
{
    if (loc)
        printf("%10" PRIu64 "  %s  %8" PRIu32 "  %12" PRIu64 "  %10" PRIu32 "  ", ordinal, loc->shard,
               loc->slot, loc->offset, loc->stored_len);
    text_escape(stdout, key, len, 0);
    putchar('\n');
}

static int list(struct tool *t, struct larder_dataset *ds, const struct listing *l)
{
    char key[LARDER_KEY_MAX];
    struct larder_location loc;
    struct larder_error err = {0};
    size_t len;

    for (uint64_t i = 0; i < l->count && !tool_output_failed(); i++) {
        uint64_t ordinal = l->first + i;

        if (larder_dataset_key(ds, ordinal, key, sizeof key, &len, &err) ||
            (l->detailed && larder_dataset_locate(ds, ordinal, &loc, &err)))
            return tool_error(t, &err);
        if (t->json)
            print_json(ordinal, key, len, l->detailed ? &loc : NULL);
        else
            print_text(ordinal, key, len, l->detailed ? &loc : NULL);
    }
    return EXIT_DONE;
}

static int run(struct tool *t, struct larder_dataset *ds, struct listing *l)
{
    struct larder_dataset_info in = {.struct_size = sizeof in};
    struct larder_error err = {0};

    if (larder_dataset_info(ds, &in, &err))
        return tool_error(t, &err);
    if (l->first > 0 && l->first >= in.samples)
        return tool_fail(
            t, "ordinal %" PRIu64 " is beyond the %" PRIu64 " samples of %s; give a smaller --first",
            l->first, in.samples, t->argv[0]);
    if (l->count > in.samples - l->first)
        l->count = in.samples - l->first;
    return list(t, ds, l);
}

int cmd_ls(struct tool *t)
{
    struct listing l = {0, UINT64_MAX, 0};
    struct larder_dataset *ds;
    int row;

    while ((row = options_next(t, 1, 1)) >= 0)
        switch (row) {
        case FIRST: option_u64(t, 0, UINT64_MAX - 1, &l.first); break;
        case COUNT: option_u64(t, 1, UINT64_MAX, &l.count); break;
        case LONG: l.detailed = 1; break;
        case JSON: t->json = 1; break;
        }
    if (row == OPTIONS_STOP || tool_open(t, t->argv[0], NULL, &ds))
        return t->status;
    t->status = run(t, ds, &l);
    larder_dataset_close(ds);
    return t->status;
}
