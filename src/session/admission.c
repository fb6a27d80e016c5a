#include "session/admission.h"

#include "backend/kv_bytes.h"
#include "base/error.h"
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
    return (r->state == REQUEST_PROMPT || r->state == REQUEST_ANSWER) && !r->parked && !r->rests;
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

/* What is missing once all active requests have what they want, and so many bytes more. */
static size_t missing(const admission *a, size_t bytes) {
    const mem_account *account = &a->engine->account;
    const size_t wanted = mem_total(account) + a->wanting + bytes;
    return account->limit_bytes && wanted > account->limit_bytes ? wanted - account->limit_bytes : 0;
}

static admission_room relieve(const admission *a, size_t bytes) {
    if (!a->engine->relieve) return ROOM_NONE;
    const size_t freed = a->engine->relieve(a->engine->relieve_user, bytes);
    return freed == KAKEYA_RELIEF_LATER ? ROOM_LATER : freed ? ROOM_MADE : ROOM_NONE;
}

/* Into the request's file, or into the session's where the request has not begun. Needs the turn. */
static bool give_way(admission *a, kakeya_request *r, FILE **parked) {
    if (park(r->session, parked, NULL) != KAKEYA_OK) return false; /* there is no room for a file */
    r->parkings++;
    a->preemptions++;
    admission_reckon(a, r);
    return true;
}

/* Lists are in the order of arrival. Needs the turn. */
static bool park_resting(admission *a) {
    for (;;) {
        kakeya_request *last = NULL;
        for (kakeya_request *r = a->running.first; r; r = r->next)
            if (r->rests && r->state != REQUEST_DONE && !r->parked && !r->kept && r->session->timeline.cache) last = r;
        if (!last) return false;
        if (give_way(a, last, &last->parked)) return true;
        last->kept = true;
    }
}

/* One that did not arrive before this one; NULL: any. Needs the turn. */
static bool park_waiting(admission *a, const kakeya_request *beside) {
    for (;;) {
        kakeya_request *last = NULL;
        for (kakeya_request *r = a->waiting.first; r; r = r->next) {
            const bool before = beside && (r == beside || r->arrival < beside->arrival);
            if (!before && !r->session->parked && !r->kept && r->session->timeline.cache) last = r;
        }
        if (!last) return false;
        if (give_way(a, last, &last->session->parked)) return true;
        last->kept = true;
    }
}

/* For a request that does not compute yet. */
static admission_room make_room_for(admission *a, const kakeya_request *r, size_t bytes) {
    const admission_room room = relieve(a, bytes);
    if (room != ROOM_NONE) return room;
    engine_turn_begin(a->engine);
    const bool made = park_resting(a) || park_waiting(a, r);
    engine_turn_end(a->engine);
    return made ? ROOM_MADE : ROOM_NONE;
}

/* What the request wants fits into what is left once all active requests have what they want. `waits`: it has not
 * begun. */
static bool fits(admission *a, kakeya_request *r, bool waits) {
    if (!a->engine->account.limit_bytes) return true;
    if (waits) r->need = need_of(r);
    /* a row of logits, and as much for choosing from it: a request that begins must not find the last bytes taken */
    const size_t beside = waits ? 2 * (size_t)r->session->timeline.vocab * sizeof(float) : 0;
    for (size_t bytes; (bytes = missing(a, wanting_of(r) + beside)) > 0;) {
        const admission_room room = make_room_for(a, r, bytes);
        if (room == ROOM_MADE) continue;
        return room == ROOM_NONE && !a->active;
    }
    return true;
}

/* K/V memory for a session that has none. False: the request is done, or there is no memory for it beside the others.
 */
