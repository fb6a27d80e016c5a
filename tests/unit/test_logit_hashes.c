/* Bits that must stay: hashes of the logits, hidden states and drafted rows of the reference models, for every
 * instruction set and precision; of logits and greedy choices under every policy and K/V format, where segments are
 * computed together, and of every form of quantised weights. A change that means to keep every bit keeps this table;
 * one that does not says so and replaces the rows that the failure prints.
 *
 * Everything that is hashed depends on this code and on four functions of libm, in scalar kernels also on a fifth,
 * whose last bits differ between libraries and between machines. The table is that of Debian 12; where these functions
 * give other bits, nothing is compared, or no scalar kernel. */
#include "tiny.h"

#include "backend/cpu/block.h"
#include "base/hash.h"
#include "quantised_models.h"
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
    language_model *verifier = NULL;
    block_drafter_model *drafter = NULL;
    restoration_model *f_theta = NULL;
    safetensors *vectors = NULL;
    snprintf(path, sizeof path, "%s%s%s", demo ? KAKEYA_MODELS : KAKEYA_TEST_DATA, demo ? "/" : "/golden/", c->name);
    REQUIRE_OK(language_model_open(unpacked_folder(path), &account, &verifier, error));
    if (demo) {
        REQUIRE_OK(
            block_drafter_model_open(KAKEYA_MODELS "/demo-dflash", &verifier->config, &account, &drafter, error));
        REQUIRE_OK(restoration_model_open(KAKEYA_TEST_DATA "/golden/demo-f-theta-regression", &verifier->config,
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
                                           .restoration = f_theta,
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
    restoration_model_close(f_theta);
    block_drafter_model_close(drafter);
    language_model_close(verifier);
    safetensors_close(vectors);
    assert_int_equal(mem_total(&account), 0);
    return r.hash;
}

/* --------------------------------------------------------------------------- policies, formats, joined segments */

typedef struct sweep_case {
    const char *name, *drafter; /* in tests/data/golden */
    uint64_t expected[PRECISIONS][ISAS];
} sweep_case;

static const sweep_case sweeps[] = {
    {"gemma4-tiny-dense",
     "dflash-tiny",
     {{H(f6133adc497c5b0d), H(56193ccef337faef), H(0), H(0)}, {H(6d0befad03d67a3b), H(0e346e28bf083c11), H(0), H(0)}}},
    {"gemma4-tiny-moe",
     NULL,
     {{H(b9fe221128de141e), H(0236926dffa9bd78), H(0), H(0)}, {H(bc8ecb4fd442b3f0), H(8dad6630890ac0ed), H(0), H(0)}}},
    {"gemma4-tiny-ple",
     NULL,
     {{H(470ca4ee7839ac27), H(1266cb12af028dcc), H(0), H(0)}, {H(961516f69a442d45), H(986012d296f7d3ef), H(0), H(0)}}},
};

/* Of every form of quantised weights, at its own precision. */
static const uint64_t forms[STORED_FORMS][ISAS] = {
    {H(f8a6b4597f48d2fa), H(07be48ab0a1ec8a8), H(0), H(0)}, {H(251c354849a43de4), H(2a5309b63439fb97), H(0), H(0)},
    {H(1bb9a068968f8a52), H(2735272786f04d6b), H(0), H(0)}, {H(05b34f16632598d8), H(be115e67d14e4a36), H(0), H(0)},
    {H(9b60aeb71eccb3f1), H(d9c77226f73451b0), H(0), H(0)}, {H(ee3ebba0245f86df), H(c38330b2a8547668), H(0), H(0)},
    {H(ed6be81577259a0c), H(f91258b81c3aeb19), H(0), H(0)}, {H(1000150da5dcd51c), H(5461d7499974b9a1), H(0), H(0)},
    {H(472507eafd63d422), H(8ab0f6ad0dd19311), H(0), H(0)}, {H(dd7b386d9c060048), H(68f32636610b1b0c), H(0), H(0)},
    {H(4c643dcf976e69b8), H(8ed26373559549da), H(0), H(0)}, {H(9ed48f556e1ac9d7), H(5759f4e85cb6fa1d), H(0), H(0)},
    {H(797cfccd3a1dc8dc), H(f156afa193bf8744), H(0), H(0)}, {H(dbe02bcce69306d5), H(a921b892528aa3bb), H(0), H(0)},
    {H(3d07480d82a45247), H(40d136698907e08c), H(0), H(0)},
};

enum { TEXT = 320 };

static void rows_of(tiny *d, backend_segment *segments, int n, const int *kept, uint64_t *hash) {
    REQUIRE_OK(d->ops->forward(d->backend, segments, n, error));
    size_t vocab = (size_t)d->verifier->config.vocab;
    for (int s = 0; s < n; s++) {
        const backend_segment *r = &segments[s];
        size_t rows = (size_t)(r->n - r->first_logit_row);
        if (r->logits) *hash = hash_fnv1a(*hash, r->logits, rows * vocab * sizeof *r->logits);
        if (r->argmax) *hash = hash_fnv1a(*hash, r->argmax, rows * sizeof *r->argmax);
        REQUIRE_OK(d->ops->cache_commit(r->cache, kept[s], error));
    }
}

/* Prompts, blocks of every number of rows with rejected ones, a prompt beside two sessions' blocks, and a greedy
 * stream. */
static void hash_schedule(tiny *d, const tiny_policy *p, kv_format format, uint64_t *hash) {
    int32_t text[TEXT], choice[BACKEND_MAX_DECODE_ROWS];
    tiny_tokens(text, TEXT, 5);
    float *logits[2];
    for (int i = 0; i < 2; i++) logits[i] = malloc((size_t)TEXT * (size_t)d->verifier->config.vocab * sizeof(float));
    backend_cache *a = tiny_cache(d, p, format), *b = tiny_cache(d, p, format);
    int at = 0, most = tiny_block_rows(p);
    for (int n = 61; at < 84; n = 23) {
        backend_segment prompt = tiny_rows(a, SEGMENT_PROMPT, text + at, n, logits[0]);
        rows_of(d, &prompt, 1, &n, hash);
        at += n;
    }
    for (int n = 1; n <= most; n++) {
        backend_segment block = tiny_rows(a, SEGMENT_DECODE, text + at, n, logits[0]);
        int kept = n - (n > 1 && n % 2);
        rows_of(d, &block, 1, &kept, hash);
        at += kept;
    }
    backend_segment joined[2] = {tiny_rows(a, SEGMENT_DECODE, text + at, most < 3 ? most : 3, logits[0]),
                                 tiny_rows(b, SEGMENT_PROMPT, text, 47, logits[1])};
    rows_of(d, joined, 2, (int[]){1, 47}, hash);
    joined[0] = tiny_rows(a, SEGMENT_DECODE, text + at, 1, logits[0]);
    joined[1] = tiny_rows(b, SEGMENT_DECODE, text + 47, 2, logits[1]);
    rows_of(d, joined, 2, (int[]){1, 2}, hash);
    choice[0] = text[0];
    for (int i = 0; i < 12; i++) {
        int32_t token = choice[0];
        backend_segment row = {.cache = b, .tokens = &token, .n = 1, .kind = SEGMENT_DECODE, .argmax = choice};
        rows_of(d, &row, 1, (int[]){1}, hash);
    }
    d->ops->cache_destroy(a);
    d->ops->cache_destroy(b);
    for (int i = 0; i < 2; i++) free(logits[i]);
}

static uint64_t hash_policies(const sweep_case *c, kakeya_precision precision, const char *isa) {
    tiny d;
    uint64_t hash = HASH_FNV1A_START;
    tiny_open_on(&d, c->name, c->drafter, precision, isa, 2);
    for (int p = 0; p < TINY_POLICIES; p++) {
        if (!c->drafter && tiny_policies[p].attention == KAKEYA_ATTENTION_RESTORED) continue;
        for (int format = 0; format < KV_FORMAT_COUNT; format++)
            hash_schedule(&d, &tiny_policies[p], (kv_format)format, &hash);
    }
    tiny_close(&d);
    return hash;
}

static uint64_t hash_form(const char *isa) {
    tiny d = {.ops = backend_find("cpu", NULL)};
    uint64_t hash = HASH_FNV1A_START;
    mem_account_init(&d.account, NULL, 0);
    REQUIRE_OK(language_model_open(scratch_path("quantised"), &d.account, &d.verifier, error));
    tiny_complete(&d, KAKEYA_PRECISION_INT8, isa, 2);
    hash_schedule(&d, &tiny_policies[0], KV_FORMAT_BF16, &hash);
    tiny_close(&d);
    return hash;
}

/* ------------------------------------------------------------------------------------------------- the tables */

/* NULL: this machine has no kernels of the column, or computes other bits with them than those that are recorded. */
static const char *isa_of(int column, const libm_hashes *libm) {
    if (column == 0 && libm->scalar != RECORDED_SCALAR_LIBM) return NULL;
    for (int k = 0; k < 2; k++) {
        if (isas[column][k] && cpu_kernels_find(isas[column][k])) return isas[column][k];
    }
    return NULL;
}

/* Expected 0: not recorded yet, as no such machine was at hand. */
static void compare(const char *what, const char *isa, uint64_t found, uint64_t expected, int *wrong) {
    if (found == expected) return;
    if (!expected) {
        print_message("%s, %s: H(%016llx), which is not recorded\n", what, isa, (unsigned long long)found);
        return;
    }
    (*wrong)++;
    print_message("%s, %s: H(%016llx), expected H(%016llx)\n", what, isa, (unsigned long long)found,
                  (unsigned long long)expected);
}

static libm_hashes libm_of_table(void) {
    const libm_hashes libm = hash_libm();
    if (libm.all != RECORDED_LIBM) {
        print_message("libm of this machine gives other bits (0x%016llx) than that of the table: nothing is compared\n",
                      (unsigned long long)libm.all);
        skip();
    }
    if (libm.scalar != RECORDED_SCALAR_LIBM)
        print_message("libm's tanhf gives other bits here (0x%016llx): the scalar kernels are not compared\n",
                      (unsigned long long)libm.scalar);
    return libm;
}

static void bits_stay(void **state) {
    (void)state;
    const libm_hashes libm = libm_of_table();
    int wrong = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool demo = strcmp(cases[i].name, "demo") == 0;
        for (int p = 0; p < PRECISIONS; p++) {
            for (int s = 0; s < ISAS; s++) {
                const char *isa = isa_of(s, &libm);
                if (!isa || (sweep_emulated() && demo)) continue;
                /* of the demo, scalar kernels are slow, and the others take turns with the precisions */
                if (sweep_short() && demo && (s == 0 || (i + (size_t)(p + s)) % 2)) continue;
                char what[96];
                snprintf(what, sizeof what, "%s, policy %d, %s", cases[i].name, (int)cases[i].attention, precisions[p]);
                compare(what, isa, hash_model(&cases[i], p ? KAKEYA_PRECISION_BF16 : KAKEYA_PRECISION_F32, isa),
                        cases[i].expected[p][s], &wrong);
            }
        }
    }
    if (wrong) fail_msg("%d hashes differ from the table", wrong);
}

static void bits_of_policies_stay(void **state) {
    (void)state;
    const libm_hashes libm = libm_of_table();
    int wrong = 0;
    for (size_t i = 0; i < sizeof sweeps / sizeof sweeps[0]; i++) {
        for (int p = 0; p < PRECISIONS; p++) {
            for (int s = 0; s < ISAS; s++) {
                const char *isa = isa_of(s, &libm);
                if (!isa || (sweep_emulated() && (i || p))) continue;
                if (sweep_short() && !sweep_emulated() && (i + (size_t)(p + s)) % 2) continue;
                char what[96];
                snprintf(what, sizeof what, "all policies of %s, %s", sweeps[i].name, precisions[p]);
                compare(what, isa, hash_policies(&sweeps[i], p ? KAKEYA_PRECISION_BF16 : KAKEYA_PRECISION_F32, isa),
                        sweeps[i].expected[p][s], &wrong);
            }
        }
    }
    if (wrong) fail_msg("%d hashes differ from the table", wrong);
}

static void bits_of_quantised_weights_stay(void **state) {
    (void)state;
    static const char *const names[] = {"gemma4-tiny-moe", "gemma4-tiny-dense", "gemma4-tiny-ple"};
    const libm_hashes libm = libm_of_table();
    int wrong = 0;
    for (int form = 0; form < STORED_FORMS; form++) {
        if (sweep_emulated() && form % 5) continue;
        made_model(names[form % 3], (stored_form)form);
        for (int s = 0; s < ISAS; s++) {
            const char *isa = isa_of(s, &libm);
            char what[96];
            snprintf(what, sizeof what, "form %d of %s", form, names[form % 3]);
            if (sweep_short() && !sweep_emulated() && (form + s) % 2) continue;
            if (isa) compare(what, isa, hash_form(isa), forms[form][s], &wrong);
        }
    }
    if (wrong) fail_msg("%d hashes differ from the table", wrong);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_stay), cmocka_unit_test(bits_of_policies_stay),
                                       cmocka_unit_test(bits_of_quantised_weights_stay)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
