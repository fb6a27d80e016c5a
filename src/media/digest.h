/* What a picture is known by, in every key of what was computed of it. */
#ifndef KAKEYA_MEDIA_DIGEST_H
#define KAKEYA_MEDIA_DIGEST_H

#include "media/image.h"

enum { IMAGE_DIGEST_BYTES = 32, IMAGE_DIGEST_TEXT = 2 * IMAGE_DIGEST_BYTES + 1 };

/* SHA-256 of the size and the pixels of a picture as a model reads it. */
kakeya_status image_digest(const image *picture, unsigned char out[IMAGE_DIGEST_BYTES], kakeya_error *error);
/* In hexadecimal digits. */
void image_digest_text(const unsigned char digest[IMAGE_DIGEST_BYTES], char out[IMAGE_DIGEST_TEXT]);

#endif
