/* A text that grows: JSON, SSE events and metrics are written into one. A failed allocation sticks, and is asked for
 * once at the end. */
#ifndef KAKEYA_SERVE_TEXT_H
#define KAKEYA_SERVE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct text_buffer {
    char *data; /* NUL-terminated once anything was added */
    size_t n, room;
    bool failed; /* out of memory: later additions do nothing */
} text_buffer;

void text_free(text_buffer *t);
void text_clear(text_buffer *t);                 /* keeps the memory */
bool text_reserve(text_buffer *t, size_t bytes); /* room for so many more; false: it has failed */
void text_bytes(text_buffer *t, const char *data, size_t bytes);
void text_add(text_buffer *t, const char *literal);
void text_format(text_buffer *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_unsigned(text_buffer *t, uint64_t value); /* its digits */
/* A JSON string with its quotes. What is not valid UTF-8 becomes U+FFFD. */
void text_json(text_buffer *t, const char *data, size_t bytes);
void text_json_string(text_buffer *t, const char *string); /* NULL: null */
/* The shortest number that reads back as the same double; null where it is not finite. */
void text_json_number(text_buffer *t, double value);

#endif
