#include "media/digest.h"

#include <stdio.h>
#include <string.h>

#include <openssl/evp.h>

kakeya_status image_digest(const image *picture, unsigned char out[IMAGE_DIGEST_BYTES], kakeya_error *error) {
    unsigned char head[13] = "image";
    for (int i = 0; i < 4; i++) {
        head[5 + i] = (unsigned char)((uint32_t)picture->height >> 8 * i);
        head[9 + i] = (unsigned char)((uint32_t)picture->width >> 8 * i);
    }
    const size_t bytes = 3 * (size_t)picture->width * (size_t)picture->height;
    EVP_MD_CTX *sum = EVP_MD_CTX_new();
    int done = sum && EVP_DigestInit_ex(sum, EVP_sha256(), NULL) && EVP_DigestUpdate(sum, head, sizeof head) &&
               EVP_DigestUpdate(sum, picture->rgb, bytes) && EVP_DigestFinal_ex(sum, out, NULL);
    EVP_MD_CTX_free(sum);
    return done ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "digest of an image: out of memory");
}

void image_digest_text(const unsigned char digest[IMAGE_DIGEST_BYTES], char out[IMAGE_DIGEST_TEXT]) {
    for (size_t i = 0; i < IMAGE_DIGEST_BYTES; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
}
