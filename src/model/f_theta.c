#include "model/restoration.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "base/json.h"
#include "model/tensors.h"

enum { MAX_HEADS = 1024, MAX_HEAD_DIM = 4096, MAX_RANK = 1 << 16, MAX_HIDDEN = 1 << 16 };

/* ------------------------------------------------------------------------------------------ configuration */

static const char *const input_names[] = {[RESTORATION_DRAFTER_CONTEXT_KV] = "drafter_context_kv",
                                          [RESTORATION_DRAFTER_TOKEN_KV] = "drafter_kv",
                                          [RESTORATION_AUX_HIDDEN] = "aux_hidden"};
static const char *const latents_names[RESTORATION_LATENTS_COUNT] = {[RESTORATION_LATENTS_KV] = "kv",
                                                                     [RESTORATION_LATENTS_BF16] = "bf16",
                                                                     [RESTORATION_LATENTS_Q8] = "q8",
                                                                     [RESTORATION_LATENTS_Q4] = "q4"};

const char *restoration_input_name(restoration_input input) { return input_names[input]; }
const char *restoration_latents_name(restoration_latents latents) { return latents_names[latents]; }

bool restoration_needs_drafter(const restoration_config *config) { return config->input != RESTORATION_AUX_HIDDEN; }

int restoration_encoder_in(const restoration_config *c) {
    if (c->input == RESTORATION_AUX_HIDDEN) return c->aux_layers * c->hidden;
    return c->drafter_layers * c->drafter_kv_heads * c->drafter_head_dim;
}

int restoration_default_taps(const model_config *verifier, int n, int out[MODEL_MAX_LAYERS]) {
    int first = verifier->layers > 1 ? 1 : 0, last = verifier->layers - 3 > first ? verifier->layers - 3 : first;
    if (n > last - first + 1) n = last - first + 1;
    for (int i = 0; i < n; i++)
        out[i] = n == 1 ? (first + last) / 2 : (int)lround(first + (double)i * (last - first) / (n - 1));
    return n;
}

void restoration_config_fit(restoration_config *config, const model_config *verifier, int rank_k, int rank_v,
                            bool shared) {
    config->rank_k = rank_k;
    config->rank_v = rank_v;
    config->rank = rank_k > rank_v ? rank_k : rank_v;
    config->shared_latent = shared;
    config->layers = verifier->layers;
    for (int i = 0; i < verifier->layers; i++) {
        config->kv_heads[i] = verifier->layer[i].kv_heads;
        config->head_dim[i] = verifier->layer[i].head_dim;
    }
}

enum { FOR_DRAFTER = 1, FOR_AUX = 2, FOR_ALL = FOR_DRAFTER | FOR_AUX };

/* Keys of the other input form are as unknown as any: a file that has them says two things. */
static void refuse_unknown_keys(json_reader *r, const cJSON *top, restoration_input input) {
    static const struct {
        const char *name;
        int form;
    } known[] = {{"drafter_num_layers", FOR_DRAFTER},
                 {"drafter_num_kv_heads", FOR_DRAFTER},
                 {"drafter_head_dim", FOR_DRAFTER},
                 {"aux_layers", FOR_AUX},
                 {"verifier_hidden_size", FOR_AUX},
                 {"verifier_num_layers", FOR_ALL},
                 {"verifier_num_kv_heads", FOR_ALL},
                 {"verifier_head_dim", FOR_ALL},
                 {"rank", FOR_ALL},
                 {"rank_k", FOR_ALL},
                 {"rank_v", FOR_ALL},
                 {"latent_format", FOR_ALL},
                 {"verifier_layer_kv_heads", FOR_ALL},
                 {"verifier_layer_head_dims", FOR_ALL},
                 {"input", FOR_ALL}};
    int form = input == RESTORATION_AUX_HIDDEN ? FOR_AUX : FOR_DRAFTER;
    const cJSON *item;
    cJSON_ArrayForEach(item, top) {
        int forms = 0;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
            if (strcmp(item->string, known[i].name) == 0) forms = known[i].form;
        }
        if (!forms)
            json_fail(r, KAKEYA_FORMAT, "unknown key \"%s\"", item->string);
        else if (!(forms & form))
            json_fail(r, KAKEYA_FORMAT, "key \"%s\" has no meaning for input \"%s\"", item->string,
                      restoration_input_name(input));
    }
}

