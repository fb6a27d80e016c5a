/* Rules on samples: every name stands for one prompt, every prompt has one name, and no run is another one's copy. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/gate_private.h"

static bool same_sample(const eval_row *a, const eval_row *b) { return strcmp(a->sample, b->sample) == 0; }

static bool same_stream(const eval_row *a, const eval_row *b) {
    return a->n_token_ids == b->n_token_ids &&
           memcmp(a->token_ids, b->token_ids, a->n_token_ids * sizeof *a->token_ids) == 0;
}

static bool same_text(const char *a, const char *b) { return a && b ? strcmp(a, b) == 0 : a == b; }

/* ----------------------------------------------------------------------------------------------------- identity */

static void check_same_name(gate_context *context, size_t i, size_t j) {
    const eval_row *a = &context->rows.row[i], *b = &context->rows.row[j];
    const char *what = a->prompt_hash != b->prompt_hash              ? "prompt_hash"
                       : a->prompt_tokens != b->prompt_tokens        ? "prompt_tokens"
                       : strcmp(a->prompt_kind, b->prompt_kind) != 0 ? "prompt_kind"
                       : a->lines != b->lines                        ? "lines"
                       : !same_text(a->expected, b->expected)        ? "expected"
                       : a->warmup != b->warmup                      ? "warmup"
                                                                     : NULL;
    if (what)
        gate_violate(context, "PROMPT_MISMATCH", "rows[%zu] and rows[%zu] are of the sample %s, but their %s differ", j,
                     i, a->sample, what);
}

/* Two continuations of the same tokens are the same text: a text cannot be improved alone. */
static void check_text(gate_context *context, size_t i, size_t j) {
    const eval_row *a = &context->rows.row[i], *b = &context->rows.row[j];
    if (eval_kind_scores(context->kind) || !same_stream(a, b) || same_text(a->text, b->text)) return;
    gate_violate(context, "TEXT_MISMATCH", "rows[%zu] and rows[%zu] hold the same token ids, but different texts (%s)",
                 j, i, a->sample);
}

static int distinct_ids(const eval_row *row, int enough) {
    int n = 0;
    for (size_t i = 0; i < row->n_token_ids && n < enough; i++) {
        bool seen = false;
        for (size_t j = 0; j < i && !seen; j++) seen = row->token_ids[j] == row->token_ids[i];
        n += !seen;
    }
    return n;
}

/* Sequences of which every token is as likely as in another one. Tokens that are certain say nothing. */
static bool same_scores(const eval_row *a, const eval_row *b) {
    enum { MIN_UNCERTAIN = 4 };
    static const double rounding = 1e-6, certain = 1e-3;
    int uncertain = 0;
    if (!same_stream(a, b)) return false;
    for (size_t t = 0; t < a->n_token_ids; t++) {
        if (fabs(a->token_nll[t] - b->token_nll[t]) > rounding) return false;
        uncertain += a->token_nll[t] > certain;
    }
    return uncertain >= MIN_UNCERTAIN;
}

/* Drafts were made, and as many were accepted at every position. */
static bool same_drafts(const eval_row *a, const eval_row *b) {
    return a->drafted_tokens > 0 && a->verifier_forwards == b->verifier_forwards &&
           memcmp(a->drafted_at, b->drafted_at, sizeof a->drafted_at) == 0 &&
           memcmp(a->accepted_at, b->accepted_at, sizeof a->accepted_at) == 0;
}

/* One prompt under two names: the same scores, or the same long and varied answer to a prompt of the same length or by
 * the same drafts. */
static bool is_copied_sample(const gate_context *context, const eval_row *a, const eval_row *b) {
    enum { MIN_TOKENS = 16, MIN_DISTINCT = 8 };
    if (context->kind == EVAL_LOSSLESS || context->kind == EVAL_BATCH || context->kind == EVAL_VERIFY) return false;
    if (eval_kind_scores(context->kind)) return same_scores(a, b);
    return (a->prompt_tokens == b->prompt_tokens || same_drafts(a, b)) && a->n_token_ids >= MIN_TOKENS &&
           same_stream(a, b) && distinct_ids(a, MIN_DISTINCT) == MIN_DISTINCT;
}

static void check_other_name(gate_context *context, size_t i, size_t j) {
    const eval_row *a = &context->rows.row[i], *b = &context->rows.row[j];
    if (a->prompt_hash == b->prompt_hash) {
        gate_violate(context, "PROMPT_REUSED", "%s and %s are the same prompt under two names", b->sample, a->sample);
    } else if (eval_arm_equal(&a->arm, &b->arm) && is_copied_sample(context, a, b)) {
        gate_violate(context, "SAMPLE_COPIED", "%s and %s have the same %zu tokens%s", b->sample, a->sample,
                     a->n_token_ids, eval_kind_scores(context->kind) ? ", as likely" : " for an answer");
    }
}

