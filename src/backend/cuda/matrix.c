#include "backend/cuda/matrix.h"

#include "backend/cuda/f8_rows.h"
#include "backend/cuda/prompt_gemm.h"
#include "backend/cuda/prompt_gemm_f8.h"
#include "backend/cuda/quant.h"

/* --------------------------------------------------------------------------------------------------------- bf16 */

/* Rows that products of prompts take of a matrix of `out` rows. */
static int whole_rows(int out) { return (out + PROMPT_GEMM_UNIT - 1) / PROMPT_GEMM_UNIT * PROMPT_GEMM_UNIT; }

/* [whole_rows(out)][in rounded up to CUDA_K_STEP], padding zero */
static size_t bf16_bytes(int out, int in) {
    return (size_t)whole_rows(out) * (size_t)cuda_padded(in) * sizeof(cuda_bf16);
}

static void bf16_products(const cuda_launch *l, const matrix_product *products, int n, const cuda_bf16 *x, int ldx,
                          int rows, float cap) {
    cuda_product list[CUDA_MAX_PRODUCTS];
    for (int i = 0; i < n; i++)
        list[i] = (cuda_product){
            .w = products[i].w->data, .y = products[i].y, .out = products[i].w->out, .ldy = products[i].ldy};
    cuda_products(l, list, n, products[0].w->in, x, ldx, rows, cap);
}

static prompt_gemm_args bf16_args(const cuda_matrix *w, const cuda_bf16 *x, size_t ldx, void *out, size_t ldo,
                                  int rows) {
    return (prompt_gemm_args){.a = x,
                              .lda = ldx,
                              .w = w->data,
                              .ldw = (size_t)w->ld,
                              .out = out,
                              .ldo = ldo,
                              .m = rows,
                              .n = w->out,
                              .k = w->ld};
}

static prompt_gemm_args product_args(const matrix_product *product, const cuda_bf16 *x, size_t ldx, int rows) {
    return bf16_args(product->w, x, ldx, product->y, (size_t)product->ldy, rows);
}

static prompt_gemm_args gated_args(const cuda_matrix *gate, const cuda_matrix *up, const cuda_bf16 *x, size_t ldx,
                                   cuda_bf16 *out, size_t ldo, int rows) {
    prompt_gemm_args args = bf16_args(gate, x, ldx, out, ldo, rows);
    args.n = whole_rows(gate->out); /* what is more goes to columns of `out` that the next product multiplies by zero */
    args.w_up = up->data;
    args.output = PROMPT_GEMM_GELU_BF16;
    return args;
}

/* up: of expert 0; stride: from one expert to the next. */
static prompt_gemm_grouped_args experts_gated_args(const cuda_matrix *experts, const uint16_t *up, size_t stride,
                                                   int width, const cuda_route *route, const cuda_bf16 *x, size_t ldx,
                                                   cuda_bf16 *out, size_t ldo, int rows) {
    prompt_gemm_grouped_args args = {
        .product = bf16_args(experts, x, ldx, out, ldo, rows * route->rank),
        .expert_begin = route->begin,
        .counter = route->finished,
        .expert_stride = stride,
        .experts = route->experts,
    };
    args.product.n = width;
    args.product.w_up = up;
    args.product.output = PROMPT_GEMM_GELU_BF16;
    return args;
}

static prompt_gemm_grouped_args experts_args(const cuda_matrix *experts, size_t stride, int width,
                                             const cuda_route *route, const cuda_bf16 *x, size_t ldx, void *y,
                                             bool rounded, size_t ldy, int rows) {
    prompt_gemm_grouped_args args = {
        .product = bf16_args(experts, x, ldx, y, ldy, rows * route->rank),
        .expert_begin = route->begin,
        .counter = route->finished,
        .expert_stride = stride,
        .experts = route->experts,
    };
    args.product.n = width;
    args.product.output = rounded ? PROMPT_GEMM_BF16 : PROMPT_GEMM_F32;
    return args;
}

static cudaError_t bf16_prompt_product(const cuda_launch *l, const matrix_product *product, const cuda_bf16 *x,
                                       size_t ldx, int rows) {
    prompt_gemm_args args = product_args(product, x, ldx, rows);
    return prompt_gemm(&args, l->stream);
}

static cudaError_t bf16_prompt_gated(const cuda_launch *l, const cuda_matrix *gate, const cuda_matrix *up,
                                     const cuda_bf16 *x, size_t ldx, cuda_bf16 *out, size_t ldo, int rows) {
    prompt_gemm_args args = gated_args(gate, up, x, ldx, out, ldo, rows);
    return prompt_gemm(&args, l->stream);
}

