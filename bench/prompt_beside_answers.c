/* A long prompt arrives while answers run: how long they wait for their next tokens, and what the prompt takes against
 * the same prompt alone. Through the scheduler, as programs use it.
 *
 *     bench_prompt_beside_answers BACKEND MODEL-DIRECTORY|synthetic:NAME ANSWERS PROMPT-TOKENS
 *
 * Prints the seconds of the prompt alone and beside the answers, and the longest and the median wait between two tokens
 * of an answer while the prompt was computed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <kakeya_study.h>

enum { MOST_ANSWERS = 64, MOST_TOKENS = 20000, CONTEXT = 1238, ORDINARY_TOKENS = 5, VOCABULARY = 1000 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* When the tokens of one answer came. */
typedef struct arrivals {
    double at[MOST_TOKENS];
    size_t n;
} arrivals;

static arrivals answer[MOST_ANSWERS];

static bool arrive(void *user, const kakeya_event *event) {
    arrivals *a = user;
    if (event->type == KAKEYA_EVENT_TOKEN && a->n < MOST_TOKENS) a->at[a->n++] = now();
    return true;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void fill(int32_t *tokens, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[i] = ORDINARY_TOKENS + (int32_t)(seed >> 8) % (VOCABULARY - ORDINARY_TOKENS);
    }
}

static void check(kakeya_status status, const kakeya_error *error) {
    if (status == KAKEYA_OK) return;
    fprintf(stderr, "bench_prompt_beside_answers: %s\n", error->message);
    exit(1);
}

static kakeya_session *open_session(kakeya_engine *engine, int context) {
    kakeya_session *session = NULL;
    kakeya_error error;
    kakeya_session_options options;
    KAKEYA_INIT(&options);
    int most = kakeya_engine_max_context(engine);
    options.context_tokens = context < most ? context : most;
    check(kakeya_session_open(engine, &options, &session, &error), &error);
    return session;
}

int main(int argc, char **argv) {
    int answers = argc == 5 ? atoi(argv[3]) : 0, prompt_tokens = argc == 5 ? atoi(argv[4]) : 0;
    if (answers < 1 || answers > MOST_ANSWERS || prompt_tokens < 1) {
        fprintf(stderr, "usage: bench_prompt_beside_answers BACKEND MODEL-DIRECTORY|synthetic:NAME ANSWERS TOKENS\n");
        return 2;
    }
    kakeya_error error;
    kakeya_engine *engine = NULL;
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    kakeya_study_options study;
    KAKEYA_INIT(&study);
    options.study = &study;
    options.backend = argv[1];
    if (strncmp(argv[2], "synthetic:", 10) == 0)
        study.synthetic = argv[2] + 10;
    else
        options.model = argv[2];
    check(kakeya_engine_open(&options, &engine, &error), &error);
    int32_t *prompt = malloc((size_t)prompt_tokens * sizeof *prompt), begin[CONTEXT];
    if (!prompt) return 1;
    fill(prompt, (size_t)prompt_tokens, 1);

    kakeya_session *long_one = open_session(engine, prompt_tokens + 16);
    double alone = now();
    check(kakeya_session_sync(long_one, prompt, (size_t)prompt_tokens, NULL, NULL, NULL, &error), &error);
    alone = now() - alone;
    kakeya_session_close(long_one);

    kakeya_session *session[MOST_ANSWERS];
    kakeya_request *request[MOST_ANSWERS];
    kakeya_generate_options generate;
    KAKEYA_INIT(&generate);
    generate.mode = KAKEYA_MODE_AR;
    generate.ignore_stop_tokens = true;
    generate.on_event = arrive;
    kakeya_request_options wanted;
    KAKEYA_INIT(&wanted);
    wanted.tokens = begin;
    wanted.n_tokens = CONTEXT;
    wanted.generate = &generate;
    for (int i = 0; i < answers; i++) {
        fill(begin, CONTEXT, 100 + (unsigned)i);
        session[i] = open_session(engine, CONTEXT + MOST_TOKENS);
        generate.user = &answer[i];
        check(kakeya_session_submit(session[i], &wanted, &request[i], &error), &error);
    }
    double settle = now() + 1; /* the answers' own prompts are done, and answers run */
    while (now() < settle) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);

    long_one = open_session(engine, prompt_tokens + 16);
    double from = now();
    check(kakeya_session_sync(long_one, prompt, (size_t)prompt_tokens, NULL, NULL, NULL, &error), &error);
    double to = now();
    for (int i = 0; i < answers; i++) kakeya_request_cancel(request[i]);
    double *wait = malloc((size_t)answers * MOST_TOKENS * sizeof *wait);
    size_t n = 0;
    for (int i = 0; i < answers; i++) {
        check(kakeya_request_wait(request[i], NULL, &error), &error);
        for (size_t t = 1; wait && t < answer[i].n; t++) {
            if (answer[i].at[t] > from && answer[i].at[t - 1] < to) wait[n++] = answer[i].at[t] - answer[i].at[t - 1];
        }
    }
    if (!wait || !n) return fprintf(stderr, "no tokens arrived beside the prompt\n"), 1;
    qsort(wait, n, sizeof *wait, compare);
    printf("prompt of %d tokens: %.3f s alone, %.3f s beside %d answers (%.2f x)\n", prompt_tokens, alone, to - from,
           answers, (to - from) / alone);
    printf("%zu waits for a token beside it: median %.1f ms, longest %.1f ms\n", n, wait[n / 2] * 1e3,
           wait[n - 1] * 1e3);
    for (int i = 0; i < answers; i++) kakeya_session_close(session[i]);
    kakeya_session_close(long_one);
    kakeya_engine_close(engine);
    free(wait);
    free(prompt);
    return 0;
}
