/* What rows say of K/V memory is what the model's own sizes give. */
#include <stdio.h>
#include <string.h>

#include "measure/gate_private.h"

enum { MAX_POSITIONS = 1 << 28 };

typedef size_t (*kv_part)(const backend_cache_bytes *bytes);
static size_t full_part(const backend_cache_bytes *b) { return b->full; }
static size_t sliding_part(const backend_cache_bytes *b) { return b->sliding; }
static size_t latent_part(const backend_cache_bytes *b) { return b->latent; }
static size_t draft_part(const backend_cache_bytes *b) { return b->draft; }

/* Positions that a row's memory was asked for. All scored tokens are committed, of generated ones all but the last.
 * A decode block may have asked for room behind them: one of a single row has not, unless it was computed ahead for an
 * answer that its session's callback ended. */
static int positions(const gate_context *context, const eval_row *row, int *pending) {
    bool scored = eval_kind_scores(context->kind);
    bool alone = context->kind != EVAL_BATCH && !row->arm.together;
    bool exact = scored || (alone && strcmp(row->arm.mode, "ar") == 0);
    *pending = exact ? 0 : BACKEND_MAX_DECODE_ROWS;
    return (int)(row->prompt_tokens + (int64_t)row->n_token_ids) - !scored;
}

static void check_part(gate_context *context, size_t i, const char *name, kv_part part, size_t stated) {
    const eval_row *row = &context->rows.row[i];
    int pending, committed = positions(context, row, &pending);
    backend_cache_bytes first = kv_geometry_bytes(&context->geometry, &row->arm, committed);
    for (int more = 0; more <= pending; more++) {
        backend_cache_bytes bytes = kv_geometry_bytes(&context->geometry, &row->arm, committed + more);
        if (part(&bytes) == stated) return;
    }
    gate_violate(context, "KV_FORMULA", "rows[%zu] (%s, %s): %zu bytes of %s K/V, but the model's sizes give %zu", i,
                 row->sample, row->arm.policy, stated, name, part(&first));
}

void gate_rule_kv_formula(gate_context *context) {
    if (!context->has_geometry) return; /* refused already */
    const cJSON *backend = cJSON_GetObjectItemCaseSensitive(context->environment, "backend");
    bool cpu = !cJSON_IsString(backend) || strncmp(backend->valuestring, "cpu", 3) == 0;
    if (context->geometry.devices > 1 && cpu)
        gate_violate(context, "KV_FORMULA", "%d devices, of which backend cpu has one", context->geometry.devices);
    if (context->geometry.page_granule && cpu)
        gate_violate(context, "KV_FORMULA", "pages in granules of %zu bytes, which backend cpu does not have",
                     context->geometry.page_granule);
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (row->prompt_tokens < 1 || row->prompt_tokens > MAX_POSITIONS || row->n_token_ids > MAX_POSITIONS) {
            gate_violate(context, "KV_FORMULA", "rows[%zu] (%s): a prompt of %lld tokens", i, row->sample,
                         (long long)row->prompt_tokens);
            continue;
        }
        if (row->arm.mix_alpha >= 0) continue; /* diagnostics keep all raw K/V besides */
        check_part(context, i, "draft", draft_part, row->kv.draft);
        /* Eviction begins with the first decoded row. */
        if (row->verifier_forwards == 0 && !eval_kind_scores(context->kind)) continue;
        check_part(context, i, "full", full_part, row->kv.full);
        check_part(context, i, "sliding", sliding_part, row->kv.sliding);
        check_part(context, i, "latent", latent_part, row->kv.latent);
    }
}
