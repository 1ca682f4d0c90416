/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.c - reads every byte of a generation and checks the whole chain: hint and manifest, index files, shard headers, footers,
 * records, columns against records, and each key against the index.
 *
 * Keys lie in the shards in the order of samples and in the index in their own. Where the whole index can be at hand each key is looked
 * up. One of a bucket that is larger than its copies may be here is read through once, part by part, and a sum over (key, ordinal)
 * that does not depend on the order has to be the same on both sides; a part n/t of the shards then goes without.
 *
 * Shards and index files are the units that worker threads take from one counter. Damage is told through a callback under
 * one lock and does not stop anything; only I/O errors and memory do. Memory: a scan's window and a batch of keys a worker.
 */
#include "store/store_int.h"

enum { KEY_BATCH = 256 };

struct checker { /* one shard under check */
    struct shard_check *c;
    struct trailer t;
    char file[320];
    uint8_t edges[2 * STORE_PAGE]; /* the header page; the gap before the footer */
    size_t gap;
    struct decoder *d;
    struct buf scratch, columns, keys;
    struct larder_value *values;
    uint32_t batch_slots[KEY_BATCH];
    uint32_t n_batch;
};

static void tell(struct checker *k, uint64_t slot, const void *key, size_t key_len, const char *why)
{
    const struct shard_check *c = k->c;
    struct larder_damage d = {k->file, c->shard_no, slot, slot == UINT64_MAX ? LARDER_NO_ORDINAL : c->ref->base + slot, key, key_len, why};
    k->c->damaged++;
    if (c->damage)
        c->damage(c->user, &d);
}

/* io_check_fn of a shard's edges: 0 is the header page, 1 the zeros between the last record and the footer. */
struct edge { const struct checker *k; size_t which; };

static int edge_check(void *user, size_t i, struct larder_error *err)
{
    const struct edge *e = user;
    const struct checker *k = e->k;
    const uint8_t *page = k->edges + e->which * STORE_PAGE;
    struct shard_header h;
    (void)i;
    if (e->which == 0) {
        int rc = header_decode(page, k->file, &h, err);
        if (!rc && (h.tag != k->c->ref->tag || trailer_crc_of(page) != k->t.header_crc))
            rc = err_set(err, LARDER_ECORRUPT, "header page belongs to another shard");
        return rc;
    }
    for (size_t at = 0; at < k->gap; at++)
        if (page[at])
            return err_set(err, LARDER_ECORRUPT, "padding before the footer is not zero");
    return LARDER_OK;
}

static int check_edges(struct checker *k, struct larder_error *err)
{
    struct larder_error why;
    uint64_t end = STORE_PAGE + k->t.stored_bytes;
    k->gap = (size_t)(k->t.footer_off - end);
    bool meet = k->gap < STORE_PAGE;
    struct store_range ranges[2] = {{k->file, 0, k->edges, STORE_PAGE}, {k->file, end, k->edges + STORE_PAGE, k->gap}};
    for (size_t i = 0; i < (meet ? 2u : 1u); i++) {
        if (ranges[i].len == 0)
            continue;
        struct edge e = {k, i};
        int rc = io_read_checked(k->c->io, &ranges[i], 1, edge_check, &e, &why);
        if (rc && rc != LARDER_ECORRUPT && rc != LARDER_EVERSION)
            return err_set(err, rc, "%s", why.message);
        if (rc)
            tell(k, UINT64_MAX, NULL, 0, why.message);
    }
    if (!meet)
        tell(k, UINT64_MAX, NULL, 0, "records and footer do not meet");
    return LARDER_OK;
}

enum { PAGES_RUN = 64 };

/* io_check_fn of a run of footer pages: all are whole. */
struct page_run { const struct checker *k; const uint8_t *pages; uint32_t first, n; };

static int run_check(void *user, size_t i, struct larder_error *err)
{
    const struct page_run *r = user;
    int rc = LARDER_OK;
    (void)i;
    for (uint32_t p = 0; !rc && p < r->n; p++)
        rc = page_check(r->pages + (size_t)p * STORE_PAGE, r->k->c->ref->tag, r->first + p, r->k->file, err);
    return rc;
}

