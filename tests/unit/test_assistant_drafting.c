/* Training of MTP assistants in steps: it lowers what it is about, goes on where it was saved, comes to the same
 * weights with any number of threads; what it begins with fits the model; what it writes is what a loader reads; what
 * it refuses; and every allocation that fails is told of, with nothing left behind. */
#include <math.h>
#include <sys/stat.h>

#include "backend/weight_values.h"
#include "failing_allocations.h"
#include "golden.h"
#include "packed.h"
#include "scratch.h"
#include "train/assistant_start.h"
#include "train/drafter_files.h"
#include "train/drafting.h"

enum { LENGTH = 40, ANSWER = 12, SEQUENCES = 5, STEPS = 6 };

static kakeya_engine *open_of(const char *model, const char *drafter, int threads) {
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = model;
    options.f_theta = "none";
    options.drafter = drafter;
    options.precision = KAKEYA_PRECISION_F32;
    options.threads = threads;
    kakeya_engine *engine = NULL;
    REQUIRE_OK(kakeya_engine_open(&options, &engine, error));
    return engine;
}

static kakeya_engine *open_engine(const char *drafter, int threads) {
    return open_of(KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense", drafter, threads);
}

static assistant_config config_of(const kakeya_engine *engine) {
    assistant_config c;
    assistant_config_published(&engine->verifier->config, &c);
    c.stack.hidden = 24;
    c.stack.layers = 2;
    c.stack.layer[1] = c.stack.layer[3];
    c.stack.layer[1].kv_source = 1;
    for (int i = 0; i < 2; i++) c.stack.layer[i].intermediate = 32;
    c.clusters = c.chosen_clusters = 0;
    return c;
}

static drafting_options options_of(const assistant_config *c, int threads) {
    drafting_options o;
    drafting_options_init(&o);
    o.assistant = c;
    o.trainer.sequence = LENGTH;
    o.trainer.blocks = 6;
    o.trainer.chain = 4;
    o.trainer.distribution = true;
    o.batch = 2;
    o.steps = STEPS;
    o.warm_up = 2;
    o.rate = 0.01;
    o.threads = threads;
    o.seed = 3;
    return o;
}

static corpus corpus_of(int length) {
    corpus data = {0};
    for (int s = 0; s < SEQUENCES; s++) {
        int32_t tokens[LENGTH];
        for (int i = 0; i < length; i++) tokens[i] = 5 + (i * (s + 3) + s * 7) % 40;
        REQUIRE_OK(corpus_add(&data, tokens, length, ANSWER, error));
    }
    return data;
}

static float *start_of(kakeya_engine *engine, const assistant_config *c) {
    float *start = malloc(assistant_values_count(c) * sizeof *start);
    assert_non_null(start);
    REQUIRE_OK(assistant_start(c, engine->verifier, 7, start, error));
    return start;
}

static drafting *make(kakeya_engine *engine, const drafting_options *o, const corpus *data) {
    float *start = start_of(engine, o->assistant);
    drafting *d = NULL;
    REQUIRE_OK(drafting_create(engine, o, data, start, &d, error));
    free(start);
    return d;
}

static double go_on(drafting *d, int steps) {
    drafting_step_result r = {0};
    while (drafting_done(d) < steps) REQUIRE_OK(drafting_step(d, NULL, NULL, &r, error));
    return r.learned.loss / r.learned.counted;
}

/* Saved, and taken up by another engine with other threads and no room for what the verifier says. */
static void one_result(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("none", 1), *wide = open_engine("none", 3);
    assistant_config c = config_of(engine);
    drafting_options o = options_of(&c, 1), p = options_of(&c, 3);
    o.kept_bytes = 1 << 20;
    corpus data = corpus_of(LENGTH);
    drafting *whole = make(engine, &o, &data), *part = make(engine, &o, &data), *rest = make(wide, &p, &data);
    go_on(whole, STEPS);
    go_on(part, 3);
    const char *path = scratch_path("drafter.state");
    REQUIRE_OK(drafting_save(part, path, 7, error));
    REQUIRE_OK(drafting_load(rest, path, 7, error));
    assert_int_equal(drafting_done(rest), 3);
    go_on(rest, STEPS);
    assert_same_bits("interrupted and gone on", drafting_weights(whole), drafting_weights(rest),
                     assistant_values_count(&c));
    drafting_destroy(whole);
    drafting_destroy(part);
    drafting_destroy(rest);
    corpus_free(&data);
    kakeya_engine_close(engine);
    kakeya_engine_close(wide);
}

/* Every step sees all sequences. */
static void loss_falls(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("none", 1);
    assistant_config c = config_of(engine);
    corpus data = corpus_of(LENGTH);
    for (int distribution = 0; distribution < 2; distribution++) {
        drafting_options o = options_of(&c, 1);
        o.trainer.distribution = distribution;
        o.batch = SEQUENCES;
        o.constant = true;
        drafting *d = make(engine, &o, &data);
        double first = go_on(d, 1), last = go_on(d, 12);
        if (!(last < 0.8 * first)) fail_msg("distribution %d: %g, then %g", distribution, first, last);
        drafting_destroy(d);
    }
    corpus_free(&data);
    kakeya_engine_close(engine);
}

/* As wide as the model, the head is the model's: its rows have the same products with each other. */
static void begins_with_the_models_head(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("none", 1);
    assistant_config c = config_of(engine);
    c.stack.hidden = engine->verifier->config.hidden;
    float *start = start_of(engine, &c);
    assistant_values w;
    assistant_values_bind(&c, start, &w);
    size_t hidden = (size_t)c.stack.hidden;
    const float *head = (const float *)(const void *)w.weights.stack.head.stream[0];
    const model_weights *v = &engine->verifier->weights;
    float row[2][512];
    assert_true(hidden <= 512);
    for (int i = 0; i < 8; i++) {
        int token[2] = {3 + 7 * i, 11 + 5 * i};
        double own = 0, models = 0, size = 0;
        for (int k = 0; k < 2; k++) weight_values(&v->embed, token[k], 0, (int)hidden, row[k]);
        for (size_t j = 0; j < hidden; j++) {
            double gain = (double)v->final_norm[j] * (double)v->final_norm[j];
            models += (double)row[0][j] * (double)row[1][j] * gain;
            size += (double)row[0][j] * (double)row[0][j] * gain;
            own += (double)head[(size_t)token[0] * hidden + j] * (double)head[(size_t)token[1] * hidden + j];
        }
        if (!(fabs(own - models) <= 1e-4 * size))
            fail_msg("rows %d and %d: %g, the model's %g", token[0], token[1], own, models);
    }
    free(start);
    kakeya_engine_close(engine);
}

/* Written in float32 and read back: the same values; in bfloat16: near them, and the engine opens it. */
static void files(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("none", 1);
    assistant_config c = config_of(engine);
    size_t n = assistant_values_count(&c);
    float *values = start_of(engine, &c), *again = malloc(n * sizeof *again);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const char *directory = scratch_path(bf16 ? "assistant-bf16" : "assistant-f32");
        mkdir(directory, 0777);
        REQUIRE_OK(assistant_write(&c, NULL, values, bf16, directory, error));
        kakeya_engine *with = open_engine(directory, 1);
        const assistant_config *read = &with->assistant->config;
        assert_int_equal(read->backbone, c.backbone);
        assert_int_equal(read->stack.hidden, c.stack.hidden);
        assert_int_equal(read->stack.heads, c.stack.heads);
        assert_int_equal(read->stack.layers, c.stack.layers);
        for (int i = 0; i < c.stack.layers; i++) {
            assert_int_equal(read->stack.layer[i].type, c.stack.layer[i].type);
            assert_int_equal(read->stack.layer[i].kv_heads, c.stack.layer[i].kv_heads);
            assert_int_equal(read->stack.layer[i].intermediate, c.stack.layer[i].intermediate);
        }
        REQUIRE_OK(assistant_read(with, again, error));
        for (size_t i = 0; i < n; i++) {
            double off = fabs((double)again[i] - (double)values[i]);
            if (!(off <= (bf16 ? fabs((double)values[i]) / 256 : 0)))
                fail_msg("bf16 %d, value %zu: %g, expected %g", bf16, i, (double)again[i], (double)values[i]);
        }
        kakeya_engine_close(with);
    }
    free(values);
    free(again);
    kakeya_engine_close(engine);
}

