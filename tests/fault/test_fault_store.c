/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fault_store.c - every way of writing and keeping a dataset, with the Nth allocation, system call, transfer or thread failing.
 *
 * Each operation runs on a fresh copy of a dataset (or a folder of files) for N = 1, 2, ... until it ends before its Nth call. At
 * each failure: an error with a message, or the work done all the same; no descriptor stays open; what was committed before is
 * there, whole; a new generation is either not there or whole; nothing else is visible; and the same operation without a fault
 * succeeds afterwards and leaves the right data. RocksDB's own calls are not wrapped. With a flaky store_io (flaky_io.h) the same is
 * asked of the store's functions one operation at a time.
 *
 * Sweeps of hundreds of steps go on in growing strides from STRIDE_FROM on; LARDER_FULL=1 takes every step.
 */
#include <dirent.h>
#include <sys/wait.h>

#include "tests/fault/fault.h"
#include "tests/fault/flaky_io.h"
#include "tests/unit/dataset.h"

enum { OLD = 10, NEW = 17, STRIDE_FROM = 30 };

/* Three samples a shard or so; some records above 64 KiB, where fields have CRCs of their own. */
static const struct dataset_spec spec = {NEW, 4, 3000, 80000, 3000, LARDER_COMPRESS_ZSTD};

static char base[100], templ[120], work[140];

__attribute__((constructor)) static void in_memory(void)
{
    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0) /* thousands of fsyncs */
        setenv("TMPDIR", "/dev/shm", 1);
}

