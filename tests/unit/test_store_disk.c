/* Sessions on disk: the file byte for byte, every damage is found, whatever moment a writer is killed at leaves the old
 * or the new file, and a disk that is full, gone or shared costs nothing but what it would have kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "serve/store_file.h"
#include "serve/temporary.h"

#include "scratch.h"
#include "session/session.h"
#include "store_support.h"
#include "sweep.h"

enum { PROMPT = 70, CHUNK = 64 };

static kakeya_session *talk(kakeya_engine *engine, size_t n, uint64_t seed) {
    kakeya_session_options so = session_options();
    kakeya_session *session = fake_session(engine, &so);
    int32_t ids[FAKE_CONTEXT];
    fake_prompt(ids, n, seed, FAKE_VOCAB);
    ok(kakeya_session_sync(session, ids, n, NULL, NULL, NULL, error));
    return session;
}

static int open_scratch(const char *name) {
    const char *path = scratch_path(name);
    assert_int_equal(mkdir(path, 0700), 0);
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    assert_true(fd >= 0);
    return fd;
}

static size_t files_in(const char *path, const char *part) {
    size_t n = 0;
    DIR *list = opendir(path);
    if (!list) return 0;
    for (struct dirent *e; (e = readdir(list)) != NULL;) n += strstr(e->d_name, part) != NULL;
    closedir(list);
    return n;
}

static store_file_content content_of(const kakeya_session *session) {
    return (store_file_content){.fingerprint = 11,
                                .policy = 22,
                                .session = session,
                                .prompt_tokens = PROMPT,
                                .reason = STORE_PROMPT_END,
                                .metadata = "{\"label\":\"x\"}",
                                .chunk_bytes = CHUNK};
}

/* -------------------------------------------------------------------------------------------------------- the file */

static uint64_t number_at(const unsigned char *data, size_t at, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) value |= (uint64_t)data[at + i] << (8 * i);
    return value;
}

static unsigned char *contents(int directory, const char *name, size_t *bytes) {
    int fd = openat(directory, name, O_RDONLY);
    struct stat about;
    assert_true(fd >= 0 && fstat(fd, &about) == 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    *bytes = (size_t)about.st_size;
    unsigned char *data = malloc(*bytes + 1);
    assert_int_equal(read(fd, data, *bytes), (ssize_t)*bytes);
    close(fd);
    return data;
}

static void put_contents(int directory, const char *name, const unsigned char *data, size_t bytes) {
    int fd = openat(directory, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), (ssize_t)bytes);
    close(fd);
}

