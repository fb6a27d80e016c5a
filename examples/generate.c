/* Streams an answer: kakeya as a library in one page.
 *   cc generate.c $(pkg-config --cflags --libs kakeya) -o generate && ./generate models/demo "def main():" */
#include <stdio.h>
#include <string.h>

#include <kakeya.h>

static bool print_text(void *user, const kakeya_event *event) {
    if (event->type != KAKEYA_EVENT_TOKEN) return true;
    FILE *out = (FILE *)user;
    return fwrite(event->text, 1, event->text_bytes, out) == event->text_bytes && fflush(out) == 0; /* false ends it */
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: generate MODEL-DIRECTORY PROMPT\n"), 2;
    kakeya_error error;
    kakeya_engine *engine = NULL;
    kakeya_session *session = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    kakeya_stats stats;
    KAKEYA_INIT(&stats);

    kakeya_engine_options model;
    KAKEYA_INIT(&model);
    model.model = argv[1];
    kakeya_generate_options answer;
    KAKEYA_INIT(&answer);
    answer.max_tokens = 64;
    answer.on_event = print_text;
    answer.user = stdout;

    kakeya_status status = kakeya_engine_open(&model, &engine, &error);
    if (!status) status = kakeya_session_open(engine, NULL, &session, &error);
    const kakeya_tokenizer *tokenizer = kakeya_engine_tokenizer(engine);
    if (!status)
        status = kakeya_tokenize(tokenizer, argv[2], strlen(argv[2]), KAKEYA_TEXT_PROMPT, &ids, &n_ids, &error);
    if (!status) status = kakeya_session_sync(session, ids, n_ids, NULL, NULL, NULL, &error);
    if (!status) status = kakeya_session_generate(session, &answer, &stats, &error);
    if (!status) fprintf(stderr, "\n%zu tokens in %.2f s\n", stats.completion_tokens, stats.decode_seconds);
    if (status) fprintf(stderr, "generate: %s\n", error.message);

    kakeya_free(ids);
    kakeya_session_close(session);
    kakeya_engine_close(engine);
    return status ? 1 : 0;
}
