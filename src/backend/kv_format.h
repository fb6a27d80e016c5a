/* The forms in which a session keeps K/V: a table. Everything that computes the size of a row asks here. */
#ifndef KAKEYA_BACKEND_KV_FORMAT_H
#define KAKEYA_BACKEND_KV_FORMAT_H

#include <stddef.h>

/* The numbers are written into snapshots: a new format takes the next one. */
typedef enum kv_format { KV_FORMAT_F32 = 0, KV_FORMAT_BF16, KV_FORMAT_COUNT } kv_format;

/* "f32", "bf16"; "unknown" for any other number. */
const char *kv_format_name(kv_format format);

/* Bytes of a row of n values. A row of another length than a multiple of the format's group takes whole groups. */
size_t kv_format_row_bytes(kv_format format, size_t n);

/* Values that share a scale; 1 for formats without scales. Rows are cut into groups from their first value on. */
size_t kv_format_group(kv_format format);

#endif
