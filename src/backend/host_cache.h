/* The verbs on a cache whose stores lie in the host's memory: its timeline and its stores in step with each other. What
 * is computed for it is its backend's business. */
#ifndef KAKEYA_BACKEND_HOST_CACHE_H
#define KAKEYA_BACKEND_HOST_CACHE_H

#include "backend/host_stores.h"

kakeya_status host_cache_create(backend_model *m, const timeline_models *models, const backend_cache_options *options,
                                backend_cache **out, kakeya_error *error);
void host_cache_destroy(backend_cache *c);
int host_cache_length(const backend_cache *c);
int host_cache_pending(const backend_cache *c);
int host_cache_min_truncate(const backend_cache *c);
bool host_cache_has_state(const backend_cache *c);
kakeya_status host_cache_commit(backend_cache *c, int n, kakeya_error *error);
kakeya_status host_cache_truncate(backend_cache *c, int length, kakeya_error *error);
kakeya_status host_cache_fork(const backend_cache *c, mem_account *account, backend_cache **out, kakeya_error *error);
backend_cache_bytes host_cache_bytes(const backend_cache *c);
size_t host_cache_snapshot_bytes(const backend_cache *c);
kakeya_status host_cache_snapshot(const backend_cache *c, backend_write_fn write, void *user, kakeya_error *error);
kakeya_status host_cache_restore(backend_cache *c, backend_read_fn read, void *user, kakeya_error *error);

#endif
