#include "model/weight_format.h"

/* A block of codes with its scales. */
#define BLOCKS(format_name, block_values, block_bytes)                                                                 \
    {                                                                                                                  \
        .name = format_name, .streams = 1, .stream = {                                                                 \
            {.values = block_values, .rows = 1, .bytes = block_bytes, .alignment = 1}                                  \
        }                                                                                                              \
    }

/* Codes of `bits` bits as one string of bits per row, 16-bit scales and biases per group. */
#define AFFINE(format_name, bits)                                                                                      \
    {                                                                                                                  \
        .name = format_name, .streams = 3, .stream = {                                                                 \
            {.values = 32, .rows = 1, .bytes = 4 * (bits), .alignment = 1},                                            \
            {.values = WEIGHT_GROUP, .rows = 1, .bytes = 2, .alignment = 1},                                           \
            {.values = WEIGHT_GROUP, .rows = 1, .bytes = 2, .alignment = 1}                                            \
        }                                                                                                              \
    }

/* Codes in words of 32 bits, 16-bit scales per group, and where there are three streams a zero point per group. */
#define PACKED(format_name, n_streams, codes_of_word)                                                                  \
    {                                                                                                                  \
        .name = format_name, .streams = n_streams, .stream = {                                                         \
            {.values = codes_of_word, .rows = 1, .bytes = 4, .alignment = 1},                                          \
            {.values = WEIGHT_GROUP, .rows = 1, .bytes = 2, .alignment = 1},                                           \
            {.values = WEIGHT_GROUP, .rows = 1, .bytes = 1, .alignment = 1}                                            \
        }                                                                                                              \
    }

/* One byte per value and float32 scales per group. */
#define BYTES(format_name)                                                                                             \
    {                                                                                                                  \
        .name = format_name, .streams = 2, .stream = {                                                                 \
            {.values = 1, .rows = 1, .bytes = 1, .alignment = 1},                                                      \
            {.values = WEIGHT_GROUP, .rows = 1, .bytes = 4, .alignment = 4}                                            \
        }                                                                                                              \
    }

/* Codes and one byte of scale per `width` of them; where there are three streams a float32 per row. */
#define SMALL_FLOATS(format_name, n_streams, width, code_bytes)                                                        \
    {                                                                                                                  \
        .name = format_name, .streams = n_streams, .stream = {                                                         \
            {.values = width, .rows = 1, .bytes = code_bytes, .alignment = 1},                                         \
            {.values = width, .rows = 1, .bytes = 1, .alignment = 1},                                                  \
            {.values = WEIGHT_ALL, .rows = 1, .bytes = 4, .alignment = 4}                                              \
        }                                                                                                              \
    }

static const weight_format_info formats[WEIGHT_FORMAT_COUNT] = {
    [WEIGHT_F32] = {.name = "F32", .streams = 1, .stream = {{.values = 1, .rows = 1, .bytes = 4, .alignment = 4}}},
    [WEIGHT_F16] = {.name = "F16", .streams = 1, .stream = {{.values = 1, .rows = 1, .bytes = 2, .alignment = 2}}},
    [WEIGHT_BF16] = {.name = "BF16", .streams = 1, .stream = {{.values = 1, .rows = 1, .bytes = 2, .alignment = 2}}},
    [WEIGHT_Q4_0] = BLOCKS("Q4_0", 32, 18),
    [WEIGHT_Q4_1] = BLOCKS("Q4_1", 32, 20),
    [WEIGHT_Q5_0] = BLOCKS("Q5_0", 32, 22),
    [WEIGHT_Q5_1] = BLOCKS("Q5_1", 32, 24),
    [WEIGHT_Q8_0] = BLOCKS("Q8_0", 32, 34),
    [WEIGHT_Q2_K] = BLOCKS("Q2_K", 256, 84),
    [WEIGHT_Q3_K] = BLOCKS("Q3_K", 256, 110),
    [WEIGHT_Q4_K] = BLOCKS("Q4_K", 256, 144),
    [WEIGHT_Q5_K] = BLOCKS("Q5_K", 256, 176),
    [WEIGHT_Q6_K] = BLOCKS("Q6_K", 256, 210),
    [WEIGHT_IQ4_NL] = BLOCKS("IQ4_NL", 32, 18),
    [WEIGHT_IQ4_XS] = BLOCKS("IQ4_XS", 256, 136),
    [WEIGHT_MXFP4] = BLOCKS("MXFP4", 32, 17),
    [WEIGHT_NVFP4] = {.name = "NVFP4",
                      .streams = 2,
                      .stream = {{.values = 64, .rows = 1, .bytes = 36, .alignment = 1},
                                 {.values = WEIGHT_ALL, .rows = 1, .bytes = 4, .alignment = 4}}},
    [WEIGHT_AFFINE_2] = AFFINE("affine2", 2),
    [WEIGHT_AFFINE_3] = AFFINE("affine3", 3),
    [WEIGHT_AFFINE_4] = AFFINE("affine4", 4),
    [WEIGHT_AFFINE_5] = AFFINE("affine5", 5),
    [WEIGHT_AFFINE_6] = AFFINE("affine6", 6),
    [WEIGHT_AFFINE_8] = AFFINE("affine8", 8),
    [WEIGHT_INT4] = PACKED("int4", 2, 8),
    [WEIGHT_INT8] = PACKED("int8", 2, 4),
    [WEIGHT_INT4_ZERO] = PACKED("int4-zero", 3, 8),
    [WEIGHT_INT8_ZERO] = PACKED("int8-zero", 3, 4),
    [WEIGHT_INT8_SIGNED] = BYTES("int8-signed"),
    [WEIGHT_FP8] = BYTES("fp8"),
    [WEIGHT_FP8_E8M0] = SMALL_FLOATS("mxfp8", 2, 32, 32),
    [WEIGHT_FP4_E8M0] = SMALL_FLOATS("mxfp4", 2, 32, 16),
    [WEIGHT_FP4_E4M3] = SMALL_FLOATS("nvfp4", 3, 16, 8),
    [WEIGHT_FP4_E4M3_DIV] = SMALL_FLOATS("nvfp4-div", 3, 16, 8),
};

const weight_format_info *weight_format_find(weight_format format) { return &formats[format]; }

static size_t tiles(int n, int of, int group) {
    int size = of == WEIGHT_ALL ? n : of == WEIGHT_GROUP ? group : of;
    return size > 0 ? ((size_t)n + (size_t)size - 1) / (size_t)size : 0;
}

size_t weight_stream_row_bytes(const weight_stream *stream, int in, int group) {
    return tiles(in, stream->values, group) * (size_t)stream->bytes;
}

size_t weight_stream_bytes(const weight_stream *stream, int out, int in, int group) {
    return tiles(out, stream->rows, group) * weight_stream_row_bytes(stream, in, group);
}

size_t weight_format_bytes(const weight_format_info *info, int out, int in, int group) {
    size_t bytes = 0;
    for (int s = 0; s < info->streams; s++) bytes += weight_stream_bytes(&info->stream[s], out, in, group);
    return bytes;
}
