#include "base/nul.h"

#include <stdlib.h>
#include <string.h>

enum { SPELLING_BYTES = sizeof NUL_SPELLING - 1 };

bool nul_is_spelled(const char *text, size_t bytes) {
    const char *at = text, *end = text + bytes;
    while (at < end && (at = memchr(at, NUL_SPELLING[0], (size_t)(end - at))) != NULL) {
        if (end - at >= SPELLING_BYTES && memcmp(at, NUL_SPELLING, SPELLING_BYTES) == 0) return true;
        at++;
    }
    return false;
}

size_t nul_read(char *to, const char *text, size_t bytes) {
    size_t n = 0;
    for (size_t i = 0; i < bytes; n++) {
        bool spelled = bytes - i >= SPELLING_BYTES && memcmp(text + i, NUL_SPELLING, SPELLING_BYTES) == 0;
        to[n] = spelled ? '\0' : text[i];
        i += spelled ? SPELLING_BYTES : 1;
    }
    return n;
}

char *nul_spell(const char *text, size_t bytes) {
    size_t more = 0;
    for (size_t i = 0; i < bytes; i++) more += text[i] == '\0';
    char *spelled = malloc(bytes + more * (SPELLING_BYTES - 1) + 1), *to = spelled;
    if (!spelled) return NULL;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i]) {
            *to++ = text[i];
        } else {
            memcpy(to, NUL_SPELLING, SPELLING_BYTES);
            to += SPELLING_BYTES;
        }
    }
    *to = '\0';
    return spelled;
}