static void shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void shell(const char *fmt, ...)
{
    char command[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    if (system(command) != 0) {
        fprintf(stderr, "failed: %s\n", command);
        abort();
    }
}

/* ---- the operations ---- */

static int add_range(const char *dir, uint64_t first, uint64_t end, bool append, struct larder_error *err)
{
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    uint8_t *image = __real_malloc(spec.len_min + spec.len_spread + 1), *text = __real_malloc(spec.text_len + 1);
    struct larder_value values[F_COUNT];
    struct larder_writer *w;
    char key[64];
    int64_t label;

    o.append = append;
    o.compression = append ? LARDER_COMPRESS_ZSTD_DICT : LARDER_COMPRESS_ZSTD;
    o.shard_size = 150000;
    int rc = larder_writer_open(dir, append ? NULL : dataset_fields, append ? 0 : F_COUNT, &o, &w, err);
    for (uint64_t i = first; rc == 0 && i < end; i++) {
        size_t len = sample_key(i, key);
        sample_values(&spec, i, image, text, &label, values);
        rc = larder_writer_add(w, key, len, values, err);
        if (rc)
            larder_writer_close(w);
    }
    free(image);
    free(text);
    return rc ? rc : larder_writer_commit(w, NULL, err);
}

static int op_create(struct larder_error *err) { return add_range(work, 0, OLD, false, err); }
static int op_append(struct larder_error *err) { return add_range(work, OLD, NEW, true, err); }

/* Compares without faults: it allocates. */
static void check_sample(uint64_t i, const struct larder_value *values)
{
    long left = atomic_exchange(&fault_left[FAULT_ALLOC], 0);

    CHECK(sample_is(&spec, i, values));
    atomic_store(&fault_left[FAULT_ALLOC], left);
}

/* Every way of reading; what is delivered must be right. */
static int op_read(struct larder_error *err)
{
    struct larder_dataset *ds;
    uint64_t ordinals[OLD], found[OLD], n = OLD;
    int64_t labels[OLD];
    struct larder_sample samples[OLD] = {{0}};
    const void *keys[OLD];
    size_t lens[OLD], len;
    char text[OLD][64], key[64];
    int rc = larder_dataset_open(work, NULL, &ds, err);

    if (rc) {
        CHECK(ds == NULL);
        return rc;
    }
    for (uint64_t i = 0; i < n; i++) {
        ordinals[i] = (i * 7 + 3) % n;
        lens[i] = sample_key(ordinals[i], text[i]);
        keys[i] = text[i];
    }
    rc = larder_dataset_lookup(ds, keys, lens, n, found, err);
    for (uint64_t i = 0; rc == 0 && i < n; i++)
        CHECK_EQ(found[i], ordinals[i]);
    if (rc == 0 && (rc = larder_dataset_column(ds, F_LABEL, 0, n, labels, err)) == 0)
        for (uint64_t i = 0; i < n; i++)
            CHECK_EQ(labels[i], i % 10);
    for (uint64_t i = 0; rc == 0 && i < n; i += 3)
        if ((rc = larder_dataset_key(ds, i, key, sizeof key, &len, err)) == 0) {
            char want[64];
            CHECK_EQ(len, sample_key(i, want));
            CHECK_MEM(key, want, len);
        }
    if (rc == 0 && (rc = larder_dataset_read(ds, ordinals, n, NULL, samples, err)) == 0)
        for (uint64_t i = 0; i < n; i++)
            check_sample(ordinals[i], samples[i].fields);
    larder_samples_release(samples, n);
    if (rc == 0) {
        struct larder_sample s = {0};
        rc = larder_dataset_get(ds, keys[1], lens[1], &s, err);
        if (rc == 0)
            check_sample(ordinals[1], s.fields);
        larder_samples_release(&s, 1);
    }
    larder_dataset_close(ds);
    return rc;
}

static int op_verify(struct larder_error *err)
{
    struct larder_verify_report r = {.struct_size = sizeof r};
    struct larder_verify_options o = LARDER_VERIFY_OPTIONS_INIT;
    o.workers = 2;
    int rc = larder_verify_run(work, &o, &r, err);

    if (rc == 0)
        CHECK(r.damaged == 0 && r.samples == NEW);
    CHECK(rc != LARDER_ECORRUPT); /* nothing is damaged: an error of the machine is not one of the dataset */
    return rc;
}

static int op_repair(struct larder_error *err)
{
    struct larder_repair_report r = {.struct_size = sizeof r};
    return larder_repair_run(work, NULL, &r, err);
}

static int op_gc(struct larder_error *err)
{
    struct larder_gc_options o = LARDER_GC_OPTIONS_INIT;
    struct larder_gc_report r = {.struct_size = sizeof r};
    o.min_age_s = 0;
    return larder_gc_run(work, &o, &r, err);
}

static int ingest_from(const char *source, int append, struct larder_error *err)
{
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    struct larder_ingest_report r = {.struct_size = sizeof r};
    char from[300], to[300];
    const char *sources[] = {from};

    snprintf(from, sizeof from, "%s/%s", work, source);
    snprintf(to, sizeof to, "%s/d", work);
    o.shard_size = 30000;
    o.workers = 2;
    o.append = append;
    o.compression = LARDER_COMPRESS_ZSTD;
    int rc = larder_ingest_run(sources, 1, to, &o, &r, err);
    if (rc == 0)
        CHECK_EQ(r.added, 12);
    return rc;
}

static int op_ingest_dir(struct larder_error *err) { return ingest_from("src", 0, err); }
static int op_ingest_tar(struct larder_error *err) { return ingest_from("src.tar", 0, err); }

static int export_to(const char *name, struct larder_error *err)
{
    struct larder_export_report r = {.struct_size = sizeof r};
    struct larder_dataset *ds;
    char from[300], to[300];

    snprintf(from, sizeof from, "%s/d", work);
    snprintf(to, sizeof to, "%s/%s", work, name);
    int rc = larder_dataset_open(from, NULL, &ds, err);
    if (rc)
        return rc;
    rc = larder_export_run(ds, to, NULL, &r, err);
    if (rc == 0)
        CHECK_EQ(r.samples, OLD);
    larder_dataset_close(ds);
    return rc;
}

static int op_export_dir(struct larder_error *err) { return export_to("out", err); }
static int op_export_tar(struct larder_error *err) { return export_to("out.tar", err); }

/* ---- what must hold ---- */

/* Generation g of the dataset in dir has exactly n samples, all right, all found by key. */
static void check_generation(const char *dir, uint64_t g, uint64_t n, const char *when)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset_info info = {.struct_size = sizeof info};
    struct larder_dataset *ds;
    struct larder_error err;
    int64_t labels[NEW];

    o.generation = g;
    int rc = larder_dataset_open(dir, &o, &ds, &err);
    if (!test_check(rc == 0, __FILE__, __LINE__, "generation %d after a failing %s: %s", (int)g, when, rc ? err.message : ""))
        return;
    CHECK_OK(larder_dataset_info(ds, &info, &err), &err);
    if (!test_check(info.samples == n, __FILE__, __LINE__, "%d samples of %d after a failing %s", (int)info.samples, (int)n, when))
        n = 0;
    if (n)
        CHECK_OK(larder_dataset_column(ds, F_LABEL, 0, n, labels, &err), &err);
    for (uint64_t i = 0; i < n; i++) {
        struct larder_sample s = {0};
        char key[64];
        size_t len = sample_key(i, key);
        rc = larder_dataset_get(ds, key, len, &s, &err);
        (void)test_check(rc == 0 && s.ordinal == i && sample_is(&spec, i, s.fields) && labels[i] == (int64_t)(i % 10), __FILE__,
                         __LINE__, "sample %d after a failing %s: code %d %s", (int)i, when, rc, rc ? err.message : "");
        larder_samples_release(&s, 1);
    }
    larder_dataset_close(ds);
}

