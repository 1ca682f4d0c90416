/* SPDX-License-Identifier: Apache-2.0 */
/* Generations: one winner, a hint that may be wrong, the newest found by probing. */
#include <pthread.h>

#include "store/store_int.h"
#include "tests/model/sim_s3.h"
#include "tests/unit/dataset.h"

static const struct dataset_spec spec = {.n = 10, .shard_samples = 10, .len_min = 5, .text_len = 3};

static struct store_io *open_io(const char *dir)
{
    struct larder_error err = {0};
    struct store_io *io;
    REQUIRE_OK(io_file_open(dir, false, 0, &io, &err), &err);
    return io;
}

static int commit(struct store_io *io, uint64_t generation, struct larder_error *err)
{
    struct manifest m;
    int rc = generation_load(io, 1, &m, err);
    m.generation = generation;
    if (!rc)
        rc = random_bytes(m.lineage, sizeof(m.lineage), err); /* no two are alike */
    if (!rc)
        rc = generation_commit(io, &m, err);
    manifest_release(&m);
    return rc;
}

TEST(newest)
{
    const char *dir = dataset_make(&spec);
    struct store_io *io = open_io(dir);
    struct larder_error err = {0};
    uint64_t g = 0, *list = NULL;
    size_t n = 0;
    REQUIRE_OK(generation_newest(io, &g, &err), &err);
    CHECK_EQ(g, 1);
    for (uint64_t i = 2; i < 12; i++)
        REQUIRE_OK(commit(io, i, &err), &err);
    REQUIRE_OK(generation_newest(io, &g, &err), &err);
    CHECK_EQ(g, 11);
    CHECK_ERR(commit(io, 11, &err), LARDER_EBUSY, &err);
    REQUIRE_OK(generation_list(io, &list, &n, &err), &err);
    CHECK_EQ(n, 11);
    CHECK_EQ(list[0], 1);
    CHECK_EQ(list[10], 11);
    free(list);
    io_close(io);
}

TEST(a_wrong_hint_costs_nothing_but_time)
{
    const char *dir = dataset_make(&spec);
    struct store_io *io = open_io(dir);
    struct larder_error err = {0};
    uint64_t g = 0;
    REQUIRE_OK(commit(io, 2, &err), &err);
    REQUIRE_OK(commit(io, 3, &err), &err);
    REQUIRE_OK(hint_write(io, 1, &err), &err); /* old */
    CHECK_OK(generation_newest(io, &g, &err), &err);
    CHECK_EQ(g, 3);
    REQUIRE_OK(hint_write(io, 99, &err), &err); /* points nowhere */
    CHECK_OK(generation_newest(io, &g, &err), &err);
    CHECK_EQ(g, 3);
    REQUIRE_OK(io->ops->put(io, "larder.json", "garbage", 7, &err), &err);
    CHECK_OK(generation_newest(io, &g, &err), &err);
    CHECK_EQ(g, 3);
    REQUIRE_OK(io->ops->remove(io, "larder.json", &err), &err);
    CHECK_OK(generation_newest(io, &g, &err), &err);
    CHECK_EQ(g, 3);
    io_close(io);
}

TEST(nothing_here)
{
    struct store_io *io = open_io(tmp_dir());
    struct larder_error err;
    uint64_t g;
    CHECK_ERR(generation_newest(io, &g, &err), LARDER_ENOTFOUND, &err);
    struct store *s;
    CHECK_ERR(store_open(io, &(struct store_options){.generation = 7}, &s, &err), LARDER_ENOTFOUND, &err);
    io_close(io);
}

TEST(a_manifest_under_a_wrong_name)
{
    const char *dir = dataset_make(&spec);
    struct store_io *io = open_io(dir);
    struct larder_error err = {0};
    struct manifest m;
    AUTO_BUF struct buf text = BUF_INIT;
    REQUIRE_OK(io_read_all(io, "manifests/1.json", MIB, &text, &err), &err);
    REQUIRE_OK(io->ops->create_exclusive(io, "manifests/2.json", text.data, text.len, &err), &err);
    CHECK_ERR(generation_load(io, 2, &m, &err), LARDER_ECORRUPT, &err);
    io_close(io);
}

struct race { struct store_io *io; _Atomic int won, lost; };

static void *race_main(void *arg)
{
    struct race *r = arg;
    struct larder_error err;
    int rc = commit(r->io, 2, &err);
    atomic_fetch_add(rc == LARDER_OK ? &r->won : rc == LARDER_EBUSY ? &r->lost : &r->won, rc == LARDER_OK || rc == LARDER_EBUSY ? 1 : 100);
    return NULL;
}

TEST(of_twelve_writers_one_wins)
{
    struct race r = {.io = open_io(dataset_make(&spec))};
    pthread_t t[12];
    for (int i = 0; i < 12; i++)
        pthread_create(&t[i], NULL, race_main, &r);
    for (int i = 0; i < 12; i++)
        pthread_join(t[i], NULL);
    CHECK_EQ(r.won, 1);
    CHECK_EQ(r.lost, 11);
    io_close(r.io);
}

/* What happens to the creation of a manifest in a bucket: counts down to a fault. */
static struct { int fail, lost; bool other_first; } plan;

static void planned(struct sim_io *s, const char *name)
{
    s->faults = (struct sim_faults){0};
    if (plan.other_first)
        sim_store(s->b, name, "{\"a\":1,\"crc32c\":\"00000000\"}\n", 28);
    else if (plan.fail > 0)
        s->faults.fail = plan.fail-- ? 10000 : 0;
    else if (plan.lost > 0)
        s->faults.lost = plan.lost-- ? 10000 : 0;
}

/* Reading works again at once. */
static int heal_and_read(struct store_io *io, struct store_whole *w, size_t n, struct larder_error *err)
{
    sim_of(io)->faults = (struct sim_faults){0};
    return sim_ops.read_whole(io, w, n, err);
}

TEST(answers_that_get_lost)
{
    struct sim_bucket *b = sim_bucket_new();
    REQUIRE(sim_upload(b, dataset_make(&spec)));
    struct sim_io *s = sim_open(b, 1, NULL);
    struct store_io_ops ops = sim_ops;
    struct larder_error err = {0};
    uint64_t g = 0;
    ops.read_whole = heal_and_read;
    s->io.ops = &ops;
    s->before_create = planned;
    plan.lost = 1; /* it happened: seen by reading it */
    CHECK_OK(commit(&s->io, 2, &err), &err);
    plan.fail = 2; /* it did not, twice: tried again */
    CHECK_OK(commit(&s->io, 3, &err), &err);
    plan.fail = 3;
    int rc = commit(&s->io, 4, &err);
    CHECK_EQ(rc, LARDER_EREMOTE);
    CHECK(strstr(err.message, "not known") && commit_is_open(&s->io, rc));
    CHECK_OK(commit(&s->io, 4, &err), &err);
    CHECK_ERR(commit(&s->io, 4, &err), LARDER_EBUSY, &err);
    plan.other_first = true;
    rc = commit(&s->io, 5, &err); /* damaged: nobody knows whose */
    CHECK(rc == LARDER_EREMOTE && commit_is_open(&s->io, rc));
    CHECK_OK(generation_newest(&s->io, &g, &err), &err);
    CHECK_EQ(g, 5);
    io_close(&s->io);
    sim_bucket_free(b);
}

TEST_MAIN();
