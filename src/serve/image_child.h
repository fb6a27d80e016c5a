/* Decoders in a process of their own: what a picture of a stranger makes them do ends there. The process has limits on
 * memory and time, no files, and, on Linux, a filter of system calls. */
#ifndef KAKEYA_SERVE_IMAGE_CHILD_H
#define KAKEYA_SERVE_IMAGE_CHILD_H

#include "serve/image_reader.h"

/* Behind "serve" on the command line, alone: what the program does in the child. */
#define IMAGE_CHILD_ARGUMENT "--decode-image"

/* As image_reader_read, in a child of `program`, which is this one. At most four run at a time; others wait. A child
 * that crashes or takes too long is KAKEYA_FORMAT, one that cannot be started KAKEYA_IO. */
kakeya_status image_child_read(const char *program, const char *name, const void *data, size_t bytes,
                               const image_wish *wish, image_info *info, image *out, kakeya_error *error);

/* The child's side: answers one request on stdin there, which is a socket. Returns the exit status. */
int image_child_run(void);

#endif
