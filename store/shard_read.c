/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_read.c - reads the footer of one shard, inspects a shard without a manifest, and streams a shard in slot order.
 *
 * A footer is read page by page, each page checked by its CRC, tag and number before it is believed; pages go through the
 * store's cache when there is one. Where only the trailer is damaged the pages themselves tell what it said. The trailer is cached as page TRAILER_PAGE. A scan holds one window of records
 * (SCAN_WINDOW, or one record if that is larger) and a few footer pages: memory does not grow with the shard.
 */
#include "store/store_int.h"

#define SCAN_WINDOW (4 * MIB)
#define READ_AHEAD_PAGES 16u /* footer pages fetched together on a miss of a section read */

/* ---- footer ---- */

static int page_load(const struct footer *f, uint32_t page, uint8_t *data, struct larder_error *err)
{
    char path[320];
    shard_path(f->name, path);
    uint64_t off = page == TRAILER_PAGE ? f->ref->size - STORE_PAGE : f->ref->footer_off + (uint64_t)page * STORE_PAGE;
    return io_read(f->io, path, off, data, STORE_PAGE, err);
}

int footer_trailer(const struct footer *f, struct trailer *t, struct larder_error *err)
{
    uint8_t page[STORE_PAGE];
    char path[320];
    shard_path(f->name, path);
    bool cached = f->cache && pages_get(f->cache, f->shard_no, TRAILER_PAGE, 0, page, STORE_PAGE);
    int rc = cached ? LARDER_OK : page_load(f, TRAILER_PAGE, page, err);
    if (rc || (rc = trailer_decode(page, path, t, err)))
        return rc;
    const struct shard_ref *r = f->ref;
    if (trailer_crc_of(page) != r->trailer_crc || t->tag != r->tag || t->samples != r->samples ||
        t->footer_off != r->footer_off || t->file_size != r->size)
        return err_set(err, LARDER_ECORRUPT, "%s: trailer is not the one the manifest names", path);
    if (f->cache && !cached)
        pages_put(f->cache, f->shard_no, TRAILER_PAGE, page);
    return LARDER_OK;
}

/* Fetches page and a few of its section's followers in one read; checks and caches them. */
static int pages_fetch(const struct footer *f, uint32_t page, uint32_t limit, uint8_t *out, struct larder_error *err)
{
    char path[320];
    shard_path(f->name, path);
    uint32_t n = f->cache ? MIN(limit - page, READ_AHEAD_PAGES) : 1;
    AUTO_FREE uint8_t *data = malloc((size_t)n * STORE_PAGE);
    if (!data)
        return err_nomem(err, (size_t)n * STORE_PAGE, "footer pages");
    int rc = io_read(f->io, path, f->ref->footer_off + (uint64_t)page * STORE_PAGE, data, (size_t)n * STORE_PAGE, err);
    if (!rc)
        rc = page_check(data, f->ref->tag, page, path, err);
    if (rc)
        return rc;
    memcpy(out, data, STORE_PAGE);
    for (uint32_t i = 0; f->cache && i < n; i++) /* a bad follower is reported when it is wanted */
        if (!page_check(data + (size_t)i * STORE_PAGE, f->ref->tag, page + i, path, NULL))
            pages_put(f->cache, f->shard_no, page + i, data + (size_t)i * STORE_PAGE);
    return LARDER_OK;
}

int footer_read(const struct footer *f, const struct section *s, uint64_t off, void *out, size_t len, struct larder_error *err)
{
    uint8_t page[STORE_PAGE], *dst = out;
    if (off > s->len || len > s->len - off)
        return err_set(err, LARDER_ECORRUPT, "shards/%s: footer section %u is shorter than its use", f->name, s->kind);
    uint32_t limit = s->first_page + (uint32_t)((s->len + STORE_PAGE_DATA - 1) / STORE_PAGE_DATA);
    while (len) {
        uint32_t number = s->first_page + (uint32_t)(off / STORE_PAGE_DATA);
        size_t at = off % STORE_PAGE_DATA, n = MIN(len, STORE_PAGE_DATA - at);
        if (!f->cache || !pages_get(f->cache, f->shard_no, number, PAGE_HEAD + at, dst, n)) {
            int rc = pages_fetch(f, number, limit, page, err);
            if (rc)
                return rc;
            memcpy(dst, page + PAGE_HEAD + at, n);
        }
        dst += n;
        off += n;
        len -= n;
    }
    return LARDER_OK;
}

