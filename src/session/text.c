/* The public functions between text and tokens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "formats/checkpoint.h"
#include "formats/gguf_keys.h"
#include "model/gemma4_gguf.h"
#include "session/tokenizer.h"
#include "text/detokenizer.h"
#include "text/tokenizer_gguf.h"

void kakeya_free(void *pointer) { free(pointer); }

/* ------------------------------------------------------------------------------------------------------ opening */

/* Models of some variants open a turn without thinking by an empty thought. */
static void style_from_name(const char *variant, chat_template_info *out) {
    *out = (chat_template_info){.known = true, .gemma_turns = true, .style = CHAT_STYLE_PLAIN};
    if (variant && (strcmp(variant, "26b-a4b") == 0 || strcmp(variant, "31b") == 0))
        out->style = CHAT_STYLE_EMPTY_THOUGHT;
    if (variant && strncmp(variant, "gemma3", 6) == 0) out->style = CHAT_STYLE_GEMMA3;
}

/* Without a variant, see config.json. One that is no configuration of this family is nothing against the tokenizer;
 * turns are then not known. */
static kakeya_status style_of_variant(const char *directory, const char *variant, chat_template_info *out,
                                      kakeya_error *error) {
    char *path = NULL, *text = NULL;
    size_t bytes = 0;
    model_config *config = NULL;
    kakeya_status status = KAKEYA_OK;
    style_from_name(NULL, out);
    if (!variant) status = checkpoint_text(directory, "config.json", true, &path, &text, &bytes, error);
    if (text) {
        config = calloc(1, sizeof *config);
        kakeya_error refused;
        if (!config)
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", path);
        else if (model_config_parse(path, text, bytes, NULL, 0, config, &refused) == KAKEYA_OK)
            variant = config->variant;
        else {
            out->gemma_turns = false;
            snprintf(out->note, sizeof out->note, "%.*s", (int)sizeof out->note - 1, refused.message);
        }
    }
    if (variant) style_from_name(variant, out);
    free(config);
    free(text);
    free(path);
    return status;
}

/* How the model's turns are written: as its template says, else as its published siblings do. */
static kakeya_status read_chat_template(const char *directory, const char *variant, kakeya_tokenizer *out,
                                        kakeya_error *error) {
    size_t bytes;
    kakeya_status status = chat_template_read(directory, &out->chat_template, &bytes, error);
    if (out->chat_template)
        out->chat = chat_template_check(out->chat_template, bytes);
    else if (status == KAKEYA_OK)
        status = style_of_variant(directory, variant, &out->chat, error);
    return status;
}

/* Of a GGUF file: its template, which is looked at and never run, else as its published siblings do. */
static kakeya_status style_of_file(const gguf *file, const char *variant, kakeya_tokenizer *out, kakeya_error *error) {
    kakeya_error refused;
    gguf_keys keys = {.file = file, .error = &refused};
    gguf_text text;
    if (gguf_keys_text(&keys, "tokenizer.chat_template", &text) && text.bytes) {
        out->chat = chat_template_check(text.data, text.bytes);
        out->chat_template = strndup(text.data, text.bytes);
        return out->chat_template ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: chat template");
    }
    model_config *config = variant ? NULL : calloc(1, sizeof *config);
    if (config && gemma4_gguf_config(file, config, NULL, &refused) == KAKEYA_OK) variant = config->variant;
    style_from_name(variant, &out->chat);
    free(config);
    return KAKEYA_OK;
}

/* A tokenizer.json that may be absent: *out then stays as it is. */
static kakeya_status open_optional(const char *path, tokenizer **out, kakeya_error *error) {
    bool there;
    kakeya_status status = file_find(path, &there, error);
    return status == KAKEYA_OK && there ? tokenizer_open(path, out, error) : status;
}

/* The tokenizer.json beside a GGUF file, which wins over its vocabulary. *out stays NULL where there is none. */
static kakeya_status read_beside(const gguf *file, const char *path, tokenizer **out, kakeya_error *error) {
    const char *slash = strrchr(path, '/');
    char *beside = NULL;
    if (asprintf(&beside, "%.*stokenizer.json", slash ? (int)(slash + 1 - path) : 0, path) < 0)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", path);
    const gguf_value *tokens = gguf_find(file, "tokenizer.ggml.tokens");
    kakeya_status status = open_optional(beside, out, error);
    if (status == KAKEYA_OK && *out && tokens && tokens->array &&
        (uint64_t)tokenizer_vocab_size(*out) > tokens->count) {
        status = error_set(error, KAKEYA_FORMAT,
                           "%s has %d tokens, but %s beside it %llu: it belongs to another model and should not be "
                           "there",
                           beside, tokenizer_vocab_size(*out), path, (unsigned long long)tokens->count);
        tokenizer_close(*out);
        *out = NULL;
    }
    free(beside);
    return status;
}

static kakeya_status read_file(const char *path, const char *variant, kakeya_tokenizer *out, kakeya_error *error) {
    gguf *file;
    kakeya_status status = gguf_open(path, &file, error);
    if (status != KAKEYA_OK) return status;
    status = read_beside(file, path, &out->tokens, error);
    if (status == KAKEYA_OK && !out->tokens) status = tokenizer_open_gguf(file, &out->tokens, error);
    if (status == KAKEYA_OK) status = style_of_file(file, variant, out, error);
    gguf_close(file);
    return status;
}

