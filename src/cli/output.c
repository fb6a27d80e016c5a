#include "cli/output.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"

/* The path of the file's folder, "." where it names none; malloc'ed, NULL when out of memory. */
static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool path_exists(const char *path) { return access(path, F_OK) == 0; }

kakeya_status output_spares(const char *option, const char *path, const char *input, kakeya_error *error) {
    if (!path || !input || !file_exists(path)) return KAKEYA_OK;
    if (file_same(path, input))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "--%s: %s is read by this command, and would be replaced",
                         option, path);
    if (!directory_exists(input)) return KAKEYA_OK;
    /* Both the folder in which the path lies and the one of the file behind a link count. */
    char *resolved = realpath(path, NULL), *folder = folder_of(path), *target = resolved ? folder_of(resolved) : NULL;
    bool inside = (folder && file_same(folder, input)) || (target && file_same(target, input));
    free(resolved);
    free(folder);
    free(target);
    if (!inside) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT, "--%s: %s is a file of %s, which this command reads", option, path,
                     input);
}

kakeya_status output_differs(const char *option, const char *path, const char *other_option, const char *other,
                             kakeya_error *error) {
    if (!path || !other) return KAKEYA_OK;
    bool same = file_exists(path) && file_same(path, other);
    if (!same && strcmp(name_of(path), name_of(other)) == 0) {
        char *folder = folder_of(path), *other_folder = folder_of(other);
        same = folder && other_folder && file_same(folder, other_folder) && !path_exists(path);
        free(folder);
        free(other_folder);
    }
    if (!same) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT, "--%s and --%s name one file, %s", option, other_option, path);
}
