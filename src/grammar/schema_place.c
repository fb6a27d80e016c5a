/* Where the compiler of schemas is, and what went wrong there. */
#include <stdarg.h>
#include <stdio.h>

#include "grammar/schema_private.h"

kakeya_status schema_fail(schema_compiler *c, kakeya_status status, const char *format, ...) {
    char what[400];
    va_list arguments;
    if (c->status) return c->status;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    c->status = error_set(c->error, status, "%s: %s", c->pointer, what);
    return c->status;
}

kakeya_status schema_out_of_memory(schema_compiler *c) { return schema_fail(c, KAKEYA_OUT_OF_MEMORY, "out of memory"); }

size_t schema_enter(schema_compiler *c, const char *key) {
    size_t mark = c->pointer_bytes, n = mark;
    if (n + 1 < sizeof c->pointer) c->pointer[n++] = '/';
    for (; *key && n + 2 < sizeof c->pointer; key++) {
        if (*key != '~' && *key != '/') {
            c->pointer[n++] = *key;
            continue;
        }
        c->pointer[n++] = '~';
        c->pointer[n++] = *key == '~' ? '0' : '1';
    }
    c->pointer[n] = 0;
    c->pointer_bytes = n;
    return mark;
}

size_t schema_enter_index(schema_compiler *c, size_t index) {
    char digits[24];
    snprintf(digits, sizeof digits, "%zu", index);
    return schema_enter(c, digits);
}

void schema_leave(schema_compiler *c, size_t mark) {
    c->pointer_bytes = mark;
    c->pointer[mark] = 0;
}
