/* SPDX-License-Identifier: Apache-2.0 */
#include "loader/loader_int.h"
#include "tests/unit/test.h"

/* n samples of `classes` classes: those of a class together, or one after the other. Made once. */
static struct larder_dataset *make(int64_t n, int64_t classes, bool together, bool names)
{
    static char paths[4][256];
    static const struct larder_field fields[] = {{"label", LARDER_I64, NULL, 0, NULL}};
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    char *path = paths[together + 2 * names], **name;
    struct larder_dataset *ds;
    struct larder_writer *w;
    struct larder_error err;

    if (*path) {
        REQUIRE_OK(larder_dataset_open(path, NULL, &ds, &err), &err);
        return ds;
    }
    name = calloc((size_t)classes, sizeof(*name));
    for (int64_t i = 0; i < classes; i++)
        REQUIRE(asprintf(&name[i], "class%04d", (int)i) > 0);
    o.shard_size = 64 << 10;
    if (names) {
        o.classes = (const char *const *)name;
        o.n_classes = (size_t)classes;
    }
    snprintf(path, 256, "%s/ds", tmp_dir());
    REQUIRE_OK(larder_writer_open(path, fields, 1, &o, &w, &err), &err);
    for (int64_t i = 0; i < n; i++) {
        char key[24];
        int64_t label = together ? i * classes / n : i % classes;
        struct larder_value v = {&label, 8};
        REQUIRE_OK(larder_writer_add(w, key, (size_t)snprintf(key, sizeof(key), "%08d", (int)i), &v, &err), &err);
    }
    REQUIRE_OK(larder_writer_commit(w, NULL, &err), &err);
    REQUIRE_OK(larder_dataset_open(path, NULL, &ds, &err), &err);
    strings_free(name, (size_t)classes);
    return ds;
}

/* Labels of a window, counted one by one. */
static uint64_t counted(struct larder_dataset *ds, const struct order *o, uint64_t window)
{
    uint64_t n = o->block * o->window, *v = malloc(n * sizeof(*v)), classes = 0;
    uint8_t seen[10000] = {0};
    struct larder_error err;

    order_fill(o, 0, window * n, n, v);
    for (uint64_t i = 0; i < n; i++) {
        int64_t label;
        REQUIRE_OK(larder_dataset_column(ds, 0, v[i], 1, &label, &err), &err);
        classes += !seen[label]++;
    }
    free(v);
    return classes;
}

TEST(few_looks_see_what_all_would)
{
    for (int k = 0; k < 4; k++) {
        struct larder_dataset *ds = make(12800, 200, k % 2, k / 2);
        struct order o = {.n = 12800, .seed = 4, .shuffle = LARDER_SHUFFLE_BLOCK, .block = 64, .window = 16};
        uint64_t seen, classes, want = 0;
        struct larder_error err;

        for (uint64_t w = 0; w < 3; w++)
            want += counted(ds, &o, 12 * w / 3);
        REQUIRE_OK(classes_in_windows(ds, &o, 0, &seen, &classes, &err), &err);
        CHECK(k == 1 ? classes > 40 && classes <= 200 : classes == 200); /* together and without names */
        CHECK(seen <= want / 3 + 1 && seen + 4 >= want / 3);
        CHECK(k % 2 ? seen < 50 : seen > 190);
        larder_dataset_close(ds);
    }
}

static size_t warnings(struct larder_dataset *ds, const struct larder_loader_options *o)
{
    struct larder_loader *ld;
    struct larder_error err;
    size_t n = 0;

    REQUIRE_OK(larder_loader_open(ds, o, &ld, &err), &err);
    while (larder_loader_warning(ld, n))
        n++;
    if (n) {
        const char *text = larder_loader_warning(ld, 0);
        CHECK(text == larder_loader_warning(ld, 0));
        CHECK(strstr(text, "16 blocks of 64 samples") && strstr(text, "of 200 classes"));
    }
    larder_loader_close(ld);
    return n;
}

TEST(a_window_of_few_classes_is_told)
{
    struct larder_dataset *clumps = make(12800, 200, true, true), *even = make(12800, 200, false, true);
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    uint8_t filter[1600];

    o.shuffle = LARDER_SHUFFLE_BLOCK;
    o.block_samples = 64;
    o.window_blocks = 16;
    CHECK_EQ(warnings(clumps, &o), 1);
    CHECK_EQ(warnings(even, &o), 0);
    memset(filter, 0x11, sizeof(filter)); /* every fourth: blocks span four times as many */
    o.filter = filter;
    CHECK_EQ(warnings(clumps, &o), 1);
    o.filter = NULL;
    o.window_blocks = 200; /* all in one window */
    CHECK_EQ(warnings(clumps, &o), 0);
    o.window_blocks = 16;
    o.shuffle = LARDER_SHUFFLE_FULL;
    CHECK_EQ(warnings(clumps, &o), 0);
    larder_dataset_close(clumps);
    larder_dataset_close(even);
    CHECK(larder_loader_warning(NULL, 0) == NULL);
}

/* Of a mix each dataset's. */
TEST(mixes_are_looked_at_too)
{
    struct larder_mix_source s[3] = {LARDER_MIX_SOURCE_INIT, LARDER_MIX_SOURCE_INIT, LARDER_MIX_SOURCE_INIT};
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader *ld;
    struct larder_error err;

    s[0].ds = s[2].ds = make(12800, 200, true, true);
    s[1].ds = make(12800, 200, false, true);
    o.shuffle = LARDER_SHUFFLE_BLOCK;
    o.block_samples = 64;
    o.window_blocks = 16;
    REQUIRE_OK(larder_loader_open_mix(s, 3, LARDER_EXHAUSTED_STOP, &o, &ld, &err), &err);
    CHECK(larder_loader_warning(ld, 1) && !larder_loader_warning(ld, 2));
    larder_loader_close(ld);
    larder_dataset_close(s[0].ds);
    larder_dataset_close(s[1].ds);
}

TEST_MAIN();
