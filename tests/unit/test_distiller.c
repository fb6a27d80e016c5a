/* Distillation: it lowers what it is about, goes on where it was saved, comes to the same weights with any number of
 * threads, and refuses what does not fit. The optimiser against its formulas. */
#include <math.h>
#include <stdlib.h>

#include "golden.h"
#include "scratch.h"
#include "train/distiller.h"
#include "train/trainer.h"

enum { LENGTH = 40, SEQUENCES = 6, SINK = 1, WINDOW = 4, RANK = 12, STEPS = 6 };

static double draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (double)(1 << 23) - 1;
}

static kakeya_engine *open_as(const char *name, int threads, kakeya_precision precision) {
    char path[512];
    snprintf(path, sizeof path, "%s/golden/%s", KAKEYA_TEST_DATA, name);
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = path;
    options.f_theta = options.drafter = "none";
    options.precision = precision;
    options.threads = threads;
    kakeya_engine *engine = NULL;
    REQUIRE_OK(kakeya_engine_open(&options, &engine, error));
    return engine;
}

static kakeya_engine *open_engine(const char *name, int threads) {
    return open_as(name, threads, KAKEYA_PRECISION_F32);
}

static distiller_options options_of(const kakeya_engine *engine, int threads) {
    const model_config *c = &engine->verifier->config;
    distiller_options o;
    distiller_options_init(&o, c);
    o.config =
        (restoration_config){.input = RESTORATION_AUX_HIDDEN, .hidden = c->hidden, .latents = RESTORATION_LATENTS_Q8};
    o.config.aux_layers = restoration_default_taps(c, 2, o.config.aux_layer);
    restoration_config_fit(&o.config, c, RANK, RANK, true);
    o.trainer.sequence = LENGTH;
    o.trainer.rows = 4;
    o.trainer.sink = SINK;
    o.trainer.window = WINDOW;
    o.batch = 3;
    o.steps = STEPS;
    o.warm_up = 2;
    o.rate = 0.01;
    o.threads = threads;
    return o;
}

static corpus corpus_of(int length) {
    corpus data = {0};
    uint64_t random = 5;
    for (int s = 0; s < SEQUENCES; s++) {
        int32_t tokens[LENGTH];
        for (int i = 0; i < length; i++) tokens[i] = (int32_t)((draw(&random) + 1) * 150);
        REQUIRE_OK(corpus_add(&data, tokens, length, s == 2 ? length - 6 : 0, error));
    }
    return data;
}

static void start_of(const distiller_options *o, closed_form_weights *out) {
    uint64_t random = 9;
    const restoration_config *f = &o->config;
    assert_true(closed_form_weights_create(f, out));
    for (int i = 0; i < RANK * restoration_encoder_in(f); i++) out->encoder[0][i] = (float)(0.2 * draw(&random));
    for (int l = 0; l < f->layers; l++) {
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < f->kv_heads[l] * f->head_dim[l] * RANK; i++)
                out->decoder[half][l][i] = (float)(0.2 * draw(&random));
        }
    }
}

static distiller *make(kakeya_engine *engine, const distiller_options *o, const corpus *data) {
    closed_form_weights start;
    start_of(o, &start);
    distiller *d = NULL;
    REQUIRE_OK(distiller_create(engine, o, data, &start, &d, error));
    closed_form_weights_free(&start);
    return d;
}

static double go_on(distiller *d, int steps) {
    distiller_step_result r = {0};
    while (distiller_done(d) < steps) REQUIRE_OK(distiller_step(d, NULL, NULL, &r, error));
    return r.lost.loss;
}

static void same_weights(const char *what, const distiller *a, const distiller *b, const restoration_config *f) {
    closed_form_weights x, y;
    REQUIRE_OK(distiller_weights(a, &x, error));
    REQUIRE_OK(distiller_weights(b, &y, error));
    assert_same_bits(what, x.encoder[0], y.encoder[0], (size_t)(RANK * restoration_encoder_in(f)));
    for (int l = 0; l < f->layers; l++) {
        for (int half = 0; half < 2; half++)
            assert_same_bits(what, x.decoder[half][l], y.decoder[half][l],
                             (size_t)(f->kv_heads[l] * f->head_dim[l] * RANK));
    }
    closed_form_weights_free(&x);
    closed_form_weights_free(&y);
}

static int asked;
static bool at_the_second(void *user) {
    (void)user;
    return ++asked == 2;
}

