/* Sums of the closed form on the device against the CPU's: what the CPU's forward leaves behind goes through the
 * device's kernels, and the f_theta of the device's sums is solved on both. With a device also the whole way, forward
 * included. Also compiled against a fake device, for which the kernels run on the host. */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>

#include "backend/cuda/statistics.h"
#include "backend/weight_values.h"
#include "golden.h"
#include "packed.h"
#include "train/trainer.h"
#ifdef PAIR_DEVICES
#include "gpu/fake/fake_device.h"
#endif

/* Kernels on the host are slow. */
#ifdef PAIR_DEVICES
enum { SEQUENCES = 1, LENGTH = 28, MODELS = 3 };
#else
enum { SEQUENCES = 12, LENGTH = 40, MODELS = 4 };
#endif
enum { FIRST = 17 /* rows of the first forward */, SINK = 1, WINDOW = 4, RANK = 12, THREADS = 1 };

static double draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (double)(1 << 23) - 1;
}

static void make_tokens(int32_t *tokens, int index, int vocab) {
    uint64_t random = (uint64_t)index;
    for (int i = 0; i < LENGTH; i++) tokens[i] = (int32_t)((draw(&random) + 1) * 150) % vocab;
}

static bool device_present(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

static kakeya_engine *open_engine(const char *name, const char *drafter, const char *backend,
                                  kakeya_precision precision) {
    char path[512], drafter_path[512];
    snprintf(path, sizeof path, "%s/golden/%s", KAKEYA_TEST_DATA, name);
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = unpacked_folder(path);
    options.backend = backend;
    options.f_theta = options.drafter = "none";
    snprintf(drafter_path, sizeof drafter_path, "%s/golden/%s", KAKEYA_TEST_DATA, drafter ? drafter : "");
    if (drafter) options.drafter = drafter_path;
    options.precision = precision;
    options.threads = THREADS;
    kakeya_engine *engine = NULL;
    REQUIRE_OK(kakeya_engine_open(&options, &engine, error));
    return engine;
}

/* d: the drafter whose context is read, or NULL */
static trainer_options options_of(const model_config *c, const block_drafter_config *d) {
    trainer_options o = {
        .sequence = LENGTH, .sink = SINK, .window = WINDOW, .metric_tokens = 1 << 20, .threads = THREADS};
    o.config = (restoration_config){.input = RESTORATION_AUX_HIDDEN, .hidden = c->hidden};
    /* more inputs than the device's factor has in a block */
    o.config.aux_layers = restoration_default_taps(c, 3, o.config.aux_layer);
    if (d)
        o.config = (restoration_config){.input = RESTORATION_DRAFTER_CONTEXT_KV,
                                        .drafter_layers = d->layers,
                                        .drafter_kv_heads = d->kv_heads,
                                        .drafter_head_dim = d->head_dim};
    restoration_config_fit(&o.config, c, RANK, RANK, !d);
    return o;
}

/* ---------------------------------------------------------------------------------------------------- two sides */

typedef struct sides {
    kakeya_engine *engine; /* the CPU's */
    trainer *trainer;
    trainer_options options;
    const closed_form_sums *sums; /* of the trainer */
    float *gram[MODEL_MAX_LAYERS];
    backend_model *model; /* on the device */
    backend_statistics *statistics;
    kakeya_error *error;
} sides;

static void make_grams(sides *s) {
    const language_model *g = s->engine->verifier;
    const model_config *c = &g->config;
    for (int i = 0; i < c->layers; i++) {
        int d = c->layer[i].head_dim;
        float *row = malloc((size_t)(c->heads * d) * sizeof *row);
        s->gram[i] = calloc((size_t)(c->heads * d * d), sizeof *row);
        for (int o = 0; o < c->hidden; o++) {
            weight_values(&g->weights.layer[i].o_proj, o, 0, c->heads * d, row);
            float gain = g->weights.layer[i].post_attention_norm[o];
            for (int k = 0; k < c->heads * d * d; k++)
                s->gram[i][k] += gain * gain * row[k / d] * row[k / d / d * d + k % d];
        }
        free(row);
    }
}

static statistics_options statistics_of(const sides *s) {
    const closed_form_sums *sums = s->sums;
    const block_drafter_config *drafter = s->engine->drafter ? &s->engine->drafter->config : NULL;
    statistics_options o = {.tap = drafter ? drafter->target_layer : s->options.config.aux_layer,
                            .taps = drafter ? drafter->targets : s->options.config.aux_layers,
                            .context = drafter != NULL,
                            .inputs = sums->inputs,
                            .targets = sums->targets,
                            .keys = sums->keys,
                            .target = sums->target,
                            .n = sums->n_all,
                            .xx = (size_t)(sums->xx - sums->all),
                            .yx = (size_t)(sums->yx - sums->all),
                            .size = (size_t)(sums->size - sums->all),
                            .gram = s->gram,
                            .sequence = LENGTH,
                            .sink = SINK,
                            .negligible = 1e-5f};
    const model_config *c = &s->engine->verifier->config;
    for (int i = 0; i < c->layers; i++) {
        o.metric_k[i] = (size_t)(sums->metric_k[i] - sums->all);
        o.metric_v[i] = (size_t)(sums->metric_v[i] - sums->all);
        o.added[i] = (size_t)(sums->added[i] - sums->all);
    }
    int last = c->sliding_window - 1, step = (last - WINDOW) / 24; /* as the trainer has it */
    for (int d = WINDOW; d <= last && o.offsets < 24; d += step < 1 ? 1 : step) o.offset[o.offsets++] = d;
    return o;
}

static void open_sides(sides *s, const char *name, const char *drafter) {
    memset(s, 0, sizeof *s);
    s->engine = open_engine(name, drafter, "cpu", KAKEYA_PRECISION_F32);
    s->options = options_of(&s->engine->verifier->config, drafter ? &s->engine->drafter->config : NULL);
    REQUIRE_OK(trainer_create(s->engine, &s->options, &s->trainer, error));
    s->sums = trainer_sums(s->trainer);
    make_grams(s);
    const backend_model_options options = {.verifier = s->engine->verifier,
                                           .drafter = s->engine->drafter,
                                           .precision = KAKEYA_PRECISION_BF16,
                                           .threads = THREADS,
                                           .account = &s->engine->account};
    REQUIRE_OK(backend_find("cuda", NULL)->model_create(&options, &s->model, error));
    const statistics_options statistics = statistics_of(s);
    REQUIRE_OK(cuda_statistics_create(s->model, &statistics, &s->statistics, error));
}

static void close_sides(sides *s) {
    cuda_statistics_destroy(s->statistics);
    backend_find("cuda", NULL)->model_destroy(s->model);
    trainer_destroy(s->trainer);
    for (int i = 0; i < MODEL_MAX_LAYERS; i++) free(s->gram[i]);
    kakeya_engine_close(s->engine);
}

/* ---------------------------------------------------------------------------------------------------------- sums */

static void *to_device(const void *from, size_t bytes) {
    void *to;
    assert_int_equal(cudaMalloc(&to, bytes), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, NULL), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
    return to;
}

/* [rows][n] as bf16, rows `ld` apart. */
static void *bits_to_device(const float *from, size_t rows, size_t n, size_t ld) {
    uint16_t *bits = calloc(rows * ld, sizeof *bits);
    for (size_t i = 0; i < rows * n; i++) {
        uint32_t wide;
        memcpy(&wide, &from[i], sizeof wide);
        bits[i / n * ld + i % n] = (uint16_t)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
    }
    void *to = to_device(bits, rows * ld * sizeof *bits);
    free(bits);
    return to;
}

static void show_device(void *user, const train_layer *l) {
    sides *s = user;
    const model_config *c = &s->engine->verifier->config;
    enum { WIDER = 8 };
    size_t rows = (size_t)l->rows, d = (size_t)c->layer[l->layer].head_dim, q = (size_t)c->heads * d,
           kv = (size_t)c->layer[l->layer].kv_heads * d, hidden = (size_t)c->hidden;
    void *k = l->raw_k ? to_device(l->raw_k, rows * kv * sizeof(float)) : NULL,
         *v = l->raw_k ? to_device(l->raw_v, rows * kv * sizeof(float)) : NULL,
         *queries = bits_to_device(l->q, rows, q, q), *o = bits_to_device(l->o, rows, q, q + WIDER),
         *out = to_device(l->out, rows * hidden * sizeof(float)), *h = to_device(l->h, rows * hidden * sizeof(float));
    if (l->raw_k) cuda_statistics_kv(s->statistics, l->layer, k, v);
    cuda_statistics_attended(s->statistics, l->layer, queries, o, q + WIDER, out);
    cuda_statistics_output(s->statistics, l->layer, h);
    REQUIRE_OK(cuda_finish(&s->model->device, "testing", error));
    void *all[] = {k, v, queries, o, out, h};
    for (int i = 0; i < 6; i++) cudaFree(all[i]);
}

/* A sequence in two forwards. */
static void feed_both(sides *s, int index) {
    int32_t tokens[LENGTH];
    make_tokens(tokens, index, s->engine->verifier->config.vocab);
    REQUIRE_OK(trainer_add(s->trainer, tokens, LENGTH, error));
    const backend_cache_options options = {.context_tokens = LENGTH,
                                           .attention = KAKEYA_ATTENTION_NATIVE,
                                           .kv_format = KV_FORMAT_F32,
                                           .account = &s->engine->account};
    backend_cache *cache = NULL;
    REQUIRE_OK(s->engine->ops->cache_create(s->engine->model, &options, &cache, error));
    const backend_train_ops *ops = backend_train_find(s->engine->ops);
    for (int at = 0, n; at < LENGTH; at += n) {
        n = at ? LENGTH - at : FIRST;
        cuda_statistics_begin(s->statistics, at, n, true);
        REQUIRE_OK(ops->forward(s->engine->model, cache, tokens + at, n, show_device, s, error));
        REQUIRE_OK(cuda_statistics_end(s->statistics, error));
    }
    s->engine->ops->cache_destroy(cache);
}

/* Root of the mean squared difference, as a share of the reference's. */
static void near(const char *model, const char *what, int layer, const double *found, const double *wanted, size_t n,
                 double tolerance) {
    double off = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        off += (found[i] - wanted[i]) * (found[i] - wanted[i]);
        all += wanted[i] * wanted[i];
    }
    if (!(sqrt(off) <= tolerance * sqrt(all)))
        fail_msg("%s, %s, layer %d: off by %g of %g", model, what, layer, sqrt(off), sqrt(all));
}

