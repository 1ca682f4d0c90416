/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.c - ROOT/journal: what a session has sealed so far, so that it can go on, or be cleaned up, after a crash.
 *
 * Lines of JSON, each followed by a space, the CRC32C of the JSON in 8 hex digits, and a newline:
 *
 *     {"larder_journal": 1, "kind": ..., ids and options}     the head
 *     {"run": "16 hex digits"}                                files of the session begin with this; before any is made
 *     {"dict": "hex"}                                         the dictionary all its shards share; "" for none
 *     {"shard": [...], "consumed": n, "skipped": n, "source_bytes": n}   sealed; the numbers are of its unit up to here
 *     {"unit": u, "consumed": ...}                            finished
 *     {"drop": u, "sub": k}                                   forget the unit's shards from k on: a resumed run found them bad
 *
 * It is only appended to, every line is durable when its function returns, and a bad line ends it: what follows is a torn write.
 * The file is the session's lock as well (session.c). Threads: one at a time.
 */
#include "ingest/ingest_int.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#define JOURNAL_MAX GIB
#define LINE_END 10u /* space, CRC, newline */
#define DICT_MAX (1 * MIB)

static const char *const option_names[JOPT_N] = {
    [JOPT_SOURCE] = "source",       [JOPT_FORMAT] = "format", [JOPT_APPEND] = "append", [JOPT_SHARD_SIZE] = "shard-size",
    [JOPT_COMPRESSION] = "compress", [JOPT_FIELDS] = "fields", [JOPT_ORDER] = "order",   [JOPT_SEED] = "seed",
    [JOPT_CONTENT] = "content",     [JOPT_SCHEMA] = "schema", [JOPT_CLASSES] = "classes"};

static void forget(struct journal *j)
{
    for (size_t i = 0; i < JOPT_N; i++)
        free(j->head.options[i]);
    for (size_t i = 0; i < j->n_shards; i++)
        shard_ref_release(&j->shards[i].ref);
    free(j->shards);
    free(j->units);
    free(j->runs);
    free(j->dict);
    struct journal clean = {.io = j->io, .session = j->session, .locked = j->locked};
    *j = clean;
}

/* ---- writing ---- */

/* Appends one line, which is freed. */
static int put_line(struct journal *j, struct json *line, int rc, struct larder_error *err)
{
    AUTO_BUF struct buf text = BUF_INIT;
    if (!rc)
        rc = json_dump(line, &text, err);
    else
        rc = rc == LARDER_ENOMEM ? err_nomem(err, 64, "a journal line") : err_set(err, rc, "a journal line cannot be written");
    json_free(line);
    if (rc)
        return rc;
    if ((rc = buf_printf(&text, err, " %08x\n", crc32c(0, text.data, text.len))))
        return rc;
    if (j->size + text.len > JOURNAL_MAX)
        return err_set(err, LARDER_EINVAL, "the journal grows beyond 1 GiB: use larger shards");
    if (write_fully(j->session.fd, text.data, text.len, j->size))
        return err_sys(err, LARDER_EIO, errno, "%s/journal: cannot be written", j->session.root);
    if (fdatasync(j->session.fd))
        return err_sys(err, LARDER_EIO, errno, "%s/journal: cannot be written to disk", j->session.root);
    j->size += text.len;
    return LARDER_OK;
}

int journal_begin(struct journal *j, struct larder_error *err)
{
    struct json *l = json_new_object();
    int rc = json_set_u64(l, "larder_journal", 1);
    if (!rc)
        rc = json_set_str(l, "kind", j->head.kind == JOURNAL_INGEST ? "ingest" : "writer");
    if (!rc)
        rc = json_set_hex(l, "session", j->head.session, 8);
    if (!rc)
        rc = json_set_hex(l, "uuid", j->head.uuid, 16);
    if (!rc)
        rc = json_set_hex(l, "lineage", j->head.lineage, 16);
    for (size_t i = 0; !rc && i < JOPT_N; i++)
        if (j->head.options[i])
            rc = json_set_str(l, option_names[i], j->head.options[i]);
    rc = put_line(j, l, rc, err);
    j->has_head = !rc;
    return rc;
}

