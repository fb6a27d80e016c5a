#include "grammar/automaton.h"

#include <string.h>

enum { MAX_INDENT = 20 };

typedef struct reading {
    const grammar_program *p;
    unsigned letter;
    automaton_state *to;
} reading;

void automaton_begin(uint32_t root, automaton_state *out) {
    out->n = 1;
    out->ways[0].depth = 1;
    out->ways[0].open[0] = (automaton_frame){.node = root};
}

static void copy_configuration(automaton_configuration *to, const automaton_configuration *from, uint32_t depth) {
    to->depth = depth;
    memcpy(to->open, from->open, depth * sizeof *to->open);
}

void automaton_copy(automaton_state *to, const automaton_state *from) {
    to->n = from->n;
    for (uint32_t i = 0; i < from->n; i++) copy_configuration(&to->ways[i], &from->ways[i], from->ways[i].depth);
}

/* One more way, unless it is there already or there are too many. */
static void emit(const reading *r, const automaton_configuration *c, uint32_t depth) {
    automaton_state *to = r->to;
    for (uint32_t i = 0; i < to->n; i++)
        if (to->ways[i].depth == depth && memcmp(to->ways[i].open, c->open, depth * sizeof *c->open) == 0) return;
    if (to->n == AUTOMATON_MAX_WAYS) return;
    copy_configuration(&to->ways[to->n++], c, depth);
}

static void read_letter(const reading *r, automaton_configuration *c, uint32_t depth);

/* The innermost value goes on in state `at`. */
static void go_on(const reading *r, automaton_configuration *c, uint32_t depth, uint32_t at) {
    c->open[depth - 1].at = at;
    emit(r, c, depth);
}

static void close_value(const reading *r, const automaton_configuration *c, uint32_t depth) { emit(r, c, depth - 1); }

/* ------------------------------------------------------------------------------------------------ values in values */

/* Whether a value of the node may begin with so many values open around it. */
static bool fits(const grammar_program *p, uint32_t at, uint32_t depth) {
    if (at == GRAMMAR_NOTHING) return false;
    const grammar_node *node = &p->nodes[at];
    if (node->kind != NODE_UNION) return depth + node->depth <= node->depth_limit;
    for (uint32_t i = 0; i < node->n_children; i++)
        if (fits(p, node->children[i], depth)) return true;
    return false;
}

/* The letter begins a value of the node, inside of the first `depth` open ones. */
static void enter(const reading *r, automaton_configuration *c, uint32_t depth, uint32_t at) {
    const grammar_node *node = &r->p->nodes[at];
    automaton_frame parent = depth ? c->open[depth - 1] : (automaton_frame){0};
    uint32_t n = node->kind == NODE_UNION ? node->n_children : 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t value = node->kind == NODE_UNION ? node->children[i] : at;
        if (!fits(r->p, value, depth)) continue;
        if (depth) c->open[depth - 1] = parent;
        c->open[depth] = (automaton_frame){.node = value};
        read_letter(r, c, depth + 1);
    }
}

/* ------------------------------------------------------------------------------------------------ text in strings */

/* Inside of a string: between characters, inside of a UTF-8 character, behind a backslash, in a \u escape. */
enum {
    BETWEEN = 0,
    ONE_MORE,
    TWO_MORE,
    THREE_MORE,
    BEHIND_E0,
    BEHIND_ED,
    BEHIND_F0,
    BEHIND_F4,
    ESCAPED,
    HEX_1,
    HEX_2,
    HEX_3,
    HEX_4,
    BEHIND_D,  /* \uD: a surrogate from 8 on */
    HIGH_3,    /* a first surrogate's third digit */
    HIGH_4,    /* its fourth */
    SECOND,    /* the backslash of the second one */
    SECOND_U,  /* its u */
    SECOND_1,  /* its D */
    SECOND_2,  /* C to F */
    NO_STRING, /* refused */
};

static uint32_t first_byte(unsigned byte) {
    if (byte < 0x80) return BETWEEN;
    if (byte < 0xC2 || byte > 0xF4) return NO_STRING;
    if (byte < 0xE0) return ONE_MORE;
    if (byte < 0xF0) return byte == 0xE0 ? BEHIND_E0 : byte == 0xED ? BEHIND_ED : TWO_MORE;
    return byte == 0xF0 ? BEHIND_F0 : byte == 0xF4 ? BEHIND_F4 : THREE_MORE;
}

