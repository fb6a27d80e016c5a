#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/sized.h"
#include "session/session.h"
#include "text/detokenizer.h"

/* N-gram drafts need no drafter whose block size would say how many; longer ones seldom hold. */
enum { DEFAULT_NGRAM_DRAFT = 7 };

static const kakeya_generate_options default_options = {.size = sizeof default_options,
                                                        .sampling = {.top_p = 1, .repetition_penalty = 1}};

void kakeya_generate_options_init_sized(kakeya_generate_options *options, size_t size) {
    sized_init(options, size, &default_options, sizeof default_options);
}

/* ------------------------------------------------------------------------------------------------ text of tokens */

typedef struct token_text {
    const tokenizer *tokenizer;
    detokenizer *detokenizer;
    bool incomplete; /* a run of byte pieces may be open */
} token_text;

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
    bool drafter = session->cache_options.keep_draft_context;
    if (o->mode < KAKEYA_MODE_AUTO || o->mode > KAKEYA_MODE_NGRAM)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "mode %d is none of auto, ar, speculative, ngram",
                         (int)o->mode);
    if (o->mode == KAKEYA_MODE_SPECULATIVE && !drafter)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "mode 'speculative' needs a drafter, and the %s without one",
                         session->engine->drafter ? "session was opened" : "engine was opened");
    if (o->draft_length < 0 || o->draft_length > BACKEND_MAX_DRAFT)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "draft_length is %d, must be 1 to %d, or 0 for the default",
                         o->draft_length, (int)BACKEND_MAX_DRAFT);
    int length = o->draft_length;
    if (length == 0 && o->mode == KAKEYA_MODE_AUTO) length = BACKEND_MAX_DRAFT;
    if (length == 0) length = drafter ? session->workspace.control.max_dflash : DEFAULT_NGRAM_DRAFT;
    if (o->mode == KAKEYA_MODE_AR) length = 0;
    if (o->top_log_probabilities < 0 || o->top_log_probabilities > KAKEYA_MAX_TOP_LOG_PROBABILITIES)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "top_log_probabilities is %d, must be 0 to %d",
                         o->top_log_probabilities, (int)KAKEYA_MAX_TOP_LOG_PROBABILITIES);
    out->log_probabilities = o->log_probabilities || o->top_log_probabilities > 0;
    out->top_log_probabilities = o->top_log_probabilities;
    out->cancelled = &session->cancelled;
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

