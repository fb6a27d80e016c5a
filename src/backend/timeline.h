/* The rules of K/V memory: what a session keeps, what each row sees of it, and what a backend has to do to its stores
 * at every step. Pure state and plans: no device, no values, no stores. Backends own the stores (allocate, resize,
 * address, copy) and ask here for everything else, so that all of them keep the same rows and give the same tokens.
 *
 * What every policy keeps
 *   L: committed positions. W: the model's sliding window. w, s, d: --window, --sink, --draft-window.
 *   ring(x): x + KV_RING_SLACK positions, rounded up to KV_RING_STEP. Position p lies in slot p % capacity.
 *   pages [a, b): memory for positions a to b in pages of KV_PAGE_POSITIONS.
 *
 *   policy               | full-attention layers | sliding layers           | latents      | drafter
 *   ---------------------+-----------------------+--------------------------+--------------+---------
 *   native               | pages [0, L)          | ring(W)                  | none         | ring(d')
 *   ---------------------+-----------------------+--------------------------+--------------+---------
 *   sink-window          | pages [0, L)          | sink [0, s), and         | none         | ring(d')
 *                        |                       | ring(W) in a prompt,     |              |
 *                        |                       | ring(min(w, W)) in an    |              |
 *                        |                       | answer                   |              |
 *   ---------------------+-----------------------+--------------------------+--------------+---------
 *   restored             | pages [0, L)          | as sink-window           | ring(W)      | ring(d')
 *   ---------------------+-----------------------+--------------------------+--------------+---------
 *   restored, all layers | sink [0, s), and      | as sink-window           | pages [0, L) | ring(d')
 *                        | pages [L - w - 16, L) |                          |              |
 *
 *   For an assistant every policy keeps one row more, the state of the last committed position (behind the final norm),
 *   and says whether it is known: a truncation forgets it.
 *
 *   d' is the smaller of d and the drafter layer's own sliding window. Layers that share the K/V of an earlier layer
 *   keep nothing. K = V layers keep V alone. The drafter's context is kept on request, and always under `restored`.
 *
 * What a row at position t sees (timeline_sees), inside the layer's causal or sliding mask
 *   A layer that is not bounded: everything, exactly.
 *   A bounded layer: [0, s) exactly, from the sink; then evicted positions up to E, from latents or not at all; then
 *   everything from E to t exactly. E = t - w + 1 for decode rows. For prompt rows E is the frontier: the E of the last
 *   decode row before them, 0 without one. The rule speaks of positions alone. A store may hold more than a row sees.
 *
 * Eviction happens in the commit that keeps the first decode rows of a turn: rings move to their size for answers.
 * Until then the larger rings stay, so that a block of which nothing is kept leaves no trace. A prompt behind decode
 * rows moves them back to ring(W), with what they still hold.
 *
 * One forward, for all of its segments, takes five steps in this order:
 *
 *   1. plan: timeline_plan for every segment. Refusals come from here; nothing has changed.
 *
 *   2. reserve: the backend allocates what the plans ask for (pages, rings) and tables of its own, and calls
 *      timeline_reserve. If something fails, it gives back what it has reserved; no timeline has changed.
 *
 *   3. begin: for every segment, rows move into larger rings, a row is set aside, waiting rows are flushed; then
 *      timeline_begin. From here on nothing fails.
 *
 *   4. compute: the rows read the timeline as it is after timeline_begin.
 *
 *   5. mark: timeline_computed; the rows are pending.
 *
 * Behind it come timeline_plan_commit, the copies that it asks for, and timeline_commit. */
#ifndef KAKEYA_BACKEND_TIMELINE_H
#define KAKEYA_BACKEND_TIMELINE_H

#include <stdbool.h>

#include "backend/backend.h"
#include "backend/latent_row.h"

