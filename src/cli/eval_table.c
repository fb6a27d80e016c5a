/* Tables of `kakeya eval`: the summary of a report, column by column. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/eval_output.h"
#include "cli/terminal.h"
#include "measure/summary.h"

typedef enum column_form {
    TEXT,
    COUNT, /* 1,234 */
    BYTES, /* 1.23 MB */
    FIXED1,
    FIXED2,
    FIXED4,
    FIXED6,
    PERCENT, /* of a fraction */
} column_form;

/* One column of a table of summary entries; `key` may reach into an object: "kv_bytes.total". */
typedef struct column {
    const char *title, *key;
    column_form form;
} column;

enum { CELL_BYTES = 48, MAX_COLUMNS = 16 };

static const cJSON *find(const cJSON *entry, const char *key) {
    const char *dot = strchr(key, '.');
    if (!dot) return cJSON_GetObjectItemCaseSensitive(entry, key);
    char first[32];
    snprintf(first, sizeof first, "%.*s", (int)(dot - key), key);
    return cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(entry, first), dot + 1);
}

static void format_cell(const cJSON *item, column_form form, char out[CELL_BYTES]) {
    char buffer[32];
    double value = cJSON_IsNumber(item) ? item->valuedouble : 0;
    if (cJSON_IsString(item)) {
        snprintf(out, CELL_BYTES, "%s", item->valuestring);
    } else if (cJSON_IsBool(item)) {
        snprintf(out, CELL_BYTES, "%s", cJSON_IsTrue(item) ? "yes" : "no");
    } else if (!cJSON_IsNumber(item)) {
        snprintf(out, CELL_BYTES, "-");
    } else if (form == COUNT || form == TEXT) {
        snprintf(out, CELL_BYTES, "%s", format_count(buffer, (uint64_t)(value + 0.5)));
    } else if (form == BYTES) {
        snprintf(out, CELL_BYTES, "%s", format_bytes(buffer, value));
    } else if (form == PERCENT) {
        snprintf(out, CELL_BYTES, "%.1f%%", 100 * value);
    } else {
        snprintf(out, CELL_BYTES, "%.*f", form == FIXED1 ? 1 : form == FIXED2 ? 2 : form == FIXED4 ? 4 : 6, value);
    }
}

static void print_table(const cJSON *entries, const column *columns, size_t n) {
    int width[MAX_COLUMNS];
    char cell[CELL_BYTES];
    const cJSON *entry;
    if (!entries || !entries->child) return;
    for (size_t c = 0; c < n; c++) {
        width[c] = (int)strlen(columns[c].title);
        cJSON_ArrayForEach(entry, entries) {
            format_cell(find(entry, columns[c].key), columns[c].form, cell);
            if ((int)strlen(cell) > width[c]) width[c] = (int)strlen(cell);
        }
    }
    for (size_t c = 0; c < n; c++)
        printf("%s%*s", c ? "  " : "", columns[c].form == TEXT ? -width[c] : width[c], columns[c].title);
    putchar('\n');
    cJSON_ArrayForEach(entry, entries) {
        for (size_t c = 0; c < n; c++) {
            format_cell(find(entry, columns[c].key), columns[c].form, cell);
            printf("%s%*s", c ? "  " : "", columns[c].form == TEXT ? -width[c] : width[c], cell);
        }
        putchar('\n');
    }
}

#define PRINT(entries, ...)                                                                                            \
    print_table(entries, (const column[]){__VA_ARGS__}, sizeof((const column[]){__VA_ARGS__}) / sizeof(column))

static const cJSON *part(const cJSON *summary, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(summary, name);
}

