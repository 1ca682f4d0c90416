/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decoded.c - the stored form of samples, and the memory that keeps it (CoorDL 8): images decoded and scaled, before anything random.
 *
 * What is the same in every epoch is done once: an image is decoded and scaled so that its shorter side is `side` (those with a smaller one
 * stay as they are), the other fields that batches need stay as they are stored. With the cache on, every sample goes through this form, hit or
 * miss, so no pixel depends on what is cached. Crops are computed for the image as it is encoded and moved to the pixels kept: x and w by
 * the ratio of the widths, y and h by that of the heights, fractions and all (decoded_geometry). EXIF orientation is noted and not applied.
 *
 *     sample   magic, number of parts, microseconds that decoding took, 0
 *              a part: field, kind, bytes, width, height, full width, full height, orientation
 *              the bytes of each part, at multiples of 16
 *
 * Compressed pixels are zstd of differences, each pixel against left + above - above left, and red and blue against green then: the same
 * bytes come back. The other parts stay as they are, so that they are views of the cache either way.
 *
 * Threads: struct decoded is shared by any; a worker belongs to one.
 */
#include <math.h>

#include "loader/prep_int.h"

#define MAGIC 0x3164726cu /* "lrd1" */
#define HEAD 16u
#define PART 32u
#define ALIGN 16u
#define LEVEL 1

enum { KIND_RAW = 1, KIND_PIXELS, KIND_PACKED };

struct decoded {
    struct decoded_options o;
    const struct schema *schema;
    uint8_t *keep;
    uint32_t n_parts_max;
    struct tiers_variant *cache;
};

struct decoded_worker {
    struct decoded *d;
    struct image_decoder *images;
    struct zcomp *comp;
    struct zdecomp *decomp;
    uint8_t *record, *packed, *pixels, *lines; /* a sample in its stored form; the same compressed; what came out of it; differences */
    size_t cap_record, cap_packed, cap_pixels, cap_lines;
    struct decoded_image *out; /* [n_fields] */
};

/* ---- open and close ---- */

/* Of all that the stored form is a function of, beside the record. */
static uint64_t fingerprint(const struct decoded_options *o, uint32_t n_fields)
{
    uint64_t words[] = {MAGIC, o->side, (uint64_t)o->image.filter, o->image.no_antialias != 0, o->image.exact != 0, o->image.pixels_max};
    return hash64(hash64(0, words, sizeof(words)), o->keep, n_fields);
}

int decoded_open(const struct decoded_options *o, struct decoded **out, struct larder_error *err)
{
    const struct schema *schema = &o->manifest->schema;
    struct decoded *d = calloc(1, sizeof(*d));
    *out = NULL;
    if (!d)
        return err_nomem(err, sizeof(*d), "a decoded cache");
    d->o = *o;
    d->schema = schema;
    d->keep = bytes_dup(o->keep, schema->n);
    for (uint32_t i = 0; i < schema->n; i++)
        d->n_parts_max += ((o->keep[i] & DECODED_RAW) != 0) + ((o->keep[i] & DECODED_PIXELS) != 0);
    struct tiers_variant_options v = {o->name, o->bytes, fingerprint(o, schema->n), o->no_pin};
    int rc = d->keep ? tiers_variant_open(o->manifest, &v, &d->cache, err) : err_nomem(err, schema->n, "a decoded cache");
    if (rc) {
        decoded_close(d);
        return rc;
    }
    d->o.keep = d->keep;
    *out = d;
    return LARDER_OK;
}

void decoded_close(struct decoded *d)
{
    if (!d)
        return;
    tiers_variant_close(d->cache);
    free(d->keep);
    free(d);
}

size_t decoded_lookup(struct decoded *d, const uint64_t *ordinals, size_t n, struct extent *extents, const void **views)
{
    return tiers_variant_lookup(d->cache, ordinals, n, extents, views);
}

struct tiers_variant_stats decoded_stats(const struct decoded *d)
{
    struct tiers_variant_stats s;
    tiers_variant_stats(d->cache, &s);
    return s;
}

