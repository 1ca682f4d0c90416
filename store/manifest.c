/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manifest.c - the manifest of a generation, the schema, and what each shard keeps of them, as JSON.
 *
 * A manifest is one JSON object whose last member is "crc32c", the CRC32C of all bytes before that member's comma: valid JSON
 * for any reader, and every byte is checked. Shards are arrays, not objects: 10^5 of them are 10 MB. Pure functions; numbers
 * are checked against each other before anything uses them.
 */
#include "store/store_int.h"

#define CRC_TAIL_LEN 22 /* ,"crc32c":"01234567"}\n */

static const struct { const char *name; int size; } dtypes[] = {
    {"bool", 1}, {"int8", 1}, {"uint8", 1}, {"int16", 2}, {"uint16", 2}, {"float16", 2}, {"bfloat16", 2}, {"int32", 4},
    {"uint32", 4}, {"float32", 4}, {"int64", 8}, {"uint64", 8}, {"float64", 8},
};

/* ---- JSON that checks itself ---- */

int sealed_json_dump(const struct json *o, struct buf *out, struct larder_error *err)
{
    size_t start = out->len;
    int rc = json_dump(o, out, err);
    if (rc)
        return rc;
    out->len--; /* the brace closes after the CRC */
    return buf_printf(out, err, ",\"crc32c\":\"%08x\"}\n", crc32c(0, out->data + start, out->len - start));
}

static int check_crc(const uint8_t *text, size_t len, const char *what, struct larder_error *err)
{
    static const char tail[] = ",\"crc32c\":\"";
    char found[9];
    if (len < CRC_TAIL_LEN + 1 || memcmp(text + len - CRC_TAIL_LEN, tail, sizeof(tail) - 1) || memcmp(text + len - 3, "\"}\n", 3))
        return err_set(err, LARDER_ECORRUPT, "%s: does not end in its CRC32C: cut short or edited", what);
    snprintf(found, sizeof(found), "%08x", crc32c(0, text, len - CRC_TAIL_LEN));
    if (memcmp(text + len - 11, found, 8)) { /* as text: a capital digit is a flipped bit too */
        char stored[256];
        return err_set(err, LARDER_ECORRUPT, "%s: fails its CRC32C (stored %s, found %s)", what, key_text(text + len - 11, 8, stored), found);
    }
    return LARDER_OK;
}

int sealed_json_parse(const void *text, size_t len, const char *what, struct json **o, struct larder_error *err)
{
    struct larder_error why = {.code = LARDER_ECORRUPT};
    int rc = check_crc(text, len, what, &why);
    *o = rc ? NULL : json_parse(text, len, what, &why);
    if (!*o && err)
        *err = why;
    return *o ? LARDER_OK : why.code;
}

/* ---- schema ---- */

static int check_field(const struct larder_field *f, size_t i, struct larder_error *err)
{
    size_t len = f->name ? strlen(f->name) : 0;
    if (len < 1 || len > 255)
        return err_set(err, LARDER_EINVAL, "field %zu: a name of 1 to 255 bytes is needed", i);
    for (size_t k = 0; k < len; k++)
        if ((unsigned char)f->name[k] < 0x20 || f->name[k] == 0x7f || f->name[k] == '/')
            return err_set(err, LARDER_EINVAL, "field %zu: control characters and '/' are not allowed in a name", i);
    if (!larder_type_name(f->type))
        return err_set(err, LARDER_EINVAL, "field '%s': unknown type %d", f->name, f->type);
    if (f->type != LARDER_NDARRAY)
        return f->dtype || f->ndim || f->shape
                   ? err_set(err, LARDER_EINVAL, "field '%s': dtype and shape are for ndarray", f->name) : LARDER_OK;
    bool known = false;
    for (size_t k = 0; f->dtype && k < ARRAY_LEN(dtypes); k++)
        known |= !strcmp(f->dtype, dtypes[k].name);
    if (!known || f->ndim > 32 || (f->ndim && !f->shape))
        return err_set(err, LARDER_EINVAL, "field '%s': an ndarray needs a numpy dtype and 0 to 32 dimensions", f->name);
    for (uint32_t k = 0; k < f->ndim; k++)
        if (f->shape[k] < -1)
            return err_set(err, LARDER_EINVAL, "field '%s': dimension %u is %lld", f->name, k, (long long)f->shape[k]);
    return LARDER_OK;
}

