/* SPDX-License-Identifier: Apache-2.0 */
/*
 * generation.c - the key index of a new generation, and what becomes of duplicate keys.
 *
 *     footers of the new shards --keys--> external sort --+
 *     trailing small older parts ----------cursors--------+--merge--> one new part
 *     the other older parts <--batched lookups-- (is a new key there already?)
 *
 * A new part absorbs the older parts before it as long as they hold at most twice the keys gathered so far, as git's reftable
 * does with its tables: sizes fall geometrically from part to part, so there are O(log N) of them, and a key is rewritten
 * O(log N) times. Absorbed files stay on disk for the generations that list them.
 *
 * A key that comes twice is an error, or with drop_duplicates the later sample goes. Its shard is then written anew without it,
 * and since ordinals move by that, the index is built a second time; the usual case of no duplicates costs one pass. Until
 * everything has succeeded the manifest is as it was, and the old shards stay on disk in any case: an interrupted session resumes from them,
 * a finished one sweeps them away.
 *
 * Of a bucket the part is built in the dataset's folder on this machine and then uploaded; the folder below index/ there belongs to
 * the session that holds the lock, so that what an earlier one left is cleared away first. Older parts are read SST by SST.
 *
 * Memory: SORT_BYTES, one batch of keys, and a few bytes a shard; of a bucket also the keys of KEYS_AHEAD shards. One thread; of a
 * bucket KEYS_AHEAD more while keys are fetched, and UPLOADS more while a part is uploaded.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/store_int.h"

enum {
    SORT_BYTES = 64 << 20,
    DROP_SORT_BYTES = 4 << 20,
    CACHE_BYTES = 32 << 20,
    BATCH = 256,
    KEYS_AHEAD = 4,         /* shards of a bucket whose keys are fetched at once, and held */
    UPLOADS = 4,            /* files of a part under way at once */
    UPLOAD_CHUNK = 1 << 20,
    GROWTH = 2,             /* an older part of at most this many times the keys gathered is absorbed */
    FIRST_COUNTER = 1 << 20 /* of rewritten shards, far from those of the packer with the same run */
};

/* A shard written anew without its duplicates. */
struct swap { size_t at; struct shard_ref ref; bool empty; };

/* One call of generation_index. */
struct gen {
    struct store_io *io;
    const char *root, *dir;            /* dir: root/index */
    const struct manifest *meta;       /* the caller's: generation, schema... */
    struct shard_ref *shards;          /* the new list; names of unchanged ones are borrowed from meta */
    size_t n_shards, first_new;
    uint64_t lo, samples;              /* ordinals of the new shards: [lo, samples) */
    const struct index_part *parts;    /* older ones that count */
    size_t n_parts, n_kept;            /* parts [0, n_kept) stay as they are */
    uint64_t run;
    uint32_t counter;
    const struct index_policy *policy;
    struct swap *swaps;
    size_t n_swaps, cap_swaps;
};

/* The new part's keys as they are brought together. */
struct merge {
    struct gen *g;
    struct extsort *sorted;
    struct index *kept;
    struct cursor_head { struct index_cursor *c; const void *key; size_t len; uint64_t ordinal; bool end; } *heads;
    size_t n_heads;
    /* new keys that are no duplicates among themselves nor of kept parts */
    uint8_t *arena; /* BATCH keys and one before them */
    const void *keys[BATCH];
    size_t lens[BATCH];
    uint64_t ordinals[BATCH], found[BATCH];
    size_t n, at;
    bool sorted_end;
    uint8_t last[LARDER_KEY_MAX]; /* the newest key taken from the sort */
    size_t last_len;
    uint64_t last_ordinal;
    int advance;                  /* whose key was returned: a head, or -1 the new keys, or -2 nobody's */
    struct extsort *drops;        /* (shard, slot) of duplicates; NULL: they are an error */
    uint64_t dropped;
};

/* ---- duplicates ---- */

