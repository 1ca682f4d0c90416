/* SPDX-License-Identifier: Apache-2.0 */
/* Manifests and schemas: round trips, every flipped byte found, contradictions refused. */
#include "store/store_int.h"
#include "tests/unit/test.h"

static const int64_t shape[3] = {-1, 28, 28};
static const struct larder_field fields[3] = {{"image", LARDER_IMAGE, NULL, 0, NULL}, {"label", LARDER_I64, NULL, 0, NULL},
                                              {"m\xc3\xa4sk", LARDER_NDARRAY, "uint8", 3, shape}};

static void some_manifest(struct manifest *m, size_t shards)
{
    struct larder_error err = {0};
    *m = (struct manifest){.generation = 4, .created_s = 99, .compression = LARDER_COMPRESS_ZSTD, .lineage = {7}, .uuid = {1}};
    REQUIRE_OK(schema_copy(&m->schema, fields, 3, &err), &err);
    m->classes = calloc(2, sizeof(char *));
    m->classes[0] = strdup("cat \"quoted\"");
    m->classes[1] = strdup("dog");
    m->n_classes = 2;
    REQUIRE_OK(GROW(m->shards, m->cap_shards, shards, &err), &err);
    for (size_t i = 0; i < shards; i++) {
        char name[32];
        shard_name_new(0xabc, (uint32_t)i, name);
        m->shards[i] = (struct shard_ref){.name = strdup(name), .base = m->samples, .size = 4096 * 12, .footer_off = 4096 * 4,
                                          .stored_bytes = 10000, .raw_bytes = 20000, .samples = 100 + (uint32_t)i, .tag = (uint32_t)i,
                                          .trailer_crc = 0xffffffff, .dict_id = 0xfedcba9876543210, .unit = i, .sub = 1};
        m->samples += m->shards[i].samples;
        m->n_shards++;
    }
    m->parts = calloc(1, sizeof(*m->parts));
    m->n_parts = 1;
    m->parts[0] = (struct index_part){.dir = strdup("4-0123456789abcdef"), .hi = m->samples, .keys = m->samples};
    m->parts[0].files = calloc(1, sizeof(struct index_file));
    m->parts[0].n_files = 1;
    m->parts[0].files[0] = (struct index_file){.name = strdup("000009.sst"), .size = 5000, .crc = 0x80000001, .keys = m->samples};
    m->parts[0].files[0].first = (uint8_t *)strdup("a\xff");
    m->parts[0].files[0].first_len = 2;
    m->parts[0].files[0].last = (uint8_t *)strdup("zz");
    m->parts[0].files[0].last_len = 2;
}

TEST(round_trip)
{
    struct manifest m, n;
    struct larder_error err = {0};
    AUTO_BUF struct buf text = BUF_INIT;
    some_manifest(&m, 3);
    REQUIRE_OK(manifest_encode(&m, &text, &err), &err);
    REQUIRE_OK(manifest_decode(text.data, text.len, "m", &n, &err), &err);
    CHECK_EQ(n.generation, 4);
    CHECK_EQ(n.samples, 303);
    CHECK(schema_equal(&m.schema, &n.schema));
    CHECK_EQ(n.schema.fields[2].shape[0], -1);
    CHECK_STR(n.classes[0], "cat \"quoted\"");
    CHECK_EQ(n.n_shards, 3);
    CHECK_EQ(n.shards[2].base, 201);
    CHECK_EQ(n.shards[2].dict_id, 0xfedcba9876543210);
    CHECK_EQ(n.shards[0].trailer_crc, 0xffffffff);
    CHECK_MEM(n.family, m.lineage, 16); /* none was set: the lineage */
    CHECK_EQ(n.parts[0].files[0].crc, 0x80000001);
    CHECK_EQ(n.parts[0].files[0].first_len, 2);
    CHECK_MEM(n.parts[0].files[0].first, "a\xff", 2);
    AUTO_BUF struct buf again = BUF_INIT; /* the same text for the same manifest */
    REQUIRE_OK(manifest_encode(&n, &again, &err), &err);
    CHECK_EQ(again.len, text.len);
    CHECK_MEM(again.data, text.data, text.len);
    manifest_release(&m);
    manifest_release(&n);
}

