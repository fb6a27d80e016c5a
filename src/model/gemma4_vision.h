/* What makes rows for a text model out of pictures: the towers of 26B, 31B, E2B and E4B, and the 12B's embedder.
 * Configuration and weight binding; no arithmetic. Source of every rule: published configuration keys and transformers
 * 5.23 (modeling_gemma4.py, modeling_gemma4_unified.py). */
#ifndef KAKEYA_MODEL_GEMMA4_VISION_H
#define KAKEYA_MODEL_GEMMA4_VISION_H

#include "formats/checkpoint.h"
#include "model/gemma4.h"

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

typedef struct gemma4_vision {
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
} gemma4_vision;

/* What a checkpoint directory holds for pictures. *out becomes NULL where it has none: a text model, or one without
 * vision_config. KAKEYA_OK with *out NULL and a `reason` (of reason_bytes, "" otherwise) where it has one that cannot
 * be used: a tensor that is missing, of another shape or quantised. Matrices are mapped; vectors are copied as float32
 * into `account` (MEM_WEIGHTS). */
kakeya_status gemma4_vision_open(checkpoint *ck, const gemma4_config *text, mem_account *account, gemma4_vision **out,
                                 char *reason, size_t reason_bytes, kakeya_error *error);
void gemma4_vision_close(gemma4_vision *vision); /* NULL is fine */

/* The number of values of a patch. */
static inline int gemma4_vision_patch_values(const gemma4_vision *v) { return 3 * v->patch * v->patch; }

#endif
