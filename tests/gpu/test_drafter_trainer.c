/* The trainer of drafters on a device against the CPU's, whose gradients are checked by numerical differentiation
 * (tests/unit/test_drafter_trainer.c): the same results, and near gradients of every tensor. Sequences of several
 * lengths learn together. Also compiled against a fake device, for which the kernels of training run on the host. */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>

#include "backend/backend_train.h"
#include "model/block_drafter_values.h"
#include "model/tensors.h"
#include "unit/tiny.h"

enum { LENGTH = 24, MOST_AUX = 4 * 64, BLOCKS = 2, SEQUENCES = 3 };

typedef struct pupil {
    backend_model *model;
    const backend_ops *backend;
    const backend_train_ops *ops;
    backend_drafter_trainer *trainer;
    float *gradient;
    drafter_trainer_result result[SEQUENCES];
} pupil;

static double draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (double)(1 << 23) - 1;
}

static void learn(pupil *p, tiny *t, const char *backend, const drafter_trainer_options *o, const float *weights,
                  const drafter_trainer_sequence *given, size_t n) {
    p->backend = backend_find(backend, NULL);
    assert_non_null(p->backend);
    /* without the drafter: a device need not be able to draft with what it trains */
    const backend_model_options options = {.verifier = t->verifier,
                                           .precision = strcmp(backend, "cpu") == 0 ? KAKEYA_PRECISION_F32
                                                                                    : KAKEYA_PRECISION_BF16,
                                           .threads = 1,
                                           .account = &t->account};
    REQUIRE_OK(p->backend->model_create(&options, &p->model, error));
    p->ops = backend_train_find(p->backend);
    assert_non_null(p->ops);
    size_t before = mem_total(&t->account), bytes = p->ops->drafter_trainer_bytes(p->model, o);
    REQUIRE_OK(p->ops->drafter_trainer_create(p->model, o, &p->trainer, error));
    size_t grown = mem_total(&t->account) - before;
    assert_in_range(grown, bytes, bytes + (4 << 20));
    p->gradient = calloc(n, sizeof *p->gradient);
    drafter_trainer_sequence sequences[SEQUENCES];
    for (int i = 0; i < SEQUENCES; i++) {
        sequences[i] = given[i];
        sequences[i].result = &p->result[i];
    }
    p->ops->drafter_trainer_weights(p->trainer, weights);
    REQUIRE_OK(p->ops->drafter_trainer_learn(p->trainer, sequences, SEQUENCES, 0.5f, p->gradient, error));
}

/* Hidden states of chosen layers are those that a forward shows with all others. */
static void check_chosen(pupil *p, tiny *t) {
    enum { ROWS = 5, CHOSEN = 2 };
    static const int chosen[CHOSEN] = {1, 0};
    static const int32_t tokens[ROWS] = {7, 9, 11, 30, 8};
    const model_config *c = &t->verifier->config;
    size_t hidden = (size_t)c->hidden;
    float *all = calloc((size_t)(c->layers + 1) * ROWS * hidden, sizeof *all),
          *some = calloc(ROWS * CHOSEN * hidden, sizeof *some);
    const backend_cache_options options = {.context_tokens = 64,
                                           .attention = KAKEYA_ATTENTION_NATIVE,
                                           .kv_format = KV_FORMAT_BF16,
                                           .account = &t->account};
    assert_true(p->ops->chooses && c->layers > CHOSEN);
    for (int part = 0; part < 2; part++) {
        backend_cache *cache = NULL;
        REQUIRE_OK(p->backend->cache_create(p->model, &options, &cache, error));
        backend_segment segment = {.cache = cache,
                                   .tokens = tokens,
                                   .n = ROWS,
                                   .first_logit_row = ROWS,
                                   .hidden_states = part ? some : all,
                                   .chosen_layers = part ? chosen : NULL,
                                   .chosen = part ? CHOSEN : 0};
        REQUIRE_OK(p->backend->forward(p->model, &segment, 1, error));
        p->backend->cache_destroy(cache);
    }
    for (size_t row = 0; row < ROWS; row++) {
        for (size_t i = 0; i < CHOSEN; i++)
            assert_same_bits("a chosen layer's output", some + (row * CHOSEN + i) * hidden,
                             all + ((size_t)(chosen[i] + 1) * ROWS + row) * hidden, hidden);
    }
    free(all);
    free(some);
}

static void leave(pupil *p) {
    p->ops->drafter_trainer_destroy(p->trainer);
    p->backend->model_destroy(p->model);
    free(p->gradient);
}

