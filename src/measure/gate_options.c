/* The options of every evaluation as a report records them: what they may be. That its command gives them, a replay
 * says. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "measure/gate_private.h"
#include "measure/lossless_batch_plan.h"
#include "measure/lossless_plan.h"
#include "measure/plan.h"

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
    PROMISE, /* a list that follows from other options: gate_form compares it whole */
} option_form;

typedef struct option_rule {
    const char *key;
    unsigned kinds;
    option_form form;
    double min, max;
    const char *names;
} option_rule;

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
    {"sink", ALL, COUNT, 0, MOST_SIZE, NULL},
    {"window", ALL, COUNT, 1, MOST_SIZE, NULL},
    {"windows", FIDELITY, COUNTS, 1, MOST_SIZE, NULL},
    {"draft_window", ALL, COUNT, 1, MOST_TOKENS, NULL},
    {"draft_windows", NIAH, COUNTS, 1, MOST_TOKENS, NULL},
    {"max_tokens", ALL & ~FIDELITY, COUNT, 1, MOST_SIZE, NULL},
    {"seed", NIAH | KV | EITHER | VERIFY, SEED, 0, 0, NULL},
    {"policies", ALL & ~KV & ~ACCEPTANCE, NAMES, 0, 0, policy_words},
    /* prompts */
    {"lines", NIAH, COUNTS, 10, 100000, NULL},
    {"lines", KV, COUNT, 10, 100000, NULL},
    {"samples", NIAH, COUNT, 1, 10000, NULL},
    {"facts", NIAH, FLAG, 0, 0, NULL},
    {"pictures", NIAH, FLAG, 0, 0, NULL},
    {"samples", FIDELITY | KV | ACCEPTANCE, TEXTS, 0, 0, NULL},
    {"prompt_length", FIDELITY, COUNT, 0, MOST_TOKENS, NULL},
    {"prompt_length", KV, COUNT, 1, MOST_TOKENS, NULL},
    {"sequences", FIDELITY, COUNT, 1, MAX_ROWS, NULL},
    {"sequences", KV, COUNT, 1, 10000, NULL},
    {"turns", FIDELITY, COUNT, 1, 1 << 16, NULL},
    {"files", CODE, TEXTS, 0, 0, NULL},
    {"prompt_tokens", CODE, COUNT, 16, MOST_TOKENS, NULL},
    {"repetitions", CODE, COUNT, 1, 1000, NULL},
    {"jsonl", ACCEPTANCE, TEXT, 0, 0, NULL},
    {"prompts", ACCEPTANCE, COUNT, 0, MOST_TOKENS, NULL},
    {"chat", ACCEPTANCE, FLAG, 0, 0, NULL},
    {"prompts", LOSSLESS, COUNT, 1, MAX_ROWS, NULL},
    {"reference_prompts", LOSSLESS, COUNT, 0, MAX_ROWS, NULL},
    {"compositions", BATCH, COUNT, 1, MAX_ROWS, NULL},
    {"sessions", BATCH, COUNT, 2, LOSSLESS_BATCH_SESSIONS, NULL},
    {"images", EITHER, TEXTS, 0, 0, NULL},
    {"modes", LOSSLESS, PROMISE, 0, 0, NULL},
    {"prompt_kinds", LOSSLESS, PROMISE, 0, 0, NULL},
    {"temperatures", LOSSLESS, PROMISE, 0, 0, NULL},
    {"threads", LOSSLESS, PROMISE, 0, 0, NULL},
    {"prompt_chunks", LOSSLESS, PROMISE, 0, 0, NULL},
    /* arms */
    {"mode", NIAH, NAME, 0, 0, mode_words},
    {"draft_length", NIAH | ACCEPTANCE, COUNT, 0, MOST_DRAFTS, NULL},
    {"sources", CODE | ACCEPTANCE, NAMES, 0, 0, "dflash assistant ngram"},
    {"categories", ACCEPTANCE, TEXTS, 0, 0, NULL},
    {"draft_lengths", CODE, COUNTS, 1, MOST_DRAFTS, NULL},
    {"mix_alpha", NIAH, SHARES, 0, 1, NULL},
    {"formats", KV, NAMES, 0, 0, kv_format_words},
    {"as_stored", KV, FLAG, 0, 0, NULL},
    /* verify */
    {"kv_formats", VERIFY, NAMES, 0, 0, "f32 bf16 q8 q4"},
    {"seconds", VERIFY, COUNT, 1, MOST_SECONDS, NULL},
    {"rounds", VERIFY, COUNT, 1, MAX_ROWS, NULL},
    {"rounds_elsewhere", VERIFY, COUNT, 1, MAX_ROWS, NULL},
    {"threads_elsewhere", VERIFY, COUNT, 1, 1024, NULL},
};
enum { RULES = sizeof rules / sizeof rules[0] };

static bool concerns(const gate_context *context, const option_rule *rule) {
    return (rule->kinds & (1u << context->kind)) != 0;
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
    case TEXT:
    case TEXTS:
        return is_text(item);
    case FLAG:
        return cJSON_IsBool(item);
    case SEED:
        return eval_seed_read(item, &(uint64_t){0});
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
        if (!concerns(context, rule) || gate_is_listed(list, rule->key)) continue;
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

/* ---------------------------------------------------------------------------------------------------------- command */

/* Which evaluation the command names. Whether it gives this report, a replay says. */
void gate_check_command(gate_context *context) {
    const cJSON *command = member(context->report, "command"), *word;
    const int at = context->kind == EVAL_VERIFY ? 1 : 2; /* "kakeya verify", "kakeya eval NAME" */
    const char *name = context->kind == EVAL_BATCH ? "lossless" : strrchr(eval_kind_name(context->kind), '.') + 1;
    bool named = cJSON_IsArray(command) && cJSON_GetArraySize(command) > at, batch = false;
    cJSON_ArrayForEach(word, command) {
        named &= cJSON_IsString(word);
        batch |= named && strncmp(word->valuestring, "--bat", 5) == 0; /* earlier versions took a beginning of it */
    }
    if (!named) {
        gate_violate(context, "MISSING_COMMAND", "the command line that made the report is not recorded");
        return;
    }
    word = cJSON_GetArrayItem(command, at);
    if (strcmp(word->valuestring, name) != 0 || batch != (context->kind == EVAL_BATCH))
        gate_violate(context, "COMMAND", "the command ran \"%.40s\"%s, but the report is of kind %s", word->valuestring,
                     batch ? " --batch" : "", eval_kind_name(context->kind));
}
