/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.c - a cache: DRAM shared by the processes of a node, and directories on local disks, for any number of datasets.
 *
 * Opening joins or makes the region of the name, and opens or joins the directories. What cannot be used (a directory that another
 * group holds, a region whose members do not answer) costs a warning, not the run: a cache is an optimisation. A dataset binds to
 * it once, when its stack opens, and gets a number in each tier.
 *
 * Threads: any after opening; everything but the counters is constant then.
 */
#include <unistd.h>

#include "tiers/stack_int.h"

#define DRAM_MIN (4 * MIB)

static void warn(struct tiers_cache *c, const char *text)
{
    if (text && c->n_warnings < WARNINGS_MAX)
        snprintf(c->warnings[c->n_warnings++], sizeof(c->warnings[0]), "%s", text);
}

/* ---- DRAM ---- */

struct region { uint64_t budget, have; enum replacement replacement; };

/* Only who makes the region is held to the limit: to whoever joins, its memory looks taken. */
static int region_init(void *base, uint64_t bytes, void *user, struct larder_error *err)
{
    const struct region *r = user;
    if (r->budget > r->have / 10 * 8)
        return err_set(err, LARDER_EINVAL, "a DRAM cache of %llu bytes is more than 80%% of the memory available (%llu bytes, "
                       "cgroup limit included): ask for %llu at most", (unsigned long long)r->budget, (unsigned long long)r->have,
                       (unsigned long long)(r->have / 10 * 8));
    return dram_init(base, bytes, r->replacement, err);
}

int cache_arena_open(const char *name, uint64_t budget, enum replacement replacement, struct share **share, struct dram **dram,
                     struct larder_error *err)
{
    struct region r = {budget, memory_available(), replacement};
    struct share_options so = {name, 0, region_init, &r, NULL};
    *share = NULL;
    *dram = NULL;
    if (budget < DRAM_MIN)
        return err_set(err, LARDER_EINVAL, "a DRAM cache of %llu bytes is too small: the least is %zu", (unsigned long long)budget,
                       DRAM_MIN);
    if (budget > UINT64_MAX / 16)
        return err_set(err, LARDER_EINVAL, "a DRAM cache of %llu bytes is more than 80%% of the memory available (%llu bytes)",
                       (unsigned long long)budget, (unsigned long long)r.have);
    so.bytes = dram_region_bytes(budget);
    int rc = share_open(&so, share, err);
    return rc ? rc : dram_open(*share, dram, err);
}

void cache_arena_close(struct share *share, struct dram *dram)
{
    dram_close(dram);
    if (share)
        share_close(share);
}

/* Who joins takes the arena as it is, and is told. */
static void take_as_it_is(struct tiers_cache *c, uint64_t budget, enum replacement replacement)
{
    char text[256];
    struct dram_stats d;
    dram_stats(c->dram, &d);
    if (c->o.dram_bytes != LARDER_DRAM_DEFAULT && d.budget != budget / 4096 * 4096) {
        snprintf(text, sizeof(text), "cache '%s' has a budget of %llu bytes, not the %llu asked for: who makes it sets it", c->name,
                 (unsigned long long)d.budget, (unsigned long long)budget);
        warn(c, text);
    }
    if (dram_replacement(c->dram) != replacement) {
        snprintf(text, sizeof(text), "cache '%s' has replacement %s: who makes it sets it", c->name,
                 replacement == REPLACE_FIFO ? "none, not FIFO" : "FIFO, not none");
        warn(c, text);
        c->o.replacement = replacement == REPLACE_FIFO ? LARDER_REPLACE_NONE : LARDER_REPLACE_FIFO;
    }
}

