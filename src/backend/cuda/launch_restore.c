#include "backend/cuda/launch_restore.h"

#include "backend/cuda/prompt_gemm.h"
#include "backend/cuda/recorder.h"
#include "backend/cuda/restoration.h"

/* Beside the step, but with a profiler in its stream, each kernel alone. */
static cuda_launch launch_of(const cuda_pass *p, const step_op *op) {
    cuda_launch l = p->model->launch;
    if (op->alone) l.programmatic = 0;
    if (!op->beside) return l;
    return (cuda_launch){.stream = l.profiler ? l.stream : p->model->space.restore_stream,
                         .multiprocessors = l.multiprocessors,
                         .profiler = l.profiler};
}

/* All rows that there is room for: how many there are is known to the device alone. */
static void decode_half(cuda_pass *p, const cuda_launch *l, const cuda_restore *r, bool values) {
    const cuda_matrix *decoder = values ? r->decoder_v : r->decoder_k;
    prompt_gemm_args args = {
        .a = r->gathered.codes + (values ? r->latent.first_v : 0),
        .lda = (size_t)r->latent.width,
        .w = decoder->data,
        .ldw = (size_t)decoder->ld,
        .out = values ? p->model->space.raw_v.data : p->model->space.raw_k.data,
        .ldo = (size_t)decoder->out,
        .m = p->key.restored,
        .n = decoder->out,
        .k = values ? r->rank_v : r->rank_k,
    };
    cuda_profile_begin(l, NULL);
    cuda_pass_note(p, prompt_gemm(&args, l->stream));
    cuda_profile_end(l);
}

latent_attention cuda_launch_latents(const cuda_pass *p, int source, const cuda_attention *exact) {
    const backend_cache *c = p->cache;
    const cuda_workspace *w = &p->model->space;
    const backend_cache_options *o = &c->t.options;
    int sliding = p->model->config->sliding_window, rows = p->key.segment_rows;
    cuda_restore r = cuda_restoration_of(c, source, p->key.restored);
    latent_attention a = {
        .exact = *exact,
        .decoder_k = r.decoder_k,
        .decoder_v = r.decoder_v,
        .k_norm = r.k_norm,
        .gathered = cuda_restoration_gathered(c, p->key.restored, true),
        .rank_k = r.rank_k,
        .rank_v = r.rank_v,
        .latent_head = r.latent_head,
        .eps = r.eps,
        .keys = p->decodes_keys ? w->restored_k.data : NULL,
        .key_scales = p->decodes_keys ? w->key_scales.data : NULL,
        .scores = w->latent_scores.data,
        .stride = latent_attention_stride(sliding, o->window, rows),
        .sums = w->latent_sums.data,
        .state = w->latent_state.data,
        .partitions = latent_attention_partitions(sliding, o->window, rows),
        .rows = p->rows,
        .most_latents = p->key.restored,
    };
    a.exact.heads = p->model->config->heads;
    a.exact.kv_heads = r.kv_heads;
    a.exact.partitions = latent_attention_exact_partitions(sliding, o->sink, o->window, rows);
    return a;
}

/* Of rows that attend latents: keys alone. */
static void decode_keys(cuda_pass *p, const cuda_launch *l, const step_op *op) {
    latent_attention a = cuda_launch_latents(p, op->source, &(cuda_attention){0});
    a.alone = op->alone;
    cuda_pass_note(p, latent_attention_keys(l, p->model->space.batch, &a));
}

static void decode_gathered(cuda_pass *p, const cuda_launch *l, const cuda_restore *r, bool chained) {
    cuda_profile_begin(l, NULL);
    cuda_pass_note(p, prompt_gemm_restore(l, p->model->space.batch, r, p->key.restored, chained));
    cuda_profile_end(l);
}

/* Sliding layers see no more of a segment than their window. */
static void decode_rows(const cuda_pass *p, const cuda_launch *l, const cuda_restore *r) {
    int most = p->model->config->sliding_window * (p->prompt ? 1 : p->key.segments);
    cuda_restore_rows(l, p->model->space.batch, r, !r->full && most < p->key.restored ? most : p->key.restored);
}

static void fork_stream(cuda_pass *p, cudaEvent_t event) {
    cuda_pass_note(p, cudaEventRecord(event, p->model->launch.stream));
    cuda_pass_note(p, cudaStreamWaitEvent(p->model->space.restore_stream, event, 0));
}

/* The set is whole: a STEP_JOIN waits for this, not for what is launched beside the step later. */
static void finish_set(cuda_pass *p, const step_op *op) {
    if (op->beside)
        cuda_pass_note(p, cudaEventRecord(p->model->space.restored[op->index], p->model->space.restore_stream));
}

void cuda_launch_restore(cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    cuda_workspace *w = &m->space;
    cuda_launch l = launch_of(p, op);
    if (op->kind == STEP_FORK) {
        fork_stream(p, op->index ? w->projected : w->restore_start);
        return;
    }
    if (op->kind == STEP_JOIN) {
        cuda_pass_note(p, cudaStreamWaitEvent(m->launch.stream, w->restored[op->index], 0));
        return;
    }
    if (op->kind == STEP_RESTORE_GATHER) {
        cuda_gathered to = cuda_restoration_gathered(p->cache, p->key.restored, p->attends_latents);
        cuda_gather_latents(&l, w->batch, &to, m->weights.inverse_frequency[LAYER_SLIDING], p->key.restored);
        return;
    }
    if (op->kind == STEP_RESTORE && p->attends_latents) {
        decode_keys(p, &l, op);
        return;
    }
    cuda_restore r = cuda_restoration_of(p->cache, op->source, p->key.restored);
    r.k = cuda_restoration_set(&w->restored_k, op->index);
    r.v = cuda_restoration_set(&w->restored_v, op->index);
    if (op->kind == STEP_RESTORE_KEYS || op->kind == STEP_RESTORE_VALUES) {
        decode_half(p, &l, &r, op->kind == STEP_RESTORE_VALUES);
        return;
    }
    if (op->kind == STEP_RESTORE)
        decode_gathered(p, &l, &r, !op->beside);
    else if (op->kind == STEP_RESTORE_FINISH)
        cuda_finish_restored(&l, w->batch, &r, w->raw_k.data, w->raw_v.data, p->key.restored);
    else
        decode_rows(p, &l, &r);
    finish_set(p, op);
}
