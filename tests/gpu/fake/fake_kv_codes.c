/* Rows in codes become rows in bf16: what tells whose they are goes along. */
#include <string.h>

#include "backend/cuda/kernels.h"
#include "backend/kv_format.h"
#include "gpu/fake/fake_device.h"

enum { TAG_BYTES = 16 }; /* fake_kernels.c */

size_t fake_vector_bytes(int codes, int head_dim) {
    return kv_format_row_bytes(codes == CUDA_KV_Q4 ? KV_FORMAT_Q4 : KV_FORMAT_Q8, 1, (size_t)head_dim);
}

void cuda_expand_codes(const cuda_launch *l, cuda_kv_codes codes, const cuda_bf16 *from, int kv_heads, int head_dim,
                       int rows, cuda_bf16 *to) {
    (void)l;
    size_t kept = (size_t)kv_heads * fake_vector_bytes((int)codes, head_dim), values = (size_t)(kv_heads * head_dim);
    for (int r = 0; r < rows; r++) memcpy(to + (size_t)r * values, (const char *)from + (size_t)r * kept, TAG_BYTES);
}
