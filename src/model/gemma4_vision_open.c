#include "model/gemma4_vision_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/gemma4_vision_bind.h"

/* ------------------------------------------------------------------------------------------------ configuration */

static bool text_is(const cJSON *object, const char *key, const char *text) {
    const char *value = cJSON_GetStringValue(json_get(object, key));
    return value && strcmp(value, text) == 0;
}

/* "default" and "axial" are the same here. */
static float read_theta(json_reader *r, const cJSON *vision) {
    const cJSON *rope = json_object(r, vision, "rope_parameters");
    const char *type = json_string(r, rope, "rope_type", "default");
    if (strcmp(type, "default") != 0 && strcmp(type, "axial") != 0)
        json_fail(r, KAKEYA_UNSUPPORTED, "vision_config: rope_type \"%s\" is not supported (default, axial)", type);
    return (float)json_number(r, rope, "rope_theta", 1, 1e9, 100);
}

static void read_tower(json_reader *r, const cJSON *vision, vision_model *v) {
    v->tower = true;
    v->patch = json_int(r, vision, "patch_size", 1, 256, 16);
    v->pooling = json_int(r, vision, "pooling_kernel_size", 1, 16, 3);
    v->layers = json_required_int(r, vision, "num_hidden_layers", 1, MODEL_MAX_LAYERS);
    v->hidden = json_required_int(r, vision, "hidden_size", 4, 1 << 16);
    v->heads = json_required_int(r, vision, "num_attention_heads", 1, 1 << 10);
    v->intermediate = json_required_int(r, vision, "intermediate_size", 1, 1 << 17);
    v->head_dim = json_int(r, vision, "head_dim", 4, 1 << 10, v->heads ? v->hidden / v->heads : 4);
    v->positions = json_int(r, vision, "position_embedding_size", 1, 1 << 20, 10240);
    v->rms_eps = (float)json_number(r, vision, "rms_norm_eps", 0, 1, 1e-6);
    v->rope_theta = read_theta(r, vision);
    v->standardize = json_bool(r, vision, "standardize", false);
    v->clipped = json_bool(r, vision, "use_clipped_linears", false);
    if (json_int(r, vision, "num_key_value_heads", 1, 1 << 10, v->heads) != v->heads)
        json_fail(r, KAKEYA_UNSUPPORTED, "vision_config: num_key_value_heads differs from num_attention_heads");
    if (v->head_dim % 4)
        json_fail(r, KAKEYA_UNSUPPORTED, "vision_config: head_dim %d is not a multiple of 4", v->head_dim);
    if (!text_is(vision, "hidden_activation", "gelu_pytorch_tanh") && json_get(vision, "hidden_activation"))
        json_fail(r, KAKEYA_UNSUPPORTED, "vision_config: hidden_activation is not gelu_pytorch_tanh");
    if (json_bool(r, vision, "attention_bias", false))
        json_fail(r, KAKEYA_UNSUPPORTED, "vision_config: attention_bias is not supported");
}

static void read_embedder(json_reader *r, const cJSON *vision, vision_model *v) {
    const int patch = json_int(r, vision, "patch_size", 1, 256, 16);
    v->patch =
        json_int(r, vision, "model_patch_size", 1, 1024, patch * json_int(r, vision, "pooling_kernel_size", 1, 16, 3));
    v->pooling = 1;
    v->hidden = json_required_int(r, vision, "mm_embed_dim", 1, 1 << 16);
    v->positions = json_int(r, vision, "mm_posemb_size", 1, 1 << 20, 1120);
    v->rms_eps = (float)json_number(r, vision, "rms_norm_eps", 0, 1, 1e-6);
}

