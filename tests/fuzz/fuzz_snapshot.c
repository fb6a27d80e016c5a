/* Session snapshots that somebody else wrote: a real snapshot with edited bytes or a cut, under a checksum that fits.
 * It is refused with a message, or the session goes on decoding. The model is a small one, so that inputs are many.
 * Needs tests/data/golden below the working directory. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/hash.h"
#include "session/engine.h"
#include "session/session.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CHECKSUM_BYTES = 8, F_THETA_RANK = 8, HEAD_BYTES = 512, IN_HEAD = 0x80, DECODES = 0xF8 };

static const struct {
    kakeya_attention attention;
    int sink, window;
} policies[] = {
    {KAKEYA_ATTENTION_NATIVE, 1, 4}, {KAKEYA_ATTENTION_SINK_WINDOW, 1, 4}, {KAKEYA_ATTENTION_RESTORED, 1, 4}};
enum { POLICIES = sizeof policies / sizeof *policies };

static kakeya_engine *engine;
static kakeya_session *session[POLICIES];
static void *snapshot[POLICIES];
static size_t snapshot_bytes[POLICIES];

static void require(kakeya_status status, const kakeya_error *error) {
    if (status == KAKEYA_OK) return;
    fprintf(stderr, "fuzz_snapshot: %s\n", error->message);
    abort();
}

static void open_engine(void) {
    kakeya_error error = {0};
    require(engine_create(0, &engine, &error), &error);
    mem_account *account = &engine->account;
    engine_parts parts = {.ops = backend_find("cpu", NULL), .precision = KAKEYA_PRECISION_F32, .threads = 1};
    require(language_model_open("tests/data/golden/gemma4-tiny-dense", account, &parts.verifier, &error), &error);
    const model_config *verifier = &parts.verifier->config;
    require(block_drafter_model_open("tests/data/golden/dflash-tiny", verifier, account, &parts.drafter, &error),
            &error);
    require(restoration_model_synthesize(verifier, &parts.drafter->config, F_THETA_RANK, F_THETA_RANK, false, account,
                                         &parts.f_theta, &error),
            &error);
    require(engine_complete(engine, &parts, &error), &error);
}

static void open_sessions(void) {
    static const int32_t prompt[] = {2, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, 130, 140, 150, 160, 170};
    kakeya_error error = {0};
    for (int i = 0; i < POLICIES; i++) {
        kakeya_session_options options;
        KAKEYA_INIT(&options);
        options.context_tokens = 32;
        options.attention = policies[i].attention;
        options.sink = policies[i].sink ? policies[i].sink : KAKEYA_NO_SINK;
        options.window = policies[i].window;
        options.draft_window = 8;
        kakeya_generate_options answer;
        KAKEYA_INIT(&answer);
        answer.max_tokens = 6;
        answer.ignore_stop_tokens = true;
        require(kakeya_session_open(engine, &options, &session[i], &error), &error);
        require(kakeya_session_sync(session[i], prompt, sizeof prompt / sizeof prompt[0], NULL, NULL, NULL, &error),
                &error);
        require(kakeya_session_generate(session[i], &answer, NULL, &error), &error);
        require(session_to_memory(session[i], &snapshot[i], &snapshot_bytes[i], &error), &error);
    }
}

/* Input: policy, and whether to go on decoding, which takes most of the time; a cut (2 bytes, 0: none); edits of
 * 4 bytes: offset (3, from IN_HEAD on near the beginning, where most of what decides is), value to be combined by
 * exclusive or. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!engine) {
        open_engine();
        open_sessions();
    }
    if (size < 3) return 0;
    int policy = data[0] % POLICIES;
    size_t bytes = snapshot_bytes[policy], cut = data[1] | (size_t)data[2] << 8;
    unsigned char *edited = malloc(bytes);
    if (!edited) return 0;
    memcpy(edited, snapshot[policy], bytes);
    for (size_t at = 3; at + 4 <= size; at += 4) {
        size_t offset = data[at] | (size_t)data[at + 1] << 8 | (size_t)data[at + 2] << 16;
        edited[offset % (data[at + 2] >= IN_HEAD && bytes > HEAD_BYTES ? HEAD_BYTES : bytes)] ^= data[at + 3];
    }
    bytes -= cut % (bytes - CHECKSUM_BYTES);
    bool old = edited[8] == 2; /* the version */
    uint64_t checksum;
    if (old) {
        hash_stream hash = HASH_STREAM_START;
        hash_stream_add(&hash, edited, bytes - CHECKSUM_BYTES);
        checksum = hash_stream_value(&hash);
    } else {
        checksum = XXH3_64bits(edited, bytes - CHECKSUM_BYTES);
    }
    for (int i = 0; i < CHECKSUM_BYTES; i++)
        edited[bytes - CHECKSUM_BYTES + (size_t)i] = (unsigned char)(checksum >> (8 * i));

    kakeya_error error = {0};
    if (session_from_memory(session[policy], edited, bytes, &error) == KAKEYA_OK) {
        kakeya_generate_options answer;
        KAKEYA_INIT(&answer);
        answer.max_tokens = 2;
        answer.mode = KAKEYA_MODE_SPECULATIVE;
        /* K/V of any value may lead to logits that are no numbers: an error then, never more */
        if (data[0] >= DECODES && kakeya_session_generate(session[policy], &answer, NULL, &error) != KAKEYA_OK &&
            !error.message[0])
            abort();
    } else if (!error.message[0]) {
        abort();
    }
    free(edited);
    return 0;
}
