/* What makes rows for a text model out of sound: the conformer of E2B and E4B, and the 12B's frames, which one matrix
 * projects. What it consists of; no arithmetic. Source of every rule: published configuration keys and transformers
 * 5.23 (modeling_gemma4.py, modeling_gemma4_unified.py; order of operations: Gemma4AudioModel,
 * Gemma4MultimodalEmbedder). */
#ifndef KAKEYA_MODEL_AUDIO_MODEL_H
#define KAKEYA_MODEL_AUDIO_MODEL_H

#include "base/alloc.h"
#include "model/language_model.h"
#include "model/vision_model.h"

/* A weight's place: of the model, or of a layer. */
typedef enum audio_role {
    AUDIO_NONE = 0,
    /* of the model */
    AUDIO_CONV_0, /* vector [channels 0][3][3] */
    AUDIO_CONV_0_NORM,
    AUDIO_CONV_1, /* matrix [channels 1][3][3][channels 0] */
    AUDIO_CONV_1_NORM,
    AUDIO_INPUT,       /* matrix [hidden][bands / 4 * channels 1] */
    AUDIO_OUTPUT,      /* matrix [output][hidden] */
    AUDIO_OUTPUT_BIAS, /* vector [output] */
    AUDIO_PROJECTION,  /* matrix [text hidden][output]; of frames [text hidden][samples of a frame] */
    /* of a layer; the feed-forward blocks are alike */
    AUDIO_FF_1_PRE_NORM,
    AUDIO_FF_1_UP,
    AUDIO_FF_1_DOWN,
    AUDIO_FF_1_POST_NORM,
    AUDIO_PRE_ATTENTION_NORM,
    AUDIO_Q,
    AUDIO_K,
    AUDIO_V,
    AUDIO_DIM_SCALE,  /* vector [head_dim], with softplus applied; directories have it without, GGUF files with it */
    AUDIO_RELATIVE_K, /* matrix [hidden][hidden] */
    AUDIO_POST,
    AUDIO_POST_ATTENTION_NORM,
    AUDIO_CONV_PRE_NORM,
    AUDIO_CONV_START, /* matrix [2 * hidden][hidden] */
    AUDIO_CONV_DEPTH, /* vector [hidden][kernel] */
    AUDIO_CONV_NORM,
    AUDIO_CONV_END,
    AUDIO_FF_2_PRE_NORM,
    AUDIO_FF_2_UP,
    AUDIO_FF_2_DOWN,
    AUDIO_FF_2_POST_NORM,
    AUDIO_OUT_NORM,
    AUDIO_ROLES
} audio_role;

typedef struct audio_weights {
    weight matrix[AUDIO_ROLES];
    const float *vector[AUDIO_ROLES];
    vision_bounds bounds[AUDIO_ROLES]; /* infinite where a linear has none */
} audio_weights;

typedef struct audio_model {
    bool conformer; /* false: the frames of the 12B */
    int frame;      /* samples of a frame */
    int layers, hidden, heads, head_dim, intermediate, output;
    int channels[2]; /* of the two convolutions, each of which halves time and bands */
    int kernel;      /* of the convolution of a layer */
    int reach;       /* a row attends itself and reach - 1 rows before it */
    float rms_eps, residual, cap;
    bool clipped;
    bool one_file;   /* while it is read from a GGUF model's own file: some names differ there */
    int text_hidden; /* values of a row that is made */
    int sound_token, begin_token, end_token; /* <|audio|>, <|audio>, <audio|> */
    audio_weights *weights;                  /* [1 + layers]: the model's, then each layer's */
    void **owned;                            /* MEM_WEIGHTS blocks */
    size_t n_owned;
} audio_model;

enum { AUDIO_NAME_BYTES = 112, AUDIO_BOUNDS = VISION_BOUNDS };

/* A tensor of the list. */
typedef struct audio_slot {
    audio_role role;
    int layer;                   /* -1: the model's */
    char name[AUDIO_NAME_BYTES]; /* in safetensors, behind "model." or nothing: "audio_tower.output_proj.bias" */
    char gguf[64];
    bool mapped;           /* a matrix that is used as it is stored */
    bool clipped;          /* bounds lie beside it (audio_bound_name) */
    int64_t rows, columns; /* columns of a vector: 1 */
} audio_slot;

typedef kakeya_status (*audio_visit)(void *context, const audio_slot *slot, kakeya_error *error);
/* Every tensor that an audio part of these sizes has. Stops at the first failure and returns it. */
kakeya_status audio_model_walk(const audio_model *a, audio_visit visit, void *context, kakeya_error *error);
/* The name of bound `i` (input_min, input_max, output_min, output_max) beside slot->name, or beside slot->gguf. */
void audio_bound_name(const audio_slot *slot, int i, bool in_gguf, char out[AUDIO_NAME_BYTES]);
/* Where published directories and GGUF files have value i of AUDIO_CONV_1, whose channels are last here and in MLX's:
 * an index into the whole tensor. */
size_t audio_channels_first(const audio_model *a, size_t i);

/* `format`: of matrices, where `a` knows its sizes alone and has no weights. */
vision_sizes audio_model_sizes(const audio_model *a, weight_format format);

/* Rows of n samples of 16 kHz; 0: too few. */
size_t audio_model_rows(const audio_model *a, size_t n);

void audio_model_close(audio_model *audio); /* NULL is fine */

#endif
