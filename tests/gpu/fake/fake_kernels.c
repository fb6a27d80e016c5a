/* The kernels' launchers, which move tags (fake_device.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/attention_ahead.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/latent_attention.h"
#include "backend/cuda/prompt_attention.h"
#include "backend/cuda/prompt_gemm.h"
#include "backend/cuda/prompt_rows.h"
#include "backend/cuda/quant.h"
#include "backend/cuda/recorder.h"
#include "gpu/fake/fake_device.h"
#include "gpu/fake/fake_tags.h"

/* --------------------------------------------------------------------------------------------------------- tags */

/* A device's thread is the device: what one of several is at is its own. */

_Thread_local fake_rows fake_now;
/* Last rows of prompts, whose head comes later; and the rows of the head that ran last. */
static _Thread_local struct {
    const cuda_bf16 *x;
    uint64_t seen[CUDA_MAX_SEGMENTS];
    int ill[CUDA_MAX_SEGMENTS];
} last;
static _Thread_local uint64_t head_seen[CUDA_PASS_ROWS];
/* The drafter's blocks. */
static _Thread_local uint64_t block_seen[CUDA_PASS_ROWS];
static _Thread_local int block_ill[CUDA_MAX_SEGMENTS];
static _Thread_local const cuda_batch *blocks;
static _Thread_local int in_block, block_segments;

static void see(int row, tag t, int restored) {
    fake_now.seen[row] = fake_mix(fake_now.seen[row],
                                  (uint64_t)(uint32_t)t.position << 32 | (uint32_t)t.token << 1 | (uint64_t)restored);
    fake_now.ill[row] |= t.ill;
}

/* Whose a row of a prompt pass is. */
static const cuda_step *prompt_segment(const cuda_batch *batch, int row) {
    int s = 0;
    while (s + 1 < batch->segments && batch->step[s + 1].first_row <= row) s++;
    const cuda_step *step = &batch->step[s];
    if (row < step->first_row || row >= step->first_row + step->rows) fake_broken("a row of no prompt", row, s);
    return step;
}
static int prompt_position(const cuda_batch *batch, int row) {
    const cuda_step *step = prompt_segment(batch, row);
    return step->position + row - step->first_row;
}

/* The same of a layer's exact K/V, whatever they are kept in. */
static void *stored_row(const void *data, int row, const cuda_layer_view *view) {
    return (char *)(uintptr_t)data + (size_t)row * (size_t)view->row_bytes;
}
static int slot(const cuda_layer_view *view, int position) {
    return view->capacity ? position % view->capacity : position;
}

/* ------------------------------------------------------------------------------------------------- the step's rows */

/* The step's table, of which a tied head is rows. */
static _Thread_local const cuda_matrix *embedding;

typedef struct embed_arguments {
    const int32_t *tokens;
    const cuda_matrix *table;
    const float *h;
    int hidden, rows;
} embed_arguments;

/* The residual stream of the step that runs. */
static _Thread_local struct {
    const float *h;
    int hidden;
} residual;

static void run_embed(const void *arguments) {
    const embed_arguments *a = arguments;
    if (a->rows > MOST_ROWS) fake_broken("too many rows", a->rows, MOST_ROWS);
    fake_now.rows = a->rows;
    fake_now.in_chain = 0;
    residual.h = a->h;
    residual.hidden = a->hidden;
    for (int r = 0; r < a->rows; r++) {
        fake_now.token[r] = a->tokens[r];
        fake_now.ill[r] = (a->table->data[(size_t)a->tokens[r] * (size_t)a->table->ld] & 0x7fffu) > 0x7f80u;
        fake_now.seen[r] = fake_mix(1, (uint32_t)a->tokens[r]);
    }
}

void cuda_embed(const cuda_launch *l, const cuda_matrix *table, const int32_t *tokens, float scale, float *h,
                const float *norm, float eps, cuda_bf16 *x, int ldx, int hidden, int rows) {
    (void)l, (void)scale, (void)norm, (void)eps, (void)x, (void)ldx;
    embed_arguments a = {tokens, table, h, hidden, rows};
    embedding = table;
    fake_launch(run_embed, &a, sizeof a);
}

/* A row that stands in the place of an embedding: its values are its token. */
static void take_row(int r) {
    const float *row = residual.h + (size_t)r * (size_t)residual.hidden;
    uint64_t digest = 3;
    for (int i = 0; i < residual.hidden; i++) {
        uint32_t bits;
        memcpy(&bits, &row[i], sizeof bits);
        digest = fake_mix(digest, bits);
    }
    fake_now.token[r] = (int32_t)(digest >> 40); /* aux rows keep it as a float */
    fake_now.ill[r] = isnan(row[0]);
    fake_now.seen[r] = fake_mix(1, (uint32_t)fake_now.token[r]);
}

