/* The closed form of f_theta: its algebra, its metric against numerical differentiation of attention, prefixes, sums
 * that go on where they were saved, any number of threads; and the model's own answers to train on. */
#include <math.h>
#include <stdlib.h>

#include "backend/backend_train.h"
#include "golden.h"
#include "scratch.h"
#include "train/answers.h"
#include "train/linear.h"
#include "train/trainer.h"

static double draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (double)(1 << 23) - 1;
}

/* ----------------------------------------------------------------------------------------------------- algebra */

enum { N = 37 };

static void check_eigen(const char *name, const double *matrix, int n) {
    double *a = malloc((size_t)(n * n) * sizeof *a), values[N], scratch[N], scale = 1e-300;
    memcpy(a, matrix, (size_t)(n * n) * sizeof *a);
    for (int i = 0; i < n * n; i++) scale = fmax(scale, fabs(matrix[i]));
    assert_true(linear_eigen(a, n, values, scratch));
    for (int i = 0; i < n; i++) {
        const double *v = a + i * n;
        if (i && values[i] > values[i - 1]) fail_msg("%s: eigenvalues %d and %d ascend", name, i - 1, i);
        for (int j = 0; j <= i; j++) {
            double product = 0;
            for (int k = 0; k < n; k++) product += v[k] * a[j * n + k];
            if (fabs(product - (i == j)) > 1e-12) fail_msg("%s: vectors %d and %d give %g", name, i, j, product);
        }
        for (int r = 0; r < n; r++) {
            double sum = 0;
            for (int k = 0; k < n; k++) sum += matrix[r * n + k] * v[k];
            if (fabs(sum - values[i] * v[r]) > 1e-12 * scale * n)
                fail_msg("%s: pair %d is off by %g in row %d", name, i, sum - values[i] * v[r], r);
        }
    }
    free(a);
}

static void eigen(void **state) {
    (void)state;
    double a[N * N] = {0}, x[N];
    uint64_t random = 1;
    check_eigen("nothing", a, N);
    for (int i = 0; i < N; i++) a[i * N + i] = 1;
    check_eigen("identity", a, N);
    for (int i = 0; i < N; i++) x[i] = draw(&random);
    for (int i = 0; i < N * N; i++) a[i] = x[i / N] * x[i % N];
    check_eigen("rank 1", a, N);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j <= i; j++) a[i * N + j] = a[j * N + i] = draw(&random);
    }
    for (int n = 1; n <= 5; n++) {
        double small[25];
        for (int i = 0; i < n * n; i++) small[i] = a[i / n * N + i % n];
        check_eigen("small", small, n);
    }
    check_eigen("random", a, N);
    for (int i = 0; i < N * N; i++) a[i] *= pow(10, -0.3 * (i / N + i % N));
    check_eigen("graded", a, N);
    a[3 * N + 2] = a[2 * N + 3] = NAN;
    assert_false(linear_eigen(a, N, x, x));
}

/* ------------------------------------------------------------------------------------------------------ models */

enum { LENGTH = 40, SEQUENCES = 12, SINK = 1, WINDOW = 4 };

static kakeya_engine *open_pair(const char *name, const char *drafter, int threads) {
    char path[512], drafter_path[512];
    snprintf(path, sizeof path, "%s/golden/%s", KAKEYA_TEST_DATA, name);
    if (drafter) snprintf(drafter_path, sizeof drafter_path, "%s/golden/%s", KAKEYA_TEST_DATA, drafter);
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = path;
    options.f_theta = "none";
    options.drafter = drafter ? drafter_path : "none";
    options.precision = KAKEYA_PRECISION_F32;
    options.threads = threads;
    kakeya_engine *engine = NULL;
    REQUIRE_OK(kakeya_engine_open(&options, &engine, error));
    return engine;
}

static kakeya_engine *open_engine(const char *name, int threads) { return open_pair(name, NULL, threads); }

