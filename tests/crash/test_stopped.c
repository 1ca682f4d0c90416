/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_stopped.c - a process that is stopped (SIGSTOP) while it fetches for others, and closing a loader that waits for one.
 *
 * The others go on by themselves within seconds, every byte of theirs is right, and so is every byte of the stopped one
 * once it goes on. Bounds on time are far above what is needed, and below the 30 s that a claim may last at most.
 */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "loader/loader_int.h"
#include "tests/unit/dataset.h"
#include "tiers/dram_int.h"
#include "tiers/stack_int.h"

static const struct dataset_spec spec = {2000, 500, 3900, 0, 20, LARDER_COMPRESS_NONE};
#define BOUND_NS 20000000000ull
enum { HELD = 700 };

static const char *dir;
static char cache_name[64];

struct opened { struct larder_cache *cache; struct larder_dataset *ds; };

static struct opened open_all(int replacement)
{
    struct larder_cache_options co = LARDER_CACHE_OPTIONS_INIT;
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_error err;
    struct opened a = {0};

    co.name = cache_name;
    co.dram_bytes = replacement == LARDER_REPLACE_FIFO ? 4 * MIB : 40 * MIB;
    co.replacement = replacement;
    CHECK_OK(larder_cache_open(&co, &a.cache, &err), &err);
    o.cache = a.cache;
    CHECK_OK(larder_dataset_open(dir, &o, &a.ds, &err), &err);
    return a;
}

static void close_all(struct opened *a)
{
    larder_dataset_close(a->ds);
    larder_cache_close(a->cache);
}

static struct larder_loader *open_ld(struct larder_dataset *ds, uint64_t epochs)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader *ld;
    struct larder_error err;

    o.batch_size = 64;
    o.epochs = epochs;
    REQUIRE_OK(larder_loader_open(ds, &o, &ld, &err), &err);
    return ld;
}

/* Reads whole epochs and checks every byte. */
static void epochs(struct larder_dataset *ds, uint64_t count)
{
    struct larder_loader *ld = open_ld(ds, count);
    const struct larder_batch *b;
    struct larder_error err;
    int rc;

    for (uint64_t e = 0; e < count; e++) {
        uint64_t n = 0;

        while ((rc = larder_loader_next(ld, &b, &err)) == 0) {
            for (uint32_t i = 0; i < b->n; i++)
                CHECK(sample_is(&spec, b->ordinals[i], b->values + (size_t)i * b->n_fields));
            n += b->n;
            larder_batch_release(b);
        }
        CHECK_ERR(rc, LARDER_END, &err);
        CHECK_EQ(n, spec.n);
    }
    larder_loader_close(ld);
}

/* Starts one fetch of the first HELD records, which claims them, and stops itself; then takes what it fetched. */
static void stop_amid_a_fetch(struct opened *a)
{
    struct tiers *t = a->ds->tiers;
    struct tiers_queue *q;
    struct tiers_fetch *f;
    struct larder_error err;
    uint64_t ordinals[HELD];
    struct decoder *decoder;
    size_t bytes;
    void *tag;

    for (uint64_t i = 0; i < HELD; i++)
        ordinals[i] = i;
    CHECK_OK(tiers_queue_open(t, 4, &q, &err), &err);
    CHECK_OK(tiers_fetch_new(t, &f, &err), &err);
    CHECK_OK(decoder_new(&decoder, &err), &err);
    CHECK_OK(tiers_fetch_plan(f, ordinals, HELD, &bytes, &err), &err);
    uint8_t *memory = aligned_alloc(TIERS_ALIGN, round_up(bytes, TIERS_ALIGN));
    CHECK_OK(tiers_fetch_start(q, f, memory, NULL, &err), &err);
    raise(SIGSTOP);
    CHECK_OK(tiers_queue_next(q, true, &f, &tag, &err), &err);
    for (uint64_t i = 0; i < HELD; i++) {
        struct larder_value v[F_COUNT];

        CHECK_OK(store_decode(a->ds->store, decoder, tiers_fetch_extent(f, i), tiers_fetch_record(f, i), NULL, v, &err), &err);
        CHECK(sample_is(&spec, i, v));
    }
    tiers_queue_close(q);
    tiers_fetch_free(f);
    decoder_free(decoder);
    free(memory);
}

static void prepare(const char *what)
{
    if (!dir)
        dir = dataset_make(&spec);
    snprintf(cache_name, sizeof(cache_name), "test-%s-%d", what, (int)getpid());
}

/* A child that waits until the caller has the cache open, so that somebody answers, and then does its work. */
static pid_t child(void (*work)(struct opened *a, int fd), int replacement, int go[2])
{
    REQUIRE_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, go), 0);
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        char c;

        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
        close(go[0]);
        if (read(go[1], &c, 1) != 1)
            _exit(9);
        struct opened a = open_all(replacement);
        work(&a, go[1]);
        close_all(&a);
        _exit(atomic_load(&test_failures) ? 1 : 0);
    }
    close(go[1]);
    return pid;
}

