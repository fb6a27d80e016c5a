/* Protects: under a limit on weights every number is what it is with all weights in memory (logits on bits, tokens in
 * every mode, policy and batch, in every form in which experts can lie in files), the limit is kept, one that is too
 * small is refused with what is needed, and a read that fails ends the answer with one error and nothing else: the next
 * one is right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/platform.h"
#include "base/read_ring.h"
#include "convert/convert.h"
#include "kakeya_study.h"
#include "scratch.h"
#include "session/engine.h"
#include "sweep.h"

enum { TOKENS = 90, PROMPT = 60, ANSWER = 24, BATCH = 3, MODES = 4, POLICIES = 3 };

/* From the how-manieth read on reads fail; negative: none does. Other programs' reads are none of ours. */
static int reads_left = -1, reads_failing;
/* Whether threads read, as where the system has no other way. */
static bool threads_alone;

static bool read_fails(void) {
    if (__atomic_load_n(&reads_left, __ATOMIC_RELAXED) < 0) return false;
    if (__atomic_fetch_sub(&reads_left, 1, __ATOMIC_RELAXED) > 0) return false;
    __atomic_store_n(&reads_left, 0, __ATOMIC_RELAXED);
    errno = reads_failing;
    return true;
}

ssize_t __real_pread(int fd, void *to, size_t bytes, off_t offset);
ssize_t __wrap_pread(int fd, void *to, size_t bytes, off_t offset);
ssize_t __wrap_pread(int fd, void *to, size_t bytes, off_t offset) {
    if (!read_fails()) return __real_pread(fd, to, bytes, offset);
    return reads_failing ? -1 : 0; /* the file ends */
}

ssize_t __real_preadv(int fd, const struct iovec *to, int n, off_t offset);
ssize_t __wrap_preadv(int fd, const struct iovec *to, int n, off_t offset);
ssize_t __wrap_preadv(int fd, const struct iovec *to, int n, off_t offset) {
    if (!read_fails()) return __real_preadv(fd, to, n, offset);
    return reads_failing ? -1 : 0;
}

read_ring *__real_read_ring_create(void);
read_ring *__wrap_read_ring_create(void);
read_ring *__wrap_read_ring_create(void) { return threads_alone ? NULL : __real_read_ring_create(); }

bool __real_read_ring_take(read_ring *ring, size_t *which, int *result);
bool __wrap_read_ring_take(read_ring *ring, size_t *which, int *result);
bool __wrap_read_ring_take(read_ring *ring, size_t *which, int *result) {
    if (!__real_read_ring_take(ring, which, result)) return false;
    if (read_fails()) *result = -reads_failing;
    return true;
}

static kakeya_error error;

static kakeya_status open_with(const char *model, size_t limit, bool alone, kakeya_engine **out) {
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = model;
    options.backend = "cpu";
    options.threads = 2;
    options.weights_limit_bytes = limit;
    if (alone) options.drafter = options.f_theta = "none";
    return kakeya_engine_open(&options, out, &error);
}

/* The limit from which on a model runs, which its refusal says. */
static size_t needed_by(const char *model, bool alone) {
    kakeya_engine *engine;
    assert_refused(open_with(model, 1000, alone, &engine), KAKEYA_INVALID_ARGUMENT, "1000 bytes are not enough");
    const char *says = strstr(error.message, "not enough: ");
    assert_non_null(says);
    return strtoul(says + strlen("not enough: "), NULL, 10);
}

/* What an engine gives. */
typedef struct numbers {
    float *logits; /* [TOKENS][vocab] */
    size_t logit_bytes;
    int32_t token[MODES][POLICIES][ANSWER], batch[BATCH][ANSWER];
} numbers;

static void some_tokens(const kakeya_engine *engine, int seed, int32_t tokens[TOKENS]) {
    const int vocab = kakeya_engine_vocab_size(engine);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (7 + seed * 131 + i * i * 37) % (vocab - 10) + 5;
}

static bool has_policy(const kakeya_engine *engine, int policy) {
    return policy != KAKEYA_ATTENTION_RESTORED || kakeya_engine_has_f_theta(engine);
}

static bool has_mode(const kakeya_engine *engine, int mode) {
    return mode != KAKEYA_MODE_SPECULATIVE || kakeya_engine_has_drafter(engine);
}

