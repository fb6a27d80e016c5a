#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "text/tokenizer_load.h"
#include "text/tokenizer_tables.h"
#include "text/utf8.h"

kakeya_status tokenizer_open_memory(const char *name, const char *data, size_t bytes, tokenizer **out,
                                    kakeya_error *error) {
    return tokenizer_load(name, data, bytes, out, error);
}

kakeya_status tokenizer_open(const char *path, tokenizer **out, kakeya_error *error) {
    *out = NULL;
    file_map map;
    kakeya_status status = file_map_open(path, &map, error);
    if (status) return status;
    status = tokenizer_load(path, (const char *)map.data, map.bytes, out, error);
    file_map_close(&map);
    return status;
}

void tokenizer_close(tokenizer *t) { tokenizer_tables_free(t); }

int tokenizer_vocab_size(const tokenizer *t) { return (int)t->n_pieces; }

const char *tokenizer_piece(const tokenizer *t, int32_t id, size_t *bytes) {
    const piece *p = tokenizer_piece_at(t, id);
    if (bytes) *bytes = p ? p->bytes : 0;
    return p ? t->text + p->offset : NULL;
}

size_t tokenizer_longest_piece(const tokenizer *t) { return t->longest_piece_bytes; }

int32_t tokenizer_id(const tokenizer *t, const char *text) { return tokenizer_find(t, text, strlen(text)); }

bool tokenizer_is_special(const tokenizer *t, int32_t id) {
    const piece *p = tokenizer_piece_at(t, id);
    return p && (p->flags & PIECE_SPECIAL);
}

bool tokenizer_is_added(const tokenizer *t, int32_t id) {
    const piece *p = tokenizer_piece_at(t, id);
    return p && (p->flags & PIECE_ADDED);
}

int tokenizer_byte(const tokenizer *t, int32_t id) {
    const piece *p = tokenizer_piece_at(t, id);
    return p ? p->byte : -1;
}

/* ---------------------------------------------------------------------------------------------- encoding
 *
 * A stretch of text between added tokens becomes a list of symbols: one per character that is a piece, else one per
 * byte. Then the adjacent pair of lowest rank, leftmost among equals, is merged until no pair is left. The pairs wait
 * in a heap; the symbols are a doubly linked list in an array. A heap entry is stale when the symbols it joined have
 * since changed: the left one is another, or the right one has grown. */

typedef struct symbol {
    int32_t id;             /* -1: merged into the symbol before it */
    int32_t previous, next; /* -1: none */
} symbol;

typedef struct candidate {
    uint64_t order;        /* rank << 32 | position of the left symbol */
    int32_t left, product; /* ids */
} candidate;

typedef struct encoder {
    const tokenizer *t;
    symbol *symbols;
    size_t symbol_capacity;
    candidate *heap;
    size_t n_heap, heap_capacity;
    int32_t *ids;
    size_t n_ids, id_capacity, most;
    bool too_many;
    char *normalized; /* a stretch with U+2581 for spaces, where added tokens are looked for in such text */
    size_t normalized_capacity;
} encoder;

static bool reserve(void **items, size_t *capacity, size_t needed, size_t item_bytes) {
    if (needed <= *capacity) return true;
    size_t larger = *capacity ? *capacity : 256;
    while (larger < needed) larger += larger / 2;
    void *moved = realloc(*items, larger * item_bytes);
    if (!moved) return false;
    *items = moved;
    *capacity = larger;
    return true;
}

static bool emit(encoder *e, int32_t id) {
    void *ids = e->ids;
    if (e->most && e->n_ids == e->most) {
        e->too_many = true;
        return false;
    }
    if (!reserve(&ids, &e->id_capacity, e->n_ids + 1, sizeof *e->ids)) return false;
    e->ids = ids;
    e->ids[e->n_ids++] = id;
    return true;
}

