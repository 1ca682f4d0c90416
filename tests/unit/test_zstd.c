/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_zstd.c - bare frames: round trips, what they look like, and damage of every kind.
 */
#include "store/codec/codec.h"
#include "tests/unit/test.h"

#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

enum { GUARD = 64, GUARD_BYTE = 0xa5 };

/* Something like a JSON label, the i-th. Returns its length. */
static size_t make_json(uint64_t *seed, char *out, size_t cap)
{
    static const char *const names[] = {"tench", "goldfish", "great white shark", "hammerhead", "stingray"};

    return (size_t)snprintf(out, cap,
                            "{\"id\": %llu, \"label\": \"%s\", \"box\": [%d, %d, %d, %d], \"source\": "
                            "\"https://images.example.org/train/%08llx.jpg\", \"reviewed\": %s}",
                            (unsigned long long)rng_below(seed, 1000000), names[rng_below(seed, 5)],
                            (int)rng_below(seed, 640), (int)rng_below(seed, 480), (int)rng_below(seed, 640),
                            (int)rng_below(seed, 480), (unsigned long long)rng_u64(seed) >> 32,
                            rng_below(seed, 2) ? "true" : "false");
}

static void fill_text(uint64_t *seed, uint8_t *out, size_t len)
{
    for (size_t at = 0; at < len;) {
        char one[300];
        size_t n = MIN(make_json(seed, one, sizeof(one)), len - at);

        memcpy(out + at, one, n);
        at += n;
    }
}

struct pair {
    struct zcomp *c;
    struct zdecomp *d;
    struct zdict *z; /* NULL: none */
};

static void pair_free(struct pair *p)
{
    zcomp_free(p->c);
    zdecomp_free(p->d);
    zdict_free(p->z);
}

static struct pair pair_new(int level, const void *dict, size_t dict_len)
{
    struct larder_error err;
    struct pair p = {NULL, NULL, NULL};

    REQUIRE_OK(zcomp_new(level, dict, dict_len, &p.c, &err), &err);
    REQUIRE_OK(zdecomp_new(&p.d, &err), &err);
    if (dict_len)
        REQUIRE_OK(zdict_new(dict, dict_len, &p.z, &err), &err);
    return p;
}

/* A dictionary trained on 2000 labels. */
static size_t train(uint8_t *dict, size_t cap)
{
    enum { SAMPLES = 2000 };
    AUTO_BUF struct buf all = BUF_INIT;
    static size_t sizes[SAMPLES];
    size_t dict_len = 0;
    uint64_t seed = 77;
    struct larder_error err;

    for (size_t i = 0; i < SAMPLES; i++) {
        char one[300];

        sizes[i] = make_json(&seed, one, sizeof(one));
        REQUIRE_OK(buf_append(&all, one, sizes[i], &err), &err);
    }
    REQUIRE_OK(zdict_train(all.data, sizes, SAMPLES, dict, cap, &dict_len, &err), &err);
    REQUIRE(dict_len > 256 && dict_len <= cap);
    return dict_len;
}

/* Decompresses into memory with a guard behind it. Returns the code. */
static int expand(struct pair *p, const void *src, size_t len, uint8_t *dst, size_t raw_len, struct larder_error *err)
{
    int rc;

    memset(dst + raw_len, GUARD_BYTE, GUARD);
    rc = zdecomp_run(p->d, p->z, src, len, dst, raw_len, err);
    for (size_t i = 0; i < GUARD; i++)
        REQUIRE_EQ(dst[raw_len + i], GUARD_BYTE);
    return rc;
}

static size_t shrink(struct pair *p, const void *src, size_t len, uint8_t *dst, size_t cap)
{
    size_t out = 0;
    struct larder_error err;

    REQUIRE(cap >= zcomp_bound(len));
    REQUIRE_OK(zcomp_run(p->c, src, len, dst, cap, &out, &err), &err);
    return out;
}

/* Sizes 0..200k, as text and as noise, through the same contexts. */
static void round_trips(struct pair *p)
{
    enum { MAX = 200000 };
    size_t cap = zcomp_bound(MAX);
    AUTO_FREE uint8_t *raw = malloc(MAX), *packed = malloc(cap), *back = malloc(MAX + GUARD);
    uint64_t seed = 5;
    struct larder_error err;

    REQUIRE(raw && packed && back);
    for (size_t len = 0; len <= MAX; len += len < 300 ? 1 : len < 3000 ? 97 : len / 3)
        for (int noise = 0; noise < 2; noise++) {
            size_t packed_len;

            if (noise)
                rng_fill(&seed, raw, len);
            else
                fill_text(&seed, raw, len);
            packed_len = shrink(p, raw, len, packed, cap);
            REQUIRE_OK(expand(p, packed, packed_len, back, len, &err), &err);
            REQUIRE_MEM(back, raw, len);
            if (!noise && len > 1000)
                CHECK(packed_len < len / 2);
        }
}

