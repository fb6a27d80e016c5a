/* Folders of our own. */
#ifndef KAKEYA_REMOTE_FOLDERS_H
#define KAKEYA_REMOTE_FOLDERS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* Makes a folder, readable by its owner alone, and those above it; one that is there is fine. */
kakeya_status folder_make(const char *path, kakeya_error *error);
/* Removes a folder with all that is in it, following no link. */
void folder_remove(const char *path);

/* Writes a file whole, or not at all; reads one of at most `most` bytes into malloc'ed memory. */
kakeya_status folder_write(const char *folder, const char *name, const void *data, size_t bytes, kakeya_error *error);
kakeya_status folder_read(const char *folder, const char *name, size_t most, char **data, size_t *bytes,
                          kakeya_error *error);
bool folder_has(const char *folder, const char *name);

#endif
