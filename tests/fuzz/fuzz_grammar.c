/* Letters and tokens along fixed grammars: nothing leads nowhere, and the mask is what asking every token gives. */
#include "grammar_fuzzing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tools[] =
    "[{\"name\":\"ab\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},"
    "\"b c\":{\"enum\":["
    "\"a\",1]},\"c\":{\"type\":\"array\",\"items\":{\"type\":\"object\"}}},\"required\":[\"c\"],"
    "\"additionalProperties\":"
    "{\"type\":\"number\"}}},{\"name\":\"abc\"}]";

static const struct {
    kakeya_grammar_kind kind;
    const char *text, *tools;
} cases[] = {
    {KAKEYA_GRAMMAR_JSON_OBJECT, NULL, NULL},
    {KAKEYA_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":3},\"ab\":{\"type\":"
     "\"integer\",\"minimum\":-5,"
     "\"maximum\":70},\"b\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}},{"
     "\"pattern\":\"a+b\"}]}},"
     "\"required\":[\"ab\"],\"additionalProperties\":true}",
     NULL},
    {KAKEYA_GRAMMAR_JSON_SCHEMA,
     "{\"anyOf\":[{\"enum\":[\"a\",\"ab\",[1,{\"a\":null}]]},{\"type\":[\"number\",\"boolean\"]},{\"type\":"
     "\"string\",\"format\":"
     "\"date\"},{\"type\":\"string\",\"minLength\":2}]}",
     NULL},
    {KAKEYA_GRAMMAR_REGEX, "(a|ab|abc)*c{2,5}|\\s*\xC3\xA9?", NULL},
    {KAKEYA_GRAMMAR_CHOICE, "[\"\",\"a\",\"abc\",\"a b\"]", NULL},
    {KAKEYA_GRAMMAR_TEXT, NULL, tools},
};
enum { CASES = sizeof cases / sizeof *cases, LONGEST = 128 }; /* bytes: many short inputs find more than a long one */

static void check_mask(const matcher *m, matcher_space *space) {
    uint32_t allowed[16] = {0};
    matcher_mask(m, space, allowed, 16);
    for (int32_t token = 0; token < 16 * 32; token++)
        if ((allowed[token / 32] >> (token % 32) & 1) != matcher_allows(m, space, token)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static kakeya_grammar *grammars[CASES];
    static mem_account account;
    static matcher_space space = {.account = &account};
    static const int32_t stop = 256;
    if (size == 0) return 0;
    size_t i = data[0] % CASES;
    if (!grammars[i])
        grammars[i] = fuzzing_grammar(cases[i].kind, cases[i].text, cases[i].text ? strlen(cases[i].text) : 0,
                                      cases[i].tools, cases[i].tools ? strlen(cases[i].tools) : 0);
    const kakeya_grammar *g = grammars[i];
    if (!g || matcher_space_reserve(&space, g, NULL)) abort();
    if (size > LONGEST) size = LONGEST;
    fuzzing_walk(g, cases[i].tools ? g->call : g->content, data + 1, size - 1);

    matcher *m;
    int masks = 0;
    int32_t forced[8];
    if (matcher_create(g, &stop, 1, NULL, 0, &account, &m, NULL)) abort();
    for (size_t k = 1; k < size; k++) { /* tokens that the data names, or their neighbours */
        int32_t token = (int32_t)(data[k] + 256 * (k % 2)) % 271, tried = 0;
        while (tried < 271 && !matcher_accept(m, &space, (token + tried) % 271)) tried++;
        if (tried == 271) abort();
        if ((token + tried) % 271 == stop) break;
        if (data[k] % 16 > 1 || masks == 1) continue; /* each of these asks every token */
        masks++;
        if (data[k] % 16 == 0) {
            check_mask(m, &space);
        } else {
            int n = matcher_forced(m, &space, forced, 8);
            if (matcher_count_allowed(m, &space, forced, n) != n) abort();
        }
    }
    matcher_destroy(m);
    return 0;
}
