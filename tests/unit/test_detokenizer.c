/* Protects: text equal to that of Hugging Face tokenizers for any ids, always valid UTF-8, whole characters only, and a
 * stream that adds up to the batch. */
#include "text_support.h"

#include "text/detokenizer.h"
#include "text/utf8.h"

static void assert_text(const char *what, const char *text, size_t bytes, const char *expected, size_t expected_bytes) {
    if (bytes != expected_bytes || memcmp(text, expected, bytes) != 0) {
        fail_msg("%s: \"%s\" (%zu bytes), not \"%s\" (%zu bytes)", what, text, bytes, expected, expected_bytes);
    }
}

/* Batch and stream against the expected text. */
static void assert_decodes(const tokenizer *t, const int32_t *ids, size_t n, bool keep_special, const char *expected,
                           size_t expected_bytes) {
    kakeya_error error = {0};
    char *text;
    size_t bytes;
    if (detokenize(t, ids, n, keep_special, &text, &bytes, &error)) fail_msg("%s", error.message);
    assert_int_equal(text[bytes], 0);
    assert_text("batch", text, bytes, expected, expected_bytes);

    detokenizer *d;
    assert_int_equal(detokenizer_create(t, keep_special, &d, &error), KAKEYA_OK);
    for (int round = 0; round < 2; round++) { /* finish leaves it as new */
        size_t at = 0;
        for (size_t i = 0; i <= n; i++) {
            const char *more;
            size_t more_bytes;
            if (i < n) {
                assert_int_equal(detokenizer_push(d, ids[i], &more, &more_bytes, &error), KAKEYA_OK);
            } else {
                detokenizer_finish(d, &more, &more_bytes);
            }
            assert_int_equal(utf8_valid_bytes(more, more_bytes), more_bytes);
            assert_true(at + more_bytes <= bytes);
            assert_memory_equal(more, text + at, more_bytes);
            at += more_bytes;
        }
        assert_int_equal(at, bytes);
    }
    detokenizer_destroy(d);
    free(text);
}

static void test_golden(void **state) {
    (void)state;
    tokenizer *t = open_demo_tokenizer();
    cJSON *golden = load_json(KAKEYA_TEST_DATA "/text/tokenizer_golden.json");
    const cJSON *item;
    cJSON_ArrayForEach(item, golden) {
        size_t n;
        int32_t *ids = ids_of(cJSON_GetObjectItem(item, "ids_no_special"), &n);
        const char *kept = cJSON_GetObjectItem(item, "decoded")->valuestring;
        const char *skipped = cJSON_GetObjectItem(item, "decoded_skip")->valuestring;
        bool nul = n == 2 && ids[0] == 32 && ids[1] == 33; /* "\0\1": cJSON ends strings at NUL */
        assert_decodes(t, ids, n, true, nul ? "\0\1" : kept, nul ? 2 : strlen(kept));
        assert_decodes(t, ids, n, false, nul ? "\0\1" : skipped, nul ? 2 : strlen(skipped));
        free(ids);
    }
    cJSON_Delete(golden);
    tokenizer_close(t);
}

static void test_vectors(void **state) {
    (void)state;
    tokenizer *t = open_demo_tokenizer();
    cJSON *vectors = load_json(KAKEYA_TEST_DATA "/text/tokenizer_vectors.json.gz");
    int compared = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(vectors, "decode")) {
        size_t n, bytes;
        int32_t *ids = ids_of(cJSON_GetObjectItem(item, "ids"), &n);
        char *text = from_hex(cJSON_GetObjectItem(item, "decoded"), &bytes);
        assert_decodes(t, ids, n, true, text, bytes);
        free(text);
        text = from_hex(cJSON_GetObjectItem(item, "decoded_skip"), &bytes);
        assert_decodes(t, ids, n, false, text, bytes);
        free(text);
        free(ids);
        compared++;
    }
    assert_int_equal(compared, 200);
    cJSON_Delete(vectors);
    tokenizer_close(t);
}

static size_t put_character(char *out, uint32_t code) {
    if (code < 0x80) return (size_t)sprintf(out, "%c", (int)code);
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 63));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 63));
        out[2] = (char)(0x80 | (code & 63));
        return 3;
    }
    out[0] = (char)(0xF0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 63));
    out[2] = (char)(0x80 | (code >> 6 & 63));
    out[3] = (char)(0x80 | (code & 63));
    return 4;
}

