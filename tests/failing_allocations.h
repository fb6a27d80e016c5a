/* Allocations that fail on demand: those that the program's own code asks for, the library's among it. The linker puts
 * the functions below before the C library's (CMakeLists.txt names the programs).
 *
 *     failing_allocations_arm(k, rest);  the k-th allocation from here on fails, alone or with all that follow; 0: none
 *     n = failing_allocations_made();    how many there have been since
 *     failing_allocations_end();         no more fail
 *
 * Include in one file of a program. */
#ifndef KAKEYA_TESTS_FAILING_ALLOCATIONS_H
#define KAKEYA_TESTS_FAILING_ALLOCATIONS_H

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "allocation_sites.h"

static atomic_long failing_made, failing_at;
static atomic_bool failing_rest;

static void failing_allocations_arm(long k, bool rest) {
    failing_made = 0;
    failing_rest = rest;
    failing_at = k;
}

static long failing_allocations_made(void) { return failing_made; }
static void failing_allocations_end(void) { failing_at = 0; }

/* Counts one. True: it fails, with errno set. */
static bool failing_now(void) {
    long made = atomic_fetch_add(&failing_made, 1) + 1;
    allocation_sites_note();
    if (failing_at == 0 || made < failing_at || (made > failing_at && !failing_rest)) return false;
    errno = ENOMEM;
    return true;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *block, size_t bytes);
int __real_posix_memalign(void **block, size_t alignment, size_t bytes);
char *__real_strdup(const char *text);
void *__real_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes);
int __wrap_posix_memalign(void **block, size_t alignment, size_t bytes);
char *__wrap_strdup(const char *text);
int __wrap_asprintf(char **out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);

void *__wrap_malloc(size_t bytes) { return failing_now() ? NULL : __real_malloc(bytes); }

void *__wrap_calloc(size_t n, size_t bytes) { return failing_now() ? NULL : __real_calloc(n, bytes); }

void *__wrap_realloc(void *block, size_t bytes) { return failing_now() ? NULL : __real_realloc(block, bytes); }

int __wrap_posix_memalign(void **block, size_t alignment, size_t bytes) {
    return failing_now() ? ENOMEM : __real_posix_memalign(block, alignment, bytes);
}

char *__wrap_strdup(const char *text) { return failing_now() ? NULL : __real_strdup(text); }

int __wrap_asprintf(char **out, const char *format, ...) {
    if (failing_now()) return -1;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(out, format, arguments);
    va_end(arguments);
    return length;
}

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
    return failing_now() ? MAP_FAILED : __real_mmap(address, bytes, protection, flags, fd, offset);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    return failing_now() ? EAGAIN : __real_pthread_create(thread, attributes, start, argument);
}

#endif
