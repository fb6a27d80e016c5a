/* Flash attention of the verifier. Keys are walked in blocks of 16 absolute positions with an online softmax; no T x T
 * matrix exists. What a query at position t does depends on t and the policy only, never on chunking, batch or threads:
 *
 *   pass 1  sinks      [0, sink)            exact, from their own store (bounded policies)
 *   pass 2  restored   [sink, E)            from latents (policy `restored`)
 *   pass 3  exact      [max(sink, E), t]    exact
 *
 * all cut by the layer's own causal / sliding mask. E is t - window + 1 for decode rows and the cache's frontier for
 * prompt rows. Passes 1 and 3 share one flash state; pass 2 has its own, whose values stay in latent space (sum of p *
 * v_norm scalar * e_v) and are decoded once per query at the end: sum_p P(p) s(p) D e(p) = D (sum_p P(p) s(p) e(p)).
 * Full-attention layers are cut into partitions of CPU_PARTITION_FULL positions, merged in ascending order. The work of
 * a layer is a list over all segments: tiles (segment, rows, K/V head), and, of segments with few rows and a long
 * context, partitions (segment, K/V head, partition) with the same merges, so that one long session does not hold up a
 * thread. */
#include "backend/cpu/attention.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/latents.h"
#include "backend/cpu/matrix.h"
#include "backend/cpu/restored_keys.h"

typedef struct flash_state {
    float *m, *l, *o; /* [queries], [queries], [queries][dim] */
    int dim;
} flash_state;

typedef struct attention_tile {
    backend_model *model;
    const attention_queries *of;
    const backend_cache *cache;
    const timeline_layer *kept;
    const layer_config *config;
    int layer;  /* whose queries */
    int source; /* whose K/V */
    int head, group, tokens, queries;
    int row;         /* first row of the forward */
    int position;    /* of that row */
    int chunk_begin; /* positions from here on lie in the chunk buffers (INT_MAX: all stored) */
    int chunk_row;   /* their first row there */
    const attention_segment *segment;
    segment_kind kind;
    bool restored;
    bool keeps_keys; /* those that it decodes, for the next forward: no other tile has this segment's head */
    thread_scratch *scratch;
} attention_tile;

typedef enum attention_pass { PASS_SINK, PASS_RESTORED, PASS_EXACT } attention_pass;

static int group_of(const model_config *c, const layer_config *l) { return c->heads / l->kv_heads; }
static int group_in(const attention_queries *q, const layer_config *l) { return q->heads / l->kv_heads; }

int attention_max_queries(const backend_model *m) {
    int largest = CPU_TILE_QUERIES;
    for (int i = 0; i < m->config->layers; i++) {
        int g = group_of(m->config, &m->config->layer[i]);
        if (g * BACKEND_MAX_DECODE_ROWS > largest) largest = g * BACKEND_MAX_DECODE_ROWS;
    }
    if (m->options.drafter) {
        int g = m->options.drafter->config.heads / m->options.drafter->config.kv_heads;
        if (g * BACKEND_MAX_DECODE_ROWS > largest) largest = g * BACKEND_MAX_DECODE_ROWS;
    }
    const assistant_model *assistant = m->options.assistant;
    for (int i = 0; assistant && i < assistant->config.stack.layers; i++) {
        int g = group_of(&assistant->config.stack, &assistant->config.stack.layer[i]);
        if (g > largest) largest = g;
    }
    return largest;
}

static int state_dim(const backend_model *m) {
    int dim = m->options.restoration ? m->options.restoration->config.rank : 0;
    for (int i = 0; i < m->config->layers; i++) {
        if (m->config->layer[i].head_dim > dim) dim = m->config->layer[i].head_dim;
    }
    if (m->options.drafter && m->options.drafter->config.head_dim > dim) dim = m->options.drafter->config.head_dim;
    return dim;
}

size_t attention_state_floats(const backend_model *m) {
    return (size_t)attention_max_queries(m) * (size_t)(state_dim(m) + 2);
}

/* Floats of the states of one partition, exact and restored. */
static size_t states_floats(const backend_model *m, int queries) {
    return 2 * (size_t)queries * (size_t)(state_dim(m) + 2);
}

/* Memory for the partitions in flight, two for each thread and head with blocks of the most rows, and for the totals of
 * pairs of which some are not in flight (carried_states). */
size_t attention_partial_floats(const backend_model *m, int context) {
    if (context <= CPU_PARTITION_FULL) return 0;
    size_t heads = 2 * (size_t)m->threads * (size_t)m->config->heads;
    return heads * states_floats(m, BACKEND_MAX_DECODE_ROWS) + 2 * states_floats(m, attention_max_queries(m));
}

