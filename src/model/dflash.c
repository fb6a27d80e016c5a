#include "model/block_drafter.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "formats/gguf.h"
#include "model/tensors.h"

enum {
    MAX_WIDTH = 1 << 17,
    MAX_HEADS = 1024,
    MAX_HEAD_DIM = 4096,
    MAX_VOCAB = 1 << 24,
    MAX_CONTEXT = 1 << 28,
    MAX_BLOCK = 256
};

/* ------------------------------------------------------------------------------------------ configuration */

static void read_layer_types(json_reader *r, const cJSON *top, block_drafter_config *c) {
    const cJSON *types = json_array(r, top, "layer_types");
    if (!types) return; /* all full */
    int n = cJSON_GetArraySize(types);
    if (n != c->layers) {
        json_fail(r, KAKEYA_FORMAT, "layer_types has %d entries, num_hidden_layers is %d", n, c->layers);
        return;
    }
    int window = json_int(r, top, "sliding_window", 1, MAX_CONTEXT, 0);
    const cJSON *type;
    int i = 0;
    cJSON_ArrayForEach(type, types) {
        const char *name = cJSON_IsString(type) ? type->valuestring : "(not a string)";
        if (strcmp(name, "sliding_attention") == 0) {
            if (!window)
                json_fail(r, KAKEYA_FORMAT, "layer_types[%d] is sliding_attention, but sliding_window is missing", i);
            c->sliding_window[i] = window;
        } else if (strcmp(name, "full_attention") != 0) {
            json_fail(r, KAKEYA_UNSUPPORTED, "layer_types[%d]: unknown layer type \"%s\"", i, name);
        }
        i++;
    }
}

static void read_drafting(json_reader *r, const cJSON *top, block_drafter_config *c) {
    const cJSON *own = json_object(r, top, "dflash_config");
    const cJSON *targets = json_array(r, own, "target_layer_ids");
    if (!targets || !targets->child) {
        json_fail(r, KAKEYA_FORMAT,
                  "does not look like a DFlash drafter checkpoint: dflash_config.target_layer_ids is missing or empty");
        return;
    }
    c->target_layers_total = json_int(r, top, "num_target_layers", 1, MODEL_MAX_LAYERS, 0);
    int limit = c->target_layers_total ? c->target_layers_total : MODEL_MAX_LAYERS;
    c->targets = json_int_array(r, own, "target_layer_ids", 0, limit - 1, c->target_layer, BLOCK_DRAFTER_MAX_TARGETS);
    c->mask_token = json_required_int(r, own, "mask_token_id", 0, c->vocab - 1);
    const cJSON *block_owner = json_get(own, "block_size") ? own : top;
    c->block_size = json_required_int(r, block_owner, "block_size", 2, MAX_BLOCK);
}

static void read_config(json_reader *r, const cJSON *top, block_drafter_config *c) {
    c->hidden = json_required_int(r, top, "hidden_size", 1, MAX_WIDTH);
    c->layers = json_required_int(r, top, "num_hidden_layers", 1, BLOCK_DRAFTER_MAX_LAYERS);
    c->heads = json_required_int(r, top, "num_attention_heads", 1, MAX_HEADS);
    c->kv_heads = json_required_int(r, top, "num_key_value_heads", 1, MAX_HEADS);
    c->head_dim = json_int(r, top, "head_dim", 2, MAX_HEAD_DIM, c->hidden / c->heads);
    c->intermediate = json_required_int(r, top, "intermediate_size", 1, MAX_WIDTH);
    c->vocab = json_required_int(r, top, "vocab_size", 1, MAX_VOCAB);
    c->rms_eps = (float)json_number(r, top, "rms_norm_eps", 0, 1, 1e-6);
    const cJSON *rope = json_object(r, top, "rope_parameters"); /* re-saved configurations keep theta there */
    c->rope_theta = (float)json_number(r, top, "rope_theta", 1, 1e12, json_number(r, rope, "rope_theta", 1, 1e12, 1e6));
    c->logit_softcap = (float)json_number(r, top, "final_logit_softcapping", 0, 1e6, 0);

    const char *activation = json_string(r, top, "hidden_act", "silu");
    if (strcmp(activation, "silu") != 0)
        json_fail(r, KAKEYA_UNSUPPORTED, "hidden_act \"%s\" is not supported (silu)", activation);
    if (json_bool(r, top, "attention_bias", false)) json_fail(r, KAKEYA_UNSUPPORTED, "attention_bias is not supported");
    if (json_get(top, "rope_scaling")) json_fail(r, KAKEYA_UNSUPPORTED, "rope_scaling is not supported");
    const char *kind = json_string(r, rope, "rope_type", "default");
    if (strcmp(kind, "default") != 0)
        json_fail(r, KAKEYA_UNSUPPORTED, "rope_parameters.rope_type \"%s\" is not supported (default)", kind);
    if (json_get(top, "quantization_config"))
        json_fail(r, KAKEYA_UNSUPPORTED, "quantization_config: quantised checkpoints are not supported");
    if (r->status != KAKEYA_OK) return; /* the layer count is not to be trusted */
    if (c->heads % c->kv_heads)
        json_fail(r, KAKEYA_FORMAT, "%d attention heads cannot share %d K/V heads evenly", c->heads, c->kv_heads);
    if (c->head_dim < 2 || c->head_dim % 2)
        json_fail(r, KAKEYA_FORMAT, "head dimension %d is not a positive even number", c->head_dim);
    read_layer_types(r, top, c);
    read_drafting(r, top, c);
}

