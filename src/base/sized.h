/* Public structs that grow at their end: they begin with `size_t size`, the bytes that the caller was compiled with.
 * The library knows `known` bytes of them, which may be more (an older caller) or less (an older library). */
#ifndef KAKEYA_BASE_SIZED_H
#define KAKEYA_BASE_SIZED_H

#include "base/error.h"

/* *resolved, zeros and its size (KAKEYA_INIT), receives what the caller knows. Refused: sizes that no initialisation
 * has set, and values other than zero after what this library knows. what: "engine options". */
kakeya_status sized_read(const char *what, const void *options, void *resolved, size_t known, kakeya_error *error);

/* Refuses a struct for results whose size nobody has set. */
kakeya_status sized_check(const char *what, const void *result, kakeya_error *error);
/* Fills the caller's struct as far as both know it, zeros behind; its size stays. */
void sized_write(void *result, const void *values, size_t known);

#endif
