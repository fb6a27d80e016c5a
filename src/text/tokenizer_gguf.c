#include "text/tokenizer_gguf.h"

#include <math.h>
#include <stdlib.h>

#include "formats/gguf_keys.h"
#include "text/tokenizer_build.h"
#include "text/utf8.h"

enum { MAX_TOKEN_BYTES = 65536 };

/* tokenizer.ggml.token_type */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE };

/* How converters write a space inside of a piece of a merge: the character 256 code points above. */
#define WRITTEN_SPACE       "\xC4\xA0"
#define WRITTEN_SPACE_BYTES ((size_t)2)

typedef struct vocab_reader {
    gguf_keys keys;
    vocab_source source;
    const gguf_value *tokens, *types, *merges, *scores;
} vocab_reader;

static void out_of_memory(vocab_reader *r) { gguf_keys_fail(&r->keys, KAKEYA_OUT_OF_MEMORY, "out of memory"); }

/* Whether the file has a vocabulary, and one of the two forms of Gemma: with merges (Gemma 4), or of pieces with
 * scores, which are the merges' order (Gemma 3, whose converters call it llama). */
static bool has_vocabulary(vocab_reader *r) {
    gguf_text model, pre = {0};
    char shown[GGUF_SHOWN_BYTES];
    if (!gguf_keys_text(&r->keys, "tokenizer.ggml.model", &model) || gguf_text_is(model, "none")) return false;
    (void)gguf_keys_text(&r->keys, "tokenizer.ggml.pre", &pre);
    bool llama = gguf_text_is(model, "llama");
    if (!gguf_text_is(model, "gemma4") && !llama)
        gguf_keys_fail(&r->keys, KAKEYA_UNSUPPORTED, "key tokenizer.ggml.model is %s, expected gemma4 or llama",
                       gguf_show(model.data, model.bytes, shown));
    r->source.ranked = llama && !gguf_text_is(pre, "gemma4");
    if (gguf_keys_bool(&r->keys, "tokenizer.ggml.add_space_prefix", false))
        gguf_keys_fail(&r->keys, KAKEYA_UNSUPPORTED, "key tokenizer.ggml.add_space_prefix is true, expected false");
    return r->keys.status == KAKEYA_OK;
}

static void check_count(vocab_reader *r, const gguf_value *value) {
    if (value && value->count != r->tokens->count)
        gguf_keys_fail(&r->keys, KAKEYA_FORMAT, "key %s has %llu elements, but there are %llu tokens", value->key,
                       (unsigned long long)value->count, (unsigned long long)r->tokens->count);
}

static const gguf_value *needed(vocab_reader *r, const char *key, const gguf_value *value) {
    if (!value) gguf_keys_fail(&r->keys, KAKEYA_FORMAT, "key %s is missing", key);
    return value;
}

static void find_arrays(vocab_reader *r) {
    static const char tokens[] = "tokenizer.ggml.tokens", merges[] = "tokenizer.ggml.merges",
                      types[] = "tokenizer.ggml.token_type", scores[] = "tokenizer.ggml.scores";
    r->tokens = needed(r, tokens, gguf_keys_array(&r->keys, tokens, GGUF_STRING));
    r->types = needed(r, types, gguf_find(r->keys.file, types));
    r->scores = gguf_keys_array(&r->keys, scores, GGUF_F32); /* of no meaning beside merges */
    if (r->source.ranked)
        (void)needed(r, scores, r->scores);
    else
        r->merges = needed(r, merges, gguf_keys_array(&r->keys, merges, GGUF_STRING));
    if (r->types && (!r->types->array || !gguf_is_integer(r->types->type)))
        gguf_keys_fail(&r->keys, KAKEYA_FORMAT, "key %s is not an array of whole numbers", types);
    if (r->keys.status != KAKEYA_OK) return;
    check_count(r, r->types);
    check_count(r, r->scores);
    if (r->tokens->count >= INT32_MAX)
        gguf_keys_fail(&r->keys, KAKEYA_FORMAT, "key tokenizer.ggml.tokens has %llu tokens",
                       (unsigned long long)r->tokens->count);
}