static uint32_t in_range(unsigned letter, unsigned low, unsigned high, uint32_t then) {
    return letter >= low && letter <= high ? then : NO_STRING;
}

static bool is_digit(unsigned letter) { return letter >= '0' && letter <= '9'; }
static bool is_hex(unsigned letter) {
    return is_digit(letter) || (letter >= 'a' && letter <= 'f') || (letter >= 'A' && letter <= 'F');
}
static bool is_d(unsigned letter) { return letter == 'd' || letter == 'D'; }

/* One letter more; the quotes at the ends of a string are not its business. escapes: the text is JSON's. */
static uint32_t text_step(uint32_t at, unsigned letter, bool escapes) {
    if (letter > 0xFF) return NO_STRING;
    switch (at) {
    case BETWEEN:
        if (escapes && letter == '\\') return ESCAPED;
        return escapes && (letter < 0x20 || letter == '"') ? NO_STRING : first_byte(letter);
    case ONE_MORE:
    case TWO_MORE:
    case THREE_MORE:
        return in_range(letter, 0x80, 0xBF, at - 1);
    case BEHIND_E0:
        return in_range(letter, 0xA0, 0xBF, ONE_MORE);
    case BEHIND_ED:
        return in_range(letter, 0x80, 0x9F, ONE_MORE);
    case BEHIND_F0:
        return in_range(letter, 0x90, 0xBF, TWO_MORE);
    case BEHIND_F4:
        return in_range(letter, 0x80, 0x8F, TWO_MORE);
    case ESCAPED:
        return letter == 'u' ? HEX_1 : letter && strchr("\"\\/bfnrt", (int)letter) ? BETWEEN : NO_STRING;
    case HEX_1:
        return is_d(letter) ? BEHIND_D : is_hex(letter) ? HEX_2 : NO_STRING;
    case HEX_2:
    case HEX_3:
        return is_hex(letter) ? at + 1 : NO_STRING;
    case HEX_4:
        return is_hex(letter) ? BETWEEN : NO_STRING;
    case BEHIND_D:
        if (letter >= '0' && letter <= '7') return HEX_3;
        return letter == '8' || letter == '9' || (is_hex(letter) && (letter | 0x20) <= 'b') ? HIGH_3 : NO_STRING;
    case HIGH_3:
        return is_hex(letter) ? HIGH_4 : NO_STRING;
    case HIGH_4:
        return is_hex(letter) ? SECOND : NO_STRING;
    case SECOND:
        return letter == '\\' ? SECOND_U : NO_STRING;
    case SECOND_U:
        return letter == 'u' ? SECOND_1 : NO_STRING;
    case SECOND_1:
        return is_d(letter) ? SECOND_2 : NO_STRING;
    case SECOND_2:
        return is_hex(letter) && !is_digit(letter) && (letter | 0x20) >= 'c' ? HEX_3 : NO_STRING;
    default:
        return NO_STRING;
    }
}

/* at: 0 in front of the string, otherwise 1 + where it stands inside; seen: characters, as far as they matter. */
static void read_string(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth) {
    automaton_frame *own = &c->open[depth - 1];
    bool json = node->form == GRAMMAR_JSON;
    unsigned quote = json ? '"' : (unsigned)LETTER_QUOTE;
    if (own->at == 0) {
        if (r->letter == quote) go_on(r, c, depth, 1 + BETWEEN);
        return;
    }
    uint32_t inside = own->at - 1;
    if (inside == BETWEEN && r->letter == quote) {
        if (own->seen >= node->minimum) close_value(r, c, depth);
        return;
    }
    uint32_t next = text_step(inside, r->letter, json);
    if (next == NO_STRING) return;
    if (inside == BETWEEN) {
        if (own->seen == node->maximum) return;
        if (node->maximum != GRAMMAR_NO_LIMIT || own->seen < node->minimum) own->seen++;
    }
    go_on(r, c, depth, 1 + next);
}

/* ------------------------------------------------------------------------------------------- white space and items */

/* Where a list or an object stands. `at` holds it in its low bits; above it, what the place needs. */
enum {
    PLACE_OPENING = 0, /* [ or { is to come */
    PLACE_FIRST,       /* behind it */
    PLACE_FIRST_LINE,  /* and a new line; spaces */
    PLACE_KEY,         /* inside of a key; where */
    PLACE_COLON,       /* behind a key: which */
    PLACE_VALUE,       /* behind its colon: which */
    PLACE_SPACED_VALUE,
    PLACE_BEHIND,   /* behind a value */
    PLACE_END_LINE, /* and a new line: only the end may follow; spaces */
    PLACE_COMMA,    /* behind a comma */
    PLACE_COMMA_SPACE,
    PLACE_COMMA_LINE, /* spaces */
    PLACE_BITS = 4,
};