/* False: no pictures. */
static bool read_config(json_reader *r, const cJSON *top, const model_config *text, vision_model *v) {
    const cJSON *vision = json_object(r, top, "vision_config");
    if (!vision) return false;
    if (text_is(vision, "model_type", "gemma4_unified_vision"))
        read_embedder(r, vision, v);
    else if (text_is(vision, "model_type", "gemma4_vision"))
        read_tower(r, vision, v);
    else
        return false;
    v->text_hidden = text->hidden;
    v->budget = json_int(r, top, "vision_soft_tokens_per_image", 1, 1 << 20, 280);
    const cJSON *own = json_object(r, top, "text_config");
    v->both_ways = text_is(own ? own : top, "use_bidirectional_attention", "vision");
    v->image_token = json_int(r, top, "image_token_id", 0, text->vocab - 1, -1);
    v->begin_token = json_int(r, top, "boi_token_id", 0, text->vocab - 1, -1);
    v->end_token = json_int(r, top, "eoi_token_id", 0, text->vocab - 1, -1);
    if (r->status == KAKEYA_OK && (v->image_token < 0 || v->begin_token < 0 || v->end_token < 0))
        json_fail(r, KAKEYA_FORMAT, "image_token_id, boi_token_id or eoi_token_id is missing");
    return true;
}

/* ------------------------------------------------------------------------------------------------------- tensors */

typedef struct source {
    checkpoint *ck;
    mem_account *account;
} source;

/* By dialect: as published, and as MLX directories have it. */
static const tensor *find_name(const checkpoint *ck, const char *name) {
    static const char *const prefixes[] = {"model.", ""};
    for (size_t i = 0; *name && i < sizeof prefixes / sizeof *prefixes; i++) {
        char path[VISION_NAME_BYTES + 8];
        snprintf(path, sizeof path, "%s%s", prefixes[i], name);
        ptrdiff_t at = checkpoint_find(ck, path);
        if (at >= 0) return ck->tensors[at];
    }
    return NULL;
}

static kakeya_status find(void *file, const vision_slot *slot, int bound, vision_stored *out, kakeya_error *error) {
    const source *s = file;
    char name[VISION_NAME_BYTES];
    if (bound >= 0) vision_bound_name(slot, bound, false, name);
    const tensor *t = find_name(s->ck, bound >= 0 ? name : slot->name);
    if (!t && bound < 0) t = find_name(s->ck, slot->again);
    if (!t) return KAKEYA_OK;
    *out = (vision_stored){.name = t->name, .values = 1, .last = t->dims ? t->shape[t->dims - 1] : 1};
    for (int i = 0; i < t->dims; i++) out->values *= t->shape[i];
    if (!tensor_dtype(t, &out->type)) out->type_name = tensor_type_name(t->type);
    return checkpoint_aligned(s->ck, t, s->account, &out->data, error);
}

/* ------------------------------------------------------------------------------------------------------- opening */

kakeya_status vision_model_config(const char *path, const char *json, size_t json_bytes, const model_config *text,
                                  vision_model *out, bool *there, kakeya_error *reason, kakeya_error *error) {
    cJSON *top = NULL;
    *out = (vision_model){0};
    *there = false;
    kakeya_status status = json_parse_object(path, json, json_bytes, &top, error);
    if (status) return status;
    json_reader reader = {.name = path, .error = reason};
    *there = read_config(&reader, top, text, out) && !reader.status;
    cJSON_Delete(top);
    return KAKEYA_OK;
}

kakeya_status vision_model_open(checkpoint *ck, const model_config *text, mem_account *account, vision_model **out,
                                char *reason, size_t reason_bytes, kakeya_error *error) {
    *out = NULL;
    *reason = '\0';
    kakeya_error why = {0};
    bool there = false;
    vision_model *v = calloc(1, sizeof *v);
    if (!v) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", ck->directory);
    kakeya_status status =
        vision_model_config(ck->config_path, ck->config, ck->config_bytes, text, v, &there, &why, error);
    if (!status && there) {
        source s = {ck, account};
        status = vision_bind(v, account, find, &s, false, &why, error);
    }
    if (!status && there && !why.status) {
        *out = v;
        return KAKEYA_OK;
    }
    if (why.status) snprintf(reason, reason_bytes, "%s", why.message);
    vision_model_close(v);
    return status;
}
