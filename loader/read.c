/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.c - larder_dataset_read and its kin: batches of samples by ordinal or key.
 *
 * A read is cut into pieces of bounded size. A piece is one fetch into one block: first the stored bytes as the fetch lays
 * them, then scratch for decompression, then the values that the samples point at; each sample holds a reference to the
 * block. What a read works with besides (a fetch, a decoder, arrays) is a struct reader, kept by the dataset for the next.
 *
 * Single fields of large records take two rounds: the heads of all records (and the whole of small ones), then the ranges
 * that the fields lie in. Both blocks live until the samples are released.
 *
 * Any number of threads enter; each has a reader of its own while it is here.
 */
#include "loader/loader_int.h"

#include <unistd.h>

#define PIECE_SAMPLES 4096
#define PIECE_BYTES (64 * MIB)
#define READERS_IDLE 16
#define FIELDS_AGAIN 4 /* of a remote origin, when a CRC fails */

/* ---- readers ---- */

void reader_free(struct reader *r)
{
    if (!r)
        return;
    tiers_fetch_free(r->fetch);
    decoder_free(r->decoder);
    free(r->extents);
    free(r->ranges);
    free(r->range_extents);
    free(r->parts);
    free(r->values);
    free(r);
}

static int reader_take(struct larder_dataset *ds, struct reader **out, struct larder_error *err)
{
    struct reader *r;
    int rc;

    pthread_mutex_lock(&ds->lock);
    r = ds->readers;
    if (r) {
        ds->readers = r->next;
        ds->n_readers--;
    }
    pthread_mutex_unlock(&ds->lock);
    if (!r) {
        r = calloc(1, sizeof(*r));
        if (!r)
            return err_nomem(err, sizeof(*r), "reader");
        rc = tiers_fetch_new(ds->tiers, &r->fetch, err);
        if (rc == 0)
            rc = decoder_new(&r->decoder, err);
        if (rc) {
            reader_free(r);
            return rc;
        }
    }
    *out = r;
    return 0;
}

static void reader_give(struct larder_dataset *ds, struct reader *r)
{
    pthread_mutex_lock(&ds->lock);
    if (ds->n_readers < READERS_IDLE) {
        r->next = ds->readers;
        ds->readers = r;
        ds->n_readers++;
        r = NULL;
    }
    pthread_mutex_unlock(&ds->lock);
    reader_free(r);
}

/* ---- one piece ---- */

struct piece {
    const uint64_t *ordinals;
    size_t n;
    const uint32_t *fields; /* NULL: all */
    size_t n_fields;
    struct larder_sample *samples;
};

/* Where the parts of a block lie. */
struct layout {
    size_t scratch_at, values_at, size;
};

static struct layout lay_out(size_t bytes, size_t scratch, size_t n_values)
{
    struct layout l;

    l.scratch_at = round_up(bytes, 64);
    l.values_at = l.scratch_at + round_up(scratch, 64);
    l.size = l.values_at + n_values * sizeof(struct larder_value);
    return l;
}

static size_t scratch_of(const struct extent *e)
{
    return round_up(store_decode_scratch(e), 16);
}

static void fill(const struct piece *p, struct block *b, const struct larder_value *values)
{
    size_t i;

    for (i = 0; i < p->n; i++) {
        p->samples[i].ordinal = p->ordinals[i];
        p->samples[i].n_fields = (uint32_t)p->n_fields;
        p->samples[i].fields = values + i * p->n_fields;
        p->samples[i].owner = b;
    }
}

/* Decodes a whole record and picks the wanted values. */
static int decode_pick(struct larder_dataset *ds, struct reader *r, const struct piece *p, const struct extent *e,
                       const void *stored, void *scratch, struct larder_value *out, struct larder_error *err)
{
    size_t i;
    int rc;

    if (!p->fields)
        return store_decode(ds->store, r->decoder, e, stored, scratch, out, err);
    rc = GROW(r->values, r->cap_values, ds->manifest->schema.n, err);
    if (rc == 0)
        rc = store_decode(ds->store, r->decoder, e, stored, scratch, r->values, err);
    for (i = 0; rc == 0 && i < p->n_fields; i++)
        out[i] = r->values[p->fields[i]];
    return rc;
}

/* Decodes a whole fetch that has been read. What a cache gave uncompressed only needs to be placed. */
static int decode_all(struct larder_dataset *ds, struct reader *r, const struct piece *p, uint8_t *scratch,
                      struct larder_value *values, struct larder_error *err)
{
    const struct extent *extents = tiers_fetch_extents(r->fetch), *e;
    const void *const *views = p->fields ? NULL : tiers_fetch_views(r->fetch);
    size_t i = 0;
    int rc;