static size_t shard_of(const struct gen *g, uint64_t ordinal)
{
    size_t lo = 0, hi = g->n_shards;

    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (g->shards[mid].base <= ordinal)
            lo = mid;
        else
            hi = mid;
    }
    return lo; /* never an empty shard: the next one, with the same base, is found instead */
}

static int put_drop(struct extsort *drops, size_t shard, uint64_t slot, struct larder_error *err)
{
    uint8_t key[8];

    put_u32(key, __builtin_bswap32((uint32_t)shard));
    put_u32(key + 4, __builtin_bswap32((uint32_t)slot));
    return extsort_add(drops, key, sizeof(key), NULL, 0, err);
}

/* Sample `later` has the key of sample `first`. */
static int duplicate(struct merge *m, const void *key, size_t len, uint64_t first, uint64_t later, struct larder_error *err)
{
    const struct gen *g = m->g;
    char text[256], why[160];

    if (first >= later || later >= g->samples)
        return err_set(err, LARDER_ECORRUPT, "key '%s' has ordinal %llu in an older part of the index; larder repair rebuilds it",
                       key_text(key, len, text), (unsigned long long)first);
    size_t a = shard_of(g, first), b = shard_of(g, later);
    unsigned long long slot_a = first - g->shards[a].base, slot_b = later - g->shards[b].base;
    if (!m->drops)
        return err_set(err, LARDER_EEXIST,
                       "duplicate key '%s': samples at shard %s slot %llu and shard %s slot %llu",
                       key_text(key, len, text), g->shards[a].name, slot_a, g->shards[b].name, slot_b);
    m->dropped++;
    if (g->policy->notice) {
        snprintf(why, sizeof(why), "duplicate key: the sample at shard %s slot %llu has it", g->shards[a].name, slot_a);
        g->policy->notice(g->policy->user, key_text(key, len, text), why);
    }
    return put_drop(m->drops, b, slot_b, err);
}

/* ---- the merge ---- */

/* Up to BATCH keys of the sort, the first of each run of equal ones. */
static int take_batch(struct merge *m, struct larder_error *err)
{
    const void *key, *payload;
    size_t len, payload_len;
    int rc;

    m->n = 0;
    while (m->n < BATCH) {
        if ((rc = extsort_next(m->sorted, &key, &len, &payload, &payload_len, err))) {
            m->sorted_end = rc == LARDER_END;
            return rc == LARDER_END ? LARDER_OK : rc;
        }
        uint64_t ordinal = get_u64(payload);
        if (m->last_len > 0 && bytes_cmp(m->last, m->last_len, key, len) == 0) {
            if ((rc = duplicate(m, key, len, m->last_ordinal, ordinal, err)))
                return rc;
            continue;
        }
        memcpy(m->last, key, len);
        m->last_len = len;
        m->last_ordinal = ordinal;
        uint8_t *at = m->arena + m->n * LARDER_KEY_MAX;
        memcpy(at, key, len);
        m->keys[m->n] = at;
        m->lens[m->n] = len;
        m->ordinals[m->n++] = ordinal;
    }
    return LARDER_OK;
}

/* The next new keys that kept parts do not have. n == 0 after the last. */
static int fill(struct merge *m, struct larder_error *err)
{
    int rc = LARDER_OK;

    m->at = m->n = 0;
    while (!rc && m->n == 0 && !m->sorted_end) {
        if ((rc = take_batch(m, err)) || !m->kept || m->n == 0)
            continue;
        if ((rc = index_lookup(m->kept, m->keys, m->lens, m->n, m->found, err)))
            continue;
        size_t left = 0;
        for (size_t i = 0; !rc && i < m->n; i++) {
            if (m->found[i] != LARDER_NO_ORDINAL) {
                rc = duplicate(m, m->keys[i], m->lens[i], m->found[i], m->ordinals[i], err);
                continue;
            }
            m->keys[left] = m->keys[i];
            m->lens[left] = m->lens[i];
            m->ordinals[left++] = m->ordinals[i];
        }
        m->n = left;
    }
    return rc;
}

