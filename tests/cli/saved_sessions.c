/* Saves two sessions of a model into a directory, as kakeya serve does, for tests of what reads them.
 * usage: saved_sessions DIRECTORY MODEL */
#include <stdio.h>
#include <string.h>

#include "serve/store.h"

static int failed(const kakeya_error *error) {
    fprintf(stderr, "saved_sessions: %s\n", error->message);
    return 1;
}

int main(int argc, char **argv) {
    kakeya_error error = {0};
    kakeya_engine *engine = NULL;
    kakeya_engine_options eo;
    kakeya_session_options so;
    KAKEYA_INIT(&eo);
    KAKEYA_INIT(&so);
    eo.model = argc > 2 ? argv[2] : "";
    eo.threads = 1;
    so.context_tokens = 256;
    if (argc < 2 || kakeya_engine_open(&eo, &engine, &error) != KAKEYA_OK) return failed(&error);
    const store_options options = {
        .ram_bytes = (size_t)1 << 30, .directory = argv[1], .model = "toy", .least_file_tokens = 1};
    prefix_store *store = NULL;
    if (store_open(engine, &so, &options, &store, &error) != KAKEYA_OK) return failed(&error);
    int32_t ids[60];
    for (int32_t i = 0; i < 60; i++) ids[i] = 100 + i;
    kakeya_session *session = NULL;
    char id[STORE_ID_BYTES];
    if (store_take(store, NULL, ids, 60, true, &session, NULL, &error) != KAKEYA_OK ||
        kakeya_session_sync(session, ids, 60, NULL, NULL, NULL, &error) != KAKEYA_OK)
        return failed(&error);
    store_checkpoint(store, NULL, session, STORE_SYSTEM_TURN);
    kakeya_session_close(session);
    if (store_named_create(store_names(store), NULL, id, &error) != STORE_NAMED_OK ||
        store_named_take(store_names(store), id, &session, NULL, &error) != STORE_NAMED_OK ||
        kakeya_session_sync(session, ids + 10, 40, NULL, NULL, NULL, &error) != KAKEYA_OK)
        return failed(&error);
    store_named_give(store_names(store), id, session);
    store_close(store, 60);
    kakeya_engine_close(engine);
    return 0;
}
