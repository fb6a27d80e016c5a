/* Segments on their way through the model together: what the pass depends on, the buffers that it needs, and the list
 * of its operations. A pass is prompts of which nothing is evicted and which are alike, one other prompt, the head of
 * last rows of the prompts before, decode rows of any number of caches that restore in the same way, or decode rows of
 * any number of other caches. */
#ifndef KAKEYA_BACKEND_CUDA_PASS_H
#define KAKEYA_BACKEND_CUDA_PASS_H

#include "backend/cuda/model.h"
#include "backend/cuda/step.h"
#include "backend/cuda/stores.h"

/* Indices of the segments of a forward that are computed together. */
typedef struct cuda_group {
    int *segment; /* [n] */
    int n;
} cuda_group;

typedef struct cuda_pass {
    backend_model *model;
    backend_segment *segments; /* of the forward */
    const cuda_group *group;
    backend_cache *cache; /* of its first segment; others differ in nothing that the list depends on */
    bool prompt;
    bool last_rows; /* prompts: some leave their last row for a head that comes later; else this is that head */
    int first_row[BACKEND_MAX_PROMPTS]; /* prompts: of each segment */
    bool side_by_side;                 /* prompts: their attention; scratch of each is behind that of those before it */
    int last_row[BACKEND_MAX_PROMPTS]; /* prompts: its place among last rows; -1: it has none */
    int rows, position;                /* rows: as launched, some of them may be nobody's; position of row 0 */
    bool attends_latents;              /* decode rows of caches that restore in this way ... */
    bool decodes_keys;                 /* ... with keys that are decoded ahead, as there are few */
    int evicted_end;                   /* prompts: positions [sink, evicted_end) are evicted; 0: none are */
    step_tap tap[2 * TIMELINE_MAX_TAPS]; /* what its caches keep of the layers' outputs */
    int taps;
    graph_key key;
    step_head head;           /* of decode rows */
    int masked;               /* decode rows that may choose among some tokens alone */
    const int32_t *tokens;    /* device: [rows] */
    float *hidden_states;     /* host, or NULL */
    const int *chosen_layers; /* as in backend_segment */
    int chosen;
    int head_first, head_rows; /* rows that the head works on */
    bool looks_ahead;          /* prompts: rows of a picture see each other in sliding layers */
    bool captured;             /* launched into a graph */
    int turns;                 /* several devices: exchanges and meetings so far */
    cudaError_t failure;       /* the first one of what the launcher was refused */
} cuda_pass;

static inline void cuda_pass_note(cuda_pass *p, cudaError_t status) {
    if (p->failure == cudaSuccess) p->failure = status;
}

/* Only the last row of a prompt is wanted: its head comes with those of others. */
static inline bool cuda_pass_leaves_last_row(const backend_segment *r) {
    return r->kind == SEGMENT_PROMPT && r->first_logit_row == r->n - 1 && (r->logits || r->argmax || r->leaders);
}

/* The segments of a forward that go first among those that are not yet `taken`, which they are then; group->segment has
 * room for all. False: none are left. Prompts come first, so that the logits of decode rows are not overwritten. */
bool cuda_pass_group(const backend_model *m, const backend_segment *segments, int n_segments,
                     bool taken[BACKEND_MAX_FORWARD], cuda_group *group);

/* The pass of these segments behind the committed rows of their caches. Grows what depends on the context; nothing of a
 * cache changes. */
kakeya_status cuda_pass_prepare(cuda_pass *p, backend_model *m, backend_segment *segments, const cuda_group *group,
                                kakeya_error *error);
/* The head of the last rows that prompts of the forward have left, in the order of the group. */
kakeya_status cuda_pass_prepare_last_rows(cuda_pass *p, backend_model *m, backend_segment *segments,
                                          const cuda_group *group, kakeya_error *error);
/* What the kernels of the pass read from device memory. */
void cuda_pass_fill(const cuda_pass *p, cuda_batch *batch);
/* The operations into model->step_ops; returns their number. */
int cuda_pass_list(const cuda_pass *p);
/* The same of the head alone. */
int cuda_pass_list_head(const cuda_pass *p);

#endif
