#include "media/digest.h"

#include <stdio.h>
#include <string.h>

#include <openssl/evp.h>

static kakeya_status digest_of(const char *what, const void *head, size_t head_bytes, const void *data, size_t bytes,
                               unsigned char out[IMAGE_DIGEST_BYTES], kakeya_error *error) {
    EVP_MD_CTX *sum = EVP_MD_CTX_new();
    int done = sum && EVP_DigestInit_ex(sum, EVP_sha256(), NULL) && EVP_DigestUpdate(sum, head, head_bytes) &&
               EVP_DigestUpdate(sum, data, bytes) && EVP_DigestFinal_ex(sum, out, NULL);
    EVP_MD_CTX_free(sum);
    return done ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "digest of %s: out of memory", what);
}

kakeya_status image_digest(const image *picture, unsigned char out[IMAGE_DIGEST_BYTES], kakeya_error *error) {
    unsigned char head[13] = "image";
    for (int i = 0; i < 4; i++) {
        head[5 + i] = (unsigned char)((uint32_t)picture->height >> 8 * i);
        head[9 + i] = (unsigned char)((uint32_t)picture->width >> 8 * i);
    }
    const size_t bytes = 3 * (size_t)picture->width * (size_t)picture->height;
    return digest_of("an image", head, sizeof head, picture->rgb, bytes, out, error);
}

kakeya_status sound_digest(const sound_samples *s, unsigned char out[IMAGE_DIGEST_BYTES], kakeya_error *error) {
    return digest_of("a sound", "sound", 5, s->sample, s->n * sizeof *s->sample, out, error);
}

enum { KEY_BITS = 31, KEYS = (8 * IMAGE_DIGEST_BYTES + KEY_BITS - 1) / KEY_BITS };

int32_t image_digest_key(const unsigned char digest[IMAGE_DIGEST_BYTES], size_t offset) {
    const size_t bit = offset % KEYS * KEY_BITS;
    uint64_t bits = 0;
    for (size_t i = 0; i < 5 && bit / 8 + i < IMAGE_DIGEST_BYTES; i++) bits |= (uint64_t)digest[bit / 8 + i] << 8 * i;
    return -1 - (int32_t)(bits >> bit % 8 & INT32_MAX);
}

bool image_digest_of_keys(const int32_t *keys, size_t n, unsigned char out[IMAGE_DIGEST_BYTES]) {
    if (n < KEYS) return false;
    memset(out, 0, IMAGE_DIGEST_BYTES);
    for (size_t k = 0; k < KEYS; k++) {
        const size_t bit = k * KEY_BITS;
        const uint64_t bits = (uint64_t)(uint32_t)(-1 - keys[k]) << bit % 8;
        for (size_t i = 0; i < 5 && bit / 8 + i < IMAGE_DIGEST_BYTES; i++) out[bit / 8 + i] |= bits >> 8 * i & 255;
    }
    for (size_t k = 0; k < n; k++)
        if (keys[k] != image_digest_key(out, k)) return false;
    return true;
}

void image_digest_text(const unsigned char digest[IMAGE_DIGEST_BYTES], char out[IMAGE_DIGEST_TEXT]) {
    for (size_t i = 0; i < IMAGE_DIGEST_BYTES; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
}
