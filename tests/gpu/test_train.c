/* Distillation on the device against the CPU's, whose gradients are checked by numerical differentiation
 * (tests/unit/test_student.c): what is lost, and the gradient of every matrix of f_theta, for models with sliding and
 * full layers, K = V, experts, per-layer inputs and shared K/V. Sequences of several lengths learn together. Also
 * compiled against a fake device, for which the kernels of training run on the host. */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>

#include "backend/backend_train.h"
#include "backend/student_layout.h"
#include "unit/tiny.h"

/* Kernels on the host are slow: there the least that meets every one of them. */
#ifdef PAIR_DEVICES
enum { LEAST = true, SEQUENCES = 2, SEGMENTS = 1 };
#else
enum { LEAST = false, SEQUENCES = 3, SEGMENTS = 2 };
#endif
enum { TOGETHER = 2, LONGEST = 45, SINK = 2, WINDOW = 5 };
static const int length_of[3] = {45, 34, 39}, first_of[3][2] = {{36, 12}, {7, 25}, {20, 31}};

/* One f_theta in training on two backends. */
typedef struct students {
    mem_account account;
    gemma4_model *verifier;
    dflash_model *drafter;
    const backend_ops *ops[2];
    backend_model *model[2];
    backend_student *student[2];
    f_theta_config config;
    student_options options;
    student_layout layout;
    float *weights;
    int32_t tokens[SEQUENCES][LONGEST];
} students;

static double draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (double)(1 << 23) - 1;
}

