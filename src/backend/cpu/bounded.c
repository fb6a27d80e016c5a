#include "backend/cpu/bounded.h"

#include <stdlib.h>

#include "backend/bounded_rows.h"
#include "backend/cpu/tile_file.h"
#include "backend/cpu/tiles.h"
#include "base/machine_memory.h"

enum { EXPERT_MATRICES = 4, GATE_UP_MATRICES = 3, LAYER_DENSE = 11, MODEL_DENSE = 4 };
_Static_assert(EXPERT_MATRICES *WEIGHT_STREAMS <= EXPERT_PIECES, "a layer's experts have a piece for every stream");

/* Of what the machine has free, weights take no more than so many parts by themselves: sessions need memory, too. */
enum { AUTO_PARTS = 3, OF_PARTS = 4 };

struct bounded_weights {
    block_reader *reader;
    expert_store *store;
    int *list;      /* [experts] */
    void *resident; /* MEM_WEIGHTS: copies of what every token needs */
    size_t limit, held, slot_bytes;
};

/* A stream that is to be copied, and the bytes of it. */
typedef struct resident_stream {
    const void **stream;
    const void *data;
    size_t bytes;
    int file;
    uint64_t offset;
    size_t same; /* index of an earlier one with the same bytes, or its own */
} resident_stream;

enum { MOST_RESIDENT = (MODEL_DENSE + MODEL_MAX_LAYERS * LAYER_DENSE) * WEIGHT_STREAMS };

typedef struct bounding {
    backend_model *m;
    struct bounded_weights *b;
    expert_layer layers[MODEL_MAX_LAYERS];
    resident_stream list[MOST_RESIDENT];
    size_t n;
    size_t room;  /* that copies take */
    bool unknown; /* not all experts have a checksum that is known */
} bounding;

static void experts_of_layer(layer_weights *l, weight *out[EXPERT_MATRICES]) {
    weight *const all[EXPERT_MATRICES] = {&l->experts_gate_up, &l->experts_gate, &l->experts_up, &l->experts_down};
    memcpy(out, all, sizeof all);
}

static void dense_of_layer(layer_weights *l, weight *out[LAYER_DENSE]) {
    weight *const all[LAYER_DENSE] = {&l->q_proj,    &l->k_proj,   &l->v_proj,    &l->o_proj,
                                      &l->gate_proj, &l->up_proj,  &l->down_proj, &l->router_proj,
                                      &l->ple_gate,  &l->ple_proj, NULL};
    memcpy(out, all, sizeof all);
}

/* Streams that products read: tiles hold what else there was, but for factors of rows. */
static bool is_read(const weight *w, int stream) {
    if (!w->tiled || stream == 0) return true;
    return tiles_have_factors(w) && stream == weight_format_find(w->format)->streams - 1;
}

/* Bytes of a stream of rows [0, rows); 0: rows do not end where its elements do. */
static size_t bytes_of_rows(const weight *w, int stream, int rows) {
    const weight_stream *s = &weight_format_find(w->format)->stream[stream];
    const int each = w->tiled && stream == 0 ? TILE_OUTPUTS : s->rows;
    const size_t bytes = w->tiled && stream == 0 ? tiles_row_bytes(w) : weight_row_bytes(w, stream);
    return rows % each ? 0 : (size_t)(rows / each) * bytes;
}

/* Of the whole matrix. */
static size_t stream_bytes(const weight *w, int stream) {
    if (w->tiled && stream == 0) return tiles_bytes(w);
    return weight_stream_bytes(&weight_format_find(w->format)->stream[stream], w->out, w->in, w->group);
}

/* *found false: the bytes are in no file, but in memory of the model's own. */
static kakeya_status locate(const bounding *x, const void *data, size_t bytes, int *file, uint64_t *offset, bool *found,
                            kakeya_error *error) {
    const char *path = x->m->tile_path;
    *found = (path && file_map_offset(&x->m->tile_map, data, bytes, offset)) ||
             language_model_locate(x->m->options.verifier, data, bytes, &path, offset);
    return *found ? block_reader_file(x->b->reader, path, file, error) : KAKEYA_OK;
}

static kakeya_status cannot_bound(const weight *w, int layer, kakeya_error *error) {
    return error_set(error, KAKEYA_UNSUPPORTED,
                     "weights limit: the experts of layer %d (%s) are not in the model's files as they are multiplied: "
                     "convert the model with 'kakeya convert MODEL OUT.gguf', and use OUT.gguf",
                     layer, weight_format_name(w->format));
}

