#include "grammar/token_table.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/platform.h"
#include "text/chat_text.h"
#include "text/tokenizer_tables.h"
#include "text/utf8.h"

/* What the detokenizer makes of a piece; returns its bytes. */
static size_t spell(const tokenizer *t, int32_t id, char *out) {
    size_t bytes, n = 0;
    const char *spelled = tokenizer_piece(t, id, &bytes);
    int byte = tokenizer_byte(t, id);
    if (!spelled || tokenizer_is_special(t, id)) return 0;
    if (byte >= 0) {
        *out = (char)byte;
        return 1;
    }
    for (size_t at = 0; at < bytes;) {
        bool space =
            bytes - at >= TOKENIZER_SPACE_BYTES && memcmp(spelled + at, TOKENIZER_SPACE, TOKENIZER_SPACE_BYTES) == 0;
        out[n++] = space ? ' ' : spelled[at];
        at += space ? TOKENIZER_SPACE_BYTES : 1;
    }
    return n;
}

static bool is_ordinary(const char *text, size_t bytes, size_t *characters) {
    *characters = 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == '"' || c == '\\') return false;
        *characters += (c & 0xC0) != 0x80;
    }
    return bytes && utf8_valid_bytes(text, bytes) == bytes;
}

static int by_text(const void *a, const void *b, void *user) {
    const token_table *t = user;
    size_t x_bytes, y_bytes;
    const char *x = token_table_text(t, *(const int32_t *)a, &x_bytes),
               *y = token_table_text(t, *(const int32_t *)b, &y_bytes);
    int order = memcmp(x, y, x_bytes < y_bytes ? x_bytes : y_bytes);
    if (order) return order;
    if (x_bytes != y_bytes) return x_bytes < y_bytes ? -1 : 1;
    return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1;
}

static void find_common(const token_table *t, token_list *list) {
    for (size_t i = 0; i < list->n; i++) {
        size_t x_bytes = 0, y_bytes, n = 0;
        const char *x = i ? token_table_text(t, list->tokens[i - 1], &x_bytes) : NULL;
        const char *y = token_table_text(t, list->tokens[i], &y_bytes);
        while (n < x_bytes && n < y_bytes && x[n] == y[n]) n++;
        list->common[i] = (uint16_t)n;
    }
}

static bool list_create(token_list *list, size_t capacity) {
    list->tokens = malloc((capacity + 1) * sizeof *list->tokens);
    list->common = malloc((capacity + 1) * sizeof *list->common);
    return list->tokens && list->common;
}

static void fill(token_table *t) {
    for (int32_t id = 0; id < t->vocab; id++) {
        size_t bytes, characters;
        const char *text = token_table_text(t, id, &bytes);
        if (bytes) t->all.tokens[t->all.n++] = id;
        if (!is_ordinary(text, bytes, &characters)) continue;
        t->ordinary[id / 32] |= 1u << (id % 32);
        if (characters > t->most_characters) t->most_characters = characters;
    }
    platform_sort(t->all.tokens, t->all.n, sizeof *t->all.tokens, by_text, t);
    for (size_t i = 0; i < t->all.n; i++) {
        int32_t id = t->all.tokens[i];
        if (!(t->ordinary[id / 32] >> (id % 32) & 1)) t->odd.tokens[t->odd.n++] = id;
    }
    find_common(t, &t->all);
    find_common(t, &t->odd);
}

kakeya_status token_table_create(const tokenizer *vocabulary, token_table **out, kakeya_error *error) {
    *out = NULL;
    token_table *t = calloc(1, sizeof *t);
    size_t vocab = (size_t)tokenizer_vocab_size(vocabulary), total = 0;
    if (!t) return error_set(error, KAKEYA_OUT_OF_MEMORY, "table of %zu tokens: out of memory", vocab);
    t->tokenizer = vocabulary;
    t->vocab = (int)vocab;
    hash_stream hash = HASH_STREAM_START;
    for (int32_t id = 0; id < t->vocab; id++) {
        size_t bytes = 0;
        const char *spelled = tokenizer_piece(vocabulary, id, &bytes);
        bool special = tokenizer_is_special(vocabulary, id);
        if (spelled) hash_stream_add(&hash, spelled, bytes);
        hash_stream_add(&hash, &bytes, sizeof bytes);
        hash_stream_add(&hash, &special, sizeof special);
        total += bytes;
    }
    t->fingerprint = hash_stream_value(&hash);
    t->offset = malloc((vocab + 1) * sizeof *t->offset);
    t->bytes = malloc(total + 1);
    t->ordinary = calloc((vocab + 31) / 32 + 1, sizeof *t->ordinary);
    bool done = t->offset && t->bytes && t->ordinary && list_create(&t->all, vocab) && list_create(&t->odd, vocab);
    if (!done || total >= UINT32_MAX) {
        token_table_destroy(t);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "table of %zu tokens: out of memory", vocab);
    }
    size_t at = 0;
    for (int32_t id = 0; id < t->vocab; id++) {
        t->offset[id] = (uint32_t)at;
        size_t bytes = spell(vocabulary, id, t->bytes + at);
        if (bytes > UINT16_MAX) bytes = 0; /* no such text will ever be generated */
        if (bytes > t->longest) t->longest = bytes;
        at += bytes;
    }
    t->offset[vocab] = (uint32_t)at;
    fill(t);
    t->call_open = tokenizer_id(vocabulary, "<|tool_call>");
    t->call_close = tokenizer_id(vocabulary, "<tool_call|>");
    t->quote = tokenizer_id(vocabulary, CHAT_QUOTE);
    t->thought_open = tokenizer_id(vocabulary, "<|channel>");
    t->thought_close = tokenizer_id(vocabulary, "<channel|>");
    *out = t;
    return KAKEYA_OK;
}

void token_table_destroy(token_table *t) {
    if (!t) return;
    free(t->offset);
    free(t->bytes);
    free(t->ordinary);
    free(t->all.tokens);
    free(t->all.common);
    free(t->odd.tokens);
    free(t->odd.common);
    free(t);
}

bool token_tables_agree(const token_table *a, const token_table *b) {
    return a == b || (a->vocab == b->vocab && a->fingerprint == b->fingerprint);
}
