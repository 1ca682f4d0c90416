/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_io.c - struct store_io over a bucket: what the store does through an io works on objects below s3://bucket/prefix. Below
 * http(s):// there is only reading, without listing.
 *
 * A read of many ranges becomes as few GETs as `gap_bytes` and `get_bytes` allow, all under way together:
 *
 *     ranges, sorted      [a....][b..]   [c.]                     [d....................]
 *     GETs                |-----------------|                     |----------|-----------|
 *                          into memory of its own, then copied     straight into the caller's
 *
 * At most WAVE GETs and WAVE_BYTES of such memory exist at a time; what is more waits for the next wave.
 *
 * create_exclusive is what keeps two writers apart, so a server is not believed: before the first one a probe object is created twice. A
 * server that lets both pass ignores If-None-Match, and committing there needs the option single_writer; what is there is then looked
 * for first.
 *
 * Objects are durable when their PUT was answered: sync does nothing. Folders do not exist: removing leaves none behind. S3 does
 * not tell whether a removed object was there, so ENOTFOUND is told only by servers that do.
 *
 * Threads: any. `lock` guards the name of the work folder, nothing else changes after opening but `conditions`, which threads may find out
 * side by side. No lock is held across a request.
 */
#include <inttypes.h>

#include "tiers/remote_io_int.h"

#define WAVE ((size_t)128)
#define WAVE_BYTES (64 * MIB)
#define LIST_BYTES_MAX (16 * MIB) /* a page of 1,000 names of 1,024 bytes, percent-encoded, takes 4 */

enum { KEY_BYTES_MAX = 1024, TRIES = 4 };

/* ---- names ---- */

static bool is_plain_name(const char *name)
{
    for (const char *part = name;; part++) {
        size_t len = strcspn(part, "/");
        if (len == 0 || (len == 1 && part[0] == '.') || (len == 2 && part[0] == '.' && part[1] == '.'))
            return false;
        part += len;
        if (!*part)
            return true;
    }
}

int remote_name_check(const struct remote_io *x, const char *name, bool write, struct larder_error *err)
{
    if (write && !remote_writable(x->r))
        return err_set(err, LARDER_EINVAL, "%.150s: it is only read: write to a directory or to s3://", remote_uri(x->r));
    if (!name || !is_plain_name(name))
        return err_set(err, LARDER_EINVAL, "%.150s: not a name within a dataset (absolute, or an empty, '.' or '..' part)", name ? name : "");
    if (strlen(name) + (x->r->place.prefix ? strlen(x->r->place.prefix) : 0) > KEY_BYTES_MAX)
        return err_set(err, LARDER_EINVAL, "%.150s: with the prefix it has more than %d bytes, which no key may", name, KEY_BYTES_MAX);
    return LARDER_OK;
}

const char *remote_below(const struct remote_io *x, const char *key)
{
    size_t n = strlen(x->r->place.prefix);

    return strncmp(key, x->r->place.prefix, n) == 0 ? key + n : NULL;
}

/* ---- ranges ---- */

/* One GET: ranges order[first..first + n), or a piece of a single long one. */
struct piece {
    const char *name;
    uint64_t offset;
    size_t len;
    size_t first, n;
    uint8_t *to;   /* NULL: memory of its own, then copied */
};

struct reading {
    const struct store_range *ranges;
    const struct store_range **order; /* by name and offset, empty ones left out */
    size_t n;
    struct piece *gets;
    size_t n_gets, cap;
};

static int by_place(const void *a, const void *b)
{
    const struct store_range *x = *(const struct store_range *const *)a, *y = *(const struct store_range *const *)b;
    int c = x->name == y->name ? 0 : strcmp(x->name, y->name);

    if (c == 0)
        c = x->offset < y->offset ? -1 : x->offset > y->offset;
    return c ? c : x < y ? -1 : x > y; /* a sort without surprises */
}

