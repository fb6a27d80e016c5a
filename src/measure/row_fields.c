/* The JSON form of a row: one table of its fields, which writes, reads and names them. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/kv_codec.h"
#include "measure/rows.h"
#include "measure/verify_comparison.h"

typedef enum field_form {
    FLAG,
    COUNT,   /* int */
    COUNT64, /* int64_t */
    BYTES,   /* size_t */
    NUMBER,  /* double, finite */
    SECONDS, /* double, not negative */
    SHARE,   /* double in [0, 1] */
    NAME,    /* char[bytes], not empty; of `known` ones, where there is such a function */
    TEXT,    /* char *, may be NULL */
    HASH,    /* uint64_t */
    HASH_IF_ASKED,
    COUNTS,  /* int64_t[EVAL_DRAFT_POSITIONS], without the zeros at the end */
    BLOCKS,  /* draft_blocks */
    IDS,     /* token_ids */
    NUMBERS, /* double *, one for each of the ids */
    LAYERS,  /* double *, one for each layer */
    DERIVED, /* what `derived` gives: stated, so that whoever reads a row need not know how */
} field_form;

typedef struct row_field {
    const char *key; /* "kv_bytes.full": of an object inside */
    unsigned kinds;
    field_form form;
    size_t at, bytes;                   /* in eval_row */
    bool (*known)(const char *name);    /* names */
    bool (*there)(const eval_row *row); /* NULL: always */
    double (*derived)(const eval_row *row);
    eval_figure figure;
} row_field;

static bool is_one_of(const char *const *names, size_t n, const char *name) {
    while (n && strcmp(names[n - 1], name) != 0) n--;
    return n > 0;
}
#define ONE_OF(name, ...)                                                                                              \
    is_one_of((const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *), name)

static bool is_policy(const char *n) { return ONE_OF(n, "native", "sink-window", "restored", "restored-all"); }
static bool is_mode(const char *n) {
    return ONE_OF(n, "ar", "speculative", "ngram", "auto", "reforward", "unfused", "score");
}
static bool is_source(const char *n) { return ONE_OF(n, "assistant"); }
static bool is_kept_format(const char *n) { return ONE_OF(n, "f32", "bf16", "q8", "q4"); }
static bool is_codec(const char *n) { return kv_codec_find(n) != NULL; }
static bool is_comparison(const char *n) { return verify_comparison_find(n, &(verify_comparison){VERIFY_REFERENCE}); }

static bool is_stored(const eval_row *r) { return r->arm.as_stored; }
static bool is_packed(const eval_row *r) { return !r->arm.as_stored; }
static bool has_source(const eval_row *r) { return r->arm.source[0] != '\0'; }
static bool has_category(const eval_row *r) { return r->category[0] != '\0'; }
static bool has_blocks(const eval_row *r) { return r->has_blocks; }
static bool is_diagnostic(const eval_row *r) { return r->arm.mix_alpha >= 0; }

static double completion_tokens(const eval_row *r) { return (double)r->n_token_ids; }
static double total_bytes(const eval_row *r) {
    return (double)r->kv.full + (double)r->kv.sliding + (double)r->kv.latent + (double)r->kv.draft;
}

#define KIND(name) (1u << (EVAL_##name))
#define SCORED     (KIND(FIDELITY) | KIND(KV_FORMAT))
#define ALL        ((1u << EVAL_KIND_COUNT) - 1)
#define GENERATED  (ALL & ~SCORED)
#define NEEDLES    (KIND(NIAH) | KIND(KV_FORMAT))
#define AT(member) .at = offsetof(eval_row, member), .bytes = sizeof(((eval_row *)NULL)->member)

