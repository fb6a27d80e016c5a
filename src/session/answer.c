#include "session/answer.h"

#include <string.h>

#include "base/clock.h"
#include "grammar/grammar.h"
#include "session/options.h"

/* ------------------------------------------------------------------------------------------------ text of tokens */

static kakeya_status token_text_push(void *source, int32_t token, const char **text, size_t *bytes, bool *incomplete,
                                     kakeya_error *error) {
    token_text *t = source;
    kakeya_status status = detokenizer_push(t->detokenizer, token, text, bytes, error);
    if (status != KAKEYA_OK) return status;
    t->incomplete = tokenizer_byte(t->tokenizer, token) >= 0 || (t->incomplete && *bytes == 0);
    *incomplete = t->incomplete;
    return KAKEYA_OK;
}

static kakeya_status token_text_finish(void *source, const char **text, size_t *bytes, kakeya_error *error) {
    (void)error;
    token_text *t = source;
    detokenizer_finish(t->detokenizer, text, bytes);
    t->incomplete = false;
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------------- options */

static kakeya_status resolve_mode(const kakeya_session *session, const kakeya_generate_options *o, decode_options *out,
                                  kakeya_error *error) {
    bool drafter = session->cache_options.keep_draft_context || session->cache_options.keep_draft_state;
    if (o->mode < KAKEYA_MODE_AUTO || o->mode > KAKEYA_MODE_NGRAM)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "mode %d is none of auto, ar, speculative, ngram",
                         (int)o->mode);
    if (o->mode == KAKEYA_MODE_SPECULATIVE && !drafter)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "mode 'speculative' needs a drafter, and the %s without one",
                         kakeya_engine_has_drafter(session->engine) ? "session was opened" : "engine was opened");
    if (o->draft_length < 0 || o->draft_length > BACKEND_MAX_DRAFT)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "draft_length is %d, must be 1 to %d, or 0 for the default",
                         o->draft_length, (int)BACKEND_MAX_DRAFT);
    int length = o->draft_length;
    if (length == 0 && o->mode == KAKEYA_MODE_AUTO) length = BACKEND_MAX_DRAFT;
    out->drafter = session->cache_options.keep_draft_context ? BACKEND_BLOCK_DRAFTER : BACKEND_ASSISTANT;
    if (length == 0) length = drafter ? session->workspace.control.drafter[out->drafter].longest : DECODE_NGRAM_DRAFT;
    if (o->mode == KAKEYA_MODE_AR) length = 0;
    if (o->top_log_probabilities < 0 || o->top_log_probabilities > KAKEYA_MAX_TOP_LOG_PROBABILITIES)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "top_log_probabilities is %d, must be 0 to %d",
                         o->top_log_probabilities, (int)KAKEYA_MAX_TOP_LOG_PROBABILITIES);
    out->log_probabilities = o->log_probabilities || o->top_log_probabilities > 0;
    out->top_log_probabilities = o->top_log_probabilities;
    out->mode = o->mode;
    out->draft_length = length;
    out->max_rows = session_decode_rows(session);
    return KAKEYA_OK;
}

static kakeya_status resolve_length(const kakeya_session *session, const kakeya_generate_options *o,
                                    decode_options *out, kakeya_error *error) {
    const decode_timeline *t = &session->timeline;
    if (t->n == 0 || !t->cache)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "nothing to continue: the session holds no tokens, sync it first");
    if (o->max_tokens < 0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "max_tokens is %d, must be at least 0", o->max_tokens);
    if (t->n >= t->capacity)
        return error_set(error, KAKEYA_CONTEXT_FULL, "the session's context of %zu tokens is full, it holds %zu",
                         t->capacity, t->n);
    out->max_tokens = t->capacity - t->n;
    if (o->max_tokens && (size_t)o->max_tokens < out->max_tokens) out->max_tokens = (size_t)o->max_tokens;
    return KAKEYA_OK;
}

