#include "backend/cuda/bounded.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cuda/matrix.h"

/* Of what the device has free, weights take no more than so many parts by themselves: sessions need memory, too. */
enum { AUTO_PARTS = 3, OF_PARTS = 4 };

/* Where tables and arenas begin. */
enum { ALIGNMENT = 256 };

/* Work goes on beside copies where less than so much of the experts is in slots: streams that wait for each other cost
 * more than they save where few experts are missed. And where an expert takes no more bytes: a guess that was wrong
 * must not delay what is wanted by much. */
enum { BESIDE_PARTS = 1, OF_EXPERTS_PARTS = 2, AHEAD_MOST_BYTES = 8 << 20 };

/* What is done beside the step, each on a stream of its own: the dense part of a layer, copies that what comes next
 * does not need, and the search for what to copy ahead. */
typedef enum beside { BESIDE_DENSE = 0, BESIDE_LINK, BESIDE_PREDICT, BESIDES } beside;
/* Where a stream has come to: chosen experts are known; they have slots; gate/up are there; down, too; an expert is
 * found that the next layer will miss; it is there; the dense part is done. */
typedef enum event {
    EVENT_ROUTE = 0,
    EVENT_FOUND,
    EVENT_GATE_UP,
    EVENT_DOWN,
    EVENT_PREDICTED,
    EVENT_AHEAD,
    EVENT_DENSE,
    EVENTS
} event;

struct cuda_bounded {
    const cuda_device *device;
    cuda_expert_cache *cache; /* [caches] */
    int caches, layers, experts;
    cuda_bounded_layer layer[MODEL_MAX_LAYERS];
    int cache_of[MODEL_MAX_LAYERS];                                 /* by layer */
    const void *gate_up[MODEL_MAX_LAYERS], *down[MODEL_MAX_LAYERS]; /* the layer's experts in `host` */
    cuda_buffer arena, tables;
    unsigned char *host; /* page-locked */
    size_t host_bytes;
    cuda_expert_counts *counts; /* [caches], page-locked */
    size_t limit, held;
    cudaStream_t stream[BESIDES];
    cudaEvent_t event[EVENTS];
};

static size_t aligned(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* -------------------------------------------------------------------------------------------------------- sizes */

static size_t matrix_expert_bytes(const cuda_matrix *w, int experts) {
    return matrix_bytes(w->form, w->out / experts, w->in);
}

static size_t expert_bytes(const cuda_expert_cache *c) { return (size_t)(c->gate_up_bytes + c->down_bytes); }

size_t cuda_bounded_expert_bytes(const cuda_bounded_layer *layer, int experts) {
    return matrix_expert_bytes(layer->gate_up, experts) + matrix_expert_bytes(layer->down, experts);
}

static size_t layers_of(const cuda_bounded *b, int cache) {
    size_t n = 0;
    for (int i = 0; i < b->layers; i++) n += b->cache_of[i] == cache;
    return n;
}

/* The caches, without memory: one for all layers with experts of one size. */
static void list_caches(cuda_bounded *b) {
    for (int i = 0; i < b->layers; i++) {
        const uint64_t first = matrix_expert_bytes(b->layer[i].gate_up, b->experts),
                       second = matrix_expert_bytes(b->layer[i].down, b->experts);
        int at = 0;
        while (at < b->caches && (b->cache[at].gate_up_bytes != first || b->cache[at].down_bytes != second)) at++;
        if (at == b->caches)
            b->cache[b->caches++] =
                (cuda_expert_cache){.experts = b->experts, .gate_up_bytes = first, .down_bytes = second};
        b->cache_of[i] = at;
    }
}

static size_t device_free(const mem_account *account) {
    size_t available = 0, total = 0, room = mem_room(account);
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) (void)cudaGetLastError();
    return available < room ? available : room;
}

static size_t limit_of(const backend_model_options *o) {
    if (o->weights_limit != KAKEYA_WEIGHTS_AUTO) return o->weights_limit;
    return device_free(o->account) / OF_PARTS * AUTO_PARTS;
}

