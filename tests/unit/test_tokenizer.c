/* Protects: ids equal to those of Hugging Face tokenizers, literal user text, O(n log n) merging equal to the
 * definition, and refusal by name of every file that is malformed or of another form. */
#include "text_support.h"

static void assert_encodes(const tokenizer *t, const char *text, size_t bytes, tokenizer_encode_options options,
                           const int32_t *expected, size_t n_expected) {
    kakeya_error error = {0};
    int32_t *ids;
    size_t n;
    if (tokenizer_encode(t, text, bytes, options, &ids, &n, &error)) fail_msg("\"%s\": %s", text, error.message);
    for (size_t i = 0; i < n && i < n_expected; i++) {
        if (ids[i] != expected[i]) fail_msg("\"%s\": id %zu is %d, not %d", text, i, ids[i], expected[i]);
    }
    if (n != n_expected) fail_msg("\"%s\": %zu ids, not %zu", text, n, n_expected);
    free(ids);
}

static void assert_encodes_list(const tokenizer *t, const char *text, size_t bytes, tokenizer_encode_options options,
                                const cJSON *list) {
    size_t n;
    int32_t *expected = ids_of(list, &n);
    assert_encodes(t, text, bytes, options, expected, n);
    free(expected);
}

static const tokenizer_encode_options with_bos = {.add_special = true, .parse_special = true};
static const tokenizer_encode_options parsed = {.parse_special = true};
static const tokenizer_encode_options literal = {0};

static void test_golden(void **state) {
    (void)state;
    tokenizer *t = open_demo_tokenizer();
    cJSON *golden = load_json(KAKEYA_TEST_DATA "/text/tokenizer_golden.json");
    int compared = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, golden) {
        const char *text = cJSON_GetObjectItem(item, "text")->valuestring;
        const cJSON *ids = cJSON_GetObjectItem(item, "ids"), *plain = cJSON_GetObjectItem(item, "ids_no_special");
        size_t bytes = strlen(text);
        if (bytes == 0 && cJSON_GetArraySize(plain) != 0) { /* "\0\1": cJSON ends strings at NUL */
            text = "\0\1";
            bytes = 2;
        }
        assert_encodes_list(t, text, bytes, with_bos, ids);
        assert_encodes_list(t, text, bytes, parsed, plain);
        compared++;
    }
    assert_true(compared >= 19);
    cJSON_Delete(golden);
    tokenizer_close(t);
}

static void test_vectors(void **state) {
    (void)state;
    tokenizer *t = open_demo_tokenizer();
    cJSON *vectors = load_json(KAKEYA_TEST_DATA "/text/tokenizer_vectors.json.gz");
    int compared = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(vectors, "encode")) {
        size_t bytes;
        char *text = from_hex(cJSON_GetObjectItem(item, "text"), &bytes);
        const cJSON *ids = cJSON_GetObjectItem(item, "ids"), *differs = cJSON_GetObjectItem(item, "literal");
        assert_encodes_list(t, text, bytes, parsed, ids);
        assert_encodes_list(t, text, bytes, literal, differs ? differs : ids);
        free(text);
        compared++;
    }
    assert_true(compared > 300);
    cJSON_Delete(vectors);
    tokenizer_close(t);
}

/* ---- the definition of byte-pair merging, done slowly: merge the leftmost pair of lowest rank until there is none
 * ---- */

typedef struct slow_merge {
    const char *left, *right;
    int rank;
} slow_merge;

static int compare_merges(const void *a, const void *b) {
    const slow_merge *x = a, *y = b;
    int order = strcmp(x->left, y->left);
    return order ? order : strcmp(x->right, y->right);
}

