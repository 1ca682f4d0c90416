/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -lsndfile -lm */
/* test_audio.c - sounds: samples as stored, crops, mixing, other rates, damaged bytes. What is compared with is computed here. */
#include "tests/unit/test.h"

#include <math.h>
#include <pthread.h>

#include <sndfile.h>

#include "store/codec/codec.h"

#define PI 3.14159265358979323846

/* ---- a file in memory, written by libsndfile ---- */

struct memory { uint8_t *data; sf_count_t len, at; };

static sf_count_t mem_len(void *u) { return ((struct memory *)u)->len; }
static sf_count_t mem_tell(void *u) { return ((struct memory *)u)->at; }
static sf_count_t mem_read(void *out, sf_count_t n, void *u)
{
    struct memory *m = u;
    n = MIN(n, m->len - m->at);
    memcpy(out, m->data + m->at, (size_t)n);
    m->at += n;
    return n;
}
static sf_count_t mem_seek(sf_count_t to, int whence, void *u)
{
    struct memory *m = u;
    return m->at = to + (whence == SEEK_CUR ? m->at : whence == SEEK_END ? m->len : 0);
}
static sf_count_t mem_write(const void *in, sf_count_t n, void *u)
{
    struct memory *m = u;
    if (m->at + n > m->len) {
        m->data = realloc(m->data, (size_t)(m->at + n));
        m->len = m->at + n;
    }
    memcpy(m->data + m->at, in, (size_t)n);
    m->at += n;
    return n;
}

/* Owned. samples: interleaved; those of 16 bits are exact (libsndfile would scale floats by 32,767). */
static uint8_t *encode(int format, uint32_t rate, uint32_t channels, const float *samples, size_t frames, size_t *len)
{
    SF_VIRTUAL_IO io = {mem_len, mem_seek, mem_read, mem_write, mem_tell};
    SF_INFO info = {.samplerate = (int)rate, .channels = (int)channels, .format = format};
    struct memory m = {0};
    SNDFILE *f = sf_open_virtual(&io, SFM_WRITE, &info, &m);
    REQUIRE(f != NULL);
    AUTO_FREE int *ints = malloc(frames * channels * sizeof(*ints) + 1);
    for (size_t i = 0; i < frames * channels; i++)
        ints[i] = (int)fmax(-2147483648.0, fmin(samples[i] * 2147483648.0, 2147483647.0));
    bool floats = (format & SF_FORMAT_SUBMASK) == SF_FORMAT_FLOAT || (format & SF_FORMAT_TYPEMASK) == SF_FORMAT_OGG;
    sf_count_t n = (sf_count_t)frames;
    CHECK_EQ(floats ? sf_writef_float(f, samples, n) : sf_writef_int(f, ints, n), n);
    sf_close(f);
    *len = (size_t)m.len;
    return m.data;
}

enum { WAV16 = SF_FORMAT_WAV | SF_FORMAT_PCM_16, WAV24 = SF_FORMAT_WAV | SF_FORMAT_PCM_24, WAVF = SF_FORMAT_WAV | SF_FORMAT_FLOAT,
       FLAC16 = SF_FORMAT_FLAC | SF_FORMAT_PCM_16, FLAC24 = SF_FORMAT_FLAC | SF_FORMAT_PCM_24, VORBIS = SF_FORMAT_OGG | SF_FORMAT_VORBIS };

/* 16-bit values that no two frames or channels share for long. */
static int16_t value_at(size_t frame, uint32_t channel) { return (int16_t)(((frame * 2654435761u) >> 7) + channel * 977); }

static float *make(size_t frames, uint32_t channels)
{
    float *p = malloc(frames * channels * sizeof(*p) + 1);
    for (size_t i = 0; i < frames; i++)
        for (uint32_t c = 0; c < channels; c++)
            p[i * channels + c] = value_at(i, c) / 32768.0f;
    return p;
}

struct sound { struct audio_decoder *d; struct audio_info info; };

