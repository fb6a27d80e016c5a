/* Pictures in requests: data URIs and base64 blocks of all APIs, read and fitted into their budgets. A picture is never
 * fetched from anywhere. */
#ifndef KAKEYA_SERVE_IMAGES_H
#define KAKEYA_SERVE_IMAGES_H

#include "media/image.h"
#include "serve/answer.h"
#include "serve/body.h"
#include "serve/call_media.h"

/* Of one request and its pictures; what the settings leave at 0 has its default. */
typedef struct images_limited {
    int budget;      /* tokens, where requests say nothing */
    size_t bytes;    /* of a picture's file */
    uint64_t pixels; /* of a picture in its file */
    int count;       /* of a request */
} images_limited;
images_limited images_limits(const serve_settings *settings);

/* Whether the model that is loaded, and its backend, read pictures. */
bool images_are_read(const server_context *server);
/* Whether a part of a message is a picture, by its type. */
bool images_is_part(const cJSON *part);

/* The request's own budget: image_budget, or mm_processor_kwargs.max_soft_tokens as vLLM has it. */
void images_read_budget(call *c, fields *f);

/* Why the model reads none; `what` begins the message. */
bool images_refuse(const call *c, const char *what, const char *place, api_error *error);
/* A part in the form of any of the APIs: a data: URI, or a block of base64. The caller owns out->image. */
bool images_read_part(call *c, const cJSON *part, const char *place, kakeya_media *out, api_error *error);
/* Of the last picture of a call: names it for a header where it was made smaller. True. */
bool images_note_smaller(call_media *all, const char *place);

#endif
