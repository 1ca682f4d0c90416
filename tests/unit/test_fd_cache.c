/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>

#include "store/base/base_int.h"
#include "tests/unit/test.h"

struct fixture { const char *dir; int root; struct fd_cache *c; };

static struct fixture setup(unsigned max, int files)
{
    struct fixture f = {.dir = tmp_dir()};
    struct larder_error err;

    f.root = open(f.dir, O_RDONLY | O_DIRECTORY);
    REQUIRE(f.root >= 0);
    for (int i = 0; i < files; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%d", i);
        int fd = openat(f.root, name, O_WRONLY | O_CREAT, 0666);
        REQUIRE(fd >= 0 && write(fd, name, 1) == 1);
        close(fd);
    }
    REQUIRE_OK(fd_cache_new(f.root, f.dir, max, &f.c, &err), &err);
    return f;
}

static void teardown(struct fixture *f)
{
    fd_cache_free(f->c);
    close(f->root);
}

static struct fd_entry *get(struct fixture *f, const char *name)
{
    struct larder_error err;
    struct fd_entry *e = NULL;

    REQUIRE_OK(fd_cache_get(f->c, name, &e, &err), &err);
    char byte = 0;
    CHECK_EQ(pread(e->fd, &byte, 1, 0), 1);
    CHECK_EQ(byte, name[0]);
    return e;
}

TEST(hit_gives_the_same_descriptor)
{
    struct fixture f = setup(2, 3);
    struct fd_entry *a = get(&f, "0"), *b = get(&f, "0");

    CHECK(a == b);
    fd_cache_put(f.c, a);
    fd_cache_put(f.c, b);
    CHECK(get(&f, "0") == a);
    fd_cache_put(f.c, a);
    CHECK_EQ(fd_cache_open_count(f.c), 1);
    teardown(&f);
}

TEST(least_recently_used_goes_first)
{
    struct fixture f = setup(2, 3);
    struct fd_entry *zero = get(&f, "0");
    int fd = zero->fd;

    fd_cache_put(f.c, zero);
    fd_cache_put(f.c, get(&f, "1"));
    fd_cache_put(f.c, get(&f, "0"));
    fd_cache_put(f.c, get(&f, "2")); /* "1" had to go */
    CHECK_EQ(fd_cache_open_count(f.c), 2);
    CHECK_EQ(unlinkat(f.root, "0", 0), 0);
    CHECK_EQ(unlinkat(f.root, "1", 0), 0);
    zero = get(&f, "0"); /* open still */
    CHECK_EQ(zero->fd, fd);
    fd_cache_put(f.c, zero);
    struct fd_entry *e = NULL;
    struct larder_error err;
    CHECK_ERR(fd_cache_get(f.c, "1", &e, &err), LARDER_ENOTFOUND, &err);
    CHECK(e == NULL);
    teardown(&f);
}

TEST(what_is_in_use_stays_open)
{
    struct fixture f = setup(2, 6);
    struct fd_entry *e[6];
    char name[2] = "0";

    for (int i = 0; i < 6; i++, name[0]++)
        e[i] = get(&f, name);
    CHECK_EQ(fd_cache_open_count(f.c), 6); /* more than max, but they are wanted */
    CHECK_EQ(fd_cache_shrink(f.c), 0);
    for (int i = 0; i < 6; i++) {
        char byte;
        CHECK_EQ(pread(e[i]->fd, &byte, 1, 0), 1);
        CHECK_EQ(byte, '0' + i);
        fd_cache_put(f.c, e[i]);
    }
    CHECK_EQ(fd_cache_open_count(f.c), 2);
    CHECK_EQ(fd_cache_shrink(f.c), 2);
    CHECK_EQ(fd_cache_open_count(f.c), 0);
    teardown(&f);
}

TEST(forgotten_is_closed_by_its_last_user)
{
    struct fixture f = setup(4, 2);
    struct fd_entry *old = get(&f, "0");
    char byte;

    CHECK_EQ(renameat(f.root, "1", f.root, "0"), 0);
    fd_cache_forget(f.c, "0");
    fd_cache_forget(f.c, "never seen");
    CHECK_EQ(pread(old->fd, &byte, 1, 0), 1);
    CHECK_EQ(byte, '0');
    struct fd_entry *fresh = NULL;
    struct larder_error err;
    REQUIRE_OK(fd_cache_get(f.c, "0", &fresh, &err), &err);
    CHECK_EQ(pread(fresh->fd, &byte, 1, 0), 1);
    CHECK_EQ(byte, '1');
    CHECK_EQ(fd_cache_open_count(f.c), 2);
    fd_cache_put(f.c, old);
    CHECK_EQ(fd_cache_open_count(f.c), 1);
    fd_cache_put(f.c, fresh);
    fd_cache_forget(f.c, "0"); /* idle: at once */
    CHECK_EQ(fd_cache_open_count(f.c), 0);
    teardown(&f);
}

TEST(another_file_under_the_name_is_noticed)
{
    struct fixture f = setup(4, 1);
    struct stat st;

    fd_cache_put(f.c, get(&f, "0"));
    REQUIRE(fstatat(f.root, "0", &st, 0) == 0);
    fd_cache_forget_other(f.c, "0", st.st_dev, st.st_ino);
    CHECK_EQ(fd_cache_open_count(f.c), 1);
    fd_cache_forget_other(f.c, "0", st.st_dev, st.st_ino + 1);
    CHECK_EQ(fd_cache_open_count(f.c), 0);
    fd_cache_forget_other(f.c, "0", 0, 0);
    teardown(&f);
}

TEST(random_walk_keeps_the_bound)
{
    struct fixture f = setup(5, 10);
    uint64_t state = 8;
    struct fd_entry *held[4] = {0};
    char names[4][2];

    for (int i = 0; i < 20000; i++) {
        size_t k = rng_below(&state, 4);
        if (held[k]) {
            fd_cache_put(f.c, held[k]);
            held[k] = NULL;
        } else {
            snprintf(names[k], 2, "%d", (int)rng_below(&state, 10));
            held[k] = get(&f, names[k]);
        }
        if (rng_below(&state, 50) == 0)
            fd_cache_forget(f.c, names[k]);
        CHECK(fd_cache_open_count(f.c) <= 5 + 4);
    }
    for (size_t k = 0; k < 4; k++)
        if (held[k])
            fd_cache_put(f.c, held[k]);
    CHECK(fd_cache_open_count(f.c) <= 5);
    teardown(&f);
}

TEST_MAIN();