/* memory NULL: a model without restoration has no states of restored keys. */
static flash_state state_at(float *memory, int queries, int dim) {
    if (!memory) return (flash_state){.dim = dim};
    return (flash_state){memory, memory + queries, memory + 2 * (size_t)queries, dim};
}

static void state_reset(flash_state s, int queries) {
    for (int i = 0; i < queries; i++) {
        s.m[i] = -INFINITY;
        s.l[i] = 0;
    }
    memset(s.o, 0, (size_t)queries * (size_t)s.dim * sizeof(float));
}

/* into = into + part. A state that has seen no key is neutral, exactly. */
static void state_merge(const cpu_kernels *kernels, flash_state into, flash_state part, int queries) {
    for (int i = 0; i < queries; i++) {
        float *o = into.o + (size_t)i * (size_t)into.dim;
        const float *p = part.o + (size_t)i * (size_t)part.dim;
        if (part.l[i] == 0) continue;
        if (into.l[i] == 0) {
            into.m[i] = part.m[i];
            into.l[i] = part.l[i];
            memcpy(o, p, (size_t)into.dim * sizeof(float));
            continue;
        }
        float m = into.m[i] > part.m[i] ? into.m[i] : part.m[i];
        float a = expf(into.m[i] - m), b = expf(part.m[i] - m);
        into.l[i] = into.l[i] * a + part.l[i] * b;
        into.m[i] = m;
        kernels->scale(a, into.dim, o);
        kernels->axpy(b, p, into.dim, o);
    }
}

/* A row sees no position behind itself, but for a picture's rows, which see the picture's end. */
static int end_of_sight(const attention_segment *s, int t, int end) {
    for (int i = 0; i < s->n_given; i++) {
        const backend_given *g = &s->given[i];
        const int row = t - s->position - g->first;
        if (g->both_ways && row >= 0 && row < g->n) return s->position + g->first + g->n;
    }
    return end;
}

/* Keys that the query at position t attends in one pass. Sinks always come from their own store: a ring that serves
 * sink and window does not hold them for every row. */
static position_range pass_range(const attention_tile *tile, attention_pass pass, int t) {
    if (tile->of->before) {
        timeline_view view = timeline_assistant_sees(&tile->cache->t, tile->source);
        return pass == PASS_SINK ? view.sink : pass == PASS_RESTORED ? view.evicted : view.exact;
    }
    timeline_view view = timeline_sees(&tile->cache->t, tile->source, tile->kind, t);
    if (tile->config->type == LAYER_SLIDING) view.exact.end = end_of_sight(tile->segment, t, view.exact.end);
    return pass == PASS_SINK ? view.sink : pass == PASS_RESTORED ? view.evicted : view.exact;
}

unsigned char *chunk_rows(const backend_model *m, int layer, bool is_k) {
    if (layer == m->shared_sliding) return is_k ? m->shared_k : m->shared_v;
    return is_k ? m->chunk_k : m->chunk_v;
}

typedef struct key_block {
    const void *k, *v;
    kv_format k_format, v_format;
    size_t k_row_bytes, v_row_bytes;
    int v_dim;
    const float *v_scale;
    float scale_memory[ATTENTION_BLOCK];
    int packing; /* which packed queries meet these keys: 0 stored format, 1 float32 */
} key_block;

/* The stored vector of this head at position p. */
static const unsigned char *stored_row(const attention_tile *tile, int p, bool sink, bool is_k) {
    const backend_cache *c = tile->cache;
    const unsigned char *row;
    if (p >= tile->chunk_begin) {
        row = chunk_rows(tile->model, tile->source, is_k) +
              (size_t)(tile->chunk_row + p - tile->chunk_begin) * kv_row_bytes(c, tile->source);
    } else {
        row = sink ? kv_sink_row(c, tile->source, p, is_k) : kv_row(c, tile->source, p, is_k);
    }
    return row + (size_t)tile->head * tile->kept->head_bytes;
}

/* Copies the wanted ones of 16 rows of this head, found one by one, into `to`. The others become zero: their weight is
 * 0, but what lies there may not be a number. */
static void gather_rows(const attention_tile *tile, int base, position_range wanted, bool sink, bool is_k, void *to) {
    size_t bytes = tile->kept->head_bytes;
    memset(to, 0, ATTENTION_BLOCK * bytes);
    for (int p = base; p < base + ATTENTION_BLOCK; p++) {
        if (p < wanted.begin || p >= wanted.end) continue;
        memcpy((unsigned char *)to + (size_t)(p - base) * bytes, stored_row(tile, p, sink, is_k), bytes);
    }
}

