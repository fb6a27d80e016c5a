/* A backend for tests of everything above the boundary: a deterministic toy language model.
 *
 * The logits behind a position are a function of the last ORDER tokens and the position's row rule, so a cache that
 * holds wrong tokens, wrong positions or rejected rows gives other tokens. Under the bounded policies the logits also
 * depend on the kind of each row (prompt or decode), as eviction does in a real model. Drafts are right with a scripted
 * probability. Any verb can be made to fail at its n-th call. */
#ifndef KAKEYA_TESTS_FAKE_BACKEND_H
#define KAKEYA_TESTS_FAKE_BACKEND_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/exp_weight.h"
#include "base/random.h"

enum { FAKE_ORDER = 3, FAKE_VOCAB = 64, FAKE_CHUNK = 48, FAKE_PIECE = 32 };

enum fake_verb {
    FAKE_FORWARD = 0,
    FAKE_COMMIT,
    FAKE_TRUNCATE,
    FAKE_DRAFT,
    FAKE_CREATE,
    FAKE_FORK,
    FAKE_SNAPSHOT,
    FAKE_RESTORE,
    FAKE_VERBS
};

/* What tests set and look at. */
typedef struct fake_script {
    double draft_right;            /* probability that a draft token is what greedy decoding would give */
    uint64_t model_seed;           /* another model */
    int peak;                      /* 0: flat logits; otherwise the preferred token leads by this much */
    int period;                    /* > 0: the preferred token repeats with this period: text for n-grams */
    int fail_verb, fail_after;     /* fail_after: calls of that verb that still succeed; < 0: never fails */
    int nan_at;                    /* position whose logits are NaN; < 0: none */
    int truncate_reach;            /* cache_min_truncate = length - reach; < 0: 0 */
    const char *description;       /* of the backend; NULL: "fake" */
    bool spoilt;                   /* caches that hold something cannot go on: cache_min_truncate = length + 1 */
    int most_segments;             /* > 0: a forward of more has no memory for its step, whoever they are */
    bool (*on_create)(void *user); /* before a cache is made; false: there is no memory for it. NULL: there is */
    void (*on_forward)(void *user);
    void *user;
    int calls[FAKE_VERBS];
    int max_rows_seen, live_caches;
    int max_segments_seen, refused_steps;
} fake_script;

struct backend_model {
    backend_model_options options;
    fake_script *script;
    int vocab;
    const backend_cache *last_cache; /* of the last forward, for read_logits */
    int last_position, last_rows;
    int rows_read;
    int prompt_rows; /* whole rows of logits that prompts asked for in their segments */
};

struct backend_cache {
    backend_model *model;
    backend_cache_options options;
    int length, pending;
    int32_t *tokens; /* [context] */
    unsigned char *kinds;
    void *kv; /* something for the account to count */
};

/* The script of the models created next; tests own it. */
static fake_script *fake_next_script;

static kakeya_status fake_fails(fake_script *script, enum fake_verb verb, const char *name, kakeya_error *error) {
    int call = script->calls[verb]++;
    if (script->fail_after < 0 || script->fail_verb != (int)verb || call < script->fail_after) return KAKEYA_OK;
    return error_set(error, KAKEYA_BACKEND, "%s: injected failure", name);
}

static kakeya_status fake_model_create(const backend_model_options *options, backend_model **out, kakeya_error *error) {
    backend_model *model = calloc(1, sizeof *model);
    if (!model) return error_set(error, KAKEYA_OUT_OF_MEMORY, "fake model");
    model->options = *options;
    model->script = fake_next_script;
    model->vocab = options->verifier->config.vocab;
    *out = model;
    return KAKEYA_OK;
}

static void fake_model_destroy(backend_model *model) { free(model); }
static const char *fake_description(const backend_model *model) {
    return model->script->description ? model->script->description : "fake";
}
static int fake_chunk(const backend_model *model) {
    (void)model;
    return FAKE_CHUNK;
}

