/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slab.c - where the next record goes, and which records go when there is no room.
 *
 * The slab area is handed out slab by slab (dram_header.alloc; the last may be a part of one). A run is a slab and those behind
 * it that continue it; records lie in a run back to back and may cross its slabs. A slab's state is one word:
 *
 *     without replacement            with replacement (FIFO)
 *
 *     FREE --> HEAD(space)           FREE --> OPEN(member) --> SEALED --> EVICT(member) --> OPEN(member)
 *       |  \-> CONT(run) of it         ^\---> CONT(run) of it               |
 *       \<--- slab_free_space          \----------- those it continues -----/
 *
 * [slab I1] A slab below alloc that is FREE has used == 0 and is anybody's by one compare-and-swap: so a process that dies
 *           between taking pages and using them loses none.
 * [slab I2] Without replacement a run belongs to a space and is filled by all its users, by compare-and-swap of `used`: who
 *           dies while copying leaves a hole of one record.
 * [slab I3] With replacement a run is OPEN by one process, which alone writes to it, under dram.fill. Only runs that are
 *           SEALED, or whose process is dead, are evicted: nobody writes into what somebody else reuses.
 * [slab I4] With replacement `used` covers only records whose head is written: eviction finds every record by walking them.
 *           Its entries leave the table, then used is 0, then its slabs are free, the last one first: whoever takes over from a
 *           dead evictor does again what may be done again.
 * [slab I6] Without replacement: which records lie across the beginning of a slab is said by its edge, FREE --> CROSSED or KEPT, whichever is
 *           first. A process that registers memory up to there keeps it: no record will lie across. Who allocates crosses it
 *           before the record is there, or goes on behind it and leaves a hole.
 * [slab I5] The generation of a slab changes before any byte in it, or behind it in its run, is overwritten. A reader that
 *           found the same one before and after copying has copied the record.
 */
#include "tiers/dram_int.h"

enum kind { SLAB_FREE = 0, SLAB_HEAD, SLAB_CONT, SLAB_OPEN, SLAB_SEALED, SLAB_EVICT };

static uint64_t state_of(enum kind kind, uint64_t gen, uint32_t arg) { return (uint64_t)kind << 61 | (gen & 0x1fffffff) << 32 | arg; }
static enum kind state_kind(uint64_t state) { return (enum kind)(state >> 61); }
static uint32_t state_gen(uint64_t state) { return (uint32_t)(state >> 32) & 0x1fffffff; }
static uint32_t state_arg(uint64_t state) { return (uint32_t)state; }

static uint64_t state_load(const struct dram *d, uint64_t i) { return atomic_load(&d->states[i].state); }
static bool state_change(struct dram *d, uint64_t i, uint64_t from, uint64_t to)
{
    return atomic_compare_exchange_strong(&d->states[i].state, &from, to);
}

static uint64_t slab_pages(const struct dram *d) { return d->slab_bytes / ARENA_PAGE; }
static uint64_t area_bytes(const struct dram *d) { return (uint32_t)atomic_load(&d->h->alloc) * ARENA_PAGE; }
static uint64_t slab_count(const struct dram *d) { return (area_bytes(d) + d->slab_bytes - 1) / d->slab_bytes; }

/* Takes pages for the slab behind the last one, all of it or what the budget has left, if that gives at least `least` bytes.
 * False: there is none. True also when somebody else took it. */
static bool take_top(struct dram *d, uint64_t index, uint64_t least)
{
    uint64_t alloc = atomic_load(&d->h->alloc), pages = (uint32_t)alloc;
    if (pages > index * slab_pages(d))
        return true;
    uint64_t take = MIN(table_room_pages(d, alloc), slab_pages(d));
    if (pages < index * slab_pages(d) || index >= d->h->slabs_max || !take || take * ARENA_PAGE < least)
        return false;
    if (atomic_compare_exchange_strong(&d->h->alloc, &alloc, alloc + take))
        slab_grown(d);
    return true;
}

void slab_grown(struct dram *d)
{
    uint64_t alloc = atomic_load(&d->h->alloc);
    pinned_grow(&d->table_pin, (alloc >> 32) * ARENA_PAGE);
    pinned_grow(&d->slabs_pin, (uint32_t)alloc * ARENA_PAGE);
}

/* ---- edges ---- */

enum edge { EDGE_FREE = 0, EDGE_CROSSED, EDGE_KEPT };

/* The edge's state, which becomes `want` if it is free. */
static enum edge edge_take(struct dram *d, uint64_t i, enum edge want)
{
    uint8_t was = EDGE_FREE;
    return atomic_compare_exchange_strong(&d->edges[i], &was, (uint8_t)want) ? want : (enum edge)was;
}