TEST(round_trips_plain)
{
    static const int levels[] = {1, 3, 12};

    for (size_t i = 0; i < ARRAY_LEN(levels); i++) {
        struct pair p = pair_new(levels[i], NULL, 0);

        round_trips(&p);
        pair_free(&p);
    }
}

TEST(round_trips_with_dictionary)
{
    uint8_t dict[16384];
    size_t dict_len = train(dict, sizeof(dict));
    struct pair p = pair_new(3, dict, dict_len), bytes = pair_new(3, "plain bytes as a dictionary, no tables", 38);

    round_trips(&p);
    round_trips(&bytes);
    pair_free(&p);
    pair_free(&bytes);
}

/* What the format says: no magic, size, checksum or dictionary id. zstd itself reads it as magicless. */
TEST(frames_are_bare)
{
    uint8_t raw[287], packed[1024], back[sizeof(raw)], dict[16384];
    size_t dict_len = train(dict, sizeof(dict)), plain_len, dict_packed;
    struct pair plain = pair_new(3, NULL, 0), with = pair_new(3, dict, dict_len);
    ZSTD_DCtx *dctx = ZSTD_createDCtx();
    uint64_t seed = 9;

    fill_text(&seed, raw, sizeof(raw));
    plain_len = shrink(&plain, raw, sizeof(raw), packed, sizeof(packed));
    CHECK_EQ(packed[0], 0);
    CHECK(!ZSTD_isFrame(packed, plain_len));
    ZSTD_DCtx_setParameter(dctx, ZSTD_d_format, ZSTD_f_zstd1_magicless);
    CHECK_EQ(ZSTD_decompressDCtx(dctx, back, sizeof(back), packed, plain_len), sizeof(raw));
    CHECK_MEM(back, raw, sizeof(raw));
    dict_packed = shrink(&with, raw, sizeof(raw), packed, sizeof(packed));
    CHECK_EQ(packed[0], 0);
    CHECK(dict_packed < plain_len * 2 / 3);
    CHECK(dict_packed < sizeof(raw) / 2);
    CHECK_EQ(shrink(&plain, "", 0, packed, sizeof(packed)), 5); /* descriptor, window, an empty last block */
    CHECK_EQ(shrink(&plain, NULL, 0, packed, sizeof(packed)), 5);
    ZSTD_freeDCtx(dctx);
    pair_free(&plain);
    pair_free(&with);
}

TEST(same_bytes_every_time)
{
    uint8_t raw[5000], a[6000], b[6000];
    uint64_t seed = 10;
    struct pair p = pair_new(3, NULL, 0), q = pair_new(3, NULL, 0);
    size_t len;

    fill_text(&seed, raw, sizeof(raw));
    len = shrink(&p, raw, sizeof(raw), a, sizeof(a));
    shrink(&p, raw, 100, b, sizeof(b)); /* what came before does not matter */
    CHECK_EQ(shrink(&p, raw, sizeof(raw), b, sizeof(b)), len);
    CHECK_MEM(a, b, len);
    CHECK_EQ(shrink(&q, raw, sizeof(raw), b, sizeof(b)), len);
    CHECK_MEM(a, b, len);
    pair_free(&p);
    pair_free(&q);
}

/* One decompressor with a dictionary, without, with another, without again. */
TEST(dictionaries_are_swapped)
{
    uint8_t raw[400], packed[3][1024], back[sizeof(raw) + GUARD], dict[8192];
    size_t dict_len = train(dict, sizeof(dict)), len[3];
    const char *other = "a second dictionary made of other bytes, \"source\": \"https://images.example.org/train/";
    struct pair p[3] = {pair_new(3, NULL, 0), pair_new(3, dict, dict_len), pair_new(3, other, strlen(other))};
    uint64_t seed = 11;
    struct larder_error err;

    fill_text(&seed, raw, sizeof(raw));
    for (int i = 0; i < 3; i++)
        len[i] = shrink(&p[i], raw, sizeof(raw), packed[i], sizeof(packed[i]));
    for (int round = 0; round < 30; round++) {
        int i = (int)rng_below(&seed, 3);
        struct pair mixed = {NULL, p[0].d, p[i].z};

        memset(back, 0, sizeof(back));
        REQUIRE_OK(expand(&mixed, packed[i], len[i], back, sizeof(raw), &err), &err);
        REQUIRE_MEM(back, raw, sizeof(raw));
    }
    for (int i = 0; i < 3; i++)
        pair_free(&p[i]);
}

