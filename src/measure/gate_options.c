/* The options of every evaluation, described once: how a report records them, how its command line spells them, what
 * they may be, and which facts of the report they must agree with. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "measure/gate_private.h"
#include "measure/lossless_batch_plan.h"
#include "measure/lossless_plan.h"
#include "model/language_model.h"

static const cJSON *member(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static bool is_text(const cJSON *item) { return cJSON_IsString(item) && item->valuestring[0]; }

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
    BYTES,   /* a number and perhaps a unit */
    PROMISE, /* a list that follows from other options: gate_form compares it whole */
} option_form;

typedef struct option_rule option_rule;
/* Whether the value that the command line gives is what the report says elsewhere. Values are of the option's form. */
typedef bool (*agreement)(const gate_context *context, const option_rule *rule, const char *value);

struct option_rule {
    const char *key;     /* in "options"; NULL: not recorded there */
    const char *command; /* on the command line, without "--"; NULL: not there */
    unsigned kinds;
    option_form form;
    double min, max;
    const char *names;
    agreement agrees; /* NULL: nothing follows from the option */
};

/* -------------------------------------------------------------------------------------------------- what must agree */

static cJSON *option_of(const cJSON *options, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(options, key);
}

static const char *fact(const gate_context *context, const char *key) {
    const cJSON *item = member(context->environment, key);
    return cJSON_IsString(item) ? item->valuestring : "";
}

/* The last part of a path, without slashes at its end. */
static bool is_last_part(const char *path, const char *name) {
    size_t end = strlen(path), length = strlen(name);
    while (end && path[end - 1] == '/') end--;
    return end >= length && strncmp(path + end - length, name, length) == 0 &&
           (end == length || path[end - length - 1] == '/');
}

static bool same_item(const char *word, const cJSON *item) {
    char *end;
    if (!cJSON_IsNumber(item)) return cJSON_IsString(item) && strcmp(word, item->valuestring) == 0;
    double value = strtod(word, &end);
    return end != word && !*end && !(fabs(value - item->valuedouble) > 0);
}

/* Every word of a list with commas, in their order; false where `visit` is. */
static bool each_word(const char *text, bool (*visit)(void *user, size_t index, const char *word), void *user) {
    for (size_t index = 0;; index++) {
        char word[64];
        size_t length = strcspn(text, ",");
        if (length >= sizeof word) return false;
        memcpy(word, text, length);
        word[length] = '\0';
        if (!visit(user, index, word)) return false;
        text += length;
        if (!*text++) return true;
    }
}

static bool is_item_at(void *user, size_t index, const char *word) {
    return same_item(word, cJSON_GetArrayItem(user, (int)index));
}

static bool count_words(void *user, size_t index, const char *word) {
    (void)word;
    *(size_t *)user = index + 1;
    return true;
}

static bool is_any_item(void *user, size_t index, const char *word) {
    (void)index;
    const cJSON *item;
    cJSON_ArrayForEach(item, (cJSON *)user) {
        if (same_item(word, item)) return true;
    }
    return false;
}

static bool equal(const gate_context *context, const option_rule *rule, const char *value) {
    cJSON *option = option_of(context->options, rule->key);
    size_t n = 0;
    if (!cJSON_IsArray(option)) return !option || same_item(value, option);
    return each_word(value, count_words, &n) && n == (size_t)cJSON_GetArraySize(option) &&
           each_word(value, is_item_at, option);
}

/* 0 stands for a choice of the evaluation's own. */
static bool equal_or_own(const gate_context *context, const option_rule *rule, const char *value) {
    return strcmp(value, "0") == 0 || equal(context, rule, value);
}

/* As many as there are, but no more. 0: all. */
static bool at_most(const gate_context *context, const option_rule *rule, const char *value) {
    double most = strtod(value, NULL), found = gate_option(context, rule->key ? rule->key : "sequences");
    return most <= 0 || found <= most;
}

static bool is_named_first(void *user, size_t index, const char *word) {
    (void)index;
    return !same_item(word, ((cJSON *)user)->child);
}

