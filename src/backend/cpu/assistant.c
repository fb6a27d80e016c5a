#include "backend/cpu/assistant.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "backend/cpu/attention.h"
#include "backend/cpu/experts.h"
#include "backend/cpu/head.h"
#include "backend/cpu/matrix.h"
#include "backend/cpu/rope.h"
#include "backend/cpu/row_program.h"
#include "backend/segments.h"
#include "base/float16.h"

/* Rows of the items of the list, BACKEND_MAX_SEGMENTS of each. */
struct assistant_space {
    program_op *ops;
    int n_ops;
    float *pair; /* [2 * backbone] */
    float *h, *x, *branch, *normed;
    float *q;               /* [heads * largest head dimension] */
    float *act;             /* [2 * largest intermediate] */
    float *centroids;       /* [clusters] */
    int *chosen;            /* [chosen clusters] */
    float *cluster_logits;  /* [chosen clusters * tokens of one] */
    packed_rows in, act_in; /* inputs of products; of those that read act */
    head_screen screen;     /* of a head without clusters */
};

/* A pass in work. */
typedef struct pass {
    backend_model *m;
    const assistant_config *config;
    int rows;
    backend_draft_request *request[BACKEND_MAX_SEGMENTS]; /* of each row */
    attention_segment segment[BACKEND_MAX_SEGMENTS];
    int32_t token[BACKEND_MAX_SEGMENTS];  /* that is drafted behind */
    int32_t choice[BACKEND_MAX_SEGMENTS]; /* and the draft */
    const assistant_trace *trace;         /* of a pass of one row, or NULL */
    int draft;                            /* its number in the chain */
} pass;

static int tokens_of_cluster(const assistant_config *c) { return c->stack.vocab / c->clusters; }

/* ------------------------------------------------------------------------------------------------------ memory */

static int larger(int a, int b) { return a > b ? a : b; }

typedef struct widths {
    int q, act, in, act_in;
} widths;

static widths widths_of(const assistant_config *c) {
    widths w = {.in = larger(2 * c->backbone, c->stack.hidden)};
    for (int i = 0; i < c->stack.layers; i++) {
        w.q = larger(w.q, c->stack.heads * c->stack.layer[i].head_dim);
        w.act_in = larger(w.act_in, c->stack.layer[i].intermediate);
    }
    w.act = 2 * w.act_in;
    w.in = larger(w.in, w.q);
    return w;
}

static kakeya_status allocate(backend_model *m, void *target, size_t bytes, kakeya_error *error) {
    void *memory = bytes ? mem_alloc(m->account, MEM_WORKSPACE, bytes) : NULL;
    memcpy(target, &memory, sizeof memory);
    if (memory || !bytes) return KAKEYA_OK;
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the assistant needs another %zu bytes", bytes);
}

static void packings_of(const backend_model *m, packing_set *in, packing_set *act) {
    const assistant_weights *w = &m->options.assistant->weights;
    *in = packing_of(m, &w->pre_projection) | packing_of(m, &w->post_projection) | packing_of(m, &w->centroids) |
          packing_of(m, &w->stack.head);
    *act = 0;
    for (int i = 0; i < m->options.assistant->config.stack.layers; i++) {
        const layer_weights *l = &w->stack.layer[i];
        *in |= packing_of(m, &l->q_proj) | packing_of(m, &l->o_proj) | packing_of(m, &l->gate_proj) |
               packing_of(m, &l->up_proj);
        *act |= packing_of(m, &l->down_proj);
    }
}