/* Of each expert, where a file of tiles has them. */
static const uint64_t *hashes_of(const bounding *x, const weight *w, size_t bytes) {
    uint64_t offset;
    if (!x->m->tile_path || bytes * (size_t)x->m->config->experts != tiles_bytes(w)) return NULL;
    return file_map_offset(&x->m->tile_map, w->stream[0], tiles_bytes(w), &offset) ? tile_file_hashes(w) : NULL;
}

/* Where the experts of a layer lie. */
static kakeya_status place_experts(bounding *x, int layer, kakeya_error *error) {
    weight *matrices[EXPERT_MATRICES];
    experts_of_layer(&x->m->own_weights->layer[layer], matrices);
    for (int i = 0; i < EXPERT_MATRICES; i++) {
        const weight *w = matrices[i];
        if (!weight_present(w)) continue;
        const int out = w->out / x->m->config->experts;
        for (int s = 0; s < weight_format_find(w->format)->streams; s++) {
            if (!is_read(w, s)) continue;
            const size_t bytes = bytes_of_rows(w, s, out);
            expert_piece piece = {.bytes = bytes};
            bool found;
            kakeya_status status =
                locate(x, w->stream[s], stream_bytes(w, s), &piece.file, &piece.offset, &found, error);
            if (status) return status;
            if (found && bytes > 0) {
                if (w->tiled && s == 0) piece.hashes = hashes_of(x, w, bytes);
                x->layers[layer].piece[i * WEIGHT_STREAMS + s] = piece;
                if (!piece.hashes) x->unknown = true;
            } else if (s == 0)
                return cannot_bound(w, layer, error);
        }
    }
    return KAKEYA_OK;
}

static kakeya_status list_resident(bounding *x, weight *w, kakeya_error *error) {
    if (!w || !weight_present(w)) return KAKEYA_OK;
    const int streams = weight_format_find(w->format)->streams;
    for (int s = 0; !w->tiled && s < streams; s++) w->stream[s] = weight_row(w, s, 0); /* of its own rows alone */
    w->first = 0;
    for (int s = 0; s < streams; s++) {
        if (!is_read(w, s)) continue;
        resident_stream r = {.stream = &w->stream[s], .data = w->stream[s], .bytes = stream_bytes(w, s)};
        bool found;
        kakeya_status status = locate(x, r.data, r.bytes, &r.file, &r.offset, &found, error);
        if (status) return status;
        if (!found) continue;
        for (r.same = 0; r.same < x->n; r.same++)
            if (x->list[r.same].data == r.data && x->list[r.same].bytes == r.bytes) break;
        if (r.same == x->n) x->room += block_room(r.offset, r.bytes);
        x->list[x->n++] = r;
    }
    return KAKEYA_OK;
}

static kakeya_status list_all(bounding *x, kakeya_error *error) {
    model_weights *w = x->m->own_weights;
    weight *const model[MODEL_DENSE] = {&w->embed, &w->head, &w->ple_embed, &w->ple_model_proj};
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; !status && i < MODEL_DENSE; i++) status = list_resident(x, model[i], error);
    for (int l = 0; !status && l < x->m->config->layers; l++) {
        weight *dense[LAYER_DENSE];
        dense_of_layer(&w->layer[l], dense);
        for (int i = 0; !status && i < LAYER_DENSE; i++) status = list_resident(x, dense[i], error);
        if (!status) status = place_experts(x, l, error);
    }
    return status;
}

/* What is read at a time of what every token needs: enough reads for the reader to see how many at a time are fast. */
enum { RESIDENT_READ_BYTES = 4 << 20 };
/* Pages that a thread touches at a time. */
enum { PAGES_TOGETHER = 2048 };

static size_t add_reads(const resident_stream *r, unsigned char *to, block_read *reads) {
    size_t n = 0;
    for (size_t done = 0; done < r->bytes; n++) {
        const size_t lead = (size_t)((r->offset + done) % BLOCK_BYTES), left = r->bytes - done;
        const size_t bytes = left < RESIDENT_READ_BYTES ? left : RESIDENT_READ_BYTES - lead;
        reads[n] = block_read_of(r->file, r->offset + done, bytes, to);
        to += reads[n].bytes;
        done += bytes;
    }
    return n;
}

/* Pages are cleared when they are first touched, which takes longer than reading where a virtual machine gets its
 * memory page by page: all threads do it, and not only the one that begins reads. */
