/* SPDX-License-Identifier: Apache-2.0 */
/* --fields, and file contents as values. */
#include <locale.h>
#include <math.h>

#include "tests/unit/ingest_tests.h"

TEST(specs)
{
    struct field_specs f;
    struct larder_error err;

    REQUIRE_OK(fields_parse("image=jpg|JPEG|png,label:i64=cls,json", &f, &err), &err);
    REQUIRE_EQ(f.n, 3);
    CHECK_STR(f.specs[0].name, "image");
    CHECK_EQ(f.specs[0].type, 0);
    REQUIRE_EQ(f.specs[0].n_exts, 3);
    CHECK_STR(f.specs[0].exts[1], "jpeg");
    CHECK_STR(f.specs[1].name, "label");
    CHECK_EQ(f.specs[1].type, LARDER_I64);
    CHECK_STR(f.specs[1].exts[0], "cls");
    REQUIRE_EQ(f.specs[2].n_exts, 1);
    CHECK_STR(f.specs[2].exts[0], "json");
    fields_release(&f);
    REQUIRE_OK(fields_parse("Seg.PNG:image", &f, &err), &err);
    CHECK_STR(f.specs[0].name, "Seg.PNG");
    CHECK_STR(f.specs[0].exts[0], "seg.png");
    fields_release(&f);
}

TEST(bad_specs)
{
    static const char *const bad[] = {"", ",", "a,", ":i64", "a:int", "a:ndarray", "a=", "a=|b", "a=b|", "a,a", "a=x,b=x", "a:i64:i64",
                                      "a=jpg|jpg,b=JPG", "\xff"};

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct field_specs f = {NULL, 0};
        struct larder_error err = {0};

        CHECK_ERR(fields_parse(bad[i], &f, &err), LARDER_EINVAL, &err);
        CHECK(f.specs == NULL && err.message[0]);
    }
}

static int64_t as_i64(const char *text)
{
    uint8_t scratch[8];
    struct larder_value v;
    struct larder_error err;

    if (fields_value(LARDER_I64, text, strlen(text), scratch, &v, &err))
        return INT64_MIN + 7;
    CHECK_EQ(v.len, 8);
    return (int64_t)get_u64(v.data);
}

TEST(integers)
{
    CHECK_EQ(as_i64("42"), 42);
    CHECK_EQ(as_i64(" -7\r\n"), -7);
    CHECK_EQ(as_i64("9223372036854775807"), INT64_MAX);
    CHECK_EQ(as_i64("-9223372036854775808"), INT64_MIN);
    CHECK_EQ(as_i64("010"), 10);
    CHECK_EQ(as_i64("9223372036854775808"), INT64_MIN + 7);
    CHECK_EQ(as_i64(""), INT64_MIN + 7);
    CHECK_EQ(as_i64("  "), INT64_MIN + 7);
    CHECK_EQ(as_i64("4 2"), INT64_MIN + 7);
    CHECK_EQ(as_i64("1.5"), INT64_MIN + 7);
    CHECK_EQ(as_i64("0x10"), INT64_MIN + 7);
}

static int parse(int type, const void *data, size_t len, struct larder_value *v, uint8_t scratch[8])
{
    struct larder_error err = {0};
    int rc = fields_value(type, data, len, scratch, v, &err);

    CHECK_EQ(rc, err.code);
    return rc;
}

TEST(other_types)
{
    uint8_t s[8];
    struct larder_value v;
    double d;
    float f;

    CHECK_EQ(parse(LARDER_F64, "2.5\n", 4, &v, s), 0);
    memcpy(&d, v.data, 8);
    CHECK(d == 2.5);
    CHECK_EQ(parse(LARDER_F64, "1e999", 5, &v, s), LARDER_EINVAL);
    CHECK_EQ(parse(LARDER_F64, "1e-999", 6, &v, s), 0);
    CHECK_EQ(parse(LARDER_F32, "1e39", 4, &v, s), LARDER_EINVAL);
    CHECK_EQ(parse(LARDER_F32, "nan", 3, &v, s), 0);
    memcpy(&f, v.data, 4);
    CHECK(isnan(f) && v.len == 4);
    CHECK_EQ(parse(LARDER_BOOL, "True", 4, &v, s), 0);
    CHECK(v.len == 1 && s[0] == 1);
    CHECK_EQ(parse(LARDER_BOOL, "0", 1, &v, s), 0);
    CHECK_EQ(s[0], 0);
    CHECK_EQ(parse(LARDER_BOOL, "2", 1, &v, s), LARDER_EINVAL);
    CHECK_EQ(parse(LARDER_I64, "4\0002", 3, &v, s), LARDER_EINVAL);
    CHECK_EQ(parse(LARDER_UTF8, "gr\xc3\xbc\xc3\x9f", 6, &v, s), 0);
    CHECK_EQ(v.len, 6);
    CHECK_EQ(parse(LARDER_UTF8, "\xc3(", 2, &v, s), LARDER_EINVAL);
    CHECK_EQ(parse(LARDER_JSON, "{\"a\": \"\xff\"}", 10, &v, s), LARDER_EINVAL);
    CHECK_EQ(parse(LARDER_IMAGE, "", 0, &v, s), LARDER_EINVAL);
    CHECK_EQ(parse(LARDER_BYTES, "", 0, &v, s), 0);
    CHECK(v.data != NULL);
}

