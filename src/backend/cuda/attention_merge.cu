/* The partitions of attention: how many a step has, and the merge of their states. Bound: one read of the states. */
#include "backend/cuda/attention.cuh"

enum { MERGE_THREADS = 128, MERGE_AHEAD = 40, MERGE_FEW = 20 };

/* AHEAD: partitions whose values are requested with their states. The code runs once, and is fetched for that: so
 * where there are MERGE_FEW at most, as in sliding layers, there is less of it. */
template <int AHEAD>
static __global__ __launch_bounds__(MERGE_THREADS) void merge_kernel(const cuda_batch *batch,
                                                                     const __grid_constant__ cuda_attention a) {
    constexpr bool MORE = AHEAD > MERGE_FEW;
    extern __shared__ float2 weight[]; /* [partitions]: of values, times their sums */
    __shared__ float shared[MERGE_THREADS / 32];
    int head = blockIdx.x % a.heads, row = blockIdx.x / a.heads, d = blockIdx.y * MERGE_THREADS + threadIdx.x;
    int used = a.partitions;
    size_t at = (size_t)blockIdx.x * used;
    if (!a.sliding_window && !a.drafter) { /* see find_cells; written before the step's first kernel */
        int sources = partition_sources(a);
        used = sources * __ldcg(&batch->row[row].partitions);
        at = (size_t)sources * __ldcg(&batch->row[row].first_partition) * a.heads + (size_t)head * used;
    }
    const float2 *state = a.state + at;
    const float *partial = a.partial + at * a.head_dim + min(d, a.head_dim - 1);
    release_successor();
    wait_for_predecessor();
    /* Values of partitions without a visible key were never written: they are loaded, and then left out. */
    float2 mine = (int)threadIdx.x < used ? __ldcg(state + threadIdx.x) : make_float2(-INFINITY, 0);
    float ahead[AHEAD], top = mine.x;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) ahead[i] = i < used ? __ldcg(partial + (size_t)i * a.head_dim) : 0;
    for (int i = threadIdx.x + MERGE_THREADS; MORE && i < used; i += MERGE_THREADS)
        top = fmaxf(top, __ldcg(state + i).x);
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = top;
    __syncthreads();
    for (int w = 0; w < MERGE_THREADS / 32; w++) top = fmaxf(top, shared[w]);
    for (int i = threadIdx.x; i < used; i += MERGE_THREADS) {
        float2 s = i < MERGE_THREADS ? mine : __ldcg(state + i);
        float w = s.y > 0 ? expf(s.x - top) : 0;
        weight[i] = make_float2(w, w * s.y);
        if (!MORE) break;
    }
    __syncthreads();
    if (d >= a.head_dim) return;
    /* In ascending order, for where a partition stands among those of a step depends on the step's first row. */
    float out = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        if (i >= used || weight[i].x == 0) continue;
        out += weight[i].x * ahead[i];
        sum += weight[i].y;
    }
#pragma unroll 16
    for (int i = AHEAD; MORE && i < used; i++) {
        float value = __ldcg(partial + (size_t)i * a.head_dim);
        if (weight[i].x == 0) continue;
        out += weight[i].x * value;
        sum += weight[i].y;
    }
    as_bf16(a.out)[(size_t)row * a.ldo + (size_t)head * a.head_dim + d] = __float2bfloat16_rn(out / sum);
}

void cuda_merge_partitions(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a, int rows) {
    auto kernel = a->partitions <= MERGE_FEW ? merge_kernel<MERGE_FEW> : merge_kernel<MERGE_AHEAD>;
    launch_kernel(l, kernel, dim3(rows * a->heads, ceil_div(a->head_dim, MERGE_THREADS)), dim3(MERGE_THREADS),
                  (size_t)a->partitions * sizeof(float2), batch, *a);
}

/* Partitions that hold keys when a step of `rows` rows ends at position `end` (exclusive). */
static int partitions_until(int sliding_window, int rows, int end) {
    if (sliding_window) return (sliding_window + rows - 2) / KEYS + 2;
    if (end <= FINE_END) return (end + FINE_KEYS - 1) / FINE_KEYS;
    return FINE_END / FINE_KEYS + (end - FINE_END + COARSE_KEYS - 1) / COARSE_KEYS;
}

int cuda_attention_partitions(int sliding_window, int rows, int end) {
    return partitions_until(sliding_window, rows, end);
}

/* Tiles that so many neighbouring positions can touch. */
static int most_tiles(int positions) { return positions > 0 ? (positions - 2 + KEYS) / KEYS + 1 : 0; }

int cuda_attention_restored_partitions(int sliding_window, int window, int rows) {
    return window < sliding_window ? most_tiles(sliding_window - window + rows - 1) : 0;
}

int cuda_attention_exact_partitions(int sliding_window, int sink, int window, int rows) {
    int all = partitions_until(sliding_window, rows, 0), bounded = ceil_div(sink, KEYS) + most_tiles(window + rows - 1);
    return bounded < all ? bounded : all;
}
