#include "backend/cpu/repack.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cpu/int8.h"
#include "backend/cpu/synthetic_blocks.h"
#include "backend/cpu/tiles.h"
#include "base/machine_memory.h"

/* Sessions need memory too: of what limits or the machine have left, tiles take no more than so many parts of these. */
enum { PARTS_OF_LIMIT = 1, LIMIT_PARTS = 2, PARTS_OF_MACHINE = 7, MACHINE_PARTS = 8 };
/* Tile rows that a thread takes at a time, and that pass between two looks at the progress function. */
enum { PIECE_TILES = 8, STEP_TILES = 4096 };
enum { LAYER_MATRICES = 12 };

static void matrices_of_layer(gemma4_layer_weights *l, weight *out[LAYER_MATRICES]) {
    weight *const all[LAYER_MATRICES] = {&l->q_proj,       &l->k_proj,     &l->v_proj,       &l->o_proj,
                                         &l->gate_proj,    &l->up_proj,    &l->down_proj,    &l->experts_gate_up,
                                         &l->experts_gate, &l->experts_up, &l->experts_down, &l->ple_gate};
    memcpy(out, all, sizeof all);
}

/* The router chooses experts by exact products; tables of which single rows are read stay where they are. */
static size_t list_matrices(gemma4_weights *w, int layers, weight **out) {
    size_t n = 0;
    out[n++] = &w->head;
    out[n++] = &w->ple_model_proj;
    for (int i = 0; i < layers; i++) {
        matrices_of_layer(&w->layer[i], out + n);
        n += LAYER_MATRICES;
        out[n++] = &w->layer[i].ple_proj;
    }
    return n;
}

/* Without data, with a deviation: its values are made here. */
static bool is_outline(const weight *w) {
    return !weight_present(w) && w->out > 0 && w->synthetic > 0 && !weight_format_is_plain(w->format);
}

static bool wants_tiles(const weight *w) {
    return is_outline(w) || (weight_present(w) && !weight_format_is_plain(w->format) && int8_scalar.tile[w->format]);
}

typedef struct repack_context {
    const weight *w;
    int8_tile_maker make;
    unsigned char *tiles;
    size_t first;        /* tile row */
    unsigned char *made; /* [threads][made_bytes]: 16 rows with made-up values; NULL: the matrix has its own */
    size_t made_bytes;
    uint64_t seed;
} repack_context;

static void make_tile_rows(void *context, size_t begin, size_t end, int thread) {
    const repack_context *c = context;
    const weight *w = c->w;
    size_t blocks = (size_t)w->in / (size_t)weight_format_find(w->format)->stream[0].values;
    for (size_t t = c->first + begin; t < c->first + end; t++) {
        int o = (int)t * TILE_OUTPUTS, left = w->out - o;
        unsigned char *made = c->made ? c->made + (size_t)thread * c->made_bytes : NULL;
        if (made) synthetic_blocks(w->format, w->synthetic, c->seed + t * c->made_bytes, c->made_bytes, made);
        c->make(made ? made : (const unsigned char *)weight_row(w, 0, o), weight_row_bytes(w, 0),
                left < TILE_OUTPUTS ? left : TILE_OUTPUTS, blocks, c->tiles + t * tiles_row_bytes(w->format, w->in));
    }
}

typedef struct repack_state {
    backend_model *m;
    uint64_t done, total; /* bytes of tiles */
} repack_state;

static kakeya_status tell(const repack_state *s, kakeya_error *error) {
    const backend_model_options *o = &s->m->options;
    if (!o->progress || o->progress(o->user, "arranging the weights", s->done, s->total)) return KAKEYA_OK;
    return error_set(error, KAKEYA_CANCELLED, "arranging the weights was cancelled");
}