kakeya_status tokenizer_read(const char *directory, const char *variant, kakeya_tokenizer *out, kakeya_error *error) {
    if (gguf_is_file(directory)) return read_file(directory, variant, out, error);
    char *path = path_join(directory, "tokenizer.json");
    if (!path) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", directory);
    kakeya_status status = open_optional(path, &out->tokens, error);
    free(path);
    return status == KAKEYA_OK ? read_chat_template(directory, variant, out, error) : status;
}

void tokenizer_release(kakeya_tokenizer *t) {
    token_table_destroy(atomic_load(&t->table));
    atomic_store(&t->table, NULL);
    tokenizer_close(t->tokens);
    t->tokens = NULL;
    free(t->chat_template);
    t->chat_template = NULL;
}

/* Threads that come at the same time each make one; the first one stays. */
kakeya_status tokenizer_table(const kakeya_tokenizer *t, const token_table **out, kakeya_error *error) {
    union {
        const kakeya_tokenizer *constant;
        kakeya_tokenizer *tokenizer;
    } given = {t};
    token_table *made = atomic_load(&given.tokenizer->table), *none = NULL;
    kakeya_status status = KAKEYA_OK;
    if (!made) {
        status = token_table_create(t->tokens, &made, error);
        if (status == KAKEYA_OK && !atomic_compare_exchange_strong(&given.tokenizer->table, &none, made)) {
            token_table_destroy(made);
            made = none;
        }
    }
    *out = made;
    return status;
}

kakeya_status kakeya_tokenizer_open(const char *model, kakeya_tokenizer **out, kakeya_error *error) {
    *out = NULL;
    char *directory = NULL;
    kakeya_tokenizer *opened = NULL;
    if (!model) return error_set(error, KAKEYA_INVALID_ARGUMENT, "tokenizer: no model given");
    kakeya_status status = checkpoint_resolve(model, &directory, error);
    if (status != KAKEYA_OK) return status;
    opened = calloc(1, sizeof *opened);
    if (!opened)
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", directory);
    else
        status = tokenizer_read(directory, NULL, opened, error);
    if (status == KAKEYA_OK && !opened->tokens)
        status =
            error_set(error, KAKEYA_IO,
                      gguf_is_file(directory) ? "%s: the file has no vocabulary, and no tokenizer.json is beside it"
                                              : "%s/tokenizer.json: the model directory has no tokenizer",
                      directory);
    free(directory);
    if (status == KAKEYA_OK)
        *out = opened;
    else
        kakeya_tokenizer_close(opened);
    return status;
}

void kakeya_tokenizer_close(kakeya_tokenizer *t) {
    if (!t) return;
    tokenizer_release(t);
    free(t);
}

/* ---------------------------------------------------------------------------------------------------- questions */

int kakeya_tokenizer_vocab_size(const kakeya_tokenizer *t) { return t ? tokenizer_vocab_size(t->tokens) : 0; }

const char *kakeya_tokenizer_piece(const kakeya_tokenizer *t, int32_t token) {
    return t ? tokenizer_piece(t->tokens, token, NULL) : NULL;
}

int32_t kakeya_tokenizer_find(const kakeya_tokenizer *t, const char *piece) {
    return t ? tokenizer_id(t->tokens, piece) : -1;
}

bool kakeya_tokenizer_is_special(const kakeya_tokenizer *t, int32_t token) {
    return t && tokenizer_is_special(t->tokens, token);
}

/* ------------------------------------------------------------------------------------------------- text and ids */

kakeya_status tokenizer_need(const kakeya_tokenizer *t, kakeya_error *error) {
    if (t) return KAKEYA_OK;
    return error_set(error, KAKEYA_UNSUPPORTED, "the model has no tokenizer.json: it takes and gives token ids only");
}

kakeya_status kakeya_tokenize(const kakeya_tokenizer *t, const char *text, size_t text_bytes, int how, int32_t **ids,
                              size_t *n_ids, kakeya_error *error) {
    return kakeya_tokenize_at_most(t, text, text_bytes, how, 0, ids, n_ids, error);
}

kakeya_status kakeya_tokenize_at_most(const kakeya_tokenizer *t, const char *text, size_t text_bytes, int how,
                                      size_t most, int32_t **ids, size_t *n_ids, kakeya_error *error) {
    *ids = NULL;
    *n_ids = 0;
    kakeya_status status = tokenizer_need(t, error);
    if (status != KAKEYA_OK) return status;
    if (how & ~KAKEYA_TEXT_PROMPT)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "tokenize: how is %d, not made of KAKEYA_TEXT_* flags", how);
    const tokenizer_encode_options options = {.add_special = (how & KAKEYA_TEXT_ADD_SPECIAL) != 0,
                                              .parse_special = (how & KAKEYA_TEXT_PARSE_SPECIAL) != 0,
                                              .add_once = (how & KAKEYA_TEXT_ADD_ONCE) != 0,
                                              .most = most};
    return tokenizer_encode(t->tokens, text, text_bytes, options, ids, n_ids, error);
}

kakeya_status kakeya_detokenize(const kakeya_tokenizer *t, const int32_t *ids, size_t n_ids, bool keep_special,
                                char **text, size_t *text_bytes, kakeya_error *error) {
    *text = NULL;
    *text_bytes = 0;
    kakeya_status status = tokenizer_need(t, error);
    if (status != KAKEYA_OK) return status;
    return detokenize(t->tokens, ids, n_ids, keep_special, text, text_bytes, error);
}
