/* Training of MTP assistants: the gradient of every tensor against numerical differentiation, through whole chains; the
 * loss is that of the logits which the engine's assistant has, and its drafts are what a trainer finds right; the same
 * bits for any number of threads. */
#include <math.h>
#include <stdlib.h>

#include "unit/assistant_pair.h"

#include "backend/backend_train.h"
#include "model/assistant_values.h"
#include "model/tensors.h"
#include "train/seen.h"

enum { LENGTH = 40, CHAINS = 5, DRAFTS = 4 };
static const double decay = 3;

typedef struct school {
    pair p;
    const backend_train_ops *ops;
    backend_drafter_trainer *trainer;
    assistant_config config;
    assistant_seen seen;
    size_t n;
    float *weights, *gradient, *states;
    int32_t tokens[LENGTH];
    bool distribution;
} school;

typedef struct reading {
    school *s;
    size_t n;
} reading;

static kakeya_status read_slot(void *context, const tensor_slot *slot, kakeya_error *error) {
    (void)error;
    reading *r = context;
    const char *at = (const char *)&r->s->p.assistant->weights + slot->offset;
    float *to = r->s->weights + r->n;
    if (slot->kind == SLOT_IGNORED) return KAKEYA_OK;
    r->n += (size_t)tensor_slot_elements(slot);
    if (slot->kind == SLOT_MATRIX) {
        const weight *w = (const weight *)(const void *)at;
        const int32_t *token_of = r->s->p.assistant->weights.token_of;
        bool ordered = token_of && slot->offset == offsetof(assistant_weights, stack.head);
        for (int row = 0; row < w->out; row++)
            r->s->ops->weight_row(r->s->p.backend, w, row,
                                  to + (size_t)(ordered ? token_of[row] : row) * (size_t)w->in);
    } else if (slot->kind == SLOT_VECTOR) {
        memcpy(to, *(const float *const *)(const void *)at, (size_t)tensor_slot_elements(slot) * sizeof *to);
    } else {
        memcpy(to, at, sizeof *to);
    }
    return KAKEYA_OK;
}

static void tap(void *user, const train_layer *layer) {
    school *s = user;
    seen_take(&s->seen, s->p.verifier, layer, s->states);
}

/* What the verifier says of the sequence, in two forwards. */
static void listen(school *s) {
    backend_cache *cache = open_cache(&s->p, &native, KV_FORMAT_F32);
    REQUIRE_OK(s->ops->forward(s->p.backend, cache, s->tokens, 23, tap, s, error));
    REQUIRE_OK(s->ops->forward(s->p.backend, cache, s->tokens + 23, LENGTH - 23, tap, s, error));
    s->p.ops->cache_destroy(cache);
}

static drafter_trainer_options options_of(const school *s) {
    return (drafter_trainer_options){.assistant = &s->config,
                                     .chain = DRAFTS + 1,
                                     .sequence = LENGTH,
                                     .blocks = CHAINS,
                                     .decay = decay,
                                     .distribution = s->distribution,
                                     .token_of = s->p.assistant->weights.token_of};
}

static void open_on(school *s, int which, int threads, bool distribution) {
    memset(s, 0, sizeof *s);
    s->distribution = distribution;
    open_pair(&s->p, which, KAKEYA_PRECISION_F32, threads);
    s->ops = backend_train_find(s->p.ops);
    s->config = s->p.assistant->config;
    s->seen = assistant_sees(&s->config, &s->p.verifier->config);
    s->n = assistant_values_count(&s->config);
    s->weights = calloc(s->n, sizeof *s->weights);
    s->gradient = calloc(s->n, sizeof *s->gradient);
    s->states = calloc(LENGTH * s->seen.width, sizeof *s->states);
    reading r = {s, 0};
    REQUIRE_OK(assistant_walk(&s->config, read_slot, &r, error));
    assert_int_equal(r.n, s->n);
    memcpy(s->tokens, ids(&s->p, "input_ids"), sizeof s->tokens);
    listen(s);
    const drafter_trainer_options o = options_of(s);
    size_t before = mem_total(&s->p.account), bytes = s->ops->drafter_trainer_bytes(s->p.backend, &o);
    REQUIRE_OK(s->ops->drafter_trainer_create(s->p.backend, &o, &s->trainer, error));
    assert_in_range(mem_total(&s->p.account) - before, bytes, bytes + (1 << 20)); /* and RoPE's tables */
}

static void close_school(school *s) {
    s->ops->drafter_trainer_destroy(s->trainer);
    free(s->weights);
    free(s->gradient);
    free(s->states);
    close_pair(&s->p);
}

