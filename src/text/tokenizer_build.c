/* From collected pieces and merges to the tables that encoding reads. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "text/tokenizer_private.h"

static bool grow(void **items, size_t *capacity, size_t needed, size_t item_bytes) {
    if (needed <= *capacity) return true;
    size_t larger = *capacity ? *capacity : 64;
    while (larger < needed) larger *= 2;
    void *moved = realloc(*items, larger * item_bytes);
    if (!moved) return false;
    *items = moved;
    *capacity = larger;
    return true;
}

bool text_buffer_add(text_buffer *buffer, const char *text, size_t bytes, text_span *span) {
    if (bytes >= UINT32_MAX) return false;
    void *items = buffer->data;
    if (!grow(&items, &buffer->capacity, buffer->bytes + bytes + 1, 1)) return false;
    buffer->data = items;
    *span = (text_span){.offset = buffer->bytes, .bytes = (uint32_t)bytes};
    if (bytes) memcpy(buffer->data + buffer->bytes, text, bytes);
    buffer->data[buffer->bytes + bytes] = 0;
    buffer->bytes += bytes + 1;
    return true;
}

bool vocab_source_entry(vocab_source *source, text_span text, int32_t id, uint8_t flags) {
    void *items = source->entries;
    if (!grow(&items, &source->entry_capacity, source->n_entries + 1, sizeof *source->entries)) return false;
    source->entries = items;
    source->entries[source->n_entries++] = (vocab_entry){.text = text, .id = id, .flags = flags};
    return true;
}

bool vocab_source_merge(vocab_source *source, text_span left, text_span right) {
    void *items = source->merges;
    if (!grow(&items, &source->merge_capacity, source->n_merges + 1, sizeof *source->merges)) return false;
    source->merges = items;
    source->merges[source->n_merges++] = (merge_entry){.left = left, .right = right};
    return true;
}

void vocab_source_free(vocab_source *source) {
    free(source->piece_text.data);
    free(source->merge_text.data);
    free(source->entries);
    free(source->merges);
    *source = (vocab_source){.name = source->name};
}

static size_t table_capacity(size_t entries) {
    size_t capacity = 16;
    while (capacity < 2 * entries) capacity *= 2;
    return capacity;
}

/* FNV-1a's low bits are weak on short keys that differ in their last byte; one multiply-and-fold spreads them. */
static size_t fold(uint64_t hash) {
    hash *= UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(hash ^ (hash >> 32));
}

static size_t hash_pair(int32_t left, int32_t right) { return fold((uint64_t)(uint32_t)left << 32 | (uint32_t)right); }

/* The slot that holds this piece, or the empty one where it belongs. `hash` is FNV-1a of the text. */
static piece_slot *find_slot(const tokenizer *t, uint64_t hash, const char *text, size_t bytes) {
    uint32_t tag = (uint32_t)hash;
    size_t at = fold(hash) & t->piece_mask;
    for (; t->piece_slots[at].id >= 0; at = (at + 1) & t->piece_mask) {
        if (t->piece_slots[at].tag != tag) continue;
        const piece *found = &t->pieces[t->piece_slots[at].id];
        if (found->bytes == bytes && memcmp(t->text + found->offset, text, bytes) == 0) break;
    }
    return &t->piece_slots[at];
}

int32_t tokenizer_find(const tokenizer *t, const char *text, size_t bytes) {
    return find_slot(t, hash_fnv1a(HASH_FNV1A_START, text, bytes), text, bytes)->id;
}

static size_t merge_slot(const tokenizer *t, int32_t left, int32_t right) {
    size_t slot = hash_pair(left, right) & t->merge_mask;
    for (; t->merges[slot].left >= 0; slot = (slot + 1) & t->merge_mask) {
        if (t->merges[slot].left == left && t->merges[slot].right == right) break;
    }
    return slot;
}

