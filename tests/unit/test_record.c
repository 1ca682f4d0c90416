/* SPDX-License-Identifier: Apache-2.0 */
/* Records: what is encoded comes back, whatever the field mix; damaged ones are refused within bounds. */
#include "store/store_int.h"
#include "tests/unit/test.h"

enum { N = 6 };
static const int64_t shape_free[2] = {-1, 3}, shape_two[2] = {-1, -1};
static const struct larder_field fields[N] = {
    {"image", LARDER_IMAGE, NULL, 0, NULL}, {"label", LARDER_I64, NULL, 0, NULL}, {"text", LARDER_UTF8, NULL, 0, NULL},
    {"sound", LARDER_AUDIO, NULL, 0, NULL}, {"boxes", LARDER_NDARRAY, "float32", 2, shape_free}, {"flag", LARDER_BOOL, NULL, 0, NULL}};

/* Encodes and joins front and media as a shard writer would. */
static int make(const struct schema *s, const struct larder_value *v, struct zcomp *c, struct buf *out, struct extent *e,
                struct larder_error *err)
{
    AUTO_BUF struct buf front = BUF_INIT, tmp = BUF_INIT;
    struct record_parts parts;
    int rc = record_encode(s, v, c, CODEC_ZSTD, &front, &tmp, &parts, err);
    out->len = 0;
    if (rc || (rc = buf_append(out, front.data, front.len, err)))
        return rc;
    for (int media = parts.packed_apart ? 0 : 1; media < 2; media++)
        for (uint32_t i = 0; i < s->n; i++)
            if (v[i].data && type_is_media(s->fields[i].type) == media)
                buf_append(out, v[i].data, v[i].len, err);
    *e = (struct extent){.offset = 4096, .stored_len = parts.stored_len, .raw_len = parts.raw_len, .crc = parts.crc, .codec = parts.codec};
    return LARDER_OK;
}

static void random_values(uint64_t *rng, uint8_t *pool, size_t media_max, struct larder_value *v)
{
    static const size_t fixed[N] = {0, 8, 0, 0, 0, 1};
    for (int i = 0; i < N; i++) {
        size_t len = fixed[i] ? fixed[i] : i == 4 ? 12 * rng_below(rng, 10) : rng_below(rng, i == 2 ? 3000 : media_max);
        uint8_t *p = pool + (size_t)i * 300000;
        rng_fill(rng, p, len);
        for (size_t k = 0; i == 2 && k < len; k++)
            p[k] = (uint8_t)('a' + p[k] % 3);
        v[i] = rng_below(rng, 5) ? (struct larder_value){p, len} : (struct larder_value){NULL, 0};
    }
}

TEST(round_trip)
{
    struct larder_error err = {0};
    struct schema s;
    struct zcomp *c;
    struct zdecomp *d;
    AUTO_BUF struct buf rec = BUF_INIT;
    AUTO_FREE uint8_t *pool = malloc(N * 300000), *scratch = malloc(2000000);
    uint64_t rng = 7;
    int packed = 0, crcs = 0;
    REQUIRE_OK(schema_copy(&s, fields, N, &err), &err);
    REQUIRE_OK(zcomp_new(3, NULL, 0, &c, &err), &err);
    REQUIRE_OK(zdecomp_new(&d, &err), &err);
    for (int round = 0; round < 400; round++) {
        struct larder_value v[N], w[N];
        struct extent e;
        random_values(&rng, pool, round % 4 ? 5000 : 300000, v);
        REQUIRE_OK(make(&s, v, round % 3 ? c : NULL, &rec, &e, &err), &err);
        REQUIRE_EQ(rec.len, e.stored_len);
        REQUIRE_EQ(crc32c(0, rec.data, rec.len), e.crc);
        CHECK(e.raw_len >= e.stored_len);
        packed += e.codec == CODEC_ZSTD;
        crcs += e.stored_len >= FIELD_CRC_BYTES;
        REQUIRE_OK(record_decode(&s, &e, rec.data, d, NULL, scratch, w, &err), &err);
        for (int i = 0; i < N; i++) {
            CHECK_EQ(w[i].data == NULL, v[i].data == NULL);
            REQUIRE_EQ(w[i].len, v[i].len);
            if (v[i].data)
                REQUIRE_MEM(w[i].data, v[i].data, v[i].len);
        }
    }
    CHECK(packed > 50);
    CHECK(crcs > 20);
    zcomp_free(c);
    zdecomp_free(d);
    schema_release(&s);
}

