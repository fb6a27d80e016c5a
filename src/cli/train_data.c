#include "cli/train_data.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "cli/input.h"

typedef struct data_walk {
    const train_data *data;
    train_sequence_fn visit;
    void *user;
    int held;
    bool done;
} data_walk;

static uint64_t draw(uint64_t seed, uint64_t a, uint64_t b) {
    const uint64_t keys[3] = {seed, a, b};
    uint64_t hash = hash_fnv1a(HASH_FNV1A_START, keys, sizeof keys);
    return (hash ^ (hash >> 29)) * 0x9e3779b97f4a7c15u >> 20; /* FNV's low bits follow the last byte too closely */
}

/* Pieces of one document. */
static kakeya_status cut(data_walk *w, uint64_t file, uint64_t document, const int32_t *ids, size_t n,
                         kakeya_error *error) {
    enum { HELD_SHARE = 8 };
    const train_data *d = w->data;
    kakeya_status status = KAKEYA_OK;
    for (size_t at = 0; at < n && !w->done && !status;) {
        size_t length = n - at < (size_t)d->sequence ? n - at : (size_t)d->sequence;
        bool held = w->held < d->held_out && length >= (size_t)d->held_tokens &&
                    draw(d->seed, file << 32 | document, at) % HELD_SHARE == 0;
        if (held) w->held++;
        if (length >= (size_t)d->least)
            status = w->visit(w->user, ids + at, held ? d->held_tokens : (int)length, held, &w->done, error);
        at += length;
    }
    return status;
}

static kakeya_status walk_text(data_walk *w, const char *path, uint64_t file, kakeya_error *error) {
    char *text = NULL;
    size_t bytes = 0, n = 0;
    int32_t *ids = NULL;
    kakeya_status status = input_read_text(path, &text, &bytes, error);
    if (!status && bytes) {
        status = kakeya_tokenize(w->data->tokenizer, text, bytes, KAKEYA_TEXT_ADD_SPECIAL, &ids, &n, error);
        if (status) error_prefix(error, status, "%s", path);
    }
    free(text);
    if (!status) status = cut(w, file, 0, ids, n, error);
    kakeya_free(ids);
    return status;
}

/* A conversation in a line; empty lines are none. */
static kakeya_status walk_lines(data_walk *w, const char *path, uint64_t file, kakeya_error *error) {
    char *text = NULL;
    size_t bytes = 0;
    kakeya_status status = input_read_text(path, &text, &bytes, error);
    uint64_t number = 1;
    for (size_t at = 0; at < bytes && !w->done && !status; number++) {
        const char *line = text + at, *end = memchr(line, '\n', bytes - at);
        size_t length = end ? (size_t)(end - line) : bytes - at, n = 0;
        at += length + 1;
        if (strspn(line, " \t\r") >= length) continue;
        int32_t *ids = NULL;
        kakeya_chat_options chat;
        kakeya_chat_options_init(&chat);
        status = kakeya_chat_tokens(w->data->tokenizer, line, length, &chat, &ids, &n, NULL, error);
        if (status) error_prefix(error, status, "%s, line %llu", path, (unsigned long long)number);
        if (!status) status = cut(w, file, number, ids, n, error);
        kakeya_free(ids);
    }
    free(text);
    return status;
}

static kakeya_status walk_ids(data_walk *w, const char *path, uint64_t file, kakeya_error *error) {
    int32_t *ids = NULL;
    size_t n = 0;
    kakeya_status status = input_read_ids(path, w->data->vocab, &ids, &n, error);
    if (!status) status = cut(w, file, 0, ids, n, error);
    free(ids);
    return status;
}

static bool ends_with(const char *path, const char *end) {
    size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

kakeya_status train_data_walk(const train_data *data, train_sequence_fn visit, void *user, kakeya_error *error) {
    data_walk w = {.data = data, .visit = visit, .user = user};
    size_t *order = malloc((data->n_files + 1) * sizeof *order);
    if (!order) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: %zu files", data->n_files);
    for (size_t i = 0; i < data->n_files; i++) {
        size_t at = (size_t)(draw(data->seed, i, UINT64_MAX) % (i + 1));
        order[i] = order[at];
        order[at] = i;
    }
    kakeya_status status = KAKEYA_OK;
    for (size_t i = 0; i < data->n_files && !w.done && !status; i++) {
        const char *path = data->files[order[i]];
        if (ends_with(path, ".json"))
            status = walk_ids(&w, path, order[i], error);
        else if (!data->tokenizer)
            status = error_set(error, KAKEYA_UNSUPPORTED,
                               "%s: the model has no tokenizer: give token ids (.json, an array of integers)", path);
        else if (ends_with(path, ".jsonl"))
            status = walk_lines(&w, path, order[i], error);
        else
            status = walk_text(&w, path, order[i], error);
    }
    free(order);
    return status;
}
