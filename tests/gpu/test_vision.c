/* Pictures on the device. What makes rows of them is compared with the CPU in float32, on the tiny models and on random
 * ones in the published shapes; rows that stand in the place of embeddings with the CPU, and with themselves in chunks.
 * Without a device (fake/fake_device.h) the kernels of the tower run on the host, and rows are compared by what they
 * have seen. `test_vision times`: milliseconds of the 26B's tower. */
#include "gpu/random_pair.h"

#include "backend/cuda/tower.h"
#include "backend/measure.h"
#include "base/clock.h"
#include "base/float16.h"
#include "model/vision_model.h"

#ifdef FAKE_DEVICE
extern bool fake_multiplies;
enum { FAKE = 1 };
static void multiply_numbers(bool on) { fake_multiplies = on; }
#else
enum { FAKE = 0 };
static void multiply_numbers(bool on) { (void)on; }
#endif

#define VISION KAKEYA_TEST_DATA "/vision/"

static double uniform(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (double)(1 << 23) - 1;
}

/* ---------------------------------------------------------------------------------------------------------- towers */

/* Pixels: gradients with noise, as values of bytes. */
static float *draw_patches(const vision_model *v, int across, int down, uint64_t seed) {
    const int side = v->patch, values = vision_model_patch_values(v);
    float *patches = malloc((size_t)(across * down * values) * sizeof *patches), *at = patches;
    for (int patch = 0; patch < across * down; patch++) {
        for (int i = 0; i < values; i++) {
            const int x = patch % across * side + i / 3 % side, y = patch / across * side + i / 3 / side;
            const double level = 0.5 + 0.3 * sin(0.05 * x + i % 3) + 0.15 * cos(0.03 * y) + 0.05 * uniform(&seed);
            *at++ = (float)(int)(255 * level) * (float)(1.0 / 255);
        }
    }
    return patches;
}

typedef struct random_vision {
    vision_model v;
    uint64_t seed;
    void *owned[1 << 10];
    int n;
} random_vision;

static kakeya_status draw_slot(void *context, const vision_slot *slot, kakeya_error *error) {
    (void)error;
    random_vision *r = context;
    vision_weights *w = &r->v.weights[slot->layer + 1];
    const size_t n = (size_t)slot->rows * (size_t)slot->columns;
    const bool of_heads = slot->role == VISION_Q_NORM || slot->role == VISION_K_NORM;
    void *data = malloc(n * (slot->matrix ? sizeof(uint16_t) : sizeof(float)));
    r->owned[r->n++] = data;
    if (slot->matrix) {
        const double most = slot->role == VISION_PLACES ? 0.5 : sqrt(3.0 / (double)slot->columns);
        for (size_t i = 0; i < n; i++) ((uint16_t *)data)[i] = f32_to_bf16((float)(most * uniform(&r->seed)));
        w->matrix[slot->role] = weight_matrix(WEIGHT_BF16, data, (int)slot->rows, (int)slot->columns);
    } else {
        const bool around_zero = slot->role == VISION_PATCH_BIAS || slot->role == VISION_PATCH_NORM_BIAS ||
                                 slot->role == VISION_HIDDEN_NORM_BIAS || slot->role == VISION_PLACE_NORM_BIAS ||
                                 slot->role == VISION_STD_BIAS;
        for (size_t i = 0; i < n; i++)
            ((float *)data)[i] = (float)((around_zero ? 0
                                          : of_heads  ? 0.35
                                                      : 1) +
                                         (of_heads ? 0.15 : 0.4) * uniform(&r->seed));
        w->vector[slot->role] = data;
    }
    w->bounds[slot->role] = (vision_bounds){-INFINITY, INFINITY, -INFINITY, INFINITY};
    if (slot->clipped)
        w->bounds[slot->role] = (vision_bounds){-1.5f + 0.4f * (float)uniform(&r->seed), 1.4f, -1.25f, 1.5f};
    return KAKEYA_OK;
}

