/* SPDX-License-Identifier: Apache-2.0 */
/* Whole runs through larder_ingest_run: results, refusals, resuming after kill -9 and cancel, append, duplicates, skipping. */
#include <signal.h>

#include "tests/unit/ingest_tests.h"

#define N_FILES 60

/* cat/000.txt ... in three folders: text that compresses, of 300 to 2,000 bytes. */
static void file_text(int i, char *out, size_t *len)
{
    *len = 300 + (size_t)(i * 97) % 1700;
    for (size_t k = 0; k < *len; k++)
        out[k] = (char)("abcdefgh"[(k / 5 + (size_t)i) % 8]);
}

static void make_tree(const char *dir, int from, int to)
{
    static const char *const folders[] = {"cat", "dog", "ant"};
    char name[64], text[2000];
    size_t len;

    for (int i = from; i < to; i++) {
        snprintf(name, sizeof(name), "%s/%03d.txt", folders[i % 3], i);
        file_text(i, text, &len);
        write_file(dir, name, text, len);
    }
}

static void check_tree(const char *dest, int from, int to)
{
    static const char *const folders[] = {"cat", "dog", "ant"};
    static const int64_t labels[] = {1, 2, 0};
    struct larder_dataset *ds = open_ds(dest);
    char key[64], text[2000];
    size_t len;

    for (int i = from; i < to; i++) {
        snprintf(key, sizeof(key), "%s/%03d", folders[i % 3], i);
        struct larder_sample s = get_sample(ds, key);
        file_text(i, text, &len);
        check_value(&s, 0, text, len);
        CHECK_EQ(value_i64(&s, 1), labels[i % 3]);
        larder_samples_release(&s, 1);
    }
    larder_dataset_close(ds);
}

TEST(a_tree)
{
    static const int compressions[] = {LARDER_COMPRESS_NONE, LARDER_COMPRESS_ZSTD, LARDER_COMPRESS_ZSTD_DICT};
    const char *src = tmp_dir(), *out = tmp_dir();
    struct heard h;
    struct larder_ingest_report r;
    struct larder_error err;

    make_tree(src, 0, N_FILES);
    for (size_t i = 0; i < ARRAY_LEN(compressions); i++) {
        struct larder_ingest_options o = heard_options(&h);
        char name[16];
        snprintf(name, sizeof(name), "d%zu", i);
        char *dest = path_of(out, name);
        o.compression = compressions[i];
        o.shard_size = 16384;
        o.workers = 3;
        REQUIRE_OK(ingest_one(src, dest, &o, &r, &err), &err);
        CHECK_EQ(r.generation, 1);
        CHECK_EQ(r.samples, N_FILES);
        CHECK_EQ(r.added, N_FILES);
        CHECK_EQ(r.resumed + r.skipped + r.ignored, 0);
        CHECK(r.shards >= 4);
        CHECK(h.ticks >= 3);
        CHECK_EQ(count_files(dest, "shards"), r.shards);
        check_tree(dest, 0, N_FILES);
        verify_ds(dest);
        char *journal = path_of(dest, "journal");
        CHECK(access(journal, F_OK) != 0);
        struct larder_dataset *ds = open_ds(dest);
        uint64_t classes;
        CHECK_STR(larder_dataset_class(ds, 0, &classes), "ant");
        CHECK_EQ(classes, 3);
        larder_dataset_close(ds);
        free(journal);
        free(dest);
        heard_release(&h);
    }
}

TEST(workers_do_not_matter)
{
    const char *src = tmp_dir(), *out = tmp_dir();
    struct larder_error err;
    char *keys[3] = {NULL};

    make_tree(src, 0, N_FILES);
    for (unsigned w = 1; w <= 3; w++) {
        struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
        char name[8];
        snprintf(name, sizeof(name), "%u", w);
        char *dest = path_of(out, name);
        struct buf b = BUF_INIT;
        o.workers = w * w;
        o.shard_size = 8192;
        REQUIRE_OK(ingest_one(src, dest, &o, NULL, &err), &err);
        struct larder_dataset *ds = open_ds(dest);
        for (uint64_t i = 0; i < N_FILES; i++) {
            char key[64];
            size_t len;
            REQUIRE_OK(larder_dataset_key(ds, i, key, sizeof(key), &len, &err), &err);
            REQUIRE(buf_append(&b, key, len, NULL) == 0);
        }
        larder_dataset_close(ds);
        REQUIRE(buf_append(&b, "", 1, NULL) == 0);
        keys[w - 1] = (char *)b.data;
        free(dest);
    }
    CHECK_STR(keys[0], keys[1]);
    CHECK_STR(keys[0], keys[2]);
    for (int i = 0; i < 3; i++)
        free(keys[i]);
}

