#include "base/device_list.h"

#include <stdlib.h>

kakeya_status device_list_read(const char *text, int most, int devices[DEVICE_LIST_MOST], int *n, kakeya_error *error) {
    enum { LARGEST = 999 };
    *n = 0;
    if (!text || !*text) return KAKEYA_OK;
    for (const char *at = text;; at++) {
        char *end = NULL;
        long number = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : -1;
        if (number < 0 || number > LARGEST || (*end && *end != ','))
            return error_set(error, KAKEYA_INVALID_ARGUMENT,
                             "devices '%s' is not a list of numbers with commas between them", text);
        if (*n == most || *n == DEVICE_LIST_MOST)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "devices '%s': at most %d compute together", text,
                             most < DEVICE_LIST_MOST ? most : (int)DEVICE_LIST_MOST);
        devices[(*n)++] = (int)number;
        if (!*end) return KAKEYA_OK;
        at = end;
    }
}
