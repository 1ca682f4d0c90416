/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notes.c - what the caller of an ingest hears while it runs: samples skipped, files ignored, progress.
 *
 * The notices come from any thread and are told one at a time; progress only from the thread that called ingest_run. Their
 * lock is held across the callback, because "one at a time" is what larder.h promises; nothing else is locked inside it.
 */
#include "ingest/ingest_int.h"

#define PROGRESS_EVERY_NS 100000000u

void notes_init(struct notes *n, const struct larder_ingest_options *o)
{
    n->o = o;
    n->last_ns = 0;
    atomic_init(&n->skipped, 0);
    atomic_init(&n->ignored, 0);
    pthread_mutex_init(&n->lock, NULL);
}

void notes_release(struct notes *n) { pthread_mutex_destroy(&n->lock); }

static void tell(struct notes *n, larder_notice_fn *fn, const char *what, const char *why)
{
    if (!fn)
        return;
    pthread_mutex_lock(&n->lock);
    fn(n->o->user, what, why);
    pthread_mutex_unlock(&n->lock);
}

void notes_skipped(struct notes *n, const char *what, const char *why)
{
    atomic_fetch_add(&n->skipped, 1);
    tell(n, n->o->skipped, what, why);
}

void notes_ignored(struct notes *n, const char *what, const char *why)
{
    atomic_fetch_add(&n->ignored, 1);
    tell(n, n->o->ignored, what, why);
}

int notes_progress(struct notes *n, const struct larder_progress *p, bool at_once, struct larder_error *err)
{
    if (!n->o->progress)
        return LARDER_OK;
    uint64_t now = now_ns();
    if (!at_once && now - n->last_ns < PROGRESS_EVERY_NS)
        return LARDER_OK;
    n->last_ns = now;
    if (n->o->progress(n->o->user, p))
        return err_set(err, LARDER_ECANCELED, "%s: stopped by the caller", p->phase);
    return LARDER_OK;
}
