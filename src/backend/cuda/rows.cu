/* Work on whole rows between the matrix products: embeddings, norms and residual sums, per-layer embeddings, the copies
 * of aux hidden states, and the argmax of logits. One block per row; a row's result depends on that row alone. */
#include "backend/cuda/quant_values.cuh"
#include "backend/cuda/route.cuh"

enum { ROW_THREADS = 512 };

static __device__ __forceinline__ float rms_scale(float sum, int n, float eps) { return rsqrtf(sum / (float)n + eps); }

/* Sum of squares of row[0..n), in a fixed order. */
static __device__ float square_sum(const float *row, int n, float *shared) {
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += ROW_THREADS) sum += row[i] * row[i];
    return block_sum<ROW_THREADS>(sum, shared);
}

/* x = bf16(norm(row) * w); normed: the same in float32, where wanted. w NULL: no norm, x = bf16(row). */
static __device__ void write_normed(const float *row, const float *w, float eps, int n, bf16 *x, float *normed,
                                    float *shared) {
    float scale = w ? rms_scale(square_sum(row, n, shared), n, eps) : 1.0f;
    for (int i = threadIdx.x; i < n; i += ROW_THREADS) {
        float v = w ? row[i] * scale * w[i] : row[i];
        x[i] = __float2bfloat16_rn(v);
        if (normed) normed[i] = v;
    }
}

static __global__ __launch_bounds__(ROW_THREADS) void embed_kernel(const __grid_constant__ cuda_matrix table,
                                                                   const int32_t *tokens, float scale, float *h,
                                                                   const float *norm, float eps, cuda_bf16 *x, int ldx,
                                                                   int hidden) {
    extern __shared__ float row[];
    __shared__ float shared[ROW_THREADS / 32];
    release_successor();
    wait_for_predecessor();
    table_row source = {table, tokens[blockIdx.x]};
    float *out = h + (size_t)blockIdx.x * hidden;
    for (int i = threadIdx.x; i < hidden; i += ROW_THREADS) out[i] = row[i] = source.value(i) * scale;
    write_normed(row, norm, eps, hidden, as_bf16(x) + (size_t)blockIdx.x * ldx, nullptr, shared);
}

void cuda_embed(const cuda_launch *l, const cuda_matrix *table, const int32_t *tokens, float scale, float *h,
                const float *norm, float eps, cuda_bf16 *x, int ldx, int hidden, int rows) {
    launch_kernel(l, embed_kernel, dim3(rows), dim3(ROW_THREADS), hidden * sizeof(float), *table, tokens, scale, h,
                  norm, eps, x, ldx, hidden);
}

/* Where this layer's output of a row goes among its aux hidden states; NULL: nobody keeps it. */
static __device__ __forceinline__ float *aux_of(const cuda_row *rows, const cuda_aux_place &place, int row) {
    float *aux = rows ? rows[row].aux : place.aux + (size_t)row * place.width;
    int column = place.column[rows ? rows[row].aux_form : place.form];
    return aux && column >= 0 ? aux + column : nullptr;
}

/* The two kernels below lie on the critical path of every layer with one block per row, so they are bound by latency:
 * every thread owns its elements (four neighbours at a time) in registers, everything is requested before the first
 * reduction, and what does not depend on the predecessor before it has ended. */

enum { WIDE_THREADS = 1024 };

/* Elements [4 (threadIdx + v * WIDE_THREADS), + 4) of a row; zero behind its end. */
template <int V> struct row_part { float4 part[V]; };

template <int V> static __device__ __forceinline__ row_part<V> load_part(const float *row, int n) {
    row_part<V> r;
#pragma unroll
    for (int v = 0; v < V; v++) {
        int i = 4 * ((int)threadIdx.x + v * WIDE_THREADS);
        r.part[v] = i < n ? __ldcg(reinterpret_cast<const float4 *>(row + i)) : make_float4(0, 0, 0, 0);
    }
    return r;
}

