/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_copies.c - copies of a bucket's index files on this machine, shared by its processes within a byte limit.
 *
 *     WORK/copies/lock            flock while the folder is changed: never across a transfer
 *     WORK/copies/<part>.<file>   whole copies, named by what never changes its content
 *     WORK/copies/.tmp-<random>   on their way; flock held by who brings them
 *     WORK/copies/use-<random>/   one a process that reads: hard links to the copies it uses, and what it keeps beside them;
 *                                 its file "alive" is locked (flock) as long as the process lives
 *
 * A copy is given out as a hard link in the user's own folder, so that its link count tells whether anybody uses it: room is made by
 * removing the copies that nobody uses, oldest use first. Each process checks a copy's CRC once before it uses it; one that is
 * damaged, as after a power cut, is fetched anew. What a killed process leaves (its folder, a file on its way) has no lock and is
 * removed by the next who comes. Where the file system has no hard links nothing is shared: the copy is moved.
 *
 * Threads: index_copies_take may be entered by any number at once; the struct does not change after opening.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/store_int.h"

enum {
    CHUNK = 1 << 20,        /* of a transfer, */
    CHUNKS = 8,             /* so many at once */
    TAKE_TRIES = 8          /* another process may make room of the very copy just fetched */
};

struct index_copies {
    struct store_io *io;    /* borrowed */
    uint64_t limit;
    int alive;
    char *dir, *own;        /* WORK/copies; the folder of this user */
};

static int path_in(char **out, const char *dir, const char *a, const char *b, struct larder_error *err)
{
    if (asprintf(out, "%s/%s%s%s", dir, a, *b ? "." : "", b) >= 0)
        return LARDER_OK;
    *out = NULL;
    return err_nomem(err, strlen(dir) + strlen(a) + strlen(b) + 3, "a path");
}

/* False: another holds it, or the file system has no locks; then nothing looks dead, and the folder is shared without. */
static bool lock_fd(int fd, bool wait)
{
    int rc;

    do
        rc = flock(fd, LOCK_EX | (wait ? 0 : LOCK_NB));
    while (rc != 0 && errno == EINTR);
    return rc == 0;
}

/* The descriptor that holds the folder's lock, or a negative code. */
static int folder_lock(const char *dir, struct larder_error *err)
{
    AUTO_FREE char *path = NULL;
    int rc = path_in(&path, dir, "lock", "", err);

    if (rc)
        return rc;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be opened", path);
    lock_fd(fd, true);
    return fd;
}

/* Removes a folder with files and one level of folders below it, as far as that goes. */
static void remove_tree(int at, const char *name, int depth)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;

    while (d && (e = readdir(d)))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && unlinkat(fd, e->d_name, 0) && depth > 0)
            remove_tree(fd, e->d_name, depth - 1);
    if (d)
        closedir(d);
    else if (fd >= 0)
        close(fd);
    unlinkat(at, name, AT_REMOVEDIR);
}

/* Whether nobody holds the lock of a file below the folder; true as well when there is none. */
static bool is_dead(int folder, const char *name)
{
    AUTO_FD int fd = openat(folder, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);

    return fd < 0 ? errno == ENOENT : lock_fd(fd, false);
}

/* ---- room ---- */

struct copy { char *name; uint64_t size; int64_t used_ns; };
struct copies { struct copy *list; size_t n, cap; uint64_t total; };

static int by_use(const void *a, const void *b)
{
    const struct copy *x = a, *y = b;

    return x->used_ns < y->used_ns ? -1 : x->used_ns > y->used_ns;
}

static void copies_release(struct copies *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->list[i].name);
    free(c->list);
}