/* All that are named, and the reference first, whether or not it is one of them. */
static bool lists_also(const gate_context *context, const option_rule *rule, const char *value) {
    cJSON *option = option_of(context->options, rule->key);
    size_t n = 0;
    if (!cJSON_IsArray(option) || !option->child) return true; /* refused already */
    if (!each_word(value, is_any_item, option) || !each_word(value, count_words, &n)) return false;
    bool added = each_word(value, is_named_first, option);
    return n + added == (size_t)cJSON_GetArraySize(option);
}

/* All that are named, and perhaps the one of --identity-restore. */
static bool are_shares(const gate_context *context, const option_rule *rule, const char *value) {
    cJSON *option = option_of(context->options, rule->key);
    size_t n = 0;
    int listed = cJSON_GetArraySize(option);
    return each_word(value, is_any_item, option) && each_word(value, count_words, &n) &&
           ((size_t)listed == n || ((size_t)listed == n + 1 && is_any_item(option, 0, "1")));
}

/* One turn is not recorded. */
static bool is_turns(const gate_context *context, const option_rule *rule, const char *value) {
    const cJSON *option = member(context->options, rule->key);
    return option ? same_item(value, option) : same_item(value, &(cJSON){.type = cJSON_Number, .valuedouble = 1});
}

static bool is_file(const gate_context *context, const option_rule *rule, const char *value) {
    const cJSON *option = member(context->options, rule->key);
    return !cJSON_IsString(option) || is_last_part(value, option->valuestring);
}

/* The report has as many as the command names: files are not here, so no more can be said. */
static bool are_images(const gate_context *context, const option_rule *rule, const char *value) {
    (void)value;
    const cJSON *word;
    int named = 0;
    cJSON_ArrayForEach(word, member(context->report, "command")) {
        const char *text = cJSON_IsString(word) ? word->valuestring : "";
        named += strcmp(text, "--image") == 0 || strncmp(text, "--image=", 8) == 0;
    }
    return named == cJSON_GetArraySize(member(context->options, rule->key));
}

static bool is_set(const gate_context *context, const option_rule *rule, const char *value) {
    (void)value;
    const cJSON *option =
        member(rule->key ? context->options : context->environment, rule->key ? rule->key : "drafter_scaled_embedding");
    return cJSON_IsTrue(option);
}

static bool own_restored(const gate_context *context, const option_rule *rule, const char *value) {
    (void)value;
    return is_any_item(option_of(context->options, rule->key), 0, "1");
}

static bool is_precision(const gate_context *context, const option_rule *rule, const char *value) {
    (void)rule;
    return strcmp(value, "auto") == 0 || strcmp(value, fact(context, "precision")) == 0;
}

static bool is_kv_format(const gate_context *context, const option_rule *rule, const char *value) {
    (void)rule;
    const cJSON *format = member(member(context->environment, "kv_geometry"), "kv_format");
    if (strcmp(value, "auto") == 0) value = strcmp(fact(context, "precision"), "f32") == 0 ? "f32" : "bf16";
    return cJSON_IsString(format) && strcmp(value, format->valuestring) == 0;
}

/* "cpu/avx512, 2 threads" */
static bool is_backend(const gate_context *context, const option_rule *rule, const char *value) {
    (void)rule;
    size_t length = strlen(value);
    const char *backend = fact(context, "backend");
    return strcmp(value, "auto") == 0 || (strncmp(backend, value, length) == 0 && strchr("/,", backend[length]));
}

/* Kernels of the CPU: another backend has none of them. */
static bool is_isa(const gate_context *context, const option_rule *rule, const char *value) {
    (void)rule;
    size_t length = strlen(value);
    const char *backend = fact(context, "backend");
    if (strncmp(backend, "cpu/", 4) != 0) return true;
    return strncmp(backend + 4, value, length) == 0 && (backend[4 + length] == ',' || !backend[4 + length]);
}

static bool is_threads(const gate_context *context, const option_rule *rule, const char *value) {
    (void)rule;
    return strcmp(value, "0") == 0 || same_item(value, member(context->environment, "threads"));
}

