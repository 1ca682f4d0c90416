/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_write.c - writing behind: admission copies a record into a chunk of memory, one thread writes the chunks.
 *
 *     nvme_admit: record --> chunk of the space's active segment --full, or 200 ms old--> queue --> writer: pwrite --> published
 *
 * An entry is in the map from admission on, but pending: nobody reads it, and nobody admits the record again. It is published when
 * the bytes are on the disk as far as reads are concerned. The chunks are a fixed pool; when none is free the record is
 * refused this time, and nobody ever waits for the disk. A chunk begins and ends at a page; one that is flushed before it is
 * full is padded, so that no page is written twice.
 *
 * A segment that is full gets its footer: data are synced first, so that a footer never promises what a power cut took. What a
 * footer or a checkpoint lacks costs time or a miss after a crash, never a wrong byte.
 *
 * Room: a free segment; else those of the space that was used longest ago, of spaces nobody registered since open; else, with
 * FIFO, the oldest sealed one; else admission for the space is closed until room is freed.
 *
 * The disk says no: for a new segment (full, or over the limit by its real blocks), it is REFUSED and the others go on; while
 * writing, no more is written until the next open. Reads go on in either case.
 *
 * Threads: nvme_admit from any; the writer; all under nvme.lock, which is never held across I/O.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tiers/nvme_int.h"

#define FLUSH_MS 200u
#define CHECKPOINT_S 60u
#define FOOTER_PIECE (64 * KIB)
#define BUFFER_MIN (8 * MIB)
#define BUFFER_MAX (256 * MIB)

/* ---- the map and its counts ---- */

void nvme_entry_gone(struct nvme *n, unsigned segment)
{
    struct nvme_segment *g = &n->segments[segment];
    n->entries -= n->entries > 0;
    g->live -= g->live > 0;
    if (g->live == 0 && g->state == NVME_SEALED)
        nvme_segment_free(n, segment);
}

bool nvme_entry_add(struct nvme *n, uint32_t space, uint32_t segment, const struct nvme_entry *e, bool pending)
{
    struct nvme_hint old;
    bool had = nvme_map_find(&n->map, space, e->ordinal, &old);
    if (!nvme_map_put(&n->map, space, e->ordinal, segment, e->unit, e->units, pending))
        return false;
    n->segments[segment].live++;
    n->entries++;
    if (had)
        nvme_entry_gone(n, old.segment);
    return true;
}

void nvme_segment_free(struct nvme *n, unsigned segment)
{
    struct nvme_segment *g = &n->segments[segment];
    struct nvme_space *s = &n->spaces[g->space];
    atomic_store_explicit(&n->seq[segment], 0, memory_order_release); /* all its entries are gone */
    n->entries -= MIN(n->entries, g->live);
    if (s->active == segment + 1)
        s->active = 0;
    g->state = NVME_FREE;
    g->live = g->n = g->published = 0;
    if (g->chunk) {
        g->chunk->next = n->free_chunks;
        n->free_chunks = g->chunk;
        n->n_free++;
        g->chunk = NULL;
    }
    for (unsigned i = 1; i <= NVME_SPACES_MAX; i++)
        n->spaces[i].closed = false;
}

/* ---- room ---- */

static unsigned free_segment(const struct nvme *n)
{
    for (unsigned i = 0; i < n->n_segments; i++)
        if (n->segments[i].state == NVME_FREE && !n->segments[i].queued)
            return i;
    return NVME_SEGMENTS_MAX;
}

static bool in_use(const struct nvme *n, uint32_t space)
{
    for (unsigned i = 0; i < n->n_segments; i++)
        if (n->seq[i] && n->segments[i].space == space)
            return true;
    return false;
}

