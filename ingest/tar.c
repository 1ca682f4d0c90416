/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tar.c - WebDataset archives as a source (one sample: consecutive members of one key) and one archive as a sink. Sole user of
 * libarchive.
 *
 * A member's key is its path up to the first dot of its base name, its field what follows, lowercased. Each archive is a unit. A
 * cursor gathers members until the key changes: the header that ends a sample stays pending for the next. What makes a group a
 * sample is decided by names alone, so that passing over n samples unread finds the place where n samples read would have led.
 *
 * Without --fields the schema comes from the first samples; a field that appears later is an error. libarchive turns names into
 * the thread's character set and fails where that cannot hold them, so every call is made under a UTF-8 locale of our own, in
 * which names keep their bytes. The sink notes a key that its member names do not show in an extended attribute of the member,
 * and the source takes it from there: export and ingest round-trip.
 *
 * Damage is ECORRUPT for the rest of the archive. Memory: one sample, grown as its bytes arrive, whatever sizes headers claim.
 * Threads: as dir.c.
 */
#include "ingest/ingest_int.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <unistd.h>

#define READ_BYTES (256 * KIB)
#define INFER_SAMPLES 100u
#define INFER_BYTES (64 * MIB)
#define SAMPLE_MAX ((uint64_t)LARDER_SAMPLE_BYTES_MAX - 64 * KIB) /* room for the record's head */
#define KEY_ATTRIBUTE "user.larder.key"
#define BLOCK 512u

struct ext { char *ext; uint32_t field; };
struct listed { char *path; uint64_t size; int64_t mtime_ns; };

struct tar_source {
    struct source base;
    struct notes *notes;
    struct listed *archives; size_t n;
    struct ext *exts; size_t n_exts; /* sorted */
    bool strict;                     /* a member of an unknown field is an error; else left out */
};

struct part { size_t offset, len; bool present; };

struct tar_cursor {
    struct tar_source *s;
    const struct listed *file;
    struct archive *a;
    struct archive_entry *entry;     /* pending when `pending` */
    bool pending, dead, ended, begun; /* begun: there was a member */
    int fd;
    struct gzip *gzip; uint8_t *raw; /* of a gzip file, and what it was read into; else NULL */
    locale_t locale;
    struct buf data, key, true_key;  /* of the sample: bytes of its parts; its name's key; what the attribute says */
    struct part *parts;
    struct larder_value *values;
    uint8_t (*scratch)[8];
    struct buf what;
    int bad;                         /* why the sample is none: code and message */
    struct larder_error why;
};

/* ---- names ---- */

const char *tar_name_split(const char *path, size_t len, size_t *key_len, const char **ext, size_t *ext_len)
{
    const char *slash = memrchr(path, '/', len), *base = slash ? slash + 1 : path, *end = path + len;
    if (base == end)
        return "not a regular file";
    if (*base == '.')
        return "hidden";
    const char *dot = memchr(base, '.', (size_t)(end - base));
    if (!dot || dot + 1 == end)
        return "its name has no extension";
    *key_len = (size_t)(dot - path);
    *ext = dot + 1;
    *ext_len = (size_t)(end - dot - 1);
    return NULL;
}

/* The type that an extension stands for: of its last part, "seg.png" is an image. */
static int type_of_ext(const char *ext)
{
    const char *dot = strrchr(ext, '.');
    const char *last = dot ? dot + 1 : ext;
    return extension_type(last, strlen(last));
}

static int by_ext(const void *a, const void *b) { return strcmp(((const struct ext *)a)->ext, ((const struct ext *)b)->ext); }

/* Field of an extension as it stands in a name (any case), or -1. */
static int field_of(const struct tar_source *s, const char *ext, size_t len)
{
    char low[256];
    if (len >= sizeof(low))
        return -1;
    for (size_t i = 0; i < len; i++)
        low[i] = (char)(ext[i] >= 'A' && ext[i] <= 'Z' ? ext[i] + 32 : ext[i]);
    low[len] = 0;
    struct ext want = {low, 0};
    const struct ext *hit = strlen(low) == len ? bsearch(&want, s->exts, s->n_exts, sizeof(want), by_ext) : NULL;
    return hit ? (int)hit->field : -1;
}

/* ---- an archive being read ---- */

static int damaged(struct tar_cursor *c, struct larder_error *err)
{
    const char *why = archive_error_string(c->a);
    char shown[256], after[80] = "";
    c->dead = true;
    if (archive_errno(c->a) == ENOMEM)
        return err_nomem(err, READ_BYTES, c->file->path);
    if (archive_errno(c->a) == EIO)
        return err_sys(err, LARDER_EIO, EIO, "%s: cannot be read", c->file->path);
    if (c->key.len)
        snprintf(after, sizeof(after), " after sample '%.40s'", key_text(c->key.data, c->key.len, shown));
    else if (!c->begun)
        return err_set(err, LARDER_ECORRUPT, "%.110s: no tar archive, or damaged from the beginning: %.70s", c->file->path,
                       why ? why : "unreadable");
    return err_set(err, LARDER_ECORRUPT, "%.110s: damaged%s: %.60s", c->file->path, after, why ? why : "unreadable");
}