static void fake_cache_destroy(backend_cache *cache) {
    if (!cache) return;
    cache->model->script->live_caches--;
    mem_free(cache->tokens);
    mem_free(cache->kinds);
    mem_free(cache->kv);
    free(cache);
}

static kakeya_status fake_allocate(backend_model *model, const backend_cache_options *options, backend_cache **out,
                                   kakeya_error *error) {
    *out = NULL;
    backend_cache *cache = calloc(1, sizeof *cache);
    if (!cache) return error_set(error, KAKEYA_OUT_OF_MEMORY, "fake cache");
    model->script->live_caches++;
    cache->model = model;
    cache->options = *options;
    size_t context = (size_t)options->context_tokens;
    cache->tokens = mem_alloc(options->account, MEM_KV_FULL, context * sizeof(int32_t));
    cache->kinds = mem_alloc(options->account, MEM_KV_SLIDING, context);
    cache->kv = mem_alloc(options->account, MEM_KV_DRAFT, options->keep_draft_context ? 4096 : 64);
    if (!cache->tokens || !cache->kinds || !cache->kv) {
        fake_cache_destroy(cache);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "fake cache of %zu tokens", context);
    }
    *out = cache;
    return KAKEYA_OK;
}

static kakeya_status fake_cache_create(backend_model *model, const backend_cache_options *options, backend_cache **out,
                                       kakeya_error *error) {
    *out = NULL;
    const fake_script *script = model->script;
    kakeya_status status = fake_fails(model->script, FAKE_CREATE, "cache_create", error);
    if (status == KAKEYA_OK && script->on_create && !script->on_create(script->user))
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "fake cache: out of memory");
    return status == KAKEYA_OK ? fake_allocate(model, options, out, error) : status;
}

static int fake_length(const backend_cache *cache) { return cache->length; }
static int fake_pending(const backend_cache *cache) { return cache->pending; }
static int fake_min_truncate(const backend_cache *cache) {
    int reach = cache->model->script->truncate_reach;
    if (cache->model->script->spoilt && cache->length) return cache->length + 1;
    return reach < 0 || cache->length < reach ? 0 : cache->length - reach;
}

static backend_ops fake_backend;

/* A number that stands for all that the row at `position` can see. */
static uint64_t fake_context(const backend_cache *cache, int position) {
    const fake_script *script = cache->model->script;
    uint64_t hash = 0xcbf29ce484222325u ^ script->model_seed;
    int first = position - FAKE_ORDER + 1;
    if (script->period) {
        uint64_t phase = (uint64_t)((position + 1) % script->period);
        return (hash ^ phase) * 0x9E3779B97F4A7C15u;
    }
    for (int i = first < 0 ? 0 : first; i <= position; i++)
        hash = (hash ^ (uint64_t)(uint32_t)cache->tokens[i]) * 0x100000001b3u;
    if (cache->options.attention != KAKEYA_ATTENTION_NATIVE || fake_backend.kinds_differ)
        hash = (hash ^ cache->kinds[position]) * 0x100000001b3u;
    return hash * 0x9E3779B97F4A7C15u;
}

static int32_t fake_preferred(const backend_cache *cache, int position) {
    uint64_t context = fake_context(cache, position);
    return (int32_t)((context >> 33) % (uint64_t)cache->model->vocab);
}

static void fake_row(const backend_cache *cache, int position, float *logits) {
    uint64_t context = fake_context(cache, position);
    for (int t = 0; t < cache->model->vocab; t++) logits[t] = (float)(random_uniform_at(context, (uint64_t)t) * 4);
    logits[fake_preferred(cache, position)] += (float)cache->model->script->peak;
    if (position == cache->model->script->nan_at) logits[cache->model->vocab / 2] = 0.0f / 0.0f;
}

