/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pin_int.h - inside tiers/: memory that is good to read from.
 *
 *     pin.c     a region from its beginning, as it is taken into use: huge pages, locked, registered
 *     cuda.c    the registering, by a thread of its own
 */
#ifndef LARDER_TIERS_PIN_INT_H
#define LARDER_TIERS_PIN_INT_H

#include <pthread.h>

#include "tiers/tiers.h"

/* ---- cuda.c ---- */

struct cuda_pins;
/* Where a registration that begins at `from` may end, so that nothing that is copied in one piece lies across, now or later. Not worth it
 * yet, or nowhere: from. all: even a small one is wanted. Called by the thread of the registrations. */
typedef uint64_t cuda_cut_fn(void *user, uint64_t from, bool all);
/* device: larder_cache_options.cuda_device. cut NULL: registrations end where a poke says. NULL: no memory. */
struct cuda_pins *cuda_pins_new(void *base, int device, cuda_cut_fn *cut, void *user);
/* [base, base + end) is in use: registers it soon, if this process uses CUDA. Any thread; never waits for the driver. NULL allowed. */
void cuda_pins_poke(struct cuda_pins *c, uint64_t end, bool all);
uint64_t cuda_pins_stats(struct cuda_pins *c, const char **warning); /* bytes registered */
void cuda_pins_free(struct cuda_pins *c); /* unregisters; NULL allowed; in a forked child it only gives back memory */

/* ---- pin.c ---- */

struct pinned {
    pthread_mutex_t lock; /* guards what follows; tried, never waited for, except by stats and who prepares ahead */
    uint8_t *base;
    uint64_t done, locked, collapsed;
    bool no_lock, no_collapse;
    atomic_bool ahead; /* somebody has prepared what was not yet in use; not guarded */
    const char *warning; /* a constant */
    struct cuda_pins *cuda; /* constant; NULL: none */
};
void pinned_init(struct pinned *p, void *base);
void pinned_release(struct pinned *p);
/* Prepares some of what lies before `end`, which is to be taken into use; false: it was all done. Not what is registered. */
bool pinned_ahead(struct pinned *p, uint64_t end);

#endif
