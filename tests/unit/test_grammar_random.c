/* Compilers and automaton against independent readings: random regular expressions against sets of positions, random
 * limits of numbers against arithmetic, random schemas against a validator, in both directions.
 * Whole runs only: test_grammar has the tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <locale.h>
#include <stdio.h>

#include "base/random.h"
#include "grammar/numbers.h"
#include "grammar/regex.h"
#include "unit/grammar_support.h"
#include "unit/naive_schema.h"

static uint64_t seed, drawn;

static int draw(int n) { return (int)(random_uniform_at(seed, drawn++) * n); }

static void begin(uint64_t own) {
    seed = own;
    drawn = 0;
}

static bool accepts(const dfa *d, const char *text, size_t n) {
    unsigned at = 0;
    for (size_t i = 0; i < n; i++) {
        at = dfa_next(d, at, (unsigned char)text[i]);
        if (at == DFA_REFUSED) return false;
    }
    return d->flags[at] & DFA_ACCEPTS;
}

/* --------------------------------------------------------------------------------------------- regular expressions */

/* An expression as text, and the places where its matches end: bit k of `from` is a match that begins behind k
 * characters. */
typedef struct expression {
    char text[400];
    int kind, minimum, maximum;
    const struct expression *a, *b;
    char set[8];
    bool inverted;
} expression;

enum { EMPTY, SET, ROW, CHOICE, REPEAT, START, END, AHEAD, NOT_AHEAD, EDGE, BEHIND, NOT_BEHIND, KINDS };
static expression pool[200];
static int pooled;

static void spell(expression *e) {
    const char *a = e->a ? e->a->text : "", *b = e->b ? e->b->text : "";
    FILE *out = fmemopen(e->text, sizeof e->text, "w");
    assert_non_null(out);
    if (e->kind == EMPTY) fprintf(out, "(?:)");
    if (e->kind == SET) fprintf(out, e->set[1] || e->inverted ? "[%s%s]" : "%s%s", e->inverted ? "^" : "", e->set);
    if (e->kind == ROW) fprintf(out, "(%s)(?:%s)", a, b);
    if (e->kind == CHOICE) fprintf(out, "(?:%s|%s)", a, b);
    if (e->kind == REPEAT && e->maximum < 0 && e->minimum < 2)
        fprintf(out, "(%s)%c", a, e->minimum ? '+' : '*');
    else if (e->kind == REPEAT && e->maximum < 0)
        fprintf(out, "(%s){%d,}", a, e->minimum);
    else if (e->kind == REPEAT)
        fprintf(out, "(%s){%d,%d}", a, e->minimum, e->maximum);
    if (e->kind == START) fprintf(out, "^");
    if (e->kind == END) fprintf(out, "$");
    if (e->kind == AHEAD) fprintf(out, "(?=%s)", a);
    if (e->kind == NOT_AHEAD) fprintf(out, "(?!%s)", a);
    if (e->kind == BEHIND) fprintf(out, "(?<=%s)", a);
    if (e->kind == NOT_BEHIND) fprintf(out, "(?<!%s)", a);
    if (e->kind == EDGE) fprintf(out, "(?:\\%c)", e->inverted ? 'B' : 'b');
    assert_int_equal(fclose(out), 0);
}

/* behind: inside of a look-behind, where less is understood. */
static const expression *make(int depth, bool behind) {
    expression *e = &pool[pooled++];
    *e = (expression){.kind = depth > 0 ? draw(behind ? END : KINDS) : SET};
    e->inverted = draw(4) == 0;
    if (e->kind == SET) {
        int n = 1 + draw(2);
        for (int i = 0; i < n; i++) e->set[i] = (char)('a' + draw(3));
    }
    bool looks = e->kind >= AHEAD && e->kind != EDGE;
    behind = behind || e->kind == BEHIND || e->kind == NOT_BEHIND;
    if (e->kind == ROW || e->kind == CHOICE || e->kind == REPEAT || looks) e->a = make(depth - 1, behind);
    if (e->kind == ROW || e->kind == CHOICE) e->b = make(depth - 1, behind);
    e->minimum = draw(3);
    e->maximum = draw(2) ? e->minimum + draw(3) : -1;
    spell(e);
    return e;
}