kakeya_status assistant_create(backend_model *m, kakeya_error *error) {
    const assistant_config *c = &m->options.assistant->config;
    struct assistant_space *s = NULL;
    kakeya_status status = allocate(m, &m->assistant, sizeof *s, error);
    if (status) return status;
    s = m->assistant;
    memset(s, 0, sizeof *s);
    const widths w = widths_of(c);
    const size_t rows = BACKEND_MAX_SEGMENTS, row = rows * sizeof(float), hidden = (size_t)c->stack.hidden;
    const size_t chosen = (size_t)c->chosen_clusters;
    const struct {
        void *target;
        size_t bytes;
    } buffers[] = {
        {&s->ops, (size_t)program_most_assistant_ops(c) * sizeof *s->ops},
        {&s->pair, row * 2 * (size_t)c->backbone},
        {&s->h, row * hidden},
        {&s->x, row * hidden},
        {&s->branch, row * hidden},
        {&s->normed, row * hidden},
        {&s->q, row * (size_t)w.q},
        {&s->act, row * (size_t)w.act},
        {&s->centroids, row * (size_t)c->clusters},
        {&s->chosen, rows * sizeof(int) * chosen},
        {&s->cluster_logits, c->clusters ? row * chosen * (size_t)tokens_of_cluster(c) : 0},
    };
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0] && !status; i++)
        status = allocate(m, buffers[i].target, buffers[i].bytes, error);
    packing_set in, act;
    packings_of(m, &in, &act);
    if (!status) status = packed_rows_create(m, &s->in, (int)rows, w.in, in, error);
    if (!status) status = packed_rows_create(m, &s->act_in, (int)rows, w.act_in, act, error);
    if (!status) s->n_ops = program_assistant(c, m->config, s->ops);
    return status;
}

void assistant_screen(backend_model *m) {
    const assistant_model *a = m->options.assistant;
    if (a && !a->config.clusters &&
        a->config.stack.hidden <= m->config->hidden) /* what the pool's threads have room for */
        head_screen_create(m, &a->weights.stack.head, &m->assistant->screen);
}

size_t assistant_head_bytes(const backend_model *m) {
    const weight *head = &m->options.assistant->weights.stack.head;
    return head_screen_bytes(m, head, &m->assistant->screen);
}

void assistant_destroy(backend_model *m) {
    struct assistant_space *s = m->assistant;
    if (!s) return;
    void *buffers[] = {s->ops, s->pair, s->h,         s->x,      s->branch,        s->normed,
                       s->q,   s->act,  s->centroids, s->chosen, s->cluster_logits};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) mem_free(buffers[i]);
    head_screen_destroy(m, &s->screen);
    packed_rows_destroy(&s->in);
    packed_rows_destroy(&s->act_in);
    mem_free(s);
    m->assistant = NULL;
}

static float *item_of(const backend_model *m, program_item item) {
    const struct assistant_space *s = m->assistant;
    switch (item) {
    case DATA_PAIR:
        return s->pair;
    case DATA_STATE:
        return s->pair + m->options.assistant->config.backbone;
    case DATA_H:
        return s->h;
    case DATA_X:
        return s->x;
    case DATA_Q:
    case DATA_ATTENDED:
        return s->q;
    case DATA_BRANCH:
        return s->branch;
    case DATA_ACT:
        return s->act;
    case DATA_NORMED:
        return s->normed;
    case DATA_CENTROIDS:
        return s->centroids;
    default:
        return NULL;
    }
}

/* --------------------------------------------------------------------------------------------------- operations */

static void run_embed(pass *p, const program_op *o) {
    backend_model *m = p->m;
    const weight *embed = program_matrix(m->weights, o->slot[0]);
    float scale = m->input == INPUT_BF16 ? bf16_to_f32(f32_to_bf16(o->scale)) : o->scale; /* as the verifier's */
    int backbone = p->config->backbone;
    for (int row = 0; row < p->rows; row++) {
        float *to = m->assistant->pair + (size_t)row * 2 * (size_t)backbone;
        load_row(m, embed, p->token[row], 0, backbone, to);
        m->kernels->scale(scale, backbone, to);
    }
}

