/* Segments of several caches run one after the other. Decode steps are captured once per shape in a graph; prompts are
 * launched operation by operation. */
#include "backend/cuda/forward.h"

#include <string.h>

#include "backend/cuda/context.h"
#include "backend/cuda/launch.h"
#include "backend/segments.h"

static const char *doing(const cuda_pass *p) { return p->prompt ? "computing a prompt" : "computing a decode step"; }

/* -------------------------------------------------------------------------------------------------------- plan */

static kakeya_status check_segments(const backend_model *m, const backend_segment *segments, int n_segments,
                                    kakeya_error *error) {
    if (n_segments < 1) return error_set(error, KAKEYA_INVALID_ARGUMENT, "%d segments in one forward", n_segments);
    for (int s = 0; s < n_segments; s++) {
        const backend_segment *r = &segments[s];
        if (r->n < 1 || r->n > m->max_rows) {
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d has %d tokens; 1 to %d are possible", s, r->n,
                             m->max_rows);
        }
        if (r->leaders && (r->kind != SEGMENT_DECODE || !(r->temperature > 0)))
            return error_set(error, KAKEYA_INVALID_ARGUMENT,
                             "segment %d: leading logits belong to decode rows at a temperature above 0", s);
        if (r->cache->model != m)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d: cache of another model", s);
    }
    return backend_check_segments(m->config, segments, n_segments, error);
}

/* Makes room for n rows of this kind: grows pages, switches sliding stores between their prompt and bounded forms. */
static kakeya_status prepare(backend_cache *c, segment_kind kind, int n, kakeya_error *error) {
    if (c->pending) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%d pending rows must be committed first", c->pending);
    }
    if (n > c->options.context_tokens - c->length) {
        return error_set(error, KAKEYA_CONTEXT_FULL, "%d tokens behind %d do not fit into a context of %d", n,
                         c->length, c->options.context_tokens);
    }
    if (kind == SEGMENT_DECODE) {
        bool bounded = c->options.attention != KAKEYA_ATTENTION_NATIVE;
        int most = bounded && c->options.window < BACKEND_MAX_DECODE_ROWS ? c->options.window : BACKEND_MAX_DECODE_ROWS;
        if (n > most) {
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "%d decode rows in one segment; at most %d", n, most);
        }
    }
    kakeya_status status = cuda_cache_reserve(c, c->length + n, error);
    if (!status && kind == SEGMENT_DECODE) status = cuda_cache_reserve_run(c, error);
    if (!status) status = cuda_cache_take_form(c, kind == SEGMENT_DECODE, error);
    if (!status && c->options.keep_draft_context) {
        int waiting = c->length - c->draft_length;
        if (kind == SEGMENT_PROMPT || waiting + n > CUDA_AUX_BACKLOG) status = cuda_context_flush(c, error);
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

kakeya_status cuda_forward(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error) {
    kakeya_status status = check_segments(m, segments, n_segments, error);
    if (!status) status = cuda_device_use(&m->device, error);
    for (int s = 0; s < n_segments && !status; s++)
        status = prepare(segments[s].cache, segments[s].kind, segments[s].n, error);
    for (int s = 0; s < n_segments && !status; s++) status = run_segment(m, &segments[s], error);
    for (int s = 0; s < n_segments && !status; s++) {
        backend_cache *c = segments[s].cache;
        c->pending = segments[s].n;
        c->pending_kind = segments[s].kind;
        if (c->length + c->pending > c->high) c->high = c->length + c->pending;
    }
    return status;
}

kakeya_status cuda_read_logits(backend_model *m, int row, float *logits, kakeya_error *error) {
    if (row < 0 || row >= m->logit_rows)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "logits of row %d; the last segment has %d", row,
                         m->logit_rows);
    size_t vocab = (size_t)m->config->vocab;
    kakeya_status status = cuda_device_use(&m->device, error);
    if (!status)
        status = cuda_check(cudaMemcpyAsync(logits, m->space.logits + (size_t)(m->first_logit_row + row) * vocab,
                                            vocab * sizeof *logits, cudaMemcpyDeviceToHost, m->device.stream),
                            "copying logits", error);
    return status ? status : cuda_finish(&m->device, "copying logits", error);
}

/* ------------------------------------------------------------------------------------------ commit and truncate */

kakeya_status cuda_cache_commit(backend_cache *c, int n, kakeya_error *error) {
    if (n < 0 || n > c->pending) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot commit %d of %d pending rows", n, c->pending);
    }
    if (c->pending_kind == SEGMENT_PROMPT && n != c->pending && n != 0) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "a prompt of %d rows must be committed whole, not %d rows",
                         c->pending, n);
    }
    int begin = c->length;
    c->length += n;
    c->pending = 0;
    if (n == 0) return KAKEYA_OK;
    if (c->pending_kind == SEGMENT_PROMPT) {
        if (c->options.keep_draft_context) c->draft_length = c->length;
        return KAKEYA_OK;
    }
    if (c->n_runs && c->runs[c->n_runs - 1].end == begin)
        c->runs[c->n_runs - 1].end = c->length;
    else
        c->runs[c->n_runs++] = (decode_run){begin, c->length};
    kakeya_status status = cuda_device_use(&c->model->device, error);
    if (!status && c->decoding) status = cuda_cache_release_pages(c, error);
    if (!status && c->options.attention == KAKEYA_ATTENTION_RESTORED) {
        /* Latents must exist for everything that the next block can find evicted. */
        int evicted_next = c->length + BACKEND_MAX_DECODE_ROWS - c->options.window;
        if (evicted_next > c->draft_length) status = cuda_context_flush(c, error);
    }
    return status;
}

kakeya_status cuda_cache_truncate(backend_cache *c, int length, kakeya_error *error) {
    if (c->pending)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot truncate with %d pending rows", c->pending);
    if (length > c->length || length < cuda_cache_min_truncate(c)) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot truncate to %d: the cache can go back to %d to %d",
                         length, cuda_cache_min_truncate(c), c->length);
    }
    kakeya_status status = cuda_finish(&c->model->device, "truncating a cache", error);
    if (status) return status;
    c->length = length;
    for (int l = 0; c->options.keep_draft_context && l < c->model->options.drafter->config.layers; l++) {
        /* What the dropped rows have overwritten in the ring is no context any more. */
        int oldest = c->draft_length - c->draft[l].capacity;
        if (oldest > c->draft_from) c->draft_from = oldest < length ? oldest : length;
    }
    if (c->draft_length > length) c->draft_length = length;
    status = cuda_cache_drop_pages(c, error);
    while (c->n_runs && c->runs[c->n_runs - 1].begin >= length) c->n_runs--;
    if (c->n_runs && c->runs[c->n_runs - 1].end > length) c->runs[c->n_runs - 1].end = length;
    return status;
}
