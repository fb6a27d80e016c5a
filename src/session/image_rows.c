#include "session/image_rows.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct kept {
    unsigned char digest[IMAGE_DIGEST_BYTES];
    size_t n; /* floats */
    struct kept *next;
    float rows[];
} kept;

struct image_rows {
    pthread_mutex_t lock;
    size_t most, bytes, entries;
    uint64_t hits;
    kept *first; /* used last */
};

image_rows *image_rows_open(size_t most) {
    image_rows *rows = most ? calloc(1, sizeof *rows) : NULL;
    if (!rows) return NULL;
    rows->most = most;
    pthread_mutex_init(&rows->lock, NULL);
    return rows;
}

static void drop(image_rows *rows, kept **at) {
    kept *gone = *at;
    *at = gone->next;
    rows->bytes -= gone->n * sizeof *gone->rows;
    rows->entries--;
    free(gone);
}

void image_rows_close(image_rows *rows) {
    if (!rows) return;
    while (rows->first) drop(rows, &rows->first);
    pthread_mutex_destroy(&rows->lock);
    free(rows);
}

/* Where the picture's rows are linked; *NULL where they are not there. */
static kept **find(image_rows *rows, const unsigned char digest[IMAGE_DIGEST_BYTES]) {
    kept **at = &rows->first;
    while (*at && memcmp((*at)->digest, digest, IMAGE_DIGEST_BYTES) != 0) at = &(*at)->next;
    return at;
}

bool image_rows_find(image_rows *rows, const unsigned char digest[IMAGE_DIGEST_BYTES], float *out, size_t n) {
    if (!rows) return false;
    pthread_mutex_lock(&rows->lock);
    kept **at = find(rows, digest), *found = *at;
    const bool there = found && found->n == n;
    if (there) {
        memcpy(out, found->rows, n * sizeof *out);
        *at = found->next;
        found->next = rows->first;
        rows->first = found;
        rows->hits++;
    }
    pthread_mutex_unlock(&rows->lock);
    return there;
}

void image_rows_keep(image_rows *rows, const unsigned char digest[IMAGE_DIGEST_BYTES], const float *from, size_t n) {
    const size_t bytes = n * sizeof *from;
    if (!rows || bytes > rows->most) return;
    kept *made = malloc(sizeof *made + bytes);
    if (!made) return;
    memcpy(made->digest, digest, IMAGE_DIGEST_BYTES);
    memcpy(made->rows, from, bytes);
    made->n = n;
    pthread_mutex_lock(&rows->lock);
    kept **same = find(rows, digest);
    if (*same) drop(rows, same);
    while (rows->bytes + bytes > rows->most) {
        kept **last = &rows->first;
        while ((*last)->next) last = &(*last)->next;
        drop(rows, last);
    }
    made->next = rows->first;
    rows->first = made;
    rows->bytes += bytes;
    rows->entries++;
    pthread_mutex_unlock(&rows->lock);
}

void image_rows_count(image_rows *rows, kakeya_image_counts *out) {
    if (!rows) return;
    pthread_mutex_lock(&rows->lock);
    out->found = rows->hits;
    out->kept = rows->entries;
    out->kept_bytes = rows->bytes;
    pthread_mutex_unlock(&rows->lock);
}
