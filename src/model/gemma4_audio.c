/* Names: published checkpoints, and MLX directories, which leave out "model." and have the channels of convolutions in
 * the last place. */
#include "model/gemma4_audio.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "media/log_mel.h"
#include "model/gemma4_vision_bind.h"

enum { TAPS = 9 /* of a convolution of 3 x 3 */, MODULE_BYTES = 104, NAME_BYTES = MODULE_BYTES + 24 };

size_t gemma4_audio_rows(const gemma4_audio *a, size_t n) {
    if (!a->conformer) return (n + (size_t)a->frame - 1) / (size_t)a->frame;
    return ((log_mel_frames(n) + 1) / 2 + 1) / 2;
}

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

static void read_conformer(json_reader *r, const cJSON *audio, gemma4_audio *a) {
    a->conformer = true;
    a->layers = json_int(r, audio, "num_hidden_layers", 1, GEMMA4_MAX_LAYERS, 12);
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

static void read_frames(json_reader *r, const cJSON *audio, gemma4_audio *a) {
    a->frame = json_int(r, audio, "audio_samples_per_token", 1, 1 << 16, 640);
    a->output = a->frame;
    a->rms_eps = (float)json_number(r, audio, "rms_norm_eps", 0, 1, 1e-6);
    if (json_int(r, audio, "audio_embed_dim", 1, 1 << 16, a->frame) != a->frame)
        json_fail(r, KAKEYA_UNSUPPORTED, "audio_config: audio_embed_dim differs from audio_samples_per_token");
}

/* False: no sound. */
static bool read_config(json_reader *r, const cJSON *top, const gemma4_config *text, gemma4_audio *a) {
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

kakeya_status gemma4_audio_config(const char *path, const char *json, size_t json_bytes, const gemma4_config *text,
                                  gemma4_audio *out, bool *there, kakeya_error *reason, kakeya_error *error) {
    cJSON *top = NULL;
    *out = (gemma4_audio){0};
    *there = false;
    kakeya_status status = json_parse_object(path, json, json_bytes, &top, error);
    if (status) return status;
    json_reader reader = {.name = path, .error = reason};
    *there = read_config(&reader, top, text, out) && !reader.status;
    cJSON_Delete(top);
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------------- tensors */

/* Names are of modules; those of clipped linears have an inner ".linear" behind which the bounds do not lie. */
typedef struct audio_tensor {
    audio_role role;
    const char *name;
    const char *ending; /* ".weight", or behind a module whose bounds lie beside it ".linear.weight" */
    char rows, columns; /* sizes: h hidden, f intermediate, d of a head, 2 twice hidden, o output, t of a text row,
                           i of the input, a and b channels, k of a kernel, 9 taps, c taps of channels a; 0: a vector */
} audio_tensor;

static const char plain[] = ".weight", clipped[] = ".linear.weight";

static const audio_tensor model_tensors[] = {
    {AUDIO_CONV_0, "subsample_conv_projection.layer0.conv", plain, 'a', '9'},
    {AUDIO_CONV_0_NORM, "subsample_conv_projection.layer0.norm", plain, 'a', 0},
    {AUDIO_CONV_1, "subsample_conv_projection.layer1.conv", plain, 'b', 'c'},
    {AUDIO_CONV_1_NORM, "subsample_conv_projection.layer1.norm", plain, 'b', 0},
    {AUDIO_INPUT, "subsample_conv_projection.input_proj_linear", plain, 'h', 'i'},
    {AUDIO_OUTPUT, "output_proj", plain, 'o', 'h'},
    {AUDIO_OUTPUT_BIAS, "output_proj", ".bias", 'o', 0},
};
static const audio_tensor layer_tensors[] = {
    {AUDIO_FF_1_PRE_NORM, "feed_forward1.pre_layer_norm", plain, 'h', 0},
    {AUDIO_FF_1_UP, "feed_forward1.ffw_layer_1", clipped, 'f', 'h'},
    {AUDIO_FF_1_DOWN, "feed_forward1.ffw_layer_2", clipped, 'h', 'f'},
    {AUDIO_FF_1_POST_NORM, "feed_forward1.post_layer_norm", plain, 'h', 0},
    {AUDIO_PRE_ATTENTION_NORM, "norm_pre_attn", plain, 'h', 0},
    {AUDIO_Q, "self_attn.q_proj", clipped, 'h', 'h'},
    {AUDIO_K, "self_attn.k_proj", clipped, 'h', 'h'},
    {AUDIO_V, "self_attn.v_proj", clipped, 'h', 'h'},
    {AUDIO_DIM_SCALE, "self_attn.per_dim_scale", "", 'd', 0},
    {AUDIO_RELATIVE_K, "self_attn.relative_k_proj", plain, 'h', 'h'},
    {AUDIO_POST, "self_attn.post", clipped, 'h', 'h'},
    {AUDIO_POST_ATTENTION_NORM, "norm_post_attn", plain, 'h', 0},
    {AUDIO_CONV_PRE_NORM, "lconv1d.pre_layer_norm", plain, 'h', 0},
    {AUDIO_CONV_START, "lconv1d.linear_start", clipped, '2', 'h'},
    {AUDIO_CONV_DEPTH, "lconv1d.depthwise_conv1d", plain, 'h', 'k'},
    {AUDIO_CONV_NORM, "lconv1d.conv_norm", plain, 'h', 0},
    {AUDIO_CONV_END, "lconv1d.linear_end", clipped, 'h', 'h'},
    {AUDIO_FF_2_PRE_NORM, "feed_forward2.pre_layer_norm", plain, 'h', 0},
    {AUDIO_FF_2_UP, "feed_forward2.ffw_layer_1", clipped, 'f', 'h'},
    {AUDIO_FF_2_DOWN, "feed_forward2.ffw_layer_2", clipped, 'h', 'f'},
    {AUDIO_FF_2_POST_NORM, "feed_forward2.post_layer_norm", plain, 'h', 0},
    {AUDIO_OUT_NORM, "norm_out", plain, 'h', 0},
};
static const audio_tensor projection = {AUDIO_PROJECTION, "embedding_projection", plain, 't', 'o'};

static int64_t size_of(const gemma4_audio *a, char letter) {
    switch (letter) {
    case 'h':
        return a->hidden;
    case 'f':
        return a->intermediate;
    case 'd':
        return a->head_dim;
    case '2':
        return 2 * (int64_t)a->hidden;
    case 'o':
        return a->output;
    case 't':
        return a->text_hidden;
    case 'i':
        return LOG_MEL_BANDS / 4 * (int64_t)a->channels[1];
    case 'a':
        return a->channels[0];
    case 'b':
        return a->channels[1];
    case 'k':
        return a->kernel;
    case '9':
        return TAPS;
    case 'c':
        return TAPS * (int64_t)a->channels[0];
    default:
        return 1;
    }
}

typedef struct binder {
    gemma4_audio *a;
    checkpoint *ck;
    mem_account *account;
    kakeya_error *reason; /* .status: there is one */
    kakeya_error *error;
} binder;

static const tensor *find_name(const checkpoint *ck, const char *name) {
    static const char *const prefixes[] = {"model.", ""};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        char path[NAME_BYTES + 8];
        snprintf(path, sizeof path, "%s%s", prefixes[i], name);
        const ptrdiff_t at = checkpoint_find(ck, path);
        if (at >= 0) return ck->tensors[at];
    }
    return NULL;
}

static int64_t values_of(const tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->dims; i++) n *= t->shape[i];
    return n;
}

static void *own(binder *b, const char *name, size_t bytes, kakeya_status *status) {
    gemma4_audio *a = b->a;
    void **owned = realloc(a->owned, (a->n_owned + 1) * sizeof *owned);
    if (owned) a->owned = owned;
    void *block = owned ? mem_alloc(b->account, MEM_WEIGHTS, bytes) : NULL;
    if (block)
        owned[a->n_owned++] = block;
    else
        *status = error_set(b->error, KAKEYA_OUT_OF_MEMORY, "no memory for tensor %s", name);
    return block;
}

/* [out][channels][3][3], or of MLX [out][3][3][channels], to [out][3][3][channels]. */
static void reorder(const gemma4_audio *a, const tensor *t, const void *data, dtype type, float *out) {
    const size_t channels = (size_t)a->channels[0], rows = (size_t)a->channels[1];
    const bool last = t->dims == 4 && t->shape[3] != 3;
    for (size_t row = 0; row < rows; row++)
        for (size_t tap = 0; tap < TAPS; tap++)
            for (size_t c = 0; c < channels; c++)
                *out++ = vision_value(data, type,
                                      last ? (row * TAPS + tap) * channels + c : (row * channels + c) * TAPS + tap);
}

/* What a file does not say is no bound. */
static kakeya_status bind_bounds(binder *b, const char *module, vision_bounds *bounds) {
    static const char *const names[] = {"input_min", "input_max", "output_min", "output_max"};
    float *const to[] = {&bounds->input_min, &bounds->input_max, &bounds->output_min, &bounds->output_max};
    for (int i = 0; i < 4; i++) {
        *to[i] = i % 2 ? INFINITY : -INFINITY;
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "%.*s.%s", MODULE_BYTES - 1, module, names[i]);
        const tensor *t = b->a->clipped ? find_name(b->ck, name) : NULL;
        dtype type;
        const void *data;
        if (!t || values_of(t) != 1 || !tensor_dtype(t, &type)) continue;
        kakeya_status status = checkpoint_aligned(b->ck, t, b->account, &data, b->error);
        if (status != KAKEYA_OK) return status;
        *to[i] = vision_value(data, type, 0);
    }
    return KAKEYA_OK;
}

