/* Protects: a request is read as it was written, and everything else is refused; parameters stay in their bounds; what
 * comes from elsewhere has no way into a path, an option or a terminal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "remote/presets.h"
#include "scratch.h"

static kakeya_error error;

static const char good[] =
    "{\"version\":1,\"kind\":\"request\",\"nonce\":\"20261121T203012Z-9f3c2ab1\",\"preset\":\"niah\","
    "\"params\":{\"lines\":\"12,60\",\"samples\":\"5\"},\"inputs\":{},\"model\":\"demo\",\"worker\":\"any\","
    "\"bus\":\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\","
    "\"requested_by\":\"alice\",\"created\":\"2026-11-21T20:30:12Z\","
    "\"expires\":\"2026-11-22T20:30:12Z\"}";

static kakeya_status read_changed(const char *from, const char *to, request *out) {
    char *text = scratch_replace(good, from, to);
    kakeya_status status = request_read(text, strlen(text), out, &error);
    free(text);
    return status;
}

static void test_round_trip(void **state) {
    (void)state;
    request a, b;
    assert_ok(request_read(good, strlen(good), &a, &error));
    assert_string_equal(a.nonce, "20261121T203012Z-9f3c2ab1");
    assert_string_equal(request_value(&a, "lines"), "12,60");
    assert_null(request_value(&a, "window"));
    assert_int_equal(a.expires - a.created, 24 * 60 * 60);
    char *text;
    size_t bytes;
    assert_ok(request_write(&a, &text, &bytes, &error));
    assert_ok(request_read(text, bytes, &b, &error));
    assert_memory_equal(&a, &b, sizeof a);
    free(text);
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *message;
    } cases[] = {
        {"\"version\":1", "\"version\":2", "version"},
        {"\"version\":1,", "", "version is missing"},
        {"\"kind\":\"request\"", "\"kind\":\"result\"", "kind is 'result'"},
        {"20261121T203012Z-9f3c2ab1", "../../../../etc/passwd", "nonce"},
        {"20261121T203012Z-9f3c2ab1", "20261131T203012Z-9f3c2ab1", "nonce"}, /* no such day */
        {"20261121T203012Z-9f3c2ab1", "20261121T203012Z-9F3C2AB1", "nonce"},
        {"\"nonce\":\"20261121T203012Z-9f3c2ab1\"", "\"nonce\":7", "nonce is not a string"},
        {"\"preset\":\"niah\",", "", "preset is missing"},
        {"\"niah\"", "\"Niah\"", "preset is 'Niah'"},
        {"\"niah\"", "\"-x\"", "preset"},
        {"\"niah\"", "\"ni\\u0061h\"", "0x5c"},
        {"\"demo\"", "\"../demo\"", "model"},
        {"\"demo\"", "\"\"", "model"},
        {"\"demo\"", "\".demo\"", "model"},
        {"\"any\"", "null", "worker is missing"},
        {"\"requested_by\":\"alice\"", "\"requested_by\":\"al\x1b[31mice\"", "0x1b"},
        {"\"alice\"",
         "\"al\xc3\xaf"
         "ce\"",
         "0xc3"},
        {"\"alice\"", "\"alice,bob\"", "requested_by"},
        {"\"12,60\"", "\"12;rm -rf\"", "parameter 'lines'"},
        {"\"12,60\"", "\"--report\"", "parameter 'lines'"},
        {"\"12,60\"", "\"\"", "parameter 'lines'"},
        {"\"12,60\"", "12", "parameter 'lines'"},
        {"\"12,60\"", "[\"12\"]", "parameter 'lines'"},
        {"\"lines\"", "\"samples\"", "twice"},
        {"\"lines\"", "\"LINES\"", "parameter 'LINES'"},
        {"\"model\":\"demo\"", "\"model\":\"demo\",\"model\":\"demo\"", "twice"},
        {"\"model\":\"demo\"", "\"model\":\"demo\",\"command\":\"sh\"", "'command' is not known"},
        {"\"params\":{", "\"params\":[{", "JSON"},
        {"\"inputs\":{}", "\"inputs\":{\"a/b\":\"0\"}", "input 'a/b'"},
        {"\"inputs\":{}", "\"inputs\":{\"..\":\"0\"}", "input '..'"},
        {"\"inputs\":{}", "\"inputs\":{\"a\":\"00\"}", "input 'a'"},
        {"\"inputs\":{}", "\"inputs\":[]", "inputs is not an object"},
        {"0123456789abcdef\",", "0123456789abcdeF\",", "bus"},
        {"2026-11-21T20:30:12Z", "2026-11-21T20:30:12+01:00", "created"},
        {"2026-11-22T20:30:12Z", "2026-11-22T24:30:12Z", "expires"},
        {"2026-11-22T20:30:12Z\"}", "2026-11-22T20:30:12Z\"} {}", "after the value"},
    };
    request r;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_refused(read_changed(cases[i].from, cases[i].to, &r), KAKEYA_FORMAT, "request.json", cases[i].message);
    assert_refused(request_read(good, strlen(good) - 1, &r, &error), KAKEYA_FORMAT, "request.json");
    assert_refused(request_read("", 0, &r, &error), KAKEYA_FORMAT, "request.json");
}