int schema_copy(struct schema *dst, const struct larder_field *fields, size_t n, struct larder_error *err)
{
    size_t scalars = 0;
    if (n < 1 || n > LARDER_FIELDS_MAX)
        return err_set(err, LARDER_EINVAL, "a schema has 1 to %d fields, not %zu", LARDER_FIELDS_MAX, n);
    for (size_t i = 0; i < n; i++) {
        int rc = check_field(&fields[i], i, err);
        if (rc)
            return rc;
        scalars += type_width(fields[i].type) != 0;
        for (size_t k = 0; k < i; k++)
            if (!strcmp(fields[i].name, fields[k].name))
                return err_set(err, LARDER_EINVAL, "field '%s' occurs twice", fields[i].name);
    }
    if (scalars > SCALARS_MAX)
        return err_set(err, LARDER_EINVAL, "%zu scalar fields: at most %u; gather them in an ndarray", scalars, SCALARS_MAX);
    struct schema s = {(uint32_t)n, calloc(n, sizeof(*s.fields))};
    bool ok = s.fields != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        struct schema_field *f = &s.fields[i];
        f->type = fields[i].type;
        ok = (f->name = strdup(fields[i].name)) != NULL;
        if (ok && fields[i].dtype) {
            f->ndim = fields[i].ndim;
            f->dtype = strdup(fields[i].dtype);
            f->shape = calloc(f->ndim + 1, sizeof(*f->shape));
            ok = f->dtype && f->shape;
            if (ok && f->ndim)
                memcpy(f->shape, fields[i].shape, f->ndim * sizeof(*f->shape));
        }
    }
    if (!ok) {
        schema_release(&s);
        return err_nomem(err, n * sizeof(*s.fields), "a schema");
    }
    *dst = s;
    return LARDER_OK;
}

int schema_clone(struct schema *dst, const struct schema *src, struct larder_error *err)
{
    AUTO_FREE struct larder_field *fields = calloc((size_t)src->n + 1, sizeof(*fields));
    if (!fields)
        return err_nomem(err, src->n * sizeof(*fields), "a schema");
    for (uint32_t i = 0; i < src->n; i++)
        fields[i] = schema_at(src, i);
    return schema_copy(dst, fields, src->n, err);
}

void schema_release(struct schema *s)
{
    for (uint32_t i = 0; s->fields && i < s->n; i++) {
        free(s->fields[i].name);
        free(s->fields[i].dtype);
        free(s->fields[i].shape);
    }
    free(s->fields);
    *s = (struct schema){0, NULL};
}

bool schema_equal(const struct schema *a, const struct schema *b)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++) {
        const struct schema_field *x = &a->fields[i], *y = &b->fields[i];
        if (strcmp(x->name, y->name) || x->type != y->type || x->ndim != y->ndim || strcmp(x->dtype ? x->dtype : "", y->dtype ? y->dtype : "") ||
            (x->ndim && memcmp(x->shape, y->shape, x->ndim * sizeof(*x->shape))))
            return false;
    }
    return true;
}

int schema_find(const struct schema *s, const char *name)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (!strcmp(s->fields[i].name, name))
            return (int)i;
    return -1;
}

/* ---- releasing and copying ---- */

void shard_ref_release(struct shard_ref *r)
{
    free(r->name);
    r->name = NULL;
}

int shard_ref_copy(struct shard_ref *dst, const struct shard_ref *src, struct larder_error *err)
{
    char *name = strdup(src->name);
    if (!name)
        return err_nomem(err, strlen(src->name) + 1, "a shard's name");
    *dst = *src;
    dst->name = name;
    return LARDER_OK;
}