/* Where the engine has a drafter, its context is read. */
static trainer *make(kakeya_engine *engine, int rank_k, int rank_v, bool shared, int threads) {
    const model_config *c = &engine->verifier->config;
    trainer_options o = {
        .sequence = LENGTH, .sink = SINK, .window = WINDOW, .metric_tokens = 1 << 20, .threads = threads};
    o.config = (restoration_config){.input = RESTORATION_AUX_HIDDEN, .hidden = c->hidden};
    o.config.aux_layers = restoration_default_taps(c, 2, o.config.aux_layer);
    if (engine->drafter) {
        const block_drafter_config *d = &engine->drafter->config;
        o.config = (restoration_config){.input = RESTORATION_DRAFTER_CONTEXT_KV,
                                        .drafter_layers = d->layers,
                                        .drafter_kv_heads = d->kv_heads,
                                        .drafter_head_dim = d->head_dim};
    }
    restoration_config_fit(&o.config, c, rank_k, rank_v, shared);
    trainer *t = NULL;
    REQUIRE_OK(trainer_create(engine, &o, &t, error));
    return t;
}

static void sequence(int32_t *tokens, int index) {
    uint64_t random = (uint64_t)index;
    for (int i = 0; i < LENGTH; i++) tokens[i] = (int32_t)((draw(&random) + 1) * 150);
}

static void feed(trainer *t, int from, int to) {
    int32_t tokens[LENGTH];
    for (int i = from; i < to; i++) {
        sequence(tokens, i);
        REQUIRE_OK(trainer_add(t, tokens, LENGTH, error));
    }
}

static void same_weights(const char *what, const closed_form_weights *a, int stride_a, const closed_form_weights *b,
                         int stride_b, int rank, int inputs, const model_config *c) {
    for (int half = 0; half < 2; half++) {
        if (b->encoder[half]) assert_same_bits(what, a->encoder[half], b->encoder[half], (size_t)(rank * inputs));
        for (int i = 0; i < c->layers; i++) {
            for (int o = 0; o < c->layer[i].kv_heads * c->layer[i].head_dim; o++)
                assert_same_bits(what, a->decoder[half][i] + o * stride_a, b->decoder[half][i] + o * stride_b,
                                 (size_t)rank);
        }
    }
}

/* A smaller rank is a prefix; saved sums go on; threads change nothing. */
static void one_solution(void **state) {
    (void)state;
    static const char *const models[] = {"gemma4-tiny-dense", "gemma4-tiny-ple", "gemma4-tiny-moe",
                                         "gemma4-tiny-dense"};
    for (int m = 0; m < 4; m++) {
        const char *drafter = m == 3 ? "dflash-tiny" : NULL;
        kakeya_engine *engine = open_pair(models[m], drafter, 1), *wide = open_pair(models[m], drafter, 3);
        const model_config *c = &engine->verifier->config;
        for (int shared = 0; shared < (drafter ? 1 : 2); shared++) {
            const closed_form_form form = {.by_input = m % 2 == 1, .temper = m == 1 ? 0.5 : 0};
            trainer *whole = make(engine, 12, 12, shared, 1), *less = make(wide, 5, 5, shared, 3),
                    *first = make(engine, 12, 12, shared, 1), *second = make(wide, 12, 12, shared, 2);
            feed(whole, 0, SEQUENCES);
            feed(less, 0, SEQUENCES);
            feed(first, 0, 5);
            const char *path = scratch_path("training.state");
            const uint64_t place[TRAINER_PLACE] = {5, 77};
            uint64_t found[TRAINER_PLACE];
            REQUIRE_OK(trainer_save(first, path, 9, place, error));
            kakeya_error problem = {0};
            assert_int_equal(trainer_load(second, path, 8, found, &problem), KAKEYA_FORMAT);
            assert_non_null(strstr(problem.message, "another model"));
            REQUIRE_OK(trainer_load(second, path, 9, found, error));
            assert_memory_equal(place, found, sizeof found);
            feed(second, 5, SEQUENCES);
            closed_form_weights a, b, d;
            REQUIRE_OK(trainer_solve(whole, &form, &a, error));
            REQUIRE_OK(trainer_solve(less, &form, &b, error));
            REQUIRE_OK(trainer_solve(second, &form, &d, error));
            const block_drafter_config *read = drafter ? &engine->drafter->config : NULL;
            int inputs = read ? read->layers * read->kv_heads * read->head_dim : trainer_sums(whole)->inputs;
            same_weights("a smaller rank", &a, 12, &b, 5, 5, inputs, c);
            same_weights("saved sums", &a, 12, &d, 12, 12, inputs, c);
            closed_form_weights_free(&a);
            closed_form_weights_free(&b);
            closed_form_weights_free(&d);
            trainer_destroy(whole);
            trainer_destroy(less);
            trainer_destroy(first);
            trainer_destroy(second);
        }
        kakeya_engine_close(engine);
        kakeya_engine_close(wide);
    }
}

