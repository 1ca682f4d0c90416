/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_golden.c - the dataset in tests/data/golden, written by an earlier larder, reads as it was written; and the hex dump in
 * store/FORMAT.md is the bytes of its first shard and says of them what the decoders find.
 *
 * Paths are relative to this file's own, as it was compiled: run from the root of the tree.
 */
#include <fcntl.h>

#include "store/store_int.h"
#include "tests/data/golden.h"
#include "tests/unit/test.h"

static const uint8_t uuid[16] = {0xb5, 0xbd, 0xe7, 0x1b, 0x87, 0x73, 0x27, 0x5b, 0xde, 0x4f, 0x41, 0x51, 0x1e, 0x3b, 0xe9, 0x83};
static const uint8_t lineage[16] = {0x73, 0x67, 0xbd, 0x95, 0x55, 0x31, 0x15, 0x1b, 0xc4, 0xc8, 0x11, 0xca, 0xba, 0x3b, 0x26, 0x25};

/* A path below the root of the tree. */
static const char *in_tree(const char *name, char out[512])
{
    const char *end = strstr(__FILE__, "tests/unit/");

    snprintf(out, 512, "%.*s%s", (int)(end - __FILE__), __FILE__, name);
    return out;
}

static bool same(const struct larder_value *a, const struct larder_value *b)
{
    return !a->data == !b->data && a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

static void check_samples(struct larder_dataset *ds, int n)
{
    struct larder_error err;
    struct golden g;
    char want[32], key[32];
    size_t len;

    for (int i = 0; i < n; i++) {
        struct larder_sample s = {0};
        size_t want_len = golden_key(i, want);
        golden_sample(i, &g);
        REQUIRE_OK(larder_dataset_get(ds, want, want_len, &s, &err), &err);
        CHECK_EQ(s.ordinal, i);
        REQUIRE_EQ(s.n_fields, GOLDEN_FIELDS);
        for (int f = 0; f < GOLDEN_FIELDS; f++)
            CHECK(same(&s.fields[f], &g.v[f]));
        larder_samples_release(&s, 1);
        CHECK_OK(larder_dataset_key(ds, (uint64_t)i, key, sizeof key, &len, &err), &err);
        CHECK_EQ(len, want_len);
        CHECK_MEM(key, want, want_len);
    }
}

static void check_columns(struct larder_dataset *ds, int n)
{
    int64_t labels[GOLDEN_ALL];
    float scores[GOLDEN_ALL];
    struct larder_error err;

    CHECK_OK(larder_dataset_column(ds, GOLDEN_LABEL, 0, (uint64_t)n, labels, &err), &err);
    CHECK_OK(larder_dataset_column(ds, GOLDEN_SCORE, 0, (uint64_t)n, scores, &err), &err);
    for (int i = 0; i < n; i++) {
        CHECK_EQ(labels[i], i % 3);
        CHECK(scores[i] == (i == 1 ? 0 : (float)i / 8));
    }
}

static void check_schema(struct larder_dataset *ds)
{
    struct larder_field f;
    struct larder_error err;

    for (uint32_t i = 0; i < GOLDEN_FIELDS; i++) {
        CHECK_OK(larder_dataset_field(ds, i, &f, &err), &err);
        CHECK_STR(f.name, golden_fields[i].name);
        CHECK_EQ(f.type, golden_fields[i].type);
        CHECK_STR(f.dtype, golden_fields[i].dtype);
        CHECK_EQ(f.ndim, golden_fields[i].ndim);
        for (uint32_t k = 0; k < f.ndim; k++)
            CHECK_EQ(f.shape[k], golden_shape[k]);
    }
}

/* classes: how many this generation has. */
static void check_generation(uint64_t generation, int n, uint64_t classes)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset_info info = {.struct_size = sizeof info};
    struct larder_dataset *ds;
    struct larder_error err;
    uint64_t count, found;
    const void *absent = "no such key";
    size_t absent_len = 11;
    char path[512];

    o.generation = generation;
    REQUIRE_OK(larder_dataset_open(in_tree("tests/data/golden", path), &o, &ds, &err), &err);
    REQUIRE_OK(larder_dataset_info(ds, &info, &err), &err);
    CHECK_MEM(info.uuid, uuid, 16);
    CHECK_MEM(info.lineage, lineage, 16);
    CHECK_EQ(info.generation, generation ? generation : 2);
    REQUIRE_EQ(info.samples, n);
    CHECK_EQ(info.shards, generation == 1 ? 1 : 2);
    CHECK_EQ(info.fields, GOLDEN_FIELDS);
    CHECK_EQ(info.compression, LARDER_COMPRESS_ZSTD);
    for (uint64_t i = 0; i < classes; i++)
        CHECK_STR(larder_dataset_class(ds, i, &count), golden_classes[i]);
    CHECK_EQ(count, classes);
    CHECK(larder_dataset_class(ds, classes, NULL) == NULL);
    check_schema(ds);
    check_samples(ds, n);
    check_columns(ds, n);
    CHECK_OK(larder_dataset_lookup(ds, &absent, &absent_len, 1, &found, &err), &err);
    CHECK_EQ(found, LARDER_NO_ORDINAL);
    larder_dataset_close(ds);
}

TEST(reads_as_written)
{
    check_generation(0, GOLDEN_ALL, 3);
    check_generation(1, GOLDEN_FIRST, 2);
    check_generation(2, GOLDEN_ALL, 3);
}

