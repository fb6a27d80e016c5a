/* What the kernels of attention share: how keys are cut into tiles and partitions, what a row sees of them, where
 * partial results lie, and the moves of tiles between global memory, shared memory and registers.
 *
 * Keys are walked in tiles of CUDA_ATTENTION_TILE absolute positions. Decode rows are cut into partitions whose edges
 * are fixed positions and which are merged in ascending order; a tile that holds nothing for a row leaves its state as
 * it is, exactly. So a row's result depends neither on the rows beside it nor on which block computes a partition.
 *
 * What a query at position t sees (backend.h): its layer's causal / sliding range; of the evicted part [sink, E)
 * nothing or, under `restored`, the keys and values that cuda_restore_rows has decoded from the latents; the rest
 * exactly.
 *
 * K = V layers keep V alone and K = RoPE(k_norm * V). Dimensions that RoPE turns are derived per tile; for the others
 * k_norm is folded into the query once, and the tile of values serves as keys too.
 *
 * K/V in 8 bits are multiplied as the codes that they are, which bf16 holds exactly: the scale of a key multiplies its
 * score, that of a value its probability. K/V in 4 bits become bf16 on their way into shared memory, and are K/V in
 * bf16 from there on. */
#ifndef KAKEYA_BACKEND_CUDA_ATTENTION_CUH
#define KAKEYA_BACKEND_CUDA_ATTENTION_CUH

#include <limits.h>

#include "backend/cuda/kv_codes.cuh"
#include "backend/cuda/kv_q4.cuh"

enum { QUERIES = 16, KEYS = CUDA_ATTENTION_TILE, PAD = 8 };
/* Partitions of full-attention layers: fine where contexts are short, coarse where partial results would weigh. */
enum { FINE_KEYS = 128, FINE_END = 4096, COARSE_KEYS = 256 };

/* Merges the partitions of `rows` rows (attention_merge.cu). */
void cuda_merge_partitions(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a, int rows);

/* The partitions of decode rows by blocks that stay (attention_runs.cu). False: that kernel does not serve this case.
 */
bool cuda_attend_runs(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a);
/* Segments that one launch of it has room for; of K = V layers as many as the two below. */
int cuda_attend_runs_segments(const cuda_attention *a);
cudaError_t cuda_attend_runs_prepare(int head_dim);
/* The same of K = V layers with head dimension 512 on sm_90a (attention_wide.cu); in 8 bits for many queries. */
bool cuda_attend_wide(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a);
cudaError_t cuda_attend_wide_prepare(int head_dim);
/* The same where values are kept in 8 bits, on sm_90 (attention_codes.cu). */
bool cuda_attend_codes(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *a);
cudaError_t cuda_attend_codes_prepare(int head_dim);
/* One row by clusters of thread blocks (attention_row.cu). */
cudaError_t cuda_attend_row_prepare(int head_dim);

static __device__ __forceinline__ void copy_async(void *shared, const void *global, bool wanted) {
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    int bytes = wanted ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes));
}

static __device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const bf16 *shared) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

static __device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const bf16 *shared) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

/* What a block needs to know of the step and the layer, loaded once. */
struct attend_context {
    int position, rows, first_row, prompt, frontier, sink, window, draft_from;
    int restored_begin; /* position that would lie in row 0 of the restore buffers */
    int partitions;     /* of each row */
    size_t first_cell;  /* of the segment */
    cuda_layer_view view;
    cuda_draft_view draft;
};

/* Exact and restored keys of the same positions are partitions of their own: neither waits for the other. In sliding
 * layers, where few tiles hold both, all restored ones come first; in full-attention layers they alternate. */
static __host__ __device__ __forceinline__ int partition_sources(const cuda_attention &a) {
    return !a.final && a.restored_k && !a.sliding_window ? 2 : 1;
}

/* Where a segment's partial results lie. In full-attention layers every row has the partitions that it needs; elsewhere
 * all rows have the same number. */
struct cells_of {
    int partitions;
    size_t first;
};

static __device__ __forceinline__ cells_of find_cells(const cuda_step *step, const cuda_attention &a) {
    if (a.sliding_window || a.drafter || a.final)
        return {a.partitions, (size_t)__ldcg(&step->first_row) * a.heads * a.partitions};
    int sources = partition_sources(a);
    return {sources * __ldcg(&step->partitions), (size_t)sources * __ldcg(&step->first_partition) * a.heads};
}

