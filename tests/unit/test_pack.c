/* SPDX-License-Identifier: Apache-2.0 */
/* The packer over a source made up here: units of any shape, samples that fail, units that break, dictionaries. */
#include "tests/unit/ingest_tests.h"

/* Unit u has 5 + u % 7 samples "u-i"; sample i of unit u fails when bad(u, i); unit u breaks off after break_at[u] samples. */
struct fake { struct source base; uint64_t broken_unit; bool with_bad; atomic_uint opened; };
struct fake_cursor { struct fake *f; uint64_t unit, at; char key[32], what[40], text[3000]; struct larder_value v; };

static uint64_t fake_samples(uint64_t unit) { return 5 + unit % 7; }
static bool fake_bad(const struct fake *f, uint64_t unit, uint64_t i) { return f->with_bad && (unit * 31 + i) % 4 == 0; }

static size_t fake_text(uint64_t unit, uint64_t i, char out[3000])
{
    size_t len = 0, want = 100 + (unit * 7 + i * 131) % 2000;

    while (len < want)
        len += (size_t)sprintf(out + len, "{\"unit\": %llu, \"sample\": %llu, \"at\": %zu}", (unsigned long long)unit,
                               (unsigned long long)i, len);
    return len;
}

static int fake_open(struct source *s, uint64_t unit, uint64_t skip, struct source_cursor **out, struct larder_error *err)
{
    struct fake_cursor *c = calloc(1, sizeof(*c));

    if (!c)
        return err_nomem(err, sizeof(*c), "cursor");
    c->f = (struct fake *)s;
    c->unit = unit;
    c->at = skip;
    atomic_fetch_add(&c->f->opened, 1);
    *out = (struct source_cursor *)c;
    return LARDER_OK;
}

static int fake_next(struct source_cursor *cursor, struct source_item *item, struct larder_error *err)
{
    struct fake_cursor *c = (struct fake_cursor *)cursor;

    *item = (struct source_item){0};
    if (c->unit == c->f->broken_unit && c->at == 3)
        return err_set(err, LARDER_ECORRUPT, "unit %llu is damaged", (unsigned long long)c->unit);
    if (c->at == fake_samples(c->unit))
        return LARDER_END;
    uint64_t i = c->at++;
    snprintf(c->what, sizeof(c->what), "sample %llu-%llu", (unsigned long long)c->unit, (unsigned long long)i);
    item->what = c->what;
    if (fake_bad(c->f, c->unit, i))
        return err_set(err, LARDER_EINVAL, "%s is bad", c->what);
    c->v = (struct larder_value){c->text, fake_text(c->unit, i, c->text)};
    item->key = c->key;
    item->key_len = (size_t)sprintf(c->key, "%llu-%llu", (unsigned long long)c->unit, (unsigned long long)i);
    item->values = &c->v;
    item->source_bytes = c->v.len;
    return LARDER_OK;
}

static void fake_close_unit(struct source_cursor *c) { free(c); }

static const struct source_ops fake_ops = {fake_open, fake_next, fake_close_unit, NULL};

struct bench { struct store_io *io; struct start st; struct notes notes; struct larder_ingest_options o; struct heard h; struct fake f;
               struct pack p; };

static void set_up(struct bench *b, const char *dir, uint64_t units, int compression)
{
    static const char *const names[] = {"json"};
    static const int types[] = {LARDER_JSON};
    struct larder_error err;

    b->o = heard_options(&b->h);
    notes_init(&b->notes, &b->o);
    REQUIRE_OK(io_file_open(dir, true, 0, &b->io, &err), &err);
    REQUIRE_OK(start_open(b->io, false, &b->st, &err), &err);
    b->f = (struct fake){.broken_unit = UINT64_MAX};
    b->f.base.ops = &fake_ops;
    b->f.base.units = units;
    b->f.base.lossy_units = true;
    REQUIRE_OK(fields_schema(&b->f.base.schema, names, types, 1, &err), &err);
    REQUIRE_OK(manifest_begin(&b->st.m, &b->f.base.schema, NULL, 0, compression, &err), &err);
    b->st.journal.head.kind = JOURNAL_INGEST;
    if (!b->st.journal.has_head)
        REQUIRE_OK(journal_begin(&b->st.journal, &err), &err);
    b->p = (struct pack){.source = &b->f.base, .journal = &b->st.journal, .notes = &b->notes, .shard_size = 3000, .workers = 3};
    b->p.params.meta = &b->st.m;
    b->p.params.level = 3;
    REQUIRE_OK(journal_new_run(&b->st.journal, &b->p.run, &err), &err);
}

static void tear_down(struct bench *b)
{
    start_close(&b->st, false);
    schema_release(&b->f.base.schema);
    notes_release(&b->notes);
    heard_release(&b->h);
    io_close(b->io);
}

/* Every shard holds samples of one unit, in order; with `rest` all samples are there. */
static uint64_t check_shards(struct bench *b)
{
    struct larder_error err;
    uint64_t n = 0;

    REQUIRE_OK(manifest_add(&b->st.m, &b->st.journal, &err), &err);
    for (size_t i = 0; i < b->st.m.n_shards; i++) {
        const struct shard_ref *r = &b->st.m.shards[i];
        struct shard_scan *scan;
        struct scan_item item;
        CHECK(i == 0 || r->unit > r[-1].unit || (r->unit == r[-1].unit && r->sub == r[-1].sub + 1));
        CHECK(r->samples == 1 || r->stored_bytes < 3000);
        CHECK_EQ(r->base, n);
        REQUIRE_OK(shard_scan_open(b->io, r, SCAN_KEYS, &scan, &err), &err);
        while (shard_scan_next(scan, &item, &err) == LARDER_OK) {
            char prefix[32];
            int len = sprintf(prefix, "%llu-", (unsigned long long)r->unit);
            CHECK(item.key_len > (size_t)len && !memcmp(item.key, prefix, (size_t)len));
            n++;
        }
        shard_scan_close(scan);
    }
    return n;
}