int decoded_worker_new(struct decoded *d, struct decoded_worker **out, struct larder_error *err)
{
    struct decoded_worker *w = calloc(1, sizeof(*w));
    *out = NULL;
    if (!w)
        return err_nomem(err, sizeof(*w), "a worker of the decoded cache");
    w->d = d;
    w->out = calloc((size_t)d->schema->n + 1, sizeof(*w->out));
    int rc = w->out ? image_decoder_new(&w->images, err) : err_nomem(err, d->schema->n * sizeof(*w->out), "images of a sample");
    if (!rc && d->o.compress)
        rc = zcomp_new(LEVEL, NULL, 0, &w->comp, err);
    if (!rc)
        rc = zdecomp_new(&w->decomp, err); /* another process may compress */
    if (rc) {
        decoded_worker_free(w);
        return rc;
    }
    *out = w;
    return LARDER_OK;
}

void decoded_worker_free(struct decoded_worker *w)
{
    if (!w)
        return;
    image_decoder_free(w->images);
    zcomp_free(w->comp);
    zdecomp_free(w->decomp);
    free(w->record);
    free(w->packed);
    free(w->pixels);
    free(w->lines);
    free(w->out);
    free(w);
}

/* ---- differences: pure ---- */

static void take_differences(const uint8_t *pixels, uint32_t width, uint32_t height, uint8_t *out)
{
    size_t row = (size_t)width * 3;
    for (uint32_t y = 0; y < height; y++, pixels += row, out += row) {
        uint8_t left[3] = {0, 0, 0}; /* how much the pixel on the left differs from the one above it */
        for (size_t x = 0; x < row; x += 3) {
            uint8_t d[3];
            for (size_t c = 0; c < 3; c++) {
                uint8_t step = (uint8_t)(pixels[x + c] - (y ? *(pixels + x + c - row) : 0));
                d[c] = (uint8_t)(step - left[c]);
                left[c] = step;
            }
            out[x] = (uint8_t)(d[0] - d[1]);
            out[x + 1] = d[1];
            out[x + 2] = (uint8_t)(d[2] - d[1]);
        }
    }
}

/* In place. */
static void add_differences(uint8_t *pixels, uint32_t width, uint32_t height)
{
    size_t row = (size_t)width * 3;
    for (uint32_t y = 0; y < height; y++, pixels += row) {
        uint8_t r = 0, g = 0, b = 0;
        const uint8_t *above = y ? pixels - row : NULL;
        for (size_t x = 0; x < row; x += 3) {
            uint8_t green = pixels[x + 1];
            r = (uint8_t)(r + pixels[x] + green);
            g = (uint8_t)(g + green);
            b = (uint8_t)(b + pixels[x + 2] + green);
            pixels[x] = (uint8_t)(above ? above[x] + r : r);
            pixels[x + 1] = (uint8_t)(above ? above[x + 1] + g : g);
            pixels[x + 2] = (uint8_t)(above ? above[x + 2] + b : b);
        }
    }
}

/* ---- a sample's stored form ---- */

struct part { uint32_t field, kind, len; struct decoded_image image; };

static void part_encode(const struct part *p, uint8_t *at)
{
    const uint32_t words[] = {p->field, p->kind, p->len, p->image.width, p->image.height, p->image.full_width, p->image.full_height,
                              (uint32_t)p->image.orientation};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        put_u32(at + 4 * i, words[i]);
}

static void part_decode(const uint8_t *at, struct part *p)
{
    *p = (struct part){get_u32(at), get_u32(at + 4), get_u32(at + 8),
                       {NULL, get_u32(at + 12), get_u32(at + 16), get_u32(at + 20), get_u32(at + 24), (int)get_u32(at + 28)}};
}

static void head_encode(uint8_t *record, uint32_t n_parts, uint64_t ns)
{
    put_u32(record, MAGIC);
    put_u32(record + 4, n_parts);
    put_u32(record + 8, (uint32_t)MIN(ns / 1000, (uint64_t)UINT32_MAX));
    put_u32(record + 12, 0);
}

static size_t parts_end(uint32_t n_parts) { return HEAD + (size_t)n_parts * PART; }