/* ---- a shard without a manifest ---- */

/* Is this a whole footer page? Its own tag is believed: the caller compares. */
static bool page_whole(const uint8_t *page)
{
    return page_crc_of(page) == crc32c(0, page + 4, STORE_PAGE - 4) && get_u16(page + 12) <= STORE_PAGE_DATA;
}

static int first_page(struct store_io *io, const char *path, uint64_t size, uint64_t *footer_off, struct larder_error *err)
{
    uint8_t page[STORE_PAGE];
    for (uint64_t off = size - 2 * STORE_PAGE; off >= STORE_PAGE; off -= STORE_PAGE) {
        int rc = io_read(io, path, off, page, STORE_PAGE, err);
        if (rc)
            return rc;
        if (!page_whole(page))
            break;
        *footer_off = off;
        if (get_u32(page + 8) == 0)
            return LARDER_OK;
    }
    return err_set(err, LARDER_ECORRUPT, "%s: trailer and footer pages are damaged: its records cannot be found", path);
}

int trailer_rebuild(struct store_io *io, const char *path, uint64_t size, uint64_t footer_off, struct trailer *t,
                    struct larder_error *err)
{
    uint8_t page[STORE_PAGE], entry[STORE_ENTRY] = {0};
    uint32_t last = 0;
    int rc = LARDER_OK;
    memset(t, 0, sizeof(*t));
    if (size < 3 * STORE_PAGE || size % STORE_PAGE || footer_off > size - 2 * STORE_PAGE)
        return err_set(err, LARDER_ECORRUPT, "%s: %llu bytes are no shard: cut short", path, (unsigned long long)size);
    if (!footer_off && (rc = first_page(io, path, size, &footer_off, err)))
        return rc;
    t->footer_off = footer_off;
    t->file_size = size;
    for (uint64_t off = footer_off; off < size - STORE_PAGE; off += STORE_PAGE, t->pages++) {
        if ((rc = io_read(io, path, off, page, STORE_PAGE, err)))
            return rc;
        uint32_t kind = get_u16(page + 14), used = get_u16(page + 12);
        if (t->pages == 0)
            t->tag = get_u32(page + 4);
        if (!page_whole(page) || get_u32(page + 4) != t->tag || get_u32(page + 8) != t->pages)
            return err_set(err, LARDER_ECORRUPT, "%s: trailer and footer page %u are damaged: its records cannot be found", path, t->pages);
        if (t->n_sections == 0 || kind != last) {
            if (t->n_sections == SECTIONS_MAX)
                return err_set(err, LARDER_ECORRUPT, "%s: footer pages are out of order", path);
            t->sections[t->n_sections++] = (struct section){(uint16_t)(kind & 15), (uint16_t)(kind >> 4), t->pages, 0};
            last = kind;
        }
        t->sections[t->n_sections - 1].len += used;
        t->pages_crc = crc32c(t->pages_crc, page, 4);
        if ((kind & 15) == SECTION_TABLE && used >= STORE_ENTRY)
            memcpy(entry, page + PAGE_HEAD + used - STORE_ENTRY, STORE_ENTRY);
        if ((kind & 15) == SECTION_DICT)
            t->dict_id = UINT64_MAX; /* there is one: the scan needs no more */
    }
    const struct section *table = trailer_find(t, SECTION_TABLE, 0), *ends = trailer_find(t, SECTION_KEY_ENDS, 0);
    struct extent e;
    t->samples = table ? (uint32_t)(table->len / STORE_ENTRY) : 0;
    if (!t->samples || table->len % STORE_ENTRY || !ends || ends->len != (uint64_t)t->samples * 4 || entry_decode(entry, footer_off, &e))
        return err_set(err, LARDER_ECORRUPT, "%s: footer has no usable record table", path);
    t->stored_bytes = e.offset + e.stored_len - STORE_PAGE;
    t->raw_bytes = t->stored_bytes; /* not kept anywhere else; for information only */
    return LARDER_OK;
}

