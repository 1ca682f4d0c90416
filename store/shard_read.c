/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_read.c - reads the footer of one shard, inspects a shard without a manifest, and streams a shard in slot order.
 *
 * A footer is read page by page, each page checked by its CRC, tag and number before it is believed; pages go through the
 * store's cache when there is one. Where only the trailer is damaged the pages themselves tell what it said. The trailer is cached
 * as page TRAILER_PAGE. A scan holds one window of records (SCAN_WINDOW, or one record if that is larger) and a few footer pages:
 * memory does not grow with the shard. Whatever fails its check is read again as often as the io has it (io_read_checked).
 */
#include "store/store_int.h"

#define SCAN_WINDOW (4 * MIB)
#define READ_AHEAD_PAGES 16u /* footer pages fetched together on a miss of a section read, when fewer are wanted */
#define FETCH_PAGES 256u     /* at most */

/* ---- footer ---- */

/* io_check_fn of trailers: trailer i into t[i]. */
struct trailer_read { const struct footer *f; const struct store_range *ranges; struct trailer *t; };

static int trailer_matches(const struct footer *f, const uint8_t *page, const struct trailer *t, const char *path, struct larder_error *err)
{
    const struct shard_ref *r = f->ref;
    if (trailer_crc_of(page) != r->trailer_crc || t->tag != r->tag || t->samples != r->samples ||
        t->footer_off != r->footer_off || t->file_size != r->size)
        return err_set(err, LARDER_ECORRUPT, "%s: trailer is not the one the manifest names", path);
    return LARDER_OK;
}

static int trailer_check(void *user, size_t i, struct larder_error *err)
{
    struct trailer_read *r = user;
    int rc = trailer_decode(r->ranges[i].buf, r->ranges[i].name, r->t, err);
    return rc ? rc : trailer_matches(&r->f[i], r->ranges[i].buf, r->t, r->ranges[i].name, err);
}

int footer_trailer(const struct footer *f, struct trailer *t, struct larder_error *err)
{
    uint8_t page[STORE_PAGE];
    char path[320];
    shard_path(f->name, path);
    struct store_range range = {path, f->ref->size - STORE_PAGE, page, STORE_PAGE};
    struct trailer_read r = {f, &range, t};
    if (f->cache && pages_get(f->cache, f->shard_no, TRAILER_PAGE, 0, page, STORE_PAGE))
        return trailer_check(&r, 0, err);
    int rc = io_read_checked(f->io, &range, 1, trailer_check, &r, err);
    if (!rc && f->cache)
        pages_put(f->cache, f->shard_no, TRAILER_PAGE, page);
    return rc;
}

int footer_trailers(const struct footer *f, size_t n, struct larder_error *err)
{
    struct footer need[FOOTERS_MAX];
    struct store_range ranges[FOOTERS_MAX];
    size_t n_need = 0;
    uint8_t byte;
    if (n > FOOTERS_MAX)
        return err_set(err, LARDER_EINVAL, "%zu footers in one call", n);
    for (size_t i = 0; i < n; i++)
        if (!pages_get(f[i].cache, f[i].shard_no, TRAILER_PAGE, 0, &byte, 1))
            need[n_need++] = f[i];
    AUTO_FREE uint8_t *data = malloc(n_need * (STORE_PAGE + 320) + 1);
    AUTO_FREE struct trailer *t = malloc(sizeof(*t));
    if (!data || !t)
        return err_nomem(err, n_need * STORE_PAGE, "trailers");
    for (size_t i = 0; i < n_need; i++) {
        char *path = (char *)data + n_need * STORE_PAGE + i * 320;
        shard_path(need[i].name, path);
        ranges[i] = (struct store_range){path, need[i].ref->size - STORE_PAGE, data + i * STORE_PAGE, STORE_PAGE};
    }
    struct trailer_read r = {need, ranges, t};
    int rc = n_need ? io_read_checked(f->io, ranges, n_need, trailer_check, &r, err) : LARDER_OK;
    for (size_t i = 0; !rc && i < n_need; i++)
        pages_put(need[i].cache, need[i].shard_no, TRAILER_PAGE, ranges[i].buf);
    return rc;
}

/* io_check_fn of runs of pages, of which the first `need` have to be whole: what was read ahead is checked when it is wanted. */
struct pages_read { const struct footer_pages *p; const struct store_range *ranges; };