static __device__ __forceinline__ attend_context load_context(const cuda_step *step, const cuda_attention &a) {
    attend_context c = {};
    c.position = __ldcg(&step->position);
    c.rows = __ldcg(&step->rows);
    c.first_row = __ldcg(&step->first_row);
    c.prompt = __ldcg(&step->prompt);
    c.frontier = __ldcg(&step->frontier);
    c.sink = __ldcg(&step->sink);
    c.window = __ldcg(&step->window);
    c.draft_from = __ldcg(&step->draft_from);
    c.restored_begin =
        __ldcg(&step->restored_begin[a.sliding_window == 0]) - __ldcg(&step->restored_first[a.sliding_window == 0]);
    cells_of cells = find_cells(step, a);
    c.partitions = cells.partitions;
    c.first_cell = cells.first;
    if (c.rows == 0) return c;
    if (a.drafter)
        c.draft = step->cache->draft[a.layer];
    else
        c.view = step->cache->layer[a.layer];
    return c;
}

/* Positions that one query sees: [begin, end), of which [sink, evicted) is evicted. */
struct visible_range {
    int begin, end, sink, evicted;
};

/* Of a decode row at position t. bounded: [sink, t - window] is evicted. */
static __device__ __forceinline__ visible_range visible_of_row(int t, int sliding_window, bool bounded, int sink,
                                                               int window) {
    visible_range r = {sliding_window ? max(t - sliding_window + 1, 0) : 0, t + 1, 0, 0};
    if (bounded) {
        r.sink = sink;
        r.evicted = t - window + 1;
        if (r.evicted <= r.sink) r.evicted = 0;
    }
    return r;
}

static __device__ __forceinline__ visible_range visible(const attend_context &step, const cuda_attention &a,
                                                        int token) {
    int t = step.position + token;
    if (!a.drafter) {
        visible_range r = visible_of_row(t, a.sliding_window, step.view.bounded, step.sink, step.window);
        if (step.view.bounded && step.prompt) r.evicted = step.frontier <= r.sink ? 0 : step.frontier;
        return r;
    }
    visible_range r = {max(step.position - step.draft.window, step.draft_from), t + 1, 0, 0};
    if (a.sliding_window) r.begin = max(r.begin, t - a.sliding_window + 1);
    if (!a.causal) r.end = min(step.position + step.rows, a.sliding_window ? t + a.sliding_window : INT_MAX);
    r.begin = max(r.begin, 0);
    return r;
}

static __device__ __forceinline__ bool sees_exactly(const visible_range &r, int p) {
    return p >= r.begin && p < r.end && (p >= r.evicted || p < r.sink);
}

static __device__ __forceinline__ bool sees_restored(const visible_range &r, int p) {
    return p >= r.begin && p < r.end && p >= r.sink && p < r.evicted;
}

enum tile_source { TILE_EXACT, TILE_RESTORED, TILE_BOTH };

/* Key positions of a partition, and which of them; row 0 of the step decides where sliding partitions begin. */
static __device__ __forceinline__ tile_source partition_range(const cuda_attention &a, const visible_range &first,
                                                              int sink, int index, int *begin, int *end) {
    tile_source source = TILE_BOTH;
    if (a.sliding_window || a.drafter) {
        int tile = first.begin / KEYS + index;
        if (a.restored_partitions) {
            source = index < a.restored_partitions ? TILE_RESTORED : TILE_EXACT;
            if (source == TILE_RESTORED) {
                tile = max(first.begin, sink) / KEYS + index;
            } else { /* visible tiles of the sink, then those from the first exact position on */
                int oldest = first.begin / KEYS, recent = max(first.evicted / KEYS, oldest);
                int of_sink = max(min((sink + KEYS - 1) / KEYS, recent) - oldest, 0);
                index -= a.restored_partitions;
                tile = index < of_sink ? oldest + index : recent + index - of_sink;
            }
        }
        *begin = tile * KEYS;
        *end = *begin + KEYS;
        return source;
    }
    if (partition_sources(a) == 2) {
        source = index % 2 ? TILE_RESTORED : TILE_EXACT;
        index /= 2;
    }
    if (index < FINE_END / FINE_KEYS) {
        *begin = index * FINE_KEYS;
        *end = *begin + FINE_KEYS;
    } else {
        *begin = FINE_END + (index - FINE_END / FINE_KEYS) * COARSE_KEYS;
        *end = *begin + COARSE_KEYS;
    }
    return source;
}

