#include "backend/cuda/workspace.h"

#include "backend/cuda/prompt_attention.h"

static int max_int(int a, int b) { return a > b ? a : b; }
static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

typedef struct shape_limits {
    int q, kv, intermediate, head_dim;
    int derived_kv; /* of K = V layers */
} shape_limits;

static shape_limits model_limits(const model_config *c) {
    shape_limits s = {0};
    for (int i = 0; i < c->layers; i++) {
        const layer_config *l = &c->layer[i];
        s.q = max_int(s.q, c->heads * l->head_dim);
        s.kv = max_int(s.kv, l->kv_heads * l->head_dim);
        s.intermediate = max_int(s.intermediate, l->intermediate);
        s.head_dim = max_int(s.head_dim, l->head_dim);
        if (l->k_eq_v) s.derived_kv = max_int(s.derived_kv, l->kv_heads * l->head_dim);
    }
    return s;
}

typedef struct carve_request {
    void **target;
    size_t bytes;
} carve_request;

/* Layers whose outputs a session may keep: the drafter's, and those that the restoration reads beside them. */
static int most_taps(const block_drafter_config *d, const restoration_config *f) {
    int taps = d ? d->targets : 0;
    for (int i = 0; f && f->input == RESTORATION_AUX_HIDDEN && i < f->aux_layers; i++) {
        bool shared = false;
        for (int k = 0; d && k < d->targets; k++) shared |= d->target_layer[k] == f->aux_layer[i];
        taps += !shared;
    }
    return taps;
}

#define FLOATS(field, count)                                                                                           \
    { (void **)(void *)&w->field, (size_t)(count) * sizeof(float) }
#define INTS(field, count)                                                                                             \
    { (void **)(void *)&w->field, (size_t)(count) * sizeof(int) }
#define HALVES(field, count)                                                                                           \
    { (void **)(void *)&w->field, (size_t)(count) * sizeof(cuda_bf16) }
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static kakeya_status carve(cuda_workspace *w, const cuda_device *device, mem_account *account,
                           const carve_request *requests, size_t n, kakeya_error *error) {
    size_t total = 0;
    for (size_t i = 0; i < n; i++) total += (requests[i].bytes + 255) / 256 * 256;
    kakeya_status status =
        cuda_buffer_create(&w->memory, device, account, MEM_WORKSPACE, total, "the workspace", error);
    char *at = w->memory.data;
    for (size_t i = 0; i < n && !status; i++) {
        *requests[i].target = requests[i].bytes ? at : NULL;
        at += (requests[i].bytes + 255) / 256 * 256;
    }
    return status;
}

