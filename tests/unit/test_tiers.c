/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers.c - fetches over queues, against the bytes that were written: both engines, direct and buffered, many depths, many
 * threads, and what goes wrong: files missing, cut short, reads failing or short, closing while reading, forked children.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/unit/tiers_files.h"

static struct tiers *open_tiers(const struct files *f, bool pread_pool, unsigned depth, unsigned files_max, int direct)
{
    struct tiers *t;
    struct larder_error err;
    struct tiers_options o = {.queue_depth = depth, .files_max = files_max, .direct = direct};
    if (pread_pool)
        setenv("LARDER_NO_URING", "1", 1);
    else
        unsetenv("LARDER_NO_URING");
    int rc = tiers_open_files(f->dir, f->refs, f->n, &o, &t, &err);
    unsetenv("LARDER_NO_URING");
    REQUIRE_OK(rc, &err);
    if (pread_pool)
        CHECK_STR(tiers_engine(t), "pread");
    return t;
}

static struct tiers_queue *open_queue(struct tiers *t, unsigned depth)
{
    struct tiers_queue *q;
    struct larder_error err;
    REQUIRE_OK(tiers_queue_open(t, depth, &q, &err), &err);
    return q;
}

#define BATCH_MAX 64

/* A fetch with its extents and memory. */
struct batch {
    struct tiers_fetch *f;
    struct extent e[BATCH_MAX];
    size_t n, bytes;
    void *memory;
};

static void batch_plan(struct tiers *t, struct batch *b)
{
    struct larder_error err;
    if (!b->f)
        REQUIRE_OK(tiers_fetch_new(t, &b->f, &err), &err);
    REQUIRE_OK(tiers_fetch_plan_ranges(b->f, b->e, NULL, b->n, &b->bytes, &err), &err);
    free(b->memory);
    b->memory = b->bytes ? aligned_alloc(4096, round_up(b->bytes, 4096)) : NULL;
}

static void batch_random(struct tiers *t, const struct files *f, uint64_t *seed, size_t len_max, struct batch *b)
{
    b->n = rng_below(seed, BATCH_MAX + 1);
    for (size_t i = 0; i < b->n; i++)
        b->e[i] = i && rng_below(seed, 8) == 0 ? b->e[rng_below(seed, i)] : files_extent(f, seed, len_max);
    batch_plan(t, b);
}

static void batch_release(struct batch *b)
{
    tiers_fetch_free(b->f);
    free(b->memory);
}

/* Four batches in flight on one queue, `rounds` in all; each is checked as it completes. */
static void read_batches(struct tiers *t, const struct files *f, unsigned depth, uint64_t seed, int rounds)
{
    struct tiers_queue *q = open_queue(t, depth);
    struct batch *b = calloc(4, sizeof(*b));
    struct larder_error err;
    int started = 0, finished = 0;
    uint64_t planned = 0;
    for (; started < 4; started++) {
        batch_random(t, f, &seed, 40000, &b[started]);
        planned += tiers_fetch_stats(b[started].f).requests;
        REQUIRE_OK(tiers_fetch_start(q, b[started].f, b[started].memory, &b[started], &err), &err);
    }
    while (finished < started) {
        struct tiers_fetch *done;
        void *tag;
        int rc = tiers_queue_next(q, rng_below(&seed, 2), &done, &tag, &err);
        if (rc == LARDER_END)
            continue;
        REQUIRE_OK(rc, &err);
        struct batch *x = tag;
        REQUIRE(x >= b && x < b + 4 && x->f == done);
        CHECK(files_match(f, done, x->e, x->n));
        for (size_t i = 0; i < x->n; i++)
            CHECK_EQ(tiers_fetch_extent(done, i)->offset, x->e[i].offset);
        finished++;
        if (started < rounds) {
            batch_random(t, f, &seed, 40000, x);
            planned += tiers_fetch_stats(x->f).requests;
            REQUIRE_OK(tiers_fetch_start(q, x->f, x->memory, x, &err), &err);
            started++;
        }
    }
    struct tiers_fetch *none;
    void *tag;
    CHECK_EQ(tiers_queue_next(q, true, &none, &tag, &err), LARDER_END);
    CHECK(none == NULL);
    CHECK(tiers_queue_stats(q).requests >= planned);
    tiers_queue_close(q);
    for (int i = 0; i < 4; i++)
        batch_release(&b[i]);
    free(b);
}

