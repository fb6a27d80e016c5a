/* Saved sessions: the same tokens afterwards as without the break, whatever pieces the stream comes in; a stream that
 * is damaged, cut off, refused or of another model leaves both sessions as they were. On the toy model every byte is
 * tried; on the demo model another process loads what one has saved. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sys/wait.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/hash.h"
#include "fake_engine.h"
#include "scratch.h"
#include "sweep.h"

enum { PROMPT = 60, NEW = 30 };

typedef struct buffer {
    unsigned char data[1 << 16];
    size_t bytes, at, piece; /* piece: at most so many bytes at once; 0: all */
    size_t limit;            /* the writer takes no more than this */
} buffer;

static bool write_buffer(void *user, const void *data, size_t bytes) {
    buffer *b = user;
    assert_true(bytes > 0);
    if (b->bytes + bytes > b->limit) return false;
    memcpy(b->data + b->bytes, data, bytes);
    b->bytes += bytes;
    return true;
}

static size_t read_buffer(void *user, void *data, size_t bytes) {
    buffer *b = user;
    assert_true(bytes > 0);
    size_t n = b->bytes - b->at < bytes ? b->bytes - b->at : bytes;
    if (b->piece && n > b->piece) n = b->piece;
    memcpy(data, b->data + b->at, n);
    b->at += n;
    return n;
}

static void continue_for(kakeya_session *session, int n) {
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.max_tokens = n;
    go.ignore_stop_tokens = true;
    ok(kakeya_session_generate(session, &go, NULL, error));
}

/* A session with a prompt and an answer, or one that has only read its prompt, and what it goes on to hold. */
typedef struct scene {
    fake_script script;
    kakeya_engine *engine;
    kakeya_session *saved;
    int32_t now[FAKE_CONTEXT], later[FAKE_CONTEXT];
    size_t n_now, n_later;
    buffer file;
} scene;

static kakeya_session_options bounded(void) {
    kakeya_session_options so;
    KAKEYA_INIT(&so);
    so.attention = KAKEYA_ATTENTION_RESTORED;
    so.window = 5;
    return so;
}

static void scene_open(scene *s, int answered) {
    int32_t prompt[PROMPT];
    *s = (scene){.script = fake_script_default()};
    s->engine = fake_engine(&s->script, (fake_engine_options){.f_theta = true});
    kakeya_session_options so = bounded();
    s->saved = fake_session(s->engine, &so);
    fake_prompt(prompt, PROMPT, 8, FAKE_VOCAB);
    ok(kakeya_session_sync(s->saved, prompt, PROMPT, NULL, NULL, NULL, error));
    if (answered) continue_for(s->saved, answered);
    s->file.limit = sizeof s->file.data;
    ok(kakeya_session_save(s->saved, write_buffer, &s->file, error));
    assert_int_equal(s->file.bytes, kakeya_session_save_bytes(s->saved));
    const int32_t *now = kakeya_session_tokens(s->saved, &s->n_now);
    memcpy(s->now, now, s->n_now * sizeof *now);
    continue_for(s->saved, NEW);
    const int32_t *later = kakeya_session_tokens(s->saved, &s->n_later);
    memcpy(s->later, later, s->n_later * sizeof *later);
}

static void scene_close(scene *s) { close_all(s->saved, s->engine, &s->script); }

static void test_pieces_of_any_size(void **state) {
    (void)state;
    static scene s;
    for (int answered = 0; answered <= 20; answered += 20) {
        scene_open(&s, answered);
        static const size_t pieces[] = {0, 1, 7, 8, 4096};
        for (size_t i = 0; i < 5; i++) {
            kakeya_session_options so = bounded();
            so.context_tokens = i % 2 ? 200 : 0; /* another context is no hindrance */
            kakeya_session *session = fake_session(s.engine, &so);
            s.file.at = 0;
            s.file.piece = pieces[i];
            if (i == 2) ok(kakeya_session_sync(session, s.later, 100, NULL, NULL, NULL, error)); /* not empty */
            memset(s.file.data + s.file.bytes, 0x77, 8); /* what stands behind is not read */
            ok(kakeya_session_load(session, read_buffer, &s.file, error));
            assert_int_equal(s.file.at, s.file.bytes);
            assert_timeline(session, s.now, s.n_now, "loaded");
            continue_for(session, NEW);
            assert_timeline(session, s.later, s.n_later, "continued");
            kakeya_session_close(session);
        }
        scene_close(&s);
    }
}

