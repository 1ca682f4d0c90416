/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_dram_scale.c - does reading from DRAM scale with threads and processes as the memory does?
 *
 * Records of 2.5 kB, batches of 256. The speed-up of two readers over one, for larder (two threads of a process, or two processes
 * that share the cache), and for the bare loop that copies the same records out of one array. ratio = larder's speed-up over
 * the bare loop's.
 */
#include "tests/bench/dram_bench.h"

#include <pthread.h>
#include <sys/mman.h>

struct shared { pthread_barrier_t start; double rate[2]; };
struct ctx { struct data d; struct shared *shared; char cache[64]; };
struct job { struct ctx *c; int which, bare; };

static double work(struct data *d, int which, int bare)
{
    uint64_t sum = 0, seed = 42 + (uint64_t)which;

    return bare ? copy_random(d, seed, d->c->batches, &sum) : read_random(d, seed, d->c->batches, &sum);
}

static void *thread(void *arg)
{
    struct job *j = arg;

    pthread_barrier_wait(&j->c->shared->start);
    j->c->shared->rate[j->which] = work(&j->c->d, j->which, j->bare);
    return NULL;
}

static double two_threads(struct ctx *c, int bare)
{
    struct job j[2] = {{c, 0, bare}, {c, 1, bare}};
    pthread_t t[2];

    for (int i = 0; i < 2; i++)
        if (pthread_create(&t[i], NULL, thread, &j[i]) != 0)
            bench_die("no thread");
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    return c->shared->rate[0] + c->shared->rate[1];
}

/* The child joins the cache, which is full already. The bare loop's array is inherited. */
static void child(struct ctx *c, int which, int bare)
{
    struct data d = {.c = c->d.c, .array = c->d.array};

    if (!bare)
        data_open(&d, c->d.c, c->cache);
    pthread_barrier_wait(&c->shared->start);
    c->shared->rate[which] = work(&d, which, bare);
    _exit(0);
}

static double two_processes(struct ctx *c, int bare)
{
    pid_t pids[2];
    int status;

    for (int i = 0; i < 2; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            child(c, i, bare);
    }
    for (int i = 0; i < 2; i++)
        if (waitpid(pids[i], &status, 0) != pids[i] || status != 0)
            bench_die("a process failed");
    return c->shared->rate[0] + c->shared->rate[1];
}

static void run_case(struct ctx *c, const char *name, double (*two)(struct ctx *, int))
{
    enum { ROUNDS = 5 };
    struct bench_side ours, bare;
    char more[200];

    for (int i = -1; i < ROUNDS; i++) {
        double one = work(&c->d, 0, 0), both = two(c, 0), bare_one = work(&c->d, 0, 1), bare_both = two(c, 1);

        if (i >= 0)
            ours.v[i] = both / one, bare.v[i] = bare_both / bare_one;
    }
    bench_side_sum(&ours, ROUNDS);
    bench_side_sum(&bare, ROUNDS);
    snprintf(more, sizeof more, "\"value_bytes\": %u, \"baseline_min\": %.3f, \"baseline_max\": %.3f", c->d.c->bytes, bare.min,
             bare.max);
    bench_line(name, &ours, bare.median, "bare memcpy loop", ours.median / bare.median, "speed-up", ROUNDS, more);
}

int main(int argc, char **argv)
{
    struct ctx c = {0};
    pthread_barrierattr_t attr;

    c.shared = mmap(NULL, sizeof *c.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (c.shared == MAP_FAILED)
        bench_die("no memory");
    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&c.shared->start, &attr, 2);
    snprintf(c.cache, sizeof c.cache, "bench-scale-%d", (int)getpid());
    data_open(&c.d, &cases[1], c.cache);
    data_array(&c.d);
    if (bench_wanted(argc, argv, "dram_scale/threads"))
        run_case(&c, "dram_scale/threads", two_threads);
    if (bench_wanted(argc, argv, "dram_scale/processes"))
        run_case(&c, "dram_scale/processes", two_processes);
    data_close(&c.d);
    return 0;
}
