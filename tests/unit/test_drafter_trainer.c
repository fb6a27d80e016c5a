/* Training of drafters: gradients of rows against numerical differentiation in float64; the gradient of every tensor of
 * a drafter, with full and with sliding layers; a trainer that drafts what the drafter drafts; the same bits for any
 * number of threads. */
#include <math.h>
#include <stdlib.h>

#include "backend/backend_train.h"
#include "backend/cpu/backward.h"
#include "model/block_drafter_values.h"
#include "model/tensors.h"
#include "tiny.h"

static double draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (double)(1 << 23) - 1;
}

/* ---------------------------------------------------------------------------------------------- gradients of rows */

enum { N = 12, HALF = N / 2, TARGET = 5 };
static double other[N];
static const double eps = 1e-6, cap = 1.5;

static double gain_value(const double *x, const double *w) { /* x: the gain */
    double squares = 0, sum = 0;
    for (int i = 0; i < N; i++) squares += other[i] * other[i];
    for (int i = 0; i < N; i++) sum += other[i] / sqrt(squares / N + eps) * x[i] * w[i];
    return sum;
}
static void gain_gradient(const double *x, const double *w, double *d) {
    (void)x;
    backward64_rms_gain(other, w, N, eps, d);
}

static double gated_value(const double *x, const double *w) {
    double sum = 0;
    for (int i = 0; i < HALF; i++) sum += x[i] / (1 + exp(-x[i])) * x[i + HALF] * w[i];
    return sum;
}
static void gated_gradient(const double *x, const double *w, double *d) {
    backward64_silu_gated(x, x + HALF, w, HALF, d, d + HALF);
}

static double entropy_value(const double *x, const double *w) {
    double sum = 0;
    (void)w;
    for (int i = 0; i < N; i++) sum += exp(cap * tanh(x[i] / cap));
    return log(sum) - cap * tanh(x[TARGET] / cap);
}
static void entropy_gradient(const double *x, const double *w, double *d) {
    (void)w;
    for (int i = 0; i < N; i++) d[i] = cap * tanh(x[i] / cap);
    double found = backward64_cross_entropy(d, N, TARGET, cap, 1), expected = entropy_value(x, w);
    if (!(fabs(found - expected) < 1e-12)) fail_msg("cross entropy %.15g, expected %.15g", found, expected);
}

static void rows_are_derivatives(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double (*value)(const double *x, const double *w);
        void (*gradient)(const double *x, const double *w, double *d_x);
    } cases[] = {{"rms_gain", gain_value, gain_gradient},
                 {"silu_gated", gated_value, gated_gradient},
                 {"cross_entropy", entropy_value, entropy_gradient}};
    const double step = 1e-5;
    uint64_t random = 5;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (int round = 0; round < 4; round++) {
            double x[N], w[N], d[N] = {0};
            for (int i = 0; i < N; i++) {
                x[i] = 2 * draw(&random);
                w[i] = draw(&random);
                other[i] = draw(&random);
            }
            cases[c].gradient(x, w, d);
            for (int i = 0; i < N; i++) {
                double at = x[i];
                x[i] = at + step;
                double up = cases[c].value(x, w);
                x[i] = at - step;
                double found = (up - cases[c].value(x, w)) / (2 * step);
                x[i] = at;
                if (!(fabs(found - d[i]) <= 1e-8 * (1 + fabs(found))))
                    fail_msg("%s, value %d: %.10g, differentiated %.10g", cases[c].name, i, d[i], found);
            }
        }
    }
}

/* ----------------------------------------------------------------------------------------------------- a trainer */

enum { LENGTH = 40, MOST_AUX = 4 * 64, BLOCKS = 4 };

typedef struct school {
    tiny t;
    const backend_train_ops *ops;
    backend_drafter_trainer *trainer;
    block_drafter_config config;
    size_t n;
    float *weights, *gradient;
    int32_t tokens[LENGTH];
    float aux[LENGTH * MOST_AUX];
} school;

static void read_tensor(school *s, const weight *w, const weight *to) {
    for (int r = 0; r < w->out; r++)
        s->ops->weight_row(s->t.backend, w, r, (float *)(uintptr_t)to->stream[0] + (size_t)r * (size_t)w->in);
}

static void read_vector(const float *v, const float *to, int n) {
    memcpy((float *)(uintptr_t)to, v, (size_t)n * sizeof *v);
}

