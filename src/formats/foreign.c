#include "formats/foreign.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"

#define WEB_PAGE    "a web page, as failed downloads leave it: download the file again"
#define SERVER_TEXT "a server's refusal in the place of the file itself: download the file again"

/* A pickle of protocol 2 or later begins with 0x80 and its number; PyTorch's zip archives begin as every zip does. */
static const struct {
    const char *start;
    size_t bytes;
    bool text; /* read as texts are: whatever its case, behind a byte-order mark and white space */
    const char *what;
} kinds[] = {
    {"version https://git-lfs.github.com/", 35, true,
     "a Git LFS pointer in the place of the file itself: fetch the file with \"git lfs pull\""},
    {"<!doctype", 9, true, WEB_PAGE},
    {"<html", 5, true, WEB_PAGE},
    {"<?xml", 5, true, SERVER_TEXT},
    {"entry not found", 15, true, SERVER_TEXT},
    {"repository not found", 20, true, SERVER_TEXT},
    {"invalid username or password", 28, true, SERVER_TEXT},
    {"access to model", 15, true, SERVER_TEXT},
    {"PK\x03\x04", 4, false, FOREIGN_PYTORCH_ADVICE},
    {"\x80\x02", 2, false, FOREIGN_PYTORCH_ADVICE},
    {"GGUF", 4, false, "a GGUF file, which is not read in this place"},
};

/* Eight bytes 80 02 00 .. are also the length of a small safetensors header. */
static bool is_header_length(const unsigned char *data, size_t bytes) {
    return bytes >= 9 && data[4] == 0 && data[5] == 0 && data[6] == 0 && data[7] == 0 && data[8] == '{';
}

kakeya_status foreign_refuse(const char *path, const void *data, size_t bytes, kakeya_error *error) {
    if (is_header_length(data, bytes)) return KAKEYA_OK;
    const char *text = data;
    size_t before = json_mark_bytes(text, bytes);
    while (before < bytes && text[before] && strchr(" \t\r\n", text[before])) before++;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t n = kinds[i].bytes;
        bool is = kinds[i].text ? bytes - before >= n && strncasecmp(text + before, kinds[i].start, n) == 0
                                : bytes >= n && memcmp(data, kinds[i].start, n) == 0;
        if (is) return error_set(error, KAKEYA_FORMAT, "%s: %s", path, kinds[i].what);
    }
    return KAKEYA_OK;
}