static unsigned ends(const expression *e, const char *text, size_t n, unsigned from) {
    unsigned to = 0, reached;
    switch (e->kind) {
    case EMPTY:
        return from;
    case SET:
        for (size_t i = 0; i < n; i++)
            if (from >> i & 1 && (strchr(e->set, text[i]) != NULL) != e->inverted) to |= 1u << (i + 1);
        return to;
    case ROW:
        return ends(e->b, text, n, ends(e->a, text, n, from));
    case CHOICE:
        return ends(e->a, text, n, from) | ends(e->b, text, n, from);
    case REPEAT:
        for (int i = 0; i < e->minimum; i++) from = ends(e->a, text, n, from);
        to = from;
        for (int i = e->minimum; e->maximum < 0 || i < e->maximum; i++) {
            reached = to | ends(e->a, text, n, to);
            if (reached == to) break;
            to = reached;
        }
        return to;
    case START:
        return from & 1;
    case END:
        return from & 1u << n;
    case BEHIND:
        return from & ends(e->a, text, n, (1u << (n + 1)) - 1);
    case NOT_BEHIND:
        return from & ~ends(e->a, text, n, (1u << (n + 1)) - 1);
    default:
        for (size_t i = 0; i <= n; i++) {
            bool edge = (i > 0 && text[i - 1] != ' ') != (i < n && text[i] != ' ');
            bool holds =
                e->kind == EDGE ? edge != e->inverted : (ends(e->a, text, n, 1u << i) != 0) == (e->kind == AHEAD);
            if (holds) to |= from & 1u << i;
        }
        return to;
    }
}

static void test_expressions(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 3000; i++) {
        begin(i);
        pooled = 0;
        const expression *e = make(3, false);
        bool search = draw(2);
        dfa d;
        kakeya_error error = {0};
        kakeya_status status = regex_compile(e->text, strlen(e->text), search ? REGEX_SEARCH : REGEX_WHOLE, &d, &error);
        bool some = false;
        char text[8];
        for (int length = 0; length <= 4; length++) {
            int many = 1;
            for (int k = 0; k < length; k++) many *= 4;
            for (int code = 0; code < many; code++) {
                for (int k = 0, rest = code; k < length; k++, rest /= 4) text[k] = "abc "[rest % 4];
                size_t n = (size_t)length;
                unsigned all = (1u << (n + 1)) - 1;
                bool expected = search ? ends(e, text, n, all) != 0 : ends(e, text, n, 1) >> n & 1;
                some = some || expected;
                if (status == KAKEYA_OK && accepts(&d, text, n) != expected)
                    fail_msg("seed %d: /%s/ (%s) and '%.*s': %s expected", (int)i, e->text, search ? "search" : "whole",
                             length, text, expected ? "a match" : "no match");
            }
        }
        if (status == KAKEYA_INVALID_ARGUMENT && some) fail_msg("seed %d: /%s/ has matches", (int)i, e->text);
        if (status != KAKEYA_OK && status != KAKEYA_INVALID_ARGUMENT)
            fail_msg("seed %d: /%s/: %s", (int)i, e->text, error.message);
        dfa_free(&d);
    }
}

/* ------------------------------------------------------------------------------------------------------------ numbers
 */

static void number_text(char *out, size_t room, int digits) {
    int whole = draw(digits), fraction = draw(3);
    char sign = draw(2) ? '-' : '+';
    int n = snprintf(out, room, "%s%d", sign == '-' ? "-" : "", whole);
    if (fraction == 0) return;
    n += snprintf(out + n, room - (size_t)n, ".");
    for (int i = 0; i < fraction; i++) n += snprintf(out + n, room - (size_t)n, "%d", draw(10));
}

