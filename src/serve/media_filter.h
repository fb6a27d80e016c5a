/* Which system calls a process may make that decodes a picture or a sound. */
#ifndef KAKEYA_SERVE_MEDIA_FILTER_H
#define KAKEYA_SERVE_MEDIA_FILTER_H

#include <stdbool.h>

/* From here on this process may read and write what is open, and ask for memory; anything else ends it. True also where
 * the system has no such filter; false: it has one, but refuses it. */
bool media_filter_install(void);

/* A build with a sanitizer, which wants more memory and more calls than any limit would leave: it has neither. */
bool media_filter_is_slack(void);

#endif