void index_files_release(struct index_file *files, size_t n)
{
    for (size_t i = 0; files && i < n; i++) {
        free(files[i].name);
        free(files[i].first);
        free(files[i].last);
    }
    free(files);
}

void index_part_release(struct index_part *p)
{
    index_files_release(p->files, p->n_files);
    free(p->dir);
    *p = (struct index_part){0};
}

void manifest_release(struct manifest *m)
{
    schema_release(&m->schema);
    strings_free(m->classes, m->n_classes);
    for (size_t i = 0; i < m->n_shards; i++)
        shard_ref_release(&m->shards[i]);
    free(m->shards);
    for (size_t i = 0; i < m->n_parts; i++)
        index_part_release(&m->parts[i]);
    free(m->parts);
    *m = (struct manifest){.generation = 0};
}

/* ---- encoding: setters swallow failures until json_dump, which reports them ---- */

static struct json *schema_json(const struct schema *s)
{
    struct json *list = json_new_array();
    for (uint32_t i = 0; list && i < s->n; i++) {
        const struct schema_field *f = &s->fields[i];
        struct json *o = json_new_object();
        bool bad = json_set_str(o, "name", f->name) || json_set_str(o, "type", larder_type_name(f->type));
        if (f->type == LARDER_NDARRAY) {
            struct json *shape = json_new_array();
            bad |= json_set_str(o, "dtype", f->dtype);
            for (uint32_t k = 0; k < f->ndim; k++) {
                char dim[24];
                snprintf(dim, sizeof(dim), "%lld", (long long)f->shape[k]);
                bad |= json_add_str(shape, dim) != 0;
            }
            bad |= json_set(o, "shape", shape) != 0;
        }
        if (json_add(list, o) || bad) {
            json_free(list);
            return NULL;
        }
    }
    return list;
}

static int set_meta(struct json *o, const struct manifest *m, struct larder_error *err)
{
    int rc = json_set_u64(o, "compression", (uint64_t)m->compression);
    struct json *classes = json_new_array();
    for (size_t i = 0; !rc && i < m->n_classes; i++)
        if ((rc = json_add_str(classes, m->classes[i])) == LARDER_EINVAL) {
            json_free(classes);
            return err_set(err, rc, "class name %zu is not UTF-8: rename the folder", i);
        }
    struct json *schema = rc ? NULL : schema_json(&m->schema);
    if (rc || !schema) {
        json_free(classes);
        return err_set(err, schema ? rc : LARDER_EINVAL, "schema or class names are not UTF-8, or memory is exhausted");
    }
    rc = json_set(o, "schema", schema);
    int rc2 = json_set(o, "classes", classes);
    return rc || rc2 ? err_nomem(err, 0, "a manifest") : LARDER_OK;
}

const uint8_t *manifest_family(const struct manifest *m)
{
    static const uint8_t none[16];
    return memcmp(m->family, none, 16) ? m->family : m->lineage;
}

int meta_encode(const struct manifest *m, struct buf *out, struct larder_error *err)
{
    AUTO_JSON struct json *o = json_new_object();
    int rc = o ? set_meta(o, m, err) : err_nomem(err, 0, "a shard's schema");
    return rc ? rc : json_dump(o, out, err);
}

struct json *shard_ref_json(const struct shard_ref *r)
{
    struct json *a = json_new_array();
    char dict[24];
    snprintf(dict, sizeof(dict), "%016llx", (unsigned long long)r->dict_id);
    if (!a || json_add_str(a, r->name) || json_add_u64(a, r->size) || json_add_u64(a, r->footer_off) || json_add_u64(a, r->samples) ||
        json_add_u64(a, r->stored_bytes) || json_add_u64(a, r->raw_bytes) || json_add_u64(a, r->tag) ||
        json_add_u64(a, r->trailer_crc) || json_add_str(a, dict) || json_add_u64(a, r->unit) || json_add_u64(a, r->sub)) {
        json_free(a);
        return NULL;
    }
    return a;
}

