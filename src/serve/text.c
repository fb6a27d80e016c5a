#include "serve/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/nul.h"
#include "text/utf8.h"

void text_free(text_buffer *t) {
    free(t->data);
    *t = (text_buffer){0};
}

void text_clear(text_buffer *t) {
    t->n = 0;
    t->failed = false;
    if (t->data) t->data[0] = '\0';
}

bool text_reserve(text_buffer *t, size_t bytes) {
    if (t->failed) return false;
    if (t->n + bytes + 1 <= t->room) return true;
    size_t room = t->room ? t->room * 2 : 256;
    while (room < t->n + bytes + 1) room *= 2;
    char *grown = realloc(t->data, room);
    if (!grown) {
        t->failed = true;
        return false;
    }
    t->data = grown;
    t->room = room;
    return true;
}

void text_bytes(text_buffer *t, const char *data, size_t bytes) {
    if (!text_reserve(t, bytes)) return;
    if (bytes) memcpy(t->data + t->n, data, bytes);
    t->n += bytes;
    t->data[t->n] = '\0';
}

void text_add(text_buffer *t, const char *literal) { text_bytes(t, literal, strlen(literal)); }

void text_format(text_buffer *t, const char *format, ...) {
    va_list arguments, again;
    if (t->failed) return;
    va_start(arguments, format);
    va_copy(again, arguments);
    size_t room = t->room - t->n;
    int bytes = vsnprintf(room ? t->data + t->n : NULL, room, format, arguments);
    va_end(arguments);
    bool fits = bytes >= 0 && (size_t)bytes < room;
    if (bytes >= 0 && !fits && text_reserve(t, (size_t)bytes))
        fits = vsnprintf(t->data + t->n, (size_t)bytes + 1, format, again) == bytes;
    if (fits) {
        t->n += (size_t)bytes;
    } else if (room) {
        t->data[t->n] = '\0'; /* what was written in part */
    }
    va_end(again);
}

void text_unsigned(text_buffer *t, uint64_t value) {
    char digits[20]; /* of 2^64 - 1 */
    size_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    text_bytes(t, digits + at, sizeof digits - at);
}

void text_json(text_buffer *t, const char *data, size_t bytes) {
    text_bytes(t, "\"", 1);
    size_t from = 0;
    for (size_t i = 0; i < bytes;) {
        unsigned char c = (unsigned char)data[i];
        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\' && c != 0x7f) {
            i++;
            continue;
        }
        size_t length = c >= 0x80 ? utf8_length(data + i, bytes - i) : 0;
        if (length) {
            i += length;
            continue;
        }
        text_bytes(t, data + from, i - from);
        if (nul_is_spelled(data + i, bytes - i > 2 ? 2 : bytes - i)) {
            text_add(t, "\\u0000");
            i++;
        } else if (c >= 0x80) {
            text_add(t, UTF8_REPLACEMENT);
        } else if (c == '"' || c == '\\') {
            const char escaped[2] = {'\\', (char)c};
            text_bytes(t, escaped, 2);
        } else if (c == '\n') {
            text_bytes(t, "\\n", 2);
        } else {
            text_format(t, "\\u%04x", c);
        }
        from = ++i;
    }
    text_bytes(t, data + from, bytes - from);
    text_bytes(t, "\"", 1);
}

void text_json_string(text_buffer *t, const char *string) {
    if (string) {
        text_json(t, string, strlen(string));
    } else {
        text_add(t, "null");
    }
}

void text_json_number(text_buffer *t, double value) {
    if (!isfinite(value)) {
        text_add(t, "null");
        return;
    }
    char digits[32];
    for (int precision = 6; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value) break;
    }
    text_add(t, digits);
}