static __host__ __device__ __forceinline__ int turned_columns(int pairs) { return (pairs + 15) / 16 * 16; }

/* Where the columns [16 c, 16 c + 16) of the keys lie: in the key tile at the returned column, or (-1) in the values.
 */
template <int D> static __device__ __forceinline__ int key_column(int c, int turned) {
    int at = c * 16, half = D / 2;
    if (at < turned) return at;
    if (at >= half && at < half + turned) return turned + at - half;
    return -1;
}

/* ------------------------------------------------------------------------------------- the same in every kernel */

/* Elements c and c + head_dim / 2 of a key from values that k_norm has scaled. The angle of its position is the sum of
 * two: of its tile's first position, and of the position inside the tile. */
static __device__ __forceinline__ float2 turn_key(float low, float high, float2 tile, float2 inside) {
    float cosine = __fmaf_rn(tile.x, inside.x, -__fmul_rn(tile.y, inside.y)),
          sine = __fmaf_rn(tile.y, inside.x, __fmul_rn(tile.x, inside.y));
    return make_float2(__fmaf_rn(low, cosine, -__fmul_rn(high, sine)), __fmaf_rn(high, cosine, __fmul_rn(low, sine)));
}

static __device__ __forceinline__ float2 turn_of_tile(int base, float inverse_frequency) {
    float2 turn;
    sincosf((float)base * inverse_frequency, &turn.y, &turn.x);
    return turn;
}

enum { QUERY_THREADS = 16, QUERY_KEYS = KEYS / QUERY_THREADS };

struct query_state {
    float top, sum, rescale;
};

/* One tile for one query: QUERY_THREADS neighbouring threads take its scores (score(key): -infinity where it sees
 * nothing) and write its probabilities to p; with codes times the scales of their values. */
template <class SCORE, class SCALE>
static __device__ __forceinline__ query_state soften(float before, float sum_before, const SCORE &score, bf16 *p,
                                                     bool codes, const SCALE &scale) {
    int part = threadIdx.x % QUERY_THREADS;
    float s[QUERY_KEYS], top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < QUERY_KEYS; i++) {
        s[i] = score(i * QUERY_THREADS + part);
        top = fmaxf(top, s[i]);
    }