TEST(random_text_stays_raw)
{
    struct larder_error err = {0};
    struct larder_field f = {"x", LARDER_BYTES, NULL, 0, NULL};
    struct schema s;
    struct zcomp *c;
    struct extent e;
    AUTO_BUF struct buf rec = BUF_INIT;
    uint8_t noise[5000];
    uint64_t rng = 3;
    REQUIRE_OK(schema_copy(&s, &f, 1, &err), &err);
    REQUIRE_OK(zcomp_new(3, NULL, 0, &c, &err), &err);
    rng_fill(&rng, noise, sizeof(noise));
    struct larder_value v = {noise, sizeof(noise)};
    REQUIRE_OK(make(&s, &v, c, &rec, &e, &err), &err);
    CHECK_EQ(e.codec, CODEC_NONE);
    CHECK_EQ(e.stored_len, e.raw_len);
    CHECK_EQ(e.stored_len, 12 + sizeof(noise));
    memset(noise, 'a', sizeof(noise));
    REQUIRE_OK(make(&s, &v, c, &rec, &e, &err), &err);
    CHECK_EQ(e.codec, CODEC_ZSTD);
    CHECK(e.stored_len < 200);
    zcomp_free(c);
    schema_release(&s);
}

TEST(bad_values)
{
    struct larder_error err;
    struct schema s;
    struct extent e;
    AUTO_BUF struct buf rec = BUF_INIT;
    uint8_t bytes[64] = {0};
    REQUIRE_OK(schema_copy(&s, fields, N, &err), &err);
    struct larder_value v[N] = {{NULL, 0}, {NULL, 0}, {NULL, 0}, {NULL, 0}, {NULL, 0}, {NULL, 0}};
    CHECK_OK(make(&s, v, NULL, &rec, &e, &err), &err); /* all absent is legal */
    v[1] = (struct larder_value){bytes, 4};
    CHECK_ERR(make(&s, v, NULL, &rec, &e, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "label") != NULL);
    v[1] = (struct larder_value){bytes, 8};
    v[4] = (struct larder_value){bytes, 13};
    CHECK_ERR(make(&s, v, NULL, &rec, &e, &err), LARDER_EINVAL, &err);
    v[4] = (struct larder_value){bytes, 24};
    CHECK_OK(make(&s, v, NULL, &rec, &e, &err), &err);
    v[4] = (struct larder_value){NULL, 0};
    v[0] = (struct larder_value){bytes, (size_t)LARDER_SAMPLE_BYTES_MAX};
    CHECK_ERR(make(&s, v, NULL, &rec, &e, &err), LARDER_EINVAL, &err);
    schema_release(&s);
    struct larder_field two = {"m", LARDER_NDARRAY, "uint8", 2, shape_two};
    REQUIRE_OK(schema_copy(&s, &two, 1, &err), &err);
    put_u64(bytes, 4);
    put_u64(bytes + 8, 5);
    struct larder_value m = {bytes, 16 + 20};
    CHECK_OK(make(&s, &m, NULL, &rec, &e, &err), &err);
    m.len = 16 + 19;
    CHECK_ERR(make(&s, &m, NULL, &rec, &e, &err), LARDER_EINVAL, &err);
    schema_release(&s);
}

static bool same_values(const struct larder_value *a, const struct larder_value *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (a[i].data != b[i].data || a[i].len != b[i].len)
            return false;
    return true;
}

