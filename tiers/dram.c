/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dram.c - the arena: records in a region of memory that all processes of a node share.
 *
 * Admitting copies the record and its head into room of the slabs and then publishes it by one word of the table. A lookup
 * takes a batch through its steps by groups of keys, each step with another group: it asks for the table's line of each key, for
 * the head that this names, again where that line has no such key, and then answers, asking for the rest of the record. So the
 * cache misses of four groups are under way together, whatever each has to wait for.
 *
 * [dram I1] Budget: header, table and slabs handed out never exceed it, in pages (but for the 16 KiB that an empty arena needs).
 * [dram I2] A word in the table names a record whose bytes are complete.
 * [dram I3] Without replacement a record stays where it is until its space is forgotten, which no live user of it allows: views
 *           are plain pointers. With replacement a reader copies, and then asks whether the slab's generation is still the one
 *           that it saw before it looked at the slot a second time.
 * [dram I4] No process waits for another: all of it is compare-and-swap, and every state that a killed process can leave is one
 *           that others go on from. A killed process costs at most the room of the record that it was copying.
 * [dram I5] A space that is being forgotten is RETIRED by one member; new users of its identity get another number.
 *
 *     space:  FREE --> RESERVED(hash) --> LIVE(hash) <--> RETIRED(member) --> FREE
 *
 * Any thread of any process, at any time.
 */
#include <sched.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "tiers/dram_int.h"

#define ARENA_MAGIC 0x616e657261726464u /* "ddrarena" */
#define ARENA_VERSION 3u
#define BUDGET_MAX (2ull << 40)
#define REGISTER_BYTES (32 * MIB) /* with CUDA, at once */
#define ENTEGROUP 0x80000000u
#define GROUP 16u /* keys that a lookup takes on at a time */
#define STEPS 4u  /* of a lookup, a group in each */
#define PREFETCH_MAX 1024u

/* ---- layout ---- */

static uint64_t within(uint64_t v, uint64_t lo, uint64_t hi) { return v < lo ? lo : v > hi ? hi : v; }

static uint64_t slab_bytes_for(uint64_t budget, enum replacement replacement)
{
    uint64_t bytes = ARENA_HUGE;
    while (replacement == REPLACE_FIFO && bytes > 64 * KIB && bytes > budget / 64)
        bytes /= 2; /* what leaves at once should be little of the whole */
    return bytes;
}

static void lay_out(uint64_t budget, enum replacement replacement, struct dram_header *h)
{
    uint64_t states = budget / slab_bytes_for(budget, REPLACE_FIFO) + 1; /* enough for either */
    h->budget_pages = budget / ARENA_PAGE;
    h->replacement = replacement;
    h->slab_bytes = (uint32_t)slab_bytes_for(budget, replacement);
    h->slabs_max = (uint32_t)states;
    h->spaces_max = (uint32_t)within(budget / (32 * KIB), 16, 4096);
    h->claim_sets = (uint32_t)within(budget / KIB, 16, 4096); /* few full sets even with thousands of claims: who finds none reads unclaimed */
    h->off_spaces = round_up(sizeof *h, 64);
    h->off_claims = round_up(h->off_spaces + h->spaces_max * sizeof(struct space_entry), 64);
    h->off_states = h->off_claims + h->claim_sets * sizeof(struct claim_set);
    h->off_edges = h->off_states + states * sizeof(struct slab);
    h->fixed_pages = round_up(h->off_edges + states + 1, ARENA_PAGE) / ARENA_PAGE + 1; /* and share.c's */
    h->table_pages_max = h->budget_pages / 2 + 8;
    h->off_table = round_up(h->fixed_pages * ARENA_PAGE, ARENA_HUGE);
    h->off_slabs = h->off_table + round_up(h->table_pages_max * ARENA_PAGE, ARENA_HUGE);
    h->bytes = h->off_slabs + h->budget_pages * ARENA_PAGE;
}

uint64_t dram_region_bytes(uint64_t bytes)
{
    struct dram_header h;
    lay_out(MIN(bytes, BUDGET_MAX), REPLACE_NONE, &h);
    return h.bytes;
}

