/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_model_store.c - random histories of a dataset against a model in memory, through larder.h alone.
 *
 * A sample's values are a function of its seed and the schema, so the model of a dataset is an array of (seed, key) and, for each
 * generation, how many of them it has. A round draws a schema and a history: appends of every compression and shard size, writers
 * that are abandoned or refused, repairs, a loss of all manifests, gc, reopening; between them everything that can be read is read
 * and compared. LARDER_SEED=n repeats one round, LARDER_ROUNDS=n sets how many; the seed of a failing round is printed.
 */
#include <fcntl.h>
#include <stdbool.h>

#include "tests/unit/test.h"

#define STEPS 14
#define FIELDS_MAX 9
#define SAMPLES_MAX 4000
#define GENERATIONS_MAX 64

struct msample { uint64_t seed; size_t key_len; uint8_t *key; };

struct model {
    uint64_t rng, round;
    char dir[160];
    struct larder_field fields[FIELDS_MAX];
    uint32_t n_fields;
    struct msample *samples;                /* in the order of their ordinals */
    size_t n;
    uint64_t newest, oldest;                /* generations on disk; newest 0: no dataset yet */
    size_t counts[GENERATIONS_MAX];         /* samples of generation i */
    bool there[GENERATIONS_MAX];
    bool keyless[GENERATIONS_MAX];          /* its index was taken away */
    bool hurt[GENERATIONS_MAX];             /* some of its records were damaged */
    bool revised;                           /* shards were rewritten: without manifests repair finds older copies too */
    uint8_t uuid[16], lineage[16];
    struct larder_dataset *ds;              /* of the newest generation, or NULL */
};

static uint64_t draw(struct model *m, uint64_t n) { return rng_below(&m->rng, n); }

/* ---- samples from seeds ---- */

static const int64_t shape_vec[] = {-1, 4}, shape_two[] = {-1, -1};
static const struct larder_field all_fields[FIELDS_MAX] = {
    {"image", LARDER_IMAGE, NULL, 0, NULL}, {"label", LARDER_I64, NULL, 0, NULL},
    {"text", LARDER_UTF8, NULL, 0, NULL},   {"vec", LARDER_NDARRAY, "float32", 2, shape_vec},
    {"score", LARDER_F32, NULL, 0, NULL},   {"wave", LARDER_AUDIO, NULL, 0, NULL},
    {"ok", LARDER_BOOL, NULL, 0, NULL},     {"weight", LARDER_F64, NULL, 0, NULL},
    {"map", LARDER_NDARRAY, "uint8", 2, shape_two},
};

static size_t payload_len(uint64_t *rng)
{
    uint64_t kind = rng_below(rng, 40);

    return kind == 0 ? 0 : kind == 1 ? 60000 + rng_below(rng, 90000) : kind < 6 ? rng_below(rng, 9000) : rng_below(rng, 300);
}

static void words(uint64_t *rng, uint8_t *out, size_t len)
{
    static const char text[] = "the quick brown fox jumps over a lazy dog and larder keeps it ";

    for (size_t i = 0; i < len; i++)
        out[i] = (uint8_t)text[(i + rng_below(rng, 16) / 15) % (sizeof text - 1)];
}

/* Length of field f's value of a sample, SIZE_MAX when it has none, and its bytes when out is not NULL. */
static size_t value_of(const struct larder_field *f, uint64_t seed, uint8_t *out)
{
    uint64_t rng = seed * 31 + (uint64_t)f->name[0] * 1000003 + (uint64_t)f->type;
    size_t len;

    if (rng_below(&rng, 6) == 0)
        return SIZE_MAX;
    switch (f->type) {
    case LARDER_I64: case LARDER_F64: len = 8; break;
    case LARDER_F32: len = 4; break;
    case LARDER_BOOL: len = 1; break;
    default: len = payload_len(&rng);
    }
    if (f->type == LARDER_NDARRAY)
        len = f->shape == shape_two ? 16 + len / 7 * 7 : len / 16 * 16;
    if (!out)
        return len;
    if (f->type == LARDER_UTF8)
        words(&rng, out, len);
    else if (f->type == LARDER_BOOL)
        out[0] = rng_below(&rng, 2);
    else
        rng_fill(&rng, out, len);
    if (f->shape == shape_two) {
        int64_t sizes[2] = {(int64_t)(len - 16) / 7, 7};
        memcpy(out, sizes, 16);
    }
    return len;
}