/* Every footer page by itself, and all of them against the trailer. */
static int check_pages(struct checker *k, struct larder_error *err)
{
    AUTO_FREE uint8_t *pages = calloc(PAGES_RUN, STORE_PAGE);
    struct larder_error why;
    uint32_t crcs = 0;
    bool whole = true;
    if (!pages)
        return err_nomem(err, PAGES_RUN * STORE_PAGE, "footer pages");
    for (uint32_t i = 0; i < k->t.pages; i += PAGES_RUN) {
        struct page_run r = {k, pages, i, MIN((uint32_t)PAGES_RUN, k->t.pages - i)};
        struct store_range range = {k->file, k->t.footer_off + (uint64_t)i * STORE_PAGE, pages, (size_t)r.n * STORE_PAGE};
        int rc = io_read_checked(k->c->io, &range, 1, run_check, &r, err);
        if (rc && rc != LARDER_ECORRUPT)
            return rc;
        for (uint32_t p = 0; p < r.n; p++) {
            const uint8_t *page = pages + (size_t)p * STORE_PAGE;
            crcs = crc32c(crcs, page, 4);
            if (rc && page_check(page, k->c->ref->tag, i + p, k->file, &why)) {
                tell(k, UINT64_MAX, NULL, 0, why.message);
                whole = false;
            }
        }
    }
    if (whole && crcs != k->t.pages_crc)
        tell(k, UINT64_MAX, NULL, 0, "footer pages are not those the trailer was written for");
    return LARDER_OK;
}

/* The columns, laid out field after field, to compare with the records' scalars. False: cannot be read (told already). */
static bool load_columns(struct checker *k, const struct schema *s, struct larder_error *err, int *rc)
{
    struct footer f = {k->c->io, k->c->ref->name, k->c->ref, NULL, 0};
    k->columns.len = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        unsigned width = type_width(s->fields[i].type);
        if (!width)
            continue;
        const struct section *sec = trailer_find(&k->t, SECTION_COLUMN, i);
        uint64_t len = (uint64_t)k->c->ref->samples * width;
        if (!sec || sec->len != len) {
            tell(k, UINT64_MAX, NULL, 0, "a column is missing or has the wrong length");
            return false;
        }
        if ((*rc = buf_reserve(&k->columns, len, err)))
            return false;
        int got = footer_read(&f, sec, 0, k->columns.data + k->columns.len, len, err);
        if (got == LARDER_ECORRUPT)
            return false;
        if ((*rc = got))
            return false;
        k->columns.len += len;
    }
    return true;
}

static bool columns_agree(const struct checker *k, const struct schema *s, uint32_t slot)
{
    const uint8_t *column = k->columns.data;
    static const uint8_t zeros[8];
    for (uint32_t i = 0; i < s->n; i++) {
        unsigned width = type_width(s->fields[i].type);
        if (!width)
            continue;
        if (memcmp(column + (size_t)slot * width, k->values[i].data ? k->values[i].data : zeros, width))
            return false;
        column += (size_t)k->c->ref->samples * width;
    }
    return true;
}

/* Do the batched keys lead to their ordinals? */
static int check_keys(struct checker *k, struct larder_error *err)
{
    const void *keys[KEY_BATCH];
    size_t lens[KEY_BATCH];
    uint64_t found[KEY_BATCH];
    struct larder_error why;
    const uint8_t *p = k->keys.data;
    for (uint32_t i = 0; i < k->n_batch; i++) {
        lens[i] = get_u16(p);
        keys[i] = p + 2;
        p += 2 + lens[i];
    }
    int rc = k->n_batch ? index_lookup(k->c->ix, keys, lens, k->n_batch, found, &why) : LARDER_OK;
    if (rc == LARDER_ECORRUPT) {
        tell(k, k->batch_slots[0], keys[0], lens[0], why.message);
    } else if (rc) {
        return err_set(err, rc, "%s", why.message);
    } else {
        for (uint32_t i = 0; i < k->n_batch; i++)
            if (found[i] != k->c->ref->base + k->batch_slots[i])
                tell(k, k->batch_slots[i], keys[i], lens[i], found[i] == LARDER_NO_ORDINAL ? "key is not in the index"
                                                                                              : "index leads to another sample");
    }
    k->n_batch = 0;
    k->keys.len = 0;
    return LARDER_OK;
}

