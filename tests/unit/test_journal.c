/* SPDX-License-Identifier: Apache-2.0 */
/* The journal: what is written is read back, a torn end is cut, options are compared, files of a session are swept. */
#include "tests/unit/ingest_tests.h"

static struct store_io *open_io(const char *dir)
{
    struct store_io *io = NULL;
    struct larder_error err;

    REQUIRE_OK(io_file_open(dir, true, 0, &io, &err), &err);
    return io;
}

static struct journal_shard shard_at(uint64_t unit, uint32_t sub)
{
    static char name[64];

    snprintf(name, sizeof(name), "00000000000000ab-%06u", (unsigned)(unit * 10 + sub));
    return (struct journal_shard){.ref = {.name = name, .size = 4096 * 5, .footer_off = 8192, .stored_bytes = 100, .raw_bytes = 200,
                                          .samples = 7, .tag = 99, .trailer_crc = 0xdeadbeef, .unit = unit, .sub = sub},
                                  .consumed = 8 * (sub + 1), .skipped = sub + 1, .source_bytes = 1000 * (sub + 1)};
}

static void begin(struct journal *j, int kind)
{
    struct larder_error err;

    j->head.kind = kind;
    memset(j->head.session, 1, 8);
    memset(j->head.uuid, 2, 16);
    memset(j->head.lineage, 3, 16);
    if (kind == JOURNAL_INGEST)
        for (int i = 0; i < JOPT_N; i++)
            REQUIRE(asprintf(&j->head.options[i], "option %d", i) > 0);
    REQUIRE_OK(journal_begin(j, &err), &err);
}

static void make(struct store_io *io, int kind)
{
    struct journal j;
    struct larder_error err;

    REQUIRE_OK(journal_open(io, &j, &err), &err);
    CHECK(!j.has_head && j.size == 0);
    begin(&j, kind);
    REQUIRE_OK(journal_add_run(&j, 0xab, &err), &err);
    REQUIRE_OK(journal_add_dict(&j, "dictionary", 10, &err), &err);
    for (uint64_t u = 0; u < 3; u++) {
        for (uint32_t s = 0; s <= u; s++) {
            struct journal_shard x = shard_at(u, s);
            REQUIRE_OK(journal_add_shard(&j, &x, &err), &err);
        }
        struct journal_unit done = {u, 30 + u, u, 5000};
        REQUIRE_OK(journal_add_unit(&j, &done, &err), &err);
    }
    journal_close(&j, false);
}

TEST(round_trip)
{
    const char *dir = tmp_dir();
    struct store_io *io = open_io(dir);
    struct journal j, other;
    struct larder_error err;

    make(io, JOURNAL_INGEST);
    REQUIRE_OK(journal_open(io, &j, &err), &err);
    CHECK(j.has_head && j.has_dict);
    CHECK_EQ(j.head.kind, JOURNAL_INGEST);
    CHECK_EQ(j.head.uuid[7], 2);
    CHECK_STR(j.head.options[JOPT_SEED], "option 7");
    REQUIRE_EQ(j.n_runs, 1);
    CHECK_EQ(j.runs[0], 0xab);
    REQUIRE_EQ(j.dict_len, 10);
    CHECK_MEM(j.dict, "dictionary", 10);
    REQUIRE_EQ(j.n_shards, 6);
    struct journal_shard want = shard_at(2, 1);
    CHECK_STR(j.shards[4].ref.name, want.ref.name);
    CHECK_EQ(j.shards[4].ref.trailer_crc, 0xdeadbeef);
    CHECK_EQ(j.shards[4].ref.unit, 2);
    CHECK_EQ(j.shards[4].ref.sub, 1);
    CHECK_EQ(j.shards[4].ref.footer_off, 8192);
    CHECK_EQ(j.shards[4].consumed, 16);
    CHECK_EQ(j.shards[4].skipped, 2);
    REQUIRE_EQ(j.n_units, 3);
    CHECK_EQ(j.units[1].consumed, 31);
    CHECK_ERR(journal_open(io, &other, &err), LARDER_EBUSY, &err);
    REQUIRE_OK(journal_add_drop(&j, 2, 1, &err), &err);
    CHECK_EQ(j.n_shards, 4);
    CHECK_EQ(j.n_units, 2);
    journal_close(&j, false);
    REQUIRE_OK(journal_open(io, &j, &err), &err);
    CHECK_EQ(j.n_shards, 4);
    CHECK_EQ(j.n_units, 2);
    CHECK_EQ(j.shards[3].ref.sub, 0);
    journal_close(&j, true);
    CHECK_EQ(count_files(dir, "."), 0);
    io_close(io);
}

