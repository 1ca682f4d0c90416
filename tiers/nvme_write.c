/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_write.c - writing behind: one thread writes the chunks that admission fills.
 *
 *     nvme_admit: record --> chunk of a segment of the space --full, or 200 ms old--> queue --> writer: pwrite --> published
 *
 * An entry is in the map from admission on, but pending: nobody reads it, and nobody admits the record again. It is published when
 * the bytes are on the disk as far as reads are concerned.
 *
 * A segment that is full gets its footer: data are synced first, so that a footer never promises what a power cut took. What a
 * footer or a checkpoint lacks costs time or a miss after a crash, never a wrong byte.
 *
 * The disk says no: for a new segment (full, or over the limit by its real blocks), it is REFUSED and the others go on; while
 * writing, or for a reason of this process, it writes no more until it opens the cache again. Reads go on in either case.
 *
 * Threads: the writer, under nvme.lock, which is never held across I/O; and who flushes, starts or stops it.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tiers/nvme_int.h"

#define FLUSH_MS 200u
#define CHECKPOINT_S 60u
#define FOOTER_PIECE (64 * KIB)
#define CLOSE_MS 10000u /* the write buffer at 25 MB/s */
#define BUFFER_MIN (8 * MIB)
#define BUFFER_MAX (256 * MIB)

/* ---- the writer ---- */

/* A part of the buffer is enough to go on with, while the writer writes the rest. */
static bool has_room(const struct nvme *n) { return n->n_free >= (n->n_chunks + 3) / 4 || (!n->queue && !n->writing); }

/* Nothing more is written. The lock is held. */
static void fail(struct nvme *n, int error)
{
    n->failed = true;
    nvme_warn(n, "%s: writing failed (%s): nothing more is admitted, what is there is read", n->dir, strerror(error));
    if (!nvme_lock_patiently(n))
        return;
    for (unsigned i = 0; i < n->h->n_segments; i++) {
        if (!n->own[i].mine)
            continue;
        nvme_segment_disown(n, i);
        nvme_forget_pending(n, i);
        if (n->h->segments[i].published)
            nvme_segment_open_up(n, i, true);
        else
            nvme_segment_free(n, i);
    }
    nvme_table_unlock(n);
    nvme_ring(n);
}

/* A segment that there is no disk space for. The table's lock is held. */
static void refuse_segment(struct nvme *n, unsigned segment, int error)
{
    struct nvme_shared *h = n->h;
    bool disk = error == ENOSPC || error == EDQUOT;
    nvme_warn(n, "%s: no room for another segment (%s): the cache stays smaller than its limit", n->dir, strerror(error));
    nvme_forget_pending(n, segment);
    nvme_segment_disown(n, segment);
    nvme_segment_free(n, segment);
    if (!disk)
        n->failed = true; /* this process's concern: descriptors, limits */
    for (unsigned i = 0; disk && i < h->n_segments; i++) /* nor for any other */
        if (h->segments[i].state == NVME_FREE && h->segments[i].file_span == 0)
            h->segments[i].state = NVME_REFUSED;
}

/* Makes sure that a chunk's segment has its file. The lock is held, and given up in between. */
static int ready_file(struct nvme *n, unsigned segment)
{
    struct nvme_segment *g = &n->h->segments[segment];
    if (n->own[segment].fd >= 0 && g->made && g->file_span == g->span)
        return 0;
    int rc = nvme_lock_patiently(n) ? nvme_make_file(n, segment) : -ENOLCK;
    if (rc && rc != -ENOLCK)
        refuse_segment(n, segment, -rc);
    if (rc != -ENOLCK)
        nvme_table_unlock(n);
    if (rc)
        nvme_ring(n);
    if (rc == -ENOLCK || (rc && n->failed))
        fail(n, -rc);
    return rc;
}

static void publish(struct nvme *n, unsigned segment, uint64_t end)
{
    struct nvme_segment *g = &n->h->segments[segment];
    const struct nvme_entry *all = nvme_entries(n, segment);
    if (!nvme_lock_patiently(n)) {
        fail(n, EBUSY);
        return;
    }
    for (; g->published < g->n; g->published++) {
        const struct nvme_entry *e = &all[g->published];
        if (((uint64_t)e->unit + e->units) * NVME_UNIT > end)
            break;
        nvme_map_publish(&n->map, g->space, e->ordinal, segment, e->unit);
    }
    nvme_table_unlock(n);
    nvme_ring(n);
}

