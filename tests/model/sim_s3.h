/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_s3.h - a bucket in memory behind struct store_io, with seeded faults.
 *
 * A struct sim_bucket holds the objects; any number of clients (struct store_io each, with a scratch folder of its own, as on machines
 * of their own) work on it. It behaves as S3 does: no folders, an object appears whole when its write is finished and replaces what
 * was there, create_exclusive is atomic, listings come in pages between which others go on, reads see the latest write. What the
 * client below the store would have mended (retries) is mended already: what is left are requests that fail for good, and bytes
 * that come damaged although the transfer looked well.
 *
 *     fail   a request that fails before it did anything: EREMOTE or ETIMEOUT
 *     lost   a write that happened and whose answer did not come: EREMOTE
 *     flip   one bit of what was read
 *     cut    an object that seems to end too early: ECORRUPT
 *
 * Each is a chance in 10,000 a request (flip and cut: a range). Time is virtual: a call costs one trip of `trip_ms` however many
 * ranges it has, and moves the bucket's clock, which objects are dated by.
 *
 * Thread-safe; with one thread at a time a seed gives the same run.
 */
#ifndef SIM_S3_H
#define SIM_S3_H

#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>

#include "store/base/base.h"

enum { SIM_PAGE = 100 }; /* names in a page of a listing */

struct sim_object { char *name; uint8_t *data; size_t len; uint64_t mtime_ms; };

struct sim_bucket {
    pthread_mutex_t lock;
    struct sim_object *objects; /* by name */
    size_t n, cap;
    uint64_t clock_ms;
    unsigned unfinished; /* writes that were begun and neither finished nor given up */
};

struct sim_faults { unsigned fail, lost, flip, cut; };

struct sim_io {
    struct store_io io;
    struct sim_bucket *b;
    struct sim_faults faults; /* may be changed between calls */
    uint64_t rng;
    unsigned trip_ms;
    char work[512]; /* "": none */
    /* what was asked */
    uint64_t trips, gets, heads, lists, writes, bytes_read, flips;
    void (*before_create)(struct sim_io *s, const char *name); /* another's turn; NULL: none. Without the lock. */
    void *user;
};

struct store_out { struct sim_io *s; char *name; struct buf data; };

static inline struct sim_io *sim_of(struct store_io *io) { return (struct sim_io *)(void *)io; }

static inline struct sim_bucket *sim_bucket_new(void)
{
    struct sim_bucket *b = calloc(1, sizeof(*b));
    pthread_mutex_init(&b->lock, NULL);
    b->clock_ms = 1700000000000;
    return b;
}

