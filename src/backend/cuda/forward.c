/* One forward is a few passes (pass.h): prompts that are alike, the others one by one, the head of the last rows of all
 * prompts, and decode rows. Decode passes are captured once per shape in a graph; the others are launched operation by
 * operation. */
#include "backend/cuda/forward.h"

#include <string.h>

#include "backend/cuda/context.h"
#include "backend/cuda/given.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/tp_group.h"
#include "backend/segments.h"

static const char *doing(const cuda_pass *p) {
    return p->prompt || p->last_rows ? "computing a prompt" : "computing a decode step";
}

/* -------------------------------------------------------------------------------------------------------- plan */

static kakeya_status check_segments(const backend_model *m, backend_segment *segments, int n_segments,
                                    kakeya_error *error) {
    kakeya_status status = backend_check_segments(m->config, segments, n_segments, m->max_rows, error);
    for (int s = 0; s < n_segments && !status; s++) {
        const backend_segment *r = &segments[s];
        bool can_lead = r->kind == SEGMENT_DECODE || r->first_logit_row >= r->n - 1;
        if (r->leaders && !(can_lead && r->temperature > 0))
            return error_set(error, KAKEYA_INVALID_ARGUMENT,
                             "segment %d: leading logits belong to decode rows, or to a prompt's last row, at a "
                             "temperature above 0",
                             s);
        if (r->cache->model != m)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d: cache of another model", s);
    }
    return status;
}

/* ----------------------------------------------------------------------------------------------------- compute */

static void launch_step(cuda_pass *p) {
    int n = cuda_pass_list(p);
    cuda_launch_ops(p, p->model->step_ops, n);
}

static cudaError_t enqueue_decode(void *context) {
    cuda_pass *p = context;
    launch_step(p);
    return p->failure;
}

/* Copies logits and argmax of prompt rows that the head has just made; the first of them is the segment's row `at`. */
static void copy_prompt_results(cuda_pass *p, const backend_segment *r, int at) {
    const cuda_workspace *w = &p->model->space;
    cudaStream_t stream = p->model->device.stream;
    size_t vocab = (size_t)p->model->config->vocab, from = (size_t)(at - r->first_logit_row),
           rows = (size_t)p->head_rows;
    if (p->model->shard.index) return; /* the first device has them all */
    if (r->logits)
        cuda_pass_note(p, cudaMemcpyAsync(r->logits + from * vocab, w->logits, rows * vocab * sizeof(float),
                                          cudaMemcpyDeviceToHost, stream));
    if (r->argmax)
        cuda_pass_note(
            p, cudaMemcpyAsync(r->argmax + from, w->argmax, rows * sizeof(int32_t), cudaMemcpyDeviceToHost, stream));
}

/* The head of a segment of which more than the last row is wanted. */
static void run_prompt_head(cuda_pass *p, int index) {
    backend_model *m = p->model;
    const backend_segment *r = &p->segments[p->group->segment[index]];
    if (cuda_pass_leaves_last_row(r)) return;
    for (int at = r->first_logit_row; at < r->n; at += CUDA_ROW_BLOCK) {
        p->head_first = p->first_row[index] + at;
        p->head_rows = r->n - at < CUDA_ROW_BLOCK ? r->n - at : CUDA_ROW_BLOCK;
        cuda_launch_ops(p, m->step_ops, cuda_pass_list_head(p));
        copy_prompt_results(p, r, at);
    }
}

static kakeya_status run_prompts(cuda_pass *p, kakeya_error *error) {
    backend_model *m = p->model;
    backend_cache *caches[BACKEND_MAX_PROMPTS];
    int rows[BACKEND_MAX_PROMPTS];
    for (int i = 0; i < p->group->n; i++) {
        const backend_segment *r = &p->segments[p->group->segment[i]];
        caches[i] = r->cache;
        rows[i] = r->n;
    }
    cuda_given_stage(p);
    launch_step(p);
    for (int i = 0; i < p->group->n; i++) run_prompt_head(p, i);
    if (!p->cache->t.keeps_backlog) return KAKEYA_OK;
    return cuda_context_extend_prompts(caches, rows, p->group->n, m->space.aux, error);
}

/* Rows of a pass whose results a segment wants, as counted through the pass. */
typedef struct wanted_rows {
    size_t first, n;
} wanted_rows;

static wanted_rows rows_of(const cuda_pass *p, int index) {
    const backend_segment *r = &p->segments[p->group->segment[index]];
    if (p->last_rows) return (wanted_rows){(size_t)index, 1};
    size_t first = (size_t)p->model->space.staged[0].step[index].first_row + (size_t)r->first_logit_row;
    return (wanted_rows){first, (size_t)(r->n - r->first_logit_row)};
}

