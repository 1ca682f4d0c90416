/* SPDX-License-Identifier: Apache-2.0 */
/* Material for dictionaries: which fields count, how much of a sample, and when there is enough of it. Training on
 * a source is in test_pack.c. */
#include "tests/unit/ingest_tests.h"

static struct schema schema_of(int type)
{
    const char *names[] = {"a", "b"};
    int types[] = {LARDER_IMAGE, type};
    struct schema s;
    struct larder_error err;

    REQUIRE_OK(fields_schema(&s, names, types, 2, &err), &err);
    return s;
}

TEST(media_and_absent_fields_do_not_count)
{
    struct material m = {BUF_INIT, NULL, 0, 0};
    struct schema s = schema_of(LARDER_UTF8);
    struct larder_error err;

    CHECK_OK(material_add(&m, &s, (struct larder_value[]){{"image", 5}, {"text", 4}}, &err), &err);
    CHECK_OK(material_add(&m, &s, (struct larder_value[]){{"image", 5}, {NULL, 0}}, &err), &err);
    CHECK_OK(material_add(&m, &s, (struct larder_value[]){{NULL, 0}, {"more", 4}}, &err), &err);
    CHECK_EQ(m.n, 2);
    CHECK_EQ(m.sizes[0], 4);
    CHECK_EQ(m.sizes[1], 4);
    CHECK_EQ(m.bytes.len, 8);
    CHECK_EQ(memcmp(m.bytes.data, "textmore", 8), 0);
    material_release(&m);
    CHECK_EQ(m.n, 0);
    schema_release(&s);
}

TEST(a_large_sample_is_cut)
{
    struct material m = {BUF_INIT, NULL, 0, 0};
    struct schema s = schema_of(LARDER_BYTES);
    struct larder_error err;
    size_t len = 100000;
    uint8_t *big = malloc(len);

    REQUIRE(big != NULL);
    fill(1, big, len);
    CHECK_OK(material_add(&m, &s, (struct larder_value[]){{NULL, 0}, {big, len}}, &err), &err);
    CHECK_EQ(m.n, 1);
    CHECK_EQ(m.sizes[0], 65536);
    CHECK_EQ(memcmp(m.bytes.data, big, 65536), 0);
    material_release(&m);
    schema_release(&s);
    free(big);
}

TEST(too_little_gives_none)
{
    struct material m = {BUF_INIT, NULL, 0, 0};
    struct schema s = schema_of(LARDER_UTF8);
    struct larder_error err;
    void *dict = &m;
    size_t len = 9;

    CHECK_OK(material_train(&m, &dict, &len, &err), &err);
    CHECK(dict == NULL && len == 0);
    for (int i = 0; i < 7; i++)
        CHECK_OK(material_add(&m, &s, (struct larder_value[]){{NULL, 0}, {"a few words", 11}}, &err), &err);
    CHECK_OK(material_train(&m, &dict, &len, &err), &err);
    CHECK(dict == NULL && len == 0);
    material_release(&m);
    schema_release(&s);
}

TEST(enough_gives_one)
{
    struct material m = {BUF_INIT, NULL, 0, 0};
    struct schema s = schema_of(LARDER_JSON);
    struct larder_error err;
    char text[200];
    void *dict;
    size_t len;

    for (int i = 0; i < 2000; i++) {
        size_t n = (size_t)snprintf(text, sizeof(text), "{\"caption\": \"picture number %d\", \"source\": \"camera %d\", \"rating\": %d}", i * 7919,
                                    i % 13, i % 5);
        REQUIRE_OK(material_add(&m, &s, (struct larder_value[]){{NULL, 0}, {text, n}}, &err), &err);
    }
    REQUIRE_OK(material_train(&m, &dict, &len, &err), &err);
    CHECK(dict && len > 100 && len <= 112 * 1024);
    free(dict);
    material_release(&m);
    schema_release(&s);
}

TEST_MAIN();
