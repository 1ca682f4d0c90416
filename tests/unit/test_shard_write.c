/* SPDX-License-Identifier: Apache-2.0 */
/* What the shard writer refuses, and what it leaves then. What it writes is read back in test_shard_read.c. */
#include "store/store_int.h"
#include "tests/unit/dataset.h"

static const struct dataset_spec spec = {.n = 700, .shard_samples = 700, .len_min = 10, .len_spread = 3000, .text_len = 60,
                                         .compression = LARDER_COMPRESS_ZSTD};

struct fixture { struct store_io *io; struct manifest m; const char *dir; char file[200]; };

static void set_up(struct fixture *f, const struct dataset_spec *d)
{
    struct larder_error err = {0};
    f->dir = dataset_make(d);
    REQUIRE_OK(io_file_open(f->dir, false, 0, &f->io, &err), &err);
    REQUIRE_OK(generation_load(f->io, 1, &f->m, &err), &err);
    snprintf(f->file, sizeof(f->file), "%s/shards/%s", f->dir, f->m.shards[0].name);
}

static void tear_down(struct fixture *f)
{
    manifest_release(&f->m);
    io_close(f->io);
}

TEST(refusals)
{
    struct fixture f;
    struct larder_error err = {0};
    struct shard_writer *w;
    struct shard_ref ref;
    uint8_t long_key[LARDER_KEY_MAX + 1] = {1};
    int64_t label = 1;
    struct larder_value v[F_COUNT] = {{"x", 1}, {&label, 8}, {"y", 1}};
    set_up(&f, &spec);
    struct shard_params p = {.meta = &f.m};
    REQUIRE_OK(shard_writer_open(f.io, "a", &p, &w, &err), &err);
    CHECK_ERR(shard_writer_add(w, "", 0, v, &err), LARDER_EINVAL, &err);
    CHECK_ERR(shard_writer_add(w, long_key, sizeof(long_key), v, &err), LARDER_EINVAL, &err);
    CHECK_OK(shard_writer_add(w, long_key, LARDER_KEY_MAX, v, &err), &err);
    CHECK_EQ(shard_writer_samples(w), 1);
    shard_writer_abort(w);
    CHECK_EQ(access(f.file, F_OK), 0);
    char gone[200];
    snprintf(gone, sizeof(gone), "%s/shards/a", f.dir);
    CHECK_EQ(access(gone, F_OK), -1);
    REQUIRE_OK(shard_writer_open(f.io, "a", &p, &w, &err), &err);
    CHECK_ERR(shard_writer_finish(w, &ref, &err), LARDER_EINVAL, &err); /* empty */
    REQUIRE_OK(shard_writer_open(f.io, f.m.shards[0].name, &p, &w, &err), &err);
    CHECK_OK(shard_writer_add(w, "k", 1, v, &err), &err);
    CHECK_ERR(shard_writer_finish(w, &ref, &err), LARDER_EEXIST, &err); /* names are never reused */
    tear_down(&f);
}

TEST_MAIN();
