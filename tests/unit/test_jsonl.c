/* SPDX-License-Identifier: Apache-2.0 */
/* test_jsonl.c - the JSON lines of the larder command, read back by jansson. */
#include <jansson.h>
#include <math.h>

#include "tests/unit/test.h"

#include "tools/jsonl.c"
#include "tools/text.c"
/* LIBS: -ljansson */

static char buf[4096];

static FILE *begin(struct jsonl *j)
{
    FILE *f = fmemopen(buf, sizeof buf, "w");

    jsonl_begin(j, f);
    return f;
}

static json_t *end(struct jsonl *j, FILE *f)
{
    json_error_t e;

    jsonl_end(j);
    fclose(f);
    CHECK(strchr(buf, '\n') == buf + strlen(buf) - 1); /* one line */
    return json_loads(buf, JSON_REJECT_DUPLICATES, &e);
}

TEST(every_kind)
{
    struct jsonl j;
    FILE *f = begin(&j);

    jsonl_u64(&j, "u", UINT64_MAX);
    jsonl_i64(&j, "i", INT64_MIN);
    jsonl_double(&j, "d", 0.1, 0);
    jsonl_double(&j, "nan", NAN, 0);
    jsonl_fixed(&j, "x", 1.25, 3);
    jsonl_bool(&j, "b", 1);
    jsonl_null(&j, "n");
    jsonl_hash(&j, "h", 0xabc);
    jsonl_text(&j, "t", "hi");
    jsonl_text(&j, "none", NULL);
    jsonl_array(&j, "a");
    jsonl_i64(&j, NULL, 1);
    jsonl_i64(&j, NULL, -1);
    jsonl_close(&j, ']');
    jsonl_object(&j, "o");
    jsonl_object(&j, "p");
    jsonl_close(&j, '}');
    jsonl_bool(&j, "q", 0);
    jsonl_close(&j, '}');
    jsonl_end(&j);
    fclose(f);
    CHECK_STR(buf, "{\"u\": 18446744073709551615, \"i\": -9223372036854775808, \"d\": 0.1, \"nan\": null, "
                   "\"x\": 1.250, \"b\": true, \"n\": null, \"h\": \"0000000000000abc\", \"t\": \"hi\", "
                   "\"none\": null, \"a\": [1, -1], \"o\": {\"p\": {}, \"q\": false}}\n");
}

TEST(every_byte_survives)
{
    for (int c = 0; c < 256; c++) {
        char s[4] = {'a', (char)c, 'b', 0}, hex[16];
        struct jsonl j;
        FILE *f = begin(&j);
        const char *got;
        json_t *o;

        jsonl_bytes(&j, "key", s, 3);
        o = end(&j, f);
        if (c == 0) { /* jansson refuses \u0000 by default */
            CHECK_STR(buf, "{\"key\": \"a\\u0000b\"}\n");
            continue;
        }
        REQUIRE(o != NULL);
        got = json_string_value(json_object_get(o, c < 0x80 ? "key" : "key_hex"));
        snprintf(hex, sizeof hex, "61%02x62", (unsigned)c);
        CHECK_STR(got ? got : "none", c < 0x80 ? s : hex);
        json_decref(o);
    }
}

TEST(names_are_escaped)
{
    struct jsonl j;
    FILE *f = begin(&j);
    json_t *o;

    jsonl_u64(&j, "a\"b", 1);
    o = end(&j, f);
    REQUIRE(o != NULL);
    CHECK_EQ(json_integer_value(json_object_get(o, "a\"b")), 1);
    json_decref(o);
}

TEST_MAIN();
