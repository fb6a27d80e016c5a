/* An assistant's tensors: their list, the files that hold them, and the order of a clustered head. */
#include "model/assistant.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/assistant_private.h"
#include "model/gemma4_gguf.h"
#include "model/gemma4_modules.h"
#include "model/gguf_binding.h"
#include "model/tensors.h"

/* ------------------------------------------------------------------------------------------------- tensor list */

typedef struct walker {
    tensor_visit visit;
    void *context;
    kakeya_error *error;
    kakeya_status status;
    int layer; /* -1: global tensors */
} walker;

/* Fan-in scaling keeps activations of any width near one: there is no norm behind the projections. */
static void visit(walker *w, tensor_kind kind, parameter_group group, const char *path, size_t offset, int dims,
                  int64_t a, int64_t b, float synthetic) {
    if (w->status != KAKEYA_OK) return;
    tensor_slot slot = {.kind = kind,
                        .group = group,
                        .dims = dims,
                        .shape = {a, b},
                        .offset = offset,
                        .quantised = WEIGHT_BF16,
                        .synthetic = kind == SLOT_MATRIX ? 1.0f / sqrtf((float)b) : synthetic};
    if (w->layer >= 0) {
        snprintf(slot.name, sizeof slot.name, "model.layers.%d.%s", w->layer, path);
        slot.offset += offsetof(assistant_weights, stack.layer) + (size_t)w->layer * sizeof(layer_weights);
    } else {
        snprintf(slot.name, sizeof slot.name, "%s", path);
    }
    w->status = w->visit(w->context, &slot, w->error);
}

static void matrix(walker *w, parameter_group group, const char *path, size_t offset, int64_t out, int64_t in) {
    visit(w, SLOT_MATRIX, group, path, offset, 2, out, in, 0);
}

static void vector(walker *w, const char *path, size_t offset, int64_t n, float synthetic) {
    visit(w, SLOT_VECTOR, PARAMETERS_NORMS, path, offset, 1, n, 0, synthetic);
}

static void ignored(walker *w, const char *path) { visit(w, SLOT_IGNORED, PARAMETERS_NORMS, path, 0, 0, 0, 0, 0); }

#define IN_LAYER(field) offsetof(layer_weights, field)
#define IN_STACK(field) offsetof(assistant_weights, stack.field)

static void walk_layer(walker *w, const model_config *c, int layer) {
    const layer_config *l = &c->layer[layer];
    int64_t queries = (int64_t)c->heads * l->head_dim;
    w->layer = layer;
    matrix(w, PARAMETERS_ATTENTION, "self_attn.q_proj.weight", IN_LAYER(q_proj), queries, c->hidden);
    vector(w, "self_attn.q_norm.weight", IN_LAYER(q_norm), l->head_dim, 1.0f / sqrtf((float)l->head_dim));
    matrix(w, PARAMETERS_ATTENTION, "self_attn.o_proj.weight", IN_LAYER(o_proj), c->hidden, queries);
    matrix(w, PARAMETERS_DENSE_MLP, "mlp.gate_proj.weight", IN_LAYER(gate_proj), l->intermediate, c->hidden);
    matrix(w, PARAMETERS_DENSE_MLP, "mlp.up_proj.weight", IN_LAYER(up_proj), l->intermediate, c->hidden);
    matrix(w, PARAMETERS_DENSE_MLP, "mlp.down_proj.weight", IN_LAYER(down_proj), c->hidden, l->intermediate);
    vector(w, "input_layernorm.weight", IN_LAYER(input_norm), c->hidden, 1);
    vector(w, "post_attention_layernorm.weight", IN_LAYER(post_attention_norm), c->hidden, 1);
    vector(w, "pre_feedforward_layernorm.weight", IN_LAYER(pre_ffn_norm), c->hidden, 1);
    vector(w, "post_feedforward_layernorm.weight", IN_LAYER(post_ffn_norm), c->hidden, 1);
    visit(w, SLOT_SCALAR, PARAMETERS_NORMS, "layer_scalar", IN_LAYER(layer_scalar), 1, 1, 0, 1);
    w->layer = -1;
}