/* Whose rows read_logits may be asked for. */
static bool has_logits(const cuda_pass *p, const backend_segment *r) {
    return p->head != STEP_HEAD_GREEDY && (r->logits || r->leaders);
}

/* Logits go to the caller at once; choices and leaders to where scatter_results takes them from. `kept`: rows of
 * kept_logits that are taken; NULL: no pass follows this one. */
static void copy_results(cuda_pass *p, size_t *kept) {
    backend_model *m = p->model;
    cuda_workspace *w = &m->space;
    cudaStream_t stream = m->device.stream;
    size_t vocab = (size_t)m->config->vocab, rows = (size_t)w->staged[0].rows;
    bool chosen = false, led = false;
    if (m->tp_group && p->head == STEP_HEAD_GREEDY)
        cuda_pass_note(p, cudaMemcpyAsync(w->staged_choices, w->screen.best,
                                          (size_t)p->rows * sizeof *w->staged_choices, cudaMemcpyDeviceToHost, stream));
    if (m->shard.index) return; /* the first device has all the rest */
    for (int i = 0; i < p->group->n; i++) {
        int s = p->group->segment[i];
        const backend_segment *r = &p->segments[s];
        wanted_rows wanted = rows_of(p, i);
        const float *logits = w->logits + wanted.first * vocab;
        size_t bytes = wanted.n * vocab * sizeof(float);
        chosen |= wanted.n && r->argmax;
        led |= wanted.n && r->leaders;
        if (r->logits && bytes)
            cuda_pass_note(p, cudaMemcpyAsync(r->logits, logits, bytes, cudaMemcpyDeviceToHost, stream));
        if (!has_logits(p, r)) continue;
        m->logit_rows[s] = (int)wanted.n;
        m->logits_of[s] = logits;
        if (!kept || !bytes) continue;
        float *to = (float *)w->kept_logits.data + *kept * vocab;
        cuda_pass_note(p, cudaMemcpyAsync(to, logits, bytes, cudaMemcpyDeviceToDevice, stream));
        m->logits_of[s] = to;
        *kept += wanted.n;
    }
    if (led)
        cuda_pass_note(p, cudaMemcpyAsync(w->staged_leaders, w->leaders, rows * sizeof *w->leaders,
                                          cudaMemcpyDeviceToHost, stream));
    if (chosen)
        cuda_pass_note(
            p, cudaMemcpyAsync(w->staged_ids, w->argmax, rows * sizeof(int32_t), cudaMemcpyDeviceToHost, stream));
}

/* Each device has chosen among its own rows of the head. */
static void join_choices(const cuda_pass *p) {
    const cuda_tp_group *group = p->model->tp_group;
    unsigned long long keys[CUDA_MAX_DEVICES];
    int firsts[CUDA_MAX_DEVICES], devices = cuda_tp_group_size(group);
    for (int row = 0; row < p->rows; row++) {
        for (int i = 0; i < devices; i++) {
            const backend_model *m = cuda_tp_group_model(group, i);
            keys[i] = m->space.staged_choices[row];
            firsts[i] = m->weights.head_first;
        }
        p->model->space.staged_ids[row] = cuda_head_choice(keys, firsts, devices);
    }
}

static void scatter_results(const cuda_pass *p) {
    const cuda_workspace *w = &p->model->space;
    if (p->model->shard.index) return;
    if (p->model->tp_group && p->head == STEP_HEAD_GREEDY) join_choices(p);
    for (int i = 0; i < p->group->n; i++) {
        const backend_segment *r = &p->segments[p->group->segment[i]];
        wanted_rows wanted = rows_of(p, i);
        if (r->argmax) memcpy(r->argmax, w->staged_ids + wanted.first, wanted.n * sizeof *r->argmax);
        if (r->leaders) memcpy(r->leaders, w->staged_leaders + wanted.first, wanted.n * sizeof *r->leaders);
    }
}

/* The graph of a decode pass; NULL where it is launched operation by operation. */
static kakeya_status find_graph(cuda_pass *p, cuda_graph **graph, kakeya_error *error) {
    backend_model *m = p->model;
    *graph = NULL;
    p->captured = !p->prompt && !p->last_rows && !p->hidden_states && !m->launch.profiler;
    if (!p->captured) return KAKEYA_OK;
    return cuda_graphs_find(&m->graphs, &m->device, &p->key, enqueue_decode, p, graph, error);
}

