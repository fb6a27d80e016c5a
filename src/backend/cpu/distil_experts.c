/* Router and experts of a segment's rows, there and back. A row's slots are its chosen experts; slots lie in the order
 * of experts, so that each expert's are one product. Only the chosen experts' logits have gradients. */
#include <math.h>
#include <string.h>

#include "backend/cpu/backward.h"
#include "backend/cpu/distil.h"
#include "backend/cpu/matrix.h"

/* The k largest logits, lowest id first on ties; their softmax, times the experts' own scales (experts.c). */
static void choose_row(backend_restoration_trainer *s, void *context, int row) {
    int layer = *(const int *)context;
    const model_config *c = s->m->config;
    const float *z = s->tape.router_z + (size_t)row * (size_t)c->experts;
    int k = c->experts_per_token, *chosen = s->tape.chosen + (size_t)row * (size_t)k;
    float *share = s->tape.share + (size_t)row * (size_t)k, sum = 0;
    for (int rank = 0; rank < k; rank++) {
        int best = -1;
        for (int e = 0; e < c->experts; e++) {
            bool taken = false;
            for (int r = 0; r < rank; r++) taken |= chosen[r] == e;
            if (!taken && (best < 0 || z[e] > z[best])) best = e;
        }
        chosen[rank] = best;
        share[rank] = expf(z[best] - z[chosen[0]]);
        sum += share[rank];
    }
    for (int rank = 0; rank < k; rank++)
        share[rank] = share[rank] / sum * s->m->weights->layer[layer].router_expert_scale[chosen[rank]];
}

static void sort_slots(backend_restoration_trainer *s) {
    const model_config *c = s->m->config;
    distil_tape *t = &s->tape;
    int slots = s->o.rows * c->experts_per_token;
    memset(t->begin, 0, (size_t)(c->experts + 1) * sizeof *t->begin);
    for (int i = 0; i < slots; i++) t->begin[t->chosen[i] + 1]++;
    for (int e = 0; e < c->experts; e++) t->begin[e + 1] += t->begin[e];
    for (int i = 0; i < slots; i++) {
        int slot = t->begin[t->chosen[i]]++;
        t->row_of[slot] = i / c->experts_per_token;
        t->slot_of[i] = slot;
    }
    for (int e = c->experts; e > 0; e--) t->begin[e] = t->begin[e - 1];
    t->begin[0] = 0;
}

/* y [slots][out of an expert] from x [slots][in]: the experts' parts of a stacked matrix of out rows each. */
static void expert_products(backend_restoration_trainer *s, const float *x, const weight *stacked, int out, float *y,
                            size_t ldy) {
    for (int e = 0; e < s->m->config->experts; e++) {
        size_t first = (size_t)s->tape.begin[e];
        int rows = s->tape.begin[e + 1] - s->tape.begin[e];
        weight w = weight_rows(stacked, e * out, out);
        distil_product(s, x + first * (size_t)w.in, (size_t)w.in, rows, &w, y + first * ldy, ldy);
    }
}

static void activate_slot(backend_restoration_trainer *s, void *context, int slot) {
    (void)context;
    size_t width = (size_t)s->m->config->expert_intermediate;
    const float *gate = s->tape.slot_gate_up + (size_t)slot * 2 * width;
    s->m->kernels->gated(0, gate, gate + width, (int)width, s->tape.slot_act + (size_t)slot * width);
}

static void mix_row(backend_restoration_trainer *s, void *context, int row) {
    (void)context;
    const model_config *c = s->m->config;
    size_t hidden = (size_t)c->hidden, k = (size_t)c->experts_per_token;
    float *out = s->tape.mixed + (size_t)row * hidden;
    memset(out, 0, hidden * sizeof *out);
    for (size_t i = (size_t)row * k; i < ((size_t)row + 1) * k; i++)
        s->m->kernels->axpy(s->tape.share[i], s->tape.slot_out + (size_t)s->tape.slot_of[i] * hidden, c->hidden, out);
}

void distil_experts(backend_restoration_trainer *s, int layer) {
    const model_config *c = s->m->config;
    const layer_weights *w = &s->m->weights->layer[layer];
    distil_tape *t = &s->tape;
    size_t hidden = (size_t)c->hidden, width = (size_t)c->expert_intermediate;
    int n = s->o.rows, slots = n * c->experts_per_token;
    for (int r = 0; r < n; r++) {
        size_t at = (size_t)r * hidden;
        s->m->kernels->rms_norm(t->h1 + at, w->pre_ffn_norm_2, c->hidden, c->rms_eps, t->expert_x + at);
        s->m->kernels->rms_norm(t->h1 + at, s->layer[layer].router_norm, c->hidden, c->rms_eps, t->router_x + at);
    }
    distil_product(s, t->router_x, hidden, n, &w->router_proj, t->router_z, (size_t)c->experts);
    distil_rows(s, n, choose_row, &layer);
    sort_slots(s);
    for (int slot = 0; slot < slots; slot++)
        memcpy(t->slot_x + (size_t)slot * hidden, t->expert_x + (size_t)t->row_of[slot] * hidden,
               hidden * sizeof *t->slot_x);
    if (weight_present(&w->experts_gate_up)) {
        expert_products(s, t->slot_x, &w->experts_gate_up, 2 * (int)width, t->slot_gate_up, 2 * width);
    } else {
        expert_products(s, t->slot_x, &w->experts_gate, (int)width, t->slot_gate_up, 2 * width);
        expert_products(s, t->slot_x, &w->experts_up, (int)width, t->slot_gate_up + width, 2 * width);
    }
    distil_rows(s, slots, activate_slot, NULL);
    expert_products(s, t->slot_act, &w->experts_down, c->hidden, t->slot_out, hidden);
    distil_rows(s, n, mix_row, NULL);
}

