/* Products of few rows with quantised weights of one form: the items, tiles and columns of products.cu, but for what is
 * loaded and how it is added (quant_units.cuh): the same instructions in the same order for any number of rows. */
#ifndef KAKEYA_BACKEND_CUDA_QUANT_FORM_CUH
#define KAKEYA_BACKEND_CUDA_QUANT_FORM_CUH

#include "backend/cuda/quant_many.cuh"

/* The units that a warp has still to request. */
struct unit_cursor {
    const char *first, *second;               /* this lane's codes of two strips ... */
    const char *first_scales, *second_scales; /* ... and scales */
    int left;
};

template <cuda_form FORM, int COLUMNS>
static __device__ __forceinline__ unit_cursor cursor_of(const warp_item<COLUMNS> &item) {
    int lane = threadIdx.x & 31;
    int to_scales = quant_scale_offset(FORM, lane >> 2, 0) - quant_lane_offset(FORM, lane);
    unit_slice slice = slice_of(item);
    const char *a = item.wa + slice.first * quant_unit_bytes(FORM), *b = item.wb + slice.first * quant_unit_bytes(FORM);
    return {a, b, a + to_scales, b + to_scales, slice.count};
}

/* Requests unit `u` from the cursor on. */
template <int UNIT_BYTES, bool ONE_SCALE, cuda_form FORM>
static __device__ __forceinline__ void request_unit(quant_stage<FORM> &stage, const unit_cursor &cursor, int u) {
    load_run(stage.codes[0].word, cursor.first + u * UNIT_BYTES);
    load_run(stage.codes[1].word, cursor.second + u * UNIT_BYTES);
    if (ONE_SCALE) return;
    load_run(stage.scales[0].word, cursor.first_scales + u * UNIT_BYTES);
    load_run(stage.scales[1].word, cursor.second_scales + u * UNIT_BYTES);
}

template <int UNIT_BYTES> static __device__ __forceinline__ void advance(unit_cursor &cursor, int units) {
    cursor.first += units * UNIT_BYTES;
    cursor.second += units * UNIT_BYTES;
    cursor.first_scales += units * UNIT_BYTES;
    cursor.second_scales += units * UNIT_BYTES;
    cursor.left -= units;
}

/* The scale that is that of all units, in rows of both strips. */
struct whole_scales {
    unsigned word[2][1];
};

template <bool ONE_SCALE>
static __device__ __forceinline__ void request_scales(whole_scales &scales, const unit_cursor &cursor) {
    if (!ONE_SCALE) return;
    load_run(scales.word[0], cursor.first_scales);
    load_run(scales.word[1], cursor.second_scales);
}

template <bool ONE_SCALE, cuda_form FORM>
static __device__ __forceinline__ void use_scales(quant_stage<FORM> &stage, const whole_scales &scales) {
#pragma unroll
    for (int i = 0; ONE_SCALE && i < row_scales<FORM>::WORDS; i++) {
        stage.scales[0].word[i] = scales.word[0][0];
        stage.scales[1].word[i] = scales.word[1][0];
    }
}

/* Asks for the rest of a slice, behind the units that are on their way, into L2. */
template <int UNIT_BYTES, cuda_form FORM> static __device__ __forceinline__ void ask_ahead(const unit_cursor &cursor) {
    enum { LINE = 128 };
    int lane = threadIdx.x & 31, bytes = cursor.left * UNIT_BYTES;
    const char *strip = (lane & 1 ? cursor.second : cursor.first) - quant_lane_offset(FORM, lane);
    for (int at = lane / 2 * LINE; at < bytes; at += 16 * LINE)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(strip + at));
}

/* As run_items of products.cu, in units. A warp waits for what it has requested once in DEPTH units: rows of x are
 * loaded before the first of them, and that is multiplied whatever happens. A wait among the units would be for those
 * that have just been requested, too: the hardware counts few sorts of requests. */