static size_t slow_encode(const tokenizer *t, const slow_merge *merges, size_t n_merges, const char *text,
                          int32_t *ids) {
    size_t n = 0;
    for (size_t at = 0; text[at];) { /* ASCII and two-byte characters */
        char spelled[4] = {text[at], 0, 0, 0};
        if ((unsigned char)text[at] >= 0xC0) spelled[1] = text[at + 1];
        size_t length = strlen(spelled);
        int32_t id = tokenizer_id(t, text[at] == ' ' ? "\xE2\x96\x81" : spelled);
        for (size_t i = 0; id < 0 && i < length; i++) {
            char piece[8];
            snprintf(piece, sizeof piece, "<0x%02X>", (unsigned)(unsigned char)spelled[i]);
            ids[n++] = tokenizer_id(t, piece);
        }
        if (id >= 0) ids[n++] = id;
        at += length;
    }
    for (;;) {
        const slow_merge *best = NULL;
        size_t best_at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            slow_merge pair = {.left = tokenizer_piece(t, ids[i], NULL), .right = tokenizer_piece(t, ids[i + 1], NULL)};
            const slow_merge *found = bsearch(&pair, merges, n_merges, sizeof *merges, compare_merges);
            if (found && (!best || found->rank < best->rank)) {
                best = found;
                best_at = i;
            }
        }
        if (!best) return n;
        char product[256];
        snprintf(product, sizeof product, "%s%s", best->left, best->right);
        ids[best_at] = tokenizer_id(t, product);
        memmove(ids + best_at + 1, ids + best_at + 2, (n - best_at - 2) * sizeof *ids);
        n--;
    }
}

static void test_merging_equals_its_definition(void **state) {
    (void)state;
    enum { CASES = 400, LONGEST = 120 };
    static const char *const parts[] = {"a", "b",  "e", "t", "th", "in", " ", "  ",   "\n",  "\n\n", "self", "_",
                                        ".", "==", "(", ")", "0",  "19", "é", "\x01", "ing", "re",   "    ", "s"};
    tokenizer *t = open_demo_tokenizer();
    cJSON *file = load_json(KAKEYA_MODELS "/demo/tokenizer.json");
    const cJSON *list = cJSON_GetObjectItem(cJSON_GetObjectItem(file, "model"), "merges"), *pair;
    size_t n_merges = (size_t)cJSON_GetArraySize(list), i = 0;
    slow_merge *merges = calloc(n_merges, sizeof *merges);
    assert_non_null(merges);
    cJSON_ArrayForEach(pair, list) {
        merges[i] = (slow_merge){.left = cJSON_GetArrayItem(pair, 0)->valuestring,
                                 .right = cJSON_GetArrayItem(pair, 1)->valuestring,
                                 .rank = (int)i};
        i++;
    }
    qsort(merges, n_merges, sizeof *merges, compare_merges);
    uint32_t random = 12345;
    for (int c = 0; c < CASES; c++) {
        char text[LONGEST + 8] = "";
        size_t target = (size_t)c % LONGEST;
        while (strlen(text) < target) {
            random = random * 1664525u + 1013904223u;
            strcat(text, parts[(random >> 16) % (sizeof parts / sizeof *parts)]);
        }
        int32_t expected[2 * LONGEST];
        size_t n = slow_encode(t, merges, n_merges, text, expected);
        assert_encodes(t, text, strlen(text), literal, expected, n);
    }
    free(merges);
    cJSON_Delete(file);
    tokenizer_close(t);
}

/* A line of a million characters in which everything merges would take hours by the definition. */
static void test_long_line(void **state) {
    (void)state;
    enum { BYTES = 1 << 20 };
    tokenizer *t = open_demo_tokenizer();
    char *text = malloc(BYTES);
    assert_non_null(text);
    memset(text, 'a', BYTES);
    kakeya_error error = {0};
    int32_t *ids;
    size_t n;
    assert_int_equal(tokenizer_encode(t, text, BYTES, literal, &ids, &n, &error), KAKEYA_OK);
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        size_t piece_bytes;
        assert_non_null(tokenizer_piece(t, ids[i], &piece_bytes));
        bytes += piece_bytes;
    }
    assert_int_equal(bytes, BYTES);
    assert_true(n < BYTES / 3);
    free(ids);
    free(text);
    tokenizer_close(t);
}

