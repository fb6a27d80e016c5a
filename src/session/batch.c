#include "session/batch.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "session/prompt_shares.h"

enum {
    LEAST_PROMPT_ROWS = 32, /* of all prompts, beside answers */
    STEPS_OF_ALIKE = 32,    /* that prompts made too long, before answers have a step of their own again ... */
    STEPS_OF_MORE = 8,      /* ... and if they have more rows than in the last one */
    PROMPTS_SHARE = 4,      /* of few places, prompts get one in so many */
    FIRST_PATIENCE = 16,    /* iterations before more requests are tried together, where there was no memory ... */
    MOST_PATIENCE = 4096,   /* ... and when it has turned out again and again that there is none */
    MOST_LOGIT_ROWS = 64,   /* whole rows of logits in one iteration, unless there are more sessions */
};

static bool give_back(void *owner) { return sampler_space_give_back(owner); }

void batch_init(batch *b, kakeya_engine *engine) {
    *b = (batch){.engine = engine, .requests = {.engine = engine}};
    decode_buffers_init(&b->buffers, engine->verifier->config.vocab, &engine->account);
    b->spare = (mem_spare){.give_back = give_back, .owner = &b->buffers.sampling};
    mem_account_spare(&engine->account, &b->spare);
}

void batch_free(batch *b) {
    mem_account_unspare(&b->engine->account, &b->spare);
    decode_buffers_free(&b->buffers);
}

void batch_add(batch *b, kakeya_request *requests) {
    for (kakeya_request *r = requests, *next; r; r = next) {
        next = r->next;
        r->next = NULL;
        admission_add(&b->requests, r);
    }
    admission_admit(&b->requests, &b->buffers);
}

/* -------------------------------------------------------------------------------------------------- one iteration */

/* Requests that share a forward. */
typedef struct step {
    batch *batch;
    kv_format format;
    kakeya_request *member[BACKEND_MAX_FORWARD]; /* answers, then prompts */
    int answers, n;
    backend_segment segment[BACKEND_MAX_FORWARD];
    int rows;
    int decoding; /* segments of decode rows */
    int budget;   /* tokens that prompts might have had */
    media_time media;
    double seconds;      /* of the forward */
    double read_seconds; /* of them, waiting for weights */
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
    return r->state == state && admission_is_active(r) && !r->failing && format_of(r) == s->format;
}

static int least_recently_served(const void *a, const void *b) {
    const kakeya_request *x = *(kakeya_request *const *)a, *y = *(kakeya_request *const *)b;
    if (x->served != y->served) return x->served < y->served ? -1 : 1;
    return (x->arrival > y->arrival) - (x->arrival < y->arrival);
}

/* Places of answers. Where there is memory for few requests at a time only, prompts that wait have a share of them; for
 * one: every other iteration. */
static int answer_places(const batch *b, bool prompts) {
    if (!b->most) return BACKEND_MAX_SEGMENTS;
    if (!prompts) return b->most;
    if (b->most == 1) return (int)(b->count % 2);
    return b->most - (b->most + PROMPTS_SHARE - 1) / PROMPTS_SHARE;
}

/* All answers; where there are fewer places, those that were served least recently. */
static void choose_answers(step *s, bool prompts) {
    const int places = answer_places(s->batch, prompts);
    for (kakeya_request *r = s->batch->requests.running.first; r && s->n < BACKEND_MAX_SEGMENTS; r = r->next)
        if (takes_part(s, r, REQUEST_ANSWER)) s->member[s->n++] = r;
    if (s->n > places) {
        qsort(s->member, (size_t)s->n, sizeof *s->member, least_recently_served);
        s->n = places;
    }
    s->answers = s->n;
}

