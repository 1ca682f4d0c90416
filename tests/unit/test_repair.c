/* SPDX-License-Identifier: Apache-2.0 */
/* repair: each kind of damage that verify tells is mended, and what can be saved is saved. */
#include "tests/unit/keeping.h"

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

TEST_MAIN();
