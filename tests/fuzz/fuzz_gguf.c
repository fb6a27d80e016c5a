/* Any bytes as a GGUF file: of an accepted one every value and every tensor must lie inside it and be found by name.
 * Then as the configuration of a model and of a drafter, and as a vocabulary, of which an accepted one keeps its
 * promises. */
#include <stdlib.h>
#include <string.h>

#include "formats/gguf.h"
#include "model/dflash_gguf.h"
#include "model/gemma4_gguf.h"
#include "text/tokenizer_gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_inside(const uint8_t *data, size_t size, const unsigned char *begin, size_t bytes) {
    volatile unsigned char last = 0; /* keeps the reads, which AddressSanitizer checks */
    if (bytes && (begin < data || begin + bytes > data + size)) abort();
    for (size_t i = 0; i < bytes; i++) last = begin[i];
    (void)last;
}

static void check_value(const gguf *file, const gguf_value *value, const uint8_t *data, size_t size) {
    if (gguf_find(file, value->key) != value) abort();
    check_inside(data, size, value->data, value->bytes);
    if (value->type != GGUF_STRING) return;
    size_t at = 0;
    for (uint64_t i = 0; i < value->count; i++) {
        gguf_text text = gguf_next_string(value, &at);
        check_inside(data, size, (const unsigned char *)text.data, text.bytes);
    }
    if (at != value->bytes) abort();
}

static void read_model(const gguf *file) {
    static model_config config;
    kakeya_error error = {0};
    char note[256];
    if (gemma4_gguf_config(file, &config, note, &error) == KAKEYA_OK) {
        if (config.layers < 1 || config.vocab < 1 || config.n_stop_tokens > MODEL_MAX_STOP_TOKENS) abort();
        for (int i = 0; i < config.layers; i++) {
            const layer_config *l = &config.layer[i];
            if (l->kv_source > i || l->kv_heads < 1 || l->head_dim < 2 || config.heads % l->kv_heads) abort();
        }
    } else if (!*error.message) {
        abort();
    }
    tokenizer *tokens = NULL;
    static const char text[] = "hello #\n world";
    error = (kakeya_error){0};
    if (tokenizer_open_gguf(file, &tokens, &error) == KAKEYA_OK && tokens) {
        int32_t *ids = NULL;
        size_t n = 0;
        tokenizer_encode_options options = {.add_special = true, .parse_special = true};
        if (tokenizer_encode(tokens, text, sizeof text - 1, options, &ids, &n, &error)) abort();
        for (size_t i = 0; i < n; i++) {
            if (!tokenizer_piece(tokens, ids[i], NULL)) abort();
        }
        free(ids);
    }
    tokenizer_close(tokens);
}

static void read_drafter(const gguf *file) {
    static const model_config verifier = {.vocab = 64, .hidden = 32, .layers = 4};
    block_drafter_config c;
    kakeya_error error = {0};
    bool scaled;
    if (dflash_gguf_config(file, &verifier, &c, &scaled, &error) != KAKEYA_OK) {
        if (!*error.message) abort();
        return;
    }
    if (c.layers < 1 || c.layers > BLOCK_DRAFTER_MAX_LAYERS || c.targets < 1 || c.targets > BLOCK_DRAFTER_MAX_TARGETS)
        abort();
    if (c.heads % c.kv_heads || c.head_dim % 2 || c.mask_token >= c.vocab || c.block_size < 2) abort();
    for (int i = 0; i < c.targets; i++)
        if (c.target_layer[i] < 0 || c.target_layer[i] >= MODEL_MAX_LAYERS) abort();
    for (int i = 0; i < c.layers; i++)
        if (c.sliding_window[i] < 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kakeya_error error = {0};
    gguf *file = NULL;
    kakeya_status status = gguf_parse("fuzz", data, size, &file, &error);
    if ((status == KAKEYA_OK) != (file != NULL)) abort();
    if (status != KAKEYA_OK) {
        if (error.status != status || !*error.message) abort();
        return 0;
    }
    size_t covered = 0;
    for (size_t i = 0; i < file->n_tensors; i++) {
        const gguf_tensor *t = file->tensors[i];
        if (gguf_find_tensor(file, t->name) != (ptrdiff_t)i) abort();
        check_inside(data, size, t->data, t->bytes);
        covered += t->bytes;
    }
    if (covered > size) abort();
    for (size_t i = 0; i < file->parts[0].n_values; i++) check_value(file, &file->parts[0].values[i], data, size);
    read_model(file);
    read_drafter(file);
    gguf_close(file);
    return 0;
}