static int section_read_all(const struct footer *f, const struct section *s, struct buf *out, struct larder_error *err)
{
    int rc = s->len > 256 * MIB ? err_set(err, LARDER_ECORRUPT, "shards/%s: section of %llu bytes", f->name, (unsigned long long)s->len)
                                : buf_reserve(out, s->len, err);
    if (rc || (rc = footer_read(f, s, 0, out->data + out->len, s->len, err)))
        return rc;
    out->len += s->len;
    return LARDER_OK;
}

int footer_section(const struct footer *f, int kind, struct buf *out, struct larder_error *err)
{
    AUTO_FREE struct trailer *t = malloc(sizeof(*t));
    if (!t)
        return err_nomem(err, sizeof(*t), "a trailer");
    int rc = footer_trailer(f, t, err);
    if (rc)
        return rc;
    const struct section *s = trailer_find(t, kind, 0);
    return s ? section_read_all(f, s, out, err) : err_set(err, LARDER_ECORRUPT, "shards/%s: no footer section %d", f->name, kind);
}

static int inspect_header(struct store_io *io, const char *path, struct shard_info *info, uint32_t *crc, struct larder_error *err)
{
    uint8_t page[STORE_PAGE];
    struct shard_header h;
    int rc = io_read(io, path, 0, page, STORE_PAGE, err);
    if (rc || (rc = header_decode(page, path, &h, err)))
        return rc;
    *crc = trailer_crc_of(page);
    memcpy(info->uuid, h.uuid, 16);
    memcpy(info->family, h.family, 16);
    memcpy(info->session, h.session, 8);
    info->generation = h.generation;
    info->created_s = h.created_s;
    info->revision = h.revision;
    info->ref.unit = h.unit;
    info->ref.sub = h.sub;
    info->ref.tag = h.tag;
    return LARDER_OK;
}

static int inspect(struct store_io *io, const char *name, struct shard_info *info, struct manifest *meta, struct larder_error *err)
{
    char path[320];
    uint8_t page[STORE_PAGE];
    uint64_t size, mtime;
    uint32_t header_crc;
    shard_path(name, path);
    int rc = io->ops->stat(io, path, &size, &mtime, err);
    if (rc)
        return rc;
    if (size < 3 * STORE_PAGE || size % STORE_PAGE)
        return err_set(err, LARDER_ECORRUPT, "%s: %llu bytes are no shard: cut short", path, (unsigned long long)size);
    AUTO_FREE struct trailer *t = malloc(sizeof(*t));
    if (!t)
        return err_nomem(err, sizeof(*t), "a trailer");
    if ((rc = inspect_header(io, path, info, &header_crc, err)) || (rc = io_read(io, path, size - STORE_PAGE, page, STORE_PAGE, err)) ||
        (rc = trailer_decode(page, path, t, err)))
        return rc; /* LARDER_ECORRUPT from here on leaves *info's header part filled: repair may still find the records */
    if (t->file_size != size || t->tag != info->ref.tag || t->header_crc != header_crc)
        return err_set(err, LARDER_ECORRUPT, "%s: header and trailer are of different shards, or the file is cut short", path);
    struct shard_ref *r = &info->ref;
    r->size = size;
    r->footer_off = t->footer_off;
    r->stored_bytes = t->stored_bytes;
    r->raw_bytes = t->raw_bytes;
    r->samples = t->samples;
    r->trailer_crc = trailer_crc_of(page);
    r->dict_id = t->dict_id;
    if (!(r->name = strdup(name)))
        return err_nomem(err, strlen(name), "a shard's name");
    if (!meta)
        return LARDER_OK;
    AUTO_BUF struct buf text = BUF_INIT;
    struct footer f = {io, name, r, NULL, 0};
    if ((rc = footer_section(&f, SECTION_META, &text, err)))
        return rc;
    return meta_decode(text.data, text.len, path, meta, err);
}

int shard_inspect(struct store_io *io, const char *name, struct shard_info *info, struct manifest *meta, struct larder_error *err)
{
    *info = (struct shard_info){.generation = 0};
    int rc = inspect(io, name, info, meta, err);
    if (rc)
        shard_info_release(info);
    return rc;
}