TEST(refusals)
{
    const char *src = tmp_dir(), *out = tmp_dir(), *foreign = tmp_dir();
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    struct larder_error err;
    char *dest = path_of(out, "d"), *none = path_of(out, "none");
    struct stat st;

    make_tree(src, 0, 6);
    write_text(foreign, "thesis.tex", "do not touch");
    CHECK_ERR(ingest_one(src, foreign, &o, NULL, &err), LARDER_EEXIST, &err);
    CHECK(strstr(err.message, "thesis.tex") != NULL);
    CHECK_EQ(count_files(foreign, "."), 1);
    CHECK_ERR(ingest_one("/no/such/folder", dest, &o, NULL, &err), LARDER_ENOTFOUND, &err);
    CHECK(stat(dest, &st) != 0); /* nothing is left behind */
    o.append = 1;
    CHECK_ERR(ingest_one(src, none, &o, NULL, &err), LARDER_ENOTFOUND, &err);
    CHECK(stat(none, &st) != 0);
    o.append = 0;
    o.shard_size = (uint64_t)5 << 30;
    CHECK_ERR(ingest_one(src, dest, &o, NULL, &err), LARDER_EINVAL, &err);
    o.shard_size = 0;
    o.format = "zip";
    CHECK_ERR(ingest_one(src, dest, &o, NULL, &err), LARDER_EINVAL, &err);
    o.format = NULL;
    REQUIRE_OK(ingest_one(src, dest, &o, NULL, &err), &err);
    CHECK_ERR(ingest_one(src, dest, &o, NULL, &err), LARDER_EEXIST, &err);
    CHECK(strstr(err.message, "--append") != NULL);
    CHECK_EQ(count_files(dest, "journal"), 0);
    free(dest);
    free(none);
}

TEST(into_its_own_source)
{
    const char *src = tmp_dir();
    struct heard h;
    struct larder_ingest_options o = heard_options(&h);
    struct larder_ingest_report r;
    struct larder_error err;
    char *dest = path_of(src, "ant/d");

    make_tree(src, 0, 12);
    REQUIRE_OK(ingest_one(src, dest, &o, &r, &err), &err);
    CHECK_EQ(r.added, 12);
    CHECK_EQ(r.ignored, 1);
    CHECK_STR(heard_text(&h.ignored), "ant/d: the dataset itself\n");
    check_tree(dest, 0, 12);
    heard_release(&h);
    free(dest);
}

TEST(two_at_once)
{
    const char *src = tmp_dir(), *dest = tmp_dir();
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    struct store_io *io;
    struct journal j;
    struct larder_error err;

    make_tree(src, 0, 12);
    REQUIRE_OK(io_file_open(dest, true, 0, &io, &err), &err);
    REQUIRE_OK(journal_open(io, &j, &err), &err);
    CHECK_ERR(ingest_one(src, dest, &o, NULL, &err), LARDER_EBUSY, &err);
    journal_close(&j, true);
    io_close(io);
    REQUIRE_OK(ingest_one(src, dest, &o, NULL, &err), &err);
    check_tree(dest, 0, 12);
}

/* Another writer commits where flock is not kept: told so, and the same command goes on top of it. */
static int commit_meanwhile(void *user, const struct larder_progress *p)
{
    const char *command = user;

    if (!strcmp(p->phase, "index"))
        CHECK_EQ(system(command), 0);
    return 0;
}

