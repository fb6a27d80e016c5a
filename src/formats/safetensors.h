/* The safetensors container: 8 bytes of header length (little-endian), a JSON header, then the tensors' bytes without
 * holes. Reading is mapping: tensors point into the file. */
#ifndef KAKEYA_FORMATS_SAFETENSORS_H
#define KAKEYA_FORMATS_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/files.h"

enum { TENSOR_MAX_DIMS = 8 };

/* Element types that a file may contain. Only F32, F16 and BF16 can be bound as weights (tensor_dtype). */
typedef enum tensor_type {
    TENSOR_BOOL = 0,
    TENSOR_U8,
    TENSOR_I8,
    TENSOR_F8_E5M2,
    TENSOR_F8_E4M3,
    TENSOR_F8_E8M0,
    TENSOR_U16,
    TENSOR_I16,
    TENSOR_F16,
    TENSOR_BF16,
    TENSOR_U32,
    TENSOR_I32,
    TENSOR_F32,
    TENSOR_U64,
    TENSOR_I64,
    TENSOR_F64,
    TENSOR_TYPE_COUNT
} tensor_type;

const char *tensor_type_name(tensor_type type); /* "F32", ... */
size_t tensor_type_bytes(tensor_type type);

typedef struct tensor {
    const char *name;
    tensor_type type;
    int dims;
    int64_t shape[TENSOR_MAX_DIMS];
    const unsigned char *data; /* any alignment: the format promises none */
    size_t bytes;
} tensor;

/* True and *out if the elements are of a type that weights can have. */
bool tensor_dtype(const tensor *t, dtype *out);
/* "[128, 64]" into text; returns text. */
char *tensor_shape_text(int dims, const int64_t *shape, char *text, size_t text_bytes);

typedef struct safetensors {
    char *path;
    file_map map;
    tensor *tensors; /* sorted by name */
    size_t count;
    void *header; /* the parsed header; owns the names */
} safetensors;

/* Maps and checks a whole file: types, shapes, offsets, no overlap, no hole, no name twice. */
kakeya_status safetensors_open(const char *path, safetensors **out, kakeya_error *error);
/* The same for bytes in memory, which must outlive *out. */
kakeya_status safetensors_parse(const char *path, const unsigned char *data, size_t bytes, safetensors **out,
                                kakeya_error *error);
void safetensors_close(safetensors *file);                                 /* NULL is fine */
const tensor *safetensors_find(const safetensors *file, const char *name); /* NULL where absent */

/* Writing: all names and shapes first, then the tensors' bytes in the same order, in pieces of any size. */
typedef struct safetensors_entry {
    const char *name;
    tensor_type type;
    int dims;
    int64_t shape[TENSOR_MAX_DIMS];
} safetensors_entry;

typedef struct safetensors_writer safetensors_writer;
kakeya_status safetensors_writer_open(const char *path, const safetensors_entry *entries, size_t count,
                                      safetensors_writer **out, kakeya_error *error);
kakeya_status safetensors_writer_write(safetensors_writer *writer, const void *data, size_t bytes, kakeya_error *error);
/* Refuses (and removes the file) if fewer bytes were written than the entries announce. Frees the writer. */
kakeya_status safetensors_writer_commit(safetensors_writer *writer, kakeya_error *error);
void safetensors_writer_abort(safetensors_writer *writer); /* NULL is fine */

#endif
