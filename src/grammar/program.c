#include "grammar/program.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

enum {
    NO_DEPTH = 255,
    MAX_GATHERED = 200000, /* alternatives of all unions, those of unions in them included */
};

uint32_t program_add(grammar_program *p, node_kind kind, grammar_form form, kakeya_error *error) {
    if (p->n == GRAMMAR_MAX_NODES) {
        error_set(error, KAKEYA_UNSUPPORTED, "more than %d nodes", (int)GRAMMAR_MAX_NODES);
        return GRAMMAR_NOTHING;
    }
    if (p->n == p->capacity) {
        uint32_t capacity = p->capacity ? 2 * p->capacity : 32;
        grammar_node *nodes = realloc(p->nodes, capacity * sizeof *nodes);
        if (!nodes) {
            error_set(error, KAKEYA_OUT_OF_MEMORY, "%u nodes: out of memory", capacity);
            return GRAMMAR_NOTHING;
        }
        p->nodes = nodes;
        p->capacity = capacity;
    }
    grammar_node *node = &p->nodes[p->n];
    memset(node, 0, sizeof *node);
    node->kind = kind;
    node->form = form;
    node->depth_limit = form == GRAMMAR_CALL ? GRAMMAR_MAX_FREE_DEPTH : GRAMMAR_MAX_DEPTH;
    node->depth = NO_DEPTH;
    node->maximum = GRAMMAR_NO_LIMIT;
    node->rest = node->distinct = GRAMMAR_NOTHING;
    return p->n++;
}

bool program_add_child(grammar_node *node, uint32_t child) {
    if ((node->n_children & (node->n_children - 1)) == 0) {
        size_t capacity = node->n_children ? 2 * (size_t)node->n_children : 1;
        uint32_t *children = realloc(node->children, capacity * sizeof *children);
        if (!children) return false;
        node->children = children;
    }
    node->children[node->n_children++] = child;
    return true;
}

bool program_spend(grammar_program *p, size_t steps) {
    p->work += steps;
    return p->work < GRAMMAR_MAX_WORK;
}

bool program_count_states(grammar_program *p, const dfa *made) {
    p->states += made->n_states;
    return p->states <= GRAMMAR_MAX_STATES;
}

void program_cut(grammar_program *p, uint32_t n) {
    for (uint32_t i = n; i < p->n; i++) {
        grammar_node *node = &p->nodes[i];
        free(node->children);
        free(node->required);
        free(node->next_required);
        free(node->rests);
        free(node->turns);
        free(node->turn_keys);
        free(node->completions);
        free(node->shortest);
        free(node->longest);
        free(node->where);
        dfa_free(&node->dfa);
        trie_free(&node->words);
    }
    if (n < p->n) p->n = n;
}

void program_free(grammar_program *p) {
    program_cut(p, 0);
    free(p->nodes);
    *p = (grammar_program){0};
}

/* --------------------------------------------------------------------------------------------------------- unions */

/* The alternatives behind a union and the unions in it, each once. */
static kakeya_status gather(const grammar_program *p, uint32_t at, uint32_t *mark, uint32_t stamp, uint32_t *left,
                            grammar_node *out) {
    if (mark[at] == stamp) return KAKEYA_OK;
    mark[at] = stamp;
    const grammar_node *node = &p->nodes[at];
    if (node->kind == NODE_NEVER) return KAKEYA_OK;
    if (*left == 0) return KAKEYA_UNSUPPORTED;
    --*left;
    if (node->kind != NODE_UNION) return program_add_child(out, at) ? KAKEYA_OK : KAKEYA_OUT_OF_MEMORY;
    kakeya_status status = KAKEYA_OK;
    for (uint32_t i = 0; i < node->n_children && status == KAKEYA_OK; i++)
        status = gather(p, node->children[i], mark, stamp, left, out);
    return status;
}