static int keep_run(struct journal *j, uint64_t run, struct larder_error *err)
{
    int rc = GROW(j->runs, j->cap_runs, j->n_runs + 1, err);
    if (!rc)
        j->runs[j->n_runs++] = run;
    return rc;
}

int journal_add_run(struct journal *j, uint64_t run, struct larder_error *err)
{
    char hex[17];
    snprintf(hex, sizeof(hex), "%016llx", (unsigned long long)run);
    struct json *l = json_new_object();
    int rc = put_line(j, l, json_set_str(l, "run", hex), err);
    return rc ? rc : keep_run(j, run, err);
}

int journal_new_run(struct journal *j, uint64_t *run, struct larder_error *err)
{
    int rc = random_bytes(run, sizeof(*run), err);
    return rc ? rc : journal_add_run(j, *run, err);
}

static int keep_dict(struct journal *j, void *moved, size_t len)
{
    free(j->dict);
    j->dict = moved;
    j->dict_len = len;
    j->has_dict = true;
    return LARDER_OK;
}

int journal_add_dict(struct journal *j, const void *dict, size_t len, struct larder_error *err)
{
    struct json *l = json_new_object();
    int rc = put_line(j, l, len ? json_set_hex(l, "dict", dict, len) : json_set_str(l, "dict", ""), err);
    if (rc)
        return rc;
    void *copy = len ? bytes_dup(dict, len) : NULL;
    return len && !copy ? err_nomem(err, len, "a dictionary") : keep_dict(j, copy, len);
}

static int keep_shard(struct journal *j, struct journal_shard *moved, struct larder_error *err)
{
    int rc = GROW(j->shards, j->cap_shards, j->n_shards + 1, err);
    if (rc)
        shard_ref_release(&moved->ref);
    else
        j->shards[j->n_shards++] = *moved;
    return rc;
}

int journal_add_shard(struct journal *j, const struct journal_shard *s, struct larder_error *err)
{
    struct json *l = json_new_object(), *ref = shard_ref_json(&s->ref);
    int rc = json_set(l, "shard", ref);
    if (!rc)
        rc = json_set_u64(l, "consumed", s->consumed);
    if (!rc)
        rc = json_set_u64(l, "skipped", s->skipped);
    if (!rc)
        rc = json_set_u64(l, "source_bytes", s->source_bytes);
    if ((rc = put_line(j, l, rc, err)))
        return rc;
    struct journal_shard copy = *s;
    rc = shard_ref_copy(&copy.ref, &s->ref, err);
    return rc ? rc : keep_shard(j, &copy, err);
}

static int keep_unit(struct journal *j, const struct journal_unit *u, struct larder_error *err)
{
    int rc = GROW(j->units, j->cap_units, j->n_units + 1, err);
    if (!rc)
        j->units[j->n_units++] = *u;
    return rc;
}

int journal_add_unit(struct journal *j, const struct journal_unit *u, struct larder_error *err)
{
    struct json *l = json_new_object();
    int rc = json_set_u64(l, "unit", u->unit);
    if (!rc)
        rc = json_set_u64(l, "consumed", u->consumed);
    if (!rc)
        rc = json_set_u64(l, "skipped", u->skipped);
    if (!rc)
        rc = json_set_u64(l, "source_bytes", u->source_bytes);
    rc = put_line(j, l, rc, err);
    return rc ? rc : keep_unit(j, u, err);
}

