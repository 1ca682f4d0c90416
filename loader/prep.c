/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prep.c - the arrays of a batch, made of the values of its samples.
 *
 *     prep_begin    all arrays of a batch in one piece of memory, each with room for the largest that it can get
 *     prep_sample   what has a fixed size is decoded straight into its place; of the rest the length is checked and noted
 *     prep_end      values of differing size are put behind each other
 *
 * Invariants: prep_bytes() and prep_begin() are one walk over the outputs, with and without memory, so what was counted is there. A stored
 * length is checked before it is used, in prep_sample(), where a wrong one is the fault of one sample. Whatever is done to a sample
 * overwrites all its places, so that it may be done again with the values of another. The randomness of a sample is a function of (seed,
 * epoch, position) and no other thing; that of images is keyed by their view, so several outputs of one batch are cropped alike.
 *
 * Threads: struct prep is constant. prep_sample() runs in any number of threads, with a worker and a sample each; the others in one.
 */
#include <math.h>

#include "loader/prep_int.h"
#include "store/codec/codec.h"

#define ALIGN 64u
#define NDIM_MAX 32u
#define VIEW_AUDIO 0xfffffffeu /* views of images count from 0 */
#define VIEW_USER 0xffffffffu

struct prep_worker {
    const struct prep *prep;
    struct image_decoder *images;
    struct audio_decoder *audio;
    struct image_job *jobs;      /* [most views], as the next two */
    void **outs;
    struct geometry *geometry;
    uint32_t views;
    const struct decoded_image *decoded; /* [n_fields] of the sample; NULL: images are decoded here */
};

/* An array while it is made: what its struct larder_array shows as constant. */
struct place {
    uint8_t *data;
    uint64_t cap;               /* bytes there */
    int64_t *shape;
    struct larder_value *values;
    uint64_t *offsets;
    uint32_t *lengths;
    uint8_t *present, *keep;
    struct geometry *geometry;  /* [n * views] of an image that is followed */
    uint32_t *rates;            /* [n] of audio that is taken at any rate; 0: unknown */
};

/* One sample on its way. */
struct one {
    struct prep_batch *b;
    uint32_t i;
    uint64_t ordinal;
    struct random_key key;
    const struct larder_value *values;
};

/* ---- memory ---- */

/* Takes pieces of memory, or only counts them where base is NULL. used: UINT64_MAX when it does not fit into 64 bits. */
struct cursor { uint8_t *base; uint64_t used; };

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t c;
    return __builtin_mul_overflow(a, b, &c) ? UINT64_MAX : c;
}

static void *piece(struct cursor *c, uint64_t count, uint64_t size)
{
    uint64_t at = c->used, bytes = times(count, size);
    if (bytes > UINT64_MAX - ALIGN || __builtin_add_overflow(at, round_up(bytes, ALIGN), &c->used))
        c->used = UINT64_MAX;
    return c->base ? c->base + at : NULL;
}

/* What a batch of n samples, whose records have raw_bytes together and raw_max at most, may take. */
struct bounds { uint64_t n, raw_bytes, raw_max; };

static uint64_t data_bytes(const struct prep_output *q, const struct bounds *s)
{
    uint64_t all = q->row;
    switch (q->o.prep) {
    case LARDER_PREP_BYTES: return 0;
    case LARDER_PREP_RAGGED: return s->raw_bytes;
    case LARDER_PREP_BOXES: return times(times(s->raw_bytes / (4 * q->stored->bytes), q->views), q->row);
    case LARDER_PREP_PADDED:
        for (uint32_t i = 0; q->o.pad_to && i < q->n_vary; i++)
            all = times(all, q->o.pad_to);
        return times(s->n, q->o.pad_to ? all : s->raw_max);
    default: return times(s->n, q->row);
    }
}

