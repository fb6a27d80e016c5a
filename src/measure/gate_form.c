/* The form of a report: every object holds the keys it should hold, once, and every value is in its range before any
 * rule uses it. What is spelt differently would otherwise be read as absent, and a rule that reads nothing refuses
 * nothing. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "measure/gate_private.h"
#include "measure/lossless_batch_plan.h"
#include "measure/lossless_plan.h"

static const cJSON *member(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* ------------------------------------------------------------------------------------- keys and numbers, everywhere */

static int compare_keys(const void *a, const void *b) {
    return strcasecmp((*(const cJSON *const *)a)->string, (*(const cJSON *const *)b)->string);
}

/* Keys that differ in case alone count as equal: nobody writes both by mistake. */
static void check_keys(gate_context *context, const cJSON *object) {
    size_t n = 0;
    for (const cJSON *item = object->child; item; item = item->next) n++;
    const cJSON **sorted = malloc((n + 1) * sizeof *sorted);
    if (!sorted) {
        context->out_of_memory = true;
        return;
    }
    n = 0;
    for (const cJSON *item = object->child; item; item = item->next) sorted[n++] = item;
    qsort(sorted, n, sizeof *sorted, compare_keys);
    for (size_t i = 1; i < n; i++)
        if (strcasecmp(sorted[i - 1]->string, sorted[i]->string) == 0)
            gate_violate(context, "DUPLICATE_KEY", "\"%.60s\" and \"%.60s\" stand in one object", sorted[i - 1]->string,
                         sorted[i]->string);
    free(sorted);
}

/* No figure of a report comes near; what is larger would not survive a conversion to an integer. */
static const double largest_number = 18446744073709551616.0;

static void check_values(gate_context *context, const cJSON *item) {
    if (cJSON_IsNumber(item) && !(fabs(item->valuedouble) <= largest_number))
        gate_violate(context, "NUMBER_RANGE", "%.60s is %g", item->string ? item->string : "an item of an array",
                     item->valuedouble);
    if (cJSON_IsObject(item)) check_keys(context, item);
    for (const cJSON *child = item->child; child; child = child->next) check_values(context, child);
}

void gate_check_values(gate_context *context) { check_values(context, context->report); }

/* ----------------------------------------------------------------------------------------------- which keys where */

