/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dram_int.h - inside the arena: how its region is laid out, and what its files offer each other.
 *
 *     dram.c    layout, spaces, lookup, admission, statistics
 *     table.c   which record lies where
 *     slab.c    where the next record goes; eviction
 *     claim.c   who fetches what
 *
 *     | header | spaces | claims | slab states | edges |   table (sparse)   |   slabs (sparse)   |
 *     0                                                    2 MiB aligned        2 MiB aligned
 *
 * The region is larger than the budget, but sparse: what was handed out of it, in pages, never exceeds the budget. One word,
 * dram_header.alloc, counts the pages handed out to the table and to the slabs, so that any process may die at any
 * instruction and none is lost that nobody can find again.
 *
 * A record in the arena: its head (key, stored length, CRC; the raw length where it differs), then its bytes. Begins at a
 * multiple of 4.
 */
#ifndef LARDER_TIERS_DRAM_INT_H
#define LARDER_TIERS_DRAM_INT_H

#include "tiers/cache_int.h"
#include "tiers/pin_int.h"

#define ARENA_PAGE 4096ull
#define ARENA_HUGE (2ull << 20)
#define PARTS_MAX 24
#define LINE_SLOTS 8u /* of 8 bytes: a cache line */
#define PROBE_LINES 32u /* 16 pairs */
#define NOWHERE UINT64_MAX
#define CLAIM_WAYS 7

/* ---- in the region: all shared by atomics ---- */

/* state: kind (3 bits), generation (29), argument (32). used: bytes handed out of the run that begins here. */
struct slab { _Atomic uint64_t state, used; };
struct space_entry {
    _Atomic uint64_t state;       /* kind (2 bits) and a hash of the identity */
    _Atomic uint64_t identity[5]; /* uuid, lineage, variant */
    _Atomic uint64_t users[4];    /* a bit for each member's slot */
    _Atomic uint64_t run;         /* without replacement: 1 + the slab where its current run begins; a hint */
    uint64_t spare;
};
struct claim_set { _Atomic uint64_t claim[CLAIM_WAYS]; _Atomic uint32_t bell, waiters; };
struct table_line { _Atomic uint64_t slot[LINE_SLOTS]; };

struct dram_header {
    /* written by dram_init only */
    uint64_t magic;
    uint32_t version, replacement;
    uint64_t budget_pages, fixed_pages;
    uint64_t off_spaces, off_claims, off_states, off_edges, off_table, off_slabs, bytes;
    uint32_t spaces_max, claim_sets, slab_bytes, slabs_max;
    uint64_t table_pages_max;
    _Alignas(64) _Atomic uint64_t parts[PARTS_MAX]; /* first page << 32 | pages; 0: none yet */
    _Alignas(64) _Atomic uint64_t alloc;                  /* pages of the table << 32 | pages of the slabs */
    _Atomic uint64_t ring;                                /* FIFO: the slab to be evicted next, modulo their number */
    _Atomic uint32_t closed;
    _Atomic uint32_t slowest;                             /* claim lately, and when that was noted (claim.c) */
    _Alignas(64) _Atomic uint64_t entries;
    _Atomic uint64_t record_bytes, admissions, refusals, evictions;
    _Alignas(64) _Atomic uint64_t members[SHARE_PROCESSES_MAX]; /* member << 32 | how often it has the arena open */
};

/* ---- of this process ---- */

struct dram {
    struct share *share;
    uint8_t *base, *slabs;
    struct dram_header *h;
    struct space_entry *spaces;
    struct claim_set *claims;
    struct slab *states;
    _Atomic uint8_t *edges; /* [slabs_max + 1]: what lies across the beginning of a slab (slab.c) */
    uint8_t *table;
    uint64_t slab_bytes;
    uint32_t member;
    bool fifo;
    pthread_mutex_t fill; /* FIFO: guards the run that this process fills, from allocation to publishing */
    uint64_t run, run_bytes; /* NOWHERE: none */
    struct pinned table_pin, slabs_pin; /* of this process; the latter's registrations end where slab_cut says */
    _Atomic uint64_t running; /* member << 32 | tick: that member was seen running then (claim.c) */
};

/* ---- heads of records ---- */

#define KEY_BITS 52
#define KEY_MASK ((1ull << KEY_BITS) - 1)
#define HEAD_HAS_RAW (1ull << 60)
#define HEAD_BYTES 16u
#define HEAD_BYTES_RAW 20u

