/* What grammars accept: tables of texts that are and are not in them, and of what compilers refuse, with the place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "unit/grammar_support.h"

typedef struct language {
    kakeya_grammar_kind kind;
    const char *grammar;
    const char *accepted[16], *refused[16];
} language;

#define OBJECT KAKEYA_GRAMMAR_JSON_OBJECT
#define SCHEMA KAKEYA_GRAMMAR_JSON_SCHEMA
#define REGEX  KAKEYA_GRAMMAR_REGEX
#define CHOICE KAKEYA_GRAMMAR_CHOICE

static const language languages[] = {
    {OBJECT,
     NULL,
     {"{}", "{\"a\":1}", "{\"a\": [1, 2.5, -3e7, true, null, \"x\\n\\u00e9\\ud83d\\ude00\"]}",
      "{\n  \"a\": {\n    \"b\": []\n  }\n}", "{\"\":\"\xC3\xA9\"}", "{\"a\\\"b\": \"\\\\\"}"},
     {"", "[]", "1", " {}", "{} ", "{\"a\":1,}", "{\"a\"  :1}", "{\"a\":  1}", "{\n\n}", "{\"a\":01}",
      "{"
      "\"a\":\"\n\"}",
      "{\"a\":\"\xC3\"}", "{\"a\":\"\xC0\xAF\"}", "{\"a\":\"\\ud800\"}", "{\"a\":\"\xED\xA0\x80\"}", "{'a':1}"}},
    {SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"},"
     "\"tag\":{\"type\":\"null\"}},"
     "\"required\":[\"name\"]}",
     {"{\"name\":\"x\"}", "{\"name\": \"x\", \"age\": 3}", "{\"name\":\"x\",\"tag\":null}",
      "{\"name\":\"\",\"age\":-0,\"tag\":null}"},
     {"{}", "{\"age\":3}", "{\"age\":3,\"name\":\"x\"}", "{\"name\":\"x\",\"name\":\"y\"}",
      "{\"name\":\"x\",\"other\":1}", "{\"name\":1}", "{\"name\":\"x\",\"age\":1.5}", "{\"name\":\"x\",}",
      "{\"nam\":\"x\"}", "{\"names\":\"x\"}"}},
    {SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":"
     "\"boolean\"}}",
     {"{}", "{\"a\":1}", "{\"b\":true}", "{\"a\":1,\"ab\":true,\"\":false}"},
     {"{\"a\":true}", "{\"b\":true,\"a\":1}", "{\"b\":1}", "{\"a\":1,\"a\":true}", "{\"\\u0061\":true}"}},
    {SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}",
     {"[1,2]", "[1, 2, 3]", "[\n 1,\n 2]"},
     {"[]", "[1]", "[1,2,3,4]", "[1,]", "[1 ,2]", "[1,2,]"}},
    {SCHEMA,
     "{\"type\":[\"object\",\"null\"],\"properties\":{\"a\":{\"$ref\":\"\"}},\"required\":[\"a\"]}",
     {"null", "{\"a\":null}", "{\"a\":{\"a\":null}}"},
     {"{}", "{\"a\":1}"}},
    {SCHEMA,
     "{\"$schema\":\"http://json-schema.org/draft-03/schema#\",\"type\":\"object\","
     "\"properties\":{\"a\":{\"type\":\"integer\",\"required\":true},\"b\":{\"required\":false}}}",
     {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
     {"{}", "{\"b\":2}"}},
    {SCHEMA,
     "{\"oneOf\":[{},{\"oneOf\":[{\"type\":\"string\"},{\"maxLength\":2},{\"const\":\"abc\"}]}]}",
     {"\"a\"", "\"abc\""},
     {"\"abcd\"", "1", "{}"}},
    {SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"contains\":{\"const\":7},\"minContains\":2}",
     {"[7,7]", "[1,2,3,4,5,6,7,8,9,10,11,12,7,13]", "[7,1,7]", "[7,7,7]"},
     {"[]", "[7]", "[1,2]", "[7,1]", "[1,2,3,4,5,6,7,8,9,10,11,12,7"}},
    {SCHEMA,
     "{\"type\":\"array\",\"contains\":{\"type\":\"string\"},\"minContains\":0,\"maxContains\":1,\"maxItems\":3}",
     {"[]", "[1]", "[\"a\"]", "[1,\"a\",{}]", "[[],null,1]"},
     {"[\"a\",\"b\"]", "[1,\"a\",\"a\"]", "[1,2,3,4]"}},
    {SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":[\"string\",\"integer\",\"null\"]},\"contains\":{\"type\":\"null\"},"
     "\"allOf\":[{\"contains\":{\"type\":\"string\"},\"minContains\":2},"
     "{\"contains\":{\"type\":\"integer\",\"minimum\":3}}],\"maxItems\":5}",
     {"[null,\"a\",\"b\",3]", "[null,\"a\",\"b\",1,7]"},
     {"[\"a\",\"b\",null]", "[\"a\",\"b\",3]", "[\"a\",3,null]", "[null,\"a\",\"b\",1,2]", "[]",
      "[null,\"a\",\"b\",1,2,3]"}},
    {SCHEMA,
     "{\"type\":\"array\",\"contains\":{},\"minContains\":1,\"maxContains\":2}",
     {"[1]", "[1,2]"},
     {"[]", "[1,2,3]"}},
    {SCHEMA,
     "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"},{\"type\":\"integer\"}],\"maxItems\":3,"
     "\"contains\":{\"type\":\"integer\"},\"minContains\":2}",
     {"[null,1,2]"},
     {"[null,1]", "[null,1,null]", "[null]", "[1,2]"}},
    {SCHEMA,
     "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"object\",\"required\":[\"v\",\"id\"],"
     "\"properties\":{\"v\":{\"type\":\"boolean\"},\"id\":{\"type\":\"integer\"}}}}",
     {"[]", "[{\"v\":true,\"id\":1}]", "[{\"v\":true,\"id\":1},{\"v\":true,\"id\":12}, {\"v\":true,\"id\":2}]"},
     {"[{\"v\":true,\"id\":1},{\"v\":false,\"id\":1}]", "[{\"v\":true}]"}},
    {SCHEMA,
     "{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":2,"
     "\"items\":{\"type\":\"array\",\"items\":{\"enum\":[1,2]}}}",
     {"[[1],[2]]", "[[1,1],[2,1]]"},
     {"[]", "[[1],[1]]", "[[],[1]]", "[[1],[2],[1,2]]", "[[1],[2],"}},
    {SCHEMA,
     "{\"type\":\"array\",\"uniqueItems\":true}",
     {"[]", "[1,\"1\",null,true]", "[\"a\",[\"b\",{}],[\"c\"]]"},
     {"[1,1]", "[\"a\",\"a\"]", "[[\"a\",1],[\"a\",2]]", "[{}]"}},
    {SCHEMA,
     "{\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"boolean\"}],\"items\":false}",
     {"[]", "[\"x\"]", "[\"x\",true]"},
     {"[true]", "[\"x\",true,1]", "[\"x\",1]"}},
    {SCHEMA,
     "{\"enum\":[\"a\",\"ab\",1,1.0,null,{\"k\":[1]}]}",
     {"\"a\"", "\"ab\"", "1", "1.0", "null", "{\"k\":[1]}", "{\"k\": [1]}"},
     {"\"b\"", "\"abc\"", "1.00", "{}", "{\"k\":[]}", "nul"}},
    {SCHEMA,
     "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"ab\",1,true]},\"minItems\":2}",
     {"[\"a\",\"ab\"]", "[1, \"a\"]", "[true,1,\"ab\",\"a\"]", "[\n  true,\n  1\n]"},
     {"[]", "[1]", "[1,1]", "[\"a\",1,\"a\"]", "[true,1,\"ab\",\"a\",1]", "[\"\\u0061\",\"a\"]"}},
    {SCHEMA,
     "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":[\"number\",\"string\",\"null\"]}}",
     {"[]", "[0]", "[1,\"1\",null]", "[-1.5,1.5,15]", "[\"\",\"\\n\",\"/\"]"},
     {"[1,1]", "[1,1.0]", "[8,8.00000000000000003]", "[1e1,10]", "[0,-0]", "[null,null]", "[\"a\",\"\\u0061\"]",
      "[\"a\", \"b\", \"a\"]"}},
    {SCHEMA,
     "{\"type\":\"array\",\"uniqueItems\":true,"
     "\"items\":{\"type\":\"string\",\"maxLength\":1,\"pattern\":\"^[xy]?$\"}}",
     {"[\"x\",\"\",\"y\"]", "[\"\"]"},
     {"[\"xy\"]", "[\"x\",\"y\",\"\",\"x\"]"}},
    {SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"type\":\"array\","
     "\"uniqueItems\":true,\"items\":{\"type\":\"integer\"}}},\"b\":{\"type\":\"null\"}}}",
     {"{\"a\":[[1,2],[1,2]],\"b\":null}", "{\"a\":[[],[]]}"},
     {"{\"a\":[[1,1]]}", "{\"a\":[[1],[2,2]]}"}},
    {SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":[\"integer\",\"string\"]},\"contains\":{\"const\":5},\"maxItems\":3}",
     {"[5]", "[1,5]", "[\"a\",2,5]", "[5,5,5]"},
     {"[]", "[1]", "[1,2,3]", "[1,2,3,5]"}},
    {SCHEMA,
     "{\"type\":\"array\",\"not\":{\"items\":{\"type\":\"integer\"}}}",
     {"[\"a\"]", "[1,null]", "[1,2,3,{}]"},
     {"[]", "[1]", "[1,2]"}},
    {SCHEMA,
     "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":false},"
     "{\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"integer\"}},\"additionalProperties\":false}]}",
     {"{\"a\":1}", "{\"b\":1}"},
     {"{}", "{\"a\":1,\"b\":1}"}},
    {SCHEMA,
     "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":{},\"c\":{}},\"propertyNames\":{\"maxLength\":1}},"
     "{\"type\":\"object\",\"patternProperties\":{\"^c\":{\"type\":\"null\"}},\"required\":[\"a\"]}]}",
     {"{\"c\":1}", "{\"a\":1,\"c\":2}"},
     {"{\"a\":1}", "{\"a\":1,\"c\":null}"}},
    {SCHEMA, /* a value in a value is not one of the list because the outer one is */
     "{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"oneOf\":[{\"enum\":[{\"a\":\"x\"},\"b\",10]},{\"anyOf\":["
     "{\"type\":\"object\",\"additionalProperties\":{\"$ref\":\"#/$defs/t\"}},{\"type\":\"string\"}]}]}}}",
     {"10", "\"x\""},
     {"{\"a\":\"x\"}", "\"b\""}},
    {SCHEMA,
     "{\"type\":\"number\",\"not\":{\"enum\":[0,2]}}",
     {"1", "-1", "0.5", "-0.5", "20"},
     {"0", "-0", "0.0", "-0.00", "2", "2.0"}},
    {SCHEMA, "{\"enum\":[2.0,-1.00,1.5]}", {"2.0", "2", "-1.00", "-1", "1.5"}, {"2.00", "1", "20", "-1.0"}},
    {SCHEMA,
     "{\"type\":\"number\",\"minimum\":0}",
     {"0", "0.5", "1e-06", "12.5E+3", "0e1"},
     {"-1", "-1e-3", "1e", "1e100"}},
    {SCHEMA,
     "{\"type\":\"number\",\"exclusiveMinimum\":0}",
     {"1", "0.5", "1e-06", "0.00010e-9", "12.5E+3"},
     {"0", "0e5", "0.0", "-1", "0.000e3"}},
    {SCHEMA,
     "{\"type\":\"string\",\"format\":\"regex\"}",
     {"\"a{3,16}$\"", "\"[a-z'(]{2,}\"", "\"x{9,10}\"", "\"^\\\\s*(it|[^'\\\"]+)\""},
     {"\"a{3,2}\"", "\"a{16,3}\"", "\"(\"", "\"[\"", "\"[z-a]\"", "\"*\""}},
    {SCHEMA, "{\"enum\":[1,2,\"x\"],\"type\":\"integer\"}", {"1", "2"}, {"\"x\"", "3"}},
    {SCHEMA, "{\"const\":\"a\\\"b\\n\"}", {"\"a\\\"b\\n\""}, {"\"a\"", "\"a\\\"b\\u000a\""}},
    {SCHEMA,
     "{\"type\":\"integer\",\"minimum\":-12,\"maximum\":105}",
     {"-12", "-1", "0", "9", "42", "99", "100", "105"},
     {"-13", "-20", "106", "110", "200", "1000", "00", "+1", "1.0", "-"}},
    {SCHEMA, "{\"type\":\"integer\",\"exclusiveMinimum\":0}", {"1", "10", "99999"}, {"0", "-1", "01"}},
    {SCHEMA,
     "{\"type\":\"number\",\"minimum\":0.5,\"maximum\":2}",
     {"0.5", "0.50", "0.6", "1", "1.99", "2", "2.0", "0.55"},
     {"0.4", "0.49", "0", "2.01", "3", "-1", "1e0", ".5"}},
    {SCHEMA,
     "{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}",
     {"0.1", "0.01", "0.99"},
     {"0", "0.0", "1", "1.0", "-0.5"}},
    {SCHEMA, "{\"type\":\"number\",\"maximum\":-1.25}", {"-1.25", "-1.3", "-2", "-10.0"}, {"-1.2", "-1", "0", "1.25"}},
    {SCHEMA,
     "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"abc\"", "\"\xC3\xA9\xC3\xA9\"", "\"\\n\\u0041\"", "\"a\\ud83d\\ude00\""},
     {"\"a\"", "\"abcd\"", "\"\xC3\xA9\""}},
    {SCHEMA,
     "{\"type\":\"string\",\"pattern\":\"^[a-z]+-\\\\d{2}$\"}",
     {"\"a-12\"", "\"abc-99\""},
     {"\"-12\"", "\"a-1\"", "\"a-123\"", "\"A-12\"", "\"a-\\u0031\\u0032\""}},
    {SCHEMA,
     "{\"type\":\"string\",\"pattern\":\"b\\\"\",\"maxLength\":4}",
     {"\"b\\\"\"", "\"ab\\\"c\"", "\"\\nb\\\"\""},
     {"\"b\"", "\"aaab\\\"\"", "\"b\"\""}},
    {SCHEMA,
     "{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-29\"", "\"2023-12-31\""},
     {"\"2023-02-29\"", "\"2023-13-01\"", "\"2023-4-01\"", "\"x\""}},
    {SCHEMA, "{\"type\":\"string\",\"format\":\"uuid\"}", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123\""}},
    {SCHEMA, "{\"type\":[\"string\",\"null\"]}", {"\"x\"", "null"}, {"1", "true"}},
    {SCHEMA, "{\"type\":\"boolean\",\"nullable\":true}", {"true", "false", "null"}, {"1"}},
    {SCHEMA,
     "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]},"
     "{\"type\":\"object\",\"properties\":{\"a\":{\"const\":2},\"b\":{}},\"required\":[\"a\",\"b\"]}]}",
     {"{\"a\":1}", "{\"a\":2,\"b\":[]}"},
     {"{\"a\":2}", "{\"a\":1,\"b\":1}", "{}"}},
    {SCHEMA,
     "{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":3}},\"required\":[\"a\"]},"
     "{\"properties\":{\"a\":{\"maximum\":5},\"b\":{\"type\":\"null\"}},\"required\":[\"b\"]}],\"type\":\"object\"}",
     {"{\"a\":3,\"b\":null}", "{\"a\":5,\"b\":null}"},
     {"{\"a\":6,\"b\":null}", "{\"a\":2,\"b\":null}", "{\"a\":3}"}},
    {SCHEMA,
     "{\"$ref\":\"#/$defs/tree\",\"$defs\":{\"tree\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":"
     "\"integer\"},\"c\":{\"type\":"
     "\"array\",\"items\":{\"$ref\":\"#/$defs/tree\"}}},\"required\":[\"v\",\"c\"]}}}",
     {"{\"v\":1,\"c\":[]}", "{\"v\":1,\"c\":[{\"v\":2,\"c\":[{\"v\":3,\"c\":[]}]}]}"},
     {"{\"v\":1}", "{\"v\":1,\"c\":[{}]}"}},
    {SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"next\":{\"$ref\":\"#\"}}}",
     {"{}", "{\"next\":{\"next\":{}}}"},
     {"{\"next\":1}"}},
    {SCHEMA,
     "{\"type\":\"object\",\"maxProperties\":1,\"properties\":{\"a\":true,\"b\":true}}",
     {"{}", "{\"a\":1}", "{\"b\":1}"},
     {"{\"a\":1,\"b\":1}"}},
    {SCHEMA,
     "{\"type\":\"object\",\"minProperties\":1,\"additionalProperties\":{\"type\":\"null\"}}",
     {"{\"x\":null}", "{\"x\":null,\"y\":null}"},
     {"{}", "{\n}"}},
    {SCHEMA, "true", {"1", "\"x\"", "[{}]"}, {"", "x"}},
    {REGEX, "[ab]{2,3}|x*", {"", "ab", "bba", "x", "xxxx"}, {"a", "abab", "xa"}},
    {REGEX, "\\w+@\\w+\\.(com|org)", {"a@b.com", "a_1@b2.org"}, {"a@b", "@b.com", "a@b.net", "a@b.comx"}},
    {REGEX,
     ".\xC3\xA9[^a-z\xE2\x82\xAC]",
     {"x\xC3\xA9Z", "\xF0\x9F\x98\x80\xC3\xA9\xC3\xA9"},
     {"x\xC3\xA9z", "\xC3\xA9\xC3\xA9\xE2\x82\xAC", "\n\xC3\xA9Z"}},
    {REGEX, "^(?:a|b)$|c", {"a", "b", "c"}, {"", "ab", "d"}},
    {REGEX, "a(?<n>b)?c*?", {"a", "ab", "abcc", "ac"}, {"b", "abb"}},
    {REGEX,
     "(?i:stra\u00dfe|[k-m]+)!",
     {"Stra\xC3\x9F"
      "E!",
      "\xC5\xBFTRA\xE1\xBA\x9E"
      "e!",
      "kLm!", "\xE2\x84\xAA!"},
     {"strasse!", "n!", "kk"}},
    {REGEX, "(?i:[^a\u03c3]\\W)x", {"b-x", "B!x"}, {"A-x", "\xCF\x82-x", "\xCE\xA3-x", "b\xE2\x84\xAAx", "b-X"}},
    {REGEX, "(?i:a(?-i:b)c)d", {"AbCd", "abcd", "abCd"}, {"ABcd", "abcD"}},
    {REGEX, "(?s:.).", {"\na", "ab"}, {"a\n", "a"}},
    {REGEX, "(?is)a.|b", {"A\n", "a.", "B"}, {"b\n", "c"}},
    {REGEX, "(?i:\\p{Lu}\\w)", {"aa", "AZ", "\xC3\xA9\xC5\xBF"}, {"1a", "a-"}},
    {REGEX, "(?:(?!ab)[a-c])*", {"", "a", "ba", "acb", "bbcaa"}, {"ab", "cab", "aab"}},
    {REGEX, "x(?=a|$)a?", {"x", "xa"}, {"xb", "a"}},
    {REGEX, "(?=.*\\d)(?=.*[a-z])(?!.*\\s)[a-z0-9 ]{3,5}", {"a1b", "12c", "abc9"}, {"abc", "123", "a1", "a 1"}},
    {REGEX, "[a-c]*(?<=ab|c)", {"ab", "c", "aab", "bc"}, {"", "a", "b", "ba"}},
    {REGEX, "[a-c]+(?<!b)(?<!^a)", {"c", "ba", "aa"}, {"a", "b", "ab", ""}},
    {REGEX, ".*\\bno\\b.*", {"no", "a no", "no.", "x-no!"}, {"know", "nob", "n o", "", "_no"}},
    {REGEX, "\\w+\\B\\w", {"ab", "abc"}, {"a", "a b"}},
    {REGEX, "\\p{Lu}\\p{L}*", {"A", "\xC3\x89t\xC3\xA9", "\xD0\x9F\xD1\x80"}, {"a", "\xC3\xA9", "A1", ""}},
    {REGEX, "[\\p{Nd}\\p{Script=Greek}_]+", {"1", "\xCE\xB1_", "\xD9\xA3"}, {"a", "\xC3\xA9", "\xC2\xBD"}},
    {REGEX, "\\P{gc=Letter}[^\\P{Alpha}a]", {"1b", "\xF0\x9F\x98\x80\xC3\xA9"}, {"ab", "1a", "11"}},
    {REGEX, "\\p{Extended_Pictographic}\\p{White_Space}?", {"\xF0\x9F\x98\x80", "\xC2\xA9 "}, {"1", " "}},
    {CHOICE, "[\"yes\",\"no\",\"yes, please\"]", {"yes", "no", "yes, please"}, {"", "ye", "yes,", "nope", "\"no\""}},
};

