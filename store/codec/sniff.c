/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sniff.c - what bytes are, by their content, and what a file is, by its extension.
 *
 * A content test reads the format's signature and, where that is short (BMP, MP3), enough of the header behind
 * it that ordinary text or arrays do not pass. Never more than the first 32 bytes are read.
 *
 * Pure functions over const tables; any thread.
 */
#include "store/codec/codec.h"

#include <strings.h>

static bool has(const uint8_t *p, size_t len, size_t at, const char *bytes, size_t n)
{
    return len >= at + n && !memcmp(p + at, bytes, n);
}
#define HAS(at, literal) has(p, len, (at), (literal), sizeof(literal) - 1)

/* "BM", the file's size, zeros or a hot spot, the pixels' offset, then a DIB header of a known size. */
static bool is_bmp(const uint8_t *p, size_t len)
{
    static const uint32_t dib_sizes[] = {12, 16, 40, 52, 56, 64, 108, 124};

    if (len < 26 || !HAS(0, "BM"))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(dib_sizes); i++)
        if (get_u32(p + 14) == dib_sizes[i])
            return get_u32(p + 10) >= 14 + dib_sizes[i];
    return false;
}

/* An ID3v2 tag, whose four size bytes have no high bit, or a frame header of MPEG layer III with valid rates. */
static bool is_mp3(const uint8_t *p, size_t len)
{
    if (len >= 10 && HAS(0, "ID3"))
        return p[3] >= 2 && p[3] <= 4 && p[4] != 0xff && !((p[6] | p[7] | p[8] | p[9]) & 0x80);
    if (len < 4 || p[0] != 0xff || (p[1] & 0xe0) != 0xe0)
        return false;
    return (p[1] >> 3 & 3) != 1 /* version */ && (p[1] >> 1 & 3) == 1 /* layer III */ &&
           p[2] >> 4 != 0 && p[2] >> 4 != 15 /* bit rate */ && (p[2] >> 2 & 3) != 3 /* sample rate */ &&
           (p[3] & 3) != 2 /* emphasis */;
}

const char *sniff_extension(const void *data, size_t len)
{
    const uint8_t *p = data;

    if (HAS(0, "\xff\xd8\xff"))
        return "jpg";
    if (HAS(0, "\x89PNG\r\n\x1a\n"))
        return "png";
    if (HAS(0, "RIFF") && HAS(8, "WEBP"))
        return "webp";
    if (HAS(0, "RIFF") && HAS(8, "WAVE"))
        return "wav";
    if (HAS(0, "GIF87a") || HAS(0, "GIF89a"))
        return "gif";
    if (HAS(0, "II*\0") || HAS(0, "MM\0*") || HAS(0, "II+\0\x08\0\0\0") || HAS(0, "MM\0+\0\x08\0\0"))
        return "tiff";
    if (HAS(0, "fLaC"))
        return "flac";
    if (HAS(0, "OggS\0"))
        return "ogg";
    if (is_bmp(p, len))
        return "bmp";
    if (is_mp3(p, len))
        return "mp3";
    return NULL;
}

int extension_type(const char *ext, size_t len)
{
    static const struct {
        char ext[8];
        int type;
    } known[] = {
        {"jpg", LARDER_IMAGE},   {"jpeg", LARDER_IMAGE}, {"jpe", LARDER_IMAGE},    {"png", LARDER_IMAGE},
        {"webp", LARDER_IMAGE},  {"gif", LARDER_IMAGE},  {"bmp", LARDER_IMAGE},    {"tif", LARDER_IMAGE},
        {"tiff", LARDER_IMAGE},  {"ppm", LARDER_IMAGE},  {"wav", LARDER_AUDIO},    {"flac", LARDER_AUDIO},
        {"ogg", LARDER_AUDIO},   {"mp3", LARDER_AUDIO},  {"opus", LARDER_AUDIO},   {"aiff", LARDER_AUDIO},
        {"txt", LARDER_UTF8},    {"text", LARDER_UTF8},  {"caption", LARDER_UTF8}, {"json", LARDER_JSON},
        {"cls", LARDER_I64},     {"cls2", LARDER_I64},   {"index", LARDER_I64},    {"inx", LARDER_I64},
        {"id", LARDER_I64},      {"count", LARDER_I64},
    };

    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strlen(known[i].ext) == len && !strncasecmp(known[i].ext, ext, len))
            return known[i].type;
    return LARDER_BYTES;
}
