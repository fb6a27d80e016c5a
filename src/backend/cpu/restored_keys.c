#include "backend/cpu/restored_keys.h"

#include <stdatomic.h>

struct restored_keys {
    uint64_t owner; /* backend_cache.id; 0: nobody */
    int blocks;     /* of a head */
    int first[MODEL_MAX_LAYERS + 1];
    restored_key_block *block; /* [first[layer] .. first[layer + 1]): [head][blocks] */
    float *keys;
};

static bool is_kept(const model_config *c, int layer) {
    return c->layer[layer].type == LAYER_SLIDING && c->layer[layer].kv_source == layer;
}

/* Of a head. */
static int blocks_of(const model_config *c) {
    return (c->sliding_window + BACKEND_MAX_DECODE_ROWS) / ATTENTION_BLOCK + 2;
}

/* Blocks of all heads, and the floats of their keys. */
static size_t count_blocks(const model_config *c, size_t *floats) {
    size_t all = 0;
    *floats = 0;
    for (int i = 0; i < c->layers; i++) {
        if (!is_kept(c, i)) continue;
        size_t n = (size_t)c->layer[i].kv_heads * (size_t)blocks_of(c);
        all += n;
        *floats += n * ATTENTION_BLOCK * (size_t)c->layer[i].head_dim;
    }
    return all;
}

size_t restored_keys_bytes(const model_config *config) {
    size_t floats, all = count_blocks(config, &floats);
    return all ? sizeof(restored_keys) + all * sizeof(restored_key_block) + floats * sizeof(float) : 0;
}

static void free_keys(restored_keys *r) {
    if (!r) return;
    mem_free(r->block);
    mem_free(r->keys);
    mem_free(r);
}

kakeya_status restored_keys_create(backend_model *m, kakeya_error *error) {
    const model_config *c = m->config;
    const int blocks = blocks_of(c);
    size_t floats, all = count_blocks(c, &floats);
    if (all == 0 || m->restored_keys) return KAKEYA_OK;
    restored_keys *r = mem_alloc(m->account, MEM_WORKSPACE, sizeof *r);
    if (r) {
        r->block = mem_alloc(m->account, MEM_WORKSPACE, all * sizeof *r->block);
        r->keys = mem_alloc(m->account, MEM_WORKSPACE, floats * sizeof *r->keys);
    }
    if (!r || !r->block || !r->keys) {
        free_keys(r);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: restored keys need another %zu bytes",
                         floats * sizeof *r->keys);
    }
    r->blocks = blocks;
    float *at = r->keys;
    for (int i = 0, n = 0; i < c->layers; i++) {
        r->first[i] = n;
        for (int b = 0; is_kept(c, i) && b < c->layer[i].kv_heads * blocks; b++) {
            r->block[n++] = (restored_key_block){.keys = at, .base = -1};
            at += (size_t)ATTENTION_BLOCK * (size_t)c->layer[i].head_dim;
        }
        r->first[i + 1] = n;
    }
    restored_keys *nobody = NULL; /* sessions may be opened side by side */
    if (!atomic_compare_exchange_strong(&m->restored_keys, &nobody, r)) free_keys(r);
    return KAKEYA_OK;
}

void restored_keys_destroy(backend_model *m) {
    free_keys(m->restored_keys);
    m->restored_keys = NULL;
}

void restored_keys_take(backend_model *m, backend_cache *const *caches, int n) {
    restored_keys *r = m->restored_keys;
    if (!r || n == 0) return;
    for (int i = 0; i < n; i++)
        if (caches[i]->id == r->owner) return;
    r->owner = caches[0]->id;
    for (int i = 0; i < r->first[m->config->layers]; i++) r->block[i].base = -1;
}

restored_key_block *restored_keys_at(const backend_cache *c, int layer, int head, int base) {
    restored_keys *r = c->model->restored_keys;
    if (!r || r->owner != c->id || r->first[layer] == r->first[layer + 1]) return NULL;
    restored_key_block *b = &r->block[r->first[layer] + head * r->blocks + base / ATTENTION_BLOCK % r->blocks];
    if (b->base != base) {
        b->base = base;
        b->valid = 0;
    }
    return b;
}

void restored_keys_forget(const backend_cache *c, int position, int rows) {
    restored_keys *r = c->model->restored_keys;
    if (!r || r->owner != c->id) return;
    for (int i = 0; i < r->first[c->model->config->layers]; i++) {
        restored_key_block *b = &r->block[i];
        if (b->base < 0) continue;
        for (int row = 0; row < ATTENTION_BLOCK; row++) {
            int p = b->base + row;
            if (p >= position && p < position + rows) b->valid &= ~(1u << row);
        }
    }
}
