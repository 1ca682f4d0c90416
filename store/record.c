/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.c - one sample as bytes: a head that places its fields, the packed part, the media part.
 *
 *     head | packed part: all non-media fields in schema order, compressed or not | media fields in schema order
 *
 * Media (images, audio) are compressed already: they stay as they are, so a reader gets a view into the stored bytes without
 * a copy. What does not shrink by 5% is stored raw. Records of 64 KiB or more with several fields carry a CRC a field in their
 * heads, so that one field can be read and checked alone. Pure functions; a decoder trusts no length before it is checked.
 */
#include "store/store_int.h"

static uint32_t head_short(const struct schema *s) { return 8 + 4 * s->n; }

uint32_t record_head_max(const struct schema *s) { return head_short(s) + 4 * (s->n + 1) + 4; }

uint32_t record_field_len(const uint8_t *head, uint32_t field) { return get_u32(head + 8 + 4 * field); }

static size_t ndarray_item(const char *dtype)
{
    const char *digit = dtype + strcspn(dtype, "0123456789");
    return *digit ? (size_t)atoi(digit) / 8 : 1; /* "bool" */
}

/* A value's bytes must be an array of the declared shape. */
static int check_ndarray(const struct schema_field *f, const uint8_t *data, size_t len, struct larder_error *err)
{
    uint64_t known = ndarray_item(f->dtype);
    uint32_t free_dims = 0;
    for (uint32_t i = 0; i < f->ndim; i++) {
        if (f->shape[i] < 0)
            free_dims++;
        else if (__builtin_mul_overflow(known, (uint64_t)f->shape[i], &known))
            return err_set(err, LARDER_EINVAL, "field %s: shape is too large", f->name);
    }
    if (free_dims == 0 && len == known)
        return LARDER_OK;
    if (free_dims == 1 && (known == 0 ? len == 0 : len % known == 0))
        return LARDER_OK;
    size_t dims = (size_t)f->ndim * 8;
    if (free_dims > 1 && len >= dims) {
        uint64_t want = ndarray_item(f->dtype);
        bool same = true;
        for (uint32_t i = 0; i < f->ndim; i++) {
            uint64_t d = get_u64(data + 8 * i);
            same &= f->shape[i] < 0 || d == (uint64_t)f->shape[i];
            if (__builtin_mul_overflow(want, d, &want))
                same = false;
        }
        if (same && len - dims == want)
            return LARDER_OK;
    }
    return err_set(err, LARDER_EINVAL, "field %s: %zu bytes are no %s array of the declared shape", f->name, len, f->dtype);
}

static int check_values(const struct schema *s, const struct larder_value *values, uint64_t *packed, uint64_t *media,
                        struct larder_error *err)
{
    *packed = *media = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const struct schema_field *f = &s->fields[i];
        if (!values[i].data)
            continue;
        unsigned width = type_width(f->type);
        if (width && values[i].len != width)
            return err_set(err, LARDER_EINVAL, "field %s (%s): %zu bytes given, %u expected", f->name,
                           larder_type_name(f->type), values[i].len, width);
        int rc = f->type == LARDER_NDARRAY ? check_ndarray(f, values[i].data, values[i].len, err) : LARDER_OK;
        if (rc)
            return rc;
        *(type_is_media(f->type) ? media : packed) += values[i].len;
        if (*packed + *media > LARDER_SAMPLE_BYTES_MAX - record_head_max(s))
            return err_set(err, LARDER_EINVAL, "sample is larger than %u bytes", LARDER_SAMPLE_BYTES_MAX);
    }
    return LARDER_OK;
}

/* All packed values back to back: a lone one where it lies, several gathered in tmp. */
static int gather(const struct schema *s, const struct larder_value *values, uint64_t packed, struct buf *tmp, const void **src,
                  struct larder_error *err)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (values[i].data && !type_is_media(s->fields[i].type) && values[i].len == packed) {
            *src = values[i].data;
            return LARDER_OK;
        }
    int rc = buf_reserve(tmp, packed, err);
    for (uint32_t i = 0; !rc && i < s->n; i++)
        if (values[i].data && !type_is_media(s->fields[i].type)) {
            memcpy(tmp->data + tmp->len, values[i].data, values[i].len);
            tmp->len += values[i].len;
        }
    *src = tmp->data;
    return rc;
}

/* Lays the packed part behind the head when compressing it saves 5%; else it stays with the caller. */
static int pack(const struct schema *s, const struct larder_value *values, uint64_t packed, struct zcomp *comp, uint8_t codec,
                struct buf *front, struct buf *tmp, struct record_parts *parts, struct larder_error *err)
{
    const void *src;
    size_t out_len = 0, cap = zcomp_bound(packed);
    parts->codec = CODEC_NONE;
    parts->packed_apart = true;
    if (!comp || packed < 16)
        return LARDER_OK;
    int rc = gather(s, values, packed, tmp, &src, err);
    if (rc || (rc = buf_reserve(front, cap, err)) ||
        (rc = zcomp_run(comp, src, packed, front->data + front->len, cap, &out_len, err)))
        return rc;
    if (out_len <= packed - packed / 20 && out_len < packed) {
        parts->codec = codec;
        parts->packed_apart = false;
        front->len += out_len;
    }
    return LARDER_OK;
}

