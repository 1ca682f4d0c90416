/* SPDX-License-Identifier: Apache-2.0 */
/* test_bad.c - substitutes, messages and counts of bad samples. tests/unit/test_loader_bad.c has the loader with them. */
#include "loader/prep_int.h"
#include "tests/unit/dataset.h"
#include "tests/unit/test.h"

TEST(substitutes_are_a_function_and_spread)
{
    uint64_t counts[10] = {0};
    for (uint64_t p = 0; p < 10000; p++) {
        uint64_t at = bad_position(1, 2, p, 0, 10);
        REQUIRE(at < 10);
        counts[at]++;
        CHECK_EQ(bad_position(1, 2, p, 0, 10), at);
    }
    for (int i = 0; i < 10; i++)
        CHECK(counts[i] > 850 && counts[i] < 1150); /* 1,000 and five deviations of 30 */
    const uint64_t big = UINT64_MAX;
    uint64_t x = bad_position(1, 2, 3, 0, big);
    CHECK(x != bad_position(2, 2, 3, 0, big) && x != bad_position(1, 3, 3, 0, big) && x != bad_position(1, 2, 4, 0, big) &&
          x != bad_position(1, 2, 3, 1, big));
    CHECK_EQ(bad_position(1, 2, 3, 4, 1), 0);
}

TEST(notes_are_sorted_by_position)
{
    struct bad_notes b = {NULL, 0, 0};
    struct larder_error err;
    const uint64_t positions[] = {7, 3, 9, 3, 1};
    for (size_t i = 0; i < ARRAY_LEN(positions); i++)
        CHECK_OK(bad_add(&b, &(struct bad_note){.position = positions[i], .ordinal = i}, &err), &err);
    bad_sort(&b);
    const uint64_t ordinals[] = {4, 1, 3, 0, 2};
    CHECK_EQ(b.n, 5);
    for (size_t i = 0; i < b.n; i++)
        CHECK_EQ(b.notes[i].ordinal, ordinals[i]);
    bad_release(&b);
    CHECK(!b.notes && !b.n);
}

TEST(messages_name_the_sample)
{
    static const struct dataset_spec spec = {300, 100, 50, 0, 20, LARDER_COMPRESS_NONE};
    struct larder_dataset *ds;
    struct larder_error err;
    char message[244], key[LARDER_KEY_MAX + 1], want[LARDER_KEY_MAX + 400], path[400];
    size_t len;
    REQUIRE_OK(larder_dataset_open(dataset_make(&spec), NULL, &ds, &err), &err);
    REQUIRE_OK(larder_dataset_key(ds, 250, key, LARDER_KEY_MAX, &len, &err), &err);
    key[len] = '\0';
    bad_describe(ds->store, -1, 250, "field image: JPEG ends at line 61 of 375", message);
    snprintf(want, sizeof(want), "sample '%s' (ordinal 250, shard 2 slot 50), field image: JPEG ends at line 61 of 375", key);
    CHECK_STR(message, want);
    CHECK_EQ(bad_refuse(message, "DS", 250, &err), LARDER_ECORRUPT);
    snprintf(want + strlen(want), 100, "; on_bad_sample=replace goes on; larder get DS @250 shows it");
    CHECK_STR(err.message, want);

    memset(path, 'p', sizeof(path)); /* a long path is not named, a long reason is cut */
    path[300] = '\0';
    memset(want, 'w', 300);
    want[300] = '\0';
    bad_describe(ds->store, -1, 0, want, message);
    CHECK_EQ(strlen(message), 243);
    CHECK_EQ(bad_refuse(message, path, 0, &err), LARDER_ECORRUPT);
    CHECK_EQ(strlen(err.message), 243);
    CHECK(strstr(err.message, "; on_bad_sample=replace goes on; larder get DATASET @0 shows it") != NULL);
    larder_dataset_close(ds);
}

TEST(keys_of_all_kinds_are_shown_on_a_line)
{
    struct larder_field field = {"x", LARDER_BYTES, NULL, 0, NULL};
    struct larder_value value = {"v", 1};
    struct larder_writer *w;
    struct larder_dataset *ds;
    struct larder_error err;
    char path[200], message[244], longkey[200];
    snprintf(path, sizeof(path), "%s/ds", tmp_dir());
    REQUIRE_OK(larder_writer_open(path, &field, 1, NULL, &w, &err), &err);
    REQUIRE_OK(larder_writer_add(w, "a\nb\x7f", 4, &value, &err), &err);
    memset(longkey, 'k', sizeof(longkey));
    REQUIRE_OK(larder_writer_add(w, longkey, sizeof(longkey), &value, &err), &err);
    REQUIRE_OK(larder_writer_commit(w, NULL, &err), &err);
    REQUIRE_OK(larder_dataset_open(path, NULL, &ds, &err), &err);
    bad_describe(ds->store, -1, 0, "why", message);
    CHECK_STR(message, "sample 'a\\x0ab\\x7f' (ordinal 0, shard 0 slot 0), why");
    bad_describe(ds->store, 3, 0, "source 3: shards/x slot 0 (ordinal 0): why", message);
    CHECK_STR(message, "sample 'a\\x0ab\\x7f' (source 3, ordinal 0, shard 0 slot 0), why");
    bad_describe(ds->store, -1, 1, "why", message);
    CHECK_STR(message, "sample 'kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk...' (ordinal 1, shard 0 slot 1), why");
    larder_dataset_close(ds);
}

static int account(struct bad_count *c, double max_bad, uint64_t samples, uint64_t first, size_t n, struct larder_error *err)
{
    struct bad_notes b = {NULL, 0, 0};
    for (size_t i = 0; i < n; i++)
        CHECK_EQ(bad_add(&b, &(struct bad_note){.ordinal = first + i}, err), LARDER_OK);
    int rc = bad_account(c, max_bad, samples, &b, err);
    bad_release(&b);
    return rc;
}

TEST(too_many_are_refused)
{
    struct larder_error err;
    struct bad_count c = {0};
    CHECK_OK(account(&c, 0.001, 256, 10, 3, &err), &err); /* before the 1,000th nothing is */
    CHECK_OK(account(&c, 0.001, 256, 0, 0, &err), &err);
    CHECK_OK(account(&c, 0.001, 256, 0, 0, &err), &err);
    CHECK_OK(account(&c, 0.001, 256, 0, 0, &err), &err); /* none more: nothing to complain of */
    CHECK_ERR(account(&c, 0.001, 256, 11, 1, &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "4 of 1280 samples asked for were bad, more than max_bad=0.001: ordinals 10, 11, 12, ...; repair the dataset "
                           "(larder verify lists damage), or raise max_bad");
    c = (struct bad_count){0};
    CHECK_OK(account(&c, 0.001, 1000, 1, 1, &err), &err);
    CHECK_ERR(account(&c, 0.001, 500, 1, 1, &err), LARDER_ECORRUPT, &err);
    c = (struct bad_count){0};
    CHECK_OK(account(&c, 0.01, 10000, 1, 100, &err), &err); /* exactly as many as may be */
    CHECK_ERR(account(&c, 0.01, 10, 500, 1, &err), LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, "101 of 10010 samples") && strstr(err.message, "ordinals 1, 2, 3, 4, ...;"));
    c = (struct bad_count){0};
    CHECK_OK(account(&c, 1, 5000, 1, 5000, &err), &err);
    c = (struct bad_count){0};
    CHECK_OK(account(&c, 0.00001, 2000, 1, 1, &err), &err); /* a single one always may be */
}

TEST_MAIN();
