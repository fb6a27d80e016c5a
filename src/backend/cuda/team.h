/* Several devices that compute one model: a host thread for each, and what they have to agree about. Device 0 works on
 * the caller's thread. All of them go through the same forward, so they come to the same places in the same order: an
 * agreement is reached by all, or by none. */
#ifndef KAKEYA_BACKEND_CUDA_TEAM_H
#define KAKEYA_BACKEND_CUDA_TEAM_H

#include "backend/cuda/model.h"

typedef struct cuda_team cuda_team;

/* Of models [n], parts of one on different devices, which stay the caller's; they get their team, and inboxes that all
 * can write to. KAKEYA_UNSUPPORTED where a device cannot reach another's memory. */
kakeya_status cuda_team_create(backend_model *const *models, int n, cuda_team **out, kakeya_error *error);
void cuda_team_destroy(cuda_team *team); /* NULL is fine */
int cuda_team_size(const cuda_team *team);
backend_model *cuda_team_model(const cuda_team *team, int index);

/* Calls task(context, index) for every device on its thread, with the device in use, and waits for all. */
typedef void (*cuda_team_task)(void *context, int index);
void cuda_team_run(cuda_team *team, cuda_team_task task, void *context);

/* On every device's thread, in the same order on all. A model that is alone agrees with itself at once. */

/* The first failure of any device, or KAKEYA_OK on all. */
kakeya_status cuda_team_agree(backend_model *m, kakeya_status status, kakeya_error *error);
/* Before the launch of a pass: nothing runs on any device. Numbers the pass. */
kakeya_status cuda_team_begin_pass(backend_model *m, kakeya_error *error);
/* What follows on the device's stream waits for what all devices have enqueued so far. */
cudaError_t cuda_team_order(backend_model *m, int turn);
/* This device has failed inside a pass: others do not wait for what it would send. */
void cuda_team_abandon(backend_model *m);

#endif