/* The drafter's weights as one array. */
static void read_weights(school *s) {
    const block_drafter_model *d = s->t.drafter;
    block_drafter_model to;
    block_drafter_values_bind(&s->config, s->weights, &to);
    read_tensor(s, &d->fc, &to.fc);
    read_vector(d->hidden_norm, to.hidden_norm, s->config.hidden);
    read_vector(d->norm, to.norm, s->config.hidden);
    for (int i = 0; i < s->config.layers; i++) {
        const block_drafter_layer_weights *w = &d->layer[i], *t = &to.layer[i];
        read_vector(w->input_norm, t->input_norm, s->config.hidden);
        read_vector(w->post_attention_norm, t->post_attention_norm, s->config.hidden);
        read_vector(w->q_norm, t->q_norm, s->config.head_dim);
        read_vector(w->k_norm, t->k_norm, s->config.head_dim);
        read_tensor(s, &w->q_proj, &t->q_proj);
        read_tensor(s, &w->k_proj, &t->k_proj);
        read_tensor(s, &w->v_proj, &t->v_proj);
        read_tensor(s, &w->o_proj, &t->o_proj);
        read_tensor(s, &w->gate_proj, &t->gate_proj);
        read_tensor(s, &w->up_proj, &t->up_proj);
        read_tensor(s, &w->down_proj, &t->down_proj);
    }
}

static void open_on(school *s, const char *drafter, int threads, bool inside) {
    memset(s, 0, sizeof *s);
    tiny_open_weights(&s->t, "gemma4-tiny-dense", drafter);
    tiny_complete(&s->t, KAKEYA_PRECISION_F32, threads == 1 ? "scalar" : NULL, threads);
    s->ops = backend_train_find(s->t.ops);
    s->config = s->t.drafter->config;
    s->n = block_drafter_values_count(&s->config);
    s->weights = calloc(s->n, sizeof *s->weights);
    s->gradient = calloc(s->n, sizeof *s->gradient);
    assert_true(s->config.targets * s->config.hidden <= MOST_AUX);
    read_weights(s);
    const drafter_trainer_options o = {
        .drafter = &s->config, .sequence = LENGTH, .blocks = BLOCKS, .decay = 3, .inside_layers = inside};
    size_t before = mem_total(&s->t.account), bytes = s->ops->drafter_trainer_bytes(s->t.backend, &o);
    REQUIRE_OK(s->ops->drafter_trainer_create(s->t.backend, &o, &s->trainer, error));
    size_t grown = mem_total(&s->t.account) - before;
    assert_in_range(grown, bytes, bytes + (1 << 20)); /* and RoPE's tables */
    tiny_tokens(s->tokens, LENGTH, 3);
}

static void tap(void *user, const train_layer *layer) {
    school *s = user;
    size_t hidden = (size_t)s->config.hidden, width = hidden * (size_t)s->config.targets;
    for (int i = 0; i < s->config.targets; i++) {
        if (s->config.target_layer[i] != layer->layer) continue;
        for (int r = 0; r < layer->rows; r++)
            memcpy(s->aux + (size_t)(layer->position + r) * width + (size_t)i * hidden, layer->h + (size_t)r * hidden,
                   hidden * sizeof(float));
    }
}

/* Hidden states of the sequence, as the verifier has them. */
static void listen(school *s, int n) {
    const backend_cache_options options = {.context_tokens = LENGTH,
                                           .attention = KAKEYA_ATTENTION_NATIVE,
                                           .kv_format = KV_FORMAT_F32,
                                           .account = &s->t.account};
    backend_cache *cache = NULL;
    REQUIRE_OK(s->t.ops->cache_create(s->t.backend, &options, &cache, error));
    REQUIRE_OK(s->ops->forward(s->t.backend, cache, s->tokens, n, tap, s, error));
    s->t.ops->cache_destroy(cache);
}

static void close_school(school *s) {
    s->ops->drafter_trainer_destroy(s->trainer);
    free(s->weights);
    free(s->gradient);
    tiny_close(&s->t);
}

static drafter_trainer_result learn(school *s, float *gradient) {
    static const int first[BLOCKS] = {3, 17, 20, LENGTH - 3}; /* the last one ends behind the sequence */
    drafter_trainer_result r;
    const drafter_trainer_sequence sequence = {s->tokens, s->aux, first, LENGTH, BLOCKS, &r};
    if (gradient) memset(gradient, 0, s->n * sizeof *gradient);
    s->ops->drafter_trainer_weights(s->trainer, s->weights);
    REQUIRE_OK(s->ops->drafter_trainer_learn(s->trainer, &sequence, 1, 1, gradient, error));
    return r;
}

typedef struct slot_check {
    school *s;
    size_t at;
    double loss;
    bool inside;
} slot_check;

