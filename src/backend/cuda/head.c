#include "backend/cuda/head.h"

#include "backend/cuda/matrix.h"

/* Below this a screen saves less than its kernels take to start. */
static const size_t least_head_bytes = (size_t)64 << 20;

/* Sessions grow behind the model, so the copy takes at most this part of what is free. */
enum { PART_OF_FREE = 4 };

static size_t free_bytes(const mem_account *account) {
    size_t available = 0, total = 0;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    for (const mem_account *a = account; a; a = a->parent) {
        size_t held = mem_total(a), left = a->limit_bytes > held ? a->limit_bytes - held : 0;
        if (a->limit_bytes && left < available) available = left;
    }
    return available;
}

kakeya_status cuda_head_copy_create(cuda_head_copy *copy, const cuda_device *device, const cuda_launch *launch,
                                    const cuda_matrix *head, mem_account *account, kakeya_error *error) {
    *copy = (cuda_head_copy){0};
    if (head->form != CUDA_FORM_BF16) return KAKEYA_OK; /* its codes are no more bytes than the copy's */
    size_t matrix = (size_t)head->out * (size_t)head->ld * sizeof(cuda_bf16);
    if (matrix < least_head_bytes || !cuda_can_choose(device->multiprocessors, head->out)) return KAKEYA_OK;
    int steps = cuda_head_steps(head->in);
    size_t outputs = (size_t)cuda_head_tiles(head->out) * CUDA_HEAD_TILE;
    size_t code_bytes = outputs * (size_t)steps * CUDA_HEAD_STEP,
           bytes = code_bytes + outputs * sizeof(cuda_head_output);
    if (bytes > free_bytes(account) / PART_OF_FREE) return KAKEYA_OK;
    kakeya_error refusal;
    kakeya_status status =
        cuda_buffer_create(&copy->memory, device, account, MEM_WEIGHTS, bytes, "the head in int8", &refusal);
    if (status == KAKEYA_OUT_OF_MEMORY) return KAKEYA_OK; /* somebody else was faster */
    if (status) return error_set(error, status, "%s", refusal.message);
    copy->codes = (cuda_head_codes){.codes = copy->memory.data, .out = head->out, .steps = steps};
    copy->codes.outputs = (cuda_head_output *)(void *)((char *)copy->memory.data + code_bytes);
    cuda_encode_head(launch, head, &copy->codes);
    return cuda_finish(device, "making the head in int8", error);
}

void cuda_head_copy_destroy(cuda_head_copy *copy) {
    cuda_buffer_destroy(&copy->memory);
    copy->codes = (cuda_head_codes){0};
}

/* A key ascends with the logit and descends with the token (products.cu). NaN is above all, 0 is nobody's. */
int32_t cuda_head_choice(const unsigned long long *keys, const int *firsts, int devices) {
    const uint32_t infinity = 0xff800000u;
    unsigned long long best = 0;
    for (int i = 0; i < devices; i++) {
        uint32_t token = ~(uint32_t)keys[i] + (uint32_t)firsts[i];
        unsigned long long key = keys[i] ? (keys[i] >> 32 << 32 | (uint32_t)~token) : 0;
        if (key > best) best = key;
    }
    uint32_t ascending = (uint32_t)(best >> 32);
    return ascending >= infinity || ascending <= ~infinity ? -1 : (int32_t) ~(uint32_t)best;
}

bool cuda_head_screens(const cuda_head_copy *copy) { return copy->codes.codes != NULL; }

size_t cuda_head_greedy_bytes(const cuda_head_copy *copy, const cuda_matrix *head) {
    return cuda_head_screens(copy) ? copy->memory.bytes : (size_t)matrix_read_bytes(head);
}
