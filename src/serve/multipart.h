/* Bodies of multipart/form-data (RFC 7578), as forms and OpenAI's clients send files. */
#ifndef KAKEYA_SERVE_MULTIPART_H
#define KAKEYA_SERVE_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>

#include "serve/errors.h"

enum { MULTIPART_NAME_BYTES = 64 };

typedef struct multipart_field {
    char name[MULTIPART_NAME_BYTES];
    const char *data; /* in the body, not NUL-terminated */
    size_t bytes;
} multipart_field;

bool multipart_is_form(const char *content_type); /* NULL is none */

/* Writes the fields in their order, at most `room` of them. False: *error, 400. */
bool multipart_read(const char *content_type, const char *body, size_t bytes, multipart_field *out, size_t room,
                    size_t *n, api_error *error);

#endif