/* Whether the 16 stored rows of a block lie at equal distances and are all wanted; where the first one lies. */
static bool lie_together(const attention_tile *tile, int base, position_range wanted, bool sink, bool is_k,
                         const void **rows) {
    bool whole = !sink && wanted.begin <= base && base + ATTENTION_BLOCK <= wanted.end;
    if (!whole || (base < tile->chunk_begin && base + ATTENTION_BLOCK > tile->chunk_begin)) return false;
    *rows = stored_row(tile, base, false, is_k);
    return true;
}

/* Sets the pointer to the stored rows of a block, and the bytes from row to row; where they do not lie together they
 * are gathered. */
static void locate_rows(const attention_tile *tile, int base, position_range wanted, bool sink, bool is_k,
                        void *temporary, const void **rows, size_t *row_bytes) {
    *row_bytes = kv_row_bytes(tile->cache, tile->source);
    if (lie_together(tile, base, wanted, sink, is_k, rows)) return;
    gather_rows(tile, base, wanted, sink, is_k, temporary);
    *rows = temporary;
    *row_bytes = tile->kept->head_bytes;
}

/* The rows of a block as float32, for formats of which attention takes no rows; zeros where none is wanted. */
static void load_rows(const attention_tile *tile, int base, position_range wanted, bool sink, bool is_k, float *to) {
    const cpu_kv_kernels *stored = kv_kernels(tile->cache, tile->source);
    const int d = tile->config->head_dim;
    const void *first = NULL;
    if (lie_together(tile, base, wanted, sink, is_k, &first)) {
        const size_t row_bytes = kv_row_bytes(tile->cache, tile->source);
        const char *row = first, *next = row + ATTENTION_BLOCK * row_bytes; /* the next block's, most often */
        for (int i = 0; i < ATTENTION_BLOCK; i++, row += row_bytes, next += row_bytes, to += d) {
            for (size_t at = 0; at < tile->kept->head_bytes; at += 64) __builtin_prefetch(next + at);
            stored->load(row, d, to);
        }
        return;
    }
    for (int p = base; p < base + ATTENTION_BLOCK; p++, to += d) {
        if (p < wanted.begin || p >= wanted.end)
            memset(to, 0, (size_t)d * sizeof *to);
        else
            stored->load(stored_row(tile, p, sink, is_k), d, to);
    }
}

/* K = RoPE(k_norm * V): the keys of a K = V layer are derived from the stored values. */
static void derive_keys(const attention_tile *tile, int base, const key_block *b, float *keys) {
    const backend_model *m = tile->model;
    const cpu_kv_kernels *stored = &m->kernels->kv[b->v_format];
    const rope_table *rope = &m->rope[tile->config->type];
    const float *norm = m->weights->layer[tile->source].k_norm;
    int d = tile->config->head_dim;
    for (int i = 0; i < ATTENTION_BLOCK; i++) {
        size_t angle = (size_t)(base + i) * (size_t)rope->pairs;
        stored->derive_key((const char *)b->v + (size_t)i * b->v_row_bytes, norm, rope->half, rope->pairs,
                           rope->cosine + angle, rope->sine + angle, keys + (size_t)i * (size_t)d);
    }
}

static void exact_block(const attention_tile *tile, int base, position_range wanted, bool sink, key_block *b) {
    thread_scratch *x = tile->scratch;
    const size_t loaded_bytes = (size_t)tile->config->head_dim * sizeof(float);
    const bool loaded = kv_kernels(tile->cache, tile->source)->loaded;
    b->v_format = tile->kept->format;
    b->v_dim = tile->config->head_dim;
    b->v_scale = NULL;
    if (loaded) {
        load_rows(tile, base, wanted, sink, false, x->value_block);
        b->v = x->value_block;
        b->v_format = KV_FORMAT_F32;
        b->v_row_bytes = loaded_bytes;
    } else {
        locate_rows(tile, base, wanted, sink, false, x->value_block, &b->v, &b->v_row_bytes);
    }
    if (tile->kept->has_keys && !loaded) {
        b->k_format = b->v_format;
        b->packing = 0;
        locate_rows(tile, base, wanted, sink, true, x->key_block, &b->k, &b->k_row_bytes);
        return;
    }
    if (tile->kept->has_keys)
        load_rows(tile, base, wanted, sink, true, x->key_block);
    else
        derive_keys(tile, base, b, x->key_block);
    b->k = x->key_block;
    b->k_format = KV_FORMAT_F32;
    b->k_row_bytes = loaded_bytes;
    b->packing = 1;
}

