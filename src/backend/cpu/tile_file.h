/* Weights in tiles (int8_forms.h) as a file beside the model that they were made of, mapped instead of made anew each
 * time that the model is loaded. The tiles are the same for every instruction set.
 *
 *   u8[8]    "KAKTILES"
 *   u32      version of the layout
 *   u32      n, matrices
 *   n times  u32 format, u32 out, u32 in, u32 values of a group * 2 + 1 for float16 scales (0: blocks of GGUF files);
 *            u64 checksum (base/hash.h) of samples of what the tiles were made of; u64 offset; u64 parts
 *   tiles    of each matrix, from a multiple of 4,096 bytes on; from the next multiple of 8 on a u64 checksum
 * (block_hash of base/block_reader.h) of the tiles of each of its parts: of each expert of a stacked matrix
 *
 * Numbers are little-endian. The file is not to be trusted: all that stands before the tiles must be, byte for
 * byte, what the model's own matrices ask for, so nothing in the file chooses an address. */
#ifndef KAKEYA_BACKEND_CPU_TILE_FILE_H
#define KAKEYA_BACKEND_CPU_TILE_FILE_H

#include "base/files.h"
#include "model/language_model.h"

enum { TILE_FILE_VERSION = 2 };

/* A matrix, and in how many equal runs of rows it has checksums. */
typedef struct tile_matrix {
    weight *w;
    int parts;
} tile_matrix;

/* Maps a file and checks that its tiles are those of `matrices` [n], in this order, which lie as the model's file has
 * them. tiles [n]: out, into *map. KAKEYA_FORMAT says what to do about a file of something else. */
kakeya_status tile_file_open(const char *path, const tile_matrix *matrices, size_t n, file_map *map,
                             const unsigned char **tiles, kakeya_error *error);

/* The checksums of the parts of a matrix whose tiles lie in such a file. */
const uint64_t *tile_file_hashes(const weight *w);

/* A file with everything before the tiles; they follow matrix by matrix, each after tile_file_pad and before its
 * checksums. */
kakeya_status tile_file_create(const char *path, const tile_matrix *matrices, size_t n, file_writer **out,
                               kakeya_error *error);
/* Fills up to where the tiles of matrix i begin. */
kakeya_status tile_file_pad(file_writer *writer, const tile_matrix *matrices, size_t n, size_t i, kakeya_error *error);
kakeya_status tile_file_write_hashes(file_writer *writer, const tile_matrix *matrix, const uint64_t *hashes,
                                     kakeya_error *error);

#endif