static void lay_one(const struct prep_output *q, const struct bounds *s, struct cursor *c, struct place *t)
{
    int prep = q->o.prep;
    t->cap = data_bytes(q, s);
    t->shape = piece(c, q->ndim, sizeof(*t->shape));
    t->data = piece(c, t->cap, 1);
    if (prep == LARDER_PREP_BYTES)
        t->values = piece(c, s->n, sizeof(*t->values));
    if (prep == LARDER_PREP_RAGGED || prep == LARDER_PREP_BOXES)
        t->offsets = piece(c, s->n * q->views + 1, sizeof(*t->offsets));
    if (prep == LARDER_PREP_PADDED || prep == LARDER_PREP_AUDIO)
        t->lengths = piece(c, s->n * MAX(q->n_vary, 1), sizeof(*t->lengths));
    if (prep == LARDER_PREP_DENSE || prep == LARDER_PREP_RAGGED || prep == LARDER_PREP_PADDED || prep == LARDER_PREP_BOXES)
        t->present = piece(c, s->n, 1);
    if (prep == LARDER_PREP_BOXES)
        t->keep = piece(c, t->cap / q->row, 1);
    if (q->followed)
        t->geometry = piece(c, s->n * q->views, sizeof(*t->geometry));
    if (prep == LARDER_PREP_AUDIO && !q->o.audio.rate)
        t->rates = piece(c, s->n, sizeof(*t->rates));
}

static void show(const struct prep_output *q, const struct place *t, uint32_t n, struct larder_array *a)
{
    if (q->ndim > 1 || q->o.prep == LARDER_PREP_RAGGED)
        memcpy(t->shape, q->shape, q->ndim * sizeof(*q->shape));
    t->shape[0] = n;
    *a = (struct larder_array){.name = q->name, .dtype = q->dtype, .ndim = q->ndim, .shape = t->shape, .len = t->cap, .values = t->values,
                               .offsets = t->offsets, .lengths = t->lengths, .present = t->present, .keep = t->keep,
                               .data = q->o.prep == LARDER_PREP_BYTES ? NULL : t->data};
}

/* The walk. b NULL: only counts. */
static uint64_t lay(const struct prep *p, const struct bounds *s, struct prep_batch *b)
{
    struct cursor c = {b ? b->memory : NULL, 0};
    struct larder_array *arrays = piece(&c, p->n, sizeof(*arrays));
    struct place *places = piece(&c, p->n, sizeof(*places));
    for (size_t i = 0; i < p->n; i++) {
        struct place t = {0};
        lay_one(&p->outputs[i], s, &c, &t);
        if (b) {
            show(&p->outputs[i], &t, b->n, &arrays[i]);
            places[i] = t;
        }
    }
    if (b) {
        b->arrays = arrays;
        b->plan = places;
    }
    return c.used;
}

size_t prep_bytes(const struct prep *p, uint32_t n, uint64_t raw_bytes, uint64_t raw_max)
{
    return lay(p, &(struct bounds){n, raw_bytes, raw_max}, NULL);
}

void prep_begin(const struct prep *p, struct prep_batch *b, uint32_t n, uint64_t raw_bytes, uint64_t raw_max, uint64_t seed, uint64_t epoch,
                void *memory)
{
    *b = (struct prep_batch){.prep = p, .n = n, .seed = seed, .epoch = epoch, .memory = memory};
    lay(p, &(struct bounds){n, raw_bytes, raw_max}, b);
}

/* ---- workers ---- */

int prep_worker_new(const struct prep *p, struct prep_worker **out, struct larder_error *err)
{
    struct prep_worker *w = calloc(1, sizeof(*w));
    int rc = w ? LARDER_OK : err_nomem(err, sizeof(*w), "a decoder");
    bool images = false, audio = false;
    *out = NULL;
    for (size_t i = 0; !rc && i < p->n; i++) {
        images |= p->outputs[i].o.prep == LARDER_PREP_IMAGE;
        audio |= p->outputs[i].o.prep == LARDER_PREP_AUDIO;
        w->views = MAX(w->views, p->outputs[i].views);
    }
    if (!rc && images)
        rc = image_decoder_new(&w->images, err);
    if (!rc && audio)
        rc = audio_decoder_new(&w->audio, err);
    if (!rc && images) {
        w->jobs = calloc(w->views, sizeof(*w->jobs));
        w->outs = calloc(w->views, sizeof(*w->outs));
        w->geometry = calloc(w->views, sizeof(*w->geometry));
        if (!w->jobs || !w->outs || !w->geometry)
            rc = err_nomem(err, w->views * sizeof(*w->jobs), "views");
    }
    if (rc) {
        prep_worker_free(w);
        return rc;
    }
    w->prep = p;
    *out = w;
    return LARDER_OK;
}

