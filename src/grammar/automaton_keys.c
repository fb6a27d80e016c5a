#include "grammar/automaton_keys.h"

#include "grammar/string_text.h"

bool automaton_fits(const grammar_program *p, uint32_t at, uint32_t depth) {
    if (at == GRAMMAR_NOTHING) return false;
    const grammar_node *node = &p->nodes[at];
    if (node->kind != NODE_UNION) return depth + node->depth <= node->depth_limit;
    for (uint32_t i = 0; i < node->n_children; i++)
        if (automaton_fits(p, node->children[i], depth)) return true;
    return false;
}

uint32_t automaton_key_words(const grammar_node *node) { return node->any_order ? (node->n_children + 63) / 64 : 0; }

static bool has_come(const grammar_node *node, const automaton_configuration *c, const automaton_frame *own,
                     uint32_t key) {
    if (!node->any_order) return key < own->seen;
    return c->words[own->base + key / 64] >> (key % 64) & 1;
}

/* One more member, which is one of those that must be there or is not, leaves room for the others of them. */
static bool has_room(const grammar_node *node, const automaton_frame *own, bool required) {
    uint32_t missing = node->n_required - own->required - required;
    return node->maximum == GRAMMAR_NO_LIMIT || own->members + 1 + missing <= node->maximum;
}

/* With the key (in the order of keys), there may still be as many members as there must be. */
static bool leaves_enough(const grammar_program *p, const grammar_node *node, const automaton_frame *own, uint32_t key,
                          uint32_t depth) {
    uint32_t n = own->members + 1 + (automaton_fits(p, node->rest, depth) ? GRAMMAR_COUNTED_OTHERS : 0);
    for (uint32_t i = key + 1; i < node->n_children && n < node->minimum; i++)
        n += automaton_fits(p, node->children[i], depth);
    return n >= node->minimum;
}

bool automaton_key_is_open(const grammar_program *p, const grammar_node *node, const automaton_configuration *c,
                           uint32_t key, uint32_t depth) {
    const automaton_frame *own = &c->open[depth - 1];
    if (has_come(node, c, own, key) || !automaton_fits(p, node->children[key], depth)) return false;
    if (!has_room(node, own, node->required[key])) return false;
    if (node->any_order) return true;
    return key <= node->next_required[own->seen] && (!node->minimum || leaves_enough(p, node, own, key, depth));
}

bool automaton_is_remembered(const grammar_node *node, const automaton_configuration *c, uint32_t depth,
                             uint64_t hash) {
    for (uint32_t i = c->open[depth - 1].base + automaton_key_words(node); i < c->n_words; i++)
        if (c->words[i] == hash) return true;
    return false;
}

uint64_t automaton_hash_letter(uint64_t hash, unsigned letter) {
    return (hash ^ (letter + 1)) * UINT64_C(0x9E3779B97F4A7C15) ^ hash >> 29;
}

/* Looks for a key that goes on from a state of the object's automaton and has not come yet, nor is declared. `most`
 * texts are looked at: of more than there are keys that have come or are declared, one is new. */
static bool finds_new_key(const grammar_program *p, const grammar_node *node, const automaton_configuration *c,
                          uint32_t depth, automaton_key key, uint32_t *most) {
    bool declared = key.word != TRIE_NONE && node->words.nodes[key.word].word != TRIE_NONE;
    if (node->dfa.flags[key.text] & DFA_ACCEPTS) {
        if (!declared && !automaton_is_remembered(node, c, depth, key.hash)) return true;
        if (*most == 0) return false;
        --*most;
    }
    for (unsigned letter = 0; letter < LETTERS; letter++) {
        uint16_t next = dfa_next(&node->dfa, key.text, letter);
        if (next == DFA_REFUSED) continue;
        automaton_key longer = {automaton_hash_letter(key.hash, letter),
                                key.word == TRIE_NONE ? TRIE_NONE : trie_next(&node->words, key.word, letter), next};
        if (finds_new_key(p, node, c, depth, longer, most)) return true;
    }
    return false;
}