/* clang-format off: a field is a line */
static const row_field fields[] = {
    {"sample", ALL, NAME, AT(sample)},
    {"warmup", ALL, FLAG, AT(warmup)},
    {"policy", ALL, NAME, AT(arm.policy), .known = is_policy},
    {"mode", ALL, NAME, AT(arm.mode), .known = is_mode},
    {"sink", ALL, COUNT, AT(arm.sink)},
    {"window", ALL, COUNT, AT(arm.window)},
    {"draft_window", ALL, COUNT, AT(arm.draft_window)},
    {"threads", ALL, COUNT, AT(arm.threads)},
    {"prompt_hash", ALL, HASH, AT(prompt_hash)},
    {"prompt_tokens", ALL, COUNT64, AT(prompt_tokens)},
    {"started_seconds", ALL, SECONDS, AT(started_seconds), .figure = EVAL_TIME},
    {"kv_bytes.full", ALL, BYTES, AT(kv.full), .figure = EVAL_HELD},
    {"kv_bytes.sliding", ALL, BYTES, AT(kv.sliding), .figure = EVAL_HELD},
    {"kv_bytes.latent", ALL, BYTES, AT(kv.latent), .figure = EVAL_HELD},
    {"kv_bytes.draft", ALL, BYTES, AT(kv.draft), .figure = EVAL_HELD},
    {"kv_bytes.total", ALL, BYTES, AT(kv.total), .derived = total_bytes, .figure = EVAL_HELD},
    /* scores */
    {"as_stored", KIND(KV_FORMAT), FLAG, AT(arm.as_stored), .there = is_stored},
    {"scored_tokens", SCORED, COUNT64, AT(scored_tokens)},
    {"nll", SCORED, NUMBER, AT(nll)},
    {"kl_from_native", KIND(FIDELITY), NUMBER, AT(kl)},
    {"kl_from_bf16", KIND(KV_FORMAT), NUMBER, AT(kl), .there = is_stored},
    {"kl_from_identity", KIND(KV_FORMAT), NUMBER, AT(kl), .there = is_packed},
    {"top1_agreements", SCORED, COUNT64, AT(agreements)},
    {"seconds", SCORED, SECONDS, AT(seconds), .figure = EVAL_TIME},
    {"top1_ids", SCORED, IDS, AT(token_ids)},
    {"token_nll", SCORED, NUMBERS, AT(token_nll)},
    {"token_kl", SCORED, NUMBERS, AT(token_kl)},
    {"format", KIND(KV_FORMAT), NAME, AT(arm.kv_format), .known = is_codec},
    /* generation */
    {"draft_length", GENERATED, COUNT, AT(arm.draft_length)},
    {"prompt_chunk", GENERATED, COUNT, AT(arm.prompt_chunk)},
    {"temperature", GENERATED, NUMBER, AT(arm.temperature)},
    {"drafter_scaled_embedding", GENERATED, FLAG, AT(arm.scaled_embedding)},
    {"source", KIND(CODE) | KIND(ACCEPTANCE) | KIND(VERIFY), NAME, AT(arm.source), .known = is_source,
     .there = has_source},
    {"category", KIND(ACCEPTANCE), NAME, AT(category), .there = has_category},
    {"repetition", GENERATED, COUNT, AT(repetition)},
    {"finish_reason", GENERATED, NAME, AT(finish)},
    {"prefill_seconds", GENERATED, SECONDS, AT(prefill_seconds), .figure = EVAL_TIME},
    {"decode_seconds", GENERATED, SECONDS, AT(decode_seconds), .figure = EVAL_TIME},
    {"verifier_forwards", GENERATED, COUNT64, AT(verifier_forwards), .figure = EVAL_DRAFTS},
    {"drafted_tokens", GENERATED, COUNT64, AT(drafted_tokens), .figure = EVAL_DRAFTS},
    {"accepted_tokens", GENERATED, COUNT64, AT(accepted_tokens), .figure = EVAL_DRAFTS},
    {"drafted_at", GENERATED, COUNTS, AT(drafted_at), .figure = EVAL_DRAFTS},
    {"accepted_at", GENERATED, COUNTS, AT(accepted_at), .figure = EVAL_DRAFTS},
    {"draft_blocks", GENERATED, BLOCKS, AT(blocks), .there = has_blocks, .figure = EVAL_DRAFTS},
    {"token_ids", GENERATED, IDS, AT(token_ids)},
    {"completion_tokens", GENERATED, DERIVED, .derived = completion_tokens},
    {"prefill_tokens_per_second", GENERATED, DERIVED, .derived = eval_row_prefill_speed, .figure = EVAL_TIME},
    {"decode_tokens_per_second", GENERATED, DERIVED, .derived = eval_row_decode_speed, .figure = EVAL_TIME},
    {"text", GENERATED | KIND(KV_FORMAT), TEXT, AT(text)},
    /* needles */
    {"lines", NEEDLES, COUNT, AT(lines)},
    {"expected", NEEDLES, TEXT, AT(expected)},
    {"correct", NEEDLES, FLAG, AT(correct)},
    {"mix_alpha", KIND(NIAH), SHARE, AT(arm.mix_alpha), .there = is_diagnostic},
    {"relative_mse.sliding", KIND(NIAH), NUMBER, AT(relative_mse[0]), .there = is_diagnostic},
    {"relative_mse.full", KIND(NIAH), NUMBER, AT(relative_mse[1]), .there = is_diagnostic},
    /* formats of K/V */
    {"stored_vectors", KIND(KV_FORMAT), COUNT64, AT(stored_vectors)},
    {"stored_values", KIND(KV_FORMAT), COUNT64, AT(stored_values)},
    {"stored_bytes", KIND(KV_FORMAT), COUNT64, AT(stored_bytes)},
    {"verifier_forwards", KIND(KV_FORMAT), COUNT64, AT(verifier_forwards), .there = is_stored, .figure = EVAL_DRAFTS},
    {"decode_seconds", KIND(KV_FORMAT), SECONDS, AT(decode_seconds), .there = is_stored, .figure = EVAL_TIME},
    {"store_seconds", KIND(KV_FORMAT), SECONDS, AT(store_seconds), .there = is_packed, .figure = EVAL_TIME},
    {"load_seconds", KIND(KV_FORMAT), SECONDS, AT(load_seconds), .there = is_packed, .figure = EVAL_TIME},
    {"layer_error", KIND(KV_FORMAT), LAYERS, AT(layer_error), .there = is_packed},
    {"layer_energy", KIND(KV_FORMAT), LAYERS, AT(layer_energy), .there = is_packed},
    /* streams that must be equal */
    {"prompt_kind", KIND(LOSSLESS) | KIND(BATCH) | KIND(VERIFY), NAME, AT(prompt_kind)},
    {"truncated", KIND(LOSSLESS), FLAG, AT(truncated)},
    {"comparison", KIND(VERIFY), NAME, AT(arm.comparison), .known = is_comparison},
    {"kv_format", KIND(VERIFY), NAME, AT(arm.kv_format), .known = is_kept_format},
    {"dropped_tokens", KIND(LOSSLESS) | KIND(VERIFY), COUNT, AT(dropped_tokens)},
    {"together", KIND(BATCH) | KIND(VERIFY), COUNT, AT(arm.together)},
    {"forked", KIND(BATCH), FLAG, AT(forked)},
    {"cancel_after", KIND(BATCH), COUNT, AT(cancel_after)},
    {"log_probability_hash", KIND(BATCH), HASH_IF_ASKED, AT(log_probability_hash)},
    {"log_probability_hash", KIND(VERIFY), HASH, AT(log_probability_hash)},
};
/* clang-format on */
enum { FIELDS = sizeof fields / sizeof fields[0] };

