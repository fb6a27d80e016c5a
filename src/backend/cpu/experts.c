/* Mixture of experts: the router in float32, rows grouped by expert, two batches of products (gate/up and down).
 * A row's experts are summed in the order of its ranking (largest router probability first), whatever the batch. */
#include <math.h>
#include <string.h>

#include "backend/cpu/experts.h"
#include "backend/cpu/matrix.h"

typedef struct route_context {
    backend_model *model;
    const gemma4_layer_weights *w;
} route_context;

static void router_inputs(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    route_context *r = context;
    backend_model *m = r->model;
    int hidden = m->config->hidden;
    float constant = 1.0f / sqrtf((float)hidden);
    for (size_t row = begin; row < end; row++) {
        float *x = m->x + row * (size_t)hidden;
        m->kernels->rms_norm(m->h + row * (size_t)hidden, NULL, hidden, m->config->rms_eps, x);
        m->kernels->multiply(r->w->router_scale, hidden, x);
        m->kernels->scale(constant, hidden, x);
    }
}

/* Softmax over all experts, the k largest (lowest id first on ties), renormalised, times the expert's own scale. */
static void choose_experts(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    route_context *r = context;
    backend_model *m = r->model;
    int experts = m->config->experts, k = m->config->experts_per_token;
    for (size_t row = begin; row < end; row++) {
        float *z = m->router_logits + row * (size_t)experts;
        int *chosen = m->expert_of + row * (size_t)k;
        float *weights = m->expert_weight + row * (size_t)k;
        float largest = 0, sum = 0;
        for (int rank = 0; rank < k; rank++) {
            int best = -1;
            for (int e = 0; e < experts; e++) {
                if (z[e] == -INFINITY) continue;
                if (best < 0 || z[e] > z[best]) best = e;
            }
            if (best < 0) best = rank; /* only with non-finite logits */
            chosen[rank] = best;
            if (rank == 0) largest = z[best];
            weights[rank] = expf(z[best] - largest);
            sum += weights[rank];
            z[best] = -INFINITY;
        }
        for (int rank = 0; rank < k; rank++) {
            weights[rank] = weights[rank] / sum * r->w->router_expert_scale[chosen[rank]];
        }
    }
}

void experts_route(backend_model *m, const gemma4_layer_weights *w, int rows) {
    int hidden = m->config->hidden, experts = m->config->experts, k = m->config->experts_per_token;
    route_context context = {m, w};
    rows_run(m, rows, 2 * hidden, router_inputs, &context);
    pack(m, &m->packed, m->x, (size_t)hidden, rows, hidden, packing_exact(m, &w->router_proj));
    matrix_job job = matrix_product(&m->packed, rows, &w->router_proj, m->router_logits, (size_t)experts);
    job.exact_input = true;
    matrix_run(m, &job, 1);
    rows_run(m, rows, experts * k, choose_experts, &context);

    /* Counting sort of (row, rank) pairs by expert. */
    int slots = rows * k;
    memset(m->expert_begin, 0, (size_t)(experts + 1) * sizeof *m->expert_begin);
    for (int s = 0; s < slots; s++) m->expert_begin[m->expert_of[s] + 1]++;
    for (int e = 0; e < experts; e++) m->expert_begin[e + 1] += m->expert_begin[e];
    for (int s = 0; s < slots; s++) {
        int slot = m->expert_begin[m->expert_of[s]]++;
        m->expert_rows[slot] = s / k;
        m->expert_slot[s] = slot;
    }
    for (int e = experts; e > 0; e--) m->expert_begin[e] = m->expert_begin[e - 1];
    m->expert_begin[0] = 0;
}

packing_set experts_packings(const backend_model *m, const gemma4_layer_weights *w) {
    return packing_of(m, &w->experts_gate_up) | packing_of(m, &w->experts_gate) | packing_of(m, &w->experts_up);
}

typedef struct slot_context {
    backend_model *model;
    const gemma4_layer_weights *w; /* of the gathered rows */
    int intermediate;
    float *gate_up; /* [rows][2 * intermediate] */
} slot_context;

static void gather_slots(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    slot_context *s = context;
    backend_model *m = s->model;
    const weight *const readers[] = {&s->w->experts_gate_up, &s->w->experts_gate, &s->w->experts_up};
    packing_set done = 0;
    for (int r = 0; r < 3; r++) {
        packing_set wanted = packing_of(m, readers[r]);
        if (!(wanted & ~done)) continue;
        done |= wanted;
        for (size_t slot = begin; slot < end; slot++)
            packed_row_copy(m, readers[r], &m->packed_moe, m->expert_rows[slot], &m->packed_slots, (int)slot);
    }
}