void cuda_norm_rows(const cuda_launch *l, const float *y, int ldy, const float *w, float eps, cuda_bf16 *x, int ldx,
                    int n, int rows) {
    (void)l, (void)ldy, (void)w, (void)eps, (void)x, (void)ldx;
    if (fake_capturing() || !residual.h || y < residual.h || n != residual.hidden) return;
    const size_t first = (size_t)(y - residual.h) / (size_t)n;
    if (first + (size_t)rows > (size_t)fake_now.rows) return;
    for (int r = 0; r < rows; r++) take_row((int)first + r);
}

typedef struct head_rows_arguments {
    const cuda_batch *batch;
    cuda_heads heads;
    int prompt, rows;
} head_rows_arguments;

/* Every head has its tag, so that a device that gets the second half of a row can tell what it is. */
static void put_heads(void *row, size_t head_bytes, const cuda_heads *h, int position, int r, int key) {
    for (int i = 0; i < h->kv_heads; i++)
        put((char *)row + (size_t)i * head_bytes, position, fake_now.token[r], fake_now.ill[r], key ? KEY : VALUE);
}

static void run_head_rows(const void *arguments) {
    const head_rows_arguments *a = arguments;
    const cuda_heads *h = &a->heads;
    in_block = !a->prompt && h->chunk_v; /* the drafter's blocks alone lie in a chunk */
    fake_now.queries = h->q_out;
    if (!h->k || in_block) return;
    int values = h->kv_heads * h->head_dim, has_keys = h->v != NULL;
    if (!a->prompt && a->rows < a->batch->rows) fake_broken("rows are left out", a->rows, a->batch->rows);
    for (int r = 0; r < a->rows; r++) {
        const cuda_row *mine = a->prompt ? NULL : &a->batch->row[r];
        const cuda_step *segment = mine ? NULL : prompt_segment(a->batch, r);
        const cuda_cache_view *cache = mine ? mine->cache : segment->cache;
        if (mine && !cache != (r >= a->batch->rows)) fake_broken("a row of nobody", r, a->batch->rows);
        if (!cache) continue;
        const cuda_layer_view *view = &cache->layer[h->layer];
        if (view->values != values) fake_broken("a layer's row has another length", view->values, values);
        int p = mine ? mine->position : prompt_position(a->batch, r), sink_end = mine ? mine->sink : segment->sink;
        size_t vector = (size_t)h->head_dim * sizeof(cuda_bf16);
        if (h->codes) vector = fake_vector_bytes(h->codes, h->head_dim);
        if (!h->chunk_v && (size_t)view->row_bytes != (size_t)h->kv_heads * vector)
            fake_broken("a layer's row is kept in another format", view->row_bytes, (int)vector * h->kv_heads);
        for (int key = 0; key < 1 + has_keys; key++) {
            cuda_bf16 *chunk = key ? h->chunk_k : h->chunk_v, *sink = key ? view->sink_k : view->sink_v;
            void *to = h->chunk_v ? row_of(chunk, r, values) : stored_row(key ? view->k : view->v, slot(view, p), view);
            put_heads(to, vector, h, p, r, key);
            if (!h->chunk_v && sink && p < sink_end) put_heads(stored_row(sink, p, view), vector, h, p, r, key);
        }
    }
}

void cuda_head_rows(const cuda_launch *l, const cuda_batch *batch, int prompt, const cuda_heads *h, int rows) {
    (void)l;
    head_rows_arguments a = {batch, *h, prompt, rows};
    fake_launch(run_head_rows, &a, sizeof a);
}

int prompt_head_rows_fit(const cuda_heads *h) { return h->head_dim == 256; }

void prompt_head_rows(const cuda_launch *l, const cuda_batch *batch, const cuda_heads *h, int rows) {
    cuda_head_rows(l, batch, 1, h, rows);
}

typedef struct store_chunk_arguments {
    const cuda_batch *batch;
    const cuda_bf16 *k, *v;
    int values, layer, rows;
} store_chunk_arguments;

static void run_store_chunk(const void *arguments) {
    const store_chunk_arguments *a = arguments;
    size_t bytes = (size_t)a->values * sizeof(cuda_bf16);
    for (int r = 0; r < a->rows; r++) {
        const cuda_step *step = prompt_segment(a->batch, r);
        const cuda_layer_view *view = &step->cache->layer[a->layer];
        int index = r - step->first_row, p = step->position + index;
        size_t from = (size_t)r * (size_t)a->values;
        if (index >= step->rows - view->capacity) {
            memcpy(row_of(view->v, slot(view, p), a->values), a->v + from, bytes);
            if (view->k) memcpy(row_of(view->k, slot(view, p), a->values), a->k + from, bytes);
        }
        if (!view->sink_v || p >= step->sink) continue;
        memcpy(row_of(view->sink_v, p, a->values), a->v + from, bytes);
        if (view->sink_k) memcpy(row_of(view->sink_k, p, a->values), a->k + from, bytes);
    }
}