static void fake_argmax(const backend_segment *segment) {
    const backend_cache *cache = segment->cache;
    const model_config *config = &cache->model->options.verifier->config;
    float *row = malloc((size_t)cache->model->vocab * sizeof *row);
    for (int i = segment->first_logit_row; row && i < segment->n; i++) {
        const uint32_t *allowed = segment->allowed;
        if (allowed) allowed += (i - segment->first_logit_row) * ((cache->model->vocab + 31) / 32);
        int32_t best = -1;
        bool number = true;
        fake_row(cache, cache->length + i, row);
        for (int t = 0; t < cache->model->vocab; t++) {
            bool suppressed = config->n_suppress_tokens && config->suppress_tokens[0] == t;
            number = number && row[t] == row[t];
            suppressed |= segment->excluded && *segment->excluded == t;
            suppressed |= allowed && !(allowed[t / 32] >> (t % 32) & 1);
            if (!suppressed && (best < 0 || row[t] > row[best])) best = t;
        }
        segment->argmax[i - segment->first_logit_row] = number ? best : -1;
    }
    free(row);
}

/* Few of them, so that whole rows are wanted too. */
static void fake_leaders(const backend_segment *segment) {
    enum { LISTED = 5 };
    const backend_cache *cache = segment->cache;
    const model_config *config = &cache->model->options.verifier->config;
    int vocab = cache->model->vocab;
    float *row = malloc((size_t)vocab * sizeof *row);
    for (int i = segment->first_logit_row; row && i < segment->n; i++) {
        backend_leaders *out = &segment->leaders[i - segment->first_logit_row];
        *out = (backend_leaders){0};
        fake_row(cache, cache->length + i, row);
        for (int t = 0; t < vocab; t++) {
            if (row[t] != row[t]) out->n = -1;
            if (config->n_suppress_tokens && config->suppress_tokens[0] == t) row[t] = -INFINITY;
            if (segment->excluded && *segment->excluded == t) row[t] = -INFINITY;
        }
        float maximum = -INFINITY;
        for (int t = 0; t < vocab; t++) maximum = row[t] > maximum ? row[t] : maximum;
        for (int t = 0; out->n >= 0 && t < vocab; t++) {
            out->total += exp_weight(row[t], maximum, segment->temperature);
            out->plain_total += exp_weight(row[t], maximum, 1);
        }
        while (out->n >= 0 && out->n < LISTED) {
            int32_t best = 0;
            for (int t = 1; t < vocab; t++)
                if (row[t] > row[best]) best = t;
            out->token[out->n] = best;
            out->logit[out->n++] = row[best];
            row[best] = -INFINITY;
        }
    }
    free(row);
}

static kakeya_status fake_read_logits(backend_model *model, int segment, int row, float *logits, kakeya_error *error) {
    if (!model->last_cache || segment != 0 || row < 0 || row >= model->last_rows)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "read_logits: row %d", row);
    fake_row(model->last_cache, model->last_position + row, logits);
    model->rows_read++;
    return KAKEYA_OK;
}

