/* SPDX-License-Identifier: Apache-2.0 */
/* test_copy.c - store_copy between directories and a simulated bucket: whole, resumed, damaged on the way, and what it refuses. */
#include "tests/unit/test.h"

#include <unistd.h>

#include "ingest/ingest.h"
#include "store/store_int.h"
#include "tests/model/sim_s3.h"

static const struct larder_field fields[2] = {{"image", LARDER_IMAGE, NULL, 0, NULL}, {"label", LARDER_I64, NULL, 0, NULL}};

/* Adds samples [first, first + n) as a generation of its own. */
static int add(struct store_io *io, uint64_t first, uint64_t n, int append, struct larder_error *err)
{
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    struct writer *w;
    uint64_t generation;
    o.append = append;
    o.shard_size = 40000;
    int rc = writer_open(io, fields, 2, &o, &w, err);
    for (uint64_t i = first; rc == 0 && i < first + n; i++) {
        uint8_t image[900];
        char key[32];
        int64_t label = (int64_t)i;
        uint64_t rng = i + 1;
        rng_fill(&rng, image, sizeof(image));
        struct larder_value v[2] = {{image, 300 + i % 600}, {&label, 8}};
        if ((rc = writer_add(w, key, (size_t)snprintf(key, sizeof(key), "key-%llu", (unsigned long long)i), v, err)))
            writer_close(w);
    }
    return rc ? rc : writer_commit(w, &generation, err);
}

static struct store_io *folder(void)
{
    struct store_io *io;
    struct larder_error err = {0};
    REQUIRE_OK(io_file_open(tmp_dir(), true, 0, &io, &err), &err);
    return io;
}

static uint64_t verified(struct store_io *io)
{
    struct larder_verify_options o = LARDER_VERIFY_OPTIONS_INIT;
    struct larder_verify_report r = {.struct_size = sizeof(r)};
    struct larder_error err = {0};
    o.workers = 1;
    CHECK_OK(store_verify(io, &o, &r, &err), &err);
    CHECK_EQ(r.damaged, 0);
    return r.samples;
}

static int copy(struct store_io *src, struct store_io *dst, struct larder_copy_report *r, struct larder_error *err)
{
    struct larder_copy_options o = LARDER_COPY_OPTIONS_INIT;
    o.workers = 2;
    *r = (struct larder_copy_report){.struct_size = sizeof(*r)};
    return store_copy(src, dst, &o, r, err);
}

static void same_manifest(struct store_io *a, struct store_io *b, uint64_t generation)
{
    struct manifest m, n;
    struct larder_error err = {0};
    AUTO_BUF struct buf x = BUF_INIT, y = BUF_INIT;
    CHECK_OK(generation_load_text(a, generation, &m, &x, &err), &err);
    CHECK_OK(generation_load_text(b, generation, &n, &y, &err), &err);
    CHECK(x.len == y.len && !memcmp(x.data, y.data, x.len));
    manifest_release(&m);
    manifest_release(&n);
}

TEST(folder_to_bucket_to_folder)
{
    struct sim_bucket *b = sim_bucket_new();
    struct sim_io *s = sim_open(b, 1, tmp_dir());
    struct store_io *src = folder(), *dst = folder();
    struct larder_copy_report r;
    struct larder_error err = {0};
    REQUIRE_OK(add(src, 0, 500, 0, &err), &err);
    REQUIRE_OK(copy(src, &s->io, &r, &err), &err);
    CHECK_EQ(r.generation, 1);
    CHECK_EQ(r.samples, 500);
    CHECK(r.shards > 3 && r.files > r.shards && r.files_there == 0);
    CHECK_EQ(verified(&s->io), 500);
    same_manifest(src, &s->io, 1);
    s->faults = (struct sim_faults){.flip = 200, .cut = 100};
    REQUIRE_OK(copy(&s->io, dst, &r, &err), &err);
    CHECK_EQ(verified(dst), 500);
    CHECK(s->flips > 0);
    same_manifest(src, dst, 1);
    REQUIRE_OK(copy(&s->io, dst, &r, &err), &err); /* once more: nothing to do */
    CHECK_EQ(r.files, 0);
    CHECK(r.files_there > r.shards);
    REQUIRE_OK(add(src, 500, 100, 1, &err), &err); /* the generation that follows */
    REQUIRE_OK(copy(src, dst, &r, &err), &err);
    CHECK_EQ(r.generation, 2);
    CHECK_EQ(r.samples, 600);
    CHECK(r.files_there >= 4 && r.files > 0);
    CHECK_EQ(verified(dst), 600);
    io_close(src);
    io_close(dst);
    io_close(&s->io);
    sim_bucket_free(b);
}

