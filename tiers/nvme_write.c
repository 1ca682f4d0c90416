/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_write.c - writing behind: admission copies a record into a chunk of memory, one thread writes the chunks.
 *
 *     nvme_admit: record --> chunk of a segment of the space --full, or 200 ms old--> queue --> writer: pwrite --> published
 *
 * An entry is in the map from admission on, but pending: nobody reads it, and nobody admits the record again. It is published when
 * the bytes are on the disk as far as reads are concerned. The chunks are a fixed pool; when none is free the record is
 * refused this time, and nobody ever waits for the disk. A chunk begins and ends at a page; one that is flushed before it is
 * full is padded, so that no page is written twice. A record longer than the pool gets memory of its own, one at a time.
 *
 * A segment is filled by one process at a time. When it has nothing more for it the segment is OPEN, and whoever next has a
 * record of that space takes it, before a new one is begun. A record longer than a segment begins one that takes the place of
 * several; what is left in it is filled like any other.
 *
 * A segment that is full gets its footer: data are synced first, so that a footer never promises what a power cut took. What a
 * footer or a checkpoint lacks costs time or a miss after a crash, never a wrong byte.
 *
 * Room: a free segment; else those of the space that was used longest ago, of spaces no living process has registered; else, with
 * FIFO, the oldest sealed one; else admission for the space is closed, in this process, until room is freed.
 *
 * The disk says no: for a new segment (full, or over the limit by its real blocks), it is REFUSED and the others go on; while
 * writing, or for a reason of this process, it writes no more until it opens the cache again. Reads go on in either case.
 *
 * Threads: nvme_admit from any; the writer; all under nvme.lock, which is never held across I/O. What is shared is changed under
 * h->lock besides, which is taken last and given back before bytes are copied.
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
#define WRITER_TRIES 30 /* of 2 s, to get the table's lock */

/* ---- chunks ---- */

static void enqueue(struct nvme *n, struct nvme_chunk *c)
{
    uint32_t padded = (uint32_t)round_up(c->len, NVME_PAGE);
    memset(c->data + c->len, 0, padded - c->len);
    c->len = padded;
    c->next = NULL;
    *n->queue_tail = c;
    n->queue_tail = &c->next;
    n->own[c->segment].queued++;
    n->writing++;
    pthread_cond_signal(&n->work);
}

static void flush_segment(struct nvme *n, unsigned segment)
{
    struct nvme_own *own = &n->own[segment];
    if (!own->chunk)
        return;
    own->end = round_up(own->end, NVME_PAGE);
    enqueue(n, own->chunk);
    own->chunk = NULL;
}

static void free_chunk(struct nvme *n, struct nvme_chunk *c)
{
    if (c == &n->big) {
        munmap(c->data, c->len);
        c->data = NULL;
        return;
    }
    c->next = n->free_chunks;
    n->free_chunks = c;
    n->n_free++;
}