/* The latents of positions [base, base + 16), as float32 into scratch.latent_block; 0 where none is wanted. */
static void load_latents(const attention_tile *tile, int base, position_range wanted, bool is_k) {
    const restoration_config *f = &tile->model->options.restoration->config;
    size_t rank = (size_t)(is_k ? f->rank_k : f->rank_v);
    memset(tile->scratch->latent_block, 0, ATTENTION_BLOCK * rank * sizeof(float));
    for (int p = base; p < base + ATTENTION_BLOCK; p++) {
        if (p < wanted.begin || p >= wanted.end) continue;
        latent_load(tile->cache, p, is_k, tile->scratch->latent_block + (size_t)(p - base) * rank);
    }
}

/* out [16][head_dim] = raw keys or values of this head, decoded from the latents of positions [base, base + 16); 0
 * where none is wanted. */
static void decode_latents(const attention_tile *tile, int base, position_range wanted, bool is_k, float *out) {
    const backend_model *m = tile->model;
    const restoration_model *f = m->options.restoration;
    int d = tile->config->head_dim;
    size_t rank = (size_t)(is_k ? f->config.rank_k : f->config.rank_v);
    weight decoder = weight_rows(is_k ? &f->decoder_k[tile->source] : &f->decoder_v[tile->source], tile->head * d, d);
    load_latents(tile, base, wanted, is_k);
    multiply_alone(m, &decoder, tile->scratch->latent_block, rank, ATTENTION_BLOCK, tile->scratch->latent_packed, out,
                   (size_t)d);
}

/* Raw rows are mixed with the layer's own raw K/V before the norms (identity restore and the mix-alpha sweep). */
static void mix_own_rows(const attention_tile *tile, int base, bool is_k, float *rows) {
    const backend_cache *c = tile->cache;
    int d = tile->config->head_dim, kv_dim = tile->kept->values;
    float alpha = c->mix_alpha;
    for (int i = 0; i < ATTENTION_BLOCK && base + i < c->t.options.context_tokens; i++) {
        const float *own = c->own_raw[tile->source] + ((size_t)(base + i) * 2 + (is_k ? 0 : 1)) * (size_t)kv_dim +
                           (size_t)tile->head * (size_t)d;
        float *row = rows + (size_t)i * (size_t)d;
        for (int j = 0; j < d; j++) row[j] = alpha * own[j] + (1 - alpha) * row[j];
    }
}

/* Where the latents of values of a block lie: in their store, where attention can read them there; else copied, with
 * zeros for those that are not wanted. `loaded`: a shared latent has just been loaded for the keys. */
static void locate_latents(const attention_tile *tile, int base, position_range wanted, bool loaded, key_block *b) {
    const backend_cache *c = tile->cache;
    const latent_row *row = &c->t.latent;
    bool whole = wanted.begin <= base && base + ATTENTION_BLOCK <= wanted.end;
    if (row->format != LATENT_F32 && row->format != LATENT_BF16) {
        if (!row->shared || !loaded) load_latents(tile, base, wanted, false);
        b->v = tile->scratch->latent_block;
        b->v_format = KV_FORMAT_F32;
        b->v_row_bytes = (size_t)row->rank_v * sizeof(float);
        return;
    }
    b->v_format = row->format == LATENT_F32 ? KV_FORMAT_F32 : KV_FORMAT_BF16;
    b->v = latent_code(c, base) + row->values_at;
    b->v_row_bytes = row->bytes;
    if (whole) return;
    size_t bytes = row->bytes - row->values_at;
    unsigned char *gathered = (unsigned char *)tile->scratch->latent_block; /* free by now */
    memset(gathered, 0, ATTENTION_BLOCK * bytes);
    for (int p = base; p < base + ATTENTION_BLOCK; p++) {
        if (p < wanted.begin || p >= wanted.end) continue;
        memcpy(gathered + (size_t)(p - base) * bytes, latent_code(c, p) + row->values_at, bytes);
    }
    b->v = gathered;
    b->v_row_bytes = bytes;
}

/* Keys of positions [base, base + 16) into scratch.key_block, from their latents. */
static void decode_keys(const attention_tile *tile, int base, position_range wanted) {
    const backend_model *m = tile->model;
    const rope_table *rope = &m->rope[tile->config->type];
    int d = tile->config->head_dim;
    float *keys = tile->scratch->key_block, eps = m->config->rms_eps;
    decode_latents(tile, base, wanted, true, keys);
    if (tile->cache->own_raw) mix_own_rows(tile, base, true, keys);
    for (int i = 0; i < ATTENTION_BLOCK; i++) {
        float *k = keys + (size_t)i * (size_t)d;
        m->kernels->rms_norm(k, m->weights->layer[tile->source].k_norm, d, eps, k);
        size_t angle = (size_t)(base + i) * (size_t)rope->pairs;
        m->kernels->rope(k, rope->half, rope->pairs, rope->cosine + angle, rope->sine + angle);
    }
}

