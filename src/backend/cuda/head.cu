/* The greedy choice of rows from an int8 copy of the head: bound by reading the copy, half the bytes of the matrix,
 * once.
 *
 * Three kernels. quantise_rows writes each row of x as two int8 parts. screen multiplies them with the copy and gives
 * every logit an upper and a lower bound; the largest lower bound of a row is one of its largest logit. choose
 * (products.cu) computes the logits whose upper bound reaches that one as the full product does, and takes the largest
 * of them. Where the bounds decide nothing (numbers that are not finite, logits that are all alike) every output is
 * computed: the result is always that of the full product.
 *
 * Bounds. Output o of the matrix is w = s q + d: q int8, s a float32, |d| known from when the copy was made (|.| is the
 * Euclidean norm). A row is x = x' + e with x' = hi 2^k + lo 2^(k-8), hi and lo int8; all of this is exact, since
 * scales are powers of two. a = s q.x' is computed in integers and rounded twice. By Cauchy and Schwarz |w.x - a| <=
 * |d| |x| + |s q| |e|,   |s q| <= |w| + |d|, and the full product's own result differs from w.x by at most
 * cuda_product_error |w| |x|. Together with the rounding of a, 2^-22 |s q| |x'| at most, the bound is |d| P + |w| Q
 * with P and Q of the row alone; every sum is rounded upwards.
 *
 * Tiles of 16 outputs lie in the order in which warps read them, a warp's step of 64 k in one piece of 1 KB; the parts
 * of 4 rows are the 8 columns of an mma.m16n8k32. A warp has its own tiles: nothing is summed across warps. */
#include <math_constants.h>

#include "backend/cuda/common.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    BLOCKS_PER_MULTIPROCESSOR = 2,
    DEPTH = 4, /* divides the steps */
    TILE = CUDA_HEAD_TILE,
    STEP = CUDA_HEAD_STEP,
    PIECE = 16,                       /* k of one load */
    TILE_LOADS = TILE * STEP / PIECE, /* of one step */
    ROWS_PER_COLUMNS = 4,             /* 8 columns: two parts each */
    MOST_COLUMNS = CUDA_SCREEN_ROWS / ROWS_PER_COLUMNS,
    ROW_THREADS = 512,  /* times PIECE: the largest hidden size */
    ROW_SCALE_BITS = 6, /* the largest element of a row lies in [64, 127] of its scale */
};

/* ------------------------------------------------------------------------------------------------------ the copy */

static __device__ __forceinline__ double warp_sum_double(double v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

/* An upper bound of the root; double rounding is far below 1e-9. */
static __device__ __forceinline__ float root_above(double square) {
    return __double2float_ru(sqrt(square) * (1 + 1e-9));
}

/* One block per tile, one warp per output. */
static __global__ __launch_bounds__(THREADS) void encode_head_kernel(const cuda_bf16 *w, int in, int ld,
                                                                     const __grid_constant__ cuda_head_codes codes) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    for (int i = warp; i < TILE; i += WARPS) {
        int o = blockIdx.x * TILE + i;
        const bf16 *row = as_bf16(w) + (size_t)min(o, codes.out - 1) * ld;
        float largest = 0;
        bool finite = true;
        for (int k = lane; k < in; k += 32) {
            float v = __bfloat162float(row[k]);
            finite &= isfinite(v);
            largest = fmaxf(largest, fabsf(v));
        }
#pragma unroll
        for (int s = 16; s > 0; s >>= 1) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, s));
        finite = __all_sync(0xffffffffu, finite);
        float scale = finite ? largest / 127.0f : 0.0f;
        double residual = 0, norm = 0;
        for (int k = lane; k < codes.steps * STEP; k += 32) {
            float v = finite && o < codes.out && k < in ? __bfloat162float(row[k]) : 0.0f;
            float q = scale > 0 ? fminf(fmaxf(rintf(v / scale), -127.0f), 127.0f) : 0.0f;
            double d = (double)v - (double)scale * (double)q;
            residual += d * d;
            norm += (double)v * (double)v;
            int step = k / STEP, t = k % STEP / PIECE;
            size_t load = ((size_t)blockIdx.x * codes.steps + step) * TILE_LOADS + (i >> 3) * 32 + (i & 7) * 4 + t;
            codes.codes[load * PIECE + k % PIECE] = (int8_t)q;
        }
        residual = warp_sum_double(residual);
        norm = warp_sum_double(norm);
        if (lane == 0) {
            codes.outputs[o] = {scale, finite ? root_above(residual) : CUDART_INF_F,
                                finite ? root_above(norm) : CUDART_INF_F};
        }
    }
}

