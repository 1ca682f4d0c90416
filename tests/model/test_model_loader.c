/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -ljpeg -lpng -lwebp -lm */
/*
 * test_model_loader.c - loaders of random options, used at random, beside a reference that reads each sample by larder_dataset_read and makes its
 * arrays in one thread.
 *
 * A round makes datasets (images of all kinds, masks, boxes, scalars, text, arrays of differing shapes, sounds; some samples lack fields, some
 * cannot be decoded, some are damaged on disk) and runs a few loaders over them: outputs, threads, staging, windows, orders, mixes, ranks,
 * assignments, tiers and the decoded cache are drawn, and so is what the consumer does: it holds batches, releases them in other orders and
 * in another thread, calls from several threads, seeks, goes on from states, closes amid an epoch. The samples of each batch have to be those of
 * the plan (recipe.c), their arrays byte for byte the reference's, bad ones replaced by whom bad_position() names, or told at the right place.
 *
 * LARDER_SEED=n repeats one round, LARDER_ROUNDS=n sets how many. A round that hangs is ended by SIGALRM, which prints its seed.
 */
#include <fcntl.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <webp/encode.h>

#include "loader/prep_int.h"
#include "tests/unit/images.h"
#include "tests/unit/png_file.h"
#include "tests/unit/test.h"

enum { ROUNDS = 10, LOADERS = 4, SETS = 3, SAMPLES_MAX = 45, HELD_MAX = 6, OUTPUTS_MAX = 12 };
enum { IMAGE, MASK, BOXES, LABEL, SCORE, TEXT, TOKENS, GRID, VEC, SOUND, FLAG, FIELDS };

static const int64_t any_by_4[2] = {-1, 4}, any[1] = {-1}, any_any[2] = {-1, -1}, three[1] = {3};
static const struct larder_field fields[FIELDS] = {
    [IMAGE] = {"image", LARDER_IMAGE, NULL, 0, NULL},   [MASK] = {"mask", LARDER_IMAGE, NULL, 0, NULL},
    [BOXES] = {"boxes", LARDER_NDARRAY, "float32", 2, any_by_4}, [LABEL] = {"label", LARDER_I64, NULL, 0, NULL},
    [SCORE] = {"score", LARDER_F32, NULL, 0, NULL},     [TEXT] = {"text", LARDER_UTF8, NULL, 0, NULL},
    [TOKENS] = {"tokens", LARDER_NDARRAY, "int32", 1, any}, [GRID] = {"grid", LARDER_NDARRAY, "uint8", 2, any_any},
    [VEC] = {"vec", LARDER_NDARRAY, "float32", 1, three}, [SOUND] = {"sound", LARDER_AUDIO, NULL, 0, NULL},
    [FLAG] = {"flag", LARDER_BOOL, NULL, 0, NULL}};

/* ---- the watchdog ---- */

static char running[128];

static void hung(int sig)
{
    static const char text[] = "test_model_loader hangs: ";
    (void)sig;
    if (write(2, text, sizeof(text) - 1) < 0 || write(2, running, strlen(running)) < 0)
        _exit(3);
    abort();
}

/* ---- datasets ---- */

static bool one_in(uint64_t *rng, uint64_t n) { return rng_below(rng, n) == 0; }

static uint8_t *encode_image(uint64_t *rng, uint32_t w, uint32_t h, size_t *len)
{
    unsigned kind = (unsigned)rng_below(rng, 8);
    unsigned channels = kind == 0 || kind == 1 ? 1 : kind == 2 ? 4 : 3;
    uint8_t *pixels = make_pixels(w, h, channels, rng_u64(rng)), *out = NULL;

    if (kind == 1 || kind == 3)
        out = make_png(pixels, w, h, channels, len);
    else if (kind == 4)
        *len = WebPEncodeRGB(pixels, (int)w, (int)h, (int)(w * 3), 70, &out);
    else
        out = make_jpeg(pixels, w, h, &(struct jpeg_kind){channels, kind == 5 ? 1 : 2, kind == 6 ? 1 : 2, one_in(rng, 3),
                        one_in(rng, 2) ? (int)rng_below(rng, 9) : 0}, len);
    free(pixels);
    return out;
}

static uint8_t *encode_sound(uint64_t *rng, size_t *len)
{
    uint32_t frames = (uint32_t)rng_below(rng, 300), channels = 1 + (uint32_t)rng_below(rng, 2), bytes = frames * channels * 2;
    uint8_t *out = calloc(1, 44 + bytes);

    memcpy(out, "RIFF....WAVEfmt ", 16);
    put_u32(out + 4, 36 + bytes);
    put_u32(out + 16, 16);
    put_u32(out + 20, 1 | channels << 16);
    put_u32(out + 24, 8000);
    put_u32(out + 28, 16000 * channels);
    put_u32(out + 32, 2 * channels | 16u << 16);
    memcpy(out + 36, "data", 4);
    put_u32(out + 40, bytes);
    rng_fill(rng, out + 44, bytes);
    *len = 44 + bytes;
    return out;
}

struct set {
    char dir[128];
    struct larder_dataset *ds; /* for the reference: no cache */
    uint64_t n;
};

static void add_sample(struct larder_writer *w, uint64_t *rng, uint64_t i, unsigned spoilt, size_t text_max)
{
    uint32_t width = 1 + (uint32_t)rng_below(rng, 70), height = 1 + (uint32_t)rng_below(rng, 70), k = (uint32_t)rng_below(rng, 5);
    uint8_t flag = i & 1, *text = malloc(text_max), *image, *mask, *pixels, *sound, grid[16 + 64];
    float boxes[5][4], vec[3] = {(float)i, 1, 2}, score = (float)i / 3;
    int64_t label = (int64_t)i * 7 - 20;
    int32_t tokens[40];
    size_t image_len, mask_len, sound_len;
    struct larder_value v[FIELDS];
    struct larder_error err;
    char key[32];

    image = encode_image(rng, width, height, &image_len);
    pixels = make_pixels(width, height, 1, i);
    mask = make_png(pixels, width, height, 1, &mask_len);
    sound = encode_sound(rng, &sound_len);
    rng_fill(rng, tokens, sizeof(tokens));
    rng_fill(rng, grid, sizeof(grid));
    memset(text, 'a' + (int)(i % 26), text_max);
    if (text_max > 1000)
        rng_fill(rng, text, text_max);
    put_u64(grid, k);
    put_u64(grid + 8, 1 + i % 9);
    for (uint32_t b = 0; b < 5; b++)
        for (uint32_t c = 0; c < 4; c++)
            boxes[b][c] = (float)(rng_below(rng, 80));
    v[IMAGE] = (struct larder_value){image, image_len};
    v[MASK] = (struct larder_value){mask, mask_len};
    v[BOXES] = (struct larder_value){boxes, k * 16};
    v[LABEL] = (struct larder_value){&label, 8};
    v[SCORE] = (struct larder_value){&score, 4};
    v[TEXT] = (struct larder_value){text, rng_below(rng, text_max)};
    v[TOKENS] = (struct larder_value){tokens, 4 * rng_below(rng, 40)};
    v[GRID] = (struct larder_value){grid, 16 + k * (1 + i % 9)};
    v[VEC] = (struct larder_value){vec, 12};
    v[SOUND] = (struct larder_value){sound, sound_len};
    v[FLAG] = (struct larder_value){&flag, 1};
    for (int f = 0; f < FIELDS; f++)
        if (f != IMAGE && f != MASK && f != SOUND && one_in(rng, 12))
            v[f] = (struct larder_value){NULL, 0};
    if (spoilt && one_in(rng, spoilt))
        switch (rng_below(rng, 4)) {
        case 0: v[IMAGE] = (struct larder_value){NULL, 0}; break;
        case 1: v[IMAGE].len = image_len / 3; break;
        case 2: v[SOUND].len = sound_len / 9; break;
        default: v[MASK] = v[TEXT]; break;
        }
    snprintf(key, sizeof(key), "key-%llu", (unsigned long long)i);
    CHECK_OK(larder_writer_add(w, key, strlen(key), v, &err), &err);
    free(text);
    free(image);
    free(pixels);
    free(mask);
    free(sound);
}