static bool device_present(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

static void open_students(students *s, const char *verifier, const char *drafter, f_theta_latents latents, bool shared,
                          student_loss loss, int rows) {
    memset(s, 0, sizeof *s);
    mem_account_init(&s->account, NULL, 0);
    REQUIRE_OK(gemma4_model_open(verifier, &s->account, &s->verifier, error));
    gemma4_config *c = &s->verifier->config;
    c->sliding_window = 16;
    s->config = (f_theta_config){.input = F_THETA_AUX_HIDDEN, .hidden = c->hidden, .latents = latents};
    s->config.aux_layers = f_theta_default_taps(c, 2, s->config.aux_layer);
    if (drafter) {
        REQUIRE_OK(dflash_model_open(drafter, c, &s->account, &s->drafter, error));
        const dflash_config *d = &s->drafter->config;
        s->config = (f_theta_config){.input = F_THETA_DRAFTER_CONTEXT_KV,
                                     .drafter_layers = d->layers,
                                     .drafter_kv_heads = d->kv_heads,
                                     .drafter_head_dim = d->head_dim,
                                     .latents = latents};
    }
    f_theta_config_fit(&s->config, c, 24, shared ? 24 : 13, shared);
    s->layout = student_layout_of(&s->config, c);
    s->weights = malloc(s->layout.n * sizeof *s->weights);
    uint64_t random = 11;
    for (size_t i = 0; i < s->layout.n; i++) s->weights[i] = (float)(0.2 * draw(&random));
    for (int i = 0; i < SEQUENCES; i++) tiny_tokens(s->tokens[i], LONGEST, 3 + (uint64_t)i);
    s->options = (student_options){.f_theta = &s->config,
                                   .sequence = LONGEST,
                                   .rows = rows,
                                   .sequences = TOGETHER,
                                   .segments = SEGMENTS,
                                   .sink = SINK,
                                   .window = WINDOW,
                                   .loss = loss,
                                   .kl = 1,
                                   .hidden = 0.7f,
                                   .attention = 0.6f,
                                   .kv = 0.5f,
                                   .lambda = {1, 0.8f, 0.1f, 0.2f}};
    for (int b = 0; b < 2; b++) {
        const backend_model_options options = {.verifier = s->verifier,
                                               .drafter = s->drafter,
                                               .precision = b ? KAKEYA_PRECISION_BF16 : KAKEYA_PRECISION_F32,
                                               .threads = 1,
                                               .account = &s->account};
        s->ops[b] = backend_find(b ? "cuda" : "cpu", NULL);
        REQUIRE_OK(s->ops[b]->model_create(&options, &s->model[b], error));
        REQUIRE_OK(backend_train_find(s->ops[b])->student_create(s->model[b], &s->options, &s->student[b], error));
        backend_train_find(s->ops[b])->student_weights(s->student[b], s->weights);
    }
}

static void close_students(students *s) {
    for (int b = 0; b < 2; b++) {
        backend_train_find(s->ops[b])->student_destroy(s->student[b]);
        s->ops[b]->model_destroy(s->model[b]);
    }
    if (s->drafter) dflash_model_close(s->drafter);
    gemma4_model_close(s->verifier);
    free(s->weights);
    assert_int_equal(mem_total(&s->account), 0);
}

/* Sequences in turns are decoded and prompts, which of them first depends on their rows. */
static student_segment segment_of(const students *s, int sequence, int k) {
    return (student_segment){.first = first_of[sequence][k],
                             .all_layers = (sequence + k) % 2,
                             .prompt = (sequence + s->options.rows / 2) % 2 == 0,
                             .scale = 0.25f};
}

static void learn_cpu(students *s, float *gradient, student_result results[SEQUENCES][SEGMENTS]) {
    const backend_train_ops *ops = backend_train_find(s->ops[0]);
    for (int i = 0; i < SEQUENCES; i++) {
        const backend_cache_options options = {.context_tokens = LONGEST,
                                               .attention = KAKEYA_ATTENTION_NATIVE,
                                               .kv_format = KV_FORMAT_F32,
                                               .account = &s->account};
        backend_cache *cache = NULL;
        REQUIRE_OK(s->ops[0]->cache_create(s->model[0], &options, &cache, error));
        REQUIRE_OK(ops->student_teach(s->student[0], cache, s->tokens[i], length_of[i], error));
        s->ops[0]->cache_destroy(cache);
        for (int k = 0; k < SEGMENTS; k++) {
            student_segment segment = segment_of(s, i, k);
            ops->student_learn(s->student[0], &segment, gradient, &results[i][k]);
        }
    }
}

static void learn_cuda(students *s, float *gradient, student_result results[SEQUENCES][SEGMENTS]) {
    student_sequence sequences[SEQUENCES];
    student_segment segments[SEQUENCES][SEGMENTS];
    for (int i = 0; i < SEQUENCES; i++) {
        for (int k = 0; k < SEGMENTS; k++) segments[i][k] = segment_of(s, i, k);
        sequences[i] = (student_sequence){.tokens = s->tokens[i],
                                          .n = length_of[i],
                                          .segments = segments[i],
                                          .results = results[i],
                                          .n_segments = SEGMENTS};
    }
    REQUIRE_OK(backend_train_find(s->ops[1])->student_learn_many(s->student[1], sequences, SEQUENCES, gradient, error));
}

static void check_value(const char *what, const char *part, double found, double wanted) {
    if (!(fabs(found - wanted) <= 2e-4 * (1e-3 + fabs(wanted))))
        fail_msg("%s: %s is %.8g, the CPU's %.8g", what, part, found, wanted);
}

static void check_matrix(const char *what, const char *name, int layer, const float *found, const float *wanted,
                         size_t n) {
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        off += pow((double)found[i] - (double)wanted[i], 2);
        size += pow((double)wanted[i], 2);
    }
    if (!(sqrt(off) <= 1e-3 * sqrt(size) + 1e-8))
        fail_msg("%s: the gradient of %s %d differs by %g of %g", what, name, layer, sqrt(off), sqrt(size));
}

/* Again: the same bits, and the same loss without a gradient. */
static void check_repeats(students *s, const float *gradient, student_result results[SEQUENCES][SEGMENTS]) {
    float *again = calloc(s->layout.n, sizeof(float));
    student_result twice[SEQUENCES][SEGMENTS];
    learn_cuda(s, again, twice);
    assert_same_bits("gradients", again, gradient, s->layout.n);
    learn_cuda(s, NULL, twice);
    assert_memory_equal(twice, results, sizeof twice);
    free(again);
}