/* Room in *p for `need` bytes, some more for those to come. */
static int room(uint8_t **p, size_t *cap, size_t need, struct larder_error *err)
{
    if (need <= *cap)
        return LARDER_OK;
    if (need > LARDER_SAMPLE_BYTES_MAX)
        return err_set(err, LARDER_ECORRUPT, "decoded it takes %zu bytes: more than a sample may have", need);
    return GROW(*p, *cap, need + need / 4, err);
}

/* The sizes of an image's stored form: the shorter side is `side`, unless it is less. */
static void stored_size(const struct decoded *d, const struct image_info *info, struct decoded_image *im)
{
    uint32_t side = d->o.side;
    uint64_t w = info->width, h = info->height, shorter = MIN(w, h);
    *im = (struct decoded_image){NULL, info->width, info->height, info->width, info->height, info->orientation};
    if (shorter <= side)
        return;
    im->width = (uint32_t)((2 * w * side + shorter) / (2 * shorter));
    im->height = (uint32_t)((2 * h * side + shorter) / (2 * shorter));
}

/* The pixels of a field behind `*at` of the record. */
static int make_pixels(struct decoded_worker *w, const struct larder_value *v, struct part *p, size_t *at, struct larder_error *err)
{
    const struct larder_image *o = &w->d->o.image;
    struct image_info info;
    uint64_t most = o->pixels_max ? o->pixels_max : 1ull << 28;
    int rc = image_open(w->images, v->data, v->len, &info, err);
    if (rc)
        return rc;
    if ((uint64_t)info.width * info.height > most)
        return err_set(err, LARDER_ECORRUPT, "an image of %u x %u is larger than the limit of %llu pixels", info.width, info.height,
                       (unsigned long long)most);
    stored_size(w->d, &info, &p->image);
    uint64_t len = (uint64_t)p->image.width * p->image.height * 3;
    if (len > LARDER_SAMPLE_BYTES_MAX)
        return err_set(err, LARDER_ECORRUPT, "an image of %u x %u: decoded it is more than a sample may have", info.width, info.height);
    rc = room(&w->record, &w->cap_record, *at + len, err);
    if (rc)
        return rc;
    struct image_job job = {.width = p->image.width, .height = p->image.height, .filter = o->filter, .no_antialias = o->no_antialias != 0,
                            .exact = o->exact != 0, .dtype = IMAGE_U8, .pixels_max = o->pixels_max};
    p->len = (uint32_t)len;
    return image_render(w->images, &job, w->record + *at, err);
}

static int in_field(const struct decoded *d, uint32_t field, int rc, struct larder_error *err)
{
    struct larder_error e;
    if (!err || (rc != LARDER_ECORRUPT && rc != LARDER_EINVAL))
        return rc;
    e = *err;
    return err_set(err, rc, "field %.60s: %.170s", d->schema->fields[field].name, e.message);
}

static int make_part(struct decoded_worker *w, uint32_t n, uint32_t field, uint32_t kind, const struct larder_value *v, size_t *at,
                     struct larder_error *err)
{
    struct part p = {field, kind, (uint32_t)v->len, {0}};
    int rc;
    *at = round_up(*at, ALIGN);
    if (kind == KIND_PIXELS) {
        rc = in_field(w->d, field, make_pixels(w, v, &p, at, err), err);
    } else {
        rc = room(&w->record, &w->cap_record, *at + v->len, err);
        if (!rc && v->len)
            memcpy(w->record + *at, v->data, v->len);
    }
    if (rc)
        return rc;
    part_encode(&p, w->record + HEAD + (size_t)n * PART);
    *at += p.len;
    return LARDER_OK;
}

