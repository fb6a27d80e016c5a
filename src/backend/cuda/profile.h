/* Where the time of one decode step goes: the verb behind `kakeya bench --profile`. */
#ifndef KAKEYA_BACKEND_CUDA_PROFILE_H
#define KAKEYA_BACKEND_CUDA_PROFILE_H

#include "backend/cuda/cache.h"
#include "backend/measure.h"

kakeya_status cuda_profile(backend_cache *c, int32_t token, int repeats, backend_profile *out, kakeya_error *error);

#endif
