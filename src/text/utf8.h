/* UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef KAKEYA_TEXT_UTF8_H
#define KAKEYA_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>

#define UTF8_REPLACEMENT       "\xEF\xBF\xBD" /* U+FFFD */
#define UTF8_REPLACEMENT_BYTES ((size_t)3)

/* The bytes [low, high] that may follow the lead byte; the bytes after that one are always 0x80..0xBF. Returns the
 * length of the character that the lead byte begins, 0 if it begins none. */
static inline size_t utf8_lead(unsigned char lead, unsigned char *low, unsigned char *high) {
    *low = 0x80;
    *high = 0xBF;
    if (lead < 0x80) return 1;
    if (lead < 0xC2) return 0;
    if (lead < 0xE0) return 2;
    if (lead < 0xF0) {
        if (lead == 0xE0) *low = 0xA0;
        if (lead == 0xED) *high = 0x9F;
        return 3;
    }
    if (lead > 0xF4) return 0;
    if (lead == 0xF0) *low = 0x90;
    if (lead == 0xF4) *high = 0x8F;
    return 4;
}

/* Length of the character at text[0], 1 to 4; 0 if the bytes there are not a whole character. */
static inline size_t utf8_length(const char *text, size_t bytes) {
    if (bytes == 0) return 0;
    unsigned char low, high;
    size_t length = utf8_lead((unsigned char)text[0], &low, &high);
    if (length == 0 || length > bytes) return 0;
    for (size_t i = 1; i < length; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (byte < low || byte > high) return 0;
        low = 0x80;
        high = 0xBF;
    }
    return length;
}

/* The offset of the first byte that begins no valid character; `bytes` if the whole text is valid. */
static inline size_t utf8_valid_bytes(const char *text, size_t bytes) {
    size_t at = 0;
    while (at < bytes) {
        size_t length = utf8_length(text + at, bytes - at);
        if (length == 0) break;
        at += length;
    }
    return at;
}

#endif
