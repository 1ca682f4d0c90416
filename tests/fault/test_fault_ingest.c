/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fault_ingest.c - every allocation and every system call of ingest, export and the writer fails in turn.
 *
 * After each failure: an error came back, or the work was done all the same; no descriptor stays open; no dataset is there, or a
 * whole one; and the same call, made again, gives the dataset that a run without failures gives.
 */
#include "tests/fault/fault.h"
#include "tests/unit/ingest_tests.h"

static char *source, *archive;
static uint64_t want_dir, want_tar;

static void make_sources(void)
{
    const char *dir = tmp_dir();
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    struct larder_error err;
    uint8_t data[3000];
    char name[64];

    source = path_of(dir, "src");
    archive = path_of(dir, "x.tar");
    REQUIRE(mkdir(source, 0777) == 0);
    struct sink *k;
    REQUIRE_OK(tar_sink_open(archive, &k, &err), &err);
    for (int i = 0; i < 12; i++) {
        fill((uint64_t)i, data, sizeof(data));
        snprintf(name, sizeof(name), "%s/%02d.bin", i % 2 ? "cat" : "dog", i);
        write_file(source, name, data, 1000 + (size_t)i * 100);
        snprintf(name, sizeof(name), "%02d.txt", i);
        REQUIRE_OK(k->ops->file(k, name, name, strlen(name), NULL, 0, &err), &err);
        snprintf(name, sizeof(name), "%02d.cls", i);
        REQUIRE_OK(k->ops->file(k, name, name, 2, NULL, 0, &err), &err);
    }
    REQUIRE_OK(k->ops->finish(k, &err), &err);
    char *d = path_of(dir, "d"), *t = path_of(dir, "t");
    REQUIRE_OK(ingest_one(source, d, &o, NULL, &err), &err);
    REQUIRE_OK(ingest_one(archive, t, &o, NULL, &err), &err);
    want_dir = digest_ds(d);
    want_tar = digest_ds(t);
    free(d);
    free(t);
}

static struct larder_ingest_options options(void)
{
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;

    o.shard_size = 6000;
    o.workers = 1; /* so that a sweep meets each call in its turn */
    return o;
}

static void empty(const char *dir)
{
    char command[512];

    snprintf(command, sizeof(command), "rm -rf %s", dir);
    REQUIRE(system(command) == 0);
}

static void sweep_ingest(enum fault_kind kind, const char *src, uint64_t want, long from, long step)
{
    char *dest = path_of(tmp_dir(), "d");
    struct larder_ingest_options o = options();
    struct larder_error err;
    int fds = open_fds();
    long n = from;

    for (;; n += step) {
        memset(&err, 0, sizeof(err));
        fault_arm(kind, n);
        int rc = ingest_one(src, dest, &o, NULL, &err);
        bool hit = fault_disarm();
        if (!hit) {
            CHECK_OK(rc, &err);
            break;
        }
        (void)test_check(rc <= 0 && (rc == 0 || err.code == rc), __FILE__, __LINE__, "%s %ld: rc %d, code %d", fault_name(), n, rc, err.code);
        (void)test_check(open_fds() == fds, __FILE__, __LINE__, "%s %ld: descriptors stay open", fault_name(), n);
        int again = ingest_one(src, dest, &o, NULL, &err);
        (void)test_check(again == LARDER_OK || again == LARDER_EEXIST, __FILE__, __LINE__, "after %s %ld (rc %d): %s", fault_name(), n,
                         rc, err.message);
        if (again == LARDER_OK || again == LARDER_EEXIST)
            (void)test_check(digest_ds(dest) == want, __FILE__, __LINE__, "after %s %ld: another dataset", fault_name(), n);
        empty(dest);
        if (atomic_load(&test_failures) > 10)
            break;
    }
    CHECK(n > 20);
    empty(dest);
    free(dest);
}

TEST(sources)
{
    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0); /* hundreds of commits: without a disk they take seconds and not minutes */
    make_sources();
}
TEST(ingest_allocations) { sweep_ingest(FAULT_ALLOC, source, want_dir, 1, 17); }
TEST(ingest_calls) { sweep_ingest(FAULT_IO, source, want_dir, 1, 5); }
TEST(ingest_short_transfers) { sweep_ingest(FAULT_SHORT, source, want_dir, 1, 11); }
TEST(tar_allocations) { sweep_ingest(FAULT_ALLOC, archive, want_tar, 4, 19); }
TEST(tar_calls) { sweep_ingest(FAULT_IO, archive, want_tar, 2, 7); }