template <cuda_form FORM, bool ONE_SCALE, int COLUMNS, int DEPTH, class WORK>
static __device__ __forceinline__ void run_units(WORK &work, int first, int stride) {
    constexpr int UNIT_BYTES = unit_bytes<FORM>;
    __shared__ partial_sums<COLUMNS> sums[2];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, index = first, parity = 0;
    warp_item<COLUMNS> item, next;
    unit_cursor cursor;
    quant_stage<FORM> stage[DEPTH];
    whole_scales scales = {}, next_scales = {};
    auto request_first = [&]() {
        cursor = cursor_of<FORM>(item);
        request_scales<ONE_SCALE>(scales, cursor);
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            if (u < cursor.left) request_unit<UNIT_BYTES, ONE_SCALE>(stage[u], cursor, u);
        }
        advance<UNIT_BYTES>(cursor, DEPTH);
    };
    bool early = work.early(index);
    if (early) {
        work.resolve(index, item);
        request_first();
        if (WORK::ASKS_AHEAD && (FORM == CUDA_FORM_Q4 || ONE_SCALE) && COLUMNS == 1)
            ask_ahead<UNIT_BYTES, FORM>(cursor);
    }
    wait_for_predecessor();
    work.prepare();
    int items = work.items();
    if (index >= items) return;
    if (!early) {
        work.resolve(index, item);
        request_first();
    }
    for (;;) {
        int next_index = index + stride;
        unit_slice slice = slice_of(item);
        bool more = next_index < items;
        if (more)
            work.resolve(next_index, next);
        else
            release_successor();
        /* Rows that are absent are computed from one that is there, and nobody asks for the result. */
        const bf16 *present = reinterpret_cast<const bf16 *>(
            __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(item.x[0]), lane & 3));
        const bf16 *x[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            x[c] = first_of_lane<FORM>(item.x[c] ? item.x[c] : present) + slice.first * QUANT_VALUES;
        int whole = item.steps / QUANT_BLOCKS - slice.first; /* units with two blocks */
        float acc[COLUMNS][4] = {};
        for (int left = slice.count; left > 0; left -= DEPTH, whole -= DEPTH) {
            unit_rows<COLUMNS> rows[DEPTH];
#pragma unroll
            for (int u = 0; u < DEPTH; u++) {
                if (u > 0 && u >= left) break;
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    rows[u].block[0][c] = load_x<FORM>(x[c] + u * QUANT_VALUES);
                    rows[u].block[1][c] = load_second<FORM>(x[c] + u * QUANT_VALUES, u < whole);
                }
            }
            if (left <= DEPTH && more) {
                cursor = cursor_of<FORM>(next);
                request_scales<ONE_SCALE>(next_scales, cursor);
            }
#pragma unroll
            for (int u = 0; u < DEPTH; u++) {
                use_scales<ONE_SCALE>(stage[u], scales);
                if (u == 0 || u < left) multiply_unit<FORM, COLUMNS>(acc, stage[u], rows[u]);
                if (u < cursor.left) request_unit<UNIT_BYTES, ONE_SCALE>(stage[u], cursor, u);
            }
            advance<UNIT_BYTES>(cursor, DEPTH);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) x[c] += DEPTH * QUANT_VALUES;
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
        scales = next_scales;
        index = next_index;
        parity ^= 1; /* the next item's sums go elsewhere: one barrier an item is enough */
    }
}