static random_vision *draw_vision(const vision_model *sizes) {
    random_vision *r = calloc(1, sizeof *r);
    r->v = *sizes;
    r->seed = 77;
    r->v.rms_eps = 1e-6f;
    r->v.rope_theta = 100;
    r->v.weights = calloc((size_t)sizes->layers + 1, sizeof *r->v.weights);
    assert_int_equal(vision_model_walk(&r->v, draw_slot, r, NULL), KAKEYA_OK);
    return r;
}

static void close_vision(random_vision *r) {
    for (int i = 0; i < r->n; i++) free(r->owned[i]);
    free(r->v.weights);
    free(r);
}

/* ||found - wanted|| / ||wanted|| of the worst row, and of all. */
static void compare_rows(const char *what, const float *found, const float *wanted, int rows, int width, double most) {
    double worst = 0, all = 0, all_norm = 0;
    int at = 0;
    for (int row = 0; row < rows; row++) {
        double difference = 0, norm = 0;
        for (int i = 0; i < width; i++, found++, wanted++) {
            difference += ((double)*found - (double)*wanted) * ((double)*found - (double)*wanted);
            norm += (double)*wanted * (double)*wanted;
        }
        all += difference;
        all_norm += norm;
        const double relative = sqrt(difference / norm);
        if (relative <= worst) continue;
        worst = relative;
        at = row;
    }
    print_message("%s: relative error %.5f, of row %d %.5f\n", what, sqrt(all / all_norm), at, worst);
    if (!(sqrt(all / all_norm) <= most && worst <= 3 * most))
        fail_msg("%s: relative error %.5f, of row %d %.5f; bounds %.3f and %.3f", what, sqrt(all / all_norm), at, worst,
                 most, 3 * most);
}

static void compare_tower(pair *p, const char *what, const vision_model *v, int across, int down, double most) {
    const int rows = across / v->pooling * (down / v->pooling);
    const size_t values = (size_t)rows * (size_t)v->text_hidden;
    float *patches = draw_patches(v, across, down, 5), *wanted = malloc(values * sizeof *wanted),
          *found = malloc(values * sizeof *found), *again = malloc(values * sizeof *again);
    const backend_image image = {.vision = v, .across = across, .down = down, .patches = patches};
    REQUIRE_OK(p->ops[REFERENCE]->embed_image(p->model[REFERENCE], &image, wanted, error));
    multiply_numbers(true);
    REQUIRE_OK(p->ops[CUDA]->embed_image(p->model[CUDA], &image, found, error));
    compare_rows(what, found, wanted, rows, v->text_hidden, most);
    REQUIRE_OK(p->ops[CUDA]->embed_image(p->model[CUDA], &image, again, error));
    assert_same_bits(what, again, found, values);
    multiply_numbers(false);
    free(again);
    free(found);
    free(wanted);
    free(patches);
}

static void open_tiny(pair *p, const char *model) {
    char path[512];
    snprintf(path, sizeof path, VISION "%s", model);
    pair_open(p, path, false);
}

static void towers_of_tiny_models(void **state) {
    (void)state;
    static const char *const models[] = {"tiny-tower", "tiny-e", "tiny-unified"};
    for (int i = 0; i < 3; i++) {
        pair p;
        open_tiny(&p, models[i]);
        const vision_model *v = p.verifier->vision;
        const int unit = v->pooling;
        compare_tower(&p, models[i], v, 7 * unit, 10 * unit, 0.03);
        compare_tower(&p, models[i], v, unit, unit, 0.03);
        compare_tower(&p, models[i], v, 13 * unit, 5 * unit, 0.03);
        pair_close(&p);
    }
}

