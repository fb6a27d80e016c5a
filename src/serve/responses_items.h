/* Items of the Responses API: checked and completed as a request brings them, and as messages of a conversation. */
#ifndef KAKEYA_SERVE_RESPONSES_ITEMS_H
#define KAKEYA_SERVE_RESPONSES_ITEMS_H

#include <cjson/cJSON.h>

#include "serve/errors.h"
#include "serve/text.h"
#include "text/chat_conversation.h"

/* Where the things are that items refer to. */
typedef struct item_source {
    /* The stored item of that id, as JSON of the caller's; NULL: there is none. */
    cJSON *(*find)(void *user, const char *id);
    /* What a sealed reasoning says, malloc'ed; NULL: it was not sealed here, or has been changed since. */
    char *(*unseal)(void *user, const char *sealed);
    void *user;
    bool pictures; /* the model reads them: also those that tools have brought */
} item_source;

/* The `input` of a request, a text or a list, as a list of items that have ids, types and lists of parts; references
 * become what they refer to. Items leave the input. *out is freed with cJSON_Delete. False: *error, whose param begins
 * with "input". */
bool items_read(cJSON *input, const item_source *source, cJSON **out, api_error *error);

/* Appends the messages of `items`, in which texts of `said` lie from then on. The first n_earlier items came with
 * earlier requests; errors count from there. What has no meaning here is left out, and those of this request are named
 * in `ignored`. Neighbouring items of an assistant are one message, as they were one answer. */
bool items_to_messages(const cJSON *items, size_t n_earlier, const item_source *source, chat_conversation *said,
                       text_buffer *ignored, api_error *error);

enum { ITEM_NAME_BYTES = 512 };
/* What the model calls a tool of a namespace: both names, with "__" between them where the first does not end so.
 * Returns `out`. space may be NULL. */
const char *item_join_name(const char *space, const char *name, char out[ITEM_NAME_BYTES]);
/* Of the tool that an item calls. */
const char *item_tool_name(const cJSON *item, char out[ITEM_NAME_BYTES]);

#endif