/* A byte of some records is turned on disk. */
static void damage(const struct set *s, uint64_t *rng)
{
    for (uint64_t i = 0; i < s->n; i++) {
        struct larder_location loc;
        struct larder_error err;
        char path[512];
        uint8_t byte;
        if (!one_in(rng, 9))
            continue;
        REQUIRE_OK(larder_dataset_locate(s->ds, i, &loc, &err), &err);
        snprintf(path, sizeof(path), "%s/shards/%s", s->dir, loc.shard);
        int fd = open(path, O_RDWR);
        off_t at = (off_t)(loc.offset + loc.stored_len / 2);
        REQUIRE(fd >= 0 && pread(fd, &byte, 1, at) == 1);
        byte ^= 0x40;
        REQUIRE(pwrite(fd, &byte, 1, at) == 1);
        close(fd);
    }
}

static void make_set(struct set *s, uint64_t *rng, const char *dir, int number)
{
    struct larder_writer_options wo = LARDER_WRITER_OPTIONS_INIT;
    struct larder_writer *w;
    struct larder_error err;
    size_t text_max = one_in(rng, 8) ? 400000 : 400; /* more than the smallest caches hold */
    unsigned spoilt = one_in(rng, 3) ? 2 + (unsigned)rng_below(rng, 20) : 0;

    snprintf(s->dir, sizeof(s->dir), "%s/ds%d", dir, number);
    s->n = 1 + rng_below(rng, SAMPLES_MAX);
    wo.compression = (int)rng_below(rng, 3);
    wo.shard_size = 20000 + rng_below(rng, 200000);
    REQUIRE_OK(larder_writer_open(s->dir, fields, FIELDS, &wo, &w, &err), &err);
    for (uint64_t i = 0; i < s->n; i++)
        add_sample(w, rng, i, spoilt, text_max);
    REQUIRE_OK(larder_writer_commit(w, NULL, &err), &err);
    REQUIRE_OK(larder_dataset_open(s->dir, NULL, &s->ds, &err), &err);
    if (one_in(rng, 5))
        damage(s, rng);
}

/* ---- what is drawn for a loader ---- */

/* A caller's function: what it is told, and that some labels are bad. */
static int user_fn(void *user, const struct larder_prep_in *in, void *out, struct larder_error *err)
{
    uint64_t h = larder_hash64(in->random, &in->position, 8);
    (void)user;
    h = larder_hash64(h ^ in->ordinal, &in->epoch, 8);
    if (in->values[LABEL].data)
        h = larder_hash64(h, in->values[LABEL].data, in->values[LABEL].len);
    memcpy(out, &h, 8);
    if (user && in->ordinal % 13 == 5)
        return snprintf(err->message, sizeof(err->message), "does not like it"), LARDER_ECORRUPT;
    return LARDER_OK;
}

static int assign_fn(void *user, const struct larder_assign_in *in, uint32_t *ranks, struct larder_error *err)
{
    (void)user;
    (void)err;
    for (uint32_t i = 0; i < in->n; i++)
        ranks[i] = (i + (in->n % in->world ? 0 : (uint32_t)in->number)) % in->world;
    return LARDER_OK;
}

struct drawn {
    struct larder_loader_options o;
    struct larder_output outputs[OUTPUTS_MAX];
    struct larder_mix_source mix[SETS];
    struct larder_dataset *ds[SETS]; /* that the loader reads, maybe through a cache */
    struct set *set[SETS];
    struct larder_cache *cache;
    uint32_t n;
    bool is_mix;
    int exhausted;
    uint8_t filter[SAMPLES_MAX / 8 + 1];
    double weights[SAMPLES_MAX];
    uint64_t order[2 * SAMPLES_MAX];
    uint32_t lengths[2 * SAMPLES_MAX];
    char trace[128];
};

static struct larder_output *add_output(struct drawn *d, const char *field, const char *name, int prep)
{
    struct larder_output *o = &d->outputs[d->o.n_outputs++];
    *o = (struct larder_output)LARDER_OUTPUT_INIT;
    o->field = field;
    o->name = name;
    o->prep = prep;
    return o;
}

static void draw_image(struct drawn *d, uint64_t *rng, const char *name)
{
    static const char *const dtypes[] = {NULL, "uint8", "float16", "bfloat16", "float32"};
    struct larder_image *im = &add_output(d, "image", name, LARDER_PREP_IMAGE)->image;

    im->width = 1 + (uint32_t)rng_below(rng, 40);
    im->height = one_in(rng, 2) ? 0 : 1 + (uint32_t)rng_below(rng, 40);
    im->crop = (int)rng_below(rng, 3);
    im->flip = (double)rng_below(rng, 3) / 2;
    im->filter = (int)rng_below(rng, 3);
    im->no_antialias = one_in(rng, 4);
    im->exact = one_in(rng, 2);
    im->exif = one_in(rng, 2);
    im->dtype = dtypes[rng_below(rng, 5)];
    im->planar = one_in(rng, 2);
    if (im->dtype && strcmp(im->dtype, "uint8") && one_in(rng, 2)) {
        im->normalize = 1;
        for (int c = 0; c < 3; c++) {
            im->mean[c] = 0.4f;
            im->std[c] = 0.2f + (float)c;
        }
    }
    im->views = (uint32_t)rng_below(rng, 4);
}