static cudaError_t bf16_prompt_experts_gated(const cuda_launch *l, const cuda_matrix *experts, int width,
                                             const cuda_route *route, const cuda_bf16 *x, size_t ldx, cuda_bf16 *out,
                                             size_t ldo, int rows) {
    size_t half = (size_t)width * (size_t)experts->ld;
    prompt_gemm_grouped_args args =
        experts_gated_args(experts, experts->data + half, 2 * half, width, route, x, ldx, out, ldo, rows);
    return prompt_gemm_grouped(&args, l->stream);
}

static cudaError_t bf16_prompt_experts(const cuda_launch *l, const cuda_matrix *experts, int width,
                                       const cuda_route *route, const cuda_bf16 *x, size_t ldx, void *y, bool rounded,
                                       size_t ldy, int rows) {
    prompt_gemm_grouped_args args =
        experts_args(experts, (size_t)width * (size_t)experts->ld, width, route, x, ldx, y, rounded, ldy, rows);
    return prompt_gemm_grouped(&args, l->stream);
}

/* ---------------------------------------------------------------------------------------------------- quantised
 * Prompts multiply weights as they lie, where the device can. Otherwise they are made bf16 just before: all of a
 * product, or as many experts as there is room for, without those that have no rows. Bits are the same. */

/* Rows up to which dense weights are multiplied as they lie: of more, each tile of rows converts them again. */
enum { DENSE_CODES_ROWS = 512 };

static bool takes_codes(const cuda_launch *l, int rows) { return l->codes && rows <= DENSE_CODES_ROWS; }

static size_t quant_bytes(cuda_form form, int out, int in) {
    return (size_t)((out + QUANT_ROWS - 1) / QUANT_ROWS) * quant_strip_bytes(form, cuda_padded(in));
}

static void quant_few(const cuda_launch *l, const matrix_product *products, int n, const cuda_bf16 *x, int ldx,
                      int rows, float cap) {
    cuda_product list[CUDA_MAX_PRODUCTS];
    for (int i = 0; i < n; i++)
        list[i] = (cuda_product){.w = products[i].w->data,
                                 .y = products[i].y,
                                 .out = products[i].w->out,
                                 .ldy = products[i].ldy,
                                 .one_scale = products[i].w->one_scale};
    quant_products(l, products[0].w->form, list, n, products[0].w->in, x, ldx, rows, cap);
}

size_t matrix_expanded_bytes(const cuda_matrix *w) { return w->form == CUDA_FORM_BF16 ? 0 : bf16_bytes(w->out, w->in); }

/* The matrix in bf16 at a place of the room for expanded weights. */
static cuda_matrix expand(const cuda_launch *l, const cuda_matrix *w, size_t at) {
    cuda_matrix expanded = *w;
    if (w->form == CUDA_FORM_BF16) return expanded;
    expanded.form = CUDA_FORM_BF16;
    expanded.data = l->expanded + at / sizeof(cuda_bf16);
    quant_expand(l, w, whole_rows(w->out), expanded.data);
    return expanded;
}

static cudaError_t multiply_codes(const cuda_launch *l, prompt_gemm_args product, cuda_form form) {
    prompt_gemm_codes_args args = {.grouped.product = product, .form = form};
    return prompt_gemm_codes(&args, l->stream);
}

static cudaError_t multiply_expert_codes(const cuda_launch *l, prompt_gemm_grouped_args grouped, cuda_form form) {
    prompt_gemm_codes_args args = {.grouped = grouped, .form = form};
    return prompt_gemm_codes(&args, l->stream);
}

static cudaError_t quant_prompt_product(const cuda_launch *l, const matrix_product *product, const cuda_bf16 *x,
                                        size_t ldx, int rows) {
    if (takes_codes(l, rows)) return multiply_codes(l, product_args(product, x, ldx, rows), product->w->form);
    cuda_matrix w = expand(l, product->w, 0);
    matrix_product expanded = *product;
    expanded.w = &w;
    return bf16_prompt_product(l, &expanded, x, ldx, rows);
}

static cudaError_t quant_prompt_gated(const cuda_launch *l, const cuda_matrix *gate, const cuda_matrix *up,
                                      const cuda_bf16 *x, size_t ldx, cuda_bf16 *out, size_t ldo, int rows) {
    if (takes_codes(l, rows)) return multiply_codes(l, gated_args(gate, up, x, ldx, out, ldo, rows), gate->form);
    cuda_matrix first = expand(l, gate, 0), second = expand(l, up, matrix_expanded_bytes(gate));
    return bf16_prompt_gated(l, &first, &second, x, ldx, out, ldo, rows);
}