/* Frees all segments of the space that was used longest ago, of those nobody uses. */
static bool reclaim_space(struct nvme *n)
{
    uint32_t oldest = 0;
    for (uint32_t i = 1; i <= NVME_SPACES_MAX; i++)
        if (n->spaces[i].taken && !n->spaces[i].live && in_use(n, i) &&
            (!oldest || n->spaces[i].last_used_s < n->spaces[oldest].last_used_s))
            oldest = i;
    if (!oldest)
        return false;
    for (unsigned i = 0; i < n->n_segments; i++) {
        if (!n->seq[i] || n->segments[i].space != oldest)
            continue;
        n->evictions += n->segments[i].live;
        nvme_segment_free(n, i);
    }
    n->spaces[oldest].taken = false;
    return true;
}

static bool recycle_oldest(struct nvme *n)
{
    unsigned oldest = NVME_SEGMENTS_MAX;
    for (unsigned i = 0; i < n->n_segments; i++)
        if (n->segments[i].state == NVME_SEALED && (oldest == NVME_SEGMENTS_MAX || n->seq[i] < n->seq[oldest]))
            oldest = i;
    if (oldest == NVME_SEGMENTS_MAX)
        return false;
    n->evictions += n->segments[oldest].live;
    nvme_segment_free(n, oldest);
    return true;
}

static unsigned find_room(struct nvme *n)
{
    unsigned segment = free_segment(n);
    if (segment == NVME_SEGMENTS_MAX && (reclaim_space(n) || (n->replacement == REPLACE_FIFO && recycle_oldest(n))))
        segment = free_segment(n);
    return segment;
}

/* ---- chunks ---- */

static void enqueue(struct nvme *n, struct nvme_segment *g)
{
    struct nvme_chunk *c = g->chunk;
    uint32_t padded = (uint32_t)round_up(c->len, NVME_PAGE);
    memset(c->data + c->len, 0, padded - c->len);
    c->len = padded;
    c->next = NULL;
    *n->queue_tail = c;
    n->queue_tail = &c->next;
    g->chunk = NULL;
    g->queued++;
    n->writing++;
    pthread_cond_signal(&n->work);
}

static void flush_segment(struct nvme *n, struct nvme_segment *g)
{
    if (!g->chunk)
        return;
    g->end = round_up(g->end, NVME_PAGE);
    enqueue(n, g);
}

/* Bytes at offset `at`, which is not before the end of the segment's chunks; bytes NULL: zeroes. The chunks are there. */
static void put_bytes(struct nvme *n, unsigned segment, uint64_t at, const void *bytes, size_t len)
{
    struct nvme_segment *g = &n->segments[segment];
    const uint8_t *from = bytes;
    while (len) {
        struct nvme_chunk *c = g->chunk;
        if (!c) {
            c = n->free_chunks;
            n->free_chunks = c->next;
            n->n_free--;
            *c = (struct nvme_chunk){.data = c->data, .segment = segment, .seq = n->seq[segment], .offset = at};
            g->chunk = c;
        }
        size_t part = MIN(len, NVME_CHUNK - c->len);
        if (from)
            memcpy(c->data + c->len, from, part);
        else
            memset(c->data + c->len, 0, part);
        from = from ? from + part : NULL;
        c->len += (uint32_t)part;
        at += part;
        len -= part;
        if (c->len == NVME_CHUNK)
            enqueue(n, g);
    }
}

static void begin_segment(struct nvme *n, unsigned segment, uint32_t space)
{
    struct nvme_segment *g = &n->segments[segment];
    uint8_t page[NVME_PAGE];
    g->state = NVME_ACTIVE;
    g->space = space;
    g->life++;
    uint64_t seq = n->next_seq + (((uint64_t)g->life - n->next_seq) & 1023); /* ends in life: [nvme_map.c, generations] */
    n->next_seq = seq + 1;
    atomic_store_explicit(&n->seq[segment], seq, memory_order_release);
    g->created_s = now_wall_s();
    g->live = g->n = g->published = 0;
    g->end = NVME_PAGE;
    n->spaces[space].active = segment + 1;
    struct nvme_head h = {seq, n->segment_bytes, g->created_s, n->spaces[space].key};
    nvme_head_encode(&h, page);
    put_bytes(n, segment, 0, page, NVME_PAGE);
}

