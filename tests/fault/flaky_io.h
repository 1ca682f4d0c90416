/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flaky_io.h - a struct store_io around another one whose Nth operation fails with EIO and does nothing.
 *
 * What STYLE calls the I/O table: it fails the store's I/O at the operation, whatever is below. flaky_open wraps (and owns) inner;
 * flaky_arm(io, n) lets the nth operation from here on fail, 0 none; flaky_disarm says whether one did. With torn, a failing create,
 * put or finish has taken effect all the same, as a lost answer does.
 */
#ifndef FLAKY_IO_H
#define FLAKY_IO_H

#include <stdatomic.h>

#include "store/base/base.h"

struct flaky {
    struct store_io io;
    struct store_io *inner;
    atomic_long left;
    atomic_bool hit;
    bool torn;
};

struct flaky_out { struct flaky *f; struct store_out *out; };

static inline struct flaky *flaky_of(struct store_io *io) { return (struct flaky *)(void *)io; }

static inline void flaky_arm(struct store_io *io, long nth, bool torn)
{
    atomic_store(&flaky_of(io)->hit, false);
    atomic_store(&flaky_of(io)->left, nth);
    flaky_of(io)->torn = torn;
}

/* Ends the arming; true when an operation failed. */
static inline bool flaky_disarm(struct store_io *io)
{
    atomic_store(&flaky_of(io)->left, 0);
    return atomic_load(&flaky_of(io)->hit);
}

static inline bool flaky_now(struct flaky *f)
{
    if (atomic_load(&f->left) <= 0 || atomic_fetch_sub(&f->left, 1) != 1)
        return false;
    atomic_store(&f->hit, true);
    return true;
}

static inline int flaky_fail(struct larder_error *err, const char *what)
{
    return err_set(err, LARDER_EIO, "%s: made to fail", what);
}

static int flaky_read_ranges(struct store_io *io, const struct store_range *ranges, size_t n, struct larder_error *err)
{
    struct flaky *f = flaky_of(io);
    return flaky_now(f) ? flaky_fail(err, "read") : f->inner->ops->read_ranges(f->inner, ranges, n, err);
}

static int flaky_stat(struct store_io *io, const char *name, uint64_t *size, uint64_t *mtime_s, struct larder_error *err)
{
    struct flaky *f = flaky_of(io);
    return flaky_now(f) ? flaky_fail(err, "stat") : f->inner->ops->stat(f->inner, name, size, mtime_s, err);
}

static int flaky_put(struct store_io *io, const char *name, const void *data, size_t len, struct larder_error *err)
{
    struct flaky *f = flaky_of(io);
    bool fail = flaky_now(f);
    int rc = fail && !f->torn ? 0 : f->inner->ops->put(f->inner, name, data, len, err);
    return fail ? flaky_fail(err, "put") : rc;
}

static int flaky_create(struct store_io *io, const char *name, const void *data, size_t len, struct larder_error *err)
{
    struct flaky *f = flaky_of(io);
    bool fail = flaky_now(f);
    int rc = fail && !f->torn ? 0 : f->inner->ops->create_exclusive(f->inner, name, data, len, err);
    return fail ? flaky_fail(err, "create") : rc;
}

static int flaky_list(struct store_io *io, const char *prefix, store_list_fn *fn, void *user, struct larder_error *err)
{
    struct flaky *f = flaky_of(io);
    return flaky_now(f) ? flaky_fail(err, "list") : f->inner->ops->list(f->inner, prefix, fn, user, err);
}

static int flaky_remove(struct store_io *io, const char *name, struct larder_error *err)
{
    struct flaky *f = flaky_of(io);
    return flaky_now(f) ? flaky_fail(err, "remove") : f->inner->ops->remove(f->inner, name, err);
}

static int flaky_begin(struct store_io *io, const char *name, struct store_out **out, struct larder_error *err)
{
    struct flaky *f = flaky_of(io);
    struct store_out *inner;
    struct flaky_out *o;
    *out = NULL;
    if (flaky_now(f))
        return flaky_fail(err, "begin");
    int rc = f->inner->ops->begin(f->inner, name, &inner, err);
    if (rc)
        return rc;
    if (!(o = malloc(sizeof *o))) {
        f->inner->ops->abort(inner);
        return err_nomem(err, sizeof *o, "flaky");
    }
    *o = (struct flaky_out){f, inner};
    *out = (struct store_out *)o;
    return LARDER_OK;
}

static int flaky_write(struct store_out *out, const void *data, size_t len, struct larder_error *err)
{
    struct flaky_out *o = (struct flaky_out *)(void *)out;
    return flaky_now(o->f) ? flaky_fail(err, "write") : o->f->inner->ops->write(o->out, data, len, err);
}

static int flaky_finish(struct store_out *out, struct larder_error *err)
{
    struct flaky_out *o = (struct flaky_out *)(void *)out;
    bool fail = flaky_now(o->f);
    int rc = 0;
    if (fail && !o->f->torn)
        o->f->inner->ops->abort(o->out);
    else
        rc = o->f->inner->ops->finish(o->out, err);
    free(o);
    return fail ? flaky_fail(err, "finish") : rc;
}

static void flaky_abort(struct store_out *out)
{
    struct flaky_out *o = (struct flaky_out *)(void *)out;
    if (!o)
        return;
    o->f->inner->ops->abort(o->out);
    free(o);
}

static int flaky_sync(struct store_io *io, const char *dir, struct larder_error *err)
{
    struct flaky *f = flaky_of(io);
    return flaky_now(f) ? flaky_fail(err, "sync") : f->inner->ops->sync(f->inner, dir, err);
}

static const char *flaky_root(struct store_io *io) { return flaky_of(io)->inner->ops->local_root(flaky_of(io)->inner); }

static void flaky_close(struct store_io *io)
{
    io_close(flaky_of(io)->inner);
    free(io);
}

static const struct store_io_ops flaky_ops = {
    .read_ranges = flaky_read_ranges, .stat = flaky_stat, .put = flaky_put, .create_exclusive = flaky_create, .list = flaky_list,
    .remove = flaky_remove, .begin = flaky_begin, .write = flaky_write, .finish = flaky_finish, .abort = flaky_abort,
    .sync = flaky_sync, .local_root = flaky_root, .close = flaky_close,
};

static inline struct store_io *flaky_open(struct store_io *inner)
{
    struct flaky *f = calloc(1, sizeof *f);
    f->io.ops = &flaky_ops;
    f->inner = inner;
    return &f->io;
}

#endif
