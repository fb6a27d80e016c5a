/* What drafts cost: cross entropy with the sequence, or KL from the verifier's own distribution of the same token. */
#include <math.h>
#include <string.h>

#include "backend/cpu/chains.h"

/* e^x for x of 0 or less, to 2 parts in 10^7: without branches, so that loops over it become vector instructions. */
static inline float exponential(float x) {
    const float log2e = 1.44269504f, high = 0.693359375f, low = -2.12194440e-4f;
    x = x > -87 ? x : -87; /* and what is no number */
    int n = (int)(x * log2e - 0.5f);
    float r = x - (float)n * high - (float)n * low;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    int bits = (n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

enum { AT_ONCE = 64 }; /* values whose float sum is one of the float64 sums */

/* A row of logits behind the soft cap. */
typedef struct row_logits {
    float *z;
    float largest;
} row_logits;

static row_logits logits_of(const chain_trainer *l, float *z, int row, float cap) {
    int n = l->c.stack.vocab;
    row_logits r = {z + (size_t)row * (size_t)n, 0};
    if (cap > 0) l->m->kernels->soft_cap(cap, n, r.z);
    r.largest = l->m->kernels->maximum(r.z, n);
    return r;
}

/* z becomes the gradient, times `scale`. */
static double entropy(const row_logits *r, int n, int target, float cap, float scale) {
    double at = (double)r->z[target], slope = cap > 0 ? 1 - at / (double)cap * (at / (double)cap) : 1, sum = 0;
    for (int from = 0; from < n; from += AT_ONCE) {
        int count = from + AT_ONCE < n ? AT_ONCE : n - from;
        float e[AT_ONCE], part = 0, *z = r->z + from;
        for (int i = 0; i < count; i++) e[i] = exponential(z[i] - r->largest);
        for (int i = 0; i < count; i++) part += e[i];
        for (int i = 0; i < count; i++) {
            float inside = cap > 0 ? z[i] / cap : 0;
            z[i] = e[i] * (1 - inside * inside);
        }
        sum += (double)part;
    }
    float each = (float)((double)scale / sum);
    for (int i = 0; i < n; i++) r->z[i] *= each;
    r->z[target] -= (float)((double)scale * slope);
    return (double)r->largest + log(sum) - at;
}

/* KL(p | q); q's row becomes the gradient, times `scale`; p's is spent. */
static double divergence(const row_logits *p, const row_logits *q, int n, float cap, float scale) {
    double apart = 0, sum[2] = {0};
    for (int from = 0; from < n; from += AT_ONCE) {
        int count = from + AT_ONCE < n ? AT_ONCE : n - from;
        float e[2][AT_ONCE], part[3] = {0};
        float *z[2] = {p->z + from, q->z + from};
        for (int i = 0; i < count; i++) e[0][i] = exponential(z[0][i] - p->largest);
        for (int i = 0; i < count; i++) e[1][i] = exponential(z[1][i] - q->largest);
        for (int i = 0; i < count; i++) {
            part[0] += e[0][i];
            part[1] += e[1][i];
            part[2] += e[0][i] * (z[0][i] - z[1][i]);
        }
        sum[0] += (double)part[0];
        sum[1] += (double)part[1];
        apart += (double)part[2];
        for (int i = 0; i < count; i++) { /* q's logits are needed no more but for the cap's slope */
            float inside = cap > 0 ? z[1][i] / cap : 0, slope = scale * (1 - inside * inside);
            z[0][i] = e[0][i] * slope;
            z[1][i] = e[1][i] * slope;
        }
    }
    float each[2] = {(float)(1 / sum[0]), (float)(1 / sum[1])};
    for (int i = 0; i < n; i++) q->z[i] = q->z[i] * each[1] - p->z[i] * each[0];
    return apart / sum[0] - ((double)p->largest + log(sum[0])) + ((double)q->largest + log(sum[1]));
}

/* ---------------------------------------------------------------------------------------------------------- rows */

typedef struct score_work {
    chain_trainer *l;
    int from; /* of the scored rows */
} score_work;

static int place_of(const chain_trainer *l, int row) { return row / l->chains; }

static double counts(const chain_trainer *l, int place) { return l->o.decay > 0 ? exp(-place / l->o.decay) : 1; }

static bool is_suppressed(const model_config *c, int token) {
    for (int i = 0; i < c->n_suppress_tokens; i++) {
        if (c->suppress_tokens[i] == token) return true;
    }
    return false;
}

/* ------------------------------------------------------------------------------------------------------ clusters */

static int tokens_of_cluster(const chain_trainer *l) { return l->c.stack.vocab / l->c.clusters; }

/* The clusters that a draft looks into: the largest logits, the lower index on ties. False: it is not among them. */
static bool is_chosen(const chain_trainer *l, const float *logits, int cluster) {
    int before = 0;
    for (int i = 0; i < l->c.clusters; i++)
        before += logits[i] > logits[cluster] || (logits[i] == logits[cluster] && i < cluster);
    return before < l->c.chosen_clusters;
}

/* What is drafted of the tokens in these clusters. */
static int choice_of_clusters(const chain_trainer *l, const float *logits, const row_logits *r) {
    int size = tokens_of_cluster(l), best = -1;
    for (int cluster = 0; cluster < l->c.clusters; cluster++) {
        if (!is_chosen(l, logits, cluster)) continue;
        for (int i = 0; i < size; i++) {
            int token = l->o.token_of[cluster * size + i];
            bool better = best < 0 || r->z[token] > r->z[best] || (r->z[token] == r->z[best] && token < best);
            if (better && !is_suppressed(l->m->config, token)) best = token;
        }
    }
    return best;
}

/* Cross entropy of the clusters with the probability that each of them holds, the verifier's (p) or all of it where the
 * target is; z becomes the gradient, times `scale`. */
static double cluster_entropy(const chain_trainer *l, const row_logits *p, int target, float scale, float *z) {
    int n = l->c.clusters, size = tokens_of_cluster(l);
    float largest = z[0];
    double sum = 0, all = 0, loss = 0;
    for (int i = 1; i < n; i++) largest = z[i] > largest ? z[i] : largest;
    for (int i = 0; i < n; i++) sum += (double)exponential(z[i] - largest);
    double base = (double)largest + log(sum);
    for (int i = 0; p && i < l->c.stack.vocab; i++) all += (double)exponential(p->z[i] - p->largest);
    for (int i = 0; i < n; i++) {
        double held = 0;
        for (int k = 0; k < size; k++) {
            int token = l->o.token_of[i * size + k];
            held += p ? (double)exponential(p->z[token] - p->largest) / all : token == target;
        }
        loss += held * (base - (double)z[i]);
        z[i] = (float)((double)scale * (exp((double)z[i] - base) - held));
    }
    return loss;
}

/* ---------------------------------------------------------------------------------------------------------- cost */

/* What is drafted: the largest logit, the lowest token on ties, but for those that the model suppresses. */
static int choice_of(const chain_trainer *l, const row_logits *r) {
    int n = l->c.stack.vocab, best = l->m->kernels->first_at_least(r->z, n, r->largest);
    if (best < n && !is_suppressed(l->m->config, best)) return best;
    best = -1;
    for (int i = 0; i < n; i++) {
        if ((best < 0 || r->z[i] > r->z[best]) && !is_suppressed(l->m->config, i)) best = i;
    }
    return best;
}

static void score_row(void *context, int row) {
    const score_work *w = context;
    chain_trainer *l = w->l;
    int at = l->scored[w->from + row], n = l->c.stack.vocab;
    int32_t target = chain_sequence(l, at)->tokens[chain_position(l, at)];
    double weigh = counts(l, place_of(l, at));
    float cap = l->c.stack.logit_softcap, scale = (float)((double)l->scale * weigh);
    float *clusters = l->c.clusters ? l->clusters + (size_t)row * (size_t)l->c.clusters : NULL;
    const row_logits q = logits_of(l, l->logits, row, cap);
    row_logits p = {0};
    if (l->o.distribution) p = logits_of(l, l->taught, row, l->m->config->logit_softcap);
    l->right[at] = (clusters ? choice_of_clusters(l, clusters, &q) : choice_of(l, &q)) == target;
    double loss = 0;
    if (clusters) loss = cluster_entropy(l, l->o.distribution ? &p : NULL, target, scale, clusters);
    loss += l->o.distribution ? divergence(&p, &q, n, cap, scale) : entropy(&q, n, target, cap, scale);
    l->loss[at] = weigh * loss;
}

static void add_up(const chain_trainer *l) {
    for (int i = 0; i < l->n_scored; i++) {
        int row = l->scored[i], place = place_of(l, row);
        drafter_trainer_result *out = chain_sequence(l, row)->result;
        out->loss += l->loss[row];
        out->counted += counts(l, place);
        out->drafts[place]++;
        out->right[place] += l->right[row];
    }
    for (int chain = 0; chain < l->chains; chain++) {
        const drafter_trainer_sequence *s = chain_sequence(l, chain);
        if (l->first[chain] + l->passes >= s->n) continue;
        int held = 0;
        while (held < l->passes && l->right[held * l->chains + chain]) held++;
        s->result->blocks++;
        s->result->held += held;
    }
}

/* The verifier's logits of the same tokens: its states are its head's input. */
static void teach(chain_trainer *l, int from, int n) {
    size_t backbone = (size_t)l->c.backbone;
    for (int i = 0; i < n; i++) {
        int row = l->scored[from + i], position = chain_position(l, row) - 1;
        memcpy(l->states + (size_t)i * backbone, chain_sequence(l, row)->aux + (size_t)position * l->seen.width,
               backbone * sizeof *l->states);
    }
    train_product(&l->products, l->states, backbone, n, &l->verifiers_head, l->taught, (size_t)l->c.stack.vocab);
}

/* From gradients of logits to those of the head, and to that of its input, in `picked`. */
static void head_back(chain_trainer *l, int n) {
    const train_products *p = &l->products;
    const assistant_weights *g = &l->gradient.weights;
    int hidden = l->c.stack.hidden, vocab = l->c.stack.vocab, clusters = l->c.clusters;
    size_t h = (size_t)hidden, v = (size_t)vocab, c = (size_t)clusters;
    train_outer_add(p, l->logits, v, vocab, l->picked, h, hidden, n, train_values(&g->stack.head));
    if (clusters) train_outer_add(p, l->clusters, c, clusters, l->picked, h, hidden, n, train_values(&g->centroids));
    train_product(p, l->logits, v, n, &l->turned.head, l->picked, h);
    if (clusters) train_product_add(p, l->clusters, c, n, &l->turned.centroids, l->picked);
}

void chain_score(chain_trainer *l, bool backward) {
    const assistant_weights *w = &l->w.weights;
    size_t hidden = (size_t)l->c.stack.hidden, vocab = (size_t)l->c.stack.vocab, clusters = (size_t)l->c.clusters;
    if (backward) memset(l->d_normed, 0, (size_t)(l->chains * l->passes) * hidden * sizeof *l->d_normed);
    for (int from = 0; from < l->n_scored; from += CHAIN_HEAD_ROWS) {
        int n = l->n_scored - from < CHAIN_HEAD_ROWS ? l->n_scored - from : CHAIN_HEAD_ROWS;
        train_pick(l->normed, l->scored + from, n, hidden, l->picked);
        train_product(&l->products, l->picked, hidden, n, &w->stack.head, l->logits, vocab);
        if (clusters) train_product(&l->products, l->picked, hidden, n, &w->centroids, l->clusters, clusters);
        if (l->o.distribution) teach(l, from, n);
        score_work work = {l, from};
        train_each(l->m, n, score_row, &work);
        if (!backward) continue;
        head_back(l, n);
        train_put(l->picked, l->scored + from, n, hidden, l->d_normed);
    }
    add_up(l);
}
