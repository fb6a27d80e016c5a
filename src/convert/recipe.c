#include "convert/recipe.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "convert/quantise.h"

static const struct {
    weight_format base;
    uint32_t file_type;
} targets[] = {
    [CONVERT_Q4_0] = {WEIGHT_Q4_0, 2},  [CONVERT_Q8_0] = {WEIGHT_Q8_0, 7},  [CONVERT_Q4_K] = {WEIGHT_Q4_K, 14},
    [CONVERT_Q5_K] = {WEIGHT_Q5_K, 16}, [CONVERT_Q6_K] = {WEIGHT_Q6_K, 18}, [CONVERT_Q4_K_M] = {WEIGHT_Q4_K, 15},
};

uint32_t recipe_file_type(convert_target to) { return targets[to].file_type; }

/* ------------------------------------------------------------------------------------------------ what the user says
 */

static kakeya_status format_named(const char *option, const char *name, int *out, kakeya_error *error) {
    static const weight_format formats[] = {WEIGHT_F32,  WEIGHT_F16,  WEIGHT_BF16, WEIGHT_Q4_0,
                                            WEIGHT_Q4_1, WEIGHT_Q5_0, WEIGHT_Q5_1, WEIGHT_Q8_0,
                                            WEIGHT_Q4_K, WEIGHT_Q5_K, WEIGHT_Q6_K};
    *out = -1;
    if (!name) return KAKEYA_OK;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (strcasecmp(name, weight_format_name(formats[i])) == 0) *out = (int)formats[i];
    }
    if (*out >= 0) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT,
                     "--%s: \"%s\" is none of f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k", option,
                     name);
}

static kakeya_status add_keep(recipe *r, const char *text, kakeya_error *error) {
    const char *equals = strrchr(text, '=');
    int format = -1;
    if (!equals || equals == text)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "--keep: \"%s\" is not REGEX=FORMAT, such as 'blk\\.[0-3]\\.=q8_0'", text);
    kakeya_status status = format_named("keep", equals + 1, &format, error);
    if (status != KAKEYA_OK) return status;
    char *pattern = strndup(text, (size_t)(equals - text));
    if (!pattern) return error_set(error, KAKEYA_OUT_OF_MEMORY, "--keep: no memory");
    int failed = regcomp(&r->keep[r->n_keep].pattern, pattern, REG_EXTENDED | REG_NOSUB);
    if (failed) {
        char why[128];
        (void)regerror(failed, &r->keep[r->n_keep].pattern, why, sizeof why);
        status = error_set(error, KAKEYA_INVALID_ARGUMENT,
                           "--keep: \"%s\" is not a regular expression: "
                           "%s",
                           pattern, why);
    } else {
        r->keep[r->n_keep].text = text;
        r->keep[r->n_keep++].format = (weight_format)format;
    }
    free(pattern);
    return status;
}

kakeya_status recipe_init(recipe *r, const convert_options *options, const source *from, kakeya_error *error) {
    *r = (recipe){.to = options->to,
                  .importances = options->n_importance > 0,
                  .layers = from->model->config.layers,
                  .layers_with_v = from->layers_with_v};
    kakeya_status status = format_named("head", options->head, &r->head, error);
    if (status == KAKEYA_OK) status = format_named("attn", options->attention, &r->attention, error);
    r->keep = calloc(options->n_keep + 1, sizeof *r->keep);
    if (status == KAKEYA_OK && !r->keep) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "--keep: no memory");
    for (size_t i = 0; status == KAKEYA_OK && i < options->n_keep; i++) status = add_keep(r, options->keep[i], error);
    return status;
}

void recipe_free(recipe *r) {
    for (size_t i = 0; i < r->n_keep; i++) regfree(&r->keep[i].pattern);
    free(r->keep);
}

/* ---------------------------------------------------------------------------------------------------------- choices */

/* Layers that deserve more bits: the first and the last eighth, and every third between. */
static bool use_more(int i, int n) { return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2; }

/* A row that is no multiple of a block of 256 takes blocks of 32, and one that is no multiple of these takes none. */
static weight_format fitting(weight_format format, int in) {
    if (in % weight_format_find(format)->stream[0].values == 0) return format;
    weight_format smaller = format == WEIGHT_Q4_K   ? WEIGHT_Q5_0
                            : format == WEIGHT_Q5_K ? WEIGHT_Q5_1
                            : format == WEIGHT_Q6_K ? WEIGHT_Q8_0
                                                    : WEIGHT_F16;
    return in % weight_format_find(smaller)->stream[0].values == 0 ? smaller : WEIGHT_F16;
}

static bool is_head(const source_tensor *t) {
    return t->slot.group == PARAMETERS_EMBEDDING || t->slot.group == PARAMETERS_HEAD ||
           t->slot.group == PARAMETERS_PLE_TABLE;
}

/* What llama.cpp chooses for the file's type. */
static weight_format usual(recipe *r, const source_tensor *t) {
    const weight_format base = targets[r->to].base;
    const bool value = strstr(t->slot.name, "v_proj") != NULL, down = strstr(t->slot.name, "down_proj") != NULL;
    const int value_index = r->values_seen;
    r->values_seen += value;
    if (is_head(t)) return base == WEIGHT_Q8_0 ? WEIGHT_Q8_0 : WEIGHT_Q6_K;
    if (r->to == CONVERT_Q4_K_M && value && use_more(value_index, r->layers_with_v)) return WEIGHT_Q6_K;
    if (r->to == CONVERT_Q4_K_M && down && use_more(t->layer, r->layers)) return WEIGHT_Q6_K;
    if (r->to == CONVERT_Q4_0 && r->importances && down && t->layer < r->layers / 8) return WEIGHT_Q4_1;
    return base;
}

weight_format recipe_format(recipe *r, const source_tensor *t, const char *name) {
    if (!t->w || t->slot.group == PARAMETERS_ROUTER) return WEIGHT_F32;
    if (strstr(t->slot.name, "per_layer_model_projection")) return t->w->format;
    weight_format chosen = usual(r, t);
    if (r->head >= 0 && is_head(t)) chosen = (weight_format)r->head;
    if (r->attention >= 0 && strstr(t->slot.name, "self_attn.")) chosen = (weight_format)r->attention;
    for (size_t i = 0; i < r->n_keep; i++) {
        if (regexec(&r->keep[i].pattern, name, 0, NULL, 0) != 0) continue;
        r->keep[i].met = true;
        chosen = r->keep[i].format;
    }
    return fitting(chosen, t->in);
}

kakeya_status recipe_check_used(const recipe *r, kakeya_error *error) {
    for (size_t i = 0; i < r->n_keep; i++)
        if (!r->keep[i].met)
            return error_set(error, KAKEYA_INVALID_ARGUMENT,
                             "--keep: \"%s\" matches no quantised tensor; names are those of the output file, such "
                             "as blk.0.attn_q.weight",
                             r->keep[i].text);
    return KAKEYA_OK;
}
