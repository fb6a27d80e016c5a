#include "measure/rows.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/kv_codec.h"
#include "measure/verify_comparison.h"

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

/* ---------------------------------------------------------------------------------------------------- to JSON */

static void put_number(cJSON *object, const char *name, double value) { cJSON_AddNumberToObject(object, name, value); }

static void put_counts(cJSON *object, const char *name, const int64_t *values) {
    int n = EVAL_DRAFT_POSITIONS;
    while (n && !values[n - 1]) n--;
    cJSON *array = cJSON_AddArrayToObject(object, name);
    for (int i = 0; i < n; i++) cJSON_AddItemToArray(array, cJSON_CreateNumber((double)values[i]));
}

static void put_kv(cJSON *object, const kakeya_kv_bytes *kv) {
    cJSON *bytes = cJSON_AddObjectToObject(object, "kv_bytes");
    put_number(bytes, "full", (double)kv->full);
    put_number(bytes, "sliding", (double)kv->sliding);
    put_number(bytes, "latent", (double)kv->latent);
    put_number(bytes, "draft", (double)kv->draft);
    put_number(bytes, "total", (double)kv->total);
}

static void put_text(cJSON *object, const char *name, const char *text) {
    if (text) {
        cJSON_AddStringToObject(object, name, text);
    } else {
        cJSON_AddNullToObject(object, name);
    }
}

static void put_ids(cJSON *object, const char *name, const eval_row *row) {
    cJSON *ids = cJSON_AddArrayToObject(object, name);
    for (size_t i = 0; i < row->n_token_ids; i++) cJSON_AddItemToArray(ids, cJSON_CreateNumber(row->token_ids[i]));
}

static bool put_numbers(cJSON *object, const char *name, const double *values, size_t n) {
    cJSON *array = n ? cJSON_CreateDoubleArray(values, (int)n) : cJSON_CreateArray();
    return array && cJSON_AddItemToObject(object, name, array);
}

static void put_hash(cJSON *object, const char *name, uint64_t hash) {
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    cJSON_AddStringToObject(object, name, text);
}

static void put_log_probabilities(cJSON *object, const eval_row *row) {
    static const char name[] = "log_probability_hash";
    if (row->has_log_probabilities)
        put_hash(object, name, row->log_probability_hash);
    else
        cJSON_AddNullToObject(object, name);
}

static bool put_blocks(cJSON *object, const eval_row *row) {
    char *text = draft_blocks_to_text(&row->blocks);
    bool put = text && cJSON_AddStringToObject(object, "draft_blocks", text);
    free(text);
    return put;
}

static bool put_generation(eval_kind kind, const eval_row *row, cJSON *object) {
    put_number(object, "draft_length", row->arm.draft_length);
    put_number(object, "prompt_chunk", row->arm.prompt_chunk);
    put_number(object, "temperature", row->arm.temperature);
    cJSON_AddBoolToObject(object, "drafter_scaled_embedding", row->arm.scaled_embedding);
    if (row->arm.source[0]) cJSON_AddStringToObject(object, "source", row->arm.source);
    if (row->category[0]) cJSON_AddStringToObject(object, "category", row->category);
    put_number(object, "repetition", row->repetition);
    put_number(object, "completion_tokens", (double)row->n_token_ids);
    cJSON_AddStringToObject(object, "finish_reason", row->finish);
    put_number(object, "prefill_seconds", row->prefill_seconds);
    put_number(object, "decode_seconds", row->decode_seconds);
    put_number(object, "prefill_tokens_per_second", eval_row_prefill_speed(row));
    put_number(object, "decode_tokens_per_second", eval_row_decode_speed(row));
    put_number(object, "verifier_forwards", (double)row->verifier_forwards);
    put_number(object, "drafted_tokens", (double)row->drafted_tokens);
    put_number(object, "accepted_tokens", (double)row->accepted_tokens);
    put_counts(object, "drafted_at", row->drafted_at);
    put_counts(object, "accepted_at", row->accepted_at);
    if (row->has_blocks && !put_blocks(object, row)) return false;
    put_kv(object, &row->kv);
    put_ids(object, "token_ids", row);
    put_text(object, "text", row->text);
    if (kind == EVAL_NIAH) {
        put_number(object, "lines", row->lines);
        put_text(object, "expected", row->expected);
        cJSON_AddBoolToObject(object, "correct", row->correct);
    }
    if (kind == EVAL_LOSSLESS || kind == EVAL_BATCH || kind == EVAL_VERIFY)
        cJSON_AddStringToObject(object, "prompt_kind", row->prompt_kind);
    if (kind == EVAL_VERIFY) {
        cJSON_AddStringToObject(object, "comparison", row->arm.comparison);
        cJSON_AddStringToObject(object, "kv_format", row->arm.kv_format);
        put_number(object, "together", row->arm.together);
        put_number(object, "dropped_tokens", row->dropped_tokens);
        put_log_probabilities(object, row);
    }
    if (kind == EVAL_LOSSLESS) {
        cJSON_AddBoolToObject(object, "truncated", row->truncated);
        put_number(object, "dropped_tokens", row->dropped_tokens);
    }
    if (kind == EVAL_BATCH) {
        put_number(object, "together", row->arm.together);
        cJSON_AddBoolToObject(object, "forked", row->forked);
        put_number(object, "cancel_after", row->cancel_after);
        put_log_probabilities(object, row);
    }
    if (row->arm.mix_alpha >= 0) {
        put_number(object, "mix_alpha", row->arm.mix_alpha);
        cJSON *mse = cJSON_AddObjectToObject(object, "relative_mse");
        put_number(mse, "sliding", row->relative_mse[0]);
        put_number(mse, "full", row->relative_mse[1]);
    }
    return true;
}

