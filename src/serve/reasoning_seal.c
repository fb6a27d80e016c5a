#include "serve/reasoning_seal.h"
#include "base/nul.h"
#include "base/platform.h"

#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_BYTES = 16, DIGEST_BYTES = 32, MOST_BYTES = 64 << 20 };

static const char mark[] = "kk1.";

bool reasoning_seal_init(reasoning_seal *seal) { return platform_random(seal->key, sizeof seal->key); }

static bool make_tag(const reasoning_seal *seal, const void *text, size_t bytes, unsigned char tag[DIGEST_BYTES]) {
    unsigned int length = 0;
    return HMAC(EVP_sha256(), seal->key, sizeof seal->key, text, bytes, tag, &length) && length == DIGEST_BYTES;
}

void reasoning_seal_close(const reasoning_seal *seal, const char *text, size_t bytes, text_buffer *out) {
    unsigned char tag[DIGEST_BYTES];
    size_t n = TAG_BYTES + bytes, room = (n + 2) / 3 * 4 + 1;
    unsigned char *plain = bytes < MOST_BYTES ? malloc(n) : NULL;
    char *coded = bytes < MOST_BYTES ? malloc(room) : NULL;
    if (plain && coded && make_tag(seal, text, bytes, tag)) {
        memcpy(plain, tag, TAG_BYTES);
        memcpy(plain + TAG_BYTES, text, bytes);
        int length = EVP_EncodeBlock((unsigned char *)coded, plain, (int)n);
        while (length > 0 && coded[length - 1] == '=') length--;
        for (int i = 0; i < length; i++) coded[i] = coded[i] == '+' ? '-' : coded[i] == '/' ? '_' : coded[i];
        text_add(out, mark);
        text_bytes(out, coded, (size_t)length);
    } else {
        out->failed = true;
    }
    free(plain);
    free(coded);
}

/* base64url without padding; NULL where it is none. *bytes: of the result, behind which there is room for a NUL. */
static unsigned char *decode(const char *coded, size_t n, size_t *bytes) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    if (n % 4 == 1 || n >= MOST_BYTES || strspn(coded, digits) != n) return NULL;
    size_t padded = (n + 3) / 4 * 4;
    unsigned char *text = malloc(padded + 1), *plain = malloc(padded / 4 * 3 + 1);
    int length = -1;
    if (text && plain) {
        for (size_t i = 0; i < padded; i++)
            text[i] = (unsigned char)(i >= n ? '=' : coded[i] == '-' ? '+' : coded[i] == '_' ? '/' : coded[i]);
        length = EVP_DecodeBlock(plain, text, (int)padded);
    }
    free(text);
    if (length < 0 || (size_t)length < padded - n) {
        free(plain);
        return NULL;
    }
    *bytes = (size_t)length - (padded - n); /* the padding was decoded to zeros */
    return plain;
}

char *reasoning_seal_open(const reasoning_seal *seal, const char *sealed) {
    size_t n = strlen(sealed), skip = strlen(mark), bytes = 0;
    if (strncmp(sealed, mark, skip) != 0) return NULL;
    unsigned char *plain = decode(sealed + skip, n - skip, &bytes), tag[DIGEST_BYTES];
    char *text = NULL;
    if (!plain) return NULL;
    bool good = bytes >= TAG_BYTES && make_tag(seal, plain + TAG_BYTES, bytes - TAG_BYTES, tag) &&
                CRYPTO_memcmp(tag, plain, TAG_BYTES) == 0;
    if (good) {
        text = nul_spell((const char *)plain + TAG_BYTES, bytes - TAG_BYTES);
    }
    free(plain);
    return text;
}

void reasoning_seal_sign(const reasoning_seal *seal, const char *text, size_t bytes, text_buffer *out) {
    unsigned char tag[DIGEST_BYTES], coded[(DIGEST_BYTES + 2) / 3 * 4 + 1];
    if (make_tag(seal, text, bytes, tag)) {
        EVP_EncodeBlock(coded, tag, DIGEST_BYTES);
        text_add(out, (const char *)coded);
    } else {
        out->failed = true;
    }
}
