/* Matrices of checkpoint directories that are stored as more than one tensor: codes and scales of MLX,
 * compressed-tensors and ModelOpt, and experts that are a module each. The tensors that are there decide what a module
 * is; their shapes must agree with the model and with the configuration. */
#ifndef KAKEYA_MODEL_MODULES_H
#define KAKEYA_MODEL_MODULES_H

#include "formats/quantisation.h"
#include "model/tensors.h"

/* What is asked for: [out][in], or `experts` of these. */
typedef struct module_shape {
    int experts; /* 0: the module has no dimension of experts */
    int out, in;
} module_shape;

/* How a module of this scheme is stored; WEIGHT_FORMAT_COUNT: plainly. */
weight_format module_scheme_format(const module_scheme *scheme);

/* Binds the tensors of `module` (a name without ".weight"). *bound is false where there are none, and where the module
 * is a plain matrix that lies as slots do. `table`: an embedding. */
kakeya_status module_bind(const tensor_binding *binding, const quantisation *q, const char *module, bool table,
                          module_shape shape, weight *out, bool *bound, kakeya_error *error);
/* The same for modules of their own per expert, whose names are `before`, the expert's number, `behind`. They are
 * copied into one matrix. */
kakeya_status module_bind_experts(const tensor_binding *binding, const quantisation *q, const char *before,
                                  const char *behind, module_shape shape, weight *out, bool *bound,
                                  kakeya_error *error);
/* Marks the tensors of a module that nobody reads as known. */
void module_ignore(const tensor_binding *binding, const char *module);

#endif
