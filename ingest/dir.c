/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir.c - a folder as a source (one sample a file) and as a sink.
 *
 * The folder is walked once. Every regular file becomes an entry: its path, size and time. The entries are sorted externally by
 * (key, extension), where two files of one key meet, and land in two spools: the entries themselves, and the offset of each, so
 * that entry i is found in one step and memory does not grow with the number of files. Samples are taken in the order of a keyed
 * bijection over the entries (or as sorted); a unit is a run in that order which fills one shard by the listed sizes.
 *
 * Invariants: the same folder gives the same entries, units and fingerprint, so that a run which resumes finds its place; a file
 * that changed after it was listed is an error, never a sample. Symbolic links to files are followed, to folders not.
 *
 * Threads: dir_open and dir_close in the caller's; cursors one thread each, over a source that no longer changes.
 */
#include "ingest/ingest_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define SORT_BYTES (64 * MIB)    /* of memory for sorting the listing */
#define LIST_BYTES (48 * MIB)    /* of entries kept in memory */
#define OFFSETS_BYTES (16 * MIB) /* of their offsets */
#define PROGRESS_EVERY 256u      /* files between looks at the clock */
#define BUFFER_MIN (256 * KIB)
#define PATH_SHOWN 120               /* bytes of a path in a message whose end matters too */

/* An entry in the spool: this head, little-endian, then the path. */
enum { E_SIZE = 0, E_MTIME = 8, E_CLASS = 16, E_PATH_LEN = 20, E_KEY_LEN = 22, E_HEAD = 24 };
#define PATH_LEN_MAX (LARDER_KEY_MAX + 1 + NAME_MAX)
struct entry { uint64_t size; int64_t mtime_ns; uint32_t class; uint16_t path_len, key_len; char path[PATH_LEN_MAX + 1]; };

struct dir_source {
    struct source base;
    struct notes *notes;
    const char *tmp;
    int root;                       /* the folder; -1: not open */
    dev_t own_dev; ino_t own_ino;   /* of the dataset's folder, which may lie in the source and is no part of it */
    bool shuffled;
    struct perm order;
    struct spool entries, offsets;
    uint64_t *starts; size_t cap_starts; /* position of each unit's first sample, and one for the end */
    uint64_t shard_size;
    int type;                       /* of the content field */
    uint32_t label;                 /* field; UINT32_MAX: none */
    /* while listing: */
    struct extsort *sort;
    uint64_t files, bytes_listed;
    bool all_in_folders, mixed;
    int seen_type;                  /* what all extensions so far stand for */
    char **tops; size_t n_tops, cap_tops; /* top folders with files */
};

struct dir_cursor {
    struct dir_source *s;
    uint64_t at, end;    /* positions */
    struct entry e;
    uint8_t *data; size_t cap;
    uint8_t scratch[8], label[8];
    struct larder_value values[2];
    char *what; size_t root_len; /* "ROOT/" and room for a path */
};

void source_release(struct source *s)
{
    strings_free(s->classes, s->n_classes);
    free(s->path);
    schema_release(&s->schema);
}

static void dir_close(struct source *base)
{
    struct dir_source *s = (struct dir_source *)base;
    if (!s)
        return;
    strings_free(s->tops, s->n_tops);
    extsort_free(s->sort);
    spool_release(&s->entries);
    spool_release(&s->offsets);
    free(s->starts);
    if (s->root >= 0)
        close(s->root);
    source_release(&s->base);
    free(s);
}

/* ---- walking ---- */

/* A file or folder that cannot be read: an error, or left out. */
static int unreadable(struct dir_source *s, const char *path, int sys_errno, struct larder_error *err)
{
    if (!notes_may_skip(s->notes))
        return err_sys(err, LARDER_EIO, sys_errno, "%s/%s: cannot be read (--on-error skip leaves it out)", s->base.path, path);
    notes_skipped(s->notes, path, strerror(sys_errno));
    return LARDER_OK;
}

static int rejected(struct dir_source *s, const char *path, const char *why, struct larder_error *err)
{
    if (!notes_may_skip(s->notes))
        return err_prefix(err, err_set(err, LARDER_EINVAL, "%s", why), "%.*s%s", PATH_SHOWN, path, strlen(path) > PATH_SHOWN ? "..." : "");
    notes_skipped(s->notes, path, why);
    return LARDER_OK;
}

