/* Distillation on the device against the CPU's, whose gradients are checked by numerical differentiation
 * (tests/unit/test_f_theta_trainer.c): what is lost, and the gradient of every matrix of f_theta, for models with
 * sliding and full layers, K = V, experts, per-layer inputs and shared K/V. Sequences of several lengths learn
 * together. Also compiled against a fake device, for which the kernels of training run on the host. */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>

#include "backend/backend_train.h"
#include "backend/cuda/split_products.h"
#include "backend/restoration_layout.h"
#include "unit/tiny.h"

/* Kernels on the host are slow: there the least that meets every one of them. */
#ifdef PAIR_DEVICES
enum { LEAST = true, SEQUENCES = 2, SEGMENTS = 1 };
#else
enum { LEAST = false, SEQUENCES = 3, SEGMENTS = 2 };
#endif
enum { ROUNDED = 256, TOGETHER = 2, LONGEST = 45, SINK = 2, WINDOW = 5 };
static const int length_of[3] = {45, 34, 39}, first_of[3][2] = {{36, 12}, {7, 25}, {20, 31}};

/* One f_theta in training on two backends. */
typedef struct students {
    mem_account account;
    language_model *verifier;
    block_drafter_model *drafter;
    const backend_ops *ops[2];
    backend_model *model[2];
    backend_restoration_trainer *trainer[2];
    restoration_config config;
    restoration_trainer_options options;
    restoration_layout layout;
    float *weights;
    int32_t tokens[SEQUENCES][LONGEST];
    void *rounded[ROUNDED]; /* matrices in bf16 */
    int n_rounded;
} students;

#ifdef PAIR_DEVICES
extern bool fake_multiplies;
#endif

/* How far losses and gradients may differ, as shares: in float32, and where products round to bf16. */
typedef struct tolerance {
    double loss, gradient;
} tolerance;

static double draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (double)(1 << 23) - 1;
}

static bool device_present(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

/* The matrix becomes what is left of it in bf16, in that format, or still in float32: the device then copies it. */
static void round_matrix(students *s, weight *w) {
    if (!weight_present(w) || w->format != WEIGHT_F32) return;
    const float *from = weight_row(w, 0, 0);
    size_t n = (size_t)w->out * (size_t)w->in;
    uint16_t *bits = malloc(n * sizeof *bits);
    float *values = malloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++) {
        uint32_t wide;
        memcpy(&wide, &from[i], sizeof wide);
        bits[i] = (uint16_t)(wide >> 16);
        wide = (uint32_t)bits[i] << 16;
        memcpy(&values[i], &wide, sizeof wide);
    }
    assert_true(s->n_rounded < ROUNDED);
    s->rounded[s->n_rounded++] = s->options.terms ? (void *)values : (void *)bits;
    *w = s->options.terms ? weight_matrix(WEIGHT_F32, values, w->out, w->in)
                          : weight_matrix(WEIGHT_BF16, bits, w->out, w->in);
    free(s->options.terms ? (void *)bits : (void *)values);
}

static void round_model(students *s) {
    model_weights *w = &s->verifier->weights;
    round_matrix(s, &w->embed);
    if (s->verifier->config.tied_head) w->head = w->embed;
    weight *plain[] = {&w->head, &w->ple_embed, &w->ple_model_proj};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) round_matrix(s, plain[i]);
    for (int i = 0; i < s->verifier->config.layers; i++) {
        layer_weights *l = &w->layer[i];
        weight *all[] = {&l->q_proj,   &l->k_proj,    &l->v_proj,          &l->o_proj,       &l->gate_proj,
                         &l->up_proj,  &l->down_proj, &l->router_proj,     &l->experts_gate, &l->experts_up,
                         &l->ple_gate, &l->ple_proj,  &l->experts_gate_up, &l->experts_down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) round_matrix(s, all[k]);
    }
    if (!s->drafter) return;
    round_matrix(s, &s->drafter->fc);
    for (int i = 0; i < s->drafter->config.layers; i++) {
        round_matrix(s, &s->drafter->layer[i].k_proj);
        round_matrix(s, &s->drafter->layer[i].v_proj);
    }
}

