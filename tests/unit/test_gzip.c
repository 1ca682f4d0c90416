/* SPDX-License-Identifier: Apache-2.0 */
/* gzip files, written by zlib here: members in turn, what follows the last, and every byte's damage. */
#include <zlib.h>

#include "tests/unit/ingest_tests.h"

/* Reads it all; -1 and *sys_errno as gzip_read. */
static ssize_t read_all(int fd, uint8_t *out, size_t cap, int *sys_errno)
{
    struct larder_error err;
    struct gzip *g;
    const char *why = NULL;
    ssize_t n;
    size_t at = 0;

    REQUIRE_OK(gzip_open(fd, &g, &err), &err);
    while ((n = gzip_read(g, out + at, MIN(cap - at, (size_t)1000), sys_errno, &why)) > 0)
        at += (size_t)n;
    CHECK(n == 0 || (why && *why));
    gzip_close(g);
    REQUIRE(lseek(fd, 0, SEEK_SET) == 0); /* the descriptor is still there */
    return n < 0 ? -1 : (ssize_t)at;
}

TEST(members_and_damage)
{
    const char *dir = tmp_dir();
    AUTO_FREE char *path = path_of(dir, "x.gz");
    uint8_t in[5000], out[8192];
    struct stat st;
    int sys_errno;

    fill(1, in, sizeof(in));
    for (int member = 0; member < 2; member++) {
        gzFile f = gzopen(path, member ? "ab" : "wb");
        REQUIRE(gzwrite(f, in + member * 3000, member ? 2000 : 3000) > 0);
        gzclose(f);
    }
    int fd = open(path, O_RDWR);
    REQUIRE(fd >= 0 && gzip_like(fd) && fstat(fd, &st) == 0);
    CHECK_EQ(read_all(fd, out, sizeof(out), &sys_errno), 5000);
    CHECK_MEM(out, in, 5000);
    for (off_t at = 0; at < st.st_size; at += 61) {
        uint8_t byte;
        REQUIRE(pread(fd, &byte, 1, at) == 1);
        byte ^= 0x80;
        REQUIRE(pwrite(fd, &byte, 1, at) == 1);
        ssize_t n = gzip_like(fd) ? read_all(fd, out, sizeof(out), &sys_errno) : -1;
        CHECK(n == -1 || (n == 5000 && !memcmp(out, in, 5000)));
        byte ^= 0x80;
        REQUIRE(pwrite(fd, &byte, 1, at) == 1);
    }
    REQUIRE(pwrite(fd, "zeros or words", 14, st.st_size) == 14);
    CHECK_EQ(read_all(fd, out, sizeof(out), &sys_errno), 5000);
    for (off_t cut = 1; cut < 12; cut++) {
        REQUIRE(ftruncate(fd, st.st_size - cut) == 0);
        CHECK_EQ(read_all(fd, out, sizeof(out), &sys_errno), -1);
        CHECK_EQ(sys_errno, 0);
    }
    REQUIRE(ftruncate(fd, 1) == 0);
    CHECK(!gzip_like(fd));
    close(fd);
}

TEST_MAIN();
