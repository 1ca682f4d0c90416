/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_model_remote.c - random histories of a dataset in a simulated bucket with faults, against a model in memory.
 *
 * Two machines (clients of one bucket, each with a scratch folder, faults and a seed of its own) write generations that race, read,
 * pin, copy to another bucket, collect garbage, lose or damage the hint. What counts is the bucket itself: after each step its
 * manifests are compared with the model, which knows what every writer tried to commit. So:
 *   - a generation is created once and never changes; a commit that was reported is there, one that lost is another's;
 *   - an error is one of the network's unless nothing else could be, and never wrong bytes or a mixture of generations.
 * Most rounds write shards and manifests without a key index, which costs microseconds, so that thousands of seeds fit; each
 * FULL_EVERY-th goes through writer, ingest, index and lookups. LARDER_SEED=n repeats one round, LARDER_ROUNDS=n sets how many.
 */
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>

#include "ingest/ingest.h"
#include "store/store_int.h"
#include "tests/model/sim_s3.h"
#include "tests/unit/test.h"

enum { CLIENTS = 2, GENERATIONS = 48, SAMPLES = 600, STEPS = 10, FULL_EVERY = 100, READ_TRIES = 12 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ROUNDS = 600 };
#else
enum { ROUNDS = 2500 };
#endif

struct client { struct sim_io *s; struct store *pinned; uint64_t pinned_generation; };

/* What somebody tried to commit. */
struct attempt { uint64_t generation, ids[SAMPLES]; size_t n; char text_shard[32]; };

struct model {
    uint64_t rng, seed;
    struct sim_bucket *b;
    struct client c[CLIENTS];
    struct attempt *won[GENERATIONS];  /* by generation; NULL: none */
    uint32_t crcs[GENERATIONS];        /* of the manifests' bytes */
    struct attempt *open[4 * STEPS];   /* not seen in the bucket (yet) */
    size_t n_open;
    uint64_t newest, oldest, next_id, run;
    bool full;
    char dir[200];                     /* of this round */
    /* another writer's turn, in the middle of a commit */
    int rival;
};

static uint64_t draw(struct model *m, uint64_t n) { return rng_below(&m->rng, n); }

static const struct larder_field fields[2] = {{"image", LARDER_IMAGE, NULL, 0, NULL}, {"label", LARDER_I64, NULL, 0, NULL}};

static size_t image_of(uint64_t id, uint8_t out[700])
{
    uint64_t state = id * 31 + 7;
    size_t len = id % 13 == 0 ? 0 : (size_t)rng_below(&state, 700);
    rng_fill(&state, out, len);
    return len;
}

static size_t key_of(uint64_t id, char out[40]) { return (size_t)snprintf(out, 40, "k%llu", (unsigned long long)id * 2654435761 % 1000003); }

static bool is_fault(int rc, const struct larder_error *err)
{
    bool fault = rc == LARDER_EREMOTE || rc == LARDER_ETIMEOUT;
    if (rc && !fault)
        fprintf(stderr, "code %d: %s\n", rc, err->message);
    return fault;
}

/* What goes wrong for a client from here on. */
static void set_faults(struct model *m, struct client *c)
{
    static const struct sim_faults kinds[] = {{0, 0, 0, 0}, {0, 0, 300, 200}, {100, 100, 100, 100}, {800, 400, 200, 0}, {0, 2500, 0, 0}};
    c->s->faults = kinds[draw(m, ARRAY_LEN(kinds))];
}

static void no_faults(struct client *c) { c->s->faults = (struct sim_faults){0}; }

/* ---- the bucket against the model ---- */

static struct attempt *open_with(struct model *m, uint64_t generation, const char *shard)
{
    for (size_t i = 0; i < m->n_open; i++) {
        struct attempt *a = m->open[i];
        if (a->generation == generation && !strcmp(a->text_shard, shard)) {
            m->open[i] = m->open[--m->n_open];
            return a;
        }
    }
    return NULL;
}

