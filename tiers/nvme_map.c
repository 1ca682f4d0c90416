/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_map.c - where each record of the NVMe tier lies: open addressing with linear probing over 16-byte slots.
 *
 * The key is exact (space and ordinal), the place a hint: whoever reads there checks the record's header. So a reader needs no
 * lock. It reads the key word, the place word, and the key word again; a writer that takes a slot for another key first makes
 * the key word DEAD, then sets the place, then the key. At worst a reader misses an entry that is being replaced.
 *
 * A recycled segment takes all its entries with it at once: they carry ten bits of its sequence number, and one that differs
 * counts as gone. Such slots, and dropped ones, are used again when an insertion comes by, or go when the table is rebuilt.
 *
 * Growing: a table that is three quarters full is rebuilt beside itself, twice as large if its live entries fill more than three
 * eighths of it. Every level has two sides, so that there is always an empty place to build in. The table that was left stays
 * readable until the next rebuild, then its memory is given back. So memory follows the number of entries, and nothing is
 * ever freed under a reader.
 *
 * The map lies in memory that processes share, and a writer may be killed between any two stores: a slot is then DEAD or whole,
 * and a table being built is not yet the one in use. nvme_map_repair drops the latter and counts what there is.
 *
 *     base: | level 0, sides 0 1 | level 1, sides 0 1 | level 2 ...    level l: FIRST_SLOTS << l slots a side
 *
 * Threads: find from any thread of any process; the rest from one at a time (nvme_shared.lock).
 */
#include "tiers/nvme_int.h"

#define FIRST_SLOTS ((uint64_t)4096)
#define SLOT_BYTES 16u
#define BYTES_A_SLOT 512u /* of the directory, at the largest level */
#define LIVE (1ull << 63)
#define PENDING (1ull << 62)
#define DEAD 1ull /* never a key: not LIVE */
#define GENERATION(seq) (((uint64_t)(seq) & 1023) << 52)
#define KEY_MASK (LIVE | 1023ull << 42 | CACHE_ORDINAL_MAX)

struct slot { _Atomic uint64_t key, place; };

static uint64_t key_of(uint32_t space, uint64_t ordinal) { return LIVE | (uint64_t)space << 42 | ordinal; }
static uint64_t place_of(uint32_t segment, uint32_t unit, uint32_t units)
{
    return (uint64_t)segment << 52 | (uint64_t)unit << 22 | units;
}
static uint32_t segment_of(uint64_t place) { return (uint32_t)(place >> 52); }
static uint32_t unit_of(uint64_t place) { return (uint32_t)(place >> 22) & ((1u << 30) - 1); }

static uint64_t slots_of(uint32_t table) { return FIRST_SLOTS << (table / 2); }
static struct slot *table_at(const struct nvme_map *m, uint32_t table)
{
    uint64_t level = table / 2, before = 2 * (FIRST_SLOTS * ((1ull << level) - 1)) + (table & 1) * slots_of(table);
    return (struct slot *)(m->base + before * SLOT_BYTES);
}
static uint64_t bytes_through(unsigned level) { return 2 * FIRST_SLOTS * ((2ull << level) - 1) * SLOT_BYTES; }

/* murmur3's finalizer: every bit of the key reaches the low ones. */
static uint64_t spread(uint64_t key)
{
    key ^= key >> 33;
    key *= 0xff51afd7ed558ccdull;
    key ^= key >> 33;
    key *= 0xc4ceb9fe1a85ec53ull;
    return key ^ key >> 33;
}

static bool current(const struct nvme_map *m, uint64_t key, uint64_t place)
{
    uint32_t segment = segment_of(place);
    if (!(key & LIVE) || segment >= NVME_SEGMENTS_MAX)
        return false;
    uint64_t seq = atomic_load_explicit(&m->seq[segment], memory_order_acquire);
    return seq && GENERATION(seq) == (key & 1023ull << 52);
}

unsigned nvme_map_levels(uint64_t dir_bytes)
{
    unsigned level = 0;
    while (level < 32 && (FIRST_SLOTS << level) < dir_bytes / BYTES_A_SLOT)
        level++;
    return level;
}

uint64_t nvme_map_bytes_at(unsigned level_max) { return bytes_through(level_max); }

uint64_t nvme_map_bytes(const struct nvme_map *m) { return slots_of(atomic_load(&m->state->table)) * SLOT_BYTES; }

/* The slot that has this key, live or gone with its segment; NULL: none. */
static struct slot *slot_of(const struct nvme_map *m, uint64_t key, uint64_t *full, uint64_t *place)
{
    uint32_t table = atomic_load_explicit(&m->state->table, memory_order_acquire);
    struct slot *slots = table_at(m, table);
    uint64_t mask = slots_of(table) - 1, at = spread(key) & mask;
    for (uint64_t i = 0; i <= mask; i++, at = (at + 1) & mask) {
        uint64_t k = atomic_load_explicit(&slots[at].key, memory_order_acquire);
        if (!k)
            return NULL;
        if ((k & KEY_MASK) != key)
            continue;
        *place = atomic_load_explicit(&slots[at].place, memory_order_acquire);
        *full = atomic_load_explicit(&slots[at].key, memory_order_relaxed);
        return (*full & KEY_MASK) == key ? &slots[at] : NULL;
    }
    return NULL;
}