/* Decode rows, or last rows of prompts. */
static kakeya_status run_rows(cuda_pass *p, const cuda_graph *graph, size_t *kept, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    if (p->last_rows)
        cuda_launch_ops(p, p->model->step_ops, cuda_pass_list_head(p));
    else if (graph)
        status = cuda_graphs_launch(graph, &p->model->device, error);
    else
        launch_step(p);
    if (!status) copy_results(p, kept);
    return status;
}

/* Several devices: captured steps hold the address of the first one's logits, which may have grown. */
static void follow_logits(backend_model *m) {
    if (!m->tp_group) return;
    float *home = cuda_tp_group_model(m->tp_group, 0)->space.logits;
    if (m->logits_home != home) cuda_graphs_drop(&m->graphs);
    m->logits_home = home;
}

static kakeya_status compute_pass(cuda_pass *p, const cuda_graph *graph, size_t *kept, kakeya_error *error) {
    backend_model *m = p->model;
    cuda_pass_fill(p, &m->space.staged[0]);
    int listed = p->group->n > p->key.segments ? p->group->n : p->key.segments;
    cuda_pass_note(p, cudaMemcpyAsync(m->space.batch, &m->space.staged[0], cuda_batch_bytes(listed),
                                      cudaMemcpyHostToDevice, m->device.stream));
    if (p->masked)
        cuda_pass_note(p, cudaMemcpyAsync(m->space.masks.data, m->space.staged_masks,
                                          (size_t)p->masked * cuda_workspace_mask_words(m->config->vocab) *
                                              sizeof *m->space.staged_masks,
                                          cudaMemcpyHostToDevice, m->device.stream));
    kakeya_status status = p->prompt ? run_prompts(p, error) : run_rows(p, graph, kept, error);
    cuda_gaps_end(&m->gaps, m->device.stream);
    if (status) cuda_tp_group_abandon(m);
    kakeya_status finished = cuda_finish(&m->device, doing(p), status ? NULL : error);
    if (finished) cuda_tp_group_abandon(m);
    if (!status) status = finished;
    return status ? status : cuda_check(p->failure, doing(p), error);
}

/* The passes of a forward in their order. */
typedef struct cuda_plan {
    cuda_group group[BACKEND_MAX_FORWARD + 2]; /* with the head of last rows, and the one that is not found any more */
    int n, last_rows;                          /* last_rows: which of them is that head; -1: there is none */
    int segment[BACKEND_MAX_FORWARD + BACKEND_MAX_PROMPTS]; /* of all groups */
} cuda_plan;

static kakeya_status prepare(cuda_pass *p, backend_model *m, backend_segment *segments, const cuda_plan *plan, int pass,
                             kakeya_error *error) {
    const cuda_group *group = &plan->group[pass];
    return pass == plan->last_rows ? cuda_pass_prepare_last_rows(p, m, segments, group, error)
                                   : cuda_pass_prepare(p, m, segments, group, error);
}

/* Several devices compute a pass together, or none of them does. */
static kakeya_status run_pass(backend_model *m, backend_segment *segments, const cuda_plan *plan, int pass,
                              size_t *kept, kakeya_error *error) {
    cuda_pass p;
    cuda_graph *graph = NULL;
    follow_logits(m);
    kakeya_status status = prepare(&p, m, segments, plan, pass, error);
    if (!status) status = find_graph(&p, &graph, error);
    status = cuda_tp_group_agree(m, status, error);
    if (!status) status = cuda_tp_group_begin_pass(m, error);
    if (status) return status;
    status = cuda_tp_group_agree(m, compute_pass(&p, graph, kept, error), error);
    if (!status && !p.prompt) scatter_results(&p);
    return status;
}

/* ----------------------------------------------------------------------------------------------------- reserve */

/* Prompts, the head of their last rows, decode rows. */
static void plan_passes(const backend_model *m, const backend_segment *segments, int n_segments, cuda_plan *plan) {
    bool taken[BACKEND_MAX_FORWARD] = {false};
    cuda_group last = {.segment = plan->segment};
    plan->n = 0;
    plan->last_rows = -1;
    for (int s = 0; s < n_segments; s++) {
        if (cuda_pass_leaves_last_row(&segments[s])) last.segment[last.n++] = s;
    }
    for (int *next = last.segment + last.n;; next += plan->group[plan->n++].n) {
        plan->group[plan->n].segment = next;
        if (!cuda_pass_group(m, segments, n_segments, taken, &plan->group[plan->n])) break;
        if (segments[plan->group[plan->n].segment[0]].kind == SEGMENT_DECODE && last.n) {
            plan->group[plan->n + 1] = plan->group[plan->n];
            plan->last_rows = plan->n;
            plan->group[plan->n++] = last;
            last.n = 0;
        }
    }
    if (!last.n) return;
    plan->last_rows = plan->n;
    plan->group[plan->n++] = last;
}