typedef struct comparison {
    const float *found, *expected;
    size_t at;
    const char *what;
} comparison;

static kakeya_status compare_slot(void *context, const tensor_slot *slot, kakeya_error *error) {
    (void)error;
    comparison *c = context;
    size_t n = (size_t)tensor_slot_elements(slot);
    double off = 0, all = 0;
    for (size_t i = c->at; i < c->at + n; i++) {
        off += ((double)c->found[i] - (double)c->expected[i]) * ((double)c->found[i] - (double)c->expected[i]);
        all += (double)c->expected[i] * (double)c->expected[i];
    }
    c->at += n;
    if (!(sqrt(off) <= 1e-4 * sqrt(all) + 1e-9))
        fail_msg("%s, %s: gradient of length %g, off by %g", c->what, slot->name, sqrt(all), sqrt(off));
    return KAKEYA_OK;
}

static bool device_present(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

static void check(const char *drafter, bool inside, bool bidirectional) {
    if (!device_present()) skip();
    tiny t;
    tiny_open_weights(&t, "gemma4-tiny-dense", drafter);
    block_drafter_config config = t.drafter->config;
    size_t n = block_drafter_values_count(&config), width = (size_t)(config.targets * config.hidden);
    float *weights = malloc(n * sizeof *weights), *aux = malloc(SEQUENCES * LENGTH * MOST_AUX * sizeof *aux);
    uint64_t random = 5;
    block_drafter_values_begin(&config, &t.verifier->weights, 7, weights);
    for (size_t i = 0; i < SEQUENCES * LENGTH * width; i++) aux[i] = (float)draw(&random);
    static const int first[SEQUENCES][BLOCKS] = {{3, 22}, {1, 2}, {10, 13}};
    int32_t tokens[SEQUENCES][LENGTH];
    drafter_trainer_sequence given[SEQUENCES];
    for (int s = 0; s < SEQUENCES; s++) {
        tiny_tokens(tokens[s], LENGTH, 3 + (uint64_t)s);
        given[s] = (drafter_trainer_sequence){.tokens = tokens[s],
                                              .aux = aux + (size_t)s * LENGTH * width,
                                              .first = first[s],
                                              .n = s == 2 ? LENGTH - 6 : LENGTH,
                                              .blocks = s == 1 ? BLOCKS - 1 : BLOCKS};
    }
    const drafter_trainer_options o = {.drafter = &config,
                                       .sequence = LENGTH,
                                       .blocks = BLOCKS,
                                       .sequences = 2,
                                       .decay = 3,
                                       .inside_layers = inside,
                                       .block_bidirectional = bidirectional};
    pupil cpu = {0}, device = {0};
    learn(&cpu, &t, "cpu", &o, weights, given, n);
    learn(&device, &t, "cuda", &o, weights, given, n);
    for (int s = 0; s < SEQUENCES; s++) {
        const drafter_trainer_result *a = &device.result[s], *b = &cpu.result[s];
        if (!(fabs(a->loss - b->loss) <= 1e-4 * b->loss) || fabs(a->counted - b->counted) > 1e-9 ||
            a->blocks != b->blocks || a->held != b->held || memcmp(a->drafts, b->drafts, sizeof a->drafts) != 0 ||
            memcmp(a->right, b->right, sizeof a->right) != 0)
            fail_msg("%s, sequence %d: loss %g, blocks %d, held %g; expected %g, %d, %g", drafter, s, a->loss,
                     a->blocks, a->held, b->loss, b->blocks, b->held);
    }
    comparison c = {device.gradient, cpu.gradient, 0, drafter};
    REQUIRE_OK(dflash_walk(&config, compare_slot, &c, error));
    check_chosen(&device, &t);
    leave(&cpu);
    leave(&device);
    free(weights);
    free(aux);
    block_drafter_model_close(t.drafter);
    language_model_close(t.verifier);
    assert_int_equal(mem_total(&t.account), 0);
}

static void full(void **state) {
    (void)state;
    check("dflash-tiny", true, false);
}
static void sliding(void **state) {
    (void)state;
    check("dflash-sliding", true, false);
}
static void bidirectional(void **state) {
    (void)state;
    check("dflash-sliding", true, true);
}
static void outside(void **state) {
    (void)state;
    check("dflash-tiny", false, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full),
        cmocka_unit_test(sliding),
        cmocka_unit_test(bidirectional),
        cmocka_unit_test(outside),
    };
    return cmocka_run_group_tests_name("training of drafters on a device", tests, NULL, NULL);
}
