/* Distillation: gradients of rows against numerical differentiation in float64; the gradient of every loss with respect
 * to every matrix of f_theta, on models with sliding and full layers, K = V, experts, per-layer inputs and shared K/V;
 * a student that decodes what a session decodes; and what must be nothing. */
#include <math.h>
#include <stdlib.h>

#include "backend/backend_train.h"
#include "backend/cpu/backward.h"
#include "backend/restoration_layout.h"
#include "tiny.h"

static double draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (double)(1 << 23) - 1;
}

static void fill(double *x, int n, uint64_t *random) {
    for (int i = 0; i < n; i++) x[i] = draw(random);
}

/* ---------------------------------------------------------------------------------------------- gradients of rows */

enum { N = 12, HALF = N / 2, PAIRS = 4 };

/* A function of N values whose output is weighed with `w` into one number, and its gradient. */
typedef struct row_case {
    const char *name;
    double (*value)(const double *x, const double *w);
    void (*gradient)(const double *x, const double *w, double *d_x);
} row_case;

static double gain[N], other[N], cosine[PAIRS], sine[PAIRS];
static const double eps = 1e-6, cap = 1.5;

static double dot(const double *a, const double *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static double norm_value(const double *x, const double *w) {
    double s = 1 / sqrt(dot(x, x, N) / N + eps), sum = 0;
    for (int i = 0; i < N; i++) sum += x[i] * s * gain[i] * w[i];
    return sum;
}
static void norm_gradient(const double *x, const double *w, double *d) { backward64_rms_norm(x, gain, w, N, eps, d); }

static double rope_value(const double *x, const double *w) {
    double y[N];
    memcpy(y, x, sizeof y);
    for (int j = 0; j < PAIRS; j++) {
        y[j] = x[j] * cosine[j] - x[j + HALF] * sine[j];
        y[j + HALF] = x[j + HALF] * cosine[j] + x[j] * sine[j];
    }
    return dot(y, w, N);
}
static void rope_gradient(const double *x, const double *w, double *d) {
    (void)x;
    memcpy(d, w, N * sizeof *d);
    backward64_rope(d, HALF, PAIRS, cosine, sine);
}

/* gate and up are the two halves of x */
static double gated_value(const double *x, const double *w) {
    double sum = 0;
    for (int i = 0; i < HALF; i++) {
        double u = sqrt(2 / acos(-1.0)) * (x[i] + 0.044715 * x[i] * x[i] * x[i]);
        sum += 0.5 * x[i] * (1 + tanh(u)) * x[i + HALF] * w[i];
    }
    return sum;
}
static void gated_gradient(const double *x, const double *w, double *d) {
    backward64_gated(x, x + HALF, w, HALF, d, d + HALF);
}

static void softmax(const double *x, double *p) {
    double sum = 0;
    for (int i = 0; i < N; i++) sum += p[i] = exp(x[i]);
    for (int i = 0; i < N; i++) p[i] /= sum;
}
static double softmax_value(const double *x, const double *w) {
    double p[N];
    softmax(x, p);
    return dot(p, w, N);
}
static void softmax_gradient(const double *x, const double *w, double *d) {
    double p[N];
    softmax(x, p);
    memcpy(d, w, N * sizeof *d);
    backward64_softmax(p, N, d);
}

static double route_value(const double *x, const double *w) {
    double p[N];
    softmax(x, p);
    for (int i = 0; i < N; i++) p[i] *= gain[i];
    return dot(p, w, N);
}
static void route_gradient(const double *x, const double *w, double *d) {
    double p[N];
    softmax(x, p);
    for (int i = 0; i < N; i++) p[i] *= gain[i];
    backward64_route(p, gain, w, N, d);
}

static void soft_cap(const double *x, double *y) {
    for (int i = 0; i < N; i++) y[i] = cap * tanh(x[i] / cap);
}
static double kl_value(const double *x, const double *w) {
    double p[N], z[N];
    (void)w;
    soft_cap(other, p);
    soft_cap(x, z);
    return backward64_kl(p, z, N, cap, 0);
}
static void kl_gradient(const double *x, const double *w, double *d) {
    double p[N];
    (void)w;
    soft_cap(other, p);
    soft_cap(x, d);
    backward64_kl(p, d, N, cap, 1);
}

#define COMPARED(what)                                                                                                 \
    static double what##_value(const double *x, const double *w) {                                                     \
        double ignored[N] = {0};                                                                                       \
        (void)w;                                                                                                       \
        return backward64_##what(x, other, N, 0, ignored);                                                             \
    }                                                                                                                  \
    static void what##_gradient(const double *x, const double *w, double *d) {                                         \
        (void)w;                                                                                                       \
        backward64_##what(x, other, N, 1, d);                                                                          \
    }