TEST(another_writer_wins)
{
    const char *src = tmp_dir(), *more = tmp_dir(), *other = tmp_dir(), *out = tmp_dir();
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    struct larder_ingest_report r;
    struct larder_error err;
    char *dest = path_of(out, "d"), *copy = path_of(out, "copy"), command[800];

    make_tree(src, 0, 12);
    make_tree(more, 12, 24);
    make_tree(other, 24, 36);
    REQUIRE_OK(ingest_one(src, dest, &o, NULL, &err), &err);
    snprintf(command, sizeof(command), "cp -r %s %s", dest, copy);
    REQUIRE(system(command) == 0);
    o.append = 1;
    REQUIRE_OK(ingest_one(other, copy, &o, NULL, &err), &err); /* generation 2 of the same dataset, elsewhere */
    snprintf(command, sizeof(command), "cp -r %s/shards %s/index %s/manifests %s/", copy, copy, copy, dest);
    o.progress = commit_meanwhile;
    o.user = command;
    CHECK_ERR(ingest_one(more, dest, &o, NULL, &err), LARDER_EBUSY, &err);
    CHECK_EQ(count_samples(dest), 24);
    o.progress = NULL;
    REQUIRE_OK(ingest_one(more, dest, &o, &r, &err), &err);
    CHECK_EQ(r.generation, 3);
    CHECK_EQ(r.resumed, 12);
    CHECK_EQ(r.samples, 36);
    check_tree(dest, 0, 36);
    verify_ds(dest);
    free(dest);
    free(copy);
}

TEST(append)
{
    const char *src = tmp_dir(), *more = tmp_dir(), *flat = tmp_dir(), *out = tmp_dir();
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    struct larder_ingest_report r;
    struct larder_error err;
    char *dest = path_of(out, "d");

    make_tree(src, 0, 30);
    make_tree(more, 30, 60);
    write_text(more, "bee/1.txt", "bzz");
    write_text(flat, "1.txt", "no label");
    REQUIRE_OK(ingest_one(src, dest, &o, NULL, &err), &err);
    o.append = 1;
    CHECK_ERR(ingest_one(flat, dest, &o, NULL, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "'label'") != NULL);
    CHECK_EQ(count_files(dest, "journal"), 0);
    REQUIRE_OK(ingest_one(more, dest, &o, &r, &err), &err);
    CHECK_EQ(r.generation, 2);
    CHECK_EQ(r.samples, 61);
    CHECK_EQ(r.added, 31);
    check_tree(dest, 0, 60);
    verify_ds(dest);
    struct larder_dataset *ds = open_ds(dest);
    CHECK_STR(larder_dataset_class(ds, 3, NULL), "bee"); /* after the known ones */
    struct larder_sample s = get_sample(ds, "bee/1");
    CHECK_EQ(value_i64(&s, 1), 3);
    larder_samples_release(&s, 1);
    larder_dataset_close(ds);
    free(dest);
}

TEST(duplicates_across_generations)
{
    const char *src = tmp_dir(), *again = tmp_dir(), *out = tmp_dir();
    struct heard h;
    struct larder_ingest_options o = heard_options(&h);
    struct larder_ingest_report r;
    struct larder_error err;
    char *dest = path_of(out, "d");

    make_tree(src, 0, 30);
    make_tree(again, 25, 40);
    REQUIRE_OK(ingest_one(src, dest, &o, NULL, &err), &err);
    o.append = 1;
    CHECK_ERR(ingest_one(again, dest, &o, NULL, &err), LARDER_EEXIST, &err);
    CHECK_EQ(count_samples(dest), 30);
    o.on_error = LARDER_ON_ERROR_SKIP; /* goes on with what the failed run sealed */
    REQUIRE_OK(ingest_one(again, dest, &o, &r, &err), &err);
    CHECK_EQ(r.added, 10);
    CHECK_EQ(r.resumed, 10);
    CHECK_EQ(r.skipped, 5);
    CHECK_EQ(h.n_skipped, 5);
    check_tree(dest, 0, 40);
    verify_ds(dest);
    CHECK_EQ(count_files(dest, "shards"), 2);
    CHECK_ERR(ingest_one(again, dest, &o, &r, &err), LARDER_EINVAL, &err); /* nothing new at all */
    CHECK_EQ(count_samples(dest), 40);
    CHECK_EQ(count_files(dest, "journal"), 0);
    CHECK_EQ(count_files(dest, "shards"), 2);
    heard_release(&h);
    free(dest);
}

