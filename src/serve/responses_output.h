/* The output of a response: what an answer says becomes items, one behind the other, and the events that tell of them.
 * The items of the final object are the very texts that the done events held. */
#ifndef KAKEYA_SERVE_RESPONSES_OUTPUT_H
#define KAKEYA_SERVE_RESPONSES_OUTPUT_H

#include "serve/answer.h"
#include "serve/reasoning_seal.h"
#include "serve/responses_tools.h"

typedef enum output_kind { OUTPUT_NOTHING = 0, OUTPUT_REASONING, OUTPUT_MESSAGE, OUTPUT_CALL } output_kind;

/* How each kind of text is told: the type of its part, what counts that among others, and the names of its events. */
typedef enum response_text { RESPONSE_ANSWER = 0, RESPONSE_REASONING, RESPONSE_SUMMARY } response_text;
typedef enum response_text_event { PART_ADDED = 0, TEXT_DELTA, TEXT_DONE, PART_DONE } response_text_event;
typedef struct response_text_form {
    const char *part, *index, *events[4]; /* by response_text_event */
} response_text_form;
extern const response_text_form response_text_forms[3]; /* by response_text */

/* The same of calls: of functions, and of custom tools. */
typedef struct response_call_form {
    const char *type, *text, *delta, *done; /* text: the member that has what is called with */
} response_call_form;
extern const response_call_form response_call_forms[2]; /* 1: custom */

typedef struct responses_output {
    const kakeya_tokenizer *tokenizer;
    const reasoning_seal *seal; /* NULL: reasoning is not sealed */
    bool streams;               /* events are written */
    bool summary;               /* reasoning is given as a summary */
    bool logprobs;
    const response_tools *tools; /* NULL: all calls are of plain functions */
    size_t sequence;             /* number of the next event */
    text_buffer events;          /* that have not been sent */
    text_buffer items;           /* that are complete, with commas between */
    size_t n_items;
    /* --- the item that is open */
    output_kind kind;
    char id[RANDOM_ID_BYTES + 4];
    text_buffer text, logprob_entries; /* text: of the arguments for calls */
    char *call_id, *name;
    const response_tool *tool; /* that is called, if its calls are no plain ones */
} responses_output;

void responses_output_free(responses_output *o);

/* Content, reasoning and calls of an answer; other events do nothing. */
void responses_output_event(responses_output *o, const answer_event *event);
/* Ends the open item, if there is one. */
void responses_output_close(responses_output *o, bool complete);

/* An event with members of its own: begin, then ",name:value"s into o->events, then end. False: events are not written.
 */
bool responses_event_begin(responses_output *o, const char *type);
void responses_event_end(responses_output *o);

#endif
