#include "backend/cuda/split_products.h"

#include <stdbool.h>

#include "backend/cuda/prompt_gemm.h"

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
/* Rows and columns of matrices come in eights. */
static int in_eights(int n) { return (n + 7) / 8 * 8; }

static void note(split_room *room, cudaError_t status) {
    if (room->status == cudaSuccess) room->status = status;
}

size_t split_turned_values(int out, int in) { return (size_t)in * (size_t)cuda_padded(out); }

/* Whether products of one bf16 number each go straight to y. */
static bool goes_straight(const split_room *room, const float *y, size_t ldy, int add) {
    enum { ALIGN = 16 };
    return room->terms == 1 && !add && (size_t)y % ALIGN == 0 && ldy * sizeof *y % ALIGN == 0;
}

/* out [rows][n] of x [rows][k] and a bf16 matrix [n][ld], in as many pieces as there is room for. */
static void multiply(const cuda_launch *l, split_room *room, const float *x, size_t ldx, int rows, int k,
                     const cuda_bf16 *w, size_t ld, int n, float *y, size_t ldy, int add) {
    size_t terms = (size_t)room->terms;
    size_t each = smaller(room->a_values / (terms * ld), room->c_values / (terms * (size_t)n));
    if (!each) note(room, cudaErrorMemoryAllocation);
    bool straight = goes_straight(room, y, ldy, add);
    for (int done = 0, some; done < rows && each; done += some) {
        some = (int)smaller((size_t)(rows - done), each);
        float *to = y + (size_t)done * ldy;
        const prompt_gemm_args args = {.a = room->a,
                                       .lda = ld,
                                       .w = w,
                                       .ldw = ld,
                                       .out = straight ? to : room->c,
                                       .ldo = straight ? ldy : (size_t)n,
                                       .m = room->terms * some,
                                       .n = n,
                                       .k = (int)ld,
                                       .output = PROMPT_GEMM_F32};
        cuda_split_rows(l, x + (size_t)done * ldx, ldx, some, k, room->terms, room->a, ld);
        note(room, prompt_gemm(&args, l->stream));
        if (!straight) cuda_split_join(l, room->c, some, room->terms, n, to, ldy, add);
    }
}

void split_forward(const cuda_launch *l, split_room *room, const float *x, size_t ldx, int rows, split_matrix w,
                   float *y, size_t ldy) {
    multiply(l, room, x, ldx, rows, w.in, w.data, w.ld, w.out, y, ldy, 0);
}

void split_back(const cuda_launch *l, split_room *room, const float *d_y, size_t ldy, int rows, split_matrix w,
                float *d_x, size_t ldx, int add) {
    size_t ld = (size_t)cuda_padded(w.out);
    if (!w.turned) cuda_split_turn(l, w.data, w.ld, w.out, w.in, 1, room->b, ld);
    multiply(l, room, d_y, ldy, rows, w.out, w.turned ? w.turned : room->b, ld, w.in, d_x, ldx, add);
}

/* y [slots][n] of x [slots][k] and the experts' [n][ld]. */
static void multiply_experts(const cuda_launch *l, split_room *room, const float *x, int slots, int k,
                             const cuda_bf16 *w, size_t ld, int n, int experts, const int *begin, float *y) {
    bool straight = goes_straight(room, y, (size_t)n, 0);
    const prompt_gemm_grouped_args args = {.product = {.a = room->a,
                                                       .lda = ld,
                                                       .w = w,
                                                       .ldw = ld,
                                                       .out = straight ? y : room->c,
                                                       .ldo = (size_t)n,
                                                       .m = room->terms * slots,
                                                       .n = n,
                                                       .k = (int)ld,
                                                       .output = PROMPT_GEMM_F32},
                                           .expert_begin = room->begin,
                                           .expert_stride = (size_t)n * ld,
                                           .experts = experts,
                                           .counter = room->counter};
    cuda_split_begins(l, begin, room->terms, experts + 1, room->begin);
    cuda_split_rows(l, x, (size_t)k, slots, k, room->terms, room->a, ld);
    note(room, prompt_gemm_grouped(&args, l->stream));
    if (!straight) cuda_split_join(l, room->c, slots, room->terms, n, y, (size_t)n, 0);
}

void split_experts_forward(const cuda_launch *l, split_room *room, const float *x, int slots, split_matrix w,
                           int experts, const int *begin, float *y) {
    multiply_experts(l, room, x, slots, w.in, w.data, w.ld, w.out, experts, begin, y);
}

void split_experts_back(const cuda_launch *l, split_room *room, const float *d_y, int slots, split_matrix w,
                        int experts, const int *begin, float *d_x) {
    size_t ld = (size_t)cuda_padded(w.out);
    cuda_split_turn(l, w.data, w.ld, w.out, w.in, experts, room->b, ld);
    multiply_experts(l, room, d_y, slots, w.out, room->b, ld, w.in, experts, begin, d_x);
}

/* -------------------------------------------------------------------------------------- two matrices of float32 */

enum { LEAST_SIDE = 16 };

static int at_least_one(int n) { return n > 1 ? n : 1; }

