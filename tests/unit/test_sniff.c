/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sniff.c - media recognised by content, field types by extension.
 */
#include "store/codec/codec.h"
#include "tests/unit/test.h"

#define BYTES(literal) (literal), sizeof(literal) - 1

static const struct {
    const char *data;
    size_t len;
    const char *want;
} contents[] = {
    {BYTES("\xff\xd8\xff\xe0\0\x10JFIF"), "jpg"},
    {BYTES("\xff\xd8\xff\xdb\0\x43"), "jpg"},
    {BYTES("\xff\xd8\xff"), "jpg"},
    {BYTES("\x89PNG\r\n\x1a\n\0\0\0\rIHDR"), "png"},
    {BYTES("RIFF\x24\0\0\0WEBPVP8 "), "webp"},
    {BYTES("RIFF\x24\0\0\0WAVEfmt "), "wav"},
    {BYTES("GIF87a\1\0"), "gif"},
    {BYTES("GIF89a\1\0"), "gif"},
    {BYTES("II*\0\x08\0\0\0"), "tiff"},
    {BYTES("MM\0*\0\0\0\x08"), "tiff"},
    {BYTES("II+\0\x08\0\0\0"), "tiff"},
    {BYTES("fLaC\0\0\0\x22"), "flac"},
    {BYTES("OggS\0\2\0\0"), "ogg"},
    {BYTES("BM\x46\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\2\0\0\0\2\0\0\0"), "bmp"},
    {BYTES("ID3\4\0\0\0\0\x0f\x76"), "mp3"},
    {BYTES("\xff\xfb\x90\x64\0\0"), "mp3"},
    {BYTES("\xff\xf3\x40\xc4"), "mp3"},
    /* not media, though some begin alike */
    {BYTES(""), NULL},
    {BYTES("\xff"), NULL},
    {BYTES("\xff\xd8"), NULL},
    {BYTES("\xff\xff\xff\xff\xff\xff\xff\xff"), NULL},
    {BYTES("\xff\xfb\xf0\x64"), NULL},        /* bit rate 15 */
    {BYTES("\xff\xfb\x9c\x64"), NULL},        /* sample rate 3 */
    {BYTES("\xff\xfd\x90\x64"), NULL},        /* layer II */
    {BYTES("ID3 is a tag format"), NULL},
    {BYTES("\x89PNG\r\n\x1a"), NULL},         /* cut short */
    {BYTES("RIFF\x24\0\0\0AVI LIST"), NULL},
    {BYTES("RIFF\x24\0\0\0WEB"), NULL},
    {BYTES("BMW and other cars, in plain text"), NULL},
    {BYTES("GIF88a"), NULL},
    {BYTES("MM is two letters"), NULL},
    {BYTES("{\"a\": 1}"), NULL},
    {BYTES("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), NULL},
};

TEST(content)
{
    for (size_t i = 0; i < ARRAY_LEN(contents); i++) {
        /* in memory of exactly this size, so that a sanitizer sees reads beyond it */
        AUTO_FREE char *copy = malloc(contents[i].len ? contents[i].len : 1);

        REQUIRE(copy != NULL);
        memcpy(copy, contents[i].data, contents[i].len);
        CHECK_STR(sniff_extension(copy, contents[i].len), contents[i].want);
    }
    CHECK_STR(sniff_extension(NULL, 0), NULL);
}

/* Every prefix of every content: no read beyond the end, and never a type other than the whole one's. */
TEST(prefixes)
{
    for (size_t i = 0; i < ARRAY_LEN(contents); i++)
        for (size_t len = 0; len < contents[i].len; len++) {
            AUTO_FREE char *copy = malloc(len ? len : 1);
            const char *ext;

            REQUIRE(copy != NULL);
            memcpy(copy, contents[i].data, len);
            ext = sniff_extension(copy, len);
            if (ext)
                CHECK_STR(ext, contents[i].want);
        }
}

TEST(random_bytes_are_rarely_media)
{
    uint64_t seed = 1;
    int found = 0;

    for (int i = 0; i < 100000; i++) {
        uint8_t data[64];

        rng_fill(&seed, data, sizeof(data));
        found += sniff_extension(data, sizeof(data)) != NULL;
    }
    CHECK(found < 30); /* only MP3's 11 bits of sync and its header's checks can pass */
}

TEST(what_a_sniffed_extension_stands_for)
{
    for (size_t i = 0; i < ARRAY_LEN(contents); i++)
        if (contents[i].want) {
            int type = extension_type(contents[i].want, strlen(contents[i].want));

            CHECK(type == LARDER_IMAGE || type == LARDER_AUDIO);
        }
}

TEST(extensions)
{
    static const struct {
        const char *ext;
        int want;
    } cases[] = {
        {"jpg", LARDER_IMAGE},  {"JPG", LARDER_IMAGE},   {"jpeg", LARDER_IMAGE}, {"JpEg", LARDER_IMAGE},
        {"jpe", LARDER_IMAGE},  {"png", LARDER_IMAGE},   {"webp", LARDER_IMAGE}, {"gif", LARDER_IMAGE},
        {"bmp", LARDER_IMAGE},  {"tif", LARDER_IMAGE},   {"tiff", LARDER_IMAGE}, {"ppm", LARDER_IMAGE},
        {"wav", LARDER_AUDIO},  {"FLAC", LARDER_AUDIO},  {"ogg", LARDER_AUDIO},  {"mp3", LARDER_AUDIO},
        {"opus", LARDER_AUDIO}, {"aiff", LARDER_AUDIO},  {"txt", LARDER_UTF8},   {"text", LARDER_UTF8},
        {"TXT", LARDER_UTF8},   {"caption", LARDER_UTF8}, {"json", LARDER_JSON}, {"JSON", LARDER_JSON},
        {"cls", LARDER_I64},    {"cls2", LARDER_I64},    {"index", LARDER_I64},  {"inx", LARDER_I64},
        {"id", LARDER_I64},     {"count", LARDER_I64},   {"", LARDER_BYTES},     {"jp", LARDER_BYTES},
        {"jpgx", LARDER_BYTES}, {"npy", LARDER_BYTES},   {"cls3", LARDER_BYTES}, {"captions", LARDER_BYTES},
        {"pt", LARDER_BYTES},   {"anextensionlongerthanall", LARDER_BYTES},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        CHECK_EQ(extension_type(cases[i].ext, strlen(cases[i].ext)), cases[i].want);
    CHECK_EQ(extension_type("jpgx", 3), LARDER_IMAGE); /* the length counts, not a NUL */
    CHECK_EQ(extension_type("id\0\0", 4), LARDER_BYTES);
}

TEST_MAIN();
