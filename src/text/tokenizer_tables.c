#include "text/tokenizer_tables.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

static void free_added(added_set *set) {
    free(set->tokens);
    free(set->slots);
    free(set->lengths);
}

void tokenizer_tables_free(tokenizer_tables *t) {
    if (!t) return;
    free(t->text);
    free(t->pieces);
    free(t->piece_slots);
    free(t->merges);
    free_added(&t->verbatim);
    free_added(&t->normalized);
    free(t);
}

const piece *tokenizer_piece_at(const tokenizer_tables *t, int32_t id) {
    return id >= 0 && (size_t)id < t->n_pieces && t->pieces[id].defined ? &t->pieces[id] : NULL;
}

/* FNV-1a's low bits are weak on short keys that differ in their last byte; one multiply-and-fold spreads them. */
static size_t fold(uint64_t hash) {
    hash *= UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(hash ^ (hash >> 32));
}

uint64_t tokenizer_hash(const char *text, size_t bytes) { return hash_fnv1a(HASH_FNV1A_START, text, bytes); }

text_slot *tokenizer_piece_slot(const tokenizer_tables *t, uint64_t hash, const char *text, size_t bytes) {
    uint32_t tag = (uint32_t)hash;
    size_t at = fold(hash) & t->piece_mask;
    for (; t->piece_slots[at].index >= 0; at = (at + 1) & t->piece_mask) {
        if (t->piece_slots[at].tag != tag) continue;
        const piece *found = &t->pieces[t->piece_slots[at].index];
        if (found->bytes == bytes && memcmp(t->text + found->offset, text, bytes) == 0) break;
    }
    return &t->piece_slots[at];
}

int32_t tokenizer_find(const tokenizer_tables *t, const char *text, size_t bytes) {
    return tokenizer_piece_slot(t, tokenizer_hash(text, bytes), text, bytes)->index;
}

text_slot *tokenizer_added_slot(const tokenizer_tables *t, const added_set *set, const char *text, size_t bytes) {
    uint64_t hash = tokenizer_hash(text, bytes);
    size_t at = fold(hash) & set->mask;
    for (; set->slots[at].index >= 0; at = (at + 1) & set->mask) {
        if (set->slots[at].tag != (uint32_t)hash) continue;
        const added_token *found = &set->tokens[set->slots[at].index];
        if (found->bytes == bytes && memcmp(t->text + found->offset, text, bytes) == 0) break;
    }
    return &set->slots[at];
}

const added_token *tokenizer_find_added(const tokenizer_tables *t, const added_set *set, const char *text, size_t bytes,
                                        bool special) {
    if (!set->first_byte[(unsigned char)text[0]]) return NULL;
    for (size_t i = 0; i < set->n_lengths; i++) {
        if (set->lengths[i] > bytes) continue;
        int32_t index = tokenizer_added_slot(t, set, text, set->lengths[i])->index;
        if (index >= 0 && (special || !set->tokens[index].special)) return &set->tokens[index];
    }
    return NULL;
}

merge *tokenizer_merge_slot(const tokenizer_tables *t, int32_t left, int32_t right) {
    size_t at = fold((uint64_t)(uint32_t)left << 32 | (uint32_t)right) & t->merge_mask;
    for (; t->merges[at].left >= 0; at = (at + 1) & t->merge_mask) {
        if (t->merges[at].left == left && t->merges[at].right == right) break;
    }
    return &t->merges[at];
}

const merge *tokenizer_find_merge(const tokenizer_tables *t, int32_t left, int32_t right) {
    const merge *found = tokenizer_merge_slot(t, left, right);
    return found->left >= 0 ? found : NULL;
}
