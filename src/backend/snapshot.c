#include "backend/snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "backend/segments.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "snapshots are written in the machine's order");

static const uint32_t snapshot_magic = 0x314b564bu; /* "KVK1" */
/* Version 3 is version 2 with a snapshot_latents behind its header; caches whose latents version 2 can tell of go on
 * writing that one. Two more say that an assistant's state ends the snapshot. */
enum { SNAPSHOT_PLAIN = 2, SNAPSHOT_WITH_LATENTS = 3, SNAPSHOT_AND_STATE = 2, SNAPSHOT_VERSIONS = 4 };
static const size_t least_buffer_bytes = (size_t)256 << 10;

typedef struct snapshot_header {
    uint32_t magic, version;
    /* what must agree between the writing and the reading cache */
    int32_t layers, hidden, sliding_window, vocabulary;
    int32_t attention, restore_layers, sink, window, draft_window, kv_format;
    int32_t drafter_layers, latent_rank, latent_input; /* restoration_input */
    timeline_state state;
} snapshot_header;

/* More that must agree. */
typedef struct snapshot_latents {
    int32_t rank_v, format, shared, taps;
    int32_t tap[TIMELINE_MAX_TAPS]; /* zero behind the last */
} snapshot_latents;

/* Version 2 knows one rank, the format of K/V, and the drafter's layers. */
static bool is_plain(const timeline *t) {
    kv_format format = t->options.kv_format;
    return t->latents == STORE_NONE || (!t->latents_from_aux && t->latent.rank_k == t->latent.rank_v &&
                                        t->latent.format == (format == KV_FORMAT_F32 ? LATENT_F32 : LATENT_BF16));
}

static bool has_latents(uint32_t version) { return (version - SNAPSHOT_PLAIN) & 1; }
static bool has_state(uint32_t version) { return (version - SNAPSHOT_PLAIN) & SNAPSHOT_AND_STATE; }

static uint32_t version_of(const timeline *t) {
    uint32_t state = timeline_has_state(t) ? SNAPSHOT_AND_STATE : 0;
    return (is_plain(t) ? SNAPSHOT_PLAIN : SNAPSHOT_WITH_LATENTS) + state;
}

static snapshot_latents latents_of(const timeline *t) {
    snapshot_latents l = {
        .rank_v = t->latent.rank_v, .format = (int32_t)t->latent.format, .shared = t->latent.shared, .taps = t->taps};
    for (int i = 0; i < t->taps; i++) l.tap[i] = t->tap[i];
    return l;
}

static snapshot_header header_of(const timeline *t) {
    const model_config *c = t->models.verifier;
    const backend_cache_options *o = &t->options;
    return (snapshot_header){
        .magic = snapshot_magic,
        .version = version_of(t),
        .layers = c->layers,
        .hidden = c->hidden,
        .sliding_window = c->sliding_window,
        .vocabulary = c->vocab,
        .attention = (int32_t)o->attention,
        .restore_layers = (int32_t)o->restore_layers,
        .sink = o->sink,
        .window = o->window,
        .draft_window = o->draft_window,
        .kv_format = (int32_t)o->kv_format,
        .drafter_layers = o->keep_draft_context ? t->models.drafter->layers : 0,
        .latent_rank = t->latents ? t->latent.rank_k : 0,
        .latent_input =
            t->latents ? (int32_t)(t->latents_from_aux ? RESTORATION_AUX_HIDDEN : t->models.restoration->input) : 0,
        .state = timeline_get_state(t),
    };
}

/* ---------------------------------------------------------------------------------------------------- the walk */

typedef struct snapshot_walk snapshot_walk;
typedef kakeya_status (*visit_fn)(snapshot_walk *walk, const snapshot_rows *rows, kakeya_error *error);

struct snapshot_walk {
    const timeline *t;
    bool foreign_state; /* a state is read that the cache does not keep */
    visit_fn visit;
    size_t bytes, largest_row; /* counted */
    backend_cache *cache;
    snapshot_copy_fn copy;
    backend_write_fn write;
    backend_read_fn read;
    void *user;
    unsigned char *buffer; /* holds one row at least */
    size_t buffer_bytes;
};

