/* Sounds in requests: base64 parts of chat completions, and files that are transcribed. */
#ifndef KAKEYA_SERVE_SOUNDS_H
#define KAKEYA_SERVE_SOUNDS_H

#include "serve/answer.h"

/* Of one request and its sounds; what the settings leave at 0 has its default. */
typedef struct sounds_limited {
    size_t bytes; /* of a sound's file */
    int seconds;  /* of a sound */
    int count;    /* of a request */
} sounds_limited;
sounds_limited sounds_limits(const serve_settings *settings);

/* Whether a part of a message is a sound, by its type. */
bool sounds_is_part(const cJSON *part);
/* Whether the model that is loaded, and its backend, read sounds. */
bool sounds_are_read(const server_context *server);
/* Why it reads none; `what` begins the message. */
bool sounds_refuse(const call *c, const char *what, const char *place, api_error *error);

/* {"input_audio": {"data": base64, "format": "wav"}}. The bytes decide what it is. The caller owns out->sound. */
bool sounds_read_part(call *c, const cJSON *part, const char *place, kakeya_media *out, api_error *error);
/* The same of a file's bytes. */
bool sounds_read_file(call *c, const void *data, size_t bytes, const char *place, kakeya_media *out, api_error *error);

#endif