/* Experts [first, first + n) of `expert_rows` rows each, expanded, and the route to them. */
static int expand_experts(const cuda_launch *l, const cuda_matrix *w, int expert_rows, const cuda_route *route,
                          int first, cuda_matrix *expanded, cuda_route *to) {
    int n = (int)(l->expanded_bytes / bf16_bytes(expert_rows, w->in));
    if (n > route->experts - first) n = route->experts - first;
    *expanded = *w;
    expanded->form = CUDA_FORM_BF16;
    expanded->data = l->expanded;
    quant_expand_experts(l, w, expert_rows, route, first, n, l->expanded);
    *to = *route;
    to->begin = route->begin + first;
    to->experts = n;
    return n;
}

static cudaError_t quant_prompt_experts_gated(const cuda_launch *l, const cuda_matrix *experts, int width,
                                              const cuda_route *route, const cuda_bf16 *x, size_t ldx, cuda_bf16 *out,
                                              size_t ldo, int rows) {
    cudaError_t status = cudaSuccess;
    if (l->codes) {
        const uint16_t *up = experts->data + quant_bytes(experts->form, width, experts->in) / sizeof *experts->data;
        const size_t strips = (size_t)(2 * width) / QUANT_ROWS;
        return multiply_expert_codes(l, experts_gated_args(experts, up, strips, width, route, x, ldx, out, ldo, rows),
                                     experts->form);
    }
    for (int first = 0, n; first < route->experts && status == cudaSuccess; first += n) {
        cuda_matrix some;
        cuda_route to;
        n = expand_experts(l, experts, 2 * width, route, first, &some, &to);
        status = bf16_prompt_experts_gated(l, &some, width, &to, x, ldx, out, ldo, rows);
    }
    return status;
}

static cudaError_t quant_prompt_experts(const cuda_launch *l, const cuda_matrix *experts, int width,
                                        const cuda_route *route, const cuda_bf16 *x, size_t ldx, void *y, bool rounded,
                                        size_t ldy, int rows) {
    cudaError_t status = cudaSuccess;
    if (l->codes) {
        const size_t strips = (size_t)width / QUANT_ROWS;
        return multiply_expert_codes(l, experts_args(experts, strips, width, route, x, ldx, y, rounded, ldy, rows),
                                     experts->form);
    }
    for (int first = 0, n; first < route->experts && status == cudaSuccess; first += n) {
        cuda_matrix some;
        cuda_route to;
        n = expand_experts(l, experts, width, route, first, &some, &to);
        status = bf16_prompt_experts(l, &some, width, &to, x, ldx, y, rounded, ldy, rows);
    }
    return status;
}

/* --------------------------------------------------------------------------------------------------- rounded rows
 * Weights of form F8 are multiplied as they lie, with prompt rows in e4m3. */

static bool is_rounded(const matrix_rounding *r, const cuda_matrix *w) { return r->codes && w->form == CUDA_FORM_F8; }

static prompt_gemm_f8_args f8_args(const matrix_rounding *r, const cuda_matrix *w, void *out, size_t ldo, int rows,
                                   prompt_gemm_output output) {
    return (prompt_gemm_f8_args){.a = r->codes,
                                 .a_scale = r->scale,
                                 .w = w->data,
                                 .units = quant_units(w->ld),
                                 .out = out,
                                 .ldo = ldo,
                                 .m = rows,
                                 .n = w->out,
                                 .output = output};
}

static void f8_route(prompt_gemm_f8_args *args, const cuda_route *route, int width, int expert_rows) {
    args->n = width;
    args->m *= route->rank;
    args->expert_begin = route->begin;
    args->experts = route->experts;
    args->expert_rows = expert_rows;
    args->counter = route->finished;
}

static void round_rows(const cuda_launch *l, const matrix_rounding *r, const cuda_route *route, const cuda_matrix *w,
                       const cuda_bf16 *x, size_t ldx, int rows) {
    f8_round_rows(l, route, x, ldx, w->in, r->codes, r->scale, rows);
}

static cudaError_t f8_prompt_gated(const cuda_launch *l, const matrix_rounding *r, const cuda_matrix *gate,
                                   const cuda_matrix *up, const cuda_bf16 *x, size_t ldx, cuda_bf16 *out, size_t ldo,
                                   int rows) {
    prompt_gemm_f8_args args = f8_args(r, gate, out, ldo, rows, PROMPT_GEMM_GELU_BF16);
    args.w_up = up->data;
    round_rows(l, r, NULL, gate, x, ldx, rows);
    return prompt_gemm_f8(&args, l->stream);
}

