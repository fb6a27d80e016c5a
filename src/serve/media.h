/* Pictures and sounds in requests, whatever the API: found in messages, read into the call, counted and known by
 * digests. What is read of a part is said by images.h and sounds.h. */
#ifndef KAKEYA_SERVE_MEDIA_H
#define KAKEYA_SERVE_MEDIA_H

#include "serve/answer.h"

/* Whether a part of a message is a picture or a sound, by its type. */
bool media_is_part(const cJSON *part);

/* A part among the parts of a message of chat completions, for APIs whose own requests become such: shows `part`, which
 * outlives it, and names its place there for errors. NULL: out of memory. */
cJSON *media_quote(const cJSON *part, const char *place);

/* Reads the pictures in users' and tools' messages and the sounds in users', in the form of chat completions, into the
 * call. Their parts become {"type":"image"} or {"type":"audio"} with a number and a digest, so that their bytes are
 * gone from the tree. Where the model reads none, tools' are left as they are, and others refused. quoted: they come
 * from media_quote. *found: how many there were. False: *error, with the place. */
bool media_take(call *c, cJSON *messages, bool quoted, size_t *found, api_error *error);
/* Whether media_take has read this part. */
bool media_is_taken(const cJSON *part);
/* For those that are read otherwise: the item becomes the call's, with the memory that it takes, also on failure; a
 * part that stands for it is made of `part`. */
bool media_put(call *c, const kakeya_media *item, cJSON *part, api_error *error);

/* Lengths of the runs of a prompt's media, in the order of each kind; freed by media_lengths_free. */
typedef struct media_lengths {
    int *images, *sounds;
    size_t n_images, n_sounds;
} media_lengths;
void media_lengths_free(media_lengths *lengths);

/* The media of these messages, which media_take has seen, for the prompt: out->media, and their lengths, which are
 * freed also on failure. */
bool media_of_prompt(call *c, const cJSON *messages, answer_options *out, media_lengths *lengths, api_error *error);
/* Of the prompt's ids, once they are there: out->keys. */
bool media_key_prompt(const call *c, answer_options *out, api_error *error);

#endif
