#include "formats/quantisation.h"

#include <fnmatch.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { MAX_GROUPS = 256, MAX_PATTERN_BYTES = 512, MAX_WIDTH = 1 << 20 };

const char *module_form_name(module_form form) {
    static const char *const names[MODULE_FORM_COUNT] = {
        "plain",
        "affine",
        "mxfp4",
        "nvfp4",
        "mxfp8",
        "pack-quantized",
        "int-quantized",
        "float-quantized",
        "nvfp4-pack-quantized",
        "mxfp4-pack-quantized",
        "mxfp8-quantized",
        "NVFP4",
    };
    return form < MODULE_FORM_COUNT ? names[form] : "unknown";
}

/* ---------------------------------------------------------------------------------------------------- patterns
 * A name, "re:" and a regular expression that a name begins with, or a name with * in it (ModelOpt). */

typedef struct pattern {
    char *text; /* a copy */
    regex_t regex;
    bool is_regex;
} pattern;

typedef struct pattern_list {
    pattern *items;
    size_t n;
} pattern_list;

/* Python's expression in POSIX's words; false where it has what POSIX does not. Repetition counts, repetitions of
 * repetitions and + behind a group are refused: some C libraries copy what is repeated, and nested ones take gigabytes.
 */
static bool translate(const char *from, char to[2 * MAX_PATTERN_BYTES + 8]) {
    size_t n = 0, length = strlen(from);
    bool literal = false, lazy = false;
    if (length > MAX_PATTERN_BYTES) return false;
    to[n++] = '^';
    to[n++] = '(';
    for (size_t i = 0; i < length; i++) {
        bool repeats = strchr("*+?", from[i]) != NULL, behind = i > 0 && strchr("*+?", from[i - 1]) && !literal;
        if (from[i] == '?' && behind && !lazy) {
            lazy = true; /* as few as possible: whether a name matches is the same */
            continue;
        }
        if (from[i] == '{' || (repeats && behind) || (from[i] == '+' && i > 0 && from[i - 1] == ')' && !literal))
            return false;
        literal = lazy = false;
        if (from[i] == '(' && from[i + 1] == '?') {
            if (from[i + 2] != ':') return false;
            to[n++] = '(';
            i += 2;
        } else if (from[i] == '\\') {
            char next = from[++i];
            literal = true; /* what stands behind it follows a character, not an operator */
            if (next == 'd') {
                memcpy(to + n, "[0-9]", 5);
                n += 5;
            } else if (next && strchr(".^$*+?()[]|\\-_/", next)) {
                if (!strchr("-_/", next)) to[n++] = '\\';
                to[n++] = next;
            } else {
                return false;
            }
        } else {
            to[n++] = from[i];
        }
        if (n > 2 * (size_t)MAX_PATTERN_BYTES) return false;
    }
    to[n++] = ')';
    to[n] = '\0';
    return true;
}

static void patterns_free(pattern_list *list) {
    for (size_t i = 0; i < list->n; i++) {
        if (list->items[i].is_regex) regfree(&list->items[i].regex);
        free(list->items[i].text);
    }
    free(list->items);
    *list = (pattern_list){0};
}

static void patterns_read(json_reader *r, const cJSON *object, const char *key, pattern_list *list) {
    const cJSON *array = json_array(r, object, key), *item;
    if (!array) return;
    size_t n = (size_t)cJSON_GetArraySize(array);
    list->items = calloc(n + 1, sizeof *list->items);
    if (!list->items) {
        json_fail(r, KAKEYA_OUT_OF_MEMORY, "no memory for %s", key);
        return;
    }
    cJSON_ArrayForEach(item, array) {
        if (!cJSON_IsString(item)) {
            json_fail(r, KAKEYA_FORMAT, "%s contains an entry that is not a name", key);
            return;
        }
        pattern *p = &list->items[list->n];
        p->text = strdup(item->valuestring);
        if (!p->text) {
            json_fail(r, KAKEYA_OUT_OF_MEMORY, "no memory for %s", key);
            return;
        }
        list->n++;
        if (strncmp(p->text, "re:", 3) != 0) continue;
        char translated[2 * MAX_PATTERN_BYTES + 8];
        if (!translate(p->text + 3, translated) || regcomp(&p->regex, translated, REG_EXTENDED | REG_NOSUB) != 0) {
            json_fail(r, KAKEYA_UNSUPPORTED, "%s: the expression \"%.100s\" is not supported", key, p->text);
            return;
        }
        p->is_regex = true;
    }
}

