#include "grammar/automaton.h"

#include <string.h>

#include "base/hash.h"
#include "grammar/automaton_inner.h"
#include "grammar/automaton_keys.h"
#include "grammar/string_text.h"

enum { MAX_INDENT = 20 };

enum { FEW_READINGS = 64 }; /* of one letter, that are not remembered */

/* Where a letter has been read, since rules may lead to one place along very many paths. */
typedef struct readings {
    uint32_t n;                                /* how often, and behind FEW_READINGS in how many places */
    uint64_t places[2 * AUTOMATON_MAX_PLACES]; /* their hashes, from FEW_READINGS on; 0: free */
} readings;

typedef struct reading {
    const grammar_program *p;
    unsigned letter;
    automaton_state *to;
    readings *done;
} reading;

void automaton_begin(uint32_t root, automaton_state *out) {
    out->n = 1;
    out->ways[0].depth = 1;
    out->ways[0].n_words = 0;
    out->ways[0].key = (automaton_key){0};
    out->ways[0].open[0] = (automaton_frame){.node = root};
}

/* One more way, unless it is there already or there are too many. */
static void emit(const reading *r, const automaton_configuration *c, uint32_t depth) {
    automaton_state *to = r->to;
    for (uint32_t i = 0; i < to->n; i++) {
        const automaton_configuration *own = &to->ways[i];
        if (own->depth == depth && own->n_words == c->n_words && memcmp(&own->key, &c->key, sizeof c->key) == 0 &&
            memcmp(own->open, c->open, depth * sizeof *c->open) == 0 &&
            memcmp(own->words, c->words, c->n_words * sizeof *c->words) == 0)
            return;
    }
    if (to->n == AUTOMATON_MAX_WAYS) return;
    automaton_copy_way(&to->ways[to->n++], c, depth);
}

static void read_letter(const reading *r, automaton_configuration *c, uint32_t depth);

/* The innermost value goes on in state `at`. */
static void go_on(const reading *r, automaton_configuration *c, uint32_t depth, uint32_t at) {
    c->open[depth - 1].at = at;
    emit(r, c, depth);
}

static void close_value(const reading *r, const automaton_configuration *c, uint32_t depth) { emit(r, c, depth - 1); }

/* ------------------------------------------------------------------------------------------------ values in values */

/* The letter begins a value of the node, inside of the first `depth` open ones. */
static void enter(const reading *r, automaton_configuration *c, uint32_t depth, uint32_t at) {
    const grammar_node *node = &r->p->nodes[at];
    automaton_frame parent = depth ? c->open[depth - 1] : (automaton_frame){0};
    uint32_t n = node->kind == NODE_UNION ? node->n_children : 1, n_words = c->n_words;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t value = node->kind == NODE_UNION ? node->children[i] : at;
        if (!automaton_fits(r->p, value, depth)) continue;
        if (depth) c->open[depth - 1] = parent;
        c->n_words = n_words;
        c->open[depth] = (automaton_frame){.node = value};
        read_letter(r, c, depth + 1);
    }
}

/* --------------------------------------------------------------------------------------------------------- strings */

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

/* How many of the items from one place on may be those that must be there beside the others, as far as that matters. */
static uint32_t contained_from(const grammar_program *p, const grammar_node *node, uint32_t seen, uint32_t depth) {
    uint32_t n = 0;
    for (; seen < node->n_children && seen < node->maximum; seen++) {
        bool contained = automaton_fits(p, node->rests[seen], depth);
        if (!contained && !automaton_fits(p, node->children[seen], depth)) return n;
        n += contained;
    }
    if (seen >= node->maximum || !automaton_fits(p, node->rests[node->n_children], depth)) return n;
    return node->maximum - seen < node->least ? n + node->maximum - seen : node->least;
}