/* Every cache has a slot for each expert of a layer; the rest of the limit is theirs by the experts that are left. */
static kakeya_status share_out(cuda_bounded *b, kakeya_error *error) {
    size_t least = 0;
    double left = 0;
    for (int i = 0; i < b->caches; i++) {
        const size_t bytes = expert_bytes(&b->cache[i]) * (size_t)b->experts;
        least += bytes + 2 * ALIGNMENT;
        left += (double)bytes * (double)(layers_of(b, i) - 1);
    }
    if (b->limit < b->held + least)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "weights limit: %zu bytes are not enough: %zu are needed, %zu of them for what every token "
                         "needs and %zu for the %d experts of a layer, which prompts use at once",
                         b->limit, b->held + least, b->held, least, b->experts);
    double share = left > 0 ? (double)(b->limit - b->held - least) / left : 0;
    if (share > 1) share = 1;
    for (int i = 0; i < b->caches; i++)
        b->cache[i].slots = b->experts + (int)(share * (double)(layers_of(b, i) - 1) * (double)b->experts);
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------------- memory */

static size_t take(size_t *used, size_t bytes) {
    size_t at = *used;
    *used += aligned(bytes);
    return at;
}

/* Points a cache into the buffers, whose bytes so far are counted; both NULL: counts alone. */
static void place_cache(cuda_expert_cache *c, int layers, char *arena, size_t *arena_bytes, char *tables,
                        size_t *table_bytes) {
    const size_t slots = (size_t)c->slots, ids = (size_t)layers * (size_t)c->experts;
    c->gate_up = (unsigned char *)arena + take(arena_bytes, slots * c->gate_up_bytes);
    c->down = (unsigned char *)arena + take(arena_bytes, slots * c->down_bytes);
    const size_t at[] = {take(table_bytes, ids * sizeof *c->slot_of),
                         take(table_bytes, slots * sizeof *c->owner),
                         take(table_bytes, slots * sizeof *c->used),
                         take(table_bytes, ids * sizeof *c->score),
                         take(table_bytes, ids * sizeof *c->scored),
                         take(table_bytes, slots * sizeof *c->order),
                         take(table_bytes, (size_t)c->experts * sizeof *c->copies),
                         take(table_bytes, sizeof *c->state),
                         take(table_bytes, (size_t)(CUDA_DECODE_ROWS * c->experts) * sizeof *c->likely)};
    if (!tables) return;
    c->slot_of = (int *)(void *)(tables + at[0]);
    c->owner = (int *)(void *)(tables + at[1]);
    c->used = (uint64_t *)(void *)(tables + at[2]);
    c->score = (float *)(void *)(tables + at[3]);
    c->scored = (unsigned *)(void *)(tables + at[4]);
    c->order = (int *)(void *)(tables + at[5]);
    c->copies = (cuda_expert_copy *)(void *)(tables + at[6]);
    c->state = (cuda_expert_state *)(void *)(tables + at[7]);
    c->likely = (float *)(void *)(tables + at[8]);
}

static kakeya_status make_memory(cuda_bounded *b, const backend_model_options *o, kakeya_error *error) {
    size_t arena = 0, tables = 0;
    for (int i = 0; i < b->caches; i++) place_cache(&b->cache[i], b->layers, NULL, &arena, NULL, &tables);
    kakeya_status status =
        cuda_buffer_create(&b->arena, b->device, o->account, MEM_WEIGHTS, arena, "the arena of experts", error);
    if (!status)
        status =
            cuda_buffer_create(&b->tables, b->device, o->account, MEM_WORKSPACE, tables, "the list of experts", error);
    if (!status) status = cuda_pinned((void **)&b->host, b->host_bytes, "experts in the host's memory", error);
    if (!status)
        status = cuda_pinned((void **)&b->counts, (size_t)b->caches * sizeof *b->counts, "counts of experts", error);
    if (status) return status;
    memset(b->counts, 0, (size_t)b->caches * sizeof *b->counts);
    arena = tables = 0;
    for (int i = 0; i < b->caches; i++) {
        place_cache(&b->cache[i], b->layers, b->arena.data, &arena, b->tables.data, &tables);
        b->cache[i].counts = &b->counts[i];
    }
    return KAKEYA_OK;
}

static kakeya_status make_streams(cuda_bounded *b, kakeya_error *error) {
    cudaError_t status = cudaSuccess;
    for (int i = 0; i < BESIDES && status == cudaSuccess; i++)
        status = cudaStreamCreateWithFlags(&b->stream[i], cudaStreamNonBlocking);
    for (int i = 0; i < EVENTS && status == cudaSuccess; i++)
        status = cudaEventCreateWithFlags(&b->event[i], cudaEventDisableTiming);
    return cuda_check(status, "creating streams for experts", error);
}

