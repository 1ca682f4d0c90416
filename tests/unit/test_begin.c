/* SPDX-License-Identifier: Apache-2.0 */
/* How a session begins: folders that are no dataset, shards without a manifest, what manifests are made of. */
#include "tests/unit/ingest_tests.h"

static struct store_io *open_io(const char *dir)
{
    struct store_io *io = NULL;
    struct larder_error err;

    REQUIRE_OK(io_file_open(dir, true, 0, &io, &err), &err);
    return io;
}

TEST(folders)
{
    static const struct { const char *file; int rc; } cases[] = {
        {NULL, LARDER_OK},          {"notes.txt", LARDER_EEXIST},       {".git", LARDER_EEXIST},
        {"journal", LARDER_OK},     {".tmp-0123456789", LARDER_OK},     {"shards/0123456789abcdef-000000", LARDER_EEXIST},
        {"shards.old", LARDER_EEXIST}};

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *dir = tmp_dir();
        struct store_io *io = open_io(dir);
        struct start st;
        struct larder_error err = {0};
        if (cases[i].file)
            write_text(dir, cases[i].file, strcmp(cases[i].file, "journal") ? "x" : "");
        unsigned before = count_files(dir, ".");
        int rc = start_open(io, false, &st, &err);
        CHECK_EQ(rc, cases[i].rc);
        if (!rc) {
            CHECK_OK(start_check(&st, false, &err), &err);
            CHECK_ERR(start_check(&st, true, &err), LARDER_ENOTFOUND, &err);
            start_close(&st, true);
        } else {
            CHECK_EQ(count_files(dir, "."), before); /* no journal is left */
        }
        io_close(io);
    }
}

TEST(manifests)
{
    const char *names[] = {"x"};
    int types[] = {LARDER_BYTES};
    char *classes[] = {"a", "b"};
    struct manifest m = {.generation = 0};
    struct schema s;
    struct larder_error err;
    uint8_t zero[16] = {0}, uuid[16];

    REQUIRE_OK(fields_schema(&s, names, types, 1, &err), &err);
    REQUIRE_OK(manifest_begin(&m, &s, classes, 1, LARDER_COMPRESS_ZSTD, &err), &err);
    CHECK_EQ(m.generation, 1);
    CHECK(memcmp(m.uuid, zero, 16) && memcmp(m.lineage, zero, 16) && memcmp(m.uuid, m.lineage, 16));
    CHECK_EQ(m.n_classes, 1);
    CHECK(schema_equal(&m.schema, &s));
    memcpy(uuid, m.uuid, 16);
    REQUIRE_OK(manifest_begin(&m, &s, classes, 2, LARDER_COMPRESS_NONE, &err), &err);
    CHECK_EQ(m.generation, 2);
    CHECK_MEM(m.uuid, uuid, 16);
    CHECK_STR(m.classes[1], "b");
    CHECK_EQ(m.compression, LARDER_COMPRESS_NONE);
    manifest_release(&m);
    schema_release(&s);
}

TEST(order_of_shards)
{
    struct journal j = {.n_shards = 0};
    struct manifest m = {.generation = 1, .samples = 100};
    struct larder_error err;
    static const unsigned places[][2] = {{2, 0}, {0, 1}, {1, 0}, {0, 0}, {2, 1}};

    for (size_t i = 0; i < 5; i++) {
        REQUIRE(GROW(j.shards, j.cap_shards, j.n_shards + 1, &err) == 0);
        j.shards[j.n_shards++] = (struct journal_shard){.ref = {.name = "n", .samples = 10 + places[i][0], .unit = places[i][0],
                                                                .sub = places[i][1]}};
    }
    REQUIRE_OK(manifest_add(&m, &j, &err), &err);
    REQUIRE_EQ(m.n_shards, 5);
    static const uint64_t bases[] = {100, 110, 120, 131, 143};
    for (size_t i = 0; i < 5; i++)
        CHECK_EQ(m.shards[i].base, bases[i]);
    CHECK_EQ(m.samples, 155);
    CHECK_EQ(m.shards[4].sub, 1);
    manifest_release(&m);
    free(j.shards);
}

TEST_MAIN();