/* Words of a list, separated by blanks. */
static bool is_listed(const char *list, const char *word) {
    size_t length = strlen(word);
    if (!length || strchr(word, ' ')) return false;
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += length)
        if ((at == list || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
    return false;
}

void gate_allow_keys(gate_context *context, const char *where, const cJSON *object, const char *list,
                     const char *more) {
    for (const cJSON *item = cJSON_IsObject(object) ? object->child : NULL; item; item = item->next)
        if (!is_listed(list, item->string) && !is_listed(more, item->string))
            gate_violate(context, "UNKNOWN_KEY", "%s holds \"%.60s\", which kakeya eval does not write", where,
                         item->string);
}

static const char row_keys[] = "sample warmup policy mode sink window draft_window threads prompt_hash prompt_tokens "
                               "started_seconds kv_bytes";
static const char generation_keys[] =
    "draft_length prompt_chunk temperature drafter_scaled_embedding repetition completion_tokens finish_reason "
    "prefill_seconds decode_seconds prefill_tokens_per_second decode_tokens_per_second verifier_forwards "
    "drafted_tokens accepted_tokens drafted_at accepted_at token_ids text";
static const char *const kind_row_keys[EVAL_KIND_COUNT] = {
    [EVAL_NIAH] = "lines expected correct mix_alpha relative_mse",
    [EVAL_FIDELITY] = "scored_tokens nll kl_from_native top1_agreements seconds top1_ids token_nll token_kl",
    [EVAL_KV_FORMAT] =
        "scored_tokens nll kl_from_identity top1_agreements seconds top1_ids token_nll token_kl format lines "
        "expected text correct stored_vectors stored_values stored_bytes store_seconds load_seconds "
        "layer_error layer_energy as_stored kl_from_bf16 verifier_forwards decode_seconds",
    [EVAL_CODE] = "",
    [EVAL_ACCEPTANCE] = "",
    [EVAL_LOSSLESS] = "prompt_kind",
    [EVAL_BATCH] = "prompt_kind together forked cancel_after log_probability_hash",
};

static void check_row_keys(gate_context *context, const cJSON *row, size_t index) {
    char where[40], list[800];
    snprintf(where, sizeof where, "rows[%zu]", index);
    snprintf(list, sizeof list, "%s %s", eval_kind_scores(context->kind) ? "" : generation_keys,
             kind_row_keys[context->kind]);
    gate_allow_keys(context, where, row, row_keys, list);
    gate_allow_keys(context, where, member(row, "kv_bytes"), "full sliding latent draft total", "");
    gate_allow_keys(context, where, member(row, "relative_mse"), "sliding full", "");
}

/* ------------------------------------------------------------------------------------------------- the environment */

static bool is_text(const cJSON *item) { return cJSON_IsString(item) && item->valuestring[0]; }

static void check_date(gate_context *context, const char *date) {
    static const char form[] = "0000-00-00T00:00:00Z"; /* 0 stands for a digit */
    bool good = strlen(date) == strlen(form);
    for (size_t i = 0; good && form[i]; i++)
        good = form[i] == '0' ? isdigit((unsigned char)date[i]) != 0 : date[i] == form[i];
    if (!good) gate_violate(context, "ENVIRONMENT", "environment.date \"%.40s\" is no date in UTC", date);
}

static void check_stop_tokens(gate_context *context) {
    const cJSON *stop, *vocabulary = member(context->environment, "vocabulary");
    double size = cJSON_IsNumber(vocabulary) ? vocabulary->valuedouble : 0;
    cJSON_ArrayForEach(stop, member(context->environment, "stop_tokens")) {
        if (!json_is_integer(stop, 0, size - 1))
            gate_violate(context, "ENVIRONMENT", "environment.stop_tokens holds something that is no token id below %g",
                         size);
    }
}

static void check_geometry(gate_context *context) {
    kakeya_error problem = {0};
    const cJSON *json = member(context->environment, "kv_geometry"), *layer, *stated;
    gate_allow_keys(context, "environment.kv_geometry", json,
                    "kv_format sliding_window f_theta_rank layers drafter fingerprint",
                    "page_granule_bytes devices f_theta_latents");
    gate_allow_keys(context, "environment.kv_geometry.f_theta_latents", member(json, "f_theta_latents"),
                    "input format shared rank_k rank_v", "");
    gate_allow_keys(context, "environment.kv_geometry.drafter", member(json, "drafter"),
                    "kv_heads head_dim sliding_windows", "");
    cJSON_ArrayForEach(layer, member(json, "layers")) gate_allow_keys(context, "environment.kv_geometry.layers", layer,
                                                                      "type kv_heads head_dim k_eq_v kv_source", "");
    kakeya_status status = kv_geometry_from_json(json, &context->geometry, &problem);
    context->has_geometry = status == KAKEYA_OK;
    if (status == KAKEYA_OUT_OF_MEMORY) context->out_of_memory = true;
    if (status != KAKEYA_OK) {
        gate_violate(context, "KV_GEOMETRY", "environment.%.200s", problem.message);
        return;
    }
    const kv_geometry *g = &context->geometry;
    const struct {
        const char *name;
        double derived;
    } same[] = {
        {"sliding_window", g->verifier.sliding_window},
        {"layers", g->verifier.layers},
        {"drafter", g->has_drafter},
        {"f_theta", g->f_theta.rank > 0},
    };
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        stated = member(context->environment, same[i].name);
        double value = cJSON_IsBool(stated) ? cJSON_IsTrue(stated) : cJSON_IsNumber(stated) ? stated->valuedouble : -1;
        if (fabs(value - same[i].derived) > 0)
            gate_violate(context, "KV_GEOMETRY", "environment.%s is %g, but kv_geometry says %g", same[i].name, value,
                         same[i].derived);
    }
}

