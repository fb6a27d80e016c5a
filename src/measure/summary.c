#include "measure/summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "measure/statistics.h"

static void put(cJSON *object, const char *name, double value) { cJSON_AddNumberToObject(object, name, value); }

static double ratio(double a, double b) { return b > 0 ? a / b : 0; }

static void put_arm(cJSON *object, const eval_arm *arm) {
    cJSON_AddStringToObject(object, "policy", arm->policy);
    cJSON_AddStringToObject(object, "mode", arm->mode);
    if (arm->source[0]) cJSON_AddStringToObject(object, "source", arm->source);
    put(object, "sink", arm->sink);
    put(object, "window", arm->window);
    put(object, "draft_window", arm->draft_window);
    put(object, "draft_length", arm->draft_length);
    put(object, "threads", arm->threads);
    cJSON_AddBoolToObject(object, "drafter_scaled_embedding", arm->scaled_embedding);
}

/* The row belongs to the measured rows of the same arm (and rung, where lines > 0) as `of`. */
static bool same_cell(const eval_row *row, const eval_row *of) {
    return !row->warmup && !of->warmup && row->lines == of->lines && eval_arm_equal(&row->arm, &of->arm);
}

static bool first_of_cell(const eval_rows *rows, size_t i) {
    if (rows->row[i].warmup) return false;
    for (size_t j = 0; j < i; j++)
        if (same_cell(&rows->row[j], &rows->row[i])) return false;
    return true;
}

typedef struct cell {
    size_t n, correct, tokens, samples;
    double prompt_tokens, prefill_seconds, decode_seconds;
    double verifier_forwards, drafted, accepted;
    double decode_speed_median, decode_speed_spread, prefill_speed_median;
    kakeya_kv_bytes kv; /* the largest of the cell */
} cell;

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* scratch: [rows->n] */
static cell cell_of(const eval_rows *rows, size_t of, double *scratch) {
    cell c = {0};
    for (size_t i = of; i < rows->n; i++) {
        const eval_row *row = &rows->row[i];
        if (!same_cell(row, &rows->row[of])) continue;
        c.correct += row->correct;
        c.tokens += row->n_token_ids;
        c.samples += row->repetition == 0;
        c.prompt_tokens += (double)row->prompt_tokens;
        c.prefill_seconds += row->prefill_seconds;
        c.decode_seconds += row->decode_seconds;
        c.verifier_forwards += (double)row->verifier_forwards;
        c.drafted += (double)row->drafted_tokens;
        c.accepted += (double)row->accepted_tokens;
        c.kv.full = larger(c.kv.full, row->kv.full);
        c.kv.sliding = larger(c.kv.sliding, row->kv.sliding);
        c.kv.latent = larger(c.kv.latent, row->kv.latent);
        c.kv.draft = larger(c.kv.draft, row->kv.draft);
        c.kv.total = larger(c.kv.total, row->kv.total);
        scratch[c.n++] = eval_row_decode_speed(row);
    }
    c.decode_speed_spread = statistics_spread(scratch, c.n);
    c.decode_speed_median = statistics_median(scratch, c.n);
    size_t n = 0;
    for (size_t i = of; i < rows->n; i++) {
        const eval_row *row = &rows->row[i];
        if (same_cell(row, &rows->row[of])) scratch[n++] = ratio((double)row->prompt_tokens, row->prefill_seconds);
    }
    c.prefill_speed_median = statistics_median(scratch, n);
    return c;
}

static void put_cell(cJSON *object, const cell *c) {
    put(object, "rows", (double)c->n);
    put(object, "samples", (double)c->samples);
    put(object, "prompt_tokens_mean", ratio(c->prompt_tokens, (double)c->n));
    put(object, "completion_tokens", (double)c->tokens);
    put(object, "verifier_forwards", c->verifier_forwards);
    put(object, "tokens_per_forward", ratio((double)c->tokens, c->verifier_forwards));
    put(object, "drafted_tokens", c->drafted);
    put(object, "accepted_tokens", c->accepted);
    put(object, "prefill_tokens_per_second", ratio(c->prompt_tokens, c->prefill_seconds));
    put(object, "prefill_tokens_per_second_median", c->prefill_speed_median);
    put(object, "decode_tokens_per_second", ratio((double)c->tokens, c->decode_seconds));
    put(object, "decode_tokens_per_second_median", c->decode_speed_median);
    put(object, "decode_spread", c->decode_speed_spread);
    cJSON *kv = cJSON_AddObjectToObject(object, "kv_bytes");
    put(kv, "full", (double)c->kv.full);
    put(kv, "sliding", (double)c->kv.sliding);
    put(kv, "latent", (double)c->kv.latent);
    put(kv, "draft", (double)c->kv.draft);
    put(kv, "total", (double)c->kv.total);
}