static __device__ __forceinline__ float4 operator*(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
static __device__ __forceinline__ float4 operator*(float4 a, float b) {
    return make_float4(a.x * b, a.y * b, a.z * b, a.w * b);
}
static __device__ __forceinline__ float4 operator+(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

static __device__ __forceinline__ float4 load_inside(const float *row, int i, int n) {
    return i < n ? __ldcg(reinterpret_cast<const float4 *>(row + i)) : make_float4(0, 0, 0, 0);
}

template <int V> static __device__ __forceinline__ float part_square_sum(const row_part<V> &r) {
    float sum = 0;
#pragma unroll
    for (int v = 0; v < V; v++) {
        float4 a = r.part[v] * r.part[v];
        sum += (a.x + a.y) + (a.z + a.w);
    }
    return sum;
}

/* Sums of two values over the block, in a fixed order. `shared` holds two floats per warp; `parity` alternates between
 * successive calls, so that one barrier suffices. */
static __device__ __forceinline__ float2 wide_sum(float a, float b, float2 (*shared)[WIDE_THREADS / 32], int parity) {
    a = warp_sum(a);
    b = warp_sum(b);
    if ((threadIdx.x & 31) == 0) shared[parity][threadIdx.x >> 5] = make_float2(a, b);
    __syncthreads();
    float2 mine = shared[parity][threadIdx.x & 31];
    return make_float2(warp_sum(mine.x), warp_sum(mine.y));
}

static __device__ __forceinline__ void store_part_bf16(cuda_bf16 *row, int i, float4 v) {
    __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y), high = __floats2bfloat162_rn(v.z, v.w);
    uint2 packed = make_uint2(*reinterpret_cast<uint32_t *>(&low), *reinterpret_cast<uint32_t *>(&high));
    *reinterpret_cast<uint2 *>(row + i) = packed;
}

/* With a router: block (i, row) finds the row's norms for itself and the logits of experts [i * ROUTED_WARPS, ...), one
 * warp each; the first blocks of a row write it, and the last of all blocks chooses and groups. For up to
 * CUDA_DECODE_ROWS rows; more of them take a block each without a router, and route_many.cu. */
enum { ROUTED_WARPS = 8, ROUTED_THREADS = ROUTED_WARPS * 32, FEW_EXPERTS = 128 };

struct routed_memory {
    float sums[2][ROUTED_WARPS];
    float expert_scale[CUDA_ROUTE_MAX_EXPERTS];
    route_scratch scratch;
    bool last;
};

static __device__ __forceinline__ float routed_sum(float v, float *shared) {
    v = warp_sum(v);
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int w = 0; w < ROUTED_WARPS; w++) sum += shared[w];
    return sum;
}

