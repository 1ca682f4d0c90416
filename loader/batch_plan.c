/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch_plan.c - which samples a rank's batches have.
 *
 *     order or mix: position -> sample       slicing: batch number -> positions       assign: positions -> ranks
 *
 * A global batch is world x batch_size positions in turn. All ranks get equally many batches, and of each their part: by default a
 * contiguous slice, else what a function of the caller says. Whatever it says, the global batch is the same, so a state (epoch, positions
 * handed out) means the same with any. A rank's own batches (slicing.ends) may be of any length, and nothing is cut.
 *
 * Pure, but for the caller's function, which has to be. The room for a global batch makes a struct batch_plan one thread's.
 */
#include "loader/loader_int.h"

/* ---- slices ---- */

/* The first of a rank's own batches that ends behind from. */
static uint64_t ends_after(const struct slicing *s, uint64_t from)
{
    uint64_t lo = 0, hi = s->n_ends;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        if (s->ends[mid] > from)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

uint64_t slicing_batches(const struct slicing *s, uint64_t from, uint64_t length)
{
    if (s->ends)
        return s->n_ends - ends_after(s, from);
    uint64_t g = (uint64_t)s->batch_size * s->world, left = length > from ? length - from : 0;
    return left / g + (s->last != LARDER_LAST_DROP && left % g != 0);
}

uint64_t slicing_position(const struct slicing *s, uint64_t from, uint64_t length, uint64_t number)
{
    if (s->ends)
        return number ? s->ends[ends_after(s, from) + number - 1] : from;
    return MIN(from + number * s->batch_size * s->world, length);
}

struct slice slicing_batch(const struct slicing *s, uint64_t from, uint64_t length, uint64_t number)
{
    if (s->ends) {
        uint64_t at = ends_after(s, from) + number, begin = number ? s->ends[at - 1] : from;
        uint32_t n = (uint32_t)(s->ends[at] - begin);
        return (struct slice){begin, n, n};
    }
    uint64_t g = (uint64_t)s->batch_size * s->world, begin = from + number * g, left = length - begin;
    struct slice whole = {begin + (uint64_t)s->rank * s->batch_size, s->batch_size, s->batch_size};
    if (left >= g)
        return whole;
    if (s->last == LARDER_LAST_PAD) { /* what is missing is taken from the beginning of the epoch, and marked */
        uint64_t mine = (uint64_t)s->rank * s->batch_size;
        whole.valid = left > mine ? (uint32_t)MIN(left - mine, (uint64_t)s->batch_size) : 0;
        return whole;
    }
    uint64_t each = left / s->world, more = left % s->world; /* as even as it can be */
    uint32_t n = (uint32_t)(each + (s->rank < more));
    return (struct slice){begin + s->rank * each + MIN((uint64_t)s->rank, more), n, n};
}

/* ---- samples ---- */

uint64_t batch_plan_length(const struct batch_plan *p) { return p->mix ? p->mix->length : order_length(&p->order); }

/* n positions from `first` on, beyond the epoch's end from its beginning again. */
static void fill_from(const struct batch_plan *p, uint64_t epoch, uint64_t first, uint32_t n, uint64_t *ordinals, uint32_t *sources)
{
    uint64_t length = batch_plan_length(p);
    for (uint32_t done = 0; done < n;) {
        uint64_t at = (first + done) % length;
        size_t count = (size_t)MIN((uint64_t)(n - done), length - at);
        if (p->mix)
            mix_fill(p->mix, epoch, at, count, ordinals + done, sources + done);
        else
            order_fill(&p->order, epoch, at, count, ordinals + done);
        done += (uint32_t)count;
    }
}

void order_slice(const struct order *o, uint64_t epoch, const struct slice *s, uint64_t *ordinals)
{
    struct batch_plan p = {.order = *o};
    fill_from(&p, epoch, s->position, s->n, ordinals, NULL);
}

/* ---- a caller's assignment ---- */

/* Room for a global batch: of what there is at most. */
static uint64_t room(const struct batch_plan *p)
{
    uint64_t g = (uint64_t)p->slicing.batch_size * p->slicing.world;
    return p->slicing.last == LARDER_LAST_PAD ? g : MIN(g, batch_plan_length(p));
}

uint64_t batch_plan_bytes(const struct batch_plan *p)
{
    return p->assign ? room(p) * (sizeof(*p->ordinals) + sizeof(*p->ranks) + (p->mix ? sizeof(*p->sources) : 0)) : 0;
}

int batch_plan_prepare(struct batch_plan *p, struct larder_error *err)
{
    uint64_t n = room(p);
    if (!p->assign)
        return LARDER_OK;
    if (n > UINT32_MAX)
        return err_set(err, LARDER_EINVAL, "a global batch of %llu samples (batch_size %u x world %u) cannot be assigned: %u at most",
                       (unsigned long long)n, p->slicing.batch_size, p->slicing.world, UINT32_MAX);
    p->ordinals = calloc(n + 1, sizeof(*p->ordinals));
    p->ranks = calloc(n + 1, sizeof(*p->ranks));
    p->sources = p->mix ? calloc(n + 1, sizeof(*p->sources)) : NULL;
    if (p->ordinals && p->ranks && (p->sources || !p->mix))
        return LARDER_OK;
    batch_plan_release(p);
    return err_nomem(err, batch_plan_bytes(p), "a global batch");
}

void batch_plan_release(struct batch_plan *p)
{
    free(p->ordinals);
    free(p->sources);
    free(p->ranks);
    p->ordinals = NULL;
    p->sources = p->ranks = NULL;
}

/* How many of n samples have rank r; *beyond: one that has none of the world. */
static uint64_t count_rank(const struct batch_plan *p, uint32_t n, uint32_t r)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += p->ranks[i] == r;
    return count;
}

