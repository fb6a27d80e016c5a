#include "serve/seal_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "serve/state_file.h"

static kakeya_status read_key(int directory, reasoning_seal *seal, kakeya_error *error) {
    char *data;
    size_t bytes;
    enum { MOST = 4096 };
    kakeya_status status = state_file_read(directory, SEAL_FILE_NAME, MOST, &data, &bytes, error);
    if (status == KAKEYA_OK && bytes != sizeof seal->key)
        status = error_set(error, KAKEYA_FORMAT, SEAL_FILE_NAME ": %zu bytes, a key has %zu", bytes, sizeof seal->key);
    if (status == KAKEYA_OK) memcpy(seal->key, data, sizeof seal->key);
    free(data);
    return status;
}

kakeya_status seal_file_open(const char *path, reasoning_seal *seal, kakeya_error *error) {
    enum { TRIES = 100 }; /* others may make a key, or set a bad one aside, at the same moment */
    const struct timespec moment = {.tv_nsec = 10000000};
    int directory = state_directory(path, error);
    if (directory < 0) return KAKEYA_IO;
    kakeya_status status = KAKEYA_CANCELLED;
    for (int i = 0; i < TRIES && status == KAKEYA_CANCELLED; i++) {
        reasoning_seal fresh;
        if (i) nanosleep(&moment, NULL);
        status = read_key(directory, seal, error);
        if (status == KAKEYA_FORMAT) {
            (void)renameat(directory, SEAL_FILE_NAME, directory, SEAL_FILE_NAME ".bad");
            status = KAKEYA_CANCELLED;
        }
        if (status != KAKEYA_CANCELLED) break;
        if (!reasoning_seal_init(&fresh)) {
            status = error_set(error, KAKEYA_IO, "the system has no random numbers");
            break;
        }
        status = state_file_write(directory, SEAL_FILE_NAME, fresh.key, sizeof fresh.key, true, error);
        if (status == KAKEYA_OK) *seal = fresh;
    }
    close(directory);
    return status;
}
