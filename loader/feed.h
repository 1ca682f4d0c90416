/* SPDX-License-Identifier: Apache-2.0 */
/*
 * feed.h - inside loader/: the reads of batches, from one dataset or from several (feed.c).
 */
#ifndef LARDER_FEED_H
#define LARDER_FEED_H

#include <pthread.h>

#include "tiers/tiers.h"

struct feed;
struct feed_batch; /* the reads of one batch; reusable */

/* tiers[n] and stores[n] are borrowed. new and free around any number of open and close; what is below is for one thread, the fetch thread. */
int feed_new(struct tiers *const *tiers, struct store *const *stores, uint32_t n, struct feed **f, struct larder_error *err);
void feed_free(struct feed *f);
int feed_open(struct feed *f, unsigned depth, struct larder_error *err); /* close it after a failure too */
void feed_close(struct feed *f);   /* waits for reads in flight; batches under way are given up */
void feed_cancel(struct feed *f);  /* any thread: it is to be closed, and feed_next waits no more */
void feed_abandon(struct feed *f); /* in a forked child: its memory only */
void feed_wake(struct feed *f);    /* any thread: a feed_next that waits, or the next one that would, returns soon, perhaps with END */
struct tiers_queue *feed_only(struct feed *f); /* of one dataset its queue, else NULL */
size_t feed_under_way(const struct feed *f);   /* batches */
/* Starts a planned batch. memory: 4096-aligned, the planned bytes, untouched until it comes back with its tag. */
int feed_start(struct feed *f, struct feed_batch *b, void *memory, void *tag, struct larder_error *err);
/* LARDER_OK or an error with *tag: that batch is over. LARDER_END: none is, and wait is false or nothing is under way or all is cancelled.
 * Another error with *tag NULL: a queue itself failed. */
int feed_next(struct feed *f, bool wait, void **tag, struct larder_error *err);

int feed_batch_new(struct feed *f, struct feed_batch **b, struct larder_error *err);
void feed_batch_free(struct feed_batch *b);    /* not while it is under way */
void feed_batch_abandon(struct feed_batch *b); /* in a forked child: its memory only */
void feed_batch_limit(struct feed_batch *b, uint64_t over_read_max); /* tiers_fetch_limit, for all together */
struct tiers_fetch *feed_batch_only(struct feed_batch *b); /* of one dataset its fetch, else NULL */
/* sources[n]: NULL of one dataset. *bytes gets the memory that feed_start needs. */
int feed_batch_plan(struct feed_batch *b, const uint64_t *ordinals, const uint32_t *sources, size_t n, size_t *bytes, struct larder_error *err);
/* After planning; any thread, as all below. */
uint32_t feed_batch_source(const struct feed_batch *b, size_t i);
const struct extent *feed_batch_extent(const struct feed_batch *b, size_t i);
/* After it has come. store_decode of sample i; and store_decode_views of as many as come next, 0 of a mix. */
int feed_batch_decode(const struct feed_batch *b, size_t i, struct decoder *d, void *scratch, struct larder_value *values,
                      struct larder_error *err);
size_t feed_batch_views(const struct feed_batch *b, size_t i, size_t n, struct larder_value *values);
struct tiers_counts feed_batch_counts(const struct feed_batch *b);

#endif
