/* RoPE parameters as Hugging Face transformers 5.17 reads them (configuration_utils.py, modeling_rope_utils.py):
 *
 * - rope_parameters holds one object per layer type. A rope_scaling takes its place, whole.
 * - The kind of an entry is its rope_type, without one its `type`, without either "default".
 * - A proportional entry without partial_rotary_factor takes the text model's, without either 1.
 * - A default entry turns all pairs, whatever partial_rotary_factor and factor say.
 *
 * Of Gemma 3 there is an older dialect, too: rope_theta and rope_local_base_freq beside each other, and a rope_scaling
 * that holds for full layers only. There all pairs turn, and "linear" divides the frequencies of full layers by its
 * factor; in Gemma 4 that kind is not known.
 *
 * Where transformers fails, this fails: no entry of a layer type that occurs, an entry without rope_theta, null in the
 * place of a kind or a factor. One exception: a rope_scaling of null means that there is none. */
#include "model/gemma4_rope.h"

#include <stdio.h>
#include <string.h>

#include "model/gemma4_facts.h"
#include "model/gemma4_layers.h"

/* The keys of an object as a list for a message. */
static const char *list_keys(const cJSON *object, char *text, size_t bytes) {
    size_t used = 0;
    const cJSON *item;
    text[0] = '\0';
    cJSON_ArrayForEach(item, object) {
        int wrote = snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", item->string);
        if (wrote < 0 || (size_t)wrote >= bytes - used) break;
        used += (size_t)wrote;
    }
    return text;
}

static bool occurs(const model_config *c, layer_type type) { return gemma4_head_dim(c, type) > 0; }

/* A number of an entry that may be absent, but not null. */
static double entry_number(json_reader *r, const char *path, const cJSON *entry, const char *key, double min,
                           double max, double fallback) {
    if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(entry, key)))
        json_fail(r, KAKEYA_FORMAT, "%s.%s is null, expected a number", path, key);
    return json_number(r, entry, key, min, max, fallback);
}

static const char *entry_kind(json_reader *r, const char *path, const cJSON *entry) {
    static const char *const keys[] = {"rope_type", "type"};
    for (int k = 0; k < 2; k++) {
        const cJSON *kind = cJSON_GetObjectItemCaseSensitive(entry, keys[k]);
        if (cJSON_IsString(kind)) return kind->valuestring;
        if (kind) {
            json_fail(r, KAKEYA_FORMAT, "%s.%s is not a string", path, keys[k]);
            break;
        }
    }
    return "default";
}

/* What a Gemma 3's entry does to frequencies. */
static void read_linear(json_reader *r, const char *path, const cJSON *entry, rope_config *rope) {
    const char *kind = entry_kind(r, path, entry);
    const gemma4_fact *factor = &gemma4_facts[FACT_ROPE_FACTOR];
    if (strcmp(kind, "linear") == 0) {
        if (!json_get(entry, "factor")) json_fail(r, KAKEYA_FORMAT, "%s has no factor", path);
        rope->factor = (float)entry_number(r, path, entry, "factor", factor->min, factor->max, factor->json_absent);
    } else if (strcmp(kind, "default") != 0) {
        json_fail(r, KAKEYA_UNSUPPORTED, "%s: rope_type \"%s\" is not supported (default, linear)", path, kind);
    }
}

/* Objects of other layer types are of no use to anybody; a number or a string among the entries is meant for all
 * layers, which no reader of this form understands. */
static void refuse_flat(json_reader *r, const char *name, const cJSON *parameters) {
    const cJSON *item;
    cJSON_ArrayForEach(item, parameters) {
        if (!cJSON_IsObject(item) && !cJSON_IsNull(item))
            json_fail(r, KAKEYA_UNSUPPORTED, "%s.%s is not an object: the parameters are given by layer type", name,
                      item->string);
    }
}

