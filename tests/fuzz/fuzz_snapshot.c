/* Session snapshots that somebody else wrote: a real snapshot with edited bytes or a cut, under a checksum that fits.
 * It is refused with a message, or the session goes on decoding. Needs models/demo below the working directory. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/hash.h"
#include "kakeya.h"

enum { CHECKSUM_BYTES = 8, POLICIES = 2 };

static kakeya_engine *engine;
static kakeya_session *session[POLICIES];
static void *snapshot[POLICIES];
static size_t snapshot_bytes[POLICIES];

static void require(kakeya_status status, const kakeya_error *error) {
    if (status == KAKEYA_OK) return;
    fprintf(stderr, "fuzz_snapshot: %s\n", error->message);
    abort();
}

static void open_sessions(void) {
    static const int32_t prompt[] = {2, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1100};
    kakeya_error error = {0};
    kakeya_engine_options model;
    kakeya_engine_options_init(&model);
    model.model = "models/demo";
    model.threads = 1;
    require(kakeya_engine_open(&model, &engine, &error), &error);
    for (int i = 0; i < POLICIES; i++) {
        kakeya_session_options options;
        kakeya_session_options_init(&options);
        options.context_tokens = 32;
        options.attention = i ? KAKEYA_ATTENTION_RESTORED : KAKEYA_ATTENTION_NATIVE;
        options.sink = 1;
        options.window = 4;
        options.draft_window = 8;
        kakeya_generate_options answer;
        kakeya_generate_options_init(&answer);
        answer.max_tokens = 6;
        answer.ignore_stop_tokens = true;
        require(kakeya_session_open(engine, &options, &session[i], &error), &error);
        require(kakeya_session_sync(session[i], prompt, sizeof prompt / sizeof prompt[0], NULL, NULL, NULL, &error),
                &error);
        require(kakeya_session_generate(session[i], &answer, NULL, &error), &error);
        require(kakeya_session_snapshot(session[i], &snapshot[i], &snapshot_bytes[i], &error), &error);
    }
}

/* Input: policy, cut (2 bytes, 0: none), then edits of 4 bytes: offset (3), value to be combined by exclusive or. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!engine) open_sessions();
    if (size < 3) return 0;
    int policy = data[0] % POLICIES;
    size_t bytes = snapshot_bytes[policy], cut = data[1] | (size_t)data[2] << 8;
    unsigned char *edited = malloc(bytes);
    if (!edited) return 0;
    memcpy(edited, snapshot[policy], bytes);
    for (size_t at = 3; at + 4 <= size; at += 4) {
        size_t offset = data[at] | (size_t)data[at + 1] << 8 | (size_t)data[at + 2] << 16;
        edited[offset % bytes] ^= data[at + 3];
    }
    bytes -= cut % (bytes - CHECKSUM_BYTES);
    hash_stream hash = HASH_STREAM_START;
    hash_stream_add(&hash, edited, bytes - CHECKSUM_BYTES);
    bool old = edited[8] == 2; /* the version */
    uint64_t checksum = old ? hash_stream_value(&hash) : XXH3_64bits(edited, bytes - CHECKSUM_BYTES);
    for (int i = 0; i < CHECKSUM_BYTES; i++)
        edited[bytes - CHECKSUM_BYTES + (size_t)i] = (unsigned char)(checksum >> (8 * i));

    kakeya_error error = {0};
    if (kakeya_session_restore(session[policy], edited, bytes, &error) == KAKEYA_OK) {
        kakeya_generate_options answer;
        kakeya_generate_options_init(&answer);
        answer.max_tokens = 2;
        answer.mode = KAKEYA_MODE_SPECULATIVE;
        /* K/V of any value may lead to logits that are no numbers: an error then, never more */
        if (kakeya_session_generate(session[policy], &answer, NULL, &error) != KAKEYA_OK && !error.message[0]) abort();
    } else if (!error.message[0]) {
        abort();
    }
    free(edited);
    return 0;
}
