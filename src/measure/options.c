#include "measure/options.h"

#include <ctype.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "measure/lossless_batch_plan.h"

static const char policies[] = "native sink-window restored restored-all";
static const char formats[] = "identity bf16 fp8 q8 affine8 affine4 q4 d4-10 d4-38 d4-152 e8-9 e8-38 e8-151";
static const char modes[] = "auto ar speculative ngram"; /* by kakeya_mode */
static const char tokens_help[] = "maximum number of tokens generated per run";
static const char drafts_help[] = "drafts per block; 0: the drafter's block size - 1, in auto up to 16";

enum { MOST_SECONDS = 1 << 20, MOST_TOKENS = 1 << 24, MOST_SIZE = 1 << 20, MAX_ROWS = 1 << 20 };
enum { MOST_DRAFTS = BACKEND_MAX_DRAFT };

#define KIND(name) (1u << (EVAL_##name))
#define NIAH       KIND(NIAH)
#define FIDELITY   KIND(FIDELITY)
#define KV         KIND(KV_FORMAT)
#define CODE       KIND(CODE)
#define ACCEPTANCE KIND(ACCEPTANCE)
#define LOSSLESS   KIND(LOSSLESS)
#define BATCH      KIND(BATCH)
#define VERIFY     KIND(VERIFY)
#define ALL        ((1u << EVAL_KIND_COUNT) - 1)

/* Columns of the command line: where the value goes, what stands for it in the help, what it is by itself. */
#define TO(member, argument, fallback, help) false, offsetof(eval_options, member), 0, argument, fallback, help
#define LIST(member, n, argument, fallback, help)                                                                      \
    false, offsetof(eval_options, member), offsetof(eval_options, n), argument, fallback, help
#define SWITCH(member, help) true, offsetof(eval_options, member), 0, NULL, NULL, help
#define POLICIES(kinds, by_itself)                                                                                     \
    {                                                                                                                  \
        "policies", "policies", kinds, EVAL_NAMES, 0, 0, policies,                                                     \
            LIST(policies.names, policies.n, "LIST", NULL,                                                             \
                 "native, sink-window, restored, restored-all, separated by commas (" by_itself ")")                   \
    }
#define ADDED       false, EVAL_NOWHERE, 0, NULL, NULL, NULL
#define MAYBE_ADDED true, EVAL_NOWHERE, 0, NULL, NULL, NULL