typedef struct back_work {
    int layer;
    const float *d_mixed;
    float *d_h1;
} back_work;

/* d_slot = share * d_mixed, and the gradients of the row's logits. */
static void unmix_row(backend_restoration_trainer *s, void *context, int row) {
    const back_work *w = context;
    const model_config *c = s->m->config;
    const float *scales = s->m->weights->layer[w->layer].router_expert_scale;
    size_t hidden = (size_t)c->hidden, first = (size_t)row * (size_t)c->experts_per_token;
    float d_share[DISTIL_MAX_CHOSEN], d_z[DISTIL_MAX_CHOSEN], scale[DISTIL_MAX_CHOSEN];
    int k = c->experts_per_token;
    const float *d = w->d_mixed + (size_t)row * hidden;
    float *z = s->d_router_z + (size_t)row * (size_t)c->experts;
    for (int i = 0; i < k; i++) {
        size_t slot = (size_t)s->tape.slot_of[first + (size_t)i];
        const float *out = s->tape.slot_out + slot * hidden;
        float *d_out = s->d_slot + slot * hidden;
        double sum = 0;
        for (size_t j = 0; j < hidden; j++) {
            sum += (double)d[j] * (double)out[j];
            d_out[j] = d[j] * s->tape.share[first + (size_t)i];
        }
        d_share[i] = (float)sum;
        scale[i] = scales[s->tape.chosen[first + (size_t)i]];
    }
    backward_route(s->tape.share + first, scale, d_share, k, d_z);
    memset(z, 0, (size_t)c->experts * sizeof *z);
    for (int i = 0; i < k; i++) z[s->tape.chosen[first + (size_t)i]] = d_z[i];
}

static void deactivate_slot(backend_restoration_trainer *s, void *context, int slot) {
    (void)context;
    size_t width = (size_t)s->m->config->expert_intermediate, at = (size_t)slot * 2 * width;
    backward_gated(s->tape.slot_gate_up + at, s->tape.slot_gate_up + at + width, s->d_slot_act + (size_t)slot * width,
                   (int)width, s->d_slot_gate_up + at, s->d_slot_gate_up + at + width);
}

static void back_row(backend_restoration_trainer *s, void *context, int row) {
    const back_work *w = context;
    const model_config *c = s->m->config;
    const layer_weights *weights = &s->m->weights->layer[w->layer];
    size_t hidden = (size_t)c->hidden, k = (size_t)c->experts_per_token, at = (size_t)row * hidden;
    float *d_x = s->d_x + at; /* of router_x, then of expert_x */
    backward_rms_norm(s->tape.h1 + at, s->layer[w->layer].router_norm, d_x, c->hidden, c->rms_eps, w->d_h1 + at);
    memset(d_x, 0, hidden * sizeof *d_x);
    for (size_t i = (size_t)row * k; i < ((size_t)row + 1) * k; i++)
        s->m->kernels->axpy(1.0f, s->d_slot_x + (size_t)s->tape.slot_of[i] * hidden, c->hidden, d_x);
    backward_rms_norm(s->tape.h1 + at, weights->pre_ffn_norm_2, d_x, c->hidden, c->rms_eps, w->d_h1 + at);
}

void distil_experts_back(backend_restoration_trainer *s, int layer, const float *d_mixed, float *d_h1) {
    const model_config *c = s->m->config;
    const distil_layer *l = &s->layer[layer];
    size_t hidden = (size_t)c->hidden, width = (size_t)c->expert_intermediate;
    int n = s->o.rows, slots = n * c->experts_per_token;
    weight down = distil_matrix(l->expert_down_t, c->experts * (int)width, c->hidden),
           gate_up = distil_matrix(l->expert_gate_up_t, c->experts * c->hidden, 2 * (int)width);
    back_work work = {layer, d_mixed, d_h1};
    distil_rows(s, n, unmix_row, &work);
    expert_products(s, s->d_slot, &down, (int)width, s->d_slot_act, width);
    distil_rows(s, slots, deactivate_slot, NULL);
    expert_products(s, s->d_slot_gate_up, &gate_up, c->hidden, s->d_slot_x, hidden);
    distil_product(s, s->d_router_z, (size_t)c->experts, n, &l->router_t, s->d_x, hidden);
    distil_rows(s, n, back_row, &work);
}
