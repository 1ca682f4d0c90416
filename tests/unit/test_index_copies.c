/* SPDX-License-Identifier: Apache-2.0 */
/* test_index_copies.c - the key index of a bucket: what a lookup fetches, how much it keeps, who shares it, what a killed reader leaves. */
#include "tests/unit/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/store_int.h"
#include "tests/model/sim_s3.h"

enum { KEYS = 900000, STEP = 2 }; /* of 32 bytes: several SSTs */

struct keys { uint64_t at, n, lo; char buf[40]; };

static size_t make_key(uint64_t i, char buf[40]) { return (size_t)snprintf(buf, 40, "some/folder/sample-%012llu", (unsigned long long)i); }

static int keys_next(void *user, const void **key, size_t *len, uint64_t *ordinal, struct larder_error *err)
{
    struct keys *k = user;
    (void)err;
    if (k->at == k->n)
        return LARDER_END;
    *ordinal = k->lo + k->at;
    *len = make_key(STEP * (k->lo + k->at++), k->buf);
    *key = k->buf;
    return LARDER_OK;
}

/* A bucket with one index part, built once. */
static struct { struct sim_bucket *b; struct index_part part; } made;

static void upload(const char *root, const struct index_part *p)
{
    for (size_t i = 0; i < p->n_files; i++) {
        char path[400], name[200];
        snprintf(path, sizeof(path), "%s/index/%s/%s", root, p->dir, p->files[i].name);
        snprintf(name, sizeof(name), "index/%s/%s", p->dir, p->files[i].name);
        AUTO_FREE uint8_t *data = malloc(p->files[i].size);
        AUTO_FD int fd = open(path, O_RDONLY);
        REQUIRE_EQ(read_fully(fd, data, p->files[i].size, 0), p->files[i].size);
        sim_store(made.b, name, data, p->files[i].size);
    }
}

static struct sim_io *bucket(const char *work, uint64_t limit)
{
    if (!made.b) {
        struct keys k = {.n = KEYS};
        struct larder_error err = {0};
        const char *root = tmp_dir();
        made.b = sim_bucket_new();
        REQUIRE_OK(index_build(root, "1-aa", keys_next, &k, &made.part, &err), &err);
        made.part.hi = KEYS;
        upload(root, &made.part);
    }
    struct sim_io *s = sim_open(made.b, 7, work);
    s->io.work_bytes = limit;
    return s;
}

static size_t ssts(void) { return made.part.n_files - 2; }

static uint64_t find(struct index *ix, uint64_t number)
{
    char key[40];
    const void *k = key;
    size_t len = make_key(number, key);
    uint64_t ordinal = 12345;
    struct larder_error err = {0};
    CHECK_OK(index_lookup(ix, &k, &len, 1, &ordinal, &err), &err);
    return ordinal;
}

static uint64_t copies_bytes(const char *work, unsigned *n)
{
    char dir[300];
    uint64_t sum = 0;
    snprintf(dir, sizeof(dir), "%s/copies", work);
    DIR *d = opendir(dir);
    struct dirent *e;
    *n = 0;
    while (d && (e = readdir(d))) {
        struct stat st;
        if (fstatat(dirfd(d), e->d_name, &st, 0) == 0 && S_ISREG(st.st_mode) && strcmp(e->d_name, "lock")) {
            sum += (uint64_t)st.st_size;
            ++*n;
        }
    }
    if (d)
        closedir(d);
    return sum;
}

static unsigned users(const char *work)
{
    char dir[300];
    unsigned n = 0;
    snprintf(dir, sizeof(dir), "%s/copies", work);
    DIR *d = opendir(dir);
    struct dirent *e;
    while (d && (e = readdir(d)))
        n += !strncmp(e->d_name, "use-", 4);
    if (d)
        closedir(d);
    return n;
}

