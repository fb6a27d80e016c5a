/* Small files of the session directory, written and read as a whole. */
#ifndef KAKEYA_SERVE_STATE_FILE_H
#define KAKEYA_SERVE_STATE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "kakeya.h"

/* Opens the directory, which is made where it does not exist, for its owner alone. A descriptor, or -1: *error. */
int state_directory(const char *path, kakeya_error *error);

/* Writes the file for its owner alone: under another name, synced, then renamed, so that whatever happens the old one
 * or the new one is there. only_new: not where there is one already, which is KAKEYA_CANCELLED; so is another writer of
 * the same. On failure nothing is left. */
kakeya_status state_file_write(int directory, const char *name, const void *data, size_t bytes, bool only_new,
                               kakeya_error *error);

/* Reads a regular file of at most `most` bytes, with a NUL behind them. *data is malloc'ed. KAKEYA_CANCELLED: there is
 * no such file. */
kakeya_status state_file_read(int directory, const char *name, size_t most, char **data, size_t *bytes,
                              kakeya_error *error);

#endif
