/* Rules in GBNF and in Lark's syntax: texts that they make and do not, and what is refused, with the line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "unit/grammar_support.h"

static const struct {
    const char *rules;
    const char *accepted[8], *refused[8];
} languages[] = {
    {"root ::= \"a\" root \"b\" | \"\"", {"", "ab", "aaabbb"}, {"aab", "ba", "abab"}},
    {"root ::= \"yes\" | \"no\"\n  | \"maybe\" # a comment\n", {"yes", "no", "maybe"}, {"yesno", "may\n"}},
    {"root ::= (\n \"may\" # a comment\n    \"be\"\n)", {"maybe"}, {"may"}},
    {"root  ::= (expr \"=\" ws term \"\\n\")+\nexpr  ::= term ([-+*/] term)*\n"
     "term  ::= ident | num | \"(\" ws expr \")\" ws\nident ::= [a-z] [a-z0-9_]* ws\n"
     "num   ::= [0-9]+ ws\nws    ::= [ \\t]*\n",
     {"a+1=2\n", "(a *(b+3)) = x\n", "a=b\nc=d\n"},
     {"a=b", "a+=b\n", "((a)=b\n", ""}},
    {"root ::= [^\\]\\x41\\u00e9-\\u00eb]{2,3} . \"\\\"\\\\\\U0001F600\"",
     {"bc\n\"\\\xF0\x9F\x98\x80", "\xC3\xA8xyz\"\\\xF0\x9F\x98\x80"},
     {"Abc\"\\\xF0\x9F\x98\x80", "\xC3\xAA"
                                 "bc\"\\\xF0\x9F\x98\x80"}},
    {"root ::= (\"x\" | sub){2,3}\nsub ::= \"(\" root \")\"", {"xx", "(xx)x", "x(x(xxx))x"}, {"x", "(x)x", "xxxx"}},
    {"root ::= root \"b\" | \"\" | \"c\"", {"", "b", "cbb"}, {"a", "bc"}},
    {"start: expr\nexpr: expr \"+\" term | expr \"-\" term -> minus | term\nterm: term \"*\" atom | atom\n"
     "atom: /[0-9]+/ | \"(\" expr \")\"",
     {"1", "1+2*3-4", "(1+2)*(3-(4))*5", "1-1-1-1-1-1-1-1-1-1-1-1-1-1-1-1-1-1-1-1-1-1-1-1"},
     {"", "1+", "+1", "1*+2", "(1", "1+2)"}},
    {"start: start \"+\" start | start \"*\" start | start start | \"-\" start | NAME | \"(\" start \")\"\n"
     "NAME: /[a-z]/",
     {"a", "a+b*c+-d", "(a+b)*(c*d)+e", "abc", "-(ab)c", "a+a+a+a+a+a+a+a+a+a+a+a+a+a+a+a+a+a+a+a+a+a+a+a+a"},
     {"", "+a", "a+", "a**b", "(a", "--"}},
    {"root ::= a \"x\" | \"y\"\na ::= root \"z\"", {"y", "yzx", "yzxzx"}, {"", "yx", "yz"}},
    {"root ::= a\na ::= b \"1\" | \"x\"\nb ::= c \"2\" | \"y\"\nc ::= a \"3\" | \"z\"",
     {"x", "y1", "z21", "x321", "y1321", "z21321"},
     {"x3", "y", "1", "x1"}},
    {"root ::= a\na ::= (b | \"q\") \"1\"\nb ::= a? \"2\"", {"q1", "21", "q121", "212121"}, {"q", "1", "q2"}},
    {"root ::= a\na ::= b | \"k\"\nb ::= a", {"k"}, {"", "kk"}},
    {"start: expr\n?expr: sum | product | atom\nsum: expr \"+\" expr | expr \"-\" expr\nproduct: expr \"*\" expr\n"
     "?atom: getattr | funccall | NAME | \"(\" expr \")\"\ngetattr: atom \".\" NAME\n"
     "funccall: atom \"(\" [args] \")\"\nargs: expr (\",\" expr)*\nNAME: /[a-z]+/\n%ignore \" \"",
     {"a.b(c, d).e", "(a+b)*c", "a+b-c*d.e()", "f()()(x)", "a+b+c+d+e+f+g+h+i+j+k+l+m+n+o+p+q+r+s+t+u+v"},
     {"", "a.", "+a", "a(", "a b", "f(,)"}},
    {"root ::= (\n  ( \"a\" ) |\n\n  \"b\" | # or\n  \"c\"\n)\n  | \"d\" |\n  \"e\"\nother ::= \"x\"",
     {"a", "b", "c", "d", "e"},
     {"", "x", "ax"}},
    {"start: (\"α\"..\"γ\" | \"\U0001F600\" .. \"\U0001F602\")+ [C_COMMENT] [SH_COMMENT]\n"
     "%import common (C_COMMENT, SH_COMMENT)",
     {"αγ", "β/* * / */", "\U0001F601#x", "α/***/#"},
     {"", "δ", "α/*", "α/* */ */", "α#\n"}},
    {"root ::= [\\é\\漢]+ \"\\é\"", {"漢é", "éé"}, {"é", "a"}},
    {"start: start | start \"a\" | \"b\"", {"b", "baa"}, {"", "a", "ab"}},
    {"start: list\nlist: list \",\" item | item\nitem: NUMBER\n%ignore \" \"\n%import common.INT -> NUMBER",
     {"1", "1,2", " 1 , 22,3 "},
     {"", ",1", "1,", "1 1"}},
    {"root ::= item* tail?\nitem ::= \"[\" root \"]\"\ntail ::= \"t\"",
     {"", "t", "[]", "[t]t", "[[][t]]"},
     {"tt", "[", "t[]"}},
    {"root ::= list\nlist ::= [a-z]+ (\",\" list)?", {"a", "ab,c,d,e,f,g,h"}, {"a,", ",a"}},
    {"start: expr\n?expr: term ((\"+\"|\"-\") term)*\n?term: factor ((\"*\"|\"/\") factor)* -> product\n"
     "!factor: NUMBER | \"-\" factor | \"(\" expr \")\"\n%import common.NUMBER\n%import common.WS\n"
     "%ignore WS\n// a comment\n",
     {"1+2", " ( 1 + 2 ) * 3", "-4.5e3 / (2) "},
     {"1+", "(1", "1 2", ""}},
    {"start: greeting \" \" NAME \"!\"i [MARK]\ngreeting: \"hello\"i | \"good\" \" \" (\"morning\" | \"night\")\n"
     "NAME.2: /[A-Z][a-z\\/]+/\nMARK: \"0\"..\"9\" ~ 2..3\n",
     {"hello Bob!", "HELLO A/b!42", "good night Eve!123"},
     {"hi Bob!", "hello bob!", "hello Bob!4"}},
    {"start: _separated{NUMBER, \",\"} | \"(\" _separated{pair{\"k\"i, NUMBER}, \";\"} \")\"\n"
     "_separated{x, sep}: x (sep x)*\n"
     "pair{key, value}: key \"=\" optional{value}\noptional{x}: [x]\nNUMBER: /[0-9]+/\n%ignore \" \"",
     {"1", "1,22 , 3", "(k=1)", "(K= 1;k=;K =33)"},
     {"", "1;2", "(k=1,k=2)", "(1)", "k=1", "1 2 3"}},
    {"start: nested{nested{\"a\"}} other{start_of}\nnested{x}: \"<\" x \">\" | \"[\" other{(x | \"-\")} \"]\"\n"
     "other{start_of}.2: start_of+\nstart_of: \"s\"",
     {"<<a>>s", "[<a>-<a>]ss", "<[a-]>s", "[[a-a]-]s"},
     {"<a>s", "<<a>>", "[]s", "<<->>s"}},
    {"start: /sel.ct/i \" \" /[a-c]+/ \"\u00e9t\u00c9\"i /.*/s\n",
     {"SELECT a\u00c9T\u00e9", "sel\u00e9ct ab\u00e9t\u00e9\n;\n"},
     {"select A\u00e9t\u00e9", "select a"}},
    {"start: /(?i)a./s /(?u)b/", {"A\nb", "axb"}, {"aB", "A\nB"}},
    {"start: \"call \" NAME \" \" %json {\"type\": \"object\", \"properties\": {\"}\": {\"enum\": [1, \"}\"]}}, "
     "\"required\": [\"}\"],\n"
     "\"additionalProperties\": false} \".\"\n  | list\n"
     "list: \"[\" (item (\",\" item)*)? \"]\"\nitem: %json {\"type\": \"integer\"} | list\n"
     "NAME: /[a-z]+/\n",
     {"call f {\"}\": 1}.", "call fg {\"}\":\"}\"}.", "[1,[22,-3],0]", "[]"},
     {"call f {}.", "call f {\"}\": 2}.", "[1.5]", "[1,]", "call f {\"}\": 1}"}},
    {"start: (A\n  | B)+\n  | C\n\nA: \"a\"\nB: \"b\"\nC: \"c\"", {"ab", "c"}, {"ac", ""}},
};

