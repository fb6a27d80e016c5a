/* The ends of a draft of an MTP assistant: the pair that it begins with, the states that pairs are made of, and the
 * choice among the rows of some clusters of its head. What lies between is computed by the model's own kernels. A row's
 * result depends on that row alone. Bound: launches; of the choice, one read of the clusters' rows. */
#include "backend/cuda/assistant_kernels.h"
#include "backend/cuda/quant_values.cuh"
#include "backend/cuda/route.cuh"

/* ------------------------------------------------------------------------------------------------ states and pairs */

enum { COPY_THREADS = 256 };

static __device__ __forceinline__ const cuda_state_view *states_of(const cuda_cache_view *cache) {
    return reinterpret_cast<const cuda_state_view *>(cache);
}

static __global__ __launch_bounds__(COPY_THREADS) void keep_states_kernel(const cuda_batch *batch, int prompt,
                                                                          const float *normed, int hidden) {
    int row = blockIdx.x, position; /* what the batch says is written before the step's first kernel */
    const cuda_cache_view *cache;
    if (prompt) {
        const cuda_step *step = &batch->step[blockIdx.x];
        cache = step->cache;
        row = step->first_row + step->rows - 1;
        position = step->position + step->rows - 1;
    } else {
        cache = batch->row[row].cache;
        position = batch->row[row].position;
    }
    float *pending = cache ? states_of(cache)->pending : nullptr;
    release_successor();
    wait_for_predecessor();
    if (!pending) return;
    float *to = pending + (size_t)(position % CUDA_DECODE_ROWS) * hidden;
    for (int i = threadIdx.x; i < hidden; i += COPY_THREADS) to[i] = __ldcg(normed + (size_t)row * hidden + i);
}

void cuda_keep_states(const cuda_launch *l, const cuda_batch *batch, int prompt, const float *normed, int hidden,
                      int rows) {
    launch_kernel(l, keep_states_kernel, dim3(rows), dim3(COPY_THREADS), 0, batch, prompt, normed, hidden);
}

/* Blocks beside each other take parts of a row. */
static __global__ __launch_bounds__(COPY_THREADS) void pair_kernel(const __grid_constant__ cuda_matrix table,
                                                                   const __grid_constant__ cuda_pair p) {
    int row = blockIdx.y, i = blockIdx.x * COPY_THREADS + threadIdx.x;
    const cuda_cache_view *cache = p.batch->row[row].cache;
    const float *state = p.drafted ? p.states + (size_t)row * p.hidden : cache ? states_of(cache)->state : nullptr;
    release_successor();
    wait_for_predecessor();
    if (i >= p.hidden) return;
    table_row source = {table, max(p.drafted ? __ldcg(p.drafted + row) : p.batch->tokens[row], 0)};
    bf16 *x = as_bf16(p.x) + (size_t)row * p.ldx;
    x[i] = __float2bfloat16_rn(source.value(i) * p.scale);
    x[p.hidden + i] = __float2bfloat16_rn(state ? __ldcg(state + i) : 0.0f);
}

void cuda_pair_rows(const cuda_launch *l, const cuda_matrix *table, const cuda_pair *pair, int rows) {
    launch_kernel(l, pair_kernel, dim3(ceil_div(pair->hidden, COPY_THREADS), rows), dim3(COPY_THREADS), 0, *table,
                  *pair);
}

/* -------------------------------------------------------------------------------------------------------- clusters */

