#include "train/drafter_files.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "backend/weight_values.h"
#include "base/files.h"
#include "base/float16.h"
#include "formats/safetensors.h"
#include "model/assistant_values.h"
#include "model/block_drafter_values.h"
#include "model/gemma4_layers.h"
#include "model/tensors.h"
#include "train/outputs.h"

/* ------------------------------------------------------------------------------------------------------- reading */

typedef struct read_walk {
    const void *from;        /* what the walk's offsets mean */
    const int32_t *token_of; /* an assistant's head lies so; else NULL */
    float *values;
    size_t n;
} read_walk;

static kakeya_status read_slot(void *context, const tensor_slot *slot, kakeya_error *error) {
    (void)error;
    read_walk *w = context;
    const char *at = (const char *)w->from + slot->offset;
    size_t n = (size_t)tensor_slot_elements(slot);
    if (slot->kind == SLOT_IGNORED) return KAKEYA_OK;
    if (slot->kind == SLOT_MATRIX) {
        weight matrix;
        memcpy(&matrix, at, sizeof matrix);
        bool ordered = w->token_of && slot->offset == offsetof(assistant_weights, stack.head);
        for (int r = 0; r < matrix.out; r++) {
            int row = ordered ? w->token_of[r] : r;
            weight_values(&matrix, r, 0, matrix.in, w->values + w->n + (size_t)row * (size_t)matrix.in);
        }
    } else if (slot->kind == SLOT_SCALAR) {
        memcpy(w->values + w->n, at, sizeof(float));
    } else {
        const float *vector;
        memcpy(&vector, at, sizeof vector);
        memcpy(w->values + w->n, vector, n * sizeof *vector);
    }
    w->n += n;
    return KAKEYA_OK;
}

kakeya_status drafter_read(const kakeya_engine *engine, float *values, kakeya_error *error) {
    read_walk walk = {.from = engine->drafter, .values = values};
    return dflash_walk(&engine->drafter->config, read_slot, &walk, error);
}

kakeya_status assistant_read(const kakeya_engine *engine, float *values, kakeya_error *error) {
    const assistant_weights *from = &engine->assistant->weights;
    read_walk walk = {.from = from, .token_of = from->token_of, .values = values};
    return assistant_walk(&engine->assistant->config, read_slot, &walk, error);
}

/* ------------------------------------------------------------------------------------------------------- writing */

typedef struct write_walk {
    safetensors_entry *entry; /* NULL: counted */
    char (*name)[SLOT_NAME_BYTES];
    size_t n;
    bool bf16;
} write_walk;

static kakeya_status list_slot(void *context, const tensor_slot *slot, kakeya_error *error) {
    (void)error;
    write_walk *w = context;
    if (slot->kind == SLOT_IGNORED) return KAKEYA_OK;
    if (w->entry) {
        memcpy(w->name[w->n], slot->name, sizeof slot->name);
        safetensors_entry *e = &w->entry[w->n];
        *e = (safetensors_entry){.name = w->name[w->n], .type = w->bf16 ? TENSOR_BF16 : TENSOR_F32, .dims = slot->dims};
        for (int i = 0; i < slot->dims; i++) e->shape[i] = slot->shape[i];
    }
    w->n++;
    return KAKEYA_OK;
}

static kakeya_status write_values(safetensors_writer *writer, const float *values, size_t n, bool bf16,
                                  kakeya_error *error) {
    enum { AT_ONCE = 4096 };
    uint16_t rounded[AT_ONCE];
    kakeya_status status = KAKEYA_OK;
    if (!bf16) return safetensors_writer_write(writer, values, n * sizeof *values, error);
    for (size_t at = 0, some; at < n && !status; at += some) {
        some = n - at < AT_ONCE ? n - at : AT_ONCE;
        for (size_t i = 0; i < some; i++) rounded[i] = f32_to_bf16(values[at + i]);
        status = safetensors_writer_write(writer, rounded, some * sizeof *rounded, error);
    }
    return status;
}

/* What is written where; its `described` is deleted. */
typedef struct folder {
    tensor_walk tensors;
    const void *shape;
    const float *values;
    size_t n;
    cJSON *described; /* config.json; NULL: out of memory */
    bool bf16;
    const int32_t *token_of; /* of an assistant with clusters: [vocab] */
    int vocab;
} folder;

static kakeya_status write_order(safetensors_writer *writer, const int32_t *order, int n, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < n && !status; i++) {
        const int64_t token = order[i];
        status = safetensors_writer_write(writer, &token, sizeof token, error);
    }
    return status;
}