kakeya_status assistant_walk(const void *shape, tensor_visit visitor, void *context, kakeya_error *error) {
    const assistant_config *a = shape;
    const model_config *c = &a->stack;
    walker w = {.visit = visitor, .context = context, .error = error, .layer = -1};
    matrix(&w, PARAMETERS_ATTENTION, "pre_projection.weight", offsetof(assistant_weights, pre_projection), c->hidden,
           2 * (int64_t)a->backbone);
    matrix(&w, PARAMETERS_ATTENTION, "post_projection.weight", offsetof(assistant_weights, post_projection),
           a->backbone, c->hidden);
    matrix(&w, c->tied_head ? PARAMETERS_EMBEDDING : PARAMETERS_HEAD,
           c->tied_head ? "model.embed_tokens.weight" : "lm_head.weight", IN_STACK(head), c->vocab, c->hidden);
    ignored(&w, c->tied_head ? "lm_head.weight" : "model.embed_tokens.weight"); /* tokens are never looked up in it */
    vector(&w, "model.norm.weight", IN_STACK(final_norm), c->hidden, 1);
    for (int i = 0; i < c->layers; i++) walk_layer(&w, c, i);
    if (a->clusters)
        matrix(&w, PARAMETERS_HEAD, "masked_embedding.centroids.weight", offsetof(assistant_weights, centroids),
               a->clusters, c->hidden);
    else
        ignored(&w, "masked_embedding.centroids.weight");
    ignored(&w, "masked_embedding.token_ordering"); /* is no weight */
    return w.status;
}

/* ------------------------------------------------------------------------------------------------ clustered head */

static kakeya_status no_memory(const char *name, size_t bytes, kakeya_error *error) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for %zu bytes of the assistant's head", name, bytes);
}

/* The head's rows in the order of `token_of`: a draft then reads whole clusters. */
static kakeya_status order_rows(const char *name, assistant_model *model, mem_account *account, tensor_memory *memory,
                                kakeya_error *error) {
    weight *head = &model->weights.stack.head;
    const weight_format_info *info = weight_format_find(head->format);
    weight ordered = *head;
    for (int s = 0; s < info->streams; s++) {
        if (info->stream[s].rows != 1)
            return error_set(error, KAKEYA_UNSUPPORTED, "%s: a head of clusters in format %s is not supported", name,
                             info->name);
        size_t row = weight_row_bytes(head, s), bytes = row * (size_t)head->out;
        char *to = tensor_memory_block(memory, account, bytes);
        if (!to) return no_memory(name, bytes, error);
        for (int i = 0; i < head->out; i++)
            memcpy(to + (size_t)i * row, weight_row(head, s, model->weights.token_of[i]), row);
        ordered.stream[s] = to;
    }
    ordered.first = 0;
    *head = ordered;
    return KAKEYA_OK;
}

static int64_t number_at(const void *data, size_t bytes, int i) {
    int64_t wide;
    int32_t narrow;
    if (bytes == sizeof wide) {
        memcpy(&wide, (const char *)data + (size_t)i * sizeof wide, sizeof wide);
        return wide;
    }
    memcpy(&narrow, (const char *)data + (size_t)i * sizeof narrow, sizeof narrow);
    return narrow;
}

/* data: [vocab] numbers of 4 or 8 bytes, a permutation of the tokens; NULL: they lie in order. */
static kakeya_status set_order(const char *name, assistant_model *model, const void *data, size_t each_bytes,
                               mem_account *account, tensor_memory *memory, kakeya_error *error) {
    int vocab = model->config.stack.vocab;
    size_t bytes = (size_t)vocab * sizeof(int32_t);
    int32_t *order = tensor_memory_block(memory, account, bytes);
    bool *seen = calloc((size_t)vocab, sizeof *seen);
    kakeya_status status = order && seen ? KAKEYA_OK : no_memory(name, bytes, error);
    for (int i = 0; i < vocab && status == KAKEYA_OK; i++) {
        int64_t token = data ? number_at(data, each_bytes, i) : i;
        if (token < 0 || token >= vocab || seen[token])
            status =
                error_set(error, KAKEYA_FORMAT, "%s: token_ordering[%d] is %lld: the %d tokens must be there once each",
                          name, i, (long long)token, vocab);
        else
            seen[order[i] = (int32_t)token] = true;
    }
    free(seen);
    if (status != KAKEYA_OK) return status;
    model->weights.token_of = order;
    return data ? order_rows(name, model, account, memory, error) : KAKEYA_OK;
}

/* ---------------------------------------------------------------------------------------------------- directories */

