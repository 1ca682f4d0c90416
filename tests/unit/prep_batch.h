/* SPDX-License-Identifier: Apache-2.0 */
/* prep_batch.h - for tests of prep: a schema, outputs, and batches of them made from values. */
#ifndef TEST_PREP_BATCH_H
#define TEST_PREP_BATCH_H

#include "loader/prep_int.h"

struct batch_test {
    struct schema schema;
    struct prep *prep;
    struct prep_worker *worker;
    struct prep_batch b;
    uint8_t *memory;
    size_t bytes;
};

#define GUARD_BYTES 4096u
#define GUARD_VALUE 0xa5

static inline void prep_open(struct batch_test *t, const struct larder_field *fields, size_t n_fields, const struct larder_output *outputs, size_t n)
{
    struct larder_error err;
    *t = (struct batch_test){0};
    REQUIRE_OK(schema_copy(&t->schema, fields, n_fields, &err), &err);
    REQUIRE_OK(prep_new(&t->schema, outputs, n, &t->prep, &err), &err);
    REQUIRE_OK(prep_worker_new(t->prep, &t->worker, &err), &err);
}

static inline void prep_close(struct batch_test *t)
{
    prep_worker_free(t->worker);
    prep_free(t->prep);
    schema_release(&t->schema);
    free(t->memory);
}

/* Memory for a batch whose records are exactly these values, full of rubbish, with a guard behind it. */
static inline void prep_lay(struct batch_test *t, uint32_t n, const struct larder_value *values, uint64_t seed, uint64_t epoch)
{
    uint64_t all = 0, most = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t raw = 0;
        for (uint32_t k = 0; k < t->schema.n; k++)
            raw += values[(size_t)i * t->schema.n + k].len;
        all += raw;
        most = MAX(most, raw);
    }
    free(t->memory);
    t->bytes = prep_bytes(t->prep, n, all, most);
    t->memory = aligned_alloc(64, round_up(t->bytes + GUARD_BYTES, 64));
    REQUIRE(t->memory != NULL);
    memset(t->memory, GUARD_VALUE, t->bytes + GUARD_BYTES);
    prep_begin(t->prep, &t->b, n, all, most, seed, epoch, t->memory);
}

static inline void prep_check_guard(const struct batch_test *t)
{
    size_t bad = 0;
    for (size_t i = 0; i < GUARD_BYTES; i++)
        bad += t->memory[t->bytes + i] != GUARD_VALUE;
    CHECK_EQ(bad, 0);
}

/* A whole batch; ordinals are 1000 + i, positions 50 + i. */
static inline int prep_batch_run(struct batch_test *t, uint32_t n, const struct larder_value *values, struct larder_error *err)
{
    int rc = LARDER_OK;
    prep_lay(t, n, values, 7, 3);
    for (uint32_t i = 0; !rc && i < n; i++)
        rc = prep_sample(t->worker, &t->b, i, 1000 + i, 50 + i, values + (size_t)i * t->schema.n, err);
    if (!rc)
        rc = prep_end(&t->b, values, t->schema.n, err);
    prep_check_guard(t);
    return rc;
}

#define VALUE(a) ((struct larder_value){(a), sizeof(a)})
#define NO_VALUE ((struct larder_value){NULL, 0})

#endif