TEST(an_interrupted_one_goes_on)
{
    struct sim_bucket *b = sim_bucket_new();
    struct sim_io *s = sim_open(b, 5, tmp_dir());
    struct store_io *src = folder();
    struct larder_copy_report r = {0};
    struct larder_error err = {0};
    uint64_t there = 0, newest;
    int failed = 0;
    REQUIRE_OK(add(src, 0, 800, 0, &err), &err);
    for (;; failed++) {
        s->faults = failed < 50 ? (struct sim_faults){.fail = 600, .lost = 600} : (struct sim_faults){0};
        int rc = copy(src, &s->io, &r, &err);
        if (rc == 0)
            break;
        CHECK(rc == LARDER_EREMOTE || rc == LARDER_ETIMEOUT);
        s->faults = (struct sim_faults){0};
        if (!strstr(err.message, "not known"))
            CHECK_EQ(generation_newest(&s->io, &newest, &err), LARDER_ENOTFOUND);
    }
    there = r.files_there;
    s->faults = (struct sim_faults){0};
    CHECK(failed > 0);
    CHECK(there > 0);
    CHECK_EQ(verified(&s->io), 800);
    CHECK_EQ(b->unfinished, 0);
    io_close(src);
    io_close(&s->io);
    sim_bucket_free(b);
}

TEST(what_is_damaged_or_cut_is_copied_again)
{
    struct sim_bucket *b = sim_bucket_new();
    struct sim_io *s = sim_open(b, 1, tmp_dir());
    struct store_io *src = folder();
    struct larder_copy_options o = LARDER_COPY_OPTIONS_INIT;
    struct larder_copy_report r = {.struct_size = sizeof(r)};
    struct larder_error err = {0};
    REQUIRE_OK(add(src, 0, 300, 0, &err), &err);
    REQUIRE_OK(copy(src, &s->io, &r, &err), &err);
    struct sim_object *o1 = &b->objects[sim_at(b, "shards/")];
    o1->data[5000] ^= 1;      /* a record */
    o1[1].len -= STORE_PAGE;  /* cut */
    REQUIRE_OK(store_copy(src, &s->io, &o, &r, &err), &err);
    CHECK_EQ(r.files, 1);
    o.checksum = 1;
    REQUIRE_OK(store_copy(src, &s->io, &o, &r, &err), &err);
    CHECK_EQ(r.files, 1);
    CHECK_EQ(verified(&s->io), 300);
    struct store_io *dst = folder(); /* a damaged source is told, and nothing comes of it */
    b->objects[sim_at(b, "shards/")].data[5000] ^= 1;
    CHECK_EQ(copy(&s->io, dst, &r, &err), LARDER_ECORRUPT);
    CHECK(strstr(err.message, "source is damaged") != NULL);
    uint64_t newest;
    CHECK_EQ(generation_newest(dst, &newest, &err), LARDER_ENOTFOUND);
    io_close(src);
    io_close(dst);
    io_close(&s->io);
    sim_bucket_free(b);
}

TEST(what_is_refused)
{
    struct store_io *a = folder(), *b = folder(), *c = folder(), *d = folder();
    struct larder_copy_report r;
    struct larder_error err = {0};
    struct session session;
    bool fresh;
    CHECK_EQ(copy(a, b, &r, &err), LARDER_ENOTFOUND);
    REQUIRE_OK(add(a, 0, 50, 0, &err), &err);
    REQUIRE_OK(add(b, 0, 50, 0, &err), &err);
    CHECK_EQ(copy(a, b, &r, &err), LARDER_EEXIST); /* another dataset */
    REQUIRE_OK(copy(a, c, &r, &err), &err);
    REQUIRE_OK(add(c, 50, 10, 1, &err), &err);
    CHECK_EQ(copy(a, c, &r, &err), LARDER_EEXIST); /* newer there */
    REQUIRE_OK(add(a, 80, 10, 1, &err), &err);
    CHECK_EQ(copy(a, c, &r, &err), LARDER_EEXIST); /* another generation 2 */
    REQUIRE_OK(add(a, 90, 10, 1, &err), &err);
    CHECK_EQ(copy(a, c, &r, &err), LARDER_EEXIST); /* it went its own way */
    CHECK(strstr(err.message, "of its own") != NULL);
    REQUIRE_OK(session_lock(d, &session, &fresh, &err), &err);
    CHECK_EQ(copy(a, d, &r, &err), LARDER_EBUSY);
    session_unlock(&session, true);
    CHECK_OK(d->ops->put(d, "notes.txt", "x", 1, &err), &err);
    CHECK_EQ(copy(a, d, &r, &err), LARDER_EEXIST);
    struct larder_copy_options o = LARDER_COPY_OPTIONS_INIT;
    o.generation = 9;
    CHECK_EQ(store_copy(a, d, &o, &r, &err), LARDER_ENOTFOUND);
    struct store_io *all[] = {a, b, c, d};
    for (int i = 0; i < 4; i++)
        io_close(all[i]);
}

TEST_MAIN();
