/* Scratch directories and generated files for tests of everything that reads files, and the check that every refusal is
 * one line that names what is wrong. Include after cmocka. */
#ifndef KAKEYA_TESTS_SCRATCH_H
#define KAKEYA_TESTS_SCRATCH_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kakeya.h"

static char scratch_directory[256];

static inline int scratch_setup(void **state) {
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(scratch_directory, sizeof scratch_directory, "%s/kakeya-test-XXXXXX", base && *base ? base : "/tmp");
    return mkdtemp(scratch_directory) ? 0 : -1;
}

static inline int scratch_remove_one(const char *path, const struct stat *status, int type, struct FTW *ftw) {
    (void)status, (void)type, (void)ftw;
    return remove(path);
}

static inline int scratch_teardown(void **state) {
    (void)state;
    return nftw(scratch_directory, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Path of a file in the scratch directory; up to eight results stay valid. Tests that have not set the directory up
 * would write into the root, and into each other's files there. */
static inline const char *scratch_path(const char *name) {
    static char paths[8][512];
    static int next;
    if (!*scratch_directory) {
        fprintf(stderr, "%s: there is no scratch directory, the group of tests lacks scratch_setup\n", name);
        exit(1);
    }
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", scratch_directory, name);
    return path;
}

static inline const char *scratch_folder(const char *name) {
    const char *path = scratch_path(name);
    for (char *slash = strchr(path + strlen(scratch_directory) + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash) *slash = '\0';
        mkdir(path, 0755);
        if (!slash) return path;
        *slash = '/';
    }
}

static inline const char *scratch_write(const char *name, const void *data, size_t bytes) {
    const char *path = scratch_path(name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) {
        fprintf(stderr, "cannot write %s\n", path);
        exit(1);
    }
    return path;
}

static inline const char *scratch_text(const char *name, const char *text) {
    return scratch_write(name, text, strlen(text));
}

/* A safetensors file of this header text and `data_bytes` bytes 0, 1, 2, ... */
static inline const char *scratch_safetensors(const char *name, const char *header, size_t data_bytes) {
    size_t length = strlen(header);
    unsigned char *bytes = malloc(8 + length + data_bytes + 1);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(length >> (8 * i));
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++) bytes[8 + length + i] = (unsigned char)i;
    const char *path = scratch_write(name, bytes, 8 + length + data_bytes);
    free(bytes);
    return path;
}

static inline char *scratch_read(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    struct stat status;
    fstat(fileno(file), &status);
    char *data = malloc((size_t)status.st_size + 1);
    *bytes = fread(data, 1, (size_t)status.st_size, file);
    data[*bytes] = '\0';
    fclose(file);
    return data;
}

/* `text` with the first `from` replaced by `to`; malloc'ed. Fails where `from` does not occur, so that a test cannot
 * silently test nothing. */
static inline char *scratch_replace(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    if (!at) {
        fprintf(stderr, "\"%s\" does not occur in the text to be changed\n", from);
        exit(1);
    }
    size_t before = (size_t)(at - text), added = strlen(to), rest = strlen(at) - strlen(from);
    char *changed = malloc(before + added + rest + 1);
    if (!changed) exit(1);
    memcpy(changed, text, before);
    memcpy(changed + before, to, added);
    memcpy(changed + before + added, at + strlen(from), rest + 1);
    return changed;
}

/* The call must have failed with this status and one line that contains every one of the (up to three) texts. */
#define assert_refused(call, expected, ...)                                                                            \
    scratch_refused((call), (expected), &error, __FILE__, __LINE__, (const char *[]){__VA_ARGS__, NULL})

static inline void scratch_refused(kakeya_status status, kakeya_status expected, const kakeya_error *error,
                                   const char *file, int line, const char *const *texts) {
    if (status != expected || error->status != expected) {
        fprintf(stderr, "status %s, expected %s (%s)\n", kakeya_status_name(status), kakeya_status_name(expected),
                error->message);
        _fail(file, line);
    }
    for (int i = 0; texts[i]; i++) {
        if (!strstr(error->message, texts[i])) {
            fprintf(stderr, "message \"%s\" lacks \"%s\"\n", error->message, texts[i]);
            _fail(file, line);
        }
    }
    if (strchr(error->message, '\n')) _fail(file, line);
}

#define assert_ok(call) scratch_ok((call), &error, __FILE__, __LINE__)

static inline void scratch_ok(kakeya_status status, const kakeya_error *error, const char *file, int line) {
    if (status == KAKEYA_OK) return;
    fprintf(stderr, "%s: %s\n", kakeya_status_name(status), error->message);
    _fail(file, line);
}

#endif
