#include "backend/weight_values.h"

#include <string.h>

#include "backend/groups.h"

typedef void (*value_loader)(const weight *w, const void *const *row, int first, int n, float *out);

#define FORMAT_LOADER(NAME, name, ...)                                                                                 \
    static void load_##name(const weight *w, const void *const *row, int first, int n, float *out) {                   \
        row_##name(w, row, first, n, out);                                                                             \
    }
BLOCK_FORMATS(FORMAT_LOADER)
GROUP_FORMATS(FORMAT_LOADER)

static void load_f32(const weight *w, const void *const *row, int first, int n, float *out) {
    (void)w;
    memcpy(out, (const char *)row[0] + sizeof *out * (size_t)first, sizeof *out * (size_t)n);
}

static void load_f16(const weight *w, const void *const *row, int first, int n, float *out) {
    (void)w;
    for (int i = 0; i < n; i++) out[i] = block_f16((const unsigned char *)row[0] + 2 * (size_t)(first + i));
}

static void load_bf16(const weight *w, const void *const *row, int first, int n, float *out) {
    (void)w;
    for (int i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, (const char *)row[0] + sizeof bits * (size_t)(first + i), sizeof bits);
        out[i] = bf16_to_f32(bits);
    }
}

#define LOADER_ENTRY(NAME, name, ...) [WEIGHT_##NAME] = load_##name,
static const value_loader loaders[WEIGHT_FORMAT_COUNT] = {[WEIGHT_F32] = load_f32,
                                                          [WEIGHT_F16] = load_f16,
                                                          [WEIGHT_BF16] = load_bf16,
                                                          BLOCK_FORMATS(LOADER_ENTRY) GROUP_FORMATS(LOADER_ENTRY)};

void weight_row_values(const weight *w, const void *const *streams, int first, int n, float *out) {
    loaders[w->format](w, streams, first, n, out);
}

void weight_values(const weight *w, int row, int first, int n, float *out) {
    const void *streams[WEIGHT_STREAMS];
    weight_row_streams(w, row, streams);
    weight_row_values(w, streams, first, n, out);
}
