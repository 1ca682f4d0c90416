/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_file.c - struct store_io over a directory: opening, reading, listing, removing, syncing. Writing is in io_out.c.
 *
 * All names are resolved below a descriptor of the root folder, so that the store keeps to its folder when that is renamed or
 * the working directory changes. Names come from manifests, and those from strangers: io_name_check refuses whatever could
 * lead out ("..", absolute). Symbolic links that the owner of the folder made are followed when a name is opened, so that
 * shards/ may lie on another disk, but not by list().
 *
 * Files are opened for reading through fd_cache. What is written once and never changes may be read through a descriptor that
 * is open already; of what is replaced (the hint), stat() notices that the name is another file now, and io_read_all, which
 * begins with stat, never returns half of each.
 *
 * Durability: fsync of a file does not make its name durable. io_file_sync_dirs syncs a folder and all above it up to the root,
 * because any of them may be new.
 *
 * Threads: any; struct io_file does not change after opening, the cache locks itself.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/base_int.h"

enum { LIST_DEPTH_MAX = 64 };

static struct io_file *file_of(struct store_io *io) { return (struct io_file *)io; }

/* ---- names and errors ---- */

int io_name_check(const char *name, struct larder_error *err)
{
    if (!name || !*name)
        return err_set(err, LARDER_EINVAL, "an object's name is empty");
    if (strlen(name) >= PATH_MAX - 64)
        return err_set(err, LARDER_EINVAL, "%s: the name is too long", name);
    for (const char *part = name;; part++) {
        size_t len = strcspn(part, "/");
        if (len == 0 || (len == 1 && part[0] == '.') || (len == 2 && part[0] == '.' && part[1] == '.'))
            return err_set(err, LARDER_EINVAL, "%s: not a name within a dataset (absolute, or an empty, '.' or '..' part)",
                           name);
        part += len;
        if (!*part)
            return LARDER_OK;
    }
}

size_t io_parent_len(const char *name)
{
    const char *slash = strrchr(name, '/');

    return slash ? (size_t)(slash - name) : 0;
}

static const char *advice(int sys_errno)
{
    switch (sys_errno) {
    case EACCES:
    case EPERM:
        return " (give this user the right to it)";
    case EMFILE:
    case ENFILE:
        return " (raise the limit on open files, ulimit -n)";
    case ENOSPC:
    case EDQUOT:
        return " (make room on its file system)";
    case EROFS:
        return " (mount its file system for writing)";
    case EFBIG:
        return " (raise the limit on file sizes, ulimit -f)";
    case ENOTDIR:
        return " (a part of the path is not a folder)";
    default:
        return "";
    }
}

int io_failed(const char *root, const char *name, int sys_errno, const char *verb, struct larder_error *err)
{
    int code = sys_errno == ENOTDIR ? LARDER_ENOTFOUND : err_code_of(sys_errno);

    return err_sys(err, code, sys_errno, "%s%s%s: cannot %s%s", root, *name ? "/" : "", name, verb, advice(sys_errno));
}

int io_file_openat(struct io_file *f, const char *name, int flags, unsigned mode)
{
    for (;;) {
        int fd = openat(f->root, *name ? name : ".", flags | O_CLOEXEC, mode);
        if (fd >= 0 || (errno != EINTR && errno != EMFILE && errno != ENFILE))
            return fd;
        int saved = errno;
        if (saved != EINTR && fd_cache_shrink(f->cache) == 0) {
            errno = saved;
            return -1;
        }
    }
}

/* ---- folders ---- */

/* fsync of a folder; file systems that cannot are taken to need none. 0 or an errno. */
static int sync_dir_fd(int fd)
{
    while (fsync(fd) != 0) {
        if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP)
            return 0;
        if (errno != EINTR)
            return errno;
    }
    return 0;
}

int io_file_sync_dirs(struct io_file *f, const char *dir, size_t dir_len, struct larder_error *err)
{
    AUTO_FREE char *name = strndup(dir, dir_len);

    if (!name)
        return err_nomem(err, dir_len + 1, "name");
    for (;; name[io_parent_len(name)] = '\0') {
        AUTO_FD int fd = io_file_openat(f, name, O_RDONLY | O_DIRECTORY, 0);
        int rc = fd < 0 ? errno : sync_dir_fd(fd);
        if (rc)
            return io_failed(f->path, name, rc, "sync the folder", err);
        if (!*name)
            return LARDER_OK;
    }
}

