#include "measure/jsonl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/json.h"

enum { MAX_LINE_BYTES = 1 << 24 };

/* The next line without its end, in a buffer that grows; *length is -1 at the end of the file. */
static kakeya_status read_line(gzFile file, const char *path, char **line, size_t *capacity, long *length,
                               kakeya_error *error) {
    size_t n = 0;
    int c;
    *length = -1;
    for (;;) {
        if (n + 1 >= *capacity) {
            size_t grown = *capacity ? 2 * *capacity : 16384;
            char *larger = grown <= MAX_LINE_BYTES ? realloc(*line, grown) : NULL;
            if (!larger) return error_set(error, KAKEYA_FORMAT, "%s: a line is longer than %zu bytes", path, *capacity);
            *line = larger;
            *capacity = grown;
        }
        c = gzgetc(file); /* not gzgets, which does not tell where a line with a NUL ends */
        if (c < 0 || c == '\n') break;
        (*line)[n++] = (char)c;
    }
    int code;
    const char *problem = gzerror(file, &code);
    if (code != Z_OK && code != Z_STREAM_END) return error_set(error, KAKEYA_IO, "%s: cannot read: %s", path, problem);
    if (!n && c < 0) return KAKEYA_OK;
    (*line)[n] = '\0';
    *length = (long)n;
    return KAKEYA_OK;
}

/* A text, or a whole number as text, cut to its place. */
static bool put_name(const cJSON *item, char *out, size_t bytes) {
    if (cJSON_IsString(item) && item->valuestring[0]) {
        snprintf(out, bytes, "%s", item->valuestring);
        return true;
    }
    if (!json_is_integer(item, 0, INT32_MAX)) return false;
    snprintf(out, bytes, "%.0f", item->valuedouble);
    return true;
}

static kakeya_status add_prompt(const char *path, size_t line_number, const char *line, size_t bytes,
                                jsonl_prompts *out, kakeya_error *error) {
    cJSON *object = NULL;
    kakeya_status status = json_parse_object(path, line, bytes, &object, error);
    if (status != KAKEYA_OK) return error_prefix(error, status, "line %zu", line_number);
    const cJSON *prompt = json_get(object, "prompt"), *id = json_get(object, "task_id");
    if (!prompt) prompt = cJSON_GetArrayItem(json_get(object, "turns"), 0);
    if (!id) id = json_get(object, "question_id");
    jsonl_prompt *grown = NULL;
    if (!cJSON_IsString(prompt) || !prompt->valuestring[0]) {
        status = error_set(error, KAKEYA_FORMAT, "%s: line %zu has no \"prompt\"", path, line_number);
    } else if (!(grown = realloc(out->prompt, (out->n + 1) * sizeof *grown))) {
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for %zu prompts", path, out->n + 1);
    } else {
        out->prompt = grown;
        jsonl_prompt *added = &grown[out->n];
        added->text = strdup(prompt->valuestring);
        if (!put_name(id, added->name, sizeof added->name))
            snprintf(added->name, sizeof added->name, "line-%zu", line_number);
        if (!put_name(json_get(object, "category"), added->category, sizeof added->category)) added->category[0] = '\0';
        if (added->text) {
            out->n++;
        } else {
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for %zu prompts", path, out->n + 1);
        }
    }
    cJSON_Delete(object);
    return status;
}

kakeya_status jsonl_read_prompts(const char *path, size_t limit, jsonl_prompts *out, kakeya_error *error) {
    *out = (jsonl_prompts){0};
    gzFile file = gzopen(path, "rb"); /* reads plain files as they are */
    if (!file) return error_set(error, KAKEYA_IO, "%s: cannot open: %s", path, errno ? strerror(errno) : "no memory");
    char *line = NULL;
    size_t capacity = 0, line_number = 0;
    long length = 0;
    kakeya_status status = KAKEYA_OK;
    while (status == KAKEYA_OK && (!limit || out->n < limit)) {
        status = read_line(file, path, &line, &capacity, &length, error);
        if (status != KAKEYA_OK || length < 0) break;
        line_number++;
        if (strspn(line, " \t\r") == (size_t)length) continue;
        status = add_prompt(path, line_number, line, (size_t)length, out, error);
    }
    if (status == KAKEYA_OK && !out->n) status = error_set(error, KAKEYA_FORMAT, "%s: holds no prompts", path);
    free(line);
    gzclose(file);
    return status;
}

void jsonl_prompts_free(jsonl_prompts *prompts) {
    for (size_t i = 0; i < prompts->n; i++) free(prompts->prompt[i].text);
    free(prompts->prompt);
    *prompts = (jsonl_prompts){0};
}
