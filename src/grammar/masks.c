#include "grammar/masks.h"

#include <string.h>

#include "grammar/automaton.h"
#include "grammar/automaton_keys.h"
#include "grammar/string_text.h"

/* ----------------------------------------------------------------------------------------------------------- memory */

kakeya_status mask_space_reserve(mask_space *space, const token_table *tokens, mem_account *account,
                                 kakeya_error *error) {
    size_t levels = tokens->longest + 1, words = token_set_words(tokens->vocab);
    if (space->n_levels >= levels && space->words >= words) return KAKEYA_OK;
    if (space->n_levels > levels) levels = space->n_levels;
    if (space->words > words) words = space->words;
    mask_space_free(space);
    space->levels = mem_alloc(account, MEM_WORKSPACE, levels * sizeof *space->levels);
    space->inner = mem_alloc(account, MEM_WORKSPACE, (levels + 1) * sizeof *space->inner);
    space->scratch = mem_alloc(account, MEM_WORKSPACE, 4 * sizeof *space->scratch);
    space->at = mem_alloc(account, MEM_WORKSPACE, levels * sizeof *space->at);
    space->seen = mem_alloc(account, MEM_WORKSPACE, levels * sizeof *space->seen);
    space->bits = mem_alloc(account, MEM_WORKSPACE, words * sizeof *space->bits);
    space->parts = mem_alloc(account, MEM_WORKSPACE, words * sizeof *space->parts);
    space->ranks = mem_alloc(account, MEM_WORKSPACE, words * sizeof *space->ranks);
    space->unsure = mem_alloc(account, MEM_WORKSPACE, words * sizeof *space->unsure);
    space->reach = mem_alloc(account, MEM_WORKSPACE, character_reach_bytes());
    if (!space->levels || !space->inner || !space->scratch || !space->at || !space->seen || !space->bits ||
        !space->parts || !space->ranks || !space->unsure || !space->reach) {
        mask_space_free(space);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "grammar workspace of %zu bytes: out of memory",
                         levels * sizeof *space->levels);
    }
    memset(space->reach, 0, character_reach_bytes());
    space->n_levels = levels;
    space->words = words;
    return KAKEYA_OK;
}

void mask_space_free(mask_space *space) {
    mem_free(space->levels);
    mem_free(space->inner);
    mem_free(space->scratch);
    mem_free(space->at);
    mem_free(space->seen);
    mem_free(space->bits);
    mem_free(space->parts);
    mem_free(space->ranks);
    mem_free(space->unsure);
    mem_free(space->reach);
    *space = (mask_space){0};
}

/* ------------------------------------------------------------------------------------------------------------ walks */

typedef struct mask {
    const kakeya_grammar *g;
    const grammar_program *p;
    mask_space *space;
    uint32_t *allowed;
    size_t n_words;
} mask;

static void allow(const mask *m, int32_t token) {
    if ((size_t)token / 32 < m->n_words) m->allowed[token / 32] |= 1u << (token % 32);
}

static void allow_set(const mask *m, const uint32_t *bits) {
    size_t words = token_set_words(m->g->tokens->vocab);
    if (words > m->n_words) words = m->n_words;
    for (size_t i = 0; i < words; i++) m->allowed[i] |= bits[i];
}

/* Whether a token (by its place in the trie) that the automaton takes may come; NULL: all may. */
typedef bool token_filter(const void *user, uint32_t i);

static bool spells_declared_key(const automaton_inner *inner) {
    for (uint32_t i = 0; i < inner->n; i++)
        if (inner->ways[i].key.word != TRIE_NONE) return true;
    return false;
}

/* The first bit that is set from `at` on, or end. */
static uint32_t next_bit(const uint32_t *bits, uint32_t at, uint32_t end) {
    while (at < end) {
        uint32_t word = bits[at / 32] >> at % 32;
        if (word) at += (uint32_t)__builtin_ctz(word);
        if (word) return at < end ? at : end;
        at = (at / 32 + 1) * 32;
    }
    return end;
}

/* Tokens that the automaton takes from a state, which is none of the levels. declared: only those that, inside of a
 * key, spell a declared one or its beginning. only: NULL, or bits of tokens, by their places in the trie; others may be
 * left out. */
