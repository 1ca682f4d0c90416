/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_write.c - writes one shard: header page, records back to back, footer pages, trailer.
 *
 * Records go straight to the store_out, media without a copy of our own; the footer is gathered in memory and written by
 * shard_writer_finish. shard_writer_bytes counts the footer's share too, so a shard closed at its stated size bounds the memory
 * that gathers it. The file is invisible until it is whole and durable [store I3]. One thread at a time; finish may run on
 * another thread than the adds.
 */
#include "store/store_int.h"

struct shard_writer {
    struct store_io *io;
    struct store_out *out;
    struct schema schema;
    struct shard_header header;
    uint32_t header_crc;
    char name[32];
    struct zcomp *comp;
    uint8_t codec;
    void *dict;            /* copy for the footer */
    size_t dict_len;
    uint64_t dict_id;
    struct buf meta;
    uint64_t offset;       /* of the next record */
    uint64_t stored_bytes, raw_bytes;
    uint32_t samples;
    struct buf table, key_ends, keys; /* as they will stand in the pages */
    struct buf *columns, *present;    /* [schema.n]; scalars only */
    bool *absent_seen;                /* [schema.n] */
    struct buf front, tmp; /* scratch of record_encode */
    struct zdecomp *decomp;      /* for records that come encoded: their scalars fill the columns */
    struct zdict *decomp_dict;
};

static void writer_free(struct shard_writer *w)
{
    if (!w)
        return;
    for (uint32_t i = 0; i < w->schema.n; i++) {
        if (w->columns)
            buf_release(&w->columns[i]);
        if (w->present)
            buf_release(&w->present[i]);
    }
    free(w->columns);
    free(w->present);
    free(w->absent_seen);
    buf_release(&w->table);
    buf_release(&w->key_ends);
    buf_release(&w->keys);
    buf_release(&w->front);
    buf_release(&w->tmp);
    buf_release(&w->meta);
    zcomp_free(w->comp);
    zdecomp_free(w->decomp);
    zdict_free(w->decomp_dict);
    free(w->dict);
    schema_release(&w->schema);
    free(w);
}

void shard_name_new(uint64_t run, uint32_t counter, char out[32])
{
    snprintf(out, 32, "%016llx-%06u", (unsigned long long)run, counter);
}

uint64_t dict_id_of(const void *dict, size_t len)
{
    uint64_t id = hash64(0, dict, len);
    return id ? id : 1;
}

void shard_path(const char *name, char out[320]) { snprintf(out, 320, "shards/%s", name); }

static int set_up(struct shard_writer *w, const struct shard_params *p, struct larder_error *err)
{
    const struct manifest *m = p->meta;
    int rc = schema_clone(&w->schema, &m->schema, err);
    if (rc)
        return rc;
    w->header.revision = p->revision;
    w->header.sub = p->sub;
    w->header.unit = p->unit;
    w->header.generation = p->generation ? p->generation : m->generation;
    w->header.created_s = now_wall_s();
    memcpy(w->header.uuid, m->uuid, 16);
    memcpy(w->header.family, manifest_family(m), 16);
    memcpy(w->header.session, p->session, 8);
    if ((rc = random_bytes(&w->header.tag, sizeof(w->header.tag), err)) || (rc = meta_encode(m, &w->meta, err)))
        return rc;
    w->columns = calloc(w->schema.n, sizeof(*w->columns));
    w->present = calloc(w->schema.n, sizeof(*w->present));
    w->absent_seen = calloc(w->schema.n, sizeof(*w->absent_seen));
    if (!w->columns || !w->present || !w->absent_seen)
        return err_nomem(err, w->schema.n * sizeof(*w->columns), "a shard's columns");
    if (p->dict_len) {
        if (!(w->dict = malloc(p->dict_len)))
            return err_nomem(err, p->dict_len, "a dictionary");
        memcpy(w->dict, p->dict, p->dict_len);
        w->dict_len = p->dict_len;
        w->dict_id = dict_id_of(p->dict, p->dict_len);
    }
    w->codec = p->dict_len ? CODEC_ZSTD_DICT : CODEC_ZSTD;
    if (m->compression != LARDER_COMPRESS_NONE)
        return zcomp_new(p->level ? p->level : 3, p->dict, p->dict_len, &w->comp, err);
    return LARDER_OK;
}

int shard_writer_open(struct store_io *io, const char *name, const struct shard_params *p, struct shard_writer **out,
                      struct larder_error *err)
{
    *out = NULL;
    struct shard_writer *w = calloc(1, sizeof(*w));
    if (!w)
        return err_nomem(err, sizeof(*w), "a shard writer");
    w->io = io;
    snprintf(w->name, sizeof(w->name), "%s", name);
    char path[320];
    uint8_t page[STORE_PAGE];
    shard_path(name, path);
    int rc = set_up(w, p, err);
    if (!rc)
        rc = io->ops->begin(io, path, &w->out, err);
    if (!rc) {
        header_encode(&w->header, page);
        w->header_crc = trailer_crc_of(page);
        w->offset = STORE_PAGE;
        rc = io->ops->write(w->out, page, STORE_PAGE, err);
    }
    if (rc) {
        shard_writer_abort(w);
        return rc;
    }
    *out = w;
    return LARDER_OK;
}