/* Looks at all manifests: known ones are as they were, new ones are what somebody tried. */
static void look(struct model *m)
{
    for (uint64_t g = m->oldest; g < GENERATIONS; g++) {
        struct manifest t;
        struct larder_error err = {0};
        char name[64];
        manifest_path(g, name);
        struct sim_object *o = sim_find(m->b, name);
        if (!o) {
            CHECK(!m->won[g] || g < m->oldest);
            continue;
        }
        uint32_t crc = crc32c(0, o->data, o->len);
        if (m->won[g]) {
            CHECK_EQ(crc, m->crcs[g]); /* created once */
            continue;
        }
        REQUIRE_OK(manifest_decode(o->data, o->len, name, &t, &err), &err);
        CHECK_EQ(t.generation, g);
        CHECK_EQ(g, m->newest + 1); /* no gaps */
        REQUIRE(t.n_shards > 0);
        m->won[g] = open_with(m, g, t.shards[t.n_shards - 1].name);
        REQUIRE(m->won[g] != NULL);
        CHECK_EQ(t.samples, m->won[g]->n);
        m->crcs[g] = crc;
        m->newest = g;
        manifest_release(&t);
    }
}

/* ---- writing ---- */

static int add_shards(struct model *m, struct store_io *io, struct manifest *t, struct attempt *a, struct larder_error *err)
{
    int rc = LARDER_OK;
    for (unsigned shards = 1 + (unsigned)draw(m, 2); !rc && shards > 0; shards--) {
        struct shard_params p = {.meta = t, .unit = t->n_shards};
        struct shard_writer *w;
        char key[40];
        uint8_t image[700];
        shard_name_new(++m->run, 0, a->text_shard);
        if ((rc = shard_writer_open(io, a->text_shard, &p, &w, err)))
            break;
        for (uint64_t n = 1 + draw(m, 20); !rc && n > 0 && a->n < SAMPLES; n--) {
            uint64_t id = m->next_id++;
            int64_t label = (int64_t)id;
            size_t len = image_of(id, image);
            struct larder_value v[2] = {{image, len}, {&label, 8}};
            rc = shard_writer_add(w, key, key_of(id, key), v, err);
            a->ids[a->n++] = id;
        }
        if (rc) {
            shard_writer_abort(w);
            break;
        }
        if ((rc = GROW(t->shards, t->cap_shards, t->n_shards + 1, err)) == 0 && (rc = shard_writer_finish(w, &t->shards[t->n_shards], err)) == 0) {
            t->shards[t->n_shards].base = t->samples;
            t->samples += t->shards[t->n_shards++].samples;
        }
    }
    return rc;
}

static void write_light(struct model *m, struct client *c);

static void rivals_turn(struct sim_io *s, const char *name)
{
    struct model *m = s->user;
    if (strncmp(name, "manifests/", 10) || m->rival < 0)
        return;
    int rival = m->rival;
    m->rival = -1;
    write_light(m, &m->c[rival]);
}

static void begin_manifest(struct model *m, struct manifest *t)
{
    struct larder_error err = {0};
    if (!t->generation) {
        put_u64(t->uuid, m->seed + 1);
        put_u64(t->lineage, m->seed + 2);
        REQUIRE_OK(schema_copy(&t->schema, fields, 2, &err), &err);
    }
    t->generation++;
}

