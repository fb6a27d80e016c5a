/* Keywords of JSON Schema, wherever they stand: what is accepted is valid, whatever holds together with what. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "unit/grammar_support.h"

static kakeya_status open_schema(const char *schema, bool any_order, kakeya_grammar **g, kakeya_error *error) {
    kakeya_grammar_options o;
    KAKEYA_INIT(&o);
    o.kind = KAKEYA_GRAMMAR_JSON_SCHEMA;
    o.text = schema;
    o.text_bytes = strlen(schema);
    o.any_order = any_order;
    return kakeya_grammar_open(demo_tokenizer(), &o, g, error);
}

/* ----------------------------------------------------------------------------------------------- nothing is lost */

/* A keyword, and a value that breaks it. */
static const struct {
    const char *keyword, *value;
} broken[] = {
    {"\"not\":{\"const\":\"x\"}", "\"x\""},
    {"\"not\":{\"enum\":[1,{},[3]]}", "{}"},
    {"\"not\":{\"enum\":[1,{},[3]]}", "[3]"},
    {"\"if\":{\"type\":\"string\"},\"then\":{\"const\":\"y\"}", "\"x\""},
    {"\"if\":{\"type\":\"null\"},\"else\":{\"const\":\"y\"}", "\"x\""},
    {"\"multipleOf\":2", "3"},
    {"\"divisibleBy\":2", "3"},
    {"\"minimum\":5", "3"},
    {"\"exclusiveMaximum\":3", "3"},
    {"\"maximum\":3,\"exclusiveMaximum\":true", "3"},
    {"\"pattern\":\"y\"", "\"x\""},
    {"\"format\":\"date\"", "\"x\""},
    {"\"maxLength\":0", "\"x\""},
    {"\"patternProperties\":{\".*\":{\"type\":\"string\"}}", "{\"b\":1}"},
    {"\"propertyNames\":{\"maxLength\":0}", "{\"b\":1}"},
    {"\"propertyNames\":{\"enum\":[\"a\"]}", "{\"b\":1}"},
    {"\"dependentRequired\":{\"b\":[\"c\"]}", "{\"b\":1}"},
    {"\"dependentSchemas\":{\"b\":{\"required\":[\"c\"]}}", "{\"b\":1}"},
    {"\"dependencies\":{\"b\":[\"c\"]}", "{\"b\":1}"},
    {"\"dependencies\":{\"b\":{\"required\":[\"c\"]}}", "{\"b\":1}"},
    {"\"unevaluatedProperties\":false", "{\"b\":1}"},
    {"\"additionalProperties\":{\"type\":\"null\"}", "{\"b\":1}"},
    {"\"properties\":{\"b\":{\"type\":\"null\"}}", "{\"b\":1}"},
    {"\"minProperties\":2", "{\"b\":1}"},
    {"\"maxProperties\":0", "{\"b\":1}"},
    {"\"required\":[\"c\"]", "{\"b\":1}"},
    {"\"contains\":{\"const\":1}", "[3]"},
    {"\"contains\":{\"const\":3},\"minContains\":2", "[3]"},
    {"\"contains\":{\"const\":3},\"maxContains\":0,\"minContains\":0", "[3]"},
    {"\"uniqueItems\":true", "[3,3]"},
    {"\"unevaluatedItems\":false", "[3]"},
    {"\"items\":{\"type\":\"null\"}", "[3]"},
    {"\"prefixItems\":[{\"type\":\"null\"}]", "[3]"},
    {"\"items\":[{}],\"additionalItems\":false", "[3,3]"},
    {"\"maxItems\":0", "[3]"},
    {"\"minItems\":2", "[3]"},
    {"\"extends\":{\"type\":\"null\"}", "3"},
    {"\"disallow\":\"number\"", "3"},
    {"\"const\":\"y\"", "\"x\""},
    {"\"enum\":[\"y\"]", "\"x\""},
    {"\"type\":\"null\"", "\"x\""},
    {"\"oneOf\":[{\"minLength\":1},{\"maxLength\":1}]", "\"x\""},
    {"\"anyOf\":[{\"const\":1},{\"const\":2}]", "3"},
    {"\"allOf\":[{\"const\":1}]", "3"},
};