static bool pattern_is(const pattern *p, const char *module) {
    if (p->is_regex) return regexec(&p->regex, module, 0, NULL, 0) == 0;
    if (strcmp(p->text, module) == 0) return true;
    return strchr(p->text, '*') && fnmatch(p->text, module, FNM_NOESCAPE) == 0;
}

/* A module by its name, or by the name of its class. */
static bool patterns_match(const pattern_list *list, const char *module, bool linear) {
    for (size_t i = 0; i < list->n; i++) {
        if (pattern_is(&list->items[i], module)) return true;
        if (strcmp(list->items[i].text, linear ? "Linear" : "Embedding") == 0) return true;
    }
    return false;
}

/* ----------------------------------------------------------------------------------------------------- parsing */

typedef struct scheme_group {
    pattern_list targets;
    module_scheme scheme;
} scheme_group;

struct quantisation {
    quantisation_method method;
    module_scheme fallback; /* MLX: what is not in the map */
    scheme_group *groups;
    size_t n_groups;
    pattern_list ignored;
};

void quantisation_free(quantisation *q) {
    if (!q) return;
    for (size_t i = 0; i < q->n_groups; i++) patterns_free(&q->groups[i].targets);
    free(q->groups);
    patterns_free(&q->ignored);
    free(q);
}

/* The group that comes next; NULL after a failure. */
static scheme_group *add_group(json_reader *r, quantisation *q) {
    if (r->status != KAKEYA_OK) return NULL;
    if (q->n_groups % 64 == 0) {
        scheme_group *groups = realloc(q->groups, (q->n_groups + 64) * sizeof *groups);
        if (!groups) {
            json_fail(r, KAKEYA_OUT_OF_MEMORY, "no memory for the groups of modules");
            return NULL;
        }
        q->groups = groups;
    }
    scheme_group *group = &q->groups[q->n_groups++];
    *group = (scheme_group){.scheme.symmetric = true};
    return group;
}

/* --- MLX */

static void read_mlx_scheme(json_reader *r, const cJSON *object, const module_scheme *fallback, module_scheme *out) {
    static const struct {
        const char *mode;
        module_form form;
        int bits, group;
    } modes[] = {{"affine", MODULE_AFFINE, 4, 64},
                 {"mxfp4", MODULE_MLX_MXFP4, 4, 32},
                 {"nvfp4", MODULE_MLX_NVFP4, 4, 16},
                 {"mxfp8", MODULE_MLX_MXFP8, 8, 32}};
    const char *mode = json_string(r, object, "mode", NULL);
    int m = -1;
    for (int i = 0; i < 4; i++) {
        if (mode ? strcmp(mode, modes[i].mode) == 0 : modes[i].form == (fallback ? fallback->form : MODULE_AFFINE))
            m = i;
    }
    if (m < 0) {
        json_fail(r, KAKEYA_UNSUPPORTED, "quantization.mode \"%s\" is not supported (affine, mxfp4, nvfp4, mxfp8)",
                  mode);
        return;
    }
    out->form = modes[m].form;
    out->symmetric = out->form != MODULE_AFFINE;
    bool same = fallback && fallback->form == out->form;
    out->bits = json_int(r, object, "bits", 1, 32, same ? fallback->bits : modes[m].bits);
    out->group = json_int(r, object, "group_size", 1, MAX_WIDTH, same ? fallback->group : modes[m].group);
    if (r->status != KAKEYA_OK) return;
    bool known = out->form == MODULE_AFFINE ? (out->bits >= 2 && out->bits <= 6) || out->bits == 8
                                            : out->bits == modes[m].bits && out->group == modes[m].group;
    if (out->form == MODULE_AFFINE && out->group != 32 && out->group != 64 && out->group != 128) known = false;
    if (!known)
        json_fail(r, KAKEYA_UNSUPPORTED,
                  "%d bits in groups of %d are not a form of mode %s (affine: 2, 3, 4, 5, 6 or 8 bits in groups of "
                  "32, 64 "
                  "or 128; mxfp4: 4 in 32; nvfp4: 4 in 16; mxfp8: 8 in 32)",
                  out->bits, out->group, modes[m].mode);
}