static void open_students(students *s, const char *verifier, const char *drafter, bool in_place,
                          restoration_latents latents, bool shared, restoration_loss loss, int rows, int terms) {
    memset(s, 0, sizeof *s);
    mem_account_init(&s->account, NULL, 0);
    REQUIRE_OK(language_model_open(unpacked_folder(verifier), &s->account, &s->verifier, error));
    model_config *c = &s->verifier->config;
    c->sliding_window = 16;
    s->config = (restoration_config){.input = RESTORATION_AUX_HIDDEN, .hidden = c->hidden, .latents = latents};
    s->config.aux_layers = restoration_default_taps(c, 2, s->config.aux_layer);
    if (drafter) {
        REQUIRE_OK(block_drafter_model_open(drafter, c, &s->account, &s->drafter, error));
        const block_drafter_config *d = &s->drafter->config;
        s->config = (restoration_config){.input = RESTORATION_DRAFTER_CONTEXT_KV,
                                         .drafter_layers = d->layers,
                                         .drafter_kv_heads = d->kv_heads,
                                         .drafter_head_dim = d->head_dim,
                                         .latents = latents};
    }
    s->options.terms = terms;
    if (in_place || terms) round_model(s);
    restoration_config_fit(&s->config, c, 24, shared ? 24 : 13, shared);
    s->layout = restoration_layout_of(&s->config, c);
    s->weights = malloc(s->layout.n * sizeof *s->weights);
    uint64_t random = 11;
    for (size_t i = 0; i < s->layout.n; i++) s->weights[i] = (float)(0.2 * draw(&random));
    for (int i = 0; i < SEQUENCES; i++) {
        tiny_tokens(s->tokens[i], LONGEST, 3 + (uint64_t)i);
        for (int t = 0; t < LONGEST; t++) s->tokens[i][t] %= c->vocab;
    }
    s->options = (restoration_trainer_options){.restoration = &s->config,
                                               .sequence = LONGEST,
                                               .rows = rows,
                                               .sequences = TOGETHER,
                                               .segments = SEGMENTS,
                                               .sink = SINK,
                                               .window = WINDOW,
                                               .terms = terms,
                                               .spares_memory = in_place || shared,
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
        REQUIRE_OK(
            backend_train_find(s->ops[b])->restoration_trainer_create(s->model[b], &s->options, &s->trainer[b], error));
        backend_train_find(s->ops[b])->restoration_trainer_weights(s->trainer[b], s->weights);
    }
}

static void close_students(students *s) {
    for (int b = 0; b < 2; b++) {
        backend_train_find(s->ops[b])->restoration_trainer_destroy(s->trainer[b]);
        s->ops[b]->model_destroy(s->model[b]);
    }
    if (s->drafter) block_drafter_model_close(s->drafter);
    language_model_close(s->verifier);
    free(s->weights);
    for (int i = 0; i < s->n_rounded; i++) free(s->rounded[i]);
    assert_int_equal(mem_total(&s->account), 0);
}

/* Sequences in turns are decoded and prompts, which of them first depends on their rows. */
static restoration_trainer_segment segment_of(const students *s, int sequence, int k) {
    return (restoration_trainer_segment){.first = first_of[sequence][k],
                                         .all_layers = (sequence + k) % 2,
                                         .prompt = (sequence + s->options.rows / 2) % 2 == 0,
                                         .scale = 0.25f};
}

