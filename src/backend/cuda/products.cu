/* Matrix products of few rows: y[r][o] = sum_k x[r][k] w[o][k], bound by reading w once.
 *
 * A warp computes 16 outputs with mma.m16n8k16: the weights are operand A, loaded from global memory straight into
 * registers, 16 bytes per thread; the rows of x are operand B. The instruction's k index is only a label, so thread t
 * of a quad takes 8 neighbouring k of a step of 32 and feeds them to two instructions; x is read by the same rule. The
 * steps of one output are dealt to `split` warps (a function of k alone), each in ascending order, and their sums are
 * added in the order of the warps. A column of an mma depends on no other column, so a row's result is the same bits
 * whatever rows are computed with it. More rows than a warp has accumulators for are cut into tiles of columns, which
 * are items of their own: neighbouring blocks read the same weights, which come from memory once and from L2 then.
 *
 * Blocks stay and take one item of work after the other (8 / split tiles of 16 outputs each). The weights of the next
 * item are requested while the current one is finished, and those of the first before the predecessor kernel has ended
 * (programmatic dependent launch): the memory is never idle while norms and other short kernels run. */
#include <float.h>
#include <math_constants.h>

#include "backend/cuda/route.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, TILE = 16, BLOCKS_PER_MULTIPROCESSOR = 2 };

static __host__ __device__ int split_of(int steps) { return steps >= 64 ? 8 : steps >= 32 ? 4 : steps >= 16 ? 2 : 1; }

/* What one warp has to do for one item: its slice of the steps of 16 outputs. */
template <int COLUMNS> struct warp_item {
    const bf16 *wa, *wb;    /* this lane's weights: outputs g and g + 8 of the tile */
    const bf16 *x[COLUMNS]; /* this lane's row of x; NULL: absent */
    int steps, slice, split;
};

template <int COLUMNS> struct partial_sums { float value[WARPS][COLUMNS * 4][32]; };

/* Sum of the warps of tile `group` for accumulator register `reg` of lane `lane`. */
template <int COLUMNS>
static __device__ __forceinline__ float collect(const partial_sums<COLUMNS> &sums, int group, int split, int reg,
                                                int lane) {
    float sum = 0;
    for (int w = 0; w < split; w++) sum += sums.value[group * split + w][reg][lane];
    return sum;
}

/* Through L1, where the rows stay while the weights pass it by. */
static __device__ __forceinline__ uint4 load_row(const bf16 *x, int step) {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (x) {
        asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(x + (size_t)step * CUDA_K_STEP));
    }
    return v;
}

template <int COLUMNS, int DEPTH>
static __device__ __forceinline__ void request(uint4 (&a)[DEPTH][2], const warp_item<COLUMNS> &item) {
#pragma unroll
    for (int u = 0; u < DEPTH; u++) {
        int step = item.slice + u * item.split;
        if (step >= item.steps) break;
        a[u][0] = load_weights(item.wa + (size_t)step * CUDA_K_STEP);
        a[u][1] = load_weights(item.wb + (size_t)step * CUDA_K_STEP);
    }
}

/* WORK gives the items first, first + stride, ...: early(index): can be resolved before the predecessor has ended;
 * prepare(): once after that, items() afterwards; resolve(index, item); finish(index, sums). */
