/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -ljpeg */
/*
 * mkjpegs.c - makes a folder of JPEG images: mkjpegs FOLDER [COUNT [SEED]].
 *
 * Ten class folders, COUNT (2,000) images of 60 to 110 kB between them, 500 x 375 like the average photograph of
 * ImageNet; some are upright, a few grey. The same seed gives the same bytes. An image is a colour gradient, smooth value
 * noise of a few octaves and some fine grain; the grain's strength and the quality set the size. To be quick, each
 * thread makes a handful of canvases and cuts every image out of one of them at another place, with other colours.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jpeglib.h>

enum { CANVAS = 1024, N_CANVAS = 6 };

static const char *const classes[10] = {"beach", "bread", "bridge",  "cathedral", "clock",
                                        "forest", "harbor", "lemon", "owl",       "tractor"};

struct job {
    const char *folder;
    uint64_t seed;
    unsigned count;
    atomic_uint next;
    atomic_ullong bytes;
    atomic_int failed;
    uint8_t *canvas[N_CANVAS]; /* CANVAS x CANVAS, one channel; read only once the threads run */
};

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t rng(uint64_t *state)
{
    return mix(*state += 0x9e3779b97f4a7c15u);
}

static int lattice(uint64_t seed, int x, int y)
{
    return (int)(mix(seed ^ ((uint64_t)x * 0x9e3779b97f4a7c15u) ^ ((uint64_t)y * 0xc2b2ae3d27d4eb4fu)) & 255);
}

/* Value noise: bilinear between lattice points, octaves of half the period and half the strength. */
static void paint(uint8_t *canvas, uint64_t seed, int period)
{
    uint64_t state = seed;

    for (int y = 0; y < CANVAS; y++) {
        for (int x = 0; x < CANVAS; x++) {
            int sum = 0, weight = 16;

            for (int p = period, octave = 0; octave < 4; octave++, p /= 2, weight /= 2) {
                int gx = x / p, gy = y / p, fx = x % p * 256 / p, fy = y % p * 256 / p;
                int a = lattice(seed + (unsigned)octave, gx, gy), b = lattice(seed + (unsigned)octave, gx + 1, gy);
                int c = lattice(seed + (unsigned)octave, gx, gy + 1), d = lattice(seed + (unsigned)octave, gx + 1, gy + 1);
                int top = a * (256 - fx) + b * fx, low = c * (256 - fx) + d * fx;

                sum += (top / 256 * (256 - fy) + low / 256 * fy) / 256 * weight;
            }
            canvas[y * CANVAS + x] = (uint8_t)(sum / 30 * 220 / 256 + (int)(rng(&state) >> 59));
        }
    }
}

struct picture {
    unsigned width, height;
    int grey, quality, grain;
    const uint8_t *shape, *detail;
    int r0, g0, b0, r1, g1, b1; /* the two colours of the gradient */
};

static void picture_row(const struct picture *p, unsigned y, uint64_t *state, uint8_t *row)
{
    const uint8_t *shape = p->shape + y * CANVAS, *detail = p->detail + y * CANVAS;
    uint64_t noise = 0;

    for (unsigned x = 0; x < p->width; x++) {
        int t = (shape[x] + (int)(y * 255 / p->height)) / 2, n;

        if (x % 8 == 0)
            noise = rng(state);
        n = ((int)(noise >> (x % 8 * 8) & 255) - 128) * p->grain / 128 + detail[x] / 3 - 40;
        if (p->grey) {
            int v = t + n;
            row[x] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
            continue;
        }
        int c[3] = {p->r0 + (p->r1 - p->r0) * t / 255 + n, p->g0 + (p->g1 - p->g0) * t / 255 + n,
                    p->b0 + (p->b1 - p->b0) * t / 255 + n / 2};
        for (int k = 0; k < 3; k++)
            row[x * 3 + (unsigned)k] = (uint8_t)(c[k] < 0 ? 0 : c[k] > 255 ? 255 : c[k]);
    }
}

