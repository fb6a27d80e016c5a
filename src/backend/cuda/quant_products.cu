/* Products of few rows with quantised weights: the launchers by form, those of GGUF's Q4_0 and Q8_0 here. */
#include "backend/cuda/quant_form.cuh"

static const quant_launchers launch_q4 = QUANT_LAUNCHERS(CUDA_FORM_Q4), launch_q8 = QUANT_LAUNCHERS(CUDA_FORM_Q8);

static const quant_launchers *launchers_of(cuda_form form) {
    switch (form) {
    case CUDA_FORM_Q4:
        return &launch_q4;
    case CUDA_FORM_A4:
        return &quant_launch_a4;
    case CUDA_FORM_A8:
        return &quant_launch_a8;
    case CUDA_FORM_G8:
        return &quant_launch_g8;
    case CUDA_FORM_F8:
        return &quant_launch_f8;
    case CUDA_FORM_S4:
        return &quant_launch_s4;
    case CUDA_FORM_G4:
        return &quant_launch_g4;
    default:
        return &launch_q8;
    }
}

void quant_products(const cuda_launch *l, cuda_form form, const cuda_product *products, int n, int in,
                    const cuda_bf16 *x, int ldx, int rows, float cap) {
    launchers_of(form)->products(l, products, n, in, x, ldx, rows, cap);
}

void quant_gate_up(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    launchers_of(f->gate.data ? f->gate.form : f->experts_gate_up.form)->gate_up(l, f, route, rows);
}

void quant_down(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    launchers_of(f->down.data ? f->down.form : f->experts_down.form)->down(l, f, route, rows);
}
