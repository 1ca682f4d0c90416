/* SPDX-License-Identifier: Apache-2.0 */
/* Fixed structures of a shard: round trips, and every flipped byte is found. */
#include "store/store_int.h"
#include "tests/unit/test.h"

static struct shard_header some_header(void)
{
    struct shard_header h = {.tag = 0xdeadbeef, .revision = 3, .sub = 7, .generation = 9, .unit = 1ull << 40, .created_s = 1234567};
    memset(h.uuid, 0x11, 16);
    memset(h.family, 0x22, 16);
    memset(h.session, 0x33, 8);
    return h;
}

TEST(header_round_trip)
{
    struct shard_header h = some_header(), g;
    struct larder_error err = {0};
    uint8_t page[STORE_PAGE];
    header_encode(&h, page);
    memset(&g, 0, sizeof(g));
    REQUIRE_OK(header_decode(page, "x", &g, &err), &err);
    CHECK_EQ(g.tag, 0xdeadbeefu);
    CHECK_EQ(g.revision, 3);
    CHECK_EQ(g.sub, 7);
    CHECK_EQ(g.generation, 9);
    CHECK_EQ(g.unit, 1ll << 40);
    CHECK_EQ(g.created_s, 1234567);
    CHECK_MEM(g.uuid, h.uuid, 16);
    CHECK_MEM(g.family, h.family, 16);
    CHECK_MEM(g.session, h.session, 8);
}

TEST(header_every_flip_is_found)
{
    struct shard_header h = some_header(), g;
    uint8_t page[STORE_PAGE];
    header_encode(&h, page);
    for (size_t i = 0; i < STORE_PAGE; i++) {
        page[i] ^= 1u << i % 8;
        int rc = header_decode(page, "x", &g, NULL);
        REQUIRE_EQ(rc, LARDER_ECORRUPT);
        page[i] ^= 1u << i % 8;
    }
}

TEST(header_of_a_newer_format)
{
    struct shard_header h = some_header(), g;
    struct larder_error err;
    uint8_t page[STORE_PAGE];
    header_encode(&h, page);
    put_u16(page + 8, 2);
    put_u32(page + STORE_PAGE - 4, crc32c(0, page, STORE_PAGE - 4));
    CHECK_ERR(header_decode(page, "x", &g, &err), LARDER_EVERSION, &err);
    header_encode(&h, page);
    put_u32(page + 20, 1); /* an incompatible feature */
    put_u32(page + STORE_PAGE - 4, crc32c(0, page, STORE_PAGE - 4));
    CHECK_ERR(header_decode(page, "x", &g, &err), LARDER_EVERSION, &err);
    header_encode(&h, page);
    put_u32(page + 12, 1); /* a compatible one is ignored */
    put_u32(page + STORE_PAGE - 4, crc32c(0, page, STORE_PAGE - 4));
    CHECK_OK(header_decode(page, "x", &g, &err), &err);
}