static const char *divergence_key(eval_kind kind, bool as_stored) {
    return kind == EVAL_FIDELITY ? "kl_from_native" : as_stored ? "kl_from_bf16" : "kl_from_identity";
}

static bool put_stored(const eval_row *row, cJSON *object) {
    cJSON_AddStringToObject(object, "format", row->arm.kv_format);
    put_number(object, "lines", row->lines);
    put_text(object, "expected", row->expected);
    put_text(object, "text", row->text);
    cJSON_AddBoolToObject(object, "correct", row->correct);
    put_number(object, "stored_vectors", (double)row->stored_vectors);
    put_number(object, "stored_values", (double)row->stored_values);
    put_number(object, "stored_bytes", (double)row->stored_bytes);
    if (row->arm.as_stored) {
        cJSON_AddBoolToObject(object, "as_stored", true);
        put_number(object, "verifier_forwards", (double)row->verifier_forwards);
        put_number(object, "decode_seconds", row->decode_seconds);
        return true;
    }
    put_number(object, "store_seconds", row->store_seconds);
    put_number(object, "load_seconds", row->load_seconds);
    return put_numbers(object, "layer_error", row->layer_error, (size_t)row->layers) &&
           put_numbers(object, "layer_energy", row->layer_energy, (size_t)row->layers);
}

cJSON *eval_row_to_json(eval_kind kind, const eval_row *row) {
    cJSON *object = cJSON_CreateObject();
    if (!object) return NULL;
    cJSON_AddStringToObject(object, "sample", row->sample);
    cJSON_AddBoolToObject(object, "warmup", row->warmup);
    cJSON_AddStringToObject(object, "policy", row->arm.policy);
    cJSON_AddStringToObject(object, "mode", row->arm.mode);
    put_number(object, "sink", row->arm.sink);
    put_number(object, "window", row->arm.window);
    put_number(object, "draft_window", row->arm.draft_window);
    put_number(object, "threads", row->arm.threads);
    put_hash(object, "prompt_hash", row->prompt_hash);
    put_number(object, "prompt_tokens", (double)row->prompt_tokens);
    put_number(object, "started_seconds", row->started_seconds);
    if (eval_kind_scores(kind)) {
        put_number(object, "scored_tokens", (double)row->scored_tokens);
        put_number(object, "nll", row->nll);
        put_number(object, divergence_key(kind, row->arm.as_stored), row->kl);
        put_number(object, "top1_agreements", (double)row->agreements);
        put_number(object, "seconds", row->seconds);
        put_kv(object, &row->kv);
        put_ids(object, "top1_ids", row);
        if (!put_numbers(object, "token_nll", row->token_nll, row->n_token_ids) ||
            !put_numbers(object, "token_kl", row->token_kl, row->n_token_ids) ||
            (kind == EVAL_KV_FORMAT && !put_stored(row, object))) {
            cJSON_Delete(object);
            return NULL;
        }
    } else if (!put_generation(kind, row, object)) {
        cJSON_Delete(object);
        return NULL;
    }
    return object;
}

