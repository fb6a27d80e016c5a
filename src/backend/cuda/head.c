/* The int8 copy of the head, where the device has room for it: greedy rows then read half the bytes (head.cu). */
#include "backend/cuda/cuda.h"

/* Below this a screen saves less than its kernels take to start. */
static const size_t least_head_bytes = (size_t)64 << 20;

/* Sessions grow behind the model, so the copy takes at most this part of what is free. */
enum { PART_OF_FREE = 4 };

static size_t free_bytes(const backend_model *m) {
    size_t available = 0, total = 0;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    for (const mem_account *a = m->account; a; a = a->parent) {
        size_t held = mem_total(a), left = a->limit_bytes > held ? a->limit_bytes - held : 0;
        if (a->limit_bytes && left < available) available = left;
    }
    return available;
}

kakeya_status cuda_head_create(backend_model *m, kakeya_error *error) {
    const cuda_matrix *head = &m->head;
    cuda_head_codes *codes = &m->head_codes;
    size_t matrix = (size_t)head->out * (size_t)head->ld * sizeof(cuda_bf16);
    if (matrix < least_head_bytes || !cuda_can_choose(m->device.multiprocessors, head->out)) return KAKEYA_OK;
    int steps = cuda_head_steps(head->in);
    size_t outputs = (size_t)cuda_head_tiles(head->out) * CUDA_HEAD_TILE;
    size_t code_bytes = outputs * (size_t)steps * CUDA_HEAD_STEP, bytes = code_bytes + outputs * sizeof *codes->outputs;
    if (bytes > free_bytes(m) / PART_OF_FREE) return KAKEYA_OK;
    kakeya_error refusal;
    kakeya_status status =
        cuda_buffer_create(&m->head_copy, &m->device, m->account, MEM_WEIGHTS, bytes, "the head in int8", &refusal);
    if (status == KAKEYA_OUT_OF_MEMORY) return KAKEYA_OK; /* somebody else was faster */
    if (status) return error_set(error, status, "%s", refusal.message);
    *codes = (cuda_head_codes){.codes = m->head_copy.data, .out = head->out, .steps = steps};
    codes->outputs = (cuda_head_output *)(void *)((char *)m->head_copy.data + code_bytes);
    cuda_encode_head(&m->launch, head, codes);
    return cuda_finish(&m->device, "making the head in int8", error);
}

bool cuda_head_screens(const backend_model *m) { return m->head_codes.codes != NULL; }

void cuda_head_choose(backend_model *m, const cuda_excluded *excluded, const cuda_bf16 *x, int rows, float cap) {
    cuda_screen screen = m->screen;
    screen.upper = m->logits; /* nobody reads logits of such rows */
    cuda_greedy_choice(&m->launch, &m->head, &m->head_codes, &screen, excluded, x, rows, cap, m->argmax);
}

size_t cuda_greedy_head_bytes(const backend_model *m) {
    return cuda_head_screens(m) ? m->head_copy.bytes : (size_t)m->head.out * (size_t)m->head.in * sizeof(cuda_bf16);
}
