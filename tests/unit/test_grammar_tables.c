/* The tables of docs/reference/grammar.md are those of the code: what is made of each keyword, what of each format is
 * left out, the limits. `test_grammar_tables print` prints them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "grammar/automaton.h"
#include "grammar/formats.h"
#include "grammar/regex_syntax.h"
#include "grammar/rules.h"
#include "grammar/schema.h"
#include "grammar/schema_private.h"

/* With commas between thousands. */
static void put_number(FILE *out, unsigned long n) {
    if (n >= 1000) {
        put_number(out, n / 1000);
        fprintf(out, ",%03lu", n % 1000);
    } else {
        fprintf(out, "%lu", n);
    }
}

static void put_treatment(FILE *out, const schema_keyword *k) {
    const char *limit = strstr(k->treatment, "%u");
    fprintf(out, "%.*s", (int)(limit ? limit - k->treatment : (long)strlen(k->treatment)), k->treatment);
    if (!limit) return;
    put_number(out, k->limit);
    fputs(limit + 2, out);
}

static bool alike(const schema_keyword *a, const schema_keyword *b) {
    return strcmp(a->treatment, b->treatment) == 0 && a->limit == b->limit;
}

/* Those with the same treatment are one row, where the first of them stands. */
static void put_keywords(FILE *out) {
    size_t n;
    const schema_keyword *all = schema_keywords(&n);
    fputs("| keyword | what is made of it |\n|---|---|\n", out);
    for (size_t i = 0; i < n; i++) {
        bool first = true;
        for (size_t k = 0; k < i; k++) first = first && !alike(&all[k], &all[i]);
        if (!first) continue;
        fputs("|", out);
        for (size_t k = i; k < n; k++)
            if (alike(&all[k], &all[i])) fprintf(out, "%s `%s`", k == i ? "" : ",", all[k].name);
        fputs(" | ", out);
        put_treatment(out, &all[i]);
        fputs(" |\n", out);
    }
    fputs("| every other one | ", out);
    put_treatment(out, schema_keyword_of("title"));
    fputs(" |\n", out);
}

static void put_formats(FILE *out) {
    const char *name, *left_out;
    uint32_t most;
    fputs("| format | what of it is left out |\n|---|---|\n", out);
    for (size_t i = 0; (left_out = format_left_out(i, &name, &most)) != NULL; i++) {
        fprintf(out, "| `%s` | %s", name, *left_out ? left_out : most ? "" : "nothing");
        if (most) fprintf(out, "%smore than %u characters", *left_out ? "; " : "", most);
        fputs(" |\n", out);
    }
}

static void put_limits(FILE *out) {
    static const struct {
        const char *what;
        unsigned long limit;
    } limits[] = {
        {"sets of schemas that apply to one value", SCHEMA_MAX_SCHEMAS},
        {"nested schemas", SCHEMA_MAX_LEVELS},
        {"combinations of alternatives for one value", SCHEMA_MAX_TRIED},
        {"combinations in all", SCHEMA_MAX_TRIED_ALL},
        {"values of an enum", SCHEMA_MAX_VALUES},
        {"steps of compiling (they take some tenths of a second)", GRAMMAR_MAX_WORK},
        {"states of all automata of a grammar", GRAMMAR_MAX_STATES},
        {"states of the automaton of one string or expression", DFA_MAX_STATES},
        {"bytes of an expression", REGEX_MAX_BYTES},
        {"nodes", GRAMMAR_MAX_NODES},
        {"alternatives that begin with the same character", GRAMMAR_MAX_BRANCHES},
        {"levels of nested values", GRAMMAR_MAX_DEPTH},
        {"levels where the schema does not restrict values, and in calls", GRAMMAR_MAX_FREE_DEPTH},
        {"keys of an object whose members come in any order; if there are more, the order is the schema's",
         GRAMMAR_MAX_ANY_ORDER},
        {"undeclared keys, or different items, of all open values", AUTOMATON_FREE_WORDS},
        {"undeclared members that `minProperties` may require, or items that `uniqueItems` with `minItems` may require",
         GRAMMAR_COUNTED_OTHERS},
        {"ways to read a text that are followed at once", AUTOMATON_MAX_WAYS},
        {"places at which one letter is read, for one way to read a text", AUTOMATON_MAX_PLACES},
        {"bytes of rules", RULES_MAX_BYTES},
        {"rules", RULES_MAX_RULES},
    };
    fputs("| limit | |\n|---|---|\n", out);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        fprintf(out, "| %s | ", limits[i].what);
        put_number(out, limits[i].limit);
        fputs(" |\n", out);
    }
}

static void (*const tables[])(FILE *) = {put_keywords, put_formats, put_limits};

static char *read_document(void) {
    FILE *in = fopen(KAKEYA_TEST_DATA "/../../docs/reference/grammar.md", "r");
    assert_non_null(in);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, in) > 0);
    fclose(in);
    return text;
}

static void test_tables(void **state) {
    (void)state;
    char *document = read_document();
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        char *table = NULL;
        size_t bytes;
        FILE *out = open_memstream(&table, &bytes);
        assert_non_null(out);
        tables[i](out);
        fclose(out);
        if (!strstr(document, table))
            fail_msg("docs/reference/grammar.md has another table than the code (test_grammar_tables print):\n%s",
                     table);
        free(table);
    }
    free(document);
}

/* schema_keyword_of looks for names by halves. */
static void test_order(void **state) {
    (void)state;
    size_t n;
    const schema_keyword *all = schema_keywords(&n);
    assert_true(n > 40);
    for (size_t i = 0; i < n; i++) {
        if (i && strcmp(all[i - 1].name, all[i].name) >= 0) fail_msg("%s, %s", all[i - 1].name, all[i].name);
        assert_ptr_equal(schema_keyword_of(all[i].name), &all[i]);
    }
    assert_int_equal(schema_keyword_of("title")->kind, KEYWORD_ANNOTATION);
    assert_int_equal(schema_keyword_of("")->kind, KEYWORD_ANNOTATION);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "print") == 0) {
        for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
            tables[i](stdout);
            puts("");
        }
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
