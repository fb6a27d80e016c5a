/* The stored responses of a directory of their own, in that of the sessions. A thread writes them, so that no answer
 * waits for a disk. Several servers may share a directory: files are complete from the moment that they have their
 * name, and never change.
 *
 * All functions may be called by several threads at a time; those that touch files are not for a network thread. */
#ifndef KAKEYA_SERVE_RESPONSE_DISK_H
#define KAKEYA_SERVE_RESPONSE_DISK_H

#include "serve/response_file.h"

typedef struct response_disk response_disk;

/* log: one line, by any thread. KAKEYA_IO: the directory cannot be made or read. */
kakeya_status response_disk_open(const char *directory, void (*log)(void *user, const char *line), void *user,
                                 response_disk **out, kakeya_error *error);
/* Writes what waits, and frees everything. NULL is fine. */
void response_disk_close(response_disk *disk);

/* Takes the record: it is written soon. Touches no file. */
void response_disk_save(response_disk *disk, response_record *record);
/* Removes the file soon; one that waits to be written is not. Touches no file. */
void response_disk_forget(response_disk *disk, const char *id);
/* Removes the file now. */
void response_disk_remove(response_disk *disk, const char *id);
/* Whether another server has removed the file that was there. */
bool response_disk_is_gone(response_disk *disk, const char *id);

/* Calls `take` with each response whose file is new here, oldest first; take owns its texts. A damaged file is renamed
 * to NAME.bad. Touches the files only if the directory has changed. */
void response_disk_scan(response_disk *disk, void (*take)(void *user, response_record *record), void *user);

#endif