/* One commit: shards, a manifest on top of the newest, maybe with another's commit in between. */
static void write_light(struct model *m, struct client *c)
{
    struct manifest t;
    struct larder_error err = {0};
    if (m->newest + 2 >= GENERATIONS || (m->newest && m->won[m->newest]->n + 50 > SAMPLES))
        return;
    int rc = generation_load_newest(&c->s->io, &t, &err);
    if (rc == LARDER_ENOTFOUND && m->newest == 0)
        rc = LARDER_OK;
    if (rc) {
        CHECK(is_fault(rc, &err));
        return;
    }
    CHECK_EQ(t.generation, m->newest);
    struct attempt *a = calloc(1, sizeof(*a));
    if (t.generation) {
        a->n = m->won[t.generation]->n;
        memcpy(a->ids, m->won[t.generation]->ids, a->n * sizeof(a->ids[0]));
    }
    begin_manifest(m, &t);
    a->generation = t.generation;
    rc = add_shards(m, &c->s->io, &t, a, &err);
    if (rc) {
        CHECK(is_fault(rc, &err));
        free(a);
        manifest_release(&t);
        return;
    }
    if (!t.n_parts) {
        t.parts = calloc(1, sizeof(*t.parts));
        t.parts[t.n_parts++].dir = strdup("none"); /* nobody looks a key up */
    }
    t.parts[0].hi = t.parts[0].keys = t.samples;
    m->open[m->n_open++] = a;
    rc = generation_commit(&c->s->io, &t, &err);
    look(m);
    bool mine = m->won[a->generation] == a;
    if (rc == LARDER_OK)
        CHECK(mine);
    else if (rc == LARDER_EBUSY)
        CHECK(!mine && m->won[a->generation]);
    else
        CHECK(is_fault(rc, &err));
    manifest_release(&t);
}

/* ---- reading ---- */

static int read_sample(struct model *m, struct store *s, struct decoder *d, const struct attempt *a, uint64_t ordinal, struct larder_error *err)
{
    struct extent e;
    struct larder_value v[2];
    uint8_t image[700];
    char path[320], key[64], want_key[40];
    size_t key_len = 0;
    int64_t label = -1;
    int rc = store_locate(s, &ordinal, 1, &e, err);
    if (rc)
        return rc;
    AUTO_FREE uint8_t *bytes = malloc(e.stored_len + 1);
    shard_path(store_manifest(s)->shards[e.shard].name, path);
    for (int tries = 0; tries < READ_TRIES; tries++) {
        rc = io_read(store_io_of(s), path, e.offset, bytes, e.stored_len, err);
        if (!rc)
            rc = store_decode(s, d, &e, bytes, NULL, v, err);
        if (rc != LARDER_ECORRUPT)
            break;
    }
    if (rc)
        return rc;
    uint64_t id = a->ids[ordinal];
    size_t len = image_of(id, image);
    CHECK(v[0].len == len && (len == 0 || !memcmp(v[0].data, image, len)));
    CHECK(v[1].len == 8 && get_u64(v[1].data) == id);
    if (draw(m, 3) == 0) {
        if ((rc = store_key(s, ordinal, key, sizeof(key), &key_len, err)))
            return rc;
        CHECK(key_len == key_of(id, want_key) && !memcmp(key, want_key, key_len));
    }
    if (draw(m, 3) == 0) {
        if ((rc = store_column(s, 1, ordinal, 1, &label, err)))
            return rc;
        CHECK_EQ(label, id);
    }
    return rc;
}

static int read_some(struct model *m, struct store *s, struct larder_error *err)
{
    const struct manifest *t = store_manifest(s);
    const struct attempt *a = m->won[t->generation];
    struct decoder *d;
    int rc = decoder_new(&d, err);
    REQUIRE(a != NULL);
    CHECK_EQ(t->samples, a->n);
    for (int i = 0; !rc && i < 4; i++)
        rc = read_sample(m, s, d, a, draw(m, a->n), err);
    AUTO_FREE int64_t *labels = calloc(a->n + 1, sizeof(*labels));
    if (!rc && draw(m, 3) == 0 && !(rc = store_column(s, 1, 0, a->n, labels, err)))
        for (size_t i = 0; i < a->n; i++)
            CHECK_EQ(labels[i], a->ids[i]);
    decoder_free(d);
    return rc;
}

static bool hint_good(const struct model *m)
{
    struct sim_object *o = sim_find(m->b, "larder.json");
    AUTO_JSON struct json *j = NULL;
    return o && !sealed_json_parse(o->data, o->len, "hint", &j, NULL);
}