/* The same keys, of which those that were kept are not decoded again. *decoded: whether any was. */
static const float *keys_of_latents(const attention_tile *tile, int base, position_range wanted, bool *decoded) {
    restored_key_block *kept = tile->keeps_keys ? restored_keys_at(tile->cache, tile->source, tile->head, base) : NULL;
    unsigned rows = 0;
    for (int i = 0; i < ATTENTION_BLOCK; i++)
        if (base + i >= wanted.begin && base + i < wanted.end) rows |= 1u << i;
    *decoded = !kept || (rows & ~kept->valid);
    if (*decoded) decode_keys(tile, base, wanted);
    if (!kept) return tile->scratch->key_block;
    size_t d = (size_t)tile->config->head_dim;
    for (int i = 0; i < ATTENTION_BLOCK && *decoded; i++)
        if (rows >> i & 1)
            memcpy(kept->keys + (size_t)i * d, tile->scratch->key_block + (size_t)i * d, d * sizeof(float));
    kept->valid |= rows;
    return kept->keys;
}

static void restored_block(const attention_tile *tile, int base, position_range wanted, key_block *b) {
    const backend_model *m = tile->model;
    const backend_cache *c = tile->cache;
    int d = tile->config->head_dim;
    bool decoded;

    b->k = keys_of_latents(tile, base, wanted, &decoded);
    b->k_format = KV_FORMAT_F32;
    b->k_row_bytes = (size_t)d * sizeof(float);
    b->packing = 1;
    if (c->own_raw) {
        float *values = tile->scratch->value_block;
        decode_latents(tile, base, wanted, false, values);
        mix_own_rows(tile, base, false, values);
        for (int i = 0; i < ATTENTION_BLOCK; i++) {
            float *v = values + (size_t)i * (size_t)d;
            norm_values(m, v, d, v);
        }
        b->v = values;
        b->v_format = KV_FORMAT_F32;
        b->v_row_bytes = (size_t)d * sizeof(float);
        b->v_dim = d;
        b->v_scale = NULL;
        return;
    }
    int head = tile->kept->latent_head + tile->head;
    for (int i = 0; i < ATTENTION_BLOCK; i++) {
        bool is_wanted = base + i >= wanted.begin && base + i < wanted.end;
        b->scale_memory[i] = is_wanted ? latent_scales(c, base + i)[head] : 0;
    }
    b->v_scale = b->scale_memory;
    b->v_dim = c->t.latent.rank_v;
    locate_latents(tile, base, wanted, decoded, b);
}

/* One pass over the keys of [partition.begin, partition.end) into `state`. */
static void attend_pass(const attention_tile *tile, attention_pass pass, position_range partition, flash_state state) {
    thread_scratch *x = tile->scratch;
    position_range seen[CPU_TILE_QUERIES];
    int first = INT_MAX, last = 0;
    for (int token = 0; token < tile->tokens; token++) {
        position_range *r = &seen[token];
        *r = pass_range(tile, pass, tile->position + token);
        if (r->begin < partition.begin) r->begin = partition.begin;
        if (r->end > partition.end) r->end = partition.end;
        if (r->begin >= r->end) continue;
        if (r->begin < first) first = r->begin;
        if (r->end > last) last = r->end;
    }
    if (first >= last) return;
    for (int base = first / ATTENTION_BLOCK * ATTENTION_BLOCK; base < last; base += ATTENTION_BLOCK) {
        bool any = false;
        for (int token = 0; token < tile->tokens; token++) {
            int lo = seen[token].begin - base, hi = seen[token].end - base;
            if (lo < 0) lo = 0;
            if (hi > ATTENTION_BLOCK) hi = ATTENTION_BLOCK;
            if (hi > lo)
                any = true;
            else
                lo = hi = 0;
            for (int g = 0; g < tile->group; g++) {
                x->lo[token * tile->group + g] = lo;
                x->hi[token * tile->group + g] = hi;
            }
        }
        if (!any) continue;
        key_block b;
        position_range wanted = {first, last};
        if (pass == PASS_RESTORED)
            restored_block(tile, base, wanted, &b);
        else
            exact_block(tile, base, wanted, pass == PASS_SINK, &b);
        tile->model->kernels->attend_block(tile->queries, x->lo, x->hi, x->q_packed[b.packing], tile->config->head_dim,
                                           b.k_format, b.k, b.k_row_bytes, b.v_dim, b.v_format, b.v, b.v_row_bytes,
                                           b.v_scale, state.m, state.l, state.o, (size_t)state.dim);
    }
}

