/* Data files stored as FILE.gz, because the tree is limited in size. Include after cmocka. */
#ifndef KAKEYA_TESTS_PACKED_H
#define KAKEYA_TESTS_PACKED_H

#include <stdlib.h>
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

#endif
