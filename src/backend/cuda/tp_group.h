/* A tensor-parallel group, several devices that compute one model: a host thread for each, and what they have to agree
 * about. Device 0 works on the caller's thread. All of them go through the same forward, so they come to the same
 * places in the same order: an agreement is reached by all, or by none. */
#ifndef KAKEYA_BACKEND_CUDA_TP_GROUP_H
#define KAKEYA_BACKEND_CUDA_TP_GROUP_H

#include "backend/cuda/model.h"

typedef struct cuda_tp_group cuda_tp_group;

/* Of models [n], parts of one on different devices, which stay the caller's; they get their group, and inboxes that all
 * can write to. KAKEYA_UNSUPPORTED where a device cannot reach another's memory. */
kakeya_status cuda_tp_group_create(backend_model *const *models, int n, cuda_tp_group **out, kakeya_error *error);
void cuda_tp_group_destroy(cuda_tp_group *group); /* NULL is fine */
int cuda_tp_group_size(const cuda_tp_group *group);
backend_model *cuda_tp_group_model(const cuda_tp_group *group, int index);

/* Calls task(context, index) for every device on its thread, with the device in use, and waits for all. */
typedef void (*cuda_tp_task)(void *context, int index);
void cuda_tp_group_run(cuda_tp_group *group, cuda_tp_task task, void *context);

/* On every device's thread, in the same order on all. A model that is alone agrees with itself at once. */

/* The first failure of any device, or KAKEYA_OK on all. */
kakeya_status cuda_tp_group_agree(backend_model *m, kakeya_status status, kakeya_error *error);
/* Before the launch of a pass: nothing runs on any device. Numbers the pass. */
kakeya_status cuda_tp_group_begin_pass(backend_model *m, kakeya_error *error);
/* What follows on the device's stream waits for what all devices have enqueued so far. */
cudaError_t cuda_tp_group_order(backend_model *m, int turn);
/* This device has failed inside a pass: others do not wait for what it would send. */
void cuda_tp_group_abandon(backend_model *m);

#endif
