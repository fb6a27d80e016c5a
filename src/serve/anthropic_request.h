/* What a request of the Messages API asks for. */
#ifndef KAKEYA_SERVE_ANTHROPIC_REQUEST_H
#define KAKEYA_SERVE_ANTHROPIC_REQUEST_H

#include "serve/answer.h"

typedef struct anthropic_request {
    const char *model;
    bool stream;
    bool omit_thinking;     /* thoughts are told of, but not their text */
    answer_options options; /* with the prompt; its texts live here and in the call's body */
} anthropic_request;

void anthropic_request_init(anthropic_request *r);
void anthropic_request_free(anthropic_request *r); /* the options too, if no answer has taken them */

/* Reads the body of a call and renders the prompt. counting: nothing is generated, so there need be no limit. On a
 * worker thread. */
bool anthropic_request_read(call *c, bool counting, anthropic_request *r, api_error *error);

#endif
