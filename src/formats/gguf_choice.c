#include "formats/gguf_choice.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/files.h"
#include "formats/gguf.h"

static const char gguf_ending[] = ".gguf", weights_ending[] = ".safetensors";

typedef struct candidates {
    char **names; /* relative to the directory, sorted */
    size_t n;
    bool safetensors, out_of_memory;
} candidates;

static void candidates_free(candidates *c) {
    for (size_t i = 0; i < c->n; i++) free(c->names[i]);
    free(c->names);
}

static bool has_ending(const char *name, const char *ending) {
    size_t length = strlen(name), n = strlen(ending);
    return length > n && strcasecmp(name + length - n, ending) == 0;
}

static bool is_other_part(const char *name) { return strcasestr(name, "mmproj") || strcasestr(name, "imatrix"); }

static void add(candidates *c, const char *folder, const char *name) {
    char **names = realloc(c->names, (c->n + 1) * sizeof *names);
    if (names) c->names = names;
    char *added = !names ? NULL : *folder ? path_join(folder, name) : strdup(name);
    if (added)
        c->names[c->n++] = added;
    else
        c->out_of_memory = true;
}

/* `folder` is relative to the directory, "" for itself. */
static void list(candidates *c, const char *directory, const char *folder) {
    char *path = path_join(directory, folder);
    DIR *listing = path ? opendir(path) : NULL;
    c->out_of_memory |= !path;
    for (struct dirent *entry; listing && (entry = readdir(listing));) {
        const char *name = entry->d_name;
        char *inside = *name == '.' ? NULL : path_join(path, name);
        if (!inside) continue;
        bool deeper = directory_exists(inside);
        if (deeper && !*folder) list(c, directory, name);
        if (!deeper && !*folder && has_ending(name, weights_ending)) c->safetensors = true;
        if (!deeper && has_ending(name, gguf_ending) && !is_other_part(name)) add(c, folder, name);
        free(inside);
    }
    if (listing) closedir(listing);
    free(path);
}

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Of a split one part stays, which stands for all. */
static void drop_parts(candidates *c) {
    size_t kept = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (kept && gguf_same_split(c->names[kept - 1], c->names[i]))
            free(c->names[i]);
        else
            c->names[kept++] = c->names[i];
    }
    c->n = kept;
}

static bool is_border(char c) { return c == '\0' || c == '-' || c == '.' || c == '/'; }

static bool has_part(const char *name, const char *tag) {
    size_t n = strlen(tag);
    for (const char *at = name; (at = strcasestr(at, tag)); at++) {
        if ((at == name || is_border(at[-1])) && is_border(at[n])) return true;
    }
    return false;
}

static bool is_called(const char *name, const char *tag) {
    size_t stem = strlen(name) - strlen(gguf_ending);
    return strcasecmp(name, tag) == 0 || (strlen(tag) == stem && strncasecmp(name, tag, stem) == 0);
}

static void keep(candidates *c, bool (*fits)(const char *name, const char *tag), const char *tag) {
    size_t kept = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (fits(c->names[i], tag))
            c->names[kept++] = c->names[i];
        else
            free(c->names[i]);
    }
    c->n = kept;
}

/* "a.gguf, b.gguf", cut where it is long. */
static const char *names_text(const candidates *c, char *text, size_t bytes) {
    size_t used = 0;
    *text = '\0';
    for (size_t i = 0; i < c->n && used < bytes; i++) {
        if (used + strlen(c->names[i]) + 8 > bytes) {
            snprintf(text + used, bytes - used, ", ...");
            break;
        }
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? ", " : "", c->names[i]);
    }
    return text;
}

