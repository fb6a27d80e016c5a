/* What configurations say of an assistant, and whether it belongs to a verifier. The text part is a Gemma 4's text
 * configuration, which the reader of those reads, but for its K/V: all layers share those of another model. */
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "base/json.h"
#include "formats/checkpoint.h"
#include "formats/gguf_keys.h"
#include "model/assistant.h"
#include "model/assistant_private.h"
#include "model/gemma4_gguf.h"
#include "model/gemma4_layers.h"

enum { PUBLISHED_CLUSTERS = 2048, PUBLISHED_CHOSEN = 32 };

/* ------------------------------------------------------------------------------------------------- config.json */

static bool is_class(const cJSON *top, bool *unified) {
    const cJSON *list = json_get(top, "architectures");
    const char *type = cJSON_GetStringValue(json_get(top, "model_type"));
    const char *architecture = cJSON_IsArray(list) ? cJSON_GetStringValue(list->child) : NULL;
    *unified = (type && strcmp(type, "gemma4_unified_assistant") == 0) ||
               (architecture && strcmp(architecture, "Gemma4UnifiedAssistantForCausalLM") == 0);
    return *unified || (type && strcmp(type, "gemma4_assistant") == 0) ||
           (architecture && strcmp(architecture, "Gemma4AssistantForCausalLM") == 0);
}

/* Says what an assistant may not be, and takes from its text configuration what only it says. */
static void check_text(json_reader *r, const cJSON *text) {
    int layers = json_int(r, text, "num_hidden_layers", 1, ASSISTANT_MAX_LAYERS, 30);
    int shared = json_int(r, text, "num_kv_shared_layers", 0, MODEL_MAX_LAYERS, layers);
    if (shared != 0 && shared != layers)
        json_fail(r, KAKEYA_UNSUPPORTED,
                  "num_kv_shared_layers is %d of %d layers: all layers of an assistant share the verifier's K/V",
                  shared, layers);
    int width = json_int(r, text, "hidden_size_per_layer_input", 0, MODEL_MAX_WIDTH, 0);
    if (width) json_fail(r, KAKEYA_UNSUPPORTED, "hidden_size_per_layer_input is %d, of an assistant 0", width);
    if (json_bool(r, text, "enable_moe_block", false))
        json_fail(r, KAKEYA_UNSUPPORTED, "enable_moe_block is not supported in an assistant");
    if (json_bool(r, text, "use_double_wide_mlp", false))
        json_fail(r, KAKEYA_UNSUPPORTED, "use_double_wide_mlp is not supported in an assistant");
}

static void read_top(json_reader *r, const cJSON *top, bool unified, assistant_config *c) {
    c->backbone = json_int(r, top, "backbone_hidden_size", 1, MODEL_MAX_WIDTH, unified ? 3840 : 1536);
    if (!json_bool(r, top, "use_ordered_embeddings", false)) return;
    c->clusters = json_int(r, top, "num_centroids", 1, MODEL_MAX_VOCAB, PUBLISHED_CLUSTERS);
    c->chosen_clusters = json_int(r, top, "centroid_intermediate_top_k", 1, MODEL_MAX_VOCAB, PUBLISHED_CHOSEN);
}

/* The text configuration, with no K/V shared, as a Gemma 4's config.json; NULL: no memory. */
static char *as_gemma4(cJSON *top, bool unified) {
    static const char *const gone[] = {"architectures", "model_type"}, *const set[] = {"num_kv_shared_layers",
                                                                                       "hidden_size_per_layer_input"};
    cJSON *text = cJSON_GetObjectItemCaseSensitive(top, "text_config");
    cJSON_DeleteItemFromObjectCaseSensitive(text, "vocab_size_per_layer_input");
    for (int i = 0; i < 2; i++) {
        cJSON_DeleteItemFromObjectCaseSensitive(top, gone[i]);
        cJSON_DeleteItemFromObjectCaseSensitive(text, set[i]);
        if (!cJSON_AddNumberToObject(text, set[i], 0)) return NULL;
    }
    if (!cJSON_AddStringToObject(top, "model_type", unified ? "gemma4_unified" : "gemma4")) return NULL;
    return cJSON_PrintUnformatted(top);
}

