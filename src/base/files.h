/* Files: read-only mapping, whole-file reading, and writing that never leaves a partial file behind. */
#ifndef KAKEYA_BASE_FILES_H
#define KAKEYA_BASE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

typedef struct file_map {
    const unsigned char *data; /* NULL for an empty file */
    size_t bytes;
} file_map;

kakeya_status file_map_open(const char *path, file_map *out, kakeya_error *error);
void file_map_close(file_map *map);
/* Tells the system that nobody reads these bytes soon: pages that lie wholly inside leave the process's memory. They
 * come back when they are read. Nothing happens where the bytes are not the map's. */
void file_map_unneeded(const file_map *map, const void *data, size_t bytes);
/* Where in the file mapped bytes lie. False: they are not, or not all, the map's. */
bool file_map_offset(const file_map *map, const void *data, size_t bytes, uint64_t *offset);

/* Reads a whole file into malloc'ed memory with a NUL behind it: a regular file, a pipe, a FIFO, a device, a file of
 * /proc. What stat says of its size is a hint; what is read decides, and more than max_bytes is refused.
 * KAKEYA_CANCELLED: a signal came while a pipe was waited for. */
kakeya_status file_read(const char *path, size_t max_bytes, char **data, size_t *bytes, kakeya_error *error);
/* The same for an open descriptor, which stays open. `name` is used in messages; expected: a guess of the size, or 0.
 */
kakeya_status file_read_descriptor(int fd, const char *name, size_t expected, size_t max_bytes, char **data,
                                   size_t *bytes, kakeya_error *error);

/* A text that people write with editors, those of Windows too: as file_read, without the byte-order mark that may stand
 * in front. UTF-16, which such editors also write, and a NUL are refused. */
kakeya_status file_read_text(const char *path, size_t max_bytes, char **text, size_t *bytes, kakeya_error *error);

/* Files that a program finds beside others, such as a model's. They are regular files, or links that lead to one;
 * anything else (a link that leads nowhere, a directory, a FIFO, a socket, a device) is an error and is not opened, so
 * that nothing is waited for. */
kakeya_status file_read_regular(const char *path, size_t max_bytes, char **data, size_t *bytes, kakeya_error *error);
/* The same of a file that may be absent: *data is then NULL. What has the name and cannot be read is an error. */
kakeya_status file_read_optional(const char *path, size_t max_bytes, char **data, size_t *bytes, kakeya_error *error);
/* *there: something has this name. KAKEYA_OK: it is a file that can be read, or absent. */
kakeya_status file_find(const char *path, bool *there, kakeya_error *error);
/* The first `size` bytes, or all there are. */
kakeya_status file_read_start(const char *path, void *start, size_t size, size_t *bytes, kakeya_error *error);
/* As file_find, of a directory that can be listed. */
kakeya_status directory_find(const char *path, bool *there, kakeya_error *error);

/* Writing that destroys nothing by accident. What `path` is decides how it is written:
 *  - a regular file, or nothing yet: a temporary file in the same folder, renamed over it on commit. The old content
 * stays until then, also when the program is killed. A replaced file keeps its mode. A file without any write
 * permission is refused, also for root;
 *  - a symbolic link: the file behind it is written; the link stays;
 *  - a character device, a FIFO, a listening socket, /dev/stdout, /dev/fd/N: written through, from the first byte on (a
 *    "stream"). Opening a FIFO waits for its reader;
 *  - a directory or a block device: refused. */
typedef struct file_writer file_writer;
kakeya_status file_writer_open(const char *path, file_writer **out, kakeya_error *error);
bool file_writer_is_stream(const file_writer *writer);
kakeya_status file_writer_write(file_writer *writer, const void *data, size_t bytes, kakeya_error *error);
kakeya_status file_writer_commit(file_writer *writer, kakeya_error *error); /* frees the writer, also on failure */
void file_writer_abort(file_writer *writer); /* NULL is fine; a stream keeps what it got */

/* A file for reading and writing that has no name: it is gone when it is closed, however the program ends. NULL: errno.
 */
FILE *file_unnamed(const char *directory);

/* Whether two paths lead to one existing file. */
bool file_same(const char *a, const char *b);
bool file_exists(const char *path);
bool directory_exists(const char *path);
/* malloc'ed "a/b"; NULL when out of memory. */
char *path_join(const char *a, const char *b);

#endif
