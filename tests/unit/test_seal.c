/* SPDX-License-Identifier: Apache-2.0 */
/* The sealing thread: order, the bound of its queue, what happens after a failure. */
#include "tests/unit/ingest_tests.h"

struct seen { atomic_uint n; uint64_t units[64]; unsigned fail_at; atomic_bool hold; };

static int on_sealed(void *user, const struct seal_item *item, struct shard_ref *ref, struct larder_error *err)
{
    struct seen *s = user;
    unsigned n = atomic_load(&s->n);

    CHECK(ref == NULL); /* places only */
    s->units[n] = item->unit;
    atomic_store(&s->n, n + 1);
    if (s->fail_at && n + 1 == s->fail_at)
        return err_set(err, LARDER_EIO, "the disk is full");
    return LARDER_OK;
}

TEST(in_order)
{
    struct seen seen = {.fail_at = 0};
    struct sealer *s;
    struct larder_error err;

    REQUIRE_OK(sealer_start(2, on_sealed, &seen, &s, &err), &err);
    for (uint64_t i = 0; i < 50; i++) {
        struct seal_item item = {.unit = i * i, .unit_done = true};
        REQUIRE_OK(sealer_push(s, &item, &err), &err);
    }
    CHECK_OK(sealer_finish(s, &err), &err);
    REQUIRE_EQ(atomic_load(&seen.n), 50);
    for (uint64_t i = 0; i < 50; i++)
        CHECK_EQ(seen.units[i], i * i);
}

TEST(the_first_failure_is_told)
{
    struct seen seen = {.fail_at = 3};
    struct sealer *s;
    struct larder_error err;
    int rc = LARDER_OK;

    REQUIRE_OK(sealer_start(1, on_sealed, &seen, &s, &err), &err);
    for (uint64_t i = 0; i < 50 && !rc; i++) {
        struct seal_item item = {.unit = i, .unit_done = true};
        rc = sealer_push(s, &item, &err);
    }
    CHECK_EQ(rc, LARDER_EIO);
    CHECK_STR(err.message, "the disk is full");
    CHECK_ERR(sealer_finish(s, &err), LARDER_EIO, &err);
    CHECK_EQ(atomic_load(&seen.n), 3);
    CHECK_OK(sealer_finish(NULL, &err), &err);
    sealer_abort(NULL);
}

TEST(abort)
{
    struct seen seen = {.fail_at = 0};
    struct sealer *s;
    struct larder_error err;

    REQUIRE_OK(sealer_start(8, on_sealed, &seen, &s, &err), &err);
    for (uint64_t i = 0; i < 5; i++) {
        struct seal_item item = {.unit = i, .unit_done = true};
        REQUIRE_OK(sealer_push(s, &item, &err), &err);
    }
    sealer_abort(s);
    CHECK(atomic_load(&seen.n) <= 5);
}

TEST_MAIN();
