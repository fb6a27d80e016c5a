/* The verbs of snapshots over this backend's snapshots in one piece: their length, then they. */
#ifndef KAKEYA_BACKEND_CUDA_STREAMS_H
#define KAKEYA_BACKEND_CUDA_STREAMS_H

#include "backend/backend.h"

size_t cuda_cache_stream_bytes(const backend_cache *c);
kakeya_status cuda_cache_write_stream(const backend_cache *c, backend_write_fn write, void *user, kakeya_error *error);
kakeya_status cuda_cache_read_stream(backend_cache *c, backend_read_fn read, void *user, kakeya_error *error);

#endif