static unsigned long encode(const struct picture *p, uint64_t *state, unsigned char **out)
{
    struct jpeg_compress_struct cinfo;
    struct jpeg_error_mgr jerr;
    uint8_t row[CANVAS * 3], *rows[1] = {row};
    unsigned long len = 0;

    *out = NULL;
    cinfo.err = jpeg_std_error(&jerr);
    jpeg_create_compress(&cinfo);
    jpeg_mem_dest(&cinfo, out, &len);
    cinfo.image_width = p->width;
    cinfo.image_height = p->height;
    cinfo.input_components = p->grey ? 1 : 3;
    cinfo.in_color_space = p->grey ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&cinfo);
    jpeg_set_quality(&cinfo, p->quality, TRUE);
    jpeg_start_compress(&cinfo, TRUE);
    for (unsigned y = 0; y < p->height; y++) {
        picture_row(p, y, state, row);
        jpeg_write_scanlines(&cinfo, rows, 1);
    }
    jpeg_finish_compress(&cinfo);
    jpeg_destroy_compress(&cinfo);
    return len;
}

static int write_file(const char *path, const void *data, size_t len)
{
    FILE *f = fopen(path, "wb");
    int bad = !f || fwrite(data, 1, len, f) != len;

    if (f && fclose(f) != 0)
        bad = 1;
    if (bad)
        fprintf(stderr, "mkjpegs: %s: %s\n", path, strerror(errno));
    return bad;
}

static int make_one(struct job *job, unsigned i)
{
    uint64_t state = job->seed * 0x9e3779b97f4a7c15u + i;
    unsigned upright = rng(&state) % 4 == 0;
    unsigned class = i % 10;
    struct picture p = {.width = upright ? 375 : 500, .height = upright ? 500 : 375};
    unsigned char *jpeg;
    unsigned long len;
    char path[4096];
    int bad;

    p.grey = rng(&state) % 50 == 0;
    p.quality = 82 + (int)(rng(&state) % 10);
    p.grain = 34 + (int)(rng(&state) % 20);
    if (p.grey)
        p.grain += 20;
    p.shape = job->canvas[class % 3] + rng(&state) % (CANVAS - 500) * CANVAS + rng(&state) % (CANVAS - 500);
    p.detail = job->canvas[3 + class % 3] + rng(&state) % (CANVAS - 500) * CANVAS + rng(&state) % (CANVAS - 500);
    p.r0 = (int)(rng(&state) % 128), p.g0 = (int)(rng(&state) % 128), p.b0 = (int)(rng(&state) % 128);
    p.r1 = 128 + (int)(class * 25 % 128), p.g1 = 128 + (int)(class * 57 % 128), p.b1 = 128 + (int)(class * 91 % 128);
    len = encode(&p, &state, &jpeg);
    snprintf(path, sizeof path, "%s/%s/%s_%05u.jpg", job->folder, classes[class], classes[class], i);
    bad = write_file(path, jpeg, len);
    free(jpeg);
    atomic_fetch_add(&job->bytes, len);
    return bad;
}

static void *worker(void *arg)
{
    struct job *job = arg;
    unsigned i;

    while ((i = atomic_fetch_add(&job->next, 1)) < job->count && !atomic_load(&job->failed))
        if (make_one(job, i))
            atomic_store(&job->failed, 1);
    return NULL;
}

static int make_folders(const char *folder)
{
    char path[4096];

    for (int c = -1; c < 10; c++) {
        snprintf(path, sizeof path, "%s%s%s", folder, c < 0 ? "" : "/", c < 0 ? "" : classes[c]);
        if (mkdir(path, 0777) != 0 && errno != EEXIST) {
            fprintf(stderr, "mkjpegs: %s: %s\n", path, strerror(errno));
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct job job = {.count = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 2000,
                      .seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1};
    pthread_t threads[64];
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    int n = cpus < 1 ? 1 : cpus > 64 ? 64 : (int)cpus, started = 0;

    if (argc < 2 || argc > 4 || job.count == 0) {
        fprintf(stderr, "usage: mkjpegs FOLDER [COUNT [SEED]]\n");
        return 2;
    }
    job.folder = argv[1];
    if (make_folders(job.folder))
        return 1;
    for (int i = 0; i < N_CANVAS; i++) {
        job.canvas[i] = malloc(CANVAS * CANVAS);
        if (!job.canvas[i])
            return 1;
        paint(job.canvas[i], job.seed * 100 + (unsigned)i, i < 3 ? 256 : 32);
    }
    while (started < n && pthread_create(&threads[started], NULL, worker, &job) == 0)
        started++;
    if (started == 0)
        worker(&job);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < N_CANVAS; i++)
        free(job.canvas[i]);
    if (atomic_load(&job.failed))
        return 1;
    printf("%u images, %.1f MB, below %s\n", job.count, (double)atomic_load(&job.bytes) / 1e6, job.folder);
    return 0;
}