static void tar_close_unit(struct source_cursor *cursor)
{
    struct tar_cursor *c = (struct tar_cursor *)cursor;
    if (!c)
        return;
    if (c->a)
        archive_read_free(c->a);
    gzip_close(c->gzip);
    free(c->raw);
    if (c->fd >= 0)
        close(c->fd);
    if (c->locale)
        freelocale(c->locale);
    buf_release(&c->data);
    buf_release(&c->key);
    buf_release(&c->true_key);
    buf_release(&c->what);
    free(c->parts);
    free(c->values);
    free(c->scratch);
    free(c);
}

/* libarchive's callback: it would not check what ends a gzip member. */
static la_ssize_t read_gzip(struct archive *a, void *user, const void **data)
{
    struct tar_cursor *c = user;
    const char *why = NULL;
    int sys_errno;
    ssize_t n = gzip_read(c->gzip, c->raw, READ_BYTES, &sys_errno, &why);
    *data = c->raw;
    if (n < 0)
        archive_set_error(a, sys_errno, "gzip: %s", why ? why : "unreadable");
    return n;
}

static int open_reader(struct tar_cursor *c, struct larder_error *err)
{
    if (!gzip_like(c->fd))
        return archive_read_open_fd(c->a, c->fd, READ_BYTES) == ARCHIVE_OK ? LARDER_OK : damaged(c, err);
    if (!(c->raw = malloc(READ_BYTES)))
        return err_nomem(err, READ_BYTES, "an archive");
    int rc = gzip_open(c->fd, &c->gzip, err);
    if (rc)
        return rc;
    return archive_read_open(c->a, c, NULL, read_gzip, NULL) == ARCHIVE_OK ? LARDER_OK : damaged(c, err);
}

static int open_archive(struct tar_cursor *c, struct larder_error *err)
{
    struct stat st;
    c->fd = open(c->file->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (c->fd < 0 || fstat(c->fd, &st))
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be opened", c->file->path);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != c->file->size || mtime_ns(&st) != c->file->mtime_ns)
        return err_set(err, LARDER_EINVAL, "%s changed while it was read (listed with %llu bytes, now %llu): run again when the "
                       "source is at rest", c->file->path, (unsigned long long)c->file->size, (unsigned long long)st.st_size);
    if (!(c->a = archive_read_new()))
        return err_nomem(err, READ_BYTES, "an archive");
    archive_read_support_format_tar(c->a);
    archive_read_support_filter_bzip2(c->a); /* libraries, no outside programs: archive_read_support_filter_all would run some */
    archive_read_support_filter_xz(c->a);
    archive_read_support_filter_lzma(c->a);
    archive_read_support_filter_zstd(c->a);
    archive_read_support_filter_lz4(c->a);
    archive_read_set_format_option(c->a, "tar", "read_concatenated_archives", "1");
    locale_t old = c->locale ? uselocale(c->locale) : (locale_t)0;
    int rc = open_reader(c, err);
    if (old)
        uselocale(old);
    return rc;
}

static int new_cursor(struct tar_source *s, uint64_t unit, struct tar_cursor **out, struct larder_error *err)
{
    *out = NULL;
    if (unit >= s->n)
        return err_set(err, LARDER_EINVAL, "archive %llu of %zu: beyond the source", (unsigned long long)unit, s->n);
    struct tar_cursor *c = calloc(1, sizeof(*c));
    if (!c)
        return err_nomem(err, sizeof(*c), "a cursor");
    uint32_t n = s->base.schema.n;
    c->s = s;
    c->fd = -1;
    c->file = &s->archives[unit];
    c->locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0); /* where there is none, ASCII names still work */
    c->parts = calloc((size_t)n + 1, sizeof(*c->parts));
    c->values = calloc((size_t)n + 1, sizeof(*c->values));
    c->scratch = calloc((size_t)n + 1, sizeof(*c->scratch));
    int rc = c->parts && c->values && c->scratch ? open_archive(c, err) : err_nomem(err, n * sizeof(*c->parts), "a cursor");
    if (rc) {
        tar_close_unit((struct source_cursor *)c);
        return rc;
    }
    *out = c;
    return LARDER_OK;
}

/* A tar file that stops between two members looks complete to libarchive: it must end in a block of zeros. Filters notice
 * a missing end themselves. */
