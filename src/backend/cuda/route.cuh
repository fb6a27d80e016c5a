/* The choice of experts and the grouping of rows by expert in decode steps. A row's choice depends on that row alone;
 * the grouping is stable (experts ascending, rows ascending inside). */
#ifndef KAKEYA_BACKEND_CUDA_ROUTE_CUH
#define KAKEYA_BACKEND_CUDA_ROUTE_CUH

#include <limits.h>

#include "backend/cuda/common.cuh"

enum {
    ROUTE_SLOTS = CUDA_DECODE_ROWS * CUDA_ROUTE_MAX_RANK,
    LARGE_ROUTE_SLOTS = CUDA_PASS_ROWS * CUDA_ROUTE_MAX_RANK,
    LARGE_ROUTE_UNITS = CUDA_ROUTE_MAX_EXPERTS + LARGE_ROUTE_SLOTS / CUDA_EXPERT_ROWS,
};

/* Of eight values; which sums are fused is written down, since several kernels make the same bits. */
static __device__ __forceinline__ float dot8(uint4 packed, float4 a, float4 b) {
    const __nv_bfloat162 *pair = reinterpret_cast<const __nv_bfloat162 *>(&packed);
    float2 w0 = __bfloat1622float2(pair[0]), w1 = __bfloat1622float2(pair[1]);
    float2 w2 = __bfloat1622float2(pair[2]), w3 = __bfloat1622float2(pair[3]);
    float low = fmaf(a.w, w1.y, fmaf(a.z, w1.x, fmaf(a.x, w0.x, a.y * w0.y)));
    return low + fmaf(b.w, w3.y, fmaf(b.z, w3.x, fmaf(b.x, w2.x, b.y * w2.y)));
}

static __device__ __forceinline__ float dot8(uint4 packed, const float *x) {
    return dot8(packed, *reinterpret_cast<const float4 *>(x), *reinterpret_cast<const float4 *>(x + 4));
}

/* A router's logit is the sum of a warp's lanes; lane l has the values [8 (32 i + l), + 8) for each i in turn. */
enum {
    EXPERT_AHEAD = 12,                  /* loads of an expert's weights ahead */
    EXPERT_VALUES = EXPERT_AHEAD * 256, /* of the row, with zeros behind it: those steps have no conditions */
};

/* Weight of the r-th chosen expert: softmax over the chosen logits, times the expert's scale. */
static __device__ __forceinline__ float route_weight(const float *value, const int *chosen, int rank, int r,
                                                     const float *expert_scale) {
    float scale = expert_scale[chosen[r]], sum = 0;
    for (int i = 0; i < rank; i++) sum += expf(value[i] - value[0]);
    return expf(value[r] - value[0]) / sum * scale;
}

struct route_scratch {
    int chosen[ROUTE_SLOTS];
    float value[ROUTE_SLOTS];
    unsigned char first[ROUTE_SLOTS]; /* is the first slot of its expert */
};

/* One warp: the `rank` largest of a row's logits, the lowest id first among equals. */
template <int PER_LANE = CUDA_ROUTE_MAX_EXPERTS / 32>
static __device__ void choose_experts(const float *logits, int experts, int rank, int *chosen, float *value) {
    int lane = threadIdx.x & 31;
    float v[PER_LANE];
    uint32_t key[PER_LANE]; /* ascends with the value; 0: absent or taken */
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        if (i * 32 >= experts) break;
        v[i] = i * 32 + lane < experts ? __ldcg(logits + i * 32 + lane) : 0;
    }
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        if (i * 32 >= experts) break;
        uint32_t bits = __float_as_uint(v[i] + 0.0f);
        key[i] = i * 32 + lane < experts ? bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u) : 0;
    }
    for (int r = 0; r < rank; r++) {
        uint32_t best = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            if (i * 32 >= experts) break;
            best = max(best, key[i]);
        }
        best = __reduce_max_sync(0xffffffffu, best);
        int mine = INT_MAX;
#pragma unroll
        for (int i = PER_LANE - 1; i >= 0; i--) {
            if (i * 32 < experts && key[i] == best) mine = i * 32 + lane;
        }
        int id = __reduce_min_sync(0xffffffffu, mine);
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            if (i * 32 >= experts) break;
            if (i * 32 + lane == id) {
                key[i] = 0;
                chosen[r] = id;
                value[r] = v[i];
            }
        }
    }
}

/* One warp: the route of one row, from what choose_experts has found. Its code runs once in a launch, and is fetched
 * for that: it is as short as it can be, and has the operations of make_route. Of what is no number an expert may be
 * chosen twice: it has two slots then. */
