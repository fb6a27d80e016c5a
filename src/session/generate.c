#include <string.h>

#include "base/clock.h"
#include "session/session.h"
#include "text/detokenizer.h"

/* N-gram drafts need no drafter whose block size would say how many; longer ones seldom hold. */
enum { DEFAULT_NGRAM_DRAFT = 7 };

void kakeya_generate_options_init(kakeya_generate_options *options) {
    *options = (kakeya_generate_options){.sampling = {.top_p = 1, .repetition_penalty = 1}};
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
        .on_token = o->on_token,
        .user = o->user,
        .withheld = -1,
    };
    if (!engine->tokenizer && o->n_stop_strings)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "%zu stop strings, but the model has no tokenizer to make text", o->n_stop_strings);
    if (!engine->tokenizer || (!o->on_token && !o->n_stop_strings)) return KAKEYA_OK;

    text->tokenizer = engine->tokenizer;
    kakeya_status status = detokenizer_create(engine->tokenizer, false, &text->detokenizer, error);
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
    status = t->ops->draft(cache, bonus, n, drafts, error);
    t->ops->cache_destroy(cache);
    pthread_mutex_unlock(t->turn);
    return status;
}

/* Every token from the logits of a fresh cache that recomputes the whole timeline. */
static kakeya_status generate_by_reforward(kakeya_session *session, size_t max_tokens, decode_output *output,
                                           kakeya_stats *stats, kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    output_verdict verdict = OUTPUT_TAKEN;
    kakeya_status status = KAKEYA_OK;
    for (size_t done = 1; status == KAKEYA_OK && verdict == OUTPUT_TAKEN; done++) {
        backend_cache *cache = NULL;
        int32_t token;
        status = session_replay(session, t->tokens, t->n, t->logits, &cache, error);
        if (status != KAKEYA_OK) break;
        t->has_logits = true;
        status = sampler_sample(&session->workspace.sampler, t->logits, t->tokens, t->n, &token, error);
        if (status == KAKEYA_OK) status = output_take(output, token, done == max_tokens, &verdict, error);
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
        t->tokens[t->n++] = token;
        t->has_logits = false;
        stats->verifier_forwards++;
        stats->completion_tokens++;
    }
    stats->finish = output->finish;
    return status;
}

kakeya_status session_generate(kakeya_session *session, const kakeya_generate_options *options,
                               const session_trace *trace, kakeya_stats *stats, kakeya_error *error) {
    kakeya_stats counted = {
        .prompt_tokens = session->prompt_tokens,
        .reused_tokens = session->reused_tokens,
        .prefill_seconds = session->prefill_seconds,
    };
    kakeya_generate_options o;
    kakeya_generate_options_init(&o);
    if (options) o = *options;
    session_reference reference = trace ? trace->reference : SESSION_FUSED;
    decode_options decode = {.trace = trace ? trace->block : NULL, .trace_user = trace ? trace->user : NULL};
    decode_output output = {0};
    token_text text = {0};

    kakeya_status status = resolve_mode(session, &o, &decode, error);
    if (status == KAKEYA_OK) status = resolve_length(session, &o, &decode, error);
    if (status == KAKEYA_OK) status = session_ensure_continuable(session, error);
    if (status == KAKEYA_OK) status = sampler_configure(&session->workspace.sampler, &o.sampling, error);
    if (status == KAKEYA_OK) status = decode_prepare(&session->workspace, &session->timeline, &decode, error);
    if (status == KAKEYA_OK) status = begin_output(session, &o, &text, &output, error);
    if (status == KAKEYA_OK) {
        double start = clock_seconds();
        if (reference == SESSION_UNFUSED) {
            decode.draft = draft_unfused;
            decode.draft_user = session;
        }
        if (reference == SESSION_REFORWARD)
            status = generate_by_reforward(session, decode.max_tokens, &output, &counted, error);
        else
            status = decode_run(&session->timeline, &session->workspace, &decode, &output, &counted, error);
        counted.decode_seconds = clock_seconds() - start;
        session->prompt_tokens = session->reused_tokens = 0;
        session->prefill_seconds = 0;
    }
    if (status == KAKEYA_OK && decode.mode == KAKEYA_MODE_AUTO) {
        kakeya_engine *engine = session->engine;
        pthread_mutex_lock(&engine->turn);
        draft_control_share(&session->workspace.control, &engine->experience[session->options.attention]);
        pthread_mutex_unlock(&engine->turn);
    }
    stop_text_free(&output.stop);
    detokenizer_destroy(text.detokenizer);
    if (stats) *stats = counted;
    return status;
}

kakeya_status kakeya_session_generate(kakeya_session *session, const kakeya_generate_options *options,
                                      kakeya_stats *stats, kakeya_error *error) {
    return session_generate(session, options, NULL, stats, error);
}
