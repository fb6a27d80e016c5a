#include "measure/kv_geometry.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backend/kv_bytes.h"
#include "base/hash.h"
#include "base/json.h"
#include "model/shard.h"

enum {
    MAX_WINDOW = 1 << 24,
    MAX_HEADS = 1 << 12,
    MAX_HEAD_DIM = 1 << 14,
    MAX_RANK = 1 << 16,
    MAX_GRANULE = 1 << 25,
    MAX_DEVICES = 64,
    MAX_STATE = 1 << 17
};

static const char *const layer_names[] = {[LAYER_SLIDING] = "sliding", [LAYER_FULL] = "full"};

void kv_geometry_of(const model_config *verifier, const block_drafter_config *drafter,
                    const restoration_config *f_theta, kv_format format, kv_geometry *out) {
    *out = (kv_geometry){.format = format, .has_drafter = drafter != NULL, .devices = 1};
    if (f_theta) {
        out->f_theta = (restoration_config){.rank = f_theta->rank,
                                            .rank_k = f_theta->rank_k,
                                            .rank_v = f_theta->rank_v,
                                            .shared_latent = f_theta->shared_latent,
                                            .latents = f_theta->latents,
                                            .input = f_theta->input};
    }
    out->verifier.layers = verifier->layers;
    out->verifier.sliding_window = verifier->sliding_window;
    for (int i = 0; i < verifier->layers; i++) {
        const layer_config *l = &verifier->layer[i];
        out->verifier.layer[i] = (layer_config){.type = l->type,
                                                .head_dim = l->head_dim,
                                                .kv_heads = l->kv_heads,
                                                .k_eq_v = l->k_eq_v,
                                                .kv_source = l->kv_source};
    }
    if (!drafter) return;
    out->drafter.layers = drafter->layers;
    out->drafter.kv_heads = drafter->kv_heads;
    out->drafter.head_dim = drafter->head_dim;
    memcpy(out->drafter.sliding_window, drafter->sliding_window, sizeof drafter->sliding_window);
}

/* ------------------------------------------------------------------------------------------------------ JSON */

static void put(cJSON *object, const char *name, int value) { cJSON_AddNumberToObject(object, name, value); }

/* Reports say more of latents where a rank does not say it all. */
static bool has_latents(const restoration_config *f) {
    return f->rank && (!restoration_needs_drafter(f) || f->rank_k != f->rank_v || f->latents != RESTORATION_LATENTS_KV);
}

static cJSON *describe(const kv_geometry *g) {
    cJSON *object = cJSON_CreateObject();
    if (!object) return NULL;
    cJSON_AddStringToObject(object, "kv_format", kv_format_name(g->format));
    put(object, "sliding_window", g->verifier.sliding_window);
    put(object, "f_theta_rank", g->f_theta.rank);
    if (has_latents(&g->f_theta)) {
        cJSON *latents = cJSON_AddObjectToObject(object, "f_theta_latents");
        cJSON_AddStringToObject(latents, "input", restoration_input_name(g->f_theta.input));
        cJSON_AddStringToObject(latents, "format", restoration_latents_name(g->f_theta.latents));
        cJSON_AddBoolToObject(latents, "shared", g->f_theta.shared_latent);
        put(latents, "rank_k", g->f_theta.rank_k);
        put(latents, "rank_v", g->f_theta.rank_v);
    }
    if (g->page_granule) put(object, "page_granule_bytes", (int)g->page_granule);
    if (g->devices > 1) put(object, "devices", g->devices);
    if (g->state_values) put(object, "assistant_state_values", g->state_values);
    cJSON *layers = cJSON_AddArrayToObject(object, "layers");
    for (int i = 0; i < g->verifier.layers; i++) {
        const layer_config *l = &g->verifier.layer[i];
        cJSON *layer = cJSON_CreateObject();
        cJSON_AddStringToObject(layer, "type", layer_names[l->type]);
        put(layer, "kv_heads", l->kv_heads);
        put(layer, "head_dim", l->head_dim);
        cJSON_AddBoolToObject(layer, "k_eq_v", l->k_eq_v);
        put(layer, "kv_source", l->kv_source);
        cJSON_AddItemToArray(layers, layer);
    }
    if (!g->has_drafter) {
        cJSON_AddNullToObject(object, "drafter");
        return object;
    }
    cJSON *drafter = cJSON_AddObjectToObject(object, "drafter");
    put(drafter, "kv_heads", g->drafter.kv_heads);
    put(drafter, "head_dim", g->drafter.head_dim);
    cJSON_AddItemToObject(drafter, "sliding_windows",
                          cJSON_CreateIntArray(g->drafter.sliding_window, g->drafter.layers));
    return object;
}