/* V: float4s of a row per thread. With few of them registers leave place for blocks of the product that precedes. */
template <int V>
static __global__ __launch_bounds__(ROUTED_THREADS, V <= 3 ? 2 : 1) void after_attention_kernel(
    const __grid_constant__ cuda_after_attention a, const __grid_constant__ cuda_route route) {
    extern __shared__ __align__(16) float x_router[]; /* [hidden], EXPERT_VALUES at least; with a router */
    __shared__ routed_memory m;
    int n = a.hidden, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, expert = blockIdx.x * ROUTED_WARPS + warp;
    size_t at = (size_t)blockIdx.y * n;
    uint4 weights[EXPERT_AHEAD];
    const bf16 *w = as_bf16(a.router.w) + (size_t)min(expert, route.experts - 1) * a.router.ld;
    if (a.router.w) {
#pragma unroll
        for (int i = 0; i < EXPERT_AHEAD; i++) {
            int k = (i * 32 + lane) * 8;
            weights[i] = k < n ? load_weights(w + k) : make_uint4(0, 0, 0, 0);
        }
    }
    float4 h[V], branch[V], post[V], router[V];
#pragma unroll
    for (int v = 0; v < V; v++) { /* older than the product that precedes */
        int i = 4 * ((int)threadIdx.x + v * ROUTED_THREADS);
        h[v] = load_inside(a.h + at, i, n);
        post[v] = load_inside(a.post_attention_norm, i, n);
        if (a.x_experts) router[v] = load_inside(a.router_scale, i, n);
    }
    for (int i = threadIdx.x; a.router.w && i < route.experts; i += ROUTED_THREADS)
        m.expert_scale[i] = a.router.expert_scale[i];
    for (int i = n + (int)threadIdx.x; a.router.w && i < EXPERT_VALUES; i += ROUTED_THREADS) x_router[i] = 0;
    release_successor();
    wait_for_predecessor();
    float sum = 0;
#pragma unroll
    for (int v = 0; v < V; v++) {
        int i = 4 * ((int)threadIdx.x + v * ROUTED_THREADS);
        branch[v] = load_inside(a.branch + at, i, n);
        float4 s = branch[v] * branch[v];
        sum += (s.x + s.y) + (s.z + s.w);
    }
    float scale = rms_scale(routed_sum(sum, m.sums[0]), n, a.eps);
    sum = 0;
#pragma unroll
    for (int v = 0; v < V; v++) {
        h[v] = h[v] + branch[v] * scale * post[v];
        float4 s = h[v] * h[v];
        sum += (s.x + s.y) + (s.z + s.w);
    }
    scale = rms_scale(routed_sum(sum, m.sums[1]), n, a.eps);
    float constant = rsqrtf((float)n);
    /* The first blocks of a row write it, a part each, when their logits are on their way. */
    auto write = [&]() {
        size_t to = (size_t)blockIdx.y * a.ldx;
#pragma unroll
        for (int v = 0; v < V; v++) {
            int i = 4 * ((int)threadIdx.x + v * ROUTED_THREADS);
            if (i >= n || (int)blockIdx.x != (gridDim.x < V ? 0 : v)) continue;
            float4 normed = h[v] * scale, dense = load_inside(a.pre_ffn_norm, i, n);
            *reinterpret_cast<float4 *>(a.h_out + at + i) = h[v];
            store_part_bf16(a.x_dense + to, i, normed * dense);
            if (!a.x_experts) continue;
            store_part_bf16(a.x_experts + to, i, normed * load_inside(a.pre_ffn_norm_2, i, n));
            if (!a.router.w) *reinterpret_cast<float4 *>(a.x_router + at + i) = normed * router[v] * constant;
        }
    };
    if (!a.router.w) {
        write();
        return;
    }
#pragma unroll
    for (int v = 0; v < V; v++) {
        int i = 4 * ((int)threadIdx.x + v * ROUTED_THREADS);
        if (i < n) *reinterpret_cast<float4 *>(x_router + i) = h[v] * scale * router[v] * constant;
    }
    __syncthreads();
    float logit = 0;
#pragma unroll
    for (int i = 0; i < EXPERT_AHEAD; i++) logit += dot8(weights[i], x_router + (i * 32 + lane) * 8);
#pragma unroll 1
    for (int k = (EXPERT_AHEAD * 32 + lane) * 8; k < n; k += 256) logit += dot8(load_weights(w + k), x_router + k);
    logit = warp_sum(logit);
    if (lane == 0 && expert < route.experts) {
        route.logits[(size_t)blockIdx.y * route.experts + expert] = logit;
        __threadfence();
    }
    __syncthreads();
    unsigned before = 0;
    if (threadIdx.x == 0) before = atomicAdd(route.finished, 1u);
    write();
    if (threadIdx.x == 0) {
        m.last = before == gridDim.x * gridDim.y - 1;
        if (m.last) *route.finished = 0;
        __threadfence();
    }
    __syncthreads();
    if (!m.last) return;
    if (gridDim.y == 1 && route.experts <= FEW_EXPERTS) {
        if (warp) return;
        choose_experts<FEW_EXPERTS / 32>(route.logits, route.experts, route.rank, m.scratch.chosen, m.scratch.value);
        __syncwarp();
        make_route_of_row(m.scratch.chosen, m.scratch.value, route, m.expert_scale);
        return;
    }
    make_route<ROUTED_THREADS>(m.scratch, route, m.expert_scale, gridDim.y);
}