static uint32_t place_of(uint32_t at) { return at & ((1u << PLACE_BITS) - 1); }
static uint32_t detail_of(uint32_t at) { return at >> PLACE_BITS; }
static uint32_t place(uint32_t where, uint32_t detail) { return where | detail << PLACE_BITS; }

/* White space inside of lists and objects. True: the letter is some, and has been dealt with. */
static bool read_space(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth,
                       bool may_close) {
    uint32_t at = c->open[depth - 1].at, where = place_of(at), spaces = detail_of(at);
    if (r->letter != '\n' && r->letter != ' ') return false;
    if (node->form != GRAMMAR_JSON) return true;
    bool line = r->letter == '\n';
    if (where == PLACE_FIRST && line)
        go_on(r, c, depth, place(PLACE_FIRST_LINE, 0));
    else if (where == PLACE_BEHIND && line && may_close)
        go_on(r, c, depth, place(PLACE_END_LINE, 0));
    else if (where == PLACE_COMMA)
        go_on(r, c, depth, line ? place(PLACE_COMMA_LINE, 0) : place(PLACE_COMMA_SPACE, 0));
    else if ((where == PLACE_FIRST_LINE || where == PLACE_END_LINE || where == PLACE_COMMA_LINE) && !line &&
             spaces < MAX_INDENT)
        go_on(r, c, depth, place(where, spaces + 1));
    return true;
}

static bool expects_item(uint32_t where) {
    return where == PLACE_FIRST || where == PLACE_FIRST_LINE || where == PLACE_COMMA || where == PLACE_COMMA_SPACE ||
           where == PLACE_COMMA_LINE;
}

static bool may_end(uint32_t where) {
    return where == PLACE_FIRST || where == PLACE_FIRST_LINE || where == PLACE_BEHIND || where == PLACE_END_LINE;
}

/* seen: items so far, as far as they matter. */
static void read_array(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth) {
    automaton_frame *own = &c->open[depth - 1];
    uint32_t where = place_of(own->at);
    if (where == PLACE_OPENING) {
        if (r->letter == '[') go_on(r, c, depth, PLACE_FIRST);
        return;
    }
    uint32_t item = own->seen < node->n_children ? node->children[own->seen] : node->rest;
    bool may_close = own->seen >= node->minimum, another = own->seen < node->maximum && fits(r->p, item, depth);
    if (where == PLACE_COMMA && !another) return;
    if (read_space(r, node, c, depth, may_close)) return;
    if (r->letter == ']') {
        if (may_end(where) && may_close) close_value(r, c, depth);
    } else if (where == PLACE_BEHIND) {
        if (r->letter == ',' && another) go_on(r, c, depth, PLACE_COMMA);
    } else if (expects_item(where) && another) {
        bool counts = node->maximum != GRAMMAR_NO_LIMIT || own->seen < node->minimum || own->seen < node->n_children;
        own->at = PLACE_BEHIND;
        own->seen += counts;
        enter(r, c, depth, item);
    }
}

/* -------------------------------------------------------------------------------------------------------- objects */

/* seen, in the order of the keys: the next key that may come, and above it whether there are members. In any order: the
 * keys that have come, and in the highest bit whether there was another one. */
enum { MEMBERS_SHIFT = 32, OTHER_KEY_BIT = 63 };

static bool key_is_open(const reading *r, const grammar_node *node, const automaton_frame *own, uint32_t key,
                        uint32_t depth) {
    if (!fits(r->p, node->children[key], depth)) return false;
    if (node->any_order) return !(own->seen >> key & 1);
    uint32_t next = (uint32_t)own->seen;
    return key >= next && key <= node->next_required[next];
}

static bool other_keys_are_open(const reading *r, const grammar_node *node, const automaton_frame *own,
                                uint32_t depth) {
    if (!fits(r->p, node->rest, depth)) return false;
    return node->any_order || node->next_required[(uint32_t)own->seen] == node->n_children;
}

static bool has_members(const grammar_node *node, const automaton_frame *own) {
    return node->any_order ? own->seen != 0 : own->seen >> MEMBERS_SHIFT != 0;
}

