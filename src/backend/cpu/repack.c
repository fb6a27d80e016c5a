#include "backend/cpu/repack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "backend/cpu/int8.h"
#include "backend/cpu/synthetic_blocks.h"
#include "backend/cpu/tile_file.h"
#include "backend/cpu/tiles.h"
#include "base/block_reader.h"
#include "base/machine_memory.h"

/* Sessions need memory too: of what limits or the machine have left, tiles take no more than so many parts of these. */
enum { PARTS_OF_LIMIT = 1, LIMIT_PARTS = 2, PARTS_OF_MACHINE = 7, MACHINE_PARTS = 8 };
/* Tile rows that a thread takes at a time, and that pass between two looks at the progress function. */
enum { PIECE_TILES = 8, STEP_TILES = 4096 };
enum { LAYER_MATRICES = 12 };

static void matrices_of_layer(layer_weights *l, weight *out[LAYER_MATRICES]) {
    weight *const all[LAYER_MATRICES] = {&l->q_proj,       &l->k_proj,     &l->v_proj,       &l->o_proj,
                                         &l->gate_proj,    &l->up_proj,    &l->down_proj,    &l->experts_gate_up,
                                         &l->experts_gate, &l->experts_up, &l->experts_down, &l->ple_gate};
    memcpy(out, all, sizeof all);
}

/* The router chooses experts by exact products; tables of which single rows are read stay where they are. */
static size_t list_matrices(model_weights *w, int layers, weight **out) {
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

static bool wants_tiles(const weight *w) { return is_outline(w) || (weight_present(w) && int8_takes(w)); }

typedef struct repack_context {
    const weight *w;
    int8_tile_maker make;
    size_t first;         /* tile row */
    unsigned char *tiles; /* from that row on */
    unsigned char *made;  /* [threads][made_bytes]: 16 rows with made-up values; NULL: the matrix has its own */
    size_t made_bytes;
    uint64_t seed;
} repack_context;

static void make_tile_rows(void *context, size_t begin, size_t end, int thread) {
    const repack_context *c = context;
    const weight *w = c->w;
    for (size_t t = c->first + begin; t < c->first + end; t++) {
        int o = (int)t * TILE_OUTPUTS, left = w->out - o;
        unsigned char *made = c->made ? c->made + (size_t)thread * c->made_bytes : NULL;
        if (made) synthetic_blocks(w->format, w->synthetic, c->seed + t * c->made_bytes, c->made_bytes, made);
        weight rows = made ? weight_matrix(w->format, made, TILE_OUTPUTS, w->in) : weight_rows(w, o, left);
        c->make(&rows, 0, left < TILE_OUTPUTS ? left : TILE_OUTPUTS, tiles_shape(w), 0, tiles_in_row(w),
                c->tiles + (t - c->first) * tiles_row_bytes(w));
    }
}

typedef struct repack_state {
    backend_model *m;
    const backend_model_options *options;
    uint64_t done, total; /* bytes of tiles */
    unsigned char *next;  /* where the next matrix goes */
} repack_state;

static kakeya_status tell(const repack_state *s, kakeya_error *error) {
    const backend_model_options *o = s->options;
    if (!o->progress || o->progress(o->user, "repacking the weights", s->done, s->total)) return KAKEYA_OK;
    return error_set(error, KAKEYA_CANCELLED, "repacking the weights was cancelled");
}

static void point_to(weight *w, const unsigned char *tiles) {
    for (int s = 1; s < weight_format_find(w->format)->streams; s++) w->stream[s] = weight_row(w, s, 0);
    w->stream[0] = tiles;
    w->first = 0;
    w->tiled = true;
}

/* Of a matrix's tiles, which begin where a cache line does. */
static size_t room_of(const weight *w) { return (tiles_bytes(w) + 63) / 64 * 64; }

static kakeya_status repack(repack_state *s, weight *w, kakeya_error *error) {
    backend_model *m = s->m;
    size_t row = tiles_row_bytes(w), rows = row ? tiles_bytes(w) / row : 0;
    unsigned char *tiles = s->next;
    s->next += room_of(w);
    const int8_kernels *kernels = int8_of(m->kernels);
    kakeya_status status = KAKEYA_OK;
    const bool outline = is_outline(w);
    repack_context c = {.w = w, .make = kernels->tile[w->format], .seed = s->done};
    c.made_bytes = TILE_OUTPUTS * weight_row_bytes(w, 0);
    if (outline) c.made = malloc((size_t)m->threads * c.made_bytes);
    if (outline && !c.made) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for rows of synthetic weights");
    for (size_t first = 0, n; first < rows && !status; first += n) {
        c.first = first;
        c.tiles = tiles + first * row;
        n = rows - first < STEP_TILES ? rows - first : STEP_TILES;
        thread_pool_for(m->pool, n, PIECE_TILES, make_tile_rows, &c);
        size_t source = weight_row_bytes(w, 0), from = first * TILE_OUTPUTS, left = (size_t)w->out - from;
        if (!outline)
            language_model_unneeded(m->options.verifier, weight_row(w, 0, (int)from),
                                    source * (left < n * TILE_OUTPUTS ? left : n * TILE_OUTPUTS));
        s->done += n * row;
        status = tell(s, error);
    }
    free(c.made);
    point_to(w, tiles);
    return status;
}

static bool has_room(const backend_model *m, size_t bytes) {
    size_t machine = machine_memory_available(), limits = mem_room(m->account);
    return bytes <= limits / LIMIT_PARTS * PARTS_OF_LIMIT &&
           (machine == 0 || bytes <= machine / MACHINE_PARTS * PARTS_OF_MACHINE);
}

/* The head stands for the rest: where one matrix of a synthetic model is made of blocks, it is. */
static bool must_be_made(const backend_model *m) { return is_outline(&m->weights->head); }

/* What wants tiles of all matrices of a model. */
typedef struct tile_list {
    tile_matrix *matrix; /* malloc'ed */
    size_t n;
    uint64_t bytes; /* of their tiles */
} tile_list;

static bool is_of_experts(const model_weights *weights, int layers, const weight *w) {
    for (int i = 0; i < layers; i++) {
        const layer_weights *l = &weights->layer[i];
        if (w == &l->experts_gate_up || w == &l->experts_gate || w == &l->experts_up || w == &l->experts_down)
            return true;
    }
    return false;
}

/* Experts whose rows end where tiles do have checksums of their own. */
static int parts_of(const model_weights *weights, const model_config *config, const weight *w) {
    if (!is_of_experts(weights, config->layers, w) || w->out / config->experts % TILE_OUTPUTS) return 1;
    return config->experts;
}

/* `weights`: the copy whose matrices are listed. */
static bool list_tiles(model_weights *weights, const model_config *config, tile_list *out) {
    const size_t most = 2 + (size_t)config->layers * (LAYER_MATRICES + 1);
    weight **all = malloc(most * sizeof *all);
    *out = (tile_list){.matrix = malloc(most * sizeof *out->matrix)};
    const size_t n = all && out->matrix ? list_matrices(weights, config->layers, all) : 0;
    for (size_t i = 0; i < n; i++) {
        if (!wants_tiles(all[i])) continue;
        out->bytes += tiles_bytes(all[i]);
        out->matrix[out->n++] = (tile_matrix){all[i], parts_of(weights, config, all[i])};
    }
    free(all);
    return n > 0;
}

static kakeya_status no_list(kakeya_error *error) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a list of weights");
}

