/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -ljpeg */
/*
 * bench_rrc224.c - random resized crops of ImageNet's JPEGs.
 *
 * rrc224: images/s of a loader that has its samples in DRAM and makes RandomResizedCrop(224) and a flip of them, to u8, with one decode
 * thread, against a bare full decode of the same images by libjpeg-turbo (jpeg_read_scanlines to RGB, one decompressor and one buffer for all
 * of them). rrc224/threads: the same loader with two decode threads against one. rrc224/codec: without a loader, the codec called for one
 * image after another, against the bare decode. Images: imagenet/ below LARDER_DATA (../shared/data).
 */
#include <glob.h>

#include <stdio.h>

#include <jpeglib.h>

#include "loader/prep_int.h"
#include "tests/bench/bench.h"

struct file { uint8_t *data; size_t len; };
struct images {
    struct file *file;
    size_t n;
    uint8_t *full;             /* the largest of them, decoded */
    uint64_t epoch;
    struct image_decoder *decoder;
    struct larder_cache *cache;
    struct larder_dataset *ds;
    struct jpeg_decompress_struct c;
    struct jpeg_error_mgr mgr;
};

static void read_file(const char *path, struct file *f)
{
    struct stat st;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &st) || !(f->data = malloc((size_t)st.st_size)) || read(fd, f->data, (size_t)st.st_size) != st.st_size)
        bench_die("%s: %s", path, strerror(errno));
    f->len = (size_t)st.st_size;
    close(fd);
}

static void images_open(struct images *im)
{
    char pattern[512];
    glob_t g;
    struct larder_error err;
    const char *data = getenv("LARDER_DATA");
    snprintf(pattern, sizeof(pattern), "%s/imagenet/*.JPEG", data && *data ? data : "../shared/data");
    if (glob(pattern, 0, NULL, &g))
        bench_die("%s: no images", pattern);
    im->n = g.gl_pathc;
    im->file = calloc(im->n, sizeof(*im->file));
    for (size_t i = 0; i < im->n; i++)
        read_file(g.gl_pathv[i], &im->file[i]);
    globfree(&g);
    bench_ok(image_decoder_new(&im->decoder, &err), &err);
    size_t most = 0;
    for (size_t i = 0; i < im->n; i++) {
        struct image_info info;
        bench_ok(image_open(im->decoder, im->file[i].data, im->file[i].len, &info, &err), &err);
        most = MAX(most, (size_t)info.width * info.height * 3);
    }
    im->full = malloc(most);
    im->c.err = jpeg_std_error(&im->mgr);
    jpeg_create_decompress(&im->c);
}

static double bare_decode(void *ctx)
{
    struct images *im = ctx;
    double start = bench_now();
    for (size_t i = 0; i < im->n; i++) {
        jpeg_mem_src(&im->c, im->file[i].data, im->file[i].len);
        jpeg_read_header(&im->c, TRUE);
        im->c.out_color_space = JCS_RGB;
        jpeg_start_decompress(&im->c);
        JSAMPROW rows[16];
        size_t row = (size_t)im->c.output_width * 3;
        while (im->c.output_scanline < im->c.output_height) {
            for (size_t k = 0; k < ARRAY_LEN(rows); k++)
                rows[k] = im->full + MIN(im->c.output_scanline + k, im->c.output_height - 1) * row;
            jpeg_read_scanlines(&im->c, rows, ARRAY_LEN(rows));
        }
        jpeg_finish_decompress(&im->c);
    }
    return (double)im->n / (bench_now() - start);
}