static void draw_outputs(struct drawn *d, uint64_t *rng)
{
    bool image = one_in(rng, 2);
    d->o.outputs = d->outputs;
    if (image) {
        if (one_in(rng, 2)) {
            struct larder_output *m = add_output(d, "mask", NULL, LARDER_PREP_MASK);
            m->follows = "picture";
            m->dtype = one_in(rng, 2) ? "uint16" : NULL;
        }
        draw_image(d, rng, "picture");
        if (one_in(rng, 2))
            add_output(d, "boxes", NULL, LARDER_PREP_BOXES)->follows = "picture";
        if (one_in(rng, 2))
            add_output(d, NULL, "geometry", LARDER_PREP_GEOMETRY)->follows = "picture";
        if (one_in(rng, 3))
            draw_image(d, rng, "another");
    }
    if (one_in(rng, 2))
        add_output(d, "label", NULL, (int)rng_below(rng, 2) ? LARDER_PREP_DENSE : LARDER_PREP_AUTO);
    if (one_in(rng, 3))
        add_output(d, "text", NULL, (int[]){LARDER_PREP_AUTO, LARDER_PREP_BYTES, LARDER_PREP_RAGGED, LARDER_PREP_PADDED}[rng_below(rng, 4)]);
    if (one_in(rng, 3)) {
        struct larder_output *t = add_output(d, "tokens", "words", one_in(rng, 2) ? LARDER_PREP_RAGGED : LARDER_PREP_PADDED);
        t->pad_to = rng_below(rng, 30);
    }
    if (one_in(rng, 3))
        add_output(d, "grid", NULL, LARDER_PREP_PADDED)->pad_to = 1 + rng_below(rng, 12);
    if (one_in(rng, 3))
        add_output(d, "vec", NULL, LARDER_PREP_DENSE);
    if (one_in(rng, 4)) {
        struct larder_output *a = add_output(d, "sound", NULL, LARDER_PREP_AUDIO);
        a->audio.frames = 1 + (uint32_t)rng_below(rng, 400);
        a->audio.rate = one_in(rng, 2) ? 0 : 4000 + (uint32_t)rng_below(rng, 12000);
        a->audio.channels = (uint32_t)rng_below(rng, 2);
        a->audio.center = one_in(rng, 2);
        a->audio.dtype = one_in(rng, 2) ? "int16" : NULL;
    }
    if (one_in(rng, 4)) {
        struct larder_output *u = add_output(d, one_in(rng, 2) ? "label" : NULL, "mine", LARDER_PREP_USER);
        u->dtype = "uint64";
        u->fn = user_fn;
        u->user = one_in(rng, 3) ? d : NULL;
    }
    if (d->o.n_outputs == 0)
        add_output(d, "score", NULL, LARDER_PREP_DENSE);
    if (image && !d->is_mix && one_in(rng, 2)) {
        d->o.decoded_bytes = 4 * MIB;
        d->o.decoded_side = (uint32_t)rng_below(rng, 50);
        d->o.decoded_compress = one_in(rng, 2);
    }
}

static void draw_lengths(struct drawn *d, uint64_t *rng)
{
    struct larder_loader_options *o = &d->o;

    o->order_is_ranks = 1;
    if (one_in(rng, 2))
        return;
    o->shuffle = LARDER_SHUFFLE_NONE;
    o->batch_lengths = d->lengths;
    for (uint64_t left = o->n_order; left; left -= d->lengths[o->n_batch_lengths++])
        d->lengths[o->n_batch_lengths] = 1 + (uint32_t)rng_below(rng, left);
}

static void draw_order(struct drawn *d, uint64_t *rng)
{
    struct larder_loader_options *o = &d->o;
    uint64_t n = d->set[0]->n;

    o->shuffle = (int)rng_below(rng, 3);
    o->block_samples = 1 + rng_below(rng, 9);
    o->window_blocks = 1 + rng_below(rng, 4);
    o->world = 1 + (one_in(rng, 3) ? (uint32_t)rng_below(rng, 4) : 0);
    o->rank = (uint32_t)rng_below(rng, o->world);
    o->last = (int)rng_below(rng, 4);
    if (one_in(rng, 4))
        o->epoch_size = 1 + rng_below(rng, 80);
    if (one_in(rng, 5)) {
        o->split_begin = 0.2;
        o->split_end = 0.9;
    }
    if (one_in(rng, 5))
        o->assign = assign_fn;
    if (d->is_mix)
        return;
    if (one_in(rng, 4)) {
        rng_fill(rng, d->filter, sizeof(d->filter));
        if (one_in(rng, 5))
            memset(d->filter, 0, sizeof(d->filter));
        else
            d->filter[0] |= 1;
        o->filter = d->filter;
    } else if (one_in(rng, 4)) {
        for (uint64_t i = 0; i < n; i++)
            d->weights[i] = (double)rng_below(rng, 5);
        d->weights[0] = 1;
        o->weights = d->weights;
    } else if (one_in(rng, 4) && o->split_end == 0) {
        o->order = d->order;
        o->n_order = 1 + rng_below(rng, 2 * SAMPLES_MAX);
        for (uint64_t i = 0; i < o->n_order; i++)
            d->order[i] = rng_below(rng, n);
        if (!o->assign && !o->epoch_size && one_in(rng, 2))
            draw_lengths(d, rng);
    }
}

static void draw_tiers(struct drawn *d, uint64_t *rng)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_error err;

    if (!one_in(rng, 3)) {
        struct larder_cache_options c = LARDER_CACHE_OPTIONS_INIT;
        struct larder_cache_nvme nvme = {tmp_dir(), 4 * MIB};
        c.name = NULL;
        c.no_pin = 1;
        c.dram_bytes = one_in(rng, 3) ? LARDER_DRAM_OFF : 4 * MIB + rng_below(rng, 8) * MIB / 4;
        c.replacement = (int)rng_below(rng, 2);
        c.copy_local = one_in(rng, 2);
        if (one_in(rng, 3)) {
            c.nvme = &nvme;
            c.n_nvme = 1;
        }
        REQUIRE_OK(larder_cache_open(&c, &d->cache, &err), &err);
    }
    o.cache = d->cache;
    o.direct = (int)rng_below(rng, 3);
    o.queue_depth = 1 + (unsigned)rng_below(rng, 8);
    for (uint32_t i = 0; i < d->n; i++)
        REQUIRE_OK(larder_dataset_open(d->set[i]->dir, &o, &d->ds[i], &err), &err);
}

static void on_bad(void *user, const struct larder_bad_sample *bad)
{
    const struct drawn *d = user;
    CHECK(bad->message && bad->message[0]);
    CHECK(bad->source < d->n && bad->substitute_source < d->n && bad->substitute < d->set[bad->substitute_source]->n);
}

