/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fault_tiers.c - every allocation, system call and thread start of opening a stack, planning and reading fails in turn,
 * with either engine. An error comes back and nothing stays open, or the bytes are right; what is left works when tried again.
 */
#include "tests/fault/fault.h"
#include "tests/unit/tiers_files.h"

enum { RECORDS = 40 };

/* Reads the records once blocking and once through a queue; *right: all bytes were. */
static int read_all(struct tiers *t, const struct files *f, void *memory, struct larder_error *err, bool *right)
{
    struct extent e[RECORDS];
    struct tiers_fetch *fetch, *done;
    struct tiers_queue *q = NULL;
    void *tag;
    size_t bytes;
    for (uint32_t i = 0; i < RECORDS; i++)
        e[i] = (struct extent){.shard = i % 3, .offset = i * 4700, .stored_len = 6000};
    int rc = tiers_fetch_new(t, &fetch, err);
    if (rc)
        return rc;
    rc = tiers_fetch_plan_ranges(fetch, e, NULL, RECORDS, &bytes, err);
    if (!rc)
        rc = tiers_read(t, fetch, memory, err);
    *right = !rc && files_match(f, fetch, e, RECORDS);
    if (!rc)
        rc = tiers_queue_open(t, 8, &q, err);
    if (!rc)
        rc = tiers_fetch_plan_ranges(fetch, e, NULL, RECORDS, &bytes, err);
    if (!rc)
        rc = tiers_fetch_start(q, fetch, memory, NULL, err);
    if (!rc)
        rc = tiers_queue_next(q, true, &done, &tag, err);
    *right = *right && (rc || files_match(f, fetch, e, RECORDS));
    tiers_queue_close(q);
    tiers_fetch_free(fetch);
    return rc;
}

static int open_and_read(const struct files *f, int direct, void *memory, struct larder_error *err, bool *right)
{
    struct tiers *t;
    struct tiers_options o = {.queue_depth = 16, .files_max = 2, .direct = direct};
    *right = false;
    int rc = tiers_open_files(f->dir, f->refs, f->n, &o, &t, err);
    if (rc) {
        CHECK(t == NULL);
        return rc;
    }
    rc = read_all(t, f, memory, err, right);
    bool armed = !fault_disarm();
    if (!armed && rc) { /* the failure is over: the same stack works */
        struct larder_error again;
        CHECK_OK(read_all(t, f, memory, &again, right), &again);
        CHECK(*right);
    }
    tiers_close(t);
    return rc;
}

static void sweep(enum fault_kind kind, bool pread_pool, int direct)
{
    struct files f = files_make(3, 200000, 3);
    struct larder_error err;
    void *memory;
    bool right;
    long n;
    if (posix_memalign(&memory, 4096, 2 * MIB) != 0)
        abort();
    setenv("LARDER_NO_URING", pread_pool ? "1" : "0", 1);
    for (n = 1; n < 5000; n++) {
        int fds = open_fds();
        fault_arm(kind, n);
        int rc = open_and_read(&f, direct, memory, &err, &right);
        bool hit = atomic_load(&fault_hit);
        fault_disarm();
        CHECK_EQ(open_fds(), fds);
        if (rc)
            CHECK(hit && err.code == rc && err.message[0]);
        else
            CHECK(right);
        if (kind == FAULT_SHORT || kind == FAULT_THREAD) /* no errors */
            CHECK_OK(rc, &err);
        if (!hit)
            break;
    }
    CHECK(n > 1 && n < 5000);
    free(memory);
    unsetenv("LARDER_NO_URING");
    files_release(&f);
}

TEST(allocations)
{
    sweep(FAULT_ALLOC, false, LARDER_DIRECT_OFF);
    sweep(FAULT_ALLOC, true, LARDER_DIRECT_OFF);
}

TEST(system_calls)
{
    sweep(FAULT_IO, false, LARDER_DIRECT_OFF);
    sweep(FAULT_IO, false, LARDER_DIRECT_ON);
    sweep(FAULT_IO, true, LARDER_DIRECT_OFF);
    sweep(FAULT_IO, true, LARDER_DIRECT_ON);
}

TEST(short_reads)
{
    sweep(FAULT_SHORT, true, LARDER_DIRECT_OFF);
    sweep(FAULT_SHORT, true, LARDER_DIRECT_ON);
}

TEST(no_threads)
{
    sweep(FAULT_THREAD, true, LARDER_DIRECT_ON);
}

TEST_MAIN();