int cuda_head_steps(int in) { return ceil_div(in, STEP * DEPTH) * DEPTH; }
int cuda_head_tiles(int out) { return ceil_div(out, TILE); }

void cuda_encode_head(const cuda_launch *l, const cuda_matrix *head, const cuda_head_codes *codes) {
    cuda_launch plain = {l->stream, l->multiprocessors, 0};
    launch_kernel(&plain, encode_head_kernel, dim3(cuda_head_tiles(head->out)), dim3(THREADS), 0, head->data, head->in,
                  head->ld, *codes);
}

/* -------------------------------------------------------------------------------------------------- rows of x */

/* The largest of `value` over the block. */
static __device__ int block_largest(int value, int *shared) {
    value = __reduce_max_sync(0xffffffffu, value);
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = value;
    __syncthreads();
    for (int w = 0; w < ROW_THREADS / 32; w++) value = max(value, shared[w]);
    return value;
}

/* |x| from the sum of squares in float32, some 50 roundings deep: above, and above what underflows. */
static __device__ __forceinline__ float norm_above(float square) {
    return __fadd_ru(__fmul_ru(__fsqrt_ru(square), 1 + 0x1p-16f), 0x1p-60f);
}

/* One block per row; a thread has PIECE neighbours. Clears what the choice is collected in. */
static __global__ __launch_bounds__(ROW_THREADS) void quantise_rows_kernel(const cuda_bf16 *x, int in, int ldx,
                                                                           int steps, float product_error,
                                                                           const __grid_constant__ cuda_screen screen) {
    __shared__ int largest_of[ROW_THREADS / 32];
    __shared__ float sum_of[ROW_THREADS / 32];
    release_successor();
    wait_for_predecessor();
    int row = blockIdx.x, k = threadIdx.x * PIECE;
    uint32_t pairs[PIECE / 2] = {};
    const bf16 *source = as_bf16(x) + (size_t)row * ldx + k;
    if (k < in) *reinterpret_cast<uint4 *>(pairs) = __ldcg(reinterpret_cast<const uint4 *>(source));
    if (k + 8 < in) *reinterpret_cast<uint4 *>(pairs + 4) = __ldcg(reinterpret_cast<const uint4 *>(source + 8));
    int bits = 0; /* of the largest magnitude: infinity and NaN are above all others */
#pragma unroll
    for (int i = 0; i < PIECE / 2; i++) bits = max(bits, max((int)(pairs[i] & 0x7fff), (int)(pairs[i] >> 16 & 0x7fff)));
    bits = block_largest(bits, largest_of);
    /* Far from the ends of the range no product of scales and no square leaves it. */
    const int least = (127 - 40) << 7, most = (127 + 40) << 7;
    bool ordinary = bits >= least && bits <= most;
    int exponent = (bits >> 7) - 127 - ROW_SCALE_BITS + ((bits & 0x7f) == 0x7f); /* 127.5 would round to 128 */
    float inverse = ordinary ? __uint_as_float((unsigned)(127 - exponent) << 23) : 0.0f;
    float square = 0, rest = 0; /* in units of the scale */
    union {
        int8_t part[PIECE];
        uint4 load;
    } hi, lo;
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        float v = __uint_as_float(i & 1 ? pairs[i / 2] & 0xffff0000u : pairs[i / 2] << 16),
              u = ordinary ? v * inverse : 0.0f;
        float high = floorf(u + 0.5f), low = fminf(rintf((u - high) * 256.0f), 127.0f),
              d = u - high - low * (1.0f / 256.0f);
        hi.part[i] = (int8_t)high;
        lo.part[i] = (int8_t)low;
        square += u * u;
        rest += d * d;
    }
    if (k < steps * STEP) {
        int lane = (row % ROWS_PER_COLUMNS) * 8 + (threadIdx.x & 3);
        uint4 *to = reinterpret_cast<uint4 *>(screen.x) +
                    ((size_t)(threadIdx.x >> 2) * MOST_COLUMNS + row / ROWS_PER_COLUMNS) * 32;
        to[lane] = hi.load;
        to[lane + 4] = lo.load;
    }
    square = block_sum<ROW_THREADS>(square, sum_of);
    rest = block_sum<ROW_THREADS>(rest, sum_of);
    if (threadIdx.x != 0) return;
    float scale = ordinary ? __uint_as_float((unsigned)(127 + exponent) << 23) : 0.0f;
    float whole = ordinary ? __fmul_ru(scale, norm_above(square)) : CUDART_INF_F,
          missed = __fmul_ru(scale, norm_above(rest));
    float both = __fadd_ru(whole, missed); /* |x'| at most */
    cuda_screen_row *to = screen.row + row;
    to->scale = scale * 0x1p-8f;
    to->per_residual = __fmul_ru(both, 1 + 0x1p-22f);
    to->per_norm = __fadd_ru(__fadd_ru(__fmul_ru(product_error, whole), missed), __fmul_ru(both, 0x1p-22f));
    screen.best[row] = 0;
    if (row == 0) *screen.finished = 0;
}

