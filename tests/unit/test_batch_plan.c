/* SPDX-License-Identifier: Apache-2.0 */
#include "loader/loader_int.h"
#include "tests/unit/test.h"

/* The ranks' slices of every epoch, for worlds 1 to 64 and every `last`: disjoint, together what is promised, equally many batches. */
TEST(ranks_share_an_epoch)
{
    static const uint64_t lengths[] = {1, 5, 64, 100, 129, 1000};
    static const uint32_t sizes[] = {1, 3, 32};

    for (size_t k = 0; k < ARRAY_LEN(lengths); k++)
        for (size_t b = 0; b < ARRAY_LEN(sizes); b++)
            for (uint32_t world = 1; world <= 64; world++)
                for (int last = LARDER_LAST_SHORT; last <= LARDER_LAST_PAD; last++)
                    for (uint64_t from = 0; from <= lengths[k]; from += 1 + lengths[k] / 3) {
                        uint64_t n = lengths[k], g = (uint64_t)sizes[b] * world, valid = 0, *count = calloc(n, sizeof(*count));
                        uint64_t batches = slicing_batches(&(struct slicing){.batch_size = sizes[b], .world = world, .last = last}, from, n);
                        for (uint64_t i = 0; i < batches; i++) {
                            uint32_t most = 0, least = UINT32_MAX;
                            uint64_t next = from + i * g;
                            for (uint32_t rank = 0; rank < world; rank++) {
                                struct slicing s = {.batch_size = sizes[b], .world = world, .rank = rank, .last = last};
                                struct slice c = slicing_batch(&s, from, n, i);
                                CHECK(c.valid <= c.n && c.n <= sizes[b]);
                                CHECK(c.n == 0 || last == LARDER_LAST_PAD || c.position == next);
                                next += c.n;
                                for (uint32_t q = 0; q < c.valid; q++)
                                    count[c.position + q]++;
                                valid += c.valid;
                                most = MAX(most, c.n);
                                least = MIN(least, c.n);
                            }
                            CHECK(most - least <= 1);
                            CHECK(last == LARDER_LAST_SHORT || least == sizes[b]);
                        }
                        uint64_t covered = last == LARDER_LAST_DROP ? (n - from) / g * g : n - from;
                        CHECK_EQ(valid, covered);
                        CHECK_EQ(slicing_position(&(struct slicing){.batch_size = sizes[b], .world = world, .last = last}, from, n, batches),
                                 from + covered);
                        for (uint64_t q = 0; q < n; q++)
                            CHECK_EQ(count[q], q >= from && q < from + covered);
                        free(count);
                    }
}

TEST(padding_comes_from_the_beginning)
{
    struct order o = {.n = 10, .seed = 4, .shuffle = LARDER_SHUFFLE_FULL};
    struct slicing s = {.batch_size = 4, .world = 3, .rank = 2, .last = LARDER_LAST_PAD};
    struct slice c = slicing_batch(&s, 0, 10, 0);
    uint64_t whole[10], got[4];

    order_fill(&o, 1, 0, 10, whole);
    CHECK_EQ(c.position, 8);
    CHECK_EQ(c.valid, 2);
    order_slice(&o, 1, &c, got);
    CHECK(got[0] == whole[8] && got[1] == whole[9] && got[2] == whole[0] && got[3] == whole[1]);
    o.n = 1; /* smaller than one batch */
    c = slicing_batch(&s, 0, 1, 0);
    order_slice(&o, 1, &c, got);
    CHECK(c.valid == 0 && got[0] == 0 && got[3] == 0);
}

/* A rank's own batches, of any lengths, from the beginning or from between two of them. */
TEST(own_batches_are_not_cut)
{
    static const uint64_t ends[] = {3, 4, 10, 11, 64};
    struct slicing s = {.batch_size = 53, .world = 1, .last = LARDER_LAST_SHORT, .ends = ends, .n_ends = ARRAY_LEN(ends)};
    uint64_t from = 0;

    for (size_t first = 0; first <= ARRAY_LEN(ends); first++) {
        CHECK_EQ(slicing_batches(&s, from, 64), ARRAY_LEN(ends) - first);
        for (size_t i = first; i < ARRAY_LEN(ends); i++) {
            struct slice c = slicing_batch(&s, from, 64, i - first);
            CHECK_EQ(c.position, i ? ends[i - 1] : 0);
            CHECK_EQ(c.n, ends[i] - c.position);
            CHECK_EQ(c.valid, c.n);
            CHECK_EQ(slicing_position(&s, from, 64, i - first), c.position);
        }
        from = first < ARRAY_LEN(ends) ? ends[first] : 0;
    }
}

/* ---- assignment ---- */

static int by_hash(void *user, const struct larder_assign_in *in, uint32_t *ranks, struct larder_error *err)
{
    uint32_t each = in->n / in->world, more = in->n % in->world;
    uint64_t *count = user, state = in->position + in->epoch * 1000 + 1;

    (void)err;
    memset(count, 0, in->world * sizeof(*count));
    for (uint32_t i = 0; i < in->n; i++) { /* anyone who has room, by the sample */
        uint64_t r = (in->ordinals[i] * 31 + rng_below(&state, 7)) % in->world;
        while (count[r] == each + (r < more))
            r = (r + 1) % in->world;
        count[r]++;
        ranks[i] = (uint32_t)r;
    }
    return LARDER_OK;
}

/* All batches of an epoch for all ranks: the global batches are those of the order whatever the assignment, and each rank has as many
 * samples as without one. */
