#include "session/batch.h"

#include <string.h>

#include "backend/kv_bytes.h"
#include "base/clock.h"
#include "session/park.h"

enum {
    LEAST_PROMPT_ROWS = 32, /* of a prompt beside answers */
    MOST_PROMPTS = 2,       /* in one iteration */
    FIRST_PATIENCE = 16,    /* iterations before more requests are tried together, where there was no memory ... */
    MOST_PATIENCE = 4096,   /* ... and when it has turned out again and again that there is none */
    MOST_LOGIT_ROWS = 64,   /* whole rows of logits in one iteration, unless there are more sessions */
    MANY_PARKINGS = 3,      /* of one request: others are parked rather */
    RESERVED_TOKENS = 1024, /* of an answer, at most, that admission reckons with */
};

void batch_init(batch *b, kakeya_engine *engine) {
    *b = (batch){.engine = engine};
    decode_buffers_init(&b->buffers, engine->verifier->config.vocab, &engine->account);
}

void batch_free(batch *b) { decode_buffers_free(&b->buffers); }

void batch_add(batch *b, kakeya_request *requests) {
    kakeya_request **end = &b->requests;
    while (*end) end = &(*end)->next;
    *end = requests;
}

/* ----------------------------------------------------------------------------------------------- one request's life */

/* What finds no memory now may go on in a later request. */
static void keep_parked(kakeya_request *r, kakeya_status status) {
    if (status == KAKEYA_OUT_OF_MEMORY)
        r->session->parked = r->parked;
    else
        fclose(r->parked);
    r->parked = NULL;
}

static void finish(kakeya_request *r, kakeya_status status) {
    r->failing = false;
    if (r->parked) keep_parked(r, status);
    r->answer.counted.waits = (uint64_t)r->parkings;
    if (r->answers) status = answer_close(r->session, &r->answer, status, &r->error);
    r->status = status;
    r->state = REQUEST_DONE;
}

