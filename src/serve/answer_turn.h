/* What a choice has said, as the message that its client gets and later sends back: the turn memory finds the tokens
 * by it. */
#ifndef KAKEYA_SERVE_ANSWER_TURN_H
#define KAKEYA_SERVE_ANSWER_TURN_H

#include "serve/text.h"
#include "serve/turn_memory.h"

/* Zeros are an empty one. */
typedef struct answer_turn {
    text_buffer content;
    text_buffer arguments;   /* of the open call */
    kakeya_chat_call call;   /* the open one, without them; name NULL: none is open */
    chat_conversation calls; /* those that are complete, in one message */
} answer_turn;

void answer_turn_free(answer_turn *turn);

/* Content and calls are noted; reasoning is not part of what clients must send back. */
void answer_turn_event(answer_turn *turn, const kakeya_chat_event *event);

/* Remembers it as the answer to n_messages of a conversation. ids[0..n): as in turn_memory_put. What was cut
 * inside a thought or a call is left out: the format would go on behind it as if that had ended. So is what memory does
 * not suffice for. */
void answer_turn_remember(answer_turn *turn, turn_memory *memory, const kakeya_tokenizer *tokenizer,
                          const kakeya_chat_message *messages, size_t n_messages, const int32_t *ids, size_t n_stable,
                          size_t n);

#endif