TEST(skipping)
{
    const char *src = tmp_dir(), *out = tmp_dir();
    struct heard h;
    struct larder_ingest_options o = heard_options(&h);
    struct larder_ingest_report r;
    struct larder_error err;
    char *dest = path_of(out, "d"), *dangling = path_of(src, "cat/999.txt");

    make_tree(src, 0, 12);
    write_text(src, "dog/bad.txt", "\xff\xfe no text");
    write_text(src, ".hidden", "x");
    REQUIRE(symlink("nowhere", dangling) == 0);
    CHECK_ERR(ingest_one(src, dest, &o, NULL, &err), LARDER_EIO, &err);
    REQUIRE(unlink(dangling) == 0);
    CHECK_ERR(ingest_one(src, dest, &o, NULL, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "dog/bad.txt: is not valid UTF-8") != NULL);
    REQUIRE(symlink("nowhere", dangling) == 0);
    heard_release(&h);
    o = heard_options(&h);
    o.on_error = LARDER_ON_ERROR_SKIP;
    REQUIRE_OK(ingest_one(src, dest, &o, &r, &err), &err);
    CHECK_EQ(r.added, 12);
    CHECK_EQ(r.skipped, 2);
    CHECK_EQ(r.ignored, 1);
    CHECK(strstr(heard_text(&h.skipped), "cat/999.txt") && strstr(heard_text(&h.skipped), "dog/bad.txt"));
    check_tree(dest, 0, 12);
    verify_ds(dest);
    heard_release(&h);
    free(dest);
    free(dangling);
}

TEST(everything_skipped)
{
    const char *src = tmp_dir(), *out = tmp_dir();
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    struct larder_error err;
    struct stat st;
    char *dest = path_of(out, "d");

    write_text(src, "a.txt", "\xff");
    write_text(src, "b.txt", "\xfe");
    o.on_error = LARDER_ON_ERROR_SKIP;
    CHECK_ERR(ingest_one(src, dest, &o, NULL, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "all 2 were skipped") != NULL);
    CHECK(stat(dest, &st) != 0 || (count_files(dest, ".") == 0));
    free(dest);
}

TEST(sizes_of_shards)
{
    const char *src = tmp_dir(), *out = tmp_dir();
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    struct larder_ingest_report r;
    struct larder_error err;
    uint8_t *big = malloc(40000);
    char *dest = path_of(out, "d");

    REQUIRE(big != NULL);
    fill(1, big, 40000);
    for (int i = 0; i < 40; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%02d.bin", i);
        write_file(src, name, big, 1000);
    }
    write_file(src, "50.bin", big, 40000); /* larger than a shard: one of its own */
    o.shard_size = 10000;
    o.order = LARDER_ORDER_SOURCE;
    REQUIRE_OK(ingest_one(src, dest, &o, &r, &err), &err);
    CHECK(r.shards >= 5 && r.shards <= 6); /* nine or ten of 1,000 bytes each, no shard of leftovers; and the large one */
    struct larder_dataset *ds = open_ds(dest);
    for (uint64_t i = 0; i < 41; i++) {
        struct larder_location loc;
        REQUIRE_OK(larder_dataset_locate(ds, i, &loc, &err), &err);
        CHECK(i != 40 || loc.slot == 0);
    }
    larder_dataset_close(ds);
    verify_ds(dest);
    free(dest);
    free(big);
}

TEST(cancel_and_go_on)
{
    static const char *const phases[] = {"list", "ingest", "index"};
    const char *src = tmp_dir(), *out = tmp_dir();
    struct heard h;
    struct larder_ingest_report r;
    struct larder_error err;

    make_tree(src, 0, N_FILES);
    for (size_t i = 0; i < ARRAY_LEN(phases); i++) {
        struct larder_ingest_options o = heard_options(&h);
        char *dest = path_of(out, phases[i]);
        o.shard_size = 4096;
        h.stop_in = phases[i];
        int rc = ingest_one(src, dest, &o, &r, &err);
        CHECK(rc == LARDER_ECANCELED || (rc == LARDER_OK && i == 1)); /* packing may be over before the first tick */
        h.stop_in = NULL;
        if (rc == LARDER_ECANCELED) {
            REQUIRE_OK(ingest_one(src, dest, &o, &r, &err), &err);
            CHECK_EQ(r.added, N_FILES);
            CHECK_EQ(r.resumed, i == 2 ? N_FILES : r.resumed);
        }
        check_tree(dest, 0, N_FILES);
        verify_ds(dest);
        CHECK_EQ(count_files(dest, "shards"), r.shards);
        heard_release(&h);
        free(dest);
    }
}

