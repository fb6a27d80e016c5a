/* Mixture of experts: rows grouped by expert, products over what they have in common. A row's experts are summed in the
 * order of its ranking (largest router probability first), whatever the batch. */
#include <math.h>
#include <string.h>

#include "backend/cpu/bounded.h"
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

packing_set experts_packings(const backend_model *m, const layer_weights *w) {
    return packing_of(m, &w->experts_gate_up) | packing_of(m, &w->experts_gate) | packing_of(m, &w->experts_up);
}

/* The next layer's router is asked what it would choose for this layer's residual stream. Of several rows, an expert is
 * as probable as for the row that wants it most. */
int experts_likely(backend_model *m, int layer, int rows) {
    const layer_weights *l = &m->weights->layer[layer];
    const int hidden = m->config->hidden, experts = m->config->experts;
    float *x = m->branch, *best = m->router_logits; /* of the router, whose choice is made */
    for (int r = 0; r < rows; r++)
        m->kernels->rms_norm(m->h + (size_t)r * (size_t)hidden, l->router_scale, hidden, m->config->rms_eps,
                             x + (size_t)r * (size_t)hidden);
    pack(m, &m->packed, x, (size_t)hidden, rows, hidden, packing_exact(m, &l->router_proj));
    m->jobs[0] = matrix_product(&m->packed, rows, &l->router_proj, m->router_logits, (size_t)experts);
    m->jobs[0].exact_input = true;
    matrix_run(m, m->jobs, 1);
    for (int r = 0; r < rows; r++) {
        float *z = m->router_logits + (size_t)r * (size_t)experts;
        const float largest = m->kernels->maximum(z, experts);
        for (int e = 0; e < experts; e++) {
            z[e] -= largest;
            if (z[e] > best[e]) best[e] = z[e];
        }
    }
    for (int place = 0; place < m->config->experts_per_token; place++) {
        int likely = 0;
        for (int e = 1; e < experts; e++)
            if (best[e] > best[likely]) likely = e;
        if (bounded_order(m, layer, &(int){likely}, 1) == 0) return likely;
        best[likely] = -INFINITY;
    }
    return -1;
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

expert_list experts_chosen(const backend_model *m) {
    expert_list list = {.expert = m->expert_begin + m->config->experts + 1};
    for (int e = 0; e < m->config->experts; e++)
        if (m->expert_begin[e + 1] > m->expert_begin[e]) list.expert[list.n++] = e;
    return list;
}

/* One product per expert, of its `out` rows of the stacked matrix; results lie ldy floats apart. */
static int expert_jobs(backend_model *m, int layer, expert_list list, const packed_rows *input, const weight *stacked,
                       int out, float *y, size_t ldy, weight *views, matrix_job *jobs) {
    for (int i = 0; i < list.n; i++) {
        int e = list.expert[i], first = m->expert_begin[e];
        views[i] = m->bounded ? bounded_expert(m, layer, stacked, e, out) : weight_rows(stacked, e * out, out);
        jobs[i] = matrix_product(input, m->expert_begin[e + 1] - first, &views[i], y + (size_t)first * ldy, ldy);
        jobs[i].first_row = first;
    }
    return list.n;
}

void experts_pack(backend_model *m, const program_op *o, int rows) {
    gather_context gather = {.model = m};
    int hidden = m->config->hidden;
    packing_set packings = 0;
    for (int i = 0; i < PROGRAM_MATRICES; i++) {
        gather.readers[i] = program_matrix(m->weights, o->slot[i]);
        packings |= packing_of(m, gather.readers[i]);
    }
    pack(m, &m->packed_moe, m->x_experts, (size_t)hidden, rows, hidden, packings);
    rows_run(m, rows * m->config->experts_per_token, hidden / 2, gather_slots, &gather);
}

int experts_gate_up(backend_model *m, const program_op *o, expert_list list, weight *views, matrix_job *jobs) {
    const weight *both = program_matrix(m->weights, o->slot[0]);
    int width = m->config->expert_intermediate, n = 0;
    size_t ldy = 2 * (size_t)width;
    float *y = m->expert_gate_up;
    if (weight_present(both))
        return expert_jobs(m, o->layer, list, &m->packed_slots, both, 2 * width, y, ldy, views, jobs);
    for (int i = 0; i < 2; i++)
        n += expert_jobs(m, o->layer, list, &m->packed_slots, program_matrix(m->weights, o->slot[1 + i]), width,
                         y + i * width, ldy, views + n, jobs + n);
    return n;
}

int experts_down(backend_model *m, int layer, expert_list list, weight *views, matrix_job *jobs) {
    const weight *down = &m->weights->layer[layer].experts_down;
    int width = m->config->expert_intermediate, hidden = m->config->hidden;
    for (int i = 0; i < list.n;) { /* runs of neighbours */
        int first = list.expert[i], next = first;
        while (i < list.n && m->expert_begin[list.expert[i]] == m->expert_begin[next]) next = list.expert[i++] + 1;
        pack_at(m, &m->packed_act_slots, m->expert_begin[first],
                m->expert_gate_up + (size_t)m->expert_begin[first] * 2 * (size_t)width, 2 * (size_t)width,
                m->expert_begin[next] - m->expert_begin[first], width, packing_of(m, down));
    }
    return expert_jobs(m, layer, list, &m->packed_act_slots, down, hidden, m->expert_out, (size_t)hidden, views, jobs);
}

void experts_activate(backend_model *m, expert_list list) {
    int width = m->config->expert_intermediate;
    for (int i = 0; i < list.n;) {
        int first = list.expert[i], next = first;
        while (i < list.n && m->expert_begin[list.expert[i]] == m->expert_begin[next]) next = list.expert[i++] + 1;
        activate(m, m->expert_gate_up + (size_t)m->expert_begin[first] * 2 * (size_t)width,
                 m->expert_begin[next] - m->expert_begin[first], width);
    }
}
