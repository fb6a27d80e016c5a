#include "serve/response_table.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "base/files.h"

enum { BUSY_MS = 10000, VERSION = 1, ROW_BYTES = 256 /* what a response takes beside its texts */ };

/* No WAL: its index is memory that processes share, which those of several machines cannot. A journal that is truncated
 * leaves the directory as it is, whose time says that there are new sessions. */
static const char settings[] = "PRAGMA journal_mode=TRUNCATE; PRAGMA secure_delete=ON; PRAGMA foreign_keys=ON";
static const char schema[] =
    "BEGIN IMMEDIATE;"
    "CREATE TABLE IF NOT EXISTS responses(number INTEGER PRIMARY KEY, id TEXT UNIQUE, owner INTEGER, ended INTEGER,"
    " bytes INTEGER, checksum INTEGER, previous TEXT, object TEXT, input TEXT, output TEXT);"
    "CREATE INDEX IF NOT EXISTS by_age ON responses(ended, number, bytes);"
    "CREATE TABLE IF NOT EXISTS items(item TEXT, response INTEGER REFERENCES responses ON DELETE CASCADE,"
    " PRIMARY KEY(item, response)) WITHOUT ROWID;"
    "CREATE INDEX IF NOT EXISTS of_response ON items(response);"
    "CREATE TABLE IF NOT EXISTS seal(one INTEGER PRIMARY KEY CHECK(one = 1), key BLOB CHECK(length(key) = 32));"
    "PRAGMA user_version=1; COMMIT";

struct response_table {
    pthread_mutex_t lock;
    sqlite3 *db;
    char *path; /* NULL: in memory */
    response_limits limits;
    void (*log)(void *user, const char *line);
    void *user;
};

void response_texts_free(response_texts *t) {
    text_free(&t->object);
    text_free(&t->input);
    text_free(&t->output);
}

static bool copy_texts(const char *const data[3], const size_t bytes[3], response_texts *to) {
    text_buffer *texts[] = {&to->object, &to->input, &to->output};
    bool good = true;
    for (int i = 0; i < 3; i++) {
        text_bytes(texts[i], data[i] ? data[i] : "", bytes[i]);
        good = good && !texts[i]->failed;
    }
    if (!good) response_texts_free(to);
    if (!good) *to = (response_texts){0};
    return good;
}

bool response_texts_copy(const response_texts *from, response_texts *to) {
    *to = (response_texts){0};
    memcpy(to->previous, from->previous, sizeof to->previous);
    return copy_texts((const char *const[]){from->object.data, from->input.data, from->output.data},
                      (const size_t[]){from->object.n, from->input.n, from->output.n}, to);
}

uint64_t response_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ------------------------------------------------------------------------------------------------------ statements */

/* The statement with its values: i an int64_t, s a string, t a text_buffer, k a key. NULL: the database's error. */
static sqlite3_stmt *ask(sqlite3 *db, const char *sql, const char *kinds, ...) {
    sqlite3_stmt *out = NULL;
    va_list values;
    if (sqlite3_prepare_v2(db, sql, -1, &out, NULL) != SQLITE_OK) return NULL;
    va_start(values, kinds);
    for (int i = 1; kinds[i - 1]; i++) {
        if (kinds[i - 1] == 'i') {
            sqlite3_bind_int64(out, i, va_arg(values, int64_t));
        } else if (kinds[i - 1] == 's') {
            sqlite3_bind_text(out, i, va_arg(values, const char *), -1, SQLITE_STATIC);
        } else if (kinds[i - 1] == 'k') {
            sqlite3_bind_blob(out, i, va_arg(values, const void *), SEAL_KEY_BYTES, SQLITE_STATIC);
        } else {
            const text_buffer *t = va_arg(values, const text_buffer *);
            sqlite3_bind_text64(out, i, t->data ? t->data : "", t->n, SQLITE_STATIC, SQLITE_UTF8);
        }
    }
    va_end(values);
    return out;
}

/* Carries out what returns no rows. */
static bool done(sqlite3_stmt *statement) {
    bool good = statement && sqlite3_step(statement) == SQLITE_DONE;
    sqlite3_finalize(statement);
    return good;
}

static bool execute(sqlite3 *db, const char *sql) { return sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK; }