static drafter_trainer_result learn_at(school *s, const int *first, int chains, int length, float *gradient) {
    drafter_trainer_result r;
    const drafter_trainer_sequence sequence = {s->tokens, s->states, first, length, chains, &r};
    if (gradient) memset(gradient, 0, s->n * sizeof *gradient);
    s->ops->drafter_trainer_weights(s->trainer, s->weights);
    REQUIRE_OK(s->ops->drafter_trainer_learn(s->trainer, &sequence, 1, 1, gradient, error));
    return r;
}

/* The sequence is longer than a window, and the last chain ends behind it. */
static drafter_trainer_result learn(school *s, float *gradient) {
    static const int first[CHAINS] = {1, 9, 17, 30, LENGTH - 3};
    return learn_at(s, first, CHAINS, LENGTH, gradient);
}

/* ----------------------------------------------------------------------------------------------------- gradients */

typedef struct slot_check {
    school *s;
    size_t at;
    double loss;
} slot_check;

/* Along the gradient of one tensor: central differences of two steps, without the error of third order. */
static kakeya_status check_slot(void *context, const tensor_slot *slot, kakeya_error *error) {
    (void)error;
    slot_check *c = context;
    school *s = c->s;
    if (slot->kind == SLOT_IGNORED) return KAKEYA_OK;
    size_t n = (size_t)tensor_slot_elements(slot), at = c->at;
    c->at += n;
    double square = 0, change[2];
    for (size_t i = at; i < at + n; i++) square += (double)s->gradient[i] * (double)s->gradient[i];
    double length = sqrt(square);
    size_t last =
        offsetof(assistant_weights, stack.layer) + (size_t)(s->config.stack.layers - 1) * sizeof(layer_weights);
    if (slot->kind == SLOT_SCALAR && slot->offset > last)
        return KAKEYA_OK; /* the final norm takes the last one's size away */
    if (!(length > 1e-5)) fail_msg("%s: gradient of length %g", slot->name, length);
    float *kept = malloc(n * sizeof *kept);
    memcpy(kept, s->weights + at, n * sizeof *kept);
    for (int twice = 0; twice < 2; twice++) {
        double most = slot->kind == SLOT_SCALAR ? 0.005 : 0.02; /* the streams' size, which softmax follows steeply */
        double step = fmin(most, (s->config.clusters ? 0.0004 : 0.002) * c->loss / length) * (1 + twice), loss[2];
        for (int sign = 0; sign < 2; sign++) {
            for (size_t i = 0; i < n; i++)
                s->weights[at + i] =
                    (float)((double)kept[i] + (sign ? -step : step) * (double)s->gradient[at + i] / length);
            loss[sign] = learn(s, NULL).loss;
        }
        change[twice] = (loss[0] - loss[1]) / (2 * step);
    }
    memcpy(s->weights + at, kept, n * sizeof *kept);
    free(kept);
    double found = (4 * change[0] - change[1]) / 3;
    if (!(fabs(found - length) <= 0.01 * length + 1e-4))
        fail_msg("%s: gradient %g, differentiated %g", slot->name, length, found);
    return KAKEYA_OK;
}

static void gradients(void **state) {
    (void)state;
    static const int with[] = {0, 1, 2, 3};
    for (size_t i = 0; i < 2 * sizeof with / sizeof *with; i++) {
        school s;
        open_on(&s, with[i / 2], 1, i % 2);
        drafter_trainer_result r = learn(&s, s.gradient);
        assert_int_equal(r.blocks, CHAINS - 1);
        assert_int_equal(r.drafts[0], CHAINS);
        assert_int_equal(r.drafts[2], CHAINS - 1);
        slot_check check = {&s, 0, r.loss};
        REQUIRE_OK(assistant_walk(&s.config, check_slot, &check, error));
        assert_int_equal(check.at, s.n);
        close_school(&s);
    }
}

/* A loss that each number of a scalar's neighbourhood has: the derivative alone, not its length. */
static void scalars_have_a_sign(void **state) {
    (void)state;
    school s;
    open_on(&s, 0, 1, false);
    learn(&s, s.gradient);
    assistant_values w, g;
    assistant_values_bind(&s.config, s.weights, &w);
    assistant_values_bind(&s.config, s.gradient, &g);
    for (int i = 0; i < s.config.stack.layers; i++) {
        const float step = 4e-3f, kept = *w.scalar[i];
        *w.scalar[i] = kept + step;
        double up = learn(&s, NULL).loss;
        *w.scalar[i] = kept - step;
        double found = (up - learn(&s, NULL).loss) / (2 * (double)step), expected = (double)*g.scalar[i];
        *w.scalar[i] = kept;
        if (!(fabs(found - expected) <= 0.02 * fabs(expected) + 2e-3))
            fail_msg("scalar of layer %d: %g, differentiated %g", i, expected, found);
    }
    close_school(&s);
}