const char *eval_row_key(size_t index, unsigned *kinds, eval_figure *figure) {
    if (index >= FIELDS) return NULL;
    *kinds = fields[index].kinds;
    if (figure) *figure = fields[index].figure;
    return fields[index].key;
}

/* The part of a key before its point, or all of it. */
static const char *outer_key(const row_field *field, char out[32]) {
    snprintf(out, 32, "%.*s", (int)strcspn(field->key, "."), field->key);
    return out;
}

/* ---------------------------------------------------------------------------------------------------- to JSON */

static cJSON *counts_json(const int64_t *values) {
    int n = EVAL_DRAFT_POSITIONS;
    while (n && !values[n - 1]) n--;
    cJSON *array = cJSON_CreateArray();
    for (int i = 0; i < n; i++) cJSON_AddItemToArray(array, cJSON_CreateNumber((double)values[i]));
    return array;
}

static cJSON *hash_json(uint64_t hash) {
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    return cJSON_CreateString(text);
}

static cJSON *blocks_json(const draft_blocks *blocks) {
    char *text = draft_blocks_to_text(blocks);
    cJSON *item = text ? cJSON_CreateString(text) : NULL;
    free(text);
    return item;
}

static cJSON *numbers_json(const double *values, size_t n) {
    return n ? cJSON_CreateDoubleArray(values, (int)n) : cJSON_CreateArray();
}

