#include "model/expert_store.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { NOWHERE = -1 };

/* Slots in the order of their last use, as a ring through slot 0's place before the first: `slots` itself. */
typedef struct slot {
    int layer, expert; /* NOWHERE: it holds nothing */
    int newer, older;
} slot;

struct expert_store {
    block_reader *reader;
    expert_layer *layers; /* [n_layers] */
    int n_layers, experts, slots;
    size_t slot_bytes;
    void *memory; /* MEM_WEIGHTS */
    unsigned char *arena;
    slot *slot;        /* [slots + 1]; the last is the ring's end */
    int *where;        /* [n_layers][experts]: slots, or NOWHERE */
    block_read *reads; /* [slots * EXPERT_PIECES], but at most one call's */
    int *filled;       /* [slots]: of the call under way */
    atomic_uint_fast64_t wanted, found, bytes, failures, nanoseconds;
    atomic_bool failing;
};

/* Where whole blocks are what an expert's bytes are, they need no more room than they are. */
static size_t piece_room(const expert_piece *p) {
    if (p->bytes == 0) return 0;
    if (p->offset % BLOCK_BYTES == 0 && p->bytes % BLOCK_BYTES == 0) return p->bytes;
    return (p->bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES;
}

size_t expert_slot_bytes(const expert_layer *layers, int n_layers) {
    size_t most = 0;
    for (int l = 0; l < n_layers; l++) {
        size_t bytes = 0;
        for (int p = 0; p < EXPERT_PIECES; p++) bytes += piece_room(&layers[l].piece[p]);
        if (bytes > most) most = bytes;
    }
    return most;
}

static void unlink_slot(expert_store *s, int i) {
    s->slot[s->slot[i].newer].older = s->slot[i].older;
    s->slot[s->slot[i].older].newer = s->slot[i].newer;
}

static void make_newest(expert_store *s, int i) {
    slot *end = &s->slot[s->slots];
    s->slot[i].newer = s->slots;
    s->slot[i].older = end->older;
    s->slot[end->older].newer = i;
    end->older = i;
}

kakeya_status expert_store_create(block_reader *reader, const expert_layer *layers, int n_layers, int experts,
                                  size_t slots, mem_account *account, expert_store **out, kakeya_error *error) {
    *out = NULL;
    const size_t all = (size_t)n_layers * (size_t)experts;
    if (slots > all) slots = all;
    expert_store *s = calloc(1, sizeof *s);
    if (!s) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a list of experts");
    *s = (expert_store){.reader = reader, .n_layers = n_layers, .experts = experts, .slots = (int)slots};
    const size_t at_once = slots < (size_t)experts ? slots : (size_t)experts;
    s->slot_bytes = expert_slot_bytes(layers, n_layers);
    s->layers = malloc((size_t)n_layers * sizeof *s->layers);
    s->slot = malloc((slots + 1) * sizeof *s->slot);
    s->where = malloc(all * sizeof *s->where);
    s->reads = malloc(at_once * EXPERT_PIECES * sizeof *s->reads);
    s->filled = malloc(at_once * sizeof *s->filled);
    s->memory = mem_alloc(account, MEM_WEIGHTS, slots * s->slot_bytes + BLOCK_BYTES);
    if (!s->layers || !s->slot || !s->where || !s->reads || !s->filled || !s->memory) {
        expert_store_destroy(s);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu experts of %zu bytes", slots,
                         expert_slot_bytes(layers, n_layers));
    }
    memcpy(s->layers, layers, (size_t)n_layers * sizeof *layers);
    s->arena = (unsigned char *)(((uintptr_t)s->memory + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES);
    for (size_t i = 0; i < all; i++) s->where[i] = NOWHERE;
    s->slot[slots] = (slot){NOWHERE, NOWHERE, (int)slots, (int)slots};
    for (size_t i = 0; i < slots; i++) {
        s->slot[i] = (slot){.layer = NOWHERE, .expert = NOWHERE};
        make_newest(s, (int)i);
    }
    *out = s;
    return KAKEYA_OK;
}

void expert_store_destroy(expert_store *s) {
    if (!s) return;
    mem_free(s->memory);
    free(s->filled);
    free(s->reads);
    free(s->where);
    free(s->slot);
    free(s->layers);
    free(s);
}

int expert_store_slots(const expert_store *s) { return s->slots; }

static int *where_of(const expert_store *s, int layer, int expert) {
    return &s->where[(size_t)layer * (size_t)s->experts + (size_t)expert];
}

void expert_store_order(const expert_store *s, int layer, int *experts, int n) {
    int there = 0;
    for (int i = 0; i < n; i++) {
        if (*where_of(s, layer, experts[i]) == NOWHERE) continue;
        const int e = experts[i];
        memmove(experts + there + 1, experts + there, (size_t)(i - there) * sizeof *experts);
        experts[there++] = e;
    }
}

static void forget(expert_store *s, int i) {
    if (s->slot[i].expert != NOWHERE) *where_of(s, s->slot[i].layer, s->slot[i].expert) = NOWHERE;
    s->slot[i].layer = s->slot[i].expert = NOWHERE;
}

/* The reads that fill a slot with an expert. */
static size_t list_reads(const expert_store *s, int layer, int expert, int at, block_read *out) {
    unsigned char *to = s->arena + (size_t)at * s->slot_bytes;
    size_t n = 0;
    for (int p = 0; p < EXPERT_PIECES; p++) {
        const expert_piece *piece = &s->layers[layer].piece[p];
        if (piece->bytes == 0) continue;
        out[n++] = block_read_of(piece->file, piece->offset + (uint64_t)expert * piece->bytes, piece->bytes, to);
        to += piece_room(piece);
    }
    return n;
}

static kakeya_status fill(expert_store *s, int layer, int n_filled, size_t n_reads, kakeya_error *error) {
    const double begin = clock_seconds();
    kakeya_status status = block_reader_run(s->reader, s->reads, n_reads, error);
    uint64_t bytes = 0;
    for (size_t i = 0; i < n_reads; i++) bytes += s->reads[i].bytes;
    atomic_fetch_add(&s->nanoseconds, (uint64_t)((clock_seconds() - begin) * 1e9));
    if (status) {
        atomic_fetch_add(&s->failures, 1);
        atomic_store(&s->failing, true);
        for (int i = 0; i < n_filled; i++) forget(s, s->filled[i]);
        return status;
    }
    atomic_store(&s->failing, false);
    atomic_fetch_add(&s->bytes, bytes);
    for (int i = 0; i < n_filled; i++) *where_of(s, layer, s->slot[s->filled[i]].expert) = s->filled[i];
    return KAKEYA_OK;
}

kakeya_status expert_store_fetch(expert_store *s, int layer, const int *experts, int n, kakeya_error *error) {
    int n_filled = 0;
    size_t n_reads = 0;
    for (int i = 0; i < n; i++) { /* first of all, so that none of them makes room for another */
        int at = *where_of(s, layer, experts[i]);
        if (at == NOWHERE) continue;
        unlink_slot(s, at);
        make_newest(s, at);
    }
    for (int i = 0; i < n; i++) {
        if (*where_of(s, layer, experts[i]) != NOWHERE) continue;
        int at = s->slot[s->slots].newer; /* the oldest */
        forget(s, at);
        s->slot[at].layer = layer;
        s->slot[at].expert = experts[i];
        unlink_slot(s, at);
        make_newest(s, at);
        s->filled[n_filled++] = at;
        n_reads += list_reads(s, layer, experts[i], at, s->reads + n_reads);
    }
    atomic_fetch_add(&s->wanted, (uint64_t)n);
    atomic_fetch_add(&s->found, (uint64_t)(n - n_filled));
    return n_filled ? fill(s, layer, n_filled, n_reads, error) : KAKEYA_OK;
}

const void *expert_store_piece(const expert_store *s, int layer, int expert, int piece) {
    const expert_piece *wanted = &s->layers[layer].piece[piece];
    if (wanted->bytes == 0) return NULL;
    const unsigned char *at = s->arena + (size_t)*where_of(s, layer, expert) * s->slot_bytes;
    for (int p = 0; p < piece; p++) at += piece_room(&s->layers[layer].piece[p]);
    return at + (wanted->offset + (uint64_t)expert * wanted->bytes) % BLOCK_BYTES;
}

expert_counts expert_store_counts(const expert_store *s) {
    return (expert_counts){.wanted = atomic_load(&s->wanted),
                           .found = atomic_load(&s->found),
                           .bytes = atomic_load(&s->bytes),
                           .failures = atomic_load(&s->failures),
                           .failing = atomic_load(&s->failing),
                           .seconds = (double)atomic_load(&s->nanoseconds) / 1e9};
}

const expert_piece *expert_store_largest(const expert_store *s) {
    const expert_piece *largest = &s->layers[0].piece[0];
    for (const expert_piece *p = largest; p < s->layers[0].piece + EXPERT_PIECES; p++)
        if (p->bytes > largest->bytes) largest = p;
    return largest;
}
