/* SPDX-License-Identifier: Apache-2.0 */
/* verify and repair: each kind of damage is told with its place, and what can be saved is saved. */
#include <dirent.h>
#include <fcntl.h>

#include "store/store_int.h"
#include "tests/unit/test.h"

enum { N = 500 };

struct fixture { const char *dir; struct store_io *io; struct manifest m; };

static void value_of(uint64_t i, char text[64]) { snprintf(text, 64, "the text of sample %llu", (unsigned long long)i * 7919); }

static void add(const char *dir, uint64_t first, uint64_t n, bool append)
{
    static const struct larder_field fields[2] = {{"text", LARDER_IMAGE, NULL, 0, NULL}, {"label", LARDER_I64, NULL, 0, NULL}};
    struct larder_error err = {0};
    struct larder_writer *w;
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    o.shard_size = 6000;
    o.append = append;
    REQUIRE_OK(larder_writer_open(dir, fields, 2, &o, &w, &err), &err);
    for (uint64_t i = first; i < first + n; i++) {
        char key[32], text[64];
        int64_t label = (int64_t)i;
        value_of(i, text);
        struct larder_value v[2] = {{text, strlen(text)}, {&label, 8}};
        REQUIRE_OK(larder_writer_add(w, key, (size_t)snprintf(key, sizeof(key), "key-%llu", (unsigned long long)i), v, &err), &err);
    }
    REQUIRE_OK(larder_writer_commit(w, NULL, &err), &err);
}

static void set_up(struct fixture *f)
{
    struct larder_error err = {0};
    static char dirs[32][160];
    static int n;
    char *dir = dirs[n++ % 32];
    snprintf(dir, 160, "%s/d", tmp_dir());
    f->dir = dir;
    add(f->dir, 0, N / 2, false);
    add(f->dir, N / 2, N / 2, true);
    REQUIRE_OK(io_file_open(f->dir, false, 0, &f->io, &err), &err);
    REQUIRE_OK(generation_load(f->io, 2, &f->m, &err), &err);
    REQUIRE(f->m.n_shards >= 6);
}

static void tear_down(struct fixture *f)
{
    manifest_release(&f->m);
    io_close(f->io);
}

static void flip(const struct fixture *f, const char *name, int64_t off)
{
    char path[400];
    uint8_t b;
    snprintf(path, sizeof(path), "%s/%s", f->dir, name);
    int fd = open(path, O_RDWR);
    REQUIRE(fd >= 0);
    off += off < 0 ? lseek(fd, 0, SEEK_END) : 0;
    REQUIRE_EQ(pread(fd, &b, 1, off), 1);
    b ^= 0x21;
    REQUIRE_EQ(pwrite(fd, &b, 1, off), 1);
    close(fd);
}

struct told { int n; uint64_t shard_no, slot, ordinal; char file[200], key[64], why[300]; };

static void tell(void *user, const struct larder_damage *d)
{
    struct told *t = user;
    if (t->n++)
        return;
    t->shard_no = d->shard_no;
    t->slot = d->slot;
    t->ordinal = d->ordinal;
    snprintf(t->file, sizeof(t->file), "%s", d->file);
    snprintf(t->key, sizeof(t->key), "%.*s", (int)d->key_len, d->key ? (const char *)d->key : "");
    snprintf(t->why, sizeof(t->why), "%s", d->why);
}

static int verify(const struct fixture *f, struct told *t, struct larder_verify_report *r)
{
    struct larder_verify_options o = LARDER_VERIFY_OPTIONS_INIT;
    struct larder_error err = {0};
    memset(t, 0, sizeof(*t));
    *r = (struct larder_verify_report){.struct_size = sizeof(*r)};
    o.damage = tell;
    o.user = t;
    o.workers = 1;
    int rc = larder_verify_run(f->dir, &o, r, &err);
    if (rc && rc != LARDER_ECORRUPT)
        CHECK_OK(rc, &err);
    return rc;
}