static void compare(const char *verifier, const char *drafter, f_theta_latents latents, bool shared, student_loss loss,
                    int rows, bool repeat) {
    students s;
    char what[256];
    snprintf(what, sizeof what, "%s, loss %d, %d rows, latents %d", strrchr(verifier, '/') + 1, (int)loss, rows,
             (int)latents);
    open_students(&s, verifier, drafter, latents, shared, loss, rows);
    float *gradient[2];
    student_result results[2][SEQUENCES][SEGMENTS];
    for (int b = 0; b < 2; b++) gradient[b] = calloc(s.layout.n, sizeof(float));
    learn_cpu(&s, gradient[0], results[0]);
    learn_cuda(&s, gradient[1], results[1]);
    for (int i = 0; i < SEQUENCES; i++) {
        for (int k = 0; k < SEGMENTS; k++) {
            const student_result *found = &results[1][i][k], *wanted = &results[0][i][k];
            check_value(what, "attention", found->attention, wanted->attention);
            check_value(what, "hidden", found->hidden, wanted->hidden);
            check_value(what, "K/V", found->kv, wanted->kv);
            check_value(what, "KL", found->kl, wanted->kl);
            check_value(what, "loss", found->loss, wanted->loss);
        }
    }
    for (int half = 0; half < 2; half++) {
        size_t rank = (size_t)(half ? s.config.rank_v : s.config.rank_k), at = s.layout.encoder[half];
        for (int i = s.config.layers - 1; i >= 0; i--) {
            size_t decoder = s.layout.decoder[half][i];
            if (s.layout.decoder_there[i])
                check_matrix(what, half ? "values' decoder" : "keys' decoder", i, gradient[1] + decoder,
                             gradient[0] + decoder, rank * (size_t)(s.config.kv_heads[i] * s.config.head_dim[i]));
        }
        if (s.layout.encoder_there[half])
            check_matrix(what, "encoder", half, gradient[1] + at, gradient[0] + at,
                         rank * (size_t)f_theta_encoder_in(&s.config));
    }
    if (repeat) check_repeats(&s, gradient[1], results[1]);
    free(gradient[0]);
    free(gradient[1]);
    close_students(&s);
}

#define TINY(name) KAKEYA_TEST_DATA "/golden/" name

static void learns_as_the_cpu(void **state) {
    (void)state;
    if (!device_present()) skip();
    if (!LEAST) compare(TINY("gemma4-tiny-dense"), NULL, F_THETA_LATENTS_KV, true, STUDENT_DISTIL, 6, false);
    compare(TINY("gemma4-tiny-dense"), TINY("dflash-tiny"), F_THETA_LATENTS_Q8, false, STUDENT_DISTIL, 8, false);
    compare(TINY("gemma4-tiny-moe"), NULL, F_THETA_LATENTS_Q8, true, STUDENT_DISTIL, 6, !LEAST);
    compare(TINY("gemma4-tiny-ple"), NULL, F_THETA_LATENTS_Q4, false, STUDENT_DISTIL, 6, false);
}

static void losses_are_the_cpus(void **state) {
    (void)state;
    if (!device_present()) skip();
    for (int loss = LEAST ? STUDENT_ATTN_DISTIL_HYBRID : STUDENT_MSE; loss < STUDENT_LOSSES; loss++)
        compare(TINY("gemma4-tiny-moe"), NULL, F_THETA_LATENTS_KV, loss == STUDENT_MSE, (student_loss)loss, 6, false);
    if (!LEAST) compare(TINY("gemma4-tiny-ple"), NULL, F_THETA_LATENTS_KV, true, STUDENT_ATTN_DISTIL_HYBRID, 6, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learns_as_the_cpu),
        cmocka_unit_test(losses_are_the_cpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