/* clang-format off: an option is a row */
static const eval_option options[] = {
    /* prompts */
    {"lines", "lines", NIAH, EVAL_COUNTS, 10, 100000, NULL,
     LIST(lines, n_lines, "LIST", "12,40,60,150,280", "numbers of haystack lines")},
    {"samples", "samples", NIAH, EVAL_COUNT, 1, 10000, NULL, TO(samples, "N", "5", "prompts per number of lines")},
    {"facts", "facts", NIAH, EVAL_FLAG, 0, 0, NULL,
     SWITCH(facts, "ask for one of a list of facts, as text to continue: for base models")},
    {"pictures", "images", NIAH, EVAL_FLAG, 0, 0, NULL,
     SWITCH(pictures, "show each code in a picture between the lines, instead of writing it")},
    {"formats", "formats", KV, EVAL_NAMES, 0, 0, formats,
     LIST(formats, n_formats, "LIST", NULL, "formats, separated by commas (all); identity is always included")},
    {NULL, "ids-json", FIDELITY, EVAL_TEXT, 0, 0, NULL, TO(ids_json, "FILE", NULL, "file with sequences of token ids")},
    {"prompt_length", "prompt-length", FIDELITY, EVAL_COUNT, 0, MOST_TOKENS, NULL,
     TO(prompt_length, "N", NULL, "prompt tokens before the scored ones (from the ids file, else 600)")},
    {"prompt_length", "prompt-length", KV, EVAL_COUNT, 1, MOST_TOKENS, NULL,
     TO(prompt_length, "N", "256", "prompt tokens before the scored ones")},
    {NULL, "score-tokens", FIDELITY | KV, EVAL_COUNT, 1, MOST_TOKENS, NULL,
     TO(score_tokens, "N", "64", "scored tokens per sequence")},
    {NULL, "max-sequences", FIDELITY, EVAL_COUNT, 0, MOST_TOKENS, NULL,
     TO(max_sequences, "N", NULL, "take only the first N sequences (0: all)")},
    {"turns", "turns", FIDELITY, EVAL_COUNT, 1, 1 << 16, NULL, true, offsetof(eval_options, turns), 0, "N", "1",
     "score the answer of the N-th turn"},
    {"sequences", NULL, FIDELITY, EVAL_COUNT, 1, MAX_ROWS, NULL, TO(sequences, NULL, NULL, NULL)},
    {"sequences", "sequences", KV, EVAL_COUNT, 1, 10000, NULL,
     TO(sequences, "N", "5", "number of sequences, each with a needle prompt")},
    {"lines", "lines", KV, EVAL_COUNT, 10, 100000, NULL,
     TO(haystack_lines, "N", "40", "number of haystack lines of the needle prompts")},
    {"samples", NULL, FIDELITY | KV | ACCEPTANCE, EVAL_TEXTS, 0, 0, NULL, ADDED},
    {"files", NULL, CODE, EVAL_TEXTS, 0, 0, NULL, ADDED},
    {"draft_lengths", "draft-lengths", CODE, EVAL_COUNTS, 1, MOST_DRAFTS, NULL,
     LIST(draft_lengths, n_draft_lengths, "LIST", "2,4,8,16", "tokens drafted per block, one arm each")},
    {"repetitions", "repetitions", CODE, EVAL_COUNT, 1, 1000, NULL,
     TO(repetitions, "N", "5", "runs of every arm on every file")},
    {"prompt_tokens", "prompt-tokens", CODE, EVAL_COUNT, 16, MOST_TOKENS, NULL,
     TO(prompt_tokens, "N", "512", "prompt tokens, from the start of each file")},
    {"jsonl", "jsonl", ACCEPTANCE, EVAL_TEXT, 0, 0, NULL, TO(jsonl, "FILE", NULL, "prompts, one JSON object per line")},
    {"prompts", "prompts", ACCEPTANCE, EVAL_COUNT, 0, MOST_TOKENS, NULL,
     TO(prompts, "N", NULL, "take only the first N prompts (0: all)")},
    {"prompts", "prompts", LOSSLESS, EVAL_COUNT, 1, MAX_ROWS, NULL,
     TO(prompts, "N", "200", "number of prompts, each of which runs in every mode")},
    /* arms */
    POLICIES(NIAH | FIDELITY, "native,sink-window,restored"),
    {"mode", "mode", NIAH, EVAL_NAME, 0, 0, modes,
     TO(mode, "MODE", "auto", "mode to compare with ar: auto, ar, speculative or ngram")},
    {"draft_length", "draft-length", NIAH | ACCEPTANCE, EVAL_COUNT, 0, MOST_DRAFTS, NULL,
     TO(draft_length, "N", "0", drafts_help)},
    {"draft_windows", "draft-window", NIAH, EVAL_COUNTS, 1, MOST_TOKENS, NULL,
     LIST(draft_windows, n_draft_windows, "LIST", "1024", "numbers of positions that the drafter keeps, one arm each")},
    {"windows", "windows", FIDELITY, EVAL_COUNTS, 1, MOST_SIZE, NULL,
     LIST(windows, n_windows, "LIST", "64", "numbers of last positions that stay exact, one arm each")},
    {"windows", "window", FIDELITY, EVAL_COUNTS, 1, MOST_SIZE, NULL,
     LIST(windows, n_windows, "N", NULL, "the same with a single value")},
    {"seed", "seed", NIAH | KV | LOSSLESS | BATCH | VERIFY, EVAL_SEED, 0, 0, NULL,
     TO(seed, "N", "42", "random seed for prompts and sampling")},
    {"max_tokens", "max-tokens", NIAH, EVAL_COUNT, 1, MOST_SIZE, NULL, TO(max_tokens, "N", "48", tokens_help)},
    {"max_tokens", "max-tokens", CODE | ACCEPTANCE, EVAL_COUNT, 1, MOST_SIZE, NULL,
     TO(max_tokens, "N", "96", tokens_help)},
    {"max_tokens", "max-tokens", LOSSLESS | BATCH | VERIFY, EVAL_COUNT, 1, MOST_SIZE, NULL,
     TO(max_tokens, "N", "32", tokens_help)},
    {"max_tokens", "max-tokens", KV, EVAL_COUNT, 1, MOST_SIZE, NULL, TO(max_tokens, "N", "24", tokens_help)},
    POLICIES(CODE, "native"),
    {"policies", NULL, LOSSLESS | VERIFY, EVAL_NAMES, 0, 0, policies,
     LIST(policies.names, policies.n, NULL, NULL, NULL)},
    {NULL, "identity-restore", NIAH, EVAL_FLAG, 0, 0, NULL,
     SWITCH(identity_restore, "diagnostic: restore the exact K/V at evicted positions; must equal native")},
    {"mix_alpha", "mix-alpha", NIAH, EVAL_SHARES, 0, 1, NULL,
     LIST(mix_alpha, n_mix_alpha, "LIST", NULL,
          "diagnostic: shares of exact K/V at evicted positions, e.g. 0,0.25,0.5,0.75,1")},
    {"chat", "chat", ACCEPTANCE, EVAL_FLAG, 0, 0, NULL, false, offsetof(eval_options, chat), 0, NULL, NULL,
     "use prompts as user messages instead of as texts to continue"},
    {"as_stored", "as-stored", KV, EVAL_FLAG, 0, 0, NULL,
     SWITCH(as_stored, "keep K/V in the format itself, in the backend's own cache")},
    {"sources", NULL, CODE | ACCEPTANCE, EVAL_NAMES, 0, 0, "dflash assistant ngram", MAYBE_ADDED},
    {"categories", NULL, ACCEPTANCE, EVAL_TEXTS, 0, 0, NULL, MAYBE_ADDED},
    /* streams that must be equal */
    {"reference_prompts", "reference-prompts", LOSSLESS, EVAL_COUNT, 0, MAX_ROWS, NULL,
     TO(reference_prompts, "N", "2", "number of prompts that also run the slow references")},
    {NULL, "batch", BATCH, EVAL_FLAG, 0, 0, NULL,
     SWITCH(batch, "instead compare sessions computed together with the same sessions alone")},
    {"compositions", "compositions", BATCH, EVAL_COUNT, 1, MAX_ROWS, NULL,
     TO(compositions, "N", "40", "with --batch: number of compositions")},
    {"sessions", "sessions", BATCH, EVAL_COUNT, 2, LOSSLESS_BATCH_SESSIONS, NULL,
     TO(sessions, "N", "32", "with --batch: maximum number of sessions in a composition")},
    POLICIES(BATCH, "with --batch: all"),
    {"images", NULL, LOSSLESS | BATCH, EVAL_TEXTS, 0, 0, NULL, MAYBE_ADDED},
    {"modes", NULL, LOSSLESS, EVAL_PROMISE, 0, 0, NULL, ADDED},
    {"prompt_kinds", NULL, LOSSLESS, EVAL_PROMISE, 0, 0, NULL, ADDED},
    {"temperatures", NULL, LOSSLESS, EVAL_PROMISE, 0, 0, NULL, ADDED},
    {"threads", NULL, LOSSLESS, EVAL_PROMISE, 0, 0, NULL, ADDED},
    {"prompt_chunks", NULL, LOSSLESS, EVAL_PROMISE, 0, 0, NULL, ADDED},
    {"kv_formats", NULL, VERIFY, EVAL_NAMES, 0, 0, "f32 bf16 q8 q4", ADDED},
    {"seconds", NULL, VERIFY, EVAL_COUNT, 1, MOST_SECONDS, NULL, ADDED},
    {"rounds", NULL, VERIFY, EVAL_COUNT, 1, MAX_ROWS, NULL, ADDED},
    {"rounds_elsewhere", NULL, VERIFY, EVAL_COUNT, 1, MAX_ROWS, NULL, ADDED},
    {"threads_elsewhere", NULL, VERIFY, EVAL_COUNT, 1, 1024, NULL, ADDED},
    /* sizes of sessions, which the shared options set */
    {"sink", NULL, ALL, EVAL_COUNT, 0, MOST_SIZE, NULL, ADDED},
    {"window", NULL, ALL, EVAL_COUNT, 1, MOST_SIZE, NULL, ADDED},
    {"draft_window", NULL, ALL, EVAL_COUNT, 1, MOST_TOKENS, NULL, ADDED},
};
/* clang-format on */