static __device__ void make_route_of_row(const int *chosen, const float *value, const cuda_route &route,
                                         const float *expert_scale) {
    int r = threadIdx.x & 31, mine = min(r, route.rank - 1), id = chosen[mine], slot = 0;
    float exponential = expf(value[mine] - value[0]), sum = 0;
    for (int i = 0; i < route.rank; i++) {
        sum += __shfl_sync(0xffffffffu, exponential, i);
        slot += chosen[i] < id || (chosen[i] == id && i < mine);
    }
    if (r >= route.rank) return;
    route.weight[r] = exponential / sum * expert_scale[id];
    route.slot_of[r] = slot;
    route.slot_row[slot] = 0;
    route.active[slot] = id;
    route.active_begin[slot] = slot;
    route.active_rows[slot] = 1;
    if (r == 0) *route.active_count = route.rank;
}

/* A whole block of THREADS: the route of `rows` rows from their logits. Every slot finds its place by counting. */
template <int THREADS>
static __device__ void make_route(route_scratch &m, const cuda_route &route, const float *expert_scale, int rows) {
    int slots = rows * route.rank;
    for (int row = threadIdx.x >> 5; row < rows; row += THREADS / 32)
        choose_experts(route.logits + (size_t)row * route.experts, route.experts, route.rank,
                       m.chosen + row * route.rank, m.value + row * route.rank);
    __syncthreads();
    for (int s = threadIdx.x; s < slots; s += THREADS) {
        bool first = true;
        for (int j = 0; j < s; j++) first &= m.chosen[j] != m.chosen[s];
        m.first[s] = first;
    }
    __syncthreads();
    for (int s = threadIdx.x; s < slots; s += THREADS) {
        int e = m.chosen[s], slot = 0, index = 0, count = 0, active = 0, row = s / route.rank, at = row * route.rank;
        for (int j = 0; j < slots; j++) {
            int other = m.chosen[j];
            slot += other < e || (other == e && j < s);
            index += m.first[j] && other < e;
            count += other == e;
            active += m.first[j];
        }
        route.weight[s] = route_weight(m.value + at, m.chosen + at, route.rank, s - at, expert_scale);
        route.slot_of[s] = slot;
        route.slot_row[slot] = row;
        if (s == 0) *route.active_count = active;
        if (!m.first[s]) continue;
        route.active[index] = e;
        route.active_begin[index] = slot;
        route.active_rows[index] = count;
    }
}

/* The rows of a step by expert, in shared memory. */
struct route_table {
    int active[ROUTE_SLOTS], begin[ROUTE_SLOTS], rows[ROUTE_SLOTS]; /* experts with rows, their first slot and count */
    int slot_row[ROUTE_SLOTS];
    int count; /* of active experts */
};

/* The same of a pass of more than CUDA_DECODE_ROWS rows, in units of work. */
struct large_route_table {
    short active[LARGE_ROUTE_UNITS], begin[LARGE_ROUTE_UNITS], rows[LARGE_ROUTE_UNITS];
    short slot_row[LARGE_ROUTE_SLOTS];
    int count; /* of units */
};

template <int THREADS> static __device__ void read_route(large_route_table &table, const cuda_route &route, int) {
    int slots = __ldcg(route.row_count) * route.rank, units = __ldcg(route.active_count);
    for (int i = threadIdx.x; i < slots; i += THREADS) table.slot_row[i] = (short)__ldcg(route.slot_row + i);
    for (int i = threadIdx.x; i < units; i += THREADS) {
        table.active[i] = (short)__ldcg(route.active + i);
        table.begin[i] = (short)__ldcg(route.active_begin + i);
        table.rows[i] = (short)__ldcg(route.active_rows + i);
    }
    if (threadIdx.x == 0) table.count = units;
    __syncthreads();
}

/* A whole block. */
template <int THREADS> static __device__ void read_route(route_table &table, const cuda_route &route, int rows) {
    int slots = rows * route.rank;
    for (int i = threadIdx.x; i < slots; i += THREADS) {
        table.slot_row[i] = __ldcg(route.slot_row + i);
        if (i >= route.experts) continue;
        table.active[i] = __ldcg(route.active + i);
        table.begin[i] = __ldcg(route.active_begin + i);
        table.rows[i] = __ldcg(route.active_rows + i);
    }
    if (threadIdx.x == 0) table.count = __ldcg(route.active_count);
    __syncthreads();
}

#endif