static void try_to_load(scene *s, kakeya_session *session, const char *what, size_t at) {
    kakeya_error e = {0};
    s->file.at = 0;
    size_t held = kakeya_session_kv_bytes(session).total;
    if (kakeya_session_load(session, read_buffer, &s->file, &e) == KAKEYA_OK)
        fail_msg("%s at byte %zu is accepted", what, at);
    if (!e.message[0] || strchr(e.message, '\n')) fail_msg("%s at byte %zu: no message", what, at);
    assert_timeline(session, s->later, PROMPT + 3, what);
    assert_int_equal(kakeya_session_kv_bytes(session).total, held);
}

static void test_every_byte_counts(void **state) {
    (void)state;
    static scene s;
    scene_open(&s, 20);
    kakeya_session_options so = bounded();
    kakeya_session *session = fake_session(s.engine, &so);
    ok(kakeya_session_sync(session, s.later, PROMPT + 3, NULL, NULL, NULL, error));
    size_t whole = s.file.bytes;
    for (size_t at = 0; at < whole; at++) {
        s.file.bytes = at;
        try_to_load(&s, session, "cut", at);
        s.file.bytes = whole;
        unsigned char flip = (unsigned char)(1u << (at % 8));
        s.file.data[at] ^= flip;
        try_to_load(&s, session, "flip", at);
        s.file.data[at] ^= flip;
    }
    /* the session has not noticed any of it */
    kakeya_session *fresh = fake_session(s.engine, &so);
    ok(kakeya_session_sync(fresh, s.later, PROMPT + 3, NULL, NULL, NULL, error));
    continue_for(fresh, NEW);
    continue_for(session, NEW);
    size_t n;
    const int32_t *expected = kakeya_session_tokens(fresh, &n);
    assert_timeline(session, expected, n, "after all refusals");
    kakeya_session_close(fresh);
    kakeya_session_close(session);
    scene_close(&s);
}

static void refuse(scene *s, kakeya_engine *engine, const kakeya_session_options *so, kakeya_status status,
                   const char *names) {
    kakeya_session *session = fake_session(engine, so);
    kakeya_error e = {0};
    s->file.at = 0;
    assert_int_equal(kakeya_session_load(session, read_buffer, &s->file, &e), status);
    if (!strstr(e.message, names)) fail_msg("\"%s\" does not name %s", e.message, names);
    kakeya_session_close(session);
}

static void test_of_another_session(void **state) {
    (void)state;
    static scene s;
    scene_open(&s, 20);
    kakeya_session_options so = bounded();
    so.window = 6;
    refuse(&s, s.engine, &so, KAKEYA_INVALID_ARGUMENT, "window");
    so = bounded();
    so.attention = KAKEYA_ATTENTION_NATIVE;
    refuse(&s, s.engine, &so, KAKEYA_INVALID_ARGUMENT, "attention");
    so = bounded();
    so.kv_format = KAKEYA_KV_BF16;
    refuse(&s, s.engine, &so, KAKEYA_INVALID_ARGUMENT, "kv_format");
    so = bounded();
    so.context_tokens = 79;
    refuse(&s, s.engine, &so, KAKEYA_CONTEXT_FULL, "79");
    fake_script script = fake_script_default();
    kakeya_engine *other = fake_engine(&script, (fake_engine_options){.f_theta = true, .vocab = FAKE_VOCAB + 1});
    so = bounded();
    refuse(&s, other, &so, KAKEYA_INVALID_ARGUMENT, "fingerprint");
    close_all(NULL, other, &script);
    scene_close(&s);
}

static void test_writers_and_backends_that_fail(void **state) {
    (void)state;
    static scene s;
    scene_open(&s, 20);
    kakeya_error e = {0};
    size_t whole = (size_t)kakeya_session_save_bytes(s.saved);
    for (size_t limit = 0; limit < whole; limit += 13) {
        s.file.bytes = 0;
        s.file.limit = limit;
        assert_int_equal(kakeya_session_save(s.saved, write_buffer, &s.file, &e), KAKEYA_IO);
    }
    s.file.bytes = 0;
    s.file.limit = sizeof s.file.data;
    s.script.fail_verb = FAKE_SNAPSHOT;
    s.script.fail_after = s.script.calls[FAKE_SNAPSHOT];
    assert_int_equal(kakeya_session_save(s.saved, write_buffer, &s.file, &e), KAKEYA_BACKEND);
    s.script.fail_after = -1;
    s.file.bytes = 0;
    ok(kakeya_session_save(s.saved, write_buffer, &s.file, error));
    static const int verbs[] = {FAKE_CREATE, FAKE_RESTORE};
    for (int i = 0; i < 2; i++) {
        kakeya_session_options so = bounded();
        kakeya_session *session = fake_session(s.engine, &so);
        ok(kakeya_session_sync(session, s.later, PROMPT + 3, NULL, NULL, NULL, error));
        s.script.fail_verb = verbs[i];
        s.script.fail_after = s.script.calls[verbs[i]];
        try_to_load(&s, session, "a failing backend", 0);
        s.script.fail_after = -1;
        kakeya_session_close(session);
    }
    scene_close(&s);
}

