/* The router of the mixture of experts for prompts, in float32: logits, the choice of experts, and the grouping of rows by
 * expert. A row's choice depends on that row alone; the grouping is stable (experts ascending, rows ascending inside). */
#include "backend/cuda/route.cuh"

enum {
    ROUTER_THREADS = 256,
    EXPERT_WARPS = 4,                                        /* warps that share one expert's dot product */
    BLOCK_EXPERTS = ROUTER_THREADS / 32 / EXPERT_WARPS,
    STEP = EXPERT_WARPS * 32 * 8,                            /* elements of one step of such a group */
    BLOCK_ROWS = 4,                                          /* rows that meet a block's weights */
    GROUP_THREADS = 1024,
};

/* The experts of a row by counting: an expert's rank is the number of experts before it (larger logit, or equal and lower
 * id). One thread per (row, expert). Leaves logits of the chosen in `value` and ids in `chosen`, by rank. */
static __device__ void choose_by_rank(const float *logits, int experts, int rank, int e, int *chosen, float *value) {
    float mine = logits[e];
    int before = 0, j = 0;
    for (; j + 4 <= experts; j += 4) {
        float4 z = *reinterpret_cast<const float4 *>(logits + j);
        before += z.x > mine || (z.x == mine && j < e);
        before += z.y > mine || (z.y == mine && j + 1 < e);
        before += z.z > mine || (z.z == mine && j + 2 < e);
        before += z.w > mine || (z.w == mine && j + 3 < e);
    }
    for (; j < experts; j++) before += logits[j] > mine || (logits[j] == mine && j < e);
    if (before < rank) {
        chosen[before] = e;
        value[before] = mine;
    }
}

static __global__ __launch_bounds__(ROUTER_THREADS) void router_kernel(const __grid_constant__ cuda_route route,
                                                                       const __grid_constant__ cuda_router_weights router, const float *x,
                                                                       int hidden, int rows) {
    __shared__ float partial[BLOCK_ROWS][ROUTER_THREADS / 32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, part = warp % EXPERT_WARPS;
    int expert = blockIdx.x * BLOCK_EXPERTS + warp / EXPERT_WARPS, at = (part * 32 + lane) * 8;
    const bf16 *weights = as_bf16(router.w) + (size_t)min(expert, route.experts - 1) * router.ld;
    wait_for_predecessor();
    for (int r = 0; r < BLOCK_ROWS && blockIdx.y * BLOCK_ROWS + r < rows; r++) {
        const float *row = x + (size_t)(blockIdx.y * BLOCK_ROWS + r) * hidden;
        float sum = 0;
        for (int k = at; k < hidden; k += STEP) sum += dot8(load_weights(weights + k), row + k);
        sum = warp_sum(sum);
        if (lane == 0) partial[r][warp] = sum;
    }
    __syncthreads();
    if (threadIdx.x < BLOCK_ROWS * BLOCK_EXPERTS) {
        int r = threadIdx.x / BLOCK_EXPERTS, e = threadIdx.x % BLOCK_EXPERTS, row = blockIdx.y * BLOCK_ROWS + r;
        const float *sums = partial[r] + e * EXPERT_WARPS;
        if (row < rows && blockIdx.x * BLOCK_EXPERTS + e < route.experts)
            route.logits[(size_t)row * route.experts + blockIdx.x * BLOCK_EXPERTS + e] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
}

static __global__ void choose_kernel(const __grid_constant__ cuda_route route, const float *expert_scale) {
    __shared__ __align__(16) float logits[CUDA_ROUTE_MAX_EXPERTS];
    __shared__ int chosen[CUDA_ROUTE_MAX_RANK];
    __shared__ float value[CUDA_ROUTE_MAX_RANK];
    wait_for_predecessor();
    if (threadIdx.x < route.rank) {
        chosen[threadIdx.x] = threadIdx.x;
        value[threadIdx.x] = 0;
    }
    for (int e = threadIdx.x; e < route.experts; e += blockDim.x) logits[e] = route.logits[(size_t)blockIdx.x * route.experts + e];
    __syncthreads();
    for (int e = threadIdx.x; e < route.experts; e += blockDim.x)
        choose_by_rank(logits, route.experts, route.rank, e, chosen, value);
    __syncthreads();
    if (threadIdx.x < route.rank) {
        size_t to = (size_t)blockIdx.x * route.rank + threadIdx.x;
        route.weight[to] = route_weight(value, chosen, route.rank, threadIdx.x, expert_scale);
        route.expert[to] = chosen[threadIdx.x];
    }
}

/* Stable counting sort of the (row, rank) pairs of a prompt by expert: one block counts, one warp per expert places. */
static __global__ __launch_bounds__(GROUP_THREADS) void count_kernel(const __grid_constant__ cuda_route route, int slots) {
    __shared__ int count[CUDA_ROUTE_MAX_EXPERTS + 1];
    wait_for_predecessor();
    for (int e = threadIdx.x; e <= route.experts; e += GROUP_THREADS) count[e] = 0;
    __syncthreads();
    for (int s = threadIdx.x; s < slots; s += GROUP_THREADS) atomicAdd(&count[route.expert[s] + 1], 1); /* sums of integers */
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int e = 0; e < route.experts; e++) count[e + 1] += count[e];
    }
    __syncthreads();
    for (int e = threadIdx.x; e <= route.experts; e += GROUP_THREADS) route.begin[e] = count[e];
}

static __global__ __launch_bounds__(GROUP_THREADS) void place_kernel(const __grid_constant__ cuda_route route, int slots) {
    __shared__ int hits_of[GROUP_THREADS / 32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, expert = blockIdx.x;
    wait_for_predecessor();
    int at = route.begin[expert];
    for (int base = 0; base < slots; base += GROUP_THREADS) {
        int s = base + threadIdx.x;
        bool hit = s < slots && route.expert[s] == expert;
        unsigned hits = __ballot_sync(0xffffffffu, hit);
        __syncthreads();
        if (lane == 0) hits_of[warp] = __popc(hits);
        __syncthreads();
        int before = 0, all = 0;
        for (int i = 0; i < GROUP_THREADS / 32; i++) {
            if (i < warp) before += hits_of[i];
            all += hits_of[i];
        }
        if (hit) {
            int slot = at + before + __popc(hits & ((1u << lane) - 1));
            route.slot_row[slot] = s / route.rank;
            route.slot_of[s] = slot;
        }
        at += all;
    }
}

void cuda_router(const cuda_launch *l, const cuda_route *route, const cuda_router_weights *w, const float *x, int hidden, int rows) {
    dim3 grid(ceil_div(route->experts, BLOCK_EXPERTS), ceil_div(rows, BLOCK_ROWS));
    launch_kernel(l, router_kernel, grid, dim3(ROUTER_THREADS), 0, *route, *w, x, hidden, rows);
    launch_kernel(l, choose_kernel, dim3(rows), dim3(128), 0, *route, w->expert_scale);
    launch_kernel(l, count_kernel, dim3(1), dim3(GROUP_THREADS), 0, *route, rows * route->rank);
    launch_kernel(l, place_kernel, dim3(route->experts), dim3(GROUP_THREADS), 0, *route, rows * route->rank);
}
