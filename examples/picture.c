/* A question about a picture: its tokens stand in the prompt, and its pixels go with them.
 *   cc picture.c $(pkg-config --cflags --libs kakeya) -o picture
 *   ./picture models/demo examples/code.png "Question: what is the secret code? Answer:" */
#include <stdio.h>
#include <stdlib.h>

#include <kakeya.h>

static bool print_text(void *user, const kakeya_event *event) {
    if (event->type != KAKEYA_EVENT_TOKEN) return true;
    FILE *out = (FILE *)user;
    return fwrite(event->text, 1, event->text_bytes, out) == event->text_bytes && fflush(out) == 0; /* false ends it */
}

/* The bytes of a file, freed by free; NULL: it cannot be read. */
static void *read_file(const char *path, size_t *bytes) {
    enum { MOST = 20 << 20 };
    FILE *file = fopen(path, "rb");
    void *data = file ? malloc(MOST) : NULL;
    *bytes = data ? fread(data, 1, MOST, file) : 0;
    if (file) fclose(file);
    return data;
}

/* A turn of the user: the picture, then the question. */
static kakeya_status make_prompt(const kakeya_engine *engine, const kakeya_media *picture, const char *question,
                                 int32_t **ids, size_t *n_ids, kakeya_error *error) {
    kakeya_chat_part parts[2] = {{.type = KAKEYA_CHAT_IMAGE}, {.type = KAKEYA_CHAT_TEXT, .text = question}};
    kakeya_status status = kakeya_engine_image_tokens(engine, picture, &parts[0].n_tokens, error);
    if (status) return status;
    kakeya_chat_message turn;
    KAKEYA_INIT(&turn);
    turn.role = "user";
    turn.parts = parts;
    turn.n_parts = 2;
    return kakeya_conversation_tokens(kakeya_engine_tokenizer(engine), &turn, 1, NULL, ids, n_ids, NULL, error);
}

int main(int argc, char **argv) {
    if (argc != 4) return fprintf(stderr, "usage: picture MODEL-DIRECTORY PICTURE QUESTION\n"), 2;
    kakeya_error error;
    kakeya_engine *engine = NULL;
    kakeya_session *session = NULL;
    kakeya_image *image = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0, bytes;
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

    void *file = read_file(argv[2], &bytes);
    if (!file) return fprintf(stderr, "picture: %s cannot be read\n", argv[2]), 1;
    kakeya_status status = kakeya_image_open(argv[2], file, bytes, &image, &error);
    const kakeya_media picture = {.image = image}; /* the budget of tokens is the model's own */
    if (!status) status = kakeya_engine_open(&model, &engine, &error);
    if (!status) status = kakeya_session_open(engine, NULL, &session, &error);
    if (!status) status = make_prompt(engine, &picture, argv[3], &ids, &n_ids, &error);
    if (!status) status = kakeya_session_sync_media(session, ids, n_ids, &picture, 1, NULL, NULL, NULL, &error);
    if (!status) status = kakeya_session_generate(session, &answer, &stats, &error);
    if (!status) fprintf(stderr, "\n%zu tokens in %.2f s\n", stats.completion_tokens, stats.decode_seconds);
    if (status) fprintf(stderr, "picture: %s\n", error.message);

    free(file);
    kakeya_free(ids);
    kakeya_image_close(image);
    kakeya_session_close(session);
    kakeya_engine_close(engine);
    return status ? 1 : 0;
}