static kakeya_status fake_forward(backend_model *model, backend_segment *segments, int n_segments,
                                  kakeya_error *error) {
    kakeya_status status = fake_fails(model->script, FAKE_FORWARD, "forward", error);
    if (status != KAKEYA_OK) return status;
    if (model->script->on_forward) model->script->on_forward(model->script->user);
    if (model->script->most_segments && n_segments > model->script->most_segments) {
        model->script->refused_steps++;
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: a step of %d segments", n_segments);
    }
    if (n_segments > model->script->max_segments_seen) model->script->max_segments_seen = n_segments;
    for (int s = 0; s < n_segments; s++) {
        backend_segment *segment = &segments[s];
        backend_cache *cache = segment->cache;
        int most = segment->kind == SEGMENT_PROMPT ? FAKE_CHUNK : BACKEND_MAX_DECODE_ROWS;
        if (segment->kind == SEGMENT_DECODE && cache->options.attention != KAKEYA_ATTENTION_NATIVE &&
            most > cache->options.window)
            most = cache->options.window;
        if (cache->pending || segment->n < 1 || segment->n > most ||
            cache->length + segment->n > cache->options.context_tokens)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "forward: %d rows behind %d with %d pending", segment->n,
                             cache->length, cache->pending);
        if (segment->n > model->script->max_rows_seen) model->script->max_rows_seen = segment->n;
        for (int i = 0; i < segment->n; i++) {
            int position = cache->length + i;
            if (segment->tokens[i] < 0 || segment->tokens[i] >= model->vocab)
                return error_set(error, KAKEYA_INVALID_ARGUMENT, "forward: token %d", (int)segment->tokens[i]);
            cache->tokens[position] = segment->tokens[i];
            cache->kinds[position] = (unsigned char)segment->kind;
        }
        if (segment->argmax) fake_argmax(segment);
        if (segment->leaders) fake_leaders(segment);
        model->last_cache = cache;
        model->last_position = cache->length + segment->first_logit_row;
        model->last_rows = segment->n - segment->first_logit_row;
        if (segment->kind == SEGMENT_PROMPT && segment->logits) model->prompt_rows += model->last_rows;
        for (int i = segment->first_logit_row; segment->logits && i < segment->n; i++)
            fake_row(cache, cache->length + i,
                     segment->logits + (size_t)(i - segment->first_logit_row) * (size_t)model->vocab);
        int hidden = model->options.verifier->config.hidden, layers = model->options.verifier->config.layers;
        for (int l = 0; segment->hidden_states && l <= layers; l++)
            for (int i = 0; i < segment->n; i++)
                for (int h = 0; h < hidden; h++)
                    segment->hidden_states[(l * segment->n + i) * hidden + h] =
                        (float)(l * 1000000 + (cache->length + i) * 100 + h);
        cache->pending = segment->n;
    }
    return KAKEYA_OK;
}

static kakeya_status fake_commit(backend_cache *cache, int n, kakeya_error *error) {
    kakeya_status status = n ? fake_fails(cache->model->script, FAKE_COMMIT, "cache_commit", error) : KAKEYA_OK;
    if (status != KAKEYA_OK) return status;
    if (n < 0 || n > cache->pending)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "commit of %d rows, %d are pending", n, cache->pending);
    cache->length += n;
    cache->pending = 0;
    for (int i = cache->length; i < cache->options.context_tokens; i++) cache->tokens[i] = -1; /* no trace */
    return KAKEYA_OK;
}

static kakeya_status fake_truncate(backend_cache *cache, int length, kakeya_error *error) {
    kakeya_status status = fake_fails(cache->model->script, FAKE_TRUNCATE, "cache_truncate", error);
    if (status != KAKEYA_OK) return status;
    if (cache->pending || length > cache->length || length < fake_min_truncate(cache))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "truncate to %d of %d", length, cache->length);
    cache->length = length;
    for (int i = length; i < cache->options.context_tokens; i++) cache->tokens[i] = -1;
    return KAKEYA_OK;
}

static void fake_copy(backend_cache *to, const backend_cache *from) {
    to->length = from->length;
    memcpy(to->tokens, from->tokens, (size_t)from->options.context_tokens * sizeof(int32_t));
    memcpy(to->kinds, from->kinds, (size_t)from->options.context_tokens);
}

static kakeya_status fake_fork(const backend_cache *cache, mem_account *account, backend_cache **out,
                               kakeya_error *error) {
    *out = NULL;
    kakeya_status status = fake_fails(cache->model->script, FAKE_FORK, "cache_fork", error);
    if (status != KAKEYA_OK) return status;
    backend_cache_options options = cache->options;
    options.account = account;
    status = fake_allocate(cache->model, &options, out, error);
    if (status == KAKEYA_OK) fake_copy(*out, cache);
    return status;
}

static backend_cache_bytes fake_bytes(const backend_cache *cache) {
    (void)cache;
    return (backend_cache_bytes){0};
}

static size_t fake_snapshot_bytes(const backend_cache *cache) { return 4 + (size_t)cache->length * 5; }