const eval_option *eval_option_at(size_t index) {
    return index < sizeof options / sizeof options[0] ? &options[index] : NULL;
}

bool eval_is_listed(const char *list, const char *word) {
    size_t length = strlen(word);
    if (!length || strchr(word, ' ')) return false;
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += length)
        if ((at == list || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
    return false;
}

/* --------------------------------------------------------------------------------------------------------- reports */

static cJSON *word_at(const char *words, int index) {
    char word[24];
    for (; index > 0; index--) words += strcspn(words, " ") + 1;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(words, " "), words);
    return cJSON_CreateString(word);
}

cJSON *eval_seed_json(uint64_t seed) {
    const uint64_t exact = UINT64_C(1) << 53; /* every integer up to here is a double */
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, seed);
    return seed <= exact ? cJSON_CreateNumber((double)seed) : cJSON_CreateString(text);
}

bool eval_seed_read(const cJSON *item, uint64_t *out) {
    const double exact = 9007199254740992.0; /* 2^53 */
    if (json_is_integer(item, 0, exact)) {
        *out = (uint64_t)item->valuedouble;
        return true;
    }
    if (!cJSON_IsString(item) || strlen(item->valuestring) > 20 || !isdigit((unsigned char)item->valuestring[0]))
        return false;
    char *end;
    *out = strtoull(item->valuestring, &end, 10);
    return !*end && *out > (uint64_t)exact;
}