void cuda_store_chunk(const cuda_launch *l, const cuda_batch *batch, const cuda_bf16 *chunk_k, const cuda_bf16 *chunk_v,
                      int kv_dim, int layer, int rows) {
    (void)l;
    store_chunk_arguments a = {batch, chunk_k, chunk_v, kv_dim, layer, rows};
    fake_launch(run_store_chunk, &a, sizeof a);
}

void cuda_set_aside(const cuda_launch *l, const cuda_cache_view *cache, int layers, int position, int back) {
    (void)l;
    for (int i = 0; i < layers; i++) {
        const cuda_layer_view *view = &cache->layer[i];
        for (int key = 0; key < 2; key++) {
            cuda_bf16 *stored = key ? view->k : view->v, *aside = key ? view->aside_k : view->aside_v;
            if (!stored || !aside) continue;
            stored = row_of(stored, slot(view, position), view->values);
            memcpy(back ? stored : aside, back ? aside : stored, (size_t)view->values * sizeof(cuda_bf16));
        }
    }
}

/* --------------------------------------------------------------------------------------------------- restoration */

typedef struct gather_arguments {
    const cuda_batch *batch;
    cuda_gathered to;
    int rows; /* that there is room for */
} gather_arguments;

/* The position that is this row of the restore buffers, and its segment. */
static const cuda_step *find_row(const cuda_batch *batch, int full, int row, int *position) {
    int segment = 0;
    for (int s = 0; s < batch->segments; s++) {
        if (batch->step[s].restored_first[full] <= row) segment = s;
    }
    const cuda_step *step = &batch->step[segment];
    *position = step->restored_begin[full] + row - step->restored_first[full];
    return step;
}

static void run_gather(const void *arguments) {
    const gather_arguments *a = arguments;
    int rows = a->batch->restored_rows[0];
    if (rows > a->rows) fake_broken("more evicted positions than are gathered", rows, a->rows);
    for (int row = 0; row < rows; row++) {
        int p;
        const cuda_latent_view *latent = &find_row(a->batch, 0, row, &p)->cache->latent;
        size_t from = (size_t)latent_row(latent, p), heads = (size_t)a->to.heads;
        memcpy(a->to.codes + (size_t)row * (size_t)a->to.latent.width,
               latent->codes + from * (size_t)a->to.latent.bytes, sizeof(tag));
        memcpy(a->to.scales + (size_t)row * heads, latent->scales + from * heads, heads * sizeof *latent->scales);
        a->to.positions[row] = p;
        if (a->to.groups) {
            const cuda_step *step = find_row(a->batch, 0, row, &p);
            if (step->restored_first[0] % CUDA_LATENT_GROUP || step->restored_begin[0] % CUDA_LATENT_GROUP)
                fake_broken("a group of latents is cut", step->restored_first[0], step->restored_begin[0]);
            a->to.groups[row / CUDA_LATENT_GROUP] =
                (cuda_latent_group){.segment = (int)(step - a->batch->step),
                                    .index = (row - step->restored_first[0]) / CUDA_LATENT_GROUP * CUDA_LATENT_GROUP};
            continue;
        }
        if (a->to.pairs) a->to.turns[(size_t)row * (size_t)a->to.pairs].x = (float)p;
    }
}

void cuda_gather_latents(const cuda_launch *l, const cuda_batch *batch, const cuda_gathered *to,
                         const float *inverse_frequency, int rows) {
    (void)l, (void)inverse_frequency;
    gather_arguments a = {batch, *to, rows};
    fake_launch(run_gather, &a, sizeof a);
}

typedef struct restore_arguments {
    const cuda_batch *batch;
    cuda_restore r;
    int rows; /* that are decoded at most */
    int gathered;
} restore_arguments;

static void run_restore(const void *arguments) {
    const restore_arguments *a = arguments;
    int values = a->r.kv_heads * a->r.head_dim, rows = a->batch->restored_rows[a->r.full];
    size_t gathered = (size_t)a->r.latent.width * sizeof(cuda_bf16), kept = (size_t)a->r.latent.bytes;
    if (rows > a->rows) fake_broken("more evicted positions than are decoded", rows, a->rows);
    for (int row = 0; row < rows; row++) {
        int p;
        const cuda_latent_view *latent = &find_row(a->batch, a->r.full, row, &p)->cache->latent;
        size_t from = a->gathered ? (size_t)row : (size_t)latent_row(latent, p);
        if (a->gathered && a->r.gathered.positions[row] != p)
            fake_broken("a gathered row of another position", a->r.gathered.positions[row], p);
        const unsigned char *codes =
            a->gathered ? (const unsigned char *)a->r.gathered.codes + from * gathered : latent->codes + from * kept;
        tag t = get(codes, p, CODE, "a latent of another position");
        size_t heads = (size_t)(a->gathered ? a->r.gathered.heads : latent->heads);
        float scale = (a->gathered ? a->r.gathered.scales : latent->scales)[from * heads + (size_t)a->r.latent_head];
        if (scale != (float)p) fake_broken("a latent's scale of another position", (int)scale, p);
        put(row_of(a->r.k, row, values), p, t.token, t.ill, RESTORED_KEY);
        put(row_of(a->r.v, row, values), p, t.token, t.ill, RESTORED_VALUE);
    }
}