static struct larder_repair_report repair(const struct fixture *f, bool dry_run)
{
    struct larder_repair_options o = LARDER_REPAIR_OPTIONS_INIT;
    struct larder_repair_report r = {.struct_size = sizeof(r)};
    struct larder_error err = {0};
    o.dry_run = dry_run;
    CHECK_OK(larder_repair_run(f->dir, &o, &r, &err), &err);
    return r;
}

/* Every sample of the dataset has its right text, label and ordinal by key; returns how many there are. `gone` must not be. */
static uint64_t check_all(const struct fixture *f, uint64_t gone)
{
    struct larder_error err = {0};
    struct larder_dataset *ds;
    struct larder_dataset_info info = {.struct_size = sizeof(info)};
    REQUIRE_OK(larder_dataset_open(f->dir, NULL, &ds, &err), &err);
    REQUIRE_OK(larder_dataset_info(ds, &info, &err), &err);
    uint64_t found = 0;
    for (uint64_t i = 0; i < N; i++) {
        char key[32], text[64];
        struct larder_sample s = {0, 0, NULL, NULL};
        int rc = larder_dataset_get(ds, key, (size_t)snprintf(key, sizeof(key), "key-%llu", (unsigned long long)i), &s, &err);
        CHECK(rc == LARDER_OK || rc == LARDER_ENOTFOUND);
        CHECK(i != gone || rc == LARDER_ENOTFOUND);
        if (rc)
            continue;
        value_of(i, text);
        REQUIRE_EQ(s.fields[0].len, strlen(text));
        REQUIRE_MEM(s.fields[0].data, text, strlen(text));
        REQUIRE_EQ(get_u64(s.fields[1].data), i);
        larder_samples_release(&s, 1);
        found++;
    }
    CHECK_EQ(found, info.samples);
    larder_dataset_close(ds);
    return found;
}

TEST(healthy)
{
    struct fixture f;
    struct told t;
    struct larder_verify_report r;
    set_up(&f);
    REQUIRE_EQ(verify(&f, &t, &r), LARDER_OK);
    CHECK_EQ(r.samples, N);
    CHECK_EQ(r.generation, 2);
    CHECK_EQ(r.shards, f.m.n_shards);
    CHECK_EQ(r.damaged, 0);
    struct larder_repair_report p = repair(&f, false);
    CHECK_EQ(p.generation, 0);
    CHECK_EQ(p.samples, N);
    CHECK_EQ(check_all(&f, UINT64_MAX), N);
    tear_down(&f);
}

TEST(one_bad_record)
{
    struct fixture f;
    struct told t;
    struct larder_verify_report r;
    struct store *s;
    struct larder_error err = {0};
    struct extent e;
    uint64_t ordinal = 333;
    char name[320], inode_before[2][400];
    struct stat before[2], after[2];
    set_up(&f);
    REQUIRE_OK(store_open(f.io, &(struct store_options){0}, &s, &err), &err);
    REQUIRE_OK(store_locate(s, &ordinal, 1, &e, &err), &err);
    store_close(s);
    shard_path(f.m.shards[e.shard].name, name);
    flip(&f, name, (int64_t)e.offset + 20);
    REQUIRE_EQ(verify(&f, &t, &r), LARDER_ECORRUPT);
    CHECK_EQ(r.damaged, 1);
    CHECK_EQ(t.n, 1);
    CHECK_EQ(t.shard_no, e.shard);
    CHECK_EQ(t.slot, e.slot);
    CHECK_EQ(t.ordinal, 333);
    CHECK_STR(t.key, "key-333");
    CHECK_STR(t.file, name);
    for (int i = 0; i < 2; i++) { /* good files stay as they are */
        snprintf(inode_before[i], sizeof(inode_before[i]), "%s/shards/%s", f.dir, f.m.shards[i].name);
        REQUIRE_EQ(stat(inode_before[i], &before[i]), 0);
    }
    struct larder_repair_report dry = repair(&f, true);
    CHECK_EQ(dry.generation, 0);
    CHECK_EQ(verify(&f, &t, &r), LARDER_ECORRUPT);
    struct larder_repair_report p = repair(&f, false);
    CHECK_EQ(p.generation, 3);
    CHECK_EQ(p.dropped, 1);
    CHECK_EQ(p.shards_rewritten, 1);
    CHECK_EQ(p.lineage_changed, 1);
    CHECK_EQ(check_all(&f, 333), N - 1);
    CHECK_EQ(verify(&f, &t, &r), LARDER_OK);
    for (int i = 0; i < 2; i++) {
        REQUIRE_EQ(stat(inode_before[i], &after[i]), 0);
        CHECK_EQ(after[i].st_ino, before[i].st_ino);
        CHECK_EQ(after[i].st_mtim.tv_nsec, before[i].st_mtim.tv_nsec);
    }
    /* and when now every manifest is lost, the newest revision of the rewritten shard counts */
    char cmd[400];
    snprintf(cmd, sizeof(cmd), "rm -r '%s/manifests' '%s/larder.json'", f.dir, f.dir);
    REQUIRE_EQ(system(cmd), 0);
    p = repair(&f, false);
    CHECK_EQ(p.samples, N - 1);
    CHECK_EQ(check_all(&f, 333), N - 1);
    tear_down(&f);
}

