/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fields.c - the --fields option, and files' contents as values of a field's type.
 *
 *     NAME[:TYPE][=EXT[|EXT...]] , ...      image=jpg|jpeg|png,label:i64=cls
 *
 * Scalars are written in files as decimal text; every other type is the file's bytes themselves, of which utf8 and json must be
 * valid UTF-8 (json is not parsed). Pure functions.
 */
#include "ingest/ingest_int.h"

#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <math.h>

#define SCALAR_TEXT_MAX 400u /* longest text that is taken for a number: -DBL_MAX in full has 310 characters */

bool utf8_valid(const void *data, size_t len)
{
    const uint8_t *p = data, *end = p + len;
    while (p < end) {
        if (end - p >= 8 && !(get_u64(p) & 0x8080808080808080u)) {
            p += 8;
            continue;
        }
        uint8_t c = *p;
        size_t n = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
        if (n == 0 || (size_t)(end - p) < n)
            return false;
        for (size_t i = 1; i < n; i++)
            if ((p[i] & 0xc0) != 0x80)
                return false;
        if ((c == 0xe0 && p[1] < 0xa0) || (c == 0xed && p[1] > 0x9f) || (c == 0xf0 && p[1] < 0x90) || (c == 0xf4 && p[1] > 0x8f))
            return false;
        p += n;
    }
    return true;
}

/* ---- --fields ---- */

static int type_of(const char *name, size_t len)
{
    for (int t = LARDER_BYTES; t < LARDER_NDARRAY; t++)
        if (strlen(larder_type_name(t)) == len && !memcmp(larder_type_name(t), name, len))
            return t;
    return 0;
}

void fields_release(struct field_specs *f)
{
    for (size_t i = 0; i < f->n; i++) {
        for (size_t k = 0; k < f->specs[i].n_exts; k++)
            free(f->specs[i].exts[k]);
        free(f->specs[i].exts);
        free(f->specs[i].name);
    }
    free(f->specs);
    *f = (struct field_specs){NULL, 0};
}

static int add_ext(struct field_spec *spec, const char *ext, size_t len, struct larder_error *err)
{
    if (len == 0)
        return err_set(err, LARDER_EINVAL, "fields: '%s' has an empty extension", spec->name);
    char **exts = realloc(spec->exts, (spec->n_exts + 1) * sizeof(*exts));
    if (!exts)
        return err_nomem(err, sizeof(*exts), "a field's extensions");
    spec->exts = exts;
    char *low = bytes_dup(ext, len);
    if (!low)
        return err_nomem(err, len, "a field's extension");
    for (size_t i = 0; i < len; i++)
        low[i] = (char)(low[i] >= 'A' && low[i] <= 'Z' ? low[i] + 32 : low[i]);
    spec->exts[spec->n_exts++] = low;
    return LARDER_OK;
}

/* One spec in text[0..len). */
static int parse_one(const char *text, size_t len, struct field_spec *spec, struct larder_error *err)
{
    const char *end = text + len, *eq = memchr(text, '=', len);
    const char *head_end = eq ? eq : end, *colon = memchr(text, ':', (size_t)(head_end - text));
    const char *name_end = colon ? colon : head_end;
    if (name_end == text)
        return err_set(err, LARDER_EINVAL, "fields: '%.*s' has no name; give NAME[:TYPE][=EXT|EXT]", (int)MIN(len, 100), text);
    if (!(spec->name = bytes_dup(text, (size_t)(name_end - text))))
        return err_nomem(err, len, "a field's name");
    if (colon && !(spec->type = type_of(colon + 1, (size_t)(head_end - colon - 1))))
        return err_set(err, LARDER_EINVAL, "fields: '%.*s' has an unknown type; there are bytes, image, audio, utf8, json, i64, f64, "
                       "f32 and bool", (int)MIN(len, 60), text);
    for (const char *p = eq; p && p < end;) {
        const char *e = p + 1;
        while (e < end && *e != '|')
            e++;
        int rc = add_ext(spec, p + 1, (size_t)(e - p - 1), err);
        if (rc)
            return rc;
        p = e;
    }
    return LARDER_OK;
}