TEST(all_units)
{
    struct bench b = {0};
    struct larder_error err;
    uint64_t want = 0;

    set_up(&b, tmp_dir(), 15, LARDER_COMPRESS_NONE);
    for (uint64_t u = 0; u < 15; u++)
        want += fake_samples(u);
    REQUIRE_OK(pack_run(&b.p, &err), &err);
    CHECK_EQ(b.p.consumed, want);
    CHECK_EQ(b.p.skipped, 0);
    CHECK_EQ(b.st.journal.n_units, 15);
    CHECK_EQ(check_shards(&b), want);
    tear_down(&b);
}

TEST(bad_samples_fail_or_are_skipped)
{
    struct bench b = {0};
    struct larder_error err;
    uint64_t want = 0, bad = 0;

    set_up(&b, tmp_dir(), 20, LARDER_COMPRESS_NONE);
    b.f.with_bad = true;
    CHECK_ERR(pack_run(&b.p, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "is bad") != NULL);
    tear_down(&b);
    memset(&b, 0, sizeof(b));
    set_up(&b, tmp_dir(), 20, LARDER_COMPRESS_NONE);
    b.f.with_bad = true;
    b.f.broken_unit = 11;
    b.o.on_error = LARDER_ON_ERROR_SKIP;
    for (uint64_t u = 0; u < 20; u++)
        for (uint64_t i = 0; i < (u == 11 ? 3 : fake_samples(u)); i++)
            *(fake_bad(&b.f, u, i) ? &bad : &want) += 1;
    REQUIRE_OK(pack_run(&b.p, &err), &err);
    CHECK_EQ(b.p.skipped, bad + 1);
    CHECK_EQ(b.h.n_skipped, bad + 1);
    CHECK(strstr(heard_text(&b.h.skipped), "unit 11 is damaged: the rest of this archive is left out\n") != NULL);
    CHECK_EQ(check_shards(&b), want);
    tear_down(&b);
}

TEST(a_unit_that_breaks_fails_the_run)
{
    struct bench b = {0};
    struct larder_error err;

    set_up(&b, tmp_dir(), 20, LARDER_COMPRESS_NONE);
    b.f.broken_unit = 5;
    CHECK_ERR(pack_run(&b.p, &err), LARDER_ECORRUPT, &err);
    tear_down(&b);
}

/* Fails in unit 13, later goes on: nothing is packed twice, nothing is missing. */
TEST(going_on)
{
    const char *dir = tmp_dir();
    struct bench b = {0};
    struct larder_error err;
    uint64_t want = 0;

    set_up(&b, dir, 25, LARDER_COMPRESS_NONE);
    b.f.broken_unit = 13;
    CHECK_ERR(pack_run(&b.p, &err), LARDER_ECORRUPT, &err);
    size_t sealed = b.st.journal.n_shards, units = b.st.journal.n_units;
    CHECK(units >= 10 && units < 25);
    tear_down(&b);
    memset(&b, 0, sizeof(b));
    set_up(&b, dir, 25, LARDER_COMPRESS_NONE);
    CHECK_EQ(b.st.journal.n_shards, sealed);
    REQUIRE_OK(pack_run(&b.p, &err), &err);
    CHECK(atomic_load(&b.f.opened) <= 25 - units);
    for (uint64_t u = 0; u < 25; u++)
        want += fake_samples(u);
    CHECK_EQ(b.p.consumed, want);
    CHECK_EQ(check_shards(&b), want);
    tear_down(&b);
}

TEST(dictionaries)
{
    struct bench b = {0};
    struct larder_error err;
    void *dict;
    size_t len;

    set_up(&b, tmp_dir(), 25, LARDER_COMPRESS_ZSTD_DICT);
    REQUIRE_OK(dict_train(&b.f.base, &dict, &len, &err), &err);
    CHECK(len > 256 && len <= 112 * 1024);
    CHECK(!b.f.base.quiet);
    b.p.params.dict = dict;
    b.p.params.dict_len = len;
    REQUIRE_OK(pack_run(&b.p, &err), &err);
    check_shards(&b);
    for (size_t i = 0; i < b.st.m.n_shards; i++)
        CHECK_EQ(b.st.m.shards[i].dict_id, dict_id_of(dict, len));
    free(dict);
    b.f.base.units = 1; /* five samples: too little */
    REQUIRE_OK(dict_train(&b.f.base, &dict, &len, &err), &err);
    CHECK(dict == NULL && len == 0);
    b.f.base.schema.fields[0].type = LARDER_IMAGE; /* nothing that would be compressed */
    b.f.base.units = 25;
    unsigned opened = atomic_load(&b.f.opened);
    REQUIRE_OK(dict_train(&b.f.base, &dict, &len, &err), &err);
    CHECK(dict == NULL);
    CHECK_EQ(atomic_load(&b.f.opened), opened);
    tear_down(&b);
}

TEST_MAIN();