static int batch_key(struct checker *k, const struct scan_item *item, struct larder_error *err)
{
    uint8_t len[2];
    put_u16(len, (uint16_t)item->key_len);
    int rc = buf_append(&k->keys, len, 2, err);
    if (!rc)
        rc = buf_append(&k->keys, item->key, item->key_len, err);
    k->batch_slots[k->n_batch++] = item->slot;
    return !rc && k->n_batch == KEY_BATCH ? check_keys(k, err) : rc;
}

/* Fields of a record that passed its CRC. */
static int check_record(struct checker *k, const struct scan_item *item, bool columns, struct larder_error *err)
{
    const struct schema *s = &store_manifest(k->c->store)->schema;
    struct extent e = item->extent;
    struct larder_error why;
    e.shard = (uint32_t)k->c->shard_no;
    k->scratch.len = 0;
    int rc = buf_reserve(&k->scratch, store_decode_scratch(&e) + 1, err);
    if (rc)
        return rc;
    rc = store_decode(k->c->store, k->d, &e, item->stored, k->scratch.data, k->values, &why);
    if (rc == LARDER_ECORRUPT)
        tell(k, item->slot, item->key, item->key_len, why.message);
    else if (rc)
        return err_set(err, rc, "%s", why.message);
    else if (columns && !columns_agree(k, s, item->slot))
        tell(k, item->slot, item->key, item->key_len, "a column differs from the record's scalar");
    return LARDER_OK;
}

static void sum_add(struct key_sum *s, const void *key, size_t len, uint64_t ordinal)
{
    uint64_t h[2];
    hash128(ordinal, key, len, h);
    atomic_fetch_add(&s->n, 1);
    atomic_fetch_add(&s->lo, h[0]);
    atomic_fetch_add(&s->hi, h[1]);
}

static int check_records(struct checker *k, struct larder_error *err)
{
    struct shard_check *c = k->c;
    struct shard_scan *scan;
    struct scan_item item;
    struct larder_error why;
    uint64_t expected = STORE_PAGE;
    int rc = shard_scan_open(c->io, c->ref, SCAN_KEYS | SCAN_RECORDS, &scan, err), got;
    if (rc)
        return rc;
    bool columns = c->store && load_columns(k, &store_manifest(c->store)->schema, err, &rc);
    while (!rc && !(c->stop && atomic_load(c->stop)) && (got = shard_scan_next(scan, &item, &why)) != LARDER_END) {
        if (is_damage(got)) {
            tell(k, item.slot == UINT32_MAX ? UINT64_MAX : item.slot, item.key, item.key_len, why.message);
            if (item.slot == UINT32_MAX)
                break;
        } else if (got) {
            rc = err_set(err, got, "%s", why.message);
        } else {
            if (item.extent.offset != expected)
                tell(k, item.slot, item.key, item.key_len, "record does not begin where the one before ends");
            if (c->store)
                rc = check_record(k, &item, columns, err);
            if (!rc && c->ix)
                rc = batch_key(k, &item, err);
            if (c->sum)
                sum_add(c->sum, item.key, item.key_len, c->ref->base + item.slot);
        }
        expected = item.extent.offset ? item.extent.offset + item.extent.stored_len : expected;
        c->samples++;
        c->bytes += item.extent.stored_len;
    }
    if (!rc && c->ix)
        rc = check_keys(k, err);
    shard_scan_close(scan);
    return rc;
}

static int check_shard(struct checker *k, struct larder_error *err)
{
    struct shard_check *c = k->c;
    struct larder_error why;
    uint64_t size, mtime;
    struct footer f = {c->io, c->ref->name, c->ref, NULL, 0};
    shard_path(c->ref->name, k->file);
    int rc = c->io->ops->stat(c->io, k->file, &size, &mtime, &why);
    if (rc == LARDER_ENOTFOUND || (!rc && size != c->ref->size)) {
        tell(k, UINT64_MAX, NULL, 0, rc ? "the file is missing" : "the file has the wrong size");
        return LARDER_OK;
    }
    if (rc == LARDER_ECORRUPT) { /* no regular file */
        tell(k, UINT64_MAX, NULL, 0, why.message);
        return LARDER_OK;
    }
    if (rc)
        return err_set(err, rc, "%s", why.message);
    rc = footer_trailer(&f, &k->t, &why);
    if (rc == LARDER_ECORRUPT)
        tell(k, UINT64_MAX, NULL, 0, why.message);
    else if (rc)
        return err_set(err, rc, "%s", why.message);
    else if ((rc = check_edges(k, err)) || (rc = check_pages(k, err)))
        return rc;
    return check_records(k, err);
}