/* Writes the first chunk of the queue. The lock is held, and given up in between. */
static void write_chunk(struct nvme *n)
{
    struct nvme_chunk *c = n->queue;
    struct nvme_own *own = &n->own[c->segment];
    n->queue = c->next;
    if (!n->queue)
        n->queue_tail = &n->queue;
    if (!n->failed && own->mine && own->seq == c->seq && ready_file(n, c->segment) == 0) {
        int fd = own->fd;
        pthread_mutex_unlock(&n->lock);
        int rc = nvme_pwrite(n, fd, c->data, c->len, c->offset);
        pthread_mutex_lock(&n->lock);
        if (rc)
            fail(n, -rc);
        else
            publish(n, c->segment, c->offset + c->len);
    }
    own->queued--;
    n->writing--;
    nvme_chunk_free(n, c);
    if (n->room_waits && has_room(n))
        pthread_cond_broadcast(&n->room);
}

/* Footer and trailer. Called without the lock: entries do not change any more. 0, or -errno. */
static int write_footer(struct nvme *n, int fd, unsigned segment, uint64_t end, bool sealed)
{
    AUTO_FREE uint8_t *piece = NULL;
    const struct nvme_entry *entries = nvme_entries(n, segment);
    uint32_t count = n->h->segments[segment].published;
    struct nvme_trailer t = {n->own[segment].seq, round_up(end, NVME_PAGE), count, 0, sealed};
    int rc = 0;
    if (posix_memalign((void **)&piece, NVME_PAGE, FOOTER_PIECE) != 0)
        return piece = NULL, -ENOMEM;
    if (fdatasync(fd) != 0)
        return -errno;
    uint64_t at = t.footer;
    for (uint32_t i = 0; i < count && !rc;) {
        size_t len = 0;
        for (; i < count && len < FOOTER_PIECE; i++, len += NVME_ENTRY_BYTES)
            nvme_entry_encode(&entries[i], piece + len);
        t.footer_crc = crc32c(t.footer_crc, piece, len);
        size_t padded = round_up(len, NVME_PAGE);
        memset(piece + len, 0, padded - len);
        rc = nvme_pwrite(n, fd, piece, padded, at);
        at += padded;
    }
    nvme_trailer_encode(&t, piece);
    return rc ? rc : nvme_pwrite(n, fd, piece, NVME_PAGE, nvme_bytes_of(n, segment) - NVME_PAGE);
}

static void sealed_now(struct nvme *n, unsigned segment)
{
    struct nvme_segment *g = &n->h->segments[segment];
    share_clear(n->share, nvme_entries(n, segment), n->h->entries_max * sizeof(struct nvme_entry));
    g->n = g->published = 0;
    g->owner = 0;
    g->state = NVME_SEALED;
    if (!g->live)
        nvme_segment_free(n, segment);
}

/* Ends a segment that is SEALING, or (at close) leaves its map with one that is not full. The lock is held, and given up in
 * between. */
static void finish_segment(struct nvme *n, unsigned segment, bool sealed)
{
    struct nvme_own *own = &n->own[segment];
    int rc = 0;
    if (own->fd < 0) {
        int fd = nvme_segment_open(n, segment, false);
        rc = MIN(fd, 0);
        own->fd = MAX(fd, -1);
    }
    if (own->fd >= 0 && !n->failed) {
        uint64_t end = own->end;
        int fd = own->fd;
        pthread_mutex_unlock(&n->lock);
        rc = write_footer(n, fd, segment, end, sealed);
        pthread_mutex_lock(&n->lock);
    }
    if (rc) { /* not lost: the next open walks it */
        fail(n, -rc);
        return;
    }
    if (!own->mine || !nvme_lock_patiently(n))
        return;
    nvme_segment_disown(n, segment);
    if (sealed)
        sealed_now(n, segment);
    else
        nvme_segment_open_up(n, segment, false);
    nvme_table_unlock(n);
    n->checkpoint_due = true;
}

static void seal_all(struct nvme *n)
{
    n->seal_due = false;
    for (unsigned i = 0; i < n->h->n_segments; i++) {
        if (!n->own[i].mine || n->h->segments[i].state != NVME_SEALING)
            continue;
        if (n->own[i].queued)
            n->seal_due = true; /* after its chunks */
        else
            finish_segment(n, i, true);
    }
}

/* What there is to say of spaces. The table's lock is held. */
static size_t gather_used(struct nvme *n, struct nvme_used *used)
{
    uint64_t now = now_wall_s();
    size_t count = 0;
    for (uint32_t i = 1; i <= NVME_SPACES_MAX; i++) {
        struct nvme_space *s = &n->h->spaces[i];
        if (!s->taken)
            continue;
        if (nvme_space_used(n, i))
            s->last_used_s = now;
        if (nvme_space_used(n, i) || nvme_space_holds(n, i))
            used[count++] = (struct nvme_used){s->key, s->last_used_s};
    }
    return count;
}