void shard_info_release(struct shard_info *info) { shard_ref_release(&info->ref); }

/* ---- scan ---- */

struct window { uint64_t off; size_t len; struct buf buf; };

struct shard_scan {
    struct store_io *io;
    struct shard_ref ref;
    struct trailer t;
    char path[320];
    int what;
    uint32_t slot;
    bool broken;                /* the trailer is unreadable: nothing can be found */
    struct larder_error why;
    struct window entries, ends, keys; /* of footer pages, payload joined */
    struct window records;
    uint32_t key_end;           /* of the slot before; valid when key_known */
    bool key_known;
};

void shard_scan_close(struct shard_scan *s)
{
    if (!s)
        return;
    buf_release(&s->entries.buf);
    buf_release(&s->ends.buf);
    buf_release(&s->keys.buf);
    buf_release(&s->records.buf);
    shard_ref_release(&s->ref);
    free(s);
}

int shard_scan_open(struct store_io *io, const struct shard_ref *ref, int what, struct shard_scan **scan, struct larder_error *err)
{
    *scan = NULL;
    struct shard_scan *s = calloc(1, sizeof(*s));
    if (!s)
        return err_nomem(err, sizeof(*s), "a shard scan");
    s->io = io;
    s->what = what;
    s->key_known = true;
    int rc = shard_ref_copy(&s->ref, ref, err);
    if (rc) {
        free(s);
        return rc;
    }
    shard_path(s->ref.name, s->path);
    struct footer f = {io, s->ref.name, &s->ref, NULL, 0};
    rc = footer_trailer(&f, &s->t, &s->why);
    if (rc && rc != LARDER_ECORRUPT && rc != LARDER_ENOTFOUND) {
        if (err)
            *err = s->why;
        shard_scan_close(s);
        return rc;
    }
    struct larder_error why;
    int rebuilt = rc == LARDER_ECORRUPT ? trailer_rebuild(io, s->path, ref->size, ref->footer_off, &s->t, &why) : rc;
    if (rc == LARDER_ECORRUPT && rebuilt && rebuilt != LARDER_ECORRUPT && rebuilt != LARDER_ENOTFOUND) {
        shard_scan_close(s);
        return err_set(err, rebuilt, "%s", why.message);
    }
    if (!rebuilt && rc && s->t.tag == ref->tag && s->t.samples == ref->samples)
        rc = LARDER_OK; /* the pages say what the trailer would: only the trailer is lost */
    s->broken = rc != LARDER_OK;
    *scan = s;
    return LARDER_OK;
}

/* len bytes at off of a section through a window of whole pages. A bad page fails only the reads that touch it. */
static int section_window(struct shard_scan *s, struct window *w, const struct section *sec, uint64_t off, size_t len,
                          const uint8_t **out, struct larder_error *err)
{
    if (off > sec->len || len > sec->len - off)
        return err_set(err, LARDER_ECORRUPT, "%s: footer section %u is shorter than its use", s->path, sec->kind);
    if (off >= w->off && off + len <= w->off + w->len) {
        *out = w->buf.data + (off - w->off);
        return LARDER_OK;
    }
    uint64_t first = off / STORE_PAGE_DATA, last = len ? (off + len - 1) / STORE_PAGE_DATA : first;
    uint64_t all = (sec->len + STORE_PAGE_DATA - 1) / STORE_PAGE_DATA;
    size_t want = (size_t)(last - first + 1), n = MIN(MAX(want, (size_t)64), (size_t)(all - first));
    w->len = 0;
    w->buf.len = 0;
    int rc = buf_reserve(&w->buf, n * STORE_PAGE, err);
    if (rc || (rc = io_read(s->io, s->path, s->t.footer_off + (sec->first_page + first) * STORE_PAGE, w->buf.data, n * STORE_PAGE, err)))
        return rc;
    size_t good = 0;
    for (; good < n; good++) {
        const uint8_t *page = w->buf.data + good * STORE_PAGE;
        rc = page_check(page, s->ref.tag, sec->first_page + (uint32_t)(first + good), s->path, good < want ? err : NULL);
        if (rc)
            break;
        memmove(w->buf.data + good * STORE_PAGE_DATA, page + PAGE_HEAD, STORE_PAGE_DATA);
    }
    if (good < want)
        return rc;
    w->off = first * STORE_PAGE_DATA;
    w->len = MIN(good * STORE_PAGE_DATA, (size_t)(sec->len - w->off));
    *out = w->buf.data + (off - w->off);
    return LARDER_OK;
}

