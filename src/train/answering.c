#include "train/answering.h"

#include <stdlib.h>

#include "base/hash.h"

struct answering {
    kakeya_session *session[ANSWERING_MOST]; /* native: what one reuses of earlier prompts shows in no bit */
    train_answers_options options;
};

kakeya_status answering_open(kakeya_engine *engine, const train_answers_options *options, answering **out,
                             kakeya_error *error) {
    *out = NULL;
    answering *a = calloc(1, sizeof *a);
    if (!a) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: answers to train on");
    a->options = *options;
    kakeya_session_options session;
    kakeya_session_options_init(&session);
    session.attention = KAKEYA_ATTENTION_NATIVE;
    session.context_tokens = options->context;
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < ANSWERING_MOST && !status; i++)
        status = kakeya_session_open(engine, &session, &a->session[i], error);
    if (status) {
        answering_close(a);
        return status;
    }
    *out = a;
    return KAKEYA_OK;
}

void answering_close(answering *a) {
    if (!a) return;
    for (int i = 0; i < ANSWERING_MOST; i++) kakeya_session_close(a->session[i]);
    free(a);
}

static bool on_event(void *user, const kakeya_event *event) {
    const answering *a = user;
    (void)event;
    return !a->options.interrupted();
}

static bool on_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    const answering *a = user;
    (void)what, (void)done, (void)total;
    return !a->options.interrupted();
}

static kakeya_status ask(answering *a, kakeya_session *session, const int32_t *prompt, int n, kakeya_request **out,
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
    kakeya_request_options request;
    kakeya_request_options_init(&request);
    request.tokens = prompt;
    request.n_tokens = (size_t)n;
    request.generate = &generate;
    request.progress = on_progress;
    request.progress_user = a;
    return kakeya_session_submit(session, &request, out, error);
}

kakeya_status answering_make(answering *a, const corpus *prompts, size_t first, int n, corpus *out,
                             kakeya_error *error) {
    kakeya_request *request[ANSWERING_MOST] = {0};
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