/* ---------------------------------------------------------------------------------------------------- the screen */

/* D (16 x 8) += A (16 x 32) B (32 x 8), int8 in, int32 accumulated. */
static __device__ __forceinline__ void mma_int8(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

struct logit_bounds {
    float lower, upper;
};

static __device__ __forceinline__ logit_bounds bounds_of(int high, int low, const cuda_head_output &o,
                                                         const cuda_screen_row &row) {
    /* Not the bound of anything finite; the product of the norms is above every partial sum of the logit. */
    if (!(o.norm * row.per_residual < 1e37f)) return {-CUDART_INF_F, CUDART_INF_F};
    float a = o.scale * (__ll2float_rn((long long)high * 256 + low) * row.scale);
    float error =
        __fmaf_ru(o.residual, row.per_residual, __fmaf_ru(o.norm, row.per_norm, 0x1p-100f)); /* 2^-100: underflow */
    return {__fsub_rd(a, error), __fadd_ru(a, error)};
}

/* Of the outputs of a tile, whose first is token `first`, those that the row may choose. */
static __device__ __forceinline__ uint32_t allowed_of_tile(const uint32_t *allowed, int first) {
    if (!allowed) return 0xffffffffu;
    uint32_t low = __ldcg(allowed + first / 32), high = first % 32 > 32 - TILE ? __ldcg(allowed + first / 32 + 1) : 0;
    return __funnelshift_r(low, high, first % 32);
}

static __device__ __forceinline__ uint4 load_parts(const uint4 *p) { /* through L1, where they stay */
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

/* A warp has DEPTH steps of weights on their way, the next tile's first ones at its end, and loads PARTS steps of the
 * rows together. */
template <int COLUMNS, int PARTS>
static __global__ __launch_bounds__(THREADS, BLOCKS_PER_MULTIPROCESSOR) void screen_kernel(
    const __grid_constant__ cuda_head_codes codes, const __grid_constant__ cuda_screen screen,
    const __grid_constant__ cuda_excluded excluded, int rows) {
    __shared__ float lower_of[WARPS][COLUMNS][32];  /* largest lower bound of row 4 c + t that a lane has met */
    __shared__ int own[COLUMNS * ROWS_PER_COLUMNS]; /* what each row excludes for itself ... */
    __shared__ const uint32_t *allowed[COLUMNS * ROWS_PER_COLUMNS]; /* ... and what it may choose */
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int tiles = (codes.out + TILE - 1) / TILE, tile = blockIdx.x * WARPS + warp, stride = gridDim.x * WARPS;
    const uint4 *w = reinterpret_cast<const uint4 *>(codes.codes) + (size_t)tile * codes.steps * TILE_LOADS + lane;
    uint4 a[DEPTH][2];
#pragma unroll
    for (int u = 0; u < DEPTH; u++) {
        if (tile >= tiles) break;
        a[u][0] = load_weights(w + u * TILE_LOADS);
        a[u][1] = load_weights(w + u * TILE_LOADS + 32);
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) lower_of[warp][c][lane] = -CUDART_INF_F;
    wait_for_predecessor();
    if (threadIdx.x < COLUMNS * ROWS_PER_COLUMNS) {
        bool known = excluded.row && (int)threadIdx.x < rows;
        own[threadIdx.x] = known ? excluded.row[threadIdx.x].excluded - 1 - excluded.first : -1;
        allowed[threadIdx.x] = known ? excluded.row[threadIdx.x].allowed : nullptr;
    }
    __syncthreads();
    w += DEPTH * TILE_LOADS;
    for (; tile < tiles; tile += stride) {
        bool more = tile + stride < tiles;
        if (!more) release_successor();
        int o = tile * TILE + g;
        cuda_head_output output[2] = {codes.outputs[o], codes.outputs[o + 8]};
        int acc[COLUMNS][4] = {};
        const uint4 *x = reinterpret_cast<const uint4 *>(screen.x) + lane;
        for (int left = codes.steps; left > 0; left -= DEPTH) {
            if (left == DEPTH) w += (size_t)(stride - 1) * codes.steps * TILE_LOADS; /* on to the next tile */
            bool request = left > DEPTH || more;
#pragma unroll
            for (int first = 0; first < DEPTH; first += PARTS) {
                uint4 b[PARTS][COLUMNS];
#pragma unroll
                for (int u = 0; u < PARTS; u++) {
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) b[u][c] = load_parts(x + ((first + u) * MOST_COLUMNS + c) * 32);
                }
#pragma unroll
                for (int u = 0; u < PARTS; u++) {
                    uint4(&wu)[2] = a[first + u];
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) {
                        mma_int8(acc[c], wu[0].x, wu[1].x, wu[0].y, wu[1].y, b[u][c].x, b[u][c].y);
                        mma_int8(acc[c], wu[0].z, wu[1].z, wu[0].w, wu[1].w, b[u][c].z, b[u][c].w);
                    }
                    if (!request) continue;
                    wu[0] = load_weights(w + (first + u) * TILE_LOADS);
                    wu[1] = load_weights(w + (first + u) * TILE_LOADS + 32);
                }
            }
            w += DEPTH * TILE_LOADS;
            x += DEPTH * MOST_COLUMNS * 32;
        }
        uint32_t may[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            may[c] = allowed_of_tile(allowed[c * ROWS_PER_COLUMNS + t], excluded.first + tile * TILE);
#pragma unroll
        for (int half = 0; half < 2; half++, o += 8) {
            bool wanted = o < codes.out;
            for (int e = 0; e < excluded.n; e++) wanted &= o != excluded.id[e];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                int row = c * ROWS_PER_COLUMNS + t;
                if (row >= rows) continue;
                logit_bounds bounds = {-CUDART_INF_F, -CUDART_INF_F};
                if (wanted && o != own[row] && may[c] >> (g + 8 * half) & 1)
                    bounds = bounds_of(acc[c][2 * half], acc[c][2 * half + 1], output[half], screen.row[row]);
                lower_of[warp][c][lane] = fmaxf(lower_of[warp][c][lane], bounds.lower);
                __stcg(screen.upper + ((size_t)tile * rows + row) * TILE + g + 8 * half, bounds.upper);
            }
        }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        float lower = lower_of[warp][c][lane];
#pragma unroll
        for (int s = 4; s < 32; s <<= 1) lower = fmaxf(lower, __shfl_xor_sync(0xffffffffu, lower, s));
        lower_of[warp][c][lane] = lower;
    }
    __syncthreads();
    int row = threadIdx.x;
    if (row >= rows) return;
    float lower = -CUDART_INF_F;
    for (int v = 0; v < WARPS; v++) lower = fmaxf(lower, lower_of[v][row / ROWS_PER_COLUMNS][row % ROWS_PER_COLUMNS]);
    screen.lower[row * gridDim.x + blockIdx.x] = lower;
}