template <int V>
static void launch_after_attention(const cuda_launch *l, const cuda_after_attention *a, const cuda_route *route,
                                   int rows) {
    dim3 grid(a->router.w ? ceil_div(route->experts, ROUTED_WARPS) : 1, rows);
    size_t router_bytes =
        a->router.w ? (size_t)(a->hidden < EXPERT_VALUES ? EXPERT_VALUES : a->hidden) * sizeof(float) : 0;
    launch_kernel(l, after_attention_kernel<V>, grid, dim3(ROUTED_THREADS), router_bytes, *a, *route);
}

void cuda_after_attention_rows(const cuda_launch *l, const cuda_after_attention *a, const cuda_route *route, int rows) {
    bool many = a->router.w && rows > CUDA_DECODE_ROWS; /* blocks that find norms for themselves would repeat them */
    cuda_after_attention own = *a;
    if (many) own.router.w = NULL;
    if (a->hidden <= 3 * 4 * ROUTED_THREADS)
        launch_after_attention<3>(l, &own, route, rows);
    else if (a->hidden <= 6 * 4 * ROUTED_THREADS)
        launch_after_attention<6>(l, &own, route, rows);
    else
        launch_after_attention<8>(l, &own, route, rows);
    if (many) cuda_route_many(l, route, &a->router, a->x_router, a->hidden, rows);
}

/* RANK: chosen experts, all of whose rows are requested at once; 0: any number. */
template <int V, int RANK>
static __global__ __launch_bounds__(WIDE_THREADS) void after_ffn_kernel(const __grid_constant__ cuda_after_ffn a,
                                                                        const __grid_constant__ cuda_route route) {
    __shared__ float2 shared[2][WIDE_THREADS / 32];
    __shared__ struct {
        int slot;
        float weight;
    } chosen[CUDA_ROUTE_MAX_RANK];
    int n = a.hidden;
    row_part<V> post = load_part<V>(a.post_ffn_norm, n), next = {};
    if (a.next_norm) next = load_part<V>(a.next_norm, n);
    /* The residual stream and the route are older than the product that precedes. */
    float *h_row = a.h + (size_t)blockIdx.x * n;
    row_part<V> h = load_part<V>(a.h_in + (size_t)blockIdx.x * n, n), norm_dense = {}, norm_experts = {};
    if (a.experts) {
        norm_dense = load_part<V>(a.post_ffn_norm_1, n);
        norm_experts = load_part<V>(a.post_ffn_norm_2, n);
        if ((int)threadIdx.x < route.rank) {
            chosen[threadIdx.x].slot = __ldcg(route.slot_of + (size_t)blockIdx.x * route.rank + threadIdx.x);
            chosen[threadIdx.x].weight = __ldcg(route.weight + (size_t)blockIdx.x * route.rank + threadIdx.x);
        }
        __syncthreads();
    }
    float *aux = nullptr;
    if (a.aux.width) aux = aux_of(a.row, a.aux, blockIdx.x);
    const float *expert_row[RANK + 1]; /* the last is nobody's: there are no arrays of nothing */
    float expert_weight[RANK + 1];
#pragma unroll
    for (int r = 0; r < RANK; r++) {
        expert_row[r] = a.experts + (size_t)chosen[r].slot * n + min(4 * (int)threadIdx.x, n - 4);
        expert_weight[r] = chosen[r].weight;
    }
    release_successor();
    wait_for_predecessor();
    row_part<V> branch = load_part<V>(a.dense + (size_t)blockIdx.x * n, n);
    if (a.experts) {
        row_part<V> mixed = {};
        if constexpr (RANK != 0) { /* one part; threads behind the row's end have loaded what is not theirs */
            float4 expert[RANK + 1];
#pragma unroll
            for (int r = 0; r < RANK; r++) expert[r] = __ldcg(reinterpret_cast<const float4 *>(expert_row[r]));
#pragma unroll
            for (int r = 0; r < RANK; r++) mixed.part[0] = mixed.part[0] + expert[r] * expert_weight[r];
            if (4 * (int)threadIdx.x >= n) mixed.part[0] = make_float4(0, 0, 0, 0);
        }
#pragma unroll 8
        for (int r = 0; RANK == 0 && r < route.rank; r++) {
            row_part<V> expert = load_part<V>(a.experts + (size_t)chosen[r].slot * n, n);
            float weight = chosen[r].weight;
#pragma unroll
            for (int v = 0; v < V; v++) mixed.part[v] = mixed.part[v] + expert.part[v] * weight;
        }
        float2 sums = wide_sum(part_square_sum(branch), part_square_sum(mixed), shared, 0);
        float scale_dense = rms_scale(sums.x, n, a.eps), scale_experts = rms_scale(sums.y, n, a.eps);
#pragma unroll
        for (int v = 0; v < V; v++)
            branch.part[v] = branch.part[v] * scale_dense * norm_dense.part[v] +
                             mixed.part[v] * scale_experts * norm_experts.part[v];
    }
    float scale = rms_scale(wide_sum(part_square_sum(branch), 0, shared, 1).x, n, a.eps);
#pragma unroll
    for (int v = 0; v < V; v++) h.part[v] = (h.part[v] + branch.part[v] * scale * post.part[v]) * a.layer_scalar;
    scale = 1;
    if (a.next_norm) scale = rms_scale(wide_sum(part_square_sum(h), 0, shared, 0).x, n, a.eps);
#pragma unroll
    for (int v = 0; v < V; v++) {
        int i = 4 * ((int)threadIdx.x + v * WIDE_THREADS);
        if (i >= n) continue;
        *reinterpret_cast<float4 *>(h_row + i) = h.part[v];
        if (aux) *reinterpret_cast<float4 *>(aux + i) = h.part[v];
        float4 normed = a.next_norm ? h.part[v] * scale * next.part[v] : h.part[v];
        store_part_bf16(a.x + (size_t)blockIdx.x * a.ldx, i, normed);
        if (a.normed) *reinterpret_cast<float4 *>(a.normed + (size_t)blockIdx.x * n + i) = normed;
    }
}