static kakeya_status choose(const char *directory, const char *tag, candidates *c, char **file, kakeya_error *error) {
    char names[360];
    if (!tag && (c->n == 0 || c->safetensors)) return KAKEYA_OK;
    names_text(c, names, sizeof names);
    size_t all = c->n;
    if (tag) {
        bool called = false;
        for (size_t i = 0; i < c->n; i++) called |= is_called(c->names[i], tag);
        keep(c, called ? is_called : has_part, tag);
    }
    if (c->n > 1)
        return error_set(
            error, KAKEYA_INVALID_ARGUMENT,
            "%s: holds %zu GGUF models%s%s (%s): name one, or give its format after a colon, as in :Q4_K_M", directory,
            c->n, tag ? " of " : "", tag ? tag : "", names_text(c, names, sizeof names));
    if (c->n == 0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: no GGUF model in it is called %s (%s)", directory, tag,
                         all ? names : "there is none at all");
    *file = path_join(directory, c->names[0]);
    if (!*file) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its path", directory);
    bool there;
    kakeya_status status = file_find(*file, &there, error);
    if (status != KAKEYA_OK) {
        free(*file);
        *file = NULL;
    }
    return status;
}

kakeya_status gguf_choose(const char *directory, const char *tag, char **file, kakeya_error *error) {
    candidates c = {0};
    *file = NULL;
    list(&c, directory, "");
    if (c.n) qsort(c.names, c.n, sizeof *c.names, compare_names);
    drop_parts(&c);
    kakeya_status status = c.out_of_memory
                               ? error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its files", directory)
                               : choose(directory, tag, &c, file, error);
    candidates_free(&c);
    return status;
}

/* -------------------------------------------------------------------------------------------------- vision parts */

void gguf_names_free(gguf_names *names) {
    for (size_t i = 0; i < names->n; i++) free(names->names[i]);
    free(names->names);
    *names = (gguf_names){0};
}

/* mmproj-MODEL.gguf, MODEL-mmproj.gguf, MODEL.mmproj.gguf */
static bool is_named_after(const char *part, const char *model) {
    static const char mark[] = "mmproj";
    const size_t n = strlen(mark), length = strlen(part) - strlen(gguf_ending);
    const size_t stem = strlen(model) - (has_ending(model, gguf_ending) ? strlen(gguf_ending) : 0);
    if (length != stem + n + 1) return false;
    return (strncasecmp(part, mark, n) == 0 && strncasecmp(part + n + 1, model, stem) == 0) ||
           (strncasecmp(part, model, stem) == 0 && strncasecmp(part + stem + 1, mark, n) == 0);
}

static int rank_of(const char *part, const char *model) {
    static const char *const types[] = {"bf16", "f32", "f16"};
    int rank = 1;
    if (is_named_after(part, model)) return 0;
    while (rank <= 3 && !has_part(part, types[rank - 1])) rank++;
    return rank;
}

kakeya_status gguf_vision_parts(const char *model, gguf_names *out, kakeya_error *error) {
    const char *slash = strrchr(model, '/'), *name = slash ? slash + 1 : model;
    char *folder = !slash ? strdup(".") : slash == model ? strdup("/") : strndup(model, (size_t)(slash - model));
    DIR *listing = folder ? opendir(folder) : NULL;
    candidates found = {.out_of_memory = !folder};
    *out = (gguf_names){0};
    for (struct dirent *entry; listing && (entry = readdir(listing));)
        if (has_ending(entry->d_name, gguf_ending) && strcasestr(entry->d_name, "mmproj"))
            add(&found, "", entry->d_name);
    if (listing) closedir(listing);
    if (found.n) qsort(found.names, found.n, sizeof *found.names, compare_names);
    out->names = calloc(found.n + 1, sizeof *out->names);
    found.out_of_memory |= !out->names;
    for (int rank = 0; rank <= 4 && !found.out_of_memory; rank++) {
        for (size_t i = 0; i < found.n; i++) {
            if (rank_of(found.names[i], name) != rank) continue;
            char *path = path_join(folder, found.names[i]);
            found.out_of_memory |= !path;
            if (path) out->names[out->n++] = path;
        }
    }
    free(folder);
    candidates_free(&found);
    if (!found.out_of_memory) return KAKEYA_OK;
    gguf_names_free(out);
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for the files beside it", model);
}