/* Of the printed object: every size counts. */
static bool fingerprint_of(const cJSON *described, char out[20]) {
    char *text = cJSON_PrintUnformatted(described);
    if (!text) return false;
    snprintf(out, 20, "%016" PRIx64, hash_fnv1a(HASH_FNV1A_START, text, strlen(text)));
    cJSON_free(text);
    return true;
}

cJSON *kv_geometry_to_json(const kv_geometry *geometry) {
    cJSON *object = describe(geometry);
    char fingerprint[20];
    if (object && fingerprint_of(object, fingerprint)) {
        cJSON_AddStringToObject(object, "fingerprint", fingerprint);
        return object;
    }
    cJSON_Delete(object);
    return NULL;
}

static void read_layers(json_reader *reader, const cJSON *json, model_config *out) {
    const cJSON *list = json_array(reader, json, "layers"), *layer;
    cJSON_ArrayForEach(layer, list) {
        int i = out->layers++;
        if (i == MODEL_MAX_LAYERS) {
            json_fail(reader, KAKEYA_FORMAT, "more than %d layers", MODEL_MAX_LAYERS);
            out->layers = MODEL_MAX_LAYERS;
            return;
        }
        const char *type = json_string(reader, layer, "type", "");
        if (!cJSON_IsBool(json_get(layer, "k_eq_v")))
            json_fail(reader, KAKEYA_FORMAT, "layers[%d] does not say k_eq_v", i);
        bool full = strcmp(type, layer_names[LAYER_FULL]) == 0;
        if (!full && strcmp(type, layer_names[LAYER_SLIDING]) != 0)
            json_fail(reader, KAKEYA_FORMAT, "layers[%d] is neither sliding nor full", i);
        out->layer[i] = (layer_config){.type = full ? LAYER_FULL : LAYER_SLIDING,
                                       .head_dim = json_required_int(reader, layer, "head_dim", 1, MAX_HEAD_DIM),
                                       .kv_heads = json_required_int(reader, layer, "kv_heads", 1, MAX_HEADS),
                                       .k_eq_v = json_bool(reader, layer, "k_eq_v", false),
                                       .kv_source = json_required_int(reader, layer, "kv_source", 0, i)};
    }
    if (!out->layers) json_fail(reader, KAKEYA_FORMAT, "no layers");
}

static restoration_config read_f_theta(json_reader *reader, const cJSON *json) {
    restoration_config f = {.rank = json_required_int(reader, json, "f_theta_rank", 0, MAX_RANK)};
    f.rank_k = f.rank_v = f.rank;
    const cJSON *latents = json_object(reader, json, "f_theta_latents");
    if (!latents) return f;
    f.rank_k = json_required_int(reader, latents, "rank_k", 1, MAX_RANK);
    f.rank_v = json_required_int(reader, latents, "rank_v", 1, MAX_RANK);
    f.shared_latent = json_bool(reader, latents, "shared", false);
    const char *input = json_string(reader, latents, "input", ""), *format = json_string(reader, latents, "format", "");
    bool known[2] = {false, false};
    for (int i = 0; i <= RESTORATION_AUX_HIDDEN; i++) {
        if (strcmp(input, restoration_input_name((restoration_input)i)) != 0) continue;
        f.input = (restoration_input)i;
        known[0] = true;
    }
    for (int i = 0; i < RESTORATION_LATENTS_COUNT; i++) {
        if (strcmp(format, restoration_latents_name((restoration_latents)i)) != 0) continue;
        f.latents = (restoration_latents)i;
        known[1] = true;
    }
    if (!known[0]) json_fail(reader, KAKEYA_FORMAT, "f_theta_latents has the unknown input %.40s", input);
    if (!known[1]) json_fail(reader, KAKEYA_FORMAT, "f_theta_latents has the unknown format %.40s", format);
    if (f.rank != (f.rank_k > f.rank_v ? f.rank_k : f.rank_v) || (f.shared_latent && f.rank_k != f.rank_v))
        json_fail(reader, KAKEYA_FORMAT, "f_theta_latents has ranks %d and %d, f_theta_rank is %d", f.rank_k, f.rank_v,
                  f.rank);
    return f;
}