/* Rows of every answer's block: those of all, and what prompts are to have, fit into one forward. */
static int rows_each(const step *s, bool prompts) {
    const kakeya_engine *engine = s->batch->engine;
    int room = engine->ops->model_prompt_chunk(engine->model) - (prompts ? LEAST_PROMPT_ROWS : 0);
    int each = room / (s->answers ? s->answers : 1), sampled = 0;
    for (int i = 0; i < s->answers; i++) sampled += s->member[i]->answer.stream.choice == DECODE_FROM_LOGITS;
    if (sampled && each > MOST_LOGIT_ROWS / sampled) each = MOST_LOGIT_ROWS / sampled;
    return each < 1 ? 1 : each;
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

/* Needs the turn, and gives it back meanwhile. */
static admission_room make_room_beside(step *s) {
    const admission_room room = admission_make_room(&s->batch->requests);
    if (room == ROOM_MADE) (void)drop_parked(s, 0);
    return room;
}

/* Asks each drafter for all its blocks at once, until no block has a question left. Needs the turn. */
static void ask_drafters(step *s) {
    kakeya_engine *engine = s->batch->engine;
    for (;;) {
        backend_draft_request request[BACKEND_MAX_SEGMENTS];
        kakeya_request *asker[BACKEND_MAX_SEGMENTS];
        int n = 0, drafts = 0;
        for (int i = 0; i < s->answers; i++) {
            if (!decode_asks(&s->member[i]->answer.stream, &request[n])) continue;
            if (request[n].drafter != request[0].drafter) continue; /* in its turn */
            drafts += request[n].n;
            asker[n++] = s->member[i];
        }
        if (n == 0) return;
        kakeya_error error = {0};
        double start = clock_seconds();
        kakeya_status status = engine->ops->draft(engine->model, request, n, &error);
        double seconds = clock_seconds() - start;
        if (status == KAKEYA_OK) {
            for (int i = 0; i < n; i++) decode_answered(&asker[i]->answer.stream, seconds / n);
            if (s->answers > 1) step_costs_add_drafts(&s->batch->costs, request[0].drafter, n, drafts, seconds);
            continue;
        }
        bool someone = false;
        for (int i = 0; i < n; i++) someone |= request[i].status != KAKEYA_OK;
        const bool again = status == KAKEYA_OUT_OF_MEMORY && make_room_beside(s) != ROOM_NONE;
        for (int i = 0; i < n; i++) {
            const int member = index_of(s, asker[i]);
            if (member < 0 || (someone && request[i].status == KAKEYA_OK)) continue;
            asker[i]->error = error;
            asker[i]->status = status;
            asker[i]->failing = !again; /* or it asks in the next iteration */
            remove_member(s, member);
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

/* Rows that a prompt may have beside what the step has. The first one may have more than a forward of text: a picture
 * that is longer. */
static int room_for_prompt(const step *s) {
    const kakeya_engine *engine = s->batch->engine;
    const backend_ops *ops = engine->ops;
    const bool more = s->n == s->answers && ops->model_most_rows;
    return (more ? ops->model_most_rows(engine->model) : ops->model_prompt_chunk(engine->model)) - s->rows;
}

static void add_prompt(step *s, kakeya_request *r, int tokens) {
    admission_room made = ROOM_NONE;
    decode_first *first = r->answers ? &r->answer.first : NULL;
    if (first) answer_choose_first(r->session, &r->answer, r->prompt.tokens, r->prompt.n, &s->batch->buffers);
    const int room = room_for_prompt(s);
    if (room < 1) return;
    backend_segment segment;
    kakeya_status status;
    do
        status =
            prompt_segment(r->session, &r->prompt, (size_t)tokens, (size_t)room, &s->media, first, &segment, &r->error);
    while (status == KAKEYA_OUT_OF_MEMORY && (made = make_room_beside(s)) == ROOM_MADE && !r->parked);
    if (r->parked || made == ROOM_LATER) return; /* in a later iteration */
    if (status != KAKEYA_OK) {
        r->status = prompt_failed(r->session, &r->prompt, status, &r->error);
        r->failing = true;
        return;
    }
    if (segment.n == 0) return; /* a picture or sound that waits for its rows, or a forward with more room */
    /* what an answer left half computed is computed again as what it was */
    const bool decodes = segment.kind == SEGMENT_DECODE;
    if (decodes && s->decoding == BACKEND_MAX_SEGMENTS) return;
    s->decoding += decodes;
    s->rows += segment.n;
    s->segment[s->n] = segment;
    s->member[s->n++] = r;
}

static void add_shares(step *s, const prompt_shares *prompts) {
    for (int i = 0; i < prompts->n; i++) {
        kakeya_request *r = prompts->share[i].prompt;
        if (prompts->share[i].tokens > 0 && !r->failing && !r->parked) add_prompt(s, r, prompts->share[i].tokens);
    }
}

/* Beside answers a step makes rows of pictures and sounds, or computes those of prompts, by turns where there is both:
 * answers wait for one of the two. */
static void add_in_turn(step *s, const prompt_shares *prompts) {
    const double stall = s->batch->engine->max_stall_ms / 1000.0;
    const int rows = s->rows;
    if (s->answers && s->batch->count % 2 == 0) {
        add_shares(s, prompts);
        if (s->n > s->answers) return;
    }
    s->media = (media_time){.seconds = stall, .apart = s->answers > 0};
    add_shares(s, prompts);
    if (!s->answers || s->media.spent == 0) return;
    s->n = s->answers;
    s->rows = rows;
}

static void add_prompts(step *s) {
    const batch *b = s->batch;
    s->decoding = s->answers;
    prompt_shares prompts = {.places = b->most ? b->most - s->n : BACKEND_MAX_PROMPTS};
    if (prompts.places > BACKEND_MAX_PROMPTS) prompts.places = BACKEND_MAX_PROMPTS;
    for (kakeya_request *r = b->requests.running.first; r && prompts.places > 0; r = r->next)
        if (takes_part(s, r, REQUEST_PROMPT))
            prompt_shares_add(&prompts, r, prompt_left(r->session, &r->prompt),
                              r->session->options.prompt_chunk_tokens);
    s->budget = prompt_budget(s);
    prompt_shares_divide(&prompts, s->budget);
    if (!s->answers || !b->answers_alone) add_in_turn(s, &prompts);
}

static kakeya_status fill_segments(step *s, kakeya_error *error) {
    decode_room room = {0}, taken = {0};
    for (int i = 0; i < s->answers; i++) room = decode_room_of_both(room, decode_needs(&s->member[i]->answer.stream));
    kakeya_status status = decode_buffers_reserve(&s->batch->buffers, room, error);
    s->rows = 0;
    for (int i = 0; i < s->answers && status == KAKEYA_OK; i++) {
        decode_stream *stream = &s->member[i]->answer.stream;
        s->segment[i] = decode_segment(stream, taken);
        taken = decode_room_of_both(taken, decode_needs(stream));
        s->rows += decode_rows(stream);
    }
    return status;
}

static bool anyone_named(const step *s) {
    for (int i = 0; i < s->n; i++)
        if (s->segment[i].status != KAKEYA_OK) return true;
    return false;
}

static void tell_step(step *s, kakeya_status status) {
    const kakeya_engine *engine = s->batch->engine;
    if (!engine->on_step || !s->n) return;
    kakeya_step told = {.requests = (size_t)s->n,
                        .seconds = s->seconds,
                        .status = status,
                        .preemptions = s->batch->requests.preemptions};
    s->batch->requests.preemptions = 0;
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

static admission_room make_room_in_turn(batch *b) {
    engine_turn_begin(b->engine);
    const admission_room room = admission_make_room(&b->requests);
    engine_turn_end(b->engine);
    return room;
}

static void plan_answers(step *s, bool prompts) {
    int most = rows_each(s, prompts);
    draft_prices prices = step_costs_prices(&s->batch->costs, s->answers);
    for (int i = 0; i < s->answers;) {
        kakeya_request *r = s->member[i];
        kakeya_status status = decode_plan(&r->answer.stream, most, s->answers > 1 ? &prices : NULL, &r->error);
        if (status == KAKEYA_OK) {
            i++;
            continue;
        }
        const admission_room room = status == KAKEYA_OUT_OF_MEMORY ? make_room_in_turn(s->batch) : ROOM_NONE;
        if (room == ROOM_MADE) {
            i = drop_parked(s, i);
        } else {
            if (room == ROOM_NONE) request_fail(r, status);
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
    b->most = 2 * b->most < BACKEND_MAX_FORWARD ? 2 * b->most : 0;
}

/* What was computed from bytes that are gone is dropped. */
static kakeya_status drop_lost(step *s, kakeya_error *error) {
    kakeya_status status = engine_check(s->batch->engine, error);
    for (int i = 0; status != KAKEYA_OK && i < s->n; i++)
        (void)s->batch->engine->ops->cache_commit(s->segment[i].cache, 0, NULL);
    return status;
}

/* Where memory is on its way, the members try again in a later iteration. */
static bool find_room(step *s) {
    const admission_room room = make_room_beside(s);
    if (room == ROOM_LATER) s->n = s->answers = 0;
    return room != ROOM_NONE;
}

/* Computes what can be computed: who cannot be served leaves, and the others are tried again. Needs the turn. */
static void compute(step *s) {
    kakeya_engine *engine = s->batch->engine;
    kakeya_error error = {0};
    kakeya_status status = fill_segments(s, &error);
    while (status == KAKEYA_OUT_OF_MEMORY && s->n) { /* for their logits: the same as where a forward finds none */
        if (s->n > 1)
            serve_fewer(s);
        else if (!find_room(s))
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
        double start = clock_seconds(), reading = backend_read_seconds(engine->ops, engine->model);
        status = engine->ops->forward(engine->model, s->segment, s->n, &error);
        if (status == KAKEYA_OK) status = drop_lost(s, &error);
        if (status == KAKEYA_OK) {
            for (int i = 0; i < s->n; i++) {
                kakeya_request *r = s->member[i];
                r->status = i < s->answers ? decode_read(&r->answer.stream, i, &r->error)
                                           : prompt_read(r->session, &r->prompt, &r->answer.first, &r->answer.decode, i,
                                                         &r->error);
            }
            s->seconds = clock_seconds() - start;
            s->read_seconds = backend_read_seconds(engine->ops, engine->model) - reading;
            serve_more(s->batch, s->n);
            return;
        }
        if (status == KAKEYA_OUT_OF_MEMORY && !anyone_named(s) && s->n > 1)
            serve_fewer(s);
        else if (status != KAKEYA_OUT_OF_MEMORY || !find_room(s))
            fail_members(s, status, &error);
    }
}

/* What the answers of a step take alone, at least: no more than the last step of theirs. */
static double seconds_of_answers(const batch *b, int rows) {
    if (rows >= b->answer_rows) return b->answer_seconds;
    return b->answer_seconds * rows / b->answer_rows;
}

/* A step to which prompts added too much sets the speed back to what it was: tokens behind a long context take longer.
 * Every other one says that there may be more: its time holds the answers' rows, too, so that what it measures is too
 * little. What prompts added is known if answers had a step of their own not long ago, with as many rows. */
static void learn_prompt_speed(step *s, int rows, int prompt_rows) {
    static const double patience = 1.15, growth = 1.05, more_answers = 1.25;
    batch *b = s->batch;
    const kakeya_engine *engine = b->engine;
    double speed = prompt_rows / s->seconds, stall = engine->max_stall_ms / 1000.0;
    double most = engine->ops->model_prompt_chunk(engine->model) / stall;
    b->since_answers++;
    if (s->answers && s->seconds > patience * stall && prompt_rows > LEAST_PROMPT_ROWS) {
        const double added = s->seconds - seconds_of_answers(b, rows);
        const bool like_these = rows <= more_answers * b->answer_rows;
        b->answers_alone = !b->answer_rows || b->since_answers >= (like_these ? STEPS_OF_ALIKE : STEPS_OF_MORE);
        const bool known = like_these || !b->answers_alone;
        if (known && added > patience * stall) b->prompt_speed = prompt_rows / added;
        if (!known || added > patience * stall) return;
    }
    bool used = prompt_rows >= s->budget; /* a prompt that was short says nothing of what a longer one would take */
    double grown = used && b->prompt_speed * growth < most ? b->prompt_speed * growth : b->prompt_speed;
    b->prompt_speed = speed > grown ? speed : grown;
}

static void learn_answer_seconds(step *s, int rows) {
    batch *b = s->batch;
    b->answer_seconds = s->seconds;
    b->answer_rows = rows;
    b->since_answers = 0;
}

/* What the step says about the machine's speed. */
static void learn(step *s, int tokens) {
    batch *b = s->batch;
    int prompt_rows = 0, rows = 0;
    for (int i = 0; i < s->n; i++) *(i < s->answers ? &rows : &prompt_rows) += s->segment[i].n;
    if (!prompt_rows) b->answers_alone = false;
    if (s->seconds <= 0) return;
    if (prompt_rows)
        learn_prompt_speed(s, rows, prompt_rows);
    else if (rows)
        learn_answer_seconds(s, rows);
    if (!prompt_rows && s->answers > 1) step_costs_add(&b->costs, rows, tokens, s->seconds);
}

static void take_results(step *s) {
    batch *b = s->batch;
    b->advanced |= s->n > 0;
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
            r->status = decode_commit(&r->answer.stream, r->status, s->seconds, s->read_seconds, &r->error);
        } else {
            r->status = prompt_commit(r->session, &r->prompt, r->status, &r->error);
            if (r->status != KAKEYA_OK) r->status = prompt_failed(r->session, &r->prompt, r->status, &r->error);
        }
    }
    engine_turn_end(b->engine);
    for (int i = 0; i < s->n; i++) {
        kakeya_request *r = s->member[i];
        r->served = b->count;
        admission_reckon(&b->requests, r);
        if (r->status == KAKEYA_OK && i >= s->answers) r->status = prompt_report(r->session, &r->prompt, &r->error);
        if (r->status != KAKEYA_OK)
            r->failing = true;
        else if (i >= s->answers && prompt_done(r->session, &r->prompt))
            request_end_prompt(r, &b->buffers);
    }
}

/* Whether prompts of the step's format are under way. */
static bool prompts_wait(const step *s) {
    for (const kakeya_request *r = s->batch->requests.running.first; r; r = r->next)
        if (takes_part(s, r, REQUEST_PROMPT)) return true;
    return false;
}

static void run_step(batch *b, kv_format format) {
    step s = {.batch = b, .format = format};
    bool prompts = prompts_wait(&s);
    choose_answers(&s, prompts);
    plan_answers(&s, prompts);
    if (!s.n && !prompts) return;
    engine_turn_begin(b->engine);
    ask_drafters(&s);
    compute(&s);
    engine_turn_end(b->engine);
    take_results(&s);
}

/* Bits of the formats that there is something to compute in. */
static unsigned formats_of(const batch *b) {
    unsigned formats = 0;
    for (const kakeya_request *r = b->requests.running.first; r; r = r->next)
        if (admission_is_active(r)) formats |= 1u << format_of(r);
    return formats;
}

kakeya_request *batch_step(batch *b) {
    b->count++;
    for (kakeya_request *r = b->requests.running.first; r; r = r->next) {
        if (r->state == REQUEST_PROMPT) {
            kakeya_status status = prompt_check(r->session, &r->prompt, &r->error);
            if (status != KAKEYA_OK) request_fail(r, status);
        }
        request_end_answer(r);
    }
    unsigned formats = formats_of(b);
    b->advanced = false;
    for (int format = 0; format < KV_FORMAT_COUNT; format++)
        if (formats & 1u << format) run_step(b, (kv_format)format);
    for (kakeya_request *r = b->requests.running.first; r; r = r->next) {
        if (r->failing) request_fail(r, r->status);
        request_end_answer(r);
    }
    b->advanced |= formats && !b->requests.later; /* rows of a picture are progress that no member shows */
    return admission_take_done(&b->requests);
}

bool batch_rests(const batch *b) { return !b->advanced; }
