/* Pieces of the server that need no socket: heads and chunks of HTTP, JSON bodies and their fields, texts, checkpoints
 * of prompts, Host headers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "serve/auth.h"
#include "serve/body.h"
#include "serve/http_parse.h"
#include "serve/text.h"

static int parse(const char *text, http_head *head) {
    const char *why = "";
    return http_head_parse(text, strlen(text), head, &why);
}

static void test_heads(void **state) {
    (void)state;
    http_head head;
    assert_int_equal(
        parse("POST /a%20b/c?x=%zz HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\nX-Y:  v w \t\r\n\r\n", &head), 0);
    assert_string_equal(head.method, "POST");
    assert_string_equal(head.path, "/a b/c");
    assert_string_equal(head.query, "x=%zz");
    assert_string_equal(http_head_find(&head, "x-y"), "v w");
    assert_null(http_head_find(&head, "x"));
    assert_true(head.has_length && head.keep_alive && !head.chunked && head.content_length == 12);
    http_head_free(&head);
    assert_int_equal(parse("GET / HTTP/1.0\r\nConnection: x, Keep-Alive\r\n\r\n", &head), 0);
    assert_true(head.keep_alive && head.minor == 0);
    http_head_free(&head);
    assert_int_equal(
        parse("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\nConnection: close\r\n\r\n", &head), 0);
    assert_true(head.chunked && !head.keep_alive);
    http_head_free(&head);
    static const char *const wrong[] = {
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",
        "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nA : b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /%0a HTTP/1.1\r\nHost: a\r\n\r\n",
        "G@T / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a?b#c HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: b@a\r\n\r\n",
        "GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n",
        "GET http://a/ HTTP/1.1\r\nHost: a:80\r\n\r\n",
        "GET http://b@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a/ HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX-Api-Key: a\r\nB: c\r\nX-Api-Key: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Type: a\r\nContent-Type: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nOrigin: a\r\nOrigin: b\r\n\r\n",
    };
    assert_int_equal(parse("GET HTTP://A:1/b?c HTTP/1.1\r\nHost: a:1\r\nAccept: a\r\nAccept: b\r\n\r\n", &head), 0);
    assert_string_equal(head.path, "/b");
    assert_string_equal(head.query, "c");
    http_head_free(&head);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (parse(wrong[i], &head) != 400) fail_msg("accepted: %s", wrong[i]);
}

/* Whatever the pieces, the body is the same. */
static void test_chunks(void **state) {
    (void)state;
    static const char wire[] = "3;a=b\r\nabc\r\n0a\r\n0123456789\r\n0\r\nT: x\r\n\r\nGET";
    for (size_t step = 1; step <= sizeof wire - 1; step++) {
        http_chunks chunks = {0};
        char body[64];
        size_t n = 0, at = 0;
        while (!chunks.done && at < sizeof wire - 1) {
            size_t have = sizeof wire - 1 - at < step ? sizeof wire - 1 - at : step, consumed, bytes;
            const char *data;
            assert_true(http_chunks_feed(&chunks, wire + at, have, &consumed, &data, &bytes));
            if (bytes) memcpy(body + n, data, bytes);
            n += bytes;
            at += consumed;
        }
        assert_int_equal(n, 13);
        assert_memory_equal(body, "abc0123456789", 13);
        assert_string_equal(wire + at, "GET");
    }
}

/* Fed whole, and a byte at a time. */
static bool takes_chunks(const char *wire) {
    size_t n = strlen(wire), consumed, bytes;
    const char *data;
    http_chunks whole = {0}, single = {0};
    bool good = true, alone = true;
    for (size_t at = 0; good && !whole.done && at < n; at += consumed)
        good = http_chunks_feed(&whole, wire + at, n - at, &consumed, &data, &bytes);
    for (size_t at = 0; alone && !single.done && at < n; at++)
        alone = http_chunks_feed(&single, wire + at, 1, &consumed, &data, &bytes);
    assert_true((good && whole.done) == (alone && single.done));
    return good && whole.done;
}