static int add_top(struct dir_source *s, const char *path, size_t len, struct larder_error *err)
{
    if (s->n_tops && strlen(s->tops[s->n_tops - 1]) == len && !memcmp(s->tops[s->n_tops - 1], path, len))
        return LARDER_OK; /* the walk finishes one top folder before it enters the next */
    int rc = GROW(s->tops, s->cap_tops, s->n_tops + 1, err);
    if (rc)
        return rc;
    if (!(s->tops[s->n_tops] = bytes_dup(path, len)))
        return err_nomem(err, len, "a class name");
    s->n_tops++;
    return LARDER_OK;
}

static int add_file(struct dir_source *s, const char *path, const struct stat *st, struct larder_error *err)
{
    const char *base = strrchr(path, '/'), *dot = strrchr(base ? base : path, '.');
    size_t path_len = strlen(path), key_len = dot ? (size_t)(dot - path) : path_len;
    if (key_len > LARDER_KEY_MAX)
        return rejected(s, path, "its key (the path without extension) is longer than 1024 bytes", err);
    if ((uint64_t)st->st_size > LARDER_SAMPLE_BYTES_MAX - 64)
        return rejected(s, path, "is larger than a sample may be (4 GiB)", err);
    /* key NUL .extension: paths hold no NUL, so this sorts by (key, extension), none first */
    uint8_t sort_key[PATH_LEN_MAX + 2], payload[18];
    memcpy(sort_key, path, key_len);
    sort_key[key_len] = 0;
    memcpy(sort_key + key_len + 1, path + key_len, path_len - key_len);
    put_u64(payload, (uint64_t)st->st_size);
    put_u64(payload + 8, (uint64_t)mtime_ns(st));
    put_u16(payload + 16, (uint16_t)key_len);
    int rc = extsort_add(s->sort, sort_key, path_len + 1, payload, sizeof(payload), err);
    const char *slash = strchr(path, '/');
    if (!rc && slash)
        rc = add_top(s, path, (size_t)(slash - path), err);
    s->all_in_folders &= slash != NULL;
    int type = dot ? extension_type(dot + 1, strlen(dot + 1)) : LARDER_BYTES;
    s->mixed |= s->files > 0 && type != s->seen_type;
    s->seen_type = type;
    s->files++;
    s->bytes_listed += (uint64_t)st->st_size;
    if (!rc && s->files % PROGRESS_EVERY == 0) {
        struct larder_progress p = {"list", s->files, 0, s->bytes_listed, atomic_load(&s->notes->skipped)};
        rc = notes_progress(s->notes, &p, false, err);
    }
    return rc;
}

/* Folders still to be read: paths relative to the root, each with its NUL. */
struct todo { struct buf names; struct buf ends; };

static int push(struct todo *t, const char *path, struct larder_error *err)
{
    uint8_t start[8];
    put_u64(start, t->names.len);
    int rc = buf_append(&t->names, path, strlen(path) + 1, err);
    return rc ? rc : buf_append(&t->ends, start, 8, err);
}

/* One name of a folder. path: of the entry, relative to the root. */
static int visit(struct dir_source *s, int dir, const char *name, const char *path, struct todo *todo, struct larder_error *err)
{
    struct stat st;
    if (name[0] == '.') {
        notes_ignored(s->notes, path, "hidden");
        return LARDER_OK;
    }
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW))
        return unreadable(s, path, errno, err);
    if (S_ISDIR(st.st_mode) && st.st_dev == s->own_dev && st.st_ino == s->own_ino) {
        notes_ignored(s->notes, path, "the dataset itself");
        return LARDER_OK;
    }
    if (S_ISDIR(st.st_mode))
        return strlen(path) > LARDER_KEY_MAX ? rejected(s, path, "its path is longer than 1024 bytes", err) : push(todo, path, err);
    bool link = S_ISLNK(st.st_mode);
    if (link && fstatat(dir, name, &st, 0))
        return unreadable(s, path, errno, err);
    if (S_ISREG(st.st_mode))
        return add_file(s, path, &st, err);
    notes_ignored(s->notes, path, S_ISDIR(st.st_mode) ? "a symbolic link to a folder" : "not a regular file");
    return LARDER_OK;
}