enum {
    KV_RING_SLACK = 16,     /* a rejected block must not overwrite what the accepted length still needs */
    KV_RING_STEP = 16,      /* rings are whole multiples of so many positions */
    KV_PAGE_POSITIONS = 64, /* stores that grow do so by pages */
    TIMELINE_MAX_TAPS = BLOCK_DRAFTER_MAX_TARGETS + MODEL_MAX_LAYERS,
    KV_BACKLOG = 32, /* committed rows that may wait for one batched extension of what follows them */
};

/* Positions of the ring that serves a window. */
static inline int kv_ring_positions(int window) {
    return (window + KV_RING_SLACK + KV_RING_STEP - 1) / KV_RING_STEP * KV_RING_STEP;
}

/* Pages that hold positions [0, positions). */
static inline int kv_pages(int positions) { return (positions + KV_PAGE_POSITIONS - 1) / KV_PAGE_POSITIONS; }

/* Positions [begin, end); empty where begin >= end. */
typedef struct position_range {
    int begin, end;
} position_range;

static inline bool range_is_empty(position_range r) { return r.begin >= r.end; }

/* ------------------------------------------------------------------------------------------------ what is kept */

typedef enum store_kind { STORE_NONE = 0, STORE_RING, STORE_PAGES } store_kind;

/* Exact K/V of one verifier layer. */
typedef struct timeline_layer {
    store_kind kind;              /* STORE_NONE: the layer attends an earlier layer's K/V */
    int values;                   /* of a row of K or V: kv_heads * head_dim */
    kv_format format;             /* of the stored rows */
    size_t head_bytes, row_bytes; /* of the K or V of one head, and of all heads, at one position */
    bool has_keys;                /* false: K = V, keys are derived from the stored values */
    bool bounded;                 /* evicts; positions below the sink lie in a store of their own */
    bool restored;                /* evicted positions are seen through latents */
    int latent_head;              /* first of the layer's heads in a row of v_norm scalars; -1: not restored */
} timeline_layer;

/* The drafter's context K/V of one drafter layer: a ring. */
typedef struct timeline_draft_layer {
    int window;   /* context positions that a block attends */
    int capacity; /* ring(window) */
} timeline_draft_layer;

/* A run of committed decode rows: one answer. */
typedef struct timeline_run {
    int32_t begin, end;
} timeline_run;

/* The models that a timeline is made for; drafter and f_theta may be NULL. They outlive it. */
typedef struct timeline_models {
    const model_config *verifier;
    const block_drafter_config *drafter;
    const restoration_config *restoration;
    const assistant_config *assistant; /* or NULL, as the two before it */
} timeline_models;

/* Backends read all fields and write none. */
typedef struct timeline {
    /* --- fixed when it is made */
    timeline_models models;
    backend_cache_options options; /* as asked for, but keep_draft_context says whether one is kept */
    timeline_layer layer[MODEL_MAX_LAYERS];
    kv_format draft_format;               /* of the drafter's context */
    int prompt_capacity, decode_capacity; /* of the rings of sliding layers */
    store_kind latents;                   /* how latents are kept; STORE_NONE: not at all */
    bool latents_from_tokens;             /* they come from the drafter's pass over the tokens, not from its context */
    bool latents_from_aux;                /* they come from aux hidden states themselves; no drafter is needed */
    latent_row latent;                    /* a row of them */
    int latent_heads;                     /* v_norm scalars of a row of latents */
    int latent_capacity;                  /* of a latent ring */
    timeline_draft_layer draft[BLOCK_DRAFTER_MAX_LAYERS];
    bool keeps_state;           /* of the last committed position, for an assistant */
    bool keeps_backlog;         /* committed rows wait: for the drafter's context, for latents, or for both */
    int taps;                   /* layers whose outputs make a row of aux hidden states: the drafter's in its order, */
    int tap[TIMELINE_MAX_TAPS]; /* then those that f_theta alone reads */
    int restoration_tap[MODEL_MAX_LAYERS]; /* where f_theta's tapped layers lie among them */

    /* --- committed state */
    int length;
    int ring_capacity;        /* of the rings of sliding layers now: prompt_capacity or decode_capacity */
    int ring_from;            /* they hold positions [ring_from, length) */
    int first_page, end_page; /* pages of full-attention layers that exist; latent pages are [0, end_page) */
    int draft_length;   /* positions [0, draft_length) have left the backlog, for the drafter's context or latents */
    int draft_from;     /* oldest position whose context K/V are valid */
    int latent_length;  /* positions [0, latent_length) have latents ... */
    int latent_from;    /* ... of which a ring holds those from here on */
    int state_length;   /* the state is that of position state_length - 1; 0: none is known */
    timeline_run *runs; /* [n_runs] ascending, never adjacent */
    int n_runs, max_runs;

    /* --- between a forward and its commit */
    int pending; /* rows [length, length + pending) are computed */
    segment_kind pending_kind;
    int reserved_capacity; /* of the rings that wait beside the present ones; 0: none */
    int set_aside;         /* position whose ring row the pending rows have overwritten and a drop needs; -1: none */
    int pending_latents;   /* latent_length once a pending row is kept */
} timeline;

