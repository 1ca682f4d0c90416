/* SPDX-License-Identifier: Apache-2.0 */
#include "loader/loader_int.h"
#include "tests/unit/test.h"

static const struct state one = {{1, 2, 3}, {4, 5, 6}, 7, 1000, UINT64_MAX - 3, 0xfedcba9876543210u, 12, 345};

TEST(as_documented)
{
    AUTO_BUF struct buf b = BUF_INIT;
    struct state back;
    struct larder_error err;

    REQUIRE_OK(state_encode(&one, &b, &err), &err);
    REQUIRE_OK(buf_append(&b, "", 1, &err), &err);
    CHECK(b.len < LARDER_STATE_MAX);
    CHECK_STR((char *)b.data, "{\"larder_state\":1,\"uuid\":\"01020300000000000000000000000000\",\"lineage\":"
                              "\"04050600000000000000000000000000\",\"generation\":7,\"samples\":1000,\"seed\":\"fffffffffffffffc\","
                              "\"order\":\"fedcba9876543210\",\"epoch\":12,\"position\":345}");
    REQUIRE_OK(state_decode((char *)b.data, b.len - 1, &back, &err), &err);
    CHECK_MEM(back.uuid, one.uuid, 16);
    CHECK_MEM(back.lineage, one.lineage, 16);
    CHECK(back.generation == 7 && back.samples == 1000 && back.seed == one.seed && back.order == one.order && back.epoch == 12 &&
          back.position == 345);
    CHECK_OK(state_check(&back, &one, 1000, &err), &err);
}

TEST(what_is_no_state)
{
    static const char *const texts[] = {"", "{", "[]", "{}", "null", "{\"larder_state\":1}", "{\"larder_state\":1,\"uuid\":\"zz\"}",
                                        "{\"larder_state\":-1}"};
    struct state s;
    struct larder_error err;

    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        CHECK_ERR(state_decode(texts[i], strlen(texts[i]), &s, &err), LARDER_EINVAL, &err);
    CHECK_ERR(state_decode("{\"larder_state\":2}", 18, &s, &err), LARDER_EVERSION, &err);
    CHECK_EQ(state_decode("{", 1, &s, NULL), LARDER_EINVAL);
}

TEST(differences_are_named_with_both_values)
{
    struct larder_error err;
    struct state s = one;

    s.uuid[0] = 9;
    CHECK_ERR(state_check(&s, &one, 1000, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "09020300") && strstr(err.message, "01020300"));
    s = one, s.samples = 999;
    CHECK_ERR(state_check(&s, &one, 1000, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "number of samples") && strstr(err.message, "999") && strstr(err.message, "1000"));
    s = one, s.seed = 1;
    CHECK_ERR(state_check(&s, &one, 1000, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "seed"));
    s = one, s.order++;
    CHECK_ERR(state_check(&s, &one, 1000, &err), LARDER_EINVAL, &err);
    s = one, s.position = 1001;
    CHECK_ERR(state_check(&s, &one, 1000, &err), LARDER_EINVAL, &err);
    s = one, s.generation = 8;
    CHECK_OK(state_check(&s, &one, 1000, &err), &err);
}

TEST(digests_see_what_the_order_depends_on)
{
    static const uint64_t list[] = {2, 1};
    struct order o = {.n = 2, .seed = 1, .shuffle = LARDER_SHUFFLE_FULL, .block = 10, .window = 4}, p = o;

    p.block = 11; /* not of a full shuffle */
    CHECK(order_digest(&o) == order_digest(&p));
    p.shuffle = LARDER_SHUFFLE_BLOCK;
    CHECK(order_digest(&o) != order_digest(&p));
    o.shuffle = LARDER_SHUFFLE_BLOCK;
    CHECK(order_digest(&o) != order_digest(&p));
    p = o, p.epoch_size = 7;
    CHECK(order_digest(&o) != order_digest(&p));
    p = o, p.list = list;
    CHECK(order_digest(&o) != order_digest(&p));
}

TEST_MAIN();