void cuda_after_ffn_rows(const cuda_launch *l, const cuda_after_ffn *a, const cuda_route *route, int rows) {
    cuda_route r = route ? *route : cuda_route{};
    if (a->experts && r.rank == 8 && a->hidden <= 4 * WIDE_THREADS)
        launch_kernel(l, after_ffn_kernel<1, 8>, dim3(rows), dim3(WIDE_THREADS), 0, *a, r);
    else if (a->hidden <= 4 * WIDE_THREADS)
        launch_kernel(l, after_ffn_kernel<1, 0>, dim3(rows), dim3(WIDE_THREADS), 0, *a, r);
    else
        launch_kernel(l, after_ffn_kernel<2, 0>, dim3(rows), dim3(WIDE_THREADS), 0, *a, r);
}

template <int V>
static __global__ __launch_bounds__(WIDE_THREADS) void add_norm_kernel(const float *branch_rows, const float *w,
                                                                       float scalar, float *h_rows,
                                                                       const float *next_norm, float eps, cuda_bf16 *x,
                                                                       int ldx, float *normed_rows, int n) {
    __shared__ float2 shared[2][WIDE_THREADS / 32];
    row_part<V> next = load_part<V>(next_norm, n), norm = {};
    if (w) norm = load_part<V>(w, n);
    float *h_row = h_rows + (size_t)blockIdx.x * n;
    row_part<V> h = load_part<V>(h_row, n); /* older than the product that precedes */
    release_successor();
    wait_for_predecessor();
    row_part<V> branch = load_part<V>(branch_rows + (size_t)blockIdx.x * n, n);
    float scale = w ? rms_scale(wide_sum(part_square_sum(branch), 0, shared, 0).x, n, eps) : 1.0f;
#pragma unroll
    for (int v = 0; v < V; v++)
        h.part[v] = (h.part[v] + (w ? branch.part[v] * scale * norm.part[v] : branch.part[v])) * scalar;
    scale = rms_scale(wide_sum(part_square_sum(h), 0, shared, 1).x, n, eps);
#pragma unroll
    for (int v = 0; v < V; v++) {
        int i = 4 * ((int)threadIdx.x + v * WIDE_THREADS);
        if (i >= n) continue;
        float4 normed = h.part[v] * scale * next.part[v];
        *reinterpret_cast<float4 *>(h_row + i) = h.part[v];
        store_part_bf16(x + (size_t)blockIdx.x * ldx, i, normed);
        if (normed_rows) *reinterpret_cast<float4 *>(normed_rows + (size_t)blockIdx.x * n + i) = normed;
    }
}