static void test_special_tokens_in_literal_text(void **state) {
    (void)state;
    tokenizer *t = open_demo_tokenizer();
    int specials = 0;
    for (int32_t id = 0; id < tokenizer_vocab_size(t); id++) {
        if (!tokenizer_is_special(t, id)) continue;
        specials++;
        const char *piece = tokenizer_piece(t, id, NULL);
        assert_encodes(t, piece, strlen(piece), parsed, &id, 1);
        kakeya_error error = {0};
        int32_t *ids;
        size_t n;
        assert_int_equal(tokenizer_encode(t, piece, strlen(piece), literal, &ids, &n, &error), KAKEYA_OK);
        for (size_t i = 0; i < n; i++) {
            if (tokenizer_is_special(t, ids[i])) fail_msg("literal \"%s\" gave the special id %d", piece, ids[i]);
        }
        free(ids);
    }
    assert_true(specials >= 17);
    assert_true(tokenizer_is_special(t, tokenizer_id(t, "<|turn>")));
    assert_false(tokenizer_is_special(t, -1));
    assert_false(tokenizer_is_special(t, tokenizer_vocab_size(t)));
    assert_int_equal(tokenizer_id(t, "<|no such piece|>"), -1);
    assert_null(tokenizer_piece(t, tokenizer_vocab_size(t), NULL));
    tokenizer_close(t);
}

static void test_invalid_utf8_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t bytes, at;
    } cases[] = {
        {"abc\xFF", 4, 3},          {"\x80", 1, 0},           {"ab\xC3", 3, 2},
        {"\xC0\xAF", 2, 0},         {"x\xED\xA0\x80", 4, 1},  {"\xF4\x90\x80\x80", 4, 0},
        {"\xE0\x9F\xBF", 3, 0},     {"ok\xF0\x9F\x99", 5, 2}, {"\xE6\xBC\xA2\xE6", 4, 3},
        {"\xF5\x80\x80\x80", 4, 0},
    };
    tokenizer *t = open_demo_tokenizer();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kakeya_error error = {0};
        int32_t *ids;
        size_t n;
        kakeya_status status = tokenizer_encode(t, cases[i].text, cases[i].bytes, literal, &ids, &n, &error);
        assert_int_equal(status, KAKEYA_INVALID_ARGUMENT);
        char expected[64];
        snprintf(expected, sizeof expected, "byte %zu is 0x%02X", cases[i].at,
                 (unsigned)(unsigned char)cases[i].text[cases[i].at]);
        if (!strstr(error.message, expected)) fail_msg("case %zu: \"%s\" lacks \"%s\"", i, error.message, expected);
    }
    tokenizer_close(t);
}

/* ------------------------------------------------------------------------------------------- files made to order */

static void test_added_tokens(void **state) {
    (void)state;
    tokenizer_form form = default_form;
    form.post_processor =
        "{\"type\":\"TemplateProcessing\",\"pair\":[{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],"
        "\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},"
        "{\"SpecialToken\":{\"id\":\"E\",\"type_id\":0}}],\"special_tokens\":{"
        "\"<s>\":{\"id\":\"<s>\",\"ids\":[256],\"tokens\":[\"<s>\"]},"
        "\"E\":{\"id\":\"E\",\"ids\":[257,256],\"tokens\":[\"<s>>\",\"<s>\"]}}}";
    tokenizer *t;
    kakeya_error error = {0};
    if (open_form(&form, &t, &error)) fail_msg("%s", error.message);
    assert_encodes(t, "<s>>a<s>", 8, parsed, (int32_t[]){257, 259, 256}, 3); /* the longest wins */
    assert_encodes(t, "ab!ab", 5, literal, (int32_t[]){258, 262}, 2);        /* added, but not special */
    assert_encodes(t, "<s>", 3, literal, (int32_t[]){'<', 's', '>'}, 3);
    assert_encodes(t, "a", 1, with_bos, (int32_t[]){256, 259, 257, 256}, 4);
    assert_encodes(t, "", 0, with_bos, (int32_t[]){256, 257, 256}, 3);
    assert_encodes(t, "", 0, parsed, NULL, 0);
    tokenizer_close(t);
}

#define ADDED                                                                                                          \
    "[{\"id\":256,\"content\":\"<s>\",\"special\":true},{\"id\":258,\"content\":\"ab!\"},"                             \
    "{\"id\":257,\"content\":\"<s>>\",\"special\":true},"