/* -------------------------------------------------------------------------------------------------- from JSON */

typedef struct row_reader {
    const cJSON *object;
    kakeya_error *error;
    kakeya_status status; /* the first failure stays */
} row_reader;

static void missing(row_reader *reader, const char *name, const char *type) {
    if (reader->status != KAKEYA_OK) return;
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(reader->object, name);
    reader->status =
        error_set(reader->error, KAKEYA_FORMAT, item ? "\"%s\" is not %s" : "\"%s\" is missing (%s)", name, type);
}

static double get_number(row_reader *reader, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(reader->object, name);
    if (cJSON_IsNumber(item) && isfinite(item->valuedouble)) return item->valuedouble;
    missing(reader, name, "a number");
    return 0;
}

static int64_t to_count(row_reader *reader, const char *name, const cJSON *item) {
    if (cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble < 9e15 &&
        floor(item->valuedouble) == item->valuedouble)
        return (int64_t)item->valuedouble;
    missing(reader, name, "a count");
    return 0;
}

static int64_t get_count(row_reader *reader, const char *name) {
    return to_count(reader, name, cJSON_GetObjectItemCaseSensitive(reader->object, name));
}

static int get_int(row_reader *reader, const char *name) {
    int64_t value = get_count(reader, name);
    if (value <= INT32_MAX) return (int)value;
    missing(reader, name, "a count below 2^31");
    return 0;
}

static bool get_bool(row_reader *reader, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(reader->object, name);
    if (!cJSON_IsBool(item)) missing(reader, name, "true or false");
    return cJSON_IsTrue(item);
}

static void get_name(row_reader *reader, const char *name, char *out, size_t bytes) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(reader->object, name);
    if (cJSON_IsString(item) && item->valuestring[0] && strlen(item->valuestring) < bytes) {
        memcpy(out, item->valuestring, strlen(item->valuestring) + 1);
    } else {
        missing(reader, name, "a short text");
    }
}

static uint64_t get_hash(row_reader *reader, const char *name) {
    char hash[20] = "", *end = hash;
    get_name(reader, name, hash, sizeof hash);
    uint64_t value = strtoull(hash, &end, 16);
    if (strspn(hash, "0123456789abcdef") != 16 || *end) missing(reader, name, "16 hexadecimal digits");
    return value;
}

static const char *const policy_names[] = {"native", "sink-window", "restored", "restored-all"};
static const char *const source_names[] = {"assistant"};
static const char *const mode_names[] = {"ar", "speculative", "ngram", "auto", "reforward", "unfused", "score"};

/* KAKEYA_INVALID_ARGUMENT tells a name that nobody knows from a field that is not there. */
static void get_known(row_reader *reader, const char *name, const char *const *known, size_t n, char *out,
                      size_t bytes) {
    get_name(reader, name, out, bytes);
    if (reader->status != KAKEYA_OK) return;
    for (size_t i = 0; i < n; i++)
        if (strcmp(out, known[i]) == 0) return;
    reader->status = error_set(reader->error, KAKEYA_INVALID_ARGUMENT,
                               "\"%s\" is \"%s\", which kakeya eval does not run", name, out);
}

/* null stays NULL. */
static char *get_text(row_reader *reader, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(reader->object, name);
    if (cJSON_IsNull(item)) return NULL;
    if (!cJSON_IsString(item)) {
        missing(reader, name, "a text");
        return NULL;
    }
    char *copy = strdup(item->valuestring);
    if (!copy && reader->status == KAKEYA_OK)
        reader->status = error_set(reader->error, KAKEYA_OUT_OF_MEMORY, "no memory for \"%s\"", name);
    return copy;
}

/* What the two texts before it say. */
static void get_correct(row_reader *reader, eval_row *row) {
    row->correct = get_bool(reader, "correct");
    if (row->correct != eval_answer_correct(row->text, row->expected))
        missing(reader, "correct", "what \"text\" and \"expected\" give");
}

