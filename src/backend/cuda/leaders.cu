/* The largest logits of each row in order, and the sum of all weights: what sampling above temperature 0 needs of a row
 * of 262,144 logits, in 2 KB instead of 1 MB. Counts and integer weights only are added by several blocks, so no result
 * depends on their order, nor on other rows. Bound: two reads of the logits, which lie in L2 since the head wrote them.
 *
 * A histogram over the distance from the largest logit finds a bin below which at least BACKEND_LEADERS tokens lie;
 * what lies below its edge is collected and sorted. Where one bin alone holds too many, nothing is listed. */
#include "backend/cuda/common.cuh"
#include "base/exp_weight.h"

enum {
    LEADER_THREADS = 256,
    LEADER_PARTS = 64, /* blocks per row */
    BINS = CUDA_LEADER_BINS,
    BINS_PER_UNIT = 32, /* 64 units of logits below the largest one are told apart */
    SORTED = CUDA_LEADER_SLOTS,
};

struct leader_row {
    float maximum;
    bool valid;
};

static __device__ __forceinline__ leader_row row_maximum(const float *logits, const int32_t *argmax) {
    int best = __ldcg(argmax);
    return {best >= 0 ? __ldcg(logits + best) : 0.0f, best >= 0};
}

static __device__ __forceinline__ bool is_excluded(const cuda_excluded &excluded, int own, int token) {
    bool found = token == own;
    for (int e = 0; e < excluded.n; e++) found |= token == excluded.id[e];
    return found;
}

static __device__ __forceinline__ int bin_of(float logit, float maximum) {
    float bin = (maximum - logit) * (float)BINS_PER_UNIT;
    return bin < (float)(BINS - 1) ? (int)bin : BINS - 1; /* the last one holds the rest */
}

/* scratch is zero before and after a step */
static __global__ __launch_bounds__(LEADER_THREADS) void weigh_kernel(const cuda_row *rows, const float *logits,
                                                                      int vocab, const int32_t *argmax,
                                                                      const __grid_constant__ cuda_excluded excluded,
                                                                      cuda_leader_scratch *scratch) {
    __shared__ int bins[BINS];
    __shared__ unsigned long long sums[LEADER_THREADS / 32], plain_sums[LEADER_THREADS / 32];
    for (int b = threadIdx.x; b < BINS; b += LEADER_THREADS) bins[b] = 0;
    __syncthreads();
    wait_for_predecessor();
    const float *row = logits + (size_t)blockIdx.y * vocab;
    leader_row r = row_maximum(row, argmax + blockIdx.y);
    float temperature = rows[blockIdx.y].temperature;
    if (!r.valid || !(temperature > 0)) return;
    int own = rows[blockIdx.y].excluded - 1;
    bool own_sum = temperature != 1.0f; /* otherwise both sums are one */
    unsigned long long sum = 0, plain = 0;
    int part = (vocab + LEADER_PARTS - 1) / LEADER_PARTS, begin = blockIdx.x * part, end = min(begin + part, vocab);
#pragma unroll 4
    for (int i = begin + threadIdx.x; i < end; i += LEADER_THREADS) {
        if (is_excluded(excluded, own, i)) continue;
        float logit = __ldcg(row + i);
        plain += exp_weight(logit, r.maximum, 1.0f);
        if (own_sum) sum += exp_weight(logit, r.maximum, temperature);
        atomicAdd(&bins[bin_of(logit, r.maximum)], 1);
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        sum += __shfl_xor_sync(0xffffffffu, sum, o);
        plain += __shfl_xor_sync(0xffffffffu, plain, o);
    }
    if ((threadIdx.x & 31) == 0) {
        sums[threadIdx.x >> 5] = sum;
        plain_sums[threadIdx.x >> 5] = plain;
    }
    __syncthreads();
    cuda_leader_scratch &out = scratch[blockIdx.y];
    if (threadIdx.x == 0) {
        for (int w = 1; w < LEADER_THREADS / 32; w++) {
            sum += sums[w];
            plain += plain_sums[w];
        }
        atomicAdd(&out.total, own_sum ? sum : plain);
        atomicAdd(&out.plain_total, plain);
    }
    for (int b = threadIdx.x; b < BINS; b += LEADER_THREADS) {
        if (bins[b]) atomicAdd(&out.bins[b], bins[b]);
    }
}

/* The first bin with which BACKEND_LEADERS tokens are reached, or the last one but the rest. */
static __device__ int last_wanted_bin(const cuda_leader_scratch &s, int *shared) {
    enum { PER_THREAD = BINS / LEADER_THREADS };
    int count[PER_THREAD], own = 0;
#pragma unroll
    for (int b = 0; b < PER_THREAD; b++) own += count[b] = __ldcg(&s.bins[threadIdx.x * PER_THREAD + b]);
    int before = own; /* inclusive sum over threads */
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        int other = __shfl_up_sync(0xffffffffu, before, o);
        if ((int)(threadIdx.x & 31) >= o) before += other;
    }
    if ((threadIdx.x & 31) == 31) shared[threadIdx.x >> 5] = before;
    if (threadIdx.x == 0) shared[LEADER_THREADS / 32] = BINS - 2;
    __syncthreads();
    for (int w = 0; w < (int)(threadIdx.x >> 5); w++) before += shared[w];
    before -= own;
    bool mine = before < CUDA_LEADERS && before + own >= CUDA_LEADERS;
    for (int b = 0; b < PER_THREAD && mine; b++) {
        before += count[b];
        if (before < CUDA_LEADERS) continue;
        shared[LEADER_THREADS / 32] = min((int)threadIdx.x * PER_THREAD + b, BINS - 2);
        break;
    }
    __syncthreads();
    return shared[LEADER_THREADS / 32];
}