static cudaError_t f8_prompt_experts_gated(const cuda_launch *l, const matrix_rounding *r, const cuda_matrix *experts,
                                           int width, const cuda_route *route, const cuda_bf16 *x, size_t ldx,
                                           cuda_bf16 *out, size_t ldo, int rows) {
    prompt_gemm_f8_args args = f8_args(r, experts, out, ldo, rows, PROMPT_GEMM_GELU_BF16);
    args.w_up = (const char *)(const void *)experts->data + quant_bytes(experts->form, width, experts->in);
    f8_route(&args, route, width, 2 * width);
    round_rows(l, r, route, experts, x, ldx, rows);
    return prompt_gemm_f8(&args, l->stream);
}

static cudaError_t f8_prompt_experts(const cuda_launch *l, const matrix_rounding *r, const cuda_matrix *experts,
                                     int width, const cuda_route *route, const cuda_bf16 *x, size_t ldx, void *y,
                                     bool rounded, size_t ldy, int rows) {
    prompt_gemm_f8_args args = f8_args(r, experts, y, ldy, rows, rounded ? PROMPT_GEMM_BF16 : PROMPT_GEMM_F32);
    f8_route(&args, route, width, width);
    round_rows(l, r, NULL, experts, x, ldx, rows * route->rank);
    return prompt_gemm_f8(&args, l->stream);
}

/* -------------------------------------------------------------------------------------------------------- table */

typedef struct matrix_kernels {
    const char *name;
    double bytes_per_weight; /* that a product reads */
    void (*products)(const cuda_launch *, const matrix_product *, int, const cuda_bf16 *, int, int, float);
    void (*gate_up)(const cuda_launch *, const cuda_feed_forward *, const cuda_route *, int);
    void (*down)(const cuda_launch *, const cuda_feed_forward *, const cuda_route *, int);
    cudaError_t (*prompt_product)(const cuda_launch *, const matrix_product *, const cuda_bf16 *, size_t, int);
    cudaError_t (*prompt_gated)(const cuda_launch *, const cuda_matrix *, const cuda_matrix *, const cuda_bf16 *,
                                size_t, cuda_bf16 *, size_t, int);
    cudaError_t (*prompt_experts_gated)(const cuda_launch *, const cuda_matrix *, int, const cuda_route *,
                                        const cuda_bf16 *, size_t, cuda_bf16 *, size_t, int);
    cudaError_t (*prompt_experts)(const cuda_launch *, const cuda_matrix *, int, const cuda_route *, const cuda_bf16 *,
                                  size_t, void *, bool, size_t, int);
} matrix_kernels;

#define QUANT_KERNELS(form_name, bits)                                                                                 \
    {                                                                                                                  \
        form_name, (bits) / 8.0, quant_few, quant_gate_up, quant_down, quant_prompt_product, quant_prompt_gated,       \
            quant_prompt_experts_gated, quant_prompt_experts                                                           \
    }

static const matrix_kernels kernels[CUDA_FORMS] = {
    [CUDA_FORM_BF16] = {"bf16", sizeof(cuda_bf16), bf16_products, cuda_gate_up, cuda_down, bf16_prompt_product,
                        bf16_prompt_gated, bf16_prompt_experts_gated, bf16_prompt_experts},
    [CUDA_FORM_Q4] = QUANT_KERNELS("q4", 4.5),
    [CUDA_FORM_Q8] = QUANT_KERNELS("q8", 8.5),
    [CUDA_FORM_A4] = QUANT_KERNELS("a4", 6),
    [CUDA_FORM_A8] = QUANT_KERNELS("a8", 10),
    [CUDA_FORM_G8] = QUANT_KERNELS("g8", 10),
    [CUDA_FORM_F8] = QUANT_KERNELS("f8", 9),
    [CUDA_FORM_S4] = QUANT_KERNELS("s4", 5),
    [CUDA_FORM_G4] = QUANT_KERNELS("g4", 6),
};

size_t matrix_bytes(cuda_form form, int out, int in) {
    return form == CUDA_FORM_BF16 ? bf16_bytes(out, in) : quant_bytes(form, out, in);
}

double matrix_read_bytes(const cuda_matrix *w) {
    return (w->one_scale ? 1 : kernels[w->form].bytes_per_weight) * w->out * w->in;
}

const char *matrix_form_name(cuda_form form) { return kernels[form].name; }

