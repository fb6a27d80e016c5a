#include "session/request.h"

#include "base/clock.h"

void request_insert(request_list *list, kakeya_request *r) {
    kakeya_request **at = &list->first;
    if (list->last && list->last->arrival <= r->arrival) at = &list->last->next;
    while (*at && (*at)->arrival <= r->arrival) at = &(*at)->next;
    r->next = *at;
    *at = r;
    if (!r->next) list->last = r;
}

void request_remove(request_list *list, kakeya_request *before, kakeya_request *r) {
    *(before ? &before->next : &list->first) = r->next;
    if (list->last == r) list->last = before;
    r->next = NULL;
}

/* What finds no memory now may go on in a later request, and so may what is cancelled while it waits. */
static void keep_parked(kakeya_request *r, kakeya_status status) {
    if (status == KAKEYA_OUT_OF_MEMORY || status == KAKEYA_CANCELLED || status == KAKEYA_OK)
        r->session->parked = r->parked;
    else
        engine_forget_file(r->session->engine, &r->parked);
    r->parked = NULL;
}

static void finish(kakeya_request *r, kakeya_status status) {
    r->failing = false;
    if (r->parked) keep_parked(r, status);
    prompt_media_free(&r->prompt.media);
    r->answer.counted.waits = (uint64_t)r->parkings;
    if (r->answers) status = answer_close(r->session, &r->answer, status, &r->error);
    r->status = status;
    r->state = REQUEST_DONE;
}

static void begin_prompt(kakeya_request *r) {
    kakeya_engine *engine = r->session->engine;
    engine_turn_begin(engine);
    kakeya_status status = prompt_check(r->session, &r->prompt, &r->error);
    r->prompt_started = clock_seconds();
    if (status == KAKEYA_OK) status = prompt_begin(r->session, &r->prompt, &r->error);
    engine_turn_end(engine);
    r->prompt_begun = true;
    r->state = REQUEST_PROMPT;
    if (status != KAKEYA_OK) finish(r, status);
}

static void end_prompt_time(kakeya_request *r) {
    kakeya_session *session = r->session;
    if (r->continues) return;
    session->prefill_seconds += clock_seconds() - r->prompt_started;
    session->prompt_tokens = r->prompt.n;
    session->reused_tokens = r->prompt.reused;
}

static void begin_answer(kakeya_request *r, decode_buffers *buffers) {
    kakeya_session *session = r->session;
    kakeya_status status = KAKEYA_OK;
    if (!r->continues) status = answer_open(session, &r->answer, buffers, &r->error);
    bool known = r->answer.first.known || r->continues;
    if (status == KAKEYA_OK && !known && answer_needs_row(session) && !atomic_load(&session->cancelled)) {
        r->continues = true;
        r->prompt = (prompt_work){.tokens = session->timeline.tokens, .n = session->timeline.n, .again = true};
        begin_prompt(r);
        return;
    }
    if (status == KAKEYA_OK)
        status = decode_begin(&r->answer.stream, &session->timeline, &session->workspace, buffers, &r->answer.decode,
                              &r->answer.output, &r->answer.counted, &r->answer.first, &r->error);
    r->state = REQUEST_ANSWER;
    if (status != KAKEYA_OK) finish(r, status);
}

void request_end_answer(kakeya_request *r) {
    if (r->state == REQUEST_ANSWER && !decode_goes_on(&r->answer.stream))
        finish(r, decode_end(&r->answer.stream, KAKEYA_OK, &r->error));
}

void request_fail(kakeya_request *r, kakeya_status status) {
    if (r->state == REQUEST_ANSWER)
        status = decode_end(&r->answer.stream, status, &r->error);
    else if (r->state == REQUEST_PROMPT && !r->continues)
        end_prompt_time(r);
    finish(r, status);
}

/* What cannot be copied is missed by nobody but a later prompt. */
static void hand_copy(kakeya_request *r) {
    size_t kept = r->copy_tokens;
    kakeya_session *copy = NULL;
    r->copy_tokens = 0;
    if (!kept || r->prompt.n - kept > KV_RING_SLACK || kakeya_session_fork(r->session, &copy, NULL) != KAKEYA_OK)
        return;
    if (kakeya_session_truncate(copy, kept, NULL) == KAKEYA_OK)
        r->on_copy(r->copy_user, copy);
    else
        session_free(copy);
}

void request_end_prompt(kakeya_request *r, decode_buffers *buffers) {
    end_prompt_time(r);
    prompt_media_free(&r->prompt.media);
    hand_copy(r);
    kakeya_status status = prompt_check(r->session, &r->prompt, &r->error);
    if (status != KAKEYA_OK || !r->answers)
        finish(r, status);
    else
        begin_answer(r, buffers);
}

void request_begin(kakeya_request *r, decode_buffers *buffers) {
    if (r->prompts)
        begin_prompt(r);
    else
        begin_answer(r, buffers);
    if (r->state == REQUEST_PROMPT && prompt_done(r->session, &r->prompt)) request_end_prompt(r, buffers);
    request_end_answer(r);
}
