#include "formats/foreign.h"

#include <stdbool.h>
#include <string.h>

/* A pickle of protocol 2 or later begins with 0x80 and its number; PyTorch's zip archives begin as every zip does. */
static const struct {
    const char *start;
    size_t bytes;
    const char *what;
} kinds[] = {
    {"version https://git-lfs.github.com/", 35,
     "a Git LFS pointer in the place of the file itself: fetch the file with \"git lfs pull\""},
    {"<!DOCTYPE", 9, "a web page, as failed downloads leave it: download the file again"},
    {"<!doctype", 9, "a web page, as failed downloads leave it: download the file again"},
    {"<html", 5, "a web page, as failed downloads leave it: download the file again"},
    {"PK\x03\x04", 4, FOREIGN_PYTORCH_ADVICE},
    {"\x80\x02", 2, FOREIGN_PYTORCH_ADVICE},
    {"GGUF", 4, "a GGUF file, which is not read in this place"},
};

/* Eight bytes 80 02 00 .. are also the length of a small safetensors header. */
static bool is_header_length(const unsigned char *data, size_t bytes) {
    return bytes >= 9 && data[4] == 0 && data[5] == 0 && data[6] == 0 && data[7] == 0 && data[8] == '{';
}

kakeya_status foreign_refuse(const char *path, const void *data, size_t bytes, kakeya_error *error) {
    if (is_header_length(data, bytes)) return KAKEYA_OK;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (bytes >= kinds[i].bytes && memcmp(data, kinds[i].start, kinds[i].bytes) == 0)
            return error_set(error, KAKEYA_FORMAT, "%s: %s", path, kinds[i].what);
    }
    return KAKEYA_OK;
}