struct filled { struct larder_value values[FIELDS_MAX]; uint8_t *bytes; };

static void fill(const struct model *m, uint64_t seed, struct filled *f)
{
    size_t total = 1, at = 0;

    for (uint32_t i = 0; i < m->n_fields; i++) {
        size_t len = value_of(&m->fields[i], seed, NULL);
        total += len == SIZE_MAX ? 0 : len;
    }
    f->bytes = malloc(total);
    for (uint32_t i = 0; i < m->n_fields; i++) {
        size_t len = value_of(&m->fields[i], seed, f->bytes + at);
        f->values[i] = (struct larder_value){len == SIZE_MAX ? NULL : f->bytes + at, len == SIZE_MAX ? 0 : len};
        at += f->values[i].len;
    }
}

/* Field i of the sample is v, bytes and absence alike. */
static bool value_is(const struct model *m, uint64_t seed, uint32_t i, const struct larder_value *v)
{
    size_t len = value_of(&m->fields[i], seed, NULL);

    if (len == SIZE_MAX || !v->data)
        return len == SIZE_MAX && !v->data && v->len == 0;
    uint8_t *want = malloc(len + 1);
    value_of(&m->fields[i], seed, want);
    bool same = v->len == len && memcmp(v->data, want, len) == 0;
    free(want);
    return same;
}

static bool has_key(const struct msample *samples, size_t n, const void *key, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (samples[i].key_len == len && memcmp(samples[i].key, key, len) == 0)
            return true;
    return false;
}

/* A key of any bytes that none of the first n samples has. */
static void new_key(struct model *m, size_t n, struct msample *s)
{
    uint8_t key[LARDER_KEY_MAX];

    do {
        uint64_t kind = draw(m, 10);
        if (kind < 6) {
            s->key_len = (size_t)snprintf((char *)key, sizeof key, "class%02d/image-%llu", (int)draw(m, 20), (unsigned long long)draw(m, 100000));
        } else {
            s->key_len = kind == 6 ? LARDER_KEY_MAX - draw(m, 3) : kind == 7 ? 1 + draw(m, 3) : 1 + draw(m, 200);
            rng_fill(&m->rng, key, s->key_len);
            if (kind == 9) /* long common beginnings, zeros */
                memset(key, 0, s->key_len - s->key_len / 8);
        }
    } while (has_key(m->samples, n, key, s->key_len));
    s->key = malloc(s->key_len);
    memcpy(s->key, key, s->key_len);
    s->seed = rng_u64(&m->rng);
}

/* ---- writing ---- */

static struct larder_dataset *newest(struct model *m)
{
    struct larder_error err;
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;

    if (!m->ds) {
        if (draw(m, 3) == 0) { /* budgets that do not hold anything */
            o.table_bytes = 1;
            o.index_bytes = 1;
            o.files_max = 1 + (unsigned)draw(m, 4);
            o.queue_depth = 1 + (unsigned)draw(m, 4);
        }
        o.direct = (int)draw(m, 3);
        REQUIRE_OK(larder_dataset_open(m->dir, &o, &m->ds, &err), &err);
    }
    return m->ds;
}

static void reopen(struct model *m)
{
    larder_dataset_close(m->ds);
    m->ds = NULL;
}

static int open_writer(struct model *m, struct larder_writer **w, struct larder_error *err)
{
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    bool given = m->newest == 0 || draw(m, 2);

    o.append = m->newest > 0;
    o.compression = (int)draw(m, 3);
    o.level = (int)draw(m, 6);
    o.shard_size = draw(m, 4) == 0 ? 1 : draw(m, 3) == 0 ? 0 : 2000 + draw(m, 400000);
    return larder_writer_open(m->dir, given ? m->fields : NULL, given ? m->n_fields : 0, &o, w, err);
}

static void add(struct model *m, struct larder_writer *w, const struct msample *s)
{
    struct larder_error err;
    struct filled f;

    fill(m, s->seed, &f);
    int rc = larder_writer_add(w, s->key, s->key_len, f.values, &err);
    free(f.bytes);
    REQUIRE_OK(rc, &err);
}

