/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_order.c - which sample stands at a position: arithmetic, against a permutation that was shuffled in memory (Fisher and Yates).
 *
 * One thread asks for the samples of batches of 256, one batch after the other. The other side makes such a permutation for an epoch and
 * copies the batches out of it, which takes 8 bytes a sample; where there are too many samples for that it only writes numbers in turn.
 * `ns` is larder's time a position.
 *
 *     full/1281167       a full shuffle; full/1000000000
 *     block/1281167      a block shuffle, 1,024 samples a block, 16 blocks a window
 *     filter/1281167     a full shuffle of a half of the samples
 *     mix/3              three datasets by weight
 */
#include "loader/loader_int.h"
#include "tests/bench/bench.h"

#define BATCH 256

struct ctx {
    struct order order;
    struct mix *mix;
    uint64_t n, look;          /* positions in an epoch; looked at in a round */
    uint64_t *array, epoch, sum;
};

static double run_larder(void *arg)
{
    struct ctx *c = arg;
    uint64_t v[BATCH], sum = 0, at = 0;
    uint32_t sources[BATCH];
    double t = bench_now();

    for (; at + BATCH <= c->look; at += BATCH) {
        if (c->mix)
            mix_fill(c->mix, c->epoch, at, BATCH, v, sources);
        else
            order_fill(&c->order, c->epoch, at, BATCH, v);
        sum += v[at / BATCH % BATCH];
    }
    t = bench_now() - t;
    c->epoch++;
    c->sum += sum;
    return (double)at / t;
}

static double run_shuffled(void *arg)
{
    struct ctx *c = arg;
    uint64_t v[BATCH], sum = 0, at = 0, state = c->epoch;
    double t = bench_now();

    for (uint64_t i = 0; i < c->n; i++)
        c->array[i] = i;
    for (uint64_t i = c->n; i > 1; i--) {
        uint64_t k = (uint64_t)((unsigned __int128)bench_rng(&state) * i >> 64), x = c->array[i - 1];
        c->array[i - 1] = c->array[k];
        c->array[k] = x;
    }
    for (; at + BATCH <= c->n; at += BATCH) {
        memcpy(v, c->array + at, sizeof v);
        sum += v[at / BATCH % BATCH];
    }
    c->sum += sum;
    return (double)at / (bench_now() - t);
}

static double run_numbers(void *arg)
{
    struct ctx *c = arg;
    uint64_t v[BATCH], sum = 0, at = 0;
    double t = bench_now();

    for (; at + BATCH <= c->look; at += BATCH) {
        for (int i = 0; i < BATCH; i++)
            v[i] = at + (uint64_t)i;
        __asm__ volatile("" ::"r"(v) : "memory");
        sum += v[at / BATCH % BATCH];
    }
    c->sum += sum;
    return (double)at / (bench_now() - t);
}

static double ns_of(struct ctx *c)
{
    double v[5];

    for (int i = 0; i < 5; i++)
        v[i] = 1e9 / run_larder(c);
    return bench_median(v, 5);
}

static void run_case(const char *name, struct ctx *c)
{
    bool few = c->n <= 16000000;
    char more[128];

    c->look = MIN(c->n, (uint64_t)1281167);
    c->array = few ? malloc(c->n * sizeof *c->array) : NULL;
    if (few && !c->array)
        bench_die("no memory");
    snprintf(more, sizeof more, "\"ns\": %.3f, \"batch\": %d", ns_of(c), BATCH);
    bench_pair(name, run_larder, few ? run_shuffled : run_numbers, few ? "Fisher-Yates in memory" : "numbers in turn", "1/s", 7, c, more);
    free(c->array);
}

static void run_full(int argc, char **argv, uint64_t n)
{
    struct ctx c = {.order = {.n = n, .seed = 1, .shuffle = LARDER_SHUFFLE_FULL}, .n = n};
    char name[64];

    snprintf(name, sizeof name, "order/full/%" PRIu64, n);
    if (bench_wanted(argc, argv, name))
        run_case(name, &c);
}

static void run_filter(const char *name)
{
    uint64_t n = 1281167, state = 3;
    uint8_t *bits = malloc(n / 8 + 8);
    struct ctx c = {.n = 0};
    struct larder_error err;
    struct subset *s;

    bench_fill(&state, bits, n / 8 + 1);
    bench_ok(subset_new(bits, n, &s, &err), &err);
    c.n = s->members;
    c.order = (struct order){.n = s->members, .seed = 1, .shuffle = LARDER_SHUFFLE_FULL, .subset = s};
    run_case(name, &c);
    subset_free(s);
    free(bits);
}

static void run_mix(const char *name)
{
    static const double weights[] = {5, 3, 2};
    struct order orders[] = {{.n = 1281167, .shuffle = LARDER_SHUFFLE_FULL}, {.n = 500000, .shuffle = LARDER_SHUFFLE_FULL},
                             {.n = 50000, .shuffle = LARDER_SHUFFLE_FULL}};
    struct ctx c = {.n = 1281167};
    struct larder_error err;

    bench_ok(mix_new(orders, weights, 3, 1, LARDER_SHUFFLE_FULL, c.n, LARDER_EXHAUSTED_REPEAT, &c.mix, &err), &err);
    run_case(name, &c);
    mix_free(c.mix);
}

int main(int argc, char **argv)
{
    struct ctx block = {.order = {.n = 1281167, .seed = 1, .shuffle = LARDER_SHUFFLE_BLOCK, .block = 1024, .window = 16}, .n = 1281167};

    run_full(argc, argv, 1281167);
    run_full(argc, argv, 1000000000);
    if (bench_wanted(argc, argv, "order/block/1281167"))
        run_case("order/block/1281167", &block);
    if (bench_wanted(argc, argv, "order/filter/1281167"))
        run_filter("order/filter/1281167");
    if (bench_wanted(argc, argv, "order/mix/3"))
        run_mix("order/mix/3");
    return 0;
}
