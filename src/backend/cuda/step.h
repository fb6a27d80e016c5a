/* One forward as data: the operations of a decode or prompt step in the order of their launch, what each reads and
 * writes, and what it must move. The launcher (launch.h) walks the list, directly or while a graph is captured, and the
 * profiler's parts and bounds come from it. No device is needed to make one: tests/gpu/test_step.c checks the lists of
 * all forms.
 *
 * Operations run in the order of the list, but for those that run `beside` the step on a second stream. There the order
 * is kept, too; between the two streams only STEP_FORK (what is beside waits for the step so far) and STEP_JOIN (the
 * step waits for what is beside) keep one. */
#ifndef KAKEYA_BACKEND_CUDA_STEP_H
#define KAKEYA_BACKEND_CUDA_STEP_H

#include "backend/cuda/weights.h"

typedef enum step_kind {
    STEP_TURNS = 0,     /* cosines and sines of the rows' positions; index: layer_type */
    STEP_EMBED,         /* residual stream and first input */
    STEP_HIDDEN_STATES, /* copy for the caller; index: which of layers + 1 */
    STEP_PLE_ROUND,     /* per-layer embeddings: input, product, combination with the table */
    STEP_PLE_PROJECT,
    STEP_PLE_COMBINE,
    STEP_FORK,           /* index 0: before the layers; 1: inside one */
    STEP_JOIN,           /* index: set of restore buffers */
    STEP_RESTORE_GATHER, /* latents of all segments' evicted positions, out of their rings */
    STEP_RESTORE,        /* keys and values of `source` by one product into a set of restore buffers (index) */
    STEP_RESTORE_KEYS,   /* the same by two products ... */
    STEP_RESTORE_VALUES, /* ... */
    STEP_RESTORE_FINISH, /* ... and a kernel of norms, RoPE and scales */
    STEP_RESTORE_ROWS,   /* the same from latents of all positions by one kernel */
    STEP_QKV,            /* projections; only q where K/V are shared */
    STEP_HEAD_ROWS,      /* head norms, RoPE, new K/V into the cache or the chunk buffers */
    STEP_ATTEND_LATENTS, /* decode rows of a layer that restores: evicted positions as latents, and exact ones */
    STEP_ATTEND, /* flash decoding and merge; of prompts, rows with evicted positions; index: set of restore buffers */
    STEP_PROMPT_ATTEND, /* rows that see one run of exact positions */
    STEP_STORE_CHUNK,   /* prompt rows of a ring layer from the chunk buffers into the ring */
    STEP_OUT,           /* attention's output projection */
    STEP_AFTER_ATTENTION,
    STEP_ROUTE,   /* prompts: the router */
    STEP_FETCH,   /* weights under a limit: brings the chosen experts */
    STEP_GATE_UP, /* decode: dense and chosen experts in one launch */
    STEP_DOWN,
    STEP_DENSE_GATE_UP, /* prompts: each a launch of its own */
    STEP_DENSE_DOWN,
    STEP_EXPERTS_GATE_UP,
    STEP_EXPERTS_DOWN,
    STEP_AFTER_FFN, /* index: of the tap that this is, or -1 */
    STEP_PLE_GATE,  /* per-layer embeddings behind a layer */
    STEP_PLE_ACTIVATE,
    STEP_PLE_OUT,
    STEP_PLE_ADD,
    STEP_AUX,       /* copy of the residual stream for the drafter or for latents; index: of the tap */
    STEP_KEEP,      /* copy of the states that an assistant may begin with */
    STEP_LAST_ROWS, /* prompts: rows whose head comes later */
    STEP_HEAD,      /* logits */
    STEP_ARGMAX,
    STEP_LEADERS,
    STEP_CHOOSE,   /* the greedy choice without logits */
    STEP_EXCHANGE, /* several devices: their parts become sums; index 0: behind attention, 1: behind the experts */
    STEP_MEET,     /* several devices: they wait for each other */
    STEP_KINDS
} step_kind;

