/* Rules that hold for the rows of every kind: what a row says must be possible, and rows must fit together. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode/speculate.h"
#include "measure/gate_private.h"
#include "measure/lossless_plan.h"
#include "measure/summary.h"

bool gate_measured(const eval_row *row) { return !row->warmup && row->arm.mix_alpha < 0; }
bool gate_same_rung(const eval_row *a, const eval_row *b) { return a->lines == b->lines; }
bool gate_is_reference(const gate_context *context, const eval_row *row) {
    if (context->kind != EVAL_KV_FORMAT) return gate_is_native(row);
    return strcmp(row->arm.kv_format, eval_reference_format(row->arm.as_stored)) == 0;
}

bool gate_is_native(const eval_row *row) { return strcmp(row->arm.policy, "native") == 0; }
bool gate_is_restored(const eval_row *row) { return strncmp(row->arm.policy, "restored", 8) == 0; }

bool gate_first_of_arm(const gate_context *context, size_t i, bool by_rung) {
    const eval_row *row = &context->rows.row[i];
    if (!gate_measured(row)) return false;
    for (size_t j = 0; j < i; j++) {
        const eval_row *earlier = &context->rows.row[j];
        if (gate_measured(earlier) && eval_arm_equal(&earlier->arm, &row->arm) &&
            (!by_rung || gate_same_rung(earlier, row)))
            return false;
    }
    return true;
}

void gate_rule_kv_sum(gate_context *context) {
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        size_t sum = row->kv.full + row->kv.sliding + row->kv.latent + row->kv.draft;
        if (sum != row->kv.total)
            gate_violate(context, "KV_SUM", "rows[%zu] (%s): the kinds of K/V sum to %zu bytes, total says %zu", i,
                         row->sample, sum, row->kv.total);
        if (!row->kv.total) gate_violate(context, "KV_SUM", "rows[%zu] (%s): no resident K/V reported", i, row->sample);
    }
}

static int64_t sum(const int64_t *values) {
    int64_t total = 0;
    for (int i = 0; i < EVAL_DRAFT_POSITIONS; i++) total += values[i];
    return total;
}

/* Drafts of a block, at most: what was asked for, or what the mode takes by itself. */
static int longest_block(const gate_context *context, const eval_row *row) {
    const char *mode = row->arm.mode;
    const cJSON *block = cJSON_GetObjectItemCaseSensitive(context->environment, "drafter_block_size");
    int own = cJSON_IsNumber(block) ? block->valueint - 1 : 0;
    if (strcmp(mode, "ar") == 0 || strcmp(mode, "reforward") == 0) return 0;
    if (row->arm.draft_length) return row->arm.draft_length;
    if (strcmp(mode, "auto") == 0) return BACKEND_MAX_DRAFT;
    if (strcmp(mode, "ngram") == 0) own = own > DECODE_NGRAM_DRAFT ? own : DECODE_NGRAM_DRAFT;
    return own < BACKEND_MAX_DRAFT ? own : BACKEND_MAX_DRAFT;
}

/* Blocks, one by one, give the counts by position. */
static bool blocks_fit(const eval_row *row) {
    int64_t drafted[EVAL_DRAFT_POSITIONS] = {0};
    if (!row->has_blocks) return true;
    if (strcmp(row->arm.mode, "auto") != 0 || (int64_t)row->blocks.n != row->verifier_forwards) return false;
    for (size_t i = 0; i < row->blocks.n; i++)
        for (int p = 0; p < row->blocks.block[i].drafted; p++) drafted[p]++;
    return memcmp(drafted, row->drafted_at, sizeof drafted) == 0;
}

/* CUDA and MLX compute rows of prompts with kernels of their own, and have other bits in them. */
static bool kinds_differ(const gate_context *context) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(context->environment, "backend");
    const char *backend = cJSON_IsString(item) ? item->valuestring : "";
    return strncmp(backend, "cuda", 4) == 0 || strncmp(backend, "mlx", 3) == 0;
}