/* Stops in the "index" phase: everything is sealed, nothing is committed. */
static void leave_unfinished(const char *src, const char *dest, struct larder_ingest_options o)
{
    struct heard h;
    struct larder_ingest_options mine = heard_options(&h);
    struct larder_error err;

    mine.shard_size = o.shard_size;
    mine.compression = o.compression;
    mine.append = o.append;
    mine.seed = o.seed;
    h.stop_in = "index";
    REQUIRE_ERR(ingest_one(src, dest, &mine, NULL, &err), LARDER_ECANCELED, &err);
    heard_release(&h);
}

TEST(other_arguments_or_source)
{
    const char *src = tmp_dir(), *out = tmp_dir();
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT, other;
    struct larder_ingest_report r;
    struct larder_error err;
    char *dest = path_of(out, "d");

    make_tree(src, 0, 20);
    o.shard_size = 4096;
    leave_unfinished(src, dest, o);
    other = o;
    other.shard_size = 8192;
    CHECK_ERR(ingest_one(src, dest, &other, NULL, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "shard-size ('4096', now '8192')") != NULL);
    other = o;
    other.seed = 4;
    CHECK_ERR(ingest_one(src, dest, &other, NULL, &err), LARDER_EINVAL, &err);
    make_tree(src, 20, 21); /* the source grew */
    CHECK_ERR(ingest_one(src, dest, &o, NULL, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "changed since") && strstr(err.message, "--restart"));
    o.restart = 1;
    REQUIRE_OK(ingest_one(src, dest, &o, &r, &err), &err);
    CHECK_EQ(r.added, 21);
    CHECK_EQ(r.resumed, 0);
    CHECK_EQ(count_files(dest, "shards"), r.shards); /* the discarded ones are gone */
    check_tree(dest, 0, 21);
    free(dest);
}

TEST(a_sealed_shard_is_lost)
{
    const char *src = tmp_dir(), *out = tmp_dir();
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    struct larder_ingest_report r;
    struct larder_error err;
    char *dest = path_of(out, "d"), command[600];

    make_tree(src, 0, N_FILES);
    o.shard_size = 8192;
    for (int again = 0; again < 3; again++) { /* the second and third time what was done anew is lost as well */
        leave_unfinished(src, dest, o);
        snprintf(command, sizeof(command), "cd %s/shards && rm $(ls | head -1) && f=$(ls | head -1) && truncate -s 4096 $f", dest);
        REQUIRE(system(command) == 0);
    }
    REQUIRE_OK(ingest_one(src, dest, &o, &r, &err), &err);
    CHECK_EQ(r.added, N_FILES);
    CHECK(r.resumed > 0 && r.resumed < N_FILES);
    CHECK_EQ(count_files(dest, "shards"), r.shards);
    check_tree(dest, 0, N_FILES);
    verify_ds(dest);
    free(dest);
}

TEST(the_dictionary_survives)
{
    const char *src = tmp_dir(), *out = tmp_dir();
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    struct larder_ingest_report r;
    struct larder_error err;
    char *dest = path_of(out, "d");

    make_tree(src, 0, N_FILES);
    o.shard_size = 16384;
    o.compression = LARDER_COMPRESS_ZSTD_DICT;
    leave_unfinished(src, dest, o);
    REQUIRE_OK(ingest_one(src, dest, &o, &r, &err), &err);
    CHECK_EQ(r.resumed, N_FILES);
    check_tree(dest, 0, N_FILES);
    verify_ds(dest);
    free(dest);
}