/* The options against the models: KAKEYA_INVALID_ARGUMENT or KAKEYA_UNSUPPORTED, naming the option. */
kakeya_status timeline_check(const timeline_models *models, const backend_cache_options *options, kakeya_error *error);
/* Checks the options and lays out an empty timeline. It owns its history of turns: timeline_destroy gives that back. */
kakeya_status timeline_create(timeline *t, const timeline_models *models, const backend_cache_options *options,
                              kakeya_error *error);
void timeline_destroy(timeline *t); /* also of a zeroed or failed one */
/* A timeline as it is when a session of `positions` tokens (1 or more) has begun to answer, for computing sizes. It
 * takes the options as they are, knows no turns and owns nothing. */
timeline timeline_preview(const timeline_models *models, const backend_cache_options *options, int positions);
/* `copy` becomes a timeline like `t`, which has nothing pending. */
kakeya_status timeline_copy(timeline *copy, const timeline *t, kakeya_error *error);

/* Rows of a decode segment, at most. A block longer than the window would need latents of rows beside it. */
int timeline_decode_rows(const timeline *t);

/* ---------------------------------------------------------------------------------------------- what a row sees */

typedef struct timeline_view {
    position_range sink;    /* exact, in the sink's own store; bounded layers only */
    position_range evicted; /* through latents where the layer is restored, otherwise not at all */
    position_range exact;
} timeline_view;

/* What a row of this kind at `position` (pending, or next) sees of the K/V of `layer`, a layer with a store. */
timeline_view timeline_sees(const timeline *t, int layer, segment_kind kind, int position);

/* Prompt rows behind the committed ones find positions [sink, frontier) evicted. */
int timeline_frontier(const timeline *t);

/* Context positions that a block of the drafter behind the committed rows sees in a drafter layer, before that layer's
 * own sliding window. */
position_range timeline_draft_context(const timeline *t, int draft_layer);

/* ------------------------------------------------------------------------------------------------- one forward */

typedef struct timeline_step {
    segment_kind kind;
    int n, position; /* rows [position, position + n) */

    /* reserve */
    int end_page;      /* stores that grow need pages up to here */
    int ring_capacity; /* of the rings that the rows are computed in; reserved where not the timeline's */
    int kept_capacity; /* the same for the rings behind a commit that keeps rows; reserved where not ring_capacity */

    /* begin, in this order */
    position_range moved;          /* ring rows that move where ring_capacity changes */
    int set_aside;                 /* position whose ring row is to be saved, for all rings; -1: none */
    position_range flushed;        /* committed rows that leave the backlog for the drafter's context (and latents) */
    position_range prompt_latents; /* this turn's prompt: its latents are made in one pass over its tokens */

    /* compute */
    int stored; /* the last so many rows of the step are written to rings; the others would be overwritten anyway */
} timeline_step;

/* What a forward of n rows needs. Changes nothing. KAKEYA_INVALID_ARGUMENT: rows are pending, too many decode rows, or
 * the timeline is spoilt (timeline_min_truncate); KAKEYA_CONTEXT_FULL. */
