/* SPDX-License-Identifier: Apache-2.0 */
/* test_text.c - numbers, sizes, times and escaped bytes of the larder command. */
#include "tests/unit/test.h"

#include "tools/text.c"

static const char *escaped(const void *data, size_t len, size_t max)
{
    static char buf[256];
    FILE *f = fmemopen(buf, sizeof buf, "w");

    buf[0] = 0;
    text_escape(f, data, len, max);
    fclose(f);
    return buf;
}

TEST(counts)
{
    char b[TEXT_MAX];

    CHECK_STR(text_count(0, b), "0");
    CHECK_STR(text_count(999, b), "999");
    CHECK_STR(text_count(1000, b), "1,000");
    CHECK_STR(text_count(1281167, b), "1,281,167");
    CHECK_STR(text_count(UINT64_MAX, b), "18,446,744,073,709,551,615");
    CHECK_STR(text_plural(1, "shard", b), "1 shard");
    CHECK_STR(text_plural(0, "shard", b), "0 shards");
    CHECK_STR(text_plural(1000, "shard", b), "1,000 shards");
}

TEST(sizes)
{
    char b[TEXT_MAX];

    CHECK_STR(text_size(0, b), "0 B");
    CHECK_STR(text_size(5, b), "5 B");
    CHECK_STR(text_size(999, b), "999 B");
    CHECK_STR(text_size(1000, b), "1.0 kB");
    CHECK_STR(text_size(9949, b), "9.9 kB");
    CHECK_STR(text_size(9951, b), "10 kB");
    CHECK_STR(text_size(999499, b), "999 kB");
    CHECK_STR(text_size(999500, b), "1.0 MB");
    CHECK_STR(text_size(71234567890u, b), "71 GB");
    CHECK_STR(text_size(UINT64_MAX, b), "18 EB");
    CHECK_STR(text_rate(1.04e9, b), "1.0 GB/s");
    CHECK_STR(text_rate(0, b), "0 B/s");
}

TEST(clocks)
{
    char b[TEXT_MAX];

    CHECK_STR(text_clock(0, b), "0:00");
    CHECK_STR(text_clock(72, b), "1:12");
    CHECK_STR(text_clock(3599, b), "59:59");
    CHECK_STR(text_clock(7384, b), "2:03:04");
    CHECK_STR(text_clock(360000, b), "100:00:00");
}

TEST(doubles_read_back)
{
    static const double v[] = {0.1, 1.0 / 3, 1e300, -2.5, 5e-324, 123456789.125};
    char b[TEXT_MAX];

    for (size_t i = 0; i < sizeof v / sizeof *v; i++)
        CHECK(strtod(text_double(v[i], 0, b), NULL) == v[i]);
    CHECK_STR(text_double(0.1, 0, b), "0.1");
    CHECK_STR(text_double((double)0.1f, 1, b), "0.1");
    CHECK_STR(text_double((double)16777217.0f, 1, b), "16777216");
}

TEST(utf8)
{
    uint32_t cp;

    CHECK_EQ(text_utf8("a", 1, &cp), 1);
    CHECK_EQ(text_utf8("\xc3\xa9", 2, &cp), 2);
    CHECK_EQ(cp, 0xe9);
    CHECK_EQ(text_utf8("\xf0\x9f\x98\x80", 4, &cp), 4);
    CHECK_EQ(cp, 0x1f600);
    CHECK_EQ(text_utf8("\xc3", 1, &cp), 0);     /* cut off */
    CHECK_EQ(text_utf8("\xc0\x80", 2, &cp), 0); /* too long a form */
    CHECK_EQ(text_utf8("\xe0\x80\x80", 3, &cp), 0);
    CHECK_EQ(text_utf8("\xed\xa0\x80", 3, &cp), 0);     /* a surrogate */
    CHECK_EQ(text_utf8("\xf4\x90\x80\x80", 4, &cp), 0); /* beyond U+10FFFF */
    CHECK_EQ(text_utf8("\x80", 1, &cp), 0);
    CHECK(text_is_utf8("", 0));
    CHECK(text_is_utf8("a\xc3\xa9", 3));
    CHECK(!text_is_utf8("a\xff", 2));
}

TEST(escapes)
{
    CHECK_STR(escaped("a/b c", 5, 0), "a/b c");
    CHECK_STR(escaped("\xc3\xa9", 2, 0), "\xc3\xa9");
    CHECK_STR(escaped("a\nb\tc\rd", 7, 0), "a\\nb\\tc\\rd");
    CHECK_STR(escaped("\x1b[31m", 5, 0), "\\x1b[31m");
    CHECK_STR(escaped("a\\b", 3, 0), "a\\\\b");
    CHECK_STR(escaped("\xff\0\x7f", 3, 0), "\\xff\\x00\\x7f");
    CHECK_STR(escaped("\xc2\x9b", 2, 0), "\\xc2\\x9b");          /* C1: a terminal may take it for ESC [ */
    CHECK_STR(escaped("\xe2\x80\xae", 3, 0), "\\xe2\\x80\\xae"); /* turns the line around */
    CHECK_STR(escaped("abcdef", 6, 3), "abc...");
    CHECK_STR(escaped("abc", 3, 3), "abc");
    CHECK_STR(escaped("", 0, 0), "");
}

TEST(lines_keep_backslashes)
{
    char buf[64];
    FILE *f = fmemopen(buf, sizeof buf, "w");

    text_line(f, "key 'a\\x01' is\nthere");
    fclose(f);
    CHECK_STR(buf, "key 'a\\x01' is\\nthere");
}

TEST_MAIN();