static void too_little(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("gemma4-tiny-dense", 1);
    trainer *t = make(engine, 8, 8, true, 1);
    feed(t, 0, 2);
    closed_form_weights w;
    kakeya_error problem = {0};
    assert_int_equal(trainer_solve(t, &(closed_form_form){0}, &w, &problem), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(problem.message, "80 tokens are too few for 128"));
    trainer_destroy(t);
    kakeya_engine_close(engine);
}

/* ------------------------------------------------------------------------------------------------------- metric */

/* One layer of one sequence, copied. */
typedef struct seen_layer {
    float *k, *v, *q, *out, *cosine, *sine;
    int half, pairs;
} seen_layer;

static seen_layer seen[MODEL_MAX_LAYERS];

static float *copy(const float *from, size_t n) {
    float *to = malloc(n * sizeof *to);
    memcpy(to, from, n * sizeof *to);
    return to;
}

static void keep(void *user, const train_layer *l) {
    const model_config *c = user;
    size_t d = (size_t)c->layer[l->layer].head_dim, kv = (size_t)c->layer[l->layer].kv_heads * d;
    seen[l->layer] = (seen_layer){.k = copy(l->raw_k, LENGTH * kv),
                                  .v = copy(l->raw_v, LENGTH * kv),
                                  .q = copy(l->q, LENGTH * (size_t)c->heads * d),
                                  .out = copy(l->out, LENGTH * (size_t)c->hidden),
                                  .cosine = copy(l->cosine, LENGTH * (size_t)l->pairs),
                                  .sine = copy(l->sine, LENGTH * (size_t)l->pairs),
                                  .half = l->half,
                                  .pairs = l->pairs};
}

static void unit(const float *raw, int d, double eps, double *y) {
    double squares = 0;
    for (int i = 0; i < d; i++) squares += (double)raw[i] * (double)raw[i];
    for (int i = 0; i < d; i++) y[i] = (double)raw[i] / sqrt(squares / d + eps);
}

/* What one head gets at position t where `step` times a direction is added to y of the keys (values) at position p. */
static void attend(const language_model *g, int layer, int head, int t, int p, bool values, const double *direction,
                   double step, double *o) {
    const model_config *c = &g->config;
    const layer_config *lc = &c->layer[layer];
    const seen_layer *s = &seen[layer];
    int d = lc->head_dim, kv_head = head / (c->heads / lc->kv_heads), width = lc->kv_heads * d;
    int oldest = lc->type == LAYER_SLIDING && t >= c->sliding_window ? t - c->sliding_window + 1 : 0;
    double sum = 0, y[256], k[256];
    for (int i = 0; i < d; i++) o[i] = 0;
    for (int j = oldest; j <= t; j++) {
        unit(s->k + j * width + kv_head * d, d, (double)c->rms_eps, y);
        for (int i = 0; i < d && j == p && !values; i++) y[i] += step * direction[i];
        for (int i = 0; i < d; i++) k[i] = y[i] * (double)g->weights.layer[layer].k_norm[i];
        for (int i = 0; i < s->pairs; i++) {
            double a = k[i], b = k[i + s->half], cosine = (double)s->cosine[j * s->pairs + i],
                   sine = (double)s->sine[j * s->pairs + i];
            k[i] = a * cosine - b * sine;
            k[i + s->half] = b * cosine + a * sine;
        }
        double score = 0;
        for (int i = 0; i < d; i++) score += k[i] * (double)s->q[(t * c->heads + head) * d + i];
        double share = exp(score);
        unit(s->v + j * width + kv_head * d, d, (double)c->rms_eps, y);
        for (int i = 0; i < d && j == p && values; i++) y[i] += step * direction[i];
        for (int i = 0; i < d; i++) o[i] += share * y[i];
        sum += share;
    }
    for (int i = 0; i < d; i++) o[i] /= sum;
}