static bool object_may_close(const grammar_node *node, const automaton_frame *own) {
    if (node->minimum && !has_members(node, own)) return false;
    if (node->any_order) return (node->required_mask & ~own->seen) == 0;
    return node->next_required[(uint32_t)own->seen] == node->n_children;
}

/* Some key that is open begins like this node of the trie. */
static bool leads_to_key(const reading *r, const grammar_node *node, const automaton_frame *own, uint32_t word,
                         uint32_t depth) {
    if (word == TRIE_NONE) return false;
    const trie_node *at = &node->words.nodes[word];
    for (uint32_t i = at->first; i < at->end; i++)
        if (key_is_open(r, node, own, node->words.order[i], depth)) return true;
    return false;
}

static bool object_goes_on(const reading *r, const grammar_node *node, const automaton_frame *own, uint32_t depth) {
    if (node->maximum != GRAMMAR_NO_LIMIT && (node->maximum == 0 || has_members(node, own))) return false;
    return leads_to_key(r, node, own, 0, depth) || other_keys_are_open(r, node, own, depth);
}

/* A key: where in the trie of declared keys (NO_WORD: nowhere), and where in the text of another one. */
enum { TEXT_BITS = 5, NO_WORD = (1 << (32 - PLACE_BITS - TEXT_BITS)) - 1 };

static uint32_t key_place(uint32_t word, uint32_t text) {
    return place(PLACE_KEY, text | (word == TRIE_NONE ? (uint32_t)NO_WORD : word) << TEXT_BITS);
}

/* One letter more of a key that is not declared. Where keys are declared, others are spelled without escapes, which
 * could spell a declared one. */