    while (i < p->n) {
        if (views)
            i += store_decode_views(ds->store, extents + i, views + i, p->n - i, values + i * p->n_fields);
        if (i == p->n)
            break;
        e = &extents[i];
        rc = decode_pick(ds, r, p, e, tiers_fetch_record(r->fetch, i), scratch, values + i * p->n_fields, err);
        if (rc)
            return rc;
        scratch += scratch_of(e);
        i++;
    }
    return 0;
}

/* The piece's fetch is planned and needs `bytes`. LARDER_END: the piece is too large. */
static int read_planned(struct larder_dataset *ds, struct reader *r, const struct piece *p, size_t bytes, struct larder_error *err)
{
    const struct extent *extents = tiers_fetch_extents(r->fetch);
    struct larder_value *values;
    size_t scratch = 0, i;
    struct layout l;
    struct block *b;
    int rc;

    for (i = 0; i < p->n; i++)
        scratch += scratch_of(&extents[i]);
    if (bytes + scratch > PIECE_BYTES && p->n > 1)
        return LARDER_END;
    l = lay_out(bytes, scratch, p->n * p->n_fields);
    rc = block_get(ds->blocks, l.size, p->n, &b, err);
    if (rc)
        return rc;
    rc = tiers_read(ds->tiers, r->fetch, b->memory, err);
    values = (struct larder_value *)(void *)(b->memory + l.values_at);
    if (rc == 0)
        rc = decode_all(ds, r, p, b->memory + l.scratch_at, values, err);
    if (rc)
        block_put(b, p->n);
    else
        fill(p, b, values);
    return rc;
}

/* Reads whole records. LARDER_END: the piece is too large. */
static int read_whole(struct larder_dataset *ds, struct reader *r, const struct piece *p, struct larder_error *err)
{
    size_t bytes;
    int rc = tiers_fetch_plan(r->fetch, p->ordinals, p->n, &bytes, err);

    return rc ? rc : read_planned(ds, r, p, bytes, err);
}

/* ---- single fields ---- */

/* Locates the records and plans the ranges of their heads, or all of a record without one. *heads: how many have one. */
static int plan_heads(struct larder_dataset *ds, struct reader *r, const struct piece *p, size_t *heads, size_t *bytes,
                      struct larder_error *err)
{
    uint32_t len;
    size_t i;
    int rc;

    *heads = 0;
    rc = GROW(r->extents, r->cap_extents, p->n, err);
    if (rc == 0)
        rc = GROW(r->ranges, r->cap_ranges, p->n, err);
    if (rc == 0)
        rc = store_locate(ds->store, p->ordinals, p->n, r->extents, err);
    if (rc)
        return rc;
    for (i = 0; i < p->n; i++) {
        len = store_head_len(ds->store, &r->extents[i]);
        *heads += len != 0;
        r->ranges[i] = (struct field_range){0, len ? len : r->extents[i].stored_len};
    }
    if (*heads == 0)
        return 0;
    return tiers_fetch_plan_ranges(r->fetch, r->extents, r->ranges, p->n, bytes, err);
}

/* From the heads (parts[0..n) point at them): the ranges of the wanted fields. parts[n + i * n_fields + j] gets the number of
 * the range of record i's field j, or SIZE_MAX as a pointer where there is nothing to read. */
static int collect_ranges(struct larder_dataset *ds, struct reader *r, const struct piece *p, size_t heads, size_t *n_ranges,
                          struct larder_error *err)
{
    struct field_range *one;
    size_t i, j, k = 0;
    int rc;

    rc = GROW(r->ranges, r->cap_ranges, (heads + 1) * p->n_fields, err);
    if (rc == 0)
        rc = GROW(r->range_extents, r->cap_range_extents, heads * p->n_fields, err);
    if (rc)
        return rc;
    for (i = 0; i < p->n; i++) {
        if (store_head_len(ds->store, &r->extents[i]) == 0)
            continue;
        one = r->ranges + k; /* the ranges of record i, closed up in place */
        rc = store_field_ranges(ds->store, &r->extents[i], r->parts[i], p->fields, p->n_fields, one, err);
        if (rc)
            return rc;
        for (j = 0; j < p->n_fields; j++) {
            r->parts[p->n + i * p->n_fields + j] = (const void *)(one[j].len ? k : SIZE_MAX);
            if (one[j].len) {
                r->range_extents[k] = r->extents[i];
                r->ranges[k++] = one[j];
            }
        }
    }
    *n_ranges = k;
    return 0;
}

