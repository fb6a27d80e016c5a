#include "train/outputs.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"

kakeya_status train_make_directory(const char *path, kakeya_error *error) {
    if (mkdir(path, 0777) == 0 || (errno == EEXIST && directory_exists(path))) return KAKEYA_OK;
    return error_set(error, KAKEYA_IO, "%s: cannot be made a directory: %s", path, strerror(errno));
}

void train_drop_directory(const char *path) { (void)rmdir(path); }

kakeya_status train_write_json(const char *path, const struct cJSON *json, kakeya_error *error) {
    char *text = json ? cJSON_Print(json) : NULL;
    file_writer *writer = NULL;
    if (!text) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", path);
    kakeya_status status = file_writer_open(path, &writer, error);
    if (!status) status = file_writer_write(writer, text, strlen(text), error);
    if (!status) status = file_writer_write(writer, "\n", 1, error);
    if (!status)
        status = file_writer_commit(writer, error);
    else
        file_writer_abort(writer);
    cJSON_free(text);
    return status;
}