static void put_lossless(cJSON *object, const eval_rows *rows) {
    eval_lossless result;
    eval_lossless_compare(rows, &result);
    cJSON *out = cJSON_AddObjectToObject(object, "lossless");
    put(out, "streams", (double)result.streams);
    put(out, "comparisons", (double)result.comparisons);
    put(out, "differences", (double)result.differences);
    put(out, "streams_alone", (double)result.alone);
    put(out, "diagnostic_rows", (double)result.diagnostics);
    if (!result.differences) {
        cJSON_AddNullToObject(out, "first_difference");
        return;
    }
    cJSON *first = cJSON_AddObjectToObject(out, "first_difference");
    cJSON_AddStringToObject(first, "sample", result.different->sample);
    char label[160];
    eval_arm_label(&result.different->arm, label, sizeof label);
    cJSON_AddStringToObject(first, "arm", label);
    put(first, "position", (double)result.position);
}

/* The first row of each arm, warm-up included, is where the arm stands in every table. */
static bool first_of_arm(const eval_rows *rows, size_t i) {
    for (size_t j = 0; j < i; j++)
        if (eval_arm_equal(&rows->row[j].arm, &rows->row[i].arm)) return false;
    return true;
}

/* One entry per non-AR arm that has AR rows beside it. */
static bool put_speedups(cJSON *object, const eval_rows *rows) {
    cJSON *array = cJSON_AddArrayToObject(object, "speedups");
    for (size_t i = 0; i < rows->n; i++) {
        const eval_row *row = &rows->row[i];
        if (!first_of_arm(rows, i) || strcmp(row->arm.mode, "ar") == 0) continue;
        eval_speedup speedup;
        if (eval_speedup_derive(rows, &row->arm, &speedup, NULL) != KAKEYA_OK) return false;
        if (!speedup.pairs) continue;
        cJSON *entry = cJSON_CreateObject();
        put_arm(entry, &row->arm);
        put(entry, "samples", (double)speedup.pairs);
        put(entry, "ratio_to_ar", speedup.ratio);
        cJSON_AddItemToArray(array, entry);
    }
    return true;
}

/* -------------------------------------------------------------------------------------------------- by kind */

/* The first measured row of the arm in the rung, or NULL. */
static const eval_row *find_cell(const eval_rows *rows, const eval_arm *arm, int lines) {
    for (size_t i = 0; i < rows->n; i++) {
        const eval_row *row = &rows->row[i];
        if (!row->warmup && row->lines == lines && eval_arm_equal(&row->arm, arm)) return row;
    }
    return NULL;
}

static bool first_of_rung(const eval_rows *rows, size_t i) {
    if (rows->row[i].warmup) return false;
    for (size_t j = 0; j < i; j++)
        if (!rows->row[j].warmup && rows->row[j].lines == rows->row[i].lines) return false;
    return true;
}

static cJSON *cell_entry(const eval_rows *rows, const eval_row *row, double *scratch) {
    size_t at = (size_t)(row - rows->row);
    cell c = cell_of(rows, at, scratch);
    cJSON *entry = cJSON_CreateObject();
    if (!entry) return NULL;
    if (row->lines) put(entry, "lines", row->lines);
    put_arm(entry, &row->arm);
    if (row->expected) {
        put(entry, "correct", (double)c.correct);
        put(entry, "recall", ratio((double)c.correct, (double)c.n));
    }
    put_cell(entry, &c);
    if (row->arm.mix_alpha < 0) return entry;

    double mse[2] = {0, 0};
    for (size_t j = at; j < rows->n; j++)
        for (int k = 0; k < 2; k++)
            if (same_cell(&rows->row[j], row)) mse[k] += rows->row[j].relative_mse[k] / (double)c.n;
    double rest = (1 - row->arm.mix_alpha) * (1 - row->arm.mix_alpha);
    put(entry, "mix_alpha", row->arm.mix_alpha);
    put(entry, "relative_mse_sliding", mse[0]);
    put(entry, "relative_mse_full", mse[1]);
    put(entry, "effective_relative_mse_sliding", rest * mse[0]);
    put(entry, "effective_relative_mse_full", rest * mse[1]);
    return entry;
}