static void pack_queries(const attention_tile *tile) {
    const backend_model *m = tile->model;
    int d = tile->config->head_dim;
    size_t row = (size_t)(tile->of->heads * d);
    bool as_stored = tile->kept->has_keys && !kv_kernels(tile->cache, tile->source)->loaded;
    for (int packing = 0; packing < 2; packing++) {
        bool needed = packing == 0 ? as_stored : (!as_stored || tile->restored);
        if (!needed) continue;
        kv_format format = packing == 0 ? tile->kept->format : KV_FORMAT_F32;
        const cpu_packing_kernels *queries = &m->kernels->packing[m->kernels->kv[format].queries];
        size_t bytes = queries->row_bytes(d);
        for (int token = 0; token < tile->tokens; token++) {
            const float *q = tile->of->q + (size_t)(tile->row + token) * row + (size_t)(tile->head * tile->group * d);
            queries->pack(q, (size_t)d, tile->group, d,
                          (char *)tile->scratch->q_packed[packing] + (size_t)(token * tile->group) * bytes);
        }
    }
}

/* Decodes the restored part, joins it with the exact part and writes the attention output over the queries. */
static void finish_tile(const attention_tile *tile, flash_state exact, flash_state restored) {
    backend_model *m = tile->model;
    const cpu_kernels *kernels = m->kernels;
    int d = tile->config->head_dim;
    float *decoded = restored.o;
    size_t decoded_stride = (size_t)restored.dim;
    if (tile->restored && !tile->cache->own_raw) {
        const restoration_model *f = m->options.restoration;
        weight decoder = weight_rows(&f->decoder_v[tile->source], tile->head * d, d);
        decoded = tile->scratch->state[0]; /* free by now, and as large as any state */
        decoded_stride = (size_t)d;
        multiply_alone(m, &decoder, restored.o, (size_t)f->config.rank_v, tile->queries, tile->scratch->q_packed[0],
                       decoded, (size_t)d);
    }
    size_t row = (size_t)(tile->of->heads * d);
    for (int i = 0; i < tile->queries; i++) {
        int token = i / tile->group, g = i % tile->group;
        float *out = tile->of->q + (size_t)(tile->row + token) * row + (size_t)((tile->head * tile->group + g) * d);
        float *o = exact.o + (size_t)i * (size_t)d;
        float l = exact.l[i];
        if (tile->restored && restored.l[i] > 0) {
            float top = exact.m[i] > restored.m[i] ? exact.m[i] : restored.m[i];
            float a = expf(exact.m[i] - top), b = expf(restored.m[i] - top);
            l = exact.l[i] * a + restored.l[i] * b;
            kernels->scale(a, d, o);
            kernels->axpy(b, decoded + (size_t)i * decoded_stride, d, o);
        }
        kernels->scale(l == 0 ? 0 : 1.0f / l, d, o); /* an assistant's row may see nothing */
        memcpy(out, o, (size_t)d * sizeof(float));
    }
}

static int partitions_of(const attention_tile *tile) {
    if (tile->config->type == LAYER_SLIDING) return 1;
    return (tile->position + tile->tokens - 1) / CPU_PARTITION_FULL + 1;
}

static position_range partition_at(const attention_tile *tile, int index) {
    if (tile->config->type == LAYER_SLIDING) return (position_range){0, INT_MAX};
    return (position_range){index * CPU_PARTITION_FULL, (index + 1) * CPU_PARTITION_FULL};
}

static int restored_dim(const attention_tile *tile) {
    if (!tile->restored) return 0;
    return tile->cache->own_raw ? tile->config->head_dim : tile->model->options.restoration->config.rank_v;
}

static void attend_partition(const attention_tile *tile, int index, flash_state exact, flash_state restored) {
    position_range partition = partition_at(tile, index);
    state_reset(exact, tile->queries);
    if (tile->kept->bounded) attend_pass(tile, PASS_SINK, partition, exact);
    if (tile->restored) {
        state_reset(restored, tile->queries);
        attend_pass(tile, PASS_RESTORED, partition, restored);
    }
    attend_pass(tile, PASS_EXACT, partition, exact);
}

static void run_tile(const attention_tile *tile) {
    thread_scratch *x = tile->scratch;
    int q = tile->queries, d = tile->config->head_dim, r = restored_dim(tile);
    const cpu_kernels *kernels = tile->model->kernels;
    pack_queries(tile);
    flash_state total = state_at(x->state[2], q, d), total_restored = state_at(x->state[3], q, r);
    int partitions = partitions_of(tile);
    if (partitions == 1) {
        attend_partition(tile, 0, total, total_restored);
    } else {
        flash_state part = state_at(x->state[0], q, d), part_restored = state_at(x->state[1], q, r);
        state_reset(total, q);
        if (tile->restored) state_reset(total_restored, q);
        for (int p = 0; p < partitions; p++) {
            attend_partition(tile, p, part, part_restored);
            state_merge(kernels, total, part, q);
            if (tile->restored) state_merge(kernels, total_restored, part_restored, q);
        }
    }
    finish_tile(tile, total, total_restored);
}

