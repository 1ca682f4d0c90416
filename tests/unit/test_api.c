/* SPDX-License-Identifier: Apache-2.0 */
#include "loader/loader_int.h"
#include "tests/unit/dataset.h"

#include <sys/wait.h>

static const struct dataset_spec spec = {2000, 500, 50, 300, 10, LARDER_COMPRESS_NONE};

static struct larder_dataset *open_ds(const char *uri)
{
    struct larder_dataset *ds = NULL;
    struct larder_error err;

    REQUIRE_OK(larder_dataset_open(uri, NULL, &ds, &err), &err);
    return ds;
}

/* A dataset with an index: keys k0, k1, ... with one bytes field each. */
static void write_keys(const char *dir, int append, int first, int n)
{
    struct larder_field field = {.name = "data", .type = LARDER_BYTES};
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    struct larder_writer *w = NULL;
    struct larder_error err;
    uint64_t generation = 0;
    char text[32];

    o.append = append;
    REQUIRE_OK(larder_writer_open(dir, &field, 1, &o, &w, &err), &err);
    for (int i = first; i < first + n; i++) {
        size_t len = (size_t)snprintf(text, sizeof(text), "k%d", i);
        struct larder_value v = {text, len};

        REQUIRE_OK(larder_writer_add(w, text, len, &v, &err), &err);
    }
    REQUIRE_OK(larder_writer_commit(w, &generation, &err), &err);
    CHECK_EQ(generation, append ? 2 : 1);
}

TEST(info_fields_and_classes)
{
    struct larder_dataset *ds = open_ds(dataset_make(&spec));
    struct larder_dataset_info i = {.struct_size = sizeof(i)};
    struct larder_field f;
    struct larder_error err;
    uint64_t count = 9, raw = 0;

    REQUIRE_OK(larder_dataset_info(ds, &i, &err), &err);
    CHECK_EQ(i.samples, spec.n);
    CHECK_EQ(i.generation, 1);
    CHECK_EQ(i.shards, 4);
    CHECK_EQ(i.fields, F_COUNT);
    CHECK_EQ(i.uuid[2], 3);
    CHECK_EQ(i.lineage[0], 4);
    for (uint64_t k = 0; k < spec.n; k++)
        raw += (sample_has_image(k) ? sample_len(&spec, k) : 0) + 8 + spec.text_len;
    CHECK(i.raw_bytes >= raw && i.raw_bytes <= raw + spec.n * 64);
    CHECK(i.shard_bytes > i.stored_bytes && i.stored_bytes == i.raw_bytes);
    REQUIRE_OK(larder_dataset_field(ds, F_LABEL, &f, &err), &err);
    CHECK_STR(f.name, "label");
    CHECK_EQ(f.type, LARDER_I64);
    CHECK_ERR(larder_dataset_field(ds, F_COUNT, &f, &err), LARDER_ENOTFOUND, &err);
    CHECK(larder_dataset_class(ds, 0, &count) == NULL);
    CHECK_EQ(count, 0);
    i.struct_size = 8;
    CHECK_ERR(larder_dataset_info(ds, &i, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "struct_size") != NULL);
    larder_dataset_close(ds);
}