static void read_newest(struct model *m, struct client *c)
{
    struct larder_error err = {0};
    struct store *s;
    uint64_t pin = m->newest > m->oldest && draw(m, 4) == 0 ? m->oldest + draw(m, m->newest - m->oldest) : 0;
    uint64_t lists = c->s->lists, heads = c->s->heads, trips = c->s->trips;
    bool hint = hint_good(m), clean = c->s->faults.fail + c->s->faults.flip + c->s->faults.cut == 0;
    int rc = store_open(&c->s->io, &(struct store_options){.generation = pin, .table_bytes = 1 << 20}, &s, &err);
    if (rc) {
        CHECK((rc == LARDER_ENOTFOUND && m->newest == 0) || is_fault(rc, &err));
        return;
    }
    CHECK_EQ(store_manifest(s)->generation, pin ? pin : m->newest);
    if (clean && hint && !pin && m->oldest == 1)
        CHECK(c->s->trips - trips <= 2 + m->newest); /* a hint that is behind costs a trip a generation */
    rc = read_some(m, s, &err);
    CHECK(rc == LARDER_OK || is_fault(rc, &err));
    if (hint && m->oldest == 1 && clean) {
        CHECK_EQ(c->s->lists, lists);
        CHECK_EQ(c->s->heads, heads);
    }
    if (!c->pinned && draw(m, 3) == 0) {
        c->pinned_generation = store_manifest(s)->generation;
        c->pinned = s;
    } else {
        store_close(s);
    }
}

/* A reader that was opened before others wrote. */
static void read_pinned(struct model *m, struct client *c)
{
    struct larder_error err = {0};
    if (!c->pinned)
        return;
    int rc = read_some(m, c->pinned, &err);
    CHECK(rc == LARDER_OK || is_fault(rc, &err));
    if (draw(m, 2)) {
        store_close(c->pinned);
        c->pinned = NULL;
    }
}

static void check_shards(struct model *m, struct client *c)
{
    struct larder_error err = {0};
    struct store *s;
    int rc = store_open(&c->s->io, &(struct store_options){0}, &s, &err);
    if (rc) {
        CHECK(m->newest == 0 || is_fault(rc, &err));
        return;
    }
    for (size_t i = 0; !rc && i < store_manifest(s)->n_shards; i++) {
        struct shard_check k = {.io = &c->s->io, .store = s, .ref = &store_manifest(s)->shards[i], .shard_no = i};
        rc = shard_check_run(&k, &err);
        CHECK(rc == LARDER_OK ? k.damaged == 0 && k.samples == k.ref->samples : is_fault(rc, &err));
    }
    store_close(s);
}

/* ---- the rest ---- */

static void spoil_hint(struct model *m)
{
    struct sim_object *o = sim_find(m->b, "larder.json");
    if (o && draw(m, 2))
        o->data[draw(m, o->len)] ^= 4;
    else if (o)
        sim_drop(m->b, "larder.json");
}

static void collect(struct model *m, struct client *c)
{
    struct larder_gc_options o = LARDER_GC_OPTIONS_INIT;
    struct larder_gc_report r = {.struct_size = sizeof(r)};
    struct larder_error err = {0};
    o.keep = 1 + draw(m, 3);
    o.min_age_s = 0;
    for (int i = 0; i < CLIENTS; i++) { /* what they pinned may go */
        store_close(m->c[i].pinned);
        m->c[i].pinned = NULL;
    }
    int rc = store_gc(&c->s->io, &o, &r, &err);
    CHECK(rc == LARDER_OK || (rc == LARDER_ENOTFOUND && m->newest == 0) || is_fault(rc, &err));
    uint64_t keep = m->newest >= o.keep ? m->newest - o.keep + 1 : 1;
    char name[64];
    for (uint64_t g = m->oldest; g < keep; g++) {
        manifest_path(g, name);
        if (sim_find(m->b, name))
            CHECK(rc != LARDER_OK);
        else
            m->oldest = g + 1;
    }
    if (rc == LARDER_OK && m->newest)
        for (size_t i = sim_at(m->b, "shards/"); i < m->b->n && !strncmp(m->b->objects[i].name, "shards/", 7); i++)
            CHECK(m->b->objects[i].len > 0);
}