static void draw(struct drawn *d, struct set *sets, uint64_t *rng)
{
    struct larder_loader_options *o = &d->o;

    *d = (struct drawn){.o = LARDER_LOADER_OPTIONS_INIT, .n = 1};
    d->is_mix = one_in(rng, 4);
    if (d->is_mix)
        d->n = 1 + (uint32_t)rng_below(rng, SETS);
    for (uint32_t i = 0; i < d->n; i++)
        d->set[i] = &sets[(rng_below(rng, SETS) + i) % SETS];
    draw_tiers(d, rng);
    bool weighted = one_in(rng, 2);
    for (uint32_t i = 0; i < d->n; i++) {
        d->mix[i] = (struct larder_mix_source)LARDER_MIX_SOURCE_INIT;
        d->mix[i].ds = d->ds[i];
        d->mix[i].weight = weighted ? 1 + (double)rng_below(rng, 9) : 0;
    }
    d->exhausted = (int)rng_below(rng, 2);
    o->batch_size = 1 + (uint32_t)rng_below(rng, one_in(rng, 4) ? 100 : 12);
    o->seed = rng_below(rng, 1000);
    o->epoch = rng_below(rng, 3);
    o->epochs = rng_below(rng, 4);
    o->queue_depth = (uint32_t)rng_below(rng, 9);
    o->threads = (uint32_t)rng_below(rng, 5);
    o->staging_bytes = 4096 << rng_below(rng, 14);
    o->timeout_ms = one_in(rng, 6) ? 1 : 600000;
    if (one_in(rng, 3))
        o->fetch_size = 1 + rng_below(rng, 40);
    if (one_in(rng, 3))
        o->threshold = rng_below(rng, 40);
    o->on_bad_sample = (int)rng_below(rng, 2);
    o->max_bad = 1;
    o->bad = on_bad;
    o->user = d;
    if (one_in(rng, 8)) {
        snprintf(d->trace, sizeof(d->trace), "%s/trace", tmp_dir());
        o->trace = d->trace;
    }
    draw_order(d, rng);
    if (!one_in(rng, 4))
        draw_outputs(d, rng);
}

static void drawn_close(struct drawn *d)
{
    for (uint32_t i = 0; i < d->n; i++)
        larder_dataset_close(d->ds[i]);
    larder_cache_close(d->cache);
}

/* ---- the reference ---- */

struct reference {
    struct recipe recipe;
    struct larder_mix_source sources[SETS]; /* of handles without a cache */
    struct prep *prep;
    struct prep_worker *worker;
    struct decoded *decoded;
    struct decoded_worker *decoder;
    uint64_t length;
    uint8_t keep[FIELDS];
    const struct drawn *d;
};

static int reference_open(struct reference *r, const struct drawn *d, struct larder_error *err)
{
    struct larder_loader_options o = d->o;
    int rc;

    *r = (struct reference){.d = d};
    for (uint32_t i = 0; i < d->n; i++) {
        r->sources[i] = d->mix[i];
        r->sources[i].ds = d->set[i]->ds;
    }
    rc = recipe_open(r->sources, d->n, d->is_mix, d->exhausted, &o, &r->recipe, err);
    if (rc)
        return rc;
    r->length = batch_plan_length(&r->recipe.plan);
    if (!o.outputs)
        return LARDER_OK;
    REQUIRE_OK(prep_new(&d->set[0]->ds->manifest->schema, o.outputs, o.n_outputs, &r->prep, err), err);
    REQUIRE_OK(prep_worker_new(r->prep, &r->worker, err), err);
    if (o.decoded_bytes) {
        char name[64];
        static unsigned count;
        snprintf(name, sizeof(name), "model-reference-%d-%u", (int)getpid(), count++);
        struct decoded_options p = {.manifest = d->set[0]->ds->manifest, .name = name, .bytes = 4 * MIB, .side = o.decoded_side, .no_pin = true,
                                    .keep = r->keep};
        REQUIRE(prep_decoded(r->prep, r->keep, &p));
        REQUIRE_OK(decoded_open(&p, &r->decoded, err), err);
        REQUIRE_OK(decoded_worker_new(r->decoded, &r->decoder, err), err);
    }
    return LARDER_OK;
}

static void reference_close(struct reference *r)
{
    recipe_close(&r->recipe, false);
    prep_worker_free(r->worker);
    prep_free(r->prep);
    decoded_worker_free(r->decoder);
    decoded_close(r->decoded);
}

struct arrays { struct prep_batch b; struct larder_sample *samples; struct larder_value *values; uint8_t *memory; uint32_t n; };

/* Sample i of a batch, with arrays of its own: is it good? */
static int try_sample(struct reference *r, struct prep_batch *b, uint32_t i, uint64_t ordinal, uint64_t position, const struct larder_value *values,
                      struct larder_error *err)
{
    if (r->decoder) {
        const struct decoded_image *images;
        uint64_t ns;
        int rc = decoded_make(r->decoder, ordinal, values, &images, &ns, err);
        if (rc)
            return rc;
        prep_worker_decoded(r->worker, images);
    }
    return r->prep ? prep_sample(r->worker, b, i, ordinal, position, values, err) : LARDER_OK;
}

static struct larder_dataset *reference_ds(const struct reference *r, uint32_t source) { return r->sources[source].ds; }

static bool is_good(struct reference *r, uint64_t epoch, uint64_t position, uint64_t ordinal, uint32_t source)
{
    struct larder_sample s = {0};
    struct larder_error err;
    struct prep_batch b;
    uint8_t *memory = NULL;
    int rc = larder_dataset_read(reference_ds(r, source), &ordinal, 1, NULL, &s, &err);

    if (!rc && r->prep) {
        uint64_t raw = 0;
        for (int k = 0; k < FIELDS; k++)
            raw += s.fields[k].len;
        memory = aligned_alloc(64, round_up(prep_bytes(r->prep, 1, raw, raw), 64) + 64);
        prep_begin(r->prep, &b, 1, raw, raw, r->d->o.seed, epoch, memory);
        rc = try_sample(r, &b, 0, ordinal, position, s.fields, &err);
    }
    CHECK(!rc || rc == LARDER_ECORRUPT || rc == LARDER_EINVAL);
    free(memory);
    larder_samples_release(&s, 1);
    return !rc;
}

static void sample_at(const struct reference *r, uint64_t epoch, uint64_t position, uint64_t *ordinal, uint32_t *source)
{
    *source = 0;
    if (r->recipe.mix)
        mix_fill(r->recipe.mix, epoch, position, 1, ordinal, source);
    else
        order_fill(&r->recipe.plan.order, epoch, position, 1, ordinal);
}

/* Who has to be there. False: nobody is good. */
static bool right_one(struct reference *r, uint64_t epoch, uint64_t position, uint64_t *ordinal, uint32_t *source)
{
    for (uint32_t try = 0; !is_good(r, epoch, position, *ordinal, *source); try++) {
        if (r->d->o.on_bad_sample == LARDER_ON_BAD_FAIL || try == BAD_TRIES)
            return false;
        sample_at(r, epoch, bad_position(r->d->o.seed, epoch, position, try, r->length), ordinal, source);
    }
    return true;
}

static void same_values(const struct larder_value *a, const struct larder_value *b)
{
    CHECK_EQ(!a->data, !b->data);
    CHECK_EQ(a->len, b->len);
    if (a->data && b->data && a->len == b->len)
        CHECK_MEM(a->data, b->data, a->len);
}