static kakeya_status visit(snapshot_walk *w, snapshot_part part, int layer, position_range held, size_t row_bytes,
                           kakeya_error *error) {
    snapshot_rows rows = {part, layer, held.begin, held.end - held.begin, row_bytes};
    return rows.n > 0 && row_bytes ? w->visit(w, &rows, error) : KAKEYA_OK;
}

static kakeya_status walk_layer(snapshot_walk *w, int i, kakeya_error *error) {
    const timeline *t = w->t;
    const timeline_layer *l = &t->layer[i];
    size_t row = l->row_bytes;
    kakeya_status status = visit(w, SNAPSHOT_LAYER_V, i, timeline_layer_held(t, i), row, error);
    if (!status && l->has_keys) status = visit(w, SNAPSHOT_LAYER_K, i, timeline_layer_held(t, i), row, error);
    if (!status && l->bounded) status = visit(w, SNAPSHOT_SINK_V, i, timeline_sink_held(t), row, error);
    if (!status && l->bounded && l->has_keys) status = visit(w, SNAPSHOT_SINK_K, i, timeline_sink_held(t), row, error);
    return status;
}

static kakeya_status walk_drafter(snapshot_walk *w, kakeya_error *error) {
    const timeline *t = w->t;
    const block_drafter_config *d = t->models.drafter;
    size_t row = timeline_draft_row_bytes(t);
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; !status && i < d->layers; i++) {
        status = visit(w, SNAPSHOT_DRAFT_K, i, timeline_draft_held(t, i), row, error);
        if (!status) status = visit(w, SNAPSHOT_DRAFT_V, i, timeline_draft_held(t, i), row, error);
    }
    size_t aux = (size_t)d->targets * (size_t)t->models.verifier->hidden * sizeof(float);
    return status ? status : visit(w, SNAPSHOT_BACKLOG, 0, timeline_backlog_held(t), aux, error);
}

static kakeya_status walk_all(snapshot_walk *w, kakeya_error *error) {
    const timeline *t = w->t;
    kakeya_status status = KAKEYA_OK;
    if (t->latents_from_tokens)
        status = visit(w, SNAPSHOT_TOKENS, 0, (position_range){0, t->length}, sizeof(int32_t), error);
    for (int i = 0; !status && i < t->models.verifier->layers; i++) {
        if (t->layer[i].kind != STORE_NONE) status = walk_layer(w, i, error);
    }
    if (!status && t->latents != STORE_NONE) {
        size_t scales = (size_t)t->latent_heads * sizeof(float);
        status = visit(w, SNAPSHOT_LATENT_CODES, 0, timeline_latents_held(t), t->latent.bytes, error);
        if (!status) status = visit(w, SNAPSHOT_LATENT_SCALES, 0, timeline_latents_held(t), scales, error);
    }
    if (!status && t->options.keep_draft_context) status = walk_drafter(w, error);
    if (!status && t->keeps_backlog)
        status = visit(w, SNAPSHOT_BACKLOG, 0, timeline_backlog_held(t), timeline_aux_row_bytes(t), error);
    position_range state = {0, w->foreign_state || timeline_has_state(t) ? 1 : 0};
    return status ? status : visit(w, SNAPSHOT_STATE, 0, state, timeline_state_bytes(t), error);
}

static kakeya_status count_rows(snapshot_walk *w, const snapshot_rows *rows, kakeya_error *error) {
    (void)error;
    w->bytes += (size_t)rows->n * rows->row_bytes;
    if (rows->row_bytes > w->largest_row) w->largest_row = rows->row_bytes;
    return KAKEYA_OK;
}

static snapshot_walk count_all(const timeline *t) {
    snapshot_walk w = {.t = t, .visit = count_rows};
    (void)walk_all(&w, NULL); /* counting cannot fail */
    return w;
}

size_t snapshot_bytes(const timeline *t) {
    return sizeof(snapshot_header) + (is_plain(t) ? 0 : sizeof(snapshot_latents)) +
           (size_t)t->n_runs * sizeof *t->runs + count_all(t).bytes;
}