static void add_name(json_reader *r, scheme_group *group, const char *name) {
    group->targets.items = calloc(1, sizeof *group->targets.items);
    if (group->targets.items) group->targets.items[0].text = strdup(name);
    if (!group->targets.items || !group->targets.items[0].text) {
        free(group->targets.items);
        group->targets.items = NULL;
        json_fail(r, KAKEYA_OUT_OF_MEMORY, "no memory for the map of modules");
        return;
    }
    group->targets.n = 1;
}

static int compare_groups(const void *a, const void *b) {
    const scheme_group *x = a, *y = b;
    return strcmp(x->targets.items[0].text, y->targets.items[0].text);
}

static void read_mlx(json_reader *r, const cJSON *object, quantisation *q) {
    q->method = QUANTISATION_MLX;
    read_mlx_scheme(r, object, NULL, &q->fallback);
    const cJSON *item;
    cJSON_ArrayForEach(item, object) {
        const char *key = item->string;
        if (strcmp(key, "bits") == 0 || strcmp(key, "group_size") == 0 || strcmp(key, "mode") == 0) continue;
        if (!cJSON_IsObject(item) && !cJSON_IsBool(item)) {
            if (strncmp(key, "quant_", 6) == 0 || cJSON_IsNull(item)) continue; /* what other tools note */
            json_fail(r, KAKEYA_FORMAT, "quantization: \"%.100s\" is neither a module's form nor true or false", key);
            return;
        }
        scheme_group *group = add_group(r, q);
        if (!group) return;
        add_name(r, group, key);
        if (r->status != KAKEYA_OK) return;
        if (cJSON_IsObject(item))
            read_mlx_scheme(r, item, &q->fallback, &group->scheme);
        else if (cJSON_IsTrue(item))
            group->scheme = q->fallback;
        group->scheme.stated = true;
    }
    if (r->status == KAKEYA_OK && q->n_groups) qsort(q->groups, q->n_groups, sizeof *q->groups, compare_groups);
}

/* --- compressed-tensors */

static module_form form_of(json_reader *r, const char *format) {
    static const struct {
        const char *name;
        module_form form;
    } formats[] = {{"pack-quantized", MODULE_PACKED},      {"int-quantized", MODULE_INT8},
                   {"float-quantized", MODULE_FP8},        {"naive-quantized", MODULE_FP8},
                   {"nvfp4-pack-quantized", MODULE_NVFP4}, {"mxfp4-pack-quantized", MODULE_MXFP4},
                   {"mxfp8-quantized", MODULE_MXFP8},      {"dense", MODULE_PLAIN}};
    for (size_t i = 0; format && i < sizeof formats / sizeof formats[0]; i++) {
        if (strcmp(format, formats[i].name) == 0) return formats[i].form;
    }
    json_fail(r, KAKEYA_UNSUPPORTED,
              "quantization_config: format \"%.60s\" is not supported (pack-quantized, int-quantized, float-quantized, "
              "nvfp4-pack-quantized, mxfp4-pack-quantized, mxfp8-quantized)",
              format ? format : "(none)");
    return MODULE_PLAIN;
}

