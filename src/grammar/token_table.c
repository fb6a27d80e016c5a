#include "grammar/token_table.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "text/chat_text.h"
#include "text/tokenizer_tables.h"

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

static bool fill(token_table *t) {
    token_trie_entry *entries = malloc(((size_t)t->vocab + 1) * sizeof *entries);
    const token_texts texts = {t->bytes, t->offset, t->vocab};
    size_t n = 0, quoted = 0, bytes;
    bool done = entries != NULL;
    for (int32_t id = 0; done && id < t->vocab; id++) {
        const char *text = token_table_text(t, id, &bytes);
        if (bytes) entries[n++] = (token_trie_entry){id, text, bytes};
    }
    done = done && token_trie_make(entries, n, &t->all);
    t->below = done ? malloc(((size_t)t->all.n + 1) * sizeof *t->below) : NULL;
    t->texts = done ? calloc(token_set_words(t->vocab) + 1, sizeof *t->texts) : NULL;
    done = t->below && t->texts && character_kinds_of_trie(&t->all, t->below);
    for (size_t i = 0; done && i < n; i++) t->texts[entries[i].token / 32] |= 1u << (entries[i].token % 32);
    for (int kind = 0; done && kind < TOKEN_TEXTS; kind++)
        done = token_set_make(&texts, (token_text_kind)kind, entries, &t->sets[kind]);
    for (size_t i = 0; done && i < t->all.n_tokens; i++) {
        const char *text = token_table_text(t, t->all.tokens[i], &bytes);
        entries[quoted] = (token_trie_entry){t->all.tokens[i], text, bytes};
        quoted += memchr(text, '"', bytes) != NULL;
    }
    done = done && token_trie_make(entries, quoted, &t->quoted);
    free(entries);
    t->cache = done ? mask_cache_create(token_set_words(t->vocab)) : NULL;
    t->places = done ? place_cache_create(token_set_words(t->vocab)) : NULL;
    return t->cache && t->places;
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
    if (!t->offset || !t->bytes || total >= UINT32_MAX) {
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
    if (!fill(t)) {
        token_table_destroy(t);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "table of %zu tokens: out of memory", vocab);
    }
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
    token_trie_free(&t->all);
    free(t->below);
    free(t->texts);
    token_trie_free(&t->quoted);
    for (int kind = 0; kind < TOKEN_TEXTS; kind++) token_set_free(&t->sets[kind]);
    mask_cache_destroy(t->cache);
    place_cache_destroy(t->places);
    free(t);
}

bool token_tables_agree(const token_table *a, const token_table *b) {
    return a == b || (a->vocab == b->vocab && a->fingerprint == b->fingerprint);
}