static void touch_pages(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    volatile unsigned char *memory = context;
    for (size_t i = begin; i < end; i++) memory[i * BLOCK_BYTES] = 0;
}

/* Copies, and points the matrices to them. */
static kakeya_status copy_resident(bounding *x, kakeya_error *error) {
    struct bounded_weights *b = x->b;
    block_read *reads = malloc((2 * x->n + x->room / (RESIDENT_READ_BYTES - BLOCK_BYTES) + 1) * sizeof *reads);
    b->resident = mem_alloc(x->m->account, MEM_WEIGHTS, x->room + BLOCK_BYTES);
    if (!reads || !b->resident) {
        free(reads);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu bytes of weights that every token needs",
                         x->room);
    }
    thread_pool_for(x->m->pool, x->room / BLOCK_BYTES, PAGES_TOGETHER, touch_pages, b->resident);
    unsigned char *to = (unsigned char *)(((uintptr_t)b->resident + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES);
    size_t n = 0;
    for (size_t i = 0; i < x->n; i++) {
        resident_stream *r = &x->list[i];
        if (r->same != i) {
            *r->stream = *x->list[r->same].stream;
            continue;
        }
        n += add_reads(r, to, reads + n);
        *r->stream = to + r->offset % BLOCK_BYTES;
        to += block_room(r->offset, r->bytes);
    }
    kakeya_status status = block_reader_run_trying(b->reader, reads, n, error);
    free(reads);
    return status;
}

static size_t limit_of(const backend_model *m) {
    if (m->options.weights_limit != KAKEYA_WEIGHTS_AUTO) return m->options.weights_limit;
    size_t room = mem_room(m->account), machine = machine_memory_available();
    size_t held = mem_bytes(m->account, MEM_WEIGHTS) + m->options.weights_aside;
    if (machine && machine < room) room = machine;
    return room / OF_PARTS * AUTO_PARTS + held;
}

static kakeya_status make_store(bounding *x, kakeya_error *error) {
    backend_model *m = x->m;
    struct bounded_weights *b = x->b;
    const int layers = m->config->layers, experts = m->config->experts, least = m->config->experts_per_token;
    b->limit = limit_of(m);
    b->slot_bytes = expert_slot_bytes(x->layers, layers);
    b->held = mem_bytes(m->account, MEM_WEIGHTS) + m->options.weights_aside + x->room + 2 * BLOCK_BYTES;
    const size_t needed = b->held + (size_t)least * b->slot_bytes;
    if (b->limit < needed)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "weights limit: %zu bytes are not enough: %zu are needed, %zu of them for what every token "
                         "needs and %zu for the %d experts that a token chooses in a layer",
                         b->limit, needed, b->held, needed - b->held, least);
    return expert_store_create(b->reader, x->layers, layers, experts, (b->limit - b->held) / b->slot_bytes, m->account,
                               &b->store, error);
}

/* m has a list of weights of its own. */
static kakeya_status own_list(backend_model *m, kakeya_error *error) {
    if (m->own_weights) return KAKEYA_OK;
    m->own_weights = malloc(sizeof *m->own_weights);
    if (!m->own_weights) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a list of weights");
    *m->own_weights = *m->weights;
    m->weights = m->own_weights;
    return KAKEYA_OK;
}

static void choose_prompt_rows(backend_model *m) {
    const size_t each = mem_bytes(m->account, MEM_WORKSPACE) / (size_t)m->max_rows + 1;
    m->prompt_rows = bounded_rows(m->bounded->limit, each, m->prompt_rows);
    if (m->prompt_rows > m->most_rows) m->most_rows = m->prompt_rows;
}

static kakeya_status make_list(backend_model *m, kakeya_error *error) {
    m->bounded->list = malloc((size_t)m->config->experts * sizeof(int));
    return m->bounded->list ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a list of experts");
}

kakeya_status bounded_create(backend_model *m, kakeya_error *error) {
    if (!m->config->moe)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "weights limit: every token needs all weights of a %s, which has no experts",
                         m->config->variant);
    if (!m->options.verifier->file && !m->options.verifier->checkpoint)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "weights limit: experts are read from the model's files, and synthetic weights have none");
    bounding *x = calloc(1, sizeof *x);
    m->bounded = calloc(1, sizeof *m->bounded);
    if (!x || !m->bounded) {
        free(x);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a list of weights");
    }
    *x = (bounding){.m = m, .b = m->bounded};
    kakeya_status status = own_list(m, error);
    if (!status) status = block_reader_create(&m->bounded->reader, error);
    if (!status) status = list_all(x, error);
    if (!status) status = make_store(x, error);
    if (!status) status = copy_resident(x, error);
    if (!status) status = make_list(m, error);
    int tiles = 0;
    if (!status && !x->unknown) status = block_reader_file(m->bounded->reader, m->tile_path, &tiles, error);
    if (!status && !x->unknown) block_reader_file_hashed(m->bounded->reader, tiles);
    if (!status) {
        language_model_release(m->options.verifier);
        file_map_unneeded(&m->tile_map, m->tile_map.data, m->tile_map.bytes);
        choose_prompt_rows(m);
    }
    free(x);
    return status;
}