static void all_depths(bool pread_pool, int direct)
{
    struct files f = files_make(5, 150000, 11);
    struct tiers *t = open_tiers(&f, pread_pool, 0, 3, direct);
    if (direct == LARDER_DIRECT_ON && !tiers_direct(t)) {
        tiers_close(t);
        files_release(&f);
        TEST_SKIP("no O_DIRECT on this file system");
    }
    for (unsigned depth = 1; depth <= 128; depth *= 2)
        read_batches(t, &f, depth, depth, 12);
    CHECK_EQ(tiers_direct(t), direct == LARDER_DIRECT_ON);
    tiers_close(t);
    files_release(&f);
}

TEST(uring_buffered) { all_depths(false, LARDER_DIRECT_OFF); }
TEST(uring_direct) { all_depths(false, LARDER_DIRECT_ON); }
TEST(pread_buffered) { all_depths(true, LARDER_DIRECT_OFF); }
TEST(pread_direct) { all_depths(true, LARDER_DIRECT_ON); }

static void long_records(bool pread_pool, int direct)
{
    struct files f = files_make(2, 5 * MIB + 77, 11);
    struct tiers *t = open_tiers(&f, pread_pool, 4, 0, direct);
    struct batch b = {.n = 3};
    struct larder_error err;
    b.e[0] = (struct extent){.shard = 0, .offset = 12345, .stored_len = 4 * MIB + 99};
    b.e[1] = (struct extent){.shard = 1, .offset = 0, .stored_len = (uint32_t)f.refs[1].size};
    b.e[2] = (struct extent){.shard = 0, .offset = 4 * MIB, .stored_len = (uint32_t)(f.refs[0].size - 4 * MIB)};
    batch_plan(t, &b);
    CHECK_OK(tiers_read(t, b.f, b.memory, &err), &err);
    CHECK(files_match(&f, b.f, b.e, b.n));
    batch_release(&b);
    tiers_close(t);
    files_release(&f);
}

TEST(records_beyond_a_segment)
{
    long_records(false, LARDER_DIRECT_OFF);
    long_records(false, LARDER_DIRECT_ON);
    long_records(true, LARDER_DIRECT_OFF);
    long_records(true, LARDER_DIRECT_ON);
}

TEST(nothing_to_read)
{
    struct files f = files_make(1, 1000, 1);
    struct tiers *t = open_tiers(&f, false, 0, 0, LARDER_DIRECT_AUTO);
    struct tiers_queue *q = open_queue(t, 0);
    struct batch b = {.n = 2};
    struct tiers_fetch *done;
    struct larder_error err;
    void *tag;
    b.e[1].offset = 1000;
    batch_plan(t, &b); /* two records of no bytes */
    CHECK_EQ(b.bytes, 0);
    REQUIRE_OK(tiers_fetch_start(q, b.f, NULL, &b, &err), &err);
    CHECK_OK(tiers_queue_next(q, false, &done, &tag, &err), &err);
    CHECK(done == b.f && tag == &b);
    CHECK(tiers_fetch_record(done, 0) != NULL);
    b.n = 0;
    batch_plan(t, &b);
    CHECK_OK(tiers_read(t, b.f, NULL, &err), &err);
    tiers_queue_close(q);
    batch_release(&b);
    tiers_close(t);
    files_release(&f);
}

