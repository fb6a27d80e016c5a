#include "session/park.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static kakeya_status write_file(void *user, const void *data, size_t bytes, kakeya_error *error) {
    if (fwrite(data, 1, bytes, user) == bytes) return KAKEYA_OK;
    return error_set(error, KAKEYA_IO, "parking a session: %s", strerror(errno));
}

static kakeya_status read_file(void *user, void *data, size_t bytes, kakeya_error *error) {
    if (fread(data, 1, bytes, user) == bytes) return KAKEYA_OK;
    return error_set(error, KAKEYA_IO, "taking up a parked session: %s",
                     ferror((FILE *)user) ? strerror(errno) : "the temporary file ends early");
}

kakeya_status park(kakeya_session *session, FILE **file, kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    *file = tmpfile();
    if (!*file) return error_set(error, KAKEYA_IO, "parking a session: no temporary file: %s", strerror(errno));
    engine_lend_spare(session->engine);
    kakeya_status status = t->ops->cache_snapshot(t->cache, write_file, *file, error);
    engine_keep_spare(session->engine);
    if (status == KAKEYA_OK && fflush(*file) != 0)
        status = error_set(error, KAKEYA_IO, "parking a session: %s", strerror(errno));
    if (status != KAKEYA_OK) {
        fclose(*file);
        *file = NULL;
        return status;
    }
    t->ops->cache_destroy(t->cache);
    t->cache = NULL;
    (void)decode_workspace_give_back(&session->workspace);
    return KAKEYA_OK;
}

size_t park_bytes(const kakeya_session *session) {
    struct stat about;
    return fstat(fileno(session->parked), &about) == 0 ? (size_t)about.st_size : 0;
}

kakeya_status park_copy(const kakeya_session *session, backend_write_fn write, void *user, kakeya_error *error) {
    enum { PIECE = 16384 };
    char piece[PIECE];
    const size_t all = park_bytes(session);
    kakeya_status status = KAKEYA_OK;
    for (size_t at = 0; at < all && status == KAKEYA_OK;) {
        ssize_t n = pread(fileno(session->parked), piece, sizeof piece, (off_t)at);
        if (n <= 0)
            return error_set(error, KAKEYA_IO, "saving a parked session: %s",
                             n < 0 ? strerror(errno) : "its temporary file ends early");
        status = write(user, piece, (size_t)n, error);
        at += (size_t)n;
    }
    return status;
}

kakeya_status unpark(kakeya_session *session, FILE **file, kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    backend_cache *cache = NULL;
    rewind(*file);
    kakeya_status status = t->ops->cache_create(t->model, &session->cache_options, &cache, error);
    engine_lend_spare(session->engine);
    if (status == KAKEYA_OK) status = t->ops->cache_restore(cache, read_file, *file, error);
    engine_keep_spare(session->engine);
    if (status != KAKEYA_OK) {
        if (cache) t->ops->cache_destroy(cache);
        return status;
    }
    t->cache = cache;
    fclose(*file);
    *file = NULL;
    return KAKEYA_OK;
}

kakeya_status kakeya_session_park(kakeya_session *session, kakeya_error *error) {
    if (session->parked) return KAKEYA_OK;
    if (!session->timeline.cache)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "parking: the session lost its memory in an earlier failure, sync it");
    engine_turn_begin(session->engine);
    kakeya_status status = park(session, &session->parked, error);
    engine_turn_end(session->engine);
    return status;
}

bool kakeya_session_is_parked(const kakeya_session *session) { return session->parked != NULL; }