void prep_worker_free(struct prep_worker *w)
{
    if (!w)
        return;
    image_decoder_free(w->images);
    audio_decoder_free(w->audio);
    free(w->jobs);
    free(w->outs);
    free(w->geometry);
    free(w);
}

/* ---- images decoded before ---- */

bool prep_decoded(const struct prep *p, uint8_t *keep, struct decoded_options *o)
{
    uint32_t side = 0;
    memset(keep, 0, p->n_fields);
    for (size_t i = 0; i < p->n; i++) {
        const struct prep_output *q = &p->outputs[i];
        const struct larder_image *im = &q->o.image;
        for (uint32_t k = 0; q->field < 0 && q->o.prep == LARDER_PREP_USER && k < p->n_fields; k++)
            keep[k] |= DECODED_RAW;
        if (q->field >= 0)
            keep[q->field] |= q->o.prep == LARDER_PREP_IMAGE ? DECODED_PIXELS : DECODED_RAW;
        if (q->o.prep != LARDER_PREP_IMAGE || MAX(im->width, im->height) <= side)
            continue;
        side = MAX(im->width, im->height);
        o->image = *im;
    }
    if (!o->side)
        o->side = (side * 8 + 6) / 7;
    return side > 0;
}

void prep_worker_decoded(struct prep_worker *w, const struct decoded_image *images) { w->decoded = images; }

/* ---- values of one size ---- */

static int dense(const struct prep_output *q, struct place *t, uint32_t i, const struct larder_value *v, struct larder_error *err)
{
    uint8_t *out = t->data + i * q->row;
    t->present[i] = v->data != NULL;
    if (!v->data)
        memset(out, 0, q->row);
    else if (v->len != q->row)
        return err_set(err, LARDER_ECORRUPT, "%zu bytes instead of %llu", v->len, (unsigned long long)q->row);
    else if (q->type == LARDER_BOOL)
        *out = *(const uint8_t *)v->data != 0;
    else
        memcpy(out, v->data, q->row);
    return LARDER_OK;
}

static int user(const struct prep_output *q, struct place *t, const struct one *s, struct larder_error *err)
{
    uint32_t r[4];
    struct random_key key = s->key;
    struct larder_error why = {0};
    void *out = t->data + s->i * q->row;
    key.view = VIEW_USER;
    random_at(&key, 0, r);
    struct larder_prep_in in = {s->ordinal, key.epoch, key.position, (uint64_t)r[1] << 32 | r[0], s->values, s->b->prep->n_fields};
    memset(out, 0, q->row);
    int rc = q->o.fn(q->o.user, &in, out, &why);
    if (rc == LARDER_OK)
        return LARDER_OK;
    why.message[sizeof(why.message) - 1] = 0;
    return err_set(err, LARDER_EINVAL, "output %s: %s", q->name, why.message[0] ? why.message : larder_code_name(rc));
}

/* ---- values of differing size ---- */

/* The sizes of a value's dimensions, of which `shape` says those that do not differ. */
static int value_sizes(const struct prep_output *q, const int64_t *shape, uint32_t ndim, const struct larder_value *v, uint64_t *sizes,
                       struct larder_error *err)
{
    uint64_t all = q->item, head = 8 * ndim;
    if (q->n_vary == 1) {
        for (uint32_t k = 0; k < ndim; k++)
            sizes[k] = shape[k] < 0 ? v->len / q->row : (uint64_t)shape[k];
        if (v->len % q->row)
            return err_set(err, LARDER_ECORRUPT, "%zu bytes, no multiple of %llu", v->len, (unsigned long long)q->row);
        return LARDER_OK;
    }
    bool fits = v->len >= head;
    for (uint32_t k = 0; fits && k < ndim; k++) {
        sizes[k] = get_u64((const uint8_t *)v->data + 8 * k);
        fits = (shape[k] < 0 || sizes[k] == (uint64_t)shape[k]) && !__builtin_mul_overflow(all, sizes[k], &all);
    }
    if (!fits || all != v->len - head)
        return err_set(err, LARDER_ECORRUPT, "%zu bytes that do not hold the sizes and the elements of an array", v->len);
    return LARDER_OK;
}

