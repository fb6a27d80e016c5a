/* What happens to rows of a picture between its products. Bound: bytes. */
#include "backend/cuda/tower_common.cuh"
#include "backend/cuda/tower_kernels.h"

namespace {

using namespace prompt;

constexpr int ROW_THREADS = 128, HEAD_THREADS = 256, VALUE_THREADS = 256, SUM_THREADS = 4 /* of a head */;

__device__ __forceinline__ float4 *four(float *p) { return reinterpret_cast<float4 *>(p); }
__device__ __forceinline__ float4 load_four(const float *p) { return *reinterpret_cast<const float4 *>(p); }
__device__ __forceinline__ float4 ones() { return make_float4(1, 1, 1, 1); }
__device__ __forceinline__ float4 plus(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ __forceinline__ float4 times(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
__device__ __forceinline__ float4 times(float4 a, float b) { return make_float4(a.x * b, a.y * b, a.z * b, a.w * b); }
__device__ __forceinline__ float sum_of(float4 a) { return (a.x + a.y) + (a.z + a.w); }

__device__ __forceinline__ float4 load_rounded(const cuda_bf16 *p) {
    const bf16 *x = as_bf16(p);
    return make_float4(__bfloat162float(x[0]), __bfloat162float(x[1]), __bfloat162float(x[2]), __bfloat162float(x[3]));
}

__device__ __forceinline__ void store_rounded(cuda_bf16 *p, float4 v) {
    alignas(8) bf16 x[4] = {__float2bfloat16_rn(v.x), __float2bfloat16_rn(v.y), __float2bfloat16_rn(v.z),
                            __float2bfloat16_rn(v.w)};
    *reinterpret_cast<uint2 *>(p) = *reinterpret_cast<const uint2 *>(x);
}

/* A row for each block; a thread works on the same values in every step, so registers need no barrier. What is loaded
 * is on its way while the loads behind it are asked for. */
__global__ void __launch_bounds__(ROW_THREADS) rows_kernel(const __grid_constant__ tower_rows p) {
    TOWER_MEMORY(memory);
    __shared__ float shared[ROW_THREADS / 32];
    float *registers = reinterpret_cast<float *>(memory);
    const int n = p.width, row = static_cast<int>(blockIdx.x), begin = static_cast<int>(threadIdx.x) * 4;
    constexpr int STEP = ROW_THREADS * 4;
    const size_t at = static_cast<size_t>(row) * static_cast<size_t>(n);
    const uint32_t base = shared_address(memory);
    wait_for_predecessor();
    for (int i = 0; i < p.steps; i++) {
        const tower_row_step &s = p.step[i];
        float *into = registers + s.into * n, *from = registers + s.from * n;
        float scale = 1, mean = 0;
        if (s.verb == TOWER_LOAD) {
            for (int c = begin; c < n; c += STEP)
                copy_async(base + static_cast<uint32_t>(s.into * n + c) * 4, s.load + at + c, true);
            copy_commit();
            continue;
        }
        copy_wait<0>();
        if (s.verb == TOWER_NORM) {
            float sum = 0;
            for (int c = begin; c < n; c += STEP) sum += sum_of(times(*four(from + c), *four(from + c)));
            scale = 1.0f / sqrtf(block_sum<ROW_THREADS>(sum, shared) / static_cast<float>(n) + p.rms_eps);
        } else if (s.verb == TOWER_CENTRE) {
            float sum = 0, squares = 0;
            for (int c = begin; c < n; c += STEP) sum += sum_of(*four(from + c));
            mean = block_sum<ROW_THREADS>(sum, shared) / static_cast<float>(n);
            for (int c = begin; c < n; c += STEP) {
                float4 v = plus(*four(from + c), times(ones(), -mean));
                squares += sum_of(times(v, v));
            }
            scale = 1.0f / sqrtf(block_sum<ROW_THREADS>(squares, shared) / static_cast<float>(n) + p.centre_eps);
        }
        const int place = s.first + s.stride * (s.axis ? row / p.across : row % p.across);
        for (int c = begin; c < n; c += STEP) {
            float4 v;
            switch (s.verb) {
            case TOWER_LOOKUP:
                v = load_rounded(s.table + static_cast<size_t>(place) * static_cast<size_t>(s.ld) + c);
                break;
            case TOWER_NORM:
                v = times(*four(from + c), scale);
                if (s.vector) v = times(v, load_four(s.vector + c));
                break;
            case TOWER_CENTRE:
                v = times(plus(*four(from + c), times(ones(), -mean)), scale);
                v = plus(times(v, load_four(s.vector + c)), load_four(s.bias + c));
                break;
            case TOWER_ADD:
                v = plus(*four(into + c), *four(from + c));
                break;
            case TOWER_SCALE:
                v = times(*four(into + c), s.scalar);
                break;
            case TOWER_MULTIPLY:
                v = times(*four(into + c), load_four(s.vector + c));
                break;
            default: /* TOWER_SHIFT */
                v = plus(*four(into + c), times(s.vector ? load_four(s.vector + c) : ones(), s.scalar));
            }
            *four(into + c) = v;
            if (s.store) *four(s.store + at + c) = v;
            if (s.rounded) store_rounded(s.rounded + static_cast<size_t>(row) * static_cast<size_t>(s.ld) + c, v);
        }
    }
}

__device__ __forceinline__ float2 load_two(const float *p) { return *reinterpret_cast<const float2 *>(p); }

/* Two neighbours of a half's lower quarter and their partners of the upper one, turned by their pairs' angles. */
__device__ __forceinline__ void turn_pair(float2 &lower, float2 &upper, const float2 *turn) {
    const float2 low = lower, high = upper;
    lower = make_float2(low.x * turn[0].x - high.x * turn[0].y, low.y * turn[1].x - high.y * turn[1].y);
    upper = make_float2(high.x * turn[0].x + low.x * turn[0].y, high.y * turn[1].x + low.y * turn[1].y);
}

/* A row for each block. It comes whole, with the turns of its place. Four threads sum the squares of a head of q, k or
 * v; then all heads lie side by side, and a thread takes two neighbours and their two partners at a time. */
__global__ void __launch_bounds__(HEAD_THREADS) heads_kernel(const __grid_constant__ tower_heads h, int rows) {
    TOWER_MEMORY(memory);
    float *values = reinterpret_cast<float *>(memory);
    const int row = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x), d = h.head_dim;
    const int half = d / 2, pairs = d / 4, heads = 3 * h.heads, width = heads * d;
    const int column = row % h.across, line = row / h.across;
    float2 *turns = reinterpret_cast<float2 *>(values + width); /* [2][pairs] */
    float *scale = reinterpret_cast<float *>(turns + 2 * pairs);
    const float *raw = h.raw + static_cast<size_t>(row) * static_cast<size_t>(width);
    const uint32_t base = shared_address(memory);
    for (int i = thread; i < 2 * pairs; i += HEAD_THREADS)
        turns[i] = h.turns[static_cast<size_t>(i < pairs ? column : line) * static_cast<size_t>(pairs) +
                           static_cast<size_t>(i % pairs)];
    wait_for_predecessor();
    for (int c = thread * 4; c < width; c += HEAD_THREADS * 4)
        copy_async(base + static_cast<uint32_t>(c) * 4, raw + c, true);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    for (int first = 0; first < heads; first += HEAD_THREADS / SUM_THREADS) {
        const int head = first + thread / SUM_THREADS, part = thread % SUM_THREADS;
        float sum = 0;
        for (int e = 2 * part; head < heads && e < d; e += 2 * SUM_THREADS) {
            const float2 x = load_two(values + head * d + e);
            sum += x.x * x.x + x.y * x.y;
        }
        for (int o = SUM_THREADS / 2; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
        if (head < heads && part == 0) scale[head] = 1.0f / sqrtf(sum / static_cast<float>(d) + h.eps);
    }
    __syncthreads();
    /* pairs jobs a head: the first half of them of its columns, the other of its lines */
    const int heads_on = HEAD_THREADS / pairs, jobs_on = HEAD_THREADS % pairs;
    for (int head = thread / pairs, job = thread % pairs; head < heads;) {
        const int which = (head >= h.heads) + (head >= 2 * h.heads), side = job >= pairs / 2;
        const int e = side * half + 2 * (job - side * (pairs / 2));
        const float *x = values + head * d + e, *norm = h.norm[which];
        float2 lower = load_two(x), upper = load_two(x + pairs);
        const float by = scale[head];
        lower = make_float2(lower.x * by, lower.y * by);
        upper = make_float2(upper.x * by, upper.y * by);
        if (norm) {
            const float2 n = load_two(norm + e), m = load_two(norm + e + pairs);
            lower = make_float2(lower.x * n.x, lower.y * n.y);
            upper = make_float2(upper.x * m.x, upper.y * m.y);
        }
        if (which < 2) turn_pair(lower, upper, turns + 2 * job);
        cuda_bf16 *out = h.out[which] + (static_cast<size_t>(head - which * h.heads) * static_cast<size_t>(rows) +
                                         static_cast<size_t>(row)) *
                                            static_cast<size_t>(d);
        *reinterpret_cast<uint32_t *>(out + e) = pack_pair(lower.x, lower.y);
        *reinterpret_cast<uint32_t *>(out + e + pairs) = pack_pair(upper.x, upper.y);
        head += heads_on;
        job += jobs_on;
        if (job >= pairs) {
            job -= pairs;
            head++;
        }
    }
}

__global__ void __launch_bounds__(VALUE_THREADS)
    pool_kernel(const float *from, int across, int side, int width, float *to) {
    const int row = static_cast<int>(blockIdx.x), pooled = across / side;
    wait_for_predecessor();
    for (int c = static_cast<int>(threadIdx.x) * 4; c < width; c += VALUE_THREADS * 4) {
        float4 sum = make_float4(0, 0, 0, 0);
        for (int i = 0; i < side * side; i++) {
            const int y = row / pooled * side + i / side, x = row % pooled * side + i % side;
            sum = plus(sum, load_four(from + static_cast<size_t>(y * across + x) * static_cast<size_t>(width) + c));
        }
        *four(to + static_cast<size_t>(row) * static_cast<size_t>(width) + c) =
            times(sum, 1.0f / static_cast<float>(side * side));
    }
}

__device__ __forceinline__ float clamped(float x, float least, float most) {
    return x < least ? least : x > most ? most : x;
}
__device__ __forceinline__ float4 clamped(float4 v, float least, float most) {
    return make_float4(clamped(v.x, least, most), clamped(v.y, least, most), clamped(v.z, least, most),
                       clamped(v.w, least, most));
}

__global__ void __launch_bounds__(VALUE_THREADS)
    clamp_rounded_kernel(const cuda_bf16 *from, cuda_bf16 *to, int ld, int n, float least, float most) {
    const size_t at = static_cast<size_t>(blockIdx.x) * static_cast<size_t>(ld);
    wait_for_predecessor();
    for (int c = static_cast<int>(threadIdx.x) * 4; c < n; c += VALUE_THREADS * 4)
        store_rounded(to + at + c, clamped(load_rounded(from + at + c), least, most));
}

__global__ void __launch_bounds__(VALUE_THREADS) clamp_kernel(float *x, int ld, int n, float least, float most) {
    float *row = x + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(ld);
    wait_for_predecessor();
    for (int c = static_cast<int>(threadIdx.x) * 4; c < n; c += VALUE_THREADS * 4)
        *four(row + c) = clamped(load_four(row + c), least, most);
}

__global__ void __launch_bounds__(VALUE_THREADS)
    activate_kernel(const float *gate, const float *up, int n, cuda_bf16 *to, int ld) {
    const size_t at = static_cast<size_t>(blockIdx.x) * static_cast<size_t>(n);
    cuda_bf16 *row = to + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(ld);
    wait_for_predecessor();
    for (int c = static_cast<int>(threadIdx.x) * 4; c < n; c += VALUE_THREADS * 4) {
        const float4 g = load_four(gate + at + c), u = load_four(up + at + c);
        store_rounded(row + c, times(make_float4(gelu_tanh(g.x), gelu_tanh(g.y), gelu_tanh(g.z), gelu_tanh(g.w)), u));
    }
}

dim3 blocks(int rows) { return dim3(static_cast<unsigned>(rows)); }

} // namespace

cudaError_t tower_row_program(const cuda_launch *l, const tower_rows *program, int rows) {
    const size_t bytes = static_cast<size_t>(program->registers) * static_cast<size_t>(program->width) * sizeof(float);
    const cudaError_t status = tower_allow(rows_kernel, static_cast<int>(bytes));
    if (status == cudaSuccess) launch_kernel(l, rows_kernel, blocks(rows), dim3(ROW_THREADS), bytes, *program);
    return status;
}

cudaError_t tower_head_rows(const cuda_launch *l, const tower_heads *h, int rows) {
    const size_t bytes = static_cast<size_t>(3 * h->heads * (h->head_dim + 1)) * sizeof(float) +
                         static_cast<size_t>(h->head_dim / 2) * sizeof(float2);
    const cudaError_t status = tower_allow(heads_kernel, static_cast<int>(bytes));
    if (status == cudaSuccess) launch_kernel(l, heads_kernel, blocks(rows), dim3(HEAD_THREADS), bytes, *h, rows);
    return status;
}

void tower_pool(const cuda_launch *l, const float *from, int across, int side, int width, float *to, int rows) {
    launch_kernel(l, pool_kernel, blocks(rows), dim3(VALUE_THREADS), 0, from, across, side, width, to);
}

void tower_clamp_rounded(const cuda_launch *l, const cuda_bf16 *from, cuda_bf16 *to, int ld, int n, float least,
                         float most, int rows) {
    launch_kernel(l, clamp_rounded_kernel, blocks(rows), dim3(VALUE_THREADS), 0, from, to, ld, n, least, most);
}

void tower_clamp(const cuda_launch *l, float *x, int ld, int n, float least, float most, int rows) {
    launch_kernel(l, clamp_kernel, blocks(rows), dim3(VALUE_THREADS), 0, x, ld, n, least, most);
}

void tower_activate(const cuda_launch *l, const float *gate, const float *up, int n, cuda_bf16 *to, int ld, int rows) {
    launch_kernel(l, activate_kernel, blocks(rows), dim3(VALUE_THREADS), 0, gate, up, n, to, ld);
}