static void test_files(void **state) {
    (void)state;
    static scene s;
    scene_open(&s, 20);
    kakeya_error e = {0};
    const char *path = scratch_path("talk.kakeya");
    scratch_text("talk.kakeya", "an older file");
    ok(kakeya_session_save_file(s.saved, path, error));
    kakeya_session_options so = bounded();
    kakeya_session *session = fake_session(s.engine, &so);
    ok(kakeya_session_load_file(session, path, error));
    assert_timeline(session, s.later, s.n_later, "from the file");

    /* a failure leaves the file as it was, and nothing beside it */
    s.script.fail_verb = FAKE_SNAPSHOT;
    s.script.fail_after = s.script.calls[FAKE_SNAPSHOT];
    assert_int_equal(kakeya_session_save_file(s.saved, path, &e), KAKEYA_BACKEND);
    assert_non_null(strstr(e.message, "talk.kakeya"));
    s.script.fail_after = -1;
    ok(kakeya_session_load_file(session, path, error));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(scratch_directory), 0);
    assert_int_equal(mkdir(scratch_directory, 0700), 0);

    assert_int_equal(kakeya_session_load_file(session, path, &e), KAKEYA_IO);
    assert_non_null(strstr(e.message, "talk.kakeya"));
    assert_int_equal(kakeya_session_load_file(session, scratch_text("talk.kakeya", "KAKEYA"), &e), KAKEYA_FORMAT);
    assert_non_null(strstr(e.message, "talk.kakeya"));
    assert_int_equal(kakeya_session_load_file(session, scratch_directory, &e), KAKEYA_IO);
    assert_int_equal(kakeya_session_save_file(session, scratch_path("no/such/folder"), &e), KAKEYA_IO);
    assert_timeline(session, s.later, s.n_later, "after refusals");
    kakeya_session_close(session);
    scene_close(&s);
}

/* What versions 2 and 3 have saved is read still: they know two kinds of rows, and 2 has another checksum. */
static void test_older_version(void **state) {
    (void)state;
    static scene s;
    scene_open(&s, 20);
    kakeya_session_options so = bounded();
    kakeya_session *session = fake_session(s.engine, &so);
    size_t body = s.file.bytes - 8;
    for (unsigned char version = 0; version < 7; version++) {
        s.file.data[8] = version;
        hash_stream hash = HASH_STREAM_START;
        hash_stream_add(&hash, s.file.data, body);
        uint64_t checksum = version < 3 ? hash_stream_value(&hash) : XXH3_64bits(s.file.data, body);
        for (int i = 0; i < 8; i++) s.file.data[body + (size_t)i] = (unsigned char)(checksum >> (8 * i));
        s.file.at = 0;
        kakeya_error e = {0};
        kakeya_status status = kakeya_session_load(session, read_buffer, &s.file, &e);
        kakeya_status wanted = version >= 2 && version <= 4 ? KAKEYA_OK : KAKEYA_UNSUPPORTED;
        if (version == 5) wanted = KAKEYA_FORMAT; /* has images, which this one has not */
        assert_int_equal(status, wanted);
    }
    s.file.data[8] = 2;
    ok(kakeya_session_sync(session, s.later, PROMPT + 3, NULL, NULL, NULL, error));
    hash_stream hash = HASH_STREAM_START;
    hash_stream_add(&hash, s.file.data, body);
    uint64_t checksum = hash_stream_value(&hash);
    for (int i = 0; i < 8; i++) s.file.data[body + (size_t)i] = (unsigned char)(checksum >> (8 * i));
    for (size_t at = 9; at < body + 8; at += 7) {
        s.file.data[at] ^= 16;
        try_to_load(&s, session, "flip of version 2", at);
        s.file.data[at] ^= 16;
    }
    kakeya_session_close(session);
    scene_close(&s);
}