static int check_end(struct tar_cursor *c, struct larder_error *err)
{
    uint8_t block[BLOCK];
    if (c->gzip || archive_filter_code(c->a, 0) != ARCHIVE_FILTER_NONE)
        return LARDER_END;
    ssize_t got = c->file->size < BLOCK ? 0 : read_fully(c->fd, block, BLOCK, c->file->size - BLOCK);
    if (got < 0)
        return err_sys(err, LARDER_EIO, errno, "%.120s: cannot be read", c->file->path);
    bool zero = got == BLOCK;
    for (size_t i = 0; zero && i < BLOCK; i++)
        zero = block[i] == 0;
    if (zero)
        return LARDER_END;
    char shown[256];
    c->dead = true;
    return err_set(err, LARDER_ECORRUPT, "%.120s: ends without an end-of-archive mark after sample '%.40s': is it cut short?",
                   c->file->path, key_text(c->key.data, c->key.len, shown));
}

/* Makes the next header pending. */
static int header(struct tar_cursor *c, struct larder_error *err)
{
    if (c->pending)
        return LARDER_OK;
    if (c->ended)
        return LARDER_END;
    int rc = archive_read_next_header(c->a, &c->entry);
    if (rc == ARCHIVE_EOF) {
        c->ended = true;
        return check_end(c, err);
    }
    if (rc != ARCHIVE_OK && rc != ARCHIVE_WARN)
        return damaged(c, err);
    c->pending = c->begun = true;
    return LARDER_OK;
}

static void ignore(struct tar_cursor *c, const char *path, const char *why)
{
    char shown[256];
    if (c->s->base.quiet)
        return;
    c->what.len = 0;
    if (!buf_printf(&c->what, NULL, "%s: %s", c->file->path, key_text(path, strlen(path), shown)) && !buf_append(&c->what, "", 1, NULL))
        notes_ignored(c->s->notes, (char *)c->what.data, why);
}

/* Splits the pending member's name; false: it is no part of any sample, reported, no longer pending. */
static bool member(struct tar_cursor *c, const char **path, size_t *key_len, const char **ext, size_t *ext_len)
{
    *path = archive_entry_pathname(c->entry);
    const char *why = !*path ? "its name cannot be read" : NULL;
    if (!why && archive_entry_filetype(c->entry) == AE_IFDIR) { /* folders are how tar writes paths: nothing is lost */
        c->pending = false;
        return false;
    }
    if (!why && archive_entry_hardlink(c->entry))
        why = "a hard link";
    if (!why && archive_entry_filetype(c->entry) != AE_IFREG)
        why = "not a regular file";
    if (!why)
        why = tar_name_split(*path, strlen(*path), key_len, ext, ext_len);
    if (!why)
        return true;
    ignore(c, *path ? *path : "?", why);
    c->pending = false;
    return false;
}

/* ---- samples ---- */

/* Bytes of the pending member behind what the sample has. */
static int read_member(struct tar_cursor *c, struct part *part, struct larder_error *err)
{
    uint64_t size = (uint64_t)archive_entry_size(c->entry);
    const void *p;
    size_t n;
    la_int64_t at;
    part->offset = c->data.len;
    for (;;) {
        int r = archive_read_data_block(c->a, &p, &n, &at);
        if (r == ARCHIVE_EOF)
            break;
        if (r != ARCHIVE_OK && r != ARCHIVE_WARN)
            return damaged(c, err);
        uint64_t have = c->data.len - part->offset;
        if (at < 0 || (uint64_t)at < have || (uint64_t)at > size || n > size - (uint64_t)at) {
            archive_set_error(c->a, 0, "data beyond the member's size");
            return damaged(c, err);
        }
        int rc = buf_reserve(&c->data, (uint64_t)at - have + n, err);
        if (rc)
            return rc;
        memset(c->data.data + c->data.len, 0, (uint64_t)at - have); /* a hole */
        memcpy(c->data.data + part->offset + at, p, n);
        c->data.len = part->offset + (size_t)at + n;
    }
    uint64_t hole = size - (c->data.len - part->offset);
    int rc = buf_reserve(&c->data, hole, err);
    if (rc)
        return rc;
    if (hole)
        memset(c->data.data + c->data.len, 0, hole);
    c->data.len += hole;
    part->len = (size_t)size;
    part->present = true;
    return LARDER_OK;
}

