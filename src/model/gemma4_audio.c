/* The one list of what the conformer and the 12B's frames consist of: names in safetensors and in GGUF files, and
 * shapes. */
#include "model/audio_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "media/log_mel.h"

enum { TAPS = 9 /* of a convolution of 3 x 3 */ };

size_t audio_model_rows(const audio_model *a, size_t n) {
    if (!a->conformer) return (n + (size_t)a->frame - 1) / (size_t)a->frame;
    return ((log_mel_frames(n) + 1) / 2 + 1) / 2;
}

/* Names are of modules; those of clipped linears have an inner ".linear" behind which the bounds do not lie. */
typedef struct audio_tensor {
    audio_role role;
    const char *name;
    const char *gguf;   /* in layers behind "a.blk.N."; ".weight" or ".bias" follows */
    const char *ending; /* ".weight", or behind a module whose bounds lie beside it ".linear.weight" */
    char rows, columns; /* sizes: h hidden, f intermediate, d of a head, 2 twice hidden, o output, t of a text row,
                           i of the input, a and b channels, k of a kernel, 9 taps, c taps of channels a; 0: a vector */
} audio_tensor;

static const char plain[] = ".weight", clipped[] = ".linear.weight";

static const audio_tensor model_tensors[] = {
    {AUDIO_CONV_0, "subsample_conv_projection.layer0.conv", "a.conv1d.0", plain, 'a', '9'},
    {AUDIO_CONV_0_NORM, "subsample_conv_projection.layer0.norm", "a.conv1d.0.norm", plain, 'a', 0},
    {AUDIO_CONV_1, "subsample_conv_projection.layer1.conv", "a.conv1d.1", plain, 'b', 'c'},
    {AUDIO_CONV_1_NORM, "subsample_conv_projection.layer1.norm", "a.conv1d.1.norm", plain, 'b', 0},
    {AUDIO_INPUT, "subsample_conv_projection.input_proj_linear", "a.input_projection", plain, 'h', 'i'},
    {AUDIO_OUTPUT, "output_proj", "a.pre_encode.out", plain, 'o', 'h'},
    {AUDIO_OUTPUT_BIAS, "output_proj", "a.pre_encode.out", ".bias", 'o', 0},
};
/* conv_norm and norm_conv: llama.cpp's converter has them the other way round than their names, and so does its reader.
 */
static const audio_tensor layer_tensors[] = {
    {AUDIO_FF_1_PRE_NORM, "feed_forward1.pre_layer_norm", "ffn_norm", plain, 'h', 0},
    {AUDIO_FF_1_UP, "feed_forward1.ffw_layer_1", "ffn_up", clipped, 'f', 'h'},
    {AUDIO_FF_1_DOWN, "feed_forward1.ffw_layer_2", "ffn_down", clipped, 'h', 'f'},
    {AUDIO_FF_1_POST_NORM, "feed_forward1.post_layer_norm", "ffn_post_norm", plain, 'h', 0},
    {AUDIO_PRE_ATTENTION_NORM, "norm_pre_attn", "attn_pre_norm", plain, 'h', 0},
    {AUDIO_Q, "self_attn.q_proj", "attn_q", clipped, 'h', 'h'},
    {AUDIO_K, "self_attn.k_proj", "attn_k", clipped, 'h', 'h'},
    {AUDIO_V, "self_attn.v_proj", "attn_v", clipped, 'h', 'h'},
    {AUDIO_DIM_SCALE, "self_attn.per_dim_scale", "per_dim_scale", "", 'd', 0},
    {AUDIO_RELATIVE_K, "self_attn.relative_k_proj", "attn_k_rel", plain, 'h', 'h'},
    {AUDIO_POST, "self_attn.post", "attn_out", clipped, 'h', 'h'},
    {AUDIO_POST_ATTENTION_NORM, "norm_post_attn", "attn_post_norm", plain, 'h', 0},
    {AUDIO_CONV_PRE_NORM, "lconv1d.pre_layer_norm", "conv_norm", plain, 'h', 0},
    {AUDIO_CONV_START, "lconv1d.linear_start", "conv_pw1", clipped, '2', 'h'},
    {AUDIO_CONV_DEPTH, "lconv1d.depthwise_conv1d", "conv_dw", plain, 'h', 'k'},
    {AUDIO_CONV_NORM, "lconv1d.conv_norm", "norm_conv", plain, 'h', 0},
    {AUDIO_CONV_END, "lconv1d.linear_end", "conv_pw2", clipped, 'h', 'h'},
    {AUDIO_FF_2_PRE_NORM, "feed_forward2.pre_layer_norm", "ffn_norm_1", plain, 'h', 0},
    {AUDIO_FF_2_UP, "feed_forward2.ffw_layer_1", "ffn_up_1", clipped, 'f', 'h'},
    {AUDIO_FF_2_DOWN, "feed_forward2.ffw_layer_2", "ffn_down_1", clipped, 'h', 'f'},
    {AUDIO_FF_2_POST_NORM, "feed_forward2.post_layer_norm", "ffn_post_norm_1", plain, 'h', 0},
    {AUDIO_OUT_NORM, "norm_out", "ln2", plain, 'h', 0},
};
static const audio_tensor projection_tensors[] = {
    {AUDIO_PROJECTION, "embedding_projection", "mm.a.input_projection", plain, 't', 'o'}};