static kakeya_status flatten_unions(grammar_program *p, kakeya_error *error) {
    uint32_t *mark = calloc(p->n + 1, sizeof *mark), left = MAX_GATHERED;
    grammar_node *flat = calloc(p->n + 1, sizeof *flat);
    kakeya_status status = mark && flat ? KAKEYA_OK : KAKEYA_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < p->n && status == KAKEYA_OK; i++)
        if (p->nodes[i].kind == NODE_UNION) status = gather(p, i, mark, i + 1, &left, &flat[i]);
    bool done = status == KAKEYA_OK;
    for (uint32_t i = 0; i < p->n && flat; i++) {
        if (p->nodes[i].kind != NODE_UNION || !done) {
            free(flat[i].children);
            continue;
        }
        free(p->nodes[i].children);
        p->nodes[i].children = flat[i].children;
        p->nodes[i].n_children = flat[i].n_children;
    }
    free(flat);
    free(mark);
    if (status == KAKEYA_OUT_OF_MEMORY) error_set(error, status, "%u nodes: out of memory", p->n);
    if (status == KAKEYA_UNSUPPORTED)
        error_set(error, status, "too large: more than %d alternatives, through others", (int)MAX_GATHERED);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- depth */

static uint8_t depth_of(const grammar_program *p, uint32_t at) {
    return at == GRAMMAR_NOTHING ? NO_DEPTH : p->nodes[at].depth;
}

static uint8_t deeper(unsigned depth) { return depth >= NO_DEPTH - 1 ? NO_DEPTH : (uint8_t)(depth + 1); }

/* Of members that are not declared. Which of them comes is seen only behind its key, so all of them must fit. */
static uint8_t rest_depth(const grammar_program *p, const grammar_node *node) {
    uint8_t depth = depth_of(p, node->rest);
    for (uint32_t i = 0; i < node->n_rests; i++) {
        uint8_t own = depth_of(p, node->rests[i]);
        if (own != NO_DEPTH && (own > depth || depth == NO_DEPTH)) depth = own;
    }
    return depth;
}

/* How many of the members that may come are at most so flat; others count as many. */
static uint32_t members_of_depth(const grammar_program *p, const grammar_node *node, uint8_t depth) {
    uint32_t n = rest_depth(p, node) <= depth ? node->minimum : 0;
    for (uint32_t i = 0; i < node->n_children; i++) n += depth_of(p, node->children[i]) <= depth;
    return n;
}

/* The flattest value of an object: what it must hold. */
static uint8_t object_depth(const grammar_program *p, const grammar_node *node) {
    uint8_t depth = 0, least = NO_DEPTH;
    for (uint32_t i = 0; i < node->n_turns; i++)
        if (depth_of(p, node->turns[i]) < least) least = depth_of(p, node->turns[i]);
    if (node->n_turns) return least;
    for (uint32_t i = 0; i < node->n_children; i++) {
        uint8_t own = depth_of(p, node->children[i]);
        if (node->required[i] && own > depth) depth = own;
    }
    while (node->minimum && depth < NO_DEPTH && members_of_depth(p, node, depth) < node->minimum) depth++;
    return deeper(depth);
}

/* How many items may be `rests`, with values at most so flat. */
static uint32_t contained_of_depth(const grammar_program *p, const grammar_node *node, uint8_t depth) {
    uint32_t n = 0, i = 0;
    for (; i < node->n_children && i < node->maximum; i++) {
        bool contained = depth_of(p, node->rests[i]) <= depth;
        if (!contained && depth_of(p, node->children[i]) > depth) return n;
        n += contained;
    }
    if (i < node->maximum && depth_of(p, node->rests[node->n_children]) <= depth)
        n = node->maximum - i < node->least ? n + node->maximum - i : node->least;
    return n;
}

static uint8_t array_depth(const grammar_program *p, const grammar_node *node) {
    uint8_t depth = 0;
    for (uint32_t i = 0; i < node->minimum && i < node->n_children; i++)
        if (depth_of(p, node->children[i]) > depth) depth = depth_of(p, node->children[i]);
    if (node->minimum > node->n_children && depth_of(p, node->rest) > depth) depth = depth_of(p, node->rest);
    while (node->n_rests && depth < NO_DEPTH && contained_of_depth(p, node, depth) < node->least) depth++;
    return deeper(depth);
}