static void learn_cpu(students *s, float *gradient, restoration_trainer_result results[SEQUENCES][SEGMENTS]) {
    const backend_train_ops *ops = backend_train_find(s->ops[0]);
    for (int i = 0; i < SEQUENCES; i++) {
        const backend_cache_options options = {.context_tokens = LONGEST,
                                               .attention = KAKEYA_ATTENTION_NATIVE,
                                               .kv_format = KV_FORMAT_F32,
                                               .account = &s->account};
        backend_cache *cache = NULL;
        REQUIRE_OK(s->ops[0]->cache_create(s->model[0], &options, &cache, error));
        REQUIRE_OK(ops->restoration_trainer_teach(s->trainer[0], cache, s->tokens[i], length_of[i], error));
        s->ops[0]->cache_destroy(cache);
        for (int k = 0; k < SEGMENTS; k++) {
            restoration_trainer_segment segment = segment_of(s, i, k);
            ops->restoration_trainer_learn(s->trainer[0], &segment, gradient, &results[i][k]);
        }
    }
}

static void learn_cuda(students *s, float *gradient, restoration_trainer_result results[SEQUENCES][SEGMENTS]) {
    restoration_trainer_sequence sequences[SEQUENCES];
    restoration_trainer_segment segments[SEQUENCES][SEGMENTS];
    for (int i = 0; i < SEQUENCES; i++) {
        for (int k = 0; k < SEGMENTS; k++) segments[i][k] = segment_of(s, i, k);
        sequences[i] = (restoration_trainer_sequence){.tokens = s->tokens[i],
                                                      .n = length_of[i],
                                                      .segments = segments[i],
                                                      .results = results[i],
                                                      .n_segments = SEGMENTS};
    }
    REQUIRE_OK(backend_train_find(s->ops[1])->restoration_trainer_learn_many(s->trainer[1], sequences, SEQUENCES,
                                                                             gradient, error));
}

static void check_value(const char *what, const char *part, double found, double wanted, double most) {
    if (!(fabs(found - wanted) <= most * (1e-3 + fabs(wanted))))
        fail_msg("%s: %s is %.8g, the CPU's %.8g", what, part, found, wanted);
}

static void check_matrix(const char *what, const char *name, int layer, const float *found, const float *wanted,
                         size_t n, double most) {
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        off += pow((double)found[i] - (double)wanted[i], 2);
        size += pow((double)wanted[i], 2);
    }
    if (!(sqrt(off) <= most * sqrt(size) + 1e-8))
        fail_msg("%s: the gradient of %s %d differs by %g of %g", what, name, layer, sqrt(off), sqrt(size));
}

/* Again: the same bits, and the same loss without a gradient. */
static void check_repeats(students *s, const float *gradient, restoration_trainer_result results[SEQUENCES][SEGMENTS]) {
    float *again = calloc(s->layout.n, sizeof(float));
    restoration_trainer_result twice[SEQUENCES][SEGMENTS];
    learn_cuda(s, again, twice);
    assert_same_bits("gradients", again, gradient, s->layout.n);
    learn_cuda(s, NULL, twice);
    assert_memory_equal(twice, results, sizeof twice);
    free(again);
}

static void compare_within(const char *verifier, const char *drafter, bool in_place, restoration_latents latents,
                           bool shared, restoration_loss loss, int rows, bool repeat, int terms, tolerance most) {
    students s;
    char what[256];
    snprintf(what, sizeof what, "%s%s, loss %d, %d rows, latents %d", strrchr(verifier, '/') + 1,
             terms      ? " rounded"
             : in_place ? " in bf16"
                        : "",
             (int)loss, rows, (int)latents);
    open_students(&s, verifier, drafter, in_place, latents, shared, loss, rows, terms);
    float *gradient[2];
    restoration_trainer_result results[2][SEQUENCES][SEGMENTS];
    for (int b = 0; b < 2; b++) gradient[b] = calloc(s.layout.n, sizeof(float));
    learn_cpu(&s, gradient[0], results[0]);
    learn_cuda(&s, gradient[1], results[1]);
    for (int i = 0; i < SEQUENCES; i++) {
        for (int k = 0; k < SEGMENTS; k++) {
            const restoration_trainer_result *found = &results[1][i][k], *wanted = &results[0][i][k];
            check_value(what, "attention", found->attention, wanted->attention, most.loss);
            check_value(what, "hidden", found->hidden, wanted->hidden, most.loss);
            check_value(what, "K/V", found->kv, wanted->kv, most.loss);
            check_value(what, "KL", found->kl, wanted->kl, most.loss);
            check_value(what, "loss", found->loss, wanted->loss, most.loss);
        }
    }
    for (int half = 0; half < 2; half++) {
        size_t rank = (size_t)(half ? s.config.rank_v : s.config.rank_k), at = s.layout.encoder[half];
        for (int i = s.config.layers - 1; i >= 0; i--) {
            size_t decoder = s.layout.decoder[half][i];
            if (s.layout.decoder_there[i])
                check_matrix(what, half ? "values' decoder" : "keys' decoder", i, gradient[1] + decoder,
                             gradient[0] + decoder, rank * (size_t)(s.config.kv_heads[i] * s.config.head_dim[i]),
                             most.gradient);
        }
        if (s.layout.encoder_there[half])
            check_matrix(what, "encoder", half, gradient[1] + at, gradient[0] + at,
                         rank * (size_t)restoration_encoder_in(&s.config), most.gradient);
    }
    if (repeat) check_repeats(&s, gradient[1], results[1]);
    free(gradient[0]);
    free(gradient[1]);
    close_students(&s);
}