/* Rows of passes that others follow, if somebody may ask for their logits. */
static size_t rows_to_keep(const backend_segment *segments, const cuda_plan *plan) {
    size_t rows = 0;
    for (int i = 0; i + 1 < plan->n; i++) {
        for (int k = 0; k < plan->group[i].n; k++) {
            const backend_segment *r = &segments[plan->group[i].segment[k]];
            bool has = r->kind == SEGMENT_DECODE || i == plan->last_rows;
            if (has && (r->logits || r->leaders)) rows += (size_t)(r->n - r->first_logit_row);
        }
    }
    return rows;
}

/* What the passes need beyond what there is. They are made again when they run: then nothing has to grow. */
static kakeya_status reserve_passes(backend_model *m, backend_segment *segments, const cuda_plan *plan,
                                    kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < plan->n && !status; i++) {
        cuda_pass p;
        status = prepare(&p, m, segments, plan, i, error);
        if (plan->group[i].n == 1 && i != plan->last_rows) segments[plan->group[i].segment[0]].status = status;
    }
    size_t kept = rows_to_keep(segments, plan) * (size_t)m->config->vocab * sizeof(float);
    if (!status && kept) status = model_grow(m, &m->space.kept_logits, kept, "logits", error);
    return status;
}

/* A computation has failed: its rows are dropped. What they may have overwritten is the timeline's to judge. */
static void drop(backend_cache *c) {
    cuda_cache_mark(c);
    (void)cuda_cache_commit(c, 0, NULL);
}

static kakeya_status begin(const backend_segment *segments, int n_segments, kakeya_error *error) {
    backend_cache *caches[BACKEND_MAX_FORWARD];
    for (int s = 0; s < n_segments; s++) caches[s] = segments[s].cache;
    return cuda_caches_begin(caches, n_segments, error);
}

kakeya_status cuda_forward(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error) {
    cuda_plan plan;
    plan.n = 0;
    kakeya_status status = check_segments(m, segments, n_segments, error);
    if (!status) status = cuda_device_use(&m->device, error);
    for (int s = 0; s < n_segments && !status; s++)
        status = segments[s].status = cuda_cache_plan(segments[s].cache, segments[s].kind, segments[s].n, error);
    bool planned = !status;
    if (planned) {
        cuda_forget_logits(m);
        for (int s = 0; s < n_segments && !status; s++)
            status = segments[s].status = cuda_cache_reserve(segments[s].cache, error);
        plan_passes(m, segments, n_segments, &plan);
        if (!status) status = reserve_passes(m, segments, &plan, error);
    }
    status = cuda_tp_group_agree(m, status, error);
    if (!planned) return status;
    bool begun = !status;
    cuda_gaps_begin(&m->gaps, m->device.stream);
    if (begun) status = cuda_tp_group_agree(m, begin(segments, n_segments, error), error);
    size_t kept = 0;
    for (int i = 0; i < plan.n && !status; i++)
        status = run_pass(m, segments, &plan, i, i + 1 < plan.n ? &kept : NULL, error);
    cuda_gaps_add(&m->gaps, !status);
    if (status) cuda_forget_logits(m);
    for (int s = 0; s < n_segments; s++) {
        if (!status)
            cuda_cache_mark(segments[s].cache);
        else if (begun)
            drop(segments[s].cache);
        else
            cuda_cache_release(segments[s].cache);
    }
    return status;
}

kakeya_status cuda_read_logits(backend_model *m, int segment, int row, float *logits, kakeya_error *error) {
    int rows = segment >= 0 && segment < BACKEND_MAX_FORWARD ? m->logit_rows[segment] : 0;
    if (row < 0 || row >= rows)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "logits of segment %d, row %d; it has %d", segment, row, rows);
    size_t vocab = (size_t)m->config->vocab;
    kakeya_status status = cuda_device_use(&m->device, error);
    if (!status)
        status = cuda_check(cudaMemcpyAsync(logits, m->logits_of[segment] + (size_t)row * vocab, vocab * sizeof *logits,
                                            cudaMemcpyDeviceToHost, m->device.stream),
                            "copying logits", error);
    return status ? status : cuda_finish(&m->device, "copying logits", error);
}