static cJSON *field_json(const row_field *field, const eval_row *row) {
    const void *at = (const char *)row + field->at;
    const char *text;
    switch (field->form) {
    case FLAG:
        return cJSON_CreateBool(*(const bool *)at);
    case COUNT:
        return cJSON_CreateNumber(*(const int *)at);
    case COUNT64:
        return cJSON_CreateNumber((double)*(const int64_t *)at);
    case BYTES:
        return cJSON_CreateNumber((double)*(const size_t *)at);
    case NUMBER:
    case SECONDS:
    case SHARE:
        return cJSON_CreateNumber(*(const double *)at);
    case NAME:
        return cJSON_CreateString(at);
    case TEXT:
        text = *(char *const *)at;
        return text ? cJSON_CreateString(text) : cJSON_CreateNull();
    case HASH_IF_ASKED:
        if (!row->has_log_probabilities) return cJSON_CreateNull();
        return hash_json(row->log_probability_hash);
    case HASH:
        return hash_json(*(const uint64_t *)at);
    case COUNTS:
        return counts_json(at);
    case BLOCKS:
        return blocks_json(at);
    case IDS:
        return row->n_token_ids ? cJSON_CreateIntArray(row->token_ids, (int)row->n_token_ids) : cJSON_CreateArray();
    case NUMBERS:
        return numbers_json(*(double *const *)at, row->n_token_ids);
    case LAYERS:
        return numbers_json(*(double *const *)at, (size_t)row->layers);
    case DERIVED:
        return cJSON_CreateNumber(field->derived(row));
    }
    return NULL;
}

cJSON *eval_row_to_json(eval_kind kind, const eval_row *row) {
    cJSON *object = cJSON_CreateObject();
    bool added = object != NULL;
    for (int i = 0; i < FIELDS && added; i++) {
        const row_field *field = &fields[i];
        if (!(field->kinds & 1u << kind) || (field->there && !field->there(row))) continue;
        cJSON *item = field_json(field, row), *holder = object;
        const char *point = strchr(field->key, '.');
        char outer[32];
        if (point) {
            holder = cJSON_GetObjectItemCaseSensitive(object, outer_key(field, outer));
            if (!holder) holder = cJSON_AddObjectToObject(object, outer);
        }
        added = item && holder && cJSON_AddItemToObject(holder, point ? point + 1 : field->key, item);
    }
    if (added) return object;
    cJSON_Delete(object);
    return NULL;
}

/* -------------------------------------------------------------------------------------------------- from JSON */

typedef struct row_reader {
    const cJSON *object;
    const row_field *field; /* the one that is read */
    kakeya_error *error;
    kakeya_status status; /* the first failure stays */
} row_reader;

static const cJSON *find(const row_reader *reader) {
    const char *point = strchr(reader->field->key, '.');
    char outer[32];
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(reader->object, outer_key(reader->field, outer));
    return point ? cJSON_GetObjectItemCaseSensitive(item, point + 1) : item;
}

static void missing(row_reader *reader, const char *type) {
    if (reader->status != KAKEYA_OK) return;
    reader->status = error_set(reader->error, KAKEYA_FORMAT,
                               find(reader) ? "\"%s\" is not %s" : "\"%s\" is missing (%s)", reader->field->key, type);
}

static void no_memory(row_reader *reader) {
    if (reader->status != KAKEYA_OK) return;
    reader->status = error_set(reader->error, KAKEYA_OUT_OF_MEMORY, "no memory for \"%s\"", reader->field->key);
}

