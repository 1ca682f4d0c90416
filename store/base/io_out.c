/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_out.c - writing objects of struct store_io over a directory. An object is invisible until it is complete and durable.
 *
 *   begin ---> write ... ---> finish:  fsync, then the name appears (EEXIST if it is taken)
 *                       \---> abort:   nothing is left
 *
 * An O_TMPFILE file has no name until linkat gives it one, so that nothing is left behind even by kill -9. File systems
 * without it get ".tmp-<random>" beside the target; of a killed process that stays, and gc removes it. put() replaces, which
 * linkat cannot, so it always takes a named one and renames.
 *
 * Small writes gather in a buffer; large ones go to the kernel from the caller's memory, together with what is buffered, in one
 * call that ends at a page boundary. Every WRITEBACK bytes the kernel is told to begin writing to the device
 * (sync_file_range), so that little is left for the fsync in finish. That call reports a device error and
 * clears it, so its failures count like those of fsync.
 *
 * The first failure sticks: later writes and finish return it. A finished name is durable after sync() of its folder.
 *
 * A store_out belongs to one thread at a time; different ones are independent.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "store/base/base_int.h"

#define BUFFER ((size_t)256 << 10)
#define DIRECT_MIN ((size_t)64 << 10) /* writes from here on skip the buffer */
#define PAGE ((size_t)4096)
#define WRITEBACK ((uint64_t)8 << 20)

enum { PARENT_TRIES = 100 }; /* another thread can remove a folder, being empty, between our making and using it */

struct store_out {
    struct io_file *f;
    char *name;
    char *temp;       /* its name until finish; NULL: it has none */
    int fd;
    uint8_t *memory, *buffer; /* buffer: page-aligned in memory; NULL before the first small write */
    size_t fill;
    uint64_t written; /* handed to the kernel */
    uint64_t started; /* of these, write-back has begun */
    struct larder_error failed; /* code 0: none yet */
};

/* ---- temporary files ---- */

/* "parent/.tmp-<16 hex digits>" for name; malloc'd. */
static int temp_name(const char *name, char **temp, struct larder_error *err)
{
    uint8_t random[8];
    char hex[17];
    size_t dir = io_parent_len(name), size = dir + 1 + 5 + 16 + 1;
    int rc = random_bytes(random, sizeof(random), err);

    if (rc)
        return rc;
    hex_encode(random, sizeof(random), hex);
    *temp = malloc(size);
    if (!*temp)
        return err_nomem(err, size, "name");
    snprintf(*temp, size, "%.*s%s.tmp-%s", (int)dir, name, dir ? "/" : "", hex);
    return LARDER_OK;
}

static bool no_tmpfile(int sys_errno)
{
    return sys_errno == EOPNOTSUPP || sys_errno == EISDIR || sys_errno == EINVAL || sys_errno == ENOSYS;
}

