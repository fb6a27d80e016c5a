/* Pictures in requests: data URIs and base64 blocks of all APIs, read, fitted into their budgets and counted. A picture
 * is never fetched from anywhere. */
#ifndef KAKEYA_SERVE_IMAGES_H
#define KAKEYA_SERVE_IMAGES_H

#include "media/image.h"
#include "serve/answer.h"
#include "serve/body.h"

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

/* A picture's part among the parts of a message of chat completions, for APIs whose own requests become such: shows
 * `part`, which outlives it, and names its place there for errors. NULL: out of memory. */
cJSON *images_quote(const cJSON *part, const char *place);

/* Reads the pictures in users' and tools' messages, in the form of chat completions, into the call. Their parts become
 * {"type":"image"} with a number and a digest, so that their bytes are gone from the tree. Where the model reads none,
 * tools' are left as they are, and others refused. quoted: they come from images_quote. *found: how many there were.
 * False: *error, with the place. */
bool images_take(call *c, cJSON *messages, bool quoted, size_t *found, api_error *error);
/* Whether images_take has read this part. */
bool images_is_taken(const cJSON *part);

/* The pictures of these messages, which images_take has seen, for the prompt: out->media, and their lengths, *tokens,
 * which are malloc'ed. */
bool images_of_prompt(call *c, const cJSON *messages, answer_options *out, int **tokens, api_error *error);
/* Of the prompt's ids, once they are there: out->keys. */
bool images_key_prompt(const call *c, answer_options *out, api_error *error);

#endif