static void compare_sums(const char *name, const sides *s, const double *all) {
    const closed_form_sums *w = s->sums;
    const model_config *c = &s->engine->verifier->config;
    size_t n = (size_t)w->inputs, targets = (size_t)w->targets;
    /* of x and of y to bf16, half a unit of 8 bits each; of a drafter also fc */
    const double two_roundings = s->engine->drafter ? 0x1p-7 : 0x1p-8;
    near(name, "xx", -1, all + (w->xx - w->all), w->xx, n * n, two_roundings);
    near(name, "yx", -1, all + (w->yx - w->all), w->yx, n * targets, two_roundings);
    near(name, "sizes", -1, all + (w->size - w->all), w->size, targets, 1e-6);
    for (int i = 0; i < c->layers; i++) {
        size_t d = (size_t)c->layer[i].head_dim;
        near(name, "metric of keys", i, all + (w->metric_k[i] - w->all), w->metric_k[i],
             (size_t)c->layer[i].kv_heads * d * d, 2e-2);
        near(name, "metric of values", i, all + (w->metric_v[i] - w->all), w->metric_v[i], (size_t)c->heads, 2e-2);
        near(name, "what attention adds", i, all + (w->added[i] - w->all), w->added[i], 2, 1e-5);
    }
}

static void near_weights(const char *model, const char *what, const float *a, const float *b, size_t n) {
    double off = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        double difference = (double)a[i] - (double)b[i];
        off += difference * difference;
        all += (double)b[i] * (double)b[i];
    }
    if (!(sqrt(off) <= 1e-4 * sqrt(all))) fail_msg("%s, %s: off by %g of %g", model, what, sqrt(off), sqrt(all));
}

