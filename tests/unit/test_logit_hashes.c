/* Bits that must stay: hashes of the logits, hidden states and drafted rows of the reference models, for every
 * instruction set and precision. A change that means to keep every bit keeps this table; one that does not says so and
 * replaces the rows that the failure prints.
 *
 * Everything that is hashed depends on this code and on four functions of libm, in scalar kernels also on a fifth,
 * whose last bits differ between libraries and between machines. The table is that of Debian 12; where these functions
 * give other bits, nothing is compared, or no scalar kernel. */
#include "golden.h"

#include "backend/cpu/block.h"
#include "base/hash.h"
#include "packed.h"
#include "sweep.h"

enum { ISAS = 4, PRECISIONS = 2, DRAFTS = 7 };

/* NEON's vectors have the lanes and the orders of AVX2's (simd_neon.h). */
static const char *const isas[ISAS][2] = {{"scalar"}, {"avx2", "neon"}, {"avx512"}, {"avx512bf16"}};
static const char *const precisions[PRECISIONS] = {"f32", "bf16"};

typedef struct model_case {
    const char *name; /* in tests/data/golden, or "demo": with its drafter and f_theta */
    kakeya_attention attention;
    uint64_t expected[PRECISIONS][ISAS];
} model_case;

#define H(digits)            UINT64_C(0x##digits)
#define RECORDED_LIBM        H(f84945005eaa62bd)
#define RECORDED_SCALAR_LIBM H(49382a9f8d8862aa)
/* [precision][instruction set] */
static const model_case cases[] = {
    {"gemma4-tiny-dense",
     KAKEYA_ATTENTION_NATIVE,
     {{H(6091232beca4f3a3), H(324dd6e522456298), H(79d54b107f216484), H(79d54b107f216484)},
      {H(c65a0bffe9189bef), H(4d38fcf049314409), H(39106be7f83d7697), H(39106be7f83d7697)}}},
    {"gemma4-tiny-moe",
     KAKEYA_ATTENTION_NATIVE,
     {{H(a3782b4d8d259da6), H(2ad848bf940d00d9), H(3212bec72b991a8d), H(3212bec72b991a8d)},
      {H(682d8eb3cbfd52ec), H(bbfa41a58f84884b), H(3a22516578cee673), H(3a22516578cee673)}}},
    {"gemma4-tiny-ple",
     KAKEYA_ATTENTION_NATIVE,
     {{H(7d00ab749c165cbe), H(0400afbb11673ed8), H(09031f24f2024309), H(09031f24f2024309)},
      {H(1e406b302df74554), H(84e87f72a85f6b45), H(21c8e8cdcf13075f), H(21c8e8cdcf13075f)}}},
    {"forms/experts",
     KAKEYA_ATTENTION_NATIVE,
     {{H(318fbe2aef46b1da), H(c53aa311c3bf5a5b), H(54ae44a922c80ca2), H(54ae44a922c80ca2)},
      {H(d2236bf73d19e8c0), H(70f16d59ac462a2c), H(ebb9cb5fbf7e4a9d), H(d2a5c5c4ab5e2422)}}},
    {"forms/one-token",
     KAKEYA_ATTENTION_NATIVE,
     {{H(125dfcf66c8df3b2), H(d2604eecd54a2e24), H(e894028f263673f6), H(e894028f263673f6)},
      {H(6d1741628ac81fd5), H(bce803c6a54d0af8), H(bce803c6a54d0af8), H(bce803c6a54d0af8)}}},
    {"forms/shared-k-eq-v",
     KAKEYA_ATTENTION_NATIVE,
     {{H(2825cea9568f05da), H(d81302ca13923819), H(e6db240ceea4a6e8), H(e6db240ceea4a6e8)},
      {H(403b0c5e5e146045), H(9e45ad80ea5cc56b), H(8e592c9b16989bc6), H(8e592c9b16989bc6)}}},
    {"forms/shared-kv",
     KAKEYA_ATTENTION_NATIVE,
     {{H(17ceb074fe3c51a8), H(5b38fd1e9a2c1411), H(828346149c1ad0f8), H(828346149c1ad0f8)},
      {H(2d3bdcf1258e5420), H(72f83cff797c728f), H(309f09120df97f56), H(31da965e48418a12)}}},
    {"forms/untied",
     KAKEYA_ATTENTION_NATIVE,
     {{H(8aef14eb52cf24b5), H(bd313371f673b1f3), H(1673513e91462118), H(1673513e91462118)},
      {H(0d56ce88ae6f441b), H(56765f45e8b18493), H(c3add45d9716ec85), H(c3add45d9716ec85)}}},
    {"forms/window-of-one",
     KAKEYA_ATTENTION_NATIVE,
     {{H(be10336609702ad4), H(1d5800865cc6547a), H(36ae52df70cc45e5), H(36ae52df70cc45e5)},
      {H(97fffcaec91db62c), H(0357b1d92bec99d5), H(c4e1d17aef31958e), H(d2d460e004d59585)}}},
    {"demo",
     KAKEYA_ATTENTION_NATIVE,
     {{H(87b7d49bb50764ce), H(1f34b43f8b07168f), H(d115fc268901cbbb), H(d115fc268901cbbb)},
      {H(d10bf49fd13b5a47), H(2d7791d8841ddf0b), H(3085c1d42a68e05c), H(ffdf881fd73e945e)}}},
    {"demo",
     KAKEYA_ATTENTION_RESTORED,
     {{H(a56793d62ad0c1e9), H(d86f9bb048b02e12), H(d9f95e4e9edffac7), H(d9f95e4e9edffac7)},
      {H(d8a4c8d6b771905a), H(5ca3020431f244c1), H(761bdfa69e23985d), H(1b4f046d672797a3)}}},
};

