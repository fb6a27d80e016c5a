/* Protects: what is malformed is refused with its position; values of a wrong type or range name their key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "scratch.h"

static kakeya_error error;

static kakeya_status parse(const char *text) {
    cJSON *value;
    kakeya_status status = json_parse("f.json", text, strlen(text), &value, &error);
    assert_true((status == KAKEYA_OK) == (value != NULL));
    cJSON_Delete(value);
    return status;
}

static void test_parse(void **state) {
    (void)state;
    assert_ok(parse(" {\"a\": [1, 2.5, \"x\", null, true]} \n"));
    assert_ok(parse("7"));
    assert_refused(parse(""), KAKEYA_FORMAT, "f.json", "line 1, byte 0", "no value");
    assert_refused(parse(" \n\n"), KAKEYA_FORMAT, "line 3, byte 3");
    assert_refused(parse("{\"a\": 1,\n \"b\": }"), KAKEYA_FORMAT, "f.json", "line 2, byte 15");
    assert_refused(parse("{\"a\": 1"), KAKEYA_FORMAT, "line 1");
    assert_refused(parse("{\"a\""), KAKEYA_FORMAT, "malformed JSON");
    assert_refused(parse("[1] x"), KAKEYA_FORMAT, "byte 4", "after the value");
    assert_refused(parse("\"abc"), KAKEYA_FORMAT, "malformed JSON");
}

/* C strings end at a NUL: what stands behind it would be dropped without a word. */
static void test_nul(void **state) {
    (void)state;
    static const char *const bad[] = {"\"a\\u0000b\"", "{\"a\\u0000b\": 1}", "[\"\\\\\\u0000\"]"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_refused(parse(bad[i]), KAKEYA_FORMAT, "f.json: malformed JSON at line 1", "contains NUL");
    assert_ok(parse("[\"\\\\u0000\"]")); /* a backslash, and u0000 */
    cJSON *value = NULL;
    assert_refused(json_parse("f.json", "{\"a\0b\": 1}", 10, &value, &error), KAKEYA_FORMAT, "byte 3", "a NUL");
    assert_refused(json_parse("f.json", "[1]\0", 4, &value, &error), KAKEYA_FORMAT, "byte 3", "a NUL");
}

/* What Python's json writes where a number is none. */
static void test_no_numbers(void **state) {
    (void)state;
    static const char *const bad[] = {"NaN", "[Infinity]", "{\"a\": -Infinity}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_refused(parse(bad[i]), KAKEYA_FORMAT, "NaN and Infinity, which Python writes, are not JSON");
    assert_ok(parse("[\"NaN\", \"-Infinity\"]"));
}

/* Numbers have JSON's own form; the parser behind would take more. */
static void test_numbers(void **state) {
    (void)state;
    static const char *const good[] = {"0",     "-0",     "10",    "-1.5",       "0.25",          "1e5",
                                       "1E+05", "2.5e-3", "[0,1]", "{\"a\":-1}", "\"007 and 1.\""};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) assert_ok(parse(good[i]));
    static const char *const bad[] = {"05",  "00",    "-01",  "007",     "1.",          "-.5", "-", "1e",
                                      "1e+", "1.5.2", "0x10", "[2, 05]", "{\"a\": 1.}", "+1",  ".5"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_refused(parse(bad[i]), KAKEYA_FORMAT, "f.json: malformed JSON at line 1");
}

static void test_depth(void **state) {
    (void)state;
    char text[2 * JSON_MAX_DEPTH + 3];
    for (int depth = JSON_MAX_DEPTH; depth <= JSON_MAX_DEPTH + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        text[2 * depth] = '\0';
        if (depth == JSON_MAX_DEPTH)
            assert_ok(parse(text));
        else
            assert_refused(parse(text), KAKEYA_FORMAT, "byte 64", "nested deeper than 64");
    }
    assert_ok(parse("\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[\""));
}

static void test_object(void **state) {
    (void)state;
    cJSON *value;
    assert_refused(json_parse_object("f.json", "[1]", 3, &value, &error), KAKEYA_FORMAT, "f.json", "not a JSON object");
    assert_null(value);
}

static cJSON *object;

static kakeya_status read_int(const char *key) {
    json_reader r = {.name = "f.json", .error = &error};
    json_int(&r, object, key, 1, 100, 42);
    return r.status;
}

static void test_getters(void **state) {
    (void)state;
    const char *text =
        "{\"n\": 7, \"big\": 101, \"half\": 1.5, \"s\": \"text\", \"t\": true, \"null\": null, \"a\": [1, 2], "
        "\"bad\": [1, \"x\"], \"o\": {}, \"huge\": 1e300}";
    assert_ok(json_parse_object("f.json", text, strlen(text), &object, &error));
    json_reader r = {.name = "f.json", .error = &error};
    assert_int_equal(json_int(&r, object, "n", 1, 100, 42), 7);
    assert_int_equal(json_int(&r, object, "absent", 1, 100, 42), 42);
    assert_int_equal(json_int(&r, object, "null", 1, 100, 42), 42);
    assert_int_equal(json_int(&r, NULL, "n", 1, 100, 42), 42);
    assert_true(json_number(&r, object, "half", 0, 2, 0) == 1.5);
    assert_true(json_bool(&r, object, "t", false));
    assert_string_equal(json_string(&r, object, "s", ""), "text");
    assert_non_null(json_object(&r, object, "o"));
    assert_null(json_object(&r, object, "absent"));
    int values[2];
    assert_int_equal(json_int_array(&r, object, "a", 0, 9, values, 2), 2);
    assert_int_equal(values[1], 2);
    assert_int_equal(json_int_array(&r, object, "absent", 0, 9, values, 2), 0);
    assert_int_equal(r.status, KAKEYA_OK);

    assert_refused(read_int("big"), KAKEYA_FORMAT, "f.json", "big is 101", "1 to 100");
    assert_refused(read_int("huge"), KAKEYA_FORMAT, "huge is 1");
    assert_refused(read_int("half"), KAKEYA_FORMAT, "half is 1.5", "integer");
    assert_refused(read_int("s"), KAKEYA_FORMAT, "s is not a number");

#define REFUSED(expression, message)                                                                                   \
    do {                                                                                                               \
        json_reader reader = {.name = "f.json", .error = &error};                                                      \
        (void)(expression);                                                                                            \
        assert_refused(reader.status, KAKEYA_FORMAT, message);                                                         \
    } while (0)
    REFUSED(json_required_int(&reader, object, "absent", 1, 9), "absent is missing");
    REFUSED(json_number(&reader, object, "half", 2, 3, 2), "half is 1.5");
    REFUSED(json_number(&reader, object, "s", 2, 3, 2), "s is not a number");
    REFUSED(json_bool(&reader, object, "n", true), "n is neither true nor false");
    REFUSED(json_string(&reader, object, "n", ""), "n is not a string");
    REFUSED(json_object(&reader, object, "a"), "a is not an object");
    REFUSED(json_array(&reader, object, "o"), "o is not an array");
    REFUSED(json_int_array(&reader, object, "bad", 0, 9, values, 2), "bad[1]");
    REFUSED(json_int_array(&reader, object, "a", 0, 9, values, 1), "a has 2 entries");
    REFUSED(json_int_array(&reader, object, "a", 0, 1, values, 2), "a[1] is not an integer from 0 to 1");

    /* the first failure is the one that is reported */
    json_reader first = {.name = "f.json", .error = &error};
    json_int(&first, object, "s", 1, 100, 0);
    json_int(&first, object, "big", 1, 100, 0);
    assert_refused(first.status, KAKEYA_FORMAT, "s is not a number");
    cJSON_Delete(object);
}

static kakeya_status refuse_repeated(const char *text) {
    cJSON *value;
    assert_ok(json_parse("f.json", text, strlen(text), &value, &error));
    kakeya_status status = json_refuse_repeated_keys("f.json", value, &error);
    cJSON_Delete(value);
    return status;
}

static void test_repeated_keys(void **state) {
    (void)state;
    assert_ok(json_refuse_repeated_keys("f.json", NULL, &error));
    assert_ok(refuse_repeated("7"));
    assert_ok(refuse_repeated("{\"a\": {\"a\": [{\"a\": 1}, {\"a\": 2}]}, \"b\": {\"a\": 1}, \"A\": 1}"));
    assert_refused(refuse_repeated("{\"a\": 1, \"b\": 2, \"a\": 1}"), KAKEYA_FORMAT,
                   "f.json: the key \"a\" appears twice");
    assert_refused(refuse_repeated("{\"x\": [1, {\"in\\nner\": 1, \"in\\nner\": null}]}"), KAKEYA_FORMAT,
                   "the key \"in ner\" appears twice");
}

static int allocations, failing, held;

static void *counted_malloc(size_t bytes) {
    if (++allocations == failing) return NULL;
    held++;
    return malloc(bytes);
}

static void counted_free(void *memory) {
    held -= memory != NULL;
    free(memory);
}

/* Of every kind of value; none of its memory is given back twice, and none is lost where there is not enough. */
static void test_references(void **state) {
    (void)state;
    static const char *const values[] = {"7", "true", "\"text\"", "[1, 2]", "{\"a\": {\"b\": []}}"};
    cJSON_InitHooks(&(cJSON_Hooks){counted_malloc, counted_free});
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        cJSON *tree = cJSON_CreateObject(), *owner = cJSON_Parse(values[i]);
        const int before = held;
        for (int f = 1; f <= 2; f++) {
            allocations = 0, failing = f;
            assert_false(json_add_reference(tree, "key", owner));
            assert_int_equal(held, before);
            assert_int_equal(cJSON_GetArraySize(tree), 0);
        }
        failing = 0;
        assert_true(json_add_reference(tree, "key", owner));
        assert_true(cJSON_Compare(cJSON_GetObjectItem(tree, "key"), owner, true));
        assert_false(json_add_reference(tree, "other", NULL));
        cJSON_Delete(tree);
        char *text = cJSON_PrintUnformatted(owner);
        assert_non_null(text);
        cJSON_free(text);
        cJSON_Delete(owner);
        assert_int_equal(held, 0);
    }
    cJSON_InitHooks(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),      cmocka_unit_test(test_numbers),       cmocka_unit_test(test_nul),
        cmocka_unit_test(test_no_numbers), cmocka_unit_test(test_depth),         cmocka_unit_test(test_object),
        cmocka_unit_test(test_getters),    cmocka_unit_test(test_repeated_keys), cmocka_unit_test(test_references),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
