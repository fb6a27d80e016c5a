/* Rules to nodes. What leads back to itself becomes rows, unions and repetitions; all else is an expression each, and
 * its automaton. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/regex.h"
#include "grammar/regex_syntax.h"
#include "grammar/rules.h"

typedef struct rule_state {
    bool recursive, visited, may_be_empty;
    uint32_t node; /* GRAMMAR_NOTHING: not made yet */
} rule_state;

typedef struct compiler {
    const rule_set *r;
    grammar_program *program;
    schema_compiler *schemas;
    cJSON *documents; /* a list: schemas that are referred to while it compiles */
    rule_state *states;
    char *text; /* of an expression: [REGEX_BYTES] */
    size_t n;
    bool too_long;
    bool *nullable;   /* [r->n_nodes]: expressions that match the empty text */
    size_t visits;    /* of nodes, while it is found out what leads to what */
    uint32_t ignored; /* the node of any number of what is ignored; GRAMMAR_NOTHING: not made yet */
    kakeya_status status;
    kakeya_error *error;
} compiler;

enum { REGEX_BYTES = 16000, MAX_STATES = 2000, MAX_LEVELS = 200, VISITS_A_STEP = 2, LETTERS_A_STEP = 16 };

static uint32_t fail(compiler *c, kakeya_status status, const char *what, const char *name, unsigned line) {
    if (!c->status) c->status = error_set(c->error, status, "grammar, line %u: %s %.60s", line, what, name);
    return 0;
}

static bool spend(compiler *c, size_t steps) {
    if (program_spend(c->program, steps)) return true;
    if (!c->status)
        c->status = error_set(c->error, KAKEYA_UNSUPPORTED, "grammar: too large: compiling it takes too long");
    return false;
}

static bool spend_visits(compiler *c) {
    size_t visits = c->visits;
    c->visits = 0;
    return spend(c, 1 + visits / VISITS_A_STEP);
}

static const rule_node *at(const compiler *c, uint32_t node) { return &c->r->nodes[node]; }

/* ------------------------------------------------------------------------------------------- what leads to what */

static bool is_leaf(const rule_node *node) {
    return node->kind == RULE_TEXT || node->kind == RULE_REGEX || node->kind == RULE_JSON;
}

/* Whether the node leads to the rule. */
static bool reaches(compiler *c, uint32_t node, uint32_t rule, bool *seen) {
    const rule_node *own = at(c, node);
    c->visits++;
    if (own->kind == RULE_NAME) {
        if (own->rule == rule) return true;
        if (seen[own->rule]) return false;
        seen[own->rule] = true;
        return reaches(c, c->r->rules[own->rule].body, rule, seen);
    }
    if (is_leaf(own)) return false;
    for (uint32_t i = own->child; i != RULE_NONE; i = at(c, i)->sibling)
        if (reaches(c, i, rule, seen)) return true;
    return false;
}

static bool may_be_empty(compiler *c, uint32_t node) {
    const rule_node *own = at(c, node);
    c->visits++;
    switch (own->kind) {
    case RULE_TEXT:
        return own->bytes == 0;
    case RULE_JSON:
        return false;
    case RULE_REGEX:
        return c->nullable[node];
    case RULE_NAME:
        return c->states[own->rule].may_be_empty;
    case RULE_REPEAT:
        return own->minimum == 0 || may_be_empty(c, own->child);
    case RULE_ROW:
        for (uint32_t i = own->child; i != RULE_NONE; i = at(c, i)->sibling)
            if (!may_be_empty(c, i)) return false;
        return true;
    case RULE_CHOICE:
        for (uint32_t i = own->child; i != RULE_NONE; i = at(c, i)->sibling)
            if (may_be_empty(c, i)) return true;
        return false;
    }
    return false;
}

/* Whether the node may begin with the rule, with nothing read before. */
static bool begins_with(compiler *c, uint32_t node, uint32_t rule, bool *seen) {
    const rule_node *own = at(c, node);
    c->visits++;
    if (own->kind == RULE_NAME) {
        if (own->rule == rule) return true;
        if (seen[own->rule]) return false;
        seen[own->rule] = true;
        return begins_with(c, c->r->rules[own->rule].body, rule, seen);
    }
    if (is_leaf(own)) return false;
    for (uint32_t i = own->child; i != RULE_NONE; i = at(c, i)->sibling) {
        if (begins_with(c, i, rule, seen)) return true;
        if (own->kind == RULE_ROW && !may_be_empty(c, i)) return false;
    }
    return false;
}

