/* What the chat APIs read in the same way. */
#ifndef KAKEYA_SERVE_OPENAI_CHAT_H
#define KAKEYA_SERVE_OPENAI_CHAT_H

#include "serve/answer.h"
#include "serve/body.h"
#include "serve/openai_grammar.h"

/* How a conversation is rendered and what its answer may hold. */
typedef struct chat_shape {
    bool thinking, hide_reasoning;
    bool without_turn;      /* the model's turn is not opened */
    bool continues;         /* the answer goes on with the last message */
    bool is_question;       /* what cannot fit into the context is refused before all of it has been read */
    bool preserve_thinking; /* reasoning of earlier turns stays */
    const char *param;      /* the field that the conversation comes from; NULL: messages, whose places errors name */
} chat_shape;

/* What a request of any API wants of its answer, besides. */
typedef struct chat_wish {
    const cJSON *tools; /* functions as chat completions declare them, not empty; NULL: none */
    answer_form form;
    int thinks;              /* reasoning is asked for: 1, none is: 0, nothing is said: -1 */
    int64_t thinking_budget; /* tokens; < 0: no limit */
    bool hides_reasoning;
    bool one_call; /* at most */
} chat_wish;

/* Nothing is wished. */
void chat_wish_init(chat_wish *wish);
/* Whether a function may be called so: 1 to 128 letters, digits, '_', '-' and '.'. */
bool openai_is_tool_name(const cJSON *item);
/* A list of functions. Returns it, or NULL where it is empty or wrong. */
const cJSON *openai_check_tools(const cJSON *tools, api_error *error);
/* Whether the value asks for reasoning, as thinks; -1: it is none of the efforts. */
int openai_effort(const char *effort);
/* "none, minimal, low, ..." */
extern const char openai_efforts[];
/* messages, tools, thinking and formats of a body of chat completions: the call's conversation and tools, and what
 * openai_settle does. out may be NULL: nothing is generated. */
void openai_read_chat(call *c, fields *f, chat_shape *shape, answer_options *out);
/* The wish's tools become the call's; shape and out say what it wishes. Frees what its form owns. */
void openai_settle(call *c, chat_wish *wish, chat_shape *shape, answer_options *out, api_error *error);
/* The tokens of the call's conversation: out->ids, n_ids, n_stable. False: *error; with context_length_exceeded n_ids
 * is a number of tokens that it has at least. */
bool openai_render_chat(call *c, const chat_shape *shape, answer_options *out, api_error *error);

#endif
