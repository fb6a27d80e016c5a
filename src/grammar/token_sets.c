#include "grammar/token_sets.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/string_text.h"

/* How far a token goes as a text in quotes. */
typedef struct reach {
    bool inside, closes;
    uint32_t characters, before; /* that have begun; bytes in front of the quote */
} reach;

static reach read_token(token_text_kind kind, const char *text, size_t bytes) {
    reach r = {.inside = bytes > 0};
    uint32_t at = BETWEEN;
    for (size_t i = 0; i < bytes; i++) {
        unsigned letter = (unsigned char)text[i];
        if (at == BETWEEN && kind != TOKEN_CALL_STRING && letter == '"')
            return (reach){.closes = true, .characters = r.characters, .before = (uint32_t)i};
        r.characters += at == BETWEEN;
        at = kind == TOKEN_JSON_KEY ? text_key_step(at, letter) : text_step(at, letter, kind == TOKEN_JSON_STRING);
        if (at == NO_STRING) return (reach){0};
    }
    return r;
}

static const char *text_of(const token_texts *t, int32_t token, size_t *bytes) {
    *bytes = t->offset[token + 1] - t->offset[token];
    return t->bytes + t->offset[token];
}

static bool make_insides(const token_texts *texts, token_text_kind kind, token_set *out) {
    size_t words = token_set_words(texts->vocab), bytes;
    for (int32_t token = 0; token < texts->vocab; token++) {
        const char *text = text_of(texts, token, &bytes);
        reach r = read_token(kind, text, bytes);
        if (r.inside && r.characters > out->most) out->most = r.characters;
    }
    out->n_sets = kind == TOKEN_JSON_KEY ? 0 : out->most < TOKEN_MAX_CHARACTERS ? out->most : TOKEN_MAX_CHARACTERS;
    out->inside = calloc((out->n_sets + 1) * words + 1, sizeof *out->inside);
    if (!out->inside) return false;
    for (int32_t token = 0; token < texts->vocab; token++) {
        const char *text = text_of(texts, token, &bytes);
        reach r = read_token(kind, text, bytes);
        uint32_t set = r.characters < out->n_sets ? r.characters : out->n_sets;
        if (r.inside) out->inside[set * words + (size_t)token / 32] |= 1u << (token % 32);
    }
    for (size_t i = words; i < (out->n_sets + 1) * words; i++) out->inside[i] |= out->inside[i - words];
    return true;
}

/* A key that ends, a value and another key: whether that one may end depends on the first. */
static bool may_hold_another_key(token_text_kind kind, const char *behind, size_t bytes) {
    const char *quote = bytes ? memchr(behind, '"', bytes) : NULL;
    size_t left = quote ? bytes - (size_t)(quote + 1 - behind) : 0;
    return kind == TOKEN_JSON_KEY && left && memchr(quote + 1, '"', left);
}

static bool make_twice(const token_texts *texts, token_text_kind kind, token_trie_entry *entries, token_set *out) {
    size_t n = 0, bytes;
    for (int32_t token = 0; token < texts->vocab; token++) {
        const char *text = text_of(texts, token, &bytes);
        reach r = read_token(kind, text, bytes);
        if (r.closes && may_hold_another_key(kind, text + r.before + 1, bytes - r.before - 1))
            entries[n++] = (token_trie_entry){token, text, bytes};
    }
    return token_trie_make(entries, n, &out->twice);
}

static bool make_closers(const token_texts *texts, token_text_kind kind, token_trie_entry *entries, token_set *out) {
    size_t n = 0, bytes;
    out->closes = calloc((size_t)texts->vocab + 1, sizeof *out->closes);
    if (!out->closes) return false;
    for (int32_t token = 0; token < texts->vocab; token++) {
        const char *text = text_of(texts, token, &bytes);
        reach r = read_token(kind, text, bytes);
        if (!r.closes || may_hold_another_key(kind, text + r.before + 1, bytes - r.before - 1)) continue;
        entries[n++] = (token_trie_entry){token, text + r.before + 1, bytes - r.before - 1};
        out->closes[token] = (uint16_t)(r.before + 1);
    }
    out->before = malloc((n + 1) * sizeof *out->before);
    out->characters = malloc((n + 1) * sizeof *out->characters);
    if (!out->before || !out->characters || !token_trie_make(entries, n, &out->closers)) return false;
    for (size_t i = 0; i < n; i++) {
        const char *text = text_of(texts, out->closers.tokens[i], &bytes);
        reach r = read_token(kind, text, bytes);
        out->before[i] = (uint16_t)r.before;
        out->characters[i] = (uint16_t)r.characters;
        entries[i] = (token_trie_entry){out->closers.tokens[i], text, bytes};
    }
    return token_trie_make(entries, n, &out->spelled);
}

static bool make_others(const token_texts *texts, token_trie_entry *entries, token_set *out) {
    const uint32_t *inside = token_set_inside(out, texts->vocab, UINT32_MAX);
    size_t n = 0, bytes;
    for (int32_t token = 0; token < texts->vocab; token++) {
        const char *text = text_of(texts, token, &bytes);
        if (bytes && !(inside[token / 32] >> (token % 32) & 1)) entries[n++] = (token_trie_entry){token, text, bytes};
    }
    return token_trie_make(entries, n, &out->others);
}

bool token_set_make(const token_texts *texts, token_text_kind kind, token_trie_entry *entries, token_set *out) {
    return make_insides(texts, kind, out) && make_closers(texts, kind, entries, out) &&
           make_twice(texts, kind, entries, out) && make_others(texts, entries, out);
}

void token_set_free(token_set *set) {
    free(set->inside);
    free(set->before);
    free(set->characters);
    free(set->closes);
    token_trie_free(&set->closers);
    token_trie_free(&set->spelled);
    token_trie_free(&set->twice);
    token_trie_free(&set->others);
}
