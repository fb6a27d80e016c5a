/* Mixture of experts: rows grouped by expert, products over what they have in common. A row's experts are summed in the
 * order of its ranking (largest router probability first), whatever the batch. */
#include <math.h>
#include <string.h>

#include "backend/cpu/experts.h"
#include "backend/cpu/matrix.h"

typedef struct route_context {
    backend_model *model;
    const float *expert_scale;
} route_context;

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
            weights[rank] = weights[rank] / sum * r->expert_scale[chosen[rank]];
        }
    }
}

void experts_route(backend_model *m, const float *expert_scale, int rows) {
    int experts = m->config->experts, k = m->config->experts_per_token;
    route_context context = {m, expert_scale};
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

typedef struct gather_context {
    backend_model *model;
    const weight *readers[PROGRAM_MATRICES];
} gather_context;

static void gather_slots(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    gather_context *g = context;
    backend_model *m = g->model;
    packing_set done = 0;
    for (int r = 0; r < PROGRAM_MATRICES; r++) {
        packing_set wanted = packing_of(m, g->readers[r]);
        if (!(wanted & ~done)) continue;
        done |= wanted;
        for (size_t slot = begin; slot < end; slot++)
            packed_row_copy(m, g->readers[r], &m->packed_moe, m->expert_rows[slot], &m->packed_slots, (int)slot);
    }
}

typedef struct activation {
    backend_model *model;
    float *gate_up;
    int width;
} activation;

static void activate_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    activation *a = context;
    size_t width = (size_t)a->width;
    for (size_t row = begin; row < end; row++) {
        float *gate = a->gate_up + row * 2 * width;
        a->model->kernels->gated(0, gate, gate + width, a->width, gate);
    }
}

void activate(backend_model *m, float *gate_up, int rows, int width) {
    activation a = {m, gate_up, width};
    rows_run(m, rows, 2 * width, activate_rows, &a);
}

void experts_mix(const backend_model *m, size_t row, float *out) {
    int hidden = m->config->hidden, k = m->config->experts_per_token;
    memset(out, 0, (size_t)hidden * sizeof *out);
    for (int rank = 0; rank < k; rank++) {
        size_t s = row * (size_t)k + (size_t)rank;
        m->kernels->axpy(m->expert_weight[s], m->expert_out + (size_t)m->expert_slot[s] * (size_t)hidden, hidden, out);
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

static int gate_up_jobs(backend_model *m, const program_op *o, int rows, weight *views, matrix_job *jobs) {
    gather_context gather = {.model = m};
    int width = m->config->expert_intermediate, hidden = m->config->hidden;
    size_t ldy = 2 * (size_t)width;
    packing_set packings = 0;
    for (int i = 0; i < PROGRAM_MATRICES; i++) {
        gather.readers[i] = program_matrix(m->weights, o->slot[i]);
        packings |= packing_of(m, gather.readers[i]);
    }
    pack(m, &m->packed_moe, m->x_experts, (size_t)hidden, rows, hidden, packings);
    rows_run(m, rows * m->config->experts_per_token, hidden / 2, gather_slots, &gather);
    if (weight_present(gather.readers[0]))
        return expert_jobs(m, &m->packed_slots, gather.readers[0], 2 * width, m->expert_gate_up, ldy, views, jobs);
    int n = expert_jobs(m, &m->packed_slots, gather.readers[1], width, m->expert_gate_up, ldy, views, jobs);
    return n + expert_jobs(m, &m->packed_slots, gather.readers[2], width, m->expert_gate_up + width, ldy, views + n,
                           jobs + n);
}

int experts_jobs(backend_model *m, const program_op *o, int rows, weight *views, matrix_job *jobs) {
    if (o->epilogue == EPILOGUE_GATED) return gate_up_jobs(m, o, rows, views, jobs);
    const weight *down = program_matrix(m->weights, o->slot[0]);
    int width = m->config->expert_intermediate, hidden = m->config->hidden;
    pack(m, &m->packed_act_slots, m->expert_gate_up, 2 * (size_t)width, rows * m->config->experts_per_token, width,
         packing_of(m, down));
    return expert_jobs(m, &m->packed_act_slots, down, hidden, m->expert_out, (size_t)hidden, views, jobs);
}