/* A name or an extension may stand for one field only. */
static int check_unique(const struct field_specs *f, struct larder_error *err)
{
    for (size_t a = 0; a < f->n; a++)
        for (size_t b = 0; b < a; b++) {
            if (!strcmp(f->specs[a].name, f->specs[b].name))
                return err_set(err, LARDER_EINVAL, "fields: '%s' is given twice", f->specs[a].name);
            for (size_t i = 0; i < f->specs[a].n_exts; i++)
                for (size_t k = 0; k < f->specs[b].n_exts; k++)
                    if (!strcmp(f->specs[a].exts[i], f->specs[b].exts[k]))
                        return err_set(err, LARDER_EINVAL, "fields: extension '%s' belongs to both '%s' and '%s'",
                                       f->specs[a].exts[i], f->specs[b].name, f->specs[a].name);
        }
    return LARDER_OK;
}

int fields_parse(const char *text, struct field_specs *out, struct larder_error *err)
{
    struct field_specs f = {NULL, 0};
    int rc = LARDER_OK;
    if (!utf8_valid(text, strlen(text)))
        return err_set(err, LARDER_EINVAL, "fields: not valid UTF-8");
    for (const char *p = text; !rc;) {
        size_t len = strcspn(p, ",");
        struct field_spec *specs = f.n < LARDER_FIELDS_MAX ? realloc(f.specs, (f.n + 1) * sizeof(*specs)) : NULL;
        if (!specs) {
            rc = f.n < LARDER_FIELDS_MAX ? err_nomem(err, sizeof(*specs), "field specs")
                                         : err_set(err, LARDER_EINVAL, "fields: more than %d", LARDER_FIELDS_MAX);
            break;
        }
        f.specs = specs;
        f.specs[f.n++] = (struct field_spec){NULL, 0, NULL, 0};
        rc = parse_one(p, len, &f.specs[f.n - 1], err);
        p += len;
        if (*p++ != ',')
            break;
    }
    for (size_t i = 0; !rc && i < f.n; i++)
        if (f.specs[i].n_exts == 0)
            rc = add_ext(&f.specs[i], f.specs[i].name, strlen(f.specs[i].name), err);
    if (!rc)
        rc = check_unique(&f, err);
    if (rc)
        fields_release(&f);
    else
        *out = f;
    return rc;
}

/* ---- contents and values ---- */

/* Numbers in files have a decimal point whatever the process's locale says: glibc gives this one without allocating. */
static locale_t c_locale(void) { return newlocale(LC_ALL_MASK, "C", (locale_t)0); }

static int parse_i64(const char *text, uint8_t scratch[8])
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno)
        return -1;
    put_u64(scratch, (uint64_t)v);
    return 0;
}

static int parse_float(const char *text, bool single, uint8_t scratch[8])
{
    char *end;
    errno = 0;
    double d = strtod_l(text, &end, c_locale());
    if (end == text || *end || (errno && isinf(d)))
        return -1;
    float f = (float)d;
    if (single)
        memcpy(scratch, &f, sizeof(f));
    else
        memcpy(scratch, &d, sizeof(d));
    return single && isinf(f) && !isinf(d) ? -1 : 0;
}

static int parse_bool(const char *text, uint8_t scratch[8])
{
    bool yes = !strcmp(text, "1") || !strcasecmp(text, "true"), no = !strcmp(text, "0") || !strcasecmp(text, "false");
    scratch[0] = yes;
    return yes || no ? 0 : -1;
}