static void drop(struct journal *j, uint64_t unit, uint64_t sub)
{
    size_t kept = 0;
    for (size_t i = 0; i < j->n_shards; i++) {
        if (j->shards[i].ref.unit == unit && j->shards[i].ref.sub >= sub)
            shard_ref_release(&j->shards[i].ref);
        else
            j->shards[kept++] = j->shards[i];
    }
    j->n_shards = kept;
    kept = 0;
    for (size_t i = 0; i < j->n_units; i++)
        if (j->units[i].unit != unit)
            j->units[kept++] = j->units[i];
    j->n_units = kept;
}

int journal_add_drop(struct journal *j, uint64_t unit, uint32_t sub, struct larder_error *err)
{
    struct json *l = json_new_object();
    int rc = json_set_u64(l, "drop", unit);
    if (!rc)
        rc = json_set_u64(l, "sub", sub);
    if (!(rc = put_line(j, l, rc, err)))
        drop(j, unit, sub);
    return rc;
}

/* ---- reading ---- */

static int parse_head(struct journal *j, const struct json *l, const char *what, struct larder_error *err)
{
    uint64_t version;
    const char *kind, *text;
    int rc = json_get_u64(l, "larder_journal", what, &version, err);
    if (!rc && version != 1)
        return err_set(err, LARDER_EVERSION, "%s: version %llu of an unfinished session is not known: finish it with the larder that "
                       "began it, or remove the file", what, (unsigned long long)version);
    if (rc || (rc = json_get_str(l, "kind", what, &kind, err)) || (rc = json_get_hex(l, "session", what, j->head.session, 8, err)) ||
        (rc = json_get_hex(l, "uuid", what, j->head.uuid, 16, err)) || (rc = json_get_hex(l, "lineage", what, j->head.lineage, 16, err)))
        return rc;
    j->head.kind = strcmp(kind, "ingest") ? JOURNAL_WRITER : JOURNAL_INGEST;
    for (size_t i = 0; i < JOPT_N; i++) {
        if (!json_has(l, option_names[i]))
            continue;
        if ((rc = json_get_str(l, option_names[i], what, &text, err)))
            return rc;
        if (!(j->head.options[i] = strdup(text)))
            return err_nomem(err, strlen(text), "a journal's head");
    }
    j->has_head = true;
    return LARDER_OK;
}

static int parse_dict(struct journal *j, const struct json *l, const char *what, struct larder_error *err)
{
    const char *hex;
    int rc = json_get_str(l, "dict", what, &hex, err);
    if (rc)
        return rc;
    size_t len = strlen(hex) / 2;
    uint8_t *dict = len ? malloc(len) : NULL;
    if (len && !dict)
        return err_nomem(err, len, "a dictionary");
    if (len > DICT_MAX || (len && !hex_decode(hex, strlen(hex), dict, len))) {
        free(dict);
        return err_set(err, LARDER_ECORRUPT, "%s: member 'dict' is no dictionary", what);
    }
    return keep_dict(j, dict, len);
}

static int parse_counts(const struct json *l, const char *what, uint64_t *consumed, uint64_t *skipped, uint64_t *bytes,
                        struct larder_error *err)
{
    int rc = json_get_u64(l, "consumed", what, consumed, err);
    if (!rc)
        rc = json_get_u64(l, "skipped", what, skipped, err);
    return rc ? rc : json_get_u64(l, "source_bytes", what, bytes, err);
}

static int parse_shard(struct journal *j, const struct json *l, const char *what, struct larder_error *err)
{
    struct journal_shard s = {.consumed = 0};
    const struct json *ref;
    int rc = json_get_array(l, "shard", what, &ref, err);
    if (!rc)
        rc = parse_counts(l, what, &s.consumed, &s.skipped, &s.source_bytes, err);
    if (!rc)
        rc = shard_ref_parse(ref, what, &s.ref, err);
    return rc ? rc : keep_shard(j, &s, err);
}