static int read_folder(struct dir_source *s, const char *folder, struct todo *todo, struct larder_error *err)
{
    int fd = openat(s->root, *folder ? folder : ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return unreadable(s, folder, errno, err);
    DIR *d = fdopendir(fd);
    if (!d) {
        int sys_errno = errno;
        close(fd);
        return unreadable(s, *folder ? folder : ".", sys_errno, err);
    }
    char path[LARDER_KEY_MAX + NAME_MAX + 2];
    int rc = LARDER_OK;
    while (!rc) {
        errno = 0;
        struct dirent *e = readdir(d);
        if (!e) {
            rc = errno ? unreadable(s, *folder ? folder : ".", errno, err) : LARDER_OK;
            break;
        }
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        snprintf(path, sizeof(path), "%s%s%s", folder, *folder ? "/" : "", e->d_name);
        rc = visit(s, dirfd(d), e->d_name, path, todo, err);
    }
    closedir(d);
    return rc;
}

static int walk(struct dir_source *s, struct larder_error *err)
{
    struct todo todo = {BUF_INIT, BUF_INIT};
    char folder[LARDER_KEY_MAX + 1];
    int rc = push(&todo, "", err);
    while (!rc && todo.ends.len) {
        todo.ends.len -= 8;
        todo.names.len = get_u64(todo.ends.data + todo.ends.len);
        memcpy(folder, todo.names.data + todo.names.len, strlen((char *)todo.names.data + todo.names.len) + 1);
        rc = read_folder(s, folder, &todo, err);
    }
    buf_release(&todo.names);
    buf_release(&todo.ends);
    return rc;
}

/* ---- classes and schema ---- */

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int add_class(struct source *s, const char *name, struct larder_error *err)
{
    if (!utf8_valid(name, strlen(name))) {
        char shown[256];
        return err_set(err, LARDER_EINVAL, "folder '%s' names a class but is not valid UTF-8: rename it", key_text(name, strlen(name), shown));
    }
    if (s->n_classes >= UINT32_MAX - 1)
        return err_set(err, LARDER_EINVAL, "too many classes");
    if (!(s->classes[s->n_classes] = strdup(name)))
        return err_nomem(err, strlen(name), "a class name");
    s->n_classes++;
    return LARDER_OK;
}

/* Known names keep their numbers; new ones follow in sorted order. */
static int make_classes(struct dir_source *s, const struct manifest *base, struct larder_error *err)
{
    size_t known = base ? base->n_classes : 0;
    AUTO_FREE char **sorted = calloc(known + 1, sizeof(*sorted));
    if (!sorted || !(s->base.classes = calloc(known + s->n_tops + 1, sizeof(char *))))
        return err_nomem(err, (known + s->n_tops) * sizeof(char *), "class names");
    int rc = LARDER_OK;
    for (size_t i = 0; !rc && i < known; i++)
        if (!(rc = add_class(&s->base, base->classes[i], err)))
            sorted[i] = base->classes[i];
    if (rc || s->label == UINT32_MAX)
        return rc;
    if (known)
        qsort(sorted, known, sizeof(*sorted), by_name);
    qsort(s->tops, s->n_tops, sizeof(*s->tops), by_name);
    for (size_t i = 0; !rc && i < s->n_tops; i++)
        if (!known || !bsearch(&s->tops[i], sorted, known, sizeof(*sorted), by_name))
            rc = add_class(&s->base, s->tops[i], err);
    return rc;
}

/* NAME[:TYPE] of the content field. */
static int content_option(const char *text, char **name, int *type, struct larder_error *err)
{
    struct field_specs f;
    int rc = fields_parse(text, &f, err);
    if (rc)
        return rc;
    if (f.n != 1 || strchr(text, '='))
        rc = err_set(err, LARDER_EINVAL, "fields: a folder has one content field; give NAME[:TYPE], not '%.80s'", text);
    else if (!(*name = strdup(f.specs[0].name)))
        rc = err_nomem(err, 1, "a field's name");
    else if (f.specs[0].type)
        *type = f.specs[0].type;
    fields_release(&f);
    return rc;
}

/* On append without --fields the dataset's own content field is meant, where these files can be its values. */
static int adopt(const struct manifest *base, bool labels, char **name, int *type, struct larder_error *err)
{
    uint32_t want = labels ? 2 : 1;
    if (base->schema.n != want)
        return LARDER_OK; /* the comparison afterwards names the difference */
    const struct schema_field *f = &base->schema.fields[0];
    if (f->type == *type || f->type == LARDER_BYTES) {
        free(*name);
        if (!(*name = strdup(f->name)))
            return err_nomem(err, 1, "a field's name");
        *type = f->type;
    }
    return LARDER_OK;
}

static int make_schema(struct dir_source *s, const struct manifest *base, struct larder_error *err)
{
    int type = s->mixed || (s->seen_type != LARDER_IMAGE && s->seen_type != LARDER_AUDIO && s->seen_type != LARDER_UTF8 &&
                            s->seen_type != LARDER_JSON) ? LARDER_BYTES : s->seen_type;
    const char *inferred = type == LARDER_IMAGE ? "image" : type == LARDER_AUDIO ? "audio" : type == LARDER_UTF8 ? "text"
                           : type == LARDER_JSON ? "json" : "data";
    bool labels = s->all_in_folders;
    AUTO_FREE char *name = NULL;
    int rc = LARDER_OK;
    if (s->notes->o->fields)
        rc = content_option(s->notes->o->fields, &name, &type, err);
    else if (!(name = strdup(inferred)))
        rc = err_nomem(err, 1, "a field's name");
    else if (base)
        rc = adopt(base, labels, &name, &type, err);
    if (rc)
        return rc;
    const char *names[] = {name, "label"};
    int types[] = {type, LARDER_I64};
    if (labels && !strcmp(name, "label"))
        return err_set(err, LARDER_EINVAL, "fields: 'label' is the class of each file here; give the content another name");
    s->type = type;
    s->label = labels ? 1 : UINT32_MAX;
    if ((rc = fields_schema(&s->base.schema, names, types, labels ? 2 : 1, err)))
        return rc;
    return base ? fields_same(&base->schema, &s->base.schema, err) : LARDER_OK;
}

/* ---- the list ---- */

static int find_class(const struct dir_source *s, const char *const *by_rank, const uint32_t *number, const char *key, uint32_t *out)
{
    const char *slash = strchr(key, '/');
    size_t len = slash ? (size_t)(slash - key) : strlen(key);
    size_t lo = 0, hi = s->base.n_classes;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        int c = strncmp(by_rank[mid], key, len);
        if (c == 0)
            c = by_rank[mid][len] != 0;
        if (c == 0) {
            *out = number[mid];
            return 0;
        }
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -1;
}

struct ranks { const char **names; uint32_t *numbers; };

static int by_rank_name(const void *a, const void *b, void *classes)
{
    char **c = classes;
    return strcmp(c[*(const uint32_t *)a], c[*(const uint32_t *)b]);
}

static int make_ranks(const struct source *s, struct ranks *r, struct larder_error *err)
{
    r->names = calloc(s->n_classes + 1, sizeof(*r->names));
    r->numbers = calloc(s->n_classes + 1, sizeof(*r->numbers));
    if (!r->names || !r->numbers)
        return err_nomem(err, s->n_classes * sizeof(*r->names), "class names");
    for (size_t i = 0; i < s->n_classes; i++)
        r->numbers[i] = (uint32_t)i;
    qsort_r(r->numbers, s->n_classes, sizeof(*r->numbers), by_rank_name, s->classes);
    for (size_t i = 0; i < s->n_classes; i++)
        r->names[i] = s->classes[r->numbers[i]];
    return LARDER_OK;
}

static int add_entry(struct dir_source *s, const struct entry *e, struct larder_error *err)
{
    uint8_t raw[E_HEAD + PATH_LEN_MAX], offset[8];
    put_u64(raw + E_SIZE, e->size);
    put_u64(raw + E_MTIME, (uint64_t)e->mtime_ns);
    put_u32(raw + E_CLASS, e->class);
    put_u16(raw + E_PATH_LEN, e->path_len);
    put_u16(raw + E_KEY_LEN, e->key_len);
    memcpy(raw + E_HEAD, e->path, e->path_len);
    put_u64(offset, s->entries.len);
    s->base.fingerprint = hash64(s->base.fingerprint, raw, E_HEAD + (size_t)e->path_len);
    s->base.bytes += e->size;
    s->base.samples++;
    int rc = spool_append(&s->offsets, offset, 8, err);
    return rc ? rc : spool_append(&s->entries, raw, E_HEAD + (size_t)e->path_len, err);
}

static bool same_key(const struct entry *a, const struct entry *b)
{
    return a->key_len == b->key_len && !memcmp(a->path, b->path, a->key_len);
}

static int duplicate(struct dir_source *s, const struct entry *first, const struct entry *e, struct larder_error *err)
{
    if (!notes_may_skip(s->notes))
        return err_set(err, LARDER_EEXIST, "%.90s and %.90s have the same key: rename one (--on-error skip keeps the first)",
                       first->path, e->path);
    char why[192];
    snprintf(why, sizeof(why), "has the same key as %.150s", first->path);
    notes_skipped(s->notes, e->path, why);
    return LARDER_OK;
}

/* The path again from key NUL .extension. */
static void entry_of(const void *key, size_t key_len, const void *payload, struct entry *e)
{
    e->size = get_u64(payload);
    e->mtime_ns = (int64_t)get_u64((const uint8_t *)payload + 8);
    e->key_len = get_u16((const uint8_t *)payload + 16);
    e->path_len = (uint16_t)(key_len - 1);
    memcpy(e->path, key, e->key_len);
    memcpy(e->path + e->key_len, (const uint8_t *)key + e->key_len + 1, (size_t)e->path_len - e->key_len);
    e->path[e->path_len] = 0;
    e->class = 0;
}

static int make_list(struct dir_source *s, struct larder_error *err)
{
    struct ranks r = {NULL, NULL};
    AUTO_FREE struct entry *e = calloc(2, sizeof(*e));
    struct entry *last = e ? e + 1 : NULL;
    int rc = e ? LARDER_OK : err_nomem(err, 2 * sizeof(*e), "a listing");
    if (!rc)
        rc = make_ranks(&s->base, &r, err);
    if (!rc)
        rc = extsort_sort(s->sort, err);
    bool first = true;
    while (!rc) {
        const void *key, *payload;
        size_t key_len, payload_len;
        if ((rc = extsort_next(s->sort, &key, &key_len, &payload, &payload_len, err)))
            break;
        entry_of(key, key_len, payload, e);
        if (!first && same_key(e, last)) {
            rc = duplicate(s, last, e, err);
            continue;
        }
        if (s->label != UINT32_MAX && find_class(s, r.names, r.numbers, e->path, &e->class))
            rc = err_set(err, LARDER_EINVAL, "%s: its folder changed while it was listed", e->path);
        if (!rc)
            rc = add_entry(s, e, err);
        *last = *e;
        first = false;
    }
    free(r.names);
    free(r.numbers);
    if (rc == LARDER_END)
        rc = spool_seal(&s->entries, err);
    return rc ? rc : spool_seal(&s->offsets, err);
}

/* Entry at a position of the order. */
static int entry_at(const struct dir_source *s, uint64_t position, struct entry *e, struct larder_error *err)
{
    uint8_t raw[E_HEAD + PATH_LEN_MAX], offset[8];
    uint64_t i = s->shuffled ? perm_at(&s->order, position) : position;
    size_t got;
    int rc = spool_read(&s->offsets, i * 8, offset, 8, &got, err);
    if (!rc && got == 8)
        rc = spool_read(&s->entries, get_u64(offset), raw, sizeof(raw), &got, err);
    if (rc)
        return rc;
    if (got < E_HEAD || get_u16(raw + E_PATH_LEN) > MIN(got - E_HEAD, (size_t)PATH_LEN_MAX))
        return err_set(err, LARDER_EIO, "the listing's temporary file ends early");
    e->size = get_u64(raw + E_SIZE);
    e->mtime_ns = (int64_t)get_u64(raw + E_MTIME);
    e->class = get_u32(raw + E_CLASS);
    e->path_len = get_u16(raw + E_PATH_LEN);
    e->key_len = get_u16(raw + E_KEY_LEN);
    memcpy(e->path, raw + E_HEAD, e->path_len);
    e->path[e->path_len] = 0;
    return LARDER_OK;
}

static int plan_units(struct dir_source *s, struct larder_error *err)
{
    struct entry e;
    uint64_t filled = UINT64_MAX;
    int rc = LARDER_OK;
    for (uint64_t i = 0; !rc && i < s->base.samples; i++) {
        if ((rc = entry_at(s, i, &e, err)))
            break;
        uint64_t w = sample_weight(s->base.schema.n, e.key_len, e.size + (s->label == UINT32_MAX ? 0 : 8));
        if (filled > s->shard_size || w > s->shard_size - filled) {
            if ((rc = GROW(s->starts, s->cap_starts, s->base.units + 2, err)))
                break;
            s->starts[s->base.units++] = i;
            filled = 0;
        }
        filled += w;
        if (i % 65536 == 65535) {
            struct larder_progress p = {"list", i, s->base.samples, s->base.bytes, atomic_load(&s->notes->skipped)};
            rc = notes_progress(s->notes, &p, false, err);
        }
    }
    if (!rc)
        s->starts[s->base.units] = s->base.samples;
    return rc;
}

/* ---- cursors ---- */

static void dir_close_unit(struct source_cursor *cursor)
{
    struct dir_cursor *c = (struct dir_cursor *)cursor;
    if (!c)
        return;
    free(c->data);
    free(c->what);
    free(c);
}

static int dir_open_unit(struct source *base, uint64_t unit, uint64_t skip, struct source_cursor **out, struct larder_error *err)
{
    struct dir_source *s = (struct dir_source *)base;
    *out = NULL;
    if (unit >= base->units || skip > s->starts[unit + 1] - s->starts[unit])
        return err_set(err, LARDER_EINVAL, "unit %llu of %llu, sample %llu: beyond the source", (unsigned long long)unit,
                       (unsigned long long)base->units, (unsigned long long)skip);
    struct dir_cursor *c = calloc(1, sizeof(*c));
    if (!c)
        return err_nomem(err, sizeof(*c), "a cursor");
    c->s = s;
    c->at = s->starts[unit] + skip;
    c->end = s->starts[unit + 1];
    c->root_len = strlen(base->path) + 1;
    c->what = malloc(c->root_len + PATH_LEN_MAX + 1);
    if (!c->what) {
        dir_close_unit((struct source_cursor *)c);
        return err_nomem(err, PATH_LEN_MAX, "a path");
    }
    memcpy(c->what, base->path, c->root_len - 1);
    c->what[c->root_len - 1] = '/';
    *out = (struct source_cursor *)c;
    return LARDER_OK;
}

static int changed(const struct dir_cursor *c, uint64_t now, struct larder_error *err)
{
    return err_set(err, LARDER_EINVAL, "%.*s changed while it was read (listed with %llu bytes, now %llu): run again when the source is "
                   "at rest", PATH_SHOWN, c->what, (unsigned long long)c->e.size, (unsigned long long)now);
}

/* The whole file into c->data. One read asks for a byte more than is listed, so that growth shows without another call. */
static int read_all(struct dir_cursor *c, int fd, struct larder_error *err)
{
    size_t want = (size_t)c->e.size + 1, have = 0;
    if (want > c->cap) {
        free(c->data);
        c->cap = MAX(round_up(want, 64 * KIB), BUFFER_MIN);
        if (!(c->data = malloc(c->cap))) {
            size_t asked = c->cap;
            c->cap = 0;
            return err_nomem(err, asked, c->what);
        }
    }
    while (have < c->e.size) {
        ssize_t n = pread(fd, c->data + have, want - have, (off_t)have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(err, LARDER_EIO, errno, "%s: cannot be read", c->what);
        if (n == 0)
            break;
        have += (size_t)n;
    }
    return have == c->e.size ? LARDER_OK : changed(c, have, err);
}

static int read_file(struct dir_cursor *c, struct larder_error *err)
{
    struct stat st;
    AUTO_FD int fd = openat(c->s->root, c->e.path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be opened", c->what);
    if (fstat(fd, &st))
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be read", c->what);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != c->e.size || mtime_ns(&st) != c->e.mtime_ns)
        return changed(c, (uint64_t)st.st_size, err);
    return read_all(c, fd, err);
}

static int dir_next(struct source_cursor *cursor, struct source_item *item, struct larder_error *err)
{
    struct dir_cursor *c = (struct dir_cursor *)cursor;
    *item = (struct source_item){0};
    if (c->at == c->end)
        return LARDER_END;
    int rc = entry_at(c->s, c->at, &c->e, err);
    if (rc)
        return rc;
    c->at++;
    memcpy(c->what + c->root_len, c->e.path, (size_t)c->e.path_len + 1);
    rc = read_file(c, err);
    if (rc == LARDER_ENOMEM)
        return rc;
    item->what = c->what;
    item->source_bytes = c->e.size;
    if (rc)
        return rc;
    if ((rc = fields_value(c->s->type, c->data, (size_t)c->e.size, c->scratch, &c->values[0], err)))
        return err_prefix(err, rc, "%s", c->what);
    put_u64(c->label, c->e.class);
    c->values[1] = (struct larder_value){c->label, 8};
    item->key = c->e.path;
    item->key_len = c->e.key_len;
    item->values = c->values;
    return LARDER_OK;
}

static const struct source_ops dir_ops = {dir_open_unit, dir_next, dir_close_unit, dir_close};

/* ---- opening ---- */

static int open_root(struct dir_source *s, const char *path, struct larder_error *err)
{
    struct stat st, own;
    s->root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->root < 0)
        return errno == ENOENT ? err_set(err, LARDER_ENOTFOUND, "%s: no such folder", path)
                               : err_sys(err, LARDER_EIO, errno, "%s: cannot be opened as a folder", path);
    if (!(s->base.path = realpath(path, NULL)))
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be resolved", path);
    if (fstat(s->root, &st) || stat(s->tmp, &own))
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be read", path);
    s->own_dev = own.st_dev;
    s->own_ino = own.st_ino;
    if (st.st_dev == own.st_dev && st.st_ino == own.st_ino)
        return err_set(err, LARDER_EINVAL, "%s: is the dataset itself: give the folder that holds the samples", path);
    return LARDER_OK;
}

static int list(struct dir_source *s, const struct manifest *base, struct larder_error *err)
{
    s->all_in_folders = true;
    int rc = extsort_new(s->tmp, SORT_BYTES, &s->sort, err);
    if (!rc)
        rc = walk(s, err);
    if (!rc && s->files == 0)
        rc = err_set(err, LARDER_EINVAL, "%s: no files to ingest (%llu ignored, %llu skipped)", s->base.path,
                     (unsigned long long)atomic_load(&s->notes->ignored), (unsigned long long)atomic_load(&s->notes->skipped));
    if (!rc)
        rc = make_schema(s, base, err);
    if (!rc)
        rc = make_classes(s, base, err);
    if (!rc)
        rc = make_list(s, err);
    extsort_free(s->sort);
    s->sort = NULL;
    if (rc)
        return rc;
    if (s->shuffled)
        perm_init(&s->order, s->notes->o->seed, 0, s->base.samples);
    return plan_units(s, err);
}

int dir_open(const char *path, const char *tmp, struct notes *notes, const struct manifest *base, struct source **out,
             struct larder_error *err)
{
    *out = NULL;
    struct dir_source *s = calloc(1, sizeof(*s));
    if (!s)
        return err_nomem(err, sizeof(*s), "a source");
    s->base.ops = &dir_ops;
    s->base.format = "dir";
    s->notes = notes;
    s->tmp = tmp;
    s->shuffled = notes->o->order == LARDER_ORDER_SHUFFLED;
    s->root = -1;
    spool_init(&s->entries, tmp, LIST_BYTES);
    spool_init(&s->offsets, tmp, OFFSETS_BYTES);
    int rc = shard_size_option(notes->o->shard_size, &s->shard_size, err);
    if (!rc)
        rc = open_root(s, path, err);
    if (!rc)
        rc = list(s, base, err);
    if (rc) {
        dir_close(&s->base);
        return rc;
    }
    *out = &s->base;
    return LARDER_OK;
}

/* ---- the sink ---- */

#define NAME_BYTES_MAX 8192 /* a key and a field's name, percent-encoded and cut */

struct dir_sink {
    struct sink base;
    int root;
    char *path;
    bool made_root;
    struct spool names;   /* of files made: what abort removes */
    int folder; char *folder_name; /* the folder of the last file: its neighbours are likely next */
};

static void dir_sink_free(struct dir_sink *k)
{
    if (k->folder >= 0)
        close(k->folder);
    if (k->root >= 0)
        close(k->root);
    spool_release(&k->names);
    free(k->folder_name);
    free(k->path);
    free(k);
}

/* Opens folder `name` (may be "") below the root, making what is missing; follows no link. */
static int enter(struct dir_sink *k, const char *name, size_t len, struct larder_error *err)
{
    if (k->folder >= 0 && strlen(k->folder_name) == len && !memcmp(k->folder_name, name, len))
        return LARDER_OK;
    AUTO_FREE char *copy = bytes_dup(name, len);
    AUTO_FD int at = dup(k->root);
    if (!copy || at < 0)
        return copy ? err_sys(err, LARDER_EIO, errno, "%s: cannot be opened", k->path) : err_nomem(err, len, "a path");
    char *save, *part = strtok_r(copy, "/", &save);
    for (; part; part = strtok_r(NULL, "/", &save)) {
        if (mkdirat(at, part, 0777) && errno != EEXIST)
            return err_sys(err, LARDER_EIO, errno, "%s: cannot make folder %.*s", k->path, (int)MIN(len, 100), name);
        int next = openat(at, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0)
            return err_sys(err, LARDER_EIO, errno, "%s: cannot open folder %.*s", k->path, (int)MIN(len, 100), name);
        close(at);
        at = next;
    }
    char *kept = bytes_dup(name, len);
    if (!kept)
        return err_nomem(err, len, "a path");
    if (k->folder >= 0)
        close(k->folder);
    free(k->folder_name);
    k->folder = at;
    k->folder_name = kept;
    at = -1;
    return LARDER_OK;
}

static int write_all(int fd, const void *data, size_t len)
{
    for (const uint8_t *p = data; len;) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

/* Removes the folders on the way to name that are empty. */
static void remove_folders(int root, char *name)
{
    for (char *slash = strrchr(name, '/'); slash; slash = strrchr(name, '/')) {
        *slash = 0;
        if (unlinkat(root, name, AT_REMOVEDIR))
            return;
    }
}

static int make_file(struct dir_sink *k, const char *name, const void *data, size_t len, struct larder_error *err)
{
    const char *slash = strrchr(name, '/'), *last = slash ? slash + 1 : name;
    int rc = enter(k, name, slash ? (size_t)(slash - name) : 0, err);
    if (rc)
        return rc;
    AUTO_FD int fd = openat(k->folder, last, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_sys(err, errno == EEXIST ? LARDER_EEXIST : LARDER_EIO, errno, "%s/%.120s: cannot be made", k->path, name);
    rc = spool_append(&k->names, name, strlen(name) + 1, err);
    if (!rc && write_all(fd, data, len)) {
        rc = err_sys(err, LARDER_EIO, errno, "%s/%.120s: cannot be written", k->path, name);
    } else if (rc) {
        unlinkat(k->folder, last, 0); /* abort would not know of it */
    }
    return rc;
}

static int dir_sink_file(struct sink *base, const char *name, const void *data, size_t len, const void *key, size_t key_len,
                         struct larder_error *err)
{
    struct dir_sink *k = (struct dir_sink *)base;
    char copy[NAME_BYTES_MAX];
    (void)key; /* a folder has no place for it */
    (void)key_len;
    if (strlen(name) >= sizeof(copy))
        return err_set(err, LARDER_EINVAL, "%s/%.60s...: the name is too long", k->path, name);
    int rc = make_file(k, name, data, len, err);
    if (rc)
        remove_folders(k->root, strcpy(copy, name)); /* those that were made for it */
    return rc;
}

static int dir_sink_finish(struct sink *base, struct larder_error *err)
{
    struct dir_sink *k = (struct dir_sink *)base;
    int rc = LARDER_OK;
    if (syncfs(k->root))
        rc = err_sys(err, LARDER_EIO, errno, "%s: cannot be written to disk", k->path);
    dir_sink_free(k);
    return rc;
}

static void dir_sink_abort(struct sink *base)
{
    struct dir_sink *k = (struct dir_sink *)base;
    char name[NAME_BYTES_MAX];
    size_t got, len;
    int rc = spool_seal(&k->names, NULL);
    for (uint64_t at = 0; !rc && at < k->names.len; at += len + 1) {
        if (spool_read(&k->names, at, name, sizeof(name) - 1, &got, NULL) || got == 0)
            break;
        name[got] = 0;
        len = strlen(name);
        if (unlinkat(k->root, name, 0) == 0)
            remove_folders(k->root, name);
    }
    if (k->made_root)
        rmdir(k->path);
    dir_sink_free(k);
}

static const struct sink_ops dir_sink_ops = {dir_sink_file, dir_sink_finish, dir_sink_abort};

/* Opens or makes the destination, which must hold nothing. */
static int open_empty(struct dir_sink *k, struct larder_error *err)
{
    if (mkdir(k->path, 0777) == 0)
        k->made_root = true;
    else if (errno != EEXIST)
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be made", k->path);
    k->root = open(k->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (k->root < 0 && errno == ENOTDIR)
        return err_set(err, LARDER_EEXIST, "%s: there is a file of that name; give a new or empty folder", k->path);
    int fd = k->root < 0 ? -1 : openat(k->root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        int sys_errno = errno;
        if (fd >= 0)
            close(fd);
        return err_sys(err, LARDER_EIO, sys_errno, "%s: cannot be opened", k->path);
    }
    bool empty = true;
    for (struct dirent *e; empty && (e = readdir(d));)
        empty = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
    closedir(d);
    return empty ? LARDER_OK : err_set(err, LARDER_EEXIST, "%s: is not empty; give a new or empty folder", k->path);
}

int dir_sink_open(const char *path, struct sink **out, struct larder_error *err)
{
    *out = NULL;
    struct dir_sink *k = calloc(1, sizeof(*k));
    if (!k)
        return err_nomem(err, sizeof(*k), "an export");
    k->base.ops = &dir_sink_ops;
    k->root = k->folder = -1;
    spool_init(&k->names, NULL, LIST_BYTES);
    k->path = strdup(path);
    int rc = k->path ? open_empty(k, err) : err_nomem(err, strlen(path), "a path");
    k->names.dir = k->path;
    if (rc) {
        if (k->made_root)
            rmdir(k->path);
        dir_sink_free(k);
        return rc;
    }
    *out = &k->base;
    return LARDER_OK;
}