/* ------------------------------------------------------------------------------------------ writing and reading */

static kakeya_status check_tokens(const timeline *t, const int32_t *tokens, int first, int n, kakeya_error *error) {
    for (int i = 0; i < n; i++) {
        if (!backend_token_exists(t->models.verifier, tokens[i]))
            return error_set(error, KAKEYA_FORMAT, "snapshot is damaged: token %d is %d, outside the vocabulary",
                             first + i, (int)tokens[i]);
    }
    return KAKEYA_OK;
}

/* As many rows at a time as the buffer holds. */
static kakeya_status transfer_rows(snapshot_walk *w, const snapshot_rows *rows, kakeya_error *error) {
    int most = (int)(w->buffer_bytes / rows->row_bytes);
    for (int done = 0; done < rows->n; done += most) {
        snapshot_rows piece = *rows;
        piece.first += done;
        piece.n = rows->n - done < most ? rows->n - done : most;
        size_t bytes = (size_t)piece.n * piece.row_bytes;
        kakeya_status status = KAKEYA_OK;
        if (w->read) status = w->read(w->user, w->buffer, bytes, error);
        if (!status && w->read && piece.part == SNAPSHOT_TOKENS)
            status = check_tokens(w->t, (const int32_t *)(const void *)w->buffer, piece.first, piece.n, error);
        if (!status && !(w->foreign_state && piece.part == SNAPSHOT_STATE))
            status = w->copy(w->cache, &piece, w->buffer, w->write != NULL, error);
        if (!status && w->write) status = w->write(w->user, w->buffer, bytes, error);
        if (status) return status;
    }
    return KAKEYA_OK;
}

static kakeya_status transfer_all(snapshot_walk *w, mem_account *account, kakeya_error *error) {
    w->visit = transfer_rows;
    w->buffer_bytes = count_all(w->t).largest_row;
    if (w->buffer_bytes < timeline_state_bytes(w->t)) w->buffer_bytes = timeline_state_bytes(w->t);
    if (w->buffer_bytes < least_buffer_bytes) w->buffer_bytes = least_buffer_bytes;
    w->buffer = mem_alloc(account, MEM_WORKSPACE, w->buffer_bytes);
    if (!w->buffer)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: a snapshot needs %zu bytes", w->buffer_bytes);
    kakeya_status status = walk_all(w, error);
    mem_free(w->buffer);
    return status;
}

kakeya_status snapshot_write(const timeline *t, backend_cache *cache, snapshot_copy_fn copy, mem_account *account,
                             backend_write_fn write, void *user, kakeya_error *error) {
    if (t->pending)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "cannot snapshot with %d pending rows", t->pending);
    snapshot_header header = header_of(t);
    snapshot_latents latents = latents_of(t);
    kakeya_status status = write(user, &header, sizeof header, error);
    if (!status && has_latents(header.version)) status = write(user, &latents, sizeof latents, error);
    if (!status && t->n_runs) status = write(user, t->runs, (size_t)t->n_runs * sizeof *t->runs, error);
    snapshot_walk w = {.t = t, .cache = cache, .copy = copy, .write = write, .user = user};
    return status ? status : transfer_all(&w, account, error);
}

static kakeya_status check_shape(const snapshot_header *found, const snapshot_header *own, kakeya_error *error) {
    const struct {
        const char *name;
        int32_t found, own;
    } fields[] = {
        {"layers", found->layers, own->layers},
        {"hidden size", found->hidden, own->hidden},
        {"sliding window", found->sliding_window, own->sliding_window},
        {"vocabulary", found->vocabulary, own->vocabulary},
        {"attention policy", found->attention, own->attention},
        {"restore layers", found->restore_layers, own->restore_layers},
        {"sink", found->sink, own->sink},
        {"window", found->window, own->window},
        {"draft window", found->draft_window, own->draft_window},
        {"drafter layers", found->drafter_layers, own->drafter_layers},
        {"f_theta rank", found->latent_rank, own->latent_rank},
        {"f_theta input", found->latent_input, own->latent_input},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (fields[i].found != fields[i].own)
            return error_set(error, KAKEYA_FORMAT, "snapshot does not fit: %s is %d there and %d here", fields[i].name,
                             (int)fields[i].found, (int)fields[i].own);
    }
    if (found->kv_format != own->kv_format)
        return error_set(error, KAKEYA_FORMAT, "snapshot does not fit: K/V format is %s there and %s here",
                         kv_format_name((kv_format)found->kv_format), kv_format_name((kv_format)own->kv_format));
    return KAKEYA_OK;
}

