/* Files of the session directory on their way: written under another name and renamed when they are complete. */
#ifndef KAKEYA_SERVE_TEMPORARY_H
#define KAKEYA_SERVE_TEMPORARY_H

enum { TEMPORARY_NAME_BYTES = 256 };

/* Makes the file under which `name` is written, for its owner alone, and its own name. Whoever writes it holds a lock
 * on it for as long as it is open, so that others know those of the dead. A descriptor, or -1 with errno; EEXIST:
 * another living writer is at it. */
int temporary_open(int directory, const char *name, char temporary[TEMPORARY_NAME_BYTES]);

/* Removes those of writers that are no more. */
void temporary_remove_abandoned(int directory);

#endif
