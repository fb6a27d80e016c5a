/* What a request of the Responses API asks for. */
#ifndef KAKEYA_SERVE_RESPONSES_REQUEST_H
#define KAKEYA_SERVE_RESPONSES_REQUEST_H

#include "serve/openai_chat.h"
#include "serve/response_store.h"
#include "serve/responses_tools.h"

typedef struct responses_request {
    const char *model;
    bool stream, store;
    bool summary;                     /* reasoning is given as a summary */
    bool seal;                        /* and sealed, for clients that keep it themselves */
    bool logprobs;                    /* of the output's text */
    char previous[RESPONSE_ID_BYTES]; /* id of the response that it continues; "" for none */
    text_buffer input;                /* its own items: the text of a list */
    text_buffer echo;                 /* members of the response that repeat what was asked for, without braces */
    response_tools tools;             /* whose calls have other names for the client */
    cJSON *items;                     /* of its conversation, whose texts lie in them */
    answer_options options;           /* with the prompt; its texts live here and in the call's body */
} responses_request;

void responses_request_init(responses_request *r);
void responses_request_free(responses_request *r); /* the options too, if no answer has taken them */

/* Reads the body of a call and renders the prompt. counting: nothing is generated, so no model need be named. On a
 * worker thread. */
bool responses_request_read(call *c, bool counting, responses_request *r, api_error *error);
/* Whose responses are whose: the key that was used; all the same where the server asks for none. */
unsigned long long responses_owner(const call *c);

#endif
