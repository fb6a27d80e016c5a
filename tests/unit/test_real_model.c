/* Protects: what a published model says. Gemma 3 270M as a GGUF file, which tools/real_model.sh brings: ids equal to
 * those of three implementations, likelihoods and logits to transformers' in float32. $KAKEYA_REAL_MODEL names the
 * file; without it the tests are skipped. */
#include "sweep.h"
#include "text_support.h"

#include <math.h>

#include "convert/vocabulary.h"
#include "formats/gguf.h"
#include "kakeya_study.h"
#include "text/detokenizer.h"
#include "text/tokenizer_gguf.h"

static const char *real_model(void) {
    const char *path = getenv("KAKEYA_REAL_MODEL");
    if (!path || !*path) skip();
    return path;
}

static tokenizer *open_real_tokenizer(void) {
    kakeya_error error = {0};
    gguf *file = NULL;
    tokenizer *t = NULL;
    if (gguf_open(real_model(), &file, &error)) fail_msg("%s", error.message);
    if (tokenizer_open_gguf(file, &t, &error)) fail_msg("%s", error.message);
    gguf_close(file);
    assert_non_null(t);
    return t;
}

static void assert_encodes(const tokenizer *t, const cJSON *item, const char *key, bool special) {
    kakeya_error error = {0};
    size_t bytes, n_expected, n;
    char *text = from_hex(cJSON_GetObjectItem(item, "text"), &bytes);
    int32_t *expected = ids_of(cJSON_GetObjectItem(item, key), &n_expected), *ids;
    tokenizer_encode_options options = {.parse_special = special};
    if (tokenizer_encode(t, text, bytes, options, &ids, &n, &error)) fail_msg("\"%s\": %s", text, error.message);
    for (size_t i = 0; i < n && i < n_expected; i++) {
        if (ids[i] != expected[i]) fail_msg("\"%s\", %s: id %zu is %d, not %d", text, key, i, ids[i], expected[i]);
    }
    if (n != n_expected) fail_msg("\"%s\", %s: %zu ids, not %zu", text, key, n, n_expected);
    free(ids);
    free(expected);
    free(text);
}

/* The same vocabulary as a tokenizer.json, which `convert` writes: with merges in the place of scores. */
static tokenizer *rewrite(const tokenizer *t) {
    kakeya_error error = {0};
    tokenizer *merged = NULL;
    char *json = NULL;
    size_t bytes;
    bool ranked = false;
    if (vocabulary_json(t, "real", &json, &bytes, &error)) fail_msg("%s", error.message);
    if (tokenizer_open_memory("tokenizer.json", json, bytes, &merged, &error)) fail_msg("%s", error.message);
    free(json);
    float *scores = malloc((size_t)tokenizer_vocab_size(merged) * sizeof *scores);
    if (vocabulary_scores(merged, scores, &ranked, &error)) fail_msg("%s", error.message);
    assert_true(ranked);
    free(scores);
    return merged;
}

static void test_ids(void **state) {
    (void)state;
    tokenizer *t = open_real_tokenizer(), *merged = rewrite(t);
    assert_int_equal(tokenizer_vocab_size(t), 262144);
    assert_int_equal(tokenizer_vocab_size(merged), 262144);
    cJSON *vectors = load_json(KAKEYA_TEST_DATA "/real/vectors.json.gz");
    const cJSON *item;
    int compared = 0;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(vectors, "encode")) {
        kakeya_error error = {0};
        assert_encodes(t, item, "ids", true);
        assert_encodes(t, item, "literal", false);
        assert_encodes(merged, item, "ids", true);
        assert_encodes(merged, item, "literal", false);
        size_t n, bytes, expected_bytes;
        char *text, *expected = from_hex(cJSON_GetObjectItem(item, "decoded"), &expected_bytes);
        int32_t *ids = ids_of(cJSON_GetObjectItem(item, "ids"), &n);
        if (detokenize(t, ids, n, true, &text, &bytes, &error)) fail_msg("%s", error.message);
        assert_int_equal(bytes, expected_bytes);
        assert_memory_equal(text, expected, bytes);
        free(text);
        free(expected);
        free(ids);
        compared++;
    }
    assert_true(compared >= 164);
    cJSON_Delete(vectors);
    tokenizer_close(merged);
    tokenizer_close(t);
}

/* ---- what it computes in float32 */

typedef struct opened {
    kakeya_engine *engine;
    kakeya_session *session;
} opened;

static opened open_real_model(void) {
    kakeya_error error = {0};
    kakeya_engine_options e;
    kakeya_session_options s;
    opened o;
    KAKEYA_INIT(&e);
    e.model = real_model();
    e.backend = "cpu";
    e.precision = KAKEYA_PRECISION_F32;
    if (kakeya_engine_open(&e, &o.engine, &error)) fail_msg("%s", error.message);
    KAKEYA_INIT(&s);
    s.kv_format = KAKEYA_KV_F32;
    s.context_tokens = 2048;
    if (kakeya_session_open(o.engine, &s, &o.session, &error)) fail_msg("%s", error.message);
    return o;
}