template <int COLUMNS, int DEPTH, class WORK>
static __device__ __forceinline__ void run_items(WORK &work, int first, int stride) {
    __shared__ partial_sums<COLUMNS> sums[2];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, index = first, parity = 0;
    warp_item<COLUMNS> item, next;
    uint4 a[DEPTH][2];
    bool early = work.early(index);
    if (early) {
        work.resolve(index, item);
        request<COLUMNS, DEPTH>(a, item);
    }
    wait_for_predecessor();
    work.prepare();
    int items = work.items();
    if (index >= items) return;
    if (!early) {
        work.resolve(index, item);
        request<COLUMNS, DEPTH>(a, item);
    }
    for (;;) {
        int next_index = index + stride;
        bool more = next_index < items;
        if (more)
            work.resolve(next_index, next);
        else
            release_successor();
        float acc[COLUMNS][4] = {};
        for (int base = item.slice;;) {
            int following = base + DEPTH * item.split;
            bool last = following >= item.steps;
            uint4 b[DEPTH][COLUMNS];
#pragma unroll
            for (int u = 0; u < DEPTH; u++) {
                int step = base + u * item.split;
                if (step >= item.steps) break;
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) b[u][c] = load_row(item.x[c], step);
            }
#pragma unroll
            for (int u = 0; u < DEPTH; u++) {
                if (base + u * item.split < item.steps) {
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) {
                        mma_bf16(acc[c], a[u][0].x, a[u][1].x, a[u][0].y, a[u][1].y, b[u][c].x, b[u][c].y);
                        mma_bf16(acc[c], a[u][0].z, a[u][1].z, a[u][0].w, a[u][1].w, b[u][c].z, b[u][c].w);
                    }
                }
                if (last && !more) continue;
                const bf16 *wa = last ? next.wa : item.wa, *wb = last ? next.wb : item.wb;
                int step = last ? next.slice + u * next.split : following + u * item.split;
                if (step >= (last ? next.steps : item.steps)) continue;
                a[u][0] = load_weights(wa + (size_t)step * CUDA_K_STEP);
                a[u][1] = load_weights(wb + (size_t)step * CUDA_K_STEP);
            }
            if (last) break;
            base = following;
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
            for (int i = 0; i < 4; i++) sums[parity].value[warp][c * 4 + i][lane] = acc[c][i];
        }
        __syncthreads();
        work.finish(index, sums[parity]);
        if (!more) return;
        item = next;
        index = next_index;
        parity ^= 1; /* the next item's sums go elsewhere: one barrier an item is enough */
    }
}

/* Points an item at a tile of 16 outputs: rows o + g of the first half, o + g (+ 8) of the second. */
template <int COLUMNS>
static __device__ __forceinline__ void place(warp_item<COLUMNS> &item, const cuda_bf16 *first, const cuda_bf16 *second,
                                             int o, int second_o, int outs, int steps) {
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    size_t ldw = (size_t)steps * CUDA_K_STEP;
    item.steps = steps;
    item.split = split_of(steps);
    item.slice = warp % item.split;
    item.wa = as_bf16(first) + (size_t)min(o + g, outs - 1) * ldw + 8 * t;
    item.wb = as_bf16(second) + (size_t)min(second_o + g, outs - 1) * ldw + 8 * t;
}

static __device__ __forceinline__ int group_of_warp(int steps) { return (int)(threadIdx.x >> 5) / split_of(steps); }

/* This lane's rows from `first` on among `rows` rows of x. */
template <int COLUMNS>
static __device__ __forceinline__ void place_rows(warp_item<COLUMNS> &item, const cuda_bf16 *x, int ldx, int first,
                                                  int rows) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        int row = first + c * 8 + g;
        item.x[c] = row < rows ? as_bf16(x) + (size_t)row * ldx + 8 * t : nullptr;
    }
}

static __device__ __forceinline__ float soft_cap(float y, float cap) { return cap > 0 ? cap * tanhf(y / cap) : y; }

/* Of `index` an item and its tile of columns: neighbours are tiles of one item. */
struct column_item {
    int item, tile;
};

static __device__ __forceinline__ column_item split_index(int index, int column_tiles) {
    if (column_tiles == 1) return {index, 0}; /* dividing takes as long as a small item */
    return {index / column_tiles, index % column_tiles};
}

/* -------------------------------------------------------------------------------------------- plain products */

struct product_list {
    cuda_product product[CUDA_MAX_PRODUCTS];
    int first_tile[CUDA_MAX_PRODUCTS + 1];
    int n;
};

