/* Element types of stored tensors that kakeya computes with. */
#ifndef KAKEYA_BASE_DTYPE_H
#define KAKEYA_BASE_DTYPE_H

#include <stddef.h>

typedef enum dtype { DTYPE_F32 = 0, DTYPE_F16, DTYPE_BF16, DTYPE_COUNT } dtype;

static inline size_t dtype_bytes(dtype type) { return type == DTYPE_F32 ? 4 : 2; }
static inline const char *dtype_name(dtype type) {
    return type == DTYPE_F32 ? "F32" : type == DTYPE_F16 ? "F16" : "BF16";
}

#endif