static void same_array(const struct larder_array *a, const struct larder_array *b, uint32_t n, const struct prep_output *q)
{
    uint64_t offsets = q->o.prep == LARDER_PREP_BOXES ? (uint64_t)n * q->views : n, lengths = (uint64_t)n * MAX(q->n_vary, 1u);

    CHECK_STR(a->name, b->name);
    CHECK_STR(a->dtype, b->dtype);
    CHECK_EQ(a->ndim, b->ndim);
    CHECK_EQ(a->len, b->len);
    if (a->ndim != b->ndim || a->len != b->len)
        return;
    CHECK_MEM(a->shape, b->shape, a->ndim * sizeof(*a->shape));
    CHECK(!a->data == !b->data && !a->offsets == !b->offsets && !a->lengths == !b->lengths && !a->present == !b->present);
    CHECK_EQ((uintptr_t)a->data % 64, 0);
    if (a->data && !test_mem(a->data, b->data, a->len, q->name, __FILE__, __LINE__))
        return;
    if (a->offsets)
        CHECK_MEM(a->offsets, b->offsets, (offsets + 1) * sizeof(*a->offsets));
    if (a->lengths)
        CHECK_MEM(a->lengths, b->lengths, lengths * sizeof(*a->lengths));
    if (a->present)
        CHECK_MEM(a->present, b->present, n);
    if (a->keep)
        CHECK_MEM(a->keep, b->keep, (size_t)a->shape[0]);
    for (uint32_t i = 0; a->values && i < n; i++)
        same_values(&a->values[i], &b->values[i]);
}

/* The batch's arrays, made again. */
static void check_arrays(struct reference *r, const struct larder_batch *b, const uint64_t *positions)
{
    struct larder_sample *s = calloc(b->n + 1, sizeof(*s));
    struct larder_value *values = calloc((size_t)b->n * FIELDS + 1, sizeof(*values));
    struct prep_batch p;
    struct larder_error err;
    uint64_t all = 0, most = 0;

    for (uint32_t i = 0; i < b->n; i++) {
        uint64_t raw = 0;
        CHECK_OK(larder_dataset_read(reference_ds(r, b->sources ? b->sources[i] : 0), &b->ordinals[i], 1, NULL, &s[i], &err), &err);
        for (int k = 0; k < FIELDS && s[i].fields; k++) {
            values[(size_t)i * FIELDS + (size_t)k] = s[i].fields[k];
            raw += s[i].fields[k].len;
        }
        all += raw;
        most = MAX(most, raw);
    }
    if (r->prep) {
        uint8_t *memory = aligned_alloc(64, round_up(prep_bytes(r->prep, b->n, all, most), 64) + 64);
        CHECK_EQ(b->n_arrays, r->prep->n);
        CHECK(!b->values && !b->n_fields);
        prep_begin(r->prep, &p, b->n, all, most, r->d->o.seed, b->epoch, memory);
        for (uint32_t i = 0; i < b->n; i++)
            CHECK_OK(try_sample(r, &p, i, b->ordinals[i], positions[i], values + (size_t)i * FIELDS, &err), &err);
        CHECK_OK(prep_end(&p, values, FIELDS, &err), &err);
        for (uint32_t k = 0; k < b->n_arrays; k++)
            same_array(&b->arrays[k], &p.arrays[k], b->n, &r->prep->outputs[k]);
        free(memory);
    } else {
        CHECK_EQ(b->n_fields, FIELDS);
        for (size_t i = 0; i < (size_t)b->n * FIELDS; i++)
            same_values(&b->values[i], &values[i]);
    }
    larder_samples_release(s, b->n);
    free(s);
    free(values);
}

/* ---- a consumer, and what it may expect ---- */

struct expected { uint64_t epoch, from, number; };

struct consumer {
    struct drawn *d;
    struct reference *r;
    struct larder_loader *ld;
    struct expected at;
    pthread_mutex_t lock; /* of several threads */
    uint64_t rng, left;
    bool over;
};

/* What the plan says that batch has. False: some place finds nobody good. */
struct planned { struct slice slice; uint64_t ordinals[128], positions[128]; uint32_t sources[128]; };

static bool plan_batch(struct consumer *c, const struct expected *at, struct planned *p)
{
    struct batch_plan *plan = &c->r->recipe.plan;
    struct larder_error err;
    bool good = true;

    p->slice = slicing_batch(&plan->slicing, at->from, c->r->length, at->number);
    CHECK_OK(batch_plan_fill(plan, at->epoch, at->from, at->number, &p->slice, p->ordinals, p->sources, p->positions, &err), &err);
    for (uint32_t i = 0; good && i < p->slice.n; i++) {
        if (!plan->assign)
            p->positions[i] = (p->slice.position + i) % c->r->length;
        if (!plan->mix)
            p->sources[i] = 0;
        good = right_one(c->r, at->epoch, p->positions[i], &p->ordinals[i], &p->sources[i]);
    }
    return good;
}

static void check_batch(struct consumer *c, const struct expected *at, const struct larder_batch *b)
{
    struct planned p;

    if (!test_check(plan_batch(c, at, &p), __FILE__, __LINE__, "a batch with a bad sample was given"))
        return;
    CHECK_EQ(b->epoch, at->epoch);
    CHECK_EQ(b->number, at->number);
    CHECK_EQ(b->n, p.slice.n);
    CHECK_EQ(b->valid, p.slice.valid);
    CHECK_EQ(b->position, p.slice.position);
    if (b->n != p.slice.n)
        return;
    CHECK_MEM(b->ordinals, p.ordinals, b->n * sizeof(uint64_t));
    CHECK_EQ(b->sources != NULL, c->d->is_mix);
    CHECK_EQ(b->positions != NULL, c->d->o.assign != NULL);
    if (b->sources)
        CHECK_MEM(b->sources, p.sources, b->n * sizeof(uint32_t));
    if (b->positions)
        CHECK_MEM(b->positions, p.positions, b->n * sizeof(uint64_t));
    check_arrays(c->r, b, p.positions);
}

static uint64_t batches_left(const struct consumer *c)
{
    return slicing_batches(&c->r->recipe.plan.slicing, c->at.from, c->r->length);
}

static bool epochs_over(const struct consumer *c)
{
    return c->d->o.epochs && c->at.epoch == c->d->o.epoch + c->d->o.epochs;
}

/* Of all that a batch points to. */
static uint64_t digest_of(const struct larder_batch *b)
{
    uint64_t h = larder_hash64(b->number, b->ordinals, b->n * sizeof(uint64_t));

    for (size_t i = 0; b->values && i < (size_t)b->n * b->n_fields; i++)
        h = larder_hash64(h, b->values[i].data, b->values[i].len);
    for (uint32_t k = 0; k < b->n_arrays; k++) {
        const struct larder_array *a = &b->arrays[k];
        if (a->data)
            h = larder_hash64(h, a->data, a->len);
        for (uint32_t i = 0; a->values && i < b->n; i++)
            h = larder_hash64(h, a->values[i].data, a->values[i].len);
    }
    return h;
}