static void activate_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    slot_context *s = context;
    backend_model *m = s->model;
    size_t width = (size_t)s->intermediate;
    for (size_t slot = begin; slot < end; slot++) {
        float *gate = s->gate_up + slot * 2 * width;
        m->kernels->gated(0, gate, gate + width, s->intermediate, gate);
    }
}

static void combine_experts(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    backend_model *m = context;
    int hidden = m->config->hidden, k = m->config->experts_per_token;
    for (size_t row = begin; row < end; row++) {
        float *out = m->moe + row * (size_t)hidden;
        memset(out, 0, (size_t)hidden * sizeof *out);
        for (int rank = 0; rank < k; rank++) {
            size_t s = row * (size_t)k + (size_t)rank;
            m->kernels->axpy(m->expert_weight[s], m->expert_out + (size_t)m->expert_slot[s] * (size_t)hidden, hidden,
                             out);
        }
    }
}

/* One product per expert in use, of its `out` rows of the stacked matrix; results lie ldy floats apart. */
static int expert_jobs(backend_model *m, const packed_rows *input, const weight *stacked, int out, float *y, size_t ldy,
                       weight *views, matrix_job *jobs) {
    int n = 0;
    for (int e = 0; e < m->config->experts; e++) {
        int first = m->expert_begin[e], rows = m->expert_begin[e + 1] - first;
        if (rows == 0) continue;
        views[n] = weight_rows(stacked, e * out, out);
        jobs[n] = matrix_product(input, rows, &views[n], y + (size_t)first * ldy, ldy);
        jobs[n].first_row = first;
        n++;
    }
    return n;
}

static int gate_up_jobs(backend_model *m, const gemma4_layer_weights *w, weight *views, matrix_job *jobs) {
    int width = m->config->expert_intermediate;
    size_t ldy = 2 * (size_t)width;
    if (weight_present(&w->experts_gate_up))
        return expert_jobs(m, &m->packed_slots, &w->experts_gate_up, 2 * width, m->expert_gate_up, ldy, views, jobs);
    int n = expert_jobs(m, &m->packed_slots, &w->experts_gate, width, m->expert_gate_up, ldy, views, jobs);
    return n +
           expert_jobs(m, &m->packed_slots, &w->experts_up, width, m->expert_gate_up + width, ldy, views + n, jobs + n);
}

/* Dense MLP and experts side by side: their gate/up products are one batch, their down products another. The dense
 * products come first: they are cut into the larger pieces, and the small ones at the end leave no thread waiting long.
 * Expects the dense input in m->packed, the experts' input in m->packed_moe (MoE only). Leaves the dense result in
 * m->branch and the experts' weighted sum in m->moe. */
void experts_forward(backend_model *m, const gemma4_layer_weights *w, const gemma4_layer_config *lc, int rows) {
    const gemma4_config *config = m->config;
    size_t width = (size_t)lc->intermediate;
    matrix_job *jobs = m->jobs;
    weight *views = (weight *)(void *)(m->jobs + m->max_jobs);
    slot_context slots = {.model = m, .intermediate = config->expert_intermediate, .gate_up = m->expert_gate_up};
    int n_slots = config->moe ? rows * config->experts_per_token : 0;

    int n_jobs = 0;
    jobs[n_jobs++] = matrix_product(&m->packed, rows, &w->gate_proj, m->gate_up, 2 * width);
    jobs[n_jobs++] = matrix_product(&m->packed, rows, &w->up_proj, m->gate_up + width, 2 * width);
    if (config->moe) {
        slots.w = w;
        rows_run(m, n_slots, config->hidden / 2, gather_slots, &slots);
        n_jobs += gate_up_jobs(m, w, views, jobs + n_jobs);
    }
    matrix_run(m, jobs, n_jobs);

    slot_context dense = {.model = m, .intermediate = lc->intermediate, .gate_up = m->gate_up};
    rows_run(m, rows, 2 * lc->intermediate, activate_rows, &dense);
    pack(m, &m->packed_act, m->gate_up, 2 * width, rows, lc->intermediate, packing_of(m, &w->down_proj));
    n_jobs = 0;
    jobs[n_jobs++] = matrix_product(&m->packed_act, rows, &w->down_proj, m->branch, (size_t)config->hidden);
    if (config->moe) {
        rows_run(m, n_slots, 2 * config->expert_intermediate, activate_rows, &slots);
        pack(m, &m->packed_act_slots, m->expert_gate_up, 2 * (size_t)config->expert_intermediate, n_slots,
             config->expert_intermediate, packing_of(m, &w->experts_down));
        n_jobs += expert_jobs(m, &m->packed_act_slots, &w->experts_down, config->hidden, m->expert_out,
                              (size_t)config->hidden, views, jobs + n_jobs);
    }
    matrix_run(m, jobs, n_jobs);
    if (config->moe) rows_run(m, rows, config->experts_per_token * config->hidden, combine_experts, m);
}