static int parse_scalar(int type, const void *data, size_t len, uint8_t scratch[8], struct larder_error *err)
{
    char text[SCALAR_TEXT_MAX + 1], shown[256];
    const char *p = data, *end = p + len;
    while (p < end && isspace((unsigned char)*p))
        p++;
    while (end > p && isspace((unsigned char)end[-1]))
        end--;
    size_t n = (size_t)(end - p);
    int rc = -1;
    if (n > 0 && n <= SCALAR_TEXT_MAX && !memchr(p, 0, n)) {
        memcpy(text, p, n);
        text[n] = 0;
        rc = type == LARDER_I64 ? parse_i64(text, scratch) : type == LARDER_BOOL ? parse_bool(text, scratch)
                                                           : parse_float(text, type == LARDER_F32, scratch);
    }
    return rc ? err_set(err, LARDER_EINVAL, "'%.60s' is no %s", key_text(p, n, shown), larder_type_name(type)) : LARDER_OK;
}

int fields_value(int type, const void *data, size_t len, uint8_t scratch[8], struct larder_value *v, struct larder_error *err)
{
    unsigned width = type_width(type);
    if (width) {
        int rc = parse_scalar(type, data, len, scratch, err);
        if (!rc)
            *v = (struct larder_value){scratch, width};
        return rc;
    }
    if (type_is_media(type) && len == 0)
        return err_set(err, LARDER_EINVAL, "is empty: no %s", larder_type_name(type));
    if ((type == LARDER_UTF8 || type == LARDER_JSON) && !utf8_valid(data, len))
        return err_set(err, LARDER_EINVAL, "is not valid UTF-8: give the field the type bytes, or mend the file");
    *v = (struct larder_value){data, len};
    return LARDER_OK;
}

size_t fields_text(int type, const struct larder_value *v, char out[40])
{
    double d;
    float f;
    int n = 0;
    locale_t old = uselocale(c_locale());
    switch (type) {
    case LARDER_I64:
        n = snprintf(out, 40, "%lld", (long long)get_u64(v->data));
        break;
    case LARDER_F64:
        memcpy(&d, v->data, sizeof(d));
        n = snprintf(out, 40, "%.17g", d);
        break;
    case LARDER_F32:
        memcpy(&f, v->data, sizeof(f));
        n = snprintf(out, 40, "%.9g", (double)f);
        break;
    case LARDER_BOOL:
        n = snprintf(out, 40, "%d", *(const uint8_t *)v->data != 0);
        break;
    default:
        break;
    }
    uselocale(old);
    return (size_t)n;
}

/* ---- schemas ---- */

int fields_schema(struct schema *s, const char *const *names, const int *types, size_t n, struct larder_error *err)
{
    AUTO_FREE struct larder_field *f = calloc(n ? n : 1, sizeof(*f));
    if (!f)
        return err_nomem(err, n * sizeof(*f), "a schema");
    for (size_t i = 0; i < n; i++)
        f[i] = (struct larder_field){.name = names[i], .type = types[i]};
    return schema_copy(s, f, n, err);
}

int fields_same(const struct schema *base, const struct schema *src, struct larder_error *err)
{
    if (schema_equal(base, src))
        return LARDER_OK;
    for (uint32_t i = 0; i < MAX(base->n, src->n); i++) {
        if (i >= src->n)
            return err_set(err, LARDER_EINVAL, "the dataset has a field '%.60s' that the source lacks: append needs the same fields",
                           base->fields[i].name);
        if (i >= base->n)
            return err_set(err, LARDER_EINVAL, "the source has a field '%.60s' that the dataset lacks: append needs the same fields",
                           src->fields[i].name);
        const struct schema_field *a = &base->fields[i], *b = &src->fields[i];
        if (strcmp(a->name, b->name) || a->type != b->type)
            return err_set(err, LARDER_EINVAL, "field %u is %.60s:%s in the dataset and %.60s:%s in the source: append needs the same "
                           "fields", i, a->name, larder_type_name(a->type), b->name, larder_type_name(b->type));
    }
    return err_set(err, LARDER_EINVAL, "the source's fields differ from the dataset's: append needs the same fields");
}
