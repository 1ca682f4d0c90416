/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.c - where a run of epochs stands, as text, and how it goes on from there.
 *
 *     {"larder_state": 1, "uuid": ..., "lineage": ..., "generation": G, "samples": N, "seed": "hex", "order": "hex", "epoch": E,
 *      "position": P}
 *
 * P positions of epoch E have been handed out, over all ranks: world and batch size are not in it, so that a run may go on with
 * others. What the order depends on is: all of it must be as it was, or the samples that come next would not be those that are
 * missing. `order` is a digest of shuffle, blocks, epoch size, filter, weights and list. Pure.
 */
#include "loader/loader_int.h"

#define STATE_VERSION 1

uint64_t order_digest(const struct order *o)
{
    uint64_t words[4] = {(uint64_t)o->shuffle, o->shuffle == LARDER_SHUFFLE_BLOCK ? o->block : 0,
                         o->shuffle == LARDER_SHUFFLE_BLOCK ? o->window : 0, order_length(o)};
    uint64_t h = hash64(STATE_VERSION, words, sizeof(words));
    if (o->subset)
        h = hash64(h ^ 1, o->subset->bits, (o->subset->n + 63) / 64 * 8);
    if (o->alias)
        h = hash64(h ^ 2, o->alias->entry, o->alias->n * sizeof(*o->alias->entry));
    if (o->list)
        h = hash64(h ^ 3, o->list, o->n * sizeof(*o->list));
    return h;
}

static void hex64(uint64_t v, char out[17]) { snprintf(out, 17, "%016llx", (unsigned long long)v); }

int state_encode(const struct state *s, struct buf *out, struct larder_error *err)
{
    AUTO_JSON struct json *o = json_new_object();
    char seed[17], order[17];
    hex64(s->seed, seed);
    hex64(s->order, order);
    if (json_set_u64(o, "larder_state", STATE_VERSION) || json_set_hex(o, "uuid", s->uuid, 16) || json_set_hex(o, "lineage", s->lineage, 16) ||
        json_set_u64(o, "generation", s->generation) || json_set_u64(o, "samples", s->samples) || json_set_str(o, "seed", seed) ||
        json_set_str(o, "order", order) || json_set_u64(o, "epoch", s->epoch) || json_set_u64(o, "position", s->position))
        return err_nomem(err, 512, "a loader's state");
    return json_dump(o, out, err);
}

static int hex64_get(const struct json *o, const char *key, uint64_t *v, struct larder_error *err)
{
    uint8_t bytes[8];
    int rc = json_get_hex(o, key, "state", bytes, 8, err);
    for (int i = 0; !rc && i < 8; i++)
        *v = *v << 8 | bytes[i];
    return rc;
}

static int parse(const struct json *o, struct state *s, struct larder_error *err)
{
    uint64_t version = 0;
    int rc = json_get_u64(o, "larder_state", "state", &version, err);
    if (!rc && version != STATE_VERSION)
        return err_set(err, LARDER_EVERSION, "state: version %llu, this larder knows %d", (unsigned long long)version, STATE_VERSION);
    if (rc || (rc = json_get_hex(o, "uuid", "state", s->uuid, 16, err)) || (rc = json_get_hex(o, "lineage", "state", s->lineage, 16, err)) ||
        (rc = json_get_u64(o, "generation", "state", &s->generation, err)) ||
        (rc = json_get_u64(o, "samples", "state", &s->samples, err)) || (rc = hex64_get(o, "seed", &s->seed, err)) ||
        (rc = hex64_get(o, "order", &s->order, err)) || (rc = json_get_u64(o, "epoch", "state", &s->epoch, err)))
        return rc;
    return json_get_u64(o, "position", "state", &s->position, err);
}

int state_decode(const char *text, size_t len, struct state *s, struct larder_error *err)
{
    struct larder_error why = {0};
    AUTO_JSON struct json *o = json_parse(text, len, "state", &why);
    struct state got = {.seed = 0};
    int rc = o ? parse(o, &got, &why) : why.code;
    if (rc == LARDER_ECORRUPT)
        return err_set(err, LARDER_EINVAL, "this is not what larder_loader_state() gave: %.180s", why.message);
    if (rc) {
        if (err)
            *err = why;
        return rc;
    }
    *s = got;
    return LARDER_OK;
}

static int differs(const char *what, const char *saved, const char *now, struct larder_error *err)
{
    return err_set(err, LARDER_EINVAL, "the state was saved with another %s: %s then, %s now", what, saved, now);
}

static int differs_u64(const char *what, uint64_t saved, uint64_t now, struct larder_error *err)
{
    char a[24], b[24];
    snprintf(a, sizeof(a), "%llu", (unsigned long long)saved);
    snprintf(b, sizeof(b), "%llu", (unsigned long long)now);
    return differs(what, a, b, err);
}

int state_check(const struct state *saved, const struct state *now, uint64_t length, struct larder_error *err)
{
    char a[33], b[33];
    if (memcmp(saved->uuid, now->uuid, 16)) {
        hex_encode(saved->uuid, 16, a);
        hex_encode(now->uuid, 16, b);
        return differs("dataset (uuid)", a, b, err);
    }
    if (memcmp(saved->lineage, now->lineage, 16)) {
        hex_encode(saved->lineage, 16, a);
        hex_encode(now->lineage, 16, b);
        return differs("lineage of the dataset, in which ordinals mean other samples", a, b, err);
    }
    if (saved->samples != now->samples)
        return differs_u64("number of samples (open its generation)", saved->samples, now->samples, err);
    if (saved->seed != now->seed)
        return differs_u64("seed", saved->seed, now->seed, err);
    if (saved->order != now->order) {
        hex64(saved->order, a);
        hex64(now->order, b);
        return differs("shuffle, epoch size, filter, weights or order (digest)", a, b, err);
    }
    if (saved->position > length)
        return err_set(err, LARDER_EINVAL, "the state stands at position %llu of an epoch of %llu", (unsigned long long)saved->position,
                       (unsigned long long)length);
    return LARDER_OK;
}
