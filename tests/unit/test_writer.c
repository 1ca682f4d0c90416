/* SPDX-License-Identifier: Apache-2.0 */
/* larder_writer_*: what was added is what is read; refusals leave the writer usable; nothing stays of what was not committed. */
#include "tests/unit/ingest_tests.h"

static const struct larder_field fields[] = {{"text", LARDER_UTF8, NULL, 0, NULL}, {"n", LARDER_I64, NULL, 0, NULL},
                                             {"image", LARDER_IMAGE, NULL, 0, NULL}};

static size_t value_text(uint64_t i, char out[4096])
{
    size_t len = 0;

    while (len < 200 + i % 900)
        len += (size_t)sprintf(out + len, "{\"id\": %llu, \"name\": \"sample\", \"part\": %zu}", (unsigned long long)i, len);
    return len;
}

static int add(struct larder_writer *w, uint64_t i, struct larder_error *err)
{
    char key[32], text[4096];
    uint8_t image[64];
    int64_t n = (int64_t)i * 3;
    struct larder_value v[3] = {{text, value_text(i, text)}, {&n, 8}, {NULL, 0}};

    if (i % 5 == 0) {
        fill(i, image, sizeof(image));
        v[2] = (struct larder_value){image, sizeof(image)};
    }
    return larder_writer_add(w, key, (size_t)sprintf(key, "key/%llu", (unsigned long long)i), v, err);
}

static void check(const char *dest, uint64_t n)
{
    struct larder_dataset *ds = open_ds(dest);

    for (uint64_t i = 0; i < n; i++) {
        char key[32], text[4096];
        sprintf(key, "key/%llu", (unsigned long long)i);
        struct larder_sample s = get_sample(ds, key);
        CHECK_EQ(s.ordinal, i); /* in order of addition */
        check_value(&s, 0, text, value_text(i, text));
        CHECK_EQ(value_i64(&s, 1), (int64_t)i * 3);
        CHECK_EQ(s.fields[2].data != NULL, i % 5 == 0);
        larder_samples_release(&s, 1);
    }
    larder_dataset_close(ds);
    verify_ds(dest);
}

static struct larder_writer *open_writer(const char *dest, struct larder_writer_options o)
{
    struct larder_writer *w = NULL;
    struct larder_error err;

    REQUIRE_OK(larder_writer_open(dest, fields, 3, &o, &w, &err), &err);
    return w;
}

TEST(round_trip)
{
    const char *out = tmp_dir();
    struct larder_error err;

    for (int c = LARDER_COMPRESS_NONE; c <= LARDER_COMPRESS_ZSTD_DICT; c++)
        for (uint64_t n = 3; n <= 8000; n = n * 50 + 50) { /* the dictionary: too little to train on, and enough */
            struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
            uint64_t generation = 0;
            char name[32];
            snprintf(name, sizeof(name), "%d-%d", c, (int)n);
            char *dest = path_of(out, name);
            if (n > 1000 && c != LARDER_COMPRESS_ZSTD_DICT) {
                free(dest);
                continue;
            }
            o.compression = c;
            o.shard_size = 100000;
            struct larder_writer *w = open_writer(dest, o);
            for (uint64_t i = 0; i < n; i++)
                REQUIRE_OK(add(w, i, &err), &err);
            REQUIRE_OK(larder_writer_commit(w, &generation, &err), &err);
            CHECK_EQ(generation, 1);
            CHECK_EQ(count_files(dest, "journal"), 0);
            check(dest, n);
            free(dest);
        }
}

TEST(bad_samples_leave_it_usable)
{
    const char *out = tmp_dir();

    for (int c = LARDER_COMPRESS_NONE; c <= LARDER_COMPRESS_ZSTD_DICT; c += 2) {
        struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
        struct larder_error err;
        char long_key[LARDER_KEY_MAX + 1], text[] = "t";
        uint32_t narrow = 1;
        struct larder_value bad[3] = {{text, 1}, {&narrow, 4}, {NULL, 0}}, good[3] = {{text, 1}, {NULL, 0}, {NULL, 0}};
        char *dest = path_of(out, c ? "dict" : "none");
        o.compression = c;
        struct larder_writer *w = open_writer(dest, o);
        memset(long_key, 'k', sizeof(long_key));
        REQUIRE_OK(add(w, 0, &err), &err);
        CHECK_ERR(larder_writer_add(w, "x", 1, bad, &err), LARDER_EINVAL, &err);
        CHECK_ERR(larder_writer_add(w, "", 0, good, &err), LARDER_EINVAL, &err);
        CHECK_ERR(larder_writer_add(w, long_key, sizeof(long_key), good, &err), LARDER_EINVAL, &err);
        REQUIRE_OK(add(w, 1, &err), &err);
        REQUIRE_OK(larder_writer_commit(w, NULL, &err), &err);
        check(dest, 2);
        free(dest);
    }
}