int dram_init(void *base, uint64_t bytes, enum replacement replacement, struct larder_error *err)
{
    struct dram_header *h = base;
    uint64_t lo = 0, hi = BUDGET_MAX / ARENA_PAGE; /* pages: a region's size grows with each */
    if (bytes < dram_region_bytes(0))
        return err_set(err, LARDER_EINVAL, "cache: a region of %llu bytes holds no arena", (unsigned long long)bytes);
    while (lo < hi) {
        uint64_t mid = (lo + hi + 1) / 2;
        if (dram_region_bytes(mid * ARENA_PAGE) <= bytes)
            lo = mid;
        else
            hi = mid - 1;
    }
    lay_out(lo * ARENA_PAGE, replacement, h);
    uint64_t first = within(lo / 128, 1, 8); /* of the table: up to 4096 slots */
    atomic_store(&h->parts[0], first);
    atomic_store(&h->alloc, first << 32);
    h->version = ARENA_VERSION;
    h->magic = ARENA_MAGIC;
    return LARDER_OK;
}

static uint64_t user_bit(const struct dram *d) { return 1ull << (d->member & 63); }
static _Atomic uint64_t *user_word(const struct dram *d, uint32_t space)
{
    return &d->spaces[space].users[(d->member & 255) / 64];
}

static void leave_all(struct dram *d)
{
    for (uint32_t i = 0; i < d->h->spaces_max; i++) {
        if (atomic_load(user_word(d, i)) & user_bit(d))
            atomic_fetch_and(user_word(d, i), ~user_bit(d));
    }
}

/* Counts the handles of this process; the first one clears what a dead process with this member's slot has left. While it
 * does, others of the process wait: they die with it. */
static void enter(struct dram *d)
{
    _Atomic uint64_t *me = &d->h->members[d->member & 255];
    uint64_t was = atomic_load(me), mine = (uint64_t)d->member << 32;
    for (;;) {
        if (was == (mine | ENTEGROUP)) {
            sched_yield();
            was = atomic_load(me);
        } else if (was >> 32 == d->member) {
            if (atomic_compare_exchange_weak(me, &was, was + 1))
                return;
        } else if (atomic_compare_exchange_weak(me, &was, mine | ENTEGROUP)) {
            leave_all(d);
            atomic_store(me, mine | 1);
            return;
        }
    }
}

int dram_open(struct share *s, struct dram **out, struct larder_error *err)
{
    struct dram_header *h = share_base(s);
    struct dram *d;
    *out = NULL;
    if (share_bytes(s) < sizeof *h || h->magic != ARENA_MAGIC || h->version != ARENA_VERSION || h->bytes > share_bytes(s))
        return err_set(err, LARDER_EVERSION, "cache: the memory of that cache name was laid out by another version of larder; "
                       "choose another cache name");
    d = calloc(1, sizeof *d);
    if (!d)
        return err_nomem(err, sizeof *d, "cache");
    d->share = s;
    d->base = share_base(s);
    d->h = h;
    d->spaces = (struct space_entry *)(d->base + h->off_spaces);
    d->claims = (struct claim_set *)(d->base + h->off_claims);
    d->states = (struct slab *)(d->base + h->off_states);
    d->edges = (_Atomic uint8_t *)(d->base + h->off_edges);
    d->table = d->base + h->off_table;
    d->slabs = d->base + h->off_slabs;
    d->slab_bytes = h->slab_bytes;
    d->member = share_member(s);
    d->fifo = h->replacement == REPLACE_FIFO;
    d->run = NOWHERE;
    pthread_mutex_init(&d->fill, NULL);
    pinned_init(&d->table_pin, d->table);
    pinned_init(&d->slabs_pin, d->slabs);
    enter(d);
    *out = d;
    return LARDER_OK;
}

void dram_leave(struct dram *d, uint32_t space)
{
    uint64_t once = (uint64_t)d->member << 32 | 1;
    if (space < d->h->spaces_max && atomic_load(&d->h->members[d->member & 255]) == once)
        atomic_fetch_and(user_word(d, space), ~user_bit(d));
}

void dram_close(struct dram *d)
{
    _Atomic uint64_t *me;
    if (!d)
        return;
    slab_seal(d);
    me = &d->h->members[d->member & 255];
    uint64_t was = atomic_load(me);
    while (!atomic_compare_exchange_weak(me, &was, (uint32_t)was == 1 ? was - 1 + ENTEGROUP : was - 1)) {
    }
    if ((uint32_t)was == 1) { /* the last one of this process: with the door shut */
        leave_all(d);
        atomic_store(me, 0);
    }
    pinned_release(&d->table_pin);
    pinned_release(&d->slabs_pin);
    pthread_mutex_destroy(&d->fill);
    free(d);
}

