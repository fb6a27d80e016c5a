#include "base/sized.h"

#include <stdint.h>
#include <string.h>

/* No public struct will ever be larger: a greater size is a variable that was not initialised. */
static const size_t largest_bytes = 1 << 16;

static size_t size_of(const void *sized) {
    size_t size;
    memcpy(&size, sized, sizeof size);
    return size;
}

static size_t common(size_t a, size_t b) { return a < b ? a : b; }

kakeya_status sized_check(const char *what, const void *result, kakeya_error *error) {
    size_t size = size_of(result);
    if (size >= sizeof size && size <= largest_bytes) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT,
                     "%s: size is %zu: the struct has not been initialised by KAKEYA_INIT", what, size);
}

kakeya_status sized_read(const char *what, const void *options, void *resolved, size_t known, kakeya_error *error) {
    kakeya_status status = sized_check(what, options, error);
    if (status != KAKEYA_OK) return status;
    size_t size = size_of(options);
    const unsigned char *bytes = options;
    for (size_t i = known; i < size; i++)
        if (bytes[i])
            return error_set(error, KAKEYA_UNSUPPORTED,
                             "%s: an option after byte %zu is set that library version %s does not know", what, known,
                             kakeya_version());
    size_t head = sizeof size; /* the resolved struct keeps the library's size */
    if (size > head) memcpy((unsigned char *)resolved + head, bytes + head, common(size, known) - head);
    return KAKEYA_OK;
}

void sized_write(void *result, const void *values, size_t known) {
    size_t size = size_of(result), head = sizeof size;
    if (size < head || size > largest_bytes) return;
    size_t filled = common(size, known);
    memcpy((unsigned char *)result + head, (const unsigned char *)values + head, filled - head);
    memset((unsigned char *)result + filled, 0, size - filled);
}