static int plan_order(struct remote_io *x, struct reading *p, size_t n, struct larder_error *err)
{
    p->order = malloc(MAX(n, 1u) * sizeof(*p->order));
    if (!p->order)
        return err_nomem(err, n * sizeof(*p->order), "ranges");
    for (size_t i = 0; i < n; i++) {
        const struct store_range *r = &p->ranges[i];
        int rc = remote_name_check(x, r->name, false, err);
        if (rc)
            return rc;
        if (r->len > INT64_MAX || r->offset > INT64_MAX - r->len)
            return err_set(err, LARDER_ECORRUPT, "%s: %zu bytes at offset %" PRIu64 " wanted: no object is so large", r->name, r->len, r->offset);
        if (r->len > 0)
            p->order[p->n++] = r;
    }
    qsort(p->order, p->n, sizeof(*p->order), by_place);
    return LARDER_OK;
}

/* A single range, in pieces of at most get_bytes. */
static int plan_pieces(struct reading *p, size_t at, uint64_t get_bytes, struct larder_error *err)
{
    const struct store_range *r = p->order[at];

    for (size_t done = 0; done < r->len;) {
        size_t len = (size_t)MIN((uint64_t)(r->len - done), get_bytes);
        int rc = GROW(p->gets, p->cap, p->n_gets + 1, err);
        if (rc)
            return rc;
        p->gets[p->n_gets++] = (struct piece){r->name, r->offset + done, len, at, 1, (uint8_t *)r->buf + done};
        done += len;
    }
    return LARDER_OK;
}

/* How many ranges from `at` on go into one GET; *end: where it ends. */
static size_t plan_joined(const struct reading *p, size_t at, uint64_t gap, uint64_t get_bytes, uint64_t *end)
{
    const struct store_range *first = p->order[at];
    size_t n = 1;

    *end = first->offset + first->len;
    for (; at + n < p->n && gap != UINT64_MAX; n++) {
        const struct store_range *next = p->order[at + n];
        uint64_t next_end = MAX(*end, next->offset + next->len);
        if (strcmp(next->name, first->name) != 0 || next->offset > *end + gap || next_end - first->offset > get_bytes)
            break;
        *end = next_end;
    }
    return n;
}

static int plan_gets(struct remote_io *x, struct reading *p, struct larder_error *err)
{
    const struct larder_remote_options *o = remote_options(x->r);
    int rc = LARDER_OK;

    for (size_t at = 0; at < p->n && rc == LARDER_OK;) {
        uint64_t end;
        size_t n = plan_joined(p, at, o->gap_bytes, o->get_bytes, &end);
        if (n == 1) {
            rc = plan_pieces(p, at, o->get_bytes, err);
        } else {
            const struct store_range *r = p->order[at];
            rc = GROW(p->gets, p->cap, p->n_gets + 1, err);
            if (rc == LARDER_OK)
                p->gets[p->n_gets++] = (struct piece){r->name, r->offset, (size_t)(end - r->offset), at, n, NULL};
        }
        at += n;
    }
    return rc;
}

/* From a GET's own memory to the ranges in it. */
static void scatter(const struct reading *p, const struct piece *g, const uint8_t *data)
{
    for (size_t i = g->first; i < g->first + g->n; i++)
        memcpy(p->order[i]->buf, data + (p->order[i]->offset - g->offset), p->order[i]->len);
}

static void aim(const struct piece *g, struct remote_request *q, void *to)
{
    *q = (struct remote_request){.method = HTTP_GET, .name = g->name, .ranged = true, .offset = g->offset, .len = g->len, .buf = to,
                                 .priority = REMOTE_DEMAND};
}

/* Sends n GETs from `at` on and waits for all. */
static int wave(struct remote_io *x, const struct reading *p, size_t at, size_t n, struct remote_request *q, struct larder_error *err)
{
    int rc = LARDER_OK;
    size_t made = 0;

    for (; made < n && rc == LARDER_OK; made++) {
        const struct piece *g = &p->gets[at + made];
        void *to = g->to ? g->to : malloc(g->len);
        aim(g, &q[made], to);
        if (!to)
            rc = err_nomem(err, g->len, g->name);
    }
    if (rc == LARDER_OK)
        rc = remote_run(x->r, q, n, err);
    for (size_t i = 0; i < made; i++) {
        const struct piece *g = &p->gets[at + i];
        if (g->to)
            continue;
        if (rc == LARDER_OK)
            scatter(p, g, q[i].buf);
        free(q[i].buf);
    }
    return rc;
}