/* [from, to) is to be a record, in slabs that are there: crosses the edges in between. 0: done; else the last one that is kept, behind which
 * the record has to begin. */
static uint64_t cross(struct dram *d, uint64_t from, uint64_t to)
{
    for (uint64_t i = (to - 1) / d->slab_bytes; i * d->slab_bytes > from; i--)
        if (edge_take(d, i, EDGE_CROSSED) == EDGE_KEPT)
            return i;
    return 0;
}

uint64_t slab_cut(struct dram *d, uint64_t from, uint64_t least)
{
    uint64_t area, i;
    for (;;) {
        area = area_bytes(d);
        if (area < from + least)
            return from;
        for (i = (from + least + d->slab_bytes - 1) / d->slab_bytes; i * d->slab_bytes < area; i++)
            if (atomic_load(&d->edges[i]) == EDGE_KEPT) /* by another process: one hole serves both */
                return i * d->slab_bytes;
        if (i * d->slab_bytes > area) /* a part of a slab: the last there is */
            return area;
        if (edge_take(d, i, EDGE_KEPT) == EDGE_KEPT)
            return area;
        if (area == area_bytes(d)) /* crossed, so there is more by now */
            return from;
    }
}

/* ---- without replacement ---- */

/* Makes slab i continue run r, or finds that it does. `least`: bytes of it that are wanted. */
static bool own(struct dram *d, uint64_t r, uint64_t i, uint64_t least)
{
    for (;;) {
        if (i >= slab_count(d)) {
            if (i > slab_count(d) || !take_top(d, i, least))
                return false;
            continue;
        }
        uint64_t state = state_load(d, i);
        if (state_kind(state) == SLAB_CONT && state_arg(state) == r)
            return true;
        if (state_kind(state) != SLAB_FREE)
            return false;
        if (state_change(d, i, state, state_of(SLAB_CONT, state_gen(state), (uint32_t)r)))
            return true;
    }
}

static uint64_t run_alloc(struct dram *d, uint64_t r, uint64_t need)
{
    uint64_t first = r * d->slab_bytes, used = atomic_load(&d->states[r].used), from;
    do {
        uint64_t i = used ? (first + used - 1) / d->slab_bytes : r, kept = 0;
        from = first + used;
        do {
            from = MAX(from, kept * d->slab_bytes);
            for (uint64_t last = (from + need - 1) / d->slab_bytes; i < last;) {
                i++;
                if (!own(d, r, i, MIN(from + need - i * d->slab_bytes, d->slab_bytes)))
                    return NOWHERE;
            }
            if (from + need > area_bytes(d))
                return NOWHERE;
            kept = cross(d, from, from + need);
        } while (kept);
    } while (!atomic_compare_exchange_weak(&d->states[r].used, &used, from + need - first));
    return from;
}

/* A new run at the end of the area, which becomes the space's current one. */
static uint64_t alloc_top(struct dram *d, uint32_t space, uint64_t need)
{
    for (;;) {
        uint64_t i = slab_count(d), state;
        if (need > table_room_pages(d, atomic_load(&d->h->alloc)) * ARENA_PAGE || !take_top(d, i, MIN(need, d->slab_bytes)))
            return NOWHERE;
        state = state_load(d, i);
        if (state_kind(state) == SLAB_FREE && state_change(d, i, state, state_of(SLAB_HEAD, state_gen(state), space))) {
            atomic_store(&d->spaces[space].run, i + 1);
            return run_alloc(d, i, need);
        }
    }
}

/* Are enough slabs free in a row? */
static bool free_row(const struct dram *d, uint64_t i, uint64_t need)
{
    uint64_t to = i * d->slab_bytes + need;
    if (to > area_bytes(d))
        return false;
    for (; i * d->slab_bytes < to; i++) {
        if (state_kind(state_load(d, i)) != SLAB_FREE)
            return false;
    }
    return true;
}

/* Whatever is left anywhere: rests of the space's runs, slabs freed or left by the dead. */
static uint64_t alloc_rest(struct dram *d, uint32_t space, uint64_t need)
{
    for (uint64_t i = 0, n = slab_count(d); i < n; i++) {
        uint64_t state = state_load(d, i), place;
        if (state_kind(state) == SLAB_FREE) {
            uint64_t head = state_of(SLAB_HEAD, state_gen(state), space);
            if (!free_row(d, i, need) || !state_change(d, i, state, head))
                continue;
            atomic_store(&d->spaces[space].run, i + 1);
        } else if (state_kind(state) != SLAB_HEAD || state_arg(state) != space) {
            continue;
        }
        place = run_alloc(d, i, need);
        if (place != NOWHERE)
            return place;
    }
    return NOWHERE;
}

