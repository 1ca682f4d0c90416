/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_audio.c - audio_open() and audio_render() over bytes from outside.
 *
 * Input: 12 bytes that choose the place, the length, the rate and the channels, then the sound. Never a crash or a byte outside the result,
 * never a code but LARDER_OK, LARDER_ECORRUPT and LARDER_EINVAL, zeros behind what is there, and the same numbers the second time.
 */
#include "store/codec/codec.h"

enum { HEAD = 12, GUARD = 64, GUARD_BYTE = 0xa5 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t rates[] = {0, 8000, 16000, 22050, 44100, 48000, 7, 192000};
    struct audio_decoder *d;
    struct audio_info info;
    uint32_t length = 0, length_again = 0;
    if (size < HEAD)
        return 0;
    struct audio_job j = {.frames = 1 + get_u16(data) % 2000, .rate = rates[data[2] % 8], .channels = 1 + data[3] % 3, .dtype = data[4] & 1};
    size_t n = audio_job_bytes(&j), item = j.dtype == AUDIO_I16 ? 2 : 4;
    require(audio_decoder_new(&d, NULL) == LARDER_OK);
    int rc = audio_open(d, data + HEAD, size - HEAD, &info, NULL);
    require(rc == LARDER_OK || rc == LARDER_ECORRUPT);
    if (rc == LARDER_OK) {
        AUTO_FREE uint8_t *out = malloc(n + GUARD), *again = malloc(n);
        require(out && again && info.channels >= 1 && info.channels <= 64 && info.rate >= 1);
        j.start = info.frames ? get_u32(data + 5) % (info.frames + 2) : 0;
        memset(out + n, GUARD_BYTE, GUARD);
        rc = audio_render(d, &j, out, &length, NULL);
        require(rc == LARDER_OK || rc == LARDER_ECORRUPT || (rc == LARDER_EINVAL && j.start > info.frames));
        for (size_t i = 0; i < GUARD; i++)
            require(out[n + i] == GUARD_BYTE);
        if (rc == LARDER_OK) {
            require(length <= j.frames && length <= MAX(info.frames * 300, info.frames));
            for (uint32_t c = 0; c < j.channels; c++)
                for (size_t i = (c * (size_t)j.frames + length) * item; i < (c + 1) * (size_t)j.frames * item; i++)
                    require(out[i] == 0);
            require(audio_open(d, data + HEAD, size - HEAD, &info, NULL) == LARDER_OK);
            require(audio_render(d, &j, again, &length_again, NULL) == LARDER_OK);
            require(length == length_again && !memcmp(out, again, n));
        }
    }
    audio_decoder_free(d);
    return 0;
}
