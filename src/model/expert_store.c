#include "model/expert_store.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { NOWHERE = -1 };

/* How much a use counts one pass over the layers later. Routers have lasting favourites, and a text has its own: of the
 * demo's answers in memory for half of its experts, this finds nine tenths of what one would find who knows the future,
 * and least recent use eight (docs/guide/larger-than-memory.md). */
static const double memory_of_uses = 0.98;
/* Scores are counted in a unit that grows instead of fading themselves; at this one all are brought back. */
static const double largest_unit = 1e100;

typedef struct slot {
    int layer, expert; /* NOWHERE: it holds nothing */
    uint64_t wanted;   /* the last call that wanted what it holds */
} slot;

struct expert_store {
    block_reader *reader;
    expert_layer *layers; /* [n_layers] */
    int n_layers, experts, slots;
    size_t slot_bytes;
    uint64_t *hash; /* [n_layers][EXPERT_PIECES][experts]: of what lies in the files; 0: not known yet */
    void *memory;   /* MEM_WEIGHTS */
    unsigned char *arena;
    slot *slot;          /* [slots] */
    double *score;       /* [n_layers][experts]: uses, recent ones more, in `unit`s */
    double unit, growth; /* growth: of the unit, with each call */
    uint64_t calls;
    int *where;          /* [n_layers][experts]: slots, or NOWHERE */
    block_read *reads;   /* [slots * EXPERT_PIECES], but at most one call's */
    int *filled;         /* [n_filled]: slots of the call under way, of ... */
    int n_filled, layer; /* ... this layer */
    uint64_t reading;    /* bytes of its reads */
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

static uint64_t *hash_of(const expert_store *s, int layer, int piece, int expert) {
    return &s->hash[((size_t)layer * EXPERT_PIECES + (size_t)piece) * (size_t)s->experts + (size_t)expert];
}

static void know_hashes(const expert_store *s) {
    for (int l = 0; l < s->n_layers; l++)
        for (int p = 0; p < EXPERT_PIECES; p++)
            if (s->layers[l].piece[p].hashes)
                memcpy(hash_of(s, l, p, 0), s->layers[l].piece[p].hashes, (size_t)s->experts * sizeof *s->hash);
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
    s->score = calloc(all, sizeof *s->score);
    s->hash = calloc(all * EXPERT_PIECES, sizeof *s->hash);
    s->where = malloc(all * sizeof *s->where);
    s->reads = malloc(at_once * EXPERT_PIECES * sizeof *s->reads);
    s->filled = malloc(at_once * sizeof *s->filled);
    s->memory = mem_alloc(account, MEM_WEIGHTS, slots * s->slot_bytes + BLOCK_BYTES);
    if (!s->layers || !s->slot || !s->score || !s->hash || !s->where || !s->reads || !s->filled || !s->memory) {
        expert_store_destroy(s);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu experts of %zu bytes", slots,
                         expert_slot_bytes(layers, n_layers));
    }
    memcpy(s->layers, layers, (size_t)n_layers * sizeof *layers);
    s->arena = (unsigned char *)(((uintptr_t)s->memory + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES);
    for (size_t i = 0; i < all; i++) s->where[i] = NOWHERE;
    for (size_t i = 0; i < slots; i++) s->slot[i] = (slot){.layer = NOWHERE, .expert = NOWHERE};
    s->unit = 1;
    s->growth = exp(-log(memory_of_uses) / n_layers);
    know_hashes(s);
    block_reader_memory(reader, s->arena, slots * s->slot_bytes, s->slot_bytes);
    *out = s;
    return KAKEYA_OK;
}

void expert_store_destroy(expert_store *s) {
    if (!s) return;
    if (s->arena) block_reader_memory(s->reader, NULL, 0, 0);
    mem_free(s->memory);
    free(s->filled);
    free(s->reads);
    free(s->where);
    free(s->hash);
    free(s->score);
    free(s->slot);
    free(s->layers);
    free(s);
}

int expert_store_slots(const expert_store *s) { return s->slots; }

static double *score_of(const expert_store *s, int layer, int expert) {
    return &s->score[(size_t)layer * (size_t)s->experts + (size_t)expert];
}

static int *where_of(const expert_store *s, int layer, int expert) {
    return &s->where[(size_t)layer * (size_t)s->experts + (size_t)expert];
}

int expert_store_order(const expert_store *s, int layer, int *experts, int n) {
    int there = 0;
    for (int i = 0; i < n; i++) {
        if (*where_of(s, layer, experts[i]) == NOWHERE) continue;
        const int e = experts[i];
        memmove(experts + there + 1, experts + there, (size_t)(i - there) * sizeof *experts);
        experts[there++] = e;
    }
    return there;
}

static void forget(expert_store *s, int i) {
    if (s->slot[i].expert != NOWHERE) *where_of(s, s->slot[i].layer, s->slot[i].expert) = NOWHERE;
    s->slot[i].layer = s->slot[i].expert = NOWHERE;
}

/* The reads that fill the slots of the call under way. Those of one piece come together: neighbours in the list may be
 * neighbours in the file. */
static size_t list_reads(const expert_store *s, block_read *out) {
    size_t n = 0, room = 0; /* of the pieces before */
    for (int p = 0; p < EXPERT_PIECES; p++) {
        const expert_piece *piece = &s->layers[s->layer].piece[p];
        if (piece->bytes == 0) continue;
        for (int i = 0; i < s->n_filled; i++) {
            const int at = s->filled[i], expert = s->slot[at].expert;
            out[n] = block_read_of(piece->file, piece->offset + (uint64_t)expert * piece->bytes, piece->bytes,
                                   s->arena + (size_t)at * s->slot_bytes + room);
            out[n++].hash = hash_of(s, s->layer, p, expert);
        }
        room += piece_room(piece);
    }
    return n;
}

static void count_uses(expert_store *s, int layer, const int *experts, int n) {
    s->calls++;
    s->unit *= s->growth;
    if (s->unit > largest_unit) {
        for (size_t i = 0; i < (size_t)s->n_layers * (size_t)s->experts; i++) s->score[i] /= s->unit;
        s->unit = 1;
    }
    for (int i = 0; i < n; i++) *score_of(s, layer, experts[i]) += s->unit;
}

/* An empty slot, or the one whose expert was used least, of those that this call does not want. */
static int choose_slot(const expert_store *s) {
    int best = NOWHERE;
    double least = 0;
    for (int i = 0; i < s->slots; i++) {
        const slot *x = &s->slot[i];
        if (x->expert == NOWHERE) return i;
        if (x->wanted == s->calls) continue;
        const double score = *score_of(s, x->layer, x->expert);
        if (best != NOWHERE && score >= least) continue;
        best = i;
        least = score;
    }
    return best;
}

void expert_store_begin(expert_store *s, int layer, const int *experts, int n) {
    count_uses(s, layer, experts, n);
    s->n_filled = 0;
    s->layer = layer;
    for (int i = 0; i < n; i++) { /* first of all, so that none of them makes room for another */
        int at = *where_of(s, layer, experts[i]);
        if (at != NOWHERE) s->slot[at].wanted = s->calls;
    }
    for (int i = 0; i < n; i++) {
        if (*where_of(s, layer, experts[i]) != NOWHERE) continue;
        int at = choose_slot(s);
        forget(s, at);
        s->slot[at] = (slot){.layer = layer, .expert = experts[i], .wanted = s->calls};
        s->filled[s->n_filled++] = at;
    }
    const size_t n_reads = list_reads(s, s->reads);
    atomic_fetch_add(&s->wanted, (uint64_t)n);
    atomic_fetch_add(&s->found, (uint64_t)(n - s->n_filled));
    s->reading = 0;
    for (size_t i = 0; i < n_reads; i++) s->reading += s->reads[i].bytes;
    block_reader_begin(s->reader, s->reads, n_reads);
}

kakeya_status expert_store_wait(expert_store *s, kakeya_error *error) {
    if (s->n_filled == 0) return KAKEYA_OK;
    const double begin = clock_seconds();
    kakeya_status status = block_reader_wait(s->reader, error);
    atomic_fetch_add(&s->nanoseconds, (uint64_t)((clock_seconds() - begin) * 1e9));
    atomic_store(&s->failing, status != KAKEYA_OK);
    for (int i = 0; i < s->n_filled; i++) {
        const int at = s->filled[i];
        if (status)
            s->slot[at].layer = s->slot[at].expert = NOWHERE;
        else
            *where_of(s, s->layer, s->slot[at].expert) = at;
    }
    s->n_filled = 0;
    if (status)
        atomic_fetch_add(&s->failures, 1);
    else
        atomic_fetch_add(&s->bytes, s->reading);
    return status;
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
