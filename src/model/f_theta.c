#include "model/f_theta.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/tensors.h"

enum { MAX_HEADS = 1024, MAX_HEAD_DIM = 4096, MAX_RANK = 1 << 16 };

/* ------------------------------------------------------------------------------------------ configuration */

static void refuse_unknown_keys(json_reader *r, const cJSON *top) {
    static const char *const known[] = {"drafter_num_layers",
                                        "drafter_num_kv_heads",
                                        "drafter_head_dim",
                                        "verifier_num_layers",
                                        "verifier_num_kv_heads",
                                        "verifier_head_dim",
                                        "rank",
                                        "verifier_layer_kv_heads",
                                        "verifier_layer_head_dims",
                                        "input"};
    const cJSON *item;
    cJSON_ArrayForEach(item, top) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) found |= strcmp(item->string, known[i]) == 0;
        if (!found) json_fail(r, KAKEYA_FORMAT, "unknown key \"%s\"", item->string);
    }
}

/* A list with one entry per verifier layer; null or absent: the uniform value everywhere. */
static void read_layer_list(json_reader *r, const cJSON *top, const char *key, int max, int uniform, int layers,
                            int *out) {
    for (int i = 0; i < layers; i++) out[i] = uniform;
    if (!json_get(top, key)) return;
    int n = json_int_array(r, top, key, 1, max, out, GEMMA4_MAX_LAYERS);
    if (n != layers) json_fail(r, KAKEYA_FORMAT, "%s has %d entries, verifier_num_layers is %d", key, n, layers);
}

kakeya_status f_theta_config_parse(const char *name, const char *json, size_t json_bytes, f_theta_config *out,
                                   kakeya_error *error) {
    memset(out, 0, sizeof *out);
    cJSON *top = NULL;
    kakeya_status status = json_parse_object(name, json, json_bytes, &top, error);
    if (status != KAKEYA_OK) return status;
    json_reader reader = {.name = name, .error = error}, *r = &reader;
    refuse_unknown_keys(r, top);
    out->drafter_layers = json_required_int(r, top, "drafter_num_layers", 1, DFLASH_MAX_LAYERS);
    out->drafter_kv_heads = json_required_int(r, top, "drafter_num_kv_heads", 1, MAX_HEADS);
    out->drafter_head_dim = json_required_int(r, top, "drafter_head_dim", 1, MAX_HEAD_DIM);
    out->layers = json_required_int(r, top, "verifier_num_layers", 1, GEMMA4_MAX_LAYERS);
    out->rank = json_int(r, top, "rank", 1, MAX_RANK, 256);
    int kv_heads = json_required_int(r, top, "verifier_num_kv_heads", 1, MAX_HEADS);
    int head_dim = json_required_int(r, top, "verifier_head_dim", 1, MAX_HEAD_DIM);
    if (r->status == KAKEYA_OK) {
        read_layer_list(r, top, "verifier_layer_kv_heads", MAX_HEADS, kv_heads, out->layers, out->kv_heads);
        read_layer_list(r, top, "verifier_layer_head_dims", MAX_HEAD_DIM, head_dim, out->layers, out->head_dim);
    }
    const char *input = json_string(r, top, "input", "drafter_kv");
    if (strcmp(input, "drafter_context_kv") == 0)
        out->input = F_THETA_DRAFTER_CONTEXT_KV;
    else if (strcmp(input, "drafter_kv") == 0)
        out->input = F_THETA_DRAFTER_TOKEN_KV;
    else
        json_fail(r, KAKEYA_UNSUPPORTED, "input \"%s\" is not supported (drafter_context_kv, drafter_kv)", input);
    cJSON_Delete(top);
    return reader.status;
}

static kakeya_status mismatch(const char *name, const char *what, int own, const char *other_name, int other,
                              kakeya_error *error) {
    return error_set(error, KAKEYA_FORMAT, "%s: %s is %d, the %s has %d", name, what, own, other_name, other);
}