static void sound_open(struct sound *s, const uint8_t *data, size_t len)
{
    struct larder_error err;
    REQUIRE_OK(audio_decoder_new(&s->d, &err), &err);
    REQUIRE_OK(audio_open(s->d, data, len, &s->info, &err), &err);
}

TEST(values_as_stored)
{
    static const int formats[] = {WAV16, WAV24, WAVF, FLAC16, FLAC24, SF_FORMAT_AIFF | SF_FORMAT_PCM_16};
    enum { N = 20000 };
    AUTO_FREE float *in = make(N, 1);
    for (size_t k = 0; k < ARRAY_LEN(formats); k++) {
        size_t len;
        AUTO_FREE uint8_t *file = encode(formats[k], 16000, 1, in, N, &len);
        struct sound s;
        struct larder_error err;
        uint32_t length;
        sound_open(&s, file, len);
        CHECK_EQ(s.info.rate, 16000);
        CHECK_EQ(s.info.channels, 1);
        CHECK_EQ(s.info.frames, N);
        static const struct { uint32_t start, frames; } crops[] = {{0, N}, {0, 10}, {12345, 3000}, {19990, 30}, {N, 5}, {7, 1}};
        for (size_t q = 0; q < ARRAY_LEN(crops); q++) {
            uint32_t start = crops[q].start, frames = crops[q].frames, there = MIN(frames, N - start);
            struct audio_job j = {.start = start, .frames = frames, .channels = 1};
            AUTO_FREE float *out = malloc(frames * 4);
            AUTO_FREE int16_t *ints = malloc(frames * 2);
            CHECK_OK(audio_render(s.d, &j, out, &length, &err), &err);
            CHECK_EQ(length, there);
            j.dtype = AUDIO_I16;
            CHECK_EQ(audio_job_bytes(&j), frames * 2);
            CHECK_OK(audio_render(s.d, &j, ints, &length, &err), &err);
            size_t bad = 0;
            for (uint32_t i = 0; i < frames; i++) {
                int16_t want = i < there ? value_at(start + i, 0) : 0;
                bad += out[i] != want / 32768.0f || ints[i] != want;
            }
            CHECK_EQ(bad, 0);
        }
        audio_decoder_free(s.d);
    }
}