kakeya_status cuda_bounded_create(cuda_bounded **out, const cuda_device *device, const cuda_launch *launch,
                                  const backend_model_options *options, const cuda_bounded_layer *layers, size_t held,
                                  size_t host_bytes, kakeya_error *error) {
    const model_config *c = &options->verifier->config;
    *out = NULL;
    if (!c->moe)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "weights limit: every token needs all weights of a %s, which has no experts", c->variant);
    cuda_bounded *b = calloc(1, sizeof *b);
    if (!b) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a list of experts");
    *out = b;
    b->device = device;
    b->layers = c->layers;
    b->experts = c->experts;
    b->held = mem_rounded(held) + mem_bytes(options->account, MEM_WEIGHTS); /* norms, which the host has, too */
    b->host_bytes = host_bytes;
    b->cache = calloc((size_t)c->layers, sizeof *b->cache);
    if (!b->cache) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a list of experts");
    memcpy(b->layer, layers, (size_t)c->layers * sizeof *layers);
    list_caches(b);
    b->limit = limit_of(options);
    kakeya_status status = share_out(b, error);
    if (!status) status = make_memory(b, options, error);
    if (!status) status = make_streams(b, error);
    for (int i = 0; i < b->caches && !status; i++) cuda_expert_clear(launch, &b->cache[i], b->layers);
    return status;
}

void cuda_bounded_destroy(cuda_bounded *b) {
    if (!b) return;
    for (int i = 0; i < BESIDES; i++)
        if (b->stream[i]) (void)cudaStreamDestroy(b->stream[i]);
    for (int i = 0; i < EVENTS; i++)
        if (b->event[i]) (void)cudaEventDestroy(b->event[i]);
    cuda_buffer_destroy(&b->arena);
    cuda_buffer_destroy(&b->tables);
    if (b->host) (void)cudaFreeHost(b->host);
    if (b->counts) (void)cudaFreeHost(b->counts);
    free(b->cache);
    free(b);
}

void *cuda_bounded_place(cuda_bounded *b, const cuda_matrix *experts, size_t offset) {
    int layer = 0;
    while (experts != b->layer[layer].gate_up && experts != b->layer[layer].down) layer++;
    const cuda_expert_cache *c = &b->cache[b->cache_of[layer]];
    const bool down = experts == b->layer[layer].down;
    (down ? b->down : b->gate_up)[layer] = b->host + offset;
    (down ? b->layer[layer].down : b->layer[layer].gate_up)->data = (cuda_bf16 *)(void *)(down ? c->down : c->gate_up);
    return b->host + offset;
}

/* ------------------------------------------------------------------------------------------------------- counts */

void cuda_bounded_state(const cuda_bounded *b, backend_weights *out) {
    *out = (backend_weights){0};
    if (!b) return;
    *out = (backend_weights){.limit = b->limit,
                             .resident = b->held,
                             .experts = b->layers * b->experts,
                             .host = b->host_bytes,
                             .method = "copies from page-locked memory"};
    for (int i = 0; i < b->caches; i++) {
        const volatile cuda_expert_counts *n = &b->counts[i]; /* which the device writes */
        out->wanted += n->wanted;
        out->found += n->found;
        out->bytes += n->bytes;
        out->seconds += (double)n->nanoseconds / 1e9;
        out->slots += b->cache[i].slots;
        if (expert_bytes(&b->cache[i]) > out->slot_bytes) out->slot_bytes = expert_bytes(&b->cache[i]);
    }
}

cuda_bounded_host cuda_bounded_memory(const cuda_bounded *b) { return (cuda_bounded_host){b->host, b->host_bytes}; }

/* ------------------------------------------------------------------------------------------------------ fetching */

/* Whether no layer before this one has its cache. */
static bool is_first(const cuda_bounded *b, int layer) {
    for (int i = 0; i < layer; i++)
        if (b->cache_of[i] == b->cache_of[layer]) return false;
    return true;
}

bool cuda_bounded_beside(const cuda_bounded *b) {
    return b->caches == 1 && expert_bytes(b->cache) <= AHEAD_MOST_BYTES &&
           OF_EXPERTS_PARTS * b->cache->slots < BESIDE_PARTS * b->layers * b->experts;
}

