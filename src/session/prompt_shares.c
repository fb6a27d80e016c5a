#include "session/prompt_shares.h"

void prompt_shares_add(prompt_shares *p, void *prompt, size_t left, int most) {
    const prompt_share added = {.prompt = prompt, .left = left, .most = left < (size_t)most ? (int)left : most};
    if (p->n == p->places && (p->n == 1 || p->share[p->n - 1].left <= left)) return;
    int at = p->n < p->places ? p->n++ : p->n - 1; /* the one with the most left goes, where all places are taken */
    for (; at > 1 && p->share[at - 1].left > left; at--) p->share[at] = p->share[at - 1];
    p->share[at] = added;
}

static int take(prompt_share *s, int budget) {
    s->tokens = s->most < budget ? s->most : budget;
    return s->tokens;
}

void prompt_shares_divide(prompt_shares *p, int budget) {
    if (!p->n) return;
    int rest = budget - take(&p->share[0], budget / 2);
    for (int i = 1; i < p->n; i++) rest -= take(&p->share[i], rest);
    (void)take(&p->share[0], rest + p->share[0].tokens);
}