/* Whether the empty text matches, of an expression without look-around. */
static bool is_nullable(const regex_tree *t, uint32_t node) {
    const regex_node *own = &t->nodes[node];
    bool all = true, any = false;
    for (uint32_t i = own->child; i != REGEX_NONE; i = t->nodes[i].sibling) {
        bool one = is_nullable(t, i);
        all = all && one;
        any = any || one;
    }
    switch (own->kind) {
    case REGEX_SET:
        return false;
    case REGEX_ONE_OF:
        return any;
    case REGEX_REPEAT:
        return own->minimum == 0 || all;
    default:
        return all;
    }
}

/* Expressions are joined to larger ones, in which look-around would look at what another rule made. */
static void look_at_expressions(compiler *c) {
    for (uint32_t i = 0; i < c->r->n_nodes && !c->status; i++) {
        const rule_node *own = at(c, i);
        regex_tree tree;
        if (own->kind != RULE_REGEX) continue;
        kakeya_status status = regex_parse(own->text, own->bytes, &tree, NULL);
        if (status == KAKEYA_OUT_OF_MEMORY) c->status = error_set(c->error, status, "grammar: out of memory");
        if (status != KAKEYA_OK) continue; /* which is said where it is compiled */
        if (tree.looks)
            c->status =
                error_set(c->error, KAKEYA_UNSUPPORTED,
                          "grammar: /%.60s/: look-around and word boundaries are not supported in rules", own->text);
        else
            c->nullable[i] = is_nullable(&tree, tree.root);
        regex_tree_free(&tree);
    }
}

static void analyse(compiler *c) {
    uint32_t n = c->r->n_rules;
    bool *seen = calloc(n + 1, sizeof *seen);
    if (!seen) {
        c->status = error_set(c->error, KAKEYA_OUT_OF_MEMORY, "grammar: out of memory");
        return;
    }
    for (bool more = true; more && spend_visits(c);) {
        more = false;
        for (uint32_t i = 0; i < n; i++) {
            if (c->states[i].may_be_empty || !may_be_empty(c, c->r->rules[i].body)) continue;
            more = c->states[i].may_be_empty = true;
        }
    }
    for (uint32_t i = 0; i < n && spend_visits(c) && !c->status; i++) {
        memset(seen, 0, n * sizeof *seen);
        c->states[i].recursive = reaches(c, c->r->rules[i].body, i, seen);
        memset(seen, 0, n * sizeof *seen);
        if (c->states[i].recursive && begins_with(c, c->r->rules[i].body, i, seen))
            fail(c, KAKEYA_UNSUPPORTED,
                 "a rule that begins with itself, through others or after parts that may be empty, is not supported:",
                 c->r->rules[i].name, c->r->rules[i].line);
    }
    free(seen);
}

/* ------------------------------------------------------------------------------------------------------ expressions */

static void put(compiler *c, const char *text) {
    size_t n = strlen(text);
    if (c->n + n >= REGEX_BYTES)
        c->too_long = true;
    else
        memcpy(c->text + c->n, text, n + 1), c->n += n;
}

static void put_bytes(compiler *c, const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        char one[12];
        unsigned char byte = (unsigned char)text[i];
        if (byte < 0x80)
            snprintf(one, sizeof one, "\\x%02X", byte);
        else
            snprintf(one, sizeof one, "%c", text[i]);
        put(c, one);
    }
}

/* False: it leads to a rule that leads to itself, or to a schema. ignoring: what is ignored may stand behind each
 * terminal. */
static bool put_node(compiler *c, uint32_t node, bool ignoring, int depth);

static void put_ignored(compiler *c, bool ignoring, int depth) {
    if (!ignoring || c->r->ignored == RULE_NONE) return;
    put(c, "(?:");
    (void)put_node(c, c->r->ignored, false, depth + 1);
    put(c, ")*");
}

