/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_decoded.c - random resized crops of ImageNet's JPEGs by a loader whose decoded cache has all of them.
 *
 * images/s of RandomResizedCrop(224) and a flip to u8, batches of 30, one decode thread, against the same loader without the decoded
 * cache: records from DRAM either way. decoded/compressed: kept compressed. `bytes` an image is what the cache takes, `record_bytes` what
 * the JPEG does, `saved_us` what decoding took once. What was made ahead before a measurement is taken and not counted.
 * Images: imagenet/ below LARDER_DATA (../shared/data).
 */
#include <glob.h>

#include "tests/bench/bench.h"

enum { BATCH = 30, AHEAD = 12, ROUNDS = 7, SIDES = 3 };

struct ctx {
    struct larder_cache *cache[SIDES];
    struct larder_dataset *ds[SIDES];
    struct larder_loader *ld[SIDES]; /* without, with, compressed */
    size_t images;
    int which;                       /* 1, 2: the one against 0 */
};

static void add(struct larder_writer *w, const char *path)
{
    struct larder_error err;
    struct stat st;
    int fd = open(path, O_RDONLY);
    char *data = NULL;

    if (fd < 0 || fstat(fd, &st) || !(data = malloc((size_t)st.st_size)) || read(fd, data, (size_t)st.st_size) != st.st_size)
        bench_die("%s: %s", path, strerror(errno));
    close(fd);
    struct larder_value v = {data, (size_t)st.st_size};
    bench_ok(larder_writer_add(w, path, strlen(path), &v, &err), &err);
    free(data);
}

static void make(const char *path)
{
    struct larder_field field = {.name = "image", .type = LARDER_IMAGE};
    struct larder_writer *w;
    struct larder_error err;
    const char *data = getenv("LARDER_DATA");
    char pattern[512];
    glob_t g;

    snprintf(pattern, sizeof(pattern), "%s/imagenet/*.JPEG", data && *data ? data : "../shared/data");
    if (glob(pattern, 0, NULL, &g))
        bench_die("%s: no images", pattern);
    bench_ok(larder_writer_open(path, &field, 1, NULL, &w, &err), &err);
    for (size_t i = 0; i < g.gl_pathc; i++)
        add(w, g.gl_pathv[i]);
    bench_ok(larder_writer_commit(w, NULL, &err), &err);
    globfree(&g);
}

static void take(struct larder_loader *ld, size_t batches)
{
    const struct larder_batch *b;
    struct larder_error err;

    for (size_t i = 0; i < batches;) {
        int rc = larder_loader_next(ld, &b, &err);
        if (rc == LARDER_END)
            continue;
        bench_ok(rc, &err);
        larder_batch_release(b);
        i++;
    }
}

static void open_side(struct ctx *c, int side, const char *path)
{
    struct larder_cache_options co = LARDER_CACHE_OPTIONS_INIT;
    struct larder_dataset_options so = LARDER_DATASET_OPTIONS_INIT;
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_output out = LARDER_OUTPUT_INIT;
    struct larder_dataset_info in = {.struct_size = sizeof(in)};
    struct larder_error err;

    co.name = NULL;
    co.dram_bytes = 256 << 20;
    bench_ok(larder_cache_open(&co, &c->cache[side], &err), &err);
    so.cache = c->cache[side];
    bench_ok(larder_dataset_open(path, &so, &c->ds[side], &err), &err);
    bench_ok(larder_dataset_info(c->ds[side], &in, &err), &err);
    c->images = in.samples;
    out.field = "image";
    out.prep = LARDER_PREP_IMAGE;
    out.image.width = 224;
    out.image.flip = 0.5;
    o.batch_size = BATCH;
    o.outputs = &out;
    o.n_outputs = 1;
    o.threads = 1;
    o.staging_bytes = 48 << 20;
    o.decoded_bytes = side ? 256 << 20 : 0;
    o.decoded_compress = side == 2;
    bench_ok(larder_loader_open(c->ds[side], &o, &c->ld[side], &err), &err);
    take(c->ld[side], 2 * (c->images / BATCH + 1) + 2); /* two epochs: everything is where it will stay */
}

/* Images a second over so many epochs. */
static double rate(const struct ctx *c, int side, size_t epochs)
{
    size_t batches = epochs * c->images / BATCH;

    take(c->ld[side], AHEAD);
    double start = bench_now();
    take(c->ld[side], batches);
    return (double)(batches * BATCH) / (bench_now() - start);
}

static double without(void *ctx) { return rate(ctx, 0, 1); }
static double with(void *ctx) { return rate(ctx, ((struct ctx *)ctx)->which, ((struct ctx *)ctx)->which == 1 ? 10 : 3); }

/* What the cache takes and saves. */
static void price(const struct ctx *c, int side, char *text, size_t cap)
{
    struct larder_loader_stats s = {.struct_size = sizeof(s)};
    struct larder_dataset_info in = {.struct_size = sizeof(in)};
    struct larder_error err;

    bench_ok(larder_loader_stats(c->ld[side], &s, &err), &err);
    bench_ok(larder_dataset_info(c->ds[side], &in, &err), &err);
    if (s.decoded.misses || s.decoded.entries != in.samples)
        bench_die("the decoded cache is not full: %llu of %llu images", (unsigned long long)s.decoded.entries, (unsigned long long)in.samples);
    snprintf(text, cap, "\"images\": %zu, \"bytes\": %llu, \"record_bytes\": %llu, \"saved_us\": %.1f", c->images,
             (unsigned long long)(s.decoded.used_bytes / in.samples), (unsigned long long)(in.stored_bytes / in.samples),
             (double)s.decoded.saved_ns / 1e3 / (double)(s.decoded.hits + 1));
}

int main(int argc, char **argv)
{
    static const char *const names[SIDES] = {NULL, "decoded", "decoded/compressed"};
    const char *path = bench_path("decoded");
    struct ctx c = {.images = 0};
    char more[256];

    if (!bench_is_made(path)) {
        make(path);
        bench_made(path);
    }
    open_side(&c, 0, path);
    for (c.which = 1; c.which < SIDES; c.which++) {
        if (!bench_wanted(argc, argv, names[c.which]))
            continue;
        open_side(&c, c.which, path);
        take(c.ld[c.which], 1);
        price(&c, c.which, more, sizeof(more));
        bench_pair(names[c.which], with, without, "rrc224", "images/s", ROUNDS, &c, more);
    }
    for (int i = 0; i < SIDES; i++) {
        larder_loader_close(c.ld[i]);
        larder_dataset_close(c.ds[i]);
        larder_cache_close(c.cache[i]);
    }
    return 0;
}
