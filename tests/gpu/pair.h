/* Models on both backends for the tests of the CUDA backend, the policies they run under, and how results are compared.
 */
#ifndef KAKEYA_TESTS_GPU_PAIR_H
#define KAKEYA_TESTS_GPU_PAIR_H

#include <cuda_runtime_api.h>

#include "golden.h"
#include "memory_stream.h"

typedef struct pair {
    mem_account account;
    language_model *verifier;
    block_drafter_model *drafter;
    restoration_model *f_theta;
    const backend_ops *ops[3];
    backend_model *model[3];
} pair;

/* The reference computes in float32 on the CPU; what bf16 costs the CPU against it is the measure for the device. */
enum { CPU = 0, CUDA = 1, REFERENCE = 2, MODELS };

/* Devices that the backend's model lies on; a test is also compiled for two (CMakeLists.txt). */
#ifndef PAIR_DEVICES
#define PAIR_DEVICES 1
#endif

/* The verifier of most tests; tools/test_gpu.sh runs them on quantised files of it, too. */
static inline const char *demo_path(void) {
    const char *path = getenv("KAKEYA_DEMO");
    return path && *path ? path : KAKEYA_MODELS "/demo";
}

/* The device is about as close to the float32 reference as the CPU in bf16 is. It rounds more (queries, derived keys
 * and probabilities enter products as bf16), and a random model lets small differences grow: hence the factor. Of
 * quantised weights the CPU rounds activations alone, the device in prompts the weights, too: two roundings where the
 * CPU has one. And matrices of formats that become bf16, of which embeddings in Q6_K are felt most. */
static double as_close = 2.2;

static inline bool device_present(void) {
    int count = 0;
    bool enough = cudaGetDeviceCount(&count) == cudaSuccess && count >= PAIR_DEVICES;
    if (!enough && PAIR_DEVICES > 1) print_message("%d devices are there, %d are needed\n", count, PAIR_DEVICES);
    return enough && strcmp(backend_find("auto", NULL)->name, "cuda") == 0;
}

/* The device's, where it is not bf16. */
static kakeya_precision pair_precision = KAKEYA_PRECISION_BF16;

/* No model on the CPU: it does not make random codes at the precisions above. */
static bool pair_device_alone = false;

static inline backend_model_options pair_options(pair *p, int b, bool bidirectional) {
    static const int devices[] = {0, 1, 2, 3, 4, 5, 6, 7};
    return (backend_model_options){.verifier = p->verifier,
                                   .drafter = p->drafter,
                                   .restoration = p->f_theta,
                                   .precision = b == REFERENCE ? KAKEYA_PRECISION_F32
                                                : b == CUDA    ? pair_precision
                                                               : KAKEYA_PRECISION_BF16,
                                   .drafter_block_bidirectional = bidirectional,
                                   .devices = devices,
                                   .n_devices = b == CUDA ? PAIR_DEVICES : 0,
                                   .account = &p->account};
}

static inline void pair_create(pair *p, bool bidirectional) {
    static const char *const names[] = {"cpu", "cuda", "cpu"};
    for (int b = 0; b < MODELS; b++) {
        p->ops[b] = backend_find(names[b], NULL);
        if (pair_device_alone && b != CUDA) continue;
        backend_model_options options = pair_options(p, b, bidirectional);
        REQUIRE_OK(p->ops[b]->model_create(&options, &p->model[b], error));
    }
}

/* The verifier alone, on no backend yet. */
static inline void pair_open_verifier(pair *p, const char *verifier) {
    memset(p, 0, sizeof *p);
    if (!device_present()) skip();
    mem_account_init(&p->account, NULL, 0);
    REQUIRE_OK(language_model_open(verifier, &p->account, &p->verifier, error));
    bool plain = weight_format_is_plain(p->verifier->weights.layer[0].q_proj.format);
    as_close = plain ? 2.2 : p->verifier->weights.embed.format == WEIGHT_Q6_K ? 6 : 3.2;
}

