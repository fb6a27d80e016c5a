/* One text that is generated: the library's tokens become events. Runs on the thread that computes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kakeya_study.h"
#include "serve/answer_private.h"

static void say(answer_choice *c, event_record record, const char *text, size_t bytes, size_t n_logprobs) {
    record.text_bytes = bytes;
    record.n_logprobs = n_logprobs;
    for (size_t i = 0; i < c->copies; i++) {
        record.choice = c->index + i;
        (c->alone ? answer_say_alone : answer_say)(c->answer, record, text, c->pending);
    }
    if (record.type != ANSWER_TOKEN) c->n_pending = c->n_settled = 0;
}

/* -------------------------------------------------------------------------------------------------------- the parser
 */

static bool on_chat_event(void *user, const kakeya_chat_event *event) {
    answer_choice *c = user;
    const event_record content = {.type = ANSWER_CONTENT}, reasoning = {.type = ANSWER_REASONING};
    event_record part = {.call = event->call};
    if (c->answer->options.messages) answer_turn_event(&c->turn, event);
    switch (event->type) {
    case KAKEYA_CHAT_CONTENT:
        say(c, content, event->text, event->text_bytes,
            kakeya_chat_parser_place(c->parser) == KAKEYA_CHAT_IN_CONTENT ? c->n_pending : c->n_settled);
        break;
    case KAKEYA_CHAT_REASONING:
        say(c, reasoning, event->text, event->text_bytes, 0);
        break;
    case KAKEYA_CHAT_CALL_BEGIN: {
        text_buffer names = {0}; /* once for a call: not on the path of every token */
        text_bytes(&names, event->id, strlen(event->id) + 1);
        text_bytes(&names, event->name, strlen(event->name) + 1);
        part.type = ANSWER_CALL_BEGIN;
        bool named = !names.failed;
        if (named) say(c, part, names.data, names.n, 0);
        text_free(&names);
        return named;
    }
    case KAKEYA_CHAT_CALL_ARGUMENTS:
        part.type = ANSWER_CALL_ARGUMENTS;
        say(c, part, event->text, event->text_bytes, 0);
        break;
    case KAKEYA_CHAT_CALL_END:
        part.type = ANSWER_CALL_END;
        say(c, part, NULL, 0, 0);
        if (event->call + 1 >= c->answer->options.max_calls) c->end = CHOICE_CALLS;
        break;
    }
    return true;
}

bool choice_open(answer_choice *c) {
    const answer_options *o = &c->answer->options;
    KAKEYA_INIT(&c->stats);
    c->stop_token = c->stop_string = -1;
    if (o->raw) return true;
    if (o->begun) text_add(&c->turn.content, o->begun);
    kakeya_chat_parser_options options;
    KAKEYA_INIT(&options);
    options.tools = o->tools;
    options.tools_bytes = o->tools_bytes;
    options.like = c->answer->choices[0].parser;
    options.prompt = o->ids;
    options.n_prompt = o->n_ids;
    options.without_reasoning = o->hide_reasoning;
    options.stop_strings = o->stops;
    options.n_stop_strings = o->n_stops;
    options.id_prefix = o->id_prefix;
    options.on_event = on_chat_event;
    options.user = c;
    kakeya_error why = {0};
    if (kakeya_chat_parser_open(kakeya_engine_tokenizer(c->answer->server->engine), &options, &c->parser, &why) ==
        KAKEYA_OK)
        return true;
    return api_fail_library(&c->error, "invalid_value", "tools", &why);
}

void choice_close(answer_choice *c) {
    kakeya_chat_parser_close(c->parser);
    c->parser = NULL;
    answer_turn_free(&c->turn);
}

kakeya_session *choice_set_session(answer_choice *c, kakeya_session *session) {
    answer *a = c->answer;
    pthread_mutex_lock(&a->lock); /* whoever cancels looks at it */
    kakeya_session *before = c->session;
    c->session = session;
    pthread_mutex_unlock(&a->lock);
    return before;
}

/* ----------------------------------------------------------------------------------------------------
 * log-probabilities */

static bool keep_logprob(answer_choice *c, const kakeya_event *event) {
    if (c->n_pending == c->room_pending) {
        size_t room = c->room_pending ? 2 * c->room_pending : 16;
        answer_logprob *grown = realloc(c->pending, room * sizeof *grown);
        if (!grown) return api_out_of_memory(&c->error);
        c->pending = grown;
        c->room_pending = room;
    }
    answer_logprob *p = &c->pending[c->n_pending++];
    p->token = event->token;
    p->value = event->log_probability;
    p->n_top = event->n_top < KAKEYA_MAX_TOP_LOG_PROBABILITIES ? event->n_top : KAKEYA_MAX_TOP_LOG_PROBABILITIES;
    if (p->n_top) memcpy(p->top, event->top, p->n_top * sizeof *p->top);
    return true;
}

