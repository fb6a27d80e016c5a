/* Matrices of block formats for tests: random blocks whose scales are of an ordinary size. */
#ifndef KAKEYA_TESTS_BLOCK_OPERANDS_H
#define KAKEYA_TESTS_BLOCK_OPERANDS_H

#include "kernel_operands.h"

/* Where a block holds its float16 scales; -1: none. */
static inline void block_scale_places(weight_format format, int places[2]) {
    places[0] = 0;
    places[1] = -1;
    switch (format) {
    case WEIGHT_Q4_1:
    case WEIGHT_Q5_1:
    case WEIGHT_Q4_K:
    case WEIGHT_Q5_K:
        places[1] = 2;
        break;
    case WEIGHT_Q2_K:
        places[0] = 80;
        places[1] = 82;
        break;
    case WEIGHT_Q3_K:
        places[0] = 108;
        break;
    case WEIGHT_Q6_K:
        places[0] = 208;
        break;
    case WEIGHT_MXFP4:
    case WEIGHT_NVFP4:
        places[0] = -1;
        break;
    default:
        break;
    }
}

typedef struct block_matrix {
    weight w;
    unsigned char *codes;
    float *factors; /* of rows */
} block_matrix;

static inline block_matrix random_blocks(weight_format format, int out, int in, uint64_t seed) {
    const weight_format_info *info = weight_format_find(format);
    const weight_stream *stream = &info->stream[0];
    size_t bytes = weight_stream_bytes(stream, out, in, 0), block = (size_t)stream->bytes;
    int places[2];
    block_scale_places(format, places);
    block_matrix m = {.codes = malloc(bytes + 1), .factors = malloc((size_t)out * sizeof(float))};
    assert_non_null(m.codes);
    assert_non_null(m.factors);
    unsigned char *codes = m.codes + 1; /* at an odd address, as blocks may lie */
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        codes[i] = (unsigned char)(seed >> 56);
    }
    for (size_t b = 0; b < bytes / block; b++) {
        unsigned char *at = codes + b * block;
        for (int i = 0; i < 2; i++) { /* exponents of 2^-10 to 2^-7, either sign */
            if (places[i] >= 0) at[places[i] + 1] = (unsigned char)((at[places[i] + 1] & 0x8f) | 0x10);
        }
        if (format == WEIGHT_MXFP4) at[0] = (unsigned char)(118 + at[0] % 5);
        for (int i = 0; i < 4 && format == WEIGHT_NVFP4; i++) at[i] = (unsigned char)(0x20 + at[i] % 32);
    }
    for (int o = 0; o < out; o++) m.factors[o] = random_value(&seed, 0.5f);
    m.w = weight_matrix(format, codes, out, in);
    if (info->streams == 2) m.w.stream[1] = m.factors;
    return m;
}

static inline void block_matrix_free(block_matrix *m) {
    free(m->codes);
    free(m->factors);
}

/* The same for formats whose scales lie beside the codes. */
typedef struct group_matrix {
    weight w;
    unsigned char *streams[WEIGHT_STREAMS];
} group_matrix;

static inline group_matrix random_groups_of(weight_format format, int out, int in, int group, dtype scale_type,
                                            uint64_t seed) {
    const weight_format_info *info = weight_format_find(format);
    group_matrix m = {.w = weight_matrix(format, NULL, out, in)};
    m.w.group = group;
    m.w.scale_type = scale_type;
    for (int s = 0; s < info->streams; s++) {
        size_t n = weight_stream_bytes(&info->stream[s], out, in, m.w.group), skew = info->stream[s].alignment == 1;
        m.streams[s] = malloc(n + 1);
        assert_non_null(m.streams[s]);
        unsigned char *to = m.streams[s] + skew; /* at an odd address where it may lie at any */
        for (size_t i = 0; i < n; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            to[i] = (unsigned char)(seed >> 56);
            if (s == 0 && (format == WEIGHT_FP8 || format == WEIGHT_FP8_E8M0)) to[i] &= 0xbf; /* no NaN */
            const bool exponent = format == WEIGHT_FP8_E8M0 || format == WEIGHT_FP4_E8M0;
            if (s == 1 && info->stream[s].bytes == 1) to[i] = (unsigned char)((exponent ? 118 : 0x20) + to[i] % 16);
            if (s && info->stream[s].bytes == 2 && i % 2) to[i] = (unsigned char)(0x3c | (to[i] & 0x80));
        }
        for (size_t i = 0; info->stream[s].bytes == 4 && s && i < n / 4; i++) {
            float value = 0.25f + random_value(&seed, 0.02f);
            memcpy(to + 4 * i, &value, sizeof value);
        }
        m.w.stream[s] = to;
    }
    return m;
}

static inline group_matrix random_groups(weight_format format, int out, int in, uint64_t seed) {
    bool bytes = format == WEIGHT_INT8_SIGNED || format == WEIGHT_FP8;
    return random_groups_of(format, out, in, bytes ? in : 64, DTYPE_BF16, seed);
}

static inline void group_matrix_free(group_matrix *m) {
    for (int s = 0; s < WEIGHT_STREAMS; s++) free(m->streams[s]);
}

/* The same matrix in float32, by the oracle's loader; malloc'ed. */
static inline float *dequantised(const weight *w) {
    float *values = malloc((size_t)w->out * (size_t)w->in * sizeof *values);
    assert_non_null(values);
    for (int o = 0; o < w->out; o++)
        cpu_kernels_find("scalar")->weight[w->format].load(w, o, 0, w->in, values + (size_t)o * (size_t)w->in);
    return values;
}

#endif
