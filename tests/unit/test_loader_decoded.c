/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -ljpeg -lm */
/*
 * test_loader_decoded.c - loaders with a decoded cache: what they deliver is the same cold, warm, in part full, compressed, with any threads,
 * for a second loader and in another process; counts; geometry; bad samples.
 */
#include <math.h>
#include <sys/wait.h>

#include "loader/prep_int.h"
#include "tests/unit/images.h"
#include "tests/unit/test.h"

enum { N = 60 };


static const char *dataset(bool with_bad)
{
    static const int64_t shape[2] = {-1, 4};
    static const struct larder_field fields[] = {{"image", LARDER_IMAGE, NULL, 0, NULL}, {"label", LARDER_I64, NULL, 0, NULL},
                                                 {"boxes", LARDER_NDARRAY, "float32", 2, shape}, {"text", LARDER_UTF8, NULL, 0, NULL}};
    static char dirs[2][200];
    char *dir = dirs[with_bad];
    struct larder_writer *w;
    struct larder_error err;
    if (dir[0])
        return dir;
    snprintf(dir, sizeof(dirs[0]), "%s/ds", tmp_dir());
    REQUIRE_OK(larder_writer_open(dir, fields, 4, NULL, &w, &err), &err);
    for (int i = 0; i < N; i++) {
        uint32_t width = 90 + (uint32_t)i * 5, height = 260 - (uint32_t)i * 3;
        struct jpeg_kind kind = {i % 7 == 3 ? 1 : 3, i % 7 == 3 ? 1 : 2, i % 7 == 3 ? 1 : 2, i % 9 == 4, i % 5 == 2 ? i % 8 + 1 : 0};
        uint8_t *p = make_pixels(width, height, kind.channels, (uint64_t)i + 1);
        size_t len;
        uint8_t *jpeg = make_jpeg(p, width, height, &kind, &len);
        int64_t label = i * 3;
        float boxes[3][4];
        char key[20], text[200];
        for (int k = 0; k < 3; k++) {
            const float box[4] = {(float)(k * 10), 5, (float)(k * 10 + 60), 70};
            memcpy(boxes[k], box, sizeof(box));
        }
        snprintf(key, sizeof(key), "key-%d", i);
        memset(text, 'a' + i % 26, sizeof(text));
        bool bad = with_bad && i % 20 == 7;
        struct larder_value v[] = {{jpeg, bad ? len / 3 : len}, {&label, 8}, {boxes, (size_t)(i % 4) * 16}, {text, (size_t)(i * 3)}};
        REQUIRE_OK(larder_writer_add(w, key, strlen(key), v, &err), &err);
        free(p);
        free(jpeg);
    }
    REQUIRE_OK(larder_writer_commit(w, NULL, &err), &err);
    return dir;
}

static struct larder_output outputs[6];
static size_t n_outputs;

static void some_outputs(int exif)
{
    for (int i = 0; i < 6; i++)
        outputs[i] = (struct larder_output)LARDER_OUTPUT_INIT;
    outputs[0].field = "image";
    outputs[0].prep = LARDER_PREP_IMAGE;
    outputs[0].image = (struct larder_image){.width = 64, .flip = 0.5, .views = 2, .exif = exif, .exact = 1};
    outputs[1].field = "label";
    outputs[2].field = "boxes";
    outputs[2].prep = LARDER_PREP_BOXES;
    outputs[2].follows = "image";
    outputs[3].name = "geometry";
    outputs[3].field = "image";
    outputs[3].prep = LARDER_PREP_GEOMETRY;
    outputs[3].follows = "image";
    outputs[4].field = "text";
    outputs[4].prep = LARDER_PREP_RAGGED;
    outputs[5].field = "text";
    outputs[5].name = "text as it is";
    outputs[5].prep = LARDER_PREP_BYTES;
    n_outputs = 6;
}

static struct larder_loader_options with_cache(uint64_t bytes)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    o.batch_size = 8;
    o.seed = 5;
    o.epochs = 1;
    o.outputs = outputs;
    o.n_outputs = n_outputs;
    o.decoded_bytes = bytes;
    o.decoded_side = 80;
    o.threads = 2;
    return o;
}

/* Of all arrays, in turn. */
static uint64_t digest_of(const struct larder_batch *b, bool pixels)
{
    uint64_t h = larder_hash64(b->epoch, b->ordinals, b->n * sizeof(uint64_t));
    for (uint32_t k = pixels ? 0 : 1; k < b->n_arrays; k++) {
        const struct larder_array *a = &b->arrays[k];
        if (a->data)
            h = larder_hash64(h, a->data, a->len);
        if (a->offsets)
            h = larder_hash64(h, a->offsets, (b->n + 1) * sizeof(uint64_t));
        for (uint32_t i = 0; a->values && i < b->n; i++)
            h = larder_hash64(h + a->values[i].len, a->values[i].data, a->values[i].len);
    }
    return h;
}

