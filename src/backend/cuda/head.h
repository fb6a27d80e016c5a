/* The int8 copy of the head, where the device has room for it: greedy rows then read half the bytes (head.cu). */
#ifndef KAKEYA_BACKEND_CUDA_HEAD_H
#define KAKEYA_BACKEND_CUDA_HEAD_H

#include <stdbool.h>

#include "backend/cuda/device.h"
#include "backend/cuda/kernels.h"

typedef struct cuda_head_copy {
    cuda_buffer memory;    /* empty where greedy rows read the matrix itself */
    cuda_head_codes codes; /* in it */
} cuda_head_copy;

/* Makes the copy of a head in bf16 that is worth it, if it fits well; otherwise `copy` stays empty and the status is
 * KAKEYA_OK. */
kakeya_status cuda_head_copy_create(cuda_head_copy *copy, const cuda_device *device, const cuda_launch *launch,
                                    const cuda_matrix *head, mem_account *account, kakeya_error *error);
void cuda_head_copy_destroy(cuda_head_copy *copy);
/* Of several devices each has made its choices, as keys of its own rows of the head, which begin at token firsts[i]:
 * those of all. -1 where a logit is not a number. */
int32_t cuda_head_choice(const unsigned long long *keys, const int *firsts, int devices);
bool cuda_head_screens(const cuda_head_copy *copy);
/* Bytes of the head that a greedy choice reads. */
size_t cuda_head_greedy_bytes(const cuda_head_copy *copy, const cuda_matrix *head);

#endif