static kakeya_session *open_session(kakeya_engine *engine, int policy) {
    kakeya_session_options options;
    kakeya_session *session;
    KAKEYA_INIT(&options);
    options.context_tokens = TOKENS + ANSWER + 32;
    options.attention = (kakeya_attention)policy;
    options.window = 32;
    assert_ok(kakeya_session_open(engine, &options, &session, &error));
    return session;
}

static kakeya_generate_options answer_options(int mode) {
    kakeya_generate_options options;
    KAKEYA_INIT(&options);
    options.mode = (kakeya_mode)mode;
    options.max_tokens = ANSWER;
    options.ignore_stop_tokens = true;
    return options;
}

static void take_answer(const kakeya_session *session, int32_t out[ANSWER]) {
    size_t n;
    const int32_t *tokens = kakeya_session_tokens(session, &n);
    assert_int_equal(n, PROMPT + ANSWER);
    memcpy(out, tokens + PROMPT, ANSWER * sizeof *out);
}

static void run_batch(kakeya_engine *engine, numbers *out) {
    kakeya_session *session[BATCH];
    kakeya_request *request[BATCH];
    for (int i = 0; i < BATCH; i++) {
        int32_t tokens[TOKENS];
        some_tokens(engine, i, tokens);
        session[i] = open_session(engine, KAKEYA_ATTENTION_NATIVE);
        kakeya_generate_options answer = answer_options(KAKEYA_MODE_AUTO);
        kakeya_request_options options;
        KAKEYA_INIT(&options);
        options.tokens = tokens;
        options.n_tokens = PROMPT;
        options.generate = &answer;
        assert_ok(kakeya_session_submit(session[i], &options, &request[i], &error));
    }
    for (int i = 0; i < BATCH; i++) {
        assert_ok(kakeya_request_wait(request[i], NULL, &error));
        take_answer(session[i], out->batch[i]);
        kakeya_session_close(session[i]);
    }
}

static numbers numbers_of(kakeya_engine *engine) {
    numbers out = {0};
    int32_t tokens[TOKENS];
    some_tokens(engine, 0, tokens);
    out.logit_bytes = TOKENS * (size_t)kakeya_engine_vocab_size(engine) * sizeof(float);
    out.logits = malloc(out.logit_bytes);
    kakeya_session *session = open_session(engine, KAKEYA_ATTENTION_NATIVE);
    kakeya_score_options score;
    KAKEYA_INIT(&score);
    score.prompt_length = PROMPT;
    score.logits = out.logits;
    assert_ok(kakeya_session_score(session, tokens, TOKENS, &score, &error));
    kakeya_session_close(session);
    for (int mode = 0; mode < MODES; mode++) {
        for (int policy = 0; policy < POLICIES; policy++) {
            if (!has_policy(engine, policy) || !has_mode(engine, mode)) continue;
            if (sweep_short() && mode != policy) continue;
            session = open_session(engine, policy);
            kakeya_generate_options options = answer_options(mode);
            assert_ok(kakeya_session_sync(session, tokens, PROMPT, NULL, NULL, NULL, &error));
            assert_ok(kakeya_session_generate(session, &options, NULL, &error));
            take_answer(session, out.token[mode][policy]);
            kakeya_session_close(session);
        }
    }
    run_batch(engine, &out);
    return out;
}

static void assert_same(const numbers *a, const numbers *b) {
    assert_int_equal(a->logit_bytes, b->logit_bytes);
    assert_memory_equal(a->logits, b->logits, a->logit_bytes);
    assert_memory_equal(a->token, b->token, sizeof a->token);
    assert_memory_equal(a->batch, b->batch, sizeof a->batch);
}