static void test_sizes(void **state) {
    (void)state;
    char text[REQUEST_MAX_BYTES + 64], value[400];
    request r;
    memset(text, ' ', sizeof text);
    memcpy(text, good, strlen(good));
    assert_ok(request_read(text, REQUEST_MAX_BYTES, &r, &error));
    assert_refused(request_read(text, REQUEST_MAX_BYTES + 1, &r, &error), KAKEYA_FORMAT, "65537 bytes");

    for (int n = 256; n <= 257; n++) {
        snprintf(value, sizeof value, "%0*d", n, 7);
        kakeya_status status = read_changed("12,60", value, &r);
        assert_int_equal(status, n == 256 ? KAKEYA_OK : KAKEYA_FORMAT);
    }
    for (int n = 16; n <= 17; n++) {
        char params[512] = "";
        for (int i = 0; i < n; i++) sprintf(params + strlen(params), "%s\"p%d\":\"1\"", i ? "," : "", i);
        kakeya_status status = read_changed("\"lines\":\"12,60\",\"samples\":\"5\"", params, &r);
        assert_int_equal(status, n == 16 ? KAKEYA_OK : KAKEYA_FORMAT);
    }
    for (int n = 64; n <= 65; n++) {
        snprintf(value, sizeof value, "%0*d", n, 7);
        assert_int_equal(read_changed("alice", value, &r), n == 64 ? KAKEYA_OK : KAKEYA_FORMAT);
    }
}

static void test_times(void **state) {
    (void)state;
    request r;
    assert_ok(request_read(good, strlen(good), &r, &error));
    assert_ok(request_check_time(&r, r.created, &error));
    assert_ok(request_check_time(&r, r.created - 300, &error));
    assert_refused(request_check_time(&r, r.created - 301, &error), KAKEYA_INVALID_ARGUMENT, "301 s from now", "clock");
    assert_ok(request_check_time(&r, r.expires + 299, &error));
    assert_refused(request_check_time(&r, r.expires + 300, &error), KAKEYA_INVALID_ARGUMENT, "expired 300 s ago");
    r.expires++;
    assert_refused(request_check_time(&r, r.created, &error), KAKEYA_INVALID_ARGUMENT, "86401", "86400");
    r.expires = r.created;
    assert_refused(request_check_time(&r, r.created, &error), KAKEYA_INVALID_ARGUMENT, "0 s after");

    int64_t seconds;
    char text[REMOTE_TIME];
    assert_true(remote_time_read("2028-02-29T23:59:59Z", &seconds));
    remote_time_write(seconds, text);
    assert_string_equal(text, "2028-02-29T23:59:59Z");
    assert_false(remote_time_read("2026-02-29T23:59:59Z", &seconds));
    assert_false(remote_time_read("1969-12-31T23:59:59Z", &seconds));
}

