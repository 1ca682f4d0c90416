/* SPDX-License-Identifier: Apache-2.0 */
/*
 * audio.c - sounds: WAV, AIFF, AU, CAF, FLAC, Ogg and MP3 by libsndfile, from memory. Sole user of sndfile.h and soxr.h.
 *
 *     seek -> frames as stored -> mixed to the result's channels -> resampled -> placed
 *
 * A portion of frames at a time, so that memory does not depend on the sound: nothing that a header claims is allocated. Sounds are read as
 * floats: 16 and 24 bits are exact in them. Of libsndfile's thirty formats those are passed to it that sounds are kept in today.
 *
 * A crop is not the beginning of a sound: the resampler is fed what stands before it, as far as its filter reaches, and what comes of that
 * is dropped. So a crop is what the whole sound, resampled, has there. This lead is a whole number of frames at both rates; zeros stand in
 * for what lies before the first frame.
 *
 * Behind a seek libsndfile (1.2) gives what is left in Vorbis' overlapping windows, and libmpg123 prints complaints: so Vorbis is read from
 * a little earlier on, and MP3 from its beginning.
 *
 * Threads: one a decoder. What libsndfile says about files that it cannot open lies in static memory: it is not asked.
 */
#include <math.h>

#include <sndfile.h>
#include <soxr.h>

#include "store/codec/codec.h"

#define CHANNELS_MAX 64u
#define RATE_MAX 768000u
#define RATIO_MAX 256u      /* of two rates */
#define FRAMES_MAX (1ull << 36) /* as FLAC */
#define PORTION 8192u       /* floats */
#define REACH 256u          /* frames of the lower rate that the filter looks to each side, and more */
#define VORBIS_SETTLE 16384u /* two of its longest blocks */

struct audio_decoder {
    SNDFILE *file;
    const uint8_t *data;
    size_t len, at;
    struct audio_info info;
    uint64_t settle;         /* frames that are wrong behind a seek */
    float in[PORTION], mixed[PORTION], made[PORTION];
};

/* ---- bytes in memory, as libsndfile reads them ---- */

static sf_count_t memory_length(void *user) { return (sf_count_t)((struct audio_decoder *)user)->len; }
static sf_count_t memory_tell(void *user) { return (sf_count_t)((struct audio_decoder *)user)->at; }
static sf_count_t memory_write(const void *data, sf_count_t len, void *user) { return (void)data, (void)len, (void)user, 0; }

static sf_count_t memory_seek(sf_count_t offset, int whence, void *user)
{
    struct audio_decoder *d = user;
    sf_count_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? (sf_count_t)d->at : (sf_count_t)d->len, to;
    if (__builtin_add_overflow(from, offset, &to) || to < 0 || to > (sf_count_t)d->len)
        return -1;
    d->at = (size_t)to;
    return to;
}

static sf_count_t memory_read(void *out, sf_count_t len, void *user)
{
    struct audio_decoder *d = user;
    size_t n = len < 0 ? 0 : MIN((size_t)len, d->len - d->at);
    memcpy(out, d->data + d->at, n);
    d->at += n;
    return (sf_count_t)n;
}

static void file_close(struct audio_decoder *d)
{
    if (d->file)
        sf_close(d->file);
    d->file = NULL;
}

int audio_decoder_new(struct audio_decoder **out, struct larder_error *err)
{
    *out = calloc(1, sizeof(**out));
    return *out ? LARDER_OK : err_nomem(err, sizeof(**out), "a decoder of sounds");
}

void audio_decoder_free(struct audio_decoder *d)
{
    if (d)
        file_close(d);
    free(d);
}

static int unknown(const void *data, size_t len, struct larder_error *err)
{
    const char *ext = sniff_extension(data, len);
    if (ext)
        return err_set(err, LARDER_ECORRUPT, "%zu bytes that look like a .%s, which cannot be opened as a sound", len, ext);
    return err_set(err, LARDER_ECORRUPT, "%zu bytes that are no sound: neither WAV, FLAC nor Ogg", len);
}

/* Some encoders do not know in the beginning how much there will be. */
static int count_frames(struct audio_decoder *d, struct larder_error *err)
{
    sf_count_t got;
    uint64_t n = 0;
    while ((got = sf_readf_float(d->file, d->in, PORTION / d->info.channels)) > 0 && n <= FRAMES_MAX)
        n += (uint64_t)got;
    if (sf_error(d->file) || n > FRAMES_MAX)
        return err_set(err, LARDER_ECORRUPT, "the sound is damaged after frame %llu", (unsigned long long)n);
    d->info.frames = n;
    return LARDER_OK;
}

static uint64_t settle(int format)
{
    if ((format & SF_FORMAT_TYPEMASK) == SF_FORMAT_MPEG)
        return UINT64_MAX;
    return (format & SF_FORMAT_SUBMASK) == SF_FORMAT_VORBIS ? VORBIS_SETTLE : 0;
}