TEST(trailer_header_and_missing_shard)
{
    struct fixture f;
    struct told t;
    struct larder_verify_report r;
    char name[320], path[600];
    set_up(&f);
    shard_path(f.m.shards[1].name, name);
    flip(&f, name, -3000); /* the trailer */
    CHECK_EQ(verify(&f, &t, &r), LARDER_ECORRUPT);
    CHECK_STR(t.file, name);
    struct larder_repair_report p = repair(&f, false);
    CHECK_EQ(p.dropped, 0); /* its pages say the same */
    CHECK_EQ(p.lineage_changed, 0);
    CHECK_EQ(check_all(&f, UINT64_MAX), N);
    shard_path(f.m.shards[2].name, name);
    flip(&f, name, 100); /* the header */
    CHECK_EQ(verify(&f, &t, &r), LARDER_ECORRUPT);
    p = repair(&f, false);
    CHECK_EQ(p.dropped, 0);
    CHECK_EQ(verify(&f, &t, &r), LARDER_OK);
    snprintf(path, sizeof(path), "%s/shards/%s", f.dir, f.m.shards[3].name);
    REQUIRE_EQ(unlink(path), 0);
    CHECK_EQ(verify(&f, &t, &r), LARDER_ECORRUPT);
    p = repair(&f, false);
    CHECK_EQ(p.dropped, f.m.shards[3].samples);
    CHECK_EQ(p.shards_dropped, 1);
    CHECK_EQ(check_all(&f, UINT64_MAX), N - f.m.shards[3].samples);
    CHECK_EQ(verify(&f, &t, &r), LARDER_OK);
    tear_down(&f);
}

TEST(index_and_hint)
{
    struct fixture f;
    struct told t;
    struct larder_verify_report r;
    char name[600];
    set_up(&f);
    const struct index_part *part = &f.m.parts[0];
    for (size_t i = 0; i < part->n_files; i++) {
        snprintf(name, sizeof(name), "index/%s/%s", part->dir, part->files[i].name);
        flip(&f, name, 10);
        CHECK_EQ(verify(&f, &t, &r), LARDER_ECORRUPT);
        flip(&f, name, 10);
    }
    CHECK_EQ(verify(&f, &t, &r), LARDER_OK);
    flip(&f, name, 10);
    struct larder_repair_report p = repair(&f, false);
    CHECK_EQ(p.generation, 3);
    CHECK_EQ(p.dropped, 0);
    CHECK_EQ(p.lineage_changed, 0);
    CHECK_EQ(p.shards_rewritten, 0);
    CHECK_EQ(check_all(&f, UINT64_MAX), N);
    flip(&f, "larder.json", 5);
    CHECK_EQ(verify(&f, &t, &r), LARDER_ECORRUPT);
    CHECK_STR(t.file, "larder.json");
    p = repair(&f, false);
    CHECK_EQ(p.generation, 0);
    CHECK_EQ(verify(&f, &t, &r), LARDER_OK);
    tear_down(&f);
}