struct seen { uint64_t hash, other; struct larder_loader_stats s; };

/* The first epoch. */
static struct seen run_on(struct larder_dataset *ds, const struct larder_loader_options *o)
{
    struct seen seen = {.s = {.struct_size = sizeof(seen.s)}};
    struct larder_loader *ld;
    const struct larder_batch *b;
    struct larder_error err = {0};
    int rc;
    REQUIRE_OK(larder_loader_open(ds, o, &ld, &err), &err);
    while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK) {
        seen.hash = larder_hash64(seen.hash, &(uint64_t){digest_of(b, true)}, 8);
        seen.other = larder_hash64(seen.other, &(uint64_t){digest_of(b, false)}, 8);
        larder_batch_release(b);
    }
    CHECK_EQ(rc, LARDER_END);
    if (rc != LARDER_END)
        fprintf(stderr, "%s\n", err.message);
    REQUIRE_OK(larder_loader_stats(ld, &seen.s, &err), &err);
    larder_loader_close(ld);
    return seen;
}

/* A dataset whose decoded cache nobody else shares. */
static struct larder_dataset *open_ds(struct larder_cache **c, const char *name, bool with_bad)
{
    struct larder_cache_options co = LARDER_CACHE_OPTIONS_INIT;
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset *ds;
    struct larder_error err;
    co.name = name;
    co.dram_bytes = LARDER_DRAM_OFF;
    co.no_pin = 1;
    REQUIRE_OK(larder_cache_open(&co, c, &err), &err);
    o.cache = *c;
    REQUIRE_OK(larder_dataset_open(dataset(with_bad), &o, &ds, &err), &err);
    return ds;
}

/* Two loaders in turn on one cache, whose memory somebody else holds. */
static void both(uint64_t bytes, uint32_t side, int compress, uint32_t threads, struct seen *cold, struct seen *warm)
{
    static const struct manifest other = {.uuid = "another dataset", .samples = 1};
    static unsigned n;
    char name[64];
    snprintf(name, sizeof(name), "loader-decoded-%d-%u", (int)getpid(), n++);
    struct tiers_variant_options v = {name, bytes, 1, true};
    struct tiers_variant *keeper;
    struct larder_cache *c;
    struct larder_error err;
    REQUIRE_OK(tiers_variant_open(&other, &v, &keeper, &err), &err);
    struct larder_dataset *ds = open_ds(&c, name, false);
    struct larder_loader_options o = with_cache(bytes);
    o.decoded_side = side;
    o.decoded_compress = compress;
    o.threads = threads;
    *cold = run_on(ds, &o);
    *warm = run_on(ds, &o);
    o.decoded_bytes += 4 * MIB; /* who joins is told what there is */
    struct larder_loader *ld;
    REQUIRE_OK(larder_loader_open(ds, &o, &ld, &err), &err);
    const char *warning = larder_loader_warning(ld, 0);
    CHECK(warning && strstr(warning, "the decoded cache of ") && !larder_loader_warning(ld, 1));
    larder_loader_close(ld);
    CHECK_EQ(cold->s.decoded.hits, 0);
    CHECK_EQ(cold->s.decoded.misses, N);
    CHECK_EQ(warm->s.decoded.hits + warm->s.decoded.misses, N);
    CHECK_EQ(warm->s.decoded.hits, cold->s.decoded.entries);
    CHECK_EQ(cold->s.decoded.budget_bytes, bytes);
    CHECK(warm->s.decoded.used_bytes <= bytes);
    CHECK_EQ(warm->s.origin.hits, N - warm->s.decoded.hits); /* what is found decoded is not fetched */
    larder_dataset_close(ds);
    larder_cache_close(c);
    tiers_variant_close(keeper);
}

TEST(pixels_do_not_depend_on_what_is_cached)
{
    struct seen cold, warm, first = {0};
    some_outputs(0);
    for (int k = 0; k < 4; k++) {
        both(64 * MIB, 80, k & 1, k & 2 ? 3 : 1, &cold, &warm);
        CHECK_EQ(cold.hash, warm.hash);
        CHECK(cold.s.decoded.decode_ns > 0 && cold.s.decoded.saved_ns == 0);
        CHECK(warm.s.decoded.saved_ns > 0 && warm.s.decoded.decode_ns == 0);
        CHECK_EQ(warm.s.decoded.hits, N);
        CHECK(warm.s.decoded.used_bytes > N * 80 * 80);
        CHECK_EQ(warm.s.origin.requests, 0);
        if (k)
            CHECK_EQ(cold.hash, first.hash);
        first = cold;
    }
}