/* With three limits: the smallest, one under which a third of the experts or so has a place, and all have one. */
static void check_model(const char *model) {
    kakeya_engine *engine;
    assert_ok(open_with(model, 0, false, &engine));
    numbers resident = numbers_of(engine);
    kakeya_weights weights = kakeya_engine_weights(engine);
    assert_int_equal(weights.limit, 0);
    assert_int_equal(weights.slots, 0);
    kakeya_engine_close(engine);

    const size_t needed = needed_by(model, false);
    assert_ok(open_with(model, needed, false, &engine));
    weights = kakeya_engine_weights(engine);
    const size_t all = weights.resident + weights.experts * weights.slot_bytes;
    kakeya_engine_close(engine);
    const size_t limits[] = {needed, needed + (all - needed) / 3, all + 12345};
    for (size_t i = 0; i < 3; i++) {
        assert_ok(open_with(model, limits[i], false, &engine));
        numbers bounded = numbers_of(engine);
        assert_same(&resident, &bounded);
        free(bounded.logits);
        weights = kakeya_engine_weights(engine);
        assert_int_equal(weights.limit, limits[i]);
        assert_true(weights.resident + weights.slots * weights.slot_bytes <= limits[i]);
        assert_true(kakeya_engine_memory(engine, KAKEYA_MEMORY_WEIGHTS) <= limits[i]);
        assert_true(weights.wanted > weights.found && weights.bytes_read > 0);
        assert_int_equal(weights.failures, 0);
        if (i == 2) { /* each was read once */
            assert_int_equal(weights.slots, weights.experts);
            assert_true(weights.wanted - weights.found <= weights.experts);
        }
        kakeya_engine_close(engine);
    }
    free(resident.logits);
}

static const char *converted(const char *name, convert_target to) {
    convert_report report;
    const convert_options options = {.to = to, .threads = 2};
    const char *path = scratch_path(name);
    assert_ok(convert_model(KAKEYA_MODELS "/demo", path, &options, &report, &error));
    return path;
}

static void test_directory(void **state) {
    (void)state;
    check_model(KAKEYA_MODELS "/demo");
    check_model(KAKEYA_TEST_DATA "/golden/gemma4-tiny-moe");
}

/* Experts as the file has them, where what every token needs is in tiles; and in tiles from a file. */
static void test_gguf(void **state) {
    (void)state;
    char path[512], tiles[600];
    snprintf(path, sizeof path, "%s", converted("demo.gguf", CONVERT_Q4_0));
    check_model(path);
    snprintf(tiles, sizeof tiles, "%s.tiles", path);
    convert_report report;
    const convert_options options = {.to = CONVERT_TILES, .threads = 2};
    assert_ok(convert_model(path, tiles, &options, &report, &error));
    check_model(path);
}

/* Codes, scales and biases lie apart. */
static void test_groups(void **state) {
    (void)state;
    check_model(converted("demo-affine4", CONVERT_AFFINE4));
}

