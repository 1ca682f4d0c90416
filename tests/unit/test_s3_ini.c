/* SPDX-License-Identifier: Apache-2.0 */
/* The syntax of the shared files, as people and tools write it. */
#include "tests/unit/test.h"
#include "tiers/s3.h"

struct seen { char text[4096]; int n, stop_at; };

static int see(void *user, const char *section, const char *name, const char *value)
{
    struct seen *s = user;
    size_t at = strlen(s->text);

    snprintf(s->text + at, sizeof(s->text) - at, "%s|%s|%s\n", section, name, value);
    return ++s->n == s->stop_at ? 77 : 0;
}

static const char *parse(const char *text)
{
    static struct seen s;
    struct larder_error err;

    memset(&s, 0, sizeof(s));
    CHECK_OK(s3_ini_parse(text, strlen(text), see, &s, &err), &err);
    return s.text;
}

TEST(settings)
{
    CHECK_STR(parse("[default]\nregion = eu-west-1\noutput=json\n"), "default||\ndefault|region|eu-west-1\ndefault|output|json\n");
    CHECK_STR(parse("[profile ml]\r\nRegion=\teu\r\n\r\n[profile \"a b\"]\r\nx=1"),
              "profile ml||\nprofile ml|region|eu\nprofile a b||\nprofile a b|x|1\n");
    CHECK_STR(parse("\xef\xbb\xbf[ default ]  \n  a = b = c  \n"), "default||\ndefault|a|b = c\n");
    CHECK_STR(parse("[  profile   x  ] ; note\na=\n"), "profile x||\nprofile x|a|\n");
}

TEST(comments)
{
    CHECK_STR(parse("# c\n; c\n  # c\n[a]\nk = v # c\nl = v ; c\nm = v#not;one\nn = #c\n"),
              "a||\na|k|v\na|l|v\na|m|v#not;one\na|n|\n");
}

TEST(nested_settings)
{
    CHECK_STR(parse("[a]\ns3 =\n  endpoint_url = http://h\n  addressing_style = path\nregion = r\n  not = this\nt=u\n"),
              "a||\na|s3|\na|s3.endpoint_url|http://h\na|s3.addressing_style|path\na|region|r\na|t|u\n");
    /* all of a section indented alike, as editors and heredocs leave it */
    CHECK_STR(parse("[a]\n    k = 1\n    l = 2\n\tm=3\n"), "a||\na|k|1\na|l|2\na|m|3\n");
}

TEST(what_is_no_setting_is_passed_over)
{
    CHECK_STR(parse(""), "");
    CHECK_STR(parse("\n\n"), "");
    CHECK_STR(parse("before = a section\n[a]\nno equals\n= no name\n[b\nc = lost\n[]\nd = 1\n]\n"), "a||\n||\n|d|1\n");
    CHECK_STR(parse("[a]\nk"), "a||\n");
    struct seen s = {.n = 0};
    struct larder_error err;
    CHECK_OK(s3_ini_parse("[a]\nk=\0v\n[b]\n", 14, see, &s, &err), &err); /* NUL ends a line's text */
    CHECK_STR(s.text, "a||\na|k|\nb||\n");
}

TEST(stops_when_told)
{
    struct seen s = {.stop_at = 2};
    struct larder_error err;
    const char *text = "[a]\nk=1\nl=2\n";

    CHECK_EQ(s3_ini_parse(text, strlen(text), see, &s, &err), 77);
    CHECK_EQ(s.n, 2);
}

TEST_MAIN();