/* Bytes at offset `at`, which is not before the end of the segment's chunks; bytes NULL: zeroes. The chunks are there. */
static void put_bytes(struct nvme *n, unsigned segment, uint64_t at, const void *bytes, size_t len)
{
    struct nvme_own *own = &n->own[segment];
    const uint8_t *from = bytes;
    while (len) {
        struct nvme_chunk *c = own->chunk;
        if (!c) {
            c = n->free_chunks;
            n->free_chunks = c->next;
            n->n_free--;
            *c = (struct nvme_chunk){.data = c->data, .segment = segment, .seq = own->seq, .offset = at};
            own->chunk = c;
            pthread_cond_signal(&n->work); /* its 200 ms begin */
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
        if (c->len == NVME_CHUNK) {
            own->chunk = NULL;
            enqueue(n, c);
        }
    }
}

/* ---- segments that this handle fills ---- */

/* Where the next record of a segment goes that nobody fills. */
static uint64_t end_of(const struct nvme *n, unsigned segment)
{
    uint32_t count = n->h->segments[segment].published;
    const struct nvme_entry *e = nvme_entries(n, segment) + count;
    return count ? round_up(((uint64_t)e[-1].unit + e[-1].units) * NVME_UNIT, NVME_PAGE) : NVME_PAGE;
}

static void adopt(struct nvme *n, unsigned segment, enum nvme_state state)
{
    struct nvme_segment *g = &n->h->segments[segment];
    struct nvme_own *own = &n->own[segment];
    g->state = state;
    g->owner = n->member;
    own->mine = true;
    own->seq = n->h->seq[segment];
    own->end = end_of(n, segment);
    if (state == NVME_ACTIVE)
        n->active[g->space] = segment + 1;
}

static void disown(struct nvme *n, unsigned segment)
{
    struct nvme_own *own = &n->own[segment];
    uint32_t space = n->h->segments[segment].space;
    own->mine = false;
    if (n->active[space] == segment + 1)
        n->active[space] = 0;
    if (own->chunk)
        free_chunk(n, own->chunk);
    own->chunk = NULL;
}

static void seal(struct nvme *n, unsigned segment)
{
    flush_segment(n, segment);
    n->h->segments[segment].state = NVME_SEALING;
    if (n->active[n->h->segments[segment].space] == segment + 1)
        n->active[n->h->segments[segment].space] = 0;
    n->seal_due = true;
    pthread_cond_signal(&n->work);
}

static void begin(struct nvme *n, unsigned segment, uint32_t space, uint32_t span)
{
    struct nvme_shared *h = n->h;
    uint8_t page[NVME_PAGE];
    nvme_segment_begin(n, segment, space, span);
    adopt(n, segment, NVME_ACTIVE);
    struct nvme_head head = {h->seq[segment], h->segment_bytes, h->segments[segment].created_s, span, h->spaces[space].key};
    nvme_head_encode(&head, page);
    put_bytes(n, segment, 0, page, NVME_PAGE);
}

/* ---- admission ---- */

static uint64_t room_mark(const struct nvme *n, uint32_t space)
{
    return 1 + atomic_load_explicit(&n->h->freed, memory_order_relaxed) +
           atomic_load_explicit(&n->h->spaces[space].opened, memory_order_relaxed);
}

bool nvme_closed(const struct nvme *n, uint32_t space)
{
    return space == 0 || space > NVME_SPACES_MAX || atomic_load_explicit(&n->failed, memory_order_relaxed) ||
           atomic_load_explicit(&n->closed[space], memory_order_relaxed) == room_mark(n, space);
}

struct spot { unsigned segment; uint64_t at; };

/* Too long for the buffer: it gets memory of its own, which begins at a page. */
static bool is_big(const struct nvme *n, uint64_t units) { return units * NVME_UNIT > (uint64_t)(n->n_chunks - 2) * NVME_CHUNK; }

/* Places that a segment takes whose first record is so long. */
static uint64_t span_for(const struct nvme_shared *h, uint64_t units)
{
    uint64_t bytes = NVME_PAGE + round_up(units * NVME_UNIT, NVME_PAGE) + nvme_footer_bytes(1) + NVME_PAGE;
    return (bytes + h->segment_bytes - 1) / h->segment_bytes;
}

/* Where a record would go in a segment that is filled up to end; 0: it does not fit. */
static uint64_t fits(const struct nvme *n, unsigned segment, uint64_t end, uint64_t units)
{
    uint32_t count = n->h->segments[segment].n;
    uint64_t at = is_big(n, units) ? round_up(end, NVME_PAGE) : nvme_record_at(end, units);
    uint64_t data_end = round_up(at + units * NVME_UNIT, NVME_PAGE);
    return count < n->h->entries_max && data_end + nvme_footer_bytes(count + 1) + NVME_PAGE <= nvme_bytes_of(n, segment) ? at : 0;
}

/* Are there chunks for what lies between the end of a segment (of its chunk, if it has one) and the end of a record at `at`? */
static bool chunks_for(const struct nvme *n, const struct nvme_chunk *current, uint64_t end, uint64_t at, uint64_t units)
{
    uint64_t covered = current ? current->offset + NVME_CHUNK : end, to = is_big(n, units) ? at : at + units * NVME_UNIT;
    return to <= covered || (to - covered + NVME_CHUNK - 1) / NVME_CHUNK <= n->n_free;
}

/* A segment of the space that nobody fills and that has room. */
static bool find_open(const struct nvme *n, uint32_t space, uint64_t units, struct spot *spot)
{
    for (unsigned i = 0; i < n->h->n_segments; i++)
        if (n->h->segments[i].state == NVME_OPEN && n->h->segments[i].space == space &&
            (spot->at = fits(n, i, end_of(n, i), units)) != 0) {
            spot->segment = i;
            return true;
        }
    return false;
}

/* What is nearly full stays so: it gets its footer. */
static void seal_full(struct nvme *n, uint32_t space)
{
    for (unsigned i = 0; i < n->h->n_segments; i++)
        if (n->h->segments[i].state == NVME_OPEN && n->h->segments[i].space == space && !n->own[i].queued) {
            adopt(n, i, NVME_SEALING);
            seal(n, i);
        }
}

/* FIFO: one that is being filled or sealed can be recycled then. */
static bool room_to_come(const struct nvme_shared *h)
{
    bool any = false;
    for (unsigned i = 0; i < h->n_segments && !any; i++)
        any = h->segments[i].state == NVME_ACTIVE || h->segments[i].state == NVME_SEALING;
    return any && h->replacement == REPLACE_FIFO;
}

/* A new segment. False: not now, or (closed) no room. */
static bool find_new(struct nvme *n, uint32_t space, uint64_t units, struct spot *spot)
{
    uint32_t active = n->active[space], span = (uint32_t)span_for(n->h, units);
    if (!chunks_for(n, NULL, 0, NVME_PAGE, units))
        return false;
    spot->segment = nvme_find_room(n, span);
    spot->at = NVME_PAGE;
    if (spot->segment == NVME_SEGMENTS_MAX) {
        if (!room_to_come(n->h))
            atomic_store_explicit(&n->closed[space], room_mark(n, space), memory_order_relaxed);
        return false;
    }
    if (active && span == 1)
        seal(n, active - 1);
    else if (active)
        flush_segment(n, active - 1); /* shorter ones go on filling it later */
    if (span == 1)
        seal_full(n, space);
    begin(n, spot->segment, space, span);
    return true;
}

/* The segment and place for a record. */
static bool place_record(struct nvme *n, uint32_t space, uint64_t units, struct spot *spot)
{
    uint32_t active = n->active[space];
    if (active) {
        struct nvme_own *own = &n->own[active - 1];
        *spot = (struct spot){active - 1, fits(n, active - 1, own->end, units)};
        if (spot->at)
            return chunks_for(n, own->chunk, own->end, spot->at, units);
    }
    if (find_open(n, space, units, spot) || (nvme_reap(n) && find_open(n, space, units, spot))) {
        if (!chunks_for(n, NULL, end_of(n, spot->segment), spot->at, units))
            return false;
        if (active)
            flush_segment(n, active - 1);
        adopt(n, spot->segment, NVME_ACTIVE);
        return true;
    }
    return find_new(n, space, units, spot);
}

enum appended { APPENDED, THERE_ALREADY, NOT_APPENDED };

/* Takes a place and notes the entry. The lock of the table is held. */
static enum appended reserve(struct nvme *n, uint32_t space, uint64_t ordinal, uint64_t units, struct spot *spot)
{
    struct nvme_shared *h = n->h;
    struct nvme_hint there;
    if (nvme_map_find(&n->map, space, ordinal, &there))
        return THERE_ALREADY;
    if (!h->spaces[space].taken || span_for(h, units) > h->n_segments)
        return NOT_APPENDED;
    if (!place_record(n, space, units, spot)) {
        if (!nvme_closed(n, space))
            n->flush_due = true; /* the pool may be held by chunks that nobody fills up */
        return NOT_APPENDED;
    }
    struct nvme_segment *g = &h->segments[spot->segment];
    struct nvme_entry e = {ordinal, (uint32_t)(spot->at / NVME_UNIT), (uint32_t)units};
    nvme_entries(n, spot->segment)[g->n++] = e;
    if (nvme_entry_add(n, space, spot->segment, &e, true))
        return APPENDED;
    g->n--;
    return NOT_APPENDED;
}

/* The record itself, into chunks. */
static void put_record(struct nvme *n, const struct spot *spot, const struct nvme_record *r, const void *bytes)
{
    static const uint8_t zeroes[NVME_UNIT];
    struct nvme_own *own = &n->own[spot->segment];
    uint64_t len = nvme_units(r->stored_len) * NVME_UNIT;
    uint8_t head[NVME_UNIT];
    nvme_record_encode(r, head);
    if (is_big(n, nvme_units(r->stored_len))) {
        flush_segment(n, spot->segment);
        n->big = (struct nvme_chunk){n->big.data, spot->segment, own->seq, spot->at, (uint32_t)len, NULL};
        memcpy(n->big.data, head, NVME_UNIT);
        memcpy(n->big.data + NVME_UNIT, bytes, r->stored_len);
        enqueue(n, &n->big);
        own->end = round_up(spot->at + len, NVME_PAGE);
        return;
    }
    put_bytes(n, spot->segment, own->end, NULL, spot->at - own->end);
    put_bytes(n, spot->segment, spot->at, head, NVME_UNIT);
    put_bytes(n, spot->segment, spot->at + NVME_UNIT, bytes, r->stored_len);
    put_bytes(n, spot->segment, spot->at + NVME_UNIT + r->stored_len, zeroes, len - NVME_UNIT - r->stored_len);
    own->end = spot->at + len;
}

/* Memory for a record that is longer than the pool. */
static bool take_big(struct nvme *n, uint64_t units)
{
    if (n->big.data) {
        n->flush_due = true; /* one at a time */
        return false;
    }
    n->big.len = (uint32_t)round_up(units * NVME_UNIT, NVME_PAGE);
    void *p = mmap(NULL, n->big.len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    n->big.data = p == MAP_FAILED ? NULL : p;
    return n->big.data != NULL;
}

static enum appended append(struct nvme *n, uint32_t space, uint64_t ordinal, const struct cached *c)
{
    uint64_t units = nvme_units(c->stored_len);
    struct spot spot;
    if (units > NVME_UNITS_MAX || span_for(n->h, units) > n->h->n_segments)
        return NOT_APPENDED; /* never: too long */
    bool big = is_big(n, units);
    if (big && !take_big(n, units))
        return NOT_APPENDED;
    enum appended rc = NOT_APPENDED;
    if (nvme_table_lock(n)) {
        rc = reserve(n, space, ordinal, units, &spot);
        nvme_table_unlock(n);
    }
    if (rc == APPENDED) {
        struct nvme_record r = {n->own[spot.segment].seq, n->h->spaces[space].hash, ordinal, c->stored_len, c->raw_len, c->crc, c->codec};
        put_record(n, &spot, &r, c->bytes);
    } else if (big) {
        free_chunk(n, &n->big);
    }
    return rc;
}

int nvme_admit(struct nvme *n, uint32_t space, uint64_t ordinal, const struct cached *record)
{
    struct nvme_hint h;
    if (atomic_load_explicit(&n->failed, memory_order_relaxed) || space == 0 || space > NVME_SPACES_MAX || ordinal > CACHE_ORDINAL_MAX)
        return LARDER_ENOMEM;
    if (nvme_map_find(&n->map, space, ordinal, &h))
        return LARDER_OK;
    pthread_mutex_lock(&n->lock);
    bool may = !n->closing && !n->failed && !nvme_closed(n, space);
    enum appended rc = may ? append(n, space, ordinal, record) : NOT_APPENDED;
    if (n->flush_due)
        pthread_cond_signal(&n->work);
    pthread_mutex_unlock(&n->lock);
    if (rc == APPENDED)
        atomic_fetch_add(&n->h->admissions, 1);
    else if (rc == NOT_APPENDED)
        atomic_fetch_add(&n->h->refusals, 1);
    return rc == NOT_APPENDED ? LARDER_ENOMEM : LARDER_OK;
}

/* ---- the writer ---- */

/* The writer has nobody who waits for it but at close, and can be patient. n->lock is given up in between. */
static bool lock_table(struct nvme *n)
{
    for (int i = 0; i < (n->closing ? 1 : WRITER_TRIES); i++) {
        if (nvme_table_lock_wait(n, 2000))
            return true;
        pthread_mutex_unlock(&n->lock);
        pthread_mutex_lock(&n->lock);
    }
    return false;
}

/* Nothing more is written. The lock is held. */
static void fail(struct nvme *n, int error)
{
    n->failed = true;
    nvme_warn(n, "%s: writing failed (%s): nothing more is admitted, what is there is read", n->dir, strerror(error));
    if (!lock_table(n))
        return;
    for (unsigned i = 0; i < n->h->n_segments; i++) {
        if (!n->own[i].mine)
            continue;
        disown(n, i);
        nvme_forget_pending(n, i);
        if (n->h->segments[i].published)
            nvme_segment_open_up(n, i, true);
        else
            nvme_segment_free(n, i);
    }
    nvme_table_unlock(n);
    nvme_ring(n);
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
    return lock_table(n) ? rc : -ENOLCK;
}

/* A segment that there is no disk space for. The table's lock is held. */
static void refuse_segment(struct nvme *n, unsigned segment, int error)
{
    struct nvme_shared *h = n->h;
    bool disk = error == ENOSPC || error == EDQUOT;
    nvme_warn(n, "%s: no room for another segment (%s): the cache stays smaller than its limit", n->dir, strerror(error));
    nvme_forget_pending(n, segment);
    disown(n, segment);
    nvme_segment_free(n, segment);
    if (!disk)
        n->failed = true; /* this process's concern: descriptors, limits */
    for (unsigned i = 0; disk && i < h->n_segments; i++) /* nor for any other */
        if (h->segments[i].state == NVME_FREE && h->segments[i].file_span == 0)
            h->segments[i].state = NVME_REFUSED;
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

/* Makes a segment's file. As cut_lent. */
static int new_file(struct nvme *n, unsigned segment)
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
    if (!lock_table(n))
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

/* Makes sure that a chunk's segment has its file. The lock is held, and given up in between. */
static int ready_file(struct nvme *n, unsigned segment)
{
    struct nvme_segment *g = &n->h->segments[segment];
    if (n->own[segment].fd >= 0 && g->made && g->file_span == g->span)
        return 0;
    int rc = lock_table(n) ? new_file(n, segment) : -ENOLCK;
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
    if (!lock_table(n)) {
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
    free_chunk(n, c);
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
    if (!own->mine || !lock_table(n))
        return;
    disown(n, segment);
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
    if (!used || !bytes || !lock_table(n))
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
    if (lock_table(n)) {
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
        flush_segment(n, i);
}

/* What we have nothing more for at the moment is for anybody. */
static void release_idle(struct nvme *n)
{
    bool any = false;
    for (unsigned i = 0; i < n->h->n_segments && !any; i++)
        any = n->own[i].mine && !n->own[i].chunk && !n->own[i].queued;
    if (!any || !lock_table(n))
        return;
    for (unsigned i = 0; i < n->h->n_segments; i++) {
        struct nvme_segment *g = &n->h->segments[i];
        if (!n->own[i].mine || n->own[i].chunk || n->own[i].queued || g->state != NVME_ACTIVE)
            continue;
        disown(n, i);
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

/* At close: the last one leaves the maps of the segments that are not full, and the checkpoint. */
static void last_words(struct nvme *n)
{
    bool alone = false;
    release_idle(n);
    if (!n->failed && lock_table(n)) {
        alone = nvme_alone(n);
        for (unsigned i = 0; alone && i < n->h->n_segments; i++)
            if (n->h->segments[i].state == NVME_OPEN)
                adopt(n, i, NVME_ACTIVE);
        nvme_table_unlock(n);
    }
    for (unsigned i = 0; i < n->h->n_segments; i++)
        if (n->own[i].mine)
            finish_segment(n, i, false);
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
    if (n->big.data)
        munmap(n->big.data, n->big.len);
    free(n->chunks);
}