void gate_check_environment(gate_context *context) {
    static const char *const texts[] = {"kakeya_version", "date",  "cpu_model",   "os",
                                        "backend",        "model", "fingerprint", "precision"};
    static const char *const counts[] = {"cores", "memory_bytes", "threads", "layers", "vocabulary", "sliding_window"};
    static const char *const flags[] = {"drafter", "f_theta", "drafter_scaled_embedding"};
    const cJSON *e = context->environment;
    if (!cJSON_IsObject(e)) {
        gate_violate(context, "MISSING_ENVIRONMENT", "no \"environment\" object");
        return;
    }
    gate_allow_keys(context, "environment", e,
                    "kakeya_version date cpu_model cores memory_bytes os backend precision threads model fingerprint",
                    "drafter f_theta drafter_block_size layers vocabulary sliding_window stop_tokens "
                    "drafter_scaled_embedding kv_geometry");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (!is_text(member(e, texts[i])))
            gate_violate(context, "MISSING_ENVIRONMENT", "environment.%s is missing", texts[i]);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (!json_is_integer(member(e, counts[i]), 1, 9e15))
            gate_violate(context, "MISSING_ENVIRONMENT", "environment.%s is missing, or no count", counts[i]);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (!cJSON_IsBool(member(e, flags[i])))
            gate_violate(context, "MISSING_ENVIRONMENT", "environment.%s is missing", flags[i]);
    if (!json_is_integer(member(e, "drafter_block_size"), 0, 1 << 16))
        gate_violate(context, "MISSING_ENVIRONMENT", "environment.drafter_block_size is missing, or no count");
    if (!cJSON_IsArray(member(e, "stop_tokens")))
        gate_violate(context, "MISSING_ENVIRONMENT", "environment.stop_tokens is missing");
    check_stop_tokens(context);
    check_geometry(context);
    if (is_text(member(e, "date"))) check_date(context, member(e, "date")->valuestring);
    const cJSON *fingerprint = member(e, "fingerprint"), *precision = member(e, "precision");
    if (is_text(fingerprint) &&
        (strlen(fingerprint->valuestring) != 16 || strspn(fingerprint->valuestring, "0123456789abcdef") != 16))
        gate_violate(context, "ENVIRONMENT", "environment.fingerprint \"%.40s\" is not 16 hexadecimal digits",
                     fingerprint->valuestring);
    if (is_text(precision) && !is_listed("f32 bf16 int8 fp8", precision->valuestring))
        gate_violate(context, "ENVIRONMENT", "environment.precision \"%.40s\" is none of f32, bf16, int8, fp8",
                     precision->valuestring);
}

/* ------------------------------------------------------------------------------------------------------- options */

typedef enum option_form {
    COUNT,  /* an integer in [min, max] */
    COUNTS, /* different ones, at least one */
    SHARES, /* different numbers in [min, max] */
    NAME,   /* one word of `names` */
    NAMES,  /* different ones, at least one */
    TEXT,   /* not empty */
    TEXTS,  /* different ones, at least one */
    FLAG,
    SEED,    /* an integer; as text where a number cannot hold it */
    PROMISE, /* a list that follows from other options: gate_form compares it whole */
} option_form;

typedef struct option_rule {
    const char *key;
    option_form form;
    double min, max;
    const char *names;
} option_rule;

static const char policy_words[] = "native sink-window restored restored-all";
static const char kv_format_words[] = "identity bf16 fp8 q8 affine8 affine4 q4 d4-10 d4-38 d4-152 e8-9 e8-38 e8-151";
static const char mode_words[] = "ar speculative ngram auto";

enum { MAX_TOKENS = 1 << 24, MAX_ROWS = 1 << 20, MAX_OPTIONS = 16 };

#define SIZES                                                                                                          \
    {"sink", COUNT, 0, MAX_TOKENS, NULL}, {"window", COUNT, 1, MAX_TOKENS, NULL},                                      \
        {"draft_window", COUNT, 1, MAX_TOKENS, NULL}, {                                                                \
        "max_tokens", COUNT, 1, MAX_TOKENS, NULL                                                                       \
    }