static kakeya_status check_fit(const char *name, const f_theta_config *c, const gemma4_config *verifier,
                               const dflash_config *drafter, kakeya_error *error) {
    char what[64];
    if (c->drafter_layers != drafter->layers)
        return mismatch(name, "drafter_num_layers", c->drafter_layers, "drafter", drafter->layers, error);
    if (c->drafter_kv_heads != drafter->kv_heads)
        return mismatch(name, "drafter_num_kv_heads", c->drafter_kv_heads, "drafter", drafter->kv_heads, error);
    if (c->drafter_head_dim != drafter->head_dim)
        return mismatch(name, "drafter_head_dim", c->drafter_head_dim, "drafter", drafter->head_dim, error);
    if (c->layers != verifier->layers)
        return mismatch(name, "verifier_num_layers", c->layers, "verifier", verifier->layers, error);
    for (int i = 0; i < c->layers; i++) {
        const gemma4_layer_config *l = &verifier->layer[i];
        if (c->kv_heads[i] != l->kv_heads) {
            snprintf(what, sizeof what, "the number of K/V heads of layer %d", i);
            return mismatch(name, what, c->kv_heads[i], "verifier", l->kv_heads, error);
        }
        if (c->head_dim[i] != l->head_dim) {
            snprintf(what, sizeof what, "the head dimension of layer %d", i);
            return mismatch(name, what, c->head_dim[i], "verifier", l->head_dim, error);
        }
    }
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------ tensor list */

static kakeya_status visit_matrix(tensor_visit visit, void *context, const char *name, size_t offset, int64_t out,
                                  int64_t in, kakeya_error *error) {
    tensor_slot slot = {.kind = SLOT_MATRIX,
                        .group = PARAMETERS_ATTENTION,
                        .dims = 2,
                        .shape = {out, in},
                        .offset = offset,
                        .synthetic = 1.0f / sqrtf((float)in)};
    snprintf(slot.name, sizeof slot.name, "%s", name);
    return visit(context, &slot, error);
}

kakeya_status f_theta_walk(const void *shape, tensor_visit visit, void *context, kakeya_error *error) {
    const f_theta_config *c = shape;
    int64_t in = (int64_t)c->drafter_layers * c->drafter_kv_heads * c->drafter_head_dim;
    kakeya_status status =
        visit_matrix(visit, context, "encoder_k.weight", offsetof(f_theta_model, encoder_k), c->rank, in, error);
    if (status == KAKEYA_OK)
        status =
            visit_matrix(visit, context, "encoder_v.weight", offsetof(f_theta_model, encoder_v), c->rank, in, error);
    for (int i = 0; i < c->layers && status == KAKEYA_OK; i++) {
        char name[SLOT_NAME_BYTES];
        int64_t out = (int64_t)c->kv_heads[i] * c->head_dim[i];
        size_t place = (size_t)i * sizeof(weight);
        snprintf(name, sizeof name, "decoders_k.%d.weight", i);
        status = visit_matrix(visit, context, name, offsetof(f_theta_model, decoder_k) + place, out, c->rank, error);
        snprintf(name, sizeof name, "decoders_v.%d.weight", i);
        if (status == KAKEYA_OK)
            status =
                visit_matrix(visit, context, name, offsetof(f_theta_model, decoder_v) + place, out, c->rank, error);
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------- model */

/* Which of the two weight file names the directory holds; NULL with *error set for neither. */
static const char *find_weights(const char *directory, kakeya_error *error) {
    static const char *const names[] = {"f_theta_weights.safetensors", "model.safetensors", "f_theta_weights.pt"};
    enum { CONVERTIBLE = 2, COUNT = 3 };
    for (int i = 0; i < COUNT; i++) {
        char *path = path_join(directory, names[i]);
        if (!path) {
            error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for the names of its files", directory);
            return NULL;
        }
        bool found = file_exists(path);
        free(path);
        if (!found) continue;
        if (i < CONVERTIBLE) return names[i];
        error_set(error, KAKEYA_UNSUPPORTED,
                  "%s: f_theta_weights.pt is a Python pickle, which is not read; convert it once there with: python3 "
                  "-c \"import torch, "
                  "safetensors.torch as s; s.save_file({k: v.contiguous() for k, v in torch.load('f_theta_weights.pt', "
                  "weights_only=True).items()}, 'f_theta_weights.safetensors')\"",
                  directory);
        return NULL;
    }
    error_set(error, KAKEYA_IO, "%s: neither %s nor %s found", directory, names[0], names[1]);
    return NULL;
}

kakeya_status f_theta_model_open(const char *directory, const gemma4_config *verifier, const dflash_config *drafter,
                                 mem_account *account, f_theta_model **out, kakeya_error *error) {
    *out = NULL;
    if (!directory_exists(directory)) return error_set(error, KAKEYA_IO, "%s: no such directory", directory);
    kakeya_error reason = {0};
    const char *weights = find_weights(directory, &reason);
    if (!weights) return error_set(error, reason.status, "%s", reason.message);
    f_theta_model *model = calloc(1, sizeof *model);
    if (!model) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for f_theta", directory);
    kakeya_status status = checkpoint_open(directory, "f_theta_config.json", weights, &model->checkpoint, error);
    checkpoint *ck = model->checkpoint;
    if (status == KAKEYA_OK)
        status = f_theta_config_parse(ck->config_path, ck->config, ck->config_bytes, &model->config, error);
    if (status == KAKEYA_OK) status = check_fit(ck->config_path, &model->config, verifier, drafter, error);
    if (status == KAKEYA_OK) {
        const f_theta_config *c = &model->config;
        tensor_memory memory = {0}; /* stays empty: f_theta has matrices only, and those belong to the checkpoint */
        model->encoder_in = c->drafter_layers * c->drafter_kv_heads * c->drafter_head_dim;
        status = tensors_bind(ck, "", f_theta_walk, c, model, NULL, NULL, account, &memory, error);
        tensor_memory_release(&memory);
    }
    if (status != KAKEYA_OK) {
        f_theta_model_close(model);
        return status;
    }
    *out = model;
    return KAKEYA_OK;
}

kakeya_status f_theta_model_synthesize(const gemma4_config *verifier, const dflash_config *drafter, bool outline,
                                       mem_account *account, f_theta_model **out, kakeya_error *error) {
    enum { PUBLISHED_RANK = 256 };
    *out = NULL;
    f_theta_model *model = calloc(1, sizeof *model);
    if (!model) return error_set(error, KAKEYA_OUT_OF_MEMORY, "synthetic f_theta: no memory for the model");
    f_theta_config *c = &model->config;
    *c = (f_theta_config){.drafter_layers = drafter->layers,
                          .drafter_kv_heads = drafter->kv_heads,
                          .drafter_head_dim = drafter->head_dim,
                          .layers = verifier->layers,
                          .rank = PUBLISHED_RANK,
                          .input = F_THETA_DRAFTER_CONTEXT_KV};
    for (int i = 0; i < verifier->layers; i++) {
        c->kv_heads[i] = verifier->layer[i].kv_heads;
        c->head_dim[i] = verifier->layer[i].head_dim;
    }
    model->encoder_in = c->drafter_layers * c->drafter_kv_heads * c->drafter_head_dim;
    tensor_memory memory = {0};
    weight_format format = verifier->checkpoint_format == WEIGHT_F32 ? WEIGHT_F32 : WEIGHT_BF16;
    kakeya_status status =
        (outline ? tensors_outline : tensors_synthesize)(f_theta_walk, c, model, format, account, &memory, error);
    model->owned = memory.owned;
    model->n_owned = memory.n_owned;
    if (status != KAKEYA_OK) {
        f_theta_model_close(model);
        return status;
    }
    *out = model;
    return KAKEYA_OK;
}

void f_theta_model_close(f_theta_model *model) {
    if (!model) return;
    tensor_memory memory = {.owned = model->owned, .n_owned = model->n_owned};
    tensor_memory_release(&memory);
    checkpoint_close(model->checkpoint);
    free(model);
}