/* Along the gradient of one tensor, in float32: central differences of two steps, without the error of third order. */
static kakeya_status check_slot(void *context, const tensor_slot *slot, kakeya_error *error) {
    (void)error;
    slot_check *c = context;
    school *s = c->s;
    size_t n = (size_t)tensor_slot_elements(slot), at = c->at;
    c->at += n;
    double square = 0, change[2];
    for (size_t i = at; i < at + n; i++) square += (double)s->gradient[i] * (double)s->gradient[i];
    double length = sqrt(square);
    bool outside = slot->offset < offsetof(block_drafter_model, layer);
    if (!outside && !c->inside) {
        if (length > 0) fail_msg("%s: has a gradient", slot->name);
        return KAKEYA_OK;
    }
    if (!(length > 1e-5)) fail_msg("%s: gradient of length %g", slot->name, length);
    float *kept = malloc(n * sizeof *kept);
    memcpy(kept, s->weights + at, n * sizeof *kept);
    for (int twice = 0; twice < 2; twice++) {
        double step = fmin(0.02, 0.002 * c->loss / length) * (1 + twice), loss[2];
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

static void check_gradients(const char *drafter, bool inside) {
    school s;
    open_on(&s, drafter, 1, inside);
    listen(&s, LENGTH);
    drafter_trainer_result r = learn(&s, s.gradient);
    assert_int_equal(r.blocks, BLOCKS - 1);
    assert_int_equal(r.drafts[0], BLOCKS);
    assert_int_equal(r.drafts[2], BLOCKS - 1);
    slot_check check = {&s, 0, r.loss, inside};
    REQUIRE_OK(dflash_walk(&s.config, check_slot, &check, error));
    assert_int_equal(check.at, s.n);
    close_school(&s);
}

static void gradients_of_trainers(void **state) {
    (void)state;
    check_gradients("dflash-tiny", true);
    check_gradients("dflash-sliding", true);
    check_gradients("dflash-tiny", false);
}

/* What the drafter drafts behind a prefix is what the trainer finds right. */
static void drafts_of_trainers(void **state) {
    (void)state;
    static const char *const drafters[] = {"dflash-tiny", "dflash-sliding"};
    enum { PREFIX = 25 };
    for (int i = 0; i < 2; i++) {
        school s;
        open_on(&s, drafters[i], 1, true);
        int drafts = s.config.block_size - 1;
        const backend_cache_options options = {.context_tokens = LENGTH,
                                               .attention = KAKEYA_ATTENTION_NATIVE,
                                               .kv_format = KV_FORMAT_F32,
                                               .draft_window = LENGTH,
                                               .keep_draft_context = true,
                                               .account = &s.t.account};
        backend_cache *cache = NULL;
        REQUIRE_OK(s.t.ops->cache_create(s.t.backend, &options, &cache, error));
        REQUIRE_OK(s.ops->forward(s.t.backend, cache, s.tokens, PREFIX, tap, &s, error));
        REQUIRE_OK(
            backend_draft_one(s.t.ops, s.t.backend, cache, s.tokens[PREFIX], drafts, s.tokens + PREFIX + 1, error));
        s.t.ops->cache_destroy(cache);
        const int first = PREFIX;
        drafter_trainer_result r;
        s.ops->drafter_trainer_weights(s.trainer, s.weights);
        const drafter_trainer_sequence sequence = {s.tokens, s.aux, &first, LENGTH, 1, &r};
        REQUIRE_OK(s.ops->drafter_trainer_learn(s.trainer, &sequence, 1, 1, NULL, error));
        assert_int_equal(r.blocks, 1);
        if (r.held != drafts) fail_msg("%s: %g of %d drafts are the drafter's", drafters[i], r.held, drafts);
        close_school(&s);
    }
}

static void any_number_of_threads(void **state) {
    (void)state;
    school s[2];
    for (int i = 0; i < 2; i++) {
        open_on(&s[i], "dflash-sliding", i ? 2 : 3, true);
        listen(&s[i], LENGTH);
        drafter_trainer_result r = learn(&s[i], s[i].gradient);
        assert_true(r.loss > 0);
    }
    assert_same_bits("gradient with 2 and with 3 threads", s[0].gradient, s[1].gradient, s[0].n);
    for (int i = 0; i < 2; i++) close_school(&s[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_derivatives),
        cmocka_unit_test(gradients_of_trainers),
        cmocka_unit_test(drafts_of_trainers),
        cmocka_unit_test(any_number_of_threads),
    };
    return cmocka_run_group_tests_name("training of drafters", tests, NULL, NULL);
}