struct held { const struct larder_batch *b; uint64_t digest; };

/* What was held is what it was. */
static void let_go(struct held *h)
{
    if (h->b)
        CHECK_EQ(digest_of(h->b), h->digest);
    larder_batch_release(h->b);
    h->b = NULL;
}

static void *release_them(void *p)
{
    struct held *held = p;
    for (int i = 0; i < HELD_MAX; i++)
        let_go(&held[i]);
    return NULL;
}

static void end_epoch(struct consumer *c)
{
    CHECK_EQ(c->at.number, batches_left(c));
    c->at = (struct expected){c->at.epoch + 1, 0, 0};
}

/* A call of next. Returns what it gave; *b is held by the caller. */
static int take(struct consumer *c, const struct larder_batch **b, struct larder_error *err)
{
    int rc = larder_loader_next(c->ld, b, err);

    CHECK_EQ(*b != NULL, rc == LARDER_OK);
    if (rc == LARDER_OK) {
        CHECK(!epochs_over(c) && c->at.number < batches_left(c));
        check_batch(c, &c->at, *b);
        c->at.number++;
    } else if (rc == LARDER_END && !epochs_over(c)) {
        end_epoch(c);
    }
    return rc;
}

static bool goes_on(struct consumer *c, uint64_t epoch, uint64_t position)
{
    struct larder_error err;
    char text[LARDER_STATE_BYTES(SETS)], again[LARDER_STATE_BYTES(SETS)];
    struct state s;
    bool by_state = c->d->o.batch_lengths || one_in(&c->rng, 2);

    if (by_state) { /* where it stands: nothing is lost */
        CHECK_OK(larder_loader_state(c->ld, text, sizeof(text), &err), &err);
        CHECK_OK(state_decode(text, strlen(text), &s, &err), &err);
        CHECK_EQ(s.epoch, c->at.epoch);
        CHECK_EQ(s.position, slicing_position(&c->r->recipe.plan.slicing, c->at.from, c->r->length, c->at.number));
        epoch = s.epoch;
        position = s.position;
        state_release(&s);
    }
    int rc = by_state ? larder_loader_load_state(c->ld, text, &err) : larder_loader_seek(c->ld, epoch, position, &err);
    CHECK_OK(rc, &err);
    if (rc)
        return false;
    c->at = (struct expected){epoch, position, 0};
    CHECK_OK(larder_loader_state(c->ld, again, sizeof(again), &err), &err);
    if (by_state)
        CHECK_STR(again, text);
    return true;
}

static bool seek_somewhere(struct consumer *c)
{
    const struct larder_loader_options *o = &c->d->o;
    return goes_on(c, o->epoch + rng_below(&c->rng, o->epochs ? o->epochs : 3), rng_below(&c->rng, c->r->length + 1));
}

/* A failure: is it one that has to be? True: the consumer goes on. */
static bool failed_rightly(struct consumer *c, int rc, const struct larder_error *e)
{
    const struct larder_batch *b;
    struct larder_error again;
    struct planned p;

    if (rc == LARDER_ENOMEM) /* of this batch, and the next time, too */
        return c->over = true, false;
    if (!test_check(rc == LARDER_ECORRUPT, __FILE__, __LINE__, "code %d: %s", rc, e->message))
        return false;
    CHECK(!plan_batch(c, &c->at, &p));
    CHECK_EQ(larder_loader_next(c->ld, &b, &again), rc);
    CHECK_STR(again.message, e->message);
    return one_in(&c->rng, 2) && seek_somewhere(c);
}

/* One thread: holds some batches, releases them anyhow. */
static void consume(struct consumer *c)
{
    struct held held[HELD_MAX] = {{NULL, 0}};
    const struct larder_batch *b;
    unsigned most = 1 + (unsigned)rng_below(&c->rng, HELD_MAX);
    struct larder_error err;

    while (c->left-- > 0 && !atomic_load(&test_failures)) {
        unsigned k = (unsigned)rng_below(&c->rng, most), n_held = 0;
        let_go(&held[k]);
        int rc = take(c, &b, &err);
        for (unsigned i = 0; i < HELD_MAX; i++)
            n_held += held[i].b != NULL;
        if (rc == LARDER_OK)
            held[k] = (struct held){b, digest_of(b)};
        else if (rc == LARDER_EINVAL && n_held)
            CHECK(strstr(err.message, "release a batch first") != NULL);
        else if (rc == LARDER_ETIMEOUT && c->d->o.timeout_ms == 1)
            c->left++;
        else if (rc < 0 && !failed_rightly(c, rc, &err))
            break;
        if (rc == LARDER_END && epochs_over(c) && one_in(&c->rng, 2))
            break;
        if (rc == LARDER_EINVAL || one_in(&c->rng, 12)) {
            pthread_t t;
            CHECK_EQ(pthread_create(&t, NULL, release_them, held), 0);
            pthread_join(t, NULL);
        }
        if (one_in(&c->rng, 15) && !seek_somewhere(c))
            break;
    }
    release_them(held);
}

/* Several threads: the order of their calls is theirs, what they get together is not. */
static void *consume_beside(void *p)
{
    struct consumer *c = p;
    const struct larder_batch *b;
    struct larder_error err;

    for (int rc = LARDER_OK; rc == LARDER_OK;) {
        rc = larder_loader_next(c->ld, &b, &err);
        pthread_mutex_lock(&c->lock);
        if (rc == LARDER_OK) {
            check_batch(c, &(struct expected){b->epoch, b->epoch == c->at.epoch ? c->at.from : 0, b->number}, b);
            larder_batch_release(b);
        } else if (rc == LARDER_EINVAL) { /* the others hold all the room */
            CHECK(strstr(err.message, "release a batch first") != NULL);
            rc = LARDER_OK;
        } else if (rc == LARDER_ETIMEOUT && c->d->o.timeout_ms == 1) {
            c->left++;
            rc = LARDER_OK;
        } else if (rc < 0 && rc != LARDER_ECORRUPT && rc != LARDER_ENOMEM) {
            CHECK_OK(rc, &err);
        }
        if (c->left-- == 0)
            rc = LARDER_END;
        c->left += c->left == UINT64_MAX;
        pthread_mutex_unlock(&c->lock);
    }
    return NULL;
}