static void compare(const char *verifier, const char *drafter, bool in_place, restoration_latents latents, bool shared,
                    restoration_loss loss, int rows, bool repeat) {
    /* bf16 weights make sums of other sizes, which random layers make more of */
    compare_within(verifier, drafter, in_place, latents, shared, loss, rows, repeat, 0,
                   (tolerance){2e-4, in_place ? 4e-3 : 1e-3});
}

#define TINY(name) KAKEYA_TEST_DATA "/golden/" name

static void learns_as_the_cpu(void **state) {
    (void)state;
    if (!device_present()) skip();
    if (!LEAST)
        compare(TINY("gemma4-tiny-dense"), NULL, false, RESTORATION_LATENTS_KV, true, RESTORATION_LOSS_DISTIL, 6,
                false);
    compare(TINY("gemma4-tiny-dense"), TINY("dflash-tiny"), false, RESTORATION_LATENTS_Q8, false,
            RESTORATION_LOSS_DISTIL, 8, false);
    compare(TINY("gemma4-tiny-moe"), NULL, false, RESTORATION_LATENTS_Q8, true, RESTORATION_LOSS_DISTIL, 6, !LEAST);
    compare(TINY("gemma4-tiny-ple"), NULL, false, RESTORATION_LATENTS_Q4, false, RESTORATION_LOSS_DISTIL, 6, false);
    /* values that pass no norm */
    compare(TINY("forms/gemma3-nested"), NULL, false, RESTORATION_LATENTS_KV, true, RESTORATION_LOSS_DISTIL, 6, false);
    compare(TINY("forms/gemma3-nested"), NULL, false, RESTORATION_LATENTS_KV, false, RESTORATION_LOSS_COMBINED, 6,
            false);
}

/* Matrices that are not the engine's become bf16, which loses nothing here. Rows become two such numbers: one is too
 * rough for models at random. */
static void rounds_to_bf16(void **state) {
    (void)state;
    if (!device_present()) skip();
#ifdef PAIR_DEVICES
    fake_multiplies = true;
#endif
    static const tolerance most = {2e-3, 2e-2};
    compare_within(TINY("forms/gemma3-nested"), NULL, false, RESTORATION_LATENTS_KV, true, RESTORATION_LOSS_DISTIL, 6,
                   false, 2, most);
    compare_within(TINY("gemma4-tiny-ple"), NULL, false, RESTORATION_LATENTS_KV, false, RESTORATION_LOSS_DISTIL, 6,
                   true, 2, most);
}

