/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_admit.c - admission to the NVMe tier: where a record goes, and its copy into a chunk of memory that the writer writes.
 *
 * The chunks are a fixed pool; when none is free the record is refused this time, and nobody ever waits for the disk. A chunk begins
 * and ends at a page; one that is flushed before it is full is padded, so that no page is written twice. A record longer than the
 * pool gets memory of its own, one at a time.
 *
 * A segment is filled by one process at a time. When it has nothing more for it the segment is OPEN, and whoever next has a
 * record of that space takes it, before a new one is begun. A record longer than a segment begins one that takes the place of
 * several; what is left in it is filled like any other.
 *
 * Room: a free segment; else those of the space that was used longest ago, of spaces no living process has registered; else, with
 * FIFO, the oldest sealed one; else admission for the space is closed, in this process, until room is freed.
 *
 * Threads: nvme_admit from any, under nvme.lock. What is shared is changed under h->lock besides, which is taken last and given
 * back before bytes are copied.
 */
#include <sys/mman.h>

#include "tiers/nvme_int.h"

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

void nvme_segment_flush(struct nvme *n, unsigned segment)
{
    struct nvme_own *own = &n->own[segment];
    if (!own->chunk)
        return;
    own->end = round_up(own->end, NVME_PAGE);
    enqueue(n, own->chunk);
    own->chunk = NULL;
}

void nvme_chunk_free(struct nvme *n, struct nvme_chunk *c)
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

void nvme_segment_adopt(struct nvme *n, unsigned segment, enum nvme_state state)
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

void nvme_segment_disown(struct nvme *n, unsigned segment)
{
    struct nvme_own *own = &n->own[segment];
    uint32_t space = n->h->segments[segment].space;
    own->mine = false;
    if (n->active[space] == segment + 1)
        n->active[space] = 0;
    if (own->chunk)
        nvme_chunk_free(n, own->chunk);
    own->chunk = NULL;
}

static void seal(struct nvme *n, unsigned segment)
{
    nvme_segment_flush(n, segment);
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
    nvme_segment_adopt(n, segment, NVME_ACTIVE);
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
            nvme_segment_adopt(n, i, NVME_SEALING);
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
        nvme_segment_flush(n, active - 1); /* shorter ones go on filling it later */
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
            nvme_segment_flush(n, active - 1);
        nvme_segment_adopt(n, spot->segment, NVME_ACTIVE);
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
        nvme_segment_flush(n, spot->segment);
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
        nvme_chunk_free(n, &n->big);
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
