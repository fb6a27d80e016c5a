/* What products of few rows share, whatever form the weights have: items of work, tiles of outputs and columns, which
 * products and experts an item is of, and what becomes of its sums. A form of weights (FORM) says
 *
 *   split(steps)           among how many warps the steps of an output are dealt, a function of k alone
 *   depth<COLUMNS>         steps of weights that are in flight
 *   advance(w, rows, n)    where a matrix begins that lies so many rows of n steps behind another
 *   place(item, ...)       points an item at a tile of 16 outputs
 *   run(work, ...)         the loop: requests, multiplies, adds
 *
 * A step is CUDA_K_STEP values of k. */
#ifndef KAKEYA_BACKEND_CUDA_PRODUCT_ITEMS_CUH
#define KAKEYA_BACKEND_CUDA_PRODUCT_ITEMS_CUH

#include "backend/cuda/route.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, TILE = 16, BLOCKS_PER_MULTIPROCESSOR = 2 };

/* What one warp has to do for one item: its slice of the steps of 16 outputs. */
template <int COLUMNS> struct warp_item {
    const char *wa, *wb;    /* this lane's weights: outputs g and g + 8 of the tile */
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

template <class FORM> static __device__ __forceinline__ int group_of_warp(int steps) {
    return (int)(threadIdx.x >> 5) / FORM::split(steps);
}

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

template <class FORM, int COLUMNS> struct plain_work {
    static constexpr bool ASKS_AHEAD = true; /* it pays for o, and costs nothing where a launch has more to wait for */

    const product_list &list;
    const cuda_bf16 *x;
    int steps, ldx, rows;
    float cap;
    int column_tiles; /* of all rows: neighbouring items */

    __device__ __forceinline__ int per_item() const { return WARPS / FORM::split(steps); }
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
        int tile = at.item * per_item() + group_of_warp<FORM>(steps), p = product_of(tile),
            o = (tile - list.first_tile[p]) * TILE;
        FORM::place(item, list.product[p].w, list.product[p].w, o, o + 8, list.product[p].out, steps);
        place_rows(item, x, ldx, at.tile * COLUMNS * 8, rows);
    }
    __device__ __forceinline__ void finish(int index, const partial_sums<COLUMNS> &sums) const {
        const int per_tile = COLUMNS * 128;
        column_item of = split_index(index, column_tiles);
        int split = FORM::split(steps), first_tile = of.item * per_item(), first = of.tile * COLUMNS * 8;
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

template <class FORM, int COLUMNS>
static __global__
__launch_bounds__(THREADS, BLOCKS_PER_MULTIPROCESSOR) void products_kernel(const __grid_constant__ product_list list,
                                                                           int steps, const cuda_bf16 *x, int ldx,
                                                                           int rows, float cap, int column_tiles) {
    plain_work<FORM, COLUMNS> work = {list, x, steps, ldx, rows, cap, column_tiles};
    FORM::template run<COLUMNS>(work, blockIdx.x, gridDim.x);
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
template <class FORM>
static void run_products(const cuda_launch *l, const cuda_product *products, int n, int in, const cuda_bf16 *x, int ldx,
                         int rows, float cap) {
    product_list list;
    int steps = ceil_div(in, CUDA_K_STEP), per_item = WARPS / FORM::split(steps);
    list.n = n;
    list.first_tile[0] = 0;
    for (int i = 0; i < n; i++) {
        list.product[i] = products[i];
        list.first_tile[i + 1] = list.first_tile[i] + ceil_div(products[i].out, TILE);
    }
    column_cut cut = cut_columns(rows);
    dim3 blocks = resident_blocks(l, ceil_div(list.first_tile[n], per_item) * cut.tiles), threads(THREADS);
    if (cut.columns == 1)
        launch_kernel(l, products_kernel<FORM, 1>, blocks, threads, 0, list, steps, x, ldx, rows, cap, cut.tiles);
    else if (cut.columns == 2)
        launch_kernel(l, products_kernel<FORM, 2>, blocks, threads, 0, list, steps, x, ldx, rows, cap, cut.tiles);
    else if (cut.columns == 3)
        launch_kernel(l, products_kernel<FORM, 3>, blocks, threads, 0, list, steps, x, ldx, rows, cap, cut.tiles);
    else
        launch_kernel(l, products_kernel<FORM, 4>, blocks, threads, 0, list, steps, x, ldx, rows, cap, cut.tiles);
}

/* -------------------------------------------------------------------------------------------------- feed forward
 * gate/up: a tile holds 8 gate rows (registers 0, 1) and the 8 up rows of the same outputs (registers 2, 3), so that
 * the activation is applied where the sums are made. The dense MLP's items come first: they do not wait for the router.
 * In passes of more than CUDA_DECODE_ROWS rows an expert's rows come in units of CUDA_EXPERT_ROWS.
 */

static __device__ __forceinline__ void store_bf16(cuda_bf16 *p, float v) { *as_bf16(p) = __float2bfloat16_rn(v); }

template <class FORM, int COLUMNS, bool GATE_UP, class TABLE> struct ffn_work {
    static constexpr bool ASKS_AHEAD = false;

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
                o = (at.item * (WARPS / FORM::split(dense_steps)) + group_of_warp<FORM>(dense_steps)) * tile_outputs();
            if (GATE_UP) {
                FORM::place(item, f.gate.data, f.up.data, o, o, f.gate.out, dense_steps);
                place_rows(item, f.x_dense, f.ldx, first, rows);
            } else {
                FORM::place(item, f.down.data, f.down.data, o, o + 8, f.down.out, dense_steps);
                place_rows(item, f.act, f.down.ld, first, rows);
            }
            return;
        }
        int at = (index - dense_items) / expert_items, tile = (index - dense_items) % expert_items;
        int o = (tile * (WARPS / FORM::split(expert_steps)) + group_of_warp<FORM>(expert_steps)) * tile_outputs();
        int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, begin = table.begin[at], n = table.rows[at];
        if (GATE_UP) {
            const cuda_bf16 *gate = FORM::advance(f.experts_gate_up.data,
                                                  (size_t)table.active[at] * 2 * f.expert_intermediate, expert_steps);
            const cuda_bf16 *up = FORM::advance(gate, (size_t)f.expert_intermediate, expert_steps);
            FORM::place(item, gate, up, o, o, f.expert_intermediate, expert_steps);
        } else {
            const cuda_bf16 *matrix =
                FORM::advance(f.experts_down.data, (size_t)table.active[at] * f.down.out, expert_steps);
            FORM::place(item, matrix, matrix, o, o + 8, f.down.out, expert_steps);
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
        int steps = dense ? dense_steps : expert_steps, split = FORM::split(steps), per_item = WARPS / split;
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

template <class FORM, int COLUMNS, bool GATE_UP, class TABLE>
static __global__ __launch_bounds__(THREADS, BLOCKS_PER_MULTIPROCESSOR) void ffn_kernel(
    const __grid_constant__ cuda_feed_forward f, const __grid_constant__ cuda_route route, int dense_items,
    int dense_tiles, int expert_items, int rows) {
    __shared__ TABLE table;
    int dense_steps = (GATE_UP ? f.gate.ld : f.down.ld) / CUDA_K_STEP;
    int expert_steps = GATE_UP ? dense_steps : f.experts_down.ld / CUDA_K_STEP;
    ffn_work<FORM, COLUMNS, GATE_UP, TABLE> work = {f,           route,        table,        dense_steps, dense_items,
                                                    dense_tiles, expert_steps, expert_items, rows};
    FORM::template run<COLUMNS>(work, blockIdx.x, gridDim.x);
}

template <class FORM, bool GATE_UP>
static void run_ffn(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    cuda_route r = route ? *route : cuda_route{};
    int dense_steps = (GATE_UP ? f->gate.ld : f->down.ld) / CUDA_K_STEP, expert_steps = dense_steps;
    if (!GATE_UP) expert_steps = f->experts_down.ld / CUDA_K_STEP;
    int dense_outs = GATE_UP ? f->gate.out : f->down.out, expert_outs = GATE_UP ? f->expert_intermediate : f->down.out;
    int outputs = GATE_UP ? 8 : TILE, expert_items = 0, active = 0;
    bool routed = f->experts_gate_up.data, large = rows > CUDA_DECODE_ROWS;
    column_cut cut = cut_columns(rows);
    if (routed && large) cut = {CUDA_EXPERT_ROWS / 8, ceil_div(rows, CUDA_EXPERT_ROWS)};
    bool dense = GATE_UP ? f->gate.data : f->down.data;
    int dense_items = ceil_div(dense ? ceil_div(dense_outs, outputs) : 0, WARPS / FORM::split(dense_steps)) * cut.tiles;
    if (routed) {
        expert_items = ceil_div(ceil_div(expert_outs, outputs), WARPS / FORM::split(expert_steps));
        active = rows * r.rank < r.experts ? rows * r.rank : r.experts;
    }
    dim3 blocks = resident_blocks(l, dense_items + active * expert_items), threads(THREADS);
    if (routed && large)
        launch_kernel(l, ffn_kernel<FORM, CUDA_EXPERT_ROWS / 8, GATE_UP, large_route_table>, blocks, threads, 0, *f, r,
                      dense_items, cut.tiles, expert_items, rows);
    else if (cut.columns == 1)
        launch_kernel(l, ffn_kernel<FORM, 1, GATE_UP, route_table>, blocks, threads, 0, *f, r, dense_items, cut.tiles,
                      expert_items, rows);
    else if (cut.columns == 2)
        launch_kernel(l, ffn_kernel<FORM, 2, GATE_UP, route_table>, blocks, threads, 0, *f, r, dense_items, cut.tiles,
                      expert_items, rows);
    else if (cut.columns == 3)
        launch_kernel(l, ffn_kernel<FORM, 3, GATE_UP, route_table>, blocks, threads, 0, *f, r, dense_items, cut.tiles,
                      expert_items, rows);
    else
        launch_kernel(l, ffn_kernel<FORM, 4, GATE_UP, route_table>, blocks, threads, 0, *f, r, dense_items, cut.tiles,
                      expert_items, rows);
}
#endif
