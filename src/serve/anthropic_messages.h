/* The conversation of a request of the Messages API. */
#ifndef KAKEYA_SERVE_ANTHROPIC_MESSAGES_H
#define KAKEYA_SERVE_ANTHROPIC_MESSAGES_H

#include <cjson/cJSON.h>

#include "serve/errors.h"
#include "serve/reasoning_seal.h"
#include "serve/text.h"
#include "text/chat_conversation.h"

typedef struct messages_in {
    const cJSON *system;        /* a text or a list of blocks; NULL: none */
    const cJSON *messages;      /* the list */
    bool pictures;              /* blocks of type image in results of tools are read; those of users always are */
    const reasoning_seal *seal; /* with which thoughts were closed that clients give back without their text */
} messages_in;

typedef struct messages_out {
    chat_conversation *said; /* that is appended to; its texts may lie in the request */
    bool continues;          /* the last one is an assistant's, and the answer goes on with it */
    bool cache_control;      /* somewhere a block asks for a place in a cache */
    text_buffer *ignored;    /* names of what is left out */
} messages_out;

/* Blocks of one turn become one message, and so do neighbouring messages of one role. Results of tools stand directly
 * behind their calls. False: *error, which names the block. */
bool anthropic_messages(const messages_in *in, messages_out *out, api_error *error);

#endif
