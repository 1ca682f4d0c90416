/* SPDX-License-Identifier: Apache-2.0 */
/*
 * order.c - which sample stands where in an epoch.
 *
 * Position -> ordinal is a keyed bijection on [0, n) for a full shuffle and the identity without one. It depends on (seed,
 * epoch, n) alone: not on the batch size, threads or timing. So every future access is known without being stored
 * (HDMLP 3), and fetching ahead runs on into the next epoch without asking anybody. Pure: no clock, no I/O, no threads.
 */
#include "loader/loader_int.h"

void order_fill(const struct order *o, uint64_t epoch, uint64_t first, size_t count, uint64_t *ordinals)
{
    struct perm perm;
    size_t i;

    if (count == 0)
        return;
    if (o->shuffle == LARDER_SHUFFLE_FULL) {
        perm_init(&perm, o->seed, epoch, o->n);
        perm_range(&perm, first, count, ordinals);
        return;
    }
    for (i = 0; i < count; i++)
        ordinals[i] = first + i;
}

uint64_t order_batches(const struct order *o, uint32_t batch_size)
{
    return o->n / batch_size + (o->n % batch_size != 0);
}

uint32_t order_batch(const struct order *o, uint32_t batch_size, uint64_t number, uint64_t *position)
{
    if (number >= order_batches(o, batch_size))
        return 0;
    *position = number * batch_size;
    return (uint32_t)MIN((uint64_t)batch_size, o->n - *position);
}