TEST(text_round_trip)
{
    static const double values[] = {0, -1.5, 0.1, 1e300, 5e-324, 123456789.123456789};
    uint8_t s[8], t[8];
    char text[40];
    struct larder_value v, w;

    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        memcpy(s, &values[i], 8);
        v = (struct larder_value){s, 8};
        CHECK_EQ(parse(LARDER_F64, text, fields_text(LARDER_F64, &v, text), &w, t), 0);
        CHECK_MEM(s, t, 8);
        float f = (float)values[i];
        memcpy(s, &f, 4);
        v = (struct larder_value){s, 4};
        if (isfinite(f) && f >= 1e-30f) {
            CHECK_EQ(parse(LARDER_F32, text, fields_text(LARDER_F32, &v, text), &w, t), 0);
            CHECK_MEM(s, t, 4);
        }
    }
    put_u64(s, (uint64_t)INT64_MIN);
    v = (struct larder_value){s, 8};
    size_t n = fields_text(LARDER_I64, &v, text);
    CHECK_EQ(n, 20);
    CHECK_MEM(text, "-9223372036854775808", 20);
}

TEST(numbers_know_no_locale)
{
    uint8_t s[8];
    struct larder_value v;
    double d;
    char text[40];

    if (!setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "fr_FR.UTF-8"))
        TEST_SKIP("no locale with a decimal comma is installed");
    CHECK_EQ(parse(LARDER_F64, "2.5", 3, &v, s), 0);
    memcpy(&d, v.data, 8);
    CHECK(d == 2.5);
    CHECK_EQ(fields_text(LARDER_F64, &v, text), 3);
    CHECK_MEM(text, "2.5", 3);
    setlocale(LC_ALL, "C");
}

/* Every string of up to three bytes, and samples of four, against the definition of UTF-8 by code point. */
static bool valid_by_definition(const uint8_t *p, size_t len)
{
    for (size_t i = 0; i < len;) {
        uint32_t c = p[i], n = c < 0x80 ? 0 : (c & 0xe0) == 0xc0 ? 1 : (c & 0xf0) == 0xe0 ? 2 : (c & 0xf8) == 0xf0 ? 3 : 9;
        static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};

        if (n == 9 || i + n >= len + (n == 0 && i < len))
            return false;
        c = n ? c & (0x3fu >> n) : c;
        for (uint32_t k = 1; k <= n; k++) {
            if ((p[i + k] & 0xc0) != 0x80)
                return false;
            c = c << 6 | (p[i + k] & 0x3f);
        }
        if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
            return false;
        i += n + 1;
    }
    return true;
}

TEST(utf8)
{
    uint8_t b[16];
    uint64_t state = 3, wrong = 0;

    for (uint32_t x = 0; x < 1u << 24; x += x < 1u << 16 ? 1 : 251) {
        put_u32(b, x);
        for (size_t n = 1; n <= 3; n++)
            wrong += utf8_valid(b, n) != valid_by_definition(b, n);
    }
    for (int i = 0; i < 200000; i++) {
        uint64_t r = rng_u64(&state);
        put_u64(b, r);
        b[0] = (uint8_t)(0xe0 + (r >> 60) % 24);
        b[1] = (uint8_t)(0x70 + (b[1] & 0x5f));
        b[2] = (uint8_t)(0x80 | (b[2] & 0x3f));
        b[3] = (uint8_t)(0x80 | (b[3] & 0x3f));
        wrong += utf8_valid(b, 4) != valid_by_definition(b, 4);
    }
    CHECK_EQ(wrong, 0);
    CHECK(utf8_valid("plain text of more than eight bytes", 35));
    CHECK(!utf8_valid("plain text \xff of more than eight bytes", 36));
}

TEST(schemas)
{
    struct schema a = {0}, b = {0};
    struct larder_error err;
    const char *names[] = {"image", "label"}, *others[] = {"image", "class"};
    int types[] = {LARDER_IMAGE, LARDER_I64};

    REQUIRE_OK(fields_schema(&a, names, types, 2, &err), &err);
    REQUIRE_OK(fields_schema(&b, names, types, 2, &err), &err);
    CHECK_OK(fields_same(&a, &b, &err), &err);
    schema_release(&b);
    REQUIRE_OK(fields_schema(&b, others, types, 2, &err), &err);
    CHECK_ERR(fields_same(&a, &b, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "label:i64") && strstr(err.message, "class:i64"));
    schema_release(&b);
    REQUIRE_OK(fields_schema(&b, names, types, 1, &err), &err);
    CHECK_ERR(fields_same(&a, &b, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "'label'") != NULL);
    schema_release(&a);
    schema_release(&b);
}

TEST_MAIN();