/* A matrix that is used as it is stored. */
static bool is_mapped(const audio_tensor *row) { return row->columns && strchr("hifo", row->columns); }

static kakeya_status bind_data(binder *b, const audio_tensor *row, const tensor *t, const void *data, dtype type,
                               audio_weights *w) {
    static const weight_format formats[] = {
        [DTYPE_F32] = WEIGHT_F32, [DTYPE_F16] = WEIGHT_F16, [DTYPE_BF16] = WEIGHT_BF16};
    const int64_t rows = size_of(b->a, row->rows), columns = row->columns ? size_of(b->a, row->columns) : 1;
    const bool mapped = is_mapped(row);
    const size_t values = (size_t)(rows * columns);
    kakeya_status status = KAKEYA_OK;
    if (mapped) {
        w->matrix[row->role] = weight_matrix(formats[type], data, (int)rows, (int)columns);
        return KAKEYA_OK;
    }
    float *made = own(b, t->name, values * sizeof *made, &status);
    if (!made) return status;
    if (row->role == AUDIO_CONV_1) {
        reorder(b->a, t, data, type, made);
        w->matrix[row->role] = weight_matrix(WEIGHT_F32, made, (int)rows, (int)columns);
        return KAKEYA_OK;
    }
    for (size_t i = 0; i < values; i++) made[i] = vision_value(data, type, i);
    w->vector[row->role] = made;
    return KAKEYA_OK;
}