static void copy_away(struct model *m, struct client *c)
{
    struct larder_copy_options o = LARDER_COPY_OPTIONS_INIT;
    struct larder_copy_report r = {.struct_size = sizeof(r)};
    struct larder_error err = {0};
    char work[260];
    if (!m->newest && !m->full)
        return;
    snprintf(work, sizeof(work), "%s/copy", m->dir);
    struct sim_bucket *b = sim_bucket_new();
    struct sim_io *dst = sim_open(b, m->seed, work);
    struct client there = {.s = dst};
    dst->faults = c->s->faults;
    o.workers = 1;
    o.checksum = (int)draw(m, 2);
    for (int tries = 0; tries < 60; tries++) {
        int rc = store_copy(&c->s->io, &dst->io, &o, &r, &err);
        if (rc == LARDER_OK)
            break;
        CHECK(is_fault(rc, &err));
        CHECK(tries < 50);
        if (tries == 40) {
            no_faults(c);
            no_faults(&there);
        }
    }
    no_faults(&there);
    struct store *s;
    REQUIRE_OK(store_open(&dst->io, &(struct store_options){.table_bytes = 1 << 20}, &s, &err), &err);
    if (m->full) {
        struct larder_verify_options vo = LARDER_VERIFY_OPTIONS_INIT;
        struct larder_verify_report vr = {.struct_size = sizeof(vr)};
        vo.workers = 1;
        CHECK_OK(store_verify(&dst->io, &vo, &vr, &err), &err);
        CHECK(vr.samples > 0);
    } else {
        CHECK_EQ(store_manifest(s)->generation, m->newest);
        CHECK_OK(read_some(m, s, &err), &err);
    }
    store_close(s);
    CHECK_EQ(b->unfinished, 0);
    io_close(&dst->io);
    sim_bucket_free(b);
}

static void light_step(struct model *m)
{
    struct client *c = &m->c[draw(m, CLIENTS)];
    set_faults(m, c);
    switch (draw(m, 12)) {
    case 0: case 1: case 2: case 3:
        m->rival = draw(m, 3) == 0 ? (int)(c == &m->c[0]) : -1;
        write_light(m, c);
        m->rival = -1;
        break;
    case 4: case 5: case 6:
        read_newest(m, c);
        break;
    case 7: case 8:
        read_pinned(m, c);
        break;
    case 9:
        check_shards(m, c);
        break;
    case 10:
        if (draw(m, 2))
            spoil_hint(m);
        else
            copy_away(m, c);
        break;
    default:
        if (draw(m, 3) == 0)
            collect(m, c);
    }
    look(m);
}

/* ---- rounds with everything ---- */

/* The sample of file i of the source. */
static void source_file(const char *dir, uint64_t i)
{
    char path[300];
    uint8_t image[701] = {0};
    snprintf(path, sizeof(path), "%s/%c", dir, (int)('a' + i % 3));
    (void)mkdir(path, 0777);
    snprintf(path, sizeof(path), "%s/%c/%llu.jpg", dir, (int)('a' + i % 3), (unsigned long long)i);
    AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    size_t len = image_of(13 * i + 1, image) + 1;
    REQUIRE(fd >= 0 && write(fd, image, len) == (ssize_t)len);
}

static void remove_dir(const char *path);