/* The lock is held, and given up in between. A checkpoint that cannot be written costs nothing but ages of datasets. */
static void checkpoint(struct nvme *n)
{
    AUTO_FREE struct nvme_used *used = calloc(NVME_SPACES_MAX, sizeof(*used));
    AUTO_FREE uint8_t *bytes = malloc(NVME_CHECKPOINT_MAX);
    n->checkpoint_due = false;
    if (!used || !bytes || !nvme_lock_patiently(n))
        return;
    nvme_reap(n);
    bool ours = n->h->checkpointer == 0;
    size_t count = ours ? gather_used(n, used) : 0;
    uint64_t next_seq = n->h->next_seq;
    if (ours) {
        n->h->checkpointer = n->member;
        n->h->checkpoint_ns = now_ns();
    }
    nvme_table_unlock(n);
    if (!ours)
        return; /* another process is at it */
    pthread_mutex_unlock(&n->lock);
    int rc = nvme_checkpoint_save(n->dir_fd, bytes, nvme_checkpoint_encode(next_seq, used, count, bytes));
    pthread_mutex_lock(&n->lock);
    if (nvme_lock_patiently(n)) {
        n->h->checkpointer = 0;
        nvme_table_unlock(n);
    }
    if (rc)
        nvme_warn(n, "%s: no checkpoint (%s): the next open takes longer to find out how old datasets are", n->dir, strerror(-rc));
}

static bool any_partial(const struct nvme *n)
{
    for (unsigned i = 0; i < n->h->n_segments; i++)
        if (n->own[i].chunk)
            return true;
    return false;
}

static void flush_partial(struct nvme *n)
{
    n->flush_due = false;
    n->flushed_ns = now_ns();
    for (unsigned i = 0; i < n->h->n_segments; i++)
        nvme_segment_flush(n, i);
}

/* What we have nothing more for at the moment is for anybody. */
static void release_idle(struct nvme *n)
{
    bool any = false;
    for (unsigned i = 0; i < n->h->n_segments && !any; i++)
        any = n->own[i].mine && !n->own[i].chunk && !n->own[i].queued;
    if (!any || !nvme_lock_patiently(n))
        return;
    for (unsigned i = 0; i < n->h->n_segments; i++) {
        struct nvme_segment *g = &n->h->segments[i];
        if (!n->own[i].mine || n->own[i].chunk || n->own[i].queued || g->state != NVME_ACTIVE)
            continue;
        nvme_segment_disown(n, i);
        if (g->published)
            nvme_segment_open_up(n, i, !nvme_closed(n, g->space));
        else
            nvme_segment_free(n, i);
    }
    nvme_table_unlock(n);
}

/* Sleeps until there is work. True: it was a timeout. */
static bool wait_for_work(struct nvme *n, bool partial)
{
    struct timespec t;
    if (!partial && !n->checkpoint_due) {
        pthread_cond_wait(&n->work, &n->lock);
        return false;
    }
    uint64_t ms = partial ? FLUSH_MS : CHECKPOINT_S * 1000;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(ms / 1000);
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return pthread_cond_timedwait(&n->work, &n->lock, &t) == ETIMEDOUT;
}

/* Closing waits for a disk so long; what is not written by then is lost to the cache, and nothing else. A call that is in the kernel is
 * waited for in any case. */
static void limit_closing(struct nvme *n)
{
    if (n->closing && !n->failed && now_ns() > n->close_by_ns)
        fail(n, ETIMEDOUT);
}

/* At close: the last one leaves the maps of the segments that are not full, and the checkpoint. */
static void last_words(struct nvme *n)
{
    bool alone = false;
    release_idle(n);
    if (!n->failed && nvme_lock_patiently(n)) {
        alone = nvme_alone(n);
        for (unsigned i = 0; alone && i < n->h->n_segments; i++)
            if (n->h->segments[i].state == NVME_OPEN)
                nvme_segment_adopt(n, i, NVME_ACTIVE);
        nvme_table_unlock(n);
    }
    for (unsigned i = 0; i < n->h->n_segments; i++) {
        limit_closing(n);
        if (n->own[i].mine)
            finish_segment(n, i, false);
    }
    if (!n->failed)
        checkpoint(n);
}