TEST(page_flips_and_misplaced_pages)
{
    uint8_t page[STORE_PAGE];
    struct larder_error err = {0};
    memset(page, 'x', sizeof(page));
    page_seal(page, 77, 5, SECTION_COLUMN, 300, 100);
    REQUIRE_OK(page_check(page, 77, 5, "x", &err), &err);
    CHECK_EQ(get_u16(page + 14) & 15, SECTION_COLUMN);
    CHECK_EQ(get_u16(page + 14) >> 4, 300);
    CHECK_EQ(page[PAGE_HEAD + 99], 'x');
    CHECK_EQ(page[PAGE_HEAD + 100], 0);
    CHECK_ERR(page_check(page, 78, 5, "x", &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(page_check(page, 77, 6, "x", &err), LARDER_ECORRUPT, &err);
    for (size_t i = 0; i < STORE_PAGE; i++) {
        page[i] ^= 0x80;
        REQUIRE_EQ(page_check(page, 77, 5, "x", NULL), LARDER_ECORRUPT);
        page[i] ^= 0x80;
    }
}

static void some_trailer(struct trailer *t)
{
    memset(t, 0, sizeof(*t));
    t->tag = 5;
    t->samples = 1000;
    t->footer_off = 40960;
    t->stored_bytes = 36000;
    t->raw_bytes = 50000;
    t->n_sections = 4;
    t->sections[0] = (struct section){SECTION_TABLE, 0, 0, 24000};
    t->sections[1] = (struct section){SECTION_KEY_ENDS, 0, 6, 4000};
    t->sections[2] = (struct section){SECTION_KEYS, 0, 7, 4081};
    t->sections[3] = (struct section){SECTION_COLUMN, 2, 9, 8000};
    t->pages = 11;
    t->file_size = t->footer_off + 12 * STORE_PAGE;
}

TEST(trailer_round_trip_and_flips)
{
    struct trailer t, u;
    struct larder_error err = {0};
    uint8_t page[STORE_PAGE];
    some_trailer(&t);
    trailer_encode(&t, page);
    REQUIRE_OK(trailer_decode(page, "x", &u, &err), &err);
    CHECK_EQ(u.samples, 1000);
    CHECK_EQ(u.file_size, t.file_size);
    CHECK_EQ(u.raw_bytes, 50000);
    REQUIRE(trailer_find(&u, SECTION_COLUMN, 2) != NULL);
    CHECK_EQ(trailer_find(&u, SECTION_COLUMN, 2)->len, 8000);
    CHECK(trailer_find(&u, SECTION_COLUMN, 1) == NULL);
    for (size_t i = 0; i < STORE_PAGE; i++) {
        page[i] ^= 4;
        REQUIRE_EQ(trailer_decode(page, "x", &u, NULL), LARDER_ECORRUPT);
        page[i] ^= 4;
    }
}

/* Numbers that contradict each other are refused although the CRC holds. */
TEST(trailer_that_lies)
{
    struct trailer t, u;
    uint8_t page[STORE_PAGE];
    struct larder_error err;
    for (int k = 0; k < 9; k++) {
        some_trailer(&t);
        switch (k) {
        case 0: t.samples = 0; break;
        case 1: t.footer_off += 1; break;
        case 2: t.pages = 12; break;
        case 3: t.sections[2].len = UINT64_MAX; break;
        case 4: t.sections[1].first_page = 7; break;
        case 5: t.samples = 999; break;
        case 6: t.stored_bytes = 40000; break;
        case 7: t.sections[0].kind = SECTION_KEYS; break;
        case 8: t.file_size = 4096; break;
        }
        trailer_encode(&t, page);
        CHECK_ERR(trailer_decode(page, "x", &u, &err), LARDER_ECORRUPT, &err);
    }
}

TEST(entry_bounds)
{
    uint8_t raw[STORE_ENTRY];
    struct extent e = {.offset = 4096, .stored_len = 100, .raw_len = 100, .crc = 0x1234, .codec = CODEC_NONE}, f;
    entry_encode(&e, raw);
    memset(&f, 0, sizeof(f));
    CHECK_EQ(entry_decode(raw, 8192, &f), LARDER_OK);
    CHECK_EQ(f.offset, 4096);
    CHECK_EQ(f.crc, 0x1234);
    CHECK_EQ(entry_decode(raw, 4195, &f), LARDER_ECORRUPT); /* one byte too long */
    CHECK_EQ(entry_decode(raw, 4196, &f), LARDER_OK);
    e.offset = 4095;
    entry_encode(&e, raw);
    CHECK_EQ(entry_decode(raw, 8192, &f), LARDER_ECORRUPT); /* in the header */
    e.offset = UINT64_MAX - 10;
    entry_encode(&e, raw);
    CHECK_EQ(entry_decode(raw, 8192, &f), LARDER_ECORRUPT);
    e = (struct extent){.offset = 4096, .stored_len = 10, .raw_len = 9};
    entry_encode(&e, raw);
    CHECK_EQ(entry_decode(raw, 8192, &f), LARDER_ECORRUPT); /* stored is longer than raw */
    e = (struct extent){.offset = 4096, .codec = 3};
    entry_encode(&e, raw);
    CHECK_EQ(entry_decode(raw, 8192, &f), LARDER_ECORRUPT);
}

TEST_MAIN();
