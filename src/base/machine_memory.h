/* How much memory the machine could still give to this process. */
#ifndef KAKEYA_BASE_MACHINE_MEMORY_H
#define KAKEYA_BASE_MACHINE_MEMORY_H

#include <stddef.h>

/* Bytes that the system says are available (free, or page cache that it can drop), or what the limit of the process's
 * control group leaves of them. 0: the system does not say. */
size_t machine_memory_available(void);
/* The same from files below `root` ("" is the machine itself). */
size_t machine_memory_available_in(const char *root);

#endif