/* ---- pinning ---- */

void dram_no_pin(struct dram *d)
{
    d->table_pin.no_lock = d->slabs_pin.no_lock = true;
}

static uint64_t cut(void *user, uint64_t from, bool all)
{
    return slab_cut(user, from, all ? 1 : REGISTER_BYTES);
}

void dram_cuda(struct dram *d, int device)
{
    if (!d->fifo) /* else records are copied out, and no device ever reads the arena */
        d->slabs_pin.cuda = cuda_pins_new(d->slabs, device, cut, d);
}

bool dram_prepare(struct dram *d, uint64_t bytes)
{
    uint64_t alloc = atomic_load(&d->h->alloc), pages = (uint32_t)alloc;
    uint64_t more = MIN(bytes / ARENA_PAGE, table_room_pages(d, alloc));
    return !dram_closed(d) && pinned_ahead(&d->slabs_pin, (pages + more) * ARENA_PAGE);
}

void dram_register(struct dram *d)
{
    cuda_pins_poke(d->slabs_pin.cuda, (uint32_t)atomic_load(&d->h->alloc) * ARENA_PAGE, true);
}

enum replacement dram_replacement(const struct dram *d) { return d->fifo ? REPLACE_FIFO : REPLACE_NONE; }

/* ---- spaces ---- */

enum { SPACE_FREE, SPACE_RESERVED, SPACE_LIVE, SPACE_RETIRED };
#define SPACE_ARG ((1ull << 62) - 1)

static uint64_t space_state(unsigned kind, uint64_t arg) { return (uint64_t)kind << 62 | (arg & SPACE_ARG); }
static unsigned space_kind(uint64_t state) { return (unsigned)(state >> 62); }

static void identity_of(const struct cache_space *space, uint64_t words[5])
{
    memcpy(words, space->uuid, 16);
    memcpy(words + 2, space->lineage, 16);
    words[4] = space->variant;
}

static bool same_identity(const struct space_entry *e, const uint64_t words[5])
{
    for (int i = 0; i < 5; i++) {
        if (atomic_load_explicit(&e->identity[i], memory_order_relaxed) != words[i])
            return false;
    }
    return true;
}

/* Uses entry i if it is this identity's; whoever finds it RESERVED for that one completes it, as another may have died. */
static bool space_use(struct dram *d, uint32_t i, const uint64_t words[5], uint64_t hash)
{
    struct space_entry *e = &d->spaces[i];
    uint64_t live = space_state(SPACE_LIVE, hash), reserved = space_state(SPACE_RESERVED, hash);
    uint64_t state = atomic_load(&e->state);
    if (state == reserved) {
        for (int k = 0; k < 5; k++)
            atomic_store_explicit(&e->identity[k], words[k], memory_order_relaxed);
        atomic_compare_exchange_strong(&e->state, &state, live);
        state = atomic_load(&e->state);
    }
    if (state != live || !same_identity(e, words))
        return false;
    bool had = atomic_fetch_or(user_word(d, i), user_bit(d)) & user_bit(d);
    if (atomic_load(&e->state) == live)
        return true;
    if (!had)
        dram_leave(d, i);
    return false;
}

int dram_space(struct dram *d, const struct cache_space *space, uint32_t *id, struct larder_error *err)
{
    uint64_t words[5], hash;
    identity_of(space, words);
    hash = hash64(0, words, sizeof words) & SPACE_ARG;
    for (;;) {
        uint32_t unused = UINT32_MAX;
        for (uint32_t i = 0; i < d->h->spaces_max; i++) {
            uint64_t state = atomic_load(&d->spaces[i].state);
            if (space_use(d, i, words, hash)) {
                *id = i;
                return LARDER_OK;
            }
            if (space_kind(state) == SPACE_RETIRED && !share_alive(d->share, (uint32_t)state))
                dram_forget(d, i); /* its process died over it */
            if (unused == UINT32_MAX && atomic_load(&d->spaces[i].state) == 0)
                unused = i;
        }
        if (unused == UINT32_MAX)
            return err_set(err, LARDER_ENOMEM, "cache: all %u places for datasets and their variants are taken; use another "
                           "cache name", d->h->spaces_max);
        uint64_t none = 0;
        atomic_compare_exchange_strong(&d->spaces[unused].state, &none, space_state(SPACE_RESERVED, hash));
    }
}

