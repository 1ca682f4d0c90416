/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_info.c - a cache directory from outside: what is in it, and emptying it. For the larder command, and for scripts.
 *
 * Info takes no lock, so that it works beside a running cache: it reads the heads, trailers and, where a segment has no
 * trailer yet, the headers of the records. Everything read is checked as at recovery, so that a directory which changes
 * meanwhile gives numbers that are a little old and never worse. Clearing takes the lock.
 *
 * Threads: any.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tiers/nvme_int.h"

struct info {
    const char *dir;
    int dir_fd;
    struct larder_cache_dir_info *out;
    struct larder_cache_dataset *datasets; /* the caller's */
    size_t cap;
    struct nvme_used *used;                /* those of the checkpoint, then those of segments */
    size_t n_used;
    uint64_t *entries, *bytes;             /* by index in used */
    uint8_t *window;
};

static int open_cache_dir(const char *dir, int *fd, struct larder_error *err)
{
    struct stat st;
    *fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0)
        return err_sys(err, errno == ENOENT || errno == ENOTDIR ? LARDER_ENOTFOUND : LARDER_EIO, errno, "%s: cannot be opened", dir);
    if (fstatat(*fd, "lock", &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
        return LARDER_OK;
    close(*fd);
    *fd = -1;
    return err_set(err, LARDER_ENOTFOUND, "%s: no cache of larder is here (it has no file 'lock')", dir);
}

static uint64_t holder_of(int dir_fd)
{
    AUTO_FD int fd = openat(dir_fd, "lock", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || flock(fd, LOCK_SH | LOCK_NB) == 0)
        return 0;
    return (uint64_t)MAX(nvme_lock_holder(fd), 1);
}

static size_t used_index(struct info *f, const struct cache_space *s)
{
    for (size_t i = 0; i < f->n_used; i++)
        if (memcmp(&f->used[i].space, s, sizeof(*s)) == 0)
            return i;
    if (f->n_used == NVME_SPACES_MAX)
        return NVME_SPACES_MAX; /* counted, not shown */
    f->used[f->n_used].space = *s;
    return f->n_used++;
}

static bool read_fd(void *user, uint64_t offset, void *buf, size_t len)
{
    return nvme_pread(((const int *)user)[0], buf, len, offset);
}
static bool count_record(void *user, const struct nvme_entry *e)
{
    (void)e;
    ((int *)user)[1]++;
    return true;
}

/* Adds up one segment. */
static void add_segment(struct info *f, int fd, uint64_t blocks)
{
    struct nvme_head h;
    struct nvme_trailer t;
    uint64_t n, end;
    if (!nvme_pread(fd, f->window, NVME_PAGE, 0) || !nvme_head_decode(f->window, &h))
        return;
    if (nvme_pread(fd, f->window, NVME_PAGE, nvme_head_bytes(&h) - NVME_PAGE) &&
        nvme_trailer_decode(f->window, nvme_head_bytes(&h), &t) &&
        t.seq == h.seq && t.sealed) {
        n = t.n;
    } else {
        int walked[2] = {fd, 0};
        nvme_walk(&h, f->window, read_fd, count_record, walked, &end);
        n = (uint64_t)walked[1];
    }
    size_t i = used_index(f, &h.space);
    f->entries[i] += n;
    f->bytes[i] += blocks;
    f->used[i].last_used_s = MAX(f->used[i].last_used_s, h.created_s);
    f->out->segments++;
    f->out->segment_bytes = h.segment_bytes;
    f->out->entries += n;
}

static bool own_name(const char *name)
{
    return nvme_segment_number(name) >= 0 || strcmp(name, "checkpoint") == 0 || strcmp(name, "checkpoint.new") == 0 ||
           strcmp(name, "lock") == 0;
}

/* Calls fn for each of the cache's own files. */
static int each_file(const char *dir, int dir_fd, void (*fn)(void *user, int dir_fd, const char *name, const struct stat *st), void *user,
                     struct larder_error *err)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    struct stat st;
    if (!d) {
        int e = errno;
        if (fd >= 0)
            close(fd);
        return err_sys(err, LARDER_EIO, e, "%s: cannot be listed", dir);
    }
    for (struct dirent *e; (e = readdir(d));)
        if (own_name(e->d_name) && fstatat(dir_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            fn(user, dir_fd, e->d_name, &st);
    closedir(d);
    return LARDER_OK;
}

static void look_at(void *user, int dir_fd, const char *name, const struct stat *st)
{
    struct info *f = user;
    f->out->used_bytes += (uint64_t)st->st_blocks * 512;
    if (nvme_segment_number(name) < 0)
        return;
    AUTO_FD int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0)
        add_segment(f, fd, (uint64_t)st->st_blocks * 512);
}

static int gather(struct info *f, struct larder_error *err)
{
    AUTO_FREE uint8_t *checkpoint = malloc(NVME_CHECKPOINT_MAX);
    uint64_t seq;
    if (!checkpoint)
        return err_nomem(err, NVME_CHECKPOINT_MAX, "a checkpoint");
    size_t len = nvme_checkpoint_load(f->dir_fd, checkpoint);
    if (!nvme_checkpoint_decode(checkpoint, len, &seq, f->used, &f->n_used))
        f->n_used = 0;
    int rc = each_file(f->dir, f->dir_fd, look_at, f, err);
    for (size_t i = 0; !rc && i < f->n_used; i++) {
        if (!f->bytes[i])
            continue;
        struct larder_cache_dataset d = {{0}, {0}, f->entries[i], f->bytes[i], f->used[i].last_used_s};
        memcpy(d.uuid, f->used[i].space.uuid, 16);
        memcpy(d.lineage, f->used[i].space.lineage, 16);
        if (f->out->datasets < f->cap)
            f->datasets[f->out->datasets] = d;
        f->out->datasets++;
    }
    f->out->holder = holder_of(f->dir_fd);
    return rc;
}

int tiers_cache_dir_info(const char *dir, struct larder_cache_dir_info *out, struct larder_cache_dataset *datasets, size_t cap,
                         struct larder_error *err)
{
    AUTO_FREE struct nvme_used *used = calloc(NVME_SPACES_MAX + 1, sizeof(*used));
    AUTO_FREE uint64_t *sums = calloc(2 * (NVME_SPACES_MAX + 1), sizeof(*sums));
    AUTO_FREE uint8_t *window = malloc(NVME_WINDOW);
    AUTO_FD int fd = -1;
    if (!used || !sums || !window)
        return err_nomem(err, NVME_WINDOW, "looking at a cache");
    int rc = open_cache_dir(dir, &fd, err);
    if (rc)
        return rc;
    struct info f = {dir, fd, out, datasets, cap, used, 0, sums, sums + NVME_SPACES_MAX + 1, window};
    return gather(&f, err);
}

/* ---- emptying ---- */

struct clearing { uint64_t freed; int failed; };

static void remove_it(void *user, int dir_fd, const char *name, const struct stat *st)
{
    struct clearing *c = user;
    if (strcmp(name, "lock") == 0) /* stays: who waits for it must find the same file */
        return;
    if (unlinkat(dir_fd, name, 0) == 0)
        c->freed += (uint64_t)st->st_blocks * 512;
    else if (errno != ENOENT)
        c->failed = errno;
}

struct claim_dir { int dir_fd, lock; const char *dir; };

static int claim_dir(void *base, uint64_t bytes, void *user, struct larder_error *err)
{
    struct claim_dir *d = user;
    (void)base, (void)bytes;
    int rc = nvme_lock_take(d->dir_fd, d->dir, &d->lock, err);
    if (!rc)
        nvme_lock_note(d->lock, 0, true);
    return rc;
}

int tiers_cache_dir_clear(const char *dir, uint64_t *freed, struct larder_error *err)
{
    AUTO_FD int fd = -1;
    struct clearing c = {0, 0};
    struct share *share; /* private: it keeps the lock from forked children */
    int rc = open_cache_dir(dir, &fd, err);
    struct claim_dir d = {fd, -1, dir};
    struct share_options o = {NULL, NVME_PAGE, claim_dir, &d, &d.lock};
    if (!rc)
        rc = share_open(&o, &share, err);
    if (rc)
        return rc;
    rc = each_file(dir, fd, remove_it, &c, err);
    share_close(share);
    if (!rc && c.failed)
        rc = err_sys(err, LARDER_EIO, c.failed, "%s: not all of the cache could be removed", dir);
    *freed = c.freed;
    return rc;
}
