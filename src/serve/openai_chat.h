/* What the chat APIs read in the same way. */
#ifndef KAKEYA_SERVE_OPENAI_CHAT_H
#define KAKEYA_SERVE_OPENAI_CHAT_H

#include "serve/answer.h"
#include "serve/body.h"

/* How a conversation is rendered and what its answer may hold. */
typedef struct chat_shape {
    const cJSON *object; /* of the request that was read */
    bool thinking, hide_reasoning;
    bool without_turn;      /* the model's turn is not opened */
    bool continues;         /* the answer goes on with the last message */
    bool is_question;       /* what cannot fit into the context is refused before all of it has been read */
    bool preserve_thinking; /* reasoning of earlier turns stays */
    /* JSON text of the request in the form of chat completions; NULL: the body of the call. Outlives the answer. */
    const char *request;
    size_t request_bytes;
} chat_shape;

/* Whether a function may be called so: 1 to 64 letters, digits, '_', '-' and '.'. */
bool openai_is_tool_name(const cJSON *item);
/* messages, tools, thinking and formats of a request in the form of chat completions. out may be NULL: nothing is
 * generated. */
void openai_read_chat(call *c, fields *f, chat_shape *shape, answer_options *out);
/* The prompt's tokens: out->ids, n_ids, n_stable. False: *error; with context_length_exceeded n_ids is a number of
 * tokens that it has at least. */
bool openai_render_chat(call *c, const chat_shape *shape, answer_options *out, api_error *error);

#endif
