#include "measure/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[EVAL_KIND_COUNT] = {
    "kakeya.eval.niah",     "kakeya.eval.fidelity", "kakeya.eval.code",      "kakeya.eval.acceptance",
    "kakeya.eval.lossless", "kakeya.eval.batch",    "kakeya.eval.kv-format", "kakeya.verify"};

const char *eval_kind_name(eval_kind kind) { return kind_names[kind]; }

bool eval_kind_find(const char *name, eval_kind *out) {
    for (int i = 0; i < EVAL_KIND_COUNT; i++) {
        if (strcmp(kind_names[i], name) != 0) continue;
        *out = (eval_kind)i;
        return true;
    }
    return false;
}

bool eval_kind_scores(eval_kind kind) { return kind == EVAL_FIDELITY || kind == EVAL_KV_FORMAT; }

void eval_row_init(eval_row *row) {
    *row = (eval_row){0};
    row->arm.mix_alpha = -1;
}

void eval_row_free(eval_row *row) {
    free(row->token_ids);
    free(row->text);
    free(row->expected);
    free(row->token_nll);
    free(row->token_kl);
    free(row->layer_error);
    free(row->layer_energy);
    draft_blocks_free(&row->blocks);
    eval_row_init(row);
}

kakeya_status eval_rows_add(eval_rows *rows, eval_row *row, kakeya_error *error) {
    if (rows->n == rows->capacity) {
        size_t capacity = rows->capacity ? 2 * rows->capacity : 64;
        eval_row *grown = realloc(rows->row, capacity * sizeof *grown);
        if (!grown) {
            eval_row_free(row);
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu report rows", capacity);
        }
        rows->row = grown;
        rows->capacity = capacity;
    }
    rows->row[rows->n++] = *row;
    eval_row_init(row);
    return KAKEYA_OK;
}

void eval_rows_free(eval_rows *rows) {
    for (size_t i = 0; i < rows->n; i++) eval_row_free(&rows->row[i]);
    free(rows->row);
    *rows = (eval_rows){0};
}

const char *eval_reference_format(bool as_stored) { return as_stored ? "bf16" : "identity"; }

void eval_arm_source(eval_arm *arm, const char *source) {
    const bool looked_up = strcmp(source, "ngram") == 0;
    snprintf(arm->mode, sizeof arm->mode, "%s", looked_up ? "ngram" : "speculative");
    snprintf(arm->source, sizeof arm->source, "%s", strcmp(source, "assistant") == 0 ? source : "");
}

bool eval_arm_equal(const eval_arm *a, const eval_arm *b) {
    return strcmp(a->policy, b->policy) == 0 && strcmp(a->mode, b->mode) == 0 && a->sink == b->sink &&
           a->window == b->window && a->draft_window == b->draft_window && a->draft_length == b->draft_length &&
           a->threads == b->threads && a->prompt_chunk == b->prompt_chunk && a->together == b->together &&
           fabs(a->temperature - b->temperature) < 1e-9 && a->scaled_embedding == b->scaled_embedding &&
           fabs(a->mix_alpha - b->mix_alpha) < 1e-9 && strcmp(a->kv_format, b->kv_format) == 0 &&
           a->as_stored == b->as_stored && strcmp(a->source, b->source) == 0 &&
           strcmp(a->comparison, b->comparison) == 0;
}

void eval_arm_label(const eval_arm *arm, char *out, size_t bytes) {
    FILE *stream = fmemopen(out, bytes, "w");
    if (!stream) {
        snprintf(out, bytes, "%s %s", arm->policy, arm->mode);
        return;
    }
    if (arm->comparison[0]) fprintf(stream, "%s: ", arm->comparison);
    fprintf(stream, "%s %s", arm->policy, arm->mode);
    if (arm->source[0]) fprintf(stream, " %s", arm->source);
    if (arm->kv_format[0]) fprintf(stream, " %s%s", arm->kv_format, arm->as_stored ? " as stored" : "");
    if (arm->draft_length) fprintf(stream, " L=%d", arm->draft_length);
    if (strcmp(arm->mode, "ar") != 0) fprintf(stream, " draft-window=%d", arm->draft_window);
    if (strcmp(arm->policy, "native") != 0) fprintf(stream, " window=%d+%d", arm->sink, arm->window);
    if (arm->prompt_chunk) fprintf(stream, " chunk=%d", arm->prompt_chunk);
    if (arm->temperature > 0) fprintf(stream, " T=%g", arm->temperature);
    if (arm->scaled_embedding) fputs(" scaled", stream);
    if (arm->mix_alpha >= 0) fprintf(stream, " alpha=%g", arm->mix_alpha);
    if (arm->together) fprintf(stream, " together=%d", arm->together);
    fprintf(stream, " threads=%d", arm->threads);
    fclose(stream);
    out[bytes - 1] = '\0';
}

bool eval_answer_correct(const char *text, const char *expected) {
    return text && expected && expected[0] && strstr(text, expected) != NULL;
}

double eval_row_prefill_speed(const eval_row *row) {
    return row->prefill_seconds > 0 ? (double)row->prompt_tokens / row->prefill_seconds : 0;
}

double eval_row_decode_speed(const eval_row *row) {
    return row->decode_seconds > 0 ? (double)row->n_token_ids / row->decode_seconds : 0;
}
