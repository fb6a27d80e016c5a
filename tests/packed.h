/* Data files stored as FILE.gz, because the tree is limited in size. Include after cmocka. */
#ifndef KAKEYA_TESTS_PACKED_H
#define KAKEYA_TESTS_PACKED_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

/* malloc'ed, NUL-terminated contents of a gzip file. */
static inline char *packed_read(const char *path, size_t *bytes) {
    gzFile file = gzopen(path, "rb");
    if (!file) fail_msg("%s: cannot open", path);
    char *text = NULL;
    size_t room = 1 << 16;
    for (*bytes = 0;; room *= 2) {
        text = realloc(text, room + 1);
        assert_non_null(text);
        int n = gzread(file, text + *bytes, (unsigned)(room - *bytes));
        if (n < 0) fail_msg("%s: damaged", path);
        *bytes += (size_t)n;
        if (*bytes < room) break;
    }
    if (gzclose(file) != Z_OK) fail_msg("%s: cut off", path);
    text[*bytes] = 0;
    return text;
}

/* What was unpacked, until the process ends: `from` is the path in the tree, `to` the copy. */
typedef struct unpacked {
    char *from, *to;
} unpacked;

static struct {
    unpacked item[128];
    int n;
    pid_t owner; /* a forked child leaves the copies alone */
    char *folder;
} unpacked_items;

static inline void unpacked_remove(void) {
    if (getpid() != unpacked_items.owner) return;
    while (unpacked_items.n > 0) {
        unpacked *u = &unpacked_items.item[--unpacked_items.n];
        remove(u->to);
        free(u->from);
        free(u->to);
    }
    remove(unpacked_items.folder);
    free(unpacked_items.folder);
}

static inline const unpacked *unpacked_find(const char *from) {
    for (int i = 0; i < unpacked_items.n; i++)
        if (strcmp(unpacked_items.item[i].from, from) == 0) return &unpacked_items.item[i];
    return NULL;
}

/* A place for the copy of `from`, in the folder `inside` or, where that is NULL, in the process's own. */
static inline const char *unpacked_add(const char *from, const char *inside) {
    if (!unpacked_items.owner) {
        const char *base = getenv("TMPDIR");
        assert_true(asprintf(&unpacked_items.folder, "%s/kakeya-unpacked-XXXXXX", base && *base ? base : "/tmp") > 0);
        assert_non_null(mkdtemp(unpacked_items.folder));
        unpacked_items.owner = getpid();
        atexit(unpacked_remove);
    }
    assert_true((size_t)unpacked_items.n < sizeof unpacked_items.item / sizeof unpacked_items.item[0]);
    unpacked *u = &unpacked_items.item[unpacked_items.n];
    u->from = strdup(from);
    if (inside)
        assert_true(asprintf(&u->to, "%s%s", inside, strrchr(from, '/')) > 0);
    else
        assert_true(asprintf(&u->to, "%s/%d", unpacked_items.folder, unpacked_items.n) > 0);
    unpacked_items.n++;
    return u->to;
}

static inline bool is_packed(const char *name) {
    size_t n = strlen(name);
    return n > 3 && strcmp(name + n - 3, ".gz") == 0;
}

/* The path of a file that may be stored as `path`.gz: its own, or its copy's. */
static inline const char *unpacked_file_in(const char *path, const char *inside) {
    char packed[1040];
    const unpacked *u = unpacked_find(path);
    if (u) return u->to;
    snprintf(packed, sizeof packed, "%s.gz", path);
    if (access(packed, F_OK) != 0) return path;
    size_t bytes;
    char *data = packed_read(packed, &bytes);
    const char *to = unpacked_add(path, inside);
    FILE *file = fopen(to, "wb");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) fail_msg("%s: cannot write", to);
    free(data);
    return to;
}

static inline const char *unpacked_file(const char *path) { return unpacked_file_in(path, NULL); }

/* The path of a folder some of whose files may be stored as FILE.gz: its own, or a folder's of copies and links. */
static inline const char *unpacked_folder(const char *path) {
    const unpacked *u = unpacked_find(path);
    DIR *folder = u ? NULL : opendir(path);
    if (!folder) return u ? u->to : path;
    bool any = false;
    for (struct dirent *e; (e = readdir(folder));) any |= is_packed(e->d_name);
    if (any) {
        const char *to = unpacked_add(path, NULL);
        assert_int_equal(mkdir(to, 0755), 0);
        rewinddir(folder);
        for (struct dirent *e; (e = readdir(folder));) {
            char from[1024];
            if (e->d_name[0] == '.') continue;
            snprintf(from, sizeof from, "%s/%s", path, e->d_name);
            if (is_packed(from)) {
                from[strlen(from) - 3] = 0;
                unpacked_file_in(from, to);
            } else if (symlink(from, unpacked_add(from, to)) != 0) {
                fail_msg("%s: cannot link", from);
            }
        }
        path = to;
    }
    closedir(folder);
    return path;
}

#endif
