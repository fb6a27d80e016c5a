/* Rules that turn model-wide values into per-layer ones; shared by the parser and the table of published variants. */
#ifndef KAKEYA_MODEL_GEMMA4_LAYERS_H
#define KAKEYA_MODEL_GEMMA4_LAYERS_H

#include "model/language_model.h"

/* Ranges that no published model comes near; they keep every later product inside int. */
enum {
    MODEL_MAX_WIDTH = 1 << 17,
    MODEL_MAX_HEADS = 1024,
    MODEL_MAX_HEAD_DIM = 4096,
    MODEL_MAX_VOCAB = 1 << 24,
    MODEL_MAX_CONTEXT = 1 << 28,
    MODEL_MAX_EXPERTS = 1 << 14,
};

/* Layer types are set; fills kv_source and the dense MLP widths. Layers from `layers - shared_kv_layers` on attend the
 * K/V of the last earlier layer of their own type; with double_wide their dense MLP is twice as wide. False where such
 * a layer does not exist (*layer names the layer without a source). */
bool gemma4_share_kv(model_config *config, int intermediate, bool double_wide, int *layer);

/* Proportional RoPE turns floor(partial * head_dim / 2) pairs; their frequencies are those of the whole head. */
int gemma4_rotated_pairs(double partial_rotary_factor, int head_dim);

/* The head dimension of the first layer of a type; 0 where there is none. */
int gemma4_head_dim(const model_config *config, layer_type type);

const char *layer_type_name(layer_type type); /* "sliding_attention", "full_attention" */

/* Writes the published name of this shape into config->variant, or "gemma4". */
void gemma4_name_variant(model_config *config);

#endif
