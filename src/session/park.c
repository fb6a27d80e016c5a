#include "session/park.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"

static kakeya_status write_file(void *user, const void *data, size_t bytes, kakeya_error *error) {
    if (fwrite(data, 1, bytes, user) == bytes) return KAKEYA_OK;
    return error_set(error, KAKEYA_IO, "parking a session: %s", strerror(errno));
}

static kakeya_status read_file(void *user, void *data, size_t bytes, kakeya_error *error) {
    if (fread(data, 1, bytes, user) == bytes) return KAKEYA_OK;
    return error_set(error, KAKEYA_IO, "taking up a parked session: %s",
                     ferror((FILE *)user) ? strerror(errno) : "the temporary file ends early");
}

/* Not /tmp where there is a choice: it is memory on many systems. */
static FILE *open_file(const kakeya_engine *engine, kakeya_error *error) {
    const char *given = getenv("TMPDIR");
    const char *const places[] = {given && *given ? given : "/var/tmp", "/tmp"};
    if (engine->spill_directory) {
        FILE *file = file_unnamed(engine->spill_directory);
        if (!file) error_set(error, KAKEYA_IO, "parking a session in %s: %s", engine->spill_directory, strerror(errno));
        return file;
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        FILE *file = file_unnamed(places[i]);
        if (file) return file;
    }
    error_set(error, KAKEYA_IO, "parking a session: no file in %s or /tmp: %s", places[0], strerror(errno));
    return NULL;
}

kakeya_status park(kakeya_session *session, FILE **file, kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    *file = open_file(session->engine, error);
    if (!*file) return KAKEYA_IO;
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
    atomic_fetch_add(&session->engine->spilled_bytes, engine_file_bytes(*file));
    t->ops->cache_destroy(t->cache);
    t->cache = NULL;
    (void)decode_workspace_give_back(&session->workspace);
    return KAKEYA_OK;
}

size_t park_bytes(const kakeya_session *session) { return engine_file_bytes(session->parked); }

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

kakeya_status park_fill(kakeya_engine *engine, FILE **file, size_t bytes, backend_read_fn read, void *user,
                        kakeya_error *error) {
    enum { PIECE = 16384 };
    char piece[PIECE];
    kakeya_status status = KAKEYA_OK;
    *file = open_file(engine, error);
    if (!*file) return KAKEYA_IO;
    for (size_t at = 0, n; at < bytes && status == KAKEYA_OK; at += n) {
        n = bytes - at < sizeof piece ? bytes - at : sizeof piece;
        status = read(user, piece, n, error);
        if (status == KAKEYA_OK) status = write_file(*file, piece, n, error);
    }
    if (status == KAKEYA_OK && fflush(*file) != 0)
        status = error_set(error, KAKEYA_IO, "parking a session: %s", strerror(errno));
    if (status != KAKEYA_OK) {
        fclose(*file);
        *file = NULL;
        return status;
    }
    atomic_fetch_add(&engine->spilled_bytes, engine_file_bytes(*file));
    return KAKEYA_OK;
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
    engine_forget_file(session->engine, file);
    return KAKEYA_OK;
}

kakeya_status kakeya_session_park(kakeya_session *session, kakeya_error *error) {
    if (session->parked) return KAKEYA_OK;
    if (!session->timeline.cache && session->begun)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "parking: the session lost its memory in an earlier failure, sync it");
    engine_turn_begin(session->engine);
    kakeya_status status = session->begun ? KAKEYA_OK : session_reset_cache(session, error);
    if (status == KAKEYA_OK) status = park(session, &session->parked, error);
    engine_turn_end(session->engine);
    return status;
}

bool kakeya_session_is_parked(const kakeya_session *session) { return session->parked != NULL; }
