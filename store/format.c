/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format.c - the fixed structures of a shard as bytes: header page, footer pages, record-table entries, trailer.
 *
 * FORMAT.md is normative; each function here is one of its tables. All functions are pure. A decoder checks the CRC first,
 * then magic and version, then every number against the others, so that what it returns can be used without further doubt.
 * Invariants: [store I1] every byte of a shard is under a CRC32C or must be zero; [store I2] a page names its shard (tag) and
 * its own number, so that a page read from the wrong place is detected.
 */
#include "store/store_int.h"

enum { H_TAG = 24, H_REVISION = 28, H_UUID = 32, H_FAMILY = 48, H_SESSION = 64, H_GENERATION = 72, H_UNIT = 80,
       H_SUB = 88, H_CREATED = 96, H_END = 104 };
enum { T_TAG = 8, T_PAGES = 12, T_FOOTER = 16, T_SIZE = 24, T_SAMPLES = 32, T_SECTIONS = 36, T_STORED = 40, T_RAW = 48,
       T_DICT = 56, T_PAGES_CRC = 64, T_HEADER_CRC = 68, T_INCOMPAT = 72, T_DIR = 96, T_SECTION = 16 };
#define PAGE_CRC_AT (STORE_PAGE - 4)

static bool all_zero(const uint8_t *p, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (p[i])
            return false;
    return true;
}

void header_encode(const struct shard_header *h, uint8_t page[STORE_PAGE])
{
    memset(page, 0, STORE_PAGE);
    memcpy(page, HEADER_MAGIC, 8);
    put_u16(page + 8, FORMAT_MAJOR);
    put_u16(page + 10, FORMAT_MINOR);
    put_u32(page + H_TAG, h->tag);
    put_u32(page + H_REVISION, h->revision);
    memcpy(page + H_UUID, h->uuid, 16);
    memcpy(page + H_FAMILY, h->family, 16);
    memcpy(page + H_SESSION, h->session, 8);
    put_u64(page + H_GENERATION, h->generation);
    put_u64(page + H_UNIT, h->unit);
    put_u32(page + H_SUB, h->sub);
    put_u64(page + H_CREATED, h->created_s);
    put_u32(page + PAGE_CRC_AT, crc32c(0, page, PAGE_CRC_AT));
}

int header_decode(const uint8_t page[STORE_PAGE], const char *what, struct shard_header *h, struct larder_error *err)
{
    if (memcmp(page, HEADER_MAGIC, 8) != 0)
        return err_set(err, LARDER_ECORRUPT, "%s: not a shard (no magic at offset 0)", what);
    if (get_u32(page + PAGE_CRC_AT) != crc32c(0, page, PAGE_CRC_AT))
        return err_set(err, LARDER_ECORRUPT, "%s: header page fails its CRC32C", what);
    if (get_u16(page + 8) != FORMAT_MAJOR || get_u32(page + 20) != 0)
        return err_set(err, LARDER_EVERSION, "%s: format %u.%u with features %08x; this larder reads %u.x: upgrade larder",
                       what, get_u16(page + 8), get_u16(page + 10), get_u32(page + 20), FORMAT_MAJOR);
    h->tag = get_u32(page + H_TAG);
    h->revision = get_u32(page + H_REVISION);
    memcpy(h->uuid, page + H_UUID, 16);
    memcpy(h->family, page + H_FAMILY, 16);
    memcpy(h->session, page + H_SESSION, 8);
    h->generation = get_u64(page + H_GENERATION);
    h->unit = get_u64(page + H_UNIT);
    h->sub = get_u32(page + H_SUB);
    h->created_s = get_u64(page + H_CREATED);
    return LARDER_OK;
}

void page_seal(uint8_t page[STORE_PAGE], uint32_t tag, uint32_t number, uint16_t kind, uint16_t field, uint16_t used)
{
    memset(page + PAGE_HEAD + used, 0, STORE_PAGE_DATA - used);
    put_u32(page + 4, tag);
    put_u32(page + 8, number);
    put_u16(page + 12, used);
    put_u16(page + 14, (uint16_t)(kind | field << 4));
    put_u32(page, crc32c(0, page + 4, STORE_PAGE - 4));
}

int page_check(const uint8_t page[STORE_PAGE], uint32_t tag, uint32_t number, const char *what, struct larder_error *err)
{
    uint32_t crc = crc32c(0, page + 4, STORE_PAGE - 4);
    if (get_u32(page) != crc)
        return err_set(err, LARDER_ECORRUPT, "%s: footer page %u fails its CRC32C (stored %08x, found %08x)", what, number,
                       get_u32(page), crc);
    if (get_u32(page + 4) != tag || get_u32(page + 8) != number)
        return err_set(err, LARDER_ECORRUPT, "%s: footer page %u is page %u of another place (tag %08x, expected %08x)", what,
                       number, get_u32(page + 8), get_u32(page + 4), tag);
    if (get_u16(page + 12) > STORE_PAGE_DATA)
        return err_set(err, LARDER_ECORRUPT, "%s: footer page %u claims %u bytes", what, number, get_u16(page + 12));
    return LARDER_OK;
}