static void assigned(uint32_t world, uint32_t batch_size, uint64_t n, int last, uint64_t from)
{
    struct order o = {.n = n, .seed = 12, .shuffle = LARDER_SHUFFLE_FULL};
    uint64_t g = (uint64_t)batch_size * world, *want = malloc((n + g) * sizeof(*want)), got[64], positions[64], count[64];
    struct larder_error err;
    struct batch_plan p = {.order = o, .slicing = {.batch_size = batch_size, .world = world, .last = last}, .assign = by_hash, .assign_user = count};

    order_fill(&o, 3, 0, n, want);
    REQUIRE_OK(batch_plan_prepare(&p, &err), &err);
    CHECK(batch_plan_bytes(&p) >= MIN(g, n) * 12 || last == LARDER_LAST_PAD);
    for (uint64_t b = 0; b < slicing_batches(&p.slicing, from, n); b++) {
        uint64_t begin = from + b * g, all = MIN(g, n - begin), valid = 0;
        uint8_t *seen = calloc(g, 1);
        for (uint32_t rank = 0; rank < world; rank++) {
            p.slicing.rank = rank;
            struct slice plain = slicing_batch(&p.slicing, from, n, b), s = plain;
            REQUIRE_OK(batch_plan_fill(&p, 3, from, b, &s, got, NULL, positions, &err), &err);
            CHECK_EQ(s.n, plain.n);
            CHECK(s.n == 0 || s.position == positions[0]);
            valid += s.valid;
            for (uint32_t i = 0; i < s.n; i++) {
                CHECK_EQ(got[i], want[positions[i]]);
                if (i < s.valid) {
                    REQUIRE(positions[i] >= begin && positions[i] - begin < all);
                    CHECK_EQ(seen[positions[i] - begin]++, 0);
                    CHECK(i == 0 || positions[i] > positions[i - 1]);
                }
            }
        }
        CHECK_EQ(valid, all);
        free(seen);
    }
    batch_plan_release(&p);
    free(want);
}

TEST(assignments_share_out_what_slices_would)
{
    for (uint32_t world = 1; world <= 64; world = world * 2 + 1)
        for (int last = LARDER_LAST_SHORT; last <= LARDER_LAST_PAD; last++)
            for (uint64_t n = 1; n < 500; n = n * 5 + 3)
                assigned(world, 1 + world % 5, n, last, n / 4);
}

struct wrong { int how; };
static int wrongly(void *user, const struct larder_assign_in *in, uint32_t *ranks, struct larder_error *err)
{
    const struct wrong *w = user;

    for (uint32_t i = 0; i < in->n; i++)
        ranks[i] = i / 4;
    switch (w->how) {
    case 0: ranks[5] = 2; break;       /* beyond the world */
    case 1: ranks[5] = 0; break;       /* too many */
    case 2: return err_set(err, LARDER_EIO, "no map of where samples lie");
    case 3: return 7;
    default: break;
    }
    return LARDER_OK;
}

TEST(wrong_assignments_are_refused)
{
    static const int codes[] = {LARDER_EINVAL, LARDER_EINVAL, LARDER_EIO, LARDER_EINVAL, LARDER_OK};
    static const char *const words[] = {"sample 5 of global batch 1 goes to rank 2", "rank 1 gets 3 of the 8 samples of global batch 1",
                                        "no map", "assign returned 7", ""};
    struct wrong w;
    struct batch_plan p = {.order = {.n = 100, .shuffle = LARDER_SHUFFLE_NONE},
                           .slicing = {.batch_size = 4, .world = 2, .rank = 1, .last = LARDER_LAST_DROP}, .assign = wrongly, .assign_user = &w};
    uint64_t got[4], positions[4];
    struct larder_error err = {0};

    REQUIRE_OK(batch_plan_prepare(&p, &err), &err);
    for (w.how = 0; w.how < 5; w.how++) {
        struct slice s = slicing_batch(&p.slicing, 0, 100, 1);
        CHECK_EQ(batch_plan_fill(&p, 0, 0, 1, &s, got, NULL, positions, &err), codes[w.how]);
        CHECK(strstr(err.message, words[w.how]) != NULL);
    }
    CHECK(got[0] == 12 && got[3] == 15 && positions[1] == 13);
    batch_plan_release(&p);
}

/* Positions handed out up to anywhere, then the rest with another world and batch size: each sample once. Again and again. */
TEST(epochs_go_on_with_another_world)
{
    enum { N = 3001 };
    struct order o = {.n = N, .seed = 6, .shuffle = LARDER_SHUFFLE_FULL};
    uint64_t state = 4, got[256];

    for (int round = 0; round < 60; round++) {
        uint8_t seen[N] = {0};
        uint64_t from = 0, total = 0;
        while (from < N) {
            struct slicing s = {.batch_size = 1 + (uint32_t)rng_below(&state, 37), .world = 1 + (uint32_t)rng_below(&state, 64),
                                .last = rng_below(&state, 2) ? LARDER_LAST_SHORT : LARDER_LAST_PAD};
            uint64_t batches = slicing_batches(&s, from, N), until = 1 + rng_below(&state, batches);
            for (uint64_t b = 0; b < until; b++)
                for (s.rank = 0; s.rank < s.world; s.rank++) {
                    struct slice c = slicing_batch(&s, from, N, b);
                    order_slice(&o, 9, &c, got);
                    for (uint32_t i = 0; i < c.valid; i++)
                        CHECK_EQ(seen[got[i]]++, 0);
                    total += c.valid;
                }
            from = slicing_position(&s, from, N, until);
            CHECK_EQ(total, from);
        }
        CHECK_EQ(total, N);
    }
}

TEST_MAIN();