static kakeya_status failed(const char *path, sqlite3 *db, kakeya_error *error) {
    const int code = db ? sqlite3_errcode(db) : SQLITE_NOMEM;
    const bool damaged = code == SQLITE_CORRUPT || code == SQLITE_NOTADB || code == SQLITE_ERROR; /* of its tables */
    const kakeya_status status = code == SQLITE_NOMEM ? KAKEYA_OUT_OF_MEMORY : damaged ? KAKEYA_FORMAT : KAKEYA_IO;
    return error_set(error, status, "%s: %s", path ? path : "responses", db ? sqlite3_errmsg(db) : "out of memory");
}

/* ---------------------------------------------------------------------------------------------------- open, close */

static kakeya_status prepare(const char *path, sqlite3 *db, kakeya_error *error) {
    sqlite3_busy_timeout(db, BUSY_MS);
    sqlite3_stmt *check = execute(db, settings) ? ask(db, "PRAGMA quick_check(1)", "") : NULL;
    const char *said = check && sqlite3_step(check) == SQLITE_ROW ? (const char *)sqlite3_column_text(check, 0) : NULL;
    kakeya_status status = !said                     ? failed(path, db, error)
                           : strcmp(said, "ok") != 0 ? error_set(error, KAKEYA_FORMAT, "%s: %.200s", path, said)
                                                     : KAKEYA_OK;
    sqlite3_finalize(check);
    if (status != KAKEYA_OK) return status;
    sqlite3_stmt *asked = ask(db, "PRAGMA user_version", "");
    const int version = asked && sqlite3_step(asked) == SQLITE_ROW ? sqlite3_column_int(asked, 0) : -1;
    sqlite3_finalize(asked);
    if (version == VERSION) return KAKEYA_OK;
    if (version > 0) return error_set(error, KAKEYA_UNSUPPORTED, "%s is of version %d, not %d", path, version, VERSION);
    return version == 0 && execute(db, schema) ? KAKEYA_OK : failed(path, db, error);
}

