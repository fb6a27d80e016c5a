/* Context-free rules as people write them: GBNF, as llama.cpp has it, and Lark's syntax. */
#ifndef KAKEYA_GRAMMAR_RULES_H
#define KAKEYA_GRAMMAR_RULES_H

#include "grammar/program.h"
#include "grammar/schema.h"

enum { RULES_MAX_BYTES = 262144, RULES_MAX_RULES = 2000 };

typedef enum rule_kind {
    RULE_TEXT,   /* these bytes */
    RULE_REGEX,  /* what a regular expression matches: classes, too */
    RULE_NAME,   /* what another rule is */
    RULE_ROW,    /* children */
    RULE_CHOICE, /* children */
    RULE_REPEAT, /* one child, minimum to maximum times */
    RULE_JSON,   /* JSON under the schema that the text is */
} rule_kind;

#define RULE_NONE UINT32_MAX /* no node; no maximum; no rule */

typedef struct rule_node {
    rule_kind kind;
    uint32_t child, sibling;
    uint32_t minimum, maximum;
    uint32_t rule; /* RULE_NAME */
    unsigned line; /* RULE_JSON */
    char *text;    /* malloc'ed */
    size_t bytes;
} rule_node;

typedef struct grammar_rule {
    char *name;
    uint32_t body; /* RULE_NONE: it is used, but not there */
    unsigned line;
    bool terminal; /* of Lark: what is ignored is not ignored within it */
} grammar_rule;

typedef struct rule_set {
    rule_node *nodes;
    uint32_t n_nodes, node_capacity;
    grammar_rule *rules;
    uint32_t n_rules, rule_capacity;
    uint32_t start;   /* the rule that the text is */
    uint32_t ignored; /* a node; RULE_NONE: nothing */
} rule_set;

/* Reads GBNF where there is a "::=", otherwise Lark. Messages say the line. KAKEYA_FORMAT: it is malformed;
 * KAKEYA_UNSUPPORTED: it uses what is not read. */
kakeya_status rules_parse(const char *text, size_t bytes, rule_set *out, kakeya_error *error);
void rules_free(rule_set *rules);
/* Rules of which an alternative begins with themselves become repetitions of what follows. False where memory ends. */
bool rules_unfold(rule_set *rules);
/* Schemas in the rules are compiled by `schemas`, into the same program, and kept in the list `documents`, which
 * outlives the compiler. KAKEYA_UNSUPPORTED: a rule begins with itself, through others or behind what may be empty. */
kakeya_status rules_compile(const rule_set *rules, grammar_program *program, schema_compiler *schemas, cJSON *documents,
                            uint32_t *node, kakeya_error *error);

#endif
