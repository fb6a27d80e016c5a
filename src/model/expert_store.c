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
    bool arriving;     /* it is being read ahead */
    bool ahead;        /* it was read ahead, and not wanted since */
} slot;

/* Reads of a call, and the slots that they fill. */
typedef struct fetch {
    block_read *reads; /* [most * EXPERT_PIECES] */
    int *filled;       /* [n]: slots ... */
    int n, layer;      /* ... of this layer */
    uint64_t bytes;
} fetch;

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
    int *where; /* [n_layers][experts]: slots, or NOWHERE */
    fetch now, ahead;
    int before;    /* how many of the call's list come before the first that is in no slot */
    bool in_order; /* `now` has them as the list has */
    bool waits;    /* the call wants experts that are read ahead */
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

static bool make_fetch(fetch *f, size_t most) {
    f->reads = malloc(most * EXPERT_PIECES * sizeof *f->reads);
    f->filled = malloc(most * sizeof *f->filled);
    return f->reads && f->filled;
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
    const bool made = make_fetch(&s->now, at_once) && make_fetch(&s->ahead, at_once);
    s->memory = mem_alloc(account, MEM_WEIGHTS, slots * s->slot_bytes + BLOCK_BYTES);
    if (!s->layers || !s->slot || !s->score || !s->hash || !s->where || !made || !s->memory) {
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
    kakeya_error unused;
    if (s->ahead.n > 0) (void)block_reader_wait_ahead(s->reader, &unused);
    if (s->arena) block_reader_memory(s->reader, NULL, 0, 0);
    mem_free(s->memory);
    free(s->now.filled);
    free(s->now.reads);
    free(s->ahead.filled);
    free(s->ahead.reads);
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

static void move_to(int *experts, int from, int to) {
    const int e = experts[from];
    memmove(experts + to + 1, experts + to, (size_t)(from - to) * sizeof *experts);
    experts[to] = e;
}

/* The slot of an expert that is read ahead. */
static slot *arriving(const expert_store *s, int layer, int expert) {
    for (int i = 0; i < s->ahead.n && s->ahead.layer == layer; i++)
        if (s->slot[s->ahead.filled[i]].expert == expert) return &s->slot[s->ahead.filled[i]];
    return NULL;
}

int expert_store_order(const expert_store *s, int layer, int *experts, int n) {
    int there = 0, known = 0;
    for (int i = 0; i < n; i++)
        if (*where_of(s, layer, experts[i]) != NOWHERE) move_to(experts, i, there++);
    known = there;
    for (int i = there; i < n; i++)
        if (arriving(s, layer, experts[i])) move_to(experts, i, known++);
    return there;
}

static void forget(expert_store *s, int i) {
    slot *x = &s->slot[i];
    if (x->expert != NOWHERE && !x->arriving) *where_of(s, x->layer, x->expert) = NOWHERE;
    *x = (slot){.layer = NOWHERE, .expert = NOWHERE};
}

/* The reads that fill the slots of a fetch. Those of one piece come together: neighbours in the list may be neighbours
 * in the file. */
static size_t list_reads(const expert_store *s, fetch *f) {
    size_t n = 0;
    f->bytes = 0;
    for (int first = 0; first < f->n; first += EXPERTS_TOGETHER) {
        const int end = first + EXPERTS_TOGETHER < f->n ? first + EXPERTS_TOGETHER : f->n;
        size_t room = 0; /* of the pieces before */
        for (int p = 0; p < EXPERT_PIECES; p++) {
            const expert_piece *piece = &s->layers[f->layer].piece[p];
            for (int i = first; i < end && piece->bytes; i++) {
                const int at = f->filled[i], expert = s->slot[at].expert;
                f->reads[n] = block_read_of(piece->file, piece->offset + (uint64_t)expert * piece->bytes, piece->bytes,
                                            s->arena + (size_t)at * s->slot_bytes + room);
                f->bytes += f->reads[n].bytes;
                f->reads[n++].hash = hash_of(s, f->layer, p, expert);
            }
            room += piece_room(piece);
        }
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
        if (x->wanted == s->calls || x->arriving) continue;
        const double score = *score_of(s, x->layer, x->expert);
        if (best != NOWHERE && score >= least) continue;
        best = i;
        least = score;
    }
    return best;
}

/* All that a fetch has read is there, or nothing of it. */
static void settle(expert_store *s, fetch *f, kakeya_status status) {
    for (int i = 0; i < f->n; i++) {
        const int at = f->filled[i];
        s->slot[at].arriving = false;
        *where_of(s, f->layer, s->slot[at].expert) = status ? NOWHERE : at;
        if (status) s->slot[at] = (slot){.layer = NOWHERE, .expert = NOWHERE};
    }
    if (!status) atomic_fetch_add(&s->bytes, f->bytes);
    f->n = 0;
}

static kakeya_status wait_ahead(expert_store *s, kakeya_error *error) {
    const kakeya_status status = block_reader_wait_ahead(s->reader, error);
    settle(s, &s->ahead, status);
    return status;
}

void expert_store_poll(expert_store *s) {
    if (s->now.n > 0 || s->ahead.n > 0) block_reader_poll(s->reader);
}

/* Ends reads ahead that are done. A failure is none of theirs that want something else: who wants this reads it again.
 */
static bool is_free(expert_store *s) {
    kakeya_error unused;
    if (s->ahead.n > 0 && !block_reader_is_ahead(s->reader)) (void)wait_ahead(s, &unused);
    return s->ahead.n == 0;
}

static bool is_filled(const expert_store *s, const fetch *f, int expert) {
    for (int i = 0; i < f->n; i++)
        if (s->slot[f->filled[i]].expert == expert) return true;
    return false;
}

/* Takes a slot for an expert. */
static void fill(expert_store *s, fetch *f, int at, int expert, uint64_t wanted) {
    forget(s, at);
    s->slot[at] = (slot){.layer = f->layer, .expert = expert, .wanted = wanted};
    f->filled[f->n++] = at;
}

/* Returns how many of what is wanted now were there without having been read ahead. */
static int mark_wanted(expert_store *s, int layer, const int *experts, int n) {
    int found = 0;
    s->before = n;
    s->waits = false;
    for (int i = 0; i < n; i++) {
        const int at = *where_of(s, layer, experts[i]);
        slot *x = at != NOWHERE ? &s->slot[at] : arriving(s, layer, experts[i]);
        if (!x && s->before == n) s->before = i;
        if (!x) continue;
        x->wanted = s->calls;
        s->waits |= x->arriving;
        if (!x->ahead) found++;
        x->ahead = false;
    }
    return found;
}

void expert_store_begin(expert_store *s, int layer, const int *experts, int n) {
    kakeya_error unused;
    count_uses(s, layer, experts, n);
    s->now.n = 0;
    s->now.layer = layer;
    s->in_order = true;
    const int found = mark_wanted(s, layer, experts, n); /* first of all: none of them makes room for another */
    for (int i = 0; i < n; i++) {
        if (*where_of(s, layer, experts[i]) != NOWHERE || arriving(s, layer, experts[i]) ||
            is_filled(s, &s->now, experts[i]))
            continue;
        int at = choose_slot(s);
        if (at == NOWHERE) { /* until what is read ahead is there, it makes no room */
            s->in_order = wait_ahead(s, &unused) == KAKEYA_OK;
            s->waits = false;
            i = -1; /* some may have to be read again */
            continue;
        }
        fill(s, &s->now, at, experts[i], s->calls);
    }
    atomic_fetch_add(&s->wanted, (uint64_t)n);
    atomic_fetch_add(&s->found, (uint64_t)found);
    block_reader_begin(s->reader, s->now.reads, list_reads(s, &s->now));
}

static size_t pieces_before(const expert_store *s, int piece) {
    size_t n = 0;
    for (int p = 0; p < piece; p++) n += s->layers[s->now.layer].piece[p].bytes > 0;
    return n;
}

/* The first so many of what `now` reads are there, and of all of it the first so many pieces. */
static kakeya_status wait_for_first(expert_store *s, int first, int pieces, kakeya_error *error) {
    int there = (first + EXPERTS_TOGETHER - 1) / EXPERTS_TOGETHER * EXPERTS_TOGETHER;
    const bool all = there >= s->now.n;
    if (all) there = s->now.n;
    size_t reads = (size_t)there * pieces_before(s, EXPERT_PIECES);
    if (pieces < EXPERT_PIECES && s->now.n <= EXPERTS_TOGETHER) { /* which are read piece by piece */
        there = s->now.n;
        reads = (size_t)there * pieces_before(s, pieces);
    } else if (!s->in_order || all) {
        const kakeya_status status = block_reader_wait(s->reader, error);
        settle(s, &s->now, status);
        return status;
    }
    const kakeya_status status = block_reader_wait_first(s->reader, reads, error);
    for (int i = 0; i < there && !status; i++)
        *where_of(s, s->now.layer, s->slot[s->now.filled[i]].expert) = s->now.filled[i];
    if (status) settle(s, &s->now, status);
    return status;
}

static kakeya_status wait_until(expert_store *s, int first, int pieces, kakeya_error *error) {
    const bool for_now = s->now.n > 0 && first > s->before;
    if (!for_now && !s->waits) return KAKEYA_OK;
    const double begin = clock_seconds();
    kakeya_error unused;
    kakeya_status status = s->waits ? wait_ahead(s, error) : KAKEYA_OK;
    s->waits = false;
    if (status && s->now.n > 0) settle(s, &s->now, block_reader_wait(s->reader, &unused));
    if (!status && for_now) status = wait_for_first(s, first - s->before, pieces, error);
    atomic_fetch_add(&s->nanoseconds, (uint64_t)((clock_seconds() - begin) * 1e9));
    atomic_store(&s->failing, status != KAKEYA_OK);
    if (status) atomic_fetch_add(&s->failures, 1);
    return status;
}

kakeya_status expert_store_wait(expert_store *s, int first, kakeya_error *error) {
    return wait_until(s, first, EXPERT_PIECES, error);
}

kakeya_status expert_store_wait_pieces(expert_store *s, int pieces, kakeya_error *error) {
    return wait_until(s, s->before + s->now.n, pieces, error);
}

void expert_store_expect(expert_store *s, int layer, const int *experts, int n) {
    if (!is_free(s) || layer == s->now.layer) return;
    s->ahead.layer = layer;
    for (int i = 0; i < n; i++) { /* as above */
        const int at = *where_of(s, layer, experts[i]);
        if (at != NOWHERE) s->slot[at].wanted = s->calls;
    }
    for (int i = 0; i < n; i++) {
        const int at = *where_of(s, layer, experts[i]) == NOWHERE ? choose_slot(s) : NOWHERE;
        if (at == NOWHERE) continue;
        fill(s, &s->ahead, at, experts[i], 0);
        s->slot[at].arriving = s->slot[at].ahead = true;
    }
    if (s->ahead.n == 0) return;
    block_reader_begin_ahead(s->reader, s->ahead.reads, list_reads(s, &s->ahead));
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