TEST(nothing_stays)
{
    const char *out = tmp_dir();
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    struct larder_error err;
    struct stat st;
    char *dest = path_of(out, "d");

    o.shard_size = 10000;
    struct larder_writer *w = open_writer(dest, o);
    for (uint64_t i = 0; i < 100; i++)
        REQUIRE_OK(add(w, i, &err), &err);
    larder_writer_close(w);
    CHECK(stat(dest, &st) != 0 || count_files(dest, ".") == 0);
    w = open_writer(dest, o);
    CHECK_ERR(larder_writer_commit(w, NULL, &err), LARDER_EINVAL, &err); /* empty */
    w = open_writer(dest, o);
    for (uint64_t i = 0; i < 100; i++)
        REQUIRE_OK(add(w, i % 99, &err), &err);
    CHECK_ERR(larder_writer_commit(w, NULL, &err), LARDER_EEXIST, &err);
    CHECK(strstr(err.message, "key/0") != NULL);
    CHECK(stat(dest, &st) != 0 || count_files(dest, ".") == 0);
    free(dest);
}

TEST(append_and_refusals)
{
    const char *out = tmp_dir();
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    struct larder_error err;
    static const char *const names[] = {"cat", "dog", "bee"}, *const other[] = {"dog", "cat"};
    char *dest = path_of(out, "d");
    struct larder_writer *w, *second;
    uint64_t generation;

    o.append = 1;
    CHECK_ERR(larder_writer_open(dest, fields, 3, &o, &w, &err), LARDER_ENOTFOUND, &err);
    o.append = 0;
    o.classes = names;
    o.n_classes = 2;
    w = open_writer(dest, o);
    CHECK_ERR(larder_writer_open(dest, fields, 3, &o, &second, &err), LARDER_EBUSY, &err);
    REQUIRE_OK(add(w, 0, &err), &err);
    REQUIRE_OK(larder_writer_commit(w, NULL, &err), &err);
    CHECK_ERR(larder_writer_open(dest, fields, 3, &o, &w, &err), LARDER_EEXIST, &err);
    o.append = 1;
    CHECK_ERR(larder_writer_open(dest, fields, 2, &o, &w, &err), LARDER_EINVAL, &err);
    o.classes = other;
    CHECK_ERR(larder_writer_open(dest, NULL, 0, &o, &w, &err), LARDER_EINVAL, &err);
    o.classes = names;
    o.n_classes = 3;
    REQUIRE_OK(larder_writer_open(dest, NULL, 0, &o, &w, &err), &err);
    REQUIRE_OK(add(w, 1, &err), &err);
    REQUIRE_OK(larder_writer_commit(w, &generation, &err), &err);
    CHECK_EQ(generation, 2);
    check(dest, 2);
    struct larder_dataset *ds = open_ds(dest);
    uint64_t n;
    CHECK_STR(larder_dataset_class(ds, 2, &n), "bee");
    CHECK_EQ(n, 3);
    larder_dataset_close(ds);
    o.classes = NULL; /* an abandoned append leaves the dataset as it was */
    o.n_classes = 0;
    REQUIRE_OK(larder_writer_open(dest, NULL, 0, &o, &w, &err), &err);
    for (uint64_t i = 2; i < 50; i++)
        REQUIRE_OK(add(w, i, &err), &err);
    larder_writer_close(w);
    check(dest, 2);
    CHECK_EQ(count_files(dest, "shards"), 2);
    REQUIRE_OK(larder_writer_open(dest, NULL, 0, &o, &w, &err), &err);
    REQUIRE_OK(add(w, 1, &err), &err); /* there already */
    CHECK_ERR(larder_writer_commit(w, NULL, &err), LARDER_EEXIST, &err);
    check(dest, 2);
    CHECK_EQ(count_files(dest, "shards"), 2);
    free(dest);
}

TEST(what_a_dead_writer_left)
{
#ifdef __SANITIZE_THREAD__
    TEST_SKIP("the sanitizer does not follow threads of a forked child");
#endif
    const char *out = tmp_dir();
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    struct larder_error err;
    char *dest = path_of(out, "d");
    int status;

    o.shard_size = 4096;
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        struct larder_writer *w;
        if (larder_writer_open(dest, fields, 3, &o, &w, &err))
            _exit(1);
        for (uint64_t i = 0; i < 200; i++)
            if (add(w, i, &err))
                _exit(2);
        _exit(0); /* without commit or close: as if killed */
    }
    REQUIRE(waitpid(pid, &status, 0) == pid);
    REQUIRE_EQ(status, 0);
    CHECK(count_files(dest, "shards") > 0 && count_files(dest, "journal") == 1);
    struct larder_writer *w = open_writer(dest, o);
    CHECK_EQ(count_files(dest, "shards"), 0);
    REQUIRE_OK(add(w, 0, &err), &err);
    REQUIRE_OK(larder_writer_commit(w, NULL, &err), &err);
    check(dest, 1);
    free(dest);
}

TEST(an_unfinished_ingest_is_left_alone)
{
    const char *src = tmp_dir(), *out = tmp_dir();
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    struct heard h;
    struct larder_ingest_options io = heard_options(&h);
    struct larder_writer *w;
    struct larder_error err;
    char *dest = path_of(out, "d");

    write_text(src, "a.txt", "a");
    h.stop_in = "index";
    REQUIRE_ERR(ingest_one(src, dest, &io, NULL, &err), LARDER_ECANCELED, &err);
    CHECK_ERR(larder_writer_open(dest, fields, 3, &o, &w, &err), LARDER_EBUSY, &err);
    CHECK(strstr(err.message, "unfinished ingest") != NULL);
    h.stop_in = NULL;
    REQUIRE_OK(ingest_one(src, dest, &io, NULL, &err), &err);
    heard_release(&h);
    free(dest);
}

TEST_MAIN();
