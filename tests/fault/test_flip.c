/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_flip.c - bits of every byte of every file of a small dataset flip, one byte at a time.
 *
 * The dataset has two generations: shards of compressed and media fields with a dictionary in one, columns with absent values, a
 * record of more than 64 KiB, and the key index. After each flip both generations are opened, all samples read by ordinal and by
 * field, all keys looked up and read back, the columns read: each answer is right or an error of the dataset; never a crash, wrong
 * bytes, or a key that is not found without an error. larder_verify_run reports every flip.
 *
 * Two processes share the work, each on a copy of its own; each hands chunks of flips to a child, so that a crash is told with
 * its place and the rest goes on. Runs of zeros and of media bytes are sampled unless LARDER_FULL=1.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>

#include "tests/fault/fault.h"
#include "tests/unit/test.h"

enum { FIRST = 14, ALL = 22, LARGE = 3, LARGE_LEN = 66000, CHUNK = 400, LANES = 2, FILES_MAX = 64, N_FIELDS = 5 };
enum { ZERO_STRIDE = 16, MEDIA_STRIDE = 499 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWER = 5 };
#else
enum { SLOWER = 1 };
#endif

static const struct larder_field fields[N_FIELDS] = {
    {"image", LARDER_IMAGE, NULL, 0, NULL}, {"label", LARDER_I64, NULL, 0, NULL}, {"text", LARDER_UTF8, NULL, 0, NULL},
    {"score", LARDER_F32, NULL, 0, NULL},   {"raw", LARDER_BYTES, NULL, 0, NULL},
};

/* ---- the dataset ---- */

struct content { uint8_t image[LARGE_LEN], text[400], raw[16]; int64_t label; float score; struct larder_value v[N_FIELDS]; };

static void content_of(uint64_t i, struct content *c)
{
    uint64_t rng = i + 77;
    size_t image = i == LARGE ? LARGE_LEN : 30 + rng_below(&rng, 40), text = 150 + rng_below(&rng, 100);

    rng_fill(&rng, c->image, image);
    for (size_t k = 0; k < text; k++)
        c->text[k] = (uint8_t)"compressible, as labels in words are "[(k + i) % 37];
    rng_fill(&rng, c->raw, sizeof c->raw);
    c->label = (int64_t)(i * 1000003);
    c->score = (float)i / 7;
    c->v[0] = (struct larder_value){c->image, image};
    c->v[1] = (struct larder_value){&c->label, 8};
    c->v[2] = (struct larder_value){c->text, text};
    c->v[3] = i % 5 == 2 ? (struct larder_value){NULL, 0} : (struct larder_value){&c->score, 4};
    c->v[4] = i % 4 ? (struct larder_value){c->raw, sizeof c->raw} : (struct larder_value){NULL, 0};
}

static size_t key_of(uint64_t i, char key[32])
{
    return (size_t)snprintf(key, 32, "cl%d/k%llu", (int)(i % 3), (unsigned long long)(i * 37));
}

static void make_generation(const char *dir, uint64_t first, uint64_t end)
{
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    struct larder_writer *w;
    struct larder_error err;
    static struct content c;
    char key[32];

    o.append = first > 0;
    o.compression = first ? LARDER_COMPRESS_ZSTD : LARDER_COMPRESS_ZSTD_DICT;
    REQUIRE_OK(larder_writer_open(dir, fields, N_FIELDS, &o, &w, &err), &err);
    for (uint64_t i = first; i < end; i++) {
        size_t len = key_of(i, key);
        content_of(i, &c);
        REQUIRE_OK(larder_writer_add(w, key, len, c.v, &err), &err);
    }
    REQUIRE_OK(larder_writer_commit(w, NULL, &err), &err);
}

/* ---- what must hold after a flip ---- */

static bool is_corrupt(int rc) { return rc == LARDER_ECORRUPT || rc == LARDER_EVERSION; }

static char where[300]; /* the flip, for messages */

#define HOLDS(cond, what, i) (void)test_check((cond), __FILE__, __LINE__, "%s: %s %llu: code %d: %s", where, what, \
                                              (unsigned long long)(i), rc, rc ? err.message : "")