TEST(a_cache_with_room_for_some)
{
    struct seen cold, warm, full_cold, full_warm;
    some_outputs(1);
    outputs[0].image.width = 200;
    both(4 * MIB, 230, 0, 2, &cold, &warm);
    both(64 * MIB, 230, 0, 2, &full_cold, &full_warm);
    CHECK(warm.s.decoded.hits > 3 && warm.s.decoded.hits < N - 3);
    CHECK_EQ(full_warm.s.decoded.hits, N);
    CHECK_EQ(cold.hash, warm.hash);
    CHECK_EQ(warm.hash, full_cold.hash);
    CHECK_EQ(warm.hash, full_warm.hash);
}

TEST(later_epochs_find_what_the_first_made)
{
    struct larder_cache *c;
    some_outputs(0);
    struct larder_dataset *ds = open_ds(&c, NULL, false);
    struct larder_loader_options o = with_cache(16 * MIB);
    struct larder_loader_stats s = {.struct_size = sizeof(s)};
    struct larder_loader *ld;
    const struct larder_batch *b;
    struct larder_error err;
    uint64_t misses = 0;
    o.epochs = 4;
    REQUIRE_OK(larder_loader_open(ds, &o, &ld, &err), &err);
    for (int epoch = 0; epoch < 4; epoch++) {
        while (larder_loader_next(ld, &b, &err) == LARDER_OK)
            larder_batch_release(b);
        REQUIRE_OK(larder_loader_stats(ld, &s, &err), &err);
        CHECK_EQ(s.decoded.hits + s.decoded.misses, N);
        misses += s.decoded.misses;
    }
    CHECK(misses >= N && misses <= N + 4); /* two threads may make the same at once */
    larder_loader_close(ld);
    larder_dataset_close(ds);
    larder_cache_close(c);
}

TEST(another_process_finds_what_this_one_made)
{
    struct larder_cache *c;
    char name[64];
    some_outputs(0);
    snprintf(name, sizeof(name), "loader-decoded-fork-%d", (int)getpid());
    TEST_FORKS();
    int ready[2], done[2];
    REQUIRE(pipe(ready) == 0 && pipe(done) == 0);
    const char *dir = dataset(false);
    CHECK(dir != NULL);
    pid_t pid = fork();
    if (pid == 0) {
        char go;
        close(ready[1]);
        close(done[0]);
        if (read(ready[0], &go, 1) != 1)
            _exit(2);
        struct larder_dataset *ds = open_ds(&c, name, false);
        struct larder_loader_options o = with_cache(64 * MIB);
        struct seen seen = run_on(ds, &o);
        uint64_t out[2] = {seen.hash, seen.s.decoded.hits};
        if (write(done[1], out, sizeof(out)) != sizeof(out))
            _exit(3);
        larder_dataset_close(ds);
        larder_cache_close(c);
        _exit(test_failures ? 1 : 0);
    }
    close(ready[0]);
    close(done[1]);
    struct larder_dataset *ds = open_ds(&c, name, false);
    struct larder_loader_options o = with_cache(64 * MIB), held = o;
    struct larder_loader *ld;
    struct larder_error err;
    const struct larder_batch *b;
    held.epochs = 1;
    REQUIRE_OK(larder_loader_open(ds, &held, &ld, &err), &err);
    while (larder_loader_next(ld, &b, &err) == LARDER_OK)
        larder_batch_release(b);
    struct seen mine = run_on(ds, &o);
    CHECK_EQ(mine.s.decoded.hits, N);
    uint64_t theirs[2] = {0};
    int status;
    CHECK_EQ(write(ready[1], "x", 1), 1);
    CHECK_EQ(read(done[0], theirs, sizeof(theirs)), sizeof(theirs));
    waitpid(pid, &status, 0);
    CHECK_EQ(status, 0);
    CHECK_EQ(theirs[0], mine.hash);
    CHECK_EQ(theirs[1], N);
    larder_loader_close(ld);
    larder_dataset_close(ds);
    larder_cache_close(c);
    close(ready[1]);
    close(done[0]);
}

TEST(geometry_boxes_and_other_fields_are_as_without_it)
{
    for (int exif = 0; exif < 2; exif++) {
        struct larder_cache *c;
        some_outputs(exif);
        struct larder_dataset *ds = open_ds(&c, NULL, false);
        struct larder_loader_options o = with_cache(16 * MIB);
        struct seen with = run_on(ds, &o);
        o.decoded_bytes = 0;
        struct seen without = run_on(ds, &o);
        CHECK_EQ(with.other, without.other);
        CHECK(with.hash != without.hash); /* scaled twice */
        CHECK_EQ(without.s.decoded.hits + without.s.decoded.misses + without.s.decoded.budget_bytes, 0);
        o.decoded_bytes = 16 * MIB;
        o.decoded_side = 1000; /* no image is as large: none is scaled, and the pixels are those of a decode */
        CHECK_EQ(run_on(ds, &o).hash, without.hash);
        larder_dataset_close(ds);
        larder_cache_close(c);
    }
}

