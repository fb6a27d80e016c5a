#include "train/saved.h"

#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "base/hash.h"

typedef struct saved_head {
    char magic[8];
    uint64_t purpose, numbers[SAVED_NUMBERS], bytes[SAVED_PARTS];
} saved_head;

kakeya_status saved_write(const saved_kind *kind, const char *path, uint64_t purpose,
                          const uint64_t numbers[SAVED_NUMBERS], const saved_part *parts, int n, kakeya_error *error) {
    saved_head head = {.purpose = purpose};
    memcpy(head.magic, kind->magic, sizeof head.magic);
    memcpy(head.numbers, numbers, sizeof head.numbers);
    for (int i = 0; i < n; i++) head.bytes[i] = parts[i].bytes;
    hash_stream sum = HASH_STREAM_START;
    hash_stream_add(&sum, &head, sizeof head);
    file_writer *writer = NULL;
    kakeya_status status = file_writer_open(path, &writer, error);
    if (status) return status;
    status = file_writer_write(writer, &head, sizeof head, error);
    for (int i = 0; i < n && !status; i++) {
        hash_stream_add(&sum, parts[i].data, parts[i].bytes);
        status = file_writer_write(writer, parts[i].data, parts[i].bytes, error);
    }
    uint64_t hash = hash_stream_value(&sum);
    if (!status) status = file_writer_write(writer, &hash, sizeof hash, error);
    if (!status) return file_writer_commit(writer, error);
    file_writer_abort(writer);
    return status;
}

/* The parts fill the file, and its checksum is right. */
static bool whole(const file_map *map, const saved_head *head) {
    uint64_t hash = 0, left = map->bytes - sizeof *head;
    for (int i = 0; i < SAVED_PARTS; i++) {
        if (head->bytes[i] > left) return false;
        left -= head->bytes[i];
    }
    if (left != sizeof hash) return false;
    hash_stream sum = HASH_STREAM_START;
    hash_stream_add(&sum, map->data, map->bytes - sizeof hash);
    memcpy(&hash, map->data + map->bytes - sizeof hash, sizeof hash);
    return hash == hash_stream_value(&sum);
}

static kakeya_status check(const saved_kind *kind, const char *path, uint64_t purpose, const file_map *map,
                           saved_head *head, kakeya_error *error) {
    if (map->bytes >= sizeof *head) memcpy(head, map->data, sizeof *head);
    if (map->bytes < sizeof *head || memcmp(head->magic, kind->magic, sizeof head->magic) != 0)
        return error_set(error, KAKEYA_FORMAT, "%s: not %s", path, kind->what);
    if (head->purpose != purpose)
        return error_set(error, KAKEYA_FORMAT,
                         "%s: %s with another model, other options or other data; remove it to start over", path,
                         kind->what);
    if (!whole(map, head)) return error_set(error, KAKEYA_FORMAT, "%s: is damaged; remove it to start over", path);
    return KAKEYA_OK;
}

kakeya_status saved_read(const saved_kind *kind, const char *path, uint64_t purpose, uint64_t numbers[SAVED_NUMBERS],
                         saved_part *parts, int n, kakeya_error *error) {
    file_map map;
    saved_head head;
    kakeya_status status = file_map_open(path, &map, error);
    if (status) return status;
    memset(parts, 0, (size_t)n * sizeof *parts);
    status = check(kind, path, purpose, &map, &head, error);
    const unsigned char *at = map.data + sizeof head;
    for (int i = 0; i < n && !status; i++) {
        parts[i].bytes = (size_t)head.bytes[i];
        parts[i].data = malloc(parts[i].bytes + 1);
        if (!parts[i].data) {
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", path);
            break;
        }
        memcpy(parts[i].data, at, parts[i].bytes);
        at += parts[i].bytes;
    }
    if (status)
        saved_free(parts, n);
    else
        memcpy(numbers, head.numbers, sizeof head.numbers);
    file_map_close(&map);
    return status;
}

void saved_free(saved_part *parts, int n) {
    for (int i = 0; i < n; i++) free(parts[i].data);
    memset(parts, 0, (size_t)n * sizeof *parts);
}
