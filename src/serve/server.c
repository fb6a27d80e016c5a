#include "serve/server.h"

#include <string.h>

const char *server_model(const server_context *s, const char *name) {
    for (size_t i = 0; i < s->settings->n_names; i++)
        if (strcmp(s->settings->names[i], name) == 0) return s->settings->names[i];
    return NULL;
}