static void check_numbers(json_reader *r, const char *type, const char *strategy, module_scheme *s) {
    bool is_int = strcmp(type, "int") == 0, good = true;
    const char *wanted = "";
    switch (s->form) {
    case MODULE_PACKED:
        good = is_int && (s->bits == 4 || s->bits == 8) && !s->block_rows && (s->group % 32 == 0);
        wanted = "int of 4 or 8 bits per group of 32, 64 or 128, or per channel";
        break;
    case MODULE_INT8:
        good = is_int && s->bits == 8 && !s->block_rows && s->group == 0 && s->symmetric;
        wanted = "int of 8 bits per channel or tensor, symmetric";
        break;
    case MODULE_FP8:
        good = !is_int && s->bits == 8 && s->group % 32 == 0;
        wanted = "float of 8 bits per tensor, channel or block";
        break;
    case MODULE_NVFP4:
        good = !is_int && s->bits == 4 && s->group == 16;
        wanted = "float of 4 bits per group of 16";
        break;
    case MODULE_MXFP4:
        good = !is_int && s->bits == 4 && s->group == 32;
        wanted = "float of 4 bits per group of 32";
        break;
    case MODULE_MXFP8:
        good = !is_int && s->bits == 8 && s->group == 32;
        wanted = "float of 8 bits per group of 32";
        break;
    default:
        break;
    }
    if (!good)
        json_fail(r, KAKEYA_UNSUPPORTED,
                  "quantization_config: %s of %s with %d bits, strategy %s, is not supported (%s)",
                  module_form_name(s->form), type, s->bits, strategy, wanted);
}

static void read_weights(json_reader *r, const cJSON *weights, module_scheme *s) {
    const char *type = json_string(r, weights, "type", "int");
    const char *strategy = json_string(r, weights, "strategy", NULL);
    const char *order = json_string(r, weights, "actorder", NULL);
    s->bits = json_int(r, weights, "num_bits", 1, 32, 8);
    s->symmetric = json_bool(r, weights, "symmetric", true);
    int group = json_int(r, weights, "group_size", -1, MAX_WIDTH, 0);
    bool grouped = strategy ? strcmp(strategy, "group") == 0 || strcmp(strategy, "tensor_group") == 0 : group > 0;
    if (order && strcmp(order, "group") == 0)
        json_fail(r, KAKEYA_UNSUPPORTED,
                  "quantization_config: actorder \"group\" permutes columns, which is not "
                  "supported (a file with actorder weight or static)");
    if (grouped) {
        if (group <= 0) json_fail(r, KAKEYA_FORMAT, "quantization_config: strategy %s without group_size", strategy);
        s->group = group > 0 ? group : 0;
    } else if (strategy && strcmp(strategy, "block") == 0) {
        int block[2] = {0};
        if (json_int_array(r, weights, "block_structure", 1, MAX_WIDTH, block, 2) != 2)
            json_fail(r, KAKEYA_FORMAT, "quantization_config: strategy block without block_structure of two numbers");
        s->block_rows = block[0];
        s->group = block[1];
    } else if (strategy && strcmp(strategy, "channel") != 0 && strcmp(strategy, "tensor") != 0) {
        json_fail(r, KAKEYA_UNSUPPORTED,
                  "quantization_config: strategy \"%.60s\" is not supported (tensor, channel, group, block)", strategy);
    }
    if (r->status == KAKEYA_OK) check_numbers(r, type, strategy ? strategy : "(none)", s);
}

static bool is_nothing(const cJSON *item) {
    return !item || ((cJSON_IsObject(item) || cJSON_IsArray(item)) && !item->child) || cJSON_IsFalse(item);
}