/* Any text without U+2581 (which decodes to a space) comes back from its ids. */
static void test_round_trips(void **state) {
    (void)state;
    static const uint32_t limits[] = {0x80, 0x400, 0x3000, 0x10000, 0x110000};
    tokenizer *t = open_demo_tokenizer();
    uint32_t random = 99;
    for (int c = 0; c < 500; c++) {
        char text[4 * 200 + 1];
        size_t bytes = 0;
        for (int i = 0; i < c % 200; i++) {
            random = random * 1664525u + 1013904223u;
            uint32_t limit = limits[(random >> 8) % 5];
            random = random * 1664525u + 1013904223u;
            uint32_t code = (random >> 4) % limit;
            if ((code >= 0xD800 && code < 0xE000) || code == 0x2581) code = '\n';
            bytes += put_character(text + bytes, code);
        }
        int32_t *ids;
        size_t n;
        kakeya_error error = {0};
        if (tokenizer_encode(t, text, bytes, (tokenizer_encode_options){0}, &ids, &n, &error)) {
            fail_msg("case %d: %s", c, error.message);
        }
        text[bytes] = 0;
        assert_decodes(t, ids, n, true, text, bytes);
        assert_decodes(t, ids, n, false, text, bytes);
        free(ids);
    }
    tokenizer_close(t);
}

static void test_byte_runs(void **state) {
    (void)state;
    tokenizer *t = open_demo_tokenizer();
    int32_t zero = tokenizer_id(t, "<0x00>"), a = tokenizer_id(t, "a");
    kakeya_error error = {0};
    detokenizer *d;
    assert_int_equal(detokenizer_create(t, true, &d, &error), KAKEYA_OK);
    const char *text;
    size_t bytes;
    /* Held while it may become a character, returned with the piece that ends it. */
    const int32_t held[] = {zero + 0xE6, zero + 0xBC, zero + 0xA2};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(detokenizer_push(d, held[i], &text, &bytes, &error), KAKEYA_OK);
        assert_int_equal(bytes, 0);
    }
    assert_int_equal(detokenizer_push(d, a, &text, &bytes, &error), KAKEYA_OK);
    assert_text("run", text, bytes,
                "\xE6\xBC\xA2"
                "a",
                4);
    /* Ids outside the vocabulary contribute nothing to the stream and do not end a run. */
    assert_int_equal(detokenizer_push(d, zero + 0xC3, &text, &bytes, &error), KAKEYA_OK);
    assert_int_equal(detokenizer_push(d, tokenizer_vocab_size(t), &text, &bytes, &error), KAKEYA_OK);
    assert_int_equal(detokenizer_push(d, -1, &text, &bytes, &error), KAKEYA_OK);
    assert_int_equal(detokenizer_push(d, zero + 0xA9, &text, &bytes, &error), KAKEYA_OK);
    detokenizer_finish(d, &text, &bytes);
    assert_text("finish", text, bytes, "\xC3\xA9", 2);
    detokenizer_destroy(d);

    /* A run longer than the first buffer, and one broken late. */
    enum { LONG = 3000 };
    int32_t *ids = malloc(LONG * sizeof *ids);
    char *expected = malloc(3 * LONG + 1);
    assert_non_null(ids);
    assert_non_null(expected);
    for (size_t i = 0; i < LONG; i++) {
        ids[i] = i % 2 ? zero + 0xA9 : zero + 0xC3;
        expected[i] = (char)(i % 2 ? 0xA9 : 0xC3);
    }
    expected[LONG] = 0;
    assert_decodes(t, ids, LONG, true, expected, LONG);
    ids[LONG - 1] = zero + 'a';
    for (size_t i = 0; i < LONG; i++) memcpy(expected + 3 * i, UTF8_REPLACEMENT, 3);
    expected[3 * LONG] = 0;
    assert_decodes(t, ids, LONG, true, expected, 3 * LONG);
    free(expected);
    free(ids);

    char *all;
    int32_t outside = tokenizer_vocab_size(t);
    assert_int_equal(detokenize(t, &outside, 1, true, &all, &bytes, &error), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "token id 8192 at index 0 is outside the vocabulary of 8192"));
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_byte_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