static inline uint64_t key_of(uint32_t space, uint64_t ordinal) { return (uint64_t)space << 40 | ordinal; }
static inline uint32_t key_space(uint64_t key) { return (uint32_t)((key & KEY_MASK) >> 40); }
static inline uint64_t key_hash(uint64_t key)
{
    uint64_t x = key * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

/* Word i of a head. Readers of a replacing arena may race with writers and find out afterwards: hence atomics. */
static inline uint32_t head_word(const void *head, unsigned i)
{
    return atomic_load_explicit((_Atomic uint32_t *)(uintptr_t)head + i, memory_order_relaxed);
}
static inline void head_set_word(void *head, unsigned i, uint32_t v)
{
    atomic_store_explicit((_Atomic uint32_t *)head + i, v, memory_order_relaxed);
}
static inline uint64_t head_key(const void *head) { return head_word(head, 0) | (uint64_t)head_word(head, 1) << 32; }
static inline uint64_t record_need(uint32_t stored_len, bool has_raw)
{
    return round_up((uint64_t)stored_len + (has_raw ? HEAD_BYTES_RAW : HEAD_BYTES), 4);
}

/* ---- table.c ---- */

struct part { struct table_line *lines; uint64_t n; };
struct parts { struct part at[PARTS_MAX]; unsigned n, largest; }; /* newest first */
void table_parts(const struct dram *d, struct parts *s);
/* Probe i of a key: pairs of neighbours, each pair at another place, .618 to .649 of the table further on: a share with no
 * multiple, among the first that count, close to a whole number. */
static inline struct table_line *part_line(const struct part *s, uint64_t hash, unsigned i)
{
    uint32_t at = (uint32_t)(hash >> 32) + i / 2 * (0x9e3779b9u + ((uint32_t)hash & 0x07ffffff));
    return &s->lines[((uint64_t)at * s->n >> 32) ^ (i & 1)]; /* n is even */
}
/* A slot: tag of the key (24 bits), place in the slab area + 2 in units of 4 bytes. 0 was never used, 1 is free again. */
#define SLOT_PLACE_MASK ((1ull << 40) - 1)
static inline uint64_t slot_word(uint64_t hash, uint64_t place) { return hash << 40 | (place / 4 + 2); }
static inline uint64_t slot_place(uint64_t word) { return ((word & SLOT_PLACE_MASK) - 2) * 4; }
/* The slot of a key: its word, and where it is; 0: none. */
uint64_t table_find(const struct dram *d, const struct parts *s, uint64_t key, uint64_t hash, _Atomic uint64_t **slot);
/* Publishes a record. 0: done; another word: the key is there already; NOWHERE: no room in the table. */
uint64_t table_insert(struct dram *d, uint64_t key, uint64_t hash, uint64_t place);
/* Makes the table large enough for what the budget will hold, as far as can be told by now. */
void table_prepare(struct dram *d);
bool table_remove(struct dram *d, const struct parts *s, uint64_t hash, uint64_t place);
/* Removes every record of a space. */
void table_sweep(struct dram *d, uint32_t space);
uint64_t table_room_pages(const struct dram *d, uint64_t alloc); /* of the budget, not handed out yet */

/* ---- slab.c ---- */

/* Room for a record: its place in the slab area, or NOWHERE. FIFO: under d->fill; the head is written by the call. */
uint64_t slab_alloc(struct dram *d, uint32_t space, uint64_t need);
void slab_give_back(struct dram *d, uint64_t place, uint64_t need); /* the latest only; else it stays a hole */
uint64_t fifo_alloc(struct dram *d, const uint32_t *head, unsigned words, uint64_t need);
void slab_seal(struct dram *d); /* FIFO: this process stops filling its run */
/* FIFO: the generation of the slab at a place, to be asked before and after copying; 0: being evicted. */
uint32_t slab_generation(const struct dram *d, uint64_t place);
/* Without replacement: frees the slabs of a space whose records have been removed. */
void slab_free_space(struct dram *d, uint32_t space);
uint32_t slab_space(const struct dram *d, uint64_t place); /* without replacement: whose slab; UINT32_MAX: none */
uint64_t slab_used(const struct dram *d);
/* The pages handed out are more: this process locks and registers what is new. */
void slab_grown(struct dram *d);
/* Where a piece of at least `least` bytes that begins at `from` may end, so that no record ever lies across; none yet: from. */
uint64_t slab_cut(struct dram *d, uint64_t from, uint64_t least);

#endif