TEST(pixels_are_near_those_of_a_decode)
{
    struct larder_cache *c;
    some_outputs(1);
    outputs[0].image.views = 0;
    struct larder_dataset *ds = open_ds(&c, NULL, false);
    struct larder_loader_options o = with_cache(16 * MIB);
    struct larder_loader *with, *without;
    const struct larder_batch *a, *b;
    struct larder_error err;
    double sum = 0;
    size_t n = 0;
    REQUIRE_OK(larder_loader_open(ds, &o, &with, &err), &err);
    o.decoded_bytes = 0;
    REQUIRE_OK(larder_loader_open(ds, &o, &without, &err), &err);
    while (larder_loader_next(with, &a, &err) == LARDER_OK) {
        REQUIRE_OK(larder_loader_next(without, &b, &err), &err);
        const uint8_t *x = a->arrays[0].data, *y = b->arrays[0].data;
        for (size_t i = 0; i < a->arrays[0].len; i++, n++)
            sum += abs(x[i] - y[i]);
        larder_batch_release(a);
        larder_batch_release(b);
    }
    CHECK(n == (size_t)N * 64 * 64 * 3);
    CHECK(sum / (double)n < 8); /* the images are half noise, which scaling smooths; a wrong crop or turn gives 25 and more */
    larder_loader_close(with);
    larder_loader_close(without);
    larder_dataset_close(ds);
    larder_cache_close(c);
}

TEST(bad_samples_are_replaced_alike)
{
    struct larder_cache *c;
    some_outputs(0);
    struct larder_dataset *ds = open_ds(&c, NULL, true);
    struct larder_loader_options o = with_cache(16 * MIB);
    struct larder_loader *ld;
    const struct larder_batch *b;
    struct larder_error err;
    int rc;
    o.on_bad_sample = LARDER_ON_BAD_REPLACE;
    o.max_bad = 1;
    struct seen one = run_on(ds, &o);
    CHECK_EQ(one.s.bad, 3);
    o.epochs = 2;
    uint64_t bad[2], ordinals[2] = {0}, position[2] = {0};
    REQUIRE_OK(larder_loader_open(ds, &o, &ld, &err), &err);
    for (int epoch = 0; epoch < 2; epoch++) {
        struct larder_loader_stats s = {.struct_size = sizeof(s)};
        while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK) {
            for (uint32_t i = 0; i < b->n; i++) {
                CHECK(b->ordinals[i] % 20 != 7);
                ordinals[epoch] += b->ordinals[i];
            }
            position[epoch] += b->n;
            larder_batch_release(b);
        }
        REQUIRE_OK(larder_loader_stats(ld, &s, &err), &err);
        bad[epoch] = s.bad;
        CHECK(s.decoded.hits + s.decoded.misses >= N);
    }
    CHECK(bad[0] >= 3 && bad[1] >= 3);
    CHECK_EQ(position[0], N);
    larder_loader_close(ld);

    o.on_bad_sample = LARDER_ON_BAD_FAIL;
    REQUIRE_OK(larder_loader_open(ds, &o, &ld, &err), &err);
    while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK)
        larder_batch_release(b);
    CHECK_EQ(rc, LARDER_ECORRUPT);
    CHECK(strstr(err.message, "sample 'key-") && strstr(err.message, "), field image: "));
    larder_loader_close(ld);
    larder_dataset_close(ds);
    larder_cache_close(c);
}

TEST(what_cannot_be)
{
    struct larder_cache *c;
    struct larder_loader *ld;
    struct larder_error err;
    some_outputs(0);
    struct larder_dataset *ds = open_ds(&c, NULL, false);
    struct larder_loader_options o = with_cache(1000);
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "decoded_bytes") != NULL);
    o = with_cache(16 * MIB);
    o.outputs = NULL;
    o.n_outputs = 0;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "no output is an image") != NULL);
    o = with_cache(16 * MIB);
    o.outputs = &outputs[1];
    o.n_outputs = 1;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    struct larder_mix_source sources[2] = {LARDER_MIX_SOURCE_INIT, LARDER_MIX_SOURCE_INIT};
    sources[0].ds = sources[1].ds = ds;
    o = with_cache(16 * MIB);
    CHECK_ERR(larder_loader_open_mix(sources, 2, LARDER_EXHAUSTED_REPEAT, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "mixes") != NULL);
    larder_dataset_close(ds);
    larder_cache_close(c);
}

TEST_MAIN();