static void test_chunk_lines(void **state) {
    (void)state;
    static const char *const right[] = {
        "0\r\n\r\n",
        "00000\r\n\r\n",
        "1;a\r\nx\r\n0\r\n\r\n",
        "1 ; a = b ;c=\"d; \\\" \x80\" ; f\r\nx\r\n0;g\r\n\r\n",
        "0\r\nA: b\r\nC:\r\n\r\n",
    };
    static const char *const wrong[] = {
        "0 \r\n\r\n",          "0\t\r\n\r\n",          " 0\r\n\r\n",      "0x0\r\n\r\n",     "0;\r\n\r\n",
        "0; \r\n\r\n",         "0;a \r\n\r\n",         "0;a=\r\n\r\n",    "0;a= \r\n\r\n",   "0;a=b \r\n\r\n",
        "0;=b\r\n\r\n",        "0;a b\r\n\r\n",        "0;a=b c\r\n\r\n", "0;a=\"b\r\n\r\n", "0;a=\"b\"c\r\n\r\n",
        "0;a\x01\r\n\r\n",     "0;a=\"\x01\"\r\n\r\n", "0;a\n\r\n",       "0\n\r\n",         "0\r\nA\r\n\r\n",
        "0\r\n: b\r\n\r\n",    "0\r\nA : b\r\n\r\n",   "0\r\n b\r\n\r\n", "0\r\nA: b\n\r\n", "0\r\nA: \x01\r\n\r\n",
        "0\r\nA: b\r\r\n\r\n", "1\r\nxx\r\n0\r\n\r\n", ";a\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        if (!takes_chunks(right[i])) fail_msg("refused: %s", right[i]);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (takes_chunks(wrong[i])) fail_msg("accepted: %s", wrong[i]);
}

static const char *code_of(const char *body, size_t n) {
    static api_error error;
    error = (api_error){0};
    cJSON *json = NULL;
    if (body_parse(body, n, &json, &error)) {
        cJSON_Delete(json);
        return "ok";
    }
    assert_null(json);
    assert_int_equal(error.status, 400);
    return error.code;
}

static void test_bodies(void **state) {
    (void)state;
    static const struct {
        const char *body, *code;
    } cases[] = {
        {"{}", "ok"},
        {"{\"a\":\"\\ud83d\\ude00 \\\\u0000 \\\"\\u00e4\"}", "ok"},
        {"[]", "invalid_json"},
        {"", "invalid_json"},
        {"{} x", "invalid_json"},
        {"{\"a\":1,\"a\":2}", "invalid_json"},
        {"{\"a\":\"\\u0000 \\ud83d \\ude00\\ud83d \\ud83d\\u0041\"}", "ok"},
        {"{\"\\u0000\":1}", "invalid_json"},
        {"{\"a\":[{\"b\\ude00\" :1}]}", "invalid_json"},
        {"{\"a\":\"\xff\"}", "invalid_utf8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(code_of(cases[i].body, strlen(cases[i].body)), cases[i].code);
    assert_string_equal(code_of("{\"a\":\"\0\"}", 9), "invalid_json");
    char many[16 * 1001], *at = many;
    for (int n = 0; n < 1001; n++) at += sprintf(at, "%s\"f%d\":1", n ? "," : "{", n);
    *at++ = '}';
    *at = '\0';
    assert_string_equal(code_of(many, (size_t)(at - many)), "invalid_json");
}

/* As many values as a tree may have, and one more; commas and brackets inside strings are none. */
static void test_many_values(void **state) {
    (void)state;
    static const char head[] = "{\"a\":[";
    size_t values = JSON_MAX_VALUES - 2, n = sizeof head - 1; /* besides the object and the list */
    char *body = malloc(n + 2 * values + 8);
    assert_non_null(body);
    memcpy(body, head, n);
    for (size_t i = 0; i < values; i++, n += 2) memcpy(body + n, "0,", 2);
    memcpy(body + n - 1, "]}", 2);
    assert_string_equal(code_of(body, n + 1), "ok");
    memcpy(body + n - 1, ",0]}", 4);
    assert_string_equal(code_of(body, n + 3), "invalid_json");
    body[n = sizeof head - 2] = '"';
    for (size_t i = 0; i < values; i++, n += 2) memcpy(body + n + 1, "[,", 2);
    memcpy(body + n + 1, "\"}", 2);
    assert_string_equal(code_of(body, n + 3), "ok");
    free(body);
}

/* Numbers of the named members are spelled as they came, wherever else the body has numbers or texts like them. */
static void test_spelling(void **state) {
    (void)state;
    static const char body[] = "{\"top\": -1.50e2, \"7\": \"8\\\" 9\", "
                               "\"tools\": [12345678901234567890, {\"1.0\": 1.0, \"t\": \"x\\\\\"}, 1E3, -0],"
                               "\"rest\": 2.50, \"seed\": 0.10}";
    api_error error = {0};
    cJSON *json;
    assert_true(body_parse(body, sizeof body - 1, &json, &error));
    char *text = cJSON_PrintUnformatted(json);
    assert_string_equal(
        text, "{\"top\":-150,\"7\":\"8\\\" 9\",\"tools\":[12345678901234567890,{\"1.0\":1.0,\"t\":\"x\\\\\"},1E3,-0],"
              "\"rest\":2.5,\"seed\":0.10}");
    cJSON_free(text);
    cJSON_Delete(json);
    text_buffer ignored = {0};
    ignored_add(&ignored, "a[%d](%s)", 1, "b,c\r\nd: \x80");
    ignored_add(&ignored, "%s", "e");
    assert_string_equal(ignored.data, "a[1](b?c?"
                                      "?d:?"
                                      "?), e");
    for (int i = 0; i < 1000; i++) ignored_add(&ignored, "%0200d", i);
    assert_true(ignored.n < 2300);
    text_free(&ignored);
}

static void test_seeds(void **state) {
    (void)state;
    static const struct {
        const char *seed, *code;
        uint64_t value;
    } cases[] = {{"18446744073709551615", NULL, UINT64_MAX},
                 {"-9223372036854775808", NULL, UINT64_C(1) << 63},
                 {"1e3", NULL, 1000},
                 {"7.0", NULL, 7},
                 {"-1", "", 0},
                 {"null", "", 0},
                 {"18446744073709551616", "invalid_value", 0},
                 {"-9223372036854775809", "invalid_value", 0},
                 {"1e30", "invalid_value", 0},
                 {"1.5", "invalid_type", 0},
                 {"\"1\"", "invalid_type", 0},
                 {"true", "invalid_type", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[100];
        int n = snprintf(body, sizeof body, "{\"x\":{\"seed\":1},\"seed\":%s}", cases[i].seed);
        api_error error = {0};
        cJSON *json;
        fields f;
        uint64_t seed = 0;
        assert_true(body_parse(body, (size_t)n, &json, &error));
        fields_begin(&f, json, "", &error);
        assert_int_equal(fields_seed(&f, "seed", &seed), cases[i].code == NULL);
        assert_string_equal(error.code ? error.code : "", cases[i].code ? cases[i].code : "");
        assert_true(seed == cases[i].value);
        cJSON_Delete(json);
    }
}

static void test_fields(void **state) {
    (void)state;
    static const char body[] =
        "{\"x\":{\"seed\":1},\"seed\":-9223372036854775807,\"big\":18446744073709551615,\"t\":true,"
        "\"s\":\"five\",\"h\":1.5,\"none\":null,\"odd\":[1,2]}";
    api_error error = {0};
    cJSON *json;
    assert_true(body_parse(body, sizeof body - 1, &json, &error));
    fields f;
    uint64_t seed = 0;
    fields_begin(&f, json, "", &error);
    assert_true(fields_seed(&f, "seed", &seed) && seed == UINT64_C(0x8000000000000001));
    assert_int_equal(error.status, 0);
    assert_false(fields_seed(&f, "none", &seed));
    assert_non_null(fields_get(&f, "big"));
    assert_true(fields_bool(&f, "t", false));
    assert_int_equal(fields_integer(&f, "none", 0, 9, 7), 7);
    assert_int_equal(error.status, 0);
    text_buffer ignored = {0};
    fields_end(&f, false, &ignored);
    assert_string_equal(ignored.data, "x, s, h, odd");
    text_free(&ignored);
    static const struct {
        const char *name, *code;
    } wrong[] = {{"t", "invalid_type"}, {"s", "invalid_type"}, {"h", "invalid_type"}, {"big", "invalid_value"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        error = (api_error){0};
        assert_int_equal(fields_integer(&f, wrong[i].name, 0, 9, 3), 3);
        assert_string_equal(error.code, wrong[i].code);
        assert_string_equal(error.param, wrong[i].name);
    }
    error = (api_error){0};
    fields_end(&f, true, NULL);
    assert_string_equal(error.code, "unsupported_parameter");
    assert_string_equal(error.param, "x");
    cJSON_Delete(json);
}

static void test_texts(void **state) {
    (void)state;
    text_buffer t = {0};
    text_json(&t, "a\"\\\n\x01\xC3\xA4\xff", 8);
    assert_string_equal(t.data, "\"a\\\"\\\\\\n\\u0001\xC3\xA4\xEF\xBF\xBD\"");
    text_clear(&t);
    static const double numbers[] = {0.1, 1.0 / 3, -5, 1e300, 123456789};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        text_clear(&t);
        text_json_number(&t, numbers[i]);
        assert_true(strtod(t.data, NULL) == numbers[i]);
    }
    text_clear(&t);
    text_json_number(&t, (double)NAN);
    assert_string_equal(t.data, "null");
    text_free(&t);
}

/* What is formatted fits, fits exactly, or makes the text grow; all of it must come out the same. */
static void test_formats(void **state) {
    (void)state;
    static char long_one[1000];
    memset(long_one, 'x', sizeof long_one - 1);
    for (size_t before = 0; before < 600; before++) {
        text_buffer t = {0};
        text_bytes(&t, long_one, before);
        text_format(&t, "%d-%s;", 42, long_one + 900);
        text_format(&t, "%s", "");
        assert_int_equal(t.n, before + 3 + 99 + 1);
        assert_int_equal(strlen(t.data), t.n);
        assert_memory_equal(t.data + before, "42-xx", 5);
        assert_string_equal(t.data + t.n - 2, "x;");
        assert_false(t.failed);
        text_free(&t);
    }
    text_buffer t = {0};
    static const uint64_t numbers[] = {0, 9, 10, 1234567890, UINT64_MAX};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        text_clear(&t);
        text_unsigned(&t, numbers[i]);
        char digits[32];
        snprintf(digits, sizeof digits, "%llu", (unsigned long long)numbers[i]);
        assert_string_equal(t.data, digits);
    }
    text_free(&t);
}

static void test_hosts_and_keys(void **state) {
    (void)state;
    static const char *const keys[] = {"secret"}, *const hosts[] = {"kakeya.test"};
    const auth_options options = {.keys = keys, .n_keys = 1, .environment = "one, two", .hosts = hosts, .n_hosts = 1};
    auth *a;
    assert_int_equal(auth_open(&options, &a, NULL), KAKEYA_OK);
    static const char *const good[] = {"localhost", "LocalHost:1", "127.0.0.1:80", "[::1]:80", "kakeya.test"};
    static const char *const bad[] = {"evil.example", "localhost.evil", "", "[evil]:1", "[::1", "127.0.0.1.evil"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_true(auth_host_allowed(a, good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(auth_host_allowed(a, bad[i]));
    unsigned long long first, second;
    assert_true(auth_allows(a, "bearer secret", NULL, &first));
    assert_true(auth_allows(a, NULL, "two", &second));
    assert_true(first != second);
    assert_false(auth_allows(a, "Bearer secre", "", &first));
    assert_false(auth_allows(a, "Basic secret", NULL, &first));
    auth_close(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads),   cmocka_unit_test(test_chunks),         cmocka_unit_test(test_chunk_lines),
        cmocka_unit_test(test_bodies),  cmocka_unit_test(test_many_values),    cmocka_unit_test(test_spelling),
        cmocka_unit_test(test_seeds),   cmocka_unit_test(test_fields),         cmocka_unit_test(test_texts),
        cmocka_unit_test(test_formats), cmocka_unit_test(test_hosts_and_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