void cuda_restore_rows(const cuda_launch *l, const cuda_batch *batch, const cuda_restore *r, int rows) {
    (void)l;
    restore_arguments a = {batch, *r, rows, 0};
    fake_launch(run_restore, &a, sizeof a);
}

void cuda_finish_restored(const cuda_launch *l, const cuda_batch *batch, const cuda_restore *r, const float *raw_k,
                          const float *raw_v, int rows) {
    (void)l, (void)raw_k, (void)raw_v;
    restore_arguments a = {batch, *r, rows, 1};
    fake_launch(run_restore, &a, sizeof a);
}

int prompt_gemm_restores(const struct cuda_restore *r) { return r->head_dim == 256; }

cudaError_t prompt_gemm_restore(const struct cuda_launch *l, const struct cuda_batch *batch,
                                const struct cuda_restore *r, int rows, int chained) {
    (void)chained;
    cuda_finish_restored(l, batch, r, NULL, NULL, rows);
    return cudaSuccess;
}

/* ----------------------------------------------------------------------------------------------------- attention */

typedef struct attend_arguments {
    const cuda_batch *batch;
    cuda_attention a;
    const int32_t *sight;
    int rows;
} attend_arguments;

static void attend_block(const cuda_step *step, const cuda_attention *a, int segment, int row) {
    const cuda_draft_view *draft = &step->cache->draft[a->layer];
    int begin = step->position - draft->window, t = step->position + row, values = a->kv_heads * a->head_dim;
    if (begin < step->draft_from) begin = step->draft_from;
    if (a->sliding_window && begin < t - a->sliding_window + 1) begin = t - a->sliding_window + 1;
    if (begin < 0) begin = 0;
    for (int p = begin; p < step->position; p++) {
        tag k = get(row_of(draft->k, p % draft->capacity, values), p, KEY,
                    "a key of the drafter's context is of another position");
        (void)get(row_of(draft->v, p % draft->capacity, values), p, VALUE,
                  "a value of the drafter's context is of another position");
        uint64_t *seen = &block_seen[step->first_row + row];
        *seen = fake_mix(*seen, (uint64_t)(uint32_t)p << 32 | (uint32_t)k.token);
        block_ill[segment] |= k.ill;
    }
}

/* What is evicted is seen as latents, not by this. */
static _Thread_local int latents_apart;

static void attend_segment(const cuda_attention *a, const cuda_step *step, const int32_t *sight, int segment,
                           int rows) {
    const cuda_layer_view *view = &step->cache->layer[a->layer];
    int values = a->kv_heads * a->head_dim;
    for (int r = 0; r < rows; r++) {
        if (a->drafter) {
            attend_block(step, a, segment, r);
            continue;
        }
        int t = step->position + r, begin = a->sliding_window ? t - a->sliding_window + 1 : 0, evicted = 0;
        int end = sight && sight[step->first_row + r] > t + 1 ? sight[step->first_row + r] : t + 1;
        if (end > step->position + step->rows) fake_broken("a row sees behind its segment", end, step->position);
        if (begin < 0) begin = 0;
        if (view->bounded) evicted = step->prompt ? step->frontier : t - step->window + 1;
        if (view->bounded && evicted <= step->sink) evicted = 0;
        for (int p = begin; p < end; p++) {
            int is_evicted = p < evicted && p >= step->sink;
            if (is_evicted && !a->restored_k) {
                if (view->restored && !latents_apart && !fake_now.in_chain)
                    fake_broken("an evicted position is not restored", p, t);
                continue;
            }
            tag v, k;
            if (is_evicted) {
                int full = a->sliding_window == 0, row = step->restored_first[full] + p - step->restored_begin[full];
                v = get(row_of((cuda_bf16 *)(uintptr_t)a->restored_v, row, values), p, RESTORED_VALUE,
                        "a restored value of another position");
                k = get(row_of((cuda_bf16 *)(uintptr_t)a->restored_k, row, values), p, RESTORED_KEY,
                        "a restored key of another position");
            } else {
                int chunk = a->chunk_v && p >= step->position, sink = !chunk && view->sink_v && p < step->sink;
                int row = chunk ? step->first_row + p - step->position : sink ? p : slot(view, p);
                const cuda_bf16 *vs = chunk  ? a->chunk_v
                                      : sink ? view->sink_v
                                             : view->v,
                                *ks = chunk  ? a->chunk_k
                                      : sink ? view->sink_k
                                             : view->k;
                int bytes = values * (int)sizeof(cuda_bf16);
                if (a->codes) bytes = a->kv_heads * (int)fake_vector_bytes(a->codes, a->head_dim);
                if (view->row_bytes != bytes) fake_broken("K/V of another format", view->row_bytes, bytes);
                v = get(stored_row(vs, row, view), p, VALUE,
                        sink ? "a value in the sink is of another position" : "a value of another position");
                k = v;
                if (view->k) k = get(stored_row(ks, row, view), p, KEY, "a key of another position");
            }
            if (k.token != v.token) fake_broken("a key and a value of different tokens", k.token, v.token);
            see(step->first_row + r, v, is_evicted);
        }
    }
}