static kakeya_status check_latents(const snapshot_latents *found, const snapshot_latents *own, kakeya_error *error) {
    const struct {
        const char *name;
        int32_t found, own;
    } fields[] = {
        {"f_theta rank of values", found->rank_v, own->rank_v},
        {"latent format", found->format, own->format},
        {"shared latent", found->shared, own->shared},
        {"tapped layers", found->taps, own->taps},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (fields[i].found != fields[i].own)
            return error_set(error, KAKEYA_FORMAT, "snapshot does not fit: %s is %d there and %d here", fields[i].name,
                             (int)fields[i].found, (int)fields[i].own);
    }
    for (int i = 0; i < own->taps; i++) {
        if (found->tap[i] != own->tap[i])
            return error_set(error, KAKEYA_FORMAT, "snapshot does not fit: tap %d is layer %d there and %d here", i,
                             (int)found->tap[i], (int)own->tap[i]);
    }
    return KAKEYA_OK;
}

kakeya_status snapshot_read_state(timeline *t, backend_read_fn read, void *user, kakeya_error *error) {
    snapshot_header header, own = header_of(t);
    const size_t start = offsetof(snapshot_header, layers); /* what every version begins with */
    kakeya_status status = read(user, &header, start, error);
    if (status) return status;
    if (header.magic != snapshot_magic)
        return error_set(error, KAKEYA_FORMAT, "snapshot is damaged: it begins with %08x", (unsigned)header.magic);
    if (header.version - SNAPSHOT_PLAIN >= SNAPSHOT_VERSIONS)
        return error_set(error, KAKEYA_UNSUPPORTED, "snapshot of version %u; this build reads versions %d to %d",
                         (unsigned)header.version, (int)SNAPSHOT_PLAIN, SNAPSHOT_PLAIN + SNAPSHOT_VERSIONS - 1);
    status = read(user, (char *)&header + start, sizeof header - start, error);
    if (!status) status = check_shape(&header, &own, error);
    if (!status && has_latents(header.version) != has_latents(own.version))
        status = error_set(error, KAKEYA_FORMAT, "snapshot does not fit: its latents are of version %u, here of %u",
                           (unsigned)header.version, (unsigned)own.version);
    if (!status && has_latents(header.version)) {
        snapshot_latents found, here = latents_of(t);
        status = read(user, &found, sizeof found, error);
        if (!status) status = check_latents(&found, &here, error);
    }
    if (status) return status;
    int n = header.state.n_runs;
    if (n < 0 || n > t->options.context_tokens)
        return error_set(error, KAKEYA_FORMAT, "snapshot is damaged: %d turns in a context of %d", n,
                         t->options.context_tokens);
    timeline_run *runs = n ? malloc((size_t)n * sizeof *runs) : NULL;
    if (n && !runs) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the history of %d turns", n);
    if (n) status = read(user, runs, (size_t)n * sizeof *runs, error);
    if (!status) status = timeline_set_state(t, &header.state, runs, error);
    if (!status && has_state(header.version)) t->state_length = t->length;
    if (!status && has_state(header.version) && t->length == 0)
        status = error_set(error, KAKEYA_FORMAT, "snapshot is damaged: a state of no positions");
    free(runs);
    return status;
}

kakeya_status snapshot_read_rows(const timeline *t, backend_cache *cache, snapshot_copy_fn copy, mem_account *account,
                                 backend_read_fn read, void *user, kakeya_error *error) {
    snapshot_walk w = {.t = t, .cache = cache, .copy = copy, .read = read, .user = user};
    w.foreign_state = t->state_length > 0 && !t->keeps_state;
    return transfer_all(&w, account, error);
}
