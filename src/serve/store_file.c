#include "serve/store_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "serve/store_header.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are written in the machine's order");

struct store_file {
    int fd;
    char *name; /* for messages */
    store_file_info info;
    uint64_t n_chunks, body_bytes;
    uint64_t *checksums;   /* [n_chunks] */
    unsigned char *buffer; /* [chunk_bytes]: chunk `loaded` */
    uint64_t loaded;       /* UINT64_MAX: none */
    uint64_t at;           /* of the body, while the payload is read */
    int32_t *ids;
    size_t prompt_tokens;
    char *metadata;
    kakeya_error failure; /* of a chunk, while the library reads */
};

const store_file_info *store_file_about(const store_file *file) { return &file->info; }
const int32_t *store_file_ids(const store_file *file) { return file->ids; }
size_t store_file_prompt_tokens(const store_file *file) { return file->prompt_tokens; }
const char *store_file_metadata(const store_file *file) { return file->metadata; }

void store_file_close(store_file *file) {
    if (!file) return;
    close(file->fd);
    free(file->name);
    free(file->checksums);
    free(file->buffer);
    free(file->ids);
    free(file->metadata);
    free(file);
}

static kakeya_status damaged(const store_file *file, kakeya_error *error, const char *what) {
    return error_set(error, KAKEYA_FORMAT, "%s: damaged: %s", file->name, what);
}

/* All n bytes at `offset`. */
static kakeya_status read_at(const store_file *file, void *data, size_t n, uint64_t offset, kakeya_error *error) {
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(file->fd, (char *)data + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_set(error, KAKEYA_IO, "%s: %s", file->name, strerror(errno));
        if (got == 0) return damaged(file, error, "it ends early");
        done += (size_t)got;
    }
    return KAKEYA_OK;
}

static kakeya_status read_checksums(store_file *file, kakeya_error *error) {
    size_t bytes = (size_t)file->n_chunks * sizeof *file->checksums;
    uint64_t stated;
    file->checksums = malloc(bytes + 1);
    file->buffer = malloc((size_t)file->info.chunk_bytes);
    if (!file->checksums || !file->buffer)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: %" PRIu64 " chunks: out of memory", file->name,
                         file->n_chunks);
    uint64_t at = STORE_HEADER_BYTES + file->body_bytes;
    kakeya_status status = read_at(file, file->checksums, bytes, at, error);
    if (status == KAKEYA_OK) status = read_at(file, &stated, sizeof stated, at + bytes, error);
    if (status == KAKEYA_OK && XXH3_64bits(file->checksums, bytes) != stated)
        status = damaged(file, error, "the list of checksums is another");
    return status;
}

static kakeya_status read_header(store_file *file, kakeya_error *error) {
    unsigned char header[STORE_HEADER_BYTES];
    struct stat about;
    if (fstat(file->fd, &about) != 0) return error_set(error, KAKEYA_IO, "%s: %s", file->name, strerror(errno));
    if (!S_ISREG(about.st_mode)) return error_set(error, KAKEYA_FORMAT, "%s: not a regular file", file->name);
    if (about.st_size < STORE_HEADER_BYTES) return damaged(file, error, "it is shorter than its header");
    kakeya_status status = read_at(file, header, sizeof header, 0, error);
    if (status == KAKEYA_OK) status = store_header_read(header, file->name, &file->info, error);
    if (status == KAKEYA_OK && file->info.file_bytes != (uint64_t)about.st_size)
        status = error_set(error, KAKEYA_FORMAT, "%s: damaged: %lld bytes where %" PRIu64 " are stated", file->name,
                           (long long)about.st_size, file->info.file_bytes);
    if (status != KAKEYA_OK) return status;
    file->body_bytes = store_header_body_bytes(&file->info);
    file->n_chunks = store_header_chunks(&file->info);
    return KAKEYA_OK;
}

kakeya_status store_file_open_descriptor(int fd, const char *name, store_file **out, kakeya_error *error) {
    *out = NULL;
    store_file *file = calloc(1, sizeof *file);
    char *copy = strdup(name);
    if (!file || !copy) {
        free(file);
        free(copy);
        close(fd);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", name);
    }
    *file = (store_file){.fd = fd, .name = copy, .loaded = UINT64_MAX};
    kakeya_status status = read_header(file, error);
    if (status != KAKEYA_OK) {
        store_file_close(file);
        return status;
    }
    *out = file;
    return KAKEYA_OK;
}

kakeya_status store_file_open(int directory, const char *name, store_file **out, int *system_error,
                              kakeya_error *error) {
    *out = NULL;
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (system_error) *system_error = fd < 0 ? errno : 0;
    if (fd < 0) return error_set(error, KAKEYA_IO, "%s: %s", name, strerror(errno));
    return store_file_open_descriptor(fd, name, out, error);
}

/* ------------------------------------------------------------------------------------------------------ the body */

