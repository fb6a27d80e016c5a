#include "serve/store_rules.h"

#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>

#include "serve/store_index.h"

uint64_t store_salt(const char *salt) {
    if (!salt) return 0;
    unsigned char digest[SHA256_DIGEST_LENGTH];
    uint64_t number;
    SHA256((const unsigned char *)salt, strlen(salt), digest);
    memcpy(&number, digest, sizeof number);
    return number ? number : 1;
}

bool store_salts_equal(const char *a, const char *b) { return a && b ? strcmp(a, b) == 0 : a == b; }

const int32_t *store_keys(const kakeya_session *session, size_t *n, int32_t **owned) {
    const int32_t *tokens = kakeya_session_tokens(session, n);
    *owned = NULL;
    if (!kakeya_session_images(session)) return tokens;
    *owned = malloc(*n * sizeof **owned + 1);
    if (*owned) kakeya_session_keys(session, *owned);
    return *owned;
}

/* A block may end with an answer's newest token, which is not computed yet, or inside a picture, which is not cut: then
 * an earlier one is the last, where the rings reach back so far. */
size_t store_blocks_end(const kakeya_session *session, const int32_t *ids, size_t n) {
    size_t end = n / STORE_BLOCK_TOKENS * STORE_BLOCK_TOKENS;
    while (end) {
        size_t reached = kakeya_session_reachable(session, ids, end);
        if (reached == end) return end;
        end = reached / STORE_BLOCK_TOKENS * STORE_BLOCK_TOKENS;
    }
    return 0;
}