/* What the next item may be; GRAMMAR_NOTHING: it may not. contained: one of those that must be there. */
static uint32_t next_item(const grammar_program *p, const grammar_node *node, const automaton_configuration *c,
                          uint32_t depth, bool contained) {
    const automaton_frame *own = &c->open[depth - 1];
    uint32_t place = own->seen < node->n_children ? own->seen : node->n_children;
    uint32_t item = contained ? node->rests[place] : place < node->n_children ? node->children[place] : node->rest;
    if (own->seen >= node->maximum || !automaton_fits(p, item, depth)) return GRAMMAR_NOTHING;
    if (node->distinct != GRAMMAR_NOTHING) {
        const grammar_node *part = &p->nodes[node->distinct];
        if (c->n_words >= (own->seen < node->minimum ? AUTOMATON_MAX_WORDS - 1 : AUTOMATON_FREE_WORDS))
            return GRAMMAR_NOTHING;
        if (!automaton_may_become_new(p, part, c, depth, (automaton_key){.word = TRIE_NONE})) return GRAMMAR_NOTHING;
    }
    if (!node->n_rests) return item;
    uint32_t missing = own->members < node->least ? node->least - own->members : 0;
    if (contained && (node->most == GRAMMAR_NO_LIMIT ? missing == 0 : own->members >= node->most))
        return GRAMMAR_NOTHING;
    if (contained && missing) missing--;
    return missing == 0 || contained_from(p, node, own->seen + 1, depth) >= missing ? item : GRAMMAR_NOTHING;
}

/* seen: items so far, as far as they matter; members: of those that must be there. */
static void read_array(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth) {
    automaton_frame *own = &c->open[depth - 1];
    uint32_t where = place_of(own->at);
    if (where == PLACE_OPENING) {
        own->base = (uint16_t)c->n_words;
        if (r->letter == '[') go_on(r, c, depth, PLACE_FIRST);
        return;
    }
    uint32_t item = next_item(r->p, node, c, depth, false);
    uint32_t contained = node->n_rests ? next_item(r->p, node, c, depth, true) : GRAMMAR_NOTHING;
    bool may_close = own->seen >= node->minimum && own->members >= node->least;
    bool another = item != GRAMMAR_NOTHING || contained != GRAMMAR_NOTHING;
    if (where == PLACE_COMMA && !another) return;
    if (read_space(r, node, c, depth, may_close)) return;
    if (r->letter == ']') {
        if (!may_end(where) || !may_close) return;
        if (node->distinct != GRAMMAR_NOTHING) c->n_words = own->base;
        close_value(r, c, depth);
    } else if (where == PLACE_BEHIND) {
        if (r->letter == ',' && another) go_on(r, c, depth, PLACE_COMMA);
    } else if (expects_item(where) && another) {
        bool counts = node->maximum != GRAMMAR_NO_LIMIT || own->seen < node->minimum || own->seen < node->n_children;
        own->at = PLACE_BEHIND;
        own->seen += counts;
        const automaton_frame behind = *own;
        uint32_t n_words = c->n_words;
        if (contained != GRAMMAR_NOTHING) {
            own->members++;
            enter(r, c, depth, contained);
        }
        *own = behind;
        c->n_words = n_words;
        if (item != GRAMMAR_NOTHING) enter(r, c, depth, item);
    }
}

/* -------------------------------------------------------------------------------------------------------- objects */

static void read_key(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth) {
    automaton_key key = c->key;
    key.word = key.word == TRIE_NONE ? TRIE_NONE : trie_next(&node->words, key.word, r->letter);
    key.text = automaton_other_key_step(node, key.text, r->letter);
    key.hash = automaton_hash_letter(key.hash, r->letter);
    bool other = key.text != AUTOMATON_NO_TEXT && automaton_other_keys_are_open(r->p, node, c, depth) &&
                 automaton_may_become_new(r->p, node, c, depth, key);
    if (!other) key.text = AUTOMATON_NO_TEXT;
    if (!other && !automaton_leads_to_key(r->p, node, c, key.word, depth)) return;
    c->key = key;
    go_on(r, c, depth, PLACE_KEY);
}

/* The key ends here: the declared one that it spells, or another. */
static void end_key(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth,
                    uint32_t then) {
    automaton_frame *own = &c->open[depth - 1];
    uint32_t key = c->key.word == TRIE_NONE ? TRIE_NONE : node->words.nodes[c->key.word].word;
    if (key != TRIE_NONE) {
        if (!automaton_key_is_open(r->p, node, c, key, depth)) return;
        own->required += node->required[key];
        if (node->any_order)
            c->words[own->base + key / 64] |= UINT64_C(1) << (key % 64);
        else
            own->seen = key + 1;
    } else {
        key = automaton_other_key(r->p, node, c, depth);
        if (key == GRAMMAR_NOTHING) return;
        if (!node->any_order) own->seen = node->n_children;
        c->words[c->n_words++] = c->key.hash;
    }
    own->members++;
    c->key = (automaton_key){0};
    go_on(r, c, depth, place(then, key));
}

