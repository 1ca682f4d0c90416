/* SPDX-License-Identifier: Apache-2.0 */
/* The spool: memory first, then a file; items read back wherever they lie. */
#include "tests/unit/ingest_tests.h"

static void round_trip(size_t budget)
{
    struct spool s;
    struct larder_error err;
    uint64_t state = budget, offsets[3000];
    uint8_t item[700], back[700];
    size_t lens[3000], got;

    spool_init(&s, tmp_dir(), budget);
    for (size_t i = 0; i < 3000; i++) {
        lens[i] = 1 + rng_below(&state, sizeof(item) - 1);
        offsets[i] = s.len;
        fill(i, item, lens[i]);
        REQUIRE_OK(spool_append(&s, item, lens[i], &err), &err);
    }
    REQUIRE_OK(spool_seal(&s, &err), &err);
    CHECK(s.mem_len <= budget);
    CHECK_EQ(s.fd < 0, s.len <= budget);
    for (size_t k = 0; k < 3000; k++) {
        size_t i = rng_below(&state, 3000);
        fill(i, item, lens[i]);
        REQUIRE_OK(spool_read(&s, offsets[i], back, lens[i], &got, &err), &err);
        REQUIRE_EQ(got, lens[i]);
        REQUIRE_MEM(item, back, got);
    }
    REQUIRE_OK(spool_read(&s, s.len, back, 10, &got, &err), &err);
    CHECK_EQ(got, 0);
    spool_release(&s);
}

TEST(in_memory) { round_trip(4 * MIB); }
TEST(in_a_file) { round_trip(0); }
TEST(in_both) { round_trip(500 * KIB); }

TEST(leaves_nothing)
{
    const char *dir = tmp_dir();
    struct spool s;
    struct larder_error err;

    spool_init(&s, dir, 0);
    CHECK_OK(spool_append(&s, "abc", 3, &err), &err);
    CHECK_EQ(count_files(dir, "."), 0);
    spool_release(&s);
    spool_init(&s, "/no/such/folder", 0);
    CHECK_ERR(spool_append(&s, "abc", 3, &err), LARDER_EIO, &err);
    spool_release(&s);
}

TEST_MAIN();