static void print_lossless(const cJSON *summary) {
    const cJSON *lossless = part(summary, "lossless"), *first = part(lossless, "first_difference");
    printf("\nToken streams: %.0f compared with their reference, %.0f differ.\n",
           part(lossless, "comparisons")->valuedouble, part(lossless, "differences")->valuedouble);
    if (part(lossless, "diagnostic_rows")->valuedouble > 0)
        printf("%.0f diagnostic rows mix K/V on purpose and are compared with nothing.\n",
               part(lossless, "diagnostic_rows")->valuedouble);
    if (cJSON_IsObject(first))
        printf("First difference: %s, token %.0f, %s.\n", part(first, "sample")->valuestring,
               part(first, "position")->valuedouble, part(first, "arm")->valuestring);
}

static void print_speedups(const cJSON *summary) {
    const cJSON *speedups = part(summary, "speedups");
    if (!speedups || !speedups->child) return;
    printf("\nDecoding against ar, median over samples:\n");
    PRINT(speedups, {"policy", "policy", TEXT}, {"mode", "mode", TEXT}, {"drafter", "source", TEXT},
          {"draft", "draft_length", COUNT}, {"draft window", "draft_window", COUNT}, {"samples", "samples", COUNT},
          {"x ar", "ratio_to_ar", FIXED2});
}

static void print_niah(const cJSON *summary) {
    PRINT(part(summary, "arms"), {"lines", "lines", COUNT}, {"prompt", "prompt_tokens_mean", COUNT},
          {"policy", "policy", TEXT}, {"mode", "mode", TEXT}, {"draft window", "draft_window", COUNT},
          {"recall", "recall", PERCENT}, {"full", "kv_bytes.full", BYTES}, {"sliding", "kv_bytes.sliding", BYTES},
          {"latent", "kv_bytes.latent", BYTES}, {"draft", "kv_bytes.draft", BYTES},
          {"K/V total", "kv_bytes.total", BYTES}, {"prefill t/s", "prefill_tokens_per_second", COUNT},
          {"decode t/s", "decode_tokens_per_second_median", COUNT}, {"tokens/forward", "tokens_per_forward", FIXED2});
    print_speedups(summary);
    print_lossless(summary);
    const cJSON *diagnostics = part(summary, "diagnostics");
    if (!diagnostics || !diagnostics->child) return;
    printf("\nEvicted K/V as alpha * own + (1 - alpha) * f_theta, all layers; relative MSE of what is attended:\n");
    PRINT(diagnostics, {"lines", "lines", COUNT}, {"alpha", "mix_alpha", FIXED2}, {"samples", "samples", COUNT},
          {"recall", "recall", PERCENT}, {"sliding", "effective_relative_mse_sliding", FIXED4},
          {"full", "effective_relative_mse_full", FIXED4});
}

static void print_fidelity(const cJSON *summary) {
    PRINT(part(summary, "arms"), {"policy", "policy", TEXT}, {"sink", "sink", COUNT}, {"window", "window", COUNT},
          {"sequences", "sequences", COUNT}, {"tokens", "scored_tokens", COUNT}, {"perplexity", "perplexity", FIXED4},
          {"top-1 agreement", "top1_agreement", FIXED4}, {"KL from native", "kl_from_native", FIXED4});
}

static void print_code(const cJSON *summary) {
    PRINT(part(summary, "arms"), {"policy", "policy", TEXT}, {"mode", "mode", TEXT}, {"drafter", "source", TEXT},
          {"draft", "draft_length", COUNT}, {"files", "samples", COUNT}, {"runs", "rows", COUNT},
          {"tokens", "completion_tokens", COUNT}, {"tokens/forward", "tokens_per_forward", FIXED2},
          {"decode t/s", "decode_tokens_per_second_median", COUNT}, {"spread", "decode_spread", PERCENT});
    print_speedups(summary);
    printf("\nOver the fixed draft lengths:\n");
    PRINT(part(summary, "sweeps"), {"policy", "policy", TEXT}, {"best length", "best_draft_length", COUNT},
          {"best x ar", "best_ratio_to_ar", FIXED2}, {"mean x ar", "mean_ratio_to_ar", FIXED2},
          {"auto x ar", "auto_ratio_to_ar", FIXED2});
    print_lossless(summary);
}

