#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "base/platform.h"
#include "serve/store_file.h"
#include "serve/store_rules.h"
#include "serve/temporary.h"

typedef struct file_output {
    const store_file_content *content;
    int fd;
    unsigned char *chunk; /* [chunk_bytes], of which `filled` are there */
    size_t chunk_bytes, filled;
    uint64_t *checksums; /* [n_chunks] */
    uint64_t n_chunks, written;
    int failed; /* errno; 0: nothing has */
} file_output;

static void step(const file_output *o, const char *what) {
    if (o->content->step) o->content->step(o->content->step_user, what);
}

static bool write_fully(file_output *o, const void *data, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t put = write(o->fd, (const char *)data + done, n - done);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) {
            o->failed = put < 0 ? errno : EIO;
            return false;
        }
        done += (size_t)put;
    }
    return true;
}

static bool flush_chunk(file_output *o) {
    if (o->filled == 0) return true;
    if (o->written == o->n_chunks) {
        o->failed = EINVAL; /* more than was announced */
        return false;
    }
    o->checksums[o->written++] = XXH3_64bits(o->chunk, o->filled);
    step(o, "chunk");
    bool whole = write_fully(o, o->chunk, o->filled);
    o->filled = 0;
    return whole;
}

static bool put(void *user, const void *data, size_t n) {
    file_output *o = user;
    const unsigned char *p = data;
    while (n) {
        size_t room = o->chunk_bytes - o->filled, piece = n < room ? n : room;
        memcpy(o->chunk + o->filled, p, piece);
        o->filled += piece;
        p += piece;
        n -= piece;
        if (o->filled == o->chunk_bytes && !flush_chunk(o)) return false;
    }
    return true;
}

static bool put_kinds(file_output *o, size_t n, size_t prompt_tokens) {
    unsigned char kinds[4096];
    for (size_t at = 0, piece; at < n; at += piece) {
        piece = n - at < sizeof kinds ? n - at : sizeof kinds;
        for (size_t i = 0; i < piece; i++) kinds[i] = at + i >= prompt_tokens;
        if (!put(o, kinds, piece)) return false;
    }
    return true;
}

static kakeya_status failed(const char *name, int why, kakeya_error *error) {
    return error_set(error, KAKEYA_IO, "%s: %s", name, strerror(why));
}

static kakeya_status write_body(file_output *o, const char *name, const store_file_info *info, kakeya_error *error) {
    size_t n;
    int32_t *owned;
    const int32_t *ids = store_keys(o->content->session, &n, &owned);
    if (!ids && n) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: %zu tokens: out of memory", name, n);
    bool wrote = put(o, ids, n * sizeof *ids);
    free(owned);
    if (!wrote || !put_kinds(o, n, o->content->prompt_tokens) ||
        !put(o, o->content->metadata, (size_t)info->metadata_bytes))
        return failed(name, o->failed, error);
    kakeya_status status = kakeya_session_save(o->content->session, put, o, error);
    if (o->failed || (status == KAKEYA_OK && !flush_chunk(o))) return failed(name, o->failed, error);
    if (status != KAKEYA_OK) return error_prefix(error, status, "%s", name);
    if (o->written != o->n_chunks)
        return error_set(error, KAKEYA_FORMAT, "%s: the session gave fewer bytes than it announced", name);
    size_t bytes = (size_t)o->n_chunks * sizeof *o->checksums;
    uint64_t of_list = XXH3_64bits(o->checksums, bytes);
    if (!write_fully(o, o->checksums, bytes) || !write_fully(o, &of_list, sizeof of_list))
        return failed(name, o->failed, error);
    return KAKEYA_OK;
}

/* Room for the whole file, so that a full disk is known before a byte is written. */
static int reserve(int fd, uint64_t bytes) {
    int why = platform_reserve(fd, bytes);
    return why == EINVAL || why == EOPNOTSUPP ? 0 : why; /* a file system that cannot say */
}