static inline void sim_bucket_free(struct sim_bucket *b)
{
    for (size_t i = 0; i < b->n; i++) {
        free(b->objects[i].name);
        free(b->objects[i].data);
    }
    free(b->objects);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

/* ---- the bucket, its lock held ---- */

static inline size_t sim_at(const struct sim_bucket *b, const char *name)
{
    size_t lo = 0, hi = b->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (strcmp(b->objects[mid].name, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static inline struct sim_object *sim_find(const struct sim_bucket *b, const char *name)
{
    size_t i = sim_at(b, name);
    return i < b->n && !strcmp(b->objects[i].name, name) ? &b->objects[i] : NULL;
}

static inline void sim_store(struct sim_bucket *b, const char *name, const void *data, size_t len)
{
    struct sim_object *o = sim_find(b, name);
    if (!o) {
        size_t i = sim_at(b, name);
        if (b->n == b->cap) {
            b->cap = b->cap ? 2 * b->cap : 64;
            b->objects = realloc(b->objects, b->cap * sizeof(*b->objects));
        }
        memmove(&b->objects[i + 1], &b->objects[i], (b->n++ - i) * sizeof(*b->objects));
        o = &b->objects[i];
        *o = (struct sim_object){.name = strdup(name)};
    }
    free(o->data);
    o->data = malloc(len + 1);
    memcpy(o->data, data, len);
    o->len = len;
    o->mtime_ms = b->clock_ms;
}

static inline bool sim_drop(struct sim_bucket *b, const char *name)
{
    struct sim_object *o = sim_find(b, name);
    if (!o)
        return false;
    free(o->name);
    free(o->data);
    memmove(o, o + 1, (size_t)(&b->objects[--b->n] - o) * sizeof(*o));
    return true;
}

/* ---- chance ---- */

static inline uint64_t sim_rng(struct sim_io *s)
{
    uint64_t z = (s->rng += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline bool sim_chance(struct sim_io *s, unsigned of_10000) { return of_10000 && sim_rng(s) % 10000 < of_10000; }

/* One trip begins; false: it fails. The lock is held. */
static inline bool sim_trip(struct sim_io *s)
{
    s->trips++;
    s->b->clock_ms += s->trip_ms + 1;
    return !sim_chance(s, s->faults.fail);
}

static inline int sim_fail(struct sim_io *s, const char *what, struct larder_error *err)
{
    bool late = sim_rng(s) & 1;
    return err_set(err, late ? LARDER_ETIMEOUT : LARDER_EREMOTE, "s3://sim: %s %s (made to fail)", what, late ? "timed out" : "was refused");
}

/* ---- the table ---- */

static int sim_read_range(struct sim_io *s, const struct store_range *r, struct larder_error *err)
{
    struct sim_object *o = sim_find(s->b, r->name);
    s->gets++;
    if (!o)
        return err_set(err, LARDER_ENOTFOUND, "s3://sim/%s: not there", r->name);
    if (r->offset > o->len || r->len > o->len - r->offset || sim_chance(s, s->faults.cut))
        return err_set(err, LARDER_ECORRUPT, "s3://sim/%s: ends before %zu bytes at %llu", r->name, r->len, (unsigned long long)r->offset);
    if (r->len)
        memcpy(r->buf, o->data + r->offset, r->len);
    s->bytes_read += r->len;
    if (r->len && sim_chance(s, s->faults.flip)) {
        ((uint8_t *)r->buf)[sim_rng(s) % r->len] ^= (uint8_t)(1u << sim_rng(s) % 8);
        s->flips++;
    }
    return LARDER_OK;
}

static int sim_read_ranges(struct store_io *io, const struct store_range *r, size_t n, struct larder_error *err)
{
    struct sim_io *s = sim_of(io);
    pthread_mutex_lock(&s->b->lock);
    int rc = sim_trip(s) ? LARDER_OK : sim_fail(s, "GET", err);
    for (size_t i = 0; !rc && i < n; i++)
        rc = sim_read_range(s, &r[i], err);
    pthread_mutex_unlock(&s->b->lock);
    return rc;
}

static int sim_read_one(struct sim_io *s, struct store_whole *w, struct larder_error *err)
{
    struct sim_object *o = sim_find(s->b, w->name);
    w->rc = o ? LARDER_OK : LARDER_ENOTFOUND;
    s->gets++;
    if (!o)
        return LARDER_OK;
    if (o->len > w->max)
        return w->rc = err_set(err, LARDER_ECORRUPT, "s3://sim/%s: %zu bytes are too many", w->name, o->len);
    if ((w->rc = buf_reserve(w->out, o->len, err)))
        return w->rc;
    struct store_range r = {w->name, 0, w->out->data + w->out->len, o->len};
    if (!(w->rc = sim_read_range(s, &r, err)))
        w->out->len += o->len;
    return w->rc;
}

static int sim_read_whole(struct store_io *io, struct store_whole *w, size_t n, struct larder_error *err)
{
    struct sim_io *s = sim_of(io);
    pthread_mutex_lock(&s->b->lock);
    int rc = sim_trip(s) ? LARDER_OK : sim_fail(s, "GET", err);
    for (size_t i = 0; !rc && i < n; i++)
        rc = sim_read_one(s, &w[i], err);
    pthread_mutex_unlock(&s->b->lock);
    return rc;
}

static int sim_stat(struct store_io *io, const char *name, uint64_t *size, uint64_t *mtime_s, struct larder_error *err)
{
    struct sim_io *s = sim_of(io);
    pthread_mutex_lock(&s->b->lock);
    s->heads++;
    struct sim_object *o = sim_find(s->b, name);
    int rc = !sim_trip(s) ? sim_fail(s, "HEAD", err) : o ? LARDER_OK : err_set(err, LARDER_ENOTFOUND, "s3://sim/%s: not there", name);
    if (!rc) {
        *size = o->len;
        *mtime_s = o->mtime_ms / 1000;
    }
    pthread_mutex_unlock(&s->b->lock);
    return rc;
}

/* A write of any kind. */
static int sim_write(struct sim_io *s, const char *name, const void *data, size_t len, bool exclusive, struct larder_error *err)
{
    pthread_mutex_lock(&s->b->lock);
    s->writes++;
    int rc = sim_trip(s) ? LARDER_OK : sim_fail(s, "PUT", err);
    if (!rc && exclusive && sim_find(s->b, name))
        rc = err_set(err, LARDER_EEXIST, "s3://sim/%s: it is there already", name);
    if (!rc) {
        sim_store(s->b, name, data, len);
        if (sim_chance(s, s->faults.lost))
            rc = err_set(err, LARDER_EREMOTE, "s3://sim/%s: the answer to PUT was lost", name);
    }
    pthread_mutex_unlock(&s->b->lock);
    return rc;
}

static int sim_put(struct store_io *io, const char *name, const void *data, size_t len, struct larder_error *err)
{
    return sim_write(sim_of(io), name, data, len, false, err);
}

static int sim_create(struct store_io *io, const char *name, const void *data, size_t len, struct larder_error *err)
{
    struct sim_io *s = sim_of(io);
    if (s->before_create)
        s->before_create(s, name);
    return sim_write(s, name, data, len, true, err);
}

struct sim_listed { char *name; uint64_t size, mtime_s; };

/* One page of names behind `after`. How many, or a negative code. */
static int sim_list_page(struct sim_io *s, const char *prefix, const char *after, struct sim_listed page[SIM_PAGE], struct larder_error *err)
{
    pthread_mutex_lock(&s->b->lock);
    s->lists++;
    int n = sim_trip(s) ? 0 : sim_fail(s, "LIST", err);
    for (size_t i = n ? s->b->n : sim_at(s->b, after); i < s->b->n && n < SIM_PAGE; i++) {
        const struct sim_object *o = &s->b->objects[i];
        if (strcmp(o->name, after) > 0 && !strncmp(o->name, prefix, strlen(prefix)))
            page[n++] = (struct sim_listed){strdup(o->name), o->len, o->mtime_ms / 1000};
    }
    pthread_mutex_unlock(&s->b->lock);
    return n;
}

static int sim_list(struct store_io *io, const char *prefix, store_list_fn *fn, void *user, struct larder_error *err)
{
    struct sim_listed page[SIM_PAGE];
    char below[600], after[600] = "";
    snprintf(below, sizeof(below), "%s%s", prefix, *prefix ? "/" : "");
    int rc = LARDER_OK, n;
    do {
        n = sim_list_page(sim_of(io), below, after, page, err);
        for (int i = 0; i < n; i++) {
            rc = rc ? rc : fn(user, page[i].name, page[i].size, page[i].mtime_s);
            snprintf(after, sizeof(after), "%s", page[i].name);
            free(page[i].name);
        }
    } while (!rc && n == SIM_PAGE);
    return n < 0 ? n : rc;
}

static int sim_remove(struct store_io *io, const char *name, struct larder_error *err)
{
    struct sim_io *s = sim_of(io);
    pthread_mutex_lock(&s->b->lock);
    int rc = !sim_trip(s) ? sim_fail(s, "DELETE", err) : LARDER_OK;
    if (!rc)
        sim_drop(s->b, name); /* S3 answers the same whether it was there */
    if (!rc && sim_chance(s, s->faults.lost))
        rc = err_set(err, LARDER_EREMOTE, "s3://sim/%s: the answer to DELETE was lost", name);
    pthread_mutex_unlock(&s->b->lock);
    return rc;
}

static int sim_begin(struct store_io *io, const char *name, struct store_out **out, struct larder_error *err)
{
    struct sim_io *s = sim_of(io);
    *out = NULL;
    pthread_mutex_lock(&s->b->lock);
    bool fail = sim_chance(s, s->faults.fail);
    s->b->unfinished += !fail;
    pthread_mutex_unlock(&s->b->lock);
    if (fail)
        return err_set(err, LARDER_EREMOTE, "s3://sim/%s: an upload cannot begin (made to fail)", name);
    *out = calloc(1, sizeof(**out));
    (*out)->s = s;
    (*out)->name = strdup(name);
    return LARDER_OK;
}

static int sim_out_write(struct store_out *out, const void *data, size_t len, struct larder_error *err)
{
    return buf_append(&out->data, data, len, err);
}

static void sim_out_abort(struct store_out *out)
{
    if (!out)
        return;
    pthread_mutex_lock(&out->s->b->lock);
    out->s->b->unfinished--;
    pthread_mutex_unlock(&out->s->b->lock);
    buf_release(&out->data);
    free(out->name);
    free(out);
}

static int sim_out_finish(struct store_out *out, struct larder_error *err)
{
    int rc = sim_write(out->s, out->name, out->data.len ? out->data.data : (const uint8_t *)"", out->data.len, false, err);
    sim_out_abort(out);
    return rc;
}

static int sim_sync(struct store_io *io, const char *dir, struct larder_error *err)
{
    (void)io, (void)dir, (void)err;
    return LARDER_OK;
}

static const char *sim_where(struct store_io *io) { (void)io; return "s3://sim/data"; }

static const char *sim_work_root(struct store_io *io, struct larder_error *err)
{
    struct sim_io *s = sim_of(io);
    if (s->work[0] && (mkdir(s->work, 0777) == 0 || errno == EEXIST))
        return s->work;
    err_set(err, LARDER_EIO, "s3://sim/data: no scratch folder");
    return NULL;
}

static int sim_drop_unfinished(struct store_io *io, uint64_t min_age_s, uint64_t *n, struct larder_error *err)
{
    (void)min_age_s, (void)err;
    struct sim_io *s = sim_of(io);
    pthread_mutex_lock(&s->b->lock);
    *n = s->b->unfinished;
    pthread_mutex_unlock(&s->b->lock);
    return LARDER_OK;
}

static void sim_close(struct store_io *io) { free(io); }

static const struct store_io_ops sim_ops = {
    .read_ranges = sim_read_ranges, .read_whole = sim_read_whole, .stat = sim_stat, .put = sim_put, .create_exclusive = sim_create,
    .list = sim_list, .remove = sim_remove, .begin = sim_begin, .write = sim_out_write, .finish = sim_out_finish, .abort = sim_out_abort,
    .sync = sim_sync, .where = sim_where, .work_root = sim_work_root, .drop_unfinished = sim_drop_unfinished, .close = sim_close,
};

struct sim_upload { struct sim_bucket *b; struct store_io *from; };

static inline int sim_upload_one(void *user, const char *name, uint64_t size, uint64_t mtime_s)
{
    struct sim_upload *u = user;
    AUTO_FREE uint8_t *data = malloc(size + 1);
    (void)mtime_s;
    int rc = io_read(u->from, name, 0, data, size, NULL);
    if (!rc)
        sim_store(u->b, name, data, size);
    return rc;
}

/* Puts the files of a folder into the bucket. False: they cannot be read. */
static inline bool sim_upload(struct sim_bucket *b, const char *dir)
{
    struct sim_upload u = {.b = b};
    if (io_file_open(dir, false, 0, &u.from, NULL))
        return false;
    int rc = u.from->ops->list(u.from, "", sim_upload_one, &u, NULL);
    io_close(u.from);
    return rc == 0;
}

/* A client without faults; closed with io_close. work: its scratch folder, made at first use; NULL: none. */
static inline struct sim_io *sim_open(struct sim_bucket *b, uint64_t seed, const char *work)
{
    struct sim_io *s = calloc(1, sizeof(*s));
    s->io = (struct store_io){&sim_ops, 8, 0};
    s->b = b;
    s->rng = seed;
    snprintf(s->work, sizeof(s->work), "%s", work ? work : "");
    return s;
}

#endif