static bool has_users(struct dram *d, uint32_t space)
{
    for (unsigned i = 0; i < SHARE_PROCESSES_MAX; i++) {
        uint64_t bits = atomic_load(&d->spaces[space].users[i / 64]);
        uint32_t member = (uint32_t)(atomic_load(&d->h->members[i]) >> 32);
        if ((bits >> (i & 63) & 1) && member && (member == d->member || share_alive(d->share, member)))
            return true;
    }
    return false;
}

void dram_forget(struct dram *d, uint32_t space)
{
    if (space >= d->h->spaces_max)
        return;
    struct space_entry *e = &d->spaces[space];
    uint64_t state = atomic_load(&e->state), mine = space_state(SPACE_RETIRED, d->member), words[5];
    bool dead = space_kind(state) == SPACE_RETIRED && state != mine && !share_alive(d->share, (uint32_t)state);
    if (space_kind(state) != SPACE_LIVE && !dead)
        return;
    if (!atomic_compare_exchange_strong(&e->state, &state, mine))
        return;
    if (has_users(d, space)) {
        for (int i = 0; i < 5; i++)
            words[i] = atomic_load_explicit(&e->identity[i], memory_order_relaxed);
        atomic_store(&e->state, space_state(SPACE_LIVE, hash64(0, words, sizeof words)));
        return;
    }
    table_sweep(d, space);
    if (!d->fifo) {
        slab_free_space(d, space);
        atomic_store(&d->h->closed, 0);
    }
    for (int i = 0; i < 4; i++)
        atomic_store(&e->users[i], 0);
    atomic_store(&e->state, 0);
}

unsigned dram_reclaim(struct dram *d)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < d->h->spaces_max; i++) {
        uint64_t state = atomic_load(&d->spaces[i].state);
        if ((space_kind(state) == SPACE_LIVE || space_kind(state) == SPACE_RETIRED) && !has_users(d, i)) {
            dram_forget(d, i);
            n += atomic_load(&d->spaces[i].state) == 0;
        }
    }
    return n;
}

/* ---- lookup ---- */

/* memcpy from or to memory that another may write or read meanwhile; the thread checker wants to see atomics then. */
static void copy_racy(void *to, const void *from, size_t len)
{
#ifdef __SANITIZE_THREAD__
    for (size_t i = 0; i < len; i++)
        __atomic_store_n((uint8_t *)to + i, __atomic_load_n((const uint8_t *)from + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
#else
    memcpy(to, from, len);
#endif
}

/* Nothing read before is read after this. */
static void reads_done(struct dram_header *h)
{
#ifdef __SANITIZE_THREAD__
    atomic_fetch_add(&h->ring, 0);
#else
    (void)h;
    atomic_thread_fence(memory_order_acquire);
#endif
}

static inline void read_head(const uint8_t *head, struct cached *hit)
{
    uint64_t key = head_key(head);
    bool has_raw = key & HEAD_HAS_RAW;
    hit->stored_len = head_word(head, 2);
    hit->crc = head_word(head, 3);
    hit->raw_len = has_raw ? head_word(head, 4) : hit->stored_len;
    hit->codec = (uint8_t)(key >> KEY_BITS);
    hit->bytes = head + (has_raw ? HEAD_BYTES_RAW : HEAD_BYTES);
}

/* A key that is looked up: the slot that seems to be its own (at first: the line to look at), what that says, and where the
 * record's head is then. */
struct pending { _Atomic uint64_t *slot; const uint8_t *head; uint64_t word; uint32_t tag; };
struct lookup {
    const struct dram *d;
    struct parts parts;
    struct part largest;
    uint64_t space; /* as in a key */
    const uint64_t *ordinals;
    size_t n;
    struct pending pending[STEPS][GROUP]; /* a group in each step */
    uint32_t missed[STEPS];               /* of a group: those whose first line has no such tag */
    dram_copy_fn *copy;
    void *user;
};

/* Into the second level of the CPU's caches: that takes more misses at a time than the first. */
static inline void prefetch(const void *p) { __builtin_prefetch(p, 0, 2); }

/* Which slots of a line have the tag, a bit each. A hint: the slot is then read for good. */
static inline unsigned tags_in(const struct table_line *l, uint32_t tag)
{
    unsigned mask = 0;
#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
    __m128i want = _mm_set1_epi32((int)tag);
    for (unsigned j = 0; j < LINE_SLOTS; j += 4) {
        __m128 lo = _mm_load_ps((const float *)(const void *)&l->slot[j]);
        __m128 hi = _mm_load_ps((const float *)(const void *)&l->slot[j + 2]);
        __m128i tags = _mm_srli_epi32(_mm_castps_si128(_mm_shuffle_ps(lo, hi, _MM_SHUFFLE(3, 1, 3, 1))), 8);
        mask |= (unsigned)_mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(tags, want))) << j;
    }
#else
    for (unsigned j = 0; j < LINE_SLOTS; j++)
        mask |= (unsigned)(atomic_load_explicit(&l->slot[j], memory_order_relaxed) >> 40 == tag) << j;
#endif
    return mask;
}

