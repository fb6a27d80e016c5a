#include <spng.h>
#include <stdlib.h>
#include <string.h>

#include "media/decoders.h"

enum { CHUNK_BYTES = 1 << 20, CHUNK_CACHE_BYTES = 4 << 20 };

static kakeya_status broken(const image_source *source, int code, kakeya_error *error) {
    if (code == SPNG_EMEM) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", source->name);
    return error_set(error, KAKEYA_FORMAT, "%s: broken PNG: %s", source->name, spng_strerror(code));
}

/* Ancillary chunks that may stand behind the pixels; one that is absent or broken means nothing. */
static int orientation_of(spng_ctx *png) {
    struct spng_exif exif;
    return spng_get_exif(png, &exif) == 0 ? exif_orientation((const unsigned char *)exif.data, exif.length) : 1;
}

static kakeya_status read_header(spng_ctx *png, const image_source *source, const image_check *check,
                                 kakeya_error *error) {
    int code = spng_set_crc_action(png, SPNG_CRC_ERROR, SPNG_CRC_ERROR);
    if (!code) code = spng_set_chunk_limits(png, CHUNK_BYTES, CHUNK_CACHE_BYTES);
    if (!code) code = spng_set_png_buffer(png, source->data, source->bytes);
    struct spng_ihdr header;
    if (!code) code = spng_get_ihdr(png, &header);
    if (code) return broken(source, code, error);
    *check->info = (image_info){.format = IMAGE_PNG,
                                .width = (int)(header.width & INT32_MAX),
                                .height = (int)(header.height & INT32_MAX),
                                .orientation = 1};
    kakeya_status status = image_check_size(source, check, error);
    if (!status) check->info->orientation = orientation_of(png);
    return status;
}

kakeya_status image_decode_png(const image_source *source, const image_check *check, unsigned char **rgb,
                               kakeya_error *error) {
    spng_ctx *png = spng_ctx_new(0);
    if (!png) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", source->name);
    unsigned char *pixels = NULL;
    kakeya_status status = read_header(png, source, check, error);
    if (!status && !check->header_alone) {
        size_t n = (size_t)check->info->width * (size_t)check->info->height, bytes = 0;
        int code = spng_decoded_image_size(png, SPNG_FMT_RGBA8, &bytes);
        if (!code && bytes != 4 * n) code = SPNG_EINTERNAL;
        pixels = code ? NULL : malloc(bytes);
        if (!code && !pixels) code = SPNG_EMEM;
        if (!code) code = spng_decode_image(png, pixels, bytes, SPNG_FMT_RGBA8, SPNG_DECODE_TRNS);
        if (!code) code = spng_decode_chunks(png); /* to the end, so that a file that is cut off there is noticed */
        if (code) {
            status = broken(source, code, error);
        } else {
            check->info->orientation = orientation_of(png);
            image_on_white(pixels, n);
        }
    }
    spng_ctx_free(png);
    if (status) {
        free(pixels);
        pixels = NULL;
    }
    *rgb = pixels;
    return status;
}