static int head_next(struct cursor_head *h, struct larder_error *err)
{
    int rc = index_cursor_next(h->c, &h->key, &h->len, &h->ordinal, err);

    h->end = rc == LARDER_END;
    return rc == LARDER_END ? LARDER_OK : rc;
}

/* Leaves the key that was returned last. */
static int leave(struct merge *m, struct larder_error *err)
{
    int who = m->advance;

    m->advance = -2;
    if (who >= 0)
        return head_next(&m->heads[who], err);
    if (who == -1)
        m->at++;
    return LARDER_OK;
}

/* The smallest key at hand, without leaving it: m->advance tells whose. A new key that an absorbed part has goes. */
static int pick(struct merge *m, const void **key, size_t *len, uint64_t *ordinal, struct larder_error *err)
{
    int rc = LARDER_OK;

    if (m->at == m->n && !m->sorted_end && (rc = fill(m, err)))
        return rc;
    bool mine = m->at < m->n;
    int best = mine ? -1 : -2;
    if (mine) {
        *key = m->keys[m->at];
        *len = m->lens[m->at];
        *ordinal = m->ordinals[m->at];
    }
    for (size_t i = 0; i < m->n_heads; i++) {
        struct cursor_head *h = &m->heads[i];
        int c = h->end ? 1 : best == -2 ? -1 : bytes_cmp(h->key, h->len, *key, *len);
        if (c == 0 && best >= 0)
            return err_set(err, LARDER_ECORRUPT, "two parts of the index have the same key; larder repair rebuilds it");
        if (c == 0) {
            if ((rc = duplicate(m, h->key, h->len, h->ordinal, *ordinal, err)))
                return rc;
            m->at++;
        }
        if (c <= 0) {
            best = (int)i;
            *key = h->key;
            *len = h->len;
            *ordinal = h->ordinal;
        }
    }
    m->advance = best;
    return best == -2 ? LARDER_END : LARDER_OK;
}

/* index_next_fn. Once there is a duplicate to drop this index will not be used: the rest is only searched for more. */
static int merge_next(void *user, const void **key, size_t *len, uint64_t *ordinal, struct larder_error *err)
{
    struct merge *m = user;
    int rc;

    do {
        if ((rc = leave(m, err)) == LARDER_OK)
            rc = pick(m, key, len, ordinal, err);
    } while (rc == LARDER_OK && m->dropped > 0);
    return rc;
}

static void merge_close(struct merge *m)
{
    for (size_t i = 0; i < m->n_heads; i++)
        index_cursor_close(m->heads[i].c);
    free(m->heads);
    free(m->arena);
    index_close(m->kept);
    extsort_free(m->sorted);
    free(m);
}

/* ---- keys of the new shards ---- */

static int add_key(struct merge *m, const struct shard_ref *ref, uint32_t slot, const void *key, size_t len, struct larder_error *err)
{
    uint8_t ordinal[8];

    put_u64(ordinal, ref->base + slot);
    return extsort_add(m->sorted, key, len, ordinal, sizeof(ordinal), err);
}

/* Goes through a shard's keys: to the sort, or, with keys, behind each other into that, each after its length. */
static int scan_keys(struct merge *m, const struct shard_ref *ref, struct buf *keys, struct larder_error *err)
{
    struct shard_scan *scan;
    struct scan_item item;
    uint64_t slots = 0;
    int rc = shard_scan_open(m->g->io, ref, SCAN_KEYS, &scan, err);

    if (rc)
        return rc;
    while ((rc = shard_scan_next(scan, &item, err)) == LARDER_OK) {
        uint8_t len[2];
        put_u16(len, (uint16_t)item.key_len);
        if (item.key_len == 0 || item.key_len > LARDER_KEY_MAX || item.slot >= ref->samples)
            rc = err_set(err, LARDER_ECORRUPT, "shard %s slot %u: a key of %zu bytes", ref->name, item.slot, item.key_len);
        else if (!keys)
            rc = add_key(m, ref, item.slot, item.key, item.key_len, err);
        else if (!(rc = buf_append(keys, len, sizeof(len), err)))
            rc = buf_append(keys, item.key, item.key_len, err);
        if (rc)
            break;
        slots++;
    }
    shard_scan_close(scan);
    if (rc == LARDER_END && slots != ref->samples)
        return err_set(err, LARDER_ECORRUPT, "shard %s: %llu keys for %u samples", ref->name, (unsigned long long)slots, ref->samples);
    return rc == LARDER_END ? LARDER_OK : rc;
}