/* The first slot with the key's tag in a line of the table: nearly always the right one. Asks for the head that it names. */
static inline bool guess(const struct dram *d, struct pending *p)
{
    struct table_line *line = (struct table_line *)p->slot;
    for (unsigned mask = tags_in(line, p->tag); mask; mask &= mask - 1) {
        _Atomic uint64_t *slot = &line->slot[__builtin_ctz(mask)];
        uint64_t word = atomic_load_explicit(slot, memory_order_acquire);
        if (likely(word > 1 && word >> 40 == p->tag)) {
            p->slot = slot;
            p->word = word;
            p->head = d->slabs + slot_place(word);
            prefetch(p->head);
            return true;
        }
    }
    p->word = 0;
    return false;
}

/* Asks for the line of the table where each key of group g is looked for first. */
static void ask_lines(struct lookup *l, size_t g)
{
    struct pending *p = l->pending[g % STEPS];
    for (size_t i = g * GROUP, end = MIN(i + GROUP, l->n); i < end; i++, p++) {
        uint64_t hash = key_hash(l->space | l->ordinals[i]);
        p->tag = (uint32_t)hash & 0xffffff;
        p->slot = part_line(&l->largest, hash, 0)->slot;
        prefetch(p->slot);
    }
}

/* Asks for the heads, or for the neighbours of the lines that do not have their key. */
static void ask_heads(struct lookup *l, size_t g)
{
    struct pending *p = l->pending[g % STEPS];
    uint32_t missed = 0;
    for (size_t i = g * GROUP, k = 0; k < GROUP && i < l->n; i++, k++) {
        if (likely(guess(l->d, &p[k])))
            continue;
        missed |= 1u << k;
        p[k].slot = part_line(&l->largest, key_hash(l->space | l->ordinals[i]), 1)->slot;
        prefetch(p[k].slot);
    }
    l->missed[g % STEPS] = missed;
}

static void ask_heads_again(struct lookup *l, size_t g)
{
    for (uint32_t missed = l->missed[g % STEPS]; missed; missed &= missed - 1)
        guess(l->d, &l->pending[g % STEPS][__builtin_ctz(missed)]);
}

/* [dram I3] */
static bool copy_out(const struct lookup *l, const struct pending *p, uint64_t key, size_t i, struct cached *hit)
{
    const struct dram *d = l->d;
    uint64_t place = slot_place(p->word);
    uint32_t generation = slab_generation(d, place);
    if (!generation || atomic_load_explicit(p->slot, memory_order_acquire) != p->word)
        return false;
    bool same = (head_key(p->head) & KEY_MASK) == key;
    read_head(p->head, hit);
    reads_done(d->h);
    if (!same || slab_generation(d, place) != generation)
        return false;
    void *to = l->copy ? l->copy(l->user, i, hit->stored_len) : NULL;
    if (!to)
        return false;
    copy_racy(to, hit->bytes, hit->stored_len);
    reads_done(d->h);
    hit->bytes = to;
    return slab_generation(d, place) == generation;
}