static bool same(const struct larder_value *a, const struct larder_value *b)
{
    return !a->data == !b->data && a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

static void check_samples(struct larder_dataset *ds, uint64_t n)
{
    static const uint32_t some[] = {4, 0};
    struct larder_read_options o = {sizeof o, some, 2};
    static struct content c;
    struct larder_error err;
    struct larder_sample batch[ALL] = {{0}}, s = {0};
    uint64_t ordinals[ALL], large = LARGE;

    for (uint64_t i = 0; i < n; i++)
        ordinals[i] = i;
    int all = larder_dataset_read(ds, ordinals, n, NULL, batch, &err);
    for (uint64_t i = 0; i < n; i++) { /* where the batch failed, each by itself */
        int rc = all == 0 ? 0 : larder_dataset_read(ds, &i, 1, NULL, &batch[i], &err);
        content_of(i, &c);
        HOLDS(rc == 0 || is_corrupt(rc), "sample", i);
        for (int f = 0; rc == 0 && f < N_FIELDS; f++)
            HOLDS(same(&batch[i].fields[f], &c.v[f]), "wrong bytes in sample", i);
    }
    larder_samples_release(batch, n);
    content_of(LARGE, &c);
    int rc = larder_dataset_read(ds, &large, 1, &o, &s, &err);
    HOLDS(rc == 0 || is_corrupt(rc), "fields of sample", large);
    HOLDS(rc != 0 || (same(&s.fields[0], &c.v[4]) && same(&s.fields[1], &c.v[0])), "wrong bytes in fields of sample", large);
    larder_samples_release(&s, 1);
}

static void check_keys(struct larder_dataset *ds, uint64_t n)
{
    char text[ALL + 1][32], key[64];
    const void *keys[ALL + 1];
    size_t lens[ALL + 1], len;
    uint64_t found[ALL + 1];
    struct larder_error err;

    for (uint64_t i = 0; i < ALL; i++) {
        lens[i] = key_of(i, text[i]);
        keys[i] = text[i];
    }
    keys[ALL] = "cl1/absent";
    lens[ALL] = 10;
    int rc = larder_dataset_lookup(ds, keys, lens, ALL + 1, found, &err);
    HOLDS(rc == 0 || is_corrupt(rc), "lookup of", n);
    for (uint64_t i = 0; i <= ALL; i++) {
        if (rc == 0)
            HOLDS(found[i] == (i < n ? i : LARDER_NO_ORDINAL), "a wrong answer for key", i);
        else if (i == 0 && (rc = larder_dataset_lookup(ds, keys, lens, 1, found, &err)) == 0)
            HOLDS(found[0] == 0, "a wrong answer for the key alone,", i), rc = -1;
    }
    for (uint64_t i = 0; i < n; i++) {
        rc = larder_dataset_key(ds, i, key, sizeof key, &len, &err);
        HOLDS(is_corrupt(rc) || (rc == 0 && len == lens[i] && memcmp(key, text[i], len) == 0), "key of sample", i);
    }
}

static void check_columns(struct larder_dataset *ds, uint64_t n)
{
    int64_t labels[ALL];
    float scores[ALL];
    struct larder_error err;
    int rc = larder_dataset_column(ds, 1, 0, n, labels, &err);

    HOLDS(rc == 0 || is_corrupt(rc), "labels of", n);
    for (uint64_t i = 0; rc == 0 && i < n; i++)
        HOLDS(labels[i] == (int64_t)(i * 1000003), "wrong label of sample", i);
    rc = larder_dataset_column(ds, 3, 0, n, scores, &err);
    HOLDS(rc == 0 || is_corrupt(rc), "scores of", n);
    for (uint64_t i = 0; rc == 0 && i < n; i++)
        HOLDS(scores[i] == (i % 5 == 2 ? 0 : (float)i / 7), "wrong score of sample", i);
}

/* Damage that verify finds in generation g, at least. */
static uint64_t verify(const char *dir, uint64_t g)
{
    struct larder_verify_options o = LARDER_VERIFY_OPTIONS_INIT;
    struct larder_verify_report r = {.struct_size = sizeof r};
    struct larder_error err;

    o.generation = g;
    o.workers = 1;
    int rc = larder_verify_run(dir, &o, &r, &err);
    HOLDS(rc == 0 ? r.damaged == 0 : is_corrupt(rc) && r.damaged > 0, "verify of generation", g);
    return r.damaged;
}

static void check_generation(const char *dir, uint64_t g, uint64_t n)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset_info info = {.struct_size = sizeof info};
    struct larder_dataset *ds;
    struct larder_error err;

    o.generation = g;
    o.direct = LARDER_DIRECT_OFF;
    o.table_bytes = o.index_bytes = 1;
    o.queue_depth = 1;
    int rc = larder_dataset_open(dir, &o, &ds, &err);
    HOLDS(rc == 0 || is_corrupt(rc), "open of generation", g);
    if (rc)
        return;
    rc = larder_dataset_info(ds, &info, &err);
    HOLDS(rc == 0 && info.samples == n, "samples in generation", g);
    check_samples(ds, n);
    check_keys(ds, n);
    check_columns(ds, n);
    larder_dataset_close(ds);
}