/* The tensors lie one behind the other, in the file as in the array; an order of tokens comes last. */
static kakeya_status write_weights(const folder *f, const char *path, kakeya_error *error) {
    write_walk walk = {.bf16 = f->bf16};
    f->tensors(f->shape, list_slot, &walk, NULL);
    size_t n = walk.n + (f->token_of != NULL);
    walk = (write_walk){.entry = calloc(n, sizeof *walk.entry), .name = calloc(n, sizeof *walk.name), .bf16 = f->bf16};
    safetensors_writer *writer = NULL;
    kakeya_status status = KAKEYA_OK;
    if (!walk.entry || !walk.name) {
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", path);
    } else {
        f->tensors(f->shape, list_slot, &walk, NULL);
        if (f->token_of)
            walk.entry[walk.n] = (safetensors_entry){
                .name = "masked_embedding.token_ordering", .type = TENSOR_I64, .dims = 1, .shape = {f->vocab}};
        status = safetensors_writer_open(path, walk.entry, n, &writer, error);
    }
    if (!status) status = write_values(writer, f->values, f->n, f->bf16, error);
    if (!status && f->token_of) status = write_order(writer, f->token_of, f->vocab, error);
    if (writer && !status)
        status = safetensors_writer_commit(writer, error);
    else
        safetensors_writer_abort(writer);
    free(walk.entry);
    free(walk.name);
    return status;
}

static int widest_window(const block_drafter_config *c) {
    int window = 0;
    for (int i = 0; i < c->layers; i++) {
        if (c->sliding_window[i] > window) window = c->sliding_window[i];
    }
    return window;
}

static cJSON *config_json(const block_drafter_config *c, bool bf16) {
    cJSON *json = cJSON_CreateObject(), *architectures = cJSON_AddArrayToObject(json, "architectures");
    if (!architectures) {
        cJSON_Delete(json);
        return NULL;
    }
    cJSON_AddItemToArray(architectures, cJSON_CreateString("DFlashDraftModel"));
    cJSON_AddStringToObject(json, "model_type", "qwen3");
    cJSON_AddStringToObject(json, "dtype", bf16 ? "bfloat16" : "float32");
    cJSON_AddNumberToObject(json, "hidden_size", c->hidden);
    cJSON_AddNumberToObject(json, "num_hidden_layers", c->layers);
    cJSON_AddNumberToObject(json, "num_attention_heads", c->heads);
    cJSON_AddNumberToObject(json, "num_key_value_heads", c->kv_heads);
    cJSON_AddNumberToObject(json, "head_dim", c->head_dim);
    cJSON_AddNumberToObject(json, "intermediate_size", c->intermediate);
    cJSON_AddNumberToObject(json, "vocab_size", c->vocab);
    cJSON_AddNumberToObject(json, "rms_norm_eps", (double)c->rms_eps);
    cJSON_AddNumberToObject(json, "rope_theta", (double)c->rope_theta);
    cJSON_AddStringToObject(json, "hidden_act", "silu");
    cJSON_AddFalseToObject(json, "attention_bias");
    cJSON_AddNumberToObject(json, "block_size", c->block_size);
    if (c->target_layers_total) cJSON_AddNumberToObject(json, "num_target_layers", c->target_layers_total);
    if (c->logit_softcap > 0) cJSON_AddNumberToObject(json, "final_logit_softcapping", (double)c->logit_softcap);
    if (widest_window(c)) cJSON_AddNumberToObject(json, "sliding_window", widest_window(c));
    cJSON *types = cJSON_AddArrayToObject(json, "layer_types");
    for (int i = 0; i < c->layers; i++)
        cJSON_AddItemToArray(types, cJSON_CreateString(c->sliding_window[i] ? "sliding_attention" : "full_attention"));
    cJSON *own = cJSON_AddObjectToObject(json, "dflash_config");
    cJSON_AddItemToObject(own, "target_layer_ids", cJSON_CreateIntArray(c->target_layer, c->targets));
    cJSON_AddNumberToObject(own, "mask_token_id", c->mask_token);
    cJSON_AddNumberToObject(own, "block_size", c->block_size);
    return json;
}

static kakeya_status write_folder(const folder *f, const char *directory, kakeya_error *error) {
    char *weights = path_join(directory, "model.safetensors"), *described = path_join(directory, "config.json");
    kakeya_status status = KAKEYA_OK;
    if (!weights || !described || !f->described)
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", directory);
    if (!status) status = write_weights(f, weights, error);
    if (!status) status = train_write_json(described, f->described, error);
    cJSON_Delete(f->described);
    free(weights);
    free(described);
    return status;
}

kakeya_status drafter_write(const block_drafter_config *config, const float *values, bool bf16, const char *directory,
                            kakeya_error *error) {
    const folder f = {.tensors = dflash_walk,
                      .shape = config,
                      .values = values,
                      .n = block_drafter_values_count(config),
                      .described = config_json(config, bf16),
                      .bf16 = bf16};
    return write_folder(&f, directory, error);
}

/* ---------------------------------------------------------------------------------------------------- assistants */

static const layer_config *layer_of_type(const model_config *c, layer_type type) {
    for (int i = 0; i < c->layers; i++) {
        if (c->layer[i].type == type) return &c->layer[i];
    }
    return &c->layer[0];
}