/* --------------------------------------------------------------------------------------------- what inference does */

static double cross_entropy(const float *z, int n, int32_t target) {
    double largest = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) largest = fmax(largest, (double)z[i]);
    for (int i = 0; i < n; i++) sum += exp((double)z[i] - largest);
    return largest + log(sum) - (double)z[target];
}

static void as_the_engine_drafts(void **state) {
    (void)state;
    static const int with[] = {0, 1, 2, 3}, prefixes[] = {6, 25}; /* within a window, and behind it */
    for (int k = 0; k < 8; k++) {
        school s;
        open_on(&s, with[k / 2], 1, false);
        int prefix = prefixes[k % 2], vocab = s.config.stack.vocab;
        float *logits = calloc((size_t)(DRAFTS * vocab), sizeof *logits);
        backend_cache *cache = open_cache(&s.p, &native, KV_FORMAT_F32);
        step(&s.p, cache, SEGMENT_PROMPT, s.tokens, prefix, prefix, NULL);
        const assistant_trace trace = {.logits = logits};
        int32_t drafts[DRAFTS];
        REQUIRE_OK(assistant_chain(cache, s.tokens[prefix], DRAFTS, drafts, &trace, error));
        memcpy(s.tokens + prefix + 1, drafts, sizeof drafts);
        listen(&s);
        double expected = 0;
        for (int i = 0; i < DRAFTS; i++)
            expected += exp(-i / decay) * cross_entropy(logits + (size_t)i * (size_t)vocab, vocab, drafts[i]);
        drafter_trainer_result r = learn_at(&s, &prefix, 1, LENGTH, NULL);
        if (r.held != DRAFTS)
            fail_msg("%s: %g of %d drafts are the assistant's", pairs[with[k / 2]].name, r.held, DRAFTS);
        /* with clusters the engine has the logits of some alone */
        if (!s.config.clusters && !(fabs(r.loss - expected) <= 1e-4 * (1 + expected)))
            fail_msg("%s: loss %.8g, of the assistant's logits %.8g", pairs[with[k / 2]].name, r.loss, expected);
        s.p.ops->cache_destroy(cache);
        free(logits);
        close_school(&s);
    }
}

/* KL from the verifier, out of its own logits and the assistant's. */
static void as_the_verifier_speaks(void **state) {
    (void)state;
    enum { PREFIX = 25 };
    school s;
    open_on(&s, 0, 1, true);
    size_t vocab = (size_t)s.config.stack.vocab;
    float *logits = calloc(2 * DRAFTS * vocab, sizeof *logits), *taught = logits + DRAFTS * vocab;
    backend_cache *cache = open_cache(&s.p, &native, KV_FORMAT_F32);
    step(&s.p, cache, SEGMENT_PROMPT, s.tokens, PREFIX, PREFIX, NULL);
    int32_t drafts[DRAFTS];
    const assistant_trace trace = {.logits = logits};
    REQUIRE_OK(assistant_chain(cache, s.tokens[PREFIX], DRAFTS, drafts, &trace, error));
    memcpy(s.tokens + PREFIX + 1, drafts, sizeof drafts);
    listen(&s);
    backend_segment segment = {
        .cache = cache, .tokens = s.tokens + PREFIX, .n = DRAFTS, .kind = SEGMENT_PROMPT, .logits = taught};
    REQUIRE_OK(s.p.ops->forward(s.p.backend, &segment, 1, error));
    double expected = 0;
    for (size_t i = 0; i < DRAFTS; i++) {
        const float *p = taught + i * vocab, *q = logits + i * vocab;
        double kl = 0, of_p = cross_entropy(p, (int)vocab, 0) + (double)p[0],
               of_q = cross_entropy(q, (int)vocab, 0) + (double)q[0];
        for (size_t t = 0; t < vocab; t++) kl += exp((double)p[t] - of_p) * ((double)p[t] - of_p - (double)q[t] + of_q);
        expected += exp(-(double)i / decay) * kl;
    }
    const int first = PREFIX;
    drafter_trainer_result r = learn_at(&s, &first, 1, LENGTH, NULL);
    assert_int_equal((int)r.held, DRAFTS);
    if (!(fabs(r.loss - expected) <= 2e-4 * (1 + expected))) fail_msg("loss %.8g, expected %.8g", r.loss, expected);
    s.p.ops->cache_destroy(cache);
    free(logits);
    close_school(&s);
}