static void read_groups(json_reader *r, const cJSON *object, const char *format, quantisation *q) {
    const cJSON *groups = json_object(r, object, "config_groups"), *item;
    cJSON_ArrayForEach(item, groups) {
        if (q->n_groups >= MAX_GROUPS || !cJSON_IsObject(item)) {
            json_fail(r, KAKEYA_FORMAT,
                      "quantization_config: config_groups.%.60s is not a group, or there are too "
                      "many",
                      item->string);
            return;
        }
        scheme_group *group = add_group(r, q);
        if (!group) return;
        const cJSON *weights = json_object(r, item, "weights");
        group->scheme.form = weights ? form_of(r, json_string(r, item, "format", format)) : MODULE_PLAIN;
        if (weights && group->scheme.form != MODULE_PLAIN) read_weights(r, weights, &group->scheme);
        patterns_read(r, item, "targets", &group->targets);
    }
}

static void read_compressed_tensors(json_reader *r, const cJSON *object, quantisation *q) {
    q->method = QUANTISATION_COMPRESSED_TENSORS;
    const char *format = json_string(r, object, "format", NULL);
    const cJSON *sparsity = json_object(r, object, "sparsity_config");
    const cJSON *transform = json_get(object, "transform_config"),
                *transforms = cJSON_IsObject(transform) ? transform->child : NULL;
    bool no_groups =
        transforms && !transforms->next && strcmp(transforms->string, "config_groups") == 0 && is_nothing(transforms);
    if (!is_nothing(transform) && !no_groups)
        json_fail(r, KAKEYA_UNSUPPORTED,
                  "quantization_config: transform_config (weights that are rotated) is not supported");
    const char *sparse = json_string(r, sparsity, "format", "dense");
    if (strcmp(sparse, "dense") != 0)
        json_fail(r, KAKEYA_UNSUPPORTED, "quantization_config: sparsity format \"%.60s\" is not supported", sparse);
    read_groups(r, object, format, q);
    if (r->status == KAKEYA_OK && q->n_groups == 0)
        json_fail(r, KAKEYA_FORMAT, "quantization_config has no config_groups");
    patterns_read(r, object, "ignore", &q->ignored);
}

/* --- ModelOpt */

static module_form form_of_algorithm(json_reader *r, const char *name) {
    if (name && (strcmp(name, "NVFP4") == 0 || strcmp(name, "W4A16_NVFP4") == 0)) return MODULE_MODELOPT_NVFP4;
    if (name && strcmp(name, "FP8") == 0) return MODULE_FP8;
    json_fail(r, KAKEYA_UNSUPPORTED,
              "ModelOpt's quant_algo \"%.60s\" is not supported (NVFP4, W4A16_NVFP4, FP8, MIXED_PRECISION)",
              name ? name : "(none)");
    return MODULE_PLAIN;
}

static module_scheme modelopt_scheme(module_form form) {
    return (module_scheme){.form = form,
                           .bits = form == MODULE_FP8 ? 8 : 4,
                           .group = form == MODULE_MODELOPT_NVFP4 ? 16 : 0,
                           .symmetric = true};
}

static void read_modelopt(json_reader *r, const cJSON *object, quantisation *q) {
    q->method = QUANTISATION_MODELOPT;
    const char *algorithm = json_string(r, object, "quant_algo", NULL);
    bool mixed = algorithm && strcmp(algorithm, "MIXED_PRECISION") == 0;
    if (!mixed) q->fallback = modelopt_scheme(form_of_algorithm(r, algorithm));
    const cJSON *layers = json_object(r, object, "quantized_layers"), *item;
    cJSON_ArrayForEach(item, layers) {
        if (!cJSON_IsObject(item)) {
            json_fail(r, KAKEYA_FORMAT, "quantized_layers: \"%.100s\" is not an object", item->string);
            return;
        }
        scheme_group *group = add_group(r, q);
        if (!group) return;
        add_name(r, group, item->string);
        if (r->status != KAKEYA_OK) return;
        group->scheme = modelopt_scheme(form_of_algorithm(r, json_string(r, item, "quant_algo", NULL)));
        group->scheme.stated = true;
    }
    if (mixed && r->status == KAKEYA_OK && q->n_groups == 0)
        json_fail(r, KAKEYA_FORMAT, "quant_algo is MIXED_PRECISION, but there are no quantized_layers");
    patterns_read(r, object, json_get(object, "exclude_modules") ? "exclude_modules" : "ignore", &q->ignored);
}