static int scan_key(struct shard_scan *s, struct scan_item *item, struct larder_error *err)
{
    const struct section *ends = trailer_find(&s->t, SECTION_KEY_ENDS, 0), *keys = trailer_find(&s->t, SECTION_KEYS, 0);
    const uint8_t *p;
    uint32_t begin = s->key_end;
    bool known = s->key_known;
    s->key_known = false;
    if (!keys)
        return err_set(err, LARDER_ECORRUPT, "%s: no keys in the footer", s->path);
    if (!known && s->slot > 0) {
        int rc = section_window(s, &s->ends, ends, (uint64_t)(s->slot - 1) * 4, 4, &p, err);
        if (rc)
            return rc;
        begin = get_u32(p);
    }
    int rc = section_window(s, &s->ends, ends, (uint64_t)s->slot * 4, 4, &p, err);
    if (rc)
        return rc;
    uint32_t end = get_u32(p);
    if (end <= begin || end - begin > LARDER_KEY_MAX)
        return err_set(err, LARDER_ECORRUPT, "%s: key of slot %u has a bad length", s->path, s->slot);
    s->key_end = end;
    s->key_known = true;
    if ((rc = section_window(s, &s->keys, keys, begin, end - begin, &p, err)))
        return rc;
    item->key = p;
    item->key_len = end - begin;
    return LARDER_OK;
}

/* The record's bytes through the window, checked. */
static int scan_record(struct shard_scan *s, struct scan_item *item, struct larder_error *err)
{
    const struct extent *e = &item->extent;
    struct window *w = &s->records;
    if (e->offset < w->off || e->offset + e->stored_len > w->off + w->len) {
        size_t n = MIN(MAX(SCAN_WINDOW, (size_t)e->stored_len), (size_t)(s->t.footer_off - e->offset));
        w->len = 0;
        w->buf.len = 0;
        int rc = buf_reserve(&w->buf, n, err);
        if (rc || (rc = io_read(s->io, s->path, e->offset, w->buf.data, n, err)))
            return rc;
        w->off = e->offset;
        w->len = n;
    }
    item->stored = w->buf.data + (e->offset - w->off);
    uint32_t crc = crc32c(0, item->stored, e->stored_len);
    if (crc != e->crc)
        return err_set(err, LARDER_ECORRUPT, "%s: record of slot %u (%u bytes at offset %llu) fails its CRC32C", s->path, s->slot,
                       e->stored_len, (unsigned long long)e->offset);
    return LARDER_OK;
}

int shard_scan_next(struct shard_scan *s, struct scan_item *item, struct larder_error *err)
{
    *item = (struct scan_item){.slot = s->slot};
    if (s->broken) {
        item->slot = UINT32_MAX;
        if (err)
            *err = s->why;
        return s->why.code;
    }
    if (s->slot == s->t.samples)
        return LARDER_END;
    const uint8_t *p;
    struct larder_error first = {.code = LARDER_OK};
    int rc = LARDER_OK, rc2;
    if (s->what & SCAN_KEYS) /* first, so that a damaged record can be named */
        rc = scan_key(s, item, &first);
    rc2 = section_window(s, &s->entries, trailer_find(&s->t, SECTION_TABLE, 0), (uint64_t)s->slot * STORE_ENTRY, STORE_ENTRY, &p, rc ? NULL : &first);
    rc = rc ? rc : rc2;
    if (!rc2 && entry_decode(p, s->t.footer_off, &item->extent))
        rc = rc2 = err_set(&first, LARDER_ECORRUPT, "%s: record table entry of slot %u points outside the records", s->path, s->slot);
    item->extent.slot = s->slot;
    if (!rc2 && (s->what & SCAN_RECORDS)) {
        rc2 = scan_record(s, item, rc ? NULL : &first);
        rc = rc ? rc : rc2;
    }
    if (rc && err)
        *err = first;
    s->slot++;
    return rc;
}