static uint8_t least_depth(const grammar_program *p, const grammar_node *node) {
    uint8_t depth = NO_DEPTH;
    switch (node->kind) {
    case NODE_NEVER:
        return NO_DEPTH;
    case NODE_DFA:
    case NODE_LITERAL:
        return 1;
    case NODE_STRING:
        return node->minimum <= node->maximum ? 1 : NO_DEPTH;
    case NODE_ARRAY:
        return node->minimum <= node->maximum ? array_depth(p, node) : NO_DEPTH;
    case NODE_DISTINCT:
        return node->completions[0] ? 1 : NO_DEPTH;
    case NODE_SET:
        return node->minimum <= node->maximum && node->minimum <= node->completions[0] ? 1 + (node->minimum > 0)
                                                                                       : NO_DEPTH;
    case NODE_OBJECT:
        return node->minimum <= node->maximum ? object_depth(p, node) : NO_DEPTH;
    case NODE_CALL:
    case NODE_UNION:
        for (uint32_t i = 0; i < node->n_children; i++)
            if (depth_of(p, node->children[i]) < depth) depth = depth_of(p, node->children[i]);
        return node->kind == NODE_CALL ? deeper(depth) : depth;
    case NODE_ROW:
        depth = 0;
        for (uint32_t i = 0; i < node->n_children; i++)
            if (depth_of(p, node->children[i]) > depth) depth = depth_of(p, node->children[i]);
        return deeper(depth);
    case NODE_REPEAT:
        return node->minimum ? deeper(depth_of(p, node->children[0])) : 1;
    case NODE_ROOT:
        return depth_of(p, node->rest);
    }
    return NO_DEPTH;
}

static void find_depths(grammar_program *p) {
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = p->n; i-- > 0;) {
            uint8_t depth = least_depth(p, &p->nodes[i]);
            if (depth < p->nodes[i].depth) {
                p->nodes[i].depth = depth;
                changed = true;
            }
        }
    }
}

/* -------------------------------------------------------------------------------------------------------- finishing */

/* Keys whose members have no value are no keys. */
static kakeya_status prune_rests(grammar_program *p, grammar_node *node, kakeya_error *error) {
    uint32_t keep = 0, some = GRAMMAR_NOTHING, deepest = 0;
    dfa made;
    for (uint32_t i = 0; i < node->n_rests; i++) {
        uint8_t depth = depth_of(p, node->rests[i]);
        if (depth == NO_DEPTH) continue;
        keep |= UINT32_C(1) << i;
        if (some == GRAMMAR_NOTHING || depth > deepest) {
            some = node->rests[i];
            deepest = depth;
        }
    }
    node->rest = some;
    dfa_result result = some == GRAMMAR_NOTHING ? DFA_EMPTY : dfa_keep_labels(&node->dfa, keep, &made);
    if (result == DFA_EMPTY) {
        node->n_rests = 0;
        node->rest = GRAMMAR_NOTHING;
        return KAKEYA_OK;
    }
    if (result != DFA_OK) return error_set(error, KAKEYA_OUT_OF_MEMORY, "keys of an object: out of memory");
    dfa_free(&node->dfa);
    free(node->completions);
    node->dfa = made;
    node->completions = dfa_completions(&made);
    return node->completions ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "keys of an object: out of memory");
}

/* Takes away what cannot be: items and members without a value, alternatives that are none. */
static kakeya_status prune(grammar_program *p, grammar_node *node, kakeya_error *error) {
    if (node->kind == NODE_ROOT) return KAKEYA_OK; /* what it leads to is checked by name */
    if (node->kind == NODE_OBJECT && node->n_rests) {
        kakeya_status status = prune_rests(p, node, error);
        if (status != KAKEYA_OK) return status;
    }
    if (node->rest != GRAMMAR_NOTHING && p->nodes[node->rest].depth == NO_DEPTH) node->rest = GRAMMAR_NOTHING;
    if (node->kind == NODE_UNION) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < node->n_children; i++)
            if (depth_of(p, node->children[i]) != NO_DEPTH) node->children[n++] = node->children[i];
        node->n_children = n;
    } else if (node->kind == NODE_ARRAY) {
        if (node->n_rests && node->n_children == 0 && node->rest == GRAMMAR_NOTHING && node->most != GRAMMAR_NO_LIMIT) {
            node->rest = node->rests[0]; /* all items are such */
            if (node->least > node->minimum) node->minimum = node->least;
            if (node->most < node->maximum) node->maximum = node->most;
            node->n_rests = node->least = 0;
            if (depth_of(p, node->rest) == NO_DEPTH) node->rest = GRAMMAR_NOTHING;
        }
        for (uint32_t i = 0; i < node->n_children; i++)
            if (depth_of(p, node->children[i]) == NO_DEPTH && i < node->maximum) node->maximum = i;
        if (node->rest == GRAMMAR_NOTHING && node->maximum > node->n_children) node->maximum = node->n_children;
    } else if (node->kind == NODE_OBJECT) {
        uint32_t n = node->n_children;
        node->next_required = malloc((n + 1) * sizeof *node->next_required);
        if (!node->next_required) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%u keys: out of memory", n);
        node->next_required[n] = n;
        for (uint32_t i = n; i-- > 0;) node->next_required[i] = node->required[i] ? i : node->next_required[i + 1];
        node->any_order = node->any_order && n <= GRAMMAR_MAX_ANY_ORDER;
        node->n_required = 0;
        for (uint32_t i = 0; i < n; i++) node->n_required += node->required[i];
    }
    return KAKEYA_OK;
}