static int run_plan(struct remote_io *x, const struct reading *p, struct larder_error *err)
{
    AUTO_FREE struct remote_request *q = calloc(MAX(MIN(p->n_gets, WAVE), 1u), sizeof(*q));
    int rc = LARDER_OK;

    if (!q)
        return err_nomem(err, WAVE * sizeof(*q), "requests");
    for (size_t at = 0, n; at < p->n_gets && rc == LARDER_OK; at += n) {
        size_t bytes = 0;
        for (n = 0; n < WAVE && at + n < p->n_gets; n++) {
            bytes += p->gets[at + n].to ? 0 : p->gets[at + n].len;
            if (n > 0 && bytes > WAVE_BYTES)
                break;
        }
        rc = wave(x, p, at, n, q, err);
    }
    return rc;
}

static int remote_read_ranges(struct store_io *io, const struct store_range *ranges, size_t n, struct larder_error *err)
{
    struct remote_io *x = remote_io_of(io);
    struct reading p = {.ranges = ranges};
    uint64_t wanted = 0;
    int rc = plan_order(x, &p, n, err);

    if (rc == LARDER_OK)
        rc = plan_gets(x, &p, err);
    if (rc == LARDER_OK)
        rc = run_plan(x, &p, err);
    for (size_t i = 0; i < p.n; i++)
        wanted += p.order[i]->len;
    if (rc == LARDER_OK)
        remote_used(x->r, wanted);
    free(p.order);
    free(p.gets);
    return rc;
}

/* ---- whole objects ---- */

static int whole_wave(struct remote_io *x, struct store_whole *objects, size_t n, struct remote_request *q, struct larder_error *err)
{
    int rc;

    for (size_t i = 0; i < n; i++) {
        if ((rc = remote_name_check(x, objects[i].name, false, err)))
            return rc;
        q[i] = (struct remote_request){.method = HTTP_GET, .name = objects[i].name, .out = objects[i].out, .out_max = objects[i].max,
                                       .priority = REMOTE_DEMAND};
    }
    remote_run(x->r, q, n, NULL);
    for (size_t i = 0; i < n; i++) {
        objects[i].rc = q[i].rc;
        if (q[i].rc != LARDER_OK && q[i].rc != LARDER_ENOTFOUND) {
            if (err)
                *err = q[i].error;
            return q[i].rc;
        }
        if (q[i].rc == LARDER_OK && q[i].object_size != UINT64_MAX)
            remote_used(x->r, q[i].object_size);
    }
    return LARDER_OK;
}

static int remote_read_whole(struct store_io *io, struct store_whole *objects, size_t n, struct larder_error *err)
{
    AUTO_FREE struct remote_request *q = calloc(MAX(MIN(n, WAVE), 1u), sizeof(*q));
    int rc = LARDER_OK;

    if (!q)
        return err_nomem(err, WAVE * sizeof(*q), "requests");
    for (size_t at = 0; at < n && rc == LARDER_OK; at += WAVE)
        rc = whole_wave(remote_io_of(io), objects + at, MIN(n - at, WAVE), q, err);
    return rc;
}

int remote_head(struct remote_io *x, const char *name, uint64_t *size, uint64_t *mtime_s, char etag[80], struct larder_error *err)
{
    struct remote_request q = {.method = HTTP_HEAD, .name = name, .priority = REMOTE_DEMAND};
    int rc = remote_run(x->r, &q, 1, err);

    if (rc)
        return rc;
    if (size && q.object_size == UINT64_MAX)
        return err_set(err, LARDER_EREMOTE, "%.100s/%.100s: the server does not tell its size (no Content-Length)", remote_uri(x->r), name);
    if (size)
        *size = q.object_size;
    if (mtime_s)
        *mtime_s = q.modified_s;
    if (etag)
        snprintf(etag, 80, "%s", q.etag);
    return LARDER_OK;
}