/* The sample is none, for this reason; what follows of it is passed over. */
static void spoil(struct tar_cursor *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void spoil(struct tar_cursor *c, const char *fmt, ...)
{
    char text[sizeof(c->why.message)];
    va_list ap;
    if (c->bad)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    c->bad = err_set(&c->why, LARDER_EINVAL, "%s", text);
}

static int take_key(struct tar_cursor *c, struct larder_error *err)
{
    const char *name;
    const void *value;
    size_t len;
    archive_entry_xattr_reset(c->entry);
    while (archive_entry_xattr_next(c->entry, &name, &value, &len) == ARCHIVE_OK)
        if (!strcmp(name, KEY_ATTRIBUTE) && len >= 1 && len <= LARDER_KEY_MAX) {
            c->true_key.len = 0;
            return buf_append(&c->true_key, value, len, err);
        }
    return LARDER_OK;
}

/* Takes the pending member into the sample, or only counts it as read. */
static int take(struct tar_cursor *c, const char *path, const char *ext, int field, bool unread, struct larder_error *err)
{
    if (unread)
        return LARDER_OK;
    uint64_t size = (uint64_t)MAX(archive_entry_size(c->entry), 0);
    if (field < 0)
        spoil(c, "%.90s: %.60s: field '%.30s' is not in the schema taken from the first samples: name all with --fields", c->file->path,
              path, ext);
    else if (c->parts[field].present)
        spoil(c, "%.90s: %.60s: the sample has field '%.40s' twice", c->file->path, path, c->s->base.schema.fields[field].name);
    else if (size > SAMPLE_MAX - MIN(SAMPLE_MAX, c->data.len))
        spoil(c, "%.90s: %.60s: %llu bytes: the sample is larger than 4 GiB", c->file->path, path, (unsigned long long)size);
    if (c->bad)
        return LARDER_OK;
    int rc = take_key(c, err);
    return rc ? rc : read_member(c, &c->parts[field], err);
}

/* The next group of members with one key that makes a sample. LARDER_END: no more. */
static int gather(struct tar_cursor *c, bool unread, struct larder_error *err)
{
    bool open = false;
    int rc;
    c->data.len = c->true_key.len = 0;
    c->bad = LARDER_OK;
    memset(c->parts, 0, c->s->base.schema.n * sizeof(*c->parts));
    while (!(rc = header(c, err))) {
        const char *path, *ext;
        size_t key_len, ext_len;
        if (!member(c, &path, &key_len, &ext, &ext_len))
            continue;
        int field = field_of(c->s, ext, ext_len);
        if (field < 0 && !c->s->strict) { /* left out by --fields */
            c->pending = false;
            continue;
        }
        if (open && (key_len != c->key.len || memcmp(path, c->key.data, key_len)))
            return LARDER_OK;
        if (!open) {
            c->key.len = 0;
            if ((rc = buf_append(&c->key, path, key_len, err)))
                return rc;
            open = true;
        }
        if ((rc = take(c, path, ext, field, unread, err)))
            return rc;
        c->pending = false;
    }
    return rc == LARDER_END && open ? LARDER_OK : rc;
}

static int finish_sample(struct tar_cursor *c, struct source_item *item, struct larder_error *err)
{
    const struct schema *schema = &c->s->base.schema;
    char shown[256];
    const struct buf *key = c->true_key.len ? &c->true_key : &c->key;
    c->what.len = 0;
    int rc = buf_printf(&c->what, err, "%s: %s", c->file->path, key_text(key->data, key->len, shown));
    if (!rc)
        rc = buf_append(&c->what, "", 1, err);
    if (rc)
        return rc;
    item->what = (char *)c->what.data;
    item->key = key->data;
    item->key_len = key->len;
    item->values = c->values;
    item->source_bytes = c->data.len;
    if (key->len > LARDER_KEY_MAX)
        spoil(c, "%.150s: its key is longer than 1024 bytes", item->what);
    for (uint32_t i = 0; !c->bad && i < schema->n; i++) {
        const struct part *p = &c->parts[i];
        c->values[i] = (struct larder_value){NULL, 0};
        if (!p->present)
            continue;
        const void *data = c->data.data ? c->data.data + p->offset : c->scratch[i];
        c->bad = fields_value(schema->fields[i].type, data, p->len, c->scratch[i], &c->values[i], &c->why);
        if (c->bad)
            err_prefix(&c->why, c->bad, "%.120s.%.40s", item->what, schema->fields[i].name);
    }
    return c->bad ? err_set(err, c->bad, "%s", c->why.message) : LARDER_OK;
}

static int tar_next(struct source_cursor *cursor, struct source_item *item, struct larder_error *err)
{
    struct tar_cursor *c = (struct tar_cursor *)cursor;
    *item = (struct source_item){0};
    if (c->dead)
        return err_set(err, LARDER_ECORRUPT, "%s: damaged", c->file->path);
    locale_t old = c->locale ? uselocale(c->locale) : (locale_t)0;
    int rc = gather(c, false, err);
    if (old)
        uselocale(old);
    return rc ? rc : finish_sample(c, item, err);
}

static int tar_open_unit(struct source *base, uint64_t unit, uint64_t skip, struct source_cursor **out, struct larder_error *err)
{
    struct tar_cursor *c;
    *out = NULL;
    int rc = new_cursor((struct tar_source *)base, unit, &c, err);
    if (rc)
        return rc;
    locale_t old = c->locale ? uselocale(c->locale) : (locale_t)0;
    for (uint64_t i = 0; !rc && i < skip; i++)
        rc = gather(c, true, err);
    if (old)
        uselocale(old);
    if (rc == LARDER_END)
        rc = err_set(err, LARDER_EINVAL, "%s: holds fewer than %llu samples: it changed since the interrupted run", c->file->path,
                     (unsigned long long)skip);
    if (rc) {
        tar_close_unit((struct source_cursor *)c);
        return rc;
    }
    *out = (struct source_cursor *)c;
    return LARDER_OK;
}

static void tar_close(struct source *base)
{
    struct tar_source *s = (struct tar_source *)base;
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++)
        free(s->archives[i].path);
    free(s->archives);
    for (size_t i = 0; i < s->n_exts; i++)
        free(s->exts[i].ext);
    free(s->exts);
    source_release(&s->base);
    free(s);
}