static kakeya_status begin_output(kakeya_session *session, answer_work *answer, kakeya_error *error) {
    const kakeya_generate_options *o = &answer->options;
    token_text *text = &answer->text;
    decode_output *output = &answer->output;
    const kakeya_engine *engine = session->engine;
    const model_config *config = &engine->verifier->config;
    *output = (decode_output){
        .stop_tokens = config->stop_tokens,
        .n_stop_tokens = o->ignore_stop_tokens ? 0 : config->n_stop_tokens,
        .on_event = o->on_event,
        .user = o->user,
        .stats = &answer->counted,
    };
    output_begin(output);
    if (!engine->text.tokens && o->n_stop_strings)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "%zu stop strings, but the model has no tokenizer to make text", o->n_stop_strings);
    if (!engine->text.tokens || (!o->on_event && !o->n_stop_strings)) return KAKEYA_OK;

    text->tokenizer = engine->text.tokens;
    kakeya_status status = detokenizer_create(engine->text.tokens, false, &text->detokenizer, error);
    if (status == KAKEYA_OK)
        status = stop_text_create(&output->stop, o->stop_strings, o->n_stop_strings, &session->account, error);
    output->text = (text_source){.push = token_text_push, .finish = token_text_finish, .source = text};
    return status;
}

/* ------------------------------------------------------------------------------------------------------ answers */

static sampler_constraints constraints_of(const kakeya_session *session, const kakeya_generate_options *o,
                                          matcher *grammar) {
    const kakeya_engine *engine = session->engine;
    return (sampler_constraints){.excluded = o->without_calls && engine->call_token >= 0 ? &engine->call_token : NULL,
                                 .bias = o->logit_bias,
                                 .n_bias = o->n_logit_bias,
                                 .mask = o->token_mask,
                                 .mask_user = o->token_mask_user,
                                 .grammar = grammar,
                                 .presence = o->presence_penalty,
                                 .frequency = o->frequency_penalty,
                                 .answer_start = o->answer_start};
}

static kakeya_status check_grammar(const kakeya_session *session, const kakeya_grammar *g, kakeya_error *error) {
    const kakeya_tokenizer *own = &session->engine->text;
    const token_table *table = NULL;
    if (!g) return KAKEYA_OK;
    kakeya_status status = own->tokens ? tokenizer_table(own, &table, error) : KAKEYA_OK;
    if (status != KAKEYA_OK || (table && token_tables_agree(g->tokens, table))) return status;
    return error_set(error, KAKEYA_INVALID_ARGUMENT,
                     "the grammar was made for another tokenizer, of %d tokens; the model's has %d", g->tokens->vocab,
                     table ? table->vocab : 0);
}

/* Behind these tokens. */
static kakeya_status begin_grammar(kakeya_session *session, answer_work *answer, const int32_t *tokens, size_t n,
                                   kakeya_error *error) {
    const model_config *config = &session->engine->verifier->config;
    size_t start = answer->options.answer_start;
    if (!answer->options.grammar) return KAKEYA_OK;
    matcher_destroy(answer->grammar);
    return matcher_create(answer->options.grammar, config->stop_tokens, config->n_stop_tokens, tokens,
                          start && start < n ? start : n, &session->account, &answer->grammar, error);
}

/* The tokens that the answer has already: an answer that was interrupted stands where it stood. */
static kakeya_status follow_grammar(const kakeya_session *session, answer_work *answer, kakeya_error *error) {
    const decode_timeline *t = &session->timeline;
    matcher_space *space = &session->workspace.sampler.space->grammar;
    size_t start = answer->options.answer_start;
    if (!answer->grammar || start == 0) return KAKEYA_OK;
    for (size_t i = start; i < t->n; i++)
        if (!matcher_accept(answer->grammar, space, t->tokens[i]))
            return error_set(error, KAKEYA_INVALID_ARGUMENT,
                             "the grammar does not allow token %d at position %zu of the answer that begins at %zu",
                             t->tokens[i], i, start);
    return KAKEYA_OK;
}

kakeya_status answer_prepare(const kakeya_session *session, const kakeya_generate_options *options, answer_work *answer,
                             kakeya_error *error) {
    kakeya_generate_options *o = &answer->options;
    kakeya_status status = generate_options_read(options, o, error);
    if (status == KAKEYA_OK) status = resolve_mode(session, o, &answer->decode, error);
    if (status != KAKEYA_OK) return status;
    const sampler_constraints constraints = constraints_of(session, o, NULL);
    if (answer->trace.assistant) answer->decode.drafter = BACKEND_ASSISTANT;
    answer->decode.trace = answer->trace.block;
    answer->decode.trace_user = answer->trace.user;
    answer->decode.follow = answer->trace.follow;
    answer->decode.n_follow = answer->trace.n_follow;
    status = check_grammar(session, o->grammar, error);
    return status == KAKEYA_OK ? sampler_check(&session->workspace.sampler, &o->sampling, &constraints, error) : status;
}