static kakeya_status begin_output(kakeya_session *session, const kakeya_generate_options *o, token_text *text,
                                  decode_output *output, kakeya_error *error) {
    const kakeya_engine *engine = session->engine;
    const gemma4_config *config = &engine->verifier->config;
    *output = (decode_output){
        .stop_tokens = config->stop_tokens,
        .n_stop_tokens = o->ignore_stop_tokens ? 0 : config->n_stop_tokens,
        .on_event = o->on_event,
        .user = o->user,
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

/* -------------------------------------------------------------------------------------------------------- loop */

/* Drafts from a drafter context that was rebuilt by recomputing the timeline up to the bonus token. */
static kakeya_status draft_unfused(void *user, int32_t bonus, int n, int32_t *drafts, kakeya_error *error) {
    kakeya_session *session = user;
    const decode_timeline *t = &session->timeline;
    backend_cache *cache = NULL;
    kakeya_status status = session_replay(session, t->tokens, t->n - 1, NULL, &cache, error);
    if (status != KAKEYA_OK) return status;
    pthread_mutex_lock(t->turn);
    status = backend_draft_one(t->ops, t->model, cache, bonus, n, drafts, error);
    t->ops->cache_destroy(cache);
    pthread_mutex_unlock(t->turn);
    return status;
}

/* Every token from the logits of a fresh cache that recomputes the whole timeline. */
static kakeya_status generate_by_reforward(kakeya_session *session, const decode_options *o, decode_output *output,
                                           kakeya_stats *stats, kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    output_verdict verdict = OUTPUT_TAKEN;
    kakeya_status status = KAKEYA_OK;
    for (size_t done = 1; status == KAKEYA_OK && verdict == OUTPUT_TAKEN; done++) {
        backend_cache *cache = NULL;
        output_token next = {.token = -1, .position = t->n, .log_probabilities.chosen = (double)NAN};
        if (atomic_load(&session->cancelled)) {
            status = output_cut(output, KAKEYA_FINISH_CANCELLED, error);
            break;
        }
        status = session_replay(session, t->tokens, t->n, t->logits, &cache, error);
        if (status != KAKEYA_OK) break;
        t->has_logits = true;
        status = sampler_sample(&session->workspace.sampler, t->logits, t->tokens, t->n, &next.token, error);
        if (status == KAKEYA_OK && o->log_probabilities)
            log_probabilities_of_row(t->logits, t->vocab, next.token, o->top_log_probabilities,
                                     &next.log_probabilities);
        if (status == KAKEYA_OK) status = output_take(output, &next, done == o->max_tokens, &verdict, error);
        bool taken = status == KAKEYA_OK && verdict != OUTPUT_REFUSED;
        /* the recomputed memory becomes the timeline's: it holds all tokens but the new one */
        size_t held = taken ? (size_t)t->ops->cache_length(t->cache) : t->n;
        pthread_mutex_lock(t->turn);
        t->ops->cache_destroy(taken ? t->cache : cache);
        pthread_mutex_unlock(t->turn);
        if (!taken) {
            t->has_logits = held == (size_t)t->ops->cache_length(t->cache);
            break;
        }
        t->cache = cache;
        if (held < t->n) memset(t->row_kind + held, SEGMENT_DECODE, t->n - held);
        t->tokens[t->n++] = next.token;
        t->has_logits = false;
        stats->verifier_forwards++;
        stats->completion_tokens++;
    }
    stats->finish = output->finish;
    return status;
}

/* What is fixed when the loop begins. */
typedef struct generation {
    decode_options decode;
    decode_output output;
    token_text text;
    kakeya_stats counted;
} generation;

static kakeya_status generation_run(kakeya_session *session, generation *g, session_reference reference,
                                    kakeya_error *error) {
    if (reference == SESSION_UNFUSED) {
        g->decode.draft = draft_unfused;
        g->decode.draft_user = session;
    }
    double start = clock_seconds();
    kakeya_status status = KAKEYA_OK;
    if (!atomic_load(&session->cancelled)) status = session_ensure_continuable(session, error);
    if (status == KAKEYA_OK)
        status = reference == SESSION_REFORWARD
                     ? generate_by_reforward(session, &g->decode, &g->output, &g->counted, error)
                     : decode_run(&session->timeline, &session->workspace, &g->decode, &g->output, &g->counted, error);
    g->counted.decode_seconds = clock_seconds() - start;
    session->prompt_tokens = session->reused_tokens = 0;
    session->prefill_seconds = 0;
    if (status != KAKEYA_OK) (void)output_cut(&g->output, KAKEYA_FINISH_FAILED, NULL);
    output_finish(&g->output, status, error);
    g->counted.finish = g->output.finish;
    if (status == KAKEYA_OK && g->decode.mode == KAKEYA_MODE_AUTO) {
        kakeya_engine *engine = session->engine;
        pthread_mutex_lock(&engine->turn);
        draft_control_share(&session->workspace.control, &engine->experience[session->options.attention]);
        pthread_mutex_unlock(&engine->turn);
    }
    return status;
}

kakeya_status session_generate(kakeya_session *session, const kakeya_generate_options *options,
                               const session_trace *trace, kakeya_stats *stats, kakeya_error *error) {
    kakeya_error own = {0}; /* for the last event, also where the caller wants none */
    if (!error) error = &own;
    kakeya_generate_options o = default_options;
    generation g = {.decode = {.trace = trace ? trace->block : NULL, .trace_user = trace ? trace->user : NULL},
                    .counted = {.prompt_tokens = session->prompt_tokens,
                                .reused_tokens = session->reused_tokens,
                                .prefill_seconds = session->prefill_seconds}};

    kakeya_status status = KAKEYA_OK;
    if (options) status = sized_read("generate options", options, &o, sizeof o, error);
    if (status == KAKEYA_OK) status = resolve_mode(session, &o, &g.decode, error);
    if (status == KAKEYA_OK) status = resolve_length(session, &o, &g.decode, error);
    const sampler_constraints constraints = {
        .bias = o.logit_bias, .n_bias = o.n_logit_bias, .mask = o.token_mask, .mask_user = o.token_mask_user};
    if (status == KAKEYA_OK) status = sampler_configure(&session->workspace.sampler, &o.sampling, &constraints, error);
    if (status == KAKEYA_OK) status = decode_prepare(&session->workspace, &session->timeline, &g.decode, error);
    if (status == KAKEYA_OK) status = begin_output(session, &o, &g.text, &g.output, error);
    if (status == KAKEYA_OK) status = generation_run(session, &g, trace ? trace->reference : SESSION_FUSED, error);
    stop_text_free(&g.output.stop);
    detokenizer_destroy(g.text.detokenizer);
    if (stats) *stats = g.counted;
    return session_return(session, status);
}

kakeya_status kakeya_session_generate(kakeya_session *session, const kakeya_generate_options *options,
                                      kakeya_stats *stats, kakeya_error *error) {
    kakeya_stats counted = {0};
    kakeya_status status = stats ? sized_check("stats", stats, error) : KAKEYA_OK;
    if (status != KAKEYA_OK) return status;
    status = session_generate(session, options, NULL, &counted, error);
    if (stats) sized_write(stats, &counted, sizeof counted);
    return status;
}