static int open_dram(struct tiers_cache *c, const char *name, struct larder_error *err)
{
    enum replacement replacement = (enum replacement)c->o.replacement;
    uint64_t budget = c->o.dram_bytes;
    if (budget == LARDER_DRAM_OFF)
        return LARDER_OK;
    if (budget == LARDER_DRAM_DEFAULT) /* a quarter of what there is */
        budget = MAX(memory_available() / 4, (uint64_t)DRAM_MIN);
    int rc = cache_arena_open(name, budget, replacement, &c->share, &c->dram, err);
    if (rc)
        return rc;
    if (c->o.no_pin)
        dram_no_pin(c->dram);
    else
        dram_cuda(c->dram, c->o.cuda_device);
    warn(c, share_warning(c->share));
    take_as_it_is(c, budget, replacement);
    return rc;
}

/* ---- NVMe ---- */

/* Who joins takes a directory as it is, too. */
static void take_dir_as_it_is(struct tiers_cache *c, const struct nvme *n, const struct larder_cache_nvme *asked)
{
    char text[256];
    struct nvme_stats s;
    nvme_stats(n, &s);
    if (s.budget != asked->bytes) {
        snprintf(text, sizeof(text), "%.120s: has a limit of %llu bytes, not the %llu asked for: who opens it first sets it", asked->dir,
                 (unsigned long long)s.budget, (unsigned long long)asked->bytes);
        warn(c, text);
    }
    if (nvme_replacement(n) != (enum replacement)c->o.replacement) {
        snprintf(text, sizeof(text), "%.120s: has replacement %s: who opens it first sets it", asked->dir,
                 nvme_replacement(n) == REPLACE_NONE ? "none, not FIFO" : "FIFO, not none");
        warn(c, text);
        if (!c->dram)
            c->o.replacement = nvme_replacement(n) == REPLACE_NONE ? LARDER_REPLACE_NONE : LARDER_REPLACE_FIFO;
    }
}

static int open_nvme(struct tiers_cache *c, const struct larder_cache_options *o, struct larder_error *err)
{
    struct larder_error e = {0};
    for (size_t i = 0; i < o->n_nvme; i++) {
        struct nvme_options no = {o->nvme[i].dir, o->nvme[i].bytes, (enum replacement)o->replacement, true, o->name};
        int rc = nvme_open(&no, &c->nvme[c->n_nvme], &e);
        if (rc == LARDER_ENOMEM || rc == LARDER_EINVAL) { /* asked for in vain; else passed by */
            if (err)
                *err = e;
            return rc;
        }
        if (!rc)
            snprintf(c->slow_text[c->n_nvme], sizeof(c->slow_text[0]), "%.160s: its disk answers later than the dataset itself: it was "
                     "passed by for a while", o->nvme[i].dir);
        if (rc)
            warn(c, e.message);
        else
            take_dir_as_it_is(c, c->nvme[c->n_nvme++], &o->nvme[i]);
    }
    return LARDER_OK;
}

/* ---- open and close ---- */

static int options_check(const struct larder_cache_options *o, struct larder_error *err)
{
    if (o->replacement != LARDER_REPLACE_NONE && o->replacement != LARDER_REPLACE_FIFO)
        return err_set(err, LARDER_EINVAL, "larder_cache_options.replacement: %d is no enum larder_replacement", o->replacement);
    if (o->cuda_device < 0)
        return err_set(err, LARDER_EINVAL, "larder_cache_options.cuda_device is %d: LARDER_CUDA_IF_USED or LARDER_CUDA_DEVICE(n)", o->cuda_device);
    if (o->n_nvme > NVME_DIRS_MAX)
        return err_set(err, LARDER_EINVAL, "larder_cache_options.n_nvme: %zu directories; the most is %u", o->n_nvme, NVME_DIRS_MAX);
    if (o->n_nvme && !o->nvme)
        return err_set(err, LARDER_EINVAL, "larder_cache_options: nvme is NULL and n_nvme %zu", o->n_nvme);
    for (size_t i = 0; i < o->n_nvme; i++)
        if (!o->nvme[i].dir || !*o->nvme[i].dir || !o->nvme[i].bytes)
            return err_set(err, LARDER_EINVAL, "larder_cache_options.nvme[%zu]: a directory and its size in bytes are needed", i);
    if (o->name && (!*o->name || strlen(o->name) > 64))
        return err_set(err, LARDER_EINVAL, "larder_cache_options.name: 1 to 64 characters are needed");
    return LARDER_OK;
}