kakeya_status block_drafter_config_parse(const char *name, const char *json, size_t json_bytes,
                                         block_drafter_config *out, kakeya_error *error) {
    memset(out, 0, sizeof *out);
    cJSON *top = NULL;
    kakeya_status status = json_parse_object(name, json, json_bytes, &top, error);
    if (status == KAKEYA_OK) status = json_refuse_repeated_keys(name, top, error);
    if (status != KAKEYA_OK) {
        cJSON_Delete(top);
        return status;
    }
    json_reader reader = {.name = name, .error = error};
    /* Said first: a verifier's directory given by mistake has all the other keys. */
    if (!json_get(json_get(top, "dflash_config"), "target_layer_ids"))
        json_fail(&reader, KAKEYA_FORMAT,
                  "does not look like a DFlash drafter checkpoint: dflash_config.target_layer_ids is missing or empty");
    else
        read_config(&reader, top, out);
    cJSON_Delete(top);
    return reader.status;
}

kakeya_status block_drafter_config_fits(const char *name, const block_drafter_config *c, const model_config *verifier,
                                        kakeya_error *error) {
    if (c->hidden != verifier->hidden)
        return error_set(error, KAKEYA_FORMAT, "%s: the drafter's hidden_size is %d, the verifier's %d", name,
                         c->hidden, verifier->hidden);
    if (c->vocab != verifier->vocab)
        return error_set(error, KAKEYA_FORMAT, "%s: the drafter's vocab_size is %d, the verifier's %d", name, c->vocab,
                         verifier->vocab);
    if (c->target_layers_total && c->target_layers_total != verifier->layers)
        return error_set(error, KAKEYA_FORMAT,
                         "%s: the drafter was made for a verifier of %d layers (num_target_layers), this one has %d",
                         name, c->target_layers_total, verifier->layers);
    for (int i = 0; i < c->targets; i++) {
        if (c->target_layer[i] >= verifier->layers)
            return error_set(error, KAKEYA_FORMAT, "%s: target_layer_ids[%d] is %d, the verifier has %d layers", name,
                             i, c->target_layer[i], verifier->layers);
    }
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------ tensor list */

typedef struct walker {
    tensor_visit visit;
    void *context;
    kakeya_error *error;
    kakeya_status status;
    int layer; /* -1: global tensors */
} walker;

/* Fan-in scaling keeps activations of any width near one; the model has no norm behind its projections. */
static void visit(walker *w, tensor_kind kind, parameter_group group, const char *path, size_t offset, int dims,
                  int64_t a, int64_t b) {
    if (w->status != KAKEYA_OK) return;
    tensor_slot slot = {.kind = kind,
                        .group = group,
                        .dims = dims,
                        .shape = {a, b},
                        .offset = offset,
                        .synthetic = kind == SLOT_MATRIX ? 1.0f / sqrtf((float)b) : 1.0f};
    if (w->layer >= 0) {
        snprintf(slot.name, sizeof slot.name, "layers.%d.%s", w->layer, path);
        slot.offset += offsetof(block_drafter_model, layer) + (size_t)w->layer * sizeof(block_drafter_layer_weights);
    } else {
        snprintf(slot.name, sizeof slot.name, "%s", path);
    }
    w->status = w->visit(w->context, &slot, w->error);
}

#define IN_LAYER(field) offsetof(block_drafter_layer_weights, field)

kakeya_status dflash_walk(const void *shape, tensor_visit visitor, void *context, kakeya_error *error) {
    const block_drafter_config *c = shape;
    walker w = {.visit = visitor, .context = context, .error = error, .layer = -1};
    int64_t hidden = c->hidden, queries = (int64_t)c->heads * c->head_dim, keys = (int64_t)c->kv_heads * c->head_dim;
    visit(&w, SLOT_MATRIX, PARAMETERS_ATTENTION, "fc.weight", offsetof(block_drafter_model, fc), 2, hidden,
          c->targets * hidden);
    visit(&w, SLOT_VECTOR, PARAMETERS_NORMS, "hidden_norm.weight", offsetof(block_drafter_model, hidden_norm), 1,
          hidden, 0);
    visit(&w, SLOT_VECTOR, PARAMETERS_NORMS, "norm.weight", offsetof(block_drafter_model, norm), 1, hidden, 0);
    for (w.layer = 0; w.layer < c->layers; w.layer++) {
        visit(&w, SLOT_VECTOR, PARAMETERS_NORMS, "input_layernorm.weight", IN_LAYER(input_norm), 1, hidden, 0);
        visit(&w, SLOT_VECTOR, PARAMETERS_NORMS, "post_attention_layernorm.weight", IN_LAYER(post_attention_norm), 1,
              hidden, 0);
        visit(&w, SLOT_MATRIX, PARAMETERS_ATTENTION, "self_attn.q_proj.weight", IN_LAYER(q_proj), 2, queries, hidden);
        visit(&w, SLOT_MATRIX, PARAMETERS_ATTENTION, "self_attn.k_proj.weight", IN_LAYER(k_proj), 2, keys, hidden);
        visit(&w, SLOT_MATRIX, PARAMETERS_ATTENTION, "self_attn.v_proj.weight", IN_LAYER(v_proj), 2, keys, hidden);
        visit(&w, SLOT_MATRIX, PARAMETERS_ATTENTION, "self_attn.o_proj.weight", IN_LAYER(o_proj), 2, hidden, queries);
        visit(&w, SLOT_VECTOR, PARAMETERS_NORMS, "self_attn.q_norm.weight", IN_LAYER(q_norm), 1, c->head_dim, 0);
        visit(&w, SLOT_VECTOR, PARAMETERS_NORMS, "self_attn.k_norm.weight", IN_LAYER(k_norm), 1, c->head_dim, 0);
        visit(&w, SLOT_MATRIX, PARAMETERS_DENSE_MLP, "mlp.gate_proj.weight", IN_LAYER(gate_proj), 2, c->intermediate,
              hidden);
        visit(&w, SLOT_MATRIX, PARAMETERS_DENSE_MLP, "mlp.up_proj.weight", IN_LAYER(up_proj), 2, c->intermediate,
              hidden);
        visit(&w, SLOT_MATRIX, PARAMETERS_DENSE_MLP, "mlp.down_proj.weight", IN_LAYER(down_proj), 2, hidden,
              c->intermediate);
    }
    return w.status;
}

/* ------------------------------------------------------------------------------------------------ models */

/* The layers that the authors' rule picks: evenly spread from layer 1 to the third from the end. */
static void spread_targets(int verifier_layers, int targets, block_drafter_config *c) {
    memset(c->target_layer, 0, sizeof c->target_layer);
    c->targets = verifier_layers - 3 < targets ? verifier_layers - 3 : targets;
    if (c->targets <= 1) {
        c->targets = 1;
        c->target_layer[0] = verifier_layers / 2;
        return;
    }
    for (int i = 0; i < c->targets; i++)
        c->target_layer[i] = (int)lround(1 + (double)i * (verifier_layers - 4) / (c->targets - 1));
}

/* Published drafters: 32 heads at hidden 2816, 64 at 5376 (multiples of the 8 K/V heads near hidden / 88), five layers
 * of which four slide, an MLP twice as wide as the hidden size. */
static void published_shape(const model_config *verifier, block_drafter_config *c) {
    enum { PUBLISHED_TARGETS = 6 };
    int head_groups = (int)lround(verifier->hidden / (88.0 * 8));
    *c = (block_drafter_config){
        .layers = 5,
        .hidden = verifier->hidden,
        .heads = 8 * (head_groups > 0 ? head_groups : 1),
        .kv_heads = 8,
        .head_dim = 128,
        .intermediate = 2 * verifier->hidden,
        .vocab = verifier->vocab,
        .rms_eps = 1e-6f,
        .rope_theta = 1e6f,
        .logit_softcap = 30,
        .block_size = 16,
        .mask_token = 4,
        .target_layers_total = verifier->layers,
        .sliding_window = {2048, 2048, 2048, 2048, 0},
    };
    spread_targets(verifier->layers, PUBLISHED_TARGETS, c);
}

void block_drafter_config_fit(const model_config *verifier, int layers, int block, int targets,
                              block_drafter_config *out) {
    enum { LEAST_PUBLISHED = 1408 }; /* hidden size: narrower models would get heads wider than themselves */
    published_shape(verifier, out);
    if (verifier->hidden < LEAST_PUBLISHED) {
        const layer_config *l = &verifier->layer[0];
        out->heads = verifier->heads;
        out->kv_heads = l->kv_heads;
        out->head_dim = l->head_dim;
        memset(out->sliding_window, 0, sizeof out->sliding_window);
    }
    for (int i = 0; i < layers; i++) /* the last layer sees everything */
        out->sliding_window[i] = i + 1 < layers ? out->sliding_window[0] : 0;
    out->layers = layers;
    out->block_size = block;
    out->rms_eps = verifier->rms_eps;
    out->logit_softcap = verifier->logit_softcap;
    if (targets) spread_targets(verifier->layers, targets, out);
}

static kakeya_status synthesize(const model_config *verifier, bool outline, mem_account *account,
                                block_drafter_model **out, kakeya_error *error) {
    *out = NULL;
    block_drafter_model *model = calloc(1, sizeof *model);
    if (!model) return error_set(error, KAKEYA_OUT_OF_MEMORY, "synthetic drafter: no memory for the drafter");
    published_shape(verifier, &model->config);
    tensor_memory memory = {0};
    weight_format format = verifier->checkpoint_format == WEIGHT_F32 ? WEIGHT_F32 : WEIGHT_BF16;
    kakeya_status status = (outline ? tensors_outline : tensors_synthesize)(dflash_walk, &model->config, model, format,
                                                                            account, &memory, error);
    model->owned = memory.owned;
    model->n_owned = memory.n_owned;
    model->mapped_bytes = memory.mapped_bytes;
    if (status != KAKEYA_OK) {
        block_drafter_model_close(model);
        return status;
    }
    *out = model;
    return KAKEYA_OK;
}

kakeya_status block_drafter_model_synthesize(const model_config *verifier, mem_account *account,
                                             block_drafter_model **out, kakeya_error *error) {
    return synthesize(verifier, false, account, out, error);
}

kakeya_status block_drafter_model_outline(const model_config *verifier, mem_account *account, block_drafter_model **out,
                                          kakeya_error *error) {
    return synthesize(verifier, true, account, out, error);
}

static kakeya_status check_plain(void *context, const tensor_slot *slot, kakeya_error *error) {
    (void)error;
    const weight *w = (const weight *)(const void *)((const char *)context + slot->offset);
    return slot->kind != SLOT_MATRIX || weight_format_is_plain(w->format) ? KAKEYA_OK : KAKEYA_UNSUPPORTED;
}

bool block_drafter_is_plain(const block_drafter_model *model) {
    return dflash_walk(&model->config, check_plain, (void *)(uintptr_t)model, NULL) == KAKEYA_OK;
}

void block_drafter_model_close(block_drafter_model *model) {
    if (!model) return;
    tensor_memory memory = {.owned = model->owned, .n_owned = model->n_owned};
    tensor_memory_release(&memory);
    checkpoint_close(model->checkpoint);
    gguf_close(model->file);
    free(model);
}