template <int COLUMNS> struct plain_work {
    const product_list &list;
    const cuda_bf16 *x;
    int steps, ldx, rows;
    float cap;
    int column_tiles; /* of all rows: neighbouring items */

    __device__ __forceinline__ int per_item() const { return WARPS / split_of(steps); }
    __device__ __forceinline__ bool early(int) const { return true; }
    __device__ __forceinline__ void prepare() {}
    __device__ __forceinline__ int items() const {
        return (list.first_tile[list.n] + per_item() - 1) / per_item() * column_tiles;
    }
    __device__ __forceinline__ int product_of(int tile) const {
        int p = 0;
        while (p + 1 < list.n && tile >= list.first_tile[p + 1]) p++;
        return p;
    }
    __device__ __forceinline__ void resolve(int index, warp_item<COLUMNS> &item) const {
        column_item at = split_index(index, column_tiles);
        int tile = at.item * per_item() + group_of_warp(steps), p = product_of(tile),
            o = (tile - list.first_tile[p]) * TILE;
        place(item, list.product[p].w, list.product[p].w, o, o + 8, list.product[p].out, steps);
        place_rows(item, x, ldx, at.tile * COLUMNS * 8, rows);
    }
    __device__ __forceinline__ void finish(int index, const partial_sums<COLUMNS> &sums) const {
        const int per_tile = COLUMNS * 128;
        column_item of = split_index(index, column_tiles);
        int split = split_of(steps), first_tile = of.item * per_item(), first = of.tile * COLUMNS * 8;
        for (int i = threadIdx.x; i < per_item() * per_tile; i += THREADS) {
            int at = i / per_tile, reg = i % per_tile / 32, from = i & 31, tile = first_tile + at, p = product_of(tile);
            int o = (tile - list.first_tile[p]) * TILE + (from >> 2) + (reg & 2) * 4;
            int row = first + reg / 4 * 8 + (from & 3) * 2 + (reg & 1);
            if (o >= list.product[p].out || row >= rows) continue;
            float y = collect(sums, at, split, reg, from);
            list.product[p].y[(size_t)row * list.product[p].ldy + o] = soft_cap(y, cap);
        }
    }
};

template <int COLUMNS, int DEPTH>
static __global__
__launch_bounds__(THREADS, BLOCKS_PER_MULTIPROCESSOR) void products_kernel(const __grid_constant__ product_list list,
                                                                           int steps, const cuda_bf16 *x, int ldx,
                                                                           int rows, float cap, int column_tiles) {
    plain_work<COLUMNS> work = {list, x, steps, ldx, rows, cap, column_tiles};
    run_items<COLUMNS, DEPTH>(work, blockIdx.x, gridDim.x);
}

static dim3 resident_blocks(const cuda_launch *l, int items) {
    int most = l->multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    return dim3(items < most ? items : most);
}

/* Rows in tiles of up to MOST_COLUMNS columns of 8, all of about the same size. */
enum { MOST_COLUMNS = 4 };
struct column_cut {
    int columns, tiles;
};

static column_cut cut_columns(int rows) {
    int columns = ceil_div(rows, 8), tiles = ceil_div(columns, MOST_COLUMNS);
    return {ceil_div(columns, tiles), tiles};
}

void cuda_products(const cuda_launch *l, const cuda_product *products, int n, int in, const cuda_bf16 *x, int ldx,
                   int rows, float cap) {
    product_list list;
    int steps = ceil_div(in, CUDA_K_STEP), per_item = WARPS / split_of(steps);
    list.n = n;
    list.first_tile[0] = 0;
    for (int i = 0; i < n; i++) {
        list.product[i] = products[i];
        list.first_tile[i + 1] = list.first_tile[i] + ceil_div(products[i].out, TILE);
    }
    column_cut cut = cut_columns(rows);
    dim3 blocks = resident_blocks(l, ceil_div(list.first_tile[n], per_item) * cut.tiles);
    if (cut.columns == 1)
        launch_kernel(l, products_kernel<1, 6>, blocks, dim3(THREADS), 0, list, steps, x, ldx, rows, cap, cut.tiles);
    else if (cut.columns == 2)
        launch_kernel(l, products_kernel<2, 4>, blocks, dim3(THREADS), 0, list, steps, x, ldx, rows, cap, cut.tiles);
    else if (cut.columns == 3)
        launch_kernel(l, products_kernel<3, 3>, blocks, dim3(THREADS), 0, list, steps, x, ldx, rows, cap, cut.tiles);
    else
        launch_kernel(l, products_kernel<4, 3>, blocks, dim3(THREADS), 0, list, steps, x, ldx, rows, cap, cut.tiles);
}