/* bf16 matrices are the engine's, multiplied in parts. */
static void reads_the_engines_matrices(void **state) {
    (void)state;
    if (!device_present()) skip();
#ifdef PAIR_DEVICES
    fake_multiplies = true;
#endif
    compare(TINY("gemma4-tiny-moe"), NULL, true, RESTORATION_LATENTS_KV, true, RESTORATION_LOSS_DISTIL, 6, !LEAST);
    compare(TINY("gemma4-tiny-ple"), NULL, true, RESTORATION_LATENTS_KV, false, RESTORATION_LOSS_DISTIL, 6, false);
    if (!LEAST) {
        compare(TINY("gemma4-tiny-dense"), TINY("dflash-tiny"), true, RESTORATION_LATENTS_KV, false,
                RESTORATION_LOSS_DISTIL, 8, false);
        compare(TINY("gemma4-tiny-moe"), NULL, true, RESTORATION_LATENTS_KV, true, RESTORATION_LOSS_ATTN_DISTIL_HYBRID,
                6, false);
    }
}

/* --------------------------------------------------------------------------------- products of float32 in parts */

enum { GROUPED_ITEMS = 3, GROUPED_HEADS = 4, GROUP = 2 };

/* A shape of products, and how they lie. */
typedef struct product_case {
    train_form form;
    int m, n, k;
    int parts;
    bool apart; /* heads of c lie beside each other in its rows, not one behind the other */
    int add;
} product_case;

static size_t index_of(train_form form, bool first, size_t ld, int side, int k) {
    bool along_k = first ? form != TRAIN_TN : form == TRAIN_NT;
    return along_k ? (size_t)side * ld + (size_t)k : (size_t)k * ld + (size_t)side;
}

static float *to_device(const float *from, size_t n) {
    void *there = NULL;
    assert_int_equal(cudaMalloc(&there, n * sizeof *from), cudaSuccess);
    if (from) assert_int_equal(cudaMemcpyAsync(there, from, n * sizeof *from, cudaMemcpyHostToDevice, NULL), 0);
    return there;
}

static void check_product(const product_case *t) {
    enum { ROOM = 1 << 17 };
    bool a_along = t->form != TRAIN_TN, b_along = t->form == TRAIN_NT;
    size_t m = (size_t)t->m, n = (size_t)t->n, k = (size_t)t->k, all = GROUPED_ITEMS * GROUPED_HEADS;
    train_product p = {.lda = a_along ? k + 3 : m + 3, .ldb = b_along ? k + 1 : n + 1, .m = t->m, .n = t->n, .k = t->k};
    p.a_head = p.lda * (a_along ? m : k);
    p.b_head = p.ldb * (b_along ? n : k);
    p.a_item = p.a_head * GROUPED_HEADS;
    p.b_item = p.b_head * (GROUPED_HEADS / GROUP);
    p.ldc = t->apart ? n * GROUPED_HEADS : n;
    p.c_head = t->apart ? n : m * n;
    p.c_item = m * n * GROUPED_HEADS;
    p.items = GROUPED_ITEMS;
    p.heads = GROUPED_HEADS;
    p.group = GROUP;
    p.add = t->add;
    size_t a_values = p.a_item * GROUPED_ITEMS, b_values = p.b_item * GROUPED_ITEMS, c_values = m * n * all;
    float *a = malloc(a_values * sizeof *a), *b = malloc(b_values * sizeof *b), *c = malloc(c_values * sizeof *c);
    uint64_t random = 5;
    for (size_t i = 0; i < a_values; i++) a[i] = (float)draw(&random);
    for (size_t i = 0; i < b_values; i++) b[i] = (float)draw(&random);
    for (size_t i = 0; i < c_values; i++) c[i] = 1;
    float *there[] = {to_device(a, a_values), to_device(b, b_values), to_device(c, c_values), to_device(NULL, ROOM),
                      to_device(NULL, ROOM),  to_device(NULL, ROOM),  to_device(NULL, 512)};
    /* for a few products at a time */
    size_t stacked = t->form == TRAIN_TN ? 1 : GROUP;
    split_room room = {
        .a_values = 5 * stacked * m * 3 * (k + 8), .b_values = ROOM, .c_values = ROOM, .parts = t->parts};
    assert_true(room.a_values <= 2 * ROOM && 3 * (n + 8) * 3 * (k + 8) <= ROOM);
    room.a = (cuda_bf16 *)(void *)there[3];
    room.b = (cuda_bf16 *)(void *)there[4];
    room.c = there[5];
    room.begin = (int *)(void *)there[6];
    room.counter = (unsigned *)(void *)(room.begin + SPLIT_GROUPS + 1);
    const cuda_launch launch = {0};
    assert_int_equal(cudaMemsetAsync(there[6], 0, 512 * sizeof(float), NULL), 0);
    p.a = there[0];
    p.b = there[1];
    p.c = there[2];
    assert_int_equal(split_product(&launch, &room, t->form, &p, 1), 1);
    assert_int_equal(room.status, cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(c, p.c, c_values * sizeof *c, cudaMemcpyDeviceToHost, NULL), 0);
    assert_int_equal(cudaStreamSynchronize(NULL), 0);
    for (size_t g = 0; g < all; g++) {
        const float *x = a + g / GROUPED_HEADS * p.a_item + g % GROUPED_HEADS * p.a_head,
                    *y = b + g / GROUPED_HEADS * p.b_item + g % GROUPED_HEADS / GROUP * p.b_head,
                    *z = c + g / GROUPED_HEADS * p.c_item + g % GROUPED_HEADS * p.c_head;
        for (size_t i = 0; i < m * n; i++) {
            int row = (int)(i / n), column = (int)(i % n);
            double sum = t->add, size = t->add, found = (double)z[(size_t)row * p.ldc + (size_t)column];
            for (int j = 0; j < t->k; j++) {
                double v = (double)x[index_of(t->form, true, p.lda, row, j)] *
                           (double)y[index_of(t->form, false, p.ldb, column, j)];
                sum += v;
                size += fabs(v);
            }
            if (!(fabs(found - sum) <= size * (t->parts == 1 ? 0x1p-7 : 0x1p-15)))
                fail_msg("form %d, %d x %d x %d, product %zu, row %d, column %d: %.8g, not %.8g", (int)t->form, t->m,
                         t->n, t->k, g, row, column, found, sum);
        }
    }
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) (void)cudaFree(there[i]);
    free(a);
    free(b);
    free(c);
}

