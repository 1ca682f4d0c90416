/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of a new generation against a plain list of keys: appends of many sizes, the number of parts, duplicates of every
 * kind refused and dropped, nothing touched on failure.
 */
#include <dirent.h>

#include "store/store_int.h"
#include "tests/unit/test.h"

static const struct larder_field fields[] = {{"id", LARDER_I64, NULL, 0, NULL}, {"text", LARDER_UTF8, NULL, 0, NULL}};

/* A dataset being written, and what should be in it. */
struct world {
    const char *root;
    struct store_io *io;
    struct manifest m;
    uint64_t run;
    uint32_t counter;
    const char *dict;
    int notices;
    char first_notice[400];
};

static void world_open(struct world *w, int compression)
{
    struct larder_error err = {0};

    *w = (struct world){.root = tmp_dir(), .run = 0x1234567890abcdef};
    w->m = (struct manifest){.generation = 1, .compression = compression, .uuid = {1}, .lineage = {2}};
    REQUIRE_OK(schema_copy(&w->m.schema, fields, 2, &err), &err);
    REQUIRE_OK(io_file_open(w->root, true, 0, &w->io, &err), &err);
}

static void world_close(struct world *w)
{
    manifest_release(&w->m);
    io_close(w->io);
}

/* One shard with these keys; the value of each is its key again. */
static void add_keys(struct world *w, const char *const *keys, size_t n)
{
    struct manifest *m = &w->m;
    struct shard_params p = {.meta = m, .unit = w->counter, .sub = 3, .dict = w->dict, .dict_len = w->dict ? strlen(w->dict) : 0};
    struct shard_writer *sw;
    struct larder_error err = {0};
    char name[32];

    memcpy(p.session, "session!", 8);
    shard_name_new(w->run, w->counter++, name);
    REQUIRE_OK(shard_writer_open(w->io, name, &p, &sw, &err), &err);
    for (size_t i = 0; i < n; i++) {
        int64_t id = (int64_t)hash64(0, keys[i], strlen(keys[i]));
        struct larder_value v[2] = {{&id, 8}, {keys[i], strlen(keys[i])}};
        REQUIRE_OK(shard_writer_add(sw, keys[i], strlen(keys[i]), v, &err), &err);
    }
    REQUIRE_OK(GROW(m->shards, m->cap_shards, m->n_shards + 1, &err), &err);
    REQUIRE_OK(shard_writer_finish(sw, &m->shards[m->n_shards], &err), &err);
    m->n_shards++;
}

/* n keys "k<number>" from lo on, in an order that is not theirs, over shards of at most 1000. */
static void add_range(struct world *w, uint64_t lo, uint64_t n)
{
    char (*text)[24] = malloc(n * sizeof(*text));
    const char **keys = malloc(n * sizeof(*keys));
    struct perm p;

    perm_init(&p, lo, n, n);
    for (uint64_t i = 0; i < n; i++) {
        snprintf(text[i], sizeof(text[i]), "k%llu", (unsigned long long)(lo + perm_at(&p, i)));
        keys[i] = text[i];
    }
    for (uint64_t i = 0; i < n; i += 1000)
        add_keys(w, keys + i, (size_t)MIN(n - i, (uint64_t)1000));
    free(keys);
    free(text);
}

static void note(void *user, const char *what, const char *why)
{
    struct world *w = user;

    if (w->notices++ == 0)
        snprintf(w->first_notice, sizeof(w->first_notice), "%s|%s", what, why);
}

static int index_new(struct world *w, size_t first_new, bool drop, uint64_t *dropped, struct larder_error *err)
{
    struct index_policy p = {.drop_duplicates = drop, .notice = note, .user = w};

    return generation_index(w->io, &w->m, first_new, w->run, &p, dropped, err);
}

static void commit(struct world *w)
{
    struct larder_error err = {0};

    REQUIRE_OK(generation_commit(w->io, &w->m, &err), &err);
    w->m.generation++;
    w->run++;
    w->counter = 0;
}