TEST(a_lookup_fetches_the_sst_that_covers_it)
{
    const char *work = tmp_dir();
    struct sim_io *s = bucket(work, 0);
    struct larder_error err = {0};
    struct index *ix;
    unsigned n;
    REQUIRE(ssts() >= 3);
    REQUIRE_OK(index_open(&s->io, &made.part, 1, MIB, &ix, &err), &err);
    CHECK_EQ(s->trips, 0);
    CHECK_EQ(find(ix, STEP * 5), 5);
    uint64_t one = s->bytes_read;
    CHECK_EQ(one, made.part.files[2].size);
    CHECK_EQ(find(ix, STEP * 6), 6);
    CHECK_EQ(find(ix, STEP * 6 + 1), LARDER_NO_ORDINAL); /* within the range: no further fetch */
    CHECK_EQ(find(ix, STEP * (uint64_t)KEYS + 99), LARDER_NO_ORDINAL); /* behind all ranges */
    CHECK_EQ(s->bytes_read, one);
    CHECK_EQ(find(ix, STEP * (KEYS - 1)), KEYS - 1);
    CHECK(s->bytes_read > one && s->bytes_read < one + 9 * MIB);
    CHECK_EQ(copies_bytes(work, &n), s->bytes_read);
    CHECK_EQ(n, 2);
    CHECK_EQ(users(work), 1);
    index_close(ix);
    CHECK_EQ(users(work), 0);
    uint64_t before = s->trips; /* another process finds them here */
    REQUIRE_OK(index_open(&s->io, &made.part, 1, MIB, &ix, &err), &err);
    CHECK_EQ(find(ix, STEP * 7), 7);
    CHECK_EQ(s->trips, before);
    index_close(ix);
    io_close(&s->io);
}

TEST(every_key_within_the_limit)
{
    const char *work = tmp_dir();
    struct sim_io *s = bucket(work, 20 * MIB); /* two SSTs */
    struct larder_error err = {0};
    struct index *ix;
    uint64_t rng = 3, most = 0;
    unsigned n;
    s->faults = (struct sim_faults){.flip = 300, .cut = 100};
    REQUIRE_OK(index_open(&s->io, &made.part, 1, MIB, &ix, &err), &err);
    for (int i = 0; i < 25; i++) {
        uint64_t number = rng_below(&rng, STEP * (uint64_t)KEYS);
        CHECK_EQ(find(ix, number), number % STEP ? LARDER_NO_ORDINAL : number / STEP);
        most = MAX(most, copies_bytes(work, &n));
    }
    CHECK(most <= 20 * MIB);
    CHECK(s->flips > 0);
    index_close(ix);
    s->io.work_bytes = 1; /* less than one: one at a time all the same */
    REQUIRE_OK(index_open(&s->io, &made.part, 1, MIB, &ix, &err), &err);
    CHECK_EQ(copies_bytes(work, &n), 0); /* what is over the limit goes at once */
    CHECK_EQ(find(ix, 0), 0);
    CHECK_EQ(find(ix, STEP * (KEYS - 1)), KEYS - 1);
    CHECK_EQ(find(ix, STEP), 1);
    index_close(ix);
    io_close(&s->io);
}

TEST(a_cursor_goes_through_all)
{
    const char *work = tmp_dir();
    struct sim_io *s = bucket(work, 10 * MIB);
    struct larder_error err = {0};
    struct index_cursor *c;
    const void *key;
    size_t len;
    uint64_t ordinal, n = 0;
    int rc;
    unsigned copies;
    REQUIRE_OK(index_cursor_open(&s->io, &made.part, &c, &err), &err);
    while ((rc = index_cursor_next(c, &key, &len, &ordinal, &err)) == LARDER_OK) {
        char want[40];
        if (ordinal != n || len != make_key(STEP * n, want) || memcmp(key, want, len))
            break;
        n++;
    }
    CHECK_EQ(rc, LARDER_END);
    CHECK_EQ(n, KEYS);
    CHECK(copies_bytes(work, &copies) <= 20 * MIB);
    index_cursor_close(c);
    CHECK_EQ(users(work), 0);
    io_close(&s->io);
}

