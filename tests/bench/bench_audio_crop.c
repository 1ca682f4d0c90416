/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -lsndfile -lsoxr -lm */
/*
 * bench_audio_crop.c - random crops of sounds, from memory.
 *
 * audio_crop/flac, /vorbis, /wav: crops of 1 s at 16 kHz a second, out of sounds of 10 s in stereo at 44.1 kHz, mixed to one channel, by one
 * thread; against decoding all of each by libsndfile, mixing, and resampling all of it by libsoxr (HQ). The sounds are generated.
 */
#include <math.h>

#include <sndfile.h>
#include <soxr.h>

#include "store/codec/codec.h"
#include "tests/bench/bench.h"

enum { FILES = 8, RATE = 44100, FRAMES = 10 * RATE, TO = 16000 };

struct memory { uint8_t *data; sf_count_t len, at; };
struct sounds {
    struct memory file[FILES];
    struct audio_decoder *decoder;
    uint64_t rng;
    float *both, *mono, *made;
};

static sf_count_t mem_len(void *u) { return ((struct memory *)u)->len; }
static sf_count_t mem_tell(void *u) { return ((struct memory *)u)->at; }
static sf_count_t mem_seek(sf_count_t to, int whence, void *u)
{
    struct memory *m = u;
    return m->at = to + (whence == SEEK_CUR ? m->at : whence == SEEK_END ? m->len : 0);
}
static sf_count_t mem_read(void *out, sf_count_t n, void *u)
{
    struct memory *m = u;
    n = MIN(n, m->len - m->at);
    memcpy(out, m->data + m->at, (size_t)n);
    m->at += n;
    return n;
}
static sf_count_t mem_write(const void *in, sf_count_t n, void *u)
{
    struct memory *m = u;
    if (m->at + n > m->len && !(m->data = realloc(m->data, (size_t)(m->len = m->at + n))))
        bench_die("no memory");
    memcpy(m->data + m->at, in, (size_t)n);
    m->at += n;
    return n;
}
static SF_VIRTUAL_IO memory_io = {mem_len, mem_seek, mem_read, mem_write, mem_tell};

static void make(struct sounds *s, int format)
{
    for (int i = 0; i < FILES; i++) {
        SF_INFO info = {.samplerate = RATE, .channels = 2, .format = format};
        for (uint32_t k = 0; k < 2 * FRAMES; k++)
            s->both[k] = (float)(0.3 * sin(k / (9.0 + i + k % 2)) + 0.1 * sin(k * 1e-6 * k) + 0.02 * (double)(bench_rng(&s->rng) >> 40) / (1 << 24));
        s->file[i].len = s->file[i].at = 0;
        SNDFILE *f = sf_open_virtual(&memory_io, SFM_WRITE, &info, &s->file[i]);
        if (!f)
            bench_die("libsndfile does not write this: %s", sf_strerror(NULL));
        for (sf_count_t at = 0; at < FRAMES; at += 4096) /* its Vorbis encoder takes little at a time */
            sf_writef_float(f, s->both + 2 * at, MIN(4096, FRAMES - at));
        sf_close(f);
    }
}

static double crop(void *ctx)
{
    struct sounds *s = ctx;
    struct larder_error err;
    double start = bench_now();
    for (int i = 0; i < FILES; i++) {
        struct audio_info info;
        struct audio_job j = {.frames = TO, .rate = TO, .channels = 1};
        uint32_t length;
        bench_ok(audio_open(s->decoder, s->file[i].data, (size_t)s->file[i].len, &info, &err), &err);
        j.start = bench_rng(&s->rng) % (info.frames - audio_span(&info, &j));
        bench_ok(audio_render(s->decoder, &j, s->made, &length, &err), &err);
    }
    return FILES / (bench_now() - start);
}

static double whole(void *ctx)
{
    struct sounds *s = ctx;
    soxr_quality_spec_t hq = soxr_quality_spec(SOXR_HQ, 0);
    double start = bench_now();
    for (int i = 0; i < FILES; i++) {
        SF_INFO info = {0};
        size_t used, made;
        s->file[i].at = 0;
        SNDFILE *f = sf_open_virtual(&memory_io, SFM_READ, &info, &s->file[i]);
        sf_count_t n = f ? sf_readf_float(f, s->both, FRAMES) : 0;
        sf_close(f);
        for (sf_count_t k = 0; k < n; k++)
            s->mono[k] = (s->both[2 * k] + s->both[2 * k + 1]) / 2;
        if (n < FRAMES || soxr_oneshot(RATE, TO, 1, s->mono, (size_t)n, &used, s->made, 10 * TO, &made, NULL, &hq, NULL))
            bench_die("a sound of %lld frames", (long long)n);
    }
    return FILES / (bench_now() - start);
}

int main(int argc, char **argv)
{
    static const struct { const char *name; int format; } kinds[] = {
        {"audio_crop/flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_16}, {"audio_crop/vorbis", SF_FORMAT_OGG | SF_FORMAT_VORBIS},
        {"audio_crop/wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16},
    };
    enum { ROUNDS = 9 };
    struct sounds s = {.rng = 5, .both = malloc(2 * FRAMES * sizeof(float)), .mono = malloc(FRAMES * sizeof(float)), .made = malloc(10 * TO * sizeof(float))};
    struct larder_error err;
    if (!s.both || !s.mono || !s.made)
        bench_die("no memory");
    bench_ok(audio_decoder_new(&s.decoder, &err), &err);
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        if (!bench_wanted(argc, argv, kinds[k].name))
            continue;
        make(&s, kinds[k].format);
        bench_pair(kinds[k].name, crop, whole, "libsndfile and libsoxr over all of it", "crops/s", ROUNDS, &s, "\"seconds\": 10, \"crop\": 1");
    }
    audio_decoder_free(s.decoder);
    for (int i = 0; i < FILES; i++)
        free(s.file[i].data);
    free(s.both);
    free(s.mono);
    free(s.made);
    return 0;
}