/* "unscaled" and "scaled" of DFlash, "assistant", "ngram". */
static const char *source_of(const cJSON *arm) {
    const char *source = cJSON_GetStringValue(part(arm, "source"));
    if (source) return source;
    const char *mode = cJSON_GetStringValue(part(arm, "mode"));
    if (mode && strcmp(mode, "ngram") == 0) return mode;
    return cJSON_IsTrue(part(arm, "drafter_scaled_embedding")) ? "scaled" : "unscaled";
}

/* One line per arm, positions side by side. */
static void print_positions(const cJSON *arms, const char *title, const char *key, const char *format) {
    const cJSON *arm, *value;
    printf("\n%s\n", title);
    cJSON_ArrayForEach(arm, arms) {
        printf("  %-9s", source_of(arm));
        cJSON_ArrayForEach(value, part(arm, key)) printf(format, value->valuedouble);
        putchar('\n');
    }
}

/* A category after the other, each arm's positions below. */
static void print_categories(const cJSON *arms) {
    const cJSON *arm, *of, *value, *first;
    int n = 0;
    cJSON_ArrayForEach(first, part(arms->child, "categories")) {
        printf("\nAccepted by draft position, %s, %.0f prompts:\n", part(first, "category")->valuestring,
               part(first, "samples")->valuedouble);
        cJSON_ArrayForEach(arm, arms) {
            of = cJSON_GetArrayItem(part(arm, "categories"), n);
            printf("  %-9s %5.2f a forward", source_of(arm), part(of, "tokens_per_forward")->valuedouble);
            cJSON_ArrayForEach(value, part(of, "acceptance_by_position")) printf("%7.3f", value->valuedouble);
            putchar('\n');
        }
        n++;
    }
}

static void print_acceptance(const cJSON *summary) {
    const cJSON *arms = part(summary, "arms");
    PRINT(arms, {"mode", "mode", TEXT}, {"drafter", "source", TEXT},
          {"scaled embedding", "drafter_scaled_embedding", TEXT}, {"draft", "draft_length", COUNT},
          {"prompts", "samples", COUNT}, {"tokens", "completion_tokens", COUNT},
          {"forwards", "verifier_forwards", COUNT}, {"tokens/forward", "tokens_per_forward", FIXED2},
          {"drafted", "drafted_tokens", COUNT}, {"accepted", "accepted_tokens", COUNT},
          {"decode t/s", "decode_tokens_per_second_median", COUNT});
    print_positions(arms, "Accepted by draft position:", "acceptance_by_position", "%7.3f");
    print_positions(arms, "Blocks by accepted drafts, from 0:", "blocks_by_accepted_length", "%7.0f");
    if (arms->child) print_categories(arms);
    print_lossless(summary);
}

static void print_lossless_report(const cJSON *summary) {
    PRINT(part(summary, "modes"), {"policy", "policy", TEXT}, {"mode", "mode", TEXT}, {"runs", "rows", COUNT},
          {"tokens", "completion_tokens", COUNT}, {"drafted", "drafted_tokens", COUNT},
          {"accepted", "accepted_tokens", COUNT});
    print_lossless(summary);
}

static void print_batch(const cJSON *summary) {
    const cJSON *batch = part(summary, "batch");
    print_lossless_report(summary);
    printf("%.0f streams in compositions of up to %.0f sessions: %.0f forked, %.0f cancelled, %.0f with "
           "log-probabilities.\n",
           part(batch, "rows")->valuedouble, part(batch, "most_sessions")->valuedouble,
           part(batch, "forked")->valuedouble, part(batch, "cancelled")->valuedouble,
           part(batch, "with_log_probabilities")->valuedouble);
}