/* One with clusters: read, written and read again, with its order of tokens. */
static void files_of_clusters(void **state) {
    (void)state;
    const char *model = unpacked_folder(KAKEYA_TEST_DATA "/golden/gemma4-tiny-ple");
    kakeya_engine *engine = open_of(model, unpacked_folder(KAKEYA_TEST_DATA "/golden/mtp/ple"), 1);
    const assistant_model *a = engine->assistant;
    size_t n = assistant_values_count(&a->config);
    int vocab = a->config.stack.vocab;
    float *values = malloc(2 * n * sizeof *values), *again = values + n;
    REQUIRE_OK(assistant_read(engine, values, error));
    const char *directory = scratch_path("assistant-clusters");
    mkdir(directory, 0777);
    REQUIRE_OK(assistant_write(&a->config, a->weights.token_of, values, false, directory, error));
    kakeya_engine *with = open_of(model, directory, 1);
    assert_int_equal(with->assistant->config.clusters, a->config.clusters);
    assert_int_equal(with->assistant->config.chosen_clusters, a->config.chosen_clusters);
    assert_memory_equal(with->assistant->weights.token_of, a->weights.token_of, (size_t)vocab * sizeof(int32_t));
    REQUIRE_OK(assistant_read(with, again, error));
    assert_same_bits("weights", values, again, n);
    for (int row = 0; row < vocab; row += 37) { /* what drafts read */
        float of[2][64];
        assert_in_range(a->config.stack.hidden, 1, 64);
        weight_values(&a->weights.stack.head, row, 0, a->config.stack.hidden, of[0]);
        weight_values(&with->assistant->weights.stack.head, row, 0, a->config.stack.hidden, of[1]);
        assert_same_bits("a row of the head", of[0], of[1], (size_t)a->config.stack.hidden);
    }
    kakeya_engine_close(with);
    kakeya_engine_close(engine);
    free(values);
}

