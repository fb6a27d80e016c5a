/* Tensors of a GGUF file to the slots of a tensor list: what all models in such files have in common. Shapes are
 * strict: each tensor is bound once, and none is left over. */
#ifndef KAKEYA_MODEL_GGUF_BINDING_H
#define KAKEYA_MODEL_GGUF_BINDING_H

#include "formats/gguf.h"
#include "model/tensors.h"

typedef struct gguf_binding {
    gguf *file;
    char *base; /* of the structure that is filled */
    mem_account *account;
    tensor_memory *memory;
    bool *used; /* by index of the file's tensors */
    float *vectors;
    name_list missing;
} gguf_binding;

/* Makes room for the vectors of the walk; end comes behind it in any case. */
kakeya_status gguf_binding_begin(gguf_binding *b, tensor_walk walk, const void *shape, kakeya_error *error);
/* `status` of the binding so far; where it is good, tensors that are missing, or that nobody has asked for and `skip`
 * (may be NULL) does not know, are an error that names them. */
kakeya_status gguf_binding_end(gguf_binding *b, kakeya_status status, tensor_skip skip, kakeya_error *error);

/* The tensor, which now counts as read; NULL where there is none. */
const gguf_tensor *gguf_binding_find(gguf_binding *b, const char *name);
kakeya_status gguf_binding_no_memory(const gguf_binding *b, const char *name, size_t bytes, kakeya_error *error);
/* The tensor's shape, slowest dimension first, against the one expected. */
kakeya_status gguf_binding_check_shape(const gguf_binding *b, const gguf_tensor *t, int dims, const int64_t *shape,
                                       kakeya_error *error);
/* The whole of a tensor as a matrix; leading dimensions are folded into its rows. */
kakeya_status gguf_binding_matrix(gguf_binding *b, const gguf_tensor *t, weight *out, kakeya_error *error);
/* A vector or a scalar of finite numbers. */
kakeya_status gguf_binding_numbers(gguf_binding *b, const tensor_slot *slot, const gguf_tensor *t, kakeya_error *error);

#endif