static void test_numbers(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 400; i++) {
        begin(i);
        char low[40], high[40], text[40];
        number_limits l = {.integer = draw(3) == 0};
        int digits = draw(2) ? 30 : 1200;
        number_text(low, sizeof low, digits);
        number_text(high, sizeof high, digits);
        if (draw(4)) l.minimum = low;
        if (draw(4)) l.maximum = high;
        l.above_minimum = draw(2);
        l.below_maximum = draw(2);
        if (!l.minimum && !l.maximum) continue;
        dfa d;
        kakeya_error error = {0};
        kakeya_status status = number_dfa(&l, &d, &error);
        if (status != KAKEYA_OK && status != KAKEYA_INVALID_ARGUMENT) fail_msg("seed %d: %s", (int)i, error.message);
        for (int k = 0; k < 300; k++) {
            number_text(text, sizeof text, digits);
            if (draw(8) == 0) snprintf(text, sizeof text, "%s", draw(2) ? low : high);
            double x = strtod(text, NULL), a = strtod(low, NULL), b = strtod(high, NULL);
            bool valid = (!l.minimum || (l.above_minimum ? x > a : x >= a)) &&
                         (!l.maximum || (l.below_maximum ? x < b : x <= b)) && (!l.integer || !strchr(text, '.'));
            bool accepted = status == KAKEYA_OK && accepts(&d, text, strlen(text));
            bool zero = x == 0 && *text == '-'; /* may be refused */
            if (accepted != valid && !(zero && valid))
                fail_msg("seed %d: %s%s, %s%s%s: %s %s", (int)i, l.minimum ? low : "-",
                         l.above_minimum ? " excluded" : "", l.maximum ? high : "-", l.below_maximum ? " excluded" : "",
                         l.integer ? ", integer" : "", text, accepted ? "accepted" : "refused");
        }
        dfa_free(&d);
    }
}

/* ------------------------------------------------------------------------------------------------------------ schemas
 */

static cJSON *random_schema(int depth);

static void add_limits(cJSON *schema, const char *low_key, const char *high_key, int most) {
    int low = draw(most), high = low + draw(most);
    if (draw(2)) cJSON_AddNumberToObject(schema, low_key, low);
    if (draw(2)) cJSON_AddNumberToObject(schema, high_key, high);
}

static void random_object(cJSON *schema, int depth) {
    static const char *const keys[] = {"a", "ab", "b", "x\"y", "\xC3\xA9", "a b"};
    cJSON *properties = cJSON_AddObjectToObject(schema, "properties"), *required = cJSON_CreateArray();
    cJSON_AddStringToObject(schema, "type", "object");
    for (int i = 0; i < 6; i++) {
        if (draw(2)) continue;
        cJSON_AddItemToObject(properties, keys[i], random_schema(depth - 1));
        if (draw(2)) cJSON_AddItemToArray(required, cJSON_CreateString(keys[i]));
    }
    cJSON_AddItemToObject(schema, "required", required);
    if (draw(3) == 0)
        cJSON_AddItemToObject(schema, "additionalProperties", random_schema(depth - 1));
    else if (draw(4) == 0)
        cJSON_AddBoolToObject(schema, "additionalProperties", false);
}

static cJSON *random_scalar(void) {
    static const char *const texts[] = {"", "a", "a\\\"\n", "\xF0\x9F\x98\x80", "abc"};
    int kind = draw(8);
    if (kind < 2) return cJSON_CreateNumber(draw(2) ? draw(100) - 50 : draw(4) + 0.5);
    if (kind == 2) return cJSON_CreateNull();
    if (kind == 3) return cJSON_CreateBool(draw(2));
    return cJSON_CreateString(texts[draw(5)]);
}

