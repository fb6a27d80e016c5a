#include "backend/cuda/given.h"

#include <string.h>

/* Behind the staged tokens there is room for as many numbers again. */
static int32_t *staged_sight(const cuda_pass *p) { return p->model->space.staged_ids + p->model->max_rows; }

static void stage_segment(cuda_pass *p, int index) {
    const backend_segment *r = &p->segments[p->group->segment[index]];
    const model_config *c = p->model->config;
    int32_t *tokens = p->model->space.staged_ids + p->first_row[index], *sight = staged_sight(p) + p->first_row[index];
    const int length = r->cache->t.length;
    memcpy(tokens, r->tokens, (size_t)r->n * sizeof *tokens);
    for (int i = 0; i < r->n; i++) sight[i] = length + i + 1;
    for (int i = 0; i < r->n_given; i++) {
        const backend_given *g = &r->given[i];
        for (int row = g->first; row < g->first + g->n; row++) {
            tokens[row] = c->pad_token >= 0 ? c->pad_token : 0;
            if (g->both_ways) sight[row] = length + g->first + g->n;
        }
        p->looks_ahead |= g->both_ways;
    }
}

void cuda_given_stage(cuda_pass *p) {
    const cuda_workspace *s = &p->model->space;
    const size_t bytes = (size_t)p->rows * sizeof *s->tokens;
    const cudaStream_t stream = p->model->device.stream;
    for (int i = 0; i < p->group->n; i++) stage_segment(p, i);
    cuda_pass_note(p, cudaMemcpyAsync(s->tokens, s->staged_ids, bytes, cudaMemcpyHostToDevice, stream));
    if (p->looks_ahead)
        cuda_pass_note(p, cudaMemcpyAsync(s->sight, staged_sight(p), bytes, cudaMemcpyHostToDevice, stream));
}

void cuda_given_place(cuda_pass *p) {
    const backend_model *m = p->model;
    const size_t hidden = (size_t)m->config->hidden;
    const int ld = m->weights.layer[0].q.ld;
    for (int s = 0; s < p->group->n; s++) {
        const backend_segment *r = &p->segments[p->group->segment[s]];
        for (int i = 0; i < r->n_given; i++) {
            const backend_given *g = &r->given[i];
            const size_t row = (size_t)(p->first_row[s] + g->first);
            float *h = m->space.h + row * hidden;
            cuda_pass_note(p, cudaMemcpyAsync(h, g->rows, (size_t)g->n * hidden * sizeof *h, cudaMemcpyHostToDevice,
                                              m->launch.stream));
            cuda_norm_rows(&m->launch, h, m->config->hidden, m->weights.layer[0].input_norm, m->config->rms_eps,
                           m->space.x + row * (size_t)ld, ld, m->config->hidden, g->n);
        }
    }
}

int cuda_given_stretch(const backend_segment *r, int first, bool *both_ways) {
    *both_ways = false;
    for (int i = 0; i < r->n_given; i++) {
        const backend_given *g = &r->given[i];
        if (!g->both_ways || g->first + g->n <= first) continue;
        *both_ways = g->first <= first;
        return (*both_ways ? g->first + g->n : g->first) - first;
    }
    return r->n - first;
}