static void close_model(opened *o) {
    kakeya_session_close(o->session);
    kakeya_engine_close(o->engine);
}

static double number_of(const cJSON *list, size_t i) { return cJSON_GetArrayItem(list, (int)i)->valuedouble; }

/* The largest logits of some rows, and where they stand. */
static void assert_rows(const cJSON *text, const float *logits, int vocab) {
    const cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(text, "rows")) {
        const cJSON *id = cJSON_GetObjectItem(row, "ids")->child, *logit = cJSON_GetObjectItem(row, "logits")->child;
        int at = cJSON_GetObjectItem(row, "row")->valueint;
        for (; id; id = id->next, logit = logit->next) {
            double found = (double)logits[(size_t)at * (size_t)vocab + (size_t)id->valueint];
            if (!(fabs(found - logit->valuedouble) <= 2e-3))
                fail_msg("row %d, id %d: logit %g, expected %g", at, id->valueint, found, logit->valuedouble);
        }
    }
}

/* Prose in two languages, a program and 1,500 tokens that cross the window of 512 twice: each token alone finds every
 * usual mistake (another scale or base, a norm of values, a window off by one, another GELU, a rounded embedding
 * scale), of which a mean finds half. */
static void test_likelihoods(void **state) {
    (void)state;
    if (sweep_short()) skip();
    opened o = open_real_model();
    cJSON *vectors = load_json(KAKEYA_TEST_DATA "/real/vectors.json.gz");
    const cJSON *text;
    int compared = 0;
    cJSON_ArrayForEach(text, cJSON_GetObjectItem(vectors, "scores")) {
        enum { VOCAB = 262144, FEW = 400 };
        const char *name = cJSON_GetObjectItem(text, "name")->valuestring;
        if (!sweep_whole() && strcmp(name, "german") != 0 && strcmp(name, "long") != 0) continue;
        kakeya_error error = {0};
        kakeya_score_options score;
        size_t n;
        int32_t *ids = ids_of(cJSON_GetObjectItem(text, "ids"), &n);
        const cJSON *expected = cJSON_GetObjectItem(text, "nll")->child;
        float *nll = malloc(n * sizeof *nll), *logits = n < FEW ? malloc(n * VOCAB * sizeof *logits) : NULL;
        assert_true(nll && (n >= FEW || logits));
        KAKEYA_INIT(&score);
        score.nll = nll;
        score.logits = logits;
        if (kakeya_session_score(o.session, ids, n, &score, &error)) fail_msg("%s", error.message);
        double sum = 0;
        for (size_t i = 0; i + 1 < n; i++, expected = expected->next) {
            double difference = (double)nll[i] - expected->valuedouble;
            if (!(fabs(difference) <= 1e-3))
                fail_msg("token %zu: nll %g, expected %g", i, (double)nll[i], expected->valuedouble);
            sum += difference;
        }
        assert_true(fabs(sum / (double)n) <= 2e-4);
        if (logits) assert_rows(text, logits, VOCAB);
        free(logits);
        free(nll);
        free(ids);
        compared++;
    }
    assert_int_equal(compared, sweep_whole() ? 4 : 2);
    cJSON_Delete(vectors);
    close_model(&o);
}

/* Up to the first choice that two float32 computations may make differently. */
static void test_greedy(void **state) {
    (void)state;
    static const kakeya_mode modes[] = {KAKEYA_MODE_AR, KAKEYA_MODE_NGRAM};
    if (sweep_short()) skip();
    opened o = open_real_model();
    cJSON *vectors = load_json(KAKEYA_TEST_DATA "/real/vectors.json.gz");
    const cJSON *row;
    int compared = 0;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(vectors, "greedy")) {
        size_t n_prompt, n_expected, n;
        int32_t *prompt = ids_of(cJSON_GetObjectItem(row, "prompt_ids"), &n_prompt),
                *expected = ids_of(cJSON_GetObjectItem(row, "ids"), &n_expected);
        kakeya_error error = {0};
        kakeya_generate_options generate;
        KAKEYA_INIT(&generate);
        generate.max_tokens = (int)n_expected;
        generate.ignore_stop_tokens = true;
        generate.mode = modes[compared % 2];
        if (kakeya_session_sync(o.session, prompt, n_prompt, NULL, NULL, NULL, &error) ||
            kakeya_session_generate(o.session, &generate, NULL, &error))
            fail_msg("%s", error.message);
        const int32_t *found = kakeya_session_tokens(o.session, &n);
        assert_int_equal(n, n_prompt + n_expected);
        for (size_t i = 0; i < n_expected && number_of(cJSON_GetObjectItem(row, "margin"), i) > 2e-3; i++) {
            if (found[n_prompt + i] != expected[i])
                fail_msg("prompt %d: token %zu is %d, not %d", compared, i, found[n_prompt + i], expected[i]);
        }
        free(prompt);
        free(expected);
        compared++;
    }
    assert_int_equal(compared, 6);
    cJSON_Delete(vectors);
    close_model(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_likelihoods),
        cmocka_unit_test(test_greedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