int tiers_cache_open(const struct larder_cache_options *o, struct tiers_cache **out, struct larder_error *err)
{
    *out = NULL;
    int rc = options_check(o, err);
    if (rc)
        return rc;
    struct tiers_cache *c = calloc(1, sizeof(*c));
    if (!c)
        return err_nomem(err, sizeof(*c), "a cache");
    c->pid = getpid();
    c->o = *o;
    c->o.name = NULL;
    c->o.nvme = NULL;
    c->named = o->name != NULL;
    snprintf(c->name, sizeof(c->name), "%s", o->name ? o->name : "private");
    rc = open_dram(c, o->name, err);
    if (!rc)
        rc = open_nvme(c, o, err);
    if (rc) {
        tiers_cache_close(c);
        return rc;
    }
    *out = c;
    return LARDER_OK;
}

/* In a forked child the tiers hold threads and locks of the parent: only our own memory is given back. */
void tiers_cache_close(struct tiers_cache *c)
{
    if (!c)
        return;
    if (c->pid == getpid()) {
        for (unsigned i = 0; i < c->n_nvme; i++)
            nvme_close(c->nvme[i]);
        cache_arena_close(c->share, c->dram);
    }
    free(c);
}

const struct tiers_cache *tiers_cache_of(const struct tiers *t)
{
    return t->bound && t->bound->cache != t->empty ? t->bound->cache : NULL;
}

const char *tiers_cache_name(const struct tiers *t)
{
    const struct tiers_cache *c = tiers_cache_of(t);
    return !c ? "default" : c->named ? c->name : NULL;
}

int tiers_cache_check(const struct tiers_cache *c, struct larder_error *err)
{
    if (!c)
        return err_set(err, LARDER_EINVAL, "cache is NULL");
    if (c->pid != getpid())
        return err_set(err, LARDER_EFORK, "cache: opened by process %d and used in its child %d: open it again there", (int)c->pid,
                       (int)getpid());
    return LARDER_OK;
}

/* ---- datasets ---- */

/* Of the shards' contents. Copies of a dataset that were appended to apart have one lineage and different samples of one ordinal.
 * NVMe has each record compared with the origin's table; a hit in DRAM asks nobody, so there a state of shards is a space. */
uint64_t cache_contents(const struct manifest *m)
{
    uint64_t h = 0;
    for (size_t i = 0; i < m->n_shards; i++) {
        const struct shard_ref *s = &m->shards[i];
        const uint64_t words[] = {s->size, s->footer_off, s->samples, s->tag, s->trailer_crc, s->dict_id};
        h = hash64(h, words, sizeof(words));
    }
    return h;
}

void cache_unbind(struct bound *b)
{
    if (!b)
        return;
    ahead_free(b->ahead);
    free(b);
}