static void run_attend(const void *arguments) {
    const attend_arguments *x = arguments;
    int found = 0;
    blocks = x->batch;
    block_segments = x->a.segments;
    for (int s = 0; s < x->a.segments; s++) {
        const cuda_step *step = &x->batch->step[s];
        int rows = x->a.final && x->a.segments == 1 ? x->rows : step->rows; /* of a prompt some take another kernel */
        if (rows > x->a.segment_rows) fake_broken("a segment has more rows than are launched", rows, x->a.segment_rows);
        if (rows && !x->a.final && !x->a.drafter && !x->a.sliding_window && step->partitions > x->a.partitions)
            fake_broken("a segment has more partitions than are launched", step->partitions, x->a.partitions);
        if (rows) attend_segment(&x->a, step, x->sight, s, rows);
        found += rows;
    }
    if (!x->a.final && found != x->batch->rows) fake_broken("segments are left out", found, x->batch->rows);
}

void cuda_attend(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *attention, int rows) {
    cuda_attend_ahead(l, batch, attention, NULL, rows);
}

void cuda_attend_ahead(const cuda_launch *l, const cuda_batch *batch, const cuda_attention *attention,
                       const int32_t *sight, int rows) {
    (void)l;
    attend_arguments a = {batch, *attention, sight, rows};
    fake_launch(run_attend, &a, sizeof a);
}

/* ------------------------------------------------------------------------- attention to latents */

typedef struct latent_arguments {
    const cuda_batch *batch;
    latent_attention a;
} latent_arguments;

static void run_latents(const void *arguments) {
    const latent_arguments *x = arguments;
    const latent_attention *a = &x->a;
    int found = 0;
    if (x->batch->restored_rows[0] > a->most_latents)
        fake_broken("more evicted positions than are attended", x->batch->restored_rows[0], a->most_latents);
    for (int s = 0; s < a->exact.segments; s++) {
        const cuda_step *step = &x->batch->step[s];
        if (step->rows > a->exact.segment_rows)
            fake_broken("a segment has more rows than are launched", step->rows, a->exact.segment_rows);
        latents_apart = 1;
        if (step->rows) attend_segment(&a->exact, step, NULL, s, step->rows);
        latents_apart = 0;
        for (int r = 0; r < step->rows; r++) {
            int t = step->position + r, begin = t - a->exact.sliding_window + 1;
            for (int p = begin > step->sink ? begin : step->sink; p <= t - step->window; p++) {
                int index = p - step->restored_begin[0], row = step->restored_first[0] + index;
                const cuda_latent_group *group = &a->gathered.groups[row / CUDA_LATENT_GROUP];
                if (a->gathered.positions[row] != p)
                    fake_broken("a gathered row of another position", a->gathered.positions[row], p);
                if (group->segment != s || group->index != index / CUDA_LATENT_GROUP * CUDA_LATENT_GROUP)
                    fake_broken("a group of latents of another segment", group->segment, s);
                if (a->keys)
                    get(row_of(a->keys, row, a->exact.kv_heads * LATENT_HEAD_DIM), p, RESTORED_KEY,
                        "a restored key of another position");
                else if (index >= a->stride)
                    fake_broken("more scores than there is room for", index, a->stride);
                tag t_of = get(a->gathered.codes + (size_t)row * (size_t)a->gathered.latent.width, p, CODE,
                               "a latent of another position");
                float scale = a->gathered.scales[(size_t)row * (size_t)a->gathered.heads + (size_t)a->latent_head];
                if (scale != (float)p) fake_broken("a latent's scale of another position", (int)scale, p);
                see(step->first_row + r, t_of, 1);
            }
        }
        found += step->rows;
    }
    if (found != x->batch->rows) fake_broken("segments are left out", found, x->batch->rows);
}