/* A list with one entry per verifier layer; null or absent: the uniform value everywhere. */
static void read_layer_list(json_reader *r, const cJSON *top, const char *key, int max, int uniform, int layers,
                            int *out) {
    for (int i = 0; i < layers; i++) out[i] = uniform;
    if (!json_get(top, key)) return;
    int n = json_int_array(r, top, key, 1, max, out, MODEL_MAX_LAYERS);
    if (n != layers) json_fail(r, KAKEYA_FORMAT, "%s has %d entries, verifier_num_layers is %d", key, n, layers);
}

static restoration_input read_input(json_reader *r, const cJSON *top) {
    const char *name = json_string(r, top, "input", input_names[RESTORATION_DRAFTER_TOKEN_KV]);
    for (int i = 0; i <= RESTORATION_AUX_HIDDEN; i++) {
        if (strcmp(name, input_names[i]) == 0) return (restoration_input)i;
    }
    json_fail(r, KAKEYA_UNSUPPORTED, "input \"%s\" is not supported (drafter_context_kv, drafter_kv, aux_hidden)",
              name);
    return RESTORATION_DRAFTER_TOKEN_KV;
}

static restoration_latents read_latents(json_reader *r, const cJSON *top) {
    const char *name = json_string(r, top, "latent_format", latents_names[RESTORATION_LATENTS_KV]);
    for (int i = 0; i < RESTORATION_LATENTS_COUNT; i++) {
        if (strcmp(name, latents_names[i]) == 0) return (restoration_latents)i;
    }
    json_fail(r, KAKEYA_UNSUPPORTED, "latent_format \"%s\" is not supported (kv, bf16, q8, q4)", name);
    return RESTORATION_LATENTS_KV;
}

/* Either `rank`, for both (one shared latent where aux hidden states are read), or `rank_k` and `rank_v`. */
static void read_ranks(json_reader *r, const cJSON *top, restoration_config *out) {
    enum { REFERENCE_RANK = 256 };
    bool k = json_get(top, "rank_k") != NULL, v = json_get(top, "rank_v") != NULL, both = json_get(top, "rank") != NULL;
    bool aux = out->input == RESTORATION_AUX_HIDDEN;
    if (k != v) json_fail(r, KAKEYA_FORMAT, "rank_%c is given without rank_%c", k ? 'k' : 'v', k ? 'v' : 'k');
    if (k && both) json_fail(r, KAKEYA_FORMAT, "rank and rank_k are both given");
    if (k) {
        out->rank_k = json_required_int(r, top, "rank_k", 1, MAX_RANK);
        out->rank_v = json_required_int(r, top, "rank_v", 1, MAX_RANK);
    } else {
        int rank = aux ? json_required_int(r, top, "rank", 1, MAX_RANK)
                       : json_int(r, top, "rank", 1, MAX_RANK, REFERENCE_RANK);
        out->rank_k = out->rank_v = rank;
        out->shared_latent = aux;
    }
    out->rank = out->rank_k > out->rank_v ? out->rank_k : out->rank_v;
}

static void read_aux(json_reader *r, const cJSON *top, restoration_config *out) {
    out->hidden = json_required_int(r, top, "verifier_hidden_size", 1, MAX_HIDDEN);
    out->aux_layers = json_int_array(r, top, "aux_layers", 0, MODEL_MAX_LAYERS - 1, out->aux_layer, MODEL_MAX_LAYERS);
    if (r->status == KAKEYA_OK && !out->aux_layers) json_fail(r, KAKEYA_FORMAT, "aux_layers names no layer");
    for (int i = 0; i < out->aux_layers && r->status == KAKEYA_OK; i++) {
        if (out->aux_layer[i] >= out->layers)
            json_fail(r, KAKEYA_FORMAT, "aux_layers[%d] is layer %d, verifier_num_layers is %d", i, out->aux_layer[i],
                      out->layers);
        else if (i && out->aux_layer[i] <= out->aux_layer[i - 1])
            json_fail(r, KAKEYA_FORMAT, "aux_layers[%d] is layer %d, after layer %d: they must ascend", i,
                      out->aux_layer[i], out->aux_layer[i - 1]);
    }
}

