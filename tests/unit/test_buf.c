/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/base.h"
#include "tests/unit/test.h"

TEST(appends_keep_content)
{
    AUTO_BUF struct buf b = BUF_INIT;
    struct larder_error err;
    uint64_t state = 1;
    static uint8_t want[300000];
    size_t len = 0;

    rng_fill(&state, want, sizeof(want));
    while (len < 250000) {
        size_t n = rng_below(&state, 2000);
        REQUIRE_OK(buf_append(&b, want + len, n, &err), &err);
        len += n;
        CHECK_EQ(b.len, len);
        CHECK(b.cap >= b.len);
    }
    CHECK_MEM(b.data, want, len);
}

TEST(growth_is_geometric)
{
    AUTO_BUF struct buf b = BUF_INIT;
    size_t moves = 0, cap = 0;

    for (int i = 0; i < 1 << 20; i++) {
        REQUIRE(buf_append(&b, "x", 1, NULL) == 0);
        moves += b.cap != cap;
        cap = b.cap;
    }
    CHECK(moves <= 20);
}

TEST(nothing_appended_is_nothing_done)
{
    struct buf b = BUF_INIT;

    CHECK_EQ(buf_append(&b, NULL, 0, NULL), LARDER_OK);
    CHECK(b.data == NULL);
    CHECK_EQ(buf_reserve(&b, 0, NULL), LARDER_OK);
    buf_release(&b);
}

TEST(reserve_does_not_change_len)
{
    AUTO_BUF struct buf b = BUF_INIT;
    struct larder_error err;

    CHECK_OK(buf_append(&b, "ab", 2, &err), &err);
    CHECK_OK(buf_reserve(&b, 5000, &err), &err);
    CHECK_EQ(b.len, 2);
    CHECK(b.cap >= 5002);
    uint8_t *before = b.data;
    CHECK_OK(buf_reserve(&b, 5000, &err), &err);
    CHECK(b.data == before);
    CHECK_MEM(b.data, "ab", 2);
}

TEST(impossible_sizes_fail_and_leave_it)
{
    AUTO_BUF struct buf b = BUF_INIT;
    struct larder_error err;

    CHECK_OK(buf_append(&b, "abc", 3, &err), &err);
    CHECK_ERR(buf_reserve(&b, SIZE_MAX, &err), LARDER_ENOMEM, &err);
    CHECK_ERR(buf_reserve(&b, SIZE_MAX - 2, &err), LARDER_ENOMEM, &err);
    CHECK_ERR(buf_reserve(&b, SIZE_MAX / 2 - 2, &err), LARDER_ENOMEM, &err);
    CHECK_EQ(b.len, 3);
    CHECK_MEM(b.data, "abc", 3);
}

TEST(printf_appends_text)
{
    AUTO_BUF struct buf b = BUF_INIT;
    struct larder_error err;
    char wide[3000];

    CHECK_OK(buf_printf(&b, &err, "%s-%d;", "a", 5), &err);
    CHECK_OK(buf_printf(&b, &err, "%s", ""), &err);
    CHECK_OK(buf_printf(&b, &err, "%06x", 255), &err);
    CHECK_EQ(b.len, 10);
    CHECK_MEM(b.data, "a-5;0000ff", 10);
    memset(wide, 'w', sizeof(wide) - 1);
    wide[sizeof(wide) - 1] = '\0';
    CHECK_OK(buf_printf(&b, &err, "%s", wide), &err);
    CHECK_EQ(b.len, 10 + sizeof(wide) - 1);
    CHECK_MEM(b.data + 10, wide, sizeof(wide) - 1);
}

TEST(release_can_be_repeated)
{
    struct buf b = BUF_INIT;

    CHECK_EQ(buf_append(&b, "x", 1, NULL), LARDER_OK);
    buf_release(&b);
    CHECK(b.data == NULL && b.len == 0 && b.cap == 0);
    buf_release(&b);
}

TEST_MAIN();