void nvme_seal(struct nvme *n, unsigned segment)
{
    struct nvme_segment *g = &n->segments[segment];
    flush_segment(n, g);
    g->state = NVME_SEALING;
    if (n->spaces[g->space].active == segment + 1)
        n->spaces[g->space].active = 0;
    n->seal_due = true;
    pthread_cond_signal(&n->work);
}

/* ---- admission ---- */

/* Where a record would go in a segment filled up to end with n_records; 0: it does not fit. */
static uint64_t fits(const struct nvme *n, uint64_t end, size_t n_records, uint64_t units)
{
    uint64_t at = nvme_record_at(end, units), data_end = round_up(at + units * NVME_UNIT, NVME_PAGE);
    return data_end + nvme_footer_bytes(n_records + 1) + NVME_PAGE <= n->segment_bytes ? at : 0;
}

/* Are there chunks for bytes up to `to`, of a segment filled up to end? */
static bool chunks_for(const struct nvme *n, const struct nvme_chunk *current, uint64_t end, uint64_t to)
{
    uint64_t covered = current ? current->offset + NVME_CHUNK : end;
    return to <= covered || (to - covered + NVME_CHUNK - 1) / NVME_CHUNK <= n->n_free;
}

/* The segment and place for a record: active, or a new one. False: not now, or (closed) no room. */
static bool place_record(struct nvme *n, uint32_t space, uint64_t units, unsigned *segment, uint64_t *at)
{
    struct nvme_space *s = &n->spaces[space];
    struct nvme_segment *g = s->active ? &n->segments[s->active - 1] : NULL;
    uint64_t bytes = units * NVME_UNIT;
    *at = g ? fits(n, g->end, g->n, units) : 0;
    if (*at) {
        *segment = s->active - 1;
        return chunks_for(n, g->chunk, g->end, *at + bytes);
    }
    if (!chunks_for(n, NULL, 0, NVME_PAGE + bytes))
        return false;
    *segment = find_room(n);
    if (*segment == NVME_SEGMENTS_MAX) {
        s->closed = true;
        return false;
    }
    if (s->active)
        nvme_seal(n, s->active - 1);
    begin_segment(n, *segment, space);
    *at = NVME_PAGE;
    return true;
}

static bool append(struct nvme *n, uint32_t space, uint64_t ordinal, const struct cached *c)
{
    static const uint8_t zeroes[NVME_UNIT];
    uint64_t units = nvme_units(c->stored_len), at;
    uint8_t head[NVME_UNIT];
    unsigned segment;
    if (units > NVME_UNITS_MAX || units * NVME_UNIT > (uint64_t)n->n_chunks * NVME_CHUNK - 2 * NVME_CHUNK ||
        !fits(n, NVME_PAGE, 0, units))
        return false; /* never: too long */
    if (!place_record(n, space, units, &segment, &at)) {
        if (!n->spaces[space].closed)
            n->flush_due = true; /* the pool may be held by chunks that nobody fills up */
        return false;
    }
    struct nvme_segment *g = &n->segments[segment];
    struct nvme_entry e = {ordinal, (uint32_t)(at / NVME_UNIT), (uint32_t)units};
    if (GROW(g->entries, g->cap, g->n + 1, NULL) || !nvme_entry_add(n, space, segment, &e, true))
        return false;
    struct nvme_record r = {n->seq[segment], n->spaces[space].hash, ordinal, c->stored_len, c->raw_len, c->crc, c->codec};
    nvme_record_encode(&r, head);
    g->entries[g->n++] = e;
    put_bytes(n, segment, g->end, NULL, at - g->end);
    put_bytes(n, segment, at, head, NVME_UNIT);
    put_bytes(n, segment, at + NVME_UNIT, c->bytes, c->stored_len);
    put_bytes(n, segment, at + NVME_UNIT + c->stored_len, zeroes, units * NVME_UNIT - NVME_UNIT - c->stored_len);
    g->end = at + units * NVME_UNIT;
    return true;
}