TEST(misuse_is_refused)
{
    struct files f = files_make(1, 9000, 1);
    struct tiers *t = open_tiers(&f, false, 0, 0, LARDER_DIRECT_OFF), *t2;
    struct tiers_queue *q = open_queue(t, 0), *q2;
    struct batch b = {.n = 1};
    struct larder_error err;
    size_t bytes;
    struct tiers_options bad = {.direct = 7}, deep = {.queue_depth = 1u << 20};
    CHECK_ERR(tiers_open_files(f.dir, f.refs, 1, &bad, &t2, &err), LARDER_EINVAL, &err);
    CHECK_ERR(tiers_open_files(f.dir, f.refs, 1, &deep, &t2, &err), LARDER_EINVAL, &err);
    CHECK_ERR(tiers_queue_open(t, 1u << 20, &q2, &err), LARDER_EINVAL, &err);
    b.e[0].stored_len = 5000;
    batch_plan(t, &b);
    CHECK_ERR(tiers_fetch_start(q, b.f, NULL, NULL, &err), LARDER_EINVAL, &err);
    CHECK_ERR(tiers_fetch_start(q, b.f, (char *)b.memory + 8, NULL, &err), LARDER_EINVAL, &err);
    CHECK_OK(tiers_fetch_start(q, b.f, b.memory, NULL, &err), &err);
    CHECK_ERR(tiers_fetch_start(q, b.f, b.memory, NULL, &err), LARDER_EINVAL, &err);
    CHECK_ERR(tiers_fetch_plan_ranges(b.f, b.e, NULL, 1, &bytes, &err), LARDER_EINVAL, &err);
    struct tiers_fetch *done;
    void *tag;
    CHECK_OK(tiers_queue_next(q, true, &done, &tag, &err), &err);
    CHECK_ERR(tiers_fetch_start(q, b.f, b.memory, NULL, &err), LARDER_EINVAL, &err); /* planned anew first */
    b.e[0].shard = 1;
    CHECK_ERR(tiers_fetch_plan_ranges(b.f, b.e, NULL, 1, &bytes, &err), LARDER_EINVAL, &err);
    b.e[0] = (struct extent){.offset = f.refs[0].size - 10, .stored_len = 11};
    CHECK_ERR(tiers_fetch_plan_ranges(b.f, b.e, NULL, 1, &bytes, &err), LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, "shard-0") != NULL);
    tiers_queue_close(q);
    batch_release(&b);
    tiers_close(t);
    files_release(&f);
}

/* Three fetches, the middle one hits damage in shard 1: it alone fails, with a message that has `text` in it. */
static void damaged(bool pread_pool, int direct, bool missing, int code, const char *text)
{
    struct files f = files_make(3, 200000, 21);
    struct tiers *t = open_tiers(&f, pread_pool, 8, 0, direct);
    struct tiers_queue *q = open_queue(t, 8);
    struct batch *b = calloc(3, sizeof(*b));
    struct larder_error err;
    char path[160];
    if (missing)
        REQUIRE(unlink(files_path(&f, 1, path)) == 0);
    else
        REQUIRE(truncate(files_path(&f, 1, path), 100001) == 0);
    for (int k = 0; k < 3; k++) {
        b[k].n = 40;
        for (uint32_t i = 0; i < 40; i++)
            b[k].e[i] = (struct extent){.shard = k == 1 ? i % 3 : 2 * (i & 1), .offset = i * 4900, .stored_len = 1000};
        batch_plan(t, &b[k]);
        REQUIRE_OK(tiers_fetch_start(q, b[k].f, b[k].memory, &b[k], &err), &err);
    }
    for (int k = 0; k < 3; k++) {
        struct tiers_fetch *done;
        void *tag;
        int rc = tiers_queue_next(q, true, &done, &tag, &err);
        if (tag == &b[1]) {
            CHECK_ERR(rc, code, &err);
            CHECK(strstr(err.message, text) && strstr(err.message, "shard-1"));
        } else {
            REQUIRE_OK(rc, &err);
            CHECK(files_match(&f, done, ((struct batch *)tag)->e, 40));
        }
    }
    b[1].n = 1, b[1].e[0] = b[0].e[0]; /* the failed one can be used again */
    batch_plan(t, &b[1]);
    CHECK_OK(tiers_read(t, b[1].f, b[1].memory, &err), &err);
    CHECK(files_match(&f, b[1].f, b[1].e, 1));
    tiers_queue_close(q);
    for (int k = 0; k < 3; k++)
        batch_release(&b[k]);
    free(b);
    tiers_close(t);
    files_release(&f);
}

TEST(file_cut_short)
{
    for (int i = 0; i < 4; i++)
        damaged(i & 1, i & 2 ? LARDER_DIRECT_ON : LARDER_DIRECT_OFF, false, LARDER_ECORRUPT, "cut short: it has no bytes from offset 10");
}

/* Cutting a file short that is open and in the page cache is an error, not a signal. */
TEST(file_cut_short_after_warm_reads)
{
    struct files f = files_make(2, 200000, 8);
    struct tiers *t = open_tiers(&f, false, 0, 0, LARDER_DIRECT_OFF);
    struct batch b = {.n = 20};
    struct larder_error err;
    char path[160];
    for (int round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < 20; i++)
            b.e[i] = (struct extent){.shard = i & 1, .offset = i * 9500, .stored_len = 700};
        batch_plan(t, &b);
        REQUIRE_OK(tiers_read(t, b.f, b.memory, &err), &err);
        CHECK(files_match(&f, b.f, b.e, b.n));
    }
    REQUIRE(truncate(files_path(&f, 1, path), 100000) == 0);
    batch_plan(t, &b);
    CHECK_ERR(tiers_read(t, b.f, b.memory, &err), LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, "shard-1") != NULL);
    batch_release(&b);
    tiers_close(t);
    files_release(&f);
}