/* Adds what must be refused, and leaves the writer usable. */
static void add_bad(struct model *m, struct larder_writer *w)
{
    struct larder_error err;
    struct filled f;
    uint8_t key[LARDER_KEY_MAX + 1] = {1};

    fill(m, rng_u64(&m->rng), &f);
    CHECK_ERR(larder_writer_add(w, key, 0, f.values, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_writer_add(w, key, LARDER_KEY_MAX + 1, f.values, &err), LARDER_EINVAL, &err);
    for (uint32_t i = 0; i < m->n_fields; i++)
        if (m->fields[i].type == LARDER_I64) {
            f.values[i] = (struct larder_value){key, 7};
            CHECK_ERR(larder_writer_add(w, key, 8, f.values, &err), LARDER_EINVAL, &err);
        }
    free(f.bytes);
}

static void note_generation(struct model *m, uint64_t generation)
{
    REQUIRE(generation < GENERATIONS_MAX);
    m->newest = generation;
    m->counts[generation] = m->n;
    m->there[generation] = true;
    reopen(m);
    newest(m);
}

static void remember_identity(struct model *m)
{
    struct larder_dataset_info info = {.struct_size = sizeof info};
    struct larder_error err;

    REQUIRE_OK(larder_dataset_info(newest(m), &info, &err), &err);
    if (m->revised)
        CHECK_MEM(info.uuid, m->uuid, 16);
    memcpy(m->uuid, info.uuid, 16);
    memcpy(m->lineage, info.lineage, 16);
}

static void step_append(struct model *m)
{
    struct larder_writer *w;
    struct larder_error err;
    uint64_t generation = 0, was = m->newest;
    size_t n = 1 + draw(m, draw(m, 4) == 0 ? 250 : 40);

    if (m->n + n > SAMPLES_MAX)
        return;
    REQUIRE_OK(open_writer(m, &w, &err), &err);
    for (size_t i = 0; i < n; i++) {
        new_key(m, m->n + i, &m->samples[m->n + i]);
        add(m, w, &m->samples[m->n + i]);
        if (draw(m, 60) == 0)
            add_bad(m, w);
    }
    REQUIRE_OK(larder_writer_commit(w, &generation, &err), &err);
    CHECK_EQ(generation, was + 1);
    m->n += n;
    note_generation(m, generation);
    if (!was)
        remember_identity(m);
}

/* A writer that ends in nothing: abandoned, nothing added, or a key that is there already. */
static void step_refused(struct model *m)
{
    struct larder_writer *w, *second;
    struct larder_error err;
    struct msample s[50];
    size_t n = 1 + draw(m, 50);
    int kind = (int)draw(m, 4), rc;

    REQUIRE_OK(open_writer(m, &w, &err), &err);
    CHECK_ERR(open_writer(m, &second, &err), LARDER_EBUSY, &err);
    CHECK(second == NULL);
    for (size_t i = 0; i < n; i++)
        s[i].key = NULL;
    for (size_t i = 0; i < n && kind != 0; i++) {
        new_key(m, m->n, &s[i]);
        if (has_key(s, i, s[i].key, s[i].key_len)) /* of this very batch: wanted only below */
            continue;
        add(m, w, &s[i]);
    }
    if (kind == 1) { /* the same key twice in a batch */
        struct msample twice = s[draw(m, n)];
        add(m, w, &twice);
    } else if (kind == 2 && m->n) { /* a key that the dataset has */
        struct msample old = m->samples[draw(m, m->n)];
        old.seed++;
        add(m, w, &old);
    }
    if (kind == 3 || (kind == 2 && !m->n)) {
        larder_writer_close(w);
    } else {
        rc = larder_writer_commit(w, NULL, &err);
        CHECK_ERR(rc, kind == 0 ? LARDER_EINVAL : LARDER_EEXIST, &err);
    }
    for (size_t i = 0; i < n; i++)
        free(s[i].key);
}

/* ---- reading ---- */

static void step_read(struct model *m)
{
    struct larder_dataset *ds = newest(m);
    struct larder_read_options o = LARDER_READ_OPTIONS_INIT;
    struct larder_error err;
    uint64_t ordinals[64];
    struct larder_sample samples[64] = {{0}};
    uint32_t fields[FIELDS_MAX], n_fields = m->n_fields;
    size_t n = 1 + draw(m, 64);
    bool some = draw(m, 2);

    for (uint32_t i = 0; i < m->n_fields; i++)
        fields[i] = i;
    if (some) { /* a few fields in any order */
        n_fields = 1 + (uint32_t)draw(m, m->n_fields);
        for (uint32_t i = 0; i < n_fields; i++) {
            uint32_t k = i + (uint32_t)draw(m, m->n_fields - i), f = fields[i];
            fields[i] = fields[k];
            fields[k] = f;
        }
        o.fields = fields;
        o.n_fields = n_fields;
    }
    for (size_t i = 0; i < n; i++)
        ordinals[i] = i && draw(m, 6) == 0 ? ordinals[draw(m, i)] : i && draw(m, 3) == 0 ? (ordinals[i - 1] + 1) % m->n : draw(m, m->n);
    REQUIRE_OK(larder_dataset_read(ds, ordinals, n, some ? &o : NULL, samples, &err), &err);
    for (size_t i = 0; i < n; i++) {
        CHECK_EQ(samples[i].ordinal, ordinals[i]);
        REQUIRE_EQ(samples[i].n_fields, n_fields);
        for (uint32_t f = 0; f < n_fields; f++)
            CHECK(value_is(m, m->samples[ordinals[i]].seed, fields[f], &samples[i].fields[f]));
    }
    larder_samples_release(samples, n);
    ordinals[n / 2] = m->n + draw(m, 3);
    CHECK_ERR(larder_dataset_read(ds, ordinals, n, NULL, samples, &err), LARDER_ENOTFOUND, &err);
}

static void step_keys(struct model *m)
{
    struct larder_dataset *ds = newest(m);
    struct larder_error err;
    struct msample absent[100];
    const void *keys[300];
    size_t lens[300], n = 1 + draw(m, 300), n_absent = 0;
    uint64_t want[300], got[300];

    for (size_t i = 0; i < n; i++) {
        if (n_absent < 100 && draw(m, 5) == 0) {
            new_key(m, m->n, &absent[n_absent]);
            keys[i] = absent[n_absent].key;
            lens[i] = absent[n_absent++].key_len;
            want[i] = LARDER_NO_ORDINAL;
            continue;
        }
        want[i] = draw(m, m->n);
        keys[i] = m->samples[want[i]].key;
        lens[i] = m->samples[want[i]].key_len;
    }
    REQUIRE_OK(larder_dataset_lookup(ds, keys, lens, n, got, &err), &err);
    for (size_t i = 0; i < n; i++)
        CHECK_EQ(got[i], want[i]);
    for (size_t i = 0; i < n_absent; i++)
        free(absent[i].key);

    for (int i = 0; i < 8; i++) {
        uint64_t at = draw(m, m->n);
        const struct msample *s = &m->samples[at];
        uint8_t key[LARDER_KEY_MAX];
        size_t len = 0, cap = draw(m, 2) ? sizeof key : draw(m, 5);
        struct larder_sample sample = {0};
        REQUIRE_OK(larder_dataset_key(ds, at, key, cap, &len, &err), &err);
        CHECK_EQ(len, s->key_len);
        CHECK_MEM(key, s->key, len < cap ? len : cap);
        REQUIRE_OK(larder_dataset_get(ds, s->key, s->key_len, &sample, &err), &err);
        CHECK_EQ(sample.ordinal, at);
        for (uint32_t f = 0; f < m->n_fields; f++)
            CHECK(value_is(m, s->seed, f, &sample.fields[f]));
        larder_samples_release(&sample, 1);
    }
}

static unsigned width_of(int type)
{
    return type == LARDER_I64 || type == LARDER_F64 ? 8 : type == LARDER_F32 ? 4 : type == LARDER_BOOL ? 1 : 0;
}

static void step_columns(struct model *m)
{
    struct larder_dataset *ds = newest(m);
    struct larder_error err;
    uint8_t *column = malloc(m->n * 8 + 8);

    for (uint32_t f = 0; f < m->n_fields; f++) {
        unsigned width = width_of(m->fields[f].type);
        uint64_t first = draw(m, m->n), count = draw(m, m->n - first + 1);
        int rc = larder_dataset_column(ds, f, first, count, column, &err);
        if (!width) {
            CHECK_ERR(rc, LARDER_EINVAL, &err);
            continue;
        }
        CHECK_OK(rc, &err);
        for (uint64_t i = 0; rc == 0 && i < count; i++) {
            uint8_t want[8] = {0};
            value_of(&m->fields[f], m->samples[first + i].seed, want);
            CHECK_MEM(column + i * width, want, width);
        }
        CHECK_ERR(larder_dataset_column(ds, f, first, m->n - first + 1, column, &err), LARDER_ENOTFOUND, &err);
    }
    free(column);
}

static void one_epoch(struct model *m, struct larder_loader *ld, const struct larder_loader_options *o, uint64_t epoch, uint8_t *seen)
{
    const struct larder_batch *b;
    struct larder_error err;
    uint64_t position = 0;
    int rc;

    memset(seen, 0, m->n);
    while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK) {
        CHECK_EQ(b->epoch, epoch);
        CHECK_EQ(b->position, position);
        CHECK_EQ(b->n, o->batch_size < m->n - position ? o->batch_size : m->n - position);
        for (uint32_t i = 0; i < b->n; i++) {
            uint64_t at = b->ordinals[i];
            REQUIRE(at < m->n);
            CHECK_EQ(seen[at]++, 0);
            if (o->shuffle == LARDER_SHUFFLE_NONE)
                CHECK_EQ(at, position + i);
            for (uint32_t f = 0; f < m->n_fields; f++)
                CHECK(value_is(m, m->samples[at].seed, f, &b->values[i * m->n_fields + f]));
        }
        position += b->n;
        larder_batch_release(b);
    }
    CHECK_ERR(rc, LARDER_END, &err);
    CHECK_EQ(position, m->n);
}