/* -------------------------------------------------------------------------------------------------- feed forward
 * gate/up: a tile holds 8 gate rows (registers 0, 1) and the 8 up rows of the same outputs (registers 2, 3), so that
 * the activation is applied where the sums are made. The dense MLP's items come first: they do not wait for the router.
 * In passes of more than CUDA_DECODE_ROWS rows an expert's rows come in units of CUDA_EXPERT_ROWS.
 */

static __device__ __forceinline__ void store_bf16(cuda_bf16 *p, float v) { *as_bf16(p) = __float2bfloat16_rn(v); }

template <int COLUMNS, bool GATE_UP, class TABLE> struct ffn_work {
    const cuda_feed_forward &f;
    const cuda_route &route;
    TABLE &table;
    int dense_steps, dense_items, dense_tiles; /* items: of all tiles of columns */
    int expert_steps, expert_items;            /* per unit */
    int rows;

    __device__ __forceinline__ int tile_outputs() const { return GATE_UP ? 8 : TILE; }
    /* The down kernel's predecessor has waited for the route before it was released: all of its items are early. */
    __device__ __forceinline__ bool early(int index) {
        if (GATE_UP || !expert_items) return index < dense_items;
        read_route<THREADS>(table, route, rows);
        return index < items();
    }
    __device__ __forceinline__ void prepare() {
        if (GATE_UP && expert_items) read_route<THREADS>(table, route, rows);
    }
    __device__ __forceinline__ int items() const {
        return dense_items + (expert_items ? table.count * expert_items : 0);
    }
    __device__ __forceinline__ void resolve(int index, warp_item<COLUMNS> &item) const {
        if (index < dense_items) {
            column_item at = split_index(index, dense_tiles);
            int first = at.tile * COLUMNS * 8,
                o = (at.item * (WARPS / split_of(dense_steps)) + group_of_warp(dense_steps)) * tile_outputs();
            if (GATE_UP) {
                place(item, f.gate.data, f.up.data, o, o, f.gate.out, dense_steps);
                place_rows(item, f.x_dense, f.ldx, first, rows);
            } else {
                place(item, f.down.data, f.down.data, o, o + 8, f.down.out, dense_steps);
                place_rows(item, f.act, f.down.ld, first, rows);
            }
            return;
        }
        int at = (index - dense_items) / expert_items, tile = (index - dense_items) % expert_items;
        int o = (tile * (WARPS / split_of(expert_steps)) + group_of_warp(expert_steps)) * tile_outputs();
        int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, begin = table.begin[at], n = table.rows[at];
        size_t ldw = (size_t)expert_steps * CUDA_K_STEP;
        if (GATE_UP) {
            const cuda_bf16 *matrix =
                f.experts_gate_up.data + (size_t)table.active[at] * 2 * f.expert_intermediate * ldw;
            place(item, matrix, matrix + (size_t)f.expert_intermediate * ldw, o, o, f.expert_intermediate,
                  expert_steps);
        } else {
            const cuda_bf16 *matrix = f.experts_down.data + (size_t)table.active[at] * f.down.out * ldw;
            place(item, matrix, matrix, o, o + 8, f.down.out, expert_steps);
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            item.x[c] = nullptr;
            if (c * 8 + g >= n) continue;
            int slot = begin + c * 8 + g;
            item.x[c] = (GATE_UP ? as_bf16(f.x_experts) + (size_t)table.slot_row[slot] * f.ldx
                                 : as_bf16(f.act_experts) + (size_t)slot * f.experts_down.ld) +
                        8 * t;
        }
    }
    __device__ __forceinline__ void finish(int index, const partial_sums<COLUMNS> &sums) const {
        bool dense = index < dense_items;
        int steps = dense ? dense_steps : expert_steps, split = split_of(steps), per_item = WARPS / split;
        column_item of = dense ? split_index(index, dense_tiles) : column_item{};
        int at = dense ? 0 : (index - dense_items) / expert_items,
            tile = dense ? of.item : (index - dense_items) % expert_items;
        int first = dense ? of.tile * COLUMNS * 8 : table.begin[at], n = dense ? rows - first : table.rows[at];
        int outs = !GATE_UP ? f.down.out : dense ? f.gate.out : f.expert_intermediate;
        const int per_tile = COLUMNS * (GATE_UP ? 64 : 128);
        for (int i = threadIdx.x; i < per_item * per_tile; i += THREADS) {
            int group = i / per_tile, rest = i % per_tile, from = i & 31;
            if (GATE_UP) {
                int c = rest / 64, odd = rest / 32 & 1, row = c * 8 + (from & 3) * 2 + odd;
                int o = (tile * per_item + group) * 8 + (from >> 2);
                if (o >= outs || row >= n) continue;
                float gate = collect(sums, group, split, c * 4 + odd, from),
                      up = collect(sums, group, split, c * 4 + 2 + odd, from);
                cuda_bf16 *act = (dense ? f.act + (size_t)(first + row) * f.down.ld
                                        : f.act_experts + (size_t)(first + row) * f.experts_down.ld);
                store_bf16(act + o, (f.silu ? silu(gate) : gelu_tanh(gate)) * up);
            } else {
                int reg = rest / 32, row = reg / 4 * 8 + (from & 3) * 2 + (reg & 1);
                int o = (tile * per_item + group) * TILE + (from >> 2) + (reg & 2) * 4;
                if (o >= outs || row >= n) continue;
                float *y = dense ? f.y : f.y_experts;
                y[(size_t)(first + row) * outs + o] = collect(sums, group, split, reg, from);
            }
        }
    }
};