static kakeya_status repack(repack_state *s, weight *w, kakeya_error *error) {
    backend_model *m = s->m;
    size_t bytes = tiles_bytes(w->format, w->out, w->in), row = tiles_row_bytes(w->format, w->in);
    size_t rows = row ? bytes / row : 0;
    unsigned char *tiles = mem_alloc(m->account, MEM_WEIGHTS, bytes);
    if (!tiles) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu bytes of weights in tiles", bytes);
    m->tiles[m->n_tiles++] = tiles;
    const int8_kernels *kernels = int8_of(m->kernels);
    kakeya_status status = KAKEYA_OK;
    const bool outline = is_outline(w);
    repack_context c = {.w = w, .make = kernels->tile[w->format], .tiles = tiles, .seed = s->done};
    c.made_bytes = TILE_OUTPUTS * weight_row_bytes(w, 0);
    if (outline) c.made = malloc((size_t)m->threads * c.made_bytes);
    if (outline && !c.made) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for rows of synthetic weights");
    for (size_t first = 0, n; first < rows && !status; first += n) {
        c.first = first;
        n = rows - first < STEP_TILES ? rows - first : STEP_TILES;
        thread_pool_for(m->pool, n, PIECE_TILES, make_tile_rows, &c);
        size_t source = weight_row_bytes(w, 0), from = first * TILE_OUTPUTS, left = (size_t)w->out - from;
        if (!outline)
            gemma4_model_unneeded(m->options.verifier, weight_row(w, 0, (int)from),
                                  source * (left < n * TILE_OUTPUTS ? left : n * TILE_OUTPUTS));
        s->done += n * row;
        status = tell(s, error);
    }
    free(c.made);
    if (weight_format_find(w->format)->streams > 1) w->stream[1] = weight_row(w, 1, 0);
    w->stream[0] = tiles;
    w->first = 0;
    w->tiled = true;
    return status;
}

static bool has_room(const backend_model *m, size_t bytes) {
    size_t machine = machine_memory_available(), limits = mem_room(m->account);
    return bytes <= limits / LIMIT_PARTS * PARTS_OF_LIMIT &&
           (machine == 0 || bytes <= machine / MACHINE_PARTS * PARTS_OF_MACHINE);
}

/* The head stands for the rest: where one matrix of a synthetic model is made of blocks, it is. */
static bool must_be_made(const backend_model *m) { return is_outline(&m->weights->head); }

kakeya_status repack_weights(backend_model *m, kakeya_error *error) {
    if (m->input != INPUT_INT8 && must_be_made(m))
        return error_set(error, KAKEYA_UNSUPPORTED, "synthetic weights of %s are made for --precision int8 alone",
                         weight_format_name(m->weights->head.format));
    if (m->input != INPUT_INT8) return KAKEYA_OK;
    size_t most = 2 + (size_t)m->config->layers * (LAYER_MATRICES + 1), total = 0;
    m->tiled_weights = malloc(sizeof *m->tiled_weights);
    m->tiles = malloc(most * sizeof *m->tiles);
    weight **matrices = malloc(most * sizeof *matrices);
    if (!m->tiled_weights || !m->tiles || !matrices) {
        free(matrices);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a list of weights");
    }
    *m->tiled_weights = *m->weights;
    gemma4_weights *w = m->tiled_weights;
    bool tied = m->config->tied_head;
    size_t n = list_matrices(w, m->config->layers, matrices);
    for (size_t i = 0; i < n; i++) {
        if (wants_tiles(matrices[i])) total += tiles_bytes(matrices[i]->format, matrices[i]->out, matrices[i]->in);
    }
    repack_state state = {.m = m, .total = total};
    kakeya_status status = KAKEYA_OK;
    if (must_be_made(m) && !has_room(m, total)) {
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "no room for %zu bytes of synthetic weights", total);
    } else if (total > 0 && has_room(m, total)) {
        for (size_t i = 0; i < n && !status; i++) {
            if (wants_tiles(matrices[i])) status = repack(&state, matrices[i], error);
        }
        if (tied) w->embed = w->head;
        m->weights = w;
    }
    free(matrices);
    return status;
}

void repack_destroy(backend_model *m) {
    for (size_t i = 0; i < m->n_tiles; i++) mem_free(m->tiles[i]);
    free(m->tiles);
    free(m->tiled_weights);
}
