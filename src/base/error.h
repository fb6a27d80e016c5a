/* Status codes and the one-line error text; the vocabulary itself is public (include/kakeya.h). */
#ifndef KAKEYA_BASE_ERROR_H
#define KAKEYA_BASE_ERROR_H

#include "kakeya.h"

/* Writes status and a formatted line into *error (which may be NULL) and returns status, so that callers write
 * `return error_set(error, KAKEYA_FORMAT, "%s: ...", path);`. Newlines and control characters become spaces. */
kakeya_status error_set(kakeya_error *error, kakeya_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " in front of the message that a callee has written. Returns error->status (or `status` if error is
 * NULL). */
kakeya_status error_prefix(kakeya_error *error, kakeya_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