static __global__ __launch_bounds__(LEADER_THREADS) void collect_kernel(const cuda_row *rows, const float *logits,
                                                                        int vocab, const int32_t *argmax,
                                                                        const __grid_constant__ cuda_excluded excluded,
                                                                        cuda_leader_scratch *scratch) {
    __shared__ int shared[LEADER_THREADS / 32 + 1];
    wait_for_predecessor();
    const float *row = logits + (size_t)blockIdx.y * vocab;
    leader_row r = row_maximum(row, argmax + blockIdx.y);
    if (!r.valid || !(rows[blockIdx.y].temperature > 0)) return;
    cuda_leader_scratch &s = scratch[blockIdx.y];
    int own = rows[blockIdx.y].excluded - 1;
    int wanted = last_wanted_bin(s, shared);
    int part = (vocab + LEADER_PARTS - 1) / LEADER_PARTS, begin = blockIdx.x * part, end = min(begin + part, vocab);
#pragma unroll 4
    for (int i = begin + threadIdx.x; i < end; i += LEADER_THREADS) {
        float logit = __ldcg(row + i);
        if (bin_of(logit, r.maximum) > wanted || is_excluded(excluded, own, i)) continue;
        int slot = atomicAdd(&s.found, 1);
        /* ascending order of these keys: larger logits first (as integers, signs undone), then lower ids */
        unsigned bits = __float_as_uint(logit);
        unsigned ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
        if (slot < SORTED) s.keys[slot] = (unsigned long long)~ascending << 32 | (unsigned)i;
    }
}

/* One block per row: bitonic sort, results, and the scratch cleared for the next step. */
static __global__ __launch_bounds__(LEADER_THREADS) void sort_kernel(const cuda_row *rows, const int32_t *argmax,
                                                                     cuda_leader_scratch *scratch, cuda_leaders *out) {
    __shared__ unsigned long long keys[SORTED];
    wait_for_predecessor();
    if (!(rows[blockIdx.x].temperature > 0)) return;
    cuda_leader_scratch &s = scratch[blockIdx.x];
    cuda_leaders &result = out[blockIdx.x];
    bool valid = __ldcg(argmax + blockIdx.x) >= 0;
    int found = __ldcg(&s.found), listed = found > SORTED ? 0 : min(found, (int)CUDA_LEADERS);
    for (int i = threadIdx.x; i < SORTED; i += LEADER_THREADS) keys[i] = i < found ? __ldcg(&s.keys[i]) : ~0ull;
    if (threadIdx.x == 0) {
        result.n = valid ? listed : -1;
        result.total = __ldcg(&s.total);
        result.plain_total = __ldcg(&s.plain_total);
    }
    __syncthreads();
    for (int size = 2; size <= SORTED; size *= 2) {
        for (int step = size / 2; step > 0; step /= 2) {
            for (int i = threadIdx.x; i < SORTED / 2; i += LEADER_THREADS) {
                int low = i / step * 2 * step + i % step, high = low + step;
                unsigned long long a = keys[low], b = keys[high];
                if ((a > b) == ((low & size) == 0)) {
                    keys[low] = b;
                    keys[high] = a;
                }
            }
            __syncthreads();
        }
    }
    for (int i = threadIdx.x; i < listed; i += LEADER_THREADS) {
        unsigned ascending = ~(unsigned)(keys[i] >> 32);
        result.token[i] = (int32_t)(unsigned)keys[i];
        result.logit[i] = __uint_as_float(ascending & 0x80000000u ? ascending & 0x7fffffffu : ~ascending);
    }
    for (int b = threadIdx.x; b < BINS; b += LEADER_THREADS) s.bins[b] = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        s.found = 0;
        s.total = 0;
        s.plain_total = 0;
    }
}

void cuda_find_leaders(const cuda_launch *l, const cuda_row *row, const float *logits, int vocab, const int32_t *argmax,
                       const cuda_excluded *excluded, cuda_leader_scratch *scratch, cuda_leaders *out, int rows) {
    dim3 parts(LEADER_PARTS, rows);
    launch_kernel(l, weigh_kernel, parts, dim3(LEADER_THREADS), 0, row, logits, vocab, argmax, *excluded, scratch);
    launch_kernel(l, collect_kernel, parts, dim3(LEADER_THREADS), 0, row, logits, vocab, argmax, *excluded, scratch);
    launch_kernel(l, sort_kernel, dim3(rows), dim3(LEADER_THREADS), 0, row, argmax, scratch, out);
}
