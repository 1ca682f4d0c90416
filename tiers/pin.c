/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pin.c - makes memory good to read from as it is taken into use: huge pages, locked, registered with CUDA.
 *
 * Nothing is prepared that nobody is about to use, so a large region costs no pause at the start: whenever it has grown, what is new is collapsed into
 * 2 MiB pages, locked as far as RLIMIT_MEMLOCK goes, and handed to cuda.c, which registers it where that is of use. All of it is a
 * help, none of it a need: what is refused is not tried again, and a warning says what was lost.
 *
 * Threads: any. pinned.lock is tried by whoever let the region grow; if another thread is at it, the next growth catches up. It is waited
 * for where somebody prepares ahead: 2 MiB take less time than to fill small pages, and then to copy them to a huge one.
 */
#include <errno.h>
#include <sys/mman.h>

#include "tiers/pin_int.h"

#define HUGE_PAGE (2ull << 20)
#define SMALL_PAGE 4096u

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1 */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* since Linux 5.14 */
#endif

void pinned_init(struct pinned *p, void *base)
{
    *p = (struct pinned){.base = base};
    pthread_mutex_init(&p->lock, NULL);
}

void pinned_release(struct pinned *p)
{
    cuda_pins_free(p->cuda);
    pthread_mutex_destroy(&p->lock);
}

/* [from, to) is in use now: whole huge pages first, then the lock, which would fill it with small ones. */
static void settle(struct pinned *p, uint64_t from, uint64_t to)
{
    bool aligned = (uintptr_t)p->base % HUGE_PAGE == 0;
    for (uint64_t at = round_down(from, HUGE_PAGE); aligned && !p->no_collapse && at + HUGE_PAGE <= to; at += HUGE_PAGE) {
        madvise(p->base + at, SMALL_PAGE, MADV_POPULATE_WRITE); /* private memory has to have a page there */
        if (madvise(p->base + at, HUGE_PAGE, MADV_COLLAPSE) == 0)
            p->collapsed += HUGE_PAGE;
        else if (errno == EINVAL && p->collapsed == 0)
            p->no_collapse = true;
    }
    if (p->no_lock || from == to)
        return;
    if (mlock(p->base + from, to - from) == 0) {
        p->locked += to - from;
    } else {
        p->no_lock = true;
        p->warning = "RLIMIT_MEMLOCK is lower than the cache: the rest of it is not locked and may be swapped out "
                     "(raise it with ulimit -l, LimitMEMLOCK= or docker --ulimit memlock=-1)";
    }
}

void pinned_grow(struct pinned *p, uint64_t end)
{
    if (!p || (pthread_mutex_trylock(&p->lock) != 0 && (!atomic_load(&p->ahead) || pthread_mutex_lock(&p->lock) != 0)))
        return;
    if (end > p->done) {
        settle(p, p->done, end);
        p->done = end;
    }
    pthread_mutex_unlock(&p->lock);
    pinned_register(p, end);
}

void pinned_register(struct pinned *p, uint64_t end)
{
    if (p)
        cuda_pins_poke(p->cuda, end, false);
}

bool pinned_ahead(struct pinned *p, uint64_t end)
{
    atomic_store(&p->ahead, true);
    pthread_mutex_lock(&p->lock);
    bool some = p->done < end;
    if (some) {
        uint64_t to = MIN(end, round_down(p->done, HUGE_PAGE) + HUGE_PAGE);
        settle(p, p->done, to);
        p->done = to;
    }
    pthread_mutex_unlock(&p->lock);
    return some;
}

void pinned_stats(const struct pinned *p, struct pinned_stats *out)
{
    struct pinned *q = (struct pinned *)(uintptr_t)p;
    *out = (struct pinned_stats){0};
    pthread_mutex_lock(&q->lock);
    out->locked = p->locked;
    out->collapsed = p->collapsed;
    out->lock_warning = p->warning;
    pthread_mutex_unlock(&q->lock);
    out->registered = cuda_pins_stats(p->cuda, &out->cuda_warning);
}

/* ---- a region of the loader's ---- */

int pinned_new(void *base, const struct larder_cache_options *o, struct pinned **out, struct larder_error *err)
{
    struct pinned *p = calloc(1, sizeof(*p));
    *out = NULL;
    if (!p)
        return err_nomem(err, sizeof(*p), "pinned memory");
    pinned_init(p, base);
    p->no_lock = o && o->no_pin;
    if (!p->no_lock)
        p->cuda = cuda_pins_new(base, o ? o->cuda_device : LARDER_CUDA_IF_USED, NULL, NULL);
    *out = p;
    return LARDER_OK;
}

void pinned_free(struct pinned *p)
{
    if (!p)
        return;
    pinned_release(p);
    free(p);
}