static bool has_moved(sqlite3 *db) {
    int moved = 0;
    return sqlite3_file_control(db, "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK && moved;
}

/* Under a lock on the file: who finds the same damage at the same time must not rename what has taken its place. */
static void set_aside(response_table *t, sqlite3 *db, const kakeya_error *error) {
    text_buffer bad = {0}, line = {0};
    int fd = open(t->path, O_RDONLY | O_CLOEXEC);
    text_format(&bad, "%s.bad", t->path);
    text_format(&line, "responses: %s; it is %s.bad now and not used", error->message, t->path);
    if (fd >= 0 && flock(fd, LOCK_EX) == 0 && !bad.failed && !has_moved(db) && rename(t->path, bad.data) == 0 &&
        t->log && !line.failed)
        t->log(t->user, line.data);
    if (fd >= 0) close(fd);
    text_free(&bad);
    text_free(&line);
}

/* KAKEYA_CANCELLED: another file is to be opened. */
static kakeya_status open_once(response_table *t, sqlite3 **out, kakeya_error *error) {
    int made = t->path ? open(t->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (made < 0 && t->path && errno != EEXIST) return error_set(error, KAKEYA_IO, "%s: %s", t->path, strerror(errno));
    if (made >= 0) close(made);
    sqlite3 *db = NULL;
    const bool opened = sqlite3_open(t->path ? t->path : ":memory:", &db) == SQLITE_OK;
    kakeya_status status = opened ? prepare(t->path, db, error) : failed(t->path, db, error);
    if (opened && t->path && status == KAKEYA_FORMAT) set_aside(t, db, error);
    if (opened && t->path && status != KAKEYA_OK && has_moved(db)) status = KAKEYA_CANCELLED;
    *out = status == KAKEYA_OK ? db : NULL;
    if (status != KAKEYA_OK) sqlite3_close(db);
    return status;
}

static kakeya_status open_file(response_table *t, sqlite3 **out, kakeya_error *error) {
    enum { TRIES = 10 };
    kakeya_status status = KAKEYA_CANCELLED;
    for (int i = 0; i < TRIES && status == KAKEYA_CANCELLED; i++) status = open_once(t, out, error);
    return status;
}

kakeya_status response_table_open(const char *directory, response_limits limits,
                                  void (*log)(void *user, const char *line), void *user, response_table **out,
                                  kakeya_error *error) {
    *out = NULL;
    if (directory && mkdir(directory, 0700) != 0 && errno != EEXIST)
        return error_set(error, KAKEYA_IO, "%s: %s", directory, strerror(errno));
    response_table *t = calloc(1, sizeof *t);
    if (t && directory) t->path = path_join(directory, "state.db");
    if (!t || (directory && !t->path)) {
        free(t);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "responses: out of memory");
    }
    pthread_mutex_init(&t->lock, NULL);
    t->limits = limits;
    t->log = log;
    t->user = user;
    kakeya_status status = open_file(t, &t->db, error);
    if (status == KAKEYA_OK) {
        *out = t;
    } else {
        response_table_close(t);
    }
    return status;
}

void response_table_close(response_table *t) {
    if (!t) return;
    sqlite3_close(t->db);
    pthread_mutex_destroy(&t->lock);
    free(t->path);
    free(t);
}

/* Where the file has gone, another is used from now on; where none can be made, what was read stays known. */
static void enter(response_table *t) {
    sqlite3 *other;
    kakeya_error error;
    pthread_mutex_lock(&t->lock);
    if (!t->path || !has_moved(t->db) || open_file(t, &other, &error) != KAKEYA_OK) return;
    sqlite3_close(t->db);
    t->db = other;
}

static void leave(response_table *t) { pthread_mutex_unlock(&t->lock); }

/* --------------------------------------------------------------------------------------------------------- writing */

static int64_t checksum(const char *id, unsigned long long owner, uint64_t ended_ms, const char *previous,
                        const char *const data[3], const size_t bytes[3]) {
    char head[4 * RESPONSE_ID_BYTES + 100];
    int n = snprintf(head, sizeof head, "%.80s %.40s %llx %llx %zx %zx", id, previous, owner,
                     (unsigned long long)ended_ms, bytes[0], bytes[1]);
    XXH64_hash_t hash = XXH3_64bits(head, (size_t)n);
    for (int i = 0; i < 3; i++) hash = XXH3_64bits_withSeed(data[i], bytes[i], hash);
    return (int64_t)hash;
}

static bool insert(sqlite3 *db, const char *id, unsigned long long owner, uint64_t ended_ms, const response_texts *x) {
    static const char response[] = "INSERT OR REPLACE INTO responses(id, owner, ended, bytes, checksum, previous,"
                                   " object, input, output) VALUES(?,?,?,?,?,?,?,?,?)";
    static const char items[] = /* an item is an object with an id */
        "INSERT OR IGNORE INTO items SELECT item, ?1 FROM (SELECT CASE WHEN type = 'object' THEN"
        " json_extract(value, '$.id') END item FROM json_each(CASE WHEN json_valid(?2) THEN ?2 ELSE '[]' END))"
        " WHERE typeof(item) = 'text'";
    const char *data[3] = {x->object.data ? x->object.data : "", x->input.data ? x->input.data : "",
                           x->output.data ? x->output.data : ""};
    const size_t sizes[3] = {x->object.n, x->input.n, x->output.n};
    int64_t bytes = (int64_t)(ROW_BYTES + sizes[0] + sizes[1] + sizes[2]);
    if (!done(ask(db, response, "siiiisttt", id, (int64_t)owner, (int64_t)ended_ms, bytes,
                  checksum(id, owner, ended_ms, x->previous, data, sizes), x->previous, &x->object, &x->input,
                  &x->output)))
        return false;
    int64_t number = sqlite3_last_insert_rowid(db);
    return done(ask(db, items, "it", number, &x->input)) && done(ask(db, items, "it", number, &x->output));
}

/* Unix time of the oldest that count. */
static int64_t oldest_ms(const response_table *t) {
    return (int64_t)((double)response_now_ms() - t->limits.seconds * 1e3);
}

static bool trim(response_table *t) {
    return done(ask(t->db,
                    "DELETE FROM responses WHERE number IN (SELECT number FROM (SELECT number, ended,"
                    " row_number() OVER newest AS place, sum(bytes) OVER newest AS total FROM responses"
                    " WINDOW newest AS (ORDER BY ended DESC, number DESC))"
                    " WHERE place > ?1 OR total > ?2 OR ended <= ?3)",
                    "iii", (int64_t)t->limits.entries, (int64_t)t->limits.bytes, oldest_ms(t)));
}

kakeya_status response_table_put(response_table *t, const char *id, unsigned long long owner, uint64_t ended_ms,
                                 const response_texts *texts, kakeya_error *error) {
    enter(t);
    const bool gone = t->path && has_moved(t->db);
    bool good = !gone && execute(t->db, "BEGIN IMMEDIATE") && insert(t->db, id, owner, ended_ms, texts) && trim(t) &&
                execute(t->db, "COMMIT");
    kakeya_status status = good   ? KAKEYA_OK
                           : gone ? error_set(error, KAKEYA_IO, "%s is not there any more", t->path)
                                  : failed(t->path, t->db, error);
    if (!good) (void)execute(t->db, "ROLLBACK");
    leave(t);
    return status;
}

bool response_table_delete(response_table *t, const char *id, unsigned long long owner) {
    if (!t) return false;
    enter(t);
    bool good = done(ask(t->db, "DELETE FROM responses WHERE id = ?1 AND owner = ?2 AND ended > ?3", "sii", id,
                         (int64_t)owner, oldest_ms(t))) &&
                sqlite3_changes(t->db) > 0;
    leave(t);
    return good;
}

/* --------------------------------------------------------------------------------------------------------- reading */

/* The row's columns from the id on. */
static bool read_row(sqlite3_stmt *row, response_texts *out) {
    const char *data[3], *id = (const char *)sqlite3_column_text(row, 0);
    const char *previous = (const char *)sqlite3_column_text(row, 4);
    size_t bytes[3];
    for (int i = 0; i < 3; i++) {
        data[i] = (const char *)sqlite3_column_text(row, 5 + i);
        bytes[i] = (size_t)sqlite3_column_bytes(row, 5 + i);
    }
    *out = (response_texts){0};
    if (!id || !previous || !data[0] || !data[1] || !data[2] || strlen(previous) >= sizeof out->previous ||
        checksum(id, (unsigned long long)sqlite3_column_int64(row, 1), (uint64_t)sqlite3_column_int64(row, 2), previous,
                 data, bytes) != sqlite3_column_int64(row, 3))
        return false;
    memcpy(out->previous, previous, strlen(previous) + 1);
    return copy_texts(data, bytes, out);
}

static bool find(response_table *t, const char *which, const char *name, unsigned long long owner,
                 response_texts *out) {
    char sql[400];
    *out = (response_texts){0};
    if (!t) return false;
    snprintf(sql, sizeof sql,
             "SELECT id, owner, ended, checksum, previous, object, input, output FROM responses"
             " WHERE %s AND owner = ?2 AND ended > ?3 ORDER BY number DESC LIMIT 1",
             which);
    enter(t);
    sqlite3_stmt *row = ask(t->db, sql, "sii", name, (int64_t)owner, oldest_ms(t));
    const bool there = row && sqlite3_step(row) == SQLITE_ROW, good = there && read_row(row, out);
    char line[100], id[80] = "";
    if (there) snprintf(id, sizeof id, "%s", (const char *)sqlite3_column_text(row, 0));
    sqlite3_finalize(row);
    leave(t);
    if (!there || good) return good;
    snprintf(line, sizeof line, "responses: %s is damaged, and removed", id);
    if (t->log) t->log(t->user, line);
    (void)response_table_delete(t, id, owner);
    return false;
}

bool response_table_get(response_table *t, const char *id, unsigned long long owner, response_texts *out) {
    return find(t, "id = ?1", id, owner, out);
}

bool response_table_with_item(response_table *t, const char *item, unsigned long long owner, response_texts *out) {
    return find(t, "number IN (SELECT response FROM items WHERE item = ?1)", item, owner, out);
}

size_t response_table_count(response_table *t) {
    if (!t) return 0;
    enter(t);
    sqlite3_stmt *row = ask(t->db, "SELECT count(*) FROM responses WHERE ended > ?1", "i", oldest_ms(t));
    size_t n = row && sqlite3_step(row) == SQLITE_ROW ? (size_t)sqlite3_column_int64(row, 0) : 0;
    sqlite3_finalize(row);
    leave(t);
    return n;
}

kakeya_status response_table_seal(response_table *t, reasoning_seal *seal, kakeya_error *error) {
    reasoning_seal fresh;
    if (!reasoning_seal_init(&fresh)) return error_set(error, KAKEYA_IO, "the system has no random numbers");
    enter(t);
    sqlite3_stmt *row = NULL;
    bool good = false;
    for (int i = 0; i < 2 && !good; i++) { /* a key that is there is read without writing */
        if (i && !done(ask(t->db, "INSERT OR IGNORE INTO seal VALUES(1, ?1)", "k", fresh.key))) break;
        row = ask(t->db, "SELECT key FROM seal WHERE length(key) = 32", "");
        good = row && sqlite3_step(row) == SQLITE_ROW;
        if (good) memcpy(seal->key, sqlite3_column_blob(row, 0), sizeof seal->key);
        sqlite3_finalize(row);
    }
    kakeya_status status = good ? KAKEYA_OK : failed(t->path, t->db, error);
    leave(t);
    return status;
}