static uint64_t samples_in(const char *dir, uint64_t *generation)
{
    struct larder_dataset_info info = {.struct_size = sizeof info};
    struct larder_dataset *ds;
    struct larder_error err;
    int rc = larder_dataset_open(dir, NULL, &ds, &err);

    *generation = 0;
    if (rc) {
        CHECK_ERR(rc, LARDER_ENOTFOUND, &err); /* nothing half-written */
        return 0;
    }
    larder_dataset_info(ds, &info, &err);
    *generation = info.generation;
    larder_dataset_close(ds);
    return info.samples;
}

static void check_verified(const char *dir, const char *when)
{
    struct larder_verify_report r = {.struct_size = sizeof r};
    struct larder_error err;
    int rc = larder_verify_run(dir, NULL, &r, &err);

    (void)test_check(rc == 0, __FILE__, __LINE__, "verify after a failing %s: %s", when, rc ? err.message : "");
}

/* ---- sweeps ---- */

typedef int op_fn(struct larder_error *err);
typedef void after_fn(int rc, const char *when); /* the state right after the operation ended with rc */
typedef void again_fn(const char *when);         /* does it once more, without faults, and checks the end */

struct sweep { const char *name; op_fn *op; after_fn *after; again_fn *again; };

static bool code_fits(enum fault_kind kind, int rc)
{
    switch (kind) {
    case FAULT_ALLOC: return rc == LARDER_ENOMEM;
    case FAULT_THREAD: return rc == LARDER_ENOMEM || rc == LARDER_EIO;
    default: return rc == LARDER_EIO || rc == LARDER_ENOTFOUND || rc == LARDER_EEXIST || rc == LARDER_ECORRUPT;
    }
}

static void fresh(void)
{
    shell("rm -rf %s && cp -a %s %s", work, templ, work);
}

static long stride(long n)
{
    return n < STRIDE_FROM || getenv("LARDER_FULL") ? 1 : 1 + n / 8;
}

static void sweep(const struct sweep *s, enum fault_kind kind)
{
    static const char *const kinds[] = {"allocation", "system call", "short transfer", "thread"};
    struct larder_error err;

    for (long n = 1; atomic_load(&test_failures) < 20; n += stride(n)) {
        char when[128];
        fresh();
        int fds = open_fds();
        err = (struct larder_error){0};
        fault_arm(kind, n);
        int rc = s->op(&err);
        bool hit = fault_disarm();
        snprintf(when, sizeof when, "%s of %s (%s %ld)", fault_name(), s->name, kinds[kind], n);
        (void)test_check(open_fds() == fds, __FILE__, __LINE__, "descriptors stay open after a failing %s", when);
        if (rc < 0)
            (void)test_check(err.code == rc && err.message[0] && (hit && kind != FAULT_SHORT) && code_fits(kind, rc), __FILE__,
                             __LINE__, "a failing %s: code %d: %s", when, rc, err.message);
        s->after(rc, when);
        if (rc < 0)
            s->again(when);
        if (!hit) {
            CHECK(n > 1 || kind == FAULT_THREAD || kind == FAULT_SHORT);
            break;
        }
    }
    shell("rm -rf %s", work);
}

