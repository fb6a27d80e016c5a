/* Base64 in the standard alphabet (RFC 4648), as requests bring pictures. */
#ifndef KAKEYA_SERVE_BASE64_H
#define KAKEYA_SERVE_BASE64_H

#include <stdbool.h>
#include <stddef.h>

/* Room at `out`: bytes / 4 * 3 + 3. Padding may be missing; white space and anything else is refused, and so is an
 * empty text. */
bool base64_read(unsigned char *out, size_t *n, const char *text, size_t bytes);

#endif