static int ragged(const struct prep_output *q, struct place *t, uint32_t i, const struct larder_value *v, struct larder_error *err)
{
    uint64_t sizes[NDIM_MAX] = {0};
    t->present[i] = v->data != NULL;
    int rc = v->data ? value_sizes(q, q->shape, q->ndim, v, sizes, err) : LARDER_OK;
    t->offsets[i + 1] = sizes[0];
    return rc;
}

static int padded(const struct prep_output *q, struct place *t, uint32_t i, const struct larder_value *v, struct larder_error *err)
{
    uint64_t sizes[NDIM_MAX] = {0}, most = q->o.pad_to ? q->o.pad_to : UINT32_MAX;
    t->present[i] = v->data != NULL;
    int rc = v->data ? value_sizes(q, q->shape + 1, q->ndim - 1, v, sizes, err) : LARDER_OK;
    uint32_t *length = t->lengths + (size_t)i * q->n_vary;
    for (uint32_t k = 0; k + 1 < q->ndim; k++)
        if (q->shape[k + 1] < 0)
            *length++ = (uint32_t)MIN(sizes[k], most);
    return rc;
}

static int boxes(const struct prep_output *q, struct place *t, uint32_t i, const struct larder_value *v, struct larder_error *err)
{
    size_t box = 4 * q->stored->bytes;
    t->present[i] = v->data != NULL;
    for (uint32_t k = 0; k < q->views; k++)
        t->offsets[(uint64_t)i * q->views + k + 1] = v->data ? v->len / box : 0;
    if (v->data && (v->len % box || (q->n_boxes >= 0 && v->len / box != (uint64_t)q->n_boxes)))
        return err_set(err, LARDER_ECORRUPT, "%zu bytes, which are not boxes of 4 %s", v->len, q->stored->name);
    return LARDER_OK;
}

/* ---- images and what follows them, sounds ---- */

static int missing(const void *data, struct larder_error *err)
{
    return data ? LARDER_OK : err_set(err, LARDER_ECORRUPT, "the sample has none");
}

/* Opens what an image is made of: the sample's bytes, or pixels that were decoded before. */
static int open_image(struct prep_worker *w, const struct decoded_image *d, const struct larder_value *v, struct image_info *info,
                      struct larder_error *err)
{
    int rc = missing(d ? d->pixels : v->data, err);
    if (rc)
        return rc;
    if (!d)
        return image_open(w->images, v->data, v->len, info, err);
    *info = (struct image_info){.width = d->full_width, .height = d->full_height, .orientation = d->orientation};
    return image_open_rgb(w->images, d->pixels, d->width, d->height, err);
}

static int image(struct prep_worker *w, const struct prep_output *q, struct place *t, const struct one *s, const struct larder_value *v,
                 struct larder_error *err)
{
    const struct decoded_image *d = w->decoded ? &w->decoded[q->field] : NULL;
    struct image_info info;
    size_t first = (size_t)s->i * q->views, view_bytes = q->row / q->views;
    struct geometry *g = t->geometry ? t->geometry + first : w->geometry;
    struct random_key key = s->key;
    int rc = open_image(w, d, v, &info, err);
    for (uint32_t k = 0; !rc && k < q->views; k++) {
        struct geometry stored;
        key.view = k;
        transform_geometry(&q->o.image, info.width, info.height, q->o.image.exif ? info.orientation : 1, &key, &g[k]);
        if (d)
            decoded_geometry(d, &g[k], &stored);
        transform_job(&q->o.image, d ? &stored : &g[k], &w->jobs[k]);
        w->outs[k] = t->data + (first + k) * view_bytes;
    }
    return rc ? rc : image_render_views(w->images, w->jobs, w->outs, q->views, err);
}