static const struct source_ops tar_ops = {tar_open_unit, tar_next, tar_close_unit, tar_close};

/* ---- the schema ---- */

struct names { char **ext; size_t n, cap; };

/* Lowercased and once. */
static int names_add(struct names *x, const char *ext, size_t len, struct larder_error *err)
{
    char *low = bytes_dup(ext, len);
    if (!low)
        return err_nomem(err, len, "a field's name");
    for (char *p = low; *p; p++)
        *p = (char)(*p >= 'A' && *p <= 'Z' ? *p + 32 : *p);
    for (size_t i = 0; i < x->n; i++)
        if (!strcmp(x->ext[i], low)) {
            free(low);
            return LARDER_OK;
        }
    int rc = GROW(x->ext, x->cap, x->n + 1, err);
    if (rc) {
        free(low);
        return rc;
    }
    x->ext[x->n++] = low;
    return LARDER_OK;
}

/* Extensions in the first samples of one archive. */
static int infer_from(struct tar_cursor *c, struct names *x, struct larder_error *err)
{
    uint64_t samples = 0, bytes = 0;
    int rc;
    while (!(rc = header(c, err)) && bytes < INFER_BYTES) {
        const char *path, *ext;
        size_t key_len, ext_len;
        if (!member(c, &path, &key_len, &ext, &ext_len))
            continue;
        if (samples == 0 || key_len != c->key.len || memcmp(path, c->key.data, key_len)) {
            if (++samples > INFER_SAMPLES)
                break;
            c->key.len = 0;
            if ((rc = buf_append(&c->key, path, key_len, err)))
                return rc;
        }
        if (x->n >= LARDER_FIELDS_MAX)
            return err_set(err, LARDER_EINVAL, "%s: more than %d different extensions: is this a WebDataset archive? Name the fields with "
                           "--fields", c->file->path, LARDER_FIELDS_MAX);
        if ((rc = names_add(x, ext, ext_len, err)))
            return rc;
        bytes += (uint64_t)MAX(archive_entry_size(c->entry), 0);
        c->pending = false;
    }
    return rc == LARDER_END ? LARDER_OK : rc;
}

static int infer(struct tar_source *s, struct names *x, struct larder_error *err)
{
    s->base.quiet = true;
    int rc = LARDER_OK;
    for (size_t i = 0; i < s->n && x->n == 0; i++) {
        struct tar_cursor *c;
        if (!(rc = new_cursor(s, i, &c, err))) {
            locale_t old = c->locale ? uselocale(c->locale) : (locale_t)0;
            rc = infer_from(c, x, err);
            if (old)
                uselocale(old);
            tar_close_unit((struct source_cursor *)c);
        }
        if (rc == LARDER_ECORRUPT && (x->n || notes_may_skip(s->notes)))
            rc = LARDER_OK; /* met again, and reported, when its turn comes */
        if (rc)
            break;
    }
    s->base.quiet = false;
    if (!rc && x->n == 0)
        rc = err_set(err, LARDER_EINVAL, "%s: no samples to ingest in %zu archive%s", s->archives[0].path, s->n, s->n == 1 ? "" : "s");
    return rc;
}

static int map_ext(struct tar_source *s, const char *ext, uint32_t field, struct larder_error *err)
{
    struct ext *exts = realloc(s->exts, (s->n_exts + 1) * sizeof(*exts));
    if (!exts)
        return err_nomem(err, sizeof(*exts), "a field's extensions");
    s->exts = exts;
    if (!(exts[s->n_exts].ext = strdup(ext)))
        return err_nomem(err, strlen(ext), "a field's extension");
    exts[s->n_exts++].field = field;
    return LARDER_OK;
}

/* A spec's type: given, or the dataset's, or what its extensions agree on. */
static int spec_type(const struct field_spec *spec, const struct manifest *base, int *type, struct larder_error *err)
{
    *type = spec->type;
    int at = base ? schema_find(&base->schema, spec->name) : -1;
    if (!*type && at >= 0)
        *type = base->schema.fields[at].type;
    if (*type)
        return LARDER_OK;
    *type = type_of_ext(spec->exts[0]);
    for (size_t i = 1; i < spec->n_exts; i++)
        if (type_of_ext(spec->exts[i]) != *type)
            return err_set(err, LARDER_EINVAL, "fields: extensions '%s' and '%s' of '%s' stand for different types: give it one, %s:TYPE",
                           spec->exts[0], spec->exts[i], spec->name, spec->name);
    return LARDER_OK;
}