kakeya_status restoration_config_parse(const char *name, const char *json, size_t json_bytes, restoration_config *out,
                                       kakeya_error *error) {
    memset(out, 0, sizeof *out);
    cJSON *top = NULL;
    kakeya_status status = json_parse_object(name, json, json_bytes, &top, error);
    if (status == KAKEYA_OK) status = json_refuse_repeated_keys(name, top, error);
    if (status != KAKEYA_OK) {
        cJSON_Delete(top);
        return status;
    }
    json_reader reader = {.name = name, .error = error}, *r = &reader;
    out->input = read_input(r, top);
    refuse_unknown_keys(r, top, out->input);
    if (restoration_needs_drafter(out)) {
        out->drafter_layers = json_required_int(r, top, "drafter_num_layers", 1, BLOCK_DRAFTER_MAX_LAYERS);
        out->drafter_kv_heads = json_required_int(r, top, "drafter_num_kv_heads", 1, MAX_HEADS);
        out->drafter_head_dim = json_required_int(r, top, "drafter_head_dim", 1, MAX_HEAD_DIM);
    }
    out->layers = json_required_int(r, top, "verifier_num_layers", 1, MODEL_MAX_LAYERS);
    if (!restoration_needs_drafter(out)) read_aux(r, top, out);
    read_ranks(r, top, out);
    out->latents = read_latents(r, top);
    int kv_heads = json_required_int(r, top, "verifier_num_kv_heads", 1, MAX_HEADS);
    int head_dim = json_required_int(r, top, "verifier_head_dim", 1, MAX_HEAD_DIM);
    if (r->status == KAKEYA_OK) {
        read_layer_list(r, top, "verifier_layer_kv_heads", MAX_HEADS, kv_heads, out->layers, out->kv_heads);
        read_layer_list(r, top, "verifier_layer_head_dims", MAX_HEAD_DIM, head_dim, out->layers, out->head_dim);
    }
    cJSON_Delete(top);
    return reader.status;
}

kakeya_status restoration_config_read(const char *directory, restoration_config *out, kakeya_error *error) {
    char *path, *text;
    size_t bytes;
    kakeya_status status = checkpoint_text(directory, "f_theta_config.json", false, &path, &text, &bytes, error);
    if (status == KAKEYA_OK) status = restoration_config_parse(path, text, bytes, out, error);
    free(text);
    free(path);
    return status;
}

static kakeya_status mismatch(const char *name, const char *what, int own, const char *other_name, int other,
                              kakeya_error *error) {
    return error_set(error, KAKEYA_FORMAT, "%s: %s is %d, the %s has %d", name, what, own, other_name, other);
}

static kakeya_status check_drafter(const char *name, const restoration_config *c, const block_drafter_config *drafter,
                                   kakeya_error *error) {
    if (!drafter)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: input \"%s\" needs a drafter, and there is none", name,
                         restoration_input_name(c->input));
    if (c->drafter_layers != drafter->layers)
        return mismatch(name, "drafter_num_layers", c->drafter_layers, "drafter", drafter->layers, error);
    if (c->drafter_kv_heads != drafter->kv_heads)
        return mismatch(name, "drafter_num_kv_heads", c->drafter_kv_heads, "drafter", drafter->kv_heads, error);
    if (c->drafter_head_dim != drafter->head_dim)
        return mismatch(name, "drafter_head_dim", c->drafter_head_dim, "drafter", drafter->head_dim, error);
    return KAKEYA_OK;
}

