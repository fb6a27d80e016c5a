#include "session/auxiliary_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "formats/checkpoint.h"
#include "formats/gguf.h"
#include "model/assistant.h"

/* directory + suffix, or a GGUF file's name without its ending + suffix; malloc'ed, NULL when out of memory. */
static char *sibling_of(const char *directory, const char *suffix) {
    size_t length = strlen(directory);
    while (length > 1 && directory[length - 1] == '/') length--;
    if (length > 5 && strncmp(directory + length - 5, ".gguf", 5) == 0) length -= 5;
    char *sibling = NULL;
    return asprintf(&sibling, "%.*s%s", (int)length, directory, suffix) < 0 ? NULL : sibling;
}

kakeya_status auxiliary_model_directory(const char *option, const char *model_directory, const char *suffix,
                                        char **directory, char **sought, kakeya_error *error) {
    *directory = NULL;
    if (option && strcmp(option, "none") == 0) return KAKEYA_OK;
    if (option) return checkpoint_resolve(option, directory, error);
    if (!model_directory) return KAKEYA_OK;
    char *resolved = realpath(model_directory, NULL), *beside = sibling_of(model_directory, suffix);
    char *behind = resolved ? sibling_of(resolved, suffix) : NULL;
    bool there = false, there_behind = false;
    kakeya_status status = beside && (behind || !resolved)
                               ? directory_find(beside, &there, error)
                               : error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", model_directory);
    if (status == KAKEYA_OK && !there && behind) status = directory_find(behind, &there_behind, error);
    if (status != KAKEYA_OK) {
        status = error_prefix(error, status, "the %s beside the model",
                              strcmp(suffix, "-f-theta") == 0 ? "f_theta" : "drafter");
    } else if (there) {
        *directory = beside;
        beside = NULL;
    } else if (there_behind) {
        *directory = behind;
        behind = NULL;
    } else if (sought) {
        bool two = behind && strcmp(beside, behind) != 0;
        if (asprintf(sought, "%s%s%s", beside, two ? " and " : "", two ? behind : "") < 0)
            *sought = NULL; /* a message will say less */
    }
    free(resolved);
    free(beside);
    free(behind);
    return status;
}

/* NAME-assistant as a user would name it. What is not there, or cannot be read, is no assistant of this model. */
static kakeya_status find_assistant(const char *name, char **path, kakeya_error *error) {
    char *beside = sibling_of(name, "-assistant"), *file = sibling_of(name, "-assistant.gguf"), *found = NULL;
    kakeya_status status = beside && file ? KAKEYA_OK : KAKEYA_OUT_OF_MEMORY;
    bool is_assistant = false;
    if (status == KAKEYA_OK && gguf_is_file(file)) {
        found = file;
        file = NULL;
    } else if (status == KAKEYA_OK) {
        status = checkpoint_resolve(beside, &found, NULL);
    }
    if (status == KAKEYA_OK) status = assistant_is_at(found, &is_assistant, NULL);
    if (status == KAKEYA_OK && is_assistant) {
        *path = found;
        found = NULL;
    }
    free(found);
    free(beside);
    free(file);
    if (status != KAKEYA_OUT_OF_MEMORY) return KAKEYA_OK;
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory to look for its assistant", name);
}

kakeya_status auxiliary_model_named(const char *option, char **path, bool *assistant, kakeya_error *error) {
    *path = NULL;
    kakeya_status status = checkpoint_resolve(option, path, error);
    if (status == KAKEYA_OK) status = assistant_is_at(*path, assistant, error);
    if (status == KAKEYA_OK) return KAKEYA_OK;
    free(*path);
    *path = NULL;
    return status;
}

kakeya_status auxiliary_model_assistant(const char *model, const char *model_directory, char **path,
                                        kakeya_error *error) {
    *path = NULL;
    kakeya_status status = model ? find_assistant(model, path, error) : KAKEYA_OK;
    if (status == KAKEYA_OK && !*path && model_directory) status = find_assistant(model_directory, path, error);
    return status;
}
