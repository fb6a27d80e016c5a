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
    free(t->ranks);
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

static text_slot *added_slot(const tokenizer_tables *t, const added_set *set, uint64_t hash, const char *text,
                             size_t bytes) {
    size_t at = fold(hash) & set->mask;
    for (; set->slots[at].index >= 0; at = (at + 1) & set->mask) {
        if (set->slots[at].tag != (uint32_t)hash) continue;
        const added_token *found = &set->tokens[set->slots[at].index];
        if (found->bytes == bytes && memcmp(t->text + found->offset, text, bytes) == 0) break;
    }
    return &set->slots[at];
}

text_slot *tokenizer_added_slot(const tokenizer_tables *t, const added_set *set, const char *text, size_t bytes) {
    return added_slot(t, set, tokenizer_hash(text, bytes), text, bytes);
}

const added_token *tokenizer_find_added(const tokenizer_tables *t, const added_set *set, const char *text, size_t bytes,
                                        bool special) {
    const unsigned char *p = (const unsigned char *)text;
    unsigned pair = bytes > 1 ? (unsigned)p[0] << 8 | p[1] : 0;
    bool begins = bytes > 1 && (set->begins[pair / 64] >> pair % 64 & 1);
    size_t most = !begins ? 1 : bytes < set->longest ? bytes : set->longest;
    if (!begins && !set->alone[p[0]]) return NULL;
    const added_token *longest = NULL;
    uint64_t hash = HASH_FNV1A_START;
    for (size_t n = 1; n <= most; n++) {
        hash = hash_fnv1a(hash, text + n - 1, 1);
        int32_t index = set->lengths[n] ? added_slot(t, set, hash, text, n)->index : -1;
        if (index >= 0 && (special || !set->tokens[index].special)) longest = &set->tokens[index];
    }
    return longest;
}

merge *tokenizer_merge_slot(const tokenizer_tables *t, int32_t left, int32_t right) {
    size_t at = fold((uint64_t)(uint32_t)left << 32 | (uint32_t)right) & t->merge_mask;
    for (; t->merges[at].left >= 0; at = (at + 1) & t->merge_mask) {
        if (t->merges[at].left == left && t->merges[at].right == right) break;
    }
    return &t->merges[at];
}

/* The piece of two pieces' joined text, -1 if there is none. */
static int32_t find_joined(const tokenizer_tables *t, const piece *left, const piece *right) {
    const char *l = t->text + left->offset, *r = t->text + right->offset;
    uint64_t hash = hash_fnv1a(tokenizer_hash(l, left->bytes), r, right->bytes);
    for (size_t at = fold(hash) & t->piece_mask; t->piece_slots[at].index >= 0; at = (at + 1) & t->piece_mask) {
        if (t->piece_slots[at].tag != (uint32_t)hash) continue;
        const piece *found = &t->pieces[t->piece_slots[at].index];
        const char *text = t->text + found->offset;
        if (found->bytes == left->bytes + right->bytes && memcmp(text, l, left->bytes) == 0 &&
            memcmp(text + left->bytes, r, right->bytes) == 0)
            return t->piece_slots[at].index;
    }
    return -1;
}

bool tokenizer_find_merge(const tokenizer_tables *t, int32_t left, int32_t right, merge *out) {
    if (!t->ranks) {
        *out = *tokenizer_merge_slot(t, left, right);
        return out->left >= 0;
    }
    if (t->ranks[left] == TOKENIZER_NO_RANK || t->ranks[right] == TOKENIZER_NO_RANK) return false;
    int32_t product = find_joined(t, &t->pieces[left], &t->pieces[right]);
    if (product < 0 || t->ranks[product] == TOKENIZER_NO_RANK) return false;
    *out = (merge){.left = left, .right = right, .product = product, .rank = t->ranks[product]};
    return true;
}
