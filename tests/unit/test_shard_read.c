/* SPDX-License-Identifier: Apache-2.0 */
/* Shards read back: scan, inspection, damage, a trailer found again from the pages, records moved as they are. */
#include <fcntl.h>

#include "store/store_int.h"
#include "tests/unit/dataset.h"

static const struct dataset_spec spec = {.n = 700, .shard_samples = 700, .len_min = 10, .len_spread = 3000, .text_len = 60,
                                         .compression = LARDER_COMPRESS_ZSTD};

struct fixture { struct store_io *io; struct manifest m; const char *dir; char file[200]; };

static void set_up(struct fixture *f, const struct dataset_spec *d)
{
    struct larder_error err = {0};
    f->dir = dataset_make(d);
    REQUIRE_OK(io_file_open(f->dir, false, 0, &f->io, &err), &err);
    REQUIRE_OK(generation_load(f->io, 1, &f->m, &err), &err);
    snprintf(f->file, sizeof(f->file), "%s/shards/%s", f->dir, f->m.shards[0].name);
}

static void tear_down(struct fixture *f)
{
    manifest_release(&f->m);
    io_close(f->io);
}

static void flip(const char *file, uint64_t off)
{
    uint8_t b;
    int fd = open(file, O_RDWR);
    REQUIRE(fd >= 0);
    CHECK_EQ(pread(fd, &b, 1, (off_t)off), 1);
    b ^= 0x10;
    CHECK_EQ(pwrite(fd, &b, 1, (off_t)off), 1);
    close(fd);
}

/* Scans all; returns how many slots were good; counts bad ones. Checks the good ones' keys and bytes. */
static uint32_t scan(struct fixture *f, const struct dataset_spec *d, uint32_t *bad, uint32_t *first_bad)
{
    struct larder_error err = {0};
    struct shard_scan *s;
    struct scan_item item;
    struct zdecomp *z;
    uint32_t good = 0;
    int rc;
    *bad = 0;
    *first_bad = UINT32_MAX;
    REQUIRE_OK(zdecomp_new(&z, &err), &err);
    REQUIRE_OK(shard_scan_open(f->io, &f->m.shards[0], SCAN_KEYS | SCAN_RECORDS, &s, &err), &err);
    while ((rc = shard_scan_next(s, &item, &err)) != LARDER_END) {
        if (rc) {
            CHECK_ERR(rc, LARDER_ECORRUPT, &err);
            *first_bad = MIN(*first_bad, item.slot);
            ++*bad;
            if (item.slot == UINT32_MAX)
                break;
            continue;
        }
        char key[64];
        struct larder_value v[F_COUNT];
        AUTO_FREE void *scratch = malloc(item.extent.raw_len);
        REQUIRE_EQ(item.key_len, sample_key(item.slot, key));
        REQUIRE_MEM(item.key, key, item.key_len);
        REQUIRE_OK(record_decode(&f->m.schema, &item.extent, item.stored, z, NULL, scratch, v, &err), &err);
        REQUIRE(sample_is(d, item.slot, v));
        good++;
    }
    shard_scan_close(s);
    zdecomp_free(z);
    return good;
}

TEST(scan_gives_everything_back)
{
    struct fixture f;
    uint32_t bad, first;
    set_up(&f, &spec);
    CHECK_EQ(scan(&f, &spec, &bad, &first), 700);
    CHECK_EQ(bad, 0);
    tear_down(&f);
}

TEST(inspect_needs_no_manifest)
{
    struct fixture f;
    struct larder_error err = {0};
    struct shard_info info;
    struct manifest meta;
    set_up(&f, &spec);
    REQUIRE_OK(shard_inspect(f.io, f.m.shards[0].name, &info, &meta, &err), &err);
    CHECK_EQ(info.generation, 1);
    CHECK_EQ(info.ref.samples, 700);
    CHECK_EQ(info.ref.footer_off, f.m.shards[0].footer_off);
    CHECK_EQ(info.ref.trailer_crc, f.m.shards[0].trailer_crc);
    CHECK_EQ(info.ref.size, f.m.shards[0].size);
    CHECK_MEM(info.uuid, f.m.uuid, 16);
    CHECK(schema_equal(&meta.schema, &f.m.schema));
    manifest_release(&meta);
    shard_info_release(&info);
    tear_down(&f);
}