#define COUNT(array) (sizeof(array) / sizeof *(array))

static int64_t size_of(const audio_model *a, char letter) {
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

/* What Ollama calls otherwise in its one-file form. */
static const struct {
    audio_role role;
    const char *name;
} one_file_names[] = {
    {AUDIO_INPUT, "a.pre_encode.out"},  {AUDIO_OUTPUT, "mm.a.fc"},        {AUDIO_OUTPUT_BIAS, "mm.a.fc"},
    {AUDIO_PRE_ATTENTION_NORM, "ln1"},  {AUDIO_RELATIVE_K, "linear_pos"}, {AUDIO_POST_ATTENTION_NORM, "ln2"},
    {AUDIO_OUT_NORM, "layer_pre_norm"},
};

static const char *gguf_name(const audio_model *a, const audio_tensor *row) {
    for (size_t i = 0; a->one_file && i < COUNT(one_file_names); i++)
        if (one_file_names[i].role == row->role) return one_file_names[i].name;
    return row->gguf;
}

/* A matrix that is used as it is stored. */
static bool is_mapped(const audio_tensor *row) { return row->columns && strchr("hifo", row->columns); }

static kakeya_status visit_table(const audio_model *a, const char *module, int layer, const audio_tensor *table,
                                 size_t n, audio_visit visit, void *context, kakeya_error *error) {
    for (size_t i = 0; i < n; i++) {
        const audio_tensor *row = &table[i];
        const char *kind = strcmp(row->ending, ".bias") == 0 ? "bias" : "weight";
        audio_slot slot = {.role = row->role,
                           .layer = layer,
                           .mapped = is_mapped(row),
                           .clipped = a->clipped && row->ending == clipped,
                           .rows = size_of(a, row->rows),
                           .columns = row->columns ? size_of(a, row->columns) : 1};
        if (layer < 0) {
            snprintf(slot.name, sizeof slot.name, "%s.%.60s%s", module, row->name, row->ending);
            snprintf(slot.gguf, sizeof slot.gguf, "%.40s.%s", gguf_name(a, row), kind);
        } else {
            snprintf(slot.name, sizeof slot.name, "%s.layers.%d.%.60s%s", module, layer, row->name, row->ending);
            snprintf(slot.gguf, sizeof slot.gguf, "a.blk.%d.%.30s.%s", layer, gguf_name(a, row), kind);
        }
        kakeya_status status = visit(context, &slot, error);
        if (status != KAKEYA_OK) return status;
    }
    return KAKEYA_OK;
}

kakeya_status audio_model_walk(const audio_model *a, audio_visit visit, void *context, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    if (a->conformer)
        status = visit_table(a, "audio_tower", -1, model_tensors, COUNT(model_tensors), visit, context, error);
    for (int layer = 0; layer < a->layers && status == KAKEYA_OK; layer++)
        status = visit_table(a, "audio_tower", layer, layer_tensors, COUNT(layer_tensors), visit, context, error);
    if (status != KAKEYA_OK) return status;
    return visit_table(a, "embed_audio", -1, projection_tensors, COUNT(projection_tensors), visit, context, error);
}

void audio_bound_name(const audio_slot *slot, int i, bool in_gguf, char out[AUDIO_NAME_BYTES]) {
    static const char *const names[AUDIO_BOUNDS] = {"input_min", "input_max", "output_min", "output_max"};
    const char *name = in_gguf ? slot->gguf : slot->name, *end = strstr(name, in_gguf ? ".weight" : clipped);
    const int bytes = (int)(end ? (size_t)(end - name) : strlen(name));
    snprintf(out, AUDIO_NAME_BYTES, "%.*s.%s", bytes, name, names[i]);
}

size_t audio_channels_first(const audio_model *a, size_t i) {
    const size_t channels = (size_t)a->channels[0], c = i % channels, tap = i / channels % TAPS;
    return (i / channels / TAPS * channels + c) * TAPS + tap;
}

typedef struct measuring {
    const audio_model *a;
    weight_format format;
    vision_sizes sizes;
} measuring;

static kakeya_status measure(void *context, const audio_slot *slot, kakeya_error *error) {
    (void)error;
    measuring *m = context;
    const audio_weights *w = m->a->weights;
    const weight_format its = w ? w[1 + slot->layer].matrix[slot->role].format : m->format;
    const size_t values = (size_t)(slot->rows * slot->columns);
    m->sizes.parameters += values;
    m->sizes.bytes +=
        slot->mapped ? weight_stream_bytes(&weight_format_find(its)->stream[0], (int)slot->rows, (int)slot->columns, 0)
                     : values * sizeof(float);
    return KAKEYA_OK;
}

vision_sizes audio_model_sizes(const audio_model *a, weight_format format) {
    measuring m = {.a = a, .format = format};
    (void)audio_model_walk(a, measure, &m, NULL);
    return m.sizes;
}

void audio_model_close(audio_model *a) {
    if (!a) return;
    for (size_t i = 0; i < a->n_owned; i++) mem_free(a->owned[i]);
    free(a->owned);
    free(a->weights);
    free(a);
}