static int remote_stat(struct store_io *io, const char *name, uint64_t *size, uint64_t *mtime_s, struct larder_error *err)
{
    struct remote_io *x = remote_io_of(io);
    int rc = remote_name_check(x, name, false, err);

    return rc ? rc : remote_head(x, name, size, mtime_s, NULL, err);
}

/* ---- small objects ---- */

static int put_once(struct remote_io *x, const char *name, const void *data, size_t len, bool create, int *status, struct larder_error *err)
{
    char md5[25], line[48];
    const char *headers[2] = {"content-type: application/octet-stream", line};

    md5_base64(data, len, md5);
    snprintf(line, sizeof(line), "content-md5: %s", md5);
    struct remote_request q = {.method = HTTP_PUT, .name = name, .body = data, .body_len = len, .create = create, .headers = headers,
                               .n_headers = *md5 ? 2 : 1, .priority = REMOTE_DEMAND};
    int rc = remote_run(x->r, &q, 1, err);
    if (status)
        *status = q.status;
    return rc;
}

static int look_and_put(struct remote_io *x, const char *name, const void *data, size_t len, struct larder_error *err)
{
    int rc = remote_head(x, name, NULL, NULL, NULL, err);

    if (rc == LARDER_OK)
        return err_set(err, LARDER_EEXIST, "%.110s/%.110s: it is there already", remote_uri(x->r), name);
    return rc == LARDER_ENOTFOUND ? put_once(x, name, data, len, false, NULL, err) : rc;
}

int remote_put_new(struct remote_io *x, const char *name, const void *data, size_t len, struct larder_error *err)
{
    int status = 0, rc = LARDER_EREMOTE;

    if (atomic_load(&x->conditions) != CONDITIONS_IGNORED)
        rc = put_once(x, name, data, len, true, &status, err);
    if (rc == LARDER_EREMOTE && status == 501) /* a server that knows of conditions only that it has none */
        atomic_store(&x->conditions, CONDITIONS_IGNORED);
    return atomic_load(&x->conditions) == CONDITIONS_IGNORED ? look_and_put(x, name, data, len, err) : rc;
}

/* Creates an object twice, with different bytes, and sees whether the second one is refused. */
static int probe(struct remote_io *x, struct larder_error *err)
{
    uint8_t random[8];
    char hex[17], name[64];
    int status = 0, rc = random_bytes(random, sizeof(random), err);

    if (rc)
        return rc;
    hex_encode(random, sizeof(random), hex);
    snprintf(name, sizeof(name), "manifests/.tmp-%s", hex);
    rc = put_once(x, name, "1", 1, true, &status, err);
    if (rc == LARDER_EREMOTE && status == 501) {
        atomic_store(&x->conditions, CONDITIONS_IGNORED);
        return LARDER_OK;
    }
    if (rc)
        return rc;
    rc = put_once(x, name, "2", 1, true, &status, err);
    struct remote_request q = {.method = HTTP_DELETE, .name = name, .priority = REMOTE_DEMAND};
    remote_run(x->r, &q, 1, NULL); /* what is left of it, gc takes away */
    if (rc != LARDER_OK && rc != LARDER_EEXIST)
        return rc;
    atomic_store(&x->conditions, rc == LARDER_EEXIST ? CONDITIONS_KEPT : CONDITIONS_IGNORED);
    return LARDER_OK;
}

static int remote_create_exclusive(struct store_io *io, const char *name, const void *data, size_t len, struct larder_error *err)
{
    struct remote_io *x = remote_io_of(io);
    int rc = remote_name_check(x, name, true, err);

    if (rc == LARDER_OK && atomic_load(&x->conditions) == CONDITIONS_UNKNOWN)
        rc = probe(x, err);
    if (rc == LARDER_OK && atomic_load(&x->conditions) == CONDITIONS_IGNORED && !remote_options(x->r)->single_writer)
        rc = err_set(err, LARDER_EINVAL, "%.80s: this server ignores If-None-Match, so two writers could both commit: where nobody else "
                     "writes, say so (single_writer, --single-writer)", remote_uri(x->r));
    return rc ? rc : remote_put_new(x, name, data, len, err);
}