static void step_epochs(struct model *m)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader *ld;
    struct larder_error err;
    uint8_t *seen = malloc(m->n + 1);

    o.batch_size = 1 + (uint32_t)draw(m, 1 + m->n);
    o.seed = rng_u64(&m->rng);
    o.epoch = draw(m, 1000);
    o.epochs = 1 + draw(m, 2);
    o.shuffle = (int)draw(m, 2);
    o.queue_depth = 1 + (uint32_t)draw(m, 64);
    REQUIRE_OK(larder_loader_open(newest(m), &o, &ld, &err), &err);
    for (uint64_t e = 0; e < o.epochs; e++)
        one_epoch(m, ld, &o, o.epoch + e, seen);
    larder_loader_close(ld);
    free(seen);
}

/* What the newest generation says of itself, and every sample and key. */
static void check_all(struct model *m)
{
    struct larder_dataset *ds = newest(m);
    struct larder_dataset_info info = {.struct_size = sizeof info};
    struct larder_error err;

    REQUIRE_OK(larder_dataset_info(ds, &info, &err), &err);
    CHECK_EQ(info.generation, m->newest);
    CHECK_EQ(info.samples, m->n);
    CHECK_EQ(info.fields, m->n_fields);
    CHECK_MEM(info.uuid, m->uuid, 16);
    CHECK_MEM(info.lineage, m->lineage, 16);
    for (uint64_t i = 0; i < m->n; i++) {
        const void *key = m->samples[i].key;
        struct larder_sample s = {0};
        uint64_t at;
        REQUIRE_OK(larder_dataset_lookup(ds, &key, &m->samples[i].key_len, 1, &at, &err), &err);
        REQUIRE_EQ(at, i);
        REQUIRE_OK(larder_dataset_read(ds, &i, 1, NULL, &s, &err), &err);
        for (uint32_t f = 0; f < m->n_fields; f++)
            CHECK(value_is(m, m->samples[i].seed, f, &s.fields[f]));
        larder_samples_release(&s, 1);
    }
}