static int end_of(pid_t pid)
{
    int status = -1;

    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return status;
}

static void stop_and_go_on(struct opened *a, int fd)
{
    (void)fd;
    stop_amid_a_fetch(a);
    epochs(a->ds, 2);
}

static void one_is_stopped(int replacement)
{
    struct larder_cache_stats s = {.struct_size = sizeof(s)};
    struct larder_error err;
    int go[2], status;

    prepare(replacement == LARDER_REPLACE_FIFO ? "stop-fifo" : "stop");
    pid_t pid = child(stop_and_go_on, replacement, go);
    struct opened a = open_all(replacement);
    CHECK_EQ(write(go[0], "x", 1), 1);
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    REQUIRE(WIFSTOPPED(status));
    uint64_t began = now_ns();
    epochs(a.ds, 2);
    CHECK(now_ns() - began < BOUND_NS);
    CHECK_OK(larder_cache_stats(a.cache, &s, &err), &err);
    CHECK(s.joined == 0 && s.shared == 1);
    if (replacement == LARDER_REPLACE_NONE)
        CHECK_EQ(s.origin.hits, spec.n); /* what the stopped one had claimed too, and nothing twice */
    kill(pid, SIGCONT);
    CHECK_EQ(end_of(pid), 0);
    epochs(a.ds, 1);
    CHECK_OK(larder_cache_stats(a.cache, &s, &err), &err);
    if (replacement == LARDER_REPLACE_NONE) {
        CHECK_EQ(s.dram.entries, spec.n);
        CHECK_EQ(s.origin.hits, spec.n);
    }
    close_all(&a);
    close(go[0]);
}

TEST(a_stopped_process_holds_nobody_up) { one_is_stopped(LARDER_REPLACE_NONE); }
TEST(a_stopped_process_holds_nobody_up_fifo) { one_is_stopped(LARDER_REPLACE_FIFO); }

static void epochs_for_ever(struct opened *a, int fd)
{
    (void)fd;
    for (;;)
        epochs(a->ds, 1);
}

/* Stopped wherever it is, again and again. */
TEST(stopped_anywhere)
{
    uint64_t state = 11;
    int go[2];

    for (int round = 0; round < 6; round++) {
        int replacement = round % 2 ? LARDER_REPLACE_FIFO : LARDER_REPLACE_NONE;
        struct timespec ts = {0, (long)(1000000 + rng_below(&state, 60000000))};

        prepare(round % 2 ? "any-fifo" : "any");
        pid_t pid = child(epochs_for_ever, replacement, go);
        struct opened a = open_all(replacement);
        CHECK_EQ(write(go[0], "x", 1), 1);
        nanosleep(&ts, NULL);
        kill(pid, SIGSTOP);
        uint64_t began = now_ns();
        epochs(a.ds, 2);
        CHECK(now_ns() - began < BOUND_NS);
        kill(pid, SIGCONT);
        epochs(a.ds, 1);
        kill(pid, SIGKILL);
        CHECK_EQ(WTERMSIG(end_of(pid)), SIGKILL);
        close_all(&a);
        close(go[0]);
    }
}

/* ---- closing while others fetch ---- */

static struct dram *arena_of(const struct opened *a) { return cache_of(a->cache)->dram; }

static void claim_and_sleep(struct opened *a, int fd)
{
    for (uint64_t i = 0; i < HELD; i++)
        dram_claim(arena_of(a), a->ds->tiers->bound->dram_space, i);
    CHECK_EQ(write(fd, "x", 1), 1);
    pause();
}

static bool somebody_waits(struct dram *d)
{
    for (uint32_t i = 0; i < d->h->claim_sets; i++)
        if (atomic_load(&d->claims[i].waiters))
            return true;
    return false;
}

TEST(closing_does_not_wait_for_others)
{
    int go[2];
    char c;

    prepare("close");
    pid_t pid = child(claim_and_sleep, LARDER_REPLACE_NONE, go);
    struct opened a = open_all(LARDER_REPLACE_NONE);
    CHECK_EQ(write(go[0], "x", 1), 1);
    REQUIRE_EQ(read(go[0], &c, 1), 1);
    for (int round = 0; round < 3; round++) {
        /* As if claims had taken long: these are not late for 30 s. */
        atomic_store(&arena_of(&a)->h->slowest, 0xffff);
        struct larder_loader *ld = open_ld(a.ds, 1);
        for (int i = 0; i < 5000 && !somebody_waits(arena_of(&a)); i++)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        CHECK(somebody_waits(arena_of(&a)));
        uint64_t began = now_ns();
        larder_loader_close(ld);
        CHECK(now_ns() - began < BOUND_NS / 4);
        CHECK(!somebody_waits(arena_of(&a)));
    }
    kill(pid, SIGKILL);
    CHECK_EQ(WTERMSIG(end_of(pid)), SIGKILL);
    epochs(a.ds, 1); /* its claims are gone with it */
    close_all(&a);
    close(go[0]);
}

TEST_MAIN();
