/* How near the CPU's tower comes to what this machine computes: the 26B's in its published size with random weights.
 *
 *     bench_picture MODEL [TOKENS[:LAYERS] ...]     280 without; MODEL: any directory, tests/data/vision/tiny-tower say
 *
 * All 27 layers are alike, so the share of fewer is about that of all, and takes less time.
 * On two threads in float32, as pictures are always computed. The machine's rate is probed before and after each
 * picture; a share compares a picture with the better of its two probes. Medians of REPETITIONS, with the least and the
 * most. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "backend/measure.h"
#include "backend/registry.h"
#include "base/clock.h"
#include "base/float16.h"
#include "model/language_model.h"
#include "model/vision_model.h"

enum { REPETITIONS = 5, THREADS = 2 };

static vision_model tower = {.tower = true,
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
                             .standardize = true,
                             .rms_eps = 1e-6f,
                             .rope_theta = 100};
static double weights, other_weights; /* of the matrices that products read: of all layers, and elsewhere */

static float uniform(void) {
    static uint64_t state = 77;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(state >> 40) / (float)(1 << 23) - 1;
}

static kakeya_status draw(void *context, const vision_slot *slot, kakeya_error *error) {
    (void)context;
    vision_weights *w = &tower.weights[slot->layer + 1];
    const size_t n = (size_t)slot->rows * (size_t)slot->columns;
    void *data = malloc(n * (slot->matrix ? sizeof(uint16_t) : sizeof(float)));
    if (!data) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a matrix of %zu values", n);
    if (slot->matrix) {
        const float most = sqrtf(3.0f / (float)slot->columns);
        for (size_t i = 0; i < n; i++) ((uint16_t *)data)[i] = f32_to_bf16(most * uniform());
        w->matrix[slot->role] = weight_matrix(WEIGHT_BF16, data, (int)slot->rows, (int)slot->columns);
        if (slot->role != VISION_PLACES) *(slot->layer < 0 ? &other_weights : &weights) += (double)n;
    } else {
        for (size_t i = 0; i < n; i++) ((float *)data)[i] = 1 + 0.3f * uniform();
        w->vector[slot->role] = data;
    }
    w->bounds[slot->role] = (vision_bounds){-INFINITY, INFINITY, -INFINITY, INFINITY};
    return KAKEYA_OK;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_spread(const char *what, double *values, double unit) {
    qsort(values, REPETITIONS, sizeof *values, compare_doubles);
    printf("  %s %.2f (%.2f to %.2f)", what, values[REPETITIONS / 2] * unit, values[0] * unit,
           values[REPETITIONS - 1] * unit);
}

static kakeya_status measure(const backend_ops *ops, backend_model *m, int tokens, int layers, kakeya_error *error) {
    /* as near to 4 x 3 as the tokens allow */
    int down = (int)sqrt(tokens * 3.0 / 4);
    while (tokens % down) down--;
    vision_model some = tower;
    some.layers = layers;
    const backend_image image = {
        .vision = &some, .across = tokens / down * tower.pooling, .down = down * tower.pooling, .patches = NULL};
    const double n = (double)image.across * image.down, wide = (double)(tower.heads * tower.head_dim);
    const double projection = (double)tower.hidden * tower.text_hidden;
    const double operations = 2 * n * (weights / tower.layers * layers + other_weights - projection) +
                              2 * tokens * projection + 4 * n * n * wide * layers;
    const size_t values = (size_t)n * (size_t)vision_model_patch_values(&tower);
    float *patches = malloc(values * sizeof *patches),
          *rows = malloc((size_t)tokens * (size_t)tower.text_hidden * sizeof *rows);
    kakeya_status status =
        patches && rows ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a picture");
    double seconds[REPETITIONS], probes[REPETITIONS], shares[REPETITIONS];
    for (size_t i = 0; !status && i < values; i++) patches[i] = 0.5f + 0.5f * uniform();
    for (int i = -1; !status && i < REPETITIONS; i++) { /* the first is not counted */
        backend_image read = image;
        backend_probe before, after;
        read.patches = patches;
        status = backend_measure_find(ops)->probe(m, &before, error);
        const double begin = clock_seconds();
        if (!status) status = ops->embed_image(m, &read, rows, error);
        const double took = clock_seconds() - begin;
        if (!status) status = backend_measure_find(ops)->probe(m, &after, error);
        if (status || i < 0) continue;
        seconds[i] = took;
        probes[i] = fmax(before.flops_per_second, after.flops_per_second);
        shares[i] = operations / took / probes[i];
    }
    if (!status) {
        printf("%d tokens, %d layers, %.2f TFLOP:", tokens, layers, 1e-12 * operations);
        print_spread("seconds", seconds, 1);
        print_spread("probed GFLOP/s", probes, 1e-9);
        print_spread("share", shares, 1);
        printf("\n");
    }
    free(rows);
    free(patches);
    return status;
}

int main(int argc, char **argv) {
    kakeya_error error;
    mem_account account;
    language_model *model = NULL;
    backend_model *m = NULL;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_picture MODEL [TOKENS[:LAYERS] ...]\n");
        return 2;
    }
    mem_account_init(&account, NULL, 0);
    const backend_ops *ops = backend_find("cpu", NULL);
    tower.weights = calloc((size_t)tower.layers + 1, sizeof *tower.weights);
    kakeya_status status = tower.weights ? vision_model_walk(&tower, draw, NULL, &error)
                                         : error_set(&error, KAKEYA_OUT_OF_MEMORY, "no memory for a tower");
    if (!status) status = language_model_open(argv[1], &account, &model, &error);
    const backend_model_options options = {
        .verifier = model, .precision = KAKEYA_PRECISION_F32, .threads = THREADS, .account = &account};
    if (!status) status = ops->model_create(&options, &m, &error);
    for (int i = 2; !status && i < (argc > 2 ? argc : 3); i++) {
        int tokens = 280, layers = tower.layers;
        if (i < argc &&
            (sscanf(argv[i], "%d:%d", &tokens, &layers) < 1 || tokens < 1 || layers < 1 || layers > tower.layers))
            status = error_set(&error, KAKEYA_INVALID_ARGUMENT, "'%s': TOKENS, or TOKENS:LAYERS with at most %d layers",
                               argv[i], tower.layers);
        if (!status) status = measure(ops, m, tokens, layers, &error);
    }
    if (m) ops->model_destroy(m);
    if (status) fprintf(stderr, "bench_picture: %s\n", error.message);
    return status ? 1 : 0;
}