/* The record into w->record. */
static int make_record(struct decoded_worker *w, const struct larder_value *values, size_t *len, struct larder_error *err)
{
    const struct decoded *d = w->d;
    uint32_t n = 0;
    uint64_t begin = now_ns();
    for (uint32_t i = 0; i < d->schema->n; i++)
        if (values[i].data)
            n += ((d->keep[i] & DECODED_RAW) != 0) + ((d->keep[i] & DECODED_PIXELS) != 0);
    size_t at = parts_end(n);
    int rc = room(&w->record, &w->cap_record, at, err);
    n = 0;
    for (uint32_t i = 0; !rc && i < d->schema->n; i++) {
        if (!values[i].data)
            continue;
        if (d->keep[i] & DECODED_RAW)
            rc = make_part(w, n++, i, KIND_RAW, &values[i], &at, err);
        if (!rc && (d->keep[i] & DECODED_PIXELS))
            rc = make_part(w, n++, i, KIND_PIXELS, &values[i], &at, err);
    }
    if (rc)
        return rc;
    head_encode(w->record, n, now_ns() - begin);
    *len = at;
    return LARDER_OK;
}

/* One part of w->record, compressed where it is pixels, behind *at of w->packed. */
static int pack_part(struct decoded_worker *w, struct part *p, const uint8_t *bytes, size_t *at, struct larder_error *err)
{
    size_t len = p->len;
    *at = round_up(*at, ALIGN);
    int rc = room(&w->packed, &w->cap_packed, *at + zcomp_bound(len), err);
    if (rc)
        return rc;
    if (p->kind == KIND_PIXELS) {
        rc = room(&w->lines, &w->cap_lines, len, err);
        if (!rc)
            take_differences(bytes, p->image.width, p->image.height, w->lines);
        if (!rc)
            rc = zcomp_run(w->comp, w->lines, len, w->packed + *at, w->cap_packed - *at, &len, err);
        p->kind = KIND_PACKED;
        p->len = (uint32_t)len;
    } else if (len) {
        memcpy(w->packed + *at, bytes, len);
    }
    *at += len;
    return rc;
}

/* w->record of len bytes into w->packed. */
static int pack_record(struct decoded_worker *w, size_t *len, struct larder_error *err)
{
    uint32_t n = get_u32(w->record + 4);
    size_t from = parts_end(n), to = from;
    int rc = room(&w->packed, &w->cap_packed, to, err);
    for (uint32_t i = 0; !rc && i < n; i++) {
        struct part p;
        part_decode(w->record + HEAD + (size_t)i * PART, &p);
        from = round_up(from, ALIGN);
        const uint8_t *bytes = w->record + from;
        from += p.len;
        rc = pack_part(w, &p, bytes, &to, err);
        if (!rc)
            part_encode(&p, w->packed + HEAD + (size_t)i * PART);
    }
    if (!rc)
        memcpy(w->packed, w->record, HEAD);
    *len = to;
    return rc;
}

/* ---- reading it ---- */

static int damaged(struct larder_error *err)
{
    return err_set(err, LARDER_EIO, "the decoded cache holds something that is no sample: another program writes to its memory, or the memory fails");
}

static int take_packed(struct decoded_worker *w, const struct part *p, const uint8_t *bytes, size_t *at, struct larder_error *err)
{
    size_t len = (size_t)p->image.width * p->image.height * 3;
    if (zdecomp_run(w->decomp, NULL, bytes, p->len, w->pixels + *at, len, NULL))
        return damaged(err);
    add_differences(w->pixels + *at, p->image.width, p->image.height);
    w->out[p->field].pixels = w->pixels + *at;
    *at += len;
    return LARDER_OK;
}

/* Part i of a record, checked: its bytes lie in it. */
static bool part_take(const struct decoded *d, const uint8_t *record, size_t len, uint32_t i, size_t *at, struct part *p)
{
    part_decode(record + HEAD + (size_t)i * PART, p);
    *at = round_up(*at, ALIGN);
    uint64_t pixels = (uint64_t)p->image.width * p->image.height * 3;
    return p->field < d->schema->n && *at <= len && p->len <= len - *at && pixels <= LARDER_SAMPLE_BYTES_MAX &&
           (p->kind == KIND_RAW || p->kind == KIND_PACKED || (p->kind == KIND_PIXELS && p->len == pixels));
}