kakeya_status kv_geometry_from_json(const cJSON *json, kv_geometry *out, kakeya_error *error) {
    *out = (kv_geometry){.format = KV_FORMAT_BF16};
    json_reader reader = {.name = "kv_geometry", .error = error};
    if (!cJSON_IsObject(json)) json_fail(&reader, KAKEYA_FORMAT, "is missing");
    const char *format = json_string(&reader, json, "kv_format", "");
    int stored = 0;
    while (stored < KV_FORMAT_COUNT && strcmp(format, kv_format_name((kv_format)stored)) != 0) stored++;
    if (stored == KV_FORMAT_COUNT)
        json_fail(&reader, KAKEYA_FORMAT, "kv_format %.40s is none of f32, bf16, q8, q4", format);
    else
        out->format = (kv_format)stored;
    out->verifier.sliding_window = json_required_int(&reader, json, "sliding_window", 1, MAX_WINDOW);
    out->page_granule = (size_t)json_int(&reader, json, "page_granule_bytes", 0, MAX_GRANULE, 0);
    if (out->page_granule & (out->page_granule - 1))
        json_fail(&reader, KAKEYA_FORMAT, "page_granule_bytes %zu is no power of two", out->page_granule);
    out->devices = json_int(&reader, json, "devices", 1, MAX_DEVICES, 1);
    out->state_values = json_int(&reader, json, "assistant_state_values", 0, MAX_STATE, 0);
    out->f_theta = read_f_theta(&reader, json);
    read_layers(&reader, json, &out->verifier);
    for (int i = 0; i < out->verifier.layers; i++) {
        int heads = out->verifier.layer[i].kv_heads;
        if (reader.status == KAKEYA_OK && !model_shard_kv_heads((model_shard){0, out->devices}, heads))
            json_fail(&reader, KAKEYA_FORMAT, "%d K/V heads of layers[%d] cannot be divided among %d devices", heads, i,
                      out->devices);
    }
    const cJSON *drafter = json_object(&reader, json, "drafter");
    if (drafter) {
        out->has_drafter = true;
        out->drafter.kv_heads = json_required_int(&reader, drafter, "kv_heads", 1, MAX_HEADS);
        out->drafter.head_dim = json_required_int(&reader, drafter, "head_dim", 1, MAX_HEAD_DIM);
        out->drafter.layers = json_int_array(&reader, drafter, "sliding_windows", 0, MAX_WINDOW,
                                             out->drafter.sliding_window, BLOCK_DRAFTER_MAX_LAYERS);
        if (!out->drafter.layers) json_fail(&reader, KAKEYA_FORMAT, "the drafter has no layers");
    }
    if (reader.status != KAKEYA_OK) return reader.status;

    char derived[20] = "";
    cJSON *described = describe(out);
    bool known = described && fingerprint_of(described, derived);
    cJSON_Delete(described);
    if (!known) return error_set(error, KAKEYA_OUT_OF_MEMORY, "kv_geometry: out of memory");
    const char *stated = json_string(&reader, json, "fingerprint", "");
    if (strcmp(stated, derived) != 0)
        return error_set(error, KAKEYA_FORMAT, "kv_geometry: its fingerprint is %.20s, but its sizes give %s", stated,
                         derived);
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------------ bytes */

backend_cache_bytes kv_geometry_bytes(const kv_geometry *geometry, const eval_arm *arm, int positions) {
    bool restored = strncmp(arm->policy, "restored", 8) == 0;
    /* Plain decoding is measured without a drafter, except where restoration needs the drafter's projections. */
    bool plain = strcmp(arm->mode, "ar") == 0 || strcmp(arm->mode, "ngram") == 0 || strcmp(arm->mode, "reforward") == 0;
    kv_format format = geometry->format;
    for (int f = 0; arm->as_stored && f < KV_FORMAT_COUNT; f++)
        if (strcmp(arm->kv_format, kv_format_name((kv_format)f)) == 0) format = (kv_format)f;
    const backend_cache_options options = {
        .attention = restored                                  ? KAKEYA_ATTENTION_RESTORED
                     : strcmp(arm->policy, "sink-window") == 0 ? KAKEYA_ATTENTION_SINK_WINDOW
                                                               : KAKEYA_ATTENTION_NATIVE,
        .restore_layers = strcmp(arm->policy, "restored-all") == 0 ? KAKEYA_RESTORE_ALL : KAKEYA_RESTORE_SLIDING,
        .sink = arm->sink,
        .window = arm->window,
        .draft_window = arm->draft_window,
        .kv_format = format,
        .keep_draft_context = !plain,
        .keep_draft_state = !plain,
    };
    /* K/V heads are dealt equally, so every device holds the same. */
    model_config part = geometry->verifier;
    for (int i = 0; i < part.layers; i++)
        part.layer[i].kv_heads = model_shard_kv_heads((model_shard){0, geometry->devices}, part.layer[i].kv_heads);
    const assistant_config assistant = {.backbone = geometry->state_values};
    part.hidden = geometry->state_values; /* sizes depend on it in no other way */
    const timeline_models models = {&part, geometry->has_drafter ? &geometry->drafter : NULL, &geometry->f_theta,
                                    geometry->state_values ? &assistant : NULL};
    timeline t = timeline_preview(&models, &options, positions);
    backend_cache_bytes bytes = kv_bytes(&t, geometry->page_granule);
    size_t devices = (size_t)geometry->devices;
    return (backend_cache_bytes){.full = devices * bytes.full,
                                 .sliding = devices * bytes.sliding,
                                 .latent = devices * bytes.latent,
                                 .draft = devices * bytes.draft,
                                 .total = devices * bytes.total};
}