COMPARED(direction)
COMPARED(magnitude)
COMPARED(square)

static void rows_are_derivatives(void **state) {
    (void)state;
    static const row_case cases[] = {
        {"rms_norm", norm_value, norm_gradient},
        {"rope", rope_value, rope_gradient},
        {"gated", gated_value, gated_gradient},
        {"softmax", softmax_value, softmax_gradient},
        {"route", route_value, route_gradient},
        {"kl", kl_value, kl_gradient},
        {"direction", direction_value, direction_gradient},
        {"magnitude", magnitude_value, magnitude_gradient},
        {"square", square_value, square_gradient},
    };
    const double step = 1e-5;
    uint64_t random = 5;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (int round = 0; round < 4; round++) {
            double x[N], w[N], d[N] = {0};
            fill(x, N, &random);
            fill(w, N, &random);
            fill(gain, N, &random);
            fill(other, N, &random);
            for (int j = 0; j < PAIRS; j++) {
                cosine[j] = cos(j + round);
                sine[j] = sin(j + round);
            }
            cases[c].gradient(x, w, d);
            for (int i = 0; i < N; i++) {
                double at = x[i];
                x[i] = at + step;
                double up = cases[c].value(x, w);
                x[i] = at - step;
                double down = cases[c].value(x, w), found = (up - down) / (2 * step);
                x[i] = at;
                if (!(fabs(found - d[i]) <= 1e-8 * (1 + fabs(found))))
                    fail_msg("%s, value %d: %.10g, differentiated %.10g", cases[c].name, i, d[i], found);
            }
        }
    }
}

/* ---------------------------------------------------------------------------------------------------- a student */

enum { LENGTH = 40, ROWS = 6, SINK = 1, WINDOW = 4, FIRST = 30 };

typedef struct fixture {
    tiny t;
    const backend_train_ops *ops;
    backend_restoration_trainer *trainer;
    restoration_config config;
    restoration_layout layout;
    float *weights;
    int32_t tokens[LENGTH];
} fixture;