/* older: generation 1 too, whatever verify says of the newest. */
static void check_all(const char *dir, bool damaged, bool older)
{
    struct larder_error err = {0};
    int rc = 0;

    check_generation(dir, 0, ALL);
    uint64_t found = verify(dir, 0);
    if (older || found == 0) {
        check_generation(dir, 1, FIRST);
        found += verify(dir, 1);
    }
    HOLDS((found > 0) == damaged, "damage that verify tells:", found);
}

/* ---- flips ---- */

struct flip { uint16_t file; uint8_t mask; uint32_t offset; };

static char files[FILES_MAX][100]; /* below the dataset */
static int n_files;
static struct flip *flips;
static size_t n_flips, cap_flips;

static void add_flip(int file, size_t offset, uint8_t mask)
{
    if (n_flips == cap_flips)
        flips = realloc(flips, (cap_flips = 2 * cap_flips + 1000) * sizeof *flips);
    flips[n_flips++] = (struct flip){(uint16_t)file, mask, (uint32_t)offset};
}

/* All that is worth flipping in one file. */
static void plan_file(const char *dir, int file)
{
    static uint8_t bytes[1 << 20];
    static struct content large;
    char path[400];
    bool shard = strncmp(files[file], "shards/", 7) == 0, full = getenv("LARDER_FULL") != NULL;

    snprintf(path, sizeof path, "%s/%.99s", dir, files[file]);
    int fd = open(path, O_RDONLY);
    ssize_t len = pread(fd, bytes, sizeof bytes, 0);
    close(fd);
    REQUIRE(len > 0 && (size_t)len < sizeof bytes);
    content_of(LARGE, &large);
    uint8_t *media = memmem(bytes, (size_t)len, large.image, LARGE_LEN);
    for (ssize_t i = 0; i < len; i++) {
        bool in_media = media && bytes + i >= media && bytes + i < media + LARGE_LEN;
        bool padding = shard && bytes[i] == 0 && (i == 0 || bytes[i - 1] == 0) && (i + 1 == len || bytes[i + 1] == 0);
        int stride = full ? 1 : (in_media ? MEDIA_STRIDE : padding ? ZERO_STRIDE : 1) * SLOWER;
        if (i % stride)
            continue;
        add_flip(file, (size_t)i, (uint8_t)(i % 9 == 8 ? 0xff : 1 << i % 8));
        if (!shard && SLOWER == 1) /* the case of a letter */
            add_flip(file, (size_t)i, 0x20);
    }
}

static void find_files(const char *dir, const char *below)
{
    char path[300];

    snprintf(path, sizeof path, "%s/%s", dir, below);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        char name[100];
        if (e->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%.40s%s%.40s", below, *below ? "/" : "", e->d_name);
        if (e->d_type == DT_DIR) {
            find_files(dir, name);
        } else {
            REQUIRE(n_files < FILES_MAX);
            snprintf(files[n_files++], sizeof files[0], "%s", name);
        }
    }
    if (d)
        closedir(d);
}