/* One entry per rung and arm: rungs in their order, arms in theirs. */
static bool put_cells(cJSON *summary, const eval_rows *rows, bool diagnostics, double *scratch) {
    cJSON *array = cJSON_AddArrayToObject(summary, diagnostics ? "diagnostics" : "arms");
    for (size_t r = 0; r < rows->n; r++) {
        if (!first_of_rung(rows, r)) continue;
        for (size_t i = 0; i < rows->n; i++) {
            const eval_arm *arm = &rows->row[i].arm;
            if ((arm->mix_alpha >= 0) != diagnostics || !first_of_arm(rows, i)) continue;
            const eval_row *row = find_cell(rows, arm, rows->row[r].lines);
            if (!row) continue;
            cJSON *entry = cell_entry(rows, row, scratch);
            if (!entry) return false;
            cJSON_AddItemToArray(array, entry);
        }
    }
    return true;
}

static bool summarise_niah(cJSON *summary, const eval_rows *rows, double *scratch) {
    put_lossless(summary, rows);
    return put_cells(summary, rows, false, scratch) && put_speedups(summary, rows) &&
           put_cells(summary, rows, true, scratch);
}

/* Best and mean over the fixed draft lengths, and what the automatic choice reaches, per policy. */
static void put_sweeps(cJSON *summary) {
    const cJSON *speedups = cJSON_GetObjectItemCaseSensitive(summary, "speedups");
    cJSON *sweeps = cJSON_AddArrayToObject(summary, "sweeps");
    const cJSON *entry;
    cJSON_ArrayForEach(entry, speedups) {
        const char *policy = cJSON_GetObjectItemCaseSensitive(entry, "policy")->valuestring;
        bool seen = false;
        const cJSON *other;
        cJSON_ArrayForEach(other, sweeps) seen |=
            strcmp(cJSON_GetObjectItemCaseSensitive(other, "policy")->valuestring, policy) == 0;
        if (seen) continue;
        double best = 0, best_length = 0, sum = 0, automatic = 0;
        size_t n = 0;
        cJSON_ArrayForEach(other, speedups) {
            if (strcmp(cJSON_GetObjectItemCaseSensitive(other, "policy")->valuestring, policy) != 0) continue;
            const char *mode = cJSON_GetObjectItemCaseSensitive(other, "mode")->valuestring;
            double value = cJSON_GetObjectItemCaseSensitive(other, "ratio_to_ar")->valuedouble;
            if (strcmp(mode, "auto") == 0) automatic = value;
            if (strcmp(mode, "speculative") != 0) continue;
            sum += value;
            n++;
            if (value <= best) continue;
            best = value;
            best_length = cJSON_GetObjectItemCaseSensitive(other, "draft_length")->valuedouble;
        }
        cJSON *sweep = cJSON_CreateObject();
        cJSON_AddStringToObject(sweep, "policy", policy);
        put(sweep, "draft_lengths", (double)n);
        put(sweep, "best_draft_length", best_length);
        put(sweep, "best_ratio_to_ar", best);
        put(sweep, "mean_ratio_to_ar", ratio(sum, (double)n));
        put(sweep, "auto_ratio_to_ar", automatic);
        cJSON_AddItemToArray(sweeps, sweep);
    }
}

static bool summarise_code(cJSON *summary, const eval_rows *rows, double *scratch) {
    put_lossless(summary, rows);
    if (!put_cells(summary, rows, false, scratch) || !put_speedups(summary, rows)) return false;
    put_sweeps(summary);
    return true;
}

/* Acceptance of a draft position is counted over the blocks that drafted it, of one category or (NULL) of all.
 * Acceptance is a prefix, so the number of blocks that accepted exactly k drafts follows from the counts by position.
 */
