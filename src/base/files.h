/* Files: read-only mapping, whole-file reading, and writing that never leaves a partial file behind. */
#ifndef KAKEYA_BASE_FILES_H
#define KAKEYA_BASE_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef struct file_map {
    const unsigned char *data; /* NULL for an empty file */
    size_t bytes;
} file_map;

kakeya_status file_map_open(const char *path, file_map *out, kakeya_error *error);
void file_map_close(file_map *map);

/* Reads a whole file into malloc'ed memory with a NUL behind it. max_bytes guards against absurd sizes. */
kakeya_status file_read(const char *path, size_t max_bytes, char **data, size_t *bytes, kakeya_error *error);

/* Writes to a temporary file beside `path` and renames it over `path` on commit; abort removes it. */
typedef struct file_writer file_writer;
kakeya_status file_writer_open(const char *path, file_writer **out, kakeya_error *error);
kakeya_status file_writer_write(file_writer *writer, const void *data, size_t bytes, kakeya_error *error);
kakeya_status file_writer_commit(file_writer *writer, kakeya_error *error); /* frees the writer, also on failure */
void file_writer_abort(file_writer *writer);                                /* NULL is fine */

bool file_exists(const char *path);
bool directory_exists(const char *path);
/* malloc'ed "a/b"; NULL when out of memory. */
char *path_join(const char *a, const char *b);

#endif