static const vision_model large = {.tower = true,
                                   .both_ways = true,
                                   .patch = 16,
                                   .pooling = 3,
                                   .layers = 27,
                                   .hidden = 1152,
                                   .heads = 16,
                                   .head_dim = 72,
                                   .intermediate = 4304,
                                   .positions = 10240,
                                   .text_hidden = 2816,
                                   .standardize = true},
                          small = {.tower = true,
                                   .patch = 16,
                                   .pooling = 3,
                                   .layers = 16,
                                   .hidden = 768,
                                   .heads = 12,
                                   .head_dim = 64,
                                   .intermediate = 3072,
                                   .positions = 10240,
                                   .text_hidden = 1536,
                                   .clipped = true},
                          embedder = {.both_ways = true,
                                      .patch = 48,
                                      .pooling = 1,
                                      .hidden = 3840,
                                      .positions = 1120,
                                      .text_hidden = 3840};

/* Heads as published, everything else small: what the host computes in a second. */
static vision_model shrunk(vision_model v) {
    v.layers = v.tower ? 2 : 0;
    v.hidden = v.tower ? 2 * v.head_dim : 64;
    v.heads = v.tower ? 2 : 0;
    v.intermediate = v.tower ? 136 : 0;
    v.patch = 4;
    v.positions = 64;
    v.text_hidden = 48;
    return v;
}

static void towers_of_published_shapes(void **state) {
    (void)state;
    const struct {
        const char *name;
        vision_model v;
        int across, down;
    } list[] = {{"26B-A4B, 31B", large, 36, 39}, {"E2B", small, 33, 30}, {"12B", embedder, 12, 13}};
    pair p;
    random_vision *drawn[3];
    open_tiny(&p, "tiny-tower");
    for (int i = 0; i < 3; i++) {
        const vision_model sizes = FAKE ? shrunk(list[i].v) : list[i].v;
        const int part = FAKE && sizes.tower ? 2 : 1, unit = sizes.pooling;
        random_vision *r = drawn[i] = draw_vision(&sizes);
        compare_tower(&p, list[i].name, &r->v, list[i].across / part / unit * unit, list[i].down / part / unit * unit,
                      0.03);
    }
    pair_close(&p);
    for (int i = 0; i < 3; i++) close_vision(drawn[i]); /* the device knows them by their addresses */
}

/* What is told of a picture's memory is what it takes. */
static void memory_of_pictures(void **state) {
    (void)state;
    pair p;
    open_tiny(&p, "tiny-e");
    const vision_model *v = p.verifier->vision;
    const backend_measure_ops *measure = backend_measure_find(p.ops[CUDA]);
    REQUIRE_OK(p.ops[CUDA]->load_vision(p.model[CUDA], v, error));
    const size_t before = mem_total(&p.account);
    float *patches = draw_patches(v, 21, 27, 1), rows[7 * 9 * 64];
    assert_true(v->text_hidden <= 64);
    const backend_image image = {.vision = v, .across = 21, .down = 27, .patches = patches};
    REQUIRE_OK(p.ops[CUDA]->embed_image(p.model[CUDA], &image, rows, error));
    assert_int_equal(mem_total(&p.account) - before, measure->image_bytes(v, WEIGHT_BF16, 21 * 27, 27, 1));
    const backend_image wide = {.vision = v, .across = v->positions + 3, .down = 3, .patches = patches};
    kakeya_error failure;
    assert_int_equal(p.ops[CUDA]->embed_image(p.model[CUDA], &wide, rows, &failure), KAKEYA_INVALID_ARGUMENT);
    free(patches);
    pair_close(&p);
}

typedef struct reading {
    float *wanted, *got;
    size_t values;
    backend_reading *handle;
} reading;

static reading begin_reading(pair *p, const vision_model *v, uint64_t seed) {
    const int across = 48, down = 36;
    reading r = {.values = (size_t)(across / v->pooling * (down / v->pooling) * v->text_hidden)};
    float *patches = draw_patches(v, across, down, seed);
    const backend_image image = {.vision = v, .across = across, .down = down, .patches = patches};
    r.wanted = malloc(r.values * sizeof *r.wanted);
    r.got = malloc(r.values * sizeof *r.got);
    REQUIRE_OK(p->ops[CUDA]->embed_image(p->model[CUDA], &image, r.wanted, error));
    REQUIRE_OK(p->ops[CUDA]->image_begin(p->model[CUDA], &image, r.got, &r.handle, error));
    free(patches);
    return r;
}