int io_file_make_parents(struct io_file *f, const char *name)
{
    AUTO_FREE char *path = strdup(name);

    if (!path)
        return ENOMEM;
    for (char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdirat(f->root, path, 0777) != 0 && errno != EEXIST)
            return errno;
        *slash = '/';
    }
    return 0;
}

static int file_sync(struct store_io *io, const char *dir, struct larder_error *err)
{
    int rc = *dir ? io_name_check(dir, err) : LARDER_OK;

    return rc ? rc : io_file_sync_dirs(file_of(io), dir, strlen(dir), err);
}

/* ---- reading ---- */

static int ends_early(const struct store_range *r, int fd, struct larder_error *err)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        st.st_size = 0;
    return err_set(err, LARDER_ECORRUPT, "%s: %zu bytes at offset %" PRIu64 " wanted, file ends at %lld", r->name, r->len,
                   r->offset, (long long)st.st_size);
}

static int read_range(struct io_file *f, const struct store_range *r, int fd, struct larder_error *err)
{
    if (r->offset > INT64_MAX || r->len > INT64_MAX - r->offset)
        return ends_early(r, fd, err);
    ssize_t n = read_fully(fd, r->buf, r->len, r->offset);
    if (n < 0)
        return io_failed(f->path, r->name, errno, "read", err);
    return (size_t)n < r->len ? ends_early(r, fd, err) : LARDER_OK;
}

/* Asks the kernel for all ranges at once; the reads that follow then wait for them side by side. */
static int announce(struct io_file *f, const struct store_range *ranges, size_t n, struct larder_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct store_range *r = &ranges[i];
        struct fd_entry *e;
        int rc = io_name_check(r->name, err);
        if (rc == LARDER_OK)
            rc = fd_cache_get(f->cache, r->name, &e, err);
        if (rc)
            return rc;
        if (r->len > 0 && r->offset <= INT64_MAX && r->len <= INT64_MAX - r->offset)
            posix_fadvise(e->fd, (off_t)r->offset, (off_t)r->len, POSIX_FADV_WILLNEED);
        fd_cache_put(f->cache, e);
    }
    return LARDER_OK;
}

static int file_read_ranges(struct store_io *io, const struct store_range *ranges, size_t n, struct larder_error *err)
{
    struct io_file *f = file_of(io);
    int rc = n > 1 ? announce(f, ranges, n, err) : LARDER_OK;

    for (size_t i = 0; i < n && rc == LARDER_OK; i++) {
        struct fd_entry *e;
        rc = io_name_check(ranges[i].name, err);
        if (rc == LARDER_OK)
            rc = fd_cache_get(f->cache, ranges[i].name, &e, err);
        if (rc)
            return rc;
        rc = read_range(f, &ranges[i], e->fd, err);
        fd_cache_put(f->cache, e);
    }
    return rc;
}

static int file_stat(struct store_io *io, const char *name, uint64_t *size, uint64_t *mtime_s, struct larder_error *err)
{
    struct io_file *f = file_of(io);
    struct stat st;
    int rc = io_name_check(name, err);

    if (rc)
        return rc;
    if (fstatat(f->root, name, &st, 0) != 0) {
        fd_cache_forget(f->cache, name);
        return io_failed(f->path, name, errno, "look at it", err);
    }
    if (!S_ISREG(st.st_mode))
        return err_set(err, LARDER_ECORRUPT, "%s/%s: not a regular file", f->path, name);
    fd_cache_forget_other(f->cache, name, st.st_dev, st.st_ino);
    *size = (uint64_t)st.st_size;
    *mtime_s = st.st_mtime > 0 ? (uint64_t)st.st_mtime : 0;
    return LARDER_OK;
}

/* ---- listing ---- */

struct walk {
    struct io_file *f;
    store_list_fn *fn;
    void *user;
    unsigned depth;
    size_t len; /* of path */
    char path[PATH_MAX];
};

