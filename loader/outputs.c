/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outputs.c - what a caller asked to have made of fields, checked against the schema.
 *
 * Everything that can be known of an array before the first sample is found out here, once: its dtype, its shape but for what differs from
 * batch to batch, the bytes of a sample, which output follows which. So no sample meets an option that cannot be right, and a message
 * names the output and what would be right instead. Pure; the result is constant and shared by threads.
 */
#include "loader/prep_int.h"

#define CHANNELS_MAX 64u
#define RATE_MAX 768000u
#define GEOMETRY_INTS 8

static const struct dtype dtypes[] = {
    {"bool", 1, 'b'},   {"int8", 1, 'i'},   {"uint8", 1, 'u'},  {"int16", 2, 'i'},   {"uint16", 2, 'u'},   {"int32", 4, 'i'},   {"uint32", 4, 'u'},
    {"int64", 8, 'i'}, {"uint64", 8, 'u'}, {"float16", 2, 'f'}, {"bfloat16", 2, 'B'}, {"float32", 4, 'f'}, {"float64", 8, 'f'},
};

static const char *const prep_names[] = {
    [LARDER_PREP_AUTO] = "auto",   [LARDER_PREP_BYTES] = "bytes", [LARDER_PREP_DENSE] = "dense", [LARDER_PREP_RAGGED] = "ragged",
    [LARDER_PREP_PADDED] = "padded", [LARDER_PREP_IMAGE] = "image", [LARDER_PREP_MASK] = "mask",   [LARDER_PREP_BOXES] = "boxes",
    [LARDER_PREP_GEOMETRY] = "geometry", [LARDER_PREP_AUDIO] = "audio", [LARDER_PREP_USER] = "user",
};

const struct dtype *dtype_find(const char *name)
{
    for (size_t i = 0; name && i < ARRAY_LEN(dtypes); i++)
        if (!strcmp(dtypes[i].name, name))
            return &dtypes[i];
    return NULL;
}