static struct json *part_json(const struct index_part *p)
{
    struct json *o = json_new_object(), *files = json_new_array();
    bool bad = json_set_str(o, "dir", p->dir) || json_set_u64(o, "lo", p->lo) || json_set_u64(o, "hi", p->hi) ||
               json_set_u64(o, "keys", p->keys);
    for (size_t i = 0; !bad && i < p->n_files; i++) {
        const struct index_file *f = &p->files[i];
        struct json *a = json_new_array();
        AUTO_FREE char *first = malloc(2 * f->first_len + 1), *last = malloc(2 * f->last_len + 1);
        if (first && last) {
            hex_encode(f->first, f->first_len, first);
            hex_encode(f->last, f->last_len, last);
        }
        bad = !first || !last || json_add_str(a, f->name) || json_add_u64(a, f->size) || json_add_u64(a, f->crc) ||
              json_add_u64(a, f->keys) || json_add_str(a, first) || json_add_str(a, last);
        bad |= json_add(files, a) != 0;
    }
    bad |= json_set(o, "files", files) != 0;
    if (bad) {
        json_free(o);
        return NULL;
    }
    return o;
}

int manifest_encode(const struct manifest *m, struct buf *out, struct larder_error *err)
{
    AUTO_JSON struct json *o = json_new_object();
    int rc = LARDER_OK;
    if (!o || json_set_u64(o, "larder", 1) || json_set_u64(o, "format", FORMAT_MAJOR) || json_set_u64(o, "features", 0) ||
        json_set_hex(o, "uuid", m->uuid, 16) || json_set_hex(o, "lineage", m->lineage, 16) ||
        json_set_hex(o, "family", manifest_family(m), 16) ||
        json_set_u64(o, "generation", m->generation) || json_set_u64(o, "created", m->created_s) ||
        json_set_u64(o, "samples", m->samples))
        return err_nomem(err, 0, "a manifest");
    if ((rc = set_meta(o, m, err)))
        return rc;
    struct json *shards = json_new_array(), *parts = json_new_array();
    for (size_t i = 0; !rc && i < m->n_shards; i++)
        rc = json_add(shards, shard_ref_json(&m->shards[i]));
    for (size_t i = 0; !rc && i < m->n_parts; i++)
        rc = json_add(parts, part_json(&m->parts[i]));
    int rc1 = json_set(o, "shards", shards), rc2 = json_set(o, "index", parts);
    if (rc || rc1 || rc2)
        return err_nomem(err, 0, "a manifest");
    return sealed_json_dump(o, out, err);
}

/* ---- decoding ---- */

static int dim_parse(const char *text, int64_t *dim)
{
    char *end;
    long long v = strtoll(text, &end, 10);
    *dim = v;
    return end == text || *end || v < -1 ? LARDER_ECORRUPT : LARDER_OK;
}

/* One schema field into *f; the strings stay the document's, the shape is the caller's to free. */
static int field_parse(const struct json *o, const char *what, struct larder_field *f, struct larder_error *err)
{
    const char *type = NULL;
    const struct json *shape = NULL;
    int rc = json_get_str(o, "name", what, &f->name, err);
    if (!rc)
        rc = json_get_str(o, "type", what, &type, err);
    for (int t = LARDER_BYTES; !rc && t <= LARDER_NDARRAY; t++)
        if (!strcmp(type, larder_type_name(t)))
            f->type = t;
    if (!rc && !f->type)
        return err_set(err, LARDER_EVERSION, "%s: field '%s' has type '%s', which this larder does not know: upgrade larder",
                       what, f->name, type);
    if (rc || f->type != LARDER_NDARRAY)
        return rc;
    if ((rc = json_get_str(o, "dtype", what, &f->dtype, err)) || (rc = json_get_array(o, "shape", what, &shape, err)))
        return rc;
    size_t ndim = json_len(shape);
    int64_t *dims = calloc(ndim + 1, sizeof(*dims));
    if (!dims)
        return err_nomem(err, ndim * sizeof(*dims), "a shape");
    f->ndim = (uint32_t)ndim;
    f->shape = dims;
    for (size_t i = 0; !rc && i < ndim; i++) {
        const char *text;
        if (!(rc = json_at_str(shape, i, what, &text, err)) && dim_parse(text, &dims[i]))
            rc = err_set(err, LARDER_ECORRUPT, "%s: field '%s' has a bad shape", what, f->name);
    }
    return rc;
}