int nvme_admit(struct nvme *n, uint32_t space, uint64_t ordinal, const struct cached *record)
{
    struct nvme_hint h;
    int rc = LARDER_OK;
    if (atomic_load_explicit(&n->failed, memory_order_relaxed) || space == 0 || space > NVME_SPACES_MAX || ordinal > CACHE_ORDINAL_MAX)
        return LARDER_ENOMEM;
    pthread_mutex_lock(&n->lock);
    if (!nvme_map_find(&n->map, space, ordinal, &h)) {
        bool added = !n->closing && !n->failed && n->spaces[space].taken && !n->spaces[space].closed && append(n, space, ordinal, record);
        n->admissions += added;
        n->refusals += !added;
        rc = added ? LARDER_OK : LARDER_ENOMEM;
        if (n->flush_due)
            pthread_cond_signal(&n->work);
    }
    pthread_mutex_unlock(&n->lock);
    return rc;
}

bool nvme_closed(const struct nvme *n, uint32_t space)
{
    return space == 0 || space > NVME_SPACES_MAX || atomic_load_explicit(&n->failed, memory_order_relaxed) ||
           atomic_load_explicit(&n->spaces[space].closed, memory_order_relaxed);
}

/* ---- the writer ---- */

/* The file of a segment, whole. 0, or -errno. *blocks: its bytes on disk. */
static int make_file(struct nvme *n, unsigned segment, int *fd, uint64_t *blocks)
{
    struct stat st;
    int rc = 0;
    *fd = nvme_segment_open(n, segment, true);
    if (*fd < 0)
        return *fd;
    if (fstat(*fd, &st) != 0)
        rc = -errno;
    if (!rc && ((uint64_t)st.st_size != n->segment_bytes || (uint64_t)st.st_blocks * 512 < n->segment_bytes)) {
        do
            rc = fallocate(*fd, 0, 0, (off_t)n->segment_bytes) == 0 ? 0 : -errno;
        while (rc == -EINTR);
        if (rc == -EOPNOTSUPP) /* then a full disk shows while writing */
            rc = ftruncate(*fd, (off_t)n->segment_bytes) == 0 ? 0 : -errno;
        if (!rc && fstat(*fd, &st) != 0)
            rc = -errno;
    }
    *blocks = rc ? 0 : MAX((uint64_t)st.st_blocks * 512, n->segment_bytes);
    return rc;
}

static void remove_file(struct nvme *n, unsigned segment, int fd)
{
    char name[16];
    nvme_segment_name(segment, name);
    if (fd >= 0)
        close(fd);
    unlinkat(n->dir_fd, name, 0);
}

/* Entries that will never be published leave the map. */
static void forget_pending(struct nvme *n, unsigned segment)
{
    struct nvme_segment *g = &n->segments[segment];
    for (size_t i = g->published; i < g->n; i++)
        if (nvme_map_drop(&n->map, g->space, g->entries[i].ordinal, segment, g->entries[i].unit))
            nvme_entry_gone(n, segment);
    g->n = g->published;
}

/* A segment that the disk has no room for. The lock is held. */
static void refuse_segment(struct nvme *n, unsigned segment, int error)
{
    nvme_warn(n, "%s: no room for another segment (%s): the cache stays smaller than its limit", n->dir, strerror(error));
    forget_pending(n, segment);
    nvme_segment_free(n, segment);
    n->segments[segment].state = NVME_REFUSED;
    for (unsigned i = 0; i < n->n_segments; i++) /* nor for any other */
        if (n->segments[i].state == NVME_FREE && n->segments[i].fd < 0)
            n->segments[i].state = NVME_REFUSED;
}

/* Nothing more is written. The lock is held. */
static void fail(struct nvme *n, int error)
{
    n->failed = true;
    nvme_warn(n, "%s: writing failed (%s): nothing more is admitted, what is there is read", n->dir, strerror(error));
    for (unsigned i = 0; i < n->n_segments; i++)
        if (n->segments[i].state == NVME_ACTIVE || n->segments[i].state == NVME_SEALING)
            forget_pending(n, i);
}

