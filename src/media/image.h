/* Pictures: bytes of a file to upright RGB. PNG, JPEG, WebP and GIF, told apart by their first bytes. What is decoded
 * is what Pillow decodes, bit for bit: EXIF orientation applied, alpha composed on white, the first frame of several,
 * the high byte of 16-bit samples, no colour management. Nothing here knows a model. */
#ifndef KAKEYA_MEDIA_IMAGE_H
#define KAKEYA_MEDIA_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef enum image_format { IMAGE_PNG = 0, IMAGE_JPEG, IMAGE_WEBP, IMAGE_GIF, IMAGE_FORMATS } image_format;

/* What a header says. */
typedef struct image_info {
    image_format format;
    int width, height; /* as they are stored, before turning */
    int orientation;   /* of EXIF: 1 to 8; 1: upright */
} image_info;

/* What is refused before anything large is allocated. */
typedef struct image_limits {
    int side;        /* pixels of either side */
    uint64_t pixels; /* width times height */
} image_limits;

enum { IMAGE_MAX_SIDE = 32768, IMAGE_MAX_PIXELS = 64 * 1000 * 1000 };
extern const image_limits image_default_limits;

typedef struct image {
    int width, height;
    unsigned char *rgb; /* [height][width][3]; freed by image_free */
} image;

const char *image_format_name(image_format format); /* "PNG" */

void image_free(image *image); /* zeroed ones too */

#endif