TEST(no_threads)
{
    char *dest = path_of(tmp_dir(), "d");
    struct larder_ingest_options o = options();
    struct larder_error err;

    for (long n = 1; n <= 2; n++) {
        fault_arm(FAULT_THREAD, n);
        int rc = ingest_one(source, dest, &o, NULL, &err);
        CHECK(fault_disarm() && rc < 0);
        CHECK_OK(ingest_one(source, dest, &o, NULL, &err), &err);
        CHECK_EQ(digest_ds(dest), want_dir);
        empty(dest);
    }
    free(dest);
}

static void sweep_export(enum fault_kind kind, const char *name, long step)
{
    const char *dir = tmp_dir();
    char *d = path_of(dir, "d"), *out = path_of(dir, name);
    struct larder_ingest_options io = options();
    struct larder_export_options o = LARDER_EXPORT_OPTIONS_INIT;
    struct larder_export_report r = {.struct_size = sizeof(r)};
    struct larder_error err;
    struct stat st;

    REQUIRE_OK(ingest_one(source, d, &io, NULL, &err), &err);
    for (long n = 1;; n += step) {
        struct larder_dataset *ds = open_ds(d);
        int fds = open_fds();
        fault_arm(kind, n);
        int rc = larder_export_run(ds, out, &o, &r, &err);
        bool hit = fault_disarm();
        (void)test_check(open_fds() <= fds + 8, __FILE__, __LINE__, "%s %ld: descriptors stay open", fault_name(), n); /* shards are cached */
        larder_dataset_close(ds);
        if (!hit) {
            CHECK_OK(rc, &err);
            break;
        }
        if (rc && kind == FAULT_ALLOC)
            (void)test_check(stat(out, &st) != 0, __FILE__, __LINE__, "%s %ld: something is left", fault_name(), n);
        empty(out);
    }
    free(d);
    free(out);
}

TEST(export_allocations)
{
    sweep_export(FAULT_ALLOC, "out", 3);
    sweep_export(FAULT_ALLOC, "out.tar", 5);
}
TEST(export_calls)
{
    sweep_export(FAULT_IO, "out", 3);
    sweep_export(FAULT_IO, "out.tar", 3);
}

static int write_all_of(const char *dest, int compression, struct larder_error *err)
{
    static const struct larder_field fields[] = {{"text", LARDER_UTF8, NULL, 0, NULL}, {"n", LARDER_I64, NULL, 0, NULL}};
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    struct larder_writer *w;

    o.shard_size = 4096;
    o.compression = compression;
    int rc = larder_writer_open(dest, fields, 2, &o, &w, err);
    for (int64_t i = 0; !rc && i < 30; i++) {
        char key[16], text[600];
        memset(text, 'a' + (int)i % 26, sizeof(text));
        struct larder_value v[2] = {{text, sizeof(text)}, {&i, 8}};
        rc = larder_writer_add(w, key, (size_t)sprintf(key, "%d", (int)i), v, err);
        if (rc) {
            larder_writer_close(w);
            return rc;
        }
    }
    return rc ? rc : larder_writer_commit(w, NULL, err);
}

static void sweep_writer(enum fault_kind kind, int compression, long step)
{
    char *dest = path_of(tmp_dir(), "d");
    struct larder_error err;
    int fds = open_fds();

    for (long n = 1;; n += step) {
        memset(&err, 0, sizeof(err));
        fault_arm(kind, n);
        int rc = write_all_of(dest, compression, &err);
        if (!fault_disarm()) {
            CHECK_OK(rc, &err);
            break;
        }
        (void)test_check(open_fds() == fds, __FILE__, __LINE__, "%s %ld: descriptors stay open", fault_name(), n);
        int again = write_all_of(dest, compression, &err);
        (void)test_check(again == LARDER_OK || again == LARDER_EEXIST, __FILE__, __LINE__, "after %s %ld (rc %d): %s", fault_name(), n, rc,
                         err.message);
        CHECK_EQ(count_samples(dest), 30);
        empty(dest);
        if (atomic_load(&test_failures) > 10)
            break;
    }
    empty(dest);
    free(dest);
}

TEST(writer_allocations) { sweep_writer(FAULT_ALLOC, LARDER_COMPRESS_ZSTD_DICT, 11); }
TEST(writer_calls) { sweep_writer(FAULT_IO, LARDER_COMPRESS_NONE, 5); }

TEST(end)
{
    free(source);
    free(archive);
}

TEST_MAIN();