/* Whether a value of the node may begin with the letter. */
static bool begins_with(const grammar_node *node, unsigned letter) {
    switch (node->kind) {
    case NODE_DFA:
    case NODE_DISTINCT:
        return dfa_next(&node->dfa, 0, letter) != DFA_REFUSED;
    case NODE_LITERAL:
        return trie_next(&node->words, 0, letter) != TRIE_NONE;
    case NODE_STRING:
        return letter == (node->form == GRAMMAR_CALL ? (unsigned)LETTER_QUOTE : '"');
    case NODE_ARRAY:
    case NODE_SET:
        return letter == '[';
    case NODE_OBJECT:
        return letter == '{';
    default:
        return false;
    }
}

static kakeya_status check_branches(const grammar_program *p, const grammar_node *node, kakeya_error *error) {
    for (unsigned letter = 0; letter < LETTERS && node->n_children > GRAMMAR_MAX_BRANCHES; letter++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < node->n_children; i++) n += begins_with(&p->nodes[node->children[i]], letter);
        if (n > GRAMMAR_MAX_BRANCHES)
            return error_set(error, KAKEYA_UNSUPPORTED,
                             "%s: %u alternatives begin with the same character, at most %d may",
                             node->where ? node->where : "grammar", n, (int)GRAMMAR_MAX_BRANCHES);
    }
    return KAKEYA_OK;
}

static bool finish_words(grammar_program *p) {
    for (uint32_t i = 0; i < p->n; i++) {
        node_kind kind = p->nodes[i].kind;
        if (kind == NODE_OBJECT || kind == NODE_LITERAL || kind == NODE_CALL)
            if (!trie_finish(&p->nodes[i].words)) return false;
    }
    return true;
}

static bool is_empty_text(const grammar_program *p, const grammar_node *node) {
    switch (node->kind) {
    case NODE_DFA:
        return node->dfa.flags[0] & DFA_ACCEPTS;
    case NODE_LITERAL:
        return node->words.nodes[0].word != TRIE_NONE;
    case NODE_ROOT:
        return node->rest != GRAMMAR_NOTHING && p->nodes[node->rest].may_be_empty;
    case NODE_REPEAT:
        return node->minimum == 0 || p->nodes[node->children[0]].may_be_empty;
    case NODE_ROW:
        for (uint32_t i = 0; i < node->n_children; i++)
            if (!p->nodes[node->children[i]].may_be_empty) return false;
        return true;
    case NODE_UNION:
        for (uint32_t i = 0; i < node->n_children; i++)
            if (p->nodes[node->children[i]].may_be_empty) return true;
        return false;
    default:
        return false;
    }
}

static void find_empty_texts(grammar_program *p) {
    for (bool more = true; more;) {
        more = false;
        for (uint32_t i = p->n; i-- > 0;) {
            if (p->nodes[i].may_be_empty || !is_empty_text(p, &p->nodes[i])) continue;
            more = p->nodes[i].may_be_empty = true;
        }
    }
}

static uint64_t dfa_hash(const grammar_node *node) {
    const dfa *d = &node->dfa;
    hash_stream hash = HASH_STREAM_START;
    hash_stream_add(&hash, d->class_of, sizeof d->class_of);
    hash_stream_add(&hash, d->next, (size_t)d->n_states * d->n_classes * sizeof *d->next);
    return hash_stream_value(&hash);
}