static kakeya_status load_chunk(store_file *file, uint64_t i, size_t *bytes, kakeya_error *error) {
    uint64_t begin = i * file->info.chunk_bytes, left = file->body_bytes - begin;
    *bytes = (size_t)(left < file->info.chunk_bytes ? left : file->info.chunk_bytes);
    if (file->loaded == i) return KAKEYA_OK;
    file->loaded = UINT64_MAX;
    kakeya_status status = file->checksums ? KAKEYA_OK : read_checksums(file, error);
    if (status == KAKEYA_OK) status = read_at(file, file->buffer, *bytes, STORE_HEADER_BYTES + begin, error);
    if (status != KAKEYA_OK) return status;
    if (XXH3_64bits(file->buffer, *bytes) != file->checksums[i])
        return error_set(error, KAKEYA_FORMAT, "%s: damaged: chunk %" PRIu64 " of %" PRIu64 " has another checksum",
                         file->name, i, file->n_chunks);
    file->loaded = i;
    return KAKEYA_OK;
}

/* Up to n bytes of the body from `at` on, as far as one chunk goes. */
static kakeya_status read_body(store_file *file, uint64_t at, void *data, size_t n, size_t *got, kakeya_error *error) {
    size_t bytes, offset = (size_t)(at % file->info.chunk_bytes);
    kakeya_status status = load_chunk(file, at / file->info.chunk_bytes, &bytes, error);
    if (status != KAKEYA_OK) return status;
    *got = n < bytes - offset ? n : bytes - offset;
    memcpy(data, file->buffer + offset, *got);
    return KAKEYA_OK;
}

static kakeya_status read_whole(store_file *file, uint64_t at, void *data, size_t n, kakeya_error *error) {
    for (size_t done = 0, got; done < n; done += got) {
        kakeya_status status = read_body(file, at + done, (char *)data + done, n - done, &got, error);
        if (status != KAKEYA_OK) return status;
    }
    return KAKEYA_OK;
}

kakeya_status store_file_read_metadata(store_file *file, kakeya_error *error) {
    if (file->metadata) return KAKEYA_OK;
    size_t n = (size_t)file->info.tokens, metadata_bytes = (size_t)file->info.metadata_bytes;
    int32_t *ids = malloc(n * sizeof *ids + 1);
    unsigned char *kinds = malloc(n + 1);
    char *metadata = malloc(metadata_bytes + 1);
    kakeya_status status = KAKEYA_OK;
    if (!ids || !kinds || !metadata)
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: %zu tokens: out of memory", file->name, n);
    if (status == KAKEYA_OK) status = read_whole(file, 0, ids, n * sizeof *ids, error);
    if (status == KAKEYA_OK) status = read_whole(file, n * sizeof *ids, kinds, n, error);
    if (status == KAKEYA_OK) status = read_whole(file, n * sizeof *ids + n, metadata, metadata_bytes, error);
    if (status == KAKEYA_OK) {
        store_key seed = store_file_seed(file->info.fingerprint, file->info.policy, file->info.salt);
        size_t prompt = 0;
        while (prompt < n && kinds[prompt] == 0) prompt++;
        if (!store_key_equal(store_key_of(seed, ids, n), file->info.key))
            status = damaged(file, error, "its key is not that of its ids");
        else if ((prompt == n) != ((file->info.flags & STORE_FILE_PROMPT_ROWS) != 0))
            status = damaged(file, error, "its rows are not what its flags say");
        file->prompt_tokens = prompt;
    }
    free(kinds);
    if (status != KAKEYA_OK) {
        free(ids);
        free(metadata);
        return status;
    }
    metadata[metadata_bytes] = 0;
    file->ids = ids;
    file->metadata = metadata;
    return KAKEYA_OK;
}

kakeya_status store_file_verify(store_file *file, kakeya_error *error) {
    kakeya_status status = store_file_read_metadata(file, error);
    size_t bytes;
    for (uint64_t i = 0; status == KAKEYA_OK && i < file->n_chunks; i++) status = load_chunk(file, i, &bytes, error);
    return status;
}

static size_t read_payload(void *user, void *data, size_t n) {
    store_file *file = user;
    size_t got = 0;
    if (file->at >= file->body_bytes || read_body(file, file->at, data, n, &got, &file->failure) != KAKEYA_OK) return 0;
    file->at += got;
    return got;
}

static kakeya_status load_with(store_file *file, kakeya_session *session,
                               kakeya_status (*load)(kakeya_session *session, kakeya_read_fn read, void *user,
                                                     kakeya_error *error),
                               kakeya_error *error) {
    file->at = file->body_bytes - file->info.payload_bytes;
    file->failure = (kakeya_error){0};
    kakeya_status status = load(session, read_payload, file, error);
    if (file->failure.status) return error_set(error, file->failure.status, "%s", file->failure.message);
    if (status != KAKEYA_OK) return error_prefix(error, status, "%s", file->name);
    if (file->at != file->body_bytes) return damaged(file, error, "bytes follow the session");
    return KAKEYA_OK;
}

kakeya_status store_file_load(store_file *file, kakeya_session *session, kakeya_error *error) {
    return load_with(file, session, kakeya_session_load, error);
}

kakeya_status store_file_load_parked(store_file *file, kakeya_session *session, kakeya_error *error) {
    return load_with(file, session, kakeya_session_load_parked, error);
}
