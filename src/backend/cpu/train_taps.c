#include "backend/cpu/train_taps.h"

#include "backend/cpu/cache.h"
#include "backend/cpu/forward.h"
#include "backend/cpu/taps.h"

kakeya_status tapped_forward(backend_model *m, backend_cache *cache, const int32_t *tokens, int n, train_tap_fn tap,
                             void *user, kakeya_error *error) {
    size_t rows = (size_t)n, q = 0, kv = 0, hidden = (size_t)m->config->hidden;
    for (int i = 0; i < m->config->layers; i++) {
        const layer_config *l = &m->config->layer[i];
        size_t layer_q = (size_t)(m->config->heads * l->head_dim), layer_kv = (size_t)(l->kv_heads * l->head_dim);
        if (layer_q > q) q = layer_q;
        if (layer_kv > kv) kv = layer_kv;
    }
    size_t floats = rows * (2 * kv + 2 * q + hidden);
    float *memory = mem_alloc(m->account, MEM_WORKSPACE, floats * sizeof *memory);
    if (!memory)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: a forward to train on needs %zu bytes",
                         floats * sizeof *memory);
    forward_taps taps = {.tap = tap, .user = user, .raw_k = memory};
    taps.raw_v = taps.raw_k + rows * kv;
    taps.q = taps.raw_v + rows * kv;
    taps.o = taps.q + rows * q;
    taps.out = taps.o + rows * q;
    backend_segment segment = {.cache = cache, .tokens = tokens, .n = n, .kind = SEGMENT_PROMPT, .first_logit_row = n};
    m->taps = &taps;
    kakeya_status status = cpu_forward(m, &segment, 1, error);
    m->taps = NULL;
    if (!status) status = host_cache_commit(cache, n, error);
    mem_free(memory);
    return status;
}