static void run_latent_keys(const void *arguments) {
    const latent_arguments *x = arguments;
    const latent_attention *a = &x->a;
    int rows = x->batch->restored_rows[0];
    if (rows > a->most_latents) fake_broken("more evicted positions than are decoded", rows, a->most_latents);
    for (int row = 0; row < rows; row++) {
        int p;
        const cuda_step *step = find_row(x->batch, 0, row, &p);
        const cuda_bf16 *codes = a->gathered.codes + (size_t)row * (size_t)a->gathered.latent.width;
        if (a->gathered.positions[row] != p)
            fake_broken("a gathered row of another position", a->gathered.positions[row], p);
        /* whole groups are decoded: the first and the last may hold positions that nobody attends */
        bool attended =
            p >= step->restored_begin[0] + CUDA_LATENT_GROUP && p <= step->position + step->rows - 1 - step->window;
        tag t = attended ? get(codes, p, CODE, "a latent of another position") : *(const tag *)(const void *)codes;
        put(row_of(a->keys, row, a->exact.kv_heads * LATENT_HEAD_DIM), p, t.token, t.ill, RESTORED_KEY);
    }
}

cudaError_t latent_attention_keys(const cuda_launch *l, const cuda_batch *batch, const latent_attention *a) {
    (void)l;
    latent_arguments x = {batch, *a};
    fake_launch(run_latent_keys, &x, sizeof x);
    return cudaSuccess;
}

cudaError_t latent_attention_scores(const cuda_launch *l, const cuda_batch *batch, const latent_attention *a) {
    (void)l, (void)batch;
    if (a->keys) fake_broken("keys are decoded twice", 1, 0);
    return cudaSuccess;
}

void latent_attention_attend(const cuda_launch *l, const cuda_batch *batch, const latent_attention *a) {
    (void)l;
    latent_arguments x = {batch, *a};
    fake_launch(run_latents, &x, sizeof x);
}

void latent_attention_merge(const cuda_launch *l, const latent_attention *a) { (void)l, (void)a; }

cudaError_t latent_attention_prepare(void) { return cudaSuccess; }

int latent_attention_serves(const cuda_launch *l, int heads, int kv_heads, int head_dim, int pairs, int rank_k,
                            int rank_v) {
    (void)l, (void)heads, (void)kv_heads, (void)pairs, (void)rank_k, (void)rank_v;
    return head_dim == LATENT_HEAD_DIM;
}
int latent_attention_stride(int sliding_window, int window, int rows) {
    int seen = sliding_window - window + rows - 1;
    return seen > 0 ? seen + CUDA_LATENT_GROUP : CUDA_LATENT_GROUP;
}
int latent_attention_partitions(int sliding_window, int window, int rows) {
    (void)sliding_window, (void)window, (void)rows;
    return 1;
}
int latent_attention_exact_partitions(int sliding_window, int sink, int window, int rows) {
    (void)sliding_window, (void)sink, (void)window, (void)rows;
    return 1;
}

cudaError_t prompt_attention(const prompt_attention_args *a, cudaStream_t stream) {
    (void)stream;
    if (!prompt_attention_takes(a)) return cudaErrorInvalidValue;
    if (fake_capturing()) fake_broken("a prompt in a captured step", 0, 0);
    int values = a->kv_heads * a->head_dim,
        first = (int)(((const cuda_bf16 *)a->q - fake_now.queries) / (a->heads * a->head_dim));
    if (prompt_position(fake_now.batch, first) != a->first_position ||
        prompt_segment(fake_now.batch, first) != prompt_segment(fake_now.batch, first + a->rows - 1))
        fake_broken("rows of another segment are attended", prompt_position(fake_now.batch, first), a->first_position);
    for (int r = 0; r < a->rows; r++) {
        int t = a->first_position + r, begin = a->window ? t - a->window + 1 : 0;
        if (begin < a->evicted_end) begin = a->evicted_end;
        if (begin < 0) begin = 0;
        int end = a->both_ways ? a->first_position + a->rows - 1 : t;
        for (int p = begin; p <= end; p++) {
            int chunk = p >= a->keys.chunk_begin, row = chunk ? p - a->keys.chunk_begin : p % a->keys.ring_capacity;
            const uint16_t *vs = chunk ? a->keys.chunk_v : a->keys.ring_v,
                           *ks = chunk ? a->keys.chunk_k : a->keys.ring_k;
            tag v = get(row_of((cuda_bf16 *)(uintptr_t)vs, row, values), p, VALUE,
                        "a value of another position, in a prompt"),
                k = v;
            if (!a->keys.k_norm)
                k = get(row_of((cuda_bf16 *)(uintptr_t)ks, row, values), p, KEY,
                        "a key of another position, in a prompt");
            if (k.token != v.token) fake_broken("a key and a value of different tokens", k.token, v.token);
            see(first + r, v, 0);
        }
    }
    return cudaSuccess;
}

/* ------------------------------------------------------------------------------------ aux rows, context, latents */

typedef struct aux_arguments {
    const cuda_row *row; /* NULL: of a prompt */
    cuda_aux_place place;
    int rows;
} aux_arguments;