/* ------------------------------------------------------------------------------------------------------------ events
 */

static bool is_listed(const answer_options *o, int32_t token) {
    for (size_t i = 0; i < o->n_stop_tokens; i++)
        if (o->stop_tokens[i] == token) return true;
    return false;
}

static void count_time(answer_choice *c) {
    answer *a = c->answer;
    metrics *m = &a->server->metrics;
    double now = clock_seconds();
    if (!atomic_exchange(&a->first_token_seen, true)) {
        a->usage.first_token_seconds = now - http_received(a->call->exchange);
        atomic_store(&a->first_token_at, now);
        metrics_seconds(&m->first_token, a->usage.first_token_seconds);
    }
    if (c->last_token > 0) metrics_seconds(&m->inter_token, now - c->last_token);
    c->last_token = now;
    c->uncounted++;
    atomic_fetch_add_explicit(&a->tokens, 1, memory_order_relaxed);
}

void choice_measure(answer_choice *c) {
    atomic_store(&c->kv_bytes, c->session ? kakeya_session_kv_bytes(c->session).total : 0);
}

void choice_count(answer_choice *c, const kakeya_stats *so_far) {
    choice_measure(c);
    answer *a = c->answer;
    metrics *m = &a->server->metrics;
    kakeya_stats *known = &c->stats;
    c->drafted = so_far->drafted_tokens != known->drafted_tokens;
    atomic_fetch_add(&a->forwards, so_far->verifier_forwards - known->verifier_forwards);
    atomic_fetch_add(&a->drafted, so_far->drafted_tokens - known->drafted_tokens);
    atomic_fetch_add(&a->accepted, so_far->accepted_tokens - known->accepted_tokens);
    metrics_add(&m->forwards, so_far->verifier_forwards - known->verifier_forwards);
    metrics_add(&m->draft_tokens, so_far->drafted_tokens - known->drafted_tokens);
    metrics_add(&m->draft_accepted, so_far->accepted_tokens - known->accepted_tokens);
    for (size_t i = 0; i < METRICS_POSITIONS; i++) {
        metrics_add(&m->drafted_at[i], so_far->drafted_at[i] - known->drafted_at[i]);
        metrics_add(&m->accepted_at[i], so_far->accepted_at[i] - known->accepted_at[i]);
    }
    metrics_add(&m->generation_tokens, c->uncounted);
    c->uncounted = 0;
    *known = *so_far;
}

/* Log-probabilities are told with content. Those of what is held back wait until it is known what it is. */
static void settle_logprobs(answer_choice *c, kakeya_chat_place before) {
    kakeya_chat_place place = kakeya_chat_parser_place(c->parser);
    if (place == KAKEYA_CHAT_UNDECIDED) return;
    if (place != KAKEYA_CHAT_IN_CONTENT) c->n_pending = 0;
    if (before == KAKEYA_CHAT_UNDECIDED && c->n_pending > c->n_settled) c->n_pending = c->n_settled;
    c->n_settled = c->n_pending;
}

/* What a token means; c->end is set where nothing may follow it. */
static void take_token(answer_choice *c, const kakeya_event *event) {
    answer *a = c->answer;
    const answer_options *o = &a->options;
    kakeya_error why = {0};
    if (o->token_ids) {
        const event_record token = {.type = ANSWER_TOKEN, .token = event->token};
        say(c, token, NULL, 0, 0);
    }
    if (is_listed(o, event->token) && c->generated > o->min_tokens) {
        c->end = CHOICE_STOP_TOKEN;
        c->stop_token = event->token;
        return;
    }
    bool shown = o->raw || !kakeya_tokenizer_is_special(kakeya_engine_tokenizer(a->server->engine), event->token);
    if (o->logprobs && shown && !keep_logprob(c, event)) {
        c->end = CHOICE_FAILED;
        return;
    }
    if (o->raw) {
        const event_record content = {.type = ANSWER_CONTENT};
        if (event->text_bytes) say(c, content, event->text, event->text_bytes, c->n_pending);
        return;
    }
    bool stopped = false;
    kakeya_chat_place before = kakeya_chat_parser_place(c->parser);
    if (kakeya_chat_parser_feed(c->parser, &event->token, 1, &stopped, &why) != KAKEYA_OK) {
        api_fail_library(&c->error, NULL, NULL, &why);
        c->end = CHOICE_FAILED;
    } else if (stopped) {
        c->end = CHOICE_STOP_STRING;
    }
    settle_logprobs(c, before);
}