/* Both dialects of Gemma 3: the newer has an object for each type of layers in rope_parameters. */
static void read_gemma3(json_reader *r, const cJSON *text, model_config *c) {
    static const char *const flat[] = {[LAYER_SLIDING] = "rope_local_base_freq", [LAYER_FULL] = "rope_theta"};
    const cJSON *parameters = json_object(r, text, "rope_parameters"), *scaling = json_object(r, text, "rope_scaling");
    refuse_flat(r, "rope_parameters", parameters);
    for (int t = 0; t < 2; t++) {
        layer_type type = (layer_type)t;
        const gemma4_fact *fact = &gemma4_facts[type == LAYER_FULL ? FACT_THETA_FULL : FACT_THETA_SLIDING];
        rope_config *rope = &c->rope[type];
        char path[64];
        rope->rotated_pairs = gemma4_head_dim(c, type) / 2;
        rope->theta = (float)json_number(r, text, flat[t], fact->min, fact->max, fact->json_absent);
        const cJSON *entry = json_object(r, parameters, layer_type_name(type));
        snprintf(path, sizeof path, "rope_parameters.%s", layer_type_name(type));
        if (entry) {
            rope->theta = (float)entry_number(r, path, entry, "rope_theta", fact->min, fact->max, (double)rope->theta);
            read_linear(r, path, entry, rope);
        } else if (scaling && type == LAYER_FULL) {
            read_linear(r, "rope_scaling", scaling, rope);
        }
    }
}

static void read_entry(json_reader *r, const char *path, const cJSON *text, const cJSON *entry, int head_dim,
                       const gemma4_fact *theta, rope_config *rope) {
    if (cJSON_IsNull(entry)) {
        json_fail(r, KAKEYA_UNSUPPORTED, "%s is null: layers without RoPE are not supported", path);
        return;
    }
    if (!cJSON_IsObject(entry)) {
        json_fail(r, KAKEYA_FORMAT, "%s is not an object", path);
        return;
    }
    const char *kind = entry_kind(r, path, entry);
    bool proportional = strcmp(kind, "proportional") == 0;
    if (!proportional && strcmp(kind, "default") != 0)
        json_fail(r, KAKEYA_UNSUPPORTED, "%s: rope_type \"%s\" is not supported (default, proportional)", path, kind);
    if (!json_get(entry, "rope_theta")) json_fail(r, KAKEYA_FORMAT, "%s has no rope_theta", path);
    rope->theta = (float)json_number(r, entry, "rope_theta", theta->min, theta->max, theta->min);
    rope->factor = 1;
    rope->rotated_pairs = head_dim / 2;
    if (!proportional) return;
    double partial = json_number(r, text, "partial_rotary_factor", 0, 1, 1);
    partial = entry_number(r, path, entry, "partial_rotary_factor", 0, 1, partial);
    rope->rotated_pairs = gemma4_rotated_pairs(partial, head_dim);
    const gemma4_fact *factor = &gemma4_facts[FACT_ROPE_FACTOR];
    rope->factor = (float)entry_number(r, path, entry, "factor", factor->min, factor->max, factor->json_absent);
}

static void use_defaults(model_config *c) {
    int sliding = gemma4_head_dim(c, LAYER_SLIDING), full = gemma4_head_dim(c, LAYER_FULL);
    c->rope[LAYER_SLIDING] = (rope_config){
        .theta = (float)gemma4_facts[FACT_THETA_SLIDING].json_absent, .rotated_pairs = sliding / 2, .factor = 1};
    c->rope[LAYER_FULL] = (rope_config){.theta = (float)gemma4_facts[FACT_THETA_FULL].json_absent,
                                        .rotated_pairs = gemma4_rotated_pairs(0.25, full),
                                        .factor = 1};
}

void gemma4_read_rope(json_reader *r, const cJSON *text, model_config *c) {
    use_defaults(c);
    if (c->generation == GEMMA_3) {
        read_gemma3(r, text, c);
        return;
    }
    const char *name = json_get(text, "rope_scaling") ? "rope_scaling" : "rope_parameters";
    const cJSON *parameters = json_object(r, text, name);
    if (!parameters) return;

    char keys[160];
    for (int t = 0; t < 2; t++) {
        layer_type type = (layer_type)t;
        const char *type_name = layer_type_name(type);
        const cJSON *entry = cJSON_GetObjectItemCaseSensitive(parameters, type_name);
        char path[64];
        snprintf(path, sizeof path, "%s.%s", name, type_name);
        if (!occurs(c, type)) continue;
        if (entry)
            read_entry(r, path, text, entry, gemma4_head_dim(c, type),
                       &gemma4_facts[type == LAYER_FULL ? FACT_THETA_FULL : FACT_THETA_SLIDING], &c->rope[type]);
        else
            json_fail(r, KAKEYA_UNSUPPORTED, "%s has no entry for %s layers, only the keys: %s", name, type_name,
                      list_keys(parameters, keys, sizeof keys));
    }
    refuse_flat(r, name, parameters);
}