/* Every sample of the manifest is read from its shard; its key must lead back to it. Returns how many there were. */
static uint64_t check_all(struct world *w)
{
    struct larder_error err = {0};
    struct index *ix;
    uint64_t ordinal = 0, at = 0;

    for (size_t i = 0; i < w->m.n_parts; i++) {
        CHECK_EQ(w->m.parts[i].lo, at);
        at = w->m.parts[i].hi;
        CHECK_EQ(w->m.parts[i].keys, w->m.parts[i].hi - w->m.parts[i].lo);
        CHECK(w->m.parts[i].keys > 0);
    }
    CHECK_EQ(at, w->m.samples);
    REQUIRE_OK(index_open(w->io, w->m.parts, w->m.n_parts, MIB, &ix, &err), &err);
    for (size_t i = 0; i < w->m.n_shards; i++) {
        struct shard_scan *scan;
        struct scan_item item;
        int rc;
        REQUIRE_EQ(w->m.shards[i].base, ordinal);
        REQUIRE_OK(shard_scan_open(w->io, &w->m.shards[i], SCAN_KEYS | SCAN_RECORDS, &scan, &err), &err);
        while ((rc = shard_scan_next(scan, &item, &err)) == LARDER_OK) {
            uint64_t found;
            REQUIRE_OK(index_lookup(ix, &item.key, &item.key_len, 1, &found, &err), &err);
            REQUIRE_EQ(found, ordinal);
            ordinal++;
        }
        REQUIRE_EQ(rc, LARDER_END);
        shard_scan_close(scan);
    }
    const void *absent[] = {"nokey", "k", "k99999999"};
    size_t lens[] = {5, 1, 9};
    uint64_t found[3];
    REQUIRE_OK(index_lookup(ix, absent, lens, 3, found, &err), &err);
    CHECK(found[0] == LARDER_NO_ORDINAL && found[1] == LARDER_NO_ORDINAL && found[2] == LARDER_NO_ORDINAL);
    index_close(ix);
    CHECK_EQ(ordinal, w->m.samples);
    return ordinal;
}

