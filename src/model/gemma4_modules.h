/* Gemma 4's matrices in quantised checkpoint directories: which module holds which slot. */
#ifndef KAKEYA_MODEL_GEMMA4_MODULES_H
#define KAKEYA_MODEL_GEMMA4_MODULES_H

#include "model/language_model.h"
#include "model/modules.h"

/* The prefix of the text model's tensors: "model.language_model.", "language_model.model." (MLX), "model.". */
const char *gemma4_prefix(const checkpoint *ck);

/* Whether a head's tensors are there that differ from the embedding's: it counts even where the configuration ties the
 * two. */
bool gemma4_has_own_head(const checkpoint *ck, const char *prefix);

/* What config.json says of quantisation, or a hf_quant_config.json beside it; *out is NULL where neither does. */
kakeya_status gemma4_quantisation(const checkpoint *ck, quantisation **out, kakeya_error *error);

typedef struct gemma4_modules {
    const quantisation *quantised; /* NULL: none */
    const char *prefix;
    size_t bytes[WEIGHT_FORMAT_COUNT]; /* that were bound, by format */
    size_t quantised_bytes;            /* of them, in formats that are not plain */
    weight_format main_format;         /* that holds the most bytes */
} gemma4_modules;

/* A tensor_hook's bind; the context is a gemma4_modules. */
kakeya_status gemma4_bind_modules(void *context, const tensor_binding *binding, const tensor_slot *slot,
                                  const char *name, bool *bound, kakeya_error *error);

#endif