/* The checksum does not depend on the pieces. */
static void test_checksum(void **state) {
    (void)state;
    unsigned char data[1000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(random_uniform_at(1, i) * 256);
    for (size_t bytes = 0; bytes < 64; bytes++) {
        hash_stream whole = HASH_STREAM_START, pieces = HASH_STREAM_START;
        hash_stream_add(&whole, data, bytes);
        for (size_t at = 0, n; at < bytes; at += n) {
            n = 1 + (size_t)(random_uniform_at(bytes, at) * 11);
            if (n > bytes - at) n = bytes - at;
            hash_stream_add(&pieces, data + at, n);
            (void)hash_stream_value(&pieces); /* asking changes nothing */
        }
        assert_true(hash_stream_value(&whole) == hash_stream_value(&pieces));
        hash_stream_add(&pieces, "", 1); /* a NUL more is not the same */
        assert_true(hash_stream_value(&whole) != hash_stream_value(&pieces));
    }
}

/* ------------------------------------------------------------------------------------------- across processes */

static kakeya_session *open_demo(kakeya_attention attention, kakeya_precision precision, kakeya_engine **engine) {
    kakeya_engine_options eo;
    KAKEYA_INIT(&eo);
    eo.model = KAKEYA_MODELS "/demo";
    eo.threads = 1;
    eo.precision = precision;
    ok(kakeya_engine_open(&eo, engine, error));
    kakeya_session_options so;
    KAKEYA_INIT(&so);
    so.attention = attention;
    so.context_tokens = 700;
    return fake_session(*engine, &so);
}

/* A prompt, an answer, a second prompt behind it, a second answer; saved before `break_at`. */
static void turns(kakeya_session *session, int from, int break_at, const char *path) {
    int32_t prompt[340];
    size_t n;
    for (int turn = from; turn < 4; turn++) {
        if (turn == break_at) ok(kakeya_session_save_file(session, path, error));
        if (turn % 2) {
            continue_for(session, 25);
            continue;
        }
        const int32_t *tokens = kakeya_session_tokens(session, &n);
        if (n) memcpy(prompt, tokens, n * sizeof *tokens);
        size_t more = turn ? 9 : 300;
        fake_prompt(prompt + n, more, (uint64_t)turn + 3, 8192);
        ok(kakeya_session_sync(session, prompt, n + more, NULL, NULL, NULL, error));
    }
}

static void test_across_processes(void **state) {
    (void)state;
    for (int attention = 0; kakeya_attention_name((kakeya_attention)attention); attention++) {
        for (int break_at = 1; break_at < 4; break_at++) {
            if (sweep_short() && break_at != attention % 3 + 1) continue;
            kakeya_precision precision = break_at == 2 ? KAKEYA_PRECISION_BF16 : KAKEYA_PRECISION_F32;
            const char *path = scratch_path("saved.kakeya"), *ids = scratch_path("ids");
            fflush(NULL);
            pid_t child = fork();
            assert_true(child >= 0);
            if (child == 0) { /* saves, and goes on */
                kakeya_engine *engine = NULL;
                size_t n;
                kakeya_session *session = open_demo((kakeya_attention)attention, precision, &engine);
                turns(session, 0, break_at, path);
                const int32_t *tokens = kakeya_session_tokens(session, &n);
                scratch_write("ids", tokens, n * sizeof *tokens);
                _exit(0);
            }
            int status = -1;
            assert_int_equal(waitpid(child, &status, 0), child);
            assert_int_equal(status, 0);
            kakeya_engine *engine = NULL;
            kakeya_session *session = open_demo((kakeya_attention)attention, precision, &engine);
            ok(kakeya_session_load_file(session, path, error));
            turns(session, break_at, -1, NULL);
            size_t bytes, n;
            char *expected = scratch_read(ids, &bytes);
            (void)kakeya_session_tokens(session, &n);
            assert_int_equal(n * sizeof(int32_t), bytes);
            assert_timeline(session, (const int32_t *)(void *)expected, n,
                            kakeya_attention_name((kakeya_attention)attention));
            free(expected);
            kakeya_session_close(session);
            kakeya_engine_close(engine);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checksum),
        cmocka_unit_test(test_pieces_of_any_size),
        cmocka_unit_test(test_every_byte_counts),
        cmocka_unit_test(test_older_version),
        cmocka_unit_test(test_of_another_session),
        cmocka_unit_test(test_writers_and_backends_that_fail),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_across_processes),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