static void test_refusals(void **state) {
    (void)state;
    kakeya_engine *engine = NULL;
    assert_refused(open_with(KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense", 1 << 20, true, &engine), KAKEYA_UNSUPPORTED,
                   "no experts");
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    kakeya_study_options study;
    KAKEYA_INIT(&study);
    study.synthetic = "26b-a4b:layers=1";
    options.study = &study;
    options.backend = "cpu";
    options.weights_limit_bytes = (size_t)8 << 30;
    assert_refused(kakeya_engine_open(&options, &engine, &error), KAKEYA_UNSUPPORTED, "synthetic weights have none");
    const size_t needed = needed_by(KAKEYA_MODELS "/demo", true);
    assert_refused(open_with(KAKEYA_MODELS "/demo", needed - 1, true, &engine), KAKEYA_INVALID_ARGUMENT, "are needed");
    assert_ok(open_with(KAKEYA_MODELS "/demo", needed, true, &engine));
    kakeya_engine_close(engine);
    /* beside drafter and f_theta, whose files are mapped */
    assert_true(needed_by(KAKEYA_MODELS "/demo", false) > needed + 1000000);
    assert_ok(open_with(KAKEYA_MODELS "/demo", KAKEYA_WEIGHTS_AUTO, true, &engine));
    kakeya_weights weights = kakeya_engine_weights(engine);
    assert_int_equal(weights.slots, weights.experts);
    kakeya_engine_close(engine);
}

/* Answers read more than they miss where less than half of the experts have room: some for layers that then choose
 * others.
 */
static void test_ahead(void **state) {
    (void)state;
    for (int part = 3; part <= 12; part += 9) { /* of 16 */
        kakeya_engine *engine;
        const size_t needed = needed_by(KAKEYA_MODELS "/demo", true);
        assert_ok(open_with(KAKEYA_MODELS "/demo", needed, true, &engine));
        kakeya_weights before = kakeya_engine_weights(engine);
        kakeya_engine_close(engine);
        assert_ok(open_with(KAKEYA_MODELS "/demo", needed + before.experts * before.slot_bytes / 16 * (size_t)part,
                            true, &engine));
        kakeya_session *session = open_session(engine, KAKEYA_ATTENTION_NATIVE);
        kakeya_generate_options options = answer_options(KAKEYA_MODE_AR);
        int32_t tokens[TOKENS];
        some_tokens(engine, 0, tokens);
        assert_ok(kakeya_session_sync(session, tokens, PROMPT, NULL, NULL, NULL, &error));
        before = kakeya_engine_weights(engine);
        assert_ok(kakeya_session_generate(session, &options, NULL, &error));
        const kakeya_weights after = kakeya_engine_weights(engine);
        const uint64_t missed = after.wanted - before.wanted - (after.found - before.found);
        assert_int_equal(after.bytes_read - before.bytes_read > missed * after.slot_bytes, part == 3);
        kakeya_session_close(session);
        kakeya_engine_close(engine);
    }
}

/* A prompt reads no expert twice, and rows of a batch share what they read, though hardly any expert stays in memory.
 */
static void test_shared_reads(void **state) {
    (void)state;
    kakeya_engine *engine;
    int32_t tokens[TOKENS];
    numbers out = {0};
    assert_ok(open_with(KAKEYA_MODELS "/demo", needed_by(KAKEYA_MODELS "/demo", true), true, &engine));
    some_tokens(engine, 0, tokens);
    kakeya_session *session = open_session(engine, KAKEYA_ATTENTION_NATIVE);
    const kakeya_weights before = kakeya_engine_weights(engine);
    assert_ok(kakeya_session_sync(session, tokens, TOKENS, NULL, NULL, NULL, &error));
    const kakeya_weights after = kakeya_engine_weights(engine);
    assert_true(after.slots * 4 < after.experts);
    assert_true(after.wanted - before.wanted <= after.experts);
    assert_true(after.bytes_read - before.bytes_read <= after.experts * after.slot_bytes);
    kakeya_session_close(session);

    session = open_session(engine, KAKEYA_ATTENTION_NATIVE);
    kakeya_generate_options options = answer_options(KAKEYA_MODE_AUTO);
    assert_ok(kakeya_session_sync(session, tokens, PROMPT, NULL, NULL, NULL, &error));
    assert_ok(kakeya_session_generate(session, &options, NULL, &error));
    const kakeya_weights alone = kakeya_engine_weights(engine);
    kakeya_session_close(session);
    run_batch(engine, &out);
    const kakeya_weights together = kakeya_engine_weights(engine);
    assert_true(together.wanted - alone.wanted < BATCH * (alone.wanted - after.wanted));
    kakeya_engine_close(engine);
}

/* The largest forwards of a prompt, in which every expert is read once: with a limit of which their workspace is a
 * small part. The last row's logits are those of shorter forwards of a model that is all there. */
static void test_long_forwards(void **state) {
    (void)state;
    enum { LONG = 1500 };
    int32_t *tokens = malloc(LONG * sizeof *tokens);
    float *logits[2];
    kakeya_weights weights = {0};
    for (int bounded = 0; bounded < 2; bounded++) {
        kakeya_engine *engine;
        assert_ok(open_with(KAKEYA_MODELS "/demo", bounded ? (size_t)1 << 30 : 0, true, &engine));
        const size_t vocab = (size_t)kakeya_engine_vocab_size(engine);
        for (int i = 0; i < LONG; i++) tokens[i] = (int32_t)(5 + (size_t)i * 7919 % (vocab - 5));
        kakeya_session *session = NULL;
        kakeya_session_options options;
        KAKEYA_INIT(&options);
        options.context_tokens = LONG + 1;
        assert_ok(kakeya_session_open(engine, &options, &session, &error));
        const size_t workspace = kakeya_engine_memory(engine, KAKEYA_MEMORY_WORKSPACE);
        kakeya_score_options score;
        KAKEYA_INIT(&score);
        score.prompt_length = LONG - 1;
        logits[bounded] = score.logits = malloc(LONG * vocab * sizeof *score.logits);
        assert_ok(kakeya_session_sync(session, tokens, LONG - 1, NULL, NULL, NULL, &error));
        weights = kakeya_engine_weights(engine);
        assert_int_equal(kakeya_engine_memory(engine, KAKEYA_MEMORY_WORKSPACE) > workspace / 2 * 3, bounded);
        assert_ok(kakeya_session_truncate(session, 0, &error));
        assert_ok(kakeya_session_score(session, tokens, LONG, &score, &error));
        if (bounded) assert_memory_equal(logits[0], logits[1], LONG * vocab * sizeof **logits);
        kakeya_session_close(session);
        kakeya_engine_close(engine);
    }
    assert_true(weights.wanted > 0 && weights.wanted <= weights.experts);
    free(logits[0]);
    free(logits[1]);
    free(tokens);
}

static kakeya_status answer(kakeya_session *session, const int32_t *tokens) {
    kakeya_generate_options options = answer_options(KAKEYA_MODE_AUTO);
    kakeya_status status = kakeya_session_sync(session, tokens, PROMPT, NULL, NULL, NULL, &error);
    return status ? status : kakeya_session_generate(session, &options, NULL, &error);
}

/* Reads fail while a prompt is computed, and in the middle of answers, in sessions of every policy. */
static void test_faults(void **state) {
    (void)state;
    kakeya_engine *engine;
    int32_t tokens[TOKENS], right[ANSWER], found[ANSWER];
    const size_t needed = needed_by(KAKEYA_MODELS "/demo", false);
    assert_ok(open_with(KAKEYA_MODELS "/demo", needed, false, &engine));
    some_tokens(engine, 0, tokens);
    static const int numbers_of_errors[] = {EIO, 0};
    int failed = 0;
    for (int policy = 0; policy < POLICIES; policy++) {
        kakeya_session *session = open_session(engine, policy);
        assert_ok(answer(session, tokens));
        take_answer(session, right);
        kakeya_session_close(session);
        session = open_session(engine, policy);
        for (int from = 0; from < 2400; from += sweep_short() ? 599 : 97) {
            reads_failing = numbers_of_errors[from % 2];
            __atomic_store_n(&reads_left, from, __ATOMIC_RELAXED);
            kakeya_status status = answer(session, tokens);
            __atomic_store_n(&reads_left, -1, __ATOMIC_RELAXED);
            if (status) {
                failed++;
                assert_refused(status, KAKEYA_IO, reads_failing ? "Input/output error" : "the file ends before them");
                assert_non_null(strstr(error.message, "safetensors"));
                kakeya_weights weights = kakeya_engine_weights(engine);
                assert_true(weights.failing && weights.failures >= (uint64_t)failed);
            }
            assert_ok(kakeya_session_truncate(session, 0, &error));
            assert_ok(answer(session, tokens));
            take_answer(session, found);
            assert_memory_equal(found, right, sizeof right);
            assert_false(kakeya_engine_weights(engine).failing);
            assert_ok(kakeya_session_truncate(session, 0, &error));
        }
        kakeya_session_close(session);
    }
    assert_true(failed >= 3);
    kakeya_engine_close(engine);
}

typedef enum damage { CUT, TOUCHED, OTHER_BYTES, DAMAGES } damage;

static void set_times(const char *path, struct timespec modified) {
    const struct timespec times[2] = {modified, modified};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* In place, as a copy over it does. */
static void write_over(const char *path, const char *data, size_t bytes, struct timespec modified) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    set_times(path, modified);
}

static void damage_file(const char *path, damage how, const char *data, size_t bytes, struct timespec modified) {
    if (how == CUT) assert_int_equal(truncate(path, (off_t)bytes / 2), 0);
    if (how == TOUCHED) set_times(path, (struct timespec){.tv_sec = 1000000000});
    if (how != OTHER_BYTES) return;
    char *other = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) other[i] = (char)(data[i] ^ (i % 64 == 0));
    write_over(path, other, bytes, modified);
    free(other);
}