template <cuda_form FORM, bool ONE_SCALE = false> struct quant_form {
    /* Units that are in flight, as many as the registers of a thread hold with their rows of x. */
    static constexpr bool SMALL =
        FORM == CUDA_FORM_Q4 || FORM == CUDA_FORM_Q8 || FORM == CUDA_FORM_F8 || FORM == CUDA_FORM_S4;
    static constexpr bool LARGE = FORM == CUDA_FORM_A8 || FORM == CUDA_FORM_G8;
    template <int COLUMNS>
    static constexpr int depth = COLUMNS == 1   ? (FORM == CUDA_FORM_Q4                ? 6
                                                   : FORM == CUDA_FORM_S4 || ONE_SCALE ? 5
                                                   : LARGE                             ? 3
                                                                                       : 4)
                                 : COLUMNS == 2 ? (SMALL ? 3 : 2)
                                 : COLUMNS == 3 ? (SMALL ? 2 : 1)
                                                : 1;

    static __host__ __device__ __forceinline__ int split(int steps) { return quant_split(steps); }
    static __device__ __forceinline__ const cuda_bf16 *advance(const cuda_bf16 *w, size_t rows, int steps) {
        return w + rows / QUANT_ROWS * quant_strip_bytes(FORM, steps * CUDA_K_STEP) / sizeof *w;
    }
    /* The strip of o and that of second_o. */
    template <int COLUMNS>
    static __device__ __forceinline__ void place(warp_item<COLUMNS> &item, const cuda_bf16 *first,
                                                 const cuda_bf16 *second, int o, int second_o, int outs, int steps) {
        int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, last = (outs - 1) / QUANT_ROWS;
        size_t strip = quant_strip_bytes(FORM, steps * CUDA_K_STEP);
        item.steps = steps;
        item.split = split(steps);
        item.slice = warp % item.split;
        item.wa = reinterpret_cast<const char *>(first) + (size_t)min(o / QUANT_ROWS, last) * strip +
                  quant_lane_offset(FORM, lane);
        item.wb = reinterpret_cast<const char *>(second) + (size_t)min(second_o / QUANT_ROWS, last) * strip +
                  quant_lane_offset(FORM, lane);
    }
    template <int COLUMNS, class WORK> static __device__ __forceinline__ void run(WORK &work, int first, int stride) {
        run_units<FORM, ONE_SCALE, COLUMNS, depth<COLUMNS>>(work, first, stride);
    }
};

template <cuda_form FORM, bool ONE_SCALE>
static void form_products(const cuda_launch *l, const cuda_product *products, int n, int in, const cuda_bf16 *x,
                          int ldx, int rows, float cap) {
    if (!many_products<FORM>(l, products, n, in, x, ldx, rows, cap))
        run_products<quant_form<FORM, ONE_SCALE>>(l, products, n, in, x, ldx, rows, cap);
}

template <cuda_form FORM, bool ONE_SCALE>
static void form_gate_up(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    cuda_feed_forward left = *f;
    many_gate_up<FORM>(l, &left, route, rows);
    if (left.gate.data || left.experts_gate_up.data) run_ffn<quant_form<FORM, ONE_SCALE>, true>(l, &left, route, rows);
}

template <cuda_form FORM, bool ONE_SCALE>
static void form_down(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    cuda_feed_forward left = *f;
    many_down<FORM>(l, &left, route, rows);
    if (left.down.data || left.experts_down.data) run_ffn<quant_form<FORM, ONE_SCALE>, false>(l, &left, route, rows);
}

/* The launchers of a form: files of their own, since each takes the compiler half a minute. */
struct quant_launchers {
    void (*products)(const cuda_launch *, const cuda_product *, int, int, const cuda_bf16 *, int, int, float);
    void (*gate_up)(const cuda_launch *, const cuda_feed_forward *, const cuda_route *, int);
    void (*down)(const cuda_launch *, const cuda_feed_forward *, const cuda_route *, int);
};
#define QUANT_LAUNCHERS(FORM, ONE_SCALE)                                                                               \
    { form_products<FORM, ONE_SCALE>, form_gate_up<FORM, ONE_SCALE>, form_down<FORM, ONE_SCALE> }

extern const quant_launchers quant_launch_a4, quant_launch_a8, quant_launch_g8, quant_launch_f8, quant_launch_s4,
    quant_launch_g4, quant_launch_f8_one_scale;

#endif