typedef struct libm_hashes {
    uint64_t all, scalar;
} libm_hashes;

static libm_hashes hash_libm(void) {
    libm_hashes hash = {HASH_FNV1A_START, HASH_FNV1A_START};
    uint32_t state = 1;
    for (int i = 0; i < 200000; i++) {
        state = state * 1664525u + 1013904223u;
        float unit = (float)(state >> 8) * 0x1p-24f, angle = unit * (float)(i % 4096);
        float values[] = {cosf(angle), sinf(angle), powf(10000.0f, unit), expf(-20 * unit)};
        float tangent = tanhf(4 * unit - 2);
        hash.all = hash_fnv1a(hash.all, values, sizeof values);
        hash.scalar = hash_fnv1a(hash.scalar, &tangent, sizeof tangent);
    }
    return hash;
}

typedef struct run {
    backend_model *model;
    const backend_ops *ops;
    backend_cache *cache;
    size_t vocab, hidden, layers;
    float *logits, *states;
    uint64_t hash;
} run;

/* The next n of the text's rows; all of them are kept. */
static void next_rows(run *r, const int32_t *tokens, int n, segment_kind kind) {
    backend_segment segment = {.cache = r->cache,
                               .tokens = tokens + r->ops->cache_length(r->cache),
                               .n = n,
                               .kind = kind,
                               .logits = r->logits,
                               .hidden_states = r->states};
    REQUIRE_OK(r->ops->forward(r->model, &segment, 1, error));
    REQUIRE_OK(r->ops->cache_commit(r->cache, n, error));
    r->hash = hash_fnv1a(r->hash, r->logits, (size_t)n * r->vocab * sizeof(float));
    r->hash = hash_fnv1a(r->hash, r->states, (r->layers + 1) * (size_t)n * r->hidden * sizeof(float));
}

