/* The content of a message: what an answer says becomes blocks, one behind the other, as JSON or as the events that
 * tell of them. */
#ifndef KAKEYA_SERVE_ANTHROPIC_OUTPUT_H
#define KAKEYA_SERVE_ANTHROPIC_OUTPUT_H

#include "serve/answer.h"
#include "serve/reasoning_seal.h"

typedef enum block_kind { BLOCK_NONE = 0, BLOCK_THINKING, BLOCK_TEXT, BLOCK_CALL } block_kind;

typedef struct anthropic_output {
    const reasoning_seal *seal;
    bool streams;       /* events are written, and no blocks */
    bool omit_thinking; /* thoughts go out sealed in their signature, without text */
    text_buffer events; /* that have not been sent */
    text_buffer blocks; /* that are complete, with commas between */
    size_t n_blocks;
    /* --- the block that is open */
    block_kind kind;
    text_buffer text; /* of a thought; without streams of every block, of arguments for calls */
} anthropic_output;

void anthropic_output_free(anthropic_output *o);

/* Content, reasoning and calls of an answer; other events do nothing. */
void anthropic_output_event(anthropic_output *o, const answer_event *event);
/* Ends what is open. A message has one block at least. */
void anthropic_output_end(anthropic_output *o);

#endif
