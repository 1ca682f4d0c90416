/* SPDX-License-Identifier: Apache-2.0 */
/* test_options.c - sizes, durations, parts and suggestions of the larder command. */
#include <stdarg.h>

#include "tests/unit/test.h"

#include "tools/options.c"
#include "tools/remote_args.c"

static char said[512];

int tool_usage(struct tool *t, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(said, sizeof said, fmt, ap);
    va_end(ap);
    return t->status = EXIT_USAGE;
}

#define SIZE(text, bytes)                   \
    do {                                    \
        uint64_t v_ = 1;                    \
        CHECK_EQ(parse_size(text, &v_), 0); \
        CHECK_EQ(v_, (uint64_t)(bytes));    \
    } while (0)

TEST(sizes)
{
    uint64_t v = 77;

    SIZE("0", 0);
    SIZE("4096", 4096);
    SIZE("64MiB", 64ull << 20);
    SIZE("64M", 64ull << 20);
    SIZE("64m", 64ull << 20);
    SIZE("64 MiB", 64ull << 20);
    SIZE("8GB", 8000000000);
    SIZE("100k", 100 << 10);
    SIZE("100kB", 100000);
    SIZE("1.5K", 1536);
    SIZE("12B", 12);
    SIZE("2TiB", 2ull << 40);
    SIZE("18446744073709551615", UINT64_MAX);
    SIZE("9007199254740993", 9007199254740993);
    CHECK_EQ(parse_size("18446744073709551616", &v), -1);
    CHECK_EQ(parse_size("16EiB", &v), -1);
    CHECK_EQ(parse_size("", &v), -1);
    CHECK_EQ(parse_size("-1", &v), -1);
    CHECK_EQ(parse_size("+1", &v), -1);
    CHECK_EQ(parse_size("1.", &v), -1);
    CHECK_EQ(parse_size("1e3", &v), -1);
    CHECK_EQ(parse_size("0x10", &v), -1);
    CHECK_EQ(parse_size("inf", &v), -1);
    CHECK_EQ(parse_size("64X", &v), -1);
    CHECK_EQ(parse_size("64MiBs", &v), -1);
    CHECK_EQ(parse_size("1iB", &v), -1);
    CHECK_EQ(parse_size("11111111111111111111111111111111111111111111", &v), -1);
    CHECK_EQ(v, 77);
}

TEST(milliseconds)
{
    uint64_t v = 1;

    CHECK_EQ(parse_milliseconds("500ms", &v), 0);
    CHECK_EQ(v, 500);
    CHECK_EQ(parse_milliseconds("20", &v), 0);
    CHECK_EQ(v, 20000);
    CHECK_EQ(parse_milliseconds("1.5s", &v), 0);
    CHECK_EQ(v, 1500);
    CHECK_EQ(parse_milliseconds("2m", &v), 0);
    CHECK_EQ(v, 120000);
    CHECK_EQ(parse_milliseconds("5us", &v), -1);
    CHECK_EQ(parse_duration("500ms", &v), -1);
}

TEST(durations)
{
    static const struct {
        const char *text;
        uint64_t seconds;
    } good[] = {{"24h", 86400}, {"7d", 604800},  {"90s", 90}, {"30m", 1800}, {"90", 90},
                {"1.5h", 5400}, {"2w", 1209600}, {"0", 0},    {"5min", 300}};
    uint64_t v;

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        v = 1;
        CHECK_EQ(parse_duration(good[i].text, &v), 0);
        CHECK_EQ(v, good[i].seconds);
    }
    CHECK_EQ(parse_duration("3y", &v), -1);
    CHECK_EQ(parse_duration("h", &v), -1);
    CHECK_EQ(parse_duration("-1h", &v), -1);
    CHECK_EQ(parse_duration("", &v), -1);
    CHECK_EQ(parse_duration("9999999999999999999w", &v), -1);
}

TEST(numbers)
{
    uint64_t v = 5;

    CHECK_EQ(parse_u64("18446744073709551615", &v), 0);
    CHECK_EQ(v, UINT64_MAX);
    CHECK_EQ(parse_u64("18446744073709551616", &v), -1);
    CHECK_EQ(parse_u64("-1", &v), -1);
    CHECK_EQ(parse_u64(" 1", &v), -1);
    CHECK_EQ(parse_u64("1x", &v), -1);
    CHECK_EQ(parse_u64("", &v), -1);
}

static struct tool given(const char *option, const char *value)
{
    struct tool t = {.option = option, .value = value};

    return t;
}

TEST(compress)
{
    static const struct {
        const char *text;
        int compression, level;
    } good[] = {{"none", LARDER_COMPRESS_NONE, 0},
                {"zstd", LARDER_COMPRESS_ZSTD, 0},
                {"zstd:19", LARDER_COMPRESS_ZSTD, 19},
                {"zstd-dict", LARDER_COMPRESS_ZSTD_DICT, 0},
                {"zstd-dict:1", LARDER_COMPRESS_ZSTD_DICT, 1}};
    static const char *const bad[] = {"",        "zst",    "none:1",       "zstd:", "zstd:0",
                                      "zstd:20", "zstd:x", "zstd-dict:-1", "lz4"};

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct tool t = given("--compress", good[i].text);
        int c = -1, l = -1;

        option_compress(&t, &c, &l);
        CHECK_EQ(t.status, 0);
        CHECK_EQ(c, good[i].compression);
        CHECK_EQ(l, good[i].level);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct tool t = given("--compress", bad[i]);
        int c = -1, l = -1;

        option_compress(&t, &c, &l);
        CHECK_EQ(t.status, EXIT_USAGE);
        CHECK_EQ(c, -1);
    }
}

TEST(subset)
{
    static const char *const bad[] = {"", "1", "/", "1/", "/2", "0/2", "3/2", "1/2/3", "a/b"};
    struct tool t = given("--subset", "7/10");
    uint64_t n = 0, of = 0;

    option_subset(&t, &n, &of);
    CHECK_EQ(t.status, 0);
    CHECK_EQ(n, 7);
    CHECK_EQ(of, 10);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        t = given("--subset", bad[i]);
        option_subset(&t, &n, &of);
        CHECK_EQ(t.status, EXIT_USAGE);
    }
}

TEST(choice_names_them_all)
{
    static const char *const names[] = {"a", "b", "c", NULL};
    struct tool t = given("--x", "c");
    int v = -1;

    option_choice(&t, names, &v);
    CHECK_EQ(v, 2);
    t = given("--x", "d");
    option_choice(&t, names, &v);
    CHECK_STR(said, "--x: 'd' is not a, b or c");
    CHECK_EQ(v, 2);
}

static const char *name_at(const void *table, size_t i)
{
    return ((const char *const *)table)[i];
}

TEST(nearest)
{
    static const char *const names[] = {"verify", "ls", "get", "gc", "export", NULL};
    static const char *const none[] = {NULL};

    CHECK_STR(options_nearest("verfy", name_at, names), "verify");
    CHECK_STR(options_nearest("exp", name_at, names), "export");
    CHECK_STR(options_nearest("gt", name_at, names), "get");
    CHECK(options_nearest("x", name_at, names) == NULL);
    CHECK(options_nearest("completely", name_at, names) == NULL);
    CHECK(options_nearest("verify", name_at, none) == NULL);
    CHECK(options_nearest("averyveryverylongwordthatisnonameatall", name_at, names) == NULL);
}

TEST_MAIN();