/* From row to row of what a product gives. */
static size_t stride_of(const pass *p, program_item item, bool gated, int out) {
    if (item == DATA_STATE) return 2 * (size_t)p->config->backbone;
    return (size_t)(gated ? 2 * out : out);
}

static void run_products(pass *p, const program_op *o) {
    backend_model *m = p->m;
    const assistant_weights *weights = &m->options.assistant->weights;
    bool act = o->in[0] == DATA_ACT, gated = o->epilogue == EPILOGUE_GATED;
    packed_rows *packed = act ? &m->assistant->act_in : &m->assistant->in;
    program_item out = (program_item)o->out[0];
    const weight *w[PROGRAM_MATRICES];
    matrix_job jobs[PROGRAM_MATRICES];
    packing_set packings = 0;
    int n = 0;
    for (; n < PROGRAM_MATRICES && o->slot[n]; n++) {
        w[n] = program_assistant_matrix(weights, o->slot[n]);
        packings |= packing_of(m, w[n]);
    }
    pack(m, packed, item_of(m, (program_item)o->in[0]), (size_t)w[0]->in * (act ? 2 : 1), p->rows, w[0]->in, packings);
    for (int i = 0; i < n; i++)
        jobs[i] = matrix_product(packed, p->rows, w[i], item_of(m, out) + (size_t)i * (size_t)w[i]->out,
                                 stride_of(p, out, gated, w[i]->out));
    matrix_run(m, jobs, n);
    if (gated) activate(m, item_of(m, out), p->rows, w[0]->out);
}

static void run_heads(pass *p, const program_op *o) {
    backend_model *m = p->m;
    const assistant_config *c = p->config;
    const head_rule *rule = &o->head[0];
    const rope_table *rope = &m->rope[c->stack.layer[o->layer].type];
    const float *norm = program_vector(&m->options.assistant->weights.stack, rule->slot);
    int d = o->width;
    for (int row = 0; row < p->rows; row++) {
        size_t angle = (size_t)p->segment[row].position * (size_t)rope->pairs;
        float *q = m->assistant->q + (size_t)row * (size_t)(c->stack.heads * d);
        for (int h = 0; h < c->stack.heads; h++, q += d) {
            m->kernels->rms_norm(q, norm, d, c->stack.rms_eps, q);
            m->kernels->rope(q, rope->half, rope->pairs, rope->cosine + angle, rope->sine + angle);
        }
    }
}

static void run_attend(pass *p, const program_op *o) {
    const attention_queries queries = {
        .q = p->m->assistant->q, .heads = p->config->stack.heads, .layer = o->source, .before = o->before};
    attention_run(p->m, &queries, p->segment, p->rows, false);
}

static void run_rows(pass *p, const program_op *o) {
    const row_place place = {item_of, &p->m->options.assistant->weights.stack, p->config->stack.rms_eps};
    row_program_run(p->m, &place, o, p->token, p->rows);
}

/* The largest logits' clusters, the lower index on ties. */
static void run_clusters(pass *p, const program_op *o) {
    const struct assistant_space *s = p->m->assistant;
    int clusters = p->config->clusters, most = o->width;
    for (int row = 0; row < p->rows; row++) {
        const float *logits = s->centroids + (size_t)row * (size_t)clusters;
        int *chosen = s->chosen + (size_t)row * (size_t)most, n = 0;
        for (int c = 0; c < clusters; c++) {
            if (n == most && !(logits[c] > logits[chosen[n - 1]])) continue;
            int at = n < most ? n++ : n - 1;
            for (; at > 0 && logits[c] > logits[chosen[at - 1]]; at--) chosen[at] = chosen[at - 1];
            chosen[at] = c;
        }
    }
}

/* --------------------------------------------------------------------------------------------------------- choice */

static bool is_suppressed(const backend_model *m, int32_t token) {
    for (int i = 0; i < m->config->n_suppress_tokens; i++)
        if (m->config->suppress_tokens[i] == token) return true;
    return false;
}