/* The same sums solved on the host and on the device. */
static void compare_solutions(const char *name, const sides *s, double *all) {
    const model_config *c = &s->engine->verifier->config;
    closed_form_sums sums;
    REQUIRE_OK(closed_form_sums_create(c, s->sums->inputs, &sums, error));
    all[0] = fmax(s->sums->tokens[0], 2.0 * s->sums->inputs); /* fewer are refused */
    memcpy(sums.all, all, sums.n_all * sizeof *all);
    for (int shared = 0; shared < 2; shared++) {
        restoration_config config = s->options.config;
        restoration_config_fit(&config, c, RANK, RANK, shared);
        closed_form_problem problem = {
            .sums = &sums, .config = &config, .gram = s->gram, .solver = CLOSED_FORM_SUBSPACE};
        REQUIRE_OK(thread_pool_create(THREADS, &problem.pool, error));
        closed_form_weights host, device;
        REQUIRE_OK(closed_form_solve(&problem, &host, error));
        problem.ops = backend_train_find(backend_find("cuda", NULL));
        problem.statistics = s->statistics;
        REQUIRE_OK(closed_form_solve(&problem, &device, error));
        for (int half = 0; half < 2; half++) {
            if (host.encoder[half])
                near_weights(name, "encoders", device.encoder[half], host.encoder[half], (size_t)(RANK * sums.inputs));
            for (int i = 0; i < c->layers; i++) {
                if (c->layer[i].kv_source == i)
                    near_weights(name, "decoders", device.decoder[half][i], host.decoder[half][i],
                                 (size_t)(c->layer[i].kv_heads * c->layer[i].head_dim * RANK));
            }
        }
        closed_form_weights_free(&host);
        closed_form_weights_free(&device);
        thread_pool_destroy(problem.pool);
    }
    closed_form_sums_destroy(&sums);
}

