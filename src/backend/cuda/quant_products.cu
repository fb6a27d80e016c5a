/* Products of few rows with quantised weights: the launchers by form, those of GGUF's Q4_0 and Q8_0 here. */
#include "backend/cuda/quant_form.cuh"

static const quant_launchers launch_q4 = QUANT_LAUNCHERS(CUDA_FORM_Q4, false),
                             launch_q8 = QUANT_LAUNCHERS(CUDA_FORM_Q8, false);

static const quant_launchers *launchers_of(cuda_form form, bool one_scale) {
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
        return one_scale ? &quant_launch_f8_one_scale : &quant_launch_f8;
    case CUDA_FORM_S4:
        return &quant_launch_s4;
    case CUDA_FORM_G4:
        return &quant_launch_g4;
    default:
        return &launch_q8;
    }
}

/* Whether all that is there of a feed-forward block has one scale a row. */
static bool have_one_scale(const cuda_matrix *dense, const cuda_matrix *second, const cuda_matrix *experts) {
    return (!dense->data || (dense->one_scale && second->one_scale)) && (!experts->data || experts->one_scale);
}

void quant_products(const cuda_launch *l, cuda_form form, const cuda_product *products, int n, int in,
                    const cuda_bf16 *x, int ldx, int rows, float cap) {
    bool one_scale = true;
    for (int i = 0; i < n; i++) one_scale &= products[i].one_scale;
    launchers_of(form, one_scale)->products(l, products, n, in, x, ldx, rows, cap);
}

void quant_gate_up(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    launchers_of(f->gate.data ? f->gate.form : f->experts_gate_up.form,
                 have_one_scale(&f->gate, &f->up, &f->experts_gate_up))
        ->gate_up(l, f, route, rows);
}

void quant_down(const cuda_launch *l, const cuda_feed_forward *f, const cuda_route *route, int rows) {
    launchers_of(f->down.data ? f->down.form : f->experts_down.form,
                 have_one_scale(&f->down, &f->down, &f->experts_down))
        ->down(l, f, route, rows);
}