TEST(newest_manifest_lost)
{
    struct fixture f;
    struct told t;
    struct larder_verify_report r;
    struct larder_error err;
    struct larder_dataset *ds;
    set_up(&f);
    flip(&f, "manifests/2.json", 50);
    CHECK_ERR(larder_dataset_open(f.dir, NULL, &ds, &err), LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, "repair") != NULL);
    struct larder_repair_report p = repair(&f, false);
    CHECK_EQ(p.generation, 3);
    CHECK_EQ(p.samples, N); /* generation 1's manifest and generation 2's shards */
    CHECK_EQ(p.lineage_changed, 0);
    CHECK_EQ(check_all(&f, UINT64_MAX), N);
    CHECK_EQ(verify(&f, &t, &r), LARDER_OK);
    tear_down(&f);
}

static void copy_files(const char *from, const char *to)
{
    char cmd[700];
    snprintf(cmd, sizeof(cmd), "cp %s %s", from, to);
    REQUIRE_EQ(system(cmd), 0);
}

/* A good manifest that names no shard of this place does not stand in the way of the shards that are here. */
TEST(manifest_of_another_dataset)
{
    struct fixture f, other;
    struct told t;
    struct larder_verify_report r;
    char from[300], to[300];
    set_up(&f);
    set_up(&other);
    snprintf(from, sizeof(from), "%s/manifests/*", other.dir);
    snprintf(to, sizeof(to), "%s/manifests/", f.dir);
    copy_files(from, to);
    CHECK_EQ(verify(&f, &t, &r), LARDER_ECORRUPT);
    struct larder_repair_report p = repair(&f, false);
    CHECK_EQ(p.generation, 3);
    CHECK_EQ(p.dropped, 0);
    CHECK_EQ(check_all(&f, UINT64_MAX), N);
    CHECK_EQ(verify(&f, &t, &r), LARDER_OK);
    tear_down(&f);
    tear_down(&other);
}

/* With the manifests lost, shards of another dataset do not take the place of the many that are here. */
TEST(shard_of_another_dataset)
{
    struct fixture f, other;
    struct told t;
    struct larder_verify_report r;
    char from[300], to[300];
    set_up(&f);
    set_up(&other);
    add(other.dir, N, 1, true); /* of a later generation than any here */
    snprintf(from, sizeof(from), "$(ls -t %s/shards/* | head -n 3)", other.dir);
    snprintf(to, sizeof(to), "%s/shards/", f.dir);
    copy_files(from, to);
    snprintf(to, sizeof(to), "rm %s/manifests/* %s/larder.json", f.dir, f.dir);
    REQUIRE_EQ(system(to), 0);
    struct larder_repair_report p = repair(&f, false);
    CHECK_EQ(p.samples, N);
    CHECK_EQ(p.dropped, 0);
    CHECK_EQ(check_all(&f, UINT64_MAX), N);
    CHECK_EQ(verify(&f, &t, &r), LARDER_OK);
    tear_down(&f);
    tear_down(&other);
}

TEST(subsets_cover_everything)
{
    struct fixture f;
    struct larder_error err = {0};
    uint64_t samples = 0, shards = 0;
    set_up(&f);
    for (uint64_t n = 1; n <= 3; n++) {
        struct larder_verify_options o = LARDER_VERIFY_OPTIONS_INIT;
        struct larder_verify_report r = {.struct_size = sizeof(r)};
        o.subset_n = n;
        o.subset_t = 3;
        REQUIRE_OK(larder_verify_run(f.dir, &o, &r, &err), &err);
        CHECK(r.shards < f.m.n_shards);
        samples += r.samples;
        shards += r.shards;
    }
    CHECK_EQ(samples, N);
    CHECK_EQ(shards, f.m.n_shards);
    tear_down(&f);
}