TEST(keys_columns_and_places)
{
    struct larder_dataset *ds = open_ds(dataset_make(&spec));
    struct larder_location loc;
    struct larder_error err;
    int64_t labels[2000];
    char want[64], key[LARDER_KEY_MAX];
    size_t len = 0;

    REQUIRE_OK(larder_dataset_column(ds, F_LABEL, 0, spec.n, labels, &err), &err);
    for (uint64_t i = 0; i < spec.n; i++)
        CHECK_EQ(labels[i], i % 10);
    REQUIRE_OK(larder_dataset_column(ds, F_LABEL, 499, 3, labels, &err), &err);
    CHECK(labels[0] == 9 && labels[1] == 0 && labels[2] == 1);
    CHECK_OK(larder_dataset_column(ds, F_LABEL, spec.n, 0, NULL, &err), &err);
    CHECK_ERR(larder_dataset_column(ds, F_LABEL, 1999, 2, labels, &err), LARDER_ENOTFOUND, &err);
    CHECK_ERR(larder_dataset_column(ds, F_LABEL, UINT64_MAX, 2, labels, &err), LARDER_ENOTFOUND, &err);
    CHECK_ERR(larder_dataset_column(ds, F_IMAGE, 0, 1, labels, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_dataset_column(ds, 77, 0, 1, labels, &err), LARDER_ENOTFOUND, &err);
    CHECK_ERR(larder_dataset_column(ds, F_LABEL, 0, 1, NULL, &err), LARDER_EINVAL, &err);
    for (uint64_t i = 0; i < spec.n; i += 333) {
        size_t want_len = sample_key(i, want);

        REQUIRE_OK(larder_dataset_key(ds, i, key, sizeof(key), &len, &err), &err);
        REQUIRE_EQ(len, want_len);
        CHECK_MEM(key, want, len);
        REQUIRE_OK(larder_dataset_locate(ds, i, &loc, &err), &err);
        CHECK_EQ(loc.shard_no, i / 500);
        CHECK_EQ(loc.slot, i % 500);
    }
    key[5] = '!';
    CHECK_OK(larder_dataset_key(ds, 3, key, 5, &len, &err), &err); /* as much as fits */
    CHECK_EQ(len, sample_key(3, want));
    CHECK_MEM(key, "class!", 6);
    CHECK_OK(larder_dataset_key(ds, 3, NULL, 0, &len, &err), &err);
    CHECK_ERR(larder_dataset_key(ds, spec.n, key, 5, &len, &err), LARDER_ENOTFOUND, &err);
    CHECK_ERR(larder_dataset_key(ds, 3, key, 5, NULL, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_dataset_locate(ds, spec.n, &loc, &err), LARDER_ENOTFOUND, &err);
    CHECK_ERR(larder_dataset_locate(ds, 0, NULL, &err), LARDER_EINVAL, &err);
    larder_dataset_close(ds);
}

TEST(no_dataset_says_how_to_make_one)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset *ds = (void *)1;
    const char *dir = tmp_dir();
    struct larder_error err;
    char path[200], want[400];

    CHECK_ERR(larder_dataset_open(dir, NULL, &ds, &err), LARDER_ENOTFOUND, &err);
    CHECK(ds == NULL);
    snprintf(want, sizeof(want), "%s: no dataset here (no manifest); larder ingest SOURCE %s makes one", dir, dir);
    CHECK_STR(err.message, want);
    snprintf(path, sizeof(path), "%s/nowhere", dir);
    CHECK_ERR(larder_dataset_open(path, NULL, &ds, &err), LARDER_ENOTFOUND, &err);
    CHECK(strstr(err.message, "no dataset here") != NULL);
    CHECK(access(path, F_OK) != 0);
    CHECK_ERR(larder_verify_run(path, NULL, NULL, &err), LARDER_ENOTFOUND, &err);
    CHECK_ERR(larder_gc_run(path, NULL, NULL, &err), LARDER_ENOTFOUND, &err);
    CHECK_ERR(larder_repair_run(path, NULL, NULL, &err), LARDER_ENOTFOUND, &err);
    CHECK_ERR(larder_dataset_open(NULL, NULL, &ds, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_dataset_open("", NULL, &ds, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_dataset_open("ftp://host/x", NULL, &ds, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_dataset_open(dir, NULL, NULL, &err), LARDER_EINVAL, &err);
    dir = dataset_make(&spec);
    o.generation = 7;
    CHECK_ERR(larder_dataset_open(dir, &o, &ds, &err), LARDER_ENOTFOUND, &err);
    CHECK(strstr(err.message, "generation 7") != NULL);
    snprintf(path, sizeof(path), "file://%s", dir);
    larder_dataset_close(open_ds(path));
    larder_dataset_close(NULL);
}

TEST(options_of_other_headers)
{
    struct {
        struct larder_dataset_options o;
        uint64_t newer;
    } big = {LARDER_DATASET_OPTIONS_INIT, 0};
    const char *dir = dataset_make(&spec);
    struct larder_dataset *ds;
    struct larder_error err;

    big.o.struct_size = sizeof(big);
    REQUIRE_OK(larder_dataset_open(dir, &big.o, &ds, &err), &err); /* new, and at its default */
    larder_dataset_close(ds);
    big.newer = 1;
    CHECK_ERR(larder_dataset_open(dir, &big.o, &ds, &err), LARDER_EINVAL, &err);
    big.o.struct_size = sizeof(size_t);
    CHECK_ERR(larder_dataset_open(dir, &big.o, &ds, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "larder_dataset_options.struct_size") != NULL);
    big.o.struct_size = sizeof(big.o);
    big.o.direct = 9;
    CHECK_ERR(larder_dataset_open(dir, &big.o, &ds, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "direct") != NULL);
}

TEST(a_thousand_openings)
{
    const char *dir = dataset_make(&spec);
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_sample sample = {0};
    const struct larder_batch *b;
    struct larder_loader *ld;
    struct larder_error err;
    uint64_t ordinal = 5;

    o.staging_bytes = 1 << 20;
    o.batch_size = 16;
    for (int i = 0; i < 1000; i++) {
        struct larder_dataset *ds = open_ds(dir);

        if (i % 3 == 0) {
            REQUIRE_OK(larder_dataset_read(ds, &ordinal, 1, NULL, &sample, &err), &err);
            larder_samples_release(&sample, 1);
        }
        if (i % 10 == 0) {
            REQUIRE_OK(larder_loader_open(ds, &o, &ld, &err), &err);
            if (i % 20 == 0)
                REQUIRE_OK(larder_loader_next(ld, &b, &err), &err);
            larder_loader_close(ld);
        }
        larder_dataset_close(ds);
    }
}

TEST(writing_and_looking_up)
{
    const char *dir = tmp_dir();
    struct larder_sample s = {0};
    struct larder_error err;
    struct larder_dataset *ds, *old;
    const void *keys[3] = {"k7", "nothing", "k99"};
    size_t lens[3] = {2, 7, 3};
    uint64_t ordinals[3];

    write_keys(dir, 0, 0, 100);
    old = open_ds(dir);
    write_keys(dir, 1, 100, 50);
    ds = open_ds(dir);
    REQUIRE_OK(larder_dataset_lookup(ds, keys, lens, 3, ordinals, &err), &err);
    CHECK_EQ(ordinals[0], 7);
    CHECK_EQ(ordinals[1], LARDER_NO_ORDINAL);
    CHECK_EQ(ordinals[2], 99);
    REQUIRE_OK(larder_dataset_get(ds, "k123", 4, &s, &err), &err);
    CHECK_EQ(s.ordinal, 123);
    CHECK_EQ(s.fields[0].len, 4);
    CHECK_MEM(s.fields[0].data, "k123", 4);
    larder_samples_release(&s, 1);
    CHECK_ERR(larder_dataset_get(ds, "k\n\377", 3, &s, &err), LARDER_ENOTFOUND, &err);
    CHECK(strstr(err.message, "k\\x0a\\xff") != NULL);
    CHECK_ERR(larder_dataset_get(old, "k123", 4, &s, &err), LARDER_ENOTFOUND, &err); /* pinned before */
    REQUIRE_OK(larder_dataset_get(old, "k12", 3, &s, &err), &err);
    larder_samples_release(&s, 1);
    larder_dataset_close(ds);
    larder_dataset_close(old);
}

TEST(writer_refuses_what_it_must)
{
    struct larder_field field = {.name = "n", .type = LARDER_I64};
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    struct larder_value v = {"12345678", 8}, narrow = {"1234", 4};
    const char *dir = tmp_dir();
    struct larder_writer *w = NULL;
    struct larder_error err;
    char path[200];
    int status = -1;
    pid_t pid;

    snprintf(path, sizeof(path), "%s/new", dir);
    CHECK_ERR(larder_writer_open(path, NULL, 0, NULL, &w, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_writer_open(path, NULL, 3, NULL, &w, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_writer_open(path, &field, 1, NULL, NULL, &err), LARDER_EINVAL, &err);
    o.level = 20;
    CHECK_ERR(larder_writer_open(path, &field, 1, &o, &w, &err), LARDER_EINVAL, &err);
    o.level = 0;
    o.append = 1;
    CHECK_ERR(larder_writer_open(path, &field, 1, &o, &w, &err), LARDER_ENOTFOUND, &err);
    CHECK(access(path, F_OK) != 0);
    o.append = 0;
    REQUIRE_OK(larder_writer_open(path, &field, 1, &o, &w, &err), &err);
    CHECK_ERR(larder_writer_add(w, "a", 1, NULL, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_writer_add(w, NULL, 1, &v, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_writer_add(w, "a", 0, &v, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_writer_add(w, "a", 1025, &v, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_writer_add(w, "a", 1, &narrow, &err), LARDER_EINVAL, &err);
    CHECK_OK(larder_writer_add(w, "a", 1, &v, &err), &err);
    pid = fork();
    if (pid == 0) {
        int bad = larder_writer_add(w, "b", 1, &v, &err) != LARDER_EFORK;

        larder_writer_close(w);
        _exit(bad);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    CHECK_OK(larder_writer_add(w, "b", 1, &v, &err), &err);
    CHECK_OK(larder_writer_commit(w, NULL, &err), &err);
    CHECK_ERR(larder_writer_open(path, &field, 1, NULL, &w, &err), LARDER_EEXIST, &err);
    CHECK(w == NULL);
    CHECK_ERR(larder_writer_commit(NULL, NULL, &err), LARDER_EINVAL, &err);
    larder_writer_close(NULL);
}

TEST(an_abandoned_writer_leaves_no_dataset)
{
    struct larder_field field = {.name = "n", .type = LARDER_BYTES};
    struct larder_value v = {"x", 1};
    const char *dir = tmp_dir();
    struct larder_writer *w;
    struct larder_dataset *ds;
    struct larder_error err;
    char path[200];

    snprintf(path, sizeof(path), "%s/new", dir);
    REQUIRE_OK(larder_writer_open(path, &field, 1, NULL, &w, &err), &err);
    CHECK_OK(larder_writer_add(w, "a", 1, &v, &err), &err);
    larder_writer_close(w);
    CHECK_ERR(larder_dataset_open(path, NULL, &ds, &err), LARDER_ENOTFOUND, &err);
    write_keys(path, 0, 0, 3); /* and nothing is in the way */
}

TEST(runs_over_a_written_dataset)
{
    struct larder_verify_report v = {.struct_size = sizeof(v)};
    struct larder_repair_report p = {.struct_size = sizeof(p)};
    struct larder_gc_report g = {.struct_size = sizeof(g)};
    struct larder_export_report x = {.struct_size = sizeof(x)};
    struct larder_export_options xo = LARDER_EXPORT_OPTIONS_INIT;
    struct larder_verify_options vo = LARDER_VERIFY_OPTIONS_INIT;
    const char *dir = tmp_dir(), *out = tmp_dir();
    struct larder_dataset *ds;
    struct larder_error err;
    char path[200], text[8] = {0};
    FILE *f;

    write_keys(dir, 0, 0, 20);
    REQUIRE_OK(larder_verify_run(dir, NULL, &v, &err), &err);
    CHECK_EQ(v.samples, 20);
    CHECK_EQ(v.damaged, 0);
    vo.subset_n = 3;
    vo.subset_t = 2;
    CHECK_ERR(larder_verify_run(dir, &vo, &v, &err), LARDER_EINVAL, &err);
    REQUIRE_OK(larder_repair_run(dir, NULL, &p, &err), &err);
    CHECK_EQ(p.generation, 0);
    REQUIRE_OK(larder_gc_run(dir, NULL, &g, &err), &err);
    CHECK_EQ(g.generations, 0);
    ds = open_ds(dir);
    xo.first = 21;
    CHECK_ERR(larder_export_run(ds, out, &xo, &x, &err), LARDER_ENOTFOUND, &err);
    xo.first = 5;
    xo.count = 3;
    REQUIRE_OK(larder_export_run(ds, out, &xo, &x, &err), &err);
    CHECK_EQ(x.samples, 3);
    snprintf(path, sizeof(path), "%s/k6.data", out);
    REQUIRE((f = fopen(path, "rb")) != NULL);
    CHECK_EQ(fread(text, 1, 8, f), 2);
    CHECK_STR(text, "k6");
    fclose(f);
    CHECK_ERR(larder_export_run(ds, NULL, NULL, NULL, &err), LARDER_EINVAL, &err);
    larder_dataset_close(ds);
}

TEST(ingest_checks_its_arguments_and_cleans_up)
{
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    const char *dir = tmp_dir(), *none[1] = {NULL}, *src[1] = {"/nowhere/at/all"};
    struct larder_error err;
    char path[200];

    snprintf(path, sizeof(path), "%s/new", dir);
    CHECK_ERR(larder_ingest_run(NULL, 0, path, NULL, NULL, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_ingest_run(none, 1, path, NULL, NULL, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_ingest_run(src, 1, NULL, NULL, NULL, &err), LARDER_EINVAL, &err);
    o.order = 4;
    CHECK_ERR(larder_ingest_run(src, 1, path, &o, NULL, &err), LARDER_EINVAL, &err);
    CHECK(larder_ingest_run(src, 1, path, NULL, NULL, &err) < 0);
    CHECK(access(path, F_OK) != 0);
}

TEST(copies_and_what_went_over_the_network)
{
    static const struct larder_field fields[1] = {{"x", LARDER_BYTES, NULL, 0, NULL}};
    struct larder_remote_options bad = LARDER_REMOTE_OPTIONS_INIT;
    struct larder_remote_stats stats = LARDER_REMOTE_STATS_INIT;
    struct larder_copy_options o = LARDER_COPY_OPTIONS_INIT;
    struct larder_copy_report r = {.struct_size = sizeof(r)};
    struct larder_dataset_info a = {.struct_size = sizeof(a)}, b = {.struct_size = sizeof(b)};
    const char *dir = tmp_dir();
    char src[200], dst[200];
    struct larder_value v = {"hello", 5};
    struct larder_writer *w;
    struct larder_dataset *ds;
    struct larder_error err;

    snprintf(src, sizeof(src), "%s/src", dir);
    snprintf(dst, sizeof(dst), "file://%s/dst", dir);
    CHECK_ERR(larder_copy_run(src, dst, NULL, NULL, &err), LARDER_ENOTFOUND, &err);
    CHECK(access(dst + strlen("file://"), F_OK) != 0);
    REQUIRE_OK(larder_writer_open(src, fields, 1, NULL, &w, &err), &err);
    REQUIRE_OK(larder_writer_add(w, "k", 1, &v, &err), &err);
    REQUIRE_OK(larder_writer_commit(w, NULL, &err), &err);
    REQUIRE_OK(larder_copy_run(src, dst, &o, &r, &err), &err);
    CHECK(r.generation == 1 && r.samples == 1 && r.shards == 1 && r.files == 4 && r.files_there == 0);
    REQUIRE_OK(larder_copy_run(src, dst, NULL, NULL, &err), &err);
    REQUIRE_OK(larder_dataset_open(src, NULL, &ds, &err), &err);
    CHECK_OK(larder_dataset_info(ds, &a, &err), &err);
    larder_dataset_close(ds);
    REQUIRE_OK(larder_dataset_open(dst, NULL, &ds, &err), &err);
    CHECK_OK(larder_dataset_info(ds, &b, &err), &err);
    CHECK(memcmp(&a, &b, sizeof(a)) == 0);
    stats.requests = 99;
    CHECK_OK(larder_dataset_remote_stats(ds, &stats, &err), &err);
    CHECK(stats.requests == 0 && stats.struct_size == sizeof(stats));
    stats.struct_size = 8;
    CHECK_ERR(larder_dataset_remote_stats(ds, &stats, &err), LARDER_EINVAL, &err);
    larder_dataset_close(ds);
    o.struct_size = 1;
    CHECK_ERR(larder_copy_run(src, dst, &o, NULL, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_copy_run(src, NULL, NULL, NULL, &err), LARDER_EINVAL, &err);
    o = (struct larder_copy_options)LARDER_COPY_OPTIONS_INIT;
    bad.struct_size = 3;
    o.remote = &bad;
    CHECK_ERR(larder_copy_run("s3://bucket/x", dst, &o, NULL, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "larder_remote_options") != NULL);
}

TEST_MAIN();