static bool take_up(admission *a, kakeya_request *r, FILE **parked) {
    for (;;) {
        engine_turn_begin(a->engine);
        kakeya_status status =
            *parked ? unpark(r->session, parked, &r->error) : session_reset_cache(r->session, &r->error);
        engine_turn_end(a->engine);
        if (status == KAKEYA_OK) return true;
        admission_room room = ROOM_NONE;
        if (status == KAKEYA_OUT_OF_MEMORY) room = make_room_for(a, r, wanting_of(r) + 1);
        if (room == ROOM_MADE) continue;
        if (status != KAKEYA_OUT_OF_MEMORY || (room == ROOM_NONE && !a->active)) request_fail(r, status);
        return false;
    }
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

/* What waits in a file need not be read for that. */
static void end_waiting(kakeya_request *r, decode_buffers *buffers) {
    if (r->session->parked)
        request_fail(r, error_set(&r->error, KAKEYA_CANCELLED, "the request was cancelled while it waited"));
    else
        request_begin(r, buffers);
}

/* Of requests that wait, cancelled ones end now: their time may be far. */
static void end_cancelled(admission *a, decode_buffers *buffers) {
    unsigned cancels = atomic_load(&a->engine->cancels);
    if (cancels == a->cancels) return;
    a->cancels = cancels;
    for (kakeya_request *before = NULL, *r = a->waiting.first, *next; r; r = next) {
        next = r->next;
        /* an answer to what is in a file ends when it has been read back */
        const bool needs_memory = r->session->parked && !r->prompts;
        if (atomic_load(&r->session->cancelled) && !needs_memory) {
            stop_waiting(a, before, r);
            end_waiting(r, buffers);
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

/* A request's own answer takes no place while it rests. */
static void let_rest(admission *a) {
    for (kakeya_request *r = a->running.first; r; r = r->next) {
        if (r->state == REQUEST_DONE || r->rests || !atomic_load(&r->session->paused)) continue;
        *(r->parked ? &a->parked : &a->active) -= 1;
        a->places -= r->answers;
        r->rests = true;
        admission_reckon(a, r);
    }
}

/* False: it goes on resting, for itself or for want of a place. */
static bool wakes_up(admission *a, kakeya_request *r) {
    if (!r->rests) return true;
    if (atomic_load(&r->session->paused) || (r->answers && a->places >= a->engine->max_batch)) return false;
    r->rests = r->kept = false;
    a->places += r->answers;
    *(r->parked ? &a->parked : &a->active) += 1;
    admission_reckon(a, r);
    return true;
}

/* False: nobody behind them begins. */
static bool take_up_running(admission *a) {
    for (kakeya_request *r = a->running.first; r; r = r->next) {
        if (r->state == REQUEST_DONE || !wakes_up(a, r) || !r->parked) continue;
        if (!fits(a, r, false) || !take_up(a, r, &r->parked)) return false;
        a->parked--;
        a->active++;
        admission_reckon(a, r);
    }
    return true;
}

void admission_admit(admission *a, decode_buffers *buffers) {
    a->later = false;
    end_cancelled(a, buffers);
    let_rest(a);
    if (!take_up_running(a)) return;
    for (kakeya_request *before = NULL, *r = a->waiting.first, *next; r; r = next) {
        next = r->next;
        if (r->answers && a->places >= a->engine->max_batch) {
            if (!a->waiting_prompts) return;
            before = r;
            continue;
        }
        if (!fits(a, r, true)) return;
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
            a->places += r->answers && !r->rests;
            if (!r->rests) *(r->parked ? &a->parked : &a->active) += 1;
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

/* Of what nobody misses. */
static bool give_back_spare(admission *a) {
    bool given_back = false;
    for (kakeya_request *r = a->running.first; r; r = r->next) {
        if (r->state == REQUEST_DONE) continue;
        given_back |= prompt_media_give_up(&r->prompt.media);
        given_back |= decode_workspace_give_back(&r->session->workspace);
    }
    for (kakeya_request *r = a->waiting.first; r; r = r->next)
        given_back |= decode_workspace_give_back(&r->session->workspace);
    return given_back;
}

static bool park_active(admission *a) {
    kakeya_request *victim = NULL;
    int running = 0;
    for (kakeya_request *r = a->running.first; r; r = r->next) {
        if (!admission_is_active(r) || r->failing) continue;
        running++;
        r->need = most_of(r);
        admission_reckon(a, r);
        if (!victim || victim_before(r, victim)) victim = r;
    }
    if (running < 2 || !victim || !give_way(a, victim, &victim->parked)) return false;
    a->active--;
    a->parked++;
    return true;
}

admission_room admission_make_room(admission *a) {
    if (give_back_spare(a)) return ROOM_MADE;
    engine_turn_end(a->engine);
    const size_t bytes = missing(a, 0);
    const admission_room room = relieve(a, bytes ? bytes : 1);
    engine_turn_begin(a->engine);
    if (room == ROOM_MADE || park_resting(a) || park_waiting(a, NULL) || park_active(a)) return ROOM_MADE;
    a->later |= room == ROOM_LATER;
    return room;
}
