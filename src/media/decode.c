#include "media/decode.h"

#include <stdlib.h>
#include <string.h>

#include "media/decoders.h"

static image_decoder *const decoders[IMAGE_FORMATS] = {
    [IMAGE_PNG] = image_decode_png,
    [IMAGE_JPEG] = image_decode_jpeg,
    [IMAGE_WEBP] = image_decode_webp,
    [IMAGE_GIF] = image_decode_gif,
};

static bool begins(const image_source *s, size_t at, const char *with, size_t bytes) {
    return s->bytes >= at + bytes && memcmp(s->data + at, with, bytes) == 0;
}

static image_format format_of(const image_source *s) {
    if (begins(s, 0, "\x89PNG\r\n\x1a\n", 8)) return IMAGE_PNG;
    if (begins(s, 0, "\xff\xd8\xff", 3)) return IMAGE_JPEG;
    if (begins(s, 0, "RIFF", 4) && begins(s, 8, "WEBP", 4)) return IMAGE_WEBP;
    if (begins(s, 0, "GIF87a", 6) || begins(s, 0, "GIF89a", 6)) return IMAGE_GIF;
    return IMAGE_FORMATS;
}

/* ----------------------------------------------------------------------------------------------------- turning */

/* EXIF's eight orientations: which steps in the stored picture one pixel to the right and one down are, and where the
 * first pixel lies. */
static kakeya_status turn(const image_source *source, image *picture, int orientation, kakeya_error *error) {
    if (orientation == 1) return KAKEYA_OK;
    const ptrdiff_t w = picture->width, h = picture->height;
    const bool swapped = orientation >= 5;
    const bool mirrored = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    const bool upside_down = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    unsigned char *turned = malloc(3 * (size_t)w * (size_t)h);
    if (!turned) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", source->name);
    const ptrdiff_t columns = swapped ? h : w, rows = swapped ? w : h;
    unsigned char *to = turned;
    for (ptrdiff_t y = 0; y < rows; y++) {
        for (ptrdiff_t x = 0; x < columns; x++, to += 3) {
            ptrdiff_t from_x = swapped ? y : x, from_y = swapped ? x : y;
            if (mirrored) from_x = w - 1 - from_x;
            if (upside_down) from_y = h - 1 - from_y;
            memcpy(to, picture->rgb + 3 * (from_y * w + from_x), 3);
        }
    }
    free(picture->rgb);
    *picture = (image){(int)columns, (int)rows, turned};
    return KAKEYA_OK;
}

/* ---------------------------------------------------------------------------------------------------- decoding */

static kakeya_status read_source(const image_source *source, const image_check *check, unsigned char **rgb,
                                 kakeya_error *error) {
    const image_format format = format_of(source);
    if (format == IMAGE_FORMATS)
        return error_set(error, KAKEYA_UNSUPPORTED, "%s: neither PNG, JPEG, WebP nor GIF", source->name);
    return decoders[format](source, check, rgb, error);
}

kakeya_status image_read_info(const char *name, const void *data, size_t bytes, const image_limits *limits,
                              image_info *out, kakeya_error *error) {
    const image_source source = {name, data, bytes};
    const image_check check = {.limits = limits, .info = out, .header_alone = true};
    unsigned char *none = NULL;
    return read_source(&source, &check, &none, error);
}

kakeya_status image_decode(const char *name, const void *data, size_t bytes, const image_limits *limits,
                           image_info *info, image *out, kakeya_error *error) {
    image_info own;
    const image_source source = {name, data, bytes};
    const image_check check = {.limits = limits, .info = info ? info : &own};
    *out = (image){0};
    unsigned char *rgb = NULL;
    kakeya_status status = read_source(&source, &check, &rgb, error);
    if (status) return status;
    *out = (image){check.info->width, check.info->height, rgb};
    status = turn(&source, out, check.info->orientation, error);
    if (status) image_free(out);
    return status;
}