/* Interrupted in the middle of a step, saved, taken up by another engine with other threads. */
static void one_result(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("gemma4-tiny-ple", 1), *wide = open_engine("gemma4-tiny-ple", 3);
    distiller_options o = options_of(engine, 1), p = options_of(wide, 3);
    corpus data = corpus_of(LENGTH);
    distiller *whole = make(engine, &o, &data), *part = make(engine, &o, &data);
    go_on(whole, STEPS);
    go_on(part, 3);
    distiller_step_result r;
    kakeya_error problem = {0};
    asked = 0;
    assert_int_equal(distiller_step(part, at_the_second, NULL, &r, &problem), KAKEYA_CANCELLED);
    const char *path = scratch_path("distill.state");
    REQUIRE_OK(distiller_save(part, path, 7, error));
    corpus again = {0};
    assert_int_equal(distiller_load_corpus(path, 8, &again, &problem), KAKEYA_FORMAT);
    assert_non_null(strstr(problem.message, "another model"));
    REQUIRE_OK(distiller_load_corpus(path, 7, &again, error));
    assert_int_equal(again.n, data.n);
    distiller *rest = make(wide, &p, &again);
    REQUIRE_OK(distiller_load(rest, path, 7, error));
    assert_int_equal(distiller_done(rest), 3);
    go_on(rest, STEPS);
    same_weights("interrupted and gone on", whole, rest, &o.config);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, 300, SEEK_SET);
    fputc(77, file);
    fclose(file);
    assert_int_equal(distiller_load_corpus(path, 7, &again, &problem), KAKEYA_FORMAT);
    assert_non_null(strstr(problem.message, "is damaged"));
    distiller_destroy(whole);
    distiller_destroy(part);
    distiller_destroy(rest);
    corpus_free(&data);
    corpus_free(&again);
    kakeya_engine_close(engine);
    kakeya_engine_close(wide);
}

/* Every loss falls on what it is trained on. */
static void losses_fall(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("gemma4-tiny-dense", 1);
    corpus data = corpus_of(LENGTH);
    for (int loss = 0; loss < RESTORATION_LOSSES; loss++) {
        distiller_options o = options_of(engine, 1);
        o.trainer.loss = (restoration_loss)loss;
        for (int i = 0; i < 4; i++) o.trainer.lambda[i] = 0.5f;
        o.batch = SEQUENCES; /* each step sees all of them */
        o.constant = true;
        distiller *d = make(engine, &o, &data);
        double first = go_on(d, 1), last = go_on(d, 8);
        if (!(last < 0.9 * first)) fail_msg("loss %d: %g at first, %g after 8 steps", loss, first, last);
        distiller_destroy(d);
    }
    corpus_free(&data);
    kakeya_engine_close(engine);
}

/* What a decoder makes of latents of unit variance. */
static double decoded_size(const float *decoder, int values) {
    double squares = 0;
    for (int i = 0; i < values; i++) squares += (double)decoder[i] * (double)decoder[i];
    return sqrt(squares / values * RANK);
}

/* The first step of Adam moves every weight by the rate, in its unit: that of a decoder is the size of what it gives
 * where a norm follows, that of raw values the measured one. Sizes go through the files of an f_theta. */
static void check_units(bool raw_values) {
    kakeya_engine *engine = open_engine("gemma4-tiny-dense", 1);
    engine->verifier->config.raw_values = raw_values;
    corpus data = corpus_of(LENGTH);
    distiller_options o = options_of(engine, 1);
    o.warm_up = 0;
    o.constant = true;
    const restoration_config *f = &o.config;
    closed_form_weights start, after, read;
    restoration_config found;
    start_of(&o, &start);
    assert_true(closed_form_weights_create_sizes(f, &start));
    int inputs = restoration_encoder_in(f), differ = 0;
    for (int i = 0; i < inputs; i++) start.input_size[i] = i % 2 ? 4 : 0.5f;
    for (int l = 0; l < f->layers; l++) {
        start.value_size[l] = 1 + (float)l;
        for (int i = 0; i < f->kv_heads[l] * f->head_dim[l] * RANK; i++) start.decoder[0][l][i] *= 5 + (float)l;
    }
    distiller *d = NULL;
    REQUIRE_OK(distiller_create(engine, &o, &data, &start, &d, error));
    go_on(d, 1);
    REQUIRE_OK(distiller_weights(d, &after, error));
    for (int i = 0; i < RANK * inputs; i++) {
        double moved = fabs((double)(after.encoder[0][i] - start.encoder[0][i])), unit = i % inputs % 2 ? 0.25 : 2;
        if (moved > 1.01 * o.rate * unit) fail_msg("weight %d moved by %g, a unit is %g", i, moved, unit);
        differ += moved > 0.9 * o.rate * unit;
    }
    assert_true(differ > RANK * inputs / 2);
    for (int l = 0; l < f->layers; l++) {
        int n = f->kv_heads[l] * f->head_dim[l] * RANK;
        for (int half = 0; half < 2; half++) {
            double most = 0;
            for (int i = 0; i < n; i++)
                most = fmax(most, fabs((double)(after.decoder[half][l][i] - start.decoder[half][l][i])));
            double unit = half && raw_values ? 1 + l : decoded_size(start.decoder[half][l], n);
            if (!(most > 0.9 * o.rate * unit && most < 1.01 * o.rate * unit))
                fail_msg("layer %d: decoder %d moved by %g, a unit is %g", l, half, most, unit);
        }
    }
    const char *directory = scratch_folder("sized");
    REQUIRE_OK(trainer_write(f, &after, f, directory, error));
    REQUIRE_OK(trainer_read(engine, directory, &found, &read, error));
    assert_same_bits("inputs", read.input_size, start.input_size, (size_t)inputs);
    assert_same_bits("values", read.value_size, start.value_size, (size_t)f->layers);
    closed_form_weights_free(&read);
    distiller_destroy(d);
    closed_form_weights_free(&start);
    closed_form_weights_free(&after);
    corpus_free(&data);
    kakeya_engine_close(engine);
}

