/* SPDX-License-Identifier: Apache-2.0 */
#include "loader/loader_int.h"
#include "tests/unit/test.h"

static struct state_source source = {{1, 2, 3}, {4, 5, 6}, 7, 1000, 0};
static const struct state one = {UINT64_MAX - 3, 0xfedcba9876543210u, 12, 345, false, 1, &source};

static int check_source(const struct state_source *other, struct larder_error *err)
{
    struct state_source copy = *other;
    struct state s = one;

    s.source = &copy;
    return state_check(&s, &one, 1000, err);
}

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
    CHECK(!back.mix && back.n == 1);
    CHECK_MEM(back.source, &source, sizeof(source));
    CHECK(back.seed == one.seed && back.order == one.order && back.epoch == 12 && back.position == 345);
    CHECK_OK(state_check(&back, &one, 1000, &err), &err);
    state_release(&back);
}

/* As many sources as there can be, with the longest numbers. */
TEST(mixes_name_every_source)
{
    static struct state_source many[MIX_SOURCES_MAX], other[MIX_SOURCES_MAX];
    struct state mix = {1, 2, 3, 4, true, MIX_SOURCES_MAX, many}, back;
    AUTO_BUF struct buf b = BUF_INIT;
    uint64_t state = 1;
    double w = 0.25;
    struct larder_error err;

    for (uint32_t i = 0; i < MIX_SOURCES_MAX; i++) {
        rng_fill(&state, many[i].uuid, 32);
        many[i].generation = many[i].samples = INT64_MAX - i;
        many[i].weight = rng_u64(&state);
    }
    memcpy(&many[3].weight, &w, 8);
    REQUIRE_OK(state_encode(&mix, &b, &err), &err);
    CHECK(b.len < LARDER_STATE_BYTES(MIX_SOURCES_MAX));
    REQUIRE_OK(state_decode((char *)b.data, b.len, &back, &err), &err);
    CHECK(back.mix && back.n == MIX_SOURCES_MAX && back.seed == 1 && back.order == 2 && back.epoch == 3 && back.position == 4);
    CHECK_MEM(back.source, many, sizeof(many));
    state_release(&back);
    memcpy(other, many, sizeof(many));
    back = mix, back.source = other;
    CHECK_OK(state_check(&back, &mix, 4, &err), &err);
    w = 0.75;
    memcpy(&other[3].weight, &w, 8);
    CHECK_ERR(state_check(&back, &mix, 4, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "weight of source 3: 0.75 then, 0.25 now"));
    other[3] = many[3], other[255].lineage[0] ^= 1;
    CHECK_ERR(state_check(&back, &mix, 4, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "of source 255"));
    back.n = 2;
    CHECK_ERR(state_check(&back, &mix, 4, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "number of datasets") && strstr(err.message, "2 then, 256 now"));
    CHECK_ERR(state_check(&one, &mix, 4, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "1 then, 256 now"));
}

TEST(what_is_no_state)
{
    static const char *const texts[] = {"", "{", "[]", "{}", "null", "{\"larder_state\":1}", "{\"larder_state\":1,\"uuid\":\"zz\"}",
                                        "{\"larder_state\":-1}", "{\"larder_state\":1,\"sources\":[]}",
                                        "{\"larder_state\":1,\"sources\":[{}]}", "{\"larder_state\":1,\"sources\":[7]}"};
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
    struct state_source other = source;
    struct state s;

    other.uuid[0] = 9;
    CHECK_ERR(check_source(&other, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "09020300") && strstr(err.message, "01020300"));
    other = source, other.lineage[1] = 9;
    CHECK_ERR(check_source(&other, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "lineage") && strstr(err.message, "04090600"));
    other = source, other.samples = 999;
    CHECK_ERR(check_source(&other, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "number of samples") && strstr(err.message, "999") && strstr(err.message, "1000"));
    other = source, other.generation = 8;
    CHECK_OK(check_source(&other, &err), &err);
    s = one, s.seed = 1;
    CHECK_ERR(state_check(&s, &one, 1000, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "seed"));
    s = one, s.order++;
    CHECK_ERR(state_check(&s, &one, 1000, &err), LARDER_EINVAL, &err);
    s = one, s.position = 1001;
    CHECK_ERR(state_check(&s, &one, 1000, &err), LARDER_EINVAL, &err);
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
