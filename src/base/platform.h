/* What Linux and macOS call by different names. */
#ifndef KAKEYA_BASE_PLATFORM_H
#define KAKEYA_BASE_PLATFORM_H

#include <stdbool.h>
#include <stddef.h>

/* A pipe, a stream or datagram socket of the local host (SOCK_STREAM, SOCK_DGRAM), and a pair of stream sockets.
 * Programs that are started later do not inherit them. 0, or -1 with errno. */
int platform_pipe(int ends[2]);
int platform_local_socket(int type);
int platform_socket_pair(int ends[2]);

/* Where this program lies, up to `bytes` with the zero behind it. False where that cannot be found out. */
bool platform_program(char *path, size_t bytes);

/* As the system calls the CPU; "" where it has no name for it. */
void platform_cpu_name(char *name, size_t bytes);

/* Memory that programs can get without others being swapped out; 0 where the system does not say it in one number. */
size_t platform_memory_available(void);

/* qsort with a context: glibc and macOS order its arguments differently. */
typedef int (*platform_order)(const void *a, const void *b, void *context);
void platform_sort(void *items, size_t n, size_t item_bytes, platform_order order, void *context);

#endif