/* The schema from --fields: its order, or on append the dataset's. */
static int schema_from_specs(struct tar_source *s, const struct field_specs *f, const struct manifest *base, struct larder_error *err)
{
    AUTO_FREE const char **names = calloc(f->n, sizeof(*names));
    AUTO_FREE int *types = calloc(f->n, sizeof(*types));
    if (!names || !types)
        return err_nomem(err, f->n * sizeof(*names), "a schema");
    int rc = LARDER_OK;
    bool reorder = base && base->schema.n == f->n;
    for (size_t i = 0; reorder && i < f->n; i++)
        reorder = schema_find(&base->schema, f->specs[i].name) >= 0;
    for (size_t i = 0; !rc && i < f->n; i++) {
        const struct field_spec *spec = &f->specs[i];
        size_t at = reorder ? (size_t)schema_find(&base->schema, spec->name) : i;
        names[at] = spec->name;
        rc = spec_type(spec, base, &types[at], err);
        for (size_t k = 0; !rc && k < spec->n_exts; k++)
            rc = map_ext(s, spec->exts[k], (uint32_t)at, err);
    }
    if (!rc && reorder) { /* ndarray fields cannot be named by a spec: theirs are taken as they are */
        for (size_t i = 0; !rc && i < f->n; i++)
            if (types[i] != base->schema.fields[i].type)
                rc = err_set(err, LARDER_EINVAL, "field '%.60s' is %s in the dataset and %s in --fields: append needs the same fields", names[i],
                             larder_type_name(base->schema.fields[i].type), larder_type_name(types[i]));
        return rc;
    }
    return rc ? rc : fields_schema(&s->base.schema, names, types, f->n, err);
}

static int schema_from_names(struct tar_source *s, const struct names *x, const struct manifest *base, struct larder_error *err)
{
    AUTO_FREE int *types = calloc(x->n, sizeof(*types));
    if (!types)
        return err_nomem(err, x->n * sizeof(*types), "a schema");
    int rc = LARDER_OK;
    s->strict = true;
    for (size_t i = 0; !rc && base && i < x->n; i++)
        if (schema_find(&base->schema, x->ext[i]) < 0)
            rc = err_set(err, LARDER_EINVAL, "the source has a field '%.40s' that the dataset lacks: append needs the same fields; say which "
                         "is which with --fields NAME=EXT", x->ext[i]);
    for (uint32_t i = 0; !rc && base && i < base->schema.n; i++)
        rc = map_ext(s, base->schema.fields[i].name, i, err);
    if (rc || base)
        return rc;
    for (size_t i = 0; !rc && i < x->n; i++) {
        types[i] = type_of_ext(x->ext[i]);
        rc = map_ext(s, x->ext[i], (uint32_t)i, err);
    }
    return rc ? rc : fields_schema(&s->base.schema, (const char *const *)x->ext, types, x->n, err);
}

static int make_schema(struct tar_source *s, const struct manifest *base, struct larder_error *err)
{
    struct names x = {NULL, 0, 0};
    struct field_specs f = {NULL, 0};
    int rc = LARDER_OK;
    if (s->notes->o->fields) {
        if (!(rc = fields_parse(s->notes->o->fields, &f, err)))
            rc = schema_from_specs(s, &f, base, err);
    } else if (!(rc = infer(s, &x, err))) {
        rc = schema_from_names(s, &x, base, err);
    }
    fields_release(&f);
    strings_free(x.ext, x.n);
    if (!rc && base)
        rc = s->base.schema.n ? fields_same(&base->schema, &s->base.schema, err)
                              : schema_clone(&s->base.schema, &base->schema, err);
    if (!rc)
        qsort(s->exts, s->n_exts, sizeof(*s->exts), by_ext);
    return rc;
}

/* ---- opening ---- */

static int list_one(struct tar_source *s, const char *path, struct larder_error *err)
{
    struct stat st;
    if (stat(path, &st)) {
        if (!notes_may_skip(s->notes))
            return errno == ENOENT ? err_set(err, LARDER_ENOTFOUND, "%s: no such archive", path)
                                   : err_sys(err, LARDER_EIO, errno, "%s: cannot be read", path);
        notes_skipped(s->notes, path, strerror(errno));
        return LARDER_OK;
    }
    if (!S_ISREG(st.st_mode))
        return err_set(err, LARDER_EINVAL, "%s: not a regular file, so no tar archive to ingest", path);
    struct listed *l = &s->archives[s->n];
    if (!(l->path = strdup(path)))
        return err_nomem(err, strlen(path), "a path");
    l->size = (uint64_t)st.st_size;
    l->mtime_ns = mtime_ns(&st);
    uint64_t numbers[2] = {l->size, (uint64_t)l->mtime_ns};
    AUTO_FREE char *real = realpath(path, NULL); /* the same from whatever folder the run is resumed */
    const char *name = real ? real : path;
    s->base.fingerprint = hash64(s->base.fingerprint, name, strlen(name) + 1);
    s->base.fingerprint = hash64(s->base.fingerprint, numbers, sizeof(numbers));
    s->base.bytes += l->size;
    s->n++;
    return LARDER_OK;
}

