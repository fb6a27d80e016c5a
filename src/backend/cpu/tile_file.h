/* Weights in tiles (int8_forms.h) as a file beside the model that they were made of, mapped instead of made anew each
 * time that the model is loaded. The tiles are the same for every instruction set.
 *
 *   u8[8]    "KAKTILES"
 *   u32      version of the layout
 *   u32      n, matrices
 *   n times  u32 format, u32 out, u32 in, u32 values of a group * 2 + 1 for float16 scales (0: blocks of GGUF files);
 *            u64 checksum (base/hash.h) of samples of what the tiles were made of; u64 offset
 *   tiles    of each matrix, from a multiple of 4,096 bytes on
 *
 * Numbers are little-endian. The file is not to be trusted: all that stands before the tiles must be, byte for
 * byte, what the model's own matrices ask for, so nothing in the file chooses an address. */
#ifndef KAKEYA_BACKEND_CPU_TILE_FILE_H
#define KAKEYA_BACKEND_CPU_TILE_FILE_H

#include "base/files.h"
#include "model/gemma4.h"

enum { TILE_FILE_VERSION = 1 };

/* Maps a file and checks that its tiles are those of `matrices` [n], in this order, which lie as the model's file has
 * them. tiles [n]: out, into *map. KAKEYA_FORMAT says what to do about a file of something else. */
kakeya_status tile_file_open(const char *path, const weight *const *matrices, size_t n, file_map *map,
                             const unsigned char **tiles, kakeya_error *error);

/* A file with everything before the tiles; they follow matrix by matrix, each after tile_file_pad. */
kakeya_status tile_file_create(const char *path, const weight *const *matrices, size_t n, file_writer **out,
                               kakeya_error *error);
/* Fills up to where the tiles of matrix i begin. */
kakeya_status tile_file_pad(file_writer *writer, const weight *const *matrices, size_t n, size_t i,
                            kakeya_error *error);

#endif