static void enter_member(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth) {
    automaton_frame *own = &c->open[depth - 1];
    uint32_t key = detail_of(own->at);
    own->at = PLACE_BEHIND;
    if (key < node->n_children)
        enter(r, c, depth, node->children[key]);
    else
        enter(r, c, depth, node->n_rests ? node->rests[key - node->n_children] : node->rest);
}

static void open_object(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth) {
    automaton_frame *own = &c->open[depth - 1];
    uint32_t n = automaton_key_words(node);
    if (c->n_words + n > AUTOMATON_MAX_WORDS) return;
    own->base = (uint16_t)c->n_words;
    memset(c->words + c->n_words, 0, n * sizeof *c->words);
    c->n_words += n;
    go_on(r, c, depth, PLACE_FIRST);
}

static void read_in_key(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth) {
    bool json = node->form == GRAMMAR_JSON;
    const automaton_key key = c->key;
    bool spells = key.word != TRIE_NONE && trie_next(&node->words, key.word, r->letter) != TRIE_NONE;
    bool escaped =
        key.text != AUTOMATON_NO_TEXT && automaton_other_key_step(node, key.text, r->letter) != AUTOMATON_NO_TEXT;
    if (r->letter == (json ? '"' : ':') && !spells && !escaped)
        end_key(r, node, c, depth, json ? PLACE_COLON : PLACE_VALUE);
    else
        read_key(r, node, c, depth);
}