static kakeya_status read_order(assistant_model *model, mem_account *account, tensor_memory *memory,
                                kakeya_error *error) {
    static const char name[] = "masked_embedding.token_ordering";
    const checkpoint *ck = model->checkpoint;
    ptrdiff_t index = checkpoint_find(ck, name);
    if (index < 0) return error_set(error, KAKEYA_FORMAT, "%s: tensor %s is missing", ck->directory, name);
    const tensor *t = ck->tensors[index];
    bool whole = t->type == TENSOR_I64 || t->type == TENSOR_I32;
    if (!whole || t->dims != 1 || t->shape[0] != model->config.stack.vocab) {
        char shape[80];
        return error_set(error, KAKEYA_FORMAT, "%s: tensor %s is %s %s, expected I64 [%d]", ck->directory, name,
                         tensor_type_name(t->type), tensor_shape_text(t->dims, t->shape, shape, sizeof shape),
                         model->config.stack.vocab);
    }
    return set_order(ck->directory, model, t->data, tensor_type_bytes(t->type), account, memory, error);
}

static kakeya_status open_checkpoint(const char *directory, const model_config *verifier, mem_account *account,
                                     assistant_model *model, tensor_memory *memory, kakeya_error *error) {
    quantisation *quantised = NULL;
    kakeya_status status = checkpoint_open(directory, "config.json", "model.safetensors", &model->checkpoint, error);
    const checkpoint *ck = model->checkpoint;
    if (status == KAKEYA_OK)
        status = assistant_config_parse(ck->config_path, ck->config, ck->config_bytes, &model->config, error);
    if (status == KAKEYA_OK) status = assistant_config_fits(ck->config_path, &model->config, verifier, error);
    if (status == KAKEYA_OK) status = gemma4_quantisation(ck, &quantised, error);
    if (status == KAKEYA_OK) {
        gemma4_modules modules = {.quantised = quantised, .prefix = "model."};
        const tensor_hook hook = {gemma4_bind_modules, &modules};
        status = tensors_bind(model->checkpoint, "", assistant_walk, &model->config, &model->weights, &hook, NULL,
                              account, memory, error);
    }
    quantisation_free(quantised);
    if (status == KAKEYA_OK && model->config.clusters) status = read_order(model, account, memory, error);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ GGUF files */

static bool gguf_name(const tensor_slot *slot, char *out, size_t out_bytes) {
    static const struct {
        const char *slot, *gguf;
    } names[] = {
        {"pre_projection.weight", "nextn.pre_projection.weight"},
        {"post_projection.weight", "nextn.post_projection.weight"},
        {"masked_embedding.centroids.weight", ASSISTANT_GGUF_CENTROIDS},
        {"masked_embedding.token_ordering", ASSISTANT_GGUF_ORDERING},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i].slot, slot->name) != 0) continue;
        snprintf(out, out_bytes, "%s", names[i].gguf);
        return true;
    }
    const char *name = strncmp(slot->name, "model.", 6) == 0 ? slot->name + 6 : slot->name;
    return gemma4_gguf_name(name, out, out_bytes);
}

static kakeya_status bind_slot(void *context, const tensor_slot *slot, kakeya_error *error) {
    gguf_binding *b = context;
    char name[SLOT_NAME_BYTES];
    if (!gguf_name(slot, name, sizeof name))
        return error_set(error, KAKEYA_UNSUPPORTED, "%s: GGUF files have no name for %s", gguf_path(b->file),
                         slot->name);
    const gguf_tensor *t = gguf_binding_find(b, name);
    if (slot->kind == SLOT_IGNORED) return KAKEYA_OK;
    if (!t) {
        name_list_add(&b->missing, name, "");
        return KAKEYA_OK;
    }
    if (slot->kind != SLOT_MATRIX) return gguf_binding_numbers(b, slot, t, error);
    kakeya_status status = gguf_binding_check_shape(b, t, slot->dims, slot->shape, error);
    return status == KAKEYA_OK ? gguf_binding_matrix(b, t, (weight *)(void *)(b->base + slot->offset), error) : status;
}

static kakeya_status read_file_order(assistant_model *model, mem_account *account, tensor_memory *memory,
                                     kakeya_error *error) {
    enum { TENSOR_OF_I32 = 26 };
    const gguf *file = model->file;
    const gguf_tensor *t =
        file->tensors[gguf_find_tensor(file, ASSISTANT_GGUF_ORDERING)]; /* clusters say it is there */
    if (t->type->id != TENSOR_OF_I32 || t->dims != 1 || t->ne[0] != model->config.stack.vocab) {
        char shape[96];
        return error_set(error, KAKEYA_FORMAT, "%s: tensor %s is %s %s, expected I32 {%d}", gguf_path(file), t->name,
                         t->type->name, gguf_shape_text(t, shape, sizeof shape), model->config.stack.vocab);
    }
    return set_order(gguf_path(file), model, t->data, sizeof(int32_t), account, memory, error);
}