/* What must fit together whatever the verifier is. */
static kakeya_status check_clusters(const char *name, const assistant_config *c, kakeya_error *error) {
    if (c->clusters && c->stack.vocab % c->clusters)
        return error_set(error, KAKEYA_FORMAT,
                         "%s: %d tokens cannot be divided evenly among %d clusters "
                         "(num_centroids)",
                         name, c->stack.vocab, c->clusters);
    if (c->chosen_clusters > c->clusters)
        return error_set(error, KAKEYA_FORMAT, "%s: %d clusters are chosen (centroid_intermediate_top_k) of %d", name,
                         c->chosen_clusters, c->clusters);
    return KAKEYA_OK;
}

kakeya_status assistant_config_parse(const char *name, const char *json, size_t json_bytes, assistant_config *out,
                                     kakeya_error *error) {
    memset(out, 0, sizeof *out);
    cJSON *top = NULL;
    char *text = NULL;
    bool unified = false;
    kakeya_status status = json_parse_object(name, json, json_bytes, &top, error);
    if (status == KAKEYA_OK) status = json_refuse_repeated_keys(name, top, error);
    json_reader r = {.name = name, .error = error};
    if (status == KAKEYA_OK && !is_class(top, &unified))
        json_fail(&r, KAKEYA_FORMAT, "does not look like an MTP assistant: model_type is not gemma4_assistant");
    else if (status == KAKEYA_OK && !json_object(&r, top, "text_config"))
        json_fail(&r, KAKEYA_FORMAT, "text_config is missing");
    if (status == KAKEYA_OK && r.status == KAKEYA_OK) {
        check_text(&r, json_get(top, "text_config"));
        read_top(&r, top, unified, out);
    }
    if (status == KAKEYA_OK) status = r.status;
    if (status == KAKEYA_OK) {
        text = as_gemma4(top, unified);
        if (!text) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", name);
    }
    cJSON_Delete(top);
    if (status == KAKEYA_OK) status = model_config_parse(name, text, strlen(text), NULL, 0, &out->stack, error);
    cJSON_free(text);
    return status == KAKEYA_OK ? check_clusters(name, out, error) : status;
}

/* --------------------------------------------------------------------------------------------------------- GGUF */

static const char architecture[] = "gemma4-assistant", older[] = "gemma4_assistant";

/* Some files have the clusters of the head, under keys that not all of them have. */
static void read_clusters(gguf_keys *r, assistant_config *c) {
    ptrdiff_t centroids = gguf_find_tensor(r->file, ASSISTANT_GGUF_CENTROIDS);
    if (centroids < 0 || gguf_find_tensor(r->file, ASSISTANT_GGUF_ORDERING) < 0) return;
    if (!gguf_keys_bool(r, "gemma4-assistant.use_ordered_embeddings", true)) return;
    const gguf_tensor *t = r->file->tensors[centroids];
    if (t->dims != 2 || t->ne[1] < 1 || t->ne[1] > MODEL_MAX_VOCAB) {
        gguf_keys_fail(r, KAKEYA_FORMAT, "tensor %s is no matrix of centroids", t->name);
        return;
    }
    c->clusters = (int)t->ne[1];
    long long stated = gguf_keys_int(r, "gemma4-assistant.n_centroids", 1, MODEL_MAX_VOCAB, c->clusters);
    if (stated != c->clusters)
        gguf_keys_fail(r, KAKEYA_FORMAT, "key gemma4-assistant.n_centroids is %lld, but tensor %s has %d rows", stated,
                       t->name, c->clusters);
    int usual = c->clusters < PUBLISHED_CHOSEN ? c->clusters : PUBLISHED_CHOSEN;
    c->chosen_clusters = (int)gguf_keys_int(r, "gemma4-assistant.centroid_top_k", 1, MODEL_MAX_VOCAB, usual);
}

