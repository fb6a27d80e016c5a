/* The places where a model's directory keeps its chat template, newest first, as Hugging Face transformers asks them.
 */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "formats/checkpoint.h"
#include "text/chat_template.h"

/* As Python reads a text file: without the mark that editors on Windows put in front, lines ended by \n alone. */
static size_t unix_text(char *text, size_t bytes) {
    size_t to = 0;
    for (size_t from = json_mark_bytes(text, bytes); from < bytes; from++) {
        if (text[from] != '\r' || text[from + 1] != '\n') text[to++] = text[from];
    }
    text[to] = '\0';
    return to;
}

/* Of a list of named templates the one that is used where nobody asks for another. */
static const cJSON *default_template(const cJSON *list) {
    const cJSON *item;
    cJSON_ArrayForEach(item, list) {
        const cJSON *name = json_get(item, "name");
        if (cJSON_IsString(name) && strcmp(name->valuestring, "default") == 0) return json_get(item, "template");
    }
    return cJSON_GetArraySize(list) == 1 ? json_get(list->child, "template") : NULL;
}

/* The key chat_template: a text, or a list of {name, template}. *out stays NULL where there is none. */
static kakeya_status read_key(const char *path, const char *json, size_t bytes, char **out, kakeya_error *error) {
    cJSON *top = NULL;
    kakeya_status status = json_parse_object(path, json, bytes, &top, error);
    if (status == KAKEYA_OK) status = json_refuse_repeated_keys(path, top, error);
    const cJSON *given = status == KAKEYA_OK ? json_get(top, "chat_template") : NULL;
    const cJSON *text = cJSON_IsArray(given) ? default_template(given) : given;
    if (given && !cJSON_IsString(text))
        status = error_set(error, KAKEYA_FORMAT,
                           "%s: chat_template is neither a text nor a list of named texts with a default", path);
    if (status == KAKEYA_OK && text) {
        *out = strdup(text->valuestring);
        if (!*out) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", path);
    }
    cJSON_Delete(top);
    return status;
}

kakeya_status chat_template_read(const char *directory, char **out, size_t *bytes, kakeya_error *error) {
    static const char *const places[] = {"chat_template.jinja", "chat_template.json", "tokenizer_config.json"};
    kakeya_status status = KAKEYA_OK;
    *out = NULL;
    *bytes = 0;
    for (int i = 0; i < 3 && status == KAKEYA_OK && !*out; i++) {
        char *path, *text;
        size_t n;
        status = checkpoint_text(directory, places[i], true, &path, &text, &n, error);
        if (text && i > 0) {
            status = read_key(path, text, n, out, error);
        } else if (text) {
            n = unix_text(text, n);
            if (strlen(text) != n) status = error_set(error, KAKEYA_FORMAT, "%s: there is a NUL in it", path);
            if (status == KAKEYA_OK) {
                *out = text;
                text = NULL;
            }
        }
        if (*out && !**out) { /* an empty text is none, as in GGUF files */
            free(*out);
            *out = NULL;
        }
        free(text);
        free(path);
    }
    if (*out) *bytes = strlen(*out);
    return status;
}
