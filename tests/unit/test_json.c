/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/base.h"
#include "tests/unit/test.h"

static struct json *parse(const char *text)
{
    struct larder_error err = {0};
    struct json *j = json_parse(text, strlen(text), "m.json", &err);

    CHECK(j != NULL);
    if (!j)
        fprintf(stderr, "%s\n", err.message);
    return j;
}

static void refused(const char *text, size_t len, const char *why)
{
    struct larder_error err = {0};
    AUTO_JSON struct json *j = json_parse(text, len, "m.json", &err);

    CHECK(j == NULL);
    CHECK_EQ(err.code, LARDER_ECORRUPT);
    CHECK(strncmp(err.message, "m.json: ", 8) == 0);
    if (!strstr(err.message, why))
        CHECK_STR(err.message, why);
}

TEST(getters_give_values)
{
    AUTO_JSON struct json *j = parse("{\"n\": 42, \"big\": 9223372036854775807, \"s\": \"a\\u00e9\\\"\", \"h\": \"00fF\","
                                     " \"a\": [1, \"x\", [2], {\"y\": 3}], \"o\": {}}");
    struct larder_error err;
    uint64_t n = 0;
    const char *s = NULL;
    const struct json *a = NULL, *v = NULL;
    uint8_t h[2];

    CHECK_OK(json_get_u64(j, "n", "m", &n, &err), &err);
    CHECK_EQ(n, 42);
    CHECK_OK(json_get_u64(j, "big", "m", &n, &err), &err);
    CHECK_EQ(n, INT64_MAX);
    CHECK_OK(json_get_str(j, "s", "m", &s, &err), &err);
    CHECK_STR(s, "a\xc3\xa9\"");
    CHECK_OK(json_get_hex(j, "h", "m", h, 2, &err), &err);
    CHECK_MEM(h, "\x00\xff", 2);
    CHECK_OK(json_get_array(j, "a", "m", &a, &err), &err);
    CHECK_EQ(json_len(a), 4);
    CHECK_OK(json_at_u64(a, 0, "m", &n, &err), &err);
    CHECK_EQ(n, 1);
    CHECK_OK(json_at_str(a, 1, "m", &s, &err), &err);
    CHECK_STR(s, "x");
    CHECK_OK(json_at_array(a, 2, "m", &v, &err), &err);
    CHECK_EQ(json_len(v), 1);
    CHECK_OK(json_at_object(a, 3, "m", &v, &err), &err);
    CHECK_OK(json_get_u64(v, "y", "m", &n, &err), &err);
    CHECK_EQ(n, 3);
    CHECK(json_has(j, "n") && !json_has(j, "N") && !json_has(a, "n") && !json_has(NULL, "n"));
    CHECK_EQ(json_len(NULL), 0);
}