static void read_keys(gguf_keys *r, assistant_config *c) {
    gguf_text name = {0};
    char shown[GGUF_SHOWN_BYTES];
    if (!gguf_keys_architecture(r, &name)) return;
    if (gguf_text_is(name, older)) {
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED,
                       "general.architecture is %s, an older dialect of assistants: take a file that says %s", older,
                       architecture);
        return;
    }
    if (!gguf_text_is(name, architecture)) {
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "general.architecture is %s, but an MTP assistant's is %s",
                       gguf_show(name.data, name.bytes, shown), architecture);
        return;
    }
    c->backbone = (int)gguf_keys_required_int(r, "gemma4-assistant.embedding_length_out", 1, MODEL_MAX_WIDTH);
    if (r->status == KAKEYA_OK) gemma4_gguf_assistant(r, &c->stack);
    if (r->status == KAKEYA_OK && c->stack.layers > ASSISTANT_MAX_LAYERS)
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "key gemma4-assistant.block_count is %d, of an assistant at most %d",
                       c->stack.layers, (int)ASSISTANT_MAX_LAYERS);
    if (r->status == KAKEYA_OK) read_clusters(r, c);
}

kakeya_status assistant_gguf_config(const gguf *file, assistant_config *out, kakeya_error *error) {
    memset(out, 0, sizeof *out);
    gguf_keys r = {.file = file, .error = error};
    read_keys(&r, out);
    return r.status == KAKEYA_OK ? check_clusters(gguf_path(file), out, error) : r.status;
}

/* -------------------------------------------------------------------------------------------------- wherever it is */

static kakeya_status no_memory_alone(kakeya_status status, const char *path, kakeya_error *error) {
    if (status != KAKEYA_OUT_OF_MEMORY) return KAKEYA_OK;
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", path);
}

static kakeya_status look_into_file(const char *path, bool *found, kakeya_error *error) {
    gguf *file;
    gguf_text name = {0};
    kakeya_status status = gguf_open(path, &file, NULL);
    if (status != KAKEYA_OK) return no_memory_alone(status, path, error);
    gguf_keys r = {.file = file};
    *found = gguf_keys_text(&r, "general.architecture", &name) &&
             (gguf_text_is(name, architecture) || gguf_text_is(name, older));
    gguf_close(file);
    return KAKEYA_OK;
}

kakeya_status assistant_is_at(const char *path, bool *found, kakeya_error *error) {
    *found = false;
    if (gguf_is_file(path)) return look_into_file(path, found, error);
    char *name = NULL, *text = NULL;
    size_t bytes = 0;
    cJSON *top = NULL;
    bool unified;
    kakeya_status status = checkpoint_text(path, "config.json", false, &name, &text, &bytes, NULL);
    if (status == KAKEYA_OK) status = json_parse_object(name, text, bytes, &top, NULL);
    if (status == KAKEYA_OK) *found = is_class(top, &unified);
    cJSON_Delete(top);
    free(text);
    free(name);
    return no_memory_alone(status, path, error);
}

kakeya_status assistant_config_read(const char *path, assistant_config *out, kakeya_error *error) {
    if (gguf_is_file(path)) {
        gguf *file;
        kakeya_status status = gguf_open(path, &file, error);
        if (status != KAKEYA_OK) return status;
        status = assistant_gguf_config(file, out, error);
        gguf_close(file);
        return status;
    }
    char *name = NULL, *text = NULL;
    size_t bytes = 0;
    kakeya_status status = checkpoint_text(path, "config.json", false, &name, &text, &bytes, error);
    if (status == KAKEYA_OK) status = assistant_config_parse(name, text, bytes, out, error);
    free(text);
    free(name);
    return status;
}

/* ------------------------------------------------------------------------------------------------- the verifier */

int assistant_source(const model_config *verifier, layer_type type) {
    for (int i = verifier->layers - 1; i >= 0; i--)
        if (verifier->layer[i].type == type && verifier->layer[i].kv_source == i) return i;
    return -1;
}

