/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dataset.h - small datasets whose every byte is a function of the ordinal, for tests of what reads them.
 *
 * dataset_make writes shards and a manifest through the store's own writer, without a key index. Sample i has three fields:
 * "image" (sample_len(i) random bytes; every 11th sample has none), "label" (i64, i % 10) and "text" (compressible, as long as
 * the spec says).
 */
#ifndef TEST_DATASET_H
#define TEST_DATASET_H

#include "store/store.h"
#include "tests/unit/test.h"

enum { F_IMAGE, F_LABEL, F_TEXT, F_COUNT };

struct dataset_spec {
    uint64_t n;
    uint32_t shard_samples;      /* samples a shard */
    uint32_t len_min, len_spread; /* of the image: min + something below spread */
    uint32_t text_len;
    int compression;
};

static inline size_t sample_len(const struct dataset_spec *d, uint64_t i)
{
    uint64_t state = i * 77 + 5;

    return d->len_min + (d->len_spread ? rng_below(&state, d->len_spread) : 0);
}

static inline int sample_has_image(uint64_t i)
{
    return i % 11 != 7;
}

static inline void sample_image(uint64_t i, uint8_t *out, size_t len)
{
    uint64_t state = i ^ 0x1234567;

    rng_fill(&state, out, len);
}

static inline void sample_text(uint64_t i, uint8_t *out, size_t len)
{
    for (size_t k = 0; k < len; k++)
        out[k] = (uint8_t)('a' + (k / 7 + i) % 26);
}

static inline size_t sample_key(uint64_t i, char out[64])
{
    return (size_t)snprintf(out, 64, "class%02d/sample-%08llu", (int)(i % 10), (unsigned long long)i);
}

static const struct larder_field dataset_fields[F_COUNT] = {
    {"image", LARDER_IMAGE, NULL, 0, NULL}, {"label", LARDER_I64, NULL, 0, NULL}, {"text", LARDER_UTF8, NULL, 0, NULL}};

/* The values of sample i, in memory of the caller: image and text have room. */
static inline void sample_values(const struct dataset_spec *d, uint64_t i, uint8_t *image, uint8_t *text, int64_t *label,
                                 struct larder_value values[F_COUNT])
{
    size_t len = sample_len(d, i);

    *label = (int64_t)(i % 10);
    sample_image(i, image, len);
    sample_text(i, text, d->text_len);
    values[F_IMAGE] = (struct larder_value){sample_has_image(i) ? image : NULL, sample_has_image(i) ? len : 0};
    values[F_LABEL] = (struct larder_value){label, 8};
    values[F_TEXT] = (struct larder_value){text, d->text_len};
}

/* Whether a sample as read is sample i. fields: how many of image, label, text in this order. */
TEST_UNUSED static int sample_is(const struct dataset_spec *d, uint64_t i, const struct larder_value *v)
{
    size_t len = sample_len(d, i);
    uint8_t *image = malloc(len + 1), *text = malloc(d->text_len + 1);
    struct larder_value want[F_COUNT];
    int64_t label;
    int same = 1;

    sample_values(d, i, image, text, &label, want);
    for (int f = 0; f < F_COUNT; f++)
        same = same && !v[f].data == !want[f].data && v[f].len == want[f].len &&
               (v[f].len == 0 || memcmp(v[f].data, want[f].data, v[f].len) == 0);
    free(image);
    free(text);
    return same;
}

static inline int dataset_shard(struct store_io *io, struct manifest *m, const struct dataset_spec *d, uint64_t first,
                                struct larder_error *err)
{
    struct shard_params p = {.meta = m, .unit = m->n_shards, .level = 3};
    uint8_t *image = malloc(d->len_min + d->len_spread + 1), *text = malloc(d->text_len + 1);
    struct larder_value values[F_COUNT];
    struct shard_writer *w;
    char name[32], key[64];
    int64_t label;
    int rc;

    shard_name_new(42, (uint32_t)m->n_shards, name);
    rc = shard_writer_open(io, name, &p, &w, err);
    for (uint64_t i = first; rc == 0 && i < d->n && i < first + d->shard_samples; i++) {
        size_t key_len = sample_key(i, key);

        sample_values(d, i, image, text, &label, values);
        if ((rc = shard_writer_add(w, key, key_len, values, err)))
            shard_writer_abort(w);
    }
    if (rc == 0)
        rc = GROW(m->shards, m->cap_shards, m->n_shards + 1, err);
    if (rc == 0)
        rc = shard_writer_finish(w, &m->shards[m->n_shards], err);
    m->n_shards += rc == 0;
    free(image);
    free(text);
    return rc;
}

/* A fresh directory with the dataset in it. */
TEST_UNUSED static const char *dataset_make(const struct dataset_spec *d)
{
    struct manifest m = {.generation = 1, .uuid = {1, 2, 3}, .lineage = {4, 5, 6}, .compression = d->compression};
    const char *dir = tmp_dir();
    struct larder_error err = {0};
    struct store_io *io;
    char path[128];
    int rc;

    snprintf(path, sizeof(path), "%s/index", dir);
    REQUIRE_EQ(mkdir(path, 0777), 0);
    snprintf(path, sizeof(path), "%s/shards", dir);
    REQUIRE_EQ(mkdir(path, 0777), 0);
    rc = io_file_open(dir, true, 0, &io, &err);
    if (rc == 0)
        rc = schema_copy(&m.schema, dataset_fields, F_COUNT, &err);
    for (uint64_t i = 0; rc == 0 && i < d->n; i += d->shard_samples)
        rc = dataset_shard(io, &m, d, i, &err);
    m.samples = d->n;
    m.parts = calloc(1, sizeof(*m.parts));
    m.n_parts = 1;
    m.parts[0] = (struct index_part){.dir = strdup("none"), .hi = d->n, .keys = d->n}; /* nobody looks a key up */
    if (rc == 0)
        rc = generation_commit(io, &m, &err);
    manifest_release(&m);
    io_close(io);
    REQUIRE_OK(rc, &err);
    return dir;
}

#endif
