/* What `auto` costs on text that no drafter can foresee: new sessions on one engine, each of random prompt tokens and
 * of an answer at a temperature that makes it random too, in turns with `ar`.
 *
 *     bench_random_text MODEL-DIRECTORY [native|restored]
 *
 * Prints the speed of auto against ar: of all sessions together, and the median, lowest and highest of a session. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kakeya.h>

enum { SESSIONS = 30, PROMPT_TOKENS = 300, ANSWER_TOKENS = 160, THREADS = 2, ORDINARY_TOKENS = 5, VOCABULARY = 8000 };
static const float temperature = 2.5f;

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of one answer in a session of its own. */
static kakeya_status answer(kakeya_engine *engine, kakeya_attention attention, kakeya_mode mode, const int32_t *prompt,
                            uint64_t seed, double *seconds, kakeya_error *error) {
    kakeya_session *session = NULL;
    kakeya_session_options options;
    KAKEYA_INIT(&options);
    options.attention = attention;
    kakeya_generate_options generate;
    KAKEYA_INIT(&generate);
    generate.mode = mode;
    generate.max_tokens = ANSWER_TOKENS;
    generate.ignore_stop_tokens = true;
    generate.sampling.temperature = temperature;
    generate.sampling.seed = seed;
    kakeya_stats stats = {0};
    kakeya_status status = kakeya_session_open(engine, &options, &session, error);
    if (!status) status = kakeya_session_sync(session, prompt, PROMPT_TOKENS, NULL, NULL, NULL, error);
    if (!status) status = kakeya_session_generate(session, &generate, &stats, error);
    kakeya_session_close(session);
    *seconds = stats.decode_seconds;
    return status;
}

int main(int argc, char **argv) {
    bool restored = argc == 3 && strcmp(argv[2], "restored") == 0;
    if (argc < 2 || argc > 3 || (argc == 3 && !restored && strcmp(argv[2], "native") != 0))
        return fprintf(stderr, "usage: bench_random_text MODEL-DIRECTORY [native|restored]\n"), 2;
    kakeya_error error;
    kakeya_engine *engine = NULL;
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = argv[1];
    options.threads = THREADS;
    kakeya_status status = kakeya_engine_open(&options, &engine, &error);
    double total[2] = {0, 0}, ratio[SESSIONS];
    srand(5);
    for (int s = 0; s < SESSIONS && !status; s++) {
        int32_t prompt[PROMPT_TOKENS];
        for (int i = 0; i < PROMPT_TOKENS; i++) prompt[i] = ORDINARY_TOKENS + rand() % VOCABULARY;
        double seconds[2] = {0, 0};
        for (int turn = 0; turn < 2 && !status; turn++) {
            int arm = (turn + s) % 2;
            status = answer(engine, restored ? KAKEYA_ATTENTION_RESTORED : KAKEYA_ATTENTION_NATIVE,
                            arm ? KAKEYA_MODE_AUTO : KAKEYA_MODE_AR, prompt, (uint64_t)s, &seconds[arm], &error);
        }
        for (int arm = 0; arm < 2; arm++) total[arm] += seconds[arm];
        ratio[s] = seconds[0] / seconds[1];
    }
    kakeya_engine_close(engine);
    if (status) return fprintf(stderr, "bench_random_text: %s\n", error.message), 1;
    qsort(ratio, SESSIONS, sizeof *ratio, compare);
    printf("auto against ar on random text: %.3f in all, %.3f a session (%.3f to %.3f), %d sessions of %d tokens\n",
           total[0] / total[1], ratio[SESSIONS / 2], ratio[0], ratio[SESSIONS - 1], SESSIONS, ANSWER_TOKENS);
    return 0;
}
