/* What a checkpoint's configuration says of its quantised weights: which module is stored how. Three dialects: MLX
 * ("quantization" with a map of modules), compressed-tensors and ModelOpt ("quantization_config" with groups, targets
 * and a list of what is ignored). Nothing here reads a tensor: a loader decides by the tensors that are there, and
 * requires that the configuration agrees. */
#ifndef KAKEYA_FORMATS_QUANTISATION_H
#define KAKEYA_FORMATS_QUANTISATION_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef enum quantisation_method {
    QUANTISATION_NONE = 0,
    QUANTISATION_MLX,
    QUANTISATION_COMPRESSED_TENSORS,
    QUANTISATION_MODELOPT
} quantisation_method;

typedef enum module_form {
    MODULE_PLAIN = 0,
    MODULE_AFFINE, /* MLX: bits and group */
    MODULE_MLX_MXFP4,
    MODULE_MLX_NVFP4,
    MODULE_MLX_MXFP8,
    MODULE_PACKED, /* compressed-tensors "pack-quantized": bits and group, perhaps zero points */
    MODULE_INT8,   /* "int-quantized" */
    MODULE_FP8,    /* "float-quantized", "naive-quantized"; ModelOpt's FP8 */
    MODULE_NVFP4,
    MODULE_MXFP4,
    MODULE_MXFP8,
    MODULE_MODELOPT_NVFP4,
    MODULE_FORM_COUNT
} module_form;

/* "pack-quantized", "affine": as configurations call it. */
const char *module_form_name(module_form form);

typedef struct module_scheme {
    module_form form;
    int bits;
    int group;      /* weights of a row that share a scale; 0: the whole row (or the whole matrix) does */
    int block_rows; /* FP8 blocks: rows that share a scale, with `group` columns; else 0 */
    bool symmetric;
    bool stated; /* the configuration names this very module: it must be stored so */
} module_scheme;

typedef struct quantisation quantisation;

/* Reads the configuration (config.json's text, or a hf_quant_config.json's). *out is NULL where it says nothing of
 * quantisation. KAKEYA_UNSUPPORTED, naming what it is, for methods and forms that are not read. */
kakeya_status quantisation_parse(const char *name, const char *json, size_t bytes, quantisation **out,
                                 kakeya_error *error);
void quantisation_free(quantisation *q); /* NULL is fine */

quantisation_method quantisation_method_of(const quantisation *q); /* NULL: none */
/* How a module should be stored: its tensors' name without ".weight". `linear`: the module multiplies, it is no table
 * of embeddings. */
module_scheme quantisation_find(const quantisation *q, const char *module, bool linear);

#endif
