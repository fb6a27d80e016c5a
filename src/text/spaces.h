/* White space in Python's sense, which is what jinja's trim removes. */
#ifndef KAKEYA_TEXT_SPACES_H
#define KAKEYA_TEXT_SPACES_H

#include <stdbool.h>
#include <stddef.h>

/* Length of the white space character at text[0], 0 if there is none. */
static inline size_t space_length(const char *text, size_t bytes) {
    const unsigned char *p = (const unsigned char *)text;
    if (bytes == 0) return 0;
    if ((p[0] >= 0x09 && p[0] <= 0x0D) || (p[0] >= 0x1C && p[0] <= 0x20)) return 1;
    if (bytes >= 2 && p[0] == 0xC2 && (p[1] == 0x85 || p[1] == 0xA0)) return 2;
    if (bytes < 3) return 0;
    unsigned code = (unsigned)(p[0] & 0x0F) << 12 | (unsigned)(p[1] & 0x3F) << 6 | (unsigned)(p[2] & 0x3F);
    if ((p[0] & 0xF0) != 0xE0 || (p[1] & 0xC0) != 0x80 || (p[2] & 0xC0) != 0x80) return 0;
    bool space = code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
                 code == 0x202F || code == 0x205F || code == 0x3000;
    return space ? 3 : 0;
}

/* Leaves out white space at both ends. */
static inline void space_trim(const char **text, size_t *bytes) {
    for (size_t length; (length = space_length(*text, *bytes)) > 0;) {
        *text += length;
        *bytes -= length;
    }
    for (;;) {
        size_t length = 1;
        while (length <= 3 && length <= *bytes && space_length(*text + *bytes - length, length) != length) length++;
        if (length > 3 || length > *bytes) return;
        *bytes -= length;
    }
}

#endif