/* The pair of symbols at `left` and behind it, if they merge. The heap has room: see encode_stretch. */
static void push_candidate(encoder *e, int32_t left) {
    if (left < 0 || e->symbols[left].next < 0) return;
    merge m;
    if (!tokenizer_find_merge(e->t, e->symbols[left].id, e->symbols[e->symbols[left].next].id, &m)) return;
    candidate added = {(uint64_t)m.rank << 32 | (uint32_t)left, m.left, m.product};
    size_t at = e->n_heap++;
    while (at > 0 && added.order < e->heap[(at - 1) / 2].order) {
        e->heap[at] = e->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    e->heap[at] = added;
}

static candidate pop_candidate(encoder *e) {
    candidate top = e->heap[0], last = e->heap[--e->n_heap];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= e->n_heap) break;
        if (child + 1 < e->n_heap && e->heap[child + 1].order < e->heap[child].order) child++;
        if (last.order <= e->heap[child].order) break;
        e->heap[at] = e->heap[child];
        at = child;
    }
    e->heap[at] = last;
    return top;
}

static size_t make_symbols(encoder *e, const char *text, size_t bytes) {
    const tokenizer *t = e->t;
    size_t n = 0;
    for (size_t at = 0, length; at < bytes; at += length) {
        length = utf8_length(text + at, bytes - at);
        int32_t id = text[at] == ' ' ? t->space_id : tokenizer_find(t, text + at, length);
        if (id >= 0) {
            e->symbols[n++].id = id;
            continue;
        }
        bool space = text[at] == ' ';
        const char *spelled = space ? TOKENIZER_SPACE : text + at;
        size_t spelled_bytes = space ? TOKENIZER_SPACE_BYTES : length;
        for (size_t i = 0; i < spelled_bytes; i++) e->symbols[n++].id = t->byte_ids[(unsigned char)spelled[i]];
    }
    for (size_t i = 0; i < n; i++) {
        e->symbols[i].previous = (int32_t)i - 1;
        e->symbols[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    return n;
}

static bool encode_stretch(encoder *e, const char *text, size_t bytes) {
    if (bytes == 0) return true;
    /* At most one symbol per byte, or three where the space is not a piece. Each merge removes a symbol and adds at
     * most two candidates to the first n - 1. */
    size_t most = e->t->space_id >= 0 ? bytes : bytes * TOKENIZER_SPACE_BYTES;
    void *items = e->symbols;
    if (!reserve(&items, &e->symbol_capacity, most, sizeof *e->symbols)) return false;
    e->symbols = items;
    size_t n = make_symbols(e, text, bytes);
    items = e->heap;
    if (!reserve(&items, &e->heap_capacity, 3 * n, sizeof *e->heap)) return false;
    e->heap = items;

    symbol *symbols = e->symbols;
    const piece *pieces = e->t->pieces;
    e->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++) push_candidate(e, (int32_t)i);
    while (e->n_heap > 0) {
        candidate top = pop_candidate(e);
        int32_t left = (int32_t)(uint32_t)top.order;
        int32_t right = symbols[left].next;
        if (symbols[left].id != top.left || right < 0) continue;
        if (pieces[top.left].bytes + pieces[symbols[right].id].bytes != pieces[top.product].bytes) continue;
        symbols[left].id = top.product;
        symbols[left].next = symbols[right].next;
        if (symbols[right].next >= 0) symbols[symbols[right].next].previous = left;
        symbols[right].id = -1;
        push_candidate(e, symbols[left].previous);
        push_candidate(e, left);
    }
    for (int32_t i = 0; i >= 0; i = symbols[i].next) {
        if (!emit(e, symbols[i].id)) return false;
    }
    return true;
}

static bool is_written_space(const char *text, size_t bytes) {
    return bytes >= TOKENIZER_SPACE_BYTES && memcmp(text, TOKENIZER_SPACE, TOKENIZER_SPACE_BYTES) == 0;
}

/* From one place between two characters that never stand side by side in a piece to the next. */
static bool encode_text(encoder *e, const char *text, size_t bytes) {
    size_t begin = 0;
    char last = 0; /* byte of the character before */
    for (size_t at = 0, length; at < bytes; at += length) {
        bool space = is_written_space(text + at, bytes - at);
        length = utf8_length(text + at, bytes - at);
        if (at > begin && !tokenizer_are_neighbours(e->t, last, space ? ' ' : text[at])) {
            if (!encode_stretch(e, text + begin, at - begin)) return false;
            begin = at;
        }
        last = space ? ' ' : text[at + length - 1];
    }
    return encode_stretch(e, text + begin, bytes - begin);
}

static bool encode_between_added(encoder *e, const added_set *set, const char *text, size_t bytes, bool special,
                                 bool (*encode)(encoder *e, const char *text, size_t bytes, bool special)) {
    size_t begin = 0, at = 0;
    while (at < bytes) {
        const added_token *found = tokenizer_find_added(e->t, set, text + at, bytes - at, special);
        if (!found) {
            at++;
            continue;
        }
        if (!encode(e, text + begin, at - begin, special) || !emit(e, found->id)) return false;
        at += found->bytes;
        begin = at;
    }
    return encode(e, text + begin, bytes - begin, special);
}

static bool encode_pieces(encoder *e, const char *text, size_t bytes, bool special) {
    (void)special;
    return encode_text(e, text, bytes);
}

/* Text between verbatim added tokens. Normalized it encodes to the same ids, so only the search needs the copy. */
static bool encode_normalized(encoder *e, const char *text, size_t bytes, bool special) {
    if (e->t->normalized.n == 0) return encode_text(e, text, bytes);
    if (bytes == 0) return true;
    size_t n = bytes;
    for (size_t i = 0; i < bytes; i++) n += text[i] == ' ' ? TOKENIZER_SPACE_BYTES - 1 : 0;
    void *copy = e->normalized;
    if (!reserve(&copy, &e->normalized_capacity, n, 1)) return false;
    e->normalized = copy;
    char *to = e->normalized;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] != ' ') {
            *to++ = text[i];
            continue;
        }
        memcpy(to, TOKENIZER_SPACE, TOKENIZER_SPACE_BYTES);
        to += TOKENIZER_SPACE_BYTES;
    }
    return encode_between_added(e, &e->t->normalized, e->normalized, n, special, encode_pieces);
}