static int pages_check(void *user, size_t i, struct larder_error *err)
{
    const struct pages_read *r = user;
    const struct footer_pages *p = &r->p[i];
    int rc = LARDER_OK;
    for (uint32_t k = 0; !rc && k < p->need; k++)
        rc = page_check((const uint8_t *)r->ranges[i].buf + (size_t)k * STORE_PAGE, p->f->ref->tag, p->first + k, r->ranges[i].name, err);
    return rc;
}

int footer_fetch(const struct footer_pages *p, size_t n, uint8_t *data, struct larder_error *err)
{
    struct store_range ranges[FOOTERS_MAX];
    AUTO_FREE char *paths = malloc(n * 320 + 1);
    if (n > FOOTERS_MAX || !paths)
        return n > FOOTERS_MAX ? err_set(err, LARDER_EINVAL, "%zu footers in one call", n) : err_nomem(err, n * 320, "paths");
    for (size_t i = 0; i < n; i++) {
        shard_path(p[i].f->name, paths + i * 320);
        ranges[i] = (struct store_range){paths + i * 320, p[i].f->ref->footer_off + (uint64_t)p[i].first * STORE_PAGE, data,
                                         (size_t)p[i].n * STORE_PAGE};
        data += ranges[i].len;
    }
    struct pages_read r = {p, ranges};
    int rc = n ? io_read_checked(p->f->io, ranges, n, pages_check, &r, err) : LARDER_OK;
    for (size_t i = 0; !rc && i < n; i++) {
        const struct footer *f = p[i].f;
        const uint8_t *page = ranges[i].buf;
        for (uint32_t k = 0; f->cache && k < p[i].n; k++, page += STORE_PAGE)
            if (k < p[i].need || !page_check(page, f->ref->tag, p[i].first + k, ranges[i].name, NULL))
                pages_put(f->cache, f->shard_no, p[i].first + k, page);
    }
    return rc;
}

uint32_t section_pages(const struct section *s) { return (uint32_t)((s->len + STORE_PAGE_DATA - 1) / STORE_PAGE_DATA); }

/* Copies what is wanted from off on out of pages that begin with the one that off lies in; how much. */
static size_t copy_out(const uint8_t *pages, uint32_t n, uint64_t off, uint8_t *dst, size_t len)
{
    size_t done = 0;
    for (uint32_t i = 0; i < n && done < len; i++) {
        size_t at = (size_t)((off + done) % STORE_PAGE_DATA), k = MIN(len - done, STORE_PAGE_DATA - at);
        memcpy(dst + done, pages + (size_t)i * STORE_PAGE + PAGE_HEAD + at, k);
        done += k;
    }
    return done;
}

/* A miss: fetches in one read what is wanted, up to FETCH_PAGES, and a few pages more for the cache. *done: bytes copied. */
static int read_missing(const struct footer *f, const struct section *s, uint64_t off, uint8_t *dst, size_t len, size_t *done,
                        struct larder_error *err)
{
    uint32_t first = (uint32_t)(off / STORE_PAGE_DATA), last = (uint32_t)((off + len - 1) / STORE_PAGE_DATA);
    uint32_t need = MIN(last - first + 1, FETCH_PAGES);
    uint32_t n = f->cache ? MIN(MAX(need, READ_AHEAD_PAGES), section_pages(s) - first) : need;
    AUTO_FREE uint8_t *data = malloc((size_t)n * STORE_PAGE);
    if (!data)
        return err_nomem(err, (size_t)n * STORE_PAGE, "footer pages");
    struct footer_pages p = {f, s->first_page + first, need, n};
    int rc = footer_fetch(&p, 1, data, err);
    if (!rc)
        *done = copy_out(data, need, off, dst, len);
    return rc;
}

