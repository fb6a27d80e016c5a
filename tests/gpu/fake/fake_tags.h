/* What the fake device's rows hold instead of numbers (fake_device.h). */
#ifndef KAKEYA_TESTS_GPU_FAKE_TAGS_H
#define KAKEYA_TESTS_GPU_FAKE_TAGS_H

#include <string.h>

#include "backend/cuda/kernels.h"
#include "gpu/fake/fake_device.h"

enum { MOST_ROWS = 4096 };

/* The first bytes of a row of K, V, latents' codes or restored K/V. */
typedef struct tag {
    int32_t position, token;
    int32_t ill; /* the token's embedding is not a number, or that of one that it has seen */
    int32_t mark;
} tag;
enum { KEY = 1, VALUE, CODE, RESTORED_KEY, RESTORED_VALUE };

static inline void put(void *row, int position, int32_t token, int ill, int mark) {
    tag t = {position, token, ill, mark};
    memcpy(row, &t, sizeof t);
}

static inline tag get(const void *row, int position, int mark, const char *what) {
    tag t;
    memcpy(&t, row, sizeof t);
    if (t.position != position) fake_broken(what, t.position, position);
    if (t.mark != mark) fake_broken("a row of another kind", t.mark, mark);
    return t;
}

/* The rows of the step that runs. */
typedef struct fake_rows {
    int32_t token[MOST_ROWS];
    int ill[MOST_ROWS];
    uint64_t seen[MOST_ROWS]; /* of all that a row has attended */
    int rows;
    int in_chain; /* of an assistant's drafts */
    const cuda_batch *batch;
    const cuda_bf16 *queries; /* of the layer */
} fake_rows;
extern _Thread_local fake_rows fake_now;

static inline uint64_t fake_mix(uint64_t seen, uint64_t value) {
    seen = (seen ^ value) * 0x9e3779b97f4a7c15u;
    return seen ^ seen >> 29;
}

/* What an assistant's row drafts that has seen this. */
int32_t fake_drafted(const cuda_excluded *excluded, int vocab, uint64_t seen);

static inline cuda_bf16 *row_of(cuda_bf16 *data, int row, int values) { return data + (size_t)row * (size_t)values; }

static inline int latent_row(const cuda_latent_view *latent, int position) {
    return latent->capacity ? position % latent->capacity : position;
}

#endif