TEST(getters_name_what_is_wrong)
{
    AUTO_JSON struct json *j = parse("{\"n\": -1, \"r\": 1.5, \"s\": 7, \"h\": \"0g\", \"z\": null, \"t\": true, \"a\": [-1]}");
    struct larder_error err;
    uint64_t n = 99;
    const char *s = "unchanged";
    const struct json *v = j;
    uint8_t h[1] = {9};

    CHECK_ERR(json_get_u64(j, "gone", "m.json", &n, &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "m.json: member 'gone' is missing");
    CHECK_ERR(json_get_u64(j, "n", "m.json", &n, &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "m.json: member 'n' is negative");
    CHECK_ERR(json_get_u64(j, "r", "m.json", &n, &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "m.json: member 'r' is not an integer");
    CHECK_ERR(json_get_u64(j, "t", "m.json", &n, &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(json_get_u64(j, "z", "m.json", &n, &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(json_get_str(j, "s", "m.json", &s, &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "m.json: member 's' is not a string");
    CHECK_ERR(json_get_hex(j, "h", "m.json", h, 1, &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "m.json: member 'h' is not 2 hexadecimal digits");
    CHECK_ERR(json_get_hex(j, "h", "m.json", h, 2, &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(json_get_array(j, "s", "m.json", &v, &err), LARDER_ECORRUPT, &err);
    CHECK(n == 99 && strcmp(s, "unchanged") == 0 && v == j && h[0] == 9);

    CHECK_OK(json_get_array(j, "a", "m.json", &v, &err), &err);
    CHECK_ERR(json_at_u64(v, 0, "m.json", &n, &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "m.json: element 0 is negative");
    CHECK_ERR(json_at_u64(v, 1, "m.json", &n, &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "m.json: element 1 is missing");
    CHECK_ERR(json_at_str(v, 0, "m.json", &s, &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(json_at_object(v, 0, "m.json", &v, &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(json_at_array(v, 0, "m.json", &v, &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(json_get_u64(v, "n", "m.json", &n, &err), LARDER_ECORRUPT, &err); /* of an array */
    CHECK_ERR(json_at_u64(j, 0, "m.json", &n, &err), LARDER_ECORRUPT, &err);    /* of an object */
}

TEST(strict_parsing)
{
    static const struct { const char *text, *why; } bad[] = {
        {"", "end of file"},
        {"{", "end of file"},
        {"{\"a\":1}x", "end of file expected"},
        {"{\"a\":1,\"a\":2}", "duplicate"},
        {"{\"a\":1,}", "line 1"},
        {"{\"a\":\n\n9223372036854775808}", "line 3"},
        {"{\"a\":01}", "line 1"},
        {"{\"a\":\"\\u0000\"}", "\\u0000"},
        {"{\"a\\u0000b\":1}", "\\u0000"},
        {"{\"a\":\"\xff\"}", "decode byte 0xff"},
        {"{\"a\":\"\xc0\x80\"}", "decode byte 0xc0"},
        {"{\"a\":\"\\ud800\"}", "invalid Unicode"},
        {"{'a':1}", "line 1"},
        {"{\"a\":NaN}", "line 1"},
        {"5", "line 1"},
        {"\"x\"", "line 1"},
        {"{\"a\":\"\n\"}", "line 1"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        refused(bad[i].text, strlen(bad[i].text), bad[i].why);
    refused("{\"a\":\"x\0y\"}", 11, "line 1");
    refused("{}\0", 3, "line 1");
    refused(NULL, 0, "end of file");
}

TEST(depth_is_bounded)
{
    enum { N = 200000 };
    char *text = malloc(2 * N);
    struct larder_error err;

    REQUIRE(text);
    for (int depth = 60; depth <= 70; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        struct json *j = json_parse(text, 2 * (size_t)depth, "m.json", &err);
        CHECK_EQ(j != NULL, depth <= 64);
        json_free(j);
    }
    memset(text, '[', 2 * N);
    refused(text, 2 * N, "nested deeper than 64");
    free(text);
    /* brackets in strings are none, whatever quotes and backslashes stand around */
    char s[400] = "[\"\\\"";
    memset(s + 4, '[', 200);
    strcpy(s + 204, "\\\\\",\"{\"]");
    AUTO_JSON struct json *j = parse(s);
    CHECK_EQ(json_len(j), 2);
}

TEST(building_keeps_order)
{
    AUTO_JSON struct json *j = json_new_object();
    AUTO_BUF struct buf b = BUF_INIT;
    struct larder_error err;
    struct json *a = json_new_array();

    CHECK_EQ(json_set_u64(j, "zulu", 1), LARDER_OK);
    CHECK_EQ(json_set_str(j, "alpha", "q\"\n\xc3\xa9"), LARDER_OK);
    CHECK_EQ(json_add_u64(a, INT64_MAX), LARDER_OK);
    CHECK_EQ(json_add_str(a, ""), LARDER_OK);
    CHECK_EQ(json_add(a, json_new_object()), LARDER_OK);
    CHECK_EQ(json_set(j, "mike", a), LARDER_OK);
    CHECK_EQ(json_set_hex(j, "bravo", "\x01\xab", 2), LARDER_OK);
    CHECK_EQ(json_set_hex(j, "empty", NULL, 0), LARDER_OK);
    for (int i = 20; i > 0; i--) {
        char key[8];
        snprintf(key, sizeof(key), "k%d", i * 7 % 20);
        CHECK_EQ(json_set_u64(j, key, (uint64_t)i), LARDER_OK);
    }
    CHECK_OK(buf_append(&b, "before:", 7, &err), &err);
    CHECK_OK(json_dump(j, &b, &err), &err);
    CHECK_OK(buf_append(&b, "", 1, &err), &err);
    CHECK_STR((char *)b.data,
              "before:{\"zulu\":1,\"alpha\":\"q\\\"\\n\xc3\xa9\",\"mike\":[9223372036854775807,\"\",{}],\"bravo\":\"01ab\","
              "\"empty\":\"\",\"k0\":20,\"k13\":19,\"k6\":18,\"k19\":17,\"k12\":16,\"k5\":15,\"k18\":14,\"k11\":13,\"k4\":12,"
              "\"k17\":11,\"k10\":10,\"k3\":9,\"k16\":8,\"k9\":7,\"k2\":6,\"k15\":5,\"k8\":4,\"k1\":3,\"k14\":2,\"k7\":1}");
    AUTO_JSON struct json *again = json_parse(b.data + 7, b.len - 8, "again", &err);
    AUTO_BUF struct buf c = BUF_INIT;
    CHECK_OK(json_dump(again, &c, &err), &err);
    CHECK_EQ(c.len, b.len - 8);
    CHECK_MEM(c.data, b.data + 7, c.len);
}

TEST(setters_refuse)
{
    AUTO_JSON struct json *j = json_new_object();
    AUTO_JSON struct json *a = json_new_array();
    static const char *const bad[] = {"\xff", "a\x80", "\xc3", "\xe2\x82", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80",
                                      "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xf0\x9f\x98"};
    static const char *const good[] = {"", "a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                                       "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "\x01"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        CHECK_EQ(json_set_str(j, "k", bad[i]), LARDER_EINVAL);
        CHECK_EQ(json_add_str(a, bad[i]), LARDER_EINVAL);
        CHECK_EQ(json_set_u64(j, bad[i], 1), LARDER_EINVAL);
    }
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        CHECK_EQ(json_set_str(j, "k", good[i]), LARDER_OK);
        CHECK_EQ(json_add_str(a, good[i]), LARDER_OK);
    }
    CHECK_EQ(json_set_u64(j, "k", (uint64_t)INT64_MAX + 1), LARDER_EINVAL);
    CHECK_EQ(json_add_u64(a, UINT64_MAX), LARDER_EINVAL);
    CHECK_EQ(json_set_u64(a, "k", 1), LARDER_EINVAL); /* an array has no members */
    CHECK_EQ(json_add_u64(j, 1), LARDER_EINVAL);
    CHECK_EQ(json_set(j, "k", j), LARDER_EINVAL); /* into itself */
    CHECK_EQ(json_add(a, a), LARDER_EINVAL);
    CHECK_EQ(json_len(a), ARRAY_LEN(good));
}

TEST(setters_take_what_could_not_be_made)
{
    AUTO_JSON struct json *j = json_new_object();
    AUTO_BUF struct buf b = BUF_INIT;
    struct larder_error err;

    CHECK_EQ(json_set_u64(NULL, "k", 1), LARDER_ENOMEM);
    CHECK_EQ(json_set_str(NULL, "k", "v"), LARDER_ENOMEM);
    CHECK_EQ(json_set_hex(NULL, "k", "v", 1), LARDER_ENOMEM);
    CHECK_EQ(json_add_u64(NULL, 1), LARDER_ENOMEM);
    CHECK_EQ(json_add_str(NULL, "v"), LARDER_ENOMEM);
    CHECK_EQ(json_set(j, "k", NULL), LARDER_ENOMEM);
    CHECK_EQ(json_set(NULL, "k", json_new_array()), LARDER_ENOMEM); /* moved: freed */
    CHECK_EQ(json_add(NULL, json_new_array()), LARDER_ENOMEM);
    CHECK_ERR(json_dump(NULL, &b, &err), LARDER_ENOMEM, &err);
    CHECK(!json_has(j, "k"));
    json_free(NULL);
}

TEST_MAIN();
