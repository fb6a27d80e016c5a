/* Tensors of a file, of whatever kind, to a vision_model. */
#ifndef KAKEYA_MODEL_GEMMA4_VISION_BIND_H
#define KAKEYA_MODEL_GEMMA4_VISION_BIND_H

#include "base/dtype.h"
#include "formats/gguf.h"
#include "model/vision_model.h"

/* A tensor as a file has it. */
typedef struct vision_stored {
    const char *name;      /* as messages call it; NULL: the file has no such tensor */
    int64_t values, last;  /* all of them, and those of the fastest dimension */
    const char *type_name; /* of one whose type no weight can have; else NULL */
    dtype type;
    const void *data; /* NULL with a status of the finder's */
} vision_stored;

/* Finds a slot's tensor (bound -1), or one of its bounds. */
typedef kakeya_status (*vision_find)(void *file, const vision_slot *slot, int bound, vision_stored *out,
                                     kakeya_error *error);

/* Binds all tensors of a vision part whose sizes are known. KAKEYA_OK with a `reason` where the file cannot be used: a
 * tensor that is missing, of another shape or quantised. is_gguf: the file has them in the order of GGUF files. What
 * was made is v's also on failure. */
kakeya_status vision_bind(vision_model *v, mem_account *account, vision_find find, void *file, bool is_gguf,
                          kakeya_error *reason, kakeya_error *error);

/* A tensor of a GGUF file. One that is not aligned to floats is copied, and the copy is one of *owned. */
kakeya_status vision_stored_gguf(const gguf_tensor *t, mem_account *account, void ***owned, size_t *n_owned,
                                 vision_stored *out, kakeya_error *error);

/* Value i. */
float vision_value(const void *data, dtype type, size_t i);

#endif