static const option_rule option_rules[EVAL_KIND_COUNT][MAX_OPTIONS] = {
    [EVAL_NIAH] = {SIZES,
                   {"lines", COUNTS, 10, 1000000, NULL},
                   {"samples", COUNT, 1, MAX_ROWS, NULL},
                   {"seed", SEED, 0, 0, NULL},
                   {"policies", NAMES, 0, 0, policy_words},
                   {"mode", NAME, 0, 0, mode_words},
                   {"draft_length", COUNT, 0, 64, NULL},
                   {"draft_windows", COUNTS, 1, MAX_TOKENS, NULL},
                   {"mix_alpha", SHARES, 0, 1, NULL}},
    [EVAL_FIDELITY] = {{"sink", COUNT, 0, MAX_TOKENS, NULL},
                       {"window", COUNT, 1, MAX_TOKENS, NULL},
                       {"draft_window", COUNT, 1, MAX_TOKENS, NULL},
                       {"prompt_length", COUNT, 1, MAX_TOKENS, NULL},
                       {"sequences", COUNT, 1, MAX_ROWS, NULL},
                       {"samples", TEXTS, 0, 0, NULL},
                       {"policies", NAMES, 0, 0, policy_words},
                       {"windows", COUNTS, 1, MAX_TOKENS, NULL},
                       {"turns", COUNT, 2, MAX_TOKENS, NULL}},
    [EVAL_KV_FORMAT] = {SIZES,
                        {"prompt_length", COUNT, 1, MAX_TOKENS, NULL},
                        {"sequences", COUNT, 1, MAX_ROWS, NULL},
                        {"samples", TEXTS, 0, 0, NULL},
                        {"lines", COUNT, 10, 1000000, NULL},
                        {"seed", SEED, 0, 0, NULL},
                        {"formats", NAMES, 0, 0, kv_format_words},
                        {"as_stored", FLAG, 0, 0, NULL}},
    [EVAL_CODE] = {SIZES,
                   {"files", TEXTS, 0, 0, NULL},
                   {"prompt_tokens", COUNT, 1, MAX_TOKENS, NULL},
                   {"repetitions", COUNT, 1, MAX_ROWS, NULL},
                   {"policies", NAMES, 0, 0, policy_words},
                   {"draft_lengths", COUNTS, 1, 64, NULL}},
    [EVAL_ACCEPTANCE] = {SIZES,
                         {"jsonl", TEXT, 0, 0, NULL},
                         {"prompts", COUNT, 1, MAX_ROWS, NULL},
                         {"samples", TEXTS, 0, 0, NULL},
                         {"draft_length", COUNT, 1, 64, NULL},
                         {"chat", FLAG, 0, 0, NULL}},
    [EVAL_LOSSLESS] = {SIZES,
                       {"prompts", COUNT, 1, MAX_ROWS, NULL},
                       {"reference_prompts", COUNT, 0, MAX_ROWS, NULL},
                       {"seed", SEED, 0, 0, NULL},
                       {"policies", NAMES, 0, 0, policy_words},
                       {"modes", PROMISE, 0, 0, NULL},
                       {"prompt_kinds", PROMISE, 0, 0, NULL},
                       {"temperatures", PROMISE, 0, 0, NULL},
                       {"threads", PROMISE, 0, 0, NULL},
                       {"prompt_chunks", PROMISE, 0, 0, NULL}},
    [EVAL_BATCH] = {SIZES,
                    {"compositions", COUNT, 1, MAX_ROWS, NULL},
                    {"sessions", COUNT, 2, LOSSLESS_BATCH_SESSIONS, NULL},
                    {"seed", SEED, 0, 0, NULL},
                    {"policies", NAMES, 0, 0, policy_words}},
};