TEST(channels)
{
    enum { N = 5000 };
    AUTO_FREE float *in = make(N, 2);
    size_t len, mono_len;
    AUTO_FREE uint8_t *file = encode(WAV16, 8000, 2, in, N, &len);
    AUTO_FREE uint8_t *mono = encode(FLAC16, 8000, 1, in, N, &mono_len);
    struct sound s;
    struct larder_error err;
    uint32_t length;
    AUTO_FREE float *out = malloc(3 * N * 4);
    sound_open(&s, file, len);
    struct audio_job j = {.start = 100, .frames = 1000, .channels = 2};
    CHECK_OK(audio_render(s.d, &j, out, &length, &err), &err);
    size_t bad = 0;
    for (uint32_t c = 0; c < 2; c++)
        for (uint32_t i = 0; i < 1000; i++)
            bad += out[c * 1000 + i] != value_at(100 + i, c) / 32768.0f;
    j.channels = 1;
    CHECK_OK(audio_render(s.d, &j, out, &length, &err), &err);
    for (uint32_t i = 0; i < 1000; i++)
        bad += out[i] != (value_at(100 + i, 0) + value_at(100 + i, 1)) / 65536.0f;
    CHECK_EQ(bad, 0);
    j.channels = 3;
    CHECK_ERR(audio_render(s.d, &j, out, &length, &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "a sound of 2 channels, where 3 are wanted");
    REQUIRE_OK(audio_open(s.d, mono, mono_len, &s.info, &err), &err);
    CHECK_OK(audio_render(s.d, &j, out, &length, &err), &err); /* one is repeated */
    CHECK_MEM(out, out + 1000, 4000);
    CHECK_MEM(out, out + 2000, 4000);
    CHECK(out[0] == in[100] && out[999] == in[1099]);
    audio_decoder_free(s.d);
}

/* A crop of a lossy sound is where it is in the whole. */
static void lossy_crops(int format)
{
    enum { N = 60000 };
    AUTO_FREE float *in = malloc(N * 4), *whole = malloc(N * 4), *part = malloc(4000 * 4);
    for (size_t i = 0; i < N; i++)
        in[i] = (float)(0.4 * sin(2 * PI * 440 * (double)i / 16000) + 0.2 * sin(2 * PI * 3000 * (double)i / 16000 * (1 + (double)i / N)));
    size_t len;
    AUTO_FREE uint8_t *file = encode(format, 16000, 1, in, N, &len);
    struct sound s;
    struct larder_error err;
    uint32_t length;
    sound_open(&s, file, len);
    CHECK_EQ(s.info.frames, N);
    struct audio_job j = {.frames = N, .channels = 1};
    CHECK_OK(audio_render(s.d, &j, whole, &length, &err), &err);
    CHECK_EQ(length, N);
    double worst = 0;
    for (uint32_t start = 1; start < N - 4000; start += 9973) {
        j = (struct audio_job){.start = start, .frames = 4000, .channels = 1};
        CHECK_OK(audio_render(s.d, &j, part, &length, &err), &err);
        CHECK_EQ(length, 4000);
        for (uint32_t i = 0; i < 4000; i++)
            worst = fmax(worst, fabs(part[i] - whole[start + i]));
    }
    CHECK(worst < 1e-5);
    audio_decoder_free(s.d);
}

TEST(vorbis_crops) { lossy_crops(VORBIS); }
TEST(opus_crops) { lossy_crops(SF_FORMAT_OGG | SF_FORMAT_OPUS); }
TEST(mp3_crops) { lossy_crops(SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III); }

static float *tone(double hz, uint32_t rate, size_t frames)
{
    float *p = malloc(frames * 4);
    for (size_t i = 0; i < frames; i++)
        p[i] = (float)(0.5 * sin(2 * PI * hz * (double)i / rate));
    return p;
}

/* A tone is that tone at another rate, but for the filter's 0.01 dB; one that does not fit there is gone. */
TEST(resampled_tones)
{
    static const struct { uint32_t from, to; double hz; bool fits; } cases[] = {
        {44100, 16000, 1000, true}, {8000, 16000, 3000, true},  {48000, 44100, 15000, true},  {22050, 16000, 6500, true}, {16000, 44101, 5000, true},
        {44100, 16000, 9000, false}, {48000, 8000, 5000, false}, {16000, 8000, 4600, false}, {768000, 4000, 1700, true}, {4000, 768000, 1500, true},
    };
    for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
        uint32_t from = cases[k].from, to = cases[k].to, n = from, length;
        AUTO_FREE float *in = tone(cases[k].hz, from, n);
        size_t len;
        AUTO_FREE uint8_t *file = encode(WAVF, from, 1, in, n, &len);
        struct sound s;
        struct larder_error err;
        sound_open(&s, file, len);
        struct audio_job j = {.frames = to + 100, .channels = 1, .rate = to};
        AUTO_FREE float *out = malloc(audio_job_bytes(&j));
        CHECK_OK(audio_render(s.d, &j, out, &length, &err), &err);
        CHECK_EQ(length, to);
        double worst = 0;
        for (uint32_t i = to / 4; i < to / 4 * 3; i++) { /* a tone that begins is no tone */
            double want = cases[k].fits ? 0.5 * sin(2 * PI * cases[k].hz * i / to) : 0;
            worst = fmax(worst, fabs(out[i] - want));
        }
        CHECK(worst < 5e-4);
        if (worst >= 5e-4)
            printf("%u -> %u Hz, %.0f Hz: %g\n", from, to, cases[k].hz, worst);
        for (uint32_t i = to; i < to + 100; i++)
            CHECK(out[i] == 0);
        audio_decoder_free(s.d);
    }
}