/* ---- keeping ---- */

static void told(void *user, const struct larder_damage *d)
{
    (void)user;
    fprintf(stderr, "damage: %s slot %lld: %s\n", d->file, (long long)d->slot, d->why);
}

static void step_verify(struct model *m)
{
    struct larder_verify_options o = LARDER_VERIFY_OPTIONS_INIT;
    struct larder_verify_report r = {.struct_size = sizeof r};
    struct larder_error err;
    uint64_t samples = 0;

    o.workers = (unsigned)draw(m, 4);
    o.damage = told;
    CHECK_OK(larder_verify_run(m->dir, &o, &r, &err), &err);
    CHECK_EQ(r.damaged, 0);
    CHECK_EQ(r.samples, m->n);
    CHECK_EQ(r.generation, m->newest);
    o.subset_t = 3;
    for (o.subset_n = 1; o.subset_n <= 3; o.subset_n++) {
        CHECK_OK(larder_verify_run(m->dir, &o, &r, &err), &err);
        samples += r.samples;
    }
    CHECK_EQ(samples, m->n);
}

static void repair(struct model *m, bool wanted)
{
    struct larder_repair_options o = LARDER_REPAIR_OPTIONS_INIT;
    struct larder_repair_report r = {.struct_size = sizeof r};
    struct larder_error err;

    if (draw(m, 3) == 0) {
        o.dry_run = 1;
        REQUIRE_OK(larder_repair_run(m->dir, &o, &r, &err), &err);
        CHECK_EQ(r.generation, 0);
        o.dry_run = 0;
    }
    REQUIRE_OK(larder_repair_run(m->dir, &o, &r, &err), &err);
    CHECK_EQ(r.dropped, 0);
    CHECK_EQ(r.shards_rewritten + r.shards_dropped, 0);
    CHECK_EQ(r.lineage_changed, 0);
    CHECK_EQ(r.samples, m->n);
    CHECK_EQ(r.generation != 0, wanted);
    if (wanted)
        note_generation(m, r.generation);
}