static void run_aux(const void *arguments) {
    const aux_arguments *a = arguments;
    for (int r = 0; r < a->rows; r++) {
        float *row = a->row ? a->row[r].aux : a->place.aux + (size_t)r * (size_t)a->place.width;
        int column = a->place.column[a->row ? a->row[r].aux_form : a->place.form];
        if (!row || column < 0) continue;
        row += column;
        row[0] = (float)(a->row ? a->row[r].position : prompt_position(fake_now.batch, r));
        row[1] = (float)fake_now.token[r];
        row[2] = (float)fake_now.ill[r];
    }
}

void cuda_copy_aux(const cuda_launch *l, const cuda_row *row, const float *h, const cuda_aux_place *place, int hidden,
                   int rows) {
    (void)l, (void)h, (void)hidden;
    aux_arguments a = {row, *place, rows};
    fake_launch(run_aux, &a, sizeof a);
}

/* The head is the product with a cap, or of the embedding. Its rows are those whose input it is given: rows of what the
 * norms behind the feed-forward block have left. */
static _Thread_local const cuda_bf16 *normed_rows;
static _Thread_local int normed_ld;

void cuda_after_ffn_rows(const cuda_launch *l, const cuda_after_ffn *a, const cuda_route *route, int rows) {
    (void)route;
    normed_rows = a->x;
    normed_ld = a->ldx;
    if (a->aux.width) cuda_copy_aux(l, a->row, NULL, &a->aux, a->hidden, rows);
}

void prompt_after_ffn_rows(const cuda_launch *l, const cuda_after_ffn *a, const cuda_bf16 *experts,
                           const cuda_route *route, int rows) {
    (void)experts;
    cuda_after_ffn_rows(l, a, route, rows);
}

void cuda_round_rows(const cuda_launch *l, const float *y, int ldy, cuda_bf16 *x, int ldx, int n, int rows) {
    (void)l, (void)y, (void)ldy, (void)x, (void)ldx, (void)n, (void)rows;
}

/* -------------------------------------------------------------------------------------------------------- logits */

typedef struct keep_arguments {
    const cuda_batch *batch;
    const cuda_bf16 *x;
    int segments;
} keep_arguments;

static void run_keep_last_rows(const void *arguments) {
    const keep_arguments *a = arguments;
    if (a->segments != a->batch->segments) fake_broken("segments are left out", a->segments, a->batch->segments);
    last.x = a->x;
    for (int s = 0; s < a->segments; s++) {
        const cuda_step *step = &a->batch->step[s];
        if (step->last_row < 0) continue;
        last.seen[step->last_row] = fake_now.seen[step->first_row + step->rows - 1];
        last.ill[step->last_row] = fake_now.ill[step->first_row + step->rows - 1];
    }
}

void cuda_keep_last_rows(const cuda_launch *l, const cuda_batch *batch, const cuda_bf16 *x, int ldx, cuda_bf16 *to,
                         int segments) {
    (void)l;
    if (x != normed_rows || ldx != normed_ld) fake_broken("last rows of something else", ldx, normed_ld);
    keep_arguments a = {batch, to, segments};
    fake_launch(run_keep_last_rows, &a, sizeof a);
}

typedef struct head_arguments {
    const cuda_bf16 *x, *w;
    float *y;
    int out, ld, ldy, rows, first;
} head_arguments;

/* Of a row of the head: the same wherever the row lies. */
static uint64_t head_row_tag(const head_arguments *a, int v) {
    uint64_t first;
    memcpy(&first, a->w + (size_t)v * (size_t)a->ld, sizeof first);
    return first;
}

static void run_head(const void *arguments) {
    const head_arguments *a = arguments;
    for (int r = 0; r < a->rows; r++) {
        bool kept = a->x == last.x, normed = a->first >= 0; /* else a drafter's: choose_drafts knows what they see */
        uint64_t seen = head_seen[r] = kept ? last.seen[r] : normed ? fake_now.seen[a->first + r] : 0;
        int ill = kept ? last.ill[r] : normed && fake_now.ill[a->first + r];
        float *row = a->y + (size_t)r * (size_t)a->ldy;
        for (int v = 0; v < a->out; v++) {
            uint64_t value = (seen + head_row_tag(a, v)) * 0xbf58476d1ce4e5b9u;
            row[v] = ill ? NAN : (float)(value >> 40) / 65536.0f;
        }
    }
}

void cuda_products(const cuda_launch *l, const cuda_product *products, int n, int in, const cuda_bf16 *x, int ldx,
                   int rows, float cap) {
    (void)l, (void)n, (void)ldx;
    bool tied = embedding && products[0].w >= embedding->data &&
                products[0].w < embedding->data + (size_t)embedding->out * (size_t)embedding->ld;
    if (cap <= 0 && !tied) return;
    const ptrdiff_t first = (x - normed_rows) / normed_ld, all = sizeof fake_now.seen / sizeof fake_now.seen[0];
    head_arguments a = {x,
                        products[0].w,
                        products[0].y,
                        products[0].out,
                        cuda_padded(in),
                        products[0].ldy,
                        rows,
                        first < 0 || first + rows > all ? -1 : (int)first};
    fake_launch(run_head, &a, sizeof a);
}