/* One partition of one (segment, K/V head), and where its states lie. */
typedef struct partition_item {
    int segment, head, partition;
    float *states;
} partition_item;

/* Partitions of one (segment, K/V head) that are in flight together. */
typedef struct partition_group {
    int begin, end;   /* items */
    bool first, last; /* the first, the last of the pair's partitions are among them */
} partition_group;

enum {
    WAVE_ITEMS = 1024,     /* at most */
    WAVE_THREAD_ITEMS = 16 /* for each thread: they end together, and their states stay in the cache */
};

typedef struct attention_context {
    backend_model *model;
    const attention_queries *of;
    int layer;
    const attention_segment *segments;
    int n_segments;
    bool burst;
    int first_item[BACKEND_MAX_FORWARD + 1]; /* tiles of each segment in the list of all */
    bool split[BACKEND_MAX_FORWARD];         /* has partitions instead */
    partition_item item[WAVE_ITEMS];         /* the wave in flight ... */
    partition_group group[WAVE_ITEMS];       /* ... and whose partitions they are, in order */
    int n_items, n_groups, n_waves;
} attention_context;

static attention_tile make_tile(const attention_context *a, const attention_segment *s, int head, int first, int tokens,
                                int thread) {
    backend_model *m = a->model;
    const layer_config *lc = &m->config->layer[a->layer];
    int source = lc->kv_source, group = group_in(a->of, lc);
    attention_tile tile = {
        .model = m,
        .of = a->of,
        .cache = s->cache,
        .kept = &s->cache->t.layer[source],
        .config = lc,
        .layer = a->layer,
        .source = source,
        .head = head,
        .group = group,
        .tokens = tokens,
        .queries = tokens * group,
        .row = s->first_row + first,
        .position = s->position + first,
        .segment = s,
        .chunk_begin = INT_MAX,
        .kind = s->kind,
        .restored = s->cache->t.layer[source].restored && !a->of->before,
        .keeps_keys = !a->burst && s->rows <= BACKEND_MAX_DECODE_ROWS && !s->cache->own_raw,
        .scratch = &m->scratch[thread],
    };
    /* New prompt rows of a ring live in the chunk buffers until the ring's last reader is done (forward.c). */
    if (tile.kept->kind == STORE_RING && s->kind == SEGMENT_PROMPT) {
        tile.chunk_begin = s->position;
        tile.chunk_row = s->first_row;
    }
    return tile;
}

static int tile_tokens(const attention_context *a, const attention_segment *s) {
    if (a->burst) return 1; /* a weight of 0 does not hide what is not a number */
    int group = group_in(a->of, &a->model->config->layer[a->layer]);
    if (s->rows <= BACKEND_MAX_DECODE_ROWS) return s->rows;
    return CPU_TILE_QUERIES / group > 0 ? CPU_TILE_QUERIES / group : 1;
}

static void run_tiles(void *context, size_t begin, size_t end, int thread) {
    const attention_context *a = context;
    int heads = a->model->config->layer[a->layer].kv_heads, i = 0;
    for (int item = (int)begin; item < (int)end; item++) {
        while (item >= a->first_item[i + 1]) i++;
        const attention_segment *s = &a->segments[i];
        int tokens = tile_tokens(a, s), at = item - a->first_item[i], first = at / heads * tokens;
        int n = s->rows - first < tokens ? s->rows - first : tokens;
        attention_tile tile = make_tile(a, s, at % heads, first, n, thread);
        run_tile(&tile);
    }
}

/* --------------------------------------------------------------------------------------------------- partitions */

static attention_tile split_tile(const attention_context *a, const partition_item *item, int thread) {
    const attention_segment *s = &a->segments[item->segment];
    return make_tile(a, s, item->head, 0, s->rows, thread);
}

static flash_state states_of(const attention_tile *tile, float *states, bool restored) {
    float *half = states + (restored ? states_floats(tile->model, tile->queries) / 2 : 0);
    return state_at(half, tile->queries, restored ? restored_dim(tile) : tile->config->head_dim);
}

/* Where a wave leaves the total of a pair for the next one. A wave can find one such total, of its first pair, and
 * leave one, of its last. */
static float *carried_states(const backend_model *m, int wave) {
    return m->partial + m->partial_floats - (size_t)(1 + wave % 2) * states_floats(m, attention_max_queries(m));
}