static void remove_below(const char *dir, const char *what)
{
    char command[256];

    snprintf(command, sizeof command, "cd %s && rm -rf %s", dir, what);
    REQUIRE_EQ(system(command), 0);
}

/* All that shards can give back is lost. */
static void step_lose(struct model *m)
{
    struct larder_error err;
    struct larder_dataset *ds;
    bool index = draw(m, 2);

    reopen(m);
    remove_below(m->dir, index ? "manifests larder.json index" : "manifests larder.json");
    CHECK_ERR(larder_dataset_open(m->dir, NULL, &ds, &err), LARDER_ENOTFOUND, &err);
    CHECK(ds == NULL);
    memset(m->there, 0, sizeof m->there);
    if (!m->revised) {
        repair(m, true);
    } else { /* the newest revision of each shard; one of which nothing was left is found, and dropped, again */
        struct larder_repair_report r = {.struct_size = sizeof r};
        REQUIRE_OK(larder_repair_run(m->dir, NULL, &r, &err), &err);
        note_generation(m, r.generation);
        remember_identity(m);
    }
    check_all(m);
}

/* Only the newest manifest, or only the hint. */
static void step_lose_little(struct model *m)
{
    char name[64];

    reopen(m);
    if (draw(m, 2)) {
        remove_below(m->dir, "larder.json");
        repair(m, false);
        return;
    }
    snprintf(name, sizeof name, "index/%llu-*", (unsigned long long)m->newest);
    remove_below(m->dir, name);
    m->keyless[m->newest] = true;
    repair(m, true);
}

static void step_gc(struct model *m)
{
    struct larder_gc_options o = LARDER_GC_OPTIONS_INIT;
    struct larder_gc_report r = {.struct_size = sizeof r};
    struct larder_error err;
    uint64_t removed = 0;

    REQUIRE_OK(larder_gc_run(m->dir, &o, &r, &err), &err); /* all is younger than a day */
    CHECK_EQ(r.generations + r.files, 0);
    o.min_age_s = 0;
    o.keep = draw(m, 4);
    o.dry_run = draw(m, 4) == 0;
    for (uint64_t g = 1, left = 0; g <= m->newest; g++) {
        left = 0;
        for (uint64_t k = g; k <= m->newest; k++)
            left += m->there[k];
        if (!m->there[g] || left <= (o.keep ? o.keep : 1))
            continue;
        removed++;
        m->there[g] = o.dry_run;
    }
    REQUIRE_OK(larder_gc_run(m->dir, &o, &r, &err), &err);
    CHECK_EQ(r.generations, removed);
    CHECK_EQ(r.young, 0);
}