static kakeya_status bind_tensor(binder *b, const char *module, const audio_tensor *row, audio_weights *w) {
    if (b->reason->status) return KAKEYA_OK;
    char inner[MODULE_BYTES], name[NAME_BYTES];
    snprintf(inner, sizeof inner, "%.40s.%.60s", module, row->name);
    snprintf(name, sizeof name, "%s%.20s", inner, row->ending);
    const tensor *t = find_name(b->ck, name);
    const int64_t wanted = size_of(b->a, row->rows) * (row->columns ? size_of(b->a, row->columns) : 1);
    dtype type;
    const void *data;
    if (!t) error_set(b->reason, KAKEYA_FORMAT, "%s is missing", name);
    const bool turned = t && is_mapped(row) && t->shape[t->dims - 1] != size_of(b->a, row->columns);
    if (t && (values_of(t) != wanted || turned)) error_set(b->reason, KAKEYA_FORMAT, "%s is of another shape", t->name);
    if (t && !b->reason->status && !tensor_dtype(t, &type))
        error_set(b->reason, KAKEYA_UNSUPPORTED, "%s is stored as %s", t->name, tensor_type_name(t->type));
    if (b->reason->status) return KAKEYA_OK;
    kakeya_status status = checkpoint_aligned(b->ck, t, b->account, &data, b->error);
    if (status == KAKEYA_OK) status = bind_data(b, row, t, data, type, w);
    if (status == KAKEYA_OK && row->ending == clipped) status = bind_bounds(b, inner, &w->bounds[row->role]);
    return status;
}

