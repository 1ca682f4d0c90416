/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export.c - samples become files again: KEY.EXT below a folder, or members of those names in a tar file.
 *
 * Keys are any bytes; names are made from them by percent-encoding, which an inverse undoes, so that different keys never meet:
 *
 *   - control bytes, a '/' that separates nothing (leading, doubled, trailing), a dot that begins a component ("..", hidden)
 *   - '%' where it could be taken for an escape or stands at a component's end
 *   - the last dot of a folder "x.jpg", which could be a file's name too
 *   - where the first dot ends the key (tar; fields with dots in their names): every dot of the base name
 *   - components too long for a file system are cut into folders that end in '%', which nothing else does
 *
 * EXT is the field's name; a lone media field gets its codec's. Values are read in batches of bounded size through the tiers and
 * written in ordinal order by the calling thread.
 */
#include "ingest/ingest_int.h"

#define BATCH_SAMPLES 256u
#define BATCH_BYTES (16 * MIB)
#define COMPONENT_MAX 255u
#define COMPONENT_CUT 200u
#define PROGRESS_EVERY_NS 100000000u

/* ---- names ---- */

static bool is_hex(uint8_t c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

static bool must_encode_percent(const uint8_t *p, size_t i, size_t len)
{
    return i + 1 == len || p[i + 1] == '/' || (i + 2 < len && is_hex(p[i + 1]) && is_hex(p[i + 2]));
}

static int put_byte(struct buf *out, uint8_t c, bool encode, struct larder_error *err)
{
    static const char digits[] = "0123456789ABCDEF";
    const char escape[3] = {'%', digits[c >> 4], digits[c & 15]};
    return encode ? buf_append(out, escape, 3, err) : buf_append(out, &c, 1, err);
}

int export_ext(const char *name, struct buf *out, struct larder_error *err)
{
    const uint8_t *p = (const uint8_t *)name;
    size_t len = strlen(name);
    int rc = LARDER_OK;
    for (size_t i = 0; !rc && i < len; i++)
        rc = put_byte(out, p[i], p[i] < 0x20 || p[i] == 0x7f || p[i] == '/' || (p[i] == '.' && i == 0) ||
                      (p[i] == '%' && must_encode_percent(p, i, len)), err);
    return rc ? rc : buf_append(out, "", 1, err);
}

/* The component out[start..] becomes a folder: it must not be what a file may be called. */
static int no_file_name(const struct name_rules *r, struct buf *out, size_t start, bool *renamed, struct larder_error *err)
{
    for (size_t i = 0; i < r->n_exts; i++) {
        size_t n = strlen(r->exts[i]), len = out->len - start;
        if (len <= n || out->data[out->len - n - 1] != '.' || memcmp(out->data + out->len - n, r->exts[i], n))
            continue;
        int rc = buf_reserve(out, 2, err);
        if (rc)
            return rc;
        uint8_t *dot = out->data + out->len - n - 1;
        memmove(dot + 3, dot + 1, n);
        memcpy(dot, "%2E", 3);
        out->len += 2;
        *renamed = true;
        i = (size_t)-1; /* the new name is looked at afresh */
    }
    return LARDER_OK;
}

static int encode_key(const struct name_rules *r, const uint8_t *key, size_t len, struct buf *out, bool *renamed,
                      struct larder_error *err)
{
    size_t start = out->len; /* of the component */
    int rc = LARDER_OK;
    for (size_t i = 0; !rc && i < len; i++) {
        uint8_t c = key[i];
        bool empty = out->len == start;
        if (c == '/' && !empty && i + 1 < len) {
            if (!(rc = no_file_name(r, out, start, renamed, err)))
                rc = put_byte(out, c, false, err);
            start = out->len;
            continue;
        }
        const uint8_t *slash = memchr(key + i, '/', len - i);
        bool in_base = !slash || slash == key + len - 1;
        bool encode = c < 0x20 || c == 0x7f || c == '/' || (c == '.' && (empty || (in_base && r->dots))) ||
                      (c == '%' && must_encode_percent(key, i, len));
        *renamed |= encode;
        rc = put_byte(out, c, encode, err);
    }
    return rc;
}

/* Where to cut a component of more than COMPONENT_CUT + 3 bytes: not inside an escape, and before a dot (which is then encoded) only
 * among dots without end. */
static size_t cut_place(const uint8_t *p)
{
    size_t cut = 0, any = 0;
    for (size_t i = 0; i <= COMPONENT_CUT; i += p[i] == '%' && is_hex(p[i + 1]) && is_hex(p[i + 2]) ? 3 : 1) {
        any = i;
        if (i > COMPONENT_CUT / 2 && p[i] != '.')
            cut = i;
    }
    return cut ? cut : any;
}

static int split_long(struct buf *name, bool *renamed, struct larder_error *err)
{
    AUTO_BUF struct buf in = *name;
    *name = (struct buf)BUF_INIT;
    size_t lead = 0; /* bytes of the component that an encoded dot took already */
    int rc = LARDER_OK;
    for (size_t at = 0; !rc && at < in.len;) {
        const uint8_t *p = in.data + at, *slash = memchr(p, '/', in.len - at);
        size_t len = slash ? (size_t)(slash - p) : in.len - at;
        if (lead + len <= COMPONENT_MAX) {
            rc = buf_append(name, p, len + (slash != NULL), err);
            at += len + (slash != NULL);
            lead = 0;
            continue;
        }
        size_t cut = cut_place(p);
        *renamed = true;
        lead = 0;
        if (!(rc = buf_append(name, p, cut, err)))
            rc = buf_append(name, "%/", 2, err);
        at += cut;
        if (!rc && in.data[at] == '.') {
            rc = buf_append(name, "%2E", 3, err);
            lead = 3;
            at++;
        }
    }
    return rc;
}

static bool has_long(const struct buf *name)
{
    size_t start = 0;
    for (size_t i = 0; i <= name->len; i++)
        if (i == name->len || name->data[i] == '/') {
            if (i - start > COMPONENT_MAX)
                return true;
            start = i + 1;
        }
    return false;
}

int export_name(const struct name_rules *r, const void *key, size_t key_len, const char *ext, struct buf *out, bool *renamed,
                struct larder_error *err)
{
    out->len = 0;
    *renamed = false;
    int rc = encode_key(r, key, key_len, out, renamed, err);
    if (!rc)
        rc = buf_append(out, ".", 1, err);
    if (!rc)
        rc = buf_append(out, ext, strlen(ext), err);
    if (!rc && r->split && has_long(out))
        rc = split_long(out, renamed, err);
    return rc ? rc : buf_append(out, "", 1, err);
}

/* ---- the export ---- */

static const char *const media_exts[] = {"jpg", "png", "webp", "gif", "bmp", "tiff", "wav", "flac", "ogg", "mp3"};

struct export {
    struct store *s;
    struct tiers *t;
    const struct manifest *m;
    const struct larder_export_options *o;
    struct larder_export_report *report;
    struct sink *sink;
    bool tar;
    uint32_t lone_media;      /* the one field of media, or UINT32_MAX */
    uint32_t label;           /* the field of class-per-folder labels, or UINT32_MAX */
    struct buf ext_text;      /* encoded extensions with their NULs */
    const char **exts;        /* [fields], then media_exts where those can occur */
    struct name_rules rules;
    struct tiers_fetch *fetch;
    struct decoder *decoder;
    void *memory; size_t memory_len;
    void *scratch; size_t scratch_len;
    struct larder_value *values;
    struct buf name;
    uint64_t total, last_ns;
};

/* Extensions of all fields. */
static int plan_names(struct export *x, struct larder_error *err)
{
    const struct schema *s = &x->m->schema;
    uint32_t media = 0;
    x->lone_media = x->label = UINT32_MAX;
    for (uint32_t i = 0; i < s->n; i++) {
        if (type_is_media(s->fields[i].type) && media++ == 0)
            x->lone_media = i;
        if (s->fields[i].type == LARDER_I64 && !strcmp(s->fields[i].name, "label"))
            x->label = i;
    }
    if (media != 1)
        x->lone_media = UINT32_MAX;
    AUTO_FREE size_t *at = calloc((size_t)s->n + 1, sizeof(*at));
    x->exts = calloc((size_t)s->n + ARRAY_LEN(media_exts), sizeof(*x->exts));
    if (!at || !x->exts)
        return err_nomem(err, s->n * sizeof(*at), "extensions");
    int rc = LARDER_OK;
    for (uint32_t i = 0; !rc && i < s->n; i++) {
        bool cls = x->tar && i == x->label && schema_find(s, "cls") < 0; /* what WebDataset calls a label */
        at[i] = x->ext_text.len;
        rc = export_ext(cls ? "cls" : s->fields[i].name, &x->ext_text, err);
    }
    if (rc)
        return rc;
    size_t n = 0;
    bool dots = x->tar;
    for (; n < s->n; n++) {
        x->exts[n] = (char *)x->ext_text.data + at[n];
        dots |= strchr(x->exts[n], '.') != NULL;
    }
    for (size_t i = 0; x->lone_media != UINT32_MAX && i < ARRAY_LEN(media_exts); i++)
        x->exts[n++] = media_exts[i];
    x->rules = (struct name_rules){dots, !x->tar, x->exts, n};
    return LARDER_OK;
}

/* A folder tree tells the label by the folder: no file for it. */
static bool label_shown(const struct export *x, const uint8_t *key, size_t key_len, const struct larder_value *v)
{
    uint64_t label = get_u64(v->data);
    if (x->tar || label >= x->m->n_classes)
        return false;
    size_t n = strlen(x->m->classes[label]);
    return key_len > n + 1 && key[n] == '/' && !memcmp(key, x->m->classes[label], n);
}

static int put_field(struct export *x, uint32_t field, const uint8_t *key, size_t key_len, bool *renamed, struct larder_error *err)
{
    const struct schema_field *f = &x->m->schema.fields[field];
    struct larder_value v = x->values[field];
    char text[40];
    if (field == x->label && label_shown(x, key, key_len, &v))
        return LARDER_OK;
    const char *ext = field == x->lone_media ? sniff_extension(v.data, v.len) : NULL;
    if (!ext)
        ext = x->exts[field];
    if (type_width(f->type)) {
        v.len = fields_text(f->type, &v, text);
        v.data = text;
    }
    bool changed;
    int rc = export_name(&x->rules, key, key_len, ext, &x->name, &changed, err);
    if (!rc)
        rc = x->sink->ops->file(x->sink, (char *)x->name.data, v.data, v.len, changed ? key : NULL, key_len, err);
    if (rc)
        return rc;
    *renamed |= changed;
    x->report->files++;
    x->report->bytes += v.len;
    return LARDER_OK;
}

static int put_sample(struct export *x, uint64_t ordinal, size_t i, struct larder_error *err)
{
    const struct extent *e = tiers_fetch_extent(x->fetch, i);
    size_t need = store_decode_scratch(e), key_len;
    uint8_t key[LARDER_KEY_MAX];
    bool renamed = false;
    if (need > x->scratch_len) {
        free(x->scratch);
        x->scratch_len = 0;
        if (!(x->scratch = malloc(need)))
            return err_nomem(err, need, "a sample");
        x->scratch_len = need;
    }
    int rc = store_decode(x->s, x->decoder, e, tiers_fetch_record(x->fetch, i), x->scratch, x->values, err);
    if (!rc)
        rc = store_key(x->s, ordinal, key, sizeof(key), &key_len, err);
    if (!rc && (key_len == 0 || key_len > sizeof(key)))
        rc = err_set(err, LARDER_ECORRUPT, "sample %llu: its key has %zu bytes", (unsigned long long)ordinal, key_len);
    for (uint32_t f = 0; !rc && f < x->m->schema.n; f++)
        if (x->values[f].data)
            rc = put_field(x, f, key, key_len, &renamed, err);
    if (rc)
        return rc;
    x->report->renamed += renamed;
    x->report->samples++;
    return LARDER_OK;
}

static int make_room(struct export *x, size_t bytes, struct larder_error *err)
{
    if (bytes <= x->memory_len)
        return LARDER_OK;
    free(x->memory);
    x->memory_len = 0;
    bytes = round_up(bytes, STORE_PAGE);
    if (!(x->memory = aligned_alloc(STORE_PAGE, bytes)))
        return err_nomem(err, bytes, "samples");
    x->memory_len = bytes;
    return LARDER_OK;
}

static int progress(struct export *x, bool at_once, struct larder_error *err)
{
    uint64_t now = now_ns();
    if (!x->o->progress || (!at_once && now - x->last_ns < PROGRESS_EVERY_NS))
        return LARDER_OK;
    x->last_ns = now;
    struct larder_progress p = {"export", x->report->samples, x->total, x->report->bytes, 0};
    return x->o->progress(x->o->user, &p) ? err_set(err, LARDER_ECANCELED, "export: stopped by the caller") : LARDER_OK;
}

/* Reads and writes up to *n samples from `first`; *n becomes how many fitted the budget. */
static int batch(struct export *x, uint64_t first, size_t *n, struct larder_error *err)
{
    uint64_t ordinals[BATCH_SAMPLES];
    size_t bytes;
    int rc;
    for (size_t i = 0; i < *n; i++)
        ordinals[i] = first + i;
    while (!(rc = tiers_fetch_plan(x->fetch, ordinals, *n, &bytes, err)) && bytes > BATCH_BYTES && *n > 1)
        *n /= 2;
    if (!rc)
        rc = make_room(x, bytes, err);
    if (!rc)
        rc = tiers_read(x->t, x->fetch, x->memory, err);
    for (size_t i = 0; !rc && i < *n; i++)
        if (!(rc = put_sample(x, first + i, i, err)))
            rc = progress(x, false, err); /* after each: compressing may take seconds */
    return rc;
}

static int run(struct export *x, const char *dest, struct larder_error *err)
{
    int rc = plan_names(x, err);
    if (!rc && !(x->values = calloc((size_t)x->m->schema.n + 1, sizeof(*x->values))))
        rc = err_nomem(err, x->m->schema.n * sizeof(*x->values), "a sample");
    if (!rc)
        rc = decoder_new(&x->decoder, err);
    if (!rc)
        rc = tiers_fetch_new(x->t, &x->fetch, err);
    if (!rc)
        rc = x->tar ? tar_sink_open(dest, &x->sink, err) : dir_sink_open(dest, &x->sink, err);
    for (uint64_t done = 0; !rc && done < x->total;) {
        size_t n = (size_t)MIN(x->total - done, (uint64_t)BATCH_SAMPLES);
        rc = batch(x, x->o->first + done, &n, err);
        done += n;
    }
    if (!rc)
        rc = progress(x, true, err);
    if (!x->sink)
        return rc;
    if (!rc)
        return x->sink->ops->finish(x->sink, err);
    x->sink->ops->abort(x->sink);
    return rc;
}

static int check(struct export *x, const char *dest, struct larder_error *err)
{
    const struct larder_export_options *o = x->o;
    if (o->format && strcmp(o->format, "dir") && strcmp(o->format, "tar"))
        return err_set(err, LARDER_EINVAL, "format '%.40s' is not known; there are dir and tar", o->format);
    if (!o->format && !tar_name_like(dest) && strcasestr(dest, ".tar."))
        return err_set(err, LARDER_EINVAL, "%.120s: a tar is written as .tar, .tar.gz, .tar.zst or .tar.xz (--format dir makes a folder "
                       "of this name)", dest);
    if (o->first >= x->m->samples || o->count > x->m->samples - o->first)
        return err_set(err, LARDER_ENOTFOUND, "samples from %llu on, %llu of them: the dataset has %llu", (unsigned long long)o->first,
                       (unsigned long long)o->count, (unsigned long long)x->m->samples);
    x->total = o->count ? o->count : x->m->samples - o->first;
    return LARDER_OK;
}

int export_run(struct store *s, struct tiers *t, const char *dest, const struct larder_export_options *o,
               struct larder_export_report *report, struct larder_error *err)
{
    struct larder_export_report mine = {.struct_size = sizeof(mine)};
    struct export x = {.s = s, .t = t, .m = store_manifest(s), .o = o, .report = &mine, .ext_text = BUF_INIT, .name = BUF_INIT};
    int rc = check(&x, dest, err);
    x.tar = o->format ? !strcmp(o->format, "tar") : tar_name_like(dest);
    if (!rc)
        rc = run(&x, dest, err);
    if (x.fetch)
        tiers_fetch_free(x.fetch);
    if (x.decoder)
        decoder_free(x.decoder);
    buf_release(&x.ext_text);
    buf_release(&x.name);
    free(x.exts);
    free(x.values);
    free(x.memory);
    free(x.scratch);
    if (!rc && report) {
        report->samples = mine.samples;
        report->files = mine.files;
        report->bytes = mine.bytes;
        report->renamed = mine.renamed;
    }
    return rc;
}