static void what_does_not_fit(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("none", 1);
    assistant_config c = config_of(engine);
    drafting_options o = options_of(&c, 1);
    corpus data = corpus_of(LENGTH);
    float *start = start_of(engine, &c);
    drafting *d = NULL;
    kakeya_error problem = {0};
    backend_ops renamed = *engine->ops; /* one that does not train */
    const backend_ops *ops = engine->ops;
    renamed.name = "other";
    engine->ops = &renamed;
    assert_int_equal(drafting_create(engine, &o, &data, start, &d, &problem), KAKEYA_UNSUPPORTED);
    assert_non_null(strstr(problem.message, "backend other does not expose keys and values"));
    engine->ops = ops;
    start[0] = NAN;
    REQUIRE_OK(drafting_create(engine, &o, &data, start, &d, error));
    drafting_step_result r;
    assert_int_equal(drafting_step(d, NULL, NULL, &r, &problem), KAKEYA_FORMAT);
    assert_non_null(strstr(problem.message, "the loss is not a number"));
    drafting_destroy(d);
    free(start);
    corpus_free(&data);
    kakeya_engine_close(engine);
}

/* From the first weights to the file. */
static kakeya_status make_one(kakeya_engine *engine, const drafting_options *o, const corpus *data, float *values,
                              kakeya_error *problem) {
    drafting *d = NULL;
    drafting_step_result r;
    kakeya_status status = assistant_start(o->assistant, engine->verifier, 7, values, problem);
    if (!status) status = drafting_create(engine, o, data, values, &d, problem);
    if (!status) status = drafting_step(d, NULL, NULL, &r, problem);
    if (!status) status = drafting_save(d, scratch_path("lost.state"), 7, problem);
    if (!status) status = assistant_write(o->assistant, NULL, drafting_weights(d), true, scratch_path("lost"), problem);
    drafting_destroy(d);
    return status;
}

static void allocations_fail(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("none", 1);
    assistant_config c = config_of(engine);
    drafting_options o = options_of(&c, 1);
    corpus data = corpus_of(LENGTH);
    float *values = malloc(assistant_values_count(&c) * sizeof *values);
    mkdir(scratch_path("lost"), 0777);
    kakeya_error problem = {0};
    REQUIRE_OK(make_one(engine, &o, &data, values, error)); /* what an engine keeps from its first forward on */
    allocation_sites_begin();
    REQUIRE_OK(make_one(engine, &o, &data, values, error));
    allocation_sites_end();
    size_t held = mem_total(&engine->account);
    for (int rest = 0; rest < 2; rest++) {
        for (long k = 1;; k++) {
            if (!allocation_sites_worth(k)) continue;
            failing_allocations_arm(k, rest);
            kakeya_status status = make_one(engine, &o, &data, values, &problem);
            bool failed = failing_allocations_made() >= k;
            failing_allocations_end();
            assert_int_equal(mem_total(&engine->account), held);
            if (!failed) {
                assert_int_equal(status, KAKEYA_OK);
                assert_true(k > 20);
                break;
            }
            if (status != KAKEYA_OUT_OF_MEMORY) fail_msg("allocation %ld: status %d, %s", k, status, problem.message);
        }
    }
    free(values);
    corpus_free(&data);
    kakeya_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_result),
        cmocka_unit_test(loss_falls),
        cmocka_unit_test(begins_with_the_models_head),
        cmocka_unit_test(files),
        cmocka_unit_test(files_of_clusters),
        cmocka_unit_test(what_does_not_fit),
        cmocka_unit_test(allocations_fail),
    };
    return cmocka_run_group_tests_name("steps of an assistant's training", tests, scratch_setup, scratch_teardown);
}