template <int COLUMNS, int DEPTH, bool GATE_UP, class TABLE>
static __global__ __launch_bounds__(THREADS, BLOCKS_PER_MULTIPROCESSOR) void ffn_kernel(
    const __grid_constant__ cuda_feed_forward f, const __grid_constant__ cuda_route route, int dense_items,
    int dense_tiles, int expert_items, int rows) {
    __shared__ TABLE table;
    int dense_steps = (GATE_UP ? f.gate.ld : f.down.ld) / CUDA_K_STEP;
    int expert_steps = GATE_UP ? dense_steps : f.experts_down.ld / CUDA_K_STEP;
    ffn_work<COLUMNS, GATE_UP, TABLE> work = {f,           route,        table,        dense_steps, dense_items,
                                              dense_tiles, expert_steps, expert_items, rows};
    run_items<COLUMNS, DEPTH>(work, blockIdx.x, gridDim.x);
}

template <bool GATE_UP>
static void run_ffn(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    cuda_route r = route ? *route : cuda_route{};
    int dense_steps = (GATE_UP ? f->gate.ld : f->down.ld) / CUDA_K_STEP, expert_steps = dense_steps;
    if (!GATE_UP) expert_steps = f->experts_down.ld / CUDA_K_STEP;
    int dense_outs = GATE_UP ? f->gate.out : f->down.out, expert_outs = GATE_UP ? f->expert_intermediate : f->down.out;
    int outputs = GATE_UP ? 8 : TILE, expert_items = 0, active = 0;
    bool routed = f->experts_gate_up.data, large = rows > CUDA_DECODE_ROWS;
    column_cut cut = cut_columns(rows);
    if (routed && large) cut = {CUDA_EXPERT_ROWS / 8, ceil_div(rows, CUDA_EXPERT_ROWS)};
    int dense_items = ceil_div(ceil_div(dense_outs, outputs), WARPS / split_of(dense_steps)) * cut.tiles;
    if (routed) {
        expert_items = ceil_div(ceil_div(expert_outs, outputs), WARPS / split_of(expert_steps));
        active = rows * r.rank < r.experts ? rows * r.rank : r.experts;
    }
    dim3 blocks = resident_blocks(l, dense_items + active * expert_items), threads(THREADS);
    if (routed && large)
        launch_kernel(l, ffn_kernel<CUDA_EXPERT_ROWS / 8, 4, GATE_UP, large_route_table>, blocks, threads, 0, *f, r,
                      dense_items, cut.tiles, expert_items, rows);
    else if (cut.columns == 1)
        launch_kernel(l, ffn_kernel<1, 6, GATE_UP, route_table>, blocks, threads, 0, *f, r, dense_items, cut.tiles,
                      expert_items, rows);
    else if (cut.columns == 2)
        launch_kernel(l, ffn_kernel<2, 4, GATE_UP, route_table>, blocks, threads, 0, *f, r, dense_items, cut.tiles,
                      expert_items, rows);
    else if (cut.columns == 3)
        launch_kernel(l, ffn_kernel<3, 3, GATE_UP, route_table>, blocks, threads, 0, *f, r, dense_items, cut.tiles,
                      expert_items, rows);
    else
        launch_kernel(l, ffn_kernel<4, 3, GATE_UP, route_table>, blocks, threads, 0, *f, r, dense_items, cut.tiles,
                      expert_items, rows);
}