static int walk_dir(struct walk *w, DIR *dir, struct larder_error *err);

static int walk_into(struct walk *w, int parent, const char *name, struct larder_error *err)
{
    int fd;

    if (w->depth == LIST_DEPTH_MAX)
        return err_set(err, LARDER_ECORRUPT, "%s/%s: folders nested deeper than %d", w->f->path, w->path, LIST_DEPTH_MAX);
    do
        fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    while (fd < 0 && (errno == EINTR || ((errno == EMFILE || errno == ENFILE) && fd_cache_shrink(w->f->cache) > 0)));
    if (fd < 0 && errno == ENOENT)
        return LARDER_OK; /* removed meanwhile */
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        int saved = errno;
        guard_fd(&fd);
        return io_failed(w->f->path, w->path, saved, "list the folder", err);
    }
    w->depth++;
    int rc = walk_dir(w, dir, err);
    w->depth--;
    closedir(dir);
    return rc;
}

static int walk_one(struct walk *w, int parent, const char *name, struct larder_error *err)
{
    size_t before = w->len, len = strlen(name), slash = before > 0;
    struct stat st;
    int rc = LARDER_OK;

    if (before + slash + len >= sizeof(w->path))
        return err_set(err, LARDER_EIO, "%s/%s/%s: the path is too long", w->f->path, w->path, name);
    if (slash)
        w->path[w->len++] = '/';
    memcpy(w->path + w->len, name, len + 1);
    w->len += len;
    if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        rc = errno == ENOENT ? LARDER_OK : io_failed(w->f->path, w->path, errno, "look at it", err);
    else if (S_ISDIR(st.st_mode))
        rc = walk_into(w, parent, name, err);
    else if (S_ISREG(st.st_mode))
        rc = w->fn(w->user, w->path, (uint64_t)st.st_size, st.st_mtime > 0 ? (uint64_t)st.st_mtime : 0);
    w->len = before;
    w->path[before] = '\0';
    return rc;
}

static int walk_dir(struct walk *w, DIR *dir, struct larder_error *err)
{
    for (;;) {
        errno = 0;
        struct dirent *d = readdir(dir);
        if (!d && errno == 0)
            return LARDER_OK;
        if (!d)
            return io_failed(w->f->path, w->path, errno, "list the folder", err);
        if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
            continue;
        int rc = walk_one(w, dirfd(dir), d->d_name, err);
        if (rc)
            return rc;
    }
}

static int file_list(struct store_io *io, const char *prefix, store_list_fn *fn, void *user, struct larder_error *err)
{
    struct io_file *f = file_of(io);
    int rc = *prefix ? io_name_check(prefix, err) : LARDER_OK;
    if (rc)
        return rc;
    int fd = io_file_openat(f, prefix, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0 && errno == ENOENT)
        return LARDER_OK;
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        int saved = errno;
        guard_fd(&fd);
        return io_failed(f->path, prefix, saved, "list the folder", err);
    }
    struct walk *w = malloc(sizeof(*w));
    if (w) {
        *w = (struct walk){.f = f, .fn = fn, .user = user, .len = strlen(prefix)};
        memcpy(w->path, prefix, w->len + 1); /* io_name_check bounds it */
        rc = walk_dir(w, dir, err);
    } else {
        rc = err_nomem(err, sizeof(*w), "list");
    }
    free(w);
    closedir(dir);
    return rc;
}

/* ---- removing ---- */

static int file_remove(struct store_io *io, const char *name, struct larder_error *err)
{
    struct io_file *f = file_of(io);
    int rc = io_name_check(name, err);
    if (rc)
        return rc;
    AUTO_FREE char *dir = strdup(name);
    if (!dir)
        return err_nomem(err, strlen(name) + 1, "name");
    if (unlinkat(f->root, name, 0) != 0)
        return io_failed(f->path, name, errno, "remove it", err);
    fd_cache_forget(f->cache, name);

    do
        dir[io_parent_len(dir)] = '\0';
    while (*dir && unlinkat(f->root, dir, AT_REMOVEDIR) == 0);
    AUTO_FD int fd = io_file_openat(f, dir, O_RDONLY | O_DIRECTORY, 0);
    int failed = fd < 0 ? errno : sync_dir_fd(fd);
    if (failed && failed != ENOENT) /* ENOENT: another thread emptied and removed it */
        return io_failed(f->path, dir, failed, "sync the folder", err);
    return LARDER_OK;
}