int shard_check_run(struct shard_check *c, struct larder_error *err)
{
    struct checker *k = calloc(1, sizeof(*k));
    int rc = k ? LARDER_OK : err_nomem(err, sizeof(*k), "a shard check");
    if (rc)
        return rc;
    k->c = c;
    c->bytes = c->samples = c->damaged = 0;
    if (c->store) {
        k->values = calloc(store_manifest(c->store)->schema.n, sizeof(*k->values));
        rc = k->values ? decoder_new(&k->d, err) : err_nomem(err, 0, "a shard check");
    }
    if (!rc)
        rc = check_shard(k, err);
    decoder_free(k->d);
    free(k->values);
    buf_release(&k->scratch);
    buf_release(&k->columns);
    buf_release(&k->keys);
    free(k);
    return rc;
}

/* ---- the whole generation ---- */

struct verify {
    struct store_io *io;
    struct store *store;
    struct index *ix;
    bool by_sum;                    /* keys are compared by their sum */
    struct key_sum sum;
    const struct larder_verify_options *o;
    uint64_t units;                 /* shards, then index files */
    _Atomic uint64_t next, samples, bytes, shards;
    pthread_mutex_t lock;           /* guards damaged and the calls of o->damage */
    uint64_t damaged;
};

static void damage_locked(void *user, const struct larder_damage *d)
{
    struct verify *v = user;
    pthread_mutex_lock(&v->lock);
    v->damaged++;
    if (v->o->damage)
        v->o->damage(v->o->user, d);
    pthread_mutex_unlock(&v->lock);
}

static void damage_file(struct verify *v, const char *file, const char *why)
{
    struct larder_damage d = {file, UINT64_MAX, UINT64_MAX, LARDER_NO_ORDINAL, NULL, 0, why};
    damage_locked(v, &d);
}

static int verify_index_file(struct verify *v, uint64_t i, struct larder_error *err)
{
    const struct manifest *m = store_manifest(v->store);
    const struct index_part *p = m->parts;
    struct larder_error why;
    char file[600];
    for (; i >= p->n_files; p++)
        i -= p->n_files;
    const struct index_file *f = &p->files[i];
    snprintf(file, sizeof(file), "index/%s/%s", p->dir, f->name);
    int rc = index_file_check(v->io, p, f, &why);
    if (is_damage(rc))
        damage_file(v, file, why.message);
    else if (rc)
        return err_set(err, rc, "%s", why.message);
    atomic_fetch_add(&v->bytes, f->size);
    return LARDER_OK;
}

static bool in_subset(const struct larder_verify_options *o, uint64_t unit)
{
    return o->subset_t == 0 || unit % o->subset_t == o->subset_n - 1;
}

static int verify_worker(void *user, unsigned worker, const atomic_bool *stop, struct larder_error *err)
{
    (void)worker;
    struct verify *v = user;
    const struct manifest *m = store_manifest(v->store);
    for (uint64_t i; !atomic_load(stop) && (i = atomic_fetch_add(&v->next, 1)) < v->units;) {
        if (!in_subset(v->o, i))
            continue;
        int rc;
        if (i < m->n_shards) {
            struct shard_check c = {.io = v->io, .store = v->store, .ix = v->ix, .sum = v->by_sum ? &v->sum : NULL, .ref = &m->shards[i], .shard_no = i,
                                    .damage = damage_locked, .user = v, .stop = stop};
            rc = shard_check_run(&c, err);
            atomic_fetch_add(&v->shards, 1);
            atomic_fetch_add(&v->samples, c.samples);
            atomic_fetch_add(&v->bytes, c.bytes);
        } else {
            rc = verify_index_file(v, i - m->n_shards, err);
        }
        if (rc)
            return rc;
    }
    return LARDER_OK;
}

static int verify_tick(void *user)
{
    struct verify *v = user;
    if (!v->o->progress)
        return 0;
    uint64_t total = v->o->subset_t ? 0 : store_manifest(v->store)->samples;
    struct larder_progress p = {"verify", atomic_load(&v->samples), total, atomic_load(&v->bytes), 0};
    return v->o->progress(v->o->user, &p);
}