static inline void pair_open(pair *p, const char *verifier, bool auxiliary_models) {
    pair_open_verifier(p, verifier);
    if (auxiliary_models) {
        REQUIRE_OK(block_drafter_model_open(KAKEYA_MODELS "/demo-dflash", &p->verifier->config, &p->account,
                                            &p->drafter, error));
        REQUIRE_OK(restoration_model_open(KAKEYA_TEST_DATA "/golden/demo-f-theta-regression", &p->verifier->config,
                                          &p->drafter->config, &p->account, &p->f_theta, error));
    }
    pair_create(p, false);
}

static inline void pair_close(pair *p) {
    for (int b = 0; b < MODELS; b++) {
        if (p->model[b]) p->ops[b]->model_destroy(p->model[b]);
    }
    if (p->f_theta) restoration_model_close(p->f_theta);
    if (p->drafter) block_drafter_model_close(p->drafter);
    language_model_close(p->verifier);
    assert_int_equal(mem_total(&p->account), 0);
}

typedef struct policy {
    const char *name;
    kakeya_attention attention;
    kakeya_restore_layers layers;
} policy;

static const policy policies[] = {
    {"native", KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING},
    {"sink-window", KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING},
    {"restored", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING},
    {"restored all", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL},
};
enum { POLICIES = sizeof policies / sizeof policies[0] };

/* What caches keep K/V in, but for the reference's. */
static kv_format pair_kv_format = KV_FORMAT_BF16;

static inline backend_cache *new_cache(pair *p, int b, const policy *how, int context, bool drafter) {
    backend_cache *cache = NULL;
    backend_cache_options options = {.context_tokens = context,
                                     .attention = how->attention,
                                     .restore_layers = how->layers,
                                     .sink = 4,
                                     .window = 64,
                                     .draft_window = 256,
                                     .kv_format = b == REFERENCE ? KV_FORMAT_F32 : pair_kv_format,
                                     .keep_draft_context = drafter,
                                     .account = &p->account};
    REQUIRE_OK(p->ops[b]->cache_create(p->model[b], &options, &cache, error));
    return cache;
}

/* Rows of one kind; keeps `kept` of them. */
static inline void step(pair *p, int b, backend_cache *cache, const int32_t *tokens, int n, int kept, segment_kind kind,
                        float *logits) {
    backend_segment segment = {
        .cache = cache, .tokens = tokens, .n = n, .kind = kind, .first_logit_row = logits ? 0 : n, .logits = logits};
    REQUIRE_OK(p->ops[b]->forward(p->model[b], &segment, 1, error));
    REQUIRE_OK(p->ops[b]->cache_commit(cache, kept, error));
}

static inline int argmax_of(const float *row, int vocab) {
    int best = 0;
    for (int v = 1; v < vocab; v++) {
        if (row[v] > row[best]) best = v;
    }
    return best;
}

static inline memory_stream snapshot_of(pair *p, int b, const backend_cache *cache) {
    memory_stream stream = {0};
    REQUIRE_OK(p->ops[b]->cache_snapshot(cache, memory_write, &stream, error));
    assert_int_equal(stream.bytes, p->ops[b]->cache_snapshot_bytes(cache));
    return stream;
}

/* Root of the mean squared difference. */
static inline double rms_difference(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum / (double)n);
}

static inline void assert_as_close(const char *what, const float *found, const float *cpu, const float *reference,
                                   size_t n) {
    double device = rms_difference(found, reference, n), host = rms_difference(cpu, reference, n);
    print_message("%s: rms from float32 %.5f (CPU in bf16 %.5f)\n", what, device, host);
    if (!(device <= as_close * host + 1e-3))
        fail_msg("%s: rms %.5f from the reference, the CPU in bf16 %.5f", what, device, host);
}

static inline void fill_tokens(int32_t *tokens, int n, int vocab, uint32_t seed) {
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((seed >> 8) % (uint32_t)vocab);
    }
}

#endif