/* Where it stands: %s is the keyword, and in the value its value. */
static const struct {
    const char *schema, *value;
} places[] = {
    {"{%s}", "%s"},
    {"{\"allOf\":[{%s}]}", "%s"},
    {"{\"allOf\":[{\"type\":[\"string\",\"number\",\"array\",\"object\"]},{%s}]}", "%s"},
    {"{\"allOf\":[{}],%s}", "%s"},
    {"{\"anyOf\":[{%s}],\"title\":\"t\"}", "%s"},
    {"{\"anyOf\":[{%s},{\"type\":\"boolean\"}],\"type\":[\"string\",\"number\",\"array\",\"object\"]}", "%s"},
    {"{\"oneOf\":[{%s}]}", "%s"},
    {"{\"oneOf\":[{%s},{\"type\":\"boolean\"}],\"type\":[\"string\",\"number\",\"array\",\"object\"]}", "%s"},
    {"{\"$ref\":\"#/$defs/a\",\"type\":[\"string\",\"number\",\"array\",\"object\"],\"$defs\":{\"a\":{%s}}}", "%s"},
    {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{}},%s}", "%s"},
    {"{\"if\":true,\"then\":{%s}}", "%s"},
    {"{\"if\":false,\"else\":{%s}}", "%s"},
    {"{\"not\":{\"not\":{%s}}}", "%s"},
    {"{\"nullable\":true,%s}", "%s"},
    {"{\"type\":\"array\",\"items\":{%s}}", "[%s]"},
    {"{\"type\":\"array\",\"prefixItems\":[{%s}]}", "[%s]"},
    {"{\"type\":\"array\",\"unevaluatedItems\":{%s}}", "[%s]"},
    {"{\"type\":\"object\",\"additionalProperties\":{%s}}", "{\"z\":%s}"},
    {"{\"type\":\"object\",\"unevaluatedProperties\":{%s}}", "{\"z\":%s}"},
    {"{\"type\":\"object\",\"patternProperties\":{\"z\":{%s}}}", "{\"z\":%s}"},
    {"{\"type\":\"object\",\"properties\":{\"z\":{%s}}}", "{\"z\":%s}"},
    {"{\"allOf\":[{\"properties\":{\"z\":{%s}}},{\"properties\":{\"z\":{}}}]}", "{\"z\":%s}"},
    {"{\"dependentSchemas\":{\"z\":{\"properties\":{\"z\":{%s}}}}}", "{\"z\":%s}"},
};

static void fill(const char *form, const char *with, char *out, size_t room) {
    const char *hole = strstr(form, "%s");
    snprintf(out, room, "%.*s%s%s", (int)(hole - form), form, with, hole + 2);
}

static void test_nothing_is_lost(void **state) {
    (void)state;
    char schema[1024], value[256];
    int compiled = 0;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        for (size_t k = 0; k < 2 * sizeof places / sizeof *places; k++) {
            kakeya_grammar *g;
            kakeya_error error = {0};
            fill(places[k / 2].schema, broken[i].keyword, schema, sizeof schema);
            fill(places[k / 2].value, broken[i].value, value, sizeof value);
            kakeya_status status = open_schema(schema, k % 2, &g, &error);
            if (strstr(error.message, "appears twice")) continue; /* the place has the keyword already */
            if (status != KAKEYA_OK && !strstr(error.message, "schema #"))
                fail_msg("%s: refused without a pointer: %s", schema, error.message);
            if (status != KAKEYA_OK) continue;
            compiled++;
            if (read_text(g, value) == READ_COMPLETE) fail_msg("%s accepts %s", schema, value);
            kakeya_grammar_close(g);
        }
    }
    assert_true(compiled > 1200); /* and not simply refused */
}

/* ------------------------------------------------------------------------------------------------------------ tables
 */

typedef struct language {
    const char *schema;
    const char *accepted[10], *refused[10];
} language;