/* A damaged hint does no harm and is told all the same. A missing one is what a crash right after the commit leaves. */
static int verify_hint(struct verify *v, struct larder_error *err)
{
    struct larder_error why;
    uint64_t generation;
    int rc = hint_read(v->io, &generation, &why);
    if (rc == LARDER_ECORRUPT)
        damage_file(v, "larder.json", why.message);
    else if (rc && rc != LARDER_ENOTFOUND)
        return err_set(err, rc, "%s", why.message);
    return LARDER_OK;
}

/* Whether every SST of a bucket can be here at once. */
static bool index_fits(struct verify *v)
{
    const struct manifest *m = store_manifest(v->store);
    uint64_t bytes = 0;
    for (size_t i = 0; i < m->n_parts; i++)
        for (size_t k = 0; k < m->parts[i].n_files; k++)
            bytes += m->parts[i].files[k].size;
    return io_is_local(v->io) || bytes <= io_work_bytes(v->io);
}

/* The keys of one part against its own and the generation's. */
static int sum_part(struct verify *v, const struct index_part *p, struct key_sum *sum, struct larder_error *err)
{
    struct index_cursor *c;
    const void *key;
    size_t len;
    uint64_t ordinal;
    int rc = index_cursor_open(v->io, p, &c, err);
    if (rc)
        return rc;
    while ((rc = index_cursor_next(c, &key, &len, &ordinal, err)) == LARDER_OK)
        sum_add(sum, key, len, ordinal);
    index_cursor_close(c);
    return rc == LARDER_END ? LARDER_OK : rc;
}

static int verify_sum(struct verify *v, struct larder_error *err)
{
    const struct manifest *m = store_manifest(v->store);
    struct key_sum sum = {0};
    struct larder_error why;
    int rc = LARDER_OK;
    for (size_t i = 0; !rc && i < m->n_parts; i++)
        rc = sum_part(v, &m->parts[i], &sum, &why);
    if (rc && !is_damage(rc))
        return err_set(err, rc, "%s", why.message);
    if (rc)
        damage_file(v, "index", why.message);
    else if (sum.n != v->sum.n || sum.lo != v->sum.lo || sum.hi != v->sum.hi)
        damage_file(v, "index", "its keys do not lead to the samples that have them");
    return LARDER_OK;
}

static int verify_generation(struct verify *v, struct larder_error *err)
{
    const struct manifest *m = store_manifest(v->store);
    struct larder_error why;
    uint64_t files = 0;
    int rc = verify_hint(v, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < m->n_parts; i++)
        files += m->parts[i].n_files;
    v->units = m->n_shards + files;
    v->by_sum = !index_fits(v);
    if (!v->by_sum)
        rc = index_open(v->io, m->parts, m->n_parts, 64 * MIB, &v->ix, &why);
    if (is_damage(rc)) {
        damage_file(v, "index", why.message);
        v->ix = NULL;
    } else if (rc) {
        return err_set(err, rc, "%s", why.message);
    }
    rc = crew_run(v->o->workers ? v->o->workers : io_workers(v->io), verify_worker, verify_tick, v, err);
    return !rc && v->by_sum && !v->o->subset_t && !v->damaged ? verify_sum(v, err) : rc;
}

int store_verify(struct store_io *io, const struct larder_verify_options *o, struct larder_verify_report *r, struct larder_error *err)
{
    struct verify v = {.io = io, .o = o, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct larder_error why = {.code = LARDER_OK};
    int rc = store_open(io, &(struct store_options){.generation = o->generation}, &v.store, &why);
    if (rc == LARDER_ECORRUPT)
        damage_file(&v, "manifests", why.message);
    if (!rc)
        rc = verify_generation(&v, &why);
    r->generation = v.store ? store_manifest(v.store)->generation : 0;
    r->shards = v.shards;
    r->samples = v.samples;
    r->bytes = v.bytes;
    r->damaged = v.damaged;
    if (!rc && v.damaged)
        rc = err_set(&why, LARDER_ECORRUPT, "%llu damaged place%s; larder repair drops what cannot be read and rebuilds the rest",
                     (unsigned long long)v.damaged, v.damaged == 1 ? "" : "s");
    index_close(v.ix);
    store_close(v.store);
    if (rc && err)
        *err = why;
    return rc;
}