/* What operations read and write beside weights. A set is an or of 1 << item. */
typedef enum step_item {
    ITEM_TURNS_SLIDING = 0,
    ITEM_TURNS_FULL,
    ITEM_H,      /* residual stream */
    ITEM_MIDDLE, /* routed models: the router's input; of decode rows also the residual stream between attention and
                    experts */
    ITEM_X,      /* normed input of the next product */
    ITEM_X_EXPERTS,
    ITEM_X_PLE,
    ITEM_ROUTE,
    ITEM_PROJECTED, /* q, k, v before norms */
    ITEM_Q,         /* queries */
    ITEM_CHUNK,     /* new K/V of prompt rows */
    ITEM_ATTENDED,
    ITEM_BRANCH, /* what a block adds to the residual stream, before its norm */
    ITEM_ACT,
    ITEM_ACT_EXPERTS,
    ITEM_EXPERTS_OUT,
    ITEM_MIXED,  /* several devices: the sum of a row's experts with their weights */
    ITEM_LAST,   /* prompts: inputs of the head of last rows, which are kept through the passes of a forward */
    ITEM_NORMED, /* hidden states behind the final norm, float32 */
    ITEM_PLE,
    ITEM_PLE_GATE,
    ITEM_KV, /* exact K/V of layer `source` in the cache; the only item that is one of each layer */
    ITEM_LATENTS,
    ITEM_GATHERED, /* latents in the order of the restore buffers */
    ITEM_RAW_KEYS, /* decoded latents before norms */
    ITEM_RAW_VALUES,
    ITEM_RESTORED_0, /* the two sets of restore buffers */
    ITEM_RESTORED_1,
    ITEM_AUX,
    ITEM_LOGITS,
    ITEM_CHOICE,
    ITEM_LEADERS,
    ITEM_STATES, /* the caller's hidden states */
    ITEM_KEPT,   /* those of caches, for an assistant */
    STEP_ITEMS
} step_item;

typedef uint64_t step_items;
#define STEP_ITEM(item) ((step_items)1 << (item))

enum { STEP_MAX_MATRICES = 3 };

typedef struct step_op {
    step_kind kind;
    int layer;           /* whose weights; -1: of no layer */
    int source;          /* layer whose K/V it reads, writes or restores; -1: none */
    int index;           /* see step_kind */
    int first_row, rows; /* of the pass */
    bool beside;         /* on the second stream */
    bool alone;          /* does not start before its predecessor has ended */
    step_items reads, writes;
    const cuda_matrix *matrix[STEP_MAX_MATRICES]; /* weights that it multiplies, in the launcher's order */
    int matrices;
    const char *part;         /* of the model, for the profiler */
    double bytes, operations; /* what it must read, and do; 0: next to nothing, or not counted */
} step_op;

/* How a layer's evicted positions become keys and values. */
typedef enum restore_form {
    RESTORE_NONE = 0, /* they do not: the layer has none, or they are gone */
    RESTORE_PRODUCT,  /* STEP_RESTORE */
    RESTORE_PRODUCTS, /* STEP_RESTORE_KEYS, _VALUES, _FINISH */
    RESTORE_ROWS,     /* STEP_RESTORE_ROWS */
    RESTORE_LATENTS,  /* they do not: decode rows attend latents (STEP_ATTEND_LATENTS), in all layers that restore */
    RESTORE_KEYS,     /* the same behind a STEP_RESTORE of keys alone */
} restore_form;

typedef enum step_head { STEP_HEAD_LOGITS = 0, STEP_HEAD_LEADERS, STEP_HEAD_GREEDY } step_head;

/* A layer whose output somebody keeps as an aux hidden state, and which one that is in rows of sessions with a
 * drafter's context and without; -1: it is not kept there. */
typedef struct step_tap {
    int layer, slot[CUDA_AUX_FORMS];
} step_tap;

/* What the list depends on. */
typedef struct step_shape {
    const model_config *config;
    const cuda_weights *weights;
    const step_tap *tap; /* [taps] */
    int taps;
    model_shard shard; /* which of several devices computes it */
    bool prompt;
    int rows, position; /* position of row 0 */
    bool hidden_states; /* the caller wants them */
    bool last_rows;     /* prompts: some are kept for a head that comes later; or the head is theirs */
    step_head head;     /* of decode rows */
    bool states;        /* some of the caches keep those that an assistant begins with */
    /* By layer, of layers with K/V of their own. */
    bool ring[MODEL_MAX_LAYERS];    /* prompt rows wait in the chunk buffers */
    bool bounded[MODEL_MAX_LAYERS]; /* evicts */
    restore_form restore[MODEL_MAX_LAYERS];
    /* By layer: prompt rows from this position on see one run of exact positions and take the prompt kernel. */
    int plain_from[MODEL_MAX_LAYERS];
    int exact_positions;    /* sink + window of bounded layers; for the profiler alone, like the next three */
    int restored_positions; /* evicted ones that the step sees of rings of latents */
    int rank_k, rank_v;
} step_shape;

/* Room that a list needs. */
int step_most_ops(const model_config *config);
/* Layers of the segments, and behind decode rows their head. Returns the number of operations. */
int step_build(const step_shape *shape, step_op *ops);
/* The head of some prompt rows, or of last rows of prompts that were kept: these are chosen from like decode rows. */
int step_build_head(const step_shape *shape, step_op *ops);
/* The most exchanges and meetings of a pass, heads of a prompt included. */
enum { STEP_MOST_TURNS = 1024 };
/* Must `later` see what `earlier` has done, or leave alone what `earlier` still needs? */
bool step_depends(const step_op *later, const step_op *earlier);

#endif