/* What stands where, read without any of the code that wrote it. */
static void test_the_file_byte_for_byte(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session *session = talk(engine, PROMPT, 3);
    int directory = open_scratch("format");
    store_file_content content = content_of(session);
    store_file_info info;
    int why;
    ok(store_file_write(directory, "a.kkc", &content, &info, &why, error));
    assert_int_equal(why, 0);
    size_t bytes, n;
    unsigned char *data = contents(directory, "a.kkc", &bytes);
    const int32_t *ids = kakeya_session_tokens(session, &n);
    assert_memory_equal(data, "KAKEYACK", 8);
    assert_int_equal(number_at(data, 8, 4), 1);
    assert_int_equal(number_at(data, 12, 4), 160);
    assert_int_equal(number_at(data, 16, 8), 11);
    assert_int_equal(number_at(data, 24, 8), 22);
    store_key key = store_key_of(store_file_seed(11, 22, 0), ids, n);
    assert_int_equal(number_at(data, 32, 8), key.low);
    assert_int_equal(number_at(data, 40, 8), key.high);
    assert_int_equal(number_at(data, 48, 8), PROMPT);
    assert_int_equal(number_at(data, 56, 8), strlen(content.metadata));
    size_t payload = (size_t)kakeya_session_save_bytes(session);
    assert_int_equal(number_at(data, 64, 8), payload);
    assert_int_equal(number_at(data, 72, 8), CHUNK);
    assert_int_equal(number_at(data, 80, 8), bytes);
    assert_true(number_at(data, 88, 8) > UINT64_C(1600000000000));
    assert_int_equal(number_at(data, 96, 4), 1);
    assert_int_equal(number_at(data, 100, 4), 1);
    assert_int_equal(number_at(data, 104, 8), 0);
    store_key blocks = store_key_of(store_file_seed(11, 22, 0), ids, PROMPT / 16 * 16);
    assert_int_equal(number_at(data, 112, 8), blocks.low);
    assert_int_equal(number_at(data, 120, 8), blocks.high);
    assert_int_equal(number_at(data, 128, 8), PROMPT / 16);
    for (size_t i = 136; i < 144; i++) assert_int_equal(data[i], 0);
    XXH128_hash_t hash = XXH3_128bits(data, 144);
    assert_int_equal(number_at(data, 144, 8), hash.low64);
    assert_int_equal(number_at(data, 152, 8), hash.high64);
    size_t at = 160;
    for (size_t i = 0; i < n; i++, at += 4) assert_int_equal(number_at(data, at, 4), (uint32_t)ids[i]);
    for (size_t i = 0; i < n; i++) assert_int_equal(data[at++], 0);
    assert_memory_equal(data + at, content.metadata, strlen(content.metadata));
    at += strlen(content.metadata);
    void *saved;
    size_t saved_bytes;
    ok(session_to_memory(session, &saved, &saved_bytes, error));
    assert_int_equal(saved_bytes, payload);
    assert_memory_equal(data + at, saved, payload);
    kakeya_free(saved);
    at += payload;
    size_t body = at - 160, list = at;
    for (size_t from = 0; from < body; from += CHUNK, at += 8)
        assert_int_equal(number_at(data, at, 8),
                         XXH3_64bits(data + 160 + from, body - from < CHUNK ? body - from : CHUNK));
    assert_int_equal(number_at(data, at, 8), XXH3_64bits(data + list, at - list));
    assert_int_equal(at + 8, bytes);
    free(data);
    close(directory);
    close_all(session, engine, &script);
}

/* Opens, verifies and loads; the session is as it was wherever that fails. */
static kakeya_status read_file(int directory, const char *name, kakeya_session *session) {
    store_file *file = NULL;
    kakeya_error failure = {0};
    kakeya_status status = store_file_open(directory, name, &file, NULL, &failure);
    if (status == KAKEYA_OK) status = store_file_verify(file, &failure);
    if (status == KAKEYA_OK) status = store_file_load(file, session, &failure);
    store_file_close(file);
    if (status != KAKEYA_OK && (!strstr(failure.message, name) || strchr(failure.message, '\n')))
        fail_msg("\"%s\" does not name %s", failure.message, name);
    return status;
}

static void test_every_byte_of_the_file_counts(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session *session = talk(engine, PROMPT, 3), *other = talk(engine, 20, 4);
    int directory = open_scratch("damage");
    store_file_content content = content_of(session);
    int why;
    ok(store_file_write(directory, "a.kkc", &content, NULL, &why, error));
    size_t bytes;
    unsigned char *data = contents(directory, "a.kkc", &bytes);
    for (size_t at = 0; at < bytes; at++) {
        data[at] ^= (unsigned char)(1u << (at % 8));
        put_contents(directory, "flipped.kkc", data, bytes);
        if (read_file(directory, "flipped.kkc", other) != KAKEYA_FORMAT) fail_msg("byte %zu flipped is accepted", at);
        data[at] ^= (unsigned char)(1u << (at % 8));
        put_contents(directory, "cut.kkc", data, at);
        if (read_file(directory, "cut.kkc", other) != KAKEYA_FORMAT) fail_msg("%zu bytes are accepted", at);
    }
    put_contents(directory, "long.kkc", data, bytes + 1);
    assert_int_equal(read_file(directory, "long.kkc", other), KAKEYA_FORMAT);
    size_t n;
    (void)kakeya_session_tokens(other, &n);
    assert_int_equal(n, 20);
    assert_int_equal(read_file(directory, "a.kkc", other), KAKEYA_OK);
    const int32_t *ids = kakeya_session_tokens(session, &n);
    assert_timeline(other, ids, n, "loaded");
    assert_int_equal(read_file(directory, "absent.kkc", other), KAKEYA_IO);
    assert_int_equal(symlinkat("a.kkc", directory, "link.kkc"), 0);
    assert_int_equal(read_file(directory, "link.kkc", other), KAKEYA_IO);
    free(data);
    close(directory);
    kakeya_session_close(other);
    close_all(session, engine, &script);
}

