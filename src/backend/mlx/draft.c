/* Blocks of the drafter. They decide nothing but what is proposed, so their shapes are as they come. */
#include <string.h>

#include "backend/mlx/mlx.h"
#include "backend/segments.h"

static const timeline *timeline_of(const backend_cache *c) { return &c->t; }

static kakeya_status prepare(backend_model *m, backend_draft_request *requests, int n, kakeya_error *error) {
    kakeya_status status = backend_check_drafts(m->config, requests, n, timeline_of, error);
    int furthest = 0;
    for (int i = 0; i < n && !status; i++) {
        const backend_cache *c = requests[i].cache;
        if (c->model != m)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "draft request %d: cache of another model", i);
        kv_format format = c->t.options.kv_format, first = requests[0].cache->t.options.kv_format;
        if (format != first)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "draft request %d: K/V formats %s and %s in one call", i,
                             kv_format_name(format), kv_format_name(first));
        int end = c->t.length + requests[i].n + 1;
        if (end > furthest) furthest = end;
    }
    /* Padding of a group that is flushed lies behind the last position. */
    if (!status) status = mlx_rope_reserve(m, furthest + MLX_FOLLOW_ROWS, error);
    if (!status) status = mlx_reserve_workspace(m, mlx_draft_bytes(m, requests, n), error);
    for (int i = 0; i < n && !status; i++) {
        backend_cache *c = requests[i].cache;
        status = stores_own_pages(c, error);
        if (!status) status = mlx_flush(c, timeline_flush(&c->t), error);
        if (!status) timeline_flushed(&c->t);
        requests[i].status = status;
    }
    return status;
}

/* What a block's graph asks for. */
typedef struct block_source {
    const backend_cache *cache;
    const mlx_block *block;
} block_source;

static void fill_context(void *user, int layer, bool is_k, void *to) {
    const block_source *s = user;
    size_t bytes = kv_draft_row_bytes(s->cache);
    for (int i = 0; i < s->block->context[layer]; i++)
        memcpy((char *)to + (size_t)i * bytes, kv_draft_row(s->cache, layer, s->block->first[layer] + i, is_k), bytes);
}

/* Sliding layers count their window from the row, and see nothing behind it where the published causal rule inside the
 * block is in force. */
static void lay_out_layer(const backend_model *m, const backend_cache *c, int layer, mlx_block *b, int32_t *begin) {
    int sliding = m->options.drafter->config.sliding_window[layer], length = c->t.length;
    int first = timeline_draft_context(&c->t, layer).begin;
    for (int i = 0; i < b->rows; i++) {
        int oldest = sliding ? length + i - sliding + 1 : first;
        begin[i] = oldest > first ? oldest : first;
    }
    b->begin[layer] = begin;
    b->first[layer] = begin[0] < length ? begin[0] : length;
    b->context[layer] = length - b->first[layer];
    b->before[layer] = sliding ? sliding - 1 : b->rows;
    b->behind[layer] = !sliding ? b->rows : m->options.drafter_block_bidirectional ? b->before[layer] : 0;
}

/* The block of one request. embedded: [rows][hidden], to be used. */
static kakeya_status run_block(backend_model *m, const backend_draft_request *r, float *embedded, kakeya_error *error) {
    enum { ROWS = BACKEND_MAX_DRAFT + 1 };
    const block_drafter_config *d = &m->options.drafter->config;
    const backend_cache *c = r->cache;
    int32_t position[ROWS], begin[BLOCK_DRAFTER_MAX_LAYERS][ROWS];
    float scale = m->options.drafter_scaled_embedding ? m->embed_scale : 1;
    mlx_block block = {.rows = r->n + 1,
                       .embedded = embedded,
                       .position = position,
                       .stored_bf16 = c->t.draft_format == KV_FORMAT_BF16,
                       .fill = fill_context};
    for (int i = 0; i <= r->n; i++) {
        position[i] = c->t.length + i;
        mlx_embed(m, i ? d->mask_token : r->bonus, scale, embedded + (size_t)i * (size_t)d->hidden);
    }
    for (int i = 0; i < d->layers; i++) lay_out_layer(m, c, i, &block, begin[i]);
    block_source source = {c, &block};
    block.user = &source;
    mlx_failure failure;
    return mlx_check(mlx_block_run(m->device, &m->form, &m->drafter, &block, m->never_drafted, r->drafts, &failure),
                     &failure, error);
}

kakeya_status mlx_draft(backend_model *m, backend_draft_request *requests, int n, kakeya_error *error) {
    enum { ROWS = BACKEND_MAX_DRAFT + 1 };
    kakeya_status status = prepare(m, requests, n, error);
    if (status) return status;
    size_t hidden = (size_t)m->options.drafter->config.hidden;
    float *rows = mem_alloc(m->account, MEM_WORKSPACE, ROWS * hidden * sizeof *rows);
    if (!rows) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a block of drafts");
    for (int i = 0; i < n && !status; i++) status = run_block(m, &requests[i], rows, error);
    mem_free(rows);
    return status ? status : mlx_count_workspace(m, error);
}
