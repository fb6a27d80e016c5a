#include "remote/presets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char policies[] = "native sink-window restored restored-all";
static const char kv_formats[] = "bf16 fp8 q8 affine8 affine4 q4 d4-10 d4-38 d4-152 e8-9 e8-38 e8-151";
static const char shapes[] = "26b-a4b 31b 12b e2b e4b";

/* Rows of a list of parameters. Written like calls, because formatters put members in braces on a line each. */
#define PARAM(...)                                                                                                     \
    { __VA_ARGS__ }
#define INTEGER(NAME, FALLBACK, MIN, MAX)                                                                              \
    { .name = NAME, .option = "--" NAME, .fallback = FALLBACK, .type = PRESET_INTEGER, .min = MIN, .max = MAX }
#define INTEGERS(NAME, FALLBACK, MIN, MAX, MOST)                                                                       \
    {                                                                                                                  \
        .name = NAME, .option = "--" NAME, .fallback = FALLBACK, .type = PRESET_INTEGERS, .min = MIN, .max = MAX,      \
        .most = MOST                                                                                                   \
    }
#define CHOICE(NAME, CHOICES)                                                                                          \
    { .name = NAME, .option = "--" NAME, .type = PRESET_CHOICE, .choices = CHOICES }
#define POLICIES                                                                                                       \
    { .name = "attention", .option = "--policies", .type = PRESET_CHOICES, .choices = policies }
#define INPUT(NAME)                                                                                                    \
    { .name = NAME, .option = "--" NAME, .type = PRESET_INPUT, .required = true }
/* How every model is run. */
#define ENGINE                                                                                                         \
    CHOICE("backend", "auto cpu cuda mlx"), CHOICE("precision", "auto f32 bf16 int8 fp8"),                             \
        CHOICE("kv-format", "auto f32 bf16 q8 q4"), INTEGER("threads", NULL, 1, 256)
#define MAX_TOKENS(FALLBACK) INTEGER("max-tokens", FALLBACK, 1, 512)
#define SEED                 INTEGER("seed", NULL, 0, 2147483647)
#define END                                                                                                            \
    { .name = NULL }

static const preset_param env_params[] = {CHOICE("backend", "auto cpu cuda mlx"), END};
static const preset_param no_params[] = {END};
static const preset_param niah_params[] = {
    INTEGERS("lines", "12,60,150", 10, 2000, 16),
    INTEGER("samples", "5", 1, 50),
    POLICIES,
    CHOICE("mode", "auto ar speculative ngram"),
    INTEGER("draft-length", NULL, 0, 16),
    INTEGERS("draft-window", NULL, 1, 65536, 8),
    INTEGER("window", "64", 16, 1024),
    INTEGER("sink", NULL, 0, 64),
    PARAM(.name = "identity-restore", .option = "--identity-restore", .type = PRESET_FLAG),
    MAX_TOKENS("48"),
    SEED,
    ENGINE,
    END};
static const preset_param fidelity_params[] = {PARAM(.name = "ids", .option = "--ids-json", .type = PRESET_INPUT),
                                               INTEGER("prompt-length", NULL, 0, 131072),
                                               INTEGER("score-tokens", NULL, 1, 4096),
                                               INTEGER("max-sequences", NULL, 0, 200),
                                               POLICIES,
                                               INTEGERS("windows", "64", 16, 1024, 8),
                                               INTEGER("sink", NULL, 0, 64),
                                               ENGINE,
                                               END};
static const preset_param kv_format_params[] = {
    {.name = "formats", .option = "--formats", .type = PRESET_CHOICES, .choices = kv_formats},
    INTEGER("prompt-length", NULL, 1, 131072),
    INTEGER("score-tokens", NULL, 1, 4096),
    INTEGER("sequences", "5", 1, 50),
    INTEGER("lines", "40", 10, 2000),
    MAX_TOKENS("24"),
    SEED,
    CHOICE("precision", "auto f32 bf16 int8 fp8"),
    INTEGER("threads", NULL, 1, 256),
    END};
static const preset_param code_params[] = {INTEGERS("draft-lengths", "2,4,8,16", 1, 16, 16),
                                           INTEGER("repetitions", "5", 1, 50),
                                           INTEGER("prompt-tokens", NULL, 16, 131072),
                                           POLICIES,
                                           INTEGER("window", NULL, 16, 1024),
                                           MAX_TOKENS("96"),
                                           ENGINE,
                                           END};
static const preset_param acceptance_params[] = {INPUT("jsonl"),
                                                 INTEGER("prompts", NULL, 1, 200),
                                                 INTEGER("draft-length", NULL, 0, 16),
                                                 PARAM(.name = "chat", .option = "--chat", .type = PRESET_FLAG),
                                                 MAX_TOKENS("96"),
                                                 ENGINE,
                                                 END};