static int list(struct tar_source *s, const char *const *paths, size_t n, struct larder_error *err)
{
    char **all;
    size_t n_all;
    int rc = braces_expand(paths, n, &all, &n_all, err);
    if (rc)
        return rc;
    if (!(s->archives = calloc(n_all + 1, sizeof(*s->archives))))
        rc = err_nomem(err, n_all * sizeof(*s->archives), "a list of archives");
    for (size_t i = 0; !rc && i < n_all; i++)
        rc = list_one(s, all[i], err);
    strings_free(all, n_all);
    if (!rc && s->n == 0)
        rc = err_set(err, LARDER_EINVAL, "no archives to ingest");
    if (!rc && !(s->base.path = realpath(s->archives[0].path, NULL)))
        rc = err_sys(err, LARDER_EIO, errno, "%s: cannot be resolved", s->archives[0].path);
    s->base.units = s->n;
    return rc;
}

int tar_open(const char *const *paths, size_t n, struct notes *notes, const struct manifest *base, struct source **out,
             struct larder_error *err)
{
    *out = NULL;
    struct tar_source *s = calloc(1, sizeof(*s));
    if (!s)
        return err_nomem(err, sizeof(*s), "a source");
    s->base.ops = &tar_ops;
    s->base.format = "tar";
    s->base.lossy_units = true;
    s->notes = notes;
    int rc = list(s, paths, n, err);
    if (!rc)
        rc = make_schema(s, base, err);
    if (!rc && base && !(rc = strings_copy(base->classes, base->n_classes, &s->base.classes, err)))
        s->base.n_classes = base->n_classes;
    if (rc) {
        tar_close(&s->base);
        return rc;
    }
    *out = &s->base;
    return LARDER_OK;
}

/* ---- the sink ---- */

struct tar_sink {
    struct sink base;
    struct archive *a;
    struct archive_entry *entry;
    char *path, *temp; /* temp: what is written until it is whole */
    bool made;
    int fd;
    locale_t locale;
};

static void tar_sink_abort(struct sink *base)
{
    struct tar_sink *k = (struct tar_sink *)base;
    if (k->a)
        archive_write_free(k->a);
    archive_entry_free(k->entry);
    if (k->fd >= 0)
        close(k->fd);
    if (k->made)
        unlink(k->temp);
    if (k->locale)
        freelocale(k->locale);
    free(k->temp);
    free(k->path);
    free(k);
}

static int write_failed(const struct tar_sink *k, struct larder_error *err)
{
    int e = archive_errno(k->a);
    const char *why = archive_error_string(k->a);
    return e > 0 ? err_sys(err, e == ENOMEM ? LARDER_ENOMEM : LARDER_EIO, e, "%s: cannot be written", k->path)
                 : err_set(err, LARDER_EIO, "%s: cannot be written: %s", k->path, why ? why : "unknown");
}

static int put_member(struct tar_sink *k, const char *name, const void *data, size_t len, const void *key, size_t key_len,
                      struct larder_error *err)
{
    archive_entry_clear(k->entry);
    archive_entry_copy_pathname(k->entry, name);
    archive_entry_set_size(k->entry, (la_int64_t)len);
    archive_entry_set_filetype(k->entry, AE_IFREG);
    archive_entry_set_perm(k->entry, 0644);
    archive_entry_set_mtime(k->entry, 0, 0);
    if (key)
        archive_entry_xattr_add_entry(k->entry, KEY_ATTRIBUTE, key, key_len);
    int r = archive_write_header(k->a, k->entry);
    if (r != ARCHIVE_OK && r != ARCHIVE_WARN)
        return write_failed(k, err);
    for (const uint8_t *p = data; len;) {
        la_ssize_t n = archive_write_data(k->a, p, len);
        if (n <= 0)
            return write_failed(k, err);
        p += n;
        len -= (size_t)n;
    }
    return LARDER_OK;
}

static int tar_sink_file(struct sink *base, const char *name, const void *data, size_t len, const void *key, size_t key_len,
                         struct larder_error *err)
{
    struct tar_sink *k = (struct tar_sink *)base;
    locale_t old = k->locale ? uselocale(k->locale) : (locale_t)0;
    int rc = put_member(k, name, data, len, key, key_len, err);
    if (old)
        uselocale(old);
    return rc;
}