static void open_layers(fixture *l, const char *verifier, const char *drafter, int layers, restoration_latents latents,
                        bool shared, restoration_loss loss, int rows, int threads) {
    memset(l, 0, sizeof *l);
    tiny_open_weights(&l->t, verifier, drafter);
    l->t.verifier->config.sliding_window = 12;
    if (layers) l->t.verifier->config.layers = layers;
    const model_config *c = &l->t.verifier->config;
    l->config = (restoration_config){.input = RESTORATION_AUX_HIDDEN, .hidden = c->hidden, .latents = latents};
    l->config.aux_layers = restoration_default_taps(c, 2, l->config.aux_layer);
    if (drafter) {
        const block_drafter_config *d = &l->t.drafter->config;
        l->config = (restoration_config){.input = RESTORATION_DRAFTER_CONTEXT_KV,
                                         .drafter_layers = d->layers,
                                         .drafter_kv_heads = d->kv_heads,
                                         .drafter_head_dim = d->head_dim,
                                         .latents = latents};
    }
    restoration_config_fit(&l->config, c, 10, shared ? 10 : 7, shared);
    REQUIRE_OK(restoration_model_synthesize_as(&l->config, WEIGHT_F32, false, &l->t.account, &l->t.f_theta, error));
    tiny_complete(&l->t, KAKEYA_PRECISION_F32, threads == 1 ? "scalar" : NULL, threads);
    l->ops = backend_train_find(l->t.ops);
    l->layout = restoration_layout_of(&l->config, c);
    l->weights = malloc(l->layout.n * sizeof *l->weights);
    uint64_t random = 11;
    for (size_t i = 0; i < l->layout.n; i++) l->weights[i] = (float)(0.3 * draw(&random));
    const restoration_trainer_options o = {.restoration = &l->config,
                                           .sequence = LENGTH,
                                           .rows = rows,
                                           .sink = SINK,
                                           .window = WINDOW,
                                           .loss = loss,
                                           .kl = 1,
                                           .hidden = 0.7f,
                                           .attention = 0.6f,
                                           .kv = 0.5f,
                                           .lambda = {1, 0.8f, 0.1f, 0.2f}};
    size_t before = mem_total(&l->t.account), bytes = l->ops->restoration_trainer_bytes(l->t.backend, &o);
    REQUIRE_OK(l->ops->restoration_trainer_create(l->t.backend, &o, &l->trainer, error));
    assert_in_range(mem_total(&l->t.account) - before, bytes, bytes + 256); /* the allocator rounds */
    l->ops->restoration_trainer_weights(l->trainer, l->weights);
    tiny_tokens(l->tokens, LENGTH, 3);
    for (int i = 0; i < LENGTH; i++) l->tokens[i] %= l->t.verifier->config.vocab;
}

static void open_on(fixture *l, const char *verifier, const char *drafter, restoration_latents latents, bool shared,
                    restoration_loss loss, int rows, int threads) {
    open_layers(l, verifier, drafter, 0, latents, shared, loss, rows, threads);
}

static void teach(fixture *l) {
    const backend_cache_options options = {.context_tokens = LENGTH,
                                           .attention = KAKEYA_ATTENTION_NATIVE,
                                           .kv_format = KV_FORMAT_F32,
                                           .account = &l->t.account};
    backend_cache *cache = NULL;
    REQUIRE_OK(l->t.ops->cache_create(l->t.backend, &options, &cache, error));
    REQUIRE_OK(l->ops->restoration_trainer_teach(l->trainer, cache, l->tokens, LENGTH, error));
    l->t.ops->cache_destroy(cache);
}

static void close_fixture(fixture *l) {
    l->ops->restoration_trainer_destroy(l->trainer);
    free(l->weights);
    tiny_close(&l->t);
}

static restoration_trainer_result learn_rows(fixture *l, bool all_layers, bool prompt, float *gradient) {
    const restoration_trainer_segment segment = {
        .first = FIRST, .all_layers = all_layers, .prompt = prompt, .scale = 1};
    restoration_trainer_result r;
    if (gradient) memset(gradient, 0, l->layout.n * sizeof *gradient);
    l->ops->restoration_trainer_weights(l->trainer, l->weights);
    l->ops->restoration_trainer_learn(l->trainer, &segment, gradient, &r);
    return r;
}

static restoration_trainer_result learn(fixture *l, bool all_layers, float *gradient) {
    return learn_rows(l, all_layers, false, gradient);
}

/* Along the gradient of one matrix, in float32: central differences of two steps, without the error of the third order.
 * Steps are short: where a row changes an expert, the loss has a jump. */
static void check_matrix(fixture *l, const char *what, bool all_layers, double loss_here, const float *gradient,
                         size_t at, size_t n) {
    double square = 0, change[2];
    for (size_t i = at; i < at + n; i++) square += (double)gradient[i] * (double)gradient[i];
    double length = sqrt(square);
    if (length < 1e-7) return; /* nothing that a float32 loss would show */
    float *kept = malloc(n * sizeof *kept);
    memcpy(kept, l->weights + at, n * sizeof *kept);
    for (int twice = 0; twice < 2; twice++) {
        double step = fmin(0.02, 0.0005 * loss_here / length) * (1 + twice), loss[2];
        for (int sign = 0; sign < 2; sign++) {
            for (size_t i = 0; i < n; i++)
                l->weights[at + i] =
                    (float)((double)kept[i] + (sign ? -step : step) * (double)gradient[at + i] / length);
            loss[sign] = learn(l, all_layers, NULL).loss;
        }
        change[twice] = (loss[0] - loss[1]) / (2 * step);
    }
    memcpy(l->weights + at, kept, n * sizeof *kept);
    free(kept);
    double found = (4 * change[0] - change[1]) / 3;
    if (!(fabs(found - length) <= 0.01 * length + 2e-5))
        fail_msg("%s: gradient %g, differentiated %g", what, length, found);
}

