/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sounds.c - renders a crop of a sound file to stdout, as raw float32: for tests that compare with other decoders.
 *
 * sounds: reads lines "FILE START FRAMES RATE CHANNELS" from stdin; each answer is an i32 (0 or an error code) and, after 0, five u32 (the
 * rate, channels and frames of the file, the length of the result, 0) and channels x frames floats.
 */
#include "store/codec/codec.h"

static uint8_t *slurp(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END))
        return NULL;
    *len = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*len + 1);
    if (data && fread(data, 1, *len, f) != *len)
        *len = 0;
    fclose(f);
    return data;
}

int main(void)
{
    struct audio_decoder *d;
    struct audio_info info = {0};
    char line[4096], path[4096];
    if (audio_decoder_new(&d, NULL))
        return 1;
    while (fgets(line, sizeof(line), stdin)) {
        struct audio_job j = {0};
        unsigned long long start;
        uint32_t head[5] = {0};
        size_t len = 0;
        if (sscanf(line, "%4095s %llu %u %u %u", path, &start, &j.frames, &j.rate, &j.channels) != 5)
            return 2;
        j.start = start;
        uint8_t *data = slurp(path, &len), *out = malloc(audio_job_bytes(&j));
        int32_t rc = data && out ? audio_open(d, data, len, &info, NULL) : LARDER_EIO;
        if (!rc)
            rc = audio_render(d, &j, out, &head[3], NULL);
        head[0] = info.rate;
        head[1] = info.channels;
        head[2] = (uint32_t)info.frames;
        fwrite(&rc, sizeof(rc), 1, stdout);
        if (!rc) {
            fwrite(head, sizeof(head), 1, stdout);
            fwrite(out, 1, audio_job_bytes(&j), stdout);
        }
        fflush(stdout);
        free(data);
        free(out);
    }
    audio_decoder_free(d);
    return 0;
}
