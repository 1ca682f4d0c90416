/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <time.h>

#include "store/base/base.h"
#include "tests/unit/test.h"

TEST(guards_close_and_free)
{
    int raw;
    {
        AUTO_FD int fd = open("/dev/null", O_RDONLY);
        AUTO_FD int none = -1;
        AUTO_FREE char *text = strdup("x");
        REQUIRE(fd >= 0 && none == -1 && text);
        raw = fd;
        errno = 77;
    }
    CHECK_EQ(errno, 77); /* guards do not disturb it */
    CHECK_EQ(fcntl(raw, F_GETFD), -1);
}

TEST(arrays_grow)
{
    uint32_t *a = NULL;
    size_t cap = 0, moves = 0;
    struct larder_error err;

    for (uint32_t i = 0; i < 100000; i++) {
        size_t before = cap;
        REQUIRE_OK(GROW(a, cap, i + 1, &err), &err);
        moves += cap != before;
        a[i] = i;
    }
    CHECK(moves < 40);
    for (uint32_t i = 0; i < 100000; i++)
        if (a[i] != i) {
            CHECK_EQ(a[i], i);
            break;
        }
    uint32_t *same = a;
    CHECK_OK(GROW(a, cap, 5, &err), &err);
    CHECK(a == same);
    size_t cap_before = cap;
    CHECK_ERR(GROW(a, cap, SIZE_MAX, &err), LARDER_ENOMEM, &err);
    CHECK_ERR(GROW(a, cap, SIZE_MAX / 4 + 2, &err), LARDER_ENOMEM, &err); /* times 4 it wraps to 4 */
    CHECK(a == same && cap == cap_before);
    free(a);
}

TEST(clocks)
{
    uint64_t before = now_ns();
    struct timespec t = {0, 2000000};
    nanosleep(&t, NULL);
    uint64_t passed = now_ns() - before;
    CHECK(passed >= 2000000 && passed < 5000000000u);
    uint64_t wall = now_wall_s();
    CHECK(wall >= (uint64_t)time(NULL) - 1 && wall <= (uint64_t)time(NULL));
}

TEST(random_bytes_differ)
{
    uint8_t a[1000] = {0}, b[1000] = {0};
    struct larder_error err;
    size_t zeros = 0;

    CHECK_OK(random_bytes(a, sizeof(a), &err), &err);
    CHECK_OK(random_bytes(b, sizeof(b), &err), &err);
    CHECK(memcmp(a, b, sizeof(a)) != 0);
    for (size_t i = 0; i < sizeof(a); i++)
        zeros += a[i] == 0;
    CHECK(zeros < 50);
    CHECK_OK(random_bytes(NULL, 0, &err), &err);
}

TEST(hex_both_ways)
{
    uint8_t data[256], back[256];
    char text[513];

    for (int i = 0; i < 256; i++)
        data[i] = (uint8_t)i;
    hex_encode(data, sizeof(data), text);
    CHECK_EQ(strlen(text), 512);
    for (int i = 0; i < 256; i++) {
        char want[3];
        snprintf(want, sizeof(want), "%02x", i);
        CHECK_MEM(text + 2 * i, want, 2);
    }
    CHECK(hex_decode(text, 512, back, 256));
    CHECK_MEM(back, data, 256);
    CHECK(hex_decode("aBCdEf", 6, back, 3));
    CHECK_MEM(back, "\xab\xcd\xef", 3);
    hex_encode(NULL, 0, text);
    CHECK_STR(text, "");
    CHECK(hex_decode("", 0, back, 0));
}

TEST(hex_refuses)
{
    uint8_t out[4] = {1, 2, 3, 4};

    CHECK(!hex_decode("abc", 3, out, 1));
    CHECK(!hex_decode("abc", 3, out, 2));
    CHECK(!hex_decode("abcd", 4, out, 1));
    CHECK(!hex_decode("abcd", 4, out, 3));
    CHECK(!hex_decode("0g", 2, out, 1));
    CHECK(!hex_decode("0x", 2, out, 1));
    CHECK(!hex_decode(" 1", 2, out, 1));
    CHECK(!hex_decode("-1", 2, out, 1));
    CHECK_MEM(out, "\1\2\3\4", 4);
}

static void path_is(const char *uri, const char *want)
{
    struct larder_error err = {0};
    char *path = NULL;

    CHECK_OK(uri_to_path(uri, &path, &err), &err);
    CHECK_STR(path, want);
    free(path);
}

TEST(paths_of_uris)
{
    path_is("/data/set", "/data/set");
    path_is("/data/set///", "/data/set");
    path_is("/", "/");
    path_is("///", "/");
    path_is("file:///data/set", "/data/set");
    path_is("FILE:///data/set/", "/data/set");
    path_is("file:///", "/");
    path_is("file:///a%20b%2Fc", "/a b/c");
    path_is("/a%20b", "/a%20b"); /* a path is not a URI */
    path_is("/odd://name", "/odd://name");
}