static bool is_model(const gate_context *context, const option_rule *rule, const char *value) {
    (void)rule;
    return is_last_part(value, fact(context, "model"));
}

/* "none" goes without; whatever else is named is there. */
static bool is_part(const gate_context *context, const option_rule *rule, const char *value) {
    const cJSON *there = member(context->environment, strcmp(rule->command, "drafter") == 0 ? "drafter" : "f_theta");
    return cJSON_IsTrue(there) == (strcmp(value, "none") != 0);
}

/* A shape that this program makes has the sizes that it makes. */
static bool is_synthetic(const gate_context *context, const option_rule *rule, const char *value) {
    (void)rule;
    model_config config;
    kv_geometry made;
    if (strcmp(value, fact(context, "model")) != 0) return false;
    if (!context->has_geometry) return true;
    if (model_config_variant(value, &config, NULL) != KAKEYA_OK) return false;
    kv_geometry_of(&config, NULL, NULL, context->geometry.format, &made);
    cJSON *own = kv_geometry_to_json(&made);
    const cJSON *stated = member(context->environment, "kv_geometry");
    bool same = !own || (cJSON_Compare(member(own, "layers"), member(stated, "layers"), true) &&
                         cJSON_Compare(member(own, "sliding_window"), member(stated, "sliding_window"), true));
    cJSON_Delete(own);
    return same;
}

static bool is_devices(const gate_context *context, const option_rule *rule, const char *value) {
    (void)rule;
    size_t n = 0;
    return !context->has_geometry || (each_word(value, count_words, &n) && n == (size_t)context->geometry.devices);
}

/* Sequences of texts have one length; those of ids have their own. */
static bool is_scored(const gate_context *context, const option_rule *rule, const char *value) {
    (void)rule;
    const cJSON *word, *row;
    cJSON_ArrayForEach(word, member(context->report, "command")) {
        bool ids = cJSON_IsString(word) && strncmp(word->valuestring, "--id", 4) == 0;
        if (ids && context->kind == EVAL_FIDELITY) return true;
    }
    cJSON_ArrayForEach(row, member(context->report, "rows")) {
        if (!same_item(value, member(row, "scored_tokens"))) return false;
    }
    return true;
}

/* What they gave is judged by its own rule. */
static bool has_logits(const gate_context *context, const option_rule *rule, const char *value) {
    (void)rule;
    const cJSON *file = member(member(context->report, "logits"), "file");
    return cJSON_IsString(file) && is_last_part(value, file->valuestring);
}

/* ---------------------------------------------------------------------------------------------------------- options */

static const char policy_words[] = "native sink-window restored restored-all";
static const char kv_format_words[] = "identity bf16 fp8 q8 affine8 affine4 q4 d4-10 d4-38 d4-152 e8-9 e8-38 e8-151";
static const char mode_words[] = "ar speculative ngram auto";

enum { MOST_SECONDS = 1 << 20 };
enum { MOST_TOKENS = 1 << 24, MOST_SIZE = 1 << 20, MAX_ROWS = 1 << 20, MOST_DRAFTS = BACKEND_MAX_DRAFT };

#define KIND(name) (1u << (EVAL_##name))
#define NIAH       KIND(NIAH)
#define FIDELITY   KIND(FIDELITY)
#define KV         KIND(KV_FORMAT)
#define CODE       KIND(CODE)
#define ACCEPTANCE KIND(ACCEPTANCE)
#define LOSSLESS   KIND(LOSSLESS)
#define BATCH      KIND(BATCH)
#define EITHER     (LOSSLESS | BATCH)
#define VERIFY     KIND(VERIFY)
#define ALL        (NIAH | FIDELITY | KV | CODE | ACCEPTANCE | EITHER | VERIFY)