static int note_copy(struct copies *c, const char *name, const struct stat *st, struct larder_error *err)
{
    c->total += (uint64_t)st->st_size;
    if (st->st_nlink > 1)
        return LARDER_OK;
    int rc = GROW(c->list, c->cap, c->n + 1, err);
    if (rc)
        return rc;
    char *own = strdup(name);
    if (!own)
        return err_nomem(err, strlen(name), "a copy's name");
    c->list[c->n++] = (struct copy){own, (uint64_t)st->st_size, (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec};
    return LARDER_OK;
}

/* What lies in the folder: copies that nobody uses, and how much it is in all. What dead processes left goes. The lock is held. */
static int look_around(const char *dir, struct copies *c, struct larder_error *err)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int rc = LARDER_OK;

    if (!d)
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be opened", dir);
    while (!rc && (e = readdir(d))) {
        char alive[300];
        struct stat st;
        snprintf(alive, sizeof(alive), "%.255s/alive", e->d_name);
        bool on_way = !strncmp(e->d_name, ".tmp-", 5), use = !strncmp(e->d_name, "use-", 4);
        if (use && is_dead(dirfd(d), alive))
            remove_tree(dirfd(d), e->d_name, 1);
        else if (on_way && is_dead(dirfd(d), e->d_name))
            unlinkat(dirfd(d), e->d_name, 0);
        else if (!use && e->d_name[0] != '.' && strcmp(e->d_name, "lock") && fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            rc = note_copy(c, e->d_name, &st, err);
        else if (on_way && fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            c->total += (uint64_t)st.st_size;
    }
    closedir(d);
    return rc;
}

/* Removes copies that nobody uses until `want` more bytes fit. EBUSY: what is left is in use. */
static int make_room(const struct index_copies *ic, uint64_t want, struct larder_error *err)
{
    struct copies c = {0};
    AUTO_FD int lock = folder_lock(ic->dir, err);
    int rc = lock < 0 ? lock : look_around(ic->dir, &c, err);

    if (!rc && c.n)
        qsort(c.list, c.n, sizeof(*c.list), by_use);
    for (size_t i = 0; !rc && i < c.n && c.total + want > ic->limit; i++) {
        AUTO_FREE char *path = NULL;
        if (!(rc = path_in(&path, ic->dir, c.list[i].name, "", err)) && unlink(path) == 0)
            c.total -= c.list[i].size;
    }
    if (!rc && c.total + want > ic->limit)
        rc = err_set(err, LARDER_EBUSY, "%s: %llu bytes of index files are in use, the limit is %llu", ic->dir,
                     (unsigned long long)c.total, (unsigned long long)ic->limit);
    copies_release(&c);
    return rc;
}

/* ---- opening ---- */

static int make_own(struct index_copies *ic, struct larder_error *err)
{
    uint8_t random[8];
    char hex[17];
    AUTO_FREE char *alive = NULL;
    int rc = random_bytes(random, sizeof(random), err);

    if (rc)
        return rc;
    hex_encode(random, sizeof(random), hex);
    if (asprintf(&ic->own, "%s/use-%s", ic->dir, hex) < 0) {
        ic->own = NULL;
        return err_nomem(err, strlen(ic->dir), "a path");
    }
    if ((rc = path_in(&alive, ic->own, "alive", "", err)))
        return rc;
    if (mkdir(ic->own, 0777))
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be made", ic->own);
    ic->alive = open(alive, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (ic->alive < 0)
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be made", alive);
    lock_fd(ic->alive, true);
    return LARDER_OK;
}

int index_copies_open(struct store_io *io, struct index_copies **out, struct larder_error *err)
{
    struct copies c = {0};
    struct larder_error why = {.code = LARDER_EIO};
    const char *work = io_work_root(io, &why);

    *out = NULL;
    if (!work) {
        if (err)
            *err = why;
        return why.code;
    }
    struct index_copies *ic = calloc(1, sizeof(*ic));
    if (!ic)
        return err_nomem(err, sizeof(*ic), "copies of an index");
    ic->io = io;
    ic->alive = -1;
    ic->limit = io_work_bytes(io);
    int rc = path_in(&ic->dir, work, "copies", "", err);
    if (!rc && mkdir(ic->dir, 0777) && errno != EEXIST)
        rc = err_sys(err, LARDER_EIO, errno, "%s: cannot be made", ic->dir);
    AUTO_FD int lock = rc ? -1 : folder_lock(ic->dir, err);
    if (!rc)
        rc = lock < 0 ? lock : look_around(ic->dir, &c, err);
    if (!rc)
        rc = make_own(ic, err);
    copies_release(&c);
    guard_fd(&lock);
    lock = -1;
    if (!rc && (rc = make_room(ic, 0, err)) == LARDER_EBUSY) /* the limit may be lower than last time */
        rc = LARDER_OK;
    if (rc) {
        index_copies_close(ic);
        return rc;
    }
    *out = ic;
    return LARDER_OK;
}

void index_copies_close(struct index_copies *ic)
{
    if (!ic)
        return;
    if (ic->own)
        remove_tree(AT_FDCWD, ic->own, 1);
    guard_fd(&ic->alive);
    free(ic->dir);
    free(ic->own);
    free(ic);
}

const char *index_copies_own(const struct index_copies *ic) { return ic->own; }

/* ---- fetching ---- */

static int unchecked(void *user, size_t i, struct larder_error *err)
{
    (void)user, (void)i, (void)err;
    return LARDER_OK;
}

/* Streams an object of a known size, a few chunks at a time; fd -1: only its CRC. */
static int stream(struct store_io *io, const char *name, uint64_t size, int fd, uint32_t *crc, struct larder_error *err)
{
    size_t room = (size_t)MIN(size, (uint64_t)CHUNK * CHUNKS);
    AUTO_FREE uint8_t *data = malloc(room + 1);
    int rc = data ? LARDER_OK : err_nomem(err, room, "an index file");

    *crc = 0;
    for (uint64_t at = 0; !rc && at < size; at += room) {
        struct store_range r[CHUNKS];
        size_t n = 0, len = (size_t)MIN(size - at, (uint64_t)room);
        for (size_t off = 0; off < len; off += CHUNK, n++)
            r[n] = (struct store_range){name, at + off, data + off, MIN(len - off, (size_t)CHUNK)};
        if ((rc = io_read_checked(io, r, n, unchecked, NULL, err)))
            break;
        *crc = crc32c(*crc, data, len);
        if (fd >= 0 && write_fully(fd, data, len, at))
            rc = err_sys(err, LARDER_EIO, errno, "a copy of %s cannot be written (the scratch folder of remote datasets)", name);
    }
    return rc;
}

int index_object_stream(struct store_io *io, const char *name, uint64_t size, uint32_t crc, int fd, struct larder_error *err)
{
    uint32_t found = 0;
    int rc = LARDER_OK;

    for (unsigned try = 0;; try++) {
        rc = stream(io, name, size, fd, &found, err);
        if (!rc && found != crc)
            rc = err_set(err, LARDER_ECORRUPT, "%s: CRC32C is %08x instead of %08x; larder repair rebuilds the index", name, found, crc);
        if (rc != LARDER_ECORRUPT || !io_again(io, try))
            return rc == LARDER_ENOTFOUND ? err_set(err, LARDER_ECORRUPT, "%s is missing; larder repair rebuilds the index", name) : rc;
    }
}

/* Brings an object to a new file of a random name in the folder; *fd keeps its lock. */
static int fetch_temp(const struct index_copies *ic, const char *object, const struct index_file *f, char **temp, int *fd,
                      struct larder_error *err)
{
    uint8_t random[8];
    char hex[17];
    int rc = random_bytes(random, sizeof(random), err);

    if (rc)
        return rc;
    hex_encode(random, sizeof(random), hex);
    if (asprintf(temp, "%s/.tmp-%s", ic->dir, hex) < 0) {
        *temp = NULL;
        return err_nomem(err, strlen(ic->dir), "a path");
    }
    AUTO_FD int lock = folder_lock(ic->dir, err); /* nobody looks around between its making and its lock */
    if (lock < 0)
        return lock;
    *fd = open(*temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (*fd < 0)
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be made", *temp);
    lock_fd(*fd, true);
    guard_fd(&lock);
    lock = -1;
    return index_object_stream(ic->io, object, f->size, f->crc, *fd, err);
}

/* Fetches a copy and gives it its name. */
static int fetch(const struct index_copies *ic, const char *object, const struct index_file *f, const char *to, bool force,
                 struct larder_error *err)
{
    AUTO_FREE char *temp = NULL;
    AUTO_FD int fd = -1;
    int rc = make_room(ic, f->size, err);

    if (rc == LARDER_EBUSY && force)
        rc = LARDER_OK;
    if (rc)
        return rc;
    rc = fetch_temp(ic, object, f, &temp, &fd, err);
    if (!rc && rename(temp, to))
        rc = err_sys(err, LARDER_EIO, errno, "%s: cannot be renamed", temp);
    if (rc && temp)
        unlink(temp);
    return rc;
}

static int file_crc(const char *path, uint64_t size, uint32_t *crc, struct larder_error *err)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    AUTO_FREE uint8_t *data = malloc(CHUNK);
    uint64_t at = 0;

    if (!data)
        return err_nomem(err, CHUNK, "an index file");
    *crc = 0;
    for (ssize_t n = 1; n > 0; at += (uint64_t)n) {
        n = fd < 0 ? -1 : read_fully(fd, data, CHUNK, at);
        if (n < 0)
            return err_sys(err, LARDER_EIO, errno, "%s: cannot be read", path);
        *crc = crc32c(*crc, data, (size_t)n);
    }
    return at == size ? LARDER_OK : LARDER_ECORRUPT;
}

static bool no_links(int sys_errno)
{
    return sys_errno == EPERM || sys_errno == EOPNOTSUPP || sys_errno == ENOSYS || sys_errno == EMLINK || sys_errno == EACCES;
}

int index_copies_take(struct index_copies *ic, const char *part, const struct index_file *f, const char *to, bool force,
                      struct larder_error *err)
{
    AUTO_FREE char *copy = NULL;
    char object[600];
    bool fetched = false;
    int rc = path_in(&copy, ic->dir, part, f->name, err);

    snprintf(object, sizeof(object), "index/%s/%s", part, f->name);
    for (int tries = 0; !rc && tries < TAKE_TRIES; tries++) {
        uint32_t crc = 0;
        if (link(copy, to) == 0) {
            utimensat(AT_FDCWD, to, NULL, 0); /* used last: now */
            if (fetched)
                return LARDER_OK;
            if (!file_crc(to, f->size, &crc, err) && crc == f->crc)
                return LARDER_OK;
            unlink(to);
            unlink(copy);
        } else if (no_links(errno)) {
            return fetch(ic, object, f, to, force, err);
        } else if (errno != ENOENT) {
            return err_sys(err, LARDER_EIO, errno, "%s: cannot be used", copy);
        }
        rc = fetch(ic, object, f, copy, force, err);
        fetched = !rc;
    }
    return rc ? rc : err_set(err, LARDER_EBUSY, "%s: other processes need the room: raise the limit (scratch_bytes)", ic->dir);
}
