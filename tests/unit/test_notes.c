/* SPDX-License-Identifier: Apache-2.0 */
/* What an ingest tells its caller: notices one at a time from many threads, progress now and then. */
#include "tests/unit/ingest_tests.h"

struct busy { atomic_int inside; unsigned calls; };

static void on_notice(void *user, const char *what, const char *why)
{
    struct busy *b = user;

    CHECK_EQ(atomic_fetch_add(&b->inside, 1), 0);
    CHECK_STR(what, "x");
    CHECK_STR(why, "y");
    b->calls++;
    atomic_fetch_sub(&b->inside, 1);
}

static void *teller(void *arg)
{
    for (int i = 0; i < 500; i++) {
        notes_skipped(arg, "x", "y");
        notes_ignored(arg, "x", "y");
    }
    return NULL;
}

TEST(one_at_a_time)
{
    struct busy b = {.calls = 0};
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    struct notes n;
    pthread_t t[4];

    o.skipped = o.ignored = on_notice;
    o.user = &b;
    notes_init(&n, &o);
    for (int i = 0; i < 4; i++)
        REQUIRE(pthread_create(&t[i], NULL, teller, &n) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    CHECK_EQ(b.calls, 4000);
    CHECK_EQ(atomic_load(&n.skipped), 2000);
    CHECK_EQ(atomic_load(&n.ignored), 2000);
    notes_release(&n);
}

TEST(progress)
{
    struct heard h;
    struct larder_ingest_options o = heard_options(&h);
    struct larder_progress p = {.phase = "list"};
    struct larder_error err;
    struct notes n;

    notes_init(&n, &o);
    CHECK_OK(notes_progress(&n, &p, true, &err), &err);
    for (int i = 0; i < 1000; i++)
        CHECK_OK(notes_progress(&n, &p, false, &err), &err); /* well within a tenth of a second: not told */
    CHECK(h.ticks >= 1 && h.ticks < 20);
    h.stop_at = 1;
    CHECK_ERR(notes_progress(&n, &p, true, &err), LARDER_ECANCELED, &err);
    o.progress = NULL;
    CHECK_OK(notes_progress(&n, &p, true, &err), &err);
    notes_release(&n);
}

TEST_MAIN();
