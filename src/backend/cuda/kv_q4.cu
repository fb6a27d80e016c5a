/* K/V in 4 bits for the attention of prompts, whose kernels read bf16. Bound: one read of the codes, one write. */
#include "backend/cuda/kv_q4.cuh"

enum { EXPAND_Q4_WARPS = 8 };

template <int D>
static __global__ __launch_bounds__(EXPAND_Q4_WARPS * 32) void expand_q4_kernel(const cuda_bf16 *from, size_t vectors,
                                                                                cuda_bf16 *to) {
    int lane = threadIdx.x & 31;
    size_t at = ((size_t)blockIdx.x * EXPAND_Q4_WARPS + (threadIdx.x >> 5)) * kv_q4_form<D>::AT_ONCE +
                (size_t)kv_q4_vector_of<D>(lane);
    bool wanted = at < vectors;
    wait_for_predecessor();
    const unsigned char *vector = reinterpret_cast<const unsigned char *>(from) + at * (size_t)kv_q4_form<D>::BYTES;
    kv_q4_request r = kv_q4_request_group<D>(wanted ? vector : nullptr, lane);
    kv_q4_write<D>(r, lane, wanted, as_bf16(to) + at * D);
}

template <int D> static void launch_expand(const cuda_launch *l, const cuda_bf16 *from, size_t vectors, cuda_bf16 *to) {
    const size_t AT_ONCE = EXPAND_Q4_WARPS * kv_q4_form<D>::AT_ONCE;
    launch_kernel(l, expand_q4_kernel<D>, dim3((unsigned)((vectors + AT_ONCE - 1) / AT_ONCE)),
                  dim3(EXPAND_Q4_WARPS * 32), 0, from, vectors, to);
}

void cuda_expand_q4(const cuda_launch *l, const cuda_bf16 *from, int head_dim, size_t vectors, cuda_bf16 *to) {
    switch (head_dim) {
    case 16:
        launch_expand<16>(l, from, vectors, to);
        break;
    case 32:
        launch_expand<32>(l, from, vectors, to);
        break;
    case 64:
        launch_expand<64>(l, from, vectors, to);
        break;
    case 128:
        launch_expand<128>(l, from, vectors, to);
        break;
    case 256:
        launch_expand<256>(l, from, vectors, to);
        break;
    case 512:
        launch_expand<512>(l, from, vectors, to);
        break;
    default:
        break; /* model.c refuses other dimensions */
    }
}