static bool known(const uint8_t *data, size_t len)
{
    static const char *const begins[] = {"RIFF", "RIFX", "RF64", "riff", "FORM", ".snd", "caff", "fLaC", "OggS"};
    for (size_t i = 0; len >= 12 && i < ARRAY_LEN(begins); i++)
        if (!memcmp(data, begins[i], 4))
            return true;
    return len >= 12 && (!memcmp(data, "ID3", 3) || (data[0] == 0xff && data[1] >= 0xe0)); /* MP3 */
}

int audio_open(struct audio_decoder *d, const void *data, size_t len, struct audio_info *info, struct larder_error *err)
{
    static const SF_VIRTUAL_IO memory = {memory_length, memory_seek, memory_read, memory_write, memory_tell};
    SF_INFO sf = {0};
    SF_VIRTUAL_IO io = memory;
    int rc = LARDER_OK;
    file_close(d);
    d->data = data;
    d->len = len;
    d->at = 0;
    d->file = known(data, len) ? sf_open_virtual(&io, SFM_READ, &sf, d) : NULL;
    if (!d->file)
        return unknown(data, len, err);
    if (sf.channels < 1 || sf.channels > (int)CHANNELS_MAX || sf.samplerate < 1 || sf.samplerate > (int)RATE_MAX || sf.frames < 0) {
        file_close(d);
        return err_set(err, LARDER_ECORRUPT, "a sound of %d channels at %d Hz", sf.channels, sf.samplerate);
    }
    d->info = (struct audio_info){(uint32_t)sf.samplerate, (uint32_t)sf.channels, (uint64_t)sf.frames};
    d->settle = settle(sf.format);
    if (d->info.frames > FRAMES_MAX)
        rc = count_frames(d, err);
    *info = d->info;
    return rc;
}

/* ---- the way of a portion ---- */

/* Where frames go: the first are dropped, and those beyond the end. */
struct sink { const struct audio_job *job; void *out; uint64_t skip; uint32_t at, end; };

static int16_t to_i16(float v)
{
    v *= 32768;
    return v >= 32767 ? 32767 : v <= -32768 ? -32768 : v == v ? (int16_t)lrintf(v) : 0;
}

static void place(struct sink *s, const float *frames, uint64_t n)
{
    uint64_t drop = MIN(n, s->skip);
    uint32_t channels = s->job->channels, count = (uint32_t)MIN(n - drop, s->end - s->at);
    s->skip -= drop;
    frames += drop * channels;
    for (uint32_t c = 0; c < channels; c++) {
        size_t at = (size_t)c * s->job->frames + s->at;
        for (uint32_t i = 0; i < count; i++) {
            if (s->job->dtype == AUDIO_I16)
                ((int16_t *)s->out)[at + i] = to_i16(frames[(size_t)i * channels + c]);
            else
                ((float *)s->out)[at + i] = frames[(size_t)i * channels + c];
        }
    }
    s->at += count;
}

static void mix(const float *in, uint32_t channels, float *out, uint32_t want, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++, in += channels, out += want) {
        float sum = 0;
        for (uint32_t c = 0; want == 1 && c < channels; c++)
            sum += in[c];
        for (uint32_t c = 0; c < want; c++)
            out[c] = want == 1 ? sum / (float)channels : channels == 1 ? in[0] : in[c];
    }
}

static int ends(const struct audio_decoder *d, uint64_t at, sf_count_t got, struct larder_error *err)
{
    return err_set(err, LARDER_ECORRUPT, "the sound ends at frame %llu of %llu", (unsigned long long)at + (unsigned long long)MAX(got, 0),
                   (unsigned long long)d->info.frames);
}

/* What next_frames() gives next. */
static int seek_frame(struct audio_decoder *d, uint64_t frame, struct larder_error *err)
{
    uint64_t from = frame - MIN(frame, d->settle), most = PORTION / d->info.channels;
    if (sf_seek(d->file, (sf_count_t)from, SEEK_SET) != (sf_count_t)from)
        return err_set(err, LARDER_ECORRUPT, "frame %llu of %llu of the sound cannot be reached", (unsigned long long)frame,
                       (unsigned long long)d->info.frames);
    while (from < frame) {
        sf_count_t got = sf_readf_float(d->file, d->in, (sf_count_t)MIN(frame - from, most));
        if (got <= 0 || sf_error(d->file))
            return ends(d, from, got, err);
        from += (uint64_t)got;
    }
    return LARDER_OK;
}

/* Up to n of the next frames, mixed. */
static int next_frames(struct audio_decoder *d, const struct audio_job *job, uint64_t n, uint64_t *got, uint64_t *at, struct larder_error *err)
{
    uint64_t most = PORTION / MAX(d->info.channels, job->channels);
    sf_count_t read = sf_readf_float(d->file, d->in, (sf_count_t)MIN(n, most));
    if (read <= 0 || sf_error(d->file))
        return ends(d, *at, read, err);
    mix(d->in, d->info.channels, d->mixed, job->channels, (uint64_t)read);
    *got = (uint64_t)read;
    *at += (uint64_t)read;
    return LARDER_OK;
}

