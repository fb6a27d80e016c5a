/* Names: published checkpoints, and MLX directories, which leave out "model." and have the channels of convolutions in
 * the last place. */
#include "model/gemma4_audio_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/gemma4_audio_bind.h"

/* ------------------------------------------------------------------------------------------------ configuration */

static bool text_is(const cJSON *object, const char *key, const char *text) {
    const char *value = cJSON_GetStringValue(json_get(object, key));
    return value && strcmp(value, text) == 0;
}

static void read_channels(json_reader *r, const cJSON *audio, int channels[2]) {
    const cJSON *list = json_get(audio, "subsampling_conv_channels");
    channels[0] = 128;
    channels[1] = 32;
    if (!list) return;
    for (int i = 0; i < 2; i++) {
        const cJSON *value = cJSON_GetArrayItem(list, i);
        const double n = cJSON_IsNumber(value) ? value->valuedouble : 0;
        if (cJSON_GetArraySize(list) != 2 || !(n >= 1 && n <= 1 << 12)) {
            json_fail(r, KAKEYA_FORMAT, "audio_config: subsampling_conv_channels is not two numbers");
            return;
        }
        channels[i] = (int)n;
    }
}

static void read_conformer(json_reader *r, const cJSON *audio, audio_model *a) {
    a->conformer = true;
    a->layers = json_int(r, audio, "num_hidden_layers", 1, MODEL_MAX_LAYERS, 12);
    a->hidden = json_int(r, audio, "hidden_size", 4, 1 << 16, 1024);
    a->heads = json_int(r, audio, "num_attention_heads", 1, 1 << 10, 8);
    a->head_dim = a->heads ? a->hidden / a->heads : 0;
    a->intermediate = 4 * a->hidden;
    a->output = json_int(r, audio, "output_proj_dims", 1, 1 << 16, 1536);
    a->kernel = json_int(r, audio, "conv_kernel_size", 1, 64, 5);
    /* self and the rows before it, the first of which only the count has */
    a->reach = json_int(r, audio, "attention_context_left", 2, 1 << 10, 13) - 1;
    a->rms_eps = (float)json_number(r, audio, "rms_norm_eps", 0, 1, 1e-6);
    a->residual = (float)json_number(r, audio, "residual_weight", 0, 16, 0.5);
    a->cap = (float)json_number(r, audio, "attention_logit_cap", 1e-3, 1e9, 50);
    a->clipped = json_bool(r, audio, "use_clipped_linears", true);
    read_channels(r, audio, a->channels);
    if (a->heads && (a->hidden % a->heads || a->hidden % 2))
        json_fail(r, KAKEYA_UNSUPPORTED, "audio_config: hidden_size %d is not a multiple of %d heads", a->hidden,
                  a->heads);
    if (json_int(r, audio, "attention_context_right", 0, 1 << 10, 0))
        json_fail(r, KAKEYA_UNSUPPORTED, "audio_config: attention_context_right is not 0");
    if (json_get(audio, "hidden_act") && !text_is(audio, "hidden_act", "silu"))
        json_fail(r, KAKEYA_UNSUPPORTED, "audio_config: hidden_act is not silu");
}

static void read_frames(json_reader *r, const cJSON *audio, audio_model *a) {
    a->frame = json_int(r, audio, "audio_samples_per_token", 1, 1 << 16, 640);
    a->output = a->frame;
    a->rms_eps = (float)json_number(r, audio, "rms_norm_eps", 0, 1, 1e-6);
    if (json_int(r, audio, "audio_embed_dim", 1, 1 << 16, a->frame) != a->frame)
        json_fail(r, KAKEYA_UNSUPPORTED, "audio_config: audio_embed_dim differs from audio_samples_per_token");
}

/* False: no sound. */
static bool read_config(json_reader *r, const cJSON *top, const model_config *text, audio_model *a) {
    const cJSON *audio = json_object(r, top, "audio_config");
    if (!audio) return false;
    if (text_is(audio, "model_type", "gemma4_audio"))
        read_conformer(r, audio, a);
    else if (text_is(audio, "model_type", "gemma4_unified_audio"))
        read_frames(r, audio, a);
    else
        return false;
    a->text_hidden = text->hidden;
    a->sound_token = json_int(r, top, "audio_token_id", 0, text->vocab - 1, -1);
    a->begin_token = json_int(r, top, "boa_token_id", 0, text->vocab - 1, -1);
    a->end_token = json_int(r, top, "eoa_token_id", 0, text->vocab - 1,
                            json_int(r, top, "eoa_token_index", 0, text->vocab - 1, -1));
    if (r->status == KAKEYA_OK && (a->sound_token < 0 || a->begin_token < 0 || a->end_token < 0))
        json_fail(r, KAKEYA_FORMAT, "audio_token_id, boa_token_id or eoa_token_id is missing");
    return true;
}

kakeya_status audio_model_config(const char *path, const char *json, size_t json_bytes, const model_config *text,
                                 audio_model *out, bool *there, kakeya_error *reason, kakeya_error *error) {
    cJSON *top = NULL;
    *out = (audio_model){0};
    *there = false;
    kakeya_status status = json_parse_object(path, json, json_bytes, &top, error);
    if (status) return status;
    json_reader reader = {.name = path, .error = reason};
    *there = read_config(&reader, top, text, out) && !reader.status;
    cJSON_Delete(top);
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------------- tensors */

typedef struct source {
    checkpoint *ck;
    mem_account *account;
} source;

static const tensor *find_name(const checkpoint *ck, const char *name) {
    static const char *const prefixes[] = {"model.", ""};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        char path[AUDIO_NAME_BYTES + 8];
        snprintf(path, sizeof path, "%s%s", prefixes[i], name);
        const ptrdiff_t at = checkpoint_find(ck, path);
        if (at >= 0) return ck->tensors[at];
    }
    return NULL;
}

static kakeya_status find(void *file, const audio_slot *slot, int bound, vision_stored *out, kakeya_error *error) {
    const source *s = file;
    char name[AUDIO_NAME_BYTES];
    if (bound >= 0) audio_bound_name(slot, bound, false, name);
    const tensor *t = find_name(s->ck, bound >= 0 ? name : slot->name);
    if (!t) return KAKEYA_OK;
    *out = (vision_stored){.name = t->name, .values = 1, .last = t->dims ? t->shape[t->dims - 1] : 1};
    for (int i = 0; i < t->dims; i++) out->values *= t->shape[i];
    if (!tensor_dtype(t, &out->type)) out->type_name = tensor_type_name(t->type);
    return checkpoint_aligned(s->ck, t, s->account, &out->data, error);
}

/* ------------------------------------------------------------------------------------------------------- opening */

kakeya_status audio_model_open(checkpoint *ck, const model_config *text, mem_account *account, audio_model **out,
                               char *reason, size_t reason_bytes, kakeya_error *error) {
    *out = NULL;
    *reason = '\0';
    kakeya_error why = {0};
    bool there = false;
    audio_model *a = calloc(1, sizeof *a);
    if (!a) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", ck->directory);
    kakeya_status status =
        audio_model_config(ck->config_path, ck->config, ck->config_bytes, text, a, &there, &why, error);
    source from = {ck, account};
    if (status == KAKEYA_OK && there) status = audio_bind(a, account, find, &from, false, &why, error);
    if (status == KAKEYA_OK && there && !why.status) {
        *out = a;
        return KAKEYA_OK;
    }
    if (why.status) snprintf(reason, reason_bytes, "%s", why.message);
    audio_model_close(a);
    return status;
}
