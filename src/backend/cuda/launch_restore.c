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

/* All slots of the ring, in their order: positions are found behind the product. */
static void decode_half(cuda_pass *p, const cuda_launch *l, const cuda_restore *r, bool values) {
    const cuda_matrix *decoder = values ? r->decoder_v : r->decoder_k;
    const latent_store *latent = &p->cache->latent;
    prompt_gemm_args args = {
        .a = (const cuda_bf16 *)latent->codes.data + (values ? r->rank : 0),
        .lda = 2 * (size_t)r->rank,
        .w = decoder->data,
        .ldw = (size_t)decoder->ld,
        .out = values ? p->model->space.raw_v.data : p->model->space.raw_k.data,
        .ldo = (size_t)decoder->out,
        .m = p->cache->t.latent_capacity,
        .n = decoder->out,
        .k = r->rank,
    };
    cuda_profile_begin(l, NULL);
    cuda_pass_note(p, prompt_gemm(&args, l->stream));
    cuda_profile_end(l);
}

static void decode_ring(cuda_pass *p, const cuda_launch *l, const cuda_restore *r, bool chained) {
    const latent_store *latent = &p->cache->latent;
    cuda_profile_begin(l, NULL);
    cuda_pass_note(p, prompt_gemm_restore(l, p->model->space.batch->step, r, latent->codes.data,
                                          p->cache->t.latent_capacity,
                                          cuda_restoration_positions(p->cache, p->prompt, p->rows), chained));
    cuda_profile_end(l);
}

static void decode_rows(const cuda_pass *p, const cuda_launch *l, const cuda_restore *r) {
    int positions = r->full ? p->key.restored : p->model->config->sliding_window;
    cuda_restore_rows(l, p->model->space.batch->step, r, positions < p->key.restored ? positions : p->key.restored);
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
    if (op->kind == STEP_RESTORE_TURNS) {
        cuda_restore_turns(&l, w->batch->step, m->weights.inverse_frequency[op->index],
                           m->config->rope[op->index].rotated_pairs, op->index == GEMMA4_FULL,
                           p->cache->t.latent_capacity, w->restore_turns[op->index].data);
        return;
    }
    cuda_restore r = cuda_restoration_of(m, op->source);
    r.k = cuda_restoration_set(&w->restored_k, op->index);
    r.v = cuda_restoration_set(&w->restored_v, op->index);
    if (op->kind == STEP_RESTORE_KEYS || op->kind == STEP_RESTORE_VALUES) {
        decode_half(p, &l, &r, op->kind == STEP_RESTORE_VALUES);
        return;
    }
    if (op->kind == STEP_RESTORE)
        decode_ring(p, &l, &r, !op->beside);
    else if (op->kind == STEP_RESTORE_FINISH)
        cuda_finish_restored(&l, w->batch->step, &r, w->raw_k.data, w->raw_v.data, p->cache->t.latent_capacity);
    else
        decode_rows(p, &l, &r);
    finish_set(p, op);
}