static bool on_event(void *user, const kakeya_event *event) {
    answer_choice *c = user;
    answer *a = c->answer;
    if (event->type == KAKEYA_EVENT_TOKEN) {
        c->generated++;
        if (event->stats->verifier_forwards != c->stats.verifier_forwards) choice_count(c, event->stats);
        count_time(c);
        c->alone = a->options.choices == 1 && (a->server->single_token || (a->server->no_core_to_spare && !c->drafted));
        take_token(c, event);
        c->alone = false;
        if (c->end == CHOICE_GOES_ON && atomic_load_explicit(&a->cancelled, memory_order_relaxed))
            c->end = CHOICE_CANCELLED;
        if (c->end == CHOICE_GOES_ON) answer_pause(c);
        return c->end == CHOICE_GOES_ON;
    }
    if (event->type != KAKEYA_EVENT_FINISH || c->end != CHOICE_GOES_ON) return true;
    if (a->options.score_stop && event->stop_token >= 0) {
        kakeya_event last = *event;
        last.token = event->stop_token;
        if (!keep_logprob(c, &last)) {
            c->end = CHOICE_FAILED;
            return true;
        }
    }
    c->stop_string = event->stop_string;
    switch (event->finish) {
    case KAKEYA_FINISH_STOP:
        c->end = event->stop_string >= 0 ? CHOICE_STOP_STRING : CHOICE_STOPPED;
        break;
    case KAKEYA_FINISH_LENGTH:
        c->end = CHOICE_LENGTH;
        break;
    case KAKEYA_FINISH_CANCELLED:
        c->end = CHOICE_CANCELLED;
        break;
    default:
        c->end = CHOICE_FAILED;
    }
    return true;
}

/* -------------------------------------------------------------------------------------------------------------- masks
 */

/* Follows the thought through the timeline; how many of its tokens there are decides, so neither drafts nor batches do.
 */
static void follow_thought(answer_choice *c, const int32_t *tokens, size_t n) {
    const answer *a = c->answer;
    for (; c->masked < n; c->masked++) {
        int32_t token = tokens[c->masked];
        if (token == a->id_channel && c->thought_tokens < 0) {
            c->thought_tokens = 0;
        } else if (token == a->id_channel_end) {
            c->thought_tokens = -1;
        } else if (c->thought_tokens >= 0) {
            c->thought_tokens++;
        }
    }
}

static void forbid(int32_t token, uint32_t *allowed, size_t n_words) {
    if (token >= 0 && (size_t)token / 32 < n_words) allowed[token / 32] &= ~(UINT32_C(1) << (token % 32));
}

static bool mask(void *user, const int32_t *tokens, size_t n, uint32_t *allowed, size_t n_words) {
    answer_choice *c = user;
    const answer *a = c->answer;
    const answer_options *o = &a->options;
    if (o->thinking_budget >= 0) {
        follow_thought(c, tokens, n);
        if (c->thought_tokens >= o->thinking_budget && c->thought_tokens >= 0) {
            allowed[a->id_channel_end / 32] |= UINT32_C(1) << (a->id_channel_end % 32);
            return true;
        }
    }
    if (n >= o->n_ids + o->min_tokens) return false;
    memset(allowed, 0xff, n_words * sizeof *allowed);
    for (size_t i = 0; i < o->n_stop_tokens; i++) forbid(o->stop_tokens[i], allowed, n_words);
    for (size_t i = 0; i < a->server->n_stop_tokens; i++) forbid(a->server->stop_tokens[i], allowed, n_words);
    return true;
}

/* Whether the prompt ends inside a thought: its last marker is one that opens it. */
static int64_t open_thought(const answer *a) {
    const kakeya_tokenizer *t = kakeya_engine_tokenizer(a->server->engine);
    int32_t turn = kakeya_tokenizer_find(t, "<|turn>");
    for (size_t i = a->options.n_ids; i-- > 0;) {
        int32_t token = a->options.ids[i];
        if (token == a->id_channel) return (int64_t)(a->options.n_ids - 1 - i);
        if (token == a->id_channel_end || token == turn) break;
    }
    return -1;
}

/* -------------------------------------------------------------------------------------------------- what is asked for
 */

