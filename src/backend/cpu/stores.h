/* The kernels that know how the stores of a cache (backend/host_stores.h) keep their rows. */
#ifndef KAKEYA_BACKEND_CPU_STORES_H
#define KAKEYA_BACKEND_CPU_STORES_H

#include "backend/cpu/cpu.h"
#include "backend/host_stores.h"

/* Of a layer with a store, and of the drafter's context. */
static inline const cpu_kv_kernels *kv_kernels(const backend_cache *c, int layer) {
    return &c->model->kernels->kv[c->t.layer[layer].format];
}
static inline const cpu_kv_kernels *kv_draft_kernels(const backend_cache *c) {
    return &c->model->kernels->kv[c->t.draft_format];
}

#endif
