/* SPDX-License-Identifier: Apache-2.0 */
/*
 * variant.c - what was made of records (decoded images, say), kept in memory that the processes of a node share.
 *
 * An arena of its own, beside the one that holds records as they are stored: so its budget is its own, and neither can drive out the
 * other. The key is (uuid, lineage, contents and fingerprint, ordinal). MinIO: nothing is replaced, so a view is a plain pointer that
 * stays, and the first refusal ends admission. There are no claims: two who make the same at once have both paid for it, and the second
 * put is dropped.
 *
 * Threads: any after opening; the arena is lock-free, and a process that is killed while it puts leaves a hole of one entry.
 */
#include <unistd.h>

#include "tiers/stack_int.h"

#define NAME_MAX_PLAIN 56u /* with the prefix at most the 64 that a region's name may have */

struct tiers_variant {
    struct share *share;
    struct dram *dram;
    uint32_t space;
    pid_t pid;
    char warning[256]; /* of opening */
};

static void name_of(const char *name, char out[68])
{
    if (strlen(name) <= NAME_MAX_PLAIN)
        snprintf(out, 68, "decoded-%s", name);
    else
        snprintf(out, 68, "decoded-%016llx", (unsigned long long)hash64(0, name, strlen(name)));
}

/* Who joins takes the arena as it is, and is told. */
static int take_as_it_is(struct tiers_variant *v, const struct tiers_variant_options *o, struct larder_error *err)
{
    struct dram_stats d;
    dram_stats(v->dram, &d);
    if (dram_replacement(v->dram) != REPLACE_NONE) /* a cache that a caller has named so */
        return err_set(err, LARDER_EINVAL, "cache 'decoded-%s' replaces what it holds, so nothing decoded can be kept in it: use another "
                       "cache name", o->name ? o->name : "");
    if (share_warning(v->share))
        snprintf(v->warning, sizeof(v->warning), "%s", share_warning(v->share));
    else if (d.budget != o->bytes / 4096 * 4096)
        snprintf(v->warning, sizeof(v->warning), "the decoded cache of '%s' has a budget of %llu bytes, not the %llu asked for: who makes "
                 "it sets it", o->name ? o->name : "private", (unsigned long long)d.budget, (unsigned long long)o->bytes);
    return LARDER_OK;
}

static int take_space(struct tiers_variant *v, const struct manifest *m, uint64_t fingerprint, struct larder_error *err)
{
    struct cache_space space;
    uint64_t words[2] = {cache_contents(m), fingerprint};
    memcpy(space.uuid, m->uuid, sizeof(space.uuid));
    memcpy(space.lineage, m->lineage, sizeof(space.lineage));
    space.variant = hash64(0, words, sizeof(words));
    if (dram_closed(v->dram))
        dram_reclaim(v->dram); /* what nobody uses any more makes room */
    int rc = dram_space(v->dram, &space, &v->space, err);
    if (rc && dram_reclaim(v->dram) > 0)
        rc = dram_space(v->dram, &space, &v->space, err);
    return rc;
}

int tiers_variant_open(const struct manifest *m, const struct tiers_variant_options *o, struct tiers_variant **out, struct larder_error *err)
{
    char name[68];
    struct tiers_variant *v = calloc(1, sizeof(*v));
    *out = NULL;
    if (!v)
        return err_nomem(err, sizeof(*v), "a decoded cache");
    v->pid = getpid();
    if (o->name)
        name_of(o->name, name);
    int rc = cache_arena_open(o->name ? name : NULL, o->bytes, REPLACE_NONE, &v->share, &v->dram, err);
    if (!rc && o->no_pin)
        dram_no_pin(v->dram);
    if (!rc)
        rc = take_as_it_is(v, o, err);
    if (!rc)
        rc = take_space(v, m, o->fingerprint, err);
    if (rc) {
        tiers_variant_close(v);
        return rc;
    }
    *out = v;
    return LARDER_OK;
}

void tiers_variant_close(struct tiers_variant *v)
{
    if (!v)
        return;
    if (v->pid == getpid())
        cache_arena_close(v->share, v->dram);
    free(v);
}

size_t tiers_variant_lookup(struct tiers_variant *v, const uint64_t *ordinals, size_t n, struct extent *extents, const void **views)
{
    return dram_lookup(v->dram, v->space, ordinals, n, extents, views, NULL, NULL);
}

bool tiers_variant_put(struct tiers_variant *v, uint64_t ordinal, const void *bytes, uint32_t len, uint32_t raw_len, uint8_t codec)
{
    struct cached c = {bytes, len, raw_len, 0, codec};
    return dram_admit(v->dram, v->space, ordinal, &c, NULL) == LARDER_OK;
}

bool tiers_variant_full(const struct tiers_variant *v) { return dram_closed(v->dram); }

void tiers_variant_stats(const struct tiers_variant *v, struct tiers_variant_stats *out)
{
    struct dram_stats d;
    dram_stats(v->dram, &d);
    *out = (struct tiers_variant_stats){d.budget, d.used, d.entries, d.refusals, !share_private(v->share), share_joined(v->share),
                                        v->warning[0] ? v->warning : NULL};
}
