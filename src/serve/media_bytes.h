/* Base64 of a picture or a sound, within the limit of its bytes. */
#ifndef KAKEYA_SERVE_MEDIA_BYTES_H
#define KAKEYA_SERVE_MEDIA_BYTES_H

#include "serve/errors.h"

typedef struct media_limit {
    const char *what;   /* "image", "sound" */
    const char *option; /* that sets it */
    size_t most;        /* bytes */
} media_limit;

/* n characters of base64; *data is malloc'ed, NULL on failure. place: of the part, for the error. */
bool media_read_base64(const char *text, size_t n, const media_limit *limit, const char *place, unsigned char **data,
                       size_t *bytes, api_error *error);

#endif
