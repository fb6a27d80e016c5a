/* One decoder for each format, among which decode.c chooses, and what they share. */
#ifndef KAKEYA_MEDIA_DECODERS_H
#define KAKEYA_MEDIA_DECODERS_H

#include "media/image.h"

/* A file in memory. */
typedef struct image_source {
    const char *name; /* begins messages */
    const unsigned char *data;
    size_t bytes;
} image_source;

/* Asked between header and pixels; anything but KAKEYA_OK ends the decoding. */
typedef struct image_check {
    const image_limits *limits;
    image_info *info;  /* [out] */
    bool header_alone; /* the pixels are not wanted */
} image_check;

/* The header's sizes against the limits. */
kakeya_status image_check_size(const image_source *source, const image_check *check, kakeya_error *error);

/* As stored: not turned yet. *rgb, malloc'ed, is [height][width][3]; NULL where the header alone is wanted. */
typedef kakeya_status image_decoder(const image_source *source, const image_check *check, unsigned char **rgb,
                                    kakeya_error *error);
image_decoder image_decode_png, image_decode_jpeg, image_decode_webp, image_decode_gif;

/* Pixels [n][4] with alpha become [n][3] on white, in place. */
void image_on_white(unsigned char *pixels, size_t n);

/* The orientation that a TIFF header with its directory states, with or without "Exif\0\0" before it; 1 where it states
 * none. */
int exif_orientation(const unsigned char *data, size_t bytes);

#endif