/* Where an option is in a report of another kind, or as another form, it has a row of its own. */
static const option_rule rules[] = {
    /* sizes */
    {"sink", "sink", ALL & ~KV, COUNT, 0, MOST_SIZE, NULL, equal},
    {"window", "window", ALL & ~KV & ~FIDELITY, COUNT, 1, MOST_SIZE, NULL, equal},
    {"windows", "window", FIDELITY, COUNTS, 1, MOST_SIZE, NULL, NULL}, /* the later one counts */
    {"windows", "windows", FIDELITY, COUNTS, 1, MOST_SIZE, NULL, NULL},
    {"draft_window", "draft-window", ALL & ~KV & ~NIAH, COUNT, 1, MOST_TOKENS, NULL, equal},
    {"draft_windows", "draft-window", NIAH, COUNTS, 1, MOST_TOKENS, NULL, equal},
    {"sink", NULL, KV, COUNT, 0, MOST_SIZE, NULL, NULL},
    {"window", NULL, KV | FIDELITY, COUNT, 1, MOST_SIZE, NULL, NULL},
    {"draft_window", NULL, KV | NIAH, COUNT, 1, MOST_TOKENS, NULL, NULL},
    {"max_tokens", "max-tokens", ALL & ~FIDELITY, COUNT, 1, MOST_SIZE, NULL, equal},
    {"seed", "seed", NIAH | KV | EITHER | VERIFY, SEED, 0, 0, NULL, equal},
    {"policies", "policies", NIAH | CODE | BATCH | VERIFY, NAMES, 0, 0, policy_words, equal},
    {"policies", "policies", FIDELITY, NAMES, 0, 0, policy_words, lists_also},
    {"policies", NULL, LOSSLESS, NAMES, 0, 0, policy_words, NULL},
    /* prompts */
    {"lines", "lines", NIAH, COUNTS, 10, 100000, NULL, equal},
    {"lines", "lines", KV, COUNT, 10, 100000, NULL, equal},
    {"samples", "samples", NIAH, COUNT, 1, 10000, NULL, equal},
    {"facts", "facts", NIAH, FLAG, 0, 0, NULL, is_set},
    {"pictures", "images", NIAH, FLAG, 0, 0, NULL, is_set},
    {"samples", NULL, FIDELITY | KV | ACCEPTANCE, TEXTS, 0, 0, NULL, NULL},
    {"prompt_length", "prompt-length", FIDELITY, COUNT, 0, MOST_TOKENS, NULL, equal_or_own},
    {"prompt_length", "prompt-length", KV, COUNT, 1, MOST_TOKENS, NULL, equal},
    {NULL, "score-tokens", FIDELITY | KV, COUNT, 1, MOST_TOKENS, NULL, is_scored},
    {"sequences", NULL, FIDELITY, COUNT, 1, MAX_ROWS, NULL, NULL},
    {NULL, "max-sequences", FIDELITY, COUNT, 0, MOST_TOKENS, NULL, at_most},
    {"sequences", "sequences", KV, COUNT, 1, 10000, NULL, equal},
    {"turns", "turns", FIDELITY, COUNT, 1, 1 << 16, NULL, is_turns},
    {NULL, "text", FIDELITY, TEXT, 0, 0, NULL, NULL},
    {NULL, "ids-json", FIDELITY, TEXT, 0, 0, NULL, NULL},
    {"files", NULL, CODE, TEXTS, 0, 0, NULL, NULL},
    {"prompt_tokens", "prompt-tokens", CODE, COUNT, 16, MOST_TOKENS, NULL, equal},
    {"repetitions", "repetitions", CODE, COUNT, 1, 1000, NULL, equal},
    {"jsonl", "jsonl", ACCEPTANCE, TEXT, 0, 0, NULL, is_file},
    {"prompts", "prompts", ACCEPTANCE, COUNT, 0, MOST_TOKENS, NULL, at_most},
    {"chat", "chat", ACCEPTANCE, FLAG, 0, 0, NULL, is_set},
    {"prompts", "prompts", LOSSLESS, COUNT, 1, MAX_ROWS, NULL, equal},
    {"reference_prompts", "reference-prompts", LOSSLESS, COUNT, 0, MAX_ROWS, NULL, equal},
    {"compositions", "compositions", BATCH, COUNT, 1, MAX_ROWS, NULL, equal},
    {"sessions", "sessions", BATCH, COUNT, 2, LOSSLESS_BATCH_SESSIONS, NULL, equal},
    {NULL, "prompts", BATCH, COUNT, 1, MAX_ROWS, NULL, NULL},
    {NULL, "reference-prompts", BATCH, COUNT, 0, MAX_ROWS, NULL, NULL},
    {NULL, "compositions", LOSSLESS, COUNT, 1, MAX_ROWS, NULL, NULL},
    {NULL, "sessions", LOSSLESS, COUNT, 2, LOSSLESS_BATCH_SESSIONS, NULL, NULL},
    {NULL, "policies", LOSSLESS, NAMES, 0, 0, policy_words, NULL},
    {NULL, "batch", EITHER, FLAG, 0, 0, NULL, NULL}, /* gate_check_command */
    {"images", "image", EITHER, TEXTS, 0, 0, NULL, are_images},
    {NULL, "image-budget", EITHER, COUNT, 0, 1120, NULL, NULL},
    {"modes", NULL, LOSSLESS, PROMISE, 0, 0, NULL, NULL},
    {"prompt_kinds", NULL, LOSSLESS, PROMISE, 0, 0, NULL, NULL},
    {"temperatures", NULL, LOSSLESS, PROMISE, 0, 0, NULL, NULL},
    {"threads", NULL, LOSSLESS, PROMISE, 0, 0, NULL, NULL},
    {"prompt_chunks", NULL, LOSSLESS, PROMISE, 0, 0, NULL, NULL},
    /* arms */
    {"mode", "mode", NIAH, NAME, 0, 0, mode_words, equal},
    {"draft_length", "draft-length", NIAH, COUNT, 0, MOST_DRAFTS, NULL, equal},
    {"draft_length", "draft-length", ACCEPTANCE, COUNT, 0, MOST_DRAFTS, NULL, equal_or_own},
    {"sources", NULL, CODE | ACCEPTANCE, NAMES, 0, 0, "dflash assistant ngram", NULL},
    {"categories", NULL, ACCEPTANCE, TEXTS, 0, 0, NULL, NULL},
    {"draft_lengths", "draft-lengths", CODE, COUNTS, 1, MOST_DRAFTS, NULL, equal},
    {"mix_alpha", "mix-alpha", NIAH, SHARES, 0, 1, NULL, are_shares},
    {"mix_alpha", "identity-restore", NIAH, FLAG, 0, 0, NULL, own_restored},
    {"formats", "formats", KV, NAMES, 0, 0, kv_format_words, lists_also},
    {"as_stored", "as-stored", KV, FLAG, 0, 0, NULL, is_set},
    /* verify */
    {"kv_formats", "kv-formats", VERIFY, NAMES, 0, 0, "f32 bf16 q8 q4", equal},
    {"seconds", "seconds", VERIFY, COUNT, 1, MOST_SECONDS, NULL, equal},
    {"rounds", "rounds", VERIFY, COUNT, 1, MAX_ROWS, NULL, at_most},
    {"rounds_elsewhere", NULL, VERIFY, COUNT, 1, MAX_ROWS, NULL, NULL},
    {"threads_elsewhere", NULL, VERIFY, COUNT, 1, 1024, NULL, NULL},
    {NULL, "logits", VERIFY, TEXT, 0, 0, NULL, has_logits},
    {NULL, "sign", VERIFY, TEXT, 0, 0, NULL, NULL},
    /* model and machine */
    {NULL, "model", ALL, TEXT, 0, 0, NULL, is_model},
    {NULL, "synthetic", ALL, TEXT, 0, 0, NULL, is_synthetic},
    {NULL, "drafter", ALL, TEXT, 0, 0, NULL, is_part},
    {NULL, "f-theta", ALL, TEXT, 0, 0, NULL, is_part},
    {NULL, "mmproj", ALL, TEXT, 0, 0, NULL, NULL},
    {NULL, "vision", ALL, NAME, 0, 0, "auto on off", NULL},
    {NULL, "drafter-scaled-embedding", ALL, FLAG, 0, 0, NULL, is_set},
    {NULL, "drafter-block-bidirectional", ALL, FLAG, 0, 0, NULL, NULL},
    {NULL, "backend", ALL, NAME, 0, 0, "auto cpu cuda mlx", is_backend},
    {NULL, "isa", ALL, NAME, 0, 0, "scalar avx2 avx512 avx512bf16 neon neon-dotprod neon-i8mm", is_isa},
    {NULL, "devices", ALL, TEXT, 0, 0, NULL, is_devices},
    {NULL, "precision", ALL, NAME, 0, 0, "auto f32 bf16 int8 fp8", is_precision},
    {NULL, "kv-format", ALL & ~KV & ~VERIFY, NAME, 0, 0, "auto f32 bf16 q8 q4", is_kv_format},
    {NULL, "threads", ALL & ~EITHER, COUNT, 0, 1024, NULL, is_threads},
    {NULL, "memory-limit", ALL, BYTES, 0, 0, NULL, NULL},
    {NULL, "weights-limit", ALL, TEXT, 0, 0, NULL, NULL},
    /* output */
    {NULL, "report", ALL, TEXT, 0, 0, NULL, NULL},
    {NULL, "plot", NIAH, TEXT, 0, 0, NULL, NULL},
    {NULL, "json", ALL, FLAG, 0, 0, NULL, NULL},
    {NULL, "help", ALL, FLAG, 0, 0, NULL, NULL},
};
enum { RULES = sizeof rules / sizeof rules[0] };