/* Tokens that are looked for in normalized text. The ids are those of Hugging Face tokenizers 0.23.3. */
static void test_normalized_added_tokens(void **state) {
    (void)state;
    static const struct {
        const char *added, *text;
        int32_t ids[8];
        size_t n;
    } cases[] = {
        {"{\"id\":268,\"content\":\"xyz\",\"normalized\":true}]", "a xyz b", {259, 267, 268, 267, 260}, 5},
        {"{\"id\":268,\"content\":\"xyz\",\"normalized\":true}]", "xyzab!", {268, 258}, 2},
        {"{\"id\":268,\"content\":\"xyz\",\"normalized\":true}]", "xy", {'x', 'y'}, 2},
        /* a space and what it normalizes to are the same */
        {"{\"id\":268,\"content\":\"a b\",\"normalized\":true}]", "a b", {268}, 1},
        {"{\"id\":268,\"content\":\"a b\",\"normalized\":true}]", "a\xE2\x96\x81\x62", {268}, 1},
        {"{\"id\":268,\"content\":\"a b\",\"normalized\":true}]", "aa b", {259, 268}, 2},
        {"{\"id\":268,\"content\":\"a\xE2\x96\x81\x62\",\"normalized\":true}]", "a b", {268}, 1},
        /* unless the token is verbatim */
        {"{\"id\":268,\"content\":\"a b\",\"normalized\":false}]", "a b", {268}, 1},
        {"{\"id\":268,\"content\":\"a b\",\"normalized\":false}]", "a\xE2\x96\x81\x62", {259, 267, 260}, 3},
        {"{\"id\":268,\"content\":\"a\xE2\x96\x81\x62\"}]", "a b", {259, 267, 260}, 3},
        /* verbatim ones come first, wherever they stand */
        {"{\"id\":268,\"content\":\"zab!z\",\"normalized\":true}]", "zab!z", {'z', 258, 'z'}, 3},
        {"{\"id\":268,\"content\":\"!z\",\"normalized\":true}]", "ab!z", {258, 'z'}, 2},
        {"{\"id\":268,\"content\":\"!z\",\"normalized\":true}]", "x!z", {'x', 268}, 2},
        {"{\"id\":268,\"content\":\"xy\",\"normalized\":true},{\"id\":269,\"content\":\"xyz\",\"normalized\":true},"
         "{\"id\":270,\"content\":\"yzw\",\"normalized\":true}]",
         "xyzw",
         {269, 'w'},
         2},
        {"{\"id\":268,\"content\":\"sp x\",\"normalized\":true,\"special\":true}]", "a sp x", {259, 267, 268}, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char added[512];
        snprintf(added, sizeof added, ADDED "%s", cases[i].added);
        tokenizer_form form = default_form;
        form.added_tokens = added;
        tokenizer *t;
        kakeya_error error = {0};
        if (open_form(&form, &t, &error)) fail_msg("case %zu: %s", i, error.message);
        assert_encodes(t, cases[i].text, strlen(cases[i].text), parsed, cases[i].ids, cases[i].n);
        tokenizer_close(t);
    }
    /* a special one in text that nobody vouches for is text */
    tokenizer_form form = default_form;
    form.added_tokens = ADDED "{\"id\":268,\"content\":\"a b\",\"normalized\":true,\"special\":true}]";
    tokenizer *t;
    kakeya_error error = {0};
    if (open_form(&form, &t, &error)) fail_msg("%s", error.message);
    assert_encodes(t, "a b", 3, literal, (int32_t[]){259, 267, 260}, 3);
    assert_encodes(t, "a b", 3, parsed, (int32_t[]){268}, 1);
    assert_true(tokenizer_is_special(t, 268));
    tokenizer_close(t);
}

/* Ids of added tokens behind a gap. The ids are those of Hugging Face tokenizers 0.23.3: where the vocabulary lists the
 * token, the vocabulary's; elsewhere the next one, whatever the file says. */
static void test_gaps_between_added_tokens(void **state) {
    (void)state;
    tokenizer_form form = default_form;
    form.added_tokens = ADDED "{\"id\":300,\"content\":\"xyz\"},{\"id\":302,\"content\":\"uvw\"},"
                              "{\"id\":290,\"content\":\"first\"}]";
    tokenizer *t;
    kakeya_error error = {0};
    if (open_form(&form, &t, &error)) fail_msg("%s", error.message);
    assert_encodes(t, "axyz", 4, parsed, (int32_t[]){259, 268}, 2);
    assert_encodes(t, "uvwfirst", 8, parsed, (int32_t[]){269, 270}, 2);
    assert_int_equal(tokenizer_vocab_size(t), 271);
    tokenizer_close(t);

    form.merges = "[]";
    form.vocab = "\"a\":259,\"b\":260,\"xyz\":300,\"<s>>\":257,\"<s>\":256,\"ab!\":258";
    form.added_tokens = ADDED "{\"id\":300,\"content\":\"xyz\",\"special\":true},{\"id\":301,\"content\":\"uvw\"}]";
    if (open_form(&form, &t, &error)) fail_msg("%s", error.message);
    assert_encodes(t, "axyzuvw", 7, parsed, (int32_t[]){259, 300, 301}, 3);
    assert_int_equal(tokenizer_vocab_size(t), 302);
    assert_true(tokenizer_is_special(t, 300));
    assert_non_null(tokenizer_piece(t, 260, NULL));
    assert_null(tokenizer_piece(t, 261, NULL)); /* nothing has this id */
    assert_int_equal(tokenizer_byte(t, 299), -1);
    assert_false(tokenizer_is_special(t, 299));
    tokenizer_close(t);
}

static void test_merges(void **state) {
    (void)state;
    static const char *const both[] = {"[[\"b\",\"c\"],[\"a\",\"b\"],[\"a\",\"bc\"],[\"a\",\"a\"]]",
                                       "[\"b c\",\"a b\",\"a bc\",\"a a\"]"};
    for (size_t i = 0; i < 2; i++) {
        tokenizer_form form = default_form;
        form.merges = both[i];
        tokenizer *t;
        kakeya_error error = {0};
        if (open_form(&form, &t, &error)) fail_msg("%s", error.message);
        assert_encodes(t, "abc", 3, literal, (int32_t[]){264}, 1);             /* b c before a b */
        assert_encodes(t, "aaaaa", 5, literal, (int32_t[]){266, 266, 259}, 3); /* leftmost of equals */
        assert_encodes(t, "a b\n\nc", 6, literal, (int32_t[]){259, 267, 260, 265, 265, 261}, 6);
        tokenizer_close(t);
    }
    /* One across a newline forbids splitting there. */
    tokenizer_form form = default_form;
    form.vocab = "\"a\":259,\"b\":260,\"\\n\":261,\"a\\n\":262,\"a\\n\\n\":263";
    form.merges = "[[\"a\",\"\\n\"],[\"a\\n\",\"\\n\"]]";
    tokenizer *t;
    kakeya_error error = {0};
    if (open_form(&form, &t, &error)) fail_msg("%s", error.message);
    assert_encodes(t, "ba\n\n\nb", 6, literal, (int32_t[]){260, 263, 261, 260}, 4);
    assert_encodes(t, " ", 1, literal, (int32_t[]){0xE2, 0x96, 0x81}, 3); /* no piece for the space */
    tokenizer_close(t);
}

static void test_other_forms_are_refused(void **state) {
    (void)state;
    const tokenizer_form d = default_form;
    tokenizer_form forms[80];
    const char *expected[80];
    size_t n = 0;
#define REFUSED(field, value, message) (forms[n] = d, forms[n].field = value, expected[n++] = message)
    REFUSED(type, "\"Unigram\"", "model.type is \"Unigram\"");
    REFUSED(type, "7", "model.type has the wrong type");
    REFUSED(type, NULL, "model.type is missing");
    REFUSED(byte_fallback, "false", "model.byte_fallback is not true");
    REFUSED(byte_fallback, "\"yes\"", "model.byte_fallback has the wrong type");
    REFUSED(ignore_merges, "true", "model.ignore_merges is true");
    REFUSED(dropout, "0.1", "model.dropout is not 0");
    REFUSED(normalizer, "{\"type\":\"NFC\"}", "normalizer is {\"type\":\"NFC\"}");
    REFUSED(normalizer, NULL, "normalizer is null");
    REFUSED(normalizer, "3", "normalizer has the wrong type");
    REFUSED(pre_tokenizer, "{\"type\":\"ByteLevel\"}", "pre_tokenizer is {\"type\":\"ByteLevel\"}");
    REFUSED(decoder, "{\"type\":\"Sequence\",\"decoders\":[]}", "decoder is {\"type\":\"Sequence\"");
    REFUSED(decoder, "null", "decoder is null");
    REFUSED(post_processor, "{\"type\":\"ByteLevel\"}", "post_processor is {\"type\":\"ByteLevel\"}");
    REFUSED(vocab, NULL, "model.vocab is missing");
    REFUSED(vocab, "\"a\":258", "added token");
    REFUSED(vocab, "\"a\":\"x\"", "an id in model.vocab is not an integer");
    REFUSED(vocab, "\"a\":-1", "an id in model.vocab is out of range");
    REFUSED(vocab, "\"a\":4000", "piece \"a\" has id 4000");
    REFUSED(vocab, "\"ab!\":258,\"a\":260", "no piece has id 259");
    REFUSED(vocab, "\"a\":259,\"a\":260", "piece \"a\" appears twice, with ids 259 and 260");
    REFUSED(vocab, "\"a\":259,\"b\":259,\"c\":260", "id 259 belongs to both \"a\" and \"b\"");
    REFUSED(vocab, "\"a\":259,\"<s>\":260", "piece \"<s>\" appears twice, with ids 260 and 256");
    REFUSED(merges, NULL, "model.merges is missing");
    REFUSED(merges, "{}", "model.merges has the wrong type");
    REFUSED(merges, "[[\"a\",\"b\"],[\"b\",\"a\"]]", "merge 1, \"b\" with \"a\": a part or the product is not in");
    REFUSED(merges, "[[\"a\",\"zz\"]]", "merge 0, \"a\" with \"zz\"");
    REFUSED(merges, "[\"zz a\"]", "merge 0, \"zz\" with \"a\"");
    REFUSED(merges, "[[\"\",\"a\"]]", "merge 0, \"\" with \"a\"");
    REFUSED(merges, "[\"a \"]", "merge 0, \"a\" with \"\"");
    REFUSED(merges, "[[\"<0x41>\",\"<0x42>\"]]", "merge 0, \"<0x41>\"");
    REFUSED(merges, "[\"a b\",[\"b\",\"c\"]]", "merges have two forms");
    REFUSED(type, "null", "model.type has the wrong type");
    REFUSED(vocab, "\"a\":259.0", "an id in model.vocab is not an integer");
    REFUSED(vocab, "\"a\":2.59e2", "an id in model.vocab is not an integer");
    REFUSED(vocab, "\"a\":-0", "an id in model.vocab is not an integer");
    REFUSED(vocab, "\"a\":18446744073709551616", "an id in model.vocab is out of range");
    REFUSED(vocab, "\"\\ud83d\":259", "half a surrogate pair");
    REFUSED(vocab, "\"\\\\\\ude00\":259", "half a surrogate pair");
    REFUSED(vocab, "\"\xff\":259", "not UTF-8");
    REFUSED(vocab, "\"\xc0\x80\":259", "not UTF-8");
    REFUSED(pre_tokenizer, "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"MergedWithPrevious\"}",
            "pre_tokenizer is {\"type\":\"Split\"");
    REFUSED(normalizer,
            "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \",\"Regex\":\" \"},\"content\":\"\xE2\x96\x81\"}",
            "normalizer is {\"type\":\"Replace\"");
    REFUSED(added_tokens, "[{\"id\":256,\"content\":\"x\",\"special\":1}]", "special is neither true nor false");
    REFUSED(post_processor, "{\"type\":\"TemplateProcessing\",\"x\":2.0}", "a number of post_processor is not an id");
    REFUSED(added_tokens, "null", "added_tokens has the wrong type");
    REFUSED(merges, "[[\"a\"]]", "a merge is neither");
    REFUSED(merges, "[\"a b c\"]", "a merge is neither");
    REFUSED(merges, "[[\"a\",[\"b\"]]]", "a merge is neither");
    REFUSED(added_tokens, "[{\"id\":256,\"content\":\"x\",\"lstrip\":true}]", "added token \"x\" has lstrip true");
    REFUSED(added_tokens, "[{\"content\":\"x\"}]", "an added token has no");
    REFUSED(added_tokens, "{}", "added_tokens is {}");
    REFUSED(added_tokens, "[{\"id\":4000000,\"content\":\"a\"}]", "piece \"a\" has id 4000000");
    REFUSED(added_tokens, ADDED "{\"id\":268,\"content\":\"\",\"normalized\":true}]", "added token 268 is empty");
#undef REFUSED
    expected[15] = "id 258 belongs to both \"a\" and \"ab!\"";
    for (size_t i = 0; i < n; i++) {
        tokenizer *t;
        kakeya_error error = {0};
        kakeya_status status = open_form(&forms[i], &t, &error);
        if (status != KAKEYA_FORMAT && status != KAKEYA_UNSUPPORTED)
            fail_msg("case %zu (%s): accepted", i, expected[i]);
        assert_null(t);
        if (!strstr(error.message, expected[i])) fail_msg("\"%s\" lacks \"%s\"", error.message, expected[i]);
    }
}

static void test_missing_byte_piece_is_refused(void **state) {
    (void)state;
    char *text = tokenizer_json(&default_form);
    memcpy(strstr(text, "<0x7F>"), "<0xZF>", 6);
    tokenizer *t;
    kakeya_error error = {0};
    assert_int_equal(tokenizer_open_memory("made.json", text, strlen(text), &t, &error), KAKEYA_FORMAT);
    assert_non_null(strstr(error.message, "made.json: byte fallback needs the piece <0x7F>"));
    free(text);
}

static void test_malformed_files(void **state) {
    (void)state;
    char *text = tokenizer_json(&default_form);
    size_t bytes = strlen(text);
    tokenizer *t;
    kakeya_error error = {0};
    for (size_t cut = 0; cut < bytes; cut++) {
        char *copy = malloc(cut + 1); /* exact size: reading beyond it is seen by the sanitizer */
        assert_non_null(copy);
        memcpy(copy, text, cut);
        kakeya_status status = tokenizer_open_memory("cut.json", copy, cut, &t, &error);
        free(copy);
        if (status != KAKEYA_FORMAT) fail_msg("cut at byte %zu of %zu: status %d", cut, bytes, (int)status);
    }
    char *marked = malloc(bytes + 4); /* as editors on Windows save it */
    assert_non_null(marked);
    strcat(strcpy(marked, "\xef\xbb\xbf"), text);
    assert_int_equal(tokenizer_open_memory("marked.json", marked, bytes + 3, &t, &error), KAKEYA_OK);
    tokenizer_close(t);
    free(marked);
    char *model = strstr(text, "\"model\""); /* on line 2 */
    model[7] = ';';
    assert_int_equal(tokenizer_open_memory("bad.json", text, bytes, &t, &error), KAKEYA_FORMAT);
    char expected[64];
    snprintf(expected, sizeof expected, "bad.json: line 2, byte %td: ", model + 8 - text);
    if (strncmp(error.message, expected, strlen(expected) - 4) != 0) fail_msg("%s", error.message);
    free(text);
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:cc8d\nsize 32169626\n";
    assert_int_equal(tokenizer_open_memory("pointer.json", pointer, sizeof pointer - 1, &t, &error), KAKEYA_FORMAT);
    assert_non_null(strstr(error.message, "pointer.json: a Git LFS pointer"));
    assert_int_equal(tokenizer_open_memory("list.json", "[]", 2, &t, &error), KAKEYA_FORMAT);
    assert_int_equal(tokenizer_open("/no/such/tokenizer.json", &t, &error), KAKEYA_IO);
    assert_non_null(strstr(error.message, "/no/such/tokenizer.json"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_merging_equals_its_definition),
        cmocka_unit_test(test_long_line),
        cmocka_unit_test(test_special_tokens_in_literal_text),
        cmocka_unit_test(test_invalid_utf8_is_refused),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_normalized_added_tokens),
        cmocka_unit_test(test_gaps_between_added_tokens),
        cmocka_unit_test(test_merges),
        cmocka_unit_test(test_other_forms_are_refused),
        cmocka_unit_test(test_missing_byte_piece_is_refused),
        cmocka_unit_test(test_malformed_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