/* Through the int8 bounds of the head, as the model's own greedy choices: the drafts are the same. */
static void choose_of_all(pass *p, const weight *head, const float *x) {
    backend_model *m = p->m;
    const greedy_head by = {.head = head, .screen = &m->assistant->screen};
    if (p->trace && p->trace->logits) {
        size_t vocab = (size_t)p->config->stack.vocab;
        pack(m, &m->assistant->in, x, (size_t)head->in, 1, head->in, packing_of(m, head));
        matrix_job job = matrix_product(&m->assistant->in, 1, head, p->trace->logits + (size_t)p->draft * vocab, vocab);
        matrix_run(m, &job, 1);
    }
    const head_limits limits = {.excluded = m->config->suppress_tokens, .n_excluded = m->config->n_suppress_tokens};
    head_choose_by(m, &by, &m->assistant->in, x, p->rows, &limits, p->choice);
}

typedef struct cluster_job {
    const pass *p;
    const weight *head;
} cluster_job;

/* Items are (row, chosen cluster) pairs. */
static void cluster_products(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const cluster_job *job = context;
    const struct assistant_space *s = job->p->m->assistant;
    const assistant_config *c = job->p->config;
    int size = tokens_of_cluster(c);
    for (size_t i = begin; i < end; i++) {
        weight rows = weight_rows(job->head, s->chosen[i] * size, size);
        multiply_packed(job->p->m, &rows, &s->in, (int)(i / (size_t)c->chosen_clusters), 1,
                        s->cluster_logits + i * (size_t)size, (size_t)size);
    }
}

static void trace_clusters(const pass *p) {
    const struct assistant_space *s = p->m->assistant;
    const assistant_config *c = p->config;
    int size = tokens_of_cluster(c), n = c->chosen_clusters * size, vocab = c->stack.vocab;
    if (!p->trace || !p->trace->logits) return;
    float *to = p->trace->logits + (size_t)p->draft * (size_t)vocab, least = INFINITY;
    for (int i = 0; i < n; i++) least = fminf(least, s->cluster_logits[i]);
    for (int i = 0; i < vocab; i++) to[i] = least - 1;
    for (int i = 0; i < n; i++)
        to[p->m->options.assistant->weights.token_of[s->chosen[i / size] * size + i % size]] = s->cluster_logits[i];
}

static void choose_of_clusters(pass *p, const weight *head, const float *x) {
    backend_model *m = p->m;
    const struct assistant_space *s = m->assistant;
    const assistant_config *c = p->config;
    const int32_t *token_of = m->options.assistant->weights.token_of;
    int size = tokens_of_cluster(c);
    cluster_job job = {p, head};
    pack(m, &m->assistant->in, x, (size_t)head->in, p->rows, head->in, packing_of(m, head));
    thread_pool_for(m->pool, (size_t)(p->rows * c->chosen_clusters), 1, cluster_products, &job);
    trace_clusters(p);
    for (int row = 0; row < p->rows; row++) {
        const int *chosen = s->chosen + (size_t)row * (size_t)c->chosen_clusters;
        const float *logits = s->cluster_logits + (size_t)row * (size_t)(c->chosen_clusters * size);
        float best = -INFINITY;
        bool finite = true;
        int32_t choice = -1;
        for (int i = 0; i < c->chosen_clusters * size; i++) {
            int32_t token = token_of[chosen[i / size] * size + i % size];
            finite &= isfinite(logits[i]);
            if (logits[i] < best || (logits[i] == best && token > choice) || is_suppressed(m, token)) continue;
            best = logits[i];
            choice = token;
        }
        p->choice[row] = finite ? choice : -1;
    }
}

static void run_choose(pass *p, const program_op *o) {
    backend_model *m = p->m;
    const weight *head = program_assistant_matrix(&m->options.assistant->weights, o->slot[0]);
    (p->config->clusters ? choose_of_clusters : choose_of_all)(p, head, item_of(m, (program_item)o->in[0]));
}