static void test_nonces(void **state) {
    (void)state;
    char a[REMOTE_NONCE], b[REMOTE_NONCE];
    assert_ok(remote_make_nonce(1795293012, a, &error));
    assert_ok(remote_make_nonce(1795293012, b, &error));
    assert_true(remote_is_nonce(a) && remote_is_nonce(b));
    assert_string_not_equal(a, b);
    assert_int_equal(remote_nonce_time(a), 1795293012);
}

static request with(const char *preset_name, const char *name, const char *value) {
    request r;
    assert_ok(request_read(good, strlen(good), &r, &error));
    snprintf(r.preset, sizeof r.preset, "%s", preset_name);
    r.n_params = name ? 1 : 0;
    if (name) {
        snprintf(r.param[0].name, sizeof r.param[0].name, "%s", name);
        snprintf(r.param[0].value, sizeof r.param[0].value, "%s", value);
    }
    return r;
}

static kakeya_status check_one(const char *preset_name, const char *name, const char *value) {
    request r = with(preset_name, name, value);
    assert_non_null(preset_find(preset_name));
    return preset_check(preset_find(preset_name), &r, &error);
}

static void test_bounds(void **state) {
    (void)state;
    assert_null(preset_find("sh"));
    assert_null(preset_find(""));
    assert_ok(check_one("niah", "lines", "10,2000"));
    assert_refused(check_one("niah", "lines", "9"), KAKEYA_INVALID_ARGUMENT, "lines", "'9'", "from 10 to 2000");
    assert_refused(check_one("niah", "lines", "2001"), KAKEYA_INVALID_ARGUMENT, "2000");
    assert_refused(check_one("niah", "lines", "12,"), KAKEYA_INVALID_ARGUMENT, "lines");
    assert_refused(check_one("niah", "lines", ",12"), KAKEYA_INVALID_ARGUMENT, "lines");
    assert_refused(check_one("niah", "lines", "012"), KAKEYA_INVALID_ARGUMENT, "lines");
    assert_refused(check_one("niah", "lines", "99999999999999999999"), KAKEYA_INVALID_ARGUMENT, "lines");
    assert_ok(check_one("niah", "lines", "11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26"));
    assert_refused(check_one("niah", "lines", "11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27"),
                   KAKEYA_INVALID_ARGUMENT, "up to 16");
    assert_refused(check_one("niah", "samples", "51"), KAKEYA_INVALID_ARGUMENT, "from 1 to 50");
    assert_refused(check_one("niah", "samples", "5.0"), KAKEYA_INVALID_ARGUMENT, "samples");
    assert_refused(check_one("niah", "window", "15"), KAKEYA_INVALID_ARGUMENT, "from 16 to 1024");
    assert_ok(check_one("niah", "attention", "native,restored-all"));
    assert_refused(check_one("niah", "attention", "native,native"), KAKEYA_INVALID_ARGUMENT, "each once");
    assert_refused(check_one("niah", "attention", "restore"), KAKEYA_INVALID_ARGUMENT, "attention");
    assert_refused(check_one("niah", "mode", "auto ar"), KAKEYA_INVALID_ARGUMENT, "mode");
    assert_refused(check_one("niah", "report", "x"), KAKEYA_INVALID_ARGUMENT, "niah has no parameter 'report'");
    assert_refused(check_one("niah", "model", "x"), KAKEYA_INVALID_ARGUMENT, "no parameter 'model'");
    assert_refused(check_one("bench", "context-frontiers", "131073"), KAKEYA_INVALID_ARGUMENT, "131072");
    assert_refused(check_one("score", NULL, NULL), KAKEYA_INVALID_ARGUMENT, "score needs the parameter 'ids-file'");
    assert_refused(check_one("score", "ids-file", "etc"), KAKEYA_INVALID_ARGUMENT, "file of the request");
    assert_refused(check_one("acceptance", "chat", "true"), KAKEYA_INVALID_ARGUMENT, "yes or no");
}

static void join(const preset_command *command, char *out) {
    out[0] = '\0';
    for (size_t i = 0; i < command->n; i++) sprintf(out + strlen(out), "%s%s", i ? " " : "", command->word[i]);
}

