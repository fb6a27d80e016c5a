/* Experts under a limit on weights: all of them lie in page-locked memory of the host, and those in use in slots of an
 * arena on the device. The device looks up, evicts and copies by itself, between a layer's router and its products, so
 * that a step needs no answer from the host and stays one graph.
 *
 * Decode passes of up to CUDA_DECODE_ROWS rows find an expert in any slot: the route's `active` experts become slots.
 * Kernels of larger passes and of prompts count experts by their number: there expert e is brought to slot e, from
 * another slot or from the host. What the host gave is then kept in a slot behind those as well, where it has been used
 * more than what lies there.
 *
 * What makes room is what was used least, where a use counts less with each pass (model/expert_store.c). Slots are put
 * in that order once in a pass. First those make room that count less than one use and that the pass has not used, then
 * those that such slots have become, then the others. No expert that a layer has chosen makes room for another one of
 * its choice: there are as many slots as a layer has experts, or more.
 *
 * The link to the host would be idle from the end of a layer's copies to the next layer's lookup. So while a decode
 * pass computes that, one expert is copied ahead: the most probable of those that the next layer will choose and that
 * are in no slot. Which that is the next layer's router says of this layer's residual stream. A guess that was wrong
 * has cost time on the link, and its slot is the first to make room. */
#ifndef KAKEYA_BACKEND_CUDA_EXPERT_CACHE_H
#define KAKEYA_BACKEND_CUDA_EXPERT_CACHE_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CUDA_EXPERT_NOWHERE = -1 };

/* Since the model was made. */
typedef struct cuda_expert_counts {
    uint64_t wanted, found; /* experts that layers chose, once in a pass, and those that were in a slot by no guess */
    uint64_t bytes;         /* that were copied from the host */
    uint64_t nanoseconds;   /* that copies took */
} cuda_expert_counts;

/* An expert that is to be copied. */
typedef struct cuda_expert_copy {
    int expert, from; /* from: its slot; NOWHERE: from the host */
    int to, also;     /* slots; also: NOWHERE, or a second one */
} cuda_expert_copy;

typedef struct cuda_expert_state {
    uint64_t lookups, first; /* so far, and before this pass */
    uint64_t begun;          /* the device's clock, when the last lookup ended */
    cuda_expert_counts counts;
    unsigned passes;
    unsigned finished; /* blocks that are done copying; zero between launches */
    int few;           /* slots, the first of the order, that count less than one use */
    int next, again;   /* place in the order; again: the first ones have been walked through in this pass */
    int copies;
    int guess;              /* layer * experts + expert + 1 of what is copied ahead for the next lookup; 0: nothing */
    cuda_expert_copy ahead; /* its copy; no expert: nothing */
    unsigned predicted;     /* blocks that have made their logits; zero between launches */
} cuda_expert_state;

/* Of layers whose experts take as many bytes as each other. All pointers but `counts` are the device's. */
typedef struct cuda_expert_cache {
    int experts, slots;                 /* of a layer; of the arena */
    uint64_t gate_up_bytes, down_bytes; /* of an expert, multiples of 16 */
    unsigned char *gate_up, *down;      /* the arena: [slots][bytes] each */
    int *slot_of;                       /* [layers][experts]; NOWHERE: in none */
    int *owner;                         /* [slots]: layer * experts + expert; NOWHERE: nobody */
    uint64_t *used;                     /* [slots]: the last lookup that wanted it */
    float *score;                       /* [layers][experts]: uses, in pass `scored` */
    unsigned *scored;                   /* [layers][experts] */
    int *order;                         /* [slots]: those that make room first come first */
    cuda_expert_copy *copies;           /* [experts] */
    float *likely;                      /* [CUDA_DECODE_ROWS][experts]: the next layer's logits, nearly */
    cuda_expert_state *state;
    cuda_expert_counts *counts; /* the host's, written behind each layer's copies */
} cuda_expert_cache;

/* Empty slots. */
void cuda_expert_clear(const cuda_launch *l, const cuda_expert_cache *c, int layers);
/* A pass begins: puts slots in order. Before the first lookup of each pass. */
void cuda_expert_order(const cuda_launch *l, const cuda_expert_cache *c);
/* Behind a router, of `rows` rows (prompt: of a prompt): finds slots for the layer's chosen experts, and writes what is
 * to be copied. The route's active experts become slots in decode passes of up to CUDA_DECODE_ROWS rows. */
void cuda_expert_find(const cuda_launch *l, const cuda_expert_cache *c, const cuda_route *route, int layer, bool prompt,
                      int rows);
/* Copies it. gate_up, down: the layer's experts in the host's memory, [experts][bytes]. Either may be NULL: then only
 * the others are copied, by few blocks, so that products run beside; `down` last. The launch that follows must not be
 * programmatic: products request weights before they wait. */
void cuda_expert_copy_in(const cuda_launch *l, const cuda_expert_cache *c, const void *gate_up, const void *down);

/* What the next layer's router is asked. */
typedef struct cuda_expert_outlook {
    const float *x;            /* [rows][hidden]: the residual stream behind this layer's attention */
    const float *router_scale; /* [hidden], as the next two the next layer's */
    const cuda_bf16 *router;   /* [experts][ld] */
    int ld, hidden, rank;      /* rank: the most likely ones, one of which is copied */
    float eps;
} cuda_expert_outlook;

/* Behind a lookup, before the next one of the same pass, which is `layer`'s: guesses an expert that it will miss, of up
 * to CUDA_DECODE_ROWS rows, and finds a slot for it that this pass has not used. */
void cuda_expert_predict(const cuda_launch *l, const cuda_expert_cache *c, const cuda_expert_outlook *o, int layer,
                         int rows);
/* Copies it. gate_up, down: of the guess's layer. To end before that layer's products; leaves most of the device to
 * others. */
void cuda_expert_copy_ahead(const cuda_launch *l, const cuda_expert_cache *c, const void *gate_up, const void *down);

#ifdef __cplusplus
}
#endif

#endif
