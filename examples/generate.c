/* Streams an answer: kakeya as a library in one page.
 *   cc generate.c $(pkg-config --cflags --libs kakeya) -o generate && ./generate models/demo "def main():" */
#include <stdio.h>
#include <string.h>

#include <kakeya.h>

static bool print_token(void *user, int32_t token, const char *text, size_t text_bytes) {
    (void)token;
    return fwrite(text, 1, text_bytes, user) == text_bytes && fflush(user) == 0; /* false would stop the answer */
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: generate MODEL-DIRECTORY PROMPT\n"), 2;
    kakeya_error error;
    kakeya_engine *engine = NULL;
    kakeya_session *session = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    kakeya_stats stats;

    kakeya_engine_options model;
    kakeya_engine_options_init(&model);
    model.model = argv[1];
    kakeya_generate_options answer;
    kakeya_generate_options_init(&answer);
    answer.max_tokens = 64;
    answer.on_token = print_token;
    answer.user = stdout;

    kakeya_status status = kakeya_engine_open(&model, &engine, &error);
    if (!status) status = kakeya_session_open(engine, NULL, &session, &error);
    if (!status) status = kakeya_tokenize(engine, argv[2], strlen(argv[2]), true, &ids, &n_ids, &error);
    if (!status) status = kakeya_session_sync(session, ids, n_ids, NULL, NULL, NULL, &error);
    if (!status) status = kakeya_session_generate(session, &answer, &stats, &error);
    if (!status) fprintf(stderr, "\n%zu tokens in %.2f s\n", stats.completion_tokens, stats.decode_seconds);
    if (status) fprintf(stderr, "generate: %s\n", error.message);

    kakeya_free(ids);
    kakeya_session_close(session);
    kakeya_engine_close(engine);
    return status ? 1 : 0;
}
