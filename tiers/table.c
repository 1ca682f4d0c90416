/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.c - which record lies where: a hash table in shared memory, of 8-byte slots in lines of 64 bytes.
 *
 * A slot names a place and a tag of the key; the key itself is in the record's head, next to the bytes that a reader wants
 * anyway. So publishing a record is one compare-and-swap of one word: there is no half-written slot that a killed process
 * could leave, and no lock. Readers take what they find and check the head. Probing goes through pairs of
 * neighbouring lines, each pair somewhere else, and ends at the first line with a slot never used; a slot freed again keeps
 * probes going and is reused. (Probing on through neighbours finds a full stretch in a large table at 75% load already.)
 *
 * How many records a budget holds is known only as they come. So the table begins with one small part; when a key finds
 * no slot, another is added, sized for the rest of the budget at the mean size of the records so far. Nothing ever moves:
 * lookups ask the largest part first, which holds nearly all. Adding is two steps, pages from dram_header.alloc, then the
 * descriptor; whoever finds pages without descriptor writes it, so that it does not matter who dies in between. From half of
 * the budget on, table_prepare adds what will be needed while there is room for it.
 *
 * Any thread of any process, at any time.
 */
#include "tiers/dram_int.h"

#define SLOT_FREED 1ull
#define PAGE_LINES (ARENA_PAGE / sizeof(struct table_line))
#define CROWDED_LINES 4u
#define GROW_SHARE_MAX 16 /* of the room: the first records may be smaller than those that follow */

void table_parts(const struct dram *d, struct parts *s)
{
    uint64_t words[PARTS_MAX];
    s->n = s->largest = 0;
    while (s->n < PARTS_MAX) {
        uint64_t w = atomic_load_explicit(&d->h->parts[s->n], memory_order_acquire);
        if (!w)
            break;
        words[s->n++] = w;
    }
    for (unsigned i = 0; i < s->n; i++) {
        uint64_t w = words[s->n - 1 - i];
        s->at[i] = (struct part){(struct table_line *)(d->table + (w >> 32) * ARENA_PAGE), (uint32_t)w * PAGE_LINES};
        if (s->at[i].n > s->at[s->largest].n)
            s->largest = i;
    }
}

static bool is_record(uint64_t word) { return word > SLOT_FREED; }

/* Does the slot name a record of this key? The second look at the slot makes sure that its head was still one. */
static bool holds(const struct dram *d, _Atomic uint64_t *slot, uint64_t word, uint64_t key)
{
    if ((head_key(d->slabs + slot_place(word)) & KEY_MASK) != key)
        return false;
    return atomic_load_explicit(slot, memory_order_acquire) == word;
}

static uint64_t find_in(const struct dram *d, const struct part *s, uint64_t key, uint64_t hash, _Atomic uint64_t **slot)
{
    for (unsigned i = 0; i < PROBE_LINES; i++) {
        struct table_line *l = part_line(s, hash, i);
        bool unused = false;
        for (unsigned j = 0; j < LINE_SLOTS; j++) {
            uint64_t w = atomic_load_explicit(&l->slot[j], memory_order_acquire);
            if (w == 0)
                unused = true;
            else if (w >> 40 == (hash & 0xffffff) && is_record(w) && holds(d, &l->slot[j], w, key)) {
                if (slot)
                    *slot = &l->slot[j];
                return w;
            }
        }
        if (unused)
            break;
    }
    return 0;
}

uint64_t table_find(const struct dram *d, const struct parts *s, uint64_t key, uint64_t hash, _Atomic uint64_t **slot)
{
    for (unsigned i = 0; i < s->n; i++) {
        uint64_t w = find_in(d, &s->at[i], key, hash, slot);
        if (w)
            return w;
    }
    return 0;
}

/* The first slot of the key's probe that can be taken, or NULL; *word: the key's own, when it is there already. */
static _Atomic uint64_t *slot_for(const struct dram *d, const struct part *s, uint64_t key, uint64_t hash, unsigned lines,
                                  uint64_t *word)
{
    _Atomic uint64_t *taken = NULL;
    for (unsigned i = 0; i < lines; i++) {
        struct table_line *l = part_line(s, hash, i);
        for (unsigned j = 0; j < LINE_SLOTS; j++) {
            uint64_t w = atomic_load_explicit(&l->slot[j], memory_order_acquire);
            if (!is_record(w) && !taken) {
                taken = &l->slot[j];
                *word = w;
            }
            if (w == 0)
                return taken;
            if (w >> 40 == (hash & 0xffffff) && is_record(w) && holds(d, &l->slot[j], w, key)) {
                *word = w;
                return NULL;
            }
        }
    }
    return taken;
}

/* 0: done; a word: there already; NOWHERE: the probe is full. */
static uint64_t insert_in(struct dram *d, const struct part *s, uint64_t key, uint64_t hash, unsigned lines, uint64_t place)
{
    for (;;) {
        uint64_t word = 0;
        _Atomic uint64_t *slot = slot_for(d, s, key, hash, lines, &word);
        if (!slot)
            return word ? word : NOWHERE;
        if (atomic_compare_exchange_strong_explicit(slot, &word, slot_word(hash, place), memory_order_acq_rel,
                                                    memory_order_acquire))
            return 0;
    }
}

uint64_t table_room_pages(const struct dram *d, uint64_t alloc)
{
    uint64_t taken = d->h->fixed_pages + (alloc >> 32) + (uint32_t)alloc;
    return taken < d->h->budget_pages ? d->h->budget_pages - taken : 0;
}