typedef struct argmax_arguments {
    const float *logits;
    int vocab, rows;
    cuda_excluded excluded;
    int32_t *out;
} argmax_arguments;

/* `first`: the row of the blocks that the first output is of. */
static void choose_drafts(const argmax_arguments *a, int first) {
    for (int r = 0; r < a->rows && first + r < blocks->rows; r++) {
        int segment = 0;
        while (first + r >= blocks->step[segment].first_row + blocks->step[segment].rows) segment++;
        int draft = first + r - blocks->step[segment].first_row - 1;
        a->out[r] = block_ill[segment] || draft < 0
                        ? -1
                        : (int32_t)(fake_mix(block_seen[first + r], (uint64_t)draft) % (uint64_t)a->vocab);
    }
    memset(block_seen, 0, sizeof block_seen);
    memset(block_ill, 0, sizeof block_ill);
}

static void run_argmax(const void *arguments) {
    const argmax_arguments *a = arguments;
    if (in_block) {
        choose_drafts(a, block_segments == 1);
        return;
    }
    for (int r = 0; fake_now.in_chain && r < a->rows; r++)
        a->out[r] = fake_now.ill[r] ? -1 : fake_drafted(&a->excluded, a->vocab, fake_now.seen[r]);
    if (fake_now.in_chain) return;
    for (int r = 0; r < a->rows; r++) {
        const float *row = a->logits + (size_t)r * (size_t)a->vocab;
        const uint32_t *allowed = a->excluded.row ? a->excluded.row[r].allowed : NULL;
        int best = -1;
        for (int v = 0; v < a->vocab; v++) {
            int excluded = a->excluded.row && a->excluded.row[r].excluded - 1 == v;
            excluded |= allowed && !(allowed[v / 32] >> (v % 32) & 1);
            for (int e = 0; e < a->excluded.n; e++) excluded |= a->excluded.id[e] == v;
            if (!isnan(row[v]) && !excluded && (best < 0 || row[v] > row[best])) best = v;
        }
        a->out[r] = best;
    }
}

void cuda_argmax(const cuda_launch *l, const float *logits, int vocab, const cuda_excluded *excluded, int rows,
                 float *partial_value, int *partial_index, int32_t *out) {
    (void)l, (void)partial_value, (void)partial_index;
    argmax_arguments a = {logits, vocab, rows, *excluded, out};
    fake_launch(run_argmax, &a, sizeof a);
}

typedef struct turns_arguments {
    const cuda_batch *batch;
} turns_arguments;

static void run_turns(const void *arguments) {
    const turns_arguments *a = arguments;
    fake_now.batch = a->batch;
}

void cuda_turns(const cuda_launch *l, const cuda_batch *batch, int prompt, const float *inverse_frequency, int pairs,
                float2 *turns, int rows) {
    (void)l, (void)prompt, (void)inverse_frequency, (void)pairs, (void)turns, (void)rows;
    turns_arguments a = {batch};
    fake_launch(run_turns, &a, sizeof a);
}

/* ------------------------------------------------------------------------------------------------ several devices */

uint64_t fake_step_digest(int rows) {
    uint64_t digest = fake_mix(7, (uint64_t)rows);
    for (int r = 0; r < rows && r < fake_now.rows; r++)
        digest = fake_mix(fake_mix(digest, fake_now.seen[r]), (uint32_t)fake_now.token[r]);
    return digest;
}

typedef struct leaders_arguments {
    const cuda_row *row;
    cuda_leaders *out;
    int rows;
} leaders_arguments;

/* None are listed; the sums tell what the row has seen. */
static void run_leaders(const void *arguments) {
    const leaders_arguments *a = arguments;
    for (int r = 0; r < a->rows; r++) {
        if (!(a->row[r].temperature > 0)) continue;
        uint64_t at = (uint64_t)(a->row[r].temperature * 1024);
        a->out[r] = (cuda_leaders){.total = fake_mix(head_seen[r], at), .plain_total = fake_mix(head_seen[r], 1024)};
    }
}

void cuda_find_leaders(const cuda_launch *l, const cuda_row *row, const float *logits, int vocab, const int32_t *argmax,
                       const cuda_excluded *excluded, cuda_leader_scratch *scratch, cuda_leaders *out, int rows) {
    (void)l, (void)logits, (void)vocab, (void)argmax, (void)excluded, (void)scratch;
    leaders_arguments a = {row, out, rows};
    fake_launch(run_leaders, &a, sizeof a);
}