TEST(relative_paths_become_absolute)
{
    char *cwd = getcwd(NULL, 0), want[PATH_MAX + 64];
    const char *dir = tmp_dir();

    REQUIRE(cwd && chdir(dir) == 0);
    char *here = getcwd(NULL, 0); /* /tmp may be a link */
    snprintf(want, sizeof(want), "%s/set", here);
    path_is("set", want);
    path_is("./set/", want);
    path_is(".//./set", want);
    snprintf(want, sizeof(want), "%s/../set", here);
    path_is("../set", want);
    snprintf(want, sizeof(want), "%s/a:b", here);
    path_is("a:b", want);
    snprintf(want, sizeof(want), "%s/1s3://b", here);
    path_is("1s3://b", want); /* a scheme begins with a letter */
    path_is(".", here);
    path_is("./", here);
    CHECK_EQ(chdir("/"), 0);
    path_is("set", "/set");
    path_is(".", "/");
    CHECK_EQ(chdir(cwd), 0);
    free(cwd);
    free(here);
}

TEST(other_schemes_are_refused)
{
    static const char *const bad[] = {"s3://bucket/x", "http://h/x", "https://h/x", "gs://b", "file://host/x", "file://x",
                                      "file:///a%2", "file:///a%zz", "file:///a%00b", "", "x+y-z.1://q"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct larder_error err = {0};
        char *path = NULL;
        CHECK_ERR(uri_to_path(bad[i], &path, &err), LARDER_EINVAL, &err);
        CHECK(path == NULL);
        CHECK(err.message[0]);
    }
    struct larder_error err = {0};
    char *path = NULL;
    CHECK_ERR(uri_to_path(NULL, &path, &err), LARDER_EINVAL, &err);
    uri_to_path("s3://bucket/x", &path, &err);
    CHECK_STR(err.message, "s3://bucket/x: scheme s3:// is not supported, only /path and file:///path are");
}

TEST(arrays_of_strings)
{
    char *const in[] = {"one", "", "three"};
    char **out = NULL;
    struct larder_error err;

    CHECK_OK(strings_copy(in, 3, &out, &err), &err);
    CHECK(out[0] != in[0]);
    for (int i = 0; i < 3; i++)
        CHECK_STR(out[i], in[i]);
    strings_free(out, 3);
    CHECK_OK(strings_copy(NULL, 0, &out, &err), &err);
    CHECK(out != NULL);
    strings_free(out, 0);
    strings_free(NULL, 7);
}

TEST(order_of_bytes)
{
    CHECK(bytes_cmp("ab", 2, "ab", 2) == 0);
    CHECK(bytes_cmp("ab", 2, "abc", 3) < 0 && bytes_cmp("abc", 3, "ab", 2) > 0);
    CHECK(bytes_cmp("\x7f", 1, "\x80", 1) < 0);
    CHECK(bytes_cmp("b", 1, "abc", 3) > 0);
}

TEST(unnamed_files_leave_no_name)
{
    const char *dir = tmp_dir();
    struct larder_error err;
    char back[4] = "";
    int fd = unnamed_file(dir, &err);

    REQUIRE(fd >= 0);
    CHECK_EQ(pwrite(fd, "abc", 3, 5), 3);
    CHECK_EQ(pread(fd, back, 3, 5), 3);
    CHECK_STR(back, "abc");
    CHECK(rmdir(dir) == 0 && mkdir(dir, 0700) == 0); /* it was empty */
    close(fd);
    CHECK_ERR(unnamed_file("/nonexistent/folder", &err), LARDER_EIO, &err);
}

TEST(whole_reads_and_writes)
{
    struct larder_error err;
    char back[16] = "";
    AUTO_FD int fd = unnamed_file(tmp_dir(), &err);
    AUTO_FD int none = open("/dev/full", O_RDWR);

    CHECK_EQ(write_fully(fd, "0123456789", 10, 3), 0);
    CHECK_EQ(read_fully(fd, back, 5, 3), 5);
    CHECK_STR(back, "01234");
    CHECK_EQ(read_fully(fd, back, 16, 10), 3); /* the end of the file */
    CHECK_EQ(memcmp(back, "789", 3), 0);
    CHECK_EQ(read_fully(fd, back, 1, 100), 0);
    CHECK_EQ(write_fully(none, "x", 1, 0), -1);
    CHECK_EQ(errno, ENOSPC);
    CHECK_EQ(read_fully(-1, back, 1, 0), -1);
    CHECK_EQ(errno, EBADF);
}

TEST_MAIN();
