/* What makes rows for a text model out of pictures: the towers of 26B, 31B, E2B and E4B, and the 12B's embedder.
 * What it consists of; no arithmetic. Source of every rule: published configuration keys and transformers
 * 5.23 (modeling_gemma4.py, modeling_gemma4_unified.py). */
#ifndef KAKEYA_MODEL_VISION_MODEL_H
#define KAKEYA_MODEL_VISION_MODEL_H

#include "base/alloc.h"
#include "model/language_model.h"

/* A weight's place: of the model, or of a layer. */
typedef enum vision_role {
    VISION_NONE = 0,
    /* of the model */
    VISION_PATCH,      /* matrix [hidden][values of a patch] */
    VISION_PATCH_BIAS, /* embedder alone, like the next seven */
    VISION_PATCH_NORM, /* over the values of a patch, with mean and bias */
    VISION_PATCH_NORM_BIAS,
    VISION_HIDDEN_NORM,
    VISION_HIDDEN_NORM_BIAS,
    VISION_PLACE_NORM,
    VISION_PLACE_NORM_BIAS,
    VISION_PLACES, /* table: [2][positions][hidden]; of the embedder [positions][2][hidden] */
    VISION_STD_BIAS,
    VISION_STD_SCALE,
    VISION_PROJECTION, /* matrix [text hidden][hidden] */
    /* of a layer */
    VISION_INPUT_NORM,
    VISION_Q,
    VISION_K,
    VISION_V,
    VISION_Q_NORM,
    VISION_K_NORM,
    VISION_O,
    VISION_POST_ATTENTION_NORM,
    VISION_PRE_FFN_NORM,
    VISION_GATE,
    VISION_UP,
    VISION_DOWN,
    VISION_POST_FFN_NORM,
    VISION_ROLES
} vision_role;

/* Of a clipped linear: what comes in and what goes out is clamped. */
typedef struct vision_bounds {
    float input_min, input_max, output_min, output_max;
} vision_bounds;

typedef struct vision_weights {
    weight matrix[VISION_ROLES];
    const float *vector[VISION_ROLES];
    vision_bounds bounds[VISION_ROLES]; /* infinite where a linear has none */
} vision_weights;

typedef struct vision_model {
    bool tower;     /* false: the embedder of the 12B */
    bool both_ways; /* rows of one image see each other in sliding layers */
    int patch;      /* pixels of a patch's side, as the model reads it: 16; of the embedder 48 */
    int pooling;    /* patches of a row's side: 3; of the embedder 1 */
    int layers, hidden, heads, head_dim, intermediate;
    int positions;   /* of the table of places, in each direction */
    int text_hidden; /* values of a row that is made */
    int budget;      /* rows of a picture at most, where nobody says how many */
    float rms_eps, rope_theta;
    bool standardize, clipped;
    int image_token, begin_token, end_token; /* <|image|>, <|image>, <image|> */
    vision_weights *weights;                 /* [1 + layers]: the model's, then each layer's */
    void **owned;                            /* MEM_WEIGHTS blocks */
    size_t n_owned;
} vision_model;

/* How the order of a tensor's values in GGUF files differs. */
typedef enum vision_order {
    VISION_AS_IS = 0,
    VISION_PIXELS,     /* of a patch: (row, column, channel), there (channel, row, column) */
    VISION_PLACE_PAIRS /* rows of the embedder's table: [positions][2], there [2][positions] */
} vision_order;

enum { VISION_NAME_BYTES = 112, VISION_BOUNDS = 4 };

/* A tensor of the list. */
typedef struct vision_slot {
    vision_role role;
    int layer;                     /* -1: the model's */
    char name[VISION_NAME_BYTES];  /* in safetensors, behind "model." or nothing: "vision_tower.std_bias" */
    char again[VISION_NAME_BYTES]; /* "" or another place of it */
    char gguf[64];
    bool matrix;
    bool clipped;          /* bounds lie beside it (vision_bound_name) */
    int64_t rows, columns; /* columns of a vector: 1 */
    vision_order order;
} vision_slot;

typedef kakeya_status (*vision_visit)(void *context, const vision_slot *slot, kakeya_error *error);
/* Every tensor that a vision part of these sizes has. Stops at the first failure and returns it. */
kakeya_status vision_model_walk(const vision_model *v, vision_visit visit, void *context, kakeya_error *error);
/* The name of bound `i` (input_min, input_max, output_min, output_max) beside slot->name, or beside slot->gguf. */
void vision_bound_name(const vision_slot *slot, int i, bool in_gguf, char out[VISION_NAME_BYTES]);
/* Where GGUF files have value `column` of row `row`: an index into the whole tensor. */
size_t vision_gguf_index(const vision_model *v, const vision_slot *slot, int64_t row, int64_t column);

/* Also of what reads sound. */
typedef struct vision_sizes {
    uint64_t parameters;
    size_t bytes; /* of weights as an engine has them: matrices as their files do, vectors in float32 */
} vision_sizes;
/* `format`: of matrices, where v knows its sizes alone and has no weights. */
vision_sizes vision_model_sizes(const vision_model *v, weight_format format);

/* Reads all matrices from their files into memory, which the first picture would do. */
void vision_model_read(const vision_model *vision);

void vision_model_close(vision_model *vision); /* NULL is fine */

/* The number of values of a patch. */
static inline int vision_model_patch_values(const vision_model *v) { return 3 * v->patch * v->patch; }

#endif
