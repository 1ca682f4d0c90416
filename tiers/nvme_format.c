/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_format.c - what the NVMe tier's files look like: pure bytes <-> structs, and the walk that finds the records of a
 * segment by their headers alone.
 *
 * Everything carries a CRC32C, and nothing read is used before its checksum and its bounds were looked at: these files lie on a
 * disk that may fail, and are written by a process that may die in the middle. A sequence number ties record, header, footer
 * and trailer of one life of a segment together.
 *
 * Threads: any.
 */
#include "tiers/nvme_int.h"

#define HEAD_MAGIC 0x31676573646c614cull       /* "Laldseg1" */
#define TRAILER_MAGIC 0x31646e65646c614cull    /* "Laldend1" */
#define CHECKPOINT_MAGIC 0x31706b63646c614cull /* "Laldckp1" */
#define RECORD_MAGIC 0x31726e6cu               /* "lnr1" */
#define USED_BYTES 48u
#define CHECKPOINT_HEAD 32u

/* ---- segments ---- */

static void space_encode(const struct cache_space *s, uint8_t out[40])
{
    memcpy(out, s->uuid, 16);
    memcpy(out + 16, s->lineage, 16);
    put_u64(out + 32, s->variant);
}

static void space_decode(const uint8_t in[40], struct cache_space *s)
{
    memcpy(s->uuid, in, 16);
    memcpy(s->lineage, in + 16, 16);
    s->variant = get_u64(in + 32);
}

uint64_t nvme_space_hash(const struct cache_space *s)
{
    uint8_t bytes[40];
    space_encode(s, bytes);
    return hash64(0, bytes, sizeof(bytes));
}

void nvme_head_encode(const struct nvme_head *h, uint8_t page[NVME_PAGE])
{
    memset(page, 0, NVME_PAGE);
    put_u64(page, HEAD_MAGIC);
    put_u64(page + 16, h->seq);
    put_u64(page + 24, h->segment_bytes);
    put_u64(page + 32, h->created_s);
    space_encode(&h->space, page + 40);
    put_u32(page + 80, h->span);
    put_u32(page + 8, crc32c(0, page + 16, NVME_PAGE - 16));
}

bool nvme_head_decode(const uint8_t page[NVME_PAGE], struct nvme_head *h)
{
    if (get_u64(page) != HEAD_MAGIC || get_u32(page + 8) != crc32c(0, page + 16, NVME_PAGE - 16))
        return false;
    h->seq = get_u64(page + 16);
    h->segment_bytes = get_u64(page + 24);
    h->created_s = get_u64(page + 32);
    space_decode(page + 40, &h->space);
    h->span = MAX(get_u32(page + 80), 1u);
    return h->seq > 0 && h->segment_bytes >= NVME_SEGMENT_MIN && h->segment_bytes <= NVME_SEGMENT_MAX &&
           (h->segment_bytes & (h->segment_bytes - 1)) == 0 && h->span <= NVME_SEGMENTS_MAX && nvme_head_bytes(h) <= NVME_SEGMENT_MAX;
}

void nvme_trailer_encode(const struct nvme_trailer *t, uint8_t page[NVME_PAGE])
{
    memset(page, 0, NVME_PAGE);
    put_u64(page, TRAILER_MAGIC);
    put_u64(page + 16, t->seq);
    put_u64(page + 24, t->footer);
    put_u32(page + 32, t->n);
    put_u32(page + 36, t->footer_crc);
    page[40] = t->sealed;
    put_u32(page + 8, crc32c(0, page + 16, NVME_PAGE - 16));
}

bool nvme_trailer_decode(const uint8_t page[NVME_PAGE], uint64_t segment_bytes, struct nvme_trailer *t)
{
    if (get_u64(page) != TRAILER_MAGIC || get_u32(page + 8) != crc32c(0, page + 16, NVME_PAGE - 16))
        return false;
    t->seq = get_u64(page + 16);
    t->footer = get_u64(page + 24);
    t->n = get_u32(page + 32);
    t->footer_crc = get_u32(page + 36);
    t->sealed = page[40] != 0;
    uint64_t last = segment_bytes - NVME_PAGE; /* where the trailer is */
    return t->footer >= NVME_PAGE && t->footer % NVME_PAGE == 0 && t->footer <= last &&
           nvme_footer_bytes(t->n) <= last - t->footer;
}

void nvme_entry_encode(const struct nvme_entry *e, uint8_t out[NVME_ENTRY_BYTES])
{
    put_u64(out, e->ordinal);
    put_u32(out + 8, e->unit);
    put_u32(out + 12, e->units);
}

bool nvme_entry_decode(const uint8_t in[NVME_ENTRY_BYTES], uint64_t end, struct nvme_entry *e)
{
    *e = (struct nvme_entry){get_u64(in), get_u32(in + 8), get_u32(in + 12)};
    uint64_t first = (uint64_t)e->unit * NVME_UNIT, bytes = (uint64_t)e->units * NVME_UNIT;
    return e->ordinal <= CACHE_ORDINAL_MAX && e->units >= 1 && e->units <= NVME_UNITS_MAX && first >= NVME_PAGE &&
           first <= end && bytes <= end - first;
}

/* ---- records ---- */

