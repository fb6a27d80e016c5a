#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "base/platform.h"
#include "cli/eval_output.h"

static int is_source(const struct dirent *entry) {
    const char *dot = strrchr(entry->d_name, '.');
    return dot && (strcmp(dot, ".py") == 0 || strcmp(dot, ".c") == 0);
}

static void list_sources(const char *directory, eval_corpus *out) {
    struct dirent **entries = NULL;
    int n = scandir(directory, &entries, is_source, alphasort);
    if (n < 0) return;
    out->paths = calloc((size_t)n + 1, sizeof *out->paths);
    for (int i = 0; i < n; i++) {
        if (out->paths) out->paths[out->n] = path_join(directory, entries[i]->d_name);
        if (out->paths && out->paths[out->n]) out->n++;
        free(entries[i]);
    }
    free(entries);
}

void eval_corpus_find(eval_corpus *out) {
    *out = (eval_corpus){0};
    char executable[PATH_MAX];
    if (!platform_program(executable, sizeof executable)) return;
    char *slash = strrchr(executable, '/');
    if (!slash) return;
    *slash = '\0';
    static const char *const places[] = {"../examples/code", "../share/kakeya/examples/code"};
    for (size_t i = 0; i < sizeof places / sizeof places[0] && !out->n; i++) {
        char *path = path_join(executable, places[i]);
        if (path && directory_exists(path)) list_sources(path, out);
        free(path);
    }
}

void eval_corpus_free(eval_corpus *corpus) {
    for (size_t i = 0; i < corpus->n; i++) free(corpus->paths[i]);
    free(corpus->paths);
    *corpus = (eval_corpus){0};
}