static cudaError_t record(const cuda_bounded *b, event at, cudaStream_t stream) {
    return cudaEventRecord(b->event[at], stream);
}

static cudaError_t wait_for(const cuda_bounded *b, cudaStream_t stream, event at) {
    return cudaStreamWaitEvent(stream, b->event[at], 0);
}

/* From where one stream is on, another one follows. */
static cudaError_t follow(const cuda_bounded *b, cudaStream_t later, cudaStream_t earlier, event at) {
    const cudaError_t status = record(b, at, earlier);
    return status == cudaSuccess ? wait_for(b, later, at) : status;
}

/* The first that was not a success. */
static void keep(cudaError_t *status, cudaError_t next) {
    if (*status == cudaSuccess) *status = next;
}

static cuda_launch launch_beside(const cuda_bounded *b, const cuda_launch *l, beside which) {
    return (cuda_launch){.stream = b->stream[which],
                         .multiprocessors = l->multiprocessors,
                         .block_bytes = l->block_bytes,
                         .expanded = l->expanded};
}

/* Beside products: those of gate/up begin when theirs is there. Between a layer's copies and the next lookup the link
 * brings what that will miss. */
static cudaError_t fetch_beside(const cuda_bounded *b, const cuda_launch *l, const cuda_route *route, int layer,
                                int rows, const cuda_expert_outlook *o) {
    const cuda_expert_cache *c = b->cache;
    const cuda_launch link = launch_beside(b, l, BESIDE_LINK), predict = launch_beside(b, l, BESIDE_PREDICT);
    const bool looks = layer + 1 < b->layers, looked = layer > 0;
    cuda_launch find = *l;
    cudaError_t status = record(b, EVENT_ROUTE, l->stream);
    if (looked) {
        find.programmatic = 0;
        keep(&status, wait_for(b, l->stream, EVENT_PREDICTED));
    }
    cuda_expert_find(&find, c, route, layer, false, rows);
    if (looks) {
        keep(&status, follow(b, predict.stream, l->stream, EVENT_FOUND));
        if (looked) keep(&status, wait_for(b, predict.stream, EVENT_AHEAD)); /* which reads what is written now */
        cuda_expert_predict(&predict, c, o, layer + 1, rows);
        keep(&status, record(b, EVENT_PREDICTED, predict.stream));
    }
    cuda_expert_copy_in(l, c, b->gate_up[layer], NULL);
    if (looked) keep(&status, wait_for(b, l->stream, EVENT_AHEAD));
    keep(&status, follow(b, link.stream, l->stream, EVENT_GATE_UP));
    cuda_expert_copy_in(&link, c, NULL, b->down[layer]);
    keep(&status, record(b, EVENT_DOWN, link.stream));
    if (looks) {
        keep(&status, wait_for(b, link.stream, EVENT_PREDICTED));
        cuda_expert_copy_ahead(&link, c, b->gate_up[layer + 1], b->down[layer + 1]);
        keep(&status, record(b, EVENT_AHEAD, link.stream));
    }
    return status;
}

cudaError_t cuda_bounded_fetch(const cuda_bounded *b, const cuda_launch *l, const cuda_route *route, int layer,
                               bool prompt, int rows, const cuda_expert_outlook *o) {
    const cuda_expert_cache *c = &b->cache[b->cache_of[layer]];
    if (is_first(b, layer)) cuda_expert_order(l, c);
    if (o) return fetch_beside(b, l, route, layer, rows, o);
    cuda_expert_find(l, c, route, layer, prompt, rows);
    cuda_expert_copy_in(l, c, b->gate_up[layer], b->down[layer]);
    return cudaSuccess;
}

cudaError_t cuda_bounded_fork(const cuda_bounded *b, const cuda_launch *l, cuda_launch *out) {
    *out = launch_beside(b, l, BESIDE_DENSE);
    return wait_for(b, out->stream, EVENT_ROUTE);
}

cudaError_t cuda_bounded_join(const cuda_bounded *b, const cuda_launch *l) {
    cudaError_t status = follow(b, l->stream, b->stream[BESIDE_DENSE], EVENT_DENSE);
    keep(&status, wait_for(b, l->stream, EVENT_DOWN));
    return status;
}