void gate_rule_counts(gate_context *context) {
    size_t cut = 0, most_cut = 0; /* a few answers may be cut by less: the rows of a long last block lie in the way */
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        const size_t most = row->truncated ? lossless_dropped(row->n_token_ids) : 0;
        const size_t dropped = row->dropped_tokens > 0 ? (size_t)row->dropped_tokens : 0;
        if (row->dropped_tokens < 0 || dropped > most)
            gate_violate(context, "COUNTS", "rows[%zu] (%s): %d tokens were cut off, %zu at most were to be", i,
                         row->sample, row->dropped_tokens, most);
        cut += dropped;
        most_cut += most;
        /* What is cut off was made, too; where rows of prompts and answers are alike, a prompt's makes the first token
         * behind the cut. */
        int64_t tokens = (int64_t)(row->n_token_ids + dropped),
                made = row->verifier_forwards + row->accepted_tokens + 1;
        made += dropped && gate_is_native(row) && !kinds_differ(context);
        /* One token comes with each forward beside the accepted drafts, and one from the prompt. The forward after an
         * accepted draft that ended the answer gives none. */
        int64_t spare = (row->accepted_tokens > 0) * (dropped ? 2 : 1) +
                        (strcmp(row->arm.mode, "reforward") == 0); /* it computes the first, too */
        if (tokens < 1 || tokens > made || tokens < made - spare || row->accepted_tokens > row->drafted_tokens)
            gate_violate(context, "COUNTS",
                         "rows[%zu] (%s): %lld tokens from %lld forwards with %lld of %lld drafts accepted", i,
                         row->sample, (long long)tokens, (long long)row->verifier_forwards,
                         (long long)row->accepted_tokens, (long long)row->drafted_tokens);
        bool positions = sum(row->drafted_at) == row->drafted_tokens && sum(row->accepted_at) == row->accepted_tokens;
        int longest = longest_block(context, row);
        if (row->drafted_at[0] > row->verifier_forwards) positions = false;
        for (int p = 0; p < EVAL_DRAFT_POSITIONS && positions; p++)
            positions = row->accepted_at[p] <= row->drafted_at[p] && (p < longest || !row->drafted_at[p]) &&
                        (!p || (row->accepted_at[p] <= row->accepted_at[p - 1] &&
                                row->drafted_at[p] <= row->drafted_at[p - 1]));
        positions = positions && blocks_fit(row);
        if (!positions)
            gate_violate(context, "COUNTS",
                         "rows[%zu] (%s): counts by draft position fit neither totals, blocks nor mode", i,
                         row->sample);
    }
    if (2 * cut < most_cut)
        gate_violate(context, "COUNTS", "%zu tokens were cut off in all, less than half of %zu", cut, most_cut);
}

/* The first block of an answer holds as many drafts as were asked for, if the answer and the window are long enough; a
 * token that can never be sampled may cut one short, but not all of an arm. */
static bool has_room_for_drafts(const eval_row *row) {
    int length = row->arm.draft_length;
    bool native = strcmp(row->arm.policy, "native") == 0;
    return length > 0 && length <= EVAL_DRAFT_POSITIONS && strcmp(row->arm.mode, "speculative") == 0 &&
           row->n_token_ids > (size_t)length + 1 && (native || row->arm.window > length);
}

void gate_rule_draft_lengths(gate_context *context) {
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (!has_room_for_drafts(row)) continue;
        int length = row->arm.draft_length;
        bool drafted = false, first = true;
        for (size_t j = 0; j < context->rows.n && !drafted; j++) {
            const eval_row *other = &context->rows.row[j];
            if (!has_room_for_drafts(other) || other->arm.draft_length != length) continue;
            first &= j >= i;
            drafted = other->drafted_at[length - 1] > 0;
        }
        if (!drafted && first)
            gate_violate(context, "DRAFT_LENGTH",
                         "rows[%zu] (%s): no row with draft_length %d has a block of %d drafts", i, row->sample, length,
                         length);
    }
}

static bool is_stop(const gate_context *context, int32_t id) {
    const cJSON *stop;
    cJSON_ArrayForEach(stop, cJSON_GetObjectItemCaseSensitive(context->environment, "stop_tokens")) {
        if (cJSON_IsNumber(stop) && stop->valueint == id) return true;
    }
    return false;
}