static kakeya_status open_file(const char *path, const model_config *verifier, mem_account *account,
                               assistant_model *model, tensor_memory *memory, kakeya_error *error) {
    kakeya_status status = gguf_open(path, &model->file, error);
    if (status == KAKEYA_OK) status = assistant_gguf_config(model->file, &model->config, error);
    if (status == KAKEYA_OK) status = assistant_config_fits(path, &model->config, verifier, error);
    if (status != KAKEYA_OK) return status;
    gguf_binding b = {.file = model->file, .base = (char *)&model->weights, .account = account, .memory = memory};
    status = gguf_binding_begin(&b, assistant_walk, &model->config, error);
    if (status == KAKEYA_OK) {
        (void)gguf_binding_find(&b, "rope_freqs.weight"); /* is part of the configuration */
        status = assistant_walk(&model->config, bind_slot, &b, error);
    }
    status = gguf_binding_end(&b, status, NULL, error);
    if (status == KAKEYA_OK && model->config.clusters) status = read_file_order(model, account, memory, error);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- models */

static kakeya_status adopt(assistant_model *model, const tensor_memory *memory, kakeya_status status,
                           assistant_model **out) {
    model->owned = memory->owned;
    model->n_owned = memory->n_owned;
    model->mapped_bytes = memory->mapped_bytes;
    if (status == KAKEYA_OK)
        *out = model;
    else
        assistant_model_close(model);
    return status;
}

kakeya_status assistant_model_open(const char *path, const model_config *verifier, mem_account *account,
                                   assistant_model **out, kakeya_error *error) {
    *out = NULL;
    assistant_model *model = calloc(1, sizeof *model);
    if (!model) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for the assistant", path);
    tensor_memory memory = {0};
    kakeya_status status =
        (gguf_is_file(path) ? open_file : open_checkpoint)(path, verifier, account, model, &memory, error);
    return adopt(model, &memory, status, out);
}

kakeya_status assistant_model_synthesize(const model_config *verifier, mem_account *account, assistant_model **out,
                                         kakeya_error *error) {
    static const char name[] = "synthetic assistant";
    *out = NULL;
    assistant_model *model = calloc(1, sizeof *model);
    if (!model) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for the assistant", name);
    assistant_config_published(verifier, &model->config);
    tensor_memory memory = {0};
    weight_format format = verifier->checkpoint_format == WEIGHT_F32 ? WEIGHT_F32 : WEIGHT_BF16;
    kakeya_status status = assistant_config_fits(name, &model->config, verifier, error);
    if (status == KAKEYA_OK)
        status = tensors_synthesize(assistant_walk, &model->config, &model->weights, format, account, &memory, error);
    if (status == KAKEYA_OK && model->config.clusters)
        status = set_order(name, model, NULL, 0, account, &memory, error);
    return adopt(model, &memory, status, out);
}

void assistant_model_close(assistant_model *model) {
    if (!model) return;
    tensor_memory memory = {.owned = model->owned, .n_owned = model->n_owned};
    tensor_memory_release(&memory);
    checkpoint_close(model->checkpoint);
    gguf_close(model->file);
    free(model);
}

typedef struct byte_count {
    const assistant_model *model;
    size_t bytes;
} byte_count;

static kakeya_status add_bytes(void *context, const tensor_slot *slot, kakeya_error *error) {
    (void)error;
    byte_count *count = context;
    const char *base = (const char *)&count->model->weights;
    if (slot->kind == SLOT_MATRIX) count->bytes += weight_bytes((const weight *)(const void *)(base + slot->offset));
    return KAKEYA_OK;
}

size_t assistant_draft_bytes(const assistant_model *model) {
    byte_count count = {.model = model};
    (void)assistant_walk(&model->config, add_bytes, &count, NULL);
    size_t head = weight_bytes(&model->weights.stack.head);
    if (!model->config.clusters) return count.bytes;
    return count.bytes - head + head / (size_t)model->config.clusters * (size_t)model->config.chosen_clusters;
}