static void print_kv_format(const cJSON *summary) {
    if (cJSON_GetObjectItemCaseSensitive(part(summary, "arms")->child, "kl_from_bf16")) {
        PRINT(part(summary, "arms"), {"format", "format", TEXT}, {"bits/value", "bits_per_value", FIXED4},
              {"bytes/vector", "bytes_per_vector", COUNT}, {"perplexity", "perplexity", FIXED4},
              {"KL from bf16", "kl_from_bf16", FIXED6}, {"top-1", "top1_agreement", FIXED4},
              {"recall", "recall", PERCENT}, {"ms/token", "decode_ms_per_token", FIXED2});
        printf(
            "\nK/V as sessions keep them. Errors by layer, times of packing, and formats that sessions do not keep are "
            "measured on backend cpu, without --as-stored.\n");
        return;
    }
    PRINT(part(summary, "arms"), {"format", "format", TEXT}, {"bits/value", "bits_per_value", FIXED4},
          {"bytes/vector", "bytes_per_vector", COUNT}, {"perplexity", "perplexity", FIXED4},
          {"KL", "kl_from_identity", FIXED6}, {"top-1", "top1_agreement", FIXED4},
          {"relative MSE", "relative_mse", FIXED6}, {"recall", "recall", PERCENT},
          {"store ns/value", "store_ns_per_value", FIXED2}, {"load ns/value", "load_ns_per_value", FIXED2});
    printf("\nThe best other format of no more bits, and what the reference implementation asked of lattices:\n");
    PRINT(part(summary, "verdicts"), {"format", "format", TEXT}, {"KL", "kl_from_identity", FIXED6},
          {"rival", "rival", TEXT}, {"its KL", "rival_kl_from_identity", FIXED6}, {"best", "best_at_its_bits", TEXT},
          {"bits <= affine4", "bits_le_affine4", TEXT}, {"closer", "relative_mse_better", TEXT},
          {"recall", "recall_ge_affine4", TEXT}, {"worth a port", "port_justified", TEXT});
}

void eval_print_tables(const eval_report *report) {
    static void (*const print[EVAL_KIND_COUNT])(const cJSON *) = {
        print_niah, print_fidelity, print_code, print_acceptance, print_lossless_report, print_batch, print_kv_format};
    cJSON *summary = report->rows.n ? eval_summary_derive(report->kind, &report->rows) : NULL;
    if (summary) print[report->kind](summary);
    cJSON_Delete(summary);
}

void eval_print_mac(const cJSON *report, const char *path) {
    const cJSON *row, *environment = part(report, "environment"), *speed = part(report, "speed");
    double most = 0;
    cJSON_ArrayForEach(row, part(report, "vectors")) {
        double difference = part(row, "largest_difference")->valuedouble;
        if (difference > most) most = difference;
    }
    if (cJSON_IsObject(environment))
        printf("%s, %s, %s\n", part(environment, "backend")->valuestring, part(environment, "cpu_model")->valuestring,
               part(environment, "os")->valuestring);
    if (part(report, "vectors")) printf("Logits differ from the CPU backend's by %.2g at most.\n\n", most);
    PRINT(part(report, "streams"), {"policy", "policy", TEXT}, {"mode", "mode", TEXT}, {"draft", "draft_length", COUNT},
          {"prompt chunk", "prompt_chunk", COUNT}, {"drafted", "drafted_tokens", COUNT},
          {"accepted", "accepted_tokens", COUNT});
    putchar('\n');
    PRINT(part(report, "memory"), {"tokens", "tokens", COUNT}, {"full", "kv_bytes.full", BYTES},
          {"sliding", "kv_bytes.sliding", BYTES}, {"latent", "kv_bytes.latent", BYTES},
          {"draft", "kv_bytes.draft", BYTES}, {"weights", "weights", BYTES}, {"workspace", "workspace", BYTES},
          {"libmlx holds", "device_held", BYTES});
    putchar('\n');
    PRINT(part(speed, "rows"), {"what", "what", TEXT}, {"context", "context", COUNT}, {"rows", "rows", COUNT},
          {"bytes", "bytes", BYTES}, {"seconds", "seconds.median", FIXED6},
          {"at least", "bound_seconds.median", FIXED6}, {"of the bound", "share.median", PERCENT});
    if (path) printf("\nReport: %s. `kakeya gate %s` judges it.\n", path, path);
}
