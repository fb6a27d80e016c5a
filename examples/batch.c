/* Sixteen sessions that are computed together: each step of the model serves all of them.
 *   cc batch.c $(pkg-config --cflags --libs kakeya) -o batch && ./batch models/demo */
#include <stdio.h>
#include <string.h>

#include <kakeya.h>

enum { SESSIONS = 16, ROOM = 512 };

typedef struct conversation {
    kakeya_session *session;
    kakeya_request *request;
    char text[ROOM];
    size_t n;
} conversation;

/* On the thread that computes, so it only takes the text. False where there is no room: the answer ends. */
static bool take(void *user, const kakeya_event *event) {
    conversation *c = (conversation *)user;
    if (event->type != KAKEYA_EVENT_TOKEN) return true;
    if (c->n + event->text_bytes >= ROOM) return false;
    memcpy(c->text + c->n, event->text, event->text_bytes);
    c->n += event->text_bytes;
    return true;
}

static kakeya_status submit(kakeya_engine *engine, conversation *c, int number, kakeya_error *error) {
    char prompt[64];
    int32_t *ids = NULL;
    size_t n_ids = 0;
    kakeya_generate_options answer;
    KAKEYA_INIT(&answer);
    answer.max_tokens = 24;
    answer.on_event = take;
    answer.user = c;
    kakeya_request_options request;
    KAKEYA_INIT(&request);
    request.generate = &answer;

    snprintf(prompt, sizeof prompt, "def add_%d(numbers):\n    ", number);
    kakeya_status status = kakeya_session_open(engine, NULL, &c->session, error);
    if (!status)
        status = kakeya_tokenize(kakeya_engine_tokenizer(engine), prompt, strlen(prompt), KAKEYA_TEXT_PROMPT, &ids,
                                 &n_ids, error);
    request.tokens = ids;
    request.n_tokens = n_ids;
    if (!status) status = kakeya_session_submit(c->session, &request, &c->request, error);
    kakeya_free(ids); /* they were copied */
    return status;
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: batch MODEL-DIRECTORY\n"), 2;
    static conversation all[SESSIONS];
    kakeya_error error;
    kakeya_engine *engine = NULL;
    kakeya_engine_options model;
    KAKEYA_INIT(&model);
    model.model = argv[1];
    size_t tokens = 0;

    kakeya_status status = kakeya_engine_open(&model, &engine, &error);
    for (int i = 0; i < SESSIONS && !status; i++) status = submit(engine, &all[i], i, &error);
    for (int i = 0; i < SESSIONS; i++) { /* also after a failure: what was submitted must be waited for */
        kakeya_stats stats;
        KAKEYA_INIT(&stats);
        if (!all[i].request) continue;
        kakeya_status its = kakeya_request_wait(all[i].request, &stats, status ? NULL : &error);
        if (!status) status = its;
        tokens += stats.completion_tokens;
        printf("--- %d\n%s\n", i, all[i].text);
    }
    if (status) fprintf(stderr, "batch: %s\n", error.message);
    if (!status) fprintf(stderr, "%zu tokens of %d sessions\n", tokens, SESSIONS);
    for (int i = 0; i < SESSIONS; i++) kakeya_session_close(all[i].session);
    kakeya_engine_close(engine);
    return status ? 1 : 0;
}