void matrix_products(const cuda_launch *l, const matrix_product *products, int n, const cuda_bf16 *x, int ldx, int rows,
                     float cap) {
    for (int form = 0; form < CUDA_FORMS; form++) {
        matrix_product list[CUDA_MAX_PRODUCTS];
        int of_form = 0;
        for (int i = 0; i < n; i++) {
            if ((int)products[i].w->form == form) list[of_form++] = products[i];
        }
        if (of_form) kernels[form].products(l, list, of_form, x, ldx, rows, cap);
    }
}

/* The dense matrices and the experts of a block may differ in form: then each has a launch of its own. */
static bool is_split(const cuda_matrix *dense, const cuda_matrix *experts, cuda_feed_forward parts[2],
                     const cuda_feed_forward *f) {
    if (!dense->data || !experts->data || dense->form == experts->form) return false;
    parts[0] = parts[1] = *f;
    parts[0].experts_gate_up.data = parts[0].experts_down.data = NULL;
    parts[1].gate.data = parts[1].up.data = parts[1].down.data = NULL;
    return true;
}

static cuda_form form_of(const cuda_matrix *dense, const cuda_matrix *experts) {
    return dense->data ? dense->form : experts->form;
}

void matrix_gate_up(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    cuda_feed_forward parts[2];
    if (is_split(&f->gate, &f->experts_gate_up, parts, f)) {
        for (int i = 0; i < 2; i++) matrix_gate_up(l, &parts[i], route, rows);
        return;
    }
    kernels[form_of(&f->gate, &f->experts_gate_up)].gate_up(l, f, route, rows);
}

void matrix_down(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    cuda_feed_forward parts[2];
    if (is_split(&f->down, &f->experts_down, parts, f)) {
        for (int i = 0; i < 2; i++) matrix_down(l, &parts[i], route, rows);
        return;
    }
    kernels[form_of(&f->down, &f->experts_down)].down(l, f, route, rows);
}

cudaError_t matrix_prompt_products(const cuda_launch *l, const matrix_rounding *r, const matrix_product *products,
                                   int n, const cuda_bf16 *x, size_t ldx, int rows) {
    bool rounded = false;
    cudaError_t status = cudaSuccess;
    for (int i = 0; i < n && status == cudaSuccess; i++) {
        const matrix_product *p = &products[i];
        if (!is_rounded(r, p->w)) {
            status = kernels[p->w->form].prompt_product(l, p, x, ldx, rows);
            continue;
        }
        if (!rounded) round_rows(l, r, NULL, p->w, x, ldx, rows);
        rounded = true;
        prompt_gemm_f8_args args = f8_args(r, p->w, p->y, (size_t)p->ldy, rows, PROMPT_GEMM_F32);
        status = prompt_gemm_f8(&args, l->stream);
    }
    return status;
}

bool matrix_gathers(const matrix_rounding *r, const cuda_matrix *experts) { return is_rounded(r, experts); }

cudaError_t matrix_prompt_gated(const cuda_launch *l, const matrix_rounding *r, const cuda_matrix *gate,
                                const cuda_matrix *up, const cuda_bf16 *x, size_t ldx, cuda_bf16 *out, size_t ldo,
                                int rows) {
    if (is_rounded(r, gate) && is_rounded(r, up)) return f8_prompt_gated(l, r, gate, up, x, ldx, out, ldo, rows);
    return kernels[gate->form].prompt_gated(l, gate, up, x, ldx, out, ldo, rows);
}

cudaError_t matrix_prompt_experts_gated(const cuda_launch *l, const matrix_rounding *r, const cuda_matrix *experts,
                                        int width, const cuda_route *route, const cuda_bf16 *x, size_t ldx,
                                        cuda_bf16 *out, size_t ldo, int rows) {
    if (is_rounded(r, experts)) return f8_prompt_experts_gated(l, r, experts, width, route, x, ldx, out, ldo, rows);
    return kernels[experts->form].prompt_experts_gated(l, experts, width, route, x, ldx, out, ldo, rows);
}

cudaError_t matrix_prompt_experts(const cuda_launch *l, const matrix_rounding *r, const cuda_matrix *experts, int width,
                                  const cuda_route *route, const cuda_bf16 *x, size_t ldx, void *y, bool rounded,
                                  size_t ldy, int rows) {
    if (is_rounded(r, experts)) return f8_prompt_experts(l, r, experts, width, route, x, ldx, y, rounded, ldy, rows);
    return kernels[experts->form].prompt_experts(l, experts, width, route, x, ldx, y, rounded, ldy, rows);
}
