/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crew.c - a handful of threads that share one piece of work, while the caller shows progress.
 *
 * The caller's thread sleeps on a condition with a deadline of a tenth of a second: the tick of a progress bar. The lock guards
 * `running` and the first error. What the workers share among themselves is theirs.
 */
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "store/base/base.h"

#define TICK_NS 100000000L

struct crew {
    crew_fn *fn;
    void *user;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    unsigned running;      /* guarded by lock */
    int rc;                /* of the first that failed; guarded by lock */
    struct larder_error why;
};
struct member { struct crew *crew; unsigned number; pthread_t thread; };

static void fail(struct crew *c, int rc, const struct larder_error *why)
{
    if (!c->rc) {
        c->rc = rc;
        c->why = *why;
    }
    atomic_store(&c->stop, true);
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    struct crew *c = m->crew;
    struct larder_error why = {.code = LARDER_OK};
    int rc = c->fn(c->user, m->number, &c->stop, &why);
    pthread_mutex_lock(&c->lock);
    if (rc)
        fail(c, rc, &why);
    c->running--;
    pthread_cond_signal(&c->ended);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void watch(struct crew *c, crew_tick_fn *tick)
{
    struct larder_error why;
    struct timespec until;
    pthread_mutex_lock(&c->lock);
    clock_gettime(CLOCK_MONOTONIC, &until);
    while (c->running) {
        until.tv_nsec += TICK_NS;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        while (c->running && pthread_cond_timedwait(&c->ended, &c->lock, &until) != ETIMEDOUT)
            ;
        if (!tick || !c->running || atomic_load(&c->stop))
            continue;
        pthread_mutex_unlock(&c->lock);
        int stop = tick(c->user);
        pthread_mutex_lock(&c->lock);
        if (stop)
            fail(c, err_set(&why, LARDER_ECANCELED, "stopped"), &why);
    }
    pthread_mutex_unlock(&c->lock);
}

int crew_run(unsigned workers, crew_fn *fn, crew_tick_fn *tick, void *user, struct larder_error *err)
{
    struct crew c = {.fn = fn, .user = user, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_condattr_t attr;
    workers = MAX(workers, 1u);
    AUTO_FREE struct member *members = calloc(workers, sizeof(*members));
    if (!members)
        return err_nomem(err, workers * sizeof(*members), "worker threads");
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c.ended, &attr);
    pthread_condattr_destroy(&attr);
    unsigned started = 0;
    pthread_mutex_lock(&c.lock);
    for (; started < workers; started++) {
        members[started] = (struct member){.crew = &c, .number = started};
        int e = pthread_create(&members[started].thread, NULL, member_main, &members[started]);
        if (e && started == 0) /* fewer threads than wished for will do; none will not */
            err_sys(&c.why, c.rc = LARDER_EIO, e, "cannot start a worker thread");
        if (e)
            break;
        c.running++;
    }
    pthread_mutex_unlock(&c.lock);
    watch(&c, tick);
    for (unsigned i = 0; i < started; i++)
        pthread_join(members[i].thread, NULL);
    pthread_cond_destroy(&c.ended);
    if (tick && !c.rc)
        tick(user);
    if (c.rc && err)
        *err = c.why;
    return c.rc;
}