static int mask(struct prep_worker *w, const struct prep_output *q, const struct prep_output *of, const struct geometry *geometry, struct place *t,
                uint32_t i, const struct larder_value *v, struct larder_error *err)
{
    struct image_info info;
    const struct geometry *g = geometry + (size_t)i * q->views;
    bool turned = g->orientation >= 5;
    uint32_t width = turned ? g->image_height : g->image_width, height = turned ? g->image_width : g->image_height;
    size_t view_bytes = q->row / q->views;
    int rc = missing(v->data, err);
    if (!rc)
        rc = image_open(w->images, v->data, v->len, &info, err);
    if (!rc && (info.width != width || info.height != height))
        rc = err_set(err, LARDER_ECORRUPT, "a mask of %u x %u of an image of %u x %u", info.width, info.height, width, height);
    for (uint32_t k = 0; !rc && k < q->views; k++) {
        struct image_job job;
        transform_job(&of->o.image, &g[k], &job);
        job.mask = true;
        job.filter = IMAGE_NEAREST;
        job.mean = job.std = NULL;
        job.planar = false;
        job.dtype = q->item == 1 ? IMAGE_U8 : IMAGE_U16;
        rc = image_render(w->images, &job, t->data + ((size_t)i * q->views + k) * view_bytes, err);
    }
    return rc;
}

static void tell_geometry(const struct prep_output *q, const struct geometry *geometry, struct place *t, uint32_t i)
{
    for (uint32_t k = 0; k < q->views; k++) {
        const struct geometry *g = &geometry[(size_t)i * q->views + k];
        int32_t row[] = {(int32_t)g->image_width, (int32_t)g->image_height, (int32_t)lrint(g->x), (int32_t)lrint(g->y), (int32_t)lrint(g->w),
                         (int32_t)lrint(g->h), g->flip, g->orientation};
        memcpy(t->data + ((size_t)i * q->views + k) * sizeof(row), row, sizeof(row));
    }
}

static int sound(struct prep_worker *w, const struct prep_output *q, struct place *t, const struct one *s, const struct larder_value *v,
                 struct larder_error *err)
{
    const struct larder_audio *a = &q->o.audio;
    struct audio_info info;
    struct audio_job job = {.frames = a->frames, .rate = a->rate, .channels = a->channels,
                            .dtype = q->item == 2 ? AUDIO_I16 : AUDIO_F32};
    struct random_key key = s->key;
    uint32_t r[4];
    key.view = VIEW_AUDIO;
    int rc = missing(v->data, err);
    if (!rc)
        rc = audio_open(w->audio, v->data, v->len, &info, err);
    if (rc)
        return rc;
    random_at(&key, 0, r);
    uint64_t span = audio_span(&info, &job), left = info.frames > span ? info.frames - span : 0;
    job.start = a->center ? left / 2 : (uint64_t)(((unsigned __int128)((uint64_t)r[1] << 32 | r[0]) * (left + 1)) >> 64);
    if (t->rates)
        t->rates[s->i] = info.rate;
    return audio_render(w->audio, &job, t->data + s->i * q->row, &t->lengths[s->i], err);
}

/* ---- a sample ---- */

static int prep_output(struct prep_worker *w, const struct prep_output *q, struct place *places, const struct one *s, struct larder_error *err)
{
    static const struct larder_value none = {NULL, 0};
    const struct prep *p = w->prep;
    const struct larder_value *v = q->field < 0 ? &none : &s->values[q->field];
    struct place *t = &places[q - p->outputs];
    const struct geometry *g = q->follows < 0 ? NULL : places[q->follows].geometry;
    switch (q->o.prep) {
    case LARDER_PREP_BYTES: t->values[s->i] = *v; return LARDER_OK;
    case LARDER_PREP_DENSE: return dense(q, t, s->i, v, err);
    case LARDER_PREP_RAGGED: return ragged(q, t, s->i, v, err);
    case LARDER_PREP_PADDED: return padded(q, t, s->i, v, err);
    case LARDER_PREP_IMAGE: return image(w, q, t, s, v, err);
    case LARDER_PREP_MASK: return mask(w, q, &p->outputs[q->follows], g, t, s->i, v, err);
    case LARDER_PREP_BOXES: return boxes(q, t, s->i, v, err);
    case LARDER_PREP_GEOMETRY: tell_geometry(q, g, t, s->i); return LARDER_OK;
    case LARDER_PREP_AUDIO: return sound(w, q, t, s, v, err);
    default: return user(q, t, s, err);
    }
}