static kakeya_status carve_all(cuda_workspace *w, const cuda_device *device, const backend_model_options *options,
                               const model_config *c, model_shard shard, int max_rows, kakeya_error *error) {
    const block_drafter_config *d = options->drafter ? &options->drafter->config : NULL;
    shape_limits s = model_limits(c);
    size_t rows = (size_t)max_rows, hidden = (size_t)c->hidden, wide = (size_t)cuda_padded(c->hidden);
    size_t slots = c->moe ? rows * (size_t)c->experts_per_token : 0, experts = (size_t)c->experts;
    size_t ple = (size_t)c->layers * (size_t)c->ple_width;
    size_t act = (size_t)cuda_padded(max_int(s.intermediate, c->ple_width)), q = (size_t)cuda_padded(s.q);
    size_t block = BACKEND_MAX_DECODE_ROWS, pass = CUDA_PASS_ROWS;
    size_t units = c->moe ? (size_t)cuda_route_units(c->experts, c->experts_per_token) : 0;
    size_t targets = d ? (size_t)d->targets * hidden : 0, d_hidden = d ? (size_t)d->hidden : 0;
    size_t d_q = d ? (size_t)(d->heads * d->head_dim) : 0, d_kv = d ? (size_t)(d->kv_heads * d->head_dim) : 0;
    size_t d_all = d ? (size_t)d->layers * d_kv : 0, d_wide = d ? (size_t)d->intermediate : 0;
    const restoration_config *f = options->restoration ? &options->restoration->config : NULL;
    size_t rank_v = f ? (size_t)f->rank_v : 0, ranks = f ? (size_t)f->rank_k + rank_v : 0;
    size_t encoded = f ? (size_t)cuda_padded(options->restoration->encoder_in) : 0; /* of the drafter K and V, each */
    if (f && f->input != RESTORATION_AUX_HIDDEN) encoded *= 2;
    size_t aux = (size_t)most_taps(d, f) * hidden;
    size_t mixed = c->moe && !model_shard_is_whole(shard) ? rows : 0;
    const assistant_config *a = options->assistant ? &options->assistant->config : NULL;
    shape_limits as = a ? model_limits(&a->stack) : (shape_limits){0};
    size_t chain = a ? CUDA_MAX_SEGMENTS : 0, a_hidden = a ? (size_t)a->stack.hidden : 0,
           clusters = a ? (size_t)a->clusters : 0, chosen = a ? (size_t)a->chosen_clusters : 0;
    size_t tiles = (size_t)cuda_head_tiles(c->vocab), parts = (size_t)cuda_head_steps(c->hidden) * CUDA_HEAD_STEP;
    /* Rows in e4m3, of whole units: of any dense product, or of the experts' slots. */
    size_t dense = (size_t)cuda_padded(max_int(max_int(s.q, c->hidden), max_int(s.intermediate, c->ple_width))),
           expert = (size_t)cuda_padded(max_int(c->hidden, c->expert_intermediate)), unit = CUDA_K_STEP;
    bool rounds = options->precision == KAKEYA_PRECISION_FP8;
    size_t rounded = max_size(rows * (dense + unit), slots * (expert + unit));
    const carve_request requests[] = {
        FLOATS(h, rows * hidden),
        FLOATS(q, rows * (size_t)s.q),
        FLOATS(k, rows * (size_t)s.kv),
        FLOATS(v, rows * (size_t)s.kv),
        FLOATS(branch, rows * hidden),
        FLOATS(experts_out, slots * hidden),
        FLOATS(x_router, c->moe ? rows * hidden : 0),
        FLOATS(normed, rows * hidden),
        FLOATS(ple, rows * ple),
        FLOATS(ple_gate, rows * (size_t)c->ple_width),
        FLOATS(aux, rows * aux),
        HALVES(last_x, BACKEND_MAX_PROMPTS * wide),
        HALVES(x, rows * wide),
        HALVES(x_experts, c->moe ? rows * wide : 0),
        HALVES(x_head, rows * wide),
        HALVES(q_heads, rows * (size_t)s.q),
        HALVES(attended, rows * q),
        HALVES(act, rows * act),
        HALVES(act_experts, slots * (size_t)cuda_padded(c->expert_intermediate)),
        HALVES(chunk_k, rows * (size_t)s.kv),
        HALVES(chunk_v, rows * (size_t)s.kv),
        {(void **)(void *)&w->rounded, rounds ? rounded : 0},
        FLOATS(rounded_scale, rounds ? max_size(rows, slots) : 0),
        HALVES(derived_k, (size_t)PROMPT_SLAB_POSITIONS * (size_t)s.derived_kv),
        FLOATS(turns[0], 2 * rows * (size_t)c->rope[0].rotated_pairs),
        FLOATS(turns[1], 2 * rows * (size_t)c->rope[1].rotated_pairs),
        FLOATS(draft_turns, d ? pass * (size_t)d->head_dim : 0),
        FLOATS(attend_top, rows * (size_t)c->heads),
        FLOATS(attend_sum, rows * (size_t)c->heads),
        FLOATS(route.logits, rows * experts),
        FLOATS(route.weight, slots),
        INTS(route.expert, slots),
        INTS(route.begin, experts + 1),
        INTS(route.active, units),
        INTS(route.active_begin, units),
        INTS(route.active_rows, units),
        INTS(route.active_count, 1),
        INTS(route.finished, 1),
        INTS(route.slot_row, slots),
        INTS(route.slot_of, slots),
        FLOATS(mixed, mixed * hidden),
        FLOATS(mixed_route.weight, mixed),
        INTS(mixed_route.slot_of, mixed),
        INTS(tokens, rows),
        INTS(sight, rows),
        FLOATS(argmax_value, pass * CUDA_ARGMAX_PARTS),
        INTS(argmax_index, pass * CUDA_ARGMAX_PARTS),
        INTS(argmax, pass),
        {(void **)(void *)&w->screen.x, CUDA_SCREEN_ROWS * 2 * parts},
        FLOATS(screen.lower, block * tiles),
        INTS(screen.finished, 1),
        {(void **)(void *)&w->screen.row, block * sizeof(cuda_screen_row)},
        {(void **)(void *)&w->screen.best, block * sizeof(unsigned long long)},
        {(void **)(void *)&w->leaders, pass * sizeof(cuda_leaders)},
        {(void **)(void *)&w->leader_scratch, pass * sizeof(cuda_leader_scratch)},
        {(void **)(void *)&w->batch, sizeof(cuda_batch)},
        {(void **)(void *)&w->draft_batch, sizeof(cuda_batch)},
        {(void **)(void *)&w->context_rows, d || f ? (CUDA_CONTEXT_ROWS + rows) * sizeof(cuda_context_row) : 0},
        FLOATS(d_state, pass * d_hidden),
        FLOATS(d_x, rows * d_hidden),
        FLOATS(d_q, pass * d_q),
        FLOATS(d_k, pass * d_kv),
        FLOATS(d_v, pass * d_kv),
        FLOATS(d_raw, rows * 2 * d_all),
        FLOATS(latents, rows * ranks),
        FLOATS(latent_values, ranks ? rows * (size_t)s.kv : 0),
        HALVES(d_in, rows * (size_t)cuda_padded((int)d_hidden)),
        HALVES(d_aux, rows * (size_t)cuda_padded((int)targets)),
        HALVES(d_heads, pass * d_q),
        HALVES(d_attended, pass * (size_t)cuda_padded((int)d_q)),
        HALVES(d_act, pass * (size_t)cuda_padded((int)d_wide)),
        HALVES(d_block_k, pass * d_kv),
        HALVES(d_block_v, pass * d_kv),
        HALVES(latent_in, rows * encoded),
        HALVES(latent_half, ranks ? rows * (size_t)cuda_padded((int)rank_v) : 0),
        FLOATS(a_h, chain * a_hidden),
        FLOATS(a_q, chain * (size_t)as.q),
        FLOATS(a_branch, chain * a_hidden),
        FLOATS(a_states, chain * hidden),
        FLOATS(a_centroids, chain * clusters),
        HALVES(a_pair, chain * (size_t)cuda_padded(2 * c->hidden)),
        HALVES(a_in, chain * (size_t)cuda_padded((int)a_hidden)),
        HALVES(a_heads, chain * (size_t)as.q),
        HALVES(a_attended, chain * (size_t)cuda_padded(as.q)),
        HALVES(a_act, chain * (size_t)cuda_padded(as.intermediate)),
        INTS(a_drafts, chain * BACKEND_MAX_DRAFT),
        INTS(a_clusters.chosen, chain * chosen),
        {(void **)(void *)&w->a_clusters.best, clusters ? chain * sizeof(unsigned long long) : 0},
        INTS(a_clusters.finished, clusters ? chain : 0),
    };
    if (a) {
        w->a_clusters.clusters = a->clusters;
        w->a_clusters.wanted = a->chosen_clusters;
    }
    w->route.experts = c->experts;
    w->route.rank = c->experts_per_token;
    kakeya_status status = carve(w, device, options->account, requests, COUNT(requests), error);
    w->route.row_count = &w->batch->rows;
    return status;
}