/* The key's own slot, whatever was guessed. */
static bool search(const struct lookup *l, uint64_t ordinal, struct pending *p)
{
    uint64_t key = l->space | ordinal;
    if (ordinal > CACHE_ORDINAL_MAX || !(p->word = table_find(l->d, &l->parts, key, key_hash(key), &p->slot)))
        return false;
    p->head = l->d->slabs + slot_place(p->word);
    return true;
}

/* Was the guess right? The second look at the slot makes sure that its head was still one. */
static inline bool right(const struct pending *p, uint64_t key)
{
    return p->word && (head_key(p->head) & KEY_MASK) == key && atomic_load_explicit(p->slot, memory_order_acquire) == p->word;
}

/* The records of group g, and the lines that they lie in; how many are there. */
static size_t answer(struct lookup *l, size_t g, struct extent *extents, const void **views)
{
    struct pending *p = l->pending[g % STEPS];
    size_t found = 0;
    for (size_t i = g * GROUP, end = MIN(i + GROUP, l->n); i < end; i++, p++) {
        uint64_t ordinal = l->ordinals[i];
        struct cached hit;
        views[i] = NULL;
        if (unlikely(ordinal > CACHE_ORDINAL_MAX || !right(p, l->space | ordinal)) && !search(l, ordinal, p))
            continue;
        if (!l->d->fifo)
            read_head(p->head, &hit);
        else if (!copy_out(l, p, l->space | ordinal, i, &hit))
            continue;
        views[i] = hit.bytes;
        extents[i] = extent_cached(ordinal, hit.stored_len, hit.raw_len, hit.crc, hit.codec);
        found++;
        uint32_t last = HEAD_BYTES - 1 + MIN(hit.stored_len, PREFETCH_MAX);
        for (uint32_t at = 64; at < last; at += 64) /* as often for all records of a length: no wrong guesses of the CPU */
            prefetch(p->head + at);
        prefetch(p->head + last);
    }
    return found;
}

size_t dram_lookup(struct dram *d, uint32_t space, const uint64_t *ordinals, size_t n, struct extent *extents, const void **views,
                   dram_copy_fn *copy, void *user)
{
    struct lookup l;
    size_t groups = (n + GROUP - 1) / GROUP, found = 0;
    l.d = d;
    l.space = key_of(space, 0);
    l.ordinals = ordinals;
    l.n = n;
    l.copy = copy;
    l.user = user;
    table_parts(d, &l.parts);
    l.largest = l.parts.at[l.parts.largest];
    for (size_t g = 0; g < groups + STEPS - 1; g++) {
        if (g < groups)
            ask_lines(&l, g);
        if (g >= 1 && g - 1 < groups)
            ask_heads(&l, g - 1);
        if (g >= 2 && g - 2 < groups)
            ask_heads_again(&l, g - 2);
        if (g >= 3)
            found += answer(&l, g - 3, extents, views);
    }
    return found;
}

/* ---- admission ---- */

static unsigned head_of(uint64_t key, const struct cached *r, uint32_t head[5])
{
    bool has_raw = r->raw_len != r->stored_len;
    uint64_t word = key | (uint64_t)r->codec << KEY_BITS | (has_raw ? HEAD_HAS_RAW : 0);
    head[0] = (uint32_t)word;
    head[1] = (uint32_t)(word >> 32);
    head[2] = r->stored_len;
    head[3] = r->crc;
    head[4] = r->raw_len;
    return has_raw ? 5 : 4;
}

static void view_of(const struct dram *d, uint64_t word, struct cached *view)
{
    if (view && !d->fifo)
        read_head(d->slabs + slot_place(word), view);
}

static void count(struct dram *d, uint64_t entries, uint64_t bytes)
{
    atomic_fetch_add_explicit(&d->h->entries, entries, memory_order_relaxed);
    atomic_fetch_add_explicit(&d->h->record_bytes, bytes, memory_order_relaxed);
}

/* Copies a record to its place and publishes it. The word that is in the table then, or NOWHERE. It is counted before it is
 * there, and elsewhere uncounted after it has gone: a process that dies between leaves a count too high, never one below 0. */