static int remote_put(struct store_io *io, const char *name, const void *data, size_t len, struct larder_error *err)
{
    struct remote_io *x = remote_io_of(io);
    int rc = remote_name_check(x, name, true, err);

    return rc ? rc : put_once(x, name, data, len, false, NULL, err);
}

static int remote_remove(struct store_io *io, const char *name, struct larder_error *err)
{
    struct remote_io *x = remote_io_of(io);
    struct remote_request q = {.method = HTTP_DELETE, .name = name, .priority = REMOTE_DEMAND};
    int rc = remote_name_check(x, name, true, err);

    return rc ? rc : remote_run(x->r, &q, 1, err);
}

/* ---- listing ---- */

struct listing { struct remote_io *x; store_list_fn *fn; void *user; };

/* Keys that are no names (markers of folders, "a//b") are nobody's of ours. */
static int listed(void *user, const char *key, uint64_t size, uint64_t mtime_s)
{
    struct listing *l = user;
    const char *name = remote_below(l->x, key);

    return name && is_plain_name(name) ? l->fn(l->user, name, size, mtime_s) : LARDER_OK;
}

static int page_query(const struct remote_io *x, const char *prefix, const char *token, struct buf *query, struct larder_error *err)
{
    int rc = LARDER_OK;

    query->len = 0;
    if (token) {
        rc = buf_printf(query, err, "continuation-token=");
        if (rc == LARDER_OK)
            rc = s3_encode(token, false, query, err);
        if (rc == LARDER_OK)
            rc = buf_printf(query, err, "&");
    }
    if (rc == LARDER_OK)
        rc = buf_printf(query, err, "encoding-type=url&list-type=2&max-keys=1000&prefix=");
    if (rc == LARDER_OK)
        rc = s3_encode(x->r->place.prefix, false, query, err);
    if (rc == LARDER_OK)
        rc = s3_encode(prefix, false, query, err);
    return rc || !*prefix ? rc : buf_printf(query, err, "%%2F");
}

static int heard(void *user, const char *key, uint64_t size, uint64_t mtime_s)
{
    (void)user, (void)key, (void)size, (void)mtime_s;
    return LARDER_OK;
}

/* Asks for a page until its XML is whole: names are handed on only then, so that none comes twice. */
static int fetch_page(struct listing *l, const char *query, struct buf *page, struct larder_error *err)
{
    for (unsigned try = 0;; try++) {
        AUTO_FREE char *next = NULL;
        page->len = 0;
        struct remote_request q = {.method = HTTP_GET, .query = query, .out = page, .out_max = LIST_BYTES_MAX, .priority = REMOTE_DEMAND};
        int rc = remote_run(l->x->r, &q, 1, err);
        if (rc)
            return rc;
        rc = s3_list_parse((char *)page->data, page->len, heard, NULL, &next, err);
        if (rc != LARDER_ECORRUPT || !io_again(&l->x->io, try))
            return rc;
    }
}

static int list_page(struct listing *l, const char *prefix, char **token, struct buf *query, struct buf *page, struct larder_error *err)
{
    char *next = NULL;
    int rc = page_query(l->x, prefix, *token, query, err);

    if (rc)
        return rc;
    rc = fetch_page(l, (char *)query->data, page, err);
    if (rc)
        return rc;
    remote_used(l->x->r, page->len);
    rc = s3_list_parse((char *)page->data, page->len, listed, l, &next, err);
    if (rc == LARDER_OK && next && *token && strcmp(next, *token) == 0)
        rc = err_set(err, LARDER_ECORRUPT, "%.150s: the server gives the same page of its listing for ever", remote_uri(l->x->r));
    free(*token);
    *token = next;
    return rc;
}