int prep_sample(struct prep_worker *w, struct prep_batch *b, uint32_t i, uint64_t ordinal, uint64_t position, const struct larder_value *values,
                struct larder_error *err)
{
    const struct prep *p = w->prep;
    struct one s = {b, i, ordinal, {b->seed, b->epoch, position, 0}, values};
    for (size_t k = 0; k < p->n; k++) {
        const struct prep_output *q = &p->outputs[p->order[k]];
        int rc = prep_output(w, q, b->plan, &s, err);
        if (rc)
            return q->field_name ? err_prefix(err, rc, "field %s", q->field_name) : rc;
    }
    return LARDER_OK;
}

/* ---- the end of a batch ---- */

static int too_large(const struct prep_output *q, uint64_t bytes, const struct place *t, struct larder_error *err)
{
    return err_set(err, LARDER_ENOMEM, "output '%.40s': %llu bytes in a batch that has room for %llu", q->name, (unsigned long long)bytes,
                   (unsigned long long)t->cap);
}

/* Sizes, which stand one place later, become offsets. */
static void sum_offsets(uint64_t *offsets, uint64_t n)
{
    offsets[0] = 0;
    for (uint64_t i = 0; i < n; i++)
        offsets[i + 1] += offsets[i];
}

static int end_ragged(const struct prep_output *q, struct place *t, struct larder_array *a, const struct larder_value *values, uint32_t n_fields,
                      uint32_t n, struct larder_error *err)
{
    sum_offsets(t->offsets, n);
    uint64_t bytes = times(t->offsets[n], q->row);
    if (bytes > t->cap)
        return too_large(q, bytes, t, err);
    for (uint32_t i = 0; i < n; i++)
        if (t->offsets[i + 1] > t->offsets[i])
            memcpy(t->data + t->offsets[i] * q->row, values[(size_t)i * n_fields + (uint32_t)q->field].data,
                   (t->offsets[i + 1] - t->offsets[i]) * q->row);
    t->shape[0] = (int64_t)t->offsets[n];
    a->len = bytes;
    return LARDER_OK;
}

/* Copies what two arrays have in common. */
static void copy_common(uint8_t *dst, const uint64_t *dst_sizes, const uint8_t *src, const uint64_t *src_sizes, uint32_t ndim, size_t item)
{
    uint64_t dst_step = item, src_step = item;
    bool same = true;
    for (uint32_t k = 1; k < ndim; k++) {
        dst_step *= dst_sizes[k];
        src_step *= src_sizes[k];
        same &= dst_sizes[k] == src_sizes[k];
    }
    uint64_t count = MIN(dst_sizes[0], src_sizes[0]);
    if (same)
        memcpy(dst, src, count * src_step);
    for (uint64_t i = 0; !same && i < count; i++)
        copy_common(dst + i * dst_step, dst_sizes + 1, src + i * src_step, src_sizes + 1, ndim - 1, item);
}

/* A value into its place, zeros where it has nothing. */
static void pad_one(const struct prep_output *q, uint8_t *out, uint64_t bytes, const uint64_t *sizes, const uint32_t *lengths,
                    const struct larder_value *v)
{
    uint64_t theirs[NDIM_MAX];
    uint32_t ndim = q->ndim - 1;
    if (!v->data || value_sizes(q, q->shape + 1, ndim, v, theirs, NULL)) {
        memset(out, 0, bytes);
        return;
    }
    if (q->n_vary == 1 && q->shape[1] < 0) { /* what is copied lies in one piece */
        uint64_t len = lengths[0] * q->row;
        memcpy(out, v->data, len);
        memset(out + len, 0, bytes - len);
        return;
    }
    memset(out, 0, bytes);
    copy_common(out, sizes, (const uint8_t *)v->data + (q->n_vary > 1 ? 8 * ndim : 0), theirs, ndim, q->item);
}

static int end_padded(const struct prep_output *q, struct place *t, struct larder_array *a, const struct larder_value *values, uint32_t n_fields,
                      uint32_t n, struct larder_error *err)
{
    uint64_t longest = q->o.pad_to, sizes[NDIM_MAX], bytes = q->item;
    for (uint32_t i = 0; !q->o.pad_to && i < n; i++)
        longest = MAX(longest, t->lengths[i]);
    for (uint32_t k = 0; k + 1 < q->ndim; k++) {
        sizes[k] = q->shape[k + 1] < 0 ? longest : (uint64_t)q->shape[k + 1];
        t->shape[k + 1] = (int64_t)sizes[k];
        bytes = times(bytes, sizes[k]);
    }
    a->len = times(n, bytes);
    if (a->len > t->cap)
        return too_large(q, a->len, t, err);
    for (uint32_t i = 0; i < n; i++)
        pad_one(q, t->data + i * bytes, bytes, sizes, t->lengths + (size_t)i * q->n_vary, &values[(size_t)i * n_fields + (uint32_t)q->field]);
    return LARDER_OK;
}