/* ---- opening and closing ---- */

static const char *file_local_root(struct store_io *io) { return file_of(io)->path; }

static void file_close(struct store_io *io)
{
    struct io_file *f = file_of(io);

    fd_cache_free(f->cache);
    guard_fd(&f->root);
    free(f->path);
    free(f);
}

static const struct store_io_ops file_ops = {
    .read_ranges = file_read_ranges,
    .stat = file_stat,
    .put = io_out_put,
    .create_exclusive = io_out_create_exclusive,
    .list = file_list,
    .remove = file_remove,
    .begin = io_out_begin,
    .write = io_out_write,
    .finish = io_out_finish,
    .abort = io_out_abort,
    .sync = file_sync,
    .local_root = file_local_root,
    .close = file_close,
};

/* Syncs the folder that path lies in. A folder that may not be read cannot be synced: that is let pass. */
static int sync_parent(const char *path, struct larder_error *err)
{
    size_t len = io_parent_len(path);
    AUTO_FREE char *dir = strndup(len ? path : "/", len ? len : 1);

    if (!dir)
        return err_nomem(err, len + 1, "path");
    AUTO_FD int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 ? 0 : sync_dir_fd(fd);
    return rc ? io_failed(dir, "", rc, "sync the folder", err) : LARDER_OK;
}

/* mkdir -p of an absolute path; names are durable. */
static int make_root(const char *path, struct larder_error *err)
{
    AUTO_FREE char *p = strdup(path);

    if (!p)
        return err_nomem(err, strlen(path) + 1, "path");
    for (char *end = p; *end;) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        char saved = *end;
        *end = '\0';
        struct stat st;
        int sys_errno = mkdir(p, 0777) == 0 ? 0 : errno, rc = LARDER_OK;
        if (sys_errno == 0)
            rc = sync_parent(p, err);
        else if (sys_errno != EEXIST && stat(p, &st) != 0) /* EACCES, EROFS of a folder that is there are no matter */
            rc = io_failed(p, "", sys_errno, "make the folder", err);
        if (rc)
            return rc;
        *end = saved;
    }
    return LARDER_OK;
}

static int root_failed(const char *path, int sys_errno, struct larder_error *err)
{
    switch (sys_errno) {
    case ENOENT:
        return err_sys(err, LARDER_ENOTFOUND, ENOENT, "%s: no such folder, check the path", path);
    case ENOTDIR:
        return err_sys(err, LARDER_ENOTFOUND, ENOTDIR, "%s: not a folder, name the folder of a dataset", path);
    default:
        return io_failed(path, "", sys_errno, "open the folder", err);
    }
}

int io_file_open_flags(const char *path, unsigned flags, unsigned files_max, struct store_io **io, struct larder_error *err)
{
    struct io_file *f = calloc(1, sizeof(*f));

    if (!f)
        return err_nomem(err, sizeof(*f), "directory");
    f->io.ops = &file_ops;
    f->root = -1;
    f->named_only = flags & IO_FILE_NAMED_ONLY;
    int rc = uri_to_path(path, &f->path, err);
    if (rc == LARDER_OK) {
        f->root = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (f->root < 0 && errno == ENOENT && (flags & IO_FILE_CREATE)) {
            rc = make_root(f->path, err);
            if (rc == LARDER_OK)
                f->root = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        }
        if (rc == LARDER_OK && f->root < 0)
            rc = root_failed(f->path, errno, err);
    }
    if (rc == LARDER_OK)
        rc = fd_cache_new(f->root, f->path, files_max, &f->cache, err);
    if (rc) {
        file_close(&f->io);
        return rc;
    }
    *io = &f->io;
    return LARDER_OK;
}

int io_file_open(const char *path, bool create, unsigned files_max, struct store_io **io, struct larder_error *err)
{
    *io = NULL;
    return io_file_open_flags(path, create ? IO_FILE_CREATE : 0, files_max, io, err);
}
