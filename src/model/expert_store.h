/* Routed experts under a limit: an arena of equal slots, each of which holds one expert in the form in which kernels
 * read it, filled from the files that hold them. What was used least makes room; later uses count more. */
#ifndef KAKEYA_MODEL_EXPERT_STORE_H
#define KAKEYA_MODEL_EXPERT_STORE_H

#include <stdbool.h>

#include "base/alloc.h"
#include "base/block_reader.h"

/* A stream of bytes of one of a layer's stacked matrices, which has a run of the same length for each expert. */
typedef struct expert_piece {
    int file;               /* of the reader */
    uint64_t offset;        /* of expert 0's bytes; the next expert's follow */
    size_t bytes;           /* of one expert; 0: there is no such piece */
    const uint64_t *hashes; /* of each expert (block_hash), to be copied; NULL: each is taken from its first read */
} expert_piece;

enum { EXPERT_PIECES = 12 }; /* of a layer, at most: matrices times streams */

typedef struct expert_layer {
    expert_piece piece[EXPERT_PIECES];
} expert_layer;

typedef struct expert_store expert_store;

/* Bytes that a slot takes: of the layer whose experts take the most. */
size_t expert_slot_bytes(const expert_layer *layers, int n_layers);

/* reader: outlives the store. layers [n_layers]: copied. At most one slot for each expert is made. */
kakeya_status expert_store_create(block_reader *reader, const expert_layer *layers, int n_layers, int experts,
                                  size_t slots, mem_account *account, expert_store **out, kakeya_error *error);
void expert_store_destroy(expert_store *store); /* NULL is fine */

int expert_store_slots(const expert_store *store);

/* Orders a layer's `experts` [n] so that those come first which are there already, and then those that are read ahead.
 * Returns how many are there. */
int expert_store_order(const expert_store *store, int layer, int *experts, int n);

/* These experts [n] of a layer are wanted, n at most the number of slots. Those that are in slots stay there until the
 * next call; reads of the others begin. */
void expert_store_begin(expert_store *store, int layer, const int *experts, int n);
/* Reads of so many experts of a list are begun together, and end at about the same time. */
enum { EXPERTS_TOGETHER = 16 };
/* The first of them, in the order of the list, are there, all with n; the list was ordered by expert_store_order just
 * before expert_store_begin. KAKEYA_IO: one of all of them could not be read whole; none that was not is ever given
 * out. */
kakeya_status expert_store_wait(expert_store *store, int first, kakeya_error *error);
/* The first `pieces` of EXPERT_PIECES are there of all of them, or all is; expert_store_wait follows with n. */
kakeya_status expert_store_wait_pieces(expert_store *store, int pieces, kakeya_error *error);

/* These experts [n] of a layer will probably be wanted by the next call of expert_store_begin: reads of those that are
 * not there begin, after the reads of that call, unless earlier ones are still under way. They take no slot that the
 * last call wanted. What is read ahead and not wanted then is the first to make room. */
void expert_store_expect(expert_store *store, int layer, const int *experts, int n);
/* Keeps reads going while others compute. */
void expert_store_poll(expert_store *store);

/* A piece of an expert that is there; NULL where the layer has no such piece. */
const void *expert_store_piece(const expert_store *store, int layer, int expert, int piece);

/* The largest piece of the first layer's experts. */
const expert_piece *expert_store_largest(const expert_store *store);

/* Counts since the store was made; may be read by any thread. */
typedef struct expert_counts {
    uint64_t wanted, found; /* experts that forwards wanted, and those of them that were there, not only read ahead */
    uint64_t bytes;         /* that were read */
    uint64_t failures;      /* fetches that failed */
    bool failing;           /* the last fetch that read something failed */
    double seconds;         /* that were waited for reads */
} expert_counts;
expert_counts expert_store_counts(const expert_store *store);

#endif
