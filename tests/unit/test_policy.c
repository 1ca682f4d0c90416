/* SPDX-License-Identifier: Apache-2.0 */
/* test_policy.c - the decision on a record that asks in, and CoorDL's worked example played through it. */
#include "tests/unit/test.h"
#include "tiers/cache_int.h"

TEST(decisions)
{
    CHECK_EQ(policy_admit(REPLACE_NONE, false, 10, 10, 100), POLICY_ADMIT);
    CHECK_EQ(policy_admit(REPLACE_NONE, false, 10, 9, 100), POLICY_CLOSE);
    CHECK_EQ(policy_admit(REPLACE_NONE, true, 1, 50, 100), POLICY_REFUSE);
    CHECK_EQ(policy_admit(REPLACE_NONE, false, 101, 0, 100), POLICY_REFUSE); /* says nothing about room: closes nothing */
    CHECK_EQ(policy_admit(REPLACE_FIFO, false, 10, 10, 100), POLICY_ADMIT);
    CHECK_EQ(policy_admit(REPLACE_FIFO, false, 10, 9, 100), POLICY_EVICT);
    CHECK_EQ(policy_admit(REPLACE_FIFO, true, 100, 0, 100), POLICY_EVICT);
    CHECK_EQ(policy_admit(REPLACE_FIFO, false, 101, 100, 100), POLICY_REFUSE);
}

/* CoorDL figure 12: four items, room for two: two misses in every epoch after the first, whatever the order. */
TEST(four_items_in_two_slots)
{
    uint64_t rng = 1, room = 2;
    bool held[4] = {false}, closed = false;
    for (int epoch = 0; epoch < 100; epoch++) {
        int order[4] = {0, 1, 2, 3}, misses = 0;
        for (int i = 3; i > 0; i--) {
            int j = (int)rng_below(&rng, (uint64_t)i + 1), t = order[i];
            order[i] = order[j];
            order[j] = t;
        }
        for (int i = 0; i < 4; i++) {
            if (held[order[i]])
                continue;
            misses++;
            enum policy_act act = policy_admit(REPLACE_NONE, closed, 1, room, 2);
            if (act == POLICY_ADMIT)
                held[order[i]] = true, room--;
            closed |= act == POLICY_CLOSE;
        }
        CHECK_EQ(misses, epoch == 0 ? 4 : 2);
    }
}

TEST_MAIN();