static bool put_node(compiler *c, uint32_t node, bool ignoring, int depth) {
    const rule_node *own = at(c, node);
    char counts[40];
    bool regular = true, first = true;
    if (depth > MAX_LEVELS) return false;
    if (own->kind == RULE_JSON || (own->kind == RULE_NAME && c->states[own->rule].recursive)) return false;
    put(c, "(?:");
    switch (own->kind) {
    case RULE_TEXT:
        put_bytes(c, own->text, own->bytes);
        put_ignored(c, ignoring, depth);
        break;
    case RULE_REGEX:
        put(c, "(?:");
        put(c, own->text);
        put(c, ")");
        put_ignored(c, ignoring, depth);
        break;
    case RULE_NAME:
        regular = put_node(c, c->r->rules[own->rule].body, ignoring && !c->r->rules[own->rule].terminal, depth + 1);
        if (c->r->rules[own->rule].terminal) put_ignored(c, ignoring, depth);
        break;
    case RULE_ROW:
    case RULE_CHOICE:
        for (uint32_t i = own->child; i != RULE_NONE && regular && !c->too_long; i = at(c, i)->sibling) {
            if (!first && own->kind == RULE_CHOICE) put(c, "|");
            first = false;
            regular = put_node(c, i, ignoring, depth + 1);
        }
        break;
    case RULE_REPEAT:
        regular = put_node(c, own->child, ignoring, depth + 1);
        if (own->maximum == RULE_NONE)
            snprintf(counts, sizeof counts, "{%u,}", own->minimum);
        else
            snprintf(counts, sizeof counts, "{%u,%u}", own->minimum, own->maximum);
        put(c, counts);
        break;
    case RULE_JSON:
        break;
    }
    put(c, ")");
    return regular;
}

/* ------------------------------------------------------------------------------------------------------------ nodes */

static uint32_t add(compiler *c, node_kind kind) {
    if (c->status) return 0;
    uint32_t node = program_add(c->program, kind, GRAMMAR_JSON, c->error);
    if (node == GRAMMAR_NOTHING) c->status = c->error ? c->error->status : KAKEYA_UNSUPPORTED;
    return node == GRAMMAR_NOTHING ? 0 : node;
}

static void add_child(compiler *c, uint32_t node, uint32_t child) {
    if (!c->status && !program_add_child(&c->program->nodes[node], child))
        c->status = error_set(c->error, KAKEYA_OUT_OF_MEMORY, "grammar: out of memory");
}

/* The automaton of a part, if it is one and is not too large. */
static bool compile_regular(compiler *c, uint32_t node, bool ignoring, uint32_t *out) {
    kakeya_error error = {0};
    dfa made = {0};
    c->n = 0;
    c->too_long = false;
    bool regular = put_node(c, node, ignoring, 0) && !c->too_long;
    if (!spend(c, c->n / LETTERS_A_STEP)) return true;
    if (!regular) return false;
    bool alone = at(c, node)->kind == RULE_REGEX || at(c, node)->kind == RULE_TEXT;
    kakeya_status status = alone ? regex_compile(c->text, c->n, REGEX_WHOLE, &made, &error)
                                 : regex_compile_small(c->text, c->n, MAX_STATES, &made);
    if (!spend(c, program_steps(&made))) {
        dfa_free(&made);
        return true;
    }
    if (status == KAKEYA_INVALID_ARGUMENT) return *out = add(c, NODE_NEVER), true;
    if (status == KAKEYA_UNSUPPORTED && !alone) return false;
    if (status != KAKEYA_OK) {
        c->status = error_set(c->error, status, "grammar: %s", alone ? error.message : "out of memory");
        return true;
    }
    *out = add(c, NODE_DFA);
    if (!c->status && !program_count_states(c->program, &made))
        c->status = error_set(c->error, KAKEYA_UNSUPPORTED,
                              "grammar: too large: the automata of all expressions have too many states");
    if (c->status)
        dfa_free(&made);
    else
        c->program->nodes[*out].dfa = made;
    return true;
}

static uint32_t compile(compiler *c, uint32_t node, bool ignoring, int depth);

static uint32_t compile_rule(compiler *c, uint32_t rule, bool ignoring, int depth) {
    rule_state *own = &c->states[rule];
    if (own->node != GRAMMAR_NOTHING) return own->node;
    own->node = add(c, NODE_UNION);
    uint32_t body = c->status ? 0 : compile(c, c->r->rules[rule].body, ignoring, depth + 1);
    add_child(c, own->node, body);
    return own->node;
}

/* Any number of what is ignored. */
static uint32_t compile_ignored(compiler *c, int depth) {
    if (c->ignored != GRAMMAR_NOTHING) return c->ignored;
    uint32_t repeat = add(c, NODE_REPEAT);
    add_child(c, repeat, compile(c, c->r->ignored, false, depth + 1));
    if (!c->status) c->ignored = repeat;
    return repeat;
}

/* Something, and then what is ignored. */
static uint32_t with_ignored(compiler *c, uint32_t node, bool ignoring, int depth) {
    if (!ignoring || c->r->ignored == RULE_NONE || c->status) return node;
    uint32_t row = add(c, NODE_ROW), repeat = compile_ignored(c, depth);
    add_child(c, row, node);
    add_child(c, row, repeat);
    return row;
}