/* Shards of a bucket whose keys are fetched side by side. */
struct ahead { struct merge *m; size_t first, n; struct buf keys[KEYS_AHEAD]; };

static int ahead_worker(void *user, unsigned worker, const atomic_bool *stop, struct larder_error *err)
{
    struct ahead *a = user;

    (void)stop;
    return scan_keys(a->m, &a->m->g->shards[a->first + worker], &a->keys[worker], err);
}

static int add_ahead(struct ahead *a, struct larder_error *err)
{
    int rc = crew_run((unsigned)a->n, ahead_worker, NULL, a, err);

    for (size_t i = 0; i < a->n; i++) {
        const struct shard_ref *ref = &a->m->g->shards[a->first + i];
        const uint8_t *p = a->keys[i].data;
        for (uint32_t slot = 0; !rc && slot < ref->samples; slot++, p += 2 + get_u16(p))
            rc = add_key(a->m, ref, slot, p + 2, get_u16(p), err);
        buf_release(&a->keys[i]);
    }
    return rc;
}

/* In the order of their ordinals, which the sort keeps for equal keys. */
static int add_shards(struct merge *m, struct larder_error *err)
{
    const struct gen *g = m->g;
    int rc = LARDER_OK;

    for (size_t i = g->first_new; !rc && i < g->n_shards;) {
        struct ahead a = {.m = m, .first = i, .n = io_is_local(g->io) ? 1 : MIN(g->n_shards - i, (size_t)KEYS_AHEAD)};
        rc = a.n == 1 ? scan_keys(m, &g->shards[i], NULL, err) : add_ahead(&a, err);
        i += a.n;
    }
    return rc;
}

static int merge_open(struct gen *g, struct extsort *drops, struct merge **out, struct larder_error *err)
{
    struct merge *m = calloc(1, sizeof(*m));
    int rc;

    if (!(*out = m))
        return err_nomem(err, sizeof(*m), "merging keys");
    *m = (struct merge){.g = g, .drops = drops, .advance = -2};
    m->arena = malloc((size_t)BATCH * LARDER_KEY_MAX);
    m->heads = calloc(g->n_parts - g->n_kept + 1, sizeof(*m->heads));
    if (!m->arena || !m->heads)
        return err_nomem(err, (size_t)BATCH * LARDER_KEY_MAX, "merging keys");
    if ((rc = extsort_new(g->dir, SORT_BYTES, &m->sorted, err)))
        return rc;
    rc = add_shards(m, err);
    if (!rc)
        rc = extsort_sort(m->sorted, err);
    if (!rc && g->n_kept > 0)
        rc = index_open(g->io, g->parts, g->n_kept, CACHE_BYTES, &m->kept, err);
    for (size_t i = g->n_kept; !rc && i < g->n_parts; i++) {
        struct cursor_head *h = &m->heads[m->n_heads];
        if ((rc = index_cursor_open(g->io, &g->parts[i], &h->c, err)))
            break;
        m->n_heads++;
        rc = head_next(h, err);
    }
    return rc;
}

/* ---- one pass ---- */

/* A name below index/ that is not taken: the run's own, or one derived from it after a run that was killed. */
static int part_name(const struct gen *g, char out[64], struct larder_error *err)
{
    uint64_t run = g->run;

    for (int i = 0; i < 1000; i++) {
        AUTO_BUF struct buf path = BUF_INIT;
        struct stat st;
        snprintf(out, 64, "%llu-%016llx", (unsigned long long)g->meta->generation, (unsigned long long)run);
        int rc = buf_printf(&path, err, "%s/%s", g->dir, out);
        if (rc)
            return rc;
        if (lstat((const char *)path.data, &st))
            return LARDER_OK;
        run = hash64(run, "index", 5);
    }
    return err_set(err, LARDER_EEXIST, "%s: every name tried is taken; larder gc cleans up", g->dir);
}

