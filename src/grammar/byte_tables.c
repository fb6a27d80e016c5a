#include "grammar/byte_tables.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SURROGATE = 0xD800, LAST_SURROGATE = 0xDFFF, LAST_CHARACTER = 0x10FFFF, MOST_BYTES = 4 };

typedef struct builder {
    byte_tables *t;
    const character_range *ranges;
    uint32_t n_ranges, first;
    uint16_t full[MOST_BYTES]; /* the table behind which so many bytes follow, any of them; 0: there is none yet */
    bool failed;
} builder;

static uint16_t add_table(builder *b) {
    byte_tables *t = b->t;
    if (t->n == t->capacity) {
        uint32_t capacity = t->capacity ? 2 * t->capacity : 16;
        byte_table *tables = realloc(t->tables, capacity * sizeof *tables);
        if (!tables) {
            b->failed = true;
            return BYTE_REFUSED;
        }
        t->tables = tables;
        t->capacity = capacity;
    }
    memset(t->tables[t->n].next, 0xFF, sizeof t->tables[t->n].next);
    return (uint16_t)(t->n++ - b->first);
}

static void lead(builder *b, uint16_t table, unsigned byte, uint16_t to) {
    if (!b->failed) b->t->tables[b->first + table].next[byte] = to;
}

/* The first range that ends at `c` or behind. */
static const character_range *range_from(const builder *b, uint32_t c) {
    uint32_t low = 0, high = b->n_ranges;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (b->ranges[middle].high < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < b->n_ranges ? &b->ranges[low] : NULL;
}

static uint16_t any_bytes(builder *b, unsigned n) {
    if (n == 0) return BYTE_ENDS;
    if (b->full[n] || b->failed) return b->full[n];
    uint16_t then = any_bytes(b, n - 1), own = add_table(b);
    for (unsigned byte = 0x80; byte < 0xC0; byte++) lead(b, own, byte, then);
    return b->full[n] = own;
}

/* What leads on to the characters of the set from `low` on that have the same beginning, and n bytes more. Below
 * `least`, a character is spelled by fewer bytes. */
static uint16_t block(builder *b, uint32_t low, unsigned n, uint32_t least) {
    uint32_t high = low | ((UINT32_C(1) << 6 * n) - 1);
    const character_range *range = range_from(b, low > least ? low : least);
    if (b->failed || high < least || !range || range->low > high || low > LAST_CHARACTER) return BYTE_REFUSED;
    if (low >= FIRST_SURROGATE && high <= LAST_SURROGATE) return BYTE_REFUSED;
    bool surrogates = low <= LAST_SURROGATE && high >= FIRST_SURROGATE;
    if (low >= least && range->low <= low && range->high >= high && !surrogates) return any_bytes(b, n);
    uint16_t own = add_table(b);
    for (unsigned i = 0; i < 64; i++) lead(b, own, 0x80 + i, block(b, low | i << 6 * (n - 1), n - 1, least));
    return own;
}

bool byte_tables_add(byte_tables *t, const character_range *ranges, uint32_t n_ranges) {
    builder b = {.t = t, .ranges = ranges, .n_ranges = n_ranges, .first = t->n};
    uint16_t own = add_table(&b);
    for (uint32_t i = 0; i < n_ranges; i++)
        for (uint32_t c = ranges[i].low; c <= ranges[i].high && c < 0x80; c++) lead(&b, own, c, BYTE_ENDS);
    if (n_ranges == 0 || ranges[n_ranges - 1].high < 0x80) return !b.failed;
    for (unsigned byte = 0xC2; byte < 0xE0; byte++) lead(&b, own, byte, block(&b, (byte & 0x1F) << 6, 1, 0x80));
    for (unsigned byte = 0xE0; byte < 0xF0; byte++) lead(&b, own, byte, block(&b, (byte & 0x0F) << 12, 2, 0x800));
    for (unsigned byte = 0xF0; byte < 0xF5; byte++) lead(&b, own, byte, block(&b, (byte & 0x07) << 18, 3, 0x10000));
    return !b.failed;
}