/* crc continued over the packed or the media values, where the caller has them. */
static uint32_t crc_values(const struct schema *s, const struct larder_value *values, bool media, uint32_t crc)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (values[i].data && type_is_media(s->fields[i].type) == media)
            crc = crc32c(crc, values[i].data, values[i].len);
    return crc;
}

/* CRC of the record as stored: each byte is read once. */
static void checksum(const struct schema *s, const struct larder_value *values, const struct buf *front, struct record_parts *parts)
{
    parts->crc = crc32c(0, front->data, front->len);
    if (parts->packed_apart)
        parts->crc = crc_values(s, values, false, parts->crc);
    parts->crc = crc_values(s, values, true, parts->crc);
}

/* The same, with a CRC a field put into the head first. */
static void checksum_fields(const struct schema *s, const struct larder_value *values, uint32_t packed_stored, struct buf *front,
                            uint32_t head_len, struct record_parts *parts)
{
    uint8_t *head = front->data, *crcs = head + head_short(s);
    uint32_t packed_crc = parts->packed_apart ? crc_values(s, values, false, 0) : crc32c(0, head + head_len, packed_stored);
    for (uint32_t i = 0; i < s->n; i++) {
        bool media = values[i].data && type_is_media(s->fields[i].type);
        put_u32(crcs + 4 * i, media ? crc32c(0, values[i].data, values[i].len) : 0);
    }
    put_u32(crcs + 4 * s->n, packed_crc);
    put_u32(head + head_len - 4, crc32c(0, head, head_len - 4));
    parts->crc = crc32c_combine(crc32c(0, head, head_len), packed_crc, packed_stored);
    for (uint32_t i = 0; i < s->n; i++)
        if (values[i].data && type_is_media(s->fields[i].type))
            parts->crc = crc32c_combine(parts->crc, get_u32(crcs + 4 * i), values[i].len);
}

int record_encode(const struct schema *s, const struct larder_value *values, struct zcomp *comp, uint8_t codec,
                  struct buf *front, struct buf *tmp, struct record_parts *parts, struct larder_error *err)
{
    uint64_t packed, media;
    int rc = check_values(s, values, &packed, &media, err);
    if (rc)
        return rc;
    front->len = tmp->len = 0;
    uint32_t head_len = record_head_max(s);
    if ((rc = buf_reserve(front, head_len, err)))
        return rc;
    front->len = head_len;
    if ((rc = pack(s, values, packed, comp, codec, front, tmp, parts, err)))
        return rc;
    uint32_t in_front = (uint32_t)front->len - head_len, packed_stored = parts->packed_apart ? (uint32_t)packed : in_front;
    bool field_crcs = s->n >= 2 && head_short(s) + packed_stored + media >= FIELD_CRC_BYTES;
    if (!field_crcs) {
        memmove(front->data + head_short(s), front->data + head_len, in_front);
        head_len = head_short(s);
        front->len = head_len + in_front;
    }
    uint8_t *head = front->data;
    memset(head, 0, head_len);
    head[0] = field_crcs ? RECORD_FIELD_CRCS : 0;
    put_u16(head + 2, (uint16_t)s->n);
    put_u32(head + 4, packed_stored);
    for (uint32_t i = 0; i < s->n; i++)
        put_u32(head + 8 + 4 * i, values[i].data ? (uint32_t)values[i].len : FIELD_ABSENT);
    parts->stored_len = (uint32_t)(head_len + packed_stored + media);
    parts->raw_len = (uint32_t)(head_len + packed + media);
    if (field_crcs)
        checksum_fields(s, values, packed_stored, front, head_len, parts);
    else
        checksum(s, values, front, parts);
    return LARDER_OK;
}

static int bad(const struct extent *e, const char *why, struct larder_error *err)
{
    return err_set(err, LARDER_ECORRUPT, "record of %u bytes at offset %llu (slot %u): %s", e->stored_len,
                   (unsigned long long)e->offset, e->slot, why);
}

int record_layout_decode(const struct schema *s, const struct extent *e, const uint8_t *head, size_t len,
                         struct record_layout *l, struct larder_error *err)
{
    l->field_crcs = s->n >= 2 && e->stored_len >= FIELD_CRC_BYTES;
    l->head_len = l->field_crcs ? record_head_max(s) : head_short(s);
    if (len < l->head_len || e->stored_len < l->head_len || e->raw_len < l->head_len)
        return bad(e, "shorter than its head", err);
    if (l->field_crcs && get_u32(head + l->head_len - 4) != crc32c(0, head, l->head_len - 4))
        return bad(e, "head fails its CRC32C", err);
    if (head[0] != (l->field_crcs ? RECORD_FIELD_CRCS : 0) || head[1] || get_u16(head + 2) != s->n)
        return bad(e, "head does not match the schema", err);
    l->packed_len = get_u32(head + 4);
    uint64_t packed_raw = 0, media = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t n = record_field_len(head, i);
        if (n == FIELD_ABSENT)
            continue;
        unsigned width = type_width(s->fields[i].type);
        if (width && n != width)
            return bad(e, "a scalar has the wrong width", err);
        *(type_is_media(s->fields[i].type) ? &media : &packed_raw) += n;
    }
    if (l->head_len + (uint64_t)l->packed_len + media != e->stored_len || l->head_len + packed_raw + media != e->raw_len ||
        (e->codec == CODEC_NONE && l->packed_len != packed_raw))
        return bad(e, "field lengths do not add up", err);
    l->packed_raw = (uint32_t)packed_raw;
    return LARDER_OK;
}