void cuda_gate_up(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    run_ffn<true>(l, f, route, rows);
}

void cuda_down(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    run_ffn<false>(l, f, route, rows);
}

/* ------------------------------------------------------------------------------------------- the greedy choice
 * Behind the screen of head.cu: each block takes the outputs of its own tiles that some row may choose, sixteen at a
 * time, wherever they lie, and computes them for all rows. The steps and their order are those of the plain product, so
 * are the bits. */

/* What a row's largest logit must be at least for a logit to be equal or above it once both are capped, if the largest
 * is at least `lower`. The cap keeps the order, but rounding may make unequal logits equal: where tanh is flat
 * (beyond 3.9 its slope is below 1.7e-3), never when they are 1e-3 of the cap apart and the smaller one below 3.9:
 * those differ by 1.3e-6, rounding by 3e-7 of the cap. */
static __device__ __forceinline__ float least_chosen(float lower, float cap) {
    if (!(cap > 0)) return lower;
    if (lower < -4 * cap) return -CUDART_INF_F;
    return fminf(lower, 3.9f * cap) - 1e-3f * cap;
}

/* Ascends with the value and descends with the id: the largest is what argmax chooses. NaN is above all; 0: none. */
static __device__ __forceinline__ unsigned long long choice_key(float value, int id) {
    unsigned bits = __float_as_uint(value + 0.0f);
    unsigned ascending = value != value ? 0xffffffffu : bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
    return (unsigned long long)ascending << 32 | ~(unsigned)id;
}

static __device__ __forceinline__ int32_t chosen_id(unsigned long long key) {
    const unsigned infinity = 0xff800000u; /* and NaN above it; negative infinity is its complement */
    unsigned ascending = (unsigned)(key >> 32);
    return ascending >= infinity || ascending <= ~infinity ? -1 : (int32_t) ~(unsigned)key;
}

