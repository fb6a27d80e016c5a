/* One list of tensors per model kind, walked by everything that needs it: binding to a checkpoint, making synthetic
 * weights, counting parameters. A walk visits slots; a slot says what the tensor is called, its shape, and where its
 * binding is stored. */
#ifndef KAKEYA_MODEL_TENSORS_H
#define KAKEYA_MODEL_TENSORS_H

#include "formats/checkpoint.h"
#include "model/parameter_group.h"
#include "model/weight.h"

typedef enum tensor_kind {
    SLOT_MATRIX = 0, /* a `weight`; leading dimensions are folded into its rows */
    SLOT_VECTOR,     /* a `const float *`, converted */
    SLOT_SCALAR,     /* a `float`, converted */
    SLOT_IGNORED,    /* may be in the file, is not bound */
} tensor_kind;

enum { SLOT_NAME_BYTES = 96 };

typedef struct tensor_slot {
    char name[SLOT_NAME_BYTES]; /* without the checkpoint's prefix, unless `unprefixed` */
    bool unprefixed;
    tensor_kind kind;
    parameter_group group;
    int dims;
    int64_t shape[3];
    size_t offset;           /* of the binding inside the structure that is filled */
    weight_format quantised; /* matrices of a synthetic model that is not plain; F32 also stands for plain ones */
    float synthetic;         /* matrices: standard deviation of the values; vectors and scalars: the value */
} tensor_slot;

typedef kakeya_status (*tensor_visit)(void *context, const tensor_slot *slot, kakeya_error *error);
/* Visits every slot of the model that `shape` describes; stops at the first failure. */
typedef kakeya_status (*tensor_walk)(const void *shape, tensor_visit visit, void *context, kakeya_error *error);

int64_t tensor_slot_elements(const tensor_slot *slot);

/* Names that a checkpoint may hold beside the model's own. */
typedef bool (*tensor_skip)(const char *name);

/* Memory behind bindings. */
typedef struct tensor_memory {
    void **owned; /* MEM_WEIGHTS blocks; the array itself is malloc'ed */
    size_t n_owned;
    size_t mapped_bytes; /* of matrices that point into the mapped files */
    size_t skipped;      /* tensors that `skip` accepted */
} tensor_memory;

void tensor_memory_release(tensor_memory *memory);

/* For those who bind slots: a MEM_WEIGHTS block that `memory` owns (NULL when out of memory); one block for all vectors
 * of a walk, and the floats of it that a vector takes; the matrix of a slot in a format with a single stream. */
void *tensor_memory_block(tensor_memory *memory, mem_account *account, size_t bytes);
kakeya_status tensor_vector_block(tensor_walk walk, const void *shape, mem_account *account, tensor_memory *memory,
                                  float **block, kakeya_error *error);
size_t tensor_vector_floats(const tensor_slot *slot);
weight tensor_slot_weight(const tensor_slot *slot, const void *data, weight_format format);

/* Up to six names for a message. */
typedef struct name_list {
    char text[640];
    size_t used, count;
} name_list;

void name_list_add(name_list *list, const char *name, const char *detail);
/* KAKEYA_OK where both lists are empty, else an error that names what is missing and what is unexpected. */
kakeya_status name_lists_check(const char *file, const name_list *missing, const name_list *unexpected,
                               kakeya_error *error);

/* A binding under way, for those who bind some slots in another way. */
typedef struct tensor_binding {
    checkpoint *ck;
    const char *prefix;
    char *base; /* of the structure that is filled */
    mem_account *account;
    tensor_memory *memory;
    bool *used; /* by index of the checkpoint's tensors: what somebody has asked for */
} tensor_binding;

/* Is asked first for every slot; `name` has its prefix. *bound false: the slot is bound as all others are. */
typedef struct tensor_hook {
    kakeya_status (*bind)(void *context, const tensor_binding *binding, const tensor_slot *slot, const char *name,
                          bool *bound, kakeya_error *error);
    void *context;
} tensor_hook;

/* Binds every slot to the tensor prefix + name of the checkpoint and stores the bindings at `base`. Strict: a tensor
 * that is missing, of another shape or of another type, or one that nobody knows, is an error that names it (up to
 * six). hook may be NULL. */
kakeya_status tensors_bind(checkpoint *ck, const char *prefix, tensor_walk walk, const void *shape, void *base,
                           const tensor_hook *hook, tensor_skip skip, mem_account *account, tensor_memory *memory,
                           kakeya_error *error);

/* Fills every slot with deterministic values in MEM_WEIGHTS memory; matrices are of format `format`. Where that is a
 * block format, they are of their slots' `quantised`, and those that are not plain have no data, as in
 * tensors_outline. */
kakeya_status tensors_synthesize(tensor_walk walk, const void *shape, void *base, weight_format format,
                                 mem_account *account, tensor_memory *memory, kakeya_error *error);
/* The same, but matrices have no data, only their shape and `synthetic` deviation. */
kakeya_status tensors_outline(tensor_walk walk, const void *shape, void *base, weight_format format,
                              mem_account *account, tensor_memory *memory, kakeya_error *error);

/* The lists: of a model_config for a model_weights, of a block_drafter_config for a block_drafter_model, of an
 * restoration_config for an restoration_model, of an assistant_config for an assistant_weights. */
kakeya_status gemma4_walk(const void *shape, tensor_visit visit, void *context, kakeya_error *error);
kakeya_status dflash_walk(const void *shape, tensor_visit visit, void *context, kakeya_error *error);
kakeya_status assistant_walk(const void *shape, tensor_visit visit, void *context, kakeya_error *error);
kakeya_status restoration_walk(const void *shape, tensor_visit visit, void *context, kakeya_error *error);

#endif