size_t cuda_workspace_logit_bytes(const model_config *config, int rows) {
    return (size_t)rows * (size_t)cuda_head_tiles(config->vocab) * CUDA_HEAD_TILE * sizeof(float);
}

kakeya_status cuda_workspace_reserve_masks(cuda_workspace *w, const cuda_device *device, mem_account *account,
                                           int vocab, kakeya_error *error) {
    const size_t bytes = CUDA_PASS_ROWS * cuda_workspace_mask_words(vocab) * sizeof *w->staged_masks;
    kakeya_status status = KAKEYA_OK;
    if (!w->masks.data)
        status = cuda_buffer_create(&w->masks, device, account, MEM_WORKSPACE, bytes + sizeof *w->staged_masks,
                                    "grammar masks", error);
    if (!status && !w->staged_masks) status = cuda_pinned((void **)&w->staged_masks, bytes, "grammar masks", error);
    return status;
}

static kakeya_status create_restore_stream(cuda_workspace *w, kakeya_error *error) {
    cudaEvent_t *events[] = {&w->restore_start, &w->restored[0], &w->restored[1], &w->projected};
    cudaError_t status = cudaStreamCreateWithFlags(&w->restore_stream, cudaStreamNonBlocking);
    for (size_t i = 0; i < COUNT(events) && status == cudaSuccess; i++)
        status = cudaEventCreateWithFlags(events[i], cudaEventDisableTiming);
    return cuda_check(status, "creating a stream", error);
}

static kakeya_status create_side_streams(cuda_workspace *w, kakeya_error *error) {
    cudaError_t status = cudaEventCreateWithFlags(&w->side_start, cudaEventDisableTiming);
    for (int i = 0; i < CUDA_SIDE_STREAMS && status == cudaSuccess; i++) {
        status = cudaStreamCreateWithFlags(&w->side_stream[i], cudaStreamNonBlocking);
        if (status == cudaSuccess) status = cudaEventCreateWithFlags(&w->side_done[i], cudaEventDisableTiming);
    }
    return cuda_check(status, "creating a stream", error);
}