#pragma unroll
    for (int o = QUERY_THREADS / 2; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    float now = fmaxf(before, top);
    float rescale = now == before ? 1.0f : expf(before - now);
#pragma unroll
    for (int i = 0; i < QUERY_KEYS; i++) {
        bf16 weight = __float2bfloat16_rn(s[i] == -INFINITY ? 0.0f : expf(s[i] - now));
        bf16 scaled = weight;
        if (codes && __bfloat162float(weight) != 0) /* else 0 times what is no number */
            scaled = __float2bfloat16_rn(__bfloat162float(weight) * scale(i * QUERY_THREADS + part));
        p[i * QUERY_THREADS + part] = scaled;
        sum += __bfloat162float(weight);
    }
#pragma unroll
    for (int o = QUERY_THREADS / 2; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    return {now, __fmaf_rn(sum_before, rescale, sum), rescale};
}

/* Eight neighbouring elements of a query, scaled by k_norm. */
static __device__ __forceinline__ uint4 scale_query(uint4 value, const float *k_norm) {
    bf16 *x = reinterpret_cast<bf16 *>(&value);
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = __float2bfloat16_rn(__bfloat162float(x[j]) * k_norm[j]);
    return value;
}

/* ------------------------------------------------------------------------------------ a tile of keys in shared memory
 */

enum { ATTEND_THREADS = 256, ATTEND_WARPS = ATTEND_THREADS / 32 };

template <int D, bool SPLIT> struct attend_memory {
    bf16 v[KEYS][D + PAD];
    bf16 k[KEYS][(SPLIT ? D / 4 : D) + PAD]; /* SPLIT: the turned dimensions only */
    bf16 q[QUERIES][D + PAD];
    float scores[QUERIES][KEYS + 4];
    bf16 p[QUERIES][KEYS + PAD];
    float top[QUERIES], sum[QUERIES], rescale[QUERIES];
    float2 base_turn[D / 2];
    float scale_k[KEYS], scale_v[KEYS]; /* of codes */
};

template <int D> struct output_tiles {
    static const int COUNT = (D / 8 + ATTEND_WARPS - 1) / ATTEND_WARPS; /* n-tiles of 8 dimensions per warp */
};

/* Scores of 16 queries with eight keys of a tile; two accumulators shorten the chain of dependent products. Rows of q
 * and v are D + PAD apart, those of k, the turned dimensions with SPLIT, KEY_COLUMNS<D, SPLIT>. */
template <int D, bool SPLIT> constexpr int KEY_COLUMNS = (SPLIT ? D / 4 : D) + PAD;

template <int D, bool SPLIT>
static __device__ __forceinline__ void score_keys(const bf16 *v, const bf16 *k_tile, const bf16 *q_tile,
                                                  float (*scores)[KEYS + 4], int eight, int turned) {
    int lane = threadIdx.x & 31;
    float s[2][4] = {};
    int key = eight * 8 + (lane & 7), offset = (lane >> 3 & 1) * 8, upper = lane >> 4;
    int query = (lane & 7) + (lane >> 3 & 1) * 8, query_offset = (lane >> 4) * 8;
#pragma unroll 4
    for (int c = 0; c < D / 16; c += 2) {
        uint32_t q[4], k[4];
        int mine = min(c + upper, D / 16 - 1), at = SPLIT ? key_column<D>(mine, turned) : mine * 16;
        load_matrices(k, SPLIT && at < 0 ? v + key * (D + PAD) + mine * 16 + offset
                                         : k_tile + key * KEY_COLUMNS<D, SPLIT> + at + offset);
        load_matrices(q, q_tile + query * (D + PAD) + c * 16 + query_offset);
        mma_bf16(s[0], q[0], q[1], q[2], q[3], k[0], k[1]);
        if (c + 1 >= D / 16) continue;
        load_matrices(q, q_tile + query * (D + PAD) + c * 16 + 16 + query_offset);
        mma_bf16(s[1], q[0], q[1], q[2], q[3], k[2], k[3]);
    }
    int g = lane >> 2, column = eight * 8 + 2 * (lane & 3);
    *reinterpret_cast<float2 *>(&scores[g][column]) = make_float2(s[0][0] + s[1][0], s[0][1] + s[1][1]);
    *reinterpret_cast<float2 *>(&scores[g + 8][column]) = make_float2(s[0][2] + s[1][2], s[0][3] + s[1][3]);
}

/* Values of a tile, weighted by the probabilities of 16 queries, for N tiles of 8 dimensions from `first` on. */
template <int D, int N>
static __device__ __forceinline__ void add_tile(float (&o)[N][4], const bf16 *v_tile, const bf16 *p, float low,
                                                float high, int first) {
    int lane = threadIdx.x & 31;
    int query = (lane & 7) + (lane >> 3 & 1) * 8, query_offset = (lane >> 4) * 8;
#pragma unroll
    for (int n = 0; n < N; n++) {
        o[n][0] *= low;
        o[n][1] *= low;
        o[n][2] *= high;
        o[n][3] *= high;
    }
#pragma unroll
    for (int k = 0; k < KEYS; k += 32) {
        uint32_t p0[4], p1[4];
        load_matrices(p0, p + query * (KEYS + PAD) + k + query_offset);
        load_matrices(p1, p + query * (KEYS + PAD) + k + 16 + query_offset);
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (first + n >= D / 8) break;
            uint32_t v[4];
            load_matrices_transposed(v, v_tile + (k + lane) * (D + PAD) + (first + n) * 8);
            mma_bf16(o[n], p0[0], p0[1], p0[2], p0[3], v[0], v[1]);
            mma_bf16(o[n], p1[0], p1[1], p1[2], p1[3], v[2], v[3]);
        }
    }
}

#endif