static kakeya_status bind(binder *b) {
    enum { OF_MODEL = sizeof model_tensors / sizeof *model_tensors };
    enum { OF_LAYER = sizeof layer_tensors / sizeof *layer_tensors };
    gemma4_audio *a = b->a;
    kakeya_status status = KAKEYA_OK;
    a->weights = calloc((size_t)a->layers + 1, sizeof *a->weights);
    if (!a->weights) return error_set(b->error, KAKEYA_OUT_OF_MEMORY, "no memory for the tensors of the audio encoder");
    for (int i = 0; a->conformer && i < OF_MODEL && status == KAKEYA_OK; i++)
        status = bind_tensor(b, "audio_tower", &model_tensors[i], a->weights);
    for (int i = 0; i < a->layers * OF_LAYER && status == KAKEYA_OK; i++) {
        char module[40];
        snprintf(module, sizeof module, "audio_tower.layers.%d", i / OF_LAYER);
        status = bind_tensor(b, module, &layer_tensors[i % OF_LAYER], &a->weights[1 + i / OF_LAYER]);
    }
    return status == KAKEYA_OK ? bind_tensor(b, "embed_audio", &projection, a->weights) : status;
}

static void add_tensor(const gemma4_audio *a, int layer, const audio_tensor *row, weight_format format,
                       vision_sizes *sizes) {
    const int64_t rows = size_of(a, row->rows), columns = row->columns ? size_of(a, row->columns) : 1;
    const weight_format its = a->weights ? a->weights[1 + layer].matrix[row->role].format : format;
    sizes->parameters += (uint64_t)(rows * columns);
    sizes->bytes += is_mapped(row)
                        ? weight_stream_bytes(&weight_format_find(its)->stream[0], (int)rows, (int)columns, 0)
                        : (size_t)(rows * columns) * sizeof(float);
}

vision_sizes gemma4_audio_sizes(const gemma4_audio *a, weight_format format) {
    vision_sizes sizes = {0};
    for (size_t i = 0; a->conformer && i < sizeof model_tensors / sizeof *model_tensors; i++)
        add_tensor(a, -1, &model_tensors[i], format, &sizes);
    for (int layer = 0; layer < a->layers; layer++)
        for (size_t i = 0; i < sizeof layer_tensors / sizeof *layer_tensors; i++)
            add_tensor(a, layer, &layer_tensors[i], format, &sizes);
    add_tensor(a, -1, &projection, format, &sizes);
    return sizes;
}

kakeya_status gemma4_audio_open(checkpoint *ck, const gemma4_config *text, mem_account *account, gemma4_audio **out,
                                char *reason, size_t reason_bytes, kakeya_error *error) {
    *out = NULL;
    *reason = '\0';
    kakeya_error why = {0};
    bool there = false;
    gemma4_audio *a = calloc(1, sizeof *a);
    if (!a) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", ck->directory);
    kakeya_status status =
        gemma4_audio_config(ck->config_path, ck->config, ck->config_bytes, text, a, &there, &why, error);
    binder b = {a, ck, account, &why, error};
    if (status == KAKEYA_OK && there) status = bind(&b);
    if (status == KAKEYA_OK && there && !why.status) {
        *out = a;
        return KAKEYA_OK;
    }
    if (why.status) snprintf(reason, reason_bytes, "%s", why.message);
    gemma4_audio_close(a);
    return status;
}

void gemma4_audio_close(gemma4_audio *a) {
    if (!a) return;
    for (size_t i = 0; i < a->n_owned; i++) mem_free(a->owned[i]);
    free(a->owned);
    free(a->weights);
    free(a);
}