void gate_rule_turn_end(gate_context *context) {
    const cJSON *limit = cJSON_GetObjectItemCaseSensitive(context->options, "max_tokens");
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        size_t n = row->n_token_ids;
        for (size_t t = 0; t + 1 < n; t++) {
            if (!is_stop(context, row->token_ids[t])) continue;
            gate_violate(context, "TURN_END", "rows[%zu] (%s): stop token %d at %zu is followed by %zu more tokens", i,
                         row->sample, row->token_ids[t], t, n - t - 1);
            break;
        }
        bool stopped = n && is_stop(context, row->token_ids[n - 1]);
        double most = cJSON_IsNumber(limit) ? limit->valuedouble : 0;
        bool full = (double)n >= most;
        if ((double)n > most)
            gate_violate(context, "TURN_END", "rows[%zu] (%s): %zu tokens, but max_tokens is %g", i, row->sample, n,
                         most);
        /* A callback that ends an answer does so before its last token can. */
        bool ended = row->cancel_after > 0 && n >= (size_t)row->cancel_after && !stopped;
        bool sound = strcmp(row->finish, "stop") == 0        ? stopped
                     : strcmp(row->finish, "length") == 0    ? !stopped && full && !row->cancel_after
                     : strcmp(row->finish, "cancelled") == 0 ? ended
                                                             : false;
        if (!sound)
            gate_violate(context, "TURN_END",
                         "rows[%zu] (%s): finish_reason \"%s\" after %zu tokens, the last of them %s", i, row->sample,
                         row->finish, n, stopped ? "a stop token" : "no stop token");
    }
}

void gate_rule_duplicates(gate_context *context) {
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        for (size_t j = 0; j < i; j++) {
            const eval_row *other = &context->rows.row[j];
            if (strcmp(row->sample, other->sample) != 0 || row->repetition != other->repetition ||
                !eval_arm_equal(&row->arm, &other->arm))
                continue;
            gate_violate(context, "DUPLICATE_ROW", "rows[%zu] and rows[%zu] are the same run (%s)", j, i, row->sample);
            break;
        }
    }
}

/* A warm-up row of the arm stands before its first measured row, and on a prompt that is not measured. */
void gate_rule_warmup(gate_context *context) {
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (gate_first_of_arm(context, i, false)) {
            bool warm = false;
            for (size_t j = 0; j < i && !warm; j++)
                warm = context->rows.row[j].warmup && eval_arm_equal(&context->rows.row[j].arm, &row->arm);
            char label[160];
            eval_arm_label(&row->arm, label, sizeof label);
            if (!warm) gate_violate(context, "WARMUP_MISSING", "%s: measured without a warm-up run before", label);
        }
        if (!row->warmup) continue;
        for (size_t j = 0; j < context->rows.n; j++) {
            const eval_row *other = &context->rows.row[j];
            if (other->warmup || (strcmp(other->sample, row->sample) != 0 && other->prompt_hash != row->prompt_hash))
                continue;
            gate_violate(context, "WARMUP_OVERLAP", "%s is measured on the prompt that %s warmed up", other->sample,
                         row->sample);
            break;
        }
    }
}

/* -------------------------------------------------------------------------------------------- sample counts */

static size_t count_samples(const gate_context *context, const eval_row *of, bool repetitions) {
    size_t n = 0;
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (!gate_measured(row) || !gate_same_rung(row, of) || !eval_arm_equal(&row->arm, &of->arm)) continue;
        n += repetitions ? strcmp(row->sample, of->sample) == 0 : row->repetition == 0;
    }
    return n;
}

static bool arm_has_sample(const gate_context *context, const eval_row *arm, const eval_row *sample) {
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (gate_measured(row) && gate_same_rung(row, arm) && eval_arm_equal(&row->arm, &arm->arm) &&
            row->repetition == sample->repetition && strcmp(row->sample, sample->sample) == 0 &&
            row->prompt_hash == sample->prompt_hash)
            return true;
    }
    return false;
}

static void check_counts(gate_context *context, const eval_row *row) {
    char label[160];
    eval_arm_label(&row->arm, label, sizeof label);
    bool code = context->kind == EVAL_CODE;
    size_t n = count_samples(context, row, code), least = code ? GATE_MIN_REPETITIONS : GATE_MIN_SAMPLES;
    if (n >= least) return;
    if (code) {
        gate_violate(context, "SAMPLE_COUNT", "%s, %s: %zu repetitions; at least %zu are needed", row->sample, label, n,
                     least);
    } else if (row->lines) {
        gate_violate(context, "SAMPLE_COUNT", "%d lines, %s: %zu samples; at least %zu are needed", row->lines, label,
                     n, least);
    } else {
        gate_violate(context, "SAMPLE_COUNT", "%s: %zu samples; at least %zu are needed", label, n, least);
    }
}

static void count_sequences(gate_context *context) {
    size_t n = 0;
    for (size_t i = 0; i < context->rows.n; i++) {
        bool seen = false;
        for (size_t j = 0; j < i && !seen; j++)
            seen = strcmp(context->rows.row[j].sample, context->rows.row[i].sample) == 0;
        n += !seen;
    }
    if (n < GATE_MIN_SAMPLES)
        gate_violate(context, "SAMPLE_COUNT", "%zu sequences; at least %d are needed", n, GATE_MIN_SAMPLES);
}