TEST(torn_ends)
{
    const char *dir = tmp_dir();
    struct store_io *io = open_io(dir);
    struct journal j;
    struct larder_error err;
    uint8_t *whole;
    struct stat st;
    char *path = path_of(dir, "journal");

    make(io, JOURNAL_INGEST);
    int fd = open(path, O_RDWR);
    REQUIRE(fstat(fd, &st) == 0);
    whole = malloc((size_t)st.st_size);
    REQUIRE(whole != NULL);
    REQUIRE(pread(fd, whole, (size_t)st.st_size, 0) == st.st_size);
    size_t last_shards = 0;
    for (off_t len = 0; len <= st.st_size; len += len % 7 + 1) { /* cut anywhere: never an error, never more than was written */
        REQUIRE(pwrite(fd, whole, (size_t)st.st_size, 0) == st.st_size && ftruncate(fd, len) == 0);
        REQUIRE_OK(journal_open(io, &j, &err), &err);
        CHECK(j.n_shards >= last_shards && j.n_shards <= 6);
        last_shards = j.n_shards;
        CHECK(j.size <= (uint64_t)len && (j.size == 0 || whole[j.size - 1] == '\n'));
        journal_close(&j, false);
    }
    uint64_t state = 5;
    for (int i = 0; i < 300; i++) { /* a flipped bit: what comes from there on is gone */
        size_t at = rng_below(&state, (uint64_t)st.st_size);
        whole[at] ^= 1;
        REQUIRE(pwrite(fd, whole, (size_t)st.st_size, 0) == st.st_size && ftruncate(fd, st.st_size) == 0);
        whole[at] ^= 1;
        REQUIRE_OK(journal_open(io, &j, &err), &err);
        CHECK(j.size <= at);
        journal_close(&j, false);
    }
    close(fd);
    free(whole);
    free(path);
    io_close(io);
}

TEST(options_are_compared)
{
    const char *dir = tmp_dir();
    struct store_io *io = open_io(dir);
    struct journal j;
    struct larder_error err;
    char *options[JOPT_N];

    make(io, JOURNAL_INGEST);
    REQUIRE_OK(journal_open(io, &j, &err), &err);
    memcpy(options, j.head.options, sizeof(options));
    CHECK_OK(journal_same(&j, options, &err), &err);
    options[JOPT_SHARD_SIZE] = (char *)(uintptr_t)"4096";
    CHECK_ERR(journal_same(&j, options, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "shard-size ('option 3', now '4096')") && strstr(err.message, "--restart"));
    options[JOPT_SHARD_SIZE] = j.head.options[JOPT_SHARD_SIZE];
    options[JOPT_CONTENT] = (char *)(uintptr_t)"other";
    CHECK_ERR(journal_same(&j, options, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "option 0 changed since") != NULL);
    journal_close(&j, true);
    io_close(io);
}

TEST(sweep)
{
    const char *dir = tmp_dir();
    struct store_io *io = open_io(dir);
    struct journal j;
    struct larder_error err;

    make(io, JOURNAL_WRITER);
    for (int i = 0; i < 25; i++) {
        char name[64];
        snprintf(name, sizeof(name), "shards/00000000000000ab-%06d", i);
        write_text(dir, name, "x");
    }
    write_text(dir, "shards/00000000000000ac-000000", "another's");
    write_text(dir, "index/1-00000000000000ab/000001.sst", "x");
    write_text(dir, "index/1-00000000000000ac/000001.sst", "another's");
    REQUIRE_OK(journal_open(io, &j, &err), &err);
    struct shard_ref refs[] = {{.name = (char *)(uintptr_t)"00000000000000ab-000003"}};
    struct manifest m = {.generation = 1, .shards = refs, .n_shards = 1};
    CHECK(journal_committed(&j, &m));
    REQUIRE_OK(journal_sweep(&j, &m, true, &err), &err);
    CHECK_EQ(count_files(dir, "shards"), 1 + 6 + 1); /* 000003 of the manifest, the journal's, another's */
    CHECK_EQ(count_files(dir, "index"), 1);
    REQUIRE_OK(journal_sweep(&j, NULL, false, &err), &err);
    CHECK_EQ(count_files(dir, "shards"), 1);
    refs[0].name = (char *)(uintptr_t)"00000000000000ac-000000";
    CHECK(!journal_committed(&j, &m));
    REQUIRE_OK(journal_reset(&j, &err), &err);
    CHECK(!j.has_head && j.n_runs == 0);
    journal_close(&j, false);
    REQUIRE_OK(journal_open(io, &j, &err), &err);
    CHECK(!j.has_head);
    journal_close(&j, true);
    io_close(io);
}

TEST(another_version)
{
    const char *dir = tmp_dir();
    struct store_io *io = open_io(dir);
    struct journal j;
    struct larder_error err;
    struct buf line = BUF_INIT;

    REQUIRE(buf_printf(&line, NULL, "{\"larder_journal\":2,\"x\":[]}") == 0);
    REQUIRE(buf_printf(&line, NULL, " %08x\n", crc32c(0, line.data, line.len)) == 0);
    write_file(dir, "journal", line.data, line.len);
    CHECK_ERR(journal_open(io, &j, &err), LARDER_EVERSION, &err);
    buf_release(&line);
    io_close(io);
}

TEST_MAIN();