/* What a row or a choice of one part is. */
static uint32_t only_part(const compiler *c, uint32_t node) {
    for (const rule_node *own = at(c, node); own->kind == RULE_ROW || own->kind == RULE_CHOICE; own = at(c, node)) {
        if (own->child == RULE_NONE || at(c, own->child)->sibling != RULE_NONE) break;
        node = own->child;
    }
    return node;
}

static uint32_t compile_schema(compiler *c, const rule_node *own) {
    char where[60];
    uint32_t made = 0;
    cJSON *schema = NULL;
    snprintf(where, sizeof where, "grammar, line %u", own->line);
    c->status = schema_parse(where, own->text, own->bytes, &schema, c->error);
    if (c->status) return 0;
    if (!cJSON_AddItemToArray(c->documents, schema)) {
        cJSON_Delete(schema);
        c->status = error_set(c->error, KAKEYA_OUT_OF_MEMORY, "grammar: out of memory");
        return 0;
    }
    snprintf(where, sizeof where, "grammar, line %u: #", own->line);
    c->status = schema_compile(c->schemas, schema, where, GRAMMAR_JSON, &made, c->error);
    return made;
}

static uint32_t compile(compiler *c, uint32_t node, bool ignoring, int depth) {
    uint32_t made = 0;
    node = only_part(c, node);
    const rule_node *own = at(c, node);
    if (c->status) return 0;
    if (depth > MAX_LEVELS) {
        c->status = error_set(c->error, KAKEYA_UNSUPPORTED, "grammar: more than %d nested parts", MAX_LEVELS);
        return 0;
    }
    if (compile_regular(c, node, ignoring, &made)) return made;
    switch (own->kind) {
    case RULE_NAME:
        made = compile_rule(c, own->rule, ignoring && !c->r->rules[own->rule].terminal, depth);
        return c->r->rules[own->rule].terminal ? with_ignored(c, made, ignoring, depth) : made;
    case RULE_ROW:
    case RULE_CHOICE:
        made = add(c, own->kind == RULE_ROW ? NODE_ROW : NODE_UNION);
        for (uint32_t i = own->child; i != RULE_NONE; i = at(c, i)->sibling)
            add_child(c, made, compile(c, i, ignoring, depth + 1));
        return made;
    case RULE_REPEAT:
        made = add(c, NODE_REPEAT);
        add_child(c, made, compile(c, own->child, ignoring, depth + 1));
        if (c->status) return 0;
        c->program->nodes[made].minimum = own->minimum;
        c->program->nodes[made].maximum = own->maximum; /* RULE_NONE is GRAMMAR_NO_LIMIT */
        return made;
    case RULE_JSON:
        made = compile_schema(c, own);
        return with_ignored(c, made, ignoring, depth);
    case RULE_TEXT:
    case RULE_REGEX:
        break;
    }
    c->status = error_set(c->error, KAKEYA_UNSUPPORTED, "grammar: a text of %zu bytes is too long", own->bytes);
    return 0;
}

kakeya_status rules_compile(const rule_set *rules, grammar_program *program, schema_compiler *schemas, cJSON *documents,
                            uint32_t *node, kakeya_error *error) {
    compiler c = {.r = rules,
                  .program = program,
                  .schemas = schemas,
                  .documents = documents,
                  .error = error,
                  .ignored = GRAMMAR_NOTHING};
    c.states = calloc(rules->n_rules + 1, sizeof *c.states);
    c.text = malloc(REGEX_BYTES);
    c.nullable = calloc(rules->n_nodes + 1, sizeof *c.nullable);
    for (uint32_t i = 0; i < rules->n_rules && c.states; i++) c.states[i].node = GRAMMAR_NOTHING;
    if (!c.states || !c.text || !c.nullable)
        c.status = error_set(error, KAKEYA_OUT_OF_MEMORY, "grammar: out of memory");
    if (!c.status) look_at_expressions(&c);
    if (!c.status) analyse(&c);
    if (!c.status) {
        bool ignoring = !rules->rules[rules->start].terminal;
        uint32_t text = compile_rule(&c, rules->start, ignoring, 0);
        *node = text;
        if (ignoring && rules->ignored != RULE_NONE) { /* in front of everything, too */
            uint32_t row = add(&c, NODE_ROW), repeat = compile_ignored(&c, 0);
            add_child(&c, row, repeat);
            add_child(&c, row, text);
            *node = row;
        }
    }
    free(c.states);
    free(c.text);
    free(c.nullable);
    return c.status;
}