TEST(wrong_raw_length)
{
    enum { LEN = 3000 };
    uint8_t raw[LEN], packed[LEN + 100], back[2 * LEN + GUARD];
    struct pair p = pair_new(3, NULL, 0);
    struct larder_error err;

    for (int noise = 0; noise < 2; noise++) {
        uint64_t seed = 12;
        size_t len;

        if (noise)
            rng_fill(&seed, raw, LEN);
        else
            fill_text(&seed, raw, LEN);
        len = shrink(&p, raw, LEN, packed, sizeof(packed));
        for (size_t wrong = 0; wrong < 2 * LEN; wrong += wrong < LEN - 20 || wrong > LEN + 20 ? 17 : 1)
            if (wrong != LEN)
                REQUIRE_ERR(expand(&p, packed, len, back, wrong, &err), LARDER_ECORRUPT, &err);
        CHECK_OK(expand(&p, packed, len, back, LEN, &err), &err);
    }
    pair_free(&p);
}

TEST(truncated_and_continued)
{
    enum { LEN = 2000 };
    uint8_t raw[LEN], packed[2 * LEN], back[2 * LEN + GUARD];
    struct pair p = pair_new(3, NULL, 0);
    uint64_t seed = 13;
    size_t len, empty;
    struct larder_error err;

    fill_text(&seed, raw, LEN);
    len = shrink(&p, raw, LEN, packed, sizeof(packed));
    for (size_t cut = 0; cut < len; cut++) {
        AUTO_FREE uint8_t *copy = malloc(cut ? cut : 1); /* of exactly this size, for the sanitizer */

        memcpy(copy, packed, cut);
        REQUIRE_ERR(expand(&p, copy, cut, back, LEN, &err), LARDER_ECORRUPT, &err);
    }
    packed[len] = 0;
    CHECK_ERR(expand(&p, packed, len + 1, back, LEN, &err), LARDER_ECORRUPT, &err);
    empty = shrink(&p, "", 0, packed + len, zcomp_bound(0)); /* a second frame, of nothing */
    CHECK_ERR(expand(&p, packed, len + empty, back, LEN, &err), LARDER_ECORRUPT, &err);
    memcpy(packed + len, packed, len); /* a second one of the same */
    CHECK_ERR(expand(&p, packed, 2 * len, back, 2 * LEN, &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(expand(&p, packed, 2 * len, back, LEN, &err), LARDER_ECORRUPT, &err);
    CHECK_OK(expand(&p, packed, len, back, LEN, &err), &err);
    CHECK_MEM(back, raw, LEN);
    pair_free(&p);
}

/* Every byte changed: an error or other bytes, nothing written behind raw_len, and the context works on. */
static void flip_bytes(struct pair *p, size_t raw_len)
{
    AUTO_FREE uint8_t *raw = malloc(raw_len), *packed = malloc(zcomp_bound(raw_len)), *back = malloc(raw_len + GUARD);
    uint64_t seed = 14;
    size_t len, failed = 0;
    struct larder_error err;

    REQUIRE(raw && packed && back);
    fill_text(&seed, raw, raw_len);
    len = shrink(p, raw, raw_len, packed, zcomp_bound(raw_len));
    for (size_t i = 0; i < len; i++)
        for (int k = 0; k < 3; k++) {
            uint8_t old = packed[i];
            int rc;

            packed[i] = k == 0 ? (uint8_t)~old : (uint8_t)(old ^ 1u << rng_below(&seed, 8));
            rc = expand(p, packed, len, back, raw_len, &err);
            REQUIRE(rc == LARDER_OK || rc == LARDER_ECORRUPT);
            failed += rc != LARDER_OK;
            packed[i] = old;
        }
    CHECK(failed > 5);
    CHECK_OK(expand(p, packed, len, back, raw_len, &err), &err);
    CHECK_MEM(back, raw, raw_len);
}

TEST(flipped_bytes)
{
    uint8_t dict[8192];
    size_t dict_len = train(dict, sizeof(dict));
    struct pair plain = pair_new(3, NULL, 0), with = pair_new(3, dict, dict_len);

    flip_bytes(&plain, 300);
    flip_bytes(&plain, 20000);
    flip_bytes(&with, 300);
    flip_bytes(&with, 5000);
    pair_free(&plain);
    pair_free(&with);
}

TEST(noise_is_corrupt)
{
    uint8_t noise[200], back[1000 + GUARD];
    struct pair p = pair_new(3, NULL, 0);
    uint64_t seed = 15;
    struct larder_error err;

    for (int i = 0; i < 20000; i++) {
        size_t len = rng_below(&seed, sizeof(noise));

        rng_fill(&seed, noise, len);
        if (len && i % 2)
            noise[0] = 0;
        if (len > 4 && i % 4 == 1) { /* a last block of the right size, of any type */
            uint32_t head = 1 | (uint32_t)rng_below(&seed, 4) << 1 | (uint32_t)(len - 5) << 3;

            memcpy(noise + 2, &head, 3);
        }
        if (expand(&p, noise, len, back, 1000, &err) != LARDER_OK)
            REQUIRE_EQ(err.code, LARDER_ECORRUPT);
    }
    pair_free(&p);
}

/* A frame that claims an enormous run of one byte stops at raw_len. */
TEST(bomb)
{
    /* window of 1 KiB, RLE blocks of 128 KiB */
    uint8_t frame[2 + 4 * 100] = {0, 0x38}, back[1000 + GUARD];
    struct pair p = pair_new(3, NULL, 0);
    struct larder_error err;

    for (int i = 0; i < 100; i++) {
        uint32_t head = (i == 99) | 1 << 1 | 131072u << 3;

        memcpy(frame + 2 + 4 * i, &head, 3);
        frame[2 + 4 * i + 3] = 'x';
    }
    CHECK_ERR(expand(&p, frame, sizeof(frame), back, 1000, &err), LARDER_ECORRUPT, &err);
    pair_free(&p);
}

TEST(bad_arguments)
{
    uint8_t dict[8192], out[10];
    size_t dict_len = train(dict, sizeof(dict)), len;
    struct zcomp *c = (struct zcomp *)1;
    struct zdict *z = (struct zdict *)1;
    struct larder_error err;

    CHECK_ERR(zcomp_new(0, NULL, 0, &c, &err), LARDER_EINVAL, &err);
    CHECK(c == NULL);
    CHECK_ERR(zcomp_new(20, NULL, 0, &c, &err), LARDER_EINVAL, &err);
    CHECK_ERR(zdict_new(dict, 0, &z, &err), LARDER_ECORRUPT, &err);
    CHECK(z == NULL);
    CHECK_ERR(zdict_new(dict, 40, &z, &err), LARDER_ECORRUPT, &err); /* its tables are cut */
    memset(dict + 8, 255, 100);
    CHECK_ERR(zdict_new(dict, dict_len, &z, &err), LARDER_ECORRUPT, &err);
    CHECK(z == NULL);
    CHECK_ERR(zcomp_new(3, dict, dict_len, &c, &err), LARDER_ECORRUPT, &err);
    CHECK(c == NULL);
    REQUIRE_OK(zcomp_new(3, NULL, 0, &c, &err), &err);
    CHECK_ERR(zcomp_run(c, dict, 1000, out, sizeof(out), &len, &err), LARDER_EINVAL, &err);
    zcomp_free(c);
    zcomp_free(NULL);
    zdecomp_free(NULL);
    zdict_free(NULL);
}

TEST(training_wants_material)
{
    char text[] = "one two three four five six seven eight nine ten";
    size_t sizes[10] = {3, 4, 5, 5, 5, 4, 5, 6, 5, 3}, dict_len = 99;
    uint8_t dict[4096], again[4096];
    struct larder_error err;

    CHECK_OK(zdict_train(text, sizes, 0, dict, sizeof(dict), &dict_len, &err), &err);
    CHECK_EQ(dict_len, 0);
    dict_len = 99;
    CHECK_OK(zdict_train(text, sizes, 3, dict, sizeof(dict), &dict_len, &err), &err);
    CHECK_EQ(dict_len, 0);
    dict_len = 99;
    CHECK_OK(zdict_train(text, sizes, 10, dict, 100, &dict_len, &err), &err);
    CHECK_EQ(dict_len, 0);
    CHECK_EQ(train(dict, sizeof(dict)), train(again, sizeof(again)));
    CHECK_MEM(dict, again, sizeof(dict) / 2);
}

TEST_MAIN();