static kakeya_status write_temporary(file_output *o, const char *name, store_file_info *info, kakeya_error *error) {
    unsigned char header[STORE_HEADER_BYTES];
    kakeya_status status = store_header_write(info, header, error);
    if (status != KAKEYA_OK) return status;
    o->n_chunks = store_header_chunks(info);
    o->chunk_bytes = (size_t)info->chunk_bytes;
    o->chunk = malloc(o->chunk_bytes);
    o->checksums = malloc((size_t)o->n_chunks * sizeof *o->checksums);
    if (!o->chunk || !o->checksums)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: %zu bytes: out of memory", name, o->chunk_bytes);
    step(o, "created");
    o->failed = reserve(o->fd, info->file_bytes);
    if (o->failed) return failed(name, o->failed, error);
    step(o, "reserved");
    if (!write_fully(o, header, sizeof header)) return failed(name, o->failed, error);
    step(o, "header");
    status = write_body(o, name, info, error);
    if (status != KAKEYA_OK) return status;
    step(o, "written");
    if (platform_sync_data(o->fd) != 0) {
        o->failed = errno;
        return failed(name, o->failed, error);
    }
    step(o, "synced");
    return KAKEYA_OK;
}

static store_file_info info_of(const store_file_content *content) {
    size_t n;
    int32_t *owned;
    const int32_t *ids = store_keys(content->session, &n, &owned);
    if (!ids) n = 0; /* no file has so few */
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const store_key seed = store_file_seed(content->fingerprint, content->policy, content->salt);
    const size_t whole = store_blocks_end(content->session, ids, n);
    const store_file_info info = {
        .fingerprint = content->fingerprint,
        .policy = content->policy,
        .key = store_key_of(seed, ids, n),
        .tokens = n,
        .metadata_bytes = strlen(content->metadata),
        .payload_bytes = kakeya_session_save_bytes(content->session),
        .chunk_bytes = content->chunk_bytes ? content->chunk_bytes : STORE_FILE_CHUNK_BYTES,
        .created_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000,
        .reason = (uint32_t)content->reason,
        .flags = content->prompt_tokens >= n ? STORE_FILE_PROMPT_ROWS : 0,
        .salt = content->salt,
        .block_key = whole ? store_key_of(seed, ids, whole) : (store_key){0},
        .blocks = whole / STORE_BLOCK_TOKENS,
    };
    free(owned);
    return info;
}

uint64_t store_file_bytes(const store_file_content *content) {
    unsigned char header[STORE_HEADER_BYTES];
    store_file_info info = info_of(content);
    return store_header_write(&info, header, NULL) == KAKEYA_OK ? info.file_bytes : UINT64_MAX;
}

kakeya_status store_file_write(int directory, const char *name, const store_file_content *content,
                               store_file_info *info, int *system_error, kakeya_error *error) {
    file_output o = {.content = content};
    store_file_info own = info_of(content);
    char temporary[TEMPORARY_NAME_BYTES];
    *system_error = 0;
    step(&o, "begin");
    o.fd = temporary_open(directory, name, temporary);
    if (o.fd < 0 && errno == EEXIST)
        return error_set(error, KAKEYA_CANCELLED, "%s: another process is writing it", name);
    if (o.fd < 0) {
        *system_error = errno;
        return failed(name, errno, error);
    }
    kakeya_status status = write_temporary(&o, name, &own, error);
    if (status == KAKEYA_OK && renameat(directory, temporary, directory, name) != 0) {
        o.failed = errno;
        status = failed(name, o.failed, error);
    }
    if (status == KAKEYA_OK) {
        step(&o, "renamed");
        (void)fsync(directory); /* where that fails, the file is there all the same, only not for certain */
        step(&o, "end");
        if (info) *info = own;
    } else {
        (void)unlinkat(directory, temporary, 0);
    }
    close(o.fd);
    free(o.chunk);
    free(o.checksums);
    *system_error = o.failed;
    return status;
}
