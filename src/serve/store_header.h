/* The header of a saved session's file: 160 bytes, laid out in store_file.h. */
#ifndef KAKEYA_SERVE_STORE_HEADER_H
#define KAKEYA_SERVE_STORE_HEADER_H

#include "kakeya.h"
#include "serve/store_index.h"
#include "serve/store_reason.h"

enum { STORE_HEADER_BYTES = 160, STORE_FILE_VERSION = 1 };

enum {
    STORE_FILE_PROMPT_ROWS = 1,        /* flag: all rows are prompt rows */
    STORE_FILE_CHUNK_BYTES = 4 << 20,  /* default */
    STORE_FILE_LEAST_CHUNK_BYTES = 64, /* what a reader accepts */
    STORE_FILE_MOST_CHUNK_BYTES = 64 << 20,
    STORE_FILE_MOST_METADATA_BYTES = 16 << 20,
};

typedef struct store_file_info {
    uint64_t fingerprint, policy;
    store_key key;
    uint64_t tokens, metadata_bytes, payload_bytes, chunk_bytes, file_bytes, created_ms;
    uint32_t reason, flags;
    uint64_t salt;       /* store_rules.h; 0: none */
    store_key block_key; /* of its first `blocks` blocks of 16 ids, behind which a prompt can go on otherwise */
    uint64_t blocks;     /* 0: there is no such place */
} store_file_info;

/* The seed of a file's keys. */
store_key store_file_seed(uint64_t fingerprint, uint64_t policy, uint64_t salt);

/* Bytes of ids, kinds of rows, metadata and payload. */
uint64_t store_header_body_bytes(const store_file_info *info);
uint64_t store_header_chunks(const store_file_info *info);

/* KAKEYA_INVALID_ARGUMENT for sizes that no file can have. Sets file_bytes. */
kakeya_status store_header_write(store_file_info *info, unsigned char out[STORE_HEADER_BYTES], kakeya_error *error);
/* Everything but the size of the file is checked. KAKEYA_FORMAT, KAKEYA_UNSUPPORTED. */
kakeya_status store_header_read(const unsigned char header[STORE_HEADER_BYTES], const char *name, store_file_info *out,
                                kakeya_error *error);

#endif