TEST(died_between_commit_and_cleanup)
{
    const char *src = tmp_dir(), *more = tmp_dir(), *out = tmp_dir();
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    struct larder_error err;
    char *dest = path_of(out, "d"), command[600];

    make_tree(src, 0, 20);
    make_tree(more, 20, 30);
    leave_unfinished(src, dest, o);
    snprintf(command, sizeof(command), "cp %s/journal %s/kept", dest, out);
    REQUIRE(system(command) == 0);
    REQUIRE_OK(ingest_one(src, dest, &o, NULL, &err), &err);
    snprintf(command, sizeof(command), "cp %s/kept %s/journal", out, dest); /* as if it had not been removed */
    REQUIRE(system(command) == 0);
    CHECK_ERR(ingest_one(src, dest, &o, NULL, &err), LARDER_EEXIST, &err);
    CHECK_EQ(count_files(dest, "journal"), 0);
    check_tree(dest, 0, 20);
    REQUIRE(system(command) == 0);
    o.append = 1;
    REQUIRE_OK(ingest_one(more, dest, &o, NULL, &err), &err);
    check_tree(dest, 0, 30);
    verify_ds(dest);
    free(dest);
}

/* kill -9 at random times until a run gets through; each must find what the last one left. */
TEST(killed_again_and_again)
{
#ifdef __SANITIZE_THREAD__
    TEST_SKIP("ThreadSanitizer loses count of threads that a forked child starts");
#endif
    const char *src = tmp_dir(), *more = tmp_dir(), *out = tmp_dir();
    char *dest = path_of(out, "d");
    uint64_t state = 17;
    struct larder_error err;

    make_tree(src, 0, N_FILES);
    make_tree(more, N_FILES, 2 * N_FILES);
    for (int append = 0; append < 2; append++) {
        int kills = 0, status = 1;
        while (status != 0) {
            struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
            pid_t pid = fork();
            REQUIRE(pid >= 0);
            if (pid == 0) {
                o.shard_size = 4096;
                o.workers = 2;
                o.append = append;
                int rc = ingest_one(append ? more : src, dest, &o, NULL, &err);
                if (rc && rc != LARDER_EEXIST) {
                    fprintf(stderr, "resumed run: %s\n", err.message);
                    _exit(2);
                }
                _exit(rc == LARDER_EEXIST && append); /* killed between commit and cleanup: the next run says so */
            }
            if (kills < 12) {
                struct timespec t = {0, (long)rng_below(&state, (uint64_t)(kills + 1) * 8000000)};
                nanosleep(&t, NULL);
                kill(pid, SIGKILL);
            }
            REQUIRE(waitpid(pid, &status, 0) == pid);
            kills++;
            if (WIFEXITED(status) && WEXITSTATUS(status)) {
                CHECK_EQ(WEXITSTATUS(status), append && kills > 1 ? 1 : 0);
                break;
            }
        }
        check_tree(dest, 0, append ? 2 * N_FILES : N_FILES);
        verify_ds(dest);
        CHECK_EQ(count_samples(dest), append ? 2 * N_FILES : N_FILES);
        if (status == 0) /* an append refused for its duplicates may be gone on with, by --on-error skip */
            CHECK_EQ(count_files(dest, "journal"), 0);
    }
    free(dest);
}

TEST(real_images)
{
    const char *data = getenv("LARDER_DATA") ? getenv("LARDER_DATA") : "../shared/data", *out = tmp_dir();
    char *src = path_of(data, "imagenet"), *dest = path_of(out, "d"), *back = path_of(out, "back"), command[8192];
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    struct larder_export_options x = LARDER_EXPORT_OPTIONS_INIT;
    struct larder_export_report xr = {.struct_size = sizeof(xr)};
    struct larder_ingest_report r;
    struct larder_error err;

    if (access(src, R_OK)) {
        free(src);
        free(dest);
        free(back);
        TEST_SKIP("no folder imagenet; LARDER_DATA names the folder that holds it");
    }
    o.shard_size = 8 << 20;
    REQUIRE_OK(ingest_one(src, dest, &o, &r, &err), &err);
    struct larder_dataset *ds = open_ds(dest);
    REQUIRE_OK(larder_export_run(ds, back, &x, &xr, &err), &err);
    CHECK_EQ(xr.samples, r.samples);
    CHECK_EQ(xr.renamed, 0);
    larder_dataset_close(ds);
    snprintf(command, sizeof(command), "(cd %s && sha256sum * | sed 's/[.].*//' | sort) >%s/1 && (cd %s && sha256sum * | sed 's/[.].*//' | "
             "sort) >%s/2 && cmp %s/1 %s/2", src, out, back, out, out, out);
    CHECK_EQ(system(command), 0);
    free(src);
    free(dest);
    free(back);
}

TEST_MAIN();
