#include "text/tokenizer_build.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

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

bool vocab_source_entry(vocab_source *source, vocab_entry entry) {
    void *items = source->entries;
    if (!grow(&items, &source->entry_capacity, source->n_entries + 1, sizeof *source->entries)) return false;
    source->entries = items;
    source->entries[source->n_entries++] = entry;
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

/* Ids that no published vocabulary comes near; they bound the table of pieces. */
enum { MAX_IDS = 1 << 21 };

static kakeya_status make_piece_tables(tokenizer_tables *t, const vocab_source *source, kakeya_error *error) {
    size_t ids = source->n_entries;
    for (size_t i = 0; i < source->n_entries; i++) {
        size_t id = (size_t)source->entries[i].id;
        if (source->entries[i].id >= 0 && id < MAX_IDS && id >= ids) ids = id + 1;
    }
    size_t capacity = table_capacity(source->n_entries);
    t->piece_mask = capacity - 1;
    t->pieces = calloc(ids, sizeof *t->pieces);
    t->piece_slots = malloc(capacity * sizeof *t->piece_slots);
    if (!t->pieces || !t->piece_slots) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", source->name);
    for (size_t i = 0; i < capacity; i++) t->piece_slots[i].index = -1;
    return KAKEYA_OK;
}

static kakeya_status id_is_too_large(const tokenizer_tables *t, const vocab_source *source, const vocab_entry *entry,
                                     kakeya_error *error) {
    return error_set(error, KAKEYA_FORMAT, "%s: piece \"%s\" has id %d, which does not fit %zu entries", source->name,
                     t->text + entry->text.offset, entry->id, source->n_entries);
}

/* Adds one entry. An added token that the vocabulary lists as well only marks that piece. */
static kakeya_status add_piece(tokenizer_tables *t, const vocab_source *source, vocab_entry *entry,
                               kakeya_error *error) {
    const char *text = t->text + entry->text.offset;
    uint64_t hash = tokenizer_hash(text, entry->text.bytes);
    text_slot *slot = tokenizer_piece_slot(t, hash, text, entry->text.bytes);
    int32_t other = slot->index;
    bool added = entry->flags & PIECE_ADDED;
    if (added && other < 0 && (size_t)entry->id > t->n_pieces) entry->id = (int32_t)t->n_pieces;
    if (entry->id < 0 || entry->id >= MAX_IDS) return id_is_too_large(t, source, entry, error);
    piece *p = &t->pieces[entry->id];
    if (other == entry->id && added && !(p->flags & PIECE_ADDED)) {
        p->flags = entry->flags;
        return KAKEYA_OK;
    }
    bool repeated = other >= 0 && source->repeats_allowed && other < entry->id;
    if (other >= 0 && !repeated)
        return error_set(error, KAKEYA_FORMAT, "%s: piece \"%s\" appears twice, with ids %d and %d", source->name, text,
                         other, entry->id);
    if (p->defined)
        return error_set(error, KAKEYA_FORMAT, "%s: id %d belongs to both \"%s\" and \"%s\"", source->name, entry->id,
                         t->text + p->offset, text);
    if (!repeated) *slot = (text_slot){.index = entry->id, .tag = (uint32_t)hash};
    *p = (piece){.offset = entry->text.offset,
                 .bytes = entry->text.bytes,
                 .byte = byte_of_piece(text, entry->text.bytes),
                 .flags = entry->flags,
                 .defined = true};
    if ((size_t)entry->id >= t->n_pieces) t->n_pieces = (size_t)entry->id + 1;
    if (entry->text.bytes > t->longest_piece_bytes) t->longest_piece_bytes = entry->text.bytes;
    return KAKEYA_OK;
}

/* Behind the first id without a piece there are added tokens only. */
static kakeya_status check_gaps(const tokenizer_tables *t, const vocab_source *source, kakeya_error *error) {
    size_t gap = 0, pieces = 0;
    while (gap < t->n_pieces && t->pieces[gap].defined) gap++;
    for (size_t id = 0; id < t->n_pieces; id++) pieces += t->pieces[id].defined;
    for (size_t i = 0; i < source->n_entries; i++) {
        const vocab_entry *entry = &source->entries[i];
        if ((size_t)entry->id < gap || (t->pieces[entry->id].flags & PIECE_ADDED)) continue;
        if ((size_t)entry->id >= source->n_entries) return id_is_too_large(t, source, entry, error);
        return error_set(error, KAKEYA_FORMAT, "%s: no piece has id %zu, but there are %zu pieces", source->name, gap,
                         pieces);
    }
    return KAKEYA_OK;
}

static kakeya_status add_pieces(tokenizer_tables *t, const vocab_source *source, kakeya_error *error) {
    kakeya_status status = make_piece_tables(t, source, error);
    for (size_t i = 0; i < source->n_entries && !status; i++) status = add_piece(t, source, &source->entries[i], error);
    return status ? status : check_gaps(t, source, error);
}

/* The text is what a merge makes. */
static void add_neighbours(tokenizer_tables *t, const char *text, size_t bytes) {
    unsigned previous = 0;
    for (size_t i = 0, step; i < bytes; i += step) {
        bool space =
            bytes - i >= TOKENIZER_SPACE_BYTES && memcmp(text + i, TOKENIZER_SPACE, TOKENIZER_SPACE_BYTES) == 0;
        unsigned byte = space ? ' ' : (unsigned char)text[i], pair = previous << 8 | byte;
        if (i) t->neighbours[pair / 64] |= UINT64_C(1) << pair % 64;
        previous = byte;
        step = space ? TOKENIZER_SPACE_BYTES : 1;
    }
}

static kakeya_status merge_does_not_fit(const vocab_source *source, size_t rank, kakeya_error *error) {
    const merge_entry *m = &source->merges[rank];
    return error_set(
        error, KAKEYA_FORMAT, "%s: merge %zu, \"%.60s\" with \"%.60s\": a part or the product is not in the vocabulary",
        source->name, rank, source->merge_text.data + m->left.offset, source->merge_text.data + m->right.offset);
}

static kakeya_status add_ranks(tokenizer_tables *t, const vocab_source *source, kakeya_error *error) {
    t->ranks = malloc(t->n_pieces * sizeof *t->ranks);
    if (!t->ranks) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", source->name);
    for (size_t id = 0; id < t->n_pieces; id++) t->ranks[id] = TOKENIZER_NO_RANK;
    for (size_t i = 0; i < source->n_entries; i++) {
        const vocab_entry *entry = &source->entries[i];
        if (entry->rank == TOKENIZER_NO_RANK) continue;
        t->ranks[entry->id] = entry->rank;
        add_neighbours(t, t->text + entry->text.offset, entry->text.bytes);
    }
    return KAKEYA_OK;
}

/* A merge whose parts or product are not in the vocabulary can never be carried out. */
static kakeya_status add_merges(tokenizer_tables *t, const vocab_source *source, kakeya_error *error) {
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

    kakeya_status status = KAKEYA_OK;
    for (size_t rank = 0; rank < source->n_merges && !status; rank++) {
        size_t left_bytes = source->merges[rank].left.bytes, right_bytes = source->merges[rank].right.bytes;
        size_t bytes = left_bytes + right_bytes;
        if (bytes > longest) {
            if (source->merges_must_fit) status = merge_does_not_fit(source, rank, error);
            continue;
        }
        const char *left = source->merge_text.data + source->merges[rank].left.offset;
        const char *right = source->merge_text.data + source->merges[rank].right.offset;
        uint64_t hash = tokenizer_hash(left, left_bytes);
        int32_t left_id = tokenizer_piece_slot(t, hash, left, left_bytes)->index;
        int32_t right_id = tokenizer_find(t, right, right_bytes);
        memcpy(product, left, left_bytes);
        memcpy(product + left_bytes, right, right_bytes);
        hash = hash_fnv1a(hash, right, right_bytes);
        int32_t product_id = tokenizer_piece_slot(t, hash, product, bytes)->index;
        if (left_id < 0 || right_id < 0 || product_id < 0) {
            if (source->merges_must_fit) status = merge_does_not_fit(source, rank, error);
            continue;
        }
        add_neighbours(t, product, bytes);
        /* Of a pair listed twice the later rank counts, as in Hugging Face tokenizers. */
        *tokenizer_merge_slot(t, left_id, right_id) =
            (merge){.left = left_id, .right = right_id, .product = product_id, .rank = (uint32_t)rank};
    }
    free(product);
    return status;
}

static kakeya_status add_byte_ids(tokenizer_tables *t, const char *name, kakeya_error *error) {
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

/* The added tokens that are looked for in normalized text, or the others. */
static kakeya_status fill_added_set(tokenizer_tables *t, const vocab_source *source, bool normalized, added_set *set,
                                    kakeya_error *error) {
    size_t n = 0;
    for (size_t i = 0; i < source->n_entries; i++) {
        const vocab_entry *entry = &source->entries[i];
        if (!(entry->flags & PIECE_ADDED) || entry->normalized != normalized) continue;
        if (entry->looked_for.bytes > set->longest) set->longest = entry->looked_for.bytes;
        n++;
    }
    if (n == 0) return KAKEYA_OK;
    size_t capacity = table_capacity(n);
    set->mask = capacity - 1;
    set->tokens = calloc(n, sizeof *set->tokens);
    set->slots = malloc(capacity * sizeof *set->slots);
    set->lengths = calloc(set->longest + 1, sizeof *set->lengths);
    if (!set->tokens || !set->slots || !set->lengths)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", source->name);
    for (size_t i = 0; i < capacity; i++) set->slots[i].index = -1;

    for (size_t i = 0; i < source->n_entries; i++) {
        const vocab_entry *entry = &source->entries[i];
        if (!(entry->flags & PIECE_ADDED) || entry->normalized != normalized) continue;
        const char *text = t->text + entry->looked_for.offset;
        uint32_t bytes = entry->looked_for.bytes;
        if (bytes == 0) return error_set(error, KAKEYA_FORMAT, "%s: added token %d is empty", source->name, entry->id);
        text_slot *slot = tokenizer_added_slot(t, set, text, bytes);
        if (slot->index >= 0) continue; /* another one normalizes to the same text; the first counts */
        *slot = (text_slot){.index = (int32_t)set->n, .tag = (uint32_t)tokenizer_hash(text, bytes)};
        set->lengths[bytes] = true;
        set->tokens[set->n++] = (added_token){.offset = entry->looked_for.offset,
                                              .bytes = bytes,
                                              .id = entry->id,
                                              .special = entry->flags & PIECE_SPECIAL};
        unsigned pair = (unsigned)(unsigned char)text[0] << 8 | (unsigned char)text[1];
        if (bytes == 1)
            set->alone[(unsigned char)text[0]] = true;
        else
            set->begins[pair / 64] |= UINT64_C(1) << pair % 64;
    }
    return KAKEYA_OK;
}

kakeya_status tokenizer_build(vocab_source *source, tokenizer_tables **out, kakeya_error *error) {
    *out = NULL;
    if (source->n_entries == 0 || source->n_entries > MAX_IDS || source->n_merges > UINT32_MAX) {
        return error_set(error, KAKEYA_FORMAT, "%s: %zu vocabulary entries and %zu merges do not make a tokenizer",
                         source->name, source->n_entries, source->n_merges);
    }
    tokenizer_tables *t = calloc(1, sizeof *t);
    if (!t) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", source->name);
    t->text = source->piece_text.data;
    source->piece_text = (text_buffer){0};

    kakeya_status status = add_pieces(t, source, error);
    if (!status) status = source->ranked ? add_ranks(t, source, error) : add_merges(t, source, error);
    if (!status) status = add_byte_ids(t, source->name, error);
    if (!status) status = fill_added_set(t, source, false, &t->verbatim, error);
    if (!status) status = fill_added_set(t, source, true, &t->normalized, error);
    if (status) {
        tokenizer_tables_free(t);
        return status;
    }
    *out = t;
    return KAKEYA_OK;
}