/* Sum over query heads, rows and evicted positions of |W_a (change of o_a)|^2 / r(t), by central differences. */
static double numeric(const language_model *g, int layer, int kv_head, bool values, const double *direction) {
    const model_config *c = &g->config;
    const layer_config *lc = &c->layer[layer];
    const layer_weights *w = &g->weights.layer[layer];
    int d = lc->head_dim, group = c->heads / lc->kv_heads;
    const double step = 1e-4;
    double total = 0, up[256], down[256];
    for (int a = kv_head * group; a < (kv_head + 1) * group; a++) {
        for (int t = 0; t < LENGTH; t++) {
            double square = (double)c->rms_eps;
            for (int i = 0; i < c->hidden; i++)
                square +=
                    (double)seen[layer].out[t * c->hidden + i] * (double)seen[layer].out[t * c->hidden + i] / c->hidden;
            for (int offset = WINDOW; offset < c->sliding_window; offset++) {
                int p = t - offset;
                if (p < SINK) break;
                attend(g, layer, a, t, p, values, direction, step, up);
                attend(g, layer, a, t, p, values, direction, -step, down);
                for (int o = 0; o < c->hidden; o++) {
                    const float *row =
                        (const float *)(const void *)w->o_proj.stream[0] + (size_t)o * (size_t)w->o_proj.in;
                    double change = 0;
                    for (int i = 0; i < d; i++) change += (double)row[a * d + i] * (up[i] - down[i]) / (2 * step);
                    change *= (double)w->post_attention_norm[o];
                    total += change * change / square;
                }
            }
        }
    }
    return total;
}

static void metric_is_a_derivative(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("gemma4-tiny-dense", 1);
    const language_model *g = engine->verifier;
    const model_config *c = &g->config;
    assert_int_equal(g->weights.layer[0].o_proj.format, WEIGHT_F32);
    trainer *t = make(engine, 8, 8, true, 1);
    feed(t, 0, 1);
    int32_t tokens[LENGTH];
    sequence(tokens, 0);
    backend_cache *cache = NULL;
    const backend_cache_options options = {.context_tokens = LENGTH,
                                           .attention = KAKEYA_ATTENTION_NATIVE,
                                           .kv_format = KV_FORMAT_F32,
                                           .account = &engine->account};
    REQUIRE_OK(engine->ops->cache_create(engine->model, &options, &cache, error));
    REQUIRE_OK(backend_train_find(engine->ops)
                   ->forward(engine->model, cache, tokens, LENGTH, keep, (void *)(uintptr_t)c, error));
    const closed_form_sums *s = trainer_sums(t);
    uint64_t random = 3;
    for (int layer = 0; layer < c->layers; layer += c->layers - 1) { /* one that slides, one that does not */
        const layer_config *lc = &c->layer[layer];
        int d = lc->head_dim, group = c->heads / lc->kv_heads;
        for (int round = 0; round < 2; round++) {
            int head = round % lc->kv_heads;
            double direction[256], form = 0;
            for (int i = 0; i < d; i++) direction[i] = draw(&random);
            const double *m = s->metric_k[layer] + (size_t)head * (size_t)(d * d);
            for (int i = 0; i < d * d; i++) form += direction[i / d] * m[i] * direction[i % d];
            double found = numeric(g, layer, head, false, direction);
            if (!(fabs(form - found) <= 2e-3 * found))
                fail_msg("layer %d, keys of head %d: %g, differentiated %g", layer, head, form, found);
            form = 0;
            for (int a = head * group; a < (head + 1) * group; a++) {
                for (int o = 0; o < c->hidden; o++) {
                    const weight *w = &g->weights.layer[layer].o_proj;
                    const float *row = (const float *)(const void *)w->stream[0] + (size_t)o * (size_t)w->in;
                    double sum = 0;
                    for (int i = 0; i < d; i++) sum += (double)row[a * d + i] * direction[i];
                    sum *= (double)g->weights.layer[layer].post_attention_norm[o];
                    form += s->metric_v[layer][a] * sum * sum;
                }
            }
            found = numeric(g, layer, head, true, direction);
            if (!(fabs(form - found) <= 2e-3 * found))
                fail_msg("layer %d, values of head %d: %g, differentiated %g", layer, head, form, found);
        }
    }
    for (int i = 0; i < c->layers; i++) {
        float *all[] = {seen[i].k, seen[i].v, seen[i].q, seen[i].out, seen[i].cosine, seen[i].sine};
        for (int j = 0; j < 6; j++) free(all[j]);
    }
    engine->ops->cache_destroy(cache);
    trainer_destroy(t);
    kakeya_engine_close(engine);
}