/* A file that is cut or written while it is in use, and is as it was some time later. Where its times say nothing,
 * checksums do. */
static void check_damage(const char *path, damage how) {
    kakeya_engine *engine;
    struct stat about;
    size_t bytes;
    int32_t tokens[TOKENS], right[ANSWER], found[ANSWER];
    char *data = scratch_read(path, &bytes);
    assert_int_equal(stat(path, &about), 0);
    assert_ok(open_with(path, needed_by(path, true), true, &engine));
    some_tokens(engine, 0, tokens);
    kakeya_session *session = open_session(engine, KAKEYA_ATTENTION_NATIVE);
    assert_ok(answer(session, tokens));
    take_answer(session, right);
    assert_ok(kakeya_session_truncate(session, 0, &error));
    damage_file(path, how, data, bytes, platform_modified(&about));
    for (int i = 0; i < 2; i++) {
        assert_refused(answer(session, tokens), KAKEYA_IO, "changed.gguf");
        if (how == OTHER_BYTES) assert_non_null(strstr(error.message, "checksum"));
        assert_true(kakeya_engine_weights(engine).failing);
    }
    write_over(path, data, bytes, platform_modified(&about));
    assert_ok(kakeya_session_truncate(session, 0, &error));
    assert_ok(answer(session, tokens));
    take_answer(session, found);
    assert_memory_equal(found, right, sizeof right);
    assert_false(kakeya_engine_weights(engine).failing);
    kakeya_session_close(session);
    kakeya_engine_close(engine);
    free(data);
}