static void read_object(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth) {
    automaton_frame *own = &c->open[depth - 1];
    uint32_t where = place_of(own->at), detail = detail_of(own->at);
    bool json = node->form == GRAMMAR_JSON;
    switch (where) {
    case PLACE_OPENING:
        if (r->letter == '{') open_object(r, node, c, depth);
        return;
    case PLACE_KEY:
        read_in_key(r, node, c, depth);
        return;
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
    bool may_close = automaton_object_may_close(node, own);
    if (read_space(r, node, c, depth, may_close)) return;
    if (r->letter == '}') {
        if (!may_end(where) || !may_close) return;
        c->n_words = own->base;
        close_value(r, c, depth);
    } else if (where == PLACE_BEHIND) {
        if (r->letter == ',' && automaton_object_goes_on(r->p, node, c, depth)) go_on(r, c, depth, PLACE_COMMA);
    } else if (expects_item(where) && automaton_object_goes_on(r->p, node, c, depth)) {
        bool other = automaton_other_keys_are_open(r->p, node, c, depth) &&
                     automaton_may_become_new(r->p, node, c, depth, (automaton_key){0});
        c->key = (automaton_key){.text = other ? 0 : AUTOMATON_NO_TEXT};
        if (!json)
            read_key(r, node, c, depth);
        else if (r->letter == '"')
            go_on(r, c, depth, PLACE_KEY);
    }
}

/* ------------------------------------------------------------------------------- items that are different */

/* seen: items so far. Each is read as a key is that is not declared, and remembered like one. */
static bool another_is_open(const reading *r, const grammar_node *node, const automaton_configuration *c,
                            uint32_t depth) {
    const automaton_frame *own = &c->open[depth - 1];
    if (own->seen >= node->maximum || depth >= node->depth_limit) return false;
    if (c->n_words >= (own->seen < node->minimum ? AUTOMATON_MAX_WORDS : AUTOMATON_FREE_WORDS)) return false;
    return automaton_may_become_new(r->p, node, c, depth, (automaton_key){.word = TRIE_NONE});
}

static void read_different(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth,
                           automaton_key key) {
    uint16_t next = dfa_next(&node->dfa, key.text, r->letter);
    if (next == DFA_REFUSED) return;
    key = (automaton_key){automaton_hash_letter(key.hash, r->letter), TRIE_NONE, next};
    if (!automaton_may_become_new(r->p, node, c, depth, key)) return;
    c->key = key;
    go_on(r, c, depth, PLACE_KEY);
}

static void read_set(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth) {
    automaton_frame *own = &c->open[depth - 1];
    if (own->at == PLACE_OPENING) {
        own->base = (uint16_t)c->n_words;
        if (r->letter == '[') go_on(r, c, depth, PLACE_FIRST);
        return;
    }
    if (own->at == PLACE_KEY) {
        const automaton_key key = c->key;
        if (dfa_next(&node->dfa, key.text, r->letter) != DFA_REFUSED) {
            read_different(r, node, c, depth, key);
            return;
        }
        if (!(node->dfa.flags[key.text] & DFA_ACCEPTS) || automaton_is_remembered(node, c, depth, key.hash)) return;
        c->words[c->n_words++] = key.hash;
        c->key = (automaton_key){0};
        own->seen++;
        own->at = PLACE_BEHIND;
    }
    uint32_t where = place_of(own->at);
    bool may_close = own->seen >= node->minimum;
    if (read_space(r, node, c, depth, may_close)) return;
    if (r->letter == ']') {
        if (!may_end(where) || !may_close) return;
        c->n_words = own->base;
        close_value(r, c, depth);
    } else if (where == PLACE_BEHIND) {
        if (r->letter == ',' && another_is_open(r, node, c, depth)) go_on(r, c, depth, PLACE_COMMA);
    } else if (expects_item(where) && another_is_open(r, node, c, depth)) {
        read_different(r, node, c, depth, (automaton_key){.word = TRIE_NONE});
    }
}

/* Where an array keeps the parts of its items that are different: before what the item around one of them keeps. */
static uint32_t end_of_parts(const automaton_configuration *c, uint32_t array, uint32_t level) {
    return level == 1 ? c->n_words : c->open[array].base;
}

static bool is_known_part(const automaton_configuration *c, uint32_t array, uint32_t level, uint64_t hash) {
    uint32_t end = end_of_parts(c, array, level);
    for (uint32_t i = c->open[array - 1].base; i < end; i++)
        if (c->words[i] == hash) return true;
    return c->n_words == AUTOMATON_MAX_WORDS;
}

/* The part is whole; closes: with this letter. */
static void end_part(const reading *r, const automaton_configuration *c, uint32_t depth, uint32_t level, uint64_t hash,
                     bool closes) {
    automaton_configuration own; /* others that begin alike go on from c */
    uint32_t array = depth - level, at = end_of_parts(c, array, level);
    if (is_known_part(c, array, level, hash)) return;
    automaton_copy_way(&own, c, depth);
    memmove(own.words + at + 1, own.words + at, (own.n_words - at) * sizeof *own.words);
    own.words[at] = hash;
    own.n_words++;
    if (level > 1) own.open[array].base++;
    own.key = (automaton_key){0};
    if (closes)
        close_value(r, &own, depth);
    else
        read_letter(r, &own, depth - 1);
}

/* at: 0 before it, 1 inside. Its letters are read as those of a key are, which is not open meanwhile. */
static void read_part(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth) {
    automaton_frame *own = &c->open[depth - 1];
    const automaton_key key = own->at ? c->key : (automaton_key){.word = TRIE_NONE};
    uint16_t next = dfa_next(&node->dfa, key.text, r->letter);
    if (next == DFA_REFUSED) {
        if (own->at && (node->dfa.flags[key.text] & DFA_ACCEPTS)) end_part(r, c, depth, node->level, key.hash, false);
        return;
    }
    automaton_key longer = {automaton_hash_letter(key.hash, r->letter), TRIE_NONE, next};
    if (!(node->dfa.flags[next] & DFA_GOES_ON)) {
        end_part(r, c, depth, node->level, longer.hash, true);
        return;
    }
    if (!automaton_may_become_new(r->p, node, c, depth - node->level, longer)) return;
    own->at = 1;
    c->key = longer;
    emit(r, c, depth);
    c->key = (automaton_key){0};
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

/* The word that has ended tells which object the one around it is. False: there is no room for its keys. */
static bool turn(const reading *r, automaton_configuration *c, uint32_t depth, uint32_t word) {
    if (depth < 2 || word == TRIE_NONE) return true;
    automaton_frame *own = &c->open[depth - 2];
    const grammar_node *before = &r->p->nodes[own->node];
    if (before->kind != NODE_OBJECT || before->n_turns == 0) return true;
    const grammar_node *object = &r->p->nodes[before->turns[word]];
    uint32_t key = before->turn_keys[word], n = automaton_key_words(object);
    if (c->n_words + n > AUTOMATON_MAX_WORDS) return false;
    memset(c->words + c->n_words, 0, n * sizeof *c->words);
    if (object->any_order) c->words[c->n_words + key / 64] |= UINT64_C(1) << (key % 64);
    c->n_words += n;
    own->node = before->turns[word];
    own->seen = object->any_order ? 0 : key + 1;
    own->required = object->required[key];
    return true;
}

/* Whether one of the words that go on so tells of an object that fits here. */
static bool leads_to_turn(const reading *r, const grammar_node *words, const automaton_configuration *c, uint32_t depth,
                          uint32_t next) {
    const grammar_node *object = depth < 2 ? NULL : &r->p->nodes[c->open[depth - 2].node];
    if (next == TRIE_NONE || !object || object->kind != NODE_OBJECT || object->n_turns == 0) return true;
    const trie_node *at = &words->words.nodes[next];
    for (uint32_t i = at->first; i < at->end; i++)
        if (automaton_fits(r->p, object->turns[words->words.order[i]], depth - 2)) return true;
    return false;
}

/* Values whose end the next letter tells: it is theirs, or that of what is around them, or both. */
static void read_words(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth) {
    uint32_t at = c->open[depth - 1].at, ended = TRIE_NONE, accepted = TRIE_NONE;
    bool ends, goes_on = false, accepts;
    if (node->kind == NODE_DFA) {
        uint16_t next = dfa_next(&node->dfa, at, r->letter);
        accepts = node->dfa.flags[at] & DFA_ACCEPTS;
        if (node->shortest && next != DFA_REFUSED && !automaton_count_character(node, &c->open[depth - 1], next))
            return;
        ends = next != DFA_REFUSED && !(node->dfa.flags[next] & DFA_GOES_ON);
        goes_on = next != DFA_REFUSED;
        accepts = accepts && c->open[depth - 1].members; /* whoever has opened it deals with the empty text */
        if (goes_on) c->open[depth - 1].at = next;
        if (goes_on) c->open[depth - 1].members = 1;
    } else {
        uint32_t next = trie_next(&node->words, at, r->letter);
        if (!leads_to_turn(r, node, c, depth, next)) next = TRIE_NONE;
        accepted = at ? node->words.nodes[at].word : TRIE_NONE;
        accepts = accepted != TRIE_NONE;
        ends = next != TRIE_NONE && node->words.nodes[next].child == TRIE_NONE;
        if (ends) ended = node->words.nodes[next].word;
        goes_on = next != TRIE_NONE;
        if (goes_on) c->open[depth - 1].at = next;
    }
    if (ends && accepts) { /* the frame below is changed once for each */
        automaton_frame below = depth > 1 ? c->open[depth - 2] : (automaton_frame){0};
        uint32_t n_words = c->n_words;
        if (turn(r, c, depth, ended)) close_value(r, c, depth);
        c->n_words = n_words;
        if (depth > 1) c->open[depth - 2] = below;
    } else if (ends) {
        if (turn(r, c, depth, ended)) close_value(r, c, depth);
    } else if (goes_on) {
        emit(r, c, depth);
    }
    if (accepts && turn(r, c, depth, accepted)) read_letter(r, c, depth - 1);
}

/* at: the next child. The last one takes the row's place, so that rules which end with themselves need no depth. */
static void read_row(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth) {
    const automaton_frame own = c->open[depth - 1];
    uint32_t n_words = c->n_words;
    for (uint32_t i = own.at; i < node->n_children; i++) {
        bool last = i + 1 == node->n_children;
        c->n_words = n_words;
        c->open[depth - 1] = own;
        c->open[depth - 1].at = i + 1;
        enter(r, c, last ? depth - 1 : depth, node->children[i]);
        if (!r->p->nodes[node->children[i]].may_be_empty) return;
    }
    if (own.at > 0) read_letter(r, c, depth - 1);
}

/* seen: how many have begun, as far as that matters; members: whether one has. */
static void read_repeat(const reading *r, const grammar_node *node, automaton_configuration *c, uint32_t depth) {
    const automaton_frame own = c->open[depth - 1];
    uint32_t n_words = c->n_words, child = node->children[0];
    if (own.seen < node->maximum) {
        c->open[depth - 1].members = 1;
        if (node->maximum != GRAMMAR_NO_LIMIT || own.seen < node->minimum) c->open[depth - 1].seen++;
        if (automaton_fits(r->p, child, depth)) enter(r, c, depth, child);
    }
    c->n_words = n_words;
    c->open[depth - 1] = own;
    if (own.members && (own.seen >= node->minimum || r->p->nodes[child].may_be_empty)) read_letter(r, c, depth - 1);
}

/* Whether the letter has been read in this place, or in as many as are looked at. */
static bool is_read(readings *done, const automaton_configuration *c, uint32_t depth) {
    if (done->n < FEW_READINGS) {
        done->n++;
        return false;
    }
    if (done->n == FEW_READINGS) memset(done->places, 0, sizeof done->places);
    hash_stream hash = HASH_STREAM_START;
    hash_stream_add(&hash, c->open, depth * sizeof *c->open);
    hash_stream_add(&hash, c->words, c->n_words * sizeof *c->words);
    hash_stream_add(&hash, &c->key, sizeof c->key);
    uint64_t own = hash_stream_value(&hash) | 1;
    size_t at = (own * UINT64_C(0x9E3779B97F4A7C15) >> 40) % (2 * AUTOMATON_MAX_PLACES);
    while (done->places[at] && done->places[at] != own) at = (at + 1) % (2 * AUTOMATON_MAX_PLACES);
    if (done->places[at] || done->n == FEW_READINGS + AUTOMATON_MAX_PLACES) return true;
    done->places[at] = own;
    done->n++;
    return false;
}

/* Reads the letter with the first `depth` values open. Changes what is open. */
static void read_letter(const reading *r, automaton_configuration *c, uint32_t depth) {
    if (depth == 0 || is_read(r->done, c, depth)) return;
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
    case NODE_SET:
        read_set(r, node, c, depth);
        break;
    case NODE_OBJECT:
        read_object(r, node, c, depth);
        break;
    case NODE_DISTINCT:
        read_part(r, node, c, depth);
        break;
    case NODE_CALL:
        read_call(r, node, c, depth);
        break;
    case NODE_ROW:
        read_row(r, node, c, depth);
        break;
    case NODE_REPEAT:
        read_repeat(r, node, c, depth);
        break;
    case NODE_ROOT:
        enter(r, c, depth - 1, node->rest);
        break;
    case NODE_NEVER:
    case NODE_UNION:
        break;
    }
}

bool automaton_read(const grammar_program *p, const automaton_state *from, unsigned letter, automaton_state *to) {
    readings done;
    reading r = {p, letter, to, &done};
    automaton_configuration c;
    to->n = 0;
    for (uint32_t i = 0; i < from->n; i++) { /* each by itself, so that what one leads to does not depend on others */
        done.n = 0;
        automaton_copy_way(&c, &from->ways[i], from->ways[i].depth);
        read_letter(&r, &c, c.depth);
    }
    return to->n > 0;
}

bool automaton_takes(const grammar_program *p, const automaton_state *from, const char *text, size_t bytes,
                     automaton_state *between) {
    for (size_t i = 0; i < bytes; i++) {
        if (!automaton_read(p, i ? &between[i - 1] : from, (unsigned char)text[i], &between[i])) return false;
    }
    return bytes > 0;
}

bool automaton_step(const grammar_program *p, const automaton_state *from, unsigned letter, automaton_state *to) {
    automaton_inner next;
    inner_result result = automaton_inner_read(p, from, letter, &next);
    if (result == INNER_LEAVES) return automaton_read(p, from, letter, to);
    to->n = 0;
    if (result == INNER_GOES_ON) automaton_inner_state(&next, to);
    return to->n > 0;
}

static bool rest_is_empty(const grammar_program *p, const grammar_node *row, uint32_t i) {
    while (i < row->n_children && p->nodes[row->children[i]].may_be_empty) i++;
    return i == row->n_children;
}

static bool is_complete(const grammar_program *p, const automaton_configuration *c) {
    for (uint32_t depth = c->depth; depth > 0; depth--) {
        const automaton_frame *own = &c->open[depth - 1];
        const grammar_node *node = &p->nodes[own->node];
        bool ends =
            (node->kind == NODE_DFA && (node->dfa.flags[own->at] & DFA_ACCEPTS)) ||
            (node->kind == NODE_LITERAL && node->words.nodes[own->at].word != TRIE_NONE) ||
            (node->kind == NODE_ROOT && node->may_be_empty) ||
            (node->kind == NODE_REPEAT && (own->seen >= node->minimum || p->nodes[node->children[0]].may_be_empty)) ||
            (node->kind == NODE_ROW && rest_is_empty(p, node, own->at));
        if (!ends) return false;
    }
    return true;
}

bool automaton_complete(const grammar_program *p, const automaton_state *s) {
    for (uint32_t i = 0; i < s->n; i++)
        if (is_complete(p, &s->ways[i])) return true;
    return false;
}
