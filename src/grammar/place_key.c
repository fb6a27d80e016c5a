#include "grammar/place_key.h"

#include <string.h>

#include "grammar/automaton_keys.h"

/* A count that `more` more cannot bring to a limit stands for all such. Counts below `from` are places in a list. */
static uint32_t count_as_far_as_it_matters(uint32_t count, uint32_t from, const grammar_node *node, uint64_t more) {
    if (count < from) return count;
    if (count + more < node->minimum) return (uint32_t)(node->minimum - more - 1);
    if (count >= node->minimum && node->maximum != GRAMMAR_NO_LIMIT && count + more < node->maximum)
        return node->minimum > from ? node->minimum : from;
    return count;
}

/* frame->seen, as far as texts of so many letters depend on it. */
static uint32_t seen_of(const grammar_node *node, const automaton_frame *frame, uint64_t letters) {
    switch (node->kind) {
    case NODE_STRING: /* a letter begins a character at most */
        return count_as_far_as_it_matters(frame->seen, 0, node, letters);
    case NODE_ARRAY:
        if (node->n_rests || node->distinct != GRAMMAR_NOTHING) return frame->seen;
        return count_as_far_as_it_matters(frame->seen, node->n_children, node, letters);
    case NODE_REPEAT: /* one may end and another begin with a letter */
        return count_as_far_as_it_matters(frame->seen, 0, node, 2 * letters + 2);
    default:
        return frame->seen;
    }
}

/* Inside of a key that is none of the declared ones, or of an item that must differ from others: few come again. */
static bool is_in_other_key(const automaton_configuration *c) {
    return c->key.hash != 0 && c->key.word == TRIE_NONE && c->key.text != AUTOMATON_NO_TEXT;
}

static uint64_t hash_of(const uint32_t *words, uint32_t n) {
    uint64_t a = n, b = 0;
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        uint64_t x, y;
        memcpy(&x, words + i, sizeof x);
        memcpy(&y, words + i + 2, sizeof y);
        a = (a ^ x) * UINT64_C(0x9E3779B97F4A7C15);
        b = (b ^ y) * UINT64_C(0xD6E8FEB86659FD93);
        a ^= a >> 32;
        b ^= b >> 32;
    }
    for (; i < n; i++) a = (a ^ words[i]) * UINT64_C(0x9E3779B97F4A7C15);
    a = (a ^ a >> 29 ^ b) * UINT64_C(0xBF58476D1CE4E5B9);
    return a ^ a >> 32;
}

bool place_key_make(const grammar_program *p, uint64_t grammar, place_question question, const automaton_state *s,
                    uint32_t letters, place_key *out) {
    enum { HEAD = 4, WAY = 6, FRAME = sizeof(automaton_frame) / sizeof(uint32_t) };
    _Static_assert(sizeof(automaton_frame) % sizeof(uint32_t) == 0, "frames are words");
    uint32_t n = HEAD, *words = out->words;
    words[0] = (uint32_t)question;
    words[1] = (uint32_t)grammar;
    words[2] = (uint32_t)(grammar >> 32);
    words[3] = s->n;
    for (uint32_t i = 0; i < s->n; i++) {
        const automaton_configuration *c = &s->ways[i];
        if (n + WAY + c->depth * FRAME + 2 * c->n_words > PLACE_KEY_WORDS || is_in_other_key(c)) return false;
        const uint32_t way[WAY] = {c->depth,    c->n_words, (uint32_t)c->key.hash, (uint32_t)(c->key.hash >> 32),
                                   c->key.word, c->key.text};
        memcpy(words + n, way, sizeof way);
        n += WAY;
        for (uint32_t k = 0; k < c->depth; k++, n += FRAME) {
            automaton_frame frame = c->open[k];
            if (letters != UINT32_MAX) frame.seen = seen_of(&p->nodes[frame.node], &frame, letters);
            memcpy(words + n, &frame, sizeof frame);
        }
        if (c->n_words) memcpy(words + n, c->words, c->n_words * sizeof *c->words);
        n += 2 * c->n_words;
    }
    out->n = n;
    out->hash = hash_of(words, n);
    return true;
}

bool place_keys_agree(const place_key *a, const uint32_t *words, uint32_t n) {
    return a->n == n && memcmp(a->words, words, n * sizeof *words) == 0;
}
