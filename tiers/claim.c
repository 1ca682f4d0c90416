/* SPDX-License-Identifier: Apache-2.0 */
/*
 * claim.c - single flight over processes: who is fetching a record that all could use.
 *
 * A claim is one word in the set that its key falls into: the member that holds it, a fingerprint of the key, and when it
 * began. Who dies, is stopped or is late loses it to whoever asks next; a stopped one that goes on finds its records there and its
 * claims another's, which it leaves alone. Late is what takes eight times as long as the slowest claim of the last seconds, of all
 * processes: between LATE_TICKS_MIN and LATE_TICKS_MAX, as the origin is near or far. Two keys of one fingerprint take
 * each other for the same: one waits for nothing, looks again, and claims then. Two that enter the same key at once in different
 * slots both see it when they look again; the one in the first slot keeps it.
 *
 * Who waits sleeps on the set's bell, which is rung at each unclaim when anybody waits. The dead ring no bell: so a waiter
 * looks up from time to time whether the owner lives. dram_wake rings it too, for a waiter that is to give up.
 *
 * Any thread of any process, at any time.
 */
#include "tiers/dram_int.h"

#define TICK_MS 250u
#define LATE_TICKS_MIN 16u  /* 4 s */
#define LATE_TICKS_MAX 120u /* 30 s */
#define LATE_FACTOR 8u
#define STOPPED_TICKS 2u    /* younger claims are not worth the look */
#define TICK_MASK 0xfffu
#define SLOWEST_UNIT 16u    /* dram_header.slowest: tick << 16 | ticks of the slowest claim in sixteenths */
#define LOOK_UP_MS 200u

static uint32_t tick_now(void) { return (uint32_t)(now_ns() / (TICK_MS * 1000000ull)) & TICK_MASK; }
static uint32_t claim_member(uint64_t word) { return (uint32_t)(word >> 32); }

static struct claim_set *set_of(const struct dram *d, uint64_t hash, uint32_t *print)
{
    *print = (uint32_t)hash & 0xfffff;
    return &d->claims[((hash >> 32) * d->h->claim_sets) >> 32];
}

static bool same_key(uint64_t word, uint32_t print) { return word && ((uint32_t)word >> 12 & 0xfffff) == print; }

static uint32_t age_of(uint64_t word)
{
    uint32_t age = (tick_now() - (uint32_t)word) & TICK_MASK;
    return age < TICK_MASK - 8 ? age : 0; /* clocks of CPUs may differ by a tick */
}

/* A claim is over. What the slowest one took is forgotten by a sixteenth each tick. Two that write at once lose one's note. */
static void note_age(struct dram *d, uint32_t age)
{
    uint32_t word = atomic_load_explicit(&d->h->slowest, memory_order_relaxed), slowest = word & 0xffff, now = tick_now();
    if (age * SLOWEST_UNIT > slowest)
        slowest = age * SLOWEST_UNIT;
    else if (slowest && word >> 16 != now)
        slowest -= (slowest + SLOWEST_UNIT - 1) / SLOWEST_UNIT;
    else
        return;
    atomic_store_explicit(&d->h->slowest, now << 16 | slowest, memory_order_relaxed);
}

static uint32_t late_ticks(const struct dram *d)
{
    uint32_t slowest = atomic_load_explicit(&d->h->slowest, memory_order_relaxed) & 0xffff;
    return MIN(MAX(slowest * LATE_FACTOR / SLOWEST_UNIT, LATE_TICKS_MIN), LATE_TICKS_MAX);
}

/* Looked for once a tick while the member runs. */
static bool stopped(struct dram *d, uint32_t member)
{
    uint64_t seen = (uint64_t)member << 32 | tick_now();
    if (atomic_load_explicit(&d->running, memory_order_relaxed) == seen)
        return false;
    if (share_stopped(d->share, member))
        return true;
    atomic_store_explicit(&d->running, seen, memory_order_relaxed);
    return false;
}

/* Its owner is dead, stopped or late. */
static bool lapsed(struct dram *d, uint64_t word)
{
    uint32_t age = age_of(word), member = claim_member(word);
    if (age >= late_ticks(d))
        return true;
    return member != d->member && (!share_alive(d->share, member) || (age >= STOPPED_TICKS && stopped(d, member)));
}

/* Not what is on its way out: who was to take it out of the table may be stopped. */
static bool there_already(const struct dram *d, uint64_t key, uint64_t hash)
{
    struct parts s;
    table_parts(d, &s);
    uint64_t word = table_find(d, &s, key, hash, NULL);
    return word && (!d->fifo || slab_generation(d, slot_place(word)));
}

