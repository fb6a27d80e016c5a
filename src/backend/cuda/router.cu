/* The router of the mixture of experts for prompts, in float32: logits, the choice of experts, and the grouping of rows
 * by expert. A row's choice depends on that row alone; the grouping is stable (experts ascending, rows ascending
 * inside). */
#include "backend/cuda/route.cuh"

enum {
    ROUTER_WARPS = 8,
    BLOCK_ROWS = 32,
    WARP_EXPERTS = 32,
    BLOCK_EXPERTS = ROUTER_WARPS / 2 * WARP_EXPERTS,
    GROUP_THREADS = 1024
};

/* The experts of a row by counting: an expert's rank is the number of experts before it (larger logit, or equal and
 * lower id). One thread per (row, expert). Leaves logits of the chosen in `value` and ids in `chosen`, by rank. */
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

/* Eight neighbouring values of a row as three bf16 whose sum is the float32, in pairs. */
struct split_values {
    uint32_t part[3][4];
};

static __device__ __forceinline__ split_values split_row(const float *x, bool inside) {
    float4 low = make_float4(0, 0, 0, 0), high = low;
    if (inside) {
        low = *reinterpret_cast<const float4 *>(x);
        high = *reinterpret_cast<const float4 *>(x + 4);
    }
    float2 pair[4] = {{low.x, low.y}, {low.z, low.w}, {high.x, high.y}, {high.z, high.w}};
    split_values s;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int part = 0; part < 3; part++) {
            __nv_bfloat162 rounded = __float22bfloat162_rn(pair[i]);
            float2 back = __bfloat1622float2(rounded);
            s.part[part][i] = *reinterpret_cast<uint32_t *>(&rounded);
            pair[i].x -= back.x;
            pair[i].y -= back.y;
        }
    }
    return s;
}

/* Logits of BLOCK_ROWS rows and BLOCK_EXPERTS experts: a warp takes 16 rows and WARP_EXPERTS experts. The float32 rows
 * enter the tensor cores as sums of three bf16, so nothing of them is lost. As in products.cu, k is only a label. */
static __global__ __launch_bounds__(ROUTER_WARPS *
                                    32) void router_kernel(const __grid_constant__ cuda_route route,
                                                           const __grid_constant__ cuda_router_weights router,
                                                           const float *x, int hidden, int rows) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int row = blockIdx.x * BLOCK_ROWS + warp % 2 * 16 + g,
        expert = blockIdx.y * BLOCK_EXPERTS + warp / 2 * WARP_EXPERTS;
    const float *low = x + (size_t)min(row, rows - 1) * hidden + 8 * t,
                *high = x + (size_t)min(row + 8, rows - 1) * hidden + 8 * t;
    const bf16 *w[WARP_EXPERTS / 8];
#pragma unroll
    for (int n = 0; n < WARP_EXPERTS / 8; n++)
        w[n] = as_bf16(router.w) + (size_t)min(expert + n * 8 + g, route.experts - 1) * router.ld + 8 * t;
    float acc[WARP_EXPERTS / 8][4] = {};
    wait_for_predecessor();
#pragma unroll 2
    for (int k = 0; k < router.ld; k += CUDA_K_STEP) {
        bool inside = k + 8 * t < hidden;
        uint4 weights[WARP_EXPERTS / 8];
#pragma unroll
        for (int n = 0; n < WARP_EXPERTS / 8; n++) weights[n] = __ldg(reinterpret_cast<const uint4 *>(w[n] + k));
        split_values a = split_row(low + k, inside), b = split_row(high + k, inside);
#pragma unroll
        for (int part = 0; part < 3; part++) {
#pragma unroll
            for (int n = 0; n < WARP_EXPERTS / 8; n++) {
                mma_bf16(acc[n], a.part[part][0], b.part[part][0], a.part[part][1], b.part[part][1], weights[n].x,
                         weights[n].y);
                mma_bf16(acc[n], a.part[part][2], b.part[part][2], a.part[part][3], b.part[part][3], weights[n].z,
                         weights[n].w);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < WARP_EXPERTS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = row + i / 2 * 8, e = expert + n * 8 + 2 * t + i % 2;
            if (r < rows && e < route.experts) route.logits[(size_t)r * route.experts + e] = acc[n][i];
        }
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
    for (int e = threadIdx.x; e < route.experts; e += blockDim.x)
        logits[e] = route.logits[(size_t)blockIdx.x * route.experts + e];
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
static __global__ __launch_bounds__(GROUP_THREADS) void count_kernel(const __grid_constant__ cuda_route route,
                                                                     int slots) {
    __shared__ int count[CUDA_ROUTE_MAX_EXPERTS + 1];
    wait_for_predecessor();
    for (int e = threadIdx.x; e <= route.experts; e += GROUP_THREADS) count[e] = 0;
    __syncthreads();
    for (int s = threadIdx.x; s < slots; s += GROUP_THREADS)
        atomicAdd(&count[route.expert[s] + 1], 1); /* sums of integers */
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int e = 0; e < route.experts; e++) count[e + 1] += count[e];
    }
    __syncthreads();
    for (int e = threadIdx.x; e <= route.experts; e += GROUP_THREADS) route.begin[e] = count[e];
}

static __global__ __launch_bounds__(GROUP_THREADS) void place_kernel(const __grid_constant__ cuda_route route,
                                                                     int slots) {
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

void cuda_router(const cuda_launch *l, const cuda_route *route, const cuda_router_weights *w, const float *x,
                 int hidden, int rows) {
    dim3 grid(ceil_div(rows, BLOCK_ROWS), ceil_div(route->experts, BLOCK_EXPERTS));
    launch_kernel(l, router_kernel, grid, dim3(ROUTER_WARPS * 32), 0, *route, *w, x, hidden, rows);
    launch_kernel(l, choose_kernel, dim3(rows), dim3(128), 0, *route, w->expert_scale);
    launch_kernel(l, count_kernel, dim3(1), dim3(GROUP_THREADS), 0, *route, rows * route->rank);
    launch_kernel(l, place_kernel, dim3(route->experts), dim3(GROUP_THREADS), 0, *route, rows * route->rank);
}