static int64_t read_count(row_reader *reader, const cJSON *item, int64_t most) {
    double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (value >= 0 && value <= (double)most && floor(value) == value) return (int64_t)value;
    missing(reader, most == INT32_MAX ? "a count below 2^31" : "a count");
    return 0;
}

static double read_number(row_reader *reader, const cJSON *item, double least, double most, const char *type) {
    double value = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    if (isfinite(value) && value >= least && value <= most) return value;
    missing(reader, type);
    return 0;
}

/* KAKEYA_INVALID_ARGUMENT tells a name that nobody knows from a field that is not there. */
static void read_name(row_reader *reader, const cJSON *item, char *out) {
    const row_field *field = reader->field;
    if (!cJSON_IsString(item) || !item->valuestring[0] || strlen(item->valuestring) >= field->bytes) {
        missing(reader, "a short text");
        return;
    }
    memcpy(out, item->valuestring, strlen(item->valuestring) + 1);
    if (field->known && !field->known(out) && reader->status == KAKEYA_OK)
        reader->status = error_set(reader->error, KAKEYA_INVALID_ARGUMENT,
                                   "\"%s\" is \"%s\", which kakeya does not run", field->key, out);
}

static uint64_t read_hash(row_reader *reader, const cJSON *item) {
    const char *hash = cJSON_IsString(item) ? item->valuestring : "";
    if (strlen(hash) != 16 || strspn(hash, "0123456789abcdef") != 16) missing(reader, "16 hexadecimal digits");
    return strtoull(hash, NULL, 16);
}

static void read_text(row_reader *reader, const cJSON *item, char **out) {
    if (cJSON_IsString(item) && !(*out = strdup(item->valuestring))) no_memory(reader);
    if (!cJSON_IsString(item) && !cJSON_IsNull(item)) missing(reader, "a text");
}

static void read_blocks(row_reader *reader, const cJSON *item, eval_row *row) {
    row->has_blocks = true;
    if (!cJSON_IsString(item)) missing(reader, "a text");
    if (reader->status != KAKEYA_OK) return;
    reader->status = draft_blocks_from_text(item->valuestring, &row->blocks, reader->error);
    if (reader->status != KAKEYA_OK) error_prefix(reader->error, reader->status, "\"%s\"", reader->field->key);
}

static void read_ids(row_reader *reader, const cJSON *array, eval_row *row) {
    const cJSON *item;
    row->token_ids = calloc((size_t)cJSON_GetArraySize(array) + 1, sizeof *row->token_ids);
    if (!cJSON_IsArray(array)) missing(reader, "an array of token ids");
    if (!row->token_ids) no_memory(reader);
    if (reader->status != KAKEYA_OK) return;
    cJSON_ArrayForEach(item, array) row->token_ids[row->n_token_ids++] = (int32_t)read_count(reader, item, INT32_MAX);
}

/* Exactly n finite numbers. */
static void read_numbers(row_reader *reader, const cJSON *array, size_t n, double **out) {
    const cJSON *item;
    double *at = *out = malloc((n + 1) * sizeof **out);
    if (!at) no_memory(reader);
    if (!cJSON_IsArray(array) || (size_t)cJSON_GetArraySize(array) != n)
        missing(reader, "an array with a number for each");
    if (reader->status != KAKEYA_OK) return;
    cJSON_ArrayForEach(item, array) *at++ = read_number(reader, item, -INFINITY, INFINITY, "an array of numbers");
}

static void read_counts(row_reader *reader, const cJSON *array, int64_t *out) {
    const cJSON *item;
    if (!cJSON_IsArray(array) || cJSON_GetArraySize(array) > EVAL_DRAFT_POSITIONS)
        missing(reader, "a short array of counts");
    if (reader->status != KAKEYA_OK) return;
    cJSON_ArrayForEach(item, array) *out++ = read_count(reader, item, INT64_C(1) << 53);
}

