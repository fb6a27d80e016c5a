#include "cli/train_data.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "cli/input.h"

typedef struct data_walk {
    const train_data *data;
    train_sequence_fn visit;
    void *user;
    int32_t before; /* the token that texts begin with; -1: none */
    int held;
    bool done;
} data_walk;

static uint64_t draw(uint64_t seed, uint64_t a, uint64_t b) {
    const uint64_t keys[3] = {seed, a, b};
    uint64_t hash = hash_fnv1a(HASH_FNV1A_START, keys, sizeof keys);
    return (hash ^ (hash >> 29)) * 0x9e3779b97f4a7c15u >> 20; /* FNV's low bits follow the last byte too closely */
}

/* One piece. A prompt that is held out gets as short as its answer needs; of a conversation the end is kept. */
static kakeya_status take_piece(data_walk *w, uint64_t document, const int32_t *ids, size_t at, size_t length,
                                bool keep_end, kakeya_error *error) {
    enum { HELD_SHARE = 8 };
    const train_data *d = w->data;
    size_t answer = (size_t)d->answer, held_tokens = (size_t)d->held_tokens, n = length;
    if (length + answer < (size_t)d->least) return KAKEYA_OK;
    bool held =
        w->held < d->held_out && length + answer >= held_tokens && draw(d->seed, document, at) % HELD_SHARE == 0;
    if (held) n = held_tokens > answer ? held_tokens - answer : 1;
    kakeya_status status = w->visit(w->user, ids + at + (keep_end ? length - n : 0), (int)n, &held, &w->done, error);
    w->held += held;
    return status;
}

/* Pieces of one document. Each begins as a text does: rows attend much to that token, and never decode without it. It
 * takes the place of the last token of the piece before. */
static kakeya_status cut(data_walk *w, uint64_t file, uint64_t document, int32_t *ids, size_t n, kakeya_error *error) {
    size_t longest = (size_t)(w->data->sequence - w->data->answer);
    kakeya_status status = KAKEYA_OK;
    for (size_t at = 0; at < n && !w->done && !status;) {
        if (at && w->before >= 0 && longest > 1) ids[--at] = w->before;
        size_t length = n - at < longest ? n - at : longest;
        status = take_piece(w, file << 32 | document, ids, at, length, false, error);
        at += length;
    }
    return status;
}

/* The last answers of a conversation are left out, so that it ends with a question. */
static kakeya_status ask(const char *line, size_t length, char **out, kakeya_error *error) {
    cJSON *json = NULL;
    kakeya_status status = json_parse("conversation", line, length, &json, error);
    if (status) return status;
    cJSON *messages = cJSON_IsArray(json) ? json : cJSON_GetObjectItemCaseSensitive(json, "messages");
    for (int n = cJSON_GetArraySize(messages); n > 0; n--) {
        const cJSON *role = cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(messages, n - 1), "role");
        if (!cJSON_IsString(role)) break;
        if (strcmp(role->valuestring, "assistant") != 0 && strcmp(role->valuestring, "model") != 0) break;
        cJSON_DeleteItemFromArray(messages, n - 1);
    }
    if (cJSON_IsArray(messages) && !cJSON_GetArraySize(messages)) {
        status = error_set(error, KAKEYA_FORMAT, "the conversation has no question");
    } else {
        *out = cJSON_PrintUnformatted(json);
        if (!*out) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    }
    cJSON_Delete(json);
    return status;
}

static kakeya_status take_conversation(data_walk *w, uint64_t file, uint64_t number, const char *line, size_t length,
                                       const char *path, kakeya_error *error) {
    const train_data *d = w->data;
    size_t n = 0, longest = (size_t)(d->sequence - d->answer);
    int32_t *ids = NULL;
    char *question = NULL;
    kakeya_chat_options chat;
    KAKEYA_INIT(&chat);
    kakeya_status status = d->answer ? ask(line, length, &question, error) : KAKEYA_OK;
    if (!status)
        status = kakeya_chat_tokens(d->tokenizer, question ? question : line, question ? strlen(question) : length,
                                    &chat, &ids, &n, NULL, error);
    if (status) error_prefix(error, status, "%s, line %llu", path, (unsigned long long)number);
    if (!status && d->answer && n) {
        size_t first = n > longest ? n - longest : 0;
        status = take_piece(w, file << 32 | number, ids, first, n - first, true, error);
    } else if (!status) {
        status = cut(w, file, number, ids, n, error);
    }
    kakeya_free(ids);
    cJSON_free(question);
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
        size_t length = end ? (size_t)(end - line) : bytes - at;
        at += length + 1;
        if (strspn(line, " \t\r") >= length) continue;
        status = take_conversation(w, file, number, line, length, path, error);
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

static kakeya_status find_before(data_walk *w, kakeya_error *error) {
    int32_t *ids = NULL;
    size_t n = 0;
    w->before = -1;
    if (!w->data->tokenizer) return KAKEYA_OK;
    kakeya_status status = kakeya_tokenize(w->data->tokenizer, "", 0, KAKEYA_TEXT_ADD_SPECIAL, &ids, &n, error);
    if (!status && n) w->before = ids[0];
    kakeya_free(ids);
    return status;
}

kakeya_status train_data_files(const cli_texts *data, char *const *operands, size_t n, const char ***files,
                               size_t *n_files, kakeya_error *error) {
    *n_files = data->n + n;
    *files = malloc((*n_files + 1) * sizeof **files);
    if (!*files) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    for (size_t i = 0; i < *n_files; i++) {
        const char *path = (*files)[i] = i < data->n ? data->text[i] : operands[i - data->n];
        if (access(path, R_OK) != 0) return error_set(error, KAKEYA_IO, "%s: cannot open: %s", path, strerror(errno));
    }
    return KAKEYA_OK;
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
    kakeya_status status = find_before(&w, error);
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
