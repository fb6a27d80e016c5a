/* One operation of a list (backend/program/program.h): what it computes, of which items, with which slots. Nothing here
 * knows a model, so that machines in another language can read lists. */
#ifndef KAKEYA_BACKEND_PROGRAM_OP_H
#define KAKEYA_BACKEND_PROGRAM_OP_H

#include <stdbool.h>
#include <stdint.h>

typedef enum op_kind {
    OP_EMBED = 0,       /* tokens -> rows of a table, times `scale` */
    OP_PRODUCTS,        /* up to three matrices over the same input */
    OP_EXPERT_PRODUCTS, /* every row's chosen experts; slots: one matrix, or the second and third in its place */
    OP_ROUTE,           /* logits of the router -> each row's experts and their weights */
    OP_HEADS,           /* norms, RoPE and scales of q, k and v, head by head */
    OP_STORE,           /* new K/V into the stores of `layer`; index: a store_time */
    OP_RESTORE,         /* evicted positions of layer `source`: latents -> keys and values */
    OP_ATTEND,          /* queries over K/V of layer `source` */
    OP_ROWS,            /* a row program: everything that happens to a row between two products */
    OP_TAP,             /* somebody looks at an item; index: a tap_reason */
    OP_LOGITS,
    OP_CHOOSE,   /* greedy choices */
    OP_AGREE,    /* several devices: their parts of an item become its sum */
    OP_POOL,     /* pictures: means over squares of `parts` x `parts` patches */
    OP_CLUSTERS, /* logits of centroids -> the clusters of the head whose logits are computed; width: how many */
    OP_KINDS
} op_kind;

/* What operations read and write: values of rows. */
typedef enum program_item {
    DATA_NONE = 0,
    DATA_TOKENS,
    DATA_H,         /* residual stream */
    DATA_X,         /* normed input of the next product */
    DATA_X_EXPERTS, /* the same of the experts ... */
    DATA_X_ROUTER,  /* ... and of the router */
    DATA_ROUTER,    /* its logits */
    DATA_ROUTE,     /* each row's experts and their weights */
    DATA_Q,
    DATA_K,
    DATA_V,
    DATA_NEW_KV, /* the rows' keys and values in their stored form */
    DATA_KV,     /* the stores; like the next two one of each layer */
    DATA_LATENTS,
    DATA_RESTORED,
    DATA_ATTENDED,
    DATA_BRANCH, /* what a block adds to the residual stream */
    DATA_ACT,
    DATA_ACT_EXPERTS,
    DATA_EXPERTS_OUT,
    DATA_MIXED, /* several devices: the sum of a row's experts with their weights */
    DATA_PLE,   /* per-layer inputs: `layers` parts a row */
    DATA_PLE_GATE,
    DATA_NORMED, /* behind the final norm: the head's input */
    DATA_LOGITS,
    DATA_CHOICE,
    DATA_PATCHES,   /* of a picture: values of pixels */
    DATA_POOLED,    /* of a picture: a row for every row that the text model is given ... */
    DATA_SOFT,      /* ... and those rows */
    DATA_OUTSIDE,   /* what a tap fills */
    DATA_PAIR,      /* assistants: the embedding of a row's token, and behind it ... */
    DATA_STATE,     /* ... the row's state, which is the second half of the pair */
    DATA_CENTROIDS, /* their logits */
    DATA_CLUSTERS,  /* each row's chosen ones */
    PROGRAM_ITEMS
} program_item;

/* Instructions of a row program. Registers hold a row each. */
typedef enum row_verb {
    ROW_LOAD = 0, /* into = row of `item`, whose memory it may use up unless something is stored there again */
    ROW_LOOKUP,   /* into = part of the row of table `slot` that the row's token names */
    ROW_MIX,      /* into = sum of `item`'s experts, by DATA_ROUTE's weights, in the order of their ranks */
    /* `item`, where it is named: the result is stored there, too */
    ROW_NORM,     /* into = from / rms(from) * vector `slot` (none: ones) */
    ROW_ADD,      /* into += from */
    ROW_SCALE,    /* into *= scalar, or the number in `slot` */
    ROW_MULTIPLY, /* into *= vector `slot` */
    ROW_GATED,    /* into = gelu_tanh(into) * from */
    ROW_SHIFT,    /* into += scalar * vector `slot` (none: ones) */
    ROW_CENTRE,   /* into = (from - mean) / deviation * vector `slot` + vector `part`: a layer norm with bias */
    ROW_VERBS
} row_verb;

enum { ROW_REGISTERS = 4, ROW_MAX_STEPS = 16, ROW_OWN_PART = 0xffff };

typedef struct row_step {
    uint8_t verb, item, into, from;
    uint16_t slot;
    uint16_t
        part; /* ROW_LOAD: of an item with several parts a row; ROW_OWN_PART: the part that the program is run for */
    float scalar;
} row_step;

/* What happens to the heads of q, of k or of v. */
typedef struct head_rule {
    uint8_t item; /* DATA_NONE: there are none */
    bool norm, rope;
    uint16_t slot; /* of the norm; 0: ones */
    float scale;   /* behind both */
    bool stored;   /* goes into the stores */
} head_rule;

typedef enum op_epilogue { EPILOGUE_NONE = 0, EPILOGUE_GATED } op_epilogue; /* gelu_tanh(first) * second, in place */

/* Prompt rows of a ring wait until nobody attends what they overwrite. Machines that compute both row classes in one
 * list store each row at its own time. */
typedef enum store_time { STORE_BEFORE_ATTENTION = 0, STORE_BEHIND_READERS } store_time;

typedef enum tap_reason {
    TAP_STATES = 0, /* hidden states for the caller; part: which of layers + 1 */
    TAP_AUX,        /* outputs of layers that the drafter or f_theta reads */
    TAP_TRAINING,   /* training looks at an item (part: 0 raw keys, 1 raw values), or, with DATA_H, at the layer that
                    has been computed */
    TAP_RAW,        /* diagnostics keep raw keys and values */
    TAP_RECODE,     /* comparisons of formats put other values in the place of new keys and values */
    TAP_STATE,      /* the state that an assistant begins with: a committed row behind the final norm */
    TAP_REASONS
} tap_reason;

enum { PROGRAM_INPUTS = 4, PROGRAM_OUTPUTS = 4, PROGRAM_MATRICES = 3 };

typedef struct program_op {
    uint8_t kind, epilogue, index;
    uint8_t in[PROGRAM_INPUTS], out[PROGRAM_OUTPUTS]; /* items, DATA_NONE behind the last one */
    int16_t layer, source;                            /* layer: whose weights; source: whose K/V; -1: none */
    int16_t part, parts; /* OP_TAP: see there; OP_ROWS: it is run for each of a row's parts */
    uint16_t slot[PROGRAM_MATRICES];
    int width;  /* OP_ROWS: values of a register; OP_HEADS, OP_ATTEND: of a head */
    int window; /* OP_ATTEND: a row sees itself and window - 1 positions before it; 0: all of them */
    float scale;
    bool exact;   /* OP_PRODUCTS: the input is not rounded, at any precision */
    bool clipped; /* OP_PRODUCTS: inputs and outputs are clamped to each matrix's bounds */
    bool before;  /* OP_ATTEND: a row sees what a row at its position sees, without itself */
    head_rule head[3];
    int steps;
    row_step step[ROW_MAX_STEPS];
} program_op;

#endif
