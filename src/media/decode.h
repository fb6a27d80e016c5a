/* Bytes of a file to upright RGB: PNG, JPEG, WebP and GIF, told apart by their first bytes. What is decoded is what
 * Pillow decodes, bit for bit: EXIF orientation applied, alpha composed on white, the first frame of several, the high
 * byte of 16-bit samples, no colour management. */
#ifndef KAKEYA_MEDIA_DECODE_H
#define KAKEYA_MEDIA_DECODE_H

#include "media/image.h"

/* Reads the header and checks it against the limits. KAKEYA_UNSUPPORTED: none of the four formats; KAKEYA_FORMAT: a
 * broken file; KAKEYA_INVALID_ARGUMENT: beyond a limit. `name` begins messages. */
kakeya_status image_read_info(const char *name, const void *data, size_t bytes, const image_limits *limits,
                              image_info *out, kakeya_error *error);
/* Decodes the whole picture. A file that is cut off or damaged is refused, not shown in part. info (may be NULL)
 * receives what image_read_info gives. */
kakeya_status image_decode(const char *name, const void *data, size_t bytes, const image_limits *limits,
                           image_info *info, image *out, kakeya_error *error);

#endif