/* --- all of them */

static void refuse_method(json_reader *r, const char *method) {
    json_fail(r, KAKEYA_UNSUPPORTED,
              "quantization_config: quant_method \"%.60s\" is not supported: take a compressed-tensors or ModelOpt "
              "checkpoint, an MLX directory, or a GGUF file",
              method);
}

static void read_any(json_reader *r, const cJSON *top, quantisation *q) {
    const cJSON *text = json_object(r, top, "text_config");
    const cJSON *mlx = json_get(top, "quantization"), *other = json_get(top, "quantization_config");
    if (!other) other = json_get(text, "quantization_config");
    if (!mlx) mlx = json_get(text, "quantization");
    if ((mlx && !cJSON_IsObject(mlx)) || (other && !cJSON_IsObject(other))) {
        json_fail(r, KAKEYA_FORMAT, "%s is not an object",
                  mlx && !cJSON_IsObject(mlx) ? "quantization" : "quantization_config");
        return;
    }
    const char *method = json_string(r, other, "quant_method", NULL);
    bool modelopt_file = mlx && json_get(mlx, "quant_algo"); /* hf_quant_config.json */
    if (modelopt_file)
        read_modelopt(r, mlx, q);
    else if (method && strcmp(method, "compressed-tensors") == 0)
        read_compressed_tensors(r, other, q);
    else if (method && strcmp(method, "modelopt") == 0)
        read_modelopt(r, other, q);
    else if (method)
        refuse_method(r, method);
    else if (mlx)
        read_mlx(r, mlx, q);
    else if (other && (json_get(other, "bits") || json_get(other, "mode")))
        read_mlx(r, other, q);
    else if (other)
        refuse_method(r, "(none)");
}

kakeya_status quantisation_parse(const char *name, const char *json, size_t bytes, quantisation **out,
                                 kakeya_error *error) {
    *out = NULL;
    cJSON *top = NULL;
    kakeya_status status = json_parse_object(name, json, bytes, &top, error);
    if (status == KAKEYA_OK) status = json_refuse_repeated_keys(name, top, error);
    quantisation *q = NULL;
    if (status == KAKEYA_OK) {
        q = calloc(1, sizeof *q);
        if (!q) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its quantisation", name);
    }
    if (status == KAKEYA_OK) {
        json_reader reader = {.name = name, .error = error};
        read_any(&reader, top, q);
        status = reader.status;
    }
    cJSON_Delete(top);
    if (status != KAKEYA_OK || q->method == QUANTISATION_NONE) {
        quantisation_free(q);
        return status;
    }
    *out = q;
    return KAKEYA_OK;
}

/* ----------------------------------------------------------------------------------------------------- asking */

quantisation_method quantisation_method_of(const quantisation *q) { return q ? q->method : QUANTISATION_NONE; }

static const scheme_group *find_name(const quantisation *q, const char *module) {
    size_t low = 0, high = q->n_groups;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(q->groups[middle].targets.items[0].text, module);
        if (order == 0) return &q->groups[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

module_scheme quantisation_find(const quantisation *q, const char *module, bool linear) {
    const module_scheme plain = {.form = MODULE_PLAIN};
    if (!q) return plain;
    if (q->method == QUANTISATION_MLX) {
        const scheme_group *named = find_name(q, module);
        return named ? named->scheme : q->fallback;
    }
    if (patterns_match(&q->ignored, module, linear)) return plain;
    for (size_t i = 0; i < q->n_groups; i++) {
        if (patterns_match(&q->groups[i].targets, module, linear)) return q->groups[i].scheme;
    }
    return q->method == QUANTISATION_MODELOPT && linear ? q->fallback : plain;
}