int footer_read(const struct footer *f, const struct section *s, uint64_t off, void *out, size_t len, struct larder_error *err)
{
    uint8_t *dst = out;
    if (off > s->len || len > s->len - off)
        return err_set(err, LARDER_ECORRUPT, "shards/%s: footer section %u is shorter than its use", f->name, s->kind);
    while (len) {
        uint32_t number = s->first_page + (uint32_t)(off / STORE_PAGE_DATA);
        size_t at = off % STORE_PAGE_DATA, n = MIN(len, STORE_PAGE_DATA - at);
        if (!f->cache || !pages_get(f->cache, f->shard_no, number, PAGE_HEAD + at, dst, n)) {
            int rc = read_missing(f, s, off, dst, len, &n, err);
            if (rc)
                return rc;
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

/* One page that should be whole; ECORRUPT: it is not. */
static int whole_check(void *user, size_t i, struct larder_error *err)
{
    (void)i;
    return page_whole(user) ? LARDER_OK : err_set(err, LARDER_ECORRUPT, "a footer page is damaged");
}

static int read_page(struct store_io *io, const char *path, uint64_t off, uint8_t page[STORE_PAGE], struct larder_error *err)
{
    struct store_range r = {path, off, page, STORE_PAGE};
    return io_read_checked(io, &r, 1, whole_check, page, err);
}

static int first_page(struct store_io *io, const char *path, uint64_t size, uint64_t *footer_off, struct larder_error *err)
{
    uint8_t page[STORE_PAGE];
    for (uint64_t off = size - 2 * STORE_PAGE; off >= STORE_PAGE; off -= STORE_PAGE) {
        int rc = read_page(io, path, off, page, err);
        if (rc == LARDER_ECORRUPT)
            break;
        if (rc)
            return rc;
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
        bool whole = !(rc = read_page(io, path, off, page, err));
        if (rc && rc != LARDER_ECORRUPT)
            return rc;
        rc = LARDER_OK;
        uint32_t kind = get_u16(page + 14), used = get_u16(page + 12);
        if (t->pages == 0)
            t->tag = get_u32(page + 4);
        if (!whole || get_u32(page + 4) != t->tag || get_u32(page + 8) != t->pages)
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

/* io_check_fn of a shard's ends: range 0 is the header page, 1 the trailer. */
struct ends_read { const char *path; uint8_t *pages; struct shard_header h; struct trailer t; };

static int ends_check(void *user, size_t i, struct larder_error *err)
{
    struct ends_read *r = user;
    return i == 0 ? header_decode(r->pages, r->path, &r->h, err) : trailer_decode(r->pages + STORE_PAGE, r->path, &r->t, err);
}

static int inspect_ends(struct store_io *io, const char *path, uint64_t size, struct ends_read *r, struct larder_error *err)
{
    const struct store_range ranges[2] = {{path, 0, r->pages, STORE_PAGE}, {path, size - STORE_PAGE, r->pages + STORE_PAGE, STORE_PAGE}};
    int rc = io_read_checked(io, ranges, 2, ends_check, r, err);
    if (rc)
        return rc;
    if (r->t.file_size != size || r->t.tag != r->h.tag || r->t.header_crc != trailer_crc_of(r->pages))
        return err_set(err, LARDER_ECORRUPT, "%s: header and trailer are of different shards, or the file is cut short", path);
    return LARDER_OK;
}

static void info_from(struct shard_info *info, const struct ends_read *r)
{
    const struct shard_header *h = &r->h;
    const struct trailer *t = &r->t;
    memcpy(info->uuid, h->uuid, 16);
    memcpy(info->family, h->family, 16);
    memcpy(info->session, h->session, 8);
    info->generation = h->generation;
    info->created_s = h->created_s;
    info->revision = h->revision;
    info->ref = (struct shard_ref){.unit = h->unit, .sub = h->sub, .tag = h->tag, .size = t->file_size, .footer_off = t->footer_off,
                                   .stored_bytes = t->stored_bytes, .raw_bytes = t->raw_bytes, .samples = t->samples,
                                   .trailer_crc = trailer_crc_of(r->pages + STORE_PAGE), .dict_id = t->dict_id};
}

static int inspect(struct store_io *io, const char *name, struct shard_info *info, struct manifest *meta, struct larder_error *err)
{
    char path[320];
    uint64_t size, mtime;
    shard_path(name, path);
    int rc = io->ops->stat(io, path, &size, &mtime, err);
    if (rc)
        return rc;
    if (size < 3 * STORE_PAGE || size % STORE_PAGE)
        return err_set(err, LARDER_ECORRUPT, "%s: %llu bytes are no shard: cut short", path, (unsigned long long)size);
    AUTO_FREE struct ends_read *r = malloc(sizeof(*r));
    AUTO_FREE uint8_t *pages = malloc(2 * STORE_PAGE);
    if (!r || !pages)
        return err_nomem(err, sizeof(*r), "a trailer");
    r->path = path;
    r->pages = pages;
    if ((rc = inspect_ends(io, path, size, r, err)))
        return rc;
    info_from(info, r);
    if (!(info->ref.name = strdup(name)))
        return err_nomem(err, strlen(name), "a shard's name");
    if (!meta)
        return LARDER_OK;
    AUTO_BUF struct buf text = BUF_INIT;
    struct footer f = {io, name, &info->ref, NULL, 0};
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
    if (rc)
        return rc;
    struct store_range range = {s->path, s->t.footer_off + (sec->first_page + first) * STORE_PAGE, w->buf.data, n * STORE_PAGE};
    struct footer f = {.ref = &s->ref};
    struct footer_pages p = {&f, sec->first_page + (uint32_t)first, (uint32_t)want, (uint32_t)n};
    struct pages_read r = {&p, &range};
    if ((rc = io_read_checked(s->io, &range, 1, pages_check, &r, err)))
        return rc;
    size_t good = 0;
    for (; good < n; good++) {
        const uint8_t *page = w->buf.data + good * STORE_PAGE;
        if (good >= want && page_check(page, s->ref.tag, sec->first_page + (uint32_t)(first + good), s->path, NULL))
            break;
        memmove(w->buf.data + good * STORE_PAGE_DATA, page + PAGE_HEAD, STORE_PAGE_DATA);
    }
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

/* io_check_fn of one record. */
static int record_check(void *user, size_t i, struct larder_error *err)
{
    const struct scan_item *item = user;
    const struct extent *e = &item->extent;
    (void)i;
    if (crc32c(0, item->stored, e->stored_len) == e->crc)
        return LARDER_OK;
    return err_set(err, LARDER_ECORRUPT, "record of slot %u (%u bytes at offset %llu) fails its CRC32C", e->slot, e->stored_len,
                   (unsigned long long)e->offset);
}

static int unchecked(void *user, size_t i, struct larder_error *err)
{
    (void)user, (void)i, (void)err;
    return LARDER_OK;
}

/* The record's bytes through the window, checked; by itself once more where the window may have been damaged on its way. */
static int scan_record(struct shard_scan *s, struct scan_item *item, struct larder_error *err)
{
    const struct extent *e = &item->extent;
    struct window *w = &s->records;
    if (e->offset < w->off || e->offset + e->stored_len > w->off + w->len) {
        size_t n = MIN(MAX(SCAN_WINDOW, (size_t)e->stored_len), (size_t)(s->t.footer_off - e->offset));
        w->len = 0;
        w->buf.len = 0;
        int rc = buf_reserve(&w->buf, n, err);
        struct store_range window = {s->path, e->offset, w->buf.data, n};
        if (rc || (rc = io_read_checked(s->io, &window, 1, unchecked, NULL, err)))
            return rc;
        w->off = e->offset;
        w->len = n;
    }
    struct store_range record = {s->path, e->offset, w->buf.data + (e->offset - w->off), e->stored_len};
    item->stored = record.buf;
    int rc = record_check(item, 0, err);
    if (rc == LARDER_ECORRUPT && io_again(s->io, 0))
        rc = io_read_checked(s->io, &record, 1, record_check, item, err);
    return rc == LARDER_ECORRUPT ? err_prefix(err, rc, "%s", s->path) : rc;
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
    bool records = s->what & SCAN_RECORDS;
    rc2 = records ? section_window(s, &s->entries, trailer_find(&s->t, SECTION_TABLE, 0), (uint64_t)s->slot * STORE_ENTRY, STORE_ENTRY, &p,
                                   rc ? NULL : &first) : LARDER_OK;
    rc = rc ? rc : rc2;
    if (!rc2 && records && entry_decode(p, s->t.footer_off, &item->extent))
        rc = rc2 = err_set(&first, LARDER_ECORRUPT, "%s: record table entry of slot %u points outside the records", s->path, s->slot);
    item->extent.slot = s->slot;
    if (!rc2 && records) {
        rc2 = scan_record(s, item, rc ? NULL : &first);
        rc = rc ? rc : rc2;
    }
    if (rc && err)
        *err = first;
    s->slot++;
    return rc;
}
