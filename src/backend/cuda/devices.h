/* The verbs of backend.h for one device or several. Of several, models and caches of devices 1, 2, ... hang on those of
 * the first one, and every verb happens to all of them. A device alone takes the verbs as they are. */
#ifndef KAKEYA_BACKEND_CUDA_DEVICES_H
#define KAKEYA_BACKEND_CUDA_DEVICES_H

#include "backend/cuda/cache.h"

kakeya_status cuda_devices_create(const backend_model_options *options, backend_model **out, kakeya_error *error);
void cuda_devices_destroy(backend_model *m);

kakeya_status cuda_devices_cache_create(backend_model *m, const backend_cache_options *options, backend_cache **out,
                                        kakeya_error *error);
void cuda_devices_cache_destroy(backend_cache *c);
kakeya_status cuda_devices_forward(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error);
kakeya_status cuda_devices_draft(backend_model *m, backend_draft_request *requests, int n_requests,
                                 kakeya_error *error);
kakeya_status cuda_devices_commit(backend_cache *c, int n, kakeya_error *error);
kakeya_status cuda_devices_truncate(backend_cache *c, int length, kakeya_error *error);
kakeya_status cuda_devices_fork(const backend_cache *c, mem_account *account, backend_cache **out, kakeya_error *error);
backend_cache_bytes cuda_devices_bytes(const backend_cache *c);

#endif