static void put_acceptance(cJSON *entry, const eval_rows *rows, size_t of, const char *category) {
    double drafted[EVAL_DRAFT_POSITIONS] = {0}, accepted[EVAL_DRAFT_POSITIONS + 1] = {0};
    for (size_t i = of; i < rows->n; i++) {
        if (!same_cell(&rows->row[i], &rows->row[of])) continue;
        if (category && strcmp(rows->row[i].category, category) != 0) continue;
        for (int p = 0; p < EVAL_DRAFT_POSITIONS; p++) {
            drafted[p] += (double)rows->row[i].drafted_at[p];
            accepted[p] += (double)rows->row[i].accepted_at[p];
        }
    }
    cJSON *by_position = cJSON_AddArrayToObject(entry, "acceptance_by_position");
    cJSON *distribution = cJSON_AddArrayToObject(entry, "blocks_by_accepted_length");
    put(entry, "blocks", drafted[0]);
    if (drafted[0] <= 0) return;
    cJSON_AddItemToArray(distribution, cJSON_CreateNumber(drafted[0] - accepted[0]));
    for (int p = 0; p < EVAL_DRAFT_POSITIONS && drafted[p] > 0; p++) {
        cJSON_AddItemToArray(by_position, cJSON_CreateNumber(accepted[p] / drafted[p]));
        cJSON_AddItemToArray(distribution, cJSON_CreateNumber(accepted[p] - accepted[p + 1]));
    }
}

/* The same by category of the prompts, where they have any, in the order in which they come. */
static bool put_categories(cJSON *entry, const eval_rows *rows, size_t of) {
    if (!rows->row[of].category[0]) return true;
    cJSON *array = cJSON_AddArrayToObject(entry, "categories");
    for (size_t i = of; i < rows->n; i++) {
        const char *category = rows->row[i].category;
        bool counts = same_cell(&rows->row[i], &rows->row[of]);
        for (size_t j = of; j < i && counts; j++)
            counts = !same_cell(&rows->row[j], &rows->row[of]) || strcmp(rows->row[j].category, category) != 0;
        if (!counts) continue;
        double prompts = 0, tokens = 0, forwards = 0;
        for (size_t j = i; j < rows->n; j++) {
            const eval_row *row = &rows->row[j];
            if (!same_cell(row, &rows->row[of]) || strcmp(row->category, category) != 0) continue;
            prompts++;
            tokens += (double)row->n_token_ids;
            forwards += (double)row->verifier_forwards;
        }
        cJSON *one = cJSON_CreateObject();
        if (!one) return false;
        cJSON_AddStringToObject(one, "category", category);
        put(one, "samples", prompts);
        put(one, "tokens_per_forward", ratio(tokens, forwards));
        put_acceptance(one, rows, of, category);
        cJSON_AddItemToArray(array, one);
    }
    return true;
}

static bool summarise_acceptance(cJSON *summary, const eval_rows *rows, double *scratch) {
    put_lossless(summary, rows);
    cJSON *array = cJSON_AddArrayToObject(summary, "arms");
    for (size_t i = 0; i < rows->n; i++) {
        if (!first_of_cell(rows, i)) continue;
        cell c = cell_of(rows, i, scratch);
        cJSON *entry = cJSON_CreateObject();
        if (!entry) return false;
        put_arm(entry, &rows->row[i].arm);
        put_cell(entry, &c);
        put_acceptance(entry, rows, i, NULL);
        if (!put_categories(entry, rows, i)) return false;
        cJSON_AddItemToArray(array, entry);
    }
    return true;
}