static void test_commands(void **state) {
    (void)state;
    char words[2048];
    preset_command command;
    request r = with("niah", "lines", "12,60");
    preset_make_command(preset_find("niah"), &r, &command);
    join(&command, words);
    assert_string_equal(words, "kakeya eval niah --lines 12,60 --samples 5 --window 64 --max-tokens 48 "
                               "--model models/demo --report report.json");
    assert_null(command.word[command.n]);

    r = with("bench", "synthetic", "26b-a4b");
    preset_make_command(preset_find("bench"), &r, &command);
    join(&command, words);
    assert_string_equal(words, "kakeya bench --json --context-frontiers 0,1024,4096 --synthetic 26b-a4b");

    /* The name of an input chooses a file; it is not its path. */
    r = with("score", "ids-file", "ids.json");
    r.n_inputs = 2;
    snprintf(r.input[0].name, sizeof r.input[0].name, "other");
    snprintf(r.input[1].name, sizeof r.input[1].name, "ids.json");
    assert_ok(preset_check(preset_find("score"), &r, &error));
    preset_make_command(preset_find("score"), &r, &command);
    join(&command, words);
    assert_string_equal(words, "kakeya score --json --ids-file inputs/01 --model models/demo");

    r = with("acceptance", "chat", "no");
    preset_make_command(preset_find("acceptance"), &r, &command);
    join(&command, words);
    assert_null(strstr(words, "--chat"));
}

/* Whatever a request asks for, the words are those of the table and values of its parameters. */
static void test_table(void **state) {
    (void)state;
    size_t n = 0;
    for (const preset *p; (p = preset_at(n)) != NULL; n++) {
        assert_true(remote_is_name(p->name));
        assert_ptr_equal(preset_find(p->name), p);
        assert_in_range(p->minutes, 1, 120);
        request r = with(p->name, NULL, NULL);
        for (const preset_param *q = p->params; q->name; q++) {
            assert_true(remote_is_name(q->name) && strncmp(q->option, "--", 2) == 0);
            if (!q->fallback) continue;
            request f = with(p->name, q->name, q->fallback);
            for (const preset_param *other = p->params; other->name; other++) {
                if (!other->required) continue;
                request_param *add = &f.param[f.n_params++];
                snprintf(add->name, sizeof add->name, "%s", other->name);
                snprintf(add->value, sizeof add->value, "input");
                snprintf(f.input[f.n_inputs++].name, sizeof f.input[0].name, "input");
            }
            assert_ok(preset_check(p, &f, &error)); /* its own defaults are within its bounds */
        }
        preset_command command;
        preset_make_command(p, &r, &command);
        assert_in_range(command.n, 2, PRESET_MAX_WORDS);
        assert_string_equal(command.word[0], "kakeya");
    }
    assert_true(n >= 10);
}

static void test_printable(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"plain\tand\nlines", "plain\tand\nlines"},
        {"\x1b[31mred\x07\r\x7f", "?[31mred???"},
        {"\xc2\x9b"
         "31m",
         "?31m"}, /* the one-character form of ESC [ */
        {"a\xe2\x80\xae"
         "b\xe2\x81\xa6",
         "a?b?"}, /* right to left from here on; isolates */
        {"gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80", "gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80"},
        {"\xc3", "?"},
        {"\xff\xfe\xc0\xaf", "????"},
        {"\xed\xa0\x80", "???"}, /* half of a surrogate pair */
        {"\xe2\x80", "??"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s", cases[i].from);
        text[remote_printable(text, strlen(text))] = '\0';
        assert_string_equal(text, cases[i].to);
    }
    char zero[] = {'a', 0, 'b'};
    assert_int_equal(remote_printable(zero, 3), 3);
    assert_memory_equal(zero, "a?b", 3);
}

static void test_digest(void **state) {
    (void)state;
    char digest[REMOTE_SHA256];
    remote_sha256("abc", 3, digest);
    assert_string_equal(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_true(remote_is_sha256(digest));
    digest[63] = 'G';
    assert_false(remote_is_sha256(digest));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_refusals), cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_times),      cmocka_unit_test(test_nonces),   cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_commands),   cmocka_unit_test(test_table),    cmocka_unit_test(test_printable),
        cmocka_unit_test(test_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