static bool seed_value(const cJSON *item, uint64_t *out) {
    const double exact = 9007199254740992.0; /* 2^53 */
    if (json_is_integer(item, 0, exact)) {
        *out = (uint64_t)item->valuedouble;
        return true;
    }
    if (!is_text(item) || strlen(item->valuestring) > 20 || !isdigit((unsigned char)item->valuestring[0])) return false;
    char *end;
    *out = strtoull(item->valuestring, &end, 10);
    return !*end && *out > (uint64_t)exact;
}

static bool has_item_form(const option_rule *rule, const cJSON *item) {
    switch (rule->form) {
    case COUNT:
    case COUNTS:
        return json_is_integer(item, rule->min, rule->max);
    case SHARES:
        return cJSON_IsNumber(item) && item->valuedouble >= rule->min && item->valuedouble <= rule->max;
    case NAME:
    case NAMES:
        return is_text(item) && is_listed(rule->names, item->valuestring);
    case TEXT:
    case TEXTS:
        return is_text(item);
    case FLAG:
        return cJSON_IsBool(item);
    case SEED:
        return seed_value(item, &(uint64_t){0});
    case PROMISE:
        return cJSON_IsArray(item);
    }
    return false;
}

static bool has_form(const option_rule *rule, const cJSON *item) {
    bool list = rule->form == COUNTS || rule->form == SHARES || rule->form == NAMES || rule->form == TEXTS;
    if (!list) return has_item_form(rule, item);
    if (!cJSON_IsArray(item) || (!item->child && rule->form != SHARES)) return false;
    for (const cJSON *value = item->child; value; value = value->next) {
        if (!has_item_form(rule, value)) return false;
        /* Long lists are samples, whose names are compared with the rows one by one. */
        for (const cJSON *earlier = item->child; earlier != value && rule->form != TEXTS; earlier = earlier->next)
            if (cJSON_Compare(earlier, value, true)) return false;
    }
    return true;
}

static void check_promises(gate_context *context) {
    const cJSON *prompts = member(context->options, "prompts"), *slow = member(context->options, "reference_prompts");
    cJSON *derived = cJSON_CreateObject();
    if (!derived ||
        !lossless_add_promises(derived, (int)prompts->valuedouble,
                               cJSON_IsTrue(member(context->environment, "drafter")), (int)slow->valuedouble)) {
        context->out_of_memory = true;
    } else {
        for (const cJSON *list = derived->child; list; list = list->next)
            if (!cJSON_Compare(list, member(context->options, list->string), true))
                gate_violate(context, "LOSSLESS_COVERAGE", "options.%s is not what eval lossless runs on %d prompts",
                             list->string, (int)prompts->valuedouble);
    }
    cJSON_Delete(derived);
}

static void check_options(gate_context *context) {
    static const char optional_options[] = "turns as_stored"; /* where they are not there: 1, false */
    const option_rule *rules = option_rules[context->kind];
    char list[400] = "";
    if (!cJSON_IsObject(context->options)) {
        gate_violate(context, "MISSING_OPTIONS", "no \"options\" object");
        return;
    }
    context->options_sound = true;
    for (int i = 0; i < MAX_OPTIONS && rules[i].key; i++) {
        const cJSON *item = member(context->options, rules[i].key);
        strcat(strcat(list, " "), rules[i].key);
        if (item ? has_form(&rules[i], item) : is_listed(optional_options, rules[i].key)) continue;
        context->options_sound = false;
        if (item) {
            gate_violate(context, "OPTIONS_FORM", "options.%s is not of the form that kakeya eval writes",
                         rules[i].key);
        } else {
            gate_violate(context, "MISSING_OPTIONS", "options.%s is missing", rules[i].key);
        }
    }
    gate_allow_keys(context, "options", context->options, list, "");
    if (context->options_sound && context->kind == EVAL_LOSSLESS) check_promises(context);
}

int gate_option(const gate_context *context, const char *key) {
    const cJSON *item = member(context->options, key);
    return json_is_integer(item, INT32_MIN, INT32_MAX) ? (int)item->valuedouble : 0;
}

uint64_t gate_option_seed(const gate_context *context) {
    uint64_t seed = 0;
    (void)seed_value(member(context->options, "seed"), &seed);
    return seed;
}