static void flip(const char *dir, const struct flip *f)
{
    char path[400];
    uint8_t byte;

    snprintf(path, sizeof path, "%s/%.99s", dir, files[f->file]);
    int fd = open(path, O_RDWR);
    if (fd < 0 || pread(fd, &byte, 1, f->offset) != 1)
        abort();
    byte ^= f->mask;
    if (pwrite(fd, &byte, 1, f->offset) != 1)
        abort();
    close(fd);
}

/* In a child: flips [first, end) of this lane. *at tells the parent how far it came. */
static int run_chunk(const char *dir, size_t first, size_t end, volatile size_t *at)
{
    for (size_t i = first; i < end && atomic_load(&test_failures) < 10; i += LANES) {
        *at = i;
        snprintf(where, sizeof where, "%s byte %u ^ %02x", files[flips[i].file], flips[i].offset, flips[i].mask);
        flip(dir, &flips[i]);
        check_all(dir, true, i / LANES % 8 == 0);
        flip(dir, &flips[i]);
    }
    return atomic_load(&test_failures) ? 1 : 0;
}

static void copy(const char *from, const char *to)
{
    char command[500];

    snprintf(command, sizeof command, "rm -rf %s && cp -a %s %s", to, from, to);
    if (system(command) != 0)
        abort();
}

/* Returns how many chunks failed or crashed. */
static int run_lane(const char *base, int lane, volatile size_t *at)
{
    char dir[160], from[160];
    int failed = 0;

    snprintf(from, sizeof from, "%s/d", base);
    snprintf(dir, sizeof dir, "%s/lane%d", base, lane);
    copy(from, dir);
    for (size_t first = (size_t)lane; first < n_flips && failed < 5; first += CHUNK * LANES) {
        size_t end = first + CHUNK * LANES < n_flips ? first + CHUNK * LANES : n_flips;
        pid_t pid = fork();
        int status;
        if (pid == 0)
            _exit(run_chunk(dir, first, end, at));
        if (pid < 0 || waitpid(pid, &status, 0) < 0)
            return failed + 1;
        if (WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) > 1)) {
            const struct flip *f = &flips[*at];
            fprintf(stderr, "crash (status %x) with %s byte %u ^ %02x\n", status, files[f->file], f->offset, f->mask);
            copy(from, dir);
        }
        failed += status != 0;
    }
    return failed;
}

static int in_child(void (*fn)(const char *dir), const char *dir)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        if (setjmp(test_leave) == 0)
            fn(dir);
        _exit(atomic_load(&test_failures) ? 1 : 0);
    }
    return pid < 0 || waitpid(pid, &status, 0) < 0 ? -1 : status;
}

/* This process stays free of threads, which its children would lack. */
static void make_dataset(const char *dir)
{
    make_generation(dir, 0, FIRST);
    make_generation(dir, FIRST, ALL);
    snprintf(where, sizeof where, "no flip");
    check_all(dir, false, true);
}

TEST(every_byte)
{
    char dir[160];
    int failed = 0, status;

    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 1);
    const char *base = tmp_dir();
    volatile size_t *at = mmap(NULL, LANES * sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    snprintf(dir, sizeof dir, "%s/d", base);
    REQUIRE_EQ(in_child(make_dataset, dir), 0);
    find_files(dir, "");
    for (int i = 0; i < n_files; i++)
        plan_file(dir, i);
    printf("%zu flips in %d files\n", n_flips, n_files);
    fflush(stdout);
    for (int i = 0; i < LANES; i++)
        if (fork() == 0)
            _exit(run_lane(base, i, &at[i]));
    for (int i = 0; i < LANES; i++) {
        REQUIRE(wait(&status) > 0);
        failed += status != 0;
    }
    CHECK_EQ(failed, 0);
    free(flips);
    munmap((void *)(uintptr_t)at, LANES * sizeof *at);
}

TEST_MAIN();
