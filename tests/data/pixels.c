/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pixels.c - renders a crop of an image file to stdout, as raw u8 RGB: for tests that compare with other decoders.
 *
 * pixels: reads lines "FILE X Y W H WIDTH HEIGHT FILTER FLIP EXACT TURN BEYOND MASK" from stdin; each answer is an i32 (0 or an error
 * code) and, after 0, the pixels. TURN: as the file's EXIF orientation says. MASK: 1: of u8, 2: of u16.
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
    struct image_decoder *d;
    struct image_info info = {0};
    char line[4096], path[4096];
    if (image_decoder_new(&d, NULL))
        return 1;
    while (fgets(line, sizeof(line), stdin)) {
        struct image_job j = {0};
        int flip, exact, turn, beyond, mask;
        size_t len = 0;
        if (sscanf(line, "%4095s %lf %lf %lf %lf %u %u %d %d %d %d %d %d", path, &j.x, &j.y, &j.w, &j.h, &j.width, &j.height, &j.filter, &flip, &exact,
                   &turn, &beyond, &mask) != 13)
            return 2;
        j.flip = flip;
        j.exact = exact;
        j.beyond = beyond;
        j.mask = mask;
        j.dtype = mask == 2 ? IMAGE_U16 : IMAGE_U8;
        uint8_t *data = slurp(path, &len), *out = malloc(image_job_bytes(&j));
        int32_t rc = data && out ? image_open(d, data, len, &info, NULL) : LARDER_EIO;
        j.orientation = turn ? info.orientation : 1;
        if (!rc)
            rc = image_render(d, &j, out, NULL);
        fwrite(&rc, sizeof(rc), 1, stdout);
        if (!rc)
            fwrite(out, 1, image_job_bytes(&j), stdout);
        fflush(stdout);
        free(data);
        free(out);
    }
    image_decoder_free(d);
    return 0;
}
