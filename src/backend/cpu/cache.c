#include "backend/cpu/cache.h"

#include "backend/cpu/draft.h"
#include "backend/cpu/restored_keys.h"
#include "backend/cpu/token_latents.h"

static timeline_models models_of(const backend_model *m) {
    return (timeline_models){
        .verifier = m->config,
        .drafter = m->options.drafter ? &m->options.drafter->config : NULL,
        .restoration = m->options.restoration ? &m->options.restoration->config : NULL,
        .assistant = m->options.assistant ? &m->options.assistant->config : NULL,
    };
}

kakeya_status cpu_cache_check(const backend_model *m, const backend_cache_options *options, kakeya_error *error) {
    const timeline_models models = models_of(m);
    return timeline_check(&models, options, error);
}

kakeya_status cpu_cache_create(backend_model *m, const backend_cache_options *options, backend_cache **out,
                               kakeya_error *error) {
    const timeline_models models = models_of(m);
    kakeya_status status = host_cache_create(m, &models, options, out, error);
    if (status || options->attention != KAKEYA_ATTENTION_RESTORED) return status;
    status = restored_keys_create(m, error);
    if (!status) return KAKEYA_OK;
    host_cache_destroy(*out);
    *out = NULL;
    return status;
}

kakeya_status cache_reserve(backend_cache *c, const timeline_step *step, kakeya_error *error) {
    kakeya_status status = stores_reserve(c, step, error);
    if (!status && !range_is_empty(step->prompt_latents))
        status = token_latents_reserve(c, step->prompt_latents, error);
    return status ? status : timeline_reserve(&c->t, step, error);
}

void cache_release(backend_cache *c) { stores_trim(c); }

void caches_follow(backend_model *m, const draft_rows *entries, int n) {
    draft_rows context[BACKEND_MAX_FORWARD], aux[BACKEND_MAX_FORWARD];
    int n_context = 0, n_aux = 0;
    for (int i = 0; i < n; i++) {
        const timeline *t = &entries[i].cache->t;
        if (t->options.keep_draft_context) context[n_context++] = entries[i];
        if (t->latents_from_aux) aux[n_aux++] = entries[i];
    }
    draft_extend(m, context, n_context);
    latents_of_aux(m, aux, n_aux);
}

/* The first rows of each backlog, in the caches' order; none where a range is empty. */
static void extend(backend_cache *const *caches, const position_range *rows, int n) {
    draft_rows entries[BACKEND_MAX_FORWARD], tokens[BACKEND_MAX_FORWARD];
    int n_entries = 0, n_tokens = 0;
    for (int i = 0; i < n; i++) {
        if (range_is_empty(rows[i])) continue;
        draft_rows e = {caches[i], caches[i]->backlog, rows[i].end - rows[i].begin, rows[i].begin};
        entries[n_entries++] = e;
        if (caches[i]->t.latents_from_tokens) tokens[n_tokens++] = e;
    }
    caches_follow(caches[0]->model, entries, n_entries);
    token_latents_alone(caches[0]->model, tokens, n_tokens);
}

void caches_begin(backend_cache *const *caches, const timeline_step *steps, int n) {
    position_range flushed[BACKEND_MAX_FORWARD] = {{0, 0}};
    for (int i = 0; i < n; i++) {
        stores_begin(caches[i], &steps[i]);
        flushed[i] = steps[i].flushed;
    }
    extend(caches, flushed, n);
    for (int i = 0; i < n; i++) {
        if (!range_is_empty(steps[i].prompt_latents)) token_latents_prompt(caches[i], steps[i].prompt_latents);
        timeline_begin(&caches[i]->t, &steps[i]);
    }
}

void caches_flush(backend_cache *const *caches, int n) {
    position_range rows[BACKEND_MAX_FORWARD] = {{0, 0}};
    for (int i = 0; i < n; i++) rows[i] = timeline_flush(&caches[i]->t);
    extend(caches, rows, n);
    for (int i = 0; i < n; i++) timeline_flushed(&caches[i]->t);
}
