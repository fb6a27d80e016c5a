/* Unions of many objects that a member with a value of its own tells apart. */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_private.h"

enum { FEW_OBJECTS = 8 };
#define NO_KEY UINT32_MAX

/* A key by the letters that lead to it. */
typedef struct spelled {
    uint16_t letters[256];
    size_t n;
} spelled;

/* The letters of a word. */
static bool find_word(const trie *t, uint32_t at, uint32_t word, spelled *out) {
    const trie_node *own = &t->nodes[at];
    if (own->word == word) return true;
    for (uint32_t child = own->child; child != TRIE_NONE; child = t->nodes[child].sibling) {
        if (out->n == sizeof out->letters / sizeof *out->letters) return false;
        out->letters[out->n++] = t->nodes[child].letter;
        if (find_word(t, child, word, out)) return true;
        out->n--;
    }
    return false;
}

static uint32_t key_of(const grammar_node *object, const spelled *key) {
    uint32_t at = 0;
    if (object->words.n == 0) return NO_KEY;
    for (size_t i = 0; i < key->n && at != TRIE_NONE; i++) at = trie_next(&object->words, at, key->letters[i]);
    return at == TRIE_NONE || object->words.nodes[at].word == TRIE_NONE ? NO_KEY : object->words.nodes[at].word;
}

bool schema_same_key(const grammar_node *object, uint32_t key, const grammar_node *other, uint32_t *number) {
    spelled own = {.n = 0};
    if (object->words.n == 0 || !find_word(&object->words, 0, key, &own)) return false;
    *number = key_of(other, &own);
    return *number != NO_KEY;
}

/* The words that a member may be, if it is nothing else. NULL: it is something else. */
static const grammar_node *literal_of(const grammar_program *p, uint32_t node) {
    const grammar_node *own = &p->nodes[node];
    while (own->kind == NODE_UNION && own->n_children == 1) own = &p->nodes[own->children[0]];
    return own->kind == NODE_LITERAL ? own : NULL;
}

/* In the order of keys, only the first one that must be there can be read first. */
static bool may_come_first(const grammar_node *object, uint32_t key) {
    if (!object->required[key]) return false;
    for (uint32_t i = 0; i < key && !object->any_order; i++)
        if (object->required[i]) return false;
    return object->any_order || key == 0;
}

typedef struct telling {
    schema_compiler *c;
    uint32_t literal; /* the node of all words */
    uint32_t *turns, *keys;
    uint32_t n, capacity;
    bool failed; /* two objects have a word in common */
} telling;

static void add_word(telling *t, const uint16_t *letters, size_t n, uint32_t object, uint32_t key) {
    grammar_program *p = t->c->program;
    if (t->n == t->capacity) {
        uint32_t capacity = t->capacity ? 2 * t->capacity : 32;
        uint32_t *turns = realloc(t->turns, capacity * sizeof *turns);
        if (turns) t->turns = turns;
        uint32_t *keys = turns ? realloc(t->keys, capacity * sizeof *keys) : NULL;
        if (keys) t->keys = keys;
        if (!keys) {
            schema_out_of_memory(t->c);
            return;
        }
        t->capacity = capacity;
    }
    uint32_t word = t->n;
    if (!trie_add(&p->nodes[t->literal].words, letters, n, &word)) schema_out_of_memory(t->c);
    if (word != t->n) t->failed = t->failed || t->turns[word] != object;
    if (word != t->n || t->c->status) return;
    t->turns[t->n] = object;
    t->keys[t->n++] = key;
}

static void add_words(telling *t, const trie *words, uint32_t at, spelled *path, uint32_t object, uint32_t key) {
    const trie_node own = words->nodes[at];
    if (t->c->status || t->failed) return;
    if (own.word != TRIE_NONE) add_word(t, path->letters, path->n, object, key);
    for (uint32_t child = own.child; child != TRIE_NONE; child = words->nodes[child].sibling) {
        if (path->n == sizeof path->letters / sizeof *path->letters) {
            t->failed = true;
            return;
        }
        path->letters[path->n++] = words->nodes[child].letter;
        add_words(t, words, child, path, object, key);
        path->n--;
    }
}

/* Tries a key: every object must have it, with words of its own. */
static bool tell_apart_by(schema_compiler *c, uint32_t node, const spelled *key, telling *t) {
    *t = (telling){.c = c, .literal = schema_add_node(c, NODE_LITERAL)};
    for (uint32_t i = 0; !c->status && i < c->program->nodes[node].n_children && !t->failed; i++) {
        uint32_t at = c->program->nodes[node].children[i];
        const grammar_node *object = &c->program->nodes[at];
        if (object->kind != NODE_OBJECT) continue;
        uint32_t own = object->n_turns ? NO_KEY : key_of(object, key);
        const grammar_node *literal = own == NO_KEY ? NULL : literal_of(c->program, object->children[own]);
        t->failed = !literal || literal->words.n == 0 || !may_come_first(object, own);
        spelled path = {.n = 0};
        if (!t->failed) add_words(t, &literal->words, 0, &path, at, own);
    }
    return !c->status && !t->failed;
}

/* Puts one node in the place of the objects. */
static void replace(schema_compiler *c, uint32_t node, const spelled *key, telling *t) {
    uint32_t made = schema_add_node(c, NODE_OBJECT), word = 0, n = 0;
    schema_add_child(c, made, t->literal);
    if (c->status) return;
    grammar_node *own = &c->program->nodes[made];
    own->required = malloc(1);
    if (!own->required || !trie_add(&own->words, key->letters, key->n, &word)) {
        schema_out_of_memory(c);
        return;
    }
    own->required[0] = 1;
    own->turns = t->turns;
    own->turn_keys = t->keys;
    own->n_turns = t->n;
    t->turns = t->keys = NULL;
    grammar_node *all = &c->program->nodes[node];
    for (uint32_t i = 0; i < all->n_children; i++)
        if (c->program->nodes[all->children[i]].kind != NODE_OBJECT) all->children[n++] = all->children[i];
    all->n_children = n;
    schema_add_child(c, node, made);
}

void schema_tell_apart(schema_compiler *c, uint32_t node) {
    uint32_t objects = 0, first = GRAMMAR_NOTHING;
    if (c->status) return;
    for (uint32_t i = 0; i < c->program->nodes[node].n_children; i++) {
        uint32_t at = c->program->nodes[node].children[i];
        if (c->program->nodes[at].kind != NODE_OBJECT) continue;
        objects++;
        if (first == GRAMMAR_NOTHING) first = at;
    }
    if (objects <= FEW_OBJECTS) return;
    for (uint32_t k = 0; k < c->program->nodes[first].n_children && !c->status; k++) {
        spelled key = {.n = 0};
        telling t;
        const grammar_node *object = &c->program->nodes[first];
        if (!may_come_first(object, k) || !literal_of(c->program, object->children[k])) continue;
        if (!find_word(&object->words, 0, k, &key)) continue;
        bool done = tell_apart_by(c, node, &key, &t);
        if (done) replace(c, node, &key, &t);
        free(t.turns);
        free(t.keys);
        if (done) return;
    }
}
