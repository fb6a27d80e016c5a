#include "train/answers.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/hash.h"

struct train_answers {
    kakeya_session *session; /* native: what it reuses of earlier prompts shows in no bit */
    train_answers_options options;
};

kakeya_status train_answers_open(kakeya_engine *engine, const train_answers_options *options, train_answers **out,
                                 kakeya_error *error) {
    *out = NULL;
    train_answers *a = calloc(1, sizeof *a);
    if (!a) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: answers to train on");
    a->options = *options;
    kakeya_session_options session;
    kakeya_session_options_init(&session);
    session.attention = KAKEYA_ATTENTION_NATIVE;
    session.context_tokens = options->context;
    kakeya_status status = kakeya_session_open(engine, &session, &a->session, error);
    if (status) {
        train_answers_close(a);
        return status;
    }
    *out = a;
    return KAKEYA_OK;
}

void train_answers_close(train_answers *a) {
    if (!a) return;
    kakeya_session_close(a->session);
    free(a);
}

static bool on_event(void *user, const kakeya_event *event) {
    const train_answers *a = user;
    (void)event;
    return !a->options.interrupted();
}

static bool on_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    const train_answers *a = user;
    (void)what, (void)done, (void)total;
    return !a->options.interrupted();
}

kakeya_status train_answers_make(train_answers *a, const int32_t *prompt, int n, const int32_t **sequence, int *length,
                                 kakeya_error *error) {
    kakeya_generate_options generate;
    kakeya_generate_options_init(&generate);
    generate.max_tokens = a->options.tokens;
    generate.mode = KAKEYA_MODE_AUTO;
    generate.sampling.temperature = a->options.temperature;
    /* sampling draws by seed and position: a seed for all prompts would draw the same numbers for each of them */
    generate.sampling.seed = hash_fnv1a(hash_fnv1a(HASH_FNV1A_START, &a->options.seed, sizeof a->options.seed), prompt,
                                        (size_t)n * sizeof *prompt);
    generate.on_event = on_event;
    generate.user = a;
    kakeya_status status = kakeya_session_sync(a->session, prompt, (size_t)n, NULL, on_progress, a, error);
    if (!status) status = kakeya_session_generate(a->session, &generate, NULL, error);
    if (!status && a->options.interrupted()) status = error_set(error, KAKEYA_CANCELLED, "interrupted");
    if (status) return status;
    size_t tokens;
    *sequence = kakeya_session_tokens(a->session, &tokens);
    *length = (int)tokens;
    return KAKEYA_OK;
}