/* Ascends with the value; what is not a number is above all. */
static __device__ __forceinline__ unsigned ascending(float value) {
    unsigned bits = __float_as_uint(value + 0.0f);
    return value != value ? 0xffffffffu : bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

/* And descends with the id. */
static __device__ __forceinline__ unsigned long long key_of(float value, int id) {
    return (unsigned long long)ascending(value) << 32 | ~(unsigned)id;
}

/* Keys all differ, so the least one of those that are chosen is found bit by bit: the largest number which at least
 * `wanted` of them reach. Of their lower halves, ids below `clusters` that are turned over, the upper bits are ones. */
enum { CLUSTER_THREADS = 1024, CLUSTERS_PER_THREAD = 4 };

static __global__
__launch_bounds__(CLUSTER_THREADS) void choose_clusters_kernel(const __grid_constant__ cuda_clusters c,
                                                               const float *logits) {
    __shared__ int counts[CLUSTER_THREADS / 32], taken;
    unsigned long long mine[CLUSTERS_PER_THREAD];
    if (threadIdx.x == 0) taken = 0;
    release_successor();
    wait_for_predecessor();
#pragma unroll
    for (int i = 0; i < CLUSTERS_PER_THREAD; i++) {
        int id = i * CLUSTER_THREADS + threadIdx.x;
        mine[i] = id < c.clusters ? key_of(__ldcg(logits + (size_t)blockIdx.x * c.clusters + id), id) : 0;
    }
    int id_bits = 32 - __clz(c.clusters);
    unsigned long long least = 0xffffffffull >> id_bits << id_bits;
    for (int bit = 63; bit >= 0; bit--) {
        if (bit < 32 && bit >= id_bits) continue;
        unsigned long long next = least | 1ull << bit;
        int count = 0;
#pragma unroll
        for (int i = 0; i < CLUSTERS_PER_THREAD; i++) count += mine[i] >= next;
        count = __reduce_add_sync(0xffffffffu, count);
        __syncthreads(); /* the counts before have been read */
        if ((threadIdx.x & 31) == 0) counts[threadIdx.x >> 5] = count;
        __syncthreads();
        count = __reduce_add_sync(0xffffffffu, counts[threadIdx.x & 31]);
        if (count >= c.wanted) least = next;
    }
#pragma unroll
    for (int i = 0; i < CLUSTERS_PER_THREAD; i++) {
        if (mine[i] < least) continue;
        int at = atomicAdd(&taken, 1);
        if (at < c.wanted) c.chosen[blockIdx.x * c.wanted + at] = i * CLUSTER_THREADS + threadIdx.x;
    }
}

void cuda_choose_clusters(const cuda_launch *l, const cuda_clusters *c, const float *logits, int rows) {
    launch_kernel(l, choose_clusters_kernel, dim3(rows), dim3(CLUSTER_THREADS), 0, *c, logits);
}

/* Block (i, row) has the row's i-th cluster; its warps take tokens in turns. The last block of a row writes its choice,
 * which is a maximum and so does not depend on their order. */
enum { INSIDE_THREADS = 256, INSIDE_WARPS = INSIDE_THREADS / 32, INSIDE_AHEAD = 4 };

static __device__ __forceinline__ bool is_excluded(const cuda_excluded &excluded, int token) {
    for (int e = 0; e < excluded.n; e++) {
        if (excluded.id[e] == token) return true;
    }
    return false;
}

static __global__ __launch_bounds__(INSIDE_THREADS) void choose_inside_kernel(
    const __grid_constant__ cuda_clusters c, const __grid_constant__ cuda_matrix head,
    const __grid_constant__ cuda_excluded excluded, const cuda_bf16 *rows, int32_t *choice) {
    extern __shared__ __align__(16) float x[]; /* [ld] */
    __shared__ unsigned long long of_warp[INSIDE_WARPS];
    int row = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, size = head.out / c.clusters;
    release_successor();
    wait_for_predecessor();
    for (int i = threadIdx.x; i < head.ld; i += INSIDE_THREADS)
        x[i] = __bfloat162float(as_bf16(rows)[(size_t)row * head.ld + i]);
    int first = __ldcg(c.chosen + row * c.wanted + blockIdx.x) * size;
    __syncthreads();
    unsigned long long best = 0;
    for (int base = warp; base < size; base += INSIDE_WARPS * INSIDE_AHEAD) {
        float sum[INSIDE_AHEAD] = {};
        for (int k = lane * 8; k < head.ld; k += 256) {
            uint4 w[INSIDE_AHEAD];
#pragma unroll
            for (int i = 0; i < INSIDE_AHEAD; i++) {
                int at = first + min(base + i * INSIDE_WARPS, size - 1);
                w[i] = load_weights(head.data + (size_t)at * head.ld + k);
            }
#pragma unroll
            for (int i = 0; i < INSIDE_AHEAD; i++) sum[i] += dot8(w[i], x + k);
        }
#pragma unroll
        for (int i = 0; i < INSIDE_AHEAD; i++) {
            float logit = warp_sum(sum[i]);
            int at = base + i * INSIDE_WARPS, token = __ldg(c.token_of + first + min(at, size - 1));
            if (at < size && !is_excluded(excluded, token)) best = max(best, key_of(logit, token));
        }
    }
    if (lane == 0) of_warp[warp] = best;
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 0; w < INSIDE_WARPS; w++) best = max(best, of_warp[w]);
    atomicMax(&c.best[row], best);
    __threadfence();
    if (atomicAdd(&c.finished[row], 1u) != gridDim.x - 1) return;
    best = atomicExch(&c.best[row], 0ull);
    c.finished[row] = 0;
    const unsigned infinity = 0xff800000u; /* what is not a number is above it, minus infinity is its complement */
    unsigned value = (unsigned)(best >> 32);
    choice[row] = value >= infinity || value <= ~infinity ? -1 : (int32_t) ~(unsigned)best;
}

void cuda_choose_inside(const cuda_launch *l, const cuda_clusters *c, const cuda_matrix *head,
                        const cuda_excluded *excluded, const cuda_bf16 *x, int rows, int32_t *choice) {
    launch_kernel(l, choose_inside_kernel, dim3(c->wanted, rows), dim3(INSIDE_THREADS), head->ld * sizeof(float), *c,
                  *head, *excluded, x, choice);
}