static void plan(struct gen *g)
{
    uint64_t keys = g->samples - g->lo;

    for (g->n_kept = g->n_parts; g->n_kept > 0 && g->parts[g->n_kept - 1].keys <= GROWTH * keys; g->n_kept--)
        keys += g->parts[g->n_kept - 1].keys;
}

/* The files of a part as they were built, in a bucket's folder on this machine. */
static void part_forget(const struct gen *g, const struct index_part *p)
{
    AUTO_BUF struct buf dir = BUF_INIT;
    if (io_is_local(g->io) || buf_printf(&dir, NULL, "%s/%s", g->dir, p->dir))
        return;
    for (size_t i = 0; i < p->n_files; i++) {
        AUTO_BUF struct buf path = BUF_INIT;
        if (!buf_printf(&path, NULL, "%s/%s", (const char *)dir.data, p->files[i].name))
            unlink((const char *)path.data);
    }
    rmdir((const char *)dir.data);
}

/* Removes the files of a part that nobody lists. */
static void part_remove(const struct gen *g, struct index_part *p)
{
    part_forget(g, p);
    for (size_t i = 0; i < p->n_files; i++) {
        AUTO_BUF struct buf name = BUF_INIT;
        if (!buf_printf(&name, NULL, "index/%s/%s", p->dir, p->files[i].name))
            g->io->ops->remove(g->io, (const char *)name.data, NULL);
    }
    index_part_release(p);
}

/* ---- a part of a bucket ---- */

struct upload { const struct gen *g; const struct index_part *p; _Atomic size_t next; };

/* Streams one file; its bytes are checked against what was built. */
static int upload_file(const struct upload *u, const struct index_file *f, struct larder_error *err)
{
    const struct store_io_ops *ops = u->g->io->ops;
    AUTO_BUF struct buf path = BUF_INIT, name = BUF_INIT;
    AUTO_FREE uint8_t *data = malloc(UPLOAD_CHUNK);
    struct store_out *out;
    uint32_t crc = 0;
    int rc = data ? buf_printf(&path, err, "%s/%s/%s", u->g->dir, u->p->dir, f->name) : err_nomem(err, UPLOAD_CHUNK, "an index file");

    if (rc || (rc = buf_printf(&name, err, "index/%s/%s", u->p->dir, f->name)))
        return rc;
    AUTO_FD int fd = open((const char *)path.data, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be read", (const char *)path.data);
    if ((rc = ops->begin(u->g->io, (const char *)name.data, &out, err)))
        return rc;
    for (uint64_t at = 0; !rc && at < f->size;) {
        size_t n = (size_t)MIN(f->size - at, (uint64_t)UPLOAD_CHUNK);
        if (read_fully(fd, data, n, at) != (ssize_t)n)
            rc = err_sys(err, LARDER_EIO, errno, "%s: cannot be read", (const char *)path.data);
        else
            rc = ops->write(out, data, n, err);
        crc = crc32c(crc, data, n);
        at += n;
    }
    if (!rc && crc != f->crc)
        rc = err_set(err, LARDER_EIO, "%s: the disk gives other bytes than were written", (const char *)path.data);
    if (!rc)
        return ops->finish(out, err);
    ops->abort(out);
    return rc;
}

static int upload_worker(void *user, unsigned worker, const atomic_bool *stop, struct larder_error *err)
{
    struct upload *u = user;
    int rc = LARDER_OK;

    (void)worker;
    for (size_t i; !rc && !atomic_load(stop) && (i = atomic_fetch_add(&u->next, 1)) < u->p->n_files;)
        rc = upload_file(u, &u->p->files[i], err);
    return rc;
}

/* Puts a part that was built on this machine where the dataset is. */
static int part_publish(const struct gen *g, const struct index_part *p, struct larder_error *err)
{
    struct upload u = {.g = g, .p = p};

    if (io_is_local(g->io) || p->n_files == 0)
        return LARDER_OK;
    int rc = crew_run((unsigned)MIN(p->n_files, (size_t)UPLOADS), upload_worker, NULL, &u, err);
    part_forget(g, p);
    return rc;
}

static int clear_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type;
    if (at->level > 0)
        remove(path);
    return 0;
}