static int stop_now(void *user, const struct larder_progress *p)
{
    (void)user, (void)p;
    return 1;
}

TEST(verify_can_be_stopped)
{
    struct fixture f;
    struct larder_error err;
    set_up(&f);
    struct larder_verify_options o = LARDER_VERIFY_OPTIONS_INIT;
    struct larder_verify_report r = {.struct_size = sizeof(r)};
    o.progress = stop_now;
    int rc = larder_verify_run(f.dir, &o, &r, &err);
    CHECK(rc == LARDER_OK || rc == LARDER_ECANCELED); /* it may be through before it is asked */
    o.subset_n = 4;
    o.subset_t = 3;
    CHECK_ERR(larder_verify_run(f.dir, &o, &r, &err), LARDER_EINVAL, &err);
    tear_down(&f);
}

struct names { int n; };
static void removed(void *user, const char *what, const char *why)
{
    CHECK(what && why);
    ((struct names *)user)->n++;
}

TEST(gc_keeps_what_is_young_named_or_claimed)
{
    struct fixture f;
    struct told t;
    struct larder_verify_report vr;
    struct larder_error err = {0};
    struct names names = {0};
    struct larder_gc_options o = LARDER_GC_OPTIONS_INIT;
    struct larder_gc_report r = {.struct_size = sizeof(r)};
    set_up(&f);
    REQUIRE_OK(f.io->ops->create_exclusive(f.io, "shards/00000000000000aa-000000", "stray", 5, &err), &err);
    o.removed = removed;
    o.user = &names;
    REQUIRE_OK(larder_gc_run(f.dir, &o, &r, &err), &err); /* all is younger than a day */
    CHECK_EQ(r.files, 0);
    CHECK_EQ(r.young, 1);
    o.min_age_s = 0;
    o.dry_run = 1;
    r = (struct larder_gc_report){.struct_size = sizeof(r)};
    REQUIRE_OK(larder_gc_run(f.dir, &o, &r, &err), &err);
    CHECK_EQ(r.generations, 1);
    CHECK(r.files >= 2 && names.n == (int)r.files);
    CHECK_EQ(access(f.dir, F_OK), 0);
    uint64_t size, mtime;
    CHECK_OK(f.io->ops->stat(f.io, "manifests/1.json", &size, &mtime, &err), &err);
    o.dry_run = 0;
    REQUIRE_OK(f.io->ops->create_exclusive(f.io, "journal", "runs 00000000000000aa", 21, &err), &err);
    r = (struct larder_gc_report){.struct_size = sizeof(r)};
    REQUIRE_OK(larder_gc_run(f.dir, &o, &r, &err), &err); /* the stray belongs to an unfinished ingest */
    CHECK_OK(f.io->ops->stat(f.io, "shards/00000000000000aa-000000", &size, &mtime, &err), &err);
    CHECK_EQ(f.io->ops->stat(f.io, "manifests/1.json", &size, &mtime, &err), LARDER_ENOTFOUND);
    CHECK_OK(f.io->ops->stat(f.io, "journal", &size, &mtime, &err), &err);
    REQUIRE_OK(f.io->ops->remove(f.io, "journal", &err), &err);
    REQUIRE_OK(larder_gc_run(f.dir, &o, &r, &err), &err);
    CHECK_EQ(f.io->ops->stat(f.io, "shards/00000000000000aa-000000", &size, &mtime, &err), LARDER_ENOTFOUND);
    CHECK_EQ(verify(&f, &t, &vr), LARDER_OK);
    CHECK_EQ(check_all(&f, UINT64_MAX), N);
    tear_down(&f);
}

TEST_MAIN();