static uint32_t other_key_step(const grammar_node *node, uint32_t text, unsigned letter) {
    if (node->form == GRAMMAR_JSON) {
        if (letter == '\\' && node->n_children) return NO_STRING;
        return text_step(text, letter, true);
    }
    bool plain = is_digit(letter) || (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                 letter == '_' || letter == '-' || letter == '.';
    return plain && text != NO_STRING ? BETWEEN : NO_STRING;
}

static void read_key(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth,
                     uint32_t word, uint32_t text) {
    automaton_frame *own = &c->open[depth - 1];
    word = word == TRIE_NONE ? TRIE_NONE : trie_next(&node->words, word, r->letter);
    if (text != NO_STRING && other_keys_are_open(r, node, own, depth))
        text = other_key_step(node, text, r->letter);
    else
        text = NO_STRING;
    if (text == NO_STRING && !leads_to_key(r, node, own, word, depth)) return;
    go_on(r, c, depth, key_place(word, text));
}

/* The key ends here: the declared one that it spells, or another. */
static void end_key(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth,
                    uint32_t word, uint32_t text, uint32_t then) {
    automaton_frame *own = &c->open[depth - 1];
    uint32_t key = word == TRIE_NONE ? TRIE_NONE : node->words.nodes[word].word;
    bool empty = node->form == GRAMMAR_CALL && word == 0;
    if (key != TRIE_NONE) {
        if (!key_is_open(r, node, own, key, depth)) return;
    } else {
        if (text != BETWEEN || empty || !other_keys_are_open(r, node, own, depth)) return;
        key = node->n_children;
    }
    if (node->any_order)
        own->seen |= UINT64_C(1) << (key < node->n_children ? key : OTHER_KEY_BIT);
    else
        own->seen = (key < node->n_children ? key + 1 : key) | UINT64_C(1) << MEMBERS_SHIFT;
    go_on(r, c, depth, place(then, key));
}

static void enter_member(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth) {
    automaton_frame *own = &c->open[depth - 1];
    uint32_t key = detail_of(own->at);
    own->at = PLACE_BEHIND;
    enter(r, c, depth, key < node->n_children ? node->children[key] : node->rest);
}

static void read_object(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth) {
    automaton_frame *own = &c->open[depth - 1];
    uint32_t where = place_of(own->at), detail = detail_of(own->at);
    bool json = node->form == GRAMMAR_JSON;
    switch (where) {
    case PLACE_OPENING:
        if (r->letter == '{') go_on(r, c, depth, PLACE_FIRST);
        return;
    case PLACE_KEY: {
        uint32_t word = detail >> TEXT_BITS, text = detail & ((1u << TEXT_BITS) - 1);
        if (word == NO_WORD) word = TRIE_NONE;
        if (json && r->letter == '"' && text != ESCAPED && (word == TRIE_NONE || text == BETWEEN || text == NO_STRING))
            end_key(r, node, c, depth, word, text, PLACE_COLON);
        if (json && r->letter == '"') { /* an escaped quote of a declared key, or of any other */
            if (text == BETWEEN) return;
        } else if (!json && r->letter == ':' &&
                   (word == TRIE_NONE || trie_next(&node->words, word, ':') == TRIE_NONE)) {
            end_key(r, node, c, depth, word, text, PLACE_VALUE);
            return;
        }
        read_key(r, node, c, depth, word, text);
        return;
    }
    case PLACE_COLON:
        if (r->letter == ':') go_on(r, c, depth, place(PLACE_VALUE, detail));
        return;
    case PLACE_VALUE:
        if (json && r->letter == ' ')
            go_on(r, c, depth, place(PLACE_SPACED_VALUE, detail));
        else
            enter_member(r, node, c, depth);
        return;
    case PLACE_SPACED_VALUE:
        enter_member(r, node, c, depth);
        return;
    default:
        break;
    }
    bool may_close = object_may_close(node, own);
    if (read_space(r, node, c, depth, may_close)) return;
    if (r->letter == '}') {
        if (may_end(where) && may_close) close_value(r, c, depth);
    } else if (where == PLACE_BEHIND) {
        if (r->letter == ',' && object_goes_on(r, node, own, depth)) go_on(r, c, depth, PLACE_COMMA);
    } else if (expects_item(where) && object_goes_on(r, node, own, depth)) {
        if (!json)
            read_key(r, node, c, depth, 0, BETWEEN);
        else if (r->letter == '"')
            go_on(r, c, depth, key_place(0, BETWEEN));
    }
}

/* ------------------------------------------------------------------------------------------------------- the rest */

/* at: 0 .. in the trie of names; the arguments that follow a name are entered by their brace. Behind them, CLOSING. */
#define CLOSING UINT32_MAX

static void read_call(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth) {
    automaton_frame *own = &c->open[depth - 1];
    if (own->at == CLOSING) {
        if (r->letter == LETTER_CALL_CLOSE) close_value(r, c, depth);
        return;
    }
    const trie_node *at = &node->words.nodes[own->at];
    uint32_t next = trie_next(&node->words, own->at, r->letter);
    if (next != TRIE_NONE) {
        go_on(r, c, depth, next);
    } else if (at->word != TRIE_NONE && r->letter == '{') {
        own->at = CLOSING;
        enter(r, c, depth, node->children[at->word]);
    }
}

/* Values whose end the next letter tells: it is theirs, or that of what is around them, or both. */
static void read_words(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth) {
    uint32_t at = c->open[depth - 1].at;
    bool ends, goes_on = false, accepts;
    if (node->kind == NODE_DFA) {
        uint16_t next = dfa_next(&node->dfa, at, r->letter);
        accepts = node->dfa.flags[at] & DFA_ACCEPTS;
        ends = next != DFA_REFUSED && !(node->dfa.flags[next] & DFA_GOES_ON);
        goes_on = next != DFA_REFUSED;
        if (goes_on) c->open[depth - 1].at = next;
    } else {
        uint32_t next = trie_next(&node->words, at, r->letter);
        accepts = node->words.nodes[at].word != TRIE_NONE;
        ends = next != TRIE_NONE && node->words.nodes[next].child == TRIE_NONE;
        goes_on = next != TRIE_NONE;
        if (goes_on) c->open[depth - 1].at = next;
    }
    if (ends)
        close_value(r, c, depth);
    else if (goes_on)
        emit(r, c, depth);
    if (accepts) read_letter(r, c, depth - 1);
}

/* Reads the letter with the first `depth` values open. Changes what is open. */
static void read_letter(const reading *r, automaton_configuration *c, uint32_t depth) {
    if (depth == 0) return;
    const grammar_node *node = &r->p->nodes[c->open[depth - 1].node];
    switch (node->kind) {
    case NODE_DFA:
    case NODE_LITERAL:
        read_words(r, node, c, depth);
        break;
    case NODE_STRING:
        read_string(r, node, c, depth);
        break;
    case NODE_ARRAY:
        read_array(r, node, c, depth);
        break;
    case NODE_OBJECT:
        read_object(r, node, c, depth);
        break;
    case NODE_CALL:
        read_call(r, node, c, depth);
        break;
    case NODE_ROOT:
        enter(r, c, depth - 1, node->rest);
        break;
    case NODE_NEVER:
    case NODE_UNION:
        break;
    }
}

/* Most letters stand in the middle of a string, a number or an expression that is read in one way: only the innermost
 * value moves. False: the letter is to be read as any other; otherwise *at says where it leads to, NOWHERE for refused.
 */
#define NOWHERE UINT32_MAX

static bool read_inside(const grammar_program *p, const automaton_state *from, unsigned letter, uint32_t *at) {
    const automaton_configuration *c = &from->ways[0];
    if (from->n != 1 || c->depth == 0) return false;
    const automaton_frame *own = &c->open[c->depth - 1];
    const grammar_node *node = &p->nodes[own->node];
    if (node->kind == NODE_DFA && !(node->dfa.flags[own->at] & DFA_ACCEPTS)) {
        uint16_t next = dfa_next(&node->dfa, own->at, letter);
        *at = next == DFA_REFUSED ? NOWHERE : next;
        return next == DFA_REFUSED || (node->dfa.flags[next] & DFA_GOES_ON);
    }
    bool counts = node->maximum != GRAMMAR_NO_LIMIT || own->seen < node->minimum;
    if (node->kind != NODE_STRING || own->at == 0 || (own->at == 1 + BETWEEN && (counts || letter == '"')))
        return false;
    if (letter > 0xFF) return false;
    uint32_t next = text_step(own->at - 1, letter, node->form == GRAMMAR_JSON);
    *at = next == NO_STRING ? NOWHERE : 1 + next;
    return true;
}

bool automaton_step(const grammar_program *p, const automaton_state *from, unsigned letter, automaton_state *to) {
    reading r = {p, letter, to};
    uint32_t inside;
    if (read_inside(p, from, letter, &inside)) {
        to->n = inside != NOWHERE;
        if (inside == NOWHERE) return false;
        copy_configuration(&to->ways[0], &from->ways[0], from->ways[0].depth);
        to->ways[0].open[to->ways[0].depth - 1].at = inside;
        return true;
    }
    automaton_configuration c;
    to->n = 0;
    for (uint32_t i = 0; i < from->n; i++) {
        copy_configuration(&c, &from->ways[i], from->ways[i].depth);
        read_letter(&r, &c, c.depth);
    }
    return to->n > 0;
}

static bool is_complete(const grammar_program *p, const automaton_configuration *c) {
    for (uint32_t depth = c->depth; depth > 0; depth--) {
        const automaton_frame *own = &c->open[depth - 1];
        const grammar_node *node = &p->nodes[own->node];
        bool ends = (node->kind == NODE_DFA && (node->dfa.flags[own->at] & DFA_ACCEPTS)) ||
                    (node->kind == NODE_LITERAL && node->words.nodes[own->at].word != TRIE_NONE) ||
                    (node->kind == NODE_ROOT && node->may_be_empty);
        if (!ends) return false;
    }
    return true;
}

bool automaton_complete(const grammar_program *p, const automaton_state *s) {
    for (uint32_t i = 0; i < s->n; i++)
        if (is_complete(p, &s->ways[i])) return true;
    return false;
}

/* Inside of a JSON key that is none of the declared ones. */
static bool in_other_key(const grammar_program *p, const grammar_node *node, const automaton_frame *own,
                         uint32_t depth) {
    const reading r = {.p = p};
    uint32_t detail = detail_of(own->at), word = detail >> TEXT_BITS, text = detail & ((1u << TEXT_BITS) - 1);
    if (node->form != GRAMMAR_JSON || place_of(own->at) != PLACE_KEY || text != BETWEEN) return false;
    return (word == NO_WORD || node->n_children == 0) && other_keys_are_open(&r, node, own, depth);
}

bool automaton_takes_text(const grammar_program *p, const automaton_state *s, size_t characters) {
    for (uint32_t i = 0; i < s->n; i++) {
        const automaton_configuration *c = &s->ways[i];
        if (c->depth == 0) continue;
        const automaton_frame *own = &c->open[c->depth - 1];
        const grammar_node *node = &p->nodes[own->node];
        if (node->kind == NODE_OBJECT && in_other_key(p, node, own, c->depth)) return true;
        if (node->kind != NODE_STRING || own->at != 1 + BETWEEN) continue;
        if (node->maximum == GRAMMAR_NO_LIMIT || own->seen + characters <= node->maximum) return true;
    }
    return false;
}
