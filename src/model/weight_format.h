/* How weight matrices are stored: one row of a table per format. A matrix is one to three streams of bytes (its values
 * or their codes; scales; biases), and the table says how each stream is laid out. What a format's bytes mean is known
 * to the kernels of the backends alone. */
#ifndef KAKEYA_MODEL_WEIGHT_FORMAT_H
#define KAKEYA_MODEL_WEIGHT_FORMAT_H

#include <stdbool.h>
#include <stddef.h>

/* The numbers are part of a model's fingerprint, by which a saved session knows its engine: new formats go to the end.
 */
typedef enum weight_format {
    WEIGHT_F32 = 0,
    WEIGHT_F16,
    WEIGHT_BF16,
    WEIGHT_Q4_0, /* from here on: blocks of codes with their scales, as GGUF files hold them */
    WEIGHT_Q4_1,
    WEIGHT_Q5_0,
    WEIGHT_Q5_1,
    WEIGHT_Q8_0,
    WEIGHT_Q2_K,
    WEIGHT_Q3_K,
    WEIGHT_Q4_K,
    WEIGHT_Q5_K,
    WEIGHT_Q6_K,
    WEIGHT_IQ4_NL,
    WEIGHT_IQ4_XS,
    WEIGHT_MXFP4,
    WEIGHT_NVFP4,    /* the second stream is a factor per row */
    WEIGHT_AFFINE_2, /* from here on: codes, and scales beside them, as quantised safetensors directories hold them */
    WEIGHT_AFFINE_3,
    WEIGHT_AFFINE_4,
    WEIGHT_AFFINE_5,
    WEIGHT_AFFINE_6,
    WEIGHT_AFFINE_8,
    WEIGHT_INT4, /* scale times a code without its offset */
    WEIGHT_INT8,
    WEIGHT_INT4_ZERO, /* the same with a zero point per group */
    WEIGHT_INT8_ZERO,
    WEIGHT_INT8_SIGNED,
    WEIGHT_FP8,          /* e4m3 with float32 scales */
    WEIGHT_FP8_E8M0,     /* e4m3 with a power of two per 32 */
    WEIGHT_FP4_E8M0,     /* e2m1 with a power of two per 32 */
    WEIGHT_FP4_E4M3,     /* e2m1 with an e4m3 scale per 16 and a factor per row */
    WEIGHT_FP4_E4M3_DIV, /* the same with a divisor per row */
    WEIGHT_FORMAT_COUNT
} weight_format;

/* Whether a format's elements are single values. */
static inline bool weight_format_is_plain(weight_format format) { return format <= WEIGHT_BF16; }
/* Whether a format's scales lie beside its codes, in streams of their own. */
static inline bool weight_format_is_grouped(weight_format format) { return format >= WEIGHT_AFFINE_2; }

enum { WEIGHT_STREAMS = 3 /* at most */ };

/* weight_stream.values and .rows beside numbers of their own */
enum {
    WEIGHT_GROUP = 0, /* as many as the matrix says (weight.group) */
    WEIGHT_ALL = -1,  /* all there are */
};

/* A stream is a row-major matrix of elements. An element belongs to a tile of `rows` x `values` weights: one float, a
 * block of 32 codes with their scale, one scale of a group of a row, one scale of 128 x 128 weights. */
typedef struct weight_stream {
    int values, rows;
    int bytes;     /* of one element */
    int alignment; /* of the first element in memory, a power of two; no element is aligned beyond it */
} weight_stream;

typedef struct weight_format_info {
    const char *name; /* "BF16", as in files and reports */
    int streams;
    weight_stream stream[WEIGHT_STREAMS]; /* the values or codes come first */
} weight_format_info;

const weight_format_info *weight_format_find(weight_format format);
static inline const char *weight_format_name(weight_format format) { return weight_format_find(format)->name; }

/* Bytes from one row of a stream's elements to the next, for rows of `in` weights. A last tile that is not full counts
 * whole. */
size_t weight_stream_row_bytes(const weight_stream *stream, int in, int group);
/* Bytes of the whole stream of a matrix [out][in]. */
size_t weight_stream_bytes(const weight_stream *stream, int out, int in, int group);
/* Bytes of all streams of a matrix [out][in]. */
size_t weight_format_bytes(const weight_format_info *info, int out, int in, int group);

#endif