/* ---- at the stored rate ---- */

static int render_plain(struct audio_decoder *d, const struct audio_job *job, struct sink *s, struct larder_error *err)
{
    uint64_t got, at = job->start;
    int rc = seek_frame(d, at, err);
    while (!rc && s->at < s->end) {
        rc = next_frames(d, job, s->end - s->at, &got, &at, err);
        if (!rc)
            place(s, d->mixed, got);
    }
    return rc;
}

/* ---- at another rate ---- */

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* frames NULL: there are no more. */
static int resample(struct audio_decoder *d, soxr_t r, const float *frames, uint64_t n, struct sink *s, struct larder_error *err)
{
    size_t used = 0, made = 1, most = PORTION / s->job->channels;
    while ((n || !frames) && made && s->at < s->end) {
        soxr_error_t why = soxr_process(r, frames, frames ? n : 0, &used, d->made, most, &made);
        if (why)
            return err_set(err, LARDER_ENOMEM, "resampling: %s", why);
        place(s, d->made, made);
        if (frames) {
            frames += used * s->job->channels;
            n -= used;
            made += used;
        }
    }
    return LARDER_OK;
}

static int render_resampled(struct audio_decoder *d, const struct audio_job *job, soxr_t r, struct sink *s, struct larder_error *err)
{
    uint64_t g = common_divisor(d->info.rate, job->rate), in_step = d->info.rate / g, out_step = job->rate / g;
    uint64_t steps = 1 + REACH / MIN(in_step, out_step);
    uint64_t lead = steps * in_step, zeros = lead > job->start ? lead - job->start : 0, at = job->start - (lead - zeros), got;
    int rc = seek_frame(d, at, err);
    s->skip = steps * out_step;
    while (!rc && s->at < s->end && (zeros || at < d->info.frames)) {
        if (zeros) {
            got = MIN(zeros, PORTION / job->channels);
            memset(d->mixed, 0, got * job->channels * sizeof(*d->mixed));
            zeros -= got;
        } else {
            rc = next_frames(d, job, d->info.frames - at, &got, &at, err);
        }
        if (!rc)
            rc = resample(d, r, d->mixed, got, s, err);
    }
    return rc ? rc : resample(d, r, NULL, 0, s, err);
}

/* ---- all of it ---- */

static bool keeps_rate(const struct audio_info *info, const struct audio_job *job) { return !job->rate || job->rate == info->rate; }

uint64_t audio_span(const struct audio_info *info, const struct audio_job *job)
{
    return keeps_rate(info, job) ? job->frames : ((uint64_t)job->frames * info->rate + job->rate - 1) / job->rate;
}

static int check_job(const struct audio_info *info, const struct audio_job *job, struct larder_error *err)
{
    if (job->start > info->frames || !job->channels || job->channels > CHANNELS_MAX || job->rate > RATE_MAX)
        return err_set(err, LARDER_EINVAL, "%u channels at %u Hz from frame %llu of %llu", job->channels, job->rate,
                       (unsigned long long)job->start, (unsigned long long)info->frames);
    if (job->channels > 1 && info->channels > 1 && job->channels != info->channels)
        return err_set(err, LARDER_ECORRUPT, "a sound of %u channels, where %u are wanted", info->channels, job->channels);
    if (!keeps_rate(info, job) && (info->rate / job->rate >= RATIO_MAX || job->rate / info->rate >= RATIO_MAX))
        return err_set(err, LARDER_ECORRUPT, "a sound of %u Hz, which is too far from %u", info->rate, job->rate);
    return LARDER_OK;
}

int audio_render(struct audio_decoder *d, const struct audio_job *job, void *out, uint32_t *length, struct larder_error *err)
{
    if (!d->file)
        return err_set(err, LARDER_EINVAL, "no sound is open");
    int rc = check_job(&d->info, job, err);
    if (rc)
        return rc;
    bool plain = keeps_rate(&d->info, job);
    uint64_t left = d->info.frames - job->start;
    struct sink s = {job, out, 0, 0, (uint32_t)MIN(job->frames, plain ? left : left * job->rate / d->info.rate)};
    if (plain) {
        rc = render_plain(d, job, &s, err);
    } else {
        soxr_quality_spec_t hq = soxr_quality_spec(SOXR_HQ, 0);
        soxr_error_t why;
        soxr_t r = soxr_create(d->info.rate, job->rate, job->channels, &why, NULL, &hq, NULL);
        rc = r ? render_resampled(d, job, r, &s, err) : err_set(err, LARDER_ENOMEM, "resampling: %s", why ? why : "no memory");
        soxr_delete(r);
    }
    if (rc)
        return rc;
    size_t item = job->dtype == AUDIO_I16 ? 2 : 4;
    for (uint32_t c = 0; c < job->channels; c++)
        memset((uint8_t *)out + ((size_t)c * job->frames + s.at) * item, 0, (job->frames - s.at) * item);
    *length = s.at;
    return LARDER_OK;
}
