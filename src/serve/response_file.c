#include "serve/response_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "serve/state_file.h"

enum { HEAD_BYTES = 512, CHECKSUM_BYTES = 32 };
#define MOST_FILE_BYTES ((size_t)256 << 20)

static const char prefix[] = "resp_", suffix[] = ".kkr";

void response_texts_free(response_texts *t) {
    text_free(&t->object);
    text_free(&t->input);
    text_free(&t->output);
}

bool response_texts_copy(const response_texts *from, response_texts *to) {
    *to = (response_texts){0};
    memcpy(to->previous, from->previous, sizeof to->previous);
    text_bytes(&to->object, from->object.data ? from->object.data : "", from->object.n);
    text_bytes(&to->input, from->input.data ? from->input.data : "", from->input.n);
    text_bytes(&to->output, from->output.data ? from->output.data : "", from->output.n);
    if (!to->object.failed && !to->input.failed && !to->output.failed) return true;
    response_texts_free(to);
    *to = (response_texts){0};
    return false;
}

/* ----------------------------------------------------------------------------------------------------------- names */

static bool is_id(const char *id, size_t bytes) {
    static const char allowed[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    size_t skip = strlen(prefix);
    return bytes > skip && bytes < RESPONSE_ID_BYTES && strncmp(id, prefix, skip) == 0 &&
           strspn(id + skip, allowed) >= bytes - skip;
}

bool response_file_name(const char *id, char name[RESPONSE_NAME_BYTES]) {
    size_t bytes = strlen(id);
    if (!is_id(id, bytes)) return false;
    memcpy(name, id, bytes);
    memcpy(name + bytes, suffix, sizeof suffix);
    return true;
}

bool response_file_id(const char *name, char id[RESPONSE_ID_BYTES]) {
    size_t bytes = strlen(name), tail = strlen(suffix);
    if (bytes <= tail || strcmp(name + bytes - tail, suffix) != 0 || !is_id(name, bytes - tail)) return false;
    memcpy(id, name, bytes - tail);
    id[bytes - tail] = '\0';
    return true;
}

/* --------------------------------------------------------------------------------------------------------- writing */

/* Of the head without its own place, and of the texts. */
static void checksum(const char *head, size_t head_bytes, const char *texts, size_t bytes,
                     char out[CHECKSUM_BYTES + 1]) {
    const XXH128_hash_t both[2] = {XXH3_128bits(head, head_bytes), XXH3_128bits(texts, bytes)};
    XXH128_hash_t hash = XXH3_128bits(both, sizeof both);
    snprintf(out, CHECKSUM_BYTES + 1, "%016" PRIx64 "%016" PRIx64, hash.high64, hash.low64);
}

kakeya_status response_file_write(int directory, const response_record *r, kakeya_error *error) {
    const response_texts *t = &r->texts;
    char name[RESPONSE_NAME_BYTES], sum[CHECKSUM_BYTES + 1];
    if (!response_file_name(r->id, name))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%.39s is not the id of a response", r->id);
    text_buffer head = {0}, file = {0};
    text_format(&head, "kakeya-response 1 %s %016llx %" PRIu64 " %s %zu %zu %zu ", r->id, r->owner, r->ended_ms,
                t->previous[0] ? t->previous : "-", t->object.n, t->input.n, t->output.n);
    const text_buffer *texts[] = {&t->object, &t->input, &t->output};
    text_bytes(&file, head.data ? head.data : "", head.n);
    for (int i = 0; i < CHECKSUM_BYTES + 1; i++) text_add(&file, "\n"); /* the checksum and the line end */
    size_t skip = file.n;
    for (size_t i = 0; i < 3; i++) text_bytes(&file, texts[i]->data ? texts[i]->data : "", texts[i]->n);
    kakeya_status status =
        head.failed || file.failed ? error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", name) : KAKEYA_OK;
    if (status == KAKEYA_OK) {
        checksum(head.data, head.n, file.data + skip, file.n - skip, sum);
        memcpy(file.data + head.n, sum, CHECKSUM_BYTES);
        status = state_file_write(directory, name, file.data, file.n, false, error);
    }
    text_free(&head);
    text_free(&file);
    return status;
}

/* --------------------------------------------------------------------------------------------------------- reading */

/* The head of the line, up to its checksum, and the sizes of the texts. */
static bool read_head(const char *line, size_t *head_bytes, size_t sizes[3], char sum[CHECKSUM_BYTES + 1],
                      response_record *out) {
    int head = 0, all = 0;
    int read =
        sscanf(line, "kakeya-response 1 %39s %16llx %" SCNu64 " %39s %zu %zu %zu %n%32[0-9a-f]%n", out->id, &out->owner,
               &out->ended_ms, out->texts.previous, &sizes[0], &sizes[1], &sizes[2], &head, sum, &all);
    if (read != 8 || strlen(sum) != CHECKSUM_BYTES || line[all] != '\0') return false;
    *head_bytes = (size_t)head;
    if (strcmp(out->texts.previous, "-") == 0) out->texts.previous[0] = '\0';
    return true;
}

static kakeya_status parse(const char *name, const char *data, size_t bytes, response_record *out,
                           kakeya_error *error) {
    const char *end = memchr(data, '\n', bytes < HEAD_BYTES ? bytes : HEAD_BYTES);
    char line[HEAD_BYTES + 1], sum[CHECKSUM_BYTES + 1], expected[CHECKSUM_BYTES + 1], own[RESPONSE_ID_BYTES];
    size_t head, sizes[3], line_bytes = end ? (size_t)(end - data) : 0;
    memcpy(line, data, line_bytes);
    line[line_bytes] = '\0';
    if (!end || strlen(line) != line_bytes || !read_head(line, &head, sizes, sum, out))
        return error_set(error, KAKEYA_FORMAT, "%s: damaged: its first line is not that of a response", name);
    const char *texts = end + 1;
    size_t left = bytes - line_bytes - 1;
    if (sizes[0] > left || sizes[1] > left - sizes[0] || sizes[2] != left - sizes[0] - sizes[1])
        return error_set(error, KAKEYA_FORMAT, "%s: damaged: %zu bytes of text where others are stated", name, left);
    checksum(line, head, texts, left, expected);
    if (strcmp(sum, expected) != 0) return error_set(error, KAKEYA_FORMAT, "%s: damaged: another checksum", name);
    if (!response_file_id(name, own) || strcmp(own, out->id) != 0)
        return error_set(error, KAKEYA_FORMAT, "%s: it is the file of %s", name, out->id);
    text_bytes(&out->texts.object, texts, sizes[0]);
    text_bytes(&out->texts.input, texts + sizes[0], sizes[1]);
    text_bytes(&out->texts.output, texts + sizes[0] + sizes[1], sizes[2]);
    if (!out->texts.object.failed && !out->texts.input.failed && !out->texts.output.failed) return KAKEYA_OK;
    response_texts_free(&out->texts);
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", name);
}

kakeya_status response_file_read(int directory, const char *name, response_record *record, kakeya_error *error) {
    char *data;
    size_t bytes;
    *record = (response_record){.owner = 0};
    kakeya_status status = state_file_read(directory, name, MOST_FILE_BYTES, &data, &bytes, error);
    if (status == KAKEYA_OK) status = parse(name, data, bytes, record, error);
    free(data);
    return status;
}