template <int COLUMNS> struct choose_work {
    const cuda_matrix &w;
    const unsigned short *list; /* outputs, counted through this block's tiles */
    int count, steps;
    const cuda_bf16 *x;
    int rows;
    float cap;
    unsigned long long best; /* of the row of this lane, among what this warp has finished */

    __device__ __forceinline__ int per_item() const { return WARPS / split_of(steps); }
    __device__ __forceinline__ bool early(int) const { return false; }
    __device__ __forceinline__ void prepare() {}
    __device__ __forceinline__ int items() const { return (count + TILE * per_item() - 1) / (TILE * per_item()); }
    __device__ __forceinline__ int output_of(int at) const {
        int local = list[min(at, count - 1)];
        return (local / CUDA_HEAD_TILE * gridDim.x + blockIdx.x) * CUDA_HEAD_TILE + local % CUDA_HEAD_TILE;
    }
    __device__ __forceinline__ void resolve(int index, warp_item<COLUMNS> &item) const {
        int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        int at = (index * per_item() + group_of_warp(steps)) * TILE + g;
        item.steps = steps;
        item.split = split_of(steps);
        item.slice = warp % item.split;
        item.wa = as_bf16(w.data) + (size_t)output_of(at) * w.ld + 8 * t;
        item.wb = as_bf16(w.data) + (size_t)output_of(at + 8) * w.ld + 8 * t;
        place_rows(item, x, w.ld, 0, rows);
    }
    __device__ __forceinline__ void finish(int index, const partial_sums<COLUMNS> &sums) {
        int row = threadIdx.x & 31, reg = row / 8 * 4 + (row & 1), from = row % 8 / 2;
        if (row >= rows) return;
        for (int i = threadIdx.x >> 5; i < TILE * per_item(); i += WARPS) {
            int at = index * TILE * per_item() + i;
            if (at >= count) return;
            float y = collect(sums, i / TILE, split_of(steps), reg + (i & 8) / 4, (i & 7) * 4 + from);
            best = max(best, choice_key(soft_cap(y, cap), output_of(at)));
        }
    }
};

enum { BOUND_REQUESTS = 4 }; /* of four bounds each, by one thread */

/* This thread's next bounds of `all` quarters of this block's tiles; the last one again behind the end. */
static __device__ __forceinline__ void request_bounds(float4 (&bound)[BOUND_REQUESTS], const cuda_screen &screen,
                                                      int per_tile, int all, int base) {
#pragma unroll
    for (int v = 0; v < BOUND_REQUESTS; v++) {
        int i = min(base + v * THREADS, all - 1);
        size_t tile = (size_t)(i / per_tile) * gridDim.x + blockIdx.x;
        bound[v] = __ldcg(reinterpret_cast<const float4 *>(screen.upper) + tile * per_tile + i % per_tile);
    }
}