void bounded_destroy(backend_model *m) {
    struct bounded_weights *b = m->bounded;
    if (!b) return;
    expert_store_destroy(b->store);
    block_reader_destroy(b->reader);
    mem_free(b->resident);
    free(b->list);
    free(b);
    m->bounded = NULL;
}

void bounded_state(const backend_model *m, backend_weights *out) {
    const struct bounded_weights *b = m->bounded;
    *out = (backend_weights){0};
    if (!b) return;
    const expert_counts counts = expert_store_counts(b->store);
    *out = (backend_weights){.limit = b->limit,
                             .resident = b->held,
                             .slot_bytes = b->slot_bytes,
                             .slots = expert_store_slots(b->store),
                             .experts = m->config->layers * m->config->experts,
                             .wanted = counts.wanted,
                             .found = counts.found,
                             .bytes = counts.bytes,
                             .failures = counts.failures,
                             .failing = counts.failing,
                             .seconds = counts.seconds,
                             .method = block_reader_method(b->reader)};
}

int bounded_slots(const backend_model *m) { return expert_store_slots(m->bounded->store); }

int bounded_order(const backend_model *m, int layer, int *experts, int n) {
    return expert_store_order(m->bounded->store, layer, experts, n);
}

void bounded_begin(backend_model *m, int layer, const int *experts, int n) {
    expert_store_begin(m->bounded->store, layer, experts, n);
}

kakeya_status bounded_wait(backend_model *m, int first, kakeya_error *error) {
    return expert_store_wait(m->bounded->store, first, error);
}

kakeya_status bounded_wait_gate_up(backend_model *m, kakeya_error *error) {
    return expert_store_wait_pieces(m->bounded->store, GATE_UP_MATRICES * WEIGHT_STREAMS, error);
}

void bounded_poll(backend_model *m) { expert_store_poll(m->bounded->store); }

bool bounded_looks_ahead(const backend_model *m) {
    return 2 * expert_store_slots(m->bounded->store) < m->config->layers * m->config->experts;
}

void bounded_expect(backend_model *m, int layer, int expert) {
    expert_store_expect(m->bounded->store, layer, &expert, 1);
}

void bounded_expect_all(backend_model *m, int layer) {
    const struct bounded_weights *b = m->bounded;
    const int experts = m->config->experts;
    if (layer + 1 == m->config->layers || expert_store_slots(b->store) < 2 * experts) return;
    for (int e = 0; e < experts; e++) b->list[e] = e;
    expert_store_expect(b->store, layer + 1, b->list, experts);
}

weight bounded_expert(const backend_model *m, int layer, const weight *stacked, int expert, int out) {
    weight *matrices[EXPERT_MATRICES], w = *stacked;
    experts_of_layer(&m->own_weights->layer[layer], matrices);
    int matrix = 0;
    while (matrices[matrix] != stacked) matrix++;
    w.out = out;
    w.first = 0;
    for (int s = 0; s < weight_format_find(w.format)->streams; s++) {
        const void *piece = expert_store_piece(m->bounded->store, layer, expert, matrix * WEIGHT_STREAMS + s);
        if (piece)
            w.stream[s] = piece;
        else if (w.stream[s]) /* its rows lie in the model's own memory */
            w.stream[s] = weight_row(stacked, s, expert * out);
    }
    return w;
}

kakeya_status bounded_probe(backend_model *m, double *bytes_per_second, kakeya_error *error) {
    const struct bounded_weights *b = m->bounded;
    if (!b) return error_set(error, KAKEYA_INVALID_ARGUMENT, "there is no limit on weights");
    const expert_piece *p = expert_store_largest(b->store);
    return block_reader_probe(b->reader, p->file, p->offset, p->offset + (uint64_t)m->config->experts * p->bytes,
                              p->bytes, 1, bytes_per_second, error);
}
