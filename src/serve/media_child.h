/* Decoders in a process of their own: what a picture or a sound of a stranger makes them do ends there. The process has
 * limits on memory and time, no files, and, on Linux, a filter of system calls. */
#ifndef KAKEYA_SERVE_MEDIA_CHILD_H
#define KAKEYA_SERVE_MEDIA_CHILD_H

#include "media/sound.h"
#include "serve/image_reader.h"

/* Behind "serve" on the command line, alone: what the program does in the child. */
#define MEDIA_CHILD_ARGUMENT "--decode-media"

/* As image_reader_read, in a child of `program`, which is this one. At most four run at a time, of pictures and sounds
 * together; others wait. A child that crashes or takes too long is KAKEYA_FORMAT, one that cannot be started KAKEYA_IO.
 */
kakeya_status media_child_read_image(const char *program, const char *name, const void *data, size_t bytes,
                                     const image_wish *wish, image_info *info, image *out, kakeya_error *error);
/* The same as sound_decode. */
kakeya_status media_child_read_sound(const char *program, const char *name, const void *data, size_t bytes, int seconds,
                                     sound_info *info, sound_samples *out, kakeya_error *error);

/* The child's side: answers one request on stdin there, which is a socket. Returns the exit status. */
int media_child_run(void);

#endif
