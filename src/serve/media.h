/* Pictures and sounds in requests, whatever the API: found in messages, read into the call, counted and known by
 * digests. What is read of a part is said by images.h and sounds.h. */
#ifndef KAKEYA_SERVE_MEDIA_H
#define KAKEYA_SERVE_MEDIA_H

#include "serve/answer.h"

/* A part of the conversation that is a picture or a sound is to be read by media_take. given: the part in its API's
 * form, which outlives that; place: where it is, for errors. */
void media_set(chat_conversation *c, kakeya_chat_part *part, cJSON *given, const char *place);
/* Adds one. */
void media_add(chat_conversation *c, kakeya_chat_message *message, cJSON *given, const char *place);
/* One that has been read otherwise: the item becomes the call's, with the memory that it takes, also on failure. */
bool media_put(call *c, kakeya_chat_message *message, const kakeya_media *item, api_error *error);

/* Reads the pictures and sounds of the call's conversation into the call. Where the model reads none they are refused.
 * False: *error, with the place. */
bool media_take(call *c, api_error *error);

/* Those of the conversation for the prompt: out->media; their parts get their lengths. param: the field that the
 * conversation comes from. */
bool media_of_prompt(call *c, const char *param, answer_options *out, api_error *error);
/* Of the prompt's ids, once they are there: out->keys. */
bool media_key_prompt(const call *c, const char *param, answer_options *out, api_error *error);

#endif
