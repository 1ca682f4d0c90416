/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_file.c - the files of segments: made whole before anything is written into them, within the limit.
 *
 * What a file will take is counted before it is made, by the process that fills the segment, so that several at once do not
 * exceed the limit. A segment of several places first cuts the files of those places to nothing. A file that somebody may have open is
 * never removed while the region lives, only cut: descriptors of other processes stay good.
 *
 * Whoever is killed in between leaves a segment that counts at least what its file takes (file_span, blocks), and whose file is
 * not relied on (made).
 *
 * Threads: the writer of a process, with n->lock and the table's held; both are given up around system calls.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tiers/nvme_int.h"

#define WRITER_TRIES 30 /* of 2 s */

bool nvme_lock_patiently(struct nvme *n)
{
    for (int i = 0; i < (n->closing ? 1 : WRITER_TRIES); i++) {
        if (nvme_table_lock_wait(n, 2000))
            return true;
        pthread_mutex_unlock(&n->lock);
        pthread_mutex_lock(&n->lock);
    }
    return false;
}

/* The file of a segment, whole. 0, or -errno. *blocks: its bytes on disk. */
static int make_file(struct nvme *n, unsigned segment, uint64_t bytes, int *fd, uint64_t *blocks)
{
    struct stat st;
    int rc = 0;
    if (*fd < 0)
        *fd = nvme_segment_open(n, segment, true);
    if (*fd < 0)
        return *fd;
    if (fstat(*fd, &st) != 0)
        return -errno;
    if ((uint64_t)st.st_size > bytes && ftruncate(*fd, (off_t)bytes) != 0)
        return -errno;
    if ((uint64_t)st.st_size != bytes || (uint64_t)st.st_blocks * 512 < bytes) {
        do
            rc = fallocate(*fd, 0, 0, (off_t)bytes) == 0 ? 0 : -errno;
        while (rc == -EINTR);
        if (rc == -EOPNOTSUPP) /* then a full disk shows while writing */
            rc = ftruncate(*fd, (off_t)bytes) == 0 ? 0 : -errno;
        if (!rc && fstat(*fd, &st) != 0)
            rc = -errno;
    }
    *blocks = rc ? 0 : MAX((uint64_t)st.st_blocks * 512, bytes);
    return rc;
}

/* A longer segment takes the disk space of others' files. They stay, empty: somebody may have them open. n->lock and the table's
 * are held, and given up in between. -ENOLCK: the latter is lost. */
static int cut_lent(struct nvme *n, unsigned segment)
{
    uint16_t list[NVME_SEGMENTS_MAX];
    unsigned count = 0;
    int rc = 0;
    for (unsigned i = 0; i < n->h->n_segments; i++) {
        struct nvme_segment *g = &n->h->segments[i];
        if (g->state != NVME_LENT || g->lender != segment || !g->file_span)
            continue;
        g->made = false; /* before it is so: we may be killed in between */
        list[count++] = (uint16_t)i;
    }
    if (!count)
        return 0;
    nvme_table_unlock(n);
    pthread_mutex_unlock(&n->lock);
    for (unsigned i = 0; i < count && !rc; i++) {
        int fd = nvme_segment_open(n, list[i], false);
        if (fd < 0)
            rc = fd == -ENOENT ? 0 : fd;
        else if (ftruncate(fd, 0) != 0)
            rc = -errno;
        if (fd >= 0)
            close(fd);
    }
    pthread_mutex_lock(&n->lock);
    return nvme_lock_patiently(n) ? rc : -ENOLCK;
}

/* Counts what a segment's file will take before it is made, so that no two processes take the same room. The table's lock is
 * held; what was lent has been cut. */
static int count_in(struct nvme *n, unsigned segment, uint64_t bytes)
{
    struct nvme_shared *h = n->h;
    struct nvme_segment *g = &h->segments[segment];
    uint64_t total = h->other_blocks;
    for (unsigned i = 0; i < h->n_segments; i++) {
        struct nvme_segment *other = &h->segments[i];
        if (other->state == NVME_LENT && other->lender == segment) {
            other->blocks = other->file_span = 0;
            other->made = false;
        }
        total += i == segment ? 0 : other->blocks;
    }
    if (total + bytes > h->budget)
        return -EDQUOT;
    if (bytes > g->blocks || !g->made) {
        g->made = false;
        g->file_span = MAX(g->file_span, g->span);
        g->had_file = true;
        g->blocks = MAX(g->blocks, bytes);
    }
    return 0;
}

/* The file could not be made. It goes, unless somebody may have it open: then it stays, empty. The table's lock is held. */
static void undo_file(struct nvme *n, unsigned segment, bool fresh)
{
    struct nvme_segment *g = &n->h->segments[segment];
    struct nvme_own *own = &n->own[segment];
    g->made = false;
    if (fresh || (own->fd >= 0 && ftruncate(own->fd, 0) == 0))
        g->blocks = g->file_span = 0;
    if (!fresh)
        return;
    char name[16];
    nvme_segment_name(segment, name);
    if (own->fd >= 0)
        close(own->fd);
    own->fd = -1;
    unlinkat(n->dir_fd, name, 0);
    g->had_file = false;
}

int nvme_make_file(struct nvme *n, unsigned segment)
{
    struct nvme_segment *g = &n->h->segments[segment];
    struct nvme_own *own = &n->own[segment];
    uint64_t blocks = 0, bytes = nvme_bytes_of(n, segment);
    const struct nvme_segment was = *g;
    int fd = own->fd, rc = cut_lent(n, segment);
    if (!rc)
        rc = count_in(n, segment, bytes);
    if (rc)
        return rc;
    nvme_table_unlock(n);
    pthread_mutex_unlock(&n->lock);
    rc = make_file(n, segment, bytes, &fd, &blocks);
    pthread_mutex_lock(&n->lock);
    if (fd >= 0 && own->fd < 0)
        atomic_store_explicit(&own->fd, fd, memory_order_release);
    else if (fd >= 0 && own->fd != fd)
        close(fd); /* a lookup opened it, too */
    if (!nvme_lock_patiently(n))
        return -ENOLCK;
    if (!rc) {
        g->blocks = blocks;
        rc = count_in(n, segment, blocks);
    }
    if (rc && fd < 0 && was.had_file) { /* it is there as it was */
        g->blocks = was.blocks;
        g->file_span = was.file_span;
        g->made = was.made;
    } else if (rc) {
        undo_file(n, segment, !was.had_file);
    }
    if (rc)
        return rc;
    g->made = true;
    g->file_span = g->span;
    nvme_give_places_back(n, segment, g->span);
    return 0;
}
