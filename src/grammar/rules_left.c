/* Rules that begin with themselves, as Lark's Earley parser reads them: `a: a x | b` is `b x*`, which needs no depth.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/rules.h"

typedef struct unfolding {
    rule_set *r;
    bool out_of_memory;
} unfolding;

static uint32_t add_node(unfolding *u, rule_node node) {
    rule_set *r = u->r;
    if (u->out_of_memory) return RULE_NONE;
    if (r->n_nodes == r->node_capacity) {
        uint32_t capacity = 2 * r->node_capacity + 16;
        rule_node *nodes = realloc(r->nodes, capacity * sizeof *nodes);
        if (!nodes) {
            u->out_of_memory = true;
            return RULE_NONE;
        }
        r->nodes = nodes;
        r->node_capacity = capacity;
    }
    r->nodes[r->n_nodes] = node;
    return r->n_nodes++;
}

/* A rule beside `of`, whose name messages have. */
static uint32_t add_rule(unfolding *u, uint32_t of, uint32_t body) {
    rule_set *r = u->r;
    if (u->out_of_memory) return RULE_NONE;
    if (r->n_rules == r->rule_capacity) {
        uint32_t capacity = 2 * r->rule_capacity;
        grammar_rule *rules = realloc(r->rules, capacity * sizeof *rules);
        if (rules) r->rules = rules;
        if (rules) r->rule_capacity = capacity;
    }
    char *name = strdup(r->rules[of].name);
    if (!name || r->n_rules == r->rule_capacity) {
        free(name);
        u->out_of_memory = true;
        return RULE_NONE;
    }
    r->rules[r->n_rules] =
        (grammar_rule){.name = name, .body = body, .line = r->rules[of].line, .terminal = r->rules[of].terminal};
    return r->n_rules++;
}

static uint32_t name_of(unfolding *u, uint32_t rule) {
    return add_node(u, (rule_node){.kind = RULE_NAME, .child = RULE_NONE, .sibling = RULE_NONE, .rule = rule});
}

static bool is_name(const rule_set *r, uint32_t node, uint32_t rule) {
    return node != RULE_NONE && r->nodes[node].kind == RULE_NAME && r->nodes[node].rule == rule;
}

/* The rows that the body is a choice of; a row alone is one. */
static uint32_t rows_of(const rule_set *r, uint32_t body) {
    return r->nodes[body].kind == RULE_CHOICE ? r->nodes[body].child : body;
}

static bool begins_with_itself(const rule_set *r, uint32_t row, uint32_t rule) {
    return r->nodes[row].kind == RULE_ROW && is_name(r, r->nodes[row].child, rule);
}

/* At the end of what follows, the rule is what it begins with: the rest comes by repetition. */
static void end_with_base(rule_set *r, uint32_t first, uint32_t rule, uint32_t base) {
    for (uint32_t at = first; at != RULE_NONE; at = r->nodes[at].sibling)
        if (r->nodes[at].sibling == RULE_NONE && is_name(r, at, rule)) r->nodes[at].rule = base;
}

static void unfold(unfolding *u, uint32_t rule) {
    rule_set *r = u->r;
    uint32_t body = r->rules[rule].body, bases = RULE_NONE, tails = RULE_NONE, n = 0, others = 0, next;
    for (uint32_t row = rows_of(r, body); row != RULE_NONE; row = r->nodes[row].sibling)
        *(begins_with_itself(r, row, rule) ? &n : &others) += 1;
    if (n == 0 || others == 0) return; /* with itself alone it never ends, and is refused */
    for (uint32_t row = rows_of(r, body); row != RULE_NONE; row = next) {
        next = r->nodes[row].sibling;
        uint32_t *list = &bases;
        if (begins_with_itself(r, row, rule)) {
            r->nodes[row].child = r->nodes[r->nodes[row].child].sibling;
            if (r->nodes[row].child == RULE_NONE) continue; /* it is itself */
            list = &tails;
        }
        r->nodes[row].sibling = *list;
        *list = row;
    }
    rule_node choice = {.kind = RULE_CHOICE, .sibling = RULE_NONE, .child = bases};
    uint32_t base = add_rule(u, rule, add_node(u, choice));
    for (uint32_t row = tails; row != RULE_NONE; row = r->nodes[row].sibling)
        end_with_base(r, r->nodes[row].child, rule, base);
    uint32_t first = name_of(u, base);
    if (tails != RULE_NONE) {
        choice.child = tails;
        uint32_t tail = add_node(u, choice);
        uint32_t repeat = add_node(u, (rule_node){.kind = RULE_REPEAT, .child = tail, .maximum = RULE_NONE});
        if (!u->out_of_memory) r->nodes[repeat].sibling = RULE_NONE;
        if (!u->out_of_memory) r->nodes[first].sibling = repeat;
    }
    uint32_t made = add_node(u, (rule_node){.kind = RULE_ROW, .sibling = RULE_NONE, .child = first});
    if (!u->out_of_memory) r->rules[rule].body = made;
}

bool rules_unfold(rule_set *rules) {
    unfolding u = {.r = rules};
    uint32_t n = rules->n_rules;
    for (uint32_t i = 0; i < n && !u.out_of_memory; i++) unfold(&u, i);
    return !u.out_of_memory;
}