/* Wherever a crop begins, it is what the whole has there. */
TEST(resampled_crops)
{
    static const struct { uint32_t from, to; } rates[] = {{44100, 16000}, {8000, 16000}, {16000, 8000}, {44100, 48000}};
    enum { N = 30000 };
    AUTO_FREE float *in = make(N, 2);
    for (size_t k = 0; k < ARRAY_LEN(rates); k++) {
        uint32_t from = rates[k].from, to = rates[k].to, g = from == 8000 || to == 8000 ? 8000 : 100, length;
        size_t len;
        if (to == 48000)
            g = 300;
        AUTO_FREE uint8_t *file = encode(WAV16, from, 2, in, N, &len);
        struct sound s;
        struct larder_error err;
        sound_open(&s, file, len);
        uint32_t all = (uint32_t)((uint64_t)N * to / from), in_step = from / g, out_step = to / g;
        struct audio_job j = {.frames = all, .channels = 2, .rate = to};
        AUTO_FREE float *whole = malloc(audio_job_bytes(&j));
        CHECK_OK(audio_render(s.d, &j, whole, &length, &err), &err);
        CHECK_EQ(length, all);
        double worst = 0;
        for (uint32_t step = 0; step * in_step < N; step += 1 + 2000 / in_step) {
            struct audio_job part = {.start = (uint64_t)step * in_step, .frames = 2000, .channels = 2, .rate = to};
            AUTO_FREE float *out = malloc(audio_job_bytes(&part));
            CHECK_OK(audio_render(s.d, &part, out, &length, &err), &err);
            uint32_t first = step * out_step;
            CHECK(length >= MIN(2000, all - first) - (all - first < 2000) && length <= 2000);
            for (uint32_t c = 0; c < 2; c++)
                for (uint32_t i = 0; i < MIN(length, all - first); i++)
                    worst = fmax(worst, fabs(out[c * 2000 + i] - whole[c * all + first + i]));
            CHECK(audio_span(&s.info, &part) == (2000ull * from + to - 1) / to);
        }
        CHECK(worst < 1e-4);
        if (worst >= 1e-4)
            printf("%u -> %u Hz: %g\n", from, to, worst);
        audio_decoder_free(s.d);
    }
}

TEST(same_bytes_same_result)
{
    enum { N = 20000 };
    AUTO_FREE float *in = make(N, 1);
    size_t len;
    AUTO_FREE uint8_t *file = encode(FLAC16, 22050, 1, in, N, &len);
    struct audio_job j = {.start = 3333, .frames = 4000, .channels = 1, .rate = 16000, .dtype = AUDIO_I16};
    int16_t first[4000], again[4000];
    uint32_t length;
    struct larder_error err;
    struct sound s, other;
    sound_open(&s, file, len);
    CHECK_OK(audio_render(s.d, &j, first, &length, &err), &err);
    struct audio_job elsewhere = {.start = 1, .frames = 300, .channels = 1, .rate = 8000};
    float unused[300];
    CHECK_OK(audio_render(s.d, &elsewhere, unused, &length, &err), &err);
    CHECK_OK(audio_render(s.d, &j, again, &length, &err), &err);
    CHECK_MEM(first, again, sizeof(first));
    sound_open(&other, file, len);
    CHECK_OK(audio_render(other.d, &j, again, &length, &err), &err);
    CHECK_MEM(first, again, sizeof(first));
    audio_decoder_free(other.d);
    audio_decoder_free(s.d);
}