static void begin_prompt(batch *b, kakeya_request *r) {
    engine_turn_begin(b->engine);
    kakeya_status status = prompt_check(r->session, &r->prompt, &r->error);
    r->prompt_started = clock_seconds();
    if (status == KAKEYA_OK) status = prompt_begin(r->session, &r->prompt, &r->error);
    engine_turn_end(b->engine);
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

static void begin_answer(batch *b, kakeya_request *r) {
    kakeya_session *session = r->session;
    kakeya_status status = KAKEYA_OK;
    if (!r->continues) status = answer_open(session, &r->answer, &b->buffers, &r->error);
    bool known = r->answer.first.known || r->continues;
    if (status == KAKEYA_OK && !known && answer_needs_row(session) && !atomic_load(&session->cancelled)) {
        r->continues = true;
        r->prompt = (prompt_work){.tokens = session->timeline.tokens, .n = session->timeline.n, .again = true};
        begin_prompt(b, r);
        return;
    }
    if (status == KAKEYA_OK)
        status = decode_begin(&r->answer.stream, &session->timeline, &session->workspace, &b->buffers,
                              &r->answer.decode, &r->answer.output, &r->answer.counted, &r->answer.first, &r->error);
    r->state = REQUEST_ANSWER;
    if (status != KAKEYA_OK) finish(r, status);
}

/* Answers that want no further block are done. */
static void end_answer(kakeya_request *r) {
    if (r->state == REQUEST_ANSWER && !decode_goes_on(&r->answer.stream))
        finish(r, decode_end(&r->answer.stream, KAKEYA_OK, &r->error));
}

static void fail_answer(kakeya_request *r, kakeya_status status) {
    finish(r, decode_end(&r->answer.stream, status, &r->error));
}

static void fail(kakeya_request *r, kakeya_status status) {
    if (r->state == REQUEST_ANSWER) {
        fail_answer(r, status);
        return;
    }
    if (!r->continues) end_prompt_time(r);
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

/* A prompt that is whole: the answer follows, or nothing. */
static void end_prompt(batch *b, kakeya_request *r) {
    end_prompt_time(r);
    hand_copy(r);
    kakeya_status status = prompt_check(r->session, &r->prompt, &r->error);
    if (status != KAKEYA_OK || !r->answers)
        finish(r, status);
    else
        begin_answer(b, r);
}

/* -------------------------------------------------------------------------------------------------------- admission */

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

static bool admitted(const kakeya_request *r) {
    return (r->state == REQUEST_PROMPT || r->state == REQUEST_ANSWER) && !r->parked;
}

/* What the request still wants fits into what is left once all admitted requests have what they want. */
static bool fits(const batch *b, const kakeya_request *candidate) {
    size_t limit = b->engine->account.limit_bytes, wanted = mem_total(&b->engine->account);
    bool others = false;
    for (const kakeya_request *r = b->requests; r; r = r->next) {
        if (!admitted(r) && r != candidate) continue;
        others |= r != candidate;
        size_t held = kv_held(r);
        if (r->need > held) wanted += r->need - held;
    }
    return limit == 0 || !others || wanted <= limit;
}

/* False: the request is done, or there is no memory for it beside the others. */
static bool take_up(batch *b, kakeya_request *r, FILE **parked) {
    engine_turn_begin(b->engine);
    kakeya_status status = unpark(r->session, parked, &r->error);
    engine_turn_end(b->engine);
    bool alone = true;
    for (const kakeya_request *other = b->requests; other; other = other->next) alone &= other == r || !admitted(other);
    if (status == KAKEYA_OK) return true;
    if (status == KAKEYA_OUT_OF_MEMORY && !alone) return false;
    if (r->state == REQUEST_QUEUED)
        finish(r, status);
    else
        fail(r, status);
    return false;
}

/* In the order of arrival, those that wait in a file first; who does not fit holds up those behind. */
static void admit(batch *b) {
    for (kakeya_request *r = b->requests; r; r = r->next) {
        if (!r->parked || r->state == REQUEST_DONE) continue;
        if (!fits(b, r) || !take_up(b, r, &r->parked)) return;
        r->admitted = ++b->count;
    }
    for (kakeya_request *r = b->requests; r; r = r->next) {
        if (r->state != REQUEST_QUEUED) continue;
        r->need = need_of(r);
        if (!fits(b, r)) return;
        if (r->session->parked && !take_up(b, r, &r->session->parked)) return;
        r->admitted = ++b->count;
        if (r->prompts)
            begin_prompt(b, r);
        else
            begin_answer(b, r);
        if (r->state == REQUEST_PROMPT && prompt_done(r->session, &r->prompt)) end_prompt(b, r);
        end_answer(r);
    }
}

/* What a request can come to need at most. */
static size_t most_of(const kakeya_request *r) {
    const decode_timeline *t = &r->session->timeline;
    size_t tokens = r->prompts && r->prompt.n > t->n ? r->prompt.n : t->n;
    if (!r->answers) return kv_of(r, tokens);
    size_t most = r->answer.begun ? r->answer.stream.start + r->answer.decode.max_tokens : t->capacity;
    return kv_of(r, most > tokens ? most : tokens);
}

/* What only drafts need goes first. Then the request that was admitted last makes room, unless it is the only one;
 * those that have done so often are the last to be chosen. From now on the engine reckons with all that the requests
 * may come to need: who waits begins again only if it need not make room once more. Needs the turn. */
static bool make_room(batch *b) {
    kakeya_request *victim = NULL;
    int running = 0;
    bool given_back = false;
    for (kakeya_request *r = b->requests; r; r = r->next)
        given_back |= r->state != REQUEST_DONE && decode_workspace_give_back(&r->session->workspace);
    if (given_back) return true;
    for (kakeya_request *r = b->requests; r; r = r->next) {
        if (!admitted(r) || r->failing) continue;
        running++;
        r->need = most_of(r);
        bool spared = victim && r->parkings >= MANY_PARKINGS && victim->parkings < MANY_PARKINGS;
        bool sooner = victim && victim->parkings >= MANY_PARKINGS && r->parkings < MANY_PARKINGS;
        if (!victim || sooner || (!spared && r->admitted > victim->admitted)) victim = r;
    }
    if (running < 2 || !victim) return false;
    victim->parkings++;
    return park(victim->session, &victim->parked, NULL) == KAKEYA_OK;
}

/* -------------------------------------------------------------------------------------------------- one iteration */

/* Requests that share a forward. */
typedef struct step {
    batch *batch;
    kv_format format;
    kakeya_request *member[BACKEND_MAX_SEGMENTS]; /* answers, then prompts */
    int answers, n;
    backend_segment segment[BACKEND_MAX_SEGMENTS];
    int rows;
    int budget;     /* tokens that prompts might have had */
    double seconds; /* of the forward */
} step;

static void remove_member(step *s, int at) {
    for (int i = at; i + 1 < s->n; i++) s->member[i] = s->member[i + 1];
    s->n--;
    if (at < s->answers) s->answers--;
}

static int index_of(const step *s, const kakeya_request *r) {
    for (int i = 0; i < s->n; i++)
        if (s->member[i] == r) return i;
    return -1;
}

static kv_format format_of(const kakeya_request *r) { return r->session->cache_options.kv_format; }

static bool takes_part(const step *s, const kakeya_request *r, request_state state) {
    return r->state == state && !r->parked && !r->failing && format_of(r) == s->format;
}

/* Answers, least recently served first. Where prompts wait, too, they find a place in the forward; if there is memory
 * for one request at a time only, prompts have every other iteration. */
static void choose_answers(step *s, int prompts) {
    const batch *b = s->batch;
    int places = b->most ? b->most : BACKEND_MAX_SEGMENTS, most = b->engine->max_batch;
    if (prompts) places = places > prompts ? places - prompts : places > 1 ? 1 : (int)(b->count % 2);
    if (most > places) most = places;
    while (s->answers < most) {
        kakeya_request *next = NULL;
        for (kakeya_request *r = s->batch->requests; r; r = r->next) {
            if (!takes_part(s, r, REQUEST_ANSWER) || index_of(s, r) >= 0) continue;
            if (!next || r->served < next->served) next = r;
        }
        if (!next) break;
        s->member[s->answers++] = next;
        s->n = s->answers;
    }
}

/* Rows of every answer's block: those of all, and what prompts are to have, fit into one forward. */
static int rows_each(const step *s, int prompts) {
    const kakeya_engine *engine = s->batch->engine;
    int room = engine->ops->model_prompt_chunk(engine->model) - prompts * LEAST_PROMPT_ROWS;
    int each = room / (s->answers ? s->answers : 1), sampled = 0;
    for (int i = 0; i < s->answers; i++) sampled += s->member[i]->answer.stream.choice == DECODE_FROM_LOGITS;
    if (sampled && each > MOST_LOGIT_ROWS / sampled) each = MOST_LOGIT_ROWS / sampled;
    return each < 1 ? 1 : each;
}

/* Asks the drafter for all blocks at once, until no block has a question left. Needs the turn. */
static void ask_drafter(step *s) {
    kakeya_engine *engine = s->batch->engine;
    for (;;) {
        backend_draft_request request[BACKEND_MAX_SEGMENTS];
        kakeya_request *asker[BACKEND_MAX_SEGMENTS];
        int n = 0;
        for (int i = 0; i < s->answers; i++) {
            if (decode_asks(&s->member[i]->answer.stream, &request[n])) asker[n++] = s->member[i];
        }
        if (n == 0) return;
        kakeya_error error = {0};
        double start = clock_seconds();
        kakeya_status status = engine->ops->draft(engine->model, request, n, &error);
        double seconds = clock_seconds() - start;
        if (status == KAKEYA_OK) {
            for (int i = 0; i < n; i++) decode_answered(&asker[i]->answer.stream, seconds / n);
            if (s->answers > 1) step_costs_add_drafts(&s->batch->costs, n, seconds);
            continue;
        }
        bool someone = false;
        for (int i = 0; i < n; i++) someone |= request[i].status != KAKEYA_OK;
        for (int i = 0; i < n; i++) {
            if (someone && request[i].status == KAKEYA_OK) continue;
            asker[i]->error = error;
            asker[i]->status = status;
            asker[i]->failing = true;
            remove_member(s, index_of(s, asker[i]));
        }
    }
}

/* Tokens for prompts beside answers: what passes in the time that answers may stall. */
static int prompt_budget(const step *s) {
    const batch *b = s->batch;
    const kakeya_engine *engine = b->engine;
    int chunk = engine->ops->model_prompt_chunk(engine->model), room = chunk - s->rows;
    if (s->answers == 0) return room;
    double tokens = b->prompt_speed * engine->max_stall_ms / 1000;
    int budget = tokens < LEAST_PROMPT_ROWS ? LEAST_PROMPT_ROWS : tokens > chunk ? chunk : (int)tokens;
    return budget < room ? budget : room;
}

static void add_prompt(step *s, kakeya_request *r, int tokens) {
    int places = s->batch->most ? s->batch->most : BACKEND_MAX_SEGMENTS;
    if (tokens < 1 || s->n == places) return;
    if (r->answers) answer_choose_first(r->session, &r->answer, &s->batch->buffers);
    kakeya_status status = prompt_segment(r->session, &r->prompt, (size_t)tokens, r->answers ? &r->answer.first : NULL,
                                          &s->segment[s->n], &r->error);
    if (status != KAKEYA_OK) {
        r->status = prompt_failed(r->session, &r->prompt, status, &r->error);
        r->failing = true;
        return;
    }
    s->rows += s->segment[s->n].n;
    s->member[s->n++] = r;
}

/* Half for the oldest prompt, the rest for the one with the least left; what that leaves goes to the oldest. */
static void add_prompts(step *s) {
    kakeya_request *oldest = NULL, *shortest = NULL;
    for (kakeya_request *r = s->batch->requests; r; r = r->next) {
        if (!takes_part(s, r, REQUEST_PROMPT)) continue;
        if (!oldest || r->admitted < oldest->admitted) oldest = r;
        if (!shortest || prompt_left(r->session, &r->prompt) < prompt_left(shortest->session, &shortest->prompt))
            shortest = r;
    }
    if (!oldest) return;
    int budget = s->budget = prompt_budget(s);
    if (shortest != oldest) {
        size_t left = prompt_left(shortest->session, &shortest->prompt);
        int half = budget - budget / 2, share = left < (size_t)half ? (int)left : half;
        add_prompt(s, shortest, share);
        budget -= share;
    }
    add_prompt(s, oldest, budget);
}

static kakeya_status fill_segments(step *s, kakeya_error *error) {
    int logits = 0, leaders = 0;
    for (int i = 0; i < s->answers; i++) {
        logits += decode_logit_rows(&s->member[i]->answer.stream);
        leaders += decode_leader_rows(&s->member[i]->answer.stream);
    }
    kakeya_status status = decode_buffers_reserve(&s->batch->buffers, logits, leaders, error);
    logits = leaders = s->rows = 0;
    for (int i = 0; i < s->answers && status == KAKEYA_OK; i++) {
        decode_stream *stream = &s->member[i]->answer.stream;
        s->segment[i] = decode_segment(stream, logits, leaders);
        logits += decode_logit_rows(stream);
        leaders += decode_leader_rows(stream);
        s->rows += decode_rows(stream);
    }
    return status;
}

static bool anyone_named(const step *s) {
    for (int i = 0; i < s->n; i++)
        if (s->segment[i].status != KAKEYA_OK) return true;
    return false;
}

static void tell_step(const step *s, kakeya_status status) {
    const kakeya_engine *engine = s->batch->engine;
    if (!engine->on_step || !s->n) return;
    kakeya_step told = {.requests = (size_t)s->n, .seconds = s->seconds, .status = status};
    for (int i = 0; i < s->n; i++)
        *(i < s->answers ? &told.answer_positions : &told.prompt_positions) += (size_t)s->segment[i].n;
    engine->on_step(engine->step_user, &told);
}

/* A failure of all, or of those whose segments say so. */
static void fail_members(step *s, kakeya_status status, const kakeya_error *error) {
    bool someone = anyone_named(s);
    if (!someone) tell_step(s, status);
    for (int i = s->n - 1; i >= 0; i--) {
        kakeya_request *r = s->member[i];
        if (someone && s->segment[i].status == KAKEYA_OK) continue;
        r->error = *error;
        r->status = r->state == REQUEST_PROMPT ? prompt_failed(r->session, &r->prompt, status, &r->error) : status;
        r->failing = true;
        memmove(s->segment + i, s->segment + i + 1, (size_t)(s->n - 1 - i) * sizeof *s->segment);
        remove_member(s, i);
    }
}

/* Members that were parked meanwhile leave the step. Returns where the one at `at` is then, or the next one. */
static int drop_parked(step *s, int at) {
    for (int i = s->n - 1; i >= 0; i--) {
        if (!s->member[i]->parked) continue;
        memmove(s->segment + i, s->segment + i + 1, (size_t)(s->n - 1 - i) * sizeof *s->segment);
        remove_member(s, i);
        if (i < at) at--;
    }
    return at;
}

static bool make_room_in_turn(batch *b) {
    engine_turn_begin(b->engine);
    bool made = make_room(b);
    engine_turn_end(b->engine);
    return made;
}

static void plan_answers(step *s, int prompts) {
    int most = rows_each(s, prompts);
    draft_prices prices = step_costs_prices(&s->batch->costs);
    for (int i = 0; i < s->answers;) {
        kakeya_request *r = s->member[i];
        kakeya_status status = decode_plan(&r->answer.stream, most, s->answers > 1 ? &prices : NULL, &r->error);
        if (status == KAKEYA_OK) {
            i++;
        } else if (status == KAKEYA_OUT_OF_MEMORY && make_room_in_turn(s->batch)) {
            i = drop_parked(s, i);
        } else {
            fail_answer(r, status);
            remove_member(s, i);
        }
    }
}

/* There is no memory for so many rows at once, whoever they belong to: the others come in the next iteration, and for a
 * while no more are tried together. */
static void serve_fewer(step *s) {
    batch *b = s->batch;
    s->n = (s->n + 1) / 2;
    if (s->answers > s->n) s->answers = s->n;
    b->most = b->known = s->n;
    b->tried = 0;
    b->patience = b->patience ? 2 * b->patience : FIRST_PATIENCE;
    if (b->patience > MOST_PATIENCE) b->patience = MOST_PATIENCE;
}

/* Others may have given memory back meanwhile. Once they have, less patience is needed. */
static void serve_more(batch *b, int served) {
    if (!b->most) return;
    if (served > b->known) {
        b->known = served;
        b->patience = FIRST_PATIENCE;
    }
    if (++b->tried < b->patience) return;
    b->tried = 0;
    b->most = 2 * b->most < BACKEND_MAX_SEGMENTS ? 2 * b->most : 0;
}

/* Computes what can be computed: who cannot be served leaves, and the others are tried again. Needs the turn. */
static void compute(step *s) {
    kakeya_engine *engine = s->batch->engine;
    kakeya_error error = {0};
    kakeya_status status = fill_segments(s, &error);
    while (status == KAKEYA_OUT_OF_MEMORY && s->n) { /* for their logits: the same as where a forward finds none */
        if (s->n > 1)
            serve_fewer(s);
        else if (make_room(s->batch))
            (void)drop_parked(s, 0);
        else
            break;
        status = fill_segments(s, &error);
    }
    if (status != KAKEYA_OK) {
        for (int i = 0; i < s->answers; i++) s->segment[i].status = KAKEYA_OK;
        s->n = s->answers;
        fail_members(s, status, &error);
    }
    add_prompts(s);
    while (s->n) {
        double start = clock_seconds();
        status = engine->ops->forward(engine->model, s->segment, s->n, &error);
        if (status == KAKEYA_OK) {
            for (int i = 0; i < s->n; i++) {
                kakeya_request *r = s->member[i];
                r->status = i < s->answers ? decode_read(&r->answer.stream, i, &r->error)
                                           : prompt_read(r->session, &r->prompt, &r->answer.first, &r->answer.decode, i,
                                                         &r->error);
            }
            s->seconds = clock_seconds() - start;
            serve_more(s->batch, s->n);
            return;
        }
        if (status == KAKEYA_OUT_OF_MEMORY && !anyone_named(s) && s->n > 1)
            serve_fewer(s);
        else if (status == KAKEYA_OUT_OF_MEMORY && make_room(s->batch))
            (void)drop_parked(s, 0);
        else
            fail_members(s, status, &error);
    }
}

/* A step that stalled answers for too long sets the speed back to what it was: tokens behind a long context take
 * longer. Every other one says that there may be more: its time holds the answers' rows, too, so that what it measures
 * is too little. */
static void learn_prompt_speed(step *s, int prompt_rows) {
    static const double patience = 1.25, growth = 1.05;
    batch *b = s->batch;
    const kakeya_engine *engine = b->engine;
    double speed = prompt_rows / s->seconds, stall = engine->max_stall_ms / 1000.0;
    double most = engine->ops->model_prompt_chunk(engine->model) / stall;
    if (s->answers && s->seconds > patience * stall && prompt_rows > LEAST_PROMPT_ROWS) {
        b->prompt_speed = speed;
        return;
    }
    bool used = prompt_rows >= s->budget; /* a prompt that was short says nothing of what a longer one would take */
    double grown = used && b->prompt_speed * growth < most ? b->prompt_speed * growth : b->prompt_speed;
    b->prompt_speed = speed > grown ? speed : grown;
}

/* What the step says about the machine's speed. */
static void learn(step *s, int tokens) {
    batch *b = s->batch;
    int prompt_rows = 0, rows = 0;
    for (int i = 0; i < s->n; i++) *(i < s->answers ? &rows : &prompt_rows) += s->segment[i].n;
    if (s->seconds <= 0) return;
    if (prompt_rows) learn_prompt_speed(s, prompt_rows);
    if (!prompt_rows && s->answers > 1) step_costs_add(&b->costs, rows, tokens, s->seconds);
}

static void take_results(step *s) {
    batch *b = s->batch;
    tell_step(s, KAKEYA_OK);
    int tokens = 0;
    for (int i = 0; i < s->answers; i++) { /* callbacks are called here, without the turn */
        kakeya_request *r = s->member[i];
        r->answer.stream.batched = s->n > 1;
        if (r->status == KAKEYA_OK) r->status = decode_take(&r->answer.stream, &r->error);
        tokens += r->answer.stream.taken;
    }
    learn(s, tokens);
    engine_turn_begin(b->engine);
    for (int i = 0; i < s->n; i++) {
        kakeya_request *r = s->member[i];
        if (i < s->answers) {
            r->status = decode_commit(&r->answer.stream, r->status, s->seconds, &r->error);
        } else {
            r->status = prompt_commit(r->session, &r->prompt, r->status, &r->error);
            if (r->status != KAKEYA_OK) r->status = prompt_failed(r->session, &r->prompt, r->status, &r->error);
        }
    }
    engine_turn_end(b->engine);
    for (int i = 0; i < s->n; i++) {
        kakeya_request *r = s->member[i];
        r->served = b->count;
        if (r->status == KAKEYA_OK && i >= s->answers) r->status = prompt_report(r->session, &r->prompt, &r->error);
        if (r->status != KAKEYA_OK)
            r->failing = true;
        else if (i >= s->answers && prompt_done(r->session, &r->prompt))
            end_prompt(b, r);
    }
}

static void end_requests(batch *b) {
    for (kakeya_request *r = b->requests; r; r = r->next) {
        if (r->failing) fail(r, r->status);
    }
}

static void run_step(batch *b, kv_format format) {
    step s = {.batch = b, .format = format};
    int prompts = 0; /* that find a place in the forward */
    for (kakeya_request *r = b->requests; r && prompts < MOST_PROMPTS; r = r->next)
        prompts += takes_part(&s, r, REQUEST_PROMPT);
    choose_answers(&s, prompts);
    plan_answers(&s, prompts);
    b->count++;
    if (!s.n && !prompts) return;
    engine_turn_begin(b->engine);
    ask_drafter(&s);
    compute(&s);
    engine_turn_end(b->engine);
    take_results(&s);
}

void batch_step(batch *b) {
    for (kakeya_request *r = b->requests; r; r = r->next) {
        if (r->state == REQUEST_PROMPT) {
            kakeya_status status = prompt_check(r->session, &r->prompt, &r->error);
            if (status != KAKEYA_OK) fail(r, status);
        }
        end_answer(r);
    }
    admit(b);
    for (int format = 0; format < KV_FORMAT_COUNT; format++) run_step(b, (kv_format)format);
    end_requests(b);
    for (kakeya_request *r = b->requests; r; r = r->next) end_answer(r);
}