/* Makes sure that a chunk's segment has a file. The lock is held, and given up in between. */
static int ready_file(struct nvme *n, unsigned segment)
{
    struct nvme_segment *g = &n->segments[segment];
    uint64_t blocks = 0, total = n->other_blocks;
    int fd;
    if (g->fd >= 0)
        return 0;
    pthread_mutex_unlock(&n->lock);
    int rc = make_file(n, segment, &fd, &blocks);
    pthread_mutex_lock(&n->lock);
    for (unsigned i = 0; i < n->n_segments; i++)
        total += n->segments[i].blocks;
    if (!rc && total + blocks > n->budget)
        rc = -EDQUOT;
    if (rc) {
        remove_file(n, segment, fd);
        refuse_segment(n, segment, -rc);
        return rc;
    }
    g->fd = fd;
    g->blocks = blocks;
    return 0;
}

static void publish(struct nvme *n, unsigned segment, uint64_t end)
{
    struct nvme_segment *g = &n->segments[segment];
    for (; g->published < g->n; g->published++) {
        const struct nvme_entry *e = &g->entries[g->published];
        if (((uint64_t)e->unit + e->units) * NVME_UNIT > end)
            break;
        nvme_map_publish(&n->map, g->space, e->ordinal, segment, e->unit);
    }
}

/* Writes the first chunk of the queue. The lock is held, and given up in between. */
static void write_chunk(struct nvme *n)
{
    struct nvme_chunk *c = n->queue;
    struct nvme_segment *g = &n->segments[c->segment];
    n->queue = c->next;
    if (!n->queue)
        n->queue_tail = &n->queue;
    bool wanted = !n->failed && n->seq[c->segment] == c->seq && ready_file(n, c->segment) == 0;
    if (wanted) {
        int fd = g->fd;
        pthread_mutex_unlock(&n->lock);
        int rc = nvme_pwrite(n, fd, c->data, c->len, c->offset);
        pthread_mutex_lock(&n->lock);
        if (rc)
            fail(n, -rc);
        else
            publish(n, c->segment, c->offset + c->len);
    }
    g->queued--;
    n->writing--;
    c->next = n->free_chunks;
    n->free_chunks = c;
    n->n_free++;
}