uint64_t slab_alloc(struct dram *d, uint32_t space, uint64_t need)
{
    uint64_t r = atomic_load(&d->spaces[space].run), place = NOWHERE;
    if (r && state_load(d, r - 1) >> 61 == SLAB_HEAD && state_arg(state_load(d, r - 1)) == space)
        place = run_alloc(d, r - 1, need);
    if (place == NOWHERE)
        place = alloc_top(d, space, need);
    return place != NOWHERE ? place : alloc_rest(d, space, need);
}

/* The run that a slab is part of. */
static uint64_t run_of(uint64_t i, uint64_t state) { return state_kind(state) == SLAB_CONT ? state_arg(state) : i; }

void slab_give_back(struct dram *d, uint64_t place, uint64_t need)
{
    uint64_t i = place / d->slab_bytes, r = run_of(i, state_load(d, i));
    uint64_t used = place + need - r * d->slab_bytes;
    atomic_compare_exchange_strong(&d->states[r].used, &used, used - need);
}

uint32_t slab_space(const struct dram *d, uint64_t place)
{
    uint64_t i = place / d->slab_bytes, state = state_load(d, i);
    if (state_kind(state) == SLAB_CONT)
        state = state_load(d, state_arg(state));
    return state_kind(state) == SLAB_HEAD ? state_arg(state) : UINT32_MAX;
}

/* Frees what continues a run: generations first, then from the last to the first, so that it can be done again. */
static void free_tail(struct dram *d, uint64_t r)
{
    uint64_t i = r + 1, n = slab_count(d);
    for (; i < n; i++) {
        uint64_t state = state_load(d, i);
        if (state_kind(state) != SLAB_CONT || state_arg(state) != r)
            break;
        state_change(d, i, state, state_of(SLAB_CONT, state_gen(state) + 1ull, (uint32_t)r));
    }
    while (--i > r) {
        uint64_t state = state_load(d, i);
        atomic_store(&d->states[i].used, 0);
        if (state_kind(state) == SLAB_CONT && state_arg(state) == r)
            state_change(d, i, state, state_of(SLAB_FREE, state_gen(state), 0));
    }
}

void slab_free_space(struct dram *d, uint32_t space)
{
    atomic_store(&d->spaces[space].run, 0);
    for (uint64_t i = 0, n = slab_count(d); i < n; i++) {
        uint64_t state = state_load(d, i);
        if (state_kind(state) != SLAB_HEAD || state_arg(state) != space)
            continue;
        free_tail(d, i);
        atomic_store(&d->states[i].used, 0);
        state_change(d, i, state, state_of(SLAB_FREE, state_gen(state) + 1ull, 0));
    }
}

uint64_t slab_used(const struct dram *d)
{
    uint64_t sum = 0;
    for (uint64_t i = 0, n = slab_count(d); i < n; i++)
        sum += atomic_load_explicit(&d->states[i].used, memory_order_relaxed);
    return sum;
}

/* ---- with replacement ---- */

uint32_t slab_generation(const struct dram *d, uint64_t place)
{
    uint64_t state = atomic_load_explicit(&d->states[place / d->slab_bytes].state, memory_order_acquire);
    enum kind kind = state_kind(state);
    return kind == SLAB_FREE || kind == SLAB_EVICT ? 0 : state_gen(state) + 1;
}

/* Takes a run's records out of the table. The run is EVICT by this process. */
static void walk_out(struct dram *d, uint64_t r)
{
    uint64_t used = atomic_load(&d->states[r].used), gone = 0, bytes = 0;
    struct parts s;
    table_parts(d, &s);
    for (uint64_t at = 0; at + HEAD_BYTES <= used;) {
        uint64_t place = r * d->slab_bytes + at, key = head_key(d->slabs + place);
        uint32_t len = head_word(d->slabs + place, 2);
        if (table_remove(d, &s, key_hash(key & KEY_MASK), place)) {
            gone++;
            bytes += len;
        }
        at += record_need(len, key & HEAD_HAS_RAW);
    }
    atomic_fetch_sub_explicit(&d->h->entries, gone, memory_order_relaxed);
    atomic_fetch_sub_explicit(&d->h->record_bytes, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&d->h->evictions, gone, memory_order_relaxed);
    atomic_store(&d->states[r].used, 0);
}

