/* Protects: what a published model says. Gemma 3 270M as a GGUF file, which tools/real_model.sh brings: ids equal to
 * those of three implementations, likelihoods and logits to transformers' in float32. $KAKEYA_REAL_MODEL names the
 * file; without it the tests are skipped. */
#include "text_support.h"

#include <time.h>

#include "formats/gguf.h"
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

static void test_ids(void **state) {
    (void)state;
    tokenizer *t = open_real_tokenizer();
    assert_int_equal(tokenizer_vocab_size(t), 262144);
    cJSON *vectors = load_json(KAKEYA_TEST_DATA "/real/vectors.json.gz");
    const cJSON *item;
    int compared = 0;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(vectors, "encode")) {
        kakeya_error error = {0};
        assert_encodes(t, item, "ids", true);
        assert_encodes(t, item, "literal", false);
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
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
