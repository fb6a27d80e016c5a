/* The verbs on a cache: its timeline and its stores in step with each other. */
#ifndef KAKEYA_BACKEND_CUDA_CACHE_H
#define KAKEYA_BACKEND_CUDA_CACHE_H

#include "backend/cuda/stores.h"

kakeya_status cuda_cache_check(const backend_model *m, const backend_cache_options *options, kakeya_error *error);
kakeya_status cuda_cache_create(backend_model *m, const backend_cache_options *options, backend_cache **out,
                                kakeya_error *error);
/* A cache with the stores of `t`, which it takes over whatever happens. `from`: a cache with such a timeline, or NULL.
 */
kakeya_status cuda_cache_create_with(backend_model *m, timeline *t, const backend_cache *from, backend_cache **out,
                                     kakeya_error *error);
/* What a timeline of the model's caches is made for; of several devices: of this device's part. */
timeline_models cuda_cache_models(const backend_model *m);
void cuda_cache_destroy(backend_cache *c);
int cuda_cache_length(const backend_cache *c);
int cuda_cache_pending(const backend_cache *c);
int cuda_cache_min_truncate(const backend_cache *c);
bool cuda_cache_has_state(const backend_cache *c);
kakeya_status cuda_cache_commit(backend_cache *c, int n, kakeya_error *error);
kakeya_status cuda_cache_truncate(backend_cache *c, int length, kakeya_error *error);
kakeya_status cuda_cache_fork(const backend_cache *c, mem_account *account, backend_cache **out, kakeya_error *error);
backend_cache_bytes cuda_cache_bytes(const backend_cache *c);

/* The steps of a forward (backend/timeline.h) for one cache. cuda_cache_plan fills c->step, cuda_cache_reserve is the
 * one that can run out of memory, cuda_cache_release undoes it. */
kakeya_status cuda_cache_plan(backend_cache *c, segment_kind kind, int n, kakeya_error *error);
kakeya_status cuda_cache_reserve(backend_cache *c, kakeya_error *error);
void cuda_cache_release(backend_cache *c);
/* Of all caches of a forward. Fails with the device alone, and leaves timelines that have begun all the same. */
kakeya_status cuda_caches_begin(backend_cache *const *caches, int n, kakeya_error *error);
/* The rows of c->step have been computed: they are pending. */
void cuda_cache_mark(backend_cache *c);

/* The rows that wait in the caches' backlogs enter their drafter context. Asynchronous. */
kakeya_status cuda_caches_flush(backend_cache *const *caches, int n, kakeya_error *error);

#endif