static cJSON *random_schema(int depth) {
    static const char *const patterns[] = {"^a*b?$", "^[a-z]+$", "b", "^(x|yy)+$", "^.{2,3}$"};
    cJSON *schema = cJSON_CreateObject(), *list;
    int kind = draw(depth > 0 ? 10 : 6);
    switch (kind) {
    case 0:
        cJSON_AddStringToObject(schema, "type", "integer");
        add_limits(schema, draw(2) ? "minimum" : "exclusiveMinimum", "maximum", 40);
        break;
    case 1:
        cJSON_AddStringToObject(schema, "type", "number");
        add_limits(schema, "minimum", draw(2) ? "maximum" : "exclusiveMaximum", 7);
        break;
    case 2:
        cJSON_AddStringToObject(schema, "type", "string");
        add_limits(schema, "minLength", "maxLength", 4);
        break;
    case 3:
        cJSON_AddStringToObject(schema, "type", "string");
        cJSON_AddStringToObject(schema, "pattern", patterns[draw(5)]);
        if (draw(3) == 0) cJSON_AddNumberToObject(schema, "maxLength", 2 + draw(5));
        break;
    case 4:
        list = cJSON_AddArrayToObject(schema, "enum");
        for (int i = 0; i <= draw(3); i++) cJSON_AddItemToArray(list, random_scalar());
        break;
    case 5:
        list = cJSON_AddArrayToObject(schema, "type");
        cJSON_AddItemToArray(list, cJSON_CreateString(draw(2) ? "boolean" : "integer"));
        cJSON_AddItemToArray(list, cJSON_CreateString("null"));
        break;
    case 6:
        cJSON_AddStringToObject(schema, "type", "array");
        cJSON_AddItemToObject(schema, "items", random_schema(depth - 1));
        add_limits(schema, "minItems", "maxItems", 3);
        break;
    case 7:
        list = cJSON_AddArrayToObject(schema, draw(2) ? "anyOf" : "oneOf");
        for (int i = 0; i <= draw(3); i++) cJSON_AddItemToArray(list, random_schema(depth - 1));
        break;
    default:
        random_object(schema, depth);
    }
    return schema;
}

/* A value of the schema, if one can be thought of; in the schema's order. */
static cJSON *random_value(const cJSON *schema) {
    static const char *const texts[] = {"", "a", "ab", "aab", "xyy", "xx", "\xC3\xA9\"", "\\\t", "b", "abcdef", "bb"};
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(schema, "enum"), *item;
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(schema, "type");
    if (list) return cJSON_Duplicate(cJSON_GetArrayItem(list, draw(cJSON_GetArraySize(list))), true);
    list = cJSON_GetObjectItemCaseSensitive(schema, "anyOf");
    if (!list) list = cJSON_GetObjectItemCaseSensitive(schema, "oneOf");
    if (list) return random_value(cJSON_GetArrayItem(list, draw(cJSON_GetArraySize(list))));
    const char *name = cJSON_IsArray(type) ? type->child->valuestring : type->valuestring;
    if (cJSON_IsArray(type) && draw(2)) return cJSON_CreateNull();
    if (strcmp(name, "boolean") == 0) return cJSON_CreateBool(draw(2));
    if (strcmp(name, "integer") == 0) return cJSON_CreateNumber(draw(80));
    if (strcmp(name, "number") == 0) return cJSON_CreateNumber(draw(60) / 4.0);
    if (strcmp(name, "string") == 0) return cJSON_CreateString(texts[draw(11)]);
    cJSON *value = strcmp(name, "array") == 0 ? cJSON_CreateArray() : cJSON_CreateObject();
    if (cJSON_IsArray(value)) {
        for (int i = draw(5); i > 0; i--)
            cJSON_AddItemToArray(value, random_value(cJSON_GetObjectItemCaseSensitive(schema, "items")));
        return value;
    }
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(schema, "properties")) {
        bool must = false;
        const cJSON *key;
        cJSON_ArrayForEach(key, cJSON_GetObjectItemCaseSensitive(schema, "required")) must =
            must || strcmp(key->valuestring, item->string) == 0;
        if (must || draw(2)) cJSON_AddItemToObject(value, item->string, random_value(item));
    }
    const cJSON *additional = cJSON_GetObjectItemCaseSensitive(schema, "additionalProperties");
    if (cJSON_IsObject(additional) && draw(2)) cJSON_AddItemToObject(value, "other", random_value(additional));
    return value;
}

static bool is_valid_text(const cJSON *schema, const char *text) {
    cJSON *value = cJSON_ParseWithOpts(text, NULL, true);
    bool valid = value && naive_valid(schema, schema, value);
    cJSON_Delete(value);
    return valid;
}

/* Letters at random, for as long as any is allowed; in the end those that close. Returns the length; the text ends
 * where it is complete. */