static void ring(struct claim_set *set)
{
    atomic_fetch_add(&set->bell, 1);
    if (atomic_load(&set->waiters))
        share_wake(&set->bell);
}

/* Enters `mine` where nothing is, or a lapsed claim: this key's, or, when the set is full, any. -1: no place; -2: it is theirs. */
static int enter(struct dram *d, struct claim_set *set, uint32_t print, uint64_t mine)
{
    for (;;) {
        int at = -1;
        uint64_t found = 0;
        for (int i = 0; i < CLAIM_WAYS; i++) {
            uint64_t word = atomic_load(&set->claim[i]);
            if (same_key(word, print)) {
                if (!lapsed(d, word))
                    return -2;
                at = i;
                found = word;
                break;
            }
            if (!word && at < 0)
                at = i;
        }
        for (int i = 0; at < 0 && i < CLAIM_WAYS; i++) {
            found = atomic_load(&set->claim[i]);
            if (!found || lapsed(d, found))
                at = i;
        }
        if (at < 0)
            return -1;
        if (atomic_compare_exchange_strong(&set->claim[at], &found, mine))
            return at;
    }
}

enum claim dram_claim(struct dram *d, uint32_t space, uint64_t ordinal)
{
    uint64_t key = key_of(space, ordinal), hash = key_hash(key), mine;
    uint32_t print;
    struct claim_set *set = set_of(d, hash, &print);
    if (ordinal > CACHE_ORDINAL_MAX || space >= d->h->spaces_max)
        return CLAIM_NONE;
    mine = (uint64_t)d->member << 32 | print << 12 | tick_now();
    int at = enter(d, set, print, mine);
    if (at < 0)
        return at == -1 ? CLAIM_NONE : CLAIM_THEIRS;
    bool theirs = there_already(d, key, hash);
    for (int i = 0; i < at && !theirs; i++) {
        uint64_t word = atomic_load(&set->claim[i]);
        theirs = same_key(word, print) && !lapsed(d, word);
    }
    if (!theirs)
        return CLAIM_MINE;
    if (atomic_compare_exchange_strong(&set->claim[at], &mine, 0))
        ring(set);
    return CLAIM_THEIRS;
}

void dram_unclaim(struct dram *d, uint32_t space, uint64_t ordinal)
{
    uint32_t print;
    struct claim_set *set = set_of(d, key_hash(key_of(space, ordinal)), &print);
    for (int i = 0; i < CLAIM_WAYS; i++) {
        uint64_t word = atomic_load(&set->claim[i]);
        if (same_key(word, print) && claim_member(word) == d->member && atomic_compare_exchange_strong(&set->claim[i], &word, 0)) {
            note_age(d, age_of(word));
            break;
        }
    }
    ring(set);
}

static bool claimed(struct dram *d, const struct claim_set *set, uint32_t print)
{
    for (int i = 0; i < CLAIM_WAYS; i++) {
        uint64_t word = atomic_load(&set->claim[i]);
        if (same_key(word, print))
            return !lapsed(d, word);
    }
    return false;
}

/* True: w was woken. Else dram_wake will find the bell, or has changed it after `bell` was read. */
static bool lie_down(struct waker *w, struct claim_set *set)
{
    if (!w)
        return false;
    atomic_store(&w->asleep_on, &set->bell);
    return atomic_load(&w->woken);
}

void dram_wait(struct dram *d, uint32_t space, uint64_t ordinal, unsigned timeout_ms, struct waker *w)
{
    uint64_t end = now_ns() + timeout_ms * 1000000ull;
    uint32_t print;
    struct claim_set *set = set_of(d, key_hash(key_of(space, ordinal)), &print);
    atomic_fetch_add(&set->waiters, 1); /* who is killed here leaves it: the bell is then rung for nobody */
    for (;;) {
        uint32_t bell = atomic_load(&set->bell);
        uint64_t now = now_ns();
        if (now >= end || lie_down(w, set) || !claimed(d, set, print))
            break;
        share_wait(&set->bell, bell, (unsigned)MIN((end - now) / 1000000 + 1, LOOK_UP_MS));
    }
    if (w)
        atomic_store(&w->asleep_on, NULL);
    atomic_fetch_sub(&set->waiters, 1);
}

void dram_wake(struct waker *w)
{
    atomic_store(&w->woken, true);
    _Atomic uint32_t *bell = atomic_load(&w->asleep_on);
    if (bell) {
        atomic_fetch_add(bell, 1);
        share_wake(bell);
    }
}