static bool read_piece(pair *p, reading *r) {
    bool made;
    REQUIRE_OK(p->ops[CUDA]->image_step(r->handle, 0, &made, error));
    return made;
}

/* Two pictures, a piece of one after a piece of the other, and one that is given up: the bits of reading in one go. */
static void pieces_of_pictures(void **state) {
    (void)state;
    pair p;
    open_tiny(&p, "tiny-tower");
    const vision_model *v = p.verifier->vision;
    multiply_numbers(true);
    reading r[3];
    for (uint64_t i = 0; i < 3; i++) r[i] = begin_reading(&p, v, 7 + i);
    const size_t all = mem_total(&p.account);
    bool made[2] = {read_piece(&p, &r[0]), false};
    p.ops[CUDA]->image_end(r[2].handle);
    int pieces = 1;
    for (; !made[0] || !made[1]; pieces++)
        for (int i = 0; i < 2; i++)
            if (!made[i]) made[i] = read_piece(&p, &r[i]);
    assert_true(pieces >= v->layers);
    for (int i = 0; i < 2; i++) {
        assert_same_bits("pieces", r[i].got, r[i].wanted, r[i].values);
        p.ops[CUDA]->image_end(r[i].handle);
    }
    assert_true(mem_total(&p.account) < all); /* one picture's memory stays for the next one */
    for (int i = 0; i < 3; i++) {
        free(r[i].wanted);
        free(r[i].got);
    }
    multiply_numbers(false);
    pair_close(&p);
}

/* ------------------------------------------------------------------------------------------------------ given rows */

enum { CONTEXT = 2048, ROWS = 330, LATER = 200, GIVEN = 3, DECODED = 70 };

/* Two pictures in a prompt, longer than the window of 96, and one in a later prompt. */
static const struct { int first, n; } places[GIVEN] = {{20, 130}, {151, 40}, {33, 101}};

typedef struct stream {
    int32_t tokens[ROWS + LATER + DECODED];
    float *rows[GIVEN]; /* [n][hidden] */
    bool both_ways;
} stream;

static stream draw_stream(const model_config *c, bool both_ways) {
    stream s = {.both_ways = both_ways};
    uint64_t seed = 3;
    fill_tokens(s.tokens, ROWS + LATER + DECODED, c->vocab, 29);
    for (int i = 0; i < GIVEN; i++) {
        const size_t n = (size_t)places[i].n * (size_t)c->hidden;
        s.rows[i] = malloc(n * sizeof *s.rows[i]);
        for (size_t k = 0; k < n; k++) s.rows[i][k] = (float)uniform(&seed);
    }
    return s;
}

static void close_stream(stream *s) {
    for (int i = 0; i < GIVEN; i++) free(s->rows[i]);
}

/* A prompt in pieces that end at `cuts` rows, none of which cuts a picture. */
static void prompt_in_pieces(pair *p, int b, backend_cache *cache, const stream *s, int first, int rows, int given,
                             int n_given, const int *cuts, float *logits) {
    const size_t vocab = (size_t)p->verifier->config.vocab;
    for (int begin = 0, cut = 0; begin < rows; cut++) {
        const int end = cuts && cuts[cut] < rows ? cuts[cut] : rows;
        backend_given list[GIVEN];
        int n = 0;
        for (int i = given; i < given + n_given; i++)
            if (places[i].first >= begin && places[i].first < end)
                list[n++] = (backend_given){places[i].first - begin, places[i].n, s->rows[i], s->both_ways};
        backend_segment segment = {.cache = cache,
                                   .tokens = s->tokens + first + begin,
                                   .n = end - begin,
                                   .kind = SEGMENT_PROMPT,
                                   .logits = logits + (size_t)begin * vocab,
                                   .given = n ? list : NULL,
                                   .n_given = n};
        REQUIRE_OK(p->ops[b]->forward(p->model[b], &segment, 1, error));
        REQUIRE_OK(p->ops[b]->cache_commit(cache, end - begin, error));
        begin = end;
    }
}