/* Room for one more sample's share of the footer, so that what follows a written record cannot fail. */
static int footer_reserve(struct shard_writer *w, size_t key_len, struct larder_error *err)
{
    int rc = buf_reserve(&w->table, STORE_ENTRY, err);
    if (!rc)
        rc = buf_reserve(&w->key_ends, 4, err);
    if (!rc)
        rc = buf_reserve(&w->keys, key_len, err);
    for (uint32_t i = 0; !rc && i < w->schema.n; i++)
        if (type_width(w->schema.fields[i].type) && !(rc = buf_reserve(&w->columns[i], 8, err)))
            rc = buf_reserve(&w->present[i], 1, err);
    return rc;
}

static void footer_add(struct shard_writer *w, const void *key, size_t key_len, const struct larder_value *values,
                       const struct extent *e)
{
    entry_encode(e, w->table.data + w->table.len);
    w->table.len += STORE_ENTRY;
    memcpy(w->keys.data + w->keys.len, key, key_len);
    w->keys.len += key_len;
    put_u32(w->key_ends.data + w->key_ends.len, (uint32_t)w->keys.len);
    w->key_ends.len += 4;
    for (uint32_t i = 0; i < w->schema.n; i++) {
        unsigned width = type_width(w->schema.fields[i].type);
        if (!width)
            continue;
        struct buf *c = &w->columns[i], *b = &w->present[i];
        if (w->samples % 8 == 0)
            b->data[b->len++] = 0;
        if (values[i].data) {
            memcpy(c->data + c->len, values[i].data, width);
            b->data[b->len - 1] |= (uint8_t)(1u << w->samples % 8);
        } else {
            memset(c->data + c->len, 0, width);
            w->absent_seen[i] = true;
        }
        c->len += width;
    }
    w->samples++;
    w->offset += e->stored_len;
    w->stored_bytes += e->stored_len;
    w->raw_bytes += e->raw_len;
}

static int check_key(const struct shard_writer *w, size_t key_len, struct larder_error *err)
{
    if (key_len == 0 || key_len > LARDER_KEY_MAX)
        return err_set(err, LARDER_EINVAL, "key of %zu bytes: 1 to %d are allowed", key_len, LARDER_KEY_MAX);
    if (w->samples == UINT32_MAX - 1 || w->keys.len > UINT32_MAX - LARDER_KEY_MAX)
        return err_set(err, LARDER_EINVAL, "shard is full: %u samples; use a smaller shard size", w->samples);
    return LARDER_OK;
}

/* The packed or the media values, from where the caller has them. */
static int write_values(struct shard_writer *w, const struct larder_value *values, bool media, struct larder_error *err)
{
    int rc = LARDER_OK;
    for (uint32_t i = 0; !rc && i < w->schema.n; i++)
        if (values[i].data && type_is_media(w->schema.fields[i].type) == media)
            rc = w->io->ops->write(w->out, values[i].data, values[i].len, err);
    return rc;
}

int shard_writer_add(struct shard_writer *w, const void *key, size_t key_len, const struct larder_value *values,
                     struct larder_error *err)
{
    struct record_parts parts;
    int rc = check_key(w, key_len, err);
    if (rc || (rc = record_encode(&w->schema, values, w->comp, w->codec, &w->front, &w->tmp, &parts, err)) ||
        (rc = footer_reserve(w, key_len, err)))
        return rc;
    struct extent e = {w->offset, 0, w->samples, parts.stored_len, parts.raw_len, parts.crc, parts.codec, false};
    rc = w->io->ops->write(w->out, w->front.data, w->front.len, err);
    if (!rc && parts.packed_apart)
        rc = write_values(w, values, false, err);
    if (!rc)
        rc = write_values(w, values, true, err);
    if (!rc)
        footer_add(w, key, key_len, values, &e);
    return rc;
}

int shard_writer_add_stored(struct shard_writer *w, const void *key, size_t key_len, const struct record_ref *r,
                            struct larder_error *err)
{
    struct extent e = {w->offset, 0, w->samples, r->stored_len, r->raw_len, r->crc, r->codec, false};
    AUTO_FREE struct larder_value *values = calloc(w->schema.n, sizeof(*values));
    AUTO_FREE void *scratch = r->codec ? malloc(r->raw_len) : NULL;
    if (!values || (r->codec && !scratch))
        return err_nomem(err, r->raw_len, "a record");
    int rc = check_key(w, key_len, err);
    if (!rc && r->codec && !w->decomp)
        rc = zdecomp_new(&w->decomp, err);
    if (!rc && r->codec == CODEC_ZSTD_DICT && !w->decomp_dict)
        rc = zdict_new(w->dict, w->dict_len, &w->decomp_dict, err);
    if (!rc)
        rc = record_decode(&w->schema, &e, r->stored, w->decomp, r->codec == CODEC_ZSTD_DICT ? w->decomp_dict : NULL, scratch,
                           values, err);
    if (!rc)
        rc = footer_reserve(w, key_len, err);
    if (!rc)
        rc = w->io->ops->write(w->out, r->stored, r->stored_len, err);
    if (!rc)
        footer_add(w, key, key_len, values, &e);
    return rc;
}

