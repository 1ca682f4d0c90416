/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -ljpeg */
/*
 * bench_rrc224.c - random resized crops of ImageNet's JPEGs, from memory.
 *
 * rrc224: images/s of RandomResizedCrop(224) and a flip to u8 by one thread, against a bare full decode of the same images by
 * libjpeg-turbo (jpeg_read_scanlines to RGB, one decompressor for all of them). rrc224/threads: two threads that share the images, against
 * one. Images: imagenet/ below LARDER_DATA (../shared/data).
 */
#include <glob.h>
#include <pthread.h>
#include <setjmp.h>

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
    struct image_decoder *decoder[2];
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
    for (int t = 0; t < 2; t++)
        bench_ok(image_decoder_new(&im->decoder[t], &err), &err);
    size_t most = 0;
    for (size_t i = 0; i < im->n; i++) {
        struct image_info info;
        bench_ok(image_open(im->decoder[0], im->file[i].data, im->file[i].len, &info, &err), &err);
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

/* Every `step`-th image from `first`. */
static void crops(struct images *im, struct image_decoder *d, size_t first, size_t step)
{
    struct larder_image o = {.width = 224, .flip = 0.5};
    struct larder_error err;
    uint8_t *out = aligned_alloc(64, 224 * 224 * 3);
    bench_ok(transform_check(&o, "image", &err), &err);
    for (size_t i = first; i < im->n; i += step) {
        struct image_info info;
        struct geometry g;
        struct image_job job;
        bench_ok(image_open(d, im->file[i].data, im->file[i].len, &info, &err), &err);
        transform_geometry(&o, info.width, info.height, info.orientation, &(struct random_key){1, im->epoch, i, 0}, &g);
        transform_job(&o, &g, &job);
        bench_ok(image_render(d, &job, out, &err), &err);
    }
    free(out);
}

static double one_thread(void *ctx)
{
    struct images *im = ctx;
    double start = bench_now();
    im->epoch++;
    crops(im, im->decoder[0], 0, 1);
    return (double)im->n / (bench_now() - start);
}

static void *second_thread(void *ctx)
{
    struct images *im = ctx;
    crops(im, im->decoder[1], 1, 2);
    return NULL;
}

static double two_threads(void *ctx)
{
    struct images *im = ctx;
    pthread_t t;
    double start = bench_now();
    im->epoch++;
    if (pthread_create(&t, NULL, second_thread, im))
        bench_die("no thread");
    crops(im, im->decoder[0], 0, 2);
    pthread_join(t, NULL);
    return (double)im->n / (bench_now() - start);
}

int main(int argc, char **argv)
{
    enum { ROUNDS = 9 };
    struct images im = {0};
    char more[64];
    images_open(&im);
    snprintf(more, sizeof(more), "\"images\": %zu", im.n);
    if (bench_wanted(argc, argv, "rrc224"))
        bench_pair("rrc224", one_thread, bare_decode, "full decode by libjpeg-turbo", "images/s", ROUNDS, &im, more);
    if (bench_wanted(argc, argv, "rrc224/threads"))
        bench_pair("rrc224/threads", two_threads, one_thread, "one thread", "images/s", ROUNDS, &im, more);
    return 0;
}