static void run_partitions(void *context, size_t begin, size_t end, int thread) {
    const attention_context *a = context;
    for (size_t i = begin; i < end; i++) {
        const partition_item *item = &a->item[i];
        attention_tile tile = split_tile(a, item, thread);
        pack_queries(&tile);
        attend_partition(&tile, item->partition, states_of(&tile, item->states, false),
                         states_of(&tile, item->states, true));
    }
}

/* Merges a pair's partitions in ascending order, behind those of earlier waves; with the last one the pair is done. */
static void merge_group(const attention_context *a, const partition_group *group, int thread) {
    backend_model *m = a->model;
    attention_tile tile = split_tile(a, &a->item[group->begin], thread);
    float *total = group->first ? a->item[group->begin].states : carried_states(m, a->n_waves - 1);
    for (int i = group->begin + (group->first ? 1 : 0); i < group->end; i++) {
        for (int restored = 0; restored <= (tile.restored ? 1 : 0); restored++) {
            state_merge(m->kernels, states_of(&tile, total, restored), states_of(&tile, a->item[i].states, restored),
                        tile.queries);
        }
    }
    if (group->last)
        finish_tile(&tile, states_of(&tile, total, false), states_of(&tile, total, true));
    else
        memcpy(carried_states(m, a->n_waves), total, states_floats(m, tile.queries) * sizeof *total);
}

static void merge_groups(void *context, size_t begin, size_t end, int thread) {
    const attention_context *a = context;
    for (size_t g = begin; g < end; g++) merge_group(a, &a->group[g], thread);
}

static void run_wave(attention_context *a) {
    thread_pool_for(a->model->pool, (size_t)a->n_items, 1, run_partitions, a);
    thread_pool_for(a->model->pool, (size_t)a->n_groups, 1, merge_groups, a);
    a->n_items = a->n_groups = 0;
    a->n_waves++;
}

static int partitions_at(const attention_segment *s) { return (s->position + s->rows - 1) / CPU_PARTITION_FULL + 1; }

/* Segments of few queries over a long context: waves of as many partitions as there is room for their states. */
static void run_split(attention_context *a) {
    backend_model *m = a->model;
    int heads = m->config->layer[a->layer].kv_heads, group_size = group_in(a->of, &m->config->layer[a->layer]);
    int most = WAVE_THREAD_ITEMS * m->threads < WAVE_ITEMS ? WAVE_THREAD_ITEMS * m->threads : WAVE_ITEMS;
    size_t room = m->partial_floats - 2 * states_floats(m, attention_max_queries(m)), left = room;
    for (int i = 0; i < a->n_segments; i++) {
        if (!a->split[i]) continue;
        int partitions = partitions_at(&a->segments[i]);
        size_t floats = states_floats(m, a->segments[i].rows * group_size);
        for (int at = 0; at < heads * partitions; at++) {
            int head = at / partitions, partition = at % partitions;
            if (a->n_items == most || left < floats) {
                run_wave(a);
                left = room;
            }
            if (partition == 0 || a->n_items == 0)
                a->group[a->n_groups++] = (partition_group){.begin = a->n_items, .first = partition == 0};
            a->item[a->n_items++] = (partition_item){i, head, partition, m->partial + (room - left)};
            left -= floats;
            a->group[a->n_groups - 1].end = a->n_items;
            a->group[a->n_groups - 1].last = partition == partitions - 1;
        }
    }
    if (a->n_items) run_wave(a);
}

void attention_run(backend_model *m, const attention_queries *queries, const attention_segment *segments,
                   int n_segments, bool burst) {
    const layer_config *lc = &m->config->layer[queries->layer];
    attention_context context;
    context.model = m;
    context.of = queries;
    context.layer = queries->layer;
    context.segments = segments;
    context.n_segments = n_segments;
    context.burst = burst;
    context.n_items = context.n_groups = context.n_waves = 0;
    int items = 0;
    bool any_split = false;
    for (int i = 0; i < n_segments; i++) {
        const attention_segment *s = &segments[i];
        int tokens = tile_tokens(&context, s);
        context.split[i] = !burst && s->rows <= BACKEND_MAX_DECODE_ROWS && lc->type == LAYER_FULL &&
                           partitions_at(s) > 1 && m->threads > 1;
        any_split |= context.split[i];
        context.first_item[i] = items;
        if (!context.split[i]) items += (s->rows + tokens - 1) / tokens * lc->kv_heads;
    }
    context.first_item[n_segments] = items;
    if (items) thread_pool_for(m->pool, (size_t)items, 1, run_tiles, &context);
    if (any_split) run_split(&context);
}