static void test_languages(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof languages / sizeof *languages; i++) {
        const language *l = &languages[i];
        kakeya_grammar *g;
        kakeya_error error = {0};
        if (open_grammar(l->kind, l->grammar, &g, &error) != KAKEYA_OK) fail_msg("%s: %s", l->grammar, error.message);
        for (size_t k = 0; k < 16 && l->accepted[k]; k++)
            if (read_text(g, l->accepted[k]) != READ_COMPLETE) fail_msg("%s: refuses %s", l->grammar, l->accepted[k]);
        for (size_t k = 0; k < 16 && l->refused[k]; k++)
            if (read_text(g, l->refused[k]) == READ_COMPLETE) fail_msg("%s: accepts %s", l->grammar, l->refused[k]);
        kakeya_grammar_close(g);
    }
}

/* ------------------------------------------------------------------------------------------------------------ calls */

#define Q "\1"
#define E "\2"

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\",\"minimum\":1},\"unit\":{\"enum\":[\"c\",\"f\"]},"
    "\"list\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"a b\":{\"type\":\"boolean\"}}}}},"
    "\"required\":[\"city\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"get_all\"}}]";

static void test_calls(void **state) {
    (void)state;
    static const char *const accepted[] = {
        "call:get{city:" Q "Rome" Q "}" E,
        "call:get{days:3,city:" Q "a{,}:\n\"" Q ",unit:" Q "c" Q "}" E,
        "call:get{list:[{" Q "a b" Q ":true},{}],city:" Q Q "}" E,
        "call:get_all{}" E,
        "call:get_all{x:1,y:{z:[null," Q "s" Q "]}}" E,
    };
    static const char *const refused[] = {
        "call:get{}" E,
        "call:get{city:Rome}" E,
        "call:get{city:\"Rome\"}" E,
        "call:get{city:" Q "x" Q ",city:" Q "y" Q "}" E,
        "call:get{city:" Q "x" Q ",days:0}" E,
        "call:get{city:" Q "x" Q ", days:1}" E,
        "call:get{city:" Q "x" Q ",unit:" Q "k" Q "}" E,
        "call:get{city:" Q "x" Q ",other:1}" E,
        "call:got{}" E,
        "call:get_al{}" E,
        "get{city:" Q "x" Q "}" E,
        "call:get{city:" Q "x" Q "}",
        "call:get{city:" Q "\xFF" Q "}" E,
    };
    kakeya_grammar *g;
    size_t at;
    assert_int_equal(open_calls(tools, &g, NULL), KAKEYA_OK);
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++)
        if (read_letters(g, g->call, accepted[i], strlen(accepted[i]), true, &at) != READ_COMPLETE)
            fail_msg("refuses %s at byte %zu", accepted[i], at);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (read_letters(g, g->call, refused[i], strlen(refused[i]), true, &at) == READ_COMPLETE)
            fail_msg("accepts %s", refused[i]);
    kakeya_grammar_close(g);
}