/* ----------------------------------------------------------------------------------------------------------- chain */

typedef void (*op_kernel)(pass *p, const program_op *o);

static void run_list(pass *p) {
    static const op_kernel kernels[OP_KINDS] = {
        [OP_EMBED] = run_embed, [OP_PRODUCTS] = run_products, [OP_HEADS] = run_heads,   [OP_ATTEND] = run_attend,
        [OP_ROWS] = run_rows,   [OP_CLUSTERS] = run_clusters, [OP_CHOOSE] = run_choose,
    };
    const struct assistant_space *s = p->m->assistant;
    for (int i = 0; i < s->n_ops; i++) kernels[s->ops[i].kind](p, &s->ops[i]);
}

/* Longest chains first, so that a pass works on the first rows of the one before. */
static void arrange(pass *p, backend_draft_request *requests, int n) {
    for (int drafts = BACKEND_MAX_DRAFT; drafts > 0; drafts--) {
        for (int i = 0; i < n; i++)
            if (requests[i].n == drafts) p->request[p->rows++] = &requests[i];
    }
    size_t backbone = (size_t)p->config->backbone;
    for (int row = 0; row < p->rows; row++) {
        backend_cache *c = p->request[row]->cache;
        p->segment[row] = (attention_segment){
            .cache = c, .first_row = row, .rows = 1, .position = c->t.length, .kind = SEGMENT_DECODE};
        p->token[row] = p->request[row]->bonus;
        memcpy(p->m->assistant->pair + (size_t)(2 * row + 1) * backbone, c->state, backbone * sizeof(float));
    }
}

static void run_chain(pass *p) {
    size_t backbone = (size_t)p->config->backbone;
    int most = p->request[0]->n;
    for (p->draft = 0; p->draft < most; p->draft++) {
        while (p->request[p->rows - 1]->n <= p->draft) p->rows--;
        run_list(p);
        for (int row = 0; row < p->rows; row++) {
            p->request[row]->drafts[p->draft] = p->choice[row];
            p->token[row] = p->choice[row] < 0 ? 0 : p->choice[row]; /* what follows such a draft is not used */
        }
        if (p->trace && p->trace->states)
            memcpy(p->trace->states + (size_t)p->draft * backbone, item_of(p->m, DATA_STATE), backbone * sizeof(float));
    }
}

static kakeya_status draft(backend_model *m, backend_draft_request *requests, int n, const assistant_trace *trace,
                           kakeya_error *error) {
    int furthest = 0;
    for (int i = 0; i < n; i++) furthest = larger(furthest, requests[i].cache->t.length + 1);
    kakeya_status status = KAKEYA_OK;
    for (int type = 0; type < 2 && !status; type++) {
        if (m->rope[type].inverse_frequency)
            status = rope_table_reserve(m, &m->rope[type], furthest + ATTENTION_BLOCK, error);
    }
    if (status) return status;
    pass p = {.m = m, .config = &m->options.assistant->config, .trace = trace};
    arrange(&p, requests, n);
    run_chain(&p);
    return KAKEYA_OK;
}

kakeya_status assistant_draft(backend_model *m, backend_draft_request *requests, int n, kakeya_error *error) {
    return draft(m, requests, n, NULL, error);
}

static const timeline *timeline_of(const backend_cache *c) { return &c->t; }

kakeya_status assistant_chain(backend_cache *cache, int32_t bonus, int n, int32_t *drafts, const assistant_trace *trace,
                              kakeya_error *error) {
    backend_draft_request request = {
        .cache = cache, .drafter = BACKEND_ASSISTANT, .bonus = bonus, .n = n, .drafts = drafts};
    kakeya_status status = backend_check_drafts(cache->model->config, &request, 1, timeline_of, error);
    return status ? status : draft(cache->model, &request, 1, trace, error);
}