static kakeya_status open_rules(const char *rules, kakeya_grammar **g, kakeya_error *error) {
    return open_grammar(KAKEYA_GRAMMAR_RULES, rules, g, error);
}

static void test_languages(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof languages / sizeof *languages; i++) {
        kakeya_grammar *g;
        kakeya_error error = {0};
        if (open_rules(languages[i].rules, &g, &error) != KAKEYA_OK)
            fail_msg("%s: %s", languages[i].rules, error.message);
        for (size_t k = 0; k < 8 && languages[i].accepted[k]; k++)
            if (read_text(g, languages[i].accepted[k]) != READ_COMPLETE)
                fail_msg("%s: refuses %s", languages[i].rules, languages[i].accepted[k]);
        for (size_t k = 0; k < 8 && languages[i].refused[k]; k++)
            if (read_text(g, languages[i].refused[k]) == READ_COMPLETE)
                fail_msg("%s: accepts %s", languages[i].rules, languages[i].refused[k]);
        kakeya_grammar_close(g);
    }
}

/* A rule that ends with itself needs no depth; one that goes on behind itself ends where there is no room. */
static void test_depth(void **state) {
    (void)state;
    kakeya_grammar *g;
    size_t at;
    char text[2001];
    assert_int_equal(open_rules("root ::= \"a\" more\nmore ::= \",\" root | \"\"", &g, NULL), KAKEYA_OK);
    for (int i = 0; i < 1999; i++) text[i] = i % 2 ? ',' : 'a';
    text[1999] = 0;
    assert_int_equal(read_text(g, text), READ_COMPLETE);
    kakeya_grammar_close(g);
    assert_int_equal(open_rules("root ::= \"(\" root \")\" | \"x\"", &g, NULL), KAKEYA_OK);
    memset(text, '(', 200);
    assert_int_equal(read_letters(g, g->content, text, 200, false, &at), READ_REFUSED);
    assert_in_range(at, 20, GRAMMAR_MAX_DEPTH);
    text[at] = 'x';
    memset(text + at + 1, ')', at);
    assert_int_equal(read_letters(g, g->content, text, 2 * at + 1, false, &at), READ_COMPLETE);
    kakeya_grammar_close(g);
}