/* Higher scores are merged first: the rank falls as the score rises, and is the same for equal scores. */
static uint32_t rank_of(vocab_reader *r, uint64_t id) {
    float score;
    uint32_t bits;
    memcpy(&score, r->scores->data + id * sizeof score, sizeof score);
    if (!isfinite(score))
        gguf_keys_fail(&r->keys, KAKEYA_FORMAT, "key tokenizer.ggml.scores[%llu] is %g, expected a finite number",
                       (unsigned long long)id, (double)score);
    score += 0.0f; /* no negative zero */
    memcpy(&bits, &score, sizeof bits);
    return ~(bits & UINT32_C(1) << 31 ? ~bits : bits | UINT32_C(1) << 31);
}

static void read_tokens(vocab_reader *r) {
    size_t at = 0;
    char shown[GGUF_SHOWN_BYTES];
    for (uint64_t id = 0; id < r->tokens->count && r->keys.status == KAKEYA_OK; id++) {
        gguf_text text = gguf_next_string(r->tokens, &at);
        long long type = gguf_value_int(r->types, id);
        if (text.bytes > MAX_TOKEN_BYTES || utf8_valid_bytes(text.data, text.bytes) != text.bytes)
            gguf_keys_fail(&r->keys, KAKEYA_FORMAT, "key tokenizer.ggml.tokens[%llu] is %s: %s", (unsigned long long)id,
                           gguf_show(text.data, text.bytes, shown),
                           text.bytes > MAX_TOKEN_BYTES ? "longer than 65536 bytes" : "not UTF-8");
        if (type < TYPE_NORMAL || type > TYPE_BYTE)
            gguf_keys_fail(&r->keys, KAKEYA_FORMAT, "key tokenizer.ggml.token_type[%llu] is %lld, expected 1 to 6",
                           (unsigned long long)id, type);
        if (r->keys.status != KAKEYA_OK) return;
        /* Beside merges, converters force some control tokens to be user-defined, so that they are printed, and early
         * files called <eos> normal. Beside scores, user-defined tokens are text: runs of spaces and line ends, tags.
         */
        bool special = type == TYPE_UNKNOWN || type == TYPE_CONTROL ||
                       (type == TYPE_USER_DEFINED && !r->source.ranked) || gguf_text_is(text, "<eos>");
        int flags = special ? PIECE_ADDED | PIECE_SPECIAL : type == TYPE_USER_DEFINED ? PIECE_ADDED : 0;
        vocab_entry entry = {.id = (int32_t)id, .flags = (uint8_t)flags, .rank = TOKENIZER_NO_RANK};
        if (r->source.ranked && type == TYPE_NORMAL && !special) entry.rank = rank_of(r, id);
        bool added = text_buffer_add(&r->source.piece_text, text.data, text.bytes, &entry.text);
        entry.looked_for = entry.text;
        if (!added || !vocab_source_entry(&r->source, entry)) out_of_memory(r);
    }
}

/* A part of a merge with its written spaces as spaces. */
static bool add_spaced(text_buffer *buffer, const char *text, size_t bytes, text_span *span) {
    char *spaced = malloc(bytes + 1);
    if (!spaced) return false;
    size_t used = 0;
    for (size_t i = 0; i < bytes; i++) {
        bool space = bytes - i >= WRITTEN_SPACE_BYTES && memcmp(text + i, WRITTEN_SPACE, WRITTEN_SPACE_BYTES) == 0;
        spaced[used++] = space ? ' ' : text[i];
        i += space ? WRITTEN_SPACE_BYTES - 1 : 0;
    }
    bool added = text_buffer_add(buffer, spaced, used, span);
    free(spaced);
    return added;
}