static uint64_t publish(struct dram *d, uint64_t key, uint64_t hash, uint64_t place, unsigned words, const struct cached *r)
{
    if (r->stored_len)
        copy_racy(d->slabs + place + words * 4ull, r->bytes, r->stored_len);
    count(d, 1, r->stored_len);
    uint64_t there = table_insert(d, key, hash, place);
    if (there) {
        count(d, -1ull, -(uint64_t)r->stored_len);
        return there;
    }
    atomic_fetch_add_explicit(&d->h->admissions, 1, memory_order_relaxed);
    return slot_word(hash, place);
}

static uint64_t admit(struct dram *d, uint32_t space, uint64_t key, uint64_t hash, const struct cached *record)
{
    uint32_t head[5];
    unsigned words = head_of(key, record, head);
    uint64_t need = record_need(record->stored_len, words == 5), place, word = NOWHERE;
    if (d->fifo) {
        pthread_mutex_lock(&d->fill);
        place = fifo_alloc(d, head, words, need);
        if (place != NOWHERE)
            word = publish(d, key, hash, place, words, record);
        pthread_mutex_unlock(&d->fill);
        return word;
    }
    place = slab_alloc(d, space, need);
    if (place == NOWHERE)
        return NOWHERE;
    for (unsigned i = 0; i < words; i++)
        head_set_word(d->slabs + place, i, head[i]);
    word = publish(d, key, hash, place, words, record);
    if (word != slot_word(hash, place))
        slab_give_back(d, place, need);
    return word;
}

/* Bytes that records could have if there were none. */
static uint64_t whole_bytes(const struct dram *d)
{
    uint64_t taken = d->h->fixed_pages + (atomic_load(&d->h->alloc) >> 32);
    return taken < d->h->budget_pages ? (d->h->budget_pages - taken) * ARENA_PAGE : 0;
}

int dram_admit(struct dram *d, uint32_t space, uint64_t ordinal, const struct cached *record, struct cached *view)
{
    uint64_t key = key_of(space, ordinal), hash = key_hash(key), word;
    uint64_t need = record_need(record->stored_len, record->raw_len != record->stored_len), whole = whole_bytes(d);
    enum replacement replacement = d->fifo ? REPLACE_FIFO : REPLACE_NONE;
    struct parts s;
    if (view)
        *view = *record;
    if (ordinal > CACHE_ORDINAL_MAX || space >= d->h->spaces_max)
        return LARDER_ENOMEM;
    table_parts(d, &s);
    word = table_find(d, &s, key, hash, NULL);
    if (!word && policy_admit(replacement, dram_closed(d), need, need, whole) == POLICY_ADMIT) {
        uint32_t pages = (uint32_t)atomic_load(&d->h->alloc);
        word = admit(d, space, key, hash, record);
        if (pages != (uint32_t)atomic_load(&d->h->alloc))
            table_prepare(d);
        if (word == NOWHERE && policy_admit(replacement, false, need, 0, whole) == POLICY_CLOSE)
            atomic_store(&d->h->closed, 1);
    }
    if (word && word != NOWHERE) {
        view_of(d, word, view);
        return LARDER_OK;
    }
    atomic_fetch_add_explicit(&d->h->refusals, 1, memory_order_relaxed);
    return LARDER_ENOMEM;
}

bool dram_closed(const struct dram *d) { return atomic_load_explicit(&d->h->closed, memory_order_relaxed); }

/* ---- statistics ---- */

void dram_stats(const struct dram *d, struct dram_stats *out)
{
    struct pinned_stats table, slabs;
    uint64_t records = atomic_load(&d->h->record_bytes);
    *out = (struct dram_stats){
        .budget = d->h->budget_pages * ARENA_PAGE,
        .used = (d->h->fixed_pages + (atomic_load(&d->h->alloc) >> 32)) * ARENA_PAGE + slab_used(d),
        .entries = atomic_load(&d->h->entries),
        .admissions = atomic_load(&d->h->admissions),
        .refusals = atomic_load(&d->h->refusals),
        .evictions = atomic_load(&d->h->evictions),
    };
    out->bookkeeping = out->used > records ? out->used - records : 0;
    pinned_stats(&d->table_pin, &table);
    pinned_stats(&d->slabs_pin, &slabs);
    out->locked = table.locked + slabs.locked;
    out->collapsed = table.collapsed + slabs.collapsed;
    out->registered = slabs.registered;
    out->lock_warning = slabs.lock_warning ? slabs.lock_warning : table.lock_warning;
    out->cuda_warning = slabs.cuda_warning;
}