static const struct {
    const char *rules;
    kakeya_status status;
    const char *message;
} refusals[] = {
    {"root ::= a \"x\"\na ::= root \"z\"", KAKEYA_UNSUPPORTED, "line 1: a rule that begins with itself"},
    {"root ::= root \"b\"", KAKEYA_UNSUPPORTED, "line 1: a rule that begins with itself, through others"},
    {"root ::= a\na ::= [x]* b \"c\"\nb ::= a?", KAKEYA_UNSUPPORTED,
     "line 1: a rule that begins with itself, through others or after parts that may be empty, is not supported: a"},
    {"root ::= foo", KAKEYA_FORMAT, "line 1: there is no rule foo"},
    {"other ::= \"a\"", KAKEYA_FORMAT, "the start rule root is missing"},
    {"expr: \"a\"", KAKEYA_FORMAT, "the start rule start is missing"},
    {"root ::= \"a\"\nroot ::= \"b\"", KAKEYA_FORMAT, "line 2: the rule root is defined twice"},
    {"root ::= \"a", KAKEYA_FORMAT, "line 1: \" without another"},
    {"\nroot ::= [a-z", KAKEYA_FORMAT, "line 2: [ without ]"},
    {"root ::= [a-", KAKEYA_FORMAT, "[ without ]"},
    {"root ::= [a-\\", KAKEYA_FORMAT, "escape"},
    {"root ::= [a-\\x4", KAKEYA_FORMAT, "hexadecimal"},
    {"root ::= (\"a\"", KAKEYA_FORMAT, "not closed"},
    {"root ::= \"a\")", KAKEYA_FORMAT, ") without ("},
    {"root ::= \"a\"{3,2}", KAKEYA_FORMAT, "backwards"},
    {"root ::= \"\\q\"", KAKEYA_FORMAT, "escape"},
    {"root ::= \"a\" $", KAKEYA_FORMAT, "'$' is not expected"},
    {"root ::= \"a\" $漢字漢字", KAKEYA_FORMAT, "'$漢字漢' is not expected"},
    {"start: \"a\"\n%漢", KAKEYA_UNSUPPORTED, "'%漢' is not supported"},
    {"start: \"a\"\n$", KAKEYA_FORMAT, "not '$'"},
    {"root ::= \"\\ud800\"", KAKEYA_FORMAT, "no character"},
    {"root = \"a\" ::=", KAKEYA_FORMAT, "::= is expected"},
    {"start: /a(?=b)/ \"b\"", KAKEYA_UNSUPPORTED, "/a(?=b)/: look-around and word boundaries are not supported"},
    {"start: /\\bx/", KAKEYA_UNSUPPORTED, "look-around and word boundaries"},
    {"start: /a/x", KAKEYA_UNSUPPORTED, "flag x"},
    {"start: /(/", KAKEYA_FORMAT, "without )"},
    {"start: A\n%import python.NAME", KAKEYA_UNSUPPORTED, "%import"},
    {"start: A\n%import common.NAME", KAKEYA_UNSUPPORTED, "%import of NAME"},
    {"start: \"a\"\n%declare X", KAKEYA_UNSUPPORTED, "'%declare"},
    {"start: t{\"a\"}", KAKEYA_FORMAT, "line 1: there is no template t"},
    {"start: t{\"a\"}\n\nt{x, y}: x", KAKEYA_FORMAT, "line 1: the template t has 2 parameters, not 1"},
    {"start: t{\"a\"}\nt{x}: x\nt{y}: y", KAKEYA_FORMAT, "line 3: the template t is defined twice"},
    {"start: t\nt{x}: x", KAKEYA_FORMAT, "line 1: there is no rule t"},
    {"start: t{\"a\"\nt{x}: x", KAKEYA_FORMAT, "line 2: ': x' is not expected here"},
    {"start: t{}\nt{x}: x", KAKEYA_FORMAT, "line 1: an argument is expected, not '}"},
    {"start: t{\"a\"}\nt{}: x", KAKEYA_FORMAT, "line 2: the name of a parameter is expected, not '}: x'"},
    {"start: t{\"a\"}\nt{x}: x y", KAKEYA_FORMAT, "there is no rule y"},
    {"start: t{\"a\"}\nt{x}: \"b\" t{t{x}}", KAKEYA_UNSUPPORTED, "more than 2000 rules"},
    {"start: t{A, A, A, A, A, A, A, A, A}\nA: \"a\"", KAKEYA_UNSUPPORTED, "more than 8 arguments of a template"},
    {"start: \"a\"\nt{a, b, c, d, e, f, g, h, i}: a", KAKEYA_UNSUPPORTED, "more than 8 parameters of a template"},
    {"start: %json", KAKEYA_FORMAT, "line 1: %json without a schema after it"},
    {"start: %json [1]", KAKEYA_FORMAT, "%json without a schema after it"},
    {"start: \"a\"\n | %json {\"extends\": {}}", KAKEYA_UNSUPPORTED, "grammar, line 2: #/extends: not supported"},
    {"start: \"a\" %json {\"enum\": []}", KAKEYA_INVALID_ARGUMENT, "no value is possible"},
    {"", KAKEYA_FORMAT, "start rule start"},
    {"root ::= \"a\" root", KAKEYA_INVALID_ARGUMENT, "no value is possible"},
};