/* Decodes all records of the piece: whole ones out of the first block, fields out of the second. */
static int decode_fields(struct larder_dataset *ds, struct reader *r, const struct piece *p, uint8_t *scratch,
                         struct larder_value *values, struct larder_error *err)
{
    const struct extent *e;
    const void **parts;
    size_t i, j;
    int rc = 0;

    for (i = 0; rc == 0 && i < p->n; i++) {
        e = &r->extents[i];
        if (store_head_len(ds->store, e) == 0) {
            rc = decode_pick(ds, r, p, e, r->parts[i], scratch, values + i * p->n_fields, err);
        } else {
            parts = r->parts + p->n + i * p->n_fields;
            for (j = 0; j < p->n_fields; j++) /* nothing to read: any address will do */
                parts[j] = (size_t)parts[j] == SIZE_MAX ? r->parts[i] : tiers_fetch_record(r->fetch, (size_t)parts[j]);
            rc = store_decode_fields(ds->store, r->decoder, e, r->parts[i], p->fields, p->n_fields, parts, scratch,
                                     values + i * p->n_fields, err);
        }
        scratch += scratch_of(e);
    }
    return rc;
}

/* The second round, with the heads in place: *b gets the block that the samples will own. */
static int read_ranges(struct larder_dataset *ds, struct reader *r, const struct piece *p, size_t heads, struct block **b,
                       struct larder_error *err)
{
    size_t bytes = 0, scratch = 0, n_ranges = 0, i;
    struct layout l;
    int rc;

    rc = collect_ranges(ds, r, p, heads, &n_ranges, err);
    if (rc == 0 && n_ranges)
        rc = tiers_fetch_plan_ranges(r->fetch, r->range_extents, r->ranges, n_ranges, &bytes, err);
    if (rc)
        return rc;
    for (i = 0; i < p->n; i++)
        scratch += scratch_of(&r->extents[i]);
    if (bytes + scratch > PIECE_BYTES && p->n > 1)
        return LARDER_END;
    l = lay_out(bytes, scratch, p->n * p->n_fields);
    rc = block_get(ds->blocks, l.size, p->n, b, err);
    if (rc)
        return rc;
    if (n_ranges)
        rc = tiers_read(ds->tiers, r->fetch, (*b)->memory, err);
    if (rc == 0)
        rc = decode_fields(ds, r, p, (*b)->memory + l.scratch_at, (struct larder_value *)(void *)((*b)->memory + l.values_at),
                           err);
    if (rc) {
        block_put(*b, p->n);
        *b = NULL;
        return rc;
    }
    fill(p, *b, (struct larder_value *)(void *)((*b)->memory + l.values_at));
    return 0;
}

static int read_fields(struct larder_dataset *ds, struct reader *r, const struct piece *p, struct larder_error *err)
{
    struct block *first, *second = NULL;
    size_t heads, bytes = 0, i;
    int rc;

    if (tiers_has_dram(ds->tiers)) { /* fields of records in memory are views of it; else only their ranges are read */
        rc = tiers_fetch_plan(r->fetch, p->ordinals, p->n, &bytes, err);
        if (rc || tiers_fetch_is_hit(r->fetch))
            return rc ? rc : read_planned(ds, r, p, bytes, err);
    }
    rc = plan_heads(ds, r, p, &heads, &bytes, err);
    if (rc)
        return rc;
    if (heads == 0)
        return read_whole(ds, r, p, err);
    if (bytes > PIECE_BYTES && p->n > 1)
        return LARDER_END;
    rc = block_get(ds->blocks, bytes, 1, &first, err);
    if (rc)
        return rc;
    rc = tiers_read(ds->tiers, r->fetch, first->memory, err);
    if (rc == 0)
        rc = GROW(r->parts, r->cap_parts, p->n * (p->n_fields + 1), err);
    for (i = 0; rc == 0 && i < p->n; i++)
        r->parts[i] = tiers_fetch_record(r->fetch, i);
    if (rc == 0)
        rc = read_ranges(ds, r, p, heads, &second, err);
    if (rc)
        block_put(first, 1);
    else
        second->also = first;
    return rc;
}

/* ---- public ---- */

static int fields_check(const struct larder_dataset *ds, const struct larder_read_options *o, struct larder_error *err)
{
    size_t i;

    if (!o->fields)
        return o->n_fields ? err_set(err, LARDER_EINVAL, "larder_read_options: fields is NULL and n_fields %zu", o->n_fields) : 0;
    if (o->n_fields == 0 || o->n_fields > LARDER_FIELDS_MAX)
        return err_set(err, LARDER_EINVAL, "larder_read_options.n_fields: %zu is not within 1..%d", o->n_fields,
                       LARDER_FIELDS_MAX);
    for (i = 0; i < o->n_fields; i++)
        if (o->fields[i] >= ds->manifest->schema.n)
            return err_set(err, LARDER_ENOTFOUND, "%s: no field %u: the schema has %u", ds->path, o->fields[i],
                           ds->manifest->schema.n);
    return 0;
}