/* Views of all fields: packed ones from `packed`, media from `media`. */
static void place(const struct schema *s, const uint8_t *head, const uint8_t *packed, const uint8_t *media,
                  struct larder_value *values)
{
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t n = record_field_len(head, i);
        const uint8_t **from = type_is_media(s->fields[i].type) ? &media : &packed;
        values[i] = (struct larder_value){NULL, 0};
        if (n == FIELD_ABSENT)
            continue;
        values[i] = (struct larder_value){*from, n};
        *from += n;
    }
}

int record_decode(const struct schema *s, const struct extent *e, const uint8_t *stored, struct zdecomp *d,
                  const struct zdict *dict, void *scratch, struct larder_value *values, struct larder_error *err)
{
    struct record_layout l;
    int rc = record_layout_decode(s, e, stored, e->stored_len, &l, err);
    if (rc)
        return rc;
    const uint8_t *packed = stored + l.head_len;
    if (e->codec != CODEC_NONE) {
        if ((rc = zdecomp_run(d, dict, packed, l.packed_len, scratch, l.packed_raw, err)))
            return rc;
        packed = scratch;
    }
    place(s, stored, packed, stored + l.head_len + l.packed_len, values);
    return LARDER_OK;
}

/* What a view needs to know of a field, by its type. */
static const struct kind { uint8_t width, media; } kinds[] = {
    [LARDER_IMAGE] = {0, 1}, [LARDER_AUDIO] = {0, 1}, [LARDER_I64] = {8, 0}, [LARDER_F64] = {8, 0}, [LARDER_F32] = {4, 0},
    [LARDER_BOOL] = {1, 0}, [LARDER_NDARRAY] = {0, 0},
};

/* Places the n fields of a record; false: they do not add up. */
static inline bool views_of(const struct schema_field *fields, uint32_t n, uint32_t head_len, uint32_t stored_len,
                            const uint8_t *stored, struct larder_value *values)
{
    uint64_t packed = head_len, media_at = (uint64_t)head_len + get_u32(stored + 4), media = media_at; /* offsets */
    for (uint32_t i = 0; i < n; i++) {
        struct kind kind = kinds[fields[i].type];
        uint32_t len = get_u32(stored + 8 + 4 * i);
        values[i] = (struct larder_value){NULL, 0};
        if (len == FIELD_ABSENT)
            continue;
        if (kind.width && len != kind.width)
            return false;
        if (kind.media) {
            values[i] = (struct larder_value){stored + media, len};
            media += len;
        } else {
            values[i] = (struct larder_value){stored + packed, len};
            packed += len;
        }
    }
    return packed == media_at && media == stored_len;
}

static inline bool is_plain(const struct extent *e)
{
    return e->checked && e->codec == CODEC_NONE && e->raw_len == e->stored_len;
}

/* record_views for a schema of one field: the samples for which a few instructions count. */
static size_t lone_views(struct kind kind, const struct extent *e, const void *const *stored, size_t n, struct larder_value *values)
{
    uint32_t packed_mask = kind.media ? 0 : UINT32_MAX, head_len = 12;
    for (size_t i = 0; i < n; i++) {
        const uint8_t *head = stored[i];
        if (!is_plain(&e[i]) || e[i].stored_len < head_len || get_u32(head) != 1u << 16)
            return i;
        uint32_t packed = get_u32(head + 4), len = get_u32(head + 8), rest = e[i].stored_len - head_len;
        bool absent = len == FIELD_ABSENT;
        values[i] = (struct larder_value){absent ? NULL : head + head_len, rest};
        if (absent ? packed || rest : len != rest || packed != (len & packed_mask) || (kind.width && len != kind.width))
            return i;
    }
    return n;
}

size_t record_views(const struct schema *s, const struct extent *e, const void *const *stored, size_t n, struct larder_value *values)
{
    if (s->n == 1)
        return lone_views(kinds[s->fields[0].type], e, stored, n, values);
    for (size_t i = 0; i < n; i++) {
        bool field_crcs = e[i].stored_len >= FIELD_CRC_BYTES;
        uint32_t head_len = field_crcs ? record_head_max(s) : head_short(s), flags = field_crcs ? RECORD_FIELD_CRCS : 0;
        if (!is_plain(&e[i]) || e[i].stored_len < head_len || get_u32(stored[i]) != (flags | s->n << 16) ||
            !views_of(s->fields, s->n, head_len, e[i].stored_len, stored[i], values + i * s->n))
            return i;
    }
    return n;
}