static kakeya_status fake_snapshot(const backend_cache *cache, backend_write_fn write, void *user,
                                   kakeya_error *error) {
    size_t length = (size_t)cache->length;
    kakeya_status status = fake_fails(cache->model->script, FAKE_SNAPSHOT, "cache_snapshot", error);
    if (status == KAKEYA_OK) status = write(user, &cache->length, 4, error);
    for (size_t at = 0, n; at < length && status == KAKEYA_OK; at += n) {
        n = length - at < FAKE_PIECE ? length - at : FAKE_PIECE;
        status = write(user, cache->tokens + at, n * 4, error);
    }
    return status == KAKEYA_OK ? write(user, cache->kinds, length, error) : status;
}

static kakeya_status fake_restore(backend_cache *cache, backend_read_fn read, void *user, kakeya_error *error) {
    int length = -1;
    kakeya_status status = fake_fails(cache->model->script, FAKE_RESTORE, "cache_restore", error);
    if (status == KAKEYA_OK) status = read(user, &length, 4, error);
    if (status == KAKEYA_OK && (length < 0 || length > cache->options.context_tokens))
        return error_set(error, KAKEYA_FORMAT, "restore: %d positions", length);
    for (int at = 0, n; at < length && status == KAKEYA_OK; at += n) {
        n = length - at < FAKE_PIECE ? length - at : FAKE_PIECE;
        status = read(user, cache->tokens + at, (size_t)n * 4, error);
    }
    if (status == KAKEYA_OK) status = read(user, cache->kinds, (size_t)length, error);
    if (status == KAKEYA_OK) cache->length = length;
    return status;
}

/* Right drafts are the toy model's own greedy continuation; whether a draft is right depends on its position alone. */
static kakeya_status fake_draft_block(backend_cache *cache, int32_t bonus, int n, int32_t *drafts,
                                      kakeya_error *error) {
    fake_script *script = cache->model->script;
    kakeya_status status = fake_fails(script, FAKE_DRAFT, "draft", error);
    if (status != KAKEYA_OK) return status;
    if (!cache->options.keep_draft_context || cache->pending)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "draft: no drafter context");
    int context = cache->options.context_tokens, at = cache->length;
    if (at < context) {
        cache->tokens[at] = bonus;
        cache->kinds[at] = SEGMENT_DECODE;
    }
    for (int i = 0; i < n; i++, at++) {
        int32_t right = at < context ? fake_preferred(cache, at) : 0;
        bool wrong = random_uniform_at(91, (uint64_t)at) >= script->draft_right;
        drafts[i] = wrong ? (right + 1) % cache->model->vocab : right;
        if (at + 1 < context) {
            cache->tokens[at + 1] = drafts[i];
            cache->kinds[at + 1] = SEGMENT_DECODE;
        }
    }
    for (int i = cache->length; i < context; i++) cache->tokens[i] = -1;
    return KAKEYA_OK;
}

static kakeya_status fake_draft(backend_model *model, backend_draft_request *requests, int n_requests,
                                kakeya_error *error) {
    (void)model;
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < n_requests && !status; i++) {
        backend_draft_request *r = &requests[i];
        status = r->status = fake_draft_block(r->cache, r->bonus, r->n, r->drafts, error);
    }
    return status;
}

/* With `finds_argmax`, `masks_argmax` or `finds_leaders` set by a test that wants it. */
static backend_ops fake_backend = {
    .name = "fake",
    .stall_ms = 200,
    .batch = 64,
    .model_create = fake_model_create,
    .model_destroy = fake_model_destroy,
    .model_description = fake_description,
    .model_prompt_chunk = fake_chunk,
    .cache_create = fake_cache_create,
    .cache_destroy = fake_cache_destroy,
    .cache_length = fake_length,
    .cache_pending = fake_pending,
    .cache_min_truncate = fake_min_truncate,
    .forward = fake_forward,
    .read_logits = fake_read_logits,
    .cache_commit = fake_commit,
    .cache_truncate = fake_truncate,
    .cache_fork = fake_fork,
    .cache_bytes = fake_bytes,
    .cache_snapshot_bytes = fake_snapshot_bytes,
    .cache_snapshot = fake_snapshot,
    .cache_restore = fake_restore,
    .draft = fake_draft,
};

#endif