uint32_t automaton_known_keys(const grammar_node *node, const automaton_configuration *c, uint32_t depth) {
    return c->n_words - c->open[depth - 1].base - automaton_key_words(node) + node->n_children;
}

bool automaton_may_become_new(const grammar_program *p, const grammar_node *node, const automaton_configuration *c,
                              uint32_t depth, automaton_key key) {
    uint32_t most = automaton_known_keys(node, c, depth);
    if (key.text == AUTOMATON_NO_TEXT) return false;
    if ((node->kind == NODE_OBJECT && node->n_rests == 0) || node->completions[key.text] == DFA_ENDLESS ||
        node->completions[key.text] > most)
        return true;
    return finds_new_key(p, node, c, depth, key, &most);
}

bool automaton_other_keys_are_open(const grammar_program *p, const grammar_node *node, const automaton_configuration *c,
                                   uint32_t depth) {
    const automaton_frame *own = &c->open[depth - 1];
    if (!automaton_fits(p, node->rest, depth) || !has_room(node, own, false)) return false;
    if (c->n_words >= (own->members < node->minimum ? AUTOMATON_MAX_WORDS : AUTOMATON_FREE_WORDS)) return false;
    return node->any_order || node->next_required[own->seen] == node->n_children;
}

bool automaton_object_may_close(const grammar_node *node, const automaton_frame *own) {
    return own->members >= node->minimum && own->required == node->n_required;
}

bool automaton_leads_to_key(const grammar_program *p, const grammar_node *node, const automaton_configuration *c,
                            uint32_t word, uint32_t depth) {
    if (word == TRIE_NONE) return false;
    const trie_node *at = &node->words.nodes[word];
    for (uint32_t i = at->first; i < at->end; i++)
        if (automaton_key_is_open(p, node, c, node->words.order[i], depth)) return true;
    return false;
}

bool automaton_object_goes_on(const grammar_program *p, const grammar_node *node, const automaton_configuration *c,
                              uint32_t depth) {
    if (automaton_leads_to_key(p, node, c, 0, depth)) return true;
    return automaton_other_keys_are_open(p, node, c, depth) &&
           automaton_may_become_new(p, node, c, depth, (automaton_key){0});
}

uint32_t automaton_other_key_step(const grammar_node *node, uint32_t text, unsigned letter) {
    if (text == AUTOMATON_NO_TEXT) return text;
    if (node->n_rests) {
        uint16_t next = dfa_next(&node->dfa, text, letter);
        return next == DFA_REFUSED ? AUTOMATON_NO_TEXT : next;
    }
    if (node->form == GRAMMAR_JSON) {
        uint32_t next = text_key_step(text, letter);
        return next == NO_STRING ? AUTOMATON_NO_TEXT : next;
    }
    bool plain = is_digit(letter) || (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                 letter == '_' || letter == '-' || letter == '.';
    return plain ? BETWEEN : AUTOMATON_NO_TEXT;
}

uint32_t automaton_other_key(const grammar_program *p, const grammar_node *node, const automaton_configuration *c,
                             uint32_t depth) {
    automaton_key key = c->key;
    bool empty = node->form == GRAMMAR_CALL && key.word == 0;
    if (key.text == AUTOMATON_NO_TEXT || empty || !automaton_other_keys_are_open(p, node, c, depth))
        return GRAMMAR_NOTHING;
    if (automaton_is_remembered(node, c, depth, key.hash)) return GRAMMAR_NOTHING;
    if (node->n_rests == 0) return key.text == BETWEEN ? node->n_children : GRAMMAR_NOTHING;
    if (!(node->dfa.flags[key.text] & DFA_ACCEPTS)) return GRAMMAR_NOTHING;
    return node->n_children + dfa_label_of(&node->dfa, key.text);
}

bool automaton_count_character(const grammar_node *node, automaton_frame *own, uint32_t next) {
    if (own->at && (node->dfa.flags[next] & DFA_CHARACTER) &&
        (node->maximum != GRAMMAR_NO_LIMIT || own->seen < node->minimum))
        own->seen++;
    return own->seen + (uint64_t)node->shortest[next] <= node->maximum &&
           own->seen + (uint64_t)node->longest[next] >= node->minimum;
}