TEST(every_flip_and_every_cut_is_found)
{
    struct manifest m, n;
    struct larder_error err = {0};
    AUTO_BUF struct buf text = BUF_INIT;
    some_manifest(&m, 2);
    REQUIRE_OK(manifest_encode(&m, &text, &err), &err);
    for (size_t i = 0; i < text.len; i++) {
        text.data[i] ^= 1;
        REQUIRE_EQ(manifest_decode(text.data, text.len, "m", &n, &err), LARDER_ECORRUPT);
        text.data[i] ^= 1;
        REQUIRE_EQ(manifest_decode(text.data, i, "m", &n, &err), LARDER_ECORRUPT);
    }
    manifest_release(&m);
}

TEST(contradictions)
{
    struct larder_error err = {0};
    for (int k = 0; k < 8; k++) {
        struct manifest m, n;
        AUTO_BUF struct buf text = BUF_INIT;
        some_manifest(&m, 2);
        switch (k) {
        case 0: m.samples++; break;
        case 1: m.parts[0].hi--; break;
        case 2: m.shards[0].footer_off = 5000; break;
        case 3: m.shards[1].size = 4096; break;
        case 4: strcpy(m.shards[1].name, "../../etc/passwd"); break;
        case 5: m.shards[0].samples = 1u << 30; break;
        case 6: strcpy(m.parts[0].dir, ".."); break;
        case 7: m.generation = 0; break;
        }
        REQUIRE_OK(manifest_encode(&m, &text, &err), &err);
        CHECK_ERR(manifest_decode(text.data, text.len, "m", &n, &err), LARDER_ECORRUPT, &err);
        manifest_release(&m);
    }
}

TEST(meta_alone)
{
    struct manifest m, n;
    struct larder_error err = {0};
    AUTO_BUF struct buf text = BUF_INIT;
    some_manifest(&m, 1);
    REQUIRE_OK(meta_encode(&m, &text, &err), &err);
    REQUIRE_OK(meta_decode(text.data, text.len, "meta", &n, &err), &err);
    CHECK(schema_equal(&m.schema, &n.schema));
    CHECK_EQ(n.n_classes, 2);
    CHECK_EQ(n.n_shards, 0);
    manifest_release(&m);
    manifest_release(&n);
}

TEST(schemas)
{
    struct larder_error err;
    struct schema s;
    struct larder_field f[2] = {{"a", LARDER_I64, NULL, 0, NULL}, {"a", LARDER_I64, NULL, 0, NULL}};
    CHECK_ERR(schema_copy(&s, f, 2, &err), LARDER_EINVAL, &err);
    f[1].name = "";
    CHECK_ERR(schema_copy(&s, f, 2, &err), LARDER_EINVAL, &err);
    f[1].name = "b/c";
    CHECK_ERR(schema_copy(&s, f, 2, &err), LARDER_EINVAL, &err);
    f[1] = (struct larder_field){"b", 77, NULL, 0, NULL};
    CHECK_ERR(schema_copy(&s, f, 2, &err), LARDER_EINVAL, &err);
    f[1] = (struct larder_field){"b", LARDER_NDARRAY, "int7", 0, NULL};
    CHECK_ERR(schema_copy(&s, f, 2, &err), LARDER_EINVAL, &err);
    CHECK_ERR(schema_copy(&s, f, 0, &err), LARDER_EINVAL, &err);
    struct larder_field many[101];
    char names[101][16];
    for (int i = 0; i < 101; i++) {
        snprintf(names[i], sizeof(names[i]), "f%d", i);
        many[i] = (struct larder_field){names[i], LARDER_BOOL, NULL, 0, NULL};
    }
    CHECK_ERR(schema_copy(&s, many, 101, &err), LARDER_EINVAL, &err);
    REQUIRE_OK(schema_copy(&s, many, 100, &err), &err);
    CHECK_EQ(schema_find(&s, "f42"), 42);
    CHECK_EQ(schema_find(&s, "nope"), -1);
    schema_release(&s);
}

TEST_MAIN();