/* Older generations have what they had. */
static void step_pinned(struct model *m)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset *ds;
    struct larder_error err;

    for (uint64_t g = 1; g <= m->newest + 1; g++) {
        o.generation = g;
        int rc = larder_dataset_open(m->dir, &o, &ds, &err);
        if (g <= m->newest && m->there[g] && m->hurt[g]) { /* its ordinals were others, and some cannot be read */
            larder_dataset_close(ds);
            continue;
        }
        if (g > m->newest || !m->there[g]) {
            CHECK_ERR(rc, LARDER_ENOTFOUND, &err);
            continue;
        }
        REQUIRE_OK(rc, &err);
        struct larder_dataset_info info = {.struct_size = sizeof info};
        CHECK_OK(larder_dataset_info(ds, &info, &err), &err);
        CHECK_EQ(info.samples, m->counts[g]);
        CHECK_MEM(info.lineage, m->lineage, 16);
        for (int i = 0; i < 10; i++) { /* a key of a later generation is not found in this one */
            uint64_t want = draw(m, m->n), at;
            const void *key = m->samples[want].key;
            rc = larder_dataset_lookup(ds, &key, &m->samples[want].key_len, 1, &at, &err);
            if (m->keyless[g])
                CHECK_ERR(rc, LARDER_ECORRUPT, &err);
            else if (CHECK_OK(rc, &err), rc == 0)
                CHECK_EQ(at, want < m->counts[g] ? want : LARDER_NO_ORDINAL);
            struct larder_sample s = {0};
            rc = larder_dataset_read(ds, &want, 1, NULL, &s, &err);
            if (want >= m->counts[g]) {
                CHECK_ERR(rc, LARDER_ENOTFOUND, &err);
                continue;
            }
            REQUIRE_OK(rc, &err);
            for (uint32_t f = 0; f < m->n_fields; f++)
                CHECK(value_is(m, m->samples[want].seed, f, &s.fields[f]));
            larder_samples_release(&s, 1);
        }
        larder_dataset_close(ds);
    }
}

static void count_damage(void *user, const struct larder_damage *d)
{
    (void)d;
    ++*(unsigned *)user;
}

/* A few records lose a bit: reading says so, verify lists them, repair drops them and nothing else. */
static void step_damage(struct model *m)
{
    struct larder_verify_options vo = LARDER_VERIFY_OPTIONS_INIT;
    struct larder_verify_report vr = {.struct_size = sizeof vr};
    struct larder_repair_options o = LARDER_REPAIR_OPTIONS_INIT;
    struct larder_repair_report r = {.struct_size = sizeof r};
    struct larder_error err;
    uint64_t hit[3];
    size_t n = 1 + draw(m, 3), kept = 0;
    unsigned told_of = 0;

    if (m->n < 8)
        return;
    for (size_t i = 0; i < n; i++) {
        struct larder_location loc;
        char path[300];
        uint8_t byte;
        hit[i] = (m->n / n) * i + draw(m, m->n / n);
        REQUIRE_OK(larder_dataset_locate(newest(m), hit[i], &loc, &err), &err);
        snprintf(path, sizeof path, "%s/shards/%s", m->dir, loc.shard);
        int fd = open(path, O_RDWR);
        off_t at = (off_t)(loc.offset + draw(m, loc.stored_len));
        REQUIRE(fd >= 0 && pread(fd, &byte, 1, at) == 1);
        byte ^= (uint8_t)(1 << draw(m, 8));
        REQUIRE(pwrite(fd, &byte, 1, at) == 1);
        close(fd);
    }
    reopen(m);
    for (size_t i = 0; i < n; i++) {
        struct larder_sample s = {0};
        CHECK_ERR(larder_dataset_read(newest(m), &hit[i], 1, NULL, &s, &err), LARDER_ECORRUPT, &err);
    }
    vo.damage = count_damage;
    vo.user = &told_of;
    CHECK_ERR(larder_verify_run(m->dir, &vo, &vr, &err), LARDER_ECORRUPT, &err);
    CHECK_EQ(vr.damaged, n);
    CHECK_EQ(told_of, n);
    reopen(m);
    REQUIRE_OK(larder_repair_run(m->dir, &o, &r, &err), &err);
    CHECK_EQ(r.dropped, n);
    CHECK_EQ(r.lineage_changed, 1);
    CHECK_EQ(r.samples, m->n - n);
    for (size_t i = 0, k = 0; i < m->n; i++) {
        if (k < n && hit[k] == i) {
            free(m->samples[i].key);
            k++;
        } else {
            m->samples[kept++] = m->samples[i];
        }
    }
    m->n = kept;
    for (uint64_t g = 1; g <= m->newest; g++)
        m->hurt[g] = true;
    m->revised = true;
    note_generation(m, r.generation);
    remember_identity(m);
    check_all(m);
}

