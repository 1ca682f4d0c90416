/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/base.h"
#include "tests/unit/test.h"

TEST(set_fills_everything)
{
    struct larder_error err;

    memset(&err, 0xff, sizeof(err));
    CHECK_EQ(err_set(&err, LARDER_ECORRUPT, "%s: slot %d", "shards/x", 7), LARDER_ECORRUPT);
    CHECK_EQ(err.code, LARDER_ECORRUPT);
    CHECK_EQ(err.sys_errno, 0);
    CHECK_EQ(err.http_status, 0);
    CHECK_STR(err.message, "shards/x: slot 7");
    CHECK_EQ(err.message[sizeof(err.message) - 1], 0);
}

TEST(null_is_allowed)
{
    CHECK_EQ(err_set(NULL, LARDER_EINVAL, "%d", 1), LARDER_EINVAL);
    CHECK_EQ(err_sys(NULL, LARDER_EIO, EIO, "%d", 1), LARDER_EIO);
    CHECK_EQ(err_nomem(NULL, 5, "x"), LARDER_ENOMEM);
    CHECK_EQ(err_prefix(NULL, LARDER_EBUSY, "%d", 1), LARDER_EBUSY);
}

TEST(long_messages_are_cut)
{
    struct larder_error err;
    char text[1000];

    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    err_set(&err, LARDER_EINVAL, "%s", text);
    CHECK_EQ(strlen(err.message), sizeof(err.message) - 1);
    CHECK_STR(err.message + sizeof(err.message) - 4, "...");

    text[243] = '\0'; /* fits exactly */
    err_set(&err, LARDER_EINVAL, "%s", text);
    CHECK_STR(err.message, text);
    text[243] = 'a';
    text[244] = '\0'; /* one too many */
    err_set(&err, LARDER_EINVAL, "%s", text);
    CHECK_EQ(strlen(err.message), 243);
}

TEST(cuts_between_characters)
{
    for (int shift = 0; shift < 4; shift++) {
        struct larder_error err;
        char text[600] = "abc";

        for (int i = 0; i < 120; i++)
            memcpy(text + shift + 4 * i, "\xf0\x9f\x98\x80", 5); /* U+1F600 */
        err_set(&err, LARDER_EINVAL, "%s", text);
        size_t len = strlen(err.message);
        CHECK(len <= 243 && len >= 240);
        CHECK_STR(err.message + len - 3, "...");
        CHECK_EQ((len - 3 - (size_t)shift) % 4, 0);
    }
}

TEST(system_reason_survives_cutting)
{
    struct larder_error err;
    char text[1000];

    CHECK_EQ(err_sys(&err, LARDER_EIO, EACCES, "open %s", "x"), LARDER_EIO);
    CHECK_STR(err.message, "open x: Permission denied");
    CHECK_EQ(err.sys_errno, EACCES);

    memset(text, 'p', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    err_sys(&err, LARDER_EIO, EACCES, "%s", text);
    const char *end = "ppp...: Permission denied";
    CHECK_EQ(strlen(err.message), 243);
    CHECK_STR(err.message + 243 - strlen(end), end);
    err_sys(&err, LARDER_EIO, 99999, "x");
    CHECK_STR(err.message, "x: Unknown error 99999");
}

TEST(one_line_only)
{
    struct larder_error err;

    err_set(&err, LARDER_EINVAL, "a\nb\x1b[31m\x7f\xc3\xa9");
    CHECK_STR(err.message, "a?b?[31m?\xc3\xa9");
}

TEST(prefix_goes_before)
{
    struct larder_error err;
    char want[300];

    err_sys(&err, LARDER_EIO, EIO, "read");
    CHECK_EQ(err_prefix(&err, LARDER_EINVAL, "shard %d", 3), LARDER_EIO);
    CHECK_STR(err.message, "shard 3: read: Input/output error");
    CHECK_EQ(err.sys_errno, EIO);

    /* of a message that is full, the end goes */
    memset(err.message, 'm', 243);
    err.message[243] = '\0';
    err_prefix(&err, LARDER_EIO, "p");
    snprintf(want, sizeof(want), "p: %.*s...", 237, "mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm"
             "mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm"
             "mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm");
    CHECK_STR(err.message, want);

    struct larder_error none = {0};
    CHECK_EQ(err_prefix(&none, LARDER_EBUSY, "p"), LARDER_EBUSY);
    CHECK_EQ(none.code, LARDER_EBUSY);
}

TEST(arguments_may_be_the_error_itself)
{
    struct larder_error err;

    err_set(&err, LARDER_EIO, "inner");
    err_set(&err, LARDER_ECORRUPT, "outer (%s)", err.message);
    CHECK_STR(err.message, "outer (inner)");
}

TEST(codes_of_errno)
{
    CHECK_EQ(err_code_of(ENOENT), LARDER_ENOTFOUND);
    CHECK_EQ(err_code_of(EEXIST), LARDER_EEXIST);
    CHECK_EQ(err_code_of(ENOMEM), LARDER_ENOMEM);
    CHECK_EQ(err_code_of(ENOSPC), LARDER_EIO);
    struct larder_error err;
    CHECK_EQ(err_nomem(&err, 123, "ring"), LARDER_ENOMEM);
    CHECK_STR(err.message, "ring: out of memory, 123 bytes wanted");
}

TEST(key_text_is_printable)
{
    char out[256], key[1024];

    CHECK_STR(key_text("n01440764_tench", 15, out), "n01440764_tench");
    CHECK_STR(key_text("", 0, out), "");
    CHECK_STR(key_text(NULL, 0, out), "");
    CHECK_STR(key_text("a\0\\\xff z", 6, out), "a\\x00\\x5c\\xff z");
    memset(key, 1, sizeof(key));
    memset(out, 'z', sizeof(out));
    CHECK(key_text(key, sizeof(key), out) == out);
    CHECK_EQ(strlen(out), 60 * 4 + 3);
    CHECK_STR(out + 236, "\\x01...");
    CHECK_EQ(strlen(key_text(key, 60, out)), 240);
}

TEST_MAIN();