TEST(file_missing)
{
    for (int i = 0; i < 4; i++)
        damaged(i & 1, i & 2 ? LARDER_DIRECT_ON : LARDER_DIRECT_OFF, true, LARDER_ENOTFOUND, "is missing");
}

/* ---- an I/O table in front of the engine ---- */

struct faulty {
    struct engine engine, *real;
    unsigned count, at;  /* the at-th completion is changed */
    int32_t result;      /* to this; 0: it becomes a short one */
    unsigned every_short; /* all become short: at most this many bytes */
};

static void faulty_add(struct engine *e, struct read_op *op) { ((struct faulty *)e)->real->ops->add(((struct faulty *)e)->real, op); }
static void faulty_flush(struct engine *e) { ((struct faulty *)e)->real->ops->flush(((struct faulty *)e)->real); }
static unsigned faulty_reap(struct engine *e, bool wait, struct read_op **done, unsigned max)
{
    struct faulty *y = (struct faulty *)e;
    unsigned n = y->real->ops->reap(y->real, wait, done, max);
    for (unsigned i = 0; i < n; i++) {
        if (++y->count == y->at)
            done[i]->result = y->result;
        else if (y->every_short && done[i]->result > (int32_t)y->every_short)
            done[i]->result = (int32_t)y->every_short;
    }
    return n;
}
static void faulty_register(struct engine *e, void *m, size_t len) { (void)e, (void)m, (void)len; }
static void faulty_close(struct engine *e, bool forked) { ((struct faulty *)e)->real->ops->close(((struct faulty *)e)->real, forked); }
static const struct engine_ops faulty_ops = {.name = "faulty", .add = faulty_add, .flush = faulty_flush, .reap = faulty_reap,
                                             .register_memory = faulty_register, .close = faulty_close};

/* One fetch of 30 records through a queue with the fault; returns its code. */
static int read_faulty(const struct files *f, struct tiers *t, struct faulty y, struct larder_error *err, bool *right)
{
    struct tiers_queue *q = open_queue(t, 5);
    struct batch b = {.n = 30};
    struct tiers_fetch *done;
    void *tag;
    for (uint32_t i = 0; i < 30; i++)
        b.e[i] = (struct extent){.shard = i % 2, .offset = 20000 * i + i, .stored_len = 12000};
    batch_plan(t, &b);
    y.engine.ops = &faulty_ops;
    y.real = *tiers_queue_engine(q);
    *tiers_queue_engine(q) = &y.engine;
    REQUIRE_OK(tiers_fetch_start(q, b.f, b.memory, NULL, err), err);
    int rc = tiers_queue_next(q, true, &done, &tag, err);
    CHECK(done == b.f);
    *right = !rc && files_match(f, b.f, b.e, b.n);
    CHECK_EQ(tiers_queue_next(q, true, &done, &tag, NULL), LARDER_END);
    tiers_queue_close(q);
    batch_release(&b);
    return rc;
}

TEST(every_read_may_fail)
{
    struct files f = files_make(2, 700000, 2);
    struct larder_error err;
    bool right;
    for (int pool = 0; pool < 2; pool++) {
        struct tiers *t = open_tiers(&f, pool, 0, 0, LARDER_DIRECT_OFF);
        for (unsigned at = 1; at <= 30; at++) {
            CHECK_EQ(read_faulty(&f, t, (struct faulty){.at = at, .result = -EIO}, &err, &right), LARDER_EIO);
            CHECK_EQ(err.sys_errno, EIO);
            CHECK(strstr(err.message, "shard-") && strstr(err.message, "larder verify"));
            CHECK_EQ(read_faulty(&f, t, (struct faulty){.at = at, .result = 0}, &err, &right), LARDER_ECORRUPT);
            CHECK_OK(read_faulty(&f, t, (struct faulty){.at = at, .result = -EINTR}, &err, &right), &err);
            CHECK(right);
            CHECK_OK(read_faulty(&f, t, (struct faulty){.at = at, .result = -EAGAIN}, &err, &right), &err);
            CHECK(right);
        }
        CHECK_OK(read_faulty(&f, t, (struct faulty){.at = 31, .result = -EIO}, &err, &right), &err);
        CHECK(right);
        tiers_close(t);
    }
    files_release(&f);
}