/* Logits of a prompt with two pictures, of an answer, which evicts, and of a later prompt with one. */
static float *play(pair *p, int b, const policy *how, const stream *s, const int *cuts, const int *later_cuts) {
    const size_t vocab = (size_t)p->verifier->config.vocab;
    float *logits = calloc((size_t)(ROWS + LATER + DECODED) * vocab, sizeof *logits);
    backend_cache *cache = new_cache(p, b, how, CONTEXT, how->attention == KAKEYA_ATTENTION_RESTORED);
    prompt_in_pieces(p, b, cache, s, 0, ROWS, 0, 2, cuts, logits);
    for (int i = 0; i < DECODED; i += 10)
        step(p, b, cache, s->tokens + ROWS + i, 10, 10, SEGMENT_DECODE, logits + (size_t)(ROWS + i) * vocab);
    prompt_in_pieces(p, b, cache, s, ROWS + DECODED, LATER, 2, 1, later_cuts,
                     logits + (size_t)(ROWS + DECODED) * vocab);
    p->ops[b]->cache_destroy(cache);
    return logits;
}

static const int cuts_a[] = {20, 150, 191, 200, 260, ROWS}, cuts_b[] = {7, 13, 150, 330, ROWS},
                 later_a[] = {33, 134, LATER}, later_b[] = {1, 2, 20, 137, 138, LATER};

static void check_pieces(pair *p, const char *name, const stream *s, int policies_n) {
    const size_t n = (size_t)(ROWS + LATER + DECODED) * (size_t)p->verifier->config.vocab;
    for (int k = 0; k < policies_n; k++) {
        char what[96];
        snprintf(what, sizeof what, "%s, %s", name, policies[k].name);
        float *whole = play(p, CUDA, &policies[k], s, NULL, NULL), *a = play(p, CUDA, &policies[k], s, cuts_a, later_a),
              *b = play(p, CUDA, &policies[k], s, cuts_b, later_b);
        assert_same_bits(what, a, whole, n);
        assert_same_bits(what, b, whole, n);
        if (!FAKE && k < 2) {
            float *cpu = play(p, CPU, &policies[k], s, NULL, NULL),
                  *reference = play(p, REFERENCE, &policies[k], s, NULL, NULL);
            assert_as_close(what, whole, cpu, reference, n);
            free(reference);
            free(cpu);
        }
        free(b);
        free(a);
        free(whole);
    }
}

/* Rows see what they shall: with the rule of the others nothing is what it was. */
static void check_rule(pair *p, const char *name) {
    const size_t vocab = (size_t)p->verifier->config.vocab;
    stream ahead = draw_stream(&p->verifier->config, true), causal = draw_stream(&p->verifier->config, false);
    float *a = play(p, CUDA, &policies[0], &ahead, NULL, NULL), *b = play(p, CUDA, &policies[0], &causal, NULL, NULL);
    assert_same_bits(name, a, b, (size_t)places[0].first * vocab);
    assert_true(rms_difference(a + (size_t)places[0].first * vocab, b + (size_t)places[0].first * vocab, vocab) > 0);
    free(b);
    free(a);
    close_stream(&ahead);
    close_stream(&causal);
}

static void check_form(const char *name, const model_config *form) {
    static const int windows[3] = {0, 40, 0};
    pair p;
    pair_random_ranks(&p, form, windows, 64, 64);
    for (int both_ways = 0; both_ways < 2; both_ways++) {
        stream s = draw_stream(form, both_ways);
        check_pieces(&p, name, &s, POLICIES);
        close_stream(&s);
    }
    check_rule(&p, name);
    pair_close(&p);
}

static void given_rows(void **state) {
    (void)state;
    const model_config shared = shared_form(), wide = wide_form(), tall = tall_form(), routed = routed_form();
    check_form("heads of 64 and 128, per-layer inputs", &shared);
    check_form("heads of 256", &wide);
    if (!FAKE) check_form("heads of 256 and 512", &tall);
    check_form("experts", &routed);
}