TEST(damaged_record_is_one_slot)
{
    struct fixture f;
    uint32_t bad, first;
    struct larder_error err = {0};
    struct store *s;
    uint64_t ordinal = 123;
    struct extent e;
    set_up(&f, &spec);
    REQUIRE_OK(store_open(f.io, &(struct store_options){0}, &s, &err), &err);
    REQUIRE_OK(store_locate(s, &ordinal, 1, &e, &err), &err);
    store_close(s);
    flip(f.file, e.offset + 5);
    CHECK_EQ(scan(&f, &spec, &bad, &first), 699);
    CHECK_EQ(first, 123);
    tear_down(&f);
}

TEST(damaged_table_page_is_its_slots)
{
    struct fixture f;
    uint32_t bad, first;
    set_up(&f, &spec);
    flip(f.file, f.m.shards[0].footer_off + STORE_PAGE + 1000); /* the second page: slots 170..339 */
    CHECK_EQ(scan(&f, &spec, &bad, &first), 700 - 170);
    CHECK_EQ(bad, 170);
    CHECK_EQ(first, 170);
    tear_down(&f);
}

TEST(lost_trailer_is_rebuilt_from_pages)
{
    struct fixture f;
    uint32_t bad, first;
    struct larder_error err = {0};
    struct trailer t, want;
    struct footer foot;
    char path[320];
    set_up(&f, &spec);
    foot = (struct footer){f.io, f.m.shards[0].name, &f.m.shards[0], NULL, 0};
    shard_path(f.m.shards[0].name, path);
    REQUIRE_OK(footer_trailer(&foot, &want, &err), &err);
    for (int known = 0; known < 2; known++) {
        REQUIRE_OK(trailer_rebuild(f.io, path, f.m.shards[0].size, known ? f.m.shards[0].footer_off : 0, &t, &err), &err);
        CHECK_EQ(t.samples, want.samples);
        CHECK_EQ(t.pages, want.pages);
        CHECK_EQ(t.pages_crc, want.pages_crc);
        CHECK_EQ(t.stored_bytes, want.stored_bytes);
        REQUIRE_EQ(t.n_sections, want.n_sections);
        CHECK_MEM(t.sections, want.sections, t.n_sections * sizeof(t.sections[0]));
    }
    flip(f.file, f.m.shards[0].size - 2000);
    CHECK_EQ(scan(&f, &spec, &bad, &first), 700);
    flip(f.file, f.m.shards[0].size - 5000); /* and a page: now nothing can be trusted */
    CHECK_EQ(scan(&f, &spec, &bad, &first), 0);
    tear_down(&f);
}

TEST(encoded_records_move_to_another_shard)
{
    struct fixture f;
    struct larder_error err = {0};
    struct shard_scan *s;
    struct scan_item item;
    struct shard_writer *w;
    struct shard_ref ref, old;
    uint32_t bad, first;
    set_up(&f, &spec);
    struct shard_params p = {.meta = &f.m};
    REQUIRE_OK(shard_writer_open(f.io, "copy", &p, &w, &err), &err);
    REQUIRE_OK(shard_scan_open(f.io, &f.m.shards[0], SCAN_KEYS | SCAN_RECORDS, &s, &err), &err);
    while (shard_scan_next(s, &item, &err) == LARDER_OK) {
        struct record_ref r = {item.stored, item.extent.stored_len, item.extent.raw_len, item.extent.crc, item.extent.codec};
        REQUIRE_OK(shard_writer_add_stored(w, item.key, item.key_len, &r, &err), &err);
    }
    shard_scan_close(s);
    REQUIRE_OK(shard_writer_finish(w, &ref, &err), &err);
    CHECK_EQ(ref.stored_bytes, f.m.shards[0].stored_bytes);
    old = f.m.shards[0];
    f.m.shards[0] = ref;
    CHECK_EQ(scan(&f, &spec, &bad, &first), 700);
    shard_ref_release(&old);
    tear_down(&f);
}

TEST_MAIN();