/* ----------------------------------------------------------------------------------------------------------- more */

static void any_number_of_threads(void **state) {
    (void)state;
    school s[2];
    for (int i = 0; i < 2; i++) {
        open_on(&s[i], 0, i ? 2 : 3, true);
        assert_true(learn(&s[i], s[i].gradient).loss > 0);
    }
    assert_same_bits("gradient with 2 and with 3 threads", s[0].gradient, s[1].gradient, s[0].n);
    for (int i = 0; i < 2; i++) close_school(&s[i]);
}

/* A chain's gradient is its own: others beside it add theirs. */
static void chains_add_up(void **state) {
    (void)state;
    static const int first[] = {4, 21};
    school s;
    open_on(&s, 1, 1, false);
    float *sum = calloc(s.n, sizeof *sum);
    double loss = 0;
    for (int i = 0; i < 2; i++) {
        loss += learn_at(&s, &first[i], 1, LENGTH, s.gradient).loss;
        for (size_t k = 0; k < s.n; k++) sum[k] += s.gradient[k];
    }
    double both = learn_at(&s, first, 2, LENGTH, s.gradient).loss, off = 0, length = 0;
    for (size_t k = 0; k < s.n; k++) {
        off += ((double)sum[k] - (double)s.gradient[k]) * ((double)sum[k] - (double)s.gradient[k]);
        length += (double)sum[k] * (double)sum[k];
    }
    if (!(fabs(loss - both) <= 1e-5 * loss) || !(sqrt(off) <= 1e-4 * sqrt(length)))
        fail_msg("losses %g and %g, gradients off by %g of %g", loss, both, sqrt(off), sqrt(length));
    free(sum);
    close_school(&s);
}

/* Sequences that learn at once are those that learn one after the other. */
static void sequences_add_up(void **state) {
    (void)state;
    enum { OTHER = 29 };
    static const int first[2][CHAINS] = {{1, 9, 17, 30, LENGTH - 3}, {5, OTHER - 2}};
    school s;
    open_on(&s, 3, 2, true);
    drafter_trainer_options o = options_of(&s);
    o.sequences = 2;
    backend_drafter_trainer *both = NULL;
    REQUIRE_OK(s.ops->drafter_trainer_create(s.p.backend, &o, &both, error));
    float *sum = calloc(2 * s.n, sizeof *sum), *at_once = sum + s.n;
    drafter_trainer_result r[2], each[2];
    drafter_trainer_sequence sequence[2];
    for (int i = 0; i < 2; i++) {
        int length = i ? OTHER : LENGTH, chains = i ? 2 : CHAINS;
        sequence[i] = (drafter_trainer_sequence){s.tokens, s.states, first[i], length, chains, &r[i]};
        each[i] = learn_at(&s, first[i], chains, length, s.gradient);
        for (size_t k = 0; k < s.n; k++) sum[k] += s.gradient[k];
    }
    s.ops->drafter_trainer_weights(both, s.weights);
    REQUIRE_OK(s.ops->drafter_trainer_learn(both, sequence, 2, 1, at_once, error));
    double off = 0, length = 0;
    for (size_t k = 0; k < s.n; k++) {
        off += ((double)sum[k] - (double)at_once[k]) * ((double)sum[k] - (double)at_once[k]);
        length += (double)sum[k] * (double)sum[k];
    }
    if (!(sqrt(off) <= 1e-4 * sqrt(length))) fail_msg("gradients off by %g of %g", sqrt(off), sqrt(length));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r[i].blocks, each[i].blocks);
        assert_memory_equal(r[i].right, each[i].right, sizeof r[i].right);
        assert_memory_equal(r[i].drafts, each[i].drafts, sizeof r[i].drafts);
        if (!(fabs(r[i].loss - each[i].loss) <= 1e-5 * each[i].loss))
            fail_msg("sequence %d: %g, alone %g", i, r[i].loss, each[i].loss);
    }
    s.ops->drafter_trainer_destroy(both);
    free(sum);
    close_school(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients),
        cmocka_unit_test(scalars_have_a_sign),
        cmocka_unit_test(as_the_engine_drafts),
        cmocka_unit_test(as_the_verifier_speaks),
        cmocka_unit_test(any_number_of_threads),
        cmocka_unit_test(chains_add_up),
        cmocka_unit_test(sequences_add_up),
    };
    return cmocka_run_group_tests_name("training of assistants", tests, NULL, NULL);
}
