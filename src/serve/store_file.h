/* One saved session as a file of its own: written once, under another name until it is complete, and verified in every
 * byte before it is used. All numbers are little-endian.
 *
 *   offset  type     content
 *        0  char[8]  "KAKEYACK"
 *        8  u32[2]   version 1, header bytes 160
 *       16  u64[2]   fingerprint of the engine, of the policy
 *       32  u64[2]   key of the ids (store_index.h), low half first
 *       48  u64      tokens n
 *       56  u64      bytes of metadata (JSON)
 *       64  u64      bytes of payload (kakeya_session_save)
 *       72  u64      bytes of a chunk
 *       80  u64      bytes of the file
 *       88  u64      created, Unix ms
 *       96  u32[2]   reason (store_reason.h), flags
 *      104  u64      salt of the requests (store_rules.h), 0: none
 *      112  u64[2]   key of the first blocks of 16 ids, behind which a prompt can go on otherwise
 *      128  u64      how many blocks these are, 0: there is no such place
 *      136  u8[8]    zero
 *      144  u64[2]   XXH3-128 of bytes 0 to 143, low half first
 *      160  i32[n]   token ids; then u8[n] 0 for prompt rows, 1 for rows that may be decode rows; metadata; payload;
 *                    then u64 XXH3-64 of each chunk of everything from 160 on; then u64 XXH3-64 of that list */
#ifndef KAKEYA_SERVE_STORE_FILE_H
#define KAKEYA_SERVE_STORE_FILE_H

#include "kakeya.h"
#include "serve/store_header.h"

/* ------------------------------------------------------------------------------------------------------- writing */

typedef struct store_file_content {
    uint64_t fingerprint, policy, salt;
    const kakeya_session *session; /* ids and payload */
    size_t prompt_tokens;          /* rows of the first so many are prompt rows */
    store_reason reason;
    const char *metadata; /* JSON */
    uint64_t chunk_bytes; /* 0: the default */
    /* For tests of what a killed process leaves: called before and after every step of the writing; may be NULL. */
    void (*step)(void *user, const char *what);
    void *step_user;
} store_file_content;

/* What the file will take; UINT64_MAX where there can be none. */
uint64_t store_file_bytes(const store_file_content *content);

/* Writes the file `name` of the directory, in place of one of that name. On failure nothing is left of it, and
 * *system_error is the errno of what failed, or 0. KAKEYA_CANCELLED: another process is writing the same. info may be
 * NULL. */
kakeya_status store_file_write(int directory, const char *name, const store_file_content *content,
                               store_file_info *info, int *system_error, kakeya_error *error);

/* ------------------------------------------------------------------------------------------------------- reading */

typedef struct store_file store_file;

/* Opens a file, reads its header and compares the sizes with the file's. KAKEYA_FORMAT: damaged; KAKEYA_UNSUPPORTED: of
 * a later version; KAKEYA_IO: cannot be read, *system_error (may be NULL) says why. */
kakeya_status store_file_open(int directory, const char *name, store_file **out, int *system_error,
                              kakeya_error *error);
/* The same for a descriptor, which is the file's from now on, also on failure. */
kakeya_status store_file_open_descriptor(int fd, const char *name, store_file **out, kakeya_error *error);
void store_file_close(store_file *file); /* NULL is fine */
const store_file_info *store_file_about(const store_file *file);

/* Reads everything and verifies it: all checksums, and that the key is that of the ids. Afterwards ids and metadata are
 * there. KAKEYA_FORMAT, KAKEYA_IO, KAKEYA_OUT_OF_MEMORY. */
kakeya_status store_file_verify(store_file *file, kakeya_error *error);
/* The same for ids and metadata alone, which is what listing needs. */
kakeya_status store_file_read_metadata(store_file *file, kakeya_error *error);
const int32_t *store_file_ids(const store_file *file);   /* [tokens] */
size_t store_file_prompt_tokens(const store_file *file); /* leading prompt rows */
const char *store_file_metadata(const store_file *file); /* [metadata_bytes], then NUL */
/* The session becomes what was saved. Chunks are verified again as they are read. */
kakeya_status store_file_load(store_file *file, kakeya_session *session, kakeya_error *error);
/* The same without K/V memory, which the next request gets (kakeya_session_load_parked). */
kakeya_status store_file_load_parked(store_file *file, kakeya_session *session, kakeya_error *error);

#endif