/* Views are what decoding gives, for schemas of one field of each kind and of all; also where a byte of the head is another. */
TEST(views_are_what_decoding_gives)
{
    struct larder_error err;
    AUTO_BUF struct buf rec = BUF_INIT;
    AUTO_FREE uint8_t *pool = malloc(N * 300000);
    uint64_t rng = 11;
    int refused = 0;
    for (int round = 0; round < 1400; round++) {
        uint32_t first = (uint32_t)round % (N + 1), n = first == N ? N : 1;
        struct larder_value v[N], w[N], views[2 * N];
        struct extent e[2];
        struct schema s;
        REQUIRE_OK(schema_copy(&s, first == N ? fields : fields + first, n, &err), &err);
        random_values(&rng, pool, 5000, v);
        if (first < N)
            v[0] = v[first];
        REQUIRE_OK(make(&s, v, NULL, &rec, &e[0], &err), &err);
        e[0].checked = true;
        e[1] = e[0];
        const void *stored[2] = {rec.data, rec.data};
        REQUIRE_OK(record_decode(&s, e, rec.data, NULL, NULL, NULL, w, &err), &err);
        CHECK_EQ(record_views(&s, e, stored, 2, views), 2);
        CHECK(same_values(views, w, n) && same_values(views + n, w, n));
        e[1].checked = false;
        CHECK_EQ(record_views(&s, e, stored, 2, views), 1);
        e[1] = e[0];
        e[1].codec = CODEC_ZSTD;
        CHECK_EQ(record_views(&s, e, stored, 2, views), 1);
        if (e[0].stored_len < FIELD_CRC_BYTES) {
            rec.data[rng_below(&rng, 8 + 4 * n)] ^= (uint8_t)(1 + rng_below(&rng, 255));
            bool good = record_decode(&s, e, rec.data, NULL, NULL, NULL, w, &err) == LARDER_OK;
            REQUIRE_EQ(record_views(&s, e, stored, 1, views), good ? 1u : 0u);
            CHECK(!good || same_values(views, w, n));
            refused += !good;
        }
        schema_release(&s);
    }
    CHECK(refused > 1000);
}

/* Any flipped byte of a record: an error, or other values, but never a view outside the bytes (run under ASan). */
TEST(flips_stay_in_bounds)
{
    struct larder_error err = {0};
    struct schema s;
    struct zcomp *c;
    struct zdecomp *d;
    AUTO_BUF struct buf rec = BUF_INIT;
    AUTO_FREE uint8_t *pool = malloc(N * 300000);
    uint64_t rng = 11;
    REQUIRE_OK(schema_copy(&s, fields, N, &err), &err);
    REQUIRE_OK(zcomp_new(3, NULL, 0, &c, &err), &err);
    REQUIRE_OK(zdecomp_new(&d, &err), &err);
    int refused = 0, seen = 0;
    for (int round = 0; round < 6; round++) {
        struct larder_value v[N], w[N];
        struct extent e;
        random_values(&rng, pool, 400, v);
        REQUIRE_OK(make(&s, v, round % 2 ? c : NULL, &rec, &e, &err), &err);
        AUTO_FREE uint8_t *copy = malloc(rec.len), *scratch = malloc(e.raw_len);
        for (size_t i = 0; i < rec.len * 2; i++) {
            memcpy(copy, rec.data, rec.len);
            copy[i / 2] ^= i % 2 ? 0x80 : 1;
            int rc = record_decode(&s, &e, copy, d, NULL, scratch, w, &err);
            seen++;
            refused += rc != LARDER_OK;
            for (int k = 0; rc == LARDER_OK && k < N; k++)
                if (w[k].data) /* touch all */
                    CHECK(hash64(0, w[k].data, w[k].len) != 1);
        }
    }
    CHECK(refused > 0 && refused < seen);
    zcomp_free(c);
    zdecomp_free(d);
    schema_release(&s);
}

TEST_MAIN();
