/* Any bytes as a form: the first 16 and what follows them are the boundary's parameter and the body. Fields lie in the
 * body, in their order, and have names; what is refused says why in one line. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { PARAMETER = 16, ROOM = 8 };
    char type[64], parameter[PARAMETER + 1] = "";
    multipart_field fields[ROOM];
    api_error error = {0};
    size_t n;
    const size_t head = size < PARAMETER ? size : PARAMETER;
    memcpy(parameter, data, head);
    snprintf(type, sizeof type, "multipart/form-data; boundary=%s", parameter);
    char *body = malloc(size - head + 1);
    if (!body) abort();
    memcpy(body, data + head, size - head);
    const char *at = body;
    const bool read = multipart_read(type, body, size - head, fields, ROOM, &n, &error);
    if (read != (error.status == 0) || n > ROOM || (!read && (error.status != 400 || !error.message[0]))) abort();
    for (size_t i = 0; read && i < n; i++) {
        if (!fields[i].name[0] || fields[i].data < at || fields[i].bytes > size - head) abort();
        at = fields[i].data + fields[i].bytes;
        if (at > body + (size - head)) abort();
    }
    free(body);
    return 0;
}