TEST(damage_in_the_bucket_and_on_the_disk)
{
    const char *work = tmp_dir();
    struct sim_io *s = bucket(work, 0);
    struct larder_error err = {0};
    struct index *ix;
    char name[200], copy[400], key[40];
    const void *k = key;
    uint64_t ordinal;
    snprintf(name, sizeof(name), "index/%s/%s", made.part.dir, made.part.files[2].name);
    snprintf(copy, sizeof(copy), "%s/copies/%s.%s", work, made.part.dir, made.part.files[2].name);
    struct sim_object *o = sim_find(made.b, name);
    o->data[1000] ^= 4;
    CHECK_EQ(index_file_check(&s->io, &made.part, &made.part.files[2], &err), LARDER_ECORRUPT);
    REQUIRE_OK(index_open(&s->io, &made.part, 1, MIB, &ix, &err), &err);
    size_t len = make_key(0, key);
    CHECK_EQ(index_lookup(ix, &k, &len, 1, &ordinal, &err), LARDER_ECORRUPT);
    CHECK(access(copy, F_OK) != 0);
    o->data[1000] ^= 4;
    CHECK_EQ(find(ix, 0), 0); /* the next lookup asks again */
    CHECK_OK(index_file_check(&s->io, &made.part, &made.part.files[2], &err), &err);
    index_close(ix);
    int fd = open(copy, O_WRONLY); /* as a power cut leaves it */
    CHECK_EQ(ftruncate(fd, 5000), 0);
    close(fd);
    REQUIRE_OK(index_open(&s->io, &made.part, 1, MIB, &ix, &err), &err);
    CHECK_EQ(find(ix, STEP), 1);
    index_close(ix);
    sim_drop(made.b, name);
    CHECK_EQ(unlink(copy), 0);
    REQUIRE_OK(index_open(&s->io, &made.part, 1, MIB, &ix, &err), &err);
    CHECK_EQ(index_lookup(ix, &k, &len, 1, &ordinal, &err), LARDER_ECORRUPT);
    CHECK(strstr(err.message, "missing") != NULL);
    index_close(ix);
    io_close(&s->io);
    sim_bucket_free(made.b);
    index_part_release(&made.part);
    made.b = NULL;
}

TEST(a_killed_reader_leaves_nothing)
{
    const char *work = tmp_dir();
    struct sim_io *s = bucket(work, 0);
    struct larder_error err = {0};
    struct index *ix;
    int ready[2];
#ifdef __SANITIZE_THREAD__
    TEST_SKIP("a forked child starts threads, which TSan does not do");
#endif
    REQUIRE_EQ(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        char byte = 0;
        uint64_t rc = index_open(&s->io, &made.part, 1, MIB, &ix, &err) == 0 ? find(ix, 0) : 1;
        if (write(ready[1], &byte, 1) != 1 || rc)
            _exit(1);
        pause();
        _exit(1);
    }
    char byte;
    close(ready[1]);
    REQUIRE_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    CHECK_EQ(users(work), 1);
    REQUIRE_OK(index_open(&s->io, &made.part, 1, MIB, &ix, &err), &err);
    CHECK_EQ(users(work), 2); /* it lives */
    index_close(ix);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CHECK_EQ(users(work), 1);
    char temp[400]; /* and was fetching */
    snprintf(temp, sizeof(temp), "%s/copies/.tmp-0123456789abcdef", work);
    close(open(temp, O_WRONLY | O_CREAT, 0666));
    REQUIRE_OK(index_open(&s->io, &made.part, 1, MIB, &ix, &err), &err);
    CHECK_EQ(users(work), 1);
    CHECK(access(temp, F_OK) != 0);
    CHECK_EQ(find(ix, STEP * 9), 9);
    CHECK_EQ(s->trips, 0);
    index_close(ix);
    io_close(&s->io);
}

struct looker { struct index *ix; uint64_t seed, wrong; };

static void *looking(void *arg)
{
    struct looker *l = arg;
    for (int i = 0; i < 15; i++) {
        uint64_t number = rng_below(&l->seed, STEP * (uint64_t)KEYS);
        l->wrong += find(l->ix, number) != (number % STEP ? LARDER_NO_ORDINAL : number / STEP);
    }
    return NULL;
}

TEST(threads_that_need_more_than_fits)
{
    const char *work = tmp_dir();
    struct sim_io *s = bucket(work, 10 * MIB);
    struct larder_error err = {0};
    struct looker l[3];
    pthread_t t[3];
    struct index *ix;
    REQUIRE_OK(index_open(&s->io, &made.part, 1, MIB, &ix, &err), &err);
    for (int i = 0; i < 3; i++) {
        l[i] = (struct looker){ix, (uint64_t)i + 1, 0};
        REQUIRE_EQ(pthread_create(&t[i], NULL, looking, &l[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(t[i], NULL);
        CHECK_EQ(l[i].wrong, 0);
    }
    index_close(ix);
    io_close(&s->io);
    sim_bucket_free(made.b);
    index_part_release(&made.part);
    made.b = NULL;
}

TEST_MAIN();
