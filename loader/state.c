/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.c - where a run of epochs stands, as text, and how it goes on from there.
 *
 *     {"larder_state": 1, "uuid": ..., "lineage": ..., "generation": G, "samples": N, "seed": "hex", "order": "hex", "epoch": E,
 *      "position": P}
 *
 * Of a mix, instead of the four members of a dataset, "sources": [{"uuid": ..., "lineage": ..., "generation": G, "samples": N,
 * "weight": "hex"}, ...], weights as the bits of a double.
 *
 * P positions of epoch E have been handed out, over all ranks: world and batch size are not in it, so that a run may go on with
 * others. What the order depends on is: all of it must be as it was, or the samples that come next would not be those that are
 * missing. `order` is a digest of shuffle, blocks, epoch size, filter, split, weights, list and lengths of batches. Pure.
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

uint64_t batch_plan_digest(const struct batch_plan *p)
{
    uint64_t h = p->mix ? hash64(STATE_VERSION, NULL, 0) : order_digest(&p->order);
    if (p->mix) {
        uint64_t words[4] = {(uint64_t)p->mix->shuffle, p->mix->length, p->mix->block, p->mix->restart};
        h = hash64(h, words, sizeof(words));
    }
    for (uint32_t i = 0; p->mix && i < p->mix->n; i++) {
        uint64_t words[2] = {p->mix->source[i].share, order_digest(&p->mix->source[i].order)};
        h = hash64(h, words, sizeof(words));
    }
    if (p->slicing.ends)
        h = hash64(h ^ 4, p->slicing.ends, p->slicing.n_ends * sizeof(*p->slicing.ends));
    return h;
}

static void hex64(uint64_t v, char out[17]) { snprintf(out, 17, "%016llx", (unsigned long long)v); }

static int encode_source(const struct state_source *s, struct json *o)
{
    return json_set_hex(o, "uuid", s->uuid, 16) || json_set_hex(o, "lineage", s->lineage, 16) || json_set_u64(o, "generation", s->generation) ||
           json_set_u64(o, "samples", s->samples);
}

static int encode_sources(const struct state *s, struct json *o)
{
    struct json *list = json_new_array();
    for (uint32_t i = 0; i < s->n; i++) {
        struct json *one = json_new_object();
        char weight[17];
        hex64(s->source[i].weight, weight);
        if (encode_source(&s->source[i], one) || json_set_str(one, "weight", weight)) {
            json_free(one);
            json_free(list);
            return LARDER_ENOMEM;
        }
        if (json_add(list, one)) {
            json_free(list);
            return LARDER_ENOMEM;
        }
    }
    return json_set(o, "sources", list);
}