void nvme_record_encode(const struct nvme_record *r, uint8_t head[NVME_UNIT])
{
    memset(head, 0, NVME_UNIT);
    put_u32(head, RECORD_MAGIC);
    put_u64(head + 8, r->seq);
    put_u64(head + 16, r->space_hash);
    put_u64(head + 24, r->ordinal);
    put_u32(head + 32, r->stored_len);
    put_u32(head + 36, r->raw_len);
    put_u32(head + 40, r->crc);
    head[44] = r->codec;
    put_u32(head + 4, crc32c(0, head + 8, NVME_UNIT - 8));
}

bool nvme_record_decode(const uint8_t head[NVME_UNIT], struct nvme_record *r)
{
    if (get_u32(head) != RECORD_MAGIC || get_u32(head + 4) != crc32c(0, head + 8, NVME_UNIT - 8))
        return false;
    r->seq = get_u64(head + 8);
    r->space_hash = get_u64(head + 16);
    r->ordinal = get_u64(head + 24);
    r->stored_len = get_u32(head + 32);
    r->raw_len = get_u32(head + 36);
    r->crc = get_u32(head + 40);
    r->codec = head[44];
    return r->ordinal <= CACHE_ORDINAL_MAX && nvme_units(r->stored_len) <= NVME_UNITS_MAX;
}

uint64_t nvme_record_at(uint64_t at, uint64_t units)
{
    uint64_t bytes = units * NVME_UNIT, from = round_up(at, NVME_UNIT), page = round_up(at, NVME_PAGE);
    uint64_t pages = (round_up(from + bytes, NVME_PAGE) - round_down(from, NVME_PAGE)) / NVME_PAGE;
    bool spares = pages > round_up(bytes, NVME_PAGE) / NVME_PAGE;
    return spares && (page - from) * 8 <= bytes ? page : from;
}

/* The walk's view of the segment: a window that moves on as it is needed. */
struct view { uint8_t *window; uint64_t at; size_t len; uint64_t end; nvme_read_fn *read; void *user; };

static const uint8_t *view_head(struct view *v, uint64_t offset)
{
    if (offset + NVME_UNIT > v->end)
        return NULL;
    if (offset < v->at || offset + NVME_UNIT > v->at + v->len) {
        v->at = round_down(offset, NVME_PAGE);
        v->len = MIN(NVME_WINDOW, v->end - v->at);
        if (!v->read(v->user, v->at, v->window, v->len)) {
            v->len = 0;
            return NULL;
        }
    }
    return v->window + (offset - v->at);
}

static bool record_here(struct view *v, const struct nvme_head *h, uint64_t space_hash, uint64_t offset, struct nvme_entry *e)
{
    struct nvme_record r;
    const uint8_t *head = view_head(v, offset);
    if (!head || !nvme_record_decode(head, &r) || r.seq != h->seq || r.space_hash != space_hash)
        return false;
    uint64_t units = nvme_units(r.stored_len);
    if (units * NVME_UNIT > v->end - offset)
        return false;
    *e = (struct nvme_entry){r.ordinal, (uint32_t)(offset / NVME_UNIT), (uint32_t)units};
    return true;
}

void nvme_walk(const struct nvme_head *h, void *window, nvme_read_fn *read, nvme_found_fn *found, void *user, uint64_t *end)
{
    struct view v = {window, 0, 0, nvme_head_bytes(h) - NVME_PAGE, read, user};
    uint64_t hash = nvme_space_hash(&h->space), at = NVME_PAGE;
    struct nvme_entry e;
    while (record_here(&v, h, hash, at, &e) || (at % NVME_PAGE && record_here(&v, h, hash, round_up(at, NVME_PAGE), &e))) {
        if (!found(user, &e))
            break;
        at = ((uint64_t)e.unit + e.units) * NVME_UNIT;
    }
    *end = at;
}

/* ---- the checkpoint ---- */

size_t nvme_checkpoint_encode(uint64_t next_seq, const struct nvme_used *used, size_t n, uint8_t *out)
{
    size_t len = CHECKPOINT_HEAD + n * USED_BYTES;
    memset(out, 0, CHECKPOINT_HEAD);
    put_u64(out, CHECKPOINT_MAGIC);
    put_u32(out + 12, (uint32_t)n);
    put_u64(out + 16, next_seq);
    for (size_t i = 0; i < n; i++) {
        uint8_t *p = out + CHECKPOINT_HEAD + i * USED_BYTES;
        space_encode(&used[i].space, p);
        put_u64(p + 40, used[i].last_used_s);
    }
    put_u32(out + 8, crc32c(0, out + 12, len - 12));
    return len;
}

bool nvme_checkpoint_decode(const uint8_t *p, size_t len, uint64_t *next_seq, struct nvme_used *used, size_t *n)
{
    if (len < CHECKPOINT_HEAD || get_u64(p) != CHECKPOINT_MAGIC || get_u32(p + 8) != crc32c(0, p + 12, len - 12))
        return false;
    size_t count = get_u32(p + 12);
    if (count > NVME_SPACES_MAX || len != CHECKPOINT_HEAD + count * USED_BYTES)
        return false;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *q = p + CHECKPOINT_HEAD + i * USED_BYTES;
        space_decode(q, &used[i].space);
        used[i].last_used_s = get_u64(q + 40);
    }
    *next_seq = get_u64(p + 16);
    *n = count;
    return true;
}
