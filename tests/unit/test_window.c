/* SPDX-License-Identifier: Apache-2.0 */
#include "loader/prep_int.h"
#include "tests/unit/test.h"

TEST(nothing_is_due_above_the_threshold)
{
    struct window w;

    window_init(&w, 100, 40);
    CHECK_EQ(window_due(&w), 100);
    window_request(&w, 100);
    CHECK_EQ(window_due(&w), 0);
    window_consume(&w, 59);
    CHECK_EQ(window_due(&w), 0);
    window_consume(&w, 1); /* 40 are queued: not more than the threshold */
    CHECK_EQ(window_due(&w), 100);
    CHECK_EQ(w.queued, 40);
}

TEST(a_window_that_began_is_requested_as_a_whole)
{
    struct window w;

    window_init(&w, 100, 0);
    for (uint64_t left = 100; left > 0; left -= 20) {
        CHECK_EQ(window_due(&w), left);
        window_request(&w, 20); /* though more than the threshold is queued by now */
    }
    CHECK_EQ(window_due(&w), 0);
    window_consume(&w, 99);
    CHECK_EQ(window_due(&w), 0);
    window_consume(&w, 1);
    CHECK_EQ(window_due(&w), 100);
}

TEST(the_last_batch_may_be_more_than_was_due)
{
    struct window w;

    window_init(&w, 100, 10);
    window_request(&w, window_due(&w) - 1);
    CHECK_EQ(window_due(&w), 1);
    window_request(&w, 32);
    CHECK_EQ(w.queued, 131);
    CHECK_EQ(window_due(&w), 0);
    window_consume(&w, 121);
    CHECK_EQ(window_due(&w), 100);
    window_consume(&w, 1000); /* more than there is: none is left */
    CHECK_EQ(w.queued, 0);
}

TEST(without_a_threshold_a_batch_is_always_due)
{
    struct window w;

    window_init(&w, 0, UINT64_MAX);
    for (int i = 0; i < 1000; i++) {
        CHECK(window_due(&w) > 0);
        window_request(&w, 12345);
    }
    CHECK_EQ(w.queued, 12345000);
}

/* Whatever the sizes, requests and consumption keep to threshold + fetch_size + a batch, and there is never nothing queued and nothing due. */
TEST(bounds_hold_for_any_sizes)
{
    uint64_t state = 5;

    for (int k = 0; k < 200; k++) {
        uint64_t fetch = 1 + rng_below(&state, 500), threshold = rng_below(&state, 500), batch = 1 + rng_below(&state, 64), requested = 0, consumed = 0;
        struct window w;
        window_init(&w, fetch, threshold);
        for (int i = 0; i < 2000; i++) {
            bool due = window_due(&w) > 0;
            CHECK(due || w.queued > 0);
            CHECK_EQ(w.queued, requested - consumed);
            if (due && (w.queued == 0 || rng_below(&state, 3))) {
                window_request(&w, batch);
                requested += batch;
            } else if (w.queued) {
                uint64_t n = MIN(batch, requested - consumed);
                window_consume(&w, n);
                consumed += n;
            }
            CHECK(requested - consumed < threshold + fetch + batch);
        }
        CHECK(consumed > 0);
    }
}

TEST_MAIN();
