/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest.c - what a loader delivered, as two numbers.
 *
 * order_hash chains the ordinals in the order of delivery, so it does not depend on the batch size; data_hash adds up, mod 2^64, a hash of
 * (ordinal, delivered values) of each sample, so it does not depend on the order and finds a sample that is wrong, lost or delivered twice.
 * The values are the fields as stored, or the sample's part of each array. Of a mix both know which dataset a sample is of, the first one
 * as if it were alone.
 */
#include <endian.h>

#include "tools/tools.h"

static uint64_t value_hash(uint64_t h, const struct larder_value *v)
{
    return v->data ? larder_hash64(h, v->data, v->len) : larder_hash64(~h, "", 0); /* what is not there is told from what is empty */
}

/* The part of sample i in an array of the kinds that bench asks for: one value, or a piece of equal size, a sample. */
static struct larder_value part(const struct larder_array *a, uint32_t n, uint32_t i)
{
    if (!a->data)
        return a->values[i];
    if (a->present && !a->present[i])
        return (struct larder_value){0};
    return (struct larder_value){(const char *)a->data + a->len / n * i, a->len / n};
}

void digest_add(struct digest *d, const struct larder_batch *b)
{
    for (uint32_t i = 0; i < b->valid; i++) {
        uint64_t ordinal = htole64(b->ordinals[i]), h = b->ordinals[i], source = b->sources ? b->sources[i] : 0;

        if (source) {
            h = larder_hash64(source, &ordinal, sizeof ordinal);
            ordinal = htole64(h);
        }
        d->order = larder_hash64(d->order, &ordinal, sizeof ordinal);
        for (uint32_t k = 0; k < b->n_fields; k++) {
            const struct larder_value *v = &b->values[(size_t)i * b->n_fields + k];

            h = value_hash(h, v);
            d->bytes += v->data ? v->len : 0;
        }
        for (uint32_t k = 0; k < b->n_arrays; k++) {
            struct larder_value v = part(&b->arrays[k], b->n, i);

            h = value_hash(h, &v);
            d->bytes += v.data ? v.len : 0;
        }
        d->data += h;
    }
    d->samples += b->valid;
}