static void sweep_all(const struct sweep *s)
{
    for (int k = 0; k < FAULT_KINDS; k++)
        sweep(s, (enum fault_kind)k);
}

/* templ gets a dataset of the first n samples, in one or two generations. */
static void make_template(uint64_t n)
{
    struct larder_error err;

    snprintf(base, sizeof base, "%s", tmp_dir());
    snprintf(templ, sizeof templ, "%s/t", base);
    snprintf(work, sizeof work, "%s/w", base);
    shell("mkdir -p %s", templ);
    snprintf(work, sizeof work, "%s", templ); /* the operations work on work */
    if (n)
        REQUIRE_OK(add_range(work, 0, OLD, false, &err), &err);
    if (n > OLD)
        REQUIRE_OK(op_append(&err), &err);
    snprintf(work, sizeof work, "%s/w", base);
}

/* ---- create and append ---- */

static void after_create(int rc, const char *when)
{
    uint64_t g, n = samples_in(work, &g);

    CHECK(n == 0 || n == OLD);
    if (rc == 0)
        CHECK_EQ(n, OLD);
    if (n)
        check_generation(work, g, OLD, when);
}

static void again_create(const char *when)
{
    struct larder_error err;
    uint64_t g, n = samples_in(work, &g);
    int rc = op_create(&err);

    if (n)
        CHECK_ERR(rc, LARDER_EEXIST, &err); /* the failure came after the commit */
    else
        (void)test_check(rc == 0, __FILE__, __LINE__, "again after a failing %s: %s", when, rc ? err.message : "");
    check_generation(work, 1, OLD, when);
    check_verified(work, when);
}

TEST(create)
{
    make_template(0);
    sweep_all(&(struct sweep){"create", op_create, after_create, again_create});
}

static void after_append(int rc, const char *when)
{
    uint64_t g, n = samples_in(work, &g);

    CHECK(n == OLD || n == NEW);
    if (rc == 0)
        CHECK_EQ(n, NEW);
    CHECK_EQ(g, n == OLD ? 1 : 2);
    check_generation(work, 1, OLD, when);
    if (n == NEW)
        check_generation(work, 2, NEW, when);
}

static void again_append(const char *when)
{
    struct larder_error err;
    uint64_t g, n = samples_in(work, &g);
    int rc = op_append(&err);

    if (n == NEW)
        CHECK_ERR(rc, LARDER_EEXIST, &err);
    else
        (void)test_check(rc == 0, __FILE__, __LINE__, "again after a failing %s: %s", when, rc ? err.message : "");
    check_generation(work, 2, NEW, when);
    check_generation(work, 1, OLD, when);
    check_verified(work, when);
}

TEST(append)
{
    make_template(OLD);
    sweep_all(&(struct sweep){"append", op_append, after_append, again_append});
}

/* ---- reading and verifying: nothing changes ---- */

static void after_nothing(int rc, const char *when) { (void)rc, (void)when; }

static void again_read(const char *when)
{
    struct larder_error err;
    int rc = op_read(&err);
    (void)test_check(rc == 0, __FILE__, __LINE__, "again after a failing %s: %s", when, rc ? err.message : "");
}

TEST(read)
{
    make_template(OLD);
    sweep_all(&(struct sweep){"read", op_read, after_nothing, again_read});
}

static void again_verify(const char *when) { check_verified(work, when); }

TEST(verify)
{
    make_template(NEW);
    sweep_all(&(struct sweep){"verify", op_verify, after_nothing, again_verify});
}

/* ---- repair ---- */

static void again_repair_whole(const char *when)
{
    struct larder_error err;
    uint64_t g;
    int rc = op_repair(&err);

    (void)test_check(rc == 0, __FILE__, __LINE__, "again after a failing %s: %s", when, rc ? err.message : "");
    CHECK_EQ(samples_in(work, &g), NEW);
    check_generation(work, g, NEW, when);
    check_verified(work, when);
}

/* Healthy: it stays as it is, whatever fails. */
static void after_repair_healthy(int rc, const char *when)
{
    uint64_t g;

    (void)rc;
    CHECK_EQ(samples_in(work, &g), NEW);
    (void)test_check(g == 2, __FILE__, __LINE__, "a healthy dataset was repaired after a failing %s", when);
    check_generation(work, 1, OLD, when);
    check_generation(work, 2, NEW, when);
}

