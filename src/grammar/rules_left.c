/* Rules that begin with themselves, as Lark's Earley parser reads them: `a: a x | b` is `b x*`, which needs no depth.
 * Where a rule begins with itself through others, what those are is put in their place first (Paull's algorithm). */
#include <stdlib.h>
#include <string.h>

#include "grammar/rules.h"

enum { MAX_MADE = 20000 }; /* nodes that putting rules in place may add */

typedef struct unfolding {
    rule_set *r;
    uint32_t *group; /* by rule: the first one of those that begin with one another; RULE_NONE: it is not one of them */
    bool *done;      /* by rule: what it begins with has been put in place */
    uint32_t made;
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

/* ------------------------------------------------------------------------------------------------- through others */

/* Visits the rules that the node may begin with. */
static void visit_beginnings(const rule_set *r, uint32_t node, bool *seen) {
    const rule_node *own = &r->nodes[node];
    if (own->kind == RULE_NAME) {
        if (seen[own->rule]) return;
        seen[own->rule] = true;
        if (r->rules[own->rule].body != RULE_NONE) visit_beginnings(r, r->rules[own->rule].body, seen);
    } else if (own->kind == RULE_CHOICE) {
        for (uint32_t i = own->child; i != RULE_NONE; i = r->nodes[i].sibling) visit_beginnings(r, i, seen);
    } else if ((own->kind == RULE_ROW || own->kind == RULE_REPEAT) && own->child != RULE_NONE) {
        visit_beginnings(r, own->child, seen);
    }
}

static bool find_groups(unfolding *u, uint32_t n) {
    bool *reached = calloc((size_t)n * n + 1, sizeof *reached);
    u->group = malloc((2 * (size_t)n + 1) * sizeof *u->group);
    u->done = calloc(2 * (size_t)n + 1, sizeof *u->done);
    bool room = reached && u->group && u->done;
    for (uint32_t i = 0; i < n && room; i++)
        if (u->r->rules[i].body != RULE_NONE) visit_beginnings(u->r, u->r->rules[i].body, reached + (size_t)i * n);
    for (uint32_t i = 0; i < n && room; i++) {
        u->group[i] = RULE_NONE;
        for (uint32_t k = 0; k < n && u->group[i] == RULE_NONE; k++)
            if (reached[(size_t)i * n + k] && reached[(size_t)k * n + i]) u->group[i] = k;
    }
    free(reached);
    return room;
}

static bool leads_to_group(const unfolding *u, uint32_t node, uint32_t group) {
    const rule_node *own = &u->r->nodes[node];
    if (own->kind == RULE_NAME) return u->group[own->rule] == group;
    if (own->child == RULE_NONE) return false; /* a text, an expression, a schema */
    for (uint32_t i = own->child; i != RULE_NONE; i = own->kind == RULE_CHOICE ? u->r->nodes[i].sibling : RULE_NONE)
        if (leads_to_group(u, i, group)) return true;
    return false;
}

static uint32_t copy_one(unfolding *u, uint32_t at) {
    rule_node node = u->r->nodes[at];
    node.sibling = RULE_NONE;
    if (node.text) {
        char *text = malloc(node.bytes + 1);
        if (!text) u->out_of_memory = true;
        if (text) memcpy(text, node.text, node.bytes + 1);
        node.text = text;
    }
    u->made++;
    uint32_t made = add_node(u, node);
    if (made == RULE_NONE) free(node.text);
    return made;
}

/* A row of copies: those of one list, or of one node, and then those of another list. */
static uint32_t join(unfolding *u, uint32_t first, bool alone, uint32_t rest) {
    uint32_t row = add_node(u, (rule_node){.kind = RULE_ROW, .child = RULE_NONE, .sibling = RULE_NONE});
    uint32_t last = RULE_NONE;
    for (int part = 0; part < 2; part++) {
        for (uint32_t at = part ? rest : first; at != RULE_NONE && !u->out_of_memory;) {
            uint32_t made = copy_one(u, at);
            if (made == RULE_NONE) return RULE_NONE;
            *(last == RULE_NONE ? &u->r->nodes[row].child : &u->r->nodes[last].sibling) = made;
            last = made;
            at = alone && part == 0 ? RULE_NONE : u->r->nodes[at].sibling;
        }
    }
    return u->out_of_memory ? RULE_NONE : row;
}

/* Adds the rows that one stands for to a list, with what other rules of the group begin with put in place. */
static void put_in_place(unfolding *u, uint32_t row, uint32_t rule, uint32_t *list) {
    rule_set *r = u->r;
    if (u->out_of_memory || row == RULE_NONE) return;
    uint32_t first = r->nodes[row].child, rest = first == RULE_NONE ? RULE_NONE : r->nodes[first].sibling;
    rule_node begin = first == RULE_NONE ? (rule_node){.kind = RULE_TEXT} : r->nodes[first];
    bool other = begin.kind == RULE_NAME && begin.rule != rule && u->done[begin.rule];
    bool leads = first != RULE_NONE && leads_to_group(u, first, u->group[rule]) && u->made < MAX_MADE;
    if (leads && (other || begin.kind == RULE_CHOICE)) {
        uint32_t next;
        for (uint32_t one = other ? rows_of(r, r->rules[begin.rule].body) : begin.child; one != RULE_NONE; one = next) {
            next = r->nodes[one].sibling;
            bool is_row = r->nodes[one].kind == RULE_ROW;
            put_in_place(u, join(u, is_row ? r->nodes[one].child : one, !is_row, rest), rule, list);
            if (u->out_of_memory) return;
        }
    } else if (leads && begin.kind == RULE_ROW) {
        put_in_place(u, join(u, begin.child, false, rest), rule, list);
    } else if (leads && begin.kind == RULE_REPEAT && begin.minimum == 0 && begin.maximum == 1) {
        put_in_place(u, join(u, begin.child, true, rest), rule, list);
        put_in_place(u, join(u, RULE_NONE, false, rest), rule, list);
    } else {
        r->nodes[row].sibling = *list;
        *list = row;
    }
}

static void put_all_in_place(unfolding *u, uint32_t rule) {
    uint32_t list = RULE_NONE, next;
    for (uint32_t row = rows_of(u->r, u->r->rules[rule].body); row != RULE_NONE && !u->out_of_memory; row = next) {
        next = u->r->nodes[row].sibling;
        put_in_place(u, row, rule, &list);
    }
    uint32_t body = add_node(u, (rule_node){.kind = RULE_CHOICE, .sibling = RULE_NONE, .child = list});
    if (!u->out_of_memory) u->r->rules[rule].body = body;
}

/* The last rules first: those that come before them are mostly what the others are kinds of. */
bool rules_unfold(rule_set *rules) {
    unfolding u = {.r = rules};
    uint32_t n = rules->n_rules;
    u.out_of_memory = !find_groups(&u, n);
    for (uint32_t i = n; i-- > 0 && !u.out_of_memory;) {
        uint32_t before = rules->n_rules;
        if (u.group[i] != RULE_NONE) put_all_in_place(&u, i);
        if (!u.out_of_memory) unfold(&u, i);
        u.done[i] = true;
        if (rules->n_rules == before) continue;
        u.group[before] = u.group[i];
        u.done[before] = true;
    }
    free(u.group);
    free(u.done);
    return !u.out_of_memory;
}
