/* A ring buffer of bytes with one reader and one writer. The capacity is a power of two, so that positions can run on for
 * ever and only their low bits choose a place. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct ring_buffer {
    unsigned char *data;
    size_t capacity; /* a power of two */
    size_t read;     /* position of the next byte to take */
    size_t write;    /* position of the next free place */
} ring_buffer;

static size_t next_power_of_two(size_t value) {
    size_t power = 1;
    while (power < value) power *= 2;
    return power;
}

bool ring_buffer_create(ring_buffer *ring, size_t capacity) {
    ring->capacity = next_power_of_two(capacity);
    ring->data = malloc(ring->capacity);
    ring->read = 0;
    ring->write = 0;
    return ring->data != NULL;
}

void ring_buffer_destroy(ring_buffer *ring) {
    free(ring->data);
    ring->data = NULL;
    ring->capacity = 0;
    ring->read = 0;
    ring->write = 0;
}

size_t ring_buffer_used(const ring_buffer *ring) {
    return ring->write - ring->read;
}

size_t ring_buffer_free(const ring_buffer *ring) {
    return ring->capacity - ring_buffer_used(ring);
}

bool ring_buffer_is_empty(const ring_buffer *ring) {
    return ring->read == ring->write;
}

bool ring_buffer_is_full(const ring_buffer *ring) {
    return ring_buffer_used(ring) == ring->capacity;
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Writes as many bytes as fit and returns their number. */
size_t ring_buffer_write(ring_buffer *ring, const void *bytes, size_t count) {
    const unsigned char *source = bytes;
    count = smaller(count, ring_buffer_free(ring));
    size_t place = ring->write & (ring->capacity - 1);
    size_t first = smaller(count, ring->capacity - place);
    memcpy(ring->data + place, source, first);
    memcpy(ring->data, source + first, count - first);
    ring->write += count;
    return count;
}

/* Reads as many bytes as there are, at most count, and returns their number. */
size_t ring_buffer_read(ring_buffer *ring, void *bytes, size_t count) {
    unsigned char *target = bytes;
    count = smaller(count, ring_buffer_used(ring));
    size_t place = ring->read & (ring->capacity - 1);
    size_t first = smaller(count, ring->capacity - place);
    memcpy(target, ring->data + place, first);
    memcpy(target + first, ring->data, count - first);
    ring->read += count;
    return count;
}

/* Looks at bytes without taking them. */
size_t ring_buffer_peek(const ring_buffer *ring, void *bytes, size_t count) {
    ring_buffer copy = *ring;
    return ring_buffer_read(&copy, bytes, count);
}

void ring_buffer_clear(ring_buffer *ring) {
    ring->read = ring->write;
}

/* The position of the first byte equal to value behind the read position, or -1. */
ptrdiff_t ring_buffer_find(const ring_buffer *ring, unsigned char value) {
    for (size_t i = 0; i < ring_buffer_used(ring); i++) {
        if (ring->data[(ring->read + i) & (ring->capacity - 1)] == value) {
            return (ptrdiff_t)i;
        }
    }
    return -1;
}