static kakeya_status differs(const char *name, const char *what, int own, int verifier, kakeya_error *error) {
    return error_set(error, KAKEYA_FORMAT, "%s: the assistant's %s is %d, the verifier's %d", name, what, own,
                     verifier);
}

static kakeya_status check_layer(const char *name, const assistant_config *c, const model_config *verifier, int layer,
                                 kakeya_error *error) {
    const layer_config *l = &c->stack.layer[layer];
    const rope_config *own = &c->stack.rope[l->type], *rope = &verifier->rope[l->type];
    bool full = l->type == LAYER_FULL;
    int source = assistant_source(verifier, l->type);
    if (source < 0)
        return error_set(error, KAKEYA_FORMAT,
                         "%s: layer %d of the assistant is %s, of which the verifier has no layer with K/V", name,
                         layer, layer_type_name(l->type));
    const layer_config *kv = &verifier->layer[source];
    if (l->head_dim != kv->head_dim)
        return differs(name, full ? "head dimension of full layers" : "head dimension of sliding layers", l->head_dim,
                       kv->head_dim, error);
    if (l->kv_heads != kv->kv_heads)
        return differs(name, full ? "number of K/V heads of full layers" : "number of K/V heads of sliding layers",
                       l->kv_heads, kv->kv_heads, error);
    if (!full && c->stack.sliding_window != verifier->sliding_window)
        return differs(name, "sliding_window", c->stack.sliding_window, verifier->sliding_window, error);
    if (own->rotated_pairs != rope->rotated_pairs)
        return differs(name, "number of rotated pairs", own->rotated_pairs, rope->rotated_pairs, error);
    if (own->theta != rope->theta || own->factor != rope->factor)
        return error_set(error, KAKEYA_FORMAT,
                         "%s: RoPE of the assistant's %s layers has theta %g and factor %g, the verifier's %g and %g",
                         name, layer_type_name(l->type), (double)own->theta, (double)own->factor, (double)rope->theta,
                         (double)rope->factor);
    return KAKEYA_OK;
}

kakeya_status assistant_config_fits(const char *name, const assistant_config *c, const model_config *verifier,
                                    kakeya_error *error) {
    if (verifier->generation != GEMMA_4)
        return error_set(error, KAKEYA_FORMAT, "%s: assistants draft for Gemma 4, the verifier is a Gemma 3", name);
    if (c->backbone != verifier->hidden)
        return differs(name, "backbone_hidden_size", c->backbone, verifier->hidden, error);
    if (c->stack.vocab != verifier->vocab) return differs(name, "vocabulary", c->stack.vocab, verifier->vocab, error);
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < c->stack.layers && status == KAKEYA_OK; i++) status = check_layer(name, c, verifier, i, error);
    return status;
}

void assistant_config_published(const model_config *verifier, assistant_config *out) {
    enum { LAYERS = 4 };
    bool small = verifier->ple_width > 0;
    memset(out, 0, sizeof *out);
    out->stack = *verifier;
    model_config *c = &out->stack;
    c->layers = LAYERS;
    c->hidden = small ? 256 : 1024;
    c->heads = small ? verifier->heads / 2 : verifier->heads;
    c->logit_softcap = 0;
    c->tied_head = true;
    c->moe = false;
    c->experts = c->experts_per_token = c->expert_intermediate = c->ple_width = c->ple_vocab = c->shared_kv_layers = 0;
    for (int i = 0; i < LAYERS; i++) {
        layer_type type = i + 1 < LAYERS ? LAYER_SLIDING : LAYER_FULL;
        int source = assistant_source(verifier, type);
        if (source < 0) source = assistant_source(verifier, type == LAYER_FULL ? LAYER_SLIDING : LAYER_FULL);
        c->layer[i] = verifier->layer[source];
        c->layer[i].kv_source = i;
        c->layer[i].intermediate = small ? 2048 : 8192;
    }
    out->backbone = verifier->hidden;
    out->clusters = small ? PUBLISHED_CLUSTERS : 0;
    out->chosen_clusters = small ? PUBLISHED_CHOSEN : 0;
}
