/* The router of the mixture of experts for prompts, in float32: logits, the choice of experts, and the grouping of rows
 * by expert. A row's choice depends on that row alone; the grouping is stable (experts ascending, rows ascending
 * inside). */
#include "backend/cuda/prompt_tensor.cuh"
#include "backend/cuda/route.cuh"

enum {
    ROUTER_WARPS = 8,
    ROUTER_THREADS = ROUTER_WARPS * 32,
    BLOCK_ROWS = 32, /* a bit each */
    WARP_EXPERTS = 32,
    ROUND_EXPERTS = ROUTER_WARPS / 2 * WARP_EXPERTS,
    STEP_K = prompt::PANEL_COLUMNS,
    ROUTER_STAGES = 3,
    X_PITCH = STEP_K * 4 + 32, /* bytes of a row of x; the pad spreads rows over the banks */
    W_BYTES = ROUND_EXPERTS * prompt::PANEL_ROW_BYTES,
    PLACE_THREADS = CUDA_ROUTE_MAX_EXPERTS, /* one an expert */
    STAGE_BYTES = W_BYTES + BLOCK_ROWS * X_PITCH,
    ROUTER_BYTES = prompt::TILE_ALIGNMENT + ROUTER_STAGES * STAGE_BYTES,
};
static_assert(STAGE_BYTES % prompt::TILE_ALIGNMENT == 0, "tiles of W are swizzled");

/* A pair of float32 as the sum of three pairs of bf16, which is exact. */
static __device__ __forceinline__ void split_pair(float2 x, uint32_t (&part)[3]) {
#pragma unroll
    for (int i = 0; i < 3; i++) {
        __nv_bfloat162 rounded = __float22bfloat162_rn(x);
        float2 back = __bfloat1622float2(rounded);
        part[i] = *reinterpret_cast<uint32_t *>(&rounded);
        x.x -= back.x;
        x.y -= back.y;
    }
}

struct router_block {
    const cuda_route &route;
    const cuda_router_weights &router;
    const float *x;
    int hidden, rows, first_row;
    uint32_t base;

    /* Steps of k, of the experts [first_expert, + ROUND_EXPERTS). */
    __device__ __forceinline__ void load(int step, int first_expert) const {
        uint32_t stage = base + static_cast<uint32_t>(step % ROUTER_STAGES * STAGE_BYTES);
        const bf16 *w = as_bf16(router.w);
#pragma unroll
        for (int i = 0; i < ROUND_EXPERTS * 8 / ROUTER_THREADS; i++) {
            int item = static_cast<int>(threadIdx.x) + i * ROUTER_THREADS, row = item / 8, chunk = item % 8;
            int column = step * STEP_K + chunk * 8, expert = first_expert + row;
            bool valid = column < router.ld && expert < route.experts;
            const bf16 *from = w + (valid ? static_cast<size_t>(expert) * router.ld + column : 0);
            prompt::copy_async(stage + prompt::chunk_offset(row, chunk, ROUND_EXPERTS), from, valid);
        }
#pragma unroll
        for (int i = 0; i < BLOCK_ROWS * 16 / ROUTER_THREADS; i++) {
            int item = static_cast<int>(threadIdx.x) + i * ROUTER_THREADS, row = item / 16, chunk = item % 16;
            int column = step * STEP_K + chunk * 4;
            bool valid = column < hidden && first_row + row < rows;
            const float *from = x + (valid ? static_cast<size_t>(first_row + row) * hidden + column : 0);
            prompt::copy_async(stage + W_BYTES + static_cast<uint32_t>(row * X_PITCH + chunk * 16), from, valid);
        }
    }

    /* acc[16 rows][WARP_EXPERTS] of one step; a float32 value of x enters as the sum of three bf16. */
    __device__ __forceinline__ void multiply(int step, const char *tiles, float (&acc)[WARP_EXPERTS / 8][4], int warp,
                                             int lane) const {
        int stage = step % ROUTER_STAGES * STAGE_BYTES, w_row = warp / 2 * WARP_EXPERTS + lane / 16 * 8 + lane % 8;
        const char *row = tiles + stage + W_BYTES + (warp % 2 * 16 + lane / 4) * X_PITCH + lane % 4 * 8;
#pragma unroll
        for (int k = 0; k < STEP_K / 16; k++) {
            uint32_t part[4][3];
#pragma unroll
            for (int i = 0; i < 4; i++)
                split_pair(*reinterpret_cast<const float2 *>(row + i % 2 * 8 * X_PITCH + k * 64 + i / 2 * 32), part[i]);
#pragma unroll
            for (int n = 0; n < WARP_EXPERTS / 8; n += 2) {
                uint32_t w[4];
                prompt::load_matrices(w, base + static_cast<uint32_t>(stage) +
                                             prompt::chunk_offset(w_row + n * 8, k * 2 + lane / 8 % 2, ROUND_EXPERTS));
#pragma unroll
                for (int p = 0; p < 3; p++) {
                    uint32_t a[4] = {part[0][p], part[1][p], part[2][p], part[3][p]};
                    prompt::multiply(acc[n], a, w[0], w[1]);
                    prompt::multiply(acc[n + 1], a, w[2], w[3]);
                }
            }
        }
    }
};

/* Logits and choices of BLOCK_ROWS rows: a warp takes 16 rows and WARP_EXPERTS experts at a time. Logits that have been
 * read make room for what place_kernel wants to know: of each expert, which of the block's rows chose it. */