/* Create refuses what is there; a writer with another schema is refused. */
static void step_wrong(struct model *m)
{
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    struct larder_writer *w;
    struct larder_error err;
    struct larder_field other[FIELDS_MAX + 1];

    CHECK_ERR(larder_writer_open(m->dir, m->fields, m->n_fields, &o, &w, &err), LARDER_EEXIST, &err);
    memcpy(other, m->fields, sizeof m->fields);
    other[m->n_fields] = (struct larder_field){"one more", LARDER_BYTES, NULL, 0, NULL};
    o.append = 1;
    CHECK_ERR(larder_writer_open(m->dir, other, m->n_fields + 1, &o, &w, &err), LARDER_EINVAL, &err);
    CHECK(w == NULL);
}

/* ---- a round ---- */

typedef void step_fn(struct model *m);
static const struct { step_fn *fn; unsigned weight; } steps[] = {
    {step_append, 6}, {step_refused, 3}, {step_read, 5}, {step_keys, 4},  {step_columns, 2},     {step_epochs, 3}, {step_verify, 1},
    {step_lose, 1},   {step_gc, 2},      {step_damage, 1},      {reopen, 2},    {step_wrong, 1}, {step_lose_little, 1}, {step_pinned, 2},
};

static void healthy(struct model *m)
{
    repair(m, false);
}

static void draw_schema(struct model *m)
{
    struct larder_field f[FIELDS_MAX];

    memcpy(f, all_fields, sizeof f);
    for (uint32_t i = 0; i < FIELDS_MAX; i++) {
        uint32_t k = i + (uint32_t)draw(m, FIELDS_MAX - i);
        m->fields[i] = f[k];
        f[k] = f[i];
    }
    m->n_fields = 1 + (uint32_t)draw(m, FIELDS_MAX);
}

static void run_steps(struct model *m)
{
    unsigned total = 0;

    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        total += steps[i].weight;
    draw_schema(m);
    if (draw(m, 2))
        step_refused(m); /* before there is a dataset */
    step_append(m);
    for (int i = 0; i < STEPS; i++) {
        unsigned at = (unsigned)draw(m, total), k = 0;
        for (; at >= steps[k].weight; k++)
            at -= steps[k].weight;
        steps[k].fn(m);
        if (atomic_load(&test_failures)) {
            fprintf(stderr, "after step %d (kind %u) of seed %llu: generation %llu, %zu samples\n", i, k, (unsigned long long)m->round,
                    (unsigned long long)m->newest, m->n);
            return;
        }
    }
    check_all(m);
    step_columns(m);
    step_pinned(m);
    step_verify(m);
    healthy(m);
}

/* Leaving a round early (REQUIRE) lets its memory go with the process: the round's data hangs on these. */
static struct model model;

static void one_round(const char *base, uint64_t seed)
{
    model = (struct model){.rng = seed * 7919 + 1, .round = seed};
    model.samples = calloc(SAMPLES_MAX, sizeof *model.samples);
    snprintf(model.dir, sizeof model.dir, "%s/d", base);
    run_steps(&model);
    reopen(&model);
    for (size_t i = 0; i < model.n; i++)
        free(model.samples[i].key);
    free(model.samples);
    remove_below(base, "d");
}

TEST(random_histories)
{
    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 1); /* a round syncs hundreds of times */
    const char *seed = getenv("LARDER_SEED"), *rounds = getenv("LARDER_ROUNDS");
    const char *base = tmp_dir();
    uint64_t n = seed ? 1 : rounds ? strtoull(rounds, NULL, 0) : 6, first = seed ? strtoull(seed, NULL, 0) : 1;

    for (uint64_t i = 0; i < n && !atomic_load(&test_failures); i++) {
        fprintf(stderr, "seed %llu (LARDER_SEED=%llu repeats it)\n", (unsigned long long)(first + i), (unsigned long long)(first + i));
        one_round(base, first + i);
    }
}

TEST_MAIN();