static void walk_some(const mask *m, const token_trie *t, const automaton_state *from, bool declared,
                      const uint32_t *only, token_filter *filter, const void *user) {
    mask_space *s = m->space;
    automaton_inner_begin(from, &s->inner[0]);
    for (uint32_t i = 0; i < t->nodes[0].first; i++)
        if (!filter || filter(user, i)) allow(m, t->tokens[i]);
    for (uint32_t i = 0; i < t->n;) {
        const token_trie_node *node = &t->nodes[i];
        if (only && next_bit(only, node->first, t->nodes[node->end].first) == t->nodes[node->end].first) {
            i = node->end;
            continue;
        }
        const automaton_inner *here = &s->inner[node->depth];
        automaton_inner *next = &s->inner[node->depth + 1];
        inner_result result = automaton_inner_step(m->p, here, node->byte, next);
        if (result == INNER_LEAVES) {
            automaton_inner_state(here, &s->scratch[0]);
            if (automaton_read(m->p, &s->scratch[0], node->byte, &s->levels[node->depth])) {
                automaton_inner_begin(&s->levels[node->depth], next);
                result = INNER_GOES_ON;
            } else {
                result = INNER_REFUSED;
            }
        }
        if (result != INNER_REFUSED && next->n > s->most_ways) s->most_ways = next->n;
        if (result == INNER_REFUSED || (declared && next->base == from && !spells_declared_key(next))) {
            i = node->end;
            continue;
        }
        for (uint32_t k = node->first; k < t->nodes[i + 1].first; k++)
            if (!filter || filter(user, k)) allow(m, t->tokens[k]);
        i++;
    }
}

static void walk(const mask *m, const token_trie *t, const automaton_state *from, token_filter *filter,
                 const void *user) {
    walk_some(m, t, from, false, NULL, filter, user);
}

/* The only way, without its innermost value, which has ended. */
static const automaton_state *closed_state(const mask *m, const automaton_configuration *c) {
    automaton_state *out = &m->space->scratch[1];
    out->n = 1;
    automaton_copy_way(&out->ways[0], c, c->depth - 1);
    return out;
}

/* ---------------------------------------------------------------------------------------------------------- strings */

typedef struct string_limits {
    const token_set *set;
    uint64_t least, most; /* characters that must come, and that may */
} string_limits;

static bool within_limits(const void *user, uint32_t i) {
    const string_limits *l = user;
    return l->set->characters[i] >= l->least && l->set->characters[i] <= l->most;
}

static const token_set *string_set(const mask *m, const grammar_node *node) {
    return &m->g->tokens->sets[node->form == GRAMMAR_JSON ? TOKEN_JSON_STRING : TOKEN_CALL_STRING];
}

/* Tokens that stay inside of the string, or NULL. */
static const uint32_t *inside_string(const mask *m, const automaton_configuration *c) {
    const automaton_frame *own = &c->open[c->depth - 1];
    const grammar_node *node = &m->p->nodes[own->node];
    if (node->kind != NODE_STRING || own->at != 1 + BETWEEN) return NULL;
    uint64_t room = node->maximum == GRAMMAR_NO_LIMIT ? UINT64_MAX : node->maximum - own->seen;
    return token_set_inside(string_set(m, node), m->g->tokens->vocab, room);
}

static void mask_string(const mask *m, const automaton_configuration *c, const uint32_t *inside) {
    const automaton_frame *own = &c->open[c->depth - 1];
    const grammar_node *node = &m->p->nodes[own->node];
    const token_set *set = string_set(m, node);
    allow_set(m, inside);
    if (node->form != GRAMMAR_JSON) return; /* a token of its own ends it */
    string_limits limits = {set, own->seen < node->minimum ? node->minimum - own->seen : 0,
                            node->maximum == GRAMMAR_NO_LIMIT ? UINT64_MAX : node->maximum - own->seen};
    walk(m, &set->closers, closed_state(m, c), within_limits, &limits);
}

/* ------------------------------------------------------------------------------------------------------------ ranks */

/* While the whole tree is walked, tokens are known by their places in the order of their texts, since those below a
 * node follow one another there: all may come, but those that are taken out. */
static void begin_ranks(const mask *m) {
    memset(m->space->ranks, 0xFF, token_set_words(m->g->tokens->vocab) * sizeof *m->space->ranks);
}

static void refuse_ranks(const mask *m, uint32_t first, uint32_t end) {
    uint32_t *ranks = m->space->ranks;
    if (first == end) return;
    uint32_t low = ~(UINT32_MAX << first % 32), high = UINT32_MAX << (end - 1) % 32 << 1; /* what stays */
    if (first / 32 == (end - 1) / 32) {
        ranks[first / 32] &= low | high;
        return;
    }
    ranks[first / 32] &= low;
    memset(&ranks[first / 32 + 1], 0, ((end - 1) / 32 - first / 32 - 1) * sizeof *ranks);
    ranks[(end - 1) / 32] &= high;
}

