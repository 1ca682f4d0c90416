/* SPDX-License-Identifier: Apache-2.0 */
/* verify: subsets and stopping. What it tells of damage is in test_repair.c, which mends the same, and byte
 * by byte in tests/fault/test_flip.c. */
#include "tests/unit/keeping.h"

TEST(subsets_cover_everything)
{
    struct fixture f;
    struct larder_error err = {0};
    uint64_t samples = 0, shards = 0;
    set_up(&f);
    for (uint64_t n = 1; n <= 3; n++) {
        struct larder_verify_options o = LARDER_VERIFY_OPTIONS_INIT;
        struct larder_verify_report r = {.struct_size = sizeof(r)};
        o.subset_n = n;
        o.subset_t = 3;
        REQUIRE_OK(larder_verify_run(f.dir, &o, &r, &err), &err);
        CHECK(r.shards < f.m.n_shards);
        samples += r.samples;
        shards += r.shards;
    }
    CHECK_EQ(samples, N);
    CHECK_EQ(shards, f.m.n_shards);
    tear_down(&f);
}

static int stop_now(void *user, const struct larder_progress *p)
{
    (void)user, (void)p;
    return 1;
}

TEST(verify_can_be_stopped)
{
    struct fixture f;
    struct larder_error err;
    set_up(&f);
    struct larder_verify_options o = LARDER_VERIFY_OPTIONS_INIT;
    struct larder_verify_report r = {.struct_size = sizeof(r)};
    o.progress = stop_now;
    int rc = larder_verify_run(f.dir, &o, &r, &err);
    CHECK(rc == LARDER_OK || rc == LARDER_ECANCELED); /* it may be through before it is asked */
    o.subset_n = 4;
    o.subset_t = 3;
    CHECK_ERR(larder_verify_run(f.dir, &o, &r, &err), LARDER_EINVAL, &err);
    tear_down(&f);
}

TEST_MAIN();