/* Bytes that its compressed parts take; UINT64_MAX: it is no record. */
static uint64_t packed_bytes(const struct decoded *d, const uint8_t *record, size_t len)
{
    uint64_t sum = 0;
    size_t at;
    if (len < HEAD || get_u32(record) != MAGIC || get_u32(record + 4) > d->n_parts_max || parts_end(get_u32(record + 4)) > len)
        return UINT64_MAX;
    at = parts_end(get_u32(record + 4));
    for (uint32_t i = 0; i < get_u32(record + 4); i++) {
        struct part p;
        if (!part_take(d, record, len, i, &at, &p))
            return UINT64_MAX;
        at += p.len;
        sum += p.kind == KIND_PACKED ? (uint64_t)p.image.width * p.image.height * 3 : 0;
    }
    return sum;
}

uint64_t decoded_raw_bytes(const struct decoded *d, const void *view, size_t len)
{
    const uint8_t *record = view;
    uint64_t sum = 0;
    if (packed_bytes(d, record, len) == UINT64_MAX)
        return 0;
    for (uint32_t i = 0; i < get_u32(record + 4); i++) {
        struct part p;
        part_decode(record + HEAD + (size_t)i * PART, &p);
        sum += p.kind == KIND_RAW ? p.len : 0;
    }
    return sum;
}

int decoded_take(struct decoded_worker *w, const void *view, size_t len, struct larder_value *values, const struct decoded_image **images,
                 uint64_t *ns, struct larder_error *err)
{
    const uint8_t *record = view;
    const struct decoded *d = w->d;
    uint64_t unpacked = packed_bytes(d, record, len);
    if (unpacked > (uint64_t)LARDER_SAMPLE_BYTES_MAX * LARDER_FIELDS_MAX)
        return damaged(err);
    if (unpacked > w->cap_pixels && GROW(w->pixels, w->cap_pixels, unpacked + unpacked / 4, err))
        return LARDER_ENOMEM;
    memset(w->out, 0, d->schema->n * sizeof(*w->out));
    if (values)
        memset(values, 0, d->schema->n * sizeof(*values));
    uint32_t n = get_u32(record + 4);
    size_t at = parts_end(n), to = 0;
    int rc = LARDER_OK;
    for (uint32_t i = 0; !rc && i < n; i++) {
        struct part p;
        if (!part_take(d, record, len, i, &at, &p))
            return damaged(err);
        if (p.kind == KIND_RAW) {
            if (values)
                values[p.field] = (struct larder_value){record + at, p.len};
        } else {
            w->out[p.field] = p.image;
            w->out[p.field].pixels = record + at;
            if (p.kind == KIND_PACKED)
                rc = take_packed(w, &p, record + at, &to, err);
        }
        at += p.len;
    }
    *images = w->out;
    *ns = get_u32(record + 8) * 1000ull;
    return rc;
}

int decoded_make(struct decoded_worker *w, uint64_t ordinal, const struct larder_value *values, const struct decoded_image **images,
                 uint64_t *ns, struct larder_error *err)
{
    size_t len, packed;
    int rc = make_record(w, values, &len, err);
    if (rc)
        return rc;
    if (!tiers_variant_full(w->d->cache)) {
        const uint8_t *bytes = w->record;
        size_t n = len;
        if (w->comp && (rc = pack_record(w, &packed, err)))
            return rc;
        if (w->comp && packed < len)
            bytes = w->packed, n = packed;
        if (n <= UINT32_MAX && len <= UINT32_MAX)
            tiers_variant_put(w->d->cache, ordinal, bytes, (uint32_t)n, (uint32_t)len, bytes == w->packed);
    }
    return decoded_take(w, w->record, len, NULL, images, ns, err);
}

void decoded_geometry(const struct decoded_image *im, const struct geometry *full, struct geometry *stored)
{
    bool turned = full->orientation >= 5;
    double x = (double)im->width / im->full_width, y = (double)im->height / im->full_height;
    *stored = *full;
    stored->image_width = turned ? im->height : im->width;
    stored->image_height = turned ? im->width : im->height;
    stored->x *= turned ? y : x;
    stored->w *= turned ? y : x;
    stored->y *= turned ? x : y;
    stored->h *= turned ? x : y;
}