TEST(short_reads_go_on)
{
    struct files f = files_make(2, 700000, 2);
    struct larder_error err;
    bool right;
    for (int mode = 0; mode < 4; mode++) {
        struct tiers *t = open_tiers(&f, mode & 1, 0, 0, mode & 2 ? LARDER_DIRECT_ON : LARDER_DIRECT_OFF);
        CHECK_OK(read_faulty(&f, t, (struct faulty){.every_short = 5000}, &err, &right), &err);
        CHECK(right);
        tiers_close(t);
    }
    files_release(&f);
}

TEST(refused_direct_read_becomes_buffered)
{
    struct files f = files_make(2, 700000, 2);
    struct larder_error err;
    bool right;
    struct tiers *t = open_tiers(&f, false, 0, 0, LARDER_DIRECT_ON);
    if (!tiers_direct(t)) {
        tiers_close(t);
        files_release(&f);
        TEST_SKIP("no O_DIRECT on this file system");
    }
    CHECK_OK(read_faulty(&f, t, (struct faulty){.at = 7, .result = -EINVAL}, &err, &right), &err);
    CHECK(right);
    CHECK(!tiers_direct(t));
    CHECK_EQ(read_faulty(&f, t, (struct faulty){.at = 7, .result = -EINVAL}, &err, &right), LARDER_EIO); /* buffered: an error */
    tiers_close(t);
    files_release(&f);
}

TEST(close_while_reading)
{
    struct files f = files_make(3, 1500000, 5);
    struct larder_error err;
    for (int mode = 0; mode < 4; mode++) {
        struct tiers *t = open_tiers(&f, mode & 1, 16, 0, mode & 2 ? LARDER_DIRECT_ON : LARDER_DIRECT_OFF);
        uint64_t seed = 3;
        for (int round = 0; round < 10; round++) {
            struct tiers_queue *q = open_queue(t, 4);
            struct batch *b = calloc(3, sizeof(*b));
            for (int k = 0; k < 3; k++) {
                batch_random(t, &f, &seed, 60000, &b[k]);
                REQUIRE_OK(tiers_fetch_start(q, b[k].f, b[k].memory, NULL, &err), &err);
            }
            tiers_queue_close(q);
            for (int k = 0; k < 3; k++) { /* the memory is ours again, and so is the fetch */
                if (b[k].bytes)
                    memset(b[k].memory, 0xee, b[k].bytes);
                batch_plan(t, &b[k]);
                CHECK_OK(tiers_read(t, b[k].f, b[k].memory, &err), &err);
                CHECK(files_match(&f, b[k].f, b[k].e, b[k].n));
                batch_release(&b[k]);
            }
            free(b);
        }
        tiers_close(t);
    }
    files_release(&f);
}

TEST(more_pins_than_descriptors)
{
    struct files f = files_make(40, 9000, 5);
    for (int pool = 0; pool < 2; pool++) {
        struct tiers *t = open_tiers(&f, pool, 32, 2, LARDER_DIRECT_OFF);
        read_batches(t, &f, 32, 77, 40);
        tiers_close(t);
    }
    files_release(&f);
}

/* ---- threads ---- */

struct worker { struct tiers *t; const struct files *f; uint64_t seed; int own_queue; };

static void *work(void *arg)
{
    struct worker *w = arg;
    struct larder_error err;
    if (w->own_queue) {
        read_batches(w->t, w->f, 16, w->seed, 20);
        return NULL;
    }
    struct batch b = {0};
    for (int i = 0; i < 30; i++) {
        batch_random(w->t, w->f, &w->seed, 9000, &b);
        CHECK_OK(tiers_read(w->t, b.f, b.memory, &err), &err);
        CHECK(files_match(w->f, b.f, b.e, b.n));
    }
    batch_release(&b);
    return NULL;
}