/* Pages for the next part: for what the rest of the budget will hold at 80% load. 0: no room. */
static uint64_t grow_pages(const struct dram *d, uint64_t alloc)
{
    uint64_t entries = atomic_load_explicit(&d->h->entries, memory_order_relaxed);
    uint64_t bytes = atomic_load_explicit(&d->h->record_bytes, memory_order_relaxed);
    uint64_t room = table_room_pages(d, alloc), have = alloc >> 32;
    uint64_t mean = (entries ? bytes / entries : 0) + HEAD_BYTES + 2 + 10; /* its slot counted too */
    uint64_t pages = room * ARENA_PAGE / mean * 8 / 80 * 100 / ARENA_PAGE + 1;
    pages = MAX(pages, have / 8);
    pages = MIN(pages, MAX(room / GROW_SHARE_MAX, 1));
    return MIN(pages, MIN(room, d->h->table_pages_max - have));
}

/* Adds a part to `seen` of them, unless somebody has; false when there is no room for one. */
static bool grow(struct dram *d, unsigned seen)
{
    for (;;) {
        uint64_t alloc = atomic_load(&d->h->alloc), sum = 0, pages;
        unsigned n = 0;
        for (; n < PARTS_MAX; n++) {
            uint64_t w = atomic_load(&d->h->parts[n]);
            if (!w)
                break;
            sum += (uint32_t)w;
        }
        if (n != seen)
            return true;
        if (n == PARTS_MAX)
            return false;
        if (alloc >> 32 > sum) { /* pages without a descriptor: nobody can take more until it is there */
            uint64_t none = 0;
            atomic_compare_exchange_strong(&d->h->parts[n], &none, sum << 32 | ((alloc >> 32) - sum));
            slab_grown(d);
            return true;
        }
        pages = grow_pages(d, alloc);
        if (!pages)
            return false;
        atomic_compare_exchange_strong(&d->h->alloc, &alloc, alloc + (pages << 32));
    }
}

void table_prepare(struct dram *d)
{
    uint64_t alloc = atomic_load(&d->h->alloc), room = table_room_pages(d, alloc);
    uint64_t entries = atomic_load_explicit(&d->h->entries, memory_order_relaxed);
    uint64_t bytes = atomic_load_explicit(&d->h->record_bytes, memory_order_relaxed);
    struct parts s;
    if (room > d->h->budget_pages / 2 || entries < 64)
        return;
    uint64_t will = ((uint32_t)alloc + room) * ARENA_PAGE / (bytes / entries + HEAD_BYTES + 2);
    table_parts(d, &s);
    if (will > (alloc >> 32) * PAGE_LINES * LINE_SLOTS / 8 * 7)
        grow(d, s.n);
}

uint64_t table_insert(struct dram *d, uint64_t key, uint64_t hash, uint64_t place)
{
    struct parts s;
    uint64_t got;
    for (;;) {
        table_parts(d, &s);
        /* where lookups look first, unless it is crowded; it has to be full before another part is made */
        got = insert_in(d, &s.at[s.largest], key, hash, s.largest ? CROWDED_LINES : PROBE_LINES, place);
        if (got == NOWHERE && s.largest != 0)
            got = insert_in(d, &s.at[0], key, hash, PROBE_LINES, place);
        if (got != NOWHERE)
            return got;
        if (!grow(d, s.n))
            break;
    }
    for (unsigned i = 1; i < s.n; i++) { /* no room for another: whatever the older ones have left */
        got = insert_in(d, &s.at[i], key, hash, PROBE_LINES, place);
        if (got != NOWHERE)
            return got;
    }
    return NOWHERE;
}

bool table_remove(struct dram *d, const struct parts *s, uint64_t hash, uint64_t place)
{
    uint64_t word = slot_word(hash, place);
    (void)d;
    for (unsigned k = 0; k < s->n; k++) {
        for (unsigned i = 0; i < PROBE_LINES; i++) {
            struct table_line *l = part_line(&s->at[k], hash, i);
            for (unsigned j = 0; j < LINE_SLOTS; j++) {
                uint64_t want = word;
                if (atomic_load_explicit(&l->slot[j], memory_order_relaxed) == word)
                    return atomic_compare_exchange_strong(&l->slot[j], &want, SLOT_FREED);
            }
        }
    }
    return false;
}

/* With replacement heads may change underneath: then a record of another space is dropped, which harms nobody. */
void table_sweep(struct dram *d, uint32_t space)
{
    struct parts s;
    table_parts(d, &s);
    for (unsigned k = 0; k < s.n; k++) {
        for (uint64_t i = 0; i < s.at[k].n * LINE_SLOTS; i++) {
            _Atomic uint64_t *slot = &s.at[k].lines[i / LINE_SLOTS].slot[i % LINE_SLOTS];
            uint64_t w = atomic_load_explicit(slot, memory_order_acquire);
            if (!is_record(w))
                continue;
            if (!d->fifo && slab_space(d, slot_place(w)) != space)
                continue;
            const uint8_t *head = d->slabs + slot_place(w);
            uint32_t len = head_word(head, 2);
            if (key_space(head_key(head)) == space && atomic_compare_exchange_strong(slot, &w, SLOT_FREED)) {
                atomic_fetch_sub_explicit(&d->h->entries, 1, memory_order_relaxed);
                atomic_fetch_sub_explicit(&d->h->record_bytes, len, memory_order_relaxed);
            }
        }
    }
}