/* One product as two of half its rows, or of half its columns. */
static int halve(const cuda_launch *l, split_room *room, train_form form, const train_product *p, int rows) {
    train_product first = *p, second = *p;
    int half = in_eights((rows ? p->m : p->n) / 2);
    if (half < LEAST_SIDE || half + LEAST_SIDE > (rows ? p->m : p->n)) return 0;
    if (rows) {
        first.m = half;
        second.m -= half;
        second.a += form == TRAIN_TN ? (size_t)half : (size_t)half * p->lda;
        second.c += (size_t)half * p->ldc;
    } else {
        first.n = half;
        second.n -= half;
        second.b += form == TRAIN_NT ? (size_t)half * p->ldb : (size_t)half;
        second.c += half;
    }
    if (!split_product(l, room, form, &first, 0)) return 0;
    if (!split_product(l, room, form, &second, 0)) cuda_train_product(l, form, &second);
    return 1;
}

int split_product(const cuda_launch *l, split_room *room, train_form form, const train_product *given, double least) {
    train_product p = *given;
    p.items = at_least_one(p.items);
    p.heads = at_least_one(p.heads);
    p.group = at_least_one(p.group);
    /* Heads that share a second factor are one product, their rows one behind the other. */
    int stack = form == TRAIN_TN || p.heads % p.group ? 1 : p.group, heads = p.heads / stack, all = p.items * heads,
        n = in_eights(p.n), k = in_eights(p.k);
    if (p.begin || p.m < LEAST_SIDE || p.n < LEAST_SIDE || p.k < LEAST_SIDE) return 0;
    if ((double)p.m * p.n * p.k * all * stack < least) return 0;
    size_t row = (size_t)room->parts * (size_t)k, of_head = (size_t)p.m, rows = of_head * (size_t)stack,
           columns = (size_t)n;
    /* As they come, where products follow each other as they are to lie. */
    int placed = p.add || n != p.n || p.ldc != columns || (p.heads > 1 && p.c_head != of_head * columns) ||
                 (p.items > 1 && p.c_item != (size_t)heads * rows * columns);
    size_t each = smaller(room->a_values / (rows * row), room->b_values / (columns * row));
    if (placed) each = smaller(each, room->c_values / (rows * columns));
    each = smaller(each, SPLIT_GROUPS);
    if (!each) return all == 1 ? halve(l, room, form, &p, room->a_values < rows * row) : 0;
    split_packed a = {p.a, p.lda, p.a_item, p.a_head, heads, stack, 1, p.m, p.k, form == TRAIN_TN, 0, 0},
                 b = {p.b, p.ldb, p.b_item, p.b_head, heads, 1, p.group / stack, p.n, p.k, form != TRAIN_NT, 0, 0};
    for (int done = 0, some; done < all; done += some) {
        some = (int)smaller((size_t)(all - done), each);
        a.first = b.first = done;
        a.groups = b.groups = some;
        float *out = placed ? room->c : p.c + (size_t)done * rows * columns;
        const prompt_gemm_grouped_args args = {.product = {.a = room->a,
                                                           .lda = row,
                                                           .w = room->b,
                                                           .ldw = row,
                                                           .out = out,
                                                           .ldo = columns,
                                                           .m = some * (int)rows,
                                                           .n = n,
                                                           .k = (int)row,
                                                           .output = PROMPT_GEMM_F32},
                                               .expert_begin = room->begin,
                                               .expert_stride = columns * row,
                                               .experts = some,
                                               .counter = room->counter};
        cuda_split_pack(l, &a, (int)rows, k, room->parts, 0, room->a);
        cuda_split_pack(l, &b, n, k, room->parts, 1, room->b);
        cuda_split_begins(l, NULL, (int)rows, some + 1, room->begin);
        note(room, some > 1 ? prompt_gemm_grouped(&args, l->stream) : prompt_gemm(&args.product, l->stream));
        if (placed) cuda_split_place(l, room->c, columns, &p, stack, done, some);
    }
    return 1;
}

int split_outer(const cuda_launch *l, split_room *room, const train_product *whole, double least) {
    enum { LEAST_ROWS = 512, MOST_PARTS = 64 };
    size_t values = (size_t)whole->m * (size_t)whole->n, fit = whole->partial ? whole->partial_floats / values : 0;
    int parts = (int)smaller(smaller((size_t)(whole->k / LEAST_ROWS), MOST_PARTS), fit);
    if (parts < 2 || (double)values * whole->k < least) return 0;
    train_product p = *whole, rest = *whole;
    p.items = parts;
    p.k = whole->k / parts / 8 * 8;
    p.a_item = (size_t)p.k * p.lda;
    p.b_item = (size_t)p.k * p.ldb;
    p.c = whole->partial;
    p.ldc = (size_t)p.n;
    p.c_item = values;
    p.add = 0;
    if (!split_product(l, room, TRAIN_TN, &p, 0)) return 0;
    cuda_train_sum_parts(l, p.c, parts, p.m, p.n, whole->c, whole->ldc, whole->add);
    rest.k -= parts * p.k;
    rest.a += (size_t)parts * p.a_item;
    rest.b += (size_t)parts * p.b_item;
    rest.add = 1;
    if (rest.k > 0) cuda_train_product(l, TRAIN_TN, &rest);
    return 1;
}
