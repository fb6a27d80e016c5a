#include "session/companion.h"

#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "formats/checkpoint.h"

kakeya_status companion_directory(const char *option, const char *model_directory, const char *suffix, char **directory,
                                  kakeya_error *error) {
    *directory = NULL;
    if (option && strcmp(option, "none") == 0) return KAKEYA_OK;
    if (option) return checkpoint_resolve(option, directory, error);
    if (!model_directory) return KAKEYA_OK;
    size_t length = strlen(model_directory);
    while (length > 1 && model_directory[length - 1] == '/') length--;
    char *sibling = malloc(length + strlen(suffix) + 1);
    if (!sibling) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", model_directory);
    memcpy(sibling, model_directory, length);
    strcpy(sibling + length, suffix);
    if (directory_exists(sibling))
        *directory = sibling;
    else
        free(sibling);
    return KAKEYA_OK;
}
