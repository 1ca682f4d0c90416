/* SPDX-License-Identifier: Apache-2.0 */
/* Workers share one piece of work: each runs once, the first failure is the result, the tick shows progress and can stop it all. */
#include <pthread.h>
#include <time.h>

#include "store/base/base.h"
#include "tests/unit/test.h"

enum { WORKERS = 5, ITEMS = 10000 };

struct work {
    atomic_uint next, done, ran[WORKERS];
    atomic_uint fail_at; /* item; UINT32_MAX: none */
    unsigned ticks, stop_after;
    pthread_t caller;
    bool idle; /* workers do nothing until they are stopped */
};

static void nap(long ms) { nanosleep(&(struct timespec){0, ms * 1000000}, NULL); }

static int work_some(void *user, unsigned worker, const atomic_bool *stop, struct larder_error *err)
{
    struct work *w = user;

    atomic_fetch_add(&w->ran[worker], 1);
    while (w->idle && !atomic_load(stop))
        nap(1);
    for (unsigned i; !atomic_load(stop) && (i = atomic_fetch_add(&w->next, 1)) < ITEMS; atomic_fetch_add(&w->done, 1))
        if (i == atomic_load(&w->fail_at))
            return err_set(err, LARDER_EIO, "item %u failed", i);
    return LARDER_OK;
}

static int tick(void *user)
{
    struct work *w = user;

    CHECK(pthread_equal(pthread_self(), w->caller));
    w->ticks++;
    return w->stop_after && w->ticks >= w->stop_after;
}

static void set_up(struct work *w)
{
    memset(w, 0, sizeof(*w));
    atomic_store(&w->fail_at, UINT32_MAX);
    w->caller = pthread_self();
}

TEST(every_worker_runs_and_all_is_done)
{
    struct work w;
    struct larder_error err;

    set_up(&w);
    CHECK_OK(crew_run(WORKERS, work_some, tick, &w, &err), &err);
    CHECK_EQ(w.done, ITEMS);
    for (int i = 0; i < WORKERS; i++)
        CHECK_EQ(w.ran[i], 1);
    CHECK(w.ticks >= 1); /* once at the end */
    set_up(&w);
    CHECK_OK(crew_run(0, work_some, NULL, &w, NULL), &err); /* at least one */
    CHECK_EQ(w.done, ITEMS);
}

TEST(the_first_failure_is_the_result)
{
    for (unsigned at = 0; at < ITEMS; at += ITEMS / 7) {
        struct work w;
        struct larder_error err;
        char want[40];

        set_up(&w);
        atomic_store(&w.fail_at, at);
        CHECK_ERR(crew_run(WORKERS, work_some, tick, &w, &err), LARDER_EIO, &err);
        snprintf(want, sizeof(want), "item %u failed", at);
        CHECK_STR(err.message, want);
        CHECK_EQ(crew_run(1, work_some, NULL, (set_up(&w), atomic_store(&w.fail_at, at), &w), NULL), LARDER_EIO);
        CHECK_EQ(w.done, at);
    }
}

TEST(the_tick_stops_it)
{
    struct work w;
    struct larder_error err;

    set_up(&w);
    w.idle = true;
    w.stop_after = 2;
    CHECK_ERR(crew_run(WORKERS, work_some, tick, &w, &err), LARDER_ECANCELED, &err);
    CHECK_EQ(w.ticks, 2);
}

TEST_MAIN();
