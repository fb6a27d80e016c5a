#include "decode/ngram.h"

#include <string.h>

/* Knuth's multiplicative hash. The table is never more than half full, so a free entry ends every search. */
static ngram_head *head_of(ngram_head *heads, int bits, int32_t token) {
    uint32_t mask = ((uint32_t)1 << bits) - 1, at = (uint32_t)token * 2654435769u >> (32 - bits);
    while (heads[at].token >= 0 && heads[at].token != token) at = (at + 1) & mask;
    return &heads[at];
}

static ngram_head *heads_create(int bits, mem_account *account) {
    size_t n = (size_t)1 << bits;
    ngram_head *heads = mem_alloc(account, MEM_WORKSPACE, n * sizeof *heads);
    for (size_t i = 0; heads && i < n; i++) heads[i].token = -1;
    return heads;
}

/* Entries of tokens that were dropped stay in the table, so it can fill up while the text does not grow: then it is
 * made anew without them. */
static bool heads_suffice(const ngram_index *index, size_t n) {
    size_t more = n > index->n ? n - index->n : 0;
    return index->heads && 2 * (index->head_count + more) <= (size_t)1 << index->head_bits;
}

bool ngram_has_room(const ngram_index *index, size_t n) { return n <= index->room && heads_suffice(index, n); }

kakeya_status ngram_reserve(ngram_index *index, size_t n, mem_account *account, kakeya_error *error) {
    enum { LEAST_ROOM = 256 };
    if (ngram_has_room(index, n)) return KAKEYA_OK;
    size_t room = index->room ? index->room : LEAST_ROOM, old = index->heads ? (size_t)1 << index->head_bits : 0;
    while (room < n) room *= 2;
    int bits = 1;
    while ((size_t)1 << bits < 2 * room) bits++;
    int32_t *previous = mem_alloc(account, MEM_WORKSPACE, room * sizeof *previous);
    ngram_head *heads = previous ? heads_create(bits, account) : NULL;
    if (!previous || !heads) {
        mem_free(previous);
        mem_free(heads);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "n-gram index of %zu tokens: out of memory", room);
    }
    if (index->n) memcpy(previous, index->previous, index->n * sizeof *previous);
    size_t count = 0;
    for (size_t i = 0; i < old; i++) {
        if (!index->heads[i].place) continue;
        *head_of(heads, bits, index->heads[i].token) = index->heads[i];
        count++;
    }
    mem_free(index->heads);
    mem_free(index->previous);
    *index = (ngram_index){
        .heads = heads, .head_bits = bits, .head_count = count, .previous = previous, .room = room, .n = index->n};
    return KAKEYA_OK;
}

void ngram_free(ngram_index *index) {
    mem_free(index->heads);
    mem_free(index->previous);
    *index = (ngram_index){0};
}

void ngram_extend(ngram_index *index, const int32_t *tokens, size_t n) {
    for (; index->n < n; index->n++) {
        ngram_head *head = head_of(index->heads, index->head_bits, tokens[index->n]);
        if (head->token < 0) {
            *head = (ngram_head){.token = tokens[index->n]};
            index->head_count++;
        }
        index->previous[index->n] = head->place;
        head->place = (int32_t)index->n + 1;
    }
}

void ngram_truncate(ngram_index *index, const int32_t *tokens, size_t n) {
    while (index->n > n) {
        index->n--;
        head_of(index->heads, index->head_bits, tokens[index->n])->place = index->previous[index->n];
    }
}

/* Tokens that agree backwards from positions a and b, at most NGRAM_MAX_MATCH; b < a. */
static int common_suffix(const int32_t *tokens, size_t a, size_t b) {
    int length = 0;
    while (length < NGRAM_MAX_MATCH && b + 1 > (size_t)length &&
           tokens[a - (size_t)length] == tokens[b - (size_t)length])
        length++;
    return length;
}

int ngram_draft(const ngram_index *index, const int32_t *tokens, int max, int32_t *drafts, int *match) {
    *match = 0;
    size_t n = index->n;
    if (n < 2 || max <= 0) return 0;
    size_t best = 0;
    int32_t place = index->previous[n - 1];
    for (int examined = 0; place && examined < NGRAM_MAX_PLACES && *match < NGRAM_MAX_MATCH; examined++) {
        size_t at = (size_t)place - 1;
        int length = common_suffix(tokens, n - 1, at);
        if (length > *match) { /* among equal lengths the latest place, which is met first, stays */
            *match = length;
            best = at;
        }
        place = index->previous[at];
    }
    if (*match < NGRAM_MIN_MATCH) return 0;
    for (int i = 0; i < max; i++) {
        size_t source = best + 1 + (size_t)i;
        drafts[i] = source < n ? tokens[source] : drafts[source - n];
    }
    return max;
}