void cuda_add_norm(const cuda_launch *l, const float *branch, const float *w, float scalar, float *h, const float *next,
                   float eps, cuda_bf16 *x, int ldx, float *normed, int hidden, int rows) {
    auto kernel = hidden <= 4 * WIDE_THREADS ? add_norm_kernel<1> : add_norm_kernel<2>;
    launch_kernel(l, kernel, dim3(rows), dim3(WIDE_THREADS), 0, branch, w, scalar, h, next, eps, x, ldx, normed,
                  hidden);
}

static __global__ __launch_bounds__(ROW_THREADS) void norm_kernel(const float *y, int ldy, const float *w, float eps,
                                                                  cuda_bf16 *x, int ldx, int n) {
    __shared__ float shared[ROW_THREADS / 32];
    release_successor();
    wait_for_predecessor();
    write_normed(y + (size_t)blockIdx.x * ldy, w, eps, n, as_bf16(x) + (size_t)blockIdx.x * ldx, nullptr, shared);
}

void cuda_norm_rows(const cuda_launch *l, const float *y, int ldy, const float *w, float eps, cuda_bf16 *x, int ldx,
                    int n, int rows) {
    launch_kernel(l, norm_kernel, dim3(rows), dim3(ROW_THREADS), 0, y, ldy, w, eps, x, ldx, n);
}

void cuda_round_rows(const cuda_launch *l, const float *y, int ldy, cuda_bf16 *x, int ldx, int n, int rows) {
    launch_kernel(l, norm_kernel, dim3(rows), dim3(ROW_THREADS), 0, y, ldy, (const float *)nullptr, 0.0f, x, ldx, n);
}

/* -------------------------------------------------------------------------------------------- per-layer embeddings */

static __global__ __launch_bounds__(ROW_THREADS) void ple_inputs_kernel(float *ple,
                                                                        const __grid_constant__ cuda_matrix table,
                                                                        const int32_t *tokens, const float *norm,
                                                                        float eps, int layers, int width, int hidden) {
    __shared__ float shared[ROW_THREADS / 32];
    release_successor();
    wait_for_predecessor();
    int layer = blockIdx.y;
    float *out = ple + ((size_t)blockIdx.x * layers + layer) * width;
    table_row source = {table, tokens[blockIdx.x]};
    float context_scale = rsqrtf((float)hidden), table_scale = sqrtf((float)width), half = sqrtf(0.5f), sum = 0;
    for (int i = threadIdx.x; i < width; i += ROW_THREADS) {
        float v = out[i] * context_scale;
        sum += v * v;
    }
    float scale = rms_scale(block_sum<ROW_THREADS>(sum, shared), width, eps);
    for (int i = threadIdx.x; i < width; i += ROW_THREADS) {
        float v = out[i] * context_scale * scale * norm[i];
        out[i] = (v + source.value(layer * width + i) * table_scale) * half;
    }
}

void cuda_ple_inputs(const cuda_launch *l, float *ple, const cuda_matrix *table, const int32_t *tokens,
                     const float *norm, float eps, int layers, int width, int hidden, int rows) {
    launch_kernel(l, ple_inputs_kernel, dim3(rows, layers), dim3(ROW_THREADS), 0, ple, *table, tokens, norm, eps,
                  layers, width, hidden);
}

static __global__ void ple_gate_kernel(const float *gate, const float *ple, int layer, int layers, int width,
                                       cuda_bf16 *x, int ldx) {
    release_successor();
    wait_for_predecessor();
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float v =
            gelu_tanh(gate[(size_t)blockIdx.x * width + i]) * ple[((size_t)blockIdx.x * layers + layer) * width + i];
        as_bf16(x)[(size_t)blockIdx.x * ldx + i] = __float2bfloat16_rn(v);
    }
}