/* Makes slab i EVICT by this process, its run's records gone. False: somebody alive holds it. */
static bool grab(struct dram *d, uint64_t i)
{
    for (;;) {
        uint64_t state = state_load(d, i), r = run_of(i, state);
        if (r != i) { /* its run begins before: all of it goes */
            if (!grab(d, r))
                return false;
            state_change(d, r, state_load(d, r), state_of(SLAB_FREE, state_gen(state_load(d, r)), 0));
            uint64_t now = state_load(d, i);
            if (now == state || (state_kind(now) == SLAB_CONT && state_arg(now) == r)) /* of no run: a dead evictor's */
                state_change(d, i, now, state_of(SLAB_FREE, state_gen(now) + 1ull, 0));
            continue;
        }
        if (state_kind(state) == SLAB_OPEN || state_kind(state) == SLAB_EVICT) {
            if (state_arg(state) == d->member || share_alive(d->share, state_arg(state)))
                return false;
        }
        if (!state_change(d, i, state, state_of(SLAB_EVICT, state_gen(state) + 1ull, d->member)))
            continue;
        if (state_kind(state) != SLAB_FREE) {
            walk_out(d, i);
            free_tail(d, i);
        }
        return true;
    }
}

/* This process takes slabs i.. of `bytes` as its run; all are EVICT by it. */
static void open_run(struct dram *d, uint64_t i, uint64_t n, uint64_t bytes)
{
    for (uint64_t j = i + 1; j < i + n; j++)
        atomic_store(&d->states[j].state, state_of(SLAB_CONT, state_gen(state_load(d, j)), (uint32_t)i));
    atomic_store(&d->states[i].state, state_of(SLAB_OPEN, state_gen(state_load(d, i)), d->member));
    d->run = i;
    d->run_bytes = bytes;
}

static void let_go(struct dram *d, uint64_t i, uint64_t end)
{
    while (end-- > i)
        atomic_store(&d->states[end].state, state_of(SLAB_FREE, state_gen(state_load(d, end)), 0));
}

/* Grabs slabs [i, i + n). On failure *blocked is the one that somebody alive holds. */
static bool grab_row(struct dram *d, uint64_t i, uint64_t n, uint64_t *blocked)
{
    for (uint64_t j = i; j < i + n; j++) {
        if (!grab(d, j)) {
            let_go(d, i, j);
            *blocked = j;
            return false;
        }
    }
    return true;
}

/* Slabs never used before. */
static bool open_top(struct dram *d, uint64_t n, uint64_t need)
{
    uint64_t i, blocked;
    if (need > table_room_pages(d, atomic_load(&d->h->alloc)) * ARENA_PAGE)
        return false;
    i = slab_count(d);
    for (uint64_t j = 0; j < n; j++) {
        if (!take_top(d, i + j, MIN(need - j * d->slab_bytes, d->slab_bytes)))
            return false; /* those taken are FREE: the ring comes by */
    }
    if (!grab_row(d, i, n, &blocked))
        return false;
    open_run(d, i, n, MIN((i + n) * d->slab_bytes, area_bytes(d)) - i * d->slab_bytes);
    return true;
}

/* The oldest slabs in a row, evicted. */
static bool open_oldest(struct dram *d, uint64_t n, uint64_t need)
{
    uint64_t count = slab_count(d), area = area_bytes(d);
    for (uint64_t tries = 2 * count + 2; tries && count; tries--) {
        uint64_t ring = atomic_load(&d->h->ring), i = ring % count, blocked;
        if (i + n > count || i * d->slab_bytes + need > area) {
            atomic_compare_exchange_strong(&d->h->ring, &ring, ring + (count - i));
            continue;
        }
        if (!atomic_compare_exchange_strong(&d->h->ring, &ring, ring + n))
            continue;
        if (grab_row(d, i, n, &blocked)) {
            open_run(d, i, n, MIN((i + n) * d->slab_bytes, area) - i * d->slab_bytes);
            return true;
        }
        ring += n;
        atomic_compare_exchange_strong(&d->h->ring, &ring, ring - n + (blocked + 1 - i));
    }
    return false;
}

void slab_seal(struct dram *d)
{
    if (d->run != NOWHERE) {
        uint64_t state = state_load(d, d->run);
        state_change(d, d->run, state, state_of(SLAB_SEALED, state_gen(state), 0));
    }
    d->run = NOWHERE;
}

uint64_t fifo_alloc(struct dram *d, const uint32_t *head, unsigned words, uint64_t need)
{
    uint64_t n = (need + d->slab_bytes - 1) / d->slab_bytes, used, place;
    if (d->run == NOWHERE || atomic_load(&d->states[d->run].used) + need > d->run_bytes) {
        slab_seal(d);
        if (!open_top(d, n, need) && !open_oldest(d, n, need))
            return NOWHERE;
    }
    used = atomic_load(&d->states[d->run].used);
    place = d->run * d->slab_bytes + used;
    for (unsigned i = 0; i < words; i++)
        head_set_word(d->slabs + place, i, head[i]);
    atomic_store(&d->states[d->run].used, used + need);
    return place;
}