/* The third has values that pass no norm. */
static const char *const models[4] = {"gemma4-tiny-dense", "gemma4-tiny-ple", "forms/gemma3-nested", "gemma4-tiny-moe"};

static void sums_and_solutions(void **state) {
    (void)state;
    if (!device_present()) skip();
#ifdef PAIR_DEVICES
    fake_multiplies = true;
#endif
    for (int m = 0; m < MODELS; m++) {
        sides s;
        open_sides(&s, models[m], NULL);
        for (int i = 0; i < SEQUENCES; i++) feed_both(&s, i);
        double *all = calloc(s.sums->n_all, sizeof *all);
        REQUIRE_OK(cuda_statistics_read(s.statistics, 1, s.sums->n_all - 1, all + 1, error));
        compare_sums(models[m], &s, all);
        compare_solutions(models[m], &s, all);
        free(all);
        close_sides(&s);
    }
}

/* x is the context of a drafter. */
static void sums_of_a_context(void **state) {
    (void)state;
    if (!device_present()) skip();
#ifdef PAIR_DEVICES
    fake_multiplies = true;
#endif
    sides s;
    open_sides(&s, "gemma4-tiny-dense", "dflash-tiny");
    for (int i = 0; i < SEQUENCES; i++) feed_both(&s, i);
    double *all = calloc(s.sums->n_all, sizeof *all);
    REQUIRE_OK(cuda_statistics_read(s.statistics, 1, s.sums->n_all - 1, all + 1, error));
    compare_sums("the drafter's context", &s, all);
    free(all);
    close_sides(&s);
}

/* ------------------------------------------------------------------------------------------------ the whole way */

#ifndef PAIR_DEVICES
/* What the f_theta makes of x is the same on both, up to the forward's own bf16. Signs and order of latents fall out.
 * Not for the form with experts: with random weights the rounding of a forward alone chooses other experts. */
static void whole_way(void **state) {
    (void)state;
    enum { WITHOUT_EXPERTS = 2 };
    if (!device_present()) skip();
    for (int m = 0; m < WITHOUT_EXPERTS; m++) {
        kakeya_engine *engine[2] = {open_engine(models[m], NULL, "cpu", KAKEYA_PRECISION_F32),
                                    open_engine(models[m], NULL, "cuda", KAKEYA_PRECISION_BF16)};
        const model_config *c = &engine[0]->verifier->config;
        const trainer_options options = options_of(c, NULL);
        closed_form_weights w[2];
        double *map[2];
        size_t n = (size_t)restoration_encoder_in(&options.config), d = (size_t)c->layer[0].head_dim;
        for (int b = 0; b < 2; b++) {
            trainer *t;
            REQUIRE_OK(trainer_create(engine[b], &options, &t, error));
            for (int i = 0; i < 12 || trainer_tokens(t) < 2 * n; i++) {
                int32_t tokens[LENGTH];
                make_tokens(tokens, i, c->vocab);
                REQUIRE_OK(trainer_add(t, tokens, LENGTH, error));
            }
            REQUIRE_OK(trainer_solve(t, &(closed_form_form){0}, &w[b], error));
            trainer_destroy(t);
            map[b] = calloc(d * n, sizeof *map[b]); /* of the first layer's first value head */
            for (size_t i = 0; i < d * n; i++) {
                for (size_t r = 0; r < RANK; r++)
                    map[b][i] += (double)w[b].decoder[1][0][i / n * RANK + r] * (double)w[b].encoder[0][r * n + i % n];
            }
        }
        near(models[m], "the map of a value head", 0, map[1], map[0], d * n, 0.15);
        for (int b = 0; b < 2; b++) {
            free(map[b]);
            closed_form_weights_free(&w[b]);
            kakeya_engine_close(engine[b]);
        }
    }
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_solutions),
        cmocka_unit_test(sums_of_a_context),
#ifndef PAIR_DEVICES
        cmocka_unit_test(whole_way),
#endif
    };
    return cmocka_run_group_tests_name("sums of the closed form", tests, NULL, NULL);
}