/* *found: a file of tiles lies beside the model, and now holds its matrices. */
static kakeya_status map_tiles(backend_model *m, const tile_list *list, bool *found, kakeya_error *error) {
    char *path = language_model_beside(m->options.verifier, BACKEND_ARRANGED);
    *found = false;
    kakeya_status status = path && list->n > 0 ? file_find(path, found, error) : KAKEYA_OK;
    const unsigned char **tiles = *found && !status ? malloc(list->n * sizeof *tiles) : NULL;
    if (*found && !status && !tiles) status = no_list(error);
    if (*found && !status) status = tile_file_open(path, list->matrix, list->n, &m->tile_map, tiles, error);
    for (size_t i = 0; *found && !status && i < list->n; i++) point_to(list->matrix[i].w, tiles[i]);
    if (*found && !status) {
        m->tile_path = path;
        path = NULL;
    }
    if (m->tile_path) snprintf(m->note, sizeof m->note, "quantised weights are those of %s", m->tile_path);
    free(tiles);
    free(path);
    return status;
}

/* Experts that are read when they are wanted stay as the file has them. */
static void leave_experts(const backend_model *m, tile_list *list) {
    size_t all = list->n;
    list->n = 0;
    list->bytes = 0;
    for (size_t i = 0; i < all; i++) {
        if (is_of_experts(m->own_weights, m->config->layers, list->matrix[i].w)) continue;
        list->bytes += tiles_bytes(list->matrix[i].w);
        list->matrix[list->n++] = list->matrix[i];
    }
}

