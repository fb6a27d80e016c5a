/* The route of a pass of more than CUDA_DECODE_ROWS rows: logits, choices, and the grouping of rows by expert. */
#include "backend/cuda/route.cuh"

/* Logits. A warp keeps the weights of two experts in registers and goes through the rows of its block, which come
 * through a ring in shared memory: of each 64 chunks of 16 bytes first the even ones, then the odd ones, so that lanes
 * read neighbours. The sums are those of after_attention_kernel. Bound: reads of shared memory, a row's bytes for
 * WARP_EXPERTS experts. */
enum {
    LOGIT_WARPS = 8,
    LOGIT_THREADS = LOGIT_WARPS * 32,
    WARP_EXPERTS = 2,
    BLOCK_EXPERTS = LOGIT_WARPS * WARP_EXPERTS,
    STAGE_ROWS = 2, /* which share the weights' way to float32 */
    LOGIT_STAGES = 3,
    CHUNK_VALUES = 4, /* of 16 bytes */
};

static __device__ __forceinline__ int chunk_place(int chunk) {
    return chunk / 64 * 64 + chunk % 2 * 32 + chunk % 64 / 2;
}

/* row_chunks: of a row in the ring, whole kilobytes, zero behind the row's end. */
static __global__ __launch_bounds__(LOGIT_THREADS, 1) void logits_kernel(const __grid_constant__ cuda_route route,
                                                                         const cuda_bf16 *weights, int ld,
                                                                         const float *x, int n, int rows, int rows_each,
                                                                         int row_chunks) {
    extern __shared__ __align__(16) float4 ring[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int expert = blockIdx.x * BLOCK_EXPERTS + warp * WARP_EXPERTS;
    const bf16 *w[WARP_EXPERTS];
    uint4 kept[WARP_EXPERTS][EXPERT_AHEAD];
#pragma unroll
    for (int e = 0; e < WARP_EXPERTS; e++) {
        w[e] = as_bf16(weights) + (size_t)min(expert + e, route.experts - 1) * ld;
#pragma unroll
        for (int i = 0; i < EXPERT_AHEAD; i++) {
            int k = (i * 32 + lane) * 8;
            kept[e][i] = k < n ? load_weights(w[e] + k) : make_uint4(0, 0, 0, 0);
        }
    }
    int chunks = n / CHUNK_VALUES, first = blockIdx.y * rows_each, end = min(rows, first + rows_each);
    for (int c = chunks + (int)threadIdx.x; c < row_chunks; c += LOGIT_THREADS) {
#pragma unroll
        for (int r = 0; r < LOGIT_STAGES * STAGE_ROWS; r++)
            ring[r * row_chunks + chunk_place(c)] = make_float4(0, 0, 0, 0);
    }
    auto request = [&](int from, int stage) {
#pragma unroll
        for (int r = 0; r < STAGE_ROWS; r++) {
            for (int c = threadIdx.x; from + r < end && c < chunks; c += LOGIT_THREADS) {
                float4 *place = ring + (stage * STAGE_ROWS + r) * row_chunks + chunk_place(c);
                asm volatile(
                    "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(place)),
                    "l"(x + (size_t)(from + r) * n + c * CHUNK_VALUES));
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    release_successor();
    wait_for_predecessor();
    for (int s = 0; s < LOGIT_STAGES - 1; s++) request(first + s * STAGE_ROWS, s);
    for (int row = first, stage = 0; row < end; row += STAGE_ROWS) {
        asm volatile("cp.async.wait_group %0;" ::"n"(LOGIT_STAGES - 2) : "memory");
        __syncthreads(); /* these rows have arrived, and nobody reads those before any more */
        request(row + (LOGIT_STAGES - 1) * STAGE_ROWS, stage ? stage - 1 : LOGIT_STAGES - 1);
        const float4 *at = ring + stage * STAGE_ROWS * row_chunks + lane;
        float logit[WARP_EXPERTS][STAGE_ROWS] = {};
        auto add = [&](int e, uint4 weights, int i) {
#pragma unroll
            for (int r = 0; r < STAGE_ROWS; r++)
                logit[e][r] += dot8(weights, at[r * row_chunks + i * 64], at[r * row_chunks + i * 64 + 32]);
        };
#pragma unroll
        for (int i = 0; i < EXPERT_AHEAD; i++) {
#pragma unroll
            for (int e = 0; e < WARP_EXPERTS; e++) add(e, kept[e][i], i);
        }
#pragma unroll 1
        for (int i = EXPERT_AHEAD, k = (i * 32 + lane) * 8; k < n; i++, k += 256) {
#pragma unroll
            for (int e = 0; e < WARP_EXPERTS; e++) add(e, load_weights(w[e] + k), i);
        }
#pragma unroll
        for (int e = 0; e < WARP_EXPERTS; e++) {
#pragma unroll
            for (int r = 0; r < STAGE_ROWS; r++) {
                float sum = warp_sum(logit[e][r]);
                if (lane == 0 && row + r < end && expert + e < route.experts)
                    route.logits[(size_t)(row + r) * route.experts + expert + e] = sum;
            }
        }
        if (++stage == LOGIT_STAGES) stage = 0;
    }
}

/* Choices: a warp for a row. */
enum { CHOICE_WARPS = 4 };
static __global__ __launch_bounds__(CHOICE_WARPS *
                                    32) void large_choice_kernel(const __grid_constant__ cuda_route route,
                                                                 const float *expert_scale) {
    __shared__ int chosen[CHOICE_WARPS][CUDA_ROUTE_MAX_RANK];
    __shared__ float value[CHOICE_WARPS][CUDA_ROUTE_MAX_RANK];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = blockIdx.x * CHOICE_WARPS + warp, rank = route.rank;
    release_successor();
    if (row >= __ldcg(route.row_count)) return; /* written before the step's first kernel */
    wait_for_predecessor();
    choose_experts(route.logits + (size_t)row * route.experts, route.experts, rank, chosen[warp], value[warp]);
    __syncwarp();
    if (lane >= rank) return;
    route.expert[row * rank + lane] = chosen[warp][lane];
    route.weight[row * rank + lane] = route_weight(value[warp], chosen[warp], rank, lane, expert_scale);
}

/* Slots and units: every block counts; one warp of them all places the rows of an expert. */
enum { LARGE_THREADS = 512, LARGE_WARPS = LARGE_THREADS / 32 };

struct large_route_memory {
    int chosen[LARGE_ROUTE_SLOTS];
    int begin[CUDA_ROUTE_MAX_EXPERTS + 1], unit[CUDA_ROUTE_MAX_EXPERTS + 1];
};

static __global__ __launch_bounds__(LARGE_THREADS) void large_route_kernel(const __grid_constant__ cuda_route route) {
    __shared__ large_route_memory m;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, rank = route.rank, experts = route.experts;
    int rows = __ldcg(route.row_count), slots = rows * rank; /* written before the step's first kernel */
    for (int e = threadIdx.x; e <= experts; e += LARGE_THREADS) m.begin[e] = 0;
    release_successor();
    wait_for_predecessor();
    __syncthreads();
    for (int s = threadIdx.x; s < slots; s += LARGE_THREADS) {
        m.chosen[s] = __ldcg(route.expert + s);
        atomicAdd(&m.begin[m.chosen[s]], 1); /* sums of integers */
    }
    __syncthreads();
    if (warp == 0) { /* counts become first slots and first units */
        int per_lane = (experts + 31) / 32, first = min(lane * per_lane, experts), end = min(first + per_lane, experts);
        int slot = 0, unit = 0;
        for (int e = first; e < end; e++) {
            slot += m.begin[e];
            unit += (m.begin[e] + CUDA_EXPERT_ROWS - 1) / CUDA_EXPERT_ROWS;
        }
        int own_slots = slot, own_units = unit;
#pragma unroll
        for (int o = 1; o < 32; o <<= 1) {
            int other_slot = __shfl_up_sync(0xffffffffu, slot, o), other_unit = __shfl_up_sync(0xffffffffu, unit, o);
            if (lane >= o) {
                slot += other_slot;
                unit += other_unit;
            }
        }
        if (lane == 31) {
            m.begin[experts] = slot;
            if (blockIdx.x == 0) *route.active_count = unit;
        }
        slot -= own_slots;
        unit -= own_units;
        for (int e = first; e < end; e++) {
            int count = m.begin[e];
            m.begin[e] = slot;
            m.unit[e] = unit;
            slot += count;
            unit += (count + CUDA_EXPERT_ROWS - 1) / CUDA_EXPERT_ROWS;
        }
    }
    __syncthreads();
    for (int e = blockIdx.x * LARGE_THREADS + threadIdx.x; e <= experts; e += gridDim.x * LARGE_THREADS)
        route.begin[e] = m.begin[e];
    for (int e = blockIdx.x * LARGE_WARPS + warp; e < experts; e += gridDim.x * LARGE_WARPS) {
        int at = m.begin[e], count = m.begin[e + 1] - at;
        for (int u = lane; u * CUDA_EXPERT_ROWS < count; u += 32) {
            route.active[m.unit[e] + u] = e;
            route.active_begin[m.unit[e] + u] = at + u * CUDA_EXPERT_ROWS;
            route.active_rows[m.unit[e] + u] = min(count - u * CUDA_EXPERT_ROWS, (int)CUDA_EXPERT_ROWS);
        }
        for (int base = 0; base < slots && count; base += 32) {
            int s = base + lane;
            bool hit = s < slots && m.chosen[s] == e;
            unsigned hits = __ballot_sync(0xffffffffu, hit);
            if (hit) {
                int slot = at + __popc(hits & ((1u << lane) - 1));
                route.slot_row[slot] = s / rank;
                route.slot_of[s] = slot;
            }
            at += __popc(hits);
            count -= __popc(hits);
        }
    }
}

void cuda_route_many(const cuda_launch *l, const cuda_route *route, const cuda_router_weights *w, const float *x,
                     int hidden, int rows) {
    int tiles = ceil_div(route->experts, BLOCK_EXPERTS), each = ceil_div(rows * tiles, l->multiprocessors);
    each = ceil_div(each, STAGE_ROWS) * STAGE_ROWS;
    int row_chunks = ceil_div(hidden < EXPERT_VALUES ? EXPERT_VALUES : hidden, 256) * 64;
    size_t bytes = (size_t)LOGIT_STAGES * STAGE_ROWS * (size_t)row_chunks * sizeof(float4);
    /* What a launch meets is found when the stream is finished. */
    (void)cudaFuncSetAttribute(logits_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    launch_kernel(l, logits_kernel, dim3(tiles, ceil_div(rows, each)), dim3(LOGIT_THREADS), bytes, *route, w->w, w->ld,
                  x, hidden, rows, each, row_chunks);
    launch_kernel(l, large_choice_kernel, dim3(ceil_div(rows, CHOICE_WARPS)), dim3(CHOICE_WARPS * 32), 0, *route,
                  w->expert_scale);
    launch_kernel(l, large_route_kernel, dim3(ceil_div(route->experts, LARGE_WARPS)), dim3(LARGE_THREADS), 0, *route);
}