static int sync_parent(const char *path, struct larder_error *err)
{
    const char *slash = strrchr(path, '/');
    AUTO_FREE char *dir = slash ? bytes_dup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (!dir)
        return err_nomem(err, strlen(path), "a path");
    AUTO_FD int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || (fsync(fd) && errno != EINVAL))
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be written to disk", dir);
    return LARDER_OK;
}

static int exists(const char *path, struct larder_error *err)
{
    return err_set(err, LARDER_EEXIST, "%s: is there already; remove it or give another name", path);
}

/* From the temporary name to the real one, never over another file. */
static int publish(struct tar_sink *k, struct larder_error *err)
{
    if (renameat2(AT_FDCWD, k->temp, AT_FDCWD, k->path, RENAME_NOREPLACE)) {
        if (errno == EEXIST)
            return exists(k->path, err);
        if (errno != ENOSYS && errno != EINVAL)
            return err_sys(err, LARDER_EIO, errno, "%s: cannot be renamed", k->temp);
        if (access(k->path, F_OK) == 0) /* a file system without RENAME_NOREPLACE */
            return exists(k->path, err);
        if (rename(k->temp, k->path))
            return err_sys(err, LARDER_EIO, errno, "%s: cannot be renamed", k->temp);
    }
    k->made = false;
    return sync_parent(k->path, err);
}

static int tar_sink_finish(struct sink *base, struct larder_error *err)
{
    struct tar_sink *k = (struct tar_sink *)base;
    int rc = archive_write_close(k->a) == ARCHIVE_OK ? LARDER_OK : write_failed(k, err);
    if (!rc && fsync(k->fd))
        rc = err_sys(err, LARDER_EIO, errno, "%s: cannot be written to disk", k->path);
    if (!rc)
        rc = publish(k, err);
    tar_sink_abort(base);
    return rc;
}

static const struct sink_ops tar_sink_ops = {tar_sink_file, tar_sink_finish, tar_sink_abort};

static bool ends_in(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n > m && !strcasecmp(path + n - m, end);
}

bool tar_name_like(const char *path)
{
    return ends_in(path, ".tar") || ends_in(path, ".tar.gz") || ends_in(path, ".tgz") || ends_in(path, ".tar.zst") ||
           ends_in(path, ".tar.xz");
}

static int set_filter(struct tar_sink *k, struct larder_error *err)
{
    int r = ends_in(k->path, "gz")    ? archive_write_add_filter_gzip(k->a)
            : ends_in(k->path, "zst") ? archive_write_add_filter_zstd(k->a)
            : ends_in(k->path, "xz")  ? archive_write_add_filter_xz(k->a)
                                      : ARCHIVE_OK;
    if (r != ARCHIVE_OK && r != ARCHIVE_WARN)
        return write_failed(k, err);
    if (ends_in(k->path, "gz"))
        archive_write_set_filter_option(k->a, "gzip", "timestamp", NULL); /* the same bytes every time */
    return LARDER_OK;
}

static int make_temp(struct tar_sink *k, const char *path, struct larder_error *err)
{
    uint8_t random[8];
    char hex[17];
    int rc = random_bytes(random, sizeof(random), err);
    if (rc)
        return rc;
    hex_encode(random, sizeof(random), hex);
    hex[16] = 0;
    if (!(k->path = strdup(path)) || asprintf(&k->temp, "%s.%s.part", path, hex) < 0) {
        k->temp = NULL;
        return err_nomem(err, strlen(path), "a path");
    }
    if (access(path, F_OK) == 0)
        return exists(path, err);
    k->fd = open(k->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (k->fd < 0)
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be made", k->temp);
    k->made = true;
    return LARDER_OK;
}

int tar_sink_open(const char *path, struct sink **out, struct larder_error *err)
{
    *out = NULL;
    struct tar_sink *k = calloc(1, sizeof(*k));
    if (!k)
        return err_nomem(err, sizeof(*k), "an export");
    k->base.ops = &tar_sink_ops;
    k->fd = -1;
    k->locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    int rc = make_temp(k, path, err);
    if (!rc) {
        k->a = archive_write_new();
        k->entry = archive_entry_new();
        rc = k->a && k->entry ? LARDER_OK : err_nomem(err, READ_BYTES, "an archive");
    }
    if (!rc)
        rc = set_filter(k, err);
    if (!rc && archive_write_set_format_pax_restricted(k->a) != ARCHIVE_OK)
        rc = write_failed(k, err);
    if (!rc) { /* one header for the attribute; GNU tar warns about the other form */
        archive_write_set_format_option(k->a, NULL, "xattrheader", "SCHILY");
        if (archive_write_open_fd(k->a, k->fd) != ARCHIVE_OK)
            rc = write_failed(k, err);
    }
    if (rc) {
        tar_sink_abort(&k->base);
        return rc;
    }
    *out = &k->base;
    return LARDER_OK;
}