static void threads(bool pread_pool, int n, int own_queue)
{
    struct files f = files_make(9, 100000, 31);
    struct tiers *t = open_tiers(&f, pread_pool, 0, 4, LARDER_DIRECT_OFF);
    pthread_t th[8];
    struct worker w[8];
    for (int i = 0; i < n; i++) {
        w[i] = (struct worker){t, &f, 1000 + (uint64_t)i, own_queue};
        pthread_create(&th[i], NULL, work, &w[i]);
    }
    for (int i = 0; i < n; i++)
        pthread_join(th[i], NULL);
    tiers_close(t);
    files_release(&f);
}

TEST(four_threads_with_a_queue_each)
{
    threads(false, 4, 1);
    threads(true, 4, 1);
}

TEST(eight_threads_reading)
{
    threads(false, 8, 0);
    threads(true, 8, 0);
}

/* ---- fork ---- */

static int in_child(struct tiers *t, struct tiers_queue *q, struct batch *b)
{
    struct larder_error err;
    struct tiers_fetch *done;
    struct tiers_queue *q2;
    void *tag;
    if (tiers_queue_next(q, true, &done, &tag, &err) != LARDER_EFORK)
        return 1;
    if (tiers_read(t, b->f, b->memory, &err) != LARDER_EFORK)
        return 2;
    if (tiers_queue_open(t, 0, &q2, &err) != LARDER_EFORK)
        return 3;
    tiers_queue_close(q); /* neither waits nor reads */
    tiers_close(t);
    return 0;
}

TEST(forked_child_only_closes)
{
    struct files f = files_make(2, 100000, 1);
    for (int pool = 0; pool < 2; pool++) {
        struct tiers *t = open_tiers(&f, pool, 0, 0, LARDER_DIRECT_OFF);
        struct tiers_queue *q = open_queue(t, 4);
        struct batch b = {0};
        struct larder_error err;
        struct tiers_fetch *done;
        void *tag;
        uint64_t seed = 1;
        do
            batch_random(t, &f, &seed, 9000, &b);
        while (b.n < 20);
        REQUIRE_OK(tiers_fetch_start(q, b.f, b.memory, NULL, &err), &err);
        pid_t pid = fork();
        if (pid == 0)
            _exit(in_child(t, q, &b));
        int status;
        REQUIRE(waitpid(pid, &status, 0) == pid);
        CHECK_EQ(status, 0);
        CHECK_OK(tiers_queue_next(q, true, &done, &tag, &err), &err); /* the parent's goes on */
        CHECK(files_match(&f, b.f, b.e, b.n));
        tiers_queue_close(q);
        batch_release(&b);
        tiers_close(t);
    }
    files_release(&f);
}

/* ---- where io_uring is forbidden ---- */

/* From here on the process's io_uring calls of that number fail with EPERM. */
static bool forbid(unsigned nr)
{
    struct sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog prog = {ARRAY_LEN(code), code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0;
}

static void forbidden_at_open(const struct files *f)
{
    if (!forbid(__NR_io_uring_setup))
        _exit(77);
    struct tiers *t = open_tiers(f, false, 0, 0, LARDER_DIRECT_OFF);
    CHECK_STR(tiers_engine(t), "pread");
    read_batches(t, f, 16, 5, 10);
    tiers_close(t);
}

static void forbidden_later(const struct files *f)
{
    struct tiers *t = open_tiers(f, false, 0, 0, LARDER_DIRECT_OFF);
    struct batch b = {.n = 10};
    struct larder_error err;
    if (strcmp(tiers_engine(t), "io_uring") != 0 || !forbid(__NR_io_uring_enter))
        _exit(77);
    for (uint32_t i = 0; i < 10; i++)
        b.e[i] = (struct extent){.offset = i * 9000, .stored_len = 100};
    batch_plan(t, &b);
    CHECK_ERR(tiers_read(t, b.f, b.memory, &err), LARDER_EIO, &err); /* an error, and no hang */
    CHECK_EQ(err.sys_errno, EPERM);
    batch_release(&b);
    tiers_close(t);
}

static void in_sandbox(void (*fn)(const struct files *f))
{
    struct files f = files_make(2, 100000, 1);
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        fn(&f);
        _exit(atomic_load(&test_failures) != 0);
    }
    REQUIRE(waitpid(pid, &status, 0) == pid);
    files_release(&f);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        TEST_SKIP("no seccomp, or no io_uring, here");
    CHECK_EQ(status, 0);
}

TEST(io_uring_forbidden_at_open) { in_sandbox(forbidden_at_open); }
TEST(io_uring_forbidden_later) { in_sandbox(forbidden_later); }

TEST_MAIN();