/* ------------------------------------------------------------------------------------------------------ kill -9 */

typedef struct killer {
    int left;
} killer;

static void kill_at(void *user, const char *what) {
    (void)what;
    killer *k = user;
    if (k->left-- == 0) raise(SIGKILL);
}

/* The process ends at each step of replacing an older file by a newer one. */
static void test_killed_at_any_moment(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session *older = talk(engine, PROMPT, 3), *newer = talk(engine, PROMPT + 9, 3), *read = talk(engine, 5, 1);
    int directory = open_scratch("killed"), points = 0, old_files = 0, why;
    store_file_content content = content_of(older);
    ok(store_file_write(directory, "sess-1.kkc", &content, NULL, &why, error));
    for (bool ended = false; !ended; points++) {
        pid_t child = fork();
        if (child == 0) {
            killer k = {points};
            content = content_of(newer);
            content.step = kill_at;
            content.step_user = &k;
            _exit(store_file_write(directory, "sess-1.kkc", &content, NULL, &why, NULL) == KAKEYA_OK ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        ended = WIFEXITED(status);
        if (ended) assert_int_equal(WEXITSTATUS(status), 0);
        temporary_remove_abandoned(directory);
        assert_int_equal(files_in(scratch_path("killed"), "tmp"), 0);
        assert_int_equal(read_file(directory, "sess-1.kkc", read), KAKEYA_OK);
        size_t n;
        (void)kakeya_session_tokens(read, &n);
        assert_true(n == PROMPT || n == PROMPT + 9);
        old_files += n == PROMPT;
        if (n != PROMPT && !ended) {
            content = content_of(older);
            ok(store_file_write(directory, "sess-1.kkc", &content, NULL, &why, error));
        }
    }
    assert_true(points >= 20);
    assert_true(old_files >= 15 && old_files < points - 2);
    close(directory);
    kakeya_session_close(newer);
    kakeya_session_close(read);
    close_all(older, engine, &script);
}

typedef struct racer {
    int directory;
    const kakeya_session *session;
    kakeya_status status;
} racer;

static void clean(void *user, const char *what) {
    (void)what;
    temporary_remove_abandoned(*(const int *)user);
}

/* Files of living writers are not taken for abandoned, and the same file is not written twice at a time. */
static void write_again(void *user, const char *what) {
    racer *r = user;
    store_file_content content = content_of(r->session);
    int why;
    if (strcmp(what, "header") == 0) r->status = store_file_write(r->directory, "a.kkc", &content, NULL, &why, NULL);
}

static void test_living_writers(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session *session = talk(engine, PROMPT, 3);
    int directory = open_scratch("living"), why;
    store_file_content content = content_of(session);
    content.step = clean;
    content.step_user = &directory;
    ok(store_file_write(directory, "a.kkc", &content, NULL, &why, error));
    racer r = {directory, session, KAKEYA_OK};
    content.step = write_again;
    content.step_user = &r;
    ok(store_file_write(directory, "a.kkc", &content, NULL, &why, error));
    assert_int_equal(r.status, KAKEYA_CANCELLED);
    assert_int_equal(read_file(directory, "a.kkc", session), KAKEYA_OK);
    assert_int_equal(files_in(scratch_path("living"), "tmp"), 0);
    close(directory);
    close_all(session, engine, &script);
}

/* ----------------------------------------------------------------------------------------------- a store with files */

typedef struct lines {
    pthread_mutex_t lock;
    int n;
    char last[1500];
} lines;

static void hear(void *user, const char *line) {
    lines *l = user;
    pthread_mutex_lock(&l->lock);
    l->n++;
    snprintf(l->last, sizeof l->last, "%s", line);
    pthread_mutex_unlock(&l->lock);
}

static store_options disk_options(const char *directory) {
    return (store_options){.ram_bytes = (size_t)1 << 30,
                           .directory = directory,
                           .model = "toy",
                           .least_file_tokens = 20,
                           .checkpoint_delay = 1000,
                           .idle_delay = 1000,
                           .pause_seconds = 0.01,
                           .chunk_bytes = CHUNK};
}

/* A request whose prompt goes on behind the r->n_all tokens that are there. */
static void next_turn(prefix_store *store, kakeya_engine *engine, const kakeya_session_options *so, request *r,
                      uint64_t seed) {
    fake_prompt(r->ids + r->n_all, 10, seed, FAKE_VOCAB);
    r->n = r->n_all + 10;
    static request alone;
    alone = *r;
    const size_t stops[] = {r->n / 2, r->n - 2};
    serve(store, r, stops, 2, 5, 1);
    serve_alone(engine, so, &alone, 5, 1);
    assert_same(r, &alone, "with files");
}

static void first_turn(prefix_store *store, kakeya_engine *engine, const kakeya_session_options *so, request *r,
                       uint64_t seed) {
    r->n_all = PROMPT;
    fake_prompt(r->ids, PROMPT, seed, FAKE_VOCAB);
    next_turn(store, engine, so, r, seed + 50);
}

/* What a server has saved at its end, the next one goes on with. */
static void test_restart(void **state) {
    (void)state;
    const char *path = scratch_path("restart");
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    static request r[3];
    static const char *const backends[] = {"cpu/one, 1 thread", "cpu/one, 12 threads", "cpu/one, 2 threads"};
    for (uint64_t round = 0; round < 3; round++) {
        script.description = backends[round];
        prefix_store *store = open_store(engine, &so, disk_options(path));
        for (uint64_t i = 0; i < 3; i++) {
            if (round == 0) {
                first_turn(store, engine, &so, &r[i], i);
                continue;
            }
            next_turn(store, engine, &so, &r[i], 10 * round + i);
            assert_int_equal(r[i].hit.source, STORE_HIT_DISK);
            assert_int_equal(r[i].hit.tokens, r[i].n - 11); /* all but the newest token */
        }
        store_close(store, 1000);
        assert_int_equal(files_in(path, ".tmp"), 0);
        assert_true(files_in(path, ".kkc") >= 3);
    }
    /* of another context, policy, backend or model: theirs are left alone, and not used */
    size_t files = files_in(path, ".kkc");
    for (int other = 0; other < 2; other++) {
        script.description = other == 0 ? "cpu/two, 2 threads" : backends[2];
        so.window = other == 0 ? 64 : 5;
        so.attention = other == 0 ? KAKEYA_ATTENTION_NATIVE : KAKEYA_ATTENTION_SINK_WINDOW;
        prefix_store *store = open_store(engine, &so, disk_options(path));
        next_turn(store, engine, &so, &r[0], 99);
        assert_int_equal(r[0].hit.tokens, 0);
        store_close(store, 0);
        assert_int_equal(files_in(path, ".kkc"), files);
    }
    close_all(NULL, engine, &script);
}

/* Where timelines go on behind answers, nothing is known to hold prompt rows alone: a server that keeps to those does
 * not use it. */
static void test_rows_of_any_kind(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    so.attention = KAKEYA_ATTENTION_SINK_WINDOW;
    for (int any = 0; any < 2; any++) {
        const char *path = scratch_path(any ? "any" : "exact");
        store_options options = disk_options(path);
        options.reuse_any = any == 1;
        prefix_store *store = open_store(engine, &so, options);
        static request r;
        first_turn(store, engine, &so, &r, 1);
        size_t stable = r.n - 2;
        next_turn(store, engine, &so, &r, 2);
        store_close(store, 1000);
        store = open_store(engine, &so, disk_options(path));
        next_turn(store, engine, &so, &r, 3);
        assert_true(any ? r.hit.tokens == 0 : r.hit.tokens >= stable);
        store_close(store, 0);
    }
    close_all(NULL, engine, &script);
}

/* Saved by the thread while the server runs. */
static void test_saved_meanwhile(void **state) {
    (void)state;
    const char *path = scratch_path("meanwhile");
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    store_options options = disk_options(path);
    options.checkpoint_delay = options.idle_delay = 0.001;
    prefix_store *store = open_store(engine, &so, options), *other = open_store(engine, &so, disk_options(path));
    request r = {0};
    first_turn(store, engine, &so, &r, 1);
    store_counts counts;
    do {
        counts = counts_of(store);
        usleep(1000);
    } while (counts.saved < counts.live + counts.ram);
    assert_int_equal(counts.disk.saves, 3);
    assert_int_equal(counts.disk.files, 3);
    assert_true(counts.disk.bytes > 0);
    /* a second server on the directory goes on with it */
    next_turn(other, engine, &so, &r, 2);
    assert_int_equal(r.hit.source, STORE_HIT_DISK);
    assert_int_equal(r.hit.tokens, r.n - 11);
    store_close(store, 0);
    store_close(other, 0);
    close_all(NULL, engine, &script);
}

/* Each part of each file damaged: not used, set aside, the answer right. */
static void test_damaged_files(void **state) {
    (void)state;
    static const double places[] = {0, 0.01, 0.1, 0.5, 0.9, 0.999};
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    for (size_t i = 0; i < 3 * sizeof places / sizeof places[0]; i++) {
        char name[32];
        snprintf(name, sizeof name, "damaged-%zu", i);
        const char *path = scratch_path(name);
        prefix_store *store = open_store(engine, &so, disk_options(path));
        request r = {0};
        first_turn(store, engine, &so, &r, i);
        store_close(store, 1000);
        size_t files = files_in(path, ".kkc"), bytes;
        assert_int_equal(files, 3);
        int directory = open(path, O_RDONLY | O_DIRECTORY);
        DIR *list = opendir(path);
        for (struct dirent *e; (e = readdir(list)) != NULL;) {
            if (!strstr(e->d_name, ".kkc")) continue;
            unsigned char *data = contents(directory, e->d_name, &bytes);
            size_t at = (size_t)(places[i / 3] * (double)bytes);
            data[at] ^= 4;
            put_contents(directory, e->d_name, data, i % 3 == 0 ? bytes : i % 3 == 1 ? at : 0);
            free(data);
        }
        closedir(list);
        close(directory);
        lines heard = {.lock = PTHREAD_MUTEX_INITIALIZER};
        store_options options = disk_options(path);
        options.log = hear;
        options.log_user = &heard;
        store = open_store(engine, &so, options);
        next_turn(store, engine, &so, &r, 7);
        assert_int_equal(r.hit.tokens, 0);
        store_counts counts = counts_of(store);
        assert_true(counts.disk.errors_corrupt > 0);
        assert_int_equal(counts.disk.errors_corrupt, files_in(path, ".bad"));
        assert_int_equal(counts.disk.errors_corrupt, heard.n);
        store_close(store, 0);
    }
    close_all(NULL, engine, &script);
}

/* Gives up an entry at least, and waits until the store's thread has written it, or tried to. */
static void relieve(prefix_store *store, size_t bytes) {
    const store_counts before = counts_of(store);
    assert_true(store_relieve(store, bytes) == KAKEYA_RELIEF_LATER);
    for (store_counts now = before;
         now.disk.saves == before.disk.saves && now.disk.errors_full == before.disk.errors_full &&
         now.disk.errors_io == before.disk.errors_io;
         now = counts_of(store))
        usleep(1000);
}

/* ------------------------------------------------------------------------------------------ a disk that does not work
 */

static void limit_files(rlim_t bytes) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void test_full_disk(void **state) {
    (void)state;
    const char *path = scratch_path("full");
    signal(SIGXFSZ, SIG_IGN);
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    lines heard = {.lock = PTHREAD_MUTEX_INITIALIZER};
    store_options options = disk_options(path);
    options.log = hear;
    options.log_user = &heard;
    prefix_store *store = open_store(engine, &so, options);
    request r = {0};
    first_turn(store, engine, &so, &r, 1);
    limit_files(200);
    relieve(store, 1); /* which would save an entry first */
    limit_files(RLIM_INFINITY);
    store_counts counts = counts_of(store);
    assert_int_equal(counts.disk.errors_full, 1);
    assert_int_equal(counts.disk.saves, 0);
    assert_int_equal(heard.n, 1);
    assert_int_equal(files_in(path, "k"), 0);
    next_turn(store, engine, &so, &r, 2); /* requests are answered */
    usleep(20000);                        /* the pause is over */
    relieve(store, 1);
    assert_int_equal(counts_of(store).disk.saves, 1);
    assert_int_equal(files_in(path, ".kkc"), 1);
    store_close(store, 1000);
    close_all(NULL, engine, &script);
}

/* Removed while the server runs; a file in its place at the start. */
static void test_directory_that_is_gone(void **state) {
    (void)state;
    const char *path = scratch_path("gone");
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    lines heard = {.lock = PTHREAD_MUTEX_INITIALIZER};
    store_options options = disk_options(path);
    options.log = hear;
    options.log_user = &heard;
    options.pause_seconds = 1000; /* no entry behind the first one is tried */
    prefix_store *store = open_store(engine, &so, options);
    request r = {0};
    first_turn(store, engine, &so, &r, 1);
    assert_int_equal(rmdir(path), 0);
    relieve(store, (size_t)1 << 30);
    assert_int_equal(counts_of(store).disk.errors_io, 1);
    assert_int_equal(heard.n, 1);
    next_turn(store, engine, &so, &r, 2);
    store_close(store, 1000);

    options.directory = scratch_text("a-file", "text");
    store = open_store(engine, &so, options);
    assert_false(counts_of(store).has_disk);
    assert_non_null(strstr(heard.last, "a-file"));
    first_turn(store, engine, &so, &r, 1);
    store_close(store, 1000);
    close_all(NULL, engine, &script);
}

/* Files that may be read but neither written nor renamed. In a process that may not do everything. */
static void test_directory_that_cannot_be_written(void **state) {
    (void)state;
    const char *path = scratch_path("read-only");
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    prefix_store *store = open_store(engine, &so, disk_options(path));
    static request r;
    first_turn(store, engine, &so, &r, 1);
    store_close(store, 1000);
    assert_int_equal(chmod(scratch_directory, 0755), 0);
    assert_int_equal(chmod(path, 0555), 0);
    DIR *list = opendir(path);
    for (struct dirent *e; (e = readdir(list)) != NULL;)
        if (strstr(e->d_name, ".kkc")) assert_int_equal(fchmodat(dirfd(list), e->d_name, 0444, 0), 0);
    closedir(list);
    pid_t child = fork();
    if (child == 0) {
        if (geteuid() == 0 && (setegid(65534) != 0 || seteuid(65534) != 0)) _exit(3);
        store = open_store(engine, &so, disk_options(path));
        next_turn(store, engine, &so, &r, 2);
        if (r.hit.source != STORE_HIT_DISK) _exit(4);
        relieve(store, 1);
        if (counts_of(store).disk.errors_io != 1) _exit(5);
        next_turn(store, engine, &so, &r, 3);
        store_close(store, 1000);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(chmod(path, 0700), 0);
    close_all(NULL, engine, &script);
}

/* Files that are not used go first; there are never more bytes than the budget. */
static void test_budget(void **state) {
    (void)state;
    const char *path = scratch_path("budget");
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    store_options options = disk_options(path);
    options.disk_bytes = 20000;
    static request r[8];
    for (uint64_t i = 0; i < 8; i++) {
        prefix_store *store = open_store(engine, &so, options);
        first_turn(store, engine, &so, &r[i], i);
        if (i) {
            next_turn(store, engine, &so, &r[0], i);
            assert_int_equal(r[0].hit.source, STORE_HIT_DISK); /* it is used all the time */
        }
        store_close(store, 1000);
        store = open_store(engine, &so, options);
        assert_true(counts_of(store).disk.bytes <= options.disk_bytes);
        store_close(store, 0);
    }
    prefix_store *store = open_store(engine, &so, options);
    assert_true(counts_of(store).disk.files < 20);
    store_close(store, 0);
    close_all(NULL, engine, &script);
}

/* ------------------------------------------------------------------------------------------------ a shared directory
 */

typedef struct replica {
    kakeya_engine *engine;
    const char *path;
    uint64_t seed;
    uint64_t disk_hits;
} replica;

static void *serve_many(void *user) {
    replica *p = user;
    kakeya_session_options so = session_options();
    lines heard = {.lock = PTHREAD_MUTEX_INITIALIZER};
    store_options options = disk_options(p->path);
    options.log = hear;
    options.log_user = &heard;
    options.disk_bytes = 30000;
    options.ram_bytes = 8000;
    options.checkpoint_delay = options.idle_delay = 0.001;
    prefix_store *store = open_store(p->engine, &so, options);
    request *r = calloc(2, sizeof *r);
    for (uint64_t i = 0; i < 60 || (i < 2000 && counts_of(store).hits[STORE_HIT_DISK] == 0); i++) {
        uint64_t talk_of = (uint64_t)(random_uniform_at(p->seed, i) * 5);
        r->n_all = 40 + (size_t)(random_uniform_at(p->seed, 1000 + i) * 200);
        fake_prompt(r->ids, r->n_all, talk_of, FAKE_VOCAB);
        r->n = r->n_all;
        r[1] = r[0];
        const size_t stops[] = {40, r->n - 1};
        serve(store, r, stops, 2, 4, 0);
        serve_alone(p->engine, &so, &r[1], 4, 0);
        assert_same(&r[0], &r[1], "shared");
    }
    p->disk_hits = counts_of(store).hits[STORE_HIT_DISK];
    store_counts counts = counts_of(store);
    store_close(store, 1000);
    if (counts.disk.errors_corrupt + counts.disk.errors_full + counts.disk.errors_io + (uint64_t)heard.n)
        fail_msg("%d lines: %s", heard.n, heard.last);
    free(r);
    return NULL;
}

/* Servers that save, use and give up the same files. */
static void test_shared_directory(void **state) {
    (void)state;
    enum { REPLICAS = 3 };
    const char *path = scratch_path("shared");
    fake_script script[REPLICAS];
    replica replicas[REPLICAS];
    pthread_t threads[REPLICAS];
    for (uint64_t i = 0; i < REPLICAS; i++) {
        script[i] = fake_script_default();
        script[i].truncate_reach = 16;
        replicas[i] = (replica){fake_engine(&script[i], (fake_engine_options){0}), path, i, 0};
    }
    for (int i = 0; i < REPLICAS; i++) assert_int_equal(pthread_create(&threads[i], NULL, serve_many, &replicas[i]), 0);
    uint64_t hits = 0;
    for (int i = 0; i < REPLICAS; i++) {
        pthread_join(threads[i], NULL);
        hits += replicas[i].disk_hits;
        close_all(NULL, replicas[i].engine, &script[i]);
    }
    assert_true(hits > 0);
    assert_int_equal(files_in(path, "tmp"), 0);
}

/* ------------------------------------------------------------------------------------------------- the demo model */

static void test_reload_changes_no_answer(void **state) {
    (void)state;
    kakeya_engine *engine = open_demo();
    /* a short run has the two policies that the one of test_store leaves out */
    for (size_t p = sweep_short() ? 1 : 0; p < (sweep_short() ? 3 : POLICIES); p++) {
        char name[32];
        snprintf(name, sizeof name, "demo-%zu", p);
        kakeya_session_options so = session_options();
        so.attention = policies[p].attention;
        so.restore_layers = policies[p].layers;
        so.window = 16;
        so.context_tokens = MOST_TOKENS;
        static request r, alone;
        r.n = 150;
        text_ids(r.ids, r.n, p);
        for (int turn = 0; turn < 2; turn++) {
            prefix_store *store = open_store(engine, &so, disk_options(scratch_path(name)));
            alone = r;
            const size_t stops[] = {120, r.n - 3};
            serve(store, &r, stops, 2, 12, 1);
            serve_alone(engine, &so, &alone, 12, 1);
            assert_same(&r, &alone, policies[p].name);
            if (turn) assert_int_equal(r.hit.tokens, p == 0 ? 161 : 147);
            if (turn) assert_int_equal(r.hit.source, STORE_HIT_DISK);
            store_close(store, 1000);
            text_ids(r.ids + r.n_all, 30, p + 9);
            r.n = r.n_all + 30;
        }
    }
    kakeya_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_file_byte_for_byte),
        cmocka_unit_test(test_every_byte_of_the_file_counts),
        cmocka_unit_test(test_killed_at_any_moment),
        cmocka_unit_test(test_living_writers),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_rows_of_any_kind),
        cmocka_unit_test(test_saved_meanwhile),
        cmocka_unit_test(test_damaged_files),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_directory_that_is_gone),
        cmocka_unit_test(test_directory_that_cannot_be_written),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_shared_directory),
        cmocka_unit_test(test_reload_changes_no_answer),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