kakeya_status timeline_plan(const timeline *t, segment_kind kind, int n, timeline_step *step, kakeya_error *error);
/* Makes room in the history of turns: the only memory that a forward needs here. Changes nothing else. */
kakeya_status timeline_reserve(timeline *t, const timeline_step *step, kakeya_error *error);
void timeline_begin(timeline *t, const timeline_step *step);
void timeline_computed(timeline *t, const timeline_step *step);

/* Rows of n that the drafter's context (and latents that are made of it) must be computed for: the others would be
 * overwritten anyway. For a timeline that keeps a drafter's context. */
int timeline_context_rows(const timeline *t, int n);
/* Bytes of K or V of one position in one drafter layer. For a timeline whose models have a drafter. */
size_t timeline_draft_row_bytes(const timeline *t);
/* Bytes of a row of aux hidden states: float32 [taps][hidden]. */
size_t timeline_aux_row_bytes(const timeline *t);
/* Bytes of a state: float32 [hidden]. */
size_t timeline_state_bytes(const timeline *t);
/* The state is known and that of the last committed position: an assistant can draft. */
bool timeline_has_state(const timeline *t);
/* What an assistant's row at position length sees of the K/V of a layer: what a decode row there sees, without itself,
 * and without what is evicted. */
timeline_view timeline_assistant_sees(const timeline *t, int layer);
/* Rows of n whose latents are kept. */
int timeline_latent_rows(const timeline *t, int n);

/* Before a draft: the rows that leave the backlog. timeline_flushed says that they have. */
position_range timeline_flush(const timeline *t);
void timeline_flushed(timeline *t);

/* ------------------------------------------------------------------------------------------ commit and truncate */

typedef struct timeline_keep {
    int n;
    int ring_capacity; /* the reserved rings of this size replace the present ones; 0: reserved rings are given back */
    position_range moved; /* rows that move into them */
    int put_back;         /* position whose ring row returns from where it was set aside; -1: none */
} timeline_keep;

/* Keeping n of the pending rows: all or none of a prompt, the first n of a block. KAKEYA_INVALID_ARGUMENT otherwise. A
 * dropped block leaves no trace. A dropped prompt may have overwritten ring rows that its predecessors need: then the
 * timeline is spoilt, and refuses everything but its end. Afterwards pages outside [first_page, end_page) are to be
 * given back. */
kakeya_status timeline_plan_commit(const timeline *t, int n, timeline_keep *keep, kakeya_error *error);
void timeline_commit(timeline *t, const timeline_keep *keep);

/* The smallest length that timeline_truncate can go back to: everything that a row behind it may see is still held.
 * length + 1 for a spoilt timeline: it cannot go on, and its tokens have to be computed again in a new one. */
int timeline_min_truncate(const timeline *t);
/* Drops committed positions from `length` on. KAKEYA_INVALID_ARGUMENT with rows pending, or outside min_truncate to
 * length. Afterwards pages outside [first_page, end_page) are to be given back. */
kakeya_status timeline_truncate(timeline *t, int length, kakeya_error *error);

/* ----------------------------------------------------------------------------------------------- stored ranges */

/* Positions that the stores hold of the committed rows; what a snapshot saves. */
position_range timeline_layer_held(const timeline *t, int layer); /* without the sink */
position_range timeline_sink_held(const timeline *t);
position_range timeline_latents_held(const timeline *t);
position_range timeline_draft_held(const timeline *t, int draft_layer);
position_range timeline_backlog_held(const timeline *t);

/* The committed state but for the runs, in the order of a snapshot. */
typedef struct timeline_state {
    int32_t length, ring_capacity, ring_from, first_page, draft_length, draft_from, latent_length, latent_from, n_runs;
} timeline_state;

timeline_state timeline_get_state(const timeline *t);
/* Takes over a state and its runs. KAKEYA_FORMAT, with the timeline unchanged, for one that this timeline cannot have
 * come to. */
kakeya_status timeline_set_state(timeline *t, const timeline_state *state, const timeline_run *runs,
                                 kakeya_error *error);

#endif