TEST(verifies)
{
    struct larder_verify_options o = LARDER_VERIFY_OPTIONS_INIT;
    struct larder_verify_report r = {.struct_size = sizeof r};
    struct larder_error err;
    char path[512];

    for (o.generation = 1; o.generation <= 2; o.generation++) {
        CHECK_OK(larder_verify_run(in_tree("tests/data/golden", path), &o, &r, &err), &err);
        CHECK_EQ(r.samples, o.generation == 1 ? GOLDEN_FIRST : GOLDEN_ALL);
        CHECK_EQ(r.damaged, 0);
    }
}

/* What this larder writes beside it reads like it: append to a copy. */
TEST(grows)
{
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    struct larder_dataset *ds;
    struct larder_writer *w;
    struct larder_error err;
    struct golden g;
    char path[512], dir[128], command[800];
    uint64_t generation;

    snprintf(dir, sizeof dir, "%s/d", tmp_dir());
    snprintf(command, sizeof command, "cp -r %s %s", in_tree("tests/data/golden", path), dir);
    REQUIRE_EQ(system(command), 0);
    o.append = 1;
    REQUIRE_OK(larder_writer_open(dir, golden_fields, GOLDEN_FIELDS, &o, &w, &err), &err);
    golden_sample(1, &g);
    REQUIRE_OK(larder_writer_add(w, "new", 3, g.v, &err), &err);
    REQUIRE_OK(larder_writer_commit(w, &generation, &err), &err);
    CHECK_EQ(generation, 3);
    REQUIRE_OK(larder_dataset_open(dir, NULL, &ds, &err), &err);
    check_samples(ds, GOLDEN_ALL);
    larder_dataset_close(ds);
    CHECK_OK(larder_verify_run(dir, NULL, NULL, &err), &err);
}

/* ---- the hex dump in FORMAT.md ---- */

struct shard { uint8_t *bytes; size_t len; bool *shown; };

/* Lines "    OFFSET HEX...  meaning"; returns how many there were. */
static int compare_lines(FILE *doc, const struct shard *s)
{
    char line[512];
    int lines = 0;

    while (fgets(line, sizeof line, doc) && strncmp(line, "## ", 3) != 0) {
        unsigned long offset;
        int at = 0;
        if (sscanf(line, "    %8lx%n", &offset, &at) != 1 || at != 12)
            continue;
        for (char *p = line + at; p[0] == ' ' && strspn(p + 1, "0123456789abcdef") == 2; p += 3, offset++) {
            unsigned long want = strtoul(p + 1, NULL, 16);
            REQUIRE(offset < s->len);
            (void)test_check(s->bytes[offset] == want, __FILE__, __LINE__, "byte %lx is %02x, FORMAT.md says %02lx", offset, s->bytes[offset],
                             want);
            s->shown[offset] = true;
        }
        lines++;
    }
    return lines;
}

static bool rest_is_zero(const struct shard *s, size_t from, size_t len)
{
    for (size_t i = from; i < from + len; i++)
        if (!s->shown[i] && s->bytes[i])
            return false;
    return true;
}

/* The dump means what the decoders find. */
static void check_meaning(const struct shard *s)
{
    struct shard_header h;
    struct trailer t;
    struct extent e;
    struct larder_error err;

    REQUIRE_OK(header_decode(s->bytes, "golden", &h, &err), &err);
    REQUIRE_OK(trailer_decode(s->bytes + s->len - STORE_PAGE, "golden", &t, &err), &err);
    CHECK_MEM(h.uuid, uuid, 16);
    CHECK_MEM(h.family, lineage, 16);
    CHECK_EQ(h.generation, 1);
    CHECK_EQ(h.tag, t.tag);
    CHECK_EQ(t.samples, GOLDEN_FIRST);
    CHECK_EQ(t.file_size, s->len);
    CHECK_OK(page_check(s->bytes + t.footer_off, t.tag, 0, "golden", &err), &err);
    CHECK_EQ(entry_decode(s->bytes + t.footer_off + PAGE_HEAD, t.footer_off, &e), 0);
    CHECK_EQ(e.offset, STORE_PAGE);
    CHECK_EQ(e.codec, CODEC_ZSTD);
    CHECK_EQ(e.crc, crc32c(0, s->bytes + e.offset, e.stored_len));
    CHECK(rest_is_zero(s, 0, STORE_PAGE)); /* all of these is shown */
    CHECK(rest_is_zero(s, e.offset, e.stored_len));
    CHECK(rest_is_zero(s, t.footer_off, PAGE_HEAD + STORE_ENTRY));
    CHECK(rest_is_zero(s, s->len - STORE_PAGE, STORE_PAGE));
}

TEST(hexdump)
{
    char path[512], line[512], name[512] = "";
    struct shard s = {0};
    FILE *doc = fopen(in_tree("store/FORMAT.md", path), "r");

    REQUIRE(doc != NULL);
    while (fgets(line, sizeof line, doc) && strcmp(line, "## An annotated shard\n") != 0)
        ;
    while (fgets(line, sizeof line, doc) && sscanf(line, "`tests/data/golden/shards/%100[^`]`", name) != 1)
        ;
    REQUIRE(name[0]);
    snprintf(line, sizeof line, "tests/data/golden/shards/%.100s", name);
    int fd = open(in_tree(line, path), O_RDONLY);
    REQUIRE(fd >= 0);
    s.bytes = malloc(1 << 20);
    s.shown = calloc(1 << 20, sizeof *s.shown);
    s.len = (size_t)pread(fd, s.bytes, 1 << 20, 0);
    close(fd);
    CHECK(compare_lines(doc, &s) > 50);
    check_meaning(&s);
    fclose(doc);
    free(s.bytes);
    free(s.shown);
}

TEST_MAIN();