/* Every rank checks its own share, so that together they are the global batch, and that no sample goes to nobody. */
static int check_ranks(const struct batch_plan *p, uint64_t number, uint32_t n, uint32_t want, struct larder_error *err)
{
    for (uint32_t i = 0; i < n; i++)
        if (p->ranks[i] >= p->slicing.world)
            return err_set(err, LARDER_EINVAL, "assign: sample %u of global batch %llu goes to rank %u; ranks are 0 to %u", i,
                           (unsigned long long)number, p->ranks[i], p->slicing.world - 1);
    uint64_t mine = count_rank(p, n, p->slicing.rank);
    if (mine != want)
        return err_set(err, LARDER_EINVAL, "assign: rank %u gets %llu of the %u samples of global batch %llu, and has to get %u",
                       p->slicing.rank, (unsigned long long)mine, n, (unsigned long long)number, want);
    return LARDER_OK;
}

static int fill_assigned(struct batch_plan *p, uint64_t epoch, uint64_t from, uint64_t number, struct slice *s, uint64_t *ordinals,
                         uint32_t *sources, uint64_t *positions, struct larder_error *err)
{
    uint64_t length = batch_plan_length(p), begin = slicing_position(&p->slicing, from, length, number), left = length - begin;
    uint64_t g = (uint64_t)p->slicing.batch_size * p->slicing.world;
    uint32_t n = (uint32_t)(p->slicing.last == LARDER_LAST_PAD ? g : MIN(g, left)), at = 0;
    struct larder_assign_in in = {epoch, number, begin, p->ordinals, p->mix ? p->sources : NULL, n, p->slicing.world};

    fill_from(p, epoch, begin, n, p->ordinals, p->sources);
    memset(p->ranks, 0xff, n * sizeof(*p->ranks)); /* what it leaves out is no rank */
    int rc = p->assign(p->assign_user, &in, p->ranks, err);
    if (rc)
        return rc < 0 ? rc : err_set(err, LARDER_EINVAL, "assign returned %d, which is no error's code", rc);
    rc = check_ranks(p, number, n, s->n, err);
    if (rc)
        return rc;
    s->valid = 0;
    for (uint32_t i = 0; i < n; i++) { /* by position: what only fills up comes last */
        if (p->ranks[i] != p->slicing.rank)
            continue;
        ordinals[at] = p->ordinals[i];
        positions[at] = (begin + i) % length;
        if (p->mix)
            sources[at] = p->sources[i];
        s->valid += i < left;
        at++;
    }
    s->position = at ? positions[0] : begin;
    return LARDER_OK;
}

int batch_plan_fill(struct batch_plan *p, uint64_t epoch, uint64_t from, uint64_t number, struct slice *slice, uint64_t *ordinals,
                    uint32_t *sources, uint64_t *positions, struct larder_error *err)
{
    if (p->assign)
        return fill_assigned(p, epoch, from, number, slice, ordinals, sources, positions, err);
    fill_from(p, epoch, slice->position, slice->n, ordinals, sources);
    return LARDER_OK;
}