static void check_gradients(const char *model, const char *drafter, bool shared, restoration_loss loss) {
    fixture l;
    open_on(&l, model, drafter, RESTORATION_LATENTS_KV, shared, loss, ROWS, 1);
    teach(&l);
    float *gradient = malloc(l.layout.n * sizeof *gradient);
    for (int all_layers = 0; all_layers < 2; all_layers++) {
        restoration_trainer_result r = learn(&l, all_layers, gradient);
        if (!(r.loss > 1e-3)) fail_msg("%s, loss %d: nothing is lost", model, loss);
        double whole = 0;
        for (size_t i = 0; i < l.layout.n; i++) whole += (double)gradient[i] * (double)gradient[i];
        if (!(whole > 0)) fail_msg("%s, loss %d: no gradient", model, loss);
        for (int half = 0; half < 2; half++) {
            char what[160];
            size_t rank = (size_t)(half ? l.config.rank_v : l.config.rank_k);
            snprintf(what, sizeof what, "%s, loss %d, all layers %d, encoder %d", model, loss, all_layers, half);
            if (l.layout.encoder_there[half])
                check_matrix(&l, what, all_layers, r.loss, gradient, l.layout.encoder[half],
                             rank * (size_t)restoration_encoder_in(&l.config));
            for (int i = 0; i < l.config.layers; i++) {
                if (!l.layout.decoder_there[i]) continue;
                snprintf(what, sizeof what, "%s, loss %d, all layers %d, decoder %d of layer %d", model, loss,
                         all_layers, half, i);
                check_matrix(&l, what, all_layers, r.loss, gradient, l.layout.decoder[half][i],
                             rank * (size_t)(l.config.kv_heads[i] * l.config.head_dim[i]));
            }
        }
    }
    free(gradient);
    close_fixture(&l);
}

static void students_gradients(void **state) {
    (void)state;
    check_gradients("gemma4-tiny-dense", NULL, true, RESTORATION_LOSS_DISTIL);
    check_gradients("gemma4-tiny-dense", "dflash-tiny", false, RESTORATION_LOSS_DISTIL);
    check_gradients("gemma4-tiny-ple", NULL, false, RESTORATION_LOSS_DISTIL);
    check_gradients("gemma4-tiny-moe", NULL, true, RESTORATION_LOSS_DISTIL);
    check_gradients("forms/gemma3-nested", NULL, true, RESTORATION_LOSS_DISTIL); /* values that pass no norm */
    for (int loss = RESTORATION_LOSS_MSE; loss < RESTORATION_LOSSES; loss++)
        check_gradients("gemma4-tiny-dense", NULL, false, (restoration_loss)loss);
    check_gradients("gemma4-tiny-ple", NULL, true, RESTORATION_LOSS_ATTN_DISTIL_HYBRID);
}