void cuda_ple_gate(const cuda_launch *l, const float *gate, const float *ple, int layer, int layers, int width,
                   cuda_bf16 *x, int ldx, int rows) {
    launch_kernel(l, ple_gate_kernel, dim3(rows), dim3(256), 0, gate, ple, layer, layers, width, x, ldx);
}

/* ----------------------------------------------------------------------------------------------------- aux states */

static __global__ void copy_aux_kernel(const cuda_row *row, const float *h,
                                       const __grid_constant__ cuda_aux_place place, int hidden) {
    release_successor();
    wait_for_predecessor();
    float *to = aux_of(row, place, blockIdx.x);
    if (!to) return;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) to[i] = h[(size_t)blockIdx.x * hidden + i];
}

void cuda_copy_aux(const cuda_launch *l, const cuda_row *row, const float *h, const cuda_aux_place *place, int hidden,
                   int rows) {
    launch_kernel(l, copy_aux_kernel, dim3(rows), dim3(256), 0, row, h, *place, hidden);
}

/* --------------------------------------------------------------------------------------------------------- argmax */

struct best_logit {
    float value;
    int index; /* -1: none yet; NaN wins and stays */
};

static __device__ __forceinline__ best_logit better(best_logit a, best_logit b) {
    if (a.index < 0) return b;
    if (b.index < 0) return a;
    bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan || b_nan) return a_nan ? a : b;
    if (a.value == b.value) return a.index < b.index ? a : b;
    return a.value > b.value ? a : b;
}

static __device__ best_logit block_best(best_logit best, best_logit *shared) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        best_logit other = {__shfl_xor_sync(0xffffffffu, best.value, o), __shfl_xor_sync(0xffffffffu, best.index, o)};
        best = better(best, other);
    }
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = best;
    __syncthreads();
    for (int w = 0; w < (int)blockDim.x / 32; w++) best = better(best, shared[w]);
    return best;
}

static __global__ void argmax_parts_kernel(const float *logits, int vocab,
                                           const __grid_constant__ cuda_excluded excluded, float *values,
                                           int *indices) {
    __shared__ best_logit shared[32];
    release_successor();
    wait_for_predecessor();
    int part = (vocab + CUDA_ARGMAX_PARTS - 1) / CUDA_ARGMAX_PARTS, begin = blockIdx.x * part;
    int end = min(begin + part, vocab);
    const float *row = logits + (size_t)blockIdx.y * vocab;
    int own = excluded.row ? excluded.row[blockIdx.y].excluded - 1 : -1;
    const uint32_t *allowed = excluded.row ? excluded.row[blockIdx.y].allowed : nullptr;
    best_logit best = {0, -1};
    for (int base = begin + threadIdx.x; base < end; base += 4 * blockDim.x) {
        float value[4]; /* four requests at a time */
#pragma unroll
        for (int v = 0; v < 4; v++)
            value[v] = base + v * (int)blockDim.x < end ? __ldcg(row + base + v * blockDim.x) : 0;
#pragma unroll
        for (int v = 0; v < 4; v++) {
            int i = base + v * (int)blockDim.x;
            bool wanted = i < end && i != own;
            if (wanted && allowed) wanted = __ldcg(allowed + i / 32) >> (i % 32) & 1;
            for (int e = 0; e < excluded.n; e++) wanted &= i != excluded.id[e];
            if (wanted) best = better(best, best_logit{value[v], i});
        }
    }
    best = block_best(best, shared);
    if (threadIdx.x == 0) {
        values[blockIdx.y * CUDA_ARGMAX_PARTS + blockIdx.x] = best.value;
        indices[blockIdx.y * CUDA_ARGMAX_PARTS + blockIdx.x] = best.index;
    }
}

static __global__ void argmax_merge_kernel(const float *values, const int *indices, int32_t *out) {
    release_successor();
    wait_for_predecessor();
    int at = blockIdx.x * CUDA_ARGMAX_PARTS + threadIdx.x;
    best_logit best = {values[at], indices[at]};
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        best_logit other = {__shfl_xor_sync(0xffffffffu, best.value, o), __shfl_xor_sync(0xffffffffu, best.index, o)};
        best = better(best, other);
    }
    if (threadIdx.x == 0) out[blockIdx.x] = best.value != best.value || isinf(best.value) ? -1 : best.index;
}