/* Reads back every file through lookups. */
static void check_ingested(struct client *c, uint64_t n, struct store *s)
{
    struct larder_error err = {0};
    struct decoder *d;
    REQUIRE_OK(decoder_new(&d, &err), &err);
    CHECK_EQ(store_manifest(s)->samples, n);
    for (uint64_t i = 0; i < n; i++) {
        char key[40], path[320];
        uint8_t image[701] = {0};
        const void *k = key;
        size_t len = (size_t)snprintf(key, sizeof(key), "%c/%llu", (int)('a' + i % 3), (unsigned long long)i), image_len = image_of(13 * i + 1, image) + 1;
        uint64_t ordinal = 0;
        struct extent e;
        struct larder_value v[8];
        REQUIRE_OK(store_lookup(s, &k, &len, 1, &ordinal, &err), &err);
        REQUIRE(ordinal < n);
        REQUIRE_OK(store_locate(s, &ordinal, 1, &e, &err), &err);
        AUTO_FREE uint8_t *bytes = malloc(e.stored_len + 1);
        shard_path(store_manifest(s)->shards[e.shard].name, path);
        REQUIRE_OK(io_read(&c->s->io, path, e.offset, bytes, e.stored_len, &err), &err);
        REQUIRE_OK(store_decode(s, d, &e, bytes, NULL, v, &err), &err);
        int field = schema_find(&store_manifest(s)->schema, "image");
        REQUIRE(field >= 0);
        CHECK(v[field].len == image_len && !memcmp(v[field].data, image, image_len));
    }
    char none[] = "a/none";
    const void *k = none;
    size_t len = 6;
    uint64_t ordinal = 0;
    REQUIRE_OK(store_lookup(s, &k, &len, 1, &ordinal, &err), &err);
    CHECK_EQ(ordinal, LARDER_NO_ORDINAL);
    decoder_free(d);
}

/* One ingest, run again until it is through: what it sealed is not done twice. */
static void ingest_until_done(struct model *m, struct client *c, const char *source, bool append, uint64_t total, uint64_t added)
{
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    struct larder_ingest_report r = {.struct_size = sizeof(r)};
    struct larder_error err = {0};
    o.append = append;
    o.workers = 1;
    o.shard_size = 3000 + draw(m, 4000);
    for (int tries = 0;; tries++) {
        c->s->faults = tries < 20 ? (struct sim_faults){200, 200, 200, 100} : (struct sim_faults){0};
        int rc = ingest_run(&source, 1, &c->s->io, &o, &r, &err);
        if (rc == LARDER_OK)
            break;
        if (rc == LARDER_EEXIST) { /* a commit whose answer was lost for good: it was there before the last run */
            CHECK(!append && tries > 0);
            return;
        }
        CHECK(is_fault(rc, &err));
        REQUIRE(tries < 30);
    }
    CHECK_EQ(r.samples, total);
    CHECK_EQ(r.added, added);
}