/* Every row its own expert, with a weight of 1: on the device, by way of a staging buffer of the host. */
static kakeya_status fill_mixed_route(cuda_workspace *w, const cuda_device *device, int rows, kakeya_error *error) {
    if (!w->mixed) return KAKEYA_OK;
    w->mixed_route.experts = w->mixed_route.rank = 1;
    float *ones = (float *)(void *)w->staged_ids;
    size_t bytes = (size_t)rows * sizeof(int32_t);
    for (int i = 0; i < rows; i++) ones[i] = 1;
    cudaError_t status = cudaMemcpyAsync(w->mixed_route.weight, ones, bytes, cudaMemcpyHostToDevice, device->stream);
    if (status == cudaSuccess) status = cudaStreamSynchronize(device->stream);
    for (int i = 0; i < rows; i++) w->staged_ids[i] = i;
    if (status == cudaSuccess)
        status = cudaMemcpyAsync(w->mixed_route.slot_of, w->staged_ids, bytes, cudaMemcpyHostToDevice, device->stream);
    if (status == cudaSuccess) status = cudaStreamSynchronize(device->stream);
    return cuda_check(status, "preparing the workspace", error);
}

kakeya_status cuda_workspace_create(cuda_workspace *w, const cuda_device *device, const backend_model_options *options,
                                    const model_config *config, model_shard shard, int rows, kakeya_error *error) {
    kakeya_status status = carve_all(w, device, options, config, shard, rows, error);
    if (!status)
        status = cuda_buffer_create(&w->logit_memory, device, options->account, MEM_WORKSPACE,
                                    cuda_workspace_logit_bytes(config, CUDA_DECODE_ROWS), "logits", error);
    w->logits = w->logit_memory.data;
    if (!status && options->restoration) status = create_restore_stream(w, error);
    if (!status) status = create_side_streams(w, error);
    if (!status) status = cuda_pinned((void **)&w->staged, 2 * sizeof *w->staged, "a step", error);
    if (!status) status = cuda_pinned((void **)&w->staged_ids, 2 * (size_t)rows * sizeof(int32_t), "a step", error);
    if (!status)
        status = cuda_pinned((void **)&w->staged_leaders, CUDA_PASS_ROWS * sizeof *w->staged_leaders, "a step", error);
    if (!status && (options->drafter || options->restoration))
        status = cuda_pinned((void **)&w->staged_context,
                             (CUDA_CONTEXT_ROWS + (size_t)rows) * sizeof *w->staged_context, "a step", error);
    if (!status && !model_shard_is_whole(shard))
        status =
            cuda_pinned((void **)&w->staged_choices, CUDA_DECODE_ROWS * sizeof *w->staged_choices, "a step", error);
    return status ? status : fill_mixed_route(w, device, rows, error);
}

void cuda_workspace_destroy(cuda_workspace *w) {
    cuda_buffer *buffers[] = {&w->partial,       &w->partial_state, &w->cosine,       &w->sine,       &w->gathered,
                              &w->raw_k,         &w->raw_v,         &w->restored_k,   &w->restored_v, &w->key_scales,
                              &w->latent_scores, &w->latent_sums,   &w->latent_state, &w->expanded_k, &w->expanded_v,
                              &w->logit_memory,  &w->kept_logits,   &w->masks,        &w->memory};
    for (size_t i = 0; i < COUNT(buffers); i++) cuda_buffer_destroy(buffers[i]);
    cudaEvent_t events[] = {w->restore_start, w->restored[0], w->restored[1], w->projected};
    for (size_t i = 0; i < COUNT(events); i++) {
        if (events[i]) (void)cudaEventDestroy(events[i]);
    }
    if (w->restore_stream) (void)cudaStreamDestroy(w->restore_stream);
    for (int i = 0; i < CUDA_SIDE_STREAMS; i++) {
        if (w->side_stream[i]) (void)cudaStreamDestroy(w->side_stream[i]);
        if (w->side_done[i]) (void)cudaEventDestroy(w->side_done[i]);
    }
    if (w->side_start) (void)cudaEventDestroy(w->side_start);
    if (w->staged) (void)cudaFreeHost(w->staged);
    if (w->staged_ids) (void)cudaFreeHost(w->staged_ids);
    if (w->staged_leaders) (void)cudaFreeHost(w->staged_leaders);
    if (w->staged_masks) (void)cudaFreeHost(w->staged_masks);
    if (w->staged_context) (void)cudaFreeHost(w->staged_context);
    if (w->staged_choices) (void)cudaFreeHost(w->staged_choices);
}