/* For tools/check_f_theta_trainer.py, which computes the same with PyTorch. */
static void write_case(const fixture *l, const char *directory, const char *model, bool shared, bool all_layers,
                       const restoration_trainer_result *r, const float *gradient) {
    static const char *const bits[] = {"false", "true"};
    char path[512];
    snprintf(path, sizeof path, "%s/%s-%d-%d.json", directory, model, shared, all_layers);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "{\"model\": \"%s\", \"shared\": %s, \"all_layers\": %s, \"rank\": [%d, %d], \"loss\": %.9g,\n",
            model, bits[shared], bits[all_layers], l->config.rank_k, l->config.rank_v, r->loss);
    fprintf(file, "\"weights\": {\"kl\": 1, \"hidden\": 0.7, \"attention\": 0.6, \"kv\": 0.5},\n");
    fprintf(file, "\"sliding_window\": %d, \"first\": %d, \"rows\": %d, \"sink\": %d, \"window\": %d,\n\"taps\": [",
            l->t.verifier->config.sliding_window, FIRST, ROWS, SINK, WINDOW);
    for (int i = 0; i < l->config.aux_layers; i++) fprintf(file, "%s%d", i ? ", " : "", l->config.aux_layer[i]);
    fprintf(file, "],\n\"tokens\": [");
    for (int i = 0; i < LENGTH; i++) fprintf(file, "%s%d", i ? ", " : "", l->tokens[i]);
    fprintf(file, "]}\n");
    assert_int_equal(fclose(file), 0);
    snprintf(path, sizeof path, "%s/%s-%d-%d.f32", directory, model, shared, all_layers);
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(l->weights, sizeof(float), l->layout.n, file), l->layout.n);
    assert_int_equal(fwrite(gradient, sizeof(float), l->layout.n, file), l->layout.n);
    assert_int_equal(fclose(file), 0);
}

static void writes_cases(void **state) {
    (void)state;
    static const char *const models[] = {"gemma4-tiny-dense", "gemma4-tiny-moe"};
    const char *directory = getenv("KAKEYA_F_THETA_TRAINER_CASES");
    if (!directory) return;
    for (int i = 0; i < 4; i++) {
        fixture l;
        open_on(&l, models[i / 2], NULL, RESTORATION_LATENTS_KV, i % 2, RESTORATION_LOSS_DISTIL, ROWS, 1);
        teach(&l);
        float *gradient = malloc(l.layout.n * sizeof *gradient);
        for (int all_layers = 0; all_layers < 2; all_layers++) {
            restoration_trainer_result r = learn(&l, all_layers, gradient);
            write_case(&l, directory, models[i / 2], i % 2, all_layers, &r, gradient);
        }
        free(gradient);
        close_fixture(&l);
    }
}

/* The same bits for any number of threads. */
static void threads_change_nothing(void **state) {
    (void)state;
    float *gradient[2];
    restoration_trainer_result result[2];
    size_t n = 0;
    for (int i = 0; i < 2; i++) {
        fixture l;
        open_on(&l, "gemma4-tiny-moe", NULL, RESTORATION_LATENTS_Q8, true, RESTORATION_LOSS_DISTIL, ROWS, i ? 3 : 2);
        teach(&l);
        n = l.layout.n;
        gradient[i] = malloc(n * sizeof *gradient[i]);
        result[i] = learn(&l, true, gradient[i]);
        close_fixture(&l);
    }
    assert_same_bits("gradients", gradient[0], gradient[1], n);
    assert_memory_equal(&result[0], &result[1], sizeof result[0]);
    free(gradient[0]);
    free(gradient[1]);
}

/* Where no row sees an evicted position there is nothing to lose and no gradient. */
static void nothing_evicted(void **state) {
    (void)state;
    fixture l;
    open_on(&l, "gemma4-tiny-dense", NULL, RESTORATION_LATENTS_KV, true, RESTORATION_LOSS_DISTIL, 3, 1);
    teach(&l);
    float *gradient = calloc(l.layout.n, sizeof *gradient);
    const restoration_trainer_segment segment = {.first = SINK, .all_layers = true, .scale = 1};
    restoration_trainer_result r;
    l.ops->restoration_trainer_learn(l.trainer, &segment, gradient, &r);
    if (!(r.loss < 1e-9)) fail_msg("without eviction %g is lost", r.loss);
    for (size_t i = 0; i < l.layout.n; i++) assert_true(gradient[i] == 0);
    free(gradient);
    close_fixture(&l);
}

/* What a session decodes, a student decodes: the loss in the logits of a session's rows is the student's KL. The same
 * of a later turn's prompt behind one decoded row: in one layer, since behind it that row's own K/V come from restored
 * attention, which a student leaves out. */
