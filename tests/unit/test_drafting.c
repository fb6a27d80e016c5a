/* Training of drafters: it lowers what it is about, goes on where it was saved, comes to the same weights with any
 * number of threads; what it writes is what a loader reads; and what it refuses. */
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "golden.h"
#include "model/block_drafter_values.h"
#include "scratch.h"
#include "train/drafter_files.h"
#include "train/drafting.h"

enum { LENGTH = 40, ANSWER = 12, SEQUENCES = 5, STEPS = 6 };

static kakeya_engine *open_engine(const char *drafter, int threads) {
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense";
    options.f_theta = "none";
    options.drafter = drafter;
    options.precision = KAKEYA_PRECISION_F32;
    options.threads = threads;
    kakeya_engine *engine = NULL;
    REQUIRE_OK(kakeya_engine_open(&options, &engine, error));
    return engine;
}

static drafting_options options_of(const kakeya_engine *engine, int threads) {
    drafting_options o;
    block_drafter_config_fit(&engine->verifier->config, 2, 5, 2, &o.config);
    drafting_options_init(&o);
    o.trainer.sequence = LENGTH;
    o.trainer.blocks = 6;
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
        REQUIRE_OK(corpus_add(&data, tokens, length, length > ANSWER ? ANSWER : length - 1, error));
    }
    return data;
}

static drafting *make(kakeya_engine *engine, const drafting_options *o, const corpus *data) {
    float *start = malloc(block_drafter_values_count(&o->config) * sizeof *start);
    block_drafter_values_begin(&o->config, &engine->verifier->weights, 7, start);
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

static int asked;
static bool at_the_second(void *user) {
    (void)user;
    return ++asked == 2;
}

/* Interrupted in the middle of a step, saved, taken up by another engine with other threads and no room for hidden
 * states. */
static void one_result(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("none", 1), *wide = open_engine("none", 3);
    drafting_options o = options_of(engine, 1), p = options_of(wide, 3);
    o.kept_bytes = 1 << 20;
    corpus data = corpus_of(LENGTH);
    drafting *whole = make(engine, &o, &data), *part = make(engine, &o, &data), *rest = make(wide, &p, &data);
    go_on(whole, STEPS);
    go_on(part, 3);
    drafting_step_result r;
    kakeya_error problem = {0};
    asked = 0;
    assert_int_equal(drafting_step(part, at_the_second, NULL, &r, &problem), KAKEYA_CANCELLED);
    const char *path = scratch_path("drafter.state");
    REQUIRE_OK(drafting_save(part, path, 7, error));
    assert_int_equal(drafting_load(rest, path, 8, &problem), KAKEYA_FORMAT);
    assert_non_null(strstr(problem.message, "another model"));
    REQUIRE_OK(drafting_load(rest, path, 7, error));
    assert_int_equal(drafting_done(rest), 3);
    go_on(rest, STEPS);
    assert_same_bits("interrupted and gone on", drafting_weights(whole), drafting_weights(rest),
                     block_drafter_values_count(&o.config));
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, 300, SEEK_SET);
    fputc(77, file);
    fclose(file);
    assert_int_equal(drafting_load(rest, path, 7, &problem), KAKEYA_FORMAT);
    assert_non_null(strstr(problem.message, "is damaged"));
    drafting_destroy(whole);
    drafting_destroy(part);
    drafting_destroy(rest);
    corpus_free(&data);
    kakeya_engine_close(engine);
    kakeya_engine_close(wide);
}

/* A backend that shows hidden states with its forwards alone, and does not learn: the same weights. */
static void another_backend(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("none", 1), *other = open_engine("none", 1);
    backend_ops renamed = *other->ops;
    const backend_ops *ops = other->ops;
    renamed.name = "other";
    other->ops = &renamed;
    drafting_options o = options_of(engine, 1);
    corpus data = corpus_of(LENGTH);
    drafting *a = make(engine, &o, &data), *b = make(other, &o, &data);
    go_on(a, 2);
    go_on(b, 2);
    assert_same_bits("hidden states of forwards", drafting_weights(a), drafting_weights(b),
                     block_drafter_values_count(&o.config));
    drafting_destroy(a);
    drafting_destroy(b);
    o.config.target_layer[1] = engine->verifier->config.layers - 1;
    drafting *d = NULL;
    kakeya_error problem = {0};
    float *start = calloc(block_drafter_values_count(&o.config), sizeof *start);
    assert_int_equal(drafting_create(other, &o, &data, start, &d, &problem), KAKEYA_UNSUPPORTED);
    assert_non_null(strstr(problem.message, "does not expose the last layer's output"));
    free(start);
    corpus_free(&data);
    other->ops = ops;
    kakeya_engine_close(engine);
    kakeya_engine_close(other);
}

/* Every step sees all sequences. */
static void loss_falls(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("none", 1);
    corpus data = corpus_of(LENGTH);
    for (int inside = 0; inside < 2; inside++) {
        drafting_options o = options_of(engine, 1);
        o.trainer.inside_layers = inside;
        o.batch = SEQUENCES;
        o.constant = true;
        drafting *d = make(engine, &o, &data);
        size_t n = block_drafter_values_count(&o.config), outside = block_drafter_values_outside_layers(&o.config);
        float *start = malloc(n * sizeof *start);
        memcpy(start, drafting_weights(d), n * sizeof *start);
        double first = go_on(d, 1), last = go_on(d, 10);
        if (!(last < (inside ? 0.7 : 0.9) * first)) fail_msg("layers %d: %g, then %g", inside, first, last);
        bool changed = memcmp(start + outside, drafting_weights(d) + outside, (n - outside) * sizeof *start) != 0;
        assert_int_equal(changed, inside);
        free(start);
        drafting_destroy(d);
    }
    corpus_free(&data);
    kakeya_engine_close(engine);
}

/* Written in float32 and read back: the same values; in bfloat16: near them, and the engine drafts with it. */
static void files(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("none", 1);
    drafting_options o = options_of(engine, 1);
    o.config.sliding_window[0] = 9;
    size_t n = block_drafter_values_count(&o.config);
    float *values = malloc(n * sizeof *values), *again = malloc(n * sizeof *again);
    block_drafter_values_begin(&o.config, &engine->verifier->weights, 7, values);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const char *directory = scratch_path(bf16 ? "drafter-bf16" : "drafter-f32");
        mkdir(directory, 0777);
        REQUIRE_OK(drafter_write(&o.config, values, bf16, directory, error));
        kakeya_engine *with = open_engine(directory, 1);
        assert_memory_equal(&with->drafter->config, &o.config, sizeof o.config);
        REQUIRE_OK(drafter_read(with, again, error));
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

static void what_does_not_fit(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("none", 1);
    drafting_options o = options_of(engine, 1);
    corpus data = corpus_of(8); /* answers of one token */
    float *start = malloc(block_drafter_values_count(&o.config) * sizeof *start);
    block_drafter_values_begin(&o.config, &engine->verifier->weights, 7, start);
    drafting *d = NULL;
    kakeya_error problem = {0};
    assert_int_equal(drafting_create(engine, &o, &data, start, &d, &problem), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(problem.message, "none of 5 answers has the 2 tokens"));
    corpus_free(&data);
    data = corpus_of(LENGTH);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_result), cmocka_unit_test(another_backend),   cmocka_unit_test(loss_falls),
        cmocka_unit_test(files),      cmocka_unit_test(what_does_not_fit),
    };
    return cmocka_run_group_tests_name("steps of a drafter's training", tests, scratch_setup, scratch_teardown);
}