kakeya_status answer_open(kakeya_session *session, answer_work *answer, decode_buffers *buffers, kakeya_error *error) {
    sampler *choice = &session->workspace.sampler;
    answer->decode.cancelled = &session->cancelled;
    answer->counted = (kakeya_stats){.size = sizeof(kakeya_stats),
                                     .prompt_tokens = session->prompt_tokens,
                                     .reused_tokens = session->reused_tokens,
                                     .prefill_seconds = session->prefill_seconds};
    kakeya_status status = resolve_length(session, &answer->options, &answer->decode, error);
    choice->space = &buffers->sampling;
    const bool has_first = answer->first.known && answer->grammar; /* which has read it */
    const uint64_t redraws = has_first ? choice->redraws : 0;
    if (status == KAKEYA_OK && !has_first)
        status = begin_grammar(session, answer, session->timeline.tokens, session->timeline.n, error);
    sampler_constraints constraints = constraints_of(session, &answer->options, answer->grammar);
    if (constraints.answer_start == 0) constraints.answer_start = session->timeline.n;
    answer->decode.prediction = (prediction){.tokens = answer->options.prediction,
                                             .n = answer->options.prediction ? answer->options.n_prediction : 0,
                                             .start = constraints.answer_start};
    if (status == KAKEYA_OK) status = sampler_configure(choice, &answer->options.sampling, &constraints, error);
    choice->redraws = redraws;
    if (status == KAKEYA_OK) status = follow_grammar(session, answer, error);
    if (status == KAKEYA_OK) status = begin_output(session, answer, error);
    answer->started = clock_seconds();
    answer->begun = status == KAKEYA_OK;
    return status;
}

void answer_choose_first(kakeya_session *session, answer_work *answer, const int32_t *tokens, size_t n,
                         decode_buffers *buffers) {
    sampler *choice = &session->workspace.sampler;
    const backend_ops *ops = session->timeline.ops;
    answer->first = (decode_first){.choice = DECODE_FROM_LOGITS};
    choice->space = &buffers->sampling;
    const size_t start = answer->options.answer_start;
    if (answer->options.grammar && (answer->begun || (start && start < n))) return; /* not at its beginning */
    if (begin_grammar(session, answer, tokens, n, NULL) != KAKEYA_OK) return;
    const sampler_constraints constraints = constraints_of(session, &answer->options, answer->grammar);
    if (!answer->begun && sampler_configure(choice, &answer->options.sampling, &constraints, NULL) != KAKEYA_OK) return;
    answer->first.choice = decode_choice_of(ops, choice, &answer->decode);
    if (!answer->grammar || answer->first.choice != DECODE_BY_BACKEND) return;
    /* prompts have no masks */
    answer->first.choice = ops->finds_leaders ? DECODE_FROM_LEADERS : DECODE_FROM_LOGITS;
}

bool answer_needs_row(const kakeya_session *session) {
    const decode_timeline *t = &session->timeline;
    return !t->has_logits && (size_t)t->ops->cache_length(t->cache) == t->n;
}

kakeya_status answer_close(kakeya_session *session, answer_work *answer, kakeya_status status, kakeya_error *error) {
    if (answer->begun) {
        answer->counted.decode_seconds = clock_seconds() - answer->started;
        answer->counted.grammar_redraws = session->workspace.sampler.redraws;
        answer->counted.grammar_masks = session->workspace.sampler.masks;
        session->prompt_tokens = session->reused_tokens = 0;
        session->prefill_seconds = 0;
        if (status != KAKEYA_OK) (void)output_cut(&answer->output, KAKEYA_FINISH_FAILED, NULL);
        output_finish(&answer->output, status, error);
        answer->counted.finish = answer->output.finish;
        if (status == KAKEYA_OK && answer->decode.mode == KAKEYA_MODE_AUTO) {
            kakeya_engine *engine = session->engine;
            engine_turn_begin(engine);
            draft_control_share(&session->workspace.control, &engine->experience[session->options.attention]);
            engine_turn_end(engine);
        }
    }
    stop_text_free(&answer->output.stop);
    detokenizer_destroy(answer->text.detokenizer);
    answer->text.detokenizer = NULL;
    matcher_destroy(answer->grammar);
    answer->grammar = NULL;
    sampler_release(&session->workspace.sampler);
    return status;
}
