/* What a caller wants of a session: a prompt, an answer, or one behind the other. */
#ifndef KAKEYA_SESSION_REQUEST_H
#define KAKEYA_SESSION_REQUEST_H

#include <stdio.h>

#include "session/answer.h"
#include "session/prompt.h"

typedef enum request_state {
    REQUEST_QUEUED = 0, /* has not begun */
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
    void *owned;      /* copies of what the caller passed; NULL: everything is borrowed */
    uint64_t arrival; /* the place in the order of all requests; 0: behind those that were submitted before */
    /* --- the scheduler's */
    request_state state;
    bool failing;         /* ends as `status` says, once nothing is being computed */
    kakeya_status status; /* once done */
    kakeya_error error;
    bool prompt_begun, continues; /* continues: the prompt is the timeline itself, whose last row is missing */
    double prompt_started;
    bool rests;   /* it is paused, or was and has not gone on yet */
    FILE *parked; /* NULL: the session has its memory */
    int parkings;
    bool kept;       /* there was no room for a file while it waited or rested */
    uint64_t served; /* the iteration that served it last */
    size_t need;     /* bytes of K/V memory that admission reckons with */
    size_t wanting;  /* of these, what it does not hold yet; part of a sum (admission.h) */
    struct kakeya_request *next;
};

/* In the order of arrival. */
typedef struct request_list {
    kakeya_request *first, *last;
} request_list;

/* Behind those that arrived before it or with it. */
void request_insert(request_list *list, kakeya_request *r);
/* `before` is the one in front of it; NULL: it is the first. */
void request_remove(request_list *list, kakeya_request *before, kakeya_request *r);

/* The life of a request, on the thread that computes. */

/* Prompt or answer begin, or the request is done. Takes the turn for moments. */
void request_begin(kakeya_request *r, decode_buffers *buffers);
/* A prompt that is whole: the answer follows, or nothing. */
void request_end_prompt(kakeya_request *r, decode_buffers *buffers);
/* An answer that wants no further block is done. */
void request_end_answer(kakeya_request *r);
/* It is done with this status; of one that has not begun, too. */
void request_fail(kakeya_request *r, kakeya_status status);

#endif