static int schema_parse(const struct json *list, const char *what, struct schema *s, struct larder_error *err)
{
    size_t n = json_len(list);
    if (n < 1 || n > LARDER_FIELDS_MAX)
        return err_set(err, LARDER_ECORRUPT, "%s: schema has %zu fields", what, n);
    AUTO_FREE struct larder_field *fields = calloc(n, sizeof(*fields));
    if (!fields)
        return err_nomem(err, n * sizeof(*fields), "a schema");
    int rc = LARDER_OK;
    for (size_t i = 0; !rc && i < n; i++) {
        const struct json *o;
        if (!(rc = json_at_object(list, i, what, &o, err)))
            rc = field_parse(o, what, &fields[i], err);
    }
    if (!rc && (rc = schema_copy(s, fields, n, err)) == LARDER_EINVAL)
        rc = err_prefix(err, LARDER_ECORRUPT, "%s", what);
    for (size_t i = 0; i < n; i++)
        free((void *)(uintptr_t)fields[i].shape);
    return rc;
}

static int meta_parse(const struct json *o, const char *what, struct manifest *m, struct larder_error *err)
{
    const struct json *schema, *classes;
    uint64_t compression;
    int rc = json_get_u64(o, "compression", what, &compression, err);
    if (rc || (rc = json_get_array(o, "schema", what, &schema, err)) || (rc = json_get_array(o, "classes", what, &classes, err)) ||
        (rc = schema_parse(schema, what, &m->schema, err)))
        return rc;
    m->compression = compression <= LARDER_COMPRESS_ZSTD_DICT ? (int)compression : LARDER_COMPRESS_ZSTD_DICT;
    size_t n = json_len(classes);
    if (n && !(m->classes = calloc(n, sizeof(*m->classes))))
        return err_nomem(err, n * sizeof(*m->classes), "class names");
    for (size_t i = 0; i < n; i++) {
        const char *name;
        if ((rc = json_at_str(classes, i, what, &name, err)))
            return rc;
        if (!(m->classes[i] = strdup(name)))
            return err_nomem(err, strlen(name), "a class name");
        m->n_classes++;
    }
    return LARDER_OK;
}

int meta_decode(const void *text, size_t len, const char *what, struct manifest *m, struct larder_error *err)
{
    *m = (struct manifest){.generation = 0};
    AUTO_JSON struct json *o = json_parse(text, len, what, err);
    int rc = o ? meta_parse(o, what, m, err) : LARDER_ECORRUPT;
    if (rc)
        manifest_release(m);
    return rc;
}

bool name_ok(const char *name)
{
    size_t len = strlen(name);
    if (len < 1 || len > 255 || name[0] == '.')
        return false;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] <= 0x20 || name[i] == '/' || name[i] == 0x7f)
            return false;
    return true;
}