static size_t walk(const kakeya_grammar *g, char *text, size_t room) {
    static automaton_state now, next, chosen;
    static const char closing[] = "\"]},:0123456789aeflnrstux-{";
    automaton_begin(g->content, &now);
    for (size_t n = 0; n < room; n++) {
        bool complete = automaton_complete(&g->program, &now);
        if (complete && (n > 30 || draw(3) == 0)) return n;
        int found = 0;
        unsigned letter = 0;
        for (const char *c = closing; n > 30 && *c && !found; c++) {
            if (!automaton_step(&g->program, &now, (unsigned char)*c, &chosen)) continue;
            found = 1;
            letter = (unsigned char)*c;
        }
        for (unsigned c = 0; c < LETTERS && (n <= 30 || !found); c++) {
            if (!automaton_step(&g->program, &now, c, &next) || draw(++found)) continue;
            letter = c;
            automaton_copy(&chosen, &next);
        }
        if (found == 0 && complete) return n;
        if (found == 0) return SIZE_MAX;
        text[n] = (char)letter;
        text[n + 1] = 0;
        automaton_copy(&now, &chosen);
    }
    return room;
}

static void test_random_schemas(void **state) {
    (void)state;
    int compiled = 0, valid = 0, walked = 0;
    for (uint64_t i = 0; i < 3000; i++) {
        begin(i);
        kakeya_grammar *g;
        kakeya_error error = {0};
        cJSON *schema = random_schema(3);
        char *spelled = cJSON_PrintUnformatted(schema), text[2100];
        kakeya_status status = open_grammar(KAKEYA_GRAMMAR_JSON_SCHEMA, spelled, &g, &error);
        if (status != KAKEYA_OK && status != KAKEYA_INVALID_ARGUMENT && !strstr(error.message, "alternatives"))
            fail_msg("seed %d: %s: %s", (int)i, spelled, error.message);
        compiled += status == KAKEYA_OK;
        for (int k = 0; k < 20; k++) { /* what is valid is accepted */
            cJSON *value = random_value(schema);
            char *written = cJSON_PrintUnformatted(value);
            naive_closed = true;
            bool is_valid = is_valid_text(schema, written);
            naive_closed = false;
            if (is_valid) {
                valid++;
                bool narrowed = strstr(spelled, "oneOf") != NULL; /* what others refuse may be left out */
                if (status == KAKEYA_INVALID_ARGUMENT && !narrowed)
                    fail_msg("seed %d: %s has %s", (int)i, spelled, written);
                if (status == KAKEYA_OK && !narrowed && read_text(g, written) != READ_COMPLETE)
                    fail_msg("seed %d: %s: refuses %s", (int)i, spelled, written);
            }
            for (int m = 0; status == KAKEYA_OK && m < 10 && *written; m++) { /* what is accepted is valid */
                size_t at = (size_t)draw((int)strlen(written));
                char before = written[at];
                written[at] = "\",:{}[]0159aby\\ tn"[draw(18)];
                if (read_text(g, written) == READ_COMPLETE && !is_valid_text(schema, written))
                    fail_msg("seed %d: %s: accepts %s", (int)i, spelled, written);
                written[at] = before;
            }
            cJSON_free(written);
            cJSON_Delete(value);
        }
        for (int k = 0; status == KAKEYA_OK && k < 5; k++) { /* and nothing leads nowhere */
            size_t n = walk(g, text, 2000);
            if (n == SIZE_MAX) fail_msg("seed %d: %s: nothing may follow '%s'", (int)i, spelled, text);
            if (n == 2000) continue;
            text[n] = 0;
            walked++;
            if (memchr(text, 0, n) || strstr(text, "\\u0000")) continue; /* no text for C */
            if (!is_valid_text(schema, text)) fail_msg("seed %d: %s: accepts %s", (int)i, spelled, text);
        }
        kakeya_grammar_close(g);
        cJSON_free(spelled);
        cJSON_Delete(schema);
    }
    printf("%d schemas, %d valid values, %d walks\n", compiled, valid, walked);
    assert_true(compiled > 500 && valid > 2000 && walked > 2000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expressions),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_random_schemas),
    };
    (void)setlocale(LC_CTYPE, "C.UTF-8"); /* characters of POSIX expressions */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