static int parse_line(struct journal *j, const char *text, size_t len, const char *what, struct larder_error *err)
{
    AUTO_JSON struct json *l = json_parse(text, len, what, err);
    uint64_t a, b;
    int rc;
    if (!l)
        return err && err->code == LARDER_ENOMEM ? LARDER_ENOMEM : LARDER_ECORRUPT;
    if (!j->has_head)
        return parse_head(j, l, what, err);
    if (json_has(l, "run")) {
        uint8_t run[8];
        if ((rc = json_get_hex(l, "run", what, run, 8, err)))
            return rc;
        for (a = 0, b = 0; b < 8; b++)
            a = a << 8 | run[b];
        return keep_run(j, a, err);
    }
    if (json_has(l, "dict"))
        return parse_dict(j, l, what, err);
    if (json_has(l, "shard"))
        return parse_shard(j, l, what, err);
    if (json_has(l, "drop")) {
        if ((rc = json_get_u64(l, "drop", what, &a, err)) || (rc = json_get_u64(l, "sub", what, &b, err)))
            return rc;
        drop(j, a, b);
        return LARDER_OK;
    }
    struct journal_unit u = {.unit = 0};
    if ((rc = json_get_u64(l, "unit", what, &u.unit, err)) ||
        (rc = parse_counts(l, what, &u.consumed, &u.skipped, &u.source_bytes, err)))
        return rc;
    return keep_unit(j, &u, err);
}

/* Length of the JSON in a line of len bytes without its newline, or 0 when its CRC is wrong. */
static size_t line_check(const char *line, size_t len)
{
    uint8_t crc[4];
    if (len < LINE_END || line[len - 9] != ' ' || !hex_decode(line + len - 8, 8, crc, 4))
        return 0;
    uint32_t want = (uint32_t)crc[0] << 24 | (uint32_t)crc[1] << 16 | (uint32_t)crc[2] << 8 | crc[3];
    return crc32c(0, line, len - 9) == want ? len - 9 : 0;
}

static int truncate_to(struct journal *j, uint64_t size, struct larder_error *err)
{
    if (ftruncate(j->session.fd, (off_t)size) || fdatasync(j->session.fd))
        return err_sys(err, LARDER_EIO, errno, "%s/journal: cannot be written", j->session.root);
    j->size = size;
    return LARDER_OK;
}

static int load(struct journal *j, struct larder_error *err)
{
    AUTO_BUF struct buf text = BUF_INIT;
    AUTO_FREE char *what = NULL;
    int rc = journal_text(&j->session, &text, err);
    if (!rc && asprintf(&what, "%s/journal", j->session.root) < 0) {
        what = NULL;
        rc = err_nomem(err, 64, "a path");
    }
    const char *base = (const char *)text.data;
    size_t at = 0;
    while (!rc && at < text.len) {
        const char *end = memchr(base + at, '\n', text.len - at);
        size_t len = end ? line_check(base + at, (size_t)(end - base) - at) : 0;
        if (len == 0)
            break;
        if (!(rc = parse_line(j, base + at, len, what, err)))
            at = (size_t)(end - base) + 1;
    }
    if (rc)
        return rc;
    j->size = at;
    return at < text.len ? truncate_to(j, at, err) : LARDER_OK;
}

int journal_open(struct store_io *io, struct journal *j, struct larder_error *err)
{
    bool fresh;
    *j = (struct journal){.io = io};
    int rc = session_lock(io, &j->session, &fresh, err);
    if (rc)
        return rc;
    j->locked = true;
    if (!fresh && (rc = load(j, err)))
        journal_close(j, false);
    return rc;
}

void journal_close(struct journal *j, bool remove)
{
    forget(j);
    if (j->locked)
        session_unlock(&j->session, remove);
    j->locked = false;
}

int journal_reset(struct journal *j, struct larder_error *err)
{
    forget(j);
    return truncate_to(j, 0, err);
}

/* ---- what a journal means ---- */