static uint64_t hash_model(const model_case *c, kakeya_precision precision, const char *isa) {
    bool demo = strcmp(c->name, "demo") == 0;
    mem_account account;
    mem_account_init(&account, NULL, 0);
    char path[512];
    gemma4_model *verifier = NULL;
    dflash_model *drafter = NULL;
    f_theta_model *f_theta = NULL;
    safetensors *vectors = NULL;
    snprintf(path, sizeof path, "%s%s%s", demo ? KAKEYA_MODELS : KAKEYA_TEST_DATA, demo ? "/" : "/golden/", c->name);
    REQUIRE_OK(gemma4_model_open(unpacked_folder(path), &account, &verifier, error));
    if (demo) {
        REQUIRE_OK(dflash_model_open(KAKEYA_MODELS "/demo-dflash", &verifier->config, &account, &drafter, error));
        REQUIRE_OK(f_theta_model_open(KAKEYA_TEST_DATA "/golden/demo-f-theta-regression", &verifier->config,
                                      &drafter->config, &account, &f_theta, error));
        REQUIRE_OK(
            safetensors_open(unpacked_file(KAKEYA_TEST_DATA "/golden/demo_hidden.safetensors"), &vectors, error));
    } else {
        snprintf(path, sizeof path, "%s/golden/%s/golden.safetensors", KAKEYA_TEST_DATA, c->name);
        REQUIRE_OK(safetensors_open(unpacked_file(path), &vectors, error));
    }
    const tensor *ids = safetensors_find(vectors, "input_ids");
    const int32_t *tokens = (const int32_t *)(const void *)ids->data;
    int n = ids->shape[0] < 200 ? (int)ids->shape[0] : 200, decoded = n / 3 < 40 ? n / 3 : 40;

    run r = {.ops = backend_find("cpu", NULL), .hash = HASH_FNV1A_START};
    backend_model_options model_options = {.verifier = verifier,
                                           .drafter = drafter,
                                           .f_theta = f_theta,
                                           .precision = precision,
                                           .isa = isa,
                                           .threads = 2,
                                           .account = &account};
    backend_cache_options cache_options = {.context_tokens = n,
                                           .attention = c->attention,
                                           .restore_layers = KAKEYA_RESTORE_ALL,
                                           .sink = 4,
                                           .window = 32,
                                           .draft_window = 256,
                                           .kv_format =
                                               precision == KAKEYA_PRECISION_F32 ? KV_FORMAT_F32 : KV_FORMAT_BF16,
                                           .keep_draft_context = demo,
                                           .account = &account};
    REQUIRE_OK(r.ops->model_create(&model_options, &r.model, error));
    REQUIRE_OK(r.ops->cache_create(r.model, &cache_options, &r.cache, error));
    r.vocab = (size_t)verifier->config.vocab;
    r.hidden = (size_t)verifier->config.hidden;
    r.layers = (size_t)verifier->config.layers;
    r.logits = malloc((size_t)n * r.vocab * sizeof *r.logits);
    r.states = malloc((r.layers + 1) * (size_t)n * r.hidden * sizeof *r.states);

    int prompt = n - decoded, second = prompt / 3;
    next_rows(&r, tokens, prompt - second, SEGMENT_PROMPT);
    if (second) next_rows(&r, tokens, second, SEGMENT_PROMPT);
    for (int left = decoded, rows = 1; left > 0; rows = rows % 8 + 1) {
        int now = rows < left ? rows : left;
        next_rows(&r, tokens, now, SEGMENT_DECODE);
        left -= now;
    }
    if (drafter) {
        size_t count = (DRAFTS + 1) * (size_t)drafter->config.hidden;
        REQUIRE_OK(draft_block_hidden(r.cache, tokens[0], DRAFTS, r.states, error));
        r.hash = hash_fnv1a(r.hash, r.states, count * sizeof(float));
    }
    free(r.logits);
    free(r.states);
    r.ops->cache_destroy(r.cache);
    r.ops->model_destroy(r.model);
    f_theta_model_close(f_theta);
    dflash_model_close(drafter);
    gemma4_model_close(verifier);
    safetensors_close(vectors);
    assert_int_equal(mem_total(&account), 0);
    return r.hash;
}

static void bits_stay(void **state) {
    (void)state;
    const libm_hashes libm = hash_libm();
    if (libm.all != RECORDED_LIBM) {
        print_message("libm of this machine gives other bits (0x%016llx) than that of the table: nothing is compared\n",
                      (unsigned long long)libm.all);
        skip();
    }
    if (libm.scalar != RECORDED_SCALAR_LIBM)
        print_message("libm's tanhf gives other bits here (0x%016llx): the scalar kernels are not compared\n",
                      (unsigned long long)libm.scalar);
    int wrong = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int p = 0; p < PRECISIONS; p++) {
            for (int s = 0; s < ISAS; s++) {
                const char *isa = isas[s][0];
                if (!cpu_kernels_find(isa)) isa = isas[s][1];
                if (!isa || !cpu_kernels_find(isa)) continue;
                if (sweep_emulated() && strcmp(cases[i].name, "demo") == 0) continue;
                if (s == 0 && libm.scalar != RECORDED_SCALAR_LIBM) continue;
                /* of the demo, scalar kernels are slow, and the others take turns with the precisions */
                if (sweep_short() && strcmp(cases[i].name, "demo") == 0 && (s == 0 || (i + (size_t)(p + s)) % 2))
                    continue;
                uint64_t found = hash_model(&cases[i], p ? KAKEYA_PRECISION_BF16 : KAKEYA_PRECISION_F32, isa);
                if (found == cases[i].expected[p][s]) continue;
                wrong++;
                print_message("%s, policy %d, %s, %s: UINT64_C(0x%016llx), expected UINT64_C(0x%016llx)\n",
                              cases[i].name, (int)cases[i].attention, precisions[p], isa, (unsigned long long)found,
                              (unsigned long long)cases[i].expected[p][s]);
            }
        }
    }
    if (wrong) fail_msg("%d hashes differ from the table", wrong);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_stay)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