/* ----------------------------------------------------------------------------------------------------------- refusals
 */

typedef struct refusal {
    kakeya_grammar_kind kind;
    const char *grammar;
    kakeya_status status;
    const char *message; /* a part of it */
} refusal;

static const refusal refusals[] = {
    {SCHEMA, "{\"not\":{}}", KAKEYA_INVALID_ARGUMENT, "no value"},
    {SCHEMA, "{\"not\":{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"}]},\"type\":\"array\"}",
     KAKEYA_UNSUPPORTED, "schema #/not/prefixItems: not supported where it is negated"},
    {SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"prefixItems\":[{}]}", KAKEYA_UNSUPPORTED,
     "schema #/uniqueItems: not supported where items are listed one by one"},
    {SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[1,2]},\"minItems\":3}",
     KAKEYA_INVALID_ARGUMENT, "no value"},
    {SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\"},\"minItems\":49}",
     KAKEYA_UNSUPPORTED, "schema #/uniqueItems: not supported with minItems above 48"},
    {SCHEMA, "{\"type\":\"array\",\"contains\":{},\"minContains\":11}", KAKEYA_UNSUPPORTED,
     "schema #/minContains: more than 10 is not supported"},
    {SCHEMA, "{\"type\":\"array\",\"prefixItems\":[{}],\"contains\":{},\"maxContains\":2}", KAKEYA_UNSUPPORTED,
     "schema #/maxContains: not supported where items are listed one by one"},
    {SCHEMA, "{\"type\":\"array\",\"contains\":{},\"minContains\":3,\"maxContains\":2}", KAKEYA_INVALID_ARGUMENT,
     "no value"},
    {SCHEMA, "{\"type\":\"array\",\"contains\":{},\"minContains\":3,\"maxItems\":2}", KAKEYA_INVALID_ARGUMENT,
     "no value"},
    {SCHEMA,
     "{\"type\":\"array\",\"prefixItems\":[{}],\"allOf\":[{\"contains\":{\"const\":1}},{\"contains\":{\"const\":2}}]}",
     KAKEYA_UNSUPPORTED, "schema #/allOf/1/contains: not supported beside another one"},
    {SCHEMA, "{\"properties\":{\"a/b\":{\"items\":{\"extends\":{}}}}}", KAKEYA_UNSUPPORTED,
     "schema #/properties/a~1b/items/extends"},
    {SCHEMA, "{\"anyOf\":[{},{\"disallow\":{}}]}", KAKEYA_UNSUPPORTED, "schema #/anyOf/1/disallow: not supported"},
    {SCHEMA, "{\"multipleOf\":1234567.89}", KAKEYA_UNSUPPORTED, "schema #/multipleOf: multiples of 1234567.89"},
    {SCHEMA, "{\"multipleOf\":0}", KAKEYA_FORMAT, "schema #/multipleOf: not a number above 0"},
    {SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"object\"}}", KAKEYA_UNSUPPORTED,
     "schema #/uniqueItems: not supported where items are lists or objects without"},
    {SCHEMA,
     "{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":3,"
     "\"items\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"boolean\"}}}}",
     KAKEYA_INVALID_ARGUMENT, "no value"},
    {SCHEMA, "{\"type\":\"array\",\"maxItems\":1000000001}", KAKEYA_UNSUPPORTED, "schema #/maxItems"},
    {REGEX, "(?<=a(?=b))c", KAKEYA_UNSUPPORTED, "look-around inside of look-behind"},
    {REGEX, "(?<=a$)c", KAKEYA_UNSUPPORTED, "$ inside of look-behind"},
    {REGEX, "(?=a)*b", KAKEYA_FORMAT, "an anchor cannot be repeated"},
    {REGEX, "(?m:a)", KAKEYA_UNSUPPORTED, "flags of groups but i and s are not supported"},
    {REGEX, "a(?i)b", KAKEYA_UNSUPPORTED, "flags of groups but i and s are not supported"},
    {REGEX, "(?-)", KAKEYA_UNSUPPORTED, "flags of groups but i and s are not supported"},
    {REGEX, "(?i", KAKEYA_UNSUPPORTED, "flags of groups but i and s are not supported"},
    {REGEX, "(?i:a", KAKEYA_FORMAT, "( without )"},
    {REGEX, "a(?=b)c", KAKEYA_INVALID_ARGUMENT, "no text"},
    {SCHEMA, "{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", KAKEYA_UNSUPPORTED, "back references"},
    {SCHEMA, "{\"type\":\"string\",\"pattern\":\"[\"}", KAKEYA_FORMAT, "schema #/pattern"},
    {SCHEMA, "{\"type\":\"string\",\"pattern\":\"^a{10}$\",\"maxLength\":9}", KAKEYA_INVALID_ARGUMENT, "no value"},
    {SCHEMA, "{\"type\":\"integer\",\"minimum\":0.2,\"maximum\":0.8}", KAKEYA_INVALID_ARGUMENT, "no value"},
    {SCHEMA, "{\"$ref\":\"http://x/y\"}", KAKEYA_UNSUPPORTED, "http://x/y"},
    {SCHEMA, "{\"$ref\":\"#/$defs/x\"}", KAKEYA_FORMAT, "leads nowhere"},
    {SCHEMA, "{\"$ref\":\"#\"}", KAKEYA_INVALID_ARGUMENT, "no value"},
    {SCHEMA, "{\"allOf\":[{\"$ref\":\"#\"}]}", KAKEYA_INVALID_ARGUMENT, "no value"},
    {SCHEMA, "{\"$ref\":\"#/$defs\",\"minimum\":1,\"$defs\":[1]}", KAKEYA_FORMAT, "not a schema"},
    {SCHEMA, "{\"$ref\":\"#/title\",\"minimum\":1,\"title\":\"x\"}", KAKEYA_FORMAT, "not a schema"},
    {SCHEMA, "{\"minimum\":1,\"anyOf\":[[1]]}", KAKEYA_FORMAT, "schema #/anyOf/0: not a schema"},
    {SCHEMA, "{\"properties\":[{}],\"allOf\":[{\"properties\":{\"a\":{}}}]}", KAKEYA_FORMAT,
     "properties: not an object"},
    {SCHEMA, "{\"properties\":{\"a\":{}},\"allOf\":[{\"properties\":[{}]}]}", KAKEYA_FORMAT,
     "schema #/allOf/0/properties: not an object"},
    {SCHEMA, "{\"required\":{\"x\":\"a\"},\"allOf\":[{\"required\":[\"b\"]}]}", KAKEYA_FORMAT,
     "required: not a list of texts"},
    {SCHEMA, "{\"enum\":[1],\"allOf\":[{\"enum\":{\"x\":1}}]}", KAKEYA_FORMAT, "enum: not a list"},
    {SCHEMA, "false", KAKEYA_INVALID_ARGUMENT, "no value"},
    {SCHEMA, "{\"enum\":[]}", KAKEYA_INVALID_ARGUMENT, "no value"},
    {SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":false},\"required\":[\"a\"]}", KAKEYA_INVALID_ARGUMENT,
     "no value"},
    {SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
     KAKEYA_INVALID_ARGUMENT, "no value"},
    {SCHEMA, "{\"type\":\"object\",\"maxProperties\":1,\"required\":[\"a\",\"b\"]}", KAKEYA_INVALID_ARGUMENT,
     "no value"},
    {SCHEMA, "{\"type\":\"thing\"}", KAKEYA_FORMAT, "thing"},
    {SCHEMA, "{\"const\":\"a\\u0000b\"}", KAKEYA_UNSUPPORTED, "schema #: a text in it contains U+0000"},
    {SCHEMA, "{\"properties\":{\"a\":{\"enum\":[\"\\u0000\"]}}}", KAKEYA_UNSUPPORTED,
     "schema #/properties/a/enum: a text"},
    {SCHEMA, "{\"enum\":[\"a\",\"\\ud83d\"]}", KAKEYA_UNSUPPORTED,
     "schema #/enum: a text in it contains half of a surrogate pair"},
    {SCHEMA, "{\"required\":[\"\\udc00\"]}", KAKEYA_UNSUPPORTED, "schema #/required: a text in it contains half"},
    {SCHEMA, "{\"type\":1}", KAKEYA_FORMAT, "schema #/type"},
    {SCHEMA, "[]", KAKEYA_FORMAT, "not a schema"},
    {SCHEMA, "{", KAKEYA_FORMAT, "schema"},
    {SCHEMA, "{\"type\":\"null\",\"type\":\"null\"}", KAKEYA_FORMAT, "type"},
    {REGEX, "\\p{Foo}", KAKEYA_UNSUPPORTED, "the property Foo is not supported"},
    {REGEX, "\\p{scx=Grek}", KAKEYA_UNSUPPORTED, "the property scx=Grek"},
    {REGEX, "\\pL", KAKEYA_FORMAT, "\\p needs a property in braces"},
    {REGEX, "\\p{L", KAKEYA_FORMAT, "\\p needs"},
    {REGEX, "(", KAKEYA_FORMAT, "without )"},
    {REGEX, "a**", KAKEYA_FORMAT, "counter"},
    {REGEX, "a{100001}", KAKEYA_UNSUPPORTED, "100000"},
    {REGEX, "(a|b)*a(a|b){18}", KAKEYA_UNSUPPORTED, "too large"},
    {REGEX, "a^", KAKEYA_INVALID_ARGUMENT, "no text"},
    {CHOICE, "[]", KAKEYA_FORMAT, "choice"},
    {CHOICE, "[1]", KAKEYA_FORMAT, "choice"},
};

