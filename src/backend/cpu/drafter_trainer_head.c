/* What drafts cost, and the gradient that this begins with. */
#include <math.h>
#include <string.h>

#include "backend/cpu/backward.h"
#include "backend/cpu/drafter_trainer.h"

typedef struct score_work {
    const backend_drafter_trainer *l;
    int from; /* of the scored rows */
    double *loss;
    bool *right;
} score_work;

static int place_of(const backend_drafter_trainer *l, int row) { return row % l->c.block_size - 1; }

static double counts(const backend_drafter_trainer *l, int place) {
    return l->o.decay > 0 ? exp(-place / l->o.decay) : 1;
}

static void score_row(void *context, int row) {
    const score_work *w = context;
    const backend_drafter_trainer *l = w->l;
    int vocab = l->c.vocab, at = l->scored[w->from + row], best = -1;
    int32_t target = l->tokens[l->position[at]];
    float *z = l->logits + (size_t)row * (size_t)vocab;
    for (int i = 0; i < vocab; i++) {
        if (i != l->c.mask_token && (best < 0 || z[i] > z[best])) best = i; /* the mask is never proposed */
    }
    double weigh = counts(l, place_of(l, at));
    if (l->c.logit_softcap > 0) l->m->kernels->soft_cap(l->c.logit_softcap, vocab, z);
    w->loss[at] =
        weigh * backward_cross_entropy(z, vocab, target, l->c.logit_softcap, (float)((double)l->scale * weigh));
    w->right[at] = best == target;
}

static void add_up(const backend_drafter_trainer *l, const double *loss, const bool *right,
                   drafter_trainer_result *out) {
    int block = l->c.block_size;
    for (int i = 0; i < l->n_scored; i++) {
        int row = l->scored[i], place = place_of(l, row);
        out->loss += loss[row];
        out->counted += counts(l, place);
        out->drafts[place]++;
        out->right[place] += right[row];
    }
    for (int b = 0; b < l->blocks; b++) {
        if (l->first[b] + block > l->length) continue;
        int held = 0;
        while (held < block - 1 && right[b * block + 1 + held]) held++;
        out->blocks++;
        out->held += held;
    }
}

void drafter_trainer_score(backend_drafter_trainer *l, drafter_trainer_result *out) {
    size_t hidden = (size_t)l->c.hidden;
    double *loss = (double *)(void *)l->branch; /* [N] doubles fit where [N][H] floats do: H is even */
    bool *right = (bool *)(loss + l->rows);
    train_norm(drafter_trainer_norms(l, l->rows), l->last, l->w.norm, NULL, l->final_x);
    if (l->backward) memset(l->d_x, 0, (size_t)l->rows * hidden * sizeof *l->d_x);
    for (int from = 0; from < l->n_scored; from += DRAFTER_TRAINER_HEAD_ROWS) {
        int n = l->n_scored - from < DRAFTER_TRAINER_HEAD_ROWS ? l->n_scored - from : DRAFTER_TRAINER_HEAD_ROWS;
        train_pick(l->final_x, l->scored + from, n, hidden, l->picked);
        train_product(&l->products, l->picked, hidden, n, &l->head, l->logits, (size_t)l->c.vocab);
        score_work work = {l, from, loss, right};
        train_each(l->m, n, score_row, &work);
        if (!l->backward) continue;
        train_product(&l->products, l->logits, (size_t)l->c.vocab, n, &l->head_t, l->picked, hidden);
        train_put(l->picked, l->scored + from, n, hidden, l->d_x);
    }
    add_up(l, loss, right, out);
    if (!l->backward) return;
    memset(l->d_h, 0, (size_t)l->rows * hidden * sizeof *l->d_h);
    train_norm_back(drafter_trainer_norms(l, l->rows), l->last, l->w.norm, l->d_x, l->d_h, l->gradient.norm);
}