static const preset_param lossless_params[] = {INTEGER("prompts", "24", 1, 200),
                                               INTEGER("reference-prompts", NULL, 0, 8),
                                               POLICIES,
                                               MAX_TOKENS("32"),
                                               SEED,
                                               ENGINE,
                                               END};
static const preset_param batch_params[] = {
    INTEGER("compositions", "40", 1, 200), INTEGER("sessions", "32", 2, 64), MAX_TOKENS("32"), SEED, ENGINE, END};
static const preset_param bench_params[] = {
    INTEGERS("context-frontiers", "0,1024,4096", 0, 131072, 16),
    INTEGER("prompt-tokens", NULL, 1, 131072),
    INTEGER("decode-tokens", NULL, 1, 512),
    INTEGER("repeats", NULL, 1, 50),
    PARAM(.name = "synthetic", .option = "--synthetic", .type = PRESET_SHAPE, .choices = shapes),
    ENGINE,
    END};
static const preset_param score_params[] = {INPUT("ids-file"),
                                            INTEGER("prompt-length", NULL, 0, 131072),
                                            CHOICE("attention", "native sink-window restored"),
                                            INTEGER("window", NULL, 16, 1024),
                                            ENGINE,
                                            END};

static const preset presets[] = {
    {.name = "env",
     .summary = "what the worker's machine is, and the model on it",
     .words = {"info", "--json"},
     .model = true,
     .minutes = 5,
     .params = env_params},
    {.name = "self-check",
     .summary = "whether the worker's program keeps the lossless contract, in a few minutes",
     .words = {"eval", "lossless", "--prompts", "6", "--max-tokens", "16"},
     .model = true,
     .gated = true,
     .minutes = 30,
     .params = no_params},
    {.name = "niah",
     .summary = "needle in a haystack: recall, K/V memory and speed of the attention policies",
     .words = {"eval", "niah"},
     .model = true,
     .gated = true,
     .minutes = 120,
     .params = niah_params},
    {.name = "fidelity",
     .summary = "perplexity and divergence of the policies against native attention",
     .words = {"eval", "fidelity"},
     .model = true,
     .gated = true,
     .minutes = 120,
     .params = fidelity_params},
    {.name = "kv-format",
     .summary = "formats for K/V: bytes, error, divergence, recall and speed",
     .words = {"eval", "kv-format"},
     .model = true,
     .gated = true,
     .minutes = 120,
     .params = kv_format_params},
    {.name = "code",
     .summary = "speculative against plain decoding on source files, by draft length",
     .words = {"eval", "code"},
     .model = true,
     .gated = true,
     .minutes = 120,
     .params = code_params},
    {.name = "acceptance",
     .summary = "accepted drafts by position, on prompts of the request",
     .words = {"eval", "acceptance"},
     .model = true,
     .gated = true,
     .minutes = 120,
     .params = acceptance_params},
    {.name = "lossless",
     .summary = "every decode mode against plain decoding, token by token",
     .words = {"eval", "lossless"},
     .model = true,
     .gated = true,
     .minutes = 120,
     .params = lossless_params},
    {.name = "lossless-batch",
     .summary = "sessions together against the same sessions alone, to the bit",
     .words = {"eval", "lossless", "--batch"},
     .model = true,
     .gated = true,
     .minutes = 120,
     .params = batch_params},
    {.name = "mac-acceptance",
     .summary = "the MLX backend against the CPU's and itself, on a Mac",
     .words = {"eval", "mac-acceptance"},
     .model = true,
     .gated = true,
     .minutes = 120,
     .params = no_params},
    {.name = "bench",
     .summary = "prompt and decode speed beside what the hardware allows",
     .words = {"bench", "--json"},
     .model = true,
     .minutes = 60,
     .params = bench_params},
    {.name = "score",
     .summary = "log-likelihood of token ids of the request",
     .words = {"score", "--json"},
     .model = true,
     .minutes = 30,
     .params = score_params},
};

const preset *preset_at(size_t index) { return index < sizeof presets / sizeof presets[0] ? &presets[index] : NULL; }

const preset *preset_find(const char *name) {
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++)
        if (strcmp(presets[i].name, name) == 0) return &presets[i];
    return NULL;
}

/* ----------------------------------------------------------------------------------------------------- checks */

/* Whether the list, with blanks, has the word. */
static bool has_word(const char *list, const char *word, size_t length) {
    for (const char *at = list; *at;) {
        size_t n = strcspn(at, " ");
        if (n == length && memcmp(at, word, n) == 0) return true;
        at += n + (at[n] == ' ');
    }
    return false;
}

