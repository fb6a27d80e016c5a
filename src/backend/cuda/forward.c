/* Segments of several caches run one after the other. Decode steps are captured once per shape in a graph; prompts are
 * launched operation by operation. */
#include "backend/cuda/forward.h"

#include <string.h>

#include "backend/cuda/context.h"
#include "backend/cuda/launch.h"
#include "backend/segments.h"

static const char *doing(const cuda_pass *p) { return p->prompt ? "computing a prompt" : "computing a decode step"; }

/* -------------------------------------------------------------------------------------------------------- plan */

static kakeya_status check_segments(const backend_model *m, backend_segment *segments, int n_segments,
                                    kakeya_error *error) {
    kakeya_status status = backend_check_segments(m->config, segments, n_segments, m->max_rows, error);
    for (int s = 0; s < n_segments && !status; s++) {
        const backend_segment *r = &segments[s];
        if (r->leaders && (r->kind != SEGMENT_DECODE || !(r->temperature > 0)))
            return error_set(error, KAKEYA_INVALID_ARGUMENT,
                             "segment %d: leading logits belong to decode rows at a temperature above 0", s);
        if (r->cache->model != m)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d: cache of another model", s);
    }
    return status;
}

/* ----------------------------------------------------------------------------------------------------- compute */

/* Copies logits and argmax of `rows` rows that the head has just made. */
static void copy_results(cuda_pass *p, const backend_segment *r, int first, int rows) {
    const cuda_workspace *w = &p->model->space;
    cudaStream_t stream = p->model->device.stream;
    size_t vocab = (size_t)p->model->config->vocab, at = (size_t)(first - r->first_logit_row);
    int skip = p->prompt ? 0 : r->first_logit_row;
    if (r->logits)
        cuda_pass_note(p, cudaMemcpyAsync(r->logits + at * vocab, w->logits + (size_t)skip * vocab,
                                          (size_t)rows * vocab * sizeof(float), cudaMemcpyDeviceToHost, stream));
    if (r->leaders)
        cuda_pass_note(p, cudaMemcpyAsync(r->leaders + at, w->leaders + skip, (size_t)rows * sizeof *w->leaders,
                                          cudaMemcpyDeviceToHost, stream));
    if (r->argmax)
        cuda_pass_note(p, cudaMemcpyAsync(r->argmax + at, w->argmax + skip, (size_t)rows * sizeof(int32_t),
                                          cudaMemcpyDeviceToHost, stream));
}

static void launch_step(cuda_pass *p) {
    int n = cuda_pass_list(p);
    cuda_launch_ops(p, p->model->step_ops, n);
}

static cudaError_t enqueue_decode(void *context) {
    cuda_pass *p = context;
    launch_step(p);
    return p->failure;
}

static kakeya_status run_decode(cuda_pass *p, const backend_segment *r, kakeya_error *error) {
    backend_model *m = p->model;
    kakeya_status status = KAKEYA_OK;
    if (r->hidden_states || m->launch.profiler)
        launch_step(p);
    else
        status = cuda_graphs_run(&m->graphs, &m->device, &p->key, enqueue_decode, p, error);
    if (!status && r->n > r->first_logit_row) copy_results(p, r, r->first_logit_row, r->n - r->first_logit_row);
    return status;
}

static kakeya_status run_prompt(cuda_pass *p, const backend_segment *r, kakeya_error *error) {
    backend_model *m = p->model;
    memcpy(m->space.staged_ids, r->tokens, (size_t)r->n * sizeof *r->tokens);
    cuda_pass_note(p, cudaMemcpyAsync(m->space.tokens, m->space.staged_ids, (size_t)r->n * sizeof *m->space.tokens,
                                      cudaMemcpyHostToDevice, m->device.stream));
    launch_step(p);
    for (int first = r->first_logit_row; first < r->n; first += CUDA_ROW_BLOCK) {
        p->head_first = first;
        p->head_rows = r->n - first < CUDA_ROW_BLOCK ? r->n - first : CUDA_ROW_BLOCK;
        cuda_launch_ops(p, m->step_ops, cuda_pass_list_head(p));
        copy_results(p, r, first, p->head_rows);
    }
    if (!p->key.aux) return KAKEYA_OK;
    return cuda_context_extend(r->cache, m->space.aux, r->n, p->position, true, error);
}

static kakeya_status run_segment(backend_model *m, const backend_segment *r, kakeya_error *error) {
    cuda_pass p;
    kakeya_status status = cuda_pass_prepare(&p, m, r, error);
    if (status) return status;
    cuda_pass_fill_step(&p, r, &m->space.staged[0]);
    cuda_pass_note(&p, cudaMemcpyAsync(m->space.step, &m->space.staged[0], sizeof *m->space.step,
                                       cudaMemcpyHostToDevice, m->device.stream));
    status = p.prompt ? run_prompt(&p, r, error) : run_decode(&p, r, error);
    m->first_logit_row = r->first_logit_row;
    m->logit_rows = p.prompt || p.key.greedy || status ? 0 : r->n - r->first_logit_row;
    kakeya_status finished = cuda_finish(&m->device, doing(&p), status ? NULL : error);
    if (!status) status = finished;
    if (!status) status = cuda_check(p.failure, doing(&p), error);
    return status;
}

/* What a segment needs beyond what there is. Its pass is made again when it runs: then nothing has to grow. */
static kakeya_status reserve(backend_model *m, const backend_segment *r, kakeya_error *error) {
    cuda_pass p;
    kakeya_status status = cuda_cache_reserve(r->cache, error);
    return status ? status : cuda_pass_prepare(&p, m, r, error);
}

/* A computation has failed: its rows are dropped. What they may have overwritten is the timeline's to judge. */
static void drop(backend_cache *c) {
    cuda_cache_mark(c);
    (void)cuda_cache_commit(c, 0, NULL);
}

kakeya_status cuda_forward(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error) {
    kakeya_status status = check_segments(m, segments, n_segments, error);
    if (!status) status = cuda_device_use(&m->device, error);
    for (int s = 0; s < n_segments && !status; s++)
        status = segments[s].status = cuda_cache_plan(segments[s].cache, segments[s].kind, segments[s].n, error);
    if (status) return status;
    for (int s = 0; s < n_segments && !status; s++) status = segments[s].status = reserve(m, &segments[s], error);
    int begun = 0;
    for (; begun < n_segments && !status; begun++) {
        status = cuda_cache_begin(segments[begun].cache, error);
        if (!status) status = run_segment(m, &segments[begun], error);
        m->logit_segment = begun;
    }
    for (int s = 0; s < n_segments; s++) {
        if (!status)
            cuda_cache_mark(segments[s].cache);
        else if (s < begun)
            drop(segments[s].cache);
        else
            cuda_cache_release(segments[s].cache);
    }
    return status;
}

kakeya_status cuda_read_logits(backend_model *m, int segment, int row, float *logits, kakeya_error *error) {
    if (segment != m->logit_segment || row < 0 || row >= m->logit_rows)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "logits of segment %d, row %d; segment %d has %d", segment,
                         row, m->logit_segment, m->logit_rows);
    size_t vocab = (size_t)m->config->vocab;
    kakeya_status status = cuda_device_use(&m->device, error);
    if (!status)
        status = cuda_check(cudaMemcpyAsync(logits, m->space.logits + (size_t)(m->first_logit_row + row) * vocab,
                                            vocab * sizeof *logits, cudaMemcpyDeviceToHost, m->device.stream),
                            "copying logits", error);
    return status ? status : cuda_finish(&m->device, "copying logits", error);
}