/* ------------------------------------------------------------------------------------------------------- command */

/* Whether the words of an option's value, separated by commas, are the option as it is recorded. */
static bool same_value(const char *text, const cJSON *option) {
    const cJSON *item = cJSON_IsArray(option) ? option->child : option;
    while (item) {
        size_t length = strcspn(text, ",");
        char word[64] = "", *end = word;
        if (length >= sizeof word) return true; /* nothing that is recorded has such values */
        memcpy(word, text, length);
        if (cJSON_IsNumber(item)) {
            double value = strtod(word, &end);
            if (end == word || *end || fabs(value - item->valuedouble) > 0) return false;
        } else if (!cJSON_IsString(item) || strcmp(word, item->valuestring) != 0) {
            return false;
        }
        item = item->next;
        if (!cJSON_IsArray(option)) return !text[length];
        if (!text[length]) return !item;
        text += length + 1;
    }
    return !*text;
}

/* What the command line says of an option is what is recorded as the option, where both have one name. */
static void check_command(gate_context *context) {
    /* Values that the evaluation may replace: 0 stands for a choice of its own, files are recorded by their names. */
    static const char resolved[] = "formats prompts draft_length prompt_length identity_restore mix_alpha jsonl window";
    const cJSON *command = member(context->report, "command"), *word, *kind;
    bool named = cJSON_IsArray(command) && cJSON_GetArraySize(command) > 2;
    cJSON_ArrayForEach(word, command) named &= cJSON_IsString(word);
    if (!named) {
        gate_violate(context, "MISSING_COMMAND", "the command line that made the report is not recorded");
        return;
    }
    kind = cJSON_GetArrayItem(command, 2);
    const char *name = strrchr(eval_kind_name(context->kind), '.') + 1;
    bool batch = false;
    cJSON_ArrayForEach(word, command) batch |= strcmp(word->valuestring, "--batch") == 0;
    if (context->kind == EVAL_BATCH) name = "lossless";
    if (batch != (context->kind == EVAL_BATCH))
        gate_violate(context, "COMMAND", "the command %s --batch, but the report is of kind %s",
                     batch ? "says" : "does not say", eval_kind_name(context->kind));
    if (strcmp(kind->valuestring, name) != 0)
        gate_violate(context, "COMMAND", "the command ran \"%.40s\", but the report is of kind %s", kind->valuestring,
                     name);
    for (word = kind->next; word; word = word->next) {
        if (strncmp(word->valuestring, "--", 2) != 0 || !word->valuestring[2]) continue;
        char key[64];
        size_t length = strcspn(word->valuestring + 2, "=");
        if (length >= sizeof key) continue;
        for (size_t i = 0; i < length; i++) key[i] = word->valuestring[i + 2] == '-' ? '_' : word->valuestring[i + 2];
        key[length] = '\0';
        if (strcmp(key, "draft_window") == 0 && context->kind == EVAL_NIAH) strcpy(key, "draft_windows");
        const cJSON *option = member(context->options, key);
        const char *value = word->valuestring[2 + length] ? word->valuestring + 3 + length
                            : word->next                  ? word->next->valuestring
                                                          : "";
        if (!option || cJSON_IsBool(option) || is_listed(resolved, key) || same_value(value, option)) continue;
        gate_violate(context, "COMMAND", "the command says --%.40s %.60s, but options.%s says otherwise", key, value,
                     key);
    }
}

/* -------------------------------------------------------------------------------------------------------- the whole */

void gate_check_form(gate_context *context) {
    gate_check_values(context);
    gate_allow_keys(context, "the report", context->report,
                    "kind schema_version complete command environment options rows summary", "");
    if (!cJSON_IsTrue(member(context->report, "complete")))
        gate_violate(context, "INCOMPLETE", "the evaluation did not come to its end (\"complete\" is not true)");
    gate_check_environment(context);
    check_options(context);
    check_command(context);
    const cJSON *row;
    size_t index = 0;
    cJSON_ArrayForEach(row, member(context->report, "rows")) check_row_keys(context, row, index++);
}