void gate_rule_samples(gate_context *context) {
    if (context->kind == EVAL_LOSSLESS ||
        context->kind == EVAL_BATCH) { /* its arms are spread over the prompts on purpose */
        count_sequences(context);
        return;
    }
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (!gate_measured(row)) continue;
        bool first = gate_first_of_arm(context, i, true);
        if (first || (context->kind == EVAL_CODE && row->repetition == 0)) check_counts(context, row);
        if (!first) continue;
        for (size_t j = 0; j < context->rows.n; j++) {
            const eval_row *sample = &context->rows.row[j];
            if (!gate_measured(sample) || !gate_same_rung(sample, row) || arm_has_sample(context, row, sample))
                continue;
            char label[160], other[160];
            eval_arm_label(&row->arm, label, sizeof label);
            eval_arm_label(&sample->arm, other, sizeof other);
            gate_violate(context, "SAMPLE_MISMATCH", "%s was run as %s, but not as %s", sample->sample, other, label);
            break;
        }
    }
}

/* -------------------------------------------------------------------------------------------------- summary */

/* Figures are printed with 15 or more digits. */
static bool same_number(double a, double b) { return fabs(a - b) <= 1e-9 * fmax(1, fmax(fabs(a), fabs(b))); }

static void compare(gate_context *context, const char *path, const cJSON *stated, const cJSON *derived) {
    char inner[200];
    if (!stated || (stated->type & 0xff) != (derived->type & 0xff)) {
        gate_violate(context, "SUMMARY_MISMATCH", "%s is %s, unlike what the rows give", path,
                     stated ? "of another type" : "missing");
    } else if (cJSON_IsNumber(derived)) {
        if (!same_number(stated->valuedouble, derived->valuedouble))
            gate_violate(context, "SUMMARY_MISMATCH", "%s is %.6g, but the rows give %.6g", path, stated->valuedouble,
                         derived->valuedouble);
    } else if (cJSON_IsString(derived)) {
        if (strcmp(stated->valuestring, derived->valuestring) != 0)
            gate_violate(context, "SUMMARY_MISMATCH", "%s is \"%.60s\", but the rows give \"%.60s\"", path,
                         stated->valuestring, derived->valuestring);
    } else if (cJSON_IsArray(derived) || cJSON_IsObject(derived)) {
        if (cJSON_GetArraySize(stated) != cJSON_GetArraySize(derived)) {
            gate_violate(context, "SUMMARY_MISMATCH", "%s has %d entries, but the rows give %d", path,
                         cJSON_GetArraySize(stated), cJSON_GetArraySize(derived));
            return;
        }
        int i = 0;
        for (const cJSON *item = derived->child; item; item = item->next, i++) {
            if (cJSON_IsArray(derived)) {
                snprintf(inner, sizeof inner, "%.180s[%d]", path, i);
            } else {
                snprintf(inner, sizeof inner, "%.120s.%.60s", path, item->string);
            }
            compare(context, inner,
                    cJSON_IsArray(derived) ? cJSON_GetArrayItem(stated, i)
                                           : cJSON_GetObjectItemCaseSensitive(stated, item->string),
                    item);
        }
    }
}

void gate_rule_summary(gate_context *context) {
    cJSON *derived = eval_summary_derive(context->kind, &context->rows);
    if (!derived) {
        context->out_of_memory = true;
        return;
    }
    compare(context, "summary", cJSON_GetObjectItemCaseSensitive(context->report, "summary"), derived);
    cJSON_Delete(derived);
}

void gate_rule_lossless(gate_context *context) {
    eval_lossless result;
    eval_lossless_compare(&context->rows, &result);
    char label[160], reference[160];
    if (result.alone && result.comparisons) {
        eval_arm_label(&result.lonely->arm, label, sizeof label);
        gate_violate(context, "LOSSLESS_REFERENCE", "%zu token streams have nothing to be compared with; first %s, %s",
                     result.alone, result.lonely->sample, label);
    }
    if (!result.differences) return;
    eval_arm_label(&result.different->arm, label, sizeof label);
    eval_arm_label(&result.reference->arm, reference, sizeof reference);
    gate_violate(context, "LOSSLESS", "%zu of %zu token streams differ; first %s, token %zu: %s against %s",
                 result.differences, result.comparisons, result.different->sample, result.position, label, reference);
}