uint64_t shard_writer_bytes(const struct shard_writer *w)
{
    uint64_t bytes = w->stored_bytes + w->table.len + w->key_ends.len + w->keys.len;
    for (uint32_t i = 0; i < w->schema.n; i++)
        bytes += w->columns[i].len + w->present[i].len;
    return bytes;
}

uint32_t shard_writer_samples(const struct shard_writer *w) { return w->samples; }

/* Writes one section as pages; keeps the directory and the CRC of page CRCs. */
static int put_section(struct shard_writer *w, struct trailer *t, uint16_t kind, uint32_t field, const void *data, size_t len,
                       struct larder_error *err)
{
    uint8_t page[STORE_PAGE];
    t->sections[t->n_sections++] = (struct section){kind, (uint16_t)field, t->pages, len};
    for (size_t at = 0; at < len;) {
        size_t n = MIN(len - at, (size_t)STORE_PAGE_DATA);
        memcpy(page + PAGE_HEAD, (const uint8_t *)data + at, n);
        page_seal(page, w->header.tag, t->pages, kind, (uint16_t)field, (uint16_t)n);
        t->pages_crc = crc32c(t->pages_crc, page, 4);
        int rc = w->io->ops->write(w->out, page, STORE_PAGE, err);
        if (rc)
            return rc;
        t->pages++;
        at += n;
    }
    return LARDER_OK;
}

static int put_footer(struct shard_writer *w, struct trailer *t, struct larder_error *err)
{
    static const uint8_t zeros[STORE_PAGE];
    t->footer_off = round_up(w->offset, STORE_PAGE);
    int rc = w->io->ops->write(w->out, zeros, t->footer_off - w->offset, err);
    if (!rc)
        rc = put_section(w, t, SECTION_TABLE, 0, w->table.data, w->table.len, err);
    if (!rc)
        rc = put_section(w, t, SECTION_KEY_ENDS, 0, w->key_ends.data, w->key_ends.len, err);
    if (!rc)
        rc = put_section(w, t, SECTION_KEYS, 0, w->keys.data, w->keys.len, err);
    for (uint32_t i = 0; !rc && i < w->schema.n; i++) {
        if (!type_width(w->schema.fields[i].type))
            continue;
        rc = put_section(w, t, SECTION_COLUMN, i, w->columns[i].data, w->columns[i].len, err);
        if (!rc && w->absent_seen[i])
            rc = put_section(w, t, SECTION_PRESENT, i, w->present[i].data, w->present[i].len, err);
    }
    if (!rc)
        rc = put_section(w, t, SECTION_META, 0, w->meta.data, w->meta.len, err);
    if (!rc && w->dict_len)
        rc = put_section(w, t, SECTION_DICT, 0, w->dict, w->dict_len, err);
    return rc;
}

int shard_writer_finish(struct shard_writer *w, struct shard_ref *ref, struct larder_error *err)
{
    uint8_t page[STORE_PAGE];
    AUTO_FREE struct trailer *t = calloc(1, sizeof(*t));
    char *name = strdup(w->name);
    int rc = LARDER_OK;
    if (!t || !name)
        rc = err_nomem(err, sizeof(*t), "a trailer");
    else if (w->samples == 0)
        rc = err_set(err, LARDER_EINVAL, "shard %s has no samples", w->name);
    if (!rc)
        rc = put_footer(w, t, err);
    if (!rc) {
        t->tag = w->header.tag;
        t->samples = w->samples;
        t->file_size = t->footer_off + ((uint64_t)t->pages + 1) * STORE_PAGE;
        t->stored_bytes = w->stored_bytes;
        t->raw_bytes = w->raw_bytes;
        t->dict_id = w->dict_id;
        t->header_crc = w->header_crc;
        trailer_encode(t, page);
        rc = w->io->ops->write(w->out, page, STORE_PAGE, err);
    }
    if (!rc) {
        rc = w->io->ops->finish(w->out, err);
        w->out = NULL;
    }
    if (!rc) {
        *ref = (struct shard_ref){.name = name, .size = t->file_size, .footer_off = t->footer_off,
                                  .stored_bytes = w->stored_bytes, .raw_bytes = w->raw_bytes, .samples = w->samples,
                                  .tag = w->header.tag, .trailer_crc = trailer_crc_of(page), .dict_id = w->dict_id,
                                  .unit = w->header.unit, .sub = w->header.sub};
        name = NULL;
    }
    free(name);
    shard_writer_abort(w);
    return rc;
}

void shard_writer_abort(struct shard_writer *w)
{
    if (!w)
        return;
    if (w->out)
        w->io->ops->abort(w->out);
    writer_free(w);
}