static bool summarise_lossless(cJSON *summary, const eval_rows *rows, double *scratch) {
    (void)scratch;
    put_lossless(summary, rows);
    cJSON *modes = cJSON_AddArrayToObject(summary, "modes");
    for (size_t i = 0; i < rows->n; i++) {
        const eval_row *row = &rows->row[i];
        bool seen = row->warmup;
        for (size_t j = 0; j < i && !seen; j++)
            seen = !rows->row[j].warmup && strcmp(rows->row[j].arm.mode, row->arm.mode) == 0 &&
                   strcmp(rows->row[j].arm.policy, row->arm.policy) == 0;
        if (seen) continue;
        double n = 0, tokens = 0, drafted = 0, accepted = 0;
        for (size_t j = i; j < rows->n; j++) {
            const eval_row *other = &rows->row[j];
            if (other->warmup || strcmp(other->arm.mode, row->arm.mode) != 0 ||
                strcmp(other->arm.policy, row->arm.policy) != 0)
                continue;
            n++;
            tokens += (double)other->n_token_ids;
            drafted += (double)other->drafted_tokens;
            accepted += (double)other->accepted_tokens;
        }
        cJSON *entry = cJSON_CreateObject();
        if (!entry) return false;
        cJSON_AddStringToObject(entry, "policy", row->arm.policy);
        cJSON_AddStringToObject(entry, "mode", row->arm.mode);
        put(entry, "rows", n);
        put(entry, "completion_tokens", tokens);
        put(entry, "drafted_tokens", drafted);
        put(entry, "accepted_tokens", accepted);
        cJSON_AddItemToArray(modes, entry);
    }
    return true;
}

/* The same figures, and what the compositions were made of. */
static bool summarise_batch(cJSON *summary, const eval_rows *rows, double *scratch) {
    double together = 0, largest = 0, forked = 0, cancelled = 0, hashed = 0;
    for (size_t i = 0; i < rows->n; i++) {
        const eval_row *row = &rows->row[i];
        if (!row->arm.together) continue;
        together++;
        largest = fmax(largest, row->arm.together);
        forked += row->forked;
        cancelled += strcmp(row->finish, "cancelled") == 0;
        hashed += row->has_log_probabilities;
    }
    cJSON *batch = cJSON_AddObjectToObject(summary, "batch");
    put(batch, "rows", together);
    put(batch, "most_sessions", largest);
    put(batch, "forked", forked);
    put(batch, "cancelled", cancelled);
    put(batch, "with_log_probabilities", hashed);
    return summarise_lossless(summary, rows, scratch);
}

static bool summarise_fidelity(cJSON *summary, const eval_rows *rows, double *scratch) {
    (void)scratch;
    cJSON *array = cJSON_AddArrayToObject(summary, "arms");
    for (size_t i = 0; i < rows->n; i++) {
        if (!first_of_cell(rows, i)) continue;
        double n = 0, tokens = 0, nll = 0, kl = 0, agreements = 0;
        for (size_t j = i; j < rows->n; j++) {
            const eval_row *row = &rows->row[j];
            if (!same_cell(row, &rows->row[i])) continue;
            n++;
            tokens += (double)row->scored_tokens;
            nll += row->nll;
            kl += row->kl;
            agreements += (double)row->agreements;
        }
        cJSON *entry = cJSON_CreateObject();
        if (!entry) return false;
        put_arm(entry, &rows->row[i].arm);
        put(entry, "sequences", n);
        put(entry, "scored_tokens", tokens);
        put(entry, "perplexity", tokens > 0 ? exp(nll / tokens) : 0);
        put(entry, "top1_agreement", ratio(agreements, tokens));
        put(entry, "kl_from_native", ratio(kl, tokens));
        cJSON_AddItemToArray(array, entry);
    }
    return true;
}

static bool summarise_with_verdict(cJSON *summary, const eval_rows *rows, double *scratch) {
    put_lossless(summary, rows);
    return summarise_verify(summary, rows, scratch);
}

cJSON *eval_summary_derive(eval_kind kind, const eval_rows *rows) {
    static bool (*const summarise[EVAL_KIND_COUNT])(cJSON *, const eval_rows *, double *) = {
        summarise_niah,     summarise_fidelity, summarise_code,      summarise_acceptance,
        summarise_lossless, summarise_batch,    summarise_kv_format, summarise_with_verdict};
    cJSON *summary = cJSON_CreateObject();
    double *scratch = calloc(rows->n + 1, sizeof *scratch);
    if (summary && scratch) {
        size_t warmup = 0;
        for (size_t i = 0; i < rows->n; i++) warmup += rows->row[i].warmup;
        put(summary, "measured_rows", (double)(rows->n - warmup));
        put(summary, "warmup_rows", (double)warmup);
        if (!summarise[kind](summary, rows, scratch)) {
            cJSON_Delete(summary);
            summary = NULL;
        }
    } else {
        cJSON_Delete(summary);
        summary = NULL;
    }
    free(scratch);
    return summary;
}