int cache_bind(struct tiers_cache *c, const struct manifest *m, bool local, struct bound **out, struct larder_error *err)
{
    struct cache_space space = {.variant = 0}, state;
    struct larder_error e = {0};
    struct nvme_stats n;
    uint64_t room = 0, stored = 0;
    struct bound *b = calloc(1, sizeof(*b));
    *out = NULL;
    if (!b)
        return err_nomem(err, sizeof(*b), "a dataset's place in the cache");
    memcpy(space.uuid, m->uuid, sizeof(space.uuid));
    memcpy(space.lineage, m->lineage, sizeof(space.lineage));
    state = space;
    state.variant = cache_contents(m);
    b->cache = c;
    b->fill_nvme = !local || c->o.copy_local;
    if (c->dram) {
        b->dram = dram_space(c->dram, &state, &b->dram_space, &e) == LARDER_OK;
        if (!b->dram && dram_reclaim(c->dram) > 0)
            b->dram = dram_space(c->dram, &state, &b->dram_space, &e) == LARDER_OK;
        if (dram_closed(c->dram))
            dram_reclaim(c->dram); /* those nobody uses any more make room */
    }
    for (unsigned i = 0; i < c->n_nvme; i++) {
        b->nvme[b->n_nvme] = c->nvme[i];
        b->nvme_at[b->n_nvme] = i;
        if (nvme_space(c->nvme[i], &space, &b->nvme_space[b->n_nvme], &e) == LARDER_OK)
            b->n_nvme++;
        nvme_stats(c->nvme[i], &n);
        room += n.budget;
    }
    for (size_t i = 0; i < m->n_shards; i++)
        stored += m->shards[i].stored_bytes;
    if (!local && (b->dram || b->n_nvme) && c->o.replacement == LARDER_REPLACE_NONE) {
        int rc = ahead_new(m->samples, &b->ahead, err);
        if (rc) {
            cache_unbind(b);
            return rc;
        }
    }
    b->exclusive = c->o.replacement == LARDER_REPLACE_NONE && room < stored + stored / 8 + m->samples * 64;
    *out = b;
    return LARDER_OK;
}

/* ---- statistics ---- */

void tiers_cache_stats(const struct tiers_cache *c, struct larder_cache_stats *out)
{
    *out = (struct larder_cache_stats){.struct_size = sizeof(*out)};
    struct larder_cache_tier *const tiers[TIERS] = {&out->dram, &out->nvme, &out->origin};
    for (unsigned t = 0; t < TIERS; t++)
        counter_give(&c->counter[t], tiers[t]);
    if (c->dram) {
        struct dram_stats d;
        dram_stats(c->dram, &d);
        out->dram.budget_bytes = d.budget, out->dram.used_bytes = d.used, out->dram.entries = d.entries;
        out->dram.bookkeeping_bytes = d.bookkeeping;
        out->dram.admissions = d.admissions, out->dram.refusals = d.refusals, out->dram.evictions = d.evictions;
        out->locked_bytes = d.locked;
        out->registered_bytes = d.registered;
        out->shared = !share_private(c->share);
        out->joined = share_joined(c->share);
    }
    for (unsigned i = 0; i < c->n_nvme; i++) {
        struct nvme_stats n;
        nvme_stats(c->nvme[i], &n);
        out->nvme.budget_bytes += n.budget, out->nvme.used_bytes += n.used, out->nvme.entries += n.entries;
        out->nvme.admissions += n.admissions, out->nvme.refusals += n.refusals, out->nvme.evictions += n.evictions;
        out->nvme.healed += n.healed;
        out->nvme.bookkeeping_bytes += n.bookkeeping;
    }
}

const char *tiers_cache_warning(const struct tiers_cache *c, size_t i)
{
    if (i < c->n_warnings)
        return c->warnings[i];
    i -= c->n_warnings;
    if (c->dram) {
        struct dram_stats d;
        dram_stats(c->dram, &d);
        if (d.lock_warning && i-- == 0)
            return d.lock_warning;
        if (d.cuda_warning && i-- == 0)
            return d.cuda_warning;
    }
    for (unsigned k = 0; k < c->n_nvme; k++) {
        struct nvme_stats n;
        nvme_stats(c->nvme[k], &n);
        if (n.warning && i-- == 0)
            return n.warning;
    }
    for (unsigned k = 0; k < c->n_nvme; k++)
        if (atomic_load_explicit(&c->slow[k], memory_order_relaxed) && i-- == 0)
            return c->slow_text[k];
    return NULL;
}

int tiers_cache_text(const struct tiers_cache *c, struct buf *out, struct larder_error *err)
{
    struct larder_cache_stats s;
    tiers_cache_stats(c, &s);
    return stats_text(c->name, &s, c->dram != NULL, c->n_nvme > 0, out, err);
}