TEST(repair_healthy)
{
    make_template(NEW);
    sweep_all(&(struct sweep){"repair of a healthy dataset", op_repair, after_repair_healthy, again_repair_whole});
}

static void after_repair_lost(int rc, const char *when)
{
    uint64_t g, n = samples_in(work, &g);

    CHECK(n == 0 || n == NEW);
    if (rc == 0)
        CHECK_EQ(n, NEW);
    if (n)
        check_generation(work, g, NEW, when);
}

TEST(repair_without_manifests)
{
    make_template(NEW);
    shell("rm -rf %s/manifests %s/larder.json", templ, templ);
    sweep_all(&(struct sweep){"repair without manifests", op_repair, after_repair_lost, again_repair_whole});
}

static void after_repair_index(int rc, const char *when)
{
    uint64_t g;

    CHECK_EQ(samples_in(work, &g), NEW);
    if (rc == 0)
        check_generation(work, g, NEW, when);
    if (rc == 0)
        check_verified(work, when);
    if (g > 2)
        check_generation(work, g, NEW, when);
}

TEST(repair_of_an_index)
{
    make_template(NEW);
    shell("for f in %s/index/2-*/*.sst; do truncate -s 100 $f; done", templ);
    sweep_all(&(struct sweep){"repair of an index", op_repair, after_repair_index, again_repair_whole});
}

/* One record is damaged: the sample goes, all others stay. */
static void check_salvaged(uint64_t g, const char *when)
{
    struct larder_dataset *ds;
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_error err;
    uint64_t found = 0;

    o.generation = g;
    REQUIRE_OK(larder_dataset_open(work, &o, &ds, &err), &err);
    for (uint64_t i = 0; i < NEW; i++) {
        struct larder_sample s = {0};
        char key[64];
        int rc = larder_dataset_get(ds, key, sample_key(i, key), &s, &err);
        found += rc == 0;
        (void)test_check(rc == 0 ? sample_is(&spec, i, s.fields) : rc == LARDER_ENOTFOUND && i == 0, __FILE__, __LINE__,
                         "sample %d after a failing %s: code %d %s", (int)i, when, rc, rc ? err.message : "");
        larder_samples_release(&s, 1);
    }
    CHECK_EQ(found, NEW - 1);
    larder_dataset_close(ds);
}

static void after_repair_record(int rc, const char *when)
{
    uint64_t g, n = samples_in(work, &g);

    CHECK_EQ(n, g == 2 ? NEW : NEW - 1);
    if (rc == 0)
        CHECK_EQ(g, 3);
    if (g > 2)
        check_salvaged(g, when);
}

static void again_repair_record(const char *when)
{
    struct larder_error err;
    uint64_t g;
    int rc = op_repair(&err);

    (void)test_check(rc == 0, __FILE__, __LINE__, "again after a failing %s: %s", when, rc ? err.message : "");
    CHECK_EQ(samples_in(work, &g), NEW - 1);
    check_salvaged(g, when);
    check_verified(work, when);
}

TEST(repair_of_a_record)
{
    struct larder_dataset *ds;
    struct larder_location loc;
    struct larder_error err;

    make_template(NEW);
    REQUIRE_OK(larder_dataset_open(templ, NULL, &ds, &err), &err);
    REQUIRE_OK(larder_dataset_locate(ds, 0, &loc, &err), &err);
    shell("printf x | dd of=%s/shards/%s bs=1 seek=%d conv=notrunc status=none", templ, loc.shard, (int)loc.offset + 200);
    larder_dataset_close(ds);
    sweep_all(&(struct sweep){"repair of a record", op_repair, after_repair_record, again_repair_record});
}

/* ---- gc ---- */

static void after_gc(int rc, const char *when)
{
    uint64_t g;

    (void)rc;
    CHECK_EQ(samples_in(work, &g), NEW);
    CHECK_EQ(g, 2);
    check_generation(work, 2, NEW, when);
}