TEST(damaged)
{
    enum { N = 30000 };
    AUTO_FREE float *in = make(N, 1), *out = malloc(N * 4);
    size_t len, vorbis_len;
    AUTO_FREE uint8_t *file = encode(FLAC16, 16000, 1, in, N, &len);
    struct audio_decoder *d;
    struct audio_info info;
    struct larder_error err;
    struct audio_job j = {.frames = N, .channels = 1};
    uint32_t length;
    REQUIRE_OK(audio_decoder_new(&d, &err), &err);
    CHECK_ERR(audio_render(d, &j, out, &length, &err), LARDER_EINVAL, &err);
    CHECK_ERR(audio_open(d, "", 0, &info, &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(audio_open(d, "no sound at all", 15, &info, &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "15 bytes that are no sound: neither WAV, FLAC nor Ogg");
    CHECK_ERR(audio_open(d, "\xff\xd8\xff\xe0 is a JPEG", 15, &info, &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "15 bytes that look like a .jpg, which cannot be opened as a sound");
    CHECK_OK(audio_open(d, file, len / 2, &info, &err), &err); /* cut short */
    CHECK_EQ(info.frames, N);
    CHECK_ERR(audio_render(d, &j, out, &length, &err), LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, "the sound ends at frame ") && strstr(err.message, " of 30000"));
    CHECK_OK(audio_open(d, file, len, &info, &err), &err); /* the decoder goes on */
    CHECK_OK(audio_render(d, &j, out, &length, &err), &err);
    CHECK_MEM(in, out, N * 4);
    j.start = N + 1;
    CHECK_ERR(audio_render(d, &j, out, &length, &err), LARDER_EINVAL, &err);
    /* A byte in the middle: the frame's CRC fails. */
    j.start = 0;
    file[len / 2] ^= 0x10;
    CHECK_OK(audio_open(d, file, len, &info, &err), &err);
    CHECK_ERR(audio_render(d, &j, out, &length, &err), LARDER_ECORRUPT, &err);
    file[len / 2] ^= 0x10;
    /* An encoder that did not know the length: 36 bits of 0. */
    file[21] &= 0xf0;
    memset(file + 22, 0, 4);
    CHECK_OK(audio_open(d, file, len, &info, &err), &err);
    CHECK_EQ(info.frames, N);
    j.start = 1000;
    j.frames = 500;
    CHECK_OK(audio_render(d, &j, out, &length, &err), &err);
    CHECK_MEM(in + 1000, out, 500 * 4);
    AUTO_FREE uint8_t *vorbis = encode(VORBIS, 16000, 1, in, N, &vorbis_len);
    for (size_t cut = 0; cut < vorbis_len; cut += vorbis_len / 37) /* whatever is left: no crash, and no more than there is */
        if (audio_open(d, vorbis, cut, &info, &err) == LARDER_OK && info.frames >= 1000)
            CHECK(audio_render(d, &(struct audio_job){.start = info.frames - 1000, .frames = 500, .channels = 1}, out, &length, &err) != LARDER_EINVAL);
    audio_decoder_free(d);
    audio_decoder_free(NULL);
}

/* Decoders share nothing, damaged sounds or not. */
struct crowd { const uint8_t *file; size_t len; const float *want; bool bad; };

static void *crowd_run(void *user)
{
    struct crowd *c = user;
    struct audio_decoder *d;
    struct audio_info info;
    struct larder_error err;
    float out[700];
    uint32_t length;
    CHECK_OK(audio_decoder_new(&d, &err), &err);
    for (uint32_t i = 0; i < 60; i++) {
        struct audio_job j = {.start = i * 100, .frames = 700, .channels = 1};
        int rc = audio_open(d, c->file, c->len - (i % 3 == 2 ? c->len / 2 + i : 0), &info, &err);
        if (!rc)
            rc = audio_render(d, &j, out, &length, &err);
        if (!c->bad && i % 3 != 2) {
            CHECK_OK(rc, &err);
            CHECK_MEM(out, c->want + i * 100, sizeof(out));
        } else {
            CHECK(rc == LARDER_OK || rc == LARDER_ECORRUPT || (rc == LARDER_EINVAL && j.start > info.frames));
        }
    }
    audio_decoder_free(d);
    return NULL;
}

TEST(many_threads)
{
    enum { N = 8000 };
    AUTO_FREE float *in = make(N, 1);
    size_t lens[3];
    AUTO_FREE uint8_t *a = encode(FLAC16, 16000, 1, in, N, &lens[0]), *b = encode(WAV16, 8000, 1, in, N, &lens[1]),
                      *c = encode(VORBIS, 16000, 1, in, N, &lens[2]);
    memset(c + 30, 0, 40);
    struct crowd crowds[] = {{a, lens[0], in, false}, {b, lens[1], in, false}, {c, lens[2], in, true}, {c, lens[2], in, true}};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, crowd_run, &crowds[i]));
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

/* A WAV header by hand. */
static size_t wav_head(uint8_t *h, uint16_t channels, uint32_t rate, uint32_t data_len)
{
    memcpy(h, "RIFF\0\0\0\0WAVEfmt \20\0\0\0\1\0", 22);
    put_u32(h + 4, 36 + data_len);
    put_u16(h + 22, channels);
    put_u32(h + 24, rate);
    put_u32(h + 28, rate * channels * 2);
    put_u16(h + 32, (uint16_t)(channels * 2));
    put_u16(h + 34, 16);
    memcpy(h + 36, "data", 4);
    put_u32(h + 40, data_len);
    return 44;
}

TEST(hostile_headers)
{
    uint8_t file[4096] = {0};
    struct audio_decoder *d;
    struct audio_info info;
    struct larder_error err;
    float out[300];
    uint32_t length;
    REQUIRE_OK(audio_decoder_new(&d, &err), &err);
    wav_head(file, 1000, 8000, 4000);
    CHECK_ERR(audio_open(d, file, 4044, &info, &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "a sound of 1000 channels at 8000 Hz");
    wav_head(file, 1, 2000000000, 4000);
    CHECK_ERR(audio_open(d, file, 4044, &info, &err), LARDER_ECORRUPT, &err);
    wav_head(file, 1, 0, 4000);
    CHECK_ERR(audio_open(d, file, 4044, &info, &err), LARDER_ECORRUPT, &err);
    wav_head(file, 1, 8000, 0xfffffff0); /* claims more than there is: what is there counts */
    CHECK_OK(audio_open(d, file, 4044, &info, &err), &err);
    CHECK_EQ(info.frames, 2000);
    wav_head(file, 1, 8000, 0);
    CHECK_OK(audio_open(d, file, 44, &info, &err), &err); /* nothing is a sound, too */
    CHECK_EQ(info.frames, 0);
    struct audio_job j = {.frames = 300, .channels = 1, .rate = 16000};
    memset(out, 0xff, sizeof(out));
    CHECK_OK(audio_render(d, &j, out, &length, &err), &err);
    CHECK_EQ(length, 0);
    for (size_t i = 0; i < 300; i++)
        CHECK(out[i] == 0);
    wav_head(file, 1, 1, 4000);
    CHECK_OK(audio_open(d, file, 4044, &info, &err), &err);
    CHECK_ERR(audio_render(d, &j, out, &length, &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "a sound of 1 Hz, which is too far from 16000");
    audio_decoder_free(d);
}

/* Loud and senseless floats become 16 bits all the same. */
TEST(clipped)
{
    const float in[] = {2, -2, 1, -1, NAN, INFINITY, -INFINITY, 0.5f, 0.49999f / 32768, 1.5f / 32768};
    const int16_t want[] = {32767, -32768, 32767, -32768, 0, 32767, -32768, 16384, 0, 2};
    int16_t out[ARRAY_LEN(in)];
    size_t len;
    AUTO_FREE uint8_t *file = encode(WAVF, 8000, 1, in, ARRAY_LEN(in), &len);
    struct sound s;
    struct larder_error err;
    uint32_t length;
    sound_open(&s, file, len);
    struct audio_job j = {.frames = ARRAY_LEN(in), .channels = 1, .dtype = AUDIO_I16};
    CHECK_OK(audio_render(s.d, &j, out, &length, &err), &err);
    CHECK_MEM(out, want, sizeof(want));
    audio_decoder_free(s.d);
}

TEST_MAIN();