void gate_rule_identity_of_samples(gate_context *context) {
    for (size_t i = 0; i < context->rows.n; i++) {
        for (size_t j = 0; j < i; j++) {
            if (same_sample(&context->rows.row[i], &context->rows.row[j])) {
                check_same_name(context, i, j);
            } else {
                check_other_name(context, i, j);
            }
            check_text(context, i, j);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------- copies */

static double first_time(const gate_context *context, const eval_row *row) {
    return eval_kind_scores(context->kind) ? row->seconds : row->prefill_seconds;
}

typedef struct timed {
    double first, second;
    size_t row;
} timed;

static int by_times(const void *a, const void *b) {
    const timed *x = a, *y = b;
    int first = (x->first > y->first) - (x->first < y->first);
    return first ? first : (x->second > y->second) - (x->second < y->second);
}

/* No two runs take the same time to the last digit of two measurements. */
void gate_rule_copies(gate_context *context) {
    timed *order = malloc((context->rows.n + 1) * sizeof *order);
    if (!order) {
        context->out_of_memory = true;
        return;
    }
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        order[i] = (timed){first_time(context, row), row->decode_seconds, i};
    }
    qsort(order, context->rows.n, sizeof *order, by_times);
    for (size_t i = 1; i < context->rows.n; i++) {
        const eval_row *a = &context->rows.row[order[i - 1].row], *b = &context->rows.row[order[i].row];
        if (by_times(&order[i - 1], &order[i]) < 0) continue;
        gate_violate(context, "ROW_COPIED", "rows[%zu] (%s) and rows[%zu] (%s) took the same time to the last digit",
                     order[i - 1].row, a->sample, order[i].row, b->sample);
    }
    free(order);
}

/* ----------------------------------------------------------------------------------------------- times and ids */

/* Far beyond what any machine does, in either direction. */
static const double fastest_token = 1e-9, slowest_token = 1e5;

static bool plausible(double seconds, double tokens) {
    return seconds >= fastest_token * fmax(tokens, 1) && seconds <= slowest_token * fmax(tokens, 1);
}

/* Rows stand in the order in which they ran, one at a time. */
void gate_rule_times(gate_context *context) {
    static const double long_enough = 10, least_share = 0.1;
    double end = 0, sum = 0;
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        double tokens = (double)row->prompt_tokens, own;
        if (eval_kind_scores(context->kind)) {
            own = row->seconds;
            if (!plausible(own, tokens + (double)row->scored_tokens))
                gate_violate(context, "TIMING", "rows[%zu] (%s): scoring took %g s", i, row->sample, own);
        } else {
            own = row->prefill_seconds + row->decode_seconds;
            /* The first token comes from the prompt's logits: decoding it alone is the drawing of one token. */
            if (!plausible(row->prefill_seconds, tokens) ||
                !plausible(row->decode_seconds, (double)row->n_token_ids - 1))
                gate_violate(context, "TIMING", "rows[%zu] (%s): prefill took %g s and decoding %g s", i, row->sample,
                             row->prefill_seconds, row->decode_seconds);
        }
        if (!(row->started_seconds >= end))
            gate_violate(context, "TIMING_ORDER", "rows[%zu] (%s) begins at %g s, before the row before ends at %g s",
                         i, row->sample, row->started_seconds, end);
        end = fmax(end, row->started_seconds) + own * (1 - 1e-9);
        sum += own;
    }
    /* Opening sessions and saving the report take a small part of an evaluation. */
    if (end > long_enough && sum < least_share * end)
        gate_violate(context, "TIMING_ORDER", "the runs take %g s of the %g s that the evaluation took", sum, end);
}

void gate_rule_ids(gate_context *context) {
    const cJSON *vocabulary = cJSON_GetObjectItemCaseSensitive(context->environment, "vocabulary");
    double size = cJSON_IsNumber(vocabulary) ? vocabulary->valuedouble : 0;
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        for (size_t t = 0; t < row->n_token_ids; t++) {
            if ((double)row->token_ids[t] < size) continue;
            gate_violate(context, "TOKEN_RANGE", "rows[%zu] (%s): token id %d in a vocabulary of %.0f", i, row->sample,
                         row->token_ids[t], size);
            break;
        }
    }
}