static void get_counts(row_reader *reader, const char *name, int64_t *out) {
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(reader->object, name);
    if (!cJSON_IsArray(array) || cJSON_GetArraySize(array) > EVAL_DRAFT_POSITIONS) {
        missing(reader, name, "a short array of counts");
        return;
    }
    int i = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, array) out[i++] = to_count(reader, name, item);
}

static void get_ids(row_reader *reader, const char *name, eval_row *row) {
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(reader->object, name);
    if (!cJSON_IsArray(array)) {
        missing(reader, name, "an array of token ids");
        return;
    }
    size_t n = (size_t)cJSON_GetArraySize(array);
    row->token_ids = calloc(n ? n : 1, sizeof *row->token_ids);
    if (!row->token_ids) {
        reader->status = error_set(reader->error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu token ids", n);
        return;
    }
    const cJSON *item;
    cJSON_ArrayForEach(item, array) {
        int64_t id = to_count(reader, name, item);
        if (id > INT32_MAX) missing(reader, name, "an array of token ids");
        row->token_ids[row->n_token_ids++] = (int32_t)(id & INT32_MAX);
    }
}

/* Exactly n finite numbers; malloc'ed. */
static double *get_numbers(row_reader *reader, const char *name, size_t n) {
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(reader->object, name), *item;
    if (!cJSON_IsArray(array) || (size_t)cJSON_GetArraySize(array) != n) {
        missing(reader, name, "an array with a number for every scored token");
        return NULL;
    }
    double *values = malloc((n + 1) * sizeof *values);
    if (!values && reader->status == KAKEYA_OK)
        reader->status = error_set(reader->error, KAKEYA_OUT_OF_MEMORY, "no memory for \"%s\"", name);
    size_t i = 0;
    cJSON_ArrayForEach(item, array) {
        if (!values) break;
        bool number = cJSON_IsNumber(item) && isfinite(item->valuedouble);
        if (!number) missing(reader, name, "an array of numbers");
        values[i++] = number ? item->valuedouble : 0;
    }
    return values;
}

/* A figure that follows from others in the row: a time edited alone does not fit it. */
static void check_rate(row_reader *reader, const char *name, double derived) {
    double stated = get_number(reader, name);
    if (reader->status != KAKEYA_OK || fabs(stated - derived) <= 1e-9 * fabs(derived)) return;
    reader->status = error_set(reader->error, KAKEYA_FORMAT, "\"%s\" is %.9g, but tokens and seconds give %.9g", name,
                               stated, derived);
}

static void get_kv(row_reader *reader, kakeya_kv_bytes *kv) {
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(reader->object, "kv_bytes");
    if (!cJSON_IsObject(object)) {
        missing(reader, "kv_bytes", "an object");
        return;
    }
    row_reader inner = {object, reader->error, reader->status};
    kv->full = (size_t)get_count(&inner, "full");
    kv->sliding = (size_t)get_count(&inner, "sliding");
    kv->latent = (size_t)get_count(&inner, "latent");
    kv->draft = (size_t)get_count(&inner, "draft");
    kv->total = (size_t)get_count(&inner, "total");
    if (inner.status == KAKEYA_OK && (!kv->total || kv->total != kv->full + kv->sliding + kv->latent + kv->draft))
        missing(&inner, "total", "the sum of the kinds");
    if (inner.status != reader->status) reader->status = error_prefix(reader->error, inner.status, "kv_bytes");
}

static void get_blocks(row_reader *reader, eval_row *row) {
    static const char name[] = "draft_blocks";
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(reader->object, name);
    if (!item || reader->status != KAKEYA_OK) return;
    row->has_blocks = true;
    if (!cJSON_IsString(item))
        missing(reader, name, "a text");
    else
        reader->status = draft_blocks_from_text(item->valuestring, &row->blocks, reader->error);
    if (reader->status != KAKEYA_OK) error_prefix(reader->error, reader->status, "\"%s\"", name);
}

static void get_verified(row_reader *reader, eval_row *row) {
    static const char *const formats[] = {"f32", "bf16", "q8", "q4"};
    verify_comparison comparison = VERIFY_REFERENCE;
    get_name(reader, "comparison", row->arm.comparison, sizeof row->arm.comparison);
    if (reader->status == KAKEYA_OK && !verify_comparison_find(row->arm.comparison, &comparison))
        reader->status = error_set(reader->error, KAKEYA_INVALID_ARGUMENT,
                                   "\"comparison\" is \"%s\", which kakeya verify does not make", row->arm.comparison);
    get_known(reader, "kv_format", formats, sizeof formats / sizeof *formats, row->arm.kv_format,
              sizeof row->arm.kv_format);
    row->arm.as_stored = true;
    row->arm.together = get_int(reader, "together");
    row->truncated = comparison == VERIFY_TRUNCATED;
    row->dropped_tokens = get_int(reader, "dropped_tokens");
    row->has_log_probabilities = true;
    row->log_probability_hash = get_hash(reader, "log_probability_hash");
}

static void get_generation(eval_kind kind, row_reader *reader, eval_row *row) {
    row->arm.draft_length = get_int(reader, "draft_length");
    row->arm.prompt_chunk = get_int(reader, "prompt_chunk");
    row->arm.temperature = get_number(reader, "temperature");
    row->arm.scaled_embedding = get_bool(reader, "drafter_scaled_embedding");
    if (cJSON_HasObjectItem(reader->object, "source"))
        get_known(reader, "source", source_names, sizeof source_names / sizeof *source_names, row->arm.source,
                  sizeof row->arm.source);
    if (cJSON_HasObjectItem(reader->object, "category"))
        get_name(reader, "category", row->category, sizeof row->category);
    row->repetition = get_int(reader, "repetition");
    get_name(reader, "finish_reason", row->finish, sizeof row->finish);
    row->prefill_seconds = get_number(reader, "prefill_seconds");
    row->decode_seconds = get_number(reader, "decode_seconds");
    row->verifier_forwards = get_count(reader, "verifier_forwards");
    row->drafted_tokens = get_count(reader, "drafted_tokens");
    row->accepted_tokens = get_count(reader, "accepted_tokens");
    get_counts(reader, "drafted_at", row->drafted_at);
    get_counts(reader, "accepted_at", row->accepted_at);
    get_blocks(reader, row);
    get_kv(reader, &row->kv);
    get_ids(reader, "token_ids", row);
    check_rate(reader, "prefill_tokens_per_second", eval_row_prefill_speed(row));
    check_rate(reader, "decode_tokens_per_second", eval_row_decode_speed(row));
    if (get_count(reader, "completion_tokens") != (int64_t)row->n_token_ids)
        missing(reader, "completion_tokens", "the number of token_ids");
    row->text = get_text(reader, "text");
    if (kind == EVAL_NIAH) {
        row->lines = get_int(reader, "lines");
        row->expected = get_text(reader, "expected");
        get_correct(reader, row);
    }
    if (kind == EVAL_LOSSLESS || kind == EVAL_BATCH || kind == EVAL_VERIFY)
        get_name(reader, "prompt_kind", row->prompt_kind, sizeof row->prompt_kind);
    if (kind == EVAL_LOSSLESS) {
        row->truncated = get_bool(reader, "truncated");
        row->dropped_tokens = get_int(reader, "dropped_tokens");
    }
    if (kind == EVAL_BATCH) {
        const cJSON *hash = cJSON_GetObjectItemCaseSensitive(reader->object, "log_probability_hash");
        row->arm.together = get_int(reader, "together");
        row->forked = get_bool(reader, "forked");
        row->cancel_after = get_int(reader, "cancel_after");
        row->has_log_probabilities = !cJSON_IsNull(hash);
        if (row->has_log_probabilities) row->log_probability_hash = get_hash(reader, "log_probability_hash");
    }
    if (kind == EVAL_VERIFY) get_verified(reader, row);
    const cJSON *mse = cJSON_GetObjectItemCaseSensitive(reader->object, "relative_mse");
    if (cJSON_GetObjectItemCaseSensitive(reader->object, "mix_alpha") || mse) {
        row->arm.mix_alpha = get_number(reader, "mix_alpha");
        if (row->arm.mix_alpha < 0 || row->arm.mix_alpha > 1) missing(reader, "mix_alpha", "a share from 0 to 1");
        if (!cJSON_IsObject(mse)) {
            missing(reader, "relative_mse", "an object");
            return;
        }
        row_reader inner = {mse, reader->error, reader->status};
        row->relative_mse[0] = get_number(&inner, "sliding");
        row->relative_mse[1] = get_number(&inner, "full");
        reader->status = inner.status;
    }
}

static void get_stored(row_reader *reader, eval_row *row) {
    get_name(reader, "format", row->arm.kv_format, sizeof row->arm.kv_format);
    if (reader->status == KAKEYA_OK && !kv_codec_find(row->arm.kv_format))
        reader->status = error_set(reader->error, KAKEYA_INVALID_ARGUMENT,
                                   "\"format\" is \"%s\", which kakeya eval does not run", row->arm.kv_format);
    row->lines = get_int(reader, "lines");
    row->expected = get_text(reader, "expected");
    row->text = get_text(reader, "text");
    get_correct(reader, row);
    row->stored_vectors = get_count(reader, "stored_vectors");
    row->stored_values = get_count(reader, "stored_values");
    row->stored_bytes = get_count(reader, "stored_bytes");
    if (row->arm.as_stored) {
        if (!get_bool(reader, "as_stored")) missing(reader, "as_stored", "true, or not there");
        row->verifier_forwards = get_count(reader, "verifier_forwards");
        row->decode_seconds = get_number(reader, "decode_seconds");
        return;
    }
    row->store_seconds = get_number(reader, "store_seconds");
    row->load_seconds = get_number(reader, "load_seconds");
    const cJSON *errors = cJSON_GetObjectItemCaseSensitive(reader->object, "layer_error");
    row->layers = cJSON_IsArray(errors) ? cJSON_GetArraySize(errors) : 0;
    if (row->layers < 1) missing(reader, "layer_error", "an array with a number for every layer");
    row->layer_error = get_numbers(reader, "layer_error", (size_t)row->layers);
    row->layer_energy = get_numbers(reader, "layer_energy", (size_t)row->layers);
}

kakeya_status eval_row_from_json(eval_kind kind, const cJSON *json, eval_row *out, kakeya_error *error) {
    eval_row_init(out);
    if (!cJSON_IsObject(json)) return error_set(error, KAKEYA_FORMAT, "not an object");
    row_reader reader = {json, error, KAKEYA_OK};
    get_name(&reader, "sample", out->sample, sizeof out->sample);
    out->warmup = get_bool(&reader, "warmup");
    get_known(&reader, "policy", policy_names, sizeof policy_names / sizeof *policy_names, out->arm.policy,
              sizeof out->arm.policy);
    get_known(&reader, "mode", mode_names, sizeof mode_names / sizeof *mode_names, out->arm.mode, sizeof out->arm.mode);
    out->arm.sink = get_int(&reader, "sink");
    out->arm.window = get_int(&reader, "window");
    out->arm.draft_window = get_int(&reader, "draft_window");
    out->arm.threads = get_int(&reader, "threads");
    out->prompt_hash = get_hash(&reader, "prompt_hash");
    out->prompt_tokens = get_count(&reader, "prompt_tokens");
    out->started_seconds = get_number(&reader, "started_seconds");
    if (eval_kind_scores(kind)) {
        out->scored_tokens = get_count(&reader, "scored_tokens");
        out->nll = get_number(&reader, "nll");
        out->arm.as_stored = kind == EVAL_KV_FORMAT && cJSON_GetObjectItemCaseSensitive(json, "as_stored");
        out->kl = get_number(&reader, divergence_key(kind, out->arm.as_stored));
        out->agreements = get_count(&reader, "top1_agreements");
        out->seconds = get_number(&reader, "seconds");
        get_kv(&reader, &out->kv);
        get_ids(&reader, "top1_ids", out);
        if ((int64_t)out->n_token_ids != out->scored_tokens)
            missing(&reader, "top1_ids", "an id for every scored token");
        out->token_nll = get_numbers(&reader, "token_nll", out->n_token_ids);
        out->token_kl = get_numbers(&reader, "token_kl", out->n_token_ids);
        if (kind == EVAL_KV_FORMAT) get_stored(&reader, out);
    } else {
        get_generation(kind, &reader, out);
    }
    return reader.status;
}
