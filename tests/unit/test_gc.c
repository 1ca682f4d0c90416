/* SPDX-License-Identifier: Apache-2.0 */
/* gc: what is young, named by a kept generation, or claimed by an unfinished ingest stays. */
#include "tests/unit/keeping.h"

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