static int wrong(const struct prep_output *q, struct larder_error *err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int wrong(const struct prep_output *q, struct larder_error *err, const char *fmt, ...)
{
    char why[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    return err_set(err, LARDER_EINVAL, "output '%.40s': %s", q->name, why);
}

/* ---- dtypes and shapes ---- */

static bool set_dtype(struct prep_output *q, const char *name)
{
    const struct dtype *t = dtype_find(name);
    if (t) {
        q->dtype = t->name;
        q->item = t->bytes;
    }
    return t;
}

static int set_ndim(struct prep_output *q, uint32_t ndim, struct larder_error *err)
{
    q->ndim = ndim;
    q->shape = calloc(ndim, sizeof(*q->shape));
    return q->shape ? LARDER_OK : err_nomem(err, ndim * sizeof(*q->shape), "a shape");
}

/* The bytes of an array, dimensions that differ left out. */
static int set_row(struct prep_output *q, const int64_t *shape, uint32_t ndim, struct larder_error *err)
{
    q->row = q->item;
    for (uint32_t i = 0; i < ndim; i++)
        if (shape[i] >= 0 && (__builtin_mul_overflow(q->row, (uint64_t)shape[i], &q->row) || q->row > SIZE_MAX / 2))
            return wrong(q, err, "a sample's array would be larger than memory");
    return LARDER_OK;
}

/* [n, views, rest...], without the axis of views where there is one view. */
static int set_shape(struct prep_output *q, const int64_t *rest, uint32_t n_rest, struct larder_error *err)
{
    uint32_t at = 1;
    int rc = set_ndim(q, 1 + (q->views > 1) + n_rest, err);
    if (rc)
        return rc;
    if (q->views > 1)
        q->shape[at++] = q->views;
    if (n_rest)
        memcpy(q->shape + at, rest, n_rest * sizeof(*rest));
    return set_row(q, q->shape + 1, q->ndim - 1, err);
}

/* ---- each prep ---- */

static int check_dense(struct prep_output *q, const struct schema_field *f, struct larder_error *err)
{
    static const char *const scalars[] = {[LARDER_I64] = "int64", [LARDER_F64] = "float64", [LARDER_F32] = "float32", [LARDER_BOOL] = "bool"};
    bool scalar = type_width(f->type);
    if (!scalar && f->type != LARDER_NDARRAY)
        return wrong(q, err, "field '%.40s' is %s, of no fixed size: ask for bytes, ragged or padded", f->name, larder_type_name(f->type));
    for (uint32_t i = 0; i < f->ndim; i++)
        if (f->shape[i] < 0)
            return wrong(q, err, "dimension %u of field '%.40s' differs from sample to sample: ask for ragged, padded or bytes", i, f->name);
    set_dtype(q, scalar ? scalars[f->type] : f->dtype);
    return set_shape(q, f->shape, f->ndim, err);
}

/* What RAGGED and PADDED have in common. What is no ndarray is a row of bytes. */
static int check_varying(struct prep_output *q, const struct schema_field *f, const int64_t **shape, uint32_t *ndim, struct larder_error *err)
{
    static const int64_t bytes[1] = {-1};
    bool array = f->type == LARDER_NDARRAY;
    if (type_width(f->type))
        return wrong(q, err, "field '%.40s' is %s: ask for dense", f->name, larder_type_name(f->type));
    *shape = array ? f->shape : bytes;
    *ndim = array ? f->ndim : 1;
    for (uint32_t i = 0; i < *ndim; i++) {
        q->n_vary += (*shape)[i] < 0;
        if ((*shape)[i] == 0)
            return wrong(q, err, "dimension %u of field '%.40s' is 0: ask for bytes", i, f->name);
    }
    if (q->n_vary == 0)
        return wrong(q, err, "field '%.40s' has the same shape in every sample: ask for dense", f->name);
    set_dtype(q, array ? f->dtype : "uint8");
    return set_row(q, *shape, *ndim, err);
}

static int check_ragged(struct prep_output *q, const struct schema_field *f, struct larder_error *err)
{
    const int64_t *shape;
    uint32_t ndim;
    int rc = check_varying(q, f, &shape, &ndim, err);
    if (rc)
        return rc;
    if (shape[0] >= 0 || q->n_vary > 1)
        return wrong(q, err, "another dimension of field '%.40s' than the first differs from sample to sample: ask for padded or bytes", f->name);
    rc = set_ndim(q, ndim, err);
    if (!rc)
        memcpy(q->shape, shape, ndim * sizeof(*shape));
    return rc;
}

static int check_padded(struct prep_output *q, const struct schema_field *f, struct larder_error *err)
{
    const int64_t *shape;
    uint32_t ndim;
    int rc = check_varying(q, f, &shape, &ndim, err);
    if (rc)
        return rc;
    if (q->n_vary > 1 && !q->o.pad_to)
        return wrong(q, err, "%u dimensions of field '%.40s' differ: say pad_to, how long each shall be, or ask for bytes", q->n_vary, f->name);
    if (q->o.pad_to > UINT32_MAX)
        return wrong(q, err, "pad_to is %llu: at most %u", (unsigned long long)q->o.pad_to, UINT32_MAX);
    uint64_t all = q->row;
    for (uint32_t i = 0; q->o.pad_to && i < q->n_vary; i++)
        if (__builtin_mul_overflow(all, q->o.pad_to, &all) || all > SIZE_MAX / 2)
            return wrong(q, err, "a sample's array would be larger than memory: pad_to is %llu", (unsigned long long)q->o.pad_to);
    rc = set_ndim(q, 1 + ndim, err);
    if (!rc)
        memcpy(q->shape + 1, shape, ndim * sizeof(*shape));
    return rc;
}

static int check_encoded(const struct prep_output *q, const struct schema_field *f, int type, struct larder_error *err)
{
    if (f->type == type || f->type == LARDER_BYTES)
        return LARDER_OK;
    return wrong(q, err, "field '%.40s' is %s: %s takes %s or bytes", f->name, larder_type_name(f->type), prep_names[q->o.prep],
                 larder_type_name(type));
}

static int check_image(struct prep_output *q, const struct schema_field *f, struct larder_error *err)
{
    struct larder_image *im = &q->o.image;
    int rc = check_encoded(q, f, LARDER_IMAGE, err);
    if (!rc)
        rc = transform_check(im, q->name, err);
    if (rc)
        return rc;
    set_dtype(q, im->dtype ? im->dtype : "uint8");
    im->dtype = q->dtype;
    q->views = im->views;
    int64_t h = im->height, w = im->width;
    return set_shape(q, im->planar ? (int64_t[]){3, h, w} : (int64_t[]){h, w, 3}, 3, err);
}

static int check_audio(struct prep_output *q, const struct schema_field *f, struct larder_error *err)
{
    struct larder_audio *a = &q->o.audio;
    int rc = check_encoded(q, f, LARDER_AUDIO, err);
    if (rc)
        return rc;
    if (!a->frames)
        return wrong(q, err, "audio.frames is 0: say how long each sample shall be");
    a->channels = MAX(a->channels, 1);
    if (a->channels > CHANNELS_MAX || a->rate > RATE_MAX)
        return wrong(q, err, "%u channels at %u Hz: at most %u, at %u", a->channels, a->rate, CHANNELS_MAX, RATE_MAX);
    if (!set_dtype(q, a->dtype ? a->dtype : "float32") || (strcmp(q->dtype, "float32") && strcmp(q->dtype, "int16")))
        return wrong(q, err, "dtype is '%.20s': audio is float32 or int16", a->dtype);
    a->dtype = q->dtype;
    return set_shape(q, (int64_t[]){a->channels, a->frames}, 2, err);
}

static int check_user(struct prep_output *q, struct larder_error *err)
{
    const struct larder_output *o = &q->o;
    if (!o->fn)
        return wrong(q, err, "fn is NULL");
    if (!set_dtype(q, o->dtype))
        return wrong(q, err, "dtype is '%.20s', which is none", o->dtype ? o->dtype : "");
    if (o->ndim > 32 || (o->ndim && !o->shape))
        return wrong(q, err, "a shape of up to 32 dimensions is needed, not of %u", o->ndim);
    for (uint32_t i = 0; i < o->ndim; i++)
        if (o->shape[i] < 0)
            return wrong(q, err, "dimension %u is %lld", i, (long long)o->shape[i]);
    return set_shape(q, o->shape, o->ndim, err);
}

/* ---- what follows an image ---- */

static bool is_follower(const struct prep_output *q)
{
    return q->o.prep == LARDER_PREP_MASK || q->o.prep == LARDER_PREP_BOXES || q->o.prep == LARDER_PREP_GEOMETRY;
}

static int check_boxes(struct prep_output *q, const struct schema_field *f, struct larder_error *err)
{
    q->stored = dtype_find(f->dtype);
    if (f->type != LARDER_NDARRAY || f->ndim != 2 || f->shape[1] != 4 || !q->stored || q->stored->kind == 'b')
        return wrong(q, err, "field '%.40s' is no ndarray of numbers [k, 4]: x0, y0, x1, y1 of each box", f->name);
    q->n_boxes = f->shape[0];
    set_dtype(q, "float32");
    q->row = 4 * q->item;
    int rc = set_ndim(q, 2, err);
    if (!rc)
        q->shape[1] = 4;
    return rc;
}

static int check_mask(struct prep_output *q, const struct schema_field *f, const struct larder_image *im, struct larder_error *err)
{
    int rc = check_encoded(q, f, LARDER_IMAGE, err);
    if (rc)
        return rc;
    if (!set_dtype(q, q->o.dtype ? q->o.dtype : "uint8") || (strcmp(q->dtype, "uint8") && strcmp(q->dtype, "uint16")))
        return wrong(q, err, "dtype is '%.20s': a mask is uint8 or uint16", q->o.dtype);
    return set_shape(q, (int64_t[]){im->height, im->width}, 2, err);
}

static int check_follower(const struct prep *p, struct prep_output *q, const struct schema_field *f, struct larder_error *err)
{
    const char *name = q->o.follows;
    if (!name)
        return wrong(q, err, "%s moves as an image does: `follows` says which output that is", prep_names[q->o.prep]);
    for (size_t i = 0; i < p->n && q->follows < 0; i++)
        if (!strcmp(p->outputs[i].name, name))
            q->follows = (int)i;
    if (q->follows < 0)
        return err_set(err, LARDER_ENOTFOUND, "output '%.40s' follows '%.40s', which is no output", q->name, name);
    struct prep_output *image = &p->outputs[q->follows];
    if (image->o.prep != LARDER_PREP_IMAGE)
        return wrong(q, err, "follows '%.40s', which is %s, not image", name, prep_names[image->o.prep]);
    image->followed = true;
    q->views = image->views;
    if (q->o.prep == LARDER_PREP_BOXES)
        return check_boxes(q, f, err);
    if (q->o.prep == LARDER_PREP_MASK)
        return check_mask(q, f, &image->o.image, err);
    set_dtype(q, "int32");
    return set_shape(q, (int64_t[]){GEOMETRY_INTS}, 1, err);
}

/* ---- all of them ---- */

static int check_prep(const struct prep *p, struct prep_output *q, const struct schema_field *f, struct larder_error *err)
{
    switch (q->o.prep) {
    case LARDER_PREP_BYTES: return set_ndim(q, 1, err);
    case LARDER_PREP_DENSE: return check_dense(q, f, err);
    case LARDER_PREP_RAGGED: return check_ragged(q, f, err);
    case LARDER_PREP_PADDED: return check_padded(q, f, err);
    case LARDER_PREP_IMAGE: return check_image(q, f, err);
    case LARDER_PREP_AUDIO: return check_audio(q, f, err);
    case LARDER_PREP_USER: return check_user(q, err);
    default: return check_follower(p, q, f, err);
    }
}

static int auto_prep(const struct schema_field *f)
{
    for (uint32_t i = 0; i < f->ndim; i++)
        if (f->shape[i] < 0)
            return LARDER_PREP_BYTES;
    return type_width(f->type) || f->type == LARDER_NDARRAY ? LARDER_PREP_DENSE : LARDER_PREP_BYTES;
}

static int check_field(struct prep_output *q, const struct schema *schema, struct larder_error *err)
{
    const char *name = q->o.field;
    if (!name)
        return q->o.prep == LARDER_PREP_USER || q->o.prep == LARDER_PREP_GEOMETRY ? LARDER_OK
                                                                                 : wrong(q, err, "the field that it is made of is missing");
    q->field = schema_find(schema, name);
    if (q->field < 0)
        return err_set(err, LARDER_ENOTFOUND, "output '%.40s': the dataset has no field '%.40s'", q->name, name);
    const struct schema_field *f = &schema->fields[q->field];
    q->type = f->type;
    q->field_name = strdup(f->name);
    if (!q->field_name)
        return err_nomem(err, strlen(f->name), "a field's name");
    if (q->o.prep == LARDER_PREP_AUTO)
        q->o.prep = auto_prep(f);
    return LARDER_OK;
}

/* Output i: its name, its prep, its field. */
static int take(struct prep *p, const struct schema *schema, size_t i, struct larder_error *err)
{
    struct prep_output *q = &p->outputs[i];
    const char *name = q->o.name ? q->o.name : q->o.field;
    if (!name || !*name || strlen(name) > 255)
        return err_set(err, LARDER_EINVAL, "output %zu: a name of 1 to 255 bytes is needed", i);
    q->name = strdup(name);
    if (!q->name)
        return err_nomem(err, strlen(name), "an output's name");
    for (size_t k = 0; k < i; k++)
        if (!strcmp(p->outputs[k].name, name))
            return wrong(q, err, "output %zu has the same name: give one of them another", k);
    if (q->o.prep < LARDER_PREP_AUTO || q->o.prep > LARDER_PREP_USER)
        return wrong(q, err, "prep is %d, which is none", q->o.prep);
    return check_field(q, schema, err);
}

/* Outputs are copied one by one: a newer header's are larger. */
static int take_all(struct prep *p, const struct schema *schema, const struct larder_output *outputs, size_t n, struct larder_error *err)
{
    size_t step = n ? outputs[0].struct_size : 0;
    for (size_t i = 0; i < n; i++) {
        const void *theirs = (const char *)outputs + i * step;
        struct prep_output *q = &p->outputs[i];
        *q = (struct prep_output){.field = -1, .follows = -1, .views = 1};
        p->n = i + 1;
        int rc = options_take(theirs, &q->o, sizeof(q->o), "larder_output", err);
        if (!rc && ((const struct larder_output *)theirs)->struct_size != step)
            rc = err_set(err, LARDER_EINVAL, "larder_output.struct_size of output %zu is not that of output 0", i);
        if (!rc)
            rc = take(p, schema, i, err);
        if (rc)
            return rc;
    }
    return LARDER_OK;
}

/* Images come before what follows them. */
static int check_all(struct prep *p, const struct schema *schema, struct larder_error *err)
{
    size_t at = 0;
    for (int followers = 0; followers < 2; followers++)
        for (size_t i = 0; i < p->n; i++) {
            struct prep_output *q = &p->outputs[i];
            if (is_follower(q) != (followers == 1))
                continue;
            p->order[at++] = i;
            int rc = check_prep(p, q, q->field < 0 ? NULL : &schema->fields[q->field], err);
            if (rc)
                return rc;
        }
    return LARDER_OK;
}

static void finish(struct prep_output *q, struct prep *p)
{
    int prep = q->o.prep;
    p->heavy |= prep == LARDER_PREP_IMAGE || prep == LARDER_PREP_MASK || prep == LARDER_PREP_AUDIO || prep == LARDER_PREP_USER;
    for (uint32_t k = 0; k < p->n_fields; k++)
        p->wants[k] |= q->field == (int)k || (q->field < 0 && prep == LARDER_PREP_USER);
    q->o.field = q->o.name = q->o.follows = q->o.dtype = NULL; /* the caller's */
    q->o.shape = NULL;
}

int prep_new(const struct schema *schema, const struct larder_output *outputs, size_t n, struct prep **out, struct larder_error *err)
{
    struct prep *p = calloc(1, sizeof(*p));
    *out = NULL;
    if (!p)
        return err_nomem(err, sizeof(*p), "outputs");
    p->n_fields = schema->n;
    p->outputs = calloc(n + 1, sizeof(*p->outputs));
    p->order = calloc(n + 1, sizeof(*p->order));
    p->wants = calloc(schema->n + 1, sizeof(*p->wants));
    int rc = p->outputs && p->order && p->wants ? LARDER_OK : err_nomem(err, (n + 1) * sizeof(*p->outputs), "outputs");
    if (!rc)
        rc = take_all(p, schema, outputs, n, err);
    if (!rc)
        rc = check_all(p, schema, err);
    if (rc) {
        prep_free(p);
        return rc;
    }
    for (size_t i = 0; i < n; i++)
        finish(&p->outputs[i], p);
    *out = p;
    return LARDER_OK;
}

void prep_free(struct prep *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++) {
        free(p->outputs[i].name);
        free(p->outputs[i].field_name);
        free(p->outputs[i].shape);
    }
    free(p->outputs);
    free(p->order);
    free(p->wants);
    free(p);
}

bool prep_is_heavy(const struct prep *p) { return p->heavy; }
bool prep_wants(const struct prep *p, uint32_t field) { return p->wants[field]; }