static void *writer_main(void *arg)
{
    struct nvme *n = arg;
    pthread_mutex_lock(&n->lock);
    for (;;) {
        if (now_ns() - n->flushed_ns > 1000000000) /* also while others keep the writer busy */
            flush_partial(n);
        if (n->checkpoint_due && now_ns() - n->h->checkpoint_ns > CHECKPOINT_S * 1000000000ull)
            checkpoint(n);
        limit_closing(n);
        if (n->queue) {
            write_chunk(n);
            continue;
        }
        if (n->seal_due)
            seal_all(n);
        if (n->queue || n->seal_due)
            continue;
        bool partial = any_partial(n);
        if (partial && (n->flush_due || n->closing)) {
            flush_partial(n);
            continue;
        }
        release_idle(n);
        if (n->queue || any_partial(n) != partial)
            continue; /* lock_table gave the lock up */
        n->flush_due = false;
        pthread_cond_broadcast(&n->written);
        if (n->closing)
            break;
        if (wait_for_work(n, partial)) {
            if (partial)
                flush_partial(n);
            else if (n->checkpoint_due)
                checkpoint(n);
        }
    }
    last_words(n);
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

static bool idle(const struct nvme *n) { return !n->queue && !n->writing && !n->seal_due && !any_partial(n); }

bool nvme_flush_until(struct nvme *n, uint64_t deadline_ns)
{
    struct timespec until = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
    int rc = 0;
    pthread_mutex_lock(&n->lock);
    while (!idle(n) && rc == 0) {
        n->flush_due = true;
        pthread_cond_signal(&n->work);
        rc = deadline_ns == UINT64_MAX ? pthread_cond_wait(&n->written, &n->lock)
                                       : pthread_cond_clockwait(&n->written, &n->lock, CLOCK_MONOTONIC, &until);
    }
    bool done = idle(n);
    pthread_mutex_unlock(&n->lock);
    return done;
}

bool nvme_room_until(struct nvme *n, uint64_t deadline_ns)
{
    struct timespec until = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
    int rc = 0;
    pthread_mutex_lock(&n->lock);
    n->room_waits++;
    while (!has_room(n) && rc == 0)
        rc = pthread_cond_clockwait(&n->room, &n->lock, CLOCK_MONOTONIC, &until);
    n->room_waits--;
    bool room = has_room(n);
    pthread_mutex_unlock(&n->lock);
    return room;
}

void nvme_flush(struct nvme *n) { (void)nvme_flush_until(n, UINT64_MAX); }

/* ---- start and stop ---- */

static int make_chunks(struct nvme *n, struct larder_error *err)
{
    uint64_t bytes = MIN(MAX(round_up(n->h->budget / 256, NVME_CHUNK), BUFFER_MIN), BUFFER_MAX);
    n->n_chunks = (unsigned)(bytes / NVME_CHUNK);
    n->chunks = calloc(n->n_chunks, sizeof(*n->chunks));
    if (!n->chunks)
        return err_nomem(err, n->n_chunks * sizeof(*n->chunks), "the write buffer of an NVMe cache");
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return err_nomem(err, bytes, "the write buffer of an NVMe cache");
    n->buffer = p;
    for (unsigned i = n->n_chunks; i-- > 0;) { /* the first is used first, so that memory grows with what waits */
        n->chunks[i].data = n->buffer + (size_t)i * NVME_CHUNK;
        n->chunks[i].next = n->free_chunks;
        n->free_chunks = &n->chunks[i];
    }
    n->n_free = n->n_chunks;
    n->close_ms = CLOSE_MS;
    n->queue_tail = &n->queue;
    return LARDER_OK;
}

int nvme_writer_start(struct nvme *n, struct larder_error *err)
{
    sigset_t all, old;
    int rc = make_chunks(n, err);
    if (rc)
        return rc;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&n->writer, NULL, writer_main, n);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return err_sys(err, LARDER_ENOMEM, rc, "%s: no thread to write the cache", n->dir);
    pthread_setname_np(n->writer, "larder-nvme");
    n->started = true;
    return LARDER_OK;
}

void nvme_writer_stop(struct nvme *n)
{
    if (!n->started)
        return;
    pthread_mutex_lock(&n->lock);
    n->closing = true;
    n->close_by_ns = now_ns() + n->close_ms * 1000000;
    pthread_cond_signal(&n->work);
    pthread_mutex_unlock(&n->lock);
    pthread_join(n->writer, NULL);
    n->started = false;
}

void nvme_writer_release(struct nvme *n)
{
    if (n->buffer)
        munmap(n->buffer, (size_t)n->n_chunks * NVME_CHUNK);
    if (n->big.data)
        munmap(n->big.data, n->big.len);
    free(n->chunks);
}