void cuda_argmax(const cuda_launch *l, const float *logits, int vocab, const cuda_excluded *excluded, int rows,
                 float *partial_value, int *partial_index, int32_t *out) {
    launch_kernel(l, argmax_parts_kernel, dim3(CUDA_ARGMAX_PARTS, rows), dim3(512), 0, logits, vocab, *excluded,
                  partial_value, partial_index);
    launch_kernel(l, argmax_merge_kernel, dim3(rows), dim3(CUDA_ARGMAX_PARTS), 0, (const float *)partial_value,
                  (const int *)partial_index, out);
}

/* ------------------------------------------------------------------------------------------------------ utilities */

static __global__ void rope_tables_kernel(const float *inverse_frequency, int pairs, int begin, float *cosine,
                                          float *sine) {
    int position = begin + blockIdx.x;
    for (int j = threadIdx.x; j < pairs; j += blockDim.x) {
        size_t at = (size_t)position * pairs + j;
        sincosf((float)position * inverse_frequency[j], &sine[at], &cosine[at]);
    }
}

void cuda_rope_tables(const cuda_launch *l, const float *inverse_frequency, int pairs, int begin, int end,
                      float *cosine, float *sine) {
    cuda_launch plain = {l->stream, l->multiprocessors, 0};
    launch_kernel(&plain, rope_tables_kernel, dim3(end - begin), dim3(128), 0, inverse_frequency, pairs, begin, cosine,
                  sine);
}

static __global__ void fill_random_kernel(cuda_bf16 *data, size_t n, float half_range, uint64_t seed) {
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15ull; /* splitmix64 */
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        z ^= z >> 31;
        as_bf16(data)[i] = __float2bfloat16_rn(((float)(uint32_t)(z >> 40) * 0x1p-23f - 1.0f) * half_range);
    }
}

void cuda_fill_random(const cuda_launch *l, cuda_bf16 *data, size_t n, float deviation, uint64_t seed) {
    cuda_launch plain = {l->stream, l->multiprocessors, 0};
    launch_kernel(&plain, fill_random_kernel, dim3(1056), dim3(512), 0, data, n, deviation * 1.7320508f, seed);
}

static __global__ void probe_read_kernel(const uint4 *data, size_t n, float *sink) {
    uint32_t sum = 0;
    size_t stride = (size_t)gridDim.x * blockDim.x, i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < n; i += 4 * stride) {
        uint4 a = load_weights(data + i), b = load_weights(data + i + stride), c = load_weights(data + i + 2 * stride),
              d = load_weights(data + i + 3 * stride);
        sum ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    if (sum == 0x12345678u) *sink = 1;
}

void cuda_probe_read(const cuda_launch *l, const void *data, size_t bytes, float *sink) {
    cuda_launch plain = {l->stream, l->multiprocessors, 0};
    launch_kernel(&plain, probe_read_kernel, dim3(1056), dim3(512), 0, (const uint4 *)data, bytes / 16, sink);
}

static __global__ void probe_flops_kernel(int iterations, float *sink) {
    float acc[8][4] = {};
    uint32_t a = threadIdx.x, b = blockIdx.x;
    for (int i = 0; i < iterations; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) mma_bf16(acc[j], a, b, a, b, a, b);
    }
    float sum = 0;
    for (int j = 0; j < 8; j++) sum += acc[j][0] + acc[j][1] + acc[j][2] + acc[j][3];
    if (sum == 1.5f) *sink = sum;
}

double cuda_probe_flops(const cuda_launch *l, int multiprocessors, int iterations, float *sink) {
    cuda_launch plain = {l->stream, l->multiprocessors, 0};
    launch_kernel(&plain, probe_flops_kernel, dim3(multiprocessors * 2), dim3(512), 0, iterations, sink);
    return (double)multiprocessors * 2 * 16 * iterations * 8 * (2.0 * 16 * 8 * 16);
}