static __global__
__launch_bounds__(ROUTER_THREADS) void router_kernel(const __grid_constant__ cuda_route route,
                                                     const __grid_constant__ cuda_router_weights router, const float *x,
                                                     int hidden, int rows) {
    extern __shared__ char memory[];
    __shared__ int chosen[BLOCK_ROWS * CUDA_ROUTE_MAX_RANK];
    __shared__ float value[BLOCK_ROWS * CUDA_ROUTE_MAX_RANK];
    __shared__ unsigned choosers[CUDA_ROUTE_MAX_EXPERTS];
    uint32_t raw = prompt::shared_address(memory), base = prompt::align_tile(raw);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first_row = blockIdx.x * BLOCK_ROWS;
    const router_block b = {route, router, x, hidden, rows, first_row, base};
    int steps = (max(router.ld, hidden) + STEP_K - 1) / STEP_K, own_rows = min(rows - first_row, (int)BLOCK_ROWS);
    for (int e = threadIdx.x; e < route.experts; e += ROUTER_THREADS) choosers[e] = 0;
    wait_for_predecessor();
    for (int first = 0; first < route.experts; first += ROUND_EXPERTS) {
        float acc[WARP_EXPERTS / 8][4] = {};
        for (int s = 0; s < ROUTER_STAGES - 1; s++) {
            if (s < steps) b.load(s, first);
            prompt::copy_commit();
        }
        for (int step = 0; step < steps; step++) {
            prompt::copy_wait<ROUTER_STAGES - 2>();
            __syncthreads(); /* this step has landed, the one before is used up */
            if (step + ROUTER_STAGES - 1 < steps) b.load(step + ROUTER_STAGES - 1, first);
            prompt::copy_commit();
            b.multiply(step, memory + (base - raw), acc, warp, lane);
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < WARP_EXPERTS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int r = first_row + warp % 2 * 16 + lane / 4 + i / 2 * 8,
                    e = first + warp / 2 * WARP_EXPERTS + n * 8 + lane % 4 * 2 + i % 2;
                if (r < rows && e < route.experts) route.logits[static_cast<size_t>(r) * route.experts + e] = acc[n][i];
            }
        }
    }
    __syncthreads();
    for (int r = warp; r < own_rows; r += ROUTER_WARPS)
        choose_experts(route.logits + static_cast<size_t>(first_row + r) * route.experts, route.experts, route.rank,
                       chosen + r * route.rank, value + r * route.rank);
    __syncthreads();
    for (int s = threadIdx.x; s < own_rows * route.rank; s += ROUTER_THREADS) {
        int r = s / route.rank, at = r * route.rank;
        size_t to = static_cast<size_t>(first_row) * route.rank + s;
        route.weight[to] = route_weight(value + at, chosen + at, route.rank, s - at, router.expert_scale);
        route.expert[to] = chosen[s];
        atomicOr(&choosers[chosen[s]], 1u << r); /* in any order */
    }
    __syncthreads();
    unsigned *out = reinterpret_cast<unsigned *>(route.logits) + static_cast<size_t>(first_row) * route.experts;
    for (int e = threadIdx.x; e < route.experts; e += ROUTER_THREADS) out[e] = choosers[e];
}

/* The place of every (row, rank) pair: behind those of lower experts, of the same expert in the blocks before, and in
 * the rows of its block before. */
static __global__ __launch_bounds__(PLACE_THREADS) void place_kernel(const __grid_constant__ cuda_route route,
                                                                     int rows) {
    __shared__ unsigned choosers[PLACE_THREADS];
    __shared__ int begin[PLACE_THREADS], sums[PLACE_THREADS / 32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, e = threadIdx.x, first_row = blockIdx.x * BLOCK_ROWS;
    int before = 0, all = 0;
    unsigned own = 0;
    wait_for_predecessor();
    if (e < route.experts) {
        const unsigned *from = reinterpret_cast<const unsigned *>(route.logits) + e;
#pragma unroll 8
        for (int b = 0; b < (int)gridDim.x; b++) {
            unsigned mask = __ldcg(from + static_cast<size_t>(b) * BLOCK_ROWS * route.experts);
            if (b == (int)blockIdx.x) {
                own = mask;
                before = all;
            }
            all += __popc(mask);
        }
    }
    int sum = all; /* of the experts up to this one */
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        int other = __shfl_up_sync(0xffffffffu, sum, o);
        if (lane >= o) sum += other;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; w++) sum += sums[w];
    choosers[e] = own;
    begin[e] = sum - all + before;
    if (blockIdx.x == 0 && e < route.experts) {
        route.begin[e] = sum - all;
        if (e == route.experts - 1) route.begin[route.experts] = sum;
    }
    __syncthreads();
    int slots = min(rows - first_row, (int)BLOCK_ROWS) * route.rank;
    for (int s = threadIdx.x; s < slots; s += PLACE_THREADS) {
        size_t at = static_cast<size_t>(first_row) * route.rank + s;
        int r = s / route.rank, expert = route.expert[at];
        int slot = begin[expert] + __popc(choosers[expert] & ((1u << r) - 1));
        route.slot_row[slot] = first_row + r;
        route.slot_of[at] = slot;
    }
}

void cuda_router(const cuda_launch *l, const cuda_route *route, const cuda_router_weights *w, const float *x,
                 int hidden, int rows) {
    dim3 grid(ceil_div(rows, BLOCK_ROWS));
    /* Every device that this backend serves has so much; what a launch meets is found when the stream is finished. */
    (void)cudaFuncSetAttribute(router_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, ROUTER_BYTES);
    launch_kernel(l, router_kernel, grid, dim3(ROUTER_THREADS), ROUTER_BYTES, *route, *w, x, hidden, rows);
    launch_kernel(l, place_kernel, grid, dim3(PLACE_THREADS), 0, *route, rows);
}