static void read_merges(vocab_reader *r) {
    size_t at = 0;
    text_buffer *buffer = &r->source.merge_text;
    char shown[GGUF_SHOWN_BYTES];
    for (uint64_t i = 0; i < r->merges->count && r->keys.status == KAKEYA_OK; i++) {
        gguf_text text = gguf_next_string(r->merges, &at);
        const char *space = text.bytes > 1 ? memchr(text.data + 1, ' ', text.bytes - 1) : NULL;
        if (!space || text.bytes > 2 * MAX_TOKEN_BYTES) {
            gguf_keys_fail(&r->keys, KAKEYA_FORMAT,
                           "key tokenizer.ggml.merges[%llu] is %s, expected two pieces with a space between",
                           (unsigned long long)i, gguf_show(text.data, text.bytes, shown));
            return;
        }
        size_t left = (size_t)(space - text.data), right = text.bytes - left - 1;
        text_span spans[2];
        bool added = text_buffer_add(buffer, text.data, left, &spans[0]) &&
                     text_buffer_add(buffer, space + 1, right, &spans[1]) &&
                     vocab_source_merge(&r->source, spans[0], spans[1]);
        /* The written space may be that character itself: the merge whose parts are pieces is the one meant, and the
         * other is left out when tables are made. */
        if (added && memmem(text.data, text.bytes, WRITTEN_SPACE, WRITTEN_SPACE_BYTES))
            added = add_spaced(buffer, text.data, left, &spans[0]) && add_spaced(buffer, space + 1, right, &spans[1]) &&
                    vocab_source_merge(&r->source, spans[0], spans[1]);
        if (!added) out_of_memory(r);
    }
}

/* Puts the token of a key around a text; one that the file says not to have (-1, also without a sign) is not put. */
static void put_around(vocab_reader *r, const tokenizer_tables *t, const char *key, long long usual, int32_t *out,
                       size_t *n) {
    long long last = (long long)t->n_pieces - 1, id = gguf_keys_int(&r->keys, key, -1, UINT32_MAX, usual);
    if (id == -1 || id == UINT32_MAX) return;
    if (id > last)
        gguf_keys_fail(&r->keys, KAKEYA_FORMAT, "key %s is %s for %zu tokens", key,
                       gguf_find(r->keys.file, key) ? "too large" : "missing", t->n_pieces);
    else
        out[(*n)++] = (int32_t)id;
}

static void read_template(vocab_reader *r, tokenizer_tables *t) {
    if (gguf_keys_bool(&r->keys, "tokenizer.ggml.add_bos_token", true))
        put_around(r, t, "tokenizer.ggml.bos_token_id", 2, t->prefix, &t->n_prefix);
    if (gguf_keys_bool(&r->keys, "tokenizer.ggml.add_eos_token", false))
        put_around(r, t, "tokenizer.ggml.eos_token_id", 1, t->suffix, &t->n_suffix);
}

kakeya_status tokenizer_open_gguf(const gguf *file, tokenizer **out, kakeya_error *error) {
    *out = NULL;
    vocab_reader r = {.keys = {.file = file, .error = error},
                      .source = {.name = gguf_path(file), .repeats_allowed = true}};
    if (!has_vocabulary(&r)) return r.keys.status;
    tokenizer_tables *t = NULL;
    find_arrays(&r);
    if (r.keys.status == KAKEYA_OK) read_tokens(&r);
    if (r.keys.status == KAKEYA_OK && r.merges) read_merges(&r);
    if (r.keys.status == KAKEYA_OK) r.keys.status = tokenizer_build(&r.source, &t, error);
    if (r.keys.status == KAKEYA_OK) read_template(&r, t);
    vocab_source_free(&r.source);
    if (r.keys.status != KAKEYA_OK) {
        tokenizer_tables_free(t);
        return r.keys.status;
    }
    *out = t;
    return KAKEYA_OK;
}