int journal_same(const struct journal *j, char *const options[JOPT_N], struct larder_error *err)
{
    for (size_t i = 0; i < JOPT_N; i++) {
        const char *was = j->head.options[i] ? j->head.options[i] : "", *now = options[i] ? options[i] : "";
        if (!strcmp(was, now))
            continue;
        if (i == JOPT_CONTENT)
            return err_set(err, LARDER_EINVAL, "%.100s changed since the ingest that was interrupted began: it cannot go on; --restart "
                           "discards what it did", j->head.options[JOPT_SOURCE]);
        return err_set(err, LARDER_EINVAL, "an unfinished ingest is here with another %s ('%.60s', now '%.60s'): give the same to go on, "
                       "or --restart to discard it", option_names[i], was, now);
    }
    return LARDER_OK;
}

static bool of_session(const struct journal *j, const char *name)
{
    for (size_t i = 0; i < j->n_runs; i++) {
        char hex[17];
        snprintf(hex, sizeof(hex), "%016llx", (unsigned long long)j->runs[i]);
        if (!strncmp(name, hex, 16))
            return true;
    }
    return false;
}

bool journal_committed(const struct journal *j, const struct manifest *m)
{
    for (size_t i = 0; i < m->n_shards; i++)
        if (of_session(j, m->shards[i].name))
            return true;
    return false;
}

struct sweep {
    const struct journal *j;
    const char **keep; size_t n_keep, cap_keep; /* sorted: shard names and index folders */
    struct buf names;                           /* to remove, each with its NUL */
    struct larder_error *err;
};

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static int keep_name(struct sweep *s, const char *name)
{
    int rc = GROW(s->keep, s->cap_keep, s->n_keep + 1, s->err);
    if (!rc)
        s->keep[s->n_keep++] = name;
    return rc;
}

/* A listed file, "shards/NAME" or "index/<generation>-<run>.../NAME". */
static int consider(void *user, const char *path, uint64_t size, uint64_t mtime_s)
{
    struct sweep *s = user;
    char folder[256];
    const char *name = strchr(path, '/');
    (void)size;
    (void)mtime_s;
    if (!name++)
        return LARDER_OK;
    const char *key = name, *run = name;
    if (!strncmp(path, "index/", 6)) {
        snprintf(folder, sizeof(folder), "%.*s", (int)MIN(strcspn(name, "/"), sizeof(folder) - 1), name);
        key = folder;
        run = strchr(folder, '-') ? strchr(folder, '-') + 1 : folder;
    }
    if (!of_session(s->j, run) || (s->n_keep && bsearch(&key, s->keep, s->n_keep, sizeof(*s->keep), by_name)))
        return LARDER_OK;
    return buf_append(&s->names, path, strlen(path) + 1, s->err);
}

int journal_sweep(struct journal *j, const struct manifest *newest, bool keep_shards, struct larder_error *err)
{
    struct sweep s = {.j = j, .names = BUF_INIT, .err = err};
    int rc = LARDER_OK;
    for (size_t i = 0; !rc && newest && i < newest->n_shards; i++)
        rc = keep_name(&s, newest->shards[i].name);
    for (size_t i = 0; !rc && newest && i < newest->n_parts; i++)
        rc = keep_name(&s, newest->parts[i].dir);
    for (size_t i = 0; !rc && keep_shards && i < j->n_shards; i++)
        rc = keep_name(&s, j->shards[i].ref.name);
    if (!rc && s.n_keep)
        qsort(s.keep, s.n_keep, sizeof(*s.keep), by_name);
    if (!rc)
        rc = j->io->ops->list(j->io, "shards", consider, &s, err);
    if (!rc)
        rc = j->io->ops->list(j->io, "index", consider, &s, err);
    for (size_t at = 0; !rc && at < s.names.len; at += strlen((char *)s.names.data + at) + 1) {
        rc = j->io->ops->remove(j->io, (char *)s.names.data + at, err);
        if (rc == LARDER_ENOTFOUND)
            rc = LARDER_OK;
    }
    buf_release(&s.names);
    free(s.keep);
    return rc;
}