static const language ordered[] = {
    /* what stands beside a schema stays beside it */
    {"{\"allOf\":[{\"properties\":{\"foo\":{}}}],\"additionalProperties\":{\"type\":\"boolean\"},\"type\":\"object\"}",
     {"{\"foo\":true}", "{\"bar\":true}"},
     {"{\"foo\":1}", "{\"bar\":1}"}},
    {"{\"allOf\":[{\"prefixItems\":[{\"minimum\":3}]}],\"items\":{\"minimum\":5},\"type\":\"array\"}",
     {"[5]", "[7,6]"},
     {"[3]", "[5,4]"}},
    {"{\"type\":\"object\",\"properties\":{\"kind\":{\"enum\":[\"a\",\"b\"]},\"size\":{\"type\":\"integer\"}},"
     "\"required\":[\"kind\"],\"allOf\":[{\"if\":{\"properties\":{\"kind\":{\"const\":\"b\"}}},"
     "\"then\":{\"required\":[\"size\"]}}]}",
     {"{\"kind\":\"a\"}", "{\"kind\":\"a\",\"size\":1}", "{\"kind\":\"b\",\"size\":1}"},
     {"{\"kind\":\"b\"}", "{}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"oneOf\":[{\"required\":[\"a\"]},{\"r"
     "equired\":[\"b\"]}]}",
     {"{\"a\":1}", "{\"b\":1}"},
     {"{\"a\":1,\"b\":2}", "{}"}},
    {"{\"oneOf\":[{\"type\":\"number\"},{\"type\":\"integer\"}]}", {"1.5", "-0.25"}, {"1", "1.0", "\"x\""}},
    {"{\"type\":\"number\",\"anyOf\":[{\"multipleOf\":2},{\"minimum\":5}]}",
     {"4", "5", "7.5", "2.0"},
     {"1", "3", "4.5"}},
    /* what generators write */
    {"{\"type\":\"object\",\"propertyNames\":{\"type\":\"string\"},\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{\"a\":1}", "{}"},
     {"{\"a\":\"x\"}", "{\"a\":1,\"a\":2}"}},
    {"{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"a\",\"b\"]},\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
     {"{\"c\":1}", "{\"a\":1,\"a\":2}"}},
    {"{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-z]{2,}$\"},\"additionalProperties\":"
     "{\"type\":\"null\"}}",
     {"{\"ab\":null,\"cd\":null}"},
     {"{\"a\":null}", "{\"A\":null}", "{\"ab\":1}"}},
    {"{\"type\":\"string\",\"enum\":[\"a\",\"bb\"],\"maxLength\":1}", {"\"a\""}, {"\"bb\""}},
    {"{\"enum\":[1,2,3,\"x\",null],\"not\":{\"enum\":[2,null]},\"maximum\":2}", {"1", "\"x\""}, {"2", "3", "null"}},
    {"{\"type\":\"string\",\"format\":\"password\"}", {"\"a\""}, {"1"}},
    {"{\"type\":\"string\",\"contentEncoding\":\"base64\"}", {"\"YQ==\""}, {"1"}},
    {"{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{\"a\":{\"type\":\"integer\"}},"
     "\"patternProperties\":{\"^x-\":{\"type\":\"string\"}}}",
     {"{\"a\":1,\"x-b\":\"c\"}", "{\"x-\":\"\"}"},
     {"{\"b\":1}", "{\"x-b\":1}", "{\"x-b\":\"c\",\"x-b\":\"d\"}", "{\"x\":\"c\"}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"unevaluatedProperties\":false}",
     {"{\"a\":1}", "{}"},
     {"{\"b\":1}"}},
    {"{\"type\":\"object\",\"allOf\":[{\"properties\":{\"a\":{}}}],\"unevaluatedProperties\":false}",
     {"{\"a\":1}", "{}"},
     {"{\"b\":1}"}},
    {"{\"type\":\"integer\",\"multipleOf\":5}", {"10", "-5", "0", "100"}, {"1", "12", "5.0"}},
    {"{\"type\":\"number\",\"multipleOf\":0.01}", {"10", "1.25", "0.1", "7.5000"}, {"1.255", "0.001"}},
    {"{\"type\":\"integer\",\"multipleOf\":1200,\"maximum\":10000}", {"1200", "9600"}, {"1100", "12000", "120"}},
    {"{\"type\":\"number\",\"minimum\":-1.7976931348623157e+308}", {"10", "-3.5"}, {"\"x\""}},
    {"{\"type\":\"integer\",\"minimum\":1e-310}", {"1"}, {"0", "-1"}},
    {"{\"type\":\"string\",\"pattern\":\"^(?!\\\\.)[a-z.]+$\"}", {"\"a.b\"", "\"a\""}, {"\".b\"", "\"\""}},
    {"{\"type\":\"string\",\"pattern\":\"^(?=.*\\\\d)(?=.*[a-z]).{3,5}$\"}",
     {"\"a12\"", "\"1bcde\""},
     {"\"abc\"", "\"123\"", "\"a1\"", "\"abcde1\""}},
    {"{\"type\":\"string\",\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}],\"maxLength\":3}",
     {"\"ab\"", "\"bxa\""},
     {"\"aa\"", "\"axxb\""}},
    {"{\"type\":\"object\",\"properties\":null,\"required\":null}", {"{}", "{\"a\":1}"}, {"1"}},
    {"{\"properties\":{},\"required\":[]}", {"\"a\"", "{}", "1"}, {"a"}},
    {"{\"$id\":\"https://example.org/s.json\",\"$defs\":{\"T\":{\"type\":\"boolean\"},\"U\":{\"$anch"
     "or\":\"u\",\"type\":\"null\"}},"
     "\"anyOf\":[{\"$ref\":\"https://example.org/s.json#/$defs/T\"},{\"$ref\":\"#u\"}]}",
     {"true", "null"},
     {"1"}},
    {"{\"type\":\"object\",\"minProperties\":2,\"maxProperties\":3,\"properties\":{\"a\":{},\"b\":{}"
     ",\"c\":{},\"d\":{}},"
     "\"required\":[\"c\"]}",
     {"{\"a\":1,\"c\":1}", "{\"a\":1,\"b\":1,\"c\":1}", "{\"c\":1,\"d\":1}"},
     {"{\"c\":1}", "{\"a\":1,\"b\":1,\"c\":1,\"d\":1}", "{\"a\":1,\"b\":1}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"dependentRequired\":{\"a\":[\"c\"]}}",
     {"{}", "{\"a\":1,\"c\":1}", "{\"b\":1}", "{\"c\":1}"},
     {"{\"a\":1}", "{\"a\":1,\"b\":1}"}},
    /* lengths are counted */
    {"{\"type\":\"string\",\"pattern\":\"^.{1,5000}$\"}", {"\"a\"", "\"\xC3\xA9\""}, {"\"\""}},
    {"{\"type\":\"string\",\"pattern\":\"^\\\\S+@\\\\S+$\",\"maxLength\":7}",
     {"\"a@b.c\"", "\"aaa@bbb\""},
     {"\"aaaa@bbb\"", "\"a\""}},
    {"{\"type\":\"string\",\"pattern\":\"^(ab)*$\",\"minLength\":3,\"maxLength\":1000}",
     {"\"abab\""},
     {"\"ab\"", "\"aba\""}},
};

static const language unordered[] = {
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"null\"}},"
     "\"required\":[\"a\"]}",
     {"{\"a\":1}", "{\"b\":null,\"a\":1}", "{\"x\":[],\"a\":1,\"y\":{}}", "{\"a\":1,\"ab\":1,\"\":2}"},
     {"{}", "{\"b\":null}", "{\"a\":1,\"a\":1}", "{\"a\":1,\"x\":1,\"x\":2}", "{\"x\":1,\"a\":1,\"x\":2}",
      "{\"a\":\"s\"}", "{\"\\u0061\":1}"}},
    {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"object\"},\"maxProperties\":2}",
     {"{\"a\":{\"k\":1},\"b\":{\"k\":1}}", "{\"a\\\"\":{}}"},
     {"{\"a\":{},\"b\":{},\"c\":{}}", "{\"a\":{},\"a\":{}}", "{\"a\":{\"k\":1,\"k\":2}}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false,\"minProperties\":2}",
     {"{\"b\":1,\"a\":2}"},
     {"{\"a\":1}", "{\"b\":1,\"c\":1}"}},
};

/* Formats hold what their RFCs say, and nothing else. */
static const struct {
    const char *format;
    const char *accepted[14], *refused[14];
} formats[] = {
    {"email",
     {"a@b.c", "first.middle.last@company.co.uk", "joe@mail.sub.department.university.ac.uk", "o'neil+x@a-b.org",
      "\\\"a b\\\"@x.y", "a@[127.0.0.1]", "a@[IPv6:::1]"},
     {"a", "@b.c", "a@", ".a@b.c", "a..b@c.d", "a@b..c", "a@-b.c", "a b@c.d", "a@[300.0.0.1]"}},
    {"uri",
     {"http://ec2-54-1-2-3.eu-west-1.compute.amazonaws.com/", "file:///etc/hosts", "https://user@host/",
      "postgres://u:p@localhost:5432/db", "http://[::1]:8080/", "data:text/plain,hi", "https://my_bucket.example.com/x",
      "mailto:a@b.c", "urn:isbn:0451450523", "http://a/%7Eb?q=1&r=/?#f", "http:"},
     {"a", "//a/b", "/x", "http://a b/", "http://a/%zz", "1http://a", "http://[::1", "http://a:b/", ""}},
    {"uri-reference", {"a", "//a/b", "/x", "../x?y#z", "", "http://a"}, {"a b", "\\\\x", "%"}},
    {"hostname", {"a", "a.b.c.d.e", "A-1.b", "localhost"}, {"", "-a", "a-", "a..b", "a_b", "xn--a", "a."}},
    {"date-time",
     {"2024-01-01T00:00:00.123456789Z", "2016-12-31T23:59:60Z", "1990-12-31t15:59:60-08:00",
      "2024-02-29T23:59:59+23:59"},
     {"2023-02-29T00:00:00Z", "2024-01-01T24:00:00Z", "2024-01-01T00:00:00", "2016-12-31T22:59:60Z",
      "2024-01-01 00:00:00Z", "2024-01-01T00:00:61Z", "1990-12-31T15:59:60-07:00"}},
    {"date", {"0476-09-04", "2000-02-29"}, {"1900-02-29", "2024-13-01", "2024-04-31", "24-01-01"}},
    {"time",
     {"00:00:00Z", "12:34:56.7+05:30", "05:29:60+05:30"},
     {"12:34:56", "12:34Z", "25:00:00Z", "05:29:60+05:00"}},
    {"duration", {"P1Y2M3DT4H5M6S", "PT1M", "P2W", "P12345D"}, {"P", "PT", "P1", "1D", "P1Y1W", "PT1D", "P1S"}},
    {"uuid",
     {"2EB8AA08-AA98-11EA-B4AA-73B441D16380", "2eb8aa08-aa98-11ea-b4aa-73b441d16380"},
     {"2eb8aa08aa9811eab4aa73b441d16380", "2eb8aa08-aa98-11ea-b4aa-73b441d1638",
      "2eb8aa08-aa98-11ea-b4aa-73b441d1638g"}},
    {"uuid4",
     {"2EB8AA08-AA98-41EA-B4AA-73B441D16380", "2eb8aa08-aa98-41ea-94aa-73b441d16380"},
     {"2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2eb8aa08-aa98-41ea-c4aa-73b441d16380",
      "2eb8aa08aa9841eab4aa73b441d16380"}},
    {"uuid7", {"2eb8aa08-aa98-71ea-b4aa-73b441d16380"}, {"2eb8aa08-aa98-41ea-b4aa-73b441d16380"}},
    {"ipv4", {"0.0.0.0", "255.255.255.255"}, {"256.0.0.1", "1.2.3", "1.2.3.4.5", "01.2.3.4"}},
    {"ipv6",
     {"::", "::1", "1::", "1:2:3:4:5:6:7:8", "::ffff:192.168.0.1", "1:2:3:4:5:6:1.2.3.4", "1::8", "1:2:3:4:5:6:7::"},
     {":", "1", "1::2::3", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "::ffff:1.2.3", "12345::", "1:2:3:4:5:6:7:8::", ":1"}},
    {"json-pointer", {"", "/a", "/a~0~1/0"}, {"a", "/~", "/~2"}},
    {"relative-json-pointer", {"0", "1/a", "12#"}, {"", "01", "-1", "/a"}},
    {"uri-template", {"a", "http://x/{y}{?z,w*}", "{a:3}"}, {"{", "a b", "{}", "{a"}},
    {"iri", {"http://\xC3\xA9/\xC3\xBC"}, {"\xC3\xA9", "http://a b"}},
    {"regex",
     {"", "a.b*", "^[a-z]+$", "(a|b){2,}?", "(?:xy?)z", "\\\\d+"},
     {"(", "[", "*", "a**", ")", "a{2,1", "\\\\"}},
};

static void test_formats(void **state) {
    (void)state;
    char schema[100], text[200];
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        kakeya_grammar *g;
        snprintf(schema, sizeof schema, "{\"type\":\"string\",\"format\":\"%s\"}", formats[i].format);
        assert_int_equal(open_schema(schema, false, &g, NULL), KAKEYA_OK);
        for (size_t k = 0; k < 28; k++) {
            const char *own = k < 14 ? formats[i].accepted[k] : formats[i].refused[k - 14];
            if (!own) continue;
            snprintf(text, sizeof text, "\"%s\"", own);
            if ((read_text(g, text) == READ_COMPLETE) != (k < 14)) fail_msg("%s: %s", formats[i].format, own);
        }
        kakeya_grammar_close(g);
    }
}

static void try_languages(const language *languages, size_t n, bool any_order) {
    for (size_t i = 0; i < n; i++) {
        const language *l = &languages[i];
        kakeya_grammar *g;
        kakeya_error error = {0};
        if (open_schema(l->schema, any_order, &g, &error) != KAKEYA_OK) fail_msg("%s: %s", l->schema, error.message);
        for (size_t k = 0; k < 10 && l->accepted[k]; k++)
            if (read_text(g, l->accepted[k]) != READ_COMPLETE) fail_msg("%s: refuses %s", l->schema, l->accepted[k]);
        for (size_t k = 0; k < 10 && l->refused[k]; k++)
            if (read_text(g, l->refused[k]) == READ_COMPLETE) fail_msg("%s: accepts %s", l->schema, l->refused[k]);
        kakeya_grammar_close(g);
    }
}

static void test_languages(void **state) {
    (void)state;
    try_languages(ordered, sizeof ordered / sizeof *ordered, false);
    try_languages(unordered, sizeof unordered / sizeof *unordered, true);
}

/* Keys of a finite language run out: nothing may lead to one that has come. */
static void test_keys_run_out(void **state) {
    (void)state;
    static const char schema[] = "{\"type\":\"object\",\"additionalProperties\":false,\"patternProperties\":{"
                                 "\"^(x[0-9]{3}|y+)$\":{\"type\":\"null\"},\"^z$\":false}}";
    kakeya_grammar *g;
    size_t at;
    assert_int_equal(open_schema(schema, true, &g, NULL), KAKEYA_OK);
    assert_int_equal(read_text(g, "{\"x000\":null,\"x001\":null,\"y\":null,\"yy\":null}"), READ_COMPLETE);
    static const char again[] = "{\"x000\":null,\"x000";
    assert_int_equal(read_letters(g, g->content, again, sizeof again - 1, false, &at), READ_REFUSED);
    assert_int_equal(at, sizeof again - 2); /* at the last letter, not behind it */
    assert_int_equal(read_text(g, "{\"z\":null}"), READ_REFUSED);
    kakeya_grammar_close(g);
}

/* Hundreds of objects that a constant tells apart, some of which hold all of them again. */
static void test_many_objects(void **state) {
    (void)state;
    enum { OBJECTS = 300 };
    size_t room = 1 << 17, n = 0;
    char *schema = malloc(room), text[100];
    assert_non_null(schema);
    n += (size_t)snprintf(schema, room, "{\"$ref\":\"#/$defs/e\",\"$defs\":{\"e\":{\"oneOf\":[{\"type\":\"null\"}");
    for (int i = 0; i < OBJECTS; i++)
        n += (size_t)snprintf(schema + n, room - n,
                              ",{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"k%d\"},\"v\":%s},"
                              "\"required\":[\"kind\",\"v\"],\"additionalProperties\":false}",
                              i, i % 2 ? "{\"type\":\"integer\"}" : "{\"$ref\":\"#/$defs/e\"}");
    snprintf(schema + n, room - n, "]}}}");
    for (int any_order = 0; any_order < 2; any_order++) {
        kakeya_grammar *g;
        kakeya_error error = {0};
        if (open_schema(schema, any_order, &g, &error) != KAKEYA_OK) fail_msg("%s", error.message);
        for (int i = 0; i < OBJECTS; i++) {
            snprintf(text, sizeof text, "{\"kind\": \"k%d\", \"v\": %s}", i, i % 2 ? "7" : "{\"kind\":\"k1\",\"v\":1}");
            if (read_text(g, text) != READ_COMPLETE) fail_msg("refuses %s", text);
            snprintf(text, sizeof text, "{\"kind\": \"k%d\", \"v\": %s}", i, i % 2 ? "null" : "7");
            if (read_text(g, text) == READ_COMPLETE) fail_msg("accepts %s", text);
        }
        assert_int_equal(read_text(g, "{\"kind\":\"k1\",\"kind\":\"k1\",\"v\":1}"), READ_REFUSED);
        assert_int_equal(read_text(g, "{\"kind\":\"k300\",\"v\":1}"), READ_REFUSED);
        kakeya_grammar_close(g);
    }
    free(schema);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_lost), cmocka_unit_test(test_languages),    cmocka_unit_test(test_formats),
        cmocka_unit_test(test_keys_run_out),    cmocka_unit_test(test_many_objects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