uint64_t answer_choice_seed(uint64_t seed, size_t choice) {
    if (choice == 0) return seed;
    uint64_t x = seed + (uint64_t)choice * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

void choice_generate_options(answer_choice *c, kakeya_generate_options *out) {
    const answer *a = c->answer;
    const answer_options *o = &a->options;
    KAKEYA_INIT(out);
    if (c->generated == 0 && c->masked == 0) {
        c->masked = o->n_ids;
        c->thought_tokens = open_thought(a);
    }
    out->max_tokens = o->max_tokens ? o->max_tokens - (int)c->generated : 0;
    out->sampling = o->sampling;
    out->sampling.top_p = kakeya_options_top_p(o->sampling.top_p);
    out->sampling.seed = answer_choice_seed(o->sampling.seed, c->index);
    if (o->raw) {
        out->stop_strings = o->stops;
        out->n_stop_strings = o->n_stops;
    }
    out->ignore_stop_tokens = o->ignore_stop_tokens;
    out->presence_penalty = o->presence_penalty;
    out->frequency_penalty = o->frequency_penalty;
    out->answer_start = o->n_ids;
    out->without_calls = o->without_calls;
    out->grammar = o->grammar ? grammar_cache_grammar(o->grammar) : NULL;
    out->prediction = o->prediction;
    out->n_prediction = o->n_prediction;
    out->on_event = on_event;
    out->user = c;
    out->log_probabilities = o->logprobs;
    out->top_log_probabilities = o->logprobs ? o->top_logprobs : 0;
    out->logit_bias = o->bias;
    out->n_logit_bias = o->n_bias;
    if (o->thinking_budget >= 0 || o->min_tokens > 0) {
        out->token_mask = mask;
        out->token_mask_user = c;
    }
}

/* What is left of its text; c->last is its end. */
static void tell_rest(answer_choice *c) {
    const answer_options *o = &c->answer->options;
    kakeya_finish finish = c->end == CHOICE_LENGTH      ? KAKEYA_FINISH_LENGTH
                           : c->end == CHOICE_CANCELLED ? KAKEYA_FINISH_CANCELLED
                                                        : KAKEYA_FINISH_STOP;
    event_record end = {.type = ANSWER_FINISH, .stop_token = c->stop_token};
    const event_record content = {.type = ANSWER_CONTENT};
    end.finish_reason = finish == KAKEYA_FINISH_LENGTH ? "length" : "stop";
    int stop_string = c->stop_string;
    if (!o->raw) {
        kakeya_chat_summary summary;
        KAKEYA_INIT(&summary);
        kakeya_error why = {0};
        if (kakeya_chat_parser_finish(c->parser, finish, &summary, &why) != KAKEYA_OK) {
            api_fail_library(&c->error, NULL, NULL, &why);
            return;
        }
        if (finish != KAKEYA_FINISH_CANCELLED) end.finish_reason = summary.finish_reason;
        stop_string = summary.stop_string;
        c->answer->usage.reasoning_tokens += summary.reasoning_tokens * c->copies;
        metrics_add(&c->answer->server->metrics.token_repairs, summary.repairs - summary.call_repairs);
        metrics_add(&c->answer->server->metrics.call_repairs, summary.call_repairs);
    }
    if (stop_string >= 0) {
        end.stop_text = o->stops[stop_string];
        if (o->keep_stop) say(c, content, end.stop_text, strlen(end.stop_text), c->n_pending);
    }
    if (c->n_pending && o->raw) say(c, content, NULL, 0, c->n_pending);
    c->last = end;
}

static void remember(answer_choice *c) {
    const answer *a = c->answer;
    const answer_options *o = &a->options;
    if (!o->messages || o->n_stable == 0) return;
    /* Behind a stop string there are tokens that nobody was told of, behind ignored stop tokens too. */
    bool whole = c->end == CHOICE_STOPPED || c->end == CHOICE_LENGTH || c->end == CHOICE_CALLS;
    if ((!whole && c->end != CHOICE_STOP_TOKEN) || o->ignore_stop_tokens) return;
    size_t n, answered = o->n_ids + c->generated - (c->end == CHOICE_STOP_TOKEN);
    const int32_t *ids = kakeya_session_tokens(c->session, &n);
    if (answered > n) return;
    answer_turn_remember(&c->turn, a->server->turns, kakeya_engine_tokenizer(a->server->engine), o->messages,
                         o->n_messages, ids, o->n_stable, answered);
}

void choice_finish(answer_choice *c) {
    if (c->finished) return;
    c->finished = true;
    tell_rest(c);
    if (!c->error.status) remember(c);
}

void choice_tell_end(answer_choice *c) {
    if (!c->error.status) say(c, c->last, NULL, 0, 0);
}