/* Makes the folder where the part is built. */
static int index_folder(const struct gen *g, struct larder_error *err)
{
    if (!io_is_local(g->io))
        nftw(g->dir, clear_entry, 16, FTW_DEPTH | FTW_PHYS);
    if (mkdir(g->dir, 0777) && errno != EEXIST)
        return err_sys(err, LARDER_EIO, errno, "%s: mkdir", g->dir);
    return LARDER_OK;
}

/* ---- one pass, continued ---- */

/* Builds the new part. With drops: duplicates are put there and counted, and when there are any *part is empty. */
static int build_part(struct gen *g, struct extsort *drops, struct index_part *part, uint64_t *dropped, struct larder_error *err)
{
    struct merge *m;
    char dir[64];
    int rc = merge_open(g, drops, &m, err);

    *part = (struct index_part){0};
    if (!rc && !(rc = part_name(g, dir, err)))
        rc = index_build(g->root, dir, merge_next, m, part, err);
    *dropped = m ? m->dropped : 0;
    if (m)
        merge_close(m);
    if (rc)
        return rc;
    if (*dropped > 0) {
        part_remove(g, part);
        *part = (struct index_part){0};
        return LARDER_OK;
    }
    part->lo = g->n_kept < g->n_parts ? g->parts[g->n_kept].lo : g->lo;
    part->hi = g->samples;
    if (part->keys == part->hi - part->lo) {
        if ((rc = part_publish(g, part, err)))
            part_remove(g, part);
        return rc;
    }
    rc = err_set(err, LARDER_ECORRUPT, "an index of %llu keys for %llu samples; larder repair rebuilds it", (unsigned long long)part->keys,
                 (unsigned long long)(part->hi - part->lo));
    part_remove(g, part);
    return rc;
}

/* ---- writing shards anew ---- */

/* The duplicates to drop, in order. */
struct drops { struct extsort *sorted; bool end; size_t shard; uint32_t slot; };

static int drops_next(struct drops *d, struct larder_error *err)
{
    const void *key, *payload;
    size_t len, payload_len;
    int rc = extsort_next(d->sorted, &key, &len, &payload, &payload_len, err);

    d->end = rc == LARDER_END;
    if (rc == LARDER_OK) {
        d->shard = __builtin_bswap32(get_u32(key));
        d->slot = __builtin_bswap32(get_u32((const uint8_t *)key + 4));
    }
    return rc == LARDER_END ? LARDER_OK : rc;
}

static int free_shard_name(struct gen *g, char name[32], struct larder_error *err)
{
    char path[320];
    uint64_t size, mtime;
    int rc;

    do {
        shard_name_new(g->run, g->counter++, name);
        shard_path(name, path);
        rc = g->io->ops->stat(g->io, path, &size, &mtime, err);
    } while (rc == LARDER_OK);
    return rc == LARDER_ENOTFOUND ? LARDER_OK : rc;
}

/* Copies what d does not list of one shard; d stands at its first, and then behind its last. */
static int copy_rest(struct gen *g, const struct shard_ref *ref, struct shard_writer *w, struct drops *d, struct larder_error *err)
{
    struct shard_scan *scan;
    struct scan_item item;
    size_t at = d->shard;
    int rc = shard_scan_open(g->io, ref, SCAN_KEYS | SCAN_RECORDS, &scan, err);

    if (rc)
        return rc;
    while ((rc = shard_scan_next(scan, &item, err)) == LARDER_OK) {
        if (!d->end && d->shard == at && d->slot == item.slot) {
            rc = drops_next(d, err);
        } else {
            const struct extent *e = &item.extent;
            struct record_ref r = {item.stored, e->stored_len, e->raw_len, e->crc, e->codec};
            rc = shard_writer_add_stored(w, item.key, item.key_len, &r, err);
        }
        if (rc)
            break;
    }
    shard_scan_close(scan);
    return rc == LARDER_END ? LARDER_OK : rc;
}