static void add_rope(cJSON *all, const model_config *c, layer_type type) {
    const rope_config *rope = &c->rope[type];
    int d = layer_of_type(c, type)->head_dim;
    cJSON *one = cJSON_AddObjectToObject(all, layer_type_name(type));
    cJSON_AddStringToObject(one, "rope_type", type == LAYER_FULL ? "proportional" : "default");
    if (type == LAYER_FULL) cJSON_AddNumberToObject(one, "partial_rotary_factor", 2.0 * rope->rotated_pairs / d);
    cJSON_AddNumberToObject(one, "rope_theta", (double)rope->theta);
}

static void add_text_config(cJSON *json, const model_config *c) {
    const layer_config *sliding = layer_of_type(c, LAYER_SLIDING), *full = layer_of_type(c, LAYER_FULL);
    cJSON *text = cJSON_AddObjectToObject(json, "text_config"), *types = cJSON_AddArrayToObject(text, "layer_types");
    for (int i = 0; i < c->layers; i++)
        cJSON_AddItemToArray(types, cJSON_CreateString(layer_type_name(c->layer[i].type)));
    cJSON_AddStringToObject(text, "model_type", "gemma4_text");
    cJSON_AddNumberToObject(text, "vocab_size", c->vocab);
    cJSON_AddNumberToObject(text, "hidden_size", c->hidden);
    cJSON_AddNumberToObject(text, "num_hidden_layers", c->layers);
    cJSON_AddNumberToObject(text, "num_kv_shared_layers", c->layers);
    cJSON_AddNumberToObject(text, "num_attention_heads", c->heads);
    cJSON_AddNumberToObject(text, "num_key_value_heads", sliding->kv_heads);
    cJSON_AddNumberToObject(text, "head_dim", sliding->head_dim);
    cJSON_AddNumberToObject(text, "global_head_dim", full->head_dim);
    cJSON_AddNumberToObject(text, "num_global_key_value_heads", full->kv_heads);
    /* says that the number above counts; of an assistant nothing else */
    cJSON_AddBoolToObject(text, "attention_k_eq_v", full->k_eq_v || full->kv_heads != sliding->kv_heads);
    cJSON_AddNumberToObject(text, "intermediate_size", c->layer[0].intermediate);
    cJSON_AddNumberToObject(text, "sliding_window", c->sliding_window);
    cJSON *rope = cJSON_AddObjectToObject(text, "rope_parameters");
    add_rope(rope, c, LAYER_SLIDING);
    add_rope(rope, c, LAYER_FULL);
    cJSON_AddNumberToObject(text, "rms_norm_eps", (double)c->rms_eps);
    if (c->logit_softcap > 0)
        cJSON_AddNumberToObject(text, "final_logit_softcapping", (double)c->logit_softcap);
    else
        cJSON_AddNullToObject(text, "final_logit_softcapping");
    cJSON_AddNumberToObject(text, "hidden_size_per_layer_input", 0);
    cJSON_AddNumberToObject(text, "vocab_size_per_layer_input", 0);
    cJSON_AddFalseToObject(text, "enable_moe_block");
    cJSON_AddFalseToObject(text, "use_double_wide_mlp");
    cJSON_AddFalseToObject(text, "attention_bias");
    cJSON_AddBoolToObject(text, "tie_word_embeddings", c->tied_head);
    cJSON_AddStringToObject(text, "hidden_activation", "gelu_pytorch_tanh");
    cJSON_AddNumberToObject(text, "max_position_embeddings", c->max_context);
}

static cJSON *assistant_json(const assistant_config *c, bool bf16) {
    cJSON *json = cJSON_CreateObject(), *architectures = cJSON_AddArrayToObject(json, "architectures");
    if (!architectures) {
        cJSON_Delete(json);
        return NULL;
    }
    cJSON_AddItemToArray(architectures, cJSON_CreateString("Gemma4AssistantForCausalLM"));
    cJSON_AddStringToObject(json, "model_type", "gemma4_assistant");
    cJSON_AddStringToObject(json, "dtype", bf16 ? "bfloat16" : "float32");
    cJSON_AddNumberToObject(json, "backbone_hidden_size", c->backbone);
    cJSON_AddBoolToObject(json, "use_ordered_embeddings", c->clusters > 0);
    if (c->clusters) {
        cJSON_AddNumberToObject(json, "num_centroids", c->clusters);
        cJSON_AddNumberToObject(json, "centroid_intermediate_top_k", c->chosen_clusters);
    }
    cJSON_AddBoolToObject(json, "tie_word_embeddings", c->stack.tied_head);
    add_text_config(json, &c->stack);
    return json;
}

kakeya_status assistant_write(const assistant_config *config, const int32_t *token_of, const float *values, bool bf16,
                              const char *directory, kakeya_error *error) {
    const folder f = {.tensors = assistant_walk,
                      .shape = config,
                      .values = values,
                      .n = assistant_values_count(config),
                      .described = assistant_json(config, bf16),
                      .bf16 = bf16,
                      .token_of = config->clusters ? token_of : NULL,
                      .vocab = config->stack.vocab};
    return write_folder(&f, directory, error);
}