static void full_round(struct model *m)
{
    struct larder_verify_options o = LARDER_VERIFY_OPTIONS_INIT;
    struct larder_verify_report r = {.struct_size = sizeof(r)};
    struct larder_error err = {0};
    struct client *c = &m->c[0], *other = &m->c[1];
    char a[260], b[260];
    uint64_t n = 20 + draw(m, 30), more = 5 + draw(m, 20);
    snprintf(a, sizeof(a), "%s/a", m->dir);
    snprintf(b, sizeof(b), "%s/b", m->dir);
    REQUIRE(mkdir(a, 0777) == 0 && mkdir(b, 0777) == 0);
    for (uint64_t i = 0; i < n + more; i++)
        source_file(i < n ? a : b, i);
    ingest_until_done(m, c, a, false, n, n);
    other->s->io.work_bytes = draw(m, 2) ? 1 : 0;
    ingest_until_done(m, draw(m, 2) ? c : other, b, true, n + more, more);
    for (int i = 0; i < CLIENTS; i++) {
        struct store *s;
        no_faults(&m->c[i]);
        REQUIRE_OK(store_open(&m->c[i].s->io, &(struct store_options){0}, &s, &err), &err);
        check_ingested(&m->c[i], n + more, s);
        store_close(s);
        m->c[i].s->faults = (struct sim_faults){0, 0, 200, 100};
        o.workers = 1;
        CHECK_OK(store_verify(&m->c[i].s->io, &o, &r, &err), &err); /* by lookups, or by the sum */
        CHECK_EQ(r.samples, n + more);
    }
    c->s->faults = (struct sim_faults){200, 200, 500, 200};
    copy_away(m, c);
    c->s->faults = (struct sim_faults){0, 0, 200, 100};
    struct manifest t;
    char name[300];
    REQUIRE_OK(generation_load_newest(&c->s->io, &t, &err), &err);
    snprintf(name, sizeof(name), "index/%s/%s", t.parts[0].dir, t.parts[0].files[draw(m, t.parts[0].n_files)].name);
    manifest_release(&t);
    struct sim_object *x = sim_find(m->b, name);
    REQUIRE(x != NULL);
    x->data[draw(m, x->len)] ^= 1;
    CHECK_EQ(store_verify(&c->s->io, &o, &r, &err), LARDER_ECORRUPT);
    struct larder_repair_options ro = LARDER_REPAIR_OPTIONS_INIT;
    struct larder_repair_report rr = {.struct_size = sizeof(rr)};
    struct larder_gc_options go = LARDER_GC_OPTIONS_INIT;
    struct larder_gc_report gr = {.struct_size = sizeof(gr)};
    CHECK_OK(store_repair(&c->s->io, &ro, &rr, &err), &err);
    CHECK_EQ(rr.dropped, 0);
    CHECK_OK(store_verify(&other->s->io, &o, &r, &err), &err);
    go.min_age_s = 0;
    CHECK_OK(store_gc(&other->s->io, &go, &gr, &err), &err);
    CHECK_OK(store_verify(&c->s->io, &o, &r, &err), &err);
    CHECK_EQ(r.samples, n + more);
}

/* ---- rounds ---- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

static void remove_dir(const char *path) { nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

static void one_round(const char *base, uint64_t seed)
{
    struct model m = {.rng = seed * 0x9e3779b97f4a7c15, .seed = seed, .oldest = 1, .rival = -1, .run = seed << 20, .full = seed % FULL_EVERY == 0};
    snprintf(m.dir, sizeof(m.dir), "%s/%llu", base, (unsigned long long)seed);
    REQUIRE(mkdir(m.dir, 0777) == 0);
    m.b = sim_bucket_new();
    for (int i = 0; i < CLIENTS; i++) {
        char work[260];
        snprintf(work, sizeof(work), "%s/work%d", m.dir, i);
        m.c[i].s = sim_open(m.b, seed * 2 + (unsigned)i, work);
        m.c[i].s->before_create = rivals_turn;
        m.c[i].s->user = &m;
    }
    if (m.full)
        full_round(&m);
    else
        for (int i = 0; i < STEPS && !atomic_load(&test_failures); i++)
            light_step(&m);
    for (int i = 0; i < CLIENTS; i++) {
        store_close(m.c[i].pinned);
        io_close(&m.c[i].s->io);
    }
    for (size_t g = 0; g < GENERATIONS; g++)
        free(m.won[g]);
    while (m.n_open > 0)
        free(m.open[--m.n_open]);
    sim_bucket_free(m.b);
    remove_dir(m.dir);
}

TEST(histories)
{
    const char *seed = getenv("LARDER_SEED"), *rounds = getenv("LARDER_ROUNDS");
    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 1); /* a disk's syncs would take the time of thousands of rounds */
    const char *base = tmp_dir();
    uint64_t n = seed ? 1 : rounds ? strtoull(rounds, NULL, 0) : ROUNDS, first = seed ? strtoull(seed, NULL, 0) : 1;
    for (uint64_t i = 0; i < n; i++) {
        one_round(base, first + i);
        if (atomic_load(&test_failures)) {
            fprintf(stderr, "seed %llu: LARDER_SEED=%llu repeats it\n", (unsigned long long)(first + i), (unsigned long long)(first + i));
            return;
        }
    }
}

TEST_MAIN();