/* The shard that d stands at goes through a writer; nothing is left of it when all its samples go. */
static int rewrite_shard(struct gen *g, struct drops *d, struct larder_error *err)
{
    const struct shard_ref *old = &g->shards[d->shard];
    AUTO_BUF struct buf dict = BUF_INIT;
    struct footer footer = {g->io, old->name, old, NULL, 0};
    struct shard_info info;
    struct shard_writer *w;
    char name[32];
    int rc = GROW(g->swaps, g->cap_swaps, g->n_swaps + 1, err);

    if (rc || (rc = shard_inspect(g->io, old->name, &info, NULL, err)))
        return rc;
    struct swap s = {.at = d->shard};
    struct shard_params p = {.meta = g->meta, .unit = old->unit, .sub = old->sub, .revision = info.revision + 1,
                             .generation = info.generation};
    memcpy(p.session, info.session, sizeof(p.session));
    shard_info_release(&info);
    if (old->dict_id && (rc = footer_section(&footer, SECTION_DICT, &dict, err)))
        return rc;
    p.dict = dict.data;
    p.dict_len = dict.len;
    if ((rc = free_shard_name(g, name, err)) || (rc = shard_writer_open(g->io, name, &p, &w, err)))
        return rc;
    rc = copy_rest(g, old, w, d, err);
    s.empty = shard_writer_samples(w) == 0;
    if (rc || s.empty)
        shard_writer_abort(w);
    else
        rc = shard_writer_finish(w, &s.ref, err);
    if (!rc)
        g->swaps[g->n_swaps++] = s;
    return rc;
}

static void set_bases(struct gen *g)
{
    g->samples = 0;
    g->lo = 0;
    for (size_t i = 0; i < g->n_shards; i++) {
        if (i == g->first_new)
            g->lo = g->samples;
        g->shards[i].base = g->samples;
        g->samples += g->shards[i].samples;
    }
    if (g->first_new == g->n_shards)
        g->lo = g->samples;
}

/* Puts the new shards in the list, in place of the old ones. */
static void apply_swaps(struct gen *g)
{
    size_t n = 0, k = 0;

    for (size_t i = 0; i < g->n_shards; i++) {
        bool swapped = k < g->n_swaps && g->swaps[k].at == i;
        if (!swapped)
            g->shards[n++] = g->shards[i];
        else if (!g->swaps[k].empty)
            g->shards[n++] = g->swaps[k].ref;
        k += swapped;
    }
    g->n_shards = n;
    set_bases(g);
}

static int drop_duplicates(struct gen *g, struct extsort *sorted, struct larder_error *err)
{
    struct drops d = {.sorted = sorted};
    int rc = extsort_sort(sorted, err);

    if (!rc)
        rc = drops_next(&d, err);
    while (!rc && !d.end) {
        size_t shard = d.shard;
        rc = rewrite_shard(g, &d, err);
        if (!rc && !d.end && d.shard <= shard)
            rc = err_set(err, LARDER_ECORRUPT, "shard %s changed while it was indexed", g->shards[shard].name);
    }
    if (!rc)
        apply_swaps(g);
    return rc;
}

/* ---- the whole ---- */

static void shard_remove(struct gen *g, const char *name)
{
    char path[320];

    shard_path(name, path);
    g->io->ops->remove(g->io, path, NULL);
}

/* After a failure: the new shards go, the old ones stay. */
static void undo(struct gen *g)
{
    for (size_t i = 0; i < g->n_swaps; i++) {
        if (!g->swaps[i].empty)
            shard_remove(g, g->swaps[i].ref.name);
        shard_ref_release(&g->swaps[i].ref);
    }
    free(g->shards);
    free(g->swaps);
}