static double codec(void *ctx)
{
    struct images *im = ctx;
    struct larder_image o = {.width = 224, .flip = 0.5};
    struct larder_error err;
    uint8_t *out = aligned_alloc(64, 224 * 224 * 3);
    double start = bench_now();
    im->epoch++;
    bench_ok(transform_check(&o, "image", &err), &err);
    for (size_t i = 0; i < im->n; i++) {
        struct image_info info;
        struct geometry g;
        struct image_job job;
        bench_ok(image_open(im->decoder, im->file[i].data, im->file[i].len, &info, &err), &err);
        transform_geometry(&o, info.width, info.height, info.orientation, &(struct random_key){1, im->epoch, i, 0}, &g);
        transform_job(&o, &g, &job);
        bench_ok(image_render(im->decoder, &job, out, &err), &err);
    }
    free(out);
    return (double)im->n / (bench_now() - start);
}

/* The images as a dataset, all of it in DRAM. */
static void dataset_open(struct images *im)
{
    struct larder_field field = {.name = "image", .type = LARDER_IMAGE};
    struct larder_cache_options co = LARDER_CACHE_OPTIONS_INIT;
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    const char *path = bench_path("rrc224.larder");
    struct larder_error err;
    uint64_t bytes = 64 << 20;
    if (!bench_is_made(path)) {
        struct larder_writer *w;
        bench_ok(larder_writer_open(path, &field, 1, NULL, &w, &err), &err);
        for (uint64_t i = 0; i < im->n; i++) {
            struct larder_value v = {im->file[i].data, im->file[i].len};
            bench_ok(larder_writer_add(w, &i, sizeof(i), &v, &err), &err);
        }
        bench_ok(larder_writer_commit(w, NULL, &err), &err);
        bench_made(path);
    }
    for (size_t i = 0; i < im->n; i++)
        bytes += im->file[i].len + 4096;
    co.name = NULL;
    co.dram_bytes = bytes;
    bench_ok(larder_cache_open(&co, &im->cache, &err), &err);
    o.cache = im->cache;
    bench_ok(larder_dataset_open(path, &o, &im->ds, &err), &err);
}

static void take(struct larder_loader *ld, size_t epochs)
{
    const struct larder_batch *b;
    struct larder_error err;
    while (epochs > 0) {
        int rc = larder_loader_next(ld, &b, &err);
        if (rc == LARDER_END) {
            epochs--;
            continue;
        }
        bench_ok(rc, &err);
        larder_batch_release(b);
    }
}

static double loader(struct images *im, uint32_t threads)
{
    enum { EPOCHS = 3 };
    struct larder_output out = LARDER_OUTPUT_INIT;
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader *ld;
    struct larder_error err;
    out.field = "image";
    out.prep = LARDER_PREP_IMAGE;
    out.image.width = 224;
    out.image.flip = 0.5;
    o.outputs = &out;
    o.n_outputs = 1;
    o.batch_size = 50;
    o.seed = ++im->epoch;
    o.threads = threads;
    bench_ok(larder_loader_open(im->ds, &o, &ld, &err), &err);
    take(ld, 1);
    double start = bench_now();
    take(ld, EPOCHS);
    double t = bench_now() - start;
    larder_loader_close(ld);
    return (double)im->n * EPOCHS / t;
}

static double one_thread(void *ctx) { return loader(ctx, 1); }
static double two_threads(void *ctx) { return loader(ctx, 2); }

int main(int argc, char **argv)
{
    enum { ROUNDS = 7 };
    static const char bare[] = "full decode by libjpeg-turbo";
    struct images im = {0};
    char more[64];
    images_open(&im);
    dataset_open(&im);
    snprintf(more, sizeof(more), "\"images\": %zu", im.n);
    if (bench_wanted(argc, argv, "rrc224"))
        bench_pair("rrc224", one_thread, bare_decode, bare, "images/s", ROUNDS, &im, more);
    if (bench_wanted(argc, argv, "rrc224/threads"))
        bench_pair("rrc224/threads", two_threads, one_thread, "one thread", "images/s", ROUNDS, &im, more);
    if (bench_wanted(argc, argv, "rrc224/codec"))
        bench_pair("rrc224/codec", codec, bare_decode, bare, "images/s", ROUNDS, &im, more);
    larder_dataset_close(im.ds);
    larder_cache_close(im.cache);
    return 0;
}