/* Heads of 16, which prompt attention does not serve. */
static void given_rows_of_tiny_models(void **state) {
    (void)state;
    pair p;
    open_tiny(&p, "tiny-unified");
    stream s = draw_stream(&p.verifier->config, true);
    check_pieces(&p, "tiny-unified", &s, 2);
    close_stream(&s);
    check_rule(&p, "tiny-unified");
    pair_close(&p);
}

/* ----------------------------------------------------------------------------------------------------------- times */

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void time_tower(pair *p, const char *what, const vision_model *v, int across, int down) {
    enum { REPEATS = 7 };
    double wall[REPEATS], device[REPEATS], by_kind[OP_KINDS];
    float *patches = draw_patches(v, across, down, 9);
    const int rows = across / v->pooling * (down / v->pooling);
    float *out = malloc((size_t)(rows * v->text_hidden) * sizeof *out);
    const backend_image image = {.vision = v, .across = across, .down = down, .patches = patches};
    REQUIRE_OK(p->ops[CUDA]->embed_image(p->model[CUDA], &image, out, error));
    for (int i = 0; i < REPEATS; i++) {
        const double begin = clock_seconds();
        REQUIRE_OK(p->ops[CUDA]->embed_image(p->model[CUDA], &image, out, error));
        wall[i] = 1e3 * (clock_seconds() - begin);
        REQUIRE_OK(cuda_image_seconds(p->model[CUDA], &image, by_kind, error));
        device[i] = 0;
        for (int kind = 0; kind < OP_KINDS; kind++) device[i] += 1e3 * by_kind[kind];
    }
    qsort(wall, REPEATS, sizeof *wall, compare_doubles);
    qsort(device, REPEATS, sizeof *device, compare_doubles);
    printf("%s, %d rows: device %.2f ms (%.2f to %.2f), with copies %.2f ms (%.2f to %.2f)\n", what, rows,
           device[REPEATS / 2], device[0], device[REPEATS - 1], wall[REPEATS / 2], wall[0], wall[REPEATS - 1]);
    for (int kind = 0; kind < OP_KINDS; kind++)
        if (by_kind[kind] > 0) printf("    %-16s %8.3f ms\n", op_kind_name((op_kind)kind), 1e3 * by_kind[kind]);
    free(out);
    free(patches);
}

static void times(void **state) {
    (void)state;
    pair p;
    random_vision *drawn[3];
    open_tiny(&p, "tiny-tower");
    const struct {
        const char *name;
        const vision_model *v;
        int unit;
    } list[] = {{"26B-A4B, 31B", &large, 3}, {"E2B", &small, 3}, {"12B", &embedder, 1}};
    for (int i = 0; i < 3; i++) {
        random_vision *r = drawn[i] = draw_vision(list[i].v);
        time_tower(&p, list[i].name, &r->v, 20 * list[i].unit, 14 * list[i].unit);
        time_tower(&p, list[i].name, &r->v, 40 * list[i].unit, 28 * list[i].unit);
    }
    pair_close(&p);
    for (int i = 0; i < 3; i++) close_vision(drawn[i]);
}

int main(int argc, char **argv) {
    const struct CMUnitTest timed[] = {cmocka_unit_test(times)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(towers_of_tiny_models),     cmocka_unit_test(towers_of_published_shapes),
        cmocka_unit_test(pieces_of_pictures),        cmocka_unit_test(memory_of_pictures),
        cmocka_unit_test(given_rows_of_tiny_models), cmocka_unit_test(given_rows),
    };
    if (argc > 1 && strcmp(argv[1], "times") != 0) cmocka_set_test_filter(argv[1]);
    if (argc > 1 && strcmp(argv[1], "times") == 0)
        return cmocka_run_group_tests_name("vision times", timed, NULL, NULL);
    return cmocka_run_group_tests_name("vision", tests, NULL, NULL);
}