static void check_as_session(bool prompt, int layers) {
    static const char *const models[] = {"gemma4-tiny-dense", "gemma4-tiny-moe", "gemma4-tiny-ple",
                                         "forms/gemma3-nested"};
    for (int m = 0; m < (layers ? 2 : 4); m++) { /* per-layer inputs are made for all layers */
        for (int all_layers = 0; all_layers < 2; all_layers++) {
            fixture l;
            open_layers(&l, models[m], NULL, layers, m == 1 ? RESTORATION_LATENTS_Q8 : RESTORATION_LATENTS_KV, m == 0,
                        RESTORATION_LOSS_DISTIL, WINDOW, 1);
            teach(&l);
            const restoration_model *f = l.t.f_theta;
            for (int half = 0; half < 2; half++) {
                const weight *encoder = half ? &f->encoder_v : &f->encoder_k;
                for (int r = 0; r < encoder->out && l.layout.encoder_there[half]; r++)
                    l.ops->weight_row(l.t.backend, encoder, r,
                                      l.weights + l.layout.encoder[half] + (size_t)r * (size_t)encoder->in);
                for (int i = 0; i < l.config.layers; i++) {
                    const weight *decoder = half ? &f->decoder_v[i] : &f->decoder_k[i];
                    for (int r = 0; r < decoder->out && l.layout.decoder_there[i]; r++)
                        l.ops->weight_row(l.t.backend, decoder, r,
                                          l.weights + l.layout.decoder[half][i] + (size_t)r * (size_t)decoder->in);
                }
            }
            double kl = learn_rows(&l, all_layers, prompt, NULL).kl, found = 0;
            int vocab = l.t.verifier->config.vocab;
            float *logits[2];
            for (int restored = 0; restored < 2; restored++) {
                const backend_cache_options options = {
                    .context_tokens = LENGTH,
                    .attention = restored ? KAKEYA_ATTENTION_RESTORED : KAKEYA_ATTENTION_NATIVE,
                    .restore_layers = all_layers ? KAKEYA_RESTORE_ALL : KAKEYA_RESTORE_SLIDING,
                    .sink = SINK,
                    .window = WINDOW,
                    .draft_window = 24,
                    .kv_format = KV_FORMAT_F32,
                    .account = &l.t.account};
                backend_cache *cache = NULL;
                logits[restored] = malloc((size_t)(WINDOW * vocab) * sizeof(float));
                float *first = malloc((size_t)vocab * sizeof(float));
                REQUIRE_OK(l.t.ops->cache_create(l.t.backend, &options, &cache, error));
                int decoded = prompt ? 1 : 0;
                tiny_step(&l.t, cache, SEGMENT_PROMPT, l.tokens, FIRST - decoded, FIRST - decoded, NULL);
                if (prompt) tiny_step(&l.t, cache, SEGMENT_DECODE, l.tokens + FIRST - 1, 1, 1, first);
                tiny_step(&l.t, cache, prompt ? SEGMENT_PROMPT : SEGMENT_DECODE, l.tokens + FIRST, WINDOW, WINDOW,
                          logits[restored]);
                l.t.ops->cache_destroy(cache);
                free(first);
            }
            for (int r = 0; r < WINDOW; r++)
                found += (double)backward_kl(logits[0] + r * vocab, logits[1] + r * vocab, vocab, 0, 0) / WINDOW;
            if (!(kl > 1e-4) || !(fabs(kl - found) <= 1e-3 * kl))
                fail_msg("%s, all layers %d, prompt %d: the student's KL is %g, a session's %g", models[m], all_layers,
                         prompt, kl, found);
            free(logits[0]);
            free(logits[1]);
            close_fixture(&l);
        }
    }
}

static void decodes_as_sessions(void **state) {
    (void)state;
    check_as_session(false, 0);
}

static void prompts_as_sessions(void **state) {
    (void)state;
    check_as_session(true, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_derivatives), cmocka_unit_test(decodes_as_sessions),
        cmocka_unit_test(nothing_evicted),      cmocka_unit_test(students_gradients),
        cmocka_unit_test(prompts_as_sessions),  cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(writes_cases),
    };
    return cmocka_run_group_tests_name("students", tests, NULL, NULL);
}
