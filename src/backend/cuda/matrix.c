#include "backend/cuda/matrix.h"

#include "backend/cuda/prompt_gemm.h"

/* --------------------------------------------------------------------------------------------------------- bf16 */

/* [out][in rounded up to CUDA_K_STEP], padding zero */
static size_t bf16_bytes(int out, int in) { return (size_t)out * (size_t)cuda_padded(in) * sizeof(cuda_bf16); }

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

static cudaError_t bf16_prompt_product(const cuda_launch *l, const matrix_product *product, const cuda_bf16 *x,
                                       size_t ldx, int rows) {
    prompt_gemm_args args = bf16_args(product->w, x, ldx, product->y, (size_t)product->ldy, rows);
    return prompt_gemm(&args, l->stream);
}

static cudaError_t bf16_prompt_gated(const cuda_launch *l, const cuda_matrix *gate, const cuda_matrix *up,
                                     const cuda_bf16 *x, size_t ldx, cuda_bf16 *out, size_t ldo, int rows) {
    prompt_gemm_args args = bf16_args(gate, x, ldx, out, ldo, rows);
    args.w_up = up->data;
    args.output = PROMPT_GEMM_GELU_BF16;
    return prompt_gemm(&args, l->stream);
}

static cudaError_t bf16_prompt_experts_gated(const cuda_launch *l, const cuda_matrix *experts, int width,
                                             const cuda_route *route, const cuda_bf16 *x, size_t ldx, cuda_bf16 *out,
                                             size_t ldo, int rows) {
    size_t half = (size_t)width * (size_t)experts->ld;
    prompt_gemm_grouped_args args = {
        .product = bf16_args(experts, x, ldx, out, ldo, rows * route->rank),
        .expert_begin = route->begin,
        .counter = route->finished,
        .expert_stride = 2 * half,
        .experts = route->experts,
    };
    args.product.n = width;
    args.product.w_up = experts->data + half;
    args.product.output = PROMPT_GEMM_GELU_BF16;
    return prompt_gemm_grouped(&args, l->stream);
}

static cudaError_t bf16_prompt_experts(const cuda_launch *l, const cuda_matrix *experts, int width,
                                       const cuda_route *route, const cuda_bf16 *x, size_t ldx, void *y, bool rounded,
                                       size_t ldy, int rows) {
    prompt_gemm_grouped_args args = {
        .product = bf16_args(experts, x, ldx, y, ldy, rows * route->rank),
        .expert_begin = route->begin,
        .counter = route->finished,
        .expert_stride = (size_t)width * (size_t)experts->ld,
        .experts = route->experts,
    };
    args.product.n = width;
    args.product.output = rounded ? PROMPT_GEMM_BF16 : PROMPT_GEMM_F32;
    return prompt_gemm_grouped(&args, l->stream);
}

/* -------------------------------------------------------------------------------------------------------- table */

typedef struct matrix_kernels {
    const char *name;
    double bytes_per_weight; /* that a product reads */
    size_t (*bytes)(int out, int in);
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

static const matrix_kernels kernels[CUDA_FORMS] = {
    [CUDA_FORM_BF16] = {"bf16", sizeof(cuda_bf16), bf16_bytes, bf16_products, cuda_gate_up, cuda_down,
                        bf16_prompt_product, bf16_prompt_gated, bf16_prompt_experts_gated, bf16_prompt_experts},
};

size_t matrix_bytes(cuda_form form, int out, int in) { return kernels[form].bytes(out, in); }

double matrix_read_bytes(const cuda_matrix *w) { return kernels[w->form].bytes_per_weight * w->out * w->in; }

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

void matrix_gate_up(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    kernels[f->gate.form].gate_up(l, f, route, rows);
}

void matrix_down(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    kernels[f->down.form].down(l, f, route, rows);
}

cudaError_t matrix_prompt_product(const cuda_launch *l, const matrix_product *product, const cuda_bf16 *x, size_t ldx,
                                  int rows) {
    return kernels[product->w->form].prompt_product(l, product, x, ldx, rows);
}

cudaError_t matrix_prompt_gated(const cuda_launch *l, const cuda_matrix *gate, const cuda_matrix *up,
                                const cuda_bf16 *x, size_t ldx, cuda_bf16 *out, size_t ldo, int rows) {
    return kernels[gate->form].prompt_gated(l, gate, up, x, ldx, out, ldo, rows);
}

cudaError_t matrix_prompt_experts_gated(const cuda_launch *l, const cuda_matrix *experts, int width,
                                        const cuda_route *route, const cuda_bf16 *x, size_t ldx, cuda_bf16 *out,
                                        size_t ldo, int rows) {
    return kernels[experts->form].prompt_experts_gated(l, experts, width, route, x, ldx, out, ldo, rows);
}

cudaError_t matrix_prompt_experts(const cuda_launch *l, const cuda_matrix *experts, int width, const cuda_route *route,
                                  const cuda_bf16 *x, size_t ldx, void *y, bool rounded, size_t ldy, int rows) {
    return kernels[experts->form].prompt_experts(l, experts, width, route, x, ldx, y, rounded, ldy, rows);
}
