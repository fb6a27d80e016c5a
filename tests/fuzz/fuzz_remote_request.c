/* Any bytes as a request: refused with a message, or read so that writing and reading them again gives the same;
 * whatever its preset makes of it is words of the table. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "remote/presets.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kakeya_error error = {0};
    request a, b;
    if (size > 4096) return 0;
    char printable[4096];
    if (size) memcpy(printable, data, size);
    if (remote_printable(printable, size) > size) abort();
    if (request_read((const char *)data, size, &a, &error) != KAKEYA_OK) {
        if (error.message[0] == 0 || strchr(error.message, '\n')) abort();
        return 0;
    }
    char *text;
    size_t bytes;
    if (request_write(&a, &text, &bytes, &error) != KAKEYA_OK) abort();
    if (request_read(text, bytes, &b, &error) != KAKEYA_OK || memcmp(&a, &b, sizeof a) != 0) abort();
    free(text);
    request_check_time(&a, a.created, &error);
    const preset *wanted = preset_find(a.preset);
    if (!wanted || preset_check(wanted, &a, &error) != KAKEYA_OK) return 0;
    preset_command command;
    preset_make_command(wanted, &a, &command);
    for (size_t i = 0; i < command.n; i++) {
        if (strspn(command.word[i], "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._,+-/") !=
            strlen(command.word[i]))
            abort();
        if (command.word[i][0] == '/' || strstr(command.word[i], "..")) abort();
    }
    return 0;
}
