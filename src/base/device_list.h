/* GPUs by number, as an option names them: "0,1". */
#ifndef KAKEYA_BASE_DEVICE_LIST_H
#define KAKEYA_BASE_DEVICE_LIST_H

#include "base/error.h"

enum { DEVICE_LIST_MOST = 64 };

/* Numbers with commas between them into devices [*n], `most` of them at most; none where text is NULL or "".
 * KAKEYA_INVALID_ARGUMENT quotes the text. Whether there are such devices is not asked. */
kakeya_status device_list_read(const char *text, int most, int devices[DEVICE_LIST_MOST], int *n, kakeya_error *error);

#endif