static bool encode_all(encoder *e, const char *text, size_t bytes, tokenizer_encode_options options) {
    const tokenizer *t = e->t;
    for (size_t i = 0; options.add_special && i < t->n_prefix; i++) {
        if (!emit(e, t->prefix[i])) return false;
    }
    const size_t own = e->n_ids;
    if (!encode_between_added(e, &t->verbatim, text, bytes, options.parse_special, encode_normalized)) return false;
    const bool there =
        options.add_once && own && e->n_ids >= 2 * own && memcmp(e->ids, e->ids + own, own * sizeof *e->ids) == 0;
    if (there) {
        e->n_ids -= own;
        memmove(e->ids, e->ids + own, e->n_ids * sizeof *e->ids);
    }
    for (size_t i = 0; options.add_special && i < t->n_suffix; i++) {
        if (!emit(e, t->suffix[i])) return false;
    }
    return true;
}

static kakeya_status refuse_length(size_t least, size_t most, size_t *n_ids, kakeya_error *error) {
    *n_ids = least;
    return error_set(error, KAKEYA_CONTEXT_FULL, "the text has at least %zu tokens, and at most %zu are allowed", least,
                     most);
}

kakeya_status tokenizer_encode(const tokenizer *t, const char *text, size_t text_bytes,
                               tokenizer_encode_options options, int32_t **ids, size_t *n_ids, kakeya_error *error) {
    *ids = NULL;
    *n_ids = 0;
    if (text_bytes > TOKENIZER_MAX_TEXT_BYTES) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "a text of %zu bytes is longer than the %zu that can be encoded", text_bytes,
                         TOKENIZER_MAX_TEXT_BYTES);
    }
    size_t valid = utf8_valid_bytes(text, text_bytes);
    if (valid != text_bytes) {
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "the text is not valid UTF-8: byte %zu is 0x%02X", valid,
                         (unsigned char)text[valid]);
    }
    size_t most = options.most, least = text_bytes / (t->longest_piece_bytes ? t->longest_piece_bytes : 1);
    if (most && least > most) return refuse_length(least, most, n_ids, error);
    encoder e = {.t = t, .most = most};
    void *items = NULL;
    bool done = reserve(&items, &e.id_capacity, 1, sizeof *e.ids);
    e.ids = items;
    done = done && encode_all(&e, text, text_bytes, options);
    free(e.symbols);
    free(e.heap);
    free(e.normalized);
    if (!done) {
        free(e.ids);
        if (e.too_many) return refuse_length(most + 1, most, n_ids, error);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory while encoding %zu bytes of text", text_bytes);
    }
    *ids = e.ids;
    *n_ids = e.n_ids;
    return KAKEYA_OK;
}