/* Digits without a needless zero in front, in [min, max]. */
static bool is_integer(const char *text, size_t length, long min, long max) {
    if (!length || length > 10 || (text[0] == '0' && length > 1)) return false;
    long value = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        value = 10 * value + (text[i] - '0');
    }
    return value >= min && value <= max;
}

static bool is_list(const preset_param *p, const char *value) {
    size_t n = 0;
    for (const char *at = value;; at++) {
        size_t length = strcspn(at, ",");
        if (p->type == PRESET_INTEGERS ? ++n > p->most || !is_integer(at, length, p->min, p->max)
                                       : !has_word(p->choices, at, length))
            return false;
        /* The same policy twice would be the same run twice. */
        for (const char *before = value; p->type == PRESET_CHOICES && before < at; before += strcspn(before, ",") + 1)
            if (strcspn(before, ",") == length && memcmp(before, at, length) == 0) return false;
        at += length;
        if (!*at) return true;
    }
}

static int input_index(const request *r, const char *name) {
    for (size_t i = 0; i < r->n_inputs; i++)
        if (strcmp(r->input[i].name, name) == 0) return (int)i;
    return -1;
}

static kakeya_status check_value(const preset_param *p, const request *r, const char *value, kakeya_error *error) {
    bool good = false;
    char expected[160] = "";
    switch (p->type) {
    case PRESET_INTEGER:
        good = is_integer(value, strlen(value), p->min, p->max);
        snprintf(expected, sizeof expected, "an integer from %ld to %ld", p->min, p->max);
        break;
    case PRESET_INTEGERS:
        good = is_list(p, value);
        snprintf(expected, sizeof expected, "up to %zu integers from %ld to %ld, with commas", p->most, p->min, p->max);
        break;
    case PRESET_CHOICE:
    case PRESET_SHAPE:
        good = has_word(p->choices, value, strlen(value));
        snprintf(expected, sizeof expected, "one of: %s", p->choices);
        break;
    case PRESET_CHOICES:
        good = is_list(p, value);
        snprintf(expected, sizeof expected, "some of: %s, with commas, each once", p->choices);
        break;
    case PRESET_INPUT:
        good = input_index(r, value) >= 0;
        snprintf(expected, sizeof expected, "the name of a file of the request");
        break;
    case PRESET_FLAG:
        good = has_word("yes no", value, strlen(value));
        snprintf(expected, sizeof expected, "yes or no");
        break;
    }
    if (good) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: '%.64s' is not %s", p->name, value, expected);
}

static const preset_param *find_param(const preset *wanted, const char *name) {
    for (const preset_param *p = wanted->params; p->name; p++)
        if (strcmp(p->name, name) == 0) return p;
    return NULL;
}

kakeya_status preset_check(const preset *wanted, const request *r, kakeya_error *error) {
    for (size_t i = 0; i < r->n_params; i++) {
        const preset_param *p = find_param(wanted, r->param[i].name);
        if (!p)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s has no parameter '%s'", wanted->name,
                             r->param[i].name);
        kakeya_status status = check_value(p, r, r->param[i].value, error);
        if (status != KAKEYA_OK) return status;
    }
    for (const preset_param *p = wanted->params; p->name; p++)
        if (p->required && !request_value(r, p->name))
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s needs the parameter '%s'", wanted->name, p->name);
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------ command line */

static void add(preset_command *out, const char *word) {
    if (out->n < PRESET_MAX_WORDS) out->word[out->n++] = word;
}

void preset_make_command(const preset *wanted, const request *r, preset_command *out) {
    *out = (preset_command){0};
    bool model = wanted->model;
    add(out, "kakeya");
    for (size_t i = 0; wanted->words[i]; i++) add(out, wanted->words[i]);
    for (const preset_param *p = wanted->params; p->name; p++) {
        const char *value = request_value(r, p->name);
        if (!value) value = p->fallback;
        if (!value || (p->type == PRESET_FLAG && strcmp(value, "yes") != 0)) continue;
        add(out, p->option);
        if (p->type == PRESET_FLAG) continue;
        if (p->type == PRESET_SHAPE) model = false;
        if (p->type == PRESET_INPUT) {
            int at = input_index(r, value);
            if (at < 0) continue; /* preset_check has refused it */
            snprintf(out->input[at], sizeof out->input[at], "inputs/%02d", at);
            value = out->input[at];
        }
        add(out, value);
    }
    if (model) {
        snprintf(out->model, sizeof out->model, "models/%s", r->model);
        add(out, "--model");
        add(out, out->model);
    }
    if (wanted->gated) {
        add(out, "--report");
        add(out, "report.json");
    }
    out->word[out->n] = NULL;
}