template <int COLUMNS, int DEPTH>
static __global__ __launch_bounds__(THREADS, BLOCKS_PER_MULTIPROCESSOR) void choose_kernel(
    const __grid_constant__ cuda_matrix w, const __grid_constant__ cuda_screen screen, int screen_blocks,
    const cuda_bf16 *x, int rows, float cap, int32_t *choice) {
    extern __shared__ unsigned
        wanted[]; /* by tile of this block: its outputs that some row may choose; then the list */
    __shared__ float least[CUDA_DECODE_ROWS];
    __shared__ unsigned long long best_of[WARPS][32];
    __shared__ int count;
    __shared__ bool last;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, tiles = (w.out + CUDA_HEAD_TILE - 1) / CUDA_HEAD_TILE;
    int own = (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;
    unsigned short *list = reinterpret_cast<unsigned short *>(wanted + own);
    for (int j = threadIdx.x; j < own; j += THREADS) wanted[j] = 0;
    if (threadIdx.x == 0) count = 0;
    wait_for_predecessor();
    int per_tile = rows * (CUDA_HEAD_TILE / 4), all = own * per_tile;
    float4 bound[BOUND_REQUESTS];
    request_bounds(bound, screen, per_tile, all, threadIdx.x);
    for (int row = warp; row < rows; row += WARPS) {
        float lower = -CUDART_INF_F;
        for (int b = lane; b < screen_blocks; b += 32)
            lower = fmaxf(lower, __ldcg(screen.lower + row * screen_blocks + b));
#pragma unroll
        for (int s = 16; s > 0; s >>= 1) lower = fmaxf(lower, __shfl_xor_sync(0xffffffffu, lower, s));
        if (lane == 0) least[row] = fmaxf(least_chosen(lower, cap), -FLT_MAX); /* what is excluded stays out */
    }
    __syncthreads();
    for (int base = threadIdx.x; base < all; base += BOUND_REQUESTS * THREADS) {
#pragma unroll
        for (int v = 0; v < BOUND_REQUESTS; v++) {
            int i = min(base + v * THREADS, all - 1), at = i % per_tile;
            float enough = least[at / 4];
            unsigned bits = (bound[v].x >= enough) | (bound[v].y >= enough) << 1 | (bound[v].z >= enough) << 2 |
                            (bound[v].w >= enough) << 3;
            if (bits) atomicOr(&wanted[i / per_tile], bits << at % 4 * 4);
        }
        int next = base + BOUND_REQUESTS * THREADS;
        if (next < all) request_bounds(bound, screen, per_tile, all, next);
    }
    __syncthreads();
    for (int j = threadIdx.x; j < own; j += THREADS) {
        unsigned bits = wanted[j];
        if (!bits) continue;
        int to = atomicAdd(&count, __popc(bits));
        for (; bits; bits &= bits - 1) list[to++] = (unsigned short)(j * CUDA_HEAD_TILE + __ffs(bits) - 1);
    }
    __syncthreads();
    choose_work<COLUMNS> work = {w, list, count, w.ld / CUDA_K_STEP, x, rows, cap, 0};
    run_items<COLUMNS, DEPTH>(work, 0, 1);
    best_of[warp][lane] = work.best;
    __syncthreads();
    if (warp == 0 && lane < rows && count) {
        unsigned long long best = work.best;
        for (int v = 1; v < WARPS; v++) best = max(best, best_of[v][lane]);
        atomicMax(screen.best + lane, best);
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(screen.finished, 1u) == gridDim.x - 1;
    __syncthreads();
    if (last && (int)threadIdx.x < rows) choice[threadIdx.x] = chosen_id(__ldcg(screen.best + threadIdx.x));
}

static int choose_shared_bytes(int multiprocessors, int out) {
    int tiles = ceil_div(out, CUDA_HEAD_TILE), own = ceil_div(tiles, multiprocessors * BLOCKS_PER_MULTIPROCESSOR);
    return own * (int)(sizeof(unsigned) + CUDA_HEAD_TILE * sizeof(unsigned short));
}

int cuda_can_choose(int multiprocessors, int out) {
    enum { MOST_SHARED_BYTES = 16 << 10 }; /* 48 KB that need not be asked for, less the partial sums */
    return choose_shared_bytes(multiprocessors, out) <= MOST_SHARED_BYTES;
}

void cuda_choose(const cuda_launch *l, const cuda_matrix *head, const cuda_screen *screen, int blocks,
                 const cuda_bf16 *x, int rows, float cap, int32_t *choice) {
    dim3 grid = resident_blocks(l, ceil_div(head->out, CUDA_HEAD_TILE)), threads(THREADS);
    size_t shared = (size_t)choose_shared_bytes(l->multiprocessors, head->out);
    if (rows <= 8)
        launch_kernel(l, choose_kernel<1, 6>, grid, threads, shared, *head, *screen, blocks, x, rows, cap, choice);
    else if (rows <= 16)
        launch_kernel(l, choose_kernel<2, 4>, grid, threads, shared, *head, *screen, blocks, x, rows, cap, choice);
    else
        launch_kernel(l, choose_kernel<3, 3>, grid, threads, shared, *head, *screen, blocks, x, rows, cap, choice);
}

/* An mma adds 16 exact products to an accumulator. Tensor cores align all addends to the largest, cut each behind at
 * least 23 bits and normalise the sum, in one pass of 16 products or two of 8: at most 20 cuts, each below 2^-22 of the
 * largest addend, which is not above the sum of all |w_k x_k| of this warp (nor are the partial sums, but for a part in
 * a thousand). Sums over warps round once each. The sum of |w_k x_k| is at most |w| |x|. */
float cuda_product_error(int in) {
    const float cut = 0x1p-22f, of_one = 20 * cut;
    int steps = ceil_div(in, CUDA_K_STEP), split = split_of(steps), chain = 2 * ceil_div(steps, split);
    return ((float)chain * of_one + (float)split * cut) * 1.01f;
}
