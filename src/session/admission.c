#include "session/admission.h"

#include "backend/kv_bytes.h"
#include "session/park.h"

enum {
    MANY_PARKINGS = 3,      /* of one request: others are parked rather */
    RESERVED_TOKENS = 1024, /* of an answer, at most, that admission reckons with */
};

/* ----------------------------------------------------------------------------------------------------------- memory */

static size_t kv_of(const kakeya_request *r, size_t tokens) {
    const kakeya_session *session = r->session;
    if (tokens > session->timeline.capacity) tokens = session->timeline.capacity;
    timeline t = description_session(&session->engine->description, &session->options, tokens);
    return kv_bytes(&t, 0).total;
}

/* With what it shares with others: that is there already, too. */
static size_t kv_held(const kakeya_request *r) { return kakeya_session_kv_bytes(r->session).total; }

static size_t need_of(const kakeya_request *r) {
    size_t tokens = r->prompts ? r->prompt.n : r->session->timeline.n;
    int most = r->answers ? r->answer.options.max_tokens : 0;
    if (r->answers) tokens += most > 0 && most < RESERVED_TOKENS ? (size_t)most : RESERVED_TOKENS;
    return kv_of(r, tokens);
}

/* What a request can come to need at most. */
static size_t most_of(const kakeya_request *r) {
    const decode_timeline *t = &r->session->timeline;
    size_t tokens = r->prompts && r->prompt.n > t->n ? r->prompt.n : t->n;
    if (!r->answers) return kv_of(r, tokens);
    size_t most = r->answer.begun ? r->answer.stream.start + r->answer.decode.max_tokens : t->capacity;
    return kv_of(r, most > tokens ? most : tokens);
}

bool admission_is_active(const kakeya_request *r) {
    return (r->state == REQUEST_PROMPT || r->state == REQUEST_ANSWER) && !r->parked;
}

static size_t wanting_of(const kakeya_request *r) {
    size_t held = kv_held(r);
    return r->need > held ? r->need - held : 0;
}

void admission_reckon(admission *a, kakeya_request *r) {
    if (!a->engine->account.limit_bytes) return;
    size_t wanting = admission_is_active(r) ? wanting_of(r) : 0;
    a->wanting += wanting - r->wanting;
    r->wanting = wanting;
}

/* What the request wants fits into what is left once all active requests have what they want. */
static bool fits(const admission *a, kakeya_request *r, size_t (*need)(const kakeya_request *r)) {
    const mem_account *account = &a->engine->account;
    if (!account->limit_bytes) return true;
    if (need) r->need = need(r);
    return !a->active || mem_total(account) + a->wanting + wanting_of(r) <= account->limit_bytes;
}

/* K/V memory for a session that has none. False: the request is done, or there is no memory for it beside the others.
 */
static bool take_up(admission *a, kakeya_request *r, FILE **parked) {
    engine_turn_begin(a->engine);
    kakeya_status status = *parked ? unpark(r->session, parked, &r->error) : session_reset_cache(r->session, &r->error);
    engine_turn_end(a->engine);
    if (status == KAKEYA_OK) return true;
    if (status != KAKEYA_OUT_OF_MEMORY || !a->active) request_fail(r, status);
    return false;
}

/* ------------------------------------------------------------------------------------------------------------- order
 */

void admission_add(admission *a, kakeya_request *r) {
    request_insert(&a->waiting, r);
    a->waiting_prompts += !r->answers;
}

static void stop_waiting(admission *a, kakeya_request *before, kakeya_request *r) {
    request_remove(&a->waiting, before, r);
    request_insert(&a->running, r);
    a->waiting_prompts -= !r->answers;
    a->places += r->answers;
    a->active++;
}

/* Of requests that wait, cancelled ones end now: their time may be far. */
static void end_cancelled(admission *a, decode_buffers *buffers) {
    unsigned cancels = atomic_load(&a->engine->cancels);
    if (cancels == a->cancels) return;
    a->cancels = cancels;
    for (kakeya_request *before = NULL, *r = a->waiting.first, *next; r; r = next) {
        next = r->next;
        if (atomic_load(&r->session->cancelled) && !r->session->parked) {
            stop_waiting(a, before, r);
            request_begin(r, buffers);
            admission_reckon(a, r);
        } else {
            before = r;
        }
    }
}

/* A session has none before its first prompt. An answer without a prompt has nothing to continue then. */
static bool has_memory(const kakeya_request *r) {
    return !r->session->parked && (r->session->timeline.cache || !r->prompts);
}

/* False: nobody behind them begins. */
static bool take_up_parked(admission *a) {
    for (kakeya_request *r = a->running.first; r && a->parked; r = r->next) {
        if (!r->parked || r->state == REQUEST_DONE) continue;
        if (!fits(a, r, NULL) || !take_up(a, r, &r->parked)) return false;
        a->parked--;
        a->active++;
        admission_reckon(a, r);
    }
    return true;
}

void admission_admit(admission *a, decode_buffers *buffers) {
    end_cancelled(a, buffers);
    if (!take_up_parked(a)) return;
    for (kakeya_request *before = NULL, *r = a->waiting.first, *next; r; r = next) {
        next = r->next;
        if (r->answers && a->places >= a->engine->max_batch) {
            if (!a->waiting_prompts) return;
            before = r;
            continue;
        }
        if (!fits(a, r, need_of)) return;
        if (!has_memory(r) && !take_up(a, r, &r->session->parked)) {
            if (r->state == REQUEST_DONE) stop_waiting(a, before, r);
            return;
        }
        stop_waiting(a, before, r);
        request_begin(r, buffers);
        admission_reckon(a, r);
    }
}

kakeya_request *admission_take_done(admission *a) {
    kakeya_request *done = NULL, **end = &done;
    a->places = a->active = a->parked = 0;
    for (kakeya_request *before = NULL, *r = a->running.first, *next; r; r = next) {
        next = r->next;
        if (r->state != REQUEST_DONE) {
            a->places += r->answers;
            *(r->parked ? &a->parked : &a->active) += 1;
            before = r;
            continue;
        }
        admission_reckon(a, r);
        request_remove(&a->running, before, r);
        *end = r;
        end = &r->next;
    }
    return done;
}

static bool victim_before(const kakeya_request *r, const kakeya_request *victim) {
    bool often = r->parkings >= MANY_PARKINGS, spared = victim->parkings >= MANY_PARKINGS;
    return often == spared || spared; /* who arrived later comes later in the list */
}

bool admission_make_room(admission *a) {
    kakeya_request *victim = NULL;
    int running = 0;
    bool given_back = false;
    for (kakeya_request *r = a->running.first; r; r = r->next) {
        if (r->state == REQUEST_DONE) continue;
        given_back |= prompt_media_give_up(&r->prompt.media);
        given_back |= decode_workspace_give_back(&r->session->workspace);
    }
    for (kakeya_request *r = a->waiting.first; r; r = r->next)
        given_back |= decode_workspace_give_back(&r->session->workspace);
    if (given_back) return true;
    for (kakeya_request *r = a->running.first; r; r = r->next) {
        if (!admission_is_active(r) || r->failing) continue;
        running++;
        r->need = most_of(r);
        admission_reckon(a, r);
        if (!victim || victim_before(r, victim)) victim = r;
    }
    if (running < 2 || !victim) return false;
    victim->parkings++;
    if (park(victim->session, &victim->parked, NULL) != KAKEYA_OK) return false;
    a->active--;
    a->parked++;
    admission_reckon(a, victim);
    return true;
}
