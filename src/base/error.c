#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A message is one line whatever names it quotes. */
static void make_one_line(char *text) {
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = ' ';
    }
}

kakeya_status error_set(kakeya_error *error, kakeya_status status, const char *format, ...) {
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
        make_one_line(error->message);
        error->status = status;
    }
    return status;
}

kakeya_status error_prefix(kakeya_error *error, kakeya_status status, const char *format, ...) {
    if (error) {
        char prefix[sizeof error->message];
        char message[sizeof error->message];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(prefix, sizeof prefix, format, arguments);
        va_end(arguments);
        memcpy(message, error->message, sizeof message);
        size_t used = strlen(prefix);
        if (used > sizeof error->message / 2) used = sizeof error->message / 2;
        memcpy(error->message, prefix, used);
        int room = (int)(sizeof error->message - used) - 3; /* ": " and the NUL */
        snprintf(error->message + used, sizeof error->message - used, ": %.*s", room, message);
        make_one_line(error->message);
        error->status = status;
    }
    return status;
}

#define STRINGIFY_(x) #x
#define STRINGIFY(x)  STRINGIFY_(x)

const char *kakeya_version(void) {
    return STRINGIFY(KAKEYA_VERSION_MAJOR) "." STRINGIFY(KAKEYA_VERSION_MINOR) "." STRINGIFY(KAKEYA_VERSION_PATCH);
}
