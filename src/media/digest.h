/* What a picture or a sound is known by, in every key of what was computed of it. */
#ifndef KAKEYA_MEDIA_DIGEST_H
#define KAKEYA_MEDIA_DIGEST_H

#include "media/image.h"
#include "media/sound.h"

enum { IMAGE_DIGEST_BYTES = 32, IMAGE_DIGEST_TEXT = 2 * IMAGE_DIGEST_BYTES + 1 };

/* SHA-256 of the size and the pixels of a picture as a model reads it. */
kakeya_status image_digest(const image *picture, unsigned char out[IMAGE_DIGEST_BYTES], kakeya_error *error);
/* The same of samples. */
kakeya_status sound_digest(const sound_samples *s, unsigned char out[IMAGE_DIGEST_BYTES], kakeya_error *error);
/* In hexadecimal digits. */
void image_digest_text(const unsigned char digest[IMAGE_DIGEST_BYTES], char out[IMAGE_DIGEST_TEXT]);

/* Key `offset` of a picture's or a sound's run (kakeya_prompt_keys), below 0: 31 bits of its digest, so that nine hold
 * all of it. */
int32_t image_digest_key(const unsigned char digest[IMAGE_DIGEST_BYTES], size_t offset);
/* The digest of the picture whose run is keys[0..n). False where they are no picture's, or too few to tell. */
bool image_digest_of_keys(const int32_t *keys, size_t n, unsigned char out[IMAGE_DIGEST_BYTES]);

#endif