/* Hands the new lists to m. Cannot fail. parts: [n_parts + 1], moved. */
static void finish(struct gen *g, struct manifest *m, struct index_part *parts, struct index_part *part)
{
    for (size_t i = 0; i < g->n_swaps; i++)
        shard_ref_release(&m->shards[g->swaps[i].at]);
    free(m->shards);
    m->shards = g->shards;
    m->n_shards = g->n_shards;
    m->cap_shards = MAX(g->n_shards, (size_t)1);
    m->samples = g->samples;
    for (size_t i = 0; i < m->n_parts; i++) {
        if (i < g->n_kept)
            parts[i] = m->parts[i];
        else
            index_part_release(&m->parts[i]);
    }
    m->n_parts = g->n_kept;
    if (part->dir && part->hi > part->lo)
        parts[m->n_parts++] = *part;
    else if (part->dir)
        index_part_release(part);
    free(m->parts);
    m->parts = parts;
    free(g->swaps);
}

/* Builds the part; when duplicates are to go, drops them first. */
static int run(struct gen *g, struct index_part *part, uint64_t *dropped, struct larder_error *err)
{
    AUTO_BUF struct buf dir = BUF_INIT;
    struct extsort *drops = NULL;
    uint64_t again;
    int rc = buf_printf(&dir, err, "%s/index", g->root);

    g->dir = (const char *)dir.data;
    if (!rc)
        rc = index_folder(g, err);
    if (!rc && g->policy && g->policy->drop_duplicates)
        rc = extsort_new(g->dir, DROP_SORT_BYTES, &drops, err);
    if (!rc)
        rc = build_part(g, drops, part, dropped, err);
    if (!rc && *dropped > 0 && !(rc = drop_duplicates(g, drops, err))) {
        plan(g);
        if (g->samples > g->lo)
            rc = build_part(g, NULL, part, &again, err);
        else
            g->n_kept = g->n_parts; /* nothing new is left */
    }
    extsort_free(drops);
    return rc;
}

static int check_parts(const struct gen *g, struct larder_error *err)
{
    uint64_t at = 0;

    for (size_t i = 0; i < g->n_parts; i++) {
        if (g->parts[i].lo != at)
            break;
        at = g->parts[i].hi;
    }
    if (at != g->lo)
        return err_set(err, LARDER_ECORRUPT, "the index covers %llu of %llu older samples; larder repair rebuilds it",
                       (unsigned long long)at, (unsigned long long)g->lo);
    return LARDER_OK;
}

int generation_index(struct store_io *io, struct manifest *m, size_t first_new, uint64_t run_id, const struct index_policy *policy,
                     uint64_t *dropped, struct larder_error *err)
{
    struct gen g = {.io = io, .root = io_work_root(io, err), .meta = m, .n_shards = m->n_shards, .first_new = first_new,
                    .parts = m->parts, .n_parts = first_new ? m->n_parts : 0, .run = run_id, .counter = FIRST_COUNTER,
                    .policy = policy};
    struct index_part part = {0};
    uint64_t n_dropped = 0;
    int rc = LARDER_OK;

    if (!g.root)
        return err ? err->code : LARDER_EIO;
    if (first_new > m->n_shards)
        return err_set(err, LARDER_EINVAL, "shard %zu of %zu cannot be the first new one", first_new, m->n_shards);
    struct index_part *parts = calloc(g.n_parts + 1, sizeof(*parts));
    g.shards = malloc((m->n_shards + 1) * sizeof(*g.shards));
    if (!parts || !g.shards) {
        rc = err_nomem(err, (m->n_shards + 1) * sizeof(*g.shards), "a list of shards");
    } else {
        if (m->n_shards)
            memcpy(g.shards, m->shards, m->n_shards * sizeof(*g.shards));
        set_bases(&g);
        plan(&g);
        rc = check_parts(&g, err);
    }
    if (!rc && g.samples > g.lo)
        rc = run(&g, &part, &n_dropped, err);
    else
        g.n_kept = g.n_parts;
    if (rc) {
        free(parts);
        undo(&g);
        return rc;
    }
    finish(&g, m, parts, &part);
    if (dropped)
        *dropped = n_dropped;
    return LARDER_OK;
}
