/* SPDX-License-Identifier: Apache-2.0 */
/* test_loader_trace.c - the trace of a loader: every batch's plan, fetch, decode, ready and held; closed amid an epoch. */
#include "tests/unit/dataset.h"
#include "tests/unit/test.h"

static const struct dataset_spec spec = {1000, 500, 300, 0, 20, LARDER_COMPRESS_NONE};

static struct larder_loader *open_loader(struct larder_dataset **ds, const char *path, uint32_t threads)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader *ld;
    struct larder_error err;

    REQUIRE_OK(larder_dataset_open(dataset_make(&spec), NULL, ds, &err), &err);
    o.batch_size = 64;
    o.epochs = 2;
    o.threads = threads;
    o.trace = path;
    REQUIRE_OK(larder_loader_open(*ds, &o, &ld, &err), &err);
    return ld;
}

static void check(const char *path, const char *code)
{
    char command[2048];

    snprintf(command, sizeof(command), "python3 - '%s' <<'END'\nimport json, sys, collections\nevents = json.load(open(sys.argv[1]))\n"
             "by = collections.defaultdict(list)\nfor e in events:\n    by[e['name'], e['ph']].append(e)\n%s\nEND\n", path, code);
    CHECK_EQ(system(command), 0);
}

TEST(every_batch_is_there)
{
    for (uint32_t threads = 0; threads < 3; threads += 2) {
        struct larder_dataset *ds;
        const struct larder_batch *b;
        struct larder_error err;
        char path[200];

        snprintf(path, sizeof(path), "%s/trace.json", tmp_dir());
        struct larder_loader *ld = open_loader(&ds, path, threads);
        for (int epoch = 0; epoch < 2; epoch++)
            while (larder_loader_next(ld, &b, &err) == LARDER_OK)
                larder_batch_release(b);
        larder_loader_close(ld);
        larder_dataset_close(ds);
        check(path, "want = [[e, b] for e in range(2) for b in range(16)]\n"
                    "for name, ph in ('plan', 'X'), ('fetch', 'b'), ('ready', 'b'), ('held', 'b'):\n"
                    "    assert sorted([e['args']['epoch'], e['args']['batch']] for e in by[name, ph]) == want, (name, by[name, ph])\n"
                    "    assert sum(e['args']['samples'] for e in by[name, ph]) == 2000\n"
                    "for name in 'fetch', 'ready', 'held':\n"
                    "    ends = {e['id']: e['ts'] for e in by[name, 'e']}\n"
                    "    assert len(ends) == 32 and all(ends[e['id']] >= e['ts'] for e in by[name, 'b'])\n"
                    "assert sum(e['args']['samples'] for e in by['decode', 'X']) == 2000\n"
                    "names = {e['tid']: e['args']['name'] for e in by['thread_name', 'M']}\n"
                    "assert all(e['tid'] in names for e in events)\n"
                    "rows = {names[e['tid']] for e in by['decode', 'X']}\n"
                    "assert rows <= {'plan and fetch', 'decode 1', 'decode 2'}, rows");
        check(path, threads ? "assert 'decode 2' in [e['args']['name'] for e in by['thread_name', 'M']]" :
                              "assert len(by['thread_name', 'M']) == 2");
    }
}

TEST(closed_amid_an_epoch)
{
    struct larder_dataset *ds;
    const struct larder_batch *b, *c;
    struct larder_error err;
    char path[200];

    snprintf(path, sizeof(path), "%s/trace.json", tmp_dir());
    struct larder_loader *ld = open_loader(&ds, path, 2);
    REQUIRE_OK(larder_loader_next(ld, &b, &err), &err);
    REQUIRE_OK(larder_loader_next(ld, &c, &err), &err);
    larder_batch_release(c);
    larder_loader_close(ld);
    larder_dataset_close(ds);
    check(path, "assert len(by['held', 'b']) == 1 and len(by['ready', 'b']) == 2");
}

TEST(a_place_that_cannot_be_written_is_an_error)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader *ld;
    struct larder_dataset *ds;
    struct larder_error err;

    REQUIRE_OK(larder_dataset_open(dataset_make(&spec), NULL, &ds, &err), &err);
    o.trace = "/nowhere/at/all.json";
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EIO, &err);
    CHECK(!ld && strstr(err.message, "/nowhere/at/all.json"));
    larder_dataset_close(ds);
}

TEST_MAIN();