static void read_field(row_reader *reader, const cJSON *item, eval_row *row) {
    const row_field *field = reader->field;
    void *at = (char *)row + field->at;
    switch (field->form) {
    case FLAG:
        if (!cJSON_IsBool(item)) missing(reader, "true or false");
        *(bool *)at = cJSON_IsTrue(item);
        break;
    case COUNT:
        *(int *)at = (int)read_count(reader, item, INT32_MAX);
        break;
    case COUNT64:
        *(int64_t *)at = read_count(reader, item, INT64_C(1) << 53);
        break;
    case BYTES:
        *(size_t *)at = (size_t)read_count(reader, item, INT64_C(1) << 53);
        break;
    case NUMBER:
        *(double *)at = read_number(reader, item, -INFINITY, INFINITY, "a number");
        break;
    case SECONDS:
        *(double *)at = read_number(reader, item, 0, INFINITY, "a time");
        break;
    case SHARE:
        *(double *)at = read_number(reader, item, 0, 1, "a share from 0 to 1");
        break;
    case NAME:
        read_name(reader, item, at);
        break;
    case TEXT:
        read_text(reader, item, at);
        break;
    case HASH_IF_ASKED:
        row->has_log_probabilities = !cJSON_IsNull(item);
        if (row->has_log_probabilities) row->log_probability_hash = read_hash(reader, item);
        break;
    case HASH:
        *(uint64_t *)at = read_hash(reader, item);
        break;
    case COUNTS:
        read_counts(reader, item, at);
        break;
    case BLOCKS:
        read_blocks(reader, item, row);
        break;
    case IDS:
        read_ids(reader, item, row);
        break;
    case NUMBERS:
        read_numbers(reader, item, row->n_token_ids, at);
        break;
    case LAYERS:
        if (!row->layers) row->layers = cJSON_IsArray(item) ? cJSON_GetArraySize(item) : 0;
        if (!row->layers) missing(reader, "an array with a number for every layer");
        read_numbers(reader, item, (size_t)row->layers, at);
        break;
    case DERIVED:
        break;
    }
    if (!field->derived) return;
    /* A figure that follows from others in the row: one that is edited alone does not fit them. */
    double stated = read_number(reader, item, 0, INFINITY, "a number"), given = field->derived(row);
    if (reader->status == KAKEYA_OK && fabs(stated - given) > 1e-9 * fabs(given))
        reader->status = error_set(reader->error, KAKEYA_FORMAT, "\"%s\" is %.9g, but the row gives %.9g", field->key,
                                   stated, given);
}

kakeya_status eval_row_from_json(eval_kind kind, const cJSON *json, eval_row *out, kakeya_error *error) {
    eval_row_init(out);
    if (!cJSON_IsObject(json)) return error_set(error, KAKEYA_FORMAT, "not an object");
    row_reader reader = {.object = json, .error = error, .status = KAKEYA_OK};
    for (int pass = 0; pass < 2; pass++) {
        for (reader.field = fields; reader.field < fields + FIELDS; reader.field++) {
            const row_field *field = reader.field;
            const cJSON *item = find(&reader);
            if (!(field->kinds & 1u << kind)) continue;
            if (pass == 0 && (item || !field->there)) read_field(&reader, item, out);
            if (pass == 1 && field->there && (item != NULL) != field->there(out))
                missing(&reader, "what rows of this sort hold");
        }
    }
    if (kind == EVAL_VERIFY) {
        out->arm.as_stored = out->has_log_probabilities = true;
        out->truncated = strcmp(out->arm.comparison, verify_comparison_name(VERIFY_TRUNCATED)) == 0;
    }
    if (reader.status != KAKEYA_OK) return reader.status;
    if (eval_kind_scores(kind) && out->scored_tokens != (int64_t)out->n_token_ids)
        return error_set(error, KAKEYA_FORMAT, "\"top1_ids\" has not an id for every scored token");
    if (out->correct != eval_answer_correct(out->text, out->expected))
        return error_set(error, KAKEYA_FORMAT, "\"correct\" is not what \"text\" and \"expected\" give");
    return KAKEYA_OK;
}
