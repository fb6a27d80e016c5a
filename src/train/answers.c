#include "train/answers.h"

#include <stdlib.h>

#include "base/hash.h"

struct train_answers {
    kakeya_session *session[TRAIN_ANSWERS_MOST]; /* native: what one reuses of earlier prompts shows in no bit */
    train_answers_options options;
};

kakeya_status train_answers_open(kakeya_engine *engine, const train_answers_options *options, train_answers **out,
                                 kakeya_error *error) {
    *out = NULL;
    train_answers *a = calloc(1, sizeof *a);
    if (!a) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: answers to train on");
    a->options = *options;
    kakeya_session_options session;
    KAKEYA_INIT(&session);
    session.attention = KAKEYA_ATTENTION_NATIVE;
    session.context_tokens = options->context;
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < options->at_a_time && !status; i++)
        status = kakeya_session_open(engine, &session, &a->session[i], error);
    if (status) {
        train_answers_close(a);
        return status;
    }
    *out = a;
    return KAKEYA_OK;
}

void train_answers_close(train_answers *a) {
    if (!a) return;
    for (int i = 0; i < TRAIN_ANSWERS_MOST; i++) kakeya_session_close(a->session[i]);
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

static kakeya_status ask(train_answers *a, kakeya_session *session, const int32_t *prompt, int n, kakeya_request **out,
                         kakeya_error *error) {
    kakeya_generate_options generate;
    KAKEYA_INIT(&generate);
    generate.max_tokens = a->options.tokens;
    generate.mode = KAKEYA_MODE_AUTO;
    generate.sampling.temperature = a->options.temperature;
    /* sampling draws by seed and position: a seed for all prompts would draw the same numbers for each of them */
    generate.sampling.seed = hash_fnv1a(hash_fnv1a(HASH_FNV1A_START, &a->options.seed, sizeof a->options.seed), prompt,
                                        (size_t)n * sizeof *prompt);
    generate.on_event = on_event;
    generate.user = a;
    kakeya_request_options request;
    KAKEYA_INIT(&request);
    request.tokens = prompt;
    request.n_tokens = (size_t)n;
    request.generate = &generate;
    request.progress = on_progress;
    request.progress_user = a;
    return kakeya_session_submit(session, &request, out, error);
}

kakeya_status train_answers_make(train_answers *a, const int32_t *prompt, int n, const int32_t **sequence, int *length,
                                 kakeya_error *error) {
    kakeya_request *request = NULL;
    size_t tokens;
    kakeya_status status = ask(a, a->session[0], prompt, n, &request, error);
    if (!status) status = kakeya_request_wait(request, NULL, error);
    if (!status && a->options.interrupted()) status = error_set(error, KAKEYA_CANCELLED, "interrupted");
    if (status) return status;
    *sequence = kakeya_session_tokens(a->session[0], &tokens);
    *length = (int)tokens;
    return KAKEYA_OK;
}

kakeya_status train_answers_make_many(train_answers *a, const corpus *prompts, size_t first, int n, corpus *out,
                                      kakeya_error *error) {
    kakeya_request *request[TRAIN_ANSWERS_MOST] = {0};
    kakeya_status status = KAKEYA_OK;
    int asked = 0;
    for (; asked < n && !status; asked++) {
        const corpus_sequence *s = &prompts->sequence[first + (size_t)asked];
        status = ask(a, a->session[asked], prompts->tokens + s->begin, s->length, &request[asked], error);
    }
    for (int i = 0; i < asked; i++) {
        kakeya_error own = {0};
        kakeya_status one = request[i] ? kakeya_request_wait(request[i], NULL, &own) : KAKEYA_OK;
        if (one && !status) {
            status = one;
            if (error) *error = own;
        }
    }
    if (a->options.interrupted()) status = error_set(error, KAKEYA_CANCELLED, "interrupted");
    for (int i = 0; i < n && !status; i++) {
        size_t tokens;
        const int32_t *sequence = kakeya_session_tokens(a->session[i], &tokens);
        status = corpus_add(out, sequence, (int)tokens, prompts->sequence[first + (size_t)i].length, error);
    }
    return status;
}
