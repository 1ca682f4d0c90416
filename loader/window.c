/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window.c - when how much is requested (DELI III-B): as soon as what was requested and not yet consumed is no more than the threshold,
 * fetch_size at once.
 *
 *     queued  0 ---------- threshold ---------- threshold + fetch_size
 *                          |<- a window is due    ^ the most there ever is, and a batch
 *
 * With fetch_size = threshold = half of the room (50/50, DELI V-D) a window is on its way while the one before it is consumed. A threshold
 * of 0 lets all be consumed first; one without bounds is no window at all: a batch is requested whenever there is room. What is counted,
 * samples or bytes, is the caller's. Epochs are not known here, so windows run across their boundaries.
 *
 * Pure; the caller's lock guards it.
 */
#include "loader/prep_int.h"

void window_init(struct window *w, uint64_t fetch_size, uint64_t threshold)
{
    *w = (struct window){.fetch_size = MAX(fetch_size, (uint64_t)1), .threshold = threshold};
}

uint64_t window_due(struct window *w)
{
    if (w->left == 0 && w->queued <= w->threshold)
        w->left = w->fetch_size;
    return w->left;
}

void window_request(struct window *w, uint64_t n)
{
    w->queued += n;
    w->left -= MIN(n, w->left);
}

void window_consume(struct window *w, uint64_t n) { w->queued -= MIN(n, w->queued); }