int shard_ref_parse(const struct json *j, const char *what, struct shard_ref *r, struct larder_error *err)
{
    uint64_t v[9] = {0};
    static const int at[9] = {1, 2, 3, 4, 5, 6, 7, 9, 10};
    const char *name, *dict;
    uint8_t id[8];
    int rc = json_at_str(j, 0, what, &name, err);
    if (!rc)
        rc = json_at_str(j, 8, what, &dict, err);
    for (int i = 0; !rc && i < 9; i++)
        rc = json_at_u64(j, (size_t)at[i], what, &v[i], err);
    if (rc)
        return rc;
    if (!name_ok(name) || !hex_decode(dict, strlen(dict), id, 8) || v[2] == 0 || v[2] >= UINT32_MAX || v[5] > UINT32_MAX ||
        v[6] > UINT32_MAX || v[8] > UINT32_MAX || v[1] % STORE_PAGE || v[1] < STORE_PAGE || v[0] < v[1] || v[0] % STORE_PAGE ||
        v[0] - v[1] < 2 * STORE_PAGE || (v[0] - v[1]) / STORE_PAGE < v[2] / STORE_ENTRIES_A_PAGE || v[3] > v[1] ||
        (v[0] - v[1]) / STORE_PAGE > UINT32_MAX)
        return err_set(err, LARDER_ECORRUPT, "%s: shard entry '%s' is not consistent", what, name_ok(name) ? name : "?");
    *r = (struct shard_ref){.size = v[0], .footer_off = v[1], .samples = (uint32_t)v[2], .stored_bytes = v[3], .raw_bytes = v[4],
                            .tag = (uint32_t)v[5], .trailer_crc = (uint32_t)v[6], .unit = v[7], .sub = (uint32_t)v[8]};
    r->dict_id = strtoull(dict, NULL, 16);
    if (!(r->name = strdup(name)))
        return err_nomem(err, strlen(name), "a shard's name");
    return LARDER_OK;
}

static int shards_parse(const struct json *list, const char *what, struct manifest *m, struct larder_error *err)
{
    size_t n = json_len(list);
    int rc = GROW(m->shards, m->cap_shards, n, err);
    for (size_t i = 0; !rc && i < n; i++) {
        const struct json *a;
        if ((rc = json_at_array(list, i, what, &a, err)) || (rc = shard_ref_parse(a, what, &m->shards[i], err)))
            return rc;
        m->n_shards++;
        m->shards[i].base = m->samples;
        m->samples += m->shards[i].samples;
    }
    return rc;
}

static int key_parse(const char *hex, uint8_t **key, size_t *len)
{
    size_t n = strlen(hex) / 2;
    if (n > LARDER_KEY_MAX || !(*key = malloc(n + 1)))
        return n > LARDER_KEY_MAX ? LARDER_ECORRUPT : LARDER_ENOMEM;
    *len = n;
    return hex_decode(hex, strlen(hex), *key, n) ? LARDER_OK : LARDER_ECORRUPT;
}

static int index_file_parse(const struct json *a, const char *what, struct index_file *f, struct larder_error *err)
{
    const char *name, *first, *last;
    uint64_t crc;
    int rc = json_at_str(a, 0, what, &name, err);
    if (rc || (rc = json_at_u64(a, 1, what, &f->size, err)) || (rc = json_at_u64(a, 2, what, &crc, err)) ||
        (rc = json_at_u64(a, 3, what, &f->keys, err)) || (rc = json_at_str(a, 4, what, &first, err)) ||
        (rc = json_at_str(a, 5, what, &last, err)))
        return rc;
    if (!name_ok(name) || crc > UINT32_MAX)
        return err_set(err, LARDER_ECORRUPT, "%s: bad index file entry", what);
    f->crc = (uint32_t)crc;
    if (!(f->name = strdup(name)))
        return err_nomem(err, strlen(name), "an index file's name");
    if ((rc = key_parse(first, &f->first, &f->first_len)) || (rc = key_parse(last, &f->last, &f->last_len)))
        return err_set(err, rc, "%s: key range of index file %s", what, name);
    return LARDER_OK;
}