static bool reads_the_same(const grammar_node *a, const grammar_node *b) {
    const dfa *x = &a->dfa, *y = &b->dfa;
    return a->form == b->form && a->minimum == b->minimum && a->maximum == b->maximum &&
           (a->shortest != NULL) == (b->shortest != NULL) && x->n_states == y->n_states &&
           x->n_classes == y->n_classes && memcmp(x->class_of, y->class_of, sizeof x->class_of) == 0 &&
           memcmp(x->next, y->next, (size_t)x->n_states * x->n_classes * sizeof *x->next) == 0 &&
           memcmp(x->flags, y->flags, x->n_states * sizeof *x->flags) == 0;
}

/* False where memory ends. */
static bool find_twins(grammar_program *p) {
    size_t room = 2 * (size_t)p->n + 1;
    uint32_t *first = malloc(room * sizeof *first);
    if (!first) return false;
    for (size_t i = 0; i < room; i++) first[i] = GRAMMAR_NOTHING;
    for (uint32_t i = 0; i < p->n; i++) {
        grammar_node *node = &p->nodes[i];
        if (node->kind != NODE_DFA) continue;
        size_t at = dfa_hash(node) % room;
        while (first[at] != GRAMMAR_NOTHING && !reads_the_same(&p->nodes[first[at]], node)) at = (at + 1) % room;
        if (first[at] == GRAMMAR_NOTHING) first[at] = i;
        node->twin = first[at];
    }
    free(first);
    return true;
}

kakeya_status program_finish(grammar_program *p, kakeya_error *error) {
    kakeya_status status = flatten_unions(p, error);
    if (status != KAKEYA_OK) return status;
    if (!finish_words(p)) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%u nodes: out of memory", p->n);
    find_depths(p);
    for (uint32_t i = 0; i < p->n && status == KAKEYA_OK; i++) {
        status = prune(p, &p->nodes[i], error);
        if (status == KAKEYA_OK && p->nodes[i].kind == NODE_UNION && !p->lenient)
            status = check_branches(p, &p->nodes[i], error);
    }
    if (status != KAKEYA_OK || p->n == 0) return status;
    find_empty_texts(p);
    grammar_node *nodes = realloc(p->nodes, p->n * sizeof *nodes);
    if (nodes) p->nodes = nodes, p->capacity = p->n;
    if (!nodes || !find_twins(p)) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%u nodes: out of memory", p->n);
    return KAKEYA_OK;
}

kakeya_status program_check_value(const grammar_program *p, uint32_t node, kakeya_error *error) {
    unsigned depth = p->nodes[node].depth;
    if (depth == NO_DEPTH) return error_set(error, KAKEYA_INVALID_ARGUMENT, "no value is possible");
    if (depth < GRAMMAR_MAX_FREE_DEPTH) return KAKEYA_OK;
    return error_set(error, KAKEYA_UNSUPPORTED, "every value has %u levels, and fewer than %d are supported", depth,
                     (int)GRAMMAR_MAX_FREE_DEPTH);
}

static size_t node_bytes(const grammar_node *node) {
    size_t bytes = node->n_children * sizeof *node->children + (node->where ? strlen(node->where) + 1 : 0);
    if (node->required) bytes += node->n_children * sizeof *node->required;
    if (node->completions) bytes += node->dfa.n_states * sizeof *node->completions;
    if (node->shortest) bytes += 2 * node->dfa.n_states * sizeof *node->shortest;
    bytes += node->n_rests * sizeof *node->rests + 2 * node->n_turns * sizeof *node->turns;
    if (node->next_required) bytes += (node->n_children + 1) * sizeof *node->next_required;
    bytes += (size_t)node->dfa.n_states * (node->dfa.n_classes * sizeof *node->dfa.next + sizeof *node->dfa.flags);
    return bytes + node->words.capacity * sizeof *node->words.nodes + node->words.n_words * sizeof *node->words.order;
}

size_t program_bytes(const grammar_program *p) {
    size_t bytes = p->capacity * sizeof *p->nodes;
    for (uint32_t i = 0; i < p->n; i++) bytes += node_bytes(&p->nodes[i]);
    return bytes;
}
