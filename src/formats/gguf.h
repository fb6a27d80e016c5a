/* The GGUF container, versions 2 and 3, as one file or as the parts of a split: keys with values, then named tensors.
 * Reading is mapping: values and tensors point into the file. The file is not to be trusted: every length, count,
 * offset and size is checked against the bytes that are there before it is used, and memory grows with what was parsed.
 * Nothing in a file chooses a path, and nothing in it is executed. */
#ifndef KAKEYA_FORMATS_GGUF_H
#define KAKEYA_FORMATS_GGUF_H

#include <stdint.h>

#include "base/files.h"

/* Types of values; the numbers are the format's. */
typedef enum gguf_value_type {
    GGUF_U8 = 0,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_VALUE_TYPES
} gguf_value_type;

const char *gguf_value_type_name(gguf_value_type type); /* "u32", "array", ... */

/* Bytes of the file; no NUL follows. */
typedef struct gguf_text {
    const char *data;
    size_t bytes;
} gguf_text;

typedef struct gguf_value {
    const char *key; /* NUL-terminated */
    bool array;
    gguf_value_type type; /* of the value, or of an array's elements; never GGUF_ARRAY */
    uint64_t count;       /* elements; 1 where it is no array */
    const unsigned char *data;
    size_t bytes; /* of all elements; strings with their lengths */
} gguf_value;

/* Types of tensors; the numbers are the format's. */
enum {
    GGUF_TENSOR_F32 = 0,
    GGUF_TENSOR_F16 = 1,
    GGUF_TENSOR_Q4_0 = 2,
    GGUF_TENSOR_Q4_1 = 3,
    GGUF_TENSOR_Q5_0 = 6,
    GGUF_TENSOR_Q5_1 = 7,
    GGUF_TENSOR_Q8_0 = 8,
    GGUF_TENSOR_Q2_K = 10,
    GGUF_TENSOR_Q3_K = 11,
    GGUF_TENSOR_Q4_K = 12,
    GGUF_TENSOR_Q5_K = 13,
    GGUF_TENSOR_Q6_K = 14,
    GGUF_TENSOR_IQ4_NL = 20,
    GGUF_TENSOR_IQ4_XS = 23,
    GGUF_TENSOR_BF16 = 30,
    GGUF_TENSOR_MXFP4 = 39,
    GGUF_TENSOR_NVFP4 = 40,
};

typedef struct gguf_type {
    uint32_t id;
    const char *name;      /* "Q4_K" */
    uint16_t block, bytes; /* values of a block of a row, and its bytes */
} gguf_type;

enum { GGUF_MAX_DIMS = 4 };

typedef struct gguf_tensor {
    const char *name; /* NUL-terminated */
    const gguf_type *type;
    int dims;
    int64_t ne[GGUF_MAX_DIMS]; /* the fastest first: a matrix of `out` rows of `in` values is {in, out} */
    const unsigned char *data; /* a multiple of the file's alignment from the start of the data */
    size_t bytes;
} gguf_tensor;

typedef struct gguf_part {
    char *path;
    file_map map; /* data NULL: the bytes are somebody else's */
    uint32_t version, alignment;
    gguf_value *values; /* sorted by key */
    size_t n_values;
    gguf_tensor *tensors; /* sorted by name */
    size_t n_tensors;
    char *names; /* of keys and tensors */
} gguf_part;

typedef struct gguf {
    gguf_part *parts; /* the first one holds the keys */
    size_t n_parts;
    const gguf_tensor **tensors; /* of all parts, sorted by name */
    size_t n_tensors;
    size_t bytes; /* of all parts */
} gguf;

/* Whether a file begins as a GGUF file does. False also where it cannot be read. */
bool gguf_is_file(const char *path);

/* Whether two paths are named as parts of one split. */
bool gguf_same_split(const char *a, const char *b);

/* Maps and checks a whole file; of a split, named PREFIX-00001-of-00003.gguf, all parts, whichever of them `path` is.
 * A mapped file must not be rewritten while it is open. */
kakeya_status gguf_open(const char *path, gguf **out, kakeya_error *error);
/* The same for the bytes of an unsplit file in memory, which must outlive *out; `path` is used in messages. */
kakeya_status gguf_parse(const char *path, const unsigned char *data, size_t bytes, gguf **out, kakeya_error *error);
void gguf_close(gguf *file); /* NULL is fine */
/* Bytes of a tensor that nobody reads soon leave the process's memory (file_map_unneeded). */
void gguf_unneeded(const gguf *file, const void *data, size_t bytes);

static inline const char *gguf_path(const gguf *file) { return file->parts[0].path; }

const gguf_value *gguf_find(const gguf *file, const char *key); /* NULL where absent */
/* Index into tensors, or -1 where absent. */
ptrdiff_t gguf_find_tensor(const gguf *file, const char *name);
/* "{2816, 262144}" into text; returns text. */
char *gguf_shape_text(const gguf_tensor *t, char *text, size_t text_bytes);

bool gguf_is_integer(gguf_value_type type); /* not of booleans */
/* Element i of integers or booleans; numbers above LLONG_MAX are LLONG_MAX. */
long long gguf_value_int(const gguf_value *value, uint64_t i);

/* The next string of an array of strings: *at is 0 for the first one, and is moved behind the string. */
gguf_text gguf_next_string(const gguf_value *array, size_t *at);

/* Writes a text of a file for a message: what is not printable ASCII as \xNN, and "..." where it is long. */
enum { GGUF_SHOWN_BYTES = 160 };
char *gguf_show(const char *data, size_t bytes, char out[GGUF_SHOWN_BYTES]);

#endif