kakeya_status repack_weights(backend_model *m, kakeya_error *error) {
    if (m->input != INPUT_INT8 && must_be_made(m))
        return error_set(error, KAKEYA_UNSUPPORTED, "synthetic weights of %s need --precision int8",
                         weight_format_name(m->weights->head.format));
    if (m->input != INPUT_INT8) return KAKEYA_OK;
    model_weights *w = m->own_weights;
    tile_list list;
    bool tied = m->config->tied_head, tiled = false;
    if (!list_tiles(w, m->config, &list)) return no_list(error);
    repack_state state = {.m = m, .options = &m->options, .total = list.bytes};
    kakeya_status status = map_tiles(m, &list, &tiled, error);
    if (!status && !tiled && m->options.weights_limit) {
        leave_experts(m, &list);
        state.total = list.bytes;
    }
    if (!status && !tiled && must_be_made(m) && !has_room(m, list.bytes))
        status =
            error_set(error, KAKEYA_OUT_OF_MEMORY, "no room for %zu bytes of synthetic weights", (size_t)list.bytes);
    if (!status && !tiled && list.n > 0 && has_room(m, list.bytes)) {
        tiled = true;
        size_t bytes = 0;
        for (size_t i = 0; i < list.n; i++) bytes += room_of(list.matrix[i].w);
        state.next = m->tiles = mem_alloc(m->account, MEM_WEIGHTS, bytes);
        if (!m->tiles)
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu bytes of weights in tiles", bytes);
        for (size_t i = 0; i < list.n && !status; i++) status = repack(&state, list.matrix[i].w, error);
    }
    if (!status && tiled && tied) w->embed = w->head;
    free(list.matrix);
    return status;
}

void repack_destroy(backend_model *m) {
    mem_free(m->tiles);
    free(m->tile_path);
    file_map_close(&m->tile_map);
}

/* ------------------------------------------------------------------------------------------------------- to a file */

enum { FILE_PIECE_BYTES = 16 << 20 };

typedef struct tile_output {
    repack_state state;
    thread_pool *pool;
    file_writer *file;
} tile_output;

static kakeya_status write_tiles(tile_output *t, const tile_matrix *matrix, XXH3_state_t *hashing, uint64_t *hashes,
                                 kakeya_error *error) {
    const weight *w = matrix->w;
    const size_t row = tiles_row_bytes(w), rows = tiles_bytes(w) / row, part = rows / (size_t)matrix->parts;
    const size_t most = row < FILE_PIECE_BYTES ? FILE_PIECE_BYTES / row : 1;
    repack_context c = {.w = w, .make = int8_of(cpu_kernels_find(t->state.options->isa))->tile[w->format]};
    kakeya_status status = KAKEYA_OK;
    c.tiles = malloc(most * row);
    if (!c.tiles) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu bytes of tiles", most * row);
    for (size_t n; c.first < rows && !status; c.first += n) {
        const size_t left = part - c.first % part; /* pieces end where parts do */
        n = left < most ? left : most;
        if (left == part) XXH3_64bits_reset(hashing);
        thread_pool_for(t->pool, n, PIECE_TILES, make_tile_rows, &c);
        XXH3_64bits_update(hashing, c.tiles, n * row);
        if (left == n) hashes[c.first / part] = block_hash_value(XXH3_64bits_digest(hashing));
        status = file_writer_write(t->file, c.tiles, n * row, error);
        t->state.done += n * row;
        if (!status) status = tell(&t->state, error);
    }
    language_model_unneeded(t->state.options->verifier, weight_row(w, 0, 0), weight_row_bytes(w, 0) * (size_t)w->out);
    free(c.tiles);
    return status;
}

static kakeya_status write_matrix(tile_output *t, const tile_matrix *matrix, kakeya_error *error) {
    XXH3_state_t *hashing = XXH3_createState();
    uint64_t *hashes = malloc((size_t)matrix->parts * sizeof *hashes);
    kakeya_status status =
        hashing && hashes ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for checksums");
    if (!status) status = write_tiles(t, matrix, hashing, hashes, error);
    if (!status) status = tile_file_write_hashes(t->file, matrix, hashes, error);
    free(hashes);
    XXH3_freeState(hashing);
    return status;
}

kakeya_status repack_to_file(const backend_model_options *options, const char *path, kakeya_error *error) {
    model_weights *w = malloc(sizeof *w);
    tile_list list = {NULL, 0, 0};
    tile_output t = {.state = {.options = options}};
    if (!w) return no_list(error);
    *w = options->verifier->weights;
    kakeya_status status = list_tiles(w, &options->verifier->config, &list) ? KAKEYA_OK : no_list(error);
    if (!status && list.n == 0)
        status = error_set(error, KAKEYA_UNSUPPORTED,
                           "the model has no weights for tiles, which hold those that a CPU multiplies in int8");
    t.state.total = list.bytes;
    if (!status) status = thread_pool_create(options->threads, &t.pool, error);
    if (!status) status = tile_file_create(path, list.matrix, list.n, &t.file, error);
    for (size_t i = 0; i < list.n && !status; i++) {
        status = tile_file_pad(t.file, list.matrix, list.n, i, error);
        if (!status) status = write_matrix(&t, &list.matrix[i], error);
    }
    if (!status)
        status = file_writer_commit(t.file, error);
    else
        file_writer_abort(t.file);
    thread_pool_destroy(t.pool);
    free(list.matrix);
    free(w);
    return status;
}