static void test_refusals(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const refusal *r = &refusals[i];
        kakeya_grammar *g;
        kakeya_error error = {0};
        kakeya_status status = open_grammar(r->kind, r->grammar, &g, &error);
        if (status != r->status || !strstr(error.message, r->message))
            fail_msg("%s: status %d, \"%s\"; expected %d, \"%s\"", r->grammar, (int)status, error.message,
                     (int)r->status, r->message);
        assert_null(g);
    }
}

static void test_refused_tools(void **state) {
    (void)state;
    static const struct {
        const char *tools;
        kakeya_status status;
        const char *message;
    } cases[] = {
        {"[]", KAKEYA_INVALID_ARGUMENT, "are declared"},
        {"{}", KAKEYA_FORMAT, "not a list"},
        {"[{\"name\":\"a b\"}]", KAKEYA_FORMAT, "tools[0]"},
        {"[{\"name\":\"a\"},{\"name\":\"a\"}]", KAKEYA_FORMAT, "tools[1]"},
        {"[{\"name\":\"a\",\"parameters\":{\"type\":\"array\"}}]", KAKEYA_INVALID_ARGUMENT, "no object"},
        {"[{\"name\":\"a\",\"parameters\":false}]", KAKEYA_INVALID_ARGUMENT, "tool 0: no value"},
        {"[{\"name\":\"a\",\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{\"$ref\":\"#\"}},"
         "\"required\":[\"x\"]}}]",
         KAKEYA_INVALID_ARGUMENT, "tool 0: no value"},
        {"[{\"name\":\"a\",\"parameters\":{\"properties\":{\"x\":{\"disallow\":{}}}}}]", KAKEYA_UNSUPPORTED,
         "tools[0].parameters #/properties/x/disallow"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kakeya_grammar *g;
        kakeya_error error = {0};
        kakeya_status status = open_calls(cases[i].tools, &g, &error);
        if (status != cases[i].status || !strstr(error.message, cases[i].message))
            fail_msg("%s: status %d, \"%s\"", cases[i].tools, (int)status, error.message);
    }
}

/* Messages number tools and call their parameters as the caller does. */
static void test_named_tools(void **state) {
    (void)state;
    static const char declared[] =
        "[{\"name\":\"a\"},{\"name\":\"b\",\"parameters\":{\"properties\":{\"x\":{\"disallow\":{}}}}}]";
    static const size_t places[] = {3, 7};
    static const struct {
        size_t n;
        const char *parameters, *message;
    } cases[] = {{2, "input_schema", "tools[7].input_schema #/properties/x/disallow"},
                 {1, NULL, "tools[1].parameters #/properties/x/disallow"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kakeya_grammar_options options = {.size = sizeof options,
                                                .calls = KAKEYA_CALLS_REQUIRED,
                                                .tools = declared,
                                                .tools_bytes = sizeof declared - 1,
                                                .tool_places = places,
                                                .n_tool_places = cases[i].n,
                                                .parameters = cases[i].parameters};
        kakeya_grammar *g;
        kakeya_error error = {0};
        assert_int_equal(kakeya_grammar_open(demo_tokenizer(), &options, &g, &error), KAKEYA_UNSUPPORTED);
        if (!strstr(error.message, cases[i].message)) fail_msg("%s", error.message);
    }
}

/* Too much of everything: refused in time, whatever it is. */
static void test_limits(void **state) {
    (void)state;
    kakeya_grammar *g;
    kakeya_error error;
    size_t room = 1 << 20, n = 0;
    char *text = malloc(room);
    assert_non_null(text);
    n += (size_t)snprintf(text, room, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < 5000; i++)
        n += (size_t)snprintf(text + n, room - n, "%s\"p%d\":{\"type\":\"null\"}", i ? "," : "", i);
    snprintf(text + n, room - n, "}}");
    assert_int_equal(open_grammar(SCHEMA, text, &g, &error), KAKEYA_UNSUPPORTED);
    assert_non_null(strstr(error.message, "more than 5000 schemas"));
    n = (size_t)snprintf(text, room, "{\"type\":\"string\",\"allOf\":[");
    for (int i = 0; i < 20; i++)
        n += (size_t)snprintf(text + n, room - n, "%s{\"anyOf\":[{\"minLength\":%d},{\"maxLength\":%d}]}", i ? "," : "",
                              i, 100 - i);
    snprintf(text + n, room - n, "]}");
    assert_int_equal(open_grammar(SCHEMA, text, &g, &error), KAKEYA_UNSUPPORTED);
    assert_non_null(strstr(error.message, "combinations of alternatives"));
    n = (size_t)snprintf(text, room, "{\"anyOf\":[");
    for (int i = 0; i < 17; i++)
        n += (size_t)snprintf(text + n, room - n, "%s{\"type\":\"object\",\"properties\":{\"p%d\":{}}}", i ? "," : "",
                              i);
    snprintf(text + n, room - n, "]}");
    assert_int_equal(open_grammar(SCHEMA, text, &g, &error), KAKEYA_UNSUPPORTED);
    assert_non_null(strstr(error.message, "schema #: 17 alternatives begin"));
    n = (size_t)snprintf(text, room, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < 80; i++)
        n += (size_t)snprintf(text + n, room - n, "%s\"p%d\":{\"pattern\":\"^(.{%d}|x)$\",\"type\":\"string\"}",
                              i ? "," : "", i, 150 + i);
    snprintf(text + n, room - n, "}}");
    assert_int_equal(open_grammar(SCHEMA, text, &g, &error), KAKEYA_UNSUPPORTED);
    if (!strstr(error.message, "too many states")) fail_msg("%s", error.message);
    n = (size_t)snprintf(text, room, "{\"enum\":[");
    for (int i = 0; i < 10001; i++) n += (size_t)snprintf(text + n, room - n, "%s%d", i ? "," : "", i);
    snprintf(text + n, room - n, "]}");
    assert_int_equal(open_grammar(SCHEMA, text, &g, &error), KAKEYA_UNSUPPORTED);
    free(text);
}

/* Nesting ends where nothing may be opened any more, and what is open can be closed. */
static void test_depth(void **state) {
    (void)state;
    kakeya_grammar *g;
    size_t at;
    char text[256];
    assert_int_equal(open_grammar(SCHEMA, "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", &g, NULL), KAKEYA_OK);
    memset(text, '[', 128);
    assert_int_equal(read_letters(g, g->content, text, 128, false, &at), READ_REFUSED);
    assert_int_equal(at, GRAMMAR_MAX_DEPTH);
    memset(text + GRAMMAR_MAX_DEPTH, ']', GRAMMAR_MAX_DEPTH);
    assert_int_equal(read_letters(g, g->content, text, 128, false, &at), READ_COMPLETE);
    kakeya_grammar_close(g);
    assert_int_equal(open_grammar(SCHEMA, "true", &g, NULL), KAKEYA_OK);
    memset(text, '[', 128);
    assert_int_equal(read_letters(g, g->content, text, 128, false, &at), READ_REFUSED);
    assert_int_equal(at, GRAMMAR_MAX_FREE_DEPTH);
    kakeya_grammar_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_languages),     cmocka_unit_test(test_calls),       cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_refused_tools), cmocka_unit_test(test_named_tools), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
