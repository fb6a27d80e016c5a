#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A message is one line whatever names it quotes. */
static void make_one_line(char *text) {
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = ' ';
    }
}

/* Of a character in UTF-8, anything but its first byte. */
static bool is_continuation(char byte) { return ((unsigned char)byte & 0xc0) == 0x80; }

/* What is longer than `size` loses its middle: it begins with a path, perhaps a long one, and ends with the reason. */
static void format_shortened(char *out, size_t size, const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(out, size, format, arguments);
    char *whole = length >= (int)size ? malloc((size_t)length + 1) : NULL;
    if (whole) {
        vsnprintf(whole, (size_t)length + 1, format, again);
        const char *dots = "...";
        size_t kept = size / 3;
        while (kept > 0 && is_continuation(out[kept])) kept--;
        const char *end = whole + length - (size - kept - strlen(dots) - 1);
        while (is_continuation(*end)) end++;
        snprintf(out + kept, size - kept, "%s%s", dots, end);
        free(whole);
    }
    va_end(again);
}

kakeya_status error_set(kakeya_error *error, kakeya_status status, const char *format, ...) {
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        format_shortened(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
        make_one_line(error->message);
        error->status = status;
    }
    return status;
}

kakeya_status error_prefix(kakeya_error *error, kakeya_status status, const char *format, ...) {
    if (error) {
        char prefix[sizeof error->message / 2];
        char message[sizeof error->message];
        va_list arguments;
        va_start(arguments, format);
        format_shortened(prefix, sizeof prefix, format, arguments);
        va_end(arguments);
        memcpy(message, error->message, sizeof message);
        error_set(error, status, "%s: %s", prefix, message);
    }
    return status;
}

#define STRINGIFY_(x) #x
#define STRINGIFY(x)  STRINGIFY_(x)

const char *kakeya_version(void) {
    return STRINGIFY(KAKEYA_VERSION_MAJOR) "." STRINGIFY(KAKEYA_VERSION_MINOR) "." STRINGIFY(KAKEYA_VERSION_PATCH);
}