static void units(void **state) {
    (void)state;
    check_units(false);
    check_units(true);
}

/* Losses are told apart by what their segments restore. */
static void kinds_of_segments(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("gemma4-tiny-dense", 1);
    corpus data = corpus_of(LENGTH);
    for (int all = 0; all <= 2; all++) {
        distiller_options o = options_of(engine, 1);
        o.all_layers = all / 2.0;
        distiller *d = make(engine, &o, &data);
        distiller_step_result r;
        REQUIRE_OK(distiller_step(d, NULL, NULL, &r, error));
        int n = o.batch * o.segments;
        assert_int_equal(r.segments[0] + r.segments[1], n);
        assert_true(all == 1 ? r.segments[0] && r.segments[1] : r.segments[all / 2] == n);
        assert_true(fabs((r.kl[0] + r.kl[1]) / n - r.lost.kl) < 1e-6 * r.lost.kl);
        distiller_destroy(d);
    }
    corpus_free(&data);
    kakeya_engine_close(engine);
}

static void what_does_not_fit(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine("gemma4-tiny-dense", 1);
    distiller_options o = options_of(engine, 1);
    corpus data = corpus_of(8); /* sink, window and rows are 9 */
    closed_form_weights start;
    start_of(&o, &start);
    distiller *d = NULL;
    kakeya_error problem = {0};
    assert_int_equal(distiller_create(engine, &o, &data, &start, &d, &problem), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(problem.message, "none of 6 sequences has the 9 tokens"));
    corpus_free(&data);
    data = corpus_of(LENGTH);
    start.encoder[0][0] = NAN;
    REQUIRE_OK(distiller_create(engine, &o, &data, &start, &d, error));
    distiller_step_result r;
    assert_int_equal(distiller_step(d, NULL, NULL, &r, &problem), KAKEYA_FORMAT);
    assert_non_null(strstr(problem.message, "the loss is not a number"));
    distiller_destroy(d);
    kakeya_engine_close(engine);
    engine = open_as("gemma4-tiny-dense", 1, KAKEYA_PRECISION_BF16);
    assert_int_equal(distiller_create(engine, &o, &data, &start, &d, &problem), KAKEYA_UNSUPPORTED);
    assert_non_null(strstr(problem.message, "precision f32"));
    closed_form_weights_free(&start);
    corpus_free(&data);
    kakeya_engine_close(engine);
}

static void near(double found, double expected, double off) {
    if (!(fabs(found - expected) <= off)) fail_msg("%.12g, expected %.12g", found, expected);
}

static void optimiser(void **state) {
    (void)state;
    const double close = 1e-12;
    near(adamw_rate(false, 1, 10, 1, 100), 0.1, close);
    near(adamw_rate(false, 1, 10, 10, 100), 1, close);
    near(adamw_rate(false, 1, 10, 100, 100), 0.01, close);
    near(adamw_rate(false, 1, 10, 55, 100), 0.01 + 0.99 * 0.5, close);
    near(adamw_rate(true, 0.25, 10, 1, 100), 0.25, close);
    near(adamw_rate(false, 1, 0, 3, 3), 0.01, close);

    /* The first step moves every weight by the rate, against its gradient, whatever the gradient's length; decay pulls
     * to 0. */
    thread_pool *pool = NULL;
    REQUIRE_OK(thread_pool_create(1, &pool, error));
    const adamw_options o = {.beta = {0.9, 0.99}, .eps = 1e-12, .decay = 0.5, .clip = 1};
    float gradient[3] = {30, -40, 0}, w[3] = {2, 2, 2}, first[3] = {0}, second[3] = {0};
    near(adamw_length(pool, gradient, 3), 50, 1e-9);
    adamw_step(pool, &o, 0.1, 1, 50, gradient, NULL, 3, w, first, second);
    const double expected[3] = {2 - 0.1 - 0.1, 2 - 0.1 + 0.1, 2 - 0.1};
    for (int i = 0; i < 3; i++) near((double)w[i], expected[i], 1e-6);
    near((double)first[0], 0.1 * 0.6, 1e-7); /* clipped to length 1 */
    near((double)second[1], 0.01 * 0.64, 1e-8);
    thread_pool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimiser), cmocka_unit_test(one_result),        cmocka_unit_test(losses_fall),
        cmocka_unit_test(units),     cmocka_unit_test(kinds_of_segments), cmocka_unit_test(what_does_not_fit),
    };
    return cmocka_run_group_tests_name("distillation", tests, scratch_setup, scratch_teardown);
}