static int remote_list(struct store_io *io, const char *prefix, store_list_fn *fn, void *user, struct larder_error *err)
{
    struct listing l = {remote_io_of(io), fn, user};
    AUTO_BUF struct buf query = BUF_INIT, page = BUF_INIT;
    AUTO_FREE char *token = NULL;
    int rc = *prefix ? remote_name_check(l.x, prefix, false, err) : LARDER_OK;

    if (rc == LARDER_OK && !remote_writable(l.x->r))
        rc = err_set(err, LARDER_EINVAL, "%.150s: a web server has no listing", remote_uri(l.x->r));
    if (rc)
        return rc;
    do
        rc = list_page(&l, prefix, &token, &query, &page, err);
    while (rc == LARDER_OK && token);
    return rc;
}

/* ---- opening and closing ---- */

static int remote_sync(struct store_io *io, const char *dir, struct larder_error *err)
{
    (void)io, (void)dir, (void)err;
    return LARDER_OK;
}

static const char *remote_local_root(struct store_io *io)
{
    (void)io;
    return NULL;
}

static const char *remote_where(struct store_io *io) { return remote_uri(remote_io_of(io)->r); }

static const char *remote_work_root(struct store_io *io, struct larder_error *err)
{
    struct remote_io *x = remote_io_of(io);
    AUTO_BUF struct buf key = BUF_INIT;
    char *path = NULL;

    pthread_mutex_lock(&x->lock);
    const char *work = x->work;
    pthread_mutex_unlock(&x->lock);
    if (work)
        return work;
    /* Where it is, not how it is called: one bucket by two names shares its folder, two servers do not. */
    if (buf_printf(&key, err, "%s://%s%s", x->r->place.scheme, x->r->place.host, x->r->path) ||
        scratch_make(remote_options(x->r)->scratch, (char *)key.data, &path, err))
        return NULL;
    pthread_mutex_lock(&x->lock);
    if (x->work)
        free(path);
    else
        x->work = path;
    work = x->work;
    pthread_mutex_unlock(&x->lock);
    return work;
}

static bool remote_io_damaged(struct store_io *io) { return remote_damaged(remote_io_of(io)->r); }

static int remote_drop_unfinished(struct store_io *io, uint64_t min_age_s, uint64_t *n, struct larder_error *err)
{
    return remote_uploads_abort(remote_io_of(io)->r, min_age_s, n, err);
}

static void remote_io_close(struct store_io *io)
{
    struct remote_io *x = remote_io_of(io);

    remote_close(x->r);
    pthread_mutex_destroy(&x->lock);
    free(x->work);
    free(x);
}

static const struct store_io_ops remote_ops = {
    .read_ranges = remote_read_ranges,
    .read_whole = remote_read_whole,
    .stat = remote_stat,
    .put = remote_put,
    .create_exclusive = remote_create_exclusive,
    .list = remote_list,
    .remove = remote_remove,
    .begin = remote_out_begin,
    .write = remote_out_write,
    .finish = remote_out_finish,
    .abort = remote_out_abort,
    .sync = remote_sync,
    .local_root = remote_local_root,
    .where = remote_where,
    .work_root = remote_work_root,
    .damaged = remote_io_damaged,
    .drop_unfinished = remote_drop_unfinished,
    .close = remote_io_close,
};

int remote_io_open(const char *uri, const struct larder_remote_options *o, struct store_io **io, struct larder_error *err)
{
    struct remote_io *x = calloc(1, sizeof(*x));

    *io = NULL;
    if (!x)
        return err_nomem(err, sizeof(*x), "bucket");
    int rc = remote_open(uri, o, &x->r, err);
    if (rc) {
        free(x);
        return rc;
    }
    x->io = (struct store_io){.ops = &remote_ops, .tries = TRIES, .work_bytes = remote_options(x->r)->scratch_bytes};
    pthread_mutex_init(&x->lock, NULL);
    *io = &x->io;
    return LARDER_OK;
}

struct remote *remote_of(struct store_io *io) { return io && io->ops == &remote_ops ? remote_io_of(io)->r : NULL; }