void cuda_greedy_choice(const cuda_launch *l, const cuda_matrix *head, const cuda_head_codes *codes,
                        const cuda_screen *screen, const cuda_excluded *excluded, const cuda_bf16 *x, int rows,
                        float cap, int32_t *choice) {
    int tiles = cuda_head_tiles(codes->out), most = l->multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    dim3 blocks(ceil_div(tiles, WARPS) < most ? ceil_div(tiles, WARPS) : most), threads(THREADS);
    cuda_profile_part(l, "head", 0, 0);
    launch_kernel(l, quantise_rows_kernel, dim3(rows), dim3(ROW_THREADS), 0, x, head->in, head->ld, codes->steps,
                  cuda_product_error(head->in), *screen);
    double bytes = (double)tiles * TILE * (codes->steps * STEP + sizeof(cuda_head_output));
    cuda_profile_part(l, "head", bytes, 4.0 * head->out * head->in * rows);
    if (rows <= 4)
        launch_kernel(l, screen_kernel<1, 4>, blocks, threads, 0, *codes, *screen, *excluded, rows);
    else if (rows <= 8)
        launch_kernel(l, screen_kernel<2, 4>, blocks, threads, 0, *codes, *screen, *excluded, rows);
    else if (rows <= 16)
        launch_kernel(l, screen_kernel<4, 2>, blocks, threads, 0, *codes, *screen, *excluded, rows);
    else
        launch_kernel(l, screen_kernel<5, 2>, blocks, threads, 0, *codes, *screen, *excluded, rows);
    cuda_choose(l, head, screen, (int)blocks.x, x, rows, cap, choice);
}