static int part_parse(const struct json *o, const char *what, uint64_t samples, struct index_part *p, struct larder_error *err)
{
    const char *dir;
    const struct json *files, *a;
    int rc = json_get_str(o, "dir", what, &dir, err);
    if (rc || (rc = json_get_u64(o, "lo", what, &p->lo, err)) || (rc = json_get_u64(o, "hi", what, &p->hi, err)) ||
        (rc = json_get_u64(o, "keys", what, &p->keys, err)) || (rc = json_get_array(o, "files", what, &files, err)))
        return rc;
    if (!name_ok(dir) || p->lo > p->hi || p->hi > samples || p->keys != p->hi - p->lo)
        return err_set(err, LARDER_ECORRUPT, "%s: index part is not consistent", what);
    p->dir = strdup(dir);
    p->files = calloc(json_len(files) + 1, sizeof(*p->files));
    if (!p->dir || !p->files)
        return err_nomem(err, json_len(files) * sizeof(*p->files), "an index part");
    for (size_t i = 0; i < json_len(files); i++) {
        if ((rc = json_at_array(files, i, what, &a, err)))
            return rc;
        p->n_files++;
        if ((rc = index_file_parse(a, what, &p->files[i], err)))
            return rc;
    }
    return LARDER_OK;
}

static int parts_parse(const struct json *list, const char *what, struct manifest *m, struct larder_error *err)
{
    size_t n = json_len(list);
    if (!(m->parts = calloc(n + 1, sizeof(*m->parts))))
        return err_nomem(err, n * sizeof(*m->parts), "index parts");
    uint64_t next = 0; /* parts cover [0, samples) in order */
    for (size_t i = 0; i < n; i++) {
        const struct json *o;
        int rc = json_at_object(list, i, what, &o, err);
        if (rc)
            return rc;
        m->n_parts++;
        if ((rc = part_parse(o, what, m->samples, &m->parts[i], err)))
            return rc;
        if (m->parts[i].lo != next)
            return err_set(err, LARDER_ECORRUPT, "%s: index parts do not cover the samples", what);
        next = m->parts[i].hi;
    }
    return next == m->samples ? LARDER_OK : err_set(err, LARDER_ECORRUPT, "%s: index parts do not cover the samples", what);
}

static int manifest_parse(const struct json *o, const char *what, struct manifest *m, struct larder_error *err)
{
    const struct json *shards, *parts;
    uint64_t format, features, samples;
    int rc = json_get_u64(o, "format", what, &format, err);
    if (rc || (rc = json_get_u64(o, "features", what, &features, err)))
        return rc;
    if (format != FORMAT_MAJOR || features)
        return err_set(err, LARDER_EVERSION, "%s: format %llu with features %llx: upgrade larder", what,
                       (unsigned long long)format, (unsigned long long)features);
    if ((rc = json_get_hex(o, "uuid", what, m->uuid, 16, err)) || (rc = json_get_hex(o, "lineage", what, m->lineage, 16, err)) ||
        (rc = json_get_hex(o, "family", what, m->family, 16, err)) ||
        (rc = json_get_u64(o, "generation", what, &m->generation, err)) || (rc = json_get_u64(o, "created", what, &m->created_s, err)) ||
        (rc = json_get_u64(o, "samples", what, &samples, err)) || (rc = meta_parse(o, what, m, err)) ||
        (rc = json_get_array(o, "shards", what, &shards, err)) || (rc = shards_parse(shards, what, m, err)) ||
        (rc = json_get_array(o, "index", what, &parts, err)))
        return rc;
    if (m->samples != samples || m->generation == 0)
        return err_set(err, LARDER_ECORRUPT, "%s: shards hold %llu samples, not %llu", what, (unsigned long long)m->samples,
                       (unsigned long long)samples);
    return parts_parse(parts, what, m, err);
}

int manifest_decode(const void *text, size_t len, const char *what, struct manifest *m, struct larder_error *err)
{
    *m = (struct manifest){.generation = 0};
    AUTO_JSON struct json *o = NULL;
    int rc = sealed_json_parse(text, len, what, &o, err);
    if (!rc && (rc = manifest_parse(o, what, m, err)))
        manifest_release(m);
    return rc;
}