static int n_files(const struct world *w, const char *dir)
{
    char path[200];
    snprintf(path, sizeof(path), "%s/%s", w->root, dir);
    DIR *d = opendir(path);
    int n = 0;

    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

TEST(first_generation)
{
    struct world w;
    struct larder_error err = {0};
    uint64_t dropped = 9;

    world_open(&w, LARDER_COMPRESS_NONE);
    add_range(&w, 0, 3500);
    REQUIRE_OK(index_new(&w, 0, false, &dropped, &err), &err);
    CHECK_EQ(dropped, 0);
    CHECK_EQ(w.m.n_parts, 1);
    CHECK_STR(w.m.parts[0].dir, "1-1234567890abcdef");
    CHECK_EQ(check_all(&w), 3500);
    commit(&w);
    struct manifest again;
    REQUIRE_OK(generation_load(w.io, 1, &again, &err), &err);
    CHECK_EQ(again.samples, 3500);
    CHECK_EQ(again.n_parts, 1);
    manifest_release(&again);
    world_close(&w);
}

TEST(nothing_to_index)
{
    struct world w;
    struct larder_error err = {0};
    uint64_t dropped = 9;

    world_open(&w, LARDER_COMPRESS_NONE);
    REQUIRE_OK(index_new(&w, 0, true, &dropped, &err), &err);
    CHECK_EQ(w.m.n_parts + w.m.samples + dropped, 0);
    add_range(&w, 0, 5);
    REQUIRE_OK(index_new(&w, 0, true, &dropped, &err), &err);
    REQUIRE_OK(index_new(&w, 1, true, &dropped, &err), &err); /* no new shards */
    CHECK_EQ(w.m.n_parts, 1);
    CHECK_EQ(check_all(&w), 5);
    CHECK_ERR(index_new(&w, 2, true, &dropped, &err), LARDER_EINVAL, &err);
    world_close(&w);
}

/* Appends of every size: each part holds more than twice what comes after it, so their number is logarithmic. */
TEST(appends_merge_geometrically)
{
    struct world w;
    struct larder_error err = {0};
    uint64_t state = 11, total = 0;

    world_open(&w, LARDER_COMPRESS_NONE);
    for (int g = 0; g < 24; g++) {
        size_t first = w.m.n_shards;
        uint64_t n = 1 + rng_below(&state, g % 7 == 0 ? 3000 : 40);
        add_range(&w, total, n);
        total += n;
        REQUIRE_OK(index_new(&w, first, g % 2, NULL, &err), &err);
        for (size_t i = 0; i + 1 < w.m.n_parts; i++)
            CHECK(w.m.parts[i].keys > 2 * w.m.parts[i + 1].keys);
        CHECK(w.m.n_parts <= 12);
        commit(&w);
    }
    CHECK_EQ(check_all(&w), total);
    CHECK_EQ(w.notices, 0);
    size_t shards = w.m.n_shards;
    REQUIRE_OK(index_new(&w, 0, false, NULL, &err), &err); /* all anew, as repair does */
    CHECK_EQ(w.m.n_parts, 1);
    CHECK_EQ(w.m.n_shards, shards);
    CHECK_EQ(check_all(&w), total);
    world_close(&w);
}

TEST(duplicates_are_refused)
{
    static const char *const one[] = {"a", "b", "c"}, *const two[] = {"d", "b"}, *const three[] = {"e", "f"};
    struct world w;
    struct larder_error err = {0};

    world_open(&w, LARDER_COMPRESS_NONE);
    add_keys(&w, one, 3);
    add_keys(&w, two, 2);
    CHECK_ERR(index_new(&w, 0, false, NULL, &err), LARDER_EEXIST, &err);
    CHECK_STR(err.message, "duplicate key 'b': samples at shard 1234567890abcdef-000000 slot 1 and shard 1234567890abcdef-000001 "
                           "slot 1");
    CHECK_EQ(w.m.n_parts, 0);
    CHECK_EQ(w.m.n_shards, 2);
    CHECK_EQ(n_files(&w, "index"), 0);
    CHECK_EQ(n_files(&w, "shards"), 2);
    /* Against an older part that is absorbed, and one that stays. */
    w.m.n_shards = 1;
    shard_ref_release(&w.m.shards[1]);
    REQUIRE_OK(index_new(&w, 0, false, NULL, &err), &err);
    commit(&w);
    add_keys(&w, two, 2);
    CHECK_ERR(index_new(&w, 1, false, NULL, &err), LARDER_EEXIST, &err);
    CHECK(strstr(err.message, "'b'") && strstr(err.message, "1234567890abcdef-000000 slot 1 and shard 1234567890abcdf0-000000 slot 1"));
    CHECK_EQ(w.m.n_parts, 1);
    CHECK_EQ(n_files(&w, "index"), 1);
    w.m.n_shards = 1;
    shard_ref_release(&w.m.shards[1]);
    add_range(&w, 0, 3000);
    REQUIRE_OK(index_new(&w, 1, false, NULL, &err), &err);
    commit(&w);
    size_t first = w.m.n_shards;
    add_keys(&w, three, 2);
    static const char *const four[] = {"k77"};
    add_keys(&w, four, 1);
    CHECK_ERR(index_new(&w, first, false, NULL, &err), LARDER_EEXIST, &err);
    CHECK(strstr(err.message, "'k77'") != NULL);
    CHECK_EQ(w.m.n_parts, 1);
    world_close(&w);
}

TEST(duplicates_are_dropped)
{
    static const char *const one[] = {"a", "b", "c", "a"}, *const two[] = {"d", "b", "e"}, *const three[] = {"a", "b"},
                            *const four[] = {"g", "h"};
    struct world w;
    struct larder_error err = {0};
    uint64_t dropped = 0;

    world_open(&w, LARDER_COMPRESS_ZSTD);
    add_keys(&w, one, 4);
    add_keys(&w, two, 3);
    add_keys(&w, three, 2);
    add_keys(&w, four, 2);
    REQUIRE_OK(index_new(&w, 0, true, &dropped, &err), &err);
    CHECK_EQ(dropped, 4);
    CHECK_EQ(w.notices, 4);
    CHECK_STR(w.first_notice, "a|duplicate key: the sample at shard 1234567890abcdef-000000 slot 0 has it");
    CHECK_EQ(w.m.n_shards, 3);
    CHECK_EQ(check_all(&w), 7);
    CHECK_EQ(n_files(&w, "shards"), 6); /* four old ones, for a session that is interrupted now, and two new ones */
    CHECK_EQ(n_files(&w, "index"), 1);
    CHECK_EQ(w.m.shards[0].samples, 3);
    CHECK_EQ(w.m.shards[1].samples, 2);
    CHECK_STR(w.m.shards[2].name, "1234567890abcdef-000003"); /* not touched */
    CHECK_EQ(w.m.shards[1].unit, 1);
    CHECK_EQ(w.m.shards[1].sub, 3);
    struct shard_info info;
    REQUIRE_OK(shard_inspect(w.io, w.m.shards[0].name, &info, NULL, &err), &err);
    CHECK_EQ(info.revision, 1);
    CHECK_MEM(info.session, "session!", 8);
    shard_info_release(&info);
    commit(&w);

    /* Append: everything old, some old, with one dup against a part that stays and one against an absorbed part. */
    add_range(&w, 0, 2500);
    REQUIRE_OK(index_new(&w, 3, true, &dropped, &err), &err);
    commit(&w);
    static const char *const five[] = {"x", "k5", "a", "y"}, *const six[] = {"x", "k7"};
    size_t first = w.m.n_shards;
    add_keys(&w, five, 4);
    add_keys(&w, six, 2);
    REQUIRE_OK(index_new(&w, first, true, &dropped, &err), &err);
    CHECK_EQ(dropped, 4);
    CHECK_EQ(w.m.n_parts, 2);
    CHECK_EQ(w.m.n_shards, first + 1);
    CHECK_EQ(check_all(&w), 7 + 2500 + 2);
    commit(&w);
    first = w.m.n_shards;
    add_keys(&w, five, 4);
    REQUIRE_OK(index_new(&w, first, true, &dropped, &err), &err);
    CHECK_EQ(dropped, 4); /* nothing new at all */
    CHECK_EQ(w.m.n_shards, first);
    CHECK_EQ(w.m.n_parts, 2);
    CHECK_EQ(check_all(&w), 7 + 2500 + 2);
    world_close(&w);
}

/* Records as they were: with a dictionary, and readable through the store. */
TEST(rewritten_shards_read_back)
{
    static const char *const one[] = {"alpha alpha alpha alpha alpha alpha alpha alpha", "beta beta beta beta beta beta beta beta"};
    static const char *const two[] = {"gamma gamma gamma gamma gamma gamma gamma", "beta beta beta beta beta beta beta beta",
                                      "delta delta delta delta delta delta delta"};
    static const char *const left[] = {one[0], one[1], two[0], two[2]};
    struct world w;
    struct larder_error err = {0};
    uint64_t dropped;

    world_open(&w, LARDER_COMPRESS_ZSTD_DICT);
    w.dict = "alpha beta gamma delta alpha beta gamma delta alpha beta gamma delta alpha beta gamma delta";
    add_keys(&w, one, 2);
    add_keys(&w, two, 3);
    uint64_t dict_id = w.m.shards[1].dict_id;
    REQUIRE_OK(index_new(&w, 0, true, &dropped, &err), &err);
    CHECK_EQ(dropped, 1);
    CHECK(dict_id != 0 && w.m.shards[1].dict_id == dict_id);
    commit(&w);

    struct store *s;
    struct decoder *d;
    REQUIRE_OK(store_open(w.io, &(struct store_options){0}, &s, &err), &err);
    REQUIRE_OK(decoder_new(&d, &err), &err);
    for (uint64_t i = 0; i < 4; i++) {
        struct extent e;
        struct larder_value v[2];
        uint8_t stored[4096], scratch[4096];
        char path[64];
        int64_t id;
        uint64_t found;
        size_t len = strlen(left[i]);
        const void *key = left[i];
        REQUIRE_OK(store_lookup(s, &key, &len, 1, &found, &err), &err);
        CHECK_EQ(found, i);
        REQUIRE_OK(store_locate(s, &i, 1, &e, &err), &err);
        REQUIRE(e.stored_len <= sizeof(stored) && store_decode_scratch(&e) <= sizeof(scratch));
        snprintf(path, sizeof(path), "shards/%s", w.m.shards[e.shard].name);
        REQUIRE_OK(io_read(w.io, path, e.offset, stored, e.stored_len, &err), &err);
        REQUIRE_OK(store_decode(s, d, &e, stored, scratch, v, &err), &err);
        REQUIRE_EQ(v[1].len, len);
        CHECK_MEM(v[1].data, left[i], len);
        REQUIRE_OK(store_column(s, 0, i, 1, &id, &err), &err);
        CHECK_EQ((uint64_t)id, hash64(0, left[i], len));
    }
    decoder_free(d);
    store_close(s);
    world_close(&w);
}

/* A folder of a run that was killed has the name: another is taken. A damaged shard leaves all as it was. */
TEST(obstacles)
{
    static const char *const one[] = {"a", "b"}, *const two[] = {"b", "c"};
    struct world w;
    struct larder_error err = {0};
    char path[300], old[64];

    world_open(&w, LARDER_COMPRESS_NONE);
    add_keys(&w, one, 2);
    snprintf(path, sizeof(path), "%s/index", w.root);
    CHECK(mkdir(path, 0777) == 0);
    snprintf(path, sizeof(path), "%s/index/1-1234567890abcdef", w.root);
    CHECK(mkdir(path, 0777) == 0);
    REQUIRE_OK(index_new(&w, 0, true, NULL, &err), &err);
    CHECK(strcmp(w.m.parts[0].dir, "1-1234567890abcdef") != 0 && strlen(w.m.parts[0].dir) == 18);
    CHECK_EQ(check_all(&w), 2);
    commit(&w);

    add_keys(&w, two, 2);
    snprintf(old, sizeof(old), "%s", w.m.shards[1].name);
    snprintf(path, sizeof(path), "%s/shards/%s", w.root, old);
    FILE *f = fopen(path, "r+");
    REQUIRE(f != NULL);
    fseek(f, 4096 + 20, SEEK_SET); /* in the first record: the keys are whole, the copy fails */
    fputc('!', f);
    fclose(f);
    int files = n_files(&w, "shards"), parts = n_files(&w, "index");
    CHECK_ERR(index_new(&w, 1, true, NULL, &err), LARDER_ECORRUPT, &err);
    CHECK_EQ(w.m.n_shards, 2);
    CHECK_STR(w.m.shards[1].name, old);
    CHECK_EQ(w.m.n_parts, 1);
    CHECK_EQ(n_files(&w, "shards"), files);
    CHECK_EQ(n_files(&w, "index"), parts);
    world_close(&w);
}

TEST_MAIN();