static void products_in_parts(void **state) {
    (void)state;
    if (!device_present()) skip();
#ifdef PAIR_DEVICES
    fake_multiplies = true;
#endif
    static const product_case cases[] = {
        {TRAIN_NT, 40, 24, 33, 3, false, 0}, {TRAIN_NT, 17, 19, 16, 3, true, 0}, {TRAIN_NN, 21, 16, 40, 3, true, 0},
        {TRAIN_TN, 32, 24, 17, 3, false, 1}, {TRAIN_TN, 24, 20, 39, 3, true, 1}, {TRAIN_NT, 40, 24, 33, 1, true, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_product(&cases[i]);
}

/* A sum over rows that are no whole number of parts, added to what is there. */
static void outer_in_parts(void **state) {
    enum { M = 16, N = 24, ROWS = 3 * 512 + 77, ROOM = 1 << 18 };
    (void)state;
    if (!device_present()) skip();
#ifdef PAIR_DEVICES
    fake_multiplies = true;
#endif
    float *a = malloc(ROWS * M * sizeof *a), *b = malloc(ROWS * N * sizeof *b), c[M * N];
    uint64_t random = 9;
    for (int i = 0; i < ROWS * M; i++) a[i] = (float)draw(&random);
    for (int i = 0; i < ROWS * N; i++) b[i] = (float)draw(&random);
    for (int i = 0; i < M * N; i++) c[i] = 1;
    float *there[] = {to_device(a, ROWS * M), to_device(b, ROWS * N), to_device(c, M * N), to_device(NULL, ROOM),
                      to_device(NULL, ROOM),  to_device(NULL, ROOM),  to_device(NULL, 512)};
    split_room room = {.a = (cuda_bf16 *)(void *)there[3],
                       .b = (cuda_bf16 *)(void *)there[4],
                       .a_values = ROOM,
                       .b_values = ROOM,
                       .begin = (int *)(void *)there[6],
                       .parts = SPLIT_PARTS};
    room.counter = (unsigned *)(void *)(room.begin + SPLIT_GROUPS + 1);
    train_product p = {.a = there[0],
                       .lda = M,
                       .b = there[1],
                       .ldb = N,
                       .c = there[2],
                       .ldc = N,
                       .m = M,
                       .n = N,
                       .k = ROWS,
                       .add = 1,
                       .partial = there[5],
                       .partial_floats = ROOM};
    const cuda_launch launch = {0};
    assert_int_equal(cudaMemsetAsync(there[6], 0, 512 * sizeof(float), NULL), 0);
    assert_int_equal(split_outer(&launch, &room, &p, 1), 1);
    assert_int_equal(room.status, cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(c, p.c, sizeof c, cudaMemcpyDeviceToHost, NULL), 0);
    assert_int_equal(cudaStreamSynchronize(NULL), 0);
    for (int i = 0; i < M * N; i++) {
        double sum = 1, size = 1;
        for (int row = 0; row < ROWS; row++) {
            double v = (double)a[row * M + i / N] * (double)b[row * N + i % N];
            sum += v;
            size += fabs(v);
        }
        if (!(fabs((double)c[i] - sum) <= size * 0x1p-15)) fail_msg("value %d is %.8g, not %.8g", i, (double)c[i], sum);
    }
    p.k = 1000; /* less than two parts */
    assert_int_equal(split_outer(&launch, &room, &p, 1), 0);
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) (void)cudaFree(there[i]);
    free(a);
    free(b);
}

static void losses_are_the_cpus(void **state) {
    (void)state;
    if (!device_present()) skip();
    for (int loss = LEAST ? RESTORATION_LOSS_ATTN_DISTIL_HYBRID : RESTORATION_LOSS_MSE; loss < RESTORATION_LOSSES;
         loss++)
        compare(TINY("gemma4-tiny-moe"), NULL, false, RESTORATION_LATENTS_KV, loss == RESTORATION_LOSS_MSE,
                (restoration_loss)loss, 6, false);
    if (!LEAST)
        compare(TINY("gemma4-tiny-ple"), NULL, false, RESTORATION_LATENTS_KV, true, RESTORATION_LOSS_ATTN_DISTIL_HYBRID,
                6, false);
}

/* Rows through bf16 matrices of experts and back, in up to three bf16 numbers each: forward and back of all
 * experts at once is that of each by itself. */
static void check_matrices(int terms) {
    enum { EXPERTS = 3, ROWS = 37, OUT = 24, IN = 40, LD = 64, ROOM = 1 << 14 };
    static const int begin[EXPERTS + 1] = {0, 9, 9, ROWS};
    uint16_t w[EXPERTS * OUT * LD] = {0};
    float x[ROWS * IN], d_y[ROWS * OUT], y[ROWS * OUT], found[ROWS * IN];
    double d_x[ROWS * IN];
    uint64_t random = 9;
    for (int i = 0; i < ROWS * IN; i++) x[i] = (float)draw(&random);
    for (int i = 0; i < ROWS * OUT; i++) d_y[i] = (float)draw(&random);
    for (int i = 0; i < EXPERTS * OUT * LD; i++) {
        float v = (float)draw(&random);
        uint32_t wide;
        memcpy(&wide, &v, sizeof wide);
        if (i % LD < IN) w[i] = (uint16_t)(wide >> 16);
    }
    double size = terms == 1 ? 0x1p-4 : terms == 2 ? 0x1p-12 : 0x1p-16; /* sums of 40 products below 1 */
    void *matrix = to_device((const float *)(const void *)w, sizeof w / sizeof(float)),
         *begins = to_device((const float *)(const void *)begin, EXPERTS + 1);
    float *there[] = {to_device(x, ROWS * IN), to_device(d_y, ROWS * OUT), to_device(NULL, ROWS * OUT),
                      to_device(x, ROWS * IN), to_device(NULL, ROOM),      to_device(NULL, ROOM),
                      to_device(NULL, ROOM),   to_device(NULL, 512)};
    split_room room = {.a_values = 2 * ROOM, .b_values = 2 * ROOM, .c_values = ROOM, .terms = terms};
    room.a = (cuda_bf16 *)(void *)there[4];
    room.b = (cuda_bf16 *)(void *)there[5];
    room.c = there[6];
    room.begin = (int *)(void *)there[7];
    room.counter = (unsigned *)(void *)(room.begin + SPLIT_GROUPS + 1);
    const cuda_launch launch = {0};
    assert_int_equal(cudaMemsetAsync(there[7], 0, 512 * sizeof(float), NULL), 0);
    const split_matrix all = {.data = matrix, .out = OUT, .in = IN, .ld = LD};
    for (int apart = 0; apart < 2; apart++) {
        if (!apart) {
            split_experts_forward(&launch, &room, there[0], ROWS, all, EXPERTS, begins, there[2]);
            split_experts_back(&launch, &room, there[1], ROWS, all, EXPERTS, begins, there[3]);
        }
        room.a_values = 3 * 3 * LD; /* three rows at a time */
        for (int e = 0; e < EXPERTS && apart; e++) {
            const split_matrix one = {.data = all.data + (size_t)e * OUT * LD, .out = OUT, .in = IN, .ld = LD};
            size_t first = (size_t)begin[e];
            int rows = begin[e + 1] - begin[e];
            split_forward(&launch, &room, there[0] + first * IN, IN, rows, one, there[2] + first * OUT, OUT);
            split_back(&launch, &room, there[1] + first * OUT, OUT, rows, one, there[3] + first * IN, IN, 1);
        }
        assert_int_equal(room.status, cudaSuccess);
        assert_int_equal(cudaMemcpyAsync(y, there[2], sizeof y, cudaMemcpyDeviceToHost, NULL), 0);
        assert_int_equal(cudaMemcpyAsync(found, there[3], sizeof found, cudaMemcpyDeviceToHost, NULL), 0);
        assert_int_equal(cudaStreamSynchronize(NULL), 0);
        for (int r = 0, e = 0; r < ROWS; r++) {
            while (r >= begin[e + 1]) e++;
            double sum[OUT] = {0};
            for (int o = 0; o < OUT; o++) {
                for (int i = 0; i < IN; i++) {
                    uint32_t wide = (uint32_t)w[(e * OUT + o) * LD + i] << 16;
                    float v;
                    memcpy(&v, &wide, sizeof v);
                    sum[o] += (double)v * (double)x[r * IN + i];
                    if (!apart) d_x[r * IN + i] = (o ? d_x[r * IN + i] : 0) + (double)v * (double)d_y[r * OUT + o];
                }
                if (!(fabs((double)y[r * OUT + o] - sum[o]) <= size))
                    fail_msg("%d terms, row %d, output %d: %.8g, not %.8g", terms, r, o, (double)y[r * OUT + o],
                             sum[o]);
            }
        }
        for (int i = 0; i < ROWS * IN; i++) {
            double wanted = d_x[i] * (apart ? 2 : 1);
            if (!(fabs((double)found[i] - wanted) <= 2 * size))
                fail_msg("%d terms, d_x %d: %.8g, not %.8g", terms, i, (double)found[i], wanted);
        }
    }
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) (void)cudaFree(there[i]);
    (void)cudaFree(matrix);
    (void)cudaFree(begins);
}

static void matrices_in_parts(void **state) {
    (void)state;
    if (!device_present()) skip();
#ifdef PAIR_DEVICES
    fake_multiplies = true;
#endif
    for (int terms = 1; terms <= SPLIT_MOST_TERMS; terms++) check_matrices(terms);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learns_as_the_cpu),
        cmocka_unit_test(losses_are_the_cpus),
        cmocka_unit_test(products_in_parts),
        cmocka_unit_test(matrices_in_parts),
        cmocka_unit_test(reads_the_engines_matrices),
        cmocka_unit_test(rounds_to_bf16),
        cmocka_unit_test(outer_in_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