static void test_refusals(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        kakeya_grammar *g;
        kakeya_error error = {0};
        kakeya_status status = open_rules(refusals[i].rules, &g, &error);
        if (status != refusals[i].status || !strstr(error.message, refusals[i].message))
            fail_msg("%s: status %d, \"%s\"; expected %d, \"%s\"", refusals[i].rules, (int)status, error.message,
                     (int)refusals[i].status, refusals[i].message);
        assert_null(g);
    }
}

/* Templates in one another, and templates of long texts, end where they are too much. */
static void test_large_templates(void **state) {
    (void)state;
    enum { BYTES = 200000 };
    char *rules = malloc(BYTES + 200);
    kakeya_grammar *g;
    kakeya_error error = {0};
    assert_non_null(rules);
    static const char *const heads[] = {"t{x}: x\nstart: ", "start: \"a\"\nt{x}: "}; /* used, and not */
    for (int i = 0; i < 2; i++) {
        strcpy(rules, heads[i]);
        for (size_t at = strlen(rules); at < BYTES; at += 2) memcpy(rules + at, "t{", 3);
        assert_int_equal(open_rules(rules, &g, &error), KAKEYA_UNSUPPORTED);
        assert_non_null(strstr(error.message, "more than 60 nested groups"));
    }
    strcpy(rules, "start: t{\"a\"} t{\"b\"}\nt{x}: x \"");
    size_t n = strlen(rules);
    memset(rules + n, 'y', BYTES - n);
    strcpy(rules + BYTES, "\" t{(x x)}\n");
    assert_int_equal(open_rules(rules, &g, &error), KAKEYA_UNSUPPORTED);
    assert_non_null(strstr(error.message, "templates with their arguments have more than 262144 bytes"));
    free(rules);
}

/* Along 4^30 paths every letter comes to the same few places, each of which is looked at once. */
static void test_work_of_a_letter(void **state) {
    (void)state;
    char rules[4096] = "root ::= r0\nr30 ::= [a-z]+ | \"\"\n", rule[100];
    for (int i = 0; i < 30; i++) {
        snprintf(rule, sizeof rule, "r%d ::= r%d \"A\"? | r%d \"B\"? | r%d\n", i, i + 1, i + 1, i + 1);
        strcat(rules, rule);
    }
    kakeya_grammar *g;
    kakeya_error error = {0};
    if (open_rules(rules, &g, &error) != KAKEYA_OK) fail_msg("%s", error.message);
    assert_int_equal(read_text(g, "abcabcabc"), READ_COMPLETE);
    assert_int_equal(read_text(g, "abcA"), READ_COMPLETE);
    assert_int_equal(read_text(g, "ab1"), READ_REFUSED);
    kakeya_grammar_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_languages),        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_refusals),         cmocka_unit_test(test_large_templates),
        cmocka_unit_test(test_work_of_a_letter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