/* One try: a file without a name, or with one where that is wanted or all there is. 0 or an errno; o->fd, o->temp. */
static int open_temp(struct store_out *o, const char *dir, const char *temp, bool named)
{
    if (!named) {
        o->fd = io_file_openat(o->f, dir, O_TMPFILE | O_WRONLY, 0666);
        if (o->fd >= 0)
            return 0;
        if (!no_tmpfile(errno))
            return errno;
    }
    o->fd = io_file_openat(o->f, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    if (o->fd < 0)
        return errno;
    o->temp = strdup(temp);
    if (o->temp)
        return 0;
    unlinkat(o->f->root, temp, 0);
    return ENOMEM;
}

/* What an operation on a name in a folder that is gone can fail with: ext4 has EPERM for O_TMPFILE in one just removed. */
static bool folder_gone(int sys_errno) { return sys_errno == ENOENT || sys_errno == EPERM; }

static int open_out(struct store_out *o, bool named, struct larder_error *err)
{
    AUTO_FREE char *temp = NULL;
    AUTO_FREE char *dir = strndup(o->name, io_parent_len(o->name));
    int rc = dir ? temp_name(o->name, &temp, err) : err_nomem(err, strlen(o->name), "name");

    for (int tries = 0; rc == LARDER_OK; tries++) {
        int failed = open_temp(o, dir, temp, named);
        if (failed == 0)
            return LARDER_OK;
        if (folder_gone(failed) && tries < PARENT_TRIES) {
            int made = io_file_make_parents(o->f, o->name);
            failed = made == 0 || made == ENOENT ? 0 : made;
        }
        if (failed)
            rc = io_failed(o->f->path, o->name, failed, "create it", err);
    }
    return rc;
}

static void out_free(struct store_out *o)
{
    if (!o)
        return;
    if (o->temp)
        unlinkat(o->f->root, o->temp, 0);
    guard_fd(&o->fd);
    free(o->temp);
    free(o->memory);
    free(o->name);
    free(o);
}

static int out_new(struct io_file *f, const char *name, bool named, struct store_out **out, struct larder_error *err)
{
    int rc = io_name_check(name, err);
    if (rc)
        return rc;
    struct store_out *o = calloc(1, sizeof(*o));
    if (!o)
        return err_nomem(err, sizeof(*o), name);
    o->f = f;
    o->fd = -1;
    o->name = strdup(name);
    rc = o->name ? open_out(o, named || f->named_only, err) : err_nomem(err, strlen(name) + 1, "name");
    if (rc) {
        out_free(o);
        return rc;
    }
    *out = o;
    return LARDER_OK;
}

/* ---- writing ---- */

static int fail(struct store_out *o, int sys_errno, const char *verb)
{
    return io_failed(o->f->path, o->name, sys_errno, verb, &o->failed);
}

static int start_writeback(struct store_out *o)
{
    uint64_t len = o->written - o->started;

    if (len < WRITEBACK)
        return LARDER_OK;
    /* What cannot do this (a pipe-like or remote file) does all of it in fsync. */
    if (sync_file_range(o->fd, (off_t)o->started, (off_t)len, SYNC_FILE_RANGE_WRITE) != 0 &&
        (errno == EIO || errno == ENOSPC || errno == EDQUOT))
        return fail(o, errno, "write");
    o->started = o->written;
    return LARDER_OK;
}

/* Hands the buffer and then len bytes of data to the kernel; empties the buffer. */
static int write_through(struct store_out *o, const void *data, size_t len)
{
    struct iovec v[2] = {{o->buffer, o->fill}, {(void *)data, len}}; /* iovec lacks const; it is only read */
    struct iovec *at = v[0].iov_len ? v : v + 1;

    while (at < v + 2 && at->iov_len > 0) {
        ssize_t n = pwritev(o->fd, at, (int)(v + 2 - at), (off_t)o->written);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail(o, n < 0 ? errno : EIO, "write");
        o->written += (uint64_t)n;
        while (at < v + 2 && (size_t)n >= at->iov_len)
            n -= (ssize_t)at++->iov_len;
        if (at < v + 2) {
            at->iov_base = (uint8_t *)at->iov_base + n;
            at->iov_len -= (size_t)n;
        }
    }
    o->fill = 0;
    return start_writeback(o);
}

static int need_buffer(struct store_out *o)
{
    if (o->buffer)
        return LARDER_OK;
    o->memory = malloc(BUFFER + PAGE);
    if (!o->memory)
        return err_nomem(&o->failed, BUFFER + PAGE, o->name);
    o->buffer = o->memory + (PAGE - (uintptr_t)o->memory % PAGE);
    return LARDER_OK;
}

static int put_bytes(struct store_out *o, const uint8_t *data, size_t len)
{
    int rc = LARDER_OK;

    while (len > 0 && rc == LARDER_OK) {
        size_t n;
        if (len >= DIRECT_MIN) {
            n = (size_t)round_down(o->fill + len, PAGE) - o->fill;
            rc = write_through(o, data, n);
        } else {
            rc = need_buffer(o);
            if (rc)
                break;
            n = MIN(len, BUFFER - o->fill);
            memcpy(o->buffer + o->fill, data, n);
            o->fill += n;
            if (o->fill == BUFFER)
                rc = write_through(o, NULL, 0);
        }
        data += n;
        len -= n;
    }
    return rc;
}

int io_out_begin(struct store_io *io, const char *name, struct store_out **out, struct larder_error *err)
{
    *out = NULL;
    return out_new((struct io_file *)io, name, false, out, err);
}

int io_out_write(struct store_out *out, const void *data, size_t len, struct larder_error *err)
{
    int rc = out->failed.code ? out->failed.code : put_bytes(out, data, len);

    if (rc && err)
        *err = out->failed;
    return rc;
}

/* ---- finishing ---- */

/* All written bytes are on the device. */
static int settle(struct store_out *o)
{
    if (o->failed.code)
        return o->failed.code;
    int rc = o->fill ? write_through(o, NULL, 0) : LARDER_OK;
    while (rc == LARDER_OK && fsync(o->fd) != 0)
        if (errno != EINTR)
            rc = fail(o, errno, "sync");
    return rc;
}

/* Gives a nameless file its name. 0 or an errno. */
static int link_nameless(struct store_out *o)
{
    char proc[64];

    snprintf(proc, sizeof(proc), "/proc/self/fd/%d", o->fd);
    if (linkat(AT_FDCWD, proc, o->f->root, o->name, AT_SYMLINK_FOLLOW) == 0)
        return 0;
    int first = errno;
    if (first != ENOENT || access(proc, F_OK) == 0)
        return first;
    return linkat(o->fd, "", o->f->root, o->name, AT_EMPTY_PATH) == 0 ? 0 : errno; /* no /proc: wants a privilege */
}

/* Gives a file named o->temp its final name, unless that is taken. 0 or an errno. */
static int link_named(struct store_out *o)
{
    int root = o->f->root;

    if (renameat2(root, o->temp, root, o->name, RENAME_NOREPLACE) == 0) {
        free(o->temp);
        o->temp = NULL;
        return 0;
    }
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        return errno;
    return linkat(root, o->temp, root, o->name, 0) == 0 ? 0 : errno; /* out_free removes the other name */
}

static int publish(struct store_out *o)
{
    for (int tries = 0;; tries++) {
        int failed = o->temp ? link_named(o) : link_nameless(o);
        if (failed == 0)
            return LARDER_OK;
        if (failed == EEXIST)
            return err_set(&o->failed, LARDER_EEXIST, "%s/%s: it is there already", o->f->path, o->name);
        if (failed == ENOENT && tries < PARENT_TRIES) {
            int made = io_file_make_parents(o->f, o->name);
            failed = made == 0 || made == ENOENT ? 0 : made;
        }
        if (failed)
            return fail(o, failed, "name the finished file");
    }
}

/* Frees o, and passes on its error. */
static int done(struct store_out *o, int rc, struct larder_error *err)
{
    if (rc && err)
        *err = o->failed;
    out_free(o);
    return rc;
}

int io_out_finish(struct store_out *out, struct larder_error *err)
{
    int rc = settle(out);

    if (rc == LARDER_OK)
        rc = publish(out);
    return done(out, rc, err);
}

void io_out_abort(struct store_out *out) { out_free(out); }

int io_out_create_exclusive(struct store_io *io, const char *name, const void *data, size_t len, struct larder_error *err)
{
    struct store_out *o;
    int rc = io_out_begin(io, name, &o, err);

    if (rc)
        return rc;
    put_bytes(o, data, len); /* its failure sticks */
    rc = io_out_finish(o, err);
    return rc ? rc : io_file_sync_dirs((struct io_file *)io, name, io_parent_len(name), err);
}

int io_out_put(struct store_io *io, const char *name, const void *data, size_t len, struct larder_error *err)
{
    struct io_file *f = (struct io_file *)io;
    struct store_out *o;
    int rc = out_new(f, name, true, &o, err);

    if (rc)
        return rc;
    put_bytes(o, data, len);
    rc = settle(o);
    if (rc == LARDER_OK && renameat(f->root, o->temp, f->root, name) != 0)
        rc = fail(o, errno, "name the finished file");
    if (rc == LARDER_OK) {
        free(o->temp);
        o->temp = NULL;
    }
    rc = done(o, rc, err);
    if (rc == LARDER_OK) {
        fd_cache_forget(f->cache, name);
        rc = io_file_sync_dirs(f, name, io_parent_len(name), err);
    }
    return rc;
}
