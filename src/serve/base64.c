#include "serve/base64.h"

#include <stdint.h>

/* 64: not a digit. */
static unsigned digit_of(char c) {
    if (c >= 'A' && c <= 'Z') return (unsigned)(c - 'A');
    if (c >= 'a' && c <= 'z') return (unsigned)(c - 'a') + 26;
    if (c >= '0' && c <= '9') return (unsigned)(c - '0') + 52;
    return c == '+' ? 62 : c == '/' ? 63 : 64;
}

bool base64_read(unsigned char *out, size_t *n, const char *text, size_t bytes) {
    size_t padding = 0;
    while (padding < 2 && padding < bytes && text[bytes - 1 - padding] == '=') padding++;
    if (padding && bytes % 4) return false;
    bytes -= padding;
    if (bytes == 0 || bytes % 4 == 1) return false;
    uint32_t bits = 0;
    *n = 0;
    for (size_t i = 0; i < bytes; i++) {
        const unsigned digit = digit_of(text[i]);
        if (digit > 63) return false;
        bits = bits << 6 | digit;
        if (i % 4 == 0) continue;
        out[(*n)++] = (unsigned char)(bits >> (6 - 2 * (i % 4)));
    }
    return true;
}
