/* The committed state of a cache as bytes, and back; the format is the same on every backend. */
#ifndef KAKEYA_BACKEND_CUDA_SNAPSHOT_H
#define KAKEYA_BACKEND_CUDA_SNAPSHOT_H

#include "backend/cuda/cache.h"

size_t cuda_cache_snapshot_bytes(const backend_cache *c);
kakeya_status cuda_cache_snapshot(const backend_cache *c, void *data, size_t bytes, kakeya_error *error);
kakeya_status cuda_cache_restore(backend_cache *c, const void *data, size_t bytes, kakeya_error *error);

#endif
