/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fault_loader.c - the Nth allocation, system call or thread fails while a dataset is opened, read and run through a loader.
 *
 * Whatever fails: an error with its message, or the right bytes; nothing leaks and nothing hangs.
 */
#include "loader/loader_int.h"
#include "tests/fault/fault.h"
#include "tests/unit/dataset.h"

static const struct dataset_spec spec = {60, 20, 20000, 90000, 40, LARDER_COMPRESS_ZSTD};

static uint64_t digest(uint64_t h, const struct larder_value *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = larder_hash64(h, v[i].data, v[i].len);
    return h;
}

static int read_some(struct larder_dataset *ds, const struct larder_read_options *o, uint64_t *h, struct larder_error *err)
{
    static const uint64_t ordinals[] = {3, 59, 3, 20, 21, 0};
    struct larder_sample samples[6] = {{0}};
    int rc = larder_dataset_read(ds, ordinals, 6, o, samples, err);

    for (int i = 0; i < 6; i++)
        if (rc == 0)
            *h = digest(*h, samples[i].fields, samples[i].n_fields);
        else
            CHECK(samples[i].owner == NULL);
    larder_samples_release(samples, 6);
    return rc;
}

/* An epoch; with outputs by decode threads, and after a seek. */
static int run_epoch(struct larder_dataset *ds, bool outputs, uint64_t *h, struct larder_error *err)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_output out[2] = {LARDER_OUTPUT_INIT, LARDER_OUTPUT_INIT};
    const struct larder_batch *b;
    struct larder_loader *ld;
    int rc;

    out[0].field = "label";
    out[1].field = "text";
    out[1].prep = LARDER_PREP_RAGGED;
    o.batch_size = 16;
    o.epochs = 1;
    o.staging_bytes = 4 << 20;
    o.threads = outputs ? 2 : 1;
    o.outputs = outputs ? out : NULL;
    o.n_outputs = outputs ? 2 : 0;
    rc = larder_loader_open(ds, &o, &ld, err);
    if (rc) {
        CHECK(ld == NULL);
        return rc;
    }
    if (outputs)
        rc = larder_loader_seek(ld, 0, 20, err);
    while (rc == 0 && (rc = larder_loader_next(ld, &b, err)) == 0) {
        *h = digest(*h, b->values, (size_t)b->n * b->n_fields);
        for (uint32_t i = 0; i < b->n_arrays; i++)
            *h = larder_hash64(*h, b->arrays[i].data, b->arrays[i].len);
        larder_batch_release(b);
    }
    larder_loader_close(ld);
    return rc == LARDER_END ? 0 : rc;
}

/* All of it; *h gets a digest of every byte delivered. */
static int operation(const char *dir, uint64_t *h, struct larder_error *err)
{
    static const uint32_t fields[] = {F_IMAGE, F_LABEL};
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_read_options ro = {sizeof(ro), fields, 2};
    struct larder_dataset *ds;
    int rc;

    *h = 0;
    o.direct = LARDER_DIRECT_OFF;
    rc = larder_dataset_open(dir, &o, &ds, err);
    if (rc) {
        CHECK(ds == NULL);
        return rc;
    }
    rc = read_some(ds, NULL, h, err);
    if (rc == 0)
        rc = read_some(ds, &ro, h, err);
    if (rc == 0)
        rc = run_epoch(ds, false, h, err);
    if (rc == 0)
        rc = run_epoch(ds, true, h, err);
    larder_dataset_close(ds);
    return rc;
}

static int in_turn(void *user, const struct larder_assign_in *in, uint32_t *ranks, struct larder_error *err)
{
    (void)user;
    (void)err;
    for (uint32_t i = 0; i < in->n; i++)
        ranks[i] = i % in->world;
    return LARDER_OK;
}