void trailer_encode(const struct trailer *t, uint8_t page[STORE_PAGE])
{
    memset(page, 0, STORE_PAGE);
    memcpy(page, TRAILER_MAGIC, 8);
    put_u32(page + T_TAG, t->tag);
    put_u32(page + T_PAGES, t->pages);
    put_u64(page + T_FOOTER, t->footer_off);
    put_u64(page + T_SIZE, t->file_size);
    put_u32(page + T_SAMPLES, t->samples);
    put_u32(page + T_SECTIONS, t->n_sections);
    put_u64(page + T_STORED, t->stored_bytes);
    put_u64(page + T_RAW, t->raw_bytes);
    put_u64(page + T_DICT, t->dict_id);
    put_u32(page + T_PAGES_CRC, t->pages_crc);
    put_u32(page + T_HEADER_CRC, t->header_crc);
    for (uint32_t i = 0; i < t->n_sections; i++) {
        uint8_t *p = page + T_DIR + i * T_SECTION;
        put_u16(p, t->sections[i].kind);
        put_u16(p + 2, t->sections[i].field);
        put_u32(p + 4, t->sections[i].first_page);
        put_u64(p + 8, t->sections[i].len);
    }
    put_u32(page + PAGE_CRC_AT, crc32c(0, page, PAGE_CRC_AT));
}

static int sections_decode(const uint8_t *page, const char *what, struct trailer *t, struct larder_error *err)
{
    uint64_t next = 0; /* sections follow each other without gaps */
    for (uint32_t i = 0; i < t->n_sections; i++) {
        const uint8_t *p = page + T_DIR + i * T_SECTION;
        struct section *s = &t->sections[i];
        *s = (struct section){get_u16(p), get_u16(p + 2), get_u32(p + 4), get_u64(p + 8)};
        uint64_t pages = s->len / STORE_PAGE_DATA + (s->len % STORE_PAGE_DATA != 0);
        if (s->first_page != next || pages > t->pages - next)
            return err_set(err, LARDER_ECORRUPT, "%s: trailer: section %u (kind %u) does not lie in the footer", what, i, s->kind);
        next += pages;
    }
    if (next != t->pages)
        return err_set(err, LARDER_ECORRUPT, "%s: trailer: sections fill %llu of %u pages", what, (unsigned long long)next, t->pages);
    const struct section *table = trailer_find(t, SECTION_TABLE, 0), *ends = trailer_find(t, SECTION_KEY_ENDS, 0);
    if (!table || table->first_page != 0 || table->len != (uint64_t)t->samples * STORE_ENTRY || !ends ||
        ends->len != (uint64_t)t->samples * 4)
        return err_set(err, LARDER_ECORRUPT, "%s: trailer: record table or key ends do not match %u samples", what, t->samples);
    return LARDER_OK;
}

int trailer_decode(const uint8_t page[STORE_PAGE], const char *what, struct trailer *t, struct larder_error *err)
{
    if (memcmp(page, TRAILER_MAGIC, 8) != 0)
        return err_set(err, LARDER_ECORRUPT, "%s: no trailer at the end: the file is cut short or overwritten", what);
    if (get_u32(page + PAGE_CRC_AT) != crc32c(0, page, PAGE_CRC_AT))
        return err_set(err, LARDER_ECORRUPT, "%s: trailer fails its CRC32C", what);
    if (get_u32(page + T_INCOMPAT) != 0)
        return err_set(err, LARDER_EVERSION, "%s: trailer needs features %08x: upgrade larder", what, get_u32(page + T_INCOMPAT));
    t->tag = get_u32(page + T_TAG);
    t->pages = get_u32(page + T_PAGES);
    t->footer_off = get_u64(page + T_FOOTER);
    t->file_size = get_u64(page + T_SIZE);
    t->samples = get_u32(page + T_SAMPLES);
    t->n_sections = get_u32(page + T_SECTIONS);
    t->stored_bytes = get_u64(page + T_STORED);
    t->raw_bytes = get_u64(page + T_RAW);
    t->dict_id = get_u64(page + T_DICT);
    t->pages_crc = get_u32(page + T_PAGES_CRC);
    t->header_crc = get_u32(page + T_HEADER_CRC);
    uint64_t footer_bytes = ((uint64_t)t->pages + 1) * STORE_PAGE;
    if (t->n_sections > SECTIONS_MAX || !all_zero(page + T_DIR + t->n_sections * T_SECTION,
                                                 PAGE_CRC_AT - T_DIR - t->n_sections * T_SECTION))
        return err_set(err, LARDER_ECORRUPT, "%s: trailer: bad directory of %u sections", what, t->n_sections);
    if (t->samples == 0 || t->footer_off < STORE_PAGE || t->footer_off % STORE_PAGE || t->footer_off > t->file_size ||
        t->file_size - t->footer_off != footer_bytes || t->stored_bytes > t->footer_off - STORE_PAGE)
        return err_set(err, LARDER_ECORRUPT, "%s: trailer: sizes do not add up", what);
    return sections_decode(page, what, t, err);
}

const struct section *trailer_find(const struct trailer *t, int kind, uint32_t field)
{
    for (uint32_t i = 0; i < t->n_sections; i++)
        if (t->sections[i].kind == kind && t->sections[i].field == field)
            return &t->sections[i];
    return NULL;
}

void entry_encode(const struct extent *e, uint8_t out[STORE_ENTRY])
{
    put_u64(out, e->offset);
    put_u32(out + 8, e->stored_len);
    put_u32(out + 12, e->raw_len);
    put_u32(out + 16, e->crc);
    put_u32(out + 20, e->codec);
}

int entry_decode(const uint8_t in[STORE_ENTRY], uint64_t footer_off, struct extent *e)
{
    e->offset = get_u64(in);
    e->stored_len = get_u32(in + 8);
    e->raw_len = get_u32(in + 12);
    e->crc = get_u32(in + 16);
    uint32_t codec = get_u32(in + 20);
    e->codec = (uint8_t)codec;
    e->checked = false;
    if (e->offset < STORE_PAGE || e->offset > footer_off || e->stored_len > footer_off - e->offset ||
        codec > CODEC_ZSTD_DICT || e->raw_len < e->stored_len)
        return LARDER_ECORRUPT;
    return LARDER_OK;
}