/* Footer and trailer. Called without the lock: entries do not change any more. 0, or -errno. */
static int write_footer(struct nvme *n, int fd, uint64_t seq, const struct nvme_entry *entries, size_t count, uint64_t end, bool sealed)
{
    AUTO_FREE uint8_t *piece = NULL;
    struct nvme_trailer t = {seq, round_up(end, NVME_PAGE), (uint32_t)count, 0, sealed};
    int rc = 0;
    if (posix_memalign((void **)&piece, NVME_PAGE, FOOTER_PIECE) != 0)
        return piece = NULL, -ENOMEM;
    if (fdatasync(fd) != 0)
        return -errno;
    uint64_t at = t.footer;
    for (size_t i = 0; i < count && !rc;) {
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
    return rc ? rc : nvme_pwrite(n, fd, piece, NVME_PAGE, n->segment_bytes - NVME_PAGE);
}

/* Ends a segment that is SEALING, or (at close) leaves its map with an active one. The lock is held, and given up in between. */
static void finish_segment(struct nvme *n, unsigned segment, bool sealed)
{
    struct nvme_segment *g = &n->segments[segment];
    int rc = 0;
    if (g->fd >= 0 && !n->failed) {
        int fd = g->fd;
        uint64_t seq = n->seq[segment];
        pthread_mutex_unlock(&n->lock);
        rc = write_footer(n, fd, seq, g->entries, g->n, g->end, sealed);
        pthread_mutex_lock(&n->lock);
    }
    if (rc) /* not lost: the next open walks it */
        fail(n, -rc);
    if (!sealed)
        return;
    g->state = NVME_SEALED;
    n->checkpoint_due = true;
    free(g->entries);
    g->entries = NULL;
    g->cap = g->n = g->published = 0;
    if (!g->live)
        nvme_segment_free(n, segment);
}

static void seal_all(struct nvme *n)
{
    n->seal_due = false;
    for (unsigned i = 0; i < n->n_segments; i++) {
        if (n->segments[i].state != NVME_SEALING)
            continue;
        if (n->segments[i].queued)
            n->seal_due = true; /* after its chunks */
        else
            finish_segment(n, i, true);
    }
}

/* The lock is held, and given up in between. A checkpoint that cannot be written costs nothing but ages of datasets. */
static void checkpoint(struct nvme *n)
{
    AUTO_FREE struct nvme_used *used = calloc(NVME_SPACES_MAX, sizeof(*used));
    AUTO_FREE uint8_t *bytes = malloc(NVME_CHECKPOINT_MAX);
    uint64_t now = now_wall_s(), next_seq = n->next_seq;
    size_t count = 0;
    n->checkpoint_due = false;
    n->checkpoint_ns = now_ns();
    if (!used || !bytes)
        return;
    for (uint32_t i = 1; i <= NVME_SPACES_MAX; i++) {
        struct nvme_space *s = &n->spaces[i];
        if (!s->taken)
            continue;
        if (s->live)
            s->last_used_s = now;
        if (s->live || in_use(n, i))
            used[count++] = (struct nvme_used){s->key, s->last_used_s};
    }
    pthread_mutex_unlock(&n->lock);
    int rc = nvme_checkpoint_save(n->dir_fd, bytes, nvme_checkpoint_encode(next_seq, used, count, bytes));
    pthread_mutex_lock(&n->lock);
    if (rc)
        nvme_warn(n, "%s: no checkpoint (%s): the next open takes longer to find out how old datasets are", n->dir, strerror(-rc));
}

static bool any_partial(const struct nvme *n)
{
    for (unsigned i = 0; i < n->n_segments; i++)
        if (n->segments[i].chunk)
            return true;
    return false;
}

static void flush_partial(struct nvme *n)
{
    n->flush_due = false;
    n->flushed_ns = now_ns();
    for (unsigned i = 0; i < n->n_segments; i++)
        flush_segment(n, &n->segments[i]);
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

static void *writer_main(void *arg)
{
    struct nvme *n = arg;
    pthread_mutex_lock(&n->lock);
    for (;;) {
        if (now_ns() - n->flushed_ns > 1000000000) /* also while others keep the writer busy */
            flush_partial(n);
        if (n->checkpoint_due && now_ns() - n->checkpoint_ns > CHECKPOINT_S * 1000000000ull)
            checkpoint(n);
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
    for (unsigned i = 0; i < n->n_segments; i++)
        if (n->segments[i].state == NVME_ACTIVE)
            finish_segment(n, i, false);
    checkpoint(n);
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

void nvme_flush(struct nvme *n) { (void)nvme_flush_until(n, UINT64_MAX); }

/* ---- start and stop ---- */

static int make_chunks(struct nvme *n, struct larder_error *err)
{
    uint64_t bytes = MIN(MAX(round_up(n->budget / 256, NVME_CHUNK), BUFFER_MIN), BUFFER_MAX);
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
    n->started = true;
    return LARDER_OK;
}

void nvme_writer_stop(struct nvme *n)
{
    if (!n->started)
        return;
    pthread_mutex_lock(&n->lock);
    n->closing = true;
    pthread_cond_signal(&n->work);
    pthread_mutex_unlock(&n->lock);
    pthread_join(n->writer, NULL);
    n->started = false;
}

void nvme_writer_release(struct nvme *n)
{
    if (n->buffer)
        munmap(n->buffer, (size_t)n->n_chunks * NVME_CHUNK);
    free(n->chunks);
    for (unsigned i = 0; i < NVME_SEGMENTS_MAX; i++)
        free(n->segments[i].entries);
}
