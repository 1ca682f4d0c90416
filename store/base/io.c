/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io.c - what the store asks of any struct store_io, local or not: whole objects, and bytes that pass a check.
 *
 * The store believes no byte before its CRC held. What came over a network may have been damaged on its way, so that a failed
 * check is worth another look: io_read_checked and io_read_all_checked read again what failed, and only that, io_tries(io) times
 * in all. Over a directory that is once, and a failed check is damage.
 *
 * An io without read_whole has its objects read by stat and read_ranges. One size before and after: what was read is all of one
 * object; else it was replaced under us, and the new one is read.
 *
 * Any thread; nothing here has state.
 */
#include <inttypes.h>

#include "store/base/base_int.h"

int io_read(struct store_io *io, const char *name, uint64_t offset, void *buf, size_t len, struct larder_error *err)
{
    struct store_range r = {name, offset, buf, len};

    return io->ops->read_ranges(io, &r, 1, err);
}

/* ---- whole objects ---- */

/* Appends an object by its size. */
static int read_by_size(struct store_io *io, const char *name, size_t max, struct buf *out, struct larder_error *err)
{
    uint64_t size = 0, after = 0, mtime_s;
    int rc = io->ops->stat(io, name, &size, &mtime_s, err);

    for (int tries = 0; rc == LARDER_OK; tries++, size = after) {
        if (size > max)
            return err_set(err, LARDER_ECORRUPT, "%s: %" PRIu64 " bytes, no more than %zu are expected", name, size, max);
        rc = buf_reserve(out, (size_t)size, err);
        if (rc)
            return rc;
        struct larder_error read_err = {0};
        int read_rc = size ? io_read(io, name, 0, out->data + out->len, (size_t)size, &read_err) : LARDER_OK;
        rc = io->ops->stat(io, name, &after, &mtime_s, err);
        if (rc == LARDER_OK && (after == size || tries == 8)) {
            if (read_rc == LARDER_OK && after == size)
                out->len += (size_t)size;
            else if (read_rc == LARDER_OK)
                return err_set(err, LARDER_EBUSY, "%s: it changes while it is read", name);
            else if (err)
                *err = read_err;
            return read_rc;
        }
    }
    return rc;
}

int io_read_whole(struct store_io *io, struct store_whole *objects, size_t n, struct larder_error *err)
{
    int rc = LARDER_OK;

    if (io->ops->read_whole)
        return io->ops->read_whole(io, objects, n, err);
    for (size_t i = 0; i < n && rc == LARDER_OK; i++) {
        struct larder_error why;
        rc = objects[i].rc = read_by_size(io, objects[i].name, objects[i].max, objects[i].out, &why);
        if (rc == LARDER_ENOTFOUND)
            rc = LARDER_OK;
        else if (rc && err)
            *err = why;
    }
    return rc;
}

int io_read_all(struct store_io *io, const char *name, size_t max, struct buf *out, struct larder_error *err)
{
    struct store_whole w = {name, max, out, LARDER_OK};

    if (!io->ops->read_whole)
        return read_by_size(io, name, max, out, err);
    int rc = io->ops->read_whole(io, &w, 1, err);
    return rc == LARDER_OK && w.rc ? err_set(err, w.rc, "%s/%s: it is not there", io_where(io), name) : rc;
}

/* ---- checked reads ---- */

bool io_again(struct store_io *io, unsigned try)
{
    return try + 1 < io_tries(io) && (!io->ops->damaged || io->ops->damaged(io));
}

/* Checks what was read and moves the ranges that fail to the front; how many those are. Another failure than ECORRUPT is *rc. */
static size_t keep_bad(struct store_range *todo, uint16_t *which, size_t n, io_check_fn *check, void *user, int *rc,
                       struct larder_error *err)
{
    size_t bad = 0;

    *rc = LARDER_OK;
    for (size_t i = 0; i < n; i++) {
        struct larder_error why = {0};
        int got = check(user, which[i], &why);
        if (got && (*rc == LARDER_OK || got != LARDER_ECORRUPT)) {
            *rc = got;
            *err = why;
        }
        if (got && got != LARDER_ECORRUPT)
            return n;
        if (got) {
            todo[bad] = todo[i];
            which[bad++] = which[i];
        }
    }
    return bad;
}

int io_read_checked(struct store_io *io, const struct store_range *ranges, size_t n, io_check_fn *check, void *user,
                    struct larder_error *err)
{
    struct store_range todo[IO_CHECKED_MAX];
    uint16_t which[IO_CHECKED_MAX]; /* of the caller's ranges */
    struct larder_error why = {0};
    int rc = LARDER_OK;

    if (n > IO_CHECKED_MAX)
        return err_set(err, LARDER_EINVAL, "%zu ranges in one call", n);
    for (size_t i = 0; i < n; i++) {
        todo[i] = ranges[i];
        which[i] = (uint16_t)i;
    }
    for (unsigned try = 0; n > 0; try++) {
        rc = io->ops->read_ranges(io, todo, n, &why); /* ECORRUPT: an object ended early, which may be the way's fault too */
        if (rc == LARDER_OK)
            n = keep_bad(todo, which, n, check, user, &rc, &why);
        if (rc != LARDER_ECORRUPT || !io_again(io, try))
            break;
    }
    if (rc && err)
        *err = why;
    return rc;
}

int io_read_all_checked(struct store_io *io, const char *name, size_t max, struct buf *out, io_check_fn *check, void *user,
                        struct larder_error *err)
{
    int rc;

    for (unsigned try = 0;; try++) {
        out->len = 0;
        rc = io_read_all(io, name, max, out, err);
        if (rc == LARDER_OK)
            rc = check(user, 0, err);
        if (rc != LARDER_ECORRUPT || !io_again(io, try))
            return rc;
    }
}

/* ---- places ---- */

const char *io_where(struct store_io *io)
{
    const char *where = io->ops->where ? io->ops->where(io) : NULL;
    if (!where && io->ops->local_root)
        where = io->ops->local_root(io);
    return where ? where : "the dataset";
}

const char *io_work_root(struct store_io *io, struct larder_error *err)
{
    if (io->ops->work_root)
        return io->ops->work_root(io, err);
    const char *root = io->ops->local_root ? io->ops->local_root(io) : NULL;
    if (!root)
        err_set(err, LARDER_EINVAL, "%s: this needs a folder on a local disk, and there is none", io_where(io));
    return root;
}