static cJSON *option_json(const eval_option *option, const eval_options *from) {
    const void *at = (const char *)from + option->at;
    int n = option->n_at ? (int)*(const size_t *)(const void *)((const char *)from + option->n_at) : 0;
    switch (option->form) {
    case EVAL_COUNT:
        return cJSON_CreateNumber(*(const int *)at);
    case EVAL_COUNTS:
        return cJSON_CreateIntArray(*(const int *const *)at, n);
    case EVAL_SHARES:
        return n ? cJSON_CreateDoubleArray(*(const double *const *)at, n) : cJSON_CreateArray();
    case EVAL_NAME:
        return word_at(option->words, *(const int *)at);
    case EVAL_NAMES:
        return cJSON_CreateStringArray(*(const char *const *const *)at, n);
    case EVAL_TEXT:
        return cJSON_CreateString(*(const char *const *)at);
    case EVAL_FLAG:
        return cJSON_CreateBool(*(const bool *)at);
    case EVAL_SEED:
        return eval_seed_json(*(const uint64_t *)at);
    case EVAL_TEXTS:
    case EVAL_PROMISE:
        break;
    }
    return NULL;
}

cJSON *eval_options_json(eval_kind kind, const eval_options *from) {
    cJSON *object = cJSON_CreateObject();
    bool added = object != NULL;
    const eval_option *option;
    for (size_t i = 0; added && (option = eval_option_at(i)) != NULL; i++) {
        if (!(option->kinds & 1u << kind) || !option->key || option->at == EVAL_NOWHERE ||
            cJSON_HasObjectItem(object, option->key))
            continue;
        const void *at = (const char *)from + option->at;
        if (option->optional && !(option->form == EVAL_FLAG ? *(const bool *)at : *(const int *)at > 1)) continue;
        cJSON *item = option_json(option, from);
        added = item && cJSON_AddItemToObject(object, option->key, item);
    }
    if (added) return object;
    cJSON_Delete(object);
    return NULL;
}

static bool fits_item(const eval_option *option, const cJSON *item) {
    switch (option->form) {
    case EVAL_COUNT:
    case EVAL_COUNTS:
        return json_is_integer(item, option->min, option->max);
    case EVAL_SHARES:
        return cJSON_IsNumber(item) && item->valuedouble >= option->min && item->valuedouble <= option->max;
    case EVAL_NAME:
    case EVAL_NAMES:
        return cJSON_IsString(item) && eval_is_listed(option->words, item->valuestring);
    case EVAL_TEXT:
    case EVAL_TEXTS:
        return cJSON_IsString(item) && item->valuestring[0];
    case EVAL_FLAG:
        return cJSON_IsBool(item);
    case EVAL_SEED:
        return eval_seed_read(item, &(uint64_t){0});
    case EVAL_PROMISE:
        return cJSON_IsArray(item);
    }
    return false;
}

bool eval_option_fits(const eval_option *option, const cJSON *item) {
    const eval_option_form form = option->form;
    bool list = form == EVAL_COUNTS || form == EVAL_SHARES || form == EVAL_NAMES || form == EVAL_TEXTS;
    if (!list) return fits_item(option, item);
    if (!cJSON_IsArray(item) || (!item->child && form != EVAL_SHARES)) return false;
    for (const cJSON *value = item->child; value; value = value->next) {
        if (!fits_item(option, value)) return false;
        /* Long lists are samples, whose names are compared with the rows one by one. */
        for (const cJSON *earlier = item->child; earlier != value && form != EVAL_TEXTS; earlier = earlier->next)
            if (cJSON_Compare(earlier, value, true)) return false;
    }
    return true;
}