/* ------------------------------------------------------------------------------------------------- own answers */

enum { ANSWER = 24, PROMPT = 12 };

static bool stopped;
static bool is_stopped(void) { return stopped; }

/* What the answers give for prompt `index`, copied; -1 behind it. */
static void own(train_answers *a, int index, int32_t out[LENGTH + 1]) {
    int32_t prompt[LENGTH];
    const int32_t *found;
    int n;
    sequence(prompt, index);
    REQUIRE_OK(train_answers_make(a, prompt, PROMPT, &found, &n, error));
    assert_true(n > PROMPT && n <= PROMPT + ANSWER);
    assert_memory_equal(found, prompt, PROMPT * sizeof *prompt);
    memcpy(out, found, (size_t)n * sizeof *out);
    out[n] = -1;
}

static bool same_answer(const int32_t *a, const int32_t *b) {
    for (int i = 0;; i++) {
        if (a[i] != b[i]) return false;
        if (a[i] < 0) return true;
    }
}

/* Greedy: what a session of its own answers. Sampled: decided by prompt and seed alone, not by what came before. */
static void own_answers(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("gemma4-tiny-dense", 1);
    train_answers_options o = {.at_a_time = 1, .context = LENGTH, .tokens = ANSWER, .interrupted = is_stopped};
    train_answers *answers = NULL;
    int32_t first[LENGTH + 1], second[LENGTH + 1], again[LENGTH + 1];
    for (int sampled = 0; sampled < 2; sampled++) {
        o.temperature = (float)sampled;
        o.seed = 0;
        REQUIRE_OK(train_answers_open(engine, &o, &answers, error));
        own(answers, 1, first);
        own(answers, 2, second);
        assert_false(same_answer(first, second));
        own(answers, 1, again);
        assert_true(same_answer(first, again));
        train_answers_close(answers);
        REQUIRE_OK(train_answers_open(engine, &o, &answers, error));
        own(answers, 2, again);
        assert_true(same_answer(second, again));
        train_answers_close(answers);
        o.seed = 1;
        REQUIRE_OK(train_answers_open(engine, &o, &answers, error));
        own(answers, 2, again);
        assert_int_equal(same_answer(second, again), !sampled);
        if (!sampled) {
            int32_t prompt[LENGTH];
            kakeya_session *session;
            kakeya_generate_options generate;
            KAKEYA_INIT(&generate);
            generate.max_tokens = ANSWER;
            generate.mode = KAKEYA_MODE_AR;
            sequence(prompt, 2);
            REQUIRE_OK(kakeya_session_open(engine, NULL, &session, error));
            REQUIRE_OK(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
            REQUIRE_OK(kakeya_session_generate(session, &generate, NULL, error));
            size_t n;
            const int32_t *tokens = kakeya_session_tokens(session, &n);
            assert_memory_equal(tokens, second, n * sizeof *tokens);
            assert_int_equal(second[n], -1);
            kakeya_session_close(session);
        }
        stopped = true;
        const int32_t *found;
        int n;
        kakeya_error problem = {0};
        assert_int_equal(train_answers_make(answers, first, PROMPT, &found, &n, &problem), KAKEYA_CANCELLED);
        stopped = false;
        own(answers, 2, second); /* goes on */
        assert_true(same_answer(second, again));
        train_answers_close(answers);
    }
    kakeya_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eigen),        cmocka_unit_test(too_little),  cmocka_unit_test(metric_is_a_derivative),
        cmocka_unit_test(one_solution), cmocka_unit_test(own_answers),
    };
    return cmocka_run_group_tests_name("training", tests, scratch_setup, scratch_teardown);
}
