#include "text/chat_parts.h"

#include <stdio.h>
#include <string.h>

static const char *string_of(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) && item->valuestring[0] ? item->valuestring : NULL;
}

/* Cuts in front of the character that does not fit. */
static int fitting_bytes(const char *text, size_t most) {
    size_t bytes = strlen(text);
    if (bytes <= most) return (int)bytes;
    while (most && ((unsigned char)text[most] & 0xC0) == 0x80) most--;
    return (int)most;
}

const char *chat_part_line(const cJSON *part, char out[CHAT_LINE_BYTES]) {
    static const char *const titles[] = {"title", "filename", "name", "file_name"};
    enum { MOST_TYPE = 48, MOST_TITLE = 128 };
    const char *type = string_of(part, "type"), *tool = string_of(part, "tool_name"), *title = NULL;
    const cJSON *file = cJSON_GetObjectItemCaseSensitive(part, "file");
    if (type && tool && strcmp(type, "tool_reference") == 0) {
        snprintf(out, CHAT_LINE_BYTES, "%.*s", fitting_bytes(tool, CHAT_LINE_BYTES - 1), tool);
        return out;
    }
    for (size_t i = 0; i < sizeof titles / sizeof *titles && !title; i++) {
        title = string_of(part, titles[i]);
        if (!title) title = string_of(file, titles[i]);
    }
    if (!type) type = "content";
    if (strncmp(type, "input_", 6) == 0) type += 6;
    size_t bytes = strlen(type);
    if (bytes > 4 && strcmp(type + bytes - 4, "_url") == 0) bytes -= 4;
    if (bytes > MOST_TYPE) bytes = (size_t)fitting_bytes(type, MOST_TYPE);
    int n = snprintf(out, CHAT_LINE_BYTES, "[%.*s", (int)bytes, type);
    snprintf(out + n, CHAT_LINE_BYTES - (size_t)n, "%s%.*s]", title ? ": " : "",
             title ? fitting_bytes(title, MOST_TITLE) : 0, title ? title : "");
    return out;
}