static bool concerns(const gate_context *context, const option_rule *rule) {
    return (rule->kinds & (1u << context->kind)) != 0;
}

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
        return is_text(item) && gate_is_listed(rule->names, item->valuestring);
    case BYTES:
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

void gate_check_options(gate_context *context) {
    static const char optional_options[] =
        "turns as_stored facts pictures sources categories images"; /* where they are not there: 1, false, ... */
    char list[400] = "";
    if (!cJSON_IsObject(context->options)) {
        gate_violate(context, "MISSING_OPTIONS", "no \"options\" object");
        return;
    }
    context->options_sound = true;
    for (int i = 0; i < RULES; i++) {
        const option_rule *rule = &rules[i];
        if (!rule->key || !concerns(context, rule) || gate_is_listed(list, rule->key)) continue;
        const cJSON *item = member(context->options, rule->key);
        strcat(strcat(list, " "), rule->key);
        if (item ? has_form(rule, item) : gate_is_listed(optional_options, rule->key)) continue;
        context->options_sound = false;
        if (item) {
            gate_violate(context, "OPTIONS_FORM", "options.%s is not of the form that kakeya eval writes", rule->key);
        } else {
            gate_violate(context, "MISSING_OPTIONS", "options.%s is missing", rule->key);
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

/* ---------------------------------------------------------------------------------------------------------- command */

enum { MOST_WORDS = 512 }; /* as many are recorded */

/* What a command line says of an option: the last time counts. */
typedef struct said_option {
    bool named;
    const char *value; /* NULL of flags */
} said_option;

/* An option by its name or, as earlier versions took it, by a beginning of it that no other one has. RULES: none; -1:
 * more than one. */
static int find_option(const gate_context *context, const char *word, size_t length) {
    int found = RULES;
    for (int i = 0; i < RULES; i++) {
        const char *name = rules[i].command;
        if (!name || !concerns(context, &rules[i]) || strncmp(name, word, length) != 0) continue;
        if (!name[length]) return i;
        found = found == RULES ? i : -1;
    }
    return found;
}

static bool is_count(const option_rule *rule, const char *word) {
    size_t digits = strspn(word, "0123456789");
    if (!digits || digits > 20 || word[digits]) return false;
    double value = strtod(word, NULL);
    return rule->form == SEED || (value >= rule->min && value <= rule->max);
}

static bool is_word(void *user, size_t index, const char *word) {
    const option_rule *rule = user;
    char *end;
    (void)index;
    if (rule->form == COUNTS || rule->form == COUNT || rule->form == SEED) return is_count(rule, word);
    if (rule->form != SHARES) return gate_is_listed(rule->names, word);
    double value = strtod(word, &end);
    return end != word && !*end && value >= rule->min && value <= rule->max;
}

static bool is_value(const option_rule *rule, const char *value) {
    switch (rule->form) {
    case COUNT:
    case SEED:
    case NAME:
        return is_word((void *)rule, 0, value);
    case COUNTS:
    case SHARES:
    case NAMES:
        return each_word(value, is_word, (void *)rule);
    case BYTES: {
        size_t digits = strspn(value, "0123456789");
        return digits > 0 && (!value[digits] || (strchr("KMGT", value[digits]) && !value[digits + 1]));
    }
    default:
        return true;
    }
}

/* Reads the words behind the evaluation's name as getopt_long does; operands go to `operand`, [n]. */
static void read_command(gate_context *context, const cJSON *word, said_option out[RULES], const cJSON **operand,
                         size_t *n) {
    bool options = true;
    for (*n = 0; word; word = word->next) {
        const char *text = word->valuestring;
        if (!options || text[0] != '-' || !text[1]) {
            operand[(*n)++] = word;
            continue;
        }
        options = strcmp(text, "--") != 0;
        if (!options) continue;
        size_t length = strcspn(text + 2, "=");
        int i = text[1] == '-' ? find_option(context, text + 2, length) : RULES;
        if (i < 0) continue; /* no such command runs: what else it says is judged by what it did */
        if (i == RULES) {
            gate_violate(context, "COMMAND", "the command says %.60s, which is no option of this evaluation", text);
            continue;
        }
        out[i] = (said_option){.named = true};
        if (rules[i].form == FLAG) continue;
        if (text[2 + length] == '=')
            out[i].value = text + 3 + length;
        else if (word->next)
            out[i].value = (word = word->next)->valuestring;
        else
            out[i].value = "";
    }
}

static void check_said(gate_context *context, const option_rule *rule, const char *value) {
    if (value && !is_value(rule, value)) {
        gate_violate(context, "COMMAND", "the command says --%s %.60s, which the option does not take", rule->command,
                     value);
    } else if (rule->agrees && !rule->agrees(context, rule, value ? value : "")) {
        if (rule->key)
            gate_violate(context, "COMMAND", "the command says --%s %.60s, but options.%s says otherwise",
                         rule->command, value ? value : "", rule->key);
        else
            gate_violate(context, "COMMAND", "the command says --%s %.60s, but the report says otherwise",
                         rule->command, value ? value : "");
    }
}

/* "3/name": the sample's number, and the beginning of a file's name. */
static bool is_sample_of(const char *sample, size_t index, const char *path, size_t bytes) {
    char name[96], stem[64];
    const char *slash = strrchr(path, '/');
    snprintf(stem, sizeof stem, "%.*s", (int)bytes, slash ? slash + 1 : path);
    snprintf(name, sizeof name, "%zu/%s", index, stem);
    return strcmp(sample, name) == 0;
}

/* Samples are numbered without gaps, and files that the command names are the files of the report. */
static void check_samples(gate_context *context, const cJSON *const *operand, size_t n) {
    const cJSON *sample, *list = member(context->options, context->kind == EVAL_CODE ? "files" : "samples");
    size_t index = 0;
    if (context->kind != EVAL_CODE && context->kind != EVAL_FIDELITY && context->kind != EVAL_KV_FORMAT) return;
    cJSON_ArrayForEach(sample, list) {
        char number[24];
        int length = snprintf(number, sizeof number, "%zu/", index++);
        if (!cJSON_IsString(sample) || strncmp(sample->valuestring, number, (size_t)length) == 0) continue;
        gate_violate(context, "SAMPLE_GAP", "sample %zu is called %.60s: samples are numbered from 0, one by one",
                     index - 1, sample->valuestring);
        return;
    }
    if (context->kind != EVAL_CODE || !n) return;
    if (cJSON_GetArraySize(member(context->report, "command")) >= MOST_WORDS) return;
    bool same = n == index;
    index = 0;
    cJSON_ArrayForEach(sample, list) {
        same =
            same && cJSON_IsString(sample) && is_sample_of(sample->valuestring, index, operand[index]->valuestring, 40);
        index++;
    }
    if (!same) gate_violate(context, "COMMAND", "the command names %zu files, which are not those of options.files", n);
}

/* A text of fidelity gives one sequence or more, until there are as many as were asked for. */
static void check_texts(gate_context *context, const said_option said[RULES], const cJSON *const *operand, size_t n) {
    int most = find_option(context, "max-sequences", strlen("max-sequences"));
    const cJSON *samples = member(context->options, "samples"), *sample;
    int limit = said[most].named ? atoi(said[most].value) : 0;
    if (limit > 0 && cJSON_GetArraySize(samples) >= limit) return;
    for (size_t i = 0; i < n; i++) {
        bool found = false;
        size_t index = 0;
        cJSON_ArrayForEach(sample, samples) found |=
            cJSON_IsString(sample) && is_sample_of(sample->valuestring, index++, operand[i]->valuestring, 48);
        if (!found)
            gate_violate(context, "COMMAND", "the command names %.60s, of which there is no sequence",
                         operand[i]->valuestring);
    }
}

/* A first operand that is a GGUF file is the model where none is named; the one of acceptance has the prompts. */
static void check_operands(gate_context *context, const said_option said[RULES], const cJSON *const **operand,
                           size_t *n) {
    int model = find_option(context, "model", strlen("model")), jsonl = find_option(context, "jsonl", strlen("jsonl"));
    const char *first = *n ? (*operand)[0]->valuestring : "", *ending = strrchr(first, '.');
    if (!said[model].named && ending && strcmp(ending, ".gguf") == 0) {
        check_said(context, &rules[model], first);
        ++*operand;
        --*n;
    }
    if (*n && context->kind == EVAL_ACCEPTANCE && !said[jsonl].named)
        check_said(context, &rules[jsonl], (*operand)[0]->valuestring);
}

void gate_check_command(gate_context *context) {
    const cJSON *command = member(context->report, "command"), *word, *kind;
    const int at = context->kind == EVAL_VERIFY ? 1 : 2; /* "kakeya verify", "kakeya eval NAME" */
    bool named = cJSON_IsArray(command) && cJSON_GetArraySize(command) > at;
    cJSON_ArrayForEach(word, command) named &= cJSON_IsString(word);
    if (!named) {
        gate_violate(context, "MISSING_COMMAND", "the command line that made the report is not recorded");
        return;
    }
    said_option said[RULES] = {{0}};
    const cJSON **operand = calloc((size_t)cJSON_GetArraySize(command), sizeof *operand);
    size_t n;
    if (!operand) {
        context->out_of_memory = true;
        return;
    }
    kind = cJSON_GetArrayItem(command, at);
    read_command(context, kind->next, said, operand, &n);
    const char *name = context->kind == EVAL_BATCH ? "lossless" : strrchr(eval_kind_name(context->kind), '.') + 1;
    if (strcmp(kind->valuestring, name) != 0)
        gate_violate(context, "COMMAND", "the command ran \"%.40s\", but the report is of kind %s", kind->valuestring,
                     name);
    int batch = find_option(context, "batch", strlen("batch"));
    if (batch < RULES && said[batch].named != (context->kind == EVAL_BATCH))
        gate_violate(context, "COMMAND", "the command %s --batch, but the report is of kind %s",
                     said[batch].named ? "says" : "does not say", eval_kind_name(context->kind));
    for (int i = 0; i < RULES; i++)
        if (said[i].named) check_said(context, &rules[i], said[i].value);
    const cJSON *const *files = operand;
    check_operands(context, said, &files, &n);
    check_samples(context, files, n);
    if (context->kind == EVAL_FIDELITY) check_texts(context, said, files, n);
    free(operand);
}
