/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pace.c - is the disk of a cache directory so slow that the next tier is the faster one? Pure: the caller has the clock.
 *
 * A read is slow when it takes half a second, and four times as long as those of the next tier do. Where for some seconds nothing
 * but slow reads came, the directory is passed by: for ten seconds, then twice as long each time that it is no better, up to five
 * minutes. One read in time begins all anew, so a disk that is busy for a moment is waited for.
 *
 * Threads: any. Words are relaxed; a note that two write at once may be lost.
 */
#include "tiers/stack_int.h"

#define SLOW_NS 500000000ull
#define SLOW_FACTOR 4u
#define SLOW_READS 8u
#define SLOW_FOR_NS 3000000000ull
#define PAUSE_NS_MIN 10000000000ull
#define PAUSE_NS_MAX 300000000000ull

static uint64_t get(const _Atomic uint64_t *v) { return atomic_load_explicit((_Atomic uint64_t *)(uintptr_t)v, memory_order_relaxed); }
static void set(_Atomic uint64_t *v, uint64_t to) { atomic_store_explicit(v, to, memory_order_relaxed); }

void pace_average(_Atomic uint64_t *average_ns, uint64_t took_ns)
{
    uint64_t was = get(average_ns);
    set(average_ns, was ? was - was / 16 + took_ns / 16 : took_ns);
}

bool pace_read(struct pace *p, uint64_t took_ns, uint64_t next_tier_ns, uint64_t now_ns)
{
    if (took_ns < MAX(SLOW_NS, SLOW_FACTOR * next_tier_ns)) {
        if (get(&p->slow_reads))
            set(&p->slow_reads, 0);
        if (get(&p->pause_ns) && !pace_passed(p, now_ns))
            set(&p->pause_ns, 0);
        return false;
    }
    if (pace_passed(p, now_ns)) { /* it was under way: the pause begins after the last of these */
        set(&p->until_ns, now_ns + get(&p->pause_ns));
        return false;
    }
    uint64_t n = get(&p->slow_reads) + 1;
    if (n == 1)
        set(&p->slow_since_ns, now_ns - took_ns);
    set(&p->slow_reads, n);
    if (n < SLOW_READS || now_ns - get(&p->slow_since_ns) < SLOW_FOR_NS)
        return false;
    uint64_t pause = MIN(MAX(2 * get(&p->pause_ns), PAUSE_NS_MIN), PAUSE_NS_MAX);
    set(&p->pause_ns, pause);
    set(&p->until_ns, now_ns + pause);
    set(&p->slow_reads, 0);
    return true;
}

bool pace_passed(const struct pace *p, uint64_t now_ns) { return now_ns < get(&p->until_ns); }