/* A file of tiles has checksums of every expert: no byte is taken that was not made by the conversion, even at the
 * first read, and a copy of the file does as well as the file, whatever its times. */
static void test_changed_tiles(void **state) {
    (void)state;
    char path[512], tiles[600];
    convert_report report;
    kakeya_engine *engine;
    struct stat about;
    size_t bytes;
    int32_t tokens[TOKENS], right[ANSWER], found[ANSWER];
    const convert_options options = {.to = CONVERT_TILES, .threads = 2};
    snprintf(path, sizeof path, "%s", converted("hashed.gguf", CONVERT_Q4_0));
    snprintf(tiles, sizeof tiles, "%s.tiles", path);
    assert_ok(convert_model(path, tiles, &options, &report, &error));
    char *data = scratch_read(tiles, &bytes);
    assert_int_equal(stat(tiles, &about), 0);
    assert_ok(open_with(path, 0, true, &engine));
    some_tokens(engine, 0, tokens);
    kakeya_session *session = open_session(engine, KAKEYA_ATTENTION_NATIVE);
    assert_ok(answer(session, tokens));
    take_answer(session, right);
    kakeya_session_close(session);
    kakeya_engine_close(engine);

    assert_ok(open_with(path, needed_by(path, true), true, &engine));
    session = open_session(engine, KAKEYA_ATTENTION_NATIVE);
    damage_file(tiles, OTHER_BYTES, data, bytes, platform_modified(&about));
    assert_refused(answer(session, tokens), KAKEYA_IO, "hashed.gguf.tiles");
    assert_non_null(strstr(error.message, "checksum"));
    write_over(tiles, data, bytes, (struct timespec){.tv_sec = 1000000000});
    assert_ok(kakeya_session_truncate(session, 0, &error));
    assert_ok(answer(session, tokens));
    take_answer(session, found);
    assert_memory_equal(found, right, sizeof right);
    kakeya_session_close(session);
    kakeya_engine_close(engine);
    free(data);
}

static void test_changed_file(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", converted("changed.gguf", CONVERT_Q8_0));
    for (int how = 0; how < DAMAGES; how++) {
        check_damage(path, (damage)how);
        threads_alone = true;
        check_damage(path, (damage)how);
        threads_alone = false;
    }
}

static void test_threads(void **state) {
    threads_alone = true;
    check_model(KAKEYA_TEST_DATA "/golden/gemma4-tiny-moe");
    test_faults(state);
    threads_alone = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_directory),     cmocka_unit_test(test_gguf),          cmocka_unit_test(test_groups),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_faults),        cmocka_unit_test(test_changed_file),
        cmocka_unit_test(test_changed_tiles), cmocka_unit_test(test_shared_reads),  cmocka_unit_test(test_ahead),
        cmocka_unit_test(test_threads),       cmocka_unit_test(test_long_forwards),
    };
    return cmocka_run_group_tests_name("weights_limit", tests, scratch_setup, scratch_teardown);
}
