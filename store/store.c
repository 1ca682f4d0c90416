/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - a dataset opened for reading: ordinals to extents, extents to fields, keys to ordinals.
 *
 * Opening reads the manifest and nothing else: O(shards). An ordinal finds its shard by binary search over the shards' bases and
 * its extent in the record table, whose pages come through the page cache; the pages that a batch misses are read together.
 * Everything is const after open but the page cache (its own locks), the index (opened once, under the lock) and the list of
 * dictionaries (append-only, read without the lock). Entered by any thread.
 */
#include "store/store_int.h"

#define TABLE_BYTES_DEFAULT (64 * MIB)
#define INDEX_BYTES_DEFAULT (64 * MIB)
#define LOCATE_BATCH 256u /* ordinals looked up, and pages missing, at once */
#define DICT_MAX (16 * MIB)
#define COLUMN_AHEAD (8 * MIB) /* of column pages fetched together */
#define LOOKUP_BATCH 256u /* keys asked of the index at once */

int store_open(struct store_io *io, const struct store_options *o, struct store **out, struct larder_error *err)
{
    *out = NULL;
    struct store *s = calloc(1, sizeof(*s));
    if (!s)
        return err_nomem(err, sizeof(*s), "a dataset");
    pthread_mutex_init(&s->lock, NULL);
    s->io = io;
    size_t index_bytes = o->index_bytes ? o->index_bytes : INDEX_BYTES_DEFAULT;
    s->index_bytes = index_bytes / 2; /* the other half remembers single keys: 16 bytes a key, RocksDB needs its length and more */
    int rc = o->generation ? generation_load(io, o->generation, &s->m, err) : generation_load_newest(io, &s->m, err);
    if (!rc)
        rc = pages_new(o->table_bytes ? o->table_bytes : TABLE_BYTES_DEFAULT, &s->pages, err);
    if (!rc)
        rc = key_cache_new(index_bytes - s->index_bytes, &s->key_cache, err);
    if (rc) {
        store_close(s);
        return rc;
    }
    *out = s;
    return LARDER_OK;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    index_close(atomic_load(&s->index));
    key_cache_free(s->key_cache);
    for (struct dict_node *d = atomic_load(&s->dicts), *next; d; d = next) {
        next = d->next;
        zdict_free(d->dict);
        free(d);
    }
    pages_free(s->pages);
    manifest_release(&s->m);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

const struct manifest *store_manifest(const struct store *s) { return &s->m; }
struct store_io *store_io_of(const struct store *s) { return s->io; }

/* ---- ordinals to extents ---- */

/* The shard that holds an ordinal below m.samples. */
static uint32_t shard_of(const struct manifest *m, uint64_t ordinal)
{
    size_t lo = 0, n = m->n_shards;
    while (n > 1) {
        size_t half = n / 2;
        lo += m->shards[lo + half].base <= ordinal ? half : 0;
        n -= half;
    }
    return (uint32_t)lo;
}

struct place { uint32_t shard, slot, page; size_t at; };

static struct place place_of(const struct manifest *m, uint64_t ordinal)
{
    uint32_t shard = shard_of(m, ordinal), slot = (uint32_t)(ordinal - m->shards[shard].base);
    return (struct place){shard, slot, slot / STORE_ENTRIES_A_PAGE, PAGE_HEAD + slot % STORE_ENTRIES_A_PAGE * STORE_ENTRY};
}

static int extent_from(const struct store *s, const struct place *p, const uint8_t *entry, struct extent *e, struct larder_error *err)
{
    const struct shard_ref *r = &s->m.shards[p->shard];
    if (entry_decode(entry, r->footer_off, e))
        return err_set(err, LARDER_ECORRUPT, "shards/%s: record table entry of slot %u points outside the records", r->name, p->slot);
    e->shard = p->shard;
    e->slot = p->slot;
    return LARDER_OK;
}

struct missing { struct place place; size_t i; };

static int by_page(const void *a, const void *b)
{
    const struct place *x = &((const struct missing *)a)->place, *y = &((const struct missing *)b)->place;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return x->page < y->page ? -1 : x->page > y->page;
}

/* io_check_fn of runs of record-table pages. */
struct table_read { const struct store *s; const struct place *of[LOCATE_BATCH]; const struct store_range *ranges; };

static int table_check(void *user, size_t i, struct larder_error *err)
{
    const struct table_read *t = user;
    const struct store_range *r = &t->ranges[i];
    int rc = LARDER_OK;
    for (size_t at = 0; !rc && at < r->len; at += STORE_PAGE)
        rc = page_check((const uint8_t *)r->buf + at, t->s->m.shards[t->of[i]->shard].tag, t->of[i]->page + (uint32_t)(at / STORE_PAGE),
                        r->name, err);
    return rc;
}

/* Reads the pages of n missing entries (sorted by page) in one batch, neighbours together, and finishes their extents. */
static int fetch_entries(struct store *s, const struct missing *miss, size_t n, struct extent *out, struct larder_error *err)
{
    AUTO_FREE struct store_range *ranges = calloc(n, sizeof(*ranges));
    AUTO_FREE uint8_t *data = malloc(n * STORE_PAGE);
    AUTO_FREE char *paths = malloc(n * 320);
    struct table_read t = {.s = s, .ranges = ranges};
    if (!ranges || !data || !paths)
        return err_nomem(err, n * STORE_PAGE, "record table pages");
    size_t runs = 0, pages = 0;
    for (size_t i = 0; i < n; i++) {
        const struct place *p = &miss[i].place, *before = i ? &miss[i - 1].place : NULL;
        if (before && before->shard == p->shard && before->page == p->page)
            continue;
        if (before && before->shard == p->shard && before->page + 1 == p->page) {
            ranges[runs - 1].len += STORE_PAGE;
        } else {
            const struct shard_ref *r = &s->m.shards[p->shard];
            shard_path(r->name, paths + runs * 320);
            ranges[runs] = (struct store_range){paths + runs * 320, r->footer_off + (uint64_t)p->page * STORE_PAGE,
                                                data + pages * STORE_PAGE, STORE_PAGE};
            t.of[runs++] = p;
        }
        pages++;
    }
    int rc = io_read_checked(s->io, ranges, runs, table_check, &t, err);
    for (size_t i = 0, at = 0; !rc && i < n; i++) {
        const struct place *p = &miss[i].place;
        bool first = i == 0 || by_page(&miss[i - 1], &miss[i]) != 0;
        at += first && i;
        const uint8_t *page = data + at * STORE_PAGE;
        if (first)
            pages_put(s->pages, p->shard, p->page, page);
        rc = extent_from(s, p, page + p->at, &out[miss[i].i], err);
    }
    return rc;
}

/* n <= LOCATE_BATCH. Cache misses overlap: all sets are announced, then all entries, then they are read. */
static int locate_some(struct store *s, const uint64_t *ordinals, size_t n, struct extent *out, struct larder_error *err)
{
    uint8_t entry[STORE_ENTRY];
    struct place places[LOCATE_BATCH];
    struct missing miss[LOCATE_BATCH];
    size_t n_miss = 0;
    for (size_t i = 0; i < n; i++) {
        if (ordinals[i] >= s->m.samples)
            return err_set(err, LARDER_ENOTFOUND, "no sample %llu: generation %llu has %llu", (unsigned long long)ordinals[i],
                           (unsigned long long)s->m.generation, (unsigned long long)s->m.samples);
        places[i] = place_of(&s->m, ordinals[i]);
        pages_announce(s->pages, places[i].shard, places[i].page);
    }
    for (size_t i = 0; i < n; i++)
        pages_announce_at(s->pages, places[i].shard, places[i].page, places[i].at);
    for (size_t i = 0; i < n; i++) {
        const struct place *p = &places[i];
        if (!pages_get(s->pages, p->shard, p->page, p->at, entry, STORE_ENTRY)) {
            miss[n_miss++] = (struct missing){*p, i};
            continue;
        }
        int rc = extent_from(s, p, entry, &out[i], err);
        if (rc)
            return rc;
    }
    if (!n_miss)
        return LARDER_OK;
    qsort(miss, n_miss, sizeof(*miss), by_page);
    return fetch_entries(s, miss, n_miss, out, err);
}

int store_locate(struct store *s, const uint64_t *ordinals, size_t n, struct extent *out, struct larder_error *err)
{
    for (size_t first = 0; first < n; first += LOCATE_BATCH) {
        int rc = locate_some(s, ordinals + first, MIN(n - first, (size_t)LOCATE_BATCH), out + first, err);
        if (rc)
            return rc;
    }
    return LARDER_OK;
}

/* ---- extents to fields ---- */

struct decoder { struct zdecomp *z; };

int decoder_new(struct decoder **out, struct larder_error *err)
{
    *out = NULL;
    struct decoder *d = calloc(1, sizeof(*d));
    int rc = d ? zdecomp_new(&d->z, err) : err_nomem(err, sizeof(*d), "a decoder");
    if (rc) {
        free(d);
        return rc;
    }
    *out = d;
    return LARDER_OK;
}

void decoder_free(struct decoder *d)
{
    if (!d)
        return;
    zdecomp_free(d->z);
    free(d);
}

static struct zdict *dict_find(const struct dict_node *d, uint64_t id)
{
    for (; d; d = d->next)
        if (d->id == id)
            return d->dict;
    return NULL;
}

static int dict_load(struct store *s, uint32_t shard, struct zdict **dict, struct larder_error *err)
{
    const struct shard_ref *r = &s->m.shards[shard];
    AUTO_BUF struct buf bytes = BUF_INIT;
    struct footer f = {s->io, r->name, r, s->pages, shard};
    int rc = footer_section(&f, SECTION_DICT, &bytes, err);
    if (rc)
        return rc;
    if (bytes.len > DICT_MAX)
        return err_set(err, LARDER_ECORRUPT, "shards/%s: dictionary of %zu bytes", r->name, bytes.len);
    struct zdict *made = NULL;
    struct dict_node *node = malloc(sizeof(*node));
    if (!node)
        return err_nomem(err, sizeof(*node), "a dictionary");
    if ((rc = zdict_new(bytes.data, bytes.len, &made, err))) {
        free(node);
        return rc;
    }
    pthread_mutex_lock(&s->lock);
    if ((*dict = dict_find(atomic_load(&s->dicts), r->dict_id))) { /* another thread was first */
        zdict_free(made);
        free(node);
    } else {
        *node = (struct dict_node){r->dict_id, made, atomic_load(&s->dicts)};
        atomic_store(&s->dicts, node);
        *dict = made;
    }
    pthread_mutex_unlock(&s->lock);
    return LARDER_OK;
}

/* Where e lies for dictionaries and messages, also when its bytes came from a cache. */
static uint32_t origin_of(const struct store *s, const struct extent *e, uint32_t *slot)
{
    if (e->shard != EXTENT_CACHED) {
        *slot = e->slot;
        return e->shard;
    }
    struct place p = place_of(&s->m, MIN(e->offset, s->m.samples - 1));
    *slot = p.slot;
    return p.shard;
}

/* The dictionary a record needs; NULL for none. */
static int dict_for(struct store *s, const struct extent *e, struct zdict **dict, struct larder_error *err)
{
    *dict = NULL;
    if (e->codec != CODEC_ZSTD_DICT)
        return LARDER_OK;
    uint32_t slot, shard = origin_of(s, e, &slot);
    uint64_t id = s->m.shards[shard].dict_id;
    if (!id)
        return err_set(err, LARDER_ECORRUPT, "shards/%s slot %u: needs a dictionary that the shard does not have",
                       s->m.shards[shard].name, slot);
    *dict = dict_find(atomic_load(&s->dicts), id);
    return *dict ? LARDER_OK : dict_load(s, shard, dict, err);
}

static int in_shard(const struct store *s, const struct extent *e, int rc, struct larder_error *err)
{
    uint32_t slot, shard = origin_of(s, e, &slot);
    const struct shard_ref *r = &s->m.shards[shard];
    return rc == LARDER_ECORRUPT ? err_prefix(err, rc, "shards/%s slot %u (ordinal %llu)", r->name, slot,
                                              (unsigned long long)(r->base + slot)) : rc;
}

int store_decode(struct store *s, struct decoder *d, const struct extent *e, const void *stored, void *scratch,
                 struct larder_value *values, struct larder_error *err)
{
    struct zdict *dict;
    uint32_t crc = e->checked ? e->crc : crc32c(0, stored, e->stored_len);
    if (crc != e->crc)
        return err_set(err, LARDER_ECORRUPT, "shards/%s slot %u (ordinal %llu): %u bytes at offset %llu fail their CRC32C (stored "
                       "%08x, found %08x); larder verify lists all damage", s->m.shards[e->shard].name, e->slot,
                       (unsigned long long)(s->m.shards[e->shard].base + e->slot), e->stored_len, (unsigned long long)e->offset,
                       e->crc, crc);
    int rc = dict_for(s, e, &dict, err);
    return rc ? rc : in_shard(s, e, record_decode(&s->m.schema, e, stored, d->z, dict, scratch, values, err), err);
}

size_t store_decode_views(const struct store *s, const struct extent *e, const void *const *stored, size_t n,
                          struct larder_value *values)
{
    return record_views(&s->m.schema, e, stored, n, values);
}

uint32_t store_head_len(const struct store *s, const struct extent *e)
{
    return s->m.schema.n >= 2 && e->stored_len >= FIELD_CRC_BYTES ? record_head_max(&s->m.schema) : 0;
}

int store_field_ranges(struct store *s, const struct extent *e, const void *head, const uint32_t *fields, size_t n_fields,
                       struct field_range *ranges, struct larder_error *err)
{
    const struct schema *schema = &s->m.schema;
    struct record_layout l;
    int rc = record_layout_decode(schema, e, head, store_head_len(s, e), &l, err);
    if (rc)
        return in_shard(s, e, rc, err);
    for (size_t i = 0; i < n_fields; i++) {
        uint32_t at = l.head_len + l.packed_len, len = record_field_len(head, fields[i]);
        if (!type_is_media(schema->fields[fields[i]].type)) {
            ranges[i] = (struct field_range){l.head_len, len == FIELD_ABSENT ? 0 : l.packed_len};
            continue;
        }
        for (uint32_t k = 0; k < fields[i]; k++)
            if (type_is_media(schema->fields[k].type) && record_field_len(head, k) != FIELD_ABSENT)
                at += record_field_len(head, k);
        ranges[i] = (struct field_range){at, len == FIELD_ABSENT ? 0 : len};
    }
    return LARDER_OK;
}

/* One field's value from the bytes of its range. */
static int field_value(struct store *s, struct decoder *d, const struct extent *e, const struct record_layout *l, const uint8_t *head,
                       uint32_t field, const uint8_t *part, void *scratch, bool *unpacked, struct larder_value *value,
                       struct larder_error *err)
{
    const struct schema *schema = &s->m.schema;
    const uint8_t *crcs = head + 8 + 4 * schema->n;
    uint32_t len = record_field_len(head, field);
    bool media = type_is_media(schema->fields[field].type);
    uint32_t stored = media ? len : l->packed_len, want = get_u32(crcs + 4 * (media ? field : schema->n));
    *value = (struct larder_value){NULL, 0};
    if (len == FIELD_ABSENT)
        return LARDER_OK;
    if (crc32c(0, part, stored) != want)
        return err_set(err, LARDER_ECORRUPT, "field %s of %u bytes at offset %llu fails its CRC32C; larder verify lists all damage",
                       schema->fields[field].name, stored, (unsigned long long)e->offset);
    *value = (struct larder_value){part, len};
    if (media)
        return LARDER_OK;
    if (e->codec != CODEC_NONE) {
        struct zdict *dict;
        int rc = *unpacked ? LARDER_OK : dict_for(s, e, &dict, err);
        if (!rc && !*unpacked)
            rc = zdecomp_run(d->z, dict, part, l->packed_len, scratch, l->packed_raw, err);
        if (rc)
            return rc;
        *unpacked = true;
        part = scratch;
    }
    uint32_t at = 0;
    for (uint32_t k = 0; k < field; k++)
        if (!type_is_media(schema->fields[k].type) && record_field_len(head, k) != FIELD_ABSENT)
            at += record_field_len(head, k);
    value->data = part + at;
    return LARDER_OK;
}

int store_decode_fields(struct store *s, struct decoder *d, const struct extent *e, const void *head, const uint32_t *fields,
                        size_t n_fields, const void *const *parts, void *scratch, struct larder_value *values,
                        struct larder_error *err)
{
    struct record_layout l;
    bool unpacked = false;
    int rc = record_layout_decode(&s->m.schema, e, head, store_head_len(s, e), &l, err);
    for (size_t i = 0; !rc && i < n_fields; i++)
        rc = field_value(s, d, e, &l, head, fields[i], parts[i], scratch, &unpacked, &values[i], err);
    return rc ? in_shard(s, e, rc, err) : LARDER_OK;
}

/* ---- keys and columns ---- */

static int open_footer(struct store *s, uint32_t shard, struct footer *f, struct trailer *t, struct larder_error *err)
{
    *f = (struct footer){s->io, s->m.shards[shard].name, &s->m.shards[shard], s->pages, shard};
    return footer_trailer(f, t, err);
}

static int no_sample(const struct store *s, uint64_t ordinal, struct larder_error *err)
{
    return err_set(err, LARDER_ENOTFOUND, "no sample %llu: generation %llu has %llu", (unsigned long long)ordinal,
                   (unsigned long long)s->m.generation, (unsigned long long)s->m.samples);
}

int store_key(struct store *s, uint64_t ordinal, void *key, size_t cap, size_t *len, struct larder_error *err)
{
    struct trailer t;
    struct footer f;
    uint8_t ends[8] = {0};
    if (ordinal >= s->m.samples)
        return no_sample(s, ordinal, err);
    struct place p = place_of(&s->m, ordinal);
    int rc = open_footer(s, p.shard, &f, &t, err);
    if (rc)
        return rc;
    const struct section *se = trailer_find(&t, SECTION_KEY_ENDS, 0), *sk = trailer_find(&t, SECTION_KEYS, 0);
    rc = p.slot ? footer_read(&f, se, (uint64_t)(p.slot - 1) * 4, ends, 8, err) : footer_read(&f, se, 0, ends + 4, 4, err);
    if (rc)
        return rc;
    uint32_t begin = get_u32(ends), end = get_u32(ends + 4);
    if (!sk || end <= begin || end - begin > LARDER_KEY_MAX)
        return err_set(err, LARDER_ECORRUPT, "shards/%s: key of slot %u has a bad length", f.name, p.slot);
    rc = footer_read(&f, sk, begin, key, MIN(cap, (size_t)(end - begin)), err);
    if (!rc)
        *len = end - begin;
    return rc;
}

/* The pages of a column that samples [first, first + count) of shard f need, where they are not cached. False: none, or nothing to be
 * sure of: whoever reads them is told. */
static bool column_pages(const struct footer *f, uint32_t field, unsigned width, uint64_t first, uint64_t count, struct trailer *t,
                         struct footer_pages *p)
{
    const struct section *c = footer_trailer(f, t, NULL) ? NULL : trailer_find(t, SECTION_COLUMN, field);
    uint8_t byte;
    if (!c || (first + count) * width > c->len)
        return false;
    uint32_t lo = (uint32_t)(first * width / STORE_PAGE_DATA), hi = (uint32_t)(((first + count) * width - 1) / STORE_PAGE_DATA);
    *p = (struct footer_pages){f, c->first_page + lo, hi - lo + 1, hi - lo + 1};
    return !pages_get(f->cache, f->shard_no, p->first, 0, &byte, 1);
}

/* Brings what a column needs of the next shards, at most FOOTERS_MAX, into the cache in two reads: their trailers, then their pages.
 * Returns the first ordinal behind them. */
static int column_ahead(struct store *s, uint32_t field, unsigned width, uint64_t first, uint64_t count, uint64_t *next,
                        struct larder_error *err)
{
    struct footer f[FOOTERS_MAX];
    struct footer_pages pages[FOOTERS_MAX];
    uint64_t at = first, end = first + count;
    size_t n = 0, n_pages = 0, bytes = 0;
    for (uint32_t shard = shard_of(&s->m, first); n < FOOTERS_MAX && at < end; n++, shard++) {
        const struct shard_ref *r = &s->m.shards[shard];
        f[n] = (struct footer){s->io, r->name, r, s->pages, shard};
        at = r->base + r->samples;
    }
    *next = MIN(at, end);
    if (n < 2)
        return LARDER_OK;
    AUTO_FREE struct trailer *t = malloc(sizeof(*t));
    int rc = t ? footer_trailers(f, n, err) : err_nomem(err, sizeof(*t), "a trailer");
    for (size_t i = 0; !rc && i < n; i++) {
        const struct shard_ref *r = f[i].ref;
        uint64_t lo = MAX(first, r->base), hi = MIN(end, r->base + r->samples);
        if (column_pages(&f[i], field, width, lo - r->base, hi - lo, t, &pages[n_pages]) &&
            bytes + (size_t)pages[n_pages].n * STORE_PAGE <= COLUMN_AHEAD)
            bytes += (size_t)pages[n_pages++].n * STORE_PAGE;
    }
    if (rc || !n_pages)
        return rc;
    AUTO_FREE uint8_t *data = malloc(bytes);
    return data ? footer_fetch(pages, n_pages, data, err) : err_nomem(err, bytes, "columns");
}

int store_column(struct store *s, uint32_t field, uint64_t first, uint64_t count, void *values, struct larder_error *err)
{
    struct trailer t;
    struct footer f;
    uint8_t *out = values;
    if (field >= s->m.schema.n)
        return err_set(err, LARDER_ENOTFOUND, "no field %u: the schema has %u", field, s->m.schema.n);
    unsigned width = type_width(s->m.schema.fields[field].type);
    if (!width)
        return err_set(err, LARDER_EINVAL, "field '%s' is no scalar: it has no column", s->m.schema.fields[field].name);
    if (first > s->m.samples || count > s->m.samples - first)
        return no_sample(s, first + count, err);
    uint64_t ahead = first;
    while (count) {
        struct place p = place_of(&s->m, first);
        int rc = first == ahead ? column_ahead(s, field, width, first, count, &ahead, err) : LARDER_OK;
        if (rc || (rc = open_footer(s, p.shard, &f, &t, err)))
            return rc;
        uint64_t n = MIN(count, (uint64_t)(f.ref->samples - p.slot));
        const struct section *c = trailer_find(&t, SECTION_COLUMN, field);
        if (!c)
            return err_set(err, LARDER_ECORRUPT, "shards/%s: no column for field '%s'", f.name, s->m.schema.fields[field].name);
        if ((rc = footer_read(&f, c, (uint64_t)p.slot * width, out, n * width, err)))
            return rc;
        out += n * width;
        first += n;
        count -= n;
    }
    return LARDER_OK;
}

static int index_get(struct store *s, struct index **ix, struct larder_error *err)
{
    if ((*ix = atomic_load(&s->index)))
        return LARDER_OK;
    int rc = LARDER_OK;
    pthread_mutex_lock(&s->lock); /* once a process: others wait for the same thing */
    if (!(*ix = atomic_load(&s->index)) && !(rc = index_open(s->io, s->m.parts, s->m.n_parts, s->index_bytes, ix, err)))
        atomic_store(&s->index, *ix);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* Asks the index for those of n <= LOOKUP_BATCH keys that have no ordinal yet. */
static int lookup_missing(struct store *s, const void *const *keys, const size_t *lens, size_t n, uint64_t *ordinals,
                          struct larder_error *err)
{
    const void *ask[LOOKUP_BATCH];
    size_t ask_lens[LOOKUP_BATCH], at[LOOKUP_BATCH], n_ask = 0;
    uint64_t found[LOOKUP_BATCH];
    struct index *ix;
    for (size_t i = 0; i < n; i++) {
        if (ordinals[i] != LARDER_NO_ORDINAL)
            continue;
        ask[n_ask] = keys[i];
        ask_lens[n_ask] = lens[i];
        at[n_ask++] = i;
    }
    int rc = n_ask ? index_get(s, &ix, err) : LARDER_OK;
    if (rc || !n_ask)
        return rc;
    rc = index_lookup(ix, ask, ask_lens, n_ask, found, err);
    for (size_t i = 0; !rc && i < n_ask; i++) {
        if (found[i] >= s->m.samples) /* absent, or beyond the pinned generation: not there */
            continue;
        ordinals[at[i]] = found[i];
        key_cache_put(s->key_cache, ask[i], ask_lens[i], found[i]);
    }
    return rc;
}

int store_lookup(struct store *s, const void *const *keys, const size_t *lens, size_t n, uint64_t *ordinals,
                 struct larder_error *err)
{
    for (size_t first = 0; first < n; first += LOOKUP_BATCH) {
        size_t count = MIN(n - first, (size_t)LOOKUP_BATCH);
        if (key_cache_get(s->key_cache, keys + first, lens + first, count, ordinals + first) == 0)
            continue;
        int rc = lookup_missing(s, keys + first, lens + first, count, ordinals + first, err);
        if (rc)
            return rc;
    }
    return LARDER_OK;
}