static void again_gc(const char *when)
{
    struct larder_error err;
    int rc = op_gc(&err);

    (void)test_check(rc == 0, __FILE__, __LINE__, "again after a failing %s: %s", when, rc ? err.message : "");
    check_generation(work, 2, NEW, when);
    check_verified(work, when);
    shell("test -z \"$(find %s -name '*stray*' -o -name '.tmp-*')\" && ! test -e %s/manifests/1.json", work, work);
}

TEST(gc)
{
    make_template(NEW);
    shell("echo x >%s/shards/stray; echo x >%s/shards/.tmp-0123456789abcdef; mkdir %s/index/9-stray; echo x >%s/index/9-stray/CURRENT; "
          "echo x >%s/.tmp-0123456789abcdef; echo x >%s/manifests/.tmp-0123456789abcdef",
          templ, templ, templ, templ, templ, templ);
    sweep_all(&(struct sweep){"gc", op_gc, after_gc, again_gc});
}

/* ---- ingest ---- */

static void make_source(void)
{
    make_template(0);
    shell("mkdir -p %s/src/cat %s/src/dog; cd %s/src; for i in 1 2 3 4 5 6; do for c in cat dog; do "
          "{ printf '\\211PNG\\r\\n\\032\\n'; seq 1 $((i * 700)); } >$c/$i.png; done; done; cd ..; tar cf src.tar -C src cat dog",
          templ, templ, templ);
}

/* The dataset, when it is there, has the twelve files. */
static void check_ingested(bool must, const char *when)
{
    static const char *const classes[] = {"cat", "dog"};
    struct larder_dataset *ds;
    struct larder_error err;
    char dir[300];

    snprintf(dir, sizeof dir, "%s/d", work);
    int rc = larder_dataset_open(dir, NULL, &ds, &err);
    if (rc) {
        (void)test_check(rc == LARDER_ENOTFOUND && !must, __FILE__, __LINE__, "after a failing %s: code %d: %s", when, rc, err.message);
        return;
    }
    for (int i = 0; i < 12; i++) {
        struct larder_sample s = {0};
        char key[32], path[300];
        static uint8_t want[65536];
        snprintf(key, sizeof key, "%s/%d", classes[i % 2], i / 2 + 1);
        snprintf(path, sizeof path, "%s/src/%s.png", templ, key);
        FILE *f = fopen(path, "r");
        size_t len = f ? fread(want, 1, sizeof want, f) : 0;
        if (f)
            fclose(f);
        rc = larder_dataset_get(ds, key, strlen(key), &s, &err);
        (void)test_check(rc == 0 && len && s.fields[0].len == len && memcmp(s.fields[0].data, want, len) == 0, __FILE__, __LINE__,
                         "%s after a failing %s: code %d %s", key, when, rc, rc ? err.message : "");
        larder_samples_release(&s, 1);
    }
    larder_dataset_close(ds);
}

static void after_ingest(int rc, const char *when) { check_ingested(rc == 0, when); }

static void again_ingest(op_fn *op, const char *when)
{
    struct larder_error err;
    char dir[300];
    uint64_t g;

    snprintf(dir, sizeof dir, "%s/d", work);
    uint64_t n = samples_in(dir, &g);
    int rc = op(&err);
    if (n)
        CHECK_ERR(rc, LARDER_EEXIST, &err);
    else
        (void)test_check(rc == 0, __FILE__, __LINE__, "again after a failing %s: %s", when, rc ? err.message : "");
    CHECK_EQ(samples_in(dir, &g), 12);
    check_ingested(true, when);
    check_verified(dir, when);
}

static void again_ingest_dir(const char *when) { again_ingest(op_ingest_dir, when); }
static void again_ingest_tar(const char *when) { again_ingest(op_ingest_tar, when); }

TEST(ingest_dir)
{
    make_source();
    sweep_all(&(struct sweep){"ingest of a folder", op_ingest_dir, after_ingest, again_ingest_dir});
}

TEST(ingest_tar)
{
    make_source();
    sweep_all(&(struct sweep){"ingest of a tar file", op_ingest_tar, after_ingest, again_ingest_tar});
}

/* ---- export ---- */

