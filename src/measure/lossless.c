#include <math.h>
#include <string.h>

#include "measure/summary.h"

static bool is_ar(const eval_arm *arm) { return strcmp(arm->mode, "ar") == 0; }

/* What may change the tokens: the attention policy with its sizes, the K/V format and the temperature (the seed is one
 * per report).
 * Everything else, by the lossless contract, may not. */
static bool same_stream(const eval_row *a, const eval_row *b) {
    return strcmp(a->sample, b->sample) == 0 && a->prompt_hash == b->prompt_hash &&
           strcmp(a->arm.policy, b->arm.policy) == 0 && a->arm.sink == b->arm.sink && a->arm.window == b->arm.window &&
           fabs(a->arm.temperature - b->arm.temperature) < 1e-9 && strcmp(a->arm.kv_format, b->arm.kv_format) == 0;
}

static bool counts(const eval_row *row) { return row->arm.mix_alpha < 0; } /* mixing changes the tokens on purpose */

static size_t first_difference(const eval_row *a, const eval_row *b) {
    size_t n = a->n_token_ids < b->n_token_ids ? a->n_token_ids : b->n_token_ids;
    size_t i = 0;
    while (i < n && a->token_ids[i] == b->token_ids[i]) i++;
    return i;
}

/* Only rows of one kind ask for them, and then all rows of a stream do. */
static bool same_log_probabilities(const eval_row *a, const eval_row *b) {
    return a->has_log_probabilities == b->has_log_probabilities &&
           (!a->has_log_probabilities || a->log_probability_hash == b->log_probability_hash);
}

const eval_row *eval_lossless_reference(const eval_rows *rows, size_t i) {
    for (size_t j = 0; j < rows->n; j++)
        if (counts(&rows->row[j]) && is_ar(&rows->row[j].arm) && same_stream(&rows->row[j], &rows->row[i]))
            return &rows->row[j];
    return NULL;
}

bool eval_lossless_equal(const eval_row *reference, const eval_row *row, size_t *position) {
    size_t at = first_difference(reference, row);
    if (position) *position = at;
    return at == reference->n_token_ids && at == row->n_token_ids && same_log_probabilities(reference, row);
}

static void compare_stream(const eval_rows *rows, size_t first, eval_lossless *out) {
    const eval_row *reference = &rows->row[first];
    size_t members = 0;
    for (size_t i = first; i < rows->n; i++) {
        const eval_row *row = &rows->row[i];
        if (!counts(row) || !same_stream(row, &rows->row[first])) continue;
        members++;
        if (is_ar(&row->arm) && !is_ar(&reference->arm)) reference = row;
    }
    if (members < 2) {
        if (!out->alone++) out->lonely = reference;
        return;
    }
    out->streams++;
    for (size_t i = first; i < rows->n; i++) {
        const eval_row *row = &rows->row[i];
        if (row == reference || !counts(row) || !same_stream(row, reference)) continue;
        out->comparisons++;
        size_t at;
        if (eval_lossless_equal(reference, row, &at)) continue;
        if (!out->differences++) {
            out->reference = reference;
            out->different = row;
            out->position = at;
        }
    }
}

void eval_lossless_compare(const eval_rows *rows, eval_lossless *out) {
    *out = (eval_lossless){0};
    for (size_t i = 0; i < rows->n; i++) {
        if (!counts(&rows->row[i])) {
            out->diagnostics++;
            continue;
        }
        bool seen = false;
        for (size_t j = 0; j < i && !seen; j++)
            seen = counts(&rows->row[j]) && same_stream(&rows->row[j], &rows->row[i]);
        if (!seen) compare_stream(rows, i, out);
    }
}