static kakeya_status check_fit(const char *name, const restoration_config *c, const model_config *verifier,
                               const block_drafter_config *drafter, kakeya_error *error) {
    char what[64];
    kakeya_status status = restoration_needs_drafter(c) ? check_drafter(name, c, drafter, error) : KAKEYA_OK;
    if (status != KAKEYA_OK) return status;
    if (!restoration_needs_drafter(c) && c->hidden != verifier->hidden)
        return mismatch(name, "verifier_hidden_size", c->hidden, "verifier", verifier->hidden, error);
    if (c->layers != verifier->layers)
        return mismatch(name, "verifier_num_layers", c->layers, "verifier", verifier->layers, error);
    for (int i = 0; i < c->layers; i++) {
        const layer_config *l = &verifier->layer[i];
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

kakeya_status restoration_walk(const void *shape, tensor_visit visit, void *context, kakeya_error *error) {
    const restoration_config *c = shape;
    int64_t in = restoration_encoder_in(c);
    kakeya_status status =
        visit_matrix(visit, context, "encoder_k.weight", offsetof(restoration_model, encoder_k), c->rank_k, in, error);
    if (status == KAKEYA_OK && !c->shared_latent)
        status = visit_matrix(visit, context, "encoder_v.weight", offsetof(restoration_model, encoder_v), c->rank_v, in,
                              error);
    for (int i = 0; i < c->layers && status == KAKEYA_OK; i++) {
        char name[SLOT_NAME_BYTES];
        int64_t out = (int64_t)c->kv_heads[i] * c->head_dim[i];
        size_t place = (size_t)i * sizeof(weight);
        snprintf(name, sizeof name, "decoders_k.%d.weight", i);
        status =
            visit_matrix(visit, context, name, offsetof(restoration_model, decoder_k) + place, out, c->rank_k, error);
        snprintf(name, sizeof name, "decoders_v.%d.weight", i);
        if (status == KAKEYA_OK)
            status = visit_matrix(visit, context, name, offsetof(restoration_model, decoder_v) + place, out, c->rank_v,
                                  error);
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
        bool found;
        kakeya_status status = file_find(path, &found, error);
        free(path);
        if (status != KAKEYA_OK) return NULL;
        if (!found) continue;
        if (i < CONVERTIBLE) return names[i];
        error_set(error, KAKEYA_UNSUPPORTED,
                  "%s: f_theta_weights.pt is a Python pickle, which cannot be read; convert it there once with: "
                  "python3 "
                  "-c \"import torch, "
                  "safetensors.torch as s; s.save_file({k: v.contiguous() for k, v in torch.load('f_theta_weights.pt', "
                  "weights_only=True).items()}, 'f_theta_weights.safetensors')\"",
                  directory);
        return NULL;
    }
    error_set(error, KAKEYA_IO, "%s: neither %s nor %s found", directory, names[0], names[1]);
    return NULL;
}

/* The mean KL from native of a policy in a report of `kakeya train f-theta`; NaN where it has none. */
static double reported_kl(const cJSON *score) {
    const cJSON *kl = json_get(score, "kl_from_native");
    return cJSON_IsNumber(kl) ? kl->valuedouble : NAN;
}

/* What the report beside the weights says, where there is one. A report of another program says nothing. */
static kakeya_status read_report(const char *directory, restoration_model *model, kakeya_error *error) {
    char *path, *text;
    size_t bytes;
    cJSON *report = NULL;
    kakeya_error foreign = {0};
    kakeya_status status = checkpoint_text(directory, "report.json", true, &path, &text, &bytes, error);
    kakeya_status read = !status && text ? json_parse_object(path, text, bytes, &report, &foreign) : KAKEYA_OK;
    if (read == KAKEYA_OUT_OF_MEMORY) status = error_set(error, read, "%s", foreign.message);
    if (report) {
        double dropped = reported_kl(json_get(report, "dropped")),
               restored = reported_kl(json_get(cJSON_GetArrayItem(json_get(report, "ranks"), 0), "restored"));
        if (restored > dropped)
            snprintf(model->note, sizeof model->note,
                     "%.300s: on held-out text restoring is worse than dropping (KL from native %.4f and %.4f): use "
                     "--attention sink-window or native",
                     path, restored, dropped);
        cJSON_Delete(report);
    }
    free(text);
    free(path);
    return status;
}

kakeya_status restoration_model_open(const char *directory, const model_config *verifier,
                                     const block_drafter_config *drafter, mem_account *account, restoration_model **out,
                                     kakeya_error *error) {
    *out = NULL;
    if (!directory_exists(directory)) return error_set(error, KAKEYA_IO, "%s: no such directory", directory);
    kakeya_error reason = {0};
    const char *weights = find_weights(directory, &reason);
    if (!weights) return error_set(error, reason.status, "%s", reason.message);
    restoration_model *model = calloc(1, sizeof *model);
    if (!model) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for f_theta", directory);
    kakeya_status status = checkpoint_open(directory, "f_theta_config.json", weights, &model->checkpoint, error);
    checkpoint *ck = model->checkpoint;
    if (status == KAKEYA_OK)
        status = restoration_config_parse(ck->config_path, ck->config, ck->config_bytes, &model->config, error);
    if (status == KAKEYA_OK) status = check_fit(ck->config_path, &model->config, verifier, drafter, error);
    if (status == KAKEYA_OK) {
        const restoration_config *c = &model->config;
        tensor_memory memory = {0}; /* stays empty: f_theta has matrices only, and those belong to the checkpoint */
        model->encoder_in = restoration_encoder_in(c);
        status = tensors_bind(ck, "", restoration_walk, c, model, NULL, NULL, account, &memory, error);
        model->mapped_bytes = memory.mapped_bytes;
        tensor_memory_release(&memory);
    }
    if (status == KAKEYA_OK) status = read_report(directory, model, error);
    if (status != KAKEYA_OK) {
        restoration_model_close(model);
        return status;
    }
    *out = model;
    return KAKEYA_OK;
}

kakeya_status restoration_model_synthesize_as(const restoration_config *config, weight_format format, bool outline,
                                              mem_account *account, restoration_model **out, kakeya_error *error) {
    *out = NULL;
    restoration_model *model = calloc(1, sizeof *model);
    if (!model) return error_set(error, KAKEYA_OUT_OF_MEMORY, "synthetic f_theta: no memory for the model");
    model->config = *config;
    model->encoder_in = restoration_encoder_in(config);
    tensor_memory memory = {0};
    kakeya_status status = (outline ? tensors_outline : tensors_synthesize)(restoration_walk, config, model, format,
                                                                            account, &memory, error);
    model->owned = memory.owned;
    model->n_owned = memory.n_owned;
    model->mapped_bytes = memory.mapped_bytes;
    if (status != KAKEYA_OK) {
        restoration_model_close(model);
        return status;
    }
    *out = model;
    return KAKEYA_OK;
}

kakeya_status restoration_model_synthesize(const model_config *verifier, const block_drafter_config *drafter,
                                           int rank_k, int rank_v, bool outline, mem_account *account,
                                           restoration_model **out, kakeya_error *error) {
    enum { PUBLISHED_TAPS = 6 };
    restoration_config c = {.input = drafter ? RESTORATION_DRAFTER_CONTEXT_KV : RESTORATION_AUX_HIDDEN};
    restoration_config_fit(&c, verifier, rank_k, rank_v, !drafter);
    if (drafter) {
        c.drafter_layers = drafter->layers;
        c.drafter_kv_heads = drafter->kv_heads;
        c.drafter_head_dim = drafter->head_dim;
    } else {
        c.hidden = verifier->hidden;
        c.aux_layers = restoration_default_taps(verifier, PUBLISHED_TAPS, c.aux_layer);
    }
    weight_format format = verifier->checkpoint_format == WEIGHT_F32 ? WEIGHT_F32 : WEIGHT_BF16;
    return restoration_model_synthesize_as(&c, format, outline, account, out, error);
}

void restoration_model_close(restoration_model *model) {
    if (!model) return;
    tensor_memory memory = {.owned = model->owned, .n_owned = model->n_owned};
    tensor_memory_release(&memory);
    checkpoint_close(model->checkpoint);
    free(model);
}
