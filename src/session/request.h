/* What a caller wants of a session: a prompt, an answer, or one behind the other. */
#ifndef KAKEYA_SESSION_REQUEST_H
#define KAKEYA_SESSION_REQUEST_H

#include <stdio.h>

#include "session/answer.h"
#include "session/prompt.h"

typedef enum request_state {
    REQUEST_QUEUED = 0, /* not admitted */
    REQUEST_PROMPT,
    REQUEST_ANSWER,
    REQUEST_DONE,
} request_state;

/* A prompt, an answer, or one behind the other. All zero but for what the first part says. */
struct kakeya_request {
    kakeya_session *session;
    bool prompts, answers;
    prompt_work prompt;     /* with prompts */
    answer_work answer;     /* with answers; prepared */
    kakeya_done_fn on_done; /* NULL: nobody asks */
    void *done_user;
    size_t copy_tokens; /* what on_copy gets of the prompt's end; 0: nothing */
    kakeya_session_fn on_copy;
    void *copy_user;
    void *owned; /* copies of what the caller passed; NULL: everything is borrowed */
    /* --- the scheduler's */
    request_state state;
    bool failing;         /* ends as `status` says, once nothing is being computed */
    kakeya_status status; /* once done */
    kakeya_error error;
    bool prompt_begun, continues; /* continues: the prompt is the timeline itself, whose last row is missing */
    double prompt_started;
    FILE *parked; /* NULL: the session has its memory */
    int parkings;
    uint64_t admitted, served; /* counts of the scheduler: when this happened last */
    size_t need;               /* bytes of K/V memory that admission reckons with */
    struct kakeya_request *next;
};

#endif