int state_encode(const struct state *s, struct buf *out, struct larder_error *err)
{
    AUTO_JSON struct json *o = json_new_object();
    char seed[17], order[17];
    hex64(s->seed, seed);
    hex64(s->order, order);
    if (json_set_u64(o, "larder_state", STATE_VERSION) || (s->mix ? encode_sources(s, o) : encode_source(s->source, o)) ||
        json_set_str(o, "seed", seed) || json_set_str(o, "order", order) || json_set_u64(o, "epoch", s->epoch) ||
        json_set_u64(o, "position", s->position))
        return err_nomem(err, LARDER_STATE_MAX, "a loader's state");
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

static int parse_source(const struct json *o, struct state_source *s, struct larder_error *err)
{
    int rc = json_get_hex(o, "uuid", "state", s->uuid, 16, err);
    if (!rc)
        rc = json_get_hex(o, "lineage", "state", s->lineage, 16, err);
    if (!rc)
        rc = json_get_u64(o, "generation", "state", &s->generation, err);
    return rc ? rc : json_get_u64(o, "samples", "state", &s->samples, err);
}

static int parse_sources(const struct json *o, struct state *s, struct larder_error *err)
{
    const struct json *list = NULL, *one;
    int rc = json_get_array(o, "sources", "state", &list, err);
    if (!rc && json_len(list) - 1 >= MIX_SOURCES_MAX)
        rc = err_set(err, LARDER_ECORRUPT, "state: %zu sources", json_len(list));
    if (rc)
        return rc;
    s->mix = true;
    s->n = (uint32_t)json_len(list);
    s->source = calloc(s->n, sizeof(*s->source));
    if (!s->source)
        return err_nomem(err, s->n * sizeof(*s->source), "a state");
    for (uint32_t i = 0; !rc && i < s->n; i++)
        if (!(rc = json_at_object(list, i, "state", &one, err)) && !(rc = parse_source(one, &s->source[i], err)))
            rc = hex64_get(one, "weight", &s->source[i].weight, err);
    return rc;
}

static int parse_one(const struct json *o, struct state *s, struct larder_error *err)
{
    s->n = 1;
    s->source = calloc(1, sizeof(*s->source));
    return s->source ? parse_source(o, s->source, err) : err_nomem(err, sizeof(*s->source), "a state");
}

static int parse(const struct json *o, struct state *s, struct larder_error *err)
{
    uint64_t version = 0;
    int rc = json_get_u64(o, "larder_state", "state", &version, err);
    if (!rc && version != STATE_VERSION)
        return err_set(err, LARDER_EVERSION, "state: version %llu, this larder knows %d", (unsigned long long)version, STATE_VERSION);
    if (rc || (rc = json_has(o, "sources") ? parse_sources(o, s, err) : parse_one(o, s, err)) ||
        (rc = hex64_get(o, "seed", &s->seed, err)) || (rc = hex64_get(o, "order", &s->order, err)) ||
        (rc = json_get_u64(o, "epoch", "state", &s->epoch, err)))
        return rc;
    return json_get_u64(o, "position", "state", &s->position, err);
}

int state_decode(const char *text, size_t len, struct state *s, struct larder_error *err)
{
    struct larder_error why = {0};
    AUTO_JSON struct json *o = json_parse(text, len, "state", &why);
    struct state got = {.seed = 0};
    int rc = o ? parse(o, &got, &why) : why.code;
    if (!rc) {
        *s = got;
        return LARDER_OK;
    }
    state_release(&got);
    if (rc == LARDER_ECORRUPT)
        return err_set(err, LARDER_EINVAL, "this is not what larder_loader_state() gave: %.180s", why.message);
    if (err)
        *err = why;
    return rc;
}

void state_release(struct state *s)
{
    free(s->source);
    s->source = NULL;
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

/* of: "", or " of source 3" */
static int check_source(const struct state_source *saved, const struct state_source *now, const char *of, struct larder_error *err)
{
    char a[33], b[33], what[96];
    if (memcmp(saved->uuid, now->uuid, 16)) {
        hex_encode(saved->uuid, 16, a);
        hex_encode(now->uuid, 16, b);
        snprintf(what, sizeof(what), "dataset (uuid)%s", of);
        return differs(what, a, b, err);
    }
    if (memcmp(saved->lineage, now->lineage, 16)) {
        hex_encode(saved->lineage, 16, a);
        hex_encode(now->lineage, 16, b);
        snprintf(what, sizeof(what), "lineage of the dataset%s, in which ordinals mean other samples", of);
        return differs(what, a, b, err);
    }
    if (saved->samples != now->samples) {
        snprintf(what, sizeof(what), "number of samples%s (open its generation)", of);
        return differs_u64(what, saved->samples, now->samples, err);
    }
    if (saved->weight != now->weight) {
        double then, today;
        memcpy(&then, &saved->weight, 8);
        memcpy(&today, &now->weight, 8);
        snprintf(what, sizeof(what), "weight%s", of);
        snprintf(a, sizeof(a), "%g", then);
        snprintf(b, sizeof(b), "%g", today);
        return differs(what, a, b, err);
    }
    return LARDER_OK;
}

int state_check(const struct state *saved, const struct state *now, uint64_t length, struct larder_error *err)
{
    char a[33], b[33], of[32] = "";
    int rc = LARDER_OK;
    if (saved->n != now->n || saved->mix != now->mix)
        return differs_u64("number of datasets (1: no mix)", saved->mix ? saved->n : 1, now->mix ? now->n : 1, err);
    for (uint32_t i = 0; !rc && i < now->n; i++) {
        if (now->mix)
            snprintf(of, sizeof(of), " of source %u", i);
        rc = check_source(&saved->source[i], &now->source[i], of, err);
    }
    if (rc)
        return rc;
    if (saved->seed != now->seed)
        return differs_u64("seed", saved->seed, now->seed, err);
    if (saved->order != now->order) {
        hex64(saved->order, a);
        hex64(now->order, b);
        return differs("shuffle, epoch size, filter, split, weights, order or batches (digest)", a, b, err);
    }
    if (saved->position > length)
        return err_set(err, LARDER_EINVAL, "the state stands at position %llu of an epoch of %llu", (unsigned long long)saved->position,
                       (unsigned long long)length);
    return LARDER_OK;
}