/* Whole records are read again below when the way may have damaged them; ranges of them only here, where their CRCs are checked. */
static int read_fields_well(struct larder_dataset *ds, struct reader *r, const struct piece *p, struct larder_error *err)
{
    int rc = read_fields(ds, r, p, err);

    for (int again = 0; rc == LARDER_ECORRUPT && again < FIELDS_AGAIN && tiers_read_again(ds->tiers); again++)
        rc = read_fields(ds, r, p, err);
    return rc;
}

static int read_all(struct larder_dataset *ds, struct reader *r, const uint64_t *ordinals, size_t n,
                    const struct larder_read_options *o, struct larder_sample *samples, struct larder_error *err)
{
    size_t done = 0, most = PIECE_SAMPLES;
    struct piece p;
    int rc;

    while (done < n) {
        p = (struct piece){ordinals + done, MIN(n - done, most), o->fields, o->n_fields, samples + done};
        if (!o->fields)
            p.n_fields = ds->manifest->schema.n;
        rc = o->fields ? read_fields_well(ds, r, &p, err) : read_whole(ds, r, &p, err);
        if (rc == LARDER_END) {
            most = MAX(p.n / 2, (size_t)1);
            continue;
        }
        if (rc) {
            larder_samples_release(samples, done);
            return rc;
        }
        done += p.n;
    }
    return 0;
}

int larder_dataset_read(struct larder_dataset *ds, const uint64_t *ordinals, size_t n,
                        const struct larder_read_options *opts, struct larder_sample *samples, struct larder_error *err)
{
    struct larder_read_options o = LARDER_READ_OPTIONS_INIT;
    struct reader *r = NULL;
    int rc;

    rc = dataset_check(ds, err);
    if (rc == 0)
        rc = options_take(opts, &o, sizeof(o), "larder_read_options", err);
    if (rc == 0)
        rc = fields_check(ds, &o, err);
    if (rc || n == 0)
        return rc;
    if (!ordinals || !samples)
        return err_set(err, LARDER_EINVAL, "larder_dataset_read: %s is NULL", ordinals ? "samples" : "ordinals");
    rc = reader_take(ds, &r, err);
    if (rc)
        return rc;
    rc = read_all(ds, r, ordinals, n, &o, samples, err);
    reader_give(ds, r);
    return rc;
}

void larder_samples_release(struct larder_sample *samples, size_t n)
{
    size_t i, run;
    void *owner;

    if (!samples)
        return;
    for (i = 0; i < n; i += run) {
        owner = samples[i].owner;
        for (run = 0; i + run < n && samples[i + run].owner == owner; run++)
            samples[i + run] = (struct larder_sample){0};
        if (owner)
            block_put(owner, run);
    }
}

int larder_dataset_lookup(struct larder_dataset *ds, const void *const *keys, const size_t *key_lens, size_t n,
                          uint64_t *ordinals, struct larder_error *err)
{
    int rc = dataset_check(ds, err);
    size_t i;

    if (rc || n == 0)
        return rc;
    if (!keys || !key_lens || !ordinals)
        return err_set(err, LARDER_EINVAL, "larder_dataset_lookup: %s is NULL", !keys ? "keys" : !key_lens ? "key_lens" : "ordinals");
    for (i = 0; i < n; i++)
        if (!keys[i] || key_lens[i] == 0 || key_lens[i] > LARDER_KEY_MAX)
            return err_set(err, LARDER_EINVAL, "key %zu of %zu: NULL, or its length %zu is not within 1..%d", i, n, key_lens[i],
                           LARDER_KEY_MAX);
    return store_lookup(ds->store, keys, key_lens, n, ordinals, err);
}

int larder_dataset_get(struct larder_dataset *ds, const void *key, size_t key_len, struct larder_sample *sample,
                       struct larder_error *err)
{
    uint64_t ordinal;
    char text[256];
    int rc;

    rc = larder_dataset_lookup(ds, &key, &key_len, 1, &ordinal, err);
    if (rc)
        return rc;
    if (!sample)
        return err_set(err, LARDER_EINVAL, "larder_dataset_get: sample is NULL");
    if (ordinal == LARDER_NO_ORDINAL)
        return err_set(err, LARDER_ENOTFOUND, "%s: no key '%s'", ds->path, key_text(key, key_len, text));
    return larder_dataset_read(ds, &ordinal, 1, NULL, sample, err);
}
