#include "backend/cpu/tile_file.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/tiles.h"
#include "base/hash.h"

static const char magic[8] = {'K', 'A', 'K', 'T', 'I', 'L', 'E', 'S'};
enum { TILE_FILE_ALIGN = 4096, SAMPLE_BYTES = 4096 };

typedef struct tile_record {
    uint32_t format, out, in, scales;
    uint64_t source, offset, parts;
} tile_record;

typedef struct tile_header {
    char magic[sizeof magic];
    uint32_t version, n;
    tile_record record[];
} tile_header;

/* Two models that were quantised alike differ in the first or the last rows of their matrices. */
static uint64_t hash_source(const weight *w) {
    uint64_t hash = HASH_FNV1A_START;
    const int streams = weight_format_is_grouped(w->format) ? weight_format_find(w->format)->streams : 1;
    for (int s = 0; s < streams; s++) {
        const unsigned char *data = weight_row(w, s, 0);
        size_t bytes = weight_row_bytes(w, s) * (size_t)w->out, sample = bytes < SAMPLE_BYTES ? bytes : SAMPLE_BYTES;
        hash = hash_fnv1a(hash_fnv1a(hash, data, sample), data + bytes - sample, sample);
    }
    return hash;
}

/* Of scales beside the codes: of how many values each is, and of which type. */
static uint32_t scales_of(const weight *w) {
    return weight_format_is_grouped(w->format) ? (uint32_t)w->group * 2 + (w->scale_type == DTYPE_F16) : 0;
}

static size_t aligned(size_t bytes) { return (bytes + TILE_FILE_ALIGN - 1) / TILE_FILE_ALIGN * TILE_FILE_ALIGN; }
static size_t header_bytes(size_t n) { return sizeof(tile_header) + n * sizeof(tile_record); }
static size_t hashes_begin(const weight *w) { return (tiles_bytes(w) + 7) / 8 * 8; }
static size_t matrix_bytes(const tile_matrix *m) { return hashes_begin(m->w) + (size_t)m->parts * sizeof(uint64_t); }

/* The header that belongs to these matrices, as it stands in the file. NULL: out of memory. */
static tile_header *make_header(const tile_matrix *matrices, size_t n, size_t *file_bytes) {
    tile_header *header = calloc(1, header_bytes(n));
    if (!header) return NULL;
    memcpy(header->magic, magic, sizeof magic);
    header->version = TILE_FILE_VERSION;
    header->n = (uint32_t)n;
    *file_bytes = header_bytes(n);
    for (size_t i = 0; i < n; i++) {
        const weight *w = matrices[i].w;
        *file_bytes = aligned(*file_bytes);
        header->record[i] = (tile_record){.format = (uint32_t)w->format,
                                          .out = (uint32_t)w->out,
                                          .in = (uint32_t)w->in,
                                          .scales = scales_of(w),
                                          .source = hash_source(w),
                                          .offset = *file_bytes,
                                          .parts = (uint64_t)matrices[i].parts};
        *file_bytes += matrix_bytes(&matrices[i]);
    }
    return header;
}

static kakeya_status no_memory(kakeya_error *error) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a list of tiles");
}

static kakeya_status refuse(const char *path, const char *reason, kakeya_error *error) {
    return error_set(error, KAKEYA_FORMAT,
                     "%s %s: remove it, and make it again with 'kakeya convert MODEL %s --to tiles'", path, reason,
                     path);
}

static kakeya_status check(const char *path, const file_map *map, const tile_header *wanted, size_t n,
                           size_t file_bytes, kakeya_error *error) {
    tile_header found;
    if (map->bytes < sizeof found || memcmp(map->data, magic, sizeof magic) != 0)
        return refuse(path, "is not a file of tiles", error);
    memcpy(&found, map->data, sizeof found);
    if (found.version != TILE_FILE_VERSION) return refuse(path, "was made by another version of kakeya", error);
    if (found.n != n || map->bytes < header_bytes(n) || memcmp(map->data, wanted, header_bytes(n)) != 0)
        return refuse(path, "was made from other weights than those of the model beside it", error);
    if (map->bytes != file_bytes) return refuse(path, "is not complete", error);
    return KAKEYA_OK;
}

kakeya_status tile_file_open(const char *path, const tile_matrix *matrices, size_t n, file_map *map,
                             const unsigned char **tiles, kakeya_error *error) {
    size_t file_bytes;
    kakeya_status status = file_map_open(path, map, error);
    if (status != KAKEYA_OK) return status;
    tile_header *wanted = make_header(matrices, n, &file_bytes);
    status = wanted ? check(path, map, wanted, n, file_bytes, error) : no_memory(error);
    for (size_t i = 0; i < n && !status; i++) tiles[i] = map->data + wanted->record[i].offset;
    free(wanted);
    if (status != KAKEYA_OK) file_map_close(map);
    return status;
}

const uint64_t *tile_file_hashes(const weight *w) {
    return (const uint64_t *)(const void *)((const unsigned char *)w->stream[0] + hashes_begin(w));
}

kakeya_status tile_file_write_hashes(file_writer *writer, const tile_matrix *matrix, const uint64_t *hashes,
                                     kakeya_error *error) {
    static const unsigned char zeros[8];
    const size_t pad = hashes_begin(matrix->w) - tiles_bytes(matrix->w);
    kakeya_status status = file_writer_write(writer, zeros, pad, error);
    return status ? status : file_writer_write(writer, hashes, (size_t)matrix->parts * sizeof *hashes, error);
}

kakeya_status tile_file_create(const char *path, const tile_matrix *matrices, size_t n, file_writer **out,
                               kakeya_error *error) {
    *out = NULL;
    size_t file_bytes;
    tile_header *header = make_header(matrices, n, &file_bytes);
    if (!header) return no_memory(error);
    kakeya_status status = file_writer_open(path, out, error);
    if (status == KAKEYA_OK) status = file_writer_write(*out, header, header_bytes(n), error);
    free(header);
    return status;
}

kakeya_status tile_file_pad(file_writer *writer, const tile_matrix *matrices, size_t n, size_t i, kakeya_error *error) {
    static const unsigned char zeros[TILE_FILE_ALIGN];
    size_t end = i > 0 ? matrix_bytes(&matrices[i - 1]) : header_bytes(n);
    return file_writer_write(writer, zeros, aligned(end) - end, error);
}