const merge *tokenizer_find_merge(const tokenizer *t, int32_t left, int32_t right) {
    const merge *found = &t->merges[merge_slot(t, left, right)];
    return found->left >= 0 ? found : NULL;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

/* The byte of "<0xNN>", -1 for any other piece. */
static int16_t byte_of_piece(const char *text, size_t bytes) {
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int high = hex_digit(text[3]), low = hex_digit(text[4]);
    return high < 0 || low < 0 ? (int16_t)-1 : (int16_t)(high * 16 + low);
}

static kakeya_status add_pieces(tokenizer *t, const vocab_source *source, kakeya_error *error) {
    size_t n_entries = source->n_entries;
    size_t capacity = table_capacity(n_entries);
    t->piece_mask = capacity - 1;
    t->pieces = calloc(n_entries, sizeof *t->pieces);
    t->piece_slots = malloc(capacity * sizeof *t->piece_slots);
    if (!t->pieces || !t->piece_slots) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", source->name);
    for (size_t i = 0; i < capacity; i++) t->piece_slots[i].id = -1;

    for (size_t i = 0; i < n_entries; i++) {
        const vocab_entry *entry = &source->entries[i];
        const char *text = t->text + entry->text.offset;
        if (entry->id < 0 || (size_t)entry->id >= n_entries) {
            return error_set(error, KAKEYA_FORMAT, "%s: piece \"%s\" has id %d, which does not fit %zu entries",
                             source->name, text, entry->id, n_entries);
        }
        uint64_t hash = hash_fnv1a(HASH_FNV1A_START, text, entry->text.bytes);
        piece_slot *slot = find_slot(t, hash, text, entry->text.bytes);
        piece *p = &t->pieces[entry->id];
        int32_t other = slot->id;
        if (other == entry->id && (entry->flags & PIECE_ADDED) && !(p->flags & PIECE_ADDED)) {
            p->flags = entry->flags; /* an added token that the vocabulary lists as well */
            continue;
        }
        if (other >= 0) {
            return error_set(error, KAKEYA_FORMAT, "%s: piece \"%s\" appears twice, with ids %d and %d", source->name,
                             text, other, entry->id);
        }
        if (p->defined) {
            return error_set(error, KAKEYA_FORMAT, "%s: id %d belongs to both \"%s\" and \"%s\"", source->name,
                             entry->id, t->text + p->offset, text);
        }
        *slot = (piece_slot){.id = entry->id, .tag = (uint32_t)hash};
        *p = (piece){.offset = entry->text.offset,
                     .bytes = entry->text.bytes,
                     .byte = byte_of_piece(text, entry->text.bytes),
                     .flags = entry->flags,
                     .defined = true};
        t->n_pieces++;
        if (entry->text.bytes > t->longest_piece_bytes) t->longest_piece_bytes = entry->text.bytes;
    }
    /* Ids are distinct, so n_pieces of them fill 0 .. n_pieces - 1 unless one lies beyond. */
    for (size_t id = 0; id < t->n_pieces; id++) {
        if (!t->pieces[id].defined) {
            return error_set(error, KAKEYA_FORMAT, "%s: no piece has id %zu, but there are %zu pieces", source->name,
                             id, t->n_pieces);
        }
    }
    return KAKEYA_OK;
}

static bool mixes_newlines(const char *text, size_t bytes) {
    size_t newlines = 0;
    for (size_t i = 0; i < bytes; i++) newlines += text[i] == '\n';
    return newlines != 0 && newlines != bytes;
}

/* A merge whose parts or product are not in the vocabulary can never be carried out and is left out. */
static kakeya_status add_merges(tokenizer *t, const vocab_source *source, kakeya_error *error) {
    size_t capacity = table_capacity(source->n_merges);
    t->merge_mask = capacity - 1;
    t->merges = malloc(capacity * sizeof *t->merges);
    size_t longest = t->longest_piece_bytes;
    char *product = malloc(longest + 1);
    if (!t->merges || !product) {
        free(product);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", source->name);
    }
    for (size_t i = 0; i < capacity; i++) t->merges[i] = (merge){.left = -1};

    t->splits_at_newlines = true;
    for (size_t rank = 0; rank < source->n_merges; rank++) {
        size_t left_bytes = source->merges[rank].left.bytes, right_bytes = source->merges[rank].right.bytes;
        size_t bytes = left_bytes + right_bytes;
        if (bytes > longest) continue;
        const char *left = source->merge_text.data + source->merges[rank].left.offset;
        const char *right = source->merge_text.data + source->merges[rank].right.offset;
        uint64_t hash = hash_fnv1a(HASH_FNV1A_START, left, left_bytes);
        int32_t left_id = find_slot(t, hash, left, left_bytes)->id;
        int32_t right_id = tokenizer_find(t, right, right_bytes);
        memcpy(product, left, left_bytes);
        memcpy(product + left_bytes, right, right_bytes);
        int32_t product_id = find_slot(t, hash_fnv1a(hash, right, right_bytes), product, bytes)->id;
        if (left_id < 0 || right_id < 0 || product_id < 0) continue;
        if (mixes_newlines(product, bytes)) t->splits_at_newlines = false;
        /* Of a pair listed twice the later rank counts, as in Hugging Face tokenizers. */
        t->merges[merge_slot(t, left_id, right_id)] =
            (merge){.left = left_id, .right = right_id, .product = product_id, .rank = (uint32_t)rank};
    }
    free(product);
    return KAKEYA_OK;
}

static kakeya_status add_byte_ids(tokenizer *t, const char *name, kakeya_error *error) {
    static const char digits[] = "0123456789ABCDEF";
    for (int byte = 0; byte < 256; byte++) {
        char text[] = {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>', 0};
        t->byte_ids[byte] = tokenizer_find(t, text, 6);
        if (t->byte_ids[byte] < 0) {
            return error_set(error, KAKEYA_FORMAT,
                             "%s: byte fallback needs the piece %s, which is not in the vocabulary", name, text);
        }
    }
    t->space_id = tokenizer_find(t, TOKENIZER_SPACE, TOKENIZER_SPACE_BYTES);
    return KAKEYA_OK;
}

static int compare_descending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static kakeya_status index_added(tokenizer *t, const char *name, kakeya_error *error) {
    size_t n_added = 0;
    for (size_t id = 0; id < t->n_pieces; id++) n_added += (t->pieces[id].flags & PIECE_ADDED) != 0;
    if (n_added == 0) return KAKEYA_OK;
    t->added_lengths = malloc(n_added * sizeof *t->added_lengths);
    if (!t->added_lengths) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", name);
    size_t n = 0;
    for (size_t id = 0; id < t->n_pieces; id++) {
        const piece *p = &t->pieces[id];
        if (!(p->flags & PIECE_ADDED)) continue;
        if (p->bytes == 0) return error_set(error, KAKEYA_FORMAT, "%s: added token %zu is empty", name, id);
        t->added_first_byte[(unsigned char)t->text[p->offset]] = true;
        t->added_lengths[n++] = p->bytes;
    }
    qsort(t->added_lengths, n, sizeof *t->added_lengths, compare_descending);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || t->added_lengths[i] != t->added_lengths[i - 1]) {
            t->added_lengths[t->n_added_lengths++] = t->added_lengths[i];
        }
    }
    return KAKEYA_OK;
}

kakeya_status tokenizer_build(vocab_source *source, tokenizer **out, kakeya_error *error) {
    *out = NULL;
    if (source->n_entries == 0 || source->n_entries > INT32_MAX || source->n_merges > UINT32_MAX) {
        return error_set(error, KAKEYA_FORMAT, "%s: %zu vocabulary entries and %zu merges make no tokenizer",
                         source->name, source->n_entries, source->n_merges);
    }
    tokenizer *t = calloc(1, sizeof *t);
    if (!t) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", source->name);
    t->text = source->piece_text.data;
    source->piece_text = (text_buffer){0};

    kakeya_status status = add_pieces(t, source, error);
    if (!status) status = add_merges(t, source, error);
    if (!status) status = add_byte_ids(t, source->name, error);
    if (!status) status = index_added(t, source->name, error);
    if (status) {
        tokenizer_close(t);
        return status;
    }
    *out = t;
    return KAKEYA_OK;
}