static void consume_together(struct consumer *c)
{
    pthread_t t[3];
    for (int i = 0; i < 3; i++)
        REQUIRE_EQ(pthread_create(&t[i], NULL, consume_beside, c), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
}

static int open_loader(struct drawn *d, struct larder_loader **ld, struct larder_error *err)
{
    return d->is_mix ? larder_loader_open_mix(d->mix, d->n, d->exhausted, &d->o, ld, err) : larder_loader_open(d->ds[0], &d->o, ld, err);
}

static void run_loader(struct drawn *d, struct reference *r, uint64_t *rng)
{
    struct consumer c = {.d = d, .r = r, .at = {d->o.epoch, 0, 0}, .rng = rng_u64(rng), .left = 5 + rng_below(rng, 30)};
    struct larder_error err;
    int rc;

    while ((rc = open_loader(d, &c.ld, &err)) == LARDER_EINVAL && strstr(err.message, "fetch_size"))
        d->o.staging_bytes *= 2;
    if (!test_check(rc == LARDER_OK, __FILE__, __LINE__, "open: code %d: %s", rc, err.message))
        return;
    pthread_mutex_init(&c.lock, NULL);
    if (one_in(rng, 4))
        consume_together(&c);
    else
        consume(&c);
    pthread_mutex_destroy(&c.lock);
    larder_loader_close(c.ld);
    if (!c.over || d->o.staging_bytes > 256 * MIB)
        return;
    d->o.staging_bytes *= 2; /* a batch did not fit */
    run_loader(d, r, rng);
}

static void one_loader(struct set *sets, uint64_t *rng)
{
    struct drawn *d = calloc(1, sizeof(*d));
    struct reference *r = calloc(1, sizeof(*r));
    struct larder_loader *ld = NULL;
    struct larder_error err, other;

    draw(d, sets, rng);
    int rc = reference_open(r, d, &err);
    if (rc) {
        CHECK_EQ(open_loader(d, &ld, &other), rc);
        CHECK_STR(other.message, err.message);
        larder_loader_close(ld);
    } else {
        run_loader(d, r, rng);
        reference_close(r);
    }
    drawn_close(d);
    free(r);
    free(d);
}

static void model_round(uint64_t seed)
{
    struct set sets[SETS];
    uint64_t rng = seed * 0x9e3779b97f4a7c15u + 1;
    const char *dir = tmp_dir();

    snprintf(running, sizeof(running), "LARDER_SEED=%llu repeats it\n", (unsigned long long)seed);
    alarm(300);
    if (seed % 4 == 3)
        setenv("LARDER_NO_URING", "1", 1);
    for (int i = 0; i < SETS; i++)
        make_set(&sets[i], &rng, dir, i);
    for (int i = 0; i < LOADERS && !atomic_load(&test_failures); i++)
        one_loader(sets, &rng);
    for (int i = 0; i < SETS; i++)
        larder_dataset_close(sets[i].ds);
    unsetenv("LARDER_NO_URING");
    test_cleanup();
}

TEST(loaders_at_random_beside_a_reference)
{
    const char *seed = getenv("LARDER_SEED"), *rounds = getenv("LARDER_ROUNDS");
    uint64_t first = seed ? strtoull(seed, NULL, 10) : 1, n = rounds ? strtoull(rounds, NULL, 10) : seed ? 1 : ROUNDS;

    signal(SIGALRM, hung);
    for (uint64_t i = 0; i < n && !atomic_load(&test_failures); i++) {
        model_round(first + i);
        if (atomic_load(&test_failures))
            fprintf(stderr, "%s", running);
    }
    alarm(0);
}

/* ---- closing ---- */

/* Refuses sample 0. The second time that sample 1 comes, the batch is laid out anew: another thread closes meanwhile. */
struct closing { pthread_mutex_t lock; pthread_cond_t changed; unsigned seen; };

static int closing_fn(void *user, const struct larder_prep_in *in, void *out, struct larder_error *err)
{
    struct closing *c = user;
    bool again;

    (void)err;
    memset(out, 1, 1);
    if (in->ordinal == 0)
        return LARDER_ECORRUPT;
    if (in->ordinal != 1)
        return LARDER_OK;
    pthread_mutex_lock(&c->lock);
    again = ++c->seen == 2;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (again)
        usleep(100000); /* so that the close most likely finds it here; either way all is well */
    return LARDER_OK;
}

static const char *small_and_large(void)
{
    static const struct larder_field text = {"text", LARDER_UTF8, NULL, 0, NULL};
    static char dir[128], bytes[100000];
    struct larder_writer *w;
    struct larder_error err;

    memset(bytes, 'x', sizeof(bytes));
    snprintf(dir, sizeof(dir), "%s/ds", tmp_dir());
    REQUIRE_OK(larder_writer_open(dir, &text, 1, NULL, &w, &err), &err);
    for (int i = 0; i < 8; i++)
        REQUIRE_OK(larder_writer_add(w, (char[]){(char)('a' + i)}, 1, &(struct larder_value){bytes, i < 4 ? 10 : sizeof(bytes)}, &err), &err);
    REQUIRE_OK(larder_writer_commit(w, NULL, &err), &err);
    return dir;
}

TEST(a_batch_that_is_laid_out_anew_while_the_loader_closes)
{
    struct closing c = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_output outputs[3] = {LARDER_OUTPUT_INIT, LARDER_OUTPUT_INIT, LARDER_OUTPUT_INIT};
    struct larder_dataset *ds;
    struct larder_loader *ld;
    struct larder_error err;

    (void)mallopt(M_PERTURB, 0x5a); /* memory that nobody wrote has no zeros */
    outputs[0].field = outputs[1].field = "text";
    outputs[0].name = "first";
    outputs[0].prep = LARDER_PREP_PADDED;
    outputs[0].pad_to = 16;
    outputs[1].prep = LARDER_PREP_RAGGED; /* a substitute of 100,000 bytes finds no room in it */
    outputs[2].name = "mine";
    outputs[2].prep = LARDER_PREP_USER;
    outputs[2].dtype = "uint8";
    outputs[2].fn = closing_fn;
    outputs[2].user = &c;
    o.outputs = outputs;
    o.n_outputs = 3;
    o.batch_size = 4;
    o.epochs = 1;
    o.shuffle = LARDER_SHUFFLE_NONE;
    o.on_bad_sample = LARDER_ON_BAD_REPLACE;
    o.threads = 1;
    while (bad_position(o.seed, 0, 0, 0, 8) < 4)
        o.seed++;
    REQUIRE_OK(larder_dataset_open(small_and_large(), NULL, &ds, &err), &err);
    REQUIRE_OK(larder_loader_open(ds, &o, &ld, &err), &err);
    pthread_mutex_lock(&c.lock);
    while (c.seen < 2)
        pthread_cond_wait(&c.changed, &c.lock);
    pthread_mutex_unlock(&c.lock);
    larder_loader_close(ld);
    larder_dataset_close(ds);
    (void)mallopt(M_PERTURB, 0);
}

/* ---- options that cannot be ---- */

struct hostile { const char *what; struct larder_image image; struct larder_audio audio; uint64_t pad_to; uint32_t ndim; int64_t shape[2]; };

/* Opens and takes a batch: an error, or a batch, and nothing else. The code. */
static int try_it(struct larder_dataset *ds, const struct larder_loader_options *o)
{
    const struct larder_batch *b;
    struct larder_loader *ld;
    struct larder_error err = {0};
    int rc = larder_loader_open(ds, o, &ld, &err);

    if (!rc) {
        rc = larder_loader_next(ld, &b, &err);
        if (!rc)
            larder_batch_release(b);
        larder_loader_close(ld);
    }
    CHECK(!rc || (err.code == rc && err.message[0]) || rc == LARDER_END);
    CHECK(rc != LARDER_EIO);
    return rc;
}

TEST(sizes_beyond_all_memory_are_errors)
{
    static const uint32_t big = UINT32_MAX, half = 1u << 31;
    static const struct hostile all[] = {{.what = "image", .image = {.width = half}},
                                         {.what = "image", .image = {.width = big, .height = big, .dtype = "float32"}},
                                         {.what = "image", .image = {.width = 8, .views = half}},
                                         {.what = "image", .image = {.width = 8, .views = big}},
                                         {.what = "image", .image = {.width = 65536, .views = 65536, .dtype = "float32"}},
                                         {.what = "image", .image = {.width = 8, .crop = LARDER_CROP_CENTER, .resize = half}},
                                         {.what = "image", .image = {.width = 8, .crop = LARDER_CROP_CENTER, .resize = 1}},
                                         {.what = "image", .image = {.width = 65536, .crop = LARDER_CROP_NONE}},
                                         {.what = "image", .image = {.width = 8, .scale_min = -1, .scale_max = 1e308}},
                                         {.what = "image", .image = {.width = 8, .ratio_min = 1e-320, .ratio_max = 1e308}},
                                         {.what = "image", .image = {.width = 8, .ratio_min = NAN, .ratio_max = NAN}},
                                         {.what = "sound", .audio = {.frames = big, .channels = big}},
                                         {.what = "sound", .audio = {.frames = big, .rate = big}},
                                         {.what = "sound", .audio = {.frames = big, .rate = 1}},
                                         {.what = "sound", .audio = {.frames = big, .rate = 1, .channels = 8}},
                                         {.what = "tokens", .pad_to = 1ull << 63},
                                         {.what = "tokens", .pad_to = UINT64_MAX},
                                         {.what = "tokens", .pad_to = big},
                                         {.what = "grid", .pad_to = big},
                                         {.what = "grid", .pad_to = 1u << 30},
                                         {.what = NULL, .ndim = 2, .shape = {1ll << 62, 1ll << 62}},
                                         {.what = NULL, .ndim = 2, .shape = {INT64_MAX, 0}},
                                         {.what = NULL, .ndim = 1, .shape = {1ll << 60}}};
    struct set s;
    uint64_t rng = 77;

    make_set(&s, &rng, tmp_dir(), 0);
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        for (int k = 0; k < 3; k++) {
            struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
            struct larder_output out = LARDER_OUTPUT_INIT;
            out.field = all[i].what;
            out.name = "x";
            out.image = all[i].image;
            out.audio = all[i].audio;
            out.pad_to = all[i].pad_to;
            out.ndim = all[i].ndim;
            out.shape = all[i].shape;
            out.dtype = all[i].what ? NULL : "float64";
            out.fn = user_fn;
            out.prep = !all[i].what ? LARDER_PREP_USER : all[i].image.width ? LARDER_PREP_IMAGE : all[i].audio.frames ? LARDER_PREP_AUDIO
                                                                                                                      : LARDER_PREP_PADDED;
            o.outputs = &out;
            o.n_outputs = 1;
            o.threads = 1;
            o.staging_bytes = 8 * MIB;
            o.batch_size = k == 0 ? 1 : k == 1 ? 3 : UINT32_MAX;
            o.last = k == 2 ? LARDER_LAST_PAD : LARDER_LAST_SHORT;
            (void)try_it(s.ds, &o);
        }
    for (int k = 0; k < 12; k++) {
        struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
        o.staging_bytes = k == 0 ? SIZE_MAX : 8 * MIB;
        o.batch_size = k == 1 ? UINT32_MAX : 4;
        o.world = k == 1 || k == 2 ? UINT32_MAX : 1;
        o.rank = k == 1 || k == 2 ? UINT32_MAX - 1 : 0;
        o.last = k == 2 ? LARDER_LAST_SHORT : k == 1 ? LARDER_LAST_PAD : 0;
        o.epoch_size = k == 3 ? UINT64_MAX : k == 4 ? 1ull << 63 : 0;
        o.epoch = k == 5 ? UINT64_MAX : 0;
        o.block_samples = o.window_blocks = k == 6 || k == 3 ? UINT64_MAX : 0;
        o.shuffle = k == 6 || k == 3 ? LARDER_SHUFFLE_BLOCK : 0;
        o.fetch_size = k >= 7 ? UINT64_MAX : 0;
        o.threshold = k == 8 ? UINT64_MAX : k == 9 ? 1ull << 63 : 0;
        o.epochs = k == 10 ? 1ull << 63 : k == 11 ? UINT64_MAX : k == 3 ? 1 : 0;
        int rc = try_it(s.ds, &o);
        if (k >= 7) /* so many samples fit nowhere */
            CHECK_EQ(rc, LARDER_EINVAL);
    }
    larder_dataset_close(s.ds);
}

/* Outputs of a newer header are longer than what this library knows. Each of them is looked at. */
TEST(outputs_of_a_newer_header_in_a_mix)
{
    struct { struct larder_output o; uint64_t more[5]; } outputs[2] = {{LARDER_OUTPUT_INIT, {0}}, {LARDER_OUTPUT_INIT, {0}}};
    struct larder_mix_source sources[2] = {LARDER_MIX_SOURCE_INIT, LARDER_MIX_SOURCE_INIT};
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader *ld;
    struct larder_error err;

    for (int i = 0; i < 2; i++) {
        const struct larder_field theirs[] = {{"a", LARDER_I64, NULL, 0, NULL}, {"b", i ? LARDER_F64 : LARDER_I64, NULL, 0, NULL}};
        const int64_t value = 1;
        struct larder_writer *w;
        char dir[128];
        snprintf(dir, sizeof(dir), "%s/ds", tmp_dir());
        REQUIRE_OK(larder_writer_open(dir, theirs, 2, NULL, &w, &err), &err);
        REQUIRE_OK(larder_writer_add(w, "k", 1, (struct larder_value[]){{&value, 8}, {&value, 8}}, &err), &err);
        REQUIRE_OK(larder_writer_commit(w, NULL, &err), &err);
        REQUIRE_OK(larder_dataset_open(dir, NULL, &sources[i].ds, &err), &err);
        outputs[i].o.struct_size = sizeof(outputs[i]);
        outputs[i].o.field = i ? "b" : "a";
    }
    o.outputs = &outputs[0].o;
    for (o.n_outputs = 1; o.n_outputs <= 2; o.n_outputs++) { /* b is not the same in both */
        CHECK_EQ(larder_loader_open_mix(sources, 2, 0, &o, &ld, &err), o.n_outputs == 1 ? LARDER_OK : LARDER_EINVAL);
        larder_loader_close(ld);
    }
    for (int i = 0; i < 2; i++)
        larder_dataset_close(sources[i].ds);
}

TEST_MAIN();