/* The tokens that are left, into space->bits. */
static void end_ranks(const mask *m) {
    const token_table *tokens = m->g->tokens;
    const token_trie *t = &tokens->all;
    mask_space *s = m->space;
    uint32_t left = 0;
    refuse_ranks(m, t->n_tokens, (uint32_t)(32 * token_set_words(tokens->vocab)));
    for (uint32_t i = 0; i < token_set_words(tokens->vocab); i++) left += (uint32_t)__builtin_popcount(s->ranks[i]);
    bool most = left > t->n_tokens / 2; /* those that are missing are fewer then */
    if (most)
        memcpy(s->bits, tokens->texts, token_set_words(tokens->vocab) * sizeof *s->bits);
    else
        memset(s->bits, 0, token_set_words(tokens->vocab) * sizeof *s->bits);
    for (uint32_t i = 0; i < t->n_tokens; i += 32) {
        uint32_t word = most ? ~s->ranks[i / 32] : s->ranks[i / 32];
        if (t->n_tokens - i < 32) word &= ~(UINT32_MAX << (t->n_tokens - i));
        for (; word; word &= word - 1) {
            uint32_t token = (uint32_t)t->tokens[i + (uint32_t)__builtin_ctz(word)];
            s->bits[token / 32] ^= 1u << (token % 32);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------ expressions */

enum { FEW_TOKENS = 4096 }; /* that are read one by one */

/* Of an expression that ends with a quote: what its automaton makes of a token's beginning. */
typedef struct expression {
    const mask *m;
    const grammar_node *node;
    automaton_frame own;
    bool alone; /* nothing is around it, so nothing follows */
} expression;

static bool count_letter(const grammar_node *node, automaton_frame *own, uint32_t next) {
    return !node->shortest || automaton_count_character(node, own, next);
}

static bool ends_expression(const void *user, uint32_t i) {
    const expression *e = user;
    const token_set *set = &e->m->g->tokens->sets[TOKEN_JSON_STRING];
    size_t bytes;
    const char *text = token_table_text(e->m->g->tokens, set->closers.tokens[i], &bytes);
    automaton_frame own = e->own;
    for (size_t k = 0;; k++) {
        uint16_t next = dfa_next(&e->node->dfa, own.at, (unsigned char)text[k]);
        if (next == DFA_REFUSED || !count_letter(e->node, &own, next)) return false;
        bool goes_on = e->node->dfa.flags[next] & DFA_GOES_ON;
        if (k == set->before[i]) return !goes_on;
        if (!goes_on) return false;
        own.at = next;
    }
}

/* A state that a text is read to, with so many characters since the place where it stands now. */
static void note_lengths(const grammar_node *node, uint64_t characters, uint32_t begun, uint32_t next,
                         reach_lengths *lengths) {
    uint64_t extra = characters + node->shortest[next] + 1;
    uint32_t own = extra > begun ? (uint32_t)(extra - begun) : 0;
    if (own < lengths->least_extra) lengths->least_extra = own;
    if (own > lengths->most_extra) lengths->most_extra = own;
    if (node->longest[next] < lengths->longest) lengths->longest = node->longest[next];
}

/* Tokens that stay inside of the expression, into space->bits; with counted lengths those that do from here, otherwise
 * all, and what counting makes of them. False: it may end other than by its last letter, the quote of a string that is
 * read like one, so that its tokens are to be walked. */
static bool find_inside(const expression *e, bool counted, reach_lengths *lengths) {
    const token_table *tokens = e->m->g->tokens;
    const token_trie *t = &tokens->all;
    const token_set *set = &tokens->sets[TOKEN_JSON_STRING];
    const grammar_node *node = e->node;
    const dfa *d = &node->dfa;
    const reach_reader reader = {.dfa = d,
                                 .wanted = DFA_GOES_ON,
                                 .unwanted = e->alone ? 0 : DFA_ACCEPTS,
                                 .shortest = node->shortest,
                                 .longest = node->longest};
    mask_space *s = e->m->space;
    uint32_t taken = 0; /* alphabets */
    *lengths = REACH_NO_LENGTHS;
    begin_ranks(e->m);
    character_reach_begin(s->reach, &reader);
    const uint32_t read = counted ? e->own.seen : 0;
    for (uint32_t i = 0; i < t->n;) {
        const token_trie_node *byte = &t->nodes[i];
        uint32_t from = byte->depth ? s->at[byte->depth - 1] : e->own.at;
        uint16_t next = dfa_next(d, from, byte->byte);
        if (next == DFA_REFUSED) {
            refuse_ranks(e->m, byte->first, t->nodes[byte->end].first);
            i = byte->end;
            continue;
        }
        const character_kinds *below = &tokens->below[i];
        bool ends = !(d->flags[next] & DFA_GOES_ON);
        uint64_t room = UINT64_MAX, missing = 0;
        if (node->shortest) {
            automaton_frame own = {.at = from, .seen = byte->depth ? s->seen[byte->depth - 1] : read};
            if (counted && !automaton_count_character(node, &own, next)) {
                refuse_ranks(e->m, byte->first, t->nodes[byte->end].first);
                i = byte->end;
                continue;
            }
            if (!counted) {
                own.seen += own.at && (d->flags[next] & DFA_CHARACTER);
                if (!ends) note_lengths(node, own.seen, below->begun, next, lengths);
            }
            s->seen[byte->depth] = own.seen;
            room = counted ? node->maximum - (uint64_t)own.seen : UINT64_MAX;
            missing = counted && node->minimum > own.seen ? node->minimum - own.seen : 0;
        }
        if (!ends && !e->alone && (d->flags[next] & DFA_ACCEPTS)) return false;
        if (ends) {
            for (uint32_t k = byte->first; !e->alone && k < t->nodes[byte->end].first; k++)
                if (set->closes[t->tokens[k]] != byte->depth + 1) return false;
            refuse_ranks(e->m, t->nodes[i + 1].first, t->nodes[byte->end].first);
            i = byte->end;
            continue;
        }
        s->at[byte->depth] = next;
        i++;
        if (below->bytes == 0 || !character_reach_takes(s->reach, next, below)) continue;
        if (node->shortest) {
            const reach_lengths *own = &s->reach->lengths[below->alphabet];
            if (below->characters + (uint64_t)own->most_extra > room || own->longest < missing) continue;
            taken |= UINT32_C(1) << below->alphabet;
        }
        i = byte->end;
    }
    for (uint32_t i = 0; i < ALPHABETS; i++)
        if (taken >> i & 1) reach_lengths_widen(lengths, &s->reach->lengths[i]);
    end_ranks(e->m);
    return true;
}

/* Whether a token that stays inside can be read with what has been counted so far. What completes a text becomes
 * neither shorter nor longer than was thought before, so its end tells. */
static bool counts_token(const expression *e, int32_t token) {
    const dfa *d = &e->node->dfa;
    size_t bytes;
    const char *text = token_table_text(e->m->g->tokens, token, &bytes);
    uint64_t seen = e->own.seen;
    uint16_t at = (uint16_t)e->own.at;
    for (size_t i = 0; i < bytes; i++) {
        at = dfa_next(d, at, (unsigned char)text[i]);
        seen += (d->flags[at] & DFA_CHARACTER) != 0;
    }
    return seen + e->node->shortest[at] <= e->node->maximum && seen + e->node->longest[at] >= e->node->minimum;
}

/* Of the tokens in space->bits that stay inside, allows those that lengths leave: of most the number of their
 * characters tells. False: it does not, and they must be found with counted lengths. */
static bool allow_counted(const expression *e, const reach_lengths *lengths) {
    const mask *m = e->m;
    const grammar_node *node = e->node;
    const token_set *set = &m->g->tokens->sets[TOKEN_JSON_STRING];
    const int32_t vocab = m->g->tokens->vocab;
    const size_t words = token_set_words(vocab);
    size_t unsure = 0;
    if (node->minimum > e->own.seen + (uint64_t)lengths->longest) return false;
    const uint32_t *all = token_set_inside(set, vocab, UINT64_MAX), *sure = all, *may = NULL;
    if (node->maximum != GRAMMAR_NO_LIMIT) {
        uint64_t room = node->maximum - e->own.seen + UINT64_C(1);
        bool some = room >= lengths->most_extra, more = room >= lengths->least_extra;
        sure = some ? token_set_inside(set, vocab, room - lengths->most_extra) : NULL;
        may = more ? token_set_inside(set, vocab, room - lengths->least_extra) : NULL;
        if ((some && !sure) || (more && !may)) return false;
    }
    for (size_t i = 0; i < words; i++) {
        uint32_t bits = m->space->bits[i], left = sure ? bits & ~sure[i] : bits;
        if (i < m->n_words) m->allowed[i] |= bits & ~left;
        m->space->bits[i] = left & (~all[i] | (may ? may[i] : 0));
        unsure += (size_t)__builtin_popcount(m->space->bits[i]);
    }
    /* with hardly any room, walking comes to an end soon */
    if (unsure > FEW_TOKENS && e->own.seen + (uint64_t)node->shortest[e->own.at] + 2 > node->maximum) return false;
    for (size_t i = 0; i < words; i++) {
        for (uint32_t left = m->space->bits[i]; left; left &= left - 1) {
            int32_t token = (int32_t)(32 * i) + __builtin_ctz(left);
            if (counts_token(e, token)) allow(m, token);
        }
    }
    return true;
}

/* Whether a token stays inside of the expression; *walked: it may end other than by its quote. */
static bool stays_inside(const expression *e, int32_t token, bool *walked) {
    const token_table *tokens = e->m->g->tokens;
    size_t bytes;
    const char *text = token_table_text(tokens, token, &bytes);
    automaton_frame own = e->own;
    for (size_t i = 0; i < bytes; i++) {
        uint16_t next = dfa_next(&e->node->dfa, own.at, (unsigned char)text[i]);
        if (next == DFA_REFUSED || !count_letter(e->node, &own, next)) return false;
        if (!(e->node->dfa.flags[next] & DFA_GOES_ON)) {
            *walked |= !e->alone && tokens->sets[TOKEN_JSON_STRING].closes[token] != i + 1;
            return i + 1 == bytes;
        }
        *walked |= !e->alone && (e->node->dfa.flags[next] & DFA_ACCEPTS);
        own.at = next;
    }
    return true;
}

/* Where other ways allow nearly all tokens, the few that are left are read. False: they are more, or are to be walked.
 */
static bool allow_few_inside(const expression *e) {
    const mask *m = e->m;
    const token_table *tokens = m->g->tokens;
    size_t words = token_set_words(tokens->vocab), left = 0;
    bool walked = false;
    if (words > m->n_words) return false;
    for (size_t i = 0; i < words; i++) left += (size_t)__builtin_popcount(tokens->texts[i] & ~m->allowed[i]);
    if (left > FEW_TOKENS) return false;
    for (size_t i = 0; i < words; i++) {
        for (uint32_t word = tokens->texts[i] & ~m->allowed[i]; word; word &= word - 1) {
            int32_t token = (int32_t)(32 * i) + __builtin_ctz(word);
            if (stays_inside(e, token, &walked)) allow(m, token);
        }
    }
    return !walked;
}

/* Allows tokens that stay inside of the expression. */
static bool allow_inside_expression(const mask *m, const expression *e) {
    mask_cache *cache = m->g->tokens->cache;
    mask_key key = {m->g->number, e->node->twin, e->own.at};
    reach_lengths lengths;
    uint8_t flags = e->node->dfa.flags[e->own.at];
    bool counted = e->node->shortest != NULL;
    if (!e->alone && (flags & DFA_ACCEPTS)) return false;
    if (!counted && mask_cache_add_bits(cache, key, m->allowed, m->n_words)) return true;
    if (allow_few_inside(e)) return true;
    if (!counted || (flags & DFA_CHARACTER)) { /* the vocabulary's characters are those of the text */
        if (!counted || !mask_cache_get(cache, key, m->space->bits, &lengths)) {
            if (!find_inside(e, false, &lengths)) return false;
            mask_cache_put(cache, key, &lengths, m->space->bits);
        }
        if (counted && allow_counted(e, &lengths)) return true;
    }
    if (counted && !find_inside(e, true, &lengths)) return false;
    allow_set(m, m->space->bits);
    return true;
}

static bool mask_expression(const mask *m, const automaton_configuration *c) {
    const automaton_frame *own = &c->open[c->depth - 1];
    const expression e = {m, &m->p->nodes[own->node], *own, c->depth == 1};
    if (e.node->kind != NODE_DFA || !allow_inside_expression(m, &e)) return false;
    if (!e.alone) walk(m, &m->g->tokens->sets[TOKEN_JSON_STRING].closers, closed_state(m, c), ends_expression, &e);
    return true;
}

/* ------------------------------------------------------------------------------------------------------------- keys */

typedef struct key_place {
    const mask *m;
    const grammar_node *node;
    const automaton_configuration *c;
} key_place;

/* Whether a token ends a key that is not declared and has not come yet. Those that spell a declared one are walked. */
static bool ends_new_key(const void *user, uint32_t i) {
    const key_place *k = user;
    const token_set *set = &k->m->g->tokens->sets[TOKEN_JSON_KEY];
    size_t bytes;
    const char *text = token_table_text(k->m->g->tokens, set->closers.tokens[i], &bytes);
    automaton_key key = k->c->key;
    for (size_t at = 0; at < set->before[i]; at++) {
        key.hash = automaton_hash_letter(key.hash, (unsigned char)text[at]);
        if (key.word != TRIE_NONE) key.word = trie_next(&k->node->words, key.word, (unsigned char)text[at]);
    }
    return key.word == TRIE_NONE && !automaton_is_remembered(k->node, k->c, k->c->depth, key.hash);
}

/* Walks tokens that end a key which may still be a declared one. */
static void walk_declared(const mask *m, const automaton_state *from, const key_place *k) {
    const token_set *set = &m->g->tokens->sets[TOKEN_JSON_KEY];
    const token_trie *t = &set->spelled;
    uint32_t *word = m->space->seen;
    for (uint32_t i = 0; i < t->n;) {
        const token_trie_node *node = &t->nodes[i];
        uint32_t before = node->depth ? word[node->depth - 1] : k->c->key.word;
        bool quote = node->byte == '"' && set->closes[t->tokens[node->first]] == node->depth + 1;
        if (quote) {
            for (uint32_t j = node->first; j < t->nodes[node->end].first; j++) {
                size_t bytes;
                const char *text = token_table_text(m->g->tokens, t->tokens[j], &bytes);
                if (!automaton_takes(m->p, from, text, bytes, m->space->levels)) continue;
                allow(m, t->tokens[j]);
                for (size_t at = 0; at < bytes; at++)
                    if (m->space->levels[at].n > m->space->most_ways) m->space->most_ways = m->space->levels[at].n;
            }
            i = node->end;
            continue;
        }
        word[node->depth] = trie_next(&k->node->words, before, node->byte);
        i = word[node->depth] == TRIE_NONE ? node->end : i + 1;
    }
}

/* A key that need not be declared: tokens stay inside of it whatever it spells. */
static bool mask_key_text(const mask *m, const automaton_state *from) {
    const automaton_configuration *c = &from->ways[0];
    const grammar_node *node = &m->p->nodes[c->open[c->depth - 1].node];
    const token_set *set = &m->g->tokens->sets[TOKEN_JSON_KEY];
    key_place k = {m, node, c};
    if (node->kind != NODE_OBJECT || node->form != GRAMMAR_JSON || node->n_rests) return false;
    if (place_of(c->open[c->depth - 1].at) != PLACE_KEY || c->key.text != BETWEEN) return false;
    if (!automaton_other_keys_are_open(m->p, node, c, c->depth)) return false;
    allow_set(m, token_set_inside(set, m->g->tokens->vocab, UINT64_MAX));
    if (c->key.word != TRIE_NONE) walk_declared(m, from, &k);
    walk(m, &set->twice, from, NULL, NULL);
    automaton_state *closed = &m->space->scratch[1], *open = &m->space->levels[0];
    automaton_copy(open, from);
    open->ways[0].key = (automaton_key){.hash = 1, .word = TRIE_NONE, .text = BETWEEN};
    while (automaton_is_remembered(node, &open->ways[0], c->depth, open->ways[0].key.hash)) open->ways[0].key.hash++;
    if (automaton_read(m->p, open, '"', closed)) walk(m, &set->closers, closed, ends_new_key, &k);
    return true;
}

/* Of a key that patterns tell apart, an item of a set, or a part that tells items apart: tokens that stay inside, into
 * space->bits, as far as at least so many begin so. Those where they may run out, or where an item ends
 * other than by its quote, into space->unsure, by their places in the tree. */
static void find_inside_key(const mask *m, const grammar_node *node, uint32_t text, uint16_t least) {
    const token_trie *t = &m->g->tokens->all;
    mask_space *s = m->space;
    const bool item = node->kind != NODE_OBJECT; /* which the quote ends that is a part of it */
    const reach_reader reader = {.dfa = &node->dfa,
                                 .unwanted = item ? DFA_ACCEPTS : 0,
                                 .completions = node->completions,
                                 .least_completions = least};
    begin_ranks(m);
    memset(s->unsure, 0, token_set_words(m->g->tokens->vocab) * sizeof *s->unsure);
    character_reach_begin(s->reach, &reader);
    for (uint32_t i = 0; i < t->n;) {
        const token_trie_node *byte = &t->nodes[i];
        uint16_t next = dfa_next(&node->dfa, byte->depth ? s->at[byte->depth - 1] : text, byte->byte);
        bool ends = next != DFA_REFUSED && item && (node->dfa.flags[next] & DFA_ACCEPTS);
        if (next == DFA_REFUSED || (ends && byte->byte == '"')) { /* the latter is read as what has a quote */
            refuse_ranks(m, byte->first, t->nodes[byte->end].first);
            i = byte->end;
            continue;
        }
        if (ends || node->completions[next] < least) {
            uint32_t end = t->nodes[byte->end].first;
            for (uint32_t k = byte->first; k < end; k++) s->unsure[k / 32] |= 1u << k % 32;
            refuse_ranks(m, byte->first, end);
            i = byte->end;
            continue;
        }
        s->at[byte->depth] = next;
        const character_kinds *below = &m->g->tokens->below[i];
        i = below->bytes && character_reach_takes(s->reach, next, below) ? byte->end : i + 1;
    }
    end_ranks(m);
}

/* Of an object's key: which of the tokens in space->unsure lead to a new one. Where the end does, all before it do. */
static void allow_new_keys(const mask *m, const automaton_configuration *c, const grammar_node *node) {
    const token_trie *t = &m->g->tokens->all;
    automaton_inner *levels = m->space->inner; /* a key each */
    levels[0].ways[0].key = c->key;
    for (uint32_t i = 0; i < t->n;) {
        const token_trie_node *byte = &t->nodes[i];
        const uint32_t end = t->nodes[byte->end].first, own_end = t->nodes[i + 1].first;
        const automaton_key *before = &levels[byte->depth].ways[0].key;
        automaton_key *key = &levels[byte->depth + 1].ways[0].key;
        key->text = dfa_next(&node->dfa, before->text, byte->byte);
        if (key->text == DFA_REFUSED || next_bit(m->space->unsure, byte->first, end) == end) {
            i = byte->end;
            continue;
        }
        key->hash = automaton_hash_letter(before->hash, byte->byte);
        key->word = before->word == TRIE_NONE ? TRIE_NONE : trie_next(&node->words, before->word, byte->byte);
        bool own = byte->first < own_end;
        if (own && !automaton_may_become_new(m->p, node, c, c->depth, *key)) {
            i = byte->end;
            continue;
        }
        for (uint32_t k = byte->first; k < own_end; k++) allow(m, t->tokens[k]);
        i++;
    }
}

/* In a state's place of a key of the cache. */
#define UNSURE   (UINT32_C(1) << 31)
#define FEW_KEYS (UINT32_C(1) << 30) /* at most SOME_KEYS are known */
enum { SOME_KEYS = 15 };

/* from: the state that has the way. */
static bool allow_inside_key(const mask *m, const automaton_state *from, const automaton_configuration *c) {
    const automaton_frame *own = &c->open[c->depth - 1];
    const grammar_node *node = &m->p->nodes[own->node];
    const token_table *tokens = m->g->tokens;
    const bool item = node->kind == NODE_SET || node->kind == NODE_DISTINCT;
    if (!item && node->kind != NODE_OBJECT) return false;
    if (node->form != GRAMMAR_JSON) return false;
    if (node->kind == NODE_DISTINCT ? own->at != 1 : place_of(own->at) != PLACE_KEY) return false;
    if (item && (node->dfa.flags[c->key.text] & DFA_ACCEPTS)) return false;
    if (!item && (c->key.text == AUTOMATON_NO_TEXT || !automaton_other_keys_are_open(m->p, node, c, c->depth)))
        return true;
    if (!item && node->n_rests == 0) {
        if (c->key.text != BETWEEN) return false;
        allow_set(m, token_set_inside(&tokens->sets[TOKEN_JSON_KEY], tokens->vocab, UINT64_MAX));
        return true;
    }
    uint32_t depth = node->kind == NODE_DISTINCT ? c->depth - node->level : c->depth;
    bool few = automaton_known_keys(node, c, depth) <= SOME_KEYS;
    mask_key key = {m->g->number, own->node, c->key.text | (few ? FEW_KEYS : 0)}, unsure = key;
    unsure.at |= UNSURE;
    reach_lengths lengths = REACH_NO_LENGTHS;
    if (!mask_cache_add_bits(tokens->cache, key, m->allowed, m->n_words) ||
        !mask_cache_get(tokens->cache, unsure, m->space->unsure, &lengths)) {
        find_inside_key(m, node, c->key.text, few ? SOME_KEYS + 1 : DFA_ENDLESS);
        mask_cache_put(tokens->cache, key, &lengths, m->space->bits);
        mask_cache_put(tokens->cache, unsure, &lengths, m->space->unsure);
        allow_set(m, m->space->bits);
    }
    if (item)
        walk_some(m, &tokens->all, from, false, m->space->unsure, NULL, NULL);
    else
        allow_new_keys(m, c, node);
    return true;
}

/* -------------------------------------------------------------------------------------------------------------- all */

/* Several ways: a string among them allows nearly everything. */
static bool mask_beside_string(const mask *m, const automaton_state *s) {
    for (uint32_t i = 0; i < s->n; i++) {
        const automaton_configuration *c = &s->ways[i];
        if (c->depth == 0) continue;
        const grammar_node *node = &m->p->nodes[c->open[c->depth - 1].node];
        const uint32_t *inside = inside_string(m, c);
        if (!inside) continue;
        const token_set *set = string_set(m, node);
        if (inside != token_set_inside(set, m->g->tokens->vocab, UINT64_MAX)) continue;
        allow_set(m, inside);
        walk(m, &set->others, s, NULL, NULL);
        return true;
    }
    return false;
}

static bool allow_inside(const mask *m, const automaton_state *from, const automaton_configuration *c) {
    const automaton_frame *own = &c->open[c->depth - 1];
    const grammar_node *node = &m->p->nodes[own->node];
    if (node->form != GRAMMAR_JSON) return false;
    if (node->kind == NODE_DFA) {
        const expression e = {m, node, *own, c->depth == 1};
        return allow_inside_expression(m, &e);
    }
    if (node->kind != NODE_STRING) return allow_inside_key(m, from, c);
    const uint32_t *inside = inside_string(m, c);
    if (inside) allow_set(m, inside);
    return inside != NULL;
}

/* Whether an earlier way is in the same state of the same expression. */
static bool is_repeated(const mask *m, const automaton_state *from, uint32_t way) {
    const automaton_configuration *c = &from->ways[way];
    const automaton_frame *own = &c->open[c->depth - 1];
    const grammar_node *node = &m->p->nodes[own->node];
    for (uint32_t i = 0; node->kind == NODE_DFA && i < way; i++) {
        const automaton_configuration *other = &from->ways[i];
        const automaton_frame *before = &other->open[other->depth - 1];
        if (m->p->nodes[before->node].kind == NODE_DFA && m->p->nodes[before->node].twin == node->twin &&
            before->at == own->at && before->seen == own->seen && (other->depth == 1) == (c->depth == 1))
            return true;
    }
    return false;
}

/* Every way is inside of a string or of a key, which a quote ends: what stays inside of one of them, what has a quote,
 * and beginnings of declared keys. */
static bool mask_several(const mask *m, const automaton_state *from) {
    bool declared = false;
    if (from->n == 1 && from->ways[0].depth > 0) {
        node_kind kind = m->p->nodes[from->ways[0].open[from->ways[0].depth - 1].node].kind;
        if (kind != NODE_OBJECT && kind != NODE_SET && kind != NODE_DISTINCT) return false;
    }
    for (uint32_t i = 0; i < from->n; i++) {
        if (from->ways[i].depth == 0) return false;
        if (!is_repeated(m, from, i) && !allow_inside(m, from, &from->ways[i])) return false;
        const automaton_frame *own = &from->ways[i].open[from->ways[i].depth - 1];
        declared |= m->p->nodes[own->node].kind == NODE_OBJECT && from->ways[i].key.word != TRIE_NONE;
    }
    walk(m, &m->g->tokens->quoted, from, NULL, NULL);
    if (declared) walk_some(m, &m->g->tokens->all, from, true, NULL, NULL, NULL);
    return true;
}

/* One way, where tokens that stay inside of its innermost value are a set. */
static bool mask_one(const mask *m, const automaton_state *s) {
    const automaton_configuration *c = &s->ways[0];
    const uint32_t *inside = inside_string(m, c);
    if (inside) mask_string(m, c, inside);
    return inside || mask_expression(m, c) || mask_key_text(m, s);
}

/* Several ways, each by itself where that is quick, and the others together. False: none is, or reading all at once
 * might drop some, which reading them apart does not. */
static bool mask_parts(const mask *m, const automaton_state *from) {
    mask_space *s = m->space;
    automaton_state *one = &s->scratch[2], *rest = &s->scratch[3];
    mask part = *m;
    uint32_t ways = 0;
    part.allowed = s->parts;
    part.n_words = token_set_words(m->g->tokens->vocab);
    memset(s->parts, 0, part.n_words * sizeof *s->parts);
    rest->n = 0;
    for (uint32_t i = 0; i < from->n; i++) {
        const automaton_configuration *c = &from->ways[i];
        if (c->depth == 0) continue; /* nothing follows */
        one->n = 1;
        automaton_copy_way(&one->ways[0], c, c->depth);
        s->most_ways = 1;
        if (mask_one(&part, one))
            ways += s->most_ways;
        else
            automaton_copy_way(&rest->ways[rest->n++], c, c->depth);
    }
    if (rest->n == from->n) return false;
    s->most_ways = rest->n;
    if (rest->n) walk(&part, &m->g->tokens->all, rest, NULL, NULL);
    if (ways + s->most_ways > AUTOMATON_MAX_WAYS) return false;
    allow_set(m, s->parts);
    return true;
}

void mask_text(const kakeya_grammar *g, const automaton_state *s, mask_space *space, uint32_t *allowed,
               size_t n_words) {
    const mask m = {g, &g->program, space, allowed, n_words};
    if (s->n == 1 && s->ways[0].depth > 0) {
        if (mask_one(&m, s)) return;
    } else if (mask_beside_string(&m, s)) {
        return;
    }
    if (mask_several(&m, s) || (s->n > 1 && mask_parts(&m, s))) return;
    walk(&m, &g->tokens->all, s, NULL, NULL);
}