bool nvme_map_find(const struct nvme_map *m, uint32_t space, uint64_t ordinal, struct nvme_hint *h)
{
    uint64_t key, place;
    if (!slot_of(m, key_of(space, ordinal), &key, &place) || !current(m, key, place))
        return false;
    *h = (struct nvme_hint){segment_of(place), (uint32_t)(key >> 52) & 1023, unit_of(place), (uint32_t)place & NVME_UNITS_MAX,
                            (key & PENDING) != 0};
    return true;
}

static void set(struct slot *s, uint64_t key, uint64_t place)
{
    if (atomic_load_explicit(&s->key, memory_order_relaxed))
        atomic_store_explicit(&s->key, DEAD, memory_order_release);
    atomic_store_explicit(&s->place, place, memory_order_release);
    atomic_store_explicit(&s->key, key, memory_order_release);
}

/* Into a table without this key. */
static void add_new(struct slot *slots, uint64_t mask, uint64_t key, uint64_t place)
{
    uint64_t at = spread(key & KEY_MASK) & mask;
    while (atomic_load_explicit(&slots[at].key, memory_order_relaxed))
        at = (at + 1) & mask;
    set(&slots[at], key, place);
}

static void clear_table(struct nvme_map *m, uint32_t table)
{
    share_clear(m->share, table_at(m, table), slots_of(table) * SLOT_BYTES);
}

/* Moves the live entries to another table. False: there is no larger one. */
static bool rebuild(struct nvme_map *m)
{
    uint32_t old = atomic_load_explicit(&m->state->table, memory_order_relaxed), level = old / 2, fresh;
    struct slot *from = table_at(m, old);
    uint64_t n = slots_of(old), live = 0;
    for (uint64_t i = 0; i < n; i++)
        live += current(m, from[i].key, from[i].place);
    if (live * 8 > n * 3)
        level++;
    if (level > m->level_max) {
        if (live * 4 >= n * 3)
            return false;
        level = m->level_max;
    }
    if (m->state->previous)
        clear_table(m, m->state->previous - 1);
    m->state->previous = 0;
    fresh = level * 2 + (level == old / 2 ? !(old & 1) : 0);
    struct slot *to = table_at(m, fresh);
    uint64_t mask = slots_of(fresh) - 1;
    for (uint64_t i = 0; i < n; i++)
        if (current(m, from[i].key, from[i].place))
            add_new(to, mask, from[i].key, from[i].place);
    m->state->filled = live;
    atomic_store_explicit(&m->state->table, fresh, memory_order_release);
    m->state->previous = old + 1;
    return true;
}

/* A slot to put the key into: one that is gone, or empty. */
static struct slot *room_for(struct nvme_map *m, uint64_t key)
{
    struct slot *slots = table_at(m, atomic_load_explicit(&m->state->table, memory_order_relaxed));
    uint64_t mask = slots_of(m->state->table) - 1, at = spread(key) & mask;
    while (slots[at].key && current(m, slots[at].key, slots[at].place))
        at = (at + 1) & mask;
    return &slots[at];
}

bool nvme_map_put(struct nvme_map *m, uint32_t space, uint64_t ordinal, uint32_t segment, uint32_t unit, uint32_t units, bool pending)
{
    uint64_t key = key_of(space, ordinal), have, place;
    struct slot *s = slot_of(m, key, &have, &place);
    if (!s) {
        if ((m->state->filled + 1) * 4 > slots_of(m->state->table) * 3 && !rebuild(m))
            return false;
        s = room_for(m, key);
        m->state->filled += s->key == 0;
    }
    set(s, key | GENERATION(atomic_load(&m->seq[segment])) | (pending ? PENDING : 0), place_of(segment, unit, units));
    return true;
}

bool nvme_map_drop(struct nvme_map *m, uint32_t space, uint64_t ordinal, uint32_t segment, uint32_t unit)
{
    uint64_t key, place;
    struct slot *s = slot_of(m, key_of(space, ordinal), &key, &place);
    if (!s || !current(m, key, place) || segment_of(place) != segment || unit_of(place) != unit)
        return false;
    atomic_store_explicit(&s->key, DEAD, memory_order_release);
    return true;
}

bool nvme_map_publish(struct nvme_map *m, uint32_t space, uint64_t ordinal, uint32_t segment, uint32_t unit)
{
    uint64_t key, place;
    struct slot *s = slot_of(m, key_of(space, ordinal), &key, &place);
    if (!s || !current(m, key, place) || segment_of(place) != segment || unit_of(place) != unit)
        return false;
    atomic_store_explicit(&s->key, key & ~PENDING, memory_order_release);
    return true;
}

void nvme_map_clear(struct nvme_map *m)
{
    share_clear(m->share, m->base, bytes_through(m->level_max));
    m->state->previous = 0;
    m->state->filled = 0;
    atomic_store_explicit(&m->state->table, 0, memory_order_release);
}

uint64_t nvme_map_repair(struct nvme_map *m, uint64_t live[NVME_SEGMENTS_MAX])
{
    uint32_t table = atomic_load_explicit(&m->state->table, memory_order_relaxed);
    struct slot *slots = table_at(m, table);
    uint64_t entries = 0, filled = 0, n = slots_of(table);
    for (uint32_t other = 0; other <= 2 * m->level_max + 1; other++)
        if (other != table)
            clear_table(m, other);
    m->state->previous = 0;
    for (unsigned i = 0; i < NVME_SEGMENTS_MAX; i++)
        live[i] = 0;
    for (uint64_t i = 0; i < n; i++) {
        filled += slots[i].key != 0;
        if (!current(m, slots[i].key, slots[i].place))
            continue;
        live[segment_of(slots[i].place)]++;
        entries++;
    }
    m->state->filled = filled;
    return entries;
}