/* A mix of a dataset with itself, of a part of it by key, shared out by a function; with a state and a seek. */
static int operation_mix(const char *dir, uint64_t *h, struct larder_error *err)
{
    struct larder_mix_source s[2] = {LARDER_MIX_SOURCE_INIT, LARDER_MIX_SOURCE_INIT};
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_dataset_options d = LARDER_DATASET_OPTIONS_INIT;
    char state[LARDER_STATE_BYTES(2)];
    uint8_t filter[8] = {0xff, 0xff, 0x0f};
    const struct larder_batch *b;
    struct larder_loader *ld;
    struct larder_dataset *ds;
    double weights[60];
    int rc;

    *h = 0;
    d.direct = LARDER_DIRECT_OFF;
    rc = larder_dataset_open(dir, &d, &ds, err);
    if (rc)
        return rc;
    for (int i = 0; i < 60; i++)
        weights[i] = i % 3;
    s[0].ds = s[1].ds = ds;
    s[0].weight = 1;
    s[1].weight = 3;
    s[0].filter = filter;
    s[1].weights = weights;
    o.epochs = 1;
    o.batch_size = 4;
    o.world = 2;
    o.split_end = 0.8;
    o.staging_bytes = 4 << 20;
    o.assign = in_turn;
    rc = larder_loader_open_mix(s, 2, LARDER_EXHAUSTED_STOP, &o, &ld, err);
    if (rc == 0) {
        rc = larder_loader_state(ld, state, sizeof(state), err);
        if (rc == 0)
            rc = larder_loader_load_state(ld, state, err);
        while (rc == 0 && (rc = larder_loader_next(ld, &b, err)) == 0) {
            *h = digest(*h, b->values, (size_t)b->n * b->n_fields);
            larder_batch_release(b);
        }
        (void)larder_loader_warning(ld, 0);
        larder_loader_close(ld);
    } else {
        CHECK(ld == NULL);
    }
    larder_dataset_close(ds);
    return rc == LARDER_END ? 0 : rc;
}

typedef int operation_fn(const char *dir, uint64_t *h, struct larder_error *err);

static void sweep_of(operation_fn *op, enum fault_kind kind, bool must_succeed)
{
    const char *dir = dataset_make(&spec);
    uint64_t want = 0, have = 0;
    struct larder_error err;
    long n;
    int rc;

    REQUIRE_OK(op(dir, &want, &err), &err);
    for (n = 1; n < 5000; n++) {
        memset(&err, 0, sizeof(err));
        fault_arm(kind, n);
        rc = op(dir, &have, &err);
        if (!fault_disarm())
            break;
        if (rc == 0)
            CHECK_EQ(have, want);
        else
            CHECK(rc < 0 && rc == err.code && err.message[0] != '\0' && !must_succeed);
        if (rc && must_succeed)
            CHECK_OK(rc, &err);
    }
    CHECK(n < 5000);
    CHECK_OK(rc, &err);
    CHECK_EQ(have, want);
}

static void sweep(enum fault_kind kind, bool must_succeed) { sweep_of(operation, kind, must_succeed); }

TEST(mixes)
{
    sweep_of(operation_mix, FAULT_ALLOC, false);
    sweep_of(operation_mix, FAULT_IO, false);
    sweep_of(operation_mix, FAULT_SHORT, true);
    sweep_of(operation_mix, FAULT_THREAD, false);
}

TEST(allocations) { sweep(FAULT_ALLOC, false); }
TEST(system_calls) { sweep(FAULT_IO, false); }
TEST(short_reads) { sweep(FAULT_SHORT, true); }
TEST(threads) { sweep(FAULT_THREAD, false); }

TEST(without_io_uring)
{
    setenv("LARDER_NO_URING", "1", 1);
    sweep(FAULT_ALLOC, false);
    sweep(FAULT_IO, false);
    sweep(FAULT_SHORT, true);
    sweep(FAULT_THREAD, false);
    unsetenv("LARDER_NO_URING");
}

TEST_MAIN();