static double half(uint16_t v)
{
    double m = v & 0x3ff;
    int e = v >> 10 & 31;
    double x = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(m + 1024, e - 25) : ldexp(m, -24);
    return v >> 15 ? -x : x;
}

static double number(const struct dtype *d, const uint8_t *p)
{
    uint64_t u = 0;
    float f;
    double x;
    memcpy(&u, p, d->bytes);
    unsigned unused = 64 - 8u * d->bytes;
    switch (d->kind) {
    case 'u': return (double)u;
    case 'i': return (double)((int64_t)(u << unused) >> unused);
    case 'B': u <<= 16; memcpy(&f, &u, 4); return f;
    default: break;
    }
    if (d->bytes == 2)
        return half((uint16_t)u);
    if (d->bytes == 8)
        return memcpy(&x, &u, 8), x;
    memcpy(&f, &u, 4);
    return f;
}

/* The boxes of one view of one sample. */
static void move_boxes(const struct dtype *d, const struct geometry *g, const uint8_t *in, uint64_t n, float (*out)[4], uint8_t *keep)
{
    for (uint64_t i = 0; i < n; i++) {
        double box[4];
        bool finite = true;
        for (int k = 0; k < 4; k++, in += d->bytes) {
            box[k] = number(d, in);
            finite &= isfinite(box[k]) != 0;
        }
        keep[i] = finite && transform_box(g, box, out[i]);
        if (!keep[i])
            memset(out[i], 0, sizeof(out[i]));
    }
}

static int end_boxes(const struct prep_output *q, const struct place *image, struct place *t, struct larder_array *a,
                     const struct larder_value *values, uint32_t n_fields, uint32_t n, struct larder_error *err)
{
    uint64_t views = (uint64_t)n * q->views;
    sum_offsets(t->offsets, views);
    a->len = times(t->offsets[views], q->row);
    if (a->len > t->cap)
        return too_large(q, a->len, t, err);
    for (uint64_t k = 0; k < views; k++) {
        uint64_t at = t->offsets[k];
        move_boxes(q->stored, &image->geometry[k], values[k / q->views * n_fields + (uint32_t)q->field].data, t->offsets[k + 1] - at,
                   (float (*)[4])(void *)(t->data + at * q->row), t->keep + at);
    }
    t->shape[0] = (int64_t)t->offsets[views];
    return LARDER_OK;
}

/* Sound as stored has to be of one rate: nobody could tell it apart in the batch. */
static int end_audio(const struct prep_output *q, const struct place *t, uint32_t n, struct larder_error *err)
{
    for (uint32_t i = 1; t->rates && i < n; i++)
        if (t->rates[i] != t->rates[0])
            return err_set(err, LARDER_EINVAL, "output '%.40s': samples of %u and %u Hz in one batch: say audio.rate", q->name, t->rates[0], t->rates[i]);
    return LARDER_OK;
}

int prep_end(struct prep_batch *b, const struct larder_value *values, uint32_t n_fields, struct larder_error *err)
{
    const struct prep *p = b->prep;
    struct place *places = b->plan;
    int rc = LARDER_OK;
    for (size_t i = 0; !rc && i < p->n; i++) {
        const struct prep_output *q = &p->outputs[i];
        struct place *t = &places[i];
        switch (q->o.prep) {
        case LARDER_PREP_RAGGED: rc = end_ragged(q, t, &b->arrays[i], values, n_fields, b->n, err); break;
        case LARDER_PREP_PADDED: rc = end_padded(q, t, &b->arrays[i], values, n_fields, b->n, err); break;
        case LARDER_PREP_BOXES: rc = end_boxes(q, &places[q->follows], t, &b->arrays[i], values, n_fields, b->n, err); break;
        case LARDER_PREP_AUDIO: rc = end_audio(q, t, b->n, err); break;
        default: break;
        }
    }
    return rc;
}