static void make_exportable(void)
{
    struct larder_error err;
    char keep[140];

    make_template(0);
    snprintf(keep, sizeof keep, "%s", work);
    snprintf(work, sizeof work, "%s/d", templ);
    REQUIRE_OK(add_range(work, 0, OLD, false, &err), &err);
    snprintf(work, sizeof work, "%s", keep);
    shell("mkdir %s/want && cp -a %s/d %s/d", base, templ, base); /* what it should look like */
    snprintf(work, sizeof work, "%s", base);
    REQUIRE_OK(export_to("want", &err), &err);
    REQUIRE_OK(export_to("want.tar", &err), &err);
    shell("cd %s && mkdir want_tar && tar xf want.tar -C want_tar && test $(find want_tar -type f | wc -l) = $(find want -type f | wc -l)",
          base);
    snprintf(work, sizeof work, "%s", keep);
}

static void check_exported_dir(int rc, const char *when)
{
    if (rc == 0)
        shell("diff -r %s/want %s/out >&2", base, work);
    else /* what it made is gone again, as far as that goes: no file under a name that stands for a whole one */
        shell("test ! -d %s/out || (cd %s/out && find . -type f ! -name '.*' | while read -r f; do cmp -s \"$f\" \"%s/want/$f\" || "
              "{ echo \"$f is not whole\" >&2; exit 1; }; done)", work, work, base);
    (void)when;
}

static void again_export_dir(const char *when)
{
    struct larder_error err;
    shell("rm -rf %s/out", work);
    int rc = op_export_dir(&err);
    (void)test_check(rc == 0, __FILE__, __LINE__, "again after a failing %s: %s", when, rc ? err.message : "");
    check_exported_dir(0, when);
}

TEST(export_dir)
{
    make_exportable();
    sweep_all(&(struct sweep){"export to a folder", op_export_dir, check_exported_dir, again_export_dir});
}

/* A name that could not be made durable may be there: whole. */
static void check_exported_tar(int rc, const char *when)
{
    (void)when;
    shell("cd %s; test %d != 0 -a ! -e out.tar || { rm -rf x && mkdir x && tar xf out.tar -C x && diff -r ../want_tar x >&2; }", work, rc);
    shell("test -z \"$(find %s -maxdepth 1 -name '.*tar*')\"", work);
}

static void again_export_tar(const char *when)
{
    struct larder_error err;
    shell("rm -f %s/out.tar", work);
    int rc = op_export_tar(&err);
    (void)test_check(rc == 0, __FILE__, __LINE__, "again after a failing %s: %s", when, rc ? err.message : "");
    check_exported_tar(0, when);
}

TEST(export_tar)
{
    make_exportable();
    sweep_all(&(struct sweep){"export to a tar file", op_export_tar, check_exported_tar, again_export_tar});
}

/* ---- a flaky store_io ---- */

static int flaky_shard(struct store_io *io, struct manifest *m, struct larder_error *err)
{
    return dataset_shard(io, m, &spec, m->n_shards * spec.shard_samples, err);
}

/* A shard is there whole, or not at all. */
TEST(flaky_shard_writer)
{
    for (int torn = 0; torn < 2; torn++)
        for (long n = 1;; n++) {
            struct manifest m = {.generation = 1, .uuid = {1}, .lineage = {2}, .compression = spec.compression};
            struct larder_error err = {0};
            struct shard_info info;
            struct store_io *inner, *io;
            const char *dir = tmp_dir();

            REQUIRE_OK(io_file_open(dir, true, 0, &inner, &err), &err);
            io = flaky_open(inner);
            REQUIRE_OK(schema_copy(&m.schema, dataset_fields, F_COUNT, &err), &err);
            flaky_arm(io, n, torn);
            int rc = flaky_shard(io, &m, &err);
            bool hit = flaky_disarm(io);
            CHECK_EQ(rc, hit ? LARDER_EIO : 0);
            char name[32];
            shard_name_new(42, 0, name);
            int got = shard_inspect(io, name, &info, NULL, &err);
            CHECK(got == 0 || (got == LARDER_ENOTFOUND && hit));
            if (got == 0) {
                CHECK(!hit || torn);
                CHECK_EQ(info.ref.samples, spec.shard_samples);
                shard_info_release(&info);
            }
            manifest_release(&m);
            io_close(io);
            shell("rm -rf %s", dir);
            test_n_dirs--;
            if (!hit) {
                CHECK(n > 5);
                break;
            }
        }
}

/* A generation that failed to commit is not there, or (its answer was lost) whole; the next try says which. */
TEST(flaky_commit)
{
    for (int torn = 0; torn < 2; torn++)
        for (long n = 1;; n++) {
            struct larder_error err = {0};
            struct store_io *inner, *io;
            struct manifest m = {.generation = 0}, back = {.generation = 0};
            const char *dir = dataset_make(&spec);

            REQUIRE_OK(io_file_open(dir, true, 0, &inner, &err), &err);
            io = flaky_open(inner);
            REQUIRE_OK(generation_load(io, 1, &m, &err), &err);
            m.generation = 2;
            flaky_arm(io, n, torn);
            int rc = generation_commit(io, &m, &err);
            bool hit = flaky_disarm(io);
            uint64_t newest = 0;
            CHECK_OK(generation_newest(io, &newest, &err), &err);
            CHECK(newest == 2 || (rc == LARDER_EIO && newest == 1));
            CHECK_OK(generation_load(io, newest, &back, &err), &err);
            CHECK_EQ(back.samples, spec.n);
            manifest_release(&back);
            if (rc)
                CHECK_ERR(generation_commit(io, &m, &err), newest == 2 ? LARDER_EBUSY : 0, &err);
            CHECK_OK(generation_newest(io, &newest, &err), &err);
            CHECK_EQ(newest, 2);
            manifest_release(&m);
            io_close(io);
            shell("rm -rf %s", dir);
            test_n_dirs--;
            if (!hit) {
                CHECK(n > 3);
                break;
            }
        }
}

typedef int store_fn(struct store_io *io, struct larder_error *err);

static int run_verify(struct store_io *io, struct larder_error *err)
{
    struct larder_verify_options o = LARDER_VERIFY_OPTIONS_INIT;
    struct larder_verify_report r = {.struct_size = sizeof r};
    o.workers = 1;
    return store_verify(io, &o, &r, err);
}

static int run_gc(struct store_io *io, struct larder_error *err)
{
    struct larder_gc_options o = LARDER_GC_OPTIONS_INIT;
    struct larder_gc_report r = {.struct_size = sizeof r};
    o.min_age_s = 0;
    return store_gc(io, &o, &r, err);
}

static int run_repair(struct store_io *io, struct larder_error *err)
{
    struct larder_repair_options o = LARDER_REPAIR_OPTIONS_INIT;
    struct larder_repair_report r = {.struct_size = sizeof r};
    return store_repair(io, &o, &r, err);
}

/* An I/O error is told as one, and never as damage; the dataset comes through it. */
static void flaky_sweep(store_fn *fn, after_fn *after, again_fn *again)
{
    for (long n = 1; atomic_load(&test_failures) < 20; n++) {
        struct larder_error err = {0};
        struct store_io *inner, *io;
        char when[64];

        fresh();
        REQUIRE_OK(io_file_open(work, false, 0, &inner, &err), &err);
        io = flaky_open(inner);
        flaky_arm(io, n, n % 2);
        int rc = fn(io, &err);
        bool hit = flaky_disarm(io);
        io_close(io);
        snprintf(when, sizeof when, "operation %ld", n);
        (void)test_check(rc == 0 || (hit && rc == LARDER_EIO), __FILE__, __LINE__, "%s: code %d: %s", when, rc, err.message);
        after(rc, when);
        again(when);
        if (!hit) {
            CHECK(n > 3);
            break;
        }
    }
}

TEST(flaky_verify)
{
    make_template(NEW);
    flaky_sweep(run_verify, after_nothing, again_verify);
}

TEST(flaky_gc)
{
    make_template(NEW);
    shell("echo x >%s/shards/stray", templ);
    flaky_sweep(run_gc, after_gc, again_gc);
}

TEST(flaky_repair)
{
    make_template(NEW);
    flaky_sweep(run_repair, after_repair_healthy, again_repair_whole);
    shell("rm -rf %s/manifests %s/larder.json", templ, templ);
    flaky_sweep(run_repair, after_repair_lost, again_repair_whole);
}

TEST_MAIN();
